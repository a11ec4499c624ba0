/* Reads process clocks and /proc/PID/status for probe.h. */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "load.h"

#define SETTLE_STEP_NS 10000000
#define SETTLE_STEPS_MAX 300
#define SETTLE_STEPS_QUIET 3
#define SETTLE_CPU_NS 200000 /* at most this much CPU time in a step is rest */

static int64_t read_clock(clockid_t clock)
{
    struct timespec ts;

    if (clock_gettime(clock, &ts) != 0)
        die("the CPU clock of the server cannot be read: is it gone?");
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t probe_cpu_ns(pid_t pid)
{
    clockid_t clock;

    if (pid == 0)
        return 0;
    if (clock_getcpuclockid(pid, &clock) != 0)
        die("process %d has no CPU clock: is it gone?", (int)pid);
    return read_clock(clock);
}

int64_t probe_own_cpu_ns(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

/* Takes the number of a line `NAME: NUMBER kB`; other lines leave it alone. */
static void take_kib(const char *line, const char *name, double *kib)
{
    size_t len = strlen(name);

    if (strncmp(line, name, len) == 0 && line[len] == ':')
        *kib = strtod(line + len + 1, NULL);
}

struct probe_memory probe_memory(pid_t pid)
{
    struct probe_memory memory = { 0 };
    char path[64], line[256];
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        die("%s cannot be read: is the server gone?", path);
    while (fgets(line, sizeof(line), file) != NULL) {
        take_kib(line, "VmRSS", &memory.rss_kib);
        take_kib(line, "RssAnon", &memory.anon_kib);
        take_kib(line, "RssFile", &memory.file_kib);
    }
    (void)fclose(file);
    return memory;
}

void probe_settle(pid_t pid)
{
    const struct timespec step = { .tv_nsec = SETTLE_STEP_NS };
    int64_t last = probe_cpu_ns(pid);
    int quiet = 0;

    for (int i = 0; pid != 0 && i < SETTLE_STEPS_MAX && quiet < SETTLE_STEPS_QUIET; i++) {
        int64_t cpu;

        (void)nanosleep(&step, NULL);
        cpu = probe_cpu_ns(pid);
        quiet = cpu - last <= SETTLE_CPU_NS ? quiet + 1 : 0;
        last = cpu;
    }
}
