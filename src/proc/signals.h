/* Names of signals, lists of them as users write them, the meaning of repeated signals, and the signal state that a
 * process was started with. */
#ifndef MU_PROC_SIGNALS_H
#define MU_PROC_SIGNALS_H

#include "base/error.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#define MU_SIGNALS_MAX 64        /* a list longer than that names some twice */
#define MU_SIGNAL_NAME_MAX 16    /* with its NUL */
#define MU_SIGNALS_TEXT_MAX 1024 /* of a list */

/* "SIGTERM" -> 15; also SIGRTMIN, SIGRTMIN+n, SIGRTMAX, SIGRTMAX-n. 0: there is no such signal. The prefix is
 * needed. */
int mu_signal_number(const char *name);
/* 15 -> "SIGTERM"; "SIG40" for those without a name. `room` may be used for the text. */
const char *mu_signal_name(int number, char room[static MU_SIGNAL_NAME_MAX]);

struct mu_signals {
    int numbers[MU_SIGNALS_MAX];
    size_t count;
    char skipped
        [MU_SIGNALS_TEXT_MAX]; /* names that are unknown or cannot be handled, "A, B"; empty: none. For a warning */
};

/* "SIGTERM,SIGINT": blanks around names are fine, repetitions count once. Unknown names, and SIGKILL, SIGSTOP and
 * SIGCHLD, are skipped and named. An empty text is an empty list. */
void mu_signals_parse(struct mu_signals *signals, const char *text);

/* What a handled signal means to a program that is about to end. Programs send SIGTERM or SIGHUP more than once without
 * being in a hurry: GNU timeout signals us and then our whole process group. A person at a terminal who presses Ctrl-C
 * again (later than a bouncing key would), or sends SIGQUIT, is in a hurry. */
#define MU_SIGNAL_INTERRUPT_MS 1000 /* a SIGINT that comes later than this after the first one was sent on purpose */

enum mu_signal_meaning {
    MU_SIGNAL_BEGIN,  /* the first signal: shut down, in good order */
    MU_SIGNAL_REPEAT, /* says the same again: changes nothing */
    MU_SIGNAL_HURRY,  /* the user does not want to wait any longer */
};

struct mu_signals_seen { /* zeroed memory: none */
    bool any, interrupt;
    uint64_t interrupt_ms; /* when the first SIGINT came */
};

enum mu_signal_meaning mu_signals_see(struct mu_signals_seen *seen, int signal, uint64_t now_ms);

/* What the process inherited when it was started, and gives to its workers. Take it first in main(), before any signal
 * is ignored or blocked and any limit raised; while there is one thread. */
struct mu_startup {
    sigset_t mask;
    uint64_t ignored; /* bit n - 1: signal n was ignored */
    mode_t umask;
    rlim_t nofile_soft;
};

void mu_startup_take(struct mu_startup *startup);
void mu_startup_look(struct mu_startup *startup); /* the same beside other threads, without the umask */
bool mu_startup_ignored(const struct mu_startup *startup, int signal);
/* Whether this signal is not handled though it is in a list: SIGHUP, if it was ignored at the start (nohup). SIGINT and
 * SIGQUIT, which a shell's `&` ignores, are handled nevertheless, as torchrun does. `startup` may be NULL: nothing was
 * ignored. */
bool mu_startup_keeps(const struct mu_startup *startup, int signal);
/* What workers get: the signals that we handle have their default action, whatever we were started with. */
void mu_startup_for_workers(struct mu_startup *startup, const struct mu_signals *handled);

/* The first step of a program that handles signals: sets their dispositions, and SIGCHLD's, to the default. Install the
 * handlers next; then signals that were blocked at the start are unblocked, for the calling thread. */
void mu_signals_reset(const struct mu_signals *handled, const struct mu_startup *startup);
void mu_signals_unblock(const struct mu_signals *handled);
void mu_signals_unblock_all(void);

/* Dies of `signal` as if it had no handler, without a core file. As pid 1, which no signal kills: exits with 128 +
 * signal. Flush first: exit() is not run. */
_Noreturn void mu_die_of(int signal);

#endif
