/* Starting one worker: what it gets, what it does not get, and what is said when it cannot be started. */
#include "failmalloc.h"
#include "family.h"
#include "old_kernel.h"
#include "proc/spawn.h"
#include "pure.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG_MS = 20000 };

static struct mu_startup startup; /* as it was before main() did anything */

struct scene {
    struct mu_spawned spawned;
    struct muster_error error;
    int ends[2];
    char dir[64], path[128], line[512];
};

static int status_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#define ARGV(...)                                                                                                      \
    (const char *const[])                                                                                              \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }

/* With its stdout in our pipe. */
static int start(struct scene *s, const char *const *argv)
{
    struct mu_spawn spec = { .argv = argv, .io = { [1] = { .type = MU_STDIO_FD, .fd = s->ends[1] } } };

    return mu_spawn_start(&spec, &startup, &s->spawned, &s->error);
}

static const char *line(struct scene *s)
{
    assert_true(family_read_line(s->ends[0], s->line, sizeof s->line, LONG_MS));
    return s->line;
}

static void a_worker_leads_a_session_dies_with_us_and_has_three_descriptors(void **state)
{
    struct scene *s = *state;
    char expected[256];
    int extra[40];

    for (size_t i = 0; i < COUNT(extra); i++)
        extra[i] = fcntl(s->ends[0], F_DUPFD, 100 + (int)i * 7);
    (void)snprintf(expected, sizeof expected,
                   "leader=1 session=1 death=9 umask=%o nofile=%ld mask= ignored= fds=0,1,2,", (unsigned)startup.umask,
                   (long)startup.nofile_soft);
    assert_int_equal(start(s, ARGV(WORKER, "report", "exit=0")), 0);
    assert_string_equal(line(s), expected);
    assert_int_equal(status_of(s->spawned.pid), 0);
    assert_int_equal(s->spawned.result_fd, -1);
    for (size_t i = 0; i < COUNT(extra); i++)
        (void)close(extra[i]);
}

static void ignore(int signal)
{
    (void)signal;
}

static void a_worker_gets_back_what_we_were_started_with(void **state)
{
    struct scene *s = *state;
    struct mu_startup before = startup;
    struct rlimit limit, old;
    sigset_t mask, old_mask;
    mode_t old_umask = umask(0);

    startup.ignored = UINT64_C(1) << (SIGUSR1 - 1) | UINT64_C(1) << (SIGPIPE - 1);
    startup.umask = 037;
    startup.nofile_soft = 77;
    (void)sigaddset(&startup.mask, SIGUSR2);
    /* We have become something else since. */
    (void)signal(SIGUSR1, ignore);
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &mask, &old_mask);
    (void)getrlimit(RLIMIT_NOFILE, &old);
    limit = old;
    limit.rlim_cur = 555;
    (void)setrlimit(RLIMIT_NOFILE, &limit);

    assert_int_equal(start(s, ARGV(WORKER, "report", "exit=0")), 0);
    (void)snprintf(s->path, sizeof s->path,
                   "leader=1 session=1 death=9 umask=37 nofile=77 mask=%d, ignored=%d, fds=0,1,2,", SIGUSR2, SIGUSR1);
    assert_string_equal(line(s), s->path);
    assert_int_equal(status_of(s->spawned.pid), 0);

    (void)setrlimit(RLIMIT_NOFILE, &old);
    (void)sigprocmask(SIG_SETMASK, &old_mask, NULL);
    (void)signal(SIGUSR1, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)umask(old_umask);
    startup = before;
}

static void without_a_startup_it_gets_what_we_have(void **state)
{
    struct scene *s = *state;
    struct mu_spawn spec = { .argv = ARGV(WORKER, "report", "exit=0"),
                             .io = { [1] = { .type = MU_STDIO_FD, .fd = s->ends[1] } } };

    (void)signal(SIGUSR1, SIG_IGN);
    (void)signal(SIGUSR2, ignore);
    assert_int_equal(mu_spawn_start(&spec, NULL, &s->spawned, &s->error), 0);
    (void)signal(SIGUSR1, SIG_DFL);
    (void)signal(SIGUSR2, SIG_DFL);
    (void)snprintf(s->path, sizeof s->path, " ignored=%d, fds=0,1,2,", SIGUSR1);
    assert_non_null(strstr(line(s), s->path));
    assert_int_equal(status_of(s->spawned.pid), 0);
}

