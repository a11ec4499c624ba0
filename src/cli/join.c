/* What `muster join` does when something happens. */
#include "cli/join.h"

#include "base/error.h"
#include "cli/cli.h"

#include <assert.h>

static const char command[] = "muster join";

/* ---- Words ---- */

/* "muster join: WHAT 'job'" */
static void begin_err(struct mu_join *join, const char *what)
{
    mu_text_add(&join->err, "%s: %s ", command, what);
    mu_text_add_around(&join->err, "'", join->config.about.run_id, "'");
}

/* A line on stdout, for programs or for people. News of a member is about its round, unless it says otherwise. */
static void tell(struct mu_join *join, const struct muster_rdzv_event *told)
{
    struct muster_rdzv_event event = *told;

    if (event.round < 0 && join->world_size > 0)
        event.round = join->round;
    if (join->config.json)
        mu_join_text_json(&join->out, &join->config.about, &event);
    else
        mu_join_text_people(&join->out, &join->config.about, &event);
}

/* A terminal always shows the status; elsewhere there is a line now and then. */
static void say_status(struct mu_join *join, uint64_t now_ms)
{
    struct mu_text line = { 0 };
    bool scheduled = false;

    if (join->config.terminal) {
        mu_waiting_status(&join->waiting, &join->config.about, now_ms, &join->status);
        join->looked_ms = now_ms;
        return;
    }
    if (mu_waiting_tell(&join->waiting, &join->config.about, now_ms, &line, &scheduled))
        mu_text_add(scheduled ? &join->notice : &join->info, "%.*s\n", (int)line.buf.len,
                    line.buf.len > 0 ? line.buf.data : "");
    if (line.failed != 0)
        join->notice.failed = line.failed;
    mu_text_done(&line);
}

/* ---- Progress and the back end ---- */

static void backend_down(struct mu_join *join, const struct muster_rdzv_event *told, uint64_t now_ms)
{
    if (join->is_down)
        return; /* it was said */
    join->is_down = true;
    join->down_ms = now_ms;
    mu_text_add_error(&join->warning, &join->config.about, told->error);
    mu_text_add(&join->warning, "; trying again\n");
}

static void backend_up(struct mu_join *join, uint64_t now_ms)
{
    if (!join->is_down)
        return;
    join->is_down = false;
    mu_text_add_around(&join->notice, "connected to ", join->config.about.endpoint, " again, after ");
    mu_text_add_duration(&join->notice, (int64_t)(now_ms - join->down_ms));
    mu_text_add(&join->notice, "\n");
}

/* ---- Ways out ---- */

static void over(struct mu_join *join)
{
    join->phase = MU_JOIN_OVER;
}

static void leave(struct mu_join *join, uint64_t now_ms, struct mu_join_effects *ret)
{
    join->phase = MU_JOIN_LEAVING;
    join->until_ms = now_ms + MU_JOIN_LEAVE_MS;
    ret->leave = true;
}

static void part(struct mu_join *join, uint64_t now_ms)
{
    if (join->world_size <= 1) {
        over(join);
        return;
    }
    join->phase = MU_JOIN_PARTING;
    join->until_ms = now_ms + MU_JOIN_PARTING_MS;
}

static int exit_code_of(int code)
{
    switch (code) {
    case MUSTER_ERDZV_CLOSED:
        return MU_JOIN_EXIT_CLOSED;
    case MUSTER_ERDZV_TIMEOUT:
        return MU_JOIN_EXIT_TIMEOUT;
    case MUSTER_ERDZV_GRACEFUL_EXIT:
        return MU_EXIT_OK;
    default:
        return MU_EXIT_ERROR;
    }
}

static void fail(struct mu_join *join, const struct muster_rdzv_event *told)
{
    int code = told->error != NULL ? told->error->code : MUSTER_EINTERNAL;

    join->exit_code = exit_code_of(code);
    if (code == MUSTER_ERDZV_GRACEFUL_EXIT) {
        struct muster_rdzv_event closed = *told;

        closed.type = MUSTER_RDZV_CLOSED;
        tell(join, &closed);
        mu_text_add_around(&join->notice, "not needed: rendezvous '", join->config.about.run_id,
                           "' was closed while this node was a spare\n");
    } else {
        if (join->phase == MU_JOIN_STAYING && join->config.json)
            tell(join, told);
        mu_text_add(&join->err, "%s: %s", command, join->phase == MU_JOIN_STAYING ? "no longer a member: " : "");
        mu_text_add_error(&join->err, &join->config.about, told->error);
        mu_text_add(&join->err, "\n");
    }
    over(join);
}

