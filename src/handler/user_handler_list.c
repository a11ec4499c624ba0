/* Blocking handlers that agents are given as objects: which agent has which, and how they are driven. */
#include "base/list.h"
#include "handler/user_handler_uv.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- One agent at a time ---- */

struct claim {
    struct mu_list link;
    const struct muster_rdzv *rdzv;
    bool kept;
};

static pthread_mutex_t claims_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mu_list claims = { &claims, &claims };

/* With the lock. */
static struct claim *find(const struct muster_rdzv *rdzv)
{
    for (struct mu_list *link = claims.next; link != &claims; link = link->next) {
        struct claim *claim = MU_LIST_ITEM(link, struct claim, link);

        if (claim->rdzv == rdzv)
            return claim;
    }
    return NULL;
}

int mu_rdzv_claim(const struct muster_rdzv *rdzv, struct muster_error *reterr)
{
    struct claim *claim = calloc(1, sizeof *claim), *other;
    bool kept;

    if (claim == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent");
    claim->rdzv = rdzv;
    (void)pthread_mutex_lock(&claims_lock);
    other = find(rdzv);
    kept = other != NULL && other->kept;
    if (other == NULL)
        mu_list_push(&claims, &claim->link);
    (void)pthread_mutex_unlock(&claims_lock);
    if (other == NULL)
        return 0; /* cppcheck-suppress memleak ; it is in the list */
    free(claim);
    return mu_fail(reterr, MUSTER_EINVAL, "the rendezvous handler '%s' %s; a handler serves one agent at a time",
                   muster_rdzv_get_backend(rdzv),
                   kept ? "is still in a call of an earlier agent" : "serves another agent");
}

void mu_rdzv_release(const struct muster_rdzv *rdzv)
{
    struct claim *claim;

    (void)pthread_mutex_lock(&claims_lock);
    claim = find(rdzv);
    if (claim != NULL && claim->kept)
        claim = NULL;
    if (claim != NULL)
        mu_list_remove(&claim->link);
    (void)pthread_mutex_unlock(&claims_lock);
    free(claim);
}

void mu_rdzv_keep(const struct muster_rdzv *rdzv)
{
    struct claim *claim;

    (void)pthread_mutex_lock(&claims_lock);
    claim = find(rdzv);
    if (claim != NULL)
        claim->kept = true;
    (void)pthread_mutex_unlock(&claims_lock);
}

/* ---- Driving: those of this library make one more of their kind, that tells by itself ---- */

int mu_handler_start_given(struct uv_loop_s *loop, struct muster_rdzv *rdzv, bool take, struct mu_driving *driving,
                           const char *local_addr, muster_rdzv_listener *listener, void *ctx,
                           struct muster_handler **ret_handler, struct muster_error *reterr)
{
    int rc;

    if (mu_rdzv_is_static(rdzv))
        rc = mu_rdzv_static_start_twin(loop, rdzv, listener, ctx, ret_handler, reterr);
    else if (mu_rdzv_is_blocking(rdzv))
        rc = mu_rdzv_blocking_start_twin(loop, rdzv, driving, listener, ctx, ret_handler, reterr);
    else
        return mu_user_handler_start(loop, rdzv, take, driving, local_addr, listener, ctx, ret_handler, reterr);
    if (take && rc < 0)
        muster_rdzv_free(rdzv);
    else if (take)
        driving->made = rdzv;
    return rc;
}
