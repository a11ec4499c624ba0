/* What an agent does, for `-vv`: one line for each step of its policy that leads somewhere. Pure: texts out. */
#ifndef MU_AGENT_TRACE_H
#define MU_AGENT_TRACE_H

#include "agent/policy.h"

#define MU_TRACE_LINE_MAX 512

struct mu_trace { /* borrows; as mu_job_config.on_step() is told it */
    const char *role;
    const struct mu_policy_event *event;
    enum mu_policy_phase before, after;
    const struct mu_policy_effects *effects;
};

/* "[default] worker exited (exit code 1): running -> stopping workers; stop workers with SIGTERM, kill them after 30000
 * ms". False: nothing has changed, and there is nothing to say. */
bool mu_trace_say(const struct mu_trace *trace, char ret_line[static MU_TRACE_LINE_MAX]);

#endif
