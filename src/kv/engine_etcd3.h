/* What the fold machine (rdzv/fold.h) asks for, in etcd's words: names of keys, its effects as requests, and the events
 * that answers are to it. Pure; engine_etcd3_uv.c sends and receives. */
#ifndef MU_KV_ENGINE_ETCD3_H
#define MU_KV_ENGINE_ETCD3_H

#include "kv/endpoints.h"
#include "kv/etcd3.h"
#include "kv/kv.h"
#include "rdzv/fold.h"

#define MU_ENGINE_ETCD3_PREFIX_MAX (sizeof "/muster/" + 3 * MU_RDZV_RUN_ID_MAX + 1)
#define MU_ENGINE_ETCD3_KEY_MAX (MU_ENGINE_ETCD3_PREFIX_MAX + MU_FOLD_KEY_MAX)

struct mu_engine_etcd3_names {
    char prefix[MU_ENGINE_ETCD3_PREFIX_MAX]; /* "/muster/<run id>/" */
    char waiting[MU_ENGINE_ETCD3_KEY_MAX];   /* "/muster//waiting/<run id>": our mark, see LOOK_AROUND */
};

/* A slash in a run id would make its keys part of another job's: it is escaped. */
void mu_engine_etcd3_names_init(struct mu_engine_etcd3_names *names, const char *run_id);

/* ---- Requests ---- */

#define MU_ENGINE_ETCD3_OPS_MAX 128 /* of a transaction: etcd's own limit, unless it was started with another */

struct mu_engine_etcd3_ask { /* points into itself: not to be copied */
    struct mu_etcd3_request request;
    bool repeatable;
    struct mu_etcd3_compare compares[MU_FOLD_COMPARES_MAX];
    struct mu_etcd3_op *ops; /* both branches' */
    char *keys;              /* one after the other */
    size_t keys_len, keys_room;
};

/* LOAD, RANGE, WRITE, GRANT_JOB, KEEP_JOB, LOOK_AROUND or UNMARK. 0 or MUSTER_ENOMEM. */
int mu_engine_etcd3_ask(const struct mu_engine_etcd3_names *names, const struct mu_fold_effect *effect,
                        int64_t job_lease_s, struct mu_engine_etcd3_ask *ret_ask);
void mu_engine_etcd3_ask_done(struct mu_engine_etcd3_ask *ask);

/* As engine_client.h has it: two HTTP requests in a row. `logs_in`: there is a password or a token, which is left to
 * nobody. */
bool mu_engine_etcd3_will(const struct mu_engine_etcd3_names *names, const struct mu_http_server *server, bool logs_in,
                          const struct mu_fold_op *mark, int64_t lease, struct mu_kv_lone *ret_will);

/* ---- Answers ---- */

struct mu_engine_etcd3_asked { /* what is remembered of a request */
    enum mu_fold_effect_type type;
    uint64_t id;
    enum mu_fold_scope scope;
    int64_t lease; /* LOOK_AROUND: our mark is to be put under it; 0: none is */
};

struct mu_engine_etcd3_asked mu_engine_etcd3_asked(const struct mu_fold_effect *effect);

/* Whether the machine hears of it: *ret_event. `unsure` and `answer` as in struct mu_etcd3_call. */
bool mu_engine_etcd3_answer(const struct mu_engine_etcd3_names *names, const struct mu_engine_etcd3_asked *asked,
                            int rc, bool unsure, const struct mu_etcd3_answer *answer, const struct muster_error *error,
                            struct mu_fold_event *ret_event);
/* The request failed; `code` is gRPC's, if etcd has answered, else 0. */
struct mu_fold_event mu_engine_etcd3_failed(uint64_t id, int rc, int code, const struct muster_error *error);
/* Whether the event begins a watch: of all keys that begin with `ret_key`, from *ret_revision on. */
bool mu_engine_etcd3_watch(const struct mu_engine_etcd3_names *names, const struct mu_fold_event *event,
                           char ret_key[static MU_ENGINE_ETCD3_KEY_MAX], int64_t *ret_revision);
struct mu_fold_event mu_engine_etcd3_lease_lost(uint64_t take, const struct muster_error *error);
/* What a watch has seen. Without memory for it, it is as if it had been missed. */
struct mu_fold_event mu_engine_etcd3_changes(const struct mu_engine_etcd3_names *names, enum mu_fold_scope scope,
                                             const struct mu_etcd3_event *events, size_t count);
void mu_engine_etcd3_event_done(struct mu_fold_event *event); /* frees its kvs */

/* ---- Requests that are not sent ---- */

#define MU_ENGINE_ETCD3_REFUSED_MAX 32 /* no machine has more requests under way */

struct mu_engine_etcd3_refused { /* zeroed memory is empty */
    struct mu_engine_etcd3_asked items[MU_ENGINE_ETCD3_REFUSED_MAX];
    size_t count;
};

/* There is no memory to send it; of DROP_LEASE also: there is nothing to end. Without an id no answer is wanted. */
void mu_engine_etcd3_refuse(struct mu_engine_etcd3_refused *refused, const struct mu_fold_effect *effect);
void mu_engine_etcd3_forget_load(struct mu_engine_etcd3_refused *refused, enum mu_fold_scope scope);
/* The answer to the first of them. False: there is none. */
bool mu_engine_etcd3_next_refused(struct mu_engine_etcd3_refused *refused, struct mu_fold_event *ret_event);
/* Whether a DROP_LEASE means the lease of this take; 0: there is none. Any other is gone. */
bool mu_engine_etcd3_drops(const struct mu_fold_effect *drop, uint64_t take);

#endif
