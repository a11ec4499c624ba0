/* The fold machine's requests and events in etcd's words. */
#include "kv/engine_etcd3.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define BESIDE "/muster//" /* no run id is empty: no job's keys begin like this */
#define WAITING BESIDE "waiting/"

static const char *const scopes[] = { [MU_FOLD_JOB] = "job/", [MU_FOLD_NODES] = "nodes/" };

static const struct muster_error no_memory = { .code = MUSTER_ENOMEM, .text = "no memory for an answer of etcd" };

/* ---- Names ---- */

void mu_engine_etcd3_names_init(struct mu_engine_etcd3_names *names, const char *run_id)
{
    char escaped[3 * MU_RDZV_RUN_ID_MAX + 1], *to = escaped;

    assert(strlen(run_id) <= MU_RDZV_RUN_ID_MAX);
    for (; *run_id != '\0'; run_id++) {
        if (*run_id == '/' || *run_id == '%')
            to += snprintf(to, 4, "%%%02X", (unsigned)(unsigned char)*run_id);
        else
            *to++ = *run_id;
    }
    *to = '\0';
    (void)snprintf(names->prefix, sizeof names->prefix, "/muster/%s/", escaped);
    (void)snprintf(names->waiting, sizeof names->waiting, WAITING "%s", escaped);
}

static struct mu_slice whole_key(const struct mu_engine_etcd3_names *names, struct mu_slice key,
                                 char room[static MU_ENGINE_ETCD3_KEY_MAX])
{
    assert(key.len < MU_FOLD_KEY_MAX);
    (void)snprintf(room, MU_ENGINE_ETCD3_KEY_MAX, "%s%.*s", names->prefix, (int)key.len, key.data);
    return mu_slice_str(room);
}

struct mu_slice mu_engine_etcd3_scope_key(const struct mu_engine_etcd3_names *names, enum mu_fold_scope scope,
                                          char room[static MU_ENGINE_ETCD3_KEY_MAX])
{
    return whole_key(names, mu_slice_str(scopes[scope]), room);
}

bool mu_engine_etcd3_agents_key(struct mu_slice key, struct mu_slice *ret_key)
{
    *ret_key = key;
    return mu_slice_skip(ret_key, "job/kv/") && ret_key->len > 0;
}

/* As the machine knows it. What was not asked for becomes a key that the machine does not know. */
static struct mu_slice without_prefix(const struct mu_engine_etcd3_names *names, struct mu_slice key)
{
    struct mu_slice mark = key;

    if (mu_slice_skip(&mark, WAITING) && mark.len > 0) {
        (void)mu_slice_skip(&key, BESIDE);
        return key;
    }
    return mu_slice_skip(&key, names->prefix) ? key : mu_slice("", 0);
}

/* ---- Requests ---- */

static struct mu_slice key_in(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names,
                              struct mu_slice key)
{
    assert(ask->keys_count < MU_ENGINE_ETCD3_KEYS_MAX);
    return whole_key(names, key, ask->keys[ask->keys_count++]);
}

static void make_txn(struct mu_engine_etcd3_ask *ask, size_t compares, size_t success, size_t failure)
{
    ask->request.kind = MU_ETCD3_TXN;
    ask->request.txn = (struct mu_etcd3_txn){ ask->compares, compares, ask->success, ask->failure, success, failure };
}

static void make_puts(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names,
                      const struct mu_fold_put *puts, unsigned count, struct mu_etcd3_op *ops)
{
    for (unsigned i = 0; i < count; i++)
        ops[i] = (struct mu_etcd3_op){ .kind = MU_ETCD3_OP_PUT,
                                       .key = key_in(ask, names, puts[i].key),
                                       .value = puts[i].value,
                                       .lease = puts[i].lease };
}

static void ask_write(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names,
                      const struct mu_fold_write *write)
{
    for (unsigned i = 0; i < write->compares_count; i++)
        ask->compares[i] = (struct mu_etcd3_compare){
            .target = write->compares[i].kind == MU_FOLD_MOD ? MU_ETCD3_MOD : MU_ETCD3_CREATE,
            .key = key_in(ask, names, write->compares[i].key),
            .number = write->compares[i].revision, /* 0 if it is to be absent */
        };
    make_puts(ask, names, write->puts, write->puts_count, ask->success);
    make_puts(ask, names, write->else_puts, write->else_count, ask->failure);
    make_txn(ask, write->compares_count, write->puts_count, write->else_count);
    ask->repeatable = write->repeatable;
}

/* The mark is put only if the document is still the one that we know. So a mark that arrives late is not put after
 * the round has begun, and what takes the mark away then leaves none behind. */
