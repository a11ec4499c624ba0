/* What `muster join` does when something happens: exit codes, signals, and how often it speaks. */
#include "cli/cli.h"
#include "cli/join.h"
#include "failmalloc.h"
#include "pure.h"

#include <stdio.h>

enum { START_MS = 10000 };

struct scene {
    struct mu_join join;
    char trace[1024];
};

static struct scene scene;

static int setup(void **state)
{
    memset(&scene, 0, sizeof scene);
    *state = &scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    mu_join_done(&s->join);
    return 0;
}

static void add(struct scene *s, const char *what, struct mu_slice text)
{
    size_t used = strlen(s->trace);

    if (text.len > 0)
        (void)snprintf(s->trace + used, sizeof s->trace - used, "%s%s %.*s",
                       used > 0 && s->trace[used - 1] != '\n' ? " | " : "", what, (int)text.len, text.data);
}

static void add_if(struct scene *s, bool is, const char *what)
{
    size_t used = strlen(s->trace);

    if (is)
        (void)snprintf(s->trace + used, sizeof s->trace - used, "[%s]", what);
}

/* "out LINE\nwarning LINE\nnotice LINE\nerr LINE\nstatus TEXT[leave][over]" */
static const char *step(struct scene *s, struct mu_join_event event, uint64_t after_ms)
{
    struct mu_join_effects effects;

    event.now_ms = START_MS + after_ms;
    mu_join_step(&s->join, &event, &effects);
    s->trace[0] = '\0';
    add(s, "out", effects.out);
    add(s, "warning", effects.warning);
    add(s, "notice", effects.notice);
    add(s, "info", effects.info);
    add(s, "err", effects.err);
    add(s, "status", effects.status);
    add_if(s, effects.join, "join");
    add_if(s, effects.leave, "leave");
    add_if(s, effects.over, "over");
    add_if(s, effects.at_once, "at once");
    return s->trace;
}

static const char *start(struct scene *s, int64_t hold_ms, bool json, bool terminal)
{
    struct mu_join_config config = { .about = { .backend = "c10d", .endpoint = "n1:1", .run_id = "job", .node = "me" },
                                     .json = json,
                                     .terminal = terminal,
                                     .hold_ms = hold_ms };

    mu_join_init(&s->join, &config);
    return step(s, (struct mu_join_event){ .type = MU_JOIN_START }, 0);
}

static const char *told(struct scene *s, uint64_t after_ms, struct muster_rdzv_event event)
{
    return step(s, (struct mu_join_event){ .type = MU_JOIN_TOLD, .told = &event }, after_ms);
}

static const char *joined(struct scene *s, uint64_t after_ms, int64_t world_size)
{
    struct muster_rdzv_info info = { .world_size = world_size, .round = 0 };

    return told(s, after_ms, (struct muster_rdzv_event){ .type = MUSTER_RDZV_JOINED, .info = &info });
}

static const char *failed(struct scene *s, uint64_t after_ms, int code)
{
    struct muster_error error = { .code = code, .text = "no luck" };

    return told(s, after_ms, (struct muster_rdzv_event){ .type = MUSTER_RDZV_FAILED, .round = 0, .error = &error });
}

static const char *is(struct scene *s, uint64_t after_ms, enum muster_rdzv_event_type type)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "gone" };
    struct muster_node node = { .name = "n2", .pid = 7, .local_id = 0 };

    return told(
        s, after_ms,
        (struct muster_rdzv_event){ .type = type, .error = &error, .count = 1, .nodes = &node, .nodes_count = 1 });
}

static const char *progress(struct scene *s, uint64_t after_ms, int64_t count)
{
    struct muster_rdzv_progress now = {
        .joined = count, .min_nodes = 3, .max_nodes = 3, .last_call_left_ms = -1, .join_left_ms = -1
    };

    return told(s, after_ms, (struct muster_rdzv_event){ .type = MUSTER_RDZV_PROGRESS, .progress = &now });
}

