/* Base64: what is written is standard, what is read is what Python would read. */
#include "base/base64.h"
#include "failmalloc.h"
#include "muster.h"
#include "pure.h"

static void assert_holds(const struct mu_buf *buf, const char *text, size_t len)
{
    assert_int_equal(buf->len, len);
    assert_memory_equal(len == 0 ? "" : buf->data, text, len);
}

static void the_examples_of_the_standard_hold(void **state)
{
    static const char *const pairs[][2] = {
        { "", "" },
        { "f", "Zg==" },
        { "fo", "Zm8=" },
        { "foo", "Zm9v" },
        { "foob", "Zm9vYg==" },
        { "fooba", "Zm9vYmE=" },
        { "foobar", "Zm9vYmFy" },
        { "canimadam", "Y2FuaW1hZGFt" },
        { "\xfb\xff\xbf", "+/+/" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        struct mu_buf text = { 0 }, bytes = { 0 };

        assert_int_equal(mu_base64_encode(mu_slice_str(pairs[i][0]), &text, 100), 0);
        assert_holds(&text, pairs[i][1], strlen(pairs[i][1]));
        assert_int_equal(mu_base64_decode(mu_slice_str(pairs[i][1]), &bytes, 100), 0);
        assert_holds(&bytes, pairs[i][0], strlen(pairs[i][0]));
        mu_buf_done(&text);
        mu_buf_done(&bytes);
    }
}

static void all_lengths_come_back(void **state)
{
    char bytes[300];

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 151 + i / 7);
    for (size_t len = 0; len <= sizeof bytes; len++) {
        struct mu_buf text = { 0 }, back = { 0 };

        assert_int_equal(mu_base64_encode(mu_slice(bytes, len), &text, SIZE_MAX), 0);
        assert_int_equal(text.len, (len + 2) / 3 * 4);
        assert_int_equal(mu_base64_decode(mu_buf_slice(&text), &back, SIZE_MAX), 0);
        assert_holds(&back, bytes, len);
        mu_buf_done(&text);
        mu_buf_done(&back);
    }
}

/* Each of these was tried on Python's base64.b64decode. */
static void foreign_characters_are_dropped_as_python_does(void **state)
{
    static const char *const pairs[][2] = {
        { "@@@", "" },           { "=", "" },
        { "====", "" },          { "=Zg==", "f" },
        { "Z=g==", "f" },        { " Zm9v\r\nYmFy\n", "foobar" },
        { "Z-m_9v", "foo" },     { "Zg=@=", "f" },
        { "Zg==Zg==", "f" },     { "Zg===", "f" },
        { "Zm8=garbage", "fo" }, { "Zm8=====", "fo" },
        { "Zm=9v", "foo" },      { "Zg=Zg=", "f\x06`" },
        { "Zh==", "f" }, /* bits that mean nothing are not looked at */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        struct mu_buf bytes = { 0 };

        assert_int_equal(mu_base64_decode(mu_slice_str(pairs[i][0]), &bytes, 100), 0);
        assert_holds(&bytes, pairs[i][1], strlen(pairs[i][1]));
        mu_buf_done(&bytes);
    }
}

static void an_impossible_length_or_padding_is_wrong(void **state)
{
    static const char *const texts[] = { "Z", "Z=", "Z===", "Zg", "Zg=", "Zm8", "Zm9vY", "Zm9vYg", "Zg=Z" };
    struct mu_buf bytes = { 0 };

    (void)state;
    assert_int_equal(mu_buf_append(&bytes, "x", 1, 1), 0);
    for (size_t i = 0; i < COUNT(texts); i++)
        assert_int_equal(mu_base64_decode(mu_slice_str(texts[i]), &bytes, 100), MUSTER_EINVAL);
    assert_holds(&bytes, "x", 1);
    mu_buf_done(&bytes);
}

static void both_append_up_to_the_limit_and_not_beyond(void **state)
{
    struct mu_buf buf = { 0 };

    (void)state;
    assert_int_equal(mu_buf_append(&buf, "ab", 2, 2), 0);
    assert_int_equal(mu_base64_encode(mu_slice_str("foo"), &buf, 5), MUSTER_ELIMIT);
    assert_holds(&buf, "ab", 2);
    assert_int_equal(mu_base64_encode(mu_slice_str("foo"), &buf, 6), 0);
    assert_holds(&buf, "abZm9v", 6);
    assert_int_equal(mu_base64_decode(mu_slice_str("Zm9v"), &buf, 8), MUSTER_ELIMIT);
    assert_int_equal(mu_base64_decode(mu_slice_str("Zm9v"), &buf, 5), MUSTER_ELIMIT);
    assert_holds(&buf, "abZm9v", 6);
    assert_int_equal(mu_base64_decode(mu_slice_str("..Zm9v.."), &buf, 9), 0); /* only what comes out counts */
    assert_holds(&buf, "abZm9vfoo", 9);
    assert_int_equal(mu_base64_encode(mu_slice("", SIZE_MAX), &buf, SIZE_MAX), MUSTER_ELIMIT);
    mu_buf_done(&buf);
}

static void without_memory_nothing_changes(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_buf buf = { 0 };
        int rc = mu_base64_encode(mu_slice_str("foobar"), &buf, 100);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        assert_int_equal(buf.len, rc == 0 ? 8 : 0);
        mu_buf_done(&buf);
    }
    FOR_EACH_FAILURE (n) {
        struct mu_buf buf = { 0 };
        int rc = mu_base64_decode(mu_slice_str("Zm9vYmFy"), &buf, 100);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        assert_int_equal(buf.len, rc == 0 ? 6 : 0);
        mu_buf_done(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_examples_of_the_standard_hold),
        cmocka_unit_test(all_lengths_come_back),
        cmocka_unit_test(foreign_characters_are_dropped_as_python_does),
        cmocka_unit_test(an_impossible_length_or_padding_is_wrong),
        cmocka_unit_test(both_append_up_to_the_limit_and_not_beyond),
        cmocka_unit_test(without_memory_nothing_changes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
