/* Reports of failures: the box as torchrun prints it (the expected texts are torchrun's), and the line above it. */
#include "agent/report.h"
#include "failmalloc.h"
#include "pure.h"

#include <stdio.h>
#include <time.h>

enum { NOW_S = 1794726705 };

#define CLASS "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
#define ERRORS_PAGE "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
#define TRACE_FILE                                                                                                     \
    "{\"message\": {\"message\": \"ValueError: bad \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\", \"extraInfo\": "            \
    "{\"py_callstack\": \"Traceback (most recent call last):\\n  File \\\"a.py\\\", line 1, in <module>\\n"            \
    "ValueError: bad \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\\n\", \"timestamp\": \"1794726700\"}}}"

struct worker {
    int64_t rank, local_rank;
    pid_t pid;
    int exit_code;
    const char *file, *path;
    const char *last_stderr;
    bool out_of_memory;
};

struct scene {
    struct mu_failure failures[16];
    struct mu_errfile files[16];
    size_t count;
};

static void set_up(struct scene *s, const struct worker *workers)
{
    *s = (struct scene){ .count = 0 };
    for (; workers[s->count].pid != 0; s->count++) {
        const struct worker *w = &workers[s->count];
        struct mu_failure *f = &s->failures[s->count];

        *f = (struct mu_failure){ .rank = w->rank,
                                  .local_rank = w->local_rank,
                                  .pid = w->pid,
                                  .exit_code = w->exit_code,
                                  .noticed_s = NOW_S,
                                  .error_path = w->path,
                                  .out_of_memory = w->out_of_memory };
        if (w->last_stderr != NULL)
            f->last_stderr = mu_slice_str(w->last_stderr);
        if (w->file != NULL) {
            assert_int_equal(mu_errfile_parse(mu_slice_str(w->file), &s->files[s->count], NULL), 0);
            f->error = &s->files[s->count];
        }
    }
}

static void tear_down(struct scene *s)
{
    for (size_t i = 0; i < s->count; i++)
        mu_errfile_done(&s->files[i]);
}

static void finish(struct mu_buf *text, int rc)
{
    assert_int_equal(rc, 0);
    assert_int_equal(mu_buf_append(text, "", 1, SIZE_MAX), 0);
}

static void assert_box(const char *job, bool signal_names, const struct worker *workers, const char *box)
{
    struct scene s;
    struct mu_buf text = { 0 };
    struct mu_report report = { .job = job, .host = "node0", .signal_names = signal_names };

    set_up(&s, workers);
    report.failures = s.failures;
    report.count = s.count;
    finish(&text, mu_report_write_box(&report, &text));
    assert_string_equal(text.data, box);
    mu_buf_done(&text);
    tear_down(&s);
}

#define FIELDS(index, time, rank, local, code)                                                                         \
    "[" index "]:\n  time      : 2026-11-15_07:11:" time "\n  host      : node0\n  rank      : " rank                  \
    " (local_rank: " local ")\n  exitcode  : " code "\n  error_file: "
#define L60 "------------------------------------------------------------\n"
#define E60 "============================================================\n"
#define L53 "-----------------------------------------------------\n"
#define E53 "=====================================================\n"

static void a_lone_failure_has_no_others(void **state)
{
    const struct worker workers[] = { { 0, 0, 1106, 2, NULL, NULL, NULL, false }, { 0 } };

    (void)state;
    assert_box("./does-not-exist.py", false, workers,
               CLASS E60 "./does-not-exist.py FAILED\n" L60 "Failures:\n  <NO_OTHER_FAILURES>\n" L60
                         "Root Cause (first observed failure):\n" FIELDS(
                             "0", "45", "0", "0", "2 (pid: 1106)") "<N/A>\n"
                                                                   "  traceback : " ERRORS_PAGE "\n" E60);
}

