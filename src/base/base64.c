/* Standard base64. Decoding takes four characters at a time as long as they are all of the alphabet, and one at a time
 * around other characters. */
#include "base/base64.h"

#include "muster.h"

#include <limits.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* What a character stands for; xx: it is not of the alphabet. */
#define NOT_ONE 0x80
#define xx NOT_ONE
static const uint8_t sextets[UCHAR_MAX + 1] = {
    xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx,
    xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, 62, xx, xx, xx, 63, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61,
    xx, xx, xx, xx, xx, xx, xx, 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, xx, xx, xx, xx, xx, xx, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44,
    45, 46, 47, 48, 49, 50, 51, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx,
    xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx,
    xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx,
    xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx,
    xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx,
};
#undef xx

static char *put_quad(char *to, uint32_t bits)
{
    to[0] = alphabet[bits >> 18 & 63];
    to[1] = alphabet[bits >> 12 & 63];
    to[2] = alphabet[bits >> 6 & 63];
    to[3] = alphabet[bits & 63];
    return to + 4;
}

int mu_base64_encode(struct mu_slice bytes, struct mu_buf *out, size_t len_max)
{
    const uint8_t *from = (const uint8_t *)bytes.data;
    size_t left = bytes.len, len;
    char *to;
    int rc;

    if (bytes.len > SIZE_MAX / 4 * 3 - 2)
        return MUSTER_ELIMIT;
    len = (bytes.len + 2) / 3 * 4;
    rc = mu_buf_reserve(out, len, len_max);
    if (rc < 0 || len == 0)
        return rc;
    to = out->data + out->len;
    for (; left >= 3; left -= 3, from += 3)
        to = put_quad(to, (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2]);
    if (left > 0) {
        to = put_quad(to, (uint32_t)from[0] << 16 | (left > 1 ? (uint32_t)from[1] << 8 : 0));
        to[-1] = '=';
        if (left == 1)
            to[-2] = '=';
    }
    out->len += len;
    return 0;
}

static char *put_triple(char *to, uint32_t bits)
{
    to[0] = (char)(bits >> 16);
    to[1] = (char)(bits >> 8);
    to[2] = (char)bits;
    return to + 3;
}

/* Into room for three quarters of the text. Returns how many bytes it was, or MUSTER_EINVAL. Anything behind a complete
 * padding is ignored, and so is padding in a place where it cannot be. */
static ptrdiff_t decode(struct mu_slice text, char *out)
{
    const uint8_t *from = (const uint8_t *)text.data, *end = from + text.len;
    char *to = out;
    uint32_t bits = 0;
    unsigned pending = 0, pads = 0; /* characters of an unfinished four, and '=' right behind them */

    while (from < end) {
        uint8_t sextet;

        while (pending == 0 && end - from >= 4) {
            uint8_t a = sextets[from[0]], b = sextets[from[1]], c = sextets[from[2]], d = sextets[from[3]];

            if (((a | b | c | d) & NOT_ONE) != 0)
                break;
            to = put_triple(to, (uint32_t)a << 18 | (uint32_t)b << 12 | (uint32_t)c << 6 | d);
            from += 4;
        }
        if (from == end)
            break;
        if (*from++ == '=') {
            if (pending >= 2 && pending + ++pads >= 4) {
                bits <<= 6 * (4 - pending);
                *to++ = (char)(bits >> 16);
                if (pending == 3)
                    *to++ = (char)(bits >> 8);
                return to - out;
            }
            continue;
        }
        sextet = sextets[from[-1]];
        if (sextet == NOT_ONE)
            continue;
        pads = 0;
        bits = bits << 6 | sextet;
        if (++pending == 4) {
            to = put_triple(to, bits);
            bits = 0;
            pending = 0;
        }
    }
    return pending == 0 ? to - out : MUSTER_EINVAL;
}

/* The limit is on what comes out, which is known only afterwards: there may be any number of dropped characters. */
int mu_base64_decode(struct mu_slice text, struct mu_buf *out, size_t len_max)
{
    ptrdiff_t len;
    int rc = mu_buf_reserve(out, 0, len_max);

    if (rc < 0 || text.len == 0)
        return rc;
    rc = mu_buf_reserve(out, text.len / 4 * 3 + 3, SIZE_MAX);
    if (rc < 0)
        return rc;
    len = decode(text, out->data + out->len);
    if (len < 0)
        return (int)len;
    if ((size_t)len > len_max - out->len)
        return MUSTER_ELIMIT;
    out->len += (size_t)len;
    return 0;
}
