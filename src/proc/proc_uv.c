/* The workers of one agent on a loop.
 *
 * Happy path: SIGCHLD or a pidfd says that a process has ended. look() checks each worker that was alive (WNOWAIT: it
 * stays unreaped), reaps adopted orphans that have ended, and only then calls on_exit. A stop feeds mu_stop with the
 * list of processes, again at every death and deadline, and does what it says. At its end the workers are reaped and
 * their pids forgotten. on_stopped comes from the timer, so never inside a call.
 *
 * If a system call fails during a stop, mu_stop sees a process that cannot be killed, or gets the list later.
 * group_children_uv.c says which processes belong to the group. */
#include "proc/group_parts_uv.h"

#include "base/clock.h"
#include "base/log.h"
#include "proc/keeper.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* the same everywhere */
#endif

/* ---- Handles --------------------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct mu_group *group = handle->data;

    if (--group->handles > 0 || group->on_closed == NULL)
        return;
    group->on_closed(group->closed_ctx);
    mu_children_done(&group->others);
    mu_children_done(&group->below);
    free(group->view);
    free(group);
}

static void on_watched_closed(uv_handle_t *handle)
{
    struct mu_watched *watched = (struct mu_watched *)handle;

    (void)close(watched->fd);
    on_handle_closed(handle);
    free(watched);
}

static void unwatch(struct mu_watched **watched)
{
    if (*watched != NULL)
        uv_close((uv_handle_t *)&(*watched)->poll, on_watched_closed);
    *watched = NULL;
}

/* Takes the descriptor on success. */
static int watch(struct mu_group *group, uint32_t rank, int fd, uv_poll_cb on_readable, struct mu_watched **ret_watched)
{
    struct mu_watched *watched = malloc(sizeof *watched);
    int rc;

    if (watched == NULL)
        return UV_ENOMEM;
    rc = uv_poll_init(group->config.loop, &watched->poll, fd);
    if (rc < 0) {
        free(watched);
        return rc;
    }
    watched->poll.data = group;
    watched->group = group;
    watched->rank = rank;
    watched->fd = fd;
    group->handles++;
    rc = uv_poll_start(&watched->poll, UV_READABLE, on_readable);
    if (rc < 0) {
        watched->fd = -1; /* the caller's still */
        unwatch(&watched);
        return rc;
    }
    *ret_watched = watched;
    return 0;
}

/* ---- Ends ------------------------------------------------------------------------------------------------------ */

/* Reads what has come of the result; `last`: nothing more will. */
static void read_result(struct mu_group_worker *w, bool last)
{
    if (w->output == NULL)
        return;
    if (mu_result_read(&w->result, w->output->fd, &w->result_error) == 0 && !w->result.complete) {
        if (!last)
            return;
        (void)mu_fail(&w->result_error, MUSTER_ELOST, "read a function's result: it ended before all of it had come");
    }
    unwatch(&w->output);
}

/* Whether it has ended. It stays a zombie, so that its pid and its group's number are not used again. */
static void check_worker(struct mu_group_worker *w)
{
    siginfo_t info = { .si_pid = 0 };

    if (w->exited)
        return;
    if (waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0) {
        if (errno != ECHILD)
            return;
        info.si_code = CLD_KILLED; /* another part of the program has reaped it: its end is unknown, and counts as no
                                    * success */
        info.si_status = SIGKILL;
        w->reaped = true;
        mu_log(MUSTER_LOG_ERROR, "process %d was reaped by another part of this program; its exit code is lost",
               (int)w->pid);
    } else if (info.si_pid == 0) {
        return;
    }
    w->exited = true;
    w->code = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
    w->dumped = info.si_code == CLD_DUMPED;
    w->wall_ms = mu_wall_us() / 1000;
    read_result(w, true);
    unwatch(&w->death);
}

/* ---- Stopping -------------------------------------------------------------------------------------------------- */