static void siblings_that_were_stopped_are_failures(void **state)
{
    const struct worker workers[] = { { 1, 1, 691, -11, NULL, NULL, NULL, false },
                                      { 0, 0, 690, -15, NULL, NULL, NULL, false },
                                      { 0 } };

    (void)state;
    assert_box(
        "/w/segv.sh", false, workers,
        CLASS E53 "/w/segv.sh FAILED\n" L53 "Failures:\n" FIELDS(
            "1", "45", "0", "0",
            "-15 (pid: 690)") "<N/A>\n"
                              "  traceback : Signal 15 (SIGTERM) received by PID 690\n" L53
                              "Root Cause (first observed failure):\n" FIELDS(
                                  "0", "45", "1", "1",
                                  "-11 (pid: 691)") "<N/A>\n"
                                                    "  traceback : Signal 11 (SIGSEGV) received by PID 691\n" E53);
    /* The box, line by line. */
    /* clang-format off */
    assert_box("/w/segv.sh", true, workers,
               CLASS E53 "/w/segv.sh FAILED\n" L53
               "Failures:\n"
               FIELDS("1", "45", "0", "0", "-15 (pid: 690)  (SIGTERM)") "<N/A>\n"
               "  traceback : Signal 15 (SIGTERM) received by PID 690\n" L53
               "Root Cause (first observed failure):\n"
               FIELDS("0", "45", "1", "1", "-11 (pid: 691)  (SIGSEGV)") "<N/A>\n"
               "  traceback : Signal 11 (SIGSEGV) received by PID 691\n" E53);
    /* clang-format on */
}

/* The second was first, by its error file. A character counts once, however many bytes it has. */
static void the_earliest_is_the_root_and_keeps_its_index(void **state)
{
    const struct worker workers[] = { { 4, 0, 10, -15, NULL, NULL, NULL, false },
                                      { 5, 1, 11, 1, TRACE_FILE, "/e1.json", NULL, false },
                                      { 6, 2, 12, -9, NULL, NULL, NULL, false },
                                      { 0 } };

    (void)state;
    /* clang-format off */
    assert_box("train.py", true, workers,
               CLASS
               "====================================================\ntrain.py FAILED\n"
               "----------------------------------------------------\nFailures:\n"
               FIELDS("0", "45", "4", "0", "-15 (pid: 10)  (SIGTERM)") "<N/A>\n"
               "  traceback : Signal 15 (SIGTERM) received by PID 10\n"
               FIELDS("2", "45", "6", "2", "-9 (pid: 12)  (SIGKILL)") "<N/A>\n"
               "  traceback : Signal 9 (SIGKILL) received by PID 12\n"
               "----------------------------------------------------\n"
               "Root Cause (first observed failure):\n"
               FIELDS("1", "40", "5", "1", "1 (pid: 11) ") "/e1.json\n"
               "  traceback : Traceback (most recent call last):\n"
               "    File \"a.py\", line 1, in <module>\n"
               "  ValueError: bad \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\n"
               "  \n"
               "====================================================\n");
    /* clang-format on */
}