static void removed(struct mu_join *join, const struct muster_rdzv_event *told)
{
    static const char by_others[] = "the other members took this node for dead and go on without it";

    join->exit_code = MU_JOIN_EXIT_REMOVED;
    if (join->config.json && join->config.hold_ms > 0)
        tell(join, told);
    begin_err(join, "removed from");
    mu_text_add_around(&join->err, ": ", told->cause != NULL ? told->cause : by_others, "\n");
    over(join);
}

/* ---- What the handler tells ---- */

static void joining_told(struct mu_join *join, const struct muster_rdzv_event *told, uint64_t now_ms)
{
    mu_waiting_take(&join->waiting, told, now_ms);
    if (told->type == MUSTER_RDZV_JOINED) {
        join->phase = MU_JOIN_STAYING;
        join->world_size = told->info->world_size;
        join->round = told->info->round;
        join->until_ms = now_ms;
        if (join->config.hold_ms > 0)
            join->until_ms += (uint64_t)join->config.hold_ms;
        else if (join->world_size > 1)
            join->until_ms += MU_JOIN_LINGER_MS;
        tell(join, told);
    } else if (told->type == MUSTER_RDZV_FAILED) { /* also what follows CLOSED */
        fail(join, told);
    } else if (told->type == MUSTER_RDZV_REMOVED) {
        removed(join, told);
    } else if (told->type == MUSTER_RDZV_BACKEND_DOWN) {
        backend_down(join, told, now_ms);
    } else if (told->type == MUSTER_RDZV_BACKEND_UP) {
        backend_up(join, now_ms);
    }
}

static void staying_told(struct mu_join *join, const struct muster_rdzv_event *told, uint64_t now_ms)
{
    bool holds = join->config.hold_ms > 0;

    switch (told->type) {
    case MUSTER_RDZV_WAITING:
    case MUSTER_RDZV_PEERS_LOST:
    case MUSTER_RDZV_CLOSED:
        if (holds)
            tell(join, told);
        break;
    case MUSTER_RDZV_REMOVED:
        removed(join, told);
        break;
    case MUSTER_RDZV_FAILED:
        fail(join, told);
        break;
    case MUSTER_RDZV_BACKEND_DOWN:
        if (holds && join->config.json && !join->is_down)
            tell(join, told);
        if (holds)
            backend_down(join, told, now_ms);
        break;
    case MUSTER_RDZV_BACKEND_UP:
        if (holds && join->config.json)
            tell(join, told);
        backend_up(join, now_ms);
        break;
    case MUSTER_RDZV_JOINED:
    case MUSTER_RDZV_LEFT:
    case MUSTER_RDZV_LOOKED:
    case MUSTER_RDZV_PROGRESS:
    case MUSTER_RDZV_REPORTED:
        break;
    }
}

static void could_not_leave(struct mu_join *join, const struct muster_error *error)
{
    mu_text_add(&join->warning, "could not leave cleanly: ");
    mu_text_add_error(&join->warning, &join->config.about, error);
    mu_text_add(&join->warning, "; other members will notice when its heartbeats stop\n");
    over(join);
}

static void leave_timed_out(struct mu_join *join, uint64_t now_ms)
{
    struct muster_error error;

    if (join->is_down)
        (void)mu_fail(&error, MUSTER_ELOST, "the store has been away for %llu s",
                      (unsigned long long)(now_ms - join->down_ms) / 1000);
    else
        (void)mu_fail(&error, MUSTER_ETIMEOUT, "no answer within %d s", MU_JOIN_LEAVE_MS / 1000);
    could_not_leave(join, &error);
}

static void leaving_told(struct mu_join *join, const struct muster_rdzv_event *told, uint64_t now_ms)
{
    if (told->type == MUSTER_RDZV_LEFT) {
        if (join->config.hold_ms > 0 && join->world_size > 0)
            tell(join, told);
        part(join, now_ms);
    } else if (told->type == MUSTER_RDZV_REMOVED) { /* out is out */
        over(join);
    } else if (told->type == MUSTER_RDZV_FAILED) {
        could_not_leave(join, told->error);
    }
}

static void told(struct mu_join *join, const struct mu_join_event *event)
{
    switch (join->phase) {
    case MU_JOIN_JOINING:
        joining_told(join, event->told, event->now_ms);
        break;
    case MU_JOIN_STAYING:
        staying_told(join, event->told, event->now_ms);
        break;
    case MU_JOIN_LEAVING:
        leaving_told(join, event->told, event->now_ms);
        break;
    case MU_JOIN_PARTING:
    case MU_JOIN_OVER:
        break;
    }
}

/* ---- Signals, output, time ---- */

