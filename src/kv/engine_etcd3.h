/* What the fold machine (rdzv/fold.h) asks for, in etcd's words: names of keys, its effects as requests, and the events
 * that answers are to it. Pure; engine_etcd3_uv.c sends and receives. */
#ifndef MU_KV_ENGINE_ETCD3_H
#define MU_KV_ENGINE_ETCD3_H

#include "kv/etcd3.h"
#include "rdzv/fold.h"

#define MU_ENGINE_ETCD3_PREFIX_MAX (sizeof "/muster/" + 3 * MU_RDZV_RUN_ID_MAX + 1)
#define MU_ENGINE_ETCD3_KEY_MAX (MU_ENGINE_ETCD3_PREFIX_MAX + MU_FOLD_KEY_MAX)

struct mu_engine_etcd3_names {
    char prefix[MU_ENGINE_ETCD3_PREFIX_MAX]; /* "/muster/<run id>/" */
    char waiting[MU_ENGINE_ETCD3_KEY_MAX];   /* "/muster//waiting/<run id>": our mark, see LOOK_AROUND */
};

/* A slash in a run id would make its keys part of another job's: it is escaped. */
void mu_engine_etcd3_names_init(struct mu_engine_etcd3_names *names, const char *run_id);
/* All keys of the scope begin like this. */
struct mu_slice mu_engine_etcd3_scope_key(const struct mu_engine_etcd3_names *names, enum mu_fold_scope scope,
                                          char room[static MU_ENGINE_ETCD3_KEY_MAX]);
/* "job/kv/<key>" is a key of the agents (kv/kv_job_uv.h). False: it is none. */
bool mu_engine_etcd3_agents_key(struct mu_slice key, struct mu_slice *ret_key);

/* ---- Requests ---- */

#define MU_ENGINE_ETCD3_KEYS_MAX (MU_FOLD_COMPARES_MAX + 2 * MU_FOLD_PUTS_MAX)

struct mu_engine_etcd3_ask { /* points into itself: not to be copied */
    struct mu_etcd3_request request;
    bool repeatable;
    struct mu_etcd3_compare compares[MU_FOLD_COMPARES_MAX];
    struct mu_etcd3_op success[MU_FOLD_PUTS_MAX + 1], failure[MU_FOLD_PUTS_MAX];
    char keys[MU_ENGINE_ETCD3_KEYS_MAX][MU_ENGINE_ETCD3_KEY_MAX];
    size_t keys_count;
};

/* LOAD, WRITE, GRANT_JOB, KEEP_JOB, LOOK_AROUND or UNMARK. */
void mu_engine_etcd3_ask(const struct mu_engine_etcd3_names *names, const struct mu_fold_effect *effect,
                         int64_t job_lease_s, struct mu_engine_etcd3_ask *ret_ask);
/* ---- Answers ---- */

struct mu_engine_etcd3_asked { /* what is remembered of a request */
    enum mu_fold_effect_type type;
    uint64_t id;
    enum mu_fold_scope scope;
    int64_t lease; /* LOOK_AROUND: our mark is to be put under it; 0: none is */
};

struct mu_engine_etcd3_asked mu_engine_etcd3_asked(const struct mu_fold_effect *effect);

/* Whether the machine hears of it: *ret_event. `answer` as in struct mu_etcd3_call. */
bool mu_engine_etcd3_answer(const struct mu_engine_etcd3_names *names, const struct mu_engine_etcd3_asked *asked,
                            int rc, const struct mu_etcd3_answer *answer, const struct muster_error *error,
                            struct mu_fold_event *ret_event);
/* The request failed; `code` is gRPC's, if etcd has answered, else 0. */
struct mu_fold_event mu_engine_etcd3_failed(uint64_t id, int rc, int code, const struct muster_error *error);
/* There was no memory to send it; of DROP_LEASE also: there is nothing to end. */
struct mu_fold_event mu_engine_etcd3_refused(const struct mu_engine_etcd3_asked *asked);
struct mu_fold_event mu_engine_etcd3_lease_lost(uint64_t take, const struct muster_error *error);
/* What a watch has seen. Without memory for it, it is as if it had been missed. */
struct mu_fold_event mu_engine_etcd3_changes(const struct mu_engine_etcd3_names *names, enum mu_fold_scope scope,
                                             const struct mu_etcd3_event *events, size_t count);
void mu_engine_etcd3_event_done(struct mu_fold_event *event); /* frees its kvs */

#endif
