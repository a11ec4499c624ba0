/* muster-bench: puts load on a TCPStore server and prints what it took.
 *
 * Reads the command line, runs one mode at each size asked for and prints a line for each: for people, or
 * with --json one object for a program. Exits with 0, 1 when the server or the system failed, 2 for usage. */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "modes.h"

#define SIZES_MAX FIGURES_MAX
#define HOST_MAX 64u
#define DEADLINE_S_MAX 3600
#define REQUESTS_MAX 1000000000L

enum mode { MODE_MIX, MODE_BARRIER, MODE_WAITERS, MODE_GLOO, MODE_IDLE, MODE_COUNT };

struct mode_entry {
    const char *name;
    void (*run)(const struct mode_options *options, struct figures *out);
    const char *sizes; /* unless --clients says otherwise */
};

static const struct mode_entry modes[MODE_COUNT] = {
    [MODE_MIX] = { "mix", mode_mix, "1,16,64,512" },
    [MODE_BARRIER] = { "barrier", mode_barrier, "1000,5000,10000" },
    [MODE_WAITERS] = { "waiters", mode_waiters, "1000,10000" },
    [MODE_GLOO] = { "gloo", mode_gloo, "64,256,512" },
    [MODE_IDLE] = { "idle", NULL, "1000,5000,10000" },
};

struct arguments {
    const struct mode_entry *mode;
    struct load_config config;
    struct mode_options options;
    uint32_t sizes[SIZES_MAX];
    uint32_t size_count;
    bool json;
};

static const char usage_text[] =
    "usage: muster-bench MODE --endpoint HOST:PORT [options]\n"
    "\n"
    "modes:\n"
    "  mix       one request in flight per client: ADD, CHECK and GET of 100 bytes in turn\n"
    "  barrier   all connect at once, then all pass one barrier\n"
    "  waiters   all wait for one key, one more client sets it\n"
    "  gloo      the start-up traffic of a gloo group, one client per rank\n"
    "  idle      the server's memory with connections that do nothing\n"
    "\n"
    "options:\n"
    "  --endpoint HOST:PORT   the server; only loopback addresses are accepted\n"
    "  --dialect v|l0         v for PyTorch 2.5 and later (default), l0 for 1.13\n"
    "  --server-pid PID       read this process's CPU time and memory\n"
    "  --clients N[,N...]     sizes to run, one after the other\n"
    "  --requests N           mix: stop after this many measured requests\n"
    "  --seconds S            mix: measure for this long (default 2)\n"
    "  --warmup S             mix: run this long before measuring (default 0.3)\n"
    "  --silent               idle: connections that never send a byte\n"
    "  --deadline S           give up a size after this long (default 60)\n"
    "  --json                 print one JSON object a line\n"
    "  --help                 print this\n";

void figure_add(struct figures *out, const char *name, const char *unit, int decimals, double value)
{
    if (out->count == FIGURES_MAX)
        die("more than %u figures in one line", FIGURES_MAX);
    out->items[out->count++] = (struct figure){ name, unit, decimals, value };
}

double cpu_us(const struct load_config *config, int64_t cpu_ns, double count)
{
    return config->server_pid == 0 ? (double)NAN : (double)cpu_ns / 1e3 / count;
}

_Noreturn static void usage_error(const char *what, const char *value)
{
    (void)fprintf(stderr, "muster-bench: %s '%s' (see --help)\n", what, value);
    exit(2);
}

static long parse_number(const char *what, const char *text, long min, long max)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < min || value > max)
        usage_error(what, text);
    return value;
}

static int64_t parse_seconds_ms(const char *what, const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= 0 && value <= DEADLINE_S_MAX))
        usage_error(what, text);
    return (int64_t)(value * 1000);
}

static void parse_sizes(struct arguments *args, const char *text)
{
    char copy[128];
    char *save = NULL;

    if (snprintf(copy, sizeof(copy), "%s", text) >= (int)sizeof(copy))
        usage_error("bad --clients", text);
    args->size_count = 0;
    for (char *word = strtok_r(copy, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
        if (args->size_count == SIZES_MAX)
            usage_error("too many sizes in --clients", text);
        args->sizes[args->size_count++] =
            (uint32_t)parse_number("bad --clients", word, 1, (long)LOAD_CLIENTS_MAX - (long)SIZES_MAX);
    }
    if (args->size_count == 0)
        usage_error("bad --clients", text);
}

static bool parse_loopback4(const char *host, struct in_addr *addr)
{
    return inet_pton(AF_INET, host, addr) == 1 && (ntohl(addr->s_addr) >> 24) == IN_LOOPBACKNET;
}

/* HOST:PORT with a numeric address, in brackets if it is IPv6, or localhost. Load is for this machine
 * only. */
static void parse_endpoint(struct load_config *config, const char *text)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)&config->addr;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&config->addr;
    const char *colon = strrchr(text, ':');
    char host[HOST_MAX] = "";
    uint16_t port;

    if (colon == NULL || (size_t)(colon - text) >= sizeof(host))
        usage_error("bad --endpoint", text);
    memcpy(host, text, (size_t)(colon - text));
    port = htons((uint16_t)parse_number("bad port in --endpoint", colon + 1, 1, 65535));
    if (strcmp(host, "localhost") == 0)
        (void)snprintf(host, sizeof(host), "127.0.0.1");
    if (parse_loopback4(host, &v4->sin_addr)) {
        v4->sin_family = AF_INET;
        v4->sin_port = port;
        config->addr_len = sizeof(*v4);
    } else if (strcmp(host, "[::1]") == 0) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = port;
        v6->sin6_addr = in6addr_loopback;
        config->addr_len = sizeof(*v6);
    } else {
        usage_error("not a loopback address in --endpoint", text);
    }
}

