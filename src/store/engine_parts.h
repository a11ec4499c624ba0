/* What the files of the engine share; nobody else includes it. See engine.h.
 *   engine.c        jobs, peers and leases; when a lease ends
 *   engine_keys.c   a job's keys, transactions, and who is told of changes */
#ifndef MU_STORE_ENGINE_PARTS_H
#define MU_STORE_ENGINE_PARTS_H

#include "store/engine.h"

/* A key with its value. Never changed: a put makes another one. Changes that are still to be pushed hold it, too. */
struct mu_engine_item {
    unsigned holders;
    struct mu_list link; /* in lease->items */
    uint64_t lease;      /* 0: none */
    int64_t create, mod;
    size_t key_len, value_len;
    char bytes[]; /* of the key, then of the value */
};

enum mu_engine_lease_state { MU_ENGINE_LEASE_FREE, MU_ENGINE_LEASE_BOUND, MU_ENGINE_LEASE_RESET, MU_ENGINE_LEASE_CUT };

struct mu_engine_lease {
    struct mu_bucket_item item; /* in engine->leases, by id */
    struct mu_list of_job;      /* in job->leases */
    struct mu_list of_peer;     /* BOUND: in peer->leases */
    struct mu_list items;       /* its keys */
    struct mu_engine_job *job;
    struct mu_engine_peer *peer; /* BOUND: its connection; else NULL */
    enum mu_engine_lease_state state;
    uint64_t id, ttl_ms;
    uint64_t heard_ms, due_ms;
    bool on_probation; /* RESET, CUT: it was due already */
    struct mu_engine_last last;
    bool has_secret;
    unsigned char secret[MU_ENGINE_SECRET_BYTES];
};

/* All watches of one prefix, and what they are to be told. */
struct mu_engine_prefix {
    struct mu_list link;    /* in job->prefixes */
    struct mu_list watches; /* of struct mu_engine_watch */
    struct mu_engine_change *changes;
    struct mu_engine_item **items; /* whose bytes the changes are */
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
    uint64_t suspected_until_ms;   /* 0: the network is not suspected */
    struct mu_engine_item **items; /* by key: sorted, so that keys with one prefix stand together */
    size_t count, room;
    struct mu_list prefixes; /* of struct mu_engine_prefix */
    size_t prefixes_count;
    size_t len;
    char run_id[];
};

struct mu_engine {
    struct mu_engine_config config;
    struct mu_list jobs;
    struct mu_buckets leases; /* of all jobs */
    int64_t revision;
    bool has_changes; /* some prefix has, or has lost some */
    uint64_t next_ms; /* no lease is due before; UINT64_MAX: there is none */
};

/* engine.c */
struct mu_engine_lease *mu_engine_find_lease(const struct mu_engine *e, const struct mu_engine_job *job, uint64_t id);
/* A job that nobody needs any more is freed. */
void mu_engine_job_drop(struct mu_engine *e, struct mu_engine_job *job);

/* engine_keys.c */
void mu_engine_end_keys(struct mu_engine *e, struct mu_engine_lease *lease, enum mu_engine_end end);
void mu_engine_watches_done(struct mu_engine *e, struct mu_engine_peer *peer);
void mu_engine_items_done(struct mu_engine *e, struct mu_engine_job *job);

#endif
