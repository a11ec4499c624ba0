/* The children of a process, and all processes below them, read from /proc. */
#include "proc/children.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* the same everywhere */
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

enum { PATH_ROOM = 512, STAT_ROOM = 1024, STATUS_ROOM = 8192, CHUNK = 4096, ANYBODY = -1 };

bool mu_child_is_dead(const struct mu_child *child)
{
    return child->state == 'Z' || child->state == 'X' || child->state == 'x';
}

void mu_children_done(struct mu_children *list)
{
    free(list->items);
    *list = (struct mu_children){ 0 };
}

/* "4711 (a) b) S 1 2 3 ...": the name is between the first and the last bracket. */
static bool parse_stat(char *text, struct mu_child *ret_child, long *ret_threads)
{
    char *open = strchr(text, '('), *close = strrchr(text, ')');
    struct mu_child child = { 0 };
    unsigned long long start;
    long threads;

    if (open == NULL || close == NULL || close < open)
        return false;
    *close = '\0';
    if (sscanf(text, "%d", &child.pid) != 1 ||
        sscanf(close + 1, " %c %d %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %llu", &child.state,
               &child.ppid, &child.pgid, &child.sid, &threads, &start) != 6)
        return false;
    child.start = start;
    (void)snprintf(child.comm, sizeof child.comm, "%.*s", (int)sizeof child.comm - 1, open + 1);
    for (char *c = child.comm; *c != '\0'; c++) { /* it ends up in messages */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    }
    *ret_child = child;
    *ret_threads = threads;
    return true;
}

/* The contents of a file about a process, as much as fits, with a NUL. */
static bool read_about(const char *root, pid_t pid, const char *file, char *text, size_t room)
{
    char path[PATH_ROOM];
    ssize_t len;
    int fd;

    if (snprintf(path, sizeof path, "%s/%d/%s", root, (int)pid, file) >= (int)sizeof path)
        return false;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    len = read(fd, text, room - 1);
    (void)close(fd);
    if (len <= 0)
        return false;
    text[len] = '\0';
    return true;
}

/* Whether the entry of /proc is a process. */
static bool is_number(const char *name, pid_t *ret_pid)
{
    char *end;
    long value = strtol(name, &end, 10);

    if (name[0] < '0' || name[0] > '9' || *end != '\0' || value <= 0 || value > INT32_MAX)
        return false;
    *ret_pid = (pid_t)value;
    return true;
}

/* The directory of a process's threads. */
static DIR *open_threads(const char *root, pid_t pid)
{
    char path[PATH_ROOM];

    errno = ENOENT;
    return snprintf(path, sizeof path, "%s/%d/task", root, (int)pid) < (int)sizeof path ? opendir(path) : NULL;
}

/* The state of a process whose first thread has ended: D if another thread is in state D, for then it cannot be killed;
 * else the state of any of them; Z if all have ended; '?' if it cannot be read. */
static char state_of_threads(const char *root, pid_t pid)
{
    char text[STAT_ROOM], state = 'Z';
    DIR *dir = open_threads(root, pid);
    struct dirent *entry;

    if (dir == NULL && errno != ENOENT)
        return '?';
    while (dir != NULL && state != 'D' && (entry = readdir(dir)) != NULL) {
        struct mu_child thread;
        char file[64];
        long threads;
        pid_t tid;

        if (!is_number(entry->d_name, &tid))
            continue;
        (void)snprintf(file, sizeof file, "task/%d/stat", (int)tid);
        errno = 0;
        if (!read_about(root, pid, file, text, sizeof text)) {
            if (state == 'Z' && errno != 0 && errno != ENOENT && errno != ESRCH)
                state = '?';
        } else if (parse_stat(text, &thread, &threads) && !mu_child_is_dead(&thread)) {
            state = thread.state;
        }
    }
    if (dir != NULL)
        (void)closedir(dir);
    return state;
}

