/* `muster store` as a server: the loop, the signals that end it, and the line that says it is ready. */
#include "cli/cli.h"
#include "store/server_uv.h"

#include <stdio.h>
#include <sys/resource.h>

static const char command[] = "muster store";
static const int ending_signals[] = { SIGTERM, SIGINT };

enum { SIGNALS = sizeof ending_signals / sizeof ending_signals[0] };

struct serve {
    struct mu_server *server;
    uv_signal_t signals[SIGNALS];
    bool ending;
};

static void on_server_closed(struct mu_server *server, void *ctx)
{
    (void)server;
    (void)ctx;
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct serve *serve = handle->data;

    (void)signum;
    if (serve->ending)
        return;
    serve->ending = true;
    for (size_t i = 0; i < SIGNALS; i++)
        uv_close((uv_handle_t *)&serve->signals[i], NULL);
    mu_server_close(serve->server, on_server_closed, NULL);
}

static int catch_signals(uv_loop_t *loop, struct serve *serve)
{
    int rc = 0;

    for (size_t i = 0; i < SIGNALS && rc == 0; i++) {
        serve->signals[i].data = serve;
        rc = uv_signal_init(loop, &serve->signals[i]);
        if (rc == 0)
            rc = uv_signal_start(&serve->signals[i], on_signal, ending_signals[i]);
    }
    return rc;
}

/* A connection is a descriptor: take as many as we may. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int mu_cmd_store_serve(const struct muster_store_server_config *config)
{
    struct serve serve = { 0 };
    struct muster_error error = { 0 };
    char text[MU_ADDR_TEXT_MAX];
    uv_loop_t loop;
    int rc;

    raise_descriptor_limit();
    rc = uv_loop_init(&loop);
    if (rc < 0)
        return mu_cli_fail(command, "cannot start: %s", uv_strerror(rc));
    if (mu_server_start_as(&loop, config, &serve.server, &error) < 0)
        return mu_cli_fail(command, "%s", error.text);
    rc = catch_signals(&loop, &serve);
    if (rc < 0)
        return mu_cli_fail(command, "cannot catch signals: %s", uv_strerror(rc));
    (void)printf("listening on %s\n", mu_addr_format(mu_server_address(serve.server), text));
    if (mu_cli_flush(command) != MU_EXIT_OK)
        return MU_EXIT_ERROR;
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    return MU_EXIT_OK;
}
