/* The signals of an agent as events of its loop. */
#include "proc/signals_uv.h"

#include <assert.h>
#include <stdlib.h>

struct mu_watch {
    mu_watch_signal_cb *on_signal;
    void *ctx;
    mu_watch_closed_cb *on_closed;
    void *closed_ctx;
    size_t count, open;
    uv_signal_t handles[MU_SIGNALS_MAX];
};

static void on_raised(uv_signal_t *handle, int signal)
{
    struct mu_watch *watch = handle->data;

    watch->on_signal(watch->ctx, signal);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct mu_watch *watch = handle->data;

    if (--watch->open > 0)
        return;
    if (watch->on_closed != NULL)
        watch->on_closed(watch->closed_ctx);
    free(watch);
}

/* An idle one is opened in any case, so that there is always something to close. */
int mu_watch_start(uv_loop_t *loop, const struct mu_signals *signals, const struct mu_startup *startup,
                   mu_watch_signal_cb *on_signal, void *ctx, struct mu_watch **ret_watch, struct muster_error *reterr)
{
    struct mu_watch *watch = calloc(1, sizeof *watch);
    char room[MU_SIGNAL_NAME_MAX];

    if (watch == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "handle signals: out of memory");
    watch->on_signal = on_signal;
    watch->ctx = ctx;
    for (size_t i = 0; i < signals->count || watch->open == 0; i++) {
        uv_signal_t *handle = &watch->handles[watch->open];
        int number = i < signals->count ? signals->numbers[i] : 0, rc;

        if (mu_startup_keeps(startup, number))
            number = 0;
        if (number == 0 && watch->open > 0)
            continue;
        rc = uv_signal_init(loop, handle);
        if (rc == 0) {
            handle->data = watch;
            watch->open++;
            if (number > 0)
                rc = uv_signal_start(handle, on_raised, number);
            uv_unref((uv_handle_t *)handle); /* waiting for a signal is no reason to go on */
        }
        if (rc < 0) {
            if (watch->open > 0)
                mu_watch_close(watch, NULL, NULL);
            else
                free(watch);
            return mu_fail_errno(reterr, -rc, "handle %s", mu_signal_name(number, room));
        }
    }
    mu_signals_unblock(signals);
    *ret_watch = watch;
    return 0;
}

void mu_watch_close(struct mu_watch *watch, mu_watch_closed_cb *on_closed, void *ctx)
{
    size_t open = watch->open;

    assert(watch->on_closed == NULL);
    watch->on_closed = on_closed;
    watch->closed_ctx = ctx;
    for (size_t i = 0; i < open; i++)
        uv_close((uv_handle_t *)&watch->handles[i], on_handle_closed);
}