bool mu_child_read(const char *root, pid_t pid, struct mu_child *ret_child)
{
    char text[STAT_ROOM];
    long threads;

    if (!read_about(root, pid, "stat", text, sizeof text) || !parse_stat(text, ret_child, &threads) ||
        ret_child->pid != pid)
        return false;
    if (mu_child_is_dead(ret_child) && threads > 1)
        ret_child->state = state_of_threads(root, pid);
    return true;
}

/* Adds the number behind a name that begins a line. */
static bool add_field(const char *text, const char *name, uint64_t *sum)
{
    const char *line = strstr(text, name);
    unsigned long long number;

    if (line == NULL || sscanf(line + strlen(name), " %llu", &number) != 1)
        return false;
    *sum += number;
    return true;
}

bool mu_child_read_switches(const char *root, pid_t pid, uint64_t *ret_switches)
{
    char text[STATUS_ROOM];
    uint64_t sum = 0;

    if (!read_about(root, pid, "status", text, sizeof text) ||
        strstr(text, "\nState:\tZ") != NULL || /* of its first thread, which has ended: nothing about the others */
        !add_field(text, "\nvoluntary_ctxt_switches:", &sum) || !add_field(text, "\nnonvoluntary_ctxt_switches:", &sum))
        return false;
    *ret_switches = sum;
    return true;
}

int mu_children_add(struct mu_children *list, const struct mu_child *child)
{
    if (list->count == list->cap) {
        size_t cap = list->cap > 0 ? list->cap * 2 : 16;
        struct mu_child *items;

        if (list->count >= MU_CHILDREN_MAX)
            return MUSTER_ELIMIT;
        items = realloc(list->items, cap * sizeof *items);
        if (items == NULL)
            return MUSTER_ENOMEM;
        list->items = items;
        list->cap = cap;
    }
    list->items[list->count++] = *child;
    return 0;
}

static int compare_pids(const void *a, const void *b)
{
    const pid_t *left = a, *right = b;

    return *left < *right ? -1 : *left > *right;
}

static bool has_pid(const struct mu_pids *pids, pid_t pid)
{
    return pids != NULL && pids->count > 0 && bsearch(&pid, pids->items, pids->count, sizeof pid, compare_pids) != NULL;
}

static int compare_children(const void *a, const void *b)
{
    const struct mu_child *left = a, *right = b;

    return compare_pids(&left->pid, &right->pid);
}

static bool wanted_child(const struct mu_child *child, pid_t parent, const struct mu_pids *skip,
                         const struct mu_pids *pgids)
{
    if (pgids != NULL)
        return has_pid(pgids, child->pgid);
    return parent == ANYBODY || (child->ppid == parent && !has_pid(skip, child->pid));
}

/* Looks at all processes for the children of `parent` (without those in `skip`), or for the members of `pgids`. */
static int scan_all(struct mu_children *list, const char *root, pid_t parent, const struct mu_pids *skip,
                    const struct mu_pids *pgids)
{
    DIR *dir = opendir(root);
    struct dirent *entry;
    int rc = 0;

    if (dir == NULL)
        return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? MUSTER_ESYSTEM : MUSTER_ENOTSUP;
    while (rc == 0 && (entry = readdir(dir)) != NULL) {
        struct mu_child child;
        pid_t pid;

        if (is_number(entry->d_name, &pid) && mu_child_read(root, pid, &child) &&
            wanted_child(&child, parent, skip, pgids))
            rc = mu_children_add(list, &child);
    }
    (void)closedir(dir);
    return rc;
}

