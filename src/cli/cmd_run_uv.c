/* `muster run`, also as a link named torchrun: from a command line to an exit code.
 *
 * The configuration is made first, by one process. Then there are two: the keeper, which is the process that the user
 * sees and never returns here, and the agent, which runs a loop until on_end, reports, and ends. */
#include "agent/agent_uv.h"
#include "base/files.h"
#include "base/filethread.h"
#include "base/log.h"
#include "base/random.h"
#include "base/secret.h"
#include "cli/cli.h"
#include "cli/run_front.h"
#include "cli/uuid.h"
#include "cli/waiting.h"
#include "events/sinks.h"
#include "http/health_mhd.h"
#include "kv/later_uv.h"
#include "proc/keeper.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LOOK_FIRST_MS 500  /* of waiting, before a terminal shows what for */
#define LOOK_MS 1000       /* between two looks at the wait, for a terminal */
#define CONSOLE_MS 5000    /* for what is still to be shown, in the end */
#define LOG_DIR_MS 10000   /* for the log directory, in the beginning */
#define ERROR_FILE_MS 3000 /* for our own error file, in the end */

struct run {
    const char *program;
    const struct mu_run_config *config;
    uv_loop_t loop;
    struct mu_agent *agent;
    struct mu_logtree tree;
    struct mu_console *out, *err;
    char *timer_file;
    /* While this node waits for the others. */
    bool terminal;
    bool had_round; /* it has been in a group: a wait means that the job stands still */
    struct mu_waiting waiting;
    uv_timer_t look;
    struct mu_health *health;
    uv_async_t poked;
    bool has_poked;
    /* The end. */
    bool ended;
    struct mu_policy_outcome outcome;
    struct mu_buf error_bytes; /* for our own error file; empty: none */
    struct mu_buf report;      /* PyTorch's, to be printed when the consoles are empty */
    char *final;               /* or one line that says why it ended; NULL: none, or no memory */
    int exit_code;
};

/* ---- Workers ---- */

static int prepare(void *ctx, const struct mu_agent_worker *worker, struct mu_spawn *ret_spec,
                   struct muster_error *reterr)
{
    const struct run *run = ctx;
    char **argv = mu_run_command_argv(&run->config->command, worker->local_rank);
    char **envp = mu_run_environment(run->config, worker, false);

    if (argv == NULL || envp == NULL) {
        free(argv);
        free(envp);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the command of worker %lld",
                       (long long)worker->local_rank);
    }
    ret_spec->argv = (const char *const *)argv;
    ret_spec->envp = (const char *const *)envp;
    if (run->config->bound != NULL)
        ret_spec->binding = &run->config->bound[worker->local_rank].binding;
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
    struct mu_health_config config = { .hosts = run->config->health_hosts,
                                       .port = (uint16_t)run->config->health_port,
                                       .poke = poke,
                                       .ctx = run,
                                       .stuck_ms = run->config->health_timeout_ms };
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

/* ---- While this node waits: a live line on a terminal, lines in the log elsewhere ---- */

static void end_wait(struct run *run)
{
    (void)uv_timer_stop(&run->look);
    mu_waiting_end(&run->waiting);
    if (run->terminal)
        mu_cli_status("", 0);
}

static void on_look(uv_timer_t *timer);

/* Derived anew after every event. On a terminal the time that is left is counted down. */
static void arm_look(struct run *run, uint64_t terminal_ms)
{
    if (run->terminal && run->waiting.state != MU_WAITING_OFF)
        (void)uv_timer_start(&run->look, on_look, terminal_ms, 0);
    else
        mu_timer_until(&run->look, mu_waiting_due_ms(&run->waiting), on_look);
}

/* Changes are logged with -v only, except one: too few nodes are left of a group that ran. */
static enum muster_log_level level_of(const struct run *run, bool scheduled)
{
    const struct muster_rdzv_progress *progress = &run->waiting.progress;

    if (scheduled)
        return MUSTER_LOG_NOTICE;
    return run->had_round && progress->joined < progress->min_nodes ? MUSTER_LOG_WARNING : MUSTER_LOG_INFO;
}

