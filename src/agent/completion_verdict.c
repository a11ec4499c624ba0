/* How the job ends: its verdict, who writes it, and what a closed job means. See completion.h. */
#include "agent/completion_parts.h"

static void name_verdict(struct mu_completion *f)
{
    (void)snprintf(f->text, sizeof f->text, "the job has failed: %s", f->verdict.cause);
}

/* ---- The ends ---- */

void mu_completion_be_idle(struct mu_completion *f, enum mu_completion_state state)
{
    mu_completion_enter(f, state);
    f->deadline_ms = f->look_again_ms = f->scan_ms = f->gone_ms = f->fin_ms = f->removed_by_ms = UINT64_MAX;
    f->close_again_ms = UINT64_MAX;
    f->sweeping = f->judging_closed = f->said_close_again = false;
    mu_asks_drop(&f->asks);
}

/* With f->text filled in. */
void mu_completion_end_as(struct mu_completion *f, enum mu_completion_end how)
{
    struct mu_completion_effect *effect = mu_completion_emit(f, MU_COMPLETION_DO_END);

    effect->end = how;
    effect->text = f->text;
    mu_completion_be_idle(f, MU_COMPLETION_ENDED);
}

void mu_completion_end_all_done(struct mu_completion *f)
{
    (void)snprintf(f->text, sizeof f->text, "%s%" PRId64 " node%s done", f->start.world_size == 1 ? "" : "all ",
                   f->start.world_size, f->start.world_size == 1 ? " is" : "s are");
    mu_completion_end_as(f, MU_COMPLETION_END_ALL_DONE);
}

void mu_completion_end_behind(struct mu_completion *f)
{
    (void)snprintf(f->text, sizeof f->text,
                   "%.*s; this node's workers have succeeded, so it ends and the other nodes regroup", WHO_SHOWN_MAX,
                   mu_completion_who(f));
    mu_completion_end_as(f, MU_COMPLETION_END_BEHIND);
}

void mu_completion_end_over(struct mu_completion *f, const char *text)
{
    if (text != f->text)
        (void)snprintf(f->text, sizeof f->text, "%s", text);
    mu_completion_end_as(f, MU_COMPLETION_END_OVER);
}

void mu_completion_end_written(struct mu_completion *f) /* the verdict, and all that follows it */
{
    if (f->end == MU_COMPLETION_END_ALL_DONE)
        mu_completion_end_all_done(f);
    else
        mu_completion_end_as(f, f->has_verdict || !f->start.has_store || !mu_completion_is_tracked(f)
                                    ? f->end
                                    : MU_COMPLETION_END_UNSAID);
}

/* ---- The last: verdict, close, let go ---- */

void mu_completion_let_go(struct mu_completion *f)
{
    if (f->end != MU_COMPLETION_END_ALL_DONE || mu_completion_is_old(f) || !f->start.has_store) {
        mu_completion_end_written(f);
        return;
    }
    mu_completion_enter(f, MU_COMPLETION_FREEING);
    if (mu_completion_is_private(f))
        (void)mu_asks_put(&f->asks, MU_ASK_SET, LAST_SET, -1, mu_slice_str(ALL_DONE), "%slast", f->own_prefix);
    else
        (void)mu_asks_put(&f->asks, MU_ASK_SET, LAST_SET, -1, mu_slice_str(ALL_DONE), LAST, f->prefix);
}

/* The rendezvous says no more than that its store is away: is somebody there, and when does it answer again? */
void mu_completion_probe(struct mu_completion *f)
{
    if ((f->state == MU_COMPLETION_CLOSING || f->state == MU_COMPLETION_WAITING) && f->start.has_store &&
        !mu_asks_has(&f->asks, PROBE))
        (void)mu_asks_add(&f->asks, MU_ASK_CHECK, PROBE, -1, "%sverdict", f->job_prefix);
}

static void close_job(struct mu_completion *f)
{
    uint64_t least_ms = f->now_ms + MU_COMPLETION_LAST_MS;

    mu_completion_enter(f, MU_COMPLETION_CLOSING);
    f->deadline_ms = f->deadline_ms > least_ms ? f->deadline_ms : least_ms;
    (void)mu_completion_emit(f, MU_COMPLETION_DO_CLOSE);
    if (f->down)
        mu_completion_probe(f);
}

static void write_verdict(struct mu_completion *f)
{
    mu_asks_put(&f->asks, MU_ASK_COMPARE_SET, VERDICT_SET, -1, mu_slice_str(f->verdict_text), "%sverdict",
                f->job_prefix)
        ->ask.expected = mu_buf_slice(&f->replaced);
}

