/* What ends a round, and what that costs. See policy.h. */
#include "agent/policy_parts.h"

#include <signal.h>

/* ---- The budget ---- */

static void charged(struct mu_policy *p, int64_t spent)
{
    spent = mu_policy_larger(spent, p->count + 1);
    p->charge = spent > p->max_restarts ? USED_UP : RESTARTS_LEFT;
    p->charge_until_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    if (p->charge == RESTARTS_LEFT) {
        p->count = spent;
        p->own = mu_policy_larger(p->own, spent);
        p->known = p->shared ? mu_policy_larger(p->known, spent) : p->known;
    }
}

/* While the workers are being stopped. Also if nothing is left: whether the job has failed is for its present round to say. */
void mu_policy_charge(struct mu_policy *p, uint64_t now_ms)
{
    struct mu_restart_budget budget = { .count = p->count, .round = p->joined.round, .tag = p->joined.tag };
    struct mu_ask_slot *slot;

    if (!p->shared) {
        charged(p, p->count + 1);
        return;
    }
    p->charge = CHARGING;
    p->charge_ms = now_ms;
    p->charge_until_ms = now_ms + MU_POLICY_CHARGE_MS;
    p->gone = false;
    p->silence.code = 0;
    slot = mu_asks_add(&p->asks, MU_ASK_COMPARE_SET, BUDGET_SET, -1, "%sbudget", p->job_prefix);
    (void)mu_restart_budget_write(p->budget, &budget, NULL);
    budget.count++;
    (void)mu_restart_budget_write(p->paid, &budget, p->node);
    slot->ask.expected = mu_slice_str(p->budget);
    mu_asks_value(&p->asks, slot, mu_slice_str(p->paid));
}

/* The round that a worker's failure ended costs nothing. */
static void uncharge(struct mu_policy *p)
{
    p->charge = UNCHARGED;
    p->charge_until_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    p->fate = REJOIN;
}

/* The others have gone on without us: what our workers write from now on is in their way. */
void mu_policy_be_outdated(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    uncharge(p);
    (void)snprintf(p->why, sizeof p->why, "%s", REMOVED_WHY);
    mu_policy_say(p, out, MUSTER_LOG_WARNING, "%s; restarting the group", p->why);
    mu_policy_stop(p, SIGKILL, 0, now_ms, out);
}

/* The store says nothing. */
void mu_policy_await_budget(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    uint64_t waited_ms = now_ms - p->charge_ms;

    if (p->charge != CHARGING || waited_ms < MU_POLICY_CHARGE_MS)
        return;
    if (p->fate != BUDGET) {
        p->charge_until_ms = UINT64_MAX; /* nothing depends on it any more; it may still be paid for */
    } else if (p->gone && p->count >= p->max_restarts) {
        charged(p, p->count + 1);
    } else if (waited_ms >= p->store_ms) {
        p->charge = UNKNOWN;
        p->charge_until_ms = UINT64_MAX;
        mu_asks_drop(&p->asks);
    } else if (now_ms >= p->charge_until_ms) {
        p->charge_until_ms = p->charge_ms + p->store_ms;
        mu_policy_say(p, out, MUSTER_LOG_WARNING,
                      "waiting up to %" PRIu64 " s for the store to say whether restarts are left%s%.*s",
                      p->store_ms / 1000, p->silence.code != 0 ? ": " : "", TEXT_SHOWN_MAX * 2,
                      p->silence.code != 0 ? p->silence.text : "");
    }
}

/* A store that has forgotten the budget, or cannot say it, leaves us to what we know. */
void mu_policy_on_budget(struct mu_policy *p, const struct mu_answer *answer, uint64_t now_ms,
                         struct mu_policy_effects *out)
{
    struct mu_restart_budget found;

    if (answer->error != NULL || !mu_restart_budget_read(answer->value, &found))
        charged(p, p->count + 1);
    else if (found.round == p->joined.round && found.tag == p->joined.tag)
        charged(p, found.count); /* whoever has paid */
    else if (p->fate == BUDGET)
        mu_policy_be_outdated(p, now_ms, out);
}

/* ---- The rendezvous ---- */

static bool is_old(const struct mu_policy *p, const struct mu_policy_event *event)
{
    return event->round >= 0 && p->joined.round >= 0 && event->round < p->joined.round;
}

/* Those of the others who have not heard of it will find us gone, too, and say the same. */
static void membership_changed(struct mu_policy *p, const char *why, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (p->phase != MU_POLICY_ASSIGNING && !mu_policy_has_workers(p))
        return;
    (void)snprintf(p->text, sizeof p->text, "%s", why);
    mu_policy_note(p, true, p->text, out);
    if (p->phase == MU_POLICY_ASSIGNING) {
        mu_policy_join_again(p, p->text, now_ms, out);
        return;
    }
    (void)snprintf(p->why, sizeof p->why, "%s", p->text);
    mu_policy_regroup(p, SIGTERM, now_ms, out);
}

/* The budget went with the member in whose process it was: that loss ends the round, and not what our worker made of it. */
static void be_free(struct mu_policy *p, const char *why, struct mu_policy_effects *out)
{
    uncharge(p);
    (void)snprintf(p->why, sizeof p->why, "%s", why);
    mu_policy_say(p, out, MUSTER_LOG_WARNING,
                  "%.*s; %.*s, and the store with it: no restart is counted; restarting the group", TEXT_SHOWN_MAX,
                  p->failure, TEXT_SHOWN_MAX, p->why);
    p->failure[0] = '\0';
}

void mu_policy_on_lost(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    const char *why = event->text == NULL ? "lost a node" : event->text;

    if (p->fate == BUDGET && p->charge == CHARGING && (p->down || p->gone))
        be_free(p, why, out);
    else
        membership_changed(p, why, event->now_ms, out);
}

void mu_policy_on_peer_failed(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (!mu_policy_has_workers(p) || p->closed)
        return;
    (void)snprintf(p->why, sizeof p->why, "%s", event->text == NULL ? "a worker failed on another node" : event->text);
    (void)snprintf(p->peer_failed, sizeof p->peer_failed, "%s", p->why);
    mu_policy_regroup(p, SIGTERM, event->now_ms, out);
}

void mu_policy_on_waiting(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (is_old(p, event) || p->closed)
        return;
    if (mu_policy_has_workers(p))
        mu_policy_say(p, out, MUSTER_LOG_INFO,
                      "[%.200s] Detected %" PRId64 " new nodes from group_rank=%" PRId64 "; will restart worker group",
                      p->role, event->number, p->joined.rank);
    membership_changed(p, event->text == NULL ? "nodes want to join" : event->text, event->now_ms, out);
}

void mu_policy_on_removed(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    const char *why = REMOVED_WHY;

    if (is_old(p, event))
        return;
    if (p->phase == MU_POLICY_ASSIGNING) {
        mu_policy_join_again(p, why, event->now_ms, out);
    } else if (mu_policy_has_workers(p)) {
        (void)snprintf(p->why, sizeof p->why, "%s", why);
        mu_policy_regroup(p, SIGKILL, event->now_ms, out);
    } else if (p->fate == BUDGET && p->charge == CHARGING) {
        mu_policy_be_outdated(p, event->now_ms, out); /* whether it was paid for is of no concern to the job any more */
    } else if (p->phase == MU_POLICY_STOPPING && p->workers == STOPPING && p->fate != DONE) {
        mu_policy_say(p, out, MUSTER_LOG_WARNING, "%s: its workers have no grace any more", why);
        mu_policy_stop(p, SIGKILL, 0, event->now_ms, out); /* what they write from now on is in the others' way */
    }
}
