/* The last lines of a stream. */
#include "failmalloc.h"
#include "log_scene.h"
#include "logs/tail.h"

static const char *text_of(const struct mu_tail *tail)
{
    static char out[MU_TAIL_BYTES_MAX + 1];
    struct mu_buf text = { 0 };

    assert_int_equal(mu_tail_text(tail, &text), 0);
    memcpy(out, text.data, text.len);
    out[text.len] = '\0';
    mu_buf_done(&text);
    return out;
}

static const char *tail_of(const char *text)
{
    struct mu_tail tail = { 0 };

    mu_tail_add(&tail, mu_slice_str(text));
    return text_of(&tail);
}

static void a_short_stream_is_kept_whole(void **state)
{
    (void)state;
    assert_string_equal(tail_of(""), "");
    assert_string_equal(tail_of("one\ntwo\n"), "one\ntwo");
    assert_string_equal(tail_of("one\n\nthree"), "one\n\nthree");
    assert_string_equal(tail_of("one\r\n\n\n"), "one");
}

static void of_many_lines_the_last_ones_are_kept(void **state)
{
    struct mu_tail tail = { 0 };
    char line[32], expected[1024] = "";

    (void)state;
    for (int i = 0; i < 100; i++) {
        (void)snprintf(line, sizeof line, "line %d\n", i);
        mu_tail_add(&tail, mu_slice_str(line));
        if (i >= 100 - MU_TAIL_LINES_MAX)
            (void)strcat(expected, line);
    }
    expected[strlen(expected) - 1] = '\0';
    assert_string_equal(text_of(&tail), expected);
}

static void long_lines_are_cut_in_front_and_only_whole_ones_kept(void **state)
{
    struct mu_tail tail = { 0 };
    char line[1501], expected[4096];

    (void)state;
    for (int i = 0; i < 5; i++) {
        memset(line, 'a' + i, 1499);
        memcpy(line + 1499, "\n", 2);
        mu_tail_add(&tail, mu_slice_str(line));
    }
    memset(expected, 'd', 1499);
    memset(expected + 1499, '\n', 1);
    memset(expected + 1500, 'e', 1499);
    expected[2999] = '\0';
    assert_string_equal(text_of(&tail), expected);
}

static void a_line_longer_than_all_is_better_than_nothing(void **state)
{
    struct mu_tail tail = { 0 };
    static char text[3 * MU_TAIL_BYTES_MAX + 1];

    (void)state;
    memset(text, 'x', sizeof text - 2);
    text[sizeof text - 2] = '\n';
    mu_tail_add(&tail, mu_slice_str(text));
    assert_int_equal(strlen(text_of(&tail)), MU_TAIL_BYTES_MAX - 1);
}

static void pieces_of_any_size_give_the_same(void **state)
{
    static char text[10000];

    (void)state;
    for (size_t i = 0; i < sizeof text - 1; i++)
        text[i] = i % 61 == 60 ? '\n' : (char)('A' + i % 26);
    for (size_t step = 1; step < sizeof text; step = step * 3 + 1) {
        struct mu_tail tail = { 0 };
        char expected[MU_TAIL_BYTES_MAX + 1];

        (void)strcpy(expected, tail_of(text));
        for (size_t at = 0; at < sizeof text - 1; at += step)
            mu_tail_add(&tail, mu_slice(text + at, step < sizeof text - 1 - at ? step : sizeof text - 1 - at));
        assert_string_equal(text_of(&tail), expected);
    }
}

static void a_file_has_the_same_tail_as_a_stream(void **state)
{
    static const char *const texts[] = { "", "one", "one\ntwo\n", "\n\n" };
    static char many[20000];
    struct own_dir dir;
    char path[128];
    struct mu_buf text = { 0 };

    (void)state;
    own_dir_make(&dir);
    (void)snprintf(path, sizeof path, "%s/f", dir.path);
    for (size_t i = 0; i < sizeof many - 1; i++)
        many[i] = i % 301 == 300 ? '\n' : 'x';
    for (size_t i = 0; i <= COUNT(texts); i++) {
        const char *whole = i < COUNT(texts) ? texts[i] : many;

        write_file(path, whole);
        assert_int_equal(mu_tail_file(path, &text), 0);
        assert_int_equal(mu_buf_append(&text, "", 1, SIZE_MAX), 0);
        assert_string_equal(text.data, tail_of(whole));
    }
    mu_buf_done(&text);
    own_dir_remove(&dir);
}

static void a_file_that_is_not_there_has_an_empty_one(void **state)
{
    struct mu_buf text = { 0 };

    (void)state;
    assert_int_equal(mu_buf_append(&text, "x", 1, SIZE_MAX), 0);
    assert_int_equal(mu_tail_file("/nonexistent/f", &text), 0);
    assert_int_equal(text.len, 0);
    assert_int_equal(mu_tail_file("/dev", &text), 0);
    assert_int_equal(text.len, 0);
    mu_buf_done(&text);
}

static void without_memory_there_is_an_error(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_tail tail = { 0 };
        struct mu_buf text = { 0 };
        int rc;

        mu_tail_add(&tail, mu_slice_str("one\n"));
        rc = mu_tail_text(&tail, &text);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_buf_done(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_stream_is_kept_whole),
        cmocka_unit_test(of_many_lines_the_last_ones_are_kept),
        cmocka_unit_test(long_lines_are_cut_in_front_and_only_whole_ones_kept),
        cmocka_unit_test(a_line_longer_than_all_is_better_than_nothing),
        cmocka_unit_test(pieces_of_any_size_give_the_same),
        cmocka_unit_test(a_file_has_the_same_tail_as_a_stream),
        cmocka_unit_test(a_file_that_is_not_there_has_an_empty_one),
        cmocka_unit_test(without_memory_there_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
