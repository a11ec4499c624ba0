/* A store server on a thread of its own, as a hosting store sees it. */
#ifndef MU_STORE_HOST_UV_H
#define MU_STORE_HOST_UV_H

#include "muster.h"

/* Waits until the decimal number at `key` (as it is on the wire) is at least `least`. MUSTER_ETIMEOUT says in *ret_seen
 * how far it got. */
int mu_host_wait_count(struct muster_store_server *server, const char *key, int64_t least, int64_t timeout_ms,
                       int64_t *ret_seen, struct muster_error *reterr);

#endif
