/* Logging: lines reach the sink that is set, and the limit's arithmetic. */
#include "base/log.h"
#include "pure.h"

#include <sys/mman.h>

struct seen {
    unsigned lines;
    enum muster_log_level level;
    char line[4096];
};

static void remember(void *ctx, enum muster_log_level level, const char *line)
{
    struct seen *seen = ctx;

    seen->lines++;
    seen->level = level;
    assert_true(strlen(line) < sizeof seen->line);
    memcpy(seen->line, line, strlen(line) + 1);
}

static void without_a_sink_nothing_happens(void **state)
{
    (void)state;
    muster_log_set_sink(NULL, NULL);
    mu_log(MUSTER_LOG_ERROR, "nobody hears %s", "this");
}

static void a_line_reaches_the_sink_with_its_level(void **state)
{
    struct seen seen = { 0 };

    (void)state;
    muster_log_set_sink(remember, &seen);
    mu_log(MUSTER_LOG_WARNING, "peer %s dropped after %d bytes", "[::1]:80", 17);
    assert_int_equal(seen.lines, 1);
    assert_int_equal(seen.level, MUSTER_LOG_WARNING);
    assert_string_equal(seen.line, "peer [::1]:80 dropped after 17 bytes");
    muster_log_set_sink(NULL, NULL);
    mu_log(MUSTER_LOG_ERROR, "too late");
    assert_int_equal(seen.lines, 1);
}

/* The text is at an address that cannot be read: whoever looked at it would die. */
static void a_line_that_nobody_sees_is_not_put_together(void **state)
{
    struct seen seen = { 0 };
    char *unreadable = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_ptr_not_equal(unreadable, MAP_FAILED);
    assert_false(mu_log_shows(MUSTER_LOG_ERROR));
    mu_log(MUSTER_LOG_ERROR, "%s", unreadable);
    muster_log_set_sink(remember, &seen);
    assert_true(mu_log_shows(MUSTER_LOG_DEBUG)); /* unless one says otherwise */
    muster_log_set_level(MUSTER_LOG_INFO);
    assert_false(mu_log_shows(MUSTER_LOG_DEBUG));
    mu_log(MUSTER_LOG_DEBUG, "%s", unreadable);
    assert_int_equal(seen.lines, 0);
    mu_log(MUSTER_LOG_INFO, "this one is");
    assert_int_equal(seen.lines, 1);
    muster_log_set_level(MUSTER_LOG_DEBUG);
    mu_log(MUSTER_LOG_DEBUG, "and now this one");
    assert_int_equal(seen.lines, 2);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(munmap(unreadable, 4096), 0);
}

static void a_line_that_is_too_long_is_cut(void **state)
{
    char tale[8192];
    struct seen seen = { 0 };

    (void)state;
    memset(tale, 'x', sizeof tale - 1);
    tale[sizeof tale - 1] = '\0';
    muster_log_set_sink(remember, &seen);
    mu_log(MUSTER_LOG_INFO, "begins %s", tale);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(strlen(seen.line), 1023);
    assert_memory_equal(seen.line, "begins xxx", 10);
}

static void nothing_in_a_line_is_acted_on_by_a_terminal(void **state)
{
    struct seen seen = { 0 };

    (void)state;
    muster_log_set_sink(remember, &seen);
    mu_log(MUSTER_LOG_INFO, "node %s",
           "\x1b[2J\r\na\tb\x7f\xc2\x9b"
           "1m\xc2\xa0\xc3\xa9");
    muster_log_set_sink(NULL, NULL);
    assert_string_equal(seen.line, "node ?[2J??a\tb???1m\xc2\xa0\xc3\xa9");
}

/* Programs that were built against an older muster.h have them inside. */
static void levels_keep_their_numbers(void **state)
{
    (void)state;
    assert_int_equal(MUSTER_LOG_DEBUG, 10);
    assert_int_equal(MUSTER_LOG_INFO, 20);
    assert_int_equal(MUSTER_LOG_NOTICE, 25);
    assert_int_equal(MUSTER_LOG_WARNING, 30);
    assert_int_equal(MUSTER_LOG_ERROR, 40);
}

