/* One node's part in a static group: every state with every event. */
#include "handler/static_group.h"
#include "pure.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const state_names[] = {
#define X(name) #name,
    MU_STATIC_STATES(X)
#undef X
};

static const char *const event_names[] = {
#define X(name) #name,
    MU_STATIC_EVENTS(X)
#undef X
};

enum { WORLD = 2, TIMEOUT_MS = 10000, START_MS = 1000 };

struct scene {
    struct mu_static_place place;
    struct mu_static m;
    uint64_t now_ms;
    char text[512]; /* of the last step */
};

static void begin(struct scene *s, int64_t rank)
{
    *s = (struct scene){ .place = { .host = "h",
                                    .port = 1,
                                    .rank = rank,
                                    .world_size = WORLD,
                                    .timeout_ms = TIMEOUT_MS,
                                    .run_id = "job" },
                         .now_ms = START_MS };
    mu_static_init(&s->m, &s->place, rank == 0 ? "n0" : "n1", 70 + rank, 7);
}

static void finish(struct scene *s)
{
    mu_roster_done(&s->m.roster);
}

/* ---- Effects as words ---- */

static const char *told(enum muster_rdzv_event_type type)
{
    switch (type) {
    case MUSTER_RDZV_JOINED:
        return "joined";
    case MUSTER_RDZV_LEFT:
        return "left";
    case MUSTER_RDZV_CLOSED:
        return "closed";
    case MUSTER_RDZV_LOOKED:
        return "looked";
    case MUSTER_RDZV_PROGRESS:
        return "progress";
    case MUSTER_RDZV_FAILED:
        return "failed";
    default:
        return "?";
    }
}

static const char *call_name(const struct mu_static_effect *e)
{
    static const char *const names[] = {
        [MU_STATIC_KEY_COUNT] = "COUNT",       [MU_STATIC_KEY_HOST] = "CHECK_HOST",
        [MU_STATIC_KEY_ANNOUNCE] = "ANNOUNCE", [MU_STATIC_KEY_LOST] = "GET_LOST",
        [MU_STATIC_KEY_NODE] = "CLAIM",        [MU_STATIC_KEY_PROGRESS] = "GET_PROGRESS"
    };

    return e->key == MU_STATIC_KEY_NODE && e->kind == MU_CALL_GET ? "GET_RANK_0" : names[e->key];
}

static void add_effect(struct scene *s, const struct mu_static_effect *e)
{
    static const char *const effects[] = {
#define X(name) #name,
        MU_STATIC_EFFECTS(X)
#undef X
    };
    size_t used = strlen(s->text), room = sizeof s->text - used;
    char *to = s->text + used;

    switch (e->type) {
    case MU_STATIC_DO_CALL:
        (void)snprintf(to, room, " %s(%" PRId64 ")", call_name(e), e->number);
        break;
    case MU_STATIC_DO_PROGRESS:
        (void)snprintf(to, room, " PROGRESS(%" PRId64 ": %" PRId64 "%s)", e->number, s->m.progress.joined,
                       s->m.progress.open ? ", open" : "");
        break;
    case MU_STATIC_DO_WRITE:
        if (e->key == MU_STATIC_KEY_NODE)
            (void)snprintf(to, room, " FREE_RANK(%" PRId64 ")", e->number);
        else
            (void)snprintf(to, room, " WRITE_LOST(%s)", e->text);
        break;
    case MU_STATIC_DO_TELL:
        if (e->tell == MUSTER_RDZV_FAILED)
            (void)snprintf(to, room, " tell failed %s", e->request == MUSTER_RDZV_REQUEST_JOIN ? "join" : "membership");
        else
            (void)snprintf(to, room, " tell %s", told(e->tell));
        break;
    default:
        (void)snprintf(to, room, " %s", effects[e->type]);
    }
}

/* ---- Events as words: NAME, NAME=argument, NAME!CODE ---- */

static const struct {
    const char *name;
    int code;
} codes[] = { { "IN_USE", MUSTER_EADDRINUSE },
              { "REFUSED", MUSTER_ECONNECT },
              { "TIMEOUT", MUSTER_ETIMEOUT },
              { "GONE", MUSTER_ELOST } };

static enum mu_static_event_type type_of(const char *word)
{
    size_t len = strcspn(word, "=!");

