/* What was asked of somebody else's handler, and what its events answer. */
#include "handler/plugin_asks.h"
#include "pure.h"

#define JOIN MUSTER_RDZV_REQUEST_JOIN
#define LEAVE MUSTER_RDZV_REQUEST_LEAVE
#define CLOSE MUSTER_RDZV_REQUEST_CLOSE
#define LOOK MUSTER_RDZV_REQUEST_LOOK
#define MEMBERSHIP MUSTER_RDZV_REQUEST_MEMBERSHIP

static void ask(struct mu_plugin_asks *asks, enum muster_rdzv_request request)
{
    mu_plugin_ask(asks, request);
    mu_plugin_asked(asks);
}

static bool take(struct mu_plugin_asks *asks, const struct muster_rdzv_event *event, struct muster_rdzv_event *whole)
{
    return mu_plugin_take_event(asks, event, whole) == MU_PLUGIN_WHOLE;
}

enum { OLD_SIZE = offsetof(struct muster_rdzv_event, note), MAX = 4 };

/* A failure that does not say what has failed. */
static void a_failure_belongs_to_the_oldest_that_it_can_answer(void **state)
{
    static const struct {
        enum muster_rdzv_request asked[MAX];
        unsigned count;
        enum muster_rdzv_request failed;
    } rows[] = {
        { { 0 }, 0, MEMBERSHIP },
        { { JOIN }, 1, JOIN },
        { { LOOK }, 1, MEMBERSHIP }, /* LOOKED is its answer, with an error or without */
        { { LOOK, CLOSE }, 2, CLOSE },
        { { CLOSE, JOIN }, 2, CLOSE },
        { { JOIN, LEAVE }, 2, LEAVE }, /* nobody waits for the join any more */
        { { JOIN, CLOSE, LEAVE }, 3, CLOSE },
        { { JOIN, CLOSE, JOIN }, 3, CLOSE }, /* asked again is asked last */
        { { JOIN, LOOK, CLOSE, LEAVE }, 4, CLOSE },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_event event = { .size = OLD_SIZE, .type = MUSTER_RDZV_FAILED }, whole;
        struct mu_plugin_asks asks = { .count = 0 };

        for (unsigned n = 0; n < rows[i].count; n++)
            ask(&asks, rows[i].asked[n]);
        assert_true(take(&asks, &event, &whole));
        assert_int_equal(whole.request, rows[i].failed);
        assert_int_equal(whole.size, sizeof whole);
        for (unsigned n = 0; n < asks.count; n++)
            assert_int_not_equal(asks.items[n].request, rows[i].failed); /* it is answered */
    }
}

static void an_answer_ends_what_it_answers_alone(void **state)
{
    static const struct {
        enum muster_rdzv_event_type type;
        enum muster_rdzv_request request;
        unsigned left; /* of close, look and join */
        enum muster_rdzv_request newest;
    } rows[] = {
        { MUSTER_RDZV_JOINED, 0, 2, LOOK },       { MUSTER_RDZV_CLOSED, 0, 2, JOIN },
        { MUSTER_RDZV_LOOKED, 0, 2, JOIN },       { MUSTER_RDZV_LEFT, 0, 3, JOIN },
        { MUSTER_RDZV_FAILED, CLOSE, 2, JOIN },   { MUSTER_RDZV_FAILED, MEMBERSHIP, 3, JOIN },
        { MUSTER_RDZV_PROGRESS, 0, 3, JOIN },     { MUSTER_RDZV_WAITING, 0, 3, JOIN },
        { MUSTER_RDZV_PEERS_LOST, 0, 3, JOIN },   { MUSTER_RDZV_REMOVED, 0, 3, JOIN },
        { MUSTER_RDZV_BACKEND_DOWN, 0, 3, JOIN }, { MUSTER_RDZV_BACKEND_UP, 0, 3, JOIN },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_event event = { .size = sizeof event, .type = rows[i].type, .request = rows[i].request };
        struct muster_rdzv_event whole;
        struct mu_plugin_asks asks = { .count = 0 };

        ask(&asks, CLOSE);
        ask(&asks, LOOK);
        ask(&asks, JOIN);
        assert_true(take(&asks, &event, &whole));
        assert_int_equal(asks.count, rows[i].left);
        assert_int_equal(asks.items[asks.count - 1].request, rows[i].newest);
    }
}

static void events_of_other_versions_are_made_whole(void **state)
{
    struct mu_plugin_asks asks = { .count = 0 };
    struct muster_rdzv_event event = { .type = MUSTER_RDZV_FAILED, .round = 7, .request = JOIN }, whole;

    (void)state;
    event.size = offsetof(struct muster_rdzv_event, info) - 1;
    assert_int_equal(mu_plugin_take_event(&asks, &event, &whole), MU_PLUGIN_SHORT);
    event.size = OLD_SIZE; /* what stands in the place of `request` is padding */
    assert_true(take(&asks, &event, &whole));
    assert_int_equal(whole.request, MEMBERSHIP);
    assert_int_equal(whole.round, 7);
    event.size = sizeof event + 64;
    assert_true(take(&asks, &event, &whole));
    assert_int_equal(whole.request, JOIN);
    event.request = (enum muster_rdzv_request)99;
    assert_true(take(&asks, &event, &whole));
    assert_int_equal(whole.request, MEMBERSHIP);
}

static void ask_and_tell(struct mu_plugin_asks *asks, enum muster_rdzv_request request,
                         enum muster_rdzv_event_type type)
{
    struct muster_rdzv_event event = { .size = sizeof event, .type = type }, whole;

    mu_plugin_ask(asks, request);
    assert_int_equal(mu_plugin_take_event(asks, &event, &whole), MU_PLUGIN_EARLY);
    mu_plugin_asked(asks);
}

