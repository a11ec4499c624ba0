/* The output of one attempt, with real processes as workers. */
#include "console_scene.h"
#include "failmalloc.h"
#include "logs/logs_uv.h"
#include "logs/tail.h"

#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { WORKERS_MAX = 64 };

typedef int work_fn(uint32_t local_rank); /* in the child; returns its exit code */

struct scene {
    struct own_dir dir;
    uv_loop_t loop;
    struct far_end out, err; /* standard output and error, as whoever started us sees them */
    struct mu_console *consoles[2];
    unsigned consoles_open;
    struct mu_logtree tree;
    struct mu_redirects redirects, tees;
    struct mu_ranks_shown shown;
    struct mu_filters filters;
    struct mu_logs_config config;
    struct mu_disk *disk;
    bool disk_closed;
    struct mu_logs *logs;
    bool opened;
    struct muster_error error;  /* of opening them */
    struct mu_logs_stats stats; /* in the end */
    pid_t pids[WORKERS_MAX];
    unsigned finished;
};

static int setup(void **state)
{
    struct mu_console_config config = { .name = "standard output" };
    struct scene *s = calloc(1, sizeof *s);

    (void)signal(SIGPIPE, SIG_IGN);
    own_dir_make(&s->dir);
    assert_int_equal(uv_loop_init(&s->loop), 0);
    far_end_open(&s->out, PIPE);
    far_end_open(&s->err, PIPE);
    config.fd = s->out.fd;
    assert_int_equal(mu_console_start(&s->loop, &config, &s->consoles[0], NULL), 0);
    config.fd = s->err.fd;
    config.name = "standard error";
    assert_int_equal(mu_console_start(&s->loop, &config, &s->consoles[1], NULL), 0);
    s->consoles_open = 2;
    assert_int_equal(mu_disk_start(&s->loop, &(struct mu_disk_config){ 0 }, &s->disk, NULL), 0);
    listen_to_log();
    s->config = (struct mu_logs_config){
        .disk = s->disk,
        .tree = &s->tree,
        .workers = 2,
        .redirects = &s->redirects,
        .tees = &s->tees,
        .shown = &s->shown,
        .filters_out = &s->filters,
        .out = s->consoles[0],
        .err = s->consoles[1],
    };
    *state = s;
    return 0;
}

static void on_console_closed(struct mu_console *console, void *ctx)
{
    (void)console;
    ((struct scene *)ctx)->consoles_open--;
}

static void on_disk_closed(void *ctx, bool hangs)
{
    (void)hangs;
    ((struct scene *)ctx)->disk_closed = true;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    mu_console_close(s->consoles[0], 0, on_console_closed, s);
    mu_console_close(s->consoles[1], 0, on_console_closed, s);
    mu_disk_close(s->disk, PATIENCE_MS, on_disk_closed, s);
    TURN_UNTIL(&s->loop, -1, s->consoles_open == 0 && s->disk_closed);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    far_end_close(&s->out);
    far_end_close(&s->err);
    mu_filters_done(&s->filters);
    own_dir_remove(&s->dir);
    free(s);
    return 0;
}

static void open_tree_at(struct scene *s, const char *log_dir)
{
    struct mu_logtree_config config = { .log_dir = log_dir, .run_id = "job", .seed = 3 };

    assert_int_equal(mu_logtree_open(&s->tree, &config, NULL), 0);
}

static void on_opened(void *ctx, const struct muster_error *error)
{
    struct scene *s = ctx;

    s->opened = true;
    s->error = error != NULL ? *error : (struct muster_error){ 0 };
}

/* What came of it. */
static int try_open(struct scene *s)
{
    int rc = mu_logs_open(&s->loop, &s->config, on_opened, s, &s->logs, &s->error);

    s->opened = false;
    if (rc < 0)
        return rc;
    TURN_UNTIL(&s->loop, -1, s->opened);
    return s->error.code;
}

/* ---- What the thread has been given is done */

struct marker {
    struct mu_file_job job;
    bool done;
};

static void run_marker(struct mu_file_job *job)
{
    (void)job;
}

static void on_marker(struct mu_file_job *job)
{
    MU_LIST_ITEM(job, struct marker, job)->done = true;
}

static void settle(struct scene *s)
{
    struct marker marker = { .job = { .run = run_marker, .done = on_marker, .drop = on_marker } };

    mu_disk_submit(s->disk, &marker.job);
    TURN_UNTIL(&s->loop, -1, marker.done);
}

