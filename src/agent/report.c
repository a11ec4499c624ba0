/* Reports of failures: the line in the log, torchrun's box, and lines of the log that scripts look for. */
#include "agent/report.h"

#include "base/text.h"
#include "base/utf8.h"
#include "proc/signals.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BORDER_MAX = 60 };

#define NOT_AVAILABLE "<N/A>"
#define ERROR_CLASS "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
#define SIGNAL_CLASS "torch.distributed.elastic.multiprocessing.api.SignalException: "
#define NO_TRACEBACK "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
#define NO_DATA "{\"message\": \"<NONE>\""
#define TRAITS ", \"errorTraits\": {\"category\": \"system_terminated_error\", \"retryability\": \"False\"}}"

/* ---- Signals ---- */

const char *mu_report_signal_name(int number)
{
    static const char *const realtime[] = { "SIGRTMIN", "SIGRTMAX" };
    char room[MU_SIGNAL_NAME_MAX];
    const char *name = mu_signal_name(number, room);

    if (number == SIGRTMIN || number == SIGRTMAX)
        return realtime[number == SIGRTMAX];
    return name == room ? NOT_AVAILABLE : name;
}

/* ---- Text ---- */

/* Appends to what the caller has. */
static struct mu_text begin(struct mu_buf *out)
{
    return (struct mu_text){ .buf = *out, .len_max = MU_REPORT_BYTES_MAX };
}

static int finish(const struct mu_text *t, struct mu_buf *out)
{
    *out = t->buf;
    return t->failed;
}

/* Control characters and bytes that are not UTF-8 are written as \xNN, so that a terminal does not act on them. */
static void put_visible_character(struct mu_text *t, const char *bytes, size_t len)
{
    uint32_t point = len > 0 ? mu_utf8_point(bytes, len) : (unsigned char)bytes[0];

    if (len > 0 && point >= ' ' && !(point >= 0x7f && point < 0xa0))
        mu_text_add_bytes(t, bytes, len);
    else
        mu_text_add(t, "\\x%02x", (unsigned)point & 0xff);
}

/* Keeps line ends, and puts the margin after each of them. */
static void put_visible(struct mu_text *t, const char *text, const char *margin)
{
    const char *end = text + strlen(text);

    while (text < end) {
        size_t len = mu_utf8_len(text, (size_t)(end - text));

        if (*text == '\n' || *text == '\t')
            mu_text_add_bytes(t, text, 1);
        else
            put_visible_character(t, text, len);
        if (*text == '\n')
            mu_text_add(t, "%s", margin);
        text += len > 0 ? len : 1;
    }
}

static void put_repeated(struct mu_text *t, char c, size_t count)
{
    char border[BORDER_MAX];

    assert(count <= sizeof border);
    memset(border, c, count);
    mu_text_add_bytes(t, border, count);
    mu_text_add(t, "\n");
}

/* ---- Failures ---- */

static bool has_file(const struct mu_failure *f)
{
    return f->error != NULL && f->error->present;
}

/* A text that is empty counts as none; an object always says something. */
static bool has_message(const struct mu_failure *f)
{
    return has_file(f) && (f->error->structured || f->error->message[0] != '\0');
}

int64_t mu_failure_time_s(const struct mu_failure *failure)
{
    return has_file(failure) ? failure->error->timestamp_s : failure->noticed_s;
}

size_t mu_failure_first(const struct mu_failure *failures, size_t count)
{
    size_t first = 0;

    assert(count > 0);
    for (size_t i = 1; i < count; i++)
        if (mu_failure_time_s(&failures[i]) < mu_failure_time_s(&failures[first]))
            first = i;
    return first;
}

/* Without an error file: how it died, or where to read about tracebacks. */
static void put_message(struct mu_text *t, const struct mu_failure *f)
{
    if (has_message(f))
        put_visible(t, f->error->traceback, "");
    else if (f->exit_code < 0)
        mu_text_add(t, "Signal %d (%s) received by PID %ld", -f->exit_code, mu_report_signal_name(-f->exit_code),
                    (long)f->pid);
    else
        mu_text_add(t, NO_TRACEBACK);
}

