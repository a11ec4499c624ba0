/* How a round ends, and how the job does: who is lost and who was done, the wait for the others, verdict and close. */
#include "agent/completion.h"
#include "ask_store.h"
#include "base/rng.h"
#include "failmalloc.h"
#include "pure.h"

enum { T0 = 1000 };

#define R "torch.rendezvous.job.3/torchelastic/agent/terminal_state"
#define T "muster.job/3.00000000000000ab/"
#define MARKS "set " T "done/1=done 1 me, add " T "done_count+1"
#define MIXED_MARKS MARKS ", add " R "/num_members+1"
#define PROBE "check muster.job/verdict"
#define LOOK "compare and set muster.job/budget=?"
#define GONE_ON "end over: this node's workers have succeeded; the other nodes go on without it"
#define FORGED(round, tag, rank)                                                                                       \
    "{\"verdict\": \"failed\", \"round\": " #round ", \"tag\": \"" tag "\", \"node\": \"x\", \"rank\": " #rank         \
    ", \"cause\": \"y\"}"
#define GOOD                                                                                                           \
    "{\"verdict\": \"succeeded\", \"round\": 3, \"tag\": \"00000000000000ab\", \"node\": \"h1\", \"rank\": 1, "        \
    "\"cause\": \"all workers have succeeded\"}"

struct scene {
    struct mu_completion *completion;
    char trace[8192];
    uint64_t now_ms, id; /* id: of the last request */
    int64_t ranks[64];   /* of what was asked */
    char keys[64][64];
};

static struct scene scene;

static void configure(struct scene *s, uint64_t barrier_ms)
{
    struct mu_completion_config config = { .run_id = "job", .node = "me", .host = "h1", .barrier_ms = barrier_ms };

    mu_completion_free(s->completion);
    assert_int_equal(mu_completion_new(&config, &s->completion, NULL), 0);
}

static int set_up(void **state)
{
    scene = (struct scene){ .now_ms = T0 };
    configure(&scene, UINT64_MAX);
    *state = &scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *s = *state;

    mu_completion_free(s->completion);
    return 0;
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static int show(char *text, size_t room, const struct mu_completion_effect *e)
{
    const struct mu_ask *a = &e->ask;

    switch (e->type) {
    case MU_COMPLETION_DO_CLOSE:
        return snprintf(text, room, "close");
    case MU_COMPLETION_DO_LOST:
        return snprintf(text, room, "%s", e->text);
    case MU_COMPLETION_DO_WAITING:
        return snprintf(text, room, "%" PRId64 " wait: %s", e->number, e->text);
    case MU_COMPLETION_DO_JOB_FAILED:
        return snprintf(text, room, "job failed: %s", e->text);
    case MU_COMPLETION_DO_PEER_FAILED:
        return snprintf(text, room, "%s", e->text);
    case MU_COMPLETION_DO_WARN:
        return snprintf(text, room, "warn: %s", e->text);
    case MU_COMPLETION_DO_END:
        return snprintf(text, room, "end %s: %s", mu_completion_end_text(e->end), e->text);
    case MU_COMPLETION_DO_ASK:
    case MU_COMPLETION_DO_REPORT: /* led.h's */
        break;
    }
    if (a->kind == MU_ASK_ADD)
        return snprintf(text, room, "add %.*s+%" PRId64, (int)a->key.len, a->key.data, a->number);
    if (a->kind == MU_ASK_SET || a->kind == MU_ASK_COMPARE_SET)
        return snprintf(text, room, "%s %.*s=%.*s", mu_ask_kind_text(a->kind), (int)a->key.len, a->key.data,
                        (int)a->value.len, a->value.data);
    return snprintf(text, room, "%s %.*s", mu_ask_kind_text(a->kind), (int)a->key.len, a->key.data);
}

static const char *step(struct scene *s, struct mu_completion_event event)
{
    struct mu_completion_effects effects;
    size_t used = 0;

    event.now_ms = s->now_ms;
    mu_completion_step(s->completion, &event, &effects);
    s->trace[0] = '\0';
    for (unsigned i = 0; i < effects.count; i++) {
        used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, "%s", i > 0 ? ", " : "");
        used += (size_t)show(s->trace + used, sizeof s->trace - used, &effects.items[i]);
        if (effects.items[i].type == MU_COMPLETION_DO_ASK) {
            const struct mu_ask *ask = &effects.items[i].ask;

            s->id = ask->id;
            (void)snprintf(s->keys[ask->id % COUNT(s->keys)], sizeof s->keys[0], "%.*s", (int)ask->key.len,
                           ask->key.data);
            s->ranks[ask->id % COUNT(s->ranks)] =
                ask->key.data[ask->key.len - 1] - '0'; /* if that is what it ends with */
        }
    }
    return s->trace;
}

static const char *simple(struct scene *s, enum mu_completion_event_type type)
{
    return step(s, (struct mu_completion_event){ .type = type, .round = -1 });
}

static const char *done(struct scene *s)
{
    return simple(s, MU_COMPLETION_ON_DONE);
}

static const char *pass(struct scene *s, uint64_t now_ms)
{
    s->now_ms = now_ms;
    return simple(s, MU_COMPLETION_ON_TIME);
}

static const char *answer_id(struct scene *s, uint64_t id, struct mu_answer given)
{
    char mark[MU_VANISHED_NOTE_MAX];

    given.id = id;
    if (given.found && given.value.len == 0) { /* a mark; its rank is the key's */
        mu_vanished_write_mark(mark,
                               strstr(s->keys[id % COUNT(s->keys)], "/heard/") != NULL ? MU_MARK_HEARD : MU_MARK_DONE,
                               s->ranks[id % COUNT(s->ranks)], "n7");
        given.value = mu_slice_str(mark);
    }
    return step(s, (struct mu_completion_event){ .type = MU_COMPLETION_ON_ANSWER, .answer = given });
}

static const char *answer(struct scene *s, struct mu_answer given)
{
    return answer_id(s, s->id, given);
}

static const char *number(struct scene *s, int64_t n)
{
    return answer(s, (struct mu_answer){ .number = n });
}

static const char *value(struct scene *s, const char *text)
{
    return answer(s, (struct mu_answer){ .value = mu_slice_str(text) });
}

static const char *found(struct scene *s, bool is)
{
    return answer(s, (struct mu_answer){ .found = is });
}

static const char *broken(struct scene *s, int code)
{
    struct muster_error error = { .code = code, .text = "broken" };

    return answer(s, (struct mu_answer){ .error = &error });
}

static const char *vanish(struct scene *s, int64_t rank, bool is_ours)
{
    struct mu_completion_peer peer = { .rank = rank, .ours = is_ours };

    return step(
        s, (struct mu_completion_event){ .type = MU_COMPLETION_ON_LOST, .round = 3, .lost = &peer, .lost_count = 1 });
}

/* One with a name, of which a note is looked for. */
static const char *vanish_named(struct scene *s, int64_t rank, const char *name)
{
    struct mu_completion_peer peer = { .rank = rank, .ours = true };

    (void)snprintf(peer.name, sizeof peer.name, "%s", name);
    return step(s, (struct mu_completion_event){ .type = MU_COMPLETION_ON_LOST,
                                                 .round = 3,
                                                 .lost = &peer,
                                                 .lost_count = 1,
                                                 .text = "no heartbeat for 15 s" });
}

static struct mu_round ours(int64_t world_size)
{
    return (struct mu_round){
        .round = 3, .tag = 0xab, .rank = 1, .world_size = world_size, .all_ours = true, .has_store = true
    };
}

static struct mu_round mixed(int64_t world_size)
{
    struct mu_round round = ours(world_size);

    round.all_ours = false;
    return round;
}

static const char *start(struct scene *s, struct mu_round round)
{
    return step(s, (struct mu_completion_event){ .type = MU_COMPLETION_ON_START, .start = &round });
}

static const char *fail_job(struct scene *s)
{
    return step(s, (struct mu_completion_event){ .type = MU_COMPLETION_ON_FAIL, .round = -1, .text = "exit code 3" });
}

/* ---- Who has left, who is lost ---- */

static const char *noting(struct scene *s, enum mu_vanished_note note, const char *why)
{
    return step(s,
                (struct mu_completion_event){ .type = MU_COMPLETION_ON_NOTE, .round = -1, .note = note, .text = why });
}

static const char *waiting(struct scene *s, int64_t count, const char *who)
{
    return step(
        s, (struct mu_completion_event){ .type = MU_COMPLETION_ON_WAITING, .round = 3, .rank = count, .text = who });
}

#define LOOKS(rank) "compare and set " T "done/" #rank "=?, compare and set " T "left/" #rank "=?"

static void who_leaves_a_round_says_why_first(void **state)
{
    struct scene *s = *state;

    assert_string_equal(noting(s, MU_NOTE_LEFT, "SIGTERM"), ""); /* there is no round yet */
    (void)start(s, ours(2));
    assert_string_equal(noting(s, MU_NOTE_AGAIN, "lost n7"),
                        "set " T "heard/1=heard 1 me, set " T "left/1=again: lost n7");
    assert_string_equal(noting(s, MU_NOTE_LEFT, "SIGTERM"), "set " T "left/1=left: SIGTERM");
    (void)start(s, mixed(2));
    assert_string_equal(noting(s, MU_NOTE_LEFT, "SIGTERM"), "set " T "left/1=left: SIGTERM");
    (void)start(s, (struct mu_round){ .round = 3, .world_size = 1, .all_ours = true, .has_store = true });
    assert_string_equal(noting(s, MU_NOTE_LEFT, "SIGTERM"), ""); /* nobody would read it */
    (void)start(s, ours(2)); /* it is as good as killed: that is no answer to a failure */
    assert_string_equal(noting(s, MU_NOTE_LOST, "killed"), "set " T "left/1=lost: killed");
}

static void a_member_that_left_a_note_has_left_and_another_one_is_lost(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    assert_string_equal(vanish_named(s, 2, "node9"), LOOKS(2));
    assert_string_equal(answer_id(s, s->id - 1, (struct mu_answer){ .found = false }), ""); /* the note may come yet */
    assert_string_equal(value(s, "left: SIGTERM"), "node9 left (SIGTERM)");
    (void)start(s, ours(3));
    (void)vanish_named(s, 2, "node9");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = false });
    assert_string_equal(value(s, "?"), "lost node9: no heartbeat for 15 s");
    (void)start(s, ours(3));
    (void)vanish_named(s, 2, "node9");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = false });
    assert_string_equal(broken(s, MUSTER_ELOST), "lost node9: no heartbeat for 15 s");
    (void)start(s, ours(3)); /* another one has found out first, and has left the round for the next */
    (void)vanish_named(s, 0, "node7");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = false });
    assert_string_equal(value(s, "again: node9 left (SIGTERM)"), "node9 left (SIGTERM)");
}

