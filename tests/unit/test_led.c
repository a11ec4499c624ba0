/* An agent in a round that has a leader: every state with every event, and the limits of a done node's wait.
 *
 * A script is a list of events. What comes of the last one is written as its effects, "->" and the state. */
#include "agent/led.h"
#include "pure.h"

#include <inttypes.h>
#include <stdio.h>

enum { T0 = 1000, TRACE_MAX = 4096 };

static struct mu_led led;
static uint64_t now_ms;

static const struct muster_error refused = { .code = MUSTER_ERDZV_STATE, .text = "no member any more" };
static const struct mu_part_verdict good = { .succeeded = true }, bad = { .cause = "rank 3 failed; none left" };
static const struct mu_round joined = { .round = 5, .rank = 1, .world_size = 3, .led = true };

static const struct {
    const char *name;
    struct mu_completion_event event;
} events[] = {
#define EVENT(name, which, ...)                                                                                        \
    {                                                                                                                  \
        name,                                                                                                          \
        {                                                                                                              \
            .type = MU_COMPLETION_ON_##which, __VA_ARGS__                                                              \
        }                                                                                                              \
    }
    EVENT("start", START, .round = -1, .start = &joined),
    EVENT("stop", STOP, .round = -1),
    EVENT("lost", LOST, .round = 5, .text = "lost node9: its agent was killed"),
    EVENT("lost, nobody knows why", LOST, .round = 5),
    EVENT("old lost", LOST, .round = 4, .text = "lost node9"),
    EVENT("waiting", WAITING, .round = 5, .rank = 2, .text = "node8, node9 want to join"),
    EVENT("removed", REMOVED, .round = 5),
    EVENT("old removed", REMOVED, .round = 4),
    EVENT("closed", CLOSED, .round = -1),
    EVENT("succeeded", CLOSED, .round = -1, .verdict = &good),
    EVENT("failed", CLOSED, .round = -1, .verdict = &bad),
    EVENT("close failed", CLOSE_FAILED, .round = -1),
    EVENT("down", BACKEND_DOWN, .round = -1, .away_ms = 500),
    EVENT("up", BACKEND_UP, .round = -1),
    EVENT("done", DONE, .round = -1),
    EVENT("worker failed", WORKER_FAILED, .round = -1, .rank = 7, .text = "exit code 1"),
    EVENT("leave", NOTE, .round = -1, .note = MU_NOTE_LEFT, .text = "SIGTERM"),
    EVENT("leave, killed", NOTE, .round = -1, .note = MU_NOTE_LOST, .text = "its launcher was killed"),
    EVENT("again", NOTE, .round = -1, .note = MU_NOTE_AGAIN, .text = "lost node9"),
    EVENT("listen", LISTEN, .round = -1),
    EVENT("reported", REPORTED, .round = -1),
    EVENT("refused", REPORTED, .round = -1, .error = &refused),
    EVENT("time", TIME, .round = -1),
};

static size_t show(char *text, size_t room, const struct mu_completion_effect *e)
{
    static const char *const ends[] = { "failed", "done", "again", "left", "lost" };

    switch (e->type) {
    case MU_COMPLETION_DO_REPORT:
        return (size_t)snprintf(text, room, "report %s %" PRId64 " '%s' ", ends[e->report->end], e->report->rank,
                                e->report->text);
    case MU_COMPLETION_DO_LOST:
        return (size_t)snprintf(text, room, "lost '%s' ", e->text);
    case MU_COMPLETION_DO_WAITING:
        return (size_t)snprintf(text, room, "%" PRId64 " wait '%s' ", e->number, e->text);
    case MU_COMPLETION_DO_JOB_FAILED:
        return (size_t)snprintf(text, room, "job failed '%s' ", e->text);
    case MU_COMPLETION_DO_END:
        return (size_t)snprintf(text, room, "end %s '%s' ", mu_completion_end_text(e->end), e->text);
    case MU_COMPLETION_DO_ASK:
    case MU_COMPLETION_DO_CLOSE:
    case MU_COMPLETION_DO_PEER_FAILED:
    case MU_COMPLETION_DO_WARN:
        break;
    }
    fail_msg("effect %d is not of this machine", (int)e->type);
    return 0;
}

