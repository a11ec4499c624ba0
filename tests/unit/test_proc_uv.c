/* The workers of an agent on a real loop. A scene runs in a process of its own (this program, started anew), with or
 * without a keeper; whatever it leaves behind is found by its mark. */
#include "expect.h"
#include "failmalloc.h"
#include "family.h"
#include "freezer.h"
#include "old_kernel.h"
#include "proc/group_parts_uv.h"
#include "proc/keeper.h"
#include "proc/signals_uv.h"
#include "pure.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 64, HANG_MS = 30000, GRACE_MS = 20000, LONG_MS = 20000, SLEEP_MS = 300 };

static char mark[128];
static const char *const environment[] = { mark, NULL };
static struct mu_startup startup;

struct scene {
    uv_loop_t loop;
    uv_timer_t alarm;
    struct mu_group *group;
    struct mu_spawn specs[WORKERS_MAX];
    const char *argv[WORKERS_MAX][3]; /* for scenes that make theirs as they go */
    size_t count;
    unsigned exits, stops, closes;
    int codes[WORKERS_MAX];
    char results[WORKERS_MAX][32];
    struct mu_stopped stopped;
    char left[256];
    bool inside; /* of a call from outside */
    int ends[2];
    struct muster_error error;
    uint64_t told_ms;
    int stop_at_exit; /* the signal */
    unsigned hangs;
    uint32_t hanging; /* the first of them */
};

#define ARGV(...)                                                                                                      \
    (const char *const[])                                                                                              \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }

static bool is_within(uint64_t value, uint64_t least, uint64_t most)
{
    return value >= least && value <= most;
}

static void on_alarm(uv_timer_t *timer)
{
    (void)timer;
    (void)fprintf(stderr, "the scene hangs\n");
    abort();
}

static void stop(struct scene *s, int signal, uint64_t grace_ms)
{
    s->inside = true;
    mu_group_stop(s->group, signal, grace_ms);
    s->inside = false;
}

static void on_exit_of(void *ctx, const struct mu_exit *exit)
{
    struct scene *s = ctx;

    EXPECT(!s->inside);
    EXPECT(s->stops == 0);
    EXPECT(s->codes[exit->rank] == 1000); /* once */
    EXPECT(exit->pid == mu_group_pid(s->group, exit->rank));
    EXPECT(s->group->workers[exit->rank].told);
    EXPECT(exit->wall_ms > 0);
    s->codes[exit->rank] = exit->code;
    (void)snprintf(s->results[exit->rank], sizeof s->results[0], "%.*s%s", (int)exit->result.len, exit->result.data,
                   exit->result_error != NULL ? "error" : "");
    s->exits++;
    s->told_ms = uv_hrtime() / 1000000;
    uv_stop(&s->loop);
    if (s->stop_at_exit != 0 && s->exits == 1)
        stop(s, s->stop_at_exit, GRACE_MS);
}

static void on_stopped(void *ctx, const struct mu_stopped *stopped)
{
    struct scene *s = ctx;

    EXPECT(!s->inside);
    s->stops++;
    s->stopped = *stopped;
    (void)snprintf(s->left, sizeof s->left, "%s", stopped->left);
    EXPECT(s->group->count == 0);
    uv_stop(&s->loop);
}

static void on_hang(void *ctx, const struct mu_hang *hang)
{
    struct scene *s = ctx;

    EXPECT(!s->inside);
    EXPECT(hang->pid == mu_group_pid(s->group, hang->rank));
    EXPECT(hang->state == 'D');
    EXPECT(strncmp(hang->comm, "test_worker", 11) == 0);
    if (s->hangs++ == 0)
        s->hanging = hang->rank;
    uv_stop(&s->loop);
}

static void on_closed(void *ctx)
{
    struct scene *s = ctx;

    s->closes++;
}

