/* How an agent's life ends, and what it does until then. See policy.h. */
#include "agent/policy_parts.h"

#include <signal.h>
#include <stdlib.h>

/* ---- The end ---- */

void mu_policy_decide(struct mu_policy *p, enum mu_policy_outcome_kind kind, int rc, int signal)
{
    p->outcome.kind = kind;
    p->outcome.rc = rc;
    p->outcome.signal = signal;
    p->fate = END;
    p->down_say_ms = UINT64_MAX; /* what is left to be done does not depend on the store */
}

void mu_policy_decide_signal(struct mu_policy *p, int signal)
{
    bool dies = !p->ever_started;

    mu_policy_decide(p, dies ? MU_POLICY_OUTCOME_DIE : MU_POLICY_OUTCOME_SIGNALED, dies ? 128 + signal : 1, signal);
    (void)mu_fail(&p->outcome.error, MUSTER_ESIGNAL, "stopped by signal %d", signal);
}

static void be_stopped(struct mu_policy *p)
{
    assert(p->workers == NONE);
    if (mu_group_state_is_running(p->state))
        mu_policy_enter_state(p, MU_GROUP_STOPPED);
}

/* Another round may follow, also after a failure. */
void mu_policy_be_between_rounds(struct mu_policy *p)
{
    if (p->state == MU_GROUP_FAILED)
        mu_policy_enter_state(p, MU_GROUP_STOPPED);
    be_stopped(p);
}

void mu_policy_end(struct mu_policy *p)
{
    enum mu_policy_outcome_kind kind = p->outcome.kind;
    bool returned = kind == MU_POLICY_OUTCOME_SUCCEEDED || kind == MU_POLICY_OUTCOME_WORKERS_FAILED;
    bool raised = !returned && kind != MU_POLICY_OUTCOME_GRACEFUL;
    struct mu_policy_effect *agent;

    assert(kind != MU_POLICY_OUTCOME_NONE);
    be_stopped(p);
    mu_policy_enter(p, MU_POLICY_ENDED, UINT64_MAX);
    p->charge_until_ms = p->down_say_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    (void)mu_policy_emit(p, MU_POLICY_DO_WATCH_STOP);
    p->outcome.state = p->state;
    if (returned) {
        struct mu_policy_effect *final = mu_policy_emit(p, MU_POLICY_DO_FINAL);

        final->ok = kind == MU_POLICY_OUTCOME_SUCCEEDED;
        final->number = mu_policy_remaining_restarts(p);
        (void)mu_policy_put_record(p, MU_POLICY_RECORD_WORKERS_END, -1);
    }
    if (kind != MU_POLICY_OUTCOME_DIE) {
        mu_policy_time_step(p, MU_METRICS_RUN, !raised, p->run_ms);
        agent = mu_policy_put_record(p, MU_POLICY_RECORD_AGENT, -1);
        agent->state = raised ? MU_GROUP_FAILED : MU_GROUP_SUCCEEDED;
        agent->error = raised ? &p->outcome.error : NULL;
    }
    mu_policy_emit(p, MU_POLICY_DO_END)->outcome = &p->outcome;
}

/* So that the others know why, before we are gone. */
void mu_policy_note(struct mu_policy *p, enum mu_vanished_note note, const char *why)
{
    struct mu_policy_effect *effect = mu_policy_emit(p, MU_POLICY_DO_NOTE);

    effect->note = note;
    effect->text = why;
    if (p->membership == MAY_BE_MEMBER || p->membership == HAS_SAID_WHY)
        mu_policy_set_membership(p, note == MU_NOTE_AGAIN ? MAY_BE_MEMBER : HAS_SAID_WHY);
}

void mu_policy_say_leave(struct mu_policy *p)
{
    if (p->membership == IS_LEAVING)
        return;
    if (p->membership == MAY_BE_MEMBER)
        mu_policy_note(p, MU_NOTE_LEFT, p->outcome.error.text[0] != '\0' ? p->outcome.error.text : "done");
    (void)mu_policy_emit(p, MU_POLICY_DO_WATCH_STOP);
    (void)mu_policy_emit(p, MU_POLICY_DO_LEAVE);
    mu_policy_set_membership(p, IS_LEAVING);
    p->leave_until_ms = p->now_ms + MU_POLICY_LEAVE_MS;
}

