/* The classic etcd rendezvous in a storm: many machines (and members that do as PyTorch does), one simulated etcd,
 * virtual time. classic_etcd.c: the server; classic_stock.c: PyTorch's side; classic_check.c: what must always hold;
 * sim_classic.c: everything else. */
#ifndef CLASSIC_SIM_H
#define CLASSIC_SIM_H

#include "base/rng.h"
#include "rdzv/classic.h"

#include <stdio.h>
#include <stdlib.h>

#define NODES_MAX 10
#define SEEN_MAX 32
#define JOB "/p/run_job"
#define ACTIVE JOB "/rdzv/active_version"
#define NOTICES "/p/muster/waiting"

#define FAULTS(X)                                                                                                      \
    X(KILL, "kill")         /* a node dies; another one may come in its place */                                       \
    X(PAUSE, "pause")       /* a node does nothing for a while */                                                      \
    X(CUT, "cut")           /* a node does not reach the server for a while */                                         \
    X(AWAY, "away")         /* nobody does; TTLs go on */                                                              \
    X(LOST, "lost")         /* an answer is lost, or the request itself is */                                          \
    X(LATE, "late")         /* a request is carried out long after its sender has given up */                          \
    X(SLOW, "slow")         /* answers take up to 3 s */                                                               \
    X(WIPE, "wipe")         /* the server loses everything */                                                          \
    X(CLEARED, "cleared")   /* the server remembers few events */                                                      \
    X(STOCK, "stock")       /* some nodes are PyTorch's */                                                             \
    X(FAILING, "failing")   /* workers fail: nodes join anew */                                                        \
    X(LEAVE, "leave")       /* nodes leave, and may come back */                                                       \
    X(TIGHT, "tight")       /* short join timeouts */                                                                  \
    X(CLOSE, "close")       /* somebody closes it, in the end or before */                                             \
    X(LIMITS, "limits")     /* nodes have different limits; only if wished for, as what follows */                     \
    X(LAZY, "lazy")         /* timers fire late */                                                                     \
    X(STRANGER, "stranger") /* somebody writes nonsense to the job's keys; then no PyTorch, and nothing is lost */

enum fault {
#define X(name, text) F_##name,
    FAULTS(X)
#undef X
        FAULTS_COUNT,
    CHOSEN_COUNT = F_LIMITS /* those before are chosen by the seed */
};

struct kv_node { /* of a listing, or of the server */
    char key[128];
    char *value;
    bool dir;
    uint64_t expires_ms, created, modified;
    uint64_t life; /* who wrote it */
};

struct reply {
    int code; /* as in struct mu_classic_event */
    bool unsure;
    char *value;
    char key[128];
    uint64_t modified, index;
    struct kv_node *nodes;
    size_t nodes_count;
};

struct seen { /* documents, the last ones */
    uint64_t hashes[SEEN_MAX];
    size_t count;
};

/* A request under way: a copy of everything. */
struct request {
    uint64_t id;
    unsigned slot;
    uint64_t life;
    bool is_stock;
    int who; /* a stock member's own mark */
    enum mu_classic_kind kind;
    char key[128], *value, *prev_value;
    bool dir, refresh, recursive, once, has_value, must_exist, must_not_exist;
    uint64_t prev_index, wait_index, sent_ms, give_up_ms;
    int64_t ttl_s;
    struct seen seen; /* by its sender, when it was sent */
    bool is_coming;   /* the server will get it */
    uint64_t epoch;   /* when the server had it */
    bool settled;     /* its sender has its answer, or does not want one */
    bool watching;    /* it waits at the server */
    bool delivered;
    struct reply reply;
};

struct stock; /* classic_stock.c */

