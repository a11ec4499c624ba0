/* Stopping workers and what they left behind; the states are drawn in the header. Every step counts the living in the
 * list it was given and decides by that; nothing is remembered about single processes. */
#include "proc/stop.h"

#include "base/texts.h"
#include "base/words.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

struct counts {
    size_t leaders; /* alive */
    size_t grouped; /* alive in the workers' groups, leaders included */
    size_t stuck;   /* alive and not to be ended by SIGKILL, as far as one can see */
    size_t refused; /* of these: waiting does not help */
    size_t alive;
    size_t stopped;  /* in the groups, by a signal */
    size_t managers; /* alive: torch_shm_manager */
    size_t below;    /* alive, and not our children */
};

static bool is_dead(const struct mu_stop_child *child)
{
    return child->state == 'Z' || child->state == 'X';
}

static struct counts count(const struct mu_stop_event *event)
{
    struct counts n = { 0 };

    for (size_t i = 0; i < event->count; i++) {
        const struct mu_stop_child *child = &event->children[i];

        if (is_dead(child))
            continue;
        n.alive++;
        n.below += child->below;
        n.leaders += child->leader;
        n.grouped += child->rank >= 0;
        n.stuck += child->state == 'D' || child->refused;
        n.refused += child->refused;
        n.managers += child->comm != NULL && strcmp(child->comm, MU_CHILD_SHM_MANAGER) == 0;
        n.stopped += child->rank >= 0 && (child->state == 'T' || child->state == 't');
    }
    if (event->hidden) { /* without a list no process can be named or killed */
        n.alive++;
        n.stuck++;
    }
    return n;
}

static struct mu_stop_effect *add(struct mu_stop_effects *out, enum mu_stop_effect_type type)
{
    struct mu_stop_effect *effect = &out->items[out->count++];

    assert(out->count <= MU_STOP_EFFECTS_MAX);
    *effect = (struct mu_stop_effect){ .type = type };
    return effect;
}

static void signal_to(struct mu_stop_effects *out, enum mu_stop_effect_type whom, int signal)
{
    add(out, whom)->signal = signal;
}

static void keep_left(struct mu_stop *stop, const struct mu_stop_event *event, bool leaders_too)
{
    stop->left_count = 0;
    stop->hidden = event->hidden;
    for (size_t i = 0; i < event->count; i++) {
        const struct mu_stop_child *child = &event->children[i];
        struct mu_stop_left *left;

        if (is_dead(child) || (child->leader && !leaders_too))
            continue;
        if (stop->left_count++ < MU_STOP_LEFT_MAX) {
            left = &stop->left[stop->left_count - 1];
            *left = (struct mu_stop_left){ .pid = child->pid, .state = child->state, .refused = child->refused };
            (void)snprintf(left->comm, sizeof left->comm, "%s", child->comm != NULL ? child->comm : "?");
        }
    }
}

static void add_left(const struct mu_stop *stop, struct mu_words *w)
{
    size_t shown = stop->left_count < MU_STOP_LEFT_MAX ? stop->left_count : MU_STOP_LEFT_MAX;

    for (size_t i = 0; i < shown; i++) {
        const struct mu_stop_left *left = &stop->left[i];

        mu_words_add(w, "%s%d (%s, state %c%s)", i > 0 ? ", " : "", (int)left->pid, left->comm, left->state,
                     left->refused ? ", not permitted" : "");
    }
    if (stop->left_count > shown)
        mu_words_add(w, " and %zu more", stop->left_count - shown);
    if (stop->hidden)
        mu_words_add(w, "%ssome that cannot be seen without a /proc of this pid namespace",
                     stop->left_count > 0 ? " and " : "");
}

void mu_stop_left_text(const struct mu_stop *stop, char *to, size_t room)
{
    struct mu_words w = mu_words_into(to, room);

    to[0] = '\0';
    add_left(stop, &w);
}

static void say_left(struct mu_stop *stop, const char *what, struct mu_stop_effects *out)
{
    struct mu_words w = mu_words_into(stop->text, sizeof stop->text);

    mu_words_add(&w, "%s", what);
    add_left(stop, &w);
    add(out, MU_STOP_DO_SAY)->text = stop->text;
}

