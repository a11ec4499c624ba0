/* The steps of an agent as text, without what every step has (states, records, metrics, log lines). */
#include "agent/trace.h"

#include "agent/report.h"
#include "base/words.h"

#include <inttypes.h>
#include <stdio.h>

enum { WHY_MAX = 160 }; /* bytes of an event's own text that are shown */

static void add_event(struct mu_words *w, const struct mu_policy_event *event)
{
    const char *why = event->error != NULL ? event->error->text : event->text;

    mu_words_add(w, "%s", mu_policy_event_text(event->type));
    if (event->type == MU_POLICY_ON_EXITED)
        mu_words_add(w, ", local rank %" PRId64, event->number);
    if (event->type == MU_POLICY_ON_SIGNAL)
        mu_words_add(w, " %s", mu_report_signal_name((int)event->number));
    if (why != NULL && why[0] != '\0')
        mu_words_add(w, " (%.*s)", WHY_MAX, why);
}

/* What is to be done, if it is worth a word. */
static bool add_effect(struct mu_words *w, const struct mu_policy_effect *effect)
{
    switch (effect->type) {
    case MU_POLICY_DO_JOIN:
        mu_words_add(w, "; join the rendezvous");
        return true;
    case MU_POLICY_DO_LEAVE:
        mu_words_add(w, "; leave the rendezvous");
        return true;
    case MU_POLICY_DO_ASSIGN:
        mu_words_add(w, "; assign ranks");
        return true;
    case MU_POLICY_DO_START_WORKERS:
        mu_words_add(w, "; start workers");
        return true;
    case MU_POLICY_DO_STOP_WORKERS:
        mu_words_add(w, "; stop workers with %s, kill them after %" PRIu64 " ms", mu_report_signal_name(effect->signal),
                     effect->grace_ms);
        return true;
    case MU_POLICY_DO_KILL_WORKERS:
        mu_words_add(w, "; kill workers");
        return true;
    case MU_POLICY_DO_FINISH:
        mu_words_add(w, "; enter the exit barrier");
        return true;
    case MU_POLICY_DO_FAIL_JOB:
        mu_words_add(w, "; close the job as failed");
        return true;
    case MU_POLICY_DO_END:
        mu_words_add(w, "; end: %s", mu_policy_outcome_text(effect->outcome->kind));
        return true;
    case MU_POLICY_DO_ASSIGN_STOP:
    case MU_POLICY_DO_WATCH:
    case MU_POLICY_DO_WATCH_STOP:
    case MU_POLICY_DO_LISTEN:
    case MU_POLICY_DO_TELL_FAILED:
    case MU_POLICY_DO_NOTE:
    case MU_POLICY_DO_LINGER:
    case MU_POLICY_DO_ASK:
    case MU_POLICY_DO_STATE:
    case MU_POLICY_DO_RECORD:
    case MU_POLICY_DO_STEP:
    case MU_POLICY_DO_DECISION:
    case MU_POLICY_DO_FINAL:
    case MU_POLICY_DO_SAY:
        break;
    }
    return false;
}

bool mu_trace_say(const struct mu_trace *trace, char ret_line[static MU_TRACE_LINE_MAX])
{
    struct mu_words w = { .text = ret_line, .room = MU_TRACE_LINE_MAX };
    bool tells = trace->before != trace->after || trace->event->type == MU_POLICY_ON_EXITED;

    ret_line[0] = '\0';
    mu_words_add(&w, "[%s] ", trace->role);
    add_event(&w, trace->event);
    mu_words_add(&w, ": %s", mu_policy_phase_text(trace->before));
    if (trace->before != trace->after)
        mu_words_add(&w, " -> %s", mu_policy_phase_text(trace->after));
    for (unsigned i = 0; i < trace->effects->count; i++)
        tells |= add_effect(&w, &trace->effects->items[i]);
    return tells;
}
