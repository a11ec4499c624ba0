/* A log file that we write on behalf of a worker, and what becomes of it when it cannot be written. */
#include "failmalloc.h"
#include "log_scene.h"
#include "logs/logfile.h"

struct scene {
    struct own_dir dir;
    char path[128];
};

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    own_dir_make(&s->dir);
    (void)snprintf(s->path, sizeof s->path, "%s/stdout.log", s->dir.path);
    listen_to_log();
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    muster_log_set_sink(NULL, NULL);
    own_dir_remove(&s->dir);
    free(s);
    return 0;
}

static void a_new_file_takes_what_it_is_given(void **state)
{
    struct scene *s = *state;
    struct mu_logfile file;
    int fd;

    assert_int_equal(mu_logfile_create(s->path, &fd), 0);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(mu_logfile_init(&file, fd, s->path), 0);
    mu_logfile_write(&file, mu_slice_str("one\n"));
    assert_int_equal(truncate(s->path, 0), 0); /* somebody reopens it: no hole */
    mu_logfile_write(&file, mu_slice("t\0o", 3));
    mu_logfile_done(&file);
    assert_int_equal(said.count, 0);
    {
        size_t len;
        char *text = read_whole(s->path, &len);

        assert_int_equal(len, 3);
        assert_memory_equal(text, "t\0o", 3);
        free(text);
    }
}

static void a_file_that_is_there_is_never_used_again(void **state)
{
    struct scene *s = *state;
    int fd = -1;

    write_file(s->path, "precious");
    assert_int_equal(mu_logfile_create(s->path, &fd), EEXIST);
    assert_int_equal(fd, -1);
    assert_file(s->dir.path, "stdout.log", "precious");
}

static void a_full_disk_is_said_once_and_counted(void **state)
{
    struct mu_logfile file;
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    (void)state;
    if (fd < 0)
        skip();
    assert_int_equal(mu_logfile_init(&file, fd, "/logs/0/stdout.log"), 0);
    for (int i = 0; i < 10; i++)
        mu_logfile_write(&file, mu_slice_str("12345"));
    assert_int_equal(file.lost, 50);
    assert_int_equal(said.count, 1);
    assert_said("write '/logs/0/stdout.log': No space left on device; the worker goes on");
    mu_logfile_done(&file);
    assert_int_equal(said.count, 2);
    assert_said("'/logs/0/stdout.log' lacks 50 bytes: No space left on device");
}

static void without_a_file_nothing_happens(void **state)
{
    struct mu_logfile file = { .fd = -1 };

    (void)state;
    mu_logfile_write(&file, mu_slice_str("12345"));
    mu_logfile_done(&file);
    assert_int_equal(said.count, 0);
}

static void without_memory_the_descriptor_is_closed(void **state)
{
    struct scene *s = *state;
    struct mu_logfile file;
    int fd;

    assert_int_equal(mu_logfile_create(s->path, &fd), 0);
    fail_alloc_at(1);
    assert_int_equal(mu_logfile_init(&file, fd, s->path), MUSTER_ENOMEM);
    fail_alloc_at(0);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_int_equal(file.fd, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_new_file_takes_what_it_is_given, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_there_is_never_used_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_is_said_once_and_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(without_a_file_nothing_happens, setup, teardown),
        cmocka_unit_test_setup_teardown(without_memory_the_descriptor_is_closed, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
