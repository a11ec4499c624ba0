/* What ends a round, and what that costs. See policy.h. */
#include "agent/policy_parts.h"

#include <signal.h>

/* ---- The budget ---- */

/* `spent`: restarts, with this one. Whether the job pays for it is settled when the next round forms. */
static void charged(struct mu_policy *p, int64_t spent)
{
    spent = mu_policy_larger(spent, p->count + 1);
    p->charge = spent > p->max_restarts ? USED_UP : RESTARTS_LEFT;
    p->charge_until_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    if (p->charge == RESTARTS_LEFT) {
        p->count = spent; /* until the next round says what it is */
        p->own = mu_policy_larger(p->own, spent);
    }
}

static void claim(struct mu_policy *p)
{
    mu_asks_put(&p->asks, MU_ASK_COMPARE_SET, BUDGET_SET, -1, mu_slice_str(p->paid), "%sbudget", p->job_prefix)
        ->ask.expected = mu_buf_slice(&p->budget);
}

/* While the workers are being stopped. Also if nothing is left: whether the job has failed is for its present round to
 * say. */
void mu_policy_charge(struct mu_policy *p)
{
    struct mu_restart_budget budget = { .count = p->count, .round = p->joined.round, .tag = p->joined.tag };

    if (p->joined.led)
        return; /* the leader charges it, or not, when the next round forms */
    if (!p->shared) {
        charged(p, p->count + 1);
        return;
    }
    p->charge = CHARGING;
    p->charge_ms = p->now_ms;
    p->charge_until_ms = p->now_ms + MU_POLICY_CHARGE_MS;
    p->gone = false;
    p->silence.code = 0;
    (void)snprintf(p->claim, sizeof p->claim, "rank %" PRId64 "'s failure on %.*s", p->failed_rank,
                   (int)sizeof p->claim - 48, p->host);
    (void)mu_restart_budget_write(p->paid, &budget, NULL);
    if (mu_buf_assign(&p->budget, mu_slice_str(p->paid)) < 0) {
        charged(p, p->count + 1); /* no memory: what we know has to do */
        return;
    }
    budget.count++;
    (void)mu_restart_budget_write(p->paid, &budget, p->node);
    claim(p);
}

/* The round that a worker's failure ended costs nothing. */
static void uncharge(struct mu_policy *p)
{
    p->charge = UNCHARGED;
    p->charge_until_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    p->fate = REJOIN;
}

static void join_the_others(struct mu_policy *p, const char *why)
{
    uncharge(p);
    p->claim[0] = p->loss[0] = '\0';
    if (p->failed_rank < 0)
        p->failure[0] = '\0';
    (void)snprintf(p->why, sizeof p->why, "%s", why);
    mu_policy_say(p, MUSTER_LOG_WARNING, "%s; restarting the group", p->why);
}

/* The others have gone on without us: what our workers write from now on is in their way. */
void mu_policy_be_outdated(struct mu_policy *p)
{
    join_the_others(p, REMOVED_WHY);
    mu_policy_stop(p, SIGKILL, 0);
}

/* The budget has another round: if the others are in it, we hear very soon that we were removed. If somebody has made
 * it up, we do not: so the workers, which are being stopped, keep their grace until then. */
static void doubt_round(struct mu_policy *p, const struct mu_restart_budget *found)
{
    char why[128];

    (void)snprintf(why, sizeof why,
                   "the restart budget names round %" PRId64 ": the others may have gone on without this node",
                   found->round);
    join_the_others(p, why);
}

/* The store says nothing. */
void mu_policy_await_budget(struct mu_policy *p)
{
    uint64_t waited_ms = p->now_ms - p->charge_ms;

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
    } else if (p->now_ms >= p->charge_until_ms) {
        p->charge_until_ms = p->charge_ms + p->store_ms;
        mu_policy_say(p, MUSTER_LOG_WARNING,
                      "waiting up to %" PRIu64 " s for the store to say whether restarts are left%s%.*s",
                      p->store_ms / 1000, p->silence.code != 0 ? ": " : "", TEXT_SHOWN_MAX * 2,
                      p->silence.code != 0 ? p->silence.text : "");
    }
}

/* A store that has forgotten the budget, or cannot say it, leaves us to what we know. What a stranger has put there is
 * replaced: the round is ours, for nobody has told us otherwise. */
void mu_policy_on_budget(struct mu_policy *p, const struct mu_answer *answer)
{
    struct mu_restart_budget found;
    bool missing = answer->error != NULL || answer->value.len == 0;

    if (missing) {
        charged(p, p->count + 1);
    } else if (!mu_restart_budget_read(answer->value, &found)) {
        mu_policy_write_foreign(p, "the restart budget", "budget", answer->value, "putting it back");
        mu_policy_say(p, MUSTER_LOG_WARNING, "%s", p->foreign);
        if (p->fate != BUDGET || mu_buf_assign(&p->budget, answer->value) < 0)
            charged(p, p->count + 1);
        else
            claim(p);
    } else if (found.round == p->joined.round && found.tag == p->joined.tag) {
        charged(p, found.count); /* whoever has claimed it */
    } else if (p->fate == BUDGET) {
        doubt_round(p, &found);
    }
}