/* While the back end is away, the agent says so itself. */
static void tell_wait(struct run *run, const struct mu_join_about *about)
{
    struct mu_text text = { 0 };
    bool scheduled = false, quiet = run->waiting.state == MU_WAITING_DOWN && !run->terminal;

    if (run->terminal)
        mu_waiting_status(&run->waiting, about, uv_now(&run->loop), &text);
    else if (!mu_waiting_tell(&run->waiting, about, uv_now(&run->loop), &text, &scheduled))
        quiet = true;
    if (text.failed == 0 && !quiet && run->terminal)
        mu_cli_status(text.buf.data, text.buf.len);
    else if (text.failed == 0 && !quiet)
        mu_log(level_of(run, scheduled), "%.*s", (int)text.buf.len, text.buf.data);
    mu_text_done(&text);
}

static void on_look(uv_timer_t *timer)
{
    struct run *run = timer->data;
    const struct muster_rdzv_params *params = run->config->params;
    char endpoint[MU_SECRET_SHOWN_MAX];
    struct mu_join_about about = {
        .backend = muster_rdzv_params_backend(params),
        .endpoint = mu_secret_hide(mu_slice_str(muster_rdzv_params_endpoint(params)), endpoint, sizeof endpoint),
        .run_id = muster_rdzv_params_run_id(params),
        .node = "",
    };

    tell_wait(run, &about);
    arm_look(run, LOOK_MS);
}

static void on_join(void *ctx)
{
    struct run *run = ctx;

    mu_waiting_begin(&run->waiting, uv_now(&run->loop));
    arm_look(run, LOOK_FIRST_MS);
}

static void on_rdzv(void *ctx, const struct muster_rdzv_event *event)
{
    struct run *run = ctx;

    if (event->type == MUSTER_RDZV_JOINED || event->type == MUSTER_RDZV_LEFT ||
        (event->type == MUSTER_RDZV_FAILED && event->request == MUSTER_RDZV_REQUEST_JOIN)) {
        run->had_round |= event->type == MUSTER_RDZV_JOINED;
        end_wait(run);
        return;
    }
    mu_waiting_take(&run->waiting, event, uv_now(&run->loop));
    if (!run->terminal)
        arm_look(run, 0);
}

/* ---- How it ended ---- */

/* What the launcher leaves at its own TORCHELASTIC_ERROR_FILE; it is written when the loop has ended. */
static void write_error_file(struct run *run, const struct mu_agent_result *result, const char *kind, const char *text)
{
    const char *path = run->config->error_file;
    const struct mu_failure *first =
        result->count > 0 ? &result->failures[mu_failure_first(result->failures, result->count)] : NULL;
    int rc = 0;

    if (kind == NULL && (first == NULL || !first->error->present))
        return;
    if (path == NULL) {
        if (kind == NULL)
            mu_log(MUSTER_LOG_DEBUG, MU_SAY_NO_COPY, first->error_path);
        return;
    }
    rc = kind == NULL ? mu_errfile_write_copy(first->error, first->exit_code, &run->error_bytes)
                      : mu_errfile_write_own(kind, text, (int64_t)time(NULL), &run->error_bytes);
    if (rc < 0) {
        mu_log(MUSTER_LOG_ERROR, "error file '%s': %s", path, muster_error_text(rc));
        mu_buf_done(&run->error_bytes);
    }
}

struct saving {
    struct mu_file_job job;
    char *path;
    struct mu_buf bytes;
    bool replaced;
    int rc;
    struct muster_error error;
};

static void run_saving(struct mu_file_job *job)
{
    struct saving *saving = MU_LIST_ITEM(job, struct saving, job);

    saving->rc = mu_errfile_save(saving->path, mu_buf_slice(&saving->bytes), &saving->replaced, &saving->error);
}

static void free_saving(struct mu_file_job *job)
{
    struct saving *saving = MU_LIST_ITEM(job, struct saving, job);

    mu_buf_done(&saving->bytes);
    free(saving->path);
    free(saving);
}

static void on_saved(struct mu_file_job *job)
{
    const struct saving *saving = MU_LIST_ITEM(job, struct saving, job);

    if (saving->rc < 0)
        mu_log(MUSTER_LOG_ERROR, "error file '%s': %s", saving->path, saving->error.text);
    else if (saving->replaced)
        mu_log(MUSTER_LOG_WARNING, "error file '%s' was there already and is replaced", saving->path);
    free_saving(job);
}

