/* Standard base64. Decoding takes four characters at a time as long as they are all of the alphabet, and one at a time
 * around whatever is not. */
#include "base/base64.h"

#include "muster.h"

#include <limits.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* What a character stands for, plus one; 0: not of the alphabet. */
static const uint8_t sextets[UCHAR_MAX + 1] = {
    ['A'] = 1,  ['B'] = 2,  ['C'] = 3,  ['D'] = 4,  ['E'] = 5,  ['F'] = 6,  ['G'] = 7,  ['H'] = 8,
    ['I'] = 9,  ['J'] = 10, ['K'] = 11, ['L'] = 12, ['M'] = 13, ['N'] = 14, ['O'] = 15, ['P'] = 16,
    ['Q'] = 17, ['R'] = 18, ['S'] = 19, ['T'] = 20, ['U'] = 21, ['V'] = 22, ['W'] = 23, ['X'] = 24,
    ['Y'] = 25, ['Z'] = 26, ['a'] = 27, ['b'] = 28, ['c'] = 29, ['d'] = 30, ['e'] = 31, ['f'] = 32,
    ['g'] = 33, ['h'] = 34, ['i'] = 35, ['j'] = 36, ['k'] = 37, ['l'] = 38, ['m'] = 39, ['n'] = 40,
    ['o'] = 41, ['p'] = 42, ['q'] = 43, ['r'] = 44, ['s'] = 45, ['t'] = 46, ['u'] = 47, ['v'] = 48,
    ['w'] = 49, ['x'] = 50, ['y'] = 51, ['z'] = 52, ['0'] = 53, ['1'] = 54, ['2'] = 55, ['3'] = 56,
    ['4'] = 57, ['5'] = 58, ['6'] = 59, ['7'] = 60, ['8'] = 61, ['9'] = 62, ['+'] = 63, ['/'] = 64,
};

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

/* Into room for three quarters of the text. Returns how many bytes it was, or MUSTER_EINVAL. What follows a complete
 * padding does not count any more; padding where none can be does not count at all. */
static ptrdiff_t decode(struct mu_slice text, char *out)
{
    const uint8_t *from = (const uint8_t *)text.data, *end = from + text.len;
    char *to = out;
    uint32_t bits = 0;
    unsigned pending = 0, pads = 0; /* characters of an unfinished four, and '=' right behind them */

    while (from < end) {
        uint8_t sextet;

        if (pending == 0 && end - from >= 4) {
            uint8_t a = sextets[from[0]], b = sextets[from[1]], c = sextets[from[2]], d = sextets[from[3]];

            if (a != 0 && b != 0 && c != 0 && d != 0) {
                to = put_triple(to, (a - 1u) << 18 | (b - 1u) << 12 | (c - 1u) << 6 | (d - 1u));
                from += 4;
                continue;
            }
        }
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
        if (sextet == 0)
            continue;
        pads = 0;
        bits = bits << 6 | (sextet - 1u);
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
