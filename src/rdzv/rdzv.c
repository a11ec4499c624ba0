/* One node's part in a dynamic rendezvous.
 *
 * Happy path: JOIN takes a turn; when it has come the document is read; the rules say "add me"; the changed copy is
 * written, the turn given on. Then the bell is parked and the document read now and then, until somebody has marked the
 * round complete; the digest of that document is settled, and the owner told. As a member: heartbeats, and whoever is
 * missing, waiting or closing is told.
 *
 * A lost write brings the winner's document, on which the rules are asked again; the next write waits a random moment. A
 * failed request is tried again after a growing delay: whether a failed write took place shows in the next read, and the
 * rules do not mind. A document that is gone is written again by a member that holds it. */
#include "rdzv/rdzv.h"

#include "rdzv/liveness.h"
#include "rdzv/timeout_text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define ACTIONS_MAX 6 /* in one write: closed; out of the old round, into a list, into the new round, complete */
#define DEEDS_MAX (3 * ACTIONS_MAX) /* who enters a list sets its heartbeat too, and may complete the round */
#define CAME_MAX (MU_TIMEOUT_TEXT_MAX + 64)
#define PAST_MAX 8 /* rounds that we were in, and know when they come again */
#define NEVER UINT64_MAX

/* HERE --request fails--> SILENT --request is refused--> REFUSED; back to HERE with the first answer. */
enum store_state { STORE_HERE, STORE_SILENT, STORE_REFUSED };

enum host_state {
    HOST_UNKNOWN,
    HOST_NODE,
    HOST_OUTSIDE /* a store that stands alone, or a PyTorch node that is not known */
};

enum turn_state { TURN_NONE, TURN_TAKING, TURN_WAITING, TURN_HELD };

/* A write that is prepared or under way. */
struct plan {
    size_t count;                         /* of actions */
    struct mu_rdzv_deed deeds[DEEDS_MAX]; /* these, and what follows from them */
    size_t deeds_count;
    enum mu_rdzv_phase phase; /* that we are in once it is done */
    bool beats, rings;
    bool used_turn; /* it is what the turn was taken for */
    size_t size;    /* in bytes, as written */
};

struct past_round {
    int64_t round;
    char digest[MU_RDZV_DIGEST_MAX];
};

struct mu_rdzv {
    struct mu_rdzv_settings settings;
    struct mu_node me;
    char *name, *endpoint;
    const struct mu_doc_codec *codec;
    bool has_bell, has_turns, has_settle, shares_store;
    struct mu_rng rng;

    /* The document. */
    struct mu_liveness sights; /* as it is in the store */
    struct mu_doc doc;         /* without the dead, and with what we are about to write */
    struct mu_doc incoming;
    struct mu_node *dead; /* names of sights.doc */
    size_t dead_count, dead_room;
    struct mu_node *removed; /* whom our last write removed as dead */
    size_t removed_count, removed_room;
    struct mu_buf token, out;
    bool has_token;
    size_t size;   /* in bytes, as stored */
    bool all_ours; /* nobody in it is PyTorch */
    int64_t bell;
    bool maybe_in; /* a write of ours took place, or may have */
    bool ever_seen;
    bool missing; /* there is no document any more, since missing_since_ms */
    uint64_t missing_since_ms;
    bool from_store;           /* what we saw last was in the store, and not made up because nothing was */
    uint64_t deadline_seen_ms; /* when we first saw the deadline that is in the document */
    uint64_t complete_jitter_ms;

    /* Requests under way; 0: none. */
    uint64_t last_id, main_id, park_id, turn_id;
    enum mu_rdzv_effect_type main_type;
    uint64_t main_sent_ms;
    int64_t park_bell;
    bool park_later; /* it failed, or rings for nothing: with the next look */
    bool rung;
    unsigned idle_rings; /* in a row, that brought nothing new */
    struct plan plan;    /* of the write under way */
    char digest[MU_RDZV_DIGEST_MAX];

    /* Turns and back-off. */
    enum turn_state turn_state;
    int64_t turn, turns_done;
    uint64_t turn_held_ms;
    bool turn_in_vain; /* one of this join was: the bell rings also for what gives us nothing to write */
    unsigned lost_writes;
    uint64_t write_after_ms;
    bool held_back; /* a write waits for write_after_ms */

    /* The back end. */
    enum store_state store;
    uint64_t away_since_ms, refused_since_ms; /* unless it is HERE; if it is REFUSED */
    bool told_down;
    uint64_t retry_ms, retry_at_ms, corrupt_since_ms;
    bool corrupt;
    struct muster_error error;

    /* What is asked. */
    enum mu_rdzv_phase phase;
    bool want_read, looking, closing, told_closed;
    uint64_t op_start_ms, deadline_ms, close_deadline_ms;
    bool spare;            /* by the last document: then deadline_ms does not count */
    char came[CAME_MAX];   /* who had come, for people, when the document was last seen in time */
    int64_t exit_round;    /* that we were a member of and may still be in; -1: none */
    int64_t entered_round; /* into which we wrote ourselves, without having been its member since; -1: none */
    struct past_round past[PAST_MAX]; /* that we were a member of */
    size_t past_count;                /* so many were put there; the last PAST_MAX are kept */

    /* The round we are, or were last, a member of. */
    struct mu_rdzv_world world;
    struct mu_doc world_doc; /* which has its names */
    bool world_valid;
    uint64_t *absent_ms; /* of world.members: since when not seen any more; 0: there */
    bool *expired;       /* and that by our own judgement */
    uint64_t joined_ms, hold_ms, hold_until_ms;
    size_t told_lost; /* so many of them were told */
    uint64_t lost_since_ms,
        exit_since_ms; /* of this round: somebody lost was not told yet; we want to leave. 0: not so */
    bool told_waiting;
    struct mu_node *lost;
    size_t lost_count;
    enum host_state host_state; /* what was said last of who hosts the store */
    struct mu_node host;        /* HOST_NODE */
    bool host_was_seen;         /* ... in the document */
    char *host_name;

    /* Heartbeats. */
    uint64_t beat_due_ms, beat_sent_ms;
    int64_t beat_us;
    int64_t planned_us;
};

/* ---- Names ---- */

const char *mu_rdzv_event_text(enum mu_rdzv_event_type type)
{
    switch (type) {
#define X(name, text)                                                                                                  \
    case MU_RDZV_##name:                                                                                               \
        return text;
        MU_RDZV_EVENTS(X)
#undef X
    }
    return "?";
}

const char *mu_rdzv_effect_text(enum mu_rdzv_effect_type type)
{
    switch (type) {
#define X(name, text)                                                                                                  \
    case MU_RDZV_DO_##name:                                                                                            \
        return text;
        MU_RDZV_EFFECTS(X)
#undef X
    }
    return "?";
}

const char *mu_rdzv_tell_text(enum mu_rdzv_tell tell)
{
    switch (tell) {
#define X(name, text)                                                                                                  \
    case MU_RDZV_TELL_##name:                                                                                          \
        return text;
        MU_RDZV_TELLS(X)
#undef X
    }
    return "?";
}

const char *mu_rdzv_phase_text(enum mu_rdzv_phase phase)
{
    switch (phase) {
#define X(name, text)                                                                                                  \
    case MU_RDZV_PHASE_##name:                                                                                         \
        return text;
        MU_RDZV_PHASES(X)
#undef X
    }
    return "?";
}

/* ---- Life ---- */

/* Names may hold any byte; ours are terminated all the same. */
static char *copy_name(struct mu_slice name)
{
    char *copy = malloc(name.len + 1);

    if (copy == NULL)
        return NULL;
    if (name.len > 0)
        memcpy(copy, name.data, name.len);
    copy[name.len] = '\0';
    return copy;
}

static void forget_world(struct mu_rdzv *r)
{
    free(r->world.members);
    mu_doc_done(&r->world_doc);
    free(r->absent_ms);
    free(r->expired);
    free(r->lost);
    r->world = (struct mu_rdzv_world){ 0 };
    r->world_valid = false;
    r->absent_ms = NULL;
    r->expired = NULL;
    r->lost = NULL;
    r->lost_count = 0;
}

