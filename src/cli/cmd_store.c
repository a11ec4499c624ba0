/* `muster store`: a server, or a look into one. */
#include "cli/cli.h"

#include <stdio.h>

static const char command[] = "muster store";

static const char help[] = "usage: muster store [OPTIONS]                          run a store\n";

static int serve(char **argv)
{
    struct muster_store_server_config config = { .size = sizeof config, .port = MUSTER_STORE_PORT };
    struct mu_option_list allow = { 0 };
    struct muster_store_limits *limits = &config.limits;
    const char *log_level = "info";
    bool want_help = false;
    const struct mu_option options[] = {
        { "host", MU_OPTION_TEXT, &config.host },
        { "port", MU_OPTION_PORT, &config.port },
        { "dialect", MU_OPTION_TEXT, &config.dialect },
        { "allow", MU_OPTION_LIST, &allow },
        { "key-bytes", MU_OPTION_BYTES, &limits->key_bytes },
        { "value-bytes", MU_OPTION_BYTES, &limits->value_bytes },
        { "keys", MU_OPTION_COUNT, &limits->keys },
        { "request-bytes", MU_OPTION_BYTES, &limits->request_bytes },
        { "unsent-bytes", MU_OPTION_BYTES, &limits->unsent_bytes },
        { "connections", MU_OPTION_COUNT, &limits->connections },
        { "total-bytes", MU_OPTION_BYTES, &limits->total_bytes },
        { "log-level", MU_OPTION_TEXT, &log_level },
        { "help", MU_OPTION_FLAG, &want_help },
        { NULL, MU_OPTION_FLAG, NULL },
    };
    int count;

    if (!mu_options_parse(command, options, argv, &count))
        return MU_EXIT_USAGE;
    if (want_help) {
        (void)fputs(help, stdout);
        return mu_cli_flush(command);
    }
    if (!mu_cli_log(log_level))
        return mu_cli_usage(command, "option '--log-level': '%s' must be debug, info, warning or error", log_level);
    config.allow = allow.count > 0 ? allow.items : NULL;
    return mu_cmd_store_serve(&config);
}

int mu_cmd_store(char **argv)
{
    return serve(argv);
}
