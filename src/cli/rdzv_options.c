/* Which rendezvous is meant: the options that name it, checked, as parameters. */
#include "cli/rdzv_options.h"

#include "base/error.h"
#include "handler/engine_params.h"
#include "handler/etcd_params.h"
#include "handler/handler.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define ENDPOINT_DEFAULT "localhost:29400"

void mu_rdzv_words_init(struct mu_rdzv_words *words, const char *command)
{
    words->command = command;
    words->backend = "c10d";
    words->nodes = "1:1";
}

void mu_rdzv_words_done(struct mu_rdzv_words *words)
{
    free(words->url_run_id);
}

/* A mistake in the command line is told with a pointer to --help, a failure is not. */
static int fail(const char *command, int code, const char *step, const struct muster_error *error)
{
    return code == MUSTER_EINVAL ? mu_cli_usage(command, "%s%s", step, error->text)
                                 : mu_cli_fail(command, "%s%s", step, error->text);
}

int mu_cli_start_handler(const char *command, struct uv_loop_s *loop, const struct muster_rdzv_params *params,
                         muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler)
{
    struct muster_error error = { 0 };
    int rc = mu_handler_start_by_name(muster_rdzv_registry_default(), loop, params, &MU_DRIVING_DEFAULT, listener, ctx,
                                      ret_handler, &error);

    return rc < 0 ? fail(command, rc, "", &error) : MU_EXIT_OK;
}

static bool take_number(const char **text, int64_t *ret_number)
{
    unsigned long number;
    char *end;

    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    number = strtoul(*text, &end, 10);
    if (errno != 0 || number > INT32_MAX)
        return false;
    *ret_number = (int64_t)number;
    *text = end;
    return true;
}

/* "N" or "MIN:MAX" */
static bool parse_nodes(const char *text, int64_t *ret_min, int64_t *ret_max)
{
    if (!take_number(&text, ret_min))
        return false;
    *ret_max = *ret_min;
    if (*text == ':') {
        text++;
        if (!take_number(&text, ret_max))
            return false;
    }
    return *text == '\0';
}

/* An endpoint that is a URL of etcd names the job, unless there is an option for it. */
static int take_url_run_id(struct mu_rdzv_words *words)
{
    struct muster_error error = { 0 };
    int rc = 0;

    if (words->run_id == NULL && words->endpoint != NULL && strcmp(words->backend, "etcd") == 0)
        rc = mu_etcd_params_run_id(words->endpoint, &words->url_run_id, &error);
    if (words->url_run_id != NULL)
        words->run_id = words->url_run_id;
    return rc < 0 ? fail(words->command, rc, "option '--rdzv-endpoint': ", &error) : MU_EXIT_OK;
}

/* Mistakes for every back end. Mistakes for a certain back end are found by it when it is started. */
static int check_words(const struct mu_rdzv_words *words, int64_t *ret_min, int64_t *ret_max)
{
    if (words->run_id == NULL)
        return mu_cli_usage(words->command, "option '--rdzv-id' is missing");
    if (words->run_id[0] == '\0')
        return mu_cli_usage(words->command, "option '--rdzv-id': it must not be empty");
    if (words->endpoint == NULL && strcmp(words->backend, "static") == 0)
        return mu_cli_usage(words->command, "option '--rdzv-endpoint' is missing: back end 'static' needs HOST:PORT");
    if (!parse_nodes(words->nodes, ret_min, ret_max))
        return mu_cli_usage(words->command,
                            "option '--nnodes': '%s' must be a number of nodes or MIN:MAX, like 2 or 2:4",
                            words->nodes);
    return MU_EXIT_OK;
}

static int set_checked(struct muster_rdzv_params *params, const char *key, const char *text,
                       int (*check)(const char *, struct muster_error *), struct muster_error *reterr)
{
    int rc = check(text, reterr);

    return rc == 0 ? muster_rdzv_params_set_text(params, key, text, reterr) : rc;
}

static int make_params(const struct mu_rdzv_words *words, int64_t nodes_min, int64_t nodes_max,
                       struct muster_rdzv_params **ret_params)
{
    const char *unshared = getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    struct muster_rdzv_params *params = NULL;
    struct muster_error error = { 0 };
    const char *step = "";
    int rc;

    rc = muster_rdzv_params_new(words->backend, words->endpoint, words->run_id, nodes_min, nodes_max, words->local_addr,
                                &params, &error);
    if (rc == 0 && unshared != NULL && strcmp(unshared, "1") == 0)
        rc = muster_rdzv_params_set_bool(params, "use_agent_store", false, &error);
    if (rc == 0 && words->conf != NULL) {
        step = "option '--rdzv-conf': ";
        rc = muster_rdzv_params_set_options(params, words->conf, &error);
    }
    if (rc == 0) {
        step = "";
        rc = mu_engine_take_token_file(params, getenv("MUSTER_TOKEN_FILE"), &error);
    }
    if (rc == 0 && words->bind != NULL) {
        step = "option '--bind': ";
        rc = set_checked(params, "bind", words->bind, mu_bind_check_hosts, &error);
    }
    if (rc == 0 && words->allow != NULL) {
        step = "option '--allow': ";
        rc = set_checked(params, "allow", words->allow, mu_bind_check_allow, &error);
    }
    if (rc == 0) {
        *ret_params = params;
        return MU_EXIT_OK;
    }
    muster_rdzv_params_free(params);
    return fail(words->command, rc, step, &error);
}

int mu_cli_load_backends(const char *backend, const char *const *dirs, size_t count, struct muster_error *reterr)
{
    struct muster_rdzv_registry *registry = muster_rdzv_registry_default();
    int rc = 0;

    if (registry == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for back ends");
    if (!mu_handler_is_builtin(backend) && access(MUSTER_BACKEND_DIR, F_OK) == 0)
        rc = muster_rdzv_registry_load(registry, MUSTER_BACKEND_DIR, reterr);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = muster_rdzv_registry_load(registry, dirs[i], reterr);
        if (rc < 0)
            rc = mu_wrap(reterr, rc, "option '--backend-dir'");
    }
    return rc;
}

int mu_rdzv_words_params(struct mu_rdzv_words *words, struct muster_rdzv_params **ret_params)
{
    const struct mu_option_list *dirs = &words->backend_dirs;
    struct muster_rdzv_params *params = NULL;
    int64_t nodes_min = 1, nodes_max = 1;
    struct muster_error error = { 0 };
    int rc = take_url_run_id(words);

    if (rc == MU_EXIT_OK)
        rc = check_words(words, &nodes_min, &nodes_max);
    if (rc != MU_EXIT_OK)
        return rc;
    if (words->endpoint == NULL)
        words->endpoint = strcmp(words->backend, "c10d") == 0 ? ENDPOINT_DEFAULT : "";
    (void)mu_secret_hide(mu_slice_str(words->endpoint), words->shown_endpoint, sizeof words->shown_endpoint);
    rc = make_params(words, nodes_min, nodes_max, &params);
    if (rc != MU_EXIT_OK)
        return rc;
    if (mu_cli_load_backends(words->backend, dirs->items, dirs->count, &error) < 0) {
        muster_rdzv_params_free(params);
        return mu_cli_fail(words->command, "%s", error.text);
    }
    *ret_params = params;
    return MU_EXIT_OK;
}
