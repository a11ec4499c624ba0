/* Starting one worker.
 *
 * The parent does beforehand what needs memory or can fail in many ways: it opens the pipe and makes the search path.
 *
 * A command's child shares our memory until exec, on a stack of its own. Meanwhile our thread waits, with all signals
 * blocked. So the child only makes system calls. It starts in our table of descriptors, and leaves that before it
 * touches one. Where leaving is forbidden, a second child starts with a copy of the table. If a step fails, the child
 * writes into a pipe which one it was. exec closes the pipe: an empty pipe means that the program runs.
 *
 * A function's child is a fork, and its pipe carries the result. */
#include "proc/spawn.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436 /* the same everywhere */
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2u
#endif

enum {
    STACK_BYTES = 256 * 1024,
    PATHS_MAX = 1024,
    HEADER_BYTES = 16,
    STEP_MAX = 64,
    LIST_ROOM = 128, /* for a list of CPUs in an error */
    OOM_SCORE_MAX = 1000,
    OOM_SCORE_ROOM = 16
};

/* What comes through the pipe: kind, errno, a length, and then that many bytes. */
enum { KIND_RESULT = 1, KIND_FAILED = 2 };

static const char step_bind[] = "bind it to its CPUs";

struct child {
    const struct mu_spawn *spec;
    const struct mu_startup *startup;
    const char *const *envp;
    char **paths; /* where the program may be, in order; NULL-terminated */
    int fds[3];   /* to become 0, 1, 2; -1: as it is */
    pid_t parent;
    int pipe_fd; /* the end that is written */
};

struct dirent64_head { /* of what SYS_getdents64 gives; the name follows */
    uint64_t ino;
    int64_t off;
    uint16_t reclen;
    uint8_t type;
    char name[];
};

/* ---- In the child ---------------------------------------------------------------------------------------------- */

MU_IN_CHILD static void put_u32(char *to, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        to[i] = (char)(value >> (8 * i) & 0xff);
}

MU_IN_CHILD static void make_header(char to[static HEADER_BYTES], uint32_t kind, uint32_t errnum, uint64_t len)
{
    put_u32(to, kind);
    put_u32(to + 4, errnum);
    put_u32(to + 8, (uint32_t)len);
    put_u32(to + 12, (uint32_t)(len >> 32));
}

MU_IN_CHILD static bool write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t written = write(fd, data, len);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        data += written;
        len -= (size_t)written;
    }
    return true;
}

/* `step` says what the child was doing. It is short, so the pipe takes it whole. */
MU_IN_CHILD static _Noreturn void give_up(const struct child *c, int errnum, const char *step)
{
    char text[HEADER_BYTES + STEP_MAX];
    size_t len = 0;

    for (; *step != '\0' && len < STEP_MAX; step++)
        text[HEADER_BYTES + len++] = *step;
    make_header(text, KIND_FAILED, (uint32_t)errnum, len);
    (void)write_all(c->pipe_fd, text, HEADER_BYTES + len);
    _exit(MU_SPAWN_EXIT_SETUP);
}

MU_IN_CHILD static int number_of(const char *name)
{
    int number = 0;

    if (name[0] == '\0')
        return -1;
    for (; *name != '\0'; name++) {
        if (*name < '0' || *name > '9' || number > INT_MAX / 10 - 1)
            return -1;
        number = number * 10 + (*name - '0');
    }
    return number;
}

/* For kernels before 5.9. */
MU_IN_CHILD static void close_one_by_one(int keep)
{
    char room[4096] __attribute__((aligned(8)));
    int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct rlimit limit;
    long len;

    if (dir < 0) {
        int max = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 1 << 20 ? (int)limit.rlim_cur : 1 << 20;

        for (int fd = 3; fd < max; fd++) {
            if (fd != keep)
                (void)close(fd);
        }
        return;
    }
    while ((len = syscall(SYS_getdents64, dir, room, sizeof room)) > 0) {
        for (long at = 0; at < len;) {
            const struct dirent64_head *entry = (const void *)(room + at);
            int fd = number_of(entry->name);

            if (fd > 2 && fd != keep && fd != dir)
                (void)close(fd);
            at += entry->reclen;
        }
    }
    (void)close(dir);
}

