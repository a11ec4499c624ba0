/* Where the workers of a round meet: rank 0 opens a store for them (or only finds a free port) and publishes address
 * and port under the round's keys in the rendezvous store; the other nodes read them there. Pure; one machine for a
 * handler's life, started anew for every round it has joined. In a round without PyTorch members the keys bear its tag:
 * a store that has lost its data counts rounds anew, and the pair of an older round must not be taken for this one's.
 *
 *   rank 0:  OPENING --listening--> CHECKING itself --> PUBLISHING_ADDR --> PUBLISHING_PORT --> DONE
 *            (a free port only: no check)
 *   others:  AWAITING_ADDR --> AWAITING_PORT --> DONE
 *                 |  ^ rank 0 is PyTorch and this round's keys do not come: it keeps to an earlier pair
 *                 v  |
 *            LOOKING_BACK
 *   others, where the user has named another pair:  AWAITING_PORT --> REACHING --> DONE
 *   any of these, at the deadline or after an error that trying again does not mend: FAILED
 *
 * - No PyTorch member so far: a new port and a fresh table every round. A PyTorch member keeps the first pair that it
 *   saw for ever: after the first such member there is one listener, with a fresh table every round.
 * - Without an agent's store, and with PyTorch before 2.4: an address and a free port; worker 0 will listen there.
 * - With PyTorch 2.5 the workers meet in the rendezvous store, if it is a TCPStore: DONE at once, nothing is published.
 * - The user may have named address and port (struct mu_boot_master). Rank 0's store listens there, and rank 0
 *   publishes them. Another node whose user named them waits until rank 0 has published, and then uses the user's pair:
 *   REACHING checks that a store is there.
 * - A rank 0 of PyTorch before 2.4 publishes later, in a step of its agent's, which needs ours: DONE with an empty
 *   address and port 0. */
#ifndef MU_HANDLER_BOOT_H
#define MU_HANDLER_BOOT_H

#include "base/arena.h"
#include "base/error.h"
#include "base/slice.h"
#include "handler/bind.h"
#include "kv/kv.h"

#include <stdint.h>

#define MU_BOOT_TIMEOUT_MS 60000   /* for all of it, if the config says nothing else */
#define MU_BOOT_STOCK_WAIT_MS 1000 /* for this round's keys of a PyTorch rank 0, before we look at earlier rounds */
#define MU_BOOT_ROUNDS_MAX 8       /* rounds that are looked at then */
#define MU_BOOT_RETRY_MS 500       /* after a request that failed because the store was away */
/* In a rendezvous that may have so many nodes the workers' store has a thread of its own: thousands of workers that
 * begin at once would keep the rendezvous, which is on the agent's loop, waiting (docs/PERFORMANCE.md). */
#define MU_BOOT_APART_NODES 512
#define MU_BOOT_CHECK_MS 5000 /* for one connection to the workers' store */
/* A wait cannot be cancelled, and blocks its connection until it times out: so waits are short, and repeated. */
#define MU_BOOT_GET_MS 2000
#define MU_BOOT_PORT_WAIT_MS 5000 /* for the user's port, which another process may be about to give up */
#define MU_BOOT_ADDR_MAX 256      /* with its NUL; as in struct muster_store_info */
#define MU_BOOT_NODE_MAX 320      /* longer texts of rank 0 are cut */

#define MU_BOOT_STATES(X)                                                                                              \
    X(IDLE, "idle")                                                                                                    \
    X(OPENING, "open the worker store")                                                                                \
    X(CHECKING, "connect to our own worker store")                                                                     \
    X(PUBLISHING_ADDR, "publish MASTER_ADDR")                                                                          \
    X(PUBLISHING_PORT, "publish MASTER_PORT")                                                                          \
    X(AWAITING_ADDR, "read MASTER_ADDR")                                                                               \
    X(AWAITING_PORT, "read MASTER_PORT")                                                                               \
    X(LOOKING_BACK, "look for an earlier MASTER_PORT")                                                                 \
    X(REACHING, "connect to the worker store")                                                                         \
    X(DONE, "done")                                                                                                    \
    X(FAILED, "failed")

