/* Requests whose calls block, made one after the other on a thread (base/filethread.h): calls of a user's store and
 * back end.
 *
 * A copy of the request goes to the thread, for the call may outlive the request. When it has returned, the loop fills
 * in the answer and tells it. A request that has to wait (GET for its key, PARK for a change) waits for a moment at a
 * time and then goes behind the others: a store makes one call after the other. */
#ifndef MU_KV_KV_LANE_UV_H
#define MU_KV_KV_LANE_UV_H

#include "base/filethread.h"
#include "kv/kv.h"
#include "kv/later_uv.h"

struct mu_kv_lane {
    struct mu_filethread *thread;
    struct mu_later *later; /* tells requests that are answered without a call */
    struct muster_store *store;
    struct muster_rdzv_backend *backend; /* for READ, WRITE and PARK */
    /* Instead of request->done(request), which it calls in the end. NULL: nothing is done before. */
    void (*tell)(struct mu_kv_lane *lane, struct mu_kv_request *request);
    struct mu_list works; /* on the thread */
    size_t count;
    bool stopped;
};

void mu_kv_lane_init(struct mu_kv_lane *lane, struct mu_filethread *thread, struct mu_later *later);
/* `asked`: the request as the call is made; it is copied. */
int mu_kv_lane_submit(struct mu_kv_lane *lane, struct mu_kv_request *request, const struct mu_kv_request *asked,
                      struct muster_error *reterr);
/* For PARK, which one request asks at a time. True: one is under way for the same token, and from here on for
 * `request`. One for another token ends unused. The request that it was for has failed. */
bool mu_kv_lane_replace(struct mu_kv_lane *lane, struct mu_kv_request *request, struct muster_slice token);
/* No call begins from here on. Requests whose calls are not under way fail; each is told when its turn comes. */
void mu_kv_lane_stop(struct mu_kv_lane *lane);
/* Requests fail now, and what their calls return is dropped on the thread. `waiting_only`: only GETs. */
void mu_kv_lane_cancel(struct mu_kv_lane *lane, bool waiting_only, const char *why);

#endif
