/* The workers of one agent on a loop.
 *
 * Happy path: SIGCHLD or a pidfd says that somebody has ended; look() asks for each worker that was alive (WNOWAIT: it stays
 * unreaped), reaps adopted orphans that have ended, and only then tells of the workers. stop() feeds mu_stop with a list of
 * who is there, again at every death and deadline, and carries out what it says. At its end the workers are reaped and
 * their pids forgotten; on_stopped comes from the timer, so never inside a call.
 *
 * Several groups, each on a loop and thread of its own: all are in one list under one lock (`everybody`), for the children of
 * this process are the children of all of them. A child that a worker of another group leads is left alone. What has left its
 * worker's session could be anybody's: it is reaped, but not killed before one group alone has workers.
 *
 * No usable /proc: only workers are known; other children are counted by wait's word alone. Failures of single system
 * calls during a stop are shown to mu_stop as somebody who is there and cannot be killed, or as a later look. */
#include "proc/proc_uv.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "proc/keeper.h"
#include "proc/stuck.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* the same everywhere */
#endif

enum { REFUSED_MAX = 1024 }; /* of whom MU_STOP_LEFT_MAX are told */

/* A descriptor that the loop watches: a pidfd, or a function's result. On its own, for it may outlive its worker. */
struct watched {
    uv_poll_t poll;
    struct mu_group *group;
    uint32_t rank;
    int fd;
};

struct worker {
    pid_t pid;
    bool exited, told, refused;
    bool reaped; /* the pid may be somebody else's by now */
    char comm[MU_CHILD_COMM_MAX];
    int code;
    bool dumped;
    int64_t wall_ms;
    struct watched *death, *output;
    struct mu_stuck stuck;
    bool is_function;
    struct mu_result result;
    struct muster_error result_error; /* code 0: none */
};

struct by_pid {
    pid_t pid;
    uint32_t rank;
};

enum hold {
    EMPTY,
    STARTING, /* somebody may be a worker who is not in the list yet */
    FULL,     /* until the stop is over */
};

struct mu_group {
    struct mu_group_config config;
    struct mu_list link; /* in everybody.groups */
    enum hold hold;
    struct mu_startup startup;
    bool has_startup, guarded;
    uv_signal_t chld;
    uv_timer_t timer, looker; /* looker: for workers that hang */
    size_t handles;           /* of the loop's */
    struct worker *workers;
    size_t count;         /* of those that were started */
    pid_t *pids;          /* ascending; also those of reaped workers */
    struct by_pid *ranks; /* in the same order */
    bool by_signal;       /* deaths are told by SIGCHLD, not by pidfds */
    bool stopping, done;  /* done: on_stopped is to come */
    struct mu_stop stop;
    struct mu_children others;
    struct mu_children below; /* of those who do not end */
    struct mu_stop_child *view;
    size_t view_count, view_cap;
    bool hidden;
    pid_t refused[REFUSED_MAX];
    size_t refused_count;
    mu_group_closed_cb *on_closed;
    void *closed_ctx;
};

/* All groups of this process. Other threads may look at hold, workers, count and ranks of a group, which therefore change
 * only under the lock. */
static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct mu_list groups;
} everybody = { .lock = PTHREAD_MUTEX_INITIALIZER,
                .once = PTHREAD_ONCE_INIT,
                .groups = { .prev = &everybody.groups, .next = &everybody.groups } };

static void lock_everybody(void)
{
    (void)pthread_mutex_lock(&everybody.lock);
}

static void unlock_everybody(void)
{
    (void)pthread_mutex_unlock(&everybody.lock);
}

/* A function's child, or a program that forks: no group of its parent is its own. */
static void forget_everybody(void)
{
    mu_list_init(&everybody.groups);
    unlock_everybody();
}

static void survive_forks(void)
{
    (void)pthread_atfork(lock_everybody, unlock_everybody, forget_everybody);
}

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
    struct watched *watched = (struct watched *)handle;

    (void)close(watched->fd);
    on_handle_closed(handle);
    free(watched);
}

static void unwatch(struct watched **watched)
{
    if (*watched != NULL)
        uv_close((uv_handle_t *)&(*watched)->poll, on_watched_closed);
    *watched = NULL;
}

