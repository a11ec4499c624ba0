/* The fold machine's requests and events in etcd's words. */
#include "kv/engine_etcd3.h"

#include "proc/will.h"
#include "store/net.h"

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

/* Room for so many operations, and for all keys of `bytes` in sum without the job's prefix. */
static int make_room(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names, size_t ops,
                     size_t keys, size_t bytes)
{
    ask->keys_room = keys * (strlen(names->prefix) + 1) + bytes;
    ask->keys = malloc(ask->keys_room + 1);
    ask->ops = calloc(ops + 1, sizeof *ask->ops);
    return ask->keys != NULL && ask->ops != NULL ? 0 : MUSTER_ENOMEM;
}

static struct mu_slice key_in(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names,
                              struct mu_slice key)
{
    char *to = ask->keys + ask->keys_len;
    size_t len = strlen(names->prefix) + key.len;

    assert(key.len < MU_FOLD_KEY_MAX && ask->keys_len + len < ask->keys_room);
    memcpy(to, names->prefix, strlen(names->prefix));
    memcpy(to + strlen(names->prefix), key.data, key.len);
    to[len] = '\0';
    ask->keys_len += len + 1;
    return mu_slice(to, len);
}

/* The operations of success first, then those of failure. */
static void make_txn(struct mu_engine_etcd3_ask *ask, size_t compares, size_t success, size_t failure)
{
    ask->request.kind = MU_ETCD3_TXN;
    ask->request.txn = (struct mu_etcd3_txn){ ask->compares, compares, ask->ops, ask->ops + success, success, failure };
}

static void make_ops(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names,
                     const struct mu_fold_op *ops, size_t count, struct mu_etcd3_op *to)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (struct mu_etcd3_op){ .kind = ops[i].kind == MU_FOLD_PUT ? MU_ETCD3_OP_PUT : MU_ETCD3_OP_DELETE,
                                      .key = key_in(ask, names, ops[i].key),
                                      .prefix = ops[i].kind == MU_FOLD_DELETE_PREFIX,
                                      .value = ops[i].value,
                                      .lease = ops[i].lease };
}

static size_t bytes_of(const struct mu_fold_op *ops, size_t count)
{
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++)
        bytes += ops[i].key.len;
    return bytes;
}

static int ask_write(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names,
                     const struct mu_fold_write *write)
{
    size_t ops = write->ops_count + write->else_count;
    size_t bytes = bytes_of(write->ops, write->ops_count) + bytes_of(write->else_ops, write->else_count);

    for (unsigned i = 0; i < write->compares_count; i++)
        bytes += write->compares[i].key.len;
    if (make_room(ask, names, ops, ops + write->compares_count, bytes) < 0)
        return MUSTER_ENOMEM;
    for (unsigned i = 0; i < write->compares_count; i++)
        ask->compares[i] = (struct mu_etcd3_compare){
            .target = write->compares[i].kind == MU_FOLD_MOD ? MU_ETCD3_MOD : MU_ETCD3_CREATE,
            .key = key_in(ask, names, write->compares[i].key),
            .number = write->compares[i].revision, /* 0 if it is to be absent */
        };
    make_ops(ask, names, write->ops, write->ops_count, ask->ops);
    make_ops(ask, names, write->else_ops, write->else_count, ask->ops + write->ops_count);
    make_txn(ask, write->compares_count, write->ops_count, write->else_count);
    ask->repeatable = write->repeatable;
    return 0;
}

/* The mark is put only if the document is still the one that we know. So a mark that arrives late is not put after
 * the round has begun, and what takes the mark away then leaves none behind. */