static void a_member_whose_agent_was_killed_is_lost(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    (void)vanish_named(s, 2, "node9");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = false });
    assert_string_equal(value(s, "lost: its agent was killed"), "lost node9: its agent was killed");
    (void)start(s, ours(2)); /* and so for who is done, and waits */
    (void)done(s);
    (void)number(s, 1);
    (void)vanish_named(s, 0, "node9");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = false });
    assert_string_equal(
        value(s, "lost: its agent was killed"),
        "end behind: lost node9: its agent was killed; this node's workers have succeeded, so it ends and the other "
        "nodes regroup");
}

/* What a keeper is to write for us; "": nothing. */
static const char *will(struct scene *s)
{
    static char all[512];
    char key[128], text[MU_VANISHED_NOTE_MAX];

    all[0] = '\0';
    if (mu_completion_will(s->completion, key, sizeof key, text))
        (void)snprintf(all, sizeof all, "%s=%s", key, text);
    return all;
}

static void a_will_is_there_while_the_others_would_miss_us(void **state)
{
    struct scene *s = *state;
    char tiny[8], text[MU_VANISHED_NOTE_MAX];

    assert_string_equal(will(s), ""); /* there is no round yet */
    (void)start(s, ours(2));
    assert_string_equal(will(s), T "left/1=lost: its agent was killed");
    assert_false(mu_completion_will(s->completion, tiny, sizeof tiny, text));
    (void)noting(s, MU_NOTE_LEFT, "SIGTERM"); /* we have said it ourselves */
    assert_string_equal(will(s), "");
    (void)start(s, mixed(2)); /* the next round */
    assert_string_equal(will(s), T "left/1=lost: its agent was killed");
    (void)noting(s, MU_NOTE_AGAIN, "exit code 3");
    assert_string_equal(will(s), "");
    (void)start(s, ours(2));
    (void)done(s);
    assert_string_equal(will(s), "");
    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_STOP);
    assert_string_equal(will(s), "");
    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_FAIL);
    assert_string_equal(will(s), "");
    (void)start(s, (struct mu_round){ .round = 3, .world_size = 1, .all_ours = true, .has_store = true });
    assert_string_equal(will(s), ""); /* nobody would read it */
    (void)start(s, (struct mu_round){ .round = -1, .world_size = 2, .all_ours = true, .has_store = true });
    assert_string_equal(will(s), ""); /* there are no notes without rounds */
}

static void nodes_that_want_to_join_do_not_hide_a_loss(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    assert_string_equal(waiting(s, 1, "node9 wants to join"), "1 wait: node9 wants to join");
    (void)start(s, ours(3));
    assert_string_equal(vanish_named(s, 2, "node7"), LOOKS(2));
    assert_string_equal(waiting(s, 1, "node9 wants to join"), "");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = false });
    assert_string_equal(value(s, "?"), "lost node7: no heartbeat for 15 s");
    (void)start(s, ours(3)); /* it was done */
    (void)vanish_named(s, 2, "node7");
    (void)waiting(s, 1, "node9 wants to join");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = true });
    assert_string_equal(value(s, "?"), "1 wait: node9 wants to join");
}

/* ---- Success ---- */

static void the_last_writes_the_verdict_closes_and_then_lets_the_others_go(void **state)
{
    struct scene *s = *state;

    assert_string_equal(start(s, mixed(2)), "");
    assert_string_equal(done(s), MIXED_MARKS);
    assert_string_equal(number(s, 2), "compare and set muster.job/verdict=" GOOD);
    assert_string_equal(value(s, GOOD), "close");
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "set " R "/last_member=<val_ignored>");
    assert_string_equal(answer(s, (struct mu_answer){ 0 }), "end all done: all 2 nodes are done");
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_ENDED);
    assert_int_equal(mu_completion_deadline_ms(s->completion), UINT64_MAX);
    assert_string_equal(simple(s, MU_COMPLETION_ON_REMOVED), "");
}

static void among_us_the_last_looks_at_all_marks_first(void **state)
{
    struct scene *s = *state;

    assert_string_equal(start(s, ours(3)), "");
    assert_string_equal(done(s), MARKS);
    assert_string_equal(number(s, 3), "get " T "last, compare and set " T "done/0=?, compare and set " T "done/2=?");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = true });
    assert_string_equal(found(s, true), LOOK);
    assert_string_equal(value(s, "1 3.00000000000000ab"), "compare and set muster.job/verdict=" GOOD);
    assert_string_equal(value(s, GOOD), "close");
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "set " T "last=<val_ignored>");
    assert_string_equal(answer(s, (struct mu_answer){ 0 }), "end all done: all 3 nodes are done");
}

/* The counter is more than the marks: others may have counted in a round of the same number, or twice; or somebody has
 * deleted a mark, and its node would look at that a minute later. */
static void a_counter_alone_ends_nothing(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    (void)done(s);
    (void)number(s, 3);
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = true });
    assert_string_equal(found(s, false), "set " T "last=look");
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WAITING);
    (void)answer_id(s, s->id - 5, (struct mu_answer){ 0 }); /* the mark */
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_SCAN_MS);
    assert_string_equal(pass(s, T0 + MU_COMPLETION_SCAN_MS),
                        "set " T "done/1=done 1 me, compare and set " T "done/2=?");
    assert_string_equal(found(s, true), LOOK);
}

/* The number of a round may come twice, with other members. */
static void another_round_of_the_same_number_has_other_keys(void **state)
{
    struct scene *s = *state;
    struct mu_round other = ours(2);

    other.tag = 0xcd;
    (void)start(s, other);
    assert_string_equal(
        done(s), "set muster.job/3.00000000000000cd/done/1=done 1 me, add muster.job/3.00000000000000cd/done_count+1");
    other.old_dialect = true; /* of nobody's concern where nobody of PyTorch looks */
    (void)start(s, other);
    assert_string_equal(
        done(s), "set muster.job/3.00000000000000cd/done/1=done 1 me, add muster.job/3.00000000000000cd/done_count+1");
}

static void a_round_that_is_not_the_jobs_any_more_does_not_end_it(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 2);
    assert_string_equal(found(s, true), LOOK);
    assert_string_equal(value(s, "1 4.00000000000000cd"), ""); /* is it? */
    assert_string_equal(simple(s, MU_COMPLETION_ON_REMOVED), GONE_ON);
    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 2);
    (void)found(s, true);
    (void)simple(s, MU_COMPLETION_ON_REMOVED);
    assert_string_equal(value(s, "1 4.00000000000000cd"), GONE_ON);
    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 2);
    (void)found(s, true);
    (void)value(s, "?");
    assert_string_equal(
        value(s,
              "{\"verdict\": \"failed\", \"round\": 3, \"tag\": \"00000000000000ab\", \"node\": \"n7\", \"rank\": 0, "
              "\"cause\": \"c\"}"),
        "end over: the job has failed: c");
}

static void the_others_wait_for_the_last_without_a_limit(void **state)
{
    struct scene *s = *state;

    (void)start(s, mixed(2));
    (void)done(s);
    assert_string_equal(number(s, 1), "get " R "/last_member");
    (void)start(s, ours(2));
    (void)done(s);
    assert_string_equal(number(s, 1), "get " T "last");
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_SCAN_SLOW_MS);
    s->now_ms += 50000;
    assert_string_equal(broken(s, MUSTER_ETIMEOUT), ""); /* not yet */
    assert_string_equal(pass(s, s->now_ms + MU_ASK_RETRY_MS), "get " T "last");
    assert_string_equal(value(s, "<val_ignored>"), "end all done: all 2 nodes are done");
}

static void a_limit_ends_the_wait(void **state)
{
    struct scene *s = *state;

    configure(s, 5000);
    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + 5000);
    assert_string_equal(pass(s, T0 + 5000),
                        "end timeout: this node's workers have succeeded; the other nodes were not done in time");
}

static void without_any_wait_the_mark_is_written_all_the_same(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    (void)start(s, ours(2));
    assert_string_equal(done(s), MARKS);
    assert_non_null(strstr(number(s, 1), "end timeout: "));
}

static void back_ends_without_rounds_have_the_barrier_only(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(2);

    round.round = -1;
    (void)start(s, round);
    assert_string_equal(done(s), "add job/torchelastic/agent/terminal_state/num_members+1");
    assert_string_equal(number(s, 2), "set job/torchelastic/agent/terminal_state/last_member=<val_ignored>");
    assert_string_equal(answer(s, (struct mu_answer){ 0 }), "end all done: all 2 nodes are done");
    (void)start(s, round);
    (void)done(s);
    assert_string_equal(number(s, 1), "get job/torchelastic/agent/terminal_state/last_member");
    assert_non_null(strstr(pass(s, T0 + MU_COMPLETION_BARRIER_MS), "end timeout")); /* nobody tells who is lost */
}

static void back_ends_without_a_store_are_closed_by_a_lone_node(void **state)
{
    struct scene *s = *state;
    struct mu_round round = { .round = 3, .world_size = 1 };

    (void)start(s, round);
    assert_string_equal(done(s), "close");
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "end all done: 1 node is done");
    round.world_size = 2;
    (void)start(s, round);
    assert_non_null(strstr(done(s), "end over: "));
}

static void in_1_13_there_is_a_key_for_each(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3);

    round.old_dialect = true;
    round.all_ours = false;
    round.rank = 0;
    (void)start(s, round);
    assert_string_equal(done(s), "set " R "0=0");
    assert_string_equal(answer(s, (struct mu_answer){ 0 }), "get " R "1, get " R "2");
    assert_string_equal(answer_id(s, s->id - 1, (struct mu_answer){ 0 }), "");
    assert_string_equal(answer(s, (struct mu_answer){ 0 }), "set " R "0.FIN=FIN, get " R "1.FIN, get " R "2.FIN");
    assert_string_equal(answer_id(s, s->id - 2, (struct mu_answer){ 0 }), "");
    assert_string_equal(answer_id(s, s->id - 1, (struct mu_answer){ 0 }), "");
    assert_non_null(strstr(answer(s, (struct mu_answer){ 0 }), "compare and set muster.job/verdict="));
    assert_string_equal(value(s, GOOD), "close");
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "end all done: all 3 nodes are done");
    round.rank = 2; /* who only tells that it has seen all */
    (void)start(s, round);
    (void)done(s);
    (void)answer(s, (struct mu_answer){ 0 });
    (void)answer_id(s, s->id - 1, (struct mu_answer){ 0 });
    assert_string_equal(answer(s, (struct mu_answer){ 0 }), "set " R "2.FIN=FIN");
    assert_non_null(strstr(answer(s, (struct mu_answer){ 0 }), "compare and set muster.job/verdict="));
}

