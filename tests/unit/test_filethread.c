/* File calls on a thread of their own. A FIFO without a reader is the file system that does not answer: open()
 * waits. */
#include "base/clock.h"
#include "base/filethread.h"
#include "log_scene.h"

#include <poll.h>
#include <pthread.h>

enum { PATIENCE_MS = 60000 };

struct scene;

struct job {
    struct mu_file_job job;
    struct scene *scene;
    const char *path; /* to be opened; NULL: nothing */
    char letter;
    pthread_t ran_on;
    bool ran;
    _Atomic bool began;
};

struct scene {
    struct own_dir dir;
    char fifo[128];
    struct mu_filethread *thread;
    int woken[2];  /* a byte for each time */
    char told[16]; /* letters */
    _Atomic unsigned dropped_count;
};

static void wake(void *ctx)
{
    assert_int_equal(write(((struct scene *)ctx)->woken[1], "", 1), 1);
}

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    struct mu_filethread_config config = { .wake = wake, .ctx = s };

    own_dir_make(&s->dir);
    (void)snprintf(s->fifo, sizeof s->fifo, "%s/fifo", s->dir.path);
    assert_int_equal(mkfifo(s->fifo, 0600), 0);
    assert_int_equal(pipe2(s->woken, O_CLOEXEC), 0);
    s->thread = mu_filethread_new(&config);
    assert_non_null(s->thread);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    (void)close(s->woken[0]);
    (void)close(s->woken[1]);
    own_dir_remove(&s->dir);
    free(s);
    return 0;
}

static void run(struct mu_file_job *job)
{
    struct job *j = (struct job *)job;
    int fd;

    j->began = true;
    fd = j->path != NULL ? open(j->path, O_WRONLY | O_CLOEXEC) : -1;
    if (fd >= 0)
        (void)close(fd);
    j->ran_on = pthread_self();
    j->ran = true;
}

static void add(char *text, char letter)
{
    size_t len = strlen(text);

    text[len] = letter;
}

static void done(struct mu_file_job *job)
{
    struct job *j = (struct job *)job;

    add(j->scene->told, j->letter);
    free(j);
}

static void drop(struct mu_file_job *job)
{
    struct job *j = (struct job *)job;
    struct scene *s = j->scene;

    free(j);
    atomic_fetch_add(&s->dropped_count, 1); /* the last word: the scene may end now */
}

static struct mu_file_job *submit(struct scene *s, char letter, const char *path)
{
    struct job *j = calloc(1, sizeof *j);

    *j = (struct job){ .job = { .run = run, .done = done, .drop = drop }, .scene = s, .path = path, .letter = letter };
    mu_filethread_submit(s->thread, &j->job);
    return &j->job;
}

static void wait_woken(struct scene *s)
{
    struct pollfd fd = { .fd = s->woken[0], .events = POLLIN };
    char byte;

    assert_int_equal(poll(&fd, 1, PATIENCE_MS), 1);
    assert_int_equal(read(s->woken[0], &byte, 1), 1);
}

static void wait_begun(struct mu_file_job *job)
{
    for (int i = 0; !((struct job *)job)->began && i < PATIENCE_MS; i++)
        (void)poll(NULL, 0, 1);
    assert_true(((struct job *)job)->began);
}

