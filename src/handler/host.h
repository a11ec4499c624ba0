/* How a c10d node gets its store: it hosts the store itself, or joins the store that another process hosts. Pure;
 * c10d_uv.c does what it says.
 *
 *   IDLE --start--> RESOLVING --no address--> PAUSING --time--> RESOLVING
 *     |                 |
 *     | address known   | found
 *     v                 v
 *   an address of this machine (or is_host)         no address of this machine (or is_host=false)
 *                       |                                      |
 *                       v                                      |
 *                   LISTENING                                  |
 *              bound |      | port taken (not is_host)         |
 *                    v      v                                  v
 *                 CONNECTING, to our own store or to the one at the endpoint
 *              own |        | other        | no store answers
 *                  |        v              +--> our port is taken, time is left: PAUSING, then LISTENING
 *                  |      ASKING           +--> the first try of all: PAUSING, then CONNECTING
 *                  |        |              +--> else: IDLE, with an error; the next start begins anew
 *                  |        | who hosts
 *                  |        +--engine=on--> PROBING
 *                  |        |                  | can the job meet in the store's engine?
 *                  v        v                  v
 *                    FOUND
 *
 *   engine=on: LISTENING --bound--> FOUND: our own store has an engine, and needs no other connection
 *
 * - Names are never compared to find the host. An endpoint is ours if one of its addresses is this machine's.
 * - A name that cannot be resolved is looked up again until the time is up. A store that is not reached at first is
 *   tried once more. Both are said, once.
 * - A port of ours that is taken, but where no store answers, may become free, so it is tried again. Its host may have
 *   bound loopback only, so every other try goes there. What answers and is no store ends the search at once.
 * - A job meets in a document of the store, or in its engine. A store without an engine is used for a document also
 *   with engine=on. If the job has a document, or gets one because a PyTorch node comes, the engine says so (MOVED).
 *   The engine's client says the same where a store without an engine has taken the place of that store.
 *   Then the same store is connected to for that: FOUND --> CONNECTING. With engine=only, or a token, neither is done.
 *   A node with engine=off is to the engine what a PyTorch node is; a job that takes none is refused to it.
 * - A store counts as found when it has said who hosts it. From then on the node can tell a host that was killed from
 *   a store that is away. If the connection is lost before that, the search goes on after a pause (PAUSING). */
#ifndef MU_HANDLER_HOST_H
#define MU_HANDLER_HOST_H

#include "handler/handler.h"
#include "rdzv/doc.h"
#include "store/net.h"

#define MU_HOST_PORT_DEFAULT 29400
#define MU_HOST_PAUSE_MS 500         /* before a name is looked up, or a lost store or a taken port is tried again */
#define MU_HOST_LISTEN_AGAIN_MS 3000 /* a taken port of this machine is dialled, then bound again */
#define MU_HOST_FIRST_TRY_MS 5000    /* then the user is told why no store was reached; the next try has all the time */

#define MU_HOST_STATES(X)                                                                                              \
    X(IDLE, "idle")                                                                                                    \
    X(RESOLVING, "resolving")                                                                                          \
    X(PAUSING, "pausing")                                                                                              \
    X(LISTENING, "listening")                                                                                          \
    X(CONNECTING, "connecting")                                                                                        \
    X(ASKING, "asking")                                                                                                \
    X(PROBING, "probing")                                                                                              \
    X(FOUND, "found")

enum mu_host_state {
#define X(name, text) MU_HOST_##name,
    MU_HOST_STATES(X)
#undef X
};

const char *mu_host_state_text(enum mu_host_state value);

enum mu_host_rule {
    MU_HOST_IF_OURS,
    MU_HOST_ALWAYS,
    MU_HOST_NEVER
}; /* no option is_host; is_host=true; is_host=false */

/* Where a connection goes. */
enum mu_host_place {
    MU_HOST_ENDPOINT, /* as the user has named it */
    MU_HOST_LOOPBACK, /* the endpoint's port on this machine */
    MU_HOST_OWN,      /* the store that we host */
};