static void signal_worker(struct mu_group *group, uint32_t rank, int signal)
{
    struct mu_group_worker *w = &group->workers[rank];
    int rc = mu_group_signal(group, rank, signal);

    if (rc != -EPERM || w->refused || w->exited)
        return;
    w->refused = true;
    mu_log(MUSTER_LOG_WARNING, "signal %d to process %d: not permitted", signal, (int)w->pid);
}

static void signal_groups(struct mu_group *group, int signal)
{
    char room[MU_SIGNAL_NAME_MAX];

    for (uint32_t i = 0; i < group->count; i++) {
        if (!group->workers[i].exited && signal != SIGCONT && signal != SIGKILL)
            mu_log(MUSTER_LOG_WARNING, "Sending process %d closing signal %s", (int)group->workers[i].pid,
                   mu_signal_name(signal, room));
        signal_worker(group, i, signal);
    }
}

static void signal_leaders(struct mu_group *group, int signal)
{
    for (uint32_t i = 0; i < group->count; i++) {
        struct mu_group_worker *w = &group->workers[i];

        if (w->exited)
            continue;
        mu_log(MUSTER_LOG_WARNING, "Unable to shutdown process %d via %d, forcefully exiting via %d", (int)w->pid,
               group->stop.signal, signal);
        if (kill(w->pid, signal) < 0 && errno == EPERM)
            w->refused = true;
    }
}

static void note_refused(struct mu_group *group, const struct mu_child *child, int signal)
{
    if (mu_group_was_refused(group, child->pid) || group->refused_count == MU_GROUP_REFUSED_MAX)
        return;
    group->refused[group->refused_count++] = child->pid;
    if (group->refused_count > MU_STOP_LEFT_MAX)
        return;
    mu_log(MUSTER_LOG_WARNING, "signal %d to process %d (%s): not permitted", signal, (int)child->pid, child->comm);
}

/* Direct children only: nothing else reaps them, so the pids in the list are still theirs. */
static void signal_children(struct mu_group *group, int signal)
{
    for (uint32_t i = 0; i < group->count; i++) {
        if (!group->workers[i].exited)
            signal_worker(group, i, signal);
    }
    for (size_t i = 0; i < group->others.count && group->guarded; i++) {
        const struct mu_child *child = &group->others.items[i];

        if (kill(child->pid, signal) < 0 && errno == EPERM)
            note_refused(group, child, signal);
    }
}

static void signal_below(struct mu_group *group, int signal)
{
    for (size_t i = 0; i < group->below.count; i++) {
        const struct mu_child *child = &group->below.items[i];

        if (!mu_child_is_dead(child) && mu_child_signal(child, signal) == -EPERM)
            note_refused(group, child, signal);
    }
}

static void perform(struct mu_group *group, const struct mu_stop_effect *effect)
{
    switch (effect->type) {
    case MU_STOP_DO_SIGNAL_GROUPS:
        signal_groups(group, effect->signal);
        break;
    case MU_STOP_DO_SIGNAL_LEADERS:
        signal_leaders(group, effect->signal);
        break;
    case MU_STOP_DO_SIGNAL_CHILDREN:
        signal_children(group, effect->signal);
        break;
    case MU_STOP_DO_SIGNAL_BELOW:
        signal_below(group, effect->signal);
        break;
    case MU_STOP_DO_SAY:
        mu_log(MUSTER_LOG_WARNING, "%s", effect->text);
        break;
    case MU_STOP_DO_DONE:
        group->done = true;
        break;
    }
}

static void on_timer(uv_timer_t *timer);

static void arm(struct mu_group *group)
{
    uint64_t deadline_ms = mu_stop_deadline_ms(&group->stop), now_ms = uv_now(group->config.loop);

    if (group->done)
        (void)uv_timer_start(&group->timer, on_timer, 0, 0);
    else if (deadline_ms == UINT64_MAX)
        (void)uv_timer_stop(&group->timer);
    else
        (void)uv_timer_start(&group->timer, on_timer, deadline_ms > now_ms ? deadline_ms - now_ms : 0, 0);
}

