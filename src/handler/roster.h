/* Who is in a static group, as rank 0 sees it, and the texts that rank 0 and the other nodes exchange. Pure.
 *
 * A node of ours announces itself before it is counted, so that rank 0 knows which connection is whose. Nodes of
 * PyTorch, and blocking calls of this library, are counted without a name. */
#ifndef MU_HANDLER_ROSTER_H
#define MU_HANDLER_ROSTER_H

#include "base/error.h"
#include "base/list.h"
#include "base/slice.h"

#include <stddef.h>

#define MU_ROSTER_NAME_MAX 256
#define MU_ROSTER_RECORD_MAX 320 /* "SEED PID NAME" */
#define MU_ROSTER_SHOWN_MAX 16   /* nodes that a progress names */
#define MU_ROSTER_TEXT_MAX (64 + MU_ROSTER_SHOWN_MAX * MU_ROSTER_RECORD_MAX)

struct mu_roster_node {
    int64_t rank, pid;
    uint64_t connection;
    char name[MU_ROSTER_NAME_MAX];
    char record[MU_ROSTER_RECORD_MAX];
    bool counted, left; /* left: it has said goodbye */
    struct mu_list link;
};

struct mu_roster {
    struct mu_list nodes; /* by rank */
    int64_t count;        /* of nodes that were ever counted */
    int64_t departed;     /* of those, the ones that are gone */
};

void mu_roster_init(struct mu_roster *roster);
void mu_roster_done(struct mu_roster *roster);

/* What node `rank` announces: its record with its rank in front. The record says who holds a rank. */
void mu_roster_record(uint64_t seed, int64_t pid, const char *name, char record[static MU_ROSTER_RECORD_MAX]);
/* False: it is no record. */
bool mu_roster_read_record(struct mu_slice record, int64_t *ret_pid, char name[static MU_ROSTER_NAME_MAX]);

/* "RANK RECORD": the node of that connection is this one. "left": it says goodbye. What is neither is dropped. */
int mu_roster_announced(struct mu_roster *roster, uint64_t connection, struct mu_slice text);
/* `count` nodes were counted, the last of them by that connection. */
void mu_roster_counted(struct mu_roster *roster, uint64_t connection, int64_t count);
/* The connection is gone. NULL: no node has announced itself there. The caller owns it. */
struct mu_roster_node *mu_roster_take(struct mu_roster *roster, uint64_t connection);
bool mu_roster_is_empty(const struct mu_roster *roster);   /* no node is announced */
int64_t mu_roster_present(const struct mu_roster *roster); /* that were counted and are not gone */

/* What rank 0 tells the others while it waits: who is in. */
struct mu_roster_progress {
    bool open; /* all are in */
    int64_t joined;
    struct muster_node nodes[MU_ROSTER_SHOWN_MAX]; /* names are in `names` */
    size_t nodes_count;
    char names[MU_ROSTER_SHOWN_MAX][MU_ROSTER_NAME_MAX];
};

void mu_roster_progress(const struct mu_roster *roster, bool open, struct mu_roster_progress *ret_progress);
size_t mu_roster_write_progress(const struct mu_roster_progress *progress, char text[static MU_ROSTER_TEXT_MAX]);
bool mu_roster_read_progress(struct mu_slice text, struct mu_roster_progress *ret_progress); /* false: it is none */

#endif
