/* Shared objects that fail as back ends, one for each set of definitions that this is compiled with; see
 * tests/meson.build. */
#include <muster.h>

#ifndef ABI
#define ABI MUSTER_BACKEND_ABI
#endif
#ifndef SIZE
#define SIZE sizeof(struct muster_backend_1)
#endif
#ifndef NAME
#define NAME "bad"
#endif
#ifndef CREATE
#define CREATE create_fails
#endif
#ifndef SYMBOL
#define SYMBOL muster_backend_1
#endif

#define CREATOR(name)                                                                                                  \
    __attribute__((unused)) static int name(const struct muster_host *host, const struct muster_rdzv_params *params,   \
                                            muster_rdzv_listener *listener, void *listener_ctx,                        \
                                            struct muster_handler **ret_handler, struct muster_error *reterr)

static void never(void *arg)
{
    (void)arg;
    __builtin_abort();
}

/* Not without asking for a timer first, and forgetting it. */
CREATOR(create_fails)
{
    (void)params;
    (void)listener;
    (void)listener_ctx;
    (void)ret_handler;
    (void)host->timer_start(host->ctx, 3600000, never, NULL);
    return host->fail(host->ctx, reterr, MUSTER_ERDZV_CONNECTION, "the moon does not answer");
}

CREATOR(create_says_nothing)
{
    (void)host;
    (void)params;
    (void)listener;
    (void)listener_ctx;
    (void)ret_handler;
    (void)reterr;
    return MUSTER_ECONNECT;
}

CREATOR(create_gives_nothing)
{
    (void)host;
    (void)params;
    (void)listener;
    (void)listener_ctx;
    (void)ret_handler;
    (void)reterr;
    return 0;
}

CREATOR(create_returns_nonsense)
{
    (void)host;
    (void)params;
    (void)listener;
    (void)listener_ctx;
    (void)ret_handler;
    (void)reterr;
    return 17;
}

MUSTER_API extern const struct muster_backend_1 SYMBOL;
const struct muster_backend_1 SYMBOL = { .abi = ABI, .size = SIZE, .name = NAME, .create = CREATE };
