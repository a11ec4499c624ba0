/* `muster join`'s loop: the handler, signals, time and output become events of the machine in join.c, whose effects are
 * carried out here.
 *
 * Happy path: the handler is started and asked to join; what it tells makes lines; it is asked to leave; when the
 * machine is over, the handler is freed, the last bytes of stdout are written, and everything is closed. Failures: the
 * error code of a handler that does not start tells a mistake in the command line from a failure. A handler that does
 * not end in time is left behind. After a signal, so is output without a reader; after a second one, everything.
 *
 * Lines for stdout are written by a thread of libuv's: a reader that has stopped must not stop the heartbeats. */
#include "base/files.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/join.h"
#include "cli/log_line.h"
#include "cli/rdzv_options.h"
#include "kv/later_uv.h"
#include "proc/signals_uv.h"

#include <assert.h>
#include <stdio.h>
#include <unistd.h>

#define OUT_BYTES_MAX ((size_t)16 << 20) /* that nobody has read */
#define HANDLER_END_MS 1000
#define OUT_END_MS 2000 /* for the reader of stdout, after a signal */

static const char command[] = "muster join";
struct run {
    uv_loop_t loop;
    uv_timer_t timer;
    struct mu_watch *signals; /* NULL: not started */
    struct mu_join join;
    struct muster_handler *handler; /* NULL: not started, or freed */
    bool ending, closed;
    uv_work_t write;
    bool writing, unheard; /* a thread has `sending`; stdout takes nothing more */
    struct mu_buf pending, sending;
    int write_errno;
};

static void feed(struct run *run, struct mu_join_event event);

/* ---- Standard output ---- */

/* On a thread of the pool. */
static void write_sending(uv_work_t *work)
{
    struct run *run = work->data;

    run->write_errno = mu_files_write(STDOUT_FILENO, mu_buf_slice(&run->sending), true);
}

static void on_output_stuck(uv_timer_t *timer)
{
    (void)timer;
    mu_cli_final("muster join: cannot write to standard output: nobody reads it");
    _exit(MU_EXIT_ERROR);
}

static void close_when_done(struct run *run)
{
    if (!run->ending || run->handler != NULL || run->closed)
        return;
    if (run->writing) {
        if (run->join.signals.any && !uv_is_active((uv_handle_t *)&run->timer))
            (void)uv_timer_start(&run->timer, on_output_stuck, OUT_END_MS, 0);
        return;
    }
    run->closed = true;
    uv_close((uv_handle_t *)&run->timer, NULL);
    if (run->signals != NULL)
        mu_watch_close(run->signals, NULL, NULL);
}

static void send_pending(struct run *run);

static void on_written(uv_work_t *work, int status)
{
    struct run *run = work->data;

    (void)status;
    run->writing = false;
    run->sending.len = 0;
    if (run->write_errno != 0 && !run->unheard) {
        run->unheard = true;
        feed(run, (struct mu_join_event){ .type = MU_JOIN_UNHEARD, .text = strerror(run->write_errno) });
    }
    send_pending(run);
    close_when_done(run);
}

static void send_pending(struct run *run)
{
    struct mu_buf swap = run->sending;

    if (run->writing || run->unheard || run->pending.len == 0)
        return;
    run->sending = run->pending;
    run->pending = swap;
    run->write.data = run;
    run->writing = uv_queue_work(&run->loop, &run->write, write_sending, on_written) == 0;
    assert(run->writing); /* fails only without a function to call */
}

/* 0, or why the lines are lost. */
static int print(struct run *run, struct mu_slice lines)
{
    int rc;

    if (lines.len == 0 || run->unheard)
        return 0;
    rc = mu_buf_append(&run->pending, lines.data, lines.len, OUT_BYTES_MAX);
    if (rc == 0)
        send_pending(run);
    return rc;
}

/* ---- The end ---- */

static void on_handler_freed(void *ctx)
{
    struct run *run = ctx;

    run->handler = NULL;
    if (!run->closed)
        (void)uv_timer_stop(&run->timer);
    close_when_done(run);
}

