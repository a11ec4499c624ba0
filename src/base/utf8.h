/* Characters of UTF-8, one at a time. Neither surrogates nor needlessly long forms are characters. */
#ifndef MU_BASE_UTF8_H
#define MU_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* How many of the `left` bytes (above 0) at `at` are its first character; 0: they do not begin with one. */
static inline size_t mu_utf8_len(const void *at, size_t left)
{
    const uint8_t *bytes = (const uint8_t *)at;
    unsigned first = bytes[0];
    size_t len = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;

    if (first < 0x80)
        return 1;
    if (len == 0 || len > left)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
    if ((first == 0xe0 && bytes[1] < 0xa0) || (first == 0xed && bytes[1] > 0x9f) ||
        (first == 0xf0 && bytes[1] < 0x90) || (first == 0xf4 && bytes[1] > 0x8f))
        return 0;
    return len;
}

/* The code point of a character of `len` bytes, as mu_utf8_len() has found it. */
static inline uint32_t mu_utf8_point(const void *at, size_t len)
{
    const uint8_t *bytes = (const uint8_t *)at;
    uint32_t point = len == 1 ? bytes[0] : bytes[0] & (0x7fu >> len);

    for (size_t i = 1; i < len; i++)
        point = point << 6 | (bytes[i] & 0x3fu);
    return point;
}

#endif
