/* `muster run`, also as a link named torchrun: from a command line to an exit code.
 *
 * The configuration is made first, by one process. Then there are two: the keeper, which is the one that the user sees and
 * never comes back here, and the agent, which runs a loop until on_end, says what there is to say, and ends. */
#include "agent/agent_uv.h"
#include "base/files.h"
#include "base/log.h"
#include "base/secret.h"
#include "cli/cli.h"
#include "cli/run_front.h"
#include "events/sinks.h"
#include "http/health_mhd.h"
#include "proc/die.h"
#include "proc/keeper.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define GATHER_SHOWN_MS 500 /* of waiting, before it is said what for */
#define CONSOLE_MS 5000     /* for what is still to be shown, in the end */

struct run {
    const char *program;
    const struct mu_run_config *config;
    uv_loop_t loop;
    struct mu_agent *agent;
    struct mu_logtree tree;
    struct mu_console *out, *err;
    char *timer_file;
    /* While nodes gather. */
    bool terminal, has_progress;
    bool had_round;      /* these come together again */
    int64_t said_joined; /* so many were in when it was last said how many are missing; -1: it was not */
    struct muster_rdzv_progress progress;
    struct mu_text names;
    uint64_t gather_ms, progress_ms;
    uv_timer_t second;
    struct mu_health *health;
    uv_async_t poked;
    bool has_poked;
    /* The end. */
    bool ended;
    struct mu_policy_outcome outcome;
    struct mu_buf report; /* PyTorch's, to be printed when the consoles are empty */
    char *final;          /* or one line that says why it ended; NULL: none, or no memory */
    int exit_code;
};

/* ---- Workers ---- */

static int prepare(void *ctx, const struct mu_agent_worker *worker, struct mu_spawn *ret_spec,
                   struct muster_error *reterr)
{
    const struct run *run = ctx;
    char **argv = mu_run_command_argv(&run->config->command, worker->local_rank);
    char **envp = mu_run_environment(run->config, worker);

    if (argv == NULL || envp == NULL) {
        free(argv);
        free(envp);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the command of worker %lld",
                       (long long)worker->local_rank);
    }
    ret_spec->argv = (const char *const *)argv;
    ret_spec->envp = (const char *const *)envp;
    return 0;
}

static void release(void *ctx, struct mu_spawn *spec)
{
    (void)ctx;
    free((void *)spec->argv);
    free((void *)spec->envp);
}

/* ---- Health ---- */

static void on_poked(uv_async_t *async)
{
    mu_health_turned(((struct run *)async->data)->health);
}

static void poke(void *ctx)
{
    (void)uv_async_send(&((struct run *)ctx)->poked);
}

static void on_state(void *ctx, enum mu_group_state state)
{
    mu_health_set_state(((struct run *)ctx)->health, mu_group_state_name(state));
}

static void start_health(struct run *run)
{
    struct mu_health_config config = {
        .port = (uint16_t)run->config->health_port, .poke = poke, .ctx = run, .stuck_ms = run->config->health_timeout_ms
    };
    struct muster_error error = { 0 };

    if (run->config->health_port < 0)
        return;
    if (uv_async_init(&run->loop, &run->poked, on_poked) < 0)
        return;
    run->has_poked = true;
    run->poked.data = run;
    uv_unref((uv_handle_t *)&run->poked);
    if (mu_health_start(&config, &run->health, &error) < 0)
        mu_log(MUSTER_LOG_WARNING, "health check: %s; the job runs without", error.text);
}

/* ---- While nodes gather: a live line on a terminal; below the minimum, after a loss, a line in the log ---- */

static void hide_gathering(struct run *run)
{
    (void)uv_timer_stop(&run->second);
    run->has_progress = false;
    if (run->terminal)
        mu_cli_status("", 0);
}

static void describe_gathering(const struct run *run, struct mu_text *text)
{
    char endpoint[MU_SECRET_SHOWN_MAX];
    struct mu_join_about about = { .backend = muster_rdzv_params_backend(run->config->params),
                                   .endpoint =
                                       mu_secret_hide(mu_slice_str(muster_rdzv_params_endpoint(run->config->params)),
                                                      endpoint, sizeof endpoint),
                                   .run_id = muster_rdzv_params_run_id(run->config->params),
                                   .node = "" };
    struct mu_join_wait wait = { .progress = &run->progress,
                                 .names = run->names.buf.len > 0 ? run->names.buf.data : "",
                                 .waited_ms = (int64_t)(uv_now(&run->loop) - run->gather_ms),
                                 .progress_age_ms = (int64_t)(uv_now(&run->loop) - run->progress_ms),
                                 .down_ms = -1 };

    mu_join_text_status(text, &about, &wait);
}

