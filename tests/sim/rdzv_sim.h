/* The rendezvous in a storm: what the parts of the simulator share. One process, one thread, virtual time, one seed.
 *
 *   sim_rdzv.c     what the seed decides, the storm, the healing, the command line
 *   rdzv_clock.c   virtual time, the queue of what happens next, the trace, what a failure prints
 *   rdzv_store.c   the store: one document by compare-and-set, bell, turns, digests; how it fails
 *   rdzv_node.c    a node of ours: the program's own machine, and an owner above it that plays the agent
 *   rdzv_stock.c   a node as PyTorch behaves, written independently of our rules
 *   rdzv_check.c   what must hold */
#ifndef RDZV_SIM_H
#define RDZV_SIM_H

#include "base/rng.h"
#include "rdzv/pickle.h"
#include "rdzv/rdzv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    IDS_MAX = 1024,    /* lives: each is an identity of its own, unless it takes over its predecessor's */
    TRACE_LINES = 200, /* of the end of a failed run */
    TRACE_TEXT = 240,
    AT_ONCE_MAX = 20000, /* events at one instant: more is a loop that never waits */
    CONNS = 3,           /* main, bell, wait */
};

#define MS UINT64_C(1000) /* virtual time is in microseconds */
#define SECOND UINT64_C(1000000)

/* ---- What can go wrong ---- */

#define FAULTS(X)                                                                                                      \
    X(KILL, "kill")       /* a node vanishes, between any two of its effects */                                        \
    X(REBIRTH, "rebirth") /* and comes back as a new identity */                                                       \
    X(SAME, "same")       /* with its old name and pid; PyTorch's with its whole old identity */                       \
    X(PAUSE, "pause")     /* longer than the death age: nothing reaches a node, then everything */                     \
    X(CLOCK, "clock")     /* wall clocks differ, by up to an hour */                                                   \
    X(JUMP, "jump")       /* and are set while nodes run */                                                            \
    X(LOST, "lost")       /* the reply to a request that was carried out is lost */                                    \
    X(REFUSED, "refused") /* a request fails without being carried out */                                              \
    X(REORDER, "reorder") /* replies overtake each other */                                                            \
    X(STALE, "stale")     /* what was reported as failed, or replaced, is answered later all the same */               \
    X(SLOW, "slow")       /* the store takes its time */                                                               \
    X(OUTAGE, "outage")   /* the store is away and comes back with its data */                                         \
    X(WIPE, "wipe")       /* or without them */                                                                        \
    X(HOSTED, "hosted")   /* the store lives and dies with a node */                                                   \
    X(CUT, "cut")         /* one node's way to the store is cut for a while */                                         \
    X(LIMITS, "limits")   /* nodes have different limits */                                                            \
    X(LATE, "late")       /* some come late */                                                                         \
    X(LEAVE, "leave")     /* some leave */                                                                             \
    X(FLAP, "flap")       /* and come again */                                                                         \
    X(SPARES, "spares")   /* there are more nodes than the maximum */                                                  \
    X(CLOSE, "close")                                                                                                  \
    X(STOCK, "stock")       /* some nodes are PyTorch */                                                               \
    X(OLD, "old")           /* the dialect of 1.13: no spares */                                                       \
    X(PLAIN, "plain")       /* a back end without bell and turns */                                                    \
    X(DEAF, "deaf")         /* some rings of the bell wake nobody */                                                   \
    X(LAZY, "lazy")         /* timers fire late */                                                                     \
    X(MIDDLE, "middle")     /* the dialect of 2.3 to 2.5: spares, and times without a zone */                          \
    X(STRANGER, "stranger") /* somebody writes other things to the document, the bell and the turns */                 \
    X(FORGER, "forger")     /* or a document of a lower or higher round */

enum fault {
#define X(name, text) F_##name,
    FAULTS(X)
#undef X
        FAULTS_COUNT,
};

/* ---- The document's history ---- */

struct version { /* a value that the key had */
    unsigned refs;
    bool foreign;         /* it is no document */
    unsigned incarnation; /* of the store */
    struct mu_buf bytes;
    struct mu_doc doc;
    uint16_t *ids; /* of the members, in the document's order */
    uint64_t born_us;
};

/* ---- Requests ---- */

struct request {
    enum mu_rdzv_effect_type type;
    unsigned slot, conn;
    uint64_t life, id;
    struct mu_buf bytes, token;
    bool has_token;
    int64_t number; /* bell, turn or round */
    uint64_t wait_us, sent_us;
    bool sent_stale; /* its failure was reported already */
    /* Answer. */
    bool failed, gone, found, written;
    struct version *version;
    unsigned incarnation; /* in which it was carried out */
    int64_t bell, turn, turns_done;
    struct request *next; /* parked, waiting for a turn, or free */
};

