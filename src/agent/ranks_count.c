/* How many restarts there were: the budget is read, a claimed failure is settled, and the round is put there. See
 * ranks.h and settlement.h. */
#include "agent/ranks_parts.h"

/* ---- From state to state ---- */

void mu_ranks_look_at_budget(struct mu_ranks *r)
{
    (void)mu_asks_look(&r->asks, BUDGET_LOOK, -1, "%sbudget", r->job_prefix);
    mu_ranks_enter(r, MU_RANKS_COUNTING);
}

/* ", \"lost ...\"", for behind the assigned ranks. What is no text for JSON is not told to the others. */
static void write_settled(struct mu_ranks *r)
{
    json_t *json = json_string(r->result.settled);
    size_t room = sizeof r->settled_json - 3;
    size_t len = json == NULL ? 0 : json_dumpb(json, r->settled_json + 2, room, JSON_ENCODE_ANY);

    json_decref(json);
    if (len == 0 || len > room)
        return;
    memcpy(r->settled_json, ", ", 2);
    r->settled_json[2 + len] = '\0';
}

static bool is_of_last_round(const struct mu_ranks *r)
{
    return r->found.round == r->last.round && r->found.tag == r->last.tag;
}

/* The charge is settled, as far as there is one: the round is put into the budget's key. If no restart is left for it,
 * it is put there as a claim: should we die before the job is failed, the next rank 0 comes to the same end. */
void mu_ranks_fix_count(struct mu_ranks *r)
{
    bool is_known = is_of_last_round(r) || r->found.used_up;
    bool free =
        r->found.charged && !r->found.used_up && r->settled && is_of_last_round(r) && mu_settlement_is_free(&r->last);
    bool is_too_much = r->found.charged && r->found.count > r->start.max_restarts;
    int64_t count = is_too_much && !is_known ? r->start.max_restarts : r->found.count - (free ? 1 : 0);
    struct mu_restart_budget ours = { .count = count > r->known ? count : r->known,
                                      .round = r->start.round,
                                      .tag = r->start.tag };

    r->used_up = is_too_much && is_known && !free;
    (void)mu_restart_budget_write(r->wanted, &ours, r->used_up ? MU_RESTART_BUDGET_USED_UP : NULL);
    r->result.settled[0] = r->settled_json[0] = '\0';
    if (free) {
        mu_settlement_say(&r->last, r->start.world_size, r->result.settled);
        write_settled(r);
    }
    mu_asks_put(&r->asks, MU_ASK_COMPARE_SET, BUDGET_SET, -1, mu_slice_str(r->wanted), "%sbudget", r->job_prefix)
        ->ask.expected = mu_buf_slice(&r->budget);
    mu_ranks_enter(r, MU_RANKS_FIXING);
}

/* ---- Answers ---- */

static void tell_used_up(struct mu_ranks *r)
{
    (void)snprintf(r->text, sizeof r->text, "%s", r->last.failure);
    mu_ranks_emit(r, MU_RANKS_DO_USED_UP)->text = r->text;
    mu_ranks_end(r, MU_RANKS_FAILED);
}

static void tell_count(struct mu_ranks *r)
{
    char text[32];
    int len = snprintf(text, sizeof text, "%" PRId64, r->result.count);

    if (r->start.world_size == 1) {
        mu_ranks_meet(r);
        return;
    }
    mu_ranks_enter(r, MU_RANKS_ASSIGNING);
    r->cursor = r->next_base = 0;
    if (!r->identical)
        return;
    r->cursor = r->start.world_size;
    (void)mu_asks_put(&r->asks, MU_ASK_SET, COUNT_SET, -1, mu_slice(text, (size_t)len), "%scount", r->own_prefix);
}

/* The budget's key says nothing: what the members know of it. */
static void remember_budget(struct mu_ranks *r)
{
    bool claimed = r->last.failure[0] != '\0';

    r->found = (struct mu_restart_budget){
        .count = r->known + (claimed ? 1 : 0), .round = r->last.round, .tag = r->last.tag, .charged = claimed
    };
}

