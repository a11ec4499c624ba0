/* Which processes belong to a group of workers: the workers, what is in their process groups and sessions, and in a
 * guarded process also the orphans that it has adopted.
 *
 * Several groups, each on a loop and thread of its own: the children of this process are the children of all of them. A
 * child that a worker of another group leads is left alone. A process that has left its worker's session could belong
 * to any group: it is reaped, but not killed before only one group has workers.
 *
 * Without a usable /proc only workers are known; other children are counted by what wait says. */
#include "proc/group_parts_uv.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct mu_list groups;
} everybody = { .lock = PTHREAD_MUTEX_INITIALIZER,
                .once = PTHREAD_ONCE_INIT,
                .groups = { .prev = &everybody.groups, .next = &everybody.groups } };

void mu_groups_lock(void)
{
    (void)pthread_mutex_lock(&everybody.lock);
}

void mu_groups_unlock(void)
{
    (void)pthread_mutex_unlock(&everybody.lock);
}

/* In the child after a fork: the groups belong to the parent. */
static void forget_everybody(void)
{
    mu_list_init(&everybody.groups);
    mu_groups_unlock();
}

static void survive_forks(void)
{
    (void)pthread_atfork(mu_groups_lock, mu_groups_unlock, forget_everybody);
}

void mu_groups_add(struct mu_group *group)
{
    (void)pthread_once(&everybody.once, survive_forks);
    mu_groups_lock();
    mu_list_push(&everybody.groups, &group->link);
    mu_groups_unlock();
}

static int compare_by_pid(const void *a, const void *b)
{
    const struct mu_group_pid_rank *left = a, *right = b;

    return left->pid < right->pid ? -1 : left->pid > right->pid;
}

void mu_group_enlist(struct mu_group *group, pid_t pid)
{
    uint32_t rank = (uint32_t)group->count;
    size_t at = rank;

    mu_groups_lock();
    for (; at > 0 && group->pids[at - 1] > pid; at--) { /* seldom: numbers mostly grow */
        group->pids[at] = group->pids[at - 1];
        group->ranks[at] = group->ranks[at - 1];
    }
    group->pids[at] = pid;
    group->ranks[at] = (struct mu_group_pid_rank){ .pid = pid, .rank = rank };
    group->workers[rank].pid = pid;
    group->count++;
    mu_groups_unlock();
}

int32_t mu_group_rank_of(const struct mu_group *group, pid_t pid)
{
    struct mu_group_pid_rank key = { .pid = pid };
    const struct mu_group_pid_rank *found =
        group->count > 0 ? bsearch(&key, group->ranks, group->count, sizeof key, compare_by_pid) : NULL;

    return found != NULL ? (int32_t)found->rank : -1;
}

static bool is_led(const struct mu_group *group, pid_t leader, bool reaped)
{
    int32_t rank = mu_group_rank_of(group, leader);

    return rank >= 0 && group->workers[rank].reaped == reaped;
}

/* The group whose worker this child is, or in whose worker's process group or session it is; NULL: it could belong to
 * any group. While a process is in a reaped worker's group or session, the kernel does not use that number again. A
 * child with the pid of a reaped worker is another process. */
static const struct mu_group *owner_of(const struct mu_child *child)
{
    for (int reaped = 0; reaped < 2; reaped++) {
        MU_LIST_EACH (const struct mu_group, group, &everybody.groups, link) {
            if ((!reaped && is_led(group, child->pid, false)) ||
                (child->pgid != child->pid && is_led(group, child->pgid, reaped)) ||
                (child->sid != child->pid && is_led(group, child->sid, reaped)))
                return group;
        }
    }
    return NULL;
}

/* What the other groups hold, at most. */
static enum mu_group_hold hold_of_others(const struct mu_group *group)
{
    enum mu_group_hold most = MU_GROUP_EMPTY;

    MU_LIST_EACH (const struct mu_group, other, &everybody.groups, link) {
        if (other != group && other->hold != MU_GROUP_EMPTY && most != MU_GROUP_STARTING)
            most = other->hold;
    }
    return most;
}

/* Children that other parts of this program started are in its session; workers and what they start are not. */
static bool is_foreign(const struct mu_child *child)
{
    return child->sid == getsid(0);
}

/* Reaps the orphans that have ended and lists the others. A traced process cannot be reaped before its tracer was told,
 * but counts as ended. */
