/* `muster join`: its options, and their checks before anything is tried. */
#include "cli/cli.h"
#include "cli/join.h"
#include "cli/rdzv_options.h"

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
                           "time; 5 this node was removed: the others took it for dead, or, with fence,\n"
                           "it removed itself.\n"
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

struct asked {
    struct mu_rdzv_words words;
    struct mu_join_config config;
    const char *log_level;
    bool help;
};

#define AT(field) offsetof(struct asked, field)

const struct mu_option mu_join_options[] = {
    { "rdzv-backend", MU_OPTION_TEXT, AT(words.backend), MU_OPTION_BACKENDS },
    { "rdzv-endpoint", MU_OPTION_TEXT, AT(words.endpoint), NULL },
    { "rdzv-id", MU_OPTION_TEXT, AT(words.run_id), NULL },
    { "nnodes", MU_OPTION_TEXT, AT(words.nodes), NULL },
    { "rdzv-conf", MU_OPTION_TEXT, AT(words.conf), NULL },
    { "local-addr", MU_OPTION_TEXT, AT(words.local_addr), NULL },
    { "bind", MU_OPTION_TEXT, AT(words.bind), "{any,localhost}" },
    { "allow", MU_OPTION_TEXT, AT(words.allow), NULL },
    { "backend-dir", MU_OPTION_LIST, AT(words.backend_dirs), "DIR" },
    { "hold", MU_OPTION_SECONDS, AT(config.hold_ms), NULL },
    { "json", MU_OPTION_FLAG, AT(config.json), NULL },
    { "log-level", MU_OPTION_TEXT, AT(log_level), MU_OPTION_LEVELS },
    { "help", MU_OPTION_FLAG, AT(help), NULL },
    { NULL, MU_OPTION_FLAG, 0, NULL },
};

int mu_cmd_join(char **argv)
{
    struct asked asked = { .log_level = "notice", .help = argv[0] != NULL && strcmp(argv[0], "help") == 0 };
    int count = 0, rc;

    mu_rdzv_words_init(&asked.words, command);
    if (!asked.help && !mu_options_parse(command, mu_join_options, &asked, argv, &count))
        return MU_EXIT_USAGE;
    if (asked.help)
        return mu_cli_help(command, help);
    if (mu_cli_check_operands(command, "", argv, count) != MU_EXIT_OK || !mu_cli_log(command, asked.log_level))
        return MU_EXIT_USAGE;
    rc = join(&asked.words, &asked.config);
    mu_rdzv_words_done(&asked.words);
    return rc;
}