/* ---- Who is lost, and who was done ---- */

static void a_member_without_a_mark_is_lost_and_told_of_once(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    assert_string_equal(vanish(s, 2, true), "compare and set " T "done/2=?");
    assert_string_equal(found(s, false), "lost a node");
    assert_string_equal(vanish(s, 0, true), "compare and set " T "done/0=?, compare and set " T "done/2=?");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ 0 });
    assert_string_equal(found(s, false), "");
}

static void a_member_with_a_mark_is_not_lost(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    (void)vanish(s, 2, true);
    assert_string_equal(found(s, true), "");
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WATCHING);
    assert_string_equal(vanish(s, 0, true), "compare and set " T "done/0=?"); /* marks stay */
    assert_string_equal(found(s, false), "lost a node");
}

static void another_rounds_losses_and_unknown_members(void **state)
{
    struct scene *s = *state;
    struct mu_completion_peer peer = { .rank = -1 };

    (void)start(s, ours(3));
    assert_string_equal(
        step(s,
             (struct mu_completion_event){ .type = MU_COMPLETION_ON_LOST, .round = 2, .lost = &peer, .lost_count = 1 }),
        "");
    assert_string_equal(
        step(s,
             (struct mu_completion_event){ .type = MU_COMPLETION_ON_LOST, .round = 3, .lost = &peer, .lost_count = 1 }),
        "lost a node");
}

/* The one that went is the store's host: nobody answers any more. */
static void without_an_answer_a_member_is_lost(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    (void)vanish(s, 2, true);
    assert_string_equal(broken(s, MUSTER_ECONNECT), "lost a node");
}

/* Its host is the one that is lost, mostly; a silent one would not answer for ten seconds. */
static void while_the_store_is_away_a_lost_member_is_lost_without_asking(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    (void)simple(s, MU_COMPLETION_ON_BACKEND_DOWN);
    assert_string_equal(vanish(s, 0, true), "lost a node");
    (void)simple(s, MU_COMPLETION_ON_BACKEND_UP);
    (void)start(s, ours(3));
    assert_string_equal(vanish(s, 0, true), "compare and set " T "done/0=?");
}

static void a_done_agent_makes_room_when_an_undone_one_is_lost(void **state)
{
    struct scene *s = *state;
    const char *behind =
        "end behind: lost a node; this node's workers have succeeded, so it ends and the other nodes regroup";

    (void)start(s, ours(3));
    (void)done(s);
    (void)number(s, 1);
    assert_string_equal(vanish(s, 2, true), "compare and set " T "done/0=?, compare and set " T "done/2=?");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ 0 });
    assert_string_equal(found(s, false), behind);
    (void)start(s, ours(3)); /* known before: first the mark, so that we are not lost ourselves */
    (void)vanish(s, 2, true);
    (void)found(s, false);
    assert_string_equal(done(s), MARKS);
    assert_string_equal(number(s, 1), behind);
}

static void whoever_finds_all_marks_stands_in_for_a_last_that_died(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    assert_string_equal(vanish(s, 0, true), "compare and set " T "done/0=?");
    assert_string_equal(found(s, true), LOOK);
    (void)start(s, ours(2)); /* it was counted nowhere, and went before we were done */
    (void)vanish(s, 0, true);
    (void)found(s, true);
    (void)done(s);
    assert_string_equal(number(s, 1), LOOK);
}

static void a_stock_member_was_done_if_the_barrier_has_more_than_ours(void **state)
{
    struct scene *s = *state;

    (void)start(s, mixed(3));
    assert_string_equal(vanish(s, 2, false), "add " R "/num_members+0, add " T "done_count+0");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .number = 2 });
    assert_string_equal(number(s, 1), "");
    assert_int_equal(mu_completion_deadline_ms(s->completion), UINT64_MAX);
}

static void a_stock_member_is_lost_after_a_second_look(void **state)
{
    struct scene *s = *state;

    (void)start(s, mixed(3));
    (void)vanish(s, 2, false);
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .number = 1 });
    assert_string_equal(number(s, 1), ""); /* that one is ours */
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_SECOND_LOOK_MS);
    assert_string_equal(pass(s, T0 + MU_COMPLETION_SECOND_LOOK_MS), "add " R "/num_members+0, add " T "done_count+0");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .number = 1 });
    assert_string_equal(number(s, 1), "lost a node");
}

static void a_1_13_member_is_asked_for_by_its_key(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3);

    round.all_ours = false;
    round.old_dialect = true;
    (void)start(s, round);
    assert_string_equal(vanish(s, 2, false), "check " R "2");
    assert_string_equal(found(s, true), "");
    (void)vanish(s, 0, false);
    assert_string_equal(found(s, false), "lost a node");
}

/* ---- The end of others ---- */

static void removed_is_over_for_a_done_agent(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    assert_string_equal(simple(s, MU_COMPLETION_ON_REMOVED),
                        "end over: this node's workers have succeeded; the other nodes go on without it");
    (void)start(s, ours(2));
    assert_string_equal(simple(s, MU_COMPLETION_ON_REMOVED), "");
    assert_non_null(strstr(done(s), "end over: "));
}

static void a_failed_verdict_fails_who_still_runs(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "compare and set muster.job/verdict=?");
    assert_string_equal(
        value(s,
              "{\"verdict\": \"failed\", \"round\": 3, \"tag\": \"00000000000000ab\", \"node\": \"n7\", \"rank\": 0, "
              "\"cause\": \"exit code\\n3\"}"),
        "job failed: the job has failed: exit code 3");
}

/* A member that was removed hears of it: a round that is nowhere but in the budget was made up. */
static void a_made_up_round_in_the_budget_delays_the_end_and_no_more(void **state)
{
    struct scene *s = *state;

    for (int64_t fails = 0; fails < 2; fails++) {
        s->now_ms = T0;
        (void)start(s, ours(2));
        (void)(fails ? fail_job(s) : done(s));
        if (!fails)
            (void)number(s, 2);
        assert_string_equal(found(s, true), LOOK);
        assert_string_equal(value(s, "0 999999.0000000000000000"), "");
        assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_REMOVED_MS);
        assert_string_equal(pass(s, T0 + MU_COMPLETION_REMOVED_MS), LOOK);
        assert_non_null(strstr(value(s, "0 999999.0000000000000000"),
                               "warn: somebody has overwritten the restart budget in 'muster.job/budget' (25 bytes: "
                               "'0 999999.0000000000000000'); ignoring it, compare and set muster.job/verdict="));
    }
}

/* A spare that makes the next round, because the job could not be closed, must not go on. */
static void before_a_job_fails_its_budget_is_used_up(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)fail_job(s);
    assert_string_equal(found(s, true), LOOK);
    assert_string_equal(value(s, "1 3.00000000000000ab h1"),
                        "compare and set muster.job/budget=1 3.00000000000000ab used up");
    assert_non_null(strstr(value(s, "1 3.00000000000000ab used up"), "compare and set muster.job/verdict="));
}

static void a_round_that_begins_meanwhile_keeps_its_budget(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)fail_job(s);
    (void)found(s, true);
    (void)value(s, "1 3.00000000000000ab h1");
    assert_string_equal(value(s, "0 4.00000000000000cd"), ""); /* we were removed, and hear of it */
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_REMOVED_MS);
}

/* Neither an outage nor a pause of our own is the time in which a member hears that it was removed. */
static void a_round_in_the_budget_is_not_disproved_by_silence(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)fail_job(s);
    (void)found(s, true);
    (void)value(s, "0 4.00000000000000cd");
    (void)simple(s, MU_COMPLETION_ON_BACKEND_DOWN);
    assert_string_equal(pass(s, T0 + MU_COMPLETION_REMOVED_MS), LOOK);
    assert_string_equal(simple(s, MU_COMPLETION_ON_BACKEND_UP), "");
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_CLOSE_MS - MU_COMPLETION_LAST_MS);
    s->now_ms = T0;
    (void)start(s, ours(2));
    (void)fail_job(s);
    (void)found(s, true);
    (void)value(s, "0 4.00000000000000cd");
    (void)pass(s, T0 + MU_COMPLETION_REMOVED_MS);
    (void)simple(s, MU_COMPLETION_ON_REMOVED);
    assert_string_equal(s->trace, "");
    assert_string_equal(value(s, "0 4.00000000000000cd"), "end outdated: exit code 3");
}

static void a_verdict_of_a_later_round_is_believed_if_the_budget_knows_that_round(void **state)
{
    static const struct {
        const char *budget;
        bool believed;
    } cases[] = {
        { "1 4.00000000000000cd", true },
        { "1 4.00000000000000ef", false },
        { "1 3.00000000000000ab", false },
        { "garbage", false },
        { "?", false },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        (void)start(s, ours(2));
        (void)done(s);
        (void)number(s, 2);
        (void)found(s, true);
        (void)value(s, "1 3.00000000000000ab");
        assert_string_equal(value(s, FORGED(4, "00000000000000cd", 7)), LOOK);
        (void)value(s, cases[i].budget);
        if (cases[i].believed)
            assert_string_equal(s->trace, "end over: the job has failed: y");
        else
            assert_non_null(strstr(s->trace, "replacing it, compare and set muster.job/verdict=" GOOD));
    }
}

#define LATER(round)                                                                                                   \
    "warn: 'muster.job/verdict' has the verdict of round " round                                                       \
    ", and ours is 3: waiting to hear whether the job has gone on without this node"

