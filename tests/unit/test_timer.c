/* File timers: requests as PyTorch's clients write them, everything that is none, and whose time has come. */
#include "agent/timer.h"
#include "failmalloc.h"
#include "pure.h"

#include <jansson.h>
#include <stdio.h>

struct scene {
    struct mu_timers timers;
    unsigned bad;
    char why[256];
};

static int set_up(void **state)
{
    static struct scene scene;

    scene = (struct scene){ .bad = 0 };
    mu_timers_init(&scene.timers);
    *state = &scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *s = *state;

    mu_timers_done(&s->timers);
    return 0;
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static void on_bad(void *ctx, struct mu_slice line, const struct muster_error *error)
{
    struct scene *s = ctx;

    assert_true(line.len <= MU_TIMER_LINE_MAX);
    s->bad++;
    (void)snprintf(s->why, sizeof s->why, "%.255s", error->text);
}

static void feed(struct scene *s, const char *text)
{
    mu_timers_feed(&s->timers, mu_slice_str(text), on_bad, s);
}

static void request(struct scene *s, int pid, const char *scope, double at_s, int number)
{
    char line[512];

    (void)snprintf(line, sizeof line,
                   "{\"version\": 1, \"pid\": %d, \"scope_id\": \"%s\", \"expiration_time\": %.1f, \"signal\": %d}\n",
                   pid, scope, at_s, number);
    feed(s, line);
}

/* "pid signal: scope scope", as they expire; what is left is counted behind it. */
static const char *expired(struct scene *s, double now_s)
{
    static char text[1024];
    struct mu_timer_expiry expiry;
    size_t len = 0;

    while (mu_timers_expire(&s->timers, now_s, &expiry)) {
        len += (size_t)snprintf(text + len, sizeof text - len, "%d %d:", (int)expiry.pid, expiry.signal);
        for (const struct mu_list *link = expiry.timers->next; link != expiry.timers; link = link->next) {
            const struct mu_timer *timer = MU_LIST_ITEM(link, struct mu_timer, link);

            assert_int_equal(timer->pid, expiry.pid);
            len += (size_t)snprintf(text + len, sizeof text - len, " %s", timer->scope);
            if (link->next == expiry.timers)
                assert_ptr_equal(timer, expiry.last);
        }
        len += (size_t)snprintf(text + len, sizeof text - len, "; ");
    }
    (void)snprintf(text + len, sizeof text - len, "%zu left", s->timers.count);
    return text;
}

static void a_timer_expires_at_its_time(void **state)
{
    struct scene *s = *state;
    double at_s;

    assert_false(mu_timers_next(&s->timers, &at_s));
    feed(s, "{\"version\": 1, \"pid\": 4242, \"scope_id\": \"scope#1\", \"expiration_time\": 1794725297.9016328, "
            "\"signal\": 9}\n");
    assert_true(mu_timers_next(&s->timers, &at_s));
    assert_true(at_s == 1794725297.9016328);
    assert_string_equal(expired(s, 1794725297.9), "1 left");
    assert_string_equal(expired(s, 1794725297.9016328), "4242 9: scope#1; 0 left");
    assert_string_equal(expired(s, 1e18), "0 left");
    assert_int_equal(s->timers.requests, 1);
}

static void released_timers_do_not_expire(void **state)
{
    struct scene *s = *state;

    request(s, 1, "a", 100, 9);
    request(s, 1, "b", 100, 9);
    request(s, 2, "a", 100, 9);
    feed(s, "{\"version\": 1, \"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": -1, \"signal\": 0}\n");
    assert_int_equal(s->timers.count, 2);
    feed(s, "{\"version\": 1, \"pid\": 1, \"scope_id\": \"unknown\", \"expiration_time\": -1, \"signal\": 0}\n");
    feed(s, "{\"version\": 1, \"pid\": 3, \"scope_id\": \"a\", \"expiration_time\": -0.5, \"signal\": 0}\n");
    assert_int_equal(s->bad, 0);
    assert_string_equal(expired(s, 100), "1 9: b; 2 9: a; 0 left");
}

static void acquired_again_it_has_the_new_time_and_signal(void **state)
{
    struct scene *s = *state;

    request(s, 1, "a", 100, 9);
    request(s, 1, "a", 200, 15);
    assert_int_equal(s->timers.count, 1);
    assert_string_equal(expired(s, 150), "1 left");
    assert_string_equal(expired(s, 200), "1 15: a; 0 left");
}

static void the_first_that_names_a_signal_is_obeyed(void **state)
{
    struct scene *s = *state;

    request(s, 1, "late", 90, 15);
    request(s, 1, "none", 50, 0);
    request(s, 1, "kill", 70, 9);
    request(s, 1, "never", 1000, 3);
    request(s, 2, "later", 1000, 3);
    assert_string_equal(expired(s, 100), "1 9: none kill; 1 left"); /* all timers of the process are gone */
}

static void without_a_signal_they_are_only_forgotten(void **state)
{
    struct scene *s = *state;

    request(s, 1, "b", 60, -9);
    request(s, 1, "a", 50, 0);
    request(s, 1, "c", 500, 9);
    assert_string_equal(expired(s, 100), "1 0: a b; 0 left");
}

static void the_dead_have_no_timers(void **state)
{
    struct scene *s = *state;

    request(s, 1, "a", 50, 9);
    request(s, 2, "a", 50, 9);
    request(s, 1, "b", 50, 9);
    mu_timers_forget(&s->timers, 1);
    mu_timers_forget(&s->timers, 7);
    assert_string_equal(expired(s, 100), "2 9: a; 0 left");
}

static void lines_come_in_pieces(void **state)
{
    static const char text[] =
        "{\"version\": 1, \"pid\": 7, \"scope_id\": \"x\", \"expiration_time\": 5, \"signal\": 9}\n";
    struct scene *s = *state;

    for (size_t i = 0; i < sizeof text - 1; i++)
        mu_timers_feed(&s->timers, mu_slice(text + i, 1), on_bad, s);
    assert_int_equal(s->bad, 0);
    assert_string_equal(expired(s, 5), "7 9: x; 0 left");
}

static void a_bad_line_is_said_and_skipped(void **state)
{
    static const struct {
        const char *line, *why;
    } rows[] = {
        { "", "not JSON: " },
        { "rubbish", "not JSON: " },
        { "{\"pid\": 1,", "not JSON: " },
        { "\xff\xfe", "not JSON: " },
        { "[]", "not a JSON object" },
        { "7", "not a JSON object" },
        { "null", "not a JSON object" },
        { "{}", "'pid' is not the number of a process" },
        { "{\"pid\": \"1\", \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
          "'pid' is not the number of a process" },
        { "{\"pid\": 0, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
          "'pid' is not the number of a process" },
        { "{\"pid\": -1, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
          "'pid' is not the number of a process" },
        { "{\"pid\": 4294967297, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
          "'pid' is not the number of a process" },
        { "{\"pid\": 1.5, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
          "'pid' is not the number of a process" },
        { "{\"pid\": 1, \"expiration_time\": 1, \"signal\": 9}", "'scope_id' is not text" },
        { "{\"pid\": 1, \"scope_id\": 4, \"expiration_time\": 1, \"signal\": 9}", "'scope_id' is not text" },
        { "{\"pid\": 1, \"scope_id\": \"a\", \"signal\": 9}", "'expiration_time' is not a number" },
        { "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": \"1\", \"signal\": 9}",
          "'expiration_time' is not a number" },
        { "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": true, \"signal\": 9}",
          "'expiration_time' is not a number" },
        { "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": NaN, \"signal\": 9}", "not JSON: " },
        { "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": 1}", "'signal' is not the number of a signal" },
        { "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": \"9\"}",
          "'signal' is not the number of a signal" },
        { "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 65}",
          "'signal' is not the number of a signal" },
        { "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9.0}",
          "'signal' is not the number of a signal" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[512];
        int scope = (int)i;

        (void)snprintf(text, sizeof text,
                       "{\"pid\": 3, \"scope_id\": \"b%d\", \"expiration_time\": 1, \"signal\": 9}\n%s\n"
                       "{\"pid\": 3, \"scope_id\": \"a%d\", \"expiration_time\": 1, \"signal\": 9}\n",
                       scope, rows[i].line, scope);
        feed(s, text); /* those before and behind it count */
        assert_int_equal(s->bad, i + 1);
        assert_int_equal(s->timers.count, 2 * (i + 1));
        assert_memory_equal(s->why, rows[i].why, strlen(rows[i].why));
    }
    assert_int_equal(s->timers.bad, COUNT(rows));
    assert_int_equal(s->timers.requests, 3 * COUNT(rows));
}

static void a_line_has_a_longest_length(void **state)
{
    static char line[MU_TIMER_LINE_MAX + 2];
    struct scene *s = *state;

    (void)snprintf(line, sizeof line, "{\"pid\": 1, \"expiration_time\": 1, \"signal\": 9, \"scope_id\": \"");
    memset(line + strlen(line), 'x', MU_TIMER_LINE_MAX - strlen(line) - 2);
    memcpy(line + MU_TIMER_LINE_MAX - 2, "\"}\n", 3);
    mu_timers_feed(&s->timers, mu_slice(line, MU_TIMER_LINE_MAX + 1), on_bad, s);
    assert_int_equal(s->bad, 0);
    assert_int_equal(s->timers.count, 1);
    memcpy(line + MU_TIMER_LINE_MAX - 2, "x\"}\n", 4);
    mu_timers_feed(&s->timers, mu_slice(line, MU_TIMER_LINE_MAX + 2), on_bad, s);
    assert_int_equal(s->bad, 1);
    assert_string_equal(s->why, "a line of more than 4096 bytes");
    for (int i = 0; i < 3; i++)
        mu_timers_feed(&s->timers, mu_slice(line, MU_TIMER_LINE_MAX), on_bad, s);
    assert_int_equal(s->bad, 1); /* it has not ended yet */
    feed(s, "\n");
    request(s, 2, "a", 1, 9);
    assert_int_equal(s->bad, 2);
    assert_int_equal(s->timers.count, 2);
}

static void there_are_not_more_than_so_many(void **state)
{
    struct scene *s = *state;
    char scope[32];

    for (int i = 0; i < MU_TIMERS_MAX + 1; i++) {
        (void)snprintf(scope, sizeof scope, "%d", i);
        request(s, 1, scope, 100, 9);
    }
    assert_int_equal(s->timers.count, MU_TIMERS_MAX);
    assert_int_equal(s->bad, 1);
    assert_string_equal(s->why, "4096 timers are running: no more");
    request(s, 1, "0", 50, 9); /* one that is there may be changed, and released */
    assert_int_equal(s->bad, 1);
    request(s, 1, "0", -1, 0);
    request(s, 1, "new", 100, 9);
    assert_int_equal(s->bad, 1);
    assert_int_equal(s->timers.count, MU_TIMERS_MAX);
}

static void their_scopes_have_a_limit_together(void **state)
{
    static char line[MU_TIMER_LINE_MAX + 1];
    struct scene *s = *state;
    size_t i;

    for (i = 0; i < MU_TIMERS_MAX && s->bad == 0; i++) {
        int len =
            snprintf(line, sizeof line, "{\"pid\": 1, \"expiration_time\": 1, \"signal\": 9, \"scope_id\": \"%06zu", i);

        memset(line + len, 'x', sizeof line - (size_t)len);
        memcpy(line + sizeof line - 3, "\"}\n", 3);
        mu_timers_feed(&s->timers, mu_slice(line, sizeof line), on_bad, s);
    }
    assert_int_equal(s->bad, 1);
    assert_true(s->timers.budget.used <= MU_TIMERS_BYTES_MAX);
}

static void without_memory_a_request_is_skipped(void **state)
{
    struct scene *s = *state;

    json_set_alloc_funcs(malloc, free);
    FOR_EACH_FAILURE (n) {
        unsigned bad = s->bad;

        request(s, 1, "a", 50, 9);
        assert_int_equal(s->bad == bad, s->timers.count == 1);
        if (!fail_alloc_hit())
            assert_int_equal(s->timers.count, 1);
        mu_timers_forget(&s->timers, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(a_timer_expires_at_its_time),
        SCENE(released_timers_do_not_expire),
        SCENE(acquired_again_it_has_the_new_time_and_signal),
        SCENE(the_first_that_names_a_signal_is_obeyed),
        SCENE(without_a_signal_they_are_only_forgotten),
        SCENE(the_dead_have_no_timers),
        SCENE(lines_come_in_pieces),
        SCENE(a_bad_line_is_said_and_skipped),
        SCENE(a_line_has_a_longest_length),
        SCENE(there_are_not_more_than_so_many),
        SCENE(their_scopes_have_a_limit_together),
        SCENE(without_memory_a_request_is_skipped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
