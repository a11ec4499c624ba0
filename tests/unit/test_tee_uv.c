/* One stream that passes through us: to a file as it comes, to the console in whole lines. */
#include "console_scene.h"
#include "failmalloc.h"
#include "logs/lines.h"
#include "logs/tee_uv.h"

#include "base/rng.h"

#include <sys/wait.h>

struct scene {
    struct own_dir dir;
    uv_loop_t loop;
    struct far_end far;
    struct mu_console *console;
    struct mu_disk *disk;
    struct mu_logfile file, filtered;
    struct mu_filters filters;
    struct mu_tee *tee;
    int writer; /* the worker's end; -1: closed */
    unsigned ended;
    bool no_file;
    bool tee_closed, console_closed, disk_closed;
};

static void on_moved(void *ctx)
{
    struct scene *s = ctx;

    if (s->tee != NULL)
        mu_tee_go_on(s->tee);
}

static void make_file(struct scene *s, struct mu_logfile *file, const char *name)
{
    char path[128];
    int fd;

    (void)snprintf(path, sizeof path, "%s/%s", s->dir.path, name);
    assert_int_equal(mu_logfile_create(path, &fd), 0);
    assert_int_equal(mu_logfile_init(file, s->disk, fd, path), 0);
    file->on_moved = on_moved;
    file->ctx = s;
}

static int setup(void **state)
{
    struct mu_console_config config = { .name = "standard output" };
    struct scene *s = calloc(1, sizeof *s);

    (void)signal(SIGPIPE, SIG_IGN);
    own_dir_make(&s->dir);
    assert_int_equal(uv_loop_init(&s->loop), 0);
    far_end_open(&s->far, PIPE);
    config.fd = s->far.fd;
    assert_int_equal(mu_console_start(&s->loop, &config, &s->console, NULL), 0);
    assert_int_equal(mu_disk_start(&s->loop, &(struct mu_disk_config){ 0 }, &s->disk, NULL), 0);
    make_file(s, &s->file, "stdout.log");
    s->filtered.fd = -1;
    s->writer = -1;
    listen_to_log();
    *state = s;
    return 0;
}

static void on_console_closed(struct mu_console *console, void *ctx)
{
    (void)console;
    ((struct scene *)ctx)->console_closed = true;
}

static void on_disk_closed(void *ctx, bool hangs)
{
    assert_false(hangs);
    ((struct scene *)ctx)->disk_closed = true;
}

static void on_tee_closed(void *ctx)
{
    ((struct scene *)ctx)->tee_closed = true;
}

static void close_tee(struct scene *s)
{
    mu_tee_close(s->tee, on_tee_closed);
    s->tee = NULL;
    TURN_UNTIL(&s->loop, -1, s->tee_closed);
}

static void close_writer(struct scene *s)
{
    if (s->writer >= 0)
        (void)close(s->writer);
    s->writer = -1;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    close_writer(s);
    if (s->tee != NULL)
        close_tee(s);
    mu_console_close(s->console, 0, on_console_closed, s);
    mu_logfile_done(&s->file);
    mu_logfile_done(&s->filtered);
    mu_disk_close(s->disk, PATIENCE_MS, on_disk_closed, s);
    TURN_UNTIL(&s->loop, -1, s->console_closed && s->disk_closed);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    far_end_close(&s->far);
    mu_filters_done(&s->filters);
    own_dir_remove(&s->dir);
    free(s);
    return 0;
}

static void on_ended(void *ctx)
{
    ((struct scene *)ctx)->ended++;
}

static int try_start(struct scene *s)
{
    int ends[2], rc;
    struct mu_tee_config config = {
        .file = s->no_file ? NULL : &s->file,
        .console = s->console,
        .label = "the standard output of local rank 0",
        .where = s->file.path,
        .prefix = "[w0]:",
        .filters = &s->filters,
        .filtered = s->filtered.fd >= 0 ? &s->filtered : NULL,
        .keep_tail = true,
        .on_ended = on_ended,
        .ctx = s,
    };

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    config.fd = ends[0];
    rc = mu_tee_start(&s->loop, &config, &s->tee, NULL);
    s->writer = ends[1];
    if (rc < 0)
        (void)close(ends[0]);
    return rc;
}

static void start(struct scene *s)
{
    assert_int_equal(try_start(s), 0);
}

