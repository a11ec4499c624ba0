/* What a blocking rendezvous remembers, asks and answers. See blocking_rdzv.h. */
#include "handler/blocking_rdzv.h"

#include "handler/host.h"

#include <assert.h>
#include <inttypes.h>
#include <stddef.h>

enum { READ_TIMEOUT_S = 60 };
#define READ_TIMEOUT_S_MAX INT64_C(1000000000)

/* What is particular about the back ends of this library. */
static const struct kind {
    const char *backend;
    enum mu_blocking_store_kind store;
    bool is_dynamic, hosts; /* hosts: by the option is_host */
} kinds[] = {
    { "c10d", MU_BLOCKING_STORE_FIXED, true, true },
    { "etcd-v2", MU_BLOCKING_STORE_GIVEN, true, false },
    { "etcd-v3", MU_BLOCKING_STORE_MOVES, false, false },
    { "", MU_BLOCKING_STORE_GIVEN, false, false }, /* any other */
};

static const struct kind *kind_of(const char *backend)
{
    const struct kind *kind = kinds;

    while (kind->backend[0] != '\0' && strcmp(kind->backend, backend) != 0)
        kind++;
    return kind;
}

/* ---- What is remembered ---- */

/* Whether it is a member that somebody has to take out of the round in the end. */
static bool is_member(enum mu_blocking_standing standing)
{
    return standing == MU_BLOCKING_MEMBER || standing == MU_BLOCKING_BROKEN;
}

static enum mu_blocking_standing standing_after(enum mu_blocking_standing standing,
                                                const struct muster_rdzv_event *event)
{
    switch (event->type) {
    case MUSTER_RDZV_JOINED:
        return MU_BLOCKING_MEMBER;
    case MUSTER_RDZV_LEFT:
        return MU_BLOCKING_OUT;
    case MUSTER_RDZV_PEERS_LOST:
        return is_member(standing) ? MU_BLOCKING_BROKEN : standing;
    case MUSTER_RDZV_REMOVED:
        return MU_BLOCKING_REMOVED;
    case MUSTER_RDZV_FAILED:
        if (event->request == MUSTER_RDZV_REQUEST_JOIN)
            return MU_BLOCKING_OUT;
        return event->request == MUSTER_RDZV_REQUEST_MEMBERSHIP && standing == MU_BLOCKING_MEMBER ? MU_BLOCKING_BROKEN
                                                                                                  : standing;
    case MUSTER_RDZV_CLOSED:
    case MUSTER_RDZV_WAITING: /* seen when looked for */
    case MUSTER_RDZV_LOOKED:
    case MUSTER_RDZV_BACKEND_DOWN:
    case MUSTER_RDZV_BACKEND_UP:
    case MUSTER_RDZV_PROGRESS:
        break;
    }
    return standing;
}

void mu_blocking_see(struct mu_blocking_seen *seen, const struct muster_rdzv_event *event)
{
    seen->standing = standing_after(seen->standing, event);
    seen->closed = seen->closed || event->type == MUSTER_RDZV_CLOSED;
}

bool mu_blocking_must_warn(const struct mu_blocking_seen *seen, const struct muster_rdzv_event *event)
{
    return event->type == MUSTER_RDZV_BACKEND_DOWN && is_member(seen->standing);
}

bool mu_blocking_answers(enum muster_rdzv_request request, const struct muster_rdzv_event *event)
{
    if (event->type == MUSTER_RDZV_FAILED)
        return request != MUSTER_RDZV_REQUEST_UNKNOWN && event->request == request;
    switch (request) {
    case MUSTER_RDZV_REQUEST_JOIN:
        return event->type == MUSTER_RDZV_JOINED;
    case MUSTER_RDZV_REQUEST_LEAVE:
        return event->type == MUSTER_RDZV_LEFT;
    case MUSTER_RDZV_REQUEST_CLOSE:
        return event->type == MUSTER_RDZV_CLOSED;
    case MUSTER_RDZV_REQUEST_LOOK:
        return event->type == MUSTER_RDZV_LOOKED;
    default: /* nothing else is asked for */
        return false;
    }
}

