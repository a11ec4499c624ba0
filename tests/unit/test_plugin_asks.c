/* Somebody else's back end: what was asked of it, what its events answer, and every state with every event. */
#include "handler/plugin_asks.h"
#include "pure.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOIN MUSTER_RDZV_REQUEST_JOIN
#define LEAVE MUSTER_RDZV_REQUEST_LEAVE
#define CLOSE MUSTER_RDZV_REQUEST_CLOSE
#define LOOK MUSTER_RDZV_REQUEST_LOOK
#define MEMBERSHIP MUSTER_RDZV_REQUEST_MEMBERSHIP

static void serve(struct mu_plugin_machine *m)
{
    mu_plugin_init(m, "odd");
    m->asks_count = 0;
    m->state = MU_PLUGIN_SERVING;
}

static struct mu_plugin_effects step(struct mu_plugin_machine *m, struct mu_plugin_event event)
{
    struct mu_plugin_effects effects;

    mu_plugin_step(m, &event, &effects);
    return effects;
}

static void ask(struct mu_plugin_machine *m, enum muster_rdzv_request request)
{
    assert_int_equal(step(m, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_ASKED, .request = request }).request,
                     request);
    assert_int_equal(step(m, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_RETURNED }).count, 0);
}

static bool take(struct mu_plugin_machine *m, const struct muster_rdzv_event *event, struct muster_rdzv_event *whole)
{
    struct mu_plugin_effects effects = step(m, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_TOLD, .told = event });

    *whole = effects.tell;
    return effects.count == 1 && effects.items[0] == MU_PLUGIN_DO_TELL;
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
        struct mu_plugin_machine m;

        serve(&m);
        for (unsigned n = 0; n < rows[i].count; n++)
            ask(&m, rows[i].asked[n]);
        assert_true(take(&m, &event, &whole));
        assert_int_equal(whole.request, rows[i].failed);
        assert_int_equal(whole.size, sizeof whole);
        for (unsigned n = 0; n < m.asks_count; n++)
            assert_int_not_equal(m.asks[n].request, rows[i].failed); /* it is answered */
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
        { MUSTER_RDZV_JOINED, 0, 2, LOOK },
        { MUSTER_RDZV_CLOSED, 0, 2, JOIN },
        { MUSTER_RDZV_LOOKED, 0, 2, JOIN },
        { MUSTER_RDZV_LEFT, 0, 3, JOIN },
        { MUSTER_RDZV_FAILED, CLOSE, 2, JOIN },
        { MUSTER_RDZV_FAILED, MEMBERSHIP, 3, JOIN },
        { MUSTER_RDZV_PROGRESS, 0, 3, JOIN },
        { MUSTER_RDZV_WAITING, 0, 3, JOIN },
        { MUSTER_RDZV_PEERS_LOST, 0, 3, JOIN },
        { MUSTER_RDZV_REMOVED, 0, 3, JOIN },
        { MUSTER_RDZV_BACKEND_DOWN, 0, 3, JOIN },
        { MUSTER_RDZV_BACKEND_UP, 0, 3, JOIN },
        { (enum muster_rdzv_event_type)99, 0, 3, JOIN }, /* of a newer muster.h */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_event event = { .size = sizeof event, .type = rows[i].type, .request = rows[i].request };
        struct muster_rdzv_event whole;
        struct mu_plugin_machine m;

        serve(&m);
        ask(&m, CLOSE);
        ask(&m, LOOK);
        ask(&m, JOIN);
        assert_true(take(&m, &event, &whole));
        assert_int_equal(m.asks_count, rows[i].left);
        assert_int_equal(m.asks[m.asks_count - 1].request, rows[i].newest);
    }
}

static void events_of_other_versions_are_made_whole(void **state)
{
    struct mu_plugin_machine m;
    struct muster_rdzv_event event = { .type = MUSTER_RDZV_FAILED, .round = 7, .request = JOIN }, whole;

    (void)state;
    serve(&m);
    event.size = OLD_SIZE; /* what stands in the place of `request` is padding */
    assert_true(take(&m, &event, &whole));
    assert_int_equal(whole.request, MEMBERSHIP);
    assert_int_equal(whole.round, 7);
    event.size = sizeof event + 64;
    assert_true(take(&m, &event, &whole));
    assert_int_equal(whole.request, JOIN);
    event.request = (enum muster_rdzv_request)99;
    assert_true(take(&m, &event, &whole));
    assert_int_equal(whole.request, MEMBERSHIP);
}