/* Which round is the job's? */
static void look_at_budget(struct mu_completion *f, enum what what)
{
    (void)mu_asks_look(&f->asks, what, -1, "%sbudget", f->job_prefix);
}

/* With f->text as the cause, if there is one. */
void mu_completion_give_verdict(struct mu_completion *f, enum mu_completion_end how, const char *cause)
{
    struct mu_verdict verdict = { .succeeded = how == MU_COMPLETION_END_ALL_DONE,
                                  .round = f->start.round,
                                  .tag = f->start.tag,
                                  .rank = f->start.rank };
    int len;

    mu_completion_be_idle(f, MU_COMPLETION_VERDICT);
    f->end = how;
    f->has_verdict = false;
    f->replaced.len = 0;
    f->deadline_ms = f->now_ms + MU_COMPLETION_CLOSE_MS;
    mu_line_copy(verdict.node, sizeof verdict.node, mu_slice_str(f->host));
    mu_line_copy(verdict.cause, sizeof verdict.cause, mu_slice_str(cause));
    len = mu_verdict_write(&verdict, f->verdict_text);
    f->verdict_text[len < 0 ? 0 : len] = '\0';
    if (!mu_completion_is_tracked(f))
        mu_completion_let_go(f);
    else if (!f->start.has_store || len < 0)
        close_job(f);
    else if (mu_completion_is_private(f))
        look_at_budget(f, BUDGET_LOOK);
    else
        write_verdict(f);
}

void mu_completion_be_last(struct mu_completion *f)
{
    mu_completion_give_verdict(f, MU_COMPLETION_END_ALL_DONE, "all workers have succeeded");
}

/* ---- A closed job ---- */

static void look_at_verdict(struct mu_completion *f, enum what what)
{
    if (f->start.has_store && !mu_asks_has(&f->asks, what))
        (void)mu_asks_look(&f->asks, what, -1, "%sverdict", f->job_prefix);
}

static void tell_failed(struct mu_completion *f)
{
    if (f->told_failed)
        return;
    f->told_failed = true;
    mu_completion_emit(f, MU_COMPLETION_DO_JOB_FAILED)->text = f->text;
}

/* Members have vanished, and no round can follow. */
void mu_completion_judge_closed(struct mu_completion *f)
{
    if (!f->judging_closed || mu_asks_has(&f->asks, VERDICT_LOOK) || mu_asks_has(&f->asks, CLOSED_COUNT))
        return;
    f->judging_closed = false;
    if (f->seen != NONE || f->closed_count != 0)
        return;
    (void)snprintf(f->text, sizeof f->text, "the job was closed without a verdict; %.*s", WHO_SHOWN_MAX,
                   mu_completion_who(f));
    tell_failed(f);
}

void mu_completion_begin_judging_closed(struct mu_completion *f)
{
    f->judging_closed = true;
    f->seen = UNSEEN;
    f->closed_count = mu_completion_is_old(f) ? 0 : -1; /* 1.13 has no counter, and the mark of this one is missing */
    look_at_verdict(f, VERDICT_LOOK);
    if (!f->start.has_store || mu_completion_is_old(f) || mu_asks_has(&f->asks, CLOSED_COUNT))
        return;
    if (mu_completion_is_private(f)) /* of 0: reads */
        (void)mu_asks_add(&f->asks, MU_ASK_ADD, CLOSED_COUNT, -1, COUNT, f->own_prefix);
    else
        (void)mu_asks_add(&f->asks, MU_ASK_ADD, CLOSED_COUNT, -1, MEMBERS, f->prefix);
}

/* Whether the value is a verdict that can be believed, which is in f->verdict then. */
static bool read_verdict(struct mu_completion *f, struct mu_slice value)
{
    struct mu_verdict_reader reader = { .round = f->start.round,
                                        .tag = f->start.tag,
                                        .world_size = f->start.world_size,
                                        .is_over = f->closed || f->removed };

    f->verdict.round = -1;
    return mu_verdict_read(value, &f->verdict) && mu_verdict_is_credible(&f->verdict, &reader);
}

void mu_completion_take_verdict(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer)
{
    f->seen = NONE;
    if (mu_answer_is_there(answer) && read_verdict(f, answer->value))
        f->seen = f->verdict.succeeded ? SUCCEEDED : FAILED;
    else if (mu_answer_is_there(answer))
        mu_completion_warn_foreign(f, "the verdict", slot->key, answer->value, "ignoring it");
    if (f->seen == FAILED) {
        name_verdict(f);
        if (mu_completion_is_done(f))
            mu_completion_end_over(f, f->text);
        else if (f->state == MU_COMPLETION_WATCHING)
            tell_failed(f);
    } else if (f->seen == SUCCEEDED && mu_completion_is_done(f)) {
        mu_completion_end_all_done(f);
    }
}

