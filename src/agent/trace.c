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
static const char *const worth_a_word[] = {
    [MU_POLICY_DO_JOIN] = "join the rendezvous",
    [MU_POLICY_DO_LEAVE] = "leave the rendezvous",
    [MU_POLICY_DO_ASSIGN] = "assign ranks",
    [MU_POLICY_DO_START_WORKERS] = "start workers",
    [MU_POLICY_DO_STOP_WORKERS] = "stop workers with ",
    [MU_POLICY_DO_KILL_WORKERS] = "kill workers",
    [MU_POLICY_DO_FINISH] = "enter the exit barrier",
    [MU_POLICY_DO_FAIL_JOB] = "close the job as failed",
    [MU_POLICY_DO_END] = "end: ",
};

static bool add_effect(struct mu_words *w, const struct mu_policy_effect *effect)
{
    size_t type = effect->type;

    if (type >= sizeof worth_a_word / sizeof worth_a_word[0] || worth_a_word[type] == NULL)
        return false;
    mu_words_add(w, "; %s", worth_a_word[type]);
    if (type == MU_POLICY_DO_STOP_WORKERS)
        mu_words_add(w, "%s, kill them after %" PRIu64 " ms", mu_report_signal_name(effect->signal), effect->grace_ms);
    if (type == MU_POLICY_DO_END)
        mu_words_add(w, "%s", mu_policy_outcome_text(effect->outcome->kind));
    return true;
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