static void tell_early(struct mu_plugin_machine *m, enum muster_rdzv_event_type type)
{
    const struct muster_rdzv_event event = { .size = sizeof event, .type = type };

    assert_int_equal(step(m, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_TOLD, .told = &event }).count, 0);
    assert_false(mu_plugin_wants_turn(m)); /* not before the call has returned */
}

static void ask_and_tell(struct mu_plugin_machine *m, enum muster_rdzv_request request,
                         enum muster_rdzv_event_type type)
{
    (void)step(m, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_ASKED, .request = request });
    tell_early(m, type);
    (void)step(m, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_RETURNED });
    assert_true(mu_plugin_wants_turn(m));
}

/* Each request whose call told something is answered, or its owner would wait for ever. */
static void what_was_told_too_early_becomes_an_error(void **state)
{
    static const struct {
        enum muster_rdzv_request request;
        enum muster_rdzv_event_type told;
        const char *text;
    } rows[] = {
        { LOOK, MUSTER_RDZV_LOOKED,
          "the rendezvous back end 'odd' told 'looked' inside of a call; expected that it tells later, from the loop" },
        { JOIN, MUSTER_RDZV_FAILED,
          "the rendezvous back end 'odd' told 'progress' inside of a call; expected that it tells later, from the "
          "loop" },
    };
    const struct mu_plugin_event turn = { .type = MU_PLUGIN_ON_TURN };
    struct mu_plugin_machine m;

    (void)state;
    serve(&m);
    ask(&m, CLOSE);
    assert_false(mu_plugin_wants_turn(&m));
    ask_and_tell(&m, LOOK, MUSTER_RDZV_LOOKED);
    ask_and_tell(&m, JOIN, MUSTER_RDZV_PROGRESS);
    for (size_t i = 0; i < COUNT(rows); i++) { /* one a turn, the oldest first */
        struct mu_plugin_effects effects;

        assert_true(mu_plugin_wants_turn(&m));
        mu_plugin_step(&m, &turn, &effects);
        assert_true(effects.count == 1 && effects.items[0] == MU_PLUGIN_DO_TELL);
        assert_int_equal(effects.tell.type, rows[i].told);
        assert_int_equal(effects.tell.request, rows[i].request);
        assert_ptr_equal(effects.tell.error, &effects.error);
        assert_int_equal(effects.error.code, MUSTER_EINTERNAL);
        assert_string_equal(effects.error.text, rows[i].text);
    }
    assert_false(mu_plugin_wants_turn(&m));
    assert_int_equal(step(&m, turn).count, 0);
    assert_int_equal(m.asks_count, 1); /* the close goes on */
    ask_and_tell(&m, JOIN, MUSTER_RDZV_JOINED);
    ask(&m, LEAVE); /* nobody waits for the join any more */
    assert_false(mu_plugin_wants_turn(&m));
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
        bool is_kept;
        enum mu_plugin_state state; /* FREEING: it is given back */
    } rows[] = {
        { 0, false, false, { OPS_MIN, "mine", WHOLE }, 0, "", true, MU_PLUGIN_SERVING },
        { MUSTER_ELOST,
          false,
          false,
          { OPS_MIN, "mine", WHOLE },
          MUSTER_ELOST,
          "rendezvous back end 'mine' of 'a.so': the moon is away",
          false,
          MU_PLUGIN_OVER },
        { 3, false, false, { OPS_MIN, "mine", WHOLE }, MUSTER_EINTERNAL, "returned 3", true, MU_PLUGIN_FREEING },
        { 0,
          true,
          false,
          { OPS_MIN, "mine", WHOLE },
          MUSTER_EINTERNAL,
          "told 'closed' before",
          true,
          MU_PLUGIN_FREEING },
        { 0, false, true, { 0 }, MUSTER_EINTERNAL, "it gave no handler", true, MU_PLUGIN_OVER },
        { 0, false, false, { OPS_MIN - 1, "mine", WHOLE }, MUSTER_EINTERNAL, "table has", true, MU_PLUGIN_OVER },
        { 0,
          false,
          false,
          { OPS_MIN, "mine", .free = ignore_free },
          MUSTER_EINTERNAL,
          "lacks one of",
          true,
          MU_PLUGIN_FREEING },
        { 0,
          false,
          false,
          { OPS_MIN, "mine", .join = ignore },
          MUSTER_EINTERNAL,
          "lacks one of",
          true,
          MU_PLUGIN_OVER },
        { 0, false, false, { OPS_MIN, "yours", WHOLE }, MUSTER_EINVAL, "own name 'yours'", true, MU_PLUGIN_FREEING },
        { 0, false, false, { OPS_MIN, NULL, WHOLE }, MUSTER_EINVAL, "own name ''", true, MU_PLUGIN_FREEING },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_handler made = { rows[i].has_no_ops ? NULL : &rows[i].ops }, *handler = &made;
        const struct muster_error given = { .text = "the moon is away" };
        struct mu_plugin_machine m;
        struct muster_error error = { 0 };
        struct mu_plugin_effects effects;

        mu_plugin_init(&m, "mine");
        if (rows[i].is_early)
            tell_early(&m, MUSTER_RDZV_CLOSED);
        assert_int_equal(mu_plugin_check_created(&m, rows[i].rc, &given, "a.so", &handler, &error), rows[i].code);
        if (strstr(error.text, rows[i].text) == NULL)
            fail_msg("%s", error.text);
        assert_ptr_equal(handler, rows[i].is_kept ? &made : NULL);
        effects =
            step(&m, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_CREATED, .rc = rows[i].code, .handler = handler });
        assert_int_equal(m.state, rows[i].state);
        assert_int_equal(effects.count, rows[i].state == MU_PLUGIN_SERVING ? 0 : 1);
        if (effects.count == 1)
            assert_int_equal(effects.items[0],
                             rows[i].state == MU_PLUGIN_FREEING ? MU_PLUGIN_DO_FREE : MU_PLUGIN_DO_END);
    }
}