/* Where PyTorch's members are in the round no budget is kept: only the rendezvous can say that the job has gone on. */
static void a_verdict_of_a_later_round_is_replaced_if_no_removal_follows(void **state)
{
    enum { NOTHING, REMOVED, REMOVED_LATE, CLOSED_LATE } heard;
    struct scene *s = *state;

    for (heard = NOTHING; heard <= CLOSED_LATE; heard++) {
        s->now_ms = T0;
        (void)start(s, mixed(2));
        assert_non_null(strstr(fail_job(s), "compare and set muster.job/verdict={"));
        assert_string_equal(value(s, FORGED(4, "00000000000000cd", 7)), LATER("4"));
        assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_REMOVED_MS);
        if (heard == REMOVED) {
            assert_string_equal(simple(s, MU_COMPLETION_ON_REMOVED), "end outdated: exit code 3");
            continue;
        }
        assert_string_equal(pass(s, T0 + MU_COMPLETION_REMOVED_MS), "compare and set muster.job/verdict=?");
        if (heard != NOTHING)
            (void)simple(s, heard == REMOVED_LATE ? MU_COMPLETION_ON_REMOVED : MU_COMPLETION_ON_CLOSED);
        (void)value(s, FORGED(4, "00000000000000cd", 7));
        if (heard == REMOVED_LATE)
            assert_string_equal(s->trace, "end outdated: exit code 3");
        else if (heard == CLOSED_LATE)
            assert_string_equal(s->trace, "close"); /* there is one */
        else
            assert_non_null(
                strstr(s->trace, "replacing it, compare and set muster.job/verdict={\"verdict\": \"failed\""));
    }
}

/* However often the wait for it begins anew, time is left to write the verdict and to close. */
static void verdicts_of_later_rounds_do_not_keep_a_job_from_being_closed(void **state)
{
    enum { LAST = MU_COMPLETION_CLOSE_MS - MU_COMPLETION_LAST_MS };
    struct scene *s = *state;

    (void)start(s, mixed(2)); /* the store was away for a moment */
    (void)fail_job(s);
    (void)value(s, FORGED(4, "00000000000000cd", 7));
    (void)pass(s, T0 + MU_COMPLETION_REMOVED_MS - 1);
    assert_string_equal(simple(s, MU_COMPLETION_ON_BACKEND_UP), "");
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + LAST);
    assert_string_equal(pass(s, T0 + LAST), "compare and set muster.job/verdict=?");
    assert_non_null(strstr(value(s, FORGED(4, "00000000000000cd", 7)), "compare and set muster.job/verdict={"));
    assert_string_equal(value(s, FORGED(5, "00000000000000cd", 7)), /* there is another one: no more time for it */
                        LATER("5") ", compare and set muster.job/verdict=?");
    (void)value(s, FORGED(5, "00000000000000cd", 7));
    assert_string_equal(value(s, "?"), "close");
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "end failed: exit code 3");

    s->now_ms = T0;
    (void)start(s, mixed(2)); /* another one whenever ours is to be written */
    (void)fail_job(s);
    (void)value(s, FORGED(4, "00000000000000cd", 7));
    (void)pass(s, T0 + MU_COMPLETION_REMOVED_MS);
    (void)value(s, FORGED(4, "00000000000000cd", 7));
    assert_string_equal(pass(s, T0 + MU_COMPLETION_CLOSE_MS),
                        "warn: the job's end: verdict was not done within 30 s, close");
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_CLOSE_MS + MU_COMPLETION_LAST_MS);
    assert_string_equal(value(s, "?"), ""); /* too late */
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "end unsaid: exit code 3");
}

/* After a pause of our own, the job may be that of others: it is asked once more, and there is time for the answer. */
static void a_node_that_slept_closes_no_job_that_has_gone_on(void **state)
{
    struct scene *s = *state;
    uint64_t late_ms = T0 + 2 * MU_COMPLETION_CLOSE_MS;

    (void)start(s, mixed(2));
    (void)fail_job(s);
    (void)value(s, FORGED(4, "00000000000000cd", 7));
    assert_string_equal(pass(s, late_ms), "compare and set muster.job/verdict=?");
    assert_string_equal(pass(s, late_ms + 1), "");
    (void)simple(s, MU_COMPLETION_ON_REMOVED);
    assert_string_equal(value(s, FORGED(4, "00000000000000cd", 7)), "end outdated: exit code 3");

    s->now_ms = T0;
    (void)start(s, mixed(2)); /* while it is written */
    (void)fail_job(s);
    (void)value(s, FORGED(4, "00000000000000cd", 7));
    (void)pass(s, T0 + MU_COMPLETION_REMOVED_MS);
    (void)value(s, FORGED(4, "00000000000000cd", 7));
    assert_string_equal(pass(s, late_ms),
                        "warn: the job's end: verdict was not done within 30 s, end unsaid: exit code 3");
}

static void a_closed_job_without_a_verdict_stops_nobody(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    assert_string_equal(value(s, "?"), "");
    (void)start(s, ours(3));
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    assert_string_equal(
        value(s, "not a verdict"),
        "warn: somebody has overwritten the verdict in 'muster.job/verdict' (13 bytes: 'not a verdict'); ignoring it");
}

static void losses_stop_nobody_in_a_closed_job_where_somebody_was_done(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    (void)value(s, "?");
    (void)vanish(s, 2, true);
    assert_string_equal(found(s, false), "compare and set muster.job/verdict=?, add " T "done_count+0");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .value = mu_slice_str("?") });
    assert_string_equal(number(s, 1), "");
}

static void losses_fail_a_closed_job_that_nobody_finished(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    (void)value(s, "?");
    (void)vanish(s, 2, true);
    (void)found(s, false);
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .value = mu_slice_str("?") });
    assert_string_equal(number(s, 0), "job failed: the job was closed without a verdict; lost a node");
}

static void a_done_agent_ends_with_the_verdict(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "compare and set muster.job/verdict=?");
    assert_string_equal(value(s, GOOD), "end all done: all 2 nodes are done");
    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    assert_string_equal(
        value(s,
              "{\"verdict\": \"failed\", \"round\": 3, \"tag\": \"00000000000000ab\", \"node\": \"n7\", \"rank\": 0, "
              "\"cause\": \"c\"}"),
        "end over: the job has failed: c");
    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    assert_string_equal(value(s, "?"), ""); /* a PyTorch peer's: wait on */
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WAITING);
}

/* ---- Failure ---- */

static void a_failed_job_gets_its_verdict_and_is_closed(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    assert_string_equal(fail_job(s), "get " T "heard/0");
    assert_string_equal(found(s, true), LOOK);
    assert_string_equal(
        value(s, "?"),
        "compare and set muster.job/verdict={\"verdict\": \"failed\", \"round\": 3, \"tag\": \"00000000000000ab\", "
        "\"node\": \"h1\", \"rank\": 1, \"cause\": \"exit code 3\"}");
    assert_string_equal(value(s, GOOD), "close"); /* there is one */
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "end failed: exit code 3");
}

/* What a stranger has put there is neither printed as a fact nor in the way of the verdict. */
static void what_is_no_verdict_is_told_and_replaced(void **state)
{
    static const char *const foreign[] = { "garbage", "{\"verdict\": \"failed\", \"cause\": \"forged\"}",
                                           FORGED(2, "00000000000000ab", 0), FORGED(3, "00000000000000cd", 0),
                                           FORGED(3, "00000000000000ab", 2) };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(foreign); i++) {
        (void)start(s, (struct mu_round){
                           .round = 3, .tag = 0xab, .rank = 1, .world_size = 2, .all_ours = true, .has_store = true });
        (void)done(s);
        (void)number(s, 2);
        (void)found(s, true);
        assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_VERDICT);
        (void)value(s, "?");
        assert_non_null(strstr(value(s, foreign[i]), "replacing it, compare and set muster.job/verdict=" GOOD));
        assert_non_null(strstr(s->trace, "warn: somebody has overwritten the verdict in 'muster.job/verdict' ("));
        assert_string_equal(value(s, GOOD), "close");
    }
}

/* Neither the key of the last nor a mark says anything if it is not what our nodes write there. */
static void garbage_in_the_marks_does_not_make_anybody_done(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    assert_string_equal(value(s, "garbage"), "warn: somebody has overwritten the end of the round in '" T
                                             "last' (7 bytes: 'garbage'); ignoring it");
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WAITING);
    (void)pass(s, T0 + MU_COMPLETION_SCAN_MS);
    assert_non_null(strstr(value(s, "garbage"), "warn: somebody has overwritten a done mark in '" T
                                                "done/0' (7 bytes: 'garbage'); ignoring it"));
    assert_non_null(strstr(s->trace, ", set " T "last=look")); /* the one whose mark it was sets it again */
    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    (void)answer_id(s, s->id - 2, (struct mu_answer){ 0 });
    assert_string_equal(value(s, "look"), "set " T "done/1=done 1 me");
    (void)start(s, ours(2));
    (void)vanish(s, 0, true);
    (void)answer_id(s, s->id, (struct mu_answer){ .value = mu_slice_str("done 1 n7") }); /* of another rank */
    assert_non_null(strstr(s->trace, "lost"));
}

static void a_round_that_the_job_has_left_behind_cannot_fail_it(void **state)
{
    static const char *const others[] = { "1 4.00000000000000ab", "1 3.00000000000000cd" };
    struct scene *s = *state;

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        (void)start(s, ours(2));
        (void)fail_job(s);
        assert_string_equal(found(s, true), LOOK);
        (void)value(s, others[i]);
        assert_string_equal(simple(s, MU_COMPLETION_ON_REMOVED),
                            "end outdated: exit code 3"); /* neither verdict nor close */
    }
}

static void a_job_that_is_closed_or_has_no_rounds_just_ends(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(2);

    (void)start(s, round);
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    assert_string_equal(fail_job(s), "end failed: exit code 3");
    round.round = -1;
    (void)start(s, round);
    assert_string_equal(fail_job(s), "end failed: exit code 3");
}

static const char *close_failed(struct scene *s, uint64_t now_ms, int code)
{
    struct muster_error error = { .code = code, .text = "too late" };

    s->now_ms = now_ms;
    return step(s, (struct mu_completion_event){ .type = MU_COMPLETION_ON_CLOSE_FAILED, .error = &error });
}

static void a_close_that_cannot_work_leaves_a_success_what_it_is(void **state)
{
    struct scene *s = *state;

    (void)start(s, (struct mu_round){ .round = 3, .world_size = 1 });
    assert_string_equal(done(s), "close");
    assert_string_equal(close_failed(s, T0, MUSTER_ENOTSUP),
                        "warn: close the job: too late; going on without, end all done: 1 node is done");
    (void)start(s, (struct mu_round){ .round = 3, .world_size = 1 });
    (void)done(s); /* the store is there: its document cannot be closed */
    assert_string_equal(close_failed(s, T0 + 5000, MUSTER_ERDZV_TIMEOUT),
                        "warn: close the job: too late; going on without, end all done: 1 node is done");
}