/* ---- Nodes ---- */

struct sighting { /* of one identity, by one observer */
    int64_t heartbeat_us;
    uint64_t since_ms; /* since when it has been this value, without a gap in looking; the observer's clock */
    uint64_t last_ms;  /* when it was last seen at all */
    uint64_t life;     /* of the observer */
};

enum asked { ASKED_NOTHING, ASKED_JOIN, ASKED_LEAVE };
enum deed { DEED_NONE, DEED_JOIN, DEED_LEAVE, DEED_CLOSE, DEED_LOOK, DEED_STOP };

struct stock; /* rdzv_stock.c */

struct node {
    unsigned slot;
    bool alive, stock, ended; /* ended: of its own will, and does not come back */
    uint64_t life;
    unsigned id;
    char name[16]; /* in the trace */
    char host[16]; /* of its identity */
    int64_t pid;
    struct mu_node me;
    struct mu_rdzv_settings settings;
    int64_t wall_offset_us;
    uint64_t mono_offset_us;
    uint64_t paused_until_us, cut_until_us;
    uint64_t impaired_us; /* when it last was paused, cut off or refused */
    uint64_t down_ms;     /* by its clock: when it was told that the store is away */
    bool refused;         /* its last request that failed was */
    uint64_t hindered_us; /* the same, but for outages of the store */
    uint64_t conn_up_us[CONNS], conn_down_us[CONNS];

    /* Ours. */
    struct mu_rdzv *rdzv;
    uint64_t timer_us, timer_generation;
    uint64_t main_id; /* the read, write or settling under way */
    enum asked asked;
    uint64_t asked_us;
    bool looking; /* asked for a LOOK */
    uint64_t looking_us;
    enum deed deed; /* that the owner does next */
    uint64_t deed_us;
    bool told_closed, down, closing;
    uint64_t closing_us;
    int steps_left;                  /* until it is killed; -1: it is not */
    bool member;                     /* JOINED, and neither REMOVED nor on the way out */
    size_t told_lost;                /* so many, in this round */
    bool told_waiting, told_removed; /* in this round */
    int64_t joined_round;
    uint64_t joined_us;
    bool held_down;     /* the round before was short */
    size_t world;       /* of w.worlds: that of its last round */
    int64_t last_round; /* of the last JOINED in last_incarnation; -1: none */
    unsigned last_incarnation;
    bool saw_closed;
    unsigned saw_closed_incarnation;
    unsigned settled_incarnation; /* in which it looked last, or put its digest down */
    uint64_t broken_us;           /* since when a peer of its world has not been there */
    uint64_t dropped_us;          /* since when the document of its round is without it; 0: it is not */
    uint64_t spare_us;            /* when it last was a spare */
    uint64_t spare_seen_us;       /* when it last saw that */

    /* What it has seen. */
    struct version *seen; /* NULL: nothing, or that there is no document */
    bool seen_any;
    uint64_t look_ms; /* the last look, by its own clock */
    struct sighting *sightings;
    bool has_deadline; /* the last call it sees, and since when */
    int64_t deadline_us;
    uint64_t deadline_since_ms;
    uint64_t write_ms; /* when it sent its last write */

    /* What it costs: each document that came from the store, also as the answer of a write that was lost. */
    uint64_t reads, read_bytes;

    struct stock *model; /* PyTorch's */
};

struct world_seen { /* the world of a round, as the first to join it was told */
    unsigned incarnation;
    int64_t round;
    size_t count;
    uint16_t *ids;
};

/* ---- Events ---- */

enum event_type {
    EV_ARRIVE, /* request at the store */
    EV_LOOK,   /* the second half of a read */
    EV_ANSWER, /* request back at the node */
    EV_TIMER,  /* node */
    EV_OWNER,  /* node: its owner does something */
    EV_STOCK,  /* node: the model goes on */
    EV_BIRTH,  /* slot */
    EV_TURN,   /* request: has waited long enough for its turn */
    EV_MISHAP, /* the next fault */
    EV_STORE,  /* the store comes back */
    EV_CHECK,
    EV_JOB, /* of the simulator of whole jobs: life is a name for what is due */
};

struct event {
    uint64_t at_us, order;
    enum event_type type;
    unsigned slot;
    uint64_t life;
    struct request *request;
};

/* ---- The world ---- */

