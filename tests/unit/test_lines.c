/* The bytes of one stream cut into lines, and what is put in front of them. */
#include "base/rng.h"
#include "failmalloc.h"
#include "logs/lines.h"
#include "pure.h"

#include <stdio.h>

struct scene {
    struct mu_lines lines;
    struct mu_buf out;
};

/* "<a line>", "<the beginning of one", "its end>". */
static void note(struct scene *s, const struct mu_lines_piece *piece)
{
    assert_int_equal(mu_buf_append(&s->out, "<", piece->starts ? 1 : 0, SIZE_MAX), 0);
    assert_int_equal(mu_buf_append(&s->out, piece->text.data, piece->text.len, SIZE_MAX), 0);
    assert_int_equal(mu_buf_append(&s->out, ">", piece->ends ? 1 : 0, SIZE_MAX), 0);
    assert_true(piece->text.len <= MU_LINES_LINE_MAX);
}

static void feed_bytes(struct scene *s, struct mu_slice bytes)
{
    struct mu_lines_piece piece;

    while (mu_lines_next(&s->lines, &bytes, &piece))
        note(s, &piece);
    assert_int_equal(bytes.len, 0);
}

static const char *text_of(struct scene *s)
{
    assert_int_equal(mu_buf_append(&s->out, "", 1, SIZE_MAX), 0);
    s->out.len = 0;
    return s->out.data;
}

static const char *feed(struct scene *s, const char *text)
{
    s->out.len = 0;
    feed_bytes(s, mu_slice_str(text));
    return text_of(s);
}

static const char *end(struct scene *s)
{
    struct mu_lines_piece piece;

    s->out.len = 0;
    if (mu_lines_end(&s->lines, &piece))
        note(s, &piece);
    assert_false(mu_lines_end(&s->lines, &piece));
    return text_of(s);
}

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct scene));
    return *state == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    mu_lines_done(&s->lines);
    mu_buf_done(&s->out);
    free(s);
    return 0;
}

static void whole_lines_come_out(void **state)
{
    struct scene *s = *state;

    assert_string_equal(feed(s, "one\ntwo\n\nfour\n"), "<one><two><><four>");
    assert_string_equal(end(s), "");
}

static void a_line_is_held_until_its_end_comes(void **state)
{
    struct scene *s = *state;

    assert_string_equal(feed(s, "on"), "");
    assert_string_equal(feed(s, "e"), "");
    assert_string_equal(feed(s, "\ntw"), "<one>");
    assert_string_equal(feed(s, "o\n"), "<two>");
}

static void the_last_line_needs_no_end(void **state)
{
    struct scene *s = *state;

    assert_string_equal(feed(s, "one\nno newline at end"), "<one>");
    assert_string_equal(end(s), "<no newline at end>");
}

static void a_carriage_return_ends_a_line_as_well(void **state)
{
    struct scene *s = *state;

    assert_string_equal(feed(s, "\r 10%\r 20%\r"), "<>< 10%>< 20%>");
    assert_string_equal(feed(s, "\n"), ""); /* belongs to the one before */
    assert_string_equal(feed(s, "\n"), "<>");
    assert_string_equal(feed(s, "dos\r\nline\r\n"), "<dos><line>");
    assert_string_equal(feed(s, "a\n\rb\n"), "<a><><b>");
    assert_string_equal(feed(s, "cut\r"), "<cut>");
    assert_string_equal(end(s), "");
}

static void any_bytes_stay_as_they_are(void **state)
{
    struct scene *s = *state;
    char all[256];
    size_t len = 0;

    for (int c = 0; c < 256; c++)
        if (c != '\n' && c != '\r')
            all[len++] = (char)c;
    feed_bytes(s, mu_slice(all, len));
    feed_bytes(s, mu_slice("\n", 1));
    assert_int_equal(s->out.len, len + 2);
    assert_memory_equal(s->out.data + 1, all, len);
}

static void a_long_line_comes_in_pieces_that_start_and_end_once(void **state)
{
    struct scene *s = *state;
    size_t len = 3 * MU_LINES_LINE_MAX + 5;
    char *text = malloc(len + 2);

    assert_non_null(text);
    memset(text, 'x', len);
    memcpy(text + len, "\n", 2);
    feed_bytes(s, mu_slice(text, len + 1));
    assert_int_equal(s->out.len, len + 2);
    assert_int_equal(s->out.data[0], '<');
    assert_memory_equal(s->out.data + 1, text, len);
    assert_int_equal(s->out.data[len + 1], '>');
    assert_true(s->lines.held.cap <= (size_t)2 * MU_LINES_LINE_MAX);
    free(text);
}

static void a_line_of_just_the_limit_is_one_piece(void **state)
{
    struct scene *s = *state;
    char *text = malloc(MU_LINES_LINE_MAX + 1);
    struct mu_lines_piece piece;
    struct mu_slice bytes = { text, MU_LINES_LINE_MAX };

    assert_non_null(text);
    memset(text, 'x', MU_LINES_LINE_MAX);
    assert_false(mu_lines_next(&s->lines, &bytes, &piece));
    bytes = mu_slice("\n", 1);
    assert_true(mu_lines_next(&s->lines, &bytes, &piece));
    assert_true(piece.starts && piece.ends && piece.text.len == MU_LINES_LINE_MAX);
    free(text);
}

