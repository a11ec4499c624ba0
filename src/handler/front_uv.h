/* A handler in front of a dynamic rendezvous whose back end has to be found first. What is asked meanwhile waits (early.h); when
 * the back end is there, the handler within is made on it, and everything goes to that. If there is none, what was asked has
 * failed, and the next ask begins anew. */
#ifndef MU_HANDLER_FRONT_UV_H
#define MU_HANDLER_FRONT_UV_H

#include "handler/early.h"
#include "handler/handler.h"

#include <uv.h>

struct mu_front;

struct mu_front_ops {
    const struct muster_handler_ops *handler;
    const struct mu_handler_ops *agent;
    void (*begin)(struct mu_front *front); /* finds the back end, from the loop; ends with mu_front_run() or _fail() */
    /* It is being freed, and nothing is left to be closed: may close more (mu_front_hold()), or ends with mu_front_free(). */
    void (*over)(struct mu_front *front);
};

struct mu_front { /* first member of its handler, which fills in the first part */
    struct mu_handler handler;
    char *run_id, *local_addr;     /* its own */
    char *bind_hosts, *bind_allow; /* by mu_front_take_places() */
    struct mu_boot_master master;  /* the same */
    int64_t local_id;              /* by mu_front_draw() */
    bool use_agent_store;
    /* The rest is its own. */
    const struct mu_front_ops *ops;
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    uv_timer_t timer; /* to begin; from then on the handler's */
    uv_timer_t news;  /* for LEFT */
    struct mu_early early;
    struct mu_kv *kv; /* until the handler within owns it */
    struct muster_handler *inner;
    bool failed;    /* the next ask begins anew */
    size_t handles; /* that are still to be given back by the loop */
    bool freeing;
    void (*on_freed)(void *ctx);
    void *freed_ctx;
};

/* Who this node is, and a seed for whatever else is random. */
int mu_front_draw(struct mu_front *front, uint64_t *ret_seed, struct muster_error *reterr);

/* The options `bind`, `allow`, `master_addr` and `master_port`. */
int mu_front_take_places(struct mu_front *front, const struct muster_rdzv_params *params, struct muster_error *reterr);
struct mu_bind mu_front_bind(const struct mu_front *front);

/* Nothing is told before this has returned; it begins by itself. What it returns is its handler. */
struct muster_handler *mu_front_open(struct mu_front *front, const struct mu_front_ops *ops, uv_loop_t *loop,
                                     muster_rdzv_listener *listener, void *ctx);

/* The back end is front->kv: makes the handler within. */
void mu_front_run(struct mu_front *front, const struct mu_dynamic_config *config);
/* There is none, with that code. */
void mu_front_fail(struct mu_front *front, int code, struct muster_error *error);
void mu_front_close_kv(struct mu_front *front); /* if there is one */

/* Something of its handler's is the loop's from now on, and until mu_front_drop(), which may be the last thing it does. */
void mu_front_hold(struct mu_front *front);
void mu_front_drop(struct mu_front *front);
void mu_front_free_texts(struct mu_front *front); /* for a handler that was not opened */
/* Frees the texts and the handler, and tells its owner. */
void mu_front_free(struct mu_front *front);

/* For its handler's table. */
void mu_front_join(struct muster_handler *handler);
void mu_front_leave(struct muster_handler *handler);
void mu_front_close(struct muster_handler *handler);
void mu_front_look(struct muster_handler *handler);
bool mu_front_use_agent_store(const struct muster_handler *handler);
/* `alone` when no other process is connected to the workers' store; not at all where it is not here. */
void mu_front_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx);
bool mu_front_hosts_workers(const struct mu_front *front); /* their store is here */
void mu_front_end(struct muster_handler *handler, void (*done)(void *ctx), void *ctx);

#endif