static void step(struct mu_completion_event event, char trace[static TRACE_MAX])
{
    static struct mu_completion_effects effects;
    size_t used = 0;

    event.now_ms = now_ms;
    mu_led_step(&led, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        used += show(trace + used, TRACE_MAX - used, &effects.items[i]);
    (void)snprintf(trace + used, TRACE_MAX - used, "-> %s", mu_led_state_text(led.state));
}

/* Gives what comes of the last event; "+N" lets N ms pass. */
static const char *play(const char *script)
{
    static char trace[TRACE_MAX];

    while (*script != '\0') {
        size_t len = strcspn(script, "|"), i;

        if (*script == '+')
            now_ms += (uint64_t)strtoull(script + 1, NULL, 10);
        for (i = 0; *script != '+' && i < COUNT(events); i++)
            if (strlen(events[i].name) == len && memcmp(script, events[i].name, len) == 0)
                break;
        if (i == COUNT(events))
            fail_msg("no such event: %.*s", (int)len, script);
        if (*script != '+')
            step(events[i].event, trace);
        script += len + (script[len] == '|');
    }
    return trace;
}

static void begin(uint64_t barrier_ms)
{
    now_ms = T0;
    mu_led_init(&led, barrier_ms);
}

#define SUCCEEDED "this node's workers have succeeded"
#define REGROUP "; " SUCCEEDED ", so it ends and the other nodes regroup' -> ended"
#define LOST "lost node9: its agent was killed"
#define GONE_ON "end over '" SUCCEEDED "; the other nodes go on without it' -> ended"
#define UNJUDGED                                                                                                       \
    "end over '" SUCCEEDED "; the job was closed without a verdict: ending without waiting for the other nodes' -> "   \
    "ended"
#define FAILED "the job has failed: rank 3 failed; none left"

struct table {
    const char *path; /* to the state */
    struct {
        const char *event, *trace;
    } rows[44];
};

static const struct table tables[] = {
    { "stop",
      { { "start", "-> watching" },
        { "stop", "-> idle" },
        { "lost", "-> idle" },
        { "waiting", "-> idle" },
        { "removed", "-> idle" },
        { "closed", "-> idle" },
        { "succeeded", "-> idle" },
        { "failed", "-> idle" },
        { "down", "-> idle" },
        { "up", "-> idle" },
        { "done", "-> idle" },
        { "worker failed", "-> idle" },
        { "leave", "-> idle" },
        { "again", "-> idle" },
        { "reported", "-> idle" },
        { "time", "-> idle" } } },
    { "start",
      { { "stop", "-> idle" },
        { "lost", "lost '" LOST "' -> watching" },
        { "lost, nobody knows why", "lost 'lost a node' -> watching" },
        { "old lost", "-> watching" },
        { "waiting", "2 wait 'node8, node9 want to join' -> watching" },
        { "removed", "-> watching" },
        { "old removed|done", "report done -1 '' -> reporting" },
        { "removed|done", GONE_ON },
        { "closed", "-> watching" },
        { "closed|lost", "job failed 'the job was closed without a verdict; " LOST "' -> watching" },
        { "closed|waiting", "-> watching" },
        { "closed|done|reported", UNJUDGED },
        { "succeeded", "-> watching" },
        { "succeeded|done|reported", "end all done 'all 3 nodes are done' -> ended" },
        { "failed", "job failed '" FAILED "' -> watching" },
        { "failed|leave", "-> watching" },
        { "down", "-> watching" },
        { "up", "-> watching" },
        { "done", "report done -1 '' -> reporting" },
        { "worker failed", "report failed 7 'exit code 1' -> watching" },
        { "worker failed|worker failed", "-> watching" },
        { "worker failed|lost", "lost '" LOST "' -> watching" },
        { "worker failed|leave", "report left -1 'SIGTERM' -> watching" },
        { "leave", "report left -1 'SIGTERM' -> watching" },
        { "leave|leave", "-> watching" },
        { "leave|worker failed", "-> watching" },
        { "leave, killed", "report lost -1 'its launcher was killed' -> watching" },
        { "worker failed|leave, killed", "report lost -1 'its launcher was killed' -> watching" },
        { "leave|leave, killed", "-> watching" },
        { "again", "report again -1 'lost node9' -> watching" },
        { "waiting|again", "report again -1 'lost node9' -> watching" },
        { "again|again", "-> watching" },
        { "lost|again", "-> watching" }, /* the leader knows */
        { "lost|stop|start|again", "report again -1 'lost node9' -> watching" },
        { "worker failed|again", "-> watching" },
        { "again|leave", "report left -1 'SIGTERM' -> watching" },
        { "again|worker failed", "report failed 7 'exit code 1' -> watching" },
        { "worker failed|stop|start|worker failed", "report failed 7 'exit code 1' -> watching" },
        { "listen", "-> watching" },
        { "reported", "-> watching" },
        { "time", "-> watching" } } },
    { "start|done",
      { { "stop", "-> idle" },
        { "lost", "-> reporting" },
        { "lost|reported", "end behind '" LOST REGROUP },
        { "lost|stop|start|done|reported", "-> waiting" },
        { "waiting|reported", "end behind 'node8, node9 want to join" REGROUP },
        { "old lost|reported", "-> waiting" },
        { "removed", GONE_ON },
        { "closed", "-> reporting" },
        { "closed|reported", UNJUDGED },
        { "succeeded", "end all done 'all 3 nodes are done' -> ended" },
        { "failed", "end over '" FAILED "' -> ended" },
        { "done", "-> reporting" },
        { "leave", "-> reporting" },
        { "again", "-> reporting" },
        { "reported", "-> waiting" },
        { "refused", "end over '" SUCCEEDED "; the other nodes could not be told: no member any more' -> ended" } } },
    { "start|done|reported",
      { { "stop", "-> idle" },
        { "lost", "end behind '" LOST REGROUP },
        { "waiting", "end behind 'node8, node9 want to join" REGROUP },
        { "old lost", "-> waiting" },
        { "removed", GONE_ON },
        { "old removed", "-> waiting" },
        { "closed", UNJUDGED },
        { "succeeded", "end all done 'all 3 nodes are done' -> ended" },
        { "failed", "end over '" FAILED "' -> ended" },
        { "leave", "-> waiting" },
        { "reported", "-> waiting" },
        { "refused", "-> waiting" } } },
    { "start|done|reported|succeeded",
      { { "stop", "-> idle" },
        { "start", "-> watching" },
        { "lost", "-> ended" },
        { "removed", "-> ended" },
        { "failed", "-> ended" },
        { "down", "-> ended" },
        { "leave", "-> ended" } } },
};

static void each_event_in_each_state_has_its_effects(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(tables); i++) {
        for (size_t k = 0; k < COUNT(tables[i].rows) && tables[i].rows[k].event != NULL; k++) {
            const char *trace;

            begin(UINT64_MAX);
            (void)play(tables[i].path);
            trace = play(tables[i].rows[k].event);
            if (strcmp(trace, tables[i].rows[k].trace) != 0)
                fail_msg("%s | %s: '%s' instead of '%s'", tables[i].path, tables[i].rows[k].event, trace,
                         tables[i].rows[k].trace);
        }
    }
}

