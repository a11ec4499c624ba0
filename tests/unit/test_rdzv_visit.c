/* A visit to a rendezvous: what it asks for, what it says at the end, and when it gives up. */
#include "cli/cli.h"
#include "cli/rdzv_visit.h"
#include "pure.h"

#include <stdio.h>

enum { START_MS = 10000 };

struct scene {
    struct mu_rdzv_visit visit;
    char trace[1024];
};

static struct scene scene;

static void begin(struct scene *s, bool close)
{
    const struct mu_rdzv_visit_config config = {
        .about = { .backend = "c10d", .endpoint = "node1:29400", .run_id = "job", .node = "" }, .close = close
    };

    mu_rdzv_visit_init(&s->visit, &config);
}

static int setup(void **state)
{
    memset(&scene, 0, sizeof scene);
    begin(&scene, true);
    *state = &scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    mu_rdzv_visit_done(&s->visit);
    return 0;
}

/* "look", "close", "over 0: LINE" */
static const char *step(struct scene *s, struct mu_rdzv_visit_event event)
{
    const struct mu_rdzv_visit *v = &s->visit;
    struct mu_rdzv_visit_effects effects;

    event.now_ms += START_MS;
    mu_rdzv_visit_step(&s->visit, &event, &effects);
    (void)snprintf(s->trace, sizeof s->trace, "%s%s", effects.look ? "look" : "", effects.close ? "close" : "");
    if (effects.over)
        (void)snprintf(s->trace, sizeof s->trace, "over %d: %.*s%.*s", v->exit_code, (int)v->out.buf.len,
                       v->out.buf.len > 0 ? v->out.buf.data : "", (int)v->err.buf.len,
                       v->err.buf.len > 0 ? v->err.buf.data : "");
    return s->trace;
}

static const char *start(struct scene *s)
{
    return step(s, (struct mu_rdzv_visit_event){ .type = MU_RDZV_VISIT_START });
}

static const char *told(struct scene *s, struct muster_rdzv_event told)
{
    return step(s, (struct mu_rdzv_visit_event){ .type = MU_RDZV_VISIT_TOLD, .told = &told });
}

static const char *looked(struct scene *s, int64_t round, bool closed)
{
    return told(s, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LOOKED, .round = round, .closed = closed });
}

static const char *time_is(struct scene *s, uint64_t after_ms)
{
    return step(s, (struct mu_rdzv_visit_event){ .type = MU_RDZV_VISIT_TIME, .now_ms = after_ms });
}

#define WHAT_THEN ": no node can join or restart; workers that run go on to their end"

static void it_looks_before_it_closes(void **state)
{
    struct scene *s = *state;

    assert_string_equal(start(s), "look");
    assert_string_equal(looked(s, 3, false), "close");
    assert_string_equal(told(s, (struct muster_rdzv_event){ .type = MUSTER_RDZV_CLOSED }),
                        "over 0: rendezvous 'job' is closed" WHAT_THEN);
    assert_int_equal(s->visit.round, 3);
    assert_int_equal(mu_rdzv_visit_deadline_ms(&s->visit), UINT64_MAX);
}

static void what_is_closed_is_not_closed_again(void **state)
{
    struct scene *s = *state;

    (void)start(s);
    assert_string_equal(told(s, (struct muster_rdzv_event){ .type = MUSTER_RDZV_CLOSED }), "");
    assert_string_equal(looked(s, 3, true), "over 0: rendezvous 'job' was closed before" WHAT_THEN);
}

static void what_is_not_there_is_not_closed(void **state)
{
    struct scene *s = *state;

    (void)start(s);
    assert_string_equal(looked(s, -1, false), "over 1: there is no rendezvous 'job' (c10d at node1:29400)");
}

static void without_closing_the_look_is_all(void **state)
{
    struct scene *s = *state;

    begin(s, false);
    (void)start(s);
    assert_string_equal(looked(s, 7, true), "over 0: ");
    assert_int_equal(s->visit.round, 7);
}

static void errors_name_the_place_once(void **state)
{
    struct muster_error error = { .code = MUSTER_ERDZV_STATE, .text = "the document is corrupt" };
    struct scene *s = *state;

    (void)start(s);
    assert_string_equal(told(s, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LOOKED, .error = &error }),
                        "over 1: the document is corrupt (c10d at node1:29400)");
    mu_rdzv_visit_done(&s->visit);
    begin(s, true);
    (void)start(s);
    (void)looked(s, 0, false);
    (void)snprintf(error.text, sizeof error.text, "connect to node1:29400: refused");
    assert_string_equal(told(s, (struct muster_rdzv_event){ .type = MUSTER_RDZV_FAILED, .error = &error }),
                        "over 1: connect to node1:29400: refused");
}

static void it_gives_up_in_time_and_says_what_was_wrong(void **state)
{
    const struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connection refused" };
    struct scene *s = *state;

    (void)start(s);
    assert_int_equal(mu_rdzv_visit_deadline_ms(&s->visit), START_MS + MU_RDZV_VISIT_TIMEOUT_MS);
    assert_string_equal(told(s, (struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_DOWN, .error = &error }), "");
    assert_string_equal(time_is(s, MU_RDZV_VISIT_TIMEOUT_MS - 1), "");
    assert_string_equal(time_is(s, MU_RDZV_VISIT_TIMEOUT_MS),
                        "over 1: no answer from c10d at node1:29400 within 30 s: connection refused");
    assert_string_equal(looked(s, 0, false), time_is(s, MU_RDZV_VISIT_TIMEOUT_MS)); /* too late */
}

static void a_back_end_that_has_come_back_is_not_blamed(void **state)
{
    const struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connection refused" };
    struct scene *s = *state;

    (void)start(s);
    (void)told(s, (struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_DOWN, .error = &error });
    (void)told(s, (struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_UP });
    assert_string_equal(looked(s, 0, false), "close");
    assert_string_equal(time_is(s, MU_RDZV_VISIT_TIMEOUT_MS), "over 1: no answer from c10d at node1:29400 within 30 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_looks_before_it_closes, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_closed_is_not_closed_again, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_there_is_not_closed, setup, teardown),
        cmocka_unit_test_setup_teardown(without_closing_the_look_is_all, setup, teardown),
        cmocka_unit_test_setup_teardown(errors_name_the_place_once, setup, teardown),
        cmocka_unit_test_setup_teardown(it_gives_up_in_time_and_says_what_was_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(a_back_end_that_has_come_back_is_not_blamed, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
