/* One node's part in a rendezvous, event by event. Node a is the machine; the test is the store, the others, and
 * time. */
#include "rdzv/rdzv.h"

#include "failmalloc.h"
#include "rdzv_scene.h"

enum {
    START_MS = 100000,
    WALL_MS = 5000000, /* at the start */
    JOIN_MS = 600000,
    LAST_CALL_MS = 30000,
    CLOSE_MS = 30000,
    INTERVAL_MS = 5000,
    AGE_MS = 15000,
    LOST_MS = 30000, /* store_lost_timeout */
};

/* ---- The document as text ---- */

static int decode(struct mu_slice bytes, struct mu_doc *doc, struct muster_error *reterr)
{
    char text[DOC_TEXT_MAX];
    int rc = 0;

    while (bytes.len > 0 && bytes.data[bytes.len - 1] == ' ') /* of a document that is to be long */
        bytes.len--;
    assert_true(bytes.len < sizeof text);
    memcpy(text, bytes.data, bytes.len);
    text[bytes.len] = '\0';
    rc = doc_read(text, doc);
    return rc < 0 ? mu_fail(reterr, rc, "no document: %s", text) : 0;
}

static int encode(const struct mu_doc *doc, struct mu_buf *out)
{
    static struct words words;

    words.len = 0;
    write_doc(&words, doc, true);
    return mu_buf_append(out, words.text, words.len, SIZE_MAX);
}

/* "layout 7": a document of another kind. Anything else that is none begins with neither a number nor this. */
static bool is_other_layout(struct mu_slice bytes)
{
    return bytes.len >= 6 && memcmp(bytes.data, "layout", 6) == 0;
}

static const struct mu_doc_codec text_codec = { "text", decode, encode, is_other_layout };

/* ---- The driver ---- */

#define T(trace, expected) assert_string_equal(trace, expected)

struct scene {
    struct mu_rdzv_config config;
    struct mu_rdzv *r;
    uint64_t now_ms;
    int64_t wall_offset_ms;
    int64_t bell;
    uint64_t main_id, park_id, turn_id; /* of the last effect of that kind; 0: answered */
    enum mu_rdzv_effect_type main_type;
    uint64_t held_ms;           /* of the last READ */
    char token[4096];           /* that the machine was given last */
    unsigned tokens;            /* how many there were */
    char written[DOC_TEXT_MAX]; /* what is to be written, with its times */
    char digest[MU_RDZV_DIGEST_MAX];
    bool ever_written; /* with success */
    bool shows_records, shows_progress;
    struct words trace;
    unsigned long fail_at; /* so many allocations of the machine from now on one fails; 0: none */
    bool failed;
};

static void say(struct scene *s, const char *what)
{
    say_word(&s->trace, "%s%s", s->trace.len > 0 ? "; " : "", what);
}

static void say_nodes(struct scene *s, struct mu_rdzv_nodes nodes)
{
    for (size_t i = 0; i < nodes.count; i++)
        say_word(&s->trace, " %c", nodes.items[i].name.data[0]);
}

static void say_deeds(struct scene *s, struct mu_rdzv_deeds deeds)
{
    for (size_t i = 0; i < deeds.count; i++)
        say_word(&s->trace, "%s %s (%d)%s%s", i > 0 ? "," : "", mu_rdzv_action_text(deeds.items[i].action),
                 (int)deeds.items[i].round, deeds.items[i].ends_round ? " ends the round" : "",
                 deeds.items[i].ends_last_call ? " ends the last call" : "");
}

/* "0 a=0 b=0": without the times. */
static void say_doc(struct scene *s, const char *text)
{
    struct mu_doc doc;

    doc_is(&doc, text);
    write_doc(&s->trace, &doc, false);
    mu_doc_done(&doc);
}

/* "looked 2, 1 waits, closed", or why not. */
static void say_looked(struct scene *s, const struct mu_part_news *news)
{
    if (news->error != NULL) {
        say_word(&s->trace, " %s", muster_error_name(news->error->code));
        assert_int_equal(news->round, -1);
        assert_int_equal(news->count, 0);
        assert_false(news->closed);
    } else if (news->round >= 0) {
        say_word(&s->trace, " %d", (int)news->round);
    } else {
        say_word(&s->trace, " nothing");
    }
    if (news->count > 0)
        say_word(&s->trace, ", %d %s", (int)news->count, news->count == 1 ? "waits" : "wait");
    if (news->closed)
        say_word(&s->trace, ", closed");
}

static void note_tell(struct scene *s, const struct mu_rdzv_effect *effect)
{
    const struct mu_rdzv_world *world = mu_rdzv_world(s->r);

    if (effect->news.tell == MU_PART_TELL_PROGRESS && !s->shows_progress)
        return;
    say(s, mu_part_tell_text(effect->news.tell));
    switch (effect->news.tell) {
    case MU_PART_TELL_JOINED:
        assert_non_null(world);
        assert_int_equal(effect->news.round, world->round);
        say_word(&s->trace, " %d as %d of", (int)world->round, (int)world->rank);
        say_nodes(s, (struct mu_rdzv_nodes){ world->members, world->count });
        break;
    case MU_PART_TELL_WAITING:
        say_word(&s->trace, " %d", (int)effect->news.count);
        break;
    case MU_PART_TELL_LOST:
        say_nodes(s, mu_rdzv_lost(s->r));
        break;
    case MU_PART_TELL_FAILED:
        say_word(&s->trace, " to %s: %s", mu_rdzv_event_text((enum mu_rdzv_event_type)effect->news.asked),
                 muster_error_name(mu_rdzv_error(s->r)->code));
        break;
    case MU_PART_TELL_LOOKED:
        say_looked(s, &effect->news);
        break;
    case MU_PART_TELL_CLOSED:
        if (s->shows_records && effect->news.asked == MU_PART_ON_CLOSE)
            say_word(&s->trace, " by us");
        break;
    case MU_PART_TELL_BACKEND_DOWN:
        if (effect->news.host_lost)
            say_word(&s->trace, " with its host");
        break;
    case MU_PART_TELL_REMOVED:
    case MU_PART_TELL_LEFT:
    case MU_PART_TELL_BACKEND_UP:
    case MU_PART_TELL_PROGRESS:
    case MU_PART_TELL_REPORTED: /* not of this machine */
    case MU_PART_TELLS_COUNT:
        break;
    case MU_PART_TELL_FOREIGN:
        assert_int_equal(mu_rdzv_error(s->r)->code, MUSTER_ERDZV_STATE);
        say_word(&s->trace, strstr(mu_rdzv_error(s->r)->text, "waiting") == NULL ? " value" : " value, not ours");
        break;
    }
}

static void note_write(struct scene *s, const struct mu_rdzv_effect *effect)
{
    memcpy(s->written, effect->bytes.data, effect->bytes.len);
    s->written[effect->bytes.len] = '\0';
    say_word(&s->trace, " ");
    say_doc(s, s->written);
    if (effect->has_token)
        assert_true(mu_slice_equal(effect->token, mu_slice_str(s->token))); /* always on what was seen last */
    else
        say_word(&s->trace, " as new");
}

static void note(struct scene *s, const struct mu_rdzv_effect *effect)
{
    if (effect->type == MU_RDZV_DO_TELL) {
        note_tell(s, effect);
        return;
    }
    if (effect->type > MU_RDZV_DO_TELL && !s->shows_records)
        return;
    say(s, mu_rdzv_effect_text(effect->type));
    switch (effect->type) {
    case MU_RDZV_DO_WRITE:
        note_write(s, effect);
        /* fall through */
    case MU_RDZV_DO_READ:
        s->main_id = effect->id;
        s->main_type = effect->type;
        s->held_ms = effect->wait_ms;
        break;
    case MU_RDZV_DO_SETTLE:
        s->main_id = effect->id;
        s->main_type = effect->type;
        memcpy(s->digest, effect->bytes.data, effect->bytes.len);
        s->digest[effect->bytes.len] = '\0';
        say_word(&s->trace, " %d", (int)effect->round);
        break;
    case MU_RDZV_DO_PARK:
        s->park_id = effect->id;
        say_word(&s->trace, " %d", (int)effect->bell);
        break;
    case MU_RDZV_DO_TURN_WAIT:
        say_word(&s->trace, " %d at most %d", (int)effect->turn, (int)effect->wait_ms);
        /* fall through */
    case MU_RDZV_DO_TURN_TAKE:
        s->turn_id = effect->id;
        break;
    case MU_RDZV_DO_TURN_GIVE:
        say_word(&s->trace, " %d", (int)effect->turn);
        break;
    case MU_RDZV_DO_PLANNED:
        say_deeds(s, mu_rdzv_deeds(s->r));
        break;
    case MU_RDZV_DO_SYNCED:
        say_word(&s->trace, "%s", !effect->written ? ": stale" : effect->beat ? ": a heartbeat" : "");
        if (mu_rdzv_removed(s->r).count > 0)
            say_word(&s->trace, ", removed");
        say_nodes(s, mu_rdzv_removed(s->r));
        break;
    case MU_RDZV_DO_RING:
    case MU_RDZV_DO_TELL:
        break;
    }
}

/* Feeds one event; what it brings about: "write 0 a=0; ring". */
static const char *step(struct scene *s, struct mu_rdzv_event event)
{
    struct mu_rdzv_effects effects;

    event.now_ms = s->now_ms;
    event.wall_us = ((int64_t)s->now_ms - START_MS + WALL_MS + s->wall_offset_ms) * 1000;
    fail_alloc_at(s->fail_at);
    mu_rdzv_step(s->r, &event, &effects);
    if (fail_alloc_hit()) {
        s->fail_at = 0;
        s->failed = true;
    } else if (s->fail_at > 0) {
        s->fail_at -= fail_alloc_count();
    }
    fail_alloc_at(0);
    s->trace.len = 0;
    s->trace.text[0] = '\0';
    for (unsigned i = 0; i < effects.count; i++)
        note(s, &effects.items[i]);
    /* Whoever sets a timer to the deadline never spins. */
    assert_true(mu_rdzv_deadline_ms(s->r) > s->now_ms);
    return s->trace.text;
}

static const char *ask(struct scene *s, enum mu_rdzv_event_type type)
{
    return step(s, (struct mu_rdzv_event){ .type = type });
}

/* Time passes, and nothing else. */
static const char *pass(struct scene *s, uint64_t ms)
{
    s->now_ms += ms;
    return ask(s, MU_RDZV_TIME);
}

/* Time passes until the machine wants it. */
static const char *wake(struct scene *s)
{
    uint64_t deadline_ms = mu_rdzv_deadline_ms(s->r);

    assert_true(deadline_ms != UINT64_MAX);
    return pass(s, deadline_ms - s->now_ms);
}

static uint64_t take_id(uint64_t *id)
{
    uint64_t taken = *id;

    assert_true(taken != 0);
    *id = 0;
    return taken;
}

static struct mu_rdzv_event document(struct scene *s, enum mu_rdzv_event_type type, const char *text)
{
    struct mu_rdzv_event event = { .type = type, .id = take_id(&s->main_id), .found = text != NULL };

    doc_now_ms = (int64_t)s->now_ms;
    event.bell = s->bell;
    if (text != NULL) {
        (void)snprintf(s->token, sizeof s->token, "token %u", ++s->tokens);
        event.bytes = mu_slice_str(text);
        event.token = mu_slice_str(s->token);
    }
    return event;
}

/* The read finds this; NULL: nothing. */
static const char *state(struct scene *s, const char *text)
{
    assert_int_equal(s->main_type, MU_RDZV_DO_READ);
    return step(s, document(s, MU_RDZV_STATE, text));
}

/* The write finds this, and does nothing. */
static const char *lost(struct scene *s, const char *text)
{
    assert_int_equal(s->main_type, MU_RDZV_DO_WRITE);
    return step(s, document(s, MU_RDZV_WRITTEN, text));
}

static const char *written(struct scene *s)
{
    struct mu_rdzv_event event;

    assert_int_equal(s->main_type, MU_RDZV_DO_WRITE);
    event = document(s, MU_RDZV_WRITTEN, s->written);
    event.written = true;
    s->ever_written = true;
    return step(s, event);
}

static const char *settled(struct scene *s, const char *digest)
{
    assert_int_equal(s->main_type, MU_RDZV_DO_SETTLE);
    return step(s, (struct mu_rdzv_event){ .type = MU_RDZV_SETTLED,
                                           .id = take_id(&s->main_id),
                                           .bytes = mu_slice_str(digest != NULL ? digest : s->digest) });
}

static const char *fails_with(struct scene *s, uint64_t id, int code, bool gone)
{
    struct muster_error error = { .code = code, .text = "connection reset" };

    return step(s, (struct mu_rdzv_event){ .type = MU_RDZV_REQUEST_FAILED, .id = id, .error = &error, .gone = gone });
}

static const char *fails(struct scene *s)
{
    return fails_with(s, take_id(&s->main_id), MUSTER_ERDZV_CONNECTION, false);
}

static const char *is_gone(struct scene *s)
{
    return fails_with(s, take_id(&s->main_id), MUSTER_ERDZV_CONNECTION, true);
}

static const char *turn(struct scene *s, int64_t number, int64_t done)
{
    return step(s, (struct mu_rdzv_event){
                       .type = MU_RDZV_TURN, .id = take_id(&s->turn_id), .turn = number, .turns_done = done });
}

static const char *turn_came(struct scene *s, bool found, int64_t done)
{
    return step(s, (struct mu_rdzv_event){
                       .type = MU_RDZV_TURN_CAME, .id = take_id(&s->turn_id), .found = found, .turns_done = done });
}

static const char *rung(struct scene *s)
{
    s->bell++;
    return step(s, (struct mu_rdzv_event){ .type = MU_RDZV_RUNG, .id = take_id(&s->park_id) });
}

static const char *host_is(struct scene *s, char letter)
{
    struct mu_node node = node_of(letter);

    return step(s, (struct mu_rdzv_event){ .type = MU_RDZV_HOST, .node = letter != '\0' ? &node : NULL });
}

static enum mu_rdzv_phase phase(const struct scene *s)
{
    return mu_rdzv_phase(s->r);
}

static struct scene scene;

static struct scene *start_as(struct mu_rdzv_config config, int64_t min, int64_t max)
{
    struct scene *s = &scene;

    mu_rdzv_free(s->r);
    *s = (struct scene){ .config = config, .now_ms = START_MS };
    s->config.settings.nodes_min = min;
    s->config.settings.nodes_max = max;
    s->config.me = node_of('a');
    s->config.codec = &text_codec;
    s->config.hash_seed = hash_seed;
    assert_int_equal(mu_rdzv_new(&s->config, &s->r, NULL), 0);
    return s;
}

/* A node without bell, turns and settling, unless they are asked for. */
#define PLAIN .settings = MU_RDZV_SETTINGS_DEFAULT, .dialect = MU_DOC_DIALECT_2_X, .seed = 1
#define ALL PLAIN, .has_bell = true, .has_turns = true, .has_settle = true
#define START(min, max, ...) start_as((struct mu_rdzv_config){ __VA_ARGS__ }, min, max)

static int end(void **unused)
{
    (void)unused;
    mu_rdzv_free(scene.r);
    scene.r = NULL;
    return 0;
}

static bool is_keep_alive(const struct scene *s, const char *text)
{
    struct mu_doc before, after;
    struct words was = { .len = 0 }, is = { .len = 0 };

    if (s->main_id == 0 || s->main_type != MU_RDZV_DO_WRITE)
        return false;
    doc_is(&before, text);
    doc_is(&after, s->written);
    write_doc(&was, &before, false);
    write_doc(&is, &after, false);
    mu_doc_done(&before);
    mu_doc_done(&after);
    return strcmp(was.text, is.text) == 0;
}

/* For so long this is all that reads find, and keep-alives succeed. What happens beside that first, or "". */
static const char *watch(struct scene *s, uint64_t ms, const char *text)
{
    uint64_t end_ms = s->now_ms + ms;

    while (mu_rdzv_deadline_ms(s->r) <= end_ms) {
        const char *trace = wake(s);

        if (strcmp(trace, "read") == 0)
            trace = state(s, text);
        if (is_keep_alive(s, text))
            trace = written(s);
        if (trace[0] != '\0')
            return trace;
    }
    s->now_ms = end_ms;
    return "";
}

/* Looks at this until there is something to write. */
static void until_write(struct scene *s, const char *text)
{
    while (s->main_id == 0 || s->main_type != MU_RDZV_DO_WRITE) {
        T(wake(s), "read");
        (void)state(s, text);
    }
}

/* Joins and finds itself in this complete round, which somebody else has marked. */
static void be_member(struct scene *s, const char *text)
{
    char round[32];

    (void)snprintf(round, sizeof round, "%d", atoi(text));
    assert_string_equal(ask(s, MU_RDZV_JOIN), "read");
    (void)state(s, round);
    (void)written(s);
    assert_string_equal(pass(s, 1000), "read");
    (void)state(s, text);
    assert_int_equal(phase(s), MU_RDZV_PHASE_MEMBER);
}

/* ---- Joining ---- */

static void the_first_node_makes_the_document_and_the_last_one_completes_it(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, NULL), "write 0 a=0 as new");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "0 complete a=0@ b=1@"), "joined 0 as 0 of a b");
    assert_true(mu_rdzv_world(s->r)->all_ours && mu_rdzv_world(s->r)->dialect.zoned);

    s = START(2, 2, PLAIN);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 Z=0@"), "write 0 complete Z=0 a=1");
    T(written(s), "joined 0 as 1 of Z a");
    assert_false(mu_rdzv_world(s->r)->all_ours);
}

