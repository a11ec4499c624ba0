/* The form of a line in the log. */
#include "cli/log_line.h"
#include "pure.h"

static const struct timespec when = { .tv_sec = 1794830830, .tv_nsec = 42999999 };

static void a_line_bears_time_host_process_and_level(void **state)
{
    static const struct {
        struct mu_log_style style;
        enum muster_log_level level;
        const char *line;
    } cases[] = {
        { { "node2", 4711, false, false },
          MUSTER_LOG_WARNING,
          "2026-11-16T12:07:10.042Z node2 muster[4711] warning: x\n" },
        { { "node2", 4711, false, false }, MUSTER_LOG_ERROR, "2026-11-16T12:07:10.042Z node2 muster[4711] error: x\n" },
        { { "node2", 4711, false, false }, MUSTER_LOG_INFO, "2026-11-16T12:07:10.042Z node2 muster[4711] info: x\n" },
        { { "node2", 4711, false, false }, MUSTER_LOG_DEBUG, "2026-11-16T12:07:10.042Z node2 muster[4711] debug: x\n" },
        { { "n\x1b[2J", 1, false, false }, MUSTER_LOG_INFO, "2026-11-16T12:07:10.042Z n?[2J muster[1] info: x\n" },
        { { "node2", 4711, true, false }, MUSTER_LOG_WARNING, "2026-11-16T12:07:10.042Z muster[4711] warning: x\n" },
        { { "node2", 4711, true, true },
          MUSTER_LOG_WARNING,
          "2026-11-16T12:07:10.042Z muster[4711] \033[33mwarning:\033[0m x\n" },
        { { "node2", 4711, true, true },
          MUSTER_LOG_ERROR,
          "2026-11-16T12:07:10.042Z muster[4711] \033[1;31merror:\033[0m x\n" },
        { { "node2", 4711, true, true }, MUSTER_LOG_INFO, "2026-11-16T12:07:10.042Z muster[4711] info: x\n" },
        { { "node2", 4711, true, true }, MUSTER_LOG_DEBUG, "2026-11-16T12:07:10.042Z muster[4711] debug: x\n" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[MU_LOG_LINE_MAX + 1];
        size_t len = mu_log_line(&cases[i].style, when, cases[i].level, "x", line);

        line[len] = '\0';
        assert_string_equal(line, cases[i].line);
    }
}

static void a_long_text_is_cut_and_the_line_still_ends(void **state)
{
    const struct mu_log_style style = { .host = "node2", .pid = 1 };
    char text[2 * MU_LOG_LINE_MAX], line[MU_LOG_LINE_MAX];

    (void)state;
    for (size_t len = MU_LOG_LINE_MAX - 100; len < sizeof text; len++) {
        size_t written;

        memset(text, 'x', len);
        text[len] = '\0';
        written = mu_log_line(&style, when, MUSTER_LOG_INFO, text, line);
        assert_true(written <= sizeof line);
        assert_memory_equal(line + written - 2, "x\n", 2);
    }
}

static void a_long_name_of_a_host_leaves_room_for_the_text(void **state)
{
    char host[4096], line[MU_LOG_LINE_MAX + 1];
    const struct mu_log_style style = { .host = host, .pid = 1 };
    size_t len;

    (void)state;
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = '\0';
    len = mu_log_line(&style, when, MUSTER_LOG_INFO, "text", line);
    line[len] = '\0';
    assert_non_null(strstr(line, "h muster[1] info: text\n"));
}

static void colours_are_for_terminals_and_can_be_declined(void **state)
{
    static const struct {
        bool terminal;
        const char *no_color, *term;
        bool colour;
    } cases[] = {
        { true, NULL, "xterm", true },   { true, NULL, NULL, true },    { true, "", "xterm", true },
        { true, "1", "xterm", false },   { true, "0", "xterm", false }, { true, NULL, "dumb", false },
        { false, NULL, "xterm", false }, { false, "", "xterm", false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(mu_log_wants_colour(cases[i].terminal, cases[i].no_color, cases[i].term), cases[i].colour);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_bears_time_host_process_and_level),
        cmocka_unit_test(a_long_text_is_cut_and_the_line_still_ends),
        cmocka_unit_test(a_long_name_of_a_host_leaves_room_for_the_text),
        cmocka_unit_test(colours_are_for_terminals_and_can_be_declined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
