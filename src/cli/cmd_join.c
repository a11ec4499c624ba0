/* `muster join`: its options, and what can be said about them before anything is tried. */
#include "cli/cli.h"
#include "cli/join.h"
#include "cli/rdzv_words.h"

#include <stdio.h>
#include <unistd.h>

static const char command[] = "muster join";

static const char help[] = "muster join: joins a rendezvous and prints who is in it\n"
                           "\n"
                           "usage: muster join --rdzv-id ID [OPTIONS]\n"
                           "\n"
                           "Waits until enough nodes have joined, prints one line with this node's rank,\n"
                           "all members and the address where workers would meet, and leaves. Nodes of\n"
                           "PyTorch's own launcher can be in the same rendezvous.\n"
                           "\n"
                           "Rendezvous:\n"
                           "  --rdzv-id ID           name of the job, the same on every node\n"
                           "  --rdzv-backend B       c10d, static, etcd-v3, etcd-v2, etcd, or one from a\n"
                           "                         --backend-dir (default: c10d)\n"
                           "  --rdzv-endpoint E      address of the store; the node that owns it runs the\n"
                           "                         store (default for c10d: localhost:29400, which only\n"
                           "                         this machine can reach). For etcd: a comma-separated\n"
                           "                         list\n"
                           "  --nnodes N | MIN:MAX   how many nodes (default: 1:1)\n"
                           "  --rdzv-conf K=V,...    further options, for example join_timeout=60,\n"
                           "                         last_call_timeout=5, is_host=false; static needs rank=N\n"
                           "  --local-addr A         name and address that other nodes use for this node\n"
                           "  --bind ADDR,...        listen on these addresses and loopback; any: on all\n"
                           "                         (default: the address that other nodes use, and\n"
                           "                         loopback)\n"
                           "  --allow NET,...        accept connections only from these networks, such as\n"
                           "                         10.0.0.0/8, and from this machine (default: from all)\n"
                           "  --backend-dir DIR      load more back ends from DIR; may be repeated\n"
                           "\n"
                           "After joining:\n"
                           "  --hold SECONDS         stay a member for this long and print every event;\n"
                           "                         Ctrl-C leaves earlier\n"
                           "  --json                 print JSON objects\n"
                           "  --log-level LEVEL      log to stderr from this level on: debug, info, notice,\n"
                           "                         warning or error (default: notice)\n"
                           "  --help                 this text\n"
                           "\n"
                           "Exit status: 0 joined; 1 an error, or a signal before it had joined; 2 the\n"
                           "command line was wrong; 3 the rendezvous is closed; 4 too few nodes joined in\n"
                           "time; 5 the other members took this node for dead.\n"
                           "\n"
                           "Examples, to be run on every node:\n"
                           "  muster join --rdzv-id job --rdzv-endpoint node1:29400 --nnodes 2\n"
                           "  muster join --rdzv-id job --rdzv-endpoint node1:29400 --nnodes 2:4 --hold 60\n"
                           "  muster join --rdzv-id job --rdzv-backend static --rdzv-endpoint node1:29400 \\\n"
                           "      --nnodes 2 --rdzv-conf rank=0\n";

static int join(struct mu_rdzv_words *words, struct mu_join_config *config)
{
    struct muster_rdzv_params *params = NULL;
    char host[256] = "this node";
    int rc = mu_rdzv_words_params(words, &params);

    if (rc != MU_EXIT_OK)
        return rc;
    (void)gethostname(host, sizeof host - 1);
    config->about = (struct mu_join_about){ .backend = words->backend,
                                            .endpoint = words->shown_endpoint,
                                            .run_id = words->run_id,
                                            .node = words->local_addr != NULL ? words->local_addr : host };
    config->terminal = isatty(STDERR_FILENO) == 1;
    rc = mu_cmd_join_run(params, config);
    muster_rdzv_params_free(params);
    return rc;
}

int mu_cmd_join(char **argv)
{
    struct mu_rdzv_words words = { .command = NULL };
    struct mu_join_config config = { 0 };
    const char *log_level = "notice";
    bool want_help = argv[0] != NULL && strcmp(argv[0], "help") == 0;
    const struct mu_option options[] = {
        { "rdzv-backend", MU_OPTION_TEXT, &words.backend },
        { "rdzv-endpoint", MU_OPTION_TEXT, &words.endpoint },
        { "rdzv-id", MU_OPTION_TEXT, &words.run_id },
        { "nnodes", MU_OPTION_TEXT, &words.nodes },
        { "rdzv-conf", MU_OPTION_TEXT, &words.conf },
        { "local-addr", MU_OPTION_TEXT, &words.local_addr },
        { "bind", MU_OPTION_TEXT, &words.bind },
        { "allow", MU_OPTION_TEXT, &words.allow },
        { "backend-dir", MU_OPTION_LIST, &words.backend_dirs },
        { "hold", MU_OPTION_SECONDS, &config.hold_ms },
        { "json", MU_OPTION_FLAG, &config.json },
        { "log-level", MU_OPTION_TEXT, &log_level },
        { "help", MU_OPTION_FLAG, &want_help },
        { NULL, MU_OPTION_FLAG, NULL },
    };
    int count = 0, rc;

    mu_rdzv_words_init(&words, command);
    if (!want_help && !mu_options_parse(command, options, argv, &count))
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
    rc = join(&words, &config);
    mu_rdzv_words_done(&words);
    return rc;
}