/* Each request whose call told something is answered, or its owner would wait for ever. */
static void what_was_told_too_early_becomes_an_error(void **state)
{
    struct mu_plugin_asks asks = { .count = 0 };
    struct muster_error error;
    struct muster_rdzv_event event;

    (void)state;
    assert_null(mu_plugin_early(&asks));
    ask(&asks, CLOSE);
    ask_and_tell(&asks, LOOK, MUSTER_RDZV_LOOKED);
    ask_and_tell(&asks, JOIN, MUSTER_RDZV_PROGRESS);
    assert_int_equal(mu_plugin_early(&asks)->request, LOOK);
    assert_int_equal(mu_plugin_early(&asks)->told, MUSTER_RDZV_LOOKED);
    assert_true(mu_plugin_answer_early(&asks, "odd", &error, &event));
    assert_true(event.type == MUSTER_RDZV_LOOKED && event.request == LOOK && event.error == &error);
    assert_string_equal(error.text, "the rendezvous back end 'odd' told 'looked' inside of a call; expected that it "
                                    "tells later, from the loop");
    assert_int_equal(mu_plugin_early(&asks)->request, JOIN);
    assert_int_equal(mu_plugin_early(&asks)->told, MUSTER_RDZV_PROGRESS);
    assert_true(mu_plugin_answer_early(&asks, "odd", &error, &event));
    assert_true(event.type == MUSTER_RDZV_FAILED && event.request == JOIN);
    assert_false(mu_plugin_answer_early(&asks, "odd", &error, &event));
    assert_null(mu_plugin_early(&asks));
    assert_int_equal(asks.count, 1); /* the close goes on */
    ask_and_tell(&asks, JOIN, MUSTER_RDZV_JOINED);
    ask(&asks, LEAVE); /* nobody waits for the join any more */
    assert_null(mu_plugin_early(&asks));
}

static void its_creation_is_not_waited_for(void **state)
{
    struct mu_plugin_asks asks = { .count = 0 };

    (void)state;
    ask(&asks, MUSTER_RDZV_REQUEST_UNKNOWN);
    assert_int_equal(asks.count, 0);
    ask_and_tell(&asks, MUSTER_RDZV_REQUEST_UNKNOWN, MUSTER_RDZV_CLOSED);
    assert_int_equal(mu_plugin_early(&asks)->told, MUSTER_RDZV_CLOSED);
}

static void ignore(struct muster_handler *handler)
{
    (void)handler;
}

static void ignore_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    (void)handler;
    (void)done;
    (void)ctx;
}

#define WHOLE .join = ignore, .leave = ignore, .close = ignore, .look = ignore, .free = ignore_free
enum { OPS_MIN = offsetof(struct muster_handler_ops, endpoint) };

static void a_handler_is_accepted_or_given_back(void **state)
{
    static const struct {
        int rc;
        bool is_early, has_no_ops;
        struct muster_handler_ops ops;
        int code;
        const char *text;
        bool is_kept, is_freed; /* by the caller, if it is not accepted */
    } rows[] = {
        { 0, false, false, { OPS_MIN, "mine", WHOLE }, 0, "", true, true },
        { MUSTER_ELOST, false, false, { OPS_MIN, "mine", WHOLE }, MUSTER_ELOST, "", false, false },
        { 3, false, false, { OPS_MIN, "mine", WHOLE }, MUSTER_EINTERNAL, "returned 3", true, true },
        { 0, true, false, { OPS_MIN, "mine", WHOLE }, MUSTER_EINTERNAL, "told 'closed' before", true, true },
        { 0, false, true, { 0 }, MUSTER_EINTERNAL, "it gave no handler", true, false },
        { 0, false, false, { OPS_MIN - 1, "mine", WHOLE }, MUSTER_EINTERNAL, "table has", true, false },
        { 0, false, false, { OPS_MIN, "mine", .free = ignore_free }, MUSTER_EINTERNAL, "lacks one of", true, true },
        { 0, false, false, { OPS_MIN, "mine", .join = ignore }, MUSTER_EINTERNAL, "lacks one of", true, false },
        { 0, false, false, { OPS_MIN, "yours", WHOLE }, MUSTER_EINVAL, "own name 'yours'", true, true },
        { 0, false, false, { OPS_MIN, NULL, WHOLE }, MUSTER_EINVAL, "own name ''", true, true },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_handler made = { rows[i].has_no_ops ? NULL : &rows[i].ops }, *handler = &made;
        struct mu_plugin_asks asks = { .count = 0 };
        struct muster_error error = { 0 };

        if (rows[i].is_early)
            ask_and_tell(&asks, MUSTER_RDZV_REQUEST_UNKNOWN, MUSTER_RDZV_CLOSED);
        else
            ask(&asks, MUSTER_RDZV_REQUEST_UNKNOWN);
        assert_int_equal(mu_plugin_check_created(&asks, rows[i].rc, "mine", &handler, &error), rows[i].code);
        assert_non_null(strstr(error.text, rows[i].text));
        assert_ptr_equal(handler, rows[i].is_kept ? &made : NULL);
        assert_int_equal(mu_plugin_can_be_freed(handler), rows[i].is_freed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_belongs_to_the_oldest_that_it_can_answer),
        cmocka_unit_test(an_answer_ends_what_it_answers_alone),
        cmocka_unit_test(events_of_other_versions_are_made_whole),
        cmocka_unit_test(what_was_told_too_early_becomes_an_error),
        cmocka_unit_test(its_creation_is_not_waited_for),
        cmocka_unit_test(a_handler_is_accepted_or_given_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
