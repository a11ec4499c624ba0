/* What the kernel tells about the server's process: CPU time and memory. */
#ifndef MUSTER_BENCH_PROBE_H
#define MUSTER_BENCH_PROBE_H

#include <stdint.h>
#include <sys/types.h>

struct probe_memory {
    double rss_kib;  /* VmRSS: all that is resident */
    double anon_kib; /* RssAnon: heap and stacks */
    double file_kib; /* RssFile: program and libraries */
};

/* CPU time of all threads of a process, user and system, or 0 for pid 0. */
int64_t probe_cpu_ns(pid_t pid);

/* CPU time of this program. */
int64_t probe_own_cpu_ns(void);

/* Ends the program when the pid's memory cannot be read. */
struct probe_memory probe_memory(pid_t pid);

/* Returns when the server has been at rest for a moment, or after a bounded time. What an earlier run left it
 * to do, such as closing connections, is then not counted against the next. */
void probe_settle(pid_t pid);

#endif
