/* The store client on a libuv loop. */
#ifndef MU_STORE_CLIENT_UV_H
#define MU_STORE_CLIENT_UV_H

#include "store/calls.h"
#include "store/net.h"

#include <uv.h>

struct mu_client;

struct mu_client_config {
    const char *host; /* name or address; copied */
    uint16_t port;
    enum mu_dialect dialect; /* UNKNOWN: find out */
    bool raw_keys;           /* do not put "/" in front of keys */
    uint64_t connect_timeout_ms;
    unsigned rounds_max; /* of tries at the name's addresses; 0: as many as there is time for */
    uint64_t seed;       /* random; for the delays between tries */
};

/* Once: the connection is there (`error` NULL), or there will be none. Calls may be made before. */
typedef void mu_client_ready(struct mu_client *client, const struct muster_error *error, void *ctx);
/* Once, after ready: the connection is lost. Every call made then and later fails with the cause. */
typedef void mu_client_lost(struct mu_client *client, const struct muster_error *error, void *ctx);
typedef void mu_client_closed(struct mu_client *client, void *ctx);

/* None of the callbacks runs inside of a call from outside. `on_lost` may be NULL. */
int mu_client_start(uv_loop_t *loop, const struct mu_client_config *config, mu_client_ready *on_ready,
                    mu_client_lost *on_lost, void *ctx, struct mu_client **ret_client, struct muster_error *reterr);

/* Returns at once; call->done runs later from the loop, exactly once. */
void mu_client_call(struct mu_client *client, struct mu_call *call, uint64_t timeout_ms);

/* Ends a call now, as if its time was up; its `done` has not run yet and runs later from the loop. */
void mu_client_expire(struct mu_client *client, struct mu_call *call);

bool mu_client_is_lost(const struct mu_client *client);            /* there is no connection and will be none */
bool mu_client_refused(const struct mu_client *client);            /* there is none because the other end said no */
enum mu_dialect mu_client_dialect(const struct mu_client *client); /* UNKNOWN before it is ready */
bool mu_client_local_address(const struct mu_client *client, union mu_addr *ret_addr); /* our end of the connection */
/* The address and the bytes by which another process sets a key in this store, on a connection of its own. False: we
 * are not connected, or there is no memory. */
bool mu_client_lone_set(const struct mu_client *client, struct mu_slice key, struct mu_slice value,
                        union mu_addr *ret_addr, struct mu_buf *ret_bytes);

/* Pending calls are done with MUSTER_ECANCELED first, from the loop; then on_closed, then the memory goes. Nobody waits
 * for the end: NULL. */
void mu_client_close(struct mu_client *client, mu_client_closed *on_closed, void *ctx);

#endif