static void a_failure_without_words_is_given_some(void **state)
{
    struct muster_handler *handler = NULL;
    struct mu_plugin_machine m;
    struct muster_error error;

    (void)state;
    mu_plugin_init(&m, "mine");
    assert_int_equal(mu_plugin_check_created(&m, MUSTER_ELOST, &(struct muster_error){ 0 }, "a.so", &handler, &error),
                     MUSTER_ELOST);
    assert_non_null(strstr(error.text, muster_error_text(MUSTER_ELOST)));
}

/* ---- Every state with every event ---- */

static const struct muster_handler_ops whole_ops = { OPS_MIN, "odd", WHOLE };
static const struct muster_handler whole_handler = { &whole_ops };
static const struct muster_rdzv_event told_joined = { .size = sizeof told_joined, .type = MUSTER_RDZV_JOINED };
static const struct muster_rdzv_event told_short = { .size = offsetof(struct muster_rdzv_event, info) - 1 };

#define CREATED .type = MU_PLUGIN_ON_CREATED
#define ASKED .type = MU_PLUGIN_ON_ASKED, .request = JOIN
#define RETURNED .type = MU_PLUGIN_ON_RETURNED
#define TOLD .type = MU_PLUGIN_ON_TOLD
#define TURN .type = MU_PLUGIN_ON_TURN
#define FREE .type = MU_PLUGIN_ON_FREE
#define FREED .type = MU_PLUGIN_ON_FREED
#define LEFT_2 "rendezvous back end 'odd' did not give back 2 timers and watches; they are closed"

static void put_in(struct mu_plugin_machine *m, enum mu_plugin_state state)
{
    mu_plugin_init(m, "odd");
    m->asks_count = state == MU_PLUGIN_CREATING || state == MU_PLUGIN_CALLING ? 1 : 0;
    m->asks[0].request = state == MU_PLUGIN_CALLING ? JOIN : MUSTER_RDZV_REQUEST_UNKNOWN;
    m->state = state;
    m->services = 2;
}

/* Our own mistake: the step ends the process. */
static void never_comes(struct mu_plugin_machine *m, const struct mu_plugin_event *event)
{
    struct mu_plugin_effects effects;
    pid_t pid = fork();
    int status = 0;

    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(STDERR_FILENO);
        mu_plugin_step(m, event, &effects);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail_msg("event %d is taken in state %d", (int)event->type, (int)m->state);
}

static const char *effects_text(const struct mu_plugin_effects *effects, char text[static 512])
{
    static const char *const names[] = { [MU_PLUGIN_DO_CALL] = "call",
                                         [MU_PLUGIN_DO_TELL] = "tell",
                                         [MU_PLUGIN_DO_SAY] = "say",
                                         [MU_PLUGIN_DO_FREE] = "free",
                                         [MU_PLUGIN_DO_END] = "end" };

    text[0] = '\0';
    for (unsigned i = 0; i < effects->count; i++) {
        size_t used = strlen(text);

        (void)snprintf(text + used, 512 - used, "%s%s%s%s", used > 0 ? ", " : "", names[effects->items[i]],
                       effects->items[i] == MU_PLUGIN_DO_SAY ? " " : "",
                       effects->items[i] == MU_PLUGIN_DO_SAY ? effects->text : "");
    }
    return text;
}