/* `tees` and `redirects` as on the command line. */
static void open_logs(struct scene *s, const char *redirects, const char *tees)
{
    if (s->tree.run_id[0] == '\0')
        open_tree_at(s, s->dir.path);
    assert_int_equal(mu_redirects_parse("-r", redirects, &s->redirects, NULL), 0);
    assert_int_equal(mu_redirects_parse("-t", tees, &s->tees, NULL), 0);
    if (try_open(s) < 0)
        fail_msg("%s", s->error.text);
}

/* Inherits what stands for our standard output and error. */
static void spawn(struct scene *s, uint32_t local_rank, work_fn *work)
{
    struct mu_logs_stdio io = mu_logs_stdio(s->logs, local_rank);
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        (void)dup2(io.out >= 0 ? io.out : s->out.fd, 1);
        (void)dup2(io.err >= 0 ? io.err : s->err.fd, 2);
        for (int fd = 3; fd < 1024; fd++)
            (void)close(fd);
        _exit(work(local_rank));
    }
    s->pids[local_rank] = pid;
    mu_logs_spawned(s->logs, local_rank);
}

static void spawn_all(struct scene *s, work_fn *work)
{
    for (uint32_t i = 0; i < s->config.workers; i++)
        spawn(s, i, work);
}

static void turn_and_read(struct scene *s)
{
    turn(&s->loop, s->out.reader);
    far_end_read(&s->out, SIZE_MAX);
    far_end_read(&s->err, SIZE_MAX);
}

/* Until it is dead; the loop runs meanwhile. */
static int reap(struct scene *s, uint32_t local_rank)
{
    int64_t until_ms = now_ms() + PATIENCE_MS;
    int status;

    while (waitpid(s->pids[local_rank], &status, WNOHANG) == 0) {
        turn_and_read(s);
        assert_true(now_ms() < until_ms);
    }
    mu_logs_worker_exited(s->logs, local_rank);
    return status;
}

static void on_finished(void *ctx, const struct mu_logs_stats *stats)
{
    struct scene *s = ctx;

    s->stats = *stats;
    s->finished++;
}

static void finish(struct scene *s)
{
    s->finished = 0;
    mu_logs_finish(s->logs, on_finished, s);
    assert_int_equal(s->finished, 0);
    TURN_UNTIL(&s->loop, -1, (turn_and_read(s), s->finished == 1));
    TURN_UNTIL(
        &s->loop, -1,
        (turn_and_read(s), mu_console_stats(s->consoles[0]).waiting + mu_console_stats(s->consoles[1]).waiting == 0));
    turn_and_read(s);
    s->logs = NULL;
    settle(s);
}

static void run(struct scene *s, work_fn *work)
{
    spawn_all(s, work);
    for (uint32_t i = 0; i < s->config.workers; i++)
        assert_int_equal(reap(s, i), 0);
}

static void print(int fd, const char *format, unsigned number)
{
    char text[128];
    int len = snprintf(text, sizeof text, format, number);

    if (write(fd, text, (size_t)len) != len)
        _exit(77);
}

static int talk(uint32_t local_rank)
{
    print(1, "out-%u\n", local_rank);
    print(2, "err-%u\n", local_rank);
    print(1, "no newline at end %u", local_rank);
    return 0;
}

/* Both workers' lines may come in any order; a rank's own do not change places. */
static void assert_lines(struct far_end *far, const char *const *lines, size_t count)
{
    const char *text = far_end_text(far);
    size_t len = 0;

    for (size_t i = 0; i < count; i++) {
        const char *at = strstr(text, lines[i]);

        len += strlen(lines[i]);
        if (at == NULL || (at != text && at[-1] != '\n'))
            fail_msg("no line '%s' in '%s'", lines[i], text);
    }
    assert_int_equal(strlen(text), len);
}