/* One "<pid> <pid> " list. A number may be cut by the end of a chunk. */
static int read_list(struct mu_children *list, const char *root, pid_t parent, const struct mu_pids *skip, int fd)
{
    char chunk[CHUNK];
    ssize_t len;
    pid_t pid = 0;
    int rc = 0;

    while (rc == 0 && (len = read(fd, chunk, sizeof chunk)) > 0) {
        for (ssize_t i = 0; i < len && rc == 0; i++) {
            struct mu_child child;

            if (chunk[i] >= '0' && chunk[i] <= '9' && pid < INT32_MAX / 10 - 1) {
                pid = pid * 10 + (chunk[i] - '0');
                continue;
            }
            if (pid > 0 && !has_pid(skip, pid) && mu_child_read(root, pid, &child) && child.ppid == parent)
                rc = mu_children_add(list, &child);
            pid = 0;
        }
    }
    return rc;
}

/* The kernel's lists, one for each of our threads. MUSTER_ENOTSUP: it has none. */
static int read_lists(struct mu_children *list, const char *root, pid_t parent, const struct mu_pids *skip)
{
    DIR *dir = open_threads(root, parent);
    char path[PATH_ROOM];
    struct dirent *entry;
    bool any = false;
    int rc = 0;

    if (dir == NULL)
        return MUSTER_ENOTSUP;
    while (rc == 0 && (entry = readdir(dir)) != NULL) {
        pid_t tid;
        int fd;

        if (!is_number(entry->d_name, &tid) ||
            snprintf(path, sizeof path, "%s/%d/task/%d/children", root, (int)parent, (int)tid) >= (int)sizeof path)
            continue;
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue; /* the thread ended, or there are no such lists */
        any = true;
        rc = read_list(list, root, parent, skip, fd);
        (void)close(fd);
    }
    (void)closedir(dir);
    return rc == 0 && !any ? MUSTER_ENOTSUP : rc;
}

/* A /proc of another pid namespace has other numbers: signals to them would hit the wrong processes. */
static bool shows_us(const char *root)
{
    char path[PATH_ROOM], target[32], own[32];
    ssize_t len;

    if (snprintf(path, sizeof path, "%s/self", root) >= (int)sizeof path)
        return false;
    len = readlink(path, target, sizeof target - 1);
    if (len < 0)
        return false;
    target[len] = '\0';
    (void)snprintf(own, sizeof own, "%d", (int)getpid());
    return strcmp(target, own) == 0;
}

static int check_root(const char *root, struct muster_error *reterr)
{
    return shows_us(root) ? 0
                          : mu_fail(reterr, MUSTER_ENOTSUP,
                                    "list processes in '%s': it is not mounted, or shows another pid namespace", root);
}

static void sort(struct mu_children *list)
{
    if (list->count > 1)
        qsort(list->items, list->count, sizeof list->items[0], compare_children);
}

static int finish(struct mu_children *list, const char *root, int rc, struct muster_error *reterr)
{
    if (rc < 0)
        return mu_fail(reterr, rc, "list processes in '%s': %s", root, muster_error_text(rc));
    sort(list);
    return 0;
}

int mu_children_list(struct mu_children *list, const char *root, pid_t parent, bool thorough,
                     const struct mu_pids *skip, struct muster_error *reterr)
{
    int rc = MUSTER_ENOTSUP;

    list->count = 0;
    if (parent == getpid() && check_root(root, reterr) < 0)
        return MUSTER_ENOTSUP;
    if (!thorough)
        rc = read_lists(list, root, parent, skip);
    if (rc == MUSTER_ENOTSUP)
        rc = scan_all(list, root, parent, skip, NULL);
    return finish(list, root, rc, reterr);
}

int mu_children_in_groups(struct mu_children *list, const char *root, const struct mu_pids *pgids,
                          struct muster_error *reterr)
{
    list->count = 0;
    if (check_root(root, reterr) < 0)
        return MUSTER_ENOTSUP;
    return finish(list, root, scan_all(list, root, 0, NULL, pgids), reterr);
}

/* ---- Whoever is below ------------------------------------------------------------------------------------------ */

static const struct mu_child *find(const struct mu_child *items, size_t count, pid_t pid)
{
    struct mu_child key = { .pid = pid };

    return count > 0 ? bsearch(&key, items, count, sizeof key, compare_children) : NULL;
}

