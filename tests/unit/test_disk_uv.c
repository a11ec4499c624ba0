/* The files of a log directory, on a loop: when a file system is silent, and when it is not any more. */
#include "console_scene.h"
#include "logs/disk.h"

enum { SILENT_MS = 40 };

struct scene {
    struct own_dir dir;
    uv_loop_t loop;
    char fifo[128];
    struct mu_disk *disk;
    struct mu_disk_watcher watcher;
    unsigned silent, told;
    bool closed, hangs;
};

struct job {
    struct mu_file_job job;
    struct scene *scene;
    bool hangs;
};

static void on_silent(struct mu_disk_watcher *watcher)
{
    MU_LIST_ITEM(watcher, struct scene, watcher)->silent++;
}

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    struct mu_disk_config config = { .silent_ms = SILENT_MS };

    own_dir_make(&s->dir);
    (void)snprintf(s->fifo, sizeof s->fifo, "%s/fifo", s->dir.path);
    assert_int_equal(mkfifo(s->fifo, 0600), 0);
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(mu_disk_start(&s->loop, &config, &s->disk, NULL), 0);
    s->watcher.on_silent = on_silent;
    mu_disk_watch(s->disk, &s->watcher);
    *state = s;
    return 0;
}

static void on_closed(void *ctx, bool hangs)
{
    struct scene *s = ctx;

    s->closed = true;
    s->hangs = hangs;
}

static void close_disk(struct scene *s)
{
    mu_disk_unwatch(&s->watcher);
    mu_disk_close(s->disk, SILENT_MS, on_closed, s);
    TURN_UNTIL(&s->loop, -1, s->closed);
}

static int teardown(void **state)
{
    struct scene *s = *state;

    if (!s->closed)
        close_disk(s);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    own_dir_remove(&s->dir);
    free(s);
    return 0;
}

static void run(struct mu_file_job *job)
{
    struct job *j = MU_LIST_ITEM(job, struct job, job);
    int fd = j->hangs ? open(j->scene->fifo, O_WRONLY | O_CLOEXEC) : -1;

    if (fd >= 0)
        (void)close(fd);
}

static void done(struct mu_file_job *job)
{
    struct job *j = MU_LIST_ITEM(job, struct job, job);

    j->scene->told++;
    free(j);
}

static void drop(struct mu_file_job *job)
{
    free(MU_LIST_ITEM(job, struct job, job));
}

static void submit(struct scene *s, bool hangs)
{
    struct job *j = calloc(1, sizeof *j);

    *j = (struct job){ .job = { .run = run, .done = done, .drop = drop }, .scene = s, .hangs = hangs };
    mu_disk_submit(s->disk, &j->job);
}

static void answer(struct scene *s)
{
    int fd = open(s->fifo, O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    (void)close(fd);
}

static void what_comes_of_a_job_is_told_from_the_loop(void **state)
{
    struct scene *s = *state;

    submit(s, false);
    assert_int_equal(s->told, 0);
    TURN_UNTIL(&s->loop, -1, s->told == 1);
    assert_false(mu_disk_is_silent(s->disk));
    close_disk(s);
    assert_false(s->hangs);
    assert_int_equal(s->silent, 0);
}

static void a_file_system_that_does_not_answer_is_silent_until_it_does(void **state)
{
    struct scene *s = *state;

    submit(s, true);
    submit(s, false);
    TURN_UNTIL(&s->loop, -1, s->silent == 1);
    assert_true(mu_disk_is_silent(s->disk));
    assert_int_equal(s->told, 0);
    answer(s);
    TURN_UNTIL(&s->loop, -1, s->told == 2);
    assert_false(mu_disk_is_silent(s->disk));
    submit(s, true); /* and may be silent again */
    TURN_UNTIL(&s->loop, -1, s->silent == 2);
    answer(s);
    TURN_UNTIL(&s->loop, -1, s->told == 3);
}

static void the_end_does_not_wait_for_what_is_silent(void **state)
{
    struct scene *s = *state;

    submit(s, true);
    TURN_UNTIL(&s->loop, -1, s->silent == 1);
    close_disk(s);
    assert_true(s->hangs);
    assert_int_equal(s->told, 0);
    answer(s); /* and the thread ends */
}

static void the_end_waits_a_while_for_what_is_under_way(void **state)
{
    struct scene *s = *state;

    submit(s, true);
    close_disk(s);
    assert_true(s->hangs);
    answer(s);
}

static void the_end_comes_after_what_is_under_way(void **state)
{
    struct scene *s = *state;

    for (int i = 0; i < 100; i++)
        submit(s, false);
    mu_disk_unwatch(&s->watcher);
    mu_disk_close(s->disk, PATIENCE_MS, on_closed, s);
    TURN_UNTIL(&s->loop, -1, s->closed);
    assert_int_equal(s->told, 100);
    assert_false(s->hangs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_comes_of_a_job_is_told_from_the_loop, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_system_that_does_not_answer_is_silent_until_it_does, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_does_not_wait_for_what_is_silent, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_waits_a_while_for_what_is_under_way, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_comes_after_what_is_under_way, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
