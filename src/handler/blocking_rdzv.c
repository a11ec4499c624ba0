/* What a blocking rendezvous remembers. See blocking_rdzv.h. */
#include "handler/blocking_rdzv.h"

#include <assert.h>
#include <inttypes.h>

enum { C10D_PORT = 29400, READ_TIMEOUT_S = 60 };
#define READ_TIMEOUT_S_MAX INT64_C(1000000000)

bool mu_blocking_is_member(enum mu_blocking_standing standing)
{
    return standing == MU_BLOCKING_MEMBER || standing == MU_BLOCKING_BROKEN;
}

enum mu_blocking_standing mu_blocking_after(enum mu_blocking_standing standing, const struct muster_rdzv_event *event)
{
    switch (event->type) {
    case MUSTER_RDZV_JOINED:
        return MU_BLOCKING_MEMBER;
    case MUSTER_RDZV_LEFT:
        return MU_BLOCKING_OUT;
    case MUSTER_RDZV_PEERS_LOST:
        return mu_blocking_is_member(standing) ? MU_BLOCKING_BROKEN : standing;
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

int mu_blocking_nodes_waiting(enum mu_blocking_standing standing, int rc, int64_t count, int64_t *ret_count)
{
    bool broken = standing == MU_BLOCKING_BROKEN || standing == MU_BLOCKING_REMOVED;

    if (rc < 0 && !broken)
        return rc;
    *ret_count = rc < 0 ? 0 : count;
    if (broken && *ret_count < 1)
        *ret_count = 1;
    return 0;
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
    int port = 0, rc = mu_rdzv_endpoint_parse(endpoint, C10D_PORT, store->host, &port, reterr);

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
    if (strcmp(backend, "etcd-v3") == 0)
        ret_store->kind = MU_BLOCKING_STORE_MOVES;
    if (strcmp(backend, "c10d") != 0)
        return 0;
    ret_store->kind = MU_BLOCKING_STORE_FIXED;
    return find_c10d_store(params, ret_store, reterr);
}

bool mu_blocking_is_dynamic(const char *backend)
{
    return strcmp(backend, "c10d") == 0 || strcmp(backend, "etcd-v2") == 0;
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
