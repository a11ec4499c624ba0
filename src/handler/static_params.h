/* The parameters of a static rendezvous, read and checked. Pure. */
#ifndef MU_HANDLER_STATIC_PARAMS_H
#define MU_HANDLER_STATIC_PARAMS_H

#include "handler/bind.h"
#include "handler/handler.h"

struct mu_static_place { /* of one node */
    char host[sizeof((struct muster_store_info *)0)->master_addr];
    uint16_t port;
    int64_t rank, world_size, timeout_ms;
    bool old_dialect; /* the other agents have the habits of PyTorch 1.13 */
    char *run_id;
    char *bind_hosts, *bind_allow; /* where rank 0 listens, and for which networks; NULL: not given */
};

/* The caller calls mu_static_place_done() in the end, also if one of these fails. */
int mu_static_place_init(struct mu_static_place *place, const char *host, int64_t port, int64_t rank,
                         int64_t world_size, int64_t timeout_ms, const char *run_id, struct muster_error *reterr);
int mu_static_place_from_params(const struct muster_rdzv_params *params, struct mu_static_place *ret_place,
                                struct muster_error *reterr);
int mu_static_place_copy(const struct mu_static_place *from, struct mu_static_place *ret_place,
                         struct muster_error *reterr);
void mu_static_place_done(struct mu_static_place *place);

struct mu_bind mu_static_bind(const struct mu_static_place *place); /* borrows */
/* What next_rendezvous() returns. */
struct muster_rdzv_info mu_static_info(const struct mu_static_place *place, struct muster_store *store);
/* Turns a store's error into a rendezvous error and puts the place in front of its text. Returns the code. */
int mu_static_error(const struct mu_static_place *place, int rc, struct muster_error *reterr);
/* Warns if rank 0 has to listen on every address. */
void mu_static_warn_of_bind(const struct mu_static_place *place, const struct mu_bind_plan *plan);

/* blocking_static_uv.c needs it of static_uv.c. Takes the place, also on failure. */
int mu_static_start_at(struct uv_loop_s *loop, struct mu_static_place *place, const char *local_addr,
                       muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                       struct muster_error *reterr);

#endif
