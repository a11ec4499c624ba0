/* The states of an agent's group of workers, which its workers share, and which may follow which. Names as
 * PyTorch's. */
#ifndef MU_AGENT_GROUP_STATES_H
#define MU_AGENT_GROUP_STATES_H

#include "events/agent_event.h"

#define MU_GROUP_STATES(X)                                                                                             \
    X(UNKNOWN, "UNKNOWN")     /* a start or stop was applied only in part: the agent ends with an error */             \
    X(INIT, "INIT")           /* no worker was started yet */                                                          \
    X(HEALTHY, "HEALTHY")     /* all are running, or have succeeded */                                                 \
    X(UNHEALTHY, "UNHEALTHY") /* one hangs where no signal reaches it; ends as FAILED */                               \
    X(STOPPED, "STOPPED")     /* between two rounds */                                                                 \
    X(SUCCEEDED, "SUCCEEDED") /* all have; what they left behind may still be stopped */                               \
    X(FAILED, "FAILED")       /* one has, and the others are being stopped; or it was the job's last failure */

enum mu_group_state {
#define X(name, text) MU_GROUP_##name,
    MU_GROUP_STATES(X)
#undef X
};

#define MU_GROUP_STATES_COUNT ((size_t)MU_GROUP_FAILED + 1)

const char *mu_group_state_name(enum mu_group_state value);
bool mu_group_state_is_running(enum mu_group_state state); /* HEALTHY, UNHEALTHY */
/* A state may always follow itself. */
bool mu_group_state_may_follow(enum mu_group_state from, enum mu_group_state to);

/* What is recorded of one worker in the end. */
enum mu_agent_event_state mu_worker_end_of(enum mu_group_state group, bool has_failure);

#endif