#define LATE "end timeout '" SUCCEEDED "; the other nodes were not done in time' -> ended"
#define AWAY(seconds)                                                                                                  \
    "end away '" SUCCEEDED ", and the store has not answered for " #seconds                                            \
    " s: ending without waiting for the other nodes' -> ended"

static void a_done_node_waits_as_long_as_it_is_to(void **state)
{
    static const struct {
        uint64_t barrier_ms;
        const char *script, *trace;
        uint64_t left_ms; /* until TIME is wanted; UINT64_MAX: it is not */
    } rows[] = {
        { UINT64_MAX, "start|+100000|time", "-> watching", UINT64_MAX },
        { UINT64_MAX, "start|done|reported|+1000000|time", "-> waiting", UINT64_MAX },
        { 60000, "start|+100000|done|reported|+59999|time", "-> waiting", 1 },
        { 60000, "start|done|reported|+60000|time", LATE, UINT64_MAX },
        { 60000, "start|done|+60000|time", LATE, UINT64_MAX },
        { 0, "start|done", "report done -1 '' -> reporting", MU_ASK_TIMEOUT_MS }, /* it is written all the same */
        { 0, "start|done|+9999|reported", LATE, UINT64_MAX },
        { 0, "start|done|reported", "-> waiting", MU_LED_CLOSE_MS }, /* it may have been the last */
        { 0, "start|done|reported|close failed", "-> waiting", MU_LED_CLOSE_MS },
        { 0, "start|done|reported|+1000|time", LATE, UINT64_MAX },
        { UINT64_MAX, "start|done|reported|down", "-> waiting", MU_COMPLETION_SILENT_MS - 500 },
        { UINT64_MAX, "start|done|reported|down|+10000|down|+19500|time", AWAY(30), UINT64_MAX },
        { UINT64_MAX, "start|done|down|+29500|time", AWAY(30), UINT64_MAX },
        { UINT64_MAX, "start|done|reported|down|+29000|up|+10000|time", "-> waiting", UINT64_MAX },
        { UINT64_MAX, "start|down|+100000|time", "-> watching", UINT64_MAX },
        { UINT64_MAX, "start|down|+100000|done", "report done -1 '' -> reporting", MU_COMPLETION_SILENT_MS },
        { UINT64_MAX, "start|down|done|stop|start|done", "report done -1 '' -> reporting", UINT64_MAX },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint64_t due_ms;

        begin(rows[i].barrier_ms);
        assert_string_equal(play(rows[i].script), rows[i].trace);
        due_ms = mu_led_deadline_ms(&led);
        assert_true((due_ms == UINT64_MAX ? UINT64_MAX : due_ms - now_ms) == rows[i].left_ms);
    }
}

