/* Error files: every form that PyTorch writes, every form that it should not, and the launcher's own. */
#include "agent/errfile.h"
#include "failmalloc.h"
#include "pure.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRACE                                                                                                          \
    "Traceback (most recent call last):\n  File \"a.py\", line 6, in main\nValueError: broken: \xc3\xa9 \n two\n"
#define RECORDED                                                                                                       \
    "{\"message\": {\"message\": \"ValueError: broken: \\u00e9 \\n two\", \"extraInfo\": {\"py_callstack\": "          \
    "\"Traceback (most recent call last):\\n  File \\\"a.py\\\", line 6, in main\\nValueError: broken: \\u00e9 \\n "   \
    "two\\n\", \"timestamp\": \"1794726705\"}}}"

static const struct {
    const char *bytes;
    const char *message, *traceback;
    int64_t timestamp_s;
    bool structured;
} good[] = {
    { RECORDED, "ValueError: broken: \xc3\xa9 \n two", TRACE, 1794726705, true },
    { "{\"message\": \"it broke\"}", "it broke", "it broke", 0, false },
    { "{\"message\": \"\"}", "", "", 0, false },
    { "{\"message\": \"t\", \"timestamp\": 12}", "t", "t", 12, false },
    { "{\"message\": \"t\", \"timestamp\": \" 12 \"}", "t", "t", 12, false },
    { "{\"message\": \"t\", \"timestamp\": 12.9}", "t", "t", 12, false },
    { "{\"message\": \"t\", \"timestamp\": -3}", "t", "t", -3, false },
    { " {\"message\": \"t\"} \n", "t", "t", 0, false },
    { "{\"message\": {\"message\": \"m\", \"extraInfo\": {\"timestamp\": 5}}}", "m", "m", 5, true },
    { "{\"message\": {\"extraInfo\": {\"timestamp\": \"5\"}}}", "", "<N/A>", 5, true },
    { "{\"message\": {\"message\": 3, \"extraInfo\": {\"py_callstack\": \"trace\", \"timestamp\": 5}}}", "", "trace", 5,
      true },
    { "{\"message\": {\"message\": \"m\", \"extraInfo\": {\"py_callstack\": \"\", \"timestamp\": 5}}}", "m", "", 5,
      true },
    { "{\"message\": \"first\", \"message\": \"last\"}", "last", "last", 0, false },
    /* what Python makes of bytes that are no text, and of NUL */
    { "{\"message\": \"a\\udcffb\\u0000c\\ud800d\\ud83d\\ude00\\\\ud800\"}",
      "a\xef\xbf\xbd"
      "b\xef\xbf\xbd"
      "c\xef\xbf\xbd"
      "d\xf0\x9f\x98\x80\\ud800",
      "a\xef\xbf\xbd"
      "b\xef\xbf\xbd"
      "c\xef\xbf\xbd"
      "d\xf0\x9f\x98\x80\\ud800",
      0, false },
    { "{\"message\": \"\\ud83d\\ud83d\\ude00\"}", "\xef\xbf\xbd\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80", 0,
      false },
};

static void what_a_worker_wrote_is_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(good); i++) {
        struct mu_errfile file;

        assert_int_equal(mu_errfile_parse(mu_slice_str(good[i].bytes), &file, NULL), 0);
        assert_true(file.present);
        assert_string_equal(file.message, good[i].message);
        assert_string_equal(file.traceback, good[i].traceback);
        assert_int_equal(file.timestamp_s, good[i].timestamp_s);
        assert_int_equal(file.structured, good[i].structured);
        assert_null(file.problem);
        mu_errfile_done(&file);
    }
}