static int read_own_oom_score(void)
{
    FILE *file = fopen("/proc/self/oom_score_adj", "re");
    int score = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d", &score), 1);
    (void)fclose(file);
    return score;
}

static bool set_own_oom_score(int score)
{
    FILE *file = fopen("/proc/self/oom_score_adj", "we");

    return file != NULL && (fprintf(file, "%d", score) > 0) + (fclose(file) == 0) == 2;
}

/* In a process of its own: not everybody may lower it again. */
static void when_memory_runs_out_the_kernel_takes_workers_first(void **state)
{
    static const int scores[] = { -1000, -150, -100, -7, 0, 3, 250, 899, 900, 901, 1000 };
    struct scene *s = *state;
    int before = read_own_oom_score();

    for (size_t i = 0; i < COUNT(scores); i++) {
        int expected = scores[i] + MU_SPAWN_OOM_SCORE < 1000 ? scores[i] + MU_SPAWN_OOM_SCORE : 1000;
        pid_t pid = fork();

        if (pid == 0) {
            if (scores[i] < before && !set_own_oom_score(scores[i]))
                _exit(77); /* takes privileges */
            if (scores[i] >= before && !set_own_oom_score(scores[i]))
                _exit(76);
            if (start(s, ARGV("/bin/cat", "/proc/self/oom_score_adj")) < 0)
                _exit(75);
            _exit(atoi(line(s)) == expected && status_of(s->spawned.pid) == 0 && read_own_oom_score() == scores[i] ? 0
                                                                                                                   : 1);
        }
        switch (status_of(pid)) {
        case 0:
        case 77:
            break;
        default:
            fail_msg("with %d", scores[i]);
        }
    }
}

static void workers_start_in_containers_that_forbid_a_table_of_descriptors(void **state)
{
    struct scene *s = *state;
    pid_t pid = fork();

    if (pid == 0) {
        old_container();
        for (int i = 0; i < 2; i++) {
            if (start(s, ARGV(WORKER, "report", "exit=0")) < 0 || status_of(s->spawned.pid) != 0 ||
                strstr(line(s), " fds=0,1,2,") == NULL)
                _exit(1);
        }
        _exit(0);
    }
    assert_int_equal(status_of(pid), 0);
}

static void write_script(struct scene *s, const char *name, const char *text, mode_t mode)
{
    FILE *file;

    (void)snprintf(s->path, sizeof s->path, "%s/%s", s->dir, name);
    file = fopen(s->path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(s->path, mode), 0);
}

static void what_cannot_be_started_is_said_with_its_reason(void **state)
{
    struct scene *s = *state;

    assert_int_equal(start(s, ARGV("/nowhere/at/all")), MUSTER_ESYSTEM);
    assert_int_equal(s->error.errnum, ENOENT);
    assert_string_equal(s->error.text, "start '/nowhere/at/all': No such file or directory");

    assert_int_equal(start(s, ARGV("nosuchprogram")), MUSTER_ESYSTEM);
    assert_int_equal(s->error.errnum, ENOENT);
    assert_string_equal(s->error.text, "start 'nosuchprogram': look it up in PATH: No such file or directory");

    write_script(s, "script", "#!/bin/sh\n", 0600);
    assert_int_equal(start(s, ARGV(s->path)), MUSTER_ESYSTEM);
    assert_int_equal(s->error.errnum, EACCES);
    assert_non_null(strstr(s->error.text, "script': Permission denied"));

    write_script(s, "script", "#!/no/such/interpreter\n", 0700);
    assert_int_equal(start(s, ARGV(s->path)), MUSTER_ESYSTEM);
    assert_int_equal(s->error.errnum, ENOENT);
    assert_non_null(strstr(s->error.text, "its interpreter"));

    write_script(s, "script", "nothing\n", 0700);
    assert_int_equal(start(s, ARGV(s->path)), MUSTER_ESYSTEM);
    assert_int_equal(s->error.errnum, ENOEXEC);

    assert_int_equal(start(s, ARGV("/")), MUSTER_ESYSTEM);
    assert_int_equal(s->error.errnum, EACCES);
    assert_int_equal(start(s, ARGV("")), MUSTER_ESYSTEM);
    assert_int_equal(s->error.errnum, ENOENT);
    assert_int_equal(waitpid(-1, NULL, 0), -1); /* nobody is left of all these */
    assert_int_equal(errno, ECHILD);
}

