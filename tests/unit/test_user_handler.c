/* Which call of a blocking handler comes next: a scene is a list of what happens, and what comes of each. */
#include "handler/user_handler.h"
#include "handler/user_handler_uv.h"
#include "kv/kv.h"
#include "pure.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <uv.h>

enum { LOOK_MS = 100, END_MS = 1000 };

struct scene {
    struct mu_user_handler b;
    uint64_t now_ms;
    bool is_behind_store; /* the call on the thread has not begun */
    bool round_ended;
    struct muster_rdzv_info info; /* of the round that next_rendezvous() returns */
    bool built, has_closed, closed;
    struct mu_user_handler_result result; /* of the call that has returned last */
    const struct muster_store *store;     /* that is the agent's to use */
    struct muster_rdzv_event told;        /* last */
    bool told_error;                      /* with it */
    char text[256];
};

static void say(struct scene *s, const char *word)
{
    size_t used = strlen(s->text);

    (void)snprintf(s->text + used, sizeof s->text - used, "%s%s", used > 0 ? ", " : "", word);
}

static const char *feed(struct scene *s, struct mu_user_handler_event event)
{
    struct mu_user_handler_effects effects;
    char word[96];

    s->text[0] = '\0';
    event.now_ms = s->now_ms;
    event.begun = !s->is_behind_store;
    mu_user_handler_step(&s->b, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++) {
        const struct mu_user_handler_effect *effect = &effects.items[i];

        switch (effect->type) {
        case MU_USER_HANDLER_DO_TAKE_STORE:
            s->store = effect->store;
            break;
        case MU_USER_HANDLER_DO_END_ROUND:
            s->round_ended = true;
            break;
        case MU_USER_HANDLER_DO_CALL:
            say(s, mu_user_handler_call_text(effect->call));
            break;
        case MU_USER_HANDLER_DO_BESIDE:
            (void)snprintf(word, sizeof word, "beside it %s", mu_user_handler_call_text(effect->call));
            say(s, word);
            break;
        case MU_USER_HANDLER_DO_TELL:
            s->told = effect->tell;
            s->told_error = effect->tell.error != NULL;
            (void)snprintf(word, sizeof word, "tell %s%s", muster_rdzv_event_name(effect->tell.type),
                           effect->tell.request == MUSTER_RDZV_REQUEST_JOIN    ? " (join)"
                           : effect->tell.request == MUSTER_RDZV_REQUEST_CLOSE ? " (close)"
                                                                               : "");
            say(s, word);
            break;
        case MU_USER_HANDLER_DO_SAY_SLOW:
            (void)snprintf(word, sizeof word, "slow %s", mu_user_handler_call_text(effect->call));
            say(s, word);
            break;
        case MU_USER_HANDLER_DO_SAY_FAILED:
            (void)snprintf(word, sizeof word, "failed %s", mu_user_handler_call_text(effect->call));
            say(s, word);
            break;
        case MU_USER_HANDLER_DO_END:
            say(s, "end");
            break;
        case MU_USER_HANDLER_DO_ABANDON:
            (void)snprintf(word, sizeof word, "abandon %s", mu_user_handler_call_text(effect->call));
            say(s, word);
            break;
        }
    }
    return s->text;
}

static const char *ask(struct scene *s, enum mu_user_handler_event_type type)
{
    return feed(s, (struct mu_user_handler_event){ .type = type });
}

static const char *returns(struct scene *s, enum mu_user_handler_call call, int code, int64_t count)
{
    s->result = (struct mu_user_handler_result){ .error = { .code = code },
                                                 .info = s->info,
                                                 .built = s->built,
                                                 .has_closed = s->has_closed,
                                                 .closed = s->closed,
                                                 .count = count };
    return feed(
        s, (struct mu_user_handler_event){ .type = MU_USER_HANDLER_ON_RETURNED, .call = call, .result = &s->result });
}

/* The last of them: what comes of it waits for a turn of the loop. */
static const char *returns_last(struct scene *s, enum mu_user_handler_call call)
{
    assert_string_equal(returns(s, call, 0, 0), "");
    assert_true(mu_user_handler_wants_turn(&s->b));
    (void)ask(s, MU_USER_HANDLER_ON_TURN);
    assert_false(mu_user_handler_wants_turn(&s->b));
    return s->text;
}

static const char *time_is(struct scene *s, uint64_t now_ms)
{
    s->now_ms = now_ms;
    return ask(s, MU_USER_HANDLER_ON_TIME);
}

static struct scene *begin(struct scene *s, bool owned)
{
    *s = (struct scene){ .now_ms = 1000 };
    mu_user_handler_init(&s->b, LOOK_MS, END_MS, owned, true);
    return s;
}

