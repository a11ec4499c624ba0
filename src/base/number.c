/* Numbers as Python reads them. */
#include "base/number.h"

#include <stddef.h>
#include <stdlib.h>
#include <strings.h>

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *skip_blanks(const char *text)
{
    while (is_blank(*text))
        text++;
    return text;
}

bool mu_number_int(const char *text, int64_t *ret_value)
{
    bool negative, overflow = false;
    int64_t value = 0;

    text = skip_blanks(text);
    negative = *text == '-';
    if (*text == '-' || *text == '+')
        text++;
    for (;;) {
        if (!is_digit(*text))
            return false;
        overflow = overflow || __builtin_mul_overflow(value, 10, &value) ||
                   __builtin_sub_overflow(value, *text - '0', &value); /* downwards: there is one more below 0 */
        text++;
        if (*text == '_')
            text++;
        else if (!is_digit(*text))
            break;
    }
    if (*skip_blanks(text) != '\0' || overflow || (!negative && value == INT64_MIN))
        return false;
    *ret_value = negative ? value : -value;
    return true;
}

/* The word without blanks and underscores; false if it is too long or an underscore stands elsewhere than between
 * digits. */
static bool copy_word(const char *text, char word[static MU_NUMBER_FLOAT_MAX + 1])
{
    size_t len = 0;

    text = skip_blanks(text);
    for (; *text != '\0' && !is_blank(*text); text++) {
        if (*text == '_') {
            if (len == 0 || !is_digit(word[len - 1]) || !is_digit(text[1]))
                return false;
            continue;
        }
        if (len == MU_NUMBER_FLOAT_MAX)
            return false;
        word[len++] = *text;
    }
    word[len] = '\0';
    return *skip_blanks(text) == '\0';
}

static bool is_digits(const char **text)
{
    const char *from = *text;

    while (is_digit(**text))
        (*text)++;
    return *text > from;
}

/* strtod() takes more than this: hexadecimal numbers, for one. */
static bool is_decimal(const char *text)
{
    bool whole = is_digits(&text), part = false;

    if (*text == '.') {
        text++;
        part = is_digits(&text);
    }
    if (!whole && !part)
        return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        if (*text == '-' || *text == '+')
            text++;
        if (!is_digits(&text))
            return false;
    }
    return *text == '\0';
}

bool mu_number_float(const char *text, double *ret_value)
{
    char word[MU_NUMBER_FLOAT_MAX + 1];
    const char *number = word;

    if (!copy_word(text, word))
        return false;
    if (*number == '-' || *number == '+')
        number++;
    if (!is_decimal(number) && strcasecmp(number, "inf") != 0 && strcasecmp(number, "infinity") != 0 &&
        strcasecmp(number, "nan") != 0)
        return false;
    *ret_value = strtod(word, NULL);
    return true;
}