/* However it is cut up, the same lines come out: against a stream fed whole. */
static void how_the_bytes_are_cut_up_makes_no_difference(void **state)
{
    struct mu_rng rng = mu_rng_seeded(11);
    static char text[3 * MU_LINES_LINE_MAX];

    (void)state;
    for (int round = 0; round < 200; round++) {
        struct scene whole = { 0 }, cut = { 0 };
        size_t len = mu_rng_below(&rng, round % 20 == 0 ? sizeof text : 300), at = 0;
        unsigned odds = round % 20 == 0 ? 30000 : 6;

        for (size_t i = 0; i < len; i++) {
            uint64_t dice = mu_rng_below(&rng, odds);

            text[i] = dice == 0 ? '\n' : dice == 1 ? '\r' : (char)('a' + dice % 26);
        }
        feed_bytes(&whole, mu_slice(text, len));
        while (at < len) {
            size_t step = 1 + mu_rng_below(&rng, round % 20 == 0 ? MU_LINES_LINE_MAX : 5);

            if (step > len - at)
                step = len - at;
            feed_bytes(&cut, mu_slice(text + at, step));
            at += step;
        }
        assert_int_equal(cut.out.len, whole.out.len);
        if (whole.out.len > 0)
            assert_memory_equal(cut.out.data, whole.out.data, whole.out.len);
        mu_lines_done(&whole.lines);
        mu_lines_done(&cut.lines);
        mu_buf_done(&whole.out);
        mu_buf_done(&cut.out);
    }
}

static void without_memory_a_line_comes_in_pieces_but_whole(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        static const char *const parts[] = { "he", "l", "lo\nwor", "ld" };
        struct mu_lines lines = { 0 };
        struct mu_lines_piece piece;
        char out[64];
        size_t len = 0;

        for (size_t i = 0; i <= COUNT(parts); i++) {
            struct mu_slice bytes = mu_slice_str(i < COUNT(parts) ? parts[i] : "");

            while (i < COUNT(parts) ? mu_lines_next(&lines, &bytes, &piece) : mu_lines_end(&lines, &piece)) {
                if (piece.text.len > 0)
                    memcpy(out + len, piece.text.data, piece.text.len);
                len += piece.text.len;
                if (piece.ends)
                    out[len++] = '\n';
            }
        }
        out[len] = '\0';
        assert_string_equal(out, "hello\nworld\n");
        mu_lines_done(&lines);
    }
}

static const char *prefix(const char *template)
{
    static char out[MU_PREFIX_MAX];

    mu_prefix_format(
        template, &(struct mu_prefix_words){ .role = "trainer", .host = "r12i0n8", .rank = 12, .local_rank = 3 }, out);
    return out;
}

static void the_prefix_is_role_and_local_rank_by_default(void **state)
{
    (void)state;
    assert_string_equal(prefix(NULL), "[trainer3]:");
    assert_string_equal(prefix(""), "[trainer3]:");
}

static void a_template_names_role_ranks_and_host(void **state)
{
    (void)state;
    assert_string_equal(prefix("${hostname}:${rank}: "), "r12i0n8:12: ");
    assert_string_equal(prefix("$hostname/$hostnames"), "r12i0n8/$hostnames");
    assert_string_equal(prefix("{${role_name}|${rank}|${local_rank}}"), "{trainer|12|3}");
    assert_string_equal(prefix("[rank${rank}]: "), "[rank12]: ");
    assert_string_equal(prefix("$rank.$local_rank"), "12.3");
    assert_string_equal(prefix("plain"), "plain");
}

static void what_a_template_does_not_know_stays(void **state)
{
    (void)state;
    assert_string_equal(prefix("${host} $ranks ${rank ${} $ $1 ${local_rank}x$"), "${host} $ranks ${rank ${} $ $1 3x$");
    assert_string_equal(prefix("$$rank $$"), "$rank $");
    assert_string_equal(prefix("${RANK}"), "${RANK}");
}

static void a_prefix_is_bounded(void **state)
{
    static char template[2 * MU_PREFIX_MAX];

    (void)state;
    memset(template, 'p', sizeof template - 1);
    assert_int_equal(strlen(prefix(template)), MU_PREFIX_MAX - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whole_lines_come_out, setup, teardown),
        cmocka_unit_test_setup_teardown(a_line_is_held_until_its_end_comes, setup, teardown),
        cmocka_unit_test_setup_teardown(the_last_line_needs_no_end, setup, teardown),
        cmocka_unit_test_setup_teardown(a_carriage_return_ends_a_line_as_well, setup, teardown),
        cmocka_unit_test_setup_teardown(any_bytes_stay_as_they_are, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_line_comes_in_pieces_that_start_and_end_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_line_of_just_the_limit_is_one_piece, setup, teardown),
        cmocka_unit_test(how_the_bytes_are_cut_up_makes_no_difference),
        cmocka_unit_test(without_memory_a_line_comes_in_pieces_but_whole),
        cmocka_unit_test(the_prefix_is_role_and_local_rank_by_default),
        cmocka_unit_test(a_template_names_role_ranks_and_host),
        cmocka_unit_test(what_a_template_does_not_know_stays),
        cmocka_unit_test(a_prefix_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