static void redirected_output_goes_to_files_without_us(void **state)
{
    struct scene *s = *state;
    char dir[MU_LOGTREE_PATH_MAX];

    open_logs(s, "3", "0");
    (void)strcpy(dir, mu_logs_directory(s->logs));
    run(s, talk);
    assert_int_equal(mu_logs_stats(s->logs).pipes_open, 0);
    finish(s);
    assert_file(dir, "0/stdout.log", "out-0\nno newline at end 0");
    assert_file(dir, "0/stderr.log", "err-0\n");
    assert_file(dir, "1/stdout.log", "out-1\nno newline at end 1");
    assert_file(dir, "1/stderr.log", "err-1\n");
    assert_string_equal(far_end_text(&s->out), "");
    assert_string_equal(far_end_text(&s->err), "");
    assert_int_equal(s->stats.bytes, 0);
    assert_int_equal(said.count, 0);
}

static void tee_goes_to_files_and_to_the_console(void **state)
{
    static const char *const out[] = { "[default0]:out-0\n", "[default0]:no newline at end 0\n", "[default1]:out-1\n",
                                       "[default1]:no newline at end 1\n" };
    static const char *const err[] = { "[default0]:err-0\n", "[default1]:err-1\n" };
    struct scene *s = *state;
    char dir[MU_LOGTREE_PATH_MAX];

    open_logs(s, "0", "3");
    (void)strcpy(dir, mu_logs_directory(s->logs));
    run(s, talk);
    finish(s);
    assert_file(dir, "0/stdout.log", "out-0\nno newline at end 0");
    assert_file(dir, "1/stderr.log", "err-1\n");
    assert_lines(&s->out, out, COUNT(out));
    assert_lines(&s->err, err, COUNT(err));
    assert_int_equal(s->stats.bytes, 2 * (6 + 19 + 6));
    assert_int_equal(s->stats.pipes_open, 0);
    assert_int_equal(said.count, 0);
}

static void each_stream_of_each_rank_is_treated_by_itself(void **state)
{
    struct scene *s = *state;
    char dir[MU_LOGTREE_PATH_MAX], path[MU_LOGTREE_PATH_MAX + 32];

    open_logs(s, "0:1,1:2", "0:2");
    (void)strcpy(dir, mu_logs_directory(s->logs));
    run(s, talk);
    finish(s);
    assert_string_equal(far_end_text(&s->out), "out-1\nno newline at end 1");
    assert_string_equal(far_end_text(&s->err), "[default0]:err-0\n");
    assert_file(dir, "0/stdout.log", "out-0\nno newline at end 0");
    assert_file(dir, "0/stderr.log", "err-0\n");
    assert_file(dir, "1/stderr.log", "err-1\n");
    (void)snprintf(path, sizeof path, "%s/1/stdout.log", dir);
    assert_false(is_there(path));
}

static void the_prefix_is_the_users(void **state)
{
    static const uint32_t ranks[] = { 6, 7 };
    static const char *const out[] = { "{tr|6|0|here}out-0\n", "{tr|6|0|here}no newline at end 0\n",
                                       "{tr|7|1|here}out-1\n", "{tr|7|1|here}no newline at end 1\n" };
    struct scene *s = *state;

    s->config.role = "tr";
    s->config.ranks = ranks;
    s->config.host = "here";
    s->config.prefix_template = "{${role_name}|${rank}|${local_rank}|${hostname}}";
    open_logs(s, "0", "1");
    run(s, talk);
    finish(s);
    assert_lines(&s->out, out, COUNT(out));
}

static void ranks_that_are_left_out_are_in_files_but_not_shown(void **state)
{
    struct scene *s = *state;
    char dir[MU_LOGTREE_PATH_MAX];

    assert_int_equal(mu_ranks_shown_parse("-", "1", &s->shown, NULL), 0);
    open_logs(s, "0", "1");
    (void)strcpy(dir, mu_logs_directory(s->logs));
    run(s, talk);
    finish(s);
    assert_string_equal(far_end_text(&s->out), "[default1]:out-1\n[default1]:no newline at end 1\n");
    assert_string_equal(far_end_text(&s->err), "err-1\n"); /* rank 0's is in /dev/null */
    assert_file(dir, "0/stdout.log", "out-0\nno newline at end 0");
}

static void with_dev_null_everything_is_inherited(void **state)
{
    struct scene *s = *state;
    struct mu_logs_stdio io;

    open_tree_at(s, "/dev/null");
    assert_int_equal(mu_filters_parse("-", "x", &s->filters, NULL), 0);
    open_logs(s, "3", "3");
    io = mu_logs_stdio(s->logs, 1);
    assert_true(io.in == -1 && io.out == -1 && io.err == -1);
    assert_string_equal(mu_logs_directory(s->logs), "");
    assert_string_equal(mu_logs_error_file(s->logs, 0), "");
    finish(s);
}

