/* A store server on its owner's loop, or on a thread of its own, where its connections hold up nothing else. Its owner
 * uses it from its own loop alone, and hears of everything there.
 *
 * On a thread nobody else touches the server: what the owner wants is posted there (loop_thread_uv.h), and what comes
 * of it is told on the owner's loop. Where it listens changes only while the owner waits for that, so the owner may
 * look at it.
 *
 *   RUNS --close--> CLOSING --the server is closed, and its thread has ended--> `closed` is called, and it is gone */
#ifndef MU_STORE_PLACED_SERVER_UV_H
#define MU_STORE_PLACED_SERVER_UV_H

#include "store/net.h"

#include <uv.h>

struct mu_placed_server; /* opaque */

/* As mu_server_start_as(). `apart`: on a thread of its own. */
int mu_placed_server_start(uv_loop_t *loop, const struct muster_store_server_config *config, bool apart,
                           struct mu_placed_server **ret_server, struct muster_error *reterr);
const union mu_addr *mu_placed_server_address(const struct mu_placed_server *p);
/* As mu_server_listen_also(): returns when it listens there. */
int mu_placed_server_listen_also(struct mu_placed_server *p, const union mu_addr *addr, struct muster_error *reterr);

typedef void mu_placed_server_renewed(void *ctx, uint64_t id, const struct muster_error *error); /* NULL: done */
/* As mu_server_renew(). `renewed` once, with that id, also from inside; not if the server is closed before. */
void mu_placed_server_renew(struct mu_placed_server *p, uint64_t id, mu_placed_server_renewed *renewed, void *ctx);

bool mu_placed_server_is_alone(struct mu_placed_server *p);
/* As mu_server_when_alone(). Without memory it is not told. */
void mu_placed_server_when_alone(struct mu_placed_server *p, void (*alone)(void *ctx), void *ctx);

/* `closed` later, from the owner's loop; may be NULL. */
void mu_placed_server_close(struct mu_placed_server *p, void (*closed)(void *ctx), void *ctx);

#endif