void mu_policy_leave(struct mu_policy *p)
{
    be_stopped(p);
    if (p->membership == NO_MEMBER) {
        mu_policy_end(p);
        return;
    }
    mu_policy_say_leave(p);
    mu_policy_enter(p, MU_POLICY_LEAVING, p->leave_until_ms);
}

/* The others may still be reading, in our process, how it ended. */
void mu_policy_linger(struct mu_policy *p)
{
    if (!p->joined.serves) {
        mu_policy_end(p);
        return;
    }
    if (p->phase != MU_POLICY_SERVING)
        (void)mu_policy_emit(p, MU_POLICY_DO_LINGER);
    mu_policy_enter(p, MU_POLICY_LINGERING, p->now_ms + MU_POLICY_LINGER_MS);
}

/* The rendezvous store: until the job has a verdict. The workers' store alone: as long as others are connected to it.
 */
static void serve(struct mu_policy *p)
{
    mu_policy_say(p, MUSTER_LOG_INFO, "done; serving the %s store until the other nodes have ended",
                  p->joined.serves ? "rendezvous" : "workers'");
    (void)mu_policy_emit(p, MU_POLICY_DO_LINGER);
    if (p->joined.serves && !p->joined.led) /* of a leader's verdict we hear */
        (void)mu_asks_add(&p->asks, MU_ASK_GET, VERDICT_GET, -1, "%sverdict", p->job_prefix);
    mu_policy_enter(p, MU_POLICY_SERVING, p->serve_until_ms);
}

void mu_policy_left(struct mu_policy *p)
{
    mu_policy_set_membership(p, NO_MEMBER);
    if (p->serve_until_ms != 0)
        serve(p);
    else
        mu_policy_end(p);
}

void mu_policy_fail_with(struct mu_policy *p, const struct muster_error *error)
{
    mu_policy_decide(p, MU_POLICY_OUTCOME_ERROR, 1, 0);
    p->outcome.error = *error;
    mu_policy_note(p, MU_NOTE_LEFT, p->outcome.error.text);
    mu_policy_stop(p, SIGTERM, p->grace_ms);
}

/* ---- A job that has failed ---- */

static void decide_workers_failed(struct mu_policy *p)
{
    mu_policy_decide(p, MU_POLICY_OUTCOME_WORKERS_FAILED, 1, 0);
    p->outcome.error.code = 0;
    (void)snprintf(p->outcome.error.text, sizeof p->outcome.error.text, "%s", p->failure);
}

/* `text`: what the failure, which was said when it happened, means for the job. */
void mu_policy_be_failed(struct mu_policy *p, const char *text)
{
    if (p->failed_rank < 0) {
        mu_policy_decide(p, MU_POLICY_OUTCOME_ERROR, 1, 0);
        (void)mu_fail(&p->outcome.error, MUSTER_ERDZV_CLOSED,
                      "the job has failed: %.*s; no restarts left (max restarts: %" PRId64 ")", TEXT_SHOWN_MAX,
                      p->failure, p->max_restarts);
    } else {
        decide_workers_failed(p);
        mu_policy_enter_state(p, MU_GROUP_FAILED);
    }
    mu_policy_say(p, MUSTER_LOG_ERROR, "%s", text);
}

void mu_policy_fail_job(struct mu_policy *p)
{
    struct mu_policy_effect *effect;

    if (p->closed) {
        mu_policy_be_failed(p, "the job is closed: giving up");
        mu_policy_leave(p);
        return;
    }
    (void)snprintf(p->text, sizeof p->text, "%.*s; no restarts left (max restarts: %" PRId64 ")", TEXT_SHOWN_MAX,
                   p->failure, p->max_restarts);
    be_stopped(p); /* an unhealthy one */
    effect = mu_policy_emit(p, MU_POLICY_DO_FAIL_JOB);
    effect->text = p->text;
    effect->ok = p->failed_rank < 0;
    mu_policy_enter(p, MU_POLICY_FAILING, UINT64_MAX);
}

