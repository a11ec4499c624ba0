/* Our standard output, shared with others: what goes in comes out, nobody waits, and what is lost is said. */
#include "console_scene.h"
#include "failmalloc.h"

#include "logs/lines.h"

struct scene {
    uv_loop_t loop;
    struct far_end far;
    struct mu_console *console;
    struct mu_console_source *a, *b;
    int flags; /* of the shared descriptor, before */
    bool closed;
};

static void on_closed(struct mu_console *console, void *ctx)
{
    struct scene *s = ctx;

    assert_ptr_equal(console, s->console);
    s->console = NULL;
    s->closed = true;
}

static void start_on(struct scene *s, int fd, bool thread_only)
{
    struct mu_console_config config = { .fd = fd, .name = "standard output", .thread_only = thread_only };
    struct muster_error err = { 0 };

    if (mu_console_start(&s->loop, &config, &s->console, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(mu_console_source_new(s->console, "A", "/logs/a", &s->a, NULL), 0);
    assert_int_equal(mu_console_source_new(s->console, "B", NULL, &s->b, NULL), 0);
}

static void start(struct scene *s, enum kind kind)
{
    far_end_open(&s->far, kind);
    s->flags = fcntl(s->far.fd, F_GETFL);
    start_on(s, s->far.fd, kind == THREAD);
    assert_int_equal(mu_console_stats(s->console).way, kind_ways[kind]);
}

static void close_console(struct scene *s, uint32_t wait_ms)
{
    mu_console_source_release(s->a);
    mu_console_source_release(s->b);
    s->a = NULL;
    s->b = NULL;
    mu_console_close(s->console, wait_ms, on_closed, s);
}

static void finish(struct scene *s)
{
    close_console(s, PATIENCE_MS);
    TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, SIZE_MAX), s->closed));
    assert_int_equal(fcntl(s->far.fd, F_GETFL), s->flags); /* never touched */
    far_end_close(&s->far);
    s->closed = false;
}

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    (void)signal(SIGPIPE, SIG_IGN);
    assert_int_equal(uv_loop_init(&s->loop), 0);
    listen_to_log();
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    muster_log_set_sink(NULL, NULL);
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    free(s);
    return 0;
}

static void put(struct mu_console_source *source, const char *prefix, const char *text)
{
    mu_console_put(source, mu_slice_str(prefix), mu_slice_str(text), true, true);
}

static void lines_come_out_with_their_prefix_in_order(void **state)
{
    struct scene *s = *state;

    for (int kind = PIPE; kind <= THREAD; kind++) {
        start(s, (enum kind)kind);
        put(s->a, "[a]:", "one");
        put(s->b, "[b]:", "two");
        put(s->a, "[a]:", "");
        mu_console_flush(s->console);
        TURN_UNTIL(&s->loop, s->far.reader, strlen(far_end_text(&s->far)) >= 21);
        assert_string_equal(far_end_text(&s->far), "[a]:one\n[b]:two\n[a]:\n");
        finish(s);
        assert_said_lines(0);
    }
}

static void pieces_of_a_long_line_have_one_prefix_unless_another_comes_between(void **state)
{
    struct scene *s = *state;
    struct mu_slice a = mu_slice_str("[a]:");

    start(s, PIPE);
    mu_console_put(s->a, a, mu_slice_str("one "), true, false);
    mu_console_put(s->a, a, mu_slice_str("line "), false, false);
    put(s->b, "[b]:", "between");
    mu_console_put(s->a, a, mu_slice_str("and "), false, false);
    mu_console_put(s->a, a, mu_slice_str("its end"), false, true);
    put(s->a, "[a]:", "next");
    mu_console_put(s->a, a, mu_slice_str("unfinished"), true, false);
    mu_console_source_release(s->a); /* goes, and its line is ended by whoever comes next */
    s->a = NULL;
    mu_console_flush(s->console);
    put(s->b, "[b]:", "last");
    mu_console_flush(s->console);
    assert_string_equal(far_end_text(&s->far),
                        "[a]:one line \n[b]:between\n[a]:and its end\n[a]:next\n[a]:unfinished\n[b]:last\n");
    finish(s);
}

/* Lines of 100 bytes: "<number>xxx..." */
static void put_numbered(struct mu_console_source *source, unsigned number)
{
    char line[101];
    size_t len = (size_t)snprintf(line, sizeof line, "%u ", number);

    memset(line + len, 'x', sizeof line - 1 - len);
    mu_console_put(source, mu_slice("[a]:", 4), mu_slice(line, 100), true, true);
}