/* Leaves the parent's table of descriptors for a copy of our own, without those above the highest one that we need. The
 * copy never has them, so they need no close(), which could wait for the file system of a file that the parent writes.
 * False: not possible (an old kernel, in a container that forbids unshare). */
MU_IN_CHILD static bool leave_table(const struct child *c)
{
    int last = c->pipe_fd > 2 ? c->pipe_fd : 2;

    for (int i = 0; i < 3; i++)
        last = c->fds[i] > last ? c->fds[i] : last;
    return syscall(SYS_close_range, (unsigned)last + 1, ~0u, CLOSE_RANGE_UNSHARE) == 0 || unshare(CLONE_FILES) == 0;
}

MU_IN_CHILD static void close_others(int keep)
{
    if ((keep > 3 && syscall(SYS_close_range, 3u, (unsigned)keep - 1, 0u) < 0) ||
        syscall(SYS_close_range, (unsigned)keep + 1, ~0u, 0u) < 0)
        close_one_by_one(keep);
}

/* What is to become 0, 1 or 2 may itself be one of these: so all are first moved above 2, and then put in place. */
MU_IN_CHILD static void set_stdio(struct child *c)
{
    int fds[3];

    for (int i = 0; i < 3; i++) {
        fds[i] = c->fds[i];
        if (fds[i] >= 0 && fds[i] < 3 && (fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3)) < 0)
            give_up(c, errno, "set up its standard streams");
    }
    for (int i = 0; i < 3; i++) {
        if (fds[i] >= 0 && dup2(fds[i], i) < 0)
            give_up(c, errno, "set up its standard streams");
        if (fds[i] < 0)
            (void)fcntl(i, F_SETFD, 0); /* inherited, even if exec was to close it; if it is closed, it stays so */
    }
}

/* When memory runs out, the kernel kills the process with the highest score. That should be a worker, for it holds the
 * memory, and the launcher must live to report the kill. A score that cannot be read or set stays as it is. */
MU_IN_CHILD static void raise_oom_score(void)
{
    char text[OOM_SCORE_ROOM];
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC), score = 0;
    ssize_t len = fd >= 0 ? read(fd, text, sizeof text) : 0, start;

    if (len > 0) {
        bool negative = text[0] == '-';

        for (ssize_t i = negative ? 1 : 0; i < len && text[i] >= '0' && text[i] <= '9' && score <= OOM_SCORE_MAX; i++)
            score = score * 10 + (text[i] - '0');
        score = (negative ? -score : score) + MU_SPAWN_OOM_SCORE;
        score = score < OOM_SCORE_MAX ? score : OOM_SCORE_MAX;
        negative = score < 0;
        start = sizeof text;
        for (int rest = negative ? -score : score; rest > 0 || start == sizeof text; rest /= 10)
            text[--start] = (char)('0' + rest % 10);
        if (negative)
            text[--start] = '-';
        (void)write_all(fd, text + start, sizeof text - (size_t)start);
    }
    if (fd >= 0)
        (void)close(fd);
}

MU_IN_CHILD static void set_signals(const struct child *c)
{
    struct sigaction action = { .sa_flags = 0 };

    (void)sigemptyset(&action.sa_mask);
    for (int signal = 1; signal <= SIGRTMAX; signal++) {
        bool ignored;

        if (signal == SIGKILL || signal == SIGSTOP)
            continue;
        if (c->startup != NULL) {
            ignored = (c->startup->ignored >> (signal - 1) & 1) != 0;
        } else {
            struct sigaction now;

            ignored = sigaction(signal, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
        }
        action.sa_handler = ignored && signal != SIGPIPE ? SIG_IGN : SIG_DFL;
        (void)sigaction(signal, &action, NULL);
    }
}

MU_IN_CHILD static void bind_to(const struct child *c, const struct mu_binding *binding)
{
    int errnum = mu_binding_set_cpus(binding);

    if (errnum != 0)
        give_up(c, errnum, step_bind);
    errnum = mu_binding_set_memory(binding);
    if (errnum != 0)
        give_up(c, errnum, "set its memory policy");
}

MU_IN_CHILD static void set_up(struct child *c, const sigset_t *mask)
{
    struct rlimit limit;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        give_up(c, errno, "tie its life to ours");
    if (getppid() != c->parent) /* the parent had died before */
        _exit(MU_SPAWN_EXIT_SETUP);
    if (setsid() < 0)
        give_up(c, errno, "make it a session of its own");
    set_stdio(c);
    close_others(c->pipe_fd);
    if (c->startup != NULL) {
        (void)umask(c->startup->umask);
        if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != c->startup->nofile_soft) {
            limit.rlim_cur = c->startup->nofile_soft < limit.rlim_max ? c->startup->nofile_soft : limit.rlim_max;
            (void)setrlimit(RLIMIT_NOFILE, &limit);
        }
    }
    if (c->spec->binding != NULL)
        bind_to(c, c->spec->binding);
    raise_oom_score();
    set_signals(c);
    (void)sigprocmask(SIG_SETMASK, c->startup != NULL ? &c->startup->mask : mask, NULL);
}