/* Goes up from it, with a limit on the steps: the list was not read in one moment, so it may have circles. */
static bool is_below(const struct mu_children *all, const struct mu_child *child, const struct mu_child *tops,
                     size_t tops_count)
{
    for (size_t steps = 0; child != NULL && steps < all->count; steps++) {
        if (find(tops, tops_count, child->ppid) != NULL)
            return true;
        child = find(all->items, all->count, child->ppid);
    }
    return false;
}

/* Adds all processes below the first `tops_count`, which are sorted. */
static int scan_below(struct mu_children *list, size_t tops_count, const char *root)
{
    struct mu_children all = { 0 };
    int rc = scan_all(&all, root, ANYBODY, NULL, NULL);

    if (rc == MUSTER_ELIMIT) /* then of those whom we have */
        rc = 0;
    sort(&all);
    for (size_t i = 0; i < all.count && rc == 0; i++) {
        if (is_below(&all, &all.items[i], list->items, tops_count))
            rc = mu_children_add(list, &all.items[i]);
    }
    mu_children_done(&all);
    return rc;
}

/* The same by the kernel's lists, one generation after the other. MUSTER_ENOTSUP: it has none. */
static int read_below(struct mu_children *list, size_t tops_count, const char *root)
{
    int rc = 0;

    for (size_t i = 0; i < list->count && rc == 0; i++) {
        pid_t pid = list->items[i].pid;
        uint64_t start = list->items[i].start;
        size_t before = list->count;
        struct mu_child child;

        rc = read_lists(list, root, pid, NULL);
        if (rc == MUSTER_ENOTSUP && !mu_child_read(root, pid, &child))
            rc = 0; /* it is gone */
        if (i >= tops_count && (!mu_child_read(root, pid, &child) || child.start != start))
            list->count = before; /* they may be another's; if not, the next look finds them */
    }
    return rc;
}

/* Takes the first `tops_count` out. A process that changed its parent between two looks is kept once. */
static void keep_below(struct mu_children *list, size_t tops_count)
{
    size_t kept = 0;

    list->count -= tops_count;
    memmove(list->items, list->items + tops_count, list->count * sizeof list->items[0]);
    sort(list);
    for (size_t i = 0; i < list->count; i++) {
        if (kept == 0 || list->items[kept - 1].pid != list->items[i].pid)
            list->items[kept++] = list->items[i];
    }
    list->count = kept;
}

int mu_children_below(struct mu_children *list, const char *root, struct muster_error *reterr)
{
    size_t tops_count = list->count;
    int rc;

    if (tops_count == 0)
        return 0;
    if (check_root(root, reterr) < 0) {
        list->count = 0;
        return MUSTER_ENOTSUP;
    }
    sort(list);
    rc = read_below(list, tops_count, root);
    if (rc == MUSTER_ENOTSUP) {
        list->count = tops_count;
        rc = scan_below(list, tops_count, root);
    }
    if (rc == MUSTER_ELIMIT) /* then they are for the next look */
        rc = 0;
    if (rc < 0)
        list->count = 0;
    else
        keep_below(list, tops_count);
    return finish(list, root, rc, reterr);
}

int mu_child_signal(const struct mu_child *child, int signal)
{
    int fd = (int)syscall(SYS_pidfd_open, child->pid, 0u); /* close-on-exec of itself */
    struct mu_child now;
    int rc = -ESRCH;

    /* The process that this pidfd holds is the one that was listed if it has the same start time. */
    if (mu_child_read(MU_PROC_ROOT, child->pid, &now) && now.start == child->start) {
        rc = fd >= 0 ? (int)syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0u) : kill(child->pid, signal);
        rc = rc < 0 ? -errno : 0;
    }
    if (fd >= 0)
        (void)close(fd);
    return rc;
}