static void with_turns_a_bell_and_a_settled_digest(void **unused)
{
    struct scene *s = START(2, 2, ALL);

    (void)unused;
    s->bell = 7;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 5, 4), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "give turn 5; park 7");
    T(rung(s), "read");
    T(state(s, "0 complete a=0@ b=1@"), "settle 0");
    T(settled(s, NULL), "joined 0 as 0 of a b; park 8");

    s = START(2, 2, ALL);
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "0 b=0@"), "write 0 complete b=1 a=0");
    T(written(s), "ring; give turn 1; settle 0");
    T(settled(s, NULL), "joined 0 as 0 of a b; park 0");
}

static void what_is_written_is_recorded_and_then_what_became_of_it(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    s->shows_records = true;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 b=0@"),
      "write 0 complete b=1 a=0; planned add to participants (0), keep alive (0), mark complete (0)");
    T(written(s), "synced; joined 0 as 0 of a b");
    until_write(s, "0 complete a=0@ b=1@");
    T(s->trace.text, "write 0 complete a=0 b=1; planned keep alive (0)");
    T(written(s), "synced: a heartbeat");
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete closed a=0 b=1; planned mark closed (0)");
    T(written(s), "synced; closed by us");
}

static void what_was_in_vain_is_recorded_too(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    s->shows_records = true;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete b=0@ c=1@"), "write 0 complete b=0 c=1 a~; planned add to wait list (0), keep alive (0)");
    T(lost(s, "0 complete closed b=0@ c=1@"), "synced: stale; failed to join: ERDZV_CLOSED");
}

/* Out of one round and into the next with one write: each step bears the round that it was done in. */
static void the_end_of_a_round_or_of_a_last_call_is_recorded(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    s->shows_records = true;
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(state(s, "0 complete a=0@"), "write 1; planned remove from participants (0) ends the round");

    s = START(2, 3, PLAIN);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 b=0@"), "write 0 last-call b=0 a=0");
    (void)written(s);
    s->shows_records = true;
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(state(s, "0 last-call=9 b=0@ a=0@"), "write 0 b=0; planned remove from participants (0) ends the last call");

    s = START(2, 3, PLAIN); /* all members of the round are dead */
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete b=0@7 c=1@9"), "write 0 complete b=0 c=1 a~");
    (void)written(s);
    s->shows_records = true;
    until_write(s, "0 complete b=0@7 c=1@9 a~@");
    while (strstr(s->trace.text, "write 0") != NULL) { /* a heartbeat */
        T(written(s), "synced");
        until_write(s, "0 complete b=0@7 c=1@9 a~@");
    }
    T(s->trace.text, "write 1 a=0; planned add to participants (1) ends the round, keep alive (1)");
}

static void a_deed_bears_its_round(void **unused)
{
    struct scene *s = START(1, 2, PLAIN);

    (void)unused;
    be_member(s, "4 complete a=0@");
    s->shows_records = true;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 complete a=0@"),
      "write 5 complete a=0; planned remove from participants (4) ends the round, add to participants (5), keep "
      "alive (5), mark "
      "complete (5)");
}

static void the_end_of_a_last_call_is_recorded(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);
    const char *trace;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 last-call=1 b=0@ c=0@"), "write 0 last-call b=0 c=0 a=0");
    T(written(s), "");
    s->shows_records = true;
    do /* heartbeats of ours are recorded, too */
        trace = watch(s, LAST_CALL_MS + 100, "0 last-call=1 a=0@ b=0@ c=0@");
    while (strcmp(trace, "synced") == 0);
    T(trace, "write 0 complete a=0 b=1 c=2; planned mark complete (0)");
    T(written(s), "synced; joined 0 as 0 of a b c");
}

static void leaving_is_recorded_by_the_list_that_is_left(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    s->shows_records = true;
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1; planned remove from participants (0)");
    T(written(s), "synced; left");
}

static void a_close_by_another_node_is_not_ours(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    s->shows_records = true;
    T(watch(s, 2000, "0 complete closed a=0@ b=1@"), "closed");
}

static void whoever_was_removed_as_dead_is_recorded(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@");
    assert_non_null(strstr(watch(s, 2 * AGE_MS, "0 complete a=0@ b=1@7 c=2@9"), "lost b c"));
    s->shows_records = true;
    until_write(s, "0 complete a=0@ b=1@7 c=2@9");
    assert_non_null(strstr(s->trace.text, "write 0 complete a=0"));
    T(written(s), "synced: a heartbeat, removed b c");
}

static void progress_is_told_when_there_is_some(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);
    struct mu_part_progress progress;

    (void)unused;
    s->shows_progress = true;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4"), "progress; write 4 a=0");
    T(written(s), "progress");
    T(pass(s, 1000), "read");
    T(state(s, "4 a=0@"), "");
    T(pass(s, 1000), "read");
    T(state(s, "4 last-call=9 a=0@ b=0@"), "progress");
    progress = mu_rdzv_progress(s->r);
    assert_int_equal(progress.round, 4);
    assert_int_equal(progress.joined, 2);
    assert_true(progress.waiting == 0 && progress.spares == 0 && !progress.spare);
    assert_true(progress.last_call_until_ms >= s->now_ms + LAST_CALL_MS);
    assert_true(progress.last_call_until_ms <= s->now_ms + LAST_CALL_MS + 4);
    assert_true(progress.deadline_ms == START_MS + JOIN_MS);
}

static void a_lost_write_waits_a_moment_reads_and_writes(void **unused)
{
    struct scene *s = START(3, 4, PLAIN);
    uint64_t since_ms = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    since_ms = s->now_ms;
    while (lost(s, "0 b=0@")[0] != '\0') /* no moment at all is possible, too */
        T(s->trace.text, "write 0 b=0 a=0");
    T(wake(s), "read");
    assert_true(s->now_ms - since_ms < 64);
    T(state(s, "0 b=0@ c=0@"), "write 0 last-call b=0 c=0 a=0");
    T(written(s), "");
}

static void whose_turn_it_is_tries_again_at_once_but_not_for_ever(void **unused)
{
    struct scene *s = START(3, 4, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "0"), "write 0 a=0");
    for (unsigned i = 0; i < MU_RDZV_TURN_TRIES; i++)
        T(lost(s, "0 b=0@"), "write 0 b=0 a=0");
    assert_non_null(strstr(lost(s, "0 b=0@"), "give turn 1"));
    while (strstr(s->trace.text, "take turn") == NULL) {
        T(wake(s), "read");
        (void)state(s, "0 b=0@");
    }
    assert_true(s->now_ms < START_MS + 1000);
    T(turn(s, 5, 4), "read");
    T(state(s, "0 b=0@ c=0@"), "write 0 last-call b=0 c=0 a=0");
    assert_non_null(strstr(written(s), "give turn 5"));
}

static void the_moment_grows_up_to_a_second(void **unused)
{
    struct scene *s = START(3, 4, PLAIN);
    uint64_t longest_ms = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    for (unsigned i = 0; i < 60; i++) {
        uint64_t since_ms = s->now_ms;

        if (lost(s, "0 b=0@")[0] != '\0')
            continue; /* at once */
        until_write(s, "0 b=0@");
        T(s->trace.text, "write 0 b=0 a=0");
        longest_ms = s->now_ms - since_ms > longest_ms ? s->now_ms - since_ms : longest_ms;
    }
    assert_true(longest_ms > MU_RDZV_BACK_OFF_MAX_MS / 2 && longest_ms <= MU_RDZV_BACK_OFF_MAX_MS + 20);
}

/* The longest of 60 waits after a lost write. */
static uint64_t longest_wait_ms(uint64_t back_off_ms)
{
    struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;
    struct scene *s = NULL;
    uint64_t longest_ms = 0;

    settings.back_off_ms = back_off_ms;
    s = START(3, 4, .settings = settings, .dialect = MU_DOC_DIALECT_2_X, .seed = 1);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    for (unsigned i = 0; i < 60; i++) {
        uint64_t since_ms = s->now_ms;

        if (lost(s, "0 b=0@")[0] != '\0')
            continue; /* at once */
        until_write(s, "0 b=0@");
        longest_ms = s->now_ms - since_ms > longest_ms ? s->now_ms - since_ms : longest_ms;
    }
    return longest_ms;
}

static void the_moment_may_be_chosen_but_costs_no_heartbeat(void **unused)
{
    (void)unused;
    assert_in_range(longest_wait_ms(50), 40, 50);
    assert_in_range(longest_wait_ms(3000), 2500, 3000);
    assert_in_range(longest_wait_ms(UINT64_C(3600000)), AGE_MS / 5, AGE_MS / 4);
}

static void a_write_that_was_done_without_an_answer_is_not_done_twice(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(fails(s), "backend_down");
    T(wake(s), "read");
    (void)state(s, s->written);
    assert_int_equal(mu_rdzv_doc(s->r)->participants, 1);
    if (s->main_id != 0) { /* a heartbeat is all there may be to say */
        T(s->trace.text, "backend_up; write 0 a=0");
        s->shows_records = true;
        T(written(s), "synced");
        s->shows_records = false;
    }
    T(watch(s, 2000, "0 a=0@"), "");
}

static void a_completing_write_without_an_answer_has_completed(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 b=0@"), "write 0 complete b=1 a=0");
    T(fails(s), "backend_down");
    T(wake(s), "read");
    T(state(s, s->written), "backend_up; joined 0 as 0 of a b");
}

static void an_exit_and_join_without_an_answer_is_not_done_twice(void **unused)
{
    struct scene *s = START(1, 3, PLAIN);

    (void)unused;
    be_member(s, "4 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 complete a=0@ w~@"), "write 5 last-call w~ a=0");
    T(fails(s), "backend_down");
    T(wake(s), "read");
    T(state(s, s->written), "backend_up");
    T(wake(s), "read");
    T(state(s, "5 complete a=0@ w=1@"), "joined 5 as 0 of a w");
}

static void answers_that_nobody_waits_for_are_dropped(void **unused)
{
    struct scene *s = START(2, 2, ALL);
    struct mu_rdzv_event event = { .type = MU_RDZV_STATE, .found = true, .bytes = mu_slice_str("0 closed") };
    uint64_t park_id = 0;

    (void)unused;
    T(step(s, event), "");
    T(ask(s, MU_RDZV_JOIN), "take turn");
    for (uint64_t id = 2; id < 20; id++) {
        event.id = id;
        T(step(s, event), "");
    }
    T(turn(s, 1, 0), "read");
    event.id = 1; /* the turn's, which was answered */
    T(step(s, event), "");
    T(state(s, "0 c=0@"), "write 0 complete c=1 a=0");
    T(lost(s, "0 b=0@"), s->trace.text);
    T(ask(s, MU_RDZV_STOP), "give turn 1; left");
    event.id = s->main_id;
    T(step(s, event), "");
    park_id = s->park_id;
    event = (struct mu_rdzv_event){ .type = MU_RDZV_RUNG, .id = park_id };
    T(step(s, event), "");
    assert_int_equal(phase(s), MU_RDZV_PHASE_IDLE);
    assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);
}

/* ---- Turns ---- */

static void a_turn_is_waited_for_as_long_as_the_others_get_on(void **unused)
{
    struct scene *s = START(2, 2, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 9, 5), "wait for turn 8 at most 400");
    s->now_ms += 400;
    T(turn_came(s, false, 6), "wait for turn 8 at most 300"); /* somebody got on */
    s->now_ms += 300;
    T(turn_came(s, false, 6), "read"); /* nobody did: they are gone */
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "give turn 9; park 0");
}

static void a_turn_that_came_is_used_at_once(void **unused)
{
    struct scene *s = START(2, 2, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 9, 5), "wait for turn 8 at most 400");
    T(turn_came(s, true, 8), "read");
}

static void a_turn_is_waited_for_two_seconds_at_a_time(void **unused)
{
    struct scene *s = START(2, 2, ALL);
    int64_t done = 1;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 100, done), "wait for turn 99 at most 2000");
    for (unsigned i = 0; i < 10; i++) {
        s->now_ms += 2000;
        assert_non_null(strstr(turn_came(s, false, ++done), "wait for turn 99 at most 2000"));
        if (s->main_id != 0)
            T(state(s, "0"), i == 0 ? "park 0" : "");
    }
    s->now_ms += 2000;
    T(turn_came(s, false, done), "read");
}

static void heartbeats_go_on_while_a_turn_is_waited_for(void **unused)
{
    struct scene *s = START(2, 3, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "0 complete b=0@ c=1@"), "write 0 complete b=0 c=1 a~");
    T(written(s), "ring; give turn 1; park 0");
    T(pass(s, 1000), "read");
    T(state(s, "1 b=0@ c=0@ a~@"), "take turn"); /* which does not come */
    s->shows_records = true;
    until_write(s, "1 b=0@ c=0@ a~@");
    T(s->trace.text, "write 1 b=0 c=0 a~; planned keep alive (1)");
    assert_true(s->now_ms <= START_MS + AGE_MS / 3 * 2 + 1000); /* not sooner, for the turn may come */
    T(written(s), "synced");
}

static void a_crowd_takes_turns_for_its_heartbeats(void **unused)
{
    struct scene *s = START(2, 20, ALL);
    struct words text = { .len = 0 };

    (void)unused;
    say_word(&text, "0 complete a=0@");
    for (int i = 1; i <= MU_RDZV_CROWD; i++)
        say_word(&text, " %c=%d@", 'a' + i, i);
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "give turn 1; park 0");
    T(pass(s, 1000), "read");
    T(state(s, text.text), "settle 0");
    assert_non_null(strstr(settled(s, NULL), "joined 0 as 0 of a b"));
    T(watch(s, INTERVAL_MS, text.text), "take turn");
    assert_true(s->now_ms <= START_MS + INTERVAL_MS);
    T(turn(s, 7, 5), "wait for turn 6 at most 1000"); /* with more patience: they have more to carry */
    T(turn_came(s, true, 6), "read");
    assert_non_null(strstr(state(s, text.text), "write 0 complete a=0 b=1"));
    T(written(s), "give turn 7");
    T(watch(s, INTERVAL_MS * 4 / 5 - 1, text.text), "");
    T(watch(s, INTERVAL_MS, text.text), "take turn");
    T(ask(s, MU_RDZV_STOP), "left");
}

static void while_a_turn_is_waited_for_the_document_is_looked_at(void **unused)
{
    struct scene *s = START(2, 2, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 30, 1), "wait for turn 29 at most 2000");
    T(wake(s), "read");
    assert_true(s->now_ms <= START_MS + MU_RDZV_POLL_MS);
    T(state(s, "0 b=0@"), "park 0"); /* but nothing is written without the turn */
    s->now_ms += 10;
    T(turn_came(s, true, 29), "read");
    T(state(s, "0 b=0@"), "write 0 complete b=1 a=0");
}

static void what_was_asked_for_before_the_turn_is_not_written_upon(void **unused)
{
    struct scene *s = START(2, 2, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 30, 1), "wait for turn 29 at most 2000");
    T(wake(s), "read");
    s->now_ms += 10;
    T(turn_came(s, true, 29), "");
    T(state(s, "0 b=0@"), "read");
    T(state(s, "0 b=0@"), "write 0 complete b=1 a=0");
}

static void without_turns_it_goes_on_without_turns(void **unused)
{
    struct scene *s = START(2, 2, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(fails_with(s, take_id(&s->turn_id), MUSTER_ERDZV_CONNECTION, false), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "park 0"); /* there is no turn to give on */

    s = START(2, 2, ALL);
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 3, 1), "wait for turn 2 at most 200");
    T(fails_with(s, take_id(&s->turn_id), MUSTER_ERDZV_CONNECTION, false), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "give turn 3; park 0");
}

static void a_turn_is_given_on_when_there_is_nothing_to_do_with_it(void **unused)
{
    struct scene *s = START(2, 2, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 3, 2), "read");
    T(state(s, "0 complete 1.13 b=0@ c=1@"), "give turn 3; park 0"); /* a surplus node of 1.13 */

    s = START(2, 2, ALL);
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 3, 2), "read");
    T(state(s, "0 closed"), "give turn 3; failed to join: ERDZV_CLOSED");

    s = START(2, 2, ALL);
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 3, 2), "read");
    T(state(s, "layout 7"), "give turn 3; failed to join: ERDZV_STATE");

    s = START(2, 2, ALL);
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 3, 2), "read");
    T(ask(s, MU_RDZV_LEAVE), "give turn 3; left");
}

/* ---- The last call ---- */

/* A last call that begins now ends by our clock, within a few milliseconds. */
static void assert_last_call(struct scene *s, const char *text)
{
    uint64_t began_ms = s->now_ms;
    const char *trace = watch(s, LAST_CALL_MS + 100, text);

    assert_non_null(strstr(trace, "complete"));
    assert_true(s->now_ms >= began_ms + LAST_CALL_MS && s->now_ms <= began_ms + LAST_CALL_MS + 20);
}

static void a_last_call_ends_by_our_own_clock(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 b=0@"), "write 0 last-call b=0 a=0");
    T(written(s), "");
    {
        char text[DOC_TEXT_MAX]; /* that very deadline, which in the document may be any time */
        struct mu_doc doc;

        doc_is(&doc, s->written);
        (void)snprintf(text, sizeof text, "0 last-call=%lld a=0@ b=0@", (long long)doc.deadline_us / 1000);
        mu_doc_done(&doc);
        assert_last_call(s, text);
    }
    T(s->trace.text, "write 0 complete a=0 b=1");
    T(written(s), "joined 0 as 0 of a b");
}

