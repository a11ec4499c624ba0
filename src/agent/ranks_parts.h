/* The insides of the ranks machine, for ranks.c (who is which rank) and ranks_count.c (how many restarts were used). */
#ifndef MU_AGENT_RANKS_PARTS_H
#define MU_AGENT_RANKS_PARTS_H

#include "agent/ranks.h"
#include "base/arena.h"
#include "base/buf.h"
#include "rdzv/foreign.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define KEY_OF_RANK "%s%s%" PRId64 /* prefix, name, rank */
#define INFO_113 "torchelastic/role_info"
enum {
    VALUE_EXTRA = 128, /* of a value, beside the role and what is settled */
    VALUE_MAX = 16384, /* of others' values */
    SETTLED_JSON_MAX = 2 * MU_SETTLEMENT_TEXT_MAX,
    AGAIN_TEXT_MAX = 160,
};

enum what {
    BUDGET_LOOK,
    BUDGET_SET,
    MISSING_DONE, /* index: in last.missing */
    MISSING_NOTE,
    COUNT_SET,
    COUNT_GET,
    INFO_SET,
    INFO_GET,
    ASSIGNED_SET,
    ASSIGNED_GET,
    FIN_SET,
    FIN_GET,
    ADDR_GET,
    PORT_GET,
};

struct role {
    char *name;
    int64_t workers; /* all of them */
    int64_t next;    /* the role rank of the next agent's first one */
};

struct info { /* of one agent */
    int32_t size, role;
};

struct mu_ranks {
    struct mu_ranks_effects *out; /* of this step ... */
    uint64_t now_ms;              /* ... and its time */

    struct mu_arena names; /* run_id, role and the prefixes */
    const char *run_id, *role;
    char *role_json;
    char *prefix, *job_prefix, *own_prefix, *last_prefix; /* R, M, T, T of the round before */
    size_t prefix_room;
    int64_t size;
    bool identical;
    uint64_t timeout_ms;

    enum mu_ranks_state state;
    struct mu_round start;
    uint64_t start_ms, deadline_ms, again_ms;
    struct mu_asks asks;
    int64_t cursor; /* the next one of the ranks that are asked about; SETTLING: of last.missing */
    int64_t next_base;
    struct info *infos; /* by rank; rank 0 of 2.x only */
    struct role *roles;
    size_t roles_count;
    int64_t known;                      /* the job's count, as far as we were told */
    struct mu_settlement last;          /* as far as all members know */
    bool settled;                       /* notes and marks of the missing are read */
    bool used_up;                       /* the last round is charged, and that is more than the job has */
    bool has_found;                     /* it was read */
    struct mu_restart_budget found;     /* what the budget says, or should */
    struct mu_restart_budget later;     /* a later round that it named, for which we joined again; round 0: none */
    struct mu_buf budget;               /* what is in the store; empty: nothing */
    char wanted[MU_RESTART_BUDGET_MAX]; /* what is to be there */
    struct mu_ranks_result result;
    char settled_json[SETTLED_JSON_MAX]; /* with a comma before it; empty: nothing was settled */
    char text[AGAIN_TEXT_MAX], warning[MU_FOREIGN_TEXT_MAX];
    struct muster_error error;
};

/* ranks.c */
void mu_ranks_enter(struct mu_ranks *r, enum mu_ranks_state state);
struct mu_ranks_effect *mu_ranks_emit(struct mu_ranks *r, enum mu_ranks_effect_type type);
void mu_ranks_end(struct mu_ranks *r, enum mu_ranks_state state);
void mu_ranks_fail(struct mu_ranks *r);
void mu_ranks_again(struct mu_ranks *r);
void mu_ranks_meet(struct mu_ranks *r);

/* ranks_count.c */
void mu_ranks_look_at_budget(struct mu_ranks *r);
void mu_ranks_fix_count(struct mu_ranks *r);
void mu_ranks_ask_about_missing(struct mu_ranks *r);
void mu_ranks_take_budget(struct mu_ranks *r, const struct mu_ask_slot *slot, struct mu_slice value);

#endif