enum mu_boot_state {
#define X(name, text) MU_BOOT_##name,
    MU_BOOT_STATES(X)
#undef X
};

enum mu_boot_event_type {
    MU_BOOT_ON_START,          /* start: a round was joined. Whatever was under way for another one is dropped */
    MU_BOOT_ON_STOP,           /* the round is over for us: nothing is under way any more */
    MU_BOOT_ON_LISTENING,      /* OPEN_STORE's, RENEW_STORE's, OPEN_AGENTS' and FREE_PORT's answer: port, plan */
    MU_BOOT_ON_LISTEN_FAILED,  /* ... or error */
    MU_BOOT_ON_CHECKED,        /* CHECK_SELF's and REACH's answer: it worked; else REQUEST_FAILED */
    MU_BOOT_ON_GOT,            /* GET's answer: value */
    MU_BOOT_ON_MISSING,        /* ... or the key is not there yet after wait_ms */
    MU_BOOT_ON_FOUND,          /* CHECK's answer: found */
    MU_BOOT_ON_SET,            /* SET's answer */
    MU_BOOT_ON_REQUEST_FAILED, /* CHECK_SELF, REACH, GET, CHECK, SET: error */
    MU_BOOT_ON_TIME,
};

struct mu_boot_start { /* borrowed */
    int64_t round, rank;
    uint64_t tag;       /* of its members (rdzv/round_keys.h); 0: rounds of one number are one round */
    bool all_ours;      /* no PyTorch member in the round */
    bool rank0_ours;    /* rank 0 is one of us */
    bool old_dialect;   /* PyTorch's agents are 1.13 to 2.3 */
    const char *met_at; /* where the workers meet anyway, with met_port: the rendezvous store. NULL: to be agreed on */
    uint16_t met_port;
    struct mu_slice rank0; /* rank 0 as text: for errors, and to see that it moved */
    /* For rank 0 only. */
    const char *own_addr; /* our end of the connection to the rendezvous store, numeric; NULL or empty: not known */
    const char
        *accepted_on; /* where our own server accepted a member that came from elsewhere; NULL: none, no server */
    bool elsewhere;   /* a member has another host name than ours */
};

struct mu_boot_event { /* borrows what it points to */
    enum mu_boot_event_type type;
    uint64_t now_ms;
    uint64_t id; /* of the effect that is answered; an answer to another one is dropped */
    const struct mu_boot_start *start;
    uint16_t port;
    const struct mu_bind_plan *plan; /* by which a new store listens; NULL: none was opened */
    struct mu_slice value;
    bool found;
    const struct muster_error *error;
};

enum mu_boot_effect_type {
    /* These four are answered by LISTENING or LISTEN_FAILED. port: the user's; 0: any free one. */
    MU_BOOT_DO_OPEN_STORE,  /* addr, port: the workers' store, which the agents use, too; listens for addr (bind.h) */
    MU_BOOT_DO_RENEW_STORE, /* the workers' store that is there gets a fresh table */
    MU_BOOT_DO_OPEN_AGENTS, /* addr: a store for the agents alone, on any port; then as FREE_PORT */
    MU_BOOT_DO_FREE_PORT,   /* port: for worker 0. See that it is free by binding and closing */
    /* No answer: */
    MU_BOOT_DO_CLOSE_STORE,  /* the workers' store that is there, or being opened */
    MU_BOOT_DO_CLOSE_AGENTS, /* the agents' own store, if it is there */
    /* CHECKED or REQUEST_FAILED: */
    MU_BOOT_DO_CHECK_SELF, /* addr, port, wait_ms: listen for it as well, connect to ourselves there and hang up */
    MU_BOOT_DO_REACH,      /* addr, port, wait_ms: connect to the store there and hang up */
    MU_BOOT_DO_GET,        /* key, wait_ms: GOT, MISSING or REQUEST_FAILED */
    MU_BOOT_DO_CHECK,      /* key, wait_ms: FOUND (does not wait for the key) or REQUEST_FAILED */
    MU_BOOT_DO_SET,        /* key, value, wait_ms: SET or REQUEST_FAILED */
    MU_BOOT_DO_DONE,       /* addr, port; an empty address and 0: not known yet, see above */
    MU_BOOT_DO_FAIL,       /* error */
    MU_BOOT_DO_SAY,        /* level, text: to the user */
};