/* A store that was away for longer than close_timeout: a spare ran the workers of a finished job once more. */
static void a_close_that_fails_is_tried_again_while_there_is_time(void **state)
{
    struct scene *s = *state;
    const uint64_t end_ms = T0 + MU_COMPLETION_CLOSE_MS;

    s->now_ms = T0;
    (void)start(s, (struct mu_round){ .round = 3, .world_size = 1 });
    (void)done(s);
    assert_string_equal(close_failed(s, T0 + 5000, MUSTER_ERDZV_CONNECTION),
                        "warn: close the job: too late; trying again for 25 s");
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + 5000 + MU_COMPLETION_CLOSE_AGAIN_MS);
    assert_string_equal(pass(s, T0 + 5999), "");
    assert_string_equal(pass(s, T0 + 6000), "close");
    assert_string_equal(pass(s, T0 + 7000), ""); /* it is under way */
    (void)simple(s, MU_COMPLETION_ON_BACKEND_DOWN);
    assert_string_equal(close_failed(s, T0 + 11000, MUSTER_ERDZV_TIMEOUT), ""); /* said once */
    s->now_ms = T0 + 11200;
    assert_string_equal(simple(s, MU_COMPLETION_ON_BACKEND_UP), "close");
    s->now_ms = T0 + 11201;
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "end all done: 1 node is done");
    assert_true(mu_completion_deadline_ms(s->completion) == UINT64_MAX);

    s->now_ms = T0;
    (void)start(s, (struct mu_round){ .round = 3, .world_size = 1 });
    (void)done(s);
    (void)close_failed(s, end_ms - 10, MUSTER_ERDZV_CONNECTION);
    assert_string_equal(pass(s, end_ms),
                        "warn: the job's end: closing was not done within 30 s, end all done: 1 node is done");
    s->now_ms = T0;
    (void)start(s, (struct mu_round){ .round = 3, .world_size = 1 });
    (void)done(s);
    assert_string_equal(close_failed(s, end_ms, MUSTER_ERDZV_CONNECTION),
                        "warn: close the job: too late; going on without, end all done: 1 node is done");
}

/* A node elsewhere may close it in that time. */
static void a_job_that_another_node_closes_is_not_closed_again(void **state)
{
    struct scene *s = *state;

    (void)start(s, (struct mu_round){ .round = 3, .world_size = 1 });
    (void)done(s);
    (void)close_failed(s, T0 + 5000, MUSTER_ERDZV_CONNECTION);
    s->now_ms = T0 + 5500;
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "end all done: 1 node is done");
    assert_string_equal(pass(s, T0 + 6000), "");
}

/* The verdict took all of the time. */
static void a_verdict_that_came_late_leaves_time_to_close(void **state)
{
    struct scene *s = *state;
    const uint64_t late_ms = T0 + MU_COMPLETION_CLOSE_MS - 1000;

    (void)start(s, ours(2));
    (void)fail_job(s);
    (void)found(s, true);
    (void)value(s, "?");
    (void)pass(s, late_ms);
    (void)value(s, "");
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_CLOSING);
    assert_int_equal(mu_completion_deadline_ms(s->completion), late_ms + MU_COMPLETION_LAST_MS);
}

static void a_close_that_fails_is_told_and_ends_all_the_same(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)fail_job(s);
    (void)found(s, true);
    (void)value(s, "?");
    assert_string_equal(broken(s, MUSTER_ENOTSUP), "warn: write the verdict: broken; going on without, close");
    assert_string_equal(close_failed(s, T0, MUSTER_ENOTSUP),
                        "warn: close the job: too late; going on without, end unsaid: exit code 3");
    (void)start(s, ours(2));
    (void)fail_job(s);
    (void)found(s, true);
    (void)value(s, "?");
    (void)value(s, FORGED(4, "00000000000000cd", 7)); /* there is one, of a later round */
    (void)value(s, "1 4.00000000000000cd");
    assert_string_equal(close_failed(s, T0, MUSTER_ENOTSUP),
                        "warn: close the job: too late; going on without, end failed: exit code 3");
    (void)start(s, ours(2));
    (void)fail_job(s);
    (void)found(s, true);
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_CLOSE_MS);
    assert_string_equal(pass(s, T0 + MU_COMPLETION_CLOSE_MS),
                        "warn: the job's end: verdict was not done within 30 s, end unsaid: exit code 3");
}

/* ---- Workers that fail ---- */

#define FAILURE                                                                                                        \
    "{\"verdict\": \"failed\", \"round\": 3, \"tag\": \"00000000000000ab\", \"node\": \"h1\", \"rank\": 5, "           \
    "\"cause\": \"exit code 3\"}"

static const char *worker_failed(struct scene *s)
{
    return step(s, (struct mu_completion_event){
                       .type = MU_COMPLETION_ON_WORKER_FAILED, .round = -1, .rank = 5, .text = "exit code 3" });
}

static void a_worker_that_fails_is_told_to_the_others_at_once_and_once(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    assert_string_equal(simple(s, MU_COMPLETION_ON_LISTEN), "get " T "failed");
    assert_string_equal(worker_failed(s),
                        "set " T "failed=" FAILURE ", set " T "heard/1=heard 1 me, set " T "left/1=again: exit code 3");
    assert_string_equal(worker_failed(s), "");
    assert_string_equal(simple(s, MU_COMPLETION_ON_STOP), ""); /* it ends our own wait, too */
}

static void who_listens_hears_whose_worker_has_failed(void **state)
{
    struct scene *s = *state;
    uint64_t heard;

    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_LISTEN);
    assert_string_equal(value(s, FAILURE),
                        "exit code 3, set " T "heard/1=heard 1 me"); /* a cause that names rank and host */
    assert_string_equal(simple(s, MU_COMPLETION_ON_STOP), "");
    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_LISTEN);
    assert_string_equal(value(s, "untold 0 n7"), ""); /* a member has stopped to listen */
    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_LISTEN);
    for (unsigned i = 0; i < 8; i++) { /* nobody's failure: it goes, so that the next one can be waited for */
        assert_non_null(
            strstr(value(s, GOOD), "warn: somebody has overwritten the failure of a worker in '" T "failed'"));
        assert_non_null(strstr(s->trace, "deleting it, delete " T "failed"));
        assert_string_equal(answer(s, (struct mu_answer){ 0 }), "get " T "failed");
    }
    (void)value(s, GOOD);
    assert_null(strstr(s->trace, "delete " T "failed")); /* not for ever */
    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_LISTEN);
    assert_string_equal(broken(s, MUSTER_ELOST), ""); /* asked again */
    assert_string_equal(pass(s, T0 + MU_ASK_RETRY_MS), "get " T "failed");
    heard = s->id;
    (void)done(s);
    assert_string_equal(answer_id(s, heard, (struct mu_answer){ .value = mu_slice_str(FAILURE) }),
                        "set " T "heard/1=heard 1 me"); /* done is done, and there */
}

/* What no member has written there does not end the listening. */
static void only_a_member_ends_the_listening_of_others(void **state)
{
    static const char *const foreign[] = { "-", "untold", "untold 2 n7", "untold -1 n7" };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(foreign); i++) {
        (void)start(s, ours(2));
        (void)simple(s, MU_COMPLETION_ON_LISTEN);
        assert_non_null(strstr(value(s, foreign[i]), "; deleting it, delete " T "failed"));
        assert_string_equal(answer(s, (struct mu_answer){ 0 }), "get " T "failed");
    }
}

/* So that none of our waits is in the way of the next round's. */
static void who_stops_listening_ends_its_wait(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_LISTEN);
    assert_string_equal(simple(s, MU_COMPLETION_ON_STOP), "set " T "failed=untold 1 me");
    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_LISTEN);
    (void)done(s);
    assert_string_equal(simple(s, MU_COMPLETION_ON_STOP), ""); /* no other round follows */
    (void)start(s, ours(2));
    assert_string_equal(simple(s, MU_COMPLETION_ON_STOP), "");
}

/* The others still want to hear of a failure: they may not see for long that we have left. */
static void who_leaves_for_good_ends_nobodys_wait(void **state)
{
    static const struct {
        bool noted, again, noted_before; /* before: as one that comes again */
        const char *told;
    } cases[] = {
        { false, false, false, "set " T "failed=untold 1 me" },
        { true, true, false, "set " T "failed=untold 1 me" },
        { true, false, false, "" },
        { true, false, true, "" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        (void)start(s, ours(2));
        (void)simple(s, MU_COMPLETION_ON_LISTEN);
        if (cases[i].noted_before)
            (void)noting(s, MU_NOTE_AGAIN, "a node wants to join");
        if (cases[i].noted)
            (void)noting(s, cases[i].again ? MU_NOTE_AGAIN : MU_NOTE_LEFT, "SIGTERM");
        assert_string_equal(simple(s, MU_COMPLETION_ON_STOP), cases[i].told);
    }
}

static void nobody_is_told_where_there_is_nobody_of_ours_or_no_round_to_come(void **state)
{
    struct scene *s = *state;

    (void)start(s, mixed(2)); /* nobody listens where PyTorch is: only who finds us gone reads why */
    assert_string_equal(simple(s, MU_COMPLETION_ON_LISTEN), "");
    assert_string_equal(worker_failed(s), "set " T "left/1=again: exit code 3");
    (void)start(s, (struct mu_round){ .round = 3, .world_size = 1, .all_ours = true, .has_store = true });
    assert_string_equal(simple(s, MU_COMPLETION_ON_LISTEN), "");
    assert_string_equal(worker_failed(s), "");
    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    assert_string_equal(worker_failed(s), "");
}

/* ---- Is everybody there? ---- */

static void without_an_answer_of_all_the_job_fails_when_a_loss_would_have_been_noticed(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    assert_string_equal(fail_job(s), "get " T "heard/0, get " T "heard/2");
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_ACCOUNTING);
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_LOSS_MS);
    assert_string_equal(found(s, true), ""); /* one is missing */
    assert_string_equal(pass(s, T0 + MU_COMPLETION_LOSS_MS), LOOK);
}

static void a_member_that_vanishes_without_an_answer_was_lost_and_the_job_goes_on(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)fail_job(s);
    assert_string_equal(vanish_named(s, 0, "node9"),
                        "compare and set " T "done/0=?, compare and set " T "heard/0=?, compare and set " T "left/0=?");
    (void)answer_id(s, s->id - 2, (struct mu_answer){ .found = false });
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = false });
    assert_string_equal(value(s, "lost: its agent was killed"), "lost node9: its agent was killed");
    assert_string_equal(pass(s, T0 + 1), "");
}

static void a_member_that_vanishes_with_an_answer_a_mark_or_a_goodbye_was_not_lost(void **state)
{
    struct scene *s = *state;

    for (unsigned i = 0; i < 3; i++) {
        (void)start(s, ours(2));
        (void)fail_job(s);
        (void)vanish_named(s, 0, "node9");
        (void)answer_id(s, s->id - 2, (struct mu_answer){ .found = i == 0 });
        (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = i == 1 });
        assert_string_equal(value(s, i == 2 ? "left: SIGTERM" : "?"), LOOK);
    }
}