enum table {
    SHARED,    /* the child begins in our table of descriptors */
    FORBIDDEN, /* it could not leave it, and has ended */
    COPIED,    /* it has a copy of our table from the start */
};

struct command {
    struct child child;
    sigset_t mask;
    enum table table;
};

/* As execvp() does it: skips candidates that do not exist or may not be executed. */
MU_IN_CHILD static int run_command(void *arg)
{
    struct command *command = arg;
    struct child *c = &command->child;
    int errnum = ENOENT;

    if (command->table == SHARED && !leave_table(c)) {
        command->table = FORBIDDEN;
        _exit(MU_SPAWN_EXIT_SETUP); /* any other step would change the parent's descriptors */
    }
    set_up(c, &command->mask);
    for (char **path = c->paths; *path != NULL; path++) {
        (void)execve(*path, (char *const *)(uintptr_t)c->spec->argv, (char *const *)(uintptr_t)c->envp);
        if (errno == EACCES)
            errnum = EACCES;
        else if (errno != ENOENT && errno != ENOTDIR && errno != ESTALE && errno != ENODEV && errno != ETIMEDOUT)
            give_up(c, errno, "");
    }
    give_up(c, errnum, "");
}

static _Noreturn void run_function(struct child *c, const sigset_t *mask)
{
    char header[HEADER_BYTES];
    struct mu_buf result = { 0 };
    int code;

    set_up(c, mask);
    environ = (char **)(uintptr_t)c->envp;
    code = c->spec->function(c->spec->function_ctx, &result);
    (void)fflush(NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* the parent may have closed its end, or be gone */
    if (result.len > MU_SPAWN_RESULT_MAX)
        give_up(c, EMSGSIZE, "give back its result");
    make_header(header, KIND_RESULT, 0, result.len);
    if (write_all(c->pipe_fd, header, sizeof header))
        (void)write_all(c->pipe_fd, result.data, result.len);
    _exit(code & 0xff);
}

/* ---- Before and after ------------------------------------------------------------------------------------------ */

/* Moves a descriptor out of the way of what becomes 0, 1 and 2. Takes it, and returns the new one. */
static int above_stdio(int fd)
{
    int moved, errnum;

    if (fd < 0 || fd > 2)
        return fd;
    moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    errnum = errno;
    (void)close(fd);
    errno = errnum;
    return moved;
}

static int open_pipe(int ends[static 2])
{
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    ends[0] = above_stdio(ends[0]);
    ends[1] = above_stdio(ends[1]);
    if (ends[0] >= 0 && ends[1] >= 0)
        return 0;
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0)
            (void)close(ends[i]);
    }
    return -1;
}

static const char *search_path(const char *const *envp)
{
    for (; *envp != NULL; envp++) {
        if (strncmp(*envp, "PATH=", 5) == 0)
            return *envp + 5;
    }
    return "/bin:/usr/bin";
}

