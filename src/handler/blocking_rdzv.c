/* What a blocking rendezvous remembers, asks and answers. See blocking_rdzv.h. */
#include "handler/blocking_rdzv.h"

#include "handler/dynamic.h"
#include "handler/host.h"

#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

enum {
    READ_TIMEOUT_S = 60,
    REQUEST_TIMEOUT_MS = 60000, /* of a back end of the user's */
    END_MS = 1000,
};
#define READ_TIMEOUT_S_MAX INT64_C(1000000000)

static const char size_missing[] = "the size of the settings is not set";

/* What is particular about the back ends of this library. */
static const struct kind {
    const char *backend;
    enum mu_blocking_store_kind store;
    bool is_dynamic, hosts; /* hosts: by the option is_host */
} kinds[] = {
    { "c10d", MU_BLOCKING_STORE_FIXED, true, true },
    { "etcd-v2", MU_BLOCKING_STORE_NONE, true, false },
    { "etcd-v3", MU_BLOCKING_STORE_MOVES, false, false },
    { "", MU_BLOCKING_STORE_NONE, false, false }, /* any other */
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
    case MUSTER_RDZV_REPORTED:
        break;
    }
    return standing;
}

void mu_blocking_see(struct mu_blocking_seen *seen, const struct muster_rdzv_event *event)
{
    seen->standing = standing_after(seen->standing, event);
    seen->closed = seen->closed || event->type == MUSTER_RDZV_CLOSED;
}

