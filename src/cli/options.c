/* Long options by table, and the lines that go to stderr. */
#include "base/log.h"
#include "cli/cli.h"
#include "cli/join_text.h"
#include "cli/log_line.h"
#include "store/net.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { HOST_NAME_BYTES = 256, STATUS_BYTES = 512, COLUMNS_DEFAULT = 80, COLUMNS_MIN = 20 };

static const char erase_line[] = "\r\033[K";

static struct mu_log_style log_style = { .host = "localhost" };
static char status[STATUS_BYTES]; /* what a terminal shows in its last line */
static size_t status_len;

static void say(const char *command, const char *format, va_list args)
{
    mu_cli_status("", 0);
    (void)fprintf(stderr, "%s: ", command);
    (void)vfprintf(stderr, format, args);
}

int mu_cli_fail(const char *command, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(command, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    return MU_EXIT_ERROR;
}

int mu_cli_usage(const char *command, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(command, format, args);
    va_end(args);
    (void)fprintf(stderr, " (see '%s --help')\n", command);
    return MU_EXIT_USAGE;
}

int mu_cli_flush(const char *command)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return MU_EXIT_OK;
    return mu_cli_fail(command, "cannot write to standard output: %s", strerror(errno));
}

int mu_cli_print_value(const char *command, struct muster_bytes *value)
{
    (void)fwrite(value->data, 1, value->len, stdout);
    if (isatty(STDOUT_FILENO))
        (void)fputc('\n', stdout);
    muster_bytes_done(value);
    return mu_cli_flush(command);
}

int mu_cli_print(const char *command, struct mu_text *text)
{
    int failed = text->failed;

    if (text->buf.len > 0)
        (void)fwrite(text->buf.data, 1, text->buf.len, stdout);
    mu_text_done(text);
    return failed != 0 ? mu_cli_fail(command, "%s", muster_error_text(failed)) : mu_cli_flush(command);
}

int mu_cli_help(const char *command, const char *help)
{
    (void)fputs(help, stdout);
    return mu_cli_flush(command);
}

/* Writes to stderr if that can be done at once: a stopped terminal, or a pipe without a reader, must not stop the
 * command. If poll() allows a write, all of it is taken, for it is shorter than PIPE_BUF. */
static bool write_at_once(const char *text, size_t len)
{
    struct pollfd out = { .fd = STDERR_FILENO, .events = POLLOUT };

    return poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) && write(STDERR_FILENO, text, len) == (ssize_t)len;
}

/* The same around the status: whole lines go above it. */
static bool write_lines(const char *lines, size_t len)
{
    bool written;

    if (status_len > 0)
        (void)write_at_once(erase_line, sizeof erase_line - 1);
    written = write_at_once(lines, len);
    if (status_len > 0)
        (void)write_at_once(status, status_len);
    return written;
}

static size_t columns(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col < COLUMNS_MIN)
        return COLUMNS_DEFAULT;
    return size.ws_col;
}

void mu_cli_status(const char *text, size_t len)
{
    size_t width = columns() - 1; /* the last column would begin a new line */
    char shown[sizeof erase_line + STATUS_BYTES];

    if (len == status_len && (len == 0 || memcmp(text, status, len) == 0))
        return;
    if (width > sizeof status)
        width = sizeof status;
    if (len > 0)
        memcpy(status, text, len < width ? len : width);
    if (len > width)
        memcpy(status + width - 3, "...", 3);
    status_len = len < width ? len : width;
    memcpy(shown, erase_line, sizeof erase_line - 1);
    memcpy(shown + sizeof erase_line - 1, status, status_len);
    (void)write_at_once(shown, sizeof erase_line - 1 + status_len);
}

static size_t log_line(enum muster_log_level level, const char *text, char out[static MU_LOG_LINE_MAX])
{
    struct timespec now;

    log_style.pid = getpid(); /* a keeper and its agent share the rest of the style */
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return mu_log_line(&log_style, now, level, text, out);
}

static bool write_line(enum muster_log_level level, const char *text)
{
    char line[MU_LOG_LINE_MAX];

    return write_lines(line, log_line(level, text, line));
}

static void log_to_stderr(void *ctx, enum muster_log_level level, const char *line)
{
    static unsigned long lost;
    char text[64];

    (void)ctx;
    if (lost > 0) {
        (void)snprintf(text, sizeof text, "%lu log lines could not be written", lost);
        if (write_line(MUSTER_LOG_WARNING, text))
            lost = 0;
    }
    if (!write_line(level, line))
        lost++;
}

