/* The watchdog on a loop: a FIFO that workers write to, real processes that die of it, and strangers that do not. */
#include "agent/timer_uv.h"
#include "failmalloc.h"
#include "pure.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { QUICK_MS = 20000 };

struct scene {
    uv_loop_t loop;
    uv_timer_t alarm; /* ends a test that hangs */
    struct mu_watchdog *watchdog;
    char directory[64], path[128];
    int32_t ours; /* the one process that may be signalled */
    enum mu_watchdog_event_type until;
    char trace[1024], error[512];
    unsigned closed;
};

static void on_alarm(uv_timer_t *timer)
{
    (void)timer;
    fail_msg("the test hangs");
}

static int set_up(void **state)
{
    static struct scene scene;

    scene = (struct scene){ .ours = -1 };
    (void)snprintf(scene.directory, sizeof scene.directory, "/tmp/muster-timer-XXXXXX");
    assert_non_null(mkdtemp(scene.directory));
    (void)snprintf(scene.path, sizeof scene.path, "%s/fifo", scene.directory);
    assert_int_equal(uv_loop_init(&scene.loop), 0);
    assert_int_equal(uv_timer_init(&scene.loop, &scene.alarm), 0);
    assert_int_equal(uv_timer_start(&scene.alarm, on_alarm, QUICK_MS, 0), 0);
    *state = &scene;
    return 0;
}

static void on_closed(void *ctx)
{
    struct scene *s = ctx;

    s->closed++;
}

