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

static void assert_written(struct mu_buf *buf, int rc, const char *expected)
{
    assert_int_equal(rc, 0);
    assert_int_equal(mu_buf_append(buf, "", 1, MU_JSON_BYTES_MAX), 0);
    assert_string_equal(buf->data, expected);
    buf->len = 0;
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
    struct mu_buf buf = { 0 };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_written(&buf, mu_json_text(&buf, mu_slice_str(rows[i].text)), rows[i].json);
    assert_written(&buf, mu_json_text(&buf, mu_slice("a\0b", 3)), "\"a\\u0000b\"");
    mu_buf_done(&buf);
}

static void what_is_not_there_is_null(void **state)
{
    struct mu_buf buf = { 0 };

    (void)state;
    assert_written(&buf, mu_json_text_or_null(&buf, NULL), "null");
    assert_written(&buf, mu_json_text_or_null(&buf, "x"), "\"x\"");
    assert_written(&buf, mu_json_int_or_null(&buf, -1), "null");
    assert_written(&buf, mu_json_int_or_null(&buf, 0), "0");
    assert_written(&buf, mu_json_int(&buf, INT64_MIN), "-9223372036854775808");
    assert_written(&buf, mu_json_real(&buf, (double)NAN), "NaN");
    assert_written(&buf, mu_json_real(&buf, (double)INFINITY), "Infinity");
    assert_written(&buf, mu_json_real(&buf, (double)-INFINITY), "-Infinity");
    assert_written(&buf, mu_json_real(&buf, 0.25), "0.25");
    mu_buf_done(&buf);
}

static void a_lack_of_memory_is_told(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_buf buf = { 0 };
        char text[200];
        int rc;

        memset(text, '\n', sizeof text);
        rc = mu_json_text(&buf, mu_slice(text, sizeof text));
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_buf_done(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_the_shortest_that_read_back),
        cmocka_unit_test(texts_are_ascii_with_small_escapes),
        cmocka_unit_test(what_is_not_there_is_null),
        cmocka_unit_test(a_lack_of_memory_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