/* When the loop has ended. The file may be on a file system that hangs. */
static void save_error_file(struct run *run)
{
    struct mu_filethread_config config = { .wake = NULL };
    struct mu_filethread *thread = mu_filethread_new(&config);
    struct saving *saving = calloc(1, sizeof *saving);
    char *path = strdup(run->config->error_file);

    if (thread == NULL || saving == NULL || path == NULL) {
        mu_log(MUSTER_LOG_ERROR, "error file '%s': no memory", run->config->error_file);
        free(saving);
        free(path);
        (void)mu_filethread_free(thread);
        return;
    }
    saving->job = (struct mu_file_job){ .run = run_saving, .done = on_saved, .drop = free_saving };
    saving->path = path;
    saving->bytes = run->error_bytes;
    run->error_bytes = (struct mu_buf){ 0 };
    mu_filethread_submit(thread, &saving->job);
    if (!mu_filethread_wait(thread, ERROR_FILE_MS))
        mu_log(MUSTER_LOG_ERROR, "error file '%s' could not be written within %d s: the file system does not answer",
               run->config->error_file, ERROR_FILE_MS / 1000);
    mu_filethread_turn(thread);
    (void)mu_filethread_free(thread);
}

/* One line: what went wrong, with our name in front. */
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

static void on_agent_freed(void *ctx)
{
    struct run *run = ctx;

    mu_health_stop(run->health);
    uv_close((uv_handle_t *)&run->look, NULL);
    mu_waiting_done(&run->waiting);
    if (run->has_poked)
        uv_close((uv_handle_t *)&run->poked, NULL);
    mu_console_close(run->out, CONSOLE_MS, NULL, NULL);
    mu_console_close(run->err, CONSOLE_MS, NULL, NULL);
}

static void on_end(void *ctx, const struct mu_agent_result *result)
{
    struct run *run = ctx;

    end_wait(run);
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
    const struct mu_run_config *config = run->config;
    struct mu_rng rng = mu_rng_seeded(mu_fresh_seed());
    char id[MU_UUID_BYTES];

    if (!config->file_timer)
        return 0;
    mu_uuid_text(&rng, id);
    if (config->timer_file != NULL)
        run->timer_file = strdup(config->timer_file);
    else if (asprintf(&run->timer_file, "%s/watchdog_timer_%s", config->tmp_dir, id) < 0)
        run->timer_file = NULL;
    return run->timer_file != NULL ? 0 : -1;
}

/* The log directory, which may be on a file system that hangs. */
struct opening {
    struct mu_file_job job;
    struct mu_logtree_config config; /* the texts live as long as the process */
    struct mu_logtree tree;
    struct mu_logtree *ret_tree;
    int rc, *ret_rc;
    struct muster_error error, *reterr;
};

static void run_opening(struct mu_file_job *job)
{
    struct opening *opening = MU_LIST_ITEM(job, struct opening, job);

    opening->rc = mu_logtree_open(&opening->tree, &opening->config, &opening->error);
}

static void free_opening(struct mu_file_job *job)
{
    free(MU_LIST_ITEM(job, struct opening, job));
}

static void on_opened(struct mu_file_job *job)
{
    struct opening *opening = MU_LIST_ITEM(job, struct opening, job);

    *opening->ret_tree = opening->tree;
    *opening->ret_rc = opening->rc;
    if (opening->rc < 0)
        *opening->reterr = opening->error;
    free_opening(job);
}

/* A temporary directory of ours is trusted to answer. If one that the user has named does not, we go on without it. */
static int open_tree(struct run *run, const struct mu_logtree_config *config, struct muster_error *reterr)
{
    const struct mu_filethread_config thread_config = { .at_once = config->log_dir == NULL };
    const struct mu_logtree_config none = { .log_dir = "/dev/null", .run_id = config->run_id };
    struct mu_filethread *thread = mu_filethread_new(&thread_config);
    struct opening *opening = calloc(1, sizeof *opening);
    int rc = 1; /* it has not answered */

    if (thread == NULL || opening == NULL) {
        free(opening);
        (void)mu_filethread_free(thread);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the log directory");
    }
    opening->job = (struct mu_file_job){ .run = run_opening, .done = on_opened, .drop = free_opening };
    opening->config = *config;
    opening->ret_tree = &run->tree;
    opening->ret_rc = &rc;
    opening->reterr = reterr;
    mu_filethread_submit(thread, &opening->job);
    (void)mu_filethread_wait(thread, LOG_DIR_MS);
    mu_filethread_turn(thread);
    (void)mu_filethread_free(thread);
    if (rc <= 0)
        return rc;
    mu_log(MUSTER_LOG_WARNING, "log directory '%s' does not answer; workers go on without log files and error files",
           config->log_dir);
    return mu_logtree_open(&run->tree, &none, reterr);
}

