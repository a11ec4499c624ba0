/* A library user's worker spec: its checks, a copy of our own, and what a worker of it finds in its environment. No
 * loop. */
#ifndef MU_AGENT_SPEC_H
#define MU_AGENT_SPEC_H

#include "agent/worker_env.h"
#include "base/arena.h"
#include "handler/boot.h"
#include "logs/redirects.h"
#include "proc/signals.h"

#include <stdint.h>

#define MU_SPEC_WORKERS_MAX 4096 /* of one agent */
#define MU_SPEC_SHUTDOWN_MS 30000

struct mu_spec {
    /* A complete copy: we own all that it points to, except registry, handler, driver and contexts. With a handler,
     * rdzv has its name and its run id. */
    struct muster_worker_spec given;
    struct mu_redirects redirects, tee;
    struct mu_signals signals;
    struct mu_boot_master master;
    struct mu_arena arena;
};

/* MUSTER_EINVAL or MUSTER_ELIMIT naming the field; MUSTER_ENOMEM. On failure *ret_spec need not be given back. */
int mu_spec_init(struct mu_spec *ret_spec, const struct muster_worker_spec *spec, struct muster_error *reterr);
void mu_spec_done(struct mu_spec *spec);

/* What a worker of it is started with: `inherited`, and RANK and so on on top. One block for free(), whose inherited
 * texts are borrowed. NULL: no memory. */
char **mu_spec_environment(const struct mu_spec *spec, const struct mu_agent_worker *worker,
                           const char *const *inherited);

/* A copy of `group` and what it points to, in one block for free(). NULL: no memory. */
struct muster_worker_group *mu_worker_group_copy(const struct muster_worker_group *group);

#endif
