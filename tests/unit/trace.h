/* A growing text in which a test's scene tells what has happened, to be compared as a whole. */
#ifndef TESTS_UNIT_TRACE_H
#define TESTS_UNIT_TRACE_H

#include "pure.h"

#include <stdio.h>

struct trace {
    char text[8192];
    size_t len;
};

static inline void trace_begin(struct trace *trace)
{
    trace->len = 0;
    trace->text[0] = '\0';
}

static inline void trace_add(struct trace *trace, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline void trace_add(struct trace *trace, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    trace->len += (size_t)vsnprintf(trace->text + trace->len, sizeof trace->text - trace->len, format, args);
    va_end(args);
    assert_true(trace->len < sizeof trace->text);
}

#endif
