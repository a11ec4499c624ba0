/* Two processes for one launcher. The keeper waits in sigwaitinfo() with all signals blocked, so it handles one at a
 * time and loses none. Happy path: the agent ends, nothing is left, and the keeper ends the same way. If the agent is
 * killed, its workers die with it (PDEATHSIG). Processes that they had detached become our children, get a moment to
 * end, and are killed generation by generation. Below a process that does not end, everything is killed too. Managers
 * of shared memory come last. Only then is the agent's last will sent. If the keeper is killed, the agent reads the end
 * of the pipe. */
#include "proc/keeper.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/words.h"
#include "proc/children.h"
#include "proc/stop.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_MAX_LEN = 64, NAMED_MAX = 8, LOOK_MS = 10, MANAGERS_LOOK_MS = 100 };

/* The agent's, which is known by its pid: a fork of the agent is not guarded. */
static struct {
    pid_t pid, keeper;
    int fd;
    struct mu_wills *wills; /* NULL: there was no memory */
    int adopt_errnum;       /* why the kernel does not let us adopt; 0: it does */
    struct mu_startup startup;
} guard;

struct keeper {
    char name[NAME_MAX_LEN];
    const struct mu_startup *startup;
    pid_t agent;
    sigset_t watched;
    struct mu_children
        earlier;   /* children that were there before us: a shell's, such as `> >(tee log)`; not ours to kill */
    siginfo_t end; /* the agent's, once si_pid is its pid */
    const struct mu_wills *wills;
    bool suspending;  /* the agent was told to stop */
    int64_t until_ms; /* ... and has time until then */
    /* What was left. */
    char killed_text[512];
    struct mu_words killed;
    size_t killed_count;
};

/* ---- The keeper ------------------------------------------------------------------------------------------------ */

/* Signals of our own faults keep their action; SIGKILL and SIGSTOP cannot be blocked. */
static void watch_all(struct keeper *k)
{
    static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGKILL, SIGSTOP };

    (void)sigfillset(&k->watched);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        (void)sigdelset(&k->watched, own[i]);
}

/* Logged like the lines of the agent. In a program without a log sink it is a plain line on stderr. */
static void say(const struct keeper *k, const char *text)
{
    char line[1024];
    struct mu_words w = mu_words_into(line, sizeof line);

    if (mu_log_has_sink()) {
        mu_log(MUSTER_LOG_ERROR, "%s: %s", k->name, text);
        return;
    }
    mu_words_add(&w, "%s: %s", k->name, text);
    line[w.len] = '\n';
    if (write(STDERR_FILENO, line, w.len + 1) < 0)
        return; /* there is nobody to tell it to */
}

static void forward(struct keeper *k, int signal)
{
    if (mu_startup_keeps(k->startup, signal))
        return;
    (void)kill(k->agent, signal); /* it is not reaped before its end is known */
}

/* The shell sees us stopped and gets its terminal back. */
static void stop_ourselves(struct keeper *k)
{
    k->suspending = false;
    (void)kill(getpid(), SIGSTOP); /* and on from here, with SIGCONT pending */
}

static void on_suspend(struct keeper *k, int signal)
{
    if (mu_startup_ignored(k->startup, signal) || k->suspending)
        return;
    k->suspending = true;
    k->until_ms = mu_clock_ms() + MU_KEEPER_SUSPEND_MS;
    (void)kill(k->agent, SIGTSTP);
}