    for (int type = 0; type <= MU_STATIC_ON_CLOSED; type++) {
        const char *name = event_names[type];

        if (strlen(name) == len && strncmp(name, word, len) == 0)
            return (enum mu_static_event_type)type;
    }
    fail_msg("there is no event '%s'", word);
    return MU_STATIC_ON_TURN;
}

/* TIME=n: n ms later. Arguments of COUNTED, ANNOUNCED and GONE begin with the number of the connection. */
static const char *step(struct scene *s, const char *word)
{
    struct mu_static_event event = { .type = type_of(word) };
    const char *argument = strchr(word, '='), *code = strchr(word, '!');
    struct muster_error error = { .text = "it went wrong" };
    struct mu_static_effects out;

    argument = argument == NULL ? "" : argument + 1;
    for (size_t i = 0; code != NULL && i < COUNT(codes); i++) {
        if (strcmp(codes[i].name, code + 1) == 0)
            error.code = codes[i].code;
    }
    event.error = code == NULL ? NULL : &error;
    if (event.type == MU_STATIC_ON_LOST && code == NULL) {
        error.code = MUSTER_ELOST;
        event.error = &error;
    }
    event.bytes = strcmp(argument, "mine") == 0 ? mu_slice_str(s->m.record) : mu_slice_str(argument);
    event.number = strtoll(argument, NULL, 10);
    if (event.type == MU_STATIC_ON_COUNTED || event.type == MU_STATIC_ON_ANNOUNCED || event.type == MU_STATIC_ON_GONE) {
        const char *rest = strchr(argument, ' ');

        event.connection = (uint64_t)event.number;
        rest = rest == NULL ? "" : rest + 1;
        event.bytes = mu_slice_str(rest);
        event.number = strtoll(rest, NULL, 10);
    }
    if (event.type == MU_STATIC_ON_TIME)
        s->now_ms += (uint64_t)event.number;
    event.now_ms = s->now_ms;
    mu_static_step(&s->m, &event, &out);
    (void)snprintf(s->text, sizeof s->text, "%s", state_names[s->m.state]);
    for (size_t i = 0; i < out.count; i++)
        add_effect(s, &out.items[i]);
    if (mu_static_wants_turn(&s->m))
        strcat(s->text, " +turn");
    return s->text;
}

/* Words between commas without a blank; "~" stands for turns until none is wanted. */
static void play(struct scene *s, const char *path)
{
    char word[100];

    while (path[0] != '\0') {
        size_t len = strcspn(path, ",");

        while (path[len] == ',' && path[len + 1] == ' ')
            len += 1 + strcspn(path + len + 1, ",");
        assert_in_range(len, 1, sizeof word - 1);
        memcpy(word, path, len);
        word[len] = '\0';
        path += len + (path[len] == ',');
        if (word[0] != '~')
            (void)step(s, word);
        for (int i = 0; word[0] == '~' && mu_static_wants_turn(&s->m); i++) {
            if (strstr(step(s, "TURN"), "PROGRESS(") != NULL)
                (void)step(s, "WRITTEN");
            assert_true(i < 20);
        }
    }
}

/* ---- Every state with every event ---- */

#define R1_ASKING "JOIN,~,CONNECTED,~"
#define R1_COUNTING R1_ASKING ",ANSWERED=1,ANSWERED,ANSWERED=mine"
#define R1_GATHERING R1_COUNTING ",ANSWERED"
#define R1_OPEN R1_GATHERING ",ANSWERED=1 2,~"
#define R0_COUNTING "JOIN,~,SERVED,CONNECTED,ANSWERED=1,ANNOUNCED=1 0 a 70 n0,ANSWERED,ANSWERED=mine,COUNTED=1 1,~"
#define R0_GATHERING R0_COUNTING ",ANSWERED,~"
#define R0_OPEN R0_GATHERING ",ANNOUNCED=2 1 b 71 n1,COUNTED=2 2,~"

enum { ROWS_MAX = 12 };

