/* The insides of the document machine: for the files rdzv*.c alone.
 *
 *   rdzv.c         what is asked of it, the step, the answers, questions
 *   rdzv_seen.c    the document as it was just read or written
 *   rdzv_decide.c  what follows from it: the rules, and the write
 *   rdzv_round.c   a complete round: settling on it, being its member
 *   rdzv_turns.c   turns and the bell
 *   rdzv_time.c    when to look, when to give up
 *   rdzv_away.c    a store that fails or has lost the document */
#ifndef MU_RDZV_RDZV_PARTS_H
#define MU_RDZV_RDZV_PARTS_H

#include "rdzv/liveness.h"
#include "rdzv/rdzv.h"
#include "rdzv/timeout_text.h"

#include <assert.h>

#define ACTIONS_MAX 6 /* in one write: closed; out of the old round, into a list, into the new round, complete */
#define DEEDS_MAX (3 * ACTIONS_MAX) /* who enters a list sets its heartbeat too, and may complete the round */
#define CAME_MAX (MU_TIMEOUT_TEXT_MAX + 64)
#define PAST_MAX 8 /* rounds that we were in, and know when they come again */
#define NEVER UINT64_MAX

/* HERE --request fails--> SILENT --request is refused--> REFUSED; back to HERE with the first answer. */
enum store_state { STORE_HERE, STORE_SILENT, STORE_REFUSED };

/* Our copy of the document. */
enum copy_state {
    COPY_NONE,    /* never looked */
    COPY_MADE_UP, /* there was none: our own beginning, which nobody else has seen */
    COPY_STORED   /* as it was in the store */
};

/* What the store has. */
enum value_state {
    VALUE_NONE,    /* no document, where none has to be; or not known */
    VALUE_FINE,    /* a document; `token` stands for it */
    VALUE_GONE,    /* no document any more; its members may put it back */
    VALUE_FOREIGN, /* a value that is no document; the same. `token` stands for it */
    VALUE_REFUSED  /* a document that is not for us: of another layout, or with another node of our identity */
};

/* In whose process the store is. */
enum host_state {
    HOST_UNKNOWN,
    HOST_NODE,   /* a node that we have not seen in the document */
    HOST_MEMBER, /* a node that we have; it may have left before it ended */
    HOST_OUTSIDE /* a store that stands alone, or a PyTorch node that is not known */
};

/* NONE --park--> PARKED --it rings--> RUNG --document seen--> NONE; LATER until then where it failed or rings for
 * nothing. */
enum bell_state { BELL_NONE, BELL_PARKED, BELL_RUNG, BELL_LATER };

enum turn_state { TURN_NONE, TURN_TAKING, TURN_WAITING, TURN_HELD };

/* When the document is read next. */
enum look_state {
    LOOK_SLOWLY,    /* by the slow read, or when something is due: see next_look_ms() */
    LOOK_HELD_BACK, /* the same, and at write_after_ms, for which a write waits */
    LOOK_NOW,
    LOOK_RETRY /* at retry_at_ms and not before: a request failed, or its answer was of no use */
};

/* Closing, as the owner asked for it; TOLD: it knows that the rendezvous is closed. */
enum close_state { CLOSE_NONE, CLOSE_ASKED, CLOSE_TOLD };