/* Nobody can say whether the round was still the job's. */
void mu_policy_give_up_on_the_store(struct mu_policy *p)
{
    uint64_t waited_ms = p->now_ms - p->charge_ms;

    (void)snprintf(p->text, sizeof p->text, "the store has been silent for %" PRIu64 " s: giving up%s%.*s",
                   waited_ms / 1000, p->silence.code != 0 ? ": " : "", TEXT_SHOWN_MAX,
                   p->silence.code != 0 ? p->silence.text : "");
    mu_policy_be_failed(p, p->text);
    mu_policy_leave(p);
}

/* ---- The rendezvous ---- */

/* `told`: by the leader; NULL: nothing was. */
static void ask_why(struct mu_policy *p, const struct mu_part_verdict *told)
{
    p->has_verdict = told != NULL;
    if (told != NULL) {
        p->verdict.succeeded = told->succeeded;
        mu_line_copy(p->verdict.cause, sizeof p->verdict.cause,
                     mu_slice_str(told->cause != NULL ? told->cause : "nobody knows why"));
    }
    if (told != NULL || p->joined.led) {
        mu_policy_tell_why(p, true);
        return;
    }
    mu_asks_look(&p->asks, VERDICT_LOOK, -1, "%sverdict", p->job_prefix)->once = true;
    mu_policy_enter(p, MU_POLICY_ASKING, p->now_ms + MU_POLICY_WHY_MS);
}

/* A member of the round that has failed for good is no spare, also if it looks like one by the time the job is closed.
 */
static void decide_peer_failed(struct mu_policy *p, const struct muster_error *error)
{
    mu_policy_decide(p, MU_POLICY_OUTCOME_ERROR, 1, 0);
    p->outcome.error = *error;
    p->outcome.error.code = MUSTER_ERDZV_CLOSED;
}

/* What the verdict says, without the failure that was told when it happened. */
static const char *untold_cause(const struct mu_policy *p, const struct mu_verdict *verdict)
{
    const char *failure = p->failure[0] != '\0' ? p->failure : p->peer_failed;
    size_t told = strlen(failure);
    const char *cause = verdict->cause;

    if (told > 0 && strncmp(cause, failure, told) == 0 && strncmp(cause + told, "; ", 2) == 0)
        return cause + told + 2;
    return cause;
}

static void record_failed_join(struct mu_policy *p)
{
    mu_policy_put_record(p, MU_POLICY_RECORD_RENDEZVOUS, (int64_t)(p->now_ms - p->join_ms))->error = &p->error;
    mu_policy_time_step(p, MU_METRICS_RENDEZVOUS, false, p->join_ms);
    mu_policy_initialize_failed(p);
}

/* The leader of a round that we were in has failed the job. */
static void be_judged(struct mu_policy *p, const struct mu_part_verdict *verdict)
{
    if (p->failure[0] == '\0') /* else it is the failure that was not forgiven, and no rendezvous has failed */
        record_failed_join(p);
    decide_peer_failed(p, &p->error);
    p->outcome.error.text[0] = '\0';
    ask_why(p, verdict);
}

static void join_failed(struct mu_policy *p, const struct mu_policy_event *event)
{
    const struct muster_error *error = event->error;
    const struct mu_part_verdict *verdict = event->verdict;

    p->error = *error;
    if (verdict != NULL && !verdict->succeeded && p->joined.led) {
        be_judged(p, verdict);
        return;
    }
    record_failed_join(p);
    if (error->code == MUSTER_ERDZV_GRACEFUL_EXIT && p->peer_failed[0] != '\0') {
        decide_peer_failed(p, error);
        ask_why(p, verdict);
        return;
    }
    if (error->code == MUSTER_ERDZV_GRACEFUL_EXIT) {
        mu_policy_say(p, MUSTER_LOG_INFO, "Rendezvous gracefully exited: %.*s", TEXT_SHOWN_MAX * 2, error->text);
        mu_policy_decide(p, MU_POLICY_OUTCOME_GRACEFUL, 0, 0);
        p->outcome.error = *error;
        mu_policy_set_membership(p, NO_MEMBER);
        mu_policy_end(p);
        return;
    }
    mu_policy_decide(p, MU_POLICY_OUTCOME_ERROR, 1, 0);
    p->outcome.error = *error;
    if (p->down_ms != UINT64_MAX && p->down_until_ms == 0) /* else the rendezvous has said it */
        (void)mu_wrap(&p->outcome.error, error->code, "the store has been away for %" PRIu64 " s",
                      (p->now_ms - p->down_ms) / 1000);
    if (error->code == MUSTER_ERDZV_CLOSED)
        ask_why(p, verdict);
    else
        mu_policy_leave(p);
}

