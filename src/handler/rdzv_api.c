/* The public calls of a blocking handler, over its own table of functions, which may be shorter than ours; and the
 * address at which the workers of a round meet. */
#include "base/clock.h"
#include "base/texts.h"
#include "handler/handler.h"
#include "handler/retry.h"
#include "store/listen.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* Is `member` there, in a table that may be shorter than ours? */
#define HAS(rdzv, member)                                                                                              \
    ((rdzv)->ops->size >= offsetof(struct muster_rdzv_ops, member) + sizeof((rdzv)->ops->member) &&                    \
     (rdzv)->ops->member != NULL)

#define CALL(rdzv, member, ...)                                                                                        \
    (HAS(rdzv, member) ? (rdzv)->ops->member((rdzv), __VA_ARGS__) : not_supported((rdzv), #member, reterr))

static int not_supported(const struct muster_rdzv *rdzv, const char *what, struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_ENOTSUP, "%s: the rendezvous handler '%s' does not have it", what,
                   muster_rdzv_get_backend(rdzv));
}

const char *muster_rdzv_get_backend(const struct muster_rdzv *rdzv)
{
    const char *name = HAS(rdzv, get_backend) ? rdzv->ops->get_backend(rdzv) : NULL;

    return name == NULL ? "" : name;
}

const char *muster_rdzv_get_run_id(const struct muster_rdzv *rdzv)
{
    const char *run_id = HAS(rdzv, get_run_id) ? rdzv->ops->get_run_id(rdzv) : NULL;

    return run_id == NULL ? "" : run_id;
}

bool muster_rdzv_use_agent_store(const struct muster_rdzv *rdzv)
{
    return HAS(rdzv, use_agent_store) && rdzv->ops->use_agent_store(rdzv);
}

int mu_rdzv_next_unless(struct muster_rdzv *rdzv, const atomic_bool *unwanted, struct muster_rdzv_info *ret_info,
                        struct muster_error *reterr)
{
    struct muster_error error = { 0 }, *why = reterr != NULL ? reterr : &error;
    struct mu_retry retry = { 0 };
    int64_t pause_ms;
    int rc;

    while (true) {
        rc = HAS(rdzv, next_rendezvous) ? rdzv->ops->next_rendezvous(rdzv, ret_info, why)
                                        : not_supported(rdzv, "next_rendezvous", why);
        pause_ms = mu_retry_pause_ms(&retry, rc, mu_clock_ms());
        if (pause_ms < 0)
            break;
        mu_pause_ms(pause_ms);
        if (unwanted != NULL && atomic_load(unwanted))
            return rc;
    }
    if (pause_ms == -1)
        return rc;
    why->code = MUSTER_ERDZV_TIMEOUT;
    return mu_wrap(why, MUSTER_ERDZV_TIMEOUT, "gave up after trying for %d s", MU_RETRY_TIME_MS / 1000);
}

int muster_rdzv_next_rendezvous(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info,
                                struct muster_error *reterr)
{
    return mu_rdzv_next_unless(rdzv, NULL, ret_info, reterr);
}

int muster_rdzv_is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    return CALL(rdzv, is_closed, ret_closed, reterr);
}

int muster_rdzv_set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr)
{
    return CALL(rdzv, set_closed, reterr);
}

int muster_rdzv_num_nodes_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr)
{
    return CALL(rdzv, num_nodes_waiting, ret_count, reterr);
}

int muster_rdzv_shutdown(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    return CALL(rdzv, shutdown, ret_closed, reterr);
}

void muster_rdzv_free(struct muster_rdzv *rdzv)
{
    if (rdzv != NULL && HAS(rdzv, free))
        rdzv->ops->free(rdzv);
}

MU_DEFINE_TEXTS(muster_rdzv_event_name, enum muster_rdzv_event_type, MUSTER_RDZV_EVENTS)

/* ---- Where the workers of a round meet ---- */

static int own_name(char *text, size_t size, struct muster_error *reterr)
{
    if (gethostname(text, size) < 0)
        return mu_fail(reterr, MUSTER_ESYSTEM, "cannot get this machine's name");
    text[size - 1] = '\0'; /* one that is cut need not be ended */
    return 0;
}

static int publish(struct muster_store *store, const char *local_addr, uint16_t port, struct muster_error *reterr)
{
    char name[sizeof((struct muster_store_info *)0)->master_addr], port_text[8];
    int rc = 0;

    if (local_addr == NULL || local_addr[0] == '\0') {
        rc = own_name(name, sizeof name, reterr);
        local_addr = name;
    }
    if (rc == 0 && port == 0)
        rc = mu_listen_free_port(&port, reterr);
    if (rc < 0)
        return rc;
    (void)snprintf(port_text, sizeof port_text, "%" PRIu16, port);
    rc = muster_store_set(store, muster_str(MUSTER_KEY_MASTER_ADDR), muster_str(local_addr), MUSTER_TIMEOUT_DEFAULT,
                          reterr);
    if (rc == 0)
        rc = muster_store_set(store, muster_str(MUSTER_KEY_MASTER_PORT), muster_str(port_text), MUSTER_TIMEOUT_DEFAULT,
                              reterr);
    return rc;
}

static int take_addr(struct muster_store *store, struct muster_store_info *info, struct muster_error *reterr)
{
    struct muster_bytes addr;
    int rc = muster_store_get(store, muster_str(MUSTER_KEY_MASTER_ADDR), MUSTER_TIMEOUT_DEFAULT, &addr, reterr);

    if (rc < 0)
        return rc;
    if (addr.len == 0 || addr.len >= sizeof info->master_addr || memchr(addr.data, '\0', addr.len) != NULL)
        rc = mu_fail(reterr, MUSTER_EINVAL, "%s in the store is not an address: %zu bytes, '%.*s'",
                     MUSTER_KEY_MASTER_ADDR, addr.len, addr.len > 40 ? 40 : (int)addr.len, addr.data);
    else
        (void)snprintf(info->master_addr, sizeof info->master_addr, "%.*s", (int)addr.len, addr.data);
    muster_bytes_done(&addr);
    return rc;
}

static int take_port(struct muster_store *store, struct muster_store_info *info, struct muster_error *reterr)
{
    struct muster_bytes port;
    int rc = muster_store_get(store, muster_str(MUSTER_KEY_MASTER_PORT), MUSTER_TIMEOUT_DEFAULT, &port, reterr);

    if (rc < 0)
        return rc;
    if (strlen(port.data) != port.len || !mu_port_parse(port.data, &info->master_port) || info->master_port == 0)
        rc = mu_fail(reterr, MUSTER_EINVAL, "%s in the store is not a port: '%.*s'", MUSTER_KEY_MASTER_PORT,
                     port.len > 40 ? 40 : (int)port.len, port.data);
    muster_bytes_done(&port);
    return rc;
}

int muster_store_info_build(int64_t rank, struct muster_store *store, const char *local_addr, uint16_t port,
                            struct muster_store_info *ret_info, struct muster_error *reterr)
{
    struct muster_store_info info = { .master_addr = "" };
    int rc = 0;

    if (rank < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "address of the workers' store: a rank of %" PRId64 " is below 0", rank);
    if (rank == 0)
        rc = publish(store, local_addr, port, reterr);
    if (rc == 0)
        rc = take_addr(store, &info, reterr);
    if (rc == 0)
        rc = take_port(store, &info, reterr);
    if (rc < 0)
        return mu_wrap(reterr, rc, "address of the workers' store");
    *ret_info = info;
    return 0;
}