enum { MANY = 24 };

/* All others of a large round vanish while the job is about to fail, of whom all but `lost` have said that they come
 * again. What is told in the end. */
static const char *all_vanish(struct scene *s, int64_t lost)
{
    struct mu_completion_peer peers[MANY] = { 0 };
    uint64_t next;
    size_t count = 0;

    (void)start(s, ours(MANY));
    (void)fail_job(s);
    next = s->id + 1;
    for (int64_t rank = 0; rank < MANY; rank++) {
        if (rank == 1)
            continue;
        peers[count] = (struct mu_completion_peer){ .rank = rank, .ours = true };
        (void)snprintf(peers[count++].name, sizeof peers[0].name, "node%d", (int)rank);
    }
    (void)step(s, (struct mu_completion_event){
                      .type = MU_COMPLETION_ON_LOST, .round = 3, .lost = peers, .lost_count = count });
    for (; next <= s->id && mu_completion_state(s->completion) == MU_COMPLETION_ACCOUNTING; next++) {
        const char *key = s->keys[next % COUNT(s->keys)];
        char left[32];

        (void)snprintf(left, sizeof left, "left/%d", (int)lost);
        if (strstr(key, "left/") != NULL && strcmp(strstr(key, "left/"), left) != 0)
            (void)answer_id(s, next, (struct mu_answer){ .value = mu_slice_str("again: exit code 3") });
        else
            (void)answer_id(s, next, (struct mu_answer){ .value = mu_slice_str("?") });
    }
    return s->trace;
}

static void of_many_who_vanish_the_one_that_was_lost_is_found(void **state)
{
    struct scene *s = *state;
    char text[64];

    assert_string_equal(all_vanish(s, -1), LOOK);
    for (int64_t lost = 2; lost < MANY; lost++) {
        (void)snprintf(text, sizeof text, "lost node%d", (int)lost);
        assert_string_equal(all_vanish(s, lost), text);
    }
}

/* The round before was one too many: this one is not begun, and nobody of it has anything to answer. */
static void a_failure_that_is_settled_needs_no_answers(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    assert_string_equal(
        step(s,
             (struct mu_completion_event){ .type = MU_COMPLETION_ON_FAIL, .round = -1, .settled = true, .text = "x" }),
        LOOK);
}

/* What it was told of then may have been somebody who came again. */
static void who_vanished_before_the_job_was_to_fail_is_judged_once_more(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)vanish_named(s, 0, "node9");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = false });
    assert_string_equal(value(s, "?"), "lost node9: no heartbeat for 15 s");
    assert_string_equal(fail_job(s),
                        "compare and set " T "done/0=?, compare and set " T "heard/0=?, compare and set " T "left/0=?");
    (void)answer_id(s, s->id - 2, (struct mu_answer){ .found = false });
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = false });
    assert_string_equal(value(s, "?"), "lost node9: no heartbeat for 15 s");
}

static void a_job_that_is_closed_meanwhile_or_goes_on_without_us_is_not_waited_for(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)fail_job(s);
    assert_string_equal(simple(s, MU_COMPLETION_ON_CLOSED), "end failed: exit code 3");
    (void)start(s, ours(2));
    (void)fail_job(s);
    assert_string_equal(simple(s, MU_COMPLETION_ON_REMOVED), LOOK);
}

/* ---- A store with trouble ---- */

static void a_count_is_never_repeated_marks_are_read_instead(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    assert_string_equal(broken(s, MUSTER_ELOST),
                        "warn: the exit barrier: broken; going on without, get " T "last, " PROBE);
    (void)found(s, false);
    (void)answer_id(s, s->id - 3, (struct mu_answer){ 0 }); /* the mark */
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_SCAN_MS);
    assert_string_equal(pass(s, T0 + MU_COMPLETION_SCAN_MS),
                        "set " T "done/1=done 1 me, compare and set " T "done/0=?");
    assert_string_equal(found(s, false), "");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ 0 });
    assert_string_equal(pass(s, T0 + 2 * MU_COMPLETION_SCAN_MS),
                        "set " T "done/1=done 1 me, compare and set " T "done/0=?");
    assert_string_equal(found(s, true), LOOK);
}

static void a_store_that_came_back_is_told_again(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    assert_string_equal(simple(s, MU_COMPLETION_ON_BACKEND_UP), "");
    (void)done(s);
    (void)number(s, 1);
    (void)answer_id(s, s->id - 2, (struct mu_answer){ 0 }); /* the mark */
    assert_string_equal(simple(s, MU_COMPLETION_ON_BACKEND_UP), "set " T "done/1=done 1 me");
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_SCAN_MS);
}

/* It was away and back without the rendezvous having noticed: only what waited there has failed. */
static void a_wait_that_was_cut_off_is_reason_enough_to_doubt_the_mark(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(3));
    (void)done(s);
    (void)number(s, 1);
    (void)answer_id(s, s->id - 2, (struct mu_answer){ 0 }); /* the mark */
    assert_string_equal(broken(s, MUSTER_ELOST), "set " T "done/1=done 1 me, " PROBE);
    (void)found(s, false);
    (void)answer_id(s, s->id - 1, (struct mu_answer){ 0 });
    assert_string_equal(pass(s, T0 + MU_ASK_RETRY_MS), "get " T "last");
    assert_string_equal(pass(s, T0 + MU_COMPLETION_SCAN_MS),
                        "set " T "done/1=done 1 me, compare and set " T "done/0=?, compare and set " T "done/2=?");
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .found = true });
    (void)found(s, false);
    (void)answer_id(s, s->id - 2, (struct mu_answer){ 0 });
    assert_string_equal(pass(s, T0 + 2 * MU_COMPLETION_SCAN_MS),
                        "set " T "done/1=done 1 me, compare and set " T "done/2=?"); /* marks stay */
}

/* One after the other is asked for, and no more once one is missing: a thousand that wait are no burden. */
static void a_look_at_the_marks_ends_with_the_first_that_is_missing(void **state)
{
    struct scene *s = *state;
    uint64_t last;
    unsigned checks = 0;

    (void)start(s, ours(1000));
    (void)done(s);
    (void)number(s, 1);
    (void)answer_id(s, s->id - 2, (struct mu_answer){ 0 });
    (void)pass(s, T0 + MU_COMPLETION_SCAN_SLOW_MS);
    for (const char *at = s->trace; (at = strstr(at, "compare")) != NULL; at++)
        checks++;
    assert_true(checks > 1 && checks < MU_ASKS_MAX);
    last = s->id;
    for (unsigned i = 0; i < checks; i++)
        assert_string_equal(answer_id(s, last - i, (struct mu_answer){ .found = false }), "");
    (void)answer_id(s, last - checks, (struct mu_answer){ 0 });
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + 2 * MU_COMPLETION_SCAN_SLOW_MS);
}

static void in_1_13_marks_are_set_again_as_well(void **state)
{
    struct scene *s = *state;
    struct mu_round round = mixed(3);

    round.old_dialect = true;
    round.rank = 0;
    (void)start(s, round);
    (void)done(s);
    assert_string_equal(answer(s, (struct mu_answer){ 0 }), "get " R "1, get " R "2");
    assert_string_equal(broken(s, MUSTER_ELOST), "set " R "0=0, " PROBE);
    (void)found(s, false);
    (void)answer_id(s, s->id - 1, (struct mu_answer){ 0 });
    assert_string_equal(pass(s, T0 + MU_ASK_RETRY_MS), "get " R "2");
    (void)answer(s, (struct mu_answer){ 0 });
    assert_string_equal(answer_id(s, 3, (struct mu_answer){ 0 }), "");
    (void)answer_id(s, 2, (struct mu_answer){ 0 });
    assert_string_equal(s->trace, "set " R "0.FIN=FIN, get " R "1.FIN, get " R "2.FIN");
    (void)answer_id(s, s->id - 2, (struct mu_answer){ 0 });
    assert_string_equal(simple(s, MU_COMPLETION_ON_BACKEND_UP), "set " R "0=0, set " R "0.FIN=FIN");
    assert_non_null(
        strstr(pass(s, s->now_ms + MU_COMPLETION_FIN_MS), "compare and set muster.job/verdict=")); /* done is done */
}

/* Who is not marked is PyTorch's, and has gone: nobody is left to wait for, though the counter is short of one. */
static void with_pytorch_members_gone_the_marks_of_ours_are_enough(void **state)
{
    struct scene *s = *state;

    (void)start(s, mixed(3));
    (void)done(s);
    (void)number(s, 2);
    (void)answer_id(s, s->id - 3, (struct mu_answer){ 0 }); /* the mark */
    assert_string_equal(vanish(s, 2, false),
                        "add " R "/num_members+0, add " T "done_count+0, compare and set " T "done/0=?");
    (void)answer_id(s, s->id - 2, (struct mu_answer){ .number = 2 });
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .number = 1 });
    assert_string_equal(found(s, false), "");
    assert_string_equal(pass(s, T0 + MU_COMPLETION_SCAN_SLOW_MS),
                        "set " T "done/1=done 1 me, add " R "/num_members+0, add " T "done_count+0, compare and set " T
                        "done/0=?");
    (void)answer_id(s, s->id - 2, (struct mu_answer){ .number = 2 });
    (void)answer_id(s, s->id - 1, (struct mu_answer){ .number = 1 });
    assert_string_equal(found(s, true), "compare and set muster.job/verdict=" GOOD);
}

/* ---- A host that has gone ---- */

static const char *refused(struct scene *s)
{
    struct muster_error error = { .code = MUSTER_ECONNECT, .text = "refused" };

    return answer(s, (struct mu_answer){ .error = &error, .gone = true });
}

static void a_pytorch_host_that_has_gone_takes_what_could_be_closed_with_it(void **state)
{
    struct scene *s = *state;
    const char *end = "end all done: all 2 nodes are done";

    (void)start(s, mixed(2)); /* before the verdict */
    (void)done(s);
    (void)number(s, 2);
    assert_string_equal(refused(s), end);
    (void)start(s, mixed(2)); /* after it: the rendezvous knows no more than that its store is away */
    (void)done(s);
    (void)number(s, 2);
    assert_string_equal(value(s, GOOD), "close");
    assert_string_equal(simple(s, MU_COMPLETION_ON_BACKEND_DOWN), PROBE);
    assert_string_equal(refused(s), end);
    (void)start(s, mixed(2));
    (void)done(s);
    (void)number(s, 2);
    (void)simple(s, MU_COMPLETION_ON_BACKEND_DOWN);
    assert_string_equal(value(s, GOOD), "close, " PROBE);
    assert_string_equal(found(s, true), ""); /* it is there: close on */
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_CLOSE_MS);
    (void)start(s, mixed(2)); /* and when the others are to be let go */
    (void)done(s);
    (void)number(s, 2);
    (void)value(s, GOOD);
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    assert_string_equal(refused(s), end);
}