/* Everything that has ended or stopped. The agent stays unreaped, so that its pid stays its own. */
static void look(struct keeper *k)
{
    siginfo_t info = { .si_pid = 0 };

    if (waitid(P_PID, (id_t)k->agent, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
        return;
    if (info.si_code == CLD_EXITED || info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED) {
        k->end = info;
        return;
    }
    (void)waitid(P_PID, (id_t)k->agent, &info, WSTOPPED | WNOHANG); /* told once is enough */
    if (k->suspending)
        stop_ourselves(k);
}

/* Waits for one of `watched`; false: it is `until_ms`. */
static bool wait_signal(struct keeper *k, int64_t until_ms, int *ret_signal)
{
    for (;;) {
        int64_t left_ms = until_ms - mu_clock_ms();
        struct timespec limit = { .tv_sec = left_ms > 0 ? left_ms / 1000 : 0,
                                  .tv_nsec = left_ms > 0 ? left_ms % 1000 * 1000000 : 0 };
        int signal = until_ms == INT64_MAX ? sigwaitinfo(&k->watched, NULL) : sigtimedwait(&k->watched, NULL, &limit);

        if (signal > 0) {
            *ret_signal = signal;
            return true;
        }
        if (errno == EAGAIN && left_ms <= 0)
            return false;
    }
}

static void watch_agent(struct keeper *k)
{
    look(k);
    while (k->end.si_pid == 0) {
        int signal;

        if (!wait_signal(k, k->suspending ? k->until_ms : INT64_MAX, &signal))
            stop_ourselves(k); /* the agent does not care */
        else if (signal == SIGCHLD)
            look(k);
        else if (signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU)
            on_suspend(k, signal);
        else
            forward(k, signal);
    }
    (void)waitpid(k->agent, NULL, 0);
}

static bool is_in(const struct mu_children *list, pid_t pid)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].pid == pid)
            return true;
    }
    return false;
}

/* Whether it is a child that was there before us, or one that such a child left to us: all of ours have other
 * sessions. */
static bool is_foreign(const struct keeper *k, const struct mu_child *child)
{
    return is_in(&k->earlier, child->pid) || child->sid == getsid(0);
}

/* Whether there is a child beside those that were there before us. */
static bool has_own_children(const struct keeper *k)
{
    struct mu_children now = { 0 };
    bool any = false;

    if (k->earlier.count == 0)
        return true;
    (void)mu_children_list(&now, MU_PROC_ROOT, getpid(), true, NULL, NULL);
    for (size_t i = 0; i < now.count; i++)
        any |= !is_foreign(k, &now.items[i]);
    mu_children_done(&now);
    return any;
}

/* Reaps all that have ended; false: no child of ours is left. */
static bool reap(const struct keeper *k)
{
    pid_t pid;

    do {
        pid = waitpid(-1, NULL, WNOHANG | __WALL);
    } while (pid > 0 || (pid < 0 && errno == EINTR));
    return pid == 0 && has_own_children(k);
}

/* Until `until_ms` or until no child is left; false: none is. */
static bool wait_for_ends(struct keeper *k, int64_t until_ms)
{
    int signal;

    while (reap(k)) {
        if (!wait_signal(k, until_ms, &signal)) /* whichever it is: it will not be long now */
            return reap(k);
    }
    return false;
}

static void note(struct keeper *k, const struct mu_child *child)
{
    if (k->killed_count++ < NAMED_MAX)
        mu_words_add(&k->killed, "%s%d (%s)", k->killed_count > 1 ? ", " : "", (int)child->pid, child->comm);
}

static bool is_spared(const struct mu_child *child, bool spare)
{
    return spare && strcmp(child->comm, MU_CHILD_SHM_MANAGER) == 0;
}

/* Replaces the list of processes that do not end by those below them, and kills these. */
static void kill_below(struct keeper *k, const struct mu_children *before, struct mu_children *below, bool spare)
{
    (void)mu_children_below(below, MU_PROC_ROOT, NULL); /* at the next look, if it fails */
    for (size_t i = 0; i < below->count; i++) {
        if (mu_child_is_dead(&below->items[i]) || is_spared(&below->items[i], spare))
            continue;
        if (!is_in(before, below->items[i].pid))
            note(k, &below->items[i]);
        (void)mu_child_signal(&below->items[i], SIGKILL);
    }
}

/* One generation. Processes of the one before that have not ended yet are not noted again. With `spare`, managers of
 * shared memory live on; true: nothing else is left. */