static void a_last_call_counts_from_when_we_first_saw_it(void **unused)
{
    struct scene *s = START(2, 5, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 last-call=1 b=0@ c=0@"), "write 0 last-call b=0 c=0 a=0"); /* it ended in 1970 */
    T(written(s), "");
    assert_last_call(s, "0 last-call=1 a=0@ b=0@ c=0@");
    T(s->trace.text, "write 0 complete a=0 b=1 c=2");
}

static void a_later_node_does_not_extend_the_last_call(void **unused)
{
    struct scene *s = START(2, 5, PLAIN);
    uint64_t began_ms = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 last-call=999999999 b=0@ c=0@"), "write 0 last-call b=0 c=0 a=0");
    T(written(s), "");
    began_ms = s->now_ms;
    T(watch(s, 20000, "0 last-call=999999999 a=0@ b=0@ c=0@"), "");
    T(watch(s, 20000, "0 last-call=999999999 a=0@ b=0@ c=0@ d=0@"), "write 0 complete a=0 b=1 c=2 d=3");
    assert_true(s->now_ms >= began_ms + LAST_CALL_MS && s->now_ms <= began_ms + LAST_CALL_MS + 20);
}

static void another_last_call_begins_anew(void **unused)
{
    struct scene *s = START(2, 5, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 last-call=50 b=0@ c=0@"), "write 0 last-call b=0 c=0 a=0");
    T(written(s), "");
    T(watch(s, 20000, "0 last-call=50 a=0@ b=0@ c=0@"), "");
    T(watch(s, 5000, "0 a=0@"), "");
    T(wake(s), "read");
    T(state(s, "0 last-call=50000 a=0@ d=0@"), "");
    assert_last_call(s, "0 last-call=50000 a=0@ d=0@");
}

static void a_null_deadline_waits_for_somebody_to_come(void **unused)
{
    struct scene *s = START(2, 5, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 b=0@ c=0@"), "write 0 b=0 c=0 a=0");
    T(written(s), "");
    T(watch(s, 100000, "0 a=0@ b=0@ c=0@"), "");
}

static void a_last_call_after_a_write_without_an_answer_ends_on_time(void **unused)
{
    struct scene *s = START(1, 4, PLAIN);
    char mine[DOC_TEXT_MAX];

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 last-call a=0");
    memcpy(mine, s->written, sizeof mine);
    T(fails(s), "backend_down");
    T(wake(s), "read");
    if (strcmp(state(s, mine), "backend_up") != 0)
        T(written(s), "");
    assert_last_call(s, mine);
    T(s->trace.text, "write 0 complete a=0");
}

/* ---- The adaptive last call ---- */

/* Was a member of round 4 with b and c; asks to join anew and is the last one out. */
static struct scene *was_in_round_4(struct mu_rdzv_config config)
{
    struct scene *s = start_as(config, 1, 4);

    be_member(s, "4 complete a=0@ b=1@ c=2@");
    return s;
}

#define WAS_IN_ROUND_4(...) was_in_round_4((struct mu_rdzv_config){ __VA_ARGS__ })

static void when_all_are_back_the_round_is_complete_at_once(void **unused)
{
    struct scene *s = WAS_IN_ROUND_4(PLAIN);

    (void)unused;
    T(watch(s, 1000, "4 complete a=0@ b=1@ c~@"), "lost c; waiting 1");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 complete a=0@ b~@ c~@"), "write 5 last-call b~ c~ a=0"); /* out and in with one write */
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "5 last-call=9 a=0@ b=0@ c~@"), "");
    T(pass(s, 1000), "read");
    T(state(s, "5 last-call=9 a=0@ b=0@ c=0@"), "write 5 complete a=0 b=1 c=2");
    T(written(s), "joined 5 as 0 of a b c");

    s = WAS_IN_ROUND_4(PLAIN); /* the last to come back writes once */
    T(watch(s, 1000, "4 complete a=0@ b=1@"), "lost c");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 last-call=9 b=0@ c=0@"), "write 5 complete b=1 c=2 a=0");
}

static void who_left_is_waited_for_a_second(void **unused)
{
    struct scene *s = WAS_IN_ROUND_4(PLAIN);
    uint64_t left_ms = 0;

    (void)unused;
    T(watch(s, 1000, "4 complete a=0@ b=1@"), "lost c");
    left_ms = s->now_ms;
    s->now_ms += 500;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 last-call=9 b=0@"), "write 5 last-call b=0 a=0"); /* c may come at any moment */
    T(written(s), "");
    T(wake(s), "read");
    assert_true(s->now_ms == left_ms + MU_RDZV_LEFT_MS);
    T(state(s, "5 last-call=9 a=0@ b=0@"), "write 5 complete a=0 b=1");
}

static void who_missed_a_round_does_not_know_whom_to_wait_for(void **unused)
{
    struct scene *s = WAS_IN_ROUND_4(PLAIN);

    (void)unused;
    T(watch(s, 1000, "4 complete a=0@ b=1@"), "lost c");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "6 last-call=9 b=0@ c=0@"), "write 6 last-call b=0 c=0 a=0");
    T(written(s), "");
    assert_last_call(s, "6 last-call=9 a=0@ b=0@ c=0@");
}

static void who_left_long_ago_is_not_waited_for(void **unused)
{
    struct scene *s = WAS_IN_ROUND_4(PLAIN);

    (void)unused;
    T(watch(s, 1000, "4 complete a=0@"), "lost b c");
    s->now_ms += MU_RDZV_LEFT_MS;
    T(pass(s, 0), "read");
    T(state(s, "4 complete a=0@"), "");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 complete a=0@"), "write 5 complete a=0");
}

static void who_is_dead_is_not_waited_for(void **unused)
{
    struct scene *s = WAS_IN_ROUND_4(PLAIN);

    (void)unused;
    T(watch(s, 2 * AGE_MS, "4 complete a=0@ b=1@7 c=2@7"), "lost b c");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 complete a=0@ b=1@7 c=2@7"), "write 5 complete a=0");
    T(written(s), "joined 5 as 0 of a");
}

static void a_lost_node_is_waited_for_as_long_as_asked(void **unused)
{
    struct scene *s = NULL;
    struct mu_rdzv_config config = { PLAIN };
    uint64_t lost_ms = 0;

    (void)unused;
    config.settings.lost_node_wait_ms = 10000;
    s = was_in_round_4(config);
    T(watch(s, 2 * AGE_MS, "4 complete a=0@ b=1@7 c=2@"), "lost b");
    lost_ms = s->now_ms;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 last-call=9 c=0@"), "write 5 last-call c=0 a=0");
    T(written(s), "");
    T(watch(s, 2 * LAST_CALL_MS, "5 last-call=9 a=0@ c=0@"), "write 5 complete a=0 c=1");
    assert_true(s->now_ms >= lost_ms + 10000 && s->now_ms <= lost_ms + 11000);
}

static void a_replacement_of_a_lost_node_is_welcome(void **unused)
{
    struct scene *s = WAS_IN_ROUND_4(PLAIN);

    (void)unused;
    T(watch(s, 2 * AGE_MS, "4 complete a=0@ b=1@7 c=2@"), "lost b");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 last-call=9 c=0@ n=0@"), "write 5 complete c=1 n=2 a=0");
}

static void waiting_nodes_hold_the_round_open(void **unused)
{
    struct scene *s = WAS_IN_ROUND_4(PLAIN);

    (void)unused;
    T(watch(s, 1000, "4 complete a=0@"), "lost b c");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 last-call=9 b=0@ c=0@ w~@"), "write 5 last-call b=0 c=0 w~ a=0");
    T(written(s), "");
    T(watch(s, 3000, "5 last-call=9 a=0@ b=0@ c=0@ w~@"), "");
    T(wake(s), "read");
    T(state(s, "5 last-call=9 a=0@ b=0@ c=0@"), "write 5 complete a=0 b=1 c=2");
}

static void spares_that_can_step_in_hold_the_round_open(void **unused)
{
    struct scene *s = WAS_IN_ROUND_4(PLAIN);

    (void)unused;
    T(watch(s, 1000, "4 complete a=0@"), "lost b c");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 last-call=9 b=0@ c=0@ z+@"), "write 5 last-call b=0 c=0 z+ a=0");
    T(written(s), "");
    T(watch(s, 3000, "5 last-call=9 a=0@ b=0@ c=0@ z+@"), "");
}

static void a_newcomer_never_ends_a_last_call_early(void **unused)
{
    struct scene *s = START(1, 4, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 last-call=9 b=0@ c=0@"), "write 5 last-call b=0 c=0 a=0");
    T(written(s), "");
    assert_last_call(s, "5 last-call=9 a=0@ b=0@ c=0@");
}

static void the_minimum_counts_also_when_all_are_back(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);

    (void)unused;
    be_member(s, "4 complete a=0@ b=1@");
    assert_non_null(strstr(watch(s, 2 * AGE_MS, "4 complete a=0@ b=1@7"), "lost b"));
    if (s->main_id != 0)
        T(written(s), "");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 complete a=0@"), "write 5 a=0");
    T(written(s), "");
    T(watch(s, 3 * LAST_CALL_MS, "5 a=0@"), "");
}

static void a_removed_node_is_a_newcomer(void **unused)
{
    struct scene *s = WAS_IN_ROUND_4(PLAIN);

    (void)unused;
    T(watch(s, 1000, "4 complete b=1@ c=2@"), "removed");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 last-call=9 b=0@ c=0@"), "write 5 last-call b=0 c=0 a=0");
    T(written(s), "");
    assert_last_call(s, "5 last-call=9 a=0@ b=0@ c=0@");
}

/* ---- When joining ends otherwise ---- */

static void a_participant_takes_itself_out_when_time_is_up(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "");
    T(watch(s, JOIN_MS + 100, "0 a=0@"), "write 0");
    assert_true(s->now_ms == START_MS + JOIN_MS + 1);
    T(written(s), "failed to join: ERDZV_TIMEOUT");
    assert_non_null(strstr(mu_rdzv_error(s->r)->text, "600 s"));
    assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);
}

static void a_waiting_node_takes_itself_out_when_time_is_up(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete b=0@ c=1@"), "write 0 complete b=0 c=1 a~");
    T(written(s), "");
    T(watch(s, JOIN_MS + 100, "0 complete b=0@ c=1@ a~@"), "write 0 complete b=0 c=1");
    T(written(s), "failed to join: ERDZV_TIMEOUT");
}

static void a_round_that_completes_in_time_for_nobody_but_us_counts(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "");
    T(watch(s, JOIN_MS, "0 a=0@"), "");
    T(pass(s, 1), "read");
    T(state(s, "0 complete a=0@ b=1@"), "joined 0 as 0 of a b");
}

static void a_silent_store_is_given_up_five_seconds_later(void **unused)
{
    struct scene *s = START(2, 3, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read"); /* and never an answer */
    assert_true(mu_rdzv_deadline_ms(s->r) == START_MS + JOIN_MS + MU_RDZV_ROLL_BACK_MS + 1);
    T(pass(s, JOIN_MS + MU_RDZV_ROLL_BACK_MS), "");
    T(pass(s, 1), "give turn 1; failed to join: ERDZV_TIMEOUT");
}

static void a_store_that_stays_away_is_the_reason(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(fails(s), "backend_down");
    while (strcmp(wake(s), "read") == 0)
        T(fails(s), "");
    T(s->trace.text, "failed to join: ERDZV_CONNECTION");
    assert_true(s->now_ms <= START_MS + JOIN_MS + MU_RDZV_ROLL_BACK_MS + 1);
    assert_non_null(strstr(mu_rdzv_error(s->r)->text, "connection reset"));
}

static void closed_is_closed(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 closed b=0@"), "failed to join: ERDZV_CLOSED");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 b=0@"), "write 0 last-call b=0 a=0");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "0 closed last-call=9 a=0@ b=0@"), "failed to join: ERDZV_CLOSED");
}

static void a_spare_waits_without_end_and_exits_in_good_order(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete b=0@ c=1@"), "write 0 complete b=0 c=1 a+");
    T(written(s), "");
    assert_true(mu_rdzv_progress(s->r).spare && mu_rdzv_progress(s->r).deadline_ms == UINT64_MAX);
    T(watch(s, 2 * JOIN_MS, "0 complete b=0@ c=1@ a+@"), "");
    T(wake(s), "read");
    T(state(s, "0 complete closed b=0@ c=1@ a+@"), "failed to join: ERDZV_GRACEFUL_EXIT");
}

/* Of a store that stays away it is no spare: nobody would ever call it. */
static void a_spare_of_a_store_that_is_gone_has_as_long_as_a_join(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);
    uint64_t gone_ms = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete b=0@ c=1@"), "write 0 complete b=0 c=1 a+");
    T(written(s), "");
    T(watch(s, 2 * JOIN_MS, "0 complete b=0@ c=1@ a+@"), "");
    T(wake(s), "read");
    T(is_gone(s), "backend_down");
    T(wake(s), "read");
    T(state(s, "0 complete b=0@ c=1@ a+@"), "backend_up"); /* it is back, and lists us */
    T(watch(s, 2 * JOIN_MS, "0 complete b=0@ c=1@ a+@"), "");
    T(wake(s), "read");
    gone_ms = s->now_ms;
    T(is_gone(s), "backend_down");
    while (strcmp(wake(s), "read") == 0 && s->now_ms < gone_ms + 2 * JOIN_MS)
        (void)is_gone(s);
    assert_int_equal(mu_rdzv_phase(s->r), MU_RDZV_PHASE_IDLE);
    assert_int_equal(mu_rdzv_error(s->r)->code, MUSTER_ERDZV_CONNECTION);
    assert_true(s->now_ms >= gone_ms + JOIN_MS && s->now_ms < gone_ms + 2 * JOIN_MS);
}

static void a_spare_steps_in_and_its_time_begins_anew(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);
    uint64_t stepped_in_ms = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete b=0@ c=1@"), "write 0 complete b=0 c=1 a+");
    T(written(s), "");
    T(watch(s, 2 * JOIN_MS, "0 complete b=0@ c=1@ a+@"), "");
    T(wake(s), "read");
    T(state(s, "0 complete b=0@ a+@"), "write 0 complete b=0 a~");
    stepped_in_ms = s->now_ms;
    T(written(s), "");
    T(watch(s, JOIN_MS - 1000, "0 complete b=0@ a~@"), "");
    T(watch(s, 2000, "0 complete b=0@ a~@"), "write 0 complete b=0");
    assert_true(s->now_ms == stepped_in_ms + JOIN_MS + 1);
    T(written(s), "failed to join: ERDZV_TIMEOUT");
}

static void a_spare_steps_into_an_open_round(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete b=0@ c=1@"), "write 0 complete b=0 c=1 a+");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "1 b=0@ a+@"), "write 1 complete b=1 a=0");
    T(written(s), "joined 1 as 0 of a b");
}

static void a_surplus_node_of_1_13_polls_until_its_time_is_up(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete 1.13 b=0@ c=1@"), "");
    T(watch(s, JOIN_MS, "0 complete 1.13 b=0@ c=1@"), "");
    T(watch(s, 10, "0 complete 1.13 b=0@ c=1@"), "failed to join: ERDZV_TIMEOUT");
}

static void a_waiting_node_enters_the_next_round(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete b=0@ c=1@"), "write 0 complete b=0 c=1 a~");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "1 b=0@ c=0@ a~@"), "write 1 complete b=1 c=2 a=0");
    T(written(s), "joined 1 as 0 of a b c");
}

static void a_round_whose_members_are_all_dead_is_taken_over(void **unused)
{
    struct scene *s = START(1, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "3 complete b=0@7 c=1@7"), "write 3 complete b=0 c=1 a~");
    T(written(s), "");
    T(watch(s, AGE_MS - 1, "3 complete b=0@7 c=1@7 a~@"), "");
    T(watch(s, 2000, "3 complete b=0@7 c=1@7 a~@"), "write 4 last-call a=0");
}

/* ---- Being a member ---- */

static void heartbeats_come_on_time_and_not_in_step(void **unused)
{
    uint64_t first[8], different = 0;

    (void)unused;
    for (unsigned seed = 0; seed < COUNT(first); seed++) {
        struct mu_rdzv_config config = { PLAIN };
        struct scene *s = NULL;
        uint64_t last_ms = 0;

        config.seed = seed;
        s = start_as(config, 2, 2);
        T(ask(s, MU_RDZV_JOIN), "read");
        T(state(s, "0 b=0@"), "write 0 complete b=1 a=0");
        last_ms = s->now_ms;
        (void)written(s);
        for (unsigned beats = 0; beats < 20;) {
            const char *trace = wake(s);

            T(trace, "read");
            trace = state(s, "0 complete a=0@ b=1@");
            if (trace[0] == '\0')
                continue;
            T(trace, "write 0 complete a=0 b=1");
            assert_true(s->now_ms - last_ms <= INTERVAL_MS && s->now_ms - last_ms >= INTERVAL_MS * 4 / 5);
            if (beats++ == 0)
                first[seed] = s->now_ms - last_ms;
            last_ms = s->now_ms;
            T(written(s), "");
        }
        different += seed > 0 && first[seed] != first[seed - 1];
    }
    assert_true(different >= COUNT(first) / 2);
}

static void a_member_that_left_is_lost_once(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@ d=3@");
    T(watch(s, 10000, "0 complete a=0@ b=1@ c=2@ d=3@"), "");
    T(watch(s, 10000, "0 complete a=0@ c=2@"), "lost b d");
    T(watch(s, 10000, "0 complete a=0@ c=2@"), "");
    T(watch(s, 10000, "0 complete a=0@"), "lost b c d"); /* b and d may have been done */
}

static void a_member_that_is_silent_is_lost_after_the_death_age(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);
    uint64_t since_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@7");
    since_ms = s->now_ms;
    T(watch(s, 2 * AGE_MS, "0 complete a=0@ b=1@ c=2@7"), "lost c");
    assert_true(s->now_ms >= since_ms + AGE_MS && s->now_ms <= since_ms + AGE_MS + 1000);
}