/* In a round, at 1000 ms. */
static struct scene *in_a_round(struct scene *s, bool owned)
{
    (void)begin(s, owned);
    assert_string_equal(ask(s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(returns(s, MU_USER_HANDLER_NEXT, 0, 0), "tell joined");
    return s;
}

static void a_round_is_asked_for_news_at_the_interval(void **state)
{
    struct scene s;

    (void)state;
    (void)begin(&s, false);
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX);
    (void)in_a_round(&s, false);
    assert_int_equal(mu_user_handler_deadline_ms(&s.b), 1100);
    assert_string_equal(time_is(&s, 1099), "");
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX); /* one question at a time */
    s.now_ms = 1500;                                              /* a slow answer */
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, 0, 0), "");
    assert_int_equal(mu_user_handler_deadline_ms(&s.b), 1600);
}

static void nodes_that_wait_are_told_once_a_round(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, false);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, 0, 2), "tell waiting");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX); /* nothing is asked while joining */
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, 0, 0), "tell joined");
    assert_int_equal(mu_user_handler_deadline_ms(&s.b), 1200);
}

static void an_error_is_told_once_and_asked_about_less_often(void **state)
{
    struct scene s;
    uint64_t pause_ms = LOOK_MS;

    (void)state;
    (void)in_a_round(&s, false);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, MUSTER_ERDZV_CONNECTION, 0), "tell backend_down");
    for (int i = 0; i < 10; i++) {
        assert_int_equal(mu_user_handler_deadline_ms(&s.b) - s.now_ms, pause_ms);
        assert_string_equal(time_is(&s, mu_user_handler_deadline_ms(&s.b)), "num_nodes_waiting()");
        assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, MUSTER_ERDZV_CONNECTION, 0), "");
        pause_ms = pause_ms * 2 < MU_USER_HANDLER_LOOK_MAX_MS ? pause_ms * 2 : MU_USER_HANDLER_LOOK_MAX_MS;
    }
    assert_string_equal(time_is(&s, mu_user_handler_deadline_ms(&s.b)), "num_nodes_waiting()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, 0, 0), "tell backend_up");
    assert_int_equal(mu_user_handler_deadline_ms(&s.b) - s.now_ms, LOOK_MS);
}

static void a_handler_that_cannot_tell_is_not_asked_again(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, false);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, MUSTER_ENOTSUP, 0), "");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX);
    (void)in_a_round(&s, false);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, MUSTER_ERDZV_CLOSED, 0), "tell closed");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX);
}

static void what_is_asked_for_waits_for_the_call_under_way(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, false);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LOOK), "");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_CLOSE), "");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, 0, 3), "set_closed()"); /* of a round that is over */
    assert_string_equal(returns(&s, MU_USER_HANDLER_CLOSE, 0, 0), "next_rendezvous(), tell closed");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, MUSTER_ERDZV_CLOSED, 0),
                        "is_closed() and num_nodes_waiting(), tell failed (join)");
    assert_string_equal(returns(&s, MU_USER_HANDLER_LOOK, 0, 0), "tell looked");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_CLOSE), "set_closed()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_CLOSE, MUSTER_ENOTSUP, 0), "tell failed (close)");
}

static void a_leave_makes_a_join_return(void **state)
{
    struct scene s;

    (void)state;
    (void)begin(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), "beside it shutdown()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_SHUTDOWN, 0, 0), "");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, MUSTER_ERDZV_CLOSED, 0), "tell left");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns_last(&s, MU_USER_HANDLER_STORE), "end");
}

/* The time that a leave gave to a join is over with it. */
static void a_join_that_returned_takes_no_time_from_the_end(void **state)
{
    struct scene s;

    (void)state;
    (void)begin(&s, true);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), "beside it shutdown()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_SHUTDOWN, 0, 0), "");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, MUSTER_ERDZV_CLOSED, 0), "tell left");
    s.now_ms = 9000;
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_int_equal(mu_user_handler_deadline_ms(&s.b), 10000);
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "free()");
    assert_string_equal(returns_last(&s, MU_USER_HANDLER_FREE), "end");
}

/* Nothing local closes a job. */
static void an_agent_that_never_came_in_closes_nothing(void **state)
{
    struct scene s;

    (void)state;
    (void)begin(&s, true);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "free()");
    assert_string_equal(returns_last(&s, MU_USER_HANDLER_FREE), "end");
    (void)begin(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, MUSTER_ERDZV_TIMEOUT, 0), "tell failed (join)");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns_last(&s, MU_USER_HANDLER_STORE), "end");
}