static const char *gets(struct scene *s, uint64_t after_ms, int number)
{
    return step(s, (struct mu_join_event){ .type = MU_JOIN_SIGNAL, .number = number }, after_ms);
}

static const char *signalled(struct scene *s, uint64_t after_ms)
{
    return gets(s, after_ms, SIGINT);
}

static const char *at(struct scene *s, uint64_t after_ms)
{
    return step(s, (struct mu_join_event){ .type = MU_JOIN_TIME }, after_ms);
}

static uint64_t deadline(struct scene *s)
{
    uint64_t deadline_ms = mu_join_deadline_ms(&s->join);

    return deadline_ms == UINT64_MAX ? UINT64_MAX : deadline_ms - START_MS;
}

#define ALONE "out joined 'job' as rank 0 of 1 (c10d, round 0): me\n"
#define BOTH "out joined 'job' as rank 0 of 2 (c10d, round 0): me\n"

/* ---- Without a time to hold ---- */

static void alone_it_joins_prints_and_leaves(void **state)
{
    struct scene *s = *state;

    assert_string_equal(start(s, 0, false, false), "[join]");
    assert_string_equal(joined(s, 20, 1), ALONE);
    assert_int_equal(deadline(s), 20);
    assert_string_equal(at(s, 20), "[leave]");
    assert_string_equal(is(s, 21, MUSTER_RDZV_LEFT), "[over]");
    assert_int_equal(s->join.exit_code, 0);
    assert_true(deadline(s) == UINT64_MAX);
}

static void among_others_it_stays_until_all_can_have_seen_the_round(void **state)
{
    struct scene *s = *state;

    start(s, 0, false, false);
    assert_string_equal(joined(s, 20, 2), BOTH);
    assert_string_equal(is(s, 30, MUSTER_RDZV_PEERS_LOST), "");
    assert_string_equal(is(s, 30, MUSTER_RDZV_BACKEND_DOWN), "");
    assert_int_equal(deadline(s), 20 + MU_JOIN_LINGER_MS);
    assert_string_equal(at(s, 1020), "[leave]");
    assert_string_equal(is(s, 1021, MUSTER_RDZV_LEFT), "");
    assert_int_equal(deadline(s), 1021 + MU_JOIN_PARTING_MS);
    assert_string_equal(at(s, 1300), "[over]");
    assert_int_equal(s->join.exit_code, 0);
}

static void a_failed_join_says_why_and_how_in_its_exit_code(void **state)
{
    static const struct {
        int code, exit_code;
    } cases[] = {
        { MUSTER_ERDZV_CLOSED, 3 }, { MUSTER_ERDZV_TIMEOUT, 4 }, { MUSTER_ERDZV_CONNECTION, 1 },
        { MUSTER_ERDZV_STATE, 1 },  { MUSTER_ENOMEM, 1 },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mu_join_done(&s->join);
        start(s, 0, i % 2 == 0, false);
        assert_string_equal(failed(s, 20, cases[i].code), "err muster join: no luck (c10d at n1:1)\n[over]");
        assert_int_equal(s->join.exit_code, cases[i].exit_code);
    }
}

static void a_spare_of_a_closed_rendezvous_ends_well(void **state)
{
    struct scene *s = *state;

    start(s, 0, false, false);
    assert_string_equal(failed(s, 20, MUSTER_ERDZV_GRACEFUL_EXIT),
                        "out closed: nobody can join 'job' any more; its members may go on\nnotice not "
                        "needed: rendezvous 'job' was closed while this node was a spare\n[over]");
    assert_int_equal(s->join.exit_code, 0);
}

static void a_signal_while_waiting_leaves_and_is_an_error(void **state)
{
    struct scene *s = *state;

    start(s, 5000, false, false);
    assert_string_equal(signalled(s, 50), "err muster join: stopped while waiting for 'job': SIGINT; leaving\n[leave]");
    assert_int_equal(deadline(s), 50 + MU_JOIN_LEAVE_MS);
    assert_string_equal(joined(s, 51, 2), ""); /* too late */
    assert_string_equal(is(s, 60, MUSTER_RDZV_LEFT), "[over]");
    assert_int_equal(s->join.exit_code, 1);
}