static void on_second(uv_timer_t *timer)
{
    struct run *run = timer->data;
    bool news = run->progress.joined < run->progress.min_nodes && run->progress.joined != run->said_joined;
    struct mu_text text = { .failed = false };

    describe_gathering(run, &text);
    if (text.failed) {
        mu_text_done(&text);
        return;
    }
    if (news) {
        run->said_joined = run->progress.joined;
        mu_log(run->had_round ? MUSTER_LOG_WARNING : MUSTER_LOG_INFO, "%.*s", (int)text.buf.len, text.buf.data);
    }
    if (run->terminal)
        mu_cli_status(text.buf.data, text.buf.len);
    mu_text_done(&text);
}

static void on_rdzv(void *ctx, const struct muster_rdzv_event *event)
{
    struct run *run = ctx;

    if (event->type != MUSTER_RDZV_PROGRESS) {
        hide_gathering(run);
        run->had_round |= event->type == MUSTER_RDZV_JOINED;
        run->said_joined = event->type == MUSTER_RDZV_JOINED ? -1 : run->said_joined;
        return;
    }
    if (!run->has_progress)
        run->gather_ms = uv_now(&run->loop);
    run->has_progress = true;
    run->progress = *event->progress;
    run->progress_ms = uv_now(&run->loop);
    mu_text_done(&run->names);
    run->names = (struct mu_text){ .failed = false };
    mu_text_add_nodes(&run->names, event->nodes, event->nodes_count);
    (void)mu_buf_append(&run->names.buf, "", 1, SIZE_MAX);
    if (uv_is_active((uv_handle_t *)&run->second))
        return;
    /* A group that is there at once needs no line. On a terminal the time that is left is counted down. */
    (void)uv_timer_start(&run->second, on_second, GATHER_SHOWN_MS, run->terminal ? 1000 : 0);
}

/* ---- How it ended ---- */

/* What the launcher leaves at its own TORCHELASTIC_ERROR_FILE. */
static void write_error_file(const struct run *run, const struct mu_agent_result *result, const char *kind,
                             const char *text)
{
    const char *path = run->config->error_file;
    struct mu_buf bytes = { 0 };
    struct muster_error error = { 0 };
    const struct mu_failure *first =
        result->count > 0 ? &result->failures[mu_failure_first(result->failures, result->count)] : NULL;
    bool replaced = false;
    int rc = 0;

    if (kind == NULL && (first == NULL || !first->error->present))
        return;
    if (path == NULL) {
        if (kind == NULL) {
            char line[1024];

            mu_say_no_copy(line, sizeof line, first->error_path);
            mu_log(MUSTER_LOG_DEBUG, "%s", line);
        }
        return;
    }
    rc = kind == NULL ? mu_errfile_write_copy(first->error, first->exit_code, &bytes)
                      : mu_errfile_write_own(kind, text, (int64_t)time(NULL), &bytes);
    if (rc == 0)
        rc = mu_errfile_save(path, mu_buf_slice(&bytes), &replaced, &error);
    if (rc < 0)
        mu_log(MUSTER_LOG_ERROR, "error file '%s': %s", path, error.text);
    else if (replaced)
        mu_log(MUSTER_LOG_WARNING, "error file '%s' was there already and is replaced", path);
    mu_buf_done(&bytes);
}

/* One line: what went wrong, after our name and what else comes first. */
static void say_error(struct run *run, const char *first, const struct muster_error *error)
{
    assert(run->final == NULL);
    if (asprintf(&run->final, "%s: %s: %s", run->program, first, error->text) < 0)
        run->final = NULL;
    else
        mu_log_make_plain(run->final);
}

static void tell_failure(struct run *run, const struct mu_agent_result *result)
{
    char host[256] = "localhost";
    struct mu_report report = { .job = run->config->command.job,
                                .host = host,
                                .signal_names = true,
                                .failures = result->failures,
                                .count = result->count };

    (void)gethostname(host, sizeof host - 1);
    if (result->count == 0) { /* the failure was another node's */
        say_error(run, "the job has failed", &result->outcome->error);
        return;
    }
    (void)mu_report_write(&report, &run->report);
    write_error_file(run, result, NULL, NULL);
}

