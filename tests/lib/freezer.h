/* Processes that cannot be killed: a task in a frozen control group (version 1) is in state D for everybody, and SIGKILL waits
 * until it thaws. */
#ifndef MU_TESTS_FREEZER_H
#define MU_TESTS_FREEZER_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct freezer {
    char dir[128];
};

static inline bool freezer_make(struct freezer *freezer) /* false: there are none here */
{
    (void)snprintf(freezer->dir, sizeof freezer->dir, "/sys/fs/cgroup/freezer/muster-test-%d", (int)getpid());
    return mkdir(freezer->dir, 0700) == 0;
}

static inline bool freezer_write(const struct freezer *freezer, const char *file, const char *text)
{
    char path[160];
    int fd;
    bool ok;

    (void)snprintf(path, sizeof path, "%s/%s", freezer->dir, file);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        (void)close(fd);
    return ok;
}

static inline bool freezer_freeze(const struct freezer *freezer, pid_t pid)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%d", (int)pid);
    return freezer_write(freezer, "cgroup.procs", text) && freezer_write(freezer, "freezer.state", "FROZEN");
}

static inline bool freezer_thaw(const struct freezer *freezer)
{
    return freezer_write(freezer, "freezer.state", "THAWED");
}

static inline void freezer_remove(const struct freezer *freezer) /* when all have ended */
{
    for (int i = 0; i < 1000 && rmdir(freezer->dir) < 0; i++)
        (void)usleep(1000);
}

#endif