/* What is there now, put before the machine. */
static void feed(struct mu_group *group, struct mu_stop_event event)
{
    struct mu_stop_effects effects;

    if (group->done)
        return;
    uv_update_time(group->config.loop);
    mu_groups_lock(); /* until the signals are sent, for listed processes must not be reaped meanwhile */
    for (size_t i = 0; i < group->count; i++)
        check_worker(&group->workers[i]);
    mu_group_list_others(group);
    mu_group_make_view(group, event.type == MU_STOP_ON_STOP || group->stop.state == MU_STOP_KILLING);
    mu_group_view_below(group);
    event.now_ms = uv_now(group->config.loop);
    event.children = group->view;
    event.count = group->view_count;
    event.hidden = group->hidden;
    mu_stop_step(&group->stop, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        perform(group, &effects.items[i]);
    mu_groups_unlock();
    arm(group);
}

/* ---- Telling --------------------------------------------------------------------------------------------------- */

static void tell(struct mu_group *group)
{
    for (uint32_t i = 0; i < group->count; i++) {
        struct mu_group_worker *w = &group->workers[i];
        struct mu_exit exit = { .rank = i,
                                .pid = w->pid,
                                .code = w->code,
                                .dumped = w->dumped,
                                .wall_ms = w->wall_ms,
                                .result = mu_buf_slice(&w->result.bytes),
                                .result_error = w->is_function && !w->result.complete ? &w->result_error : NULL };

        if (!w->exited || w->told)
            continue;
        w->told = true;
        if (!w->result.complete)
            exit.result.len = 0;
        group->config.on_exit(group->config.ctx, &exit);
    }
}

/* ---- Hanging --------------------------------------------------------------------------------------------------- */

/* Its state now. The switches are read first, so there are at most as many as when it was in that state. */
static struct mu_stuck_look look_at(struct mu_group_worker *w)
{
    struct mu_stuck_look look = { .state = '?' };
    struct mu_child child;

    if (!w->exited && mu_child_read_switches(MU_PROC_ROOT, w->pid, &look.switches) &&
        mu_child_read(MU_PROC_ROOT, w->pid, &child)) {
        look.state = child.state;
        memcpy(w->comm, child.comm, sizeof w->comm);
    }
    return look;
}

static void on_look(uv_timer_t *timer)
{
    struct mu_group *group = timer->data;
    uint64_t limit_ms = group->config.hang_ms, now_ms = uv_now(group->config.loop), next_ms = UINT64_MAX;
    bool hangs = false;
    uint32_t rank = 0;

    for (uint32_t i = 0; i < group->count; i++) {
        struct mu_group_worker *w = &group->workers[i];
        struct mu_stuck_look look = look_at(w);
        uint64_t due_ms;

        if (mu_stuck_step(&w->stuck, &look, limit_ms, now_ms) && !hangs) {
            hangs = true;
            rank = i;
        }
        due_ms = mu_stuck_next_ms(&w->stuck, limit_ms, now_ms);
        next_ms = due_ms < next_ms ? due_ms : next_ms;
    }
    (void)uv_timer_start(timer, on_look, next_ms - now_ms, 0);
    if (hangs) { /* last, for it may stop the group; of several it is the first that counts */
        struct mu_group_worker *w = &group->workers[rank];

        group->config.on_hang(group->config.ctx,
                              &(struct mu_hang){ .rank = rank, .pid = w->pid, .comm = w->comm, .state = 'D' });
    }
}

/* A process has ended. */
static void look(struct mu_group *group)
{
    if (group->stopping) {
        feed(group, (struct mu_stop_event){ .type = MU_STOP_ON_CHILDREN });
    } else {
        mu_groups_lock();
        for (size_t i = 0; i < group->count; i++)
            check_worker(&group->workers[i]);
        if (group->guarded)
            mu_group_list_orphans(group, false);
        mu_groups_unlock();
    }
    tell(group);
}

static void on_chld(uv_signal_t *handle, int signal)
{
    (void)signal;
    look(handle->data);
}

static void on_death(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    look(poll->data);
}

static void on_output(uv_poll_t *poll, int status, int events)
{
    struct mu_watched *watched = (struct mu_watched *)poll;

    (void)status;
    (void)events;
    read_result(&watched->group->workers[watched->rank], false);
}

static void drop_workers(struct mu_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct mu_group_worker *w = &group->workers[i];

        unwatch(&w->death);
        unwatch(&w->output);
        mu_result_done(&w->result);
    }
    free(group->workers);
    free(group->pids);
    free(group->ranks);
    group->workers = NULL;
    group->pids = NULL;
    group->ranks = NULL;
    group->count = 0;
}