static void a_second_signal_shortens_nothing_unless_there_is_a_hurry(void **state)
{
    static const struct {
        int first, second;
        uint64_t after_ms;
        bool hurry;
    } rows[] = {
        { SIGTERM, SIGTERM, 1900, false }, { SIGHUP, SIGHUP, 1900, false }, { SIGINT, SIGTERM, 1900, false },
        { SIGTERM, SIGINT, 1900, false },  { SIGINT, SIGINT, 1000, false }, { SIGINT, SIGINT, 1001, true },
        { SIGTERM, SIGQUIT, 1, true },     { SIGQUIT, SIGQUIT, 1, true },   { SIGQUIT, SIGTERM, 1, false },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene *s = *state;

        start(s, 0, false, false);
        gets(s, 50, rows[i].first);
        if (rows[i].hurry)
            assert_string_equal(gets(s, 50 + rows[i].after_ms, rows[i].second), "[over][at once]");
        else
            assert_null(strstr(gets(s, 50 + rows[i].after_ms, rows[i].second), "over"));
        assert_int_equal(s->join.exit_code, 1);
        assert_int_equal(teardown(state), 0);
        assert_int_equal(setup(state), 0);
    }
}

static void leaving_does_not_take_for_ever(void **state)
{
    struct scene *s = *state;

    start(s, 0, false, false);
    joined(s, 20, 1);
    at(s, 20);
    assert_string_equal(at(s, 20 + MU_JOIN_LEAVE_MS - 1), "");
    assert_string_equal(at(s, 20 + MU_JOIN_LEAVE_MS),
                        "warning could not leave cleanly: no answer within 2 s (c10d at n1:1); "
                        "other members will notice when its heartbeats stop\n[over]");
    assert_int_equal(s->join.exit_code, 0);
}

static void leaving_a_store_that_is_away_says_since_when(void **state)
{
    struct scene *s = *state;

    start(s, 5000, false, false);
    joined(s, 20, 2);
    is(s, 1020, MUSTER_RDZV_BACKEND_DOWN);
    at(s, 5020);
    assert_string_equal(at(s, 7020), "warning could not leave cleanly: the store has been away for 6 s (c10d at n1:1); "
                                     "other members will notice when its heartbeats stop\n[over]");
}

static void a_leave_that_fails_is_told_and_is_no_error(void **state)
{
    struct scene *s = *state;

    start(s, 0, false, false);
    joined(s, 20, 1);
    at(s, 20);
    assert_string_equal(failed(s, 30, MUSTER_ERDZV_CONNECTION),
                        "warning could not leave cleanly: no luck (c10d at n1:1); "
                        "other members will notice when its heartbeats stop\n[over]");
    assert_int_equal(s->join.exit_code, 0);
}

static void output_that_nobody_takes_is_an_error(void **state)
{
    struct scene *s = *state;

    start(s, 5000, false, false);
    joined(s, 20, 1);
    assert_string_equal(step(s, (struct mu_join_event){ .type = MU_JOIN_UNHEARD, .text = "Broken pipe" }, 30),
                        "err muster join: cannot write to standard output: Broken pipe\n[leave]");
    is(s, 40, MUSTER_RDZV_LEFT);
    assert_int_equal(s->join.exit_code, 1);
}

/* ---- Holding ---- */

