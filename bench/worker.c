/* A worker that does nothing but tell when it began, and the start of a launcher's clock.
 *
 *     muster-bench-worker exit|stay           one line, "worker NS PID PPID RANK"; then the end, or a wait for a signal
 *     muster-bench-worker start COMMAND...    one line, "start NS"; then it becomes that command
 *
 * NS is CLOCK_MONOTONIC in nanoseconds, taken first of all, in `start` last of all. A line is one write, so that
 * those of many workers do not mix. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 160

static int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int put(const char *line, int length)
{
    return length > 0 && length < LINE_MAX_BYTES && write(STDOUT_FILENO, line, (size_t)length) == length ? 0 : 1;
}

static int become(char **command)
{
    char line[LINE_MAX_BYTES];

    if (put(line, snprintf(line, sizeof line, "start %" PRId64 "\n", now_ns())) != 0)
        return 1;
    (void)execvp(command[0], command);
    perror(command[0]);
    return 127;
}

int main(int argc, char **argv)
{
    int64_t began_ns = now_ns();
    const char *rank = getenv("RANK");
    char line[LINE_MAX_BYTES];

    if (argc > 2 && strcmp(argv[1], "start") == 0)
        return become(argv + 2);
    if (argc != 2 || (strcmp(argv[1], "exit") != 0 && strcmp(argv[1], "stay") != 0)) {
        (void)fprintf(stderr, "usage: muster-bench-worker exit|stay, or start COMMAND...\n");
        return 2;
    }
    if (put(line, snprintf(line, sizeof line, "worker %" PRId64 " %ld %ld %.16s\n", began_ns, (long)getpid(),
                           (long)getppid(), rank != NULL ? rank : "-")) != 0)
        return 1;
    if (strcmp(argv[1], "stay") == 0)
        (void)pause();
    return 0;
}