static void enter_done(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out)
{
    stop->state = MU_STOP_DONE;
    keep_left(stop, event, true);
    if (stop->left_count > 0 || stop->hidden)
        say_left(stop, "these processes did not end after SIGKILL; giving up on them: ", out);
    (void)add(out, MU_STOP_DO_DONE);
}

static void enter_drain(struct mu_stop *stop, const struct mu_stop_event *event)
{
    stop->state = MU_STOP_DRAIN;
    stop->until_ms = event->now_ms + MU_STOP_DRAIN_MS;
}

static void enter_killing(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out)
{
    stop->state = MU_STOP_KILLING;
    stop->until_ms = event->now_ms + MU_STOP_LIMIT_MS;
    stop->stuck_ms = UINT64_MAX;
    stop->look_delay_ms = MU_STOP_LOOK_MS;
    stop->look_ms = event->now_ms + stop->look_delay_ms;
    keep_left(stop, event, false);
    stop->killed_count = stop->left_count;
    if (stop->left_count > 0)
        say_left(stop, "killing what the workers left behind: ", out);
    signal_to(out, MU_STOP_DO_SIGNAL_GROUPS, SIGKILL);
    signal_to(out, MU_STOP_DO_SIGNAL_CHILDREN, SIGKILL);
}

/* The grace is over, and a process in the groups is alive. */
static void end_grace(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out)
{
    if (count(event).leaders > 0)
        signal_to(out, MU_STOP_DO_SIGNAL_LEADERS, SIGKILL);
    else /* they had the same grace as their leaders, who used less of it */
        signal_to(out, MU_STOP_DO_SIGNAL_GROUPS, SIGKILL);
    enter_drain(stop, event);
}

static void begin_grace(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out)
{
    struct counts n = count(event);
    bool for_nobody = stop->state == MU_STOP_IDLE && n.leaders == 0; /* they have ended by themselves */
    bool again = stop->state == MU_STOP_GRACE && event->signal == stop->signal;
    uint64_t until_ms =
        event->grace_ms > UINT64_MAX - event->now_ms ? UINT64_MAX : event->now_ms + event->grace_ms; /* for ever */

    if (n.grouped == 0) {
        enter_drain(stop, event);
        return;
    }
    stop->state = MU_STOP_GRACE;
    stop->signal = event->signal;
    if (until_ms < stop->until_ms) /* asking twice must not make it longer */
        stop->until_ms = until_ms;
    if (!again) /* some workers save their work at the first one and die of the second */
        signal_to(out, MU_STOP_DO_SIGNAL_GROUPS, event->signal);
    if (n.stopped > 0 && event->signal != SIGKILL)
        signal_to(out, MU_STOP_DO_SIGNAL_GROUPS, SIGCONT); /* a stopped process can act on the signal only then */
    if (event->signal == SIGKILL || for_nobody)
        enter_drain(stop, event);
    else if (event->now_ms >= stop->until_ms)
        end_grace(stop, event, out);
}

static void kill_groups(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out)
{
    if (count(event).grouped > 0)
        signal_to(out, MU_STOP_DO_SIGNAL_GROUPS, SIGKILL);
    enter_drain(stop, event);
}

/* IDLE sees nothing but STOP and KILL. */
static void idle_or_grace(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out)
{
    if (event->type == MU_STOP_ON_STOP)
        begin_grace(stop, event, out);
    else if (event->type == MU_STOP_ON_KILL)
        kill_groups(stop, event, out);
    else if (count(event).grouped == 0)
        enter_drain(stop, event);
    else if (event->now_ms >= stop->until_ms)
        end_grace(stop, event, out);
}

static void drain(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out)
{
    bool kill = event->type == MU_STOP_ON_KILL;

    if (!kill && event->now_ms < stop->until_ms)
        return;
    if (kill || stop->waited || count(event).managers == 0) {
        enter_killing(stop, event, out);
        return;
    }
    stop->waited = true;
    stop->until_ms = event->now_ms + MU_STOP_SHARED_MS;
    if (count(event).grouped > 0)
        signal_to(out, MU_STOP_DO_SIGNAL_GROUPS, SIGKILL);
}