bool mu_failures_have_traits(const struct mu_failure *failures, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!has_file(&failures[i]) && failures[i].exit_code >= 0)
            return true;
    return false;
}

int mu_failure_write_raw(const struct mu_failure *failure, bool traits, struct mu_buf *out)
{
    struct mu_text t;
    int rc = has_file(failure) ? mu_errfile_write(failure->error, out) : 0;

    if (rc < 0 || (has_file(failure) && (has_message(failure) || failure->exit_code < 0)))
        return rc;
    t = begin(out);
    if (has_file(failure))
        t.buf.len--; /* the closing brace; the object has at least one key */
    else
        mu_text_add(&t, NO_DATA);
    mu_text_add(&t, has_file(failure) || traits ? TRAITS : "}");
    return finish(&t, out);
}

/* ---- The box ---- */

/* Characters, not bytes. */
static size_t width_of(const char *text, size_t len)
{
    size_t width = 0;

    for (size_t i = 0; i < len; i++)
        width += ((unsigned char)text[i] & 0xC0) != 0x80;
    return width;
}

static size_t widest(size_t width, struct mu_slice lines)
{
    while (lines.len > 0) {
        const char *end = memchr(lines.data, '\n', lines.len);
        size_t len = end != NULL ? (size_t)(end - lines.data) : lines.len, line = width_of(lines.data, len);

        width = line > width ? line : width;
        len += end != NULL;
        lines = mu_slice(lines.data + len, lines.len - len);
    }
    return width;
}

static void put_time(struct mu_text *t, int64_t time_s)
{
    time_t time = (time_t)time_s;
    struct tm parts;

    if (localtime_r(&time, &parts) == NULL)
        mu_text_add(t, NOT_AVAILABLE);
    else
        mu_text_add(t, "%04d-%02d-%02d_%02d:%02d:%02d", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                    parts.tm_hour, parts.tm_min, parts.tm_sec);
}

static void put_exit_code(struct mu_text *t, const struct mu_report *report, const struct mu_failure *f)
{
    const char *name = f->exit_code < 0 ? mu_report_signal_name(-f->exit_code) : NOT_AVAILABLE;

    mu_text_add(t, "\n  exitcode  : %d (pid: %ld)", f->exit_code, (long)f->pid);
    if (report->signal_names)
        mu_text_add(t, " ");
    if (report->signal_names && strcmp(name, NOT_AVAILABLE) != 0)
        mu_text_add(t, " (%s)", name);
}

static void put_failure(struct mu_text *t, const struct mu_report *report, size_t index)
{
    const struct mu_failure *f = &report->failures[index];

    mu_text_add(t, "[%zu]:\n  time      : ", index);
    put_time(t, mu_failure_time_s(f));
    mu_text_add(t, "\n  host      : %s", report->host);
    mu_text_add(t, "\n  rank      : %" PRId64 " (local_rank: %" PRId64 ")", f->rank, f->local_rank);
    put_exit_code(t, report, f);
    mu_text_add(t, "\n  error_file: %s", has_file(f) ? f->error_path : NOT_AVAILABLE);
    mu_text_add(t, "\n  traceback : ");
    if (has_file(f) && f->error->structured)
        put_visible(t, f->error->traceback, "  "); /* Python indents after the last line end as well */
    else
        put_message(t, f);
    mu_text_add(t, "\n");
}

/* Failures and root cause, each in a buffer of its own: the border above them is as wide as the widest line. */
struct sections {
    struct mu_text others, root;
    size_t width;
};

static int write_sections(const struct mu_report *report, struct sections *s)
{
    size_t first = mu_failure_first(report->failures, report->count);

    for (size_t i = 0; i < report->count; i++) {
        struct mu_text *t = i == first ? &s->root : &s->others;
        size_t from = t->buf.len;

        put_failure(t, report, i);
        if (t->failed < 0)
            return t->failed;
        s->width = widest(s->width, mu_slice(t->buf.data + from, t->buf.len - from));
    }
    return 0;
}

