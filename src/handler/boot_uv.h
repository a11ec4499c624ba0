/* Drives the boot machine (boot.h) on a libuv loop, for the handlers whose rounds end with it: opens and closes the
 * stores of the workers and the agents, connects to ourselves, keeps the time, and hands the requests for the round's
 * keys to the kv or to the handler. A member of its handler, which it never outlives. */
#ifndef MU_HANDLER_BOOT_UV_H
#define MU_HANDLER_BOOT_UV_H

#include "handler/bind_uv.h"
#include "handler/boot.h"
#include "kv/kv.h"

#include <uv.h>

struct mu_placed_server;
struct mu_client;

struct mu_boot_uv_ops {
    /* The round can begin, and its workers meet there. Everything may be called from here, and from on_failed. */
    void (*on_done)(void *ctx, const struct muster_store_info *bootstrap);
    void (*on_failed)(void *ctx, const struct muster_error *error); /* of the kind muster_error_is_rdzv() */
    /* GET, CHECK or SET; what `effect` points to is borrowed until this returns. To be answered once, at any time, also
     * from inside, with mu_boot_uv_answer(). NULL if there is a kv. */
    void (*request)(void *ctx, const struct mu_boot_effect *effect);
};

struct mu_boot_uv_config {
    struct mu_kv *kv;                 /* where the round's keys are; to be closed not before us. NULL: see `request` */
    const struct mu_boot_uv_ops *ops; /* a constant */
    void *ctx;
};

struct mu_boot_uv {
    struct mu_boot machine;
    uv_loop_t *loop;
    struct mu_boot_uv_config config;
    uv_timer_t timer;
    struct mu_placed_server *workers; /* the workers' store, and the agents' */
    struct mu_placed_server *agents;  /* the agents' own, if it is not the workers' */
    struct mu_client *self; /* the connection to the workers' store: to ourselves, or to see that it is there */
    uint64_t self_id;
    /* What is to be done once it is known where to listen for its addr; or REACH, which listens nowhere. */
    struct mu_boot_effect place;
    char place_addr[MU_BOOT_ADDR_MAX];
    enum mu_boot_lookup lookup; /* of where to listen for place.addr */
    struct mu_bind_uv ask;
    struct mu_bind_plan plan; /* the last that came: an answer that waits points to it */
    struct mu_boot_inbox inbox;
    size_t parts; /* that the loop or the kv still has */
    bool closing;
    void (*closed)(void *ctx);
};

/* A `hostname` of NULL is this machine's; `no_localhost` is found out. */
int mu_boot_uv_init(struct mu_boot_uv *boot, const struct mu_boot_config *config, struct muster_error *reterr);
void mu_boot_uv_done(struct mu_boot_uv *boot); /* zeroed memory is fine */

/* From here on it is the loop's, and has to be closed. */
void mu_boot_uv_open(struct mu_boot_uv *boot, uv_loop_t *loop, const struct mu_boot_uv_config *config);
/* Nothing is told any more, from this call on. Requests to the kv are waited for: closing that ends them. `closed`
 * comes from the loop; then the memory is the handler's again. */
void mu_boot_uv_close(struct mu_boot_uv *boot, void (*closed)(void *ctx));

/* A round was joined; ends what was under way for another one. */
void mu_boot_uv_start(struct mu_boot_uv *boot, const struct mu_boot_start *start);
/* The round is over before it began: nothing is told of it any more. */
void mu_boot_uv_stop(struct mu_boot_uv *boot);
/* GOT, MISSING, FOUND, SET or REQUEST_FAILED, with the id of the request. */
void mu_boot_uv_answer(struct mu_boot_uv *boot, struct mu_boot_event event);

/* The workers' store, if it is here; NULL: it is not. */
struct mu_placed_server *mu_boot_uv_workers_store(const struct mu_boot_uv *boot);
/* The store that the agents meet at, if it is here; NULL: it is not. */
struct mu_placed_server *mu_boot_uv_agents_store(const struct mu_boot_uv *boot);

#endif
