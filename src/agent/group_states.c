/* The states of a group of workers, and which may follow which. */
#include "agent/group_states.h"

#include "base/texts.h"

MU_DEFINE_TEXTS(mu_group_state_name, enum mu_group_state, MU_GROUP_STATES)

#define BIT(state) (1U << MU_GROUP_##state)

/* By state: those that may follow it. */
static const unsigned followers[MU_GROUP_STATES_COUNT] = {
    [MU_GROUP_UNKNOWN] = 0,
    [MU_GROUP_INIT] = BIT(HEALTHY) | BIT(UNKNOWN),
    [MU_GROUP_HEALTHY] = BIT(SUCCEEDED) | BIT(FAILED) | BIT(UNHEALTHY) | BIT(STOPPED) | BIT(UNKNOWN),
    [MU_GROUP_UNHEALTHY] = BIT(FAILED) | BIT(STOPPED) | BIT(UNKNOWN), /* stopped after all, it may be started again */
    [MU_GROUP_STOPPED] = BIT(HEALTHY) | BIT(FAILED) | BIT(UNKNOWN),   /* failed: there is no next round */
    [MU_GROUP_SUCCEEDED] = 0,
    [MU_GROUP_FAILED] = BIT(STOPPED), /* restarts are left, or the store may know of some */
};

bool mu_group_state_is_running(enum mu_group_state state)
{
    return state == MU_GROUP_HEALTHY || state == MU_GROUP_UNHEALTHY;
}

bool mu_group_state_may_follow(enum mu_group_state from, enum mu_group_state to)
{
    return from == to || (followers[from] >> to & 1U) != 0;
}

enum mu_agent_event_state mu_worker_end_of(enum mu_group_state group, bool has_failure)
{
    if (has_failure)
        return MU_EVENT_FAILED;
    return group == MU_GROUP_FAILED ? MU_EVENT_TERMINATED : MU_EVENT_SUCCEEDED;
}