static int ask_look(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names,
                    const struct mu_fold_effect *effect)
{
    struct mu_etcd3_op looks[3] = { { .kind = MU_ETCD3_OP_RANGE,
                                      .prefix = true,
                                      .limit = MU_WAITERS_RECORDS_MAX,
                                      .sort = true,
                                      .sort_by = MU_ETCD3_BY_CREATE },
                                    { .kind = MU_ETCD3_OP_RANGE,
                                      .key = mu_slice_str(WAITING),
                                      .prefix = true,
                                      .limit = MU_WAITERS_MARKS_MAX,
                                      .sort = true,
                                      .descending = true,
                                      .sort_by = MU_ETCD3_BY_MOD },
                                    { .kind = MU_ETCD3_OP_RANGE } };
    size_t marks = mu_engine_etcd3_asked(effect).lease != 0, reads = effect->key.len > 0 ? 3 : 2;

    if (make_room(ask, names, 2 * reads + 1, 3, 3 * MU_FOLD_KEY_MAX) < 0)
        return MUSTER_ENOMEM;
    if (effect->key.len > 0)
        looks[2].key = key_in(ask, names, effect->key);
    looks[0].key = key_in(ask, names, mu_slice_str(scopes[MU_FOLD_NODES]));
    ask->compares[0] = (struct mu_etcd3_compare){ .target = MU_ETCD3_MOD,
                                                  .key = key_in(ask, names, mu_slice_str("job/doc")),
                                                  .number = effect->doc_mod };
    memcpy(ask->ops, looks, reads * sizeof looks[0]);
    ask->ops[reads] = (struct mu_etcd3_op){
        .kind = MU_ETCD3_OP_PUT, .key = mu_slice_str(names->waiting), .value = effect->value, .lease = effect->lease
    };
    memcpy(ask->ops + reads + marks, looks, reads * sizeof looks[0]);
    make_txn(ask, 1, reads + marks, reads);
    ask->repeatable = true;
    return 0;
}

static int ask_range(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names, struct mu_slice key,
                     bool prefix)
{
    if (make_room(ask, names, 0, 1, key.len) < 0)
        return MUSTER_ENOMEM;
    ask->request.kind = MU_ETCD3_RANGE;
    ask->request.range =
        (struct mu_etcd3_op){ .kind = MU_ETCD3_OP_RANGE, .key = key_in(ask, names, key), .prefix = prefix };
    return 0;
}

static int ask_unmark(struct mu_engine_etcd3_ask *ask, const struct mu_engine_etcd3_names *names)
{
    if (make_room(ask, names, 1, 0, 0) < 0)
        return MUSTER_ENOMEM;
    ask->ops[0] = (struct mu_etcd3_op){ .kind = MU_ETCD3_OP_DELETE, .key = mu_slice_str(names->waiting) };
    make_txn(ask, 0, 1, 0);
    ask->repeatable = true;
    return 0;
}

static int make_ask(const struct mu_engine_etcd3_names *names, const struct mu_fold_effect *effect, int64_t job_lease_s,
                    struct mu_engine_etcd3_ask *ask)
{
    switch (effect->type) {
    case MU_FOLD_DO_LOAD:
        return ask_range(ask, names, mu_slice_str(scopes[effect->scope]), true);
    case MU_FOLD_DO_RANGE:
        return ask_range(ask, names, effect->key, effect->prefix);
    case MU_FOLD_DO_GRANT_JOB:
        ask->request = (struct mu_etcd3_request){ .kind = MU_ETCD3_GRANT, .ttl_s = job_lease_s };
        return 0;
    case MU_FOLD_DO_KEEP_JOB:
        ask->request = (struct mu_etcd3_request){ .kind = MU_ETCD3_KEEP_ALIVE, .lease = effect->lease };
        return 0;
    case MU_FOLD_DO_WRITE:
        return ask_write(ask, names, effect->write);
    case MU_FOLD_DO_LOOK_AROUND:
        return ask_look(ask, names, effect);
    case MU_FOLD_DO_UNMARK:
        return ask_unmark(ask, names);
    case MU_FOLD_DO_UNWATCH:
    case MU_FOLD_DO_TAKE_LEASE:
    case MU_FOLD_DO_DROP_LEASE:
    case MU_FOLD_DO_TELL:
    case MU_FOLD_DO_COMPLETED:
    case MU_FOLD_DO_LEADER:
        break;
    }
    assert(false); /* these are no calls of etcd */
    return 0;
}

