/* A worker that misbehaves as it is told: words, carried out one after the other.
 *
 *   say=TEXT      write it and a line end to stdout
 *   ignore=N      the signal
 *   fork          a child in the same group, which ignores SIGTERM and stays
 *   detach        a grandchild in a session of its own, which ignores SIGTERM and stays; its parent is gone
 *   headless      a grandchild in a session of its own, whose first thread has ended; it says "headless" and stays
 *   chain=N       N processes, each the only child of the one before, each in a session of its own; all stay
 *   tracker=FILE  a child in the same group that ignores SIGTERM, ends when we are gone, and removes FILE then
 *   manager=MS    a child in a session of its own that is called torch_shm_manager; says "clean" and ends MS after we,
 *                 and all that we fork after it, are gone
 *   close         0, 1 and 2
 *   stop          ourselves, by SIGSTOP
 *   hang          in the kernel (state D), as one does who waits for a child that was made like vfork's
 *   root          become root for good; for a copy with the set-user-id bit
 *   report        write to stdout what we were started with
 *   raise=N       die of the signal, without a core file
 *   exit=N
 *   pause         for ever; also at the end of all words without an exit */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* For a child that ignores SIGTERM from its first moment. */
static pid_t fork_stubborn(void)
{
    void (*before)(int) = signal(SIGTERM, SIG_IGN);
    pid_t pid = fork();

    if (pid != 0)
        (void)signal(SIGTERM, before);
    return pid;
}

static void stay(void)
{
    for (;;)
        (void)pause();
}

static void say(const char *text)
{
    (void)dprintf(STDOUT_FILENO, "%s\n", text);
}

static void detach(void)
{
    pid_t pid = fork_stubborn();

    if (pid == 0) {
        (void)setsid();
        if (fork() == 0)
            stay();
        _exit(0);
    }
    (void)waitpid(pid, NULL, 0);
}

/* When the first thread has ended, it is a zombie, and its process is not. */
static void *go_on_alone(void *arg)
{
    char path[64], text[512], state = '?';

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)getpid());
    while (state != 'Z') {
        FILE *file = fopen(path, "re");

        if (file == NULL || fgets(text, sizeof text, file) == NULL || strrchr(text, ')') == NULL)
            _exit(99);
        (void)fclose(file);
        state = strrchr(text, ')')[2];
        (void)sched_yield();
    }
    say("headless");
    stay();
    return arg;
}

static void lose_the_first_thread(void)
{
    pid_t pid = fork_stubborn();
    pthread_t thread;

    if (pid == 0) {
        (void)setsid();
        if (fork() != 0)
            _exit(0);
        if (pthread_create(&thread, NULL, go_on_alone, NULL) == 0)
            pthread_exit(NULL);
        _exit(99);
    }
    (void)waitpid(pid, NULL, 0);
}

static void chain(int count)
{
    if (count == 0 || fork_stubborn() != 0)
        return;
    (void)setsid();
    chain(count - 1);
    stay();
}

static void track(const char *file)
{
    int ends[2], fd;
    char byte;

    fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || pipe2(ends, O_CLOEXEC) < 0)
        exit(99);
    (void)close(fd);
    if (fork_stubborn() != 0) {
        (void)close(ends[0]); /* the other end goes with us */
        return;
    }
    (void)close(ends[1]);
    while (read(ends[0], &byte, 1) > 0) {
    }
    (void)unlink(file);
    _exit(0);
}

/* Named before it is there, so that nobody ever sees it under another name. */
static void manage(int ms)
{
    char name[16] = "";
    int ends[2];
    char byte;
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) < 0 || prctl(PR_GET_NAME, name) < 0)
        exit(99);
    (void)prctl(PR_SET_NAME, "torch_shm_manager");
    pid = fork();
    if (pid != 0) {
        (void)prctl(PR_SET_NAME, name);
        (void)close(ends[0]);
        return;
    }
    (void)setsid();
    (void)close(ends[1]);
    while (read(ends[0], &byte, 1) > 0) {
    }
    (void)usleep((useconds_t)ms * 1000);
    say("clean");
    _exit(0);
}

static void report(void)
{
    struct dirent *entry;
    struct rlimit limit;
    sigset_t mask;
    int death = 0;
    mode_t mode = umask(0);
    DIR *dir = opendir("/proc/self/fd");

    (void)prctl(PR_GET_PDEATHSIG, &death);
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    (void)dprintf(STDOUT_FILENO, "leader=%d session=%d death=%d umask=%o nofile=%ld mask=", getpgrp() == getpid(),
                  getsid(0) == getpid(), death, (unsigned)mode, (long)limit.rlim_cur);
    (void)sigprocmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i <= SIGRTMAX; i++) {
        if (sigismember(&mask, i) == 1)
            (void)dprintf(STDOUT_FILENO, "%d,", i);
    }
    (void)dprintf(STDOUT_FILENO, " ignored=");
    for (int i = 1; i <= SIGRTMAX; i++) {
        struct sigaction action;

        if (sigaction(i, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            (void)dprintf(STDOUT_FILENO, "%d,", i);
    }
    (void)dprintf(STDOUT_FILENO, " fds=");
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir))
            (void)dprintf(STDOUT_FILENO, "%s,", entry->d_name);
    }
    (void)dprintf(STDOUT_FILENO, "\n");
}

static void die_of(int number)
{
    struct rlimit none = { 0, 0 };
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, number);
    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(number, SIG_DFL);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
    (void)kill(getpid(), number);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        int number;

        if (value != NULL)
            *value++ = '\0';
        number = value != NULL ? atoi(value) : 0;
        if (strcmp(argv[i], "say") == 0)
            say(value);
        else if (strcmp(argv[i], "ignore") == 0)
            (void)signal(number, SIG_IGN);
        else if (strcmp(argv[i], "fork") == 0 && fork_stubborn() == 0)
            stay();
        else if (strcmp(argv[i], "detach") == 0)
            detach();
        else if (strcmp(argv[i], "headless") == 0)
            lose_the_first_thread();
        else if (strcmp(argv[i], "chain") == 0)
            chain(number);
        else if (strcmp(argv[i], "tracker") == 0)
            track(value);
        else if (strcmp(argv[i], "manager") == 0)
            manage(number);
        else if (strcmp(argv[i], "hang") == 0 && syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0)
            stay();
        else if (strcmp(argv[i], "stop") == 0)
            (void)raise(SIGSTOP);
        else if (strcmp(argv[i], "root") == 0 && setresuid(0, 0, 0) < 0)
            return 98;
        else if (strcmp(argv[i], "report") == 0)
            report();
        else if (strcmp(argv[i], "raise") == 0)
            die_of(number);
        else if (strcmp(argv[i], "exit") == 0)
            return number;
        else if (strcmp(argv[i], "close") == 0)
            for (int fd = 0; fd < 3; fd++)
                (void)close(fd);
        else if (strcmp(argv[i], "pause") == 0)
            break;
    }
    for (;;)
        (void)pause();
}
