/* What a round that a worker's failure ended costs. Pure; a part of ranks.h's machine.
 *
 * The rule: a failure is charged when the next round forms, by rank 0 of that round, before any worker starts.
 *   - A member of the failed round is missing in the new one, and has neither been done nor said goodbye: it was lost.
 *     The loss is the cause, and it is named. The failures of others are its consequences. Nothing is charged.
 *   - Otherwise one restart is charged, however many workers failed. If that is one more than the job has, there is no
 *     such round: rank 0 fails the job instead of telling the others their ranks.
 *
 * Until then the charge stands in the budget's key as a claim (restart_budget.h): one restart more, and the name of the
 * node that claims it. A collective fails at once when its peer is killed, but a loss is noticed seconds later; so
 * nobody can tell them apart when the worker fails. The new round cannot form before the loss was noticed.
 *
 * Who knows what: every member of the failed round compares its members with those of the new round, and tells rank 0
 * with its role info who is missing, and whose failure it has claimed. Rank 0 may be new itself. It reads the done
 * marks and the notes (vanished.h) of the missing ones, settles, and tells everybody the count and one sentence with
 * their ranks.
 *   - A member that comes back as another process is missing all the same. A keeper's note ("its agent was killed")
 *     says how a member was lost. A note that says "again" was written when the round ended: what came later is not the
 *     cause.
 *   - A node that has told a loss as the cause of its worker's failure, and so did not fail the job, tells that loss
 *     with its role info. So does a node that was removed from the round, because it was paused, and comes back as the
 *     same process. Nothing is charged then.
 *   - A store that does not answer has no goodbye: nothing is charged. A store that has lost the budget has not lost
 *     the claim, which the role infos tell as well. A member that has claimed a failure may miss the round in which it
 *     is settled, so every role info names its last round: a claim of an older one is not charged again.
 *   - Every missing member is judged. Of more than MU_VANISHED_NAMED_MAX + MU_SETTLEMENT_RANKS_MAX a rank 0 that was
 *     not in the failed round is told only the first.
 *   - If no member of the failed round is in the new one (spares have all its places, or a job that was killed whole is
 *     started again), nobody knows who is missing, and the restart is charged, unless that would end the job. So it is
 *     with identical workers, who tell no role infos, if rank 0 was not in that round.
 *   - With a PyTorch member in the round each agent counts its own failures, as PyTorch does. Nothing is settled.
 *
 * If no restart is left when a worker fails, the job may only be failed when it is known that nobody was lost: see
 * completion_accounts.c. */
#ifndef MU_AGENT_SETTLEMENT_H
#define MU_AGENT_SETTLEMENT_H

#include "agent/vanished.h"
#include "base/error.h"

#include <jansson.h>

#define MU_SETTLEMENT_FAILURE_MAX 160
#define MU_SETTLEMENT_RANKS_MAX 256 /* missing members that are told by their rank alone, beside those with a name */
#define MU_SETTLEMENT_TEXT_MAX 640
#define MU_SETTLEMENT_JSON_MAX                                                                                         \
    (2 * (MU_VANISHED_NAMED_MAX * (MU_VANISHED_NAME_MAX + 32) + 2 * MU_SETTLEMENT_FAILURE_MAX) +                       \
     8 * MU_SETTLEMENT_RANKS_MAX + 128)

struct mu_settlement {
    bool known;    /* else nothing is: zeroed memory */
    int64_t round; /* the last one whose ranks were assigned */
    uint64_t tag;
    char failure[MU_SETTLEMENT_FAILURE_MAX]; /* that was claimed: "rank 12's failure on node3"; empty: none */
    char loss[MU_SETTLEMENT_FAILURE_MAX];    /* that was told as its cause: "lost node9: no heartbeat for 5 s" */
    struct mu_vanished missing;              /* its members that are not in the new round */
};

/* Both need zeroed memory, or an earlier one. mu_vanished_done(&settlement->missing) frees all. */
void mu_settlement_begin(struct mu_settlement *settlement, int64_t round,
                         uint64_t tag); /* nothing is said against it */
void mu_settlement_copy(struct mu_settlement *to, const struct mu_settlement *from);

/* As JSON, for a role info. A round that nothing is said against is told, too: what was claimed before it is settled.
 * Returns the length; 0: nothing is known, or there is no memory for it. */
size_t mu_settlement_write(const struct mu_settlement *settlement, char text[static MU_SETTLEMENT_JSON_MAX]);
/* What another member tells, in addition to what is known. Anything else that is found there is ignored. */
void mu_settlement_add(struct mu_settlement *settlement, const json_t *json);

bool mu_settlement_is_free(const struct mu_settlement *settlement); /* once notes and marks are read */
/* "lost node9: its agent was killed; rank 12's failure on node3 is a consequence; restarting with 3 nodes, ..." */
void mu_settlement_say(const struct mu_settlement *settlement, int64_t nodes, char text[static MU_SETTLEMENT_TEXT_MAX]);

#endif