/* A member of our round, by the document. */
struct presence {
    enum { PRESENT, LEFT, EXPIRED } state; /* EXPIRED: gone by our own judgement */
    uint64_t since_ms;                     /* unless it is PRESENT */
};

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
    uint64_t now_ms; /* of this step */
    int64_t wall_us;
    struct mu_rdzv_effects *out;

    /* The document. */
    struct mu_liveness sights; /* as it is in the store */
    struct mu_doc doc;         /* without the dead, and with what we are about to write */
    struct mu_doc incoming;
    struct mu_node *dead; /* names of sights.doc */
    size_t dead_count, dead_room;
    struct mu_node *removed; /* whom our last write removed as dead */
    size_t removed_count, removed_room;
    struct mu_buf token, bytes; /* bytes: of the write under way */
    size_t size;                /* in bytes, as stored */
    bool all_ours;              /* nobody in it is PyTorch */
    int64_t bell;
    bool maybe_in; /* a write of ours took place, or may have */
    enum copy_state copy;
    enum value_state value;
    uint64_t value_since_ms;
    uint64_t deadline_seen_ms; /* when we first saw the deadline that is in the document */
    uint64_t complete_jitter_ms;

    /* Requests under way; 0: none. */
    uint64_t last_id, main_id, park_id, turn_id;
    enum mu_rdzv_effect_type main_type;
    uint64_t main_sent_ms;
    enum bell_state bell_state;
    int64_t park_bell;
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
    enum look_state look;
    uint64_t retry_ms, retry_at_ms; /* the next delay; LOOK_RETRY */

    /* The back end. */
    enum store_state store, told_store;       /* as it is; as the owner was told */
    uint64_t away_since_ms, refused_since_ms; /* unless it is HERE; if it is REFUSED */
    struct muster_error error;

    /* What is asked. */
    enum mu_rdzv_phase phase;
    bool looking; /* LOOK is not answered yet */
    enum close_state close;
    uint64_t op_start_ms, deadline_ms, close_deadline_ms;
    bool spare;            /* by the last document: then deadline_ms does not count */
    char came[CAME_MAX];   /* who had come, for people, when the document was last seen in time */
    int64_t exit_round;    /* that we were a member of and may still be in; -1: none */
    int64_t entered_round; /* into which we wrote ourselves, without having been its member since; -1: none */
    struct past_round past[PAST_MAX]; /* that we were a member of */
    size_t past_count;                /* so many were put there; the last PAST_MAX are kept */

    /* The round we are, or were last, a member of; has_world() false: there is none. */
    struct mu_rdzv_world world;
    struct mu_doc world_doc;    /* which has its names */
    struct presence *presences; /* of world.members */
    uint64_t joined_ms, hold_ms, hold_until_ms;
    size_t told_lost; /* so many of them were told */
    uint64_t lost_since_ms,
        exit_since_ms; /* of this round: somebody lost was not told yet; we want to leave. 0: not so */
    bool told_waiting;
    struct mu_node *lost;
    size_t lost_count;
    enum host_state host_state; /* what was said last of who hosts the store */
    struct mu_node host;        /* HOST_NODE, HOST_MEMBER */
    char *host_name;

    /* Heartbeats. */
    uint64_t beat_due_ms, beat_sent_ms;
    int64_t beat_us;
    int64_t planned_us;
};

/* ---- Small things that all of them use ---- */

static inline struct mu_rdzv_effect *push(struct mu_rdzv *r, enum mu_rdzv_effect_type type)
{
    assert(r->out->count < MU_RDZV_EFFECTS_MAX);
    r->out->items[r->out->count] = (struct mu_rdzv_effect){ .type = type };
    return &r->out->items[r->out->count++];
}

static inline struct mu_part_news *tell(struct mu_rdzv *r, enum mu_part_tell what)
{
    struct mu_part_news *news = &push(r, MU_RDZV_DO_TELL)->news;

    news->tell = what;
    return news;
}

/* r->error says why. */
static inline void tell_failed(struct mu_rdzv *r, enum mu_part_event_type asked)
{
    struct mu_part_news *news = tell(r, MU_PART_TELL_FAILED);

    news->asked = asked;
    news->error = &r->error;
}

static inline struct mu_rdzv_effect *request(struct mu_rdzv *r, enum mu_rdzv_effect_type type)
{
    struct mu_rdzv_effect *effect = push(r, type);

    assert(r->main_id == 0);
    effect->id = r->main_id = ++r->last_id;
    r->main_type = type;
    r->main_sent_ms = r->now_ms;
    return effect;
}

static inline uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline bool has_world(const struct mu_rdzv *r)
{
    return r->world.count > 0;
}

/* There is something that a write replaces; else it has to be the first. */
static inline bool has_token(const struct mu_rdzv *r)
{
    return r->value == VALUE_FINE || r->value == VALUE_FOREIGN;
}

static inline bool is_away(const struct mu_rdzv *r)
{
    return r->store != STORE_HERE;
}

/* So many members that their heartbeats would get into each other's way. */
static inline bool is_crowd(const struct mu_rdzv *r)
{
    return r->has_turns && r->sights.doc.count > MU_RDZV_CROWD;
}

static inline bool is_writing(const struct mu_rdzv *r)
{
    return r->main_id != 0 && r->main_type == MU_RDZV_DO_WRITE;
}

static inline bool is_joining(const struct mu_rdzv *r)
{
    return r->phase == MU_RDZV_PHASE_EXITING || r->phase == MU_RDZV_PHASE_JOINING || r->phase == MU_RDZV_PHASE_SETTLING;
}

static inline bool is_active(const struct mu_rdzv *r)
{
    return r->phase != MU_RDZV_PHASE_IDLE || r->close == CLOSE_ASKED || r->looking;
}

/* rdzv.c */
void mu_rdzv_become(struct mu_rdzv *r, enum mu_rdzv_phase phase);
void mu_rdzv_set_close(struct mu_rdzv *r, enum close_state state);
void mu_rdzv_abandon(struct mu_rdzv *r);
void mu_rdzv_answer_look(struct mu_rdzv *r);
void mu_rdzv_fail_join(struct mu_rdzv *r);
void mu_rdzv_say_timeout(struct mu_rdzv *r);
void mu_rdzv_refuse_close(struct mu_rdzv *r); /* r->error says why */
void mu_rdzv_fail_close(struct mu_rdzv *r);
void mu_rdzv_fail_leave(struct mu_rdzv *r);