int mu_report_write_box(const struct mu_report *report, struct mu_buf *out)
{
    struct sections s = { .others = { .len_max = MU_REPORT_BYTES_MAX },
                          .root = { .len_max = MU_REPORT_BYTES_MAX },
                          .width = width_of(report->job, strlen(report->job)) + strlen(" FAILED") };
    struct mu_text t = begin(out);

    t.failed = write_sections(report, &s);
    if (s.width > BORDER_MAX)
        s.width = BORDER_MAX;
    mu_text_add(&t, ERROR_CLASS);
    put_repeated(&t, '=', s.width);
    mu_text_add(&t, "%s FAILED\n", report->job);
    put_repeated(&t, '-', s.width);
    mu_text_add(&t, "Failures:\n");
    if (report->count == 1)
        mu_text_add(&t, "  <NO_OTHER_FAILURES>\n");
    mu_text_add_bytes(&t, s.others.buf.data, s.others.buf.len);
    put_repeated(&t, '-', s.width);
    mu_text_add(&t, "Root Cause (first observed failure):\n");
    mu_text_add_bytes(&t, s.root.buf.data, s.root.buf.len);
    put_repeated(&t, '=', s.width);
    mu_text_done(&s.others);
    mu_text_done(&s.root);
    return finish(&t, out);
}

/* ---- The line ---- */

/* Cuts to the limit, but not through a character. */
static struct mu_slice cut(struct mu_slice text, size_t len_max)
{
    if (text.len <= len_max)
        return text;
    while (len_max > 0 && ((unsigned char)text.data[len_max] & 0xC0) == 0x80)
        len_max--;
    return mu_slice(text.data, len_max);
}

/* On one line: control characters become blanks, and several blanks become one. */
static void put_flat(struct mu_text *t, struct mu_slice text)
{
    bool blank = true;

    while (text.len > 0) {
        unsigned char c = (unsigned char)text.data[0];
        bool is_blank = c <= ' ' || c == 0x7F;
        size_t len = mu_utf8_len(text.data, text.len), step = len == 0 ? 1 : len;

        if (!is_blank)
            put_visible_character(t, text.data, len);
        else if (!blank && text.len > 1)
            mu_text_add(t, " ");
        blank = is_blank;
        text = mu_slice(text.data + step, text.len - step);
    }
}

static struct mu_slice trim(struct mu_slice text)
{
    while (text.len > 0 && (unsigned char)text.data[text.len - 1] <= ' ')
        text.len--;
    while (text.len > 0 && (unsigned char)text.data[0] <= ' ')
        text = mu_slice(text.data + 1, text.len - 1);
    return text;
}

/* Python marks a part of the line above with a line of carets and tildes; alone that line says nothing. */
static bool points_only(struct mu_slice line)
{
    for (size_t i = 0; i < line.len; i++)
        if (line.data[i] != '^' && line.data[i] != '~' && line.data[i] != ' ')
            return false;
    return true;
}

/* The last line that says something; empty: there is none. */
static struct mu_slice last_line(struct mu_slice text)
{
    text = trim(text);
    while (text.len > 0) {
        size_t from = text.len;
        struct mu_slice line;

        while (from > 0 && text.data[from - 1] != '\n')
            from--;
        line = trim(mu_slice(text.data + from, text.len - from));
        if (!points_only(line))
            return line;
        text = trim(mu_slice(text.data, from));
    }
    return text;
}

/* What the worker said: the message of its error file, or else the last line of its stderr. */
static void put_last_words(struct mu_text *t, const struct mu_failure *f)
{
    struct mu_slice words = has_message(f) ? trim(mu_slice_str(f->error->message)) : mu_slice("", 0);

    if (words.len == 0)
        words = last_line(has_message(f) ? mu_slice_str(f->error->traceback) : f->last_stderr);
    if (words.len == 0)
        return;
    mu_text_add(t, ": ");
    put_flat(t, cut(words, MU_REPORT_DETAIL_MAX));
}

