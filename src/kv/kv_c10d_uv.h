/* The back end of the c10d rendezvous: a TCPStore, ours or PyTorch's, on a libuv loop.
 *
 * On the wire (every key has the "/" in front that PyTorch's clients put there):
 *   torch.rendezvous.RUN_ID     the document, base64; or a marker that there is none
 *   muster.RUN_ID/bell          counter; bell/N is set with its Nth ring and deleted 64 rings later
 *   muster.RUN_ID/turn          counter; turn/T is set when turn T is over; turns_done counts those
 *   muster.RUN_ID/world/ROUND   the digest of that round's members; deleted 8 rounds later
 *   muster.RUN_ID/host          the node in whose process the store is */
#ifndef MU_KV_KV_C10D_UV_H
#define MU_KV_KV_C10D_UV_H

#include "kv/kv.h"
#include "store/codec.h"

#include <uv.h>

#define MU_KV_RUN_ID_MAX 4096

/* Once, from the loop: the first connection is there (`error` NULL), or could not be had in read_timeout_ms. After that
 * each request that finds none tries anew. Not called any more once the back end is closed. */
typedef void mu_kv_c10d_ready(struct mu_kv *kv, const struct muster_error *error, void *ctx);

struct mu_kv_c10d_config {
    const char *host; /* every text is copied */
    uint16_t port;
    const char *run_id;
    enum mu_dialect dialect;    /* of the store; UNKNOWN: find out */
    uint64_t read_timeout_ms;   /* for the first connection; above 0 */
    uint64_t seed;              /* random; for the delays between tries */
    const char *host_node;      /* we host the store: our node's text, to be published. NULL: we do not */
    mu_kv_c10d_ready *on_ready; /* may be NULL */
    void *ctx;
};

/* Requests may be made at once; they wait for the connection. */
int mu_kv_c10d_start(uv_loop_t *loop, const struct mu_kv_c10d_config *config, struct mu_kv **ret_kv,
                     struct muster_error *reterr);

#endif