static const struct {
    const char *bytes, *text;
} bad[] = {
    { "", "empty" },
    { " ", "not JSON: line 1:" },
    { "{", "not JSON: line 1:" },
    { "Traceback", "not JSON: line 1:" },
    { "{\"message\": \"t\"} x", "not JSON: line 1:" },
    { "{\"message\": \"\xff\"}", "not JSON: line 1:" },
    { "{\"message\": NaN}", "not JSON: line 1:" },
    { "{\"message\": 123456789012345678901234567890}", "not JSON: line 1:" },
    { "{\"message\": \"a\nb\"}", "not JSON:" },
    { "null", "not a JSON object" },
    { "[]", "not a JSON object" },
    { "\"message\"", "not a JSON object" },
    { "7", "not a JSON object" },
    { "{}", "no 'message'" },
    { "{\"Message\": \"t\"}", "no 'message'" },
    { "{\"message\": null}", "'message' is neither text nor an object" },
    { "{\"message\": 7}", "'message' is neither text nor an object" },
    { "{\"message\": []}", "'message' is neither text nor an object" },
    { "{\"message\": true}", "'message' is neither text nor an object" },
    { "{\"message\": \"t\", \"timestamp\": null}", "'timestamp' is not a time in seconds" },
    { "{\"message\": \"t\", \"timestamp\": \"now\"}", "'timestamp' is not a time in seconds" },
    { "{\"message\": \"t\", \"timestamp\": \"\"}", "'timestamp' is not a time in seconds" },
    { "{\"message\": \"t\", \"timestamp\": \"12x\"}", "'timestamp' is not a time in seconds" },
    { "{\"message\": \"t\", \"timestamp\": \"99999999999999999999\"}", "'timestamp' is not a time in seconds" },
    { "{\"message\": \"t\", \"timestamp\": 1e300}", "'timestamp' is not a time in seconds" },
    { "{\"message\": \"t\", \"timestamp\": 253402300800}", "'timestamp' is not a time in seconds" },
    { "{\"message\": \"t\", \"timestamp\": []}", "'timestamp' is not a time in seconds" },
    { "{\"message\": {}}", "no object 'message.extraInfo'" },
    { "{\"message\": {\"message\": \"m\"}}", "no object 'message.extraInfo'" },
    { "{\"message\": {\"extraInfo\": \"x\"}}", "no object 'message.extraInfo'" },
    { "{\"message\": {\"extraInfo\": {}}}", "no 'message.extraInfo.timestamp'" },
    { "{\"message\": {\"extraInfo\": {\"timestamp\": {}}}}", "'message.extraInfo.timestamp' is not a time in seconds" },
    { "{\"message\": {\"extraInfo\": {\"timestamp\": 1, \"py_callstack\": []}}}",
      "'message.extraInfo.py_callstack' is not text" },
    { "{\"message\": {\"message\": 1, \"extraInfo\": {\"timestamp\": 1}}}", "'message.message' is not text" },
};

static void what_is_none_is_told_what_is_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct muster_error error = { 0 };
        struct mu_errfile file;

        assert_int_equal(mu_errfile_parse(mu_slice_str(bad[i].bytes), &file, &error), MUSTER_EINVAL);
        assert_false(file.present);
        assert_memory_equal(error.text, bad[i].text, strlen(bad[i].text));
    }
}

static void depth_and_size_have_limits(void **state)
{
    static char deep[4096], huge[MU_ERRFILE_BYTES_MAX + 1];
    struct muster_error error = { 0 };
    struct mu_errfile file;

    (void)state;
    memset(deep, '[', sizeof deep);
    assert_int_equal(mu_errfile_parse(mu_slice(deep, sizeof deep), &file, &error), MUSTER_ELIMIT);
    assert_string_equal(error.text, "nested more than 512 deep");
    memset(huge, ' ', sizeof huge);
    memcpy(huge, "{\"message\": \"t\"}", 16);
    assert_int_equal(mu_errfile_parse(mu_slice(huge, sizeof huge - 1), &file, &error), 0);
    mu_errfile_done(&file);
    assert_int_equal(mu_errfile_parse(mu_slice(huge, sizeof huge), &file, &error), MUSTER_ELIMIT);
    assert_string_equal(error.text, "more than 4194304 bytes");
}

/* Brackets and quotes in texts do not count. */
static void only_real_nesting_counts(void **state)
{
    static char text[2048] = "{\"message\": \"\\\"";
    struct mu_errfile file;

    (void)state;
    memset(text + strlen(text), '[', 1500);
    strcat(text, "\"}");
    assert_int_equal(mu_errfile_parse(mu_slice_str(text), &file, NULL), 0);
    mu_errfile_done(&file);
}

static void assert_text(struct mu_buf *buf, int rc, const char *expected)
{
    assert_int_equal(rc, 0);
    assert_int_equal(mu_buf_append(buf, "", 1, SIZE_MAX), 0);
    assert_string_equal(buf->data, expected);
    mu_buf_done(buf);
}

