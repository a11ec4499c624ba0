/* Which call of a blocking handler comes next: a scene is a list of what happens, and what comes of each. */
#include "handler/user_handler.h"
#include "handler/user_handler_uv.h"
#include "pure.h"

#include <pthread.h>
#include <stdio.h>
#include <uv.h>

enum { LOOK_MS = 100, END_MS = 1000 };

struct scene {
    struct mu_user_handler b;
    uint64_t now_ms;
    bool is_behind_store; /* the call on the thread has not begun */
    bool round_ended;
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
        case MU_USER_HANDLER_DO_CALL:
            s->round_ended = s->round_ended || effect->ends_round;
            say(s, mu_user_handler_call_text(effect->call));
            break;
        case MU_USER_HANDLER_DO_BESIDE:
            (void)snprintf(word, sizeof word, "beside it %s", mu_user_handler_call_text(effect->call));
            say(s, word);
            break;
        case MU_USER_HANDLER_DO_TELL:
            (void)snprintf(word, sizeof word, "tell %s%s", muster_rdzv_event_name(effect->tell),
                           effect->request == MUSTER_RDZV_REQUEST_JOIN    ? " (join)"
                           : effect->request == MUSTER_RDZV_REQUEST_CLOSE ? " (close)"
                                                                          : "");
            say(s, word);
            break;
        case MU_USER_HANDLER_DO_SAY_SLOW:
            (void)snprintf(word, sizeof word, "slow %s", mu_user_handler_call_text(effect->call));
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
    struct muster_error error = { .code = code };

    return feed(s, (struct mu_user_handler_event){
                       .type = MU_USER_HANDLER_ON_RETURNED, .call = call, .error = &error, .count = count });
}

static const char *time_is(struct scene *s, uint64_t now_ms)
{
    s->now_ms = now_ms;
    return ask(s, MU_USER_HANDLER_ON_TIME);
}

static struct scene *begin(struct scene *s, bool owned)
{
    *s = (struct scene){ .now_ms = 1000 };
    mu_user_handler_init(&s->b, LOOK_MS, END_MS, owned);
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
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "end");
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
    assert_string_equal(returns(&s, MU_USER_HANDLER_FREE, 0, 0), "end");
}

/* Nothing local closes a job. */
static void an_agent_that_never_came_in_closes_nothing(void **state)
{
    struct scene s;

    (void)state;
    (void)begin(&s, true);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "free()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_FREE, 0, 0), "end");
    (void)begin(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_JOIN), "next_rendezvous()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_NEXT, MUSTER_ERDZV_TIMEOUT, 0), "tell failed (join)");
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "end");
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
    assert_string_equal(returns(&s, MU_USER_HANDLER_FREE, 0, 0), "end");
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
    assert_string_equal(returns(&s, MU_USER_HANDLER_FREE, 0, 0), "end");
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
    assert_string_equal(returns(&s, MU_USER_HANDLER_SHUTDOWN, MUSTER_ELOST, 0), "free()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_FREE, 0, 0), "end");
    (void)in_a_round(&s, false);
    assert_string_equal(ask(&s, MU_USER_HANDLER_ON_FREE), "a call of the round's store");
    assert_string_equal(returns(&s, MU_USER_HANDLER_STORE, 0, 0), "shutdown()");
    assert_string_equal(returns(&s, MU_USER_HANDLER_SHUTDOWN, 0, 0), "end");
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
    assert_int_equal(s.b.end, MU_USER_HANDLER_OVER);
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

static void a_place_in_the_world_is_checked(void **state)
{
    static const struct {
        int64_t rank, world_size;
        bool is_good;
    } infos[] = {
        { 0, 1, true }, { 3, 4, true }, { 4, 4, false }, { -1, 4, false }, { 0, 0, false }, { 0, -1, false }
    };

    (void)state;
    for (size_t i = 0; i < COUNT(infos); i++) {
        struct muster_rdzv_info info = { .rank = infos[i].rank, .world_size = infos[i].world_size };

        assert_int_equal(mu_user_handler_check_info(&info, NULL), infos[i].is_good ? 0 : MUSTER_EINTERNAL);
    }
}

static void an_address_is_put_into_the_store_if_the_handler_gave_none(void **state)
{
    struct muster_store store = { 0 };
    struct muster_rdzv_info info = { .store = &store };

    (void)state;
    assert_true(mu_user_handler_needs_address(&info));
    info.bootstrap.master_port = 1;
    assert_false(mu_user_handler_needs_address(&info));
    info = (struct muster_rdzv_info){ .store = NULL };
    assert_false(mu_user_handler_needs_address(&info));
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
        cmocka_unit_test(a_place_in_the_world_is_checked),
        cmocka_unit_test(an_address_is_put_into_the_store_if_the_handler_gave_none),
        cmocka_unit_test(without_threads_there_are_no_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
