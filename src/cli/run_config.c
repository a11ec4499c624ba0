/* From options, variables and this machine to a configuration. The steps stand in a table, in torchrun's order: of two
 * mistakes both launchers name the same one. */
#include "cli/run_config.h"

#include "base/error.h"
#include "base/number.h"
#include "cli/nproc.h"
#include "cli/uuid.h"
#include "handler/engine_params.h"
#include "handler/etcd_params.h"
#include "handler/handler.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SECONDS_MAX = 1000 * 1000 * 1000 }; /* of any timeout; longer ones are as good as this */

#define RUN_ID_DEFAULT "none"

static const char backend_static[] = "static", backend_c10d[] = "c10d", backend_etcd[] = "etcd";

struct maker {
    const struct mu_run_options *options;
    const struct mu_run_host *host;
    struct mu_run_config *config;
    struct mu_run_problem *problem;
    /* The rendezvous as it will be. */
    const char *backend, *endpoint, *run_id;
    char endpoint_room[MU_RUN_ENDPOINT_BYTES], run_id_room[MU_UUID_BYTES];
    char *url_run_id; /* if it is the endpoint's */
};

/* ---- Helpers ---- */

static const char *variable(const struct maker *m, const char *name)
{
    return mu_run_variable(m->host->environ, name);
}

static bool is_one(const char *value)
{
    return value != NULL && strcmp(value, "1") == 0;
}