/* One block: the pointers, then the texts. */
static char **candidates(const char *program, const char *path)
{
    size_t count = 1, bytes, program_len = strlen(program);
    char **paths, *text;

    if (strchr(program, '/') != NULL || program_len == 0)
        path = NULL;
    for (const char *c = path; c != NULL && *c != '\0' && count < PATHS_MAX; c++)
        count += *c == ':';
    bytes = (count + 1) * sizeof *paths + (path != NULL ? strlen(path) : 0) + count * (program_len + 2);
    paths = malloc(bytes);
    if (paths == NULL)
        return NULL;
    text = (char *)(paths + count + 1);
    for (size_t i = 0; i < count; i++) {
        size_t len = path != NULL ? strcspn(path, ":") : 0;

        paths[i] = text;
        if (len > 0) {
            memcpy(text, path, len);
            text[len] = '/';
            text += len + 1;
        }
        memcpy(text, program, program_len + 1);
        text += program_len + 1;
        if (path != NULL)
            path += path[len] == ':' ? len + 1 : len;
    }
    paths[count] = NULL;
    return paths;
}

/* Reads from the pipe what went wrong: the errno, and the step. 0: the pipe is empty, and all is well. */
static int read_report(int fd, char step[static STEP_MAX + 1])
{
    char text[HEADER_BYTES + STEP_MAX];
    size_t got = 0;
    ssize_t len;

    while (got < sizeof text) {
        len = read(fd, text + got, sizeof text - got);
        if (len < 0 && errno == EINTR)
            continue;
        if (len <= 0)
            break;
        got += (size_t)len;
    }
    if (got < HEADER_BYTES)
        return 0;
    memcpy(step, text + HEADER_BYTES, got - HEADER_BYTES);
    step[got - HEADER_BYTES] = '\0';
    return (int)mu_get_u32(text + 4);
}

static void block_all(sigset_t *ret_before)
{
    sigset_t all;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, ret_before);
}

static pid_t clone_once(struct command *command)
{
    int flags = CLONE_VM | CLONE_VFORK | SIGCHLD | (command->table == SHARED ? CLONE_FILES : 0);
    char *stack =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    int errnum;
    pid_t pid;

    if (stack == MAP_FAILED)
        return -1;
    block_all(&command->mask);
    pid = clone(run_command, stack + STACK_BYTES, flags, command);
    errnum = errno;
    (void)pthread_sigmask(SIG_SETMASK, &command->mask, NULL);
    (void)munmap(stack, STACK_BYTES);
    errno = errnum;
    return pid;
}

static void reap(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) { /* it has ended */
    }
}

static pid_t clone_command(struct command *command)
{
    static _Atomic bool is_forbidden;
    pid_t pid;

    command->table = is_forbidden ? COPIED : SHARED;
    pid = clone_once(command);
    if (command->table != FORBIDDEN)
        return pid;
    reap(pid);
    is_forbidden = true;
    command->table = COPIED;
    return clone_once(command);
}

static int say_why(const struct mu_spawn *spec, const char *step, int errnum, struct muster_error *reterr)
{
    const char *program = spec->argv[0];
    char list[LIST_ROOM];
    struct stat there;

    if (strcmp(step, step_bind) == 0)
        return mu_fail_errno(reterr, errnum, "start '%s': bind it to CPUs %s%s", program,
                             mu_cpus_text(&spec->binding->cpus, list, sizeof list),
                             errnum == EINVAL ? ", none of which it may use now" : "");
    if (step[0] != '\0') /* not exec itself */
        return mu_fail_errno(reterr, errnum, "start '%s': %s", program, step);
    if (errnum == ENOENT && strchr(program, '/') != NULL && stat(program, &there) == 0)
        return mu_fail_errno(reterr, errnum, "start '%s': its interpreter (behind '#!') or loader", program);
    if (errnum == ENOENT && strchr(program, '/') == NULL)
        return mu_fail_errno(reterr, errnum, "start '%s': look it up in PATH", program);
    return mu_fail_errno(reterr, errnum, "start '%s'", program);
}

static int start_command(struct command *command, struct mu_spawned *ret_spawned, struct muster_error *reterr)
{
    struct child *c = &command->child;
    const char *program = c->spec->argv[0];
    char step[STEP_MAX + 1] = "";
    int ends[2], errnum;
    pid_t pid;

    c->paths = candidates(program, search_path(c->envp));
    if (c->paths == NULL)
        return mu_fail_errno(reterr, ENOMEM, "start '%s'", program);
    if (open_pipe(ends) < 0) {
        errnum = errno;
        free(c->paths);
        return mu_fail_errno(reterr, errnum, "start '%s': open a pipe", program);
    }
    c->pipe_fd = ends[1];
    pid = clone_command(command);
    errnum = pid < 0 ? errno : 0;
    (void)close(ends[1]);
    if (pid > 0)
        errnum = read_report(ends[0], step);
    (void)close(ends[0]);
    free(c->paths);
    if (pid < 0)
        return mu_fail_errno(reterr, errnum, "start '%s': make a process", program);
    if (errnum != 0) {
        reap(pid);
        return say_why(c->spec, step, errnum, reterr);
    }
    *ret_spawned = (struct mu_spawned){ .pid = pid, .result_fd = -1 };
    return 0;
}

