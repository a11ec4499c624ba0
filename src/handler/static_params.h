/* The parameters of a static rendezvous, read and checked; and what a blocking one opens and answers. Pure. */
#ifndef MU_HANDLER_STATIC_PARAMS_H
#define MU_HANDLER_STATIC_PARAMS_H

#include "handler/bind.h"
#include "handler/handler.h"

struct mu_static_place { /* of one node */
    char host[sizeof((struct muster_store_info *)0)->master_addr];
    uint16_t port;
    int64_t rank, world_size, timeout_ms;
    bool old_dialect; /* the other agents have the habits of PyTorch 1.13 */
    char run_id[MU_RDZV_RUN_ID_MAX + 1];
    /* Where rank 0 listens, and for which networks; empty: not given. */
    char bind_hosts[MU_BIND_TEXT_MAX], bind_allow[MU_BIND_TEXT_MAX];
};

int mu_static_place_init(struct mu_static_place *place, const char *host, int64_t port, int64_t rank,
                         int64_t world_size, int64_t timeout_ms, const char *run_id, struct muster_error *reterr);
int mu_static_place_from_params(const struct muster_rdzv_params *params, struct mu_static_place *ret_place,
                                struct muster_error *reterr);

struct mu_bind mu_static_bind(const struct mu_static_place *place); /* borrows */
/* What next_rendezvous() returns. */
struct muster_rdzv_info mu_static_info(const struct mu_static_place *place, struct muster_store *store);
/* Turns a store's error into a rendezvous error and puts the place in front of its text. Returns the code. */
int mu_static_error(const struct mu_static_place *place, int rc, struct muster_error *reterr);
/* As mu_bind_warning(): whether rank 0 has to listen on every address. */
bool mu_static_bind_warning(const struct mu_static_place *place, const struct mu_bind_plan *plan,
                            char text[static MU_BIND_WARNING_MAX]);

/* Of the store that all nodes use: rank 0 is its host, as `server` says. Borrows. */
struct muster_store_tcp_config mu_static_store_config(const struct mu_static_place *place,
                                                      const struct muster_store_server_config *server);
/* For the table of a blocking one, which has no rounds: it is never closed, nobody waits for the next round, and a
 * shutdown has nothing to do. */
const char *mu_static_name(const struct muster_rdzv *rdzv);
bool mu_static_shares_store(const struct muster_rdzv *rdzv);
int mu_static_is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr);
int mu_static_set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr);
int mu_static_nodes_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr);
int mu_static_shut_down(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr);

/* blocking_static_uv.c needs it of static_uv.c. Copies the place. */
int mu_static_start_at(struct uv_loop_s *loop, const struct mu_static_place *place, const char *local_addr,
                       muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                       struct muster_error *reterr);

#endif