/* The round is over for the job. */
void mu_completion_be_outdated(struct mu_completion *f)
{
    if (f->end == MU_COMPLETION_END_ALL_DONE)
        mu_completion_end_over(f, GONE_ON);
    else
        mu_completion_end_as(f, MU_COMPLETION_END_OUTDATED);
}

/* May begin anew, but leaves the time that the verdict and the close need. */
void mu_completion_await_removal(struct mu_completion *f)
{
    uint64_t last_ms = f->deadline_ms - MU_COMPLETION_LAST_MS;
    uint64_t wait_ms = mu_sooner_ms(f->loss_ms, MU_COMPLETION_REMOVED_MS);

    mu_asks_drop_what(&f->asks, BUDGET_AGAIN);
    mu_asks_drop_what(&f->asks, VERDICT_AGAIN);
    f->removed_by_ms = f->now_ms >= last_ms ? f->now_ms : mu_sooner_ms(f->now_ms + wait_ms, last_ms);
}

/* A job that could not be closed must not go on: a spare that makes the next round finds that no restart is left.
 * False: no memory. */
static bool use_up_budget(struct mu_completion *f, const struct mu_restart_budget *found, struct mu_slice value)
{
    char text[MU_RESTART_BUDGET_MAX];

    if (mu_buf_assign(&f->replaced, value) < 0)
        return false;
    (void)mu_restart_budget_write(text, found, MU_RESTART_BUDGET_USED_UP);
    mu_asks_put(&f->asks, MU_ASK_COMPARE_SET, BUDGET_LOOK, -1, mu_slice_str(text), "%sbudget", f->job_prefix)
        ->ask.expected = mu_buf_slice(&f->replaced);
    return true;
}

/* Another round in the budget: if it is the job's, we were removed, and hear of that from the rendezvous. */
void mu_completion_take_budget(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer)
{
    struct mu_restart_budget found;
    bool readable = answer->error == NULL && mu_restart_budget_read(answer->value, &found);
    bool is_other = readable && (found.round != f->start.round || found.tag != f->start.tag);

    if (is_other && f->removed) {
        mu_completion_be_outdated(f);
    } else if (is_other && slot->what == BUDGET_LOOK) {
        mu_completion_await_removal(f);
    } else if (is_other || !readable || f->end != MU_COMPLETION_END_FAILED || !found.charged || found.used_up ||
               !use_up_budget(f, &found, answer->value)) {
        if (is_other || (!readable && mu_answer_is_there(answer)))
            mu_completion_warn_foreign(f, "the restart budget", slot->key, answer->value, "ignoring it");
        f->replaced.len = 0;
        write_verdict(f);
    }
}

/* The time is up in which a member hears that it was removed. After a pause of our own that may still lie in the
 * socket: what the rendezvous has asked is answered before this look. */
void mu_completion_look_again_at_round(struct mu_completion *f)
{
    f->deadline_ms += f->now_ms - f->removed_by_ms; /* such a pause does not count */
    f->removed_by_ms = UINT64_MAX;
    if (mu_completion_is_private(f))
        look_at_budget(f, BUDGET_AGAIN);
    else
        look_at_verdict(f, VERDICT_AGAIN);
}

/* Somebody's verdict is there, which is in f->verdict. */
static void accept_verdict(struct mu_completion *f)
{
    if (f->end == MU_COMPLETION_END_ALL_DONE && !f->verdict.succeeded) {
        name_verdict(f);
        mu_completion_end_over(f, f->text);
        return;
    }
    f->has_verdict = true;
    close_job(f);
}

/* Of which mu_completion_verdict_written() has said what there is to say. */
static void replace_verdict(struct mu_completion *f)
{
    mu_completion_emit(f, MU_COMPLETION_DO_WARN)->text = f->foreign_text;
    write_verdict(f);
}

/* A later round that has ended was the job's: its verdict is believed if the budget knows the round as well. */
void mu_completion_take_rival(struct mu_completion *f, const struct mu_answer *answer)
{
    struct mu_restart_budget found;

    if (answer->error == NULL && mu_restart_budget_read(answer->value, &found) && found.round == f->verdict.round &&
        found.tag == f->verdict.tag) {
        accept_verdict(f);
        return;
    }
    replace_verdict(f);
}