int mu_engine_etcd3_ask(const struct mu_engine_etcd3_names *names, const struct mu_fold_effect *effect,
                        int64_t job_lease_s, struct mu_engine_etcd3_ask *ret_ask)
{
    int rc;

    memset(ret_ask, 0, sizeof *ret_ask);
    rc = make_ask(names, effect, job_lease_s, ret_ask);
    if (rc < 0)
        mu_engine_etcd3_ask_done(ret_ask);
    return rc;
}

void mu_engine_etcd3_ask_done(struct mu_engine_etcd3_ask *ask)
{
    free(ask->ops);
    free(ask->keys);
    memset(ask, 0, sizeof *ask);
}

/* ---- The will ---- */

static int add_post(struct mu_buf *out, const struct mu_http_server *server, const struct mu_etcd3_request *request,
                    const char *header)
{
    struct mu_buf body = { 0 };
    char head[320];
    int rc = mu_etcd3_build(request, &body, NULL), len;

    len = snprintf(head, sizeof head,
                   "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n",
                   mu_etcd3_path(request->kind), server->url + strlen("http://"), body.len, header);
    if (rc == 0 && (size_t)len >= sizeof head)
        rc = MUSTER_ELIMIT;
    if (rc == 0)
        rc = mu_buf_append(out, head, (size_t)len, MU_WILL_BYTES_MAX);
    if (rc == 0)
        rc = mu_buf_append(out, body.data, body.len, MU_WILL_BYTES_MAX);
    mu_buf_done(&body);
    return rc;
}

/* etcd carries the second one out when it has answered the first. A mark that cannot be put is no harm: the lease ends
 * all the same. */
bool mu_engine_etcd3_will(const struct mu_engine_etcd3_names *names, const struct mu_http_server *server, bool logs_in,
                          const struct mu_fold_op *mark, int64_t lease, struct mu_kv_lone *ret_will)
{
    char key[MU_ENGINE_ETCD3_KEY_MAX];
    const struct mu_etcd3_op put = {
        .kind = MU_ETCD3_OP_PUT, .key = whole_key(names, mark->key, key), .value = mark->value, .lease = mark->lease
    };
    const struct mu_etcd3_request requests[] = { { .kind = MU_ETCD3_TXN,
                                                   .txn = { .success = &put, .success_count = 1 } },
                                                 { .kind = MU_ETCD3_REVOKE, .lease = lease } };
    union mu_addr address;

    *ret_will = (struct mu_kv_lone){ .server_closes = true };
    if (logs_in || lease == 0 || strncmp(server->url, "http://", strlen("http://")) != 0 ||
        !mu_addr_parse(server->address, server->port, &address) || mu_addr_is_link_local(&address))
        return false;
    if (add_post(&ret_will->bytes, server, &requests[0], "") < 0 ||
        add_post(&ret_will->bytes, server, &requests[1], "Connection: close\r\n") < 0) {
        mu_buf_done(&ret_will->bytes);
        return false;
    }
    ret_will->address_len = mu_addr_len(&address);
    memcpy(&ret_will->address, &address, ret_will->address_len);
    return true;
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
                                   .final = error->code == MUSTER_EINVAL || is_final(error->code, 0),
                                   .refused = error->code == MUSTER_EINVAL || error->code == MUSTER_ELIMIT };
}

