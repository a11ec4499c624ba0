/* The store server on a libuv loop. */
#ifndef MU_STORE_SERVER_UV_H
#define MU_STORE_SERVER_UV_H

#include "store/codec.h"
#include "store/net.h"
#include "store/token.h"

#include <uv.h>

struct mu_server;

struct mu_server_config {
    struct muster_store_limits limits; /* settled */
    enum mu_dialect legacy;            /* L, L0 or L1 */
    struct mu_network *allow;          /* taken, also if the start fails; NULL: every network */
    size_t allow_count;
    bool allow_own;   /* connections of this machine to itself are taken, too */
    uint64_t seed[2]; /* random */
};

typedef void mu_server_closed(struct mu_server *server, void *ctx);

/* Listens on `fd`, a bound socket, which the server owns from here on, also if this fails. */
int mu_server_start(uv_loop_t *loop, int fd, const struct mu_server_config *config, struct mu_server **ret_server,
                    struct muster_error *reterr);
/* The same from the public configuration: checks it, opens the socket, makes a seed. */
int mu_server_start_as(uv_loop_t *loop, const struct muster_store_server_config *config, struct mu_server **ret_server,
                       struct muster_error *reterr);
const union mu_addr *mu_server_address(const struct mu_server *server); /* the first; all have the same port */
/* Listens on one more address, with the port that the server has. Does nothing where it listens there already. */
int mu_server_listen_also(struct mu_server *server, const union mu_addr *addr, struct muster_error *reterr);

struct mu_server_offer {
    const char *node;             /* that hosts this store, as text, for WELCOME; empty: no node does. Copied */
    const char *documents;        /* as in session.h: a constant, or NULL */
    const char *notes;            /* the same; with a token nobody may write there either */
    const char *only;             /* as in session.h; NULL: there is no such job */
    const struct mu_token *token; /* that nodes must have; NULL: none. Copied, and wiped when the server is closed */
};

/* From now on peers may speak the engine's frames (frames.h) here. Call it before there is any key, and not together
 * with mu_server_renew(): the engine stays with the table that is there. */
void mu_server_offer_engine(struct mu_server *server, const struct mu_server_offer *offer);

bool mu_server_listens_on(const struct mu_server *server, const union mu_addr *addr);

/* Connections accepted from now on find an empty table; those that are there keep the one they have. */
int mu_server_renew(struct mu_server *server, struct muster_error *reterr);

/* Our address at which a connection from another machine first came in; false: there was none. */
bool mu_server_accepted_on(const struct mu_server *server, union mu_addr *ret_addr);

bool mu_server_is_alone(const struct mu_server *server); /* no other process is connected now */
/* `alone` once, from the loop, as soon as no other process is connected; never after mu_server_close(). A second call
 * takes the place of the first. */
void mu_server_when_alone(struct mu_server *server, void (*alone)(void *ctx), void *ctx);

/* From here on the server belongs to the loop, which frees it after on_closed (may be NULL). */
void mu_server_close(struct mu_server *server, mu_server_closed *on_closed, void *ctx);

struct mu_server_watch;
/* Called with a key's value: from within mu_server_watch() if there is one, then at every change. */
typedef void mu_server_value(void *ctx, struct mu_slice value);

int mu_server_watch(struct mu_server *server, struct mu_slice key, mu_server_value *on_value, void *ctx,
                    struct mu_server_watch **ret_watch, struct muster_error *reterr);
void mu_server_unwatch(struct mu_server *server, struct mu_server_watch *watch); /* before the server is closed */

/* Writes `value` if the key holds `expected`, or if the key is missing and `expected` is empty; wakes the peers that
 * wait for it. Not from within a callback of a watch. */
int mu_server_compare_set(struct mu_server *server, struct mu_slice key, struct mu_slice expected,
                          struct mu_slice value, struct muster_error *reterr);
/* Within a callback of a watch: the number of the connection that has changed the value; 0: none has. */
uint64_t mu_server_writer(const struct mu_server *server);
const union mu_addr *mu_server_writer_address(const struct mu_server *server); /* NULL: none has */
/* Calls `gone`, which may be NULL, with the number of each connection that ends. Never after mu_server_close(). */
void mu_server_on_gone(struct mu_server *server, void (*gone)(void *ctx, uint64_t connection), void *ctx);

#endif