static void it_is_written_again_as_python_would(void **state)
{
    static const struct {
        const char *bytes, *again;
    } rows[] = {
        { RECORDED, RECORDED },
        { "{\"message\":\"t\",\"k\":[],\"o\":{},\"n\":null,\"b\":[true,false],\"i\":-7}",
          "{\"message\": \"t\", \"k\": [], \"o\": {}, \"n\": null, \"b\": [true, false], \"i\": -7}" },
        { "{\"message\": \"\xc3\xa9\\u20AC\\/\x7f\", \"more\": [1, 2.5, 1e20, 1e-7, 3.0]}",
          "{\"message\": \"\\u00e9\\u20ac/\\u007f\", \"more\": [1, 2.5, 1e+20, 1e-07, 3.0]}" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_errfile file;
        struct mu_buf buf = { 0 };

        assert_int_equal(mu_errfile_parse(mu_slice_str(rows[i].bytes), &file, NULL), 0);
        assert_text(&buf, mu_errfile_write(&file, &buf), rows[i].again);
        mu_errfile_done(&file);
    }
}

static void the_copy_carries_the_exit_code(void **state)
{
    static const struct {
        const char *bytes;
        int exit_code;
        const char *copy;
    } rows[] = {
        { "{\"message\": {\"message\": \"m\", \"extraInfo\": {\"timestamp\": \"1\"}}}", 1,
          "{\"message\": {\"message\": \"m\", \"extraInfo\": {\"timestamp\": \"1\"}, \"errorCode\": 1}}" },
        { "{\"message\": {\"extraInfo\": {\"timestamp\": \"1\"}}, \"x\": 2}", -11,
          "{\"message\": {\"extraInfo\": {\"timestamp\": \"1\"}, \"errorCode\": -11}, \"x\": 2}" },
        { "{\"message\": {\"errorCode\": 4, \"extraInfo\": {\"timestamp\": 1}}}", 3,
          "{\"message\": {\"errorCode\": 3, \"extraInfo\": {\"timestamp\": 1}}}" },
        { "{\"message\": {\"extraInfo\": {\"timestamp\": 1}}}", 0,
          "{\"message\": {\"extraInfo\": {\"timestamp\": 1}}}" },
        { "{\"message\": \"t\"}", 3, "{\"message\": \"t\"}" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_errfile file;
        struct mu_buf buf = { 0 };

        assert_int_equal(mu_errfile_parse(mu_slice_str(rows[i].bytes), &file, NULL), 0);
        assert_text(&buf, mu_errfile_write_copy(&file, rows[i].exit_code, &buf), rows[i].copy);
        assert_text(&buf, mu_errfile_write_copy(&file, rows[i].exit_code, &buf), rows[i].copy); /* it stays as it was */
        mu_errfile_done(&file);
    }
}

static void our_own_errors_have_the_same_form(void **state)
{
    struct mu_buf buf = { 0 };

    (void)state;
    assert_text(&buf, mu_errfile_write_own("SignalException", "Process 25870 got signal: 15", 1794724302, &buf),
                "{\"message\": {\"message\": \"SignalException: Process 25870 got signal: 15\", \"extraInfo\": "
                "{\"py_callstack\": \"SignalException: Process 25870 got signal: 15\\n\", \"timestamp\": "
                "\"1794724302\"}}}");
}

/* ---- Files ---- */

static char directory[64], path[128];

static int make_directory(void **state)
{
    (void)state;
    (void)snprintf(directory, sizeof directory, "/tmp/muster-errfile-XXXXXX");
    assert_non_null(mkdtemp(directory));
    (void)snprintf(path, sizeof path, "%s/error.json", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(directory);
}

#define WITH_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)

static void put_file(const char *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), len);
    (void)close(fd);
}

static void assert_absent(const char *from, const char *problem)
{
    struct mu_errfile file;
    char expected[512];

    mu_errfile_read(from, &file);
    assert_false(file.present);
    if (problem == NULL) {
        assert_null(file.problem);
    } else {
        (void)snprintf(expected, sizeof expected, "error file '%s' is not used: %s", from, problem);
        assert_string_equal(file.problem, expected);
    }
    mu_errfile_done(&file);
}

static void files_are_read_or_absent(void **state)
{
    static char huge[MU_ERRFILE_BYTES_MAX + 1];
    struct mu_errfile file;

    (void)state;
    assert_absent(NULL, NULL);
    assert_absent("", NULL);
    assert_absent(path, NULL);
    assert_absent("/dev/null/x", NULL);
    assert_absent("/dev/null", "not a file");
    assert_absent(directory, "not a file");
    put_file("", 0);
    assert_absent(path, "empty");
    put_file("{\"message\": 7}", 14);
    assert_absent(path, "'message' is neither text nor an object");
    memset(huge, ' ', sizeof huge);
    put_file(huge, sizeof huge);
    assert_absent(path, "more than 4194304 bytes");
    put_file(RECORDED, strlen(RECORDED));
    mu_errfile_read(path, &file);
    assert_true(file.present);
    assert_string_equal(file.traceback, TRACE);
    mu_errfile_done(&file);
}

static void a_fifo_is_not_waited_for(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_absent(path, "not a file");
}

static void assert_file(const char *expected)
{
    char text[256];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len;

    assert_true(fd >= 0);
    len = read(fd, text, sizeof text - 1);
    assert_true(len >= 0);
    text[len] = '\0';
    assert_string_equal(text, expected);
    (void)close(fd);
}

static void a_file_is_replaced_whole(void **state)
{
    bool replaced = true;

    (void)state;
    assert_int_equal(mu_errfile_save(path, mu_slice_str("one"), &replaced, NULL), 0);
    assert_false(replaced);
    assert_file("one");
    assert_int_equal(mu_errfile_save(path, mu_slice_str("another"), &replaced, NULL), 0);
    assert_true(replaced);
    assert_file("another"); /* and, by the teardown, nothing else is left in the directory */
}

static void a_place_that_takes_none_is_an_error(void **state)
{
    struct muster_error error = { 0 };
    bool replaced;

    (void)state;
    assert_int_equal(mu_errfile_save("/dev/null", mu_slice_str("gone"), &replaced, NULL), 0);
    assert_int_equal(mu_errfile_save("/dev/full", mu_slice_str("x"), &replaced, &error), MUSTER_ESYSTEM);
    assert_string_equal(error.text, "write error file '/dev/full': No space left on device");
    assert_int_equal(mu_errfile_save("/dev/null/x", mu_slice_str("x"), &replaced, &error), MUSTER_ESYSTEM);
    assert_string_equal(error.text, "write error file '/dev/null/x': Not a directory");
    assert_int_equal(mu_errfile_save(directory, mu_slice_str("x"), &replaced, &error), MUSTER_ESYSTEM);
    assert_true(access("/dev/null", W_OK) == 0);
}

static void without_memory_it_is_absent(void **state)
{
    (void)state;
    json_set_alloc_funcs(malloc, free); /* counted here */
    put_file(RECORDED, strlen(RECORDED));
    FOR_EACH_FAILURE (n) {
        struct mu_errfile file;

        mu_errfile_read(path, &file);
        if (!fail_alloc_hit())
            assert_true(file.present);
        mu_errfile_done(&file);
    }
    FOR_EACH_FAILURE (n) {
        struct mu_errfile file;
        struct mu_buf buf = { 0 };
        int rc = mu_errfile_parse(mu_slice_str(RECORDED), &file, NULL);

        if (rc == 0)
            rc = mu_errfile_write_copy(&file, 3, &buf);
        /* jansson does not always know that it was for want of memory */
        assert_true(rc == 0 || ((rc == MUSTER_ENOMEM || rc == MUSTER_EINVAL) && fail_alloc_hit()));
        if (!fail_alloc_hit())
            assert_int_equal(rc, 0);
        mu_buf_done(&buf);
        mu_errfile_done(&file);
    }
    FOR_EACH_FAILURE (n) {
        struct mu_buf buf = { 0 };
        int rc =
            mu_errfile_write_own("ValueError", "a long enough text to need more than one piece of memory", 1, &buf);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_buf_done(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_worker_wrote_is_read),
        cmocka_unit_test(what_is_none_is_told_what_is_wrong),
        cmocka_unit_test(depth_and_size_have_limits),
        cmocka_unit_test(only_real_nesting_counts),
        cmocka_unit_test(it_is_written_again_as_python_would),
        cmocka_unit_test(the_copy_carries_the_exit_code),
        cmocka_unit_test(our_own_errors_have_the_same_form),
        WITH_DIRECTORY(files_are_read_or_absent),
        WITH_DIRECTORY(a_fifo_is_not_waited_for),
        WITH_DIRECTORY(a_file_is_replaced_whole),
        WITH_DIRECTORY(a_place_that_takes_none_is_an_error),
        WITH_DIRECTORY(without_memory_it_is_absent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