static void error_files_are_named_but_not_made(void **state)
{
    struct scene *s = *state;
    char expected[MU_LOGTREE_PATH_MAX + 32];

    open_logs(s, "0", "0");
    (void)snprintf(expected, sizeof expected, "%s/1/error.json", mu_logs_directory(s->logs));
    assert_string_equal(mu_logs_error_file(s->logs, 1), expected);
    assert_false(is_there(expected));
    write_file(expected, ""); /* but can be */
    finish(s);
}

static void lines_that_match_are_in_one_file_for_all(void **state)
{
    struct scene *s = *state;
    char path[MU_LOGTREE_PATH_MAX + 32], *text;

    assert_int_equal(mu_filters_parse("-", "no,never", &s->filters, NULL), 0);
    open_logs(s, "0", "3");
    (void)snprintf(path, sizeof path, "%s/filtered_stdout.log", mu_logs_directory(s->logs));
    run(s, talk);
    finish(s);
    text = read_whole(path, NULL);
    assert_non_null(strstr(text, "[default0]:no newline at end 0\n"));
    assert_non_null(strstr(text, "[default1]:no newline at end 1\n"));
    assert_int_equal(strlen(text), 2 * strlen("[default0]:no newline at end 0\n"));
    free(text);
}

static int die_mid_line(uint32_t local_rank)
{
    for (int i = 0; i < 5000; i++)
        print(2, "Traceback, line %u\n", (unsigned)i);
    print(2, "local rank %u dies in the midd", local_rank);
    (void)kill(getpid(), SIGKILL);
    return 1;
}

static void a_worker_that_is_killed_mid_line_loses_nothing(void **state)
{
    struct scene *s = *state;
    struct mu_buf text = { 0 };

    for (int tee = 0; tee < 2; tee++) {
        s->config.workers = 1;
        open_logs(s, "3", tee ? "3" : "0");
        spawn(s, 0, die_mid_line);
        assert_int_equal(WTERMSIG(reap(s, 0)), SIGKILL);
        assert_int_equal(mu_logs_stats(s->logs).pipes_open, 0); /* both are read to the end, at once */
        assert_int_equal(mu_logs_tail(s->logs, 0, &text), 0);
        assert_int_equal(mu_logs_tail_file(s->logs, 0) == NULL, tee);
        if (!tee) { /* it went past us */
            assert_int_equal(text.len, 0);
            assert_int_equal(mu_tail_file(mu_logs_tail_file(s->logs, 0), &text), 0);
        }
        assert_int_equal(mu_buf_append(&text, "", 1, SIZE_MAX), 0);
        assert_non_null(strstr(text.data, "\nTraceback, line 4999\nlocal rank 0 dies in the midd"));
        assert_memory_equal(text.data, "Traceback, line 4981\n", 21); /* twenty lines */
        finish(s);
        if (tee) {
            assert_non_null(strstr(far_end_text(&s->err), "[default0]:Traceback, line 0\n"));
            assert_non_null(strstr(far_end_text(&s->err), "\n[default0]:local rank 0 dies in the midd\n"));
        }
    }
    mu_buf_done(&text);
}

static void output_that_went_past_us_has_no_tail(void **state)
{
    struct scene *s = *state;
    struct mu_buf text = { 0 };

    open_logs(s, "1", "0");
    run(s, talk);
    assert_int_equal(mu_logs_tail(s->logs, 0, &text), 0);
    assert_int_equal(text.len, 0);
    finish(s);
    mu_buf_done(&text);
}

/* Lives until the pipe that is its standard input is closed. */
static int grandchild_in[2];

static int leave_a_child(uint32_t local_rank)
{
    char byte;

    print(1, "worker %u\n", local_rank);
    if (fork() > 0)
        return 0;
    print(1, "its child %u", local_rank);
    return read(0, &byte, 1) < 0 ? 1 : 0;
}