static void ask_look(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names,
                     const struct mu_fold_effect *effect)
{
    const struct mu_etcd3_op records = { .kind = MU_ETCD3_OP_RANGE,
                                         .key = key_in(ask, names, mu_slice_str(scopes[MU_FOLD_NODES])),
                                         .prefix = true,
                                         .limit = MU_WAITERS_RECORDS_MAX,
                                         .sort = true,
                                         .sort_by = MU_ETCD3_BY_CREATE };
    const struct mu_etcd3_op marks = { .kind = MU_ETCD3_OP_RANGE,
                                       .key = mu_slice_str(WAITING),
                                       .prefix = true,
                                       .limit = MU_WAITERS_MARKS_MAX,
                                       .sort = true,
                                       .descending = true,
                                       .sort_by = MU_ETCD3_BY_MOD };

    ask->compares[0] = (struct mu_etcd3_compare){ .target = MU_ETCD3_MOD,
                                                  .key = key_in(ask, names, mu_slice_str("job/doc")),
                                                  .number = effect->doc_mod };
    ask->success[0] = ask->failure[0] = records;
    ask->success[1] = ask->failure[1] = marks;
    ask->success[2] = (struct mu_etcd3_op){
        .kind = MU_ETCD3_OP_PUT, .key = mu_slice_str(names->waiting), .value = effect->value, .lease = effect->lease
    };
    make_txn(ask, 1, mu_engine_etcd3_asked(effect).lease != 0 ? 3 : 2, 2);
    ask->repeatable = true;
}

void mu_engine_etcd3_ask(const struct mu_engine_etcd3_names *names, const struct mu_fold_effect *effect,
                         int64_t job_lease_s, struct mu_engine_etcd3_ask *ret_ask)
{
    memset(ret_ask, 0, sizeof *ret_ask);
    switch (effect->type) {
    case MU_FOLD_DO_LOAD:
        ret_ask->request.kind = MU_ETCD3_RANGE;
        ret_ask->request.range = (struct mu_etcd3_op){
            .kind = MU_ETCD3_OP_RANGE,
            .key = key_in(ret_ask, names, mu_slice_str(scopes[effect->scope])),
            .prefix = true,
        };
        return;
    case MU_FOLD_DO_GRANT_JOB:
        ret_ask->request = (struct mu_etcd3_request){ .kind = MU_ETCD3_GRANT, .ttl_s = job_lease_s };
        return;
    case MU_FOLD_DO_KEEP_JOB:
        ret_ask->request = (struct mu_etcd3_request){ .kind = MU_ETCD3_KEEP_ALIVE, .lease = effect->lease };
        return;
    case MU_FOLD_DO_WRITE:
        ask_write(ret_ask, names, effect->write);
        return;
    case MU_FOLD_DO_LOOK_AROUND:
        ask_look(ret_ask, names, effect);
        return;
    case MU_FOLD_DO_UNMARK:
        ret_ask->success[0] = (struct mu_etcd3_op){ .kind = MU_ETCD3_OP_DELETE, .key = mu_slice_str(names->waiting) };
        make_txn(ret_ask, 0, 1, 0);
        ret_ask->repeatable = true;
        return;
    case MU_FOLD_DO_UNWATCH:
    case MU_FOLD_DO_TAKE_LEASE:
    case MU_FOLD_DO_DROP_LEASE:
    case MU_FOLD_DO_TELL:
    case MU_FOLD_DO_COMPLETED:
    case MU_FOLD_DO_LEADER:
        break;
    }
    assert(false); /* these are no calls of etcd */
}

/* ---- Answers ---- */

struct mu_engine_etcd3_asked mu_engine_etcd3_asked(const struct mu_fold_effect *effect)
{
    return (struct mu_engine_etcd3_asked){ .type = effect->type,
                                           .id = effect->id,
                                           .scope = effect->scope,
                                           .lease = effect->value.len > 0 ? effect->lease : 0 };
}

/* No other try can have another result: this is no etcd that we can use, or it refuses us. */
static bool is_final(int rc, int code)
{
    return rc == MUSTER_ENOTSUP || rc == MUSTER_EPROTOCOL || code == MU_ETCD3_DENIED ||
           code == MU_ETCD3_UNAUTHENTICATED || code == MU_ETCD3_INVALID;
}

struct mu_fold_event mu_engine_etcd3_failed(uint64_t id, int rc, int code, const struct muster_error *error)
{
    return (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED,
                                   .id = id,
                                   .error = error,
                                   .final = is_final(rc, code),
                                   .lease_gone = code == MU_ETCD3_NOT_FOUND };
}

/* A lease tells no code of etcd's: what etcd refuses is MUSTER_EINVAL, see mu_etcd3_fail(). */
struct mu_fold_event mu_engine_etcd3_lease_lost(uint64_t take, const struct muster_error *error)
{
    return (struct mu_fold_event){ .type = MU_FOLD_ON_LEASE_LOST,
                                   .id = take,
                                   .error = error,
                                   .final = error->code == MUSTER_EINVAL || is_final(error->code, 0) };
}