static void the_path_is_searched_as_the_workers_environment_says(void **state)
{
    struct scene *s = *state;
    char path[300];
    struct mu_spawn spec = { .argv = ARGV("prog", "x"),
                             .envp = ARGV(path),
                             .io = { [1] = { .type = MU_STDIO_FD, .fd = s->ends[1] } } };
    int before;

    write_script(s, "prog", "#!/bin/sh\necho $0 $1\n", 0700);
    (void)snprintf(path, sizeof path, "PATH=/nowhere:%s/prog:%s:/bin", s->dir, s->dir);
    assert_int_equal(mu_spawn_start(&spec, &startup, &s->spawned, &s->error), 0);
    assert_string_equal(line(s) + strlen(s->dir), "/prog x");
    assert_int_equal(status_of(s->spawned.pid), 0);

    /* One that may not be used is passed over, but told of if there is no other. */
    assert_int_equal(chmod(s->path, 0600), 0);
    assert_int_equal(mu_spawn_start(&spec, &startup, &s->spawned, &s->error), MUSTER_ESYSTEM);
    assert_int_equal(s->error.errnum, EACCES);

    (void)snprintf(path, sizeof path, "PATH="); /* the directory it is started in */
    assert_int_equal(chmod(s->path, 0700), 0);
    before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(chdir(s->dir), 0);
    assert_int_equal(mu_spawn_start(&spec, &startup, &s->spawned, &s->error), 0);
    assert_int_equal(fchdir(before), 0);
    (void)close(before);
    assert_string_equal(line(s), "prog x");
    assert_int_equal(status_of(s->spawned.pid), 0);
    spec.argv = ARGV("true");
    (void)snprintf(path, sizeof path, "HOME=/"); /* no PATH at all */
    assert_int_equal(mu_spawn_start(&spec, &startup, &s->spawned, &s->error), 0);
    assert_int_equal(status_of(s->spawned.pid), 0);
}