struct mu_boot_effect { /* borrows from the machine, until its next step */
    enum mu_boot_effect_type type;
    uint64_t id;
    uint64_t wait_ms; /* above 0 */
    struct mu_slice key, value;
    const char *addr;
    uint16_t port;
    bool apart; /* OPEN_STORE: on a thread of its own */
    enum muster_log_level level;
    const char *text;
    const struct muster_error *error;
};

#define MU_BOOT_EFFECTS_MAX 4

struct mu_boot_effects {
    struct mu_boot_effect items[MU_BOOT_EFFECTS_MAX];
    unsigned count;
};

/* What the user wants workers to find as MASTER_ADDR and MASTER_PORT. */
struct mu_boot_master {
    char addr[MU_BOOT_ADDR_MAX]; /* empty: what is found out */
    uint16_t port;               /* 0: what is found out */
};

/* Refuses what cannot be the name or address of a host. */
int mu_boot_master_set_addr(struct mu_boot_master *master, const char *addr, struct muster_error *reterr);
/* The options `master_addr` and `master_port`. */
int mu_boot_master_from_params(const struct muster_rdzv_params *params, struct mu_boot_master *ret_master,
                               struct muster_error *reterr);

/* Whether a line of /etc/hosts gives the name localhost to a loopback address. */
bool mu_boot_is_localhost(const char *line);

struct mu_boot_config { /* copied */
    const char *run_id;
    const char *local_addr; /* NULL or empty: none. If there is one, it is what rank 0 publishes, and nothing else */
    const char *hostname;   /* of this machine: published if no better address is known. NULL: it has none */
    bool no_localhost;      /* this machine does not know the name localhost */
    struct mu_boot_master master;
    struct mu_bind bind; /* where the user wants us to listen, and for whom */
    bool use_agent_store;
    bool agents_store;   /* rank 0 has a store for the agents, also where worker 0 is to host the workers' */
    int64_t nodes_max;   /* 1: publish the loopback's name; 0: not known. See also MU_BOOT_APART_NODES */
    bool at_localhost;   /* the rendezvous is at localhost: the same, unless a node of another machine is in */
    uint64_t timeout_ms; /* 0: MU_BOOT_TIMEOUT_MS */
};

struct mu_boot_past { /* rank 0 of a round that we were in */
    int64_t round;
    char rank0[MU_BOOT_NODE_MAX];
};

enum mu_boot_store {
    MU_BOOT_STORE_NONE,
    MU_BOOT_STORE_OPENING, /* OPEN_STORE was wanted, and nothing was heard of it yet */
    MU_BOOT_STORE_OPEN,
};