static void say_bytes(struct scene *s, struct mu_slice bytes)
{
    assert_int_equal(write(s->writer, bytes.data, bytes.len), bytes.len);
    TURN_UNTIL(&s->loop, -1, mu_tee_bytes(s->tee) >= bytes.len && (turn(&s->loop, -1), true));
}

static void say(struct scene *s, const char *text)
{
    uint64_t before = mu_tee_bytes(s->tee);

    assert_int_equal(write(s->writer, text, strlen(text)), strlen(text));
    TURN_UNTIL(&s->loop, -1, mu_tee_bytes(s->tee) == before + strlen(text));
}

/* All that came is in the files. */
static void settle(struct scene *s)
{
    TURN_UNTIL(&s->loop, -1, mu_logfile_waiting(&s->file) + mu_logfile_waiting(&s->filtered) == 0);
}

static void assert_written(struct scene *s, const char *name, const char *text)
{
    settle(s);
    assert_file(s->dir.path, name, text);
}

static void hang_up(struct scene *s)
{
    close_writer(s);
    TURN_UNTIL(&s->loop, -1, s->ended > 0);
    assert_true(mu_tee_has_ended(s->tee));
}

static void the_file_gets_bytes_and_the_console_gets_lines(void **state)
{
    struct scene *s = *state;

    start(s);
    say(s, "one\ntw");
    assert_written(s, "stdout.log", "one\ntw");
    assert_string_equal(far_end_text(&s->far), "[w0]:one\n");
    say(s, "o\n\n");
    assert_written(s, "stdout.log", "one\ntwo\n\n");
    assert_string_equal(far_end_text(&s->far), "[w0]:one\n[w0]:two\n[w0]:\n");
}

static void the_last_line_is_shown_at_the_end_of_the_pipe(void **state)
{
    struct scene *s = *state;

    start(s);
    say(s, "out\nno newline at end");
    hang_up(s);
    assert_int_equal(s->ended, 1);
    assert_written(s, "stdout.log", "out\nno newline at end");
    assert_string_equal(far_end_text(&s->far), "[w0]:out\n[w0]:no newline at end\n");
}

static void bytes_that_are_no_text_stay_as_they_are(void **state)
{
    struct scene *s = *state;
    char all[257];

    for (int c = 0; c < 256; c++)
        all[c] = (char)c;
    all['\r'] = 'r';
    all[256] = '\n';
    start(s);
    say_bytes(s, mu_slice(all, sizeof all));
    (void)far_end_text(&s->far);
    assert_memory_equal(s->far.got.data, "[w0]:", 5);
    assert_memory_equal(s->far.got.data + 5, all, 11); /* up to its \n */
    assert_memory_equal(s->far.got.data + 16, "[w0]:", 5);
    assert_memory_equal(s->far.got.data + 21, all + 11, 246);
    {
        size_t len;
        char *text = (settle(s), read_whole(s->file.path, &len));

        assert_int_equal(len, sizeof all);
        assert_memory_equal(text, all, sizeof all);
        free(text);
    }
}

static void what_a_dead_worker_left_is_read_at_once(void **state)
{
    struct scene *s = *state;

    start(s);
    assert_int_equal(write(s->writer, "dies mid-li", 11), 11);
    mu_tee_drain(s->tee);
    assert_written(s, "stdout.log", "dies mid-li");
    assert_int_equal(s->ended, 0);
    close_writer(s);
    mu_tee_drain(s->tee);
    assert_int_equal(s->ended, 1);
    mu_tee_drain(s->tee); /* nothing more to it */
    assert_int_equal(s->ended, 1);
    assert_string_equal(far_end_text(&s->far), "[w0]:dies mid-li\n");
}

static void closing_before_the_end_shows_what_there_is(void **state)
{
    struct scene *s = *state;

    start(s);
    say(s, "held by somebody el");
    close_tee(s);
    assert_int_equal(s->ended, 0);
    assert_string_equal(far_end_text(&s->far), "[w0]:held by somebody el\n");
    assert_int_equal(write(s->writer, "x", 1), -1); /* nobody reads it any more */
    assert_int_equal(errno, EPIPE);
}

