/* A configuration as text, for --dry-run and -v. */
#include "base/secret.h"
#include "cli/run_config.h"
#include "handler/handler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_COLUMN = 24 }; /* where values begin */

static void add_line(struct mu_text *out, const char *name, const char *value)
{
    mu_text_add(out, "  %-*s", TEXT_COLUMN, name);
    mu_text_add_plain(out, value);
    mu_text_add(out, "\n");
}

static void add_number(struct mu_text *out, const char *name, int64_t value)
{
    mu_text_add(out, "  %-*s%" PRId64 "\n", TEXT_COLUMN, name, value);
}

static void add_seconds(struct mu_text *out, const char *name, int64_t ms)
{
    mu_text_add(out, "  %-*s%g s\n", TEXT_COLUMN, name, (double)ms / 1000);
}

static bool is_shell_safe(const char *word)
{
    for (const char *c = word; *c != '\0'; c++) {
        if (!(*c >= '0' && *c <= '9') && !(*c >= 'a' && *c <= 'z') && !(*c >= 'A' && *c <= 'Z') &&
            strchr("%+,-./:=@_", *c) == NULL)
            return false;
    }
    return word[0] != '\0';
}

/* As a shell would read it; $'...' if there is something that does not print. */
static void add_word(struct mu_text *out, const char *word)
{
    bool prints = true;

    if (is_shell_safe(word)) {
        mu_text_add(out, "%s", word);
        return;
    }
    for (const char *c = word; *c != '\0'; c++)
        prints = prints && *c >= ' ' && *c <= '~';
    mu_text_add(out, "%s'", prints ? "" : "$");
    for (const char *c = word; *c != '\0'; c++) {
        if (*c == '\'')
            mu_text_add(out, "%s", prints ? "'\\''" : "\\'");
        else if (*c == '\\' && !prints)
            mu_text_add(out, "\\\\");
        else if (*c == '\n')
            mu_text_add(out, "\\n");
        else if (*c >= ' ' && *c <= '~')
            mu_text_add(out, "%c", *c);
        else
            mu_text_add(out, "\\x%02x", (unsigned)(unsigned char)*c);
    }
    mu_text_add(out, "'");
}

struct shown {
    struct mu_text *out;
    bool any;
};

static int add_option(void *ctx, struct mu_slice key, struct mu_slice value, struct muster_error *reterr)
{
    struct shown *shown = ctx;

    (void)reterr;
    mu_text_add(shown->out, "%s", shown->any ? "," : "");
    mu_text_add_plain_slice(shown->out, key);
    mu_text_add(shown->out, "=");
    mu_text_add_plain_slice(shown->out, mu_secret_is_key(key) ? mu_slice_str("***") : value);
    shown->any = true;
    return 0;
}

/* As given, but without secrets: this goes to logs. */
static void add_conf(struct mu_text *out, const char *conf)
{
    struct shown shown = { .out = out };

    mu_text_add(out, "  %-*s", TEXT_COLUMN, "rdzv_conf");
    (void)mu_rdzv_options_parse(conf, add_option, &shown, NULL); /* it was read before */
    mu_text_add(out, "\n");
}

static void add_rendezvous(struct mu_text *out, const struct mu_run_config *config)
{
    const struct muster_rdzv_params *params = config->params;
    char endpoint[MU_RUN_ENDPOINT_BYTES];
    struct mu_bind bind = { 0 };
    int64_t rank;

    add_line(out, "rdzv_backend", muster_rdzv_params_backend(params));
    add_line(out, "rdzv_endpoint",
             mu_secret_hide(mu_slice_str(muster_rdzv_params_endpoint(params)), endpoint, sizeof endpoint));
    add_line(out, "run_id", muster_rdzv_params_run_id(params));
    add_conf(out, config->rdzv_conf);
    if (muster_rdzv_params_get_as_int(params, "rank", -1, &rank, NULL) == 0 && rank >= 0)
        add_number(out, "node_rank", rank);
    add_line(out, "local_addr",
             muster_rdzv_params_local_addr(params) != NULL ? muster_rdzv_params_local_addr(params) : "(found out)");
    (void)mu_bind_from_params(params, &bind, NULL); /* it was checked before */
    if (bind.hosts != NULL)
        add_line(out, "bind", bind.hosts);
    if (bind.allow != NULL)
        add_line(out, "allow", bind.allow);
}

static void add_signals(struct mu_text *out, const struct mu_run_config *config)
{
    char room[MU_SIGNAL_NAME_MAX];

    mu_text_add(out, "  %-*s", TEXT_COLUMN, "signals_to_handle");
    for (size_t i = 0; i < config->signals.count; i++)
        mu_text_add(out, "%s%s", i == 0 ? "" : ",", mu_signal_name(config->signals.numbers[i], room));
    mu_text_add(out, "%s\n", config->signals.count == 0 ? "(none)" : "");
}