static void a_process_that_outlives_its_worker_is_not_waited_for_long(void **state)
{
    struct scene *s = *state;
    int kept = fcntl(0, F_DUPFD_CLOEXEC, 3);

    assert_int_equal(pipe2(grandchild_in, O_CLOEXEC), 0);
    (void)dup2(grandchild_in[0], 0);
    s->config.workers = 1;
    s->config.drain_ms = 30;
    open_logs(s, "0", "1");
    spawn(s, 0, leave_a_child);
    assert_int_equal(reap(s, 0), 0);
    TURN_UNTIL(&s->loop, -1, mu_logs_stats(s->logs).bytes == 20);
    assert_int_equal(mu_logs_stats(s->logs).pipes_open, 1);
    finish(s);
    assert_int_equal(s->stats.pipes_open, 1);
    assert_said("a process that local rank 0 left behind holds its standard output open; muster stops reading it");
    assert_string_equal(far_end_text(&s->out), "[default0]:worker 0\n[default0]:its child 0\n");
    (void)close(grandchild_in[1]);
    (void)close(grandchild_in[0]);
    if (kept >= 0) {
        (void)dup2(kept, 0);
        (void)close(kept);
    }
}

static void the_next_attempt_may_begin_before_the_last_is_drained(void **state)
{
    struct scene *s = *state;
    struct mu_logs *first, *second;

    s->config.drain_ms = 1;
    open_logs(s, "3", "3");
    first = s->logs;
    open_logs(s, "3", "3");
    second = s->logs;
    assert_non_null(strstr(mu_logs_directory(first), "/attempt_0"));
    assert_string_not_equal(mu_logs_directory(first), mu_logs_directory(second));
    mu_logs_finish(first, on_finished, s);
    mu_logs_finish(second, on_finished, s);
    TURN_UNTIL(&s->loop, -1, s->finished == 2);
}

static int chatter(uint32_t local_rank)
{
    char line[64];

    for (int i = 0; i < 500; i++) {
        int len = snprintf(line, sizeof line, "rank %u line %d of standard output\n", (unsigned)local_rank, i);

        for (int at = 0; at < len; at += 7) /* in pieces that mix with everybody else's */
            if (write(1, line + at, (size_t)(len - at < 7 ? len - at : 7)) < 0)
                return 1;
        if (i % 10 == 0)
            print(2, "error %u\n", (unsigned)i);
    }
    return 0;
}

static void sixty_four_workers_are_heard_line_by_line(void **state)
{
    struct scene *s = *state;
    unsigned next[WORKERS_MAX] = { 0 }, lines = 0;
    char dir[MU_LOGTREE_PATH_MAX], path[MU_LOGTREE_PATH_MAX + 32], *file;
    const char *text;

    s->config.workers = WORKERS_MAX;
    open_logs(s, "0", "3");
    (void)strcpy(dir, mu_logs_directory(s->logs));
    run(s, chatter);
    finish(s);
    assert_int_equal(said.count, 0);
    for (text = far_end_text(&s->out); *text != '\0'; text = strchr(text, '\n') + 1, lines++) {
        unsigned label, rank, number;
        int end = 0;

        assert_int_equal(sscanf(text, "[default%u]:rank %u line %u of standard output%n", &label, &rank, &number, &end),
                         3);
        assert_int_equal(text[end], '\n');
        assert_int_equal(label, rank);
        assert_int_equal(number, next[rank]);
        next[rank]++;
    }
    assert_int_equal(lines, WORKERS_MAX * 500);
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        char *at, expected[64];

        (void)snprintf(path, sizeof path, "%s/%u/stdout.log", dir, i);
        file = at = read_whole(path, NULL);
        for (unsigned j = 0; j < 500; j++) {
            (void)snprintf(expected, sizeof expected, "rank %u line %u of standard output\n", i, j);
            assert_memory_equal(at, expected, strlen(expected));
            at += strlen(expected);
        }
        assert_int_equal(*at, '\0');
        free(file);
    }
}

/* ---- Trouble */

static int flood(uint32_t local_rank)
{
    char line[100];

    (void)local_rank;
    memset(line, 'x', sizeof line);
    line[99] = '\n';
    for (int i = 0; i < 30000; i++) /* 3 MB */
        if (write(1, line, sizeof line) != sizeof line)
            return 1;
    return 0;
}

/* Nobody reads the console until the workers are dead. */
static void flood_a_blocked_console(struct scene *s)
{
    s->config.drain_ms = 50;
    open_logs(s, "0", "1");
    spawn_all(s, flood);
    for (uint32_t i = 0; i < s->config.workers; i++) {
        int status = -1;

        TURN_UNTIL(&s->loop, -1, waitpid(s->pids[i], &status, WNOHANG) != 0);
        assert_int_equal(status, 0);
        mu_logs_worker_exited(s->logs, i);
    }
    assert_true(mu_logs_stats(s->logs).bytes_not_shown > 3000000);
    mu_logs_finish(s->logs, on_finished, s);
}

