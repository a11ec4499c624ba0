/* Who is which rank: after a round was joined, fixes the round's restart count and exchanges roles and sizes with the
 * other agents. Pure; one machine for an agent's life, started anew for every round.
 *
 * Nobody but us in the round, and there are rounds and a store: by keys of our own.
 *   rank 0:  GATHERING all role infos --> COUNTING: what is the budget? --> FIXING the count --> ASSIGNING --> DONE
 *                                            |a failure is claimed                ^    |no restart is left
 *                                            +--> SETTLING: was a member lost? ---+    +--> FAILED, and so is the job
 *   others:  tell our role info --> AWAITING our ranks and the count --> DONE
 *            --the store was away, and they do not come--> AGAIN: another round is needed
 * Else by those of PyTorch's agents, and each agent counts its own restarts:
 *   2.x, rank 0:  GATHERING all role infos --> ASSIGNING every rank --+
 *   2.x, others:  AWAITING our ranks ---------------------------------+--> MEETING (MASTER_*, if need be) --> DONE
 *   1.13:         GATHERING all --> AGREEING (.FIN; rank 0 awaits all) --> MEETING --> DONE
 * Any of these, at the deadline or after an error that trying again does not mend: FAILED.
 *
 * - The count is the job's: rank 0 takes what the budget says (or what a member knows better, if the store was lost),
 *   puts its round there, and tells everybody with their ranks. Nobody learns it in another way, so there is one count.
 * - Global ranks are counted over the agents in the order of their group ranks, role ranks over those of the same role.
 * - A claimed failure is charged here, or not: the rule is in settlement.h.
 * - A budget that is none (a stranger wrote to its key) is told, and put back as far as the members know it.
 * - Identical workers exchange nothing but the count.
 * - What scales with members is asked for in a window of MU_ASKS_MAX requests.
 * - Role info or ranks of another shape, or with sizes below 1, are an error (MUSTER_EPROTOCOL) that names the key.
 *
 * Keys, with R, M and T as in rdzv/round_keys.h:
 *   M budget; T role_info/<rank>, T ranks/<rank>, T count (identical workers only); of the round before: T done/<rank>,
 *   T left/<rank>;
 *   R torchelastic/role_info/<rank>, R torchelastic/assigned_ranks/<rank>;
 *   1.13: R torchelastic/role_info<rank>, R torchelastic/role_info<rank>.FIN, R MASTER_ADDR, R MASTER_PORT. */
#ifndef MU_AGENT_RANKS_H
#define MU_AGENT_RANKS_H

#include "agent/asks.h"
#include "agent/restart_budget.h"
#include "agent/round.h"

#define MU_RANKS_TIMEOUT_MS 300000 /* for all of it, if the config says nothing else; as PyTorch's */
#define MU_RANKS_AGAIN_MS 10000    /* for what rank 0 tells, once the store was away: it may have told it before */
#define MU_RANKS_ROLE_MAX 1024     /* bytes of a role's name */
#define MU_RANKS_ROLES_MAX 1024    /* different ones in a job */
#define MU_RANKS_WORLD_MAX (1 << 20)
#define MU_RANKS_SIZE_MAX (1 << 20) /* workers of one agent */

#define MU_RANKS_STATES(X)                                                                                             \
    X(IDLE, "idle")                                                                                                    \
    X(GATHERING, "read the role infos")                                                                                \
    X(COUNTING, "read the restart budget")                                                                             \
    X(SETTLING, "read what became of the missing nodes")                                                               \
    X(FIXING, "fix the restart count")                                                                                 \
    X(ASSIGNING, "write the assigned ranks")                                                                           \
    X(AWAITING, "read our assigned ranks")                                                                             \
    X(AGREEING, "agree that all role infos are read")                                                                  \
    X(MEETING, "read MASTER_ADDR and MASTER_PORT")                                                                     \
    X(DONE, "done")                                                                                                    \
    X(FAILED, "failed")

enum mu_ranks_state {
#define X(name, text) MU_RANKS_##name,
    MU_RANKS_STATES(X)
#undef X
};

const char *mu_ranks_state_text(enum mu_ranks_state value);

struct mu_ranks_result {
    int64_t count;                        /* TORCHELASTIC_RESTART_COUNT */
    bool shared;                          /* it is the job's, and so is the budget */
    char settled[MU_SETTLEMENT_TEXT_MAX]; /* why the last round costs nothing; empty: it does, or nobody failed */
    int64_t base_rank, world_size, base_role_rank, role_world_size;       /* worker i is RANK base_rank + i */
    char master_addr[sizeof((struct muster_store_info *)0)->master_addr]; /* with needs_master only; else empty */
    uint16_t master_port;
};

enum mu_ranks_event_type {
    MU_RANKS_ON_START,  /* start. Whatever was under way for another round is dropped */
    MU_RANKS_ON_STOP,   /* the round is over: nothing is under way any more */
    MU_RANKS_ON_ANSWER, /* ASK's answer */
    MU_RANKS_ON_TIME,
};

struct mu_ranks_event { /* borrows what it points to */
    enum mu_ranks_event_type type;
    uint64_t now_ms;
    const struct mu_round *start;
    struct mu_answer answer;
};

enum mu_ranks_effect_type {
    MU_RANKS_DO_ASK,     /* ask */
    MU_RANKS_DO_DONE,    /* result */
    MU_RANKS_DO_USED_UP, /* rank 0: there is no restart left for this round. Text: whose failure; empty: not known */
    MU_RANKS_DO_AGAIN,   /* text, why: the round cannot be agreed upon any more */
    MU_RANKS_DO_FAIL,    /* error */
    MU_RANKS_DO_WARN,    /* text: for the log */
};

struct mu_ranks_effect { /* borrows from the machine, until its next step */
    enum mu_ranks_effect_type type;
    struct mu_ask ask;
    const struct mu_ranks_result *result;
    const char *text;
    const struct muster_error *error;
};

#define MU_RANKS_EFFECTS_MAX (MU_ASKS_MAX + 2)

struct mu_ranks_effects {
    struct mu_ranks_effect items[MU_RANKS_EFFECTS_MAX];
    unsigned count;
};

struct mu_ranks_config { /* copied */
    const char *run_id, *role;
    int64_t local_world_size; /* 1..MU_RANKS_SIZE_MAX */
    bool identical;           /* TORCH_ELASTIC_WORKER_IDENTICAL=1: all agents are like us, nothing is exchanged */
    uint64_t timeout_ms;      /* 0: MU_RANKS_TIMEOUT_MS */
};

struct mu_ranks; /* opaque */

/* MUSTER_EINVAL: a role or a size that is none. MUSTER_ENOMEM. */
int mu_ranks_new(const struct mu_ranks_config *config, struct mu_ranks **ret_ranks, struct muster_error *reterr);
void mu_ranks_free(struct mu_ranks *ranks);

/* Same state, same event, same effects, always. `out` is overwritten. No memory: MU_RANKS_DO_FAIL. */
void mu_ranks_step(struct mu_ranks *ranks, const struct mu_ranks_event *event, struct mu_ranks_effects *out);
uint64_t mu_ranks_deadline_ms(const struct mu_ranks *ranks); /* when TIME is wanted; UINT64_MAX: never */
enum mu_ranks_state mu_ranks_state(const struct mu_ranks *ranks);

#endif
