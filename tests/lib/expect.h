/* Checks in processes that a test has started: there a failure cannot return to the test, so it is said and aborts. */
#ifndef TESTS_LIB_EXPECT_H
#define TESTS_LIB_EXPECT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            (void)fprintf(stderr, "# %s:%d: expected: %s\n", __FILE__, __LINE__, #condition);                          \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* This program, with these arguments; its exit code or -signal. */
static inline int expect_run(const char *const *argv)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        (void)execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
        _exit(126);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 126;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif
