/* What the owner of a handler asks it for. */
#include "handler/asking_uv.h"

#include <assert.h>
#include <string.h>

static void on_timer(uv_timer_t *timer)
{
    struct mu_asking *asking = timer->data;

    while (asking->count > 0 && asking->closed == NULL) {
        unsigned what = asking->items[0];

        asking->count--;
        memmove(asking->items, asking->items + 1, asking->count * sizeof asking->items[0]);
        asking->on_ask(asking->ctx, what);
    }
}

void mu_asking_open(struct mu_asking *asking, uv_loop_t *loop, void (*on_ask)(void *ctx, unsigned what), void *ctx)
{
    *asking = (struct mu_asking){ .on_ask = on_ask, .ctx = ctx };
    (void)uv_timer_init(loop, &asking->timer);
    asking->timer.data = asking;
}

void mu_asking_put(struct mu_asking *asking, unsigned what)
{
    assert(asking->closed == NULL);
    if (asking->count == MU_ASKING_MAX)
        asking->count--;
    asking->items[asking->count++] = what;
    (void)uv_timer_start(&asking->timer, on_timer, 0, 0);
}

bool mu_asking_has(const struct mu_asking *asking, unsigned what)
{
    for (size_t i = 0; i < asking->count; i++) {
        if (asking->items[i] == what)
            return true;
    }
    return false;
}

bool mu_asking_ends_with(const struct mu_asking *asking, unsigned what)
{
    return asking->count > 0 && asking->items[asking->count - 1] == what;
}

static void on_closed(uv_handle_t *handle)
{
    struct mu_asking *asking = handle->data;

    asking->closed(asking->ctx);
}

void mu_asking_close(struct mu_asking *asking, void (*closed)(void *ctx))
{
    assert(asking->closed == NULL && closed != NULL);
    asking->closed = closed;
    uv_close((uv_handle_t *)&asking->timer, on_closed);
}
