/* What every unit test includes: cmocka, behind the headers it needs, and a word or two. */
#ifndef TESTS_UNIT_PURE_H
#define TESTS_UNIT_PURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