bool mu_blocking_trouble(const struct mu_blocking_seen *seen, const struct muster_rdzv_event *event,
                         char ret_warning[static MU_BLOCKING_WARNING_MAX])
{
    if (event->type != MUSTER_RDZV_BACKEND_DOWN || !is_member(seen->standing))
        return false;
    (void)snprintf(ret_warning, MU_BLOCKING_WARNING_MAX, "could not send a heartbeat: %s; trying again",
                   event->error != NULL ? event->error->text : "the back end does not answer");
    return true;
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

static bool has_opened(const struct mu_blocking_call *call)
{
    return call->did == MU_BLOCKING_DO_OPEN_TCP || call->did == MU_BLOCKING_DO_OPEN_GIVEN;
}

static enum mu_blocking_step step_after(const struct mu_blocking_call *call, const struct mu_blocking_seen *seen)
{
    bool begins = call->did == MU_BLOCKING_DO_RETURN, failed = call->result.error.code < 0;

    switch (call->kind) {
    case MU_BLOCKING_NEXT:
        if (begins)
            return MU_BLOCKING_DO_JOIN;
        if (call->did == MU_BLOCKING_DO_JOIN && !failed && call->store != MU_BLOCKING_STORE_NONE)
            return call->store == MU_BLOCKING_STORE_GIVEN ? MU_BLOCKING_DO_OPEN_GIVEN : MU_BLOCKING_DO_OPEN_TCP;
        return has_opened(call) && failed ? MU_BLOCKING_DO_LEAVE : MU_BLOCKING_DO_RETURN;
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
    struct mu_blocking_answer *result = &call->result;

    if (call->kind == MU_BLOCKING_NODES_WAITING)
        count_waiting(result, seen->standing);
    if (call->did == MU_BLOCKING_DO_RETURN)
        result->closed = seen->closed;
    call->rc = result->error.code;
    if (call->kind == MU_BLOCKING_SHUT_DOWN) {
        result->closed = call->rc == 0;
        if (muster_error_is_rdzv(call->rc))
            call->rc = 0;
    }
}

static void take_answer(struct mu_blocking_call *call, const struct mu_blocking_answer *answer)
{
    struct muster_error *error = &call->result.error;

    call->result = *answer;
    if (!has_opened(call) || error->code == 0)
        return;
    error->code = mu_blocking_store_error(error->code);
    (void)mu_wrap(error, error->code, "open the store of round %" PRId64, answer->info.round);
}

enum mu_blocking_step mu_blocking_next(struct mu_blocking_call *call, const struct mu_blocking_seen *seen,
                                       const struct mu_blocking_answer *answer)
{
    bool leaves = call->did == MU_BLOCKING_DO_LEAVE || call->did == MU_BLOCKING_DO_LEAVE_SOON;
    enum mu_blocking_step step;

    if (call->did != MU_BLOCKING_DO_RETURN && !leaves) /* whether leaving worked is not told */
        take_answer(call, answer);
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

bool mu_blocking_failed(const struct mu_blocking_call *call, enum mu_rdzv_trace_kind *ret_kind,
                        char ret_warning[static MU_BLOCKING_WARNING_MAX])
{
    static const enum mu_rdzv_trace_kind failures[] = {
        [MU_BLOCKING_NEXT] = MU_RDZV_TRACE_JOIN_FAILED,
        [MU_BLOCKING_IS_CLOSED] = MU_RDZV_TRACE_IS_CLOSED_FAILED,
        [MU_BLOCKING_SET_CLOSED] = MU_RDZV_TRACE_SET_CLOSED_FAILED,
        [MU_BLOCKING_NODES_WAITING] = MU_RDZV_TRACE_NODES_WAITING_FAILED,
        [MU_BLOCKING_SHUT_DOWN] = MU_RDZV_TRACE_SHUTDOWN_FAILED,
    };

    if (call->result.error.code == 0 || call->did == MU_BLOCKING_DO_JOIN)
        return false;
    assert((size_t)call->kind < sizeof failures / sizeof failures[0]);
    *ret_kind = failures[call->kind];
    ret_warning[0] = '\0';
    if (call->kind == MU_BLOCKING_SHUT_DOWN)
        (void)snprintf(ret_warning, MU_BLOCKING_WARNING_MAX, "could not be shut down: %s", call->result.error.text);
    return true;
}

int64_t mu_blocking_end_ms(bool borrows)
{
    return borrows ? -1 : END_MS;
}

/* ---- Stores ---- */

int mu_blocking_store_error(int rc)
{
    assert(rc < 0);
    return rc == MUSTER_ECONNECT || rc == MUSTER_ELOST || rc == MUSTER_ERESOLVE || rc == MUSTER_EPROTOCOL ||
                   rc == MUSTER_ETIMEOUT
               ? MUSTER_ERDZV_CONNECTION
               : rc;
}

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

int mu_blocking_find_store(const char *backend, const struct muster_rdzv_params *params, bool is_given,
                           struct mu_blocking_store *ret_store, struct muster_error *reterr)
{
    *ret_store = (struct mu_blocking_store){ .timeout_ms = READ_TIMEOUT_S * 1000 };
    ret_store->kind = is_given ? MU_BLOCKING_STORE_GIVEN : kind_of(backend)->store;
    return ret_store->kind == MU_BLOCKING_STORE_FIXED ? find_c10d_store(params, ret_store, reterr) : 0;
}

bool mu_blocking_store_has_moved(const struct mu_blocking_store *store, const struct muster_rdzv_event *event)
{
    return store->kind == MU_BLOCKING_STORE_MOVES && event->type == MUSTER_RDZV_JOINED;
}

void mu_blocking_prefix(const char *run_id, int64_t round, char text[static MU_BLOCKING_PREFIX_MAX])
{
    assert(strlen(run_id) <= MU_RDZV_RUN_ID_MAX && round >= 0);
    mu_round_stock_prefix(text, MU_BLOCKING_PREFIX_MAX, run_id, round);
    text[strlen(text) - 1] = '\0'; /* the view puts the "/" there by itself */
}

/* ---- New, and settings ---- */

/* A table of an older program may be shorter than ours, but not without these. */
#define HAS(ops, member)                                                                                               \
    ((ops)->size >= offsetof(struct muster_rdzv_backend_ops, member) + sizeof((ops)->member) && (ops)->member != NULL)

static const char *name_of(const struct muster_rdzv_backend *backend)
{
    return backend != NULL && backend->ops != NULL && HAS(backend->ops, name) ? backend->ops->name : NULL;
}

static int check_parts(const struct muster_store *store, const struct muster_rdzv_backend *backend,
                       struct muster_error *reterr)
{
    const char *name = name_of(backend);

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

static int settle(const struct muster_rdzv_settings *given, struct mu_dynamic_config *config,
                  struct muster_error *reterr)
{
    struct muster_rdzv_settings whole = { .size = 0 };
    struct muster_rdzv_timeout timeout = { .size = 0 };
    struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;

    if (given == NULL || given->size == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "%s", size_missing);
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

int mu_blocking_settle(const struct muster_rdzv_settings *given, const struct muster_store *store,
                       const struct muster_rdzv_backend *backend, const char *local_addr,
                       struct mu_dynamic_config *ret_config, struct muster_error *reterr)
{
    bool is_named = local_addr != NULL && local_addr[0] != '\0';
    int rc;

    *ret_config = (struct mu_dynamic_config){ .backend = name_of(backend),
                                              .local_addr = is_named ? local_addr : NULL,
                                              .dialect = MU_DOC_DIALECT_2_X,
                                              .request_timeout_ms = REQUEST_TIMEOUT_MS };
    rc = settle(given, ret_config, reterr);
    return rc < 0 ? rc : check_parts(store, backend, reterr);
}

int mu_blocking_read_params(const struct muster_rdzv_params *params, const struct muster_store *store,
                            const struct muster_rdzv_backend *backend, struct mu_dynamic_config *ret_config,
                            struct muster_error *reterr)
{
    int rc;

    *ret_config = (struct mu_dynamic_config){ .backend = name_of(backend), .request_timeout_ms = REQUEST_TIMEOUT_MS };
    rc = mu_dynamic_read_params(params, ret_config, reterr);
    return rc < 0 ? rc : check_parts(store, backend, reterr);
}

int mu_blocking_create_failed(const struct mu_dynamic_config *config, int rc, struct muster_error *error,
                              struct muster_error *reterr)
{
    (void)mu_wrap(error, rc, "make a dynamic rendezvous");
    return mu_rdzv_trace_create_failed(config->run_id == NULL ? "" : config->run_id, config->local_addr, error, reterr);
}

int mu_blocking_not_dynamic(const char *backend, struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_EINVAL, "settings: the handler '%s' is not a dynamic one", backend);
}

int mu_blocking_read_settings(const char *backend, const struct muster_rdzv_params *params,
                              struct mu_dynamic_config *ret_config, struct muster_error *reterr)
{
    return kind_of(backend)->is_dynamic ? mu_dynamic_read_params(params, ret_config, reterr)
                                        : mu_blocking_not_dynamic(backend, reterr);
}

int mu_blocking_tell_settings(const struct mu_dynamic_config *config, struct muster_rdzv_settings *ret_settings,
                              struct muster_error *reterr)
{
    const struct mu_rdzv_settings *settings = &config->settings;
    const struct muster_rdzv_settings whole = { .size = ret_settings->size,
                                                .run_id = config->run_id,
                                                .min_nodes = settings->nodes_min,
                                                .max_nodes = settings->nodes_max,
                                                .timeout = { .size = sizeof(struct muster_rdzv_timeout),
                                                             .join_ms = (int64_t)settings->join_ms,
                                                             .last_call_ms = (int64_t)settings->last_call_ms,
                                                             .close_ms = (int64_t)settings->close_ms,
                                                             .heartbeat_ms = (int64_t)settings->heartbeat_ms },
                                                .keep_alive_interval_ms = (int64_t)settings->keep_alive_ms,
                                                .keep_alive_max_attempt = settings->keep_alive_attempts,
                                                .bind = config->bind.hosts,
                                                .allow = config->bind.allow,
                                                .no_agent_store = !config->use_agent_store };

    if (whole.size == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "%s", size_missing);
    memcpy(ret_settings, &whole, whole.size < sizeof whole ? whole.size : sizeof whole);
    return 0;
}

int mu_blocking_check_twin(const char *backend, bool is_member, struct muster_error *reterr)
{
    return is_member ? mu_fail(reterr, MUSTER_EINVAL,
                               "the rendezvous handler '%s' is in a round already; an agent needs one that has not "
                               "joined",
                               backend)
                     : 0;
}

int mu_blocking_twin(const char *backend, const struct mu_blocking_seen *seen, struct muster_rdzv_params *params,
                     struct muster_error *reterr)
{
    int rc = mu_blocking_check_twin(backend, is_member(seen->standing), reterr);

    /* A store that the first one hosts goes on there. */
    if (rc == 0 && params != NULL && kind_of(backend)->hosts)
        rc = muster_rdzv_params_set_bool(params, "is_host", false, reterr);
    return rc;
}