/* "join rendezvous 'job': the rendezvous is closed: the job has succeeded". Anybody can write a verdict: one that
 * nothing else confirms is told as what its key says. */
static void add_reason(struct mu_policy *p, bool is_certain)
{
    size_t used = strlen(p->outcome.error.text), room = sizeof p->outcome.error.text - used;
    char *text = p->outcome.error.text + used;

    if (!p->has_verdict && p->peer_failed[0] != '\0')
        (void)snprintf(text, room, ": the job did not restart");
    if (!p->has_verdict)
        return;
    used = is_certain ? 0 : (size_t)snprintf(text, room, ": '%.200sverdict' says", p->job_prefix);
    if (used < room)
        (void)snprintf(
            text + used, room - used, "%sthe job has %s%s", p->outcome.error.text[0] == '\0' ? "" : ": ",
            p->verdict.succeeded ? "succeeded" : "failed: ", p->verdict.succeeded ? "" : untold_cause(p, &p->verdict));
}

/* The job is closed: was it a failure of ours that we could not come back from? */
void mu_policy_tell_why(struct mu_policy *p, bool is_certain)
{
    mu_policy_set_membership(p, NO_MEMBER);
    mu_asks_drop(&p->asks);
    add_reason(p, is_certain);
    if (p->has_verdict && p->verdict.succeeded && p->error.code == MUSTER_ERDZV_GRACEFUL_EXIT) /* a spare after all */
        mu_policy_decide(p, MU_POLICY_OUTCOME_GRACEFUL, 0, 0);
    if (p->failure[0] != '\0') {
        mu_policy_say(p, MUSTER_LOG_ERROR, "%.*s", TEXT_SHOWN_MAX * 2, p->outcome.error.text);
        decide_workers_failed(p);
        mu_policy_enter_state(p, MU_GROUP_FAILED);
    }
    mu_policy_end(p);
}

static void ignore_verdict(struct mu_policy *p) /* p->foreign says what it is */
{
    p->has_verdict = false;
    mu_policy_say(p, MUSTER_LOG_WARNING, "%s", p->foreign);
    mu_policy_tell_why(p, false);
}

/* A verdict of the round that we were in is certain. Of others the budget may know. */
void mu_policy_take_verdict(struct mu_policy *p, const struct mu_answer *answer)
{
    const struct mu_verdict *verdict = &p->verdict;
    const struct mu_round *last = &p->joined; /* round -1: we were in none */

    if (!mu_answer_is_there(answer)) {
        mu_policy_tell_why(p, false);
        return;
    }
    p->has_verdict = mu_verdict_read(answer->value, &p->verdict);
    mu_policy_write_foreign(p, "the verdict", "verdict", answer->value, "ignoring it");
    if (!p->has_verdict || verdict->rank < 0 || verdict->round < 0 || verdict->round < last->round)
        ignore_verdict(p);
    else if (verdict->round == last->round && verdict->tag == last->tag && verdict->rank < last->world_size)
        mu_policy_tell_why(p, true);
    else
        mu_asks_look(&p->asks, ROUND_LOOK, -1, "%sbudget", p->job_prefix)->once = true;
}

/* A budget that has gone on since the verdict's round disproves it. One that stayed behind does not: no budget is kept
 * in rounds with PyTorch members. */
void mu_policy_take_round(struct mu_policy *p, const struct mu_answer *answer)
{
    struct mu_restart_budget found;
    bool known = answer->error == NULL && mu_restart_budget_read(answer->value, &found);
    bool is_certain = known && found.round == p->verdict.round && found.tag == p->verdict.tag;

    if (known && !is_certain && found.round >= p->verdict.round)
        ignore_verdict(p);
    else
        mu_policy_tell_why(p, is_certain);
}