static void nobody_is_lost_because_of_our_pause(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@7");
    T(watch(s, 14000, "0 complete a=0@ b=1@7"), "");
    T(pass(s, 3600000), "read");
    T(state(s, "0 complete a=0@ b=1@7"), "write 0 complete a=0 b=1");
    T(written(s), "");
    T(watch(s, 14000, "0 complete a=0@ b=1@7"), "");
    T(watch(s, 2000, "0 complete a=0@ b=1@7"), "lost b");
}

/* A short outage can lie between two of our reads and still have cost a peer its keep-alives. */
static void nobody_is_lost_because_of_an_outage_that_only_the_bell_noticed(void **unused)
{
    struct scene *s = START(2, 4, PLAIN, .has_bell = true);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@7");
    T(watch(s, 14000, "0 complete a=0@ b=1@7"), "");
    T(fails_with(s, take_id(&s->park_id), MUSTER_ERDZV_CONNECTION, true), "");
    T(watch(s, 2000, "0 complete a=0@ b=1@7"), "park 0");
    T(watch(s, 12000, "0 complete a=0@ b=1@7"), "");
    T(watch(s, 4000, "0 complete a=0@ b=1@7"), "lost b");
}

static void a_bell_that_was_parked_for_long_delays_no_loss(void **unused)
{
    struct scene *s = START(2, 4, PLAIN, .has_bell = true);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@7");
    T(watch(s, 14000, "0 complete a=0@ b=1@7"), "");
    T(fails_with(s, take_id(&s->park_id), MUSTER_ETIMEOUT, false), "");
    T(watch(s, 2000, "0 complete a=0@ b=1@7"), "park 0");
    T(watch(s, 2000, "0 complete a=0@ b=1@7"), "lost b");
}

static void a_waiting_or_spare_node_that_dies_is_nobodys_loss(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ z+@7");
    T(watch(s, AGE_MS - 1000, "0 complete a=0@ b=1@ z+@7"), "");
    T(watch(s, 2 * AGE_MS, "0 complete a=0@ b=1@ z+@7"), "write 0 complete a=0 b=1"); /* with a heartbeat */
    T(written(s), "");
}

static void removed_is_told_once_whatever_the_document_says_instead(void **unused)
{
    static const char *const docs[] = {
        "4 complete b=1@ c=2@", /* complete without me */
        "4 complete b=1@ c=2@ a~@",
        "4 complete b=1@ c=2@ a+@",
        "5 b=0@",                    /* a higher round */
        "5 complete b=0@ c=1@",      /* a higher round, complete */
        "5 complete a=0@ b=1@ c=2@", /* a higher round, with me: not by us */
        "3 complete a=0@ b=1@ c=2@", /* a lower round: the store was set back */
        "0",                         /* somebody began anew */
    };

    (void)unused;
    for (size_t i = 0; i < COUNT(docs); i++) {
        struct scene *s = START(2, 4, PLAIN);

        be_member(s, "4 complete a=0@ b=1@ c=2@");
        T(watch(s, 5000, docs[i]), "removed");
        assert_int_equal(phase(s), MU_RDZV_PHASE_IDLE);
        assert_null(mu_rdzv_world(s->r));
        assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);
        T(ask(s, MU_RDZV_JOIN), "read");
    }
}

static void waiting_is_told_once_a_round(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(watch(s, 5000, "0 complete a=0@ b=1@ z+@"), ""); /* a spare wants nothing */
    T(watch(s, 5000, "0 complete a=0@ b=1@ v~@ w~@"), "waiting 2");
    T(watch(s, 5000, "0 complete a=0@ b=1@ u~@ v~@ w~@"), "");
    T(watch(s, 5000, "0 complete a=0@ b=1@"), "");
    T(watch(s, 5000, "0 complete a=0@ b=1@ u~@"), "");
}

static void waiting_for_a_place_in_a_full_round_is_not_told(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(watch(s, 5000, "0 complete a=0@ b=1@ w~@"), "");
    T(watch(s, 5000, "0 complete a=0@ w~@"), "lost b; waiting 1");
}

static void waiting_is_not_told_in_a_closed_rendezvous(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(watch(s, 5000, "0 complete closed a=0@ b=1@ w~@"), "closed");
    T(watch(s, 5000, "0 complete closed a=0@ b=1@ w~@"), "");
}

/* A round of so many milliseconds: how long after it began the next one is told of waiting nodes. */
static uint64_t held_down_after(struct scene *s, int round, uint64_t ms)
{
    char complete[64], open[64], next[64], waiting[64];
    uint64_t since_ms = 0;

    (void)snprintf(complete, sizeof complete, "%d complete a=0@ b=1@", round);
    (void)snprintf(open, sizeof open, "%d b=0@", round + 1);
    (void)snprintf(next, sizeof next, "write %d complete b=1 a=0", round + 1);
    (void)snprintf(waiting, sizeof waiting, "%d complete a=0@ b=1@ w~@", round + 1);
    T(watch(s, ms, complete), "");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, open), next);
    (void)written(s);
    assert_int_equal(phase(s), MU_RDZV_PHASE_MEMBER);
    since_ms = s->now_ms;
    T(watch(s, 100000, waiting), "waiting 1");
    return s->now_ms - since_ms;
}

static void waiting_nodes_are_held_down_after_short_rounds(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    assert_in_range(held_down_after(s, 0, 5000), 1000, 1000);
    assert_in_range(held_down_after(s, 1, 5000), 2000, 2000);
    assert_in_range(held_down_after(s, 2, 5000), 4000, 4000);
    assert_in_range(held_down_after(s, 3, 5000), 8000, 8000);
    assert_in_range(held_down_after(s, 4, 5000), 16000, 16000);
    assert_in_range(held_down_after(s, 5, 5000), 32000, 32000);
    assert_in_range(held_down_after(s, 6, 0), 1000, 1000); /* that round was 32 s long because of it: long */
}

static void the_hold_down_is_no_longer_than_a_minute(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);
    char open[64], next[64], complete[64];
    uint64_t since_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    for (int round = 1; round < 10; round++) {
        (void)snprintf(open, sizeof open, "%d b=0@", round);
        (void)snprintf(next, sizeof next, "write %d complete b=1 a=0", round);
        s->now_ms += 1000;
        T(ask(s, MU_RDZV_JOIN), "read");
        T(state(s, open), next);
        (void)written(s);
    }
    since_ms = s->now_ms;
    (void)snprintf(complete, sizeof complete, "%d complete a=0@ b=1@ w~@", 9);
    T(watch(s, 100000, complete), "waiting 1");
    assert_in_range(s->now_ms - since_ms, 60000, 60000);
    assert_in_range(held_down_after(s, 9, 1000), 0, 1000); /* a long one is over: no hold-down */
}

static void losses_are_not_held_down(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    for (int round = 0; round < 4; round++)
        (void)held_down_after(s, round, 1000);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 b=0@"), "write 5 complete b=1 a=0");
    T(written(s), "joined 5 as 0 of a b");
    T(pass(s, 1000), "read");
    T(state(s, "5 complete a=0@ w~@"), "lost b");
}

static void closed_is_told_once(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(watch(s, 10000, "0 complete closed a=0@ b=1@"), "closed");
    T(watch(s, 10000, "0 complete closed a=0@ b=1@"), "");
    assert_int_equal(phase(s), MU_RDZV_PHASE_MEMBER); /* running workers run on */
}

static void a_heartbeat_that_was_lost_to_another_write_is_written_soon(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);
    uint64_t since_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    until_write(s, "0 complete a=0@ b=1@");
    since_ms = s->now_ms;
    (void)lost(s, "0 complete a=0@1 b=1@2");
    until_write(s, "0 complete a=0@1 b=1@3");
    assert_true(s->now_ms <= since_ms + 10);
    T(s->trace.text, "write 0 complete a=0 b=1");
    T(written(s), "");
}

/* ---- The bell ---- */

static void the_bell_is_rung_only_for_what_others_wait_for(void **unused)
{
    struct scene *s = START(3, 3, PLAIN, .has_bell = true);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "park 0"); /* not for a join */
    T(pass(s, 1000), "read");
    T(state(s, "0 complete a=0@ b=1@ c=2@"), "joined 0 as 0 of a b c");
    until_write(s, "0 complete a=0@ b=1@ c=2@");
    T(written(s), ""); /* not for a heartbeat */
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete a=0@ b=1@ c=2@"), "write 0 complete b=1 c=2 a~");
    T(written(s), "ring"); /* for the first member gone, which ends the round */
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(state(s, "0 complete b=1@ c=2@ a~@"), "write 0 complete b=1 c=2");
    T(written(s), "left"); /* not for one that does not wait any more */

    s = START(2, 2, PLAIN, .has_bell = true);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete b=0@ c=1@"), "write 0 complete b=0 c=1 a+");
    T(written(s), "park 0"); /* not for a spare */
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(state(s, "0 complete b=0@ c=1@ a+@"), "write 0 complete closed b=0 c=1 a+");
    T(written(s), "ring; closed; failed to join: ERDZV_GRACEFUL_EXIT"); /* for closing */
}

static void the_dead_are_taken_out_soon_and_rung_for(void **unused)
{
    struct scene *s = START(2, 3, PLAIN, .has_bell = true);
    uint64_t lost_ms = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "park 0");
    T(watch(s, 2000, "0 complete a=0@ b=1@ c=2@7"), "joined 0 as 0 of a b c");
    assert_non_null(strstr(watch(s, 2 * AGE_MS, "0 complete a=0@ b=1@ c=2@7"), "lost c"));
    lost_ms = s->now_ms;
    until_write(s, "0 complete a=0@ b=1@ c=2@7");
    assert_true(s->now_ms - lost_ms <= 20); /* so that c, should it live, learns of it */
    assert_non_null(strstr(s->trace.text, "write 0 complete a=0 b=1"));
    T(written(s), "ring");
}

/* What `a` does with its place in a round of three, when the others have done what `text` shows. */
static const char *joins_again(const char *text)
{
    struct scene *s = START(2, 3, PLAIN, .has_bell = true);

    be_member(s, "4 complete a=0@ b=1@ c=2@");
    T(ask(s, MU_RDZV_JOIN), "read");
    assert_non_null(strstr(state(s, text), "write"));
    return written(s);
}

/* Its job meets in the store's engine then. Whoever was in a round has seen one. */
static void who_joins_waits_for_a_document_for_as_long_as_it_wants_to_join(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    assert_true(s->held_ms > JOIN_MS);
    s = START(2, 3, PLAIN);
    be_member(s, "4 complete a=0@ b=1@ c=2@");
    T(pass(s, 1000), "read");
    assert_int_equal(s->held_ms, 0);
    s = START(2, 3, PLAIN);
    T(ask(s, MU_RDZV_LOOK), "read");
    assert_int_equal(s->held_ms, 0);
}

static void a_rounds_end_its_opening_and_its_completion_are_rung_and_no_more(void **unused)
{
    struct scene *s = NULL;

    (void)unused;
    T(joins_again("4 complete a=0@ b=1@ c=2@"), "ring");     /* the first to leave */
    T(joins_again("4 complete a=0@ b=1@ c=2@ d~@"), "ring"); /* d wants in, which may be held down */
    T(joins_again("4 complete a=0@ b=1@ c~@"), "");          /* c has rung */
    T(joins_again("4 complete a=0@ b~@ c~@"), "ring");       /* the last to leave opens the next round */
    T(joins_again("5 b=0@ c~@"), "");                        /* b has, and all are on their way */
    T(joins_again("5 b=0@ c=0@"), "ring; joined 5 as 0 of a b c");

    s = START(2, 3, PLAIN, .has_bell = true);
    be_member(s, "4 complete a=0@ b=1@ c=2@");
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(state(s, "4 complete a=0@ b=1@"), "write 4 complete b=1");
    T(written(s), "left"); /* c was the first */
}

static void the_first_that_wants_in_is_rung_for(void **unused)
{
    struct scene *s = START(2, 4, PLAIN, .has_bell = true);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 complete b=0@ c=1@"), "write 4 complete b=0 c=1 a~");
    T(written(s), "ring; park 0");

    s = START(2, 4, PLAIN, .has_bell = true);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 complete b=0@ c=1@ d~@"), "write 4 complete b=0 c=1 d~ a~");
    T(written(s), "park 0");
}

/* They ring no bell; the first of ours that finds what they did does. */
static void for_pytorchs_nodes_the_first_of_ours_rings(void **unused)
{
    struct scene *s = START(2, 3, PLAIN, .has_bell = true);

    (void)unused;
    be_member(s, "4 complete B=0@ a=1@ c=2@");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 complete a=1@ c=2@ B~@"), "write 4 complete c=2 B~ a~");
    T(written(s), "ring");
    T(pass(s, 1000), "read");
    T(state(s, "5 B=0@ a~@ c~@"), "write 5 last-call B=0 a=0 c~");
    T(written(s), "ring"); /* B has opened it */

    s = START(2, 3, PLAIN, .has_bell = true);
    be_member(s, "4 complete B=0@ a=1@ c=2@");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "5 B=0@ c~@"), "write 5 last-call B=0 c~ a=0");
    T(written(s), "ring");
}

/* All who wait mean to write when it rings: each reads the document when its turn has come, and not before. */
static void who_waits_for_the_next_round_and_is_rung_takes_a_turn(void **unused)
{
    struct scene *s = START(2, 4, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "4 complete b=0@ c=1@"), "write 4 complete b=0 c=1 a~");
    T(written(s), "ring; give turn 1; park 0");
    T(rung(s), "take turn");
    T(turn(s, 3, 1), "wait for turn 2 at most 200");
    T(turn_came(s, true, 2), "read");
    T(state(s, "5 b=0@ c~@ a~@"), "write 5 last-call b=0 c~ a=0");
    T(written(s), "give turn 3; park 1");
    T(rung(s), "read"); /* now it waits for the completion alone */

    s = START(2, 4, ALL); /* it may have rung for something else */
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "4 complete b=0@ c=1@"), "write 4 complete b=0 c=1 a~");
    T(written(s), "ring; give turn 1; park 0");
    T(rung(s), "take turn");
    T(turn(s, 2, 1), "read");
    T(state(s, "4 complete b=0@ a~@"), "give turn 2; park 1");
    T(rung(s), "read"); /* and may do so again */
    T(state(s, "5 b=0@ a~@"), "take turn; park 2");
}

/* It leaves soon, and then writes itself into the document anew. */
static void a_member_whose_round_ends_puts_its_heartbeat_off(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "4 complete a=0@ b=1@ c=2@");
    T(watch(s, 1000, "4 complete a=0@ b=1@ c~@"), "lost c; waiting 1");
    until_write(s, "4 complete a=0@ b=1@ c~@");
    assert_in_range(s->now_ms, START_MS + AGE_MS / 3 * 2, START_MS + AGE_MS / 3 * 2 + 1000);
}

static void the_bell_is_parked_at_the_last_counter(void **unused)
{
    struct scene *s = START(3, 3, PLAIN, .has_bell = true);

    (void)unused;
    s->bell = 40;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "park 40");
    T(pass(s, 1000), "read");
    T(state(s, "0 a=0@"), ""); /* the same counter: the same park */
    s->bell = 42;
    T(pass(s, 1000), "read");
    T(state(s, "0 a=0@"), "park 42");
    T(rung(s), "read");
    T(state(s, "0 a=0@"), "park 43");
}

/* The document as it was, with the token it had. */
static const char *again(struct scene *s)
{
    char last[sizeof s->token];
    struct mu_rdzv_event event;

    memcpy(last, s->token, sizeof last);
    event = document(s, MU_RDZV_STATE, s->written);
    memcpy(s->token, last, sizeof last);
    event.token = mu_slice_str(s->token);
    return step(s, event);
}

static void a_bell_that_rings_for_nothing_is_left_alone_until_the_next_look(void **unused)
{
    struct scene *s = START(2, 3, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "give turn 1; park 0");
    for (int i = 1; i < MU_RDZV_IDLE_RINGS_MAX; i++) {
        T(rung(s), "read");
        assert_non_null(strstr(again(s), "park"));
    }
    T(rung(s), "read");
    T(again(s), "");
    T(pass(s, 1000), "read");
    assert_non_null(strstr(again(s), "park"));
}

/* Nodes that ring for one another do not make each other deaf. */
static void rings_for_what_was_seen_already_are_not_counted_for_ever(void **unused)
{
    static const char *const seen[] = { "0 a=0@ b=0@", "0 a=0@ b=0@ c=0@" };
    struct scene *s = START(4, 4, PLAIN, .has_bell = true);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "park 0");
    for (int i = 0; i < MU_RDZV_IDLE_RINGS_MAX; i++) {
        T(pass(s, 1000), "read");
        (void)state(s, seen[i % 2]);
        T(rung(s), "read");
        assert_non_null(strstr(again(s), "park"));
    }
}

static void a_bell_that_cannot_be_parked_is_not_tried_in_a_circle(void **unused)
{
    struct scene *s = START(3, 3, PLAIN, .has_bell = true);
    unsigned parks = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "park 0");
    for (unsigned i = 0; i < 20 && s->park_id != 0; i++) {
        (void)fails_with(s, take_id(&s->park_id), MUSTER_ERDZV_CONNECTION, false);
        parks += s->park_id != 0;
    }
    assert_true(parks <= 1);
    T(watch(s, 1500, "0 a=0@"), "park 0"); /* but again with the next look */
}

/* ---- The world ---- */

