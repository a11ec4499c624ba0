/* Sinks of events by name: where lines go, and what happens when they cannot go there. */
#include "events/agent_event.h"
#include "events/metrics.h"
#include "events/record.h"
#include "events/sinks.h"
#include "failmalloc.h"
#include "pure.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[64], path[128], name[160];

static int make_directory(void **state)
{
    (void)state;
    (void)snprintf(directory, sizeof directory, "/tmp/muster-sinks-XXXXXX");
    assert_non_null(mkdtemp(directory));
    (void)snprintf(path, sizeof path, "%s/events.jsonl", directory);
    (void)snprintf(name, sizeof name, "file:%s", path);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(directory);
}

#define WITH_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)

static const struct mu_event_agent agent = { .run_id = "job",
                                             .role = "default",
                                             .hostname = "here",
                                             .rdzv_backend = "c10d",
                                             .entry_point = "x",
                                             .group_rank = 0,
                                             .group_world_size = 1 };

static void record_one_of_each(void)
{
    mu_event_record((struct muster_event_record){ .name = "join", .run_id = "job", .hostname = "here" }, "in");
    mu_agent_event_record(
        &(struct mu_agent_event){ .state = MU_EVENT_SUCCEEDED, .agent = &agent, .duration_ms = -1, .timestamp_ms = 5 });
}

#define LINE                                                                                                           \
    "{\"name\": \"torchelastic.worker.status.SUCCEEDED\", \"source\": \"AGENT\", \"timestamp\": 5, \"metadata\": "     \
    "{\"run_id\": \"job\", \"global_rank\": null, \"group_rank\": 0, \"worker_id\": null, \"role\": \"default\", "     \
    "\"hostname\": \"here\", \"state\": \"SUCCEEDED\", \"total_run_time\": 0, \"rdzv_backend\": \"c10d\", "            \
    "\"raw_error\": null, \"metadata\": \"{\\\"group_world_size\\\": 1, \\\"entry_point\\\": \\\"x\\\"}\", "           \
    "\"agent_restarts\": 0, \"duration_ms\": null}}\n"

#define RDZV                                                                                                           \
    "{\"name\": \"join\", \"run_id\": \"job\", \"message\": \"in\", \"hostname\": \"here\", \"pid\": 0, "              \
    "\"node_state\": \"INIT\", \"master_endpoint\": \"\", \"rank\": 0, \"local_id\": 0, \"error_trace\": \"\"}\n"

static void read_file(const char *from, char *text, size_t room)
{
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    ssize_t len;

    assert_true(fd >= 0);
    len = read(fd, text, room - 1);
    assert_true(len >= 0);
    text[len] = '\0';
    (void)close(fd);
}

static void a_file_is_appended_to(void **state)
{
    struct mu_sink *sink = NULL;
    char text[4096];

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mu_event_sink_open(name, &sink, NULL), 0);
        record_one_of_each();
        mu_sink_close(sink);
    }
    record_one_of_each(); /* into the void again */
    read_file(path, text, sizeof text);
    assert_string_equal(text, RDZV LINE RDZV LINE);
}

static void the_console_is_stderr(void **state)
{
    struct mu_sink *sink = NULL;
    int fd, saved = dup(STDERR_FILENO);
    char text[4096];

    (void)state;
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    assert_int_equal(mu_event_sink_open("console", &sink, NULL), 0);
    record_one_of_each();
    mu_sink_close(sink);
    muster_events_set_sink(muster_events_console, NULL);
    record_one_of_each();
    muster_events_set_sink(muster_events_console_all, NULL);
    record_one_of_each();
    muster_events_set_sink(NULL, NULL);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    (void)close(fd);
    read_file(path, text, sizeof text);
    assert_string_equal(text, RDZV LINE LINE RDZV LINE);
}

static void nothing_is_a_sink_too(void **state)
{
    static const char *const names[] = { "null", "dynamic_rendezvous" };

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct mu_sink *sink = NULL;

        assert_int_equal(mu_event_sink_open(names[i], &sink, NULL), 0);
        assert_false(mu_event_wanted());
        record_one_of_each();
        mu_sink_close(sink);
    }
    mu_sink_close(NULL);
}

static void bad_names_are_errors(void **state)
{
    static const struct {
        const char *name;
        int code;
        const char *text;
    } rows[] = {
        { "konsole", MUSTER_EINVAL, "unknown event log handler 'konsole': null, console or file:PATH" },
        { "", MUSTER_EINVAL, "unknown event log handler '': null, console or file:PATH" },
        { "file:", MUSTER_EINVAL, "event log handler 'file:': no path" },
        { "file:/dev/null/x", MUSTER_ESYSTEM, "open event log '/dev/null/x': Not a directory" },
        { "file:/", MUSTER_ESYSTEM, "open event log '/': Is a directory" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_sink *sink = NULL;
        struct muster_error error = { 0 };

        assert_int_equal(mu_event_sink_open(rows[i].name, &sink, &error), rows[i].code);
        assert_string_equal(error.text, rows[i].text);
        assert_null(sink);
        assert_false(mu_event_wanted());
    }
}

/* ---- Metrics ---- */

static void metrics_go_where_the_name_says(void **state)
{
    struct mu_sink *sink = NULL;
    int fd, saved = dup(STDOUT_FILENO);
    char text[4096];
    double time_s = 0;
    int read = 0;

    (void)state;
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0);
    assert_int_equal(mu_metric_sink_open("console", &sink, NULL), 0);
    mu_metric_put(7, "workers.%s.%s", "default", "run_total");
    mu_sink_close(sink);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    (void)close(saved);
    (void)close(fd);
    assert_int_equal(mu_metric_sink_open("null", &sink, NULL), 0);
    mu_metric_put(8, "nowhere");
    mu_sink_close(sink);
    assert_int_equal(mu_metric_sink_open(name, &sink, NULL), 0);
    mu_metric_put(9, "workers.default.flakiness");
    mu_sink_close(sink);
    mu_metric_put(10, "too late");
    read_file(path, text, sizeof text);
    assert_int_equal(sscanf(text, "[%lf][torchelastic]: workers.default.run_total=7\n%n", &time_s, &read), 1);
    assert_true(read > 0 && time_s > 1e9);
    assert_non_null(strstr(text + read, "][torchelastic]: workers.default.flakiness=9\n"));
    assert_null(strstr(text, "nowhere"));
    assert_null(strstr(text, "too late"));
}

