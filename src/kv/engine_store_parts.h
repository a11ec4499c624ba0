/* What the files of the client of an engine share: engine_store.c has the connection and the time, _requests.c what it
 * is asked for and tells, _answers.c what the engine sends. */
#ifndef MU_KV_ENGINE_STORE_PARTS_H
#define MU_KV_ENGINE_STORE_PARTS_H

#include "kv/engine_store.h"

#include "base/arena.h"
#include "base/list.h"
#include "store/frames.h"

enum {
    SCOPES = 2,
    FRAME_ID_AT = 8,                                   /* of a frame's bytes */
    NOTES_RESERVE = MU_ENGINE_STORE_REQUESTS_MAX + 16, /* always there, for everything but changes */
    NOTES_MAX = 1 << 16,                               /* that wait to be taken */
};

#define OUT_MAX (MU_ENGINE_STORE_WRITES_MAX + (1u << 20)) /* bytes that wait to be taken */

enum lease_state {
    LEASE_NONE,
    LEASE_WANTED, /* GRANT is to be sent */
    LEASE_ASKED,  /* GRANT was sent; LEASED is told with its answer */
    LEASE_TAKEN,  /* GRANT was sent, and LEASED told */
    LEASE_HELD,   /* the engine has it */
};

struct lease { /* this node's */
    enum lease_state state;
    uint64_t take;     /* the id of TAKE_LEASE */
    uint64_t until_ms; /* WANTED, ASKED */
    uint64_t asked_ms; /* when GRANT was sent: it lasts from then on */
    uint64_t id;
};

enum progress {
    WAITING, /* to be sent */
    SENT,
    DOUBTFUL, /* a transaction that went to a connection that is lost: ATTACH tells what became of it */
};

/* What a LOOK_AROUND does now. */
enum look {
    LOOK_MARK,   /* puts our mark */
    LOOK_NODES,  /* reads nodes/ */
    LOOK_OTHERS, /* reads the marks of other jobs */
};

struct page { /* of what is read */
    struct page *before;
    const struct mu_engine_kv *kvs;
    size_t count;
};

struct request {
    struct mu_list link; /* in the order of their coming, or among those that are not in use */
    enum mu_fold_effect_type type;
    enum progress progress;
    uint64_t id;
    uint64_t until_ms, deadline_ms; /* when it has to be over; and when it is, unless parts of the answer come */
    uint32_t frame_id;              /* SENT, DOUBTFUL */
    enum mu_fold_scope scope;
    uint64_t lease; /* KEEP_JOB, DROP_LEASE, LOOK_AROUND; GRANT_JOB: of the last try; WRITE: ours when it was sent */
    bool repeatable;
    struct mu_buf frame; /* WRITE, RANGE, UNMARK; LOOK_AROUND: of our mark, if there is one */
    enum look look;
    bool marked;           /* LOOK_AROUND: our mark is there */
    struct mu_arena arena; /* LOAD, RANGE, LOOK_AROUND: what has come so far */
    struct page *last;
    size_t kvs_count, nodes_count; /* nodes_count: LOOK_AROUND: how many of them are nodes */
};

struct note { /* an event that is to be told */
    struct mu_fold_event event;
    struct muster_error *error; /* for free(); or NULL */
    struct mu_arena arena;      /* what the event points to */
};

struct mu_engine_store {
    enum mu_engine_store_state state;
    enum mu_engine_store_output_type wish; /* CONNECT, DISCONNECT or NOTHING */
    uint64_t now_ms;
    uint64_t lease_ms, job_lease_ms, renew_ms;
    bool only;
    uint64_t kept_ms; /* when the last KEEP was sent */
    struct mu_rng rng;
    char secret[MU_ENGINE_SECRET_BYTES];
    struct mu_token token;
    char run_id[MU_RDZV_RUN_ID_MAX + 1], node[MU_FRAME_TEXT_MAX + 1];
    char endpoint[MU_HOST_MAX + 8];
    /* The connection. */
    char peer[MU_HOST_MAX + MU_ADDR_TEXT_MAX + 16];          /* for errors */
    union mu_addr address;                                   /* of the last one; family 0: there was none */
    char local[MU_FRAME_TEXT_MAX + 1];                       /* our address, as the engine sees it */
    uint64_t until_ms;                                       /* CONNECTING to ATTACHING, and ENDING: not longer */
    uint64_t retry_at_ms;                                    /* DOWN */
    uint64_t sent_ms;                                        /* when the last frame was */
    uint64_t quiet_since_ms;                                 /* nothing was heard, if an answer is awaited */
    uint32_t last_id;                                        /* of frames */
    uint32_t hello_id, attach_id, grant_id, keep_id, end_id; /* of frames; 0: no answer is awaited */
    uint64_t epoch;
    bool has_epoch;      /* an engine was met */
    bool hosted_by_node; /* ... in the store of a node of the job */
    bool is_another;     /* ... and it was another one than before */
    struct mu_buf in, out;
    struct muster_error why; /* there is no connection; code 0: it was not tried yet */
    uint64_t trouble_at_ms;  /* UINT64_MAX: not planned */
    bool in_trouble;         /* it was told */
    uint64_t heard_ms;       /* when something came from an engine last */
    bool is_refused;         /* nobody listens there */
    bool told_refused;       /* ... and that was told */
    /* What is wanted of it. */
    struct lease lease;
    bool cautious;        /* the last grant was refused */
    bool watched[SCOPES]; /* LOADED was told */
    struct request slots[MU_ENGINE_STORE_REQUESTS_MAX];
    struct mu_list requests, unused;
    size_t frames_bytes; /* of all their frames */
    /* What is to be told. */
    struct note *notes, told;
    size_t notes_first, notes_end, notes_room;
};