struct sim {
    uint64_t seed;
    struct mu_rng rng;
    uint64_t now_us, order, lives;
    struct event *heap;
    size_t heap_len, heap_room;
    bool tracing, replaying, calm, crowd, checking;
    char (*trace)[TRACE_TEXT];
    size_t trace_len;

    bool on[FAULTS_COUNT];
    unsigned percent[FAULTS_COUNT]; /* how often, where a fault is a matter of chance */
    struct mu_rdzv_settings settings;
    struct mu_doc_dialect dialect;
    unsigned id_mask;
    uint64_t slow_us;
    bool one_stock_clock;
    int host_slot; /* in which the store is; -1: none */
    uint64_t storm_us;

    struct node *nodes;
    void (*hear)(struct node *node, const struct mu_rdzv_effect *effect); /* instead of the owner; NULL: the owner */
    unsigned nodes_count, ids_count, births;
    uint64_t last_write_us[IDS_MAX]; /* when the heartbeat of each identity last changed */
    uint64_t forged_us;              /* when a stranger last wrote a document */
    uint64_t spoilt_us[2];           /* and something else: the last time, and the time before */
    uint64_t too_many_us;            /* when a round was last full while one of PyTorch's stood in the wait list */
    struct world_seen *worlds;
    size_t worlds_len, worlds_room;

    /* Figures. */
    uint64_t reads, writes, writes_lost, steps, events, joins;
};

extern struct sim w;
extern const char *const fault_names[FAULTS_COUNT];

/* rdzv_clock.c */
void push(uint64_t at_us, enum event_type type, unsigned slot, uint64_t life, struct request *request);
bool pop(struct event *ret_event);
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void fail(const char *invariant, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define EXPECT(invariant, what, ...)                                                                                   \
    do {                                                                                                               \
        if (!(what))                                                                                                   \
            fail(invariant, __VA_ARGS__);                                                                              \
    } while (0)
#define TELL(...)                                                                                                      \
    do {                                                                                                               \
        if (w.tracing)                                                                                                 \
            tell(__VA_ARGS__);                                                                                         \
    } while (0)
uint64_t below(uint64_t bound);
bool chance(unsigned percent);
bool fault(enum fault fault); /* it is on, the storm has not ended, and now it happens */
void replay_setup(char **argv);

/* rdzv_store.c */
void store_begin(void);
void store_end(void);
void store_arrive(struct request *request);
void store_look(struct request *request);
void store_turn_out(struct request *request);
void store_down(bool gone, bool wipe);
void store_up(void);
bool store_is_up(void);
bool store_is_gone(void); /* it is not up, and connections are refused */
uint64_t store_up_for_us(void);
unsigned store_incarnation(void);
const struct version *store_document(void); /* NULL: there is none */
void store_meddle(void);                    /* a stranger writes something */
unsigned store_wipes(void); /* how often its data were lost; an incarnation ends also when a stranger writes */
struct request *request_new(struct node *node, enum mu_rdzv_effect_type type, unsigned conn);
void request_send(struct request *request);
void request_free(struct request *request);
struct version *version_keep(struct version *version);
void version_drop(struct version *version); /* NULL is fine */

/* rdzv_node.c */
void node_birth(struct node *node);
void node_die(struct node *node);
void node_answer(struct node *node, struct request *request);
void node_timer(struct node *node);
void node_owner(struct node *node);
void node_ask(struct node *node, enum mu_rdzv_event_type type);
void node_calm(struct node *node);
uint64_t node_ms(const struct node *node);
int64_t node_wall_us(const struct node *node);
void node_host(struct node *node);
void node_workers(struct node *node);

/* rdzv_stock.c */
void stock_birth(struct node *node);
void stock_die(struct node *node);
void stock_answer(struct node *node, struct request *request);
void stock_wake(struct node *node);
bool stock_astray(const struct node *node);            /* it was dropped, and PyTorch does not notice */
bool stock_in(const struct node *node, int64_t round); /* it has returned for this round, and stays */

/* rdzv_check.c */
unsigned id_of(const struct mu_node *node);
void check_begin(void);
void check_end(void);
void check_write(struct node *author, const struct version *before, const struct version *after);
void check_replaced(const struct version *foreign, const struct version *after);
void check_sent_write(struct node *author, const struct mu_rdzv_effect *effect);
void check_seen(struct node *node, const struct request *request);
void check_tell(struct node *node, const struct mu_rdzv_effect *effect);
void check_world(struct node *node, int64_t round, const uint16_t *ids, size_t count, size_t rank);
void check_every_second(void);
bool check_all_well(void); /* what is to be reached after healing */
const char *why_not_well(void);

#endif
