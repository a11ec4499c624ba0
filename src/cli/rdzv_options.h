/* Which rendezvous is meant, as `muster join` and `muster rdzv` are told: back end, endpoint, id, and further
 * options. */
#ifndef MU_CLI_RDZV_OPTIONS_H
#define MU_CLI_RDZV_OPTIONS_H

#include "base/secret.h"
#include "cli/cli.h"

struct mu_rdzv_words {   /* borrowed, except where it says so; zero it, then mu_rdzv_words_init() */
    const char *command; /* for messages */
    const char *backend, *endpoint, *run_id, *nodes, *conf, *local_addr, *bind, *allow;
    struct mu_option_list backend_dirs;
    char *url_run_id;                         /* owned: the id that the endpoint names */
    char shown_endpoint[MU_SECRET_SHOWN_MAX]; /* once there are params: without passwords */
};

void mu_rdzv_words_init(struct mu_rdzv_words *words, const char *command);
void mu_rdzv_words_done(struct mu_rdzv_words *words);
/* Checks the options before anything is tried, loads back ends of others, and makes the parameters. 0, or an exit code,
 * with the error printed. */
int mu_rdzv_words_params(struct mu_rdzv_words *words, struct muster_rdzv_params **ret_params);

struct uv_loop_s;
/* 0, or an exit code, with the error printed. */
int mu_cli_start_handler(const char *command, struct uv_loop_s *loop, const struct muster_rdzv_params *params,
                         muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler);

#endif