static void world_and_rank_are_those_that_were_written(void **unused)
{
    struct scene *s = START(1, 4, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 B=0@7"), "write 0 B=0 a=0");
    T(written(s), "");
    T(watch(s, AGE_MS - 500, "0 B=0@7 a=0@"), "");
    T(pass(s, 500), "read");
    /* B, which has been silent for the death age, has just marked it complete. It still is one of two. */
    T(state(s, "0 complete B=0@7 a=1@"), "joined 0 as 1 of B a");
    T(watch(s, 1000, "0 complete B=0@7 a=1@"), "lost B");
}

static void a_round_with_members_or_ranks_missing_is_left_and_joined_anew(void **unused)
{
    static const char *const docs[] = { "0 complete a=1@", "0 complete a=0@", /* too few */
                                        "0 complete a=0@ b=0@", "0 complete a=1@ b=0@", "0 complete a=0@ b=2@" };

    (void)unused;
    for (size_t i = 0; i < COUNT(docs); i++) {
        struct scene *s = START(2, 4, PLAIN);

        T(ask(s, MU_RDZV_JOIN), "read");
        T(state(s, "0"), "write 0 a=0");
        T(written(s), "");
        T(pass(s, 1000), "read");
        T(state(s, docs[i]), "read"); /* nobody is told that it joined */
        (void)state(s, docs[i]);
        assert_non_null(strstr(s->trace.text, i < 2 ? "write 1 a=0" : "write 0 complete b="));
        assert_true(i < 2 || strstr(s->trace.text, " a~") != NULL);
        T(written(s), "");
        assert_true(mu_rdzv_progress(s->r).deadline_ms == START_MS + JOIN_MS);
    }
}

static void a_round_that_others_saw_otherwise_is_left_and_joined_anew(void **unused)
{
    struct scene *s = START(2, 4, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "give turn 1; park 0");
    T(pass(s, 1000), "read");
    T(state(s, "0 complete a=0@ b=1@"), "settle 0");
    T(settled(s, "3-something"), "read");
    T(state(s, "0 complete a=0@ b=1@"), "take turn");
    T(turn(s, 2, 1), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1 a~");
    T(written(s), "ring; give turn 2");
    assert_int_equal(phase(s), MU_RDZV_PHASE_JOINING);
}

static void the_digest_is_of_members_and_ranks_whatever_their_order(void **unused)
{
    static const struct {
        const char *doc;
        bool same;
    } docs[] = {
        { "0 complete a=0@ b=1@", true },     { "0 complete b=1@1 a=0@2", true },
        { "0 complete b=1@ a=0@ w~@", true }, { "0 complete a=0@ b=1@ c=2@", false },
        { "0 complete a=0@ c=1@", false },    { "0 complete a=0@", false },
        { "0 complete B=0@ a=1@", false },
    };
    char first[MU_RDZV_DIGEST_MAX] = "";

    (void)unused;
    for (size_t i = 0; i < COUNT(docs); i++) {
        struct scene *s = START(1, 4, PLAIN, .has_settle = true);

        T(ask(s, MU_RDZV_JOIN), "read");
        T(state(s, "0"), "write 0 last-call a=0");
        T(written(s), "");
        T(pass(s, 1000), "read");
        T(state(s, docs[i].doc), "settle 0");
        if (i == 0)
            memcpy(first, s->digest, sizeof first);
        assert_int_equal(strcmp(first, s->digest) == 0, docs[i].same);
    }
}

static void a_settling_that_fails_is_tried_again(void **unused)
{
    struct scene *s = START(2, 4, PLAIN, .has_settle = true);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "0 complete a=0@ b=1@"), "settle 0");
    T(fails(s), "backend_down");
    T(wake(s), "read");
    T(state(s, "0 complete a=0@ b=1@"), "backend_up; settle 0");
    T(settled(s, NULL), "joined 0 as 0 of a b");
}

static void a_name_may_have_any_bytes(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "0 complete #=0@ a=1@");
    assert_int_equal(mu_rdzv_world(s->r)->members[0].name.len, 3);
    assert_memory_equal(mu_rdzv_world(s->r)->members[0].name.data, "#\0x", 3);
    T(host_is(s, '#'), "");
    T(watch(s, 5000, "0 complete #=0@ a=1@"), "");
    T(wake(s), "read");
    T(is_gone(s), "backend_down with its host; lost #");
}

/* ---- Times ---- */

static int64_t written_ms(const struct scene *s, char letter)
{
    struct mu_node node = node_of(letter);
    struct mu_doc doc;
    int64_t ms = 0;

    doc_is(&doc, s->written);
    ms = mu_doc_find(&doc, &node)->heartbeat_us / 1000;
    mu_doc_done(&doc);
    return ms;
}

static void times_are_the_documents_own(void **unused)
{
    struct scene *s = START(2, 4, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, NULL), "write 0 a=0 as new");
    assert_int_equal(written_ms(s, 'a'), WALL_MS); /* there is no other */

    s = START(2, 4, PLAIN);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 b=0@1234000"), "write 0 last-call b=0 a=0");
    assert_int_equal(written_ms(s, 'a'), 1234000);
    assert_non_null(strstr(s->written, "last-call=1264000"));
    (void)written(s);
    s->wall_offset_ms = 3600000; /* our wall clock may jump as it likes */
    until_write(s, "0 last-call=1264000 a=0@1234000 b=0@1234000");
    assert_int_equal(written_ms(s, 'a'), 1234000 + (int64_t)(s->now_ms - START_MS));

    s = START(2, 4, PLAIN);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 b=0@1234000 C=0@77000"), "write 0 b=0 C=0 a=0");
    assert_int_equal(written_ms(s, 'a'), 77000); /* PyTorch compares it with its clock */
}

/* ---- Documents of all kinds ---- */

static void the_dialect_that_was_read_is_written(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 1.13"), "write 0 1.13 a=0");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "0 complete 1.13 a=0@ b=1@"), "joined 0 as 0 of a b");
    assert_false(mu_rdzv_world(s->r)->dialect.spares);

    s = START(2, 2, .settings = MU_RDZV_SETTINGS_DEFAULT, .dialect = MU_DOC_DIALECT_1_13);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, NULL), "write 0 1.13 a=0 as new");
    T(lost(s, "0 B=0@"), s->trace.text); /* somebody with another one was first */
    until_write(s, "0 B=0@");
    T(s->trace.text, "write 0 complete B=0 a=1");
}

/* Their times have no zone, which is nothing to us: no clock of ours is compared with them. */
static void a_document_of_2_3_to_2_5_is_joined_and_written_as_it_was(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 2.5 B=0@77000"), "write 0 complete 2.5 B=0 a=1");
    assert_int_equal(written_ms(s, 'a'), 77000);
    T(written(s), "joined 0 as 1 of B a");
    assert_false(mu_rdzv_world(s->r)->dialect.zoned);
    assert_int_equal(mu_rdzv_world(s->r)->dialect.habits, MU_HABITS_2_5);
}

static void a_spare_of_2_5_steps_up(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete 2.5 B=0@ C=1@"), "write 0 complete 2.5 B=0 C=1 a+");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "0 complete 2.5 B=0@ a+@"), "write 0 complete 2.5 B=0 a~");
}

static void be_member_with_2_5(struct scene *s)
{
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 2.5 B=0@"), "write 0 complete 2.5 B=0 a=1");
    T(written(s), "joined 0 as 1 of B a");
}

/* Its agent counts failures by itself, and workers meet under that number. */
static void with_2_5_workers_of_all_nodes_get_a_moment_to_fail(void **unused)
{
    struct scene *s = START(2, 2, PLAIN, .shares_store = true);
    uint64_t since_ms = 0;

    (void)unused;
    be_member_with_2_5(s);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete 2.5 B=0@ a=1@"), ""); /* its workers will fail as well */
    T(pass(s, 1000), "read");
    T(state(s, "0 complete 2.5 a=1@"), "write 1 2.5 a=0");

    s = START(2, 2, PLAIN, .shares_store = true); /* they do not */
    be_member_with_2_5(s);
    since_ms = s->now_ms;
    T(ask(s, MU_RDZV_JOIN), "read");
    (void)state(s, "0 complete 2.5 B=0@ a=1@");
    until_write(s, "0 complete 2.5 B=0@ a=1@");
    T(s->trace.text, "write 0 complete 2.5 B=0 a=1"); /* a heartbeat */
    T(written(s), "");
    until_write(s, "0 complete 2.5 B=0@ a=1@");
    T(s->trace.text, "write 0 complete 2.5 B=0 a~");
    assert_in_range(s->now_ms - since_ms, MU_RDZV_FAIL_ALIKE_MS, MU_RDZV_FAIL_ALIKE_MS + 1000);

    s = START(2, 2, PLAIN); /* their store is not this one */
    be_member_with_2_5(s);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete 2.5 B=0@ a=1@"), "write 0 complete 2.5 B=0 a~");
}

static void with_2_5_a_loss_is_told_after_our_workers_had_a_moment_to_fail(void **unused)
{
    struct scene *s = START(2, 2, PLAIN, .shares_store = true);
    uint64_t since_ms = 0;

    (void)unused;
    be_member_with_2_5(s);
    T(pass(s, 1000), "read");
    since_ms = s->now_ms;
    T(state(s, "0 complete 2.5 B~@ a=1@"), "");
    T(watch(s, 3 * AGE_MS, "0 complete 2.5 B~@ a=1@"), "lost B; waiting 1");
    assert_in_range(s->now_ms - since_ms, MU_RDZV_FAIL_ALIKE_MS, MU_RDZV_FAIL_ALIKE_MS + 1000);

    s = START(2, 2, PLAIN, .shares_store = true); /* they do fail */
    be_member_with_2_5(s);
    T(pass(s, 1000), "read");
    T(state(s, "0 complete 2.5 B~@ a=1@"), "");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete 2.5 B~@ a=1@"), "write 1 2.5 B~ a=0");
}

static void a_store_that_lost_its_data_gets_the_dialect_that_was_there(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 2.5"), "write 4 2.5 a=0");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, NULL), "write 5 2.5 a=0 as new");
}

static void a_document_of_another_layout_ends_a_join_at_once(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "layout 7"), "failed to join: ERDZV_STATE");
    assert_non_null(strstr(mu_rdzv_error(s->r)->text, "layout 7"));
    assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);
    T(ask(s, MU_RDZV_LOOK), "");
    T(wake(s), "read");
    T(state(s, "layout 7"), "looked ERDZV_STATE");
    s->now_ms += 5000;
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(state(s, "layout 7"), "failed to close: ERDZV_STATE");

    s = START(2, 2, PLAIN); /* a back end that decodes by itself says it so */
    T(ask(s, MU_RDZV_JOIN), "read");
    T(fails_with(s, take_id(&s->main_id), MUSTER_ERDZV_STATE, false), "failed to join: ERDZV_STATE");

    s = START(2, 2, PLAIN);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(lost(s, "layout 7"), "failed to join: ERDZV_STATE");
    T(ask(s, MU_RDZV_LEAVE), "left"); /* nothing of us was ever written */

    s = START(2, 2, PLAIN);
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(state(s, "layout 7"), "failed to leave: ERDZV_STATE");
}

static void a_member_bears_a_document_of_another_layout_for_the_death_age(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);
    uint64_t since_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(wake(s), "read");
    T(state(s, "layout 7"), "");
    for (unsigned i = 0; i < 10; i++) {
        T(pass(s, 1000), "read");
        T(state(s, "layout 7"), "");
    }
    T(pass(s, 1000), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete a=0 b=1"); /* healed, and a heartbeat is due */
    T(written(s), "");
    T(wake(s), "read");
    since_ms = s->now_ms;
    T(state(s, "layout 7"), "");
    while (strcmp(wake(s), "read") == 0 && state(s, "layout 7")[0] == '\0')
        assert_true(s->now_ms < since_ms + 2 * AGE_MS);
    T(s->trace.text, "failed to time: ERDZV_STATE");
    assert_in_range(s->now_ms - since_ms, AGE_MS, AGE_MS + 1000);
    assert_int_equal(phase(s), MU_RDZV_PHASE_IDLE);
}

/* ---- When somebody overwrites the document ---- */

static void a_member_replaces_what_a_stranger_wrote(void **unused)
{
    static const char *const values[] = { "garbage", "", "{}", "no document at all" };
    struct scene *s = NULL;

    (void)unused;
    for (size_t i = 0; i < COUNT(values); i++) {
        s = START(2, 2, PLAIN, .has_bell = true);
        T(ask(s, MU_RDZV_JOIN), "read");
        T(state(s, "3 b=0@5"), "write 3 complete b=1 a=0");
        T(written(s), "ring; joined 3 as 0 of a b; park 0");
        T(pass(s, 1000), "read");
        T(state(s, values[i]),
          "foreign value; write 3 complete b=1 a=0"); /* in the place of that value, by its token */
        assert_non_null(strstr(mu_rdzv_error(s->r)->text, values[i]));
        T(lost(s, "another"), "write 3 complete b=1 a=0"); /* told once; the next value is as good as this one */
        T(written(s), "ring");
        T(pass(s, 1000), "read");
        T(state(s, values[i]), "foreign value; write 3 complete b=1 a=0");
        T(lost(s, "3 complete a=0@ b=1@"), ""); /* b did */
        assert_int_equal(phase(s), MU_RDZV_PHASE_MEMBER);
    }
}

/* Others may not have seen it gone; what they see is to be a change, or they would add up silence that was none. */
static void what_is_put_back_has_new_heartbeats_of_all(void **unused)
{
    struct scene *s = START(3, 3, PLAIN);
    struct mu_node b = node_of('b'), c = node_of('c');

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@1000 c=2@2000");
    T(wake(s), "read");
    (void)state(s, "garbage");
    assert_int_equal(mu_doc_find(mu_rdzv_doc(s->r), &b)->heartbeat_us, 1000001);
    assert_int_equal(mu_doc_find(mu_rdzv_doc(s->r), &c)->heartbeat_us, 2000001);
}

/* The others may have gone on without us: it is theirs, if they are there. */
static void a_member_that_has_paused_is_the_last_to_put_it_back(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);
    uint64_t since_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(pass(s, 2 * INTERVAL_MS), "read");
    since_ms = s->now_ms;
    T(state(s, "garbage"), "foreign value, not ours");
    while (strcmp(wake(s), "read") == 0 && state(s, "garbage")[0] == '\0')
        assert_true(s->now_ms < since_ms + INTERVAL_MS);
    T(s->trace.text, "write 0 complete a=0 b=1");
    assert_in_range(s->now_ms - since_ms, INTERVAL_MS / 2, INTERVAL_MS);
}

static void what_the_back_end_cannot_decode_is_replaced_too(void **unused)
{
    struct muster_error error = { .code = MUSTER_ERDZV_STATE, .text = "not base64" };
    struct scene *s = START(2, 2, PLAIN);
    struct mu_rdzv_event event;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(wake(s), "read");
    event = document(s, MU_RDZV_STATE, "7 complete c=0@");
    event.error = &error; /* whatever the bytes look like */
    T(step(s, event), "foreign value; write 0 complete a=0 b=1");
    assert_string_equal(mu_rdzv_error(s->r)->text,
                        "somebody has overwritten the document: not base64; putting it back");
    T(written(s), "");
    assert_int_equal(phase(s), MU_RDZV_PHASE_MEMBER);
}

static void nobody_is_judged_by_what_was_before_it_was_overwritten(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@7");
    T(watch(s, 14000, "0 complete a=0@ b=1@7"), "");
    T(pass(s, 1000), "read");
    T(state(s, "garbage"), "foreign value; write 0 complete a=0 b=1");
    T(written(s), "");
    T(watch(s, 14000, "0 complete a=0@ b=1@7"), "");
    T(watch(s, 3000, "0 complete a=0@ b=1@7"), "lost b");
}

/* Whoever is no member cannot know whether a round goes on: its members have an interval to put its document back. */
static void a_joiner_leaves_a_foreign_value_to_the_members_first(void **unused)
{
    struct scene *s = START(2, 2, ALL);
    uint64_t since_ms = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn"); /* before the first round */
    T(turn(s, 1, 0), "read");
    since_ms = s->now_ms;
    T(state(s, "garbage"), "foreign value, not ours; park 0"); /* who puts it back rings */
    while (strcmp(wake(s), "read") == 0 && state(s, "garbage")[0] == '\0')
        assert_true(s->now_ms < since_ms + INTERVAL_MS);
    T(s->trace.text, "write 0 a=0"); /* in its place */
    assert_in_range(s->now_ms - since_ms, INTERVAL_MS, INTERVAL_MS + 1000);
    T(written(s), "give turn 1");

    s = START(2, 2, PLAIN); /* they do */
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "garbage"), "foreign value, not ours");
    T(wake(s), "read");
    T(state(s, "4 complete b=0@ c=1@"), "write 4 complete b=0 c=1 a+");

    s = START(3, 3, PLAIN); /* while a round forms */
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "4 b=0@"), "write 4 b=0 a=0");
    T(written(s), "");
    T(pass(s, 1000), "read");
    since_ms = s->now_ms;
    T(state(s, "garbage"), "foreign value, not ours");
    while (strcmp(wake(s), "read") == 0 && state(s, "garbage")[0] == '\0')
        assert_true(s->now_ms < since_ms + INTERVAL_MS);
    T(s->trace.text, "write 5 a=0"); /* the round may have been completed unseen */
}

/* A turn is taken in between, and the interval is not waited for again. */
static void a_foreign_value_is_waited_out_once(void **unused)
{
    struct scene *s = START(2, 2, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "0"), "write 0 a=0");
    T(lost(s, "garbage"), "foreign value, not ours; park 0");
    until_write(s, "garbage");
    T(s->trace.text, "write 1 a=0");
    T(lost(s, "more garbage"), "write 1 a=0");
    T(written(s), "give turn 1");
    assert_true(s->now_ms < START_MS + 2 * INTERVAL_MS);
}

static void while_regrouping_a_foreign_value_is_replaced_by_who_is_still_in_the_round(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "garbage"), "foreign value; write 0 complete a=0 b=1");
    T(written(s), "write 0 complete b=1 a~");
    T(written(s), "");
    T(pass(s, 1000), "read"); /* we are out of it: it is b's */
    T(state(s, "garbage"), "foreign value, not ours");
    T(wake(s), "read");
    T(state(s, "0 complete a=0@ b=1@"), "read"); /* with us in it, as b knew it: we leave it once more */
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1 a~");
}

