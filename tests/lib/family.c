#include "family.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

const char *family_mark(char *room, size_t size)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)snprintf(room, size, "MUSTER_TEST_MARK=%d.%ld.%ld", (int)getpid(), (long)now.tv_sec, now.tv_nsec);
    return room;
}

/* An environment of zombies is empty, so they are not found. */
static bool has_mark(const char *pid, const char *mark)
{
    static char text[1 << 17];
    char path[300];
    ssize_t len;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%s/environ", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    len = read(fd, text, sizeof text);
    (void)close(fd);
    return len > 0 && memmem(text, (size_t)len, mark, strlen(mark) + 1) != NULL;
}

static size_t each(const char *mark, int number)
{
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    size_t count = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || !has_mark(entry->d_name, mark))
            continue;
        count++;
        if (number != 0)
            (void)kill((pid_t)atoi(entry->d_name), number);
    }
    if (dir != NULL)
        (void)closedir(dir);
    return count;
}

size_t family_count(const char *mark)
{
    return each(mark, 0);
}

void family_end(const char *mark)
{
    (void)each(mark, SIGKILL);
}

bool family_until(bool (*holds)(void *arg), void *arg, int timeout_ms)
{
    long until_ms = now_ms() + timeout_ms;

    while (!holds(arg)) {
        if (now_ms() > until_ms)
            return false;
        (void)poll(NULL, 0, 2);
    }
    return true;
}

struct wanted {
    const char *mark;
    size_t count;
};

static bool are_so_many(void *arg)
{
    struct wanted *wanted = arg;

    return family_count(wanted->mark) == wanted->count;
}

bool family_wait(const char *mark, size_t count, int timeout_ms)
{
    struct wanted wanted = { mark, count };

    return family_until(are_so_many, &wanted, timeout_ms);
}

bool family_read_line(int fd, char *line, size_t size, int timeout_ms)
{
    long until_ms = now_ms() + timeout_ms;
    size_t len = 0;

    for (;;) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        long left_ms = until_ms - now_ms();

        int rc = left_ms >= 0 ? poll(&ready, 1, (int)left_ms) : 0;

        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0 || read(fd, line + len, 1) != 1)
            return false;
        if (line[len] == '\n' || len + 2 > size) {
            line[len] = '\0';
            return true;
        }
        len++;
    }
}