static struct mu_fold_kv seen(const struct mu_engine_etcd3_names *names, const struct mu_etcd3_kv *kv, bool deleted)
{
    return (struct mu_fold_kv){ .key = without_prefix(names, kv->key),
                                .deleted = deleted,
                                .value = kv->value,
                                .create = kv->create,
                                .mod = kv->mod,
                                .lease = kv->lease };
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

bool mu_engine_etcd3_answer(const struct mu_engine_etcd3_names *names, const struct mu_engine_etcd3_asked *asked,
                            int rc, bool unsure, const struct mu_etcd3_answer *answer, const struct muster_error *error,
                            struct mu_fold_event *ret_event)
{
    static const enum mu_fold_event_type answers[] = {
        [MU_FOLD_DO_LOAD] = MU_FOLD_ON_LOADED,       [MU_FOLD_DO_RANGE] = MU_FOLD_ON_RANGED,
        [MU_FOLD_DO_LOOK_AROUND] = MU_FOLD_ON_CROWD, [MU_FOLD_DO_WRITE] = MU_FOLD_ON_WROTE,
        [MU_FOLD_DO_GRANT_JOB] = MU_FOLD_ON_GRANTED, [MU_FOLD_DO_KEEP_JOB] = MU_FOLD_ON_KEPT
    };
    bool looks = asked->type == MU_FOLD_DO_LOOK_AROUND;
    bool reads = looks || asked->type == MU_FOLD_DO_LOAD || asked->type == MU_FOLD_DO_RANGE;

    if (asked->type == MU_FOLD_DO_UNMARK)
        return false; /* for people only: the mark goes with its lease */
    if (rc < 0) {
        *ret_event = failed(asked, rc, answer->code, error);
        ret_event->refused = !unsure && answer->code != 0;
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
    if (reads && !take_kvs(names, answer, ret_event))
        *ret_event = failed(asked, MUSTER_ENOMEM, 0, &no_memory);
    return true;
}

/* The next revision is the first that was not read. */
bool mu_engine_etcd3_watch(const struct mu_engine_etcd3_names *names, const struct mu_fold_event *event,
                           char ret_key[static MU_ENGINE_ETCD3_KEY_MAX], int64_t *ret_revision)
{
    if (event->type != MU_FOLD_ON_LOADED)
        return false;
    (void)whole_key(names, mu_slice_str(scopes[event->scope]), ret_key);
    *ret_revision = event->revision + 1;
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

/* ---- Requests that are not sent ---- */

void mu_engine_etcd3_refuse(struct mu_engine_etcd3_refused *refused, const struct mu_fold_effect *effect)
{
    if (effect->id == 0)
        return;
    assert(refused->count < MU_ENGINE_ETCD3_REFUSED_MAX);
    refused->items[refused->count++] = mu_engine_etcd3_asked(effect);
}

void mu_engine_etcd3_forget_load(struct mu_engine_etcd3_refused *refused, enum mu_fold_scope scope)
{
    size_t kept = 0;

    for (size_t i = 0; i < refused->count; i++)
        if (refused->items[i].type != MU_FOLD_DO_LOAD || refused->items[i].scope != scope)
            refused->items[kept++] = refused->items[i];
    refused->count = kept;
}

bool mu_engine_etcd3_next_refused(struct mu_engine_etcd3_refused *refused, struct mu_fold_event *ret_event)
{
    static const struct muster_error error = { .code = MUSTER_ENOMEM, .text = "no memory for a request to etcd" };
    const struct mu_engine_etcd3_asked first = refused->items[0];

    if (refused->count == 0)
        return false;
    refused->count--;
    memmove(refused->items, refused->items + 1, refused->count * sizeof refused->items[0]);
    if (first.type == MU_FOLD_DO_DROP_LEASE)
        *ret_event = (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = first.id };
    else if (first.type == MU_FOLD_DO_TAKE_LEASE)
        *ret_event = mu_engine_etcd3_lease_lost(first.id, &error);
    else
        *ret_event = failed(&first, error.code, 0, &error);
    return true;
}

bool mu_engine_etcd3_drops(const struct mu_fold_effect *drop, uint64_t take)
{
    assert(drop->type == MU_FOLD_DO_DROP_LEASE && drop->lease_take != 0);
    return drop->lease_take == take;
}
