/* The back end of PyTorch's etcd-v2 rendezvous: the document in one key of etcd's version 2 API, the plain store as
 * PyTorch's EtcdStore.
 *
 *   /torch/elastic/rendezvous/RUN_ID   the document, base64, with a time to live that every write renews; its
 *                                      modifiedIndex is the token
 *   /torch/elastic/store/              the store; base64 names and values, shared by all jobs
 *
 * The bell is a watch of the document: every write rings it, also PyTorch's. Its counter is etcd's index. */
#ifndef MU_KV_KV_ETCD_V2_UV_H
#define MU_KV_KV_ETCD_V2_UV_H

#include "kv/http_uv.h"
#include "kv/kv.h"

#define MU_KV_ETCD_V2_TTL_S 7200
#define MU_KV_ETCD_V2_STORE "/torch/elastic/store"

int mu_kv_etcd_v2_start(uv_loop_t *loop, const struct mu_http_config *http, const char *run_id, struct mu_kv **ret_kv,
                        struct muster_error *reterr);

#endif