static void a_console_that_never_moves_is_not_waited_for_long(void **state)
{
    struct scene *s = *state;

    flood_a_blocked_console(s);
    TURN_UNTIL(&s->loop, -1, s->finished == 1);
    assert_true(s->stats.bytes_not_shown > 3000000);
    assert_int_equal(times_said("were not shown: the console does not keep up"), 2);
}

static void a_console_that_moves_gets_everything_in_the_end(void **state)
{
    struct scene *s = *state;

    flood_a_blocked_console(s);
    TURN_UNTIL(&s->loop, s->out.reader, (far_end_read(&s->out, 4096), s->finished == 1));
    TURN_UNTIL(&s->loop, s->out.reader, (far_end_read(&s->out, SIZE_MAX), s->out.got.len == 2 * 30000 * 111));
    assert_int_equal(s->stats.bytes_not_shown, 0);
    assert_int_equal(said.count, 0);
}

static unsigned open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    (void)closedir(dir);
    return count;
}

static void too_few_descriptors_are_an_error_that_leaves_nothing_open(void **state)
{
    struct scene *s = *state;
    struct rlimit before, low;
    unsigned open_before;
    int rc;

    open_tree_at(s, s->dir.path);
    s->config.workers = 32;
    s->tees.all = MU_STD_BOTH;
    open_before = open_fds();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = open_before + 20;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    rc = try_open(s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, MUSTER_ESYSTEM);
    assert_non_null(strstr(s->error.text, "output of the workers: "));
    assert_non_null(strstr(s->error.text, "Too many open files"));
    TURN_UNTIL(&s->loop, -1, open_fds() == open_before);
}

static void a_log_directory_that_vanished_is_an_error(void **state)
{
    struct scene *s = *state;
    char path[128];

    (void)snprintf(path, sizeof path, "%s/logs", s->dir.path);
    open_tree_at(s, path);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(try_open(s), MUSTER_ESYSTEM);
    assert_non_null(strstr(s->error.text, "output of the workers: log directory: make directory '"));
    settle(s);
}

static void without_memory_there_is_an_error_and_nothing_left_open(void **state)
{
    struct scene *s = *state;
    unsigned open_before;

    settle(s); /* the thread is there */
    open_before = open_fds();
    open_tree_at(s, s->dir.path);
    assert_int_equal(mu_filters_parse("-", "x", &s->filters, NULL), 0);
    s->redirects.all = MU_STD_BOTH;
    assert_int_equal(mu_redirects_parse("-", "1:3", &s->tees, NULL), 0);
    FOR_EACH_FAILURE (n) {
        int rc = try_open(s);

        s->finished = 0;
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        if (rc == 0)
            mu_logs_finish(s->logs, on_finished, s);
        TURN_UNTIL(&s->loop, -1, open_fds() == open_before && (rc < 0 || s->finished == 1));
    }
    assert_int_equal(s->finished, 1);
}

static int write_much(uint32_t local_rank)
{
    (void)local_rank;
    for (int i = 0; i < 2000; i++) /* 200 kB; whoever has a file of their own is told, and goes on */
        if (dprintf(1, "%-99d\n", i) < 0)
            continue;
    return 0;
}

/* A disk of 64 kB with so many files; false where we may not mount one. It goes with this process. */
static bool mount_small_disk(struct scene *s, const char *options)
{
    static bool is_apart; /* once is enough, and the thread that writes files comes along */

    if (!is_apart && (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0))
        return false;
    is_apart = true;
    return mount("tmpfs", s->dir.path, "tmpfs", 0, options) == 0;
}

static void unmount(struct scene *s)
{
    assert_int_equal(umount(s->dir.path), 0);
}