static void a_member_tells_what_happens_until_its_time_is_over(void **state)
{
    struct scene *s = *state;

    start(s, 5000, false, false);
    joined(s, 20, 2);
    assert_string_equal(is(s, 30, MUSTER_RDZV_WAITING), "out 1 node wants to join; round 0 has to end first\n");
    assert_string_equal(is(s, 40, MUSTER_RDZV_PEERS_LOST), "out lost n2 (pid 7): it has left round 0, or is dead\n");
    assert_string_equal(is(s, 50, MUSTER_RDZV_CLOSED),
                        "out closed: nobody can join 'job' any more; its members may go on\n");
    assert_string_equal(is(s, 60, MUSTER_RDZV_BACKEND_DOWN), "warning gone (c10d at n1:1); trying again\n");
    assert_string_equal(is(s, 2060, MUSTER_RDZV_BACKEND_UP), "notice connected to n1:1 again, after 2 s\n");
    assert_int_equal(deadline(s), 5020);
    assert_string_equal(at(s, 5020), "[leave]");
    assert_string_equal(is(s, 5030, MUSTER_RDZV_LEFT), "out left 'job'\n");
    assert_string_equal(at(s, 5300), "[over]");
    assert_int_equal(s->join.exit_code, 0);
}

static void programs_get_the_outages_too(void **state)
{
    struct scene *s = *state;

    start(s, 5000, true, false);
    joined(s, 20, 2);
    assert_string_equal(is(s, 60, MUSTER_RDZV_BACKEND_DOWN),
                        "out {\"event\": \"backend_down\", \"round\": 0, \"code\": \"ELOST\", \"error\": \"gone\"}\n"
                        "warning gone (c10d at n1:1); trying again\n");
    assert_string_equal(is(s, 70, MUSTER_RDZV_BACKEND_UP), "out {\"event\": \"backend_up\", \"round\": 0}\n"
                                                           "notice connected to n1:1 again, after 1 s\n");
}

static void a_signal_ends_the_hold_well(void **state)
{
    struct scene *s = *state;

    start(s, 5000, false, false);
    joined(s, 20, 1);
    assert_string_equal(signalled(s, 30), "[leave]");
    assert_string_equal(is(s, 31, MUSTER_RDZV_LEFT), "out left 'job'\n[over]");
    assert_int_equal(s->join.exit_code, 0);
}

static void a_signal_cuts_parting_short(void **state)
{
    struct scene *s = *state;

    start(s, 0, false, false);
    joined(s, 20, 2);
    at(s, 1020);
    is(s, 1021, MUSTER_RDZV_LEFT);
    assert_string_equal(signalled(s, 1030), "[over]");
    assert_int_equal(s->join.exit_code, 0);
}

static void whoever_is_removed_is_told_so(void **state)
{
    struct scene *s = *state;

    start(s, 5000, true, false);
    joined(s, 20, 2);
    assert_string_equal(is(s, 30, MUSTER_RDZV_REMOVED),
                        "out {\"event\": \"removed\", \"round\": 0}\nerr muster join: removed from 'job': the other "
                        "members took this node for dead and go on without it\n[over]");
    assert_int_equal(s->join.exit_code, 5);
}

static void a_node_that_removes_itself_says_why(void **state)
{
    struct scene *s = *state;
    const struct muster_rdzv_event fenced = { .type = MUSTER_RDZV_REMOVED,
                                              .cause = "etcd has acknowledged no keep-alive for 5 s" };

    start(s, 5000, true, false);
    joined(s, 20, 2);
    assert_string_equal(told(s, 30, fenced), "out {\"event\": \"removed\", \"round\": 0}\n"
                                             "err muster join: removed from 'job': etcd has acknowledged no keep-alive "
                                             "for 5 s\n[over]");
    assert_int_equal(s->join.exit_code, 5);
}

static void a_membership_that_fails_is_an_error(void **state)
{
    struct scene *s = *state;

    start(s, 5000, false, false);
    joined(s, 20, 2);
    assert_string_equal(failed(s, 30, MUSTER_ERDZV_CONNECTION),
                        "err muster join: no longer a member: no luck (c10d at n1:1)\n[over]");
    assert_int_equal(s->join.exit_code, 1);
}

/* ---- Status ---- */

