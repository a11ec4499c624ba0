/* A log file that we write on behalf of a worker, and what becomes of it when it cannot be written. */
#include "console_scene.h"
#include "failmalloc.h"
#include "logs/logfile.h"

enum { SILENT_MS = 40 };

struct scene {
    struct own_dir dir;
    char path[128];
    uv_loop_t loop;
    struct mu_disk *disk;
    struct mu_logfile file;
    struct mu_buf again; /* what was read again */
    unsigned reads;
    bool closed;
};

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    struct mu_disk_config config = { .silent_ms = SILENT_MS };

    (void)signal(SIGPIPE, SIG_IGN);
    s->file.fd = -1;
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(mu_disk_start(&s->loop, &config, &s->disk, NULL), 0);
    own_dir_make(&s->dir);
    (void)snprintf(s->path, sizeof s->path, "%s/stdout.log", s->dir.path);
    listen_to_log();
    *state = s;
    return 0;
}

static void on_closed(void *ctx, bool hangs)
{
    (void)hangs;
    ((struct scene *)ctx)->closed = true;
}

/* All that was accepted is in the file, or lost. */
static void settle(struct scene *s)
{
    TURN_UNTIL(&s->loop, -1, mu_logfile_waiting(&s->file) == 0);
}

static int teardown(void **state)
{
    struct scene *s = *state;

    mu_logfile_done(&s->file);
    mu_disk_close(s->disk, SILENT_MS, on_closed, s);
    TURN_UNTIL(&s->loop, -1, s->closed);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    mu_buf_done(&s->again);
    muster_log_set_sink(NULL, NULL);
    own_dir_remove(&s->dir);
    free(s);
    return 0;
}

static void write_text(struct scene *s, const char *text)
{
    assert_true(mu_logfile_write(&s->file, mu_slice_str(text)));
    settle(s);
}

static void open_file(struct scene *s)
{
    int fd;

    assert_int_equal(mu_logfile_create(s->path, &fd), 0);
    assert_int_equal(mu_logfile_init(&s->file, s->disk, fd, s->path), 0);
}

static void a_new_file_takes_what_it_is_given(void **state)
{
    struct scene *s = *state;
    size_t len;
    char *text;

    open_file(s);
    assert_int_equal(fcntl(s->file.fd, F_GETFD), FD_CLOEXEC);
    write_text(s, "one\n");
    assert_int_equal(truncate(s->path, 0), 0); /* somebody reopens it: no hole */
    assert_true(mu_logfile_write(&s->file, mu_slice("t\0o", 3)));
    settle(s);
    mu_logfile_done(&s->file);
    assert_int_equal(said.count, 0);
    text = read_whole(s->path, &len);
    assert_int_equal(len, 3);
    assert_memory_equal(text, "t\0o", 3);
    free(text);
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
    struct scene *s = *state;
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        skip();
    assert_int_equal(mu_logfile_init(&s->file, s->disk, fd, "/logs/0/stdout.log"), 0);
    for (int i = 0; i < 10; i++)
        write_text(s, "12345");
    assert_int_equal(s->file.lost, 50);
    assert_int_equal(said.count, 1);
    assert_said("write '/logs/0/stdout.log': No space left on device; the worker goes on");
    mu_logfile_done(&s->file);
    assert_int_equal(said.count, 2);
    assert_said("'/logs/0/stdout.log' lacks 50 bytes: No space left on device");
}

static void without_a_file_nothing_happens(void **state)
{
    struct mu_logfile file = { .fd = -1 };

    (void)state;
    assert_true(mu_logfile_write(&file, mu_slice_str("12345")));
    mu_logfile_done(&file);
    assert_int_equal(said.count, 0);
}

static void without_memory_the_descriptor_stays_the_callers(void **state)
{
    struct scene *s = *state;
    int fd;

    assert_int_equal(mu_logfile_create(s->path, &fd), 0);
    for (unsigned n = 1; n <= 3; n++) {
        fail_alloc_at(n);
        assert_int_equal(mu_logfile_init(&s->file, s->disk, fd, s->path), MUSTER_ENOMEM);
        fail_alloc_at(0);
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
        assert_int_equal(s->file.fd, -1);
    }
    (void)close(fd);
}

/* ---- A FIFO that nobody reads is the file system that does not answer: what it cannot hold makes the writer wait */