/* Takes the descriptor on success. */
static int watch(struct mu_group *group, uint32_t rank, int fd, uv_poll_cb on_readable, struct watched **ret_watched)
{
    struct watched *watched = malloc(sizeof *watched);
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

/* ---- Who is there ---------------------------------------------------------------------------------------------- */

static int compare_by_pid(const void *a, const void *b)
{
    const struct by_pid *left = a, *right = b;

    return left->pid < right->pid ? -1 : left->pid > right->pid;
}

/* The next worker, which was just started. */
static void enlist(struct mu_group *group, pid_t pid)
{
    uint32_t rank = (uint32_t)group->count;
    size_t at = rank;

    lock_everybody();
    for (; at > 0 && group->pids[at - 1] > pid; at--) { /* seldom: numbers mostly grow */
        group->pids[at] = group->pids[at - 1];
        group->ranks[at] = group->ranks[at - 1];
    }
    group->pids[at] = pid;
    group->ranks[at] = (struct by_pid){ .pid = pid, .rank = rank };
    group->workers[rank].pid = pid;
    group->count++;
    unlock_everybody();
}

/* The local rank of the worker with this pid; -1: none. */
static int32_t rank_of(const struct mu_group *group, pid_t pid)
{
    struct by_pid key = { .pid = pid };
    const struct by_pid *found =
        group->count > 0 ? bsearch(&key, group->ranks, group->count, sizeof key, compare_by_pid) : NULL;

    return found != NULL ? (int32_t)found->rank : -1;
}

static bool is_led(const struct mu_group *group, pid_t leader, bool reaped)
{
    int32_t rank = rank_of(group, leader);

    return rank >= 0 && group->workers[rank].reaped == reaped;
}

/* The group whose worker this child is, or in whose worker's process group or session it is; NULL: it could be anybody's. While
 * somebody is in a reaped worker's group or session its number is not used again. A child with the very number of a reaped
 * worker is somebody else. */
static const struct mu_group *owner_of(const struct mu_child *child)
{
    for (int reaped = 0; reaped < 2; reaped++) {
        for (struct mu_list *link = everybody.groups.next; link != &everybody.groups; link = link->next) {
            const struct mu_group *group = MU_LIST_ITEM(link, struct mu_group, link);

            if ((!reaped && is_led(group, child->pid, false)) ||
                (child->pgid != child->pid && is_led(group, child->pgid, reaped)) ||
                (child->sid != child->pid && is_led(group, child->sid, reaped)))
                return group;
        }
    }
    return NULL;
}

/* What the other groups hold, at most. */
static enum hold hold_of_others(const struct mu_group *group)
{
    enum hold most = EMPTY;

    for (struct mu_list *link = everybody.groups.next; link != &everybody.groups; link = link->next) {
        const struct mu_group *other = MU_LIST_ITEM(link, struct mu_group, link);

        if (other != group && other->hold != EMPTY && most != STARTING)
            most = other->hold;
    }
    return most;
}

static int64_t wall_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads what has come of the result; `last`: nothing more will. */
static void read_result(struct worker *w, bool last)
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

/* Has it ended? It stays a zombie, and its pid and its group's number stay its own. */
static void check_worker(struct worker *w)
{
    siginfo_t info = { .si_pid = 0 };

    if (w->exited)
        return;
    if (waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0) {
        if (errno != ECHILD)
            return;
        info.si_code = CLD_KILLED; /* somebody else has reaped it: nobody knows, and it was not a success */
        info.si_status = SIGKILL;
        w->reaped = true;
        mu_log(MUSTER_LOG_ERROR, "process %d was waited for by somebody else; its exit code is lost", (int)w->pid);
    } else if (info.si_pid == 0) {
        return;
    }
    w->exited = true;
    w->code = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
    w->dumped = info.si_code == CLD_DUMPED;
    w->wall_ms = wall_ms();
    read_result(w, true);
    unwatch(&w->death);
}

/* Children of somebody else in this process have stayed in its session; workers and what they start have not. */
static bool is_foreign(const struct mu_child *child)
{
    return child->sid == getsid(0);
}

/* Reaps the orphans that have ended and lists the others. Whoever is traced cannot be reaped before its tracer has heard of its
 * end: it has ended all the same. */
static void list_orphans(struct mu_group *group, bool thorough)
{
    struct mu_pids workers = { .items = group->pids, .count = group->count };
    enum hold others = hold_of_others(group);
    size_t kept = 0;

    group->hidden = false;
    if (mu_children_list(&group->others, MU_PROC_ROOT, getpid(), thorough, &workers, NULL) < 0) {
        group->others.count = 0;
        group->hidden = true;
        return;
    }
    for (size_t i = 0; i < group->others.count; i++) {
        struct mu_child child = group->others.items[i];
        const struct mu_group *owner = owner_of(&child);

        if (is_foreign(&child) || (owner != NULL && owner != group) || (owner == NULL && others == STARTING))
            continue;
        if (mu_child_is_dead(&child))
            (void)waitpid(child.pid, NULL, WNOHANG | __WALL);
        else if (owner == group || others == EMPTY)
            group->others.items[kept++] = child;
    }
    group->others.count = kept;
}

static bool anybody_alive(const struct mu_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        if (!group->workers[i].exited)
            return true;
    }
    return group->others.count > 0;
}

