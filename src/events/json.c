/* JSON, written the way Python writes it. */
#include "events/json.h"

#include "base/utf8.h"
#include "muster.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPLACEMENT = 0xFFFD, DIGITS_MAX = 20 };

/* The character at `*at`, which moves on. */
static uint32_t next_character(struct mu_slice text, size_t *at)
{
    const char *from = text.data + *at;
    size_t len = mu_utf8_len(from, text.len - *at);

    *at += len == 0 ? 1 : len;
    return len == 0 ? REPLACEMENT : mu_utf8_point(from, len);
}

static void put_character(struct mu_text *out, uint32_t c)
{
    static const char special[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    const char *found = c > 0 && c < 0x80 ? strchr(special, (int)c) : NULL;

    if (found != NULL)
        mu_text_add(out, "\\%c", letters[found - special]);
    else if (c < 0x10000)
        mu_text_add(out, "\\u%04" PRIx32, c);
    else
        mu_text_add(out, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xD7C0 + (c >> 10), 0xDC00 + (c & 0x3FF));
}

static bool is_plain(char c)
{
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
}

void mu_json_text(struct mu_text *out, struct mu_slice text)
{
    size_t at = 0;

    mu_text_add(out, "\"");
    while (out->failed == 0 && at < text.len) {
        size_t plain = at;

        while (plain < text.len && is_plain(text.data[plain]))
            plain++;
        if (plain > at) {
            mu_text_add_bytes(out, text.data + at, plain - at);
            at = plain;
        } else {
            put_character(out, next_character(text, &at));
        }
    }
    mu_text_add(out, "\"");
}

/* The fewest digits that read back as the same number, and the power of ten of the first of them. Works with the
 * decimal point of any locale. */
static int shortest_digits(double value, char digits[DIGITS_MAX])
{
    char text[MU_JSON_REAL_MAX];
    const char *from;
    size_t count = 0;

    for (int precision = 0; precision < 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value)
            break;
    }
    for (from = text; *from != 'e' && *from != '\0'; from++)
        if (*from >= '0' && *from <= '9' && count < DIGITS_MAX - 1)
            digits[count++] = *from;
    digits[count] = '\0';
    return atoi(from + 1);
}

/* Below 1e16 and from 1e-4 on in full, else with an exponent of two digits or more. */
static void lay_out(const char *digits, int power, const char *sign, char ret_text[MU_JSON_REAL_MAX])
{
    int count = (int)strlen(digits);

    if (power < -4 || power >= 16)
        (void)snprintf(ret_text, MU_JSON_REAL_MAX, "%s%.1s%s%se%c%02d", sign, digits, count > 1 ? "." : "", digits + 1,
                       power < 0 ? '-' : '+', abs(power));
    else if (power < 0)
        (void)snprintf(ret_text, MU_JSON_REAL_MAX, "%s0.%.*s%s", sign, -power - 1, "000", digits);
    else if (count <= power + 1)
        (void)snprintf(ret_text, MU_JSON_REAL_MAX, "%s%s%.*s.0", sign, digits, power + 1 - count, "000000000000000");
    else
        (void)snprintf(ret_text, MU_JSON_REAL_MAX, "%s%.*s.%s", sign, power + 1, digits, digits + power + 1);
}

void mu_json_real_repr(double value, char ret_text[MU_JSON_REAL_MAX])
{
    char digits[DIGITS_MAX];
    int power;

    if (isnan(value) || isinf(value)) {
        (void)snprintf(ret_text, MU_JSON_REAL_MAX, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    power = shortest_digits(fabs(value), digits);
    lay_out(digits, power, signbit(value) ? "-" : "", ret_text);
}

void mu_json_real(struct mu_text *out, double value)
{
    char text[MU_JSON_REAL_MAX];

    mu_json_real_repr(value, text);
    mu_text_add(out, "%s", isnan(value) ? "NaN" : !isinf(value) ? text : value < 0 ? "-Infinity" : "Infinity");
}