static void open_scene(struct scene *s, uint64_t hang_ms)
{
    struct mu_group_config config = { .startup = &startup,
                                      .on_exit = on_exit_of,
                                      .on_stopped = on_stopped,
                                      .hang_ms = hang_ms,
                                      .on_hang = on_hang,
                                      .ctx = s };

    *s = (struct scene){ .count = 0 };
    EXPECT(uv_loop_init(&s->loop) == 0);
    (void)uv_timer_init(&s->loop, &s->alarm);
    (void)uv_timer_start(&s->alarm, on_alarm, HANG_MS, 0);
    uv_unref((uv_handle_t *)&s->alarm);
    config.loop = &s->loop;
    EXPECT(mu_group_new(&config, &s->group, &s->error) == 0);
    EXPECT(pipe2(s->ends, O_CLOEXEC) == 0);
}

static void close_scene(struct scene *s)
{
    mu_group_close(s->group, on_closed, s);
    uv_close((uv_handle_t *)&s->alarm, NULL);
    EXPECT(uv_run(&s->loop, UV_RUN_DEFAULT) == 0);
    EXPECT(s->closes == 1);
    EXPECT(uv_loop_close(&s->loop) == 0);
    for (int i = 0; i < 2; i++)
        (void)close(s->ends[i]);
    EXPECT(family_count(mark) == 0);
    EXPECT(waitpid(-1, NULL, 0) == -1);
}

static void add(struct scene *s, const char *const *argv)
{
    struct mu_spawn *spec = &s->specs[s->count++];

    *spec = (struct mu_spawn){ .argv = argv, .envp = environment };
    spec->io[1] = (struct mu_stdio){ .type = MU_STDIO_FD, .fd = s->ends[1] };
}

static int start(struct scene *s)
{
    for (size_t i = 0; i < WORKERS_MAX; i++)
        s->codes[i] = 1000;
    s->exits = s->stops = 0;
    return mu_group_start(s->group, s->specs, s->count, &s->error);
}

static void await(struct scene *s, const char *expected, unsigned times)
{
    char line[64];

    for (unsigned i = 0; i < times; i++) {
        EXPECT(family_read_line(s->ends[0], line, sizeof line, LONG_MS));
        EXPECT(strcmp(line, expected) == 0);
    }
}

static void run_until_exits(struct scene *s, unsigned exits)
{
    while (s->exits < exits)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
}

static void run_until_stopped(struct scene *s)
{
    while (s->stops == 0)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    EXPECT(s->stops == 1);
}

static uint64_t stop_and_run(struct scene *s, int signal, uint64_t grace_ms)
{
    uint64_t since = uv_hrtime();

    stop(s, signal, grace_ms);
    run_until_stopped(s);
    return (uv_hrtime() - since) / 1000000;
}

/* ---- Scenes ---------------------------------------------------------------------------------------------------- */

static void workers_run_and_end(struct scene *s)
{
    add(s, ARGV(WORKER, "exit=0"));
    add(s, ARGV(WORKER, "exit=3"));
    add(s, ARGV(WORKER, "raise=11"));
    EXPECT(start(s) == 0);
    EXPECT(s->group->count == 3);
    run_until_exits(s, 3);
    EXPECT(s->codes[0] == 0);
    EXPECT(s->codes[1] == 3);
    EXPECT(s->codes[2] == -11);
    EXPECT(stop_and_run(s, SIGTERM, GRACE_MS) < 500);
    EXPECT((s->stopped.left_count + s->stopped.killed_count) == 0);
    EXPECT(strcmp(s->left, "") == 0);
}

/* Of those that do not end a process by default there are few. */
static bool is_deadly(int number)
{
    static const int others[] = { SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH };

    for (size_t i = 0; i < COUNT(others); i++) {
        if (number == others[i])
            return false;
    }
    return number < 32 || number >= SIGRTMIN; /* between them are libc's own */
}

static void every_way_to_end_is_told(struct scene *s)
{
    static char words[512][24];
    int expected[WORKERS_MAX];

    for (int end = 0; end < 256 + SIGRTMAX;) { /* codes, then signals */
        s->count = 0;
        for (; end < 256 + SIGRTMAX && s->count < WORKERS_MAX; end++) {
            int number = end < 256 ? end : end - 255;

            if (end >= 256 && !is_deadly(number))
                continue;
            (void)snprintf(words[end], sizeof words[0], end < 256 ? "exit=%d" : "raise=%d", number);
            expected[s->count] = end < 256 ? number : -number;
            add(s, NULL);
            s->argv[s->count - 1][0] = WORKER;
            s->argv[s->count - 1][1] = words[end];
            s->specs[s->count - 1].argv = s->argv[s->count - 1];
        }
        EXPECT(start(s) == 0);
        run_until_exits(s, (unsigned)s->count);
        for (size_t i = 0; i < s->count; i++)
            EXPECT(s->codes[i] == expected[i]);
        (void)stop_and_run(s, SIGTERM, GRACE_MS);
    }
}