/* With PyTorch's members no budget knows the round. But if it was the job's, we were removed, or the job is closed. */
void mu_completion_take_verdict_again(struct mu_completion *f, const struct mu_answer *answer)
{
    if (f->removed)
        mu_completion_be_outdated(f);
    else if (answer->error == NULL && read_verdict(f, answer->value))
        accept_verdict(f);
    else
        replace_verdict(f);
}

/* Of a verdict in that key, which is of a later round than ours. */
static void await_news_of(struct mu_completion *f, const char *key)
{
    (void)snprintf(f->warning, sizeof f->warning,
                   "'%.600s' has the verdict of round %" PRId64 ", and ours is %" PRId64
                   ": waiting to hear whether the job has gone on without this node",
                   key, f->verdict.round, f->start.round);
    mu_completion_emit(f, MU_COMPLETION_DO_WARN)->text = f->warning;
    mu_completion_await_removal(f);
}

/* There is a verdict: ours, or that of somebody who came before. What is none is replaced by ours. */
void mu_completion_verdict_written(struct mu_completion *f, const struct mu_ask_slot *slot,
                                   const struct mu_answer *answer)
{
    if (answer->error != NULL) {
        mu_completion_warn(f, "write the verdict", answer->error);
        close_job(f);
    } else if (read_verdict(f, answer->value)) {
        accept_verdict(f);
    } else if (mu_answer_is_there(answer) && !mu_slice_equal(answer->value, mu_buf_slice(&f->replaced)) &&
               mu_buf_assign(&f->replaced, answer->value) == 0) {
        mu_foreign_say(f->foreign_text, "the verdict", slot->key, answer->value, "replacing it");
        if (f->verdict.round <= f->start.round)
            replace_verdict(f);
        else if (mu_completion_is_private(f))
            look_at_budget(f, RIVAL_LOOK);
        else
            await_news_of(f, slot->key);
    } else {
        f->has_verdict = true;
        close_job(f);
    }
}

/* Verdict and close have taken too long. Where somebody writes other verdicts all the time, the job is closed without
 * one. But if it was the store or a pause of our own that took the time, the job may have gone on without us. */
void mu_completion_end_late(struct mu_completion *f)
{
    bool is_disturbed = f->state == MU_COMPLETION_VERDICT && f->replaced.len > 0 &&
                        !mu_asks_has(&f->asks, BUDGET_LOOK) && f->now_ms - f->deadline_ms < ASLEEP_MS;

    (void)snprintf(f->warning, sizeof f->warning, "the job's end: %s was not done within %d s",
                   mu_completion_state_text(f->state), MU_COMPLETION_CLOSE_MS / 1000);
    mu_completion_emit(f, MU_COMPLETION_DO_WARN)->text = f->warning;
    if (!is_disturbed) {
        mu_completion_end_written(f);
        return;
    }
    mu_asks_drop(&f->asks);
    close_job(f);
}

void mu_completion_on_closed(struct mu_completion *f)
{
    f->closed = true;
    f->close_again_ms = UINT64_MAX;
    if (f->state == MU_COMPLETION_CLOSING)
        mu_completion_let_go(f);
    else if (f->state == MU_COMPLETION_WATCHING || mu_completion_is_done(f))
        look_at_verdict(f, VERDICT_LOOK);
}

void mu_completion_on_close_failed(struct mu_completion *f, const struct muster_error *error)
{
    bool may_mend = mu_ask_may_mend(error->code) || (error->code == MUSTER_ERDZV_TIMEOUT && f->down);

    if (f->state != MU_COMPLETION_CLOSING)
        return;
    if (!may_mend || f->now_ms >= f->deadline_ms) {
        mu_completion_warn(f, "close the job", error);
        mu_completion_let_go(f);
        return;
    }
    f->close_again_ms = f->now_ms + MU_COMPLETION_CLOSE_AGAIN_MS;
    if (f->said_close_again)
        return;
    f->said_close_again = true;
    (void)snprintf(f->warning, sizeof f->warning, "close the job: %.600s; trying again for %" PRIu64 " s", error->text,
                   (f->deadline_ms - f->now_ms + 999) / 1000);
    mu_completion_emit(f, MU_COMPLETION_DO_WARN)->text = f->warning;
}

/* The time for it has come, or the store is back. */
void mu_completion_close_again(struct mu_completion *f)
{
    if (f->close_again_ms == UINT64_MAX)
        return;
    f->close_again_ms = UINT64_MAX;
    (void)mu_completion_emit(f, MU_COMPLETION_DO_CLOSE);
}