static void every_event_in_every_state(void **state)
{
    static const struct {
        enum mu_plugin_state in;
        struct mu_plugin_event event;
        enum mu_plugin_state then;
        const char *effects; /* NULL: this never comes */
    } rows[] = {
        { MU_PLUGIN_CREATING, { CREATED }, MU_PLUGIN_SERVING, "" },
        { MU_PLUGIN_CREATING, { CREATED, .rc = -1, .handler = &whole_handler }, MU_PLUGIN_FREEING, "free" },
        { MU_PLUGIN_CREATING, { CREATED, .rc = -1 }, MU_PLUGIN_OVER, "say " LEFT_2 ", end" },
        { MU_PLUGIN_CREATING, { ASKED }, 0, NULL },
        { MU_PLUGIN_CREATING, { RETURNED }, 0, NULL },
        { MU_PLUGIN_CREATING, { TOLD, .told = &told_joined }, MU_PLUGIN_CREATING, "" },
        { MU_PLUGIN_CREATING, { TURN }, MU_PLUGIN_CREATING, "" },
        { MU_PLUGIN_CREATING, { FREE }, 0, NULL },
        { MU_PLUGIN_CREATING, { FREED }, 0, NULL },

        { MU_PLUGIN_SERVING, { CREATED }, 0, NULL },
        { MU_PLUGIN_SERVING, { ASKED }, MU_PLUGIN_CALLING, "call" },
        { MU_PLUGIN_SERVING, { RETURNED }, 0, NULL },
        { MU_PLUGIN_SERVING, { TOLD, .told = &told_joined }, MU_PLUGIN_SERVING, "tell" },
        { MU_PLUGIN_SERVING,
          { TOLD, .told = &told_short },
          MU_PLUGIN_SERVING,
          "say rendezvous back end 'odd' told an event of 15 bytes; dropped" },
        { MU_PLUGIN_SERVING, { TURN }, MU_PLUGIN_SERVING, "" },
        { MU_PLUGIN_SERVING, { FREE }, MU_PLUGIN_FREEING, "free" },
        { MU_PLUGIN_SERVING, { FREED }, 0, NULL },

        { MU_PLUGIN_CALLING, { CREATED }, 0, NULL },
        { MU_PLUGIN_CALLING, { ASKED }, 0, NULL },
        { MU_PLUGIN_CALLING, { RETURNED }, MU_PLUGIN_SERVING, "" },
        { MU_PLUGIN_CALLING, { TOLD, .told = &told_joined }, MU_PLUGIN_CALLING, "" },
        { MU_PLUGIN_CALLING, { TURN }, MU_PLUGIN_CALLING, "" },
        { MU_PLUGIN_CALLING, { FREE }, 0, NULL },
        { MU_PLUGIN_CALLING, { FREED }, 0, NULL },

        { MU_PLUGIN_FREEING, { CREATED }, 0, NULL },
        { MU_PLUGIN_FREEING, { ASKED }, 0, NULL },
        { MU_PLUGIN_FREEING, { RETURNED }, 0, NULL },
        { MU_PLUGIN_FREEING, { TOLD, .told = &told_joined }, MU_PLUGIN_FREEING, "" },
        { MU_PLUGIN_FREEING, { TURN }, MU_PLUGIN_FREEING, "" },
        { MU_PLUGIN_FREEING, { FREE }, 0, NULL },
        { MU_PLUGIN_FREEING, { FREED }, MU_PLUGIN_OVER, "say " LEFT_2 ", end" },

        { MU_PLUGIN_OVER, { CREATED }, 0, NULL },
        { MU_PLUGIN_OVER, { ASKED }, 0, NULL },
        { MU_PLUGIN_OVER, { RETURNED }, 0, NULL },
        { MU_PLUGIN_OVER, { TOLD, .told = &told_joined }, MU_PLUGIN_OVER, "" },
        { MU_PLUGIN_OVER, { TURN }, MU_PLUGIN_OVER, "" },
        { MU_PLUGIN_OVER, { FREE }, 0, NULL },
        { MU_PLUGIN_OVER,
          { FREED },
          MU_PLUGIN_OVER,
          "say rendezvous back end 'odd' said twice that its handler is freed" },
    };
    unsigned seen[MU_PLUGIN_OVER + 1] = { 0 };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_plugin_machine m;
        struct mu_plugin_effects effects;
        char text[512];

        put_in(&m, rows[i].in);
        seen[rows[i].in] |= 1U << rows[i].event.type;
        if (rows[i].effects == NULL) {
            never_comes(&m, &rows[i].event);
            continue;
        }
        mu_plugin_step(&m, &rows[i].event, &effects);
        assert_string_equal(effects_text(&effects, text), rows[i].effects);
        assert_int_equal(m.state, rows[i].then);
    }
    for (size_t i = 0; i < COUNT(seen); i++)
        assert_int_equal(seen[i], (1U << (MU_PLUGIN_ON_FREED + 1)) - 1); /* none is missing */
}

