/* A visit to a rendezvous that we do not join. */
#include "cli/rdzv_visit.h"

#include "cli/cli.h"

#include <assert.h>

void mu_rdzv_visit_init(struct mu_rdzv_visit *visit, const struct mu_rdzv_visit_config *config)
{
    *visit = (struct mu_rdzv_visit){ .config = *config, .round = -1 };
    if (visit->config.timeout_ms <= 0)
        visit->config.timeout_ms = MU_RDZV_VISIT_TIMEOUT_MS;
}

void mu_rdzv_visit_done(struct mu_rdzv_visit *visit)
{
    mu_text_done(&visit->out);
    mu_text_done(&visit->err);
}

/* ---- Ends ---- */

static void end(struct mu_rdzv_visit *visit, int exit_code)
{
    assert(visit->phase != MU_RDZV_VISIT_OVER);
    assert((exit_code == MU_EXIT_OK) == (visit->err.buf.len == 0));
    visit->phase = MU_RDZV_VISIT_OVER;
    visit->exit_code = exit_code;
}

static void be_closed(struct mu_rdzv_visit *visit, const char *what)
{
    mu_text_add_around(&visit->out, "rendezvous '", visit->config.about.run_id, "'");
    mu_text_add(&visit->out, " %s: no node can join or restart; workers that run go on to their end", what);
    end(visit, MU_EXIT_OK);
}

static void fail(struct mu_rdzv_visit *visit, const struct muster_error *error)
{
    mu_text_add_error(&visit->err, &visit->config.about, error);
    end(visit, MU_EXIT_ERROR);
}

static void time_out(struct mu_rdzv_visit *visit)
{
    mu_text_add(&visit->err, "no answer from ");
    mu_text_add_place(&visit->err, &visit->config.about);
    mu_text_add(&visit->err, " within ");
    mu_text_add_duration(&visit->err, visit->config.timeout_ms);
    if (visit->cause.code != 0)
        mu_text_add_around(&visit->err, ": ", visit->cause.text, "");
    end(visit, MU_EXIT_ERROR);
}

/* ---- What the handler tells ---- */

static void looked(struct mu_rdzv_visit *visit, const struct muster_rdzv_event *told, struct mu_rdzv_visit_effects *ret)
{
    if (told->error != NULL) {
        fail(visit, told->error);
    } else if (told->round < 0) {
        mu_text_add_around(&visit->err, "there is no rendezvous '", visit->config.about.run_id, "' (");
        mu_text_add_place(&visit->err, &visit->config.about);
        mu_text_add(&visit->err, ")");
        end(visit, MU_EXIT_ERROR);
    } else {
        visit->round = told->round;
        if (!visit->config.close) {
            end(visit, MU_EXIT_OK);
        } else if (told->closed) {
            be_closed(visit, "was closed before");
        } else {
            visit->phase = MU_RDZV_VISIT_CLOSING;
            ret->close = true;
        }
    }
}

static void told(struct mu_rdzv_visit *visit, const struct muster_rdzv_event *told, struct mu_rdzv_visit_effects *ret)
{
    bool looking = visit->phase == MU_RDZV_VISIT_LOOKING, closing = visit->phase == MU_RDZV_VISIT_CLOSING;

    if (told->type == MUSTER_RDZV_LOOKED && looking)
        looked(visit, told, ret);
    else if (told->type == MUSTER_RDZV_CLOSED && closing) /* seen while looking, it is in the answer as well */
        be_closed(visit, "is closed");
    else if (told->type == MUSTER_RDZV_FAILED && (looking || closing))
        fail(visit, told->error);
    else if (told->type == MUSTER_RDZV_BACKEND_DOWN && told->error != NULL) /* it is tried again while there is time */
        visit->cause = *told->error;
    else if (told->type == MUSTER_RDZV_BACKEND_UP)
        visit->cause.code = 0;
}

/* ---- The machine ---- */

void mu_rdzv_visit_step(struct mu_rdzv_visit *visit, const struct mu_rdzv_visit_event *event,
                        struct mu_rdzv_visit_effects *ret)
{
    *ret = (struct mu_rdzv_visit_effects){ 0 };
    switch (event->type) {
    case MU_RDZV_VISIT_START:
        assert(visit->phase == MU_RDZV_VISIT_LOOKING && visit->until_ms == 0);
        visit->until_ms = event->now_ms + (uint64_t)visit->config.timeout_ms;
        ret->look = true;
        break;
    case MU_RDZV_VISIT_TOLD:
        told(visit, event->told, ret);
        break;
    case MU_RDZV_VISIT_TIME:
        if (visit->phase != MU_RDZV_VISIT_OVER && event->now_ms >= visit->until_ms)
            time_out(visit);
        break;
    }
    ret->over = visit->phase == MU_RDZV_VISIT_OVER;
}

uint64_t mu_rdzv_visit_deadline_ms(const struct mu_rdzv_visit *visit)
{
    return visit->phase == MU_RDZV_VISIT_OVER ? UINT64_MAX : visit->until_ms;
}