static void a_console_that_nobody_reads_holds_up_nobody(void **state)
{
    struct mu_sink *sink = NULL;
    int ends[2], saved = dup(STDOUT_FILENO), count = 0, page = (int)sysconf(_SC_PAGESIZE);
    char text[65536] = "";

    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[1], F_SETPIPE_SZ, page), page);
    assert_int_equal(write(ends[1], text, (size_t)page), page); /* full */
    assert_true(dup2(ends[1], STDOUT_FILENO) >= 0);
    assert_int_equal(mu_metric_sink_open("console", &sink, NULL), 0);
    for (int i = 0; i < 100; i++)
        mu_metric_put(i, "waiting");
    while (count < 100) { /* it is read after all, and nothing is lost */
        ssize_t len = read(ends[0], text, sizeof text);

        assert_true(len > 0);
        for (ssize_t i = 0; i < len; i++)
            count += text[i] == '\n';
    }
    mu_sink_close(sink);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    (void)close(saved);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void bad_names_of_metrics_sinks_are_errors(void **state)
{
    static const struct {
        const char *name;
        int code;
        const char *text;
    } rows[] = {
        { "dynamic_rendezvous", MUSTER_EINVAL,
          "unknown metrics sink 'dynamic_rendezvous': null, console or file:PATH" },
        { "file:", MUSTER_EINVAL, "metrics sink 'file:': no path" },
        { "file:/dev/null/x", MUSTER_ESYSTEM, "open metrics file '/dev/null/x': Not a directory" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_sink *sink = NULL;
        struct muster_error error = { 0 };

        assert_int_equal(mu_metric_sink_open(rows[i].name, &sink, &error), rows[i].code);
        assert_string_equal(error.text, rows[i].text);
        assert_null(sink);
    }
}

static unsigned lines;

static void count_lines(void *ctx, enum muster_log_level level, const char *line)
{
    (void)ctx;
    assert_int_equal(level, MUSTER_LOG_WARNING);
    assert_string_equal(line, lines == 0 ? "write event to /dev/full: No space left on device; events are lost"
                                         : "/dev/full lacks 4 events");
    lines++;
}

static void a_full_disk_is_said_once(void **state)
{
    struct mu_sink *sink = NULL;

    (void)state;
    lines = 0;
    muster_log_set_sink(count_lines, NULL);
    assert_int_equal(mu_event_sink_open("file:/dev/full", &sink, NULL), 0);
    record_one_of_each();
    record_one_of_each();
    mu_sink_close(sink);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(lines, 2);
}

/* A FIFO that is opened without blocking never hangs. This one is made to, as a file system that does not answer
 * does. */
static void block_sink(void)
{
    char link[64], target[128];

    for (int fd = 3; fd < 1024; fd++) {
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        memset(target, 0, sizeof target);
        if (readlink(link, target, sizeof target - 1) > 0 && strcmp(target, path) == 0 &&
            (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY)
            assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
    }
}

static char said[4096];

static void keep_lines(void *ctx, enum muster_log_level level, const char *line)
{
    size_t used = strlen(said);

    (void)ctx;
    (void)level;
    (void)snprintf(said + used, sizeof said - used, "%s\n", line);
}

static void a_file_that_does_not_answer_holds_up_nobody_and_events_are_counted(void **state)
{
    struct mu_sink *sink = NULL;
    int reader;

    (void)state;
    said[0] = '\0';
    assert_int_equal(mkfifo(path, 0600), 0);
    reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    muster_log_set_sink(keep_lines, NULL);
    assert_int_equal(mu_event_sink_open(name, &sink, NULL), 0);
    block_sink();
    for (size_t bytes = 0; bytes < 2 * MU_SINK_BYTES_MAX; bytes += strlen(LINE))
        record_one_of_each();
    assert_non_null(strstr(said, "events.jsonl: the file system does not answer; events are lost\n"));
    mu_sink_close(sink);
    assert_non_null(strstr(said, "events.jsonl lacks "));
    muster_log_set_sink(NULL, NULL);
    (void)close(reader);
}

static void a_lack_of_memory_leaves_nothing(void **state)
{
    const char *const names[] = { name, "console", "null" };

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        FOR_EACH_FAILURE (n) {
            struct mu_sink *sink = NULL;
            int rc = mu_event_sink_open(names[i], &sink, NULL);

            assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
            mu_sink_close(sink);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DIRECTORY(a_file_is_appended_to),
        WITH_DIRECTORY(the_console_is_stderr),
        cmocka_unit_test(nothing_is_a_sink_too),
        cmocka_unit_test(bad_names_are_errors),
        WITH_DIRECTORY(metrics_go_where_the_name_says),
        cmocka_unit_test(a_console_that_nobody_reads_holds_up_nobody),
        cmocka_unit_test(bad_names_of_metrics_sinks_are_errors),
        cmocka_unit_test(a_full_disk_is_said_once),
        WITH_DIRECTORY(a_lack_of_memory_leaves_nothing),
        WITH_DIRECTORY(a_file_that_does_not_answer_holds_up_nobody_and_events_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