static void a_node_alone_is_one_node(void **state)
{
    static const struct mu_round alone = { .round = 0, .world_size = 1, .led = true };
    char trace[TRACE_MAX];

    (void)state;
    begin(UINT64_MAX);
    step((struct mu_completion_event){ .type = MU_COMPLETION_ON_START, .round = -1, .start = &alone }, trace);
    assert_string_equal(play("done|reported|succeeded"), "end all done '1 node is done' -> ended");
}

static void long_texts_are_cut(void **state)
{
    char text[4096], trace[TRACE_MAX];
    struct mu_part_verdict verdict = { .cause = text };

    (void)state;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    begin(UINT64_MAX);
    (void)play("start");
    step((struct mu_completion_event){ .type = MU_COMPLETION_ON_WORKER_FAILED, .round = -1, .text = text }, trace);
    assert_int_equal(strlen(led.report.text), MU_PART_REPORT_MAX - 1);
    step((struct mu_completion_event){ .type = MU_COMPLETION_ON_CLOSED, .round = -1, .verdict = &verdict }, trace);
    assert_true(strlen(led.text) < sizeof led.text);
    verdict.cause = NULL;
    step((struct mu_completion_event){ .type = MU_COMPLETION_ON_CLOSED, .round = -1, .verdict = &verdict }, trace);
    assert_string_equal(trace, "job failed 'the job has failed: nobody knows why' -> watching");
}

static void a_seat_is_what_the_agents_would_have_agreed_on(void **state)
{
    const struct mu_part_seat seat = { .count = 2,
                                       .base_rank = 8,
                                       .world_size = 16,
                                       .base_role_rank = 4,
                                       .role_world_size = 12,
                                       .why = "lost node9; restarting with 3 nodes" };
    struct mu_ranks_result ranks = mu_led_ranks(&seat);

    (void)state;
    assert_true(ranks.shared);
    assert_int_equal(ranks.count, 2);
    assert_int_equal(ranks.base_rank, 8);
    assert_int_equal(ranks.world_size, 16);
    assert_int_equal(ranks.base_role_rank, 4);
    assert_int_equal(ranks.role_world_size, 12);
    assert_string_equal(ranks.settled, "lost node9; restarting with 3 nodes");
    assert_int_equal(ranks.master_port, 0);
    ranks = mu_led_ranks(&(struct mu_part_seat){ .world_size = 1 });
    assert_string_equal(ranks.settled, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_event_in_each_state_has_its_effects),
        cmocka_unit_test(a_done_node_waits_as_long_as_it_is_to),
        cmocka_unit_test(a_node_alone_is_one_node),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(a_seat_is_what_the_agents_would_have_agreed_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
