/* `muster store`: the options of the server, and the way to the commands that look into one. */
#include "cli/cli.h"
#include "proc/signals.h"
#include "store/codec.h"
#include "store/limits.h"
#include "store/net.h"

#include <stdio.h>

static const char command[] = "muster store";

static const char help[] = "muster store: a key-value store that speaks PyTorch's TCPStore protocol, in\n"
                           "every dialect from 1.13 to the newest, on one port\n"
                           "\n"
                           "usage: muster store [OPTIONS]                         run a store\n"
                           "       muster store COMMAND --endpoint HOST:PORT ...  look into a running one\n"
                           "\n"
                           "Prints 'listening on ADDR:PORT' when it is ready; ends on SIGTERM or SIGINT.\n"
                           "\n"
                           "Listening:\n"
                           "  --host ADDR,...      names or addresses to listen on (default: any, which is\n"
                           "                       every address, IPv6 and IPv4)\n"
                           "  --port PORT          port; 0 takes any free one (default: 29500)\n"
                           "  --listen-fd N        use descriptor N, a socket that is already bound\n"
                           "\n"
                           "Clients:\n"
                           "  --allow CIDR         accept connections only from this network, for example\n"
                           "                       10.0.0.0/8 or fd00::/8; may be repeated (default: from\n"
                           "                       everywhere)\n"
                           "  --token-file PATH    jobs of 'muster run' at this store need the token in this\n"
                           "                       file, of 16 to 1024 bytes, which only its owner may\n"
                           "                       read; see docs/SECURITY.md\n"
                           "  --dialect D          how to read clients older than 2.2: auto, 1.13 or 2.1\n"
                           "                       (default: auto)\n"
                           "\n"
                           "Limits. Bytes may end in K, M or G. A request over a limit is refused: its\n"
                           "connection is closed, and the log says why.\n"
                           "  --key-bytes N        size of one key (default: 8K)\n"
                           "  --value-bytes N      size of one value (default: 64M)\n"
                           "  --keys N             keys in one request (default: 131072)\n"
                           "  --request-bytes N    size of one request (default: 128M, or two values)\n"
                           "  --unsent-bytes N     replies that a client has not read (default: 128M, or\n"
                           "                       two values)\n"
                           "  --connections N      open connections (default: 262144, or what the limit of\n"
                           "                       open files allows)\n"
                           "  --connections-per-address N\n"
                           "                       from one address of another machine (default: half of\n"
                           "                       the possible connections)\n"
                           "  --total-bytes N      all keys and values; one connection may have a quarter\n"
                           "                       (default: 1G, or eight values)\n"
                           "\n"
                           "  --log-level LEVEL    log to stderr from this level on: debug, info, notice,\n"
                           "                       warning or error (default: info)\n"
                           "  --help               this text\n"
                           "\n"
                           "Commands ('muster store COMMAND --help' tells more):\n"
                           "  get KEY              print a value\n"
                           "  set KEY VALUE        write a value\n"
                           "  add KEY N            add to a number and print the sum\n"
                           "  wait KEY...          wait until keys exist\n"
                           "  delete KEY           remove a key\n"
                           "  list                 print the names of all keys\n"
                           "  num-keys             print how many keys there are\n"
                           "  barrier KEY N        wait until N callers have called it\n"
                           "\n"
                           "PyTorch workers that are started with these variables use this store instead\n"
                           "of starting one:\n"
                           "  MASTER_ADDR=node1 MASTER_PORT=29500\n"
                           "  TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=0\n"
                           "Start a fresh store for every job: keys stay until the store ends.\n"
                           "\n"
                           "Examples:\n"
                           "  muster store --port 29500 --allow 10.0.0.0/8\n"
                           "  muster store list --endpoint node1:29500\n"
                           "  muster store get --endpoint node1:29500 --wait --timeout 60 some/key\n";

