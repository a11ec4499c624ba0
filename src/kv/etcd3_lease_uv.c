/* A lease: a grant, then a keep-alive every third of its time. A request that fails is sent again until the lease must
 * have ended.
 *
 *   ASKED --granted--> HELD <--> TROUBLED, while a keep-alive fails
 *     |                  |          |
 *     v                  +----------+--> LOST
 *   REFUSED */
#include "kv/etcd3_parts_uv.h"
#include "kv/later_uv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum {
    KEEP_ALIVE_AGAIN_MS = 200,
    KEEP_ALIVE_LEAST_MS = 250, /* for one attempt */
};

enum lease_state { ASKED, REFUSED, HELD, TROUBLED, LOST };

struct mu_etcd3_lease {
    struct mu_etcd3 *etcd;
    const struct mu_etcd3_lease_ops *ops;
    void *ctx;
    struct mu_etcd3_call call, revocation;
    uv_timer_t timer;
    int64_t id, asked_ttl_s;
    uint64_t ttl_ms;
    uint64_t every_ms; /* on_renewed; 0: nobody wants it */
    void (*on_renewed)(struct mu_etcd3_lease *lease, void *ctx);
    uint64_t since_ms; /* when the last request that was carried out was sent */
    uint64_t sent_ms;  /* the one under way */
    enum lease_state state;
    bool calling, revoking, closed, timer_closed;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

static void keep_alive(uv_timer_t *timer);

static void free_lease_if_over(struct mu_etcd3_lease *lease)
{
    if (!lease->closed || !lease->timer_closed || lease->calling || lease->revoking)
        return;
    if (lease->on_closed != NULL)
        lease->on_closed(lease->closed_ctx);
    free(lease);
}

static void on_lease_timer_closed(uv_handle_t *handle)
{
    struct mu_etcd3_lease *lease = handle->data;

    lease->timer_closed = true;
    free_lease_if_over(lease);
}

static void tell_lease_trouble(struct mu_etcd3_lease *lease, const struct muster_error *error)
{
    enum lease_state next = error != NULL ? TROUBLED : HELD;

    if (lease->closed || (lease->state != HELD && lease->state != TROUBLED) || lease->state == next)
        return;
    lease->state = next;
    if (lease->ops->on_trouble != NULL)
        lease->ops->on_trouble(lease, error, lease->ctx);
}

static void lose(struct mu_etcd3_lease *lease, const struct muster_error *error)
{
    assert(lease->state == ASKED || lease->state == HELD || lease->state == TROUBLED);
    lease->state = lease->state == ASKED ? REFUSED : LOST;
    lease->ops->on_lost(lease, error, lease->ctx);
}

static void arm_lease(struct mu_etcd3_lease *lease, uint64_t at_ms)
{
    if (!lease->closed)
        mu_timer_until(&lease->timer, at_ms, keep_alive);
}

static uint64_t sooner_ms(uint64_t ms, uint64_t limit_ms)
{
    return limit_ms > 0 && limit_ms < ms ? limit_ms : ms;
}

static void arm_next(struct mu_etcd3_lease *lease)
{
    arm_lease(lease, lease->since_ms + sooner_ms(lease->ttl_ms / 3, lease->every_ms));
}

static void on_kept(struct mu_etcd3_call *call)
{
    struct mu_etcd3_lease *lease = call->ctx;
    uint64_t now_ms = uv_now(lease->etcd->loop);
    bool gone = (call->rc == 0 && call->answer.ttl_s <= 0) || (call->rc < 0 && call->answer.code == MU_ETCD3_NOT_FOUND);

    lease->calling = false;
    if (gone) /* whether etcd says so by its time or by an error */
        (void)mu_fail(&call->error, MUSTER_ELOST, "%s: it has expired", call->what);
    mu_etcd3_answer_done(&call->answer);
    if (lease->closed) {
        free_lease_if_over(lease);
    } else if (call->rc == 0 && !gone) {
        lease->since_ms = lease->sent_ms;
        arm_next(lease);
        tell_lease_trouble(lease, NULL);
        if (lease->on_renewed != NULL && !lease->closed)
            lease->on_renewed(lease, lease->ctx);
    } else if (gone || now_ms >= lease->since_ms + lease->ttl_ms) {
        lose(lease, &call->error);
    } else {
        arm_lease(lease, now_ms + mu_rng_jitter(&lease->etcd->rng, KEEP_ALIVE_AGAIN_MS, 50));
        tell_lease_trouble(lease, &call->error);
    }
}

static void on_lease_retry(struct mu_http_request *http, const struct muster_error *error)
{
    struct mu_etcd3_call *call = http->ctx;

    tell_lease_trouble(call->ctx, error);
}

static void keep_alive(uv_timer_t *timer)
{
    struct mu_etcd3_lease *lease = timer->data;
    uint64_t now_ms = uv_now(lease->etcd->loop), end_ms = lease->since_ms + lease->ttl_ms;
    uint64_t attempt_ms = sooner_ms(lease->ttl_ms / 6, lease->every_ms / 2);

    lease->calling = true;
    lease->sent_ms = now_ms;
    lease->call = (struct mu_etcd3_call){
        .request = { .kind = MU_ETCD3_KEEP_ALIVE, .lease = lease->id },
        .timeout_ms = end_ms > now_ms + KEEP_ALIVE_LEAST_MS ? end_ms - now_ms : KEEP_ALIVE_LEAST_MS,
        .attempt_ms = attempt_ms > KEEP_ALIVE_LEAST_MS ? attempt_ms : KEEP_ALIVE_LEAST_MS,
        .on_retry = on_lease_retry,
        .done = on_kept,
        .ctx = lease,
    };
    mu_etcd3_call(lease->etcd, &lease->call);
}

/* A lease of that random number can only be ours: an earlier attempt got through. */
static void on_grant_done(struct mu_etcd3_call *call)
{
    struct mu_etcd3_lease *lease = call->ctx;
    bool ours = call->rc < 0 && call->answer.code == MU_ETCD3_PRECONDITION;
    int64_t ttl_s = call->rc == 0 ? call->answer.ttl_s : lease->asked_ttl_s;

    lease->calling = false;
    mu_etcd3_answer_done(&call->answer);
    if (lease->closed) {
        free_lease_if_over(lease);
    } else if (call->rc == 0 || ours) {
        lease->state = HELD;
        lease->ttl_ms = (uint64_t)(ttl_s > 0 ? ttl_s : lease->asked_ttl_s) * 1000;
        lease->since_ms = lease->sent_ms;
        arm_next(lease);
        lease->ops->on_granted(lease, lease->id, lease->ctx);
    } else {
        lose(lease, &call->error);
    }
}

int mu_etcd3_lease_start(struct mu_etcd3 *etcd, int64_t ttl_s, uint64_t grant_ms, const struct mu_etcd3_lease_ops *ops,
                         void *ctx, struct mu_etcd3_lease **ret_lease, struct muster_error *reterr)
{
    struct mu_etcd3_lease *lease = calloc(1, sizeof *lease);

    assert(ttl_s > 0 && grant_ms > 0);
    if (lease == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a lease");
    lease->etcd = etcd;
    lease->ops = ops;
    lease->ctx = ctx;
    lease->asked_ttl_s = ttl_s;
    lease->id = (int64_t)(mu_rng_next(&etcd->rng) >> 1) | 1;
    (void)uv_timer_init(etcd->loop, &lease->timer); /* fills in memory only */
    lease->timer.data = lease;
    lease->calling = true;
    lease->sent_ms = uv_now(etcd->loop);
    lease->call = (struct mu_etcd3_call){ .request = { .kind = MU_ETCD3_GRANT, .lease = lease->id, .ttl_s = ttl_s },
                                          .timeout_ms = grant_ms,
                                          .done = on_grant_done,
                                          .ctx = lease };
    mu_etcd3_call(etcd, &lease->call);
    *ret_lease = lease;
    return 0;
}

void mu_etcd3_lease_tell_renewed(struct mu_etcd3_lease *lease, uint64_t every_ms,
                                 void (*on_renewed)(struct mu_etcd3_lease *lease, void *ctx))
{
    assert(lease->state == ASKED);
    lease->every_ms = every_ms;
    lease->on_renewed = on_renewed;
}

uint64_t mu_etcd3_lease_renewed_ms(const struct mu_etcd3_lease *lease)
{
    return lease->since_ms;
}

int64_t mu_etcd3_lease_id(const struct mu_etcd3_lease *lease)
{
    return lease->state == ASKED || lease->state == REFUSED ? 0 : lease->id;
}

static void on_revoked(struct mu_etcd3_call *call)
{
    struct mu_etcd3_lease *lease = call->ctx;

    mu_etcd3_answer_done(&call->answer); /* if it could not be, its time will end it */
    lease->revoking = false;
    free_lease_if_over(lease);
}

void mu_etcd3_lease_close(struct mu_etcd3_lease *lease, bool revoke, uint64_t revoke_ms, void (*closed)(void *ctx),
                          void *ctx)
{
    assert(!lease->closed);
    lease->closed = true;
    lease->on_closed = closed;
    lease->closed_ctx = ctx;
    if (lease->calling)
        mu_etcd3_cancel(&lease->call);
    if (revoke && lease->state != LOST && lease->state != REFUSED) { /* an answer that is not there may be a grant */
        lease->revoking = true;
        lease->revocation = (struct mu_etcd3_call){ .request = { .kind = MU_ETCD3_REVOKE, .lease = lease->id },
                                                    .timeout_ms = revoke_ms > 0 ? revoke_ms : 1,
                                                    .done = on_revoked,
                                                    .ctx = lease };
        mu_etcd3_call(lease->etcd, &lease->revocation);
    }
    uv_close((uv_handle_t *)&lease->timer, on_lease_timer_closed);
}