/* Somebody who opens its other end lets the one who waits go on. */
static void answer(struct scene *s)
{
    int fd = open(s->fifo, O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    (void)close(fd);
}

static void jobs_are_run_in_order_and_told_to_the_owner(void **state)
{
    struct scene *s = *state;

    (void)submit(s, 'a', NULL);
    (void)submit(s, 'b', NULL);
    assert_string_equal(s->told, "");
    while (strlen(s->told) < 2) {
        wait_woken(s);
        mu_filethread_turn(s->thread);
    }
    assert_string_equal(s->told, "ab");
    assert_true(mu_filethread_is_idle(s->thread));
    assert_int_equal(mu_filethread_beats(s->thread), 2);
    assert_true(mu_filethread_free(s->thread));
}

static void what_hangs_keeps_the_rest_waiting_but_not_the_owner(void **state)
{
    struct scene *s = *state;

    (void)submit(s, 'a', s->fifo);
    (void)submit(s, 'b', NULL);
    assert_false(mu_filethread_wait(s->thread, 10));
    assert_false(mu_filethread_is_idle(s->thread));
    assert_int_equal(mu_filethread_beats(s->thread), 0);
    answer(s);
    assert_true(mu_filethread_wait(s->thread, PATIENCE_MS));
    mu_filethread_turn(s->thread);
    assert_string_equal(s->told, "ab");
    assert_true(mu_filethread_free(s->thread));
}

static void a_cancelled_job_is_dropped_by_the_thread(void **state)
{
    struct scene *s = *state;
    struct mu_file_job *hangs = submit(s, 'a', s->fifo), *waits = submit(s, 'b', NULL);

    (void)submit(s, 'c', NULL);
    wait_begun(hangs);
    mu_filethread_cancel(hangs);
    mu_filethread_cancel(waits);
    assert_int_equal(s->dropped_count, 0);
    answer(s);
    assert_true(mu_filethread_wait(s->thread, PATIENCE_MS));
    mu_filethread_turn(s->thread);
    assert_string_equal(s->told, "c");
    assert_int_equal(s->dropped_count, 2);
    assert_true(mu_filethread_free(s->thread));
}

static void a_job_that_was_run_can_still_be_cancelled(void **state)
{
    struct scene *s = *state;
    struct mu_file_job *job = submit(s, 'a', NULL);

    assert_true(mu_filethread_wait(s->thread, PATIENCE_MS));
    mu_filethread_cancel(job);
    assert_true(mu_filethread_wait(s->thread, PATIENCE_MS));
    mu_filethread_turn(s->thread);
    assert_string_equal(s->told, "");
    assert_int_equal(s->dropped_count, 1);
    assert_true(mu_filethread_free(s->thread));
}

static void a_thread_that_hangs_is_left_behind_and_cleans_up_when_it_comes_back(void **state)
{
    struct scene *s = *state;

    wait_begun(submit(s, 'a', s->fifo));
    (void)submit(s, 'b', NULL);
    assert_false(mu_filethread_free(s->thread));
    answer(s);
    for (int i = 0; s->dropped_count < 2 && i < PATIENCE_MS; i++)
        (void)poll(NULL, 0, 1);
    assert_int_equal(s->dropped_count, 2);
    assert_string_equal(s->told, "");
}

static void many_that_hang_are_waited_for_together(void **state)
{
    enum { MANY = 50 };
    struct scene *s = *state;
    struct mu_filethread *threads[MANY + 2] = { s->thread }; /* one was never started, and one is NULL */
    int64_t begin_ms;

    for (size_t i = 1; i <= MANY; i++) {
        s->thread = threads[i] = mu_filethread_new(&(struct mu_filethread_config){ 0 });
        assert_non_null(s->thread);
        wait_begun(submit(s, 'a', s->fifo));
    }
    begin_ms = mu_clock_ms();
    assert_false(mu_filethread_free_all(threads, COUNT(threads)));
    assert_true(mu_clock_ms() - begin_ms < (int64_t)MANY * MU_FILETHREAD_FREE_MS);
    answer(s);
    for (int i = 0; s->dropped_count < MANY && i < PATIENCE_MS; i++)
        (void)poll(NULL, 0, 1);
    assert_int_equal(s->dropped_count, MANY);
}

static void the_end_drops_what_was_run_and_not_told(void **state)
{
    struct scene *s = *state;

    (void)submit(s, 'a', NULL);
    assert_true(mu_filethread_wait(s->thread, PATIENCE_MS));
    assert_true(mu_filethread_free(s->thread));
    assert_int_equal(s->dropped_count, 1);
    assert_string_equal(s->told, "");
}

static void without_a_job_there_is_no_thread_to_wait_for(void **state)
{
    struct scene *s = *state;

    assert_true(mu_filethread_is_idle(s->thread));
    assert_true(mu_filethread_wait(s->thread, 0));
    assert_true(mu_filethread_free(s->thread));
    assert_true(mu_filethread_free(NULL));
}

static void at_once_means_on_the_owners_thread(void **state)
{
    struct scene *s = *state;
    struct mu_filethread_config config = { .wake = wake, .ctx = s, .at_once = true };
    struct job *job;

    assert_true(mu_filethread_free(s->thread));
    s->thread = mu_filethread_new(&config);
    assert_non_null(s->thread);
    job = (struct job *)submit(s, 'a', NULL);
    assert_true(job->ran);
    assert_true(pthread_equal(job->ran_on, pthread_self()));
    assert_string_equal(s->told, ""); /* but told as ever */
    wait_woken(s);
    mu_filethread_turn(s->thread);
    assert_string_equal(s->told, "a");
    (void)submit(s, 'b', NULL);
    assert_true(mu_filethread_free(s->thread));
    assert_int_equal(s->dropped_count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(jobs_are_run_in_order_and_told_to_the_owner, setup, teardown),
        cmocka_unit_test_setup_teardown(what_hangs_keeps_the_rest_waiting_but_not_the_owner, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cancelled_job_is_dropped_by_the_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(a_job_that_was_run_can_still_be_cancelled, setup, teardown),
        cmocka_unit_test_setup_teardown(a_thread_that_hangs_is_left_behind_and_cleans_up_when_it_comes_back, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(many_that_hang_are_waited_for_together, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_drops_what_was_run_and_not_told, setup, teardown),
        cmocka_unit_test_setup_teardown(without_a_job_there_is_no_thread_to_wait_for, setup, teardown),
        cmocka_unit_test_setup_teardown(at_once_means_on_the_owners_thread, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