/* It may have been too late: nobody is told of that round. */
static void a_round_that_nobody_wants_any_more_is_not_told(void **state)
{
    struct scene s;

    (void)state;
    (void)begin(&s, true);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), "beside it shutdown()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, 0, 0), "tell left");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), ""); /* shutdown() is still under way */
    assert_string_equal(returns(&s, MU_USER_HANDLER_SHUTDOWN, 0, 0), "a call of the round's store");
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "free()");
    assert_string_equal(returns_last(&s, MU_USER_HANDLER_FREE), "end");
}

static void a_round_is_used_only_if_it_is_still_wanted(void **state)
{
    static const struct {
        enum mu_user_handler_event_type asked; /* while next_rendezvous() is under way */
        const char *says;
        bool is_used;
    } rows[] = {
        { MU_USER_HANDLER_ON_TIME, "tell joined", true },
        { MU_USER_HANDLER_ON_LEAVE, "tell left", false },
        { MU_USER_HANDLER_ON_FREE, "", false },
    };
    static struct muster_store store;
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)begin(&s, true);
        s.info = (struct muster_rdzv_info){ .store = &store, .round = 7, .bootstrap.master_port = 1 };
        assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
        (void)ask(&s, rows[i].asked);
        assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, 0, 0), rows[i].says);
        assert_ptr_equal(s.store, rows[i].is_used ? &store : NULL);
        assert_int_equal(s.b.agent_store, rows[i].is_used);
        if (rows[i].says[0] != '\0')
            assert_int_equal(s.told.round, rows[i].is_used ? 7 : -1);
    }
}

static void the_agents_store_is_used_where_the_handler_said_the_address(void **state)
{
    static const struct {
        bool shares, built;
        uint16_t port;
        bool is_used;
    } rows[] = {
        { true, false, 1, true }, { false, false, 1, false }, { true, true, 1, false }, { true, false, 0, false }
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)begin(&s, true);
        mu_user_handler_init(&s.b, LOOK_MS, END_MS, true, rows[i].shares);
        s.built = rows[i].built;
        s.info.bootstrap.master_port = rows[i].port;
        assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
        assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, 0, 0), "tell joined");
        assert_int_equal(s.b.agent_store, rows[i].is_used);
    }
}

static void an_error_comes_with_what_has_failed_alone(void **state)
{
    struct scene s;

    (void)state;
    (void)begin(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), "beside it shutdown()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, MUSTER_ERDZV_CLOSED, 0), "tell left");
    assert_false(s.told_error); /* it is what the leave wanted */
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, MUSTER_ERDZV_CLOSED, 0), "tell failed (join)");
    assert_true(s.told_error);
    (void)in_a_round(&s, false);
    assert_ptr_equal(s.told.info, &s.result.info);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, MUSTER_ERDZV_CONNECTION, 0), "tell backend_down");
    assert_true(s.told_error);
    assert_string_equal(time_is(&s, 1200), "num_nodes_waiting()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, MUSTER_ERDZV_CLOSED, 0), "tell closed");
    assert_false(s.told_error);
    (void)in_a_round(&s, false);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, 0, 3), "tell waiting");
    assert_int_equal(s.told.count, 3);
}

static void a_look_reads_an_answer_as_a_round_does(void **state)
{
    static const struct {
        bool has_closed, closed;
        int code;
        int64_t count;
        bool tells_error, tells_closed;
        int64_t tells_count;
    } rows[] = {
        { true, false, 0, 2, false, false, 2 },
        { true, true, 0, 0, false, true, 0 },
        { true, false, MUSTER_ENOTSUP, 9, false, false, 0 }, /* it takes nobody in later */
        { true, true, MUSTER_ENOTSUP, 0, false, true, 0 },
        { true, false, MUSTER_ERDZV_CLOSED, 0, false, true, 0 },
        { true, false, MUSTER_ERDZV_CONNECTION, 0, true, false, 0 },
        { false, false, MUSTER_ENOTSUP, 0, true, false, 0 }, /* it does not know whether it is closed */
        { false, false, MUSTER_ERDZV_CLOSED, 0, false, true, 0 },
        { false, false, MUSTER_ERDZV_CONNECTION, 0, true, false, 0 },
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)begin(&s, false);
        s.has_closed = rows[i].has_closed;
        s.closed = rows[i].closed;
        (void)ask(&s, MU_USER_HANDLER_ON_LOOK);
        assert_string_equal(returns(&s, MU_USER_HANDLER_LOOK, rows[i].code, rows[i].count), "tell looked");
        assert_int_equal(s.told_error, rows[i].tells_error);
        assert_int_equal(s.told.closed, rows[i].tells_closed);
        assert_int_equal(s.told.count, rows[i].tells_count);
    }
}