/* Why a command ends. A person at a terminal knows which command and which host; elsewhere it is a line of the log. */
static size_t final_line(const char *text, char out[static MU_LOG_LINE_MAX])
{
    int len;

    if (!log_style.terminal)
        return log_line(MUSTER_LOG_ERROR, text, out);
    len = snprintf(out, MU_LOG_LINE_MAX - 1, "%s", text);
    if (len > MU_LOG_LINE_MAX - 2)
        len = MU_LOG_LINE_MAX - 2;
    out[len++] = '\n';
    return (size_t)len;
}

void mu_cli_say(const char *text)
{
    char line[MU_LOG_LINE_MAX];
    size_t len = final_line(text, line);

    (void)write_lines(line, len);
}

void mu_cli_log_lines(struct mu_slice lines, enum muster_log_level level, void (*instead)(const char *line))
{
    char line[MU_LOG_LINE_MAX];
    size_t len;

    for (size_t at = 0; at < lines.len; at += len + 1) {
        const char *begin = lines.data + at, *end = memchr(begin, '\n', lines.len - at);

        len = end != NULL ? (size_t)(end - begin) : lines.len - at;
        (void)snprintf(line, sizeof line, "%.*s", (int)len, begin);
        if (instead != NULL)
            instead(line);
        else
            mu_log(level, "%s", line);
    }
}

void mu_cli_final(const char *text)
{
    char line[MU_LOG_LINE_MAX];
    size_t len = final_line(text, line);

    (void)fwrite(line, 1, len, stderr);
}

static void choose_style(void)
{
    static char host[HOST_NAME_BYTES];

    if (gethostname(host, sizeof host - 1) < 0)
        (void)snprintf(host, sizeof host, "localhost");
    log_style.host = host;
    log_style.terminal = isatty(STDERR_FILENO) == 1;
    log_style.colour = mu_log_wants_colour(log_style.terminal, getenv("NO_COLOR"), getenv("TERM"));
}

bool mu_cli_log(const char *command, const char *level)
{
    static const enum muster_log_level levels[] = {
#define X(name, number, text) MUSTER_LOG_##name,
        MUSTER_LOG_LEVELS(X)
#undef X
    };

    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (strcmp(level, muster_log_level_name(levels[i])) == 0) {
            muster_log_set_level(levels[i]);
            choose_style();
            muster_log_set_sink(log_to_stderr, NULL);
            return true;
        }
    }
    (void)mu_cli_usage(command, "option '--log-level': '%s' must be debug, info, notice, warning or error", level);
    return false;
}

static bool parse_u64(const char *text, char **ret_end, uint64_t *ret_number)
{
    unsigned long long number;

    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    number = strtoull(text, ret_end, 10);
    *ret_number = number;
    return errno == 0;
}

static bool parse_bytes(const char *text, uint64_t *ret_bytes)
{
    static const char units[] = "KMG";
    const char *unit;
    char *end;
    uint64_t number;
    unsigned shift = 0;

    if (!parse_u64(text, &end, &number) || number == 0)
        return false;
    if (*end != '\0') {
        unit = strchr(units, toupper((unsigned char)*end));
        if (unit == NULL || end[1] != '\0')
            return false;
        shift = 10 * (unsigned)(unit - units + 1);
    }
    if (number > UINT64_MAX >> shift)
        return false;
    *ret_bytes = number << shift;
    return true;
}

static bool parse_seconds(const char *text, int64_t *ret_ms)
{
    char *end;
    double seconds;

    if (text[0] == '\0' || strspn(text, "0123456789.") != strlen(text)) /* strtod() takes more: inf, 0x10, 1e3 */
        return false;
    seconds = strtod(text, &end);
    if (*end != '\0' || !(seconds > 0) || seconds > 1e9)
        return false;
    *ret_ms = (int64_t)(seconds * 1000 + 0.999999); /* rounded up: never less than was asked for */
    return true;
}