/* ---- Calls ---- */

static enum mu_blocking_step step_after(const struct mu_blocking_call *call, const struct mu_blocking_seen *seen)
{
    bool begins = call->did == MU_BLOCKING_DO_RETURN, failed = call->result.error.code < 0;

    switch (call->kind) {
    case MU_BLOCKING_NEXT:
        if (begins)
            return MU_BLOCKING_DO_JOIN;
        if (call->did == MU_BLOCKING_DO_JOIN && !failed)
            return MU_BLOCKING_DO_OPEN_STORES;
        return call->did == MU_BLOCKING_DO_OPEN_STORES && failed ? MU_BLOCKING_DO_LEAVE : MU_BLOCKING_DO_RETURN;
    case MU_BLOCKING_IS_CLOSED:
        return begins && !seen->closed ? MU_BLOCKING_DO_LOOK : MU_BLOCKING_DO_RETURN;
    case MU_BLOCKING_NODES_WAITING:
        return begins ? MU_BLOCKING_DO_LOOK : MU_BLOCKING_DO_RETURN;
    case MU_BLOCKING_SET_CLOSED:
        return begins && !seen->closed ? MU_BLOCKING_DO_CLOSE : MU_BLOCKING_DO_RETURN;
    case MU_BLOCKING_SHUT_DOWN:
        if (begins && !seen->closed)
            return MU_BLOCKING_DO_CLOSE;
        break;
    case MU_BLOCKING_FREE:
        break;
    }
    return call->did != MU_BLOCKING_DO_LEAVE_SOON && is_member(seen->standing) ? MU_BLOCKING_DO_LEAVE_SOON
                                                                               : MU_BLOCKING_DO_RETURN;
}

/* A round that is broken or lost calls for the next one, whatever the back end says. */
static void count_waiting(struct mu_blocking_answer *result, enum mu_blocking_standing standing)
{
    if (standing != MU_BLOCKING_BROKEN && standing != MU_BLOCKING_REMOVED)
        return;
    if (result->error.code < 0 || result->count < 1)
        result->count = 1;
    result->error.code = 0;
}

static void finish(struct mu_blocking_call *call, const struct mu_blocking_seen *seen)
{
    static const enum mu_rdzv_trace_kind failures[] = {
        [MU_BLOCKING_NEXT] = MU_RDZV_TRACE_JOIN_FAILED,
        [MU_BLOCKING_IS_CLOSED] = MU_RDZV_TRACE_IS_CLOSED_FAILED,
        [MU_BLOCKING_SET_CLOSED] = MU_RDZV_TRACE_SET_CLOSED_FAILED,
        [MU_BLOCKING_NODES_WAITING] = MU_RDZV_TRACE_NODES_WAITING_FAILED,
        [MU_BLOCKING_SHUT_DOWN] = MU_RDZV_TRACE_SHUTDOWN_FAILED,
    };
    struct mu_blocking_answer *result = &call->result;

    if (call->kind == MU_BLOCKING_NODES_WAITING)
        count_waiting(result, seen->standing);
    if (call->did == MU_BLOCKING_DO_RETURN)
        result->closed = seen->closed;
    call->rc = result->error.code;
    if (call->kind == MU_BLOCKING_SHUT_DOWN) {
        result->closed = call->rc == 0;
        call->warns = call->rc < 0;
        if (muster_error_is_rdzv(call->rc))
            call->rc = 0;
    }
    /* The handler has recorded a join that failed. */
    call->records = result->error.code < 0 && call->did != MU_BLOCKING_DO_JOIN && call->kind != MU_BLOCKING_FREE;
    if (call->records) {
        assert((size_t)call->kind < sizeof failures / sizeof failures[0]);
        call->failed_as = failures[call->kind];
    }
}