static void a_leave_from_a_round_leaves_the_job_open(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, true);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), ""); /* never inside of the call */
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_TURN), "tell left");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "free()");
    assert_string_equal(returns_last(&s, MU_USER_HANDLER_FREE), "end");
}

static void the_end_of_the_job_shuts_down(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, true);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "");
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, 0, 1),
                        "a call of the round's store"); /* nothing is told any more */
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "shutdown()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_SHUTDOWN, MUSTER_ELOST, 0), "failed shutdown(), free()");
    assert_string_equal(returns_last(&s, MU_USER_HANDLER_FREE), "end");
    (void)in_a_round(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "shutdown()");
    assert_string_equal(returns_last(&s, MU_USER_HANDLER_SHUTDOWN), "end");
}

static void what_does_not_return_is_abandoned_in_the_end(void **state)
{
    static const struct {
        enum mu_user_handler_event_type first;
        const char *says, *abandoned;
    } rows[] = {
        { MU_USER_HANDLER_ON_JOIN, "beside it shutdown()", "abandon next_rendezvous()" },
        { MU_USER_HANDLER_ON_CLOSE, "", "abandon set_closed()" },
        { MU_USER_HANDLER_ON_LOOK, "", "abandon is_closed() and num_nodes_waiting()" },
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)begin(&s, true);
        (void)ask(&s, rows[i].first);
        s.now_ms = 5000;
        assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), rows[i].says);
        assert_int_equal(mu_user_handler_deadline_ms(&s.b), 6000);
        assert_string_equal(time_is(&s, 5999), "");
        assert_string_equal(time_is(&s, 6000), rows[i].abandoned);
        assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX);
    }
    (void)in_a_round(&s, true);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "shutdown()");
    assert_string_equal(time_is(&s, 2000), "abandon shutdown()");
    (void)in_a_round(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), ""); /* never inside of the call */
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_TURN), "tell left");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(time_is(&s, 2000), "abandon a call of the round's store");
}

/* The time runs from the leave that was the first to want it. */
static void a_leave_starts_the_time_that_a_join_has(void **state)
{
    struct scene s;

    (void)state;
    (void)begin(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), "beside it shutdown()");
    s.now_ms = 1800;
    assert_string_equal(returns(&s, MU_USER_HANDLER_SHUTDOWN, 0, 0), "");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "");
    assert_int_equal(mu_user_handler_deadline_ms(&s.b), 2000);
    assert_string_equal(time_is(&s, 2000), "abandon next_rendezvous()");
}

static void a_node_that_left_may_come_again(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), ""); /* never inside of the call */
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_TURN), "tell left");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), "beside it shutdown()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, MUSTER_ERDZV_CLOSED, 0), "next_rendezvous(), tell left");
    assert_string_equal(returns(&s, MU_USER_HANDLER_SHUTDOWN, 0, 0), "");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, 0, 0), "tell joined");
}

static void a_join_begins_after_the_leave_was_told(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LEAVE), "");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "");
    assert_true(mu_user_handler_wants_turn(&s.b));
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_TURN), "next_rendezvous(), tell left");
    assert_false(mu_user_handler_wants_turn(&s.b));
}

/* Else a join would wait without a word. */
static void a_call_that_a_join_waits_for_is_named_once(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, false);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX); /* nothing waits for it yet */
    s.now_ms = 2000;
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "");
    assert_int_equal(mu_user_handler_deadline_ms(&s.b), 7000);
    assert_string_equal(time_is(&s, 6999), "");
    assert_string_equal(time_is(&s, 7000), "slow num_nodes_waiting()");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX);
    assert_string_equal(returns(&s, MU_USER_HANDLER_WAITING, 0, 0), "next_rendezvous()");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX); /* it may take its time */
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_LOOK), "");
    assert_true(mu_user_handler_deadline_ms(&s.b) == UINT64_MAX);
}

/* The name of the call that waits would send the user looking in the wrong place. */
static void a_call_that_waits_for_the_store_names_the_store(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, false);
    assert_string_equal(time_is(&s, 1100), "num_nodes_waiting()");
    s.is_behind_store = true;
    s.now_ms = 2000;
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "");
    assert_string_equal(time_is(&s, 7000), "slow a call of the round's store");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "");
    assert_string_equal(time_is(&s, 8000), "abandon a call of the round's store");
    (void)begin(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "beside it shutdown()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, MUSTER_ERDZV_CLOSED, 0), "");
    s.is_behind_store = true; /* nothing is on the thread: it is the call beside it that hangs */
    assert_string_equal(time_is(&s, 2000), "abandon shutdown()");
}