static void without_a_terminal_there_is_a_line_now_and_then(void **state)
{
    struct scene *s = *state;

    start(s, 0, false, false);
    assert_int_equal(deadline(s), 5000);
    assert_string_equal(progress(s, 10, 1), ""); /* a quick join says nothing of the wait */
    assert_int_equal(deadline(s), 1010);
    assert_string_equal(at(s, 1010), "info waiting for rendezvous 'job': 1 of 3 nodes joined, 2 more needed\n");
    assert_string_equal(progress(s, 1100, 1), "");
    assert_int_equal(deadline(s), 5000);
    assert_string_equal(at(s, 5000), "notice waiting for rendezvous 'job': 1 of 3 nodes joined, 2 more needed\n");
    assert_int_equal(deadline(s), 10000);
    assert_string_equal(progress(s, 9500, 2), "");
    assert_string_equal(at(s, 10000), "notice waiting for rendezvous 'job': 2 of 3 nodes joined, 1 more needed\n");
    assert_int_equal(deadline(s), 20000);
}

static void a_terminal_always_shows_how_it_stands(void **state)
{
    struct scene *s = *state;

    assert_string_equal(start(s, 0, false, true),
                        "status waiting for rendezvous 'job' at n1:1: no answer yet, after 0 s[join]");
    assert_int_equal(deadline(s), 1000);
    assert_string_equal(at(s, 1000), "status waiting for rendezvous 'job' at n1:1: no answer yet, after 1 s");
    assert_string_equal(progress(s, 1100, 1),
                        "status waiting for rendezvous 'job': 1 of 3 nodes joined, 2 more needed");
    assert_string_equal(is(s, 1200, MUSTER_RDZV_BACKEND_DOWN),
                        "warning gone (c10d at n1:1); trying again\nstatus waiting for rendezvous 'job' at n1:1: no "
                        "connection for 0 s; trying again");
    assert_string_equal(joined(s, 1300, 1), ALONE);
}

/* ---- Memory ---- */

static void missing_memory_ends_it_with_an_error(void **state)
{
    struct scene *s = *state;

    FOR_EACH_FAILURE (n) {
        mu_join_done(&s->join);
        start(s, 5000, true, true);
        progress(s, 10, 1);
        joined(s, 20, 2);
        is(s, 30, MUSTER_RDZV_BACKEND_DOWN);
        is(s, 40, MUSTER_RDZV_PEERS_LOST);
        if (fail_alloc_hit()) {
            assert_int_equal(s->join.phase, MU_JOIN_OVER);
            assert_int_equal(s->join.exit_code, 1);
        } else {
            assert_int_equal(s->join.phase, MU_JOIN_STAYING);
        }
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(alone_it_joins_prints_and_leaves),
        TEST(among_others_it_stays_until_all_can_have_seen_the_round),
        TEST(a_failed_join_says_why_and_how_in_its_exit_code),
        TEST(a_spare_of_a_closed_rendezvous_ends_well),
        TEST(a_signal_while_waiting_leaves_and_is_an_error),
        TEST(a_second_signal_shortens_nothing_unless_there_is_a_hurry),
        TEST(leaving_does_not_take_for_ever),
        TEST(leaving_a_store_that_is_away_says_since_when),
        TEST(a_leave_that_fails_is_told_and_is_no_error),
        TEST(output_that_nobody_takes_is_an_error),
        TEST(a_member_tells_what_happens_until_its_time_is_over),
        TEST(programs_get_the_outages_too),
        TEST(a_signal_ends_the_hold_well),
        TEST(a_signal_cuts_parting_short),
        TEST(whoever_is_removed_is_told_so),
        TEST(a_node_that_removes_itself_says_why),
        TEST(a_membership_that_fails_is_an_error),
        TEST(without_a_terminal_there_is_a_line_now_and_then),
        TEST(a_terminal_always_shows_how_it_stands),
        TEST(missing_memory_ends_it_with_an_error),
    };

    return cmocka_run_group_tests_name("muster join", tests, NULL, NULL);
}