static void lines_that_match_are_written_down_again(void **state)
{
    struct scene *s = *state;

    assert_int_equal(mu_filters_parse("--f", "loss,acc", &s->filters, NULL), 0);
    make_file(s, &s->filtered, "filtered_stdout.log");
    start(s);
    say(s, "step 1\nloss 0.5\nst");
    say(s, "ep 2\nac");
    say(s, "c 0.9");
    assert_written(s, "filtered_stdout.log", "[w0]:loss 0.5\n");
    hang_up(s);
    assert_written(s, "filtered_stdout.log", "[w0]:loss 0.5\n[w0]:acc 0.9\n");
}

/* A child writes as fast as it can; here everything arrives, in the file to the byte, on the console to the line. */
static void nothing_is_lost_or_changed_on_the_way(void **state)
{
    struct scene *s = *state;
    enum { BYTES = 3 << 20 };
    struct mu_rng rng = mu_rng_seeded(5);
    struct mu_buf expected = { 0 };
    char *text = malloc(BYTES), *file;
    size_t len;
    pid_t pid;

    assert_non_null(text);
    for (size_t i = 0, start_of_line = 1; i < BYTES; i++) {
        uint64_t dice = mu_rng_below(&rng, 150000);

        text[i] = (char)mu_rng_below(&rng, 256);
        if (dice < 1500)
            text[i] = '\n';
        else if (text[i] == '\r' || text[i] == '\n')
            text[i] = ' ';
        if (start_of_line)
            assert_int_equal(mu_buf_append(&expected, "[w0]:", 5, SIZE_MAX), 0);
        start_of_line = text[i] == '\n';
        assert_int_equal(mu_buf_append(&expected, &text[i], 1, SIZE_MAX), 0);
    }
    text[BYTES - 1] = '.';
    expected.data[expected.len - 1] = '.';
    assert_int_equal(mu_buf_append(&expected, "\n", 1, SIZE_MAX), 0);
    start(s);
    pid = fork();
    if (pid == 0) {
        for (size_t at = 0; at < BYTES;) {
            size_t step = 1 + mu_rng_below(&rng, 100000);
            ssize_t done = write(s->writer, text + at, step < BYTES - at ? step : BYTES - at);

            if (done < 0)
                _exit(1);
            at += (size_t)done;
        }
        (void)kill(getpid(), SIGKILL); /* mid-line */
    }
    close_writer(s);
    TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, SIZE_MAX), s->far.got.len == expected.len));
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    TURN_UNTIL(&s->loop, -1, s->ended == 1);
    assert_memory_equal(s->far.got.data, expected.data, expected.len);
    settle(s);
    file = read_whole(s->file.path, &len);
    assert_int_equal(len, BYTES);
    assert_memory_equal(file, text, BYTES);
    assert_int_equal(said.count, 0);
    free(file);
    free(text);
    mu_buf_done(&expected);
}

enum { LINES = 60000 }; /* 6 MB */

/* A worker that says a lot, all of it before anybody reads the console. */
static void say_a_lot(struct scene *s)
{
    int status;
    pid_t pid;

    start(s);
    pid = fork();
    if (pid == 0) {
        char line[101];

        for (int i = 0; i < LINES; i++) {
            (void)snprintf(line, sizeof line, "%-99d\n", i);
            if (write(s->writer, line, 100) != 100)
                _exit(1);
        }
        _exit(0);
    }
    close_writer(s);
    TURN_UNTIL(&s->loop, -1, mu_tee_has_ended(s->tee));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void a_console_that_blocks_costs_neither_the_worker_time_nor_us_a_line(void **state)
{
    struct scene *s = *state;
    struct stat st;

    say_a_lot(s);
    settle(s);
    assert_int_equal(stat(s->file.path, &st), 0);
    assert_int_equal(st.st_size, LINES * 100);
    assert_int_equal(s->ended, 0); /* not shown yet */
    assert_true(mu_tee_lag(s->tee) > LINES * 100 - MU_CONSOLE_SOURCE_BYTES_MAX - 200000);
    assert_true(mu_console_stats(s->console).waiting <= MU_CONSOLE_SOURCE_BYTES_MAX);
    TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, SIZE_MAX), s->ended == 1));
    TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, SIZE_MAX), s->far.got.len >= LINES * 105));
    for (int i = 0; i < LINES; i++) {
        char line[106];

        (void)snprintf(line, sizeof line, "[w0]:%-99d\n", i);
        assert_memory_equal(s->far.got.data + (size_t)i * 105, line, 105);
    }
    assert_int_equal(mu_tee_lag(s->tee), 0);
    assert_int_equal(mu_console_stats(s->console).dropped_lines, 0);
    assert_int_equal(said.count, 0);
}

