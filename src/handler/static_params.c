/* The parameters of a static rendezvous. See static_params.h. */
#include "handler/static_params.h"

#include "handler/blocking_rdzv.h"

#include <inttypes.h>
#include <stdio.h>

#define TIMEOUT_S INT64_C(600)
#define TIMEOUT_S_MAX INT64_C(1000000000)

struct mu_bind mu_static_bind(const struct mu_static_place *place)
{
    return (struct mu_bind){ .hosts = place->bind_hosts[0] == '\0' ? NULL : place->bind_hosts,
                             .allow = place->bind_allow[0] == '\0' ? NULL : place->bind_allow };
}

int mu_static_place_init(struct mu_static_place *place, const char *host, int64_t port, int64_t rank,
                         int64_t world_size, int64_t timeout_ms, const char *run_id, struct muster_error *reterr)
{
    if (host[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "the host name is empty");
    if (strlen(host) >= sizeof place->host)
        return mu_fail(reterr, MUSTER_EINVAL, "a host name of %zu bytes is too long", strlen(host));
    if (strlen(run_id) >= sizeof place->run_id)
        return mu_fail(reterr, MUSTER_ELIMIT, "a run id of %zu bytes is too long", strlen(run_id));
    if (port < 1 || port > UINT16_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "port %" PRId64 " of host '%s' is not in 1..65535", port, host);
    if (world_size < 1 || world_size > UINT32_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "a world of %" PRId64 " nodes is not in 1..%u", world_size, UINT32_MAX);
    if (rank < 0 || rank >= world_size)
        return mu_fail(reterr, MUSTER_EINVAL, "rank %" PRId64 " is not in 0..%" PRId64, rank, world_size - 1);
    if (timeout_ms < 1 || timeout_ms > TIMEOUT_S_MAX * 1000)
        return mu_fail(reterr, MUSTER_EINVAL, "a timeout of %" PRId64 " ms is not between 1 ms and %" PRId64 " s",
                       timeout_ms, TIMEOUT_S_MAX);
    *place = (struct mu_static_place){
        .port = (uint16_t)port, .rank = rank, .world_size = world_size, .timeout_ms = timeout_ms
    };
    memcpy(place->host, host, strlen(host) + 1);
    memcpy(place->run_id, run_id, strlen(run_id) + 1);
    return 0;
}

/* Workers meet at the endpoint: its store is theirs, too. */
static int check_master(const struct muster_rdzv_params *params, const char *host, int port,
                        struct muster_error *reterr)
{
    struct mu_boot_master master;
    int rc = mu_boot_master_from_params(params, &master, reterr);

    if (rc < 0)
        return rc;
    if (master.addr[0] != '\0' && strcmp(master.addr, host) != 0)
        return mu_fail(
            reterr, MUSTER_EINVAL,
            "master_addr is '%.100s' but the endpoint is at '%.100s': workers of a static rendezvous meet at "
            "its endpoint",
            master.addr, host);
    if (master.port != 0 && master.port != port)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "master_port is %u but the endpoint has port %d: workers of a static rendezvous meet at its "
                       "endpoint",
                       (unsigned)master.port, port);
    return 0;
}

/* After the names, the order is PyTorch's: rank there, endpoint there, port there, then the values. */
int mu_static_place_from_params(const struct muster_rdzv_params *params, struct mu_static_place *ret_place,
                                struct muster_error *reterr)
{
    const char *endpoint = muster_rdzv_params_endpoint(params);
    char host[MU_RDZV_HOST_MAX];
    int64_t rank = 0, timeout_s = 0;
    struct mu_bind bind = { 0 };
    struct mu_doc_dialect dialect = { 0 };
    bool shares; /* in a static rendezvous always */
    struct muster_value value;
    int port, rc = mu_rdzv_check_options("static", params, reterr);

