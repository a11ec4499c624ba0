/* PyTorch's EtcdStore: a plain store in a directory of etcd's version 2 keys. Names are base64 of the key, values
 * base64 of the value. As a struct mu_kv for GET, SET, ADD, COMPARE_SET, CHECK and DELETE; everything else is answered
 * with MUSTER_ENOTSUP. (What others see of it, muster_store_etcd_new(), has no more than PyTorch's.)
 *
 * A key is asked for by its own name, and watched by it, where PyTorch lists the directory: names with a "/" in them
 * can be read, and it does not matter whether the directory exists. */
#ifndef MU_KV_ETCD_STORE_UV_H
#define MU_KV_ETCD_STORE_UV_H

#include "kv/etcd2_uv.h"
#include "kv/kv.h"

struct mu_kv_etcd_store_config {
    const struct mu_http_config *http;
    /* Either one directory for all keys, "/a/b"; */
    const char *dir;
    /* or that of a classic rendezvous: keys `torch.rendezvous.<run_id>.<n>/K` are K in ROOT/rdzv/v_<n>/kv, where
     * PyTorch has them, and all others are in ROOT/muster/kv. */
    const char *root, *run_id;
    bool gives_foreign; /* a value that is not base64 is given as it is, and not an error */
    uint64_t seed;
};

int mu_kv_etcd_store_start(uv_loop_t *loop, const struct mu_kv_etcd_store_config *config, struct mu_kv **ret_kv,
                           struct muster_error *reterr);
struct mu_http *mu_kv_etcd_store_http(struct mu_kv *kv); /* its client, for other requests to the same etcd */

#endif
