/* What the files of the engine share; nobody else includes it. See engine.h.
 *   engine.c        jobs, peers and leases; when a lease ends
 *   engine_keys.c   a job's keys, transactions, and who is told of changes */
#ifndef MU_STORE_ENGINE_PARTS_H
#define MU_STORE_ENGINE_PARTS_H

#include "store/engine.h"

#define MU_ENGINE_LEVELS 10 /* each has a quarter of the keys of the one below */

/* A key with its value. Never changed: a put makes another one. Changes that are still to be pushed hold it, too. */
struct mu_engine_item {
    unsigned holders, levels;
    struct mu_list link; /* in lease->items */
    uint64_t lease;      /* 0: none */
    int64_t create, mod;
    size_t key_len, value_len;
    struct mu_engine_item *next[]; /* `levels` of them; behind these the bytes of the key, then of the value */
};

enum mu_engine_lease_state {
    MU_ENGINE_LEASE_FREE,
    MU_ENGINE_LEASE_BOUND,
    MU_ENGINE_LEASE_RESET,
    MU_ENGINE_LEASE_CUT,
    MU_ENGINE_LEASE_STATES_COUNT,
};

struct mu_engine_lease {
    struct mu_bucket_item item; /* in engine->leases, by id */
    struct mu_list of_job;      /* in job->leases */
    struct mu_list of_peer;     /* BOUND: in peer->leases */
    struct mu_list items;       /* its keys */
    struct mu_engine_job *job;
    struct mu_engine_peer *peer; /* BOUND: its connection; else NULL */
    enum mu_engine_lease_state state;
    uint64_t id, ttl_ms;
    uint64_t heard_ms, due_ms; /* in the engine's time */
    bool on_probation;         /* RESET, CUT: it was due already */
    struct mu_engine_last last;
    bool has_secret;
    unsigned char secret[MU_ENGINE_SECRET_BYTES];
};

/* All watches of one prefix, and what they are to be told. */
struct mu_engine_prefix {
    struct mu_list link;    /* in job->prefixes */
    struct mu_list watches; /* of struct mu_engine_watch */
    struct mu_engine_change *changes;
    size_t count, room;
    bool lost; /* there was no room for a change */
    size_t len;
    char bytes[];
};

struct mu_engine_job {
    struct mu_list link;  /* in engine->jobs */
    struct mu_list peers; /* of struct mu_engine_peer */
    size_t peers_count;
    struct mu_list leases; /* of struct mu_engine_lease */
    size_t leases_count;
    uint64_t suspected_until_ms;                    /* in the engine's time; 0: the network is not suspected */
    struct mu_engine_item *first[MU_ENGINE_LEVELS]; /* of its keys, in order: those with one prefix stand together */
    size_t count;
    struct mu_list prefixes; /* of struct mu_engine_prefix */
    size_t prefixes_count;
    uint64_t number;   /* no other job has it */
    size_t outsiders;  /* that wait for the document ... */
    size_t old;        /* ... and speak an old protocol */
    bool only;         /* it takes none */
    bool has_document; /* its nodes have put one into the store ... */
    bool moved;        /* ... or go on there without: who comes first makes one */
    size_t len;
    char run_id[];
};

struct mu_engine {
    struct mu_engine_config config;
    struct mu_budget share; /* at most half of the budget */
    struct mu_list jobs;
    struct mu_buckets leases; /* of all jobs */
    size_t table_charged;     /* what their table takes */
    int64_t revision;
    bool has_changes; /* some prefix has, or has lost some */
    uint64_t openings, jobs_made;
    const char *full; /* what there was no room for when something was last EXHAUSTED */
    size_t leases_count[MU_ENGINE_LEASE_STATES_COUNT];
    uint64_t now_ms;             /* the engine's time */
    uint64_t next_ms;            /* in that time: nothing is to be looked at before; UINT64_MAX: there is no lease */
    bool is_watching;            /* a lease may end: turns are wanted more often */
    uint64_t tick_ms;            /* so long after the last turn the next one is wanted, as was known then */
    uint64_t turned_ms;          /* when the poll of the last turn began, in the caller's time ... */
    uint64_t turn_of_ms;         /* ... and in the engine's */
    uint64_t forgiving_until_ms; /* in the engine's time: the server was paused before */
};

/* engine.c */
/* Zeroed, and charged to the engine's share and the budget; NULL: no memory. */
#define MU_ENGINE_NO_MEMORY "the store's memory is full"
enum mu_engine_code mu_engine_no_room(struct mu_engine *e, const char *what); /* EXHAUSTED */
void *mu_engine_alloc(struct mu_engine *e, size_t bytes);
void mu_engine_release(struct mu_engine *e, void *memory, size_t bytes); /* NULL: nothing */
struct mu_engine_lease *mu_engine_find_lease(const struct mu_engine *e, const struct mu_engine_job *job, uint64_t id);

/* engine_keys.c */
void mu_engine_end_keys(struct mu_engine *e, struct mu_engine_lease *lease, enum mu_engine_end end);
void mu_engine_watches_done(struct mu_engine *e, struct mu_engine_peer *peer);
/* Puts a key of the engine's own, or deletes it (value without data). False: no memory. */
bool mu_engine_put_own(struct mu_engine *e, struct mu_engine_job *job, struct mu_slice key, struct mu_slice value);
void mu_engine_items_done(struct mu_engine *e, struct mu_engine_job *job);

#endif