enum mu_blocking_step mu_blocking_next(struct mu_blocking_call *call, const struct mu_blocking_seen *seen,
                                       const struct mu_blocking_answer *answer)
{
    bool leaves = call->did == MU_BLOCKING_DO_LEAVE || call->did == MU_BLOCKING_DO_LEAVE_SOON;
    enum mu_blocking_step step;

    if (call->did != MU_BLOCKING_DO_RETURN && !leaves) /* whether leaving worked is not told */
        call->result = *answer;
    step = step_after(call, seen);
    if (step == MU_BLOCKING_DO_RETURN)
        finish(call, seen);
    else
        call->did = step;
    return step;
}

bool mu_blocking_is_known(enum mu_blocking_call_kind kind, const struct mu_blocking_seen *seen)
{
    return kind == MU_BLOCKING_IS_CLOSED && seen->closed;
}

int mu_blocking_store_error(int rc)
{
    assert(rc < 0);
    return rc == MUSTER_ECONNECT || rc == MUSTER_ELOST || rc == MUSTER_ERESOLVE || rc == MUSTER_EPROTOCOL ||
                   rc == MUSTER_ETIMEOUT
               ? MUSTER_ERDZV_CONNECTION
               : rc;
}

/* ---- Settings ---- */

static int find_c10d_store(const struct muster_rdzv_params *params, struct mu_blocking_store *store,
                           struct muster_error *reterr)
{
    const char *endpoint = muster_rdzv_params_endpoint(params);
    uint64_t timeout_s = 0;
    int port = 0, rc = mu_rdzv_endpoint_parse(endpoint, MU_HOST_PORT_DEFAULT, store->host, &port, reterr);

    if (rc == 0)
        rc = mu_rdzv_seconds_from_params(params, "read_timeout", READ_TIMEOUT_S, 1, READ_TIMEOUT_S_MAX, &timeout_s,
                                         reterr);
    if (rc < 0)
        return rc;
    if (port == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "endpoint '%.200s': with port 0 the other nodes could not find the store",
                       endpoint);
    store->port = (uint16_t)port;
    store->timeout_ms = (int64_t)timeout_s * 1000;
    return 0;
}

int mu_blocking_find_store(const char *backend, const struct muster_rdzv_params *params,
                           struct mu_blocking_store *ret_store, struct muster_error *reterr)
{
    *ret_store = (struct mu_blocking_store){ .timeout_ms = READ_TIMEOUT_S * 1000 };
    ret_store->kind = kind_of(backend)->store;
    return ret_store->kind == MU_BLOCKING_STORE_FIXED ? find_c10d_store(params, ret_store, reterr) : 0;
}

bool mu_blocking_store_has_moved(const struct mu_blocking_store *store, const struct muster_rdzv_event *event)
{
    return store->kind == MU_BLOCKING_STORE_MOVES && event->type == MUSTER_RDZV_JOINED;
}

int mu_blocking_check_dynamic(const char *backend, struct muster_error *reterr)
{
    return kind_of(backend)->is_dynamic
               ? 0
               : mu_fail(reterr, MUSTER_EINVAL, "settings: the handler '%s' is not a dynamic one", backend);
}

int mu_blocking_twin(const char *backend, const struct mu_blocking_seen *seen, struct muster_rdzv_params *params,
                     struct muster_error *reterr)
{
    if (is_member(seen->standing))
        return mu_fail(reterr, MUSTER_EINVAL,
                       "the rendezvous handler '%s' is in a round already; an agent needs one that has not joined",
                       backend);
    /* A store that the first one hosts goes on there. */
    return params != NULL && kind_of(backend)->hosts ? muster_rdzv_params_set_bool(params, "is_host", false, reterr)
                                                     : 0;
}

/* A table of an older program may be shorter than ours, but not without these. */
#define HAS(ops, member)                                                                                               \
    ((ops)->size >= offsetof(struct muster_rdzv_backend_ops, member) + sizeof((ops)->member) && (ops)->member != NULL)

const char *mu_blocking_backend_name(const struct muster_rdzv_backend *backend)
{
    return backend != NULL && backend->ops != NULL && HAS(backend->ops, name) ? backend->ops->name : NULL;
}