static int open_fifo(struct scene *s, int *ret_reader)
{
    int fd;

    assert_int_equal(mkfifo(s->path, 0600), 0);
    *ret_reader = open(s->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    fd = open(s->path, O_WRONLY | O_CLOEXEC);
    assert_true(*ret_reader >= 0 && fd >= 0);
    assert_int_equal(mu_logfile_init(&s->file, s->disk, fd, s->path), 0);
    return fd;
}

static char block[1 << 16];

static size_t read_fifo(int reader)
{
    size_t total = 0;
    ssize_t got;

    while ((got = read(reader, block, sizeof block)) > 0)
        total += (size_t)got;
    return total;
}

static void who_does_not_fit_waits_while_it_answers_and_nothing_is_lost(void **state)
{
    struct scene *s = *state;
    size_t sent = 0, got = 0;
    int reader;

    (void)open_fifo(s, &reader);
    while (!mu_logfile_is_full(&s->file)) {
        assert_true(mu_logfile_write(&s->file, mu_slice(block, sizeof block)));
        sent += sizeof block;
    }
    assert_true(sent >= MU_LOGFILE_BYTES_MAX);
    assert_true(sent <= MU_LOGFILE_BYTES_MAX + 2 * sizeof block);
    TURN_UNTIL(&s->loop, -1, (got += read_fifo(reader), mu_logfile_waiting(&s->file) == 0));
    got += read_fifo(reader);
    assert_int_equal(got, sent);
    assert_int_equal(s->file.lost, 0);
    assert_int_equal(s->file.written, sent);
    assert_int_equal(said.count, 0);
    (void)close(reader);
}

static void a_silent_file_loses_what_does_not_fit_and_takes_more_when_it_answers(void **state)
{
    struct scene *s = *state;
    size_t got = 0;
    int reader;

    (void)open_fifo(s, &reader);
    while (!mu_disk_is_silent(s->disk)) {
        assert_true(mu_logfile_write(&s->file, mu_slice(block, sizeof block)));
        TURN_UNTIL(&s->loop, -1, !mu_logfile_is_full(&s->file)); /* or silent */
    }
    while (mu_logfile_write(&s->file, mu_slice(block, sizeof block)))
        assert_true(mu_logfile_waiting(&s->file) <= 2 * MU_LOGFILE_BYTES_MAX + sizeof block);
    assert_false(mu_logfile_is_full(&s->file)); /* there is no use in waiting */
    assert_true(s->file.lost >= sizeof block);
    assert_int_equal(said.count, 1);
    assert_said("stdout.log': the file system does not answer; the worker goes on");
    TURN_UNTIL(&s->loop, -1, (got += read_fifo(reader), mu_logfile_waiting(&s->file) == 0));
    assert_false(mu_disk_is_silent(s->disk));
    assert_true(mu_logfile_write(&s->file, mu_slice_str("more")));
    settle(s);
    got += read_fifo(reader);
    assert_int_equal(got, s->file.written);
    (void)close(reader);
}

static void the_end_counts_what_was_not_written(void **state)
{
    struct scene *s = *state;
    char line[256];
    int reader;

    (void)open_fifo(s, &reader);
    for (int i = 0; i < 4; i++)
        assert_true(mu_logfile_write(&s->file, mu_slice(block, sizeof block)));
    TURN_UNTIL(&s->loop, -1, mu_disk_is_silent(s->disk));
    (void)snprintf(line, sizeof line, "lacks %llu bytes: the file system does not answer",
                   (unsigned long long)mu_logfile_waiting(&s->file));
    mu_logfile_done(&s->file);
    assert_said(line);
    (void)close(reader); /* and the thread goes on */
}

/* ---- Reading it again */

static void on_read(void *ctx, struct mu_slice bytes)
{
    struct scene *s = ctx;

    s->reads++;
    assert_int_equal(mu_buf_append(&s->again, bytes.data, bytes.len, SIZE_MAX), 0);
    mu_logfile_advance(&s->file, bytes.len);
}

static void what_follows_a_mark_can_be_read_again(void **state)
{
    struct scene *s = *state;

    open_file(s);
    write_text(s, "seen, ");
    assert_true(mu_logfile_write(&s->file, mu_slice_str("seen too, not seen, ")));
    mu_logfile_set_mark(&s->file, strlen("not seen, "));
    assert_true(mu_logfile_write(&s->file, mu_slice_str("nor this")));
    assert_int_equal(mu_logfile_behind(&s->file), strlen("not seen, nor this"));
    assert_false(mu_logfile_can_read(&s->file));
    settle(s);
    while (mu_logfile_behind(&s->file) > 0) {
        unsigned reads = s->reads;

        assert_true(mu_logfile_can_read(&s->file));
        assert_int_equal(mu_logfile_start_read(&s->file, on_read, s), 0);
        TURN_UNTIL(&s->loop, -1, s->reads > reads);
    }
    assert_int_equal(s->again.len, strlen("not seen, nor this"));
    assert_memory_equal(s->again.data, "not seen, nor this", s->again.len);
    assert_false(mu_logfile_can_read(&s->file));
}

static void a_read_that_nobody_waits_for_is_not_told(void **state)
{
    struct scene *s = *state;

    open_file(s);
    assert_true(mu_logfile_write(&s->file, mu_slice_str("text")));
    mu_logfile_set_mark(&s->file, 4);
    settle(s);
    assert_int_equal(mu_logfile_start_read(&s->file, on_read, s), 0);
    mu_logfile_stop_read(&s->file);
    write_text(s, "more"); /* comes after it */
    assert_int_equal(s->reads, 0);
}

static void a_file_that_is_kept_is_out_of_the_way(void **state)
{
    struct scene *s = *state;
    int fd, low;

    assert_int_equal(mu_logfile_create(s->path, &low), 0);
    fd = mu_logfile_move_up(low);
    assert_true(fd > low);
    assert_int_equal(fcntl(low, F_GETFD), -1);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_new_file_takes_what_it_is_given, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_there_is_never_used_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_is_said_once_and_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(without_a_file_nothing_happens, setup, teardown),
        cmocka_unit_test_setup_teardown(without_memory_the_descriptor_stays_the_callers, setup, teardown),
        cmocka_unit_test_setup_teardown(who_does_not_fit_waits_while_it_answers_and_nothing_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(a_silent_file_loses_what_does_not_fit_and_takes_more_when_it_answers, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_end_counts_what_was_not_written, setup, teardown),
        cmocka_unit_test_setup_teardown(what_follows_a_mark_can_be_read_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_read_that_nobody_waits_for_is_not_told, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_kept_is_out_of_the_way, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
