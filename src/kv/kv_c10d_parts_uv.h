/* The c10d back end from inside, for kv_c10d_uv.c (requests) and kv_c10d_conns_uv.c (connections and their calls). */
#ifndef MU_KV_KV_C10D_PARTS_UV_H
#define MU_KV_KV_C10D_PARTS_UV_H

#include "base/rng.h"
#include "kv/kv_c10d_uv.h"
#include "kv/later_uv.h"
#include "store/client_uv.h"

enum {
    OWNERS_MAX = 3, /* the rendezvous, its agent, and the user of that */
    WAITS_MAX = 4,  /* connections for one owner's waits; more waits at once queue up on them */
    CALLS_MAX = 3,  /* of a request, at once */
    COUNTER_TEXT_MAX = 20,
};

struct mu_c10d;

struct mu_c10d_conn {
    struct mu_c10d *driver;
    struct mu_client *client; /* NULL: not opened yet, or given up */
    size_t calls;             /* under way on it, or on those before it */
    const void *owner;        /* of those calls, where it is one for waits */
    bool silent;              /* a call ran out of time, and nothing was answered since */
    uint64_t silent_since_ms;
};

struct mu_c10d_work;

struct mu_c10d_call {
    struct mu_call call;
    struct mu_c10d_work *work;
    struct mu_c10d_conn *conn;
    struct mu_client *client;
    struct muster_slice key;
    char *key_text; /* room for a key of ours */
};

struct mu_c10d_work { /* a request under way */
    struct mu_list link;
    struct mu_c10d *driver;
    struct mu_kv_request *request;
    struct mu_c10d_call calls[CALLS_MAX];
    unsigned count, pending; /* of this step's calls; of those still to be answered */
    unsigned step;
    bool gone;
    struct muster_error error; /* the first of this step's; code 0: none */
    struct mu_buf text;        /* WRITE: the document as it goes on the wire */
    char counters[2][COUNTER_TEXT_MAX];
    char keys[];
};

struct mu_c10d {
    struct mu_kv kv;
    uv_loop_t *loop;
    struct mu_kv_c10d_config config;
    char *host, *document_key, *prefix, *host_node, *job_probe;
    size_t key_room;
    struct mu_rng rng;
    struct mu_c10d_conn main, bell, waits[OWNERS_MAX * WAITS_MAX];
    struct mu_list works;
    enum mu_dialect dialect; /* found on the main connection; UNKNOWN: not yet */
    bool told_ready;
    struct mu_c10d_work *parked; /* the last PARK, while it is under way */
    int64_t rings, turn;         /* the last counters that were known */
    bool doubts_turns;           /* their counters may be none */
    struct mu_later later;       /* requests that are answered */
    struct mu_call publish;      /* of `host` */
    char *publish_key;
};

static inline bool mu_c10d_is_wait(enum mu_call_kind kind)
{
    return kind == MU_CALL_WAIT || kind == MU_CALL_GET;
}

/* kv_c10d_conns_uv.c */
int mu_c10d_dial(struct mu_c10d_conn *conn, uint64_t timeout_ms, struct muster_error *reterr);
void mu_c10d_close_conns(struct mu_c10d *driver);
struct mu_c10d_conn *mu_c10d_conn_for_wait(struct mu_c10d *driver, const void *owner);
/* Makes the calls that were added to this step; mu_c10d_proceed() follows when all of them are answered. */
int mu_c10d_make_calls(struct mu_c10d_work *work, struct mu_c10d_conn *conn, uint64_t timeout_ms);

/* kv_c10d_uv.c */
void mu_c10d_proceed(struct mu_c10d_work *work);

#endif
