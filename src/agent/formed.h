/* The lines that say who is in a group that has formed. Pure: facts in, words out. */
#ifndef MU_AGENT_FORMED_H
#define MU_AGENT_FORMED_H

#include "muster.h"

#define MU_FORMED_LINE_MAX 512     /* bytes of a line, the NUL included */
#define MU_FORMED_MEMBERS_A_LINE 8 /* nodes that one line about members names */

struct mu_formed {           /* borrows the address */
    int64_t round;           /* -1: the back end has no rounds */
    int64_t nodes, workers;  /* of the whole group */
    int64_t rank;            /* this node's */
    int64_t first_worker;    /* the lowest RANK of this node's workers */
    int64_t local_workers;   /* how many they are; nodes may differ */
    const char *master_addr; /* "": not known */
    uint16_t master_port;
    int64_t regroup_ms; /* since the group before it ended; -1: it is the first */
    int64_t restarts, max_restarts;
};

/* "group formed: 4 nodes, 32 workers, round 0; this node: rank 2 (workers 16-23); master 10.0.0.5:41233". After
 * another group: "...; regrouped in 1.500 s, restarts used: 1 of 3" */
void mu_formed_say(const struct mu_formed *formed, char line[static MU_FORMED_LINE_MAX]);

/* The next members in the order of their ranks, beginning with that of rank `first`: "round 0, ranks 8-15: node1 (pid 7), ...".
 * Returns the rank that the next line begins with; `count` when all have been named. */
size_t mu_formed_say_members(int64_t round, const struct muster_node *nodes, size_t count, size_t first,
                             char line[static MU_FORMED_LINE_MAX]);

#endif
