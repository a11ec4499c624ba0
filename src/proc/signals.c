/* Names of signals, and what a process was started with. */
#include "proc/signals.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name;
    int number;
} names[] = {
#define NAME(signal)                                                                                                   \
    {                                                                                                                  \
#signal, signal                                                                                                \
    }
    NAME(SIGHUP),  NAME(SIGINT),          NAME(SIGQUIT),        NAME(SIGILL),          NAME(SIGTRAP), NAME(SIGABRT),
    NAME(SIGBUS),  NAME(SIGFPE),          NAME(SIGKILL),        NAME(SIGUSR1),         NAME(SIGSEGV), NAME(SIGUSR2),
    NAME(SIGPIPE), NAME(SIGALRM),         NAME(SIGTERM),        NAME(SIGSTKFLT),       NAME(SIGCHLD), NAME(SIGCONT),
    NAME(SIGSTOP), NAME(SIGTSTP),         NAME(SIGTTIN),        NAME(SIGTTOU),         NAME(SIGURG),  NAME(SIGXCPU),
    NAME(SIGXFSZ), NAME(SIGVTALRM),       NAME(SIGPROF),        NAME(SIGWINCH),        NAME(SIGIO),   NAME(SIGPWR),
    NAME(SIGSYS),  { "SIGCLD", SIGCHLD }, { "SIGPOLL", SIGIO }, { "SIGIOT", SIGABRT },
#undef NAME
};

/* "SIGRTMIN+3". `sign` is which way one may count from there. */
static int realtime_number(const char *name, const char *base, int number, char sign)
{
    size_t len = strlen(base);
    char *end;
    long offset;

    if (strncmp(name, base, len) != 0)
        return 0;
    if (name[len] == '\0')
        return number;
    if (name[len] != sign || name[len + 1] < '0' || name[len + 1] > '9')
        return 0;
    offset = strtol(name + len + 1, &end, 10);
    if (*end != '\0' || offset > SIGRTMAX - SIGRTMIN)
        return 0;
    return sign == '+' ? number + (int)offset : number - (int)offset;
}

int mu_signal_number(const char *name)
{
    int number;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, name) == 0)
            return names[i].number;
    }
    number = realtime_number(name, "SIGRTMIN", SIGRTMIN, '+');
    return number > 0 ? number : realtime_number(name, "SIGRTMAX", SIGRTMAX, '-');
}

const char *mu_signal_name(int number, char room[static MU_SIGNAL_NAME_MAX])
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].number == number)
            return names[i].name;
    }
    (void)snprintf(room, MU_SIGNAL_NAME_MAX, "SIG%d", number);
    return room;
}

static void skip(struct mu_signals *signals, const char *name, size_t len)
{
    size_t used = strlen(signals->skipped);

    (void)snprintf(signals->skipped + used, sizeof signals->skipped - used, "%s%.*s", used > 0 ? ", " : "", (int)len,
                   name);
}

static bool holds(const struct mu_signals *signals, int number)
{
    for (size_t i = 0; i < signals->count; i++) {
        if (signals->numbers[i] == number)
            return true;
    }
    return false;
}

static void parse_one(struct mu_signals *signals, const char *name, size_t len)
{
    char text[MU_SIGNAL_NAME_MAX];
    int number = 0;

    if (len == 0)
        return;
    if (len < sizeof text) {
        memcpy(text, name, len);
        text[len] = '\0';
        number = mu_signal_number(text);
    }
    if (number == 0 || number == SIGKILL || number == SIGSTOP || number == SIGCHLD)
        skip(signals, name, len);
    else if (!holds(signals, number) && signals->count < MU_SIGNALS_MAX)
        signals->numbers[signals->count++] = number;
}

void mu_signals_parse(struct mu_signals *signals, const char *text)
{
    *signals = (struct mu_signals){ 0 };
    while (*text != '\0') {
        size_t len = strcspn(text, ","), start = 0, end = len;

        while (start < end && (text[start] == ' ' || text[start] == '\t'))
            start++;
        while (end > start && (text[end - 1] == ' ' || text[end - 1] == '\t'))
            end--;
        parse_one(signals, text + start, end - start);
        text += text[len] == ',' ? len + 1 : len;
    }
}

/* ---- What they mean ---- */

enum mu_signal_meaning mu_signals_see(struct mu_signals_seen *seen, int signal, uint64_t now_ms)
{
    bool first = !seen->any, first_interrupt = signal == SIGINT && !seen->interrupt;

    seen->any = true;
    if (first_interrupt) {
        seen->interrupt = true;
        seen->interrupt_ms = now_ms;
    }
    if (first)
        return MU_SIGNAL_BEGIN;
    if (signal == SIGQUIT ||
        (signal == SIGINT && !first_interrupt && now_ms - seen->interrupt_ms > MU_SIGNAL_INTERRUPT_MS))
        return MU_SIGNAL_HURRY;
    return MU_SIGNAL_REPEAT;
}

void mu_startup_look(struct mu_startup *startup)
{
    struct rlimit limit;

    *startup = (struct mu_startup){ .nofile_soft = RLIM_INFINITY };
    (void)pthread_sigmask(SIG_SETMASK, NULL, &startup->mask);
    for (int signal = 1; signal <= SIGRTMAX; signal++) {
        struct sigaction action;

        if (sigaction(signal, NULL, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
            action.sa_handler == SIG_IGN)
            startup->ignored |= UINT64_C(1) << (signal - 1);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        startup->nofile_soft = limit.rlim_cur;
}

void mu_startup_take(struct mu_startup *startup)
{
    mu_startup_look(startup);
    startup->umask = umask(0);
    (void)umask(startup->umask);
}

bool mu_startup_ignored(const struct mu_startup *startup, int signal)
{
    return signal >= 1 && signal <= 64 && (startup->ignored >> (signal - 1) & 1) != 0;
}

bool mu_startup_keeps(const struct mu_startup *startup, int signal)
{
    return signal == SIGHUP && startup != NULL && mu_startup_ignored(startup, SIGHUP);
}

void mu_startup_for_workers(struct mu_startup *startup, const struct mu_signals *handled)
{
    for (size_t i = 0; i < handled->count; i++)
        startup->ignored &= ~(UINT64_C(1) << (handled->numbers[i] - 1));
}

void mu_signals_reset(const struct mu_signals *handled, const struct mu_startup *startup)
{
    struct sigaction action = { .sa_handler = SIG_DFL };

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGCHLD, &action, NULL);
    for (size_t i = 0; i < handled->count; i++) {
        if (!mu_startup_keeps(startup, handled->numbers[i]))
            (void)sigaction(handled->numbers[i], &action, NULL);
    }
}

void mu_signals_unblock(const struct mu_signals *handled)
{
    sigset_t set;

    (void)sigemptyset(&set);
    for (size_t i = 0; i < handled->count; i++)
        (void)sigaddset(&set, handled->numbers[i]);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

void mu_signals_unblock_all(void)
{
    sigset_t none;

    (void)sigemptyset(&none);
    (void)pthread_sigmask(SIG_SETMASK, &none, NULL);
}

_Noreturn void mu_die_of(int signal)
{
    struct sigaction action = { .sa_handler = SIG_DFL };
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, signal);
    (void)sigaction(signal, &action, NULL);
    (void)prctl(PR_SET_DUMPABLE, 0);
    if (getpid() != 1) {
        (void)kill(getpid(), signal); /* blocked: pending until the next line */
        (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    }
    _exit(128 + signal);
}