/* Counts whole lines and checks that their numbers only ever grow. */
enum { NUMBERED_LEN = 105 };

/* What was written to a terminal gets to its other end when the kernel comes to it. */
static void hear_numbered(struct scene *s, uint64_t lines)
{
    TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, 65536), s->far.got.len >= lines * NUMBERED_LEN));
}

static unsigned count_numbered(struct far_end *far)
{
    const char *text = far_end_text(far);
    unsigned count = 0;
    long last = -1;

    while (*text != '\0') {
        const char *lf = strchr(text, '\n');

        assert_non_null(lf);
        assert_int_equal(lf + 1 - text, NUMBERED_LEN);
        assert_memory_equal(text, "[a]:", 4);
        assert_true(strtol(text + 4, NULL, 10) > last);
        last = strtol(text + 4, NULL, 10);
        count++;
        text = lf + 1;
    }
    return count;
}

static void a_console_that_blocks_costs_lines_that_are_counted_and_said(void **state)
{
    struct scene *s = *state;
    enum { LINES = 40000 }; /* 4 MB */

    for (int kind = PIPE; kind <= THREAD; kind++) {
        struct mu_console_stats stats;
        int64_t before_ms = now_ms();

        listen_to_log();
        start(s, (enum kind)kind);
        for (unsigned i = 0; i < LINES; i++) {
            put_numbered(s->a, i);
            if (i % 100 == 0) {
                mu_console_flush(s->console);
                (void)uv_run(&s->loop, UV_RUN_NOWAIT);
            }
        }
        assert_true(now_ms() - before_ms < PATIENCE_MS); /* we did not wait for it */
        stats = mu_console_stats(s->console);
        assert_true(stats.waiting <= MU_CONSOLE_SOURCE_BYTES_MAX + 65536);
        assert_true(stats.waiting > MU_CONSOLE_SOURCE_BYTES_MAX / 2);
        assert_true(stats.dropped_lines > LINES / 2 && stats.dropped_lines < LINES);
        assert_int_equal(stats.dropped_bytes, stats.dropped_lines * 100);
        assert_said_lines(0); /* not before it moves again */

        TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, 65536), mu_console_stats(s->console).waiting == 0));
        hear_numbered(s, LINES - stats.dropped_lines);
        assert_int_equal(count_numbered(&s->far) + stats.dropped_lines, LINES);
        TURN_UNTIL(&s->loop, -1, said.count > 0);
        assert_said_lines(1);
        assert_said("standard output did not keep up: ");
        assert_said(" of A were not shown; they are in /logs/a");
        put_numbered(s->a, LINES);
        mu_console_flush(s->console);
        TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, 65536), mu_console_stats(s->console).waiting == 0));
        finish(s); /* which waits only so long */
        assert_said_lines(1);
    }
}

static void a_slow_console_gets_everything_that_fits(void **state)
{
    struct scene *s = *state;
    enum { LINES = 9000 }; /* 0.9 MB: more than any pipe holds, less than the share */

    for (int kind = PIPE; kind <= THREAD; kind++) {
        start(s, (enum kind)kind);
        for (unsigned i = 0; i < LINES; i++)
            put_numbered(s->a, i);
        mu_console_flush(s->console);
        close_console(s, PATIENCE_MS);
        TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, 8192), s->closed));
        hear_numbered(s, LINES);
        assert_int_equal(count_numbered(&s->far), LINES);
        far_end_close(&s->far);
        s->closed = false;
        assert_said_lines(0);
    }
}

static void one_source_that_floods_does_not_silence_another(void **state)
{
    struct scene *s = *state;

    start(s, PIPE);
    for (unsigned i = 0; i < 40000; i++)
        put_numbered(s->a, i);
    put(s->b, "", "b is heard");
    mu_console_flush(s->console);
    TURN_UNTIL(&s->loop, s->far.reader, strstr(far_end_text(&s->far), "\nb is heard\n") != NULL);
    finish(s);
}