static void streams_go_where_they_are_sent(void **state)
{
    struct scene *s = *state;
    struct mu_spawn spec = {
        .argv = ARGV("/bin/sh", "-c", "cat; echo err >&2"),
        .io = { { .type = MU_STDIO_FD }, { .type = MU_STDIO_FD, .fd = s->ends[1] }, { .type = MU_STDIO_FD } }
    };
    char err[128], text[32] = "";

    write_script(s, "in", "from a file\n", 0600);
    (void)snprintf(err, sizeof err, "%s/err", s->dir);
    spec.io[0].fd = open(s->path, O_RDONLY | O_CLOEXEC);
    spec.io[2].fd = open(err, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(mu_spawn_start(&spec, &startup, &s->spawned, &s->error), 0);
    assert_string_equal(line(s), "from a file");
    assert_int_equal(status_of(s->spawned.pid), 0);
    assert_int_equal(pread(spec.io[2].fd, text, sizeof text, 0), 4); /* they stay open on our side */
    assert_string_equal(text, "err\n");
    assert_int_equal(close(spec.io[0].fd), 0);
    assert_int_equal(close(spec.io[2].fd), 0);
}

/* stdout on 2 and stderr on 1: each has to make room for the other. */
static void streams_can_change_places(void **state)
{
    struct scene *s = *state;
    struct mu_spawn spec = { .argv = ARGV("/bin/sh", "-c", "echo out; echo err >&2"),
                             .io = { [1] = { .type = MU_STDIO_FD, .fd = 2 }, [2] = { .type = MU_STDIO_FD, .fd = 1 } } };
    int saved[3], err[2];

    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    (void)fflush(NULL);
    for (int i = 1; i < 3; i++)
        saved[i] = fcntl(i, F_DUPFD_CLOEXEC, 3);
    (void)dup2(s->ends[1], 1);
    (void)dup2(err[1], 2);
    assert_int_equal(mu_spawn_start(&spec, &startup, &s->spawned, &s->error), 0);
    for (int i = 1; i < 3; i++) {
        (void)dup2(saved[i], i);
        (void)close(saved[i]);
    }
    assert_string_equal(line(s), "err");
    assert_true(family_read_line(err[0], s->line, sizeof s->line, LONG_MS));
    assert_string_equal(s->line, "out");
    assert_int_equal(status_of(s->spawned.pid), 0);
    (void)close(err[0]);
    (void)close(err[1]);
}

static void every_exit_code_and_deadly_signal_comes_through(void **state)
{
    struct scene *s = *state;
    char word[32];

    for (int i = 0; i < 256; i++) {
        (void)snprintf(word, sizeof word, "exit=%d", i);
        assert_int_equal(start(s, ARGV(WORKER, word)), 0);
        assert_int_equal(status_of(s->spawned.pid), i);
    }
    for (int i = 1; i <= SIGRTMAX; i++) {
        if (i == SIGCHLD || i == SIGCONT || i == SIGURG || i == SIGWINCH || i == SIGSTOP || i == SIGTSTP ||
            i == SIGTTIN || i == SIGTTOU || i == 32 || i == 33)
            continue;
        (void)snprintf(word, sizeof word, "raise=%d", i);
        assert_int_equal(start(s, ARGV(WORKER, word)), 0);
        assert_int_equal(status_of(s->spawned.pid), -i);
    }
}

static void no_memory_is_an_error_and_nobody_is_started(void **state)
{
    struct scene *s = *state;

    FOR_EACH_FAILURE (n) {
        int rc = start(s, ARGV(WORKER, "exit=0"));

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        if (rc == 0)
            assert_int_equal(status_of(s->spawned.pid), 0);
    }
}

/* ---- Functions ------------------------------------------------------------------------------------------------- */

static int answer(void *ctx, struct mu_buf *result)
{
    const char *text = ctx;

    return mu_buf_append(result, text, strlen(text), MU_SPAWN_RESULT_MAX) == 0 ? 7 : 8;
}

static int answer_much(void *ctx, struct mu_buf *result)
{
    size_t len = *(const size_t *)ctx;

    if (mu_buf_reserve(result, len, SIZE_MAX / 2) < 0)
        return 1;
    memset(result->data, 'x', len);
    result->len = len;
    return 0;
}

static int say_environment(void *ctx, struct mu_buf *result)
{
    const char *value = getenv("NAME");

    (void)ctx;
    (void)mu_buf_append(result, value, strlen(value), 100);
    (void)mu_buf_append(result, getsid(0) == getpid() ? " leads" : " follows", 6, 100);
    return 0;
}

static int die(void *ctx, struct mu_buf *result)
{
    (void)ctx;
    (void)result;
    (void)raise(SIGKILL);
    return 0;
}

static int call(struct scene *s, mu_spawn_function *function, void *ctx, struct mu_result *result)
{
    struct mu_spawn spec = { .function = function, .function_ctx = ctx, .envp = ARGV("NAME=value") };
    int rc = 0;

    *result = (struct mu_result){ 0 };
    assert_int_equal(mu_spawn_start(&spec, &startup, &s->spawned, &s->error), 0);
    assert_true(s->spawned.result_fd >= 0);
    while (rc == 0 && !result->complete) {
        struct pollfd ready = { .fd = s->spawned.result_fd, .events = POLLIN };

        assert_int_equal(poll(&ready, 1, LONG_MS), 1);
        rc = mu_result_read(result, s->spawned.result_fd, &s->error);
    }
    (void)close(s->spawned.result_fd);
    return rc;
}

static void a_functions_bytes_come_back(void **state)
{
    struct scene *s = *state;
    struct mu_result result;
    size_t len = 3 << 20;

    assert_int_equal(call(s, answer, (void *)(uintptr_t) "forty-two", &result), 0);
    assert_int_equal(status_of(s->spawned.pid), 7);
    assert_int_equal(result.bytes.len, 9);
    assert_memory_equal(result.bytes.data, "forty-two", 9);
    mu_result_done(&result);

    assert_int_equal(call(s, answer, (void *)(uintptr_t) "", &result), 0);
    assert_int_equal(status_of(s->spawned.pid), 7);
    assert_int_equal(result.bytes.len, 0);
    mu_result_done(&result);

    assert_int_equal(call(s, answer_much, &len, &result), 0);
    assert_int_equal(status_of(s->spawned.pid), 0);
    assert_int_equal(result.bytes.len, len);
    mu_result_done(&result);

    assert_int_equal(call(s, say_environment, NULL, &result), 0);
    assert_int_equal(status_of(s->spawned.pid), 0);
    assert_memory_equal(result.bytes.data, "value leads", 11);
    mu_result_done(&result);
}

static void a_function_that_gives_nothing_back_is_told(void **state)
{
    struct scene *s = *state;
    struct mu_result result;
    size_t len = MU_SPAWN_RESULT_MAX + 1;

    assert_int_equal(call(s, die, NULL, &result), MUSTER_ELOST);
    assert_int_equal(status_of(s->spawned.pid), -SIGKILL);
    mu_result_done(&result);
    assert_int_equal(call(s, answer_much, &len, &result), MUSTER_ESYSTEM);
    assert_non_null(strstr(s->error.text, "give back its result"));
    assert_int_equal(status_of(s->spawned.pid), MU_SPAWN_EXIT_SETUP);
    mu_result_done(&result);
}

static void bytes_that_are_no_result_are_refused(void **state)
{
    struct scene *s = *state;
    struct mu_result result = { 0 };

    assert_int_equal(write(s->ends[1], "0123456789abcdef", 16), 16);
    assert_int_equal(mu_result_read(&result, s->ends[0], &s->error), MUSTER_EPROTOCOL);
    mu_result_done(&result);
}

/* The thread that started it. */
static void a_worker_dies_with_its_starter(void **state)
{
    struct scene *s = *state;
    struct mu_spawned *shared = &s->spawned;
    pid_t middle = fork(), worker;

    if (middle == 0) {
        if (start(s, ARGV(WORKER, "say=up", "pause")) == 0)
            (void)dprintf(s->ends[1], "%d\n", (int)shared->pid);
        (void)raise(SIGKILL);
    }
    assert_int_equal(status_of(middle), -SIGKILL);
    do { /* "up", or not even that */
        worker = (pid_t)atoi(line(s));
    } while (worker == 0);
    (void)close(s->ends[1]);
    s->ends[1] = -1;
    while (read(s->ends[0], s->line, sizeof s->line) > 0) { /* nobody can write any more: it is gone */
    }
}

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    (void)snprintf(s->dir, sizeof s->dir, "/tmp/muster-test-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    assert_int_equal(pipe2(s->ends, O_CLOEXEC), 0);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    char command[128];

    for (int i = 0; i < 2; i++) {
        if (s->ends[i] >= 0)
            (void)close(s->ends[i]);
    }
    (void)snprintf(command, sizeof command, "rm -rf '%s'", s->dir);
    assert_int_equal(system(command), 0);
    free(s);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    static const int often_ignored[] = { SIGHUP, SIGINT, SIGQUIT, SIGPIPE };
    const struct CMUnitTest tests[] = {
        TEST(a_worker_leads_a_session_dies_with_us_and_has_three_descriptors),
        TEST(a_worker_gets_back_what_we_were_started_with),
        TEST(without_a_startup_it_gets_what_we_have),
        TEST(when_memory_runs_out_the_kernel_takes_workers_first),
        TEST(workers_start_in_containers_that_forbid_a_table_of_descriptors),
        TEST(what_cannot_be_started_is_said_with_its_reason),
        TEST(the_path_is_searched_as_the_workers_environment_says),
        TEST(streams_go_where_they_are_sent),
        TEST(streams_can_change_places),
        TEST(every_exit_code_and_deadly_signal_comes_through),
        TEST(no_memory_is_an_error_and_nobody_is_started),
        TEST(a_functions_bytes_come_back),
        TEST(a_function_that_gives_nothing_back_is_told),
        TEST(bytes_that_are_no_result_are_refused),
        TEST(a_worker_dies_with_its_starter),
    };

    for (unsigned i = 0; i < COUNT(often_ignored); i++) /* by whatever runs the tests; that is not the point */
        (void)signal(often_ignored[i], SIG_DFL);
    mu_startup_take(&startup);
    startup.ignored = 0;
    (void)sigemptyset(&startup.mask);
    old_kernel_if_asked();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