/* The library would refuse these too, but there a mistake could not be told from a failure. */
static int check_config(const struct muster_store_server_config *config)
{
    struct muster_store_limits limits = config->limits;
    enum mu_dialect dialect;
    struct mu_network network;
    struct muster_error error;

    if (!mu_dialect_parse(config->dialect, &dialect) || dialect == MU_DIALECT_V)
        return mu_cli_usage(command, "option '--dialect': '%s' must be auto, 1.13 or 2.1", config->dialect);
    for (size_t i = 0; config->allow[i] != NULL; i++) {
        if (mu_network_parse(config->allow[i], &network, &error) < 0)
            return mu_cli_usage(command, "option '--allow': %s", error.text);
    }
    if (mu_limits_settle(&limits, &error) < 0)
        return mu_cli_usage(command, "%s", error.text);
    if (config->use_listen_fd && config->host != NULL)
        return mu_cli_usage(command, "options '--host' and '--listen-fd' exclude each other");
    return MU_EXIT_OK;
}

struct asked {
    struct muster_store_server_config config;
    struct mu_option_list allow;
    int port, listen_fd; /* -1: not given */
    const char *token_file, *log_level;
    bool help;
};

#define AT(field) offsetof(struct asked, field)

const struct mu_option mu_store_options[] = {
    { "host", MU_OPTION_TEXT, AT(config.host), "{any,localhost}" },
    { "port", MU_OPTION_PORT, AT(port), NULL },
    { "listen-fd", MU_OPTION_INT, AT(listen_fd), NULL },
    { "dialect", MU_OPTION_TEXT, AT(config.dialect), "{auto,1.13,2.1}" },
    { "allow", MU_OPTION_LIST, AT(allow), NULL },
    { "token-file", MU_OPTION_TEXT, AT(token_file), NULL },
    { "key-bytes", MU_OPTION_BYTES, AT(config.limits.key_bytes), NULL },
    { "value-bytes", MU_OPTION_BYTES, AT(config.limits.value_bytes), NULL },
    { "keys", MU_OPTION_COUNT, AT(config.limits.keys), NULL },
    { "request-bytes", MU_OPTION_BYTES, AT(config.limits.request_bytes), NULL },
    { "unsent-bytes", MU_OPTION_BYTES, AT(config.limits.unsent_bytes), NULL },
    { "connections", MU_OPTION_COUNT, AT(config.limits.connections), NULL },
    { "connections-per-address", MU_OPTION_COUNT, AT(config.limits.connections_per_address), NULL },
    { "total-bytes", MU_OPTION_BYTES, AT(config.limits.total_bytes), NULL },
    { "log-level", MU_OPTION_TEXT, AT(log_level), MU_OPTION_LEVELS },
    { "help", MU_OPTION_FLAG, AT(help), NULL },
    { NULL, MU_OPTION_FLAG, 0, NULL },
};

static int serve(char **argv)
{
    struct asked asked = {
        .config = { .size = sizeof asked.config, .dialect = "auto" }, .port = -1, .listen_fd = -1, .log_level = "info"
    };
    struct muster_store_server_config *config = &asked.config;
    int count, rc;

    if (!mu_options_parse(command, mu_store_options, &asked, argv, &count))
        return MU_EXIT_USAGE;
    if (asked.help)
        return mu_cli_help(command, help);
    if (mu_cli_check_operands(command, "", argv, count) != MU_EXIT_OK || !mu_cli_log(command, asked.log_level))
        return MU_EXIT_USAGE;
    config->allow = asked.allow.items;
    config->use_listen_fd = asked.listen_fd >= 0;
    config->listen_fd = asked.listen_fd;
    if (asked.port >= 0)
        config->port = (uint16_t)asked.port;
    else
        config->port = config->use_listen_fd ? 0 : MUSTER_STORE_PORT; /* 0: whatever port the socket has */
    rc = check_config(config);
    return rc != MU_EXIT_OK ? rc : mu_cmd_store_serve(config, asked.token_file);
}

int mu_cmd_store(char **argv)
{
    if (argv[0] != NULL && strcmp(argv[0], "help") == 0)
        return mu_cli_help(command, help);
    if (argv[0] != NULL && argv[0][0] != '-') {
        mu_signals_unblock_all(); /* it handles none: any of them may end it */
        return mu_cmd_store_client(argv);
    }
    return serve(argv);
}