/* It has left already, or could not; no more can be done for the others. */
static void on_handler_stuck(uv_timer_t *timer)
{
    struct run *run = timer->data;

    mu_log(MUSTER_LOG_WARNING, "back end '%s' did not end within %d ms and is abandoned",
           run->join.config.about.backend, HANDLER_END_MS);
    _exit(run->join.exit_code);
}

static void end(struct run *run)
{
    if (run->ending) {
        close_when_done(run); /* a signal has come meanwhile */
        return;
    }
    run->ending = true;
    (void)uv_timer_stop(&run->timer);
    if (run->handler != NULL) {
        (void)uv_timer_start(&run->timer, on_handler_stuck, HANDLER_END_MS, 0);
        run->handler->ops->free(run->handler, on_handler_freed, run);
    }
    close_when_done(run);
}

/* ---- Events in, effects out ---- */

static void on_deadline(uv_timer_t *timer)
{
    feed(timer->data, (struct mu_join_event){ .type = MU_JOIN_TIME });
}

static void feed(struct run *run, struct mu_join_event event)
{
    struct mu_join_effects effects;
    int rc;

    event.now_ms = uv_now(&run->loop);
    mu_join_step(&run->join, &event, &effects);
    mu_cli_status(effects.status.data, effects.status.len);
    mu_cli_log_lines(effects.warning, MUSTER_LOG_WARNING, NULL);
    mu_cli_log_lines(effects.notice, MUSTER_LOG_NOTICE, NULL);
    mu_cli_log_lines(effects.info, MUSTER_LOG_INFO, NULL);
    mu_cli_log_lines(effects.err, MUSTER_LOG_ERROR,
                     effects.over ? mu_cli_final : mu_cli_say); /* the last are waited for */
    rc = print(run, effects.out);
    if (effects.at_once)
        _exit(run->join.exit_code);
    if (effects.join)
        run->handler->ops->join(run->handler);
    if (effects.leave)
        run->handler->ops->leave(run->handler);
    if (effects.over)
        end(run);
    else
        mu_timer_until(&run->timer, mu_join_deadline_ms(&run->join), on_deadline);
    if (rc < 0) {
        run->unheard = true;
        feed(run, (struct mu_join_event){ .type = MU_JOIN_UNHEARD, .text = "nobody reads it" });
    }
}

static void on_told(void *ctx, const struct muster_rdzv_event *told)
{
    feed(ctx, (struct mu_join_event){ .type = MU_JOIN_TOLD, .told = told });
}

static void on_signal(void *ctx, int signum)
{
    feed(ctx, (struct mu_join_event){ .type = MU_JOIN_SIGNAL, .number = signum });
}

/* ---- The beginning ---- */

/* Signals that were ignored at the start (nohup, or a script's background) stay ignored. */
static struct mu_signals ending_signals(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
    struct mu_signals signals = { .count = 0 };
    struct mu_startup startup;

    mu_startup_look(&startup);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!mu_startup_ignored(&startup, numbers[i]))
            signals.numbers[signals.count++] = numbers[i];
    }
    return signals;
}

static int start(struct run *run, const struct muster_rdzv_params *params)
{
    const struct mu_signals signals = ending_signals();
    struct muster_error error = { 0 };

    if (mu_watch_start(&run->loop, &signals, NULL, on_signal, run, &run->signals, &error) < 0)
        return mu_cli_fail(command, "%s", error.text);
    mu_signals_unblock_all();
    return mu_cli_start_handler(command, &run->loop, params, on_told, run, &run->handler);
}

int mu_cmd_join_run(const struct muster_rdzv_params *params, const struct mu_join_config *config)
{
    struct run run = { 0 };
    int rc = uv_loop_init(&run.loop);

    if (rc < 0)
        return mu_cli_fail(command, "cannot start: %s", uv_strerror(rc));
    (void)uv_timer_init(&run.loop, &run.timer);
    run.timer.data = &run;
    mu_join_init(&run.join, config);
    rc = start(&run, params);
    if (rc == MU_EXIT_OK)
        feed(&run, (struct mu_join_event){ .type = MU_JOIN_START });
    else
        end(&run);
    (void)uv_run(&run.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&run.loop);
    if (rc == MU_EXIT_OK)
        rc = run.join.exit_code;
    mu_join_done(&run.join);
    mu_buf_done(&run.pending);
    mu_buf_done(&run.sending);
    return rc;
}