struct mu_boot {
    enum mu_boot_state state;
    struct mu_arena texts; /* these are in it */
    const char *run_id;
    struct mu_bind bind;
    char *key; /* room for the longest one */
    size_t key_room;
    char local_addr[MU_BOOT_ADDR_MAX], hostname[MU_BOOT_ADDR_MAX];
    const char *loopback_name; /* what this machine calls itself */
    struct mu_boot_master master;
    bool use_agent_store, agents_store, standalone, at_localhost, apart;
    uint64_t timeout_ms;
    /* Since the beginning. */
    bool stock_seen;          /* there was a PyTorch member in a round that we were in */
    enum mu_boot_store store; /* the workers', of this node */
    bool agents_wanted;       /* OPEN_AGENTS was, in this round or the last: that store may be there */
    struct mu_boot_past past[MU_BOOT_ROUNDS_MAX];
    size_t past_count; /* put there so far; the last MU_BOOT_ROUNDS_MAX are kept */
    /* Of this round. */
    int64_t round, asked_round;
    uint64_t tag; /* in the names of its keys; 0: PyTorch's names */
    bool rank0_ours, looked_back;
    bool listens;                   /* rank 0's agent has the workers' store; else worker 0 has it */
    enum mu_boot_effect_type opens; /* what OPENING asks for */
    char rank0[MU_BOOT_NODE_MAX];
    uint64_t start_ms, deadline_ms,
        retry_ms;                    /* retry_ms: when the request is made again; UINT64_MAX: it is under way */
    uint64_t id;                     /* of the request under way; ids only grow */
    char addrs[5][MU_BOOT_ADDR_MAX]; /* this node's, to be tried in this order */
    size_t addrs_count, addr_index;
    char addr[MU_BOOT_ADDR_MAX];
    uint16_t port;
    char port_text[8];
    struct muster_error last; /* of the request that is being made again; code 0: none */
    struct muster_error error;
    char said[1024];
};

/* MUSTER_EINVAL: local_addr is too long. MUSTER_ENOMEM. */
int mu_boot_init(struct mu_boot *boot, const struct mu_boot_config *config, struct muster_error *reterr);
void mu_boot_done(struct mu_boot *boot);

/* Same state, same event, same effects, always. Cannot fail. `out` is overwritten. */
void mu_boot_step(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out);
uint64_t mu_boot_deadline_ms(const struct mu_boot *boot); /* when TIME is wanted; UINT64_MAX: never */

const char *mu_boot_state_text(enum mu_boot_state value);

/* GET, CHECK or SET as a request to the rendezvous store, and the answer of that. */
enum mu_kv_kind mu_boot_kv_kind(enum mu_boot_effect_type type);
struct mu_boot_event mu_boot_answer(uint64_t id, const struct mu_kv_request *request); /* borrows */

/* An answer that comes while a step's effects are performed is heard when they are done. There is one at most: one
 * request is under way.
 *
 *   IDLE --hear: step now--> STEPPING --hear: later--> ANSWERED --next: step now--> STEPPING
 *     ^-------next: no more------+ */
enum mu_boot_inbox_state { MU_BOOT_INBOX_IDLE, MU_BOOT_INBOX_STEPPING, MU_BOOT_INBOX_ANSWERED };

struct mu_boot_inbox { /* zeroed memory is IDLE */
    enum mu_boot_inbox_state state;
    struct mu_boot_event answer;
    struct muster_error error;
};

/* True: step it now, and then what `next` returns, as long as that is true. Copies the error; the rest is borrowed. */
bool mu_boot_inbox_hear(struct mu_boot_inbox *inbox, const struct mu_boot_event *event);
bool mu_boot_inbox_next(struct mu_boot_inbox *inbox, struct mu_boot_event *ret_event);

int mu_boot_told_code(int code); /* of a FAIL, as the owner of a rendezvous is told it */

/* Where to listen for the address of an effect may have to be looked up, and only one look-up is under way at a time:
 *
 *   FREE --want--> BUSY --answered--> FREE, with the plan
 *                   |  \--want--> NEXT --answered--> BUSY, asked for the newest
 *            forget v               | forget
 *                 STALE <-----------+
 *                   | --want--> NEXT
 *                   +--answered--> FREE, and the plan is dropped */
enum mu_boot_lookup { MU_BOOT_LOOKUP_FREE, MU_BOOT_LOOKUP_BUSY, MU_BOOT_LOOKUP_STALE, MU_BOOT_LOOKUP_NEXT };

bool mu_boot_lookup_want(enum mu_boot_lookup *lookup); /* true: ask now; false: once the other one is answered */
void mu_boot_lookup_forget(enum mu_boot_lookup *lookup);
/* Returns what it was. BUSY: the plan is wanted. NEXT: ask now for what is wanted. */
enum mu_boot_lookup mu_boot_lookup_answered(enum mu_boot_lookup *lookup);

#endif
