/* The group's store as a library user sees it: a struct muster_store that lives as long as its agent and reaches the
 * store of the round that is the group's at the moment of a call. Calls come from any thread; the agent's loop carries
 * them out. */
#ifndef MU_AGENT_GROUP_STORE_UV_H
#define MU_AGENT_GROUP_STORE_UV_H

#include "agent/agent_uv.h"

#include <pthread.h>

struct mu_group_store { /* a member of its owner */
    struct muster_store base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uv_async_t *wake;     /* under lock: of the loop, which then takes its turn. NULL: it does not run */
    pthread_t thread;     /* under lock, with wake: the loop's */
    struct mu_list asked; /* under lock */
};

void mu_group_store_init(struct mu_group_store *store);
void mu_group_store_done(struct mu_group_store *store);

void mu_group_store_open(struct mu_group_store *store, uv_async_t *wake); /* from the thread that will run the loop */
void mu_group_store_turn(struct mu_group_store *store,
                         struct mu_agent *agent);        /* from the loop; NULL: there is no agent */
void mu_group_store_close(struct mu_group_store *store); /* calls that the loop has not taken are canceled */

#endif