static void leaving_and_closing_get_past_a_foreign_value(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(state(s, "garbage"), "foreign value; write 0 complete a=0 b=1");
    T(written(s), "write 0 complete b=1");
    T(written(s), "left");

    s = START(2, 2, PLAIN);
    T(ask(s, MU_RDZV_LOOK), "read");
    T(state(s, "garbage"), "foreign value, not ours; looked ERDZV_STATE");
    s->now_ms += 1000;
    T(ask(s, MU_RDZV_CLOSE), "read");
    while (strcmp(s->trace.text, "read") == 0 && state(s, "garbage")[0] == '\0')
        (void)wake(s);
    T(s->trace.text, "write 0 closed");
    T(written(s), "closed");
}

static void another_node_with_our_identity_is_refused(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 a=0@"), "failed to join: ERDZV_STATE");
    assert_non_null(strstr(mu_rdzv_error(s->r)->text, "same identity"));

    s = START(2, 2, PLAIN); /* it came while we did */
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(lost(s, "0 a=0@"), "failed to join: ERDZV_STATE");
}

/* ---- When the store is away ---- */

static void a_spare_leaves_an_emptied_store_to_the_members(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "6 complete b=0@ c=1@"), "write 6 complete b=0 c=1 a+");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, NULL), "");
    T(wake(s), "read");
    T(state(s, "6 complete b=0@ c=1@ a+"), "");
}

static void a_joiner_begins_where_no_round_was_yet(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "6 complete b=0@ c=1@"), "write 6 complete b=0 c=1 a~");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, NULL), ""); /* 6 was complete: its members may put it back */
    for (uint64_t waited = 0; waited < INTERVAL_MS - 500; waited += 500) {
        T(wake(s), "read");
        T(state(s, NULL), "");
    }
    T(wake(s), "read");
    T(state(s, NULL), "write 7 a=0 as new"); /* they did not */
    T(fails(s), "backend_down");
    T(wake(s), "read");
    T(state(s, NULL), "backend_up; write 7 a=0 as new");

    s = START(2, 3, PLAIN);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "6"), "write 6 a=0");
    T(lost(s, NULL), s->trace.text);
    until_write(s, NULL);
    T(s->trace.text, "write 7 a=0 as new"); /* 6 may have been completed unseen */
}

static void a_member_puts_the_document_back(void **unused)
{
    struct scene *s = START(2, 2, PLAIN, .has_bell = true);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "3 b=0@5"), "write 3 complete b=1 a=0");
    T(written(s), "ring; joined 3 as 0 of a b; park 0");
    T(pass(s, 1000), "read");
    T(state(s, NULL), "write 3 complete b=1 a=0 as new");
    T(written(s), "ring");
    T(pass(s, 1000), "read");
    T(state(s, NULL), "write 3 complete b=1 a=0 as new");
    T(lost(s, "3 complete a=0@ b=1@"), ""); /* b did */
    assert_int_equal(phase(s), MU_RDZV_PHASE_MEMBER);
}

static void nobody_is_judged_by_what_was_before_the_store_lost_it(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@7");
    T(watch(s, 14000, "0 complete a=0@ b=1@7"), "");
    T(pass(s, 1000), "read");
    T(state(s, NULL), "write 0 complete a=0 b=1 as new");
    T(written(s), "");
    T(watch(s, 14000, "0 complete a=0@ b=1@7"), "");
    T(watch(s, 3000, "0 complete a=0@ b=1@7"), "lost b");
}

/* Somebody who held the document of a round that we had left has put it back. Our workers are stopped, theirs are
 * not. */
static void a_round_that_we_had_left_is_left_again(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1 a~");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "0 complete a=0@ b=1@"), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1 a~");
    T(written(s), "");
    assert_int_equal(phase(s), MU_RDZV_PHASE_JOINING);
}

/* What is left of it, too: with its last rank gone the ranks are whole. */
static void what_is_left_of_such_a_round_is_left_again(void **unused)
{
    struct scene *s = START(1, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1 a~");
    T(written(s), "");
    T(pass(s, 1000), "read");
    T(state(s, "0 complete a=0@"), "read");
    T(state(s, "0 complete a=0@"), "write 1 last-call a=0");
}

/* Nobody held a document, and those who met anew counted from a lower number: the same members, ranks and number. */
static void a_number_that_comes_again_with_the_same_members_is_not_joined_again(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 b=0@"), "write 0 complete b=1 a=0");
    T(written(s), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1 a~");
}

static void only_a_member_puts_it_back(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "3 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_LOOK), "looked 3");
    assert_true(mu_rdzv_doc_exists(s->r));
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(state(s, NULL), "left");
    s->now_ms += 2000;
    T(ask(s, MU_RDZV_LOOK), "read");
    T(state(s, NULL), "looked nothing");
    assert_false(mu_rdzv_doc_exists(s->r));
    assert_int_equal(mu_rdzv_doc(s->r)->participants, 0);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, NULL), "write 4 a=0 as new");
}

static void when_the_hosts_process_is_gone_it_is_lost(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@");
    T(host_is(s, 'c'), "");
    T(wake(s), "read");
    T(fails(s), "backend_down"); /* mere silence */
    T(wake(s), "read");
    T(is_gone(s), "backend_down with its host; lost c"); /* more is known */
    T(wake(s), "read");
    T(is_gone(s), "");
    T(wake(s), "read");
    T(state(s, "0 complete a=0@ b=1@"), s->trace.text); /* it is back: nothing is told twice */
    assert_null(strstr(s->trace.text, "lost"));
}

/* Tries again and again, and is refused or not answered; until something else happens. */
static const char *keep_failing(struct scene *s, bool gone, uint64_t limit_ms)
{
    uint64_t end_ms = s->now_ms + limit_ms;

    while (strcmp(wake(s), "read") == 0 && s->now_ms < end_ms) {
        if (gone)
            (void)is_gone(s);
        else
            (void)fails(s);
    }
    return s->trace.text;
}

static void a_store_whose_host_was_a_member_is_waited_for_store_lost_timeout(void **unused)
{
    struct scene *s = START(2, 3, PLAIN, .endpoint = "c:29400");
    uint64_t gone_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@");
    T(host_is(s, 'c'), "");
    T(wake(s), "read");
    gone_ms = s->now_ms;
    T(is_gone(s), "backend_down with its host; lost c");
    T(ask(s, MU_RDZV_JOIN), "");
    T(keep_failing(s, true, JOIN_MS), "failed to join: ERDZV_CONNECTION");
    assert_in_range(s->now_ms, gone_ms + LOST_MS, gone_ms + LOST_MS + 1);
    assert_string_equal(mu_rdzv_error(s->r)->text,
                        "the store at c:29400 is lost: its host c (pid 1) has refused connections for 30 s; jobs with "
                        "--rdzv-backend etcd-v3 survive this");
}

static void what_answers_there_again_in_time_is_joined(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@");
    T(host_is(s, 'c'), "");
    T(wake(s), "read");
    T(is_gone(s), "backend_down with its host; lost c");
    T(ask(s, MU_RDZV_JOIN), "");
    while (s->now_ms < START_MS + LOST_MS - 3000) {
        T(wake(s), "read");
        T(is_gone(s), "");
    }
    T(wake(s), "read");
    T(state(s, NULL), "backend_up; write 1 a=0 as new");
    T(written(s), "");
    T(watch(s, 2 * LOST_MS, "1 a=0@"), "");
}

static void a_silent_host_is_lost_after_its_death_age_and_store_lost_timeout(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);
    uint64_t silent_ms = 0, lost_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@");
    T(host_is(s, 'c'), "");
    T(wake(s), "read");
    silent_ms = s->now_ms;
    T(fails(s), "backend_down");
    T(keep_failing(s, false, JOIN_MS), "lost c");
    lost_ms = s->now_ms;
    assert_in_range(lost_ms, silent_ms + AGE_MS + LOST_MS, silent_ms + AGE_MS + LOST_MS + 1);
    T(ask(s, MU_RDZV_JOIN), "");
    T(keep_failing(s, false, JOIN_MS), "failed to join: ERDZV_CONNECTION"); /* it had a moment to come back */
    assert_in_range(s->now_ms, lost_ms + MU_RDZV_LAST_TRY_MS, lost_ms + MU_RDZV_LAST_TRY_MS + 1);
    assert_non_null(strstr(mu_rdzv_error(s->r)->text, "its host c (pid 1) has not answered for 46 s"));
}

static void a_host_that_goes_after_another_is_lost_as_well(void **unused)
{
    struct scene *s = START(1, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@");
    T(host_is(s, 'c'), "");
    T(wake(s), "read");
    T(state(s, "0 complete a=0@ c=2@"), "lost b"); /* it may have been done */
    T(wake(s), "read");
    T(is_gone(s), "backend_down with its host; lost b c");
    T(wake(s), "read");
    T(is_gone(s), "");
}

static void who_waits_for_a_round_whose_host_goes_does_not_wait_for_the_join_timeout(void **unused)
{
    struct scene *s = START(3, 3, PLAIN);
    uint64_t gone_ms = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 c=0@"), "write 0 c=0 a=0");
    T(written(s), "");
    T(host_is(s, 'c'), "");
    T(pass(s, 1000), "read");
    gone_ms = s->now_ms;
    T(is_gone(s), "backend_down");
    T(keep_failing(s, true, JOIN_MS), "failed to join: ERDZV_CONNECTION");
    assert_in_range(s->now_ms, gone_ms + LOST_MS, gone_ms + LOST_MS + 1);
}

/* The job is over or has no store any more, and nobody will call us. */
static void a_spare_whose_host_has_gone_ends_soon(void **unused)
{
    static const struct {
        const char *doc, *with_us;
        char host; /* NUL: no node of ours */
    } cases[] = {
        { "0 complete b=0@ c=1@", "0 complete b=0@ c=1@ a+@", 'b' },
        { "0 complete S=0@ c=1@", "0 complete S=0@ c=1@ a+@", '\0' }, /* a PyTorch node, then */
    };

    (void)unused;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct scene *s = START(2, 2, PLAIN, .endpoint = "b:1");
        uint64_t gone_ms = 0;

        T(ask(s, MU_RDZV_JOIN), "read");
        (void)state(s, cases[i].doc);
        (void)written(s);
        assert_true(mu_rdzv_progress(s->r).spare);
        T(host_is(s, cases[i].host), "");
        T(watch(s, 2 * JOIN_MS, cases[i].with_us), "");
        T(wake(s), "read");
        gone_ms = s->now_ms;
        T(is_gone(s), "backend_down");
        T(keep_failing(s, true, JOIN_MS), "failed to join: ERDZV_CONNECTION");
        assert_in_range(s->now_ms, gone_ms + MU_RDZV_SURPLUS_MS, gone_ms + MU_RDZV_SURPLUS_MS + 2000);
        assert_non_null(strstr(mu_rdzv_error(s->r)->text, "the store at b:1 has refused connections for 2 s"));
    }
}

/* It is a new beginning, and whoever comes first has a place. */
static void who_has_seen_the_store_empty_is_no_spare_of_what_was_there(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    (void)state(s, "0 complete S=0@ c=1@");
    (void)written(s);
    T(host_is(s, '\0'), "");
    T(wake(s), "read");
    T(is_gone(s), "backend_down");
    T(wake(s), "read");
    T(state(s, NULL), "backend_up"); /* its members may put the document back */
    T(wake(s), "read");
    T(is_gone(s), "backend_down");
    T(keep_failing(s, true, 10 * MU_RDZV_SURPLUS_MS), "read");

    s = START(2, 2, PLAIN); /* or overwritten */
    T(ask(s, MU_RDZV_JOIN), "read");
    (void)state(s, "0 complete S=0@ c=1@");
    (void)written(s);
    T(host_is(s, '\0'), "");
    T(wake(s), "read");
    T(state(s, "garbage"), "foreign value, not ours");
    T(wake(s), "read");
    T(is_gone(s), "backend_down");
    T(keep_failing(s, true, 10 * MU_RDZV_SURPLUS_MS), "read");
}

/* The workers took longer to stop than the store is waited for. */
static void a_join_after_the_store_was_lost_tries_it_once_more(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@");
    T(host_is(s, 'c'), "");
    T(wake(s), "read");
    T(is_gone(s), "backend_down with its host; lost c");
    T(keep_failing(s, true, LOST_MS + 10000), "read");
    T(is_gone(s), "");
    T(ask(s, MU_RDZV_JOIN), "");
    T(wake(s), "read");
    T(state(s, NULL), "backend_up; write 1 a=0 as new");
}

static void a_pause_of_ours_is_no_time_that_the_store_was_away(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);
    uint64_t since_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@");
    T(host_is(s, 'c'), "");
    T(wake(s), "read");
    T(fails(s), "backend_down");
    T(pass(s, 2 * (AGE_MS + LOST_MS)), "read"); /* due long ago */
    s->now_ms += 2 * (AGE_MS + LOST_MS);        /* while it is under way */
    since_ms = s->now_ms;
    T(fails(s), "");
    T(keep_failing(s, false, JOIN_MS), "lost c");
    assert_in_range(s->now_ms, since_ms + AGE_MS + LOST_MS, since_ms + AGE_MS + LOST_MS + 1);
    T(ask(s, MU_RDZV_JOIN), "");
    T(wake(s), "read");
    T(is_gone(s), "backend_down");
    T(pass(s, 2 * LOST_MS), "read");
    since_ms = s->now_ms;
    T(is_gone(s), "");
    T(keep_failing(s, true, JOIN_MS), "failed to join: ERDZV_CONNECTION");
    assert_in_range(s->now_ms, since_ms + LOST_MS, since_ms + LOST_MS + 1);
}

static void a_store_that_answers_on_another_connection_is_not_silent(void **unused)
{
    struct scene *s = START(2, 3, PLAIN, .has_bell = true);
    uint64_t rung_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@ c=2@");
    T(host_is(s, 'c'), "");
    T(wake(s), "read");
    T(fails(s), "backend_down");
    T(keep_failing(s, false, AGE_MS), "read");
    T(fails(s), "");
    rung_ms = s->now_ms;
    (void)rung(s);
    T(keep_failing(s, false, JOIN_MS), "lost c");
    assert_in_range(s->now_ms, rung_ms + AGE_MS + LOST_MS, rung_ms + AGE_MS + LOST_MS + 1);
}

static void a_host_that_is_no_member_is_nobodys_loss(void **unused)
{
    static const char hosts[] = { '\0', 'z', 'a' }; /* unknown, somebody else, ourselves */

    (void)unused;
    for (size_t i = 0; i < COUNT(hosts); i++) {
        struct scene *s = START(2, 3, PLAIN);

        be_member(s, "0 complete a=0@ b=1@");
        T(host_is(s, hosts[i]), "");
        T(wake(s), "read");
        T(is_gone(s), "backend_down");
        for (unsigned k = 0; k < 500; k++) { /* without limit */
            T(wake(s), "read");
            T(is_gone(s), "");
        }
        assert_int_equal(phase(s), MU_RDZV_PHASE_MEMBER);
        T(wake(s), "read");
        T(state(s, "0 complete a=0@ b=1@7"), "backend_up; write 0 complete a=0 b=1");
        T(written(s), "");
    }
}

static void a_store_that_is_away_is_tried_with_growing_delays(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);
    uint64_t longest_ms = 0;

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    for (unsigned i = 0; i < 40; i++) {
        uint64_t since_ms = s->now_ms;

        T(fails(s), i == 0 ? "backend_down" : "");
        T(wake(s), "read");
        assert_true(s->now_ms - since_ms >= MU_RDZV_RETRY_MS / 2);
        assert_true(i > 0 || s->now_ms - since_ms <= MU_RDZV_RETRY_MS * 3 / 2);
        longest_ms = s->now_ms - since_ms > longest_ms ? s->now_ms - since_ms : longest_ms;
    }
    assert_true(longest_ms > 1000 && longest_ms <= MU_RDZV_RETRY_MAX_MS * 3 / 2);
    T(state(s, "0"), "backend_up; write 0 a=0");
    T(fails(s), "backend_down"); /* and the delays begin anew */
    T(pass(s, MU_RDZV_RETRY_MS * 3 / 2), "read");
}

static void a_join_while_the_store_is_away_asks_when_it_is_tried_again(void **unused)
{
    struct scene *s = START(2, 3, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_LOOK), "read");
    T(fails(s), "looked ERDZV_CONNECTION");
    T(ask(s, MU_RDZV_JOIN), ""); /* not even for a turn */
    T(wake(s), "read");
    T(fails(s), "backend_down");
    T(wake(s), "read");
    T(state(s, "0"), "backend_up; take turn; park 0");
    T(turn(s, 1, 0), "read");
    T(state(s, "0"), "write 0 a=0");
}

/* A refusal that came while there was nobody to tell. */
static void a_join_is_told_that_the_store_refuses_by_now(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(fails(s), "backend_down");
    T(ask(s, MU_RDZV_STOP), "left");
    T(ask(s, MU_RDZV_LOOK), "");
    T(wake(s), "read");
    T(is_gone(s), "looked ERDZV_CONNECTION");
    T(ask(s, MU_RDZV_JOIN), "");
    T(wake(s), "read");
    T(is_gone(s), "backend_down");
    T(wake(s), "read");
    T(is_gone(s), "");
}

/* ---- Looking ---- */