/* NULL when the value was taken, else what it should have been. */
static const char *take_value(const struct mu_option *option, void *values, const char *text)
{
    void *at = (char *)values + option->at;
    struct mu_option_list *list;
    uint64_t number;
    uint16_t port;
    char *end;

    switch (option->kind) {
    case MU_OPTION_FLAG:
        *(bool *)at = true;
        return NULL;
    case MU_OPTION_TEXT:
        *(const char **)at = text;
        return NULL;
    case MU_OPTION_PORT:
        if (!mu_port_parse(text, &port))
            return "a port from 0 to 65535";
        *(int *)at = port;
        return NULL;
    case MU_OPTION_INT:
        if (!parse_u64(text, &end, &number) || *end != '\0' || number > INT32_MAX)
            return "a number, 0 or above";
        *(int *)at = (int)number;
        return NULL;
    case MU_OPTION_COUNT:
        if (!parse_u64(text, &end, &number) || *end != '\0' || number == 0)
            return "a number above 0";
        *(uint64_t *)at = number;
        return NULL;
    case MU_OPTION_BYTES:
        return parse_bytes(text, at) ? NULL : "a number of bytes above 0, like 8192, 64K, 16M or 2G";
    case MU_OPTION_SECONDS:
        return parse_seconds(text, at) ? NULL : "a number of seconds above 0, like 10 or 0.5";
    case MU_OPTION_LIST:
        list = at;
        if (list->count == MU_OPTION_LIST_MAX)
            return "given at most 64 times";
        list->items[list->count++] = text;
        return NULL;
    }
    return "known";
}

static bool same_name(const char *known, const char *given, size_t len)
{
    if (strlen(known) != len)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (known[i] != (given[i] == '_' ? '-' : given[i]))
            return false;
    }
    return true;
}

static const struct mu_option *find_option(const struct mu_option *options, const char *name, size_t len)
{
    for (; options->name != NULL; options++) {
        if (same_name(options->name, name, len))
            return options;
    }
    return NULL;
}

/* One "--name", "--name=value" or "--name value" at *argv; returns how many words it was, 0 on error. */
static int take_option(const char *command, const struct mu_option *options, void *values, char **argv)
{
    const char *name = argv[0] + 2, *equals = strchr(name, '='), *value = NULL, *wanted;
    size_t len = equals == NULL ? strlen(name) : (size_t)(equals - name);
    const struct mu_option *option = find_option(options, name, len);
    bool takes_value = option != NULL && option->kind != MU_OPTION_FLAG;

    if (option == NULL) {
        (void)mu_cli_usage(command, "unknown option '%s'", argv[0]);
        return 0;
    }
    if (!takes_value && equals != NULL) {
        (void)mu_cli_usage(command, "option '--%s' takes no value", option->name);
        return 0;
    }
    if (takes_value) {
        value = equals != NULL ? equals + 1 : argv[1];
        if (value == NULL) {
            (void)mu_cli_usage(command, "option '--%s' needs a value", option->name);
            return 0;
        }
    }
    wanted = take_value(option, values, value);
    if (wanted != NULL) {
        (void)mu_cli_usage(command, "option '--%s': '%s' must be %s", option->name, value, wanted);
        return 0;
    }
    return takes_value && equals == NULL ? 2 : 1;
}

bool mu_options_parse(const char *command, const struct mu_option *options, void *values, char **argv, int *ret_count)
{
    static char long_help[] = "--help";
    int count = 0;
    bool only_operands = false;

    for (int i = 0; argv[i] != NULL;) {
        char *word = argv[i];

        if (only_operands || word[0] != '-' || word[1] == '\0' || isdigit((unsigned char)word[1])) {
            argv[count++] = word;
            i++;
        } else if (strcmp(word, "--") == 0) {
            only_operands = true;
            i++;
        } else if (word[1] != '-' && strcmp(word, "-h") != 0) {
            (void)mu_cli_usage(command, "unknown option '%s'", word);
            return false;
        } else {
            int used;

            if (word[1] == 'h')
                argv[i] = long_help;
            used = take_option(command, options, values, argv + i);
            if (used == 0)
                return false;
            i += used;
        }
    }
    argv[count] = NULL;
    *ret_count = count;
    return true;
}

int mu_cli_check_operands(const char *command, const char *operands, char **argv, int count)
{
    int wanted = 0;
    size_t len;

    for (const char *name = operands; *name != '\0'; name += len + strspn(name + len, " ")) {
        len = strcspn(name, " .");
        if (count == wanted++)
            return mu_cli_usage(command, "%.*s is missing; usage: %s [OPTIONS] %s", (int)len, name, command, operands);
        if (name[len] == '.')
            return MU_EXIT_OK;
    }
    if (count > wanted)
        return mu_cli_usage(command, "unexpected '%s'; usage: %s [OPTIONS]%s%s", argv[wanted], command,
                            operands[0] == '\0' ? "" : " ", operands);
    return MU_EXIT_OK;
}