/* With all workers reaped, wait can say that no child is left. If it knows of one, /proc shows which: a child of
 * another part of the program, one that could not be killed, or one that was missed. Then the stop goes on. */
static bool somebody_was_missed(struct mu_group *group)
{
    if (!group->guarded || group->stop.left_count > 0 || group->stop.hidden || !mu_has_child())
        return false;
    mu_group_list_orphans(group, true);
    return group->others.count > 0;
}

static void finish(struct mu_group *group)
{
    char left[1024];
    struct mu_stopped stopped = { .killed_count = group->stop.killed_count,
                                  .left_count = group->stop.left_count + (group->stop.hidden ? 1 : 0),
                                  .left = left };

    bool missed;

    tell(group);
    mu_groups_lock();
    mu_group_reap_workers(group);
    drop_workers(group);
    group->done = false;
    missed = somebody_was_missed(group);
    if (!missed) /* from here on, processes without an owner are left to other groups */
        group->hold = MU_GROUP_EMPTY;
    mu_groups_unlock();
    if (missed) {
        mu_stop_init(&group->stop, 0);
        feed(group, (struct mu_stop_event){ .type = MU_STOP_ON_KILL });
        return;
    }
    mu_stop_left_text(&group->stop, left, sizeof left);
    (void)uv_signal_stop(&group->chld);
    group->stopping = false;
    group->refused_count = 0;
    mu_stop_init(&group->stop, 0);
    group->config.on_stopped(group->config.ctx, &stopped);
}

static void on_timer(uv_timer_t *timer)
{
    struct mu_group *group = timer->data;

    if (!group->done)
        feed(group, (struct mu_stop_event){ .type = MU_STOP_ON_TIME });
    tell(group);
    if (group->done)
        finish(group);
}

/* ---- Shared functions ------------------------------------------------------------------------------------------ */

static bool chld_is_ignored(void)
{
    struct sigaction action;

    return sigaction(SIGCHLD, NULL, &action) == 0 &&
           ((action.sa_flags & SA_NOCLDWAIT) != 0 ||
            ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN));
}

