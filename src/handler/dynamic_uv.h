/* The dynamic rendezvous: one document in a back end (rdzv.h). A handler whose back end has to be found first has
 * it as its first member, and a table that says how that is done: c10d_uv.c, etcd_v2_uv.c. */
#ifndef MU_HANDLER_DYNAMIC_UV_H
#define MU_HANDLER_DYNAMIC_UV_H

#include "base/arena.h"
#include "handler/dynamic.h"
#include "handler/inquiry.h"
#include "handler/shell_uv.h"
#include "kv/kv.h"
#include "rdzv/rdzv.h"

struct mu_dynamic;

struct mu_finder_ops { /* a constant */
    size_t size;       /* of the handler, which begins with a struct mu_dynamic */
    const struct muster_handler_ops *handler;
    const struct mu_handler_ops *agent;
    /* What only this back end reads; *config has the rest. Texts that it puts there are copied. */
    int (*read)(struct mu_dynamic *d, const struct muster_rdzv_params *params, struct mu_dynamic_config *config,
                struct muster_error *reterr);
    void (*find)(struct mu_dynamic *d);    /* from the loop; ends with mu_dynamic_run() or mu_dynamic_fail() */
    void (*on_time)(struct mu_dynamic *d); /* perhaps shell.also_ms has come. May be NULL */
    void (*forget)(struct mu_dynamic *d);  /* it is about to be freed: wipes secrets. May be NULL */
    void (*last)(struct mu_dynamic *d);    /* the rest is closed: closes what is left, mu_shell_drop(). May be NULL */
};

struct mu_dynamic {
    struct mu_shell shell;
    const struct mu_finder_ops *finder; /* NULL: the back end is there */
    struct mu_arena texts;              /* of the configuration, and for the finder */
    struct mu_dynamic_config config;
    struct mu_kv *kv;     /* NULL: there is none, or not yet */
    uint64_t seed;        /* random; for the finder */
    struct mu_rdzv *rdzv; /* NULL while the back end is being looked for */
    struct mu_dynamic_place place;
    struct mu_inquiry inquiry;
};

/* For a mu_handler_start. The finder begins by itself, from the loop. */
int mu_dynamic_start_finder(const struct mu_finder_ops *finder, struct uv_loop_s *loop,
                            const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                            struct muster_handler **ret_handler, struct muster_error *reterr);

/* The back end is d->kv. False: nothing could be made of it; it was closed, and the owner has heard. */
bool mu_dynamic_run(struct mu_dynamic *d, const struct mu_dynamic_place *place);
void mu_dynamic_fail(struct mu_dynamic *d, const struct muster_error *error); /* there is none */
void mu_dynamic_close_kv(struct mu_dynamic *d);                               /* if there is one */

/* For a finder that has found something else than a back end for a document: in the table of what drives that. */
void mu_dynamic_find(struct mu_shell *shell);
void mu_dynamic_last(struct mu_shell *shell);
void mu_dynamic_destroy(struct mu_shell *shell);

/* For the handler's table. */
#define MU_DYNAMIC_OPS(text)                                                                                           \
    MU_HANDLER_OPS(text), .use_agent_store = mu_dynamic_use_agent_store, .when_alone = mu_dynamic_when_alone,          \
                          .free = mu_dynamic_free
bool mu_dynamic_use_agent_store(const struct muster_handler *handler);
/* `alone` when no other process is connected to the workers' store; not at all where it is not here. */
void mu_dynamic_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx);
void mu_dynamic_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx);

#endif
