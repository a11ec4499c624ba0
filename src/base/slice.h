/* Borrowed bytes: a pointer and a length. Never freed through, never NUL-terminated by promise. */
#ifndef MU_BASE_SLICE_H
#define MU_BASE_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct mu_slice {
    const char *data;
    size_t len;
};

static inline struct mu_slice mu_slice(const void *data, size_t len)
{
    return (struct mu_slice){ .data = data, .len = len };
}

static inline struct mu_slice mu_slice_str(const char *text)
{
    return mu_slice(text, strlen(text));
}

static inline bool mu_slice_equal(struct mu_slice a, struct mu_slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

#endif