static void a_store_of_its_own_may_be_started_again(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(1);

    round.rank = 0;
    (void)start(s, round);
    (void)done(s);
    (void)number(s, 1);
    assert_string_equal(s->trace, LOOK);
    assert_string_equal(refused(s), "");
    assert_string_equal(pass(s, T0 + MU_ASK_RETRY_MS), LOOK);
    assert_non_null(strstr(value(s, "?"), "compare and set muster.job/verdict="));
    assert_int_equal(mu_completion_deadline_ms(s->completion), T0 + MU_COMPLETION_CLOSE_MS); /* it was */
    assert_string_equal(refused(s), "");
    (void)pass(s, s->now_ms + MU_ASK_RETRY_MS);
    assert_string_equal(refused(s), "");
    assert_string_equal(pass(s, T0 + MU_ASK_RETRY_MS + MU_COMPLETION_GONE_MS), "end all done: 1 node is done");
}

#define AWAY(how)                                                                                                      \
    "end away: the workers of this node have succeeded, and the store has " how                                        \
    ": ending without waiting for the other nodes"

/* All requests that are under way are refused, and made again, until that time. */
static const char *refuse_until(struct scene *s, uint64_t until_ms)
{
    while (mu_completion_deadline_ms(s->completion) < until_ms) {
        (void)pass(s, mu_completion_deadline_ms(s->completion));
        (void)refused(s);
    }
    return pass(s, until_ms);
}

/* The rendezvous has reached it; what we asked before that, and is refused late, says nothing. */
static void a_done_agent_whose_store_is_back_does_not_end(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    (void)refused(s);
    (void)refuse_until(s, T0 + MU_COMPLETION_REFUSED_MS - 1);
    (void)simple(s, MU_COMPLETION_ON_BACKEND_UP);
    (void)pass(s, T0 + MU_COMPLETION_REFUSED_MS);
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WAITING);
}

static void a_done_agent_whose_store_is_refused_ends_soon(void **state)
{
    struct scene *s = *state;

    (void)start(s, mixed(2)); /* a PyTorch host goes as soon as it may */
    (void)done(s);
    (void)number(s, 1);
    (void)refused(s);
    assert_string_equal(pass(s, T0 + MU_COMPLETION_GONE_MS), AWAY("refused connections for 2 s"));
    s->now_ms = T0;
    (void)start(s, ours(2)); /* others may be at work, and the store come back */
    (void)done(s);
    (void)number(s, 1);
    (void)refused(s);
    (void)refuse_until(s, T0 + MU_COMPLETION_REFUSED_MS - 1);
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WAITING);
    assert_string_equal(pass(s, T0 + MU_COMPLETION_REFUSED_MS), AWAY("refused connections for 5 s"));
    s->now_ms = T0;
    (void)start(s, ours(2)); /* no round follows: whatever the verdict was */
    (void)done(s);
    (void)number(s, 1);
    (void)simple(s, MU_COMPLETION_ON_CLOSED);
    (void)refused(s);
    assert_string_equal(pass(s, T0 + MU_COMPLETION_GONE_MS), AWAY("refused connections for 2 s"));
}

static void a_store_that_is_back_in_time_is_waited_at(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    assert_string_equal(refused(s), PROBE);
    s->now_ms = T0 + MU_COMPLETION_REFUSED_MS - 1;
    (void)found(s, false);
    (void)pass(s, T0 + 10 * MU_COMPLETION_SILENT_MS);
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WAITING);
}

/* Whose host has lost its power: nothing is refused, and nothing answered. */
static void a_done_agent_whose_store_is_silent_ends_after_half_a_minute(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    (void)answer_id(s, s->id - 2, (struct mu_answer){ 0 }); /* the mark */
    assert_string_equal(pass(s, T0 + 20000), "");
    assert_string_equal(
        step(s, (struct mu_completion_event){ .type = MU_COMPLETION_ON_BACKEND_DOWN, .round = -1, .away_ms = 10000 }),
        PROBE);
    (void)pass(s, T0 + 10000 + MU_COMPLETION_SILENT_MS - 1);
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WAITING);
    assert_string_equal(pass(s, T0 + 10000 + MU_COMPLETION_SILENT_MS), AWAY("not answered for 30 s"));
}

static void a_store_that_was_silent_before_has_as_long_once_we_are_done(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)simple(s, MU_COMPLETION_ON_BACKEND_DOWN);
    s->now_ms = T0 + 10 * MU_COMPLETION_SILENT_MS;
    assert_string_equal(done(s), MARKS);
    (void)pass(s, s->now_ms + MU_COMPLETION_SILENT_MS - 1);
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_MARKING);
    assert_string_equal(pass(s, s->now_ms + 1), AWAY("not answered for 30 s"));
}

/* Of a back end without rounds nobody tells that the store is away. */
static void where_nobody_tells_of_the_store_it_is_looked_at(void **state)
{
    struct scene *s = *state;
    struct mu_round round = mixed(2);

    round.round = -1;
    (void)start(s, round);
    (void)done(s);
    (void)number(s, 1);
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WAITING);
    assert_string_equal(pass(s, T0 + MU_COMPLETION_PROBE_MS), PROBE);
    assert_string_equal(found(s, false), "");
    assert_string_equal(pass(s, T0 + 2 * MU_COMPLETION_PROBE_MS), PROBE);
    s->now_ms += MU_ASK_TIMEOUT_MS;
    (void)broken(s, MUSTER_ETIMEOUT); /* a question of ten seconds */
    (void)pass(s, T0 + 2 * MU_COMPLETION_PROBE_MS + MU_COMPLETION_SILENT_MS - 1);
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_WAITING);
    assert_string_equal(pass(s, s->now_ms + 1), AWAY("not answered for 30 s"));
}

static void the_limit_of_the_wait_counts_while_the_store_is_away(void **state)
{
    struct scene *s = *state;

    configure(s, 12000);
    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    (void)simple(s, MU_COMPLETION_ON_BACKEND_DOWN);
    assert_non_null(strstr(pass(s, T0 + 12000), "end timeout"));
}

static void a_failed_job_is_not_given_up_so_soon(void **state)
{
    struct scene *s = *state;

    (void)start(s, mixed(2));
    (void)step(s, (struct mu_completion_event){ .type = MU_COMPLETION_ON_FAIL, .round = -1, .text = "exit code 3" });
    assert_string_equal(refused(s), "");
    assert_int_equal(mu_completion_state(s->completion), MU_COMPLETION_VERDICT);
}

static void a_broken_barrier_ends_the_wait(void **state)
{
    struct scene *s = *state;

    (void)start(s, ours(2));
    (void)done(s);
    (void)number(s, 1);
    assert_string_equal(broken(s, MUSTER_ENOTSUP),
                        "end over: this node's workers have succeeded; the exit barrier is broken");
}

static void a_round_that_is_over_is_dropped(void **state)
{
    struct scene *s = *state;
    uint64_t old;

    (void)start(s, ours(2));
    (void)done(s);
    old = s->id;
    assert_string_equal(simple(s, MU_COMPLETION_ON_STOP), "");
    assert_string_equal(answer_id(s, old, (struct mu_answer){ .number = 2 }), "");
    assert_string_equal(done(s), "");
    assert_string_equal(vanish(s, 0, true), "");
    assert_int_equal(mu_completion_deadline_ms(s->completion), UINT64_MAX);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_completion_config config = { .run_id = "job", .node = "me", .barrier_ms = UINT64_MAX };
        struct scene s = { .now_ms = T0 };
        struct muster_error error = { 0 };
        int rc = mu_completion_new(&config, &s.completion, &error);

        if (rc < 0) {
            assert_true(fail_alloc_hit() && rc == MUSTER_ENOMEM && error.code == MUSTER_ENOMEM);
            continue;
        }
        (void)start(&s, ours(2));
        assert_string_equal(vanish(&s, 0, true), fail_alloc_hit() ? "lost a node"
                                                                  : "compare and set " T
                                                                    "done/0=?"); /* to be on the safe side */
        mu_completion_free(s.completion);
    }
}

/* ---- Many agents and one store ---- */

enum { NODES = 12, ASKS = 256 }; /* ASKS: also those that were given up */

struct node {
    struct mu_completion *completion;
    struct mu_ask asks[ASKS];
    char keys[ASKS][ASK_STORE_KEY], values[ASKS][ASK_STORE_VALUE];
    size_t asks_count;
    bool is_done, dead, ended, close_asked, told_closed;
    bool heard[NODES]; /* of whom it was told that they vanished */
    enum mu_completion_end end;
    unsigned losts;
};

static struct node nodes[NODES];
static struct ask_store store;
static size_t nodes_count;
static bool job_closed;
static uint64_t world_ms;

static void feed(struct node *node, struct mu_completion_event event)
{
    struct mu_completion_effects effects;

    event.now_ms = world_ms;
    event.round = -1;
    mu_completion_step(node->completion, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++) {
        const struct mu_completion_effect *e = &effects.items[i];

        assert_false(node->ended);
        if (e->type == MU_COMPLETION_DO_END) {
            node->ended = true;
            node->end = e->end;
            node->asks_count = 0;
        } else if (e->type == MU_COMPLETION_DO_CLOSE) {
            node->close_asked = true;
        } else if (e->type == MU_COMPLETION_DO_LOST) {
            node->losts++;
        } else if (e->type == MU_COMPLETION_DO_ASK) {
            assert_true(node->asks_count < ASKS);
            memcpy(node->keys[node->asks_count], e->ask.key.data, e->ask.key.len);
            if (e->ask.value.len > 0)
                memcpy(node->values[node->asks_count], e->ask.value.data, e->ask.value.len);
            node->asks[node->asks_count++] = e->ask;
        }
    }
    if (node->ended)
        node->asks_count = 0;
}