static void add_streams(struct mu_text *out, const char *name, const struct mu_redirects *streams)
{
    mu_text_add(out, "  %-*s", TEXT_COLUMN, name);
    if (!streams->by_rank)
        mu_text_add(out, "%u", (unsigned)streams->all);
    for (unsigned i = 0, shown = 0; streams->by_rank && i < MU_REDIRECTS_NAMED_MAX; i++) {
        if (streams->ranks[i] != 0)
            mu_text_add(out, "%s%u:%u", shown++ == 0 ? "" : ",", i, (unsigned)streams->ranks[i]);
    }
    mu_text_add(out, "\n");
}

static void add_binding(struct mu_text *out, const struct mu_run_config *config)
{
    add_line(out, "numa_binding", config->numa_binding);
    for (int64_t i = 0; i < config->nproc; i++) {
        mu_text_add(out, "    local rank %-*" PRId64, TEXT_COLUMN - 13, i);
        mu_run_bound_text(out, &config->bound[i]);
        mu_text_add(out, "\n");
    }
}

static void add_configuration(struct mu_text *out, const struct mu_run_config *config)
{
    add_number(out, "min_nodes", config->nodes_min);
    add_number(out, "max_nodes", config->nodes_max);
    add_number(out, "nproc_per_node", config->nproc);
    add_line(out, "role", config->role);
    add_rendezvous(out, config);
    add_number(out, "max_restarts", config->max_restarts);
    mu_text_add(out, "  %-*s%g s\n", TEXT_COLUMN, "monitor_interval", config->monitor_interval_s);
    add_line(out, "log_dir", config->log_dir != NULL ? config->log_dir : "(a new directory)");
    if (config->log_dir == NULL)
        add_line(out, "tmp_dir", config->tmp_dir);
    add_streams(out, "redirects", &config->redirects);
    add_streams(out, "tee", &config->tee);
    add_line(out, "event_log_handler", config->event_log_handler);
    add_line(out, "metrics", config->metrics);
    add_signals(out, config);
    add_seconds(out, "shutdown_timeout", config->shutdown_timeout_ms);
    if (config->exit_barrier_timeout_ms >= 0)
        add_seconds(out, "exit_barrier_timeout", config->exit_barrier_timeout_ms);
    if (config->health_port >= 0)
        add_number(out, "health_check_port", config->health_port);
    if (config->health_hosts != NULL)
        add_line(out, "health_check_host", config->health_hosts);
    if (config->virtual_local_rank)
        add_line(out, "virtual_local_rank", "true");
    if (config->numa_binding != NULL)
        add_binding(out, config);
}

static bool uses_agent_store(const struct mu_run_config *config)
{
    struct mu_doc_dialect dialect;
    bool uses = true;

    (void)mu_rdzv_dialect_from_params(config->params, &dialect, &uses, NULL);
    return uses || strcmp(muster_rdzv_params_backend(config->params), "static") == 0;
}

static void add_environment(struct mu_text *out, const struct mu_run_config *config)
{
    bool is_static = strcmp(muster_rdzv_params_backend(config->params), "static") == 0;
    char host[MU_RDZV_HOST_MAX] = "";
    int port = 0;
    struct mu_agent_worker worker = {
        .local_world_size = config->nproc,
        .world_size = config->nproc * config->nodes_max,
        .group_world_size = config->nodes_max,
        .role_world_size = config->nproc * config->nodes_max,
        .use_agent_store = uses_agent_store(config),
        .error_file = config->log_dir != NULL && strcmp(config->log_dir, "/dev/null") == 0
                          ? ""
                          : "(log directory)/attempt_0/0/error.json",
        .timer_file = config->file_timer ? "(a new FIFO)" : NULL,
    };
    char **vars;

    if (is_static)
        (void)mu_rdzv_endpoint_parse(muster_rdzv_params_endpoint(config->params), -1, host, &port, NULL);
    worker.master_addr = is_static ? host : config->master.addr;
    worker.master_port = is_static ? (uint16_t)port : config->master.port;
    vars = mu_run_environment(config, &worker, true);
    if (vars == NULL) {
        out->failed = MUSTER_ENOMEM;
        return;
    }
    for (char **var = vars; *var != NULL; var++) {
        size_t name = strcspn(*var, "=") + 1;
        bool is_unknown = strcmp(*var, "MASTER_ADDR=") == 0 || strcmp(*var, "MASTER_PORT=0") == 0;

        mu_text_add(out, "  %.*s", (int)name, *var);
        mu_text_add_plain(out, is_unknown ? "(known once nodes have met)" : *var + name);
        mu_text_add(out, "\n");
    }
    free(vars);
}

void mu_run_config_text(struct mu_text *out, const struct mu_run_config *config)
{
    char **argv = mu_run_command_argv(&config->command, 0);

    mu_text_add(out, "configuration:\n");
    add_configuration(out, config);
    mu_text_add(out, "command of the first worker:\n ");
    for (char **word = argv; word != NULL && *word != NULL; word++) {
        mu_text_add(out, " ");
        add_word(out, *word);
    }
    mu_text_add(out, "\nenvironment of the first worker, beside what is inherited, if all nodes come and are alike:\n");
    add_environment(out, config);
    if (argv == NULL)
        out->failed = MUSTER_ENOMEM;
    free(argv);
}