void mu_group_list_orphans(struct mu_group *group, bool thorough)
{
    struct mu_pids workers = { .items = group->pids, .count = group->count };
    enum mu_group_hold others = hold_of_others(group);
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

        if (is_foreign(&child) || (owner != NULL && owner != group) || (owner == NULL && others == MU_GROUP_STARTING))
            continue;
        if (mu_child_is_dead(&child))
            (void)waitpid(child.pid, NULL, WNOHANG | __WALL);
        else if (owner == group || others == MU_GROUP_EMPTY)
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

/* Without a guard: the processes in the workers' groups, without the workers. Looked at only when no worker is alive,
 * for it means reading all of /proc. */
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
        if (!mu_child_is_dead(&group->others.items[i]) && mu_group_rank_of(group, group->others.items[i].pid) < 0)
            group->others.items[kept++] = group->others.items[i];
    }
    group->others.count = kept;
}

static void reap_worker(struct mu_group_worker *w)
{
    (void)waitpid(w->pid, NULL, WNOHANG);
    w->reaped = true;
}

/* Their groups get SIGKILL first: all processes in there were to be ended, and afterwards the kernel may use the
 * numbers again. A worker that could not be killed stays unreaped: with a guard a later look takes it for an orphan. */
void mu_group_reap_workers(struct mu_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct mu_group_worker *w = &group->workers[i];

        if (!w->exited || w->reaped)
            continue;
        (void)kill(-w->pid, SIGKILL);
        reap_worker(w);
    }
}

bool mu_has_child(void)
{
    siginfo_t info;

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD;
}

/* Without /proc only workers can be seen, so wait is asked whether there is another child. That means nothing while
 * another group has workers. */
static void count_hidden(struct mu_group *group)
{
    if (!group->hidden || anybody_alive(group) || hold_of_others(group) != MU_GROUP_EMPTY) {
        group->hidden = false;
        return;
    }
    mu_group_reap_workers(group);
    while (waitpid(-1, NULL, WNOHANG | __WALL) > 0) { /* guarded, so these came from the workers */
    }
    group->hidden = mu_has_child();
}

/* No process is listed, but the quick list may miss one, and now it has to be certain. The dead workers are reaped; if
 * wait then knows of no child, nothing is left, for every process below us is below a child of ours. Otherwise all of
 * /proc is read. A process that is found there keeps its group's number in use, so the reaped leaders are not
 * needed. */
static void list_missed(struct mu_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        if (!group->workers[i].reaped)
            reap_worker(&group->workers[i]);
    }
    if (mu_has_child())
        mu_group_list_orphans(group, true);
}

void mu_group_list_others(struct mu_group *group)
{
    if (!group->guarded) {
        list_groups(group);
        return;
    }
    mu_group_list_orphans(group, false);
    if (!group->hidden && !anybody_alive(group))
        list_missed(group);
    count_hidden(group);
}

bool mu_group_was_refused(const struct mu_group *group, pid_t pid)
{
    for (size_t i = 0; i < group->refused_count; i++) {
        if (group->refused[i] == pid)
            return true;
    }
    return false;
}

/* There is room for all workers from the start; orphans that do not fit wait for the next look. */
bool mu_group_reserve_view(struct mu_group *group, size_t count)
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

static char state_of_worker(struct mu_group_worker *w, bool with_states)
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
                                   .rank = mu_group_rank_of(group, child->pgid),
                                   .refused = mu_group_was_refused(group, child->pid),
                                   .comm = child->comm };
}

/* The states of leaders are read only where they matter. */
void mu_group_make_view(struct mu_group *group, bool with_states)
{
    size_t others = group->others.count;

    if (!mu_group_reserve_view(group, group->count + others)) {
        group->hidden = true;
        others = 0;
    }
    group->view_count = 0;
    for (size_t i = 0; i < group->count; i++) {
        struct mu_group_worker *w = &group->workers[i];

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

void mu_group_view_below(struct mu_group *group)
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
    if (rc < 0 || !mu_group_reserve_view(group, group->view_count + below->count)) {
        group->hidden = true;
        below->count = 0;
    }
    for (size_t i = 0; i < below->count; i++) {
        struct mu_stop_child *child = &group->view[group->view_count++];

        *child = view_of(group, &below->items[i]);
        child->below = true;
    }
}