static void put_how(struct mu_text *t, const struct mu_failure *f)
{
    if (f->exit_code >= 0)
        mu_text_add(t, "exit code %d", f->exit_code);
    else if (strcmp(mu_report_signal_name(-f->exit_code), NOT_AVAILABLE) == 0)
        mu_text_add(t, "killed by signal %d", -f->exit_code);
    else
        mu_text_add(t, "killed by %s", mu_report_signal_name(-f->exit_code));
    if (f->out_of_memory)
        mu_text_add(t, " (out of memory)");
}

static void put_problems(struct mu_text *t, const struct mu_report *report)
{
    size_t said = 0, kept_back = 0;

    for (size_t i = 0; i < report->count; i++) {
        const struct mu_errfile *error = report->failures[i].error;

        if (error == NULL || error->present || error->problem == NULL)
            continue;
        if (said++ >= MU_REPORT_PROBLEMS_MAX) {
            kept_back++;
            continue;
        }
        put_flat(t, mu_slice_str(error->problem));
        mu_text_add(t, "\n");
    }
    if (kept_back > 0)
        mu_text_add(t, "error files of %zu more workers are not used\n", kept_back);
}

int mu_failure_write_line(const struct mu_failure *f, const char *host, struct mu_buf *out)
{
    struct mu_text t = begin(out);

    mu_text_add(&t, "rank %" PRId64 " on ", f->rank);
    put_flat(&t, mu_slice_str(host));
    mu_text_add(&t, " (local rank %" PRId64 ", ", f->local_rank);
    mu_text_add(&t, f->id != NULL ? "id " : "pid ");
    if (f->id != NULL)
        put_flat(&t, mu_slice_str(f->id));
    else
        mu_text_add(&t, "%ld", (long)f->pid);
    mu_text_add(&t, ") failed: ");
    put_how(&t, f);
    put_last_words(&t, f);
    return finish(&t, out);
}

int mu_report_write(const struct mu_report *report, struct mu_buf *out)
{
    struct mu_text t = begin(out);
    int rc;

    put_problems(&t, report);
    rc = finish(&t, out);
    return rc < 0 ? rc : mu_report_write_box(report, out);
}

/* ---- Names ---- */

const char *mu_report_job(const char *const *argv, bool interpreter, bool run_path)
{
    if (run_path)
        return "run_script_path";
    if (!interpreter)
        return argv[0];
    for (size_t i = 1; argv[i] != NULL; i++)
        if (argv[i][0] != '-')
            return argv[i];
    return "";
}

const char *mu_report_entry_point(const char *program)
{
    const char *slash = strrchr(program, '/');

    return slash != NULL ? slash + 1 : program;
}

/* ---- Lines of the log ---- */

void mu_say_failed(char *line, size_t room, const struct mu_failure *failure, const char *entry_point,
                   const char *start_method)
{
    char who[MUSTER_WORKER_ID_MAX + 8];
    int used;

    if (failure->id != NULL)
        (void)snprintf(who, sizeof who, "id: %s", failure->id);
    else
        (void)snprintf(who, sizeof who, "pid: %ld", (long)failure->pid);
    used = snprintf(line, room, "failed (exitcode: %d) local_rank: %lld (%s) of %s: %s", failure->exit_code,
                    (long long)failure->local_rank, who, start_method == NULL ? "binary" : "fn", entry_point);
    if (start_method != NULL && used > 0 && (size_t)used < room)
        (void)snprintf(line + used, room - (size_t)used, " (start_method: %s)", start_method);
}

void mu_say_ended_by_signal(char *line, size_t room, pid_t pid, int signal)
{
    (void)snprintf(line, room, SIGNAL_CLASS "Process %ld got signal: %d", (long)pid, signal);
}
