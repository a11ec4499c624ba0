/* Long options by table, and the lines that go to stderr. */
#include "cli/cli.h"
#include "store/net.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LOG_LINE_BYTES = 2048 };

static enum muster_log_level log_level_min;

static void say(const char *command, const char *format, va_list args)
{
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

/* Writes one line to stderr if that can be done at once: a terminal that is stopped, or a pipe that nobody reads, must
 * not stop what the line is about. What poll() lets through is taken whole, for a line is shorter than PIPE_BUF. */
static bool write_line(enum muster_log_level level, const char *line)
{
    struct pollfd out = { .fd = STDERR_FILENO, .events = POLLOUT };
    struct timespec now;
    struct tm utc;
    char stamp[32], text[LOG_LINE_BYTES];
    int len;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    (void)strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    len = snprintf(text, sizeof text, "%s.%03ldZ %s %s", stamp, now.tv_nsec / 1000000, muster_log_level_name(level),
                   line);
    if (len > (int)sizeof text - 2)
        len = (int)sizeof text - 2;
    text[len++] = '\n';
    return poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) && write(STDERR_FILENO, text, (size_t)len) == len;
}

static void log_to_stderr(void *ctx, enum muster_log_level level, const char *line)
{
    static unsigned long lost;
    char text[64];

    (void)ctx;
    if (level < log_level_min)
        return;
    if (lost > 0) {
        (void)snprintf(text, sizeof text, "%lu log lines could not be written", lost);
        if (write_line(MUSTER_LOG_WARNING, text))
            lost = 0;
    }
    if (!write_line(level, line))
        lost++;
}

bool mu_cli_log(const char *level)
{
    static const enum muster_log_level levels[] = {
#define X(name, text) MUSTER_LOG_##name,
        MUSTER_LOG_LEVELS(X)
#undef X
    };

    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (strcmp(level, muster_log_level_name(levels[i])) == 0) {
            log_level_min = levels[i];
            muster_log_set_sink(log_to_stderr, NULL);
            return true;
        }
    }
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
static const char *take_value(const struct mu_option *option, const char *text)
{
    struct mu_option_list *list;
    uint64_t number;
    uint16_t port;
    char *end;

    switch (option->kind) {
    case MU_OPTION_FLAG:
        *(bool *)option->value = true;
        return NULL;
    case MU_OPTION_TEXT:
        *(const char **)option->value = text;
        return NULL;
    case MU_OPTION_PORT:
        if (!mu_port_parse(text, &port))
            return "a port from 0 to 65535";
        *(int *)option->value = port;
        return NULL;
    case MU_OPTION_INT:
        if (!parse_u64(text, &end, &number) || *end != '\0' || number > INT32_MAX)
            return "a number, 0 or above";
        *(int *)option->value = (int)number;
        return NULL;
    case MU_OPTION_COUNT:
        if (!parse_u64(text, &end, &number) || *end != '\0' || number == 0)
            return "a number above 0";
        *(uint64_t *)option->value = number;
        return NULL;
    case MU_OPTION_BYTES:
        return parse_bytes(text, option->value) ? NULL : "a number of bytes above 0, like 8192, 64K, 16M or 2G";
    case MU_OPTION_SECONDS:
        return parse_seconds(text, option->value) ? NULL : "a number of seconds above 0, like 10 or 0.5";
    case MU_OPTION_LIST:
        list = option->value;
        if (list->count == MU_OPTION_LIST_MAX)
            return "given less often";
        list->items[list->count++] = text;
        return NULL;
    }
    return "known";
}

static const struct mu_option *find_option(const struct mu_option *options, const char *name, size_t len)
{
    for (; options->name != NULL; options++) {
        if (strlen(options->name) == len && strncmp(options->name, name, len) == 0)
            return options;
    }
    return NULL;
}

/* One "--name", "--name=value" or "--name value" at *argv; returns how many words it was, 0 on error. */
static int take_option(const char *command, const struct mu_option *options, char **argv)
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
    wanted = take_value(option, value);
    if (wanted != NULL) {
        (void)mu_cli_usage(command, "option '--%s': '%s' must be %s", option->name, value, wanted);
        return 0;
    }
    return takes_value && equals == NULL ? 2 : 1;
}

bool mu_options_parse(const char *command, const struct mu_option *options, char **argv, int *ret_count)
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
            used = take_option(command, options, argv + i);
            if (used == 0)
                return false;
            i += used;
        }
    }
    argv[count] = NULL;
    *ret_count = count;
    return true;
}