static void tell_error(struct run *run, const struct mu_agent_result *result)
{
    const struct muster_error *error = &result->outcome->error;
    const char *kind = mu_run_error_kind(error);

    say_error(run, kind, error);
    write_error_file(run, result, kind, error->text);
}

static void tell_signal(struct run *run, const struct mu_agent_result *result)
{
    pid_t pid = mu_guard_keeper(); /* which the user knows, and has signalled */
    char line[256], text[128];

    mu_say_ended_by_signal(line, sizeof line, pid, result->outcome->signal);
    run->final = strdup(line);
    (void)snprintf(text, sizeof text, "Process %d got signal: %d", (int)pid, result->outcome->signal);
    write_error_file(run, result, "SignalException", text);
}

static void on_console_closed(struct mu_console *console, void *ctx)
{
    (void)console;
    (void)ctx;
}

static void on_agent_freed(void *ctx)
{
    struct run *run = ctx;

    mu_health_stop(run->health);
    uv_close((uv_handle_t *)&run->second, NULL);
    mu_text_done(&run->names);
    if (run->has_poked)
        uv_close((uv_handle_t *)&run->poked, NULL);
    mu_console_close(run->out, CONSOLE_MS, on_console_closed, run);
    mu_console_close(run->err, CONSOLE_MS, on_console_closed, run);
}

static void on_end(void *ctx, const struct mu_agent_result *result)
{
    struct run *run = ctx;

    hide_gathering(run);
    run->ended = true;
    run->outcome = *result->outcome;
    run->exit_code = result->outcome->rc;
    switch (result->outcome->kind) {
    case MU_POLICY_OUTCOME_WORKERS_FAILED:
        tell_failure(run, result);
        break;
    case MU_POLICY_OUTCOME_ERROR:
    case MU_POLICY_OUTCOME_KEEPER_GONE:
        tell_error(run, result);
        break;
    case MU_POLICY_OUTCOME_SIGNALED:
        tell_signal(run, result);
        break;
    case MU_POLICY_OUTCOME_NONE:
    case MU_POLICY_OUTCOME_SUCCEEDED:
    case MU_POLICY_OUTCOME_GRACEFUL:
    case MU_POLICY_OUTCOME_DIE:
        break;
    }
    mu_agent_free(run->agent, on_agent_freed, run);
}

/* ---- The agent's process ---- */

static int make_timer_file(struct run *run)
{
    unsigned char id[16];

    if (!run->config->file_timer)
        return 0;
    if (run->config->timer_file != NULL) {
        run->timer_file = strdup(run->config->timer_file);
    } else {
        if (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id)
            return -1;
        id[6] = (unsigned char)((id[6] & 0x0f) | 0x40);
        id[8] = (unsigned char)((id[8] & 0x3f) | 0x80);
        if (asprintf(&run->timer_file,
                     "%s/watchdog_timer_%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                     run->config->tmp_dir != NULL ? run->config->tmp_dir : "/tmp", id[0], id[1], id[2], id[3], id[4],
                     id[5], id[6], id[7], id[8], id[9], id[10], id[11], id[12], id[13], id[14], id[15]) < 0)
            run->timer_file = NULL;
    }
    return run->timer_file != NULL ? 0 : -1;
}

static int open_output(struct run *run, struct muster_error *reterr)
{
    const struct mu_run_config *config = run->config;
    struct mu_logtree_config tree = { .log_dir = config->log_dir,
                                      .tmp_dir = config->tmp_dir,
                                      .run_id = muster_rdzv_params_run_id(config->params) };
    struct mu_console_config out = { .fd = STDOUT_FILENO, .name = "standard output" };
    struct mu_console_config err = { .fd = STDERR_FILENO, .name = "standard error" };
    int rc = 0;

    if (getrandom(&tree.seed, sizeof tree.seed, 0) < 0)
        tree.seed = (uint64_t)getpid();
    rc = mu_logtree_open(&run->tree, &tree, reterr);
    if (rc == 0)
        rc = mu_console_start(&run->loop, &out, &run->out, reterr);
    if (rc == 0)
        rc = mu_console_start(&run->loop, &err, &run->err, reterr);
    return rc;
}