static void signalled(struct mu_join *join, const struct mu_join_event *event, struct mu_join_effects *ret)
{
    enum mu_signal_meaning meaning = mu_signals_see(&join->signals, event->number, event->now_ms);
    char name[MU_SIGNAL_NAME_MAX];

    if (meaning == MU_SIGNAL_REPEAT) {
        mu_text_add(&join->info, "%s again; ending as before\n", mu_signal_name(event->number, name));
        return;
    }
    if (meaning == MU_SIGNAL_HURRY) {
        ret->at_once = true;
        over(join);
        return;
    }
    switch (join->phase) {
    case MU_JOIN_JOINING:
        join->exit_code = MU_EXIT_ERROR;
        begin_err(join, "stopped while waiting for");
        mu_text_add(&join->err, ": %s; leaving\n", mu_signal_name(event->number, name));
        leave(join, event->now_ms, ret);
        break;
    case MU_JOIN_STAYING:
        leave(join, event->now_ms, ret);
        break;
    case MU_JOIN_LEAVING:
    case MU_JOIN_PARTING:
    case MU_JOIN_OVER:
        over(join);
        break;
    }
}

static void unheard(struct mu_join *join, const struct mu_join_event *event, struct mu_join_effects *ret)
{
    join->exit_code = MU_EXIT_ERROR;
    mu_text_add(&join->err, "%s: cannot write to standard output: %s\n", command, event->text);
    if (join->phase == MU_JOIN_JOINING || join->phase == MU_JOIN_STAYING)
        leave(join, event->now_ms, ret);
}

static void time_passed(struct mu_join *join, uint64_t now_ms, struct mu_join_effects *ret)
{
    if (join->phase == MU_JOIN_JOINING || join->phase == MU_JOIN_OVER || now_ms < join->until_ms)
        return;
    if (join->phase == MU_JOIN_STAYING)
        leave(join, now_ms, ret);
    else if (join->phase == MU_JOIN_LEAVING)
        leave_timed_out(join, now_ms);
    else
        over(join);
}

/* ---- The machine ---- */

void mu_join_init(struct mu_join *join, const struct mu_join_config *config)
{
    *join = (struct mu_join){ .config = *config };
}

void mu_join_done(struct mu_join *join)
{
    for (size_t i = 0; i < MU_JOIN_SAID; i++)
        mu_text_done(&join->said[i]);
    mu_waiting_done(&join->waiting);
}

/* Nothing can be said any more that is not a constant. */
static void out_of_memory(struct mu_join *join, struct mu_join_effects *ret)
{
    static const char line[] = "muster join: out of memory\n";

    join->exit_code = MU_EXIT_ERROR;
    join->phase = MU_JOIN_OVER;
    *ret = (struct mu_join_effects){ .over = true, .err = mu_slice(line, sizeof line - 1) };
}

void mu_join_step(struct mu_join *join, const struct mu_join_event *event, struct mu_join_effects *ret)
{
    bool failed;

    *ret = (struct mu_join_effects){ 0 };
    for (size_t i = 0; i < MU_JOIN_SAID; i++)
        join->said[i].buf.len = 0;
    switch (event->type) {
    case MU_JOIN_START:
        assert(join->phase == MU_JOIN_JOINING && join->waiting.state == MU_WAITING_OFF);
        join->looked_ms = event->now_ms;
        mu_waiting_begin(&join->waiting, event->now_ms);
        ret->join = true;
        break;
    case MU_JOIN_TOLD:
        told(join, event);
        break;
    case MU_JOIN_SIGNAL:
        signalled(join, event, ret);
        break;
    case MU_JOIN_UNHEARD:
        unheard(join, event, ret);
        break;
    case MU_JOIN_TIME:
        time_passed(join, event->now_ms, ret);
        break;
    }
    if (join->phase == MU_JOIN_JOINING)
        say_status(join, event->now_ms);
    else
        mu_waiting_end(&join->waiting);
    ret->over = join->phase == MU_JOIN_OVER;
    failed = join->waiting.names.failed != 0 || join->waiting.note.failed != 0;
    join->waiting.names.failed = join->waiting.note.failed = 0;
    for (size_t i = 0; i < MU_JOIN_SAID; i++) {
        ret->said[i] = mu_buf_slice(&join->said[i].buf);
        failed |= join->said[i].failed != 0;
        join->said[i].failed = 0;
    }
    if (failed)
        out_of_memory(join, ret);
}

uint64_t mu_join_deadline_ms(const struct mu_join *join)
{
    switch (join->phase) {
    case MU_JOIN_JOINING:
        return join->config.terminal ? join->looked_ms + MU_JOIN_LOOK_MS : mu_waiting_due_ms(&join->waiting);
    case MU_JOIN_STAYING:
    case MU_JOIN_LEAVING:
    case MU_JOIN_PARTING:
        return join->until_ms;
    case MU_JOIN_OVER:
        break;
    }
    return UINT64_MAX;
}
