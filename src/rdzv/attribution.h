/* Why a round ended, and what that costs the job. Pure: the leader of a rendezvous (leader.c) fills it in when the
 * round is over, and every node is told the same words.
 *
 * 1. A member was lost without being done, and its loss was noticed soon enough after the first failure to be its
 *    cause: the loss is it. It is named, and costs nothing. What others reported is a consequence. A member that has
 *    joined the next round is not lost from this one.
 * 2. Otherwise what was reported first. A failure costs one restart. That a node left, or that nodes wanted to join,
 *    costs nothing, and failures that were reported after it are consequences.
 * 3. Otherwise nodes came or went: that costs nothing. */
#ifndef MU_RDZV_ATTRIBUTION_H
#define MU_RDZV_ATTRIBUTION_H

#include "rdzv/fold_doc.h"

#define MU_ATTRIBUTION_NAMED 3      /* nodes; the others are counted */
#define MU_ATTRIBUTION_LATE_MS 2000 /* beside the time in which a loss is noticed */

enum mu_attribution_first { MU_ATTRIBUTION_NOTHING, MU_ATTRIBUTION_FAILED, MU_ATTRIBUTION_LEFT, MU_ATTRIBUTION_AGAIN };

struct mu_attribution {              /* zeroed memory: nothing is known */
    enum mu_attribution_first first; /* that was reported */
    int64_t lost;
    char lost_names[MU_ATTRIBUTION_NAMED][MU_FOLD_SHOWN_MAX]; /* the first of them, as many as are known */
    const char *how;                                          /* they were lost */
    bool failed;                                              /* somebody's worker has, first or later */
    int64_t failed_rank;                                      /* of the worker */
    char failed_node[MU_FOLD_SHOWN_MAX];
    char failed_text[MU_FOLD_CAUSE_MAX]; /* a sentence with rank, node and how it ended; "": not known */
    char left_node[MU_FOLD_SHOWN_MAX], left_text[MU_FOLD_CAUSE_MAX];
    int64_t newcomers;
    char newcomer[MU_FOLD_SHOWN_MAX];
};

/* Whether a loss that was noticed at `lost_ms` can have caused a failure of `failed_ms`, if it takes `notice_ms` to
 * notice one. */
bool mu_attribution_is_cause(uint64_t lost_ms, uint64_t failed_ms, uint64_t notice_ms);
int64_t mu_attribution_cost(const struct mu_attribution *a); /* restarts */
/* "lost node9: no keep-alive for 10 s", "rank 12 on node3 (...) failed: exit code 1", "node7 left (...)" */
void mu_attribution_cause(const struct mu_attribution *a, char text[static MU_FOLD_CAUSE_MAX]);
/* "rank 12 on node3 (...) failed: exit code 1; no restarts left (max restarts: 3)" */
void mu_attribution_end(const struct mu_attribution *a, int64_t max, char text[static MU_FOLD_CAUSE_MAX]);
/* "lost node9: no keep-alive for 10 s; rank 12's failure on node3 is a consequence; restarting with 3 nodes, no restart
 * charged". `nodes`: of the next round; `count`, `max`: restarts with this one, and at most. */
void mu_attribution_why(const struct mu_attribution *a, int64_t nodes, int64_t count, int64_t max,
                        char text[static MU_FOLD_WHY_MAX]);

#endif