/* ---- What a back end may use ---- */

static void services_are_bounded_and_end_with_the_back_end(void **state)
{
    struct mu_plugin_machine m;

    (void)state;
    mu_plugin_init(&m, "odd");
    for (unsigned i = 0; i < MU_PLUGIN_SERVICES_MAX; i++)
        assert_true(mu_plugin_hold_service(&m));
    assert_false(mu_plugin_hold_service(&m));
    mu_plugin_drop_service(&m);
    assert_true(mu_plugin_hold_service(&m));
    put_in(&m, MU_PLUGIN_OVER);
    assert_false(mu_plugin_hold_service(&m)); /* it would never be given back */
}

static void a_descriptor_with_an_error_is_all_it_is_watched_for(void **state)
{
    enum { R = MUSTER_FD_READABLE, W = MUSTER_FD_WRITABLE };
    static const struct {
        bool has_failed;
        unsigned found, watched, told;
    } rows[] = {
        { false, R, R | W, R },    { false, R | W, W, W }, { true, 0, R, R },
        { true, 0, R | W, R | W }, { false, R, W, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(mu_plugin_ready(rows[i].has_failed, rows[i].found, rows[i].watched), rows[i].told);
}

static void a_service_is_what_can_be_had_of_what_was_asked_for(void **state)
{
    enum { R = MUSTER_FD_READABLE, W = MUSTER_FD_WRITABLE };
    static const struct {
        int fd;
        unsigned events, watched;
    } watches[] = { { 0, R, R }, { 3, R | W | 8, R | W }, { 3, W, W }, { -1, R, 0 }, { 3, 0, 0 }, { 3, 8, 0 } };
    static const int64_t delays_ms[][2] = { { -1, 0 }, { INT64_MIN, 0 }, { 0, 0 }, { 7, 7 }, { INT64_MAX, INT64_MAX } };

    (void)state;
    for (size_t i = 0; i < COUNT(watches); i++)
        assert_int_equal(mu_plugin_watched(watches[i].fd, watches[i].events), watches[i].watched);
    for (size_t i = 0; i < COUNT(delays_ms); i++)
        assert_int_equal(mu_plugin_delay_ms(delays_ms[i][0]), delays_ms[i][1]);
}

static void errors_of_a_back_end_are_never_success(void **state)
{
    static const int rows[][2] = { { MUSTER_ELOST, MUSTER_ELOST }, { 0, MUSTER_EINTERNAL }, { 3, MUSTER_EINTERNAL } };
    struct muster_error error;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(mu_plugin_fail(NULL, &error, rows[i][0], "odd 100%"), rows[i][1]);
        assert_string_equal(error.text, "odd 100%");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_belongs_to_the_oldest_that_it_can_answer),
        cmocka_unit_test(an_answer_ends_what_it_answers_alone),
        cmocka_unit_test(events_of_other_versions_are_made_whole),
        cmocka_unit_test(what_was_told_too_early_becomes_an_error),
        cmocka_unit_test(a_handler_is_accepted_or_given_back),
        cmocka_unit_test(a_failure_without_words_is_given_some),
        cmocka_unit_test(every_event_in_every_state),
        cmocka_unit_test(services_are_bounded_and_end_with_the_back_end),
        cmocka_unit_test(a_descriptor_with_an_error_is_all_it_is_watched_for),
        cmocka_unit_test(a_service_is_what_can_be_had_of_what_was_asked_for),
        cmocka_unit_test(errors_of_a_back_end_are_never_success),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