/* Without a guard: who is in the workers' groups, the workers aside. Looked at only when no worker is alive, for it is
 * all of /proc that has to be read. */
static void list_groups(struct mu_group *group)
{
    struct mu_pids groups = { .items = group->pids, .count = group->count };
    size_t kept = 0;

    group->others.count = 0;
    group->hidden = false;
    if (anybody_alive(group) || group->count == 0)
        return;
    if (mu_children_in_groups(&group->others, MU_PROC_ROOT, &groups, NULL) < 0)
        group->others.count = 0; /* then they are killed without a word */
    for (size_t i = 0; i < group->others.count; i++) {
        if (!mu_child_is_dead(&group->others.items[i]) && rank_of(group, group->others.items[i].pid) < 0)
            group->others.items[kept++] = group->others.items[i];
    }
    group->others.count = kept;
}

static void reap_worker(struct worker *w)
{
    (void)waitpid(w->pid, NULL, WNOHANG);
    w->reaped = true;
}

/* Their groups get SIGKILL before, for nobody can be in there but those who were to be ended, and then the numbers may be
 * used again. A worker that could not be killed stays unreaped: with a guard a later look takes it for an orphan. */
static void reap_workers(struct mu_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct worker *w = &group->workers[i];

        if (!w->exited || w->reaped)
            continue;
        (void)kill(-w->pid, SIGKILL);
        reap_worker(w);
    }
}

/* Wait's word: is there a child? Only to be asked when all workers are reaped. */
static bool has_child(void)
{
    siginfo_t info;

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD;
}

/* Without /proc nobody but workers can be seen, or told from their zombies. With another group's workers among the children
 * wait's word means nothing. */
static void count_hidden(struct mu_group *group)
{
    if (!group->hidden || anybody_alive(group) || hold_of_others(group) != EMPTY) {
        group->hidden = false;
        return;
    }
    reap_workers(group);
    while (waitpid(-1, NULL, WNOHANG | __WALL) > 0) { /* guarded, so whoever it was came from the workers */
    }
    group->hidden = has_child();
}

/* Nobody is listed, but the quick list may miss one, and this is the moment to be sure. Of dead workers alone wait's word
 * is enough: all that lives below us is below a living child of ours, and they have none. Only otherwise all of /proc is
 * read; whoever is found there keeps its group's number in use, so nothing is lost with the dead leaders. */
static void list_missed(struct mu_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        if (!group->workers[i].reaped)
            reap_worker(&group->workers[i]);
    }
    if (has_child())
        list_orphans(group, true);
}

static void list_others(struct mu_group *group)
{
    if (!group->guarded) {
        list_groups(group);
        return;
    }
    list_orphans(group, false);
    if (!group->hidden && !anybody_alive(group))
        list_missed(group);
    count_hidden(group);
}

static bool was_refused(const struct mu_group *group, pid_t pid)
{
    for (size_t i = 0; i < group->refused_count; i++) {
        if (group->refused[i] == pid)
            return true;
    }
    return false;
}

/* Room for all workers is there since the start; orphans for whom there is none have to wait for the next look. */
static bool reserve_view(struct mu_group *group, size_t count)
{
    struct mu_stop_child *view;

    if (count <= group->view_cap)
        return true;
    view = realloc(group->view, count * sizeof *view);
    if (view == NULL)
        return false;
    group->view = view;
    group->view_cap = count;
    return true;
}

static char state_of_worker(struct worker *w, bool with_states)
{
    struct mu_child child;

    if (w->exited)
        return 'Z';
    if (!with_states || !mu_child_read(MU_PROC_ROOT, w->pid, &child))
        return '?';
    memcpy(w->comm, child.comm, sizeof w->comm);
    return mu_child_is_dead(&child) ? '?' : child.state; /* its end is told by wait, and soon */
}