static void all_sources_together_have_a_limit_too(void **state)
{
    struct scene *s = *state;
    struct mu_console_source *sources[64];
    struct mu_console_stats stats;

    start(s, PIPE);
    for (size_t i = 0; i < COUNT(sources); i++) {
        char label[32];

        (void)snprintf(label, sizeof label, "source %zu", i);
        assert_int_equal(mu_console_source_new(s->console, label, NULL, &sources[i], NULL), 0);
        for (unsigned j = 0; j < 11000; j++)
            put_numbered(sources[i], j);
        mu_console_flush(s->console);
    }
    stats = mu_console_stats(s->console);
    assert_true(stats.waiting <= MU_CONSOLE_BYTES_MAX);
    assert_true(stats.waiting > MU_CONSOLE_BYTES_MAX - 70000);
    for (size_t i = 0; i < COUNT(sources); i++)
        mu_console_source_release(sources[i]); /* gone, with lines waiting and losses unsaid */
    finish(s);
    assert_true(times_said("did not keep up") >= 48);
    assert_int_equal(times_said("of source 63 "), 1);
}

static void the_rest_of_a_line_whose_beginning_was_dropped_is_dropped(void **state)
{
    struct scene *s = *state;
    struct mu_slice a = mu_slice_str("[a]:");
    static char piece[MU_LINES_LINE_MAX];
    bool starts = true;

    start(s, PIPE);
    memset(piece, 'p', sizeof piece);
    for (int i = 0; i < 20; i++, starts = false)
        mu_console_put(s->a, a, mu_slice(piece, sizeof piece), starts, false);
    assert_int_equal(mu_console_stats(s->console).dropped_lines, 1);
    TURN_UNTIL(&s->loop, s->far.reader,
               (far_end_read(&s->far, 65536), mu_console_flush(s->console), mu_console_stats(s->console).waiting == 0));
    mu_console_put(s->a, a, mu_slice_str("its end"), false, true);
    put(s->a, "[a]:", "next");
    mu_console_flush(s->console);
    {
        const char *text = far_end_text(&s->far);

        assert_null(strstr(text, "its end"));
        assert_non_null(strstr(text, "ppp\n[a]:next\n"));
    }
    finish(s);
}

static void a_reader_that_is_gone_is_said_once(void **state)
{
    struct scene *s = *state;

    for (int kind = PIPE; kind <= THREAD; kind++) {
        listen_to_log();
        start(s, (enum kind)kind);
        far_end_hang_up(&s->far);
        for (int i = 0; i < 3; i++) {
            put(s->a, "", "nobody hears this");
            mu_console_flush(s->console);
            TURN_UNTIL(&s->loop, -1, mu_console_stats(s->console).waiting == 0);
        }
        TURN_UNTIL(&s->loop, -1, said.count > 0);
        assert_int_equal(mu_console_stats(s->console).way, MU_CONSOLE_GONE);
        assert_int_equal(mu_console_stats(s->console).dropped_lines, 3);
        close_console(s, PATIENCE_MS);
        TURN_UNTIL(&s->loop, -1, s->closed);
        s->closed = false;
        far_end_close(&s->far);
        assert_said_lines(1);
        assert_said("standard output: ");
        assert_said("workers go on");
    }
}

static void a_reader_that_goes_while_lines_wait_ends_the_waiting(void **state)
{
    struct scene *s = *state;

    for (int kind = PIPE; kind <= THREAD; kind++) {
        start(s, (enum kind)kind);
        for (unsigned i = 0; i < 5000; i++)
            put_numbered(s->a, i);
        mu_console_flush(s->console);
        (void)uv_run(&s->loop, UV_RUN_NOWAIT);
        close_console(s, PATIENCE_MS);
        assert_false(s->closed);
        far_end_hang_up(&s->far);
        TURN_UNTIL(&s->loop, -1, s->closed);
        s->closed = false;
        far_end_close(&s->far);
    }
}

static void closing_waits_only_so_long(void **state)
{
    struct scene *s = *state;

    for (int kind = PIPE; kind <= THREAD; kind++) {
        listen_to_log();
        start(s, (enum kind)kind);
        for (unsigned i = 0; i < 9000; i++)
            put_numbered(s->a, i);
        mu_console_flush(s->console);
        close_console(s, 20);
        TURN_UNTIL(&s->loop, -1, s->closed);
        s->closed = false;
        assert_said("standard output is not being read: the last ");
        far_end_close(&s->far);
    }
}

