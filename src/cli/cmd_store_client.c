/* `muster store get|set|...`: one call on a running store, for people and scripts.
 *
 * Happy path: options, operands, connect, the call, its result on stdout. Failures: a mistake in the command line is a
 * usage error before anything is connected; every later error is one line on stderr. */
#include "base/buf.h"
#include "cli/cli.h"
#include "cli/join_text.h"
#include "store/codec.h"
#include "store/net.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define VALUE_BYTES_MAX ((size_t)1 << 30)

enum { TIMEOUT_MS_DEFAULT = 10000, STDIN_CHUNK_BYTES = 64 * 1024 };

struct client {
    const char *command;        /* "muster store get" */
    struct muster_store *store; /* a prefix view, or the TCP store itself */
    char **operands;
    int count;
    int64_t timeout_ms;
    bool wait;
    int64_t number;      /* N of add, WORLD_SIZE of barrier */
    struct mu_buf input; /* the value of set */
};

struct command {
    const char *name, *operands, *about; /* operands: of mu_cli_check_operands() */
    bool has_wait;
    int (*prepare)(struct client *client); /* reads operands, before there is a connection; may be NULL */
    int (*run)(struct client *client);
};

/* ---- Words ---- */

static void add_quoted(struct mu_text *out, const char *key)
{
    mu_text_add_around(out, out->buf.len == 0 ? "'" : ", '", key, "'");
}

/* "TEXT 'KEY', 'KEY'" */
static int fail_with_keys(const struct client *client, const char *text, struct mu_text *keys)
{
    int rc = mu_cli_fail(client->command, "%s %.*s", text, (int)keys->buf.len, keys->buf.len > 0 ? keys->buf.data : "");

    mu_text_done(keys);
    return rc;
}

static int fail_no_key(const struct client *client)
{
    struct mu_text keys = { 0 };

    add_quoted(&keys, client->operands[0]);
    return fail_with_keys(client, "no such key:", &keys);
}

static int fail(const struct client *client, const struct muster_error *error)
{
    return mu_cli_fail(client->command, "%s", error->text);
}

/* The protocol has no error answers: a closed connection is all that a refusal looks like from here. */
static int fail_perhaps_refused(const struct client *client, const struct muster_error *error, const char *reason)
{
    if (error->code != MUSTER_ELOST)
        return fail(client, error);
    return mu_cli_fail(client->command, "%s; a store does that when it refuses a request (%s)", error->text, reason);
}

static struct muster_slice key_of(const struct client *client)
{
    return muster_str(client->operands[0]);
}

/* ---- Commands ---- */

static int run_get(struct client *client)
{
    struct muster_slice key = key_of(client);
    struct muster_bytes value = { 0 };
    struct muster_error error;
    bool exists = true;
    int rc = 0;

    if (!client->wait)
        rc = muster_store_check(client->store, &key, 1, MUSTER_TIMEOUT_DEFAULT, &exists, &error);
    if (rc == 0 && !exists)
        return fail_no_key(client);
    if (rc == 0)
        rc = muster_store_get(client->store, key, MUSTER_TIMEOUT_DEFAULT, &value, &error);
    if (rc < 0)
        return fail(client, &error);
    return mu_cli_print_value(client->command, &value);
}

static int read_stdin(struct client *client)
{
    char chunk[STDIN_CHUNK_BYTES];
    ssize_t count;
    int rc;

    while ((count = read(STDIN_FILENO, chunk, sizeof chunk)) != 0) {
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return mu_cli_fail(client->command, "cannot read standard input: %s", strerror(errno));
        rc = mu_buf_append(&client->input, chunk, (size_t)count, VALUE_BYTES_MAX);
        if (rc < 0)
            return mu_cli_fail(client->command, "cannot take the value from standard input: %s",
                               rc == MUSTER_ELIMIT ? "it is over 1 GiB" : muster_error_text(rc));
    }
    return MU_EXIT_OK;
}

static int prepare_set(struct client *client)
{
    const char *value = client->operands[1];

    if (strcmp(value, "-") == 0)
        return read_stdin(client);
    if (mu_buf_append(&client->input, value, strlen(value), SIZE_MAX) < 0)
        return mu_cli_fail(client->command, "%s", muster_error_text(MUSTER_ENOMEM));
    return MU_EXIT_OK;
}

