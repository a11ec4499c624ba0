/* `muster store` as a server: the loop, the signals that end it, and the line that says it is ready. */
#include "base/files.h"
#include "cli/cli.h"
#include "proc/signals.h"
#include "store/server_uv.h"

#include <stdio.h>

static const char command[] = "muster store";
static const int ending_signals[] = { SIGTERM, SIGINT };

enum { SIGNALS = sizeof ending_signals / sizeof ending_signals[0] };

struct serve {
    struct mu_server *server; /* NULL: not started, or closed */
    uv_signal_t signals[SIGNALS];
    size_t signals_count; /* that are open */
};

static void on_server_closed(struct mu_server *server, void *ctx)
{
    (void)server;
    (void)ctx;
}

/* Closes what is open; the loop then runs out of things to do. A second signal finds its default action back. */
static void end(struct serve *serve)
{
    while (serve->signals_count > 0)
        uv_close((uv_handle_t *)&serve->signals[--serve->signals_count], NULL);
    if (serve->server != NULL)
        mu_server_close(serve->server, on_server_closed, NULL);
    serve->server = NULL;
}

static void on_signal(uv_signal_t *handle, int signum)
{
    (void)signum;
    end(handle->data);
}

static int catch_signals(uv_loop_t *loop, struct serve *serve)
{
    int rc = 0;

    while (serve->signals_count < SIGNALS && rc == 0) {
        uv_signal_t *handle = &serve->signals[serve->signals_count];

        rc = uv_signal_init(loop, handle);
        if (rc < 0)
            break;
        handle->data = serve;
        rc = uv_signal_start(handle, on_signal, ending_signals[serve->signals_count++]);
    }
    return rc;
}

static int start(uv_loop_t *loop, const struct muster_store_server_config *config, struct serve *serve)
{
    struct muster_error error = { 0 };
    char text[MU_ADDR_TEXT_MAX];
    int rc;

    if (mu_server_start_as(loop, config, &serve->server, &error) < 0)
        return mu_cli_fail(command, "%s", error.text);
    rc = catch_signals(loop, serve);
    if (rc < 0)
        return mu_cli_fail(command, "cannot catch signals: %s", uv_strerror(rc));
    mu_signals_unblock_all();
    (void)printf("listening on %s\n", mu_addr_format(mu_server_address(serve->server), text));
    return mu_cli_flush(command);
}

int mu_cmd_store_serve(const struct muster_store_server_config *config)
{
    struct serve serve = { 0 };
    struct muster_error error = { 0 };
    uv_loop_t loop;
    int rc;

    mu_files_raise(); /* a connection is a descriptor */
    if (mu_files_check(MU_FILES_MIN, &error) < 0)
        return mu_cli_fail(command, "%s", error.text);
    rc = uv_loop_init(&loop);
    if (rc < 0)
        return mu_cli_fail(command, "cannot start: %s", uv_strerror(rc));
    rc = start(&loop, config, &serve);
    if (rc != MU_EXIT_OK)
        end(&serve);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    return rc;
}