static struct mu_stop_child view_of(const struct mu_group *group, const struct mu_child *child)
{
    return (struct mu_stop_child){ .pid = child->pid,
                                   .state = child->state,
                                   .rank = rank_of(group, child->pgid),
                                   .refused = was_refused(group, child->pid),
                                   .comm = child->comm };
}

/* Everybody, for mu_stop. A leader's state is read only where it matters. */
static void make_view(struct mu_group *group, bool with_states)
{
    size_t others = group->others.count;

    if (!reserve_view(group, group->count + others)) {
        group->hidden = true;
        others = 0;
    }
    group->view_count = 0;
    for (size_t i = 0; i < group->count; i++) {
        struct worker *w = &group->workers[i];

        group->view[group->view_count++] = (struct mu_stop_child){ .pid = w->pid,
                                                                   .state = state_of_worker(w, with_states),
                                                                   .leader = true,
                                                                   .rank = (int32_t)i,
                                                                   .refused = w->refused,
                                                                   .comm = w->comm };
    }
    for (size_t i = 0; i < others; i++)
        group->view[group->view_count++] = view_of(group, &group->others.items[i]);
}

/* Whoever is below those who do not end. If that cannot be listed, somebody may be there. */
static void view_below(struct mu_group *group)
{
    struct mu_children *below = &group->below;
    int rc = 0;

    below->count = 0;
    for (size_t i = 0; i < group->view_count && group->guarded && rc == 0; i++) {
        if (mu_stop_wants_below(&group->stop, &group->view[i]))
            rc = mu_children_add(below, &(struct mu_child){ .pid = group->view[i].pid });
    }
    if (rc == 0)
        rc = mu_children_below(below, MU_PROC_ROOT, NULL);
    if (rc < 0 || !reserve_view(group, group->view_count + below->count)) {
        group->hidden = true;
        below->count = 0;
    }
    for (size_t i = 0; i < below->count; i++) {
        struct mu_stop_child *child = &group->view[group->view_count++];

        *child = view_of(group, &below->items[i]);
        child->below = true;
    }
}

/* ---- Stopping -------------------------------------------------------------------------------------------------- */

static void signal_worker(struct mu_group *group, uint32_t rank, int signal)
{
    struct worker *w = &group->workers[rank];
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
        struct worker *w = &group->workers[i];

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
    if (was_refused(group, child->pid) || group->refused_count == REFUSED_MAX)
        return;
    group->refused[group->refused_count++] = child->pid;
    if (group->refused_count > MU_STOP_LEFT_MAX)
        return;
    mu_log(MUSTER_LOG_WARNING, "signal %d to process %d (%s): not permitted", signal, (int)child->pid, child->comm);
}

/* Direct children only, which nobody but us can reap: a pid in the list is still theirs. */
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
    lock_everybody(); /* until the signals are sent: nobody else may reap whoever is listed */
    for (size_t i = 0; i < group->count; i++)
        check_worker(&group->workers[i]);
    list_others(group);
    make_view(group, event.type == MU_STOP_ON_STOP || group->stop.state == MU_STOP_KILLING);
    view_below(group);
    event.now_ms = uv_now(group->config.loop);
    event.children = group->view;
    event.count = group->view_count;
    event.hidden = group->hidden;
    mu_stop_step(&group->stop, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        perform(group, &effects.items[i]);
    unlock_everybody();
    arm(group);
}

/* ---- Telling --------------------------------------------------------------------------------------------------- */

static void tell(struct mu_group *group)
{
    for (uint32_t i = 0; i < group->count; i++) {
        struct worker *w = &group->workers[i];
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

/* How it is now. Read in this order: switches that are read first are at most as many as there were when it was in its state. */
static struct mu_stuck_look look_at(struct worker *w)
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
        struct worker *w = &group->workers[i];
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
        struct worker *w = &group->workers[rank];

        group->config.on_hang(group->config.ctx,
                              &(struct mu_hang){ .rank = rank, .pid = w->pid, .comm = w->comm, .state = 'D' });
    }
}