static int open_output(struct run *run, struct muster_error *reterr)
{
    const struct mu_run_config *config = run->config;
    struct mu_logtree_config tree = { .log_dir = config->log_dir,
                                      .tmp_dir = config->tmp_dir,
                                      .run_id = muster_rdzv_params_run_id(config->params),
                                      .seed = mu_fresh_seed() };
    struct mu_console_config out = { .fd = STDOUT_FILENO, .name = "standard output" };
    struct mu_console_config err = { .fd = STDERR_FILENO, .name = "standard error" };
    int rc = open_tree(run, &tree, reterr);

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
        .start_method = config->command.run_path ? "spawn" : NULL,
        .event_log_handler = config->event_log_handler,
        .master = config->master,
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
        .on_join = on_join,
        .on_rdzv = on_rdzv,
        .on_end = on_end,
        .ctx = run,
    };

    return mu_agent_start(&run->loop, &agent, &run->agent, reterr);
}

/* Before anything is opened, for a lack of descriptors fails later in ways that are hard to understand. */
static int check_files(const struct mu_run_config *config, struct muster_error *reterr)
{
    const struct mu_logs_config logs = { .redirects = &config->redirects, .tees = &config->tee };

    mu_files_raise();
    return mu_agent_check_files(config->nproc, &logs, reterr);
}

/* One node of many may lack descriptors, or a directory: the line names the node. */
static int fail(const struct run *run, struct muster_error *error)
{
    char text[sizeof error->text + 256];

    mu_log_make_plain(error->text);
    (void)snprintf(text, sizeof text, "%s: %s: %s", run->program, mu_run_error_kind(error), error->text);
    mu_cli_final(text);
    return MU_EXIT_ERROR;
}

static int run_agent(struct run *run, const struct mu_startup *startup, int keeper_fd)
{
    struct muster_error error = { 0 };
    int rc = 0;

    if (uv_loop_init(&run->loop) < 0 || make_timer_file(run) < 0)
        return mu_cli_fail(run->program, "no memory");
    (void)uv_timer_init(&run->loop, &run->look);
    run->look.data = run;
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
    if (run->error_bytes.len > 0)
        save_error_file(run);
    if (run->report.len > 0)
        (void)fwrite(run->report.data, 1, run->report.len, stderr);
    if (run->final != NULL)
        mu_cli_final(run->final);
    mu_buf_done(&run->report);
    free(run->final);
    free(run->timer_file);
    return run->exit_code;
}

int mu_cmd_run(const char *program, bool is_launch, const struct mu_startup *startup, char **argv)
{
    struct run *run = calloc(1, sizeof *run);
    struct mu_run_config *config = NULL;
    struct mu_sink *events = NULL, *metrics = NULL;
    struct muster_error error = { 0 };
    int keeper_fd = -1, rc = MU_EXIT_ERROR;

    if (run == NULL)
        return mu_cli_fail(program, "no memory");
    run->program = program;
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
        mu_event_sink_open(config->event_log_handler, &events, &error) < 0 ||
        mu_metric_sink_open(config->metrics, &metrics, &error) < 0 ||
        mu_keeper_run(startup, program, &keeper_fd, &error) < 0)
        rc = fail(run, &error);
    else
        rc = run_agent(run, startup, keeper_fd);
    mu_sink_close(events);
    mu_sink_close(metrics);
    if (run->outcome.kind == MU_POLICY_OUTCOME_DIE)
        mu_die_of(run->outcome.signal);
    if (mu_filethread_hangs()) { /* and exit() might wait for it */
        (void)fflush(NULL);
        _exit(rc);
    }
    mu_run_config_free(config);
    free(run);
    return rc;
}
