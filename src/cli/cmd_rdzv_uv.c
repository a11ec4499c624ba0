/* The loop of `muster rdzv`: a handler that is asked to look and to close, never to join; rdzv_visit.c decides.
 *
 * Happy path: the handler starts, is asked, tells, is freed, and the loop ends. Failures: the error code of a handler
 * that does not start tells a mistake in the command line from a failure. A handler that does not end in time is left
 * behind. Signals end the command as usual: it is no member, so it need not leave. */
#include "cli/cli.h"
#include "cli/rdzv_options.h"
#include "cli/rdzv_visit.h"
#include "kv/later_uv.h"

#include <stdio.h>
#include <unistd.h>
#include <uv.h>

#define HANDLER_END_MS 1000

struct run {
    const char *command;
    uv_loop_t loop;
    uv_timer_t timer;
    struct mu_rdzv_visit *visit;
    struct muster_handler *handler; /* NULL: not started, or freed */
};

static void feed(struct run *run, struct mu_rdzv_visit_event event);

static void on_handler_freed(void *ctx)
{
    struct run *run = ctx;

    run->handler = NULL;
    uv_close((uv_handle_t *)&run->timer, NULL);
}

static void on_handler_stuck(uv_timer_t *timer)
{
    struct run *run = timer->data;

    run->visit->exit_code = mu_cmd_rdzv_say(run->command, run->visit);
    _exit(run->visit->exit_code);
}

static void end(struct run *run)
{
    (void)uv_timer_start(&run->timer, on_handler_stuck, HANDLER_END_MS, 0);
    if (run->handler != NULL)
        run->handler->ops->free(run->handler, on_handler_freed, run);
    else
        on_handler_freed(run);
}

static void on_deadline(uv_timer_t *timer)
{
    feed(timer->data, (struct mu_rdzv_visit_event){ .type = MU_RDZV_VISIT_TIME });
}

static void feed(struct run *run, struct mu_rdzv_visit_event event)
{
    bool was_over = run->visit->phase == MU_RDZV_VISIT_OVER;
    struct mu_rdzv_visit_effects effects;

    event.now_ms = uv_now(&run->loop);
    mu_rdzv_visit_step(run->visit, &event, &effects);
    if (effects.look)
        run->handler->ops->look(run->handler);
    if (effects.close)
        run->handler->ops->close(run->handler);
    if (effects.over && !was_over)
        end(run);
    if (!effects.over)
        mu_timer_until(&run->timer, mu_rdzv_visit_deadline_ms(run->visit), on_deadline);
}

static void on_told(void *ctx, const struct muster_rdzv_event *told)
{
    feed(ctx, (struct mu_rdzv_visit_event){ .type = MU_RDZV_VISIT_TOLD, .told = told });
}

int mu_cmd_rdzv_visit(const char *command, const struct muster_rdzv_params *params, struct mu_rdzv_visit *visit)
{
    struct run run = { .command = command, .visit = visit };
    int rc = uv_loop_init(&run.loop);

    if (rc < 0)
        return mu_cli_fail(command, "cannot start: %s", uv_strerror(rc));
    (void)uv_timer_init(&run.loop, &run.timer);
    run.timer.data = &run;
    rc = mu_cli_start_handler(command, &run.loop, params, on_told, &run, &run.handler);
    if (rc == MU_EXIT_OK)
        feed(&run, (struct mu_rdzv_visit_event){ .type = MU_RDZV_VISIT_START });
    else
        end(&run);
    (void)uv_run(&run.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&run.loop);
    return rc == MU_EXIT_OK ? mu_cmd_rdzv_say(command, visit) : rc;
}
