/* Numbers in texts, as Python's int() and float() read them: blanks around, a sign, single "_" between digits. */
#ifndef MU_BASE_NUMBER_H
#define MU_BASE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#define MU_NUMBER_FLOAT_MAX 400 /* bytes without the blanks around: longer ones are refused */

bool mu_number_int(const char *text, int64_t *ret_value); /* false: not one, or not one of 64 bits */
/* Also a fraction, an exponent, inf, infinity and nan in any case. Not for a program that has set a locale. */
bool mu_number_float(const char *text, double *ret_value);

#endif