static void levels_have_names(void **state)
{
    (void)state;
    assert_string_equal(muster_log_level_name(MUSTER_LOG_DEBUG), "debug");
    assert_string_equal(muster_log_level_name(MUSTER_LOG_INFO), "info");
    assert_string_equal(muster_log_level_name(MUSTER_LOG_NOTICE), "notice");
    assert_string_equal(muster_log_level_name(MUSTER_LOG_WARNING), "warning");
    assert_string_equal(muster_log_level_name(MUSTER_LOG_ERROR), "error");
    assert_string_equal(muster_log_level_name((enum muster_log_level)17), "unknown");
}

/* How many of `tries` lines at one moment go out. */
static unsigned burst(struct mu_log_limit *limit, uint64_t now_ms, unsigned tries)
{
    unsigned out = 0;
    uint64_t dropped;

    while (tries-- > 0)
        out += mu_log_allowed(limit, now_ms, &dropped);
    return out;
}

static void a_burst_goes_out_and_the_rest_is_counted(void **state)
{
    struct mu_log_limit limit = { .burst = 3, .per_s = 10 };
    uint64_t dropped = 99;

    (void)state;
    assert_true(mu_log_allowed(&limit, 1000, &dropped));
    assert_int_equal(dropped, 0);
    assert_int_equal(burst(&limit, 1000, 7), 2);
    assert_false(mu_log_allowed(&limit, 1099, &dropped));
    assert_true(mu_log_allowed(&limit, 1100, &dropped)); /* a tenth of a second gives one back */
    assert_int_equal(dropped, 6);
    assert_false(mu_log_allowed(&limit, 1100, &dropped));
    assert_true(mu_log_allowed(&limit, 1200, &dropped));
    assert_int_equal(dropped, 1);
}

static void quiet_time_gives_back_a_burst_and_no_more(void **state)
{
    struct mu_log_limit limit = { .burst = 5, .per_s = 10 };

    (void)state;
    assert_int_equal(burst(&limit, 0, 100), 5);
    assert_int_equal(burst(&limit, 3600000, 100), 5);
    assert_int_equal(burst(&limit, 3600000, 100), 0);
}

/* Asked every millisecond for a minute, it lets through what it says. */
static void the_rate_holds_however_often_it_is_asked(void **state)
{
    static const uint32_t rates[] = { 1, 3, 7, 10, 1000 };

    (void)state;
    for (size_t i = 0; i < COUNT(rates); i++) {
        struct mu_log_limit limit = { .burst = 5, .per_s = rates[i] };
        unsigned out = 0;

        for (uint64_t now_ms = 1000; now_ms < 61000; now_ms++)
            out += burst(&limit, now_ms, 1);
        assert_in_range(out, 60 * rates[i], 60 * rates[i] * 101 / 100 + 6);
    }
}

static void a_clock_that_goes_backwards_locks_nobody_out(void **state)
{
    struct mu_log_limit limit = { .burst = 2, .per_s = 10 };

    (void)state;
    assert_int_equal(burst(&limit, 100000, 5), 2);
    assert_int_equal(burst(&limit, 50000, 5), 0);
    assert_int_equal(burst(&limit, 50200, 5), 2);
}

static void a_rate_of_zero_means_the_burst_alone(void **state)
{
    struct mu_log_limit limit = { .burst = 2, .per_s = 0 };

    (void)state;
    assert_int_equal(burst(&limit, 0, 5), 2);
    assert_int_equal(burst(&limit, 1000000, 5), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_sink_nothing_happens),
        cmocka_unit_test(a_line_reaches_the_sink_with_its_level),
        cmocka_unit_test(a_line_that_nobody_sees_is_not_put_together),
        cmocka_unit_test(a_line_that_is_too_long_is_cut),
        cmocka_unit_test(nothing_in_a_line_is_acted_on_by_a_terminal),
        cmocka_unit_test(levels_have_names),
        cmocka_unit_test(levels_keep_their_numbers),
        cmocka_unit_test(a_burst_goes_out_and_the_rest_is_counted),
        cmocka_unit_test(quiet_time_gives_back_a_burst_and_no_more),
        cmocka_unit_test(the_rate_holds_however_often_it_is_asked),
        cmocka_unit_test(a_clock_that_goes_backwards_locks_nobody_out),
        cmocka_unit_test(a_rate_of_zero_means_the_burst_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
