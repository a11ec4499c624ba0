/* JSON as Python writes it. The expected texts are json.dumps() and repr() of the same values. */
#include "events/json.h"
#include "failmalloc.h"
#include "muster.h"
#include "pure.h"

#include <math.h>

static void numbers_are_the_shortest_that_read_back(void **state)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = {
        { 0.0, "0.0" },
        { -0.0, "-0.0" },
        { 1.0, "1.0" },
        { -2.0, "-2.0" },
        { 0.1, "0.1" },
        { 0.5, "0.5" },
        { 100.0, "100.0" },
        { 123.456, "123.456" },
        { 112.85739400000239, "112.85739400000239" },
        { 0.33647799999414474, "0.33647799999414474" },
        { 1794725297.9016328, "1794725297.9016328" },
        { 1794726754.089734, "1794726754.089734" },
        { 0.0001, "0.0001" },
        { 0.00012345, "0.00012345" },
        { 0.00001, "1e-05" },
        { 1.5e-7, "1.5e-07" },
        { 1e15, "1000000000000000.0" },
        { 9007199254740993.0, "9007199254740992.0" },
        { 1e16, "1e+16" },
        { 1.25e16, "1.25e+16" },
        { 1e20, "1e+20" },
        { 1e100, "1e+100" },
        { 1.7976931348623157e308, "1.7976931348623157e+308" },
        { 5e-324, "5e-324" },
        { -1.5e-300, "-1.5e-300" },
        { 2.0 / 3.0, "0.6666666666666666" },
        { 1e22, "1e+22" },
        { 99.99999999999999, "99.99999999999999" },
    };
    char text[MU_JSON_REAL_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        mu_json_real_repr(rows[i].value, text);
        assert_string_equal(text, rows[i].text);
    }
    mu_json_real_repr((double)NAN, text);
    assert_string_equal(text, "nan");
    mu_json_real_repr((double)-INFINITY, text);
    assert_string_equal(text, "-inf");
}

static void assert_written(struct mu_text *out, const char *expected)
{
    mu_text_add_bytes(out, "", 1);
    assert_int_equal(out->failed, 0);
    assert_string_equal(out->buf.data, expected);
    mu_text_done(out);
}

static void assert_text(struct mu_slice text, const char *expected)
{
    struct mu_text out = { 0 };

    mu_json_text(&out, text);
    assert_written(&out, expected);
}

static void assert_real(double value, const char *expected)
{
    struct mu_text out = { 0 };

    mu_json_real(&out, value);
    assert_written(&out, expected);
}

static void texts_are_ascii_with_small_escapes(void **state)
{
    static const struct {
        const char *text, *json;
    } rows[] = {
        { "", "\"\"" },
        { "plain ~ text", "\"plain ~ text\"" },
        { "a\"b\\c/d", "\"a\\\"b\\\\c/d\"" },
        { "\n\r\t\b\f", "\"\\n\\r\\t\\b\\f\"" },
        { "\x01\x1f\x7f", "\"\\u0001\\u001f\\u007f\"" },
        { "\xc3\xa9", "\"\\u00e9\"" },
        { "\xe2\x82\xac", "\"\\u20ac\"" },
        { "\xf0\x9f\x98\x80!", "\"\\ud83d\\ude00!\"" },
        /* not UTF-8: each byte that cannot be is replaced */
        { "\xff", "\"\\ufffd\"" },
        { "a\xc3", "\"a\\ufffd\"" },
        { "\xc3(", "\"\\ufffd(\"" },
        { "\xc0\x80", "\"\\ufffd\\ufffd\"" },
        { "\xe0\x80\x80", "\"\\ufffd\\ufffd\\ufffd\"" },
        { "\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"" },
        { "\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\"" },
        { "\xf5", "\"\\ufffd\"" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_text(mu_slice_str(rows[i].text), rows[i].json);
    assert_text(mu_slice("a\0b", 3), "\"a\\u0000b\"");
}

static void numbers_without_end_have_names(void **state)
{
    (void)state;
    assert_real((double)NAN, "NaN");
    assert_real((double)INFINITY, "Infinity");
    assert_real((double)-INFINITY, "-Infinity");
    assert_real(0.25, "0.25");
}

static void a_text_past_its_limit_is_refused(void **state)
{
    struct mu_text out = { .len_max = 8 };

    (void)state;
    mu_json_text(&out, mu_slice_str("123456789"));
    assert_int_equal(out.failed, MUSTER_ELIMIT);
    mu_text_add(&out, "x");
    assert_int_equal(out.failed, MUSTER_ELIMIT);
    mu_text_done(&out);
}

static void a_lack_of_memory_is_told(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_text out = { 0 };
        char text[200];

        memset(text, '\n', sizeof text);
        mu_json_text(&out, mu_slice(text, sizeof text));
        assert_int_equal(out.failed, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_text_done(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_the_shortest_that_read_back),
        cmocka_unit_test(texts_are_ascii_with_small_escapes),
        cmocka_unit_test(numbers_without_end_have_names),
        cmocka_unit_test(a_text_past_its_limit_is_refused),
        cmocka_unit_test(a_lack_of_memory_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
