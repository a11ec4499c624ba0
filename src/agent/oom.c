/* The kernel's count of out-of-memory kills: that of our own cgroup if it has one (the workers inherit the cgroup). The
 * root group of v2, old kernels and odd mounts have none: then the machine's count is used. */
#include "agent/oom.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_MAX_BYTES = 65536, SHELL_SIGNAL = 128 };

/* The contents of a small file, as much as fits, with a NUL. False: it cannot be read. */
static bool read_small(const char *path, char text[FILE_MAX_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    size_t used = 0;
    ssize_t len = -1;

    if (fd < 0)
        return false;
    while (used < FILE_MAX_BYTES - 1) {
        len = read(fd, text + used, FILE_MAX_BYTES - 1 - used);
        if (len < 0 && errno == EINTR)
            continue;
        if (len <= 0)
            break;
        used += (size_t)len;
    }
    (void)close(fd);
    text[used] = '\0';
    return len >= 0;
}

/* Takes the next line out of *rest; NULL: no more. */
static char *next_line(char **rest)
{
    char *line = *rest;
    size_t len = strcspn(line, "\n");

    if (*line == '\0')
        return NULL;
    *rest = line[len] == '\n' ? line + len + 1 : line + len;
    line[len] = '\0';
    return line;
}

/* The number behind "oom_kill" on a line of its own. */
static bool find_count(char *text, uint64_t *ret_count)
{
    static const char name[] = "oom_kill ";
    char *line;

    while ((line = next_line(&text)) != NULL) {
        const char *digits = line + sizeof name - 1;
        char *end;

        if (strncmp(line, name, sizeof name - 1) != 0 || *digits < '0' || *digits > '9')
            continue;
        errno = 0;
        *ret_count = strtoull(digits, &end, 10);
        return errno == 0 && *end == '\0';
    }
    return false;
}

static bool count_in(const char *root, const char *before, const char *group, const char *file, uint64_t *ret_count)
{
    char path[MU_OOM_PATH_MAX], text[FILE_MAX_BYTES];

    if ((size_t)snprintf(path, sizeof path, "%s%s%s%s", root, before, group, file) >= sizeof path)
        return false;
    return read_small(path, text) && find_count(text, ret_count);
}

/* In a cgroup namespace, or with a container's own mount, the group may be the root of the mount. */
static bool count_of_group(const char *root, const char *mount, const char *group, const char *file,
                           uint64_t *ret_count)
{
    if (group[0] == '/' && strstr(group, "/..") == NULL &&
        count_in(root, mount, strcmp(group, "/") == 0 ? "" : group, file, ret_count))
        return true;
    return count_in(root, mount, "", file, ret_count);
}

/* Whether "memory" is one of the controllers, separated by commas. */
static bool has_memory(const char *controllers, size_t len)
{
    static const char name[] = "memory";
    const char *end = controllers + len;

    while (controllers < end) {
        const char *comma = memchr(controllers, ',', (size_t)(end - controllers));
        size_t one = (size_t)((comma != NULL ? comma : end) - controllers);

        if (one == sizeof name - 1 && memcmp(controllers, name, one) == 0)
            return true;
        controllers += one + 1;
    }
    return false;
}

/* Lines are "<hierarchy>:<controllers>:<path>"; the hierarchy of v2 is 0 and names no controllers. */
static bool count_of_groups(const char *root, char *lines, uint64_t *ret_count)
{
    char *line;

    while ((line = next_line(&lines)) != NULL) {
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

        if (group == NULL)
            continue;
        if (strncmp(line, "0::", 3) == 0) {
            if (count_of_group(root, "/sys/fs/cgroup", group + 1, "/memory.events", ret_count))
                return true;
        } else if (has_memory(controllers + 1, (size_t)(group - controllers - 1)) &&
                   count_of_group(root, "/sys/fs/cgroup/memory", group + 1, "/memory.oom_control", ret_count)) {
            return true;
        }
    }
    return false;
}

void mu_oom_read(const char *root, struct mu_oom *ret_oom)
{
    char path[MU_OOM_PATH_MAX], text[FILE_MAX_BYTES];
    struct mu_oom oom = { 0 };

    if ((size_t)snprintf(path, sizeof path, "%s/proc/self/cgroup", root) < sizeof path && read_small(path, text))
        oom.known = count_of_groups(root, text, &oom.kills);
    if (!oom.known)
        oom.known = oom.of_machine = count_in(root, "/proc/vmstat", "", "", &oom.kills);
    *ret_oom = oom;
}

bool mu_oom_killed(const struct mu_oom *before, const struct mu_oom *after, int exit_code)
{
    if (exit_code != -SIGKILL && exit_code != SHELL_SIGNAL + SIGKILL)
        return false;
    return before->known && after->known && before->of_machine == after->of_machine && after->kills > before->kills;
}