static void a_closed_descriptor_is_said_once_and_costs_nothing_else(void **state)
{
    struct scene *s = *state;
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

    (void)close(fd);
    start_on(s, fd, false);
    assert_int_equal(mu_console_stats(s->console).way, MU_CONSOLE_GONE);
    assert_said_lines(0);
    put(s->a, "", "nobody hears this");
    mu_console_flush(s->console);
    TURN_UNTIL(&s->loop, -1, said.count > 0);
    assert_said("standard output: Bad file descriptor");
    close_console(s, PATIENCE_MS);
    TURN_UNTIL(&s->loop, -1, s->closed);
    assert_said_lines(1);
}

/* Others write to the same file through the same description: nobody overwrites anybody. */
static void a_file_is_written_where_the_others_write(void **state)
{
    struct scene *s = *state;
    struct own_dir dir;
    char path[128];
    int fd;

    own_dir_make(&dir);
    (void)snprintf(path, sizeof path, "%s/out", dir.path);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "shell\n", 6), 6);
    start_on(s, fd, false);
    assert_int_equal(mu_console_stats(s->console).way, MU_CONSOLE_DIRECT);
    put(s->a, "[a]:", "one");
    mu_console_flush(s->console);
    assert_int_equal(write(fd, "worker\n", 7), 7);
    put(s->a, "[a]:", "two");
    mu_console_flush(s->console);
    assert_file(dir.path, "out", "shell\n[a]:one\nworker\n[a]:two\n");
    close_console(s, PATIENCE_MS);
    TURN_UNTIL(&s->loop, -1, s->closed);
    (void)close(fd);
    own_dir_remove(&dir);
}

static void devices_without_readiness_are_written_directly(void **state)
{
    struct scene *s = *state;
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

    start_on(s, fd, false);
    assert_int_equal(mu_console_stats(s->console).way, MU_CONSOLE_DIRECT);
    put(s->a, "", "one");
    mu_console_flush(s->console);
    assert_int_equal(mu_console_stats(s->console).waiting, 0);
    close_console(s, PATIENCE_MS);
    TURN_UNTIL(&s->loop, -1, s->closed);
    (void)close(fd);
    assert_said_lines(0);
}

static void a_full_disk_under_the_console_is_said_once(void **state)
{
    struct scene *s = *state;
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        skip();
    start_on(s, fd, false);
    for (int i = 0; i < 5; i++) {
        put(s->a, "", "one");
        mu_console_flush(s->console);
    }
    assert_int_equal(mu_console_stats(s->console).dropped_lines, 5);
    TURN_UNTIL(&s->loop, -1, said.count > 0);
    close_console(s, PATIENCE_MS);
    TURN_UNTIL(&s->loop, -1, s->closed);
    assert_said_lines(1);
    assert_said("standard output: No space left on device");
    (void)close(fd);
}

/* A writer that waits for somebody else's non-blocking pipe is woken up when there is room. */
static void a_thread_copes_with_a_description_made_non_blocking_by_others(void **state)
{
    struct scene *s = *state;

    start(s, THREAD);
    assert_int_equal(fcntl(s->far.fd, F_SETFL, s->flags | O_NONBLOCK), 0);
    s->flags |= O_NONBLOCK;
    for (unsigned i = 0; i < 5000; i++)
        put_numbered(s->a, i);
    mu_console_flush(s->console);
    close_console(s, PATIENCE_MS);
    TURN_UNTIL(&s->loop, s->far.reader, (far_end_read(&s->far, SIZE_MAX), s->closed));
    assert_int_equal(count_numbered(&s->far), 5000);
    far_end_close(&s->far);
}

/* As after `su`: the terminal belongs to somebody else, and may be written to but not opened. */
static void where_it_may_not_be_opened_again_a_thread_writes(void **state)
{
    struct scene *s = *state;

    if (geteuid() != 0)
        skip();
    for (int kind = PIPE; kind <= PTY; kind++) {
        far_end_open(&s->far, (enum kind)kind);
        s->flags = fcntl(s->far.fd, F_GETFL);
        assert_int_equal(seteuid(65534), 0);
        start_on(s, s->far.fd, false);
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(mu_console_stats(s->console).way, MU_CONSOLE_THREAD);
        put(s->a, "[a]:", "one");
        mu_console_flush(s->console);
        TURN_UNTIL(&s->loop, s->far.reader, strcmp(far_end_text(&s->far), "[a]:one\n") == 0);
        finish(s);
    }
}