struct node {
    unsigned slot;
    uint64_t life; /* 0: dead */
    bool is_stock;
    struct mu_classic *classic;
    struct stock *stock;
    uint64_t timer_ms; /* the earliest that was pushed */
    uint64_t paused_until_ms, cut_until_ms, deed_ms;
    /* What it believes. */
    bool joining, leaving, member, out, saw_closed;
    int64_t version, rank, count;
    uint64_t epoch, marks_epoch; /* of its group; of the last marks that it read */
    uint64_t rejoin_ms;          /* 0: no */
    uint64_t stops_until_ms;     /* its workers take so long to stop, unless they are killed */
    struct seen seen;
    uint64_t quit_ms;    /* it takes back what it can since then; 0: no */
    bool in_trouble;     /* a request for that has failed */
    uint64_t late_ms;    /* when a write of its own was carried out that it had given up; 0: never */
    bool in_doubt;       /* the answer of an announcement, or of taking one back, was lost */
    uint64_t excused_ms; /* when it last ended without having taken everything back; 0: never */
};

enum happening { H_REQUEST, H_REPLY, H_TIMEOUT, H_TIMER, H_EXPIRE, H_DEED, H_BIRTH, H_WIPE };

struct sim {
    uint64_t seed, now_ms, order, lives, steps;
    struct mu_rng rng;
    bool on[FAULTS_COUNT];
    bool calm, trace;
    unsigned nodes_count;
    int64_t nodes_min, nodes_max;
    uint64_t join_ms, last_call_ms;
    uint64_t away_until_ms;
    struct node nodes[NODES_MAX];
    uint64_t epoch;    /* how often everything was lost */
    uint64_t wiped_ms; /* for the last time */
    bool closed;       /* the document is */
};

extern struct sim w;

uint64_t below(uint64_t bound);
bool chance(unsigned percent);
void push(uint64_t at_ms, enum happening what, unsigned slot, uint64_t life, struct request *request);
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The server. */
void etcd_reset(void);
void etcd_wipe(void);
void etcd_apply(struct request *request); /* fills in the reply, or leaves it watching */
void etcd_expire(void);                   /* what is over by now */
void etcd_forget(struct request *request);
void etcd_scribble(const char *key, const char *value);     /* a stranger does */
const char *etcd_some_key(const char *dir, uint64_t which); /* one of those below it; NULL: there is none */
const char *etcd_value(const char *key);                    /* NULL: none */
uint64_t etcd_life(const char *key);                        /* who wrote it; 0: nobody */
size_t etcd_count_below(const char *dir);                   /* keys */
void on_changed(const char *key, const struct request *by); /* the simulator's: somebody wrote; NULL: it has expired */
void deliver(struct request *request);                      /* a watching request has its answer */
int lost_code(const struct request *request, int code);     /* what its sender hears when the connection has ended */

/* Requests of nodes. Takes the request. */
struct request *new_request(const struct node *node, enum mu_classic_kind kind, const char *key);
void send_request(struct request *request, uint64_t timeout_ms);
extern struct request **requests; /* of this run, in order */
extern size_t requests_count;

/* What must hold. */
void check_reset(void);
void check_saw(struct node *node, const char *text);             /* it has got this document */
void check_replaces(const struct request *by, const char *text); /* this document; NULL: there was none */
void check_document(const struct request *by);                   /* that is there now */
void name_of(const struct node *node, char *text, size_t room);  /* of its marks */
bool is_another_s_rank(const struct node *node);                 /* by the mark that is there */
void check_joined(const struct node *node);
void check_ended(struct node *node);
bool is_notice(const char *key);
void check_notices(void); /* there are not too many */
void check_named(void);   /* those who wait know each other by name */

/* PyTorch's side. */
struct stock *stock_new(struct node *node);
void stock_free(struct stock *stock);
void stock_reply(struct node *node, const struct request *request);
void stock_time(struct node *node);
void stock_workers_fail(struct node *node); /* it joins anew */
bool stock_is_member(const struct stock *stock);

void node_joined(struct node *node, int64_t version, int64_t rank, int64_t count);
void node_timer(struct node *node, uint64_t at_ms);

char *text_of(struct mu_slice slice); /* a copy with a NUL behind it */

#endif
