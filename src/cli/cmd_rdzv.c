/* `muster rdzv close|get|set`: one act on a rendezvous, from outside. */
#include "cli/cli.h"
#include "cli/rdzv_options.h"
#include "cli/rdzv_visit.h"
#include "handler/handler.h"
#include "proc/signals.h"

#include <inttypes.h>
#include <stdio.h>

#define DATA_TIMEOUT_MS 10000
#define CONNECT_MAX_S 3600 /* every back end takes that */

static const char help[] = "muster rdzv: acts on a rendezvous without joining it\n"
                           "\n"
                           "usage: muster rdzv close --rdzv-id ID [OPTIONS]\n"
                           "       muster rdzv get KEY --rdzv-id ID --rdzv-backend etcd [OPTIONS]\n"
                           "       muster rdzv set KEY VALUE --rdzv-id ID --rdzv-backend etcd [OPTIONS]\n"
                           "\n"
                           "Commands:\n"
                           "  close                  close the rendezvous: no node can join it any more.\n"
                           "                         Waiting nodes end, failed workers are not restarted,\n"
                           "                         running workers go on to their end. To stop a job,\n"
                           "                         send a signal to its nodes\n"
                           "  get KEY                print a value that is kept with a round; if it is not\n"
                           "                         there yet, wait for it. Only for back end etcd\n"
                           "  set KEY VALUE          keep a value with a round. Only for back end etcd\n"
                           "\n"
                           "Options:\n"
                           "  --rdzv-id ID           name of the job\n"
                           "  --rdzv-backend B       c10d, etcd-v3, etcd-v2, etcd, or one from a\n"
                           "                         --backend-dir (default: c10d)\n"
                           "  --rdzv-endpoint E      address of the store (default for c10d:\n"
                           "                         localhost:29400). For etcd: a comma-separated list\n"
                           "  --rdzv-conf K=V,...    further options, as for 'muster join'\n"
                           "  --backend-dir DIR      load more back ends from DIR; may be repeated\n"
                           "  --round N              the round of get and set (default: the current one)\n"
                           "  --timeout SECONDS      give up after this long (default: 30 for close, 10 for\n"
                           "                         get and set)\n"
                           "  --log-level LEVEL      log to stderr from this level on: debug, info, notice,\n"
                           "                         warning or error (default: notice)\n"
                           "  --help                 this text\n"
                           "\n"
                           "Exit status: 0 done, also where the rendezvous was closed before; 1 an error,\n"
                           "or there is no such rendezvous; 2 the command line was wrong.\n"
                           "\n"
                           "Examples:\n"
                           "  muster rdzv close --rdzv-id job --rdzv-endpoint node1:29400\n"
                           "  muster rdzv set dataset v7 --rdzv-id job --rdzv-backend etcd \\\n"
                           "      --rdzv-endpoint etcd1:2379\n";

enum verb { CLOSE, GET, SET };

static const struct {
    const char *name, *command, *operands;
} verbs[] = {
    [CLOSE] = { "close", "muster rdzv close", "" },
    [GET] = { "get", "muster rdzv get", "KEY" },
    [SET] = { "set", "muster rdzv set", "KEY VALUE" },
};

enum { VERBS = sizeof verbs / sizeof verbs[0] };

struct asked {
    enum verb verb;
    struct mu_rdzv_words words;
    char **operands;
    int64_t timeout_ms; /* 0: the default */
    int round;          /* -1: the present one */
    const char *log_level;
    bool help;
};

#define AT(field) offsetof(struct asked, field)

const struct mu_option mu_rdzv_options[] = {
    { "rdzv-backend", MU_OPTION_TEXT, AT(words.backend), MU_OPTION_BACKENDS },
    { "rdzv-endpoint", MU_OPTION_TEXT, AT(words.endpoint), NULL },
    { "rdzv-id", MU_OPTION_TEXT, AT(words.run_id), NULL },
    { "rdzv-conf", MU_OPTION_TEXT, AT(words.conf), NULL },
    { "backend-dir", MU_OPTION_LIST, AT(words.backend_dirs), "DIR" },
    { "round", MU_OPTION_INT, AT(round), NULL },
    { "timeout", MU_OPTION_SECONDS, AT(timeout_ms), NULL },
    { "log-level", MU_OPTION_TEXT, AT(log_level), MU_OPTION_LEVELS },
    { "help", MU_OPTION_FLAG, AT(help), NULL },
    { NULL, MU_OPTION_FLAG, 0, NULL },
};

int mu_cmd_rdzv_say(const char *command, const struct mu_rdzv_visit *visit)
{
    if (visit->out.failed != 0 || visit->err.failed != 0)
        return mu_cli_fail(command, "out of memory");
    if (visit->exit_code != MU_EXIT_OK)
        return mu_cli_fail(command, "%.*s", (int)visit->err.buf.len, visit->err.buf.data);
    if (visit->out.buf.len == 0)
        return MU_EXIT_OK;
    (void)printf("%.*s\n", (int)visit->out.buf.len, visit->out.buf.data);
    return mu_cli_flush(command);
}

/* ---- Extra data ---- */

static int put_data(const struct asked *asked, struct muster_rdzv *rdzv, int64_t round)
{
    struct muster_error error = { 0 };
    int rc = muster_rdzv_etcd_store_extra_data(rdzv, round, asked->operands[0], asked->operands[1], asked->timeout_ms,
                                               &error);

    return rc < 0 ? mu_cli_fail(asked->words.command, "round %" PRId64 ": %s", round, error.text) : MU_EXIT_OK;
}