int mu_group_new(const struct mu_group_config *config, struct mu_group **ret_group, struct muster_error *reterr)
{
    const struct mu_startup *startup = config->startup != NULL ? config->startup : mu_guard_startup();
    struct muster_error missing = { 0 };
    struct mu_group *group;

    assert(config->on_exit != NULL && config->on_stopped != NULL && (config->hang_ms == 0 || config->on_hang != NULL));
    if (chld_is_ignored())
        return mu_fail(reterr, MUSTER_EINVAL, "watch workers: SIGCHLD is ignored, so their exit codes would be lost");
    group = calloc(1, sizeof *group);
    if (group == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "watch workers: out of memory");
    group->config = *config;
    group->has_startup = startup != NULL;
    if (startup != NULL)
        group->startup = *startup;
    if (uv_signal_init(config->loop, &group->chld) < 0) {
        free(group);
        return mu_fail(reterr, MUSTER_ESYSTEM, "watch workers: no signal handle");
    }
    (void)uv_timer_init(config->loop, &group->timer); /* cannot fail */
    (void)uv_timer_init(config->loop, &group->looker);
    group->chld.data = group;
    group->timer.data = group;
    group->looker.data = group;
    group->handles = 3;
    mu_stop_init(&group->stop, 0);
    group->guarded = mu_guard_adopts();
    if (!mu_guarded())
        mu_log(MUSTER_LOG_INFO, "muster_guard() was not called: processes that workers detach will outlive them");
    else if (mu_guard_check(&missing) < 0)
        mu_log(MUSTER_LOG_WARNING, "%s; processes that workers detach may survive the job", missing.text);
    mu_groups_add(group);
    *ret_group = group;
    return 0;
}

static int reserve(struct mu_group *group, size_t count, struct muster_error *reterr)
{
    bool enough;

    mu_groups_lock();
    group->workers = calloc(count, sizeof *group->workers);
    group->pids = calloc(count, sizeof *group->pids);
    group->ranks = calloc(count, sizeof *group->ranks);
    enough =
        group->workers != NULL && group->pids != NULL && group->ranks != NULL && mu_group_reserve_view(group, count);
    if (enough)
        group->hold = MU_GROUP_STARTING;
    else
        drop_workers(group);
    mu_groups_unlock();
    return enough ? 0 : mu_fail(reterr, MUSTER_ENOMEM, "start %zu workers: out of memory", count);
}

static void begun(struct mu_group *group)
{
    mu_groups_lock();
    group->hold = group->count > 0 ? MU_GROUP_FULL : MU_GROUP_EMPTY;
    if (group->count == 0)
        drop_workers(group);
    mu_groups_unlock();
}

static int listen_to_chld(struct mu_group *group, struct muster_error *reterr)
{
    int rc = uv_signal_start(&group->chld, on_chld, SIGCHLD);

    group->by_signal = true;
    mu_signals_unblock(&(struct mu_signals){ .numbers = { SIGCHLD }, .count = 1 });
    return rc < 0 ? mu_fail_errno(reterr, -rc, "watch workers: handle SIGCHLD") : 0;
}

/* The worker is there; whatever fails now, it is in the list and can be stopped. */
static int watch_worker(struct mu_group *group, uint32_t rank, const struct mu_spawned *spawned,
                        struct muster_error *reterr)
{
    struct mu_group_worker *w = &group->workers[rank];
    int fd, rc;

    w->is_function = spawned->result_fd >= 0;
    if (w->is_function) {
        rc = watch(group, rank, spawned->result_fd, on_output, &w->output);
        if (rc < 0) {
            (void)close(spawned->result_fd);
            (void)mu_fail_errno(&w->result_error, -rc, "watch a function's result");
            return mu_fail_errno(reterr, -rc, "watch a function's result");
        }
    }
    if (group->by_signal)
        return 0;
    fd = (int)syscall(SYS_pidfd_open, w->pid, 0u); /* close-on-exec of itself */
    if (fd >= 0 && watch(group, rank, fd, on_death, &w->death) == 0)
        return 0;
    if (fd >= 0)
        (void)close(fd);
    rc = listen_to_chld(group, reterr);
    if (rc == 0) /* one that ended before is told by the timer */
        (void)uv_timer_start(&group->timer, on_timer, 0, 0);
    return rc;
}