static void texts_are_not_indented_and_objects_are(void **state)
{
    static const struct {
        const char *file, *traceback;
    } rows[] = {
        { "{\"message\": \"it broke\\nbadly\", \"timestamp\": 1794726700}", "it broke\nbadly" },
        { "{\"message\": {\"message\": \"E: x\\ny\", \"extraInfo\": {\"timestamp\": \"1794726700\"}}}", "E: x\n  y" },
        { "{\"message\": {\"extraInfo\": {\"timestamp\": 1794726700.9}}}", "<N/A>" },
        { "{\"message\": \"a\\tb\\u001b[2J\\r\\u009b\", \"timestamp\": 1794726700}", "a\tb\\x1b[2J\\x0d\\x9b" },
        { "{\"message\": {\"message\": \"E\", \"extraInfo\": {\"py_callstack\": \"T\\n\\u001b]0;x\\u0007\", "
          "\"timestamp\": \"1794726700\"}}}",
          "T\n  \\x1b]0;x\\x07" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct worker workers[] = { { 3, 1, 5, 1, rows[i].file, "/tmp/workers/e01.json", NULL, false }, { 0 } };
        char box[1024];

        (void)snprintf(box, sizeof box,
                       CLASS
                       "===================================\ntrain.py FAILED\n"
                       "-----------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
                       "-----------------------------------\n"
                       "Root Cause (first observed failure):\n" FIELDS(
                           "0", "40", "3", "1", "1 (pid: 5)") "/tmp/workers/e01.json\n"
                                                              "  traceback : %s\n===================================\n",
                       rows[i].traceback);
        assert_box("train.py", false, workers, box);
    }
}

static void an_empty_text_is_made_up_for(void **state)
{
    const struct worker workers[] = {
        { 0, 0, 5, -40, "{\"message\": \"\", \"timestamp\": 1794726700}", "/e", NULL, false }, { 0 }
    };

    (void)state;
    assert_box("train.py", true, workers,
               CLASS "=================================================\ntrain.py FAILED\n"
                     "-------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
                     "-------------------------------------------------\n"
                     "Root Cause (first observed failure):\n" FIELDS(
                         "0", "40", "0", "0", "-40 (pid: 5) ") "/e\n"
                                                               "  traceback : Signal 40 (<N/A>) received by PID 5\n"
                                                               "=================================================\n");
}

static void assert_line(const struct worker *worker, const char *line)
{
    const struct worker workers[] = { *worker, { 0 } };
    struct scene s;
    struct mu_buf text = { 0 };

    set_up(&s, workers);
    finish(&text, mu_failure_write_line(&s.failures[0], "node0", &text));
    assert_string_equal(text.data, line);
    mu_buf_done(&text);
    tear_down(&s);
}

static void the_line_says_what_happened(void **state)
{
    static const struct {
        struct worker worker;
        const char *line;
    } rows[] = {
        { { 1, 1, 42, 3, NULL, NULL, NULL, false }, "rank 1 on node0 (local rank 1, pid 42) failed: exit code 3" },
        { { 9, 1, 42, -11, NULL, NULL, NULL, false },
          "rank 9 on node0 (local rank 1, pid 42) failed: killed by SIGSEGV" },
        { { 1, 1, 42, -9, NULL, NULL, NULL, true },
          "rank 1 on node0 (local rank 1, pid 42) failed: killed by SIGKILL (out of memory)" },
        { { 1, 1, 42, 137, NULL, NULL, "Killed\n", true },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 137 (out of memory): Killed" },
        { { 1, 1, 42, -40, NULL, NULL, NULL, false },
          "rank 1 on node0 (local rank 1, pid 42) failed: killed by signal 40" },
        { { 1, 1, 42, 1, TRACE_FILE, "/e", "not this", false },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: ValueError: bad "
          "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" },
        { { 1, 1, 42, 1, "{\"message\": \" a\\n\\tb \\u001b[31m\"}", "/e", NULL, false },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: a b [31m" },
        { { 1, 1, 42, 1, "{\"message\": \"a \\u009b31m\"}", "/e", NULL, false },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: a \\x9b31m" },
        { { 1, 1, 42, 1, NULL, NULL, "caf\xe9 \xc3\xa9\x9b\n", false },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: caf\\xe9 \xc3\xa9\\x9b" },
        { { 1, 1, 42, 1, "{\"message\": \"\"}", "/e", "last words\n", false },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: last words" },
        { { 1, 1, 42, 1, "{\"message\": {\"extraInfo\": {\"timestamp\": 1, \"py_callstack\": \"T:\\n x\\nE: y\\n\"}}}",
            "/e", NULL, false },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: E: y" },
        { { 1, 1, 42, 1, NULL, NULL, "one\ntwo\n\n  three  \n\nfour\n\n", false },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: four" },
        { { 1, 1, 42, 1, NULL, NULL, "  File \"x.py\", line 3\n    f() / 0\n    ~~~~^~~\n  ^^  \n\n", false },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: f() / 0" },
        { { 1, 1, 42, 1, NULL, NULL, " ^^^^\n", false }, "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1" },
        { { 1, 1, 42, 1, NULL, NULL, "\n \n", false }, "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1" },
        { { 1, 1, 42, 1, NULL, NULL, "no line end", false },
          "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: no line end" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_line(&rows[i].worker, rows[i].line);
}

static void long_words_are_cut_between_characters(void **state)
{
    char words[4096], expected[1024];
    const struct worker workers[] = { { 1, 1, 42, 1, NULL, NULL, words, false }, { 0 } };
    struct scene s;
    struct mu_buf text = { 0 };

    (void)state;
    for (size_t i = 0; i + 2 < sizeof words; i += 2)
        memcpy(words + i, "\xc3\xa9", 3);
    words[0] = 'x'; /* so that the limit falls into a character */
    words[1] = 'y';
    set_up(&s, workers);
    finish(&text, mu_failure_write_line(&s.failures[0], "node0", &text));
    (void)snprintf(expected, sizeof expected, "rank 1 on node0 (local rank 1, pid 42) failed: exit code 1: ");
    assert_memory_equal(text.data, expected, strlen(expected));
    assert_in_range(text.len - 1 - strlen(expected), MU_REPORT_DETAIL_MAX - 1, MU_REPORT_DETAIL_MAX);
    assert_int_equal((unsigned char)text.data[text.len - 2], 0xA9); /* the last character is whole */
    mu_buf_done(&text);
    tear_down(&s);
}

static void error_files_that_are_not_used_are_named(void **state)
{
    struct mu_failure failures[12] = { { 0 } };
    struct mu_errfile file = { .problem = (char *)(uintptr_t) "error file '/e' is not used: empty" };
    struct mu_report report = { .job = "x", .host = "h", .failures = failures, .count = 1 };
    struct mu_buf text = { 0 };
    const char *at;
    size_t lines = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(failures); i++)
        failures[i] = (struct mu_failure){ .pid = 3, .exit_code = 1, .error = &file };
    finish(&text, mu_report_write(&report, &text));
    at = "error file '/e' is not used: empty\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError";
    assert_memory_equal(text.data, at, strlen(at));
    mu_buf_done(&text);
    report.count = COUNT(failures);
    finish(&text, mu_report_write(&report, &text));
    for (at = text.data; (at = strstr(at, "is not used: empty\n")) != NULL; at++)
        lines++;
    assert_int_equal(lines, MU_REPORT_PROBLEMS_MAX);
    assert_non_null(strstr(text.data, "error files of 4 more workers are not used\n"));
    mu_buf_done(&text);
}

static void without_memory_there_is_neither_line_nor_box(void **state)
{
    const struct worker workers[] = { { 0, 0, 5, 3, NULL, NULL, NULL, false }, { 0 } };
    struct scene s;
    struct mu_report report = { .job = "x", .host = "h", .count = 1 };

    (void)state;
    set_up(&s, workers);
    report.failures = s.failures;
    FOR_EACH_FAILURE (n) {
        struct mu_buf text = { 0 };
        int rc = mu_failure_write_line(&s.failures[0], "h", &text);

        if (rc == 0) {
            assert_memory_equal(text.data, "rank 0 on h (local rank 0, pid 5) failed: exit code 3", text.len);
            text.len = 0;
            rc = mu_report_write(&report, &text);
        }
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        if (rc == 0)
            assert_memory_equal(text.data, CLASS "=", strlen(CLASS "="));
        mu_buf_done(&text);
    }
}

static void raw_errors_are_what_pytorch_records(void **state)
{
#define TRAITS ", \"errorTraits\": {\"category\": \"system_terminated_error\", \"retryability\": \"False\"}}"
    static const struct {
        struct worker worker;
        bool traits;
        const char *raw;
    } rows[] = {
        { { 0, 0, 5, 3, NULL, NULL, NULL, false }, true, "{\"message\": \"<NONE>\"" TRAITS },
        { { 0, 0, 5, -9, NULL, NULL, NULL, false }, false, "{\"message\": \"<NONE>\"}" },
        { { 0, 0, 5, -15, NULL, NULL, NULL, false }, true, "{\"message\": \"<NONE>\"" TRAITS },
        { { 0, 0, 5, 3, "{\"message\":\"t\"}", "/e", NULL, false }, true, "{\"message\": \"t\"}" },
        { { 0, 0, 5, 3, "{\"message\":\"\"}", "/e", NULL, false }, true, "{\"message\": \"\"" TRAITS },
        { { 0, 0, 5, -9, "{\"message\":\"\"}", "/e", NULL, false }, false, "{\"message\": \"\"}" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct worker workers[] = { rows[i].worker, { 0 } };
        struct mu_buf text = { 0 };
        struct scene s;

        set_up(&s, workers);
        finish(&text, mu_failure_write_raw(&s.failures[0], rows[i].traits, &text));
        assert_string_equal(text.data, rows[i].raw);
        assert_int_equal(mu_failures_have_traits(s.failures, 1), i == 0);
        mu_buf_done(&text);
        tear_down(&s);
    }
#undef TRAITS
}

static void signals_have_the_names_that_python_gives_them(void **state)
{
    static const struct {
        int number;
        const char *name;
    } rows[] = {
        { 0, "<N/A>" },    { 1, "SIGHUP" },   { 2, "SIGINT" },     { 6, "SIGABRT" },  { 9, "SIGKILL" },
        { 11, "SIGSEGV" }, { 15, "SIGTERM" }, { 16, "SIGSTKFLT" }, { 17, "SIGCHLD" }, { 29, "SIGIO" },
        { 31, "SIGSYS" },  { 32, "<N/A>" },   { 34, "SIGRTMIN" },  { 40, "<N/A>" },   { 64, "SIGRTMAX" },
        { 65, "<N/A>" },   { -1, "<N/A>" },   { 4711, "<N/A>" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(mu_report_signal_name(rows[i].number), rows[i].name);
}

static void the_job_is_named_after_its_script(void **state)
{
    static const struct {
        const char *argv[6];
        bool interpreter, run_path;
        const char *job;
    } rows[] = {
        { { "/usr/bin/python3", "-u", "train.py", "--lr", "1" }, true, false, "train.py" },
        { { "/usr/bin/python3", "-u", "-m", "pkg.train" }, true, false, "pkg.train" },
        { { "/usr/bin/python3", "-u" }, true, false, "" },
        { { "./train.sh", "x" }, false, false, "./train.sh" },
        { { "/usr/bin/python3", "train.py" }, false, false, "/usr/bin/python3" },
        { { "/usr/bin/python3", "-u", "train.py" }, true, true, "run_script_path" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(mu_report_job(rows[i].argv, rows[i].interpreter, rows[i].run_path), rows[i].job);
    assert_string_equal(mu_report_entry_point("/usr/bin/python3"), "python3");
    assert_string_equal(mu_report_entry_point("x.sh"), "x.sh");
}

static void the_lines_that_scripts_look_for(void **state)
{
    struct mu_failure f = { .local_rank = 1, .pid = 42, .exit_code = 3 };
    char line[256];

    (void)state;
    mu_say_failed(line, sizeof line, &f, "./x.sh", NULL);
    assert_string_equal(line, "failed (exitcode: 3) local_rank: 1 (pid: 42) of binary: ./x.sh");
    mu_say_failed(line, sizeof line, &f, "run_script_path", "spawn");
    assert_string_equal(line,
                        "failed (exitcode: 3) local_rank: 1 (pid: 42) of fn: run_script_path (start_method: spawn)");
    mu_say_failed(line, 60, &f, "a_function_with_a_name_that_is_cut", "fork");
    assert_string_equal(line, "failed (exitcode: 3) local_rank: 1 (pid: 42) of fn: a_funct");
    assert_string_equal(MU_SAY_LOG_DIR, "log directory set to: %s");
    (void)snprintf(line, sizeof line, MU_SAY_ERROR_FILE, INT64_C(0), "/tmp/x/error.json");
    assert_string_equal(line, "Setting worker0 reply file to: /tmp/x/error.json");
    assert_string_equal(MU_SAY_NO_COPY, "no error file defined for parent, to copy child error file (%s)");
    mu_say_ended_by_signal(line, sizeof line, 784, 15);
    assert_string_equal(line,
                        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 784 got signal: 15");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_failure_has_no_others),
        cmocka_unit_test(siblings_that_were_stopped_are_failures),
        cmocka_unit_test(the_earliest_is_the_root_and_keeps_its_index),
        cmocka_unit_test(texts_are_not_indented_and_objects_are),
        cmocka_unit_test(an_empty_text_is_made_up_for),
        cmocka_unit_test(the_line_says_what_happened),
        cmocka_unit_test(long_words_are_cut_between_characters),
        cmocka_unit_test(error_files_that_are_not_used_are_named),
        cmocka_unit_test(without_memory_there_is_neither_line_nor_box),
        cmocka_unit_test(raw_errors_are_what_pytorch_records),
        cmocka_unit_test(signals_have_the_names_that_python_gives_them),
        cmocka_unit_test(the_job_is_named_after_its_script),
        cmocka_unit_test(the_lines_that_scripts_look_for),
    };

    if (setenv("TZ", "UTC", 1) < 0)
        return 1;
    tzset();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