enum mu_host_event_type {
    MU_HOST_ON_START,         /* in IDLE. addresses: those known without a look-up; none: the name is looked up */
    MU_HOST_ON_RESOLVED,      /* RESOLVE's answer: addresses; none: error, or NULL if the name has no address */
    MU_HOST_ON_BOUND,         /* LISTEN's answer: port, plan, node */
    MU_HOST_ON_NOT_BOUND,     /* ... or error */
    MU_HOST_ON_CONNECTED,     /* CONNECT's answer */
    MU_HOST_ON_NOT_CONNECTED, /* ... or error */
    MU_HOST_ON_ANSWERED,      /* ASK's answer: node, in_engine */
    MU_HOST_ON_NOT_ANSWERED,  /* ... or error */
    MU_HOST_ON_PROBED,        /* PROBE's answer: in_engine */
    MU_HOST_ON_NOT_PROBED,    /* ... or error */
    MU_HOST_ON_UNUSABLE,      /* in FOUND: the store cannot be used; the owner was told */
    MU_HOST_ON_MOVED,         /* in FOUND, of an engine: the job meets in a document of that store */
    MU_HOST_ON_TIME,
};

struct mu_host_addresses { /* what is known about the endpoint's */
    unsigned count;
    bool any_own;      /* one of them is this machine's */
    bool all_loopback; /* all of them are loopback addresses */
};

struct mu_host_event { /* borrows what it points to */
    enum mu_host_event_type type;
    uint64_t now_ms;
    struct mu_host_addresses addresses;
    uint16_t port;                   /* on which we listen */
    const struct mu_bind_plan *plan; /* ... and where */
    struct mu_slice node;            /* that hosts the store, as text; empty: no node says so */
    bool in_engine;                  /* ANSWERED: the job meets there. PROBED: it can */
    const struct muster_error *error;
};

enum mu_host_effect_type {
    MU_HOST_DO_RESOLVE,    /* look the name up. RESOLVED */
    MU_HOST_DO_LISTEN,     /* on the endpoint's port. BOUND or NOT_BOUND */
    MU_HOST_DO_RECORD,     /* trace: this process hosts the store */
    MU_HOST_DO_WATCH,      /* tell of strange values of the document: mu_host_overwritten() */
    MU_HOST_DO_CONNECT,    /* place, wait_ms: CONNECTED or NOT_CONNECTED */
    MU_HOST_DO_ASK,        /* wait_ms: ask the store who hosts it. ANSWERED or NOT_ANSWERED */
    MU_HOST_DO_PROBE,      /* wait_ms: can the job meet in the store's engine? PROBED or NOT_PROBED */
    MU_HOST_DO_DISCONNECT, /* give the connection up, or what is left of the try */
    MU_HOST_DO_UNLISTEN,   /* give up hosting */
    MU_HOST_DO_USE,        /* the store is found: the connection is the rendezvous' now; or its `engine`, without one */
    MU_HOST_DO_FAIL,       /* error: there is no store */
    MU_HOST_DO_SAY,        /* level, text: to the user */
};

struct mu_host_effect { /* borrows from the machine, until its next step */
    enum mu_host_effect_type type;
    enum mu_host_place place;
    uint64_t wait_ms; /* above 0 */
    bool engine;
    enum muster_log_level level;
    const char *text;
    const struct muster_error *error;
};

#define MU_HOST_EFFECTS_MAX 5
#define MU_HOST_SAYS_MAX 3 /* of them */
#define MU_HOST_SAY_MAX 1200

struct mu_host_effects {
    struct mu_host_effect items[MU_HOST_EFFECTS_MAX];
    unsigned count;
};

struct mu_host_config {
    const char *name; /* of the endpoint; not copied */
    uint16_t port;    /* 0: any, of the node that hosts */
    enum mu_host_rule rule;
    bool engine;          /* the option: jobs of muster nodes meet in the engine, if they can */
    bool only;            /* ... and this one nowhere else */
    bool token;           /* ... nor this one: a document would be open to everybody */
    uint64_t patience_ms; /* for all of it */
    bool others;          /* nodes of other machines are expected */
    bool warn_loopback;   /* ... and would have to come to the endpoint's addresses */
};