int mu_group_start(struct mu_group *group, const struct mu_spawn *specs, size_t count, struct muster_error *reterr)
{
    int rc;

    assert(group->count == 0 && !group->stopping && group->on_closed == NULL);
    assert(count > 0 && count <= MU_GROUP_WORKERS_MAX);
    rc = reserve(group, count, reterr);
    group->by_signal = false;
    if (rc == 0 && group->guarded)
        rc = listen_to_chld(group, reterr);
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        struct mu_spawned spawned;

        rc = mu_spawn_start(&specs[i], group->has_startup ? &group->startup : NULL, &spawned, reterr);
        if (rc == 0) {
            mu_group_enlist(group, spawned.pid);
            rc = watch_worker(group, i, &spawned, reterr);
        }
        if (rc < 0)
            rc = mu_wrap(reterr, rc, "local rank %u", i);
    }
    begun(group);
    if (rc == 0 && group->config.hang_ms > 0)
        (void)uv_timer_start(&group->looker, on_look, 0, 0);
    return rc;
}

static void begin(struct mu_group *group, struct mu_stop_event event)
{
    if (!group->stopping) {
        group->stopping = true;
        (void)uv_timer_stop(&group->looker);
        mu_stop_init(&group->stop, group->guarded ? 0 : MU_GROUP_POLL_MS);
    }
    feed(group, event);
}

void mu_group_stop(struct mu_group *group, int signal, uint64_t grace_ms)
{
    assert(group->on_closed == NULL);
    begin(group, (struct mu_stop_event){ .type = MU_STOP_ON_STOP, .signal = signal, .grace_ms = grace_ms });
}

void mu_group_kill(struct mu_group *group)
{
    assert(group->on_closed == NULL);
    begin(group, (struct mu_stop_event){ .type = MU_STOP_ON_KILL });
}

void mu_group_suspend(struct mu_group *group)
{
    for (uint32_t i = 0; i < group->count; i++)
        (void)mu_group_signal(group, i, SIGSTOP);
    (void)kill(getpid(), SIGSTOP); /* returns when we are continued */
    for (uint32_t i = 0; i < group->count; i++)
        (void)mu_group_signal(group, i, SIGCONT);
}

pid_t mu_group_pid(const struct mu_group *group, uint32_t rank)
{
    return rank < group->count ? group->workers[rank].pid : 0;
}

bool mu_group_owns(const struct mu_group *group, pid_t pid)
{
    struct mu_child child;

    return mu_group_rank_of(group, pid) >= 0 ||
           (mu_child_read(MU_PROC_ROOT, pid, &child) &&
            (mu_group_rank_of(group, child.pgid) >= 0 || mu_group_rank_of(group, child.sid) >= 0));
}

/* Whether a process is in it that stays until we reap it. */
static bool group_is_kept(const struct mu_group *group, pid_t pgid)
{
    for (size_t i = 0; i < group->others.count && group->guarded; i++) {
        if (group->others.items[i].pgid == pgid)
            return true;
    }
    return false;
}

int mu_group_signal(struct mu_group *group, uint32_t rank, int signal)
{
    bool reaped;
    pid_t pid;

    if (rank >= group->count)
        return -ESRCH;
    pid = group->workers[rank].pid;
    reaped = group->workers[rank].reaped;
    if (reaped && !group_is_kept(group, pid))
        return -ESRCH;
    if (kill(-pid, signal) == 0)
        return 0;
    if (errno == ESRCH && !reaped && kill(pid, signal) == 0) /* a function's child that does not lead its group yet */
        return 0;
    return -errno;
}

static void closed_quietly(void *ctx)
{
    (void)ctx;
}

void mu_group_close(struct mu_group *group, mu_group_closed_cb *on_closed, void *ctx)
{
    assert(group->count == 0 && !group->stopping && group->on_closed == NULL);
    mu_groups_lock();
    mu_list_remove(&group->link);
    mu_groups_unlock();
    group->on_closed = on_closed != NULL ? on_closed : closed_quietly;
    group->closed_ctx = ctx;
    uv_close((uv_handle_t *)&group->chld, on_handle_closed);
    uv_close((uv_handle_t *)&group->timer, on_handle_closed);
    uv_close((uv_handle_t *)&group->looker, on_handle_closed);
}