/* rdzv_turns.c */
void mu_rdzv_give_turn(struct mu_rdzv *r);
void mu_rdzv_take_turn(struct mu_rdzv *r);
void mu_rdzv_hold_turn(struct mu_rdzv *r);
uint64_t mu_rdzv_turns_before(const struct mu_rdzv *r);
bool mu_rdzv_needs_turn(const struct mu_rdzv *r, enum mu_rdzv_action action);
bool mu_rdzv_rings(const struct mu_rdzv *r);
void mu_rdzv_set_bell(struct mu_rdzv *r, enum bell_state state);
void mu_rdzv_note_ring(struct mu_rdzv *r, struct mu_slice token);
void mu_rdzv_back_off(struct mu_rdzv *r);
void mu_rdzv_on_turn(struct mu_rdzv *r, const struct mu_rdzv_event *event);
void mu_rdzv_on_turn_came(struct mu_rdzv *r, const struct mu_rdzv_event *event);
void mu_rdzv_on_rung(struct mu_rdzv *r);

/* rdzv_away.c */
void mu_rdzv_refuse(struct mu_rdzv *r, const struct muster_error *error);
void mu_rdzv_set_value(struct mu_rdzv *r, enum value_state value);
void mu_rdzv_look_for_host(struct mu_rdzv *r);
uint64_t mu_rdzv_join_lost_ms(const struct mu_rdzv *r);
uint64_t mu_rdzv_host_lost_ms(const struct mu_rdzv *r);
void mu_rdzv_judge_host(struct mu_rdzv *r);
void mu_rdzv_say_store_lost(struct mu_rdzv *r);
void mu_rdzv_note_pause(struct mu_rdzv *r, const struct mu_rdzv_event *event);
void mu_rdzv_on_request_failed(struct mu_rdzv *r, const struct mu_rdzv_event *event);
void mu_rdzv_is_up(struct mu_rdzv *r);
void mu_rdzv_on_missing(struct mu_rdzv *r);
void mu_rdzv_on_foreign(struct mu_rdzv *r, const struct mu_rdzv_event *event, const struct muster_error *error);
void mu_rdzv_on_host(struct mu_rdzv *r, const struct mu_node *host);

/* rdzv_seen.c */
int mu_rdzv_refresh_view(struct mu_rdzv *r);
int mu_rdzv_keep_token(struct mu_rdzv *r, enum value_state value, struct mu_slice token, size_t size);
int mu_rdzv_see(struct mu_rdzv *r, struct mu_doc *fresh, enum copy_state from);
void mu_rdzv_on_state(struct mu_rdzv *r, const struct mu_rdzv_event *event);
void mu_rdzv_on_written(struct mu_rdzv *r, const struct mu_rdzv_event *event);

/* rdzv_decide.c */
uint64_t mu_rdzv_last_call_end_ms(const struct mu_rdzv *r);
uint64_t mu_rdzv_everybody_is_back_ms(const struct mu_rdzv *r, const struct mu_doc *doc);
uint64_t mu_rdzv_effective_deadline_ms(const struct mu_rdzv *r);
uint64_t mu_rdzv_beat_wanted_ms(const struct mu_rdzv *r);
int mu_rdzv_apply(struct mu_rdzv *r, struct plan *plan, enum mu_rdzv_action action, int64_t doc_now_us);
void mu_rdzv_send_write(struct mu_rdzv *r, const struct plan *plan, int64_t doc_now_us);
void mu_rdzv_evaluate(struct mu_rdzv *r);

/* rdzv_round.c */
void mu_rdzv_forget_world(struct mu_rdzv *r);
bool mu_rdzv_in_world(const struct mu_rdzv *r, const struct mu_node *node);
void mu_rdzv_tell_lost(struct mu_rdzv *r);
bool mu_rdzv_fails_alike(const struct mu_rdzv *r, uint64_t since_ms);
void mu_rdzv_settle(struct mu_rdzv *r);
void mu_rdzv_on_settled(struct mu_rdzv *r, const struct mu_rdzv_event *event);
bool mu_rdzv_somebody_can_join(const struct mu_rdzv *r);
void mu_rdzv_watch_round(struct mu_rdzv *r);

/* rdzv_time.c */
void mu_rdzv_set_look(struct mu_rdzv *r, enum look_state state);
void mu_rdzv_look_now(struct mu_rdzv *r); /* unless it is a retry's time that is waited for */
void mu_rdzv_hold_back(struct mu_rdzv *r, bool held);
void mu_rdzv_retry_at(struct mu_rdzv *r, uint64_t when_ms);
void mu_rdzv_try_later(struct mu_rdzv *r); /* no memory for what has come: as if it had not */
void mu_rdzv_pump(struct mu_rdzv *r);

#endif