static void what_returns_after_it_was_abandoned_changes_nothing(void **state)
{
    struct scene s;

    (void)state;
    (void)begin(&s, true);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_CLOSE), "set_closed()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "");
    assert_string_equal(time_is(&s, 2000), "abandon set_closed()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_CLOSE, 0, 0), "");
    assert_true(mu_user_handler_wants_turn(&s.b));
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_TURN), "end");
    assert_int_equal(s.b.end, MU_USER_HANDLER_ENDED);
}

static void the_next_round_and_the_end_take_the_store_away(void **state)
{
    static const struct {
        enum mu_user_handler_event_type asked;
        bool ends_round;
    } rows[] = {
        { MU_USER_HANDLER_ON_JOIN, true },  { MU_USER_HANDLER_ON_FREE, true },   { MU_USER_HANDLER_ON_CLOSE, false },
        { MU_USER_HANDLER_ON_LOOK, false }, { MU_USER_HANDLER_ON_LEAVE, false },
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)in_a_round(&s, true);
        s.round_ended = false;
        (void)ask(&s, rows[i].asked);
        assert_int_equal(s.round_ended, rows[i].ends_round);
    }
}

/* What is called for a call, if all of it returns 0 but `fails`. */
static void each_call_is_made_of_others_in_order(void **state)
{
#define NEXT MU_USER_HANDLER_NEXT
#define LOOK MU_USER_HANDLER_LOOK
#define NONE MU_USER_HANDLER_NOTHING
    static const char *const names[] = { [NEXT] = "next ",
                                         [MU_USER_HANDLER_BUILD] = "build ",
                                         [LOOK] = "is_closed ",
                                         [MU_USER_HANDLER_WAITING] = "waiting ",
                                         [MU_USER_HANDLER_CLOSE] = "set_closed ",
                                         [MU_USER_HANDLER_STORE] = "nothing ",
                                         [MU_USER_HANDLER_SHUTDOWN] = "shutdown ",
                                         [MU_USER_HANDLER_FREE] = "free " };
    static const struct {
        enum mu_user_handler_call call;
        int64_t rank, world_size; /* that next_rendezvous() gives */
        bool has_store;
        uint16_t port;
        enum mu_user_handler_call fails;
        int rc;
        const char *called;
        int code;
    } rows[] = {
        { NEXT, 0, 1, false, 0, NONE, 0, "next ", 0 },
        { NEXT, 3, 4, true, 1, NONE, 0, "next ", 0 },
        { NEXT, 3, 4, true, 0, NONE, 0, "next build ", 0 }, /* the handler gave no address */
        { NEXT, 3, 4, true, 0, MU_USER_HANDLER_BUILD, MUSTER_ETIMEOUT, "next build ", MUSTER_ETIMEOUT },
        { NEXT, 0, 1, true, 0, NEXT, MUSTER_ELOST, "next ", MUSTER_ELOST },
        { NEXT, 0, 1, true, 0, NEXT, 7, "next ", MUSTER_EINTERNAL },
        { NEXT, 4, 4, true, 0, NONE, 0, "next ", MUSTER_EINTERNAL }, /* these are no places in a world */
        { NEXT, -1, 4, true, 0, NONE, 0, "next ", MUSTER_EINTERNAL },
        { NEXT, 0, 0, true, 0, NONE, 0, "next ", MUSTER_EINTERNAL },
        { NEXT, 0, -1, true, 0, NONE, 0, "next ", MUSTER_EINTERNAL },
        { LOOK, 0, 0, false, 0, NONE, 0, "is_closed waiting ", 0 },
        { LOOK, 0, 0, false, 0, MU_USER_HANDLER_WAITING, MUSTER_ELOST, "is_closed waiting ", MUSTER_ELOST },
        { LOOK, 0, 0, false, 0, LOOK, MUSTER_ELOST, "is_closed ", MUSTER_ELOST },
        { MU_USER_HANDLER_WAITING, 0, 0, false, 0, NONE, 0, "waiting ", 0 },
        { MU_USER_HANDLER_CLOSE, 0, 0, false, 0, MU_USER_HANDLER_CLOSE, MUSTER_ELOST, "set_closed ", MUSTER_ELOST },
        { MU_USER_HANDLER_SHUTDOWN, 0, 0, false, 0, NONE, 0, "shutdown ", 0 },
        { MU_USER_HANDLER_FREE, 0, 0, false, 0, NONE, 0, "free ", 0 },
        { MU_USER_HANDLER_STORE, 0, 0, false, 0, NONE, 0, "nothing ", 0 },
    };
    struct muster_store store = { 0 };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_user_handler_result result = MU_USER_HANDLER_NO_RESULT;
        enum mu_user_handler_call which = NONE;
        char called[64] = "";
        int rc = 0;

        result.info = (struct muster_rdzv_info){ .rank = rows[i].rank,
                                                 .world_size = rows[i].world_size,
                                                 .store = rows[i].has_store ? &store : NULL,
                                                 .bootstrap.master_port = rows[i].port };
        while ((which = mu_user_handler_then(rows[i].call, which, rc, &result)) != NONE) {
            (void)strncat(called, names[which], sizeof called - strlen(called) - 1);
            rc = which == rows[i].fails ? rows[i].rc : 0;
        }
        assert_string_equal(called, rows[i].called);
        assert_int_equal(result.error.code, rows[i].code);
        assert_int_equal(result.error.text[0] != '\0', rows[i].code < 0); /* a failure has words */
        assert_int_equal(result.built, strstr(called, "build") != NULL);
        assert_int_equal(result.has_closed, rows[i].call == LOOK && rows[i].fails != LOOK);
    }
}

