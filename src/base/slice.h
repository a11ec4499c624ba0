/* Borrowed bytes: a pointer and a length. Never freed through, never NUL-terminated by promise. */
#ifndef MU_BASE_SLICE_H
#define MU_BASE_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
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

/* Takes `prefix` off. False: the text does not begin with it, and is as it was. */
static inline bool mu_slice_skip(struct mu_slice *text, const char *prefix)
{
    size_t len = strlen(prefix);

    if (text->len < len || memcmp(text->data, prefix, len) != 0)
        return false;
    *text = mu_slice(text->data + len, text->len - len);
    return true;
}

/* Decimal digits and nothing else, of a number up to `max`. False: they are none, and *ret_number is as it was. */
static inline bool mu_slice_number(struct mu_slice text, int64_t max, int64_t *ret_number)
{
    int64_t number = 0;

    for (size_t i = 0; i < text.len; i++) {
        int digit = text.data[i] - '0';

        if (digit < 0 || digit > 9 || number > max / 10 || number * 10 > max - digit)
            return false;
        number = number * 10 + digit;
    }
    if (text.len == 0)
        return false;
    *ret_number = number;
    return true;
}

#endif