static void a_look_is_at_most_a_second_old(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_LOOK), "read");
    T(state(s, "2 complete b=0@ c=1@ w~@"), "looked 2, 1 waits");
    assert_int_equal(mu_rdzv_doc(s->r)->waiting, 1);
    s->now_ms += 999;
    T(ask(s, MU_RDZV_LOOK), "looked 2, 1 waits");
    s->now_ms += 1;
    T(ask(s, MU_RDZV_LOOK), "read");
    T(fails(s), "looked ERDZV_CONNECTION");
    T(ask(s, MU_RDZV_LOOK), "");
    T(wake(s), "read");
    T(state(s, NULL), "looked nothing");
    assert_int_equal(mu_rdzv_doc(s->r)->count, 0);
    assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);
}

static void a_look_beside_a_join_sees_what_the_join_sees(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(ask(s, MU_RDZV_LOOK), "");
    T(state(s, "0"), "looked 0; write 0 a=0");
    T(ask(s, MU_RDZV_STOP), "left");
    T(ask(s, MU_RDZV_LOOK), "looked 0"); /* the write may not have taken place */

    s = START(2, 4, PLAIN);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(ask(s, MU_RDZV_LOOK), "");
    T(state(s, "2 complete b=0@ c=1@ d=2@ w~@"), "looked 2, 1 waits; write 2 complete b=0 c=1 d=2 w~ a~");
    T(ask(s, MU_RDZV_LOOK), "");
    T(written(s), "looked 2, 2 wait; read");
    T(ask(s, MU_RDZV_LOOK), "looked 2, 2 wait");
}

/* What is still to be written was never in the store. */
static void a_look_while_a_write_is_under_way_waits_for_its_end(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(state(s, "1 complete b=0@ c=1@"), "write 1 complete closed b=0 c=1");
    T(ask(s, MU_RDZV_LOOK), "");
    T(written(s), "looked 1, closed; closed");

    s = START(2, 3, PLAIN);
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(state(s, "1 complete b=0@ c=1@"), "write 1 complete closed b=0 c=1");
    T(ask(s, MU_RDZV_LOOK), "");
    T(lost(s, "1 complete b=0@ c=1@ w~@"), "looked 1, 1 waits; read");

    s = START(2, 3, PLAIN);
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(state(s, "1 complete b=0@ c=1@"), "write 1 complete closed b=0 c=1");
    T(ask(s, MU_RDZV_LOOK), "");
    T(fails(s), "looked ERDZV_CONNECTION");
}

/* ---- Closing ---- */

static void a_close_alone_is_one_write(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(state(s, "0 complete b=0@"), "write 0 complete closed b=0");
    T(written(s), "closed");
    assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);
    T(ask(s, MU_RDZV_CLOSE), "read"); /* asked again, answered again */
    T(state(s, "0 complete closed b=0@"), "closed");
    s = START(2, 3, PLAIN);
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(state(s, NULL), "write 0 closed as new");
    T(lost(s, "0 closed b=0@"), "closed");
}

static void a_close_beside_membership_is_told_once(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete closed a=0 b=1");
    T(written(s), "closed");
    T(watch(s, 10000, "0 complete closed a=0@ b=1@"), "");
}

static void a_close_beside_a_join_ends_it(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(ask(s, MU_RDZV_CLOSE), "");
    T(state(s, "0"), "write 0 closed");
    T(written(s), "closed; failed to join: ERDZV_CLOSED");

    s = START(2, 3, PLAIN);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(ask(s, MU_RDZV_CLOSE), "");
    T(written(s), "write 0 closed a=0");
    T(written(s), "closed; failed to join: ERDZV_CLOSED");
}

static void a_close_has_its_time(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_CLOSE), "read"); /* silence */
    T(pass(s, CLOSE_MS), "");
    T(pass(s, 1), "failed to close: ERDZV_TIMEOUT");

    s = START(2, 3, PLAIN);
    T(ask(s, MU_RDZV_CLOSE), "read");
    T(fails(s), "");
    while (strcmp(wake(s), "read") == 0)
        T(fails(s), "");
    T(s->trace.text, "failed to close: ERDZV_CONNECTION");
    assert_true(s->now_ms == START_MS + CLOSE_MS + 1);
}

/* ---- Leaving and stopping ---- */

static void leaving_without_having_been_there_is_done_at_once(void **unused)
{
    struct scene *s = START(2, 3, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_LEAVE), "left");
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(ask(s, MU_RDZV_LEAVE), "left");
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 2, 1), "read");
    T(ask(s, MU_RDZV_LEAVE), "give turn 2; left");
    assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);
}

static void leaving_while_a_write_is_under_way_takes_it_back(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(ask(s, MU_RDZV_LEAVE), "");
    T(written(s), "write 0");
    T(written(s), "left");
}

static void leaving_as_participant_waiting_spare_or_member(void **unused)
{
    static const struct {
        const char *first, *then, *last;
    } ways[] = {
        { "0", "0 a=0@", "write 0" },
        { "0 complete b=0@ c=1@", "0 complete b=0@ c=1@ a~@", "write 0 complete b=0 c=1" },
        { "0 complete b=0@ c=1@ d=2@", "0 complete b=0@ c=1@ d=2@ a+@", "write 0 complete b=0 c=1 d=2" },
        { "0 b=0@ c=0@", "0 complete a=0@ b=1@ c=2@", "write 0 complete b=1 c=2" },
    };

    (void)unused;
    for (size_t i = 0; i < COUNT(ways); i++) {
        struct scene *s = START(2, 3, PLAIN);

        T(ask(s, MU_RDZV_JOIN), "read");
        (void)state(s, ways[i].first);
        (void)written(s);
        s->now_ms += 100;
        T(ask(s, MU_RDZV_LEAVE), "read");
        T(state(s, ways[i].then), ways[i].last);
        T(written(s), "left");
        assert_int_equal(phase(s), MU_RDZV_PHASE_IDLE);
        assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);
    }
}

static void leaving_takes_a_turn_where_there_are_turns(void **unused)
{
    struct scene *s = START(2, 2, ALL);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 1, 0), "read");
    T(state(s, "0 b=0@"), "write 0 complete b=1 a=0");
    T(written(s), "ring; give turn 1; settle 0");
    T(ask(s, MU_RDZV_LEAVE), "read"); /* while settling */
    T(state(s, "0 complete a=0@ b=1@"), "take turn; park 0");
    T(turn(s, 2, 1), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1");
    T(written(s), "ring; give turn 2; left");
}

static void leaving_while_leaving_the_old_round(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(ask(s, MU_RDZV_LEAVE), "");
    (void)state(s, "0 complete a=0@ b=1@");
    T(s->trace.text, "write 0 complete b=1");
    T(written(s), "left");
}

static void leaving_has_its_time(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);
    uint64_t since_ms = 0;

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    since_ms = s->now_ms;
    T(ask(s, MU_RDZV_LEAVE), "read"); /* silence */
    T(pass(s, CLOSE_MS), "");
    T(pass(s, 1), "failed to leave: ERDZV_TIMEOUT");
    assert_int_equal(phase(s), MU_RDZV_PHASE_IDLE);

    s = START(2, 3, PLAIN);
    be_member(s, "0 complete a=0@ b=1@");
    since_ms = s->now_ms;
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(fails(s), "backend_down");
    while (strcmp(wake(s), "read") == 0)
        T(fails(s), "");
    T(s->trace.text, "failed to leave: ERDZV_CONNECTION");
    assert_true(s->now_ms == since_ms + CLOSE_MS + 1);
}

static void what_was_given_up_may_have_been_written_all_the_same(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(wake(s), "failed to join: ERDZV_TIMEOUT"); /* the answer never came */
    T(ask(s, MU_RDZV_LEAVE), "read");
    T(state(s, "0 a=0@"), "write 0");
    T(written(s), "left");

    s = START(2, 3, PLAIN);
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0"), "write 0 a=0");
    T(ask(s, MU_RDZV_STOP), "left");
    T(ask(s, MU_RDZV_JOIN), "read");
    assert_null(strstr(state(s, "0 a=0@"), "failed")); /* it is no stranger */
}

static void stopping_leaves_all_as_it_is(void **unused)
{
    struct scene *s = START(2, 2, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_STOP), "left"); /* no heartbeat follows */
    assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);

    s = START(2, 2, ALL);
    T(ask(s, MU_RDZV_STOP), "left");
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(ask(s, MU_RDZV_STOP), "left");
    T(ask(s, MU_RDZV_JOIN), "take turn");
    T(turn(s, 2, 1), "read");
    T(state(s, "0 b=0@"), "write 0 complete b=1 a=0");
    T(ask(s, MU_RDZV_STOP), "give turn 2; left"); /* the write may take place or not */
    assert_true(mu_rdzv_deadline_ms(s->r) == UINT64_MAX);
    T(ask(s, MU_RDZV_JOIN), "take turn; park 0"); /* after which it begins anew */
    T(turn(s, 3, 2), "read");
    (void)state(s, "0 complete a=0@ b=1@");
    assert_int_equal(phase(s) == MU_RDZV_PHASE_IDLE, false);
}

static void who_was_a_member_joins_only_after_leaving_that_round(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_STOP), "left");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1 a~");

    s = START(2, 3, PLAIN);
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_JOIN), "read"); /* and never an answer */
    T(wake(s), "failed to join: ERDZV_TIMEOUT");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1 a~");

    s = START(2, 3, PLAIN);
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_LEAVE), "read"); /* and never an answer */
    T(wake(s), "failed to leave: ERDZV_TIMEOUT");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete a=0@ b=1@"), "write 0 complete b=1 a~");
}

static void a_member_of_a_closed_rendezvous_that_joins_is_out_first(void **unused)
{
    struct scene *s = START(2, 3, PLAIN);

    (void)unused;
    be_member(s, "0 complete a=0@ b=1@");
    T(ask(s, MU_RDZV_JOIN), "read");
    T(state(s, "0 complete closed a=0@ b=1@"), "write 0 complete closed b=1");
    T(written(s), "failed to join: ERDZV_CLOSED");
}

/* ---- How often the document is read ---- */

/* The time between two looks at a document of 20 members and so many bytes. */
static uint64_t poll_of(size_t size, uint64_t keep_alive_ms)
{
    struct mu_rdzv_config config = { PLAIN };
    struct scene *s = NULL;
    struct mu_rdzv_event event = { 0 };
    struct words text = { .len = 0 };
    char *bytes = malloc(size);

    assert_non_null(bytes);
    memset(bytes, ' ', size);
    config.settings.keep_alive_ms = keep_alive_ms;
    s = start_as(config, 1, 20);
    T(ask(s, MU_RDZV_JOIN), "read");
    say_word(&text, "0 complete 1.13"); /* full, so that a newcomer only polls */
    for (char letter = 'b'; letter < 'b' + 20; letter++)
        say_word(&text, " %c=%d@", letter, letter - 'b');
    event = document(s, MU_RDZV_STATE, text.text);
    assert_true(event.bytes.len <= size);
    memcpy(bytes, event.bytes.data, event.bytes.len);
    event.bytes = mu_slice(bytes, size);
    event.token = mu_slice("7", 1); /* it need not be the document itself */
    T(step(s, event), "");
    free(bytes);
    return mu_rdzv_deadline_ms(s->r) - s->now_ms;
}

static void a_big_document_is_read_less_often_but_often_enough_to_judge(void **unused)
{
    const size_t second = MU_RDZV_POLL_BYTES_S / 20; /* what 20 members may read in a second */

    (void)unused;
    assert_in_range(poll_of(1000, INTERVAL_MS), 1000, 1000);
    assert_in_range(poll_of(second, INTERVAL_MS), 1000, 1001);
    assert_in_range(poll_of(2 * second, INTERVAL_MS), 1990, 2010);
    assert_in_range(poll_of(3 * second, INTERVAL_MS), 2990, 3010);
    assert_in_range(poll_of(20 * second, INTERVAL_MS), 4000, 4000);
    assert_in_range(poll_of(1000, 1000), 800, 800);
    assert_in_range(poll_of(20 * second, 1000), 800, 800);
}

/* ---- Whatever happens ---- */

/* With us in it only if we can be there. */
static void say_random_doc(struct words *out, struct mu_rng *rng, bool with_me)
{
    static const char letters[] = "abcDEfg";
    bool complete = mu_rng_below(rng, 2) == 0;
    int rank = 0;

    out->len = 0;
    say_word(out, "%d%s%s", mu_rng_below(rng, 3) == 0 ? (int)mu_rng_below(rng, 4) : 1, complete ? " complete" : "",
             mu_rng_below(rng, 12) == 0 ? " closed" : "");
    if (!complete && mu_rng_below(rng, 2) == 0)
        say_word(out, " last-call=%d", (int)mu_rng_below(rng, 3));
    say_word(out, "%s", mu_rng_below(rng, 8) == 0 ? " 1.13" : mu_rng_below(rng, 8) == 0 ? " 2.5" : "");
    for (size_t i = 0; i < sizeof letters - 1; i++) {
        bool me = letters[i] == 'a';
        uint64_t what = mu_rng_below(rng, me ? 5 : 7);

        if (what >= 5 || (me && !with_me))
            continue;
        say_word(out, " %c", letters[i]);
        if (what < 3)
            say_word(out, "=%d", complete && mu_rng_below(rng, 20) > 0 ? rank++ : 0);
        else
            say_word(out, "%s", what == 3 ? "~" : "+");
        if (mu_rng_below(rng, 10) > 0)
            say_word(out, "@%s", mu_rng_below(rng, 3) == 0 ? "7" : "");
    }
}

/* What happened must fit what was before; step() has checked that time is not asked for in vain. */
struct story {
    int64_t round; /* that we are a member of; -1: none */
    bool lost, waiting;
};

static void assert_fits(struct story *story, struct scene *s, const char *trace)
{
    const struct mu_rdzv_world *world = mu_rdzv_world(s->r);

    if (strstr(trace, "joined") != NULL) {
        assert_non_null(world);
        assert_true((int64_t)world->count >= s->config.settings.nodes_min);
        assert_true(mu_node_equal(&world->members[world->rank], &s->config.me));
        for (size_t i = 1; i < world->count; i++)
            assert_true(mu_node_compare(&world->members[i - 1], &world->members[i]) < 0);
        *story = (struct story){ .round = world->round };
    }
    if (strstr(trace, "lost") != NULL) {
        assert_false(story->lost || story->round < 0);
        assert_true(mu_rdzv_lost(s->r).count > 0);
        story->lost = true;
    }
    if (strstr(trace, "waiting ") != NULL) {
        assert_false(story->waiting || story->round < 0);
        story->waiting = true;
    }
    if (strstr(trace, "removed") != NULL)
        assert_true(story->round >= 0);
    assert_int_equal(world != NULL, phase(s) == MU_RDZV_PHASE_MEMBER);
    if (world == NULL)
        story->round = -1;
    if (phase(s) == MU_RDZV_PHASE_IDLE)
        assert_true(strstr(trace, "park") == NULL);
}

static const char *random_answer(struct scene *s, struct mu_rng *rng)
{
    static struct words text;

    say_random_doc(&text, rng, s->ever_written);
    switch (mu_rng_below(rng, 8)) {
    case 0:
        return mu_rng_below(rng, 2) == 0 ? fails(s) : is_gone(s);
    case 1:
        (void)snprintf(text.text, sizeof text.text, mu_rng_below(rng, 4) == 0 ? "garbage" : "1");
        break;
    default:
        break;
    }
    if (s->main_type == MU_RDZV_DO_SETTLE)
        return settled(s, mu_rng_below(rng, 3) == 0 ? "another" : NULL);
    if (s->main_type == MU_RDZV_DO_READ)
        return state(s, mu_rng_below(rng, 20) == 0 ? NULL : text.text);
    return mu_rng_below(rng, 3) > 0 ? written(s) : lost(s, text.text);
}

static const char *random_event(struct scene *s, struct mu_rng *rng)
{
    bool may_join = phase(s) == MU_RDZV_PHASE_IDLE || phase(s) == MU_RDZV_PHASE_MEMBER;

    switch (mu_rng_below(rng, 40)) {
    case 0:
        return ask(s, MU_RDZV_LEAVE);
    case 1:
        return ask(s, MU_RDZV_CLOSE);
    case 2:
        return ask(s, MU_RDZV_LOOK);
    case 3:
        return mu_rng_below(rng, 3) == 0 ? ask(s, MU_RDZV_STOP) : pass(s, 0);
    case 4:
        return host_is(s, "bcD"[mu_rng_below(rng, 3)]);
    case 5:
        return pass(s, mu_rng_below(rng, 20000));
    case 6:
    case 7:
    case 8:
        return s->park_id != 0 && s->bell < 1000 ? rung(s) : pass(s, 0);
    case 9:
    case 10:
    case 11:
        if (s->turn_id == 0)
            return pass(s, 0);
        if (mu_rng_below(rng, 2) == 0)
            return turn(s, 1 + (int64_t)mu_rng_below(rng, 9), (int64_t)mu_rng_below(rng, 9));
        return fails_with(s, take_id(&s->turn_id), MUSTER_ERDZV_CONNECTION, false);
    case 12:
    case 13:
        return may_join ? ask(s, MU_RDZV_JOIN) : pass(s, 0);
    default:
        break;
    }
    if (s->main_id != 0 && mu_rng_below(rng, 20) > 0)
        return random_answer(s, rng);
    return mu_rdzv_deadline_ms(s->r) != UINT64_MAX && s->main_id == 0 ? wake(s) : pass(s, 10);
}

