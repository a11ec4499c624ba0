/* What is done from the loop. An idle handle and no timer: a timer that is started anew from inside of its callback
 * runs again in the same turn of the loop. */
#include "kv/later_uv.h"

#include <assert.h>

static void tell_all(struct mu_later *later)
{
    struct mu_list all, *link;

    mu_list_take(&all, &later->list);
    while ((link = mu_list_pop(&all)) != NULL)
        later->tell(link);
}

static void take_turn(struct mu_later *later)
{
    void (*turn)(void *ctx) = later->turn;

    later->turn = NULL;
    if (turn != NULL)
        turn(later->turn_ctx);
}

static void on_idle(uv_idle_t *handle)
{
    struct mu_later *later = handle->data;

    (void)uv_idle_stop(handle);
    tell_all(later);
    if (later->closed == NULL)
        take_turn(later);
}

void mu_later_open(struct mu_later *later, uv_loop_t *loop, void (*tell)(struct mu_list *link))
{
    *later = (struct mu_later){ .tell = tell };
    mu_list_init(&later->list);
    (void)uv_idle_init(loop, &later->handle); /* never fails, nor does the start */
    later->handle.data = later;
}

void mu_later_push(struct mu_later *later, struct mu_list *link)
{
    mu_list_push(&later->list, link);
    if (later->closed == NULL)
        (void)uv_idle_start(&later->handle, on_idle);
}

void mu_later_fail(struct mu_later *later, struct mu_kv_request *request, const struct muster_error *error)
{
    mu_kv_fail(request, error->code, error);
    mu_later_push(later, &request->link);
}

void mu_later_turn(struct mu_later *later, void (*turn)(void *ctx), void *ctx)
{
    assert(later->turn == NULL || later->turn == turn);
    later->turn = turn;
    later->turn_ctx = ctx;
    if (later->closed == NULL)
        (void)uv_idle_start(&later->handle, on_idle);
}

static void on_closed(uv_handle_t *handle)
{
    struct mu_later *later = handle->data;

    while (!mu_list_empty(&later->list))
        tell_all(later);
    later->closed(later->ctx);
}

void mu_later_close(struct mu_later *later, void (*closed)(void *ctx), void *ctx)
{
    assert(later->closed == NULL && closed != NULL);
    later->closed = closed;
    later->ctx = ctx;
    uv_close((uv_handle_t *)&later->handle, on_closed);
}

void mu_timer_until(uv_timer_t *timer, uint64_t when_ms, uv_timer_cb on_time)
{
    uint64_t now_ms = uv_now(timer->loop);

    if (when_ms == UINT64_MAX)
        (void)uv_timer_stop(timer);
    else
        (void)uv_timer_start(timer, on_time, when_ms > now_ms ? when_ms - now_ms : 0, 0);
}