static struct mu_fold_kv seen(const struct mu_engine_etcd3_names *names, const struct mu_etcd3_kv *kv, bool deleted)
{
    return (struct mu_fold_kv){ without_prefix(names, kv->key), deleted, kv->value, kv->create, kv->mod, kv->lease };
}

/* What was read; our own mark is no news. False: no memory. */
static bool take_kvs(const struct mu_engine_etcd3_names *names, const struct mu_etcd3_answer *answer,
                     struct mu_fold_event *event)
{
    struct mu_fold_kv *kvs;
    size_t count = 0;

    for (size_t i = 0; i < answer->results_count; i++)
        count += answer->results[i].kvs_count;
    event->kvs = kvs = calloc(count + 1, sizeof *kvs);
    for (size_t i = 0; kvs != NULL && i < answer->results_count; i++)
        for (size_t k = 0; k < answer->results[i].kvs_count; k++) {
            const struct mu_etcd3_kv *kv = &answer->results[i].kvs[k];

            if (!mu_slice_equal(kv->key, mu_slice_str(names->waiting)))
                kvs[event->count++] = seen(names, kv, false);
        }
    return kvs != NULL;
}

static struct mu_fold_event failed(const struct mu_engine_etcd3_asked *asked, int rc, int code,
                                   const struct muster_error *error)
{
    struct mu_fold_event event = mu_engine_etcd3_failed(asked->id, rc, code, error);

    if (asked->type == MU_FOLD_DO_LOOK_AROUND)
        event.type = MU_FOLD_ON_CROWD;
    return event;
}

struct mu_fold_event mu_engine_etcd3_refused(const struct mu_engine_etcd3_asked *asked)
{
    static const struct muster_error error = { .code = MUSTER_ENOMEM, .text = "no memory for a request to etcd" };

    if (asked->type == MU_FOLD_DO_DROP_LEASE)
        return (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = asked->id };
    if (asked->type == MU_FOLD_DO_TAKE_LEASE)
        return mu_engine_etcd3_lease_lost(asked->id, &error);
    return failed(asked, error.code, 0, &error);
}

bool mu_engine_etcd3_answer(const struct mu_engine_etcd3_names *names, const struct mu_engine_etcd3_asked *asked,
                            int rc, const struct mu_etcd3_answer *answer, const struct muster_error *error,
                            struct mu_fold_event *ret_event)
{
    static const enum mu_fold_event_type answers[] = { [MU_FOLD_DO_LOAD] = MU_FOLD_ON_LOADED,
                                                       [MU_FOLD_DO_LOOK_AROUND] = MU_FOLD_ON_CROWD,
                                                       [MU_FOLD_DO_WRITE] = MU_FOLD_ON_WROTE,
                                                       [MU_FOLD_DO_GRANT_JOB] = MU_FOLD_ON_GRANTED,
                                                       [MU_FOLD_DO_KEEP_JOB] = MU_FOLD_ON_KEPT };
    bool looks = asked->type == MU_FOLD_DO_LOOK_AROUND, loads = asked->type == MU_FOLD_DO_LOAD;

    if (asked->type == MU_FOLD_DO_UNMARK)
        return false; /* for people only: the mark goes with its lease */
    if (rc < 0) {
        *ret_event = failed(asked, rc, answer->code, error);
        return true;
    }
    *ret_event = (struct mu_fold_event){ .type = answers[asked->type],
                                         .id = asked->id,
                                         .scope = asked->scope,
                                         .revision = answer->revision,
                                         .lease = looks ? asked->lease : answer->lease,
                                         .held = answer->succeeded };
    assert(ret_event->type >= MU_FOLD_ON_LOADED); /* nothing else is asked of etcd by a call */
    if (asked->type == MU_FOLD_DO_KEEP_JOB)
        ret_event->held = answer->ttl_s > 0;
    else if (looks)
        ret_event->held = asked->lease != 0 && answer->succeeded;
    if ((loads || looks) && !take_kvs(names, answer, ret_event))
        *ret_event = failed(asked, MUSTER_ENOMEM, 0, &no_memory);
    return true;
}

struct mu_fold_event mu_engine_etcd3_changes(const struct mu_engine_etcd3_names *names, enum mu_fold_scope scope,
                                             const struct mu_etcd3_event *events, size_t count)
{
    struct mu_fold_kv *kvs = calloc(count + 1, sizeof *kvs);

    for (size_t i = 0; kvs != NULL && i < count; i++)
        kvs[i] = seen(names, &events[i].kv, events[i].kind == MU_ETCD3_DELETE);
    return (struct mu_fold_event){ .type = kvs != NULL ? MU_FOLD_ON_CHANGED : MU_FOLD_ON_STALE,
                                   .scope = scope,
                                   .kvs = kvs,
                                   .count = kvs != NULL ? count : 0 };
}

void mu_engine_etcd3_event_done(struct mu_fold_event *event)
{
    free((void *)event->kvs);
    *event = (struct mu_fold_event){ .kvs = NULL };
}