struct mu_host { /* by mu_host_init(); there is nothing to be freed */
    struct mu_host_config config;
    enum mu_host_state state;
    enum mu_host_place place; /* of the last connection */
    struct mu_host_addresses addresses;
    uint64_t deadline_ms, wake_ms; /* of the search; of PAUSING */
    unsigned lookups;
    bool moved;                       /* for good: the engine is not looked for any more */
    uint16_t own_port;                /* of the store that we host */
    char hosted_by[MU_NODE_TEXT_MAX]; /* the node that hosts the store; empty: no node says so */
    struct muster_error not_hosting;  /* why not, though we may: LISTEN's error; code 0: we do, or are not to */
    struct muster_error error;        /* of the effect */
    bool told_loopback, told_taken, told_guest, told_unreached; /* once in a life */
    char said[MU_HOST_SAYS_MAX][MU_HOST_SAY_MAX];
    unsigned said_count; /* in this step */
};

/* By the parameters of a c10d rendezvous: all of *ret_config but the name, which is put into `host`, and with the port
 * into `endpoint`. `dynamic`: what every dynamic rendezvous reads. */
int mu_host_from_params(const struct muster_rdzv_params *params, const struct mu_dynamic_config *dynamic,
                        char host[static MU_HOST_MAX], char endpoint[static MU_ENDPOINT_MAX],
                        struct mu_host_config *ret_config, struct muster_error *reterr);
/* `owned`: for each, it is this machine's. */
struct mu_host_addresses mu_host_addresses(const union mu_addr *addrs, const bool *owned, unsigned count);

void mu_host_init(struct mu_host *h, const struct mu_host_config *config);
/* The same state and event give the same effects. `out` is overwritten. An answer that is not waited for is dropped. */
void mu_host_step(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out);
uint64_t mu_host_deadline_ms(const struct mu_host *h); /* when TIME is to be told; UINT64_MAX: never */

/* Where this node connects to the store, and where its workers do. */
const char *mu_host_dial_name(const struct mu_host *h);
const char *mu_host_workers_name(const struct mu_host *h);
uint16_t mu_host_port(const struct mu_host *h);
const char *mu_host_dial_endpoint(const struct mu_host *h, char text[static MU_ENDPOINT_MAX]); /* both */
const char *mu_host_published(const struct mu_host *h); /* this node, as the host that it tells others of; NULL: no */

/* It has been found, and this node is in it, or moves from its engine to its document: others may be asked of it. */
bool mu_host_is_known(const struct mu_host *h);

/* The document's key in the store that we host, which the caller frees; NULL: no memory. */
char *mu_host_document_key(const char *run_id);
/* Somebody has put this there; true: no node of a rendezvous writes that, and *ret_say (borrows `text`) is said. Each
 * node that reads it says what it found, but only the host knows the writer. NULL: there is none. */
bool mu_host_overwritten(const union mu_addr *writer, struct mu_slice value, char text[static MU_HOST_SAY_MAX],
                         struct mu_host_effect *ret_say);

/* Who is connected to a store that this node may host. */
enum mu_host_company {
    MU_HOST_NO_STORE, /* it hosts none */
    MU_HOST_ALONE,    /* no other process */
    MU_HOST_OTHERS,
};

/* What a node does next that stays until the others are gone. */
enum mu_host_linger {
    MU_HOST_AWAIT_RENDEZVOUS, /* looks again when nobody else is connected to that store */
    MU_HOST_AWAIT_WORKERS,
    MU_HOST_GO,   /* no other process needs it */
    MU_HOST_STAY, /* it hosts no store, so nothing tells it that they are gone */
};

/* By both stores as they are now: an agent may come back to the one while the other is waited for. */
enum mu_host_linger mu_host_linger(enum mu_host_company rendezvous, enum mu_host_company workers);
/* The first time, when only this is known: which store it hosts. It takes for granted that others are connected, and so
 * never says GO: the caller is not called back from inside of its own call. */
enum mu_host_linger mu_host_linger_first(bool rendezvous, bool workers);

static inline bool mu_host_hosts(const struct mu_host *h) /* the store is in this process */
{
    return h->state >= MU_HOST_CONNECTING && h->place == MU_HOST_OWN;
}

#endif