static void whatever_comes_it_keeps_its_word(void **unused)
{
    unsigned joined = 0, told_lost = 0;

    (void)unused;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct mu_rng rng = mu_rng_seeded(seed);
        struct mu_rdzv_config config = { PLAIN };
        struct story story = { .round = -1 };
        struct scene *s = NULL;

        config.seed = seed;
        config.has_bell = seed % 2 == 0;
        config.has_turns = seed % 3 == 0;
        config.has_settle = seed % 5 < 2;
        s = start_as(config, 1 + (int64_t)mu_rng_below(&rng, 2), 2 + (int64_t)mu_rng_below(&rng, 5));
        for (unsigned i = 0; i < 300; i++) {
            assert_fits(&story, s, random_event(s, &rng));
            joined += strstr(s->trace.text, "joined") != NULL;
            told_lost += strstr(s->trace.text, "lost") != NULL;
        }
    }
    assert_true(joined > 100 && told_lost > 20); /* it was about something */
}

static void without_a_codec_it_is_pickle(void **unused)
{
    struct mu_rdzv_config config = { PLAIN };
    struct mu_rdzv_effects effects;
    struct mu_rdzv_event event = { .type = MU_RDZV_JOIN, .now_ms = START_MS, .wall_us = 1 };
    struct mu_rdzv *r = NULL;
    struct mu_doc doc;

    (void)unused;
    config.me = node_of('a');
    config.hash_seed = hash_seed;
    assert_int_equal(mu_rdzv_new(&config, &r, NULL), 0);
    mu_rdzv_step(r, &event, &effects);
    assert_int_equal(effects.items[0].type, MU_RDZV_DO_READ);
    event.type = MU_RDZV_STATE;
    event.id = effects.items[0].id;
    mu_rdzv_step(r, &event, &effects);
    mu_doc_init(&doc, hash_seed, MU_DOC_DIALECT_2_X);
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type == MU_RDZV_DO_WRITE)
            assert_int_equal(mu_doc_codec_pickle.decode(effects.items[i].bytes, &doc, NULL), 0);
    assert_true(doc.complete && mu_doc_has(&doc, &config.me, MU_DOC_PARTICIPANT));
    mu_doc_done(&doc);
    mu_rdzv_free(r);
}

/* ---- Memory ---- */

/* A store that answers, and b, which beats and does what the document wants of it. */
struct small_world {
    char text[DOC_TEXT_MAX];
    uint64_t last_call_ms; /* since when there is one; 0: there is none */
};

static void note_last_call(struct small_world *w, const struct scene *s)
{
    if (strstr(w->text, "last-call") == NULL)
        w->last_call_ms = 0;
    else if (w->last_call_ms == 0)
        w->last_call_ms = s->now_ms;
}

static void b_acts(struct small_world *w, const struct scene *s)
{
    struct mu_node b = node_of('b');
    struct words text = { .len = 0 };
    struct mu_doc_member *member = NULL;
    struct mu_doc doc;

    doc_is(&doc, w->text);
    member = mu_doc_enter(&doc, &b, doc.complete ? MU_DOC_HEARTBEAT : MU_DOC_HEARTBEAT | MU_DOC_PARTICIPANT);
    assert_non_null(member);
    member->heartbeat_us = (int64_t)s->now_ms * 1000;
    write_doc(&text, &doc, true);
    memcpy(w->text, text.text, text.len + 1);
    mu_doc_done(&doc);
}

static const char *serve(struct small_world *w, struct scene *s)
{
    struct mu_doc doc;

    if (s->main_id == 0)
        return wake(s);
    if (s->main_type == MU_RDZV_DO_SETTLE)
        return settled(s, NULL);
    if (s->main_type == MU_RDZV_DO_READ) {
        b_acts(w, s);
        return state(s, w->text);
    }
    doc_is(&doc, s->written);
    if (doc.complete && w->last_call_ms != 0) /* nobody ends a last call early, memory or not */
        assert_true(s->now_ms >= w->last_call_ms + s->config.settings.last_call_ms);
    mu_doc_done(&doc);
    memcpy(w->text, s->written, sizeof w->text);
    note_last_call(w, s);
    return written(s);
}

static void serve_until(struct small_world *w, struct scene *s, const char *what)
{
    uint64_t since_ms = s->now_ms;

    for (bool seen = strstr(s->trace.text, what) != NULL; !seen; seen = strstr(serve(w, s), what) != NULL)
        if (s->now_ms > since_ms + 100000)
            fail_msg("this never came: %s", what);
}

static void without_memory_for_a_moment_it_gets_there_all_the_same(void **unused)
{
    struct mu_rdzv_config config = { PLAIN, .has_settle = true, .has_bell = true };
    unsigned long nth = 0;
    bool failed = true;

    (void)unused;
    config.settings.last_call_ms = 3000;
    while (failed) {
        struct small_world w = { .text = "0" };
        struct scene *s = start_as(config, 2, 4);
        uint64_t end_ms = 0;

        s->fail_at = ++nth;
        (void)host_is(s, 'b');
        (void)ask(s, MU_RDZV_JOIN);
        serve_until(&w, s, "joined 0 as 0 of a b");
        for (end_ms = s->now_ms + 8000; s->now_ms < end_ms;)
            (void)serve(&w, s); /* heartbeats */
        assert_int_equal(phase(s), MU_RDZV_PHASE_MEMBER);
        (void)ask(s, MU_RDZV_LOOK);
        serve_until(&w, s, "looked");
        (void)ask(s, MU_RDZV_CLOSE);
        serve_until(&w, s, "closed");
        (void)ask(s, MU_RDZV_LEAVE);
        serve_until(&w, s, "left");
        failed = s->failed;
    }
    assert_true(nth > 20);
}

static void a_machine_is_made_whole_or_not_at_all(void **unused)
{
    (void)unused;
    FOR_EACH_FAILURE (n) {
        struct mu_rdzv_config config = { PLAIN };
        struct muster_error error = { 0 };
        struct mu_rdzv *r = NULL;
        int rc = 0;

        config.me = node_of('a');
        rc = mu_rdzv_new(&config, &r, &error);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        assert_int_equal(error.code, rc);
        assert_int_equal(r != NULL, rc == 0);
        mu_rdzv_free(r);
    }
}

static void everything_has_a_name(void **unused)
{
    (void)unused;
    for (int i = MU_RDZV_JOIN; i <= MU_RDZV_TIME; i++)
        assert_true(strlen(mu_rdzv_event_text((enum mu_rdzv_event_type)i)) > 1);
    for (int i = MU_RDZV_DO_READ; i <= MU_RDZV_DO_SYNCED; i++)
        assert_true(strlen(mu_rdzv_effect_text((enum mu_rdzv_effect_type)i)) > 1);
    for (int i = MU_PART_TELL_JOINED; i < MU_PART_TELLS_COUNT; i++)
        assert_true(strlen(mu_part_tell_text((enum mu_part_tell)i)) > 1);
    for (int i = MU_RDZV_PHASE_IDLE; i <= MU_RDZV_PHASE_LEAVING; i++)
        assert_true(strlen(mu_rdzv_phase_text((enum mu_rdzv_phase)i)) > 1);
}

#define SCENE(test) cmocka_unit_test_teardown(test, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(the_first_node_makes_the_document_and_the_last_one_completes_it),
        SCENE(with_turns_a_bell_and_a_settled_digest),
        SCENE(what_is_written_is_recorded_and_then_what_became_of_it),
        SCENE(what_was_in_vain_is_recorded_too),
        SCENE(a_deed_bears_its_round),
        SCENE(the_end_of_a_round_or_of_a_last_call_is_recorded),
        SCENE(the_end_of_a_last_call_is_recorded),
        SCENE(leaving_is_recorded_by_the_list_that_is_left),
        SCENE(a_close_by_another_node_is_not_ours),
        SCENE(whoever_was_removed_as_dead_is_recorded),
        SCENE(progress_is_told_when_there_is_some),
        SCENE(a_lost_write_waits_a_moment_reads_and_writes),
        SCENE(whose_turn_it_is_tries_again_at_once_but_not_for_ever),
        SCENE(the_moment_grows_up_to_a_second),
        SCENE(the_moment_may_be_chosen_but_costs_no_heartbeat),
        SCENE(a_write_that_was_done_without_an_answer_is_not_done_twice),
        SCENE(a_completing_write_without_an_answer_has_completed),
        SCENE(an_exit_and_join_without_an_answer_is_not_done_twice),
        SCENE(answers_that_nobody_waits_for_are_dropped),
        SCENE(a_turn_is_waited_for_as_long_as_the_others_get_on),
        SCENE(a_turn_that_came_is_used_at_once),
        SCENE(a_turn_is_waited_for_two_seconds_at_a_time),
        SCENE(heartbeats_go_on_while_a_turn_is_waited_for),
        SCENE(a_crowd_takes_turns_for_its_heartbeats),
        SCENE(while_a_turn_is_waited_for_the_document_is_looked_at),
        SCENE(what_was_asked_for_before_the_turn_is_not_written_upon),
        SCENE(without_turns_it_goes_on_without_turns),
        SCENE(a_turn_is_given_on_when_there_is_nothing_to_do_with_it),
        SCENE(a_last_call_ends_by_our_own_clock),
        SCENE(a_last_call_counts_from_when_we_first_saw_it),
        SCENE(a_later_node_does_not_extend_the_last_call),
        SCENE(another_last_call_begins_anew),
        SCENE(a_null_deadline_waits_for_somebody_to_come),
        SCENE(a_last_call_after_a_write_without_an_answer_ends_on_time),
        SCENE(when_all_are_back_the_round_is_complete_at_once),
        SCENE(who_left_is_waited_for_a_second),
        SCENE(who_missed_a_round_does_not_know_whom_to_wait_for),
        SCENE(who_left_long_ago_is_not_waited_for),
        SCENE(who_is_dead_is_not_waited_for),
        SCENE(a_lost_node_is_waited_for_as_long_as_asked),
        SCENE(a_replacement_of_a_lost_node_is_welcome),
        SCENE(waiting_nodes_hold_the_round_open),
        SCENE(spares_that_can_step_in_hold_the_round_open),
        SCENE(a_newcomer_never_ends_a_last_call_early),
        SCENE(the_minimum_counts_also_when_all_are_back),
        SCENE(a_removed_node_is_a_newcomer),
        SCENE(a_participant_takes_itself_out_when_time_is_up),
        SCENE(a_waiting_node_takes_itself_out_when_time_is_up),
        SCENE(a_round_that_completes_in_time_for_nobody_but_us_counts),
        SCENE(a_silent_store_is_given_up_five_seconds_later),
        SCENE(a_store_that_stays_away_is_the_reason),
        SCENE(closed_is_closed),
        SCENE(a_spare_waits_without_end_and_exits_in_good_order),
        SCENE(a_spare_of_a_store_that_is_gone_has_as_long_as_a_join),
        SCENE(a_spare_steps_in_and_its_time_begins_anew),
        SCENE(a_spare_steps_into_an_open_round),
        SCENE(a_surplus_node_of_1_13_polls_until_its_time_is_up),
        SCENE(a_waiting_node_enters_the_next_round),
        SCENE(a_round_whose_members_are_all_dead_is_taken_over),
        SCENE(heartbeats_come_on_time_and_not_in_step),
        SCENE(a_member_that_left_is_lost_once),
        SCENE(a_member_that_is_silent_is_lost_after_the_death_age),
        SCENE(nobody_is_lost_because_of_our_pause),
        SCENE(nobody_is_lost_because_of_an_outage_that_only_the_bell_noticed),
        SCENE(a_bell_that_was_parked_for_long_delays_no_loss),
        SCENE(a_waiting_or_spare_node_that_dies_is_nobodys_loss),
        SCENE(removed_is_told_once_whatever_the_document_says_instead),
        SCENE(waiting_is_told_once_a_round),
        SCENE(waiting_for_a_place_in_a_full_round_is_not_told),
        SCENE(waiting_is_not_told_in_a_closed_rendezvous),
        SCENE(waiting_nodes_are_held_down_after_short_rounds),
        SCENE(the_hold_down_is_no_longer_than_a_minute),
        SCENE(losses_are_not_held_down),
        SCENE(closed_is_told_once),
        SCENE(a_heartbeat_that_was_lost_to_another_write_is_written_soon),
        SCENE(the_bell_is_rung_only_for_what_others_wait_for),
        SCENE(the_dead_are_taken_out_soon_and_rung_for),
        SCENE(who_joins_waits_for_a_document_for_as_long_as_it_wants_to_join),
        SCENE(a_rounds_end_its_opening_and_its_completion_are_rung_and_no_more),
        SCENE(the_first_that_wants_in_is_rung_for),
        SCENE(for_pytorchs_nodes_the_first_of_ours_rings),
        SCENE(who_waits_for_the_next_round_and_is_rung_takes_a_turn),
        SCENE(a_member_whose_round_ends_puts_its_heartbeat_off),
        SCENE(the_bell_is_parked_at_the_last_counter),
        SCENE(a_bell_that_rings_for_nothing_is_left_alone_until_the_next_look),
        SCENE(rings_for_what_was_seen_already_are_not_counted_for_ever),
        SCENE(a_bell_that_cannot_be_parked_is_not_tried_in_a_circle),
        SCENE(world_and_rank_are_those_that_were_written),
        SCENE(a_round_with_members_or_ranks_missing_is_left_and_joined_anew),
        SCENE(a_round_that_others_saw_otherwise_is_left_and_joined_anew),
        SCENE(the_digest_is_of_members_and_ranks_whatever_their_order),
        SCENE(a_settling_that_fails_is_tried_again),
        SCENE(a_name_may_have_any_bytes),
        SCENE(times_are_the_documents_own),
        SCENE(the_dialect_that_was_read_is_written),
        SCENE(a_document_of_2_3_to_2_5_is_joined_and_written_as_it_was),
        SCENE(a_spare_of_2_5_steps_up),
        SCENE(with_2_5_workers_of_all_nodes_get_a_moment_to_fail),
        SCENE(with_2_5_a_loss_is_told_after_our_workers_had_a_moment_to_fail),
        SCENE(a_store_that_lost_its_data_gets_the_dialect_that_was_there),
        SCENE(a_document_of_another_layout_ends_a_join_at_once),
        SCENE(a_member_bears_a_document_of_another_layout_for_the_death_age),
        SCENE(a_member_replaces_what_a_stranger_wrote),
        SCENE(what_is_put_back_has_new_heartbeats_of_all),
        SCENE(a_member_that_has_paused_is_the_last_to_put_it_back),
        SCENE(what_the_back_end_cannot_decode_is_replaced_too),
        SCENE(nobody_is_judged_by_what_was_before_it_was_overwritten),
        SCENE(a_joiner_leaves_a_foreign_value_to_the_members_first),
        SCENE(a_foreign_value_is_waited_out_once),
        SCENE(while_regrouping_a_foreign_value_is_replaced_by_who_is_still_in_the_round),
        SCENE(leaving_and_closing_get_past_a_foreign_value),
        SCENE(another_node_with_our_identity_is_refused),
        SCENE(a_spare_leaves_an_emptied_store_to_the_members),
        SCENE(a_joiner_begins_where_no_round_was_yet),
        SCENE(a_member_puts_the_document_back),
        SCENE(nobody_is_judged_by_what_was_before_the_store_lost_it),
        SCENE(a_round_that_we_had_left_is_left_again),
        SCENE(what_is_left_of_such_a_round_is_left_again),
        SCENE(a_number_that_comes_again_with_the_same_members_is_not_joined_again),
        SCENE(only_a_member_puts_it_back),
        SCENE(when_the_hosts_process_is_gone_it_is_lost),
        SCENE(a_store_whose_host_was_a_member_is_waited_for_store_lost_timeout),
        SCENE(what_answers_there_again_in_time_is_joined),
        SCENE(a_silent_host_is_lost_after_its_death_age_and_store_lost_timeout),
        SCENE(a_host_that_goes_after_another_is_lost_as_well),
        SCENE(who_waits_for_a_round_whose_host_goes_does_not_wait_for_the_join_timeout),
        SCENE(a_spare_whose_host_has_gone_ends_soon),
        SCENE(who_has_seen_the_store_empty_is_no_spare_of_what_was_there),
        SCENE(a_join_after_the_store_was_lost_tries_it_once_more),
        SCENE(a_pause_of_ours_is_no_time_that_the_store_was_away),
        SCENE(a_store_that_answers_on_another_connection_is_not_silent),
        SCENE(a_host_that_is_no_member_is_nobodys_loss),
        SCENE(a_store_that_is_away_is_tried_with_growing_delays),
        SCENE(a_join_while_the_store_is_away_asks_when_it_is_tried_again),
        SCENE(a_join_is_told_that_the_store_refuses_by_now),
        SCENE(a_look_is_at_most_a_second_old),
        SCENE(a_look_beside_a_join_sees_what_the_join_sees),
        cmocka_unit_test(a_look_while_a_write_is_under_way_waits_for_its_end),
        SCENE(a_close_alone_is_one_write),
        SCENE(a_close_beside_membership_is_told_once),
        SCENE(a_close_beside_a_join_ends_it),
        SCENE(a_close_has_its_time),
        SCENE(leaving_without_having_been_there_is_done_at_once),
        SCENE(leaving_while_a_write_is_under_way_takes_it_back),
        SCENE(leaving_as_participant_waiting_spare_or_member),
        SCENE(leaving_takes_a_turn_where_there_are_turns),
        SCENE(leaving_while_leaving_the_old_round),
        SCENE(leaving_has_its_time),
        SCENE(what_was_given_up_may_have_been_written_all_the_same),
        SCENE(stopping_leaves_all_as_it_is),
        SCENE(who_was_a_member_joins_only_after_leaving_that_round),
        SCENE(a_member_of_a_closed_rendezvous_that_joins_is_out_first),
        SCENE(a_big_document_is_read_less_often_but_often_enough_to_judge),
        SCENE(whatever_comes_it_keeps_its_word),
        SCENE(without_a_codec_it_is_pickle),
        SCENE(without_memory_for_a_moment_it_gets_there_all_the_same),
        SCENE(a_machine_is_made_whole_or_not_at_all),
        SCENE(everything_has_a_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