    if (rc < 0)
        return rc;
    if (!muster_rdzv_params_get(params, "rank", &value))
        return mu_fail(reterr, MUSTER_EINVAL, "option 'rank' is missing: a static rendezvous needs each node's rank");
    if (mu_rdzv_trim(mu_slice_str(endpoint)).len == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "the endpoint is missing: a static rendezvous needs HOST:PORT of rank 0");
    rc = mu_rdzv_endpoint_parse(endpoint, -1, host, &port, reterr);
    if (rc < 0)
        return rc;
    if (port < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "endpoint '%.200s' has no port: a static rendezvous needs HOST:PORT",
                       endpoint);
    rc = muster_rdzv_params_get_as_int(params, "rank", 0, &rank, reterr);
    if (rc == 0)
        rc = muster_rdzv_params_get_as_int(params, "timeout", TIMEOUT_S, &timeout_s, reterr);
    if (rc == 0)
        rc = mu_bind_from_params(params, &bind, reterr);
    if (rc == 0)
        rc = check_master(params, host, port, reterr);
    if (rc == 0)
        rc = mu_rdzv_dialect_from_params(params, &dialect, &shares, reterr);
    if (rc < 0)
        return rc;
    if (timeout_s < 1 || timeout_s > TIMEOUT_S_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "option 'timeout': %" PRId64 " s is not in 1..%" PRId64, timeout_s,
                       TIMEOUT_S_MAX);
    rc = mu_static_place_init(ret_place, host, port, rank, muster_rdzv_params_max_nodes(params), timeout_s * 1000,
                              muster_rdzv_params_run_id(params), reterr);
    if (rc < 0)
        return rc;
    ret_place->old_dialect = dialect.habits == MU_HABITS_1_13;
    (void)snprintf(ret_place->bind_hosts, sizeof ret_place->bind_hosts, "%s", bind.hosts == NULL ? "" : bind.hosts);
    (void)snprintf(ret_place->bind_allow, sizeof ret_place->bind_allow, "%s", bind.allow == NULL ? "" : bind.allow);
    return 0;
}

/* What a store's error is to a rendezvous; which one is put in front, and where, unless the error says it. */
int mu_static_error(const struct mu_static_place *place, int rc, struct muster_error *reterr)
{
    int code = rc == MUSTER_ETIMEOUT     ? MUSTER_ERDZV_TIMEOUT
               : rc == MUSTER_EADDRINUSE ? MUSTER_ERDZV_CONNECTION
                                         : mu_blocking_store_error(rc);

    if (reterr != NULL)
        reterr->code = code;
    if (rc == MUSTER_EADDRINUSE || rc == MUSTER_ECONNECT)
        return mu_wrap(reterr, code, "static rendezvous as rank %" PRId64 " of %" PRId64, place->rank,
                       place->world_size);
    return mu_wrap(reterr, code, "static rendezvous at %s, port %u, as rank %" PRId64 " of %" PRId64, place->host,
                   (unsigned)place->port, place->rank, place->world_size);
}

bool mu_static_bind_warning(const struct mu_static_place *place, const struct mu_bind_plan *plan,
                            char text[static MU_BIND_WARNING_MAX])
{
    return mu_bind_warning(plan, place->host, "its store", false, text);
}

struct muster_rdzv_info mu_static_info(const struct mu_static_place *place, struct muster_store *store)
{
    struct muster_rdzv_info info = {
        .store = store, .rank = place->rank, .world_size = place->world_size, .round = -1
    };

    memcpy(info.bootstrap.master_addr, place->host, sizeof place->host);
    info.bootstrap.master_port = place->port;
    return info;
}

/* ---- Blocking ---- */

struct muster_store_tcp_config mu_static_store_config(const struct mu_static_place *place,
                                                      const struct muster_store_server_config *server)
{
    return (struct muster_store_tcp_config){
        .size = sizeof(struct muster_store_tcp_config),
        .host = place->host,
        .port = place->port,
        .is_host = place->rank == 0,
        .shared = true,
        .wait_for_workers = true,
        .world_size = (uint32_t)place->world_size,
        .connect_timeout_ms = place->timeout_ms,
        .timeout_ms = place->timeout_ms,
        .server = server,
    };
}

const char *mu_static_name(const struct muster_rdzv *rdzv)
{
    (void)rdzv;
    return "static";
}

bool mu_static_shares_store(const struct muster_rdzv *rdzv)
{
    (void)rdzv;
    return true;
}

int mu_static_is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    (void)rdzv;
    (void)reterr;
    *ret_closed = false;
    return 0;
}

int mu_static_set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr)
{
    (void)rdzv;
    (void)reterr;
    return 0;
}

int mu_static_nodes_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr)
{
    (void)rdzv;
    (void)reterr;
    *ret_count = 0;
    return 0;
}

int mu_static_shut_down(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    (void)rdzv;
    (void)reterr;
    *ret_closed = true;
    return 0;
}