int mu_blocking_check_parts(const struct muster_store *store, const struct muster_rdzv_backend *backend,
                            struct muster_error *reterr)
{
    const char *name = mu_blocking_backend_name(backend);

    if (name == NULL || name[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "a rendezvous back end with a name is needed");
    if (!HAS(backend->ops, get_state) || !HAS(backend->ops, set_state))
        return mu_fail(reterr, MUSTER_EINVAL, "the rendezvous back end '%s' needs both get_state and set_state", name);
    if (store == NULL || store->ops == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "a store is needed, which the members of a round share");
    return 0;
}

static uint64_t or_default(int64_t value, uint64_t fallback)
{
    return value == 0 ? fallback : (uint64_t)value; /* a negative one is found by the check */
}

int mu_blocking_settle(const struct muster_rdzv_settings *given, struct mu_dynamic_config *config,
                       struct muster_error *reterr)
{
    struct muster_rdzv_settings whole = { .size = 0 };
    struct muster_rdzv_timeout timeout = { .size = 0 };
    struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;

    if (given == NULL || given->size == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "the size of the settings is not set");
    memcpy(&whole, given, given->size < sizeof whole ? given->size : sizeof whole);
    if (whole.timeout.size == 0 || whole.timeout.size > sizeof timeout)
        whole.timeout.size = sizeof timeout;
    memcpy(&timeout, &whole.timeout, whole.timeout.size);
    settings.nodes_min = whole.min_nodes;
    settings.nodes_max = whole.max_nodes;
    settings.join_ms = or_default(timeout.join_ms, settings.join_ms);
    settings.last_call_ms = or_default(timeout.last_call_ms, settings.last_call_ms);
    settings.close_ms = or_default(timeout.close_ms, settings.close_ms);
    settings.heartbeat_ms = or_default(timeout.heartbeat_ms, settings.heartbeat_ms);
    settings.keep_alive_ms = or_default(whole.keep_alive_interval_ms, settings.keep_alive_ms);
    if (whole.keep_alive_max_attempt < 0 || whole.keep_alive_max_attempt > INT32_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "keep_alive_max_attempt: %" PRId64 " is not above 0 and below 2^31",
                       whole.keep_alive_max_attempt);
    if (whole.keep_alive_max_attempt > 0)
        settings.keep_alive_attempts = (unsigned)whole.keep_alive_max_attempt;
    config->run_id = whole.run_id;
    config->settings = settings;
    config->bind = (struct mu_bind){ .hosts = whole.bind, .allow = whole.allow };
    config->use_agent_store = !whole.no_agent_store;
    if (whole.bind != NULL && mu_bind_check_hosts(whole.bind, reterr) < 0)
        return mu_wrap(reterr, MUSTER_EINVAL, "bind");
    if (whole.allow != NULL && mu_bind_check_allow(whole.allow, reterr) < 0)
        return mu_wrap(reterr, MUSTER_EINVAL, "allow");
    return mu_rdzv_settings_check(whole.run_id, &settings, reterr);
}

struct muster_rdzv_settings mu_blocking_settings(const char *run_id, const struct mu_rdzv_settings *settings,
                                                 struct mu_bind bind, bool use_agent_store)
{
    return (struct muster_rdzv_settings){ .run_id = run_id,
                                          .min_nodes = settings->nodes_min,
                                          .max_nodes = settings->nodes_max,
                                          .timeout = { .size = sizeof(struct muster_rdzv_timeout),
                                                       .join_ms = (int64_t)settings->join_ms,
                                                       .last_call_ms = (int64_t)settings->last_call_ms,
                                                       .close_ms = (int64_t)settings->close_ms,
                                                       .heartbeat_ms = (int64_t)settings->heartbeat_ms },
                                          .keep_alive_interval_ms = (int64_t)settings->keep_alive_ms,
                                          .keep_alive_max_attempt = settings->keep_alive_attempts,
                                          .bind = bind.hosts,
                                          .allow = bind.allow,
                                          .no_agent_store = !use_agent_store };
}
