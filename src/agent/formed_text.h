/* The lines about a group that has formed: one for people, the result for scripts, and the members. Pure. */
#ifndef MU_AGENT_FORMED_TEXT_H
#define MU_AGENT_FORMED_TEXT_H

#include "agent/worker_env.h"

#define MU_FORMED_LINE_MAX 1024    /* bytes of a line, the NUL included */
#define MU_FORMED_MEMBERS_A_LINE 8 /* nodes that one line about members names */
#define MU_FORMED_RANKS_SHOWN 64   /* more workers than that are shown by the first and the last of them */

struct mu_formed {                /* borrows texts */
    int64_t round;                /* -1: the back end has no rounds */
    struct mu_agent_worker first; /* of this node's workers. Its local_world_size: how many they are; nodes may differ.
                                   * Its master_addr "": not known */
    int64_t regroup_ms;           /* since the group before it ended; -1: it is the first */
    int64_t restarts_used, max_restarts; /* used: that count against the maximum, which may be fewer than there were */
    /* For the result alone. */
    const char *role;
    const char *event_log_handler; /* NULL: not known, and not said */
};

/* "group formed: 4 nodes, 32 workers, round 0; this node: rank 2 (workers 16-23); master 10.0.0.5:41233". After
 * another group: "...; regrouped in 1.500 s, restarts used: 1 of 3" */
void mu_formed_say(const struct mu_formed *formed, char line[static MU_FORMED_LINE_MAX]);

/* The result of the rendezvous in PyTorch's words, which scripts read: "[default] Rendezvous complete for workers.
 * Result:", then a line for each value, " restart_count=0". Lists are of this node's workers: " global_ranks=[16, 17]".
 * Line `index` counts from 0; false: there is no such line. */
bool mu_formed_say_result(const struct mu_formed *formed, unsigned index, char line[static MU_FORMED_LINE_MAX]);

/* The next members in the order of their ranks, beginning with that of rank `first`: "round 0, ranks 8-15: node1 (pid
 * 7), ...". Returns the rank that the next line begins with; `count` when all have been named. */
size_t mu_formed_say_members(int64_t round, const struct muster_node *nodes, size_t count, size_t first,
                             char line[static MU_FORMED_LINE_MAX]);

#endif
