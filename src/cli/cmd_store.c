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
                           "  --dialect D          how to read clients older than 2.2: auto, 1.13 or 2.1\n"
                           "                       (default: auto)\n"
                           "\n"
                           "Limits. Bytes may end in K, M or G. A request over a limit is refused: its\n"
                           "connection is closed, and the log says why.\n"
                           "  --key-bytes N        size of one key (default: 8K)\n"
                           "  --value-bytes N      size of one value (default: 64M)\n"
                           "  --keys N             keys in one request (default: 131072)\n"
                           "  --request-bytes N    size of one request (default: 128M, or as values need)\n"
                           "  --unsent-bytes N     replies that a client has not read (default: 128M, or\n"
                           "                       twice a value)\n"
                           "  --connections N      open connections (default: 262144, or what the limit of\n"
                           "                       open files allows)\n"
                           "  --connections-per-address N\n"
                           "                       from one address of another machine (default: half of\n"
                           "                       those that there is room for)\n"
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

/* What the library would refuse as well, but there it could not be told from a failure. */
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

static int serve(char **argv)
{
    struct muster_store_server_config config = { .size = sizeof config, .dialect = "auto" };
    struct mu_option_list allow = { 0 };
    struct muster_store_limits *limits = &config.limits;
    const char *log_level = "info";
    int port = -1, listen_fd = -1;
    bool want_help = false;
    const struct mu_option options[] = {
        { "host", MU_OPTION_TEXT, &config.host },
        { "port", MU_OPTION_PORT, &port },
        { "listen-fd", MU_OPTION_INT, &listen_fd },
        { "dialect", MU_OPTION_TEXT, &config.dialect },
        { "allow", MU_OPTION_LIST, &allow },
        { "key-bytes", MU_OPTION_BYTES, &limits->key_bytes },
        { "value-bytes", MU_OPTION_BYTES, &limits->value_bytes },
        { "keys", MU_OPTION_COUNT, &limits->keys },
        { "request-bytes", MU_OPTION_BYTES, &limits->request_bytes },
        { "unsent-bytes", MU_OPTION_BYTES, &limits->unsent_bytes },
        { "connections", MU_OPTION_COUNT, &limits->connections },
        { "connections-per-address", MU_OPTION_COUNT, &limits->connections_per_address },
        { "total-bytes", MU_OPTION_BYTES, &limits->total_bytes },
        { "log-level", MU_OPTION_TEXT, &log_level },
        { "help", MU_OPTION_FLAG, &want_help },
        { NULL, MU_OPTION_FLAG, NULL },
    };
    int count, rc;

    if (!mu_options_parse(command, options, argv, &count))
        return MU_EXIT_USAGE;
    if (want_help) {
        (void)fputs(help, stdout);
        return mu_cli_flush(command);
    }
    if (count > 0)
        return mu_cli_usage(command, "unexpected '%s'", argv[0]);
    if (!mu_cli_log(log_level))
        return mu_cli_usage(command, "option '--log-level': '%s' must be debug, info, notice, warning or error",
                            log_level);
    config.allow = allow.items;
    config.use_listen_fd = listen_fd >= 0;
    config.listen_fd = listen_fd;
    if (port >= 0)
        config.port = (uint16_t)port;
    else
        config.port = config.use_listen_fd ? 0 : MUSTER_STORE_PORT; /* 0: whatever port the socket has */
    rc = check_config(&config);
    return rc != MU_EXIT_OK ? rc : mu_cmd_store_serve(&config);
}

int mu_cmd_store(char **argv)
{
    if (argv[0] != NULL && strcmp(argv[0], "help") == 0) {
        (void)fputs(help, stdout);
        return mu_cli_flush(command);
    }
    if (argv[0] != NULL && argv[0][0] != '-') {
        mu_signals_unblock_all(); /* it handles none: any of them may end it */
        return mu_cmd_store_client(argv);
    }
    return serve(argv);
}
