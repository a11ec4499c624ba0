/* Command lines of `muster run` with variables around them, up to a configuration and a worker's arguments. The input
 * is words with a NUL between; those that begin with '\1' are variables. */
#include "cli/run_config.h"

#include <stdio.h>
#include <stdlib.h>

enum { BYTES_MAX = 4096, WORDS_MAX = 128 };

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static char text[BYTES_MAX + 1], path_variable[] = "PATH=/bin", flag[] = "--no-python";
static char *words[WORDS_MAX + 2], *variables[WORDS_MAX + 2];
static size_t words_count;

static void split(const uint8_t *data, size_t size)
{
    size_t variables_count = 0;

    if (size > BYTES_MAX)
        size = BYTES_MAX;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    words_count = 0;
    words[words_count++] = flag;
    variables[variables_count++] = path_variable;
    for (char *at = text; at < text + size; at += strlen(at) + 1) {
        if (*at == '\1' && variables_count < WORDS_MAX)
            variables[variables_count++] = at + 1;
        else if (words_count < WORDS_MAX)
            words[words_count++] = at;
    }
    words[words_count] = NULL;
    variables[variables_count] = NULL;
}

static void check_problem(const struct mu_run_problem *problem, int rc)
{
    EXPECT(rc < 0 && problem->error.code == rc && problem->error.text[0] != '\0');
    EXPECT(strlen(problem->error.text) < sizeof problem->error.text);
    EXPECT(problem->kind <= MU_RUN_MEMORY);
}

static void check_options(const struct mu_run_options *options)
{
    char *const *script = options->args - 1;

    if (script > words && strcmp(*script, "--") == 0 && script[-1] == options->script)
        script--; /* one "--" may be dropped behind the script */
    EXPECT(*script == options->script && script >= words && script < words + words_count);
    while (*script != NULL)
        script++;
    EXPECT(script == words + words_count); /* all behind it is the script's */
    EXPECT(options->nnodes != NULL && options->nproc_per_node != NULL && options->rdzv_backend != NULL);
    EXPECT(options->rdzv_endpoint != NULL && options->rdzv_conf != NULL);
    EXPECT(options->max_restarts.is_set && options->monitor_interval.is_set && options->node_rank.is_set);
    EXPECT(options->role != NULL && options->redirects != NULL && options->tee != NULL);
    EXPECT(options->backend_dirs_count <= MU_RUN_BACKEND_DIRS_MAX);
}

static void check_config(const struct mu_run_config *config)
{
    struct mu_agent_worker worker = { .master_addr = "h", .error_file = "" };
    char **argv = mu_run_command_argv(&config->command, 0), **vars = mu_run_environment(config, &worker, false);
    struct mu_text out = { 0 };

    EXPECT(config->nodes_min >= 1 && config->nodes_min <= config->nodes_max);
    EXPECT(config->nproc >= 1 && config->max_restarts >= 0 && config->shutdown_timeout_ms >= 0);
    EXPECT(strcmp(argv[0], config->command.argv[0]) == 0);
    for (size_t i = 1; argv[i] != NULL; i++)
        EXPECT(strlen(argv[i]) <= strlen(config->command.argv[i])); /* "0" is shorter than what it stands for */
    mu_run_config_text(&out, config);
    EXPECT(!out.failed);
    mu_text_done(&out);
    free(argv);
    free(vars);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_rng rng = mu_rng_seeded(1);
    const struct mu_run_host host = { .program = "x", .environ = variables, .root = "/nowhere", .rng = &rng };
    struct mu_run_config *config = NULL;
    struct mu_run_options options;
    struct mu_run_problem problem;
    int rc;

    split(data, size);
    rc = mu_run_options_parse(words, false, variables, &options, &problem);
    if (rc < 0) {
        check_problem(&problem, rc);
        return 0;
    }
    if (options.help)
        return 0;
    check_options(&options);
    rc = mu_run_config_new(&options, &host, &config, &problem);
    if (rc < 0)
        check_problem(&problem, rc);
    else
        check_config(config);
    mu_run_config_free(config);
    return 0;
}