/* The claim did not reach the key, because the store was away when the worker failed: it counts all the same. */
static struct mu_restart_budget with_claim(const struct mu_ranks *r, struct mu_restart_budget found)
{
    if (r->last.failure[0] != '\0' && !found.charged && found.round == r->last.round && found.tag == r->last.tag) {
        found.count++;
        found.charged = true;
    }
    return found;
}

/* Keeps the window full. */
void mu_ranks_ask_about_missing(struct mu_ranks *r)
{
    for (; r->cursor < (int64_t)r->last.missing.count && mu_asks_free(&r->asks) >= 2; r->cursor++) {
        int64_t rank = r->last.missing.members[r->cursor].rank;

        mu_asks_look(&r->asks, MISSING_DONE, r->cursor, MU_ROUND_DONE_KEY, r->last_prefix, rank)->once = true;
        mu_asks_look(&r->asks, MISSING_NOTE, r->cursor, MU_ROUND_LEFT_KEY, r->last_prefix, rank)->once = true;
    }
}

/* A claimed failure is charged unless a member was lost: what became of those who are missing? */
static void settle(struct mu_ranks *r)
{
    if (!r->found.charged || r->settled || !is_of_last_round(r)) {
        mu_ranks_fix_count(r);
        return;
    }
    mu_ranks_enter(r, MU_RANKS_SETTLING);
    mu_round_own_prefix(r->last_prefix, r->prefix_room, r->run_id, r->last.round, r->last.tag);
    r->cursor = 0;
}

/* Rounds only grow, and each puts its number there. So a round before the last one that ran is not the job's; nor is a
 * later one for which we have joined again, and come to a round before it. */
static bool is_disproved(const struct mu_ranks *r, const struct mu_restart_budget *found)
{
    if (r->last.known && r->start.round > r->last.round && found->round < r->last.round)
        return true;
    return found->round > r->start.round && found->round == r->later.round && found->tag == r->later.tag;
}

/* What is in the key now: the round before, or one that was claimed meanwhile, or nothing that we can read. A store
 * that was lost and came back empty counts from 0 again; the members do not. */
void mu_ranks_take_budget(struct mu_ranks *r, const struct mu_ask_slot *slot, struct mu_slice value)
{
    bool fixing = slot->what == BUDGET_SET;
    bool is_wanted = fixing && mu_slice_equal(value, mu_slice_str(r->wanted));
    struct mu_restart_budget found;
    bool readable = mu_restart_budget_read(value, &found) && !is_disproved(r, &found);

    /* A key that is missing answers what was expected of it, or nothing. */
    if (value.len == 0 ||
        (mu_slice_equal(value, fixing ? mu_slice(r->budget.data, r->budget.len) : mu_slice_str(MU_ASK_NOTHING)) &&
         !is_wanted))
        value.len = 0;
    if (value.len > 0 && readable && fixing && found.round == r->start.round && found.tag == r->start.tag) {
        r->result.count = found.count;
        if (r->used_up)
            tell_used_up(r);
        else
            tell_count(r);
    } else if (value.len > 0 && readable && found.round > r->start.round) {
        r->later = found;
        (void)snprintf(r->text, sizeof r->text, "round %" PRId64 " has begun without this node", found.round);
        mu_ranks_again(r);
    } else {
        r->budget.len = 0;
        if (mu_buf_append(&r->budget, value.data, value.len, SIZE_MAX) < 0) {
            (void)mu_fail(&r->error, MUSTER_ENOMEM, "no memory for the restart budget");
            mu_ranks_fail(r);
            return;
        }
        if (value.len > 0 && readable)
            r->found = with_claim(r, found);
        else if (!r->has_found)
            remember_budget(r);
        r->has_found |= value.len > 0 && readable;
        if (value.len > 0 && !readable) {
            mu_foreign_say(r->warning, "the restart budget", slot->key, value, "putting it back");
            mu_ranks_emit(r, MU_RANKS_DO_WARN)->text = r->warning;
        }
        settle(r);
    }
}