/* The first of its requests that can be: one connection, but what waits does not hold up the rest. */
static void serve(struct node *node)
{
    for (size_t i = 0; i < node->asks_count; i++) {
        struct mu_ask ask = node->asks[i];
        struct mu_answer given;

        ask.key.data = node->keys[i];
        ask.value.data = node->values[i];
        if (!ask_store_do(&store, &ask, &given))
            continue;
        node->asks_count--;
        for (; i < node->asks_count; i++) {
            node->asks[i] = node->asks[i + 1];
            memcpy(node->keys[i], node->keys[i + 1], ASK_STORE_KEY);
            memcpy(node->values[i], node->values[i + 1], ASK_STORE_VALUE);
        }
        feed(node, (struct mu_completion_event){ .type = MU_COMPLETION_ON_ANSWER, .answer = given });
        return;
    }
}

static void act(struct node *node, struct mu_rng *rng)
{
    size_t other = (size_t)mu_rng_below(rng, nodes_count);

    if (node->dead || node->ended)
        return;
    if (mu_rng_below(rng, 8) == 0 && !node->is_done) {
        node->is_done = true;
        feed(node, (struct mu_completion_event){ .type = MU_COMPLETION_ON_DONE });
    } else if (node->close_asked) {
        node->close_asked = false;
        node->told_closed = job_closed = true;
        feed(node, (struct mu_completion_event){ .type = MU_COMPLETION_ON_CLOSED });
    } else if (job_closed && !node->told_closed) {
        node->told_closed = true;
        feed(node, (struct mu_completion_event){ .type = MU_COMPLETION_ON_CLOSED });
    } else if ((nodes[other].dead || (nodes[other].ended && nodes[other].end != MU_COMPLETION_END_ALL_DONE)) &&
               !node->heard[other]) {
        struct mu_completion_peer peer = { .rank = (int64_t)other, .ours = true };

        node->heard[other] = true;
        feed(node, (struct mu_completion_event){ .type = MU_COMPLETION_ON_LOST, .lost = &peer, .lost_count = 1 });
    } else {
        serve(node);
    }
    if (mu_completion_deadline_ms(node->completion) <= world_ms && !node->ended)
        feed(node, (struct mu_completion_event){ .type = MU_COMPLETION_ON_TIME });
}

static void live(struct mu_rng *rng, uint64_t deaths)
{
    struct mu_completion_config config = { .run_id = "job", .node = "n", .barrier_ms = UINT64_MAX };

    ask_store_clear(&store);
    job_closed = false;
    world_ms = T0;
    nodes_count = 1 + (size_t)mu_rng_below(rng, NODES);
    for (size_t i = 0; i < nodes_count; i++) {
        struct mu_round round = ours((int64_t)nodes_count);

        nodes[i] = (struct node){ .completion = NULL };
        round.rank = (int64_t)i;
        assert_int_equal(mu_completion_new(&config, &nodes[i].completion, NULL), 0);
        feed(&nodes[i], (struct mu_completion_event){ .type = MU_COMPLETION_ON_START, .start = &round });
    }
    for (unsigned n = 0; n < 4000 + 400 * NODES; n++) {
        struct node *node = &nodes[mu_rng_below(rng, nodes_count)];

        world_ms += mu_rng_below(rng, 20);
        act(node, rng);
        if (n < 1000 && mu_rng_below(rng, 1000) < deaths)
            node->dead = true;
    }
}

/* Whoever dies, whenever: those that are done all end, the job is closed only if all were done, nobody who still runs
 * misses a loss. */
static void any_order_of_ends_and_deaths_ends_well(void **state)
{
    struct mu_rng rng = mu_rng_seeded(4);

    (void)state;
    for (unsigned n = 0; n < 300; n++) {
        bool all_done = true;

        live(&rng, n % 3 * 2);
        for (size_t i = 0; i < nodes_count; i++)
            all_done = all_done && nodes[i].is_done;
        for (size_t i = 0; i < nodes_count; i++) {
            struct node *node = &nodes[i];

            if (node->ended)
                assert_true(all_done || node->end == MU_COMPLETION_END_BEHIND);
            if (!node->dead)
                assert_true(node->ended); /* everybody alive is done by then */
            assert_true(node->losts <= 1);
            mu_completion_free(node->completion);
        }
        assert_true(!job_closed || all_done);
        if (n % 3 == 0) { /* nobody died */
            assert_true(job_closed);
            assert_non_null(ask_store_get(&store, "muster.job/verdict"));
            assert_non_null(ask_store_get(&store, T "last"));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(who_leaves_a_round_says_why_first),
        SCENE(a_member_that_left_a_note_has_left_and_another_one_is_lost),
        SCENE(a_member_whose_agent_was_killed_is_lost),
        SCENE(a_will_is_there_while_the_others_would_miss_us),
        SCENE(nodes_that_want_to_join_do_not_hide_a_loss),
        SCENE(the_last_writes_the_verdict_closes_and_then_lets_the_others_go),
        SCENE(among_us_the_last_looks_at_all_marks_first),
        SCENE(a_counter_alone_ends_nothing),
        SCENE(another_round_of_the_same_number_has_other_keys),
        SCENE(a_round_that_is_not_the_jobs_any_more_does_not_end_it),
        SCENE(the_others_wait_for_the_last_without_a_limit),
        SCENE(a_limit_ends_the_wait),
        SCENE(without_any_wait_the_mark_is_written_all_the_same),
        SCENE(back_ends_without_rounds_have_the_barrier_only),
        SCENE(back_ends_without_a_store_are_closed_by_a_lone_node),
        SCENE(in_1_13_there_is_a_key_for_each),
        SCENE(a_member_without_a_mark_is_lost_and_told_of_once),
        SCENE(a_member_with_a_mark_is_not_lost),
        SCENE(another_rounds_losses_and_unknown_members),
        SCENE(without_an_answer_a_member_is_lost),
        SCENE(while_the_store_is_away_a_lost_member_is_lost_without_asking),
        SCENE(a_done_agent_makes_room_when_an_undone_one_is_lost),
        SCENE(whoever_finds_all_marks_stands_in_for_a_last_that_died),
        SCENE(a_stock_member_was_done_if_the_barrier_has_more_than_ours),
        SCENE(a_stock_member_is_lost_after_a_second_look),
        SCENE(a_1_13_member_is_asked_for_by_its_key),
        SCENE(removed_is_over_for_a_done_agent),
        SCENE(a_failed_verdict_fails_who_still_runs),
        SCENE(a_made_up_round_in_the_budget_delays_the_end_and_no_more),
        SCENE(before_a_job_fails_its_budget_is_used_up),
        SCENE(a_round_that_begins_meanwhile_keeps_its_budget),
        SCENE(a_round_in_the_budget_is_not_disproved_by_silence),
        SCENE(a_verdict_of_a_later_round_is_believed_if_the_budget_knows_that_round),
        SCENE(a_verdict_of_a_later_round_is_replaced_if_no_removal_follows),
        SCENE(verdicts_of_later_rounds_do_not_keep_a_job_from_being_closed),
        SCENE(a_node_that_slept_closes_no_job_that_has_gone_on),
        SCENE(a_closed_job_without_a_verdict_stops_nobody),
        SCENE(losses_stop_nobody_in_a_closed_job_where_somebody_was_done),
        SCENE(losses_fail_a_closed_job_that_nobody_finished),
        SCENE(a_done_agent_ends_with_the_verdict),
        SCENE(a_failed_job_gets_its_verdict_and_is_closed),
        SCENE(without_an_answer_of_all_the_job_fails_when_a_loss_would_have_been_noticed),
        SCENE(a_member_that_vanishes_without_an_answer_was_lost_and_the_job_goes_on),
        SCENE(a_member_that_vanishes_with_an_answer_a_mark_or_a_goodbye_was_not_lost),
        SCENE(of_many_who_vanish_the_one_that_was_lost_is_found),
        SCENE(a_failure_that_is_settled_needs_no_answers),
        SCENE(who_vanished_before_the_job_was_to_fail_is_judged_once_more),
        SCENE(a_job_that_is_closed_meanwhile_or_goes_on_without_us_is_not_waited_for),
        SCENE(what_is_no_verdict_is_told_and_replaced),
        SCENE(garbage_in_the_marks_does_not_make_anybody_done),
        SCENE(a_round_that_the_job_has_left_behind_cannot_fail_it),
        SCENE(a_job_that_is_closed_or_has_no_rounds_just_ends),
        SCENE(a_close_that_cannot_work_leaves_a_success_what_it_is),
        SCENE(a_close_that_fails_is_tried_again_while_there_is_time),
        SCENE(a_job_that_another_node_closes_is_not_closed_again),
        SCENE(a_verdict_that_came_late_leaves_time_to_close),
        SCENE(a_close_that_fails_is_told_and_ends_all_the_same),
        SCENE(a_worker_that_fails_is_told_to_the_others_at_once_and_once),
        SCENE(who_listens_hears_whose_worker_has_failed),
        SCENE(only_a_member_ends_the_listening_of_others),
        SCENE(who_stops_listening_ends_its_wait),
        SCENE(who_leaves_for_good_ends_nobodys_wait),
        SCENE(nobody_is_told_where_there_is_nobody_of_ours_or_no_round_to_come),
        SCENE(a_count_is_never_repeated_marks_are_read_instead),
        SCENE(a_store_that_came_back_is_told_again),
        SCENE(a_wait_that_was_cut_off_is_reason_enough_to_doubt_the_mark),
        SCENE(a_look_at_the_marks_ends_with_the_first_that_is_missing),
        SCENE(in_1_13_marks_are_set_again_as_well),
        SCENE(with_pytorch_members_gone_the_marks_of_ours_are_enough),
        SCENE(a_pytorch_host_that_has_gone_takes_what_could_be_closed_with_it),
        SCENE(a_store_of_its_own_may_be_started_again),
        SCENE(a_done_agent_whose_store_is_back_does_not_end),
        SCENE(a_done_agent_whose_store_is_refused_ends_soon),
        SCENE(a_store_that_is_back_in_time_is_waited_at),
        SCENE(a_done_agent_whose_store_is_silent_ends_after_half_a_minute),
        SCENE(a_store_that_was_silent_before_has_as_long_once_we_are_done),
        SCENE(where_nobody_tells_of_the_store_it_is_looked_at),
        SCENE(the_limit_of_the_wait_counts_while_the_store_is_away),
        SCENE(a_failed_job_is_not_given_up_so_soon),
        SCENE(a_broken_barrier_ends_the_wait),
        SCENE(a_round_that_is_over_is_dropped),
        SCENE(any_allocation_may_fail),
        cmocka_unit_test(any_order_of_ends_and_deaths_ends_well),
    };

    return cmocka_run_group_tests_name("finish", tests, NULL, NULL);
}