static void parse_dialect(struct load_config *config, const char *text)
{
    if (strcmp(text, "v") == 0)
        config->dialect = WIRE_V;
    else if (strcmp(text, "l0") == 0)
        config->dialect = WIRE_L0;
    else
        usage_error("bad --dialect", text);
}

static void parse_option(struct arguments *args, int option, const char *value)
{
    switch (option) {
    case 'e':
        parse_endpoint(&args->config, value);
        break;
    case 'd':
        parse_dialect(&args->config, value);
        break;
    case 'p':
        args->config.server_pid = (pid_t)parse_number("bad --server-pid", value, 1, INT32_MAX);
        break;
    case 'c':
        parse_sizes(args, value);
        break;
    case 'r':
        args->options.requests_max = parse_number("bad --requests", value, 1, REQUESTS_MAX);
        break;
    case 's':
        args->options.measure_ms = parse_seconds_ms("bad --seconds", value);
        break;
    case 'w':
        args->options.warmup_ms = parse_seconds_ms("bad --warmup", value);
        break;
    case 'q':
        args->options.silent = true;
        break;
    case 't':
        args->config.deadline_ms = parse_seconds_ms("bad --deadline", value);
        break;
    case 'j':
        args->json = true;
        break;
    case 'h':
        (void)fputs(usage_text, stdout);
        exit(0);
    default:
        exit(2); /* getopt has said why */
    }
}

static void parse_mode(struct arguments *args, const char *name)
{
    for (int i = 0; i < MODE_COUNT; i++)
        if (strcmp(name, modes[i].name) == 0)
            args->mode = &modes[i];
    if (args->mode == NULL)
        usage_error("no such mode", name);
}

static void parse_arguments(struct arguments *args, int argc, char **argv)
{
    static const struct option long_options[] = {
        { "endpoint", required_argument, NULL, 'e' },
        { "dialect", required_argument, NULL, 'd' },
        { "server-pid", required_argument, NULL, 'p' },
        { "clients", required_argument, NULL, 'c' },
        { "requests", required_argument, NULL, 'r' },
        { "seconds", required_argument, NULL, 's' },
        { "warmup", required_argument, NULL, 'w' },
        { "silent", no_argument, NULL, 'q' },
        { "deadline", required_argument, NULL, 't' },
        { "json", no_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    int option;

    while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
        parse_option(args, option, optarg);
    if (argc - optind != 1)
        usage_error("one mode is needed, not", argc > optind ? argv[optind + 1] : "");
    parse_mode(args, argv[optind]);
    if (args->config.addr_len == 0)
        usage_error("missing option", "--endpoint");
    if (args->size_count == 0)
        parse_sizes(args, args->mode->sizes);
}

static void print_json(const char *mode, uint32_t clients, const struct figures *figures)
{
    (void)printf("{\"mode\": \"%s\", \"clients\": %u", mode, clients);
    for (uint32_t i = 0; i < figures->count; i++) {
        const struct figure *figure = &figures->items[i];

        if (isnan(figure->value))
            (void)printf(", \"%s\": null", figure->name);
        else
            (void)printf(", \"%s\": %.*f", figure->name, figure->decimals, figure->value);
    }
    (void)printf("}\n");
}

static void print_human(const char *mode, uint32_t clients, const struct figures *figures)
{
    (void)printf("%-8s %6u clients ", mode, clients);
    for (uint32_t i = 0; i < figures->count; i++) {
        const struct figure *figure = &figures->items[i];

        if (!isnan(figure->value))
            (void)printf("  %s %.*f%s", figure->name, figure->decimals, figure->value, figure->unit);
    }
    (void)printf("\n");
}

/* A fresh word for the keys of each size, so that no run finds what another has left on the server. */
static void name_run(struct load_config *config)
{
    (void)snprintf(config->run, sizeof(config->run), "%016llx",
                   (unsigned long long)now_ns() ^ (unsigned long long)getpid() << 40);
}

static void run_sizes(struct arguments *args)
{
    struct mode_options options = args->options;
    struct idle *idle = NULL;

    if (args->mode == &modes[MODE_IDLE])
        idle = idle_new(&options, args->sizes[args->size_count - 1]);
    for (uint32_t i = 0; i < args->size_count; i++) {
        struct figures figures = { 0 };

        options.clients = args->sizes[i];
        name_run(&args->config);
        if (idle != NULL)
            idle_grow(idle, options.clients, &figures);
        else
            args->mode->run(&options, &figures);
        (args->json ? print_json : print_human)(args->mode->name, options.clients, &figures);
        (void)fflush(stdout);
    }
    if (idle != NULL)
        idle_free(idle);
}

/* Ten thousand connections need as many descriptors. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    struct arguments args = { .config = { .deadline_ms = 60000 }, .options = { .warmup_ms = 300, .measure_ms = 2000 } };

    parse_arguments(&args, argc, argv);
    args.options.config = &args.config;
    raise_descriptor_limit();
    run_sizes(&args);
    return 0;
}