/* SET has no answer. The answer to a question behind it shows that it was carried out. */
static int run_set(struct client *client)
{
    struct muster_slice value = { client->input.data, client->input.len };
    struct muster_error error;
    int64_t keys;
    int rc = muster_store_set(client->store, key_of(client), value, MUSTER_TIMEOUT_DEFAULT, &error);

    if (rc == 0)
        rc = muster_store_num_keys(client->store, MUSTER_TIMEOUT_DEFAULT, &keys, &error);
    if (rc < 0)
        return fail_perhaps_refused(client, &error, "key or value over its limits, or no room left");
    return MU_EXIT_OK;
}

static bool parse_i64(const char *text, int64_t *ret_number)
{
    size_t sign = text[0] == '-' || text[0] == '+' ? 1 : 0;
    char *end;

    if (text[sign] < '0' || text[sign] > '9')
        return false;
    errno = 0;
    *ret_number = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static int prepare_add(struct client *client)
{
    if (!parse_i64(client->operands[1], &client->number))
        return mu_cli_usage(client->command, "'%s' must be a whole number that fits in 64 bits", client->operands[1]);
    return MU_EXIT_OK;
}

static int run_add(struct client *client)
{
    struct muster_error error;
    int64_t sum;

    if (muster_store_add(client->store, key_of(client), client->number, MUSTER_TIMEOUT_DEFAULT, &sum, &error) < 0)
        return fail_perhaps_refused(client, &error, "its value may not be a number");
    (void)printf("%" PRId64 "\n", sum);
    return mu_cli_flush(client->command);
}

static int fail_missing(struct client *client, const struct muster_slice *keys)
{
    struct mu_text missing = { 0 };
    char text[64];

    for (int i = 0; i < client->count; i++) {
        bool exists = false;

        if (muster_store_check(client->store, &keys[i], 1, MUSTER_TIMEOUT_DEFAULT, &exists, NULL) == 0 && !exists)
            add_quoted(&missing, client->operands[i]);
    }
    for (int i = 0; missing.buf.len == 0 && i < client->count;
         i++) /* they came just now, or the store does not answer */
        add_quoted(&missing, client->operands[i]);
    (void)snprintf(text, sizeof text, "timed out after %g s; missing:", (double)client->timeout_ms / 1000);
    return fail_with_keys(client, text, &missing);
}

static int run_wait(struct client *client)
{
    struct muster_slice *keys = calloc((size_t)client->count, sizeof *keys);
    struct muster_error error;
    int rc;

    if (keys == NULL)
        return mu_cli_fail(client->command, "%s", muster_error_text(MUSTER_ENOMEM));
    for (int i = 0; i < client->count; i++)
        keys[i] = muster_str(client->operands[i]);
    rc = muster_store_wait(client->store, keys, (size_t)client->count, MUSTER_TIMEOUT_DEFAULT, &error);
    if (rc == MUSTER_ETIMEOUT)
        rc = fail_missing(client, keys);
    else
        rc = rc < 0 ? fail(client, &error) : MU_EXIT_OK;
    free(keys);
    return rc;
}

static int run_delete(struct client *client)
{
    struct muster_error error;
    bool deleted;

    if (muster_store_delete_key(client->store, key_of(client), MUSTER_TIMEOUT_DEFAULT, &deleted, &error) < 0)
        return fail(client, &error);
    return deleted ? MU_EXIT_OK : fail_no_key(client);
}

static int by_bytes(const void *left, const void *right)
{
    const struct muster_bytes *a = left, *b = right;
    int order = memcmp(a->data, b->data, a->len < b->len ? a->len : b->len);

    return order != 0 ? order : (a->len > b->len) - (a->len < b->len);
}

static int run_list(struct client *client)
{
    struct muster_values keys = { 0 };
    struct muster_error error;
    struct mu_text line = { 0 };
    bool complete;

    if (muster_store_list_keys(client->store, MUSTER_TIMEOUT_DEFAULT, &keys, &error) < 0)
        return fail(client, &error);
    if (keys.count > 0)
        qsort(keys.items, keys.count, sizeof keys.items[0], by_bytes);
    for (size_t i = 0; i < keys.count && line.failed == 0; i++) {
        line.buf.len = 0;
        mu_text_add_plain_slice(&line, mu_slice(keys.items[i].data, keys.items[i].len));
        mu_text_add(&line, "\n");
        if (line.failed == 0)
            (void)fwrite(line.buf.data, 1, line.buf.len, stdout);
    }
    complete = line.failed == 0;
    mu_text_done(&line);
    muster_values_done(&keys);
    if (!complete)
        return mu_cli_fail(client->command, "%s", muster_error_text(MUSTER_ENOMEM));
    return mu_cli_flush(client->command);
}

static int run_num_keys(struct client *client)
{
    struct muster_error error;
    int64_t keys;

    if (muster_store_num_keys(client->store, MUSTER_TIMEOUT_DEFAULT, &keys, &error) < 0)
        return fail(client, &error);
    (void)printf("%" PRId64 "\n", keys);
    return mu_cli_flush(client->command);
}

static int prepare_barrier(struct client *client)
{
    if (!parse_i64(client->operands[1], &client->number) || client->number < 1)
        return mu_cli_usage(client->command, "'%s' must be a number of callers above 0", client->operands[1]);
    return MU_EXIT_OK;
}

static int run_barrier(struct client *client)
{
    struct muster_error error;

    if (muster_store_barrier(client->store, key_of(client), client->number, MUSTER_TIMEOUT_DEFAULT, &error) < 0)
        return fail(client, &error);
    return MU_EXIT_OK;
}

static const struct command commands[] = {
    { "get", "KEY",
      "Prints the value of KEY, byte for byte; on a terminal with a newline after it.\n"
      "A key that does not exist is an error, unless --wait is given.\n",
      true, NULL, run_get },
    { "set", "KEY VALUE",
      "Writes a value, and returns when the store has it. With '-' as VALUE the value\n"
      "is read from standard input, up to 1 GiB. Put '--' before a value that begins\n"
      "with a dash.\n",
      false, prepare_set, run_set },
    { "add", "KEY N",
      "Adds N, which may be negative, to the number that KEY holds and prints the\n"
      "sum. A key that does not exist counts as 0.\n",
      false, prepare_add, run_add },
    { "wait", "KEY...", "Returns when all keys exist. After --timeout, names the missing ones and fails.\n", false,
      NULL, run_wait },
    { "delete", "KEY", "Removes a key. A key that does not exist is an error.\n", false, NULL, run_delete },
    { "list", "",
      "Prints the names of all keys, sorted, one a line. Bytes that are not printable\n"
      "ASCII are shown as \\xNN, a backslash as \\\\. Needs a muster store, or one of\n"
      "PyTorch 2.10 or newer.\n",
      false, NULL, run_list },
    { "num-keys", "", "Prints how many keys there are, whatever their prefix.\n", false, NULL, run_num_keys },
    { "barrier", "KEY WORLD_SIZE",
      "Returns when WORLD_SIZE callers have called it. It uses the keys KEY/num_members\n"
      "and KEY/last_member, as PyTorch's prefix stores do. Use each KEY for one barrier\n"
      "only.\n",
      false, prepare_barrier, run_barrier },
};

/* ---- Options ---- */

struct options {
    const char *endpoint, *prefix, *dialect;
    int64_t timeout_ms;
    bool raw, wait, help;
};

#define AT(field) offsetof(struct options, field)

/* --wait comes first: commands without it have the options behind it. */
static const struct mu_option option_table[] = {
    { "wait", MU_OPTION_FLAG, AT(wait), NULL },
    { "endpoint", MU_OPTION_TEXT, AT(endpoint), NULL },
    { "timeout", MU_OPTION_SECONDS, AT(timeout_ms), NULL },
    { "prefix", MU_OPTION_TEXT, AT(prefix), NULL },
    { "raw", MU_OPTION_FLAG, AT(raw), NULL },
    { "dialect", MU_OPTION_TEXT, AT(dialect), "{auto,1.13,2.1,2.x}" },
    { "help", MU_OPTION_FLAG, AT(help), NULL },
    { NULL, MU_OPTION_FLAG, 0, NULL },
};

static const struct mu_option *options_of(const struct command *command)
{
    return command->has_wait ? option_table : option_table + 1;
}

static const char common_help[] = "options:\n"
                                  "  --endpoint HOST:PORT  the store; write an IPv6 address in brackets (default:\n"
                                  "                        MASTER_ADDR and MASTER_PORT of the environment)\n"
                                  "  --timeout SECONDS     time to connect, and then to answer (default: 10)\n"
                                  "  --prefix P            use P/KEY for every KEY, as in a PrefixStore\n"
                                  "  --raw                 use keys as they are on the wire, without the '/' that\n"
                                  "                        clients put in front\n"
                                  "  --dialect D           what the store speaks: auto, 1.13, 2.1 or 2.x (default:\n"
                                  "                        auto)\n";

static int print_help(const struct client *client, const struct command *command)
{
    (void)printf("usage: %s [OPTIONS]%s%s\n\n%s\n%s", client->command, command->operands[0] == '\0' ? "" : " ",
                 command->operands, command->about, common_help);
    if (command->has_wait)
        (void)printf("  --wait                wait for a key that does not exist yet\n");
    (void)printf("  --help                this text\n");
    return mu_cli_flush(client->command);
}

static int find_endpoint(const struct client *client, const char *endpoint, char ret_host[static MU_HOST_MAX],
                         uint16_t *ret_port)
{
    const char *addr = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    struct muster_error error;

    if (endpoint != NULL) {
        if (mu_endpoint_parse(endpoint, 0, ret_host, ret_port, &error) < 0)
            return mu_cli_usage(client->command, "option '--endpoint': %s", error.text);
        return MU_EXIT_OK;
    }
    if (addr == NULL || addr[0] == '\0' || port == NULL || port[0] == '\0')
        return mu_cli_usage(client->command, "no store is given: use '--endpoint HOST:PORT', or set MASTER_ADDR and "
                                             "MASTER_PORT");
    if (!mu_port_parse(port, ret_port) || *ret_port == 0)
        return mu_cli_usage(client->command, "MASTER_PORT: '%s' must be a port from 1 to 65535", port);
    if (strlen(addr) >= MU_HOST_MAX)
        return mu_cli_usage(client->command, "MASTER_ADDR is longer than %d bytes", MU_HOST_MAX - 1);
    memcpy(ret_host, addr, strlen(addr) + 1);
    return MU_EXIT_OK;
}

/* ---- The call ---- */

static int run_on(struct client *client, const struct command *command, const struct options *options,
                  struct muster_store *tcp)
{
    struct muster_error error;
    int rc;

    client->store = tcp;
    if (options->prefix == NULL)
        return command->run(client);
    if (muster_store_prefix_new(muster_str(options->prefix), tcp, &client->store, &error) < 0)
        return fail(client, &error);
    rc = command->run(client);
    muster_store_free(client->store);
    return rc;
}

static int connect_and_run(struct client *client, const struct command *command, const struct options *options,
                           const char *host, uint16_t port)
{
    struct muster_store_tcp_config config = {
        .size = sizeof config,
        .host = host,
        .port = port,
        .connect_timeout_ms = options->timeout_ms,
        .timeout_ms = options->timeout_ms,
        .dialect = options->dialect,
        .raw_keys = options->raw,
    };
    struct muster_store *tcp;
    struct muster_error error;
    int rc;

    if (muster_store_tcp_new(&config, &tcp, &error) < 0)
        return fail(client, &error);
    rc = run_on(client, command, options, tcp);
    muster_store_free(tcp);
    return rc;
}

static int run_command(const struct command *command, char **argv)
{
    struct options options = { .timeout_ms = TIMEOUT_MS_DEFAULT, .dialect = "auto" };
    char name[64], host[MU_HOST_MAX];
    struct client client = { .command = name, .operands = argv };
    enum mu_dialect dialect;
    uint16_t port = 0;
    int rc;

    (void)snprintf(name, sizeof name, "muster store %s", command->name);
    if (!mu_options_parse(name, options_of(command), &options, argv, &client.count))
        return MU_EXIT_USAGE;
    if (options.help)
        return print_help(&client, command);
    if (!mu_dialect_parse(options.dialect, &dialect))
        return mu_cli_usage(name, "option '--dialect': '%s' must be auto, 1.13, 2.1 or 2.x", options.dialect);
    client.wait = options.wait;
    client.timeout_ms = options.timeout_ms;
    rc = find_endpoint(&client, options.endpoint, host, &port);
    if (rc == MU_EXIT_OK)
        rc = mu_cli_check_operands(name, command->operands, argv, client.count);
    if (rc == MU_EXIT_OK && command->prepare != NULL)
        rc = command->prepare(&client);
    if (rc == MU_EXIT_OK)
        rc = connect_and_run(&client, command, &options, host, port);
    mu_buf_done(&client.input);
    return rc;
}

const char *mu_cmd_store_verb(size_t index, const struct mu_option **ret_options)
{
    if (index >= sizeof commands / sizeof commands[0])
        return NULL;
    *ret_options = options_of(&commands[index]);
    return commands[index].name;
}

int mu_cmd_store_client(char **argv)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[0], commands[i].name) == 0)
            return run_command(&commands[i], argv + 1);
    }
    return mu_cli_usage("muster store", "unknown command '%s'", argv[0]);
}