/* Somebody ended. */
static void look(struct mu_group *group)
{
    if (group->stopping) {
        feed(group, (struct mu_stop_event){ .type = MU_STOP_ON_CHILDREN });
    } else {
        lock_everybody();
        for (size_t i = 0; i < group->count; i++)
            check_worker(&group->workers[i]);
        if (group->guarded)
            list_orphans(group, false);
        unlock_everybody();
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
    struct watched *watched = (struct watched *)poll;

    (void)status;
    (void)events;
    read_result(&watched->group->workers[watched->rank], false);
}

static void drop_workers(struct mu_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct worker *w = &group->workers[i];

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

/* With all of the workers reaped wait can say that nobody is left. If it does not, /proc names them: children of
 * somebody else, those who could not be killed, or one that was missed, and then it goes on. */
static bool somebody_was_missed(struct mu_group *group)
{
    if (!group->guarded || group->stop.left_count > 0 || group->stop.hidden || !has_child())
        return false;
    list_orphans(group, true);
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
    lock_everybody();
    reap_workers(group);
    drop_workers(group);
    group->done = false;
    missed = somebody_was_missed(group);
    if (!missed) /* from here on what nobody owns is the others' */
        group->hold = EMPTY;
    unlock_everybody();
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
    (void)pthread_once(&everybody.once, survive_forks);
    lock_everybody();
    mu_list_push(&everybody.groups, &group->link);
    unlock_everybody();
    *ret_group = group;
    return 0;
}

static int reserve(struct mu_group *group, size_t count, struct muster_error *reterr)
{
    bool enough;

    lock_everybody();
    group->workers = calloc(count, sizeof *group->workers);
    group->pids = calloc(count, sizeof *group->pids);
    group->ranks = calloc(count, sizeof *group->ranks);
    enough = group->workers != NULL && group->pids != NULL && group->ranks != NULL && reserve_view(group, count);
    if (enough)
        group->hold = STARTING;
    else
        drop_workers(group);
    unlock_everybody();
    return enough ? 0 : mu_fail(reterr, MUSTER_ENOMEM, "start %zu workers: out of memory", count);
}

static void begun(struct mu_group *group)
{
    lock_everybody();
    group->hold = group->count > 0 ? FULL : EMPTY;
    if (group->count == 0)
        drop_workers(group);
    unlock_everybody();
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
    struct worker *w = &group->workers[rank];
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

int mu_group_start(struct mu_group *group, const struct mu_spawn *specs, size_t count, int *ret_errno,
                   struct muster_error *reterr)
{
    int errnum = 0, rc;

    assert(group->count == 0 && !group->stopping && group->on_closed == NULL);
    assert(count > 0 && count <= MU_GROUP_WORKERS_MAX);
    rc = reserve(group, count, reterr);
    group->by_signal = false;
    if (rc == 0 && group->guarded)
        rc = listen_to_chld(group, reterr);
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        struct mu_spawned spawned;

        rc = mu_spawn_start(&specs[i], group->has_startup ? &group->startup : NULL, &spawned, &errnum, reterr);
        if (rc == 0) {
            enlist(group, spawned.pid);
            rc = watch_worker(group, i, &spawned, reterr);
        }
        if (rc < 0)
            rc = mu_wrap(reterr, rc, "local rank %u", i);
    }
    begun(group);
    if (rc == 0 && group->config.hang_ms > 0)
        (void)uv_timer_start(&group->looker, on_look, 0, 0);
    if (ret_errno != NULL)
        *ret_errno = errnum;
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

size_t mu_group_count(const struct mu_group *group)
{
    return group->count;
}

pid_t mu_group_pid(const struct mu_group *group, uint32_t rank)
{
    return rank < group->count ? group->workers[rank].pid : 0;
}

bool mu_group_running(const struct mu_group *group, uint32_t rank)
{
    return rank < group->count && !group->workers[rank].told;
}

bool mu_group_guarded(const struct mu_group *group)
{
    return group->guarded;
}

bool mu_group_owns(const struct mu_group *group, pid_t pid)
{
    struct mu_child child;

    return rank_of(group, pid) >= 0 || (mu_child_read(MU_PROC_ROOT, pid, &child) &&
                                        (rank_of(group, child.pgid) >= 0 || rank_of(group, child.sid) >= 0));
}

/* Whether somebody is in it who cannot be gone before we reap them. */
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
    lock_everybody();
    mu_list_remove(&group->link);
    unlock_everybody();
    group->on_closed = on_closed != NULL ? on_closed : closed_quietly;
    group->closed_ctx = ctx;
    uv_close((uv_handle_t *)&group->chld, on_handle_closed);
    uv_close((uv_handle_t *)&group->timer, on_handle_closed);
    uv_close((uv_handle_t *)&group->looker, on_handle_closed);
}
