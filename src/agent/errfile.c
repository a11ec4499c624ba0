/* Error files. A worker's file is input from outside: it is read within limits, and a bad one is reported and does not
 * end the launcher. */
#include "agent/errfile.h"

#include "base/files.h"
#include "base/number.h"
#include "events/json.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MAX = 512, READ_STEP_BYTES = 65536 };

#define TIME_MAX_S INT64_C(253402300799) /* the end of the year 9999: what a report can show */
#define TIME_MIN_S INT64_C(-62135596800)
#define NOT_AVAILABLE "<N/A>"

/* ---- Reading ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The number of an escape \uXXXX at `text`, or -1. */
static int32_t escape_at(const char *text, size_t len)
{
    int32_t value = 0;

    if (len < 6 || text[0] != '\\' || text[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        int digit = hex_digit(text[i]);

        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Python writes undecodable bytes and NULs in texts as escapes that JSON proper does not know, "\udcff" and "\u0000".
 * They become U+FFFD, in place. */
static void mend_escapes(char *text, size_t len)
{
    size_t at = 0;

    while (at < len) {
        int32_t first = escape_at(text + at, len - at), second = -1;

        if (first >= 0xD800 && first <= 0xDBFF)
            second = escape_at(text + at + 6, len - at - 6);
        if (second >= 0xDC00 && second <= 0xDFFF) {
            at += 12;
            continue;
        }
        if (first == 0 || (first >= 0xD800 && first <= 0xDFFF))
            memcpy(text + at + 2, "fffd", 4);
        at += first >= 0 ? 6 : text[at] == '\\' ? 2 : 1;
    }
}

/* As int() takes it: a number, or text of one. */
static int parse_time(const json_t *value, const char *name, int64_t *ret_time_s, struct muster_error *reterr)
{
    int64_t time_s = INT64_MIN;

    if (json_is_integer(value))
        time_s = json_integer_value(value);
    else if (json_is_real(value) && json_real_value(value) > -1e15 && json_real_value(value) < 1e15)
        time_s = (int64_t)json_real_value(value);
    else if (json_is_string(value) && !mu_number_int(json_string_value(value), &time_s))
        time_s = INT64_MIN;
    if (time_s < TIME_MIN_S || time_s > TIME_MAX_S)
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' is not a time in seconds", name);
    *ret_time_s = time_s;
    return 0;
}

static int copy_text(const char *text, char **ret_text, struct muster_error *reterr)
{
    *ret_text = strdup(text);
    return *ret_text != NULL ? 0 : mu_fail(reterr, MUSTER_ENOMEM, "no memory");
}

/* {"message": "text"} */
static int take_text(struct mu_errfile *file, const json_t *message, struct muster_error *reterr)
{
    const json_t *time = json_object_get(file->root, "timestamp");
    int rc = time != NULL ? parse_time(time, "timestamp", &file->timestamp_s, reterr) : 0;

    if (rc == 0)
        rc = copy_text(json_string_value(message), &file->message, reterr);
    return rc < 0 ? rc : copy_text(json_string_value(message), &file->traceback, reterr);
}

/* {"message": {"message": ..., "extraInfo": {...}}}: the time must be there; a trace, else a message, is shown. */
static int take_object(struct mu_errfile *file, const json_t *message, struct muster_error *reterr)
{
    const json_t *extra = json_object_get(message, "extraInfo");
    const json_t *time = json_object_get(extra, "timestamp"), *trace = json_object_get(extra, "py_callstack");
    const json_t *text = json_object_get(message, "message");
    const char *shown = NOT_AVAILABLE;
    int rc;

    if (!json_is_object(extra))
        return mu_fail(reterr, MUSTER_EINVAL, "no object 'message.extraInfo'");
    if (time == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "no 'message.extraInfo.timestamp'");
    rc = parse_time(time, "message.extraInfo.timestamp", &file->timestamp_s, reterr);
    if (rc < 0)
        return rc;
    if (trace != NULL && !json_is_string(trace))
        return mu_fail(reterr, MUSTER_EINVAL, "'message.extraInfo.py_callstack' is not text");
    if (trace == NULL && text != NULL && !json_is_string(text))
        return mu_fail(reterr, MUSTER_EINVAL, "'message.message' is not text");
    if (json_is_string(text))
        shown = json_string_value(text);
    file->structured = true;
    rc = copy_text(json_is_string(text) ? shown : "", &file->message, reterr);
    if (trace != NULL)
        shown = json_string_value(trace);
    return rc < 0 ? rc : copy_text(shown, &file->traceback, reterr);
}

static int take(struct mu_errfile *file, struct muster_error *reterr)
{
    const json_t *message = json_object_get(file->root, "message");

    if (!json_is_object(file->root))
        return mu_fail(reterr, MUSTER_EINVAL, "not a JSON object");
    if (message == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "no 'message'");
    if (json_is_string(message))
        return take_text(file, message, reterr);
    if (json_is_object(message))
        return take_object(file, message, reterr);
    return mu_fail(reterr, MUSTER_EINVAL, "'message' is neither text nor an object");
}

/* Reading and writing are recursive, so a text that is nested too deeply is refused before. */
static bool too_deep(const char *text, size_t len)
{
    unsigned depth = 0;
    bool quoted = false;

    for (size_t i = 0; i < len; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted && (text[i] == '{' || text[i] == '['))
            depth++;
        else if (!quoted && (text[i] == '}' || text[i] == ']'))
            depth -= depth > 0;
        if (depth > DEPTH_MAX)
            return true;
    }
    return false;
}

static int load(const char *text, size_t len, struct json_t **ret_root, struct muster_error *reterr)
{
    json_error_t why;

    *ret_root = json_loadb(text, len, JSON_DECODE_ANY, &why);
    if (*ret_root != NULL)
        return 0;
    /* When jansson runs out of memory it often returns no error. */
    if (json_error_code(&why) == json_error_out_of_memory || why.text[0] == '\0')
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory");
    return mu_fail(reterr, MUSTER_EINVAL, "not JSON: line %d: %s", why.line, why.text);
}

int mu_errfile_parse(struct mu_slice bytes, struct mu_errfile *ret_file, struct muster_error *reterr)
{
    struct mu_errfile file = { 0 };
    char *text;
    int rc;

    *ret_file = file;
    if (bytes.len > MU_ERRFILE_BYTES_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "more than %zu bytes", MU_ERRFILE_BYTES_MAX);
    if (bytes.len == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "empty");
    if (too_deep(bytes.data, bytes.len))
        return mu_fail(reterr, MUSTER_ELIMIT, "nested more than %d deep", (int)DEPTH_MAX);
    text = mu_slice_copy(bytes);
    if (text == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory");
    mend_escapes(text, bytes.len);
    rc = load(text, bytes.len, &file.root, reterr);
    free(text);
    if (rc == 0)
        rc = take(&file, reterr);
    if (rc < 0) {
        mu_errfile_done(&file);
        return rc;
    }
    file.present = true;
    *ret_file = file;
    return 0;
}

static int read_all(int fd, struct mu_buf *bytes, struct muster_error *reterr)
{
    for (;;) {
        ssize_t len;
        int rc = mu_buf_reserve(bytes, READ_STEP_BYTES, MU_ERRFILE_BYTES_MAX + 2 * READ_STEP_BYTES);

        if (rc < 0)
            return mu_fail(reterr, rc, "%s", muster_error_text(rc));
        len = read(fd, bytes->data + bytes->len, READ_STEP_BYTES);
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0)
            return mu_fail_errno(reterr, errno, "read");
        if (len == 0)
            return 0;
        bytes->len += (size_t)len;
        if (bytes->len > MU_ERRFILE_BYTES_MAX)
            return mu_fail(reterr, MUSTER_ELIMIT, "more than %zu bytes", MU_ERRFILE_BYTES_MAX);
    }
}

/* The file is the worker's: only an ordinary one is read. */
static int read_file(int fd, struct mu_errfile *ret_file, struct muster_error *reterr)
{
    struct mu_buf bytes = { 0 };
    struct stat st;
    int rc;

    if (fstat(fd, &st) < 0)
        return mu_fail_errno(reterr, errno, "stat");
    if (!S_ISREG(st.st_mode))
        return mu_fail(reterr, MUSTER_EINVAL, "not a file");
    rc = read_all(fd, &bytes, reterr);
    if (rc == 0)
        rc = mu_errfile_parse(mu_buf_slice(&bytes), ret_file, reterr);
    mu_buf_done(&bytes);
    return rc;
}

void mu_errfile_read(const char *path, struct mu_errfile *ret_file)
{
    struct muster_error error = { 0 };
    int fd, rc;

    *ret_file = (struct mu_errfile){ 0 };
    if (path == NULL || *path == '\0')
        return;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return;
    rc = fd < 0 ? mu_fail_errno(&error, errno, "open") : read_file(fd, ret_file, &error);
    if (fd >= 0)
        (void)close(fd);
    if (rc < 0) {
        (void)mu_wrap(&error, rc, "error file '%s' is not used", path);
        ret_file->problem = strdup(error.text);
    }
}

void mu_errfile_done(struct mu_errfile *file)
{
    free(file->message);
    free(file->traceback);
    free(file->problem);
    json_decref(file->root);
    *file = (struct mu_errfile){ 0 };
}

/* ---- Writing ---- */

static void put_value(const json_t *value, struct mu_text *out);

static void put_object(const json_t *object, struct mu_text *out)
{
    const char *key, *before = "";
    json_t *value;

    mu_text_add(out, "{");
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        mu_text_add(out, "%s", before);
        mu_json_text(out, mu_slice_str(key));
        mu_text_add(out, ": ");
        put_value(value, out);
        before = ", ";
    }
    mu_text_add(out, "}");
}

static void put_array(const json_t *array, struct mu_text *out)
{
    mu_text_add(out, "[");
    for (size_t i = 0; i < json_array_size(array); i++) {
        mu_text_add(out, "%s", i > 0 ? ", " : "");
        put_value(json_array_get(array, i), out);
    }
    mu_text_add(out, "]");
}

static void put_value(const json_t *value, struct mu_text *out)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        put_object(value, out);
        break;
    case JSON_ARRAY:
        put_array(value, out);
        break;
    case JSON_STRING:
        mu_json_text(out, mu_slice(json_string_value(value), json_string_length(value)));
        break;
    case JSON_INTEGER:
        mu_text_add(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        mu_json_real(out, json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        mu_text_add(out, json_is_true(value) ? "true" : "false");
        break;
    case JSON_NULL:
        mu_text_add(out, "null");
        break;
    }
}

static int write_value(const json_t *value, struct mu_buf *out)
{
    struct mu_text text = { .buf = *out, .len_max = MU_JSON_BYTES_MAX };

    put_value(value, &text);
    *out = text.buf;
    return text.failed;
}

int mu_errfile_write(const struct mu_errfile *file, struct mu_buf *out)
{
    assert(file->present);
    return write_value(file->root, out);
}

int mu_errfile_write_copy(const struct mu_errfile *file, int exit_code, struct mu_buf *out)
{
    json_t *root, *message;
    int rc;

    assert(file->present);
    if (exit_code == 0 || !file->structured)
        return mu_errfile_write(file, out);
    root = json_deep_copy(file->root);
    message = json_object_get(root, "message");
    if (root == NULL || json_object_set_new(message, "errorCode", json_integer(exit_code)) < 0)
        rc = MUSTER_ENOMEM;
    else
        rc = write_value(root, out);
    json_decref(root);
    return rc;
}

int mu_errfile_write_own(const char *kind, const char *text, int64_t now_s, struct mu_buf *out)
{
    struct mu_text trace = { 0 }, all = { .buf = *out, .len_max = MU_JSON_BYTES_MAX };
    int rc;

    mu_text_add(&trace, "%s: %s\n", kind, text);
    if (trace.failed == 0) {
        mu_text_add(&all, "{\"message\": {\"message\": ");
        mu_json_text(&all, mu_slice(trace.buf.data, trace.buf.len - 1));
        mu_text_add(&all, ", \"extraInfo\": {\"py_callstack\": ");
        mu_json_text(&all, mu_buf_slice(&trace.buf));
        mu_text_add(&all, ", \"timestamp\": \"%" PRId64 "\"}}}", now_s);
    }
    rc = trace.failed != 0 ? trace.failed : all.failed;
    mu_text_done(&trace);
    *out = all.buf;
    return rc;
}

/* ---- Keeping ---- */

/* 0 or a negative errno value. */
static int write_to(const char *path, int flags, struct mu_slice bytes)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | flags, 0666), rc;

    if (fd < 0)
        return -errno;
    rc = -mu_files_write(fd, bytes, false);
    if (close(fd) < 0 && rc == 0 && errno != EINTR)
        rc = -errno;
    return rc;
}

/* Written to a file beside it, which is then renamed: readers never see half of it. */
static int replace(const char *path, struct mu_slice bytes)
{
    char *beside;
    int rc;

    if (asprintf(&beside, "%s.%ld.tmp", path, (long)getpid()) < 0)
        return -ENOMEM;
    (void)unlink(beside); /* what another of our pid left */
    rc = write_to(beside, O_CREAT | O_EXCL, bytes);
    if (rc == 0 && rename(beside, path) < 0)
        rc = -errno;
    if (rc < 0)
        (void)unlink(beside);
    free(beside);
    return rc;
}

int mu_errfile_save(const char *path, struct mu_slice bytes, bool *ret_replaced, struct muster_error *reterr)
{
    struct stat st;
    bool there = stat(path, &st) == 0;
    int rc;

    /* A terminal, a pipe or /dev/null is written to, not replaced, and not waited for. */
    if (there && !S_ISREG(st.st_mode))
        rc = write_to(path, O_NONBLOCK, bytes);
    else
        rc = replace(path, bytes);
    if (rc < 0)
        return mu_fail_errno(reterr, -rc, "write error file '%s'", path);
    *ret_replaced = there && S_ISREG(st.st_mode);
    return 0;
}