/* We are rank 0 of a round that may not run. No worker has been started: all others wait for their ranks. */
void mu_policy_on_used_up(struct mu_policy *p, const struct mu_policy_event *event)
{
    const char *told = event->text != NULL ? event->text : "";

    if (p->phase != MU_POLICY_ASSIGNING)
        return;
    (void)snprintf(p->failure, sizeof p->failure, "%s",
                   told[0] != '\0'             ? told
                   : p->peer_failed[0] != '\0' ? p->peer_failed
                                               : "a worker has failed");
    p->failed_rank = -1;
    p->fate = BUDGET;
    p->charge = USED_UP;
    mu_policy_fail_job(p);
}

/* ---- The rendezvous ---- */

static bool is_old(const struct mu_policy *p, const struct mu_policy_event *event)
{
    return event->round >= 0 && p->joined.round >= 0 && event->round < p->joined.round;
}

/* Those of the others who have not heard of it will find us gone, too, and say the same. */
static void membership_changed(struct mu_policy *p, const char *why)
{
    if (p->phase != MU_POLICY_ASSIGNING && !mu_policy_has_workers(p))
        return;
    (void)snprintf(p->text, sizeof p->text, "%s", why);
    mu_policy_note(p, MU_NOTE_AGAIN, p->text);
    if (p->phase == MU_POLICY_ASSIGNING) {
        mu_policy_join_again(p, p->text);
        return;
    }
    (void)snprintf(p->why, sizeof p->why, "%s", p->text);
    mu_policy_regroup(p, SIGTERM);
}

/* A member was lost: that ends the round, and not what our worker made of it. What we have claimed is settled when the
 * next round forms; if the store went with the member, the claim has gone, too. */
static void be_free(struct mu_policy *p, const char *why)
{
    uncharge(p);
    mu_line_copy(p->loss, sizeof p->loss, mu_slice_str(why));
    (void)snprintf(p->why, sizeof p->why, "%s", why);
    mu_policy_say(p, MUSTER_LOG_WARNING, "%.*s; rank %" PRId64 "'s failure is a consequence; restarting the group",
                  TEXT_SHOWN_MAX, p->why, p->failed_rank);
    p->failure[0] = '\0';
    if (p->phase == MU_POLICY_FAILING)
        mu_policy_enter(p, MU_POLICY_STOPPING, UINT64_MAX);
}

void mu_policy_on_lost(struct mu_policy *p, const struct mu_policy_event *event)
{
    const char *why = event->text == NULL ? "lost a node" : event->text;

    bool without_store = p->charge == CHARGING && (p->down_ms != UINT64_MAX || p->gone);

    if (p->fate == BUDGET && (p->phase == MU_POLICY_FAILING || without_store))
        be_free(p, why);
    else
        membership_changed(p, why);
}

void mu_policy_on_peer_failed(struct mu_policy *p, const struct mu_policy_event *event)
{
    if (!mu_policy_has_workers(p) || p->closed)
        return;
    (void)snprintf(p->why, sizeof p->why, "%s", event->text == NULL ? "a worker failed on another node" : event->text);
    (void)snprintf(p->peer_failed, sizeof p->peer_failed, "%s", p->why);
    mu_policy_note(p, MU_NOTE_AGAIN, p->peer_failed);
    mu_policy_regroup(p, SIGTERM);
}

void mu_policy_on_waiting(struct mu_policy *p, const struct mu_policy_event *event)
{
    if (is_old(p, event) || p->closed)
        return;
    if (mu_policy_has_workers(p))
        mu_policy_say(p, MUSTER_LOG_INFO,
                      "[%.200s] Detected %" PRId64 " new nodes from group_rank=%" PRId64 "; will restart worker group",
                      p->role, event->number, p->joined.rank);
    membership_changed(p, event->text == NULL ? "nodes want to join" : event->text);
}

void mu_policy_on_removed(struct mu_policy *p, const struct mu_policy_event *event)
{
    const char *why = event->text != NULL ? event->text : REMOVED_WHY;

    if (is_old(p, event))
        return;
    (void)snprintf(p->loss, sizeof p->loss, "lost %.*s, which is back", MU_VANISHED_NAME_MAX, p->host);
    if (p->phase == MU_POLICY_ASSIGNING) {
        mu_policy_join_again(p, why);
    } else if (mu_policy_has_workers(p)) {
        (void)snprintf(p->why, sizeof p->why, "%s", why);
        mu_policy_regroup(p, SIGKILL);
    } else if (p->fate == BUDGET && p->charge == CHARGING) {
        mu_policy_be_outdated(p); /* whether it was paid for is of no concern to the job any more */
    } else if (p->phase == MU_POLICY_STOPPING && p->workers == STOPPING && p->fate != DONE) {
        mu_policy_say(p, MUSTER_LOG_WARNING, "%s: its workers have no grace any more", why);
        mu_policy_stop(p, SIGKILL, 0); /* what they write from now on is in the others' way */
    }
}
