/* Processes that cannot be killed: a task in a frozen control group (version 1) is in state D for everybody, and
 * SIGKILL waits until it thaws. One for each program; whatever goes wrong, it thaws when the program aborts, or by
 * freezer_end(). */
#ifndef MU_TESTS_FREEZER_H
#define MU_TESTS_FREEZER_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char freezer_dir[128], freezer_state[160]; /* empty: there is none */

static inline bool freezer_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        (void)close(fd);
    return ok;
}

static inline bool freezer_thaw(void)
{
    return freezer_state[0] != '\0' && freezer_write(freezer_state, "THAWED");
}

static inline void freezer_on_abort(int number)
{
    (void)freezer_thaw();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static inline bool freezer_make(void) /* false: there are none here */
{
    (void)snprintf(freezer_dir, sizeof freezer_dir, "/sys/fs/cgroup/freezer/muster-test-%d", (int)getpid());
    if (mkdir(freezer_dir, 0700) < 0 && errno != EEXIST) {
        freezer_dir[0] = '\0';
        return false;
    }
    (void)snprintf(freezer_state, sizeof freezer_state, "%s/freezer.state", freezer_dir);
    (void)signal(SIGABRT, freezer_on_abort);
    return true;
}

static inline bool freezer_freeze(pid_t pid)
{
    char path[160], text[32];

    (void)snprintf(path, sizeof path, "%s/cgroup.procs", freezer_dir);
    (void)snprintf(text, sizeof text, "%d", (int)pid);
    return freezer_write(path, text) && freezer_write(freezer_state, "FROZEN");
}

static inline void freezer_end(void) /* waits until all have ended, for they were killed */
{
    (void)freezer_thaw();
    for (int i = 0; freezer_dir[0] != '\0' && i < 1000 && rmdir(freezer_dir) < 0; i++)
        (void)usleep(1000);
    freezer_dir[0] = freezer_state[0] = '\0';
}

#endif