static void a_dead_worker_keeps_its_pid_until_the_stop(struct scene *s)
{
    siginfo_t info;
    pid_t pid;

    add(s, ARGV(WORKER, "exit=0"));
    EXPECT(start(s) == 0);
    pid = mu_group_pid(s->group, 0);
    EXPECT(!s->group->workers[0].told);
    EXPECT(mu_group_owns(s->group, pid));
    EXPECT(!mu_group_owns(s->group, getpid()));
    run_until_exits(s, 1);
    EXPECT(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG) == 0);
    EXPECT(mu_group_signal(s->group, 0, SIGTERM) == 0);
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
    EXPECT(mu_group_pid(s->group, 0) == 0);
    EXPECT(mu_group_signal(s->group, 0, SIGTERM) == -ESRCH);
    EXPECT(!mu_group_owns(s->group, pid));
}

static void a_stop_is_the_given_signal(struct scene *s)
{
    add(s, ARGV(WORKER, "say=up", "pause"));
    add(s, ARGV(WORKER, "say=up", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 2);
    EXPECT(stop_and_run(s, SIGINT, GRACE_MS) < 2000);
    EXPECT(s->exits == 2);
    EXPECT(s->codes[0] == -SIGINT);
    EXPECT(s->codes[1] == -SIGINT);
}

static void whoever_ignores_it_is_killed_after_the_grace(struct scene *s)
{
    uint64_t took_ms;

    add(s, ARGV(WORKER, "ignore=15", "say=up", "pause"));
    add(s, ARGV(WORKER, "ignore=15", "fork", "say=up", "pause"));
    add(s, ARGV(WORKER, "say=up", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 3);
    took_ms = stop_and_run(s, SIGTERM, 100);
    EXPECT(is_within(took_ms, 100, 5000));
    EXPECT(s->codes[0] == -SIGKILL);
    EXPECT(s->codes[1] == -SIGKILL);
    EXPECT(s->codes[2] == -SIGTERM);
    EXPECT(s->stopped.killed_count == 1); /* what the second had forked */
}

static void no_grace_is_quick(struct scene *s)
{
    add(s, ARGV(WORKER, "ignore=15", "say=up", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 1);
    EXPECT(stop_and_run(s, SIGTERM, 0) < 900);
}

static void a_stopped_worker_hears_the_signal(struct scene *s)
{
    add(s, ARGV(WORKER, "say=up", "stop", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 1);
    while (true) {
        struct mu_child child;

        EXPECT(mu_child_read(MU_PROC_ROOT, mu_group_pid(s->group, 0), &child));
        if (child.state == 'T')
            break;
    }
    EXPECT(stop_and_run(s, SIGTERM, GRACE_MS) < 2000);
    EXPECT(s->codes[0] == -SIGTERM);
}

static void closed_outputs_are_no_end(struct scene *s)
{
    add(s, ARGV(WORKER, "say=up", "close", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 1);
    (void)uv_run(&s->loop, UV_RUN_NOWAIT);
    EXPECT(s->exits == 0);
    EXPECT(!s->group->workers[0].told);
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
    EXPECT(s->codes[0] == -SIGTERM);
}

static void a_tracker_cleans_up_after_its_worker(struct scene *s)
{
    char file[64], word[80];

    (void)snprintf(file, sizeof file, "/tmp/muster-test-%d", (int)getpid());
    (void)snprintf(word, sizeof word, "tracker=%s", file);
    for (int stubborn = 0; stubborn < 2; stubborn++) {
        const char *const *argv = ARGV(WORKER, word, stubborn ? "ignore=15" : "ignore=10", "say=up", "pause");

        s->count = 0;
        add(s, argv);
        EXPECT(start(s) == 0);
        await(s, "up", 1);
        EXPECT(access(file, F_OK) == 0);
        EXPECT(stop_and_run(s, SIGTERM, stubborn ? 50 : GRACE_MS) < 900);
        EXPECT(access(file, F_OK) == -1);
        EXPECT(s->stopped.killed_count == 0);
    }
}

static void kill_is_at_once(struct scene *s)
{
    uint64_t since;

    add(s, ARGV(WORKER, "ignore=15", "fork", "say=up", "pause"));
    add(s, ARGV(WORKER, "ignore=15", "say=up", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 2);
    since = uv_hrtime();
    mu_group_kill(s->group);
    run_until_stopped(s);
    EXPECT((uv_hrtime() - since) / 1000000 < 900);
    EXPECT(s->codes[0] == -SIGKILL);
}

static void kill_ends_a_grace(struct scene *s)
{
    add(s, ARGV(WORKER, "ignore=15", "say=up", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 1);
    stop(s, SIGTERM, 600000);
    mu_group_kill(s->group);
    run_until_stopped(s);
    EXPECT(s->codes[0] == -SIGKILL);
}

static void a_second_stop_is_not_the_later_one(struct scene *s)
{
    add(s, ARGV(WORKER, "ignore=15", "ignore=2", "say=up", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 1);
    stop(s, SIGTERM, 50);
    stop(s, SIGINT, 600000);
    run_until_stopped(s);
    EXPECT(s->codes[0] == -SIGKILL);
}

static void a_callback_may_stop_and_start(struct scene *s)
{
    s->stop_at_exit = SIGTERM;
    add(s, ARGV(WORKER, "say=up", "pause"));
    add(s, ARGV(WORKER, "say=up", "exit=1"));
    for (int i = 0; i < 20; i++) {
        EXPECT(start(s) == 0);
        run_until_stopped(s);
        EXPECT(s->exits == 2);
        EXPECT(s->codes[0] == -SIGTERM);
        EXPECT(s->codes[1] == 1);
    }
}

static void one_that_cannot_be_started_is_said_and_the_rest_can_be_stopped(struct scene *s)
{

    add(s, ARGV(WORKER, "pause"));
    add(s, ARGV("/nowhere/prog"));
    add(s, ARGV(WORKER, "pause"));
    for (size_t i = 0; i < WORKERS_MAX; i++)
        s->codes[i] = 1000;
    EXPECT(mu_group_start(s->group, s->specs, s->count, &s->error) == MUSTER_ESYSTEM);
    EXPECT(s->error.errnum == ENOENT);
    EXPECT(strcmp(s->error.text, "local rank 1: start '/nowhere/prog': No such file or directory") == 0);
    EXPECT(s->group->count == 1);
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
    EXPECT(s->exits == 1);
}

static void an_empty_group_can_be_stopped(struct scene *s)
{
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
    EXPECT(s->exits == 0);
}

static int answer(void *ctx, struct mu_buf *result)
{
    if (ctx == NULL)
        (void)raise(SIGKILL);
    (void)mu_buf_append(result, ctx, strlen(ctx), 100);
    return 5;
}

static int answer_much(void *ctx, struct mu_buf *result)
{
    size_t len = 1 << 20;

    (void)ctx;
    if (mu_buf_reserve(result, len, len) < 0)
        return 1;
    memset(result->data, 'x', len);
    result->len = len;
    return 0;
}

static void functions_give_back_bytes(struct scene *s)
{
    s->specs[0] = (struct mu_spawn){ .function = answer, .function_ctx = (void *)(uintptr_t) "forty-two" };
    s->specs[1] = (struct mu_spawn){ .function = answer, .envp = environment };
    s->specs[2] = (struct mu_spawn){ .function = answer_much, .envp = environment };
    s->count = 3;
    EXPECT(start(s) == 0);
    run_until_exits(s, 3);
    EXPECT(s->codes[0] == 5);
    EXPECT(strcmp(s->results[0], "forty-two") == 0);
    EXPECT(s->codes[1] == -SIGKILL);
    EXPECT(strcmp(s->results[1], "error") == 0);
    EXPECT(s->codes[2] == 0);
    EXPECT(strlen(s->results[2]) == 31);
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
}

static void many_workers_at_once(struct scene *s)
{
    const char *const *argv = ARGV(WORKER, "say=up", "pause");

    for (int i = 0; i < WORKERS_MAX; i++)
        add(s, argv);
    EXPECT(start(s) == 0);
    await(s, "up", WORKERS_MAX);
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
    EXPECT(s->exits == WORKERS_MAX);
}

/* Nobody is told of what the loop did not get to know; nothing is left either. */
static void no_memory_is_an_error_and_all_can_be_stopped(struct scene *s)
{
    add(s, ARGV(WORKER, "pause"));
    add(s, ARGV(WORKER, "pause"));
    FOR_EACH_FAILURE (n) {
        bool hit;
        int rc = start(s);

        hit = fail_alloc_hit();
        fail_alloc_at(0);
        if (!hit)
            EXPECT(rc == 0);
        (void)stop_and_run(s, SIGTERM, GRACE_MS);
        if (!hit)
            break;
    }
    fail_alloc_at(0);
}

/* Guarded only. */

static void what_workers_detach_is_ended_with_them(struct scene *s)
{
    add(s, ARGV(WORKER, "detach", "chain=4", "say=up", "pause"));
    add(s, ARGV(WORKER, "detach", "fork", "say=up", "exit=0"));
    EXPECT(start(s) == 0);
    await(s, "up", 2);
    EXPECT(family_wait(mark, 8, LONG_MS));
    (void)stop_and_run(s, SIGTERM, 100);
    EXPECT(s->stopped.left_count == 0);
    EXPECT(s->stopped.killed_count >= 3);
}

static void who_has_lost_its_first_thread_is_ended_too(struct scene *s)
{
    add(s, ARGV(WORKER, "headless", "pause"));
    EXPECT(start(s) == 0);
    await(s, "headless", 1);
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
    EXPECT(s->stopped.left_count == 0);
    EXPECT(s->stopped.killed_count == 1);
}

/* It cannot be reaped before its tracer has heard of its end, and the tracer does not listen. */
static void who_is_traced_keeps_nobody_from_the_end(struct scene *s)
{
    struct mu_children list = { 0 };
    struct mu_pids worker = { 0 };
    pid_t tracer, pid, orphan = 0;
    int ends[2];
    char byte;

    add(s, ARGV(WORKER, "detach", "say=up", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 1);
    pid = mu_group_pid(s->group, 0);
    worker = (struct mu_pids){ .items = &pid, .count = 1 };
    for (int i = 0; i < 5000 && orphan == 0; i++) {
        EXPECT(mu_children_list(&list, MU_PROC_ROOT, getpid(), true, &worker, NULL) == 0);
        orphan = list.count == 1 ? list.items[0].pid : 0;
        (void)usleep(1000);
    }
    EXPECT(orphan != 0);
    mu_children_done(&list);
    EXPECT(pipe2(ends, O_CLOEXEC) == 0);
    tracer = fork();
    if (tracer == 0) {
        byte = ptrace(PTRACE_SEIZE, orphan, NULL, NULL) == 0 ? 'y' : 'n';
        (void)!write(ends[1], &byte, 1);
        for (;;)
            (void)pause();
    }
    EXPECT(read(ends[0], &byte, 1) == 1);
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
    EXPECT(s->stopped.left_count == 0);
    EXPECT(byte == 'n' || waitpid(orphan, NULL, WNOHANG) == 0);
    EXPECT(kill(tracer, SIGKILL) == 0);
    EXPECT(waitpid(tracer, NULL, 0) == tracer);
    EXPECT(byte == 'n' || waitpid(orphan, NULL, 0) == orphan);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void what_a_success_leaves_is_ended_too(struct scene *s)
{
    add(s, ARGV(WORKER, "detach", "say=up", "exit=0"));
    EXPECT(start(s) == 0);
    run_until_exits(s, 1);
    EXPECT(s->codes[0] == 0);
    EXPECT(is_within(stop_and_run(s, SIGTERM, 0), 900, 5000));
    EXPECT(s->stopped.killed_count == 1);
}

static void adopted_orphans_are_reaped_while_workers_run(struct scene *s)
{
    struct mu_children list = { 0 };

    add(s, ARGV("/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (true &); done; echo up; exec sleep 100"));
    s->specs[0].envp = ARGV("PATH=/bin:/usr/bin", mark);
    EXPECT(start(s) == 0);
    await(s, "up", 1);
    for (int i = 0; i < 5000; i++) {
        EXPECT(mu_children_list(&list, MU_PROC_ROOT, getpid(), true, NULL, NULL) == 0);
        if (list.count == 1)
            break;
        (void)uv_run(&s->loop, UV_RUN_NOWAIT);
        (void)usleep(1000);
    }
    EXPECT(list.count == 1);
    mu_children_done(&list);
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
}

static void somebody_elses_child_is_left_alone(struct scene *s)
{
    pid_t pid = fork();

    if (pid == 0) {
        for (;;)
            (void)pause();
    }
    add(s, ARGV(WORKER, "detach", "say=up", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 1);
    (void)stop_and_run(s, SIGTERM, 100);
    EXPECT(s->stopped.left_count == 0);
    EXPECT(kill(pid, SIGKILL) == 0);
    EXPECT(waitpid(pid, NULL, 0) == pid); /* and it is ours to reap */
}

/* ---- Several groups ---- */

static bool orphan_is_there(pid_t worker)
{
    struct mu_pids skip = { .items = &worker, .count = 1 };
    struct mu_children list = { 0 };
    bool there;

    EXPECT(mu_children_list(&list, MU_PROC_ROOT, getpid(), true, &skip, NULL) == 0);
    there = list.count > 0;
    mu_children_done(&list);
    return there;
}

static void close_second(struct scene *t)
{
    mu_group_close(t->group, on_closed, t);
    uv_close((uv_handle_t *)&t->alarm, NULL);
    EXPECT(uv_run(&t->loop, UV_RUN_DEFAULT) == 0);
    EXPECT(uv_loop_close(&t->loop) == 0);
    for (int i = 0; i < 2; i++)
        (void)close(t->ends[i]);
}

/* What one of them detached could be either's: it lives as long as one of them has workers. */
static void a_group_leaves_alone_what_may_be_anothers(struct scene *s)
{
    struct scene t;
    pid_t worker;

    open_scene(&t, 0);
    add(&t, ARGV(WORKER, "detach", "fork", "say=up", "pause"));
    add(s, ARGV(WORKER, "detach", "fork", "say=up", "pause"));
    EXPECT(start(&t) == 0);
    await(&t, "up", 1);
    EXPECT(start(s) == 0);
    await(s, "up", 1);
    EXPECT(family_wait(mark, 6, LONG_MS));
    worker = mu_group_pid(t.group, 0);
    (void)stop_and_run(s, SIGTERM, 0);
    EXPECT(s->stopped.left_count == 0);
    EXPECT(family_wait(mark, 4, LONG_MS)); /* t's worker and its child, and both that were detached */
    EXPECT(kill(worker, 0) == 0 && orphan_is_there(worker));
    (void)uv_run(&t.loop, UV_RUN_NOWAIT);
    EXPECT(t.exits == 0);
    (void)stop_and_run(&t, SIGTERM, 0);
    EXPECT(t.stopped.left_count == 0 && t.stopped.killed_count >= 2);
    EXPECT(t.codes[0] == -SIGTERM);
    EXPECT(family_count(mark) == 0);
    close_second(&t);
}

enum { CYCLES = 200 };

static void start_and_stop_many_times(struct scene *t)
{
    static const char *const numbers[] = { "exit=11", "exit=22", "exit=33", "exit=44" };
    static const int codes[] = { 11, 22, 33, 44 };
    char line[64];

    for (unsigned i = 0; i < CYCLES; i++) {
        (void)uv_timer_start(&t->alarm, on_alarm, HANG_MS, 0);
        t->count = 0;
        add(t, ARGV(WORKER, numbers[i % 4]));
        add(t, ARGV(WORKER, mu_guarded() && i % 64 == 0 ? "detach" : "say=ready", "say=up", "pause"));
        EXPECT(start(t) == 0);
        while (family_read_line(t->ends[0], line, sizeof line, LONG_MS) && strcmp(line, "up") != 0)
            continue;
        run_until_exits(t, 1);
        (void)stop_and_run(t, SIGTERM, GRACE_MS);
        EXPECT(t->exits == 2);
        EXPECT(t->codes[0] == codes[i % 4]);
        EXPECT(t->codes[1] == -SIGTERM);
    }
}

static void *be_the_second(void *arg)
{
    struct scene t;

    (void)arg;
    open_scene(&t, 0);
    start_and_stop_many_times(&t);
    close_second(&t);
    return NULL;
}

static void every_group_of_a_process_gets_its_own_exit_codes(struct scene *s)
{
    pthread_t thread;

    EXPECT(pthread_create(&thread, NULL, be_the_second, NULL) == 0);
    start_and_stop_many_times(s);
    EXPECT(pthread_join(thread, NULL) == 0);
}

static void the_unkillable_are_named_and_who_is_below_them_is_killed(struct scene *s)
{
    char text[32];
    size_t count;

    if (!freezer_make())
        return; /* not here; the pure machine is tested everywhere */
    add(s, ARGV(WORKER, "say=up", "pause"));
    add(s, ARGV(WORKER, "chain=3", "fork", "say=up", "pause"));
    EXPECT(start(s) == 0);
    await(s, "up", 2);
    EXPECT(family_wait(mark, 6, LONG_MS));
    EXPECT(freezer_freeze(mu_group_pid(s->group, 1)));
    (void)snprintf(text, sizeof text, "%d (test_worker, state D)", (int)mu_group_pid(s->group, 1));

    (void)stop_and_run(s, SIGTERM, 0);
    count = family_count(mark);
    EXPECT(freezer_thaw()); /* before anything can fail */
    EXPECT(s->exits == 1);
    EXPECT(s->stopped.left_count == 1);
    EXPECT(strstr(s->left, "state D)") != NULL && atoi(s->left) == atoi(text));
    EXPECT(count == 1);
    EXPECT(waitpid((pid_t)atoi(text), NULL, 0) == ((pid_t)atoi(text)));
    while (waitpid(-1, NULL, 0) > 0) { /* its children, who were dead before it */
    }
    freezer_end();
}

/* A set-user-id program that has become root for good. The keeper above us is root and ends it. */
static void what_is_not_ours_to_kill_is_named(struct scene *s)
{
    char copy[64], command[200];

    if (geteuid() != 0 || getenv("MUSTER_TEST_OLD_KERNEL") != NULL) /* seccomp ignores the set-user-id bit */
        return;
    (void)snprintf(copy, sizeof copy, "/tmp/muster-test-suid-%d", (int)getpid());
    (void)snprintf(command, sizeof command, "cp '%s' '%s' && chmod 4755 '%s'", WORKER, copy, copy);
    EXPECT(system(command) == 0);
    add(s, ARGV(copy, "root", "say=up", "pause"));
    add(s, ARGV(WORKER, "say=up", "pause"));
    EXPECT(setresuid(65534, 65534, 0) == 0); /* root once more, to remove the copy */
    EXPECT(start(s) == 0);
    await(s, "up", 2);
    EXPECT(seteuid(0) == 0 && unlink(copy) == 0 && setresuid(65534, 65534, 65534) == 0);
    EXPECT(mu_group_signal(s->group, 0, SIGTERM) == -EPERM);
    (void)stop_and_run(s, SIGTERM, 10);
    EXPECT(s->exits == 1);
    EXPECT(s->stopped.left_count == 1);
    EXPECT(strstr(s->left, "not permitted") != NULL);
    _exit(0);
}

/* ---- How scenes are run ---------------------------------------------------------------------------------------- */

static void one_that_hangs_in_the_kernel_is_told_of(struct scene *s)
{
    add(s, ARGV(WORKER, "say=up", "pause"));
    add(s, ARGV(WORKER, "say=up", "hang"));
    EXPECT(start(s) == 0);
    await(s, "up", 2);
    while (s->hangs == 0)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    EXPECT(s->hanging == 1);
    (void)stop_and_run(s, SIGTERM, GRACE_MS);
    EXPECT(s->hangs == 1);
    EXPECT(s->exits == 2);
    EXPECT(s->codes[1] == -SIGTERM);
}

struct play {
    const char *name;
    void (*scene)(struct scene *s);
    bool guarded, unguarded;
    uint64_t hang_ms;
};

static int act(const struct play *play, bool guarded)
{
    struct scene s;
    int fd;

    EXPECT(!guarded || mu_keeper_run(&startup, "test", &fd, NULL) == 0);
    family_mark(mark, sizeof mark);
    open_scene(&s, play->hang_ms);
    EXPECT(s.group->guarded == guarded);
    play->scene(&s);
    close_scene(&s);
    return 0;
}

static void perform(void **state)
{
    const struct play *play = *state;

    for (int guarded = 0; guarded < 2; guarded++) {
        if (!(guarded ? play->guarded : play->unguarded))
            continue;
        if (expect_run(ARGV("test_proc_uv", play->name, guarded ? "guarded" : "alone")) != 0)
            fail_msg("%s a keeper", guarded ? "with" : "without");
    }
}

#define BOTH(name)                                                                                                     \
    {                                                                                                                  \
#name, name, true, true, 0                                                                                     \
    }
#define GUARDED(name)                                                                                                  \
    {                                                                                                                  \
#name, name, true, false, 0                                                                                    \
    }

#define HANGING(name)                                                                                                  \
    {                                                                                                                  \
#name, name, true, true, SLEEP_MS                                                                              \
    }

static struct play plays[] = {
    BOTH(workers_run_and_end),
    BOTH(every_way_to_end_is_told),
    BOTH(a_dead_worker_keeps_its_pid_until_the_stop),
    BOTH(a_stop_is_the_given_signal),
    BOTH(whoever_ignores_it_is_killed_after_the_grace),
    BOTH(no_grace_is_quick),
    BOTH(a_stopped_worker_hears_the_signal),
    BOTH(closed_outputs_are_no_end),
    BOTH(a_tracker_cleans_up_after_its_worker),
    BOTH(kill_is_at_once),
    BOTH(kill_ends_a_grace),
    BOTH(a_second_stop_is_not_the_later_one),
    BOTH(a_callback_may_stop_and_start),
    BOTH(one_that_cannot_be_started_is_said_and_the_rest_can_be_stopped),
    BOTH(an_empty_group_can_be_stopped),
    BOTH(functions_give_back_bytes),
    BOTH(many_workers_at_once),
    BOTH(no_memory_is_an_error_and_all_can_be_stopped),
    HANGING(one_that_hangs_in_the_kernel_is_told_of),
    GUARDED(what_workers_detach_is_ended_with_them),
    GUARDED(who_has_lost_its_first_thread_is_ended_too),
    GUARDED(who_is_traced_keeps_nobody_from_the_end),
    GUARDED(what_a_success_leaves_is_ended_too),
    GUARDED(adopted_orphans_are_reaped_while_workers_run),
    GUARDED(somebody_elses_child_is_left_alone),
    GUARDED(a_group_leaves_alone_what_may_be_anothers),
    BOTH(every_group_of_a_process_gets_its_own_exit_codes),
    GUARDED(the_unkillable_are_named_and_who_is_below_them_is_killed),
    GUARDED(what_is_not_ours_to_kill_is_named),
};

int main(int argc, char **argv)
{
    struct CMUnitTest tests[COUNT(plays)];

    (void)signal(SIGPIPE, SIG_DFL);
    mu_startup_take(&startup);
    startup.ignored = 0; /* whatever runs the tests ignores is not the point */
    old_kernel_if_asked();
    for (size_t i = 0; i < COUNT(plays); i++) {
        if (argc == 3 && strcmp(argv[1], plays[i].name) == 0)
            return act(&plays[i], strcmp(argv[2], "guarded") == 0);
        tests[i] = (struct CMUnitTest){ .name = plays[i].name, .test_func = perform, .initial_state = &plays[i] };
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