static int tear_down(void **state)
{
    struct scene *s = *state;
    unsigned closed = s->closed + (s->watchdog != NULL);

    mu_watchdog_close(s->watchdog, on_closed, s);
    uv_close((uv_handle_t *)&s->alarm, NULL);
    assert_int_equal(uv_run(&s->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(s->closed, closed);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    return rmdir(s->directory); /* nothing is left */
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static bool is_ours(void *ctx, int32_t pid)
{
    struct scene *s = ctx;

    return pid == s->ours;
}

static void on_event(void *ctx, enum mu_watchdog_event_type type, const struct mu_timer *timer,
                     const struct muster_error *error)
{
    struct scene *s = ctx;
    size_t len = strlen(s->trace);

    (void)snprintf(s->trace + len, sizeof s->trace - len, "%s%s%s; ", mu_watchdog_event_name(type),
                   timer != NULL ? " " : "", timer != NULL ? timer->scope : "");
    if (error != NULL)
        (void)snprintf(s->error, sizeof s->error, "%.500s", error->text);
    if (type == s->until)
        uv_stop(&s->loop);
}

static int start(struct scene *s, struct muster_error *reterr)
{
    const struct mu_watchdog_config config = { .path = s->path, .is_ours = is_ours, .on_event = on_event, .ctx = s };

    s->until = MU_WATCHDOG_FAILED;
    return mu_watchdog_start(&s->loop, &config, &s->watchdog, reterr);
}

static void run_until(struct scene *s, enum mu_watchdog_event_type type)
{
    s->until = type;
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
}

static double now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* As a client does: open, one line, close. */
static void ask(struct scene *s, const char *line)
{
    int fd = open(s->path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, line, strlen(line)), strlen(line));
    (void)close(fd);
}

static void acquire(struct scene *s, int32_t pid, const char *scope, double at_s, int number)
{
    char line[256];

    (void)snprintf(line, sizeof line,
                   "{\"version\": 1, \"pid\": %d, \"scope_id\": \"%s\", \"expiration_time\": %.6f, \"signal\": %d}\n",
                   (int)pid, scope, at_s, number);
    ask(s, line);
}

static int32_t start_child(void)
{
    pid_t pid = fork();

    if (pid == 0)
        for (;;)
            (void)pause();
    assert_true(pid > 0);
    return pid;
}

static int end_of(int32_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    return WTERMSIG(status);
}

static void an_expired_timer_kills_its_process(void **state)
{
    struct scene *s = *state;
    double at_s;

    s->ours = start_child();
    assert_int_equal(start(s, NULL), 0);
    at_s = now_s() + 0.05;
    acquire(s, s->ours, "rec", at_s, SIGTERM);
    run_until(s, MU_WATCHDOG_KILLED);
    assert_true(now_s() >= at_s);
    assert_int_equal(end_of(s->ours), SIGTERM);
    assert_string_equal(s->trace, "watchdog started; timer expired rec; kill worker process rec; ");
}

static void a_time_that_has_passed_kills_at_once(void **state)
{
    struct scene *s = *state;

    s->ours = start_child();
    assert_int_equal(start(s, NULL), 0);
    acquire(s, s->ours, "zero", 0, SIGKILL);
    run_until(s, MU_WATCHDOG_KILLED);
    assert_int_equal(end_of(s->ours), SIGKILL);
}

static void strangers_are_not_signalled(void **state)
{
    struct scene *s = *state;
    int32_t stranger = start_child();
    char expected[256];

    assert_int_equal(start(s, NULL), 0);
    acquire(s, stranger, "x", 1, SIGKILL);
    run_until(s, MU_WATCHDOG_REFUSED);
    assert_string_equal(s->trace, "watchdog started; timer expired x; refused x; ");
    (void)snprintf(expected, sizeof expected,
                   "timer 'x': process %d does not belong to a worker of this node; not signalled", (int)stranger);
    assert_string_equal(s->error, expected);
    assert_int_equal(kill(stranger, 0), 0);
    assert_int_equal(kill(stranger, SIGUSR1), 0);
    assert_int_equal(end_of(stranger), SIGUSR1);
}

static void who_is_gone_is_not_looked_for(void **state)
{
    struct scene *s = *state;

    s->ours = start_child();
    assert_int_equal(kill(s->ours, SIGKILL), 0);
    assert_int_equal(end_of(s->ours), SIGKILL);
    assert_int_equal(start(s, NULL), 0);
    acquire(s, s->ours, "x", 1, SIGKILL);
    run_until(s, MU_WATCHDOG_EXPIRED);
    assert_string_equal(s->trace, "watchdog started; timer expired x; ");
}

static void bad_requests_are_said_and_the_others_count(void **state)
{
    struct scene *s = *state;

    s->ours = start_child();
    assert_int_equal(start(s, NULL), 0);
    ask(s, "no \x1b JSON\n");
    acquire(s, s->ours, "x", 1, SIGKILL);
    run_until(s, MU_WATCHDOG_KILLED);
    assert_int_equal(end_of(s->ours), SIGKILL);
    assert_string_equal(s->trace, "watchdog started; bad request; timer expired x; kill worker process x; ");
    assert_memory_equal(s->error, "timer request 'no ? JSON': not JSON: ", 37);
    assert_non_null(strstr(s->error, "; skipped"));
}

static void released_and_forgotten_timers_do_nothing(void **state)
{
    struct scene *s = *state;
    int32_t other = start_child();

    s->ours = start_child();
    assert_int_equal(start(s, NULL), 0);
    acquire(s, s->ours, "released", now_s() + 0.03, SIGKILL);
    acquire(s, s->ours, "released", -1, 0);
    acquire(s, other, "forgotten", now_s() + 0.03, SIGKILL);
    acquire(s, s->ours, "stays", now_s() + 0.06, SIGTERM);
    (void)uv_run(&s->loop, UV_RUN_ONCE);
    mu_watchdog_forget(s->watchdog, other);
    mu_watchdog_forget(NULL, other);
    run_until(s, MU_WATCHDOG_KILLED);
    assert_string_equal(s->trace, "watchdog started; timer expired stays; kill worker process stays; ");
    assert_int_equal(end_of(s->ours), SIGTERM);
    assert_int_equal(kill(other, SIGUSR1), 0);
    assert_int_equal(end_of(other), SIGUSR1);
}

static void a_timer_that_never_comes_does_not_fire(void **state)
{
    struct scene *s = *state;

    s->ours = start_child();
    assert_int_equal(start(s, NULL), 0);
    acquire(s, s->ours, "far", 1e15, SIGKILL);
    acquire(s, s->ours, "none", now_s() + 0.01, 0);
    run_until(s, MU_WATCHDOG_EXPIRED);
    assert_string_equal(s->trace, "watchdog started; timer expired none; ");
    assert_int_equal(kill(s->ours, SIGUSR1), 0);
    assert_int_equal(end_of(s->ours), SIGUSR1);
}

static void the_fifo_is_ours_alone(void **state)
{
    struct scene *s = *state;
    mode_t before = umask(0);
    struct stat st;

    assert_int_equal(start(s, NULL), 0);
    (void)umask(before);
    assert_int_equal(lstat(s->path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(st.st_mode & 07777, 0600);
}

static void it_is_made_anew(void **state)
{
    struct scene *s = *state;
    struct mu_watchdog *second;
    int fd;

    assert_int_equal(mkfifo(s->path, 0666), 0); /* what an earlier agent left */
    assert_int_equal(start(s, NULL), 0);
    mu_watchdog_close(s->watchdog, on_closed, s);
    assert_int_equal(access(s->path, F_OK), -1);              /* gone at once: the next one may be started */
    fd = open(s->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600); /* mktemp makes such a file */
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(start(s, NULL), 0);
    assert_int_equal(access(s->path, F_OK), 0);
    s->until = MU_WATCHDOG_FAILED;
    (void)uv_run(&s->loop, UV_RUN_NOWAIT); /* the end of the first does not take the second's away */
    assert_int_equal(s->closed, 1);
    assert_int_equal(access(s->path, F_OK), 0);
    assert_string_equal(s->trace, "watchdog started; watchdog stopped; watchdog started; ");
    second = s->watchdog;
    assert_int_equal(start(s, NULL), 0); /* over one that runs: this one is reached now */
    mu_watchdog_close(second, NULL, NULL);
    (void)uv_run(&s->loop, UV_RUN_NOWAIT);
    assert_int_equal(access(s->path, F_OK), 0);
}

static void what_is_no_fifo_is_left_alone(void **state)
{
    struct scene *s = *state;
    struct muster_error error = { 0 };
    char expected[256];
    int fd = open(s->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "data", 4), 4);
    (void)close(fd);
    assert_int_equal(start(s, &error), MUSTER_EINVAL);
    (void)snprintf(expected, sizeof expected, "start the watchdog: '%s' is there and is not a FIFO", s->path);
    assert_string_equal(error.text, expected);
    assert_int_equal(unlink(s->path), 0);
    assert_int_equal(mkdir(s->path, 0700), 0);
    assert_int_equal(start(s, &error), MUSTER_EINVAL);
    assert_int_equal(rmdir(s->path), 0);
    assert_int_equal(symlink("/dev/null", s->path), 0);
    assert_int_equal(start(s, &error), MUSTER_EINVAL);
    assert_int_equal(unlink(s->path), 0);
    (void)snprintf(s->path, sizeof s->path, "/dev/null/fifo");
    assert_int_equal(start(s, &error), MUSTER_ESYSTEM);
    assert_string_equal(error.text, "start the watchdog: look at '/dev/null/fifo': Not a directory");
}

static void without_memory_it_does_not_start(void **state)
{
    struct scene *s = *state;

    FOR_EACH_FAILURE (n) {
        int rc = start(s, NULL);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_watchdog_close(s->watchdog, on_closed, s);
        s->watchdog = NULL;
        (void)uv_run(&s->loop, UV_RUN_NOWAIT);
    }
}

static void descriptors_run_out_step_by_step(void **state)
{
    struct scene *s = *state;
    int taken[2], count = 0, rc;
    struct rlimit before, now;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    taken[0] = dup(0);
    assert_true(taken[0] >= 0);
    (void)close(taken[0]);
    do { /* with no descriptor left, then one, two, ... */
        now = (struct rlimit){ .rlim_cur = (rlim_t)(taken[0] + count++), .rlim_max = before.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
        rc = start(s, NULL);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_true(rc == 0 || rc == MUSTER_ESYSTEM || rc == MUSTER_ELIMIT);
        if (rc < 0)
            assert_int_equal(access(s->path, F_OK), -1);
    } while (rc < 0 && count < 10);
    assert_int_equal(rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(an_expired_timer_kills_its_process),
        SCENE(a_time_that_has_passed_kills_at_once),
        SCENE(strangers_are_not_signalled),
        SCENE(who_is_gone_is_not_looked_for),
        SCENE(bad_requests_are_said_and_the_others_count),
        SCENE(released_and_forgotten_timers_do_nothing),
        SCENE(a_timer_that_never_comes_does_not_fire),
        SCENE(the_fifo_is_ours_alone),
        SCENE(it_is_made_anew),
        SCENE(what_is_no_fifo_is_left_alone),
        SCENE(without_memory_it_does_not_start),
        SCENE(descriptors_run_out_step_by_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