/* The launcher's log goes through the console as well: what the console has to say comes back to itself. */
static void log_to_console(void *ctx, enum muster_log_level level, const char *line)
{
    struct scene *s = ctx;

    (void)level;
    mu_console_put(s->b, mu_slice_str("W "), mu_slice_str(line), true, true);
    mu_console_flush(s->console);
}

static void the_log_may_write_to_the_console_it_is_about(void **state)
{
    struct scene *s = *state;

    start(s, PIPE);
    muster_log_set_sink(log_to_console, s);
    for (unsigned i = 0; i < 20000; i++)
        put_numbered(s->a, i);
    mu_console_flush(s->console);
    TURN_UNTIL(&s->loop, s->far.reader, strstr(far_end_text(&s->far), "\nW standard output did not keep up") != NULL);
    far_end_hang_up(&s->far);
    put(s->a, "", "nobody hears this");
    mu_console_flush(s->console);
    for (int i = 0; i < 5; i++)
        turn(&s->loop, -1);
    muster_log_set_sink(NULL, NULL);
    close_console(s, PATIENCE_MS);
    TURN_UNTIL(&s->loop, -1, s->closed);
    far_end_close(&s->far);
}

static void an_idle_console_keeps_no_loop_alive(void **state)
{
    struct scene *s = *state;

    for (int kind = PIPE; kind <= THREAD; kind++) {
        start(s, (enum kind)kind);
        put(s->a, "", "one");
        mu_console_flush(s->console);
        (void)uv_run(&s->loop, UV_RUN_DEFAULT); /* returns */
        assert_string_equal(far_end_text(&s->far), "one\n");
        finish(s);
    }
}

static void without_memory_lines_are_dropped_and_said(void **state)
{
    struct scene *s = *state;

    FOR_EACH_FAILURE (n) {
        struct mu_console_config config = { .name = "standard output" };
        struct muster_error err = { 0 };
        int rc;

        far_end_open(&s->far, n % 2 == 0 ? THREAD : PIPE);
        config.fd = s->far.fd;
        config.thread_only = n % 2 == 0;
        rc = mu_console_start(&s->loop, &config, &s->console, &err);
        if (rc == 0)
            rc = mu_console_source_new(s->console, "A", NULL, &s->a, &err);
        if (rc == 0) {
            put(s->a, "", "one");
            mu_console_flush(s->console);
            mu_console_source_release(s->a);
        } else {
            assert_int_equal(rc, MUSTER_ENOMEM);
        }
        if (s->console != NULL) {
            mu_console_close(s->console, PATIENCE_MS, on_closed, s);
            TURN_UNTIL(&s->loop, -1, s->closed);
        }
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
        s->closed = false;
        far_end_close(&s->far);
        s->a = NULL;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_come_out_with_their_prefix_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(pieces_of_a_long_line_have_one_prefix_unless_another_comes_between, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_console_that_blocks_costs_lines_that_are_counted_and_said, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_console_gets_everything_that_fits, setup, teardown),
        cmocka_unit_test_setup_teardown(one_source_that_floods_does_not_silence_another, setup, teardown),
        cmocka_unit_test_setup_teardown(all_sources_together_have_a_limit_too, setup, teardown),
        cmocka_unit_test_setup_teardown(the_rest_of_a_line_whose_beginning_was_dropped_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reader_that_is_gone_is_said_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reader_that_goes_while_lines_wait_ends_the_waiting, setup, teardown),
        cmocka_unit_test_setup_teardown(closing_waits_only_so_long, setup, teardown),
        cmocka_unit_test_setup_teardown(a_closed_descriptor_is_said_once_and_costs_nothing_else, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_is_written_where_the_others_write, setup, teardown),
        cmocka_unit_test_setup_teardown(devices_without_readiness_are_written_directly, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_under_the_console_is_said_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_thread_copes_with_a_description_made_non_blocking_by_others, setup, teardown),
        cmocka_unit_test_setup_teardown(where_it_may_not_be_opened_again_a_thread_writes, setup, teardown),
        cmocka_unit_test_setup_teardown(the_log_may_write_to_the_console_it_is_about, setup, teardown),
        cmocka_unit_test_setup_teardown(an_idle_console_keeps_no_loop_alive, setup, teardown),
        cmocka_unit_test_setup_teardown(without_memory_lines_are_dropped_and_said, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