static bool kill_generation(struct keeper *k, struct mu_children *before, bool spare)
{
    struct mu_children now = { 0 }, below = { 0 };
    size_t killed = 0, spared = 0;

    if (mu_children_list(&now, MU_PROC_ROOT, getpid(), false, NULL, NULL) == 0 && now.count == 0)
        (void)mu_children_list(&now, MU_PROC_ROOT, getpid(), true, NULL, NULL);
    if (now.count == 0 && k->earlier.count == 0 && getpid() == 1)
        (void)kill(-1, SIGKILL); /* no usable /proc; all in our pid namespace are below us */
    for (size_t i = 0; i < now.count; i++) {
        struct mu_child child = now.items[i];

        if (mu_child_is_dead(&child) || is_foreign(k, &child))
            continue;
        if (is_spared(&child, spare)) {
            spared++;
            continue;
        }
        if (!is_in(before, child.pid))
            note(k, &child);
        else
            (void)mu_children_add(&below, &child);
        (void)kill(child.pid, SIGKILL);
        now.items[killed++] = child;
    }
    now.count = killed;
    kill_below(k, before, &below, spare);
    for (size_t i = 0; i < below.count; i++)
        (void)mu_children_add(&now, &below.items[i]);
    mu_children_done(&below);
    mu_children_done(before);
    *before = now;
    return killed == 0 && spared > 0;
}

static void say_killed(struct keeper *k)
{
    char text[768], room[MU_SIGNAL_NAME_MAX];
    char how[64] = "ended";

    if (k->end.si_code != CLD_EXITED)
        (void)snprintf(how, sizeof how, "was killed by %s", mu_signal_name(k->end.si_status, room));
    (void)snprintf(text, sizeof text, "the agent (pid %d) %s; killed what was left: %s%s", (int)k->agent, how,
                   k->killed_text, k->killed_count > NAMED_MAX ? ", ..." : "");
    say(k, text);
}

static void say_stuck(struct keeper *k, const struct mu_children *left)
{
    char text[768];
    struct mu_words w = mu_words_into(text, sizeof text);
    size_t named = 0;

    mu_words_add(&w, "these processes did not end after SIGKILL; giving up on them:");
    for (size_t i = 0; i < left->count && named < NAMED_MAX; i++) {
        const struct mu_child *child = &left->items[i];

        if (mu_child_is_dead(child))
            continue;
        named++;
        mu_words_add(&w, " %d (%s, state %c)", (int)child->pid, child->comm, child->state);
    }
    if (named > 0)
        say(k, text);
}

static void kill_the_rest(struct keeper *k)
{
    struct mu_children left = { 0 };
    bool any = true;
    int64_t now_ms, until_ms, shared_ms;
    int signal;

    if (!wait_for_ends(k, mu_clock_ms() + MU_KEEPER_DRAIN_MS))
        return;
    now_ms = mu_clock_ms();
    shared_ms = now_ms + MU_STOP_SHARED_MS;
    until_ms = now_ms + MU_KEEPER_STUCK_MS;
    while (any && now_ms < until_ms) {
        bool managers_only = kill_generation(k, &left, now_ms < shared_ms);

        if (managers_only)
            until_ms = now_ms + MU_KEEPER_STUCK_MS; /* all that were killed have ended */
        /* A process ended, so its children may be ours now. */
        (void)wait_signal(k, mu_clock_ms() + (managers_only ? MANAGERS_LOOK_MS : LOOK_MS), &signal);
        any = reap(k);
        now_ms = mu_clock_ms();
    }
    if (k->killed_count > 0)
        say_killed(k);
    if (any)
        say_stuck(k, &left);
    mu_children_done(&left);
}

static _Noreturn void keep(struct keeper *k)
{
    watch_agent(k);
    kill_the_rest(k);
    if (k->end.si_code == CLD_EXITED)
        _exit(k->end.si_status);
    if (k->killed_count == 0 && k->end.si_status == SIGKILL)
        say(k, "the agent was killed by SIGKILL; none of its processes are left");
    (void)mu_wills_send(k->wills, mu_clock_ms() + MU_WILLS_SEND_MS);
    mu_die_of(k->end.si_status);
}