static void a_run_id_that_is_too_long_is_refused(void **state)
{
    char run_id[MU_RDZV_RUN_ID_MAX + 2], text[160];
    struct muster_error error;

    (void)state;
    memset(run_id, 'x', sizeof run_id);
    run_id[MU_RDZV_RUN_ID_MAX] = '\0';
    assert_int_equal(mu_user_handler_check_run_id("mine", run_id, &error), 0);
    run_id[MU_RDZV_RUN_ID_MAX] = 'x';
    run_id[MU_RDZV_RUN_ID_MAX + 1] = '\0';
    assert_int_equal(mu_user_handler_check_run_id("mine", run_id, &error), MUSTER_ELIMIT);
    (void)snprintf(text, sizeof text,
                   "the run id of the rendezvous handler 'mine' has %d bytes; at most %d are possible",
                   MU_RDZV_RUN_ID_MAX + 1, MU_RDZV_RUN_ID_MAX);
    assert_string_equal(error.text, text);
}

static const char *say_name(const struct muster_rdzv *rdzv)
{
    (void)rdzv;
    return "mine";
}

static void ignore(void *ctx, const struct muster_rdzv_event *event)
{
    (void)ctx;
    (void)event;
}

/* Else they would block the agent's loop. */
static void without_threads_there_are_no_calls(void **state)
{
    static const struct muster_rdzv_ops ops = { .size = sizeof ops, .get_backend = say_name, .get_run_id = say_name };
    struct muster_rdzv rdzv = { .ops = &ops };
    const struct mu_driving driving = MU_DRIVING_DEFAULT;
    struct muster_handler *handler = NULL;
    struct muster_error error = { 0 };
    pthread_attr_t usual, huge;
    uv_loop_t loop;
    int rc;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(pthread_getattr_default_np(&usual), 0);
    assert_int_equal(pthread_attr_init(&huge), 0);
    assert_int_equal(pthread_attr_setstacksize(&huge, (size_t)1 << 46), 0); /* there is no room for it */
    assert_int_equal(pthread_setattr_default_np(&huge), 0);
    rc = mu_user_handler_start(&loop, &rdzv, false, &driving, NULL, ignore, NULL, &handler, &error);
    assert_int_equal(pthread_setattr_default_np(&usual), 0);
    assert_int_equal(rc, MUSTER_ESYSTEM);
    assert_string_equal(error.text, "cannot start the threads of the rendezvous handler 'mine'");
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    (void)pthread_attr_destroy(&usual);
    (void)pthread_attr_destroy(&huge);
}

static void count_up(void *ctx)
{
    ++*(int *)ctx;
}