static int print_data(const struct asked *asked, struct muster_rdzv *rdzv, int64_t round)
{
    const char *command = asked->words.command;
    struct muster_bytes value = { 0 };
    struct muster_error error = { 0 };
    int rc = muster_rdzv_etcd_load_extra_data(rdzv, round, asked->operands[0], asked->timeout_ms, &value, &error);

    if (rc < 0)
        return mu_cli_fail(command, "round %" PRId64 ": %s", round, error.text);
    return mu_cli_print_value(command, &value);
}

static int act_on_data(const struct asked *asked, const struct muster_rdzv_params *params, int64_t round)
{
    struct muster_error error = { 0 };
    struct muster_rdzv *rdzv = NULL;
    int rc = muster_rdzv_etcd_create(NULL, params, &rdzv, &error);

    if (rc < 0)
        return mu_cli_fail(asked->words.command, "%s", error.text);
    rc = asked->verb == SET ? put_data(asked, rdzv, round) : print_data(asked, rdzv, round);
    muster_rdzv_free(rdzv);
    return rc;
}

/* ---- The command ---- */

static int visit(struct asked *asked, const struct muster_rdzv_params *params)
{
    const struct mu_rdzv_visit_config config = { .about = { .backend = asked->words.backend,
                                                            .endpoint = asked->words.shown_endpoint,
                                                            .run_id = asked->words.run_id,
                                                            .node = "" },
                                                 .close = asked->verb == CLOSE,
                                                 .timeout_ms = asked->timeout_ms };
    struct mu_rdzv_visit machine;
    int64_t round;
    int rc;

    mu_rdzv_visit_init(&machine, &config);
    rc = mu_cmd_rdzv_visit(asked->words.command, params, &machine);
    round = asked->round >= 0 ? asked->round : machine.round;
    mu_rdzv_visit_done(&machine);
    return rc == MU_EXIT_OK && asked->verb != CLOSE ? act_on_data(asked, params, round) : rc;
}

static int check(const struct asked *asked, int count)
{
    const char *backend = asked->words.backend, *command = asked->words.command;
    int rc = mu_cli_check_operands(command, verbs[asked->verb].operands, asked->operands, count);

    if (rc != MU_EXIT_OK)
        return rc;
    if (asked->verb == CLOSE && asked->round >= 0)
        return mu_cli_usage(command, "option '--round' is for get and set: closing ends all rounds");
    if (asked->verb == CLOSE && strcmp(backend, "static") == 0)
        return mu_cli_usage(command, "back end 'static' cannot be closed: its nodes are fixed from the start");
    if (asked->verb != CLOSE && strcmp(backend, "etcd") != 0)
        return mu_cli_usage(command, "only back end 'etcd' keeps data with a round, not '%s'", backend);
    return MU_EXIT_OK;
}

/* A visitor never hosts the store that it wants to look into, and it stops connecting early enough to say why. */
static int set_visitor(const struct asked *asked, struct muster_rdzv_params *params)
{
    int64_t connect_s = (asked->timeout_ms > 0 ? asked->timeout_ms : MU_RDZV_VISIT_TIMEOUT_MS) / 1000 - 1;
    const char *backend = asked->words.backend;
    struct muster_error error = { 0 };
    struct muster_value value;
    int rc = 0;

    if (connect_s < 1)
        connect_s = 1;
    if (connect_s > CONNECT_MAX_S)
        connect_s = CONNECT_MAX_S;
    if (mu_rdzv_knows_option(backend, "is_host"))
        rc = muster_rdzv_params_set_bool(params, "is_host", false, &error);
    if (rc == 0 && mu_rdzv_knows_option(backend, "read_timeout") &&
        !muster_rdzv_params_get(params, "read_timeout", &value))
        rc = muster_rdzv_params_set_int(params, "read_timeout", connect_s, &error);
    return rc < 0 ? mu_cli_fail(asked->words.command, "%s", error.text) : MU_EXIT_OK;
}

static int act(struct asked *asked)
{
    struct muster_rdzv_params *params = NULL;
    int rc = mu_rdzv_words_params(&asked->words, &params);

    if (rc == MU_EXIT_OK)
        rc = set_visitor(asked, params);
    if (rc == MU_EXIT_OK)
        rc = visit(asked, params);
    muster_rdzv_params_free(params);
    return rc;
}

static int run_verb(enum verb verb, char **argv)
{
    const char *command = verbs[verb].command;
    struct asked asked = { .verb = verb, .operands = argv, .round = -1, .log_level = "notice" };
    int count = 0, rc;

    mu_rdzv_words_init(&asked.words, command);
    if (!mu_options_parse(command, mu_rdzv_options, &asked, argv, &count))
        return MU_EXIT_USAGE;
    if (asked.help)
        return mu_cli_help(command, help);
    if (!mu_cli_log(command, asked.log_level))
        return MU_EXIT_USAGE;
    rc = check(&asked, count);
    if (asked.timeout_ms == 0 && verb != CLOSE)
        asked.timeout_ms = DATA_TIMEOUT_MS;
    if (rc == MU_EXIT_OK)
        rc = act(&asked);
    mu_rdzv_words_done(&asked.words);
    return rc;
}

const char *mu_cmd_rdzv_verb(size_t index)
{
    return index < VERBS ? verbs[index].name : NULL;
}

int mu_cmd_rdzv(char **argv)
{
    const char *word = argv[0] == NULL ? "" : argv[0];

    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return mu_cli_help("muster rdzv", help);
    mu_signals_unblock_all(); /* it handles none: any of them may end it */
    for (size_t i = 0; i < VERBS; i++) {
        if (strcmp(word, verbs[i].name) == 0)
            return run_verb((enum verb)i, argv + 1);
    }
    if (word[0] == '\0')
        return mu_cli_usage("muster rdzv", "a command is missing: close, get or set");
    return mu_cli_usage("muster rdzv", word[0] == '-' ? "unknown option '%s'" : "unknown command '%s'", word);
}