/* ---- engine_store_requests.c ---- */

void mu_es_ask(struct mu_engine_store *s, const struct mu_fold_effect *effect, uint64_t until_ms);
/* The arena, if there is one, is the event's from here on. */
void mu_es_tell_with(struct mu_engine_store *s, struct mu_fold_event event, const struct muster_error *error,
                     struct mu_arena *arena);
void mu_es_tell(struct mu_engine_store *s, struct mu_fold_event event, const struct muster_error *error);
bool mu_es_has_room_for_changes(struct mu_engine_store *s);
const struct mu_fold_event *mu_es_next_event(struct mu_engine_store *s); /* NULL: there is none. Frees the last one */
void mu_es_forget_all(struct mu_engine_store *s);                        /* requests and events */

bool mu_es_is_final(uint32_t code);
/* The request is over. `code`: what the engine has answered, if it has. */
void mu_es_fail(struct mu_engine_store *s, struct request *r, uint32_t code, bool final,
                const struct muster_error *error);
void mu_es_fail_doubtful(struct mu_engine_store *s, bool final, const struct muster_error *error);
void mu_es_request_done(struct mu_engine_store *s, struct request *r); /* it is over, and nothing is told */
void mu_es_begin_anew(struct request *r);                              /* nothing of its answer has come */
void mu_es_give_time(struct mu_engine_store *s, struct request *r);    /* for its answer, or more of it */
void mu_es_look_on(struct mu_engine_store *s, struct request *r, enum look look);
struct request *mu_es_find_sent(struct mu_engine_store *s, uint32_t frame_id);
/* Those whose time is up. */
void mu_es_expire(struct mu_engine_store *s);
bool mu_es_is_awaiting(const struct mu_engine_store *s); /* an answer of the engine */

bool mu_es_has_lease(const struct mu_engine_store *s); /* which the machine knows of */
void mu_es_tell_leased(struct mu_engine_store *s);
/* `refused`: it was not granted. */
void mu_es_lose_lease(struct mu_engine_store *s, bool refused, bool final, const struct muster_error *error);

/* Requests may follow HELLO at once, unless what comes of ATTACH decides about them. */
bool mu_es_may_send(const struct mu_engine_store *s);
uint32_t mu_es_send_frame(struct mu_engine_store *s, struct mu_frame frame); /* its id; 0: no memory */
bool mu_es_send_due(struct mu_engine_store *s);                              /* false: no memory */
bool mu_es_is_reading(const struct request *r);                              /* its next answer is keys */
uint64_t mu_es_keep_at_ms(const struct mu_engine_store *s);                  /* when KEEP is to be sent */
struct muster_error mu_es_timed_out(const struct mu_engine_store *s);

/* ---- engine_store_answers.c ---- */

/* Bytes that came. Fails when the connection is of no more use. */
int mu_es_take_bytes(struct mu_engine_store *s, struct mu_slice bytes, struct muster_error *reterr);

/* ---- engine_store.c ---- */

bool mu_es_is_ending(const struct mu_engine_store *s);
bool mu_es_speaks_frames(const struct mu_engine_store *s); /* there is a connection, to an engine */
void mu_es_become(struct mu_engine_store *s, enum mu_engine_store_state state);
void mu_es_greet(struct mu_engine_store *s);                             /* the peer is an engine */
void mu_es_greet_with(struct mu_engine_store *s, struct mu_slice nonce); /* it has told what is to be proven */
void mu_es_be_ready(struct mu_engine_store *s);
/* s->why says what is wrong with the connection: it is given up. */
void mu_es_hang_up(struct mu_engine_store *s);
/* The same; and since trying again would not help, nobody has to wait for it. */
void mu_es_refuse_all(struct mu_engine_store *s);

#endif