static void without_a_file_a_console_that_blocks_costs_lines_which_is_said(void **state)
{
    struct scene *s = *state;

    s->no_file = true;
    say_a_lot(s);
    assert_int_equal(s->ended, 1);
    assert_int_equal(said.count, 0);
    TURN_UNTIL(&s->loop, s->far.reader,
               (far_end_read(&s->far, SIZE_MAX), mu_console_stats(s->console).waiting == 0 && said.count > 0));
    far_end_read(&s->far, SIZE_MAX);
    assert_int_equal(s->far.got.len, (LINES - mu_console_stats(s->console).dropped_lines) * 105);
    assert_said("standard output did not keep up: ");
    assert_said("of the standard output of local rank 0 were not shown");
}

static void a_console_that_is_gone_while_it_lags_ends_the_lag(void **state)
{
    struct scene *s = *state;

    say_a_lot(s);
    far_end_hang_up(&s->far);
    TURN_UNTIL(&s->loop, -1, s->ended == 1);
    assert_true(mu_console_stats(s->console).dropped_lines > LINES - 2000); /* but what the pipe held */
}

static void closing_while_the_console_lags_says_what_was_not_shown(void **state)
{
    struct scene *s = *state;

    say_a_lot(s);
    close_tee(s);
    assert_int_equal(s->ended, 0);
    assert_said(" bytes of '");
    assert_said("stdout.log' were not shown: the console does not keep up");
}

static void a_full_disk_does_not_stop_the_console(void **state)
{
    struct scene *s = *state;
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        skip();
    (void)dup3(fd, s->file.fd, O_CLOEXEC);
    (void)close(fd);
    start(s);
    say(s, "one\n");
    say(s, "two\n");
    assert_string_equal(far_end_text(&s->far), "[w0]:one\n[w0]:two\n");
    settle(s);
    assert_int_equal(s->file.lost, 8);
    assert_int_equal(said.count, 1);
}

/* A FIFO is the file. It is full, so that its file system answers only when we read it. */
static int make_fifo_file(struct scene *s)
{
    char path[128];
    int reader, filler, fd;

    (void)snprintf(path, sizeof path, "%s/fifo", s->dir.path);
    assert_int_equal(mkfifo(path, 0600), 0);
    reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    filler = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(reader >= 0 && filler >= 0 && fd >= 0);
    while (write(filler, "x", 1) == 1) {
    }
    (void)close(filler);
    mu_logfile_done(&s->file);
    assert_int_equal(mu_logfile_init(&s->file, s->disk, fd, path), 0);
    s->file.on_moved = on_moved;
    s->file.ctx = s;
    return reader;
}

enum { CHUNK = 4096 };

static void write_until_it_waits(struct scene *s)
{
    char chunk[CHUNK];

    memset(chunk, '.', sizeof chunk);
    chunk[CHUNK - 1] = '\n';
    assert_int_equal(fcntl(s->writer, F_SETFL, O_NONBLOCK), 0);
    while (!mu_logfile_is_full(&s->file)) {
        (void)!write(s->writer, chunk, sizeof chunk);
        (void)uv_run(&s->loop, UV_RUN_NOWAIT);
        far_end_read(&s->far, SIZE_MAX);
    }
}

static void a_file_that_is_full_makes_the_worker_wait_until_it_moves(void **state)
{
    struct scene *s = *state;
    int reader = make_fifo_file(s);
    char chunk[CHUNK] = "", room[65536];
    uint64_t before;

    start(s);
    write_until_it_waits(s);
    while (write(s->writer, chunk, sizeof chunk) > 0) { /* the pipe fills up */
    }
    before = mu_tee_bytes(s->tee);
    for (int i = 0; i < 10; i++)
        turn(&s->loop, -1);
    assert_int_equal(mu_tee_bytes(s->tee), before);
    close_writer(s);
    TURN_UNTIL(&s->loop, s->far.reader,
               (far_end_read(&s->far, SIZE_MAX), (void)!read(reader, room, sizeof room),
                s->ended == 1 && mu_logfile_waiting(&s->file) == 0));
    assert_true(mu_tee_bytes(s->tee) > before);
    assert_int_equal(s->file.written, mu_tee_bytes(s->tee));
    assert_int_equal(said.count, 0);
    (void)close(reader);
}