static void nobody_has_to_wait_for_a_closed_view_of_the_store(void **state)
{
    static const struct muster_rdzv_ops ops = { .size = sizeof ops, .get_backend = say_name, .get_run_id = say_name };
    struct muster_rdzv rdzv = { .ops = &ops };
    const struct mu_driving driving = MU_DRIVING_DEFAULT;
    struct muster_handler *handler = NULL;
    struct mu_kv *kv = NULL;
    uv_loop_t loop;
    int freed = 0;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(mu_user_handler_start(&loop, &rdzv, false, &driving, NULL, ignore, NULL, &handler, NULL), 0);
    assert_int_equal(mu_handler_ops(handler)->open_kv(handler, &kv, NULL), 0);
    kv->ops->close(kv, NULL, NULL);
    handler->ops->free(handler, count_up, &freed);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(freed, 1);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* ---- A handler on a loop ---- */

enum { ROUNDS = 50, YIELDS = 200 };

struct hall { /* next_rendezvous() returns a round once `open` or shut down */
    struct muster_rdzv rdzv;
    struct muster_store store;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    struct muster_handler *handler;
    int lefts;
    int64_t left_round;
    bool left_has_kv, is_freed;
    bool ends_inside; /* the first LEFT is answered with a leave and a free */
};

static int hall_next(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info, struct muster_error *reterr)
{
    struct hall *hall = (struct hall *)rdzv;

    (void)reterr;
    (void)pthread_mutex_lock(&hall->lock);
    while (!hall->open)
        (void)pthread_cond_wait(&hall->changed, &hall->lock);
    (void)pthread_mutex_unlock(&hall->lock);
    *ret_info = (struct muster_rdzv_info){ .store = &hall->store, .world_size = 1, .round = 7 };
    ret_info->bootstrap.master_port = 1;
    return 0;
}

static int hall_shutdown(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    struct hall *hall = (struct hall *)rdzv;

    (void)reterr;
    (void)pthread_mutex_lock(&hall->lock);
    hall->open = true;
    (void)pthread_cond_broadcast(&hall->changed);
    (void)pthread_mutex_unlock(&hall->lock);
    *ret_closed = true;
    return 0;
}

static void on_hall_freed(void *ctx)
{
    ((struct hall *)ctx)->is_freed = true;
}

static void hear_hall(void *ctx, const struct muster_rdzv_event *event)
{
    struct hall *hall = ctx;

    if (event->type != MUSTER_RDZV_LEFT)
        return;
    hall->left_round = event->round;
    hall->left_has_kv = mu_handler_ops(hall->handler)->has_kv(hall->handler);
    if (++hall->lefts == 1 && hall->ends_inside) {
        hall->handler->ops->leave(hall->handler);
        hall->handler->ops->free(hall->handler, on_hall_freed, hall);
        for (int i = 0; i < YIELDS; i++) /* the thread may be through before the loop goes on */
            (void)sched_yield();
    }
}

static void start_hall(struct hall *hall, uv_loop_t *loop)
{
    static const struct muster_rdzv_ops ops = { .size = sizeof ops,
                                                .get_backend = say_name,
                                                .get_run_id = say_name,
                                                .next_rendezvous = hall_next,
                                                .shutdown = hall_shutdown };
    const struct mu_driving driving = MU_DRIVING_DEFAULT;

    *hall = (struct hall){ .rdzv = { .ops = &ops }, .left_round = -2 };
    (void)pthread_mutex_init(&hall->lock, NULL);
    (void)pthread_cond_init(&hall->changed, NULL);
    assert_int_equal(uv_loop_init(loop), 0);
    assert_int_equal(
        mu_user_handler_start(loop, &hall->rdzv, false, &driving, NULL, hear_hall, hall, &hall->handler, NULL), 0);
}

static void end_hall(struct hall *hall, uv_loop_t *loop)
{
    assert_int_equal(uv_run(loop, UV_RUN_DEFAULT), 0);
    assert_true(hall->is_freed);
    assert_int_equal(uv_loop_close(loop), 0);
    (void)pthread_cond_destroy(&hall->changed);
    (void)pthread_mutex_destroy(&hall->lock);
}

/* shutdown() tore its store down. */
static void a_round_that_nobody_wants_any_more_is_not_used(void **state)
{
    struct hall hall;
    uv_loop_t loop;

    (void)state;
    start_hall(&hall, &loop);
    hall.handler->ops->join(hall.handler);
    hall.handler->ops->leave(hall.handler);
    while (hall.lefts == 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(hall.left_round, -1);
    assert_false(hall.left_has_kv);
    hall.handler->ops->free(hall.handler, on_hall_freed, &hall);
    end_hall(&hall, &loop);
}

/* The turn that the leave wanted may still be to come when the end is there. */
static void a_leave_and_a_free_inside_of_a_tell_end_it(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        struct hall hall;
        uv_loop_t loop;

        start_hall(&hall, &loop);
        hall.ends_inside = true;
        hall.handler->ops->leave(hall.handler);
        end_hall(&hall, &loop);
        assert_int_equal(hall.lefts, 1);
    }
}

/* ---- Texts, and requests to the store ---- */

static void a_warning_says_what_happens_next(void **state)
{
    const struct muster_error error = { .code = MUSTER_ELOST, .text = "it is gone" };
    const struct {
        struct mu_user_handler_effect effect;
        const char *text;
    } rows[] = {
        { { .type = MU_USER_HANDLER_DO_SAY_SLOW, .call = MU_USER_HANDLER_WAITING },
          "rendezvous handler 'mine': num_nodes_waiting() has not returned for 5 s; waiting for it" },
        { { .type = MU_USER_HANDLER_DO_SAY_FAILED, .call = MU_USER_HANDLER_SHUTDOWN, .error = &error },
          "rendezvous handler 'mine': shutdown() failed: it is gone; the result stays as it is" },
        { { .type = MU_USER_HANDLER_DO_ABANDON, .call = MU_USER_HANDLER_FREE },
          "rendezvous handler 'mine': free() has not returned for 1.0 s; going on without it. Its thread is left "
          "behind, and the handler is never freed" },
        { { .type = MU_USER_HANDLER_DO_ABANDON, .call = MU_USER_HANDLER_NEXT },
          "rendezvous handler 'mine': next_rendezvous() has not returned for 1.0 s after shutdown() was called; going "
          "on without it. Its thread is left behind, and the handler is never freed" },
    };
    char text[MU_USER_HANDLER_WARNING_MAX];
    struct scene s;

    (void)state;
    (void)begin(&s, false);
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(mu_user_handler_warning(&s.b, "mine", &rows[i].effect, text), rows[i].text);
}

static void a_shutdown_that_fails_is_said(void **state)
{
    struct scene s;

    (void)state;
    (void)in_a_round(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "shutdown()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_SHUTDOWN, MUSTER_ELOST, 0), "failed shutdown()");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_TURN), "end");
}

static void keys_of_the_round_lose_their_prefix(void **state)
{
    static const struct {
        const char *key, *expected;
    } rows[] = {
        { "job/agent/x", "agent/x" },
        { "job/", "job/" },
        { "other/x", "other/x" },
        { "x", "x" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_slice key = mu_user_handler_key("job", muster_str(rows[i].key));

        assert_int_equal(key.len, strlen(rows[i].expected));
        assert_memory_equal(key.data, rows[i].expected, key.len);
    }
}

static void a_request_needs_a_store_and_room(void **state)
{
    const struct muster_store *store = (const struct muster_store *)&store; /* only compared */
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_user_handler_check_request(NULL, 0, &error), MUSTER_ECANCELED);
    assert_int_equal(mu_user_handler_check_request(store, MU_USER_HANDLER_REQUESTS_MAX - 1, &error), 0);
    assert_int_equal(mu_user_handler_check_request(store, MU_USER_HANDLER_REQUESTS_MAX, &error), MUSTER_ELIMIT);
    assert_string_equal(error.text, "128 requests are under way");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_is_asked_for_news_at_the_interval),
        cmocka_unit_test(nodes_that_wait_are_told_once_a_round),
        cmocka_unit_test(an_error_is_told_once_and_asked_about_less_often),
        cmocka_unit_test(a_handler_that_cannot_tell_is_not_asked_again),
        cmocka_unit_test(what_is_asked_for_waits_for_the_call_under_way),
        cmocka_unit_test(a_leave_makes_a_join_return),
        cmocka_unit_test(a_join_that_returned_takes_no_time_from_the_end),
        cmocka_unit_test(an_agent_that_never_came_in_closes_nothing),
        cmocka_unit_test(a_round_that_nobody_wants_any_more_is_not_told),
        cmocka_unit_test(a_round_is_used_only_if_it_is_still_wanted),
        cmocka_unit_test(the_agents_store_is_used_where_the_handler_said_the_address),
        cmocka_unit_test(an_error_comes_with_what_has_failed_alone),
        cmocka_unit_test(a_look_reads_an_answer_as_a_round_does),
        cmocka_unit_test(a_leave_from_a_round_leaves_the_job_open),
        cmocka_unit_test(the_end_of_the_job_shuts_down),
        cmocka_unit_test(what_does_not_return_is_abandoned_in_the_end),
        cmocka_unit_test(a_leave_starts_the_time_that_a_join_has),
        cmocka_unit_test(a_node_that_left_may_come_again),
        cmocka_unit_test(a_join_begins_after_the_leave_was_told),
        cmocka_unit_test(a_call_that_a_join_waits_for_is_named_once),
        cmocka_unit_test(a_call_that_waits_for_the_store_names_the_store),
        cmocka_unit_test(what_returns_after_it_was_abandoned_changes_nothing),
        cmocka_unit_test(the_next_round_and_the_end_take_the_store_away),
        cmocka_unit_test(each_call_is_made_of_others_in_order),
        cmocka_unit_test(a_run_id_that_is_too_long_is_refused),
        cmocka_unit_test(without_threads_there_are_no_calls),
        cmocka_unit_test(nobody_has_to_wait_for_a_closed_view_of_the_store),
        cmocka_unit_test(a_round_that_nobody_wants_any_more_is_not_used),
        cmocka_unit_test(a_leave_and_a_free_inside_of_a_tell_end_it),
        cmocka_unit_test(a_warning_says_what_happens_next),
        cmocka_unit_test(a_shutdown_that_fails_is_said),
        cmocka_unit_test(keys_of_the_round_lose_their_prefix),
        cmocka_unit_test(a_request_needs_a_store_and_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
