/* `muster join`: its options, and what can be said about them before anything is tried. */
#include "base/error.h"
#include "base/secret.h"
#include "cli/cli.h"
#include "cli/join.h"
#include "handler/bind.h"
#include "handler/etcd_params.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char command[] = "muster join";

#define ENDPOINT_DEFAULT "localhost:29400"

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

struct words {
    const char *backend, *endpoint, *run_id, *nodes, *conf, *local_addr, *bind, *allow;
    char *url_run_id; /* if it is the endpoint's */
};

static bool take_number(const char **text, int64_t *ret_number)
{
    unsigned long number;
    char *end;

    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    number = strtoul(*text, &end, 10);
    if (errno != 0 || number > INT32_MAX)
        return false;
    *ret_number = (int64_t)number;
    *text = end;
    return true;
}

/* "N" or "MIN:MAX" */
static bool parse_nodes(const char *text, int64_t *ret_min, int64_t *ret_max)
{
    if (!take_number(&text, ret_min))
        return false;
    *ret_max = *ret_min;
    if (*text == ':') {
        text++;
        if (!take_number(&text, ret_max))
            return false;
    }
    return *text == '\0';
}

/* An endpoint that is a URL of etcd names the job, if nobody else does. */
static int take_url_run_id(struct words *words)
{
    struct muster_error error = { 0 };
    int rc = 0;

    if (words->run_id == NULL && words->endpoint != NULL && strcmp(words->backend, "etcd") == 0)
        rc = mu_etcd_params_run_id(words->endpoint, &words->url_run_id, &error);
    if (words->url_run_id != NULL)
        words->run_id = words->url_run_id;
    return rc == 0               ? MU_EXIT_OK
           : rc == MUSTER_EINVAL ? mu_cli_usage(command, "option '--rdzv-endpoint': %s", error.text)
                                 : mu_cli_fail(command, "%s", error.text);
}

/* What is wrong for every back end; what is wrong for one of them only, that one says when it is started. */
static int check_words(const struct words *words, int64_t *ret_min, int64_t *ret_max)
{
    if (words->run_id == NULL)
        return mu_cli_usage(command, "option '--rdzv-id' is missing");
    if (words->run_id[0] == '\0')
        return mu_cli_usage(command, "option '--rdzv-id': it must not be empty");
    if (words->endpoint == NULL && strcmp(words->backend, "static") == 0)
        return mu_cli_usage(command, "option '--rdzv-endpoint' is missing: back end 'static' needs HOST:PORT");
    if (!parse_nodes(words->nodes, ret_min, ret_max))
        return mu_cli_usage(command, "option '--nnodes': '%s' must be a number of nodes or MIN:MAX, like 2 or 2:4",
                            words->nodes);
    return MU_EXIT_OK;
}

static int set_checked(struct muster_rdzv_params *params, const char *key, const char *text,
                       int (*check)(const char *, struct muster_error *), struct muster_error *reterr)
{
    int rc = check(text, reterr);

    return rc == 0 ? muster_rdzv_params_set_text(params, key, text, reterr) : rc;
}

static int make_params(const struct words *words, int64_t nodes_min, int64_t nodes_max,
                       struct muster_rdzv_params **ret_params)
{
    const char *unshared = getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    struct muster_rdzv_params *params = NULL;
    struct muster_error error = { 0 };
    const char *step = "";
    int rc;

    rc = muster_rdzv_params_new(words->backend, words->endpoint, words->run_id, nodes_min, nodes_max, words->local_addr,
                                &params, &error);
    if (rc == 0 && unshared != NULL && strcmp(unshared, "1") == 0)
        rc = muster_rdzv_params_set_bool(params, "use_agent_store", false, &error);
    if (rc == 0 && words->conf != NULL) {
        step = "option '--rdzv-conf': ";
        rc = muster_rdzv_params_set_options(params, words->conf, &error);
    }
    if (rc == 0 && words->bind != NULL) {
        step = "option '--bind': ";
        rc = set_checked(params, "bind", words->bind, mu_bind_check_hosts, &error);
    }
    if (rc == 0 && words->allow != NULL) {
        step = "option '--allow': ";
        rc = set_checked(params, "allow", words->allow, mu_bind_check_allow, &error);
    }
    if (rc == 0) {
        *ret_params = params;
        return MU_EXIT_OK;
    }
    muster_rdzv_params_free(params);
    return rc == MUSTER_EINVAL ? mu_cli_usage(command, "%s%s", step, error.text)
                               : mu_cli_fail(command, "%s%s", step, error.text);
}

static bool is_builtin(const char *backend)
{
    static const char *const names[] = { "c10d", "static", "etcd", "etcd-v2", "etcd-v3" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(backend, names[i]) == 0)
            return true;
    return false;
}

int mu_cli_load_backends(const char *backend, const char *const *dirs, size_t count, struct muster_error *reterr)
{
    struct muster_rdzv_registry *registry = muster_rdzv_registry_default();
    int rc = 0;

    if (registry == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for back ends");
    if (!is_builtin(backend) && access(MUSTER_BACKEND_DIR, F_OK) == 0)
        rc = muster_rdzv_registry_load(registry, MUSTER_BACKEND_DIR, reterr);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = muster_rdzv_registry_load(registry, dirs[i], reterr);
        if (rc < 0)
            rc = mu_wrap(reterr, rc, "option '--backend-dir'");
    }
    return rc;
}

static int join(struct words *words, const struct mu_option_list *dirs, struct mu_join_config *config)
{
    struct muster_rdzv_params *params = NULL;
    char host[256] = "this node", endpoint[MU_SECRET_SHOWN_MAX];
    int64_t nodes_min = 1, nodes_max = 1;
    struct muster_error error = { 0 };
    int rc = take_url_run_id(words);

    if (rc == MU_EXIT_OK)
        rc = check_words(words, &nodes_min, &nodes_max);
    if (rc != MU_EXIT_OK)
        return rc;
    if (words->endpoint == NULL)
        words->endpoint = strcmp(words->backend, "c10d") == 0 ? ENDPOINT_DEFAULT : "";
    rc = make_params(words, nodes_min, nodes_max, &params);
    if (rc != MU_EXIT_OK)
        return rc;
    (void)gethostname(host, sizeof host - 1);
    config->about =
        (struct mu_join_about){ .backend = words->backend,
                                .endpoint = mu_secret_hide(mu_slice_str(words->endpoint), endpoint, sizeof endpoint),
                                .run_id = words->run_id,
                                .node = words->local_addr != NULL ? words->local_addr : host };
    config->terminal = isatty(STDERR_FILENO) == 1;
    rc = mu_cli_load_backends(words->backend, dirs->items, dirs->count, &error) < 0
             ? mu_cli_fail(command, "%s", error.text)
             : mu_cmd_join_run(params, config);
    muster_rdzv_params_free(params);
    return rc;
}

int mu_cmd_join(char **argv)
{
    struct words words = { .backend = "c10d", .nodes = "1:1" };
    struct mu_join_config config = { 0 };
    struct mu_option_list dirs = { 0 };
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
        { "backend-dir", MU_OPTION_LIST, &dirs },
        { "hold", MU_OPTION_SECONDS, &config.hold_ms },
        { "json", MU_OPTION_FLAG, &config.json },
        { "log-level", MU_OPTION_TEXT, &log_level },
        { "help", MU_OPTION_FLAG, &want_help },
        { NULL, MU_OPTION_FLAG, NULL },
    };
    int count = 0, rc;

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
    rc = join(&words, &dirs, &config);
    free(words.url_run_id);
    return rc;
}