static int start_agent(struct run *run, const struct mu_startup *startup, int keeper_fd, struct muster_error *reterr)
{
    const struct mu_run_config *config = run->config;
    struct mu_agent_config agent = {
        .registry = muster_rdzv_registry_default(),
        .params = config->params,
        .role = config->role,
        .entry_point = config->command.entry_point,
        .local_world_size = config->nproc,
        .max_restarts = config->max_restarts,
        .grace_ms = (uint64_t)config->shutdown_timeout_ms,
        .barrier_ms = config->exit_barrier_timeout_ms < 0 ? UINT64_MAX : (uint64_t)config->exit_barrier_timeout_ms,
        .hang_ms = (uint64_t)config->uninterruptible_timeout_ms,
        .identical = config->workers_identical,
        .signals = &config->signals,
        .startup = startup,
        .keeper_fd = keeper_fd,
        .tree = &run->tree,
        .logs = { .prefix_template = config->prefix_template,
                  .redirects = &config->redirects,
                  .tees = &config->tee,
                  .shown = &config->shown,
                  .filters_out = &config->stdout_filters,
                  .filters_err = &config->stderr_filters,
                  .out = run->out,
                  .err = run->err },
        .timer_file = run->timer_file,
        .prepare = prepare,
        .release = release,
        .on_state = on_state,
        .on_rdzv = on_rdzv,
        .on_end = on_end,
        .ctx = run,
    };

    return mu_agent_start(&run->loop, &agent, &run->agent, reterr);
}

/* Before anything is opened: what lacks descriptors later fails in ways that nobody understands. */
static int check_files(const struct mu_run_config *config, struct muster_error *reterr)
{
    const struct mu_logs_config logs = { .redirects = &config->redirects, .tees = &config->tee };

    mu_files_raise();
    return mu_agent_check_files(config->nproc, &logs, reterr);
}

static int fail(const struct run *run, struct muster_error *error)
{
    mu_log_make_plain(error->text);
    (void)fprintf(stderr, "%s: %s: %s\n", run->program, mu_run_error_kind(error), error->text);
    return MU_EXIT_ERROR;
}

static void end_as(const struct run *run)
{
    if (run->outcome.kind != MU_POLICY_OUTCOME_DIE)
        return;
    mu_die_of(run->outcome.signal);
}

static int run_agent(struct run *run, const struct mu_startup *startup, int keeper_fd)
{
    struct muster_error error = { 0 };
    int rc = 0;

    if (uv_loop_init(&run->loop) < 0 || make_timer_file(run) < 0)
        return mu_cli_fail(run->program, "no memory");
    (void)uv_timer_init(&run->loop, &run->second);
    run->second.data = run;
    run->terminal = !run->config->quiet && isatty(STDERR_FILENO) == 1;
    rc = open_output(run, &error);
    if (rc == 0) {
        start_health(run);
        rc = start_agent(run, startup, keeper_fd, &error);
    }
    mu_signals_unblock_all(); /* the handlers are there */
    if (rc < 0)
        _exit(fail(run, &error)); /* the process ends, and all that the loop still has with it */
    (void)uv_run(&run->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&run->loop);
    if (run->report.len > 0)
        (void)fwrite(run->report.data, 1, run->report.len, stderr);
    if (run->final != NULL)
        mu_cli_final(run->final);
    mu_buf_done(&run->report);
    free(run->final);
    free(run->timer_file);
    end_as(run);
    return run->exit_code;
}

int mu_cmd_run(const char *program, bool is_launch, const struct mu_startup *startup, char **argv)
{
    struct run *run = calloc(1, sizeof *run);
    struct mu_run_config *config = NULL;
    struct mu_event_sink *sink = NULL;
    struct muster_error error = { 0 };
    int keeper_fd = -1, rc = MU_EXIT_ERROR;

    if (run == NULL)
        return mu_cli_fail(program, "no memory");
    run->program = program;
    run->said_joined = -1;
    rc = mu_run_front(program, is_launch, argv, &config);
    if (config == NULL) {
        free(run);
        return rc;
    }
    run->config = config;
    mu_signals_reset(&config->signals, startup);
    if (check_files(config, &error) < 0 ||
        mu_cli_load_backends(muster_rdzv_params_backend(config->params), config->backend_dirs,
                             config->backend_dirs_count, &error) < 0 ||
        mu_event_sink_open(config->event_log_handler, &sink, &error) < 0 ||
        mu_keeper_run(startup, program, &keeper_fd, &error) < 0)
        rc = fail(run, &error);
    else
        rc = run_agent(run, startup, keeper_fd);
    mu_event_sink_close(sink);
    mu_run_config_free(config);
    free(run);
    return rc;
}