static void on_silent(struct mu_disk_watcher *watcher)
{
    (void)watcher;
}

static void a_file_that_does_not_answer_is_left_behind_and_the_console_goes_on(void **state)
{
    struct scene *s = *state;
    struct mu_disk_watcher watcher = { .on_silent = on_silent };
    struct mu_disk *before = s->disk;
    int reader;

    mu_logfile_done(&s->file);
    assert_int_equal(mu_disk_start(&s->loop, &(struct mu_disk_config){ .silent_ms = 40 }, &s->disk, NULL), 0);
    s->file = (struct mu_logfile){ .fd = -1 };
    reader = make_fifo_file(s);
    mu_disk_watch(s->disk, &watcher);
    start(s);
    write_until_it_waits(s);
    TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, SIZE_MAX), mu_disk_is_silent(s->disk)));
    mu_tee_go_on(s->tee); /* as whoever hears of it does */
    s->far.got.len = 0;
    assert_int_equal(fcntl(s->writer, F_SETFL, 0), 0);
    assert_int_equal(write(s->writer, "the end\n", 8), 8);
    close_writer(s);
    TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, SIZE_MAX), s->ended == 1));
    TURN_UNTIL(&s->loop, s->far.reader, strstr(far_end_text(&s->far), "[w0]:the end\n") != NULL);
    close_tee(s);
    mu_logfile_done(&s->file);
    assert_said("fifo' lacks ");
    mu_disk_unwatch(&watcher);
    (void)close(reader); /* EPIPE: the thread goes on */
    mu_disk_close(s->disk, PATIENCE_MS, on_disk_closed, s);
    TURN_UNTIL(&s->loop, -1, s->disk_closed);
    s->disk = before;
    s->disk_closed = false;
}

static void the_tail_is_what_came_last(void **state)
{
    struct scene *s = *state;
    struct mu_buf text = { 0 };

    start(s);
    say(s, "one\ntwo\nthr");
    assert_int_equal(mu_tee_tail(s->tee, &text), 0);
    assert_int_equal(text.len, 11);
    assert_memory_equal(text.data, "one\ntwo\nthr", 11);
    mu_buf_done(&text);
}

static void without_memory_it_does_not_start_or_loses_nothing(void **state)
{
    struct scene *s = *state;

    assert_int_equal(mu_filters_parse("--f", "e", &s->filters, NULL), 0);
    make_file(s, &s->filtered, "filtered_stdout.log");
    FOR_EACH_FAILURE (n) {
        int rc = try_start(s);

        if (rc == 0) {
            s->ended = 0;
            assert_int_equal(write(s->writer, "one\ntw", 6), 6);
            mu_tee_drain(s->tee);
            close_writer(s);
            mu_tee_drain(s->tee);
            assert_int_equal(s->ended, 1);
            s->tee_closed = false;
            close_tee(s);
        } else {
            assert_int_equal(rc, MUSTER_ENOMEM);
            s->tee = NULL;
        }
        close_writer(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_file_gets_bytes_and_the_console_gets_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(the_last_line_is_shown_at_the_end_of_the_pipe, setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_that_are_no_text_stay_as_they_are, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_dead_worker_left_is_read_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(closing_before_the_end_shows_what_there_is, setup, teardown),
        cmocka_unit_test_setup_teardown(lines_that_match_are_written_down_again, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_is_lost_or_changed_on_the_way, setup, teardown),
        cmocka_unit_test_setup_teardown(a_console_that_blocks_costs_neither_the_worker_time_nor_us_a_line, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(without_a_file_a_console_that_blocks_costs_lines_which_is_said, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_console_that_is_gone_while_it_lags_ends_the_lag, setup, teardown),
        cmocka_unit_test_setup_teardown(closing_while_the_console_lags_says_what_was_not_shown, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_does_not_stop_the_console, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_full_makes_the_worker_wait_until_it_moves, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_does_not_answer_is_left_behind_and_the_console_goes_on, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_tail_is_what_came_last, setup, teardown),
        cmocka_unit_test_setup_teardown(without_memory_it_does_not_start_or_loses_nothing, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