/* ---- The fork -------------------------------------------------------------------------------------------------- */

static void become_agent(int fd, pid_t keeper, const struct mu_startup *startup, struct mu_wills *wills)
{
    guard.fd = fd;
    guard.wills = wills;
    guard.keeper = keeper;
    guard.pid = getpid();
    guard.startup = *startup;
    (void)setsid();
}

int mu_keeper_run(const struct mu_startup *startup, const char *name, int *ret_fd, struct muster_error *reterr)
{
    struct keeper k = { .startup = startup };
    struct sigaction chld = { .sa_handler = SIG_DFL };
    pid_t pid, keeper = getpid();
    struct mu_wills *wills;
    sigset_t before;
    int ends[2];

    (void)snprintf(k.name, sizeof k.name, "%s", name);
    k.killed = mu_words_into(k.killed_text, sizeof k.killed_text);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return mu_fail_errno(reterr, errno, "start the agent: open a pipe");
    /* The keeper keeps it; the agent sets it again, for a fork does not inherit it. */
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        guard.adopt_errnum = errno;
    wills = mu_wills_new(); /* none: the others learn less of how we ended */
    k.wills = wills;
    watch_all(&k);
    (void)mu_children_list(&k.earlier, MU_PROC_ROOT, getpid(), false, NULL, NULL);
    (void)sigaction(SIGCHLD, &chld, NULL); /* ignored, exit codes would be lost */
    (void)pthread_sigmask(SIG_SETMASK, &k.watched, &before);
    pid = fork();
    if (pid < 0) {
        int rc = mu_fail_errno(reterr, errno, "start the agent: make a process");

        mu_children_done(&k.earlier);
        mu_wills_free(wills);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        (void)close(ends[0]);
        (void)close(ends[1]);
        return rc;
    }
    if (pid > 0) {
        (void)close(ends[0]);
        k.agent = pid;
        keep(&k);
    }
    mu_children_done(&k.earlier);
    (void)close(ends[1]);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    become_agent(ends[0], keeper, startup, wills);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    *ret_fd = ends[0];
    return 0;
}

bool mu_guarded(void)
{
    return guard.pid != 0 && guard.pid == getpid();
}

bool mu_guard_adopts(void)
{
    return mu_guarded() && guard.adopt_errnum == 0;
}

int mu_guard_check(struct muster_error *reterr)
{
    struct mu_children list = { 0 };
    int rc;

    if (guard.adopt_errnum != 0)
        return mu_fail_errno(reterr, guard.adopt_errnum, "become the parent of orphans (PR_SET_CHILD_SUBREAPER)");
    rc = mu_children_list(&list, MU_PROC_ROOT, getpid(), false, NULL, reterr);
    mu_children_done(&list);
    return rc;
}

int mu_guard_fd(void)
{
    return mu_guarded() ? guard.fd : -1;
}

pid_t mu_guard_keeper(void)
{
    return mu_guarded() ? guard.keeper : getpid();
}

struct mu_will *mu_guard_will(void)
{
    return mu_guarded() ? mu_will_claim(guard.wills) : NULL;
}

const struct mu_startup *mu_guard_startup(void)
{
    return mu_guarded() ? &guard.startup : NULL;
}

/* ---- For users of the library ---------------------------------------------------------------------------------- */

static size_t count_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    size_t count = 0;

    if (dir == NULL)
        return 1; /* as far as we know */
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    (void)closedir(dir);
    return count;
}

int muster_guard(struct muster_error *reterr)
{
    struct mu_startup startup;
    int fd;

    if (mu_guarded())
        return 0;
    if (count_threads() > 1)
        return mu_fail(reterr, MUSTER_EINVAL, "guard the program: there are threads already; call it first in main()");
    mu_startup_take(&startup);
    return mu_keeper_run(&startup, program_invocation_short_name, &fd, reterr);
}