/* We were stopped ourselves: that time does not count, for nothing was killed in it. */
static void forgive_lateness(struct mu_stop *stop, uint64_t now_ms)
{
    uint64_t late_ms = now_ms > stop->look_ms ? now_ms - stop->look_ms : 0;

    if (late_ms <= MU_STOP_LOOK_MAX_MS)
        return;
    stop->until_ms += late_ms;
    if (stop->stuck_ms != UINT64_MAX)
        stop->stuck_ms += late_ms;
}

static void killing(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out)
{
    struct counts n = count(event);

    forgive_lateness(stop, event->now_ms);
    if (n.stuck < n.alive)
        stop->stuck_ms = UINT64_MAX;
    else if (stop->stuck_ms == UINT64_MAX)
        stop->stuck_ms = event->now_ms;
    if (event->now_ms >= stop->until_ms || n.refused == n.alive ||
        (stop->stuck_ms != UINT64_MAX && event->now_ms - stop->stuck_ms >= MU_STOP_STUCK_MS)) {
        enter_done(stop, event, out);
        return;
    }
    if (event->now_ms >= stop->look_ms) {
        stop->look_delay_ms =
            stop->look_delay_ms * 2 < MU_STOP_LOOK_MAX_MS ? stop->look_delay_ms * 2 : MU_STOP_LOOK_MAX_MS;
        stop->look_ms = event->now_ms + stop->look_delay_ms;
    }
    if (n.stuck < n.alive)
        signal_to(out, MU_STOP_DO_SIGNAL_CHILDREN, SIGKILL);
    if (n.below > 0) /* whatever their state: they were not signalled before */
        signal_to(out, MU_STOP_DO_SIGNAL_BELOW, SIGKILL);
}

/* A process that is dying looks like one that cannot die; the processes below it are to be killed anyway. After some
 * looks every state counts: a process that runs in the kernel does not end either. */
bool mu_stop_wants_below(const struct mu_stop *stop, const struct mu_stop_child *child)
{
    return stop->state == MU_STOP_KILLING && !is_dead(child) &&
           (child->state == 'D' || child->state == '?' || child->refused || stop->look_delay_ms >= MU_STOP_LOOK_MAX_MS);
}

void mu_stop_init(struct mu_stop *stop, uint64_t poll_ms)
{
    *stop = (struct mu_stop){ .poll_ms = poll_ms, .look_ms = UINT64_MAX, .until_ms = UINT64_MAX };
}

void mu_stop_step(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out)
{
    out->count = 0;
    if (stop->state == MU_STOP_DONE ||
        (stop->state == MU_STOP_IDLE && event->type != MU_STOP_ON_STOP && event->type != MU_STOP_ON_KILL))
        return;
    if (count(event).alive == 0) {
        enter_done(stop, event, out);
        return;
    }
    switch (stop->state) {
    case MU_STOP_IDLE:
    case MU_STOP_GRACE:
        idle_or_grace(stop, event, out);
        break;
    case MU_STOP_DRAIN:
        drain(stop, event, out);
        break;
    case MU_STOP_KILLING:
        killing(stop, event, out);
        break;
    case MU_STOP_DONE:
        break;
    }
    if (stop->state == MU_STOP_GRACE || stop->state == MU_STOP_DRAIN)
        stop->look_ms = stop->poll_ms > 0 ? event->now_ms + stop->poll_ms : UINT64_MAX;
}

uint64_t mu_stop_deadline_ms(const struct mu_stop *stop)
{
    uint64_t deadline_ms = stop->until_ms < stop->look_ms ? stop->until_ms : stop->look_ms;

    return stop->state == MU_STOP_IDLE || stop->state == MU_STOP_DONE ? UINT64_MAX : deadline_ms;
}

MU_DEFINE_TEXTS(mu_stop_state_name, enum mu_stop_state, MU_STOP_STATES)
