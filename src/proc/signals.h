/* Names of signals, lists of them as users write them, and what a process was started with. */
#ifndef MU_PROC_SIGNALS_H
#define MU_PROC_SIGNALS_H

#include "base/error.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#define MU_SIGNALS_MAX 64        /* a list longer than that names some twice */
#define MU_SIGNAL_NAME_MAX 16    /* with its NUL */
#define MU_SIGNALS_TEXT_MAX 1024 /* of a list */

/* "SIGTERM" -> 15; also SIGRTMIN, SIGRTMIN+n, SIGRTMAX, SIGRTMAX-n. 0: there is no such signal. The prefix is needed. */
int mu_signal_number(const char *name);
/* 15 -> "SIGTERM"; "SIG40" for those without a name. `room` may be used for the text. */
const char *mu_signal_name(int number, char room[static MU_SIGNAL_NAME_MAX]);

struct mu_signals {
    int numbers[MU_SIGNALS_MAX];
    size_t count;
    char skipped
        [MU_SIGNALS_TEXT_MAX]; /* names that are unknown or cannot be handled, "A, B"; empty: none. For a warning */
};

/* "SIGTERM,SIGINT": blanks around names are fine, repetitions count once, what is unknown (or is SIGKILL, SIGSTOP,
 * SIGCHLD, which nobody can leave to us) is skipped and named. An empty text is an empty list. */
void mu_signals_parse(struct mu_signals *signals, const char *text);

/* What the process was given by whoever started it, and workers get back. Take it first in main(), before any signal
 * is ignored or blocked and any limit raised; while there is one thread. */
struct mu_startup {
    sigset_t mask;
    uint64_t ignored; /* bit n - 1: signal n was ignored */
    mode_t umask;
    rlim_t nofile_soft;
};

void mu_startup_take(struct mu_startup *startup);
bool mu_startup_ignored(const struct mu_startup *startup, int signal);

#endif