static const char *unless_empty(const char *text)
{
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static int note(struct maker *m, enum muster_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int note(struct maker *m, enum muster_log_level level, const char *format, ...)
{
    struct mu_run_config *config = m->config;
    struct mu_run_note *note = &config->notes[config->notes_count++];
    va_list args;
    char *text;
    int len;

    assert(config->notes_count <= MU_RUN_NOTES_MAX);
    va_start(args, format);
    len = vasprintf(&text, format, args);
    va_end(args);
    if (len < 0)
        return mu_run_no_memory(m->problem);
    note->level = level;
    note->text = mu_arena_join(&config->texts, mu_slice_str(text), mu_slice("", 0)).data;
    free(text);
    return note->text == NULL ? mu_run_no_memory(m->problem) : 0;
}

/* An error of the library is a bad value of the user, unless its code says otherwise. */
static int bad_value(struct maker *m, const struct muster_error *error)
{
    if (error->code == MUSTER_ENOMEM)
        return mu_run_no_memory(m->problem);
    return mu_run_problem(m->problem, MU_RUN_VALUE, "%s", error->text);
}

static int64_t seconds_to_ms(double seconds)
{
    return seconds >= SECONDS_MAX ? (int64_t)SECONDS_MAX * 1000 : (int64_t)(seconds * 1000 + 0.999999);
}

/* ---- Levels ---- */

/* Only names, and only as Python spells them. */
static int take_log_level(struct maker *m)
{
    static const struct {
        const char *name;
        enum muster_log_level level;
    } names[] = {
        { "CRITICAL", MUSTER_LOG_ERROR },  { "FATAL", MUSTER_LOG_ERROR },  { "ERROR", MUSTER_LOG_ERROR },
        { "WARNING", MUSTER_LOG_WARNING }, { "WARN", MUSTER_LOG_WARNING }, { "INFO", MUSTER_LOG_INFO },
        { "DEBUG", MUSTER_LOG_DEBUG },     { "NOTSET", MUSTER_LOG_DEBUG },
    };
    const struct mu_run_options *options = m->options;
    const char *name = variable(m, "LOGLEVEL");
    bool found = name == NULL;

    m->config->log_level = MUSTER_LOG_NOTICE;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !found; i++) {
        found = strcmp(name, names[i].name) == 0;
        if (found)
            m->config->log_level = names[i].level;
    }
    if (!found)
        return mu_run_problem(m->problem, MU_RUN_VALUE,
                              "LOGLEVEL: unknown level '%s'; expected DEBUG, INFO, WARNING, ERROR or CRITICAL", name);
    if (options->quiet)
        m->config->log_level = MUSTER_LOG_ERROR;
    if (options->verbose > 0)
        m->config->log_level = options->verbose > 1 ? MUSTER_LOG_DEBUG : MUSTER_LOG_INFO;
    m->config->quiet = options->quiet;
    m->config->verbose = options->verbose;
    m->config->dry_run = options->dry_run;
    return 0;
}

/* ---- Nodes ---- */

static int parse_nodes(struct maker *m, const char *text, size_t len, int64_t *ret_count)
{
    char part[64];

    if (len < sizeof part) {
        memcpy(part, text, len);
        part[len] = '\0';
        if (mu_number_int(part, ret_count))
            return 0;
    }
    return mu_run_problem(m->problem, MU_RUN_VALUE, "--nnodes=%s: '%.*s' is not an integer", m->options->nnodes,
                          (int)len, text);
}

static int take_nodes(struct maker *m)
{
    const char *text = m->options->nnodes, *colon = strchr(text, ':');
    struct mu_run_config *config = m->config;
    int rc;

    if (colon != NULL && strchr(colon + 1, ':') != NULL)
        return mu_run_problem(m->problem, MU_RUN_RUNTIME, "nnodes=%s is not in \"MIN:MAX\" format", text);
    rc = parse_nodes(m, text, colon == NULL ? strlen(text) : (size_t)(colon - text), &config->nodes_min);
    config->nodes_max = config->nodes_min;
    if (rc == 0 && colon != NULL)
        rc = parse_nodes(m, colon + 1, strlen(colon + 1), &config->nodes_max);
    if (rc == 0 && (config->nodes_min < 1 || config->nodes_min > config->nodes_max))
        rc = mu_run_problem(m->problem, MU_RUN_ASSERTION,
                            "--nnodes=%s: the minimum (%" PRId64 ") must be above 0 and not above the maximum (%" PRId64
                            ")",
                            text, config->nodes_min, config->nodes_max);
    return rc;
}

static int take_max_restarts(struct maker *m)
{
    m->config->max_restarts = m->options->max_restarts.value;
    if (m->config->max_restarts < 0)
        return mu_run_problem(m->problem, MU_RUN_ASSERTION, "--max-restarts=%" PRId64 ": it must be 0 or above",
                              m->config->max_restarts);
    return 0;
}

/* ---- Where nodes meet ---- */

static int standalone(struct maker *m)
{
    mu_uuid_text(m->host->rng, m->run_id_room);
    m->backend = backend_c10d;
    m->endpoint = "localhost:0";
    m->run_id = m->run_id_room;
    m->config->is_standalone = true;
    if (!m->options->standalone)
        return 0;
    return note(m, MUSTER_LOG_INFO,
                "\n**************************************\n"
                "Rendezvous info:\n"
                "--rdzv-backend=%s --rdzv-endpoint=%s --rdzv-id=%s\n"
                "**************************************\n",
                m->backend, m->endpoint, m->run_id);
}

/* One node, and no address to meet at. */
static bool is_alone(const struct maker *m)
{
    const struct mu_run_options *options = m->options;

    return strcmp(options->rdzv_backend, backend_static) == 0 && options->rdzv_endpoint[0] == '\0' &&
           !options->master_port.is_set && m->config->nodes_max == 1;
}

static int take_place(struct maker *m)
{
    const struct mu_run_options *options = m->options;
    int64_t port = options->master_port.is_set ? options->master_port.value : MU_RUN_MASTER_PORT;

    if (options->standalone || is_alone(m))
        return standalone(m);
    m->backend = options->rdzv_backend;
    m->endpoint = options->rdzv_endpoint;
    m->run_id = options->rdzv_id != NULL ? options->rdzv_id : RUN_ID_DEFAULT;
    if (m->endpoint[0] != '\0')
        return 0;
    if (strcmp(m->backend, backend_static) == 0) {
        if (snprintf(m->endpoint_room, sizeof m->endpoint_room, "%s:%" PRId64, options->master_addr, port) >=
            (int)sizeof m->endpoint_room)
            return mu_run_problem(m->problem, MU_RUN_VALUE, "--master-addr: it is longer than %d bytes",
                                  MU_RUN_ENDPOINT_BYTES);
        m->endpoint = m->endpoint_room;
        return 0;
    }
    if (strcmp(m->backend, backend_c10d) == 0) {
        (void)snprintf(m->endpoint_room, sizeof m->endpoint_room, "localhost:%d", MU_RUN_C10D_PORT);
        m->endpoint = m->endpoint_room;
    }
    return note(m, MUSTER_LOG_WARNING,
                "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.");
}

/* ---- Workers ---- */

static struct mu_gpus_variables device_variables(const struct maker *m)
{
    return (struct mu_gpus_variables){ .cuda = variable(m, "CUDA_VISIBLE_DEVICES"),
                                       .hip = variable(m, "HIP_VISIBLE_DEVICES"),
                                       .rocr = variable(m, "ROCR_VISIBLE_DEVICES"),
                                       .order = variable(m, "CUDA_DEVICE_ORDER") };
}

static int take_gpus(struct maker *m)
{
    struct mu_gpus_variables variables = device_variables(m);
    struct mu_nproc_gpus gpus = mu_nproc_gpus(m->host->root, &variables);

    if (gpus.count == 0)
        return mu_run_problem(m->problem, MU_RUN_VALUE,
                              "--nproc-per-node=gpu: Cuda is not available: no GPU is listed by a driver or by "
                              "CUDA_VISIBLE_DEVICES");
    m->config->nproc = gpus.count;
    return 0;
}

/* CUDA_VISIBLE_DEVICES alone does not make a machine one with GPUs here: stock looks for the device too. */
static int64_t auto_nproc(const struct maker *m)
{
    struct mu_gpus_variables variables = device_variables(m);
    struct mu_nproc_gpus gpus = mu_nproc_gpus(m->host->root, &variables);
    int64_t cpus = mu_nproc_cpus(), quota = mu_nproc_quota(m->host->root);

    if (gpus.has_driver && gpus.count > 0)
        return gpus.count;
    return quota > 0 && quota < cpus ? quota : cpus;
}

static int take_nproc(struct maker *m)
{
    const char *text = m->options->nproc_per_node;
    int64_t *nproc = &m->config->nproc;

    if (strcmp(text, "gpu") == 0)
        return take_gpus(m);
    if (strcmp(text, "xpu") == 0)
        return mu_run_problem(m->problem, MU_RUN_VALUE, "--nproc-per-node=xpu: Xpu is not available");
    if (strcmp(text, "cpu") == 0)
        *nproc = mu_nproc_cpus();
    else if (strcmp(text, "auto") == 0)
        *nproc = auto_nproc(m);
    else if (!mu_number_int(text, nproc))
        return mu_run_problem(m->problem, MU_RUN_VALUE,
                              "Unsupported nproc_per_node value: %s (expected a number, auto, cpu or gpu)", text);
    return note(m, MUSTER_LOG_INFO, "Using nproc_per_node=%" PRId64 ".", *nproc);
}

static int take_omp(struct maker *m)
{
    if (m->config->nproc <= 1 || variable(m, "OMP_NUM_THREADS") != NULL)
        return 0;
    m->config->set_omp = true;
    return note(m, MUSTER_LOG_WARNING,
                "\n*****************************************\n"
                "Setting OMP_NUM_THREADS environment variable for each process to be 1: %" PRId64
                " workers with all threads each would overload this machine. Set it yourself to what suits them best.\n"
                "*****************************************",
                m->config->nproc);
}

/* ---- Options that have their own grammar ---- */

static int any_option(void *ctx, struct mu_slice key, struct mu_slice value, struct muster_error *reterr)
{
    (void)ctx;
    (void)key;
    (void)value;
    (void)reterr;
    return 0;
}

static int check_conf(struct maker *m)
{
    struct muster_error error = { 0 };

    if (mu_rdzv_options_parse(m->options->rdzv_conf, any_option, NULL, &error) == 0)
        return 0;
    (void)mu_wrap(&error, error.code, "--rdzv-conf");
    return bad_value(m, &error);
}

static int take_shown(struct maker *m)
{
    struct muster_error error = { 0 };

    if (mu_ranks_shown_parse("--local-ranks-filter", m->options->local_ranks_filter, &m->config->shown, &error) < 0)
        return bad_value(m, &error);
    return 0;
}

static int check_logs_specs(struct maker *m)
{
    if (m->options->logs_specs == NULL || strcmp(m->options->logs_specs, "default") == 0)
        return 0;
    return mu_run_problem(m->problem, MU_RUN_VALUE,
                          "--logs-specs=%s: Could not find entrypoint: only 'default' is possible, for muster loads no "
                          "Python classes; use --log-dir, --redirects, --tee, --local-ranks-filter and the "
                          "--duplicate-*-filters instead",
                          m->options->logs_specs);
}

static int take_redirects(struct maker *m)
{
    struct muster_error error = { 0 };
    struct mu_run_config *config = m->config;

    if (mu_redirects_parse("--redirects", m->options->redirects, &config->redirects, &error) < 0 ||
        mu_redirects_parse("--tee", m->options->tee, &config->tee, &error) < 0 ||
        mu_filters_parse("--duplicate-stdout-filters", m->options->duplicate_stdout_filters, &config->stdout_filters,
                         &error) < 0 ||
        mu_filters_parse("--duplicate-stderr-filters", m->options->duplicate_stderr_filters, &config->stderr_filters,
                         &error) < 0)
        return bad_value(m, &error);
    return 0;
}

/* ---- The older command ---- */

static int check_launch(struct maker *m)
{
    if (m->options->no_python && !m->options->use_env)
        return mu_run_problem(m->problem, MU_RUN_VALUE,
                              "--no-python: the '--use-env' flag must be set too: only a script is given --local-rank");
    return note(m, MUSTER_LOG_WARNING,
                "this form of the command is deprecated; use torchrun, and in scripts LOCAL_RANK of the environment "
                "instead of the argument --local-rank");
}

/* ---- Ends ---- */

static int take_shutdown_timeout(struct maker *m)
{
    const char *name = "--shutdown-timeout", *text = variable(m, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    struct mu_run_int seconds = m->options->shutdown_timeout;

    m->config->shutdown_timeout_ms = MU_RUN_SHUTDOWN_TIMEOUT_MS;
    if (!seconds.is_set && text != NULL) {
        name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
        seconds.is_set = true;
        if (!mu_number_int(text, &seconds.value))
            return mu_run_problem(m->problem, MU_RUN_VALUE, "%s=%s: it is not an integer", name, text);
    }
    if (!seconds.is_set)
        return 0;
    if (seconds.value < 0)
        return mu_run_problem(m->problem, MU_RUN_VALUE, "%s=%" PRId64 ": shutdown_timeout must be non-negative", name,
                              seconds.value);
    m->config->shutdown_timeout_ms = seconds_to_ms((double)seconds.value);
    return 0;
}

/* Seconds of a variable, or those that were given instead. */
static int take_seconds(struct maker *m, const char *option, struct mu_run_float given, const char *name,
                        int64_t *ret_ms)
{
    const char *text = variable(m, name);

    if (given.is_set)
        name = option;
    else if (text == NULL)
        return 0;
    else if (!mu_number_float(text, &given.value))
        return mu_run_problem(m->problem, MU_RUN_VALUE, "%s=%s: it is not a number", name, text);
    if (!(given.value >= 0))
        return mu_run_problem(m->problem, MU_RUN_VALUE, "%s=%g: it must be 0 or above", name, given.value);
    *ret_ms = seconds_to_ms(given.value);
    return 0;
}

static int take_other_timeouts(struct maker *m)
{
    const struct mu_run_float none = { 0 };
    int rc;

    m->config->exit_barrier_timeout_ms = -1;
    rc = take_seconds(m, "--exit-barrier-timeout", m->options->exit_barrier_timeout,
                      "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", &m->config->exit_barrier_timeout_ms);
    if (rc == 0)
        rc = take_seconds(m, "", none, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
                          &m->config->uninterruptible_timeout_ms);
    if (rc == 0)
        rc = take_seconds(m, "", none, "MUSTER_HEALTH_CHECK_TIMEOUT", &m->config->health_timeout_ms);
    return rc;
}

static int take_signals(struct maker *m)
{
    struct mu_run_config *config = m->config;

    config->signals_text = m->options->signals_to_handle;
    mu_signals_parse(&config->signals, config->signals_text);
    if (config->signals.skipped[0] == '\0')
        return 0;
    return note(m, MUSTER_LOG_WARNING, "--signals-to-handle: skipped (unknown, or cannot be handled): %s",
                config->signals.skipped);
}

/* ---- The rendezvous ---- */

static int check_module(struct maker *m)
{
    const struct mu_run_options *options = m->options;

    if (!options->run_path && options->no_python && options->module)
        return mu_run_problem(m->problem, MU_RUN_VALUE, "Don't use both --no-python and --module");
    return 0;
}

static int set_rdzv_options(struct maker *m, struct muster_error *reterr)
{
    struct muster_rdzv_params *params = m->config->params;
    struct muster_value value;
    int rc = 0;

    if (is_one(variable(m, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")))
        rc = muster_rdzv_params_set_bool(params, "use_agent_store", false, reterr);
    if (rc == 0)
        rc = muster_rdzv_params_set_options(params, m->options->rdzv_conf, reterr);
    if (rc == 0 && !m->config->is_standalone) /* else no other node can come */
        rc = mu_engine_take_token_file(params, variable(m, "MUSTER_TOKEN_FILE"), reterr);
    if (rc == 0 && m->options->bind != NULL)
        rc = muster_rdzv_params_set_text(params, "bind", m->options->bind, reterr);
    if (rc == 0 && m->options->allow != NULL)
        rc = muster_rdzv_params_set_text(params, "allow", m->options->allow, reterr);
    if (rc == 0 && strcmp(m->backend, backend_static) == 0)
        rc = muster_rdzv_params_set_int(params, "rank", m->options->node_rank.value, reterr);
    if (rc == 0 && !muster_rdzv_params_get(params, "timeout", &value))
        rc = muster_rdzv_params_set_int(params, "timeout", MU_RUN_RDZV_TIMEOUT_S, reterr);
    return rc;
}

/* The workers' master: an option of our back ends, which may mean something else to others. */
static int take_master(struct maker *m)
{
    struct muster_error error = { 0 };

    if (!mu_rdzv_knows_option(m->backend, "master_addr") ||
        mu_boot_master_from_params(m->config->params, &m->config->master, &error) == 0)
        return 0;
    return bad_value(m, &error);
}

/* Where to listen, and for whom: also if it came with --rdzv-conf. */
static int check_bind(struct maker *m)
{
    struct muster_error error = { 0 };
    struct mu_bind bind;

    if (m->options->bind != NULL && mu_bind_check_hosts(m->options->bind, &error) < 0)
        (void)mu_wrap(&error, error.code, "--bind");
    else if (m->options->allow != NULL && mu_bind_check_allow(m->options->allow, &error) < 0)
        (void)mu_wrap(&error, error.code, "--allow");
    else if (mu_bind_from_params(m->config->params, &bind, &error) == 0)
        return 0;
    return bad_value(m, &error);
}

/* A URL of etcd names the job, unless --rdzv-id does. */
static int take_url_run_id(struct maker *m, struct muster_error *reterr)
{
    int rc = 0;

    if (strcmp(m->backend, backend_etcd) == 0 && unless_empty(m->options->rdzv_id) == NULL)
        rc = mu_etcd_params_run_id(m->endpoint, &m->url_run_id, reterr);
    if (m->url_run_id != NULL)
        m->run_id = m->url_run_id;
    return rc;
}

static int take_params(struct maker *m)
{
    const char *local_addr = unless_empty(m->options->local_addr);
    struct muster_error error = { 0 };
    int rc = 0;

    if (take_url_run_id(m, &error) < 0)
        return bad_value(m, &error);
    if (m->run_id[0] == '\0') {
        mu_uuid_decimal(m->host->rng, m->run_id_room);
        m->run_id = m->run_id_room;
        rc = note(m, MUSTER_LOG_WARNING, "--rdzv-id is empty, so nobody else can join; using run_id %s", m->run_id);
    }
    if (rc < 0)
        return rc;
    if (muster_rdzv_params_new(m->backend, m->endpoint, m->run_id, m->config->nodes_min, m->config->nodes_max,
                               local_addr, &m->config->params, &error) < 0 ||
        set_rdzv_options(m, &error) < 0)
        return bad_value(m, &error);
    return 0;
}

static int check_endpoint(struct maker *m)
{
    bool is_static = strcmp(m->backend, backend_static) == 0;
    int64_t rank = m->options->node_rank.value;
    struct muster_error error = { 0 };
    char host[MU_RDZV_HOST_MAX];
    int port;

    if (!is_static && strcmp(m->backend, backend_c10d) != 0) /* others have their own idea of what an endpoint is */
        return 0;
    if (mu_rdzv_endpoint_parse(m->endpoint, is_static ? -1 : MU_RUN_C10D_PORT, host, &port, &error) < 0)
        return bad_value(m, &error);
    if (is_static && port < 0)
        return mu_run_problem(m->problem, MU_RUN_VALUE,
                              "port is missing in endpoint: %s; give it, or use --master-addr and --master-port",
                              m->endpoint);
    if (is_static && (rank < 0 || rank >= m->config->nodes_max))
        return mu_run_problem(m->problem, MU_RUN_VALUE,
                              "--node-rank=%" PRId64 ": it must be 0 or above and below the %" PRId64 " nodes", rank,
                              m->config->nodes_max);
    return 0;
}

/* ---- What stock asserts last ---- */

static int check_group(struct maker *m)
{
    double interval = m->options->monitor_interval.value;

    if (m->config->nproc < 1)
        return mu_run_problem(m->problem, MU_RUN_ASSERTION, "--nproc-per-node=%s: it must be above 0",
                              m->options->nproc_per_node);
    if (m->config->nproc > MU_NPROC_MAX)
        return mu_run_problem(m->problem, MU_RUN_VALUE, "--nproc-per-node=%s: more than %d are not supported",
                              m->options->nproc_per_node, MU_NPROC_MAX);
    if (!(interval > 0))
        return mu_run_problem(m->problem, MU_RUN_ASSERTION, "--monitor-interval=%g: it must be above 0", interval);
    m->config->monitor_interval_s = interval;
    m->config->role = m->options->role;
    return 0;
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The entries of a comma list, trimmed, in one block of memory. */
static char **split(const char *list, size_t *ret_count)
{
    size_t count = 1, i = 0;
    char **items, *at;

    for (const char *c = list; *c != '\0'; c++)
        count += *c == ',';
    items = malloc(count * sizeof *items + strlen(list) + 1);
    if (items == NULL)
        return NULL;
    at = strcpy((char *)(items + count), list);
    for (; i < count; i++) {
        char *item = at, *end = at + strcspn(at, ",");

        at = end + 1;
        while (is_blank(*item))
            item++;
        while (end > item && is_blank(end[-1]))
            end--;
        *end = '\0';
        items[i] = item;
    }
    *ret_count = count;
    return items;
}

static int take_devices(struct maker *m)
{
    const char *hip = variable(m, "HIP_VISIBLE_DEVICES");
    bool is_hip = unless_empty(hip) != NULL; /* to ROCm it comes before CUDA_VISIBLE_DEVICES, unless it is empty */
    const char *list = is_hip ? hip : variable(m, "CUDA_VISIBLE_DEVICES");
    size_t count = 0;

    m->config->virtual_local_rank = m->options->virtual_local_rank;
    if (!m->options->virtual_local_rank || list == NULL)
        return 0;
    m->config->visible_devices_of_hip = is_hip;
    m->config->visible_devices = split(list, &count);
    if (m->config->visible_devices == NULL)
        return mu_run_no_memory(m->problem);
    if (count < (size_t)m->config->nproc)
        return mu_run_problem(m->problem, MU_RUN_VALUE,
                              "--virtual-local-rank: local_rank %zu exceeds available GPUs in %s_VISIBLE_DEVICES=%s",
                              count, is_hip ? "HIP" : "CUDA", list);
    return 0;
}

/* Whether it names a sink of lines. */
static bool is_sink(const char *name)
{
    static const char file[] = "file:";

    return strcmp(name, "null") == 0 || strcmp(name, "console") == 0 ||
           (strncmp(name, file, sizeof file - 1) == 0 && name[sizeof file - 1] != '\0');
}

static int take_event_handler(struct maker *m)
{
    const char *name = m->options->event_log_handler;

    if (!is_sink(name) && strcmp(name, "dynamic_rendezvous") != 0)
        return mu_run_problem(m->problem, MU_RUN_KEY,
                              "--event-log-handler: unknown name '%s'; expected null, console or file:PATH", name);
    m->config->event_log_handler = name;
    return 0;
}

static int take_metrics(struct maker *m)
{
    const char *name = m->options->metrics;

    if (!is_sink(name))
        return mu_run_problem(m->problem, MU_RUN_VALUE,
                              "--metrics: unknown name '%s'; expected null, console or file:PATH", name);
    m->config->metrics = name;
    return 0;
}

static int note_binding(struct maker *m, const struct mu_run_binding_news *news)
{
    struct mu_text text = { 0 };
    int rc = 0;

    for (int64_t i = 0; i < m->config->nproc; i++) {
        mu_text_add(&text, "%slocal rank %" PRId64 " is bound to ", i == 0 ? "" : "\n", i);
        mu_run_bound_text(&text, &m->config->bound[i]);
    }
    if (text.failed != 0)
        rc = mu_run_no_memory(m->problem);
    if (rc == 0)
        rc = note(m, MUSTER_LOG_INFO, "%.*s", (int)text.buf.len, text.buf.data);
    mu_text_done(&text);
    if (rc == 0 && news->node_unsaid)
        rc = note(m, MUSTER_LOG_WARNING,
                  "--numa-binding=%s: the firmware does not say on which NUMA node a GPU is (its numa_node is -1), and "
                  "there are several nodes; taking node 0, as PyTorch does",
                  m->options->numa_binding);
    if (rc == 0 && news->memory_errnum != 0)
        rc = note(m, MUSTER_LOG_WARNING,
                  "--numa-binding=%s: workers are bound to their CPUs, but keep the memory policy of the launcher: "
                  "setting one is not possible here (%s)",
                  m->options->numa_binding, strerror(news->memory_errnum));
    return rc;
}

static int take_binding(struct maker *m)
{
    struct mu_run_machine machine = { .root = m->host->root, .variables = device_variables(m) };
    struct mu_run_binding_news news;
    struct muster_error error = { 0 };
    enum mu_numa_mode mode;
    struct mu_cpus allowed;

    if (m->options->numa_binding == NULL)
        return 0;
    if (!mu_numa_mode_parse(m->options->numa_binding, &mode)) /* the options know the names, too */
        return mu_run_problem(m->problem, MU_RUN_VALUE, "--numa-binding=%s: unknown mode", m->options->numa_binding);
    if (m->config->visible_devices_of_hip) /* each worker is given one of these, whatever the vendor is */
        machine.variables.cuda = machine.variables.hip;
    machine.allowed = m->host->allowed != NULL ? m->host->allowed : &allowed;
    if (m->host->allowed == NULL && !mu_nproc_allowed(&allowed))
        return mu_run_problem(m->problem, MU_RUN_RUNTIME,
                              "--numa-binding=%s: the kernel does not say which CPUs this process may use",
                              m->options->numa_binding);
    if (mu_run_bindings(&machine, mode, (size_t)m->config->nproc, &m->config->bound, &news, &error) < 0)
        return error.code == MUSTER_ENOMEM ? mu_run_no_memory(m->problem)
                                           : mu_run_problem(m->problem, MU_RUN_RUNTIME, "--numa-binding=%s: %s",
                                                            m->options->numa_binding, error.text);
    m->config->numa_binding = m->options->numa_binding;
    return note_binding(m, &news);
}

static int take_command(struct maker *m)
{
    return mu_run_command_init(&m->config->command, m->options, m->host->is_launch, m->host->environ, m->problem);
}

/* ---- Variables that are only passed on ---- */

/* As Python chooses it. */
static const char *find_tmp_dir(const struct maker *m)
{
    static const char *const names[] = { "TMPDIR", "TEMP", "TMP" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *dir = variable(m, names[i]);

        if (unless_empty(dir) != NULL && access(dir, W_OK | X_OK) == 0)
            return dir;
    }
    return "/tmp";
}

/* --bind includes loopback; the variable does not, for it is about this server alone. */
static int take_health_hosts(struct maker *m)
{
    struct mu_bind bind = { 0 };

    m->config->health_hosts = unless_empty(variable(m, "TORCHELASTIC_HEALTH_CHECK_HOST"));
    if (m->config->health_hosts != NULL)
        return 0;
    (void)mu_bind_from_params(m->config->params, &bind, NULL); /* it was checked before */
    m->config->health_hosts = bind.hosts;
    if (bind.hosts == NULL || strcmp(bind.hosts, "any") == 0)
        return 0;
    m->config->health_hosts =
        mu_arena_join(&m->config->texts, mu_slice_str(bind.hosts), mu_slice_str(",localhost")).data;
    return m->config->health_hosts == NULL ? mu_run_no_memory(m->problem) : 0;
}

static int take_health_port(struct maker *m)
{
    const char *text = variable(m, "TORCHELASTIC_HEALTH_CHECK_PORT");
    int64_t port;

    m->config->health_port = -1;
    if (text == NULL)
        return 0;
    if (!mu_number_int(text, &port) || port < 0 || port > UINT16_MAX)
        return note(m, MUSTER_LOG_INFO, "TORCHELASTIC_HEALTH_CHECK_PORT=%s is not a port; the health check is off",
                    text);
    m->config->health_port = (int)port;
    return take_health_hosts(m);
}

static int take_rest(struct maker *m)
{
    const char *prefix = unless_empty(m->options->log_line_prefix_template);
    struct mu_run_config *config = m->config;

    config->program = m->host->program;
    config->environ = m->host->environ;
    memcpy(config->backend_dirs, m->options->backend_dirs, sizeof config->backend_dirs);
    config->backend_dirs_count = m->options->backend_dirs_count;
    config->workers_identical = is_one(variable(m, "TORCH_ELASTIC_WORKER_IDENTICAL"));
    config->file_timer = is_one(variable(m, "TORCHELASTIC_ENABLE_FILE_TIMER"));
    config->rdzv_conf = m->options->rdzv_conf;
    config->log_dir = unless_empty(m->options->log_dir);
    config->tmp_dir = find_tmp_dir(m);
    config->prefix_template = prefix != NULL ? prefix : variable(m, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    config->error_file = unless_empty(variable(m, "TORCHELASTIC_ERROR_FILE"));
    config->timer_file = variable(m, "TORCHELASTIC_TIMER_FILE");
    return take_health_port(m);
}

/* ---- All of it ---- */

typedef int step(struct maker *m);

static step *const steps[] = {
    take_log_level,
    take_nodes,
    take_max_restarts,
    take_place,
    take_nproc,
    take_omp,
    check_conf,
    take_shown,
    check_logs_specs,
    take_redirects,
    take_shutdown_timeout,
    take_other_timeouts,
    take_signals,
    check_module,
    take_params,
    check_bind,
    take_master,
    check_endpoint,
    check_group,
    take_devices,
    take_event_handler,
    take_metrics,
    take_binding,
    take_command,
    take_rest,
};

int mu_run_config_new(const struct mu_run_options *options, const struct mu_run_host *host,
                      struct mu_run_config **ret_config, struct mu_run_problem *ret_problem)
{
    struct maker m = { .options = options, .host = host, .problem = ret_problem };
    int rc = 0;

    m.config = calloc(1, sizeof *m.config);
    if (m.config == NULL)
        return mu_run_no_memory(ret_problem);
    if (host->is_launch)
        rc = check_launch(&m);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && rc == 0; i++)
        rc = steps[i](&m);
    free(m.url_run_id);
    if (rc < 0)
        mu_run_config_free(m.config);
    else
        *ret_config = m.config;
    return rc;
}

void mu_run_config_free(struct mu_run_config *config)
{
    if (config == NULL)
        return;
    muster_rdzv_params_free(config->params);
    mu_run_command_done(&config->command);
    mu_filters_done(&config->stdout_filters);
    mu_filters_done(&config->stderr_filters);
    free(config->visible_devices);
    free(config->bound);
    mu_arena_done(&config->texts);
    free(config);
}