static int start_function(struct child *c, struct mu_spawned *ret_spawned, struct muster_error *reterr)
{
    const char *name = c->spec->function_name != NULL ? c->spec->function_name : "function";
    sigset_t before;
    int ends[2], errnum;
    pid_t pid;

    if (open_pipe(ends) < 0)
        return mu_fail_errno(reterr, errno, "start '%s': open a pipe", name);
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    c->pipe_fd = ends[1];
    (void)fflush(NULL); /* or the child would write the same bytes again */
    block_all(&before);
    pid = fork();
    if (pid == 0)
        run_function(c, &before);
    errnum = errno;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        return mu_fail_errno(reterr, errnum, "start '%s': make a process", name);
    }
    *ret_spawned = (struct mu_spawned){ .pid = pid, .result_fd = ends[0] };
    return 0;
}

int mu_spawn_start(const struct mu_spawn *spec, const struct mu_startup *startup, struct mu_spawned *ret_spawned,
                   struct muster_error *reterr)
{
    struct command command = { .child = { .spec = spec,
                                          .startup = startup,
                                          .envp = spec->envp != NULL ? spec->envp : (const char *const *)environ,
                                          .parent = getpid() } };

    assert(spec->function != NULL || (spec->argv != NULL && spec->argv[0] != NULL));
    for (int i = 0; i < 3; i++)
        command.child.fds[i] = spec->io[i].type == MU_STDIO_FD ? spec->io[i].fd : -1;
    if (spec->function != NULL)
        return start_function(&command.child, ret_spawned, reterr);
    return start_command(&command, ret_spawned, reterr);
}

/* ---- A function's result --------------------------------------------------------------------------------------- */

static int read_header(struct mu_result *r, struct muster_error *reterr)
{
    uint32_t kind = mu_get_u32(r->header);

    r->len = mu_get_u64(r->header + 8);
    if ((kind != KIND_RESULT && kind != KIND_FAILED) || r->len > MU_SPAWN_RESULT_MAX)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "read a function's result: it does not begin like one");
    return mu_buf_reserve(&r->bytes, (size_t)r->len, MU_SPAWN_RESULT_MAX) < 0
               ? mu_fail(reterr, MUSTER_ENOMEM, "read a function's result of %llu bytes: out of memory",
                         (unsigned long long)r->len)
               : 0;
}

static int take_whole(struct mu_result *r, struct muster_error *reterr)
{
    if (mu_get_u32(r->header) == KIND_FAILED)
        return mu_fail_errno(reterr, (int)mu_get_u32(r->header + 4), "%.*s", (int)r->bytes.len, r->bytes.data);
    r->complete = true;
    return 0;
}

int mu_result_read(struct mu_result *r, int fd, struct muster_error *reterr)
{
    while (!r->complete) {
        bool in_header = r->header_len < sizeof r->header;
        ssize_t len;
        int rc;

        if (in_header) {
            len = read(fd, r->header + r->header_len, sizeof r->header - r->header_len);
        } else if (r->bytes.len == r->len) {
            return take_whole(r, reterr);
        } else {
            len = read(fd, r->bytes.data + r->bytes.len, (size_t)r->len - r->bytes.len);
        }
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (len < 0)
            return mu_fail_errno(reterr, errno, "read a function's result");
        if (len == 0)
            return mu_fail(reterr, MUSTER_ELOST, "read a function's result: it ended without giving one back");
        if (!in_header) {
            r->bytes.len += (size_t)len;
            continue;
        }
        r->header_len += (size_t)len;
        if (r->header_len == sizeof r->header) {
            rc = read_header(r, reterr);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

void mu_result_done(struct mu_result *r)
{
    mu_buf_done(&r->bytes);
    *r = (struct mu_result){ 0 };
}