static void leave_failed(struct mu_policy *p)
{
    if (p->phase == MU_POLICY_LEAVING)
        mu_policy_left(p);
    else if (p->phase == MU_POLICY_STOPPING && p->membership == IS_LEAVING)
        mu_policy_set_membership(p, NO_MEMBER);
}

static void membership_failed(struct mu_policy *p, const struct muster_error *error)
{
    if (p->phase == MU_POLICY_ASSIGNING || mu_policy_has_workers(p)) {
        mu_policy_fail_with(p, error);
    } else if (p->phase == MU_POLICY_FINISHING) { /* done is done */
        mu_policy_say(p, MUSTER_LOG_WARNING, "done; the membership has failed: %.*s", TEXT_SHOWN_MAX * 2, error->text);
        mu_policy_decide(p, MU_POLICY_OUTCOME_SUCCEEDED, 0, 0);
        mu_policy_end(p);
    } /* else what follows finds out for itself */
}

void mu_policy_on_failed(struct mu_policy *p, const struct mu_policy_event *event)
{
    switch (event->request) {
    case MUSTER_RDZV_REQUEST_JOIN:
        if (p->phase == MU_POLICY_JOINING)
            join_failed(p, event);
        break;
    case MUSTER_RDZV_REQUEST_LEAVE:
        leave_failed(p);
        break;
    case MUSTER_RDZV_REQUEST_MEMBERSHIP:
        membership_failed(p, event->error);
        break;
    case MUSTER_RDZV_REQUEST_CLOSE: /* completion's */
    case MUSTER_RDZV_REQUEST_LOOK:
    case MUSTER_RDZV_REQUEST_UNKNOWN:
        assert(false);
        break;
    }
}

/* ---- The other machines ---- */

void mu_policy_on_job_failed(struct mu_policy *p, const struct mu_policy_event *event)
{
    struct muster_error error = { 0 };

    if (p->phase != MU_POLICY_ASSIGNING && !mu_policy_has_workers(p))
        return;
    (void)mu_fail(&error, MUSTER_ERDZV_CLOSED, "%s", event->text == NULL ? "the job has failed" : event->text);
    mu_policy_say(p, MUSTER_LOG_ERROR, "the job has failed on another node%s", /* why: in the end */
                  p->workers == NONE ? "" : "; stopping the workers");
    mu_policy_fail_with(p, &error);
}

/* The verdict is written; unless the job, after all, goes on. */
static void on_job_ended(struct mu_policy *p, const struct mu_policy_event *event)
{
    if (event->end == MU_COMPLETION_END_OUTDATED) {
        mu_policy_be_outdated(p);
        return;
    }
    mu_policy_be_failed(p, event->end == MU_COMPLETION_END_UNSAID
                               ? "no restarts left; could not tell the other nodes"
                               : "no restarts left: the job has failed and is closed");
    mu_policy_linger(p);
}

void mu_policy_on_finished(struct mu_policy *p, const struct mu_policy_event *event)
{
    bool good = event->end == MU_COMPLETION_END_ALL_DONE;

    if (p->phase == MU_POLICY_FAILING) {
        on_job_ended(p, event);
        return;
    }
    if (p->phase != MU_POLICY_FINISHING)
        return;
    mu_policy_decide(p, MU_POLICY_OUTCOME_SUCCEEDED, 0, 0);
    if (event->text != NULL)
        mu_policy_say(p, good ? MUSTER_LOG_INFO : MUSTER_LOG_WARNING, "%.*s", TEXT_SHOWN_MAX * 2, event->text);
    if (good) {
        mu_policy_linger(p);
        return;
    }
    if (p->joined.serves && event->end != MU_COMPLETION_END_TIMEOUT)
        p->serve_until_ms = p->now_ms + MU_POLICY_SERVE_MS;
    else if (p->joined.serves_workers && event->end == MU_COMPLETION_END_AWAY)
        p->serve_until_ms = p->barrier_ms == UINT64_MAX ? UINT64_MAX : p->done_ms + p->barrier_ms;
    mu_policy_leave(p);
}