int mu_rdzv_new(const struct mu_rdzv_config *config, struct mu_rdzv **ret_rdzv, struct muster_error *reterr)
{
    struct mu_rdzv *r = calloc(1, sizeof *r);

    if (r == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    r->name = copy_name(config->me.name);
    r->endpoint = config->endpoint != NULL ? strdup(config->endpoint) : NULL;
    if (r->name == NULL || (config->endpoint != NULL && r->endpoint == NULL)) {
        mu_rdzv_free(r);
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    }
    r->me = config->me;
    r->me.name = mu_slice(r->name, config->me.name.len);
    r->settings = config->settings;
    r->codec = config->codec != NULL ? config->codec : &mu_doc_codec_pickle;
    r->has_bell = config->has_bell;
    r->has_turns = config->has_turns;
    r->has_settle = config->has_settle;
    r->shares_store = config->shares_store;
    r->rng = mu_rng_seeded(config->seed);
    mu_liveness_init(&r->sights, config->hash_seed, config->dialect);
    mu_doc_init(&r->doc, config->hash_seed, config->dialect);
    mu_doc_init(&r->incoming, config->hash_seed, config->dialect);
    r->phase = MU_RDZV_PHASE_IDLE;
    r->exit_round = r->entered_round = -1;
    r->retry_ms = MU_RDZV_RETRY_MS;
    *ret_rdzv = r;
    return 0;
}

void mu_rdzv_free(struct mu_rdzv *r)
{
    if (r == NULL)
        return;
    forget_world(r);
    mu_liveness_done(&r->sights);
    mu_doc_done(&r->doc);
    mu_doc_done(&r->incoming);
    mu_buf_done(&r->token);
    mu_buf_done(&r->out);
    free(r->dead);
    free(r->removed);
    free(r->host_name);
    free(r->name);
    free(r->endpoint);
    free(r);
}

/* ---- Effects ---- */

static struct mu_rdzv_effect *push(struct mu_rdzv_effects *out, enum mu_rdzv_effect_type type)
{
    struct mu_rdzv_effect *effect = &out->items[out->count];

    assert(out->count < MU_RDZV_EFFECTS_MAX);
    out->count++;
    *effect = (struct mu_rdzv_effect){ .type = type };
    return effect;
}

static struct mu_rdzv_effect *tell(struct mu_rdzv_effects *out, enum mu_rdzv_tell what)
{
    struct mu_rdzv_effect *effect = push(out, MU_RDZV_DO_TELL);

    effect->tell = what;
    return effect;
}

static void tell_failed(struct mu_rdzv_effects *out, enum mu_rdzv_event_type asked)
{
    tell(out, MU_RDZV_TELL_FAILED)->asked = asked;
}

static struct mu_rdzv_effect *request(struct mu_rdzv *r, enum mu_rdzv_effect_type type, uint64_t now_ms,
                                      struct mu_rdzv_effects *out)
{
    struct mu_rdzv_effect *effect = push(out, type);

    assert(r->main_id == 0);
    effect->id = r->main_id = ++r->last_id;
    r->main_type = type;
    r->main_sent_ms = now_ms;
    return effect;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static bool is_away(const struct mu_rdzv *r)
{
    return r->store != STORE_HERE;
}

/* So many members that their heartbeats would get into each other's way. */
static bool is_crowd(const struct mu_rdzv *r)
{
    return r->has_turns && r->sights.doc.count > MU_RDZV_CROWD;
}

static void give_turn(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    if (r->turn_state != TURN_NONE && r->turn > 0)
        push(out, MU_RDZV_DO_TURN_GIVE)->turn = r->turn;
    r->turn_state = TURN_NONE;
    r->turn = 0;
    r->turn_id = 0;
}

static void take_turn(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    assert(r->turn_state == TURN_NONE);
    r->turn_state = TURN_TAKING;
    r->turn = 0;
    push(out, MU_RDZV_DO_TURN_TAKE)->id = r->turn_id = ++r->last_id;
}

static void hold_turn(struct mu_rdzv *r, uint64_t now_ms)
{
    r->turn_state = TURN_HELD;
    r->turn_held_ms = now_ms;
    r->want_read = true;
}

/* Those before us are done. Who has such a turn is in nobody's way, and need not back off. */
static void hold_own_turn(struct mu_rdzv *r, uint64_t now_ms)
{
    hold_turn(r, now_ms);
    r->write_after_ms = 0;
}

static uint64_t turns_before(const struct mu_rdzv *r)
{
    return r->turns_done < r->turn ? (uint64_t)(r->turn - r->turns_done) : 1;
}

/* Until the one before us is done. How long that may take grows with how many are before us, and with what they have to
 * carry; if none of them gets on in that time, they are gone. */
static void wait_for_turn(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    uint64_t before = turns_before(r);
    uint64_t each_ms = is_crowd(r) || before > MU_RDZV_CROWD ? MU_RDZV_TURN_CROWD_MS : MU_RDZV_TURN_WAIT_MS;
    struct mu_rdzv_effect *effect = NULL;

    if (r->turns_done >= r->turn - 1) {
        hold_own_turn(r, now_ms);
        return;
    }
    r->turn_state = TURN_WAITING;
    effect = push(out, MU_RDZV_DO_TURN_WAIT);
    effect->id = r->turn_id = ++r->last_id;
    effect->turn = r->turn - 1;
    effect->wait_ms = sooner(before * each_ms, MU_RDZV_TURN_WAIT_MAX_MS);
}

/* ---- Asking for things ---- */

static void become(struct mu_rdzv *r, enum mu_rdzv_phase phase)
{
    r->phase = phase;
    if (phase == MU_RDZV_PHASE_IDLE) {
        r->park_id = 0;
        r->held_back = false;
    }
}

static bool is_writing(const struct mu_rdzv *r)
{
    return r->main_id != 0 && r->main_type == MU_RDZV_DO_WRITE;
}

/* Whatever was under way has no meaning any more; a write of it may still take place. */
static void abandon(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    r->maybe_in |= is_writing(r);
    r->main_id = 0;
    r->lost_writes = 0;
    r->write_after_ms = 0;
    r->held_back = false;
    give_turn(r, out);
}

static bool is_joining(const struct mu_rdzv *r)
{
    return r->phase == MU_RDZV_PHASE_EXITING || r->phase == MU_RDZV_PHASE_JOINING || r->phase == MU_RDZV_PHASE_SETTLING;
}

/* By the document as it is now; once the time is up, this node takes itself out of it. */
static void note_who_came(struct mu_rdzv *r)
{
    struct mu_node nodes[MU_TIMEOUT_TEXT_NAMES_MAX];
    struct mu_timeout_text came = { .waited_ms = r->settings.join_ms,
                                    .joined = (int64_t)r->doc.participants,
                                    .nodes_min = r->settings.nodes_min,
                                    .nodes_max = r->settings.nodes_max,
                                    .nodes = nodes,
                                    .nodes_count = r->doc.participants };
    char text[MU_TIMEOUT_TEXT_MAX];

    for (size_t i = 0, count = 0; i < r->doc.count && count < MU_TIMEOUT_TEXT_NAMES_MAX; i++)
        if ((r->doc.members[i].in & MU_DOC_PARTICIPANT) != 0)
            nodes[count++] = r->doc.members[i].node;
    (void)mu_timeout_text_write(&came, text);
    if (r->doc.waiting > 0)
        (void)snprintf(r->came, sizeof r->came, "%s; %zu %s for the next round", text, r->doc.waiting,
                       r->doc.waiting == 1 ? "node waits" : "nodes wait");
    else
        (void)snprintf(r->came, sizeof r->came, "%s%s", text,
                       r->doc.has_deadline ? "; the last call was not over" : "");
}

static void on_join(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    assert(!is_joining(r) && r->phase != MU_RDZV_PHASE_LEAVING);
    if (r->phase == MU_RDZV_PHASE_MEMBER) {
        bool short_round = now_ms - r->joined_ms < MU_RDZV_HOLD_ROUND_MS;
        uint64_t longer = r->hold_ms == 0 ? MU_RDZV_HOLD_MS : r->hold_ms * 2;

        r->hold_ms = !short_round ? 0 : longer < MU_RDZV_HOLD_MAX_MS ? longer : MU_RDZV_HOLD_MAX_MS;
        r->exit_since_ms = now_ms;
    }
    become(r, MU_RDZV_PHASE_EXITING);
    r->op_start_ms = now_ms;
    r->deadline_ms = now_ms + r->settings.join_ms;
    (void)snprintf(r->came, sizeof r->came, "timed out after %llu s: the store has shown no document",
                   (unsigned long long)(r->settings.join_ms / 1000));
    r->spare = r->turn_in_vain = false;
    if (!r->has_turns || is_away(r) || r->turn_state == TURN_HELD)
        r->want_read = true;
    else if (r->turn_state == TURN_NONE)
        take_turn(r, out); /* we will want to write; the document is read when it is our turn */
    if (is_away(r))        /* it is tried before it is given up, however long the pause between tries has become */
        r->retry_at_ms = sooner(r->retry_at_ms, now_ms + MU_RDZV_LAST_TRY_MS / 2);
}

static void on_leave(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    if (!r->maybe_in && !is_writing(r)) {
        abandon(r, out);
        become(r, MU_RDZV_PHASE_IDLE);
        tell(out, MU_RDZV_TELL_LEFT);
        return;
    }
    if (r->main_type == MU_RDZV_DO_SETTLE)
        r->main_id = 0;
    become(r, MU_RDZV_PHASE_LEAVING);
    r->op_start_ms = now_ms;
    r->deadline_ms = now_ms + r->settings.close_ms;
    r->spare = false;
    r->retry_at_ms = now_ms;
    r->want_read = true;
}

static void on_close(struct mu_rdzv *r, uint64_t now_ms)
{
    r->closing = true;
    r->close_deadline_ms = now_ms + r->settings.close_ms;
    r->want_read = true;
}

static void on_look(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    if (r->ever_seen && !is_away(r) && now_ms - r->sights.seen_ms < MU_RDZV_POLL_MS) {
        r->error = (struct muster_error){ 0 };
        tell(out, MU_RDZV_TELL_LOOKED);
        return;
    }
    r->looking = true;
    r->want_read = true;
}

static void on_stop(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    abandon(r, out);
    become(r, MU_RDZV_PHASE_IDLE);
    r->closing = r->looking = r->want_read = false;
    tell(out, MU_RDZV_TELL_LEFT);
}

/* ---- What did not work ---- */

static void fail_join(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    abandon(r, out);
    become(r, MU_RDZV_PHASE_IDLE);
    r->world_valid = false;
    tell_failed(out, MU_RDZV_JOIN);
}

static void say_timeout(struct mu_rdzv *r, uint64_t now_ms)
{
    struct muster_error cause = r->error;

    if (is_away(r))
        (void)mu_fail(&r->error, MUSTER_ERDZV_CONNECTION,
                      "timed out after %llu s: the store has not answered for %llu s: %s",
                      (unsigned long long)(r->settings.join_ms / 1000),
                      (unsigned long long)((now_ms - r->away_since_ms) / 1000), cause.text);
    else
        (void)mu_fail(&r->error, MUSTER_ERDZV_TIMEOUT, "%s", r->came);
}

static void fail_close(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    struct muster_error cause = r->error;

    r->closing = false;
    (void)mu_fail(&r->error, is_away(r) ? MUSTER_ERDZV_CONNECTION : MUSTER_ERDZV_TIMEOUT,
                  "not closed within %llu s%s%s", (unsigned long long)(r->settings.close_ms / 1000),
                  is_away(r) ? ": " : "", is_away(r) ? cause.text : "");
    tell_failed(out, MU_RDZV_CLOSE);
}

static void fail_leave(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    struct muster_error cause = r->error;

    (void)mu_fail(&r->error, is_away(r) ? MUSTER_ERDZV_CONNECTION : MUSTER_ERDZV_TIMEOUT,
                  "not out of the document within %llu s%s%s", (unsigned long long)(r->settings.close_ms / 1000),
                  is_away(r) ? ": " : "", is_away(r) ? cause.text : "");
    abandon(r, out);
    become(r, MU_RDZV_PHASE_IDLE);
    tell_failed(out, MU_RDZV_LEAVE);
}

/* The store answers, but with something that is no document for us. Who asks is told at once; a member bears it for as
 * long as it would bear a silent peer. */
static void on_corrupt(struct mu_rdzv *r, const struct muster_error *error, uint64_t now_ms,
                       struct mu_rdzv_effects *out)
{
    if (!r->corrupt)
        r->corrupt_since_ms = now_ms;
    r->corrupt = true;
    r->retry_at_ms = now_ms + MU_RDZV_POLL_MS;
    r->error = *error;
    if (r->looking) {
        r->looking = false;
        tell(out, MU_RDZV_TELL_LOOKED);
    }
    if (r->closing) {
        r->closing = false;
        tell_failed(out, MU_RDZV_CLOSE);
    }
    if (is_joining(r)) {
        fail_join(r, out);
    } else if (r->phase == MU_RDZV_PHASE_LEAVING) {
        abandon(r, out);
        become(r, MU_RDZV_PHASE_IDLE);
        tell_failed(out, MU_RDZV_LEAVE);
    } else if (r->phase == MU_RDZV_PHASE_MEMBER && now_ms - r->corrupt_since_ms >= mu_rdzv_death_age_ms(&r->settings)) {
        become(r, MU_RDZV_PHASE_IDLE);
        r->world_valid = false;
        tell_failed(out, MU_RDZV_TIME);
    }
}

static bool in_world(const struct mu_rdzv *r, const struct mu_node *node)
{
    for (size_t i = 0; i < r->world.count; i++)
        if (mu_node_equal(&r->world.members[i], node))
            return true;
    return false;
}

static void tell_lost(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    r->told_lost = r->lost_count;
    tell(out, MU_RDZV_TELL_PEERS_LOST)->round = r->world.round;
}

/* ---- A store that is lost ---- */

/* The store goes with a node that is, or was, one of the job: we saw it in the document. It may have left before it ended. */
static bool host_is_member(const struct mu_rdzv *r)
{
    return r->host_state == HOST_NODE && r->host_was_seen && !mu_node_equal(&r->host, &r->me);
}

static void look_for_host(struct mu_rdzv *r)
{
    r->host_was_seen = r->host_was_seen || (r->host_state == HOST_NODE &&
                                            (in_world(r, &r->host) || mu_doc_find(&r->sights.doc, &r->host) != NULL));
}

/* We want to join, and the round is complete and full without us. Where the document is missing, there is no such round. */
static bool is_surplus(const struct mu_rdzv *r)
{
    const struct mu_doc *doc = &r->sights.doc;

    return is_joining(r) && r->from_store && !r->missing && doc->complete &&
           !mu_doc_has(doc, &r->me, MU_DOC_PARTICIPANT) &&
           (r->spare || (int64_t)doc->participants >= r->settings.nodes_max);
}

/* When the store is lost for good; NEVER: it is waited for without a limit. A PyTorch node does not say that it hosts the
 * store; where one is in the round and no node of ours hosts it, a PyTorch node does. */
static uint64_t store_lost_ms(const struct mu_rdzv *r)
{
    bool with_stock = r->host_state == HOST_OUTSIDE && r->ever_seen && !r->all_ours;

    if (r->store == STORE_REFUSED && is_surplus(r) && (host_is_member(r) || with_stock))
        return r->refused_since_ms + MU_RDZV_SURPLUS_MS;
    if (!is_away(r) || !host_is_member(r))
        return NEVER;
    if (r->store == STORE_REFUSED)
        return r->refused_since_ms + r->settings.store_lost_ms;
    return r->away_since_ms + mu_rdzv_death_age_ms(&r->settings) + r->settings.store_lost_ms;
}

/* Who begins to join a lost store has a moment, for it may be back. */
static uint64_t join_lost_ms(const struct mu_rdzv *r)
{
    uint64_t lost_ms = is_joining(r) ? store_lost_ms(r) : NEVER;

    return lost_ms == NEVER ? NEVER : later(lost_ms, r->op_start_ms + MU_RDZV_LAST_TRY_MS);
}

static bool is_told_lost(const struct mu_rdzv *r, const struct mu_node *node)
{
    for (size_t i = 0; i < r->lost_count && i < r->told_lost; i++)
        if (mu_node_equal(&r->lost[i], node))
            return true;
    return false;
}

/* When the host of a store that is away is lost to the members of its round; NEVER: it is not, or they know. */
static uint64_t host_lost_ms(const struct mu_rdzv *r)
{
    if (r->phase != MU_RDZV_PHASE_MEMBER || !is_away(r) || !host_is_member(r) || !in_world(r, &r->host) ||
        is_told_lost(r, &r->host))
        return NEVER;
    return r->store == STORE_REFUSED ? r->refused_since_ms : store_lost_ms(r);
}

static void judge_host(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    if (now_ms < host_lost_ms(r))
        return;
    assert(r->lost_count < r->world.count); /* we are in it, and are not lost */
    for (size_t i = 0; i < r->world.count; i++)
        if (mu_node_equal(&r->world.members[i], &r->host))
            r->lost[r->lost_count++] = r->world.members[i];
    tell_lost(r, out);
}

static void say_store_lost(struct mu_rdzv *r, uint64_t now_ms)
{
    const char *how = r->store == STORE_REFUSED ? "refused connections" : "not answered";
    unsigned long long seconds = (now_ms - (r->store == STORE_REFUSED ? r->refused_since_ms : r->away_since_ms)) / 1000;
    const char *where = r->endpoint != NULL ? r->endpoint : "its address";

    if (is_surplus(r))
        (void)mu_fail(&r->error, MUSTER_ERDZV_CONNECTION,
                      "the store at %s has %s for %llu s: the job has ended, or the host of its store has; whether the "
                      "job succeeded is not known, and this node had no place in it",
                      where, how, seconds);
    else
        (void)mu_fail(&r->error, MUSTER_ERDZV_CONNECTION,
                      "the store at %s is lost: its host %.*s (pid %lld) has %s for %llu s; jobs with --rdzv-backend "
                      "etcd-v3 survive this",
                      where, (int)sooner(r->host.name.len, MU_RDZV_HOST_SHOWN_MAX), r->host.name.data,
                      (long long)r->host.pid, how, seconds);
}

/* When the store is back, we must be back before others have looked for us too long. */
static uint64_t retry_max_ms(const struct mu_rdzv *r)
{
    return sooner(MU_RDZV_RETRY_MAX_MS, r->settings.keep_alive_ms / 2 + 1);
}

static uint64_t left_ms(uint64_t until_ms, uint64_t now_ms)
{
    return until_ms == NEVER ? NEVER : until_ms > now_ms ? until_ms - now_ms : 0;
}

/* Something that was due then comes only now: we did not look, and what was not answered meanwhile says nothing. */
static bool was_paused(const struct mu_rdzv *r, uint64_t now_ms, uint64_t due_ms)
{
    return due_ms != NEVER && now_ms > due_ms + r->settings.keep_alive_ms;
}

static void note_pause(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    uint64_t due_ms = mu_rdzv_deadline_ms(r);

    if (event->type == MU_RDZV_REQUEST_FAILED && event->id != 0 && event->id == r->main_id)
        due_ms = sooner(due_ms, r->main_sent_ms + 2 * r->settings.heartbeat_ms);
    if (is_away(r) && was_paused(r, event->now_ms, due_ms))
        r->away_since_ms = r->refused_since_ms = event->now_ms;
}

/* Tells that the store is away, and once more when it turns out that nobody listens there. */
static void note_away(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    enum store_state before = r->store;
    struct mu_rdzv_effect *effect = NULL;

    if (before == STORE_HERE) {
        r->store = STORE_SILENT;
        r->away_since_ms = event->now_ms; /* and not since it was asked: we may have paused in between */
    }
    if (event->gone && before != STORE_REFUSED) {
        r->store = STORE_REFUSED;
        r->refused_since_ms = event->now_ms;
    }
    if ((r->told_down && r->store == before) || r->phase == MU_RDZV_PHASE_IDLE)
        return;
    r->told_down = true;
    effect = tell(out, MU_RDZV_TELL_BACKEND_DOWN);
    effect->away_ms = before == STORE_HERE ? sooner(event->now_ms - r->main_sent_ms, 2 * r->settings.heartbeat_ms)
                                           : event->now_ms - r->away_since_ms;
    effect->give_up_in_ms = left_ms(is_joining(r) ? join_lost_ms(r) : store_lost_ms(r), event->now_ms);
    effect->host_lost = event->now_ms >= host_lost_ms(r); /* see judge_host() */
}

static void on_request_failed(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    if (event->error->code == MUSTER_ERDZV_STATE) {
        on_corrupt(r, event->error, event->now_ms, out);
        return;
    }
    r->maybe_in |= r->main_type == MU_RDZV_DO_WRITE;
    r->retry_at_ms = event->now_ms + mu_rng_jitter(&r->rng, r->retry_ms, 50);
    r->retry_ms = sooner(r->retry_ms * 2, retry_max_ms(r));
    r->want_read = false;
    r->error = *event->error;
    if (r->phase == MU_RDZV_PHASE_SETTLING)
        become(r, MU_RDZV_PHASE_JOINING); /* look again; the round may be another one by then */
    note_away(r, event, out);
    if (is_joining(r) && r->spare && store_lost_ms(r) == NEVER) {
        r->spare = false; /* of what? Unless the store is back in time, and lists us */
        r->deadline_ms = event->now_ms + r->settings.join_ms;
    }
    if (r->looking) {
        r->looking = false;
        tell(out, MU_RDZV_TELL_LOOKED);
    }
}

/* ---- Looking at the document ---- */

static int reserve_dead(struct mu_rdzv *r, size_t count)
{
    struct mu_node *dead = NULL;

    if (count <= r->dead_room)
        return 0;
    dead = realloc(r->dead, count * sizeof *dead);
    if (dead == NULL)
        return MUSTER_ENOMEM;
    r->dead = dead;
    r->dead_room = count;
    return 0;
}

/* Our own copy: what is in the store, without those who are dead. */
static int refresh_view(struct mu_rdzv *r)
{
    int rc = reserve_dead(r, r->sights.doc.count);

    if (rc == 0)
        rc = mu_doc_copy(&r->doc, &r->sights.doc);
    if (rc < 0)
        return rc;
    r->dead_count = mu_liveness_dead(&r->sights, &r->me, mu_rdzv_death_age_ms(&r->settings), r->dead);
    mu_rules_remove_dead(&r->doc, &r->settings, r->dead, r->dead_count);
    return 0;
}

static void note_absent(struct mu_rdzv *r, uint64_t now_ms)
{
    for (size_t i = 0; r->world_valid && i < r->world.count; i++) {
        if (mu_doc_find(&r->doc, &r->world.members[i]) != NULL) {
            r->absent_ms[i] = 0;
            r->expired[i] = false;
        } else if (r->absent_ms[i] == 0) {
            r->absent_ms[i] = now_ms;
            r->expired[i] = mu_doc_find(&r->sights.doc, &r->world.members[i]) != NULL;
        }
    }
}

static bool same_progress(const struct mu_doc *a, const struct mu_doc *b)
{
    return a->round == b->round && a->complete == b->complete && a->closed == b->closed &&
           a->has_deadline == b->has_deadline && a->participants == b->participants && a->waiting == b->waiting &&
           a->spares == b->spares;
}

/* A first call ends for all at the same moment; they do not all write then. */
static void note_deadline(struct mu_rdzv *r, const struct mu_doc *before, uint64_t now_ms)
{
    const struct mu_doc *doc = &r->sights.doc;

    if (!doc->has_deadline || (before->has_deadline && before->deadline_us == doc->deadline_us))
        return;
    r->deadline_seen_ms = now_ms;
    r->complete_jitter_ms = mu_rng_below(&r->rng, doc->participants < 1000 ? 2 * doc->participants : 2000);
}

/* `fresh` is what is in the store. Leaves there what was before. */
static int see(struct mu_rdzv *r, struct mu_doc *fresh, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    int rc = mu_liveness_see(&r->sights, fresh, r->main_sent_ms, event->now_ms, r->settings.keep_alive_ms);

    if (rc < 0)
        return rc;
    note_deadline(r, fresh, event->now_ms);
    r->park_later = r->idle_rings >= MU_RDZV_IDLE_RINGS_MAX;
    if (r->park_later)
        r->idle_rings = 0;
    rc = refresh_view(r);
    if (rc < 0)
        return rc;
    note_absent(r, event->now_ms);
    look_for_host(r);
    r->all_ours = true;
    for (size_t i = 0; i < r->sights.doc.count; i++)
        r->all_ours &= mu_node_is_ours(&r->sights.doc.members[i].node);
    r->spare = mu_doc_has(&r->sights.doc, &r->me, MU_DOC_SPARE);
    if (is_joining(r) && event->now_ms <= r->deadline_ms)
        note_who_came(r);
    if (is_joining(r) && (!r->ever_seen || !same_progress(fresh, &r->sights.doc)))
        tell(out, MU_RDZV_TELL_PROGRESS);
    r->ever_seen = true;
    if (r->removed_count == 0)
        mu_doc_done(fresh); /* nobody needs what was before */
    return 0;
}

static uint64_t last_call_end_ms(const struct mu_rdzv *r)
{
    return r->deadline_seen_ms + r->settings.last_call_ms + r->complete_jitter_ms;
}

/* A round of which we were a member is formed again: whom is there to wait for? NEVER: for somebody who may come.
 * Otherwise when we know that nobody will. */
static uint64_t everybody_is_back_ms(const struct mu_rdzv *r, const struct mu_doc *doc)
{
    uint64_t when = 0;

    if (!r->world_valid || doc->round != r->world.round + 1 || doc->waiting > 0)
        return NEVER;
    if (doc->spares > 0 && (int64_t)doc->participants < r->settings.nodes_max)
        return NEVER; /* they are about to step in */
    for (size_t i = 0; i < r->world.count; i++) {
        uint64_t wait_ms = r->expired[i] ? 0 : MU_RDZV_LEFT_MS;
        uint64_t until = 0;

        if (mu_doc_has(doc, &r->world.members[i], MU_DOC_PARTICIPANT))
            continue;
        if (r->absent_ms[i] == 0)
            return NEVER;
        if (wait_ms < r->settings.lost_node_wait_ms)
            wait_ms = r->settings.lost_node_wait_ms;
        until = r->absent_ms[i] + wait_ms;
        when = until > when ? until : when;
    }
    return when;
}

static uint64_t effective_deadline_ms(const struct mu_rdzv *r)
{
    return r->spare ? NEVER : r->deadline_ms;
}

/* When to write a heartbeat. A node that waits for its turn, or whose round is ending, writes itself into the document soon
 * all the same; until then a heartbeat would only get into the way of those who leave and join. */
static uint64_t beat_wanted_ms(const struct mu_rdzv *r)
{
    bool ends = r->phase == MU_RDZV_PHASE_MEMBER && r->lost_count > 0 && r->dead_count == 0;
    bool waits = r->turn_state == TURN_TAKING || r->turn_state == TURN_WAITING;

    if (!ends && !waits)
        return r->beat_due_ms;
    return later(r->beat_due_ms, r->beat_sent_ms + mu_rdzv_death_age_ms(&r->settings) / 3 * 2);
}

static struct mu_rdzv_moment moment_of(const struct mu_rdzv *r, const struct plan *plan, uint64_t now_ms)
{
    return (struct mu_rdzv_moment){
        .now_ms = now_ms,
        .deadline_ms = effective_deadline_ms(r),
        .keep_alive_due = now_ms >= beat_wanted_ms(r) && !plan->beats,
        .last_call_over = (r->doc.has_deadline && r->sights.doc.has_deadline &&
                           r->doc.deadline_us == r->sights.doc.deadline_us && now_ms >= last_call_end_ms(r)) ||
                          now_ms >= everybody_is_back_ms(r, &r->doc),
    };
}

/* ---- Deciding ---- */

static size_t count_lost(const struct mu_rdzv *r) /* members of our round who are not in the document any more */
{
    size_t count = 0;

    for (size_t i = 0; i < r->world.count; i++)
        count += !mu_doc_has(&r->doc, &r->world.members[i], MU_DOC_PARTICIPANT);
    return count;
}

/* Workers of PyTorch 2.5 meet in the rendezvous store, under the number of failures that their own agent has counted. It counts
 * none if it hears from us that the round is over before its own workers have failed of that, and then they never meet ours.
 * So everybody's get a moment to fail: who wants to leave a whole round waits for others to leave it, and who sees one
 * leave waits for its own workers. */
static bool fails_alike(const struct mu_rdzv *r, uint64_t since_ms, uint64_t now_ms)
{
    return r->shares_store && r->world_valid && !r->world.all_ours && r->world.dialect.habits == MU_HABITS_2_5 &&
           since_ms != 0 && now_ms - since_ms < MU_RDZV_FAIL_ALIKE_MS;
}

static bool waits_to_exit(const struct mu_rdzv *r, uint64_t now_ms)
{
    return fails_alike(r, r->exit_since_ms, now_ms) && r->doc.round == r->exit_round && r->doc.complete &&
           !r->doc.closed && r->doc.waiting == 0 && count_lost(r) == 0;
}

static enum mu_rdzv_action next_in_phase(struct mu_rdzv *r, struct plan *plan, uint64_t now_ms)
{
    struct mu_rdzv_moment moment = moment_of(r, plan, now_ms);

    if (plan->phase == MU_RDZV_PHASE_EXITING && waits_to_exit(r, now_ms)) {
        moment.deadline_ms = NEVER;
        return mu_rules_keep_alive(&r->doc, &r->me, &moment) == MU_RDZV_KEEP_ALIVE ? MU_RDZV_KEEP_ALIVE : MU_RDZV_SYNC;
    }
    if (plan->phase == MU_RDZV_PHASE_EXITING) {
        /* In any other round we are by our own write, whose answer did not come. */
        enum mu_rdzv_action action =
            r->doc.round == r->exit_round ? mu_rules_exit(&r->doc, &r->me, &moment) : MU_RDZV_FINISH;

        if (action != MU_RDZV_FINISH)
            return action;
        plan->phase = MU_RDZV_PHASE_JOINING;
    }
    switch (plan->phase) {
    case MU_RDZV_PHASE_JOINING:
        return mu_rules_join(&r->doc, &r->me, &r->settings, &moment);
    case MU_RDZV_PHASE_MEMBER:
        moment.deadline_ms = NEVER;
        return mu_rules_keep_alive(&r->doc, &r->me, &moment);
    case MU_RDZV_PHASE_LEAVING:
        return mu_rules_leave(&r->doc, &r->me, &moment);
    case MU_RDZV_PHASE_EXITING:
    case MU_RDZV_PHASE_SETTLING:
    case MU_RDZV_PHASE_IDLE:
        break;
    }
    return MU_RDZV_SYNC;
}

static enum mu_rdzv_action next_action(struct mu_rdzv *r, struct plan *plan, uint64_t now_ms)
{
    if (r->closing && !r->doc.closed && now_ms <= r->close_deadline_ms)
        return MU_RDZV_MARK_CLOSED;
    return next_in_phase(r, plan, now_ms);
}

static bool needs_turn(const struct mu_rdzv *r, enum mu_rdzv_action action)
{
    switch (action) {
    case MU_RDZV_ADD_TO_PARTICIPANTS:
    case MU_RDZV_ADD_TO_WAIT_LIST:
    case MU_RDZV_ADD_TO_REDUNDANCY_LIST:
    case MU_RDZV_REMOVE_FROM_PARTICIPANTS:
    case MU_RDZV_REMOVE_FROM_WAIT_LIST:
    case MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST:
        return r->has_turns;
    case MU_RDZV_KEEP_ALIVE:
        return is_crowd(r);
    default:
        return false;
    }
}

/* May this be written now, on the document as it was just seen? If not, sees to it that it may soon. */
static bool may_write(struct mu_rdzv *r, enum mu_rdzv_action action, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    if (now_ms < r->write_after_ms) {
        r->held_back = true;
        return false;
    }
    if (!needs_turn(r, action))
        return true;
    switch (r->turn_state) {
    case TURN_NONE:
        take_turn(r, out);
        return false;
    case TURN_TAKING:
    case TURN_WAITING:
        return false;
    case TURN_HELD:
        break;
    }
    if (r->main_sent_ms < r->turn_held_ms)
        r->want_read = true;
    return r->main_sent_ms >= r->turn_held_ms;
}

static bool beats(enum mu_rdzv_action action)
{
    return action == MU_RDZV_KEEP_ALIVE || action == MU_RDZV_ADD_TO_PARTICIPANTS ||
           action == MU_RDZV_ADD_TO_WAIT_LIST || action == MU_RDZV_ADD_TO_REDUNDANCY_LIST;
}

static struct mu_rdzv_deed *add_deed(struct plan *plan, enum mu_rdzv_action action, int64_t round)
{
    assert(plan->deeds_count < DEEDS_MAX);
    plan->deeds[plan->deeds_count] = (struct mu_rdzv_deed){ .action = action, .round = round };
    return &plan->deeds[plan->deeds_count++];
}

/* The first deed of a write also takes the dead out. */
static int apply(struct mu_rdzv *r, struct plan *plan, enum mu_rdzv_action action, uint64_t now_ms, int64_t doc_now_us)
{
    bool was_complete = r->doc.complete, completes;
    const struct mu_doc *before = plan->count == 0 && r->dead_count > 0 ? &r->sights.doc : &r->doc;
    const bool before_complete = before->complete, before_called = before->has_deadline;
    const int64_t before_round = before->round, round = r->doc.round;
    struct mu_rdzv_deed *deed = NULL;
    int rc = mu_rules_apply(&r->doc, &r->me, &r->settings, action, doc_now_us);

    if (rc < 0)
        return rc;
    if (action == MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST && plan->phase == MU_RDZV_PHASE_JOINING) {
        r->deadline_ms = now_ms + r->settings.join_ms;
        r->spare = false;
    }
    if (action == MU_RDZV_ADD_TO_PARTICIPANTS)
        r->entered_round = r->doc.round;
    completes = action != MU_RDZV_MARK_COMPLETE && r->doc.complete && !was_complete; /* the last one has come */
    plan->count++;
    deed = add_deed(plan, action, round);
    deed->ends_round = before_complete && before_round < r->doc.round;
    deed->ends_last_call = before_called && !r->doc.has_deadline && !r->doc.complete;
    if (beats(action) && action != MU_RDZV_KEEP_ALIVE)
        (void)add_deed(plan, MU_RDZV_KEEP_ALIVE, round);
    if (completes)
        (void)add_deed(plan, MU_RDZV_MARK_COMPLETE, round);
    plan->beats |= beats(action);
    return 0;
}

/* ---- Ringing ---- */

/* Each ring makes every node read the whole document. So a write is rung only if all of them have something to do because
 * of it; of the writes that tell all of them the same, the first one is rung. Everything else is found by the slow read. */

static bool has_of_ours(const struct mu_doc *doc, unsigned in)
{
    for (size_t i = 0; i < doc->count; i++)
        if ((doc->members[i].in & in) != 0 && mu_node_is_ours(&doc->members[i].node))
            return true;
    return false;
}

/* A member of ours has left the complete round of `doc`, and rang. A node that was never a member of it cannot know; it
 * takes those who wait for such members. */
static bool has_lost_one_of_ours(const struct mu_rdzv *r, const struct mu_doc *doc)
{
    if (!r->world_valid || doc->round != r->world.round)
        return has_of_ours(doc, MU_DOC_WAITING);
    for (size_t i = 0; i < r->world.count; i++)
        if (mu_node_is_ours(&r->world.members[i]) && !mu_doc_has(doc, &r->world.members[i], MU_DOC_PARTICIPANT))
            return true;
    return false;
}

/* The round stays complete, but its members have to regroup: the first of them leaves, or the first node wants in. */
static bool ends_round(const struct mu_rdzv *r, const struct mu_doc *before, const struct mu_doc *after)
{
    bool leaves = after->participants<before->participants, waits = after->waiting> before->waiting;

    return (leaves && !has_lost_one_of_ours(r, before)) || (waits && !has_of_ours(before, MU_DOC_WAITING));
}

/* The last member leaves. Where that was one of PyTorch's, which do not ring, the first of ours who comes in does. */
static bool opens_round(const struct mu_doc *before, const struct mu_doc *after)
{
    return before->complete || (has_of_ours(after, MU_DOC_WAITING) && has_of_ours(after, MU_DOC_PARTICIPANT) &&
                                !has_of_ours(before, MU_DOC_PARTICIPANT));
}

/* The write of r->doc, where now r->sights.doc is. */
static bool rings(const struct mu_rdzv *r)
{
    const struct mu_doc *before = &r->sights.doc, *after = &r->doc;

    if (r->dead_count > 0 || after->closed != before->closed)
        return true;
    if (!after->complete)
        return opens_round(before, after);
    return !before->complete || before->round != after->round || ends_round(r, before, after);
}

static void send_write(struct mu_rdzv *r, const struct plan *plan, int64_t doc_now_us, uint64_t now_ms,
                       struct mu_rdzv_effects *out)
{
    struct mu_rdzv_effect *effect = NULL;

    r->out.len = 0;
    if (r->codec->encode(&r->doc, &r->out) < 0) {
        r->retry_at_ms = now_ms + MU_RDZV_POLL_MS; /* no memory: read again later, and then write */
        return;
    }
    r->plan = *plan;
    r->plan.rings |= rings(r);
    r->plan.size = r->out.len;
    r->planned_us = doc_now_us;
    effect = request(r, MU_RDZV_DO_WRITE, now_ms, out);
    effect->bytes = mu_buf_slice(&r->out);
    effect->token = mu_buf_slice(&r->token);
    effect->has_token = r->has_token;
    tell(out, MU_RDZV_TELL_PLANNED);
}

static void digest_of(const struct mu_doc *doc, char digest[static MU_RDZV_DIGEST_MAX])
{
    uint64_t sum = 0;

    /* Participants are distinct, so that a sum over them, each with its rank, does not depend on the order. */
    for (size_t i = 0; i < doc->count; i++) {
        const struct mu_doc_member *member = &doc->members[i];
        struct mu_hash_seed seed = { (uint64_t)member->node.pid ^ (uint64_t)member->rank << 32,
                                     (uint64_t)member->node.local_id };

        if ((member->in & MU_DOC_PARTICIPANT) != 0)
            sum += mu_hash64(seed, member->node.name);
    }
    (void)snprintf(digest, MU_RDZV_DIGEST_MAX, "%zu-%016llx", doc->participants, (unsigned long long)sum);
}

/* There is no memory for what has come: as if it had not. */
static void try_later(struct mu_rdzv *r, uint64_t now_ms)
{
    r->retry_at_ms = now_ms + MU_RDZV_POLL_MS;
}

/* A complete round without some of its ranks or with too few of them, one that others saw with more or fewer members, or one that
 * was over for us already: it is over before it began for us. We leave it, which the others notice, and join the next one. */
static void leave_broken_round(struct mu_rdzv *r)
{
    r->exit_round = r->sights.doc.round;
    become(r, MU_RDZV_PHASE_EXITING);
    r->want_read = true;
}

/* The names are those of `doc`, which must stay. */
static int list_world(const struct mu_doc *doc, const struct mu_node *me, struct mu_rdzv_world *ret_world)
{
    struct mu_rdzv_world world = { .round = doc->round, .all_ours = true, .dialect = doc->dialect };

    world.members = calloc(doc->participants, sizeof *world.members);
    if (world.members == NULL)
        return MUSTER_ENOMEM;
    world.count = doc->participants;
    for (size_t i = 0; i < doc->count; i++) {
        const struct mu_doc_member *member = &doc->members[i];

        if ((member->in & MU_DOC_PARTICIPANT) == 0)
            continue;
        world.members[member->rank] = member->node;
        world.all_ours &= mu_node_is_ours(&member->node);
        if (mu_node_equal(&member->node, me))
            world.rank = member->rank;
    }
    *ret_world = world;
    return 0;
}

static int enter_world(struct mu_rdzv *r)
{
    size_t count = r->sights.doc.participants;
    struct mu_doc doc = { .seed = r->sights.doc.seed };
    struct mu_rdzv_world world = { 0 };
    uint64_t *absent_ms = calloc(count, sizeof *absent_ms);
    bool *expired = calloc(count, sizeof *expired);
    struct mu_node *lost = calloc(count, sizeof *lost);

    if (absent_ms == NULL || expired == NULL || lost == NULL || mu_doc_copy(&doc, &r->sights.doc) < 0 ||
        list_world(&doc, &r->me, &world) < 0) {
        free(absent_ms);
        free(expired);
        free(lost);
        mu_doc_done(&doc);
        return MUSTER_ENOMEM;
    }
    forget_world(r);
    r->world = world;
    r->world_doc = doc;
    r->absent_ms = absent_ms;
    r->expired = expired;
    r->lost = lost;
    r->world_valid = true;
    return 0;
}

/* A store that has lost its data gets back the document that some member held: we may be in it again, although we had left. And
 * where nobody held one, the numbers of rounds may come again. A round is joined once, or its keys would be those of two. */
static bool was_joined_before(const struct mu_rdzv *r, int64_t round)
{
    for (size_t i = 0; i < PAST_MAX && i < r->past_count; i++) {
        if (r->past[i].round == round && strcmp(r->past[i].digest, r->digest) == 0)
            return true;
    }
    return r->entered_round != round;
}

static void remember_round(struct mu_rdzv *r)
{
    struct past_round *past = &r->past[r->past_count++ % PAST_MAX];

    past->round = r->world.round;
    memcpy(past->digest, r->digest, sizeof past->digest);
    r->entered_round = -1;
}

static void become_member(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    struct mu_rdzv_effect *effect = NULL;

    if (enter_world(r) < 0) {
        become(r, MU_RDZV_PHASE_JOINING); /* no memory: with the next look */
        return;
    }
    become(r, MU_RDZV_PHASE_MEMBER);
    give_turn(r, out);
    r->joined_ms = now_ms;
    r->hold_until_ms = now_ms + r->hold_ms;
    if (!r->world.all_ours && r->hold_ms < MU_RDZV_HOLD_STOCK_MS)
        r->hold_until_ms = now_ms + MU_RDZV_HOLD_STOCK_MS;
    r->told_lost = 0;
    r->lost_since_ms = r->exit_since_ms = 0;
    r->told_waiting = false;
    r->exit_round = r->world.round;
    remember_round(r);
    effect = tell(out, MU_RDZV_TELL_JOINED);
    effect->round = r->world.round;
}

/* The round is complete and has us. */
static void settle(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    struct mu_rdzv_effect *effect = NULL;
    bool whole = false;

    if (mu_rules_ranks_whole(&r->sights.doc, &whole) < 0) {
        try_later(r, now_ms);
        return;
    }
    digest_of(&r->sights.doc, r->digest);
    if (!whole || (int64_t)r->sights.doc.participants < r->settings.nodes_min ||
        was_joined_before(r, r->sights.doc.round)) {
        leave_broken_round(r);
        return;
    }
    if (!r->has_settle) {
        become_member(r, now_ms, out);
        return;
    }
    become(r, MU_RDZV_PHASE_SETTLING);
    effect = request(r, MU_RDZV_DO_SETTLE, now_ms, out);
    effect->round = r->sights.doc.round;
    effect->bytes = mu_slice_str(r->digest);
}

static void on_settled(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    assert(r->phase == MU_RDZV_PHASE_SETTLING);
    if (!mu_slice_equal(event->bytes, mu_slice_str(r->digest)))
        leave_broken_round(r);
    else
        become_member(r, event->now_ms, out);
}

static void conclude_closing(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    if (r->doc.closed) {
        if (r->closing || (r->phase == MU_RDZV_PHASE_MEMBER && !r->told_closed)) {
            r->told_closed = true;
            tell(out, MU_RDZV_TELL_CLOSED)->asked = r->closing ? MU_RDZV_CLOSE : MU_RDZV_TIME;
        }
        r->closing = false;
    } else if (r->closing && now_ms > r->close_deadline_ms) {
        fail_close(r, out);
    }
}

/* There is nothing to write. */
static void conclude(struct mu_rdzv *r, enum mu_rdzv_action action, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    switch (r->phase) {
    case MU_RDZV_PHASE_EXITING:
    case MU_RDZV_PHASE_JOINING:
        if (action == MU_RDZV_FINISH) {
            settle(r, now_ms, out);
        } else if (action == MU_RDZV_ERROR_CLOSED) {
            (void)mu_fail(&r->error, MUSTER_ERDZV_CLOSED, "the rendezvous is closed");
            fail_join(r, out);
        } else if (action == MU_RDZV_ERROR_GRACEFUL_EXIT) {
            (void)mu_fail(&r->error, MUSTER_ERDZV_GRACEFUL_EXIT,
                          "the rendezvous was closed while this node was a spare");
            fail_join(r, out);
        } else if (action == MU_RDZV_ERROR_TIMEOUT) {
            say_timeout(r, now_ms);
            fail_join(r, out);
        }
        break;
    case MU_RDZV_PHASE_LEAVING:
        if (action == MU_RDZV_FINISH) {
            abandon(r, out);
            become(r, MU_RDZV_PHASE_IDLE);
            r->exit_round = -1;
            tell(out, MU_RDZV_TELL_LEFT);
        } else if (action == MU_RDZV_ERROR_TIMEOUT) {
            fail_leave(r, out);
        }
        break;
    case MU_RDZV_PHASE_MEMBER:
    case MU_RDZV_PHASE_SETTLING:
    case MU_RDZV_PHASE_IDLE:
        break;
    }
}

static void note_lost(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    r->lost_count = 0;
    for (size_t i = 0; i < r->world.count; i++)
        if (!mu_doc_has(&r->doc, &r->world.members[i], MU_DOC_PARTICIPANT))
            r->lost[r->lost_count++] = r->world.members[i];
    if (r->lost_count <= r->told_lost)
        return; /* whoever vanished first may have been done; the next one is told as well */
    if (r->lost_since_ms == 0)
        r->lost_since_ms = now_ms;
    if (fails_alike(r, r->lost_since_ms, now_ms))
        return;
    tell_lost(r, out);
    if (r->dead_count >
        0) /* whom we told dead we take out soon, so that they learn of it; the others mean to do the same */
        r->beat_due_ms = sooner(
            r->beat_due_ms, now_ms + mu_rng_below(&r->rng, r->doc.participants < 50 ? 10 * r->doc.participants : 500));
}

/* Whoever waits for a place in a full round is not helped by a new one. */
static bool somebody_can_join(const struct mu_rdzv *r)
{
    return r->doc.waiting > 0 && (int64_t)r->doc.participants < r->settings.nodes_max;
}

/* What a member makes of the document. */
static void watch_round(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    const struct mu_doc *doc = &r->sights.doc;

    if (doc->round != r->world.round || !doc->complete || !mu_doc_has(doc, &r->me, MU_DOC_PARTICIPANT)) {
        become(r, MU_RDZV_PHASE_IDLE);
        r->world_valid = false;
        r->exit_round = -1;
        tell(out, MU_RDZV_TELL_REMOVED)->round = r->world.round;
        return;
    }
    note_lost(r, now_ms, out);
    if (somebody_can_join(r) && !r->told_waiting && !r->doc.closed && now_ms >= r->hold_until_ms &&
        !fails_alike(r, r->lost_since_ms, now_ms)) {
        struct mu_rdzv_effect *effect = tell(out, MU_RDZV_TELL_WAITING);

        r->told_waiting = true;
        effect->count = (int64_t)r->doc.waiting;
        effect->round = r->world.round;
    }
}

static bool refuses(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    const struct mu_doc *doc = &r->sights.doc;
    struct muster_error error = { 0 };
    char text[MU_NODE_TEXT_MAX];

    if (r->maybe_in || !is_joining(r) || mu_doc_find(doc, &r->me) == NULL)
        return false;
    (void)mu_fail(&error, MUSTER_ERDZV_STATE, "another node has the same identity, %s", mu_node_text(&r->me, text));
    on_corrupt(r, &error, now_ms, out);
    return true;
}

/* Who waits for a turn to do something else must not be taken for dead over it. */
static bool beats_meanwhile(const struct mu_rdzv *r, const struct plan *plan, enum mu_rdzv_action wanted,
                            uint64_t now_ms)
{
    struct mu_rdzv_moment moment = moment_of(r, plan, now_ms);

    moment.deadline_ms = NEVER;
    return wanted != MU_RDZV_KEEP_ALIVE && plan->count == 0 && now_ms >= r->write_after_ms && is_joining(r) &&
           mu_rules_keep_alive(&r->doc, &r->me, &moment) == MU_RDZV_KEEP_ALIVE;
}

/* The document was just seen: what follows from it? */
static void evaluate(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    struct plan plan = { .phase = r->phase };
    enum mu_rdzv_action action = MU_RDZV_SYNC;
    int64_t doc_now_us = 0;

    if (refuses(r, event->now_ms, out))
        return;
    r->corrupt = false;
    if (r->looking) {
        r->looking = false;
        r->error = (struct muster_error){ 0 };
        tell(out, MU_RDZV_TELL_LOOKED);
    }
    if (r->phase == MU_RDZV_PHASE_MEMBER)
        watch_round(r, event->now_ms, out);
    conclude_closing(r, event->now_ms, out);
    plan.phase = r->phase;
    r->held_back = false;
    doc_now_us = mu_liveness_time(&r->sights, &r->me, event->now_ms, r->beat_us, r->beat_sent_ms, event->wall_us);
    for (;;) {
        action = next_action(r, &plan, event->now_ms);
        if (!mu_rdzv_action_writes(action) || plan.count == ACTIONS_MAX)
            break;
        if (may_write(r, action, event->now_ms, out))
            plan.used_turn |= needs_turn(r, action);
        else if (beats_meanwhile(r, &plan, action, event->now_ms))
            action = MU_RDZV_KEEP_ALIVE;
        else
            break;
        if (apply(r, &plan, action, event->now_ms, doc_now_us) < 0) {
            (void)refresh_view(r);
            r->retry_at_ms = event->now_ms + MU_RDZV_POLL_MS;
            return;
        }
    }
    if (plan.count > 0) {
        send_write(r, &plan, doc_now_us, event->now_ms, out);
        return;
    }
    if (r->turn_state == TURN_HELD && !mu_rdzv_action_writes(action)) {
        give_turn(r, out); /* there is nothing to do with it */
        r->turn_in_vain = true;
    }
    conclude(r, action, event->now_ms, out);
}

/* ---- Answers about the document ---- */

static void is_up(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    if (r->told_down)
        tell(out, MU_RDZV_TELL_BACKEND_UP);
    r->store = STORE_HERE;
    r->told_down = false;
    r->retry_ms = MU_RDZV_RETRY_MS;
    r->retry_at_ms = 0;
}

/* The token may be the document itself, or only stand for it. */
static int keep_token(struct mu_rdzv *r, struct mu_slice token, size_t size)
{
    int rc = mu_buf_assign(&r->token, token);

    r->has_token = rc == 0;
    r->size = size;
    return rc;
}

/* We saw a complete round of others. They hold its document and look as often as we do; it is theirs to put back. */
static bool members_may_restore(struct mu_rdzv *r, uint64_t now_ms)
{
    const struct mu_doc *last = &r->sights.doc;

    if (!is_joining(r) || !r->from_store || !last->complete || mu_doc_has(last, &r->me, MU_DOC_PARTICIPANT))
        return false;
    if (!r->missing)
        r->missing_since_ms = now_ms;
    r->missing = true;
    return now_ms - r->missing_since_ms < r->settings.keep_alive_ms;
}

/* The store has no document: it is new, or has lost its data. A member that holds the document of its round puts it back;
 * everybody else begins with an empty one, at a round that was not there yet. */
static void on_missing(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    const struct mu_doc *last = &r->sights.doc;
    int64_t round = r->from_store ? last->round + 1 : last->round; /* the open one may have been completed unseen */

    r->has_token = r->corrupt = false;
    r->size = 0;
    r->sights.any = false; /* nobody is judged by what was before */
    if (r->phase == MU_RDZV_PHASE_MEMBER && last->complete && last->round == r->world.round &&
        mu_doc_has(last, &r->me, MU_DOC_PARTICIPANT)) {
        struct plan plan = { .phase = r->phase };
        int64_t doc_now_us =
            mu_liveness_time(&r->sights, &r->me, event->now_ms, r->beat_us, r->beat_sent_ms, event->wall_us);

        if (mu_doc_copy(&r->doc, last) < 0 || apply(r, &plan, MU_RDZV_KEEP_ALIVE, event->now_ms, doc_now_us) < 0) {
            try_later(r, event->now_ms);
            return;
        }
        r->dead_count = 0;
        plan.rings = true;
        send_write(r, &plan, doc_now_us, event->now_ms, out);
        return;
    }
    if (members_may_restore(r, event->now_ms)) {
        r->retry_at_ms = event->now_ms + MU_RDZV_POLL_MS / 2;
        return;
    }
    mu_doc_reset(&r->incoming, last->dialect); /* there may be others yet who read only that */
    r->incoming.round = round;
    r->from_store = r->missing = false;
    if (see(r, &r->incoming, event, out) < 0)
        try_later(r, event->now_ms);
    else
        evaluate(r, event, out);
}

/* A bell that has been tampered with may ring all the time. */
static void note_ring(struct mu_rdzv *r, struct mu_slice token)
{
    bool same = r->has_token && mu_slice_equal(token, mu_buf_slice(&r->token));

    if (!same)
        r->idle_rings = 0;
    else if (r->rung)
        r->idle_rings++;
    r->rung = false;
}

static void on_document(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    struct muster_error error = { 0 };
    int rc = 0;

    if (!event->found) {
        is_up(r, out);
        on_missing(r, event, out);
        return;
    }
    r->incoming.dialect = r->sights.doc.dialect;
    rc = r->codec->decode(event->bytes, &r->incoming, &error);
    if (rc == MUSTER_ERDZV_STATE) {
        on_corrupt(r, &error, event->now_ms, out);
        return;
    }
    is_up(r, out);
    r->from_store = true;
    r->missing = false;
    note_ring(r, event->token);
    if (rc < 0 || keep_token(r, event->token, event->bytes.len) < 0 || see(r, &r->incoming, event, out) < 0)
        try_later(r, event->now_ms);
    else
        evaluate(r, event, out);
}

static void on_state(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    r->bell = event->bell;
    on_document(r, event, out);
}

/* A little early, and not in step with the others. The heartbeats of very many come later, for each is a write of the
 * whole document; still well before anybody is taken for dead. */
static uint64_t next_beat_ms(struct mu_rdzv *r, uint64_t now_ms)
{
    uint64_t wanted = r->settings.keep_alive_ms, most = mu_rdzv_death_age_ms(&r->settings) / 5 * 3;
    uint64_t slow = (uint64_t)r->sights.doc.count * r->size / (MU_RDZV_POLL_BYTES_S / 1000);

    if (r->has_turns && slow > wanted)
        wanted = slow < most || most < wanted ? slow : most;
    return now_ms + wanted - mu_rng_below(&r->rng, wanted / 5 + 1);
}

/* As long as the user says, or else growing, and by more where there are more to get out of the way of. Never so long that
 * heartbeats would be missed. */
static uint64_t back_off_below_ms(const struct mu_rdzv *r)
{
    uint64_t most = mu_rdzv_death_age_ms(&r->settings) / 4 + 1;

    if (r->settings.back_off_ms > 0)
        return sooner(r->settings.back_off_ms + 1, most);
    most = sooner(most, MU_RDZV_BACK_OFF_MS * (r->sights.doc.count + 1) + MU_RDZV_BACK_OFF_MAX_MS);
    return sooner((uint64_t)MU_RDZV_BACK_OFF_MS << r->lost_writes, most);
}

/* Random and bounded. Whose turn it is tries again at once, for everybody behind it waits; but not for ever. */
static void back_off(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    r->lost_writes = r->lost_writes < 16 ? r->lost_writes + 1 : 16;
    if (r->turn_state == TURN_HELD) {
        if (r->lost_writes <= MU_RDZV_TURN_TRIES)
            return;
        give_turn(r, out);
    }
    r->write_after_ms = now_ms + mu_rng_below(&r->rng, back_off_below_ms(r));
}

/* The nodes' names stay where they are: in the document that was, until the next step. */
static void note_removed(struct mu_rdzv *r)
{
    struct mu_node *nodes = r->removed;
    size_t room = r->removed_room;

    r->removed = r->dead;
    r->removed_room = r->dead_room;
    r->removed_count = r->dead_count;
    r->dead = nodes;
    r->dead_room = room;
    r->dead_count = 0;
}

static void on_written(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    struct plan plan = r->plan;
    struct mu_rdzv_effect *synced = tell(out, MU_RDZV_TELL_SYNCED);

    synced->written = event->written;
    synced->beat = event->written && r->phase == MU_RDZV_PHASE_MEMBER && plan.beats;
    if (!event->written) {
        back_off(r, event->now_ms, out);
        on_document(r, event, out);
        return;
    }
    is_up(r, out);
    r->maybe_in = r->from_store = true;
    r->idle_rings = 0; /* our own ring will bring nothing new to us */
    r->lost_writes = 0;
    r->write_after_ms = 0;
    if (plan.beats) {
        r->beat_us = r->planned_us;
        r->beat_sent_ms = r->main_sent_ms;
        r->beat_due_ms = next_beat_ms(r, r->main_sent_ms);
    }
    if (r->phase == MU_RDZV_PHASE_EXITING && plan.phase == MU_RDZV_PHASE_JOINING) {
        become(r, MU_RDZV_PHASE_JOINING);
        r->exit_round = -1;
    }
    note_removed(r);
    if (plan.rings && r->has_bell)
        push(out, MU_RDZV_DO_RING);
    if (r->turn_state == TURN_HELD && plan.used_turn)
        give_turn(r, out);
    if (keep_token(r, event->token, plan.size) < 0 || mu_doc_copy(&r->incoming, &r->doc) < 0 ||
        see(r, &r->incoming, event, out) < 0)
        try_later(r, event->now_ms);
    else
        evaluate(r, event, out);
}

/* ---- Turns ---- */

static void on_turn(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    r->turn = event->turn;
    r->turns_done = event->turns_done;
    wait_for_turn(r, event->now_ms, out);
}

static void on_turn_came(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    bool got_on = event->turns_done > r->turns_done;

    r->turns_done = event->turns_done;
    if (event->found)
        hold_own_turn(r, event->now_ms);
    else if (!got_on)
        hold_turn(r, event->now_ms);
    else
        wait_for_turn(r, event->now_ms, out);
}

/* ---- The bell ---- */

/* Most likely the next round is open, and all who wait for it mean to write now. The document is read when our turn has
 * come, and then once. */
static bool reads_with_turn(const struct mu_rdzv *r)
{
    return r->has_turns && !r->turn_in_vain && !is_away(r) && !r->corrupt && r->phase == MU_RDZV_PHASE_JOINING &&
           r->sights.doc.complete && mu_doc_has(&r->sights.doc, &r->me, MU_DOC_WAITING);
}

static void on_rung(struct mu_rdzv *r, struct mu_rdzv_effects *out)
{
    r->rung = true;
    r->park_later = true; /* what rang is in the document that is read next */
    if (reads_with_turn(r) && r->turn_state == TURN_NONE)
        take_turn(r, out);
    else if (!reads_with_turn(r) || r->turn_state == TURN_HELD)
        r->want_read = true;
}

/* ---- Time ---- */

static uint64_t poll_ms(const struct mu_rdzv *r)
{
    uint64_t bytes = (uint64_t)r->sights.doc.count * r->size;
    uint64_t slow = bytes / ((r->all_ours && r->has_bell ? MU_RDZV_POLL_OURS_BYTES_S : MU_RDZV_POLL_BYTES_S) / 1000);
    uint64_t most = r->settings.keep_alive_ms / 5 * 4; /* a longer gap would keep us from judging anybody */

    /* A crowd that waits for its turns must not keep from them whose turn it is. */
    if (r->turn_state == TURN_WAITING && turns_before(r) > MU_RDZV_CROWD)
        slow = later(slow, turns_before(r) * MU_RDZV_POLL_TURN_MS);
    return sooner(slow > MU_RDZV_POLL_MS ? slow : MU_RDZV_POLL_MS, most);
}

/* What was due when we last looked has had its chance. */
static uint64_t if_new(const struct mu_rdzv *r, uint64_t when_ms)
{
    return r->sights.any && when_ms <= r->sights.seen_ms ? NEVER : when_ms;
}

static bool must_beat(const struct mu_rdzv *r)
{
    return (r->phase == MU_RDZV_PHASE_EXITING || r->phase == MU_RDZV_PHASE_JOINING ||
            r->phase == MU_RDZV_PHASE_MEMBER) &&
           mu_doc_has(&r->doc, &r->me, MU_DOC_HEARTBEAT);
}

/* When a heartbeat begins with a turn; the document is read when it has come. NEVER: not now. */
static uint64_t next_turn_ms(const struct mu_rdzv *r)
{
    bool may = must_beat(r) && is_crowd(r) && r->turn_state == TURN_NONE && !is_away(r) && !r->corrupt;

    return may ? beat_wanted_ms(r) : NEVER;
}

/* When the document has to be looked at next, if nothing else happens. */
static uint64_t next_look_ms(const struct mu_rdzv *r)
{
    const struct mu_doc *doc = &r->doc;
    uint64_t base = r->sights.any && r->sights.seen_ms > r->op_start_ms ? r->sights.seen_ms : r->op_start_ms;
    uint64_t when = base + poll_ms(r);

    if (is_away(r) || r->corrupt || r->retry_at_ms != 0)
        return r->retry_at_ms;
    if (r->want_read)
        return 0;
    if (r->held_back)
        when = sooner(when, r->write_after_ms);
    if (must_beat(r) && !is_crowd(r))
        when = sooner(when, if_new(r, beat_wanted_ms(r)));
    if (r->phase == MU_RDZV_PHASE_JOINING && !doc->complete && mu_doc_has(doc, &r->me, MU_DOC_PARTICIPANT) &&
        (int64_t)doc->participants >= r->settings.nodes_min) {
        uint64_t back_ms = everybody_is_back_ms(r, doc);

        if (doc->has_deadline)
            when = sooner(when, if_new(r, last_call_end_ms(r)));
        when = sooner(when, if_new(r, back_ms));
    }
    if (r->phase == MU_RDZV_PHASE_MEMBER && somebody_can_join(r) && !r->told_waiting)
        when = sooner(when, if_new(r, r->hold_until_ms));
    if (is_joining(r) && !r->spare)
        when = sooner(when, if_new(r, r->deadline_ms + 1));
    return when;
}

static bool is_active(const struct mu_rdzv *r)
{
    return r->phase != MU_RDZV_PHASE_IDLE || r->closing || r->looking;
}

/* The moment after which what was asked has failed, or the host is lost, whatever is under way. */
static uint64_t give_up_ms(const struct mu_rdzv *r)
{
    uint64_t when = sooner(join_lost_ms(r), host_lost_ms(r));

    if (is_joining(r) && !r->spare)
        when = sooner(when, r->deadline_ms + MU_RDZV_ROLL_BACK_MS);
    if (r->phase == MU_RDZV_PHASE_LEAVING)
        when = r->deadline_ms;
    if (r->closing)
        when = sooner(when, r->close_deadline_ms);
    return when;
}

uint64_t mu_rdzv_deadline_ms(const struct mu_rdzv *r)
{
    uint64_t when = give_up_ms(r);

    if (when != NEVER)
        when++;
    if (is_active(r) && r->main_id == 0)
        when = sooner(when, sooner(next_look_ms(r), next_turn_ms(r)));
    return when;
}

static void give_up(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    if (r->closing && now_ms > r->close_deadline_ms)
        fail_close(r, out);
    judge_host(r, now_ms, out);
    if (now_ms >= join_lost_ms(r)) {
        say_store_lost(r, now_ms);
        fail_join(r, out);
    } else if (is_joining(r) && !r->spare && now_ms > r->deadline_ms + MU_RDZV_ROLL_BACK_MS) {
        say_timeout(r, now_ms);
        fail_join(r, out);
    } else if (r->phase == MU_RDZV_PHASE_LEAVING && now_ms > r->deadline_ms) {
        fail_leave(r, out);
    }
}

/* Sends what is due. */
static void pump(struct mu_rdzv *r, uint64_t now_ms, struct mu_rdzv_effects *out)
{
    give_up(r, now_ms, out);
    if (!is_active(r) || r->main_id != 0)
        return;
    if (now_ms >= next_turn_ms(r))
        take_turn(r, out);
    if (now_ms >= next_look_ms(r)) {
        r->want_read = false;
        r->retry_at_ms = 0;
        (void)request(r, MU_RDZV_DO_READ, now_ms, out);
    }
    if (r->has_bell && r->phase != MU_RDZV_PHASE_IDLE && r->ever_seen && !is_away(r) &&
        (r->park_id == 0 || r->park_bell != r->bell) && !r->park_later && r->main_id == 0) {
        struct mu_rdzv_effect *effect = push(out, MU_RDZV_DO_PARK);

        effect->id = r->park_id = ++r->last_id;
        effect->bell = r->park_bell = r->bell;
    }
}

/* ---- Steps ---- */

/* True when the answer is one that we wait for; it is then no longer waited for. */
static bool takes_answer(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    uint64_t *waiting = NULL;

    if (event->id == 0)
        return false;
    if (event->id == r->main_id)
        waiting = &r->main_id;
    else if (event->id == r->park_id)
        waiting = &r->park_id;
    else if (event->id == r->turn_id)
        waiting = &r->turn_id;
    else
        return false;
    *waiting = 0;
    return true;
}

/* A store that answers on another connection is not silent, though we cannot get at the document. */
static void note_life(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    bool answered = event->type == MU_RDZV_RUNG || event->type == MU_RDZV_TURN ||
                    (event->type == MU_RDZV_TURN_CAME && event->found);

    if (answered && r->store == STORE_SILENT)
        r->away_since_ms = event->now_ms;
}

static void on_answer(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    bool main = event->id == r->main_id, turn = event->id == r->turn_id;

    if (main && r->main_type == MU_RDZV_DO_WRITE)
        mu_buf_done(&r->out);
    if (!takes_answer(r, event)) {
        if (event->type == MU_RDZV_TURN) /* we do not want it any more, but somebody waits for its end */
            push(out, MU_RDZV_DO_TURN_GIVE)->turn = event->turn;
        return;
    }
    note_life(r, event);
    switch (event->type) {
    case MU_RDZV_STATE:
        on_state(r, event, out);
        break;
    case MU_RDZV_WRITTEN:
        on_written(r, event, out);
        break;
    case MU_RDZV_SETTLED:
        on_settled(r, event, out);
        break;
    case MU_RDZV_RUNG:
        on_rung(r, out);
        break;
    case MU_RDZV_TURN:
        on_turn(r, event, out);
        break;
    case MU_RDZV_TURN_CAME:
        on_turn_came(r, event, out);
        break;
    default:
        assert(event->type == MU_RDZV_REQUEST_FAILED);
        if (main ||
            event->error->code != MUSTER_ETIMEOUT) /* a long wait may run out of time though the store is well */
            mu_liveness_interrupt(&r->sights, event->now_ms);
        if (main)
            on_request_failed(r, event, out);
        else if (turn)
            hold_turn(r, event->now_ms); /* it is only a hint: go on without */
        else
            r->park_later = true;
        break;
    }
}

static void on_host(struct mu_rdzv *r, const struct mu_node *host)
{
    char *name = host != NULL ? copy_name(host->name) : NULL;
    bool same = host != NULL && r->host_state == HOST_NODE && mu_node_equal(&r->host, host);

    free(r->host_name);
    r->host_name = name;
    r->host_state = name != NULL ? HOST_NODE : host == NULL ? HOST_OUTSIDE : HOST_UNKNOWN;
    if (r->host_state != HOST_NODE)
        return;
    r->host = *host;
    r->host.name.data = r->host_name;
    r->host_was_seen = r->host_was_seen && same;
    look_for_host(r);
}

void mu_rdzv_step(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    out->count = 0;
    r->removed_count = 0;
    note_pause(r, event);
    switch (event->type) {
    case MU_RDZV_JOIN:
        on_join(r, event->now_ms, out);
        break;
    case MU_RDZV_LEAVE:
        on_leave(r, event->now_ms, out);
        break;
    case MU_RDZV_CLOSE:
        on_close(r, event->now_ms);
        break;
    case MU_RDZV_LOOK:
        on_look(r, event->now_ms, out);
        break;
    case MU_RDZV_STOP:
        on_stop(r, out);
        break;
    case MU_RDZV_HOST:
        on_host(r, event->node);
        break;
    case MU_RDZV_TIME:
        break;
    case MU_RDZV_STATE:
    case MU_RDZV_WRITTEN:
    case MU_RDZV_SETTLED:
    case MU_RDZV_RUNG:
    case MU_RDZV_TURN:
    case MU_RDZV_TURN_CAME:
    case MU_RDZV_REQUEST_FAILED:
        on_answer(r, event, out);
        break;
    }
    pump(r, event->now_ms, out);
    assert(r->phase != MU_RDZV_PHASE_MEMBER || r->world_valid);
    assert(r->phase != MU_RDZV_PHASE_SETTLING || r->main_id != 0);
}

/* ---- Questions ---- */

enum mu_rdzv_phase mu_rdzv_phase(const struct mu_rdzv *r)
{
    return r->phase;
}

const struct mu_node *mu_rdzv_me(const struct mu_rdzv *r)
{
    return &r->me;
}

bool mu_rdzv_doc_exists(const struct mu_rdzv *r)
{
    return r->has_token;
}

const struct mu_doc *mu_rdzv_doc(const struct mu_rdzv *r)
{
    return &r->doc;
}

const struct mu_rdzv_world *mu_rdzv_world(const struct mu_rdzv *r)
{
    return r->phase == MU_RDZV_PHASE_MEMBER ? &r->world : NULL;
}

bool mu_rdzv_store_refuses(const struct mu_rdzv *r)
{
    return r->store == STORE_REFUSED;
}

struct mu_rdzv_nodes mu_rdzv_lost(const struct mu_rdzv *r)
{
    return (struct mu_rdzv_nodes){ r->lost, r->lost_count };
}

struct mu_rdzv_deeds mu_rdzv_deeds(const struct mu_rdzv *r)
{
    return (struct mu_rdzv_deeds){ r->plan.deeds, r->plan.deeds_count };
}

struct mu_rdzv_nodes mu_rdzv_removed(const struct mu_rdzv *r)
{
    return (struct mu_rdzv_nodes){ r->removed, r->removed_count };
}

const struct muster_error *mu_rdzv_error(const struct mu_rdzv *r)
{
    return &r->error;
}

struct mu_rdzv_progress mu_rdzv_progress(const struct mu_rdzv *r)
{
    const struct mu_doc *doc = &r->doc;

    return (struct mu_rdzv_progress){
        .round = doc->round,
        .participants = doc->participants,
        .waiting = doc->waiting,
        .spares = doc->spares,
        .complete = doc->complete,
        .me_participant = mu_doc_has(doc, &r->me, MU_DOC_PARTICIPANT),
        .me_waiting = mu_doc_has(doc, &r->me, MU_DOC_WAITING),
        .me_spare = mu_doc_has(doc, &r->me, MU_DOC_SPARE),
        .last_call = doc->has_deadline,
        .last_call_until_ms = last_call_end_ms(r),
        .deadline_ms = effective_deadline_ms(r),
    };
}
