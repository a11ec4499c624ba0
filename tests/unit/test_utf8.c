#include "base/utf8.h"
#include "pure.h"

#include <string.h>

static size_t encode(uint32_t point, unsigned char out[4])
{
    if (point < 0x80) {
        out[0] = (unsigned char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (unsigned char)(0xc0 | point >> 6);
        out[1] = (unsigned char)(0x80 | (point & 0x3f));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (unsigned char)(0xe0 | point >> 12);
        out[1] = (unsigned char)(0x80 | (point >> 6 & 0x3f));
        out[2] = (unsigned char)(0x80 | (point & 0x3f));
        return 3;
    }
    out[0] = (unsigned char)(0xf0 | point >> 18);
    out[1] = (unsigned char)(0x80 | (point >> 12 & 0x3f));
    out[2] = (unsigned char)(0x80 | (point >> 6 & 0x3f));
    out[3] = (unsigned char)(0x80 | (point & 0x3f));
    return 4;
}

static void every_character_is_one_and_none_is_when_it_is_cut(void **state)
{
    unsigned char bytes[5] = { 0 };

    (void)state;
    for (uint32_t point = 0; point < 0x200000; point++) {
        bool is_character = point <= 0x10ffff && !(point >= 0xd800 && point < 0xe000);
        size_t len = encode(point, bytes);

        if (mu_utf8_len(bytes, len) != (is_character ? len : 0) || (len > 1 && mu_utf8_len(bytes, len - 1) != 0))
            fail_msg("U+%04X", (unsigned)point);
        if (is_character)
            assert_int_equal(mu_utf8_point(bytes, len), point);
    }
}

static void what_follows_does_not_matter(void **state)
{
    (void)state;
    assert_int_equal(mu_utf8_len("a\xff", 2), 1);
    assert_int_equal(mu_utf8_len("\xc3\xa9\xff", 3), 2);
    assert_int_equal(mu_utf8_len("\0\xff", 2), 1);
}

static void other_bytes_are_no_characters(void **state)
{
    static const char *const bad[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc1\xbf",
        "\xc3(",
        "\xe0\x80\x80",
        "\xe0\x9f\xbf",
        "\xe2\x82(",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xe2(\x80",
        "\xf0\x80\x80\x80",
        "\xf0\x8f\xbf\xbf",
        "\xf0\x9f\x92",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xf8\x88\x80\x80\x80",
        "\xff",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (mu_utf8_len(bad[i], strlen(bad[i])) != 0)
            fail_msg("row %zu", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_is_one_and_none_is_when_it_is_cut),
        cmocka_unit_test(what_follows_does_not_matter),
        cmocka_unit_test(other_bytes_are_no_characters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