static void on_a_full_disk_workers_go_on_and_the_console_is_whole(void **state)
{
    struct scene *s = *state;
    unsigned lines = 0;

    if (!mount_small_disk(s, "size=64k"))
        skip();
    s->config.workers = 1;
    open_logs(s, "0", "1");
    run(s, write_much);
    finish(s);
    for (const char *at = far_end_text(&s->out); (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    assert_int_equal(lines, 2000);
    assert_true(s->stats.file_bytes_lost > 100000 && s->stats.file_bytes_lost < 200000);
    assert_int_equal(times_said("No space left on device; the worker goes on"), 1);
    assert_int_equal(times_said("' lacks "), 1);
    unmount(s);
}

static void on_a_full_disk_redirected_output_is_said_to_be_cut_off(void **state)
{
    struct scene *s = *state;

    if (!mount_small_disk(s, "size=64k"))
        skip();
    s->config.workers = 1;
    open_logs(s, "1", "0");
    run(s, write_much);
    finish(s);
    assert_said("' is full: output that workers redirected there may be cut off");
    unmount(s);
}

static void a_disk_that_is_full_from_the_start_costs_files_but_no_worker(void **state)
{
    struct scene *s = *state;

    for (int inodes = 1; inodes < 9; inodes++) { /* it is full a step later each time */
        char options[64];

        (void)snprintf(options, sizeof options, "size=64k,nr_inodes=%d", inodes);
        if (!mount_small_disk(s, options))
            skip();
        memset(&s->tree, 0, sizeof s->tree);
        listen_to_log();
        s->out.got.len = 0;
        open_logs(s, "2", "1");
        assert_int_equal(said.count, 1);
        assert_said("No space left on device; workers go on");
        run(s, talk);
        finish(s);
        assert_non_null(strstr(far_end_text(&s->out), "[default0]:out-0\n"));
        assert_non_null(strstr(far_end_text(&s->out), "[default1]:no newline at end 1\n"));
        unmount(s);
    }
}

/* ---- A file system that does not answer: a job in front of ours waits for the other end of a FIFO */

struct hang {
    struct mu_file_job job;
    char path[128];
};

static void run_hang(struct mu_file_job *job)
{
    int fd = open(MU_LIST_ITEM(job, struct hang, job)->path, O_WRONLY | O_CLOEXEC);

    if (fd >= 0)
        (void)close(fd);
}

static void free_hang(struct mu_file_job *job)
{
    free(MU_LIST_ITEM(job, struct hang, job));
}

/* With files that are soon said to be silent. */
static void setup_silence(struct scene *s)
{
    mu_disk_close(s->disk, PATIENCE_MS, on_disk_closed, s);
    TURN_UNTIL(&s->loop, -1, s->disk_closed);
    s->disk_closed = false;
    assert_int_equal(mu_disk_start(&s->loop, &(struct mu_disk_config){ .silent_ms = 40 }, &s->disk, NULL), 0);
    s->config.disk = s->disk;
    s->config.workers = 1;
    s->config.drain_ms = 10;
}

static void hang(struct scene *s)
{
    struct hang *h = calloc(1, sizeof *h);

    h->job = (struct mu_file_job){ .run = run_hang, .done = free_hang, .drop = free_hang };
    (void)snprintf(h->path, sizeof h->path, "%s/fifo", s->dir.path);
    (void)mkfifo(h->path, 0600);
    mu_disk_submit(s->disk, &h->job);
}

static void answer(struct scene *s)
{
    char path[128];
    int fd;

    (void)snprintf(path, sizeof path, "%s/fifo", s->dir.path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    (void)close(fd);
}

static void an_attempt_whose_directory_does_not_answer_goes_on_without_files(void **state)
{
    struct scene *s = *state;

    setup_silence(s);
    hang(s);
    for (int i = 0; i < 2; i++) { /* the second need not wait to find out */
        s->out.got.len = 0;
        open_logs(s, "2", "1");
        assert_int_equal(times_said("' does not answer; workers go on without log files and error files"), i + 1);
        assert_string_equal(mu_logs_directory(s->logs), "");
        assert_string_equal(mu_logs_error_file(s->logs, 0), "");
        spawn_all(s, talk);
        assert_int_equal(reap(s, 0), 0);
        mu_logs_finish(s->logs, on_finished, s);
        s->finished = 0;
        TURN_UNTIL(&s->loop, -1, (turn_and_read(s), s->finished == 1));
        TURN_UNTIL(&s->loop, -1, (turn_and_read(s), mu_console_stats(s->consoles[0]).waiting == 0));
        assert_string_equal(far_end_text(&s->out), "[default0]:out-0\n[default0]:no newline at end 0\n");
    }
    answer(s);
    settle(s);
    listen_to_log();
    s->out.got.len = 0;
    open_logs(s, "2", "1"); /* and the next one has files again */
    assert_string_not_equal(mu_logs_directory(s->logs), "");
    assert_int_equal(said.count, 0);
    run(s, talk);
    finish(s);
}

static void an_attempt_that_is_being_opened_can_be_given_up(void **state)
{
    struct scene *s = *state;
    unsigned open_before = open_fds();

    setup_silence(s);
    open_tree_at(s, s->dir.path);
    s->tees.all = MU_STD_BOTH;
    for (int hung = 0; hung < 2; hung++) {
        if (hung)
            hang(s);
        s->opened = false;
        s->finished = 0;
        assert_int_equal(mu_logs_open(&s->loop, &s->config, on_opened, s, &s->logs, NULL), 0);
        mu_logs_finish(s->logs, on_finished, s);
        TURN_UNTIL(&s->loop, -1, s->finished == 1);
        assert_false(s->opened);
    }
    answer(s);
    settle(s);
    assert_false(s->opened);
    TURN_UNTIL(&s->loop, -1, open_fds() <= open_before + 2); /* but what wakes the loop */
}

static void what_is_not_written_in_the_end_is_counted(void **state)
{
    struct scene *s = *state;

    setup_silence(s);
    open_logs(s, "0", "1");
    hang(s);
    spawn_all(s, talk);
    assert_int_equal(reap(s, 0), 0);
    mu_logs_finish(s->logs, on_finished, s);
    TURN_UNTIL(&s->loop, -1, (turn_and_read(s), s->finished == 1));
    TURN_UNTIL(&s->loop, -1, (turn_and_read(s), mu_console_stats(s->consoles[0]).waiting == 0));
    assert_string_equal(far_end_text(&s->out), "[default0]:out-0\n[default0]:no newline at end 0\n");
    assert_int_equal(s->stats.file_bytes_lost, strlen("out-0\nno newline at end 0"));
    assert_said("/0/stdout.log' lacks 25 bytes: the file system does not answer");
    answer(s);
    settle(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(redirected_output_goes_to_files_without_us, setup, teardown),
        cmocka_unit_test_setup_teardown(tee_goes_to_files_and_to_the_console, setup, teardown),
        cmocka_unit_test_setup_teardown(each_stream_of_each_rank_is_treated_by_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(the_prefix_is_the_users, setup, teardown),
        cmocka_unit_test_setup_teardown(ranks_that_are_left_out_are_in_files_but_not_shown, setup, teardown),
        cmocka_unit_test_setup_teardown(with_dev_null_everything_is_inherited, setup, teardown),
        cmocka_unit_test_setup_teardown(error_files_are_named_but_not_made, setup, teardown),
        cmocka_unit_test_setup_teardown(lines_that_match_are_in_one_file_for_all, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_is_killed_mid_line_loses_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(output_that_went_past_us_has_no_tail, setup, teardown),
        cmocka_unit_test_setup_teardown(a_process_that_outlives_its_worker_is_not_waited_for_long, setup, teardown),
        cmocka_unit_test_setup_teardown(the_next_attempt_may_begin_before_the_last_is_drained, setup, teardown),
        cmocka_unit_test_setup_teardown(sixty_four_workers_are_heard_line_by_line, setup, teardown),
        cmocka_unit_test_setup_teardown(a_console_that_never_moves_is_not_waited_for_long, setup, teardown),
        cmocka_unit_test_setup_teardown(a_console_that_moves_gets_everything_in_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(too_few_descriptors_are_an_error_that_leaves_nothing_open, setup, teardown),
        cmocka_unit_test_setup_teardown(a_log_directory_that_vanished_is_an_error, setup, teardown),
        cmocka_unit_test_setup_teardown(without_memory_there_is_an_error_and_nothing_left_open, setup, teardown),
        cmocka_unit_test_setup_teardown(on_a_full_disk_workers_go_on_and_the_console_is_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(on_a_full_disk_redirected_output_is_said_to_be_cut_off, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_is_full_from_the_start_costs_files_but_no_worker, setup, teardown),
        cmocka_unit_test_setup_teardown(an_attempt_whose_directory_does_not_answer_goes_on_without_files, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_attempt_that_is_being_opened_can_be_given_up, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_written_in_the_end_is_counted, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
