/* `muster store` as a server: the loop, the signals that end it, and the line that says it is ready. */
#include "base/files.h"
#include "cli/cli.h"
#include "kv/kv.h"
#include "proc/signals_uv.h"
#include "store/server_uv.h"

#include <stdio.h>

static const char command[] = "muster store";
static const struct mu_signals ending_signals = { .numbers = { SIGTERM, SIGINT }, .count = 2 };

struct serve { /* NULL: not started, or closed */
    struct mu_server *server;
    struct mu_watch *signals;
};

/* Closes what is open; the loop then runs out of things to do. A second signal finds its default action back. */
static void end(struct serve *serve)
{
    if (serve->signals != NULL)
        mu_watch_close(serve->signals, NULL, NULL);
    if (serve->server != NULL)
        mu_server_close(serve->server, NULL, NULL);
    *serve = (struct serve){ 0 };
}

static void on_signal(void *ctx, int signum)
{
    (void)signum;
    end(ctx);
}

/* No node of a job hosts this store. */
static void offer_engine(struct mu_server *server, const struct mu_token *token)
{
    const struct mu_server_offer offer = { .node = "",
                                           .documents = "/" MU_KV_C10D_DOCUMENTS,
                                           .notes = "/" MU_KV_C10D_NOTES,
                                           .token = token->is_there ? token : NULL };

    mu_server_offer_engine(server, &offer);
}

static int start(uv_loop_t *loop, const struct muster_store_server_config *config, const struct mu_token *token,
                 struct serve *serve)
{
    struct muster_error error = { 0 };
    char text[MU_ADDR_TEXT_MAX];

    if (mu_server_start_as(loop, config, &serve->server, &error) < 0 ||
        mu_watch_start(loop, &ending_signals, NULL, on_signal, serve, &serve->signals, &error) < 0)
        return mu_cli_fail(command, "%s", error.text);
    offer_engine(serve->server, token);
    mu_signals_unblock_all();
    (void)printf("listening on %s\n", mu_addr_format(mu_server_address(serve->server), text));
    return mu_cli_flush(command);
}

int mu_cmd_store_serve(const struct muster_store_server_config *config, const char *token_file)
{
    struct serve serve = { 0 };
    struct mu_token token = { 0 };
    struct muster_error error = { 0 };
    uv_loop_t loop;
    int rc;

    mu_files_raise(); /* a connection is a descriptor */
    if (mu_files_check(MU_FILES_MIN, &error) < 0)
        return mu_cli_fail(command, "%s", error.text);
    rc = uv_loop_init(&loop);
    if (rc < 0)
        return mu_cli_fail(command, "cannot start: %s", uv_strerror(rc));
    if (token_file != NULL && mu_token_read(token_file, &token, &error) < 0) {
        (void)uv_loop_close(&loop);
        return mu_cli_fail(command, "option '--token-file': %s", error.text);
    }
    rc = start(&loop, config, &token, &serve);
    mu_token_wipe(&token); /* the server has its own */
    if (rc != MU_EXIT_OK)
        end(&serve);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    return rc;
}