static const struct situation {
    int64_t rank;
    const char *path;
    const char *state;
    struct {
        const char *event, *expected;
    } rows[ROWS_MAX]; /* every event that is not here changes nothing and has no effects */
} situations[] = {
    { 1, "", "IDLE", { { "JOIN", "IDLE +turn" }, { "LEAVE", "IDLE +turn" }, { "FREE", "ENDING END" } } },
    { 1, "JOIN", "IDLE +turn", { { "TURN", "CONNECTING CONNECT +turn" }, { "FREE", "ENDING END" } } },
    { 0, "JOIN", "IDLE +turn", { { "TURN", "SERVING SERVE +turn" }, { "FREE", "ENDING END" } } },
    { 0,
      "JOIN,~",
      "SERVING",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "SERVED", "CONNECTING CONNECT" },
        { "SERVED!IN_USE", "DISPUTED CONNECT" },
        { "SERVED!REFUSED", "CLOSING CLOSE +turn" },
        { "COUNTED=1 1", "SERVING +turn" },
        { "WRITTEN", "SERVING +turn" } } },
    { 0,
      "JOIN,~,SERVED!IN_USE",
      "DISPUTED",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "CONNECTED", "DISPUTED GET_RANK_0(0)" },
        { "CONNECTED!REFUSED", "CLOSING CLOSE +turn" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED=", "CLOSING CLOSE +turn" },
        { "ANSWERED=a 5 other", "CLOSING CLOSE +turn" },
        { "ANSWERED!TIMEOUT", "CLOSING CLOSE +turn" },
        { "COUNTED=1 1", "DISPUTED +turn" },
        { "WRITTEN", "DISPUTED +turn" } } },
    { 1,
      "JOIN,~",
      "CONNECTING",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "CONNECTED", "ASKING CHECK_HOST(-1) +turn" },
        { "CONNECTED!TIMEOUT", "CLOSING CLOSE +turn" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED!TIMEOUT", "CLOSING CLOSE +turn" } } },
    { 1,
      R1_ASKING,
      "ASKING",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED=1", "ANNOUNCING ANNOUNCE(-1)" },
        { "ANSWERED=0", "COUNTING COUNT(-1)" },
        { "ANSWERED!GONE", "CLOSING CLOSE +turn" } } },
    { 1,
      R1_ASKING ",ANSWERED=1",
      "ANNOUNCING",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED", "CLAIMING CLAIM(1)" },
        { "ANSWERED!TIMEOUT", "CLOSING CLOSE +turn" } } },
    { 1,
      R1_ASKING ",ANSWERED=1,ANSWERED",
      "CLAIMING",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED=mine", "COUNTING COUNT(-1)" },
        { "ANSWERED=a 5 other", "CLOSING CLOSE +turn" },
        { "ANSWERED!TIMEOUT", "CLOSING CLOSE +turn" } } },
    { 1,
      R1_COUNTING,
      "COUNTING",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED=1", "GATHERING GET_PROGRESS(0)" },
        { "ANSWERED!TIMEOUT", "CLOSING CLOSE +turn" } } },
    { 1, /* PyTorch's rank 0 */
      R1_ASKING ",ANSWERED=0",
      "COUNTING",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED=1", "OPEN +turn" },
        { "ANSWERED!TIMEOUT", "CLOSING CLOSE +turn" } } },
    { 1,
      R1_GATHERING,
      "GATHERING",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "TIME=10000", "CLOSING CLOSE +turn" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED=0 1", "GATHERING GET_PROGRESS(1) +turn" },
        { "ANSWERED=1 2", "OPEN GET_LOST(-1) +turn" },
        { "ANSWERED=garbage", "GATHERING GET_PROGRESS(1)" },
        { "ANSWERED!TIMEOUT", "CLOSING CLOSE +turn" } } },
    { 0,
      R0_GATHERING,
      "GATHERING",
      { { "LEAVE", "CLOSING CLOSE +turn" },
        { "FREE", "ENDING END" },
        { "TIME=10000", "CLOSING CLOSE +turn" },
        { "COUNTED=2 2", "GATHERING +turn" },
        { "COUNTED=2 many", "GATHERING" },
        { "GONE=1", "GATHERING FREE_RANK(0)" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED!GONE", "CLOSING CLOSE +turn" },
        { "WRITTEN!REFUSED", "GATHERING" } } },
    { 1,
      R1_OPEN,
      "OPEN",
      { { "JOIN", "OPEN +turn" },
        { "LEAVE", "OPEN +turn" },
        { "FREE", "LEAVING GOODBYE" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED=n0 (pid 70), rank 0", "CLOSING CLOSE +turn" },
        { "ANSWERED!GONE", "CLOSING CLOSE +turn" } } },
    { 1, /* PyTorch's rank 0 */
      R1_ASKING ",ANSWERED=0,ANSWERED=1,~",
      "OPEN",
      { { "JOIN", "OPEN +turn" },
        { "LEAVE", "OPEN +turn" },
        { "FREE", "ENDING END" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED!GONE", "CLOSING CLOSE +turn" } } },
    { 0,
      R0_OPEN,
      "OPEN",
      { { "JOIN", "OPEN +turn" },
        { "LEAVE", "OPEN +turn" },
        { "FREE", "ENDING END" },
        { "GONE=1", "OPEN FREE_RANK(0)" },
        { "GONE=2", "BROKEN FREE_RANK(1) WRITE_LOST(n1 (pid 71), rank 1) +turn" },
        { "LOST", "CLOSING CLOSE +turn" },
        { "ANSWERED!GONE", "CLOSING CLOSE +turn" } } },
    { 0,
      R0_OPEN ",GONE=2,~",
      "BROKEN",
      { { "JOIN", "BROKEN +turn" },
        { "LEAVE", "BROKEN +turn" },
        { "FREE", "LINGERING CLOSE_CLIENT" },
        { "GONE=1", "BROKEN FREE_RANK(0)" },
        { "LOST", "CLOSING CLOSE" } } },
    { 0,
      R0_OPEN ",GONE=2,~,JOIN",
      "BROKEN +turn",
      { { "TURN", "CLOSING CLOSE" }, { "FREE", "LINGERING CLOSE_CLIENT" }, { "LOST", "CLOSING CLOSE" } } },
    { 1,
      "JOIN,~,CONNECTED!REFUSED,~",
      "CLOSING",
      { { "LEAVE", "CLOSING +turn" }, { "FREE", "ENDING END" }, { "CLOSED", "IDLE" } } },
    { 1,
      "JOIN,~,CONNECTED!REFUSED,~,JOIN",
      "CLOSING",
      { { "LEAVE", "CLOSING +turn" }, { "FREE", "ENDING END" }, { "CLOSED", "IDLE +turn" } } },
    { 1, R1_OPEN ",FREE", "LEAVING", { { "SAID", "ENDING END" } } },
    { 0,
      R0_OPEN ",GONE=2,~,FREE",
      "LINGERING",
      { { "TIME=2000", "ENDING END" }, { "GONE=1", "ENDING FREE_RANK(0) END" } } },
    { 0, R0_OPEN ",FREE", "ENDING", { { "CLOSED", "FREED FREED" } } },
    { 0, R0_OPEN ",FREE,CLOSED", "FREED", { { NULL, NULL } } },
};

static bool is_freed(const char *state)
{
    return strcmp(state, "LEAVING") == 0 || strcmp(state, "LINGERING") == 0 || strcmp(state, "ENDING") == 0 ||
           strcmp(state, "FREED") == 0;
}

static void expect(const struct situation *situation, const char *event, const char *expected)
{
    struct scene s;

    begin(&s, situation->rank);
    play(&s, situation->path);
    (void)snprintf(s.text, sizeof s.text, "%s%s", state_names[s.m.state], mu_static_wants_turn(&s.m) ? " +turn" : "");
    if (strcmp(s.text, situation->state) != 0)
        fail_msg("'%s' leads to %s instead of %s", situation->path, s.text, situation->state);
    (void)step(&s, event);
    if (strcmp(s.text, expected) != 0)
        fail_msg("rank %" PRId64 ", %s, event %s: '%s' instead of '%s'", situation->rank, situation->state, event,
                 s.text, expected);
    finish(&s);
}

static void every_event_in_every_state(void **state)
{
    unsigned seen = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(situations); i++) {
        const struct situation *at = &situations[i];
        char turn[64];

        (void)snprintf(turn, sizeof turn, "%s%s", at->state, strstr(at->state, "+turn") == NULL ? " +turn" : "");
        for (int type = 0; type <= MU_STATIC_ON_CLOSED; type++) {
            bool listed = false;

            for (size_t row = 0; row < ROWS_MAX && at->rows[row].event != NULL; row++) {
                if ((int)type_of(at->rows[row].event) != type)
                    continue;
                listed = true;
                expect(at, at->rows[row].event, at->rows[row].expected);
            }
            if (listed || (is_freed(at->state) && type <= MU_STATIC_ON_FREE))
                continue;
            if (type == MU_STATIC_ON_LOOK || type == MU_STATIC_ON_CLOSE) /* answered at the next turn */
                expect(at, event_names[type], turn);
            else if (type == MU_STATIC_ON_LEAVE)
                expect(at, "LEAVE", turn);
            else
                expect(at, event_names[type], at->state);
        }
        for (int s = 0; s <= MU_STATIC_FREED; s++) {
            const char *name = state_names[s];

            if (strncmp(at->state, name, strlen(name)) == 0)
                seen |= 1U << s;
        }
    }
    assert_int_equal(seen, (1U << (MU_STATIC_FREED + 1)) - 1);
}

/* ---- Stories ---- */

static void expect_turns(struct scene *s, const char *const *expected)
{
    for (; *expected != NULL; expected++)
        assert_string_equal(step(s, "TURN"), *expected);
    assert_false(mu_static_wants_turn(&s->m));
}
#define EXPECT_TURNS(s, ...) expect_turns(s, (const char *const[]){ __VA_ARGS__, NULL })

static void the_owner_is_told_one_thing_a_turn(void **state)
{
    struct scene s;

    (void)state;
    begin(&s, 1);
    play(&s, "JOIN,LOOK,CLOSE,LEAVE");
    EXPECT_TURNS(&s, "IDLE tell looked +turn", "IDLE tell closed +turn", "IDLE tell left");
    finish(&s);
}

static void a_join_after_a_leave_is_a_new_one(void **state)
{
    struct scene s;

    (void)state;
    begin(&s, 1);
    play(&s, R1_ASKING ",LEAVE,JOIN");
    EXPECT_TURNS(&s, "CLOSING tell left");
    assert_string_equal(step(&s, "CLOSED"), "IDLE +turn");
    EXPECT_TURNS(&s, "CONNECTING CONNECT +turn", "CONNECTING tell progress");
    finish(&s);
}

static void the_last_progress_is_told_before_the_join(void **state)
{
    struct scene s;

    (void)state;
    begin(&s, 1);
    play(&s, R1_GATHERING ",ANSWERED=1 2\n70 n0\n71 n1");
    EXPECT_TURNS(&s, "OPEN tell progress +turn", "OPEN tell joined");
    assert_int_equal(s.m.progress.joined, 2);
    assert_string_equal(s.m.progress.nodes[1].name, "n1");
    finish(&s);
}

/* Those that wait for this number would wait until their timeout. */
static void rank_0_writes_a_progress_again_that_had_no_room(void **state)
{
    struct scene s;

    (void)state;
    begin(&s, 0);
    play(&s, R0_GATHERING ",COUNTED=2 2");
    assert_string_equal(step(&s, "TURN"), "GATHERING PROGRESS(1: 2, open)");
    assert_string_equal(step(&s, "WRITTEN!REFUSED"), "GATHERING");
    assert_int_equal(mu_static_deadline_ms(&s.m), s.now_ms + 200);
    assert_string_equal(step(&s, "TIME=200"), "GATHERING PROGRESS(1: 2, open)");
    assert_string_equal(step(&s, "WRITTEN"), "OPEN +turn");
    finish(&s);
}

/* The group is open from the write on that says so: a node that dies in the same moment is a loss. */
static void a_node_that_dies_as_the_group_opens_is_lost(void **state)
{
    struct scene s;

    (void)state;
    begin(&s, 0);
    play(&s, R0_GATHERING ",ANNOUNCED=2 1 b 71 n1,COUNTED=2 2,TURN,WRITTEN");
    assert_string_equal(step(&s, "GONE=2"), "BROKEN FREE_RANK(1) WRITE_LOST(n1 (pid 71), rank 1) +turn");
    EXPECT_TURNS(&s, "BROKEN tell failed join"); /* it was not told JOINED yet */
    finish(&s);
}

static void rank_0_tells_the_first_at_once_and_then_every_200_ms(void **state)
{
    struct scene s;

    (void)state;
    begin(&s, 0);
    s.place.world_size = 9;
    play(&s, R0_GATHERING);
    assert_int_equal(s.m.written, 1);
    (void)step(&s, "COUNTED=2 2");
    assert_int_equal(mu_static_deadline_ms(&s.m), s.now_ms + 200);
    (void)step(&s, "TIME=100");
    (void)step(&s, "COUNTED=3 3");
    assert_int_equal(mu_static_deadline_ms(&s.m), s.now_ms + 100);
    assert_string_equal(step(&s, "TIME=100"), "GATHERING PROGRESS(1: 3)");
    finish(&s);
}

static void a_killed_node_ends_the_membership_and_a_goodbye_does_not(void **state)
{
    struct scene s;

    (void)state;
    begin(&s, 0);
    play(&s, R0_OPEN ",ANNOUNCED=2 left");
    assert_string_equal(step(&s, "GONE=2"), "OPEN FREE_RANK(1)");
    assert_false(mu_static_wants_turn(&s.m));
    finish(&s);
    begin(&s, 0);
    play(&s, R0_OPEN ",GONE=2");
    EXPECT_TURNS(&s, "BROKEN tell failed membership");
    assert_non_null(strstr(s.m.error.text, ": lost n1 (pid 71), rank 1; a static group cannot go on without"));
    finish(&s);
}

static void a_failure_that_is_still_to_be_told_stays_as_it_is(void **state)
{
    struct scene s;

    (void)state;
    begin(&s, 0);
    play(&s, R0_OPEN ",GONE=2,LOST");
    assert_non_null(strstr(s.m.error.text, ": lost n1 (pid 71)"));
    EXPECT_TURNS(&s, "CLOSING tell failed membership");
    finish(&s);
}

static void errors_name_the_place_and_the_cause(void **state)
{
    static const struct {
        int64_t rank;
        const char *path, *text;
        int code;
    } rows[] = {
        { 1, R1_GATHERING ",ANSWERED=0 1\n70 n0,TIME=10000",
          "static rendezvous at h, port 1, as rank 1 of 2: timed out after 10 s: 1 of 2 nodes joined (n0)",
          MUSTER_ERDZV_TIMEOUT },
        { 0, R0_GATHERING ",TIME=10000", "timed out after 10 s: 1 of 2 nodes joined (n0)", MUSTER_ERDZV_TIMEOUT },
        { 1, R1_GATHERING ",ANSWERED!TIMEOUT", "timed out after 10 s: 0 of 2 nodes joined", MUSTER_ERDZV_TIMEOUT },
        { 1, R1_ASKING ",ANSWERED!TIMEOUT", "it went wrong", MUSTER_ERDZV_TIMEOUT },
        { 1, "JOIN,~,CONNECTED!REFUSED", "it went wrong", MUSTER_ERDZV_CONNECTION },
        { 1, R1_ASKING ",ANSWERED=1,ANSWERED,ANSWERED=a 5 other",
          "rank 1 is taken by other (pid 5); every node needs its own --node-rank", MUSTER_ERDZV_STATE },
        { 1, R1_ASKING ",ANSWERED=1,ANSWERED,ANSWERED=?", "rank 1 is taken", MUSTER_ERDZV_STATE },
        { 0, "JOIN,~,SERVED!IN_USE,CONNECTED,ANSWERED=a 5 other", "rank 0 is taken by other (pid 5)",
          MUSTER_ERDZV_STATE },
        { 0, "JOIN,~,SERVED!IN_USE,CONNECTED,ANSWERED!TIMEOUT", "it went wrong", MUSTER_ERDZV_CONNECTION },
        { 0, "JOIN,~,SERVED!IN_USE,CONNECTED!TIMEOUT", "it went wrong", MUSTER_ERDZV_CONNECTION },
        { 1, R1_OPEN ",ANSWERED=n2 (pid 9), rank 2", "lost n2 (pid 9), rank 2; a static group cannot go on",
          MUSTER_ERDZV_CONNECTION },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene s;

        begin(&s, rows[i].rank);
        play(&s, rows[i].path);
        assert_int_equal(s.m.state, MU_STATIC_CLOSING);
        assert_int_equal(s.m.error.code, rows[i].code);
        if (strstr(s.m.error.text, rows[i].text) == NULL)
            fail_msg("'%s' does not say '%s'", s.m.error.text, rows[i].text);
        finish(&s);
    }
}

/* So that the end of an old connection cannot free the rank that the new one holds. */
static void every_try_has_a_record_of_its_own(void **state)
{
    char first[MU_ROSTER_RECORD_MAX];
    struct scene s;

    (void)state;
    begin(&s, 1);
    play(&s, "JOIN,~");
    memcpy(first, s.m.record, sizeof first);
    play(&s, "CONNECTED!REFUSED,~,CLOSED,JOIN,~");
    assert_string_not_equal(first, s.m.record);
    finish(&s);
}

/* ---- What is in rank 0's store ---- */

static void assert_slice(struct mu_slice slice, const char *expected)
{
    assert_int_equal(slice.len, strlen(expected));
    if (slice.len > 0)
        assert_memory_equal(slice.data, expected, slice.len);
}

static void every_key_has_its_name(void **state)
{
    static const struct {
        enum mu_static_key key;
        const char *name;
    } rows[] = {
        { MU_STATIC_KEY_COUNT, "init/" },
        { MU_STATIC_KEY_MASTER_ADDR, "/job/MASTER_ADDR" },
        { MU_STATIC_KEY_MASTER_PORT, "/job/MASTER_PORT" },
        { MU_STATIC_KEY_HOST, "/muster.job/static/host" },
        { MU_STATIC_KEY_ANNOUNCE, "/muster.job/static/announce" },
        { MU_STATIC_KEY_LOST, "/muster.job/static/lost" },
        { MU_STATIC_KEY_NODE, "/muster.job/static/node/7" },
        { MU_STATIC_KEY_PROGRESS, "/muster.job/static/progress/7" },
    };
    char key[MU_STATIC_KEY_MAX];
    struct scene s;

    (void)state;
    begin(&s, 0);
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_slice(mu_static_key(&s.place, rows[i].key, 7, key), rows[i].name);
    finish(&s);
}

static void the_longest_run_id_fits_into_a_key(void **state)
{
    char key[MU_STATIC_KEY_MAX];
    struct mu_slice made;
    struct scene s;

    (void)state;
    begin(&s, 0);
    memset(s.place.run_id, 'r', MU_RDZV_RUN_ID_MAX);
    made = mu_static_key(&s.place, MU_STATIC_KEY_PROGRESS, INT64_MAX, key);
    assert_int_equal(made.len, strlen(key));
    finish(&s);
}

static void agents_of_1_13_find_the_endpoint_in_the_store(void **state)
{
    struct mu_static_value rows[MU_STATIC_FIRST];
    struct scene s;

    (void)state;
    begin(&s, 0);
    assert_int_equal(mu_static_first_values(&s.place, rows), 1);
    assert_int_equal(rows[0].key, MU_STATIC_KEY_HOST);
    assert_string_equal(rows[0].text, "1");
    s.place.old_dialect = true;
    assert_int_equal(mu_static_first_values(&s.place, rows), 3);
    assert_int_equal(rows[1].key, MU_STATIC_KEY_MASTER_ADDR);
    assert_string_equal(rows[1].text, "h");
    assert_int_equal(rows[2].key, MU_STATIC_KEY_MASTER_PORT);
    assert_string_equal(rows[2].text, "1");
    finish(&s);
}

static void every_call_has_its_key_and_value(void **state)
{
    static const struct {
        enum mu_static_effect_type type;
        enum mu_call_kind kind;
        enum mu_static_key key;
        const char *name, *value, *desired;
    } rows[] = {
        { MU_STATIC_DO_CALL, MU_CALL_CHECK, MU_STATIC_KEY_HOST, "muster.job/static/host", "", "" },
        { MU_STATIC_DO_CALL, MU_CALL_GET, MU_STATIC_KEY_NODE, "muster.job/static/node/4", "", "" },
        { MU_STATIC_DO_CALL, MU_CALL_SET, MU_STATIC_KEY_ANNOUNCE, "muster.job/static/announce", "1 RECORD", "" },
        { MU_STATIC_DO_CALL, MU_CALL_COMPARE_SET, MU_STATIC_KEY_NODE, "muster.job/static/node/4", "", "RECORD" },
        { MU_STATIC_DO_CALL, MU_CALL_ADD, MU_STATIC_KEY_COUNT, "init/", "", "" },
        { MU_STATIC_DO_CALL, MU_CALL_GET, MU_STATIC_KEY_PROGRESS, "muster.job/static/progress/4", "", "" },
        { MU_STATIC_DO_CALL, MU_CALL_GET, MU_STATIC_KEY_LOST, "muster.job/static/lost", "", "" },
        { MU_STATIC_DO_GOODBYE, MU_CALL_SET, MU_STATIC_KEY_ANNOUNCE, "muster.job/static/announce", "left", "" },
    };
    struct scene s;

    (void)state;
    begin(&s, 1);
    (void)snprintf(s.m.record, sizeof s.m.record, "RECORD");
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_static_call_texts texts;
        const struct mu_static_effect effect = {
            .type = rows[i].type, .kind = rows[i].kind, .key = rows[i].key, .number = 4
        };
        struct mu_call call = mu_static_call(&s.m, &effect, &texts);
        struct muster_slice key = call.count == 1 ? call.keys[0] : call.key;

        assert_int_equal(call.kind, rows[i].kind);
        assert_slice(mu_slice(key.data, key.len), rows[i].name);
        assert_slice(mu_slice(call.value.data, call.value.len), rows[i].value);
        assert_slice(mu_slice(call.desired.data, call.desired.len), rows[i].desired);
        assert_int_equal(call.raw_key, rows[i].kind == MU_CALL_ADD);
        assert_int_equal(call.number, rows[i].kind == MU_CALL_ADD ? 1 : 0);
    }
    finish(&s);
}

/* ---- What the owner is told ---- */

static void read_event(const struct muster_rdzv_event *event, char text[static 100])
{
    (void)snprintf(text, 100, "%s%s%s%s", told(event->type), event->progress != NULL ? " progress" : "",
                   event->info != NULL ? " info" : "", event->error != NULL ? " error" : "");
    assert_int_equal(event->size, sizeof *event);
    assert_int_equal(event->round, -1);
    if (event->progress != NULL) {
        assert_int_equal(event->progress->min_nodes, WORLD);
        assert_int_equal(event->progress->join_left_ms, TIMEOUT_MS - 1);
    }
    if (event->info != NULL)
        assert_true(event->info->rank == 1 && event->info->bootstrap.master_port == 1 && event->old_dialect);
    if (event->error != NULL)
        assert_int_equal(event->request, MUSTER_RDZV_REQUEST_JOIN);
}

static void each_tell_brings_what_belongs_to_it(void **state)
{
    static const struct {
        enum muster_rdzv_event_type tell;
        const char *expected;
    } rows[] = { { MUSTER_RDZV_PROGRESS, "progress progress" },
                 { MUSTER_RDZV_JOINED, "joined info" },
                 { MUSTER_RDZV_FAILED, "failed error" },
                 { MUSTER_RDZV_LOOKED, "looked" },
                 { MUSTER_RDZV_CLOSED, "closed" },
                 { MUSTER_RDZV_LEFT, "left" } };
    struct scene s;

    (void)state;
    begin(&s, 1);
    s.place.old_dialect = true;
    play(&s, "JOIN,~");
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_static_effect effect = { .tell = rows[i].tell, .request = MUSTER_RDZV_REQUEST_JOIN };
        struct mu_static_told room;
        struct muster_rdzv_event event = mu_static_event(&s.m, &effect, START_MS + 1, &room);
        char text[100];

        read_event(&event, text);
        assert_string_equal(text, rows[i].expected);
    }
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_event_in_every_state),
        cmocka_unit_test(the_owner_is_told_one_thing_a_turn),
        cmocka_unit_test(a_join_after_a_leave_is_a_new_one),
        cmocka_unit_test(the_last_progress_is_told_before_the_join),
        cmocka_unit_test(rank_0_writes_a_progress_again_that_had_no_room),
        cmocka_unit_test(a_node_that_dies_as_the_group_opens_is_lost),
        cmocka_unit_test(rank_0_tells_the_first_at_once_and_then_every_200_ms),
        cmocka_unit_test(a_killed_node_ends_the_membership_and_a_goodbye_does_not),
        cmocka_unit_test(a_failure_that_is_still_to_be_told_stays_as_it_is),
        cmocka_unit_test(errors_name_the_place_and_the_cause),
        cmocka_unit_test(every_try_has_a_record_of_its_own),
        cmocka_unit_test(every_key_has_its_name),
        cmocka_unit_test(the_longest_run_id_fits_into_a_key),
        cmocka_unit_test(agents_of_1_13_find_the_endpoint_in_the_store),
        cmocka_unit_test(every_call_has_its_key_and_value),
        cmocka_unit_test(each_tell_brings_what_belongs_to_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
