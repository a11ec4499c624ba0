/* The part of `muster run` that comes before everything else. */
#include "cli/run_front.h"

#include "base/log.h"
#include "base/random.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

extern char **environ;

/* What others chose must not disturb a terminal. */
static void add_visible(struct mu_text *out, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;

        if (byte < ' ' || byte == 0x7F)
            mu_text_add(out, "\\x%02x", byte);
        else
            mu_text_add(out, "%c", byte);
    }
}

static int usage(const char *program, bool is_launch, const struct mu_run_problem *problem)
{
    struct mu_text text = { 0 };

    mu_run_options_usage(&text, program, is_launch);
    mu_text_add(&text, "%s: error: ", program);
    add_visible(&text, problem->error.text);
    mu_text_add(&text, "\n");
    if (text.buf.len > 0)
        (void)fwrite(text.buf.data, 1, text.buf.len, stderr);
    mu_text_done(&text);
    return MU_EXIT_USAGE;
}

/* "PROGRAM: KIND: TEXT" on stderr, unprintable bytes made visible; returns the exit status. */
static int fail(const char *program, const struct mu_run_problem *problem)
{
    struct mu_text text = { 0 };

    add_visible(&text, problem->error.text);
    (void)mu_cli_fail(program, "%s: %.*s", mu_run_kind_name(problem->kind), (int)text.buf.len,
                      text.buf.len > 0 ? text.buf.data : "");
    mu_text_done(&text);
    return problem->kind == MU_RUN_USAGE ? MU_EXIT_USAGE : MU_EXIT_ERROR;
}

static int help(const char *program, bool is_launch)
{
    struct mu_text text = { 0 };

    mu_run_options_help(&text, program, is_launch);
    return mu_cli_print(program, &text);
}

static int dry_run(const struct mu_run_config *config)
{
    struct mu_text text = { 0 };

    mu_run_config_text(&text, config);
    return mu_cli_print(config->program, &text);
}

static void log_start(const struct mu_run_config *config)
{
    struct mu_text text = { 0 };

    (void)mu_cli_log(config->program, muster_log_level_name(config->log_level));
    for (size_t i = 0; i < config->notes_count; i++)
        mu_cli_log_lines(mu_slice_str(config->notes[i].text), config->notes[i].level, NULL);
    if (config->log_level > MUSTER_LOG_INFO || config->dry_run)
        return;
    mu_run_config_text(&text, config);
    mu_cli_log_lines(mu_buf_slice(&text.buf), MUSTER_LOG_INFO, NULL);
    mu_text_done(&text);
}

int mu_run_front(const char *program, bool is_launch, char **argv, struct mu_run_config **ret_config)
{
    struct mu_rng rng = mu_rng_seeded(mu_fresh_seed()); /* run ids must differ between jobs; they are no secrets */
    const struct mu_run_host host = {
        .program = program, .is_launch = is_launch, .environ = environ, .root = "", .rng = &rng
    };
    struct mu_run_config *config = NULL;
    struct mu_run_options options;
    struct mu_run_problem problem;
    int rc;

    *ret_config = NULL;
    if (mu_run_options_parse(argv, is_launch, environ, &options, &problem) < 0)
        return problem.kind == MU_RUN_USAGE ? usage(program, is_launch, &problem) : fail(program, &problem);
    if (options.help)
        return help(program, is_launch);
    if (options.print_completion != NULL)
        return mu_cmd_print_completion(program, strcmp(program, "torchrun") == 0 ? program : "muster",
                                       options.print_completion);
    if (mu_run_config_new(&options, &host, &config, &problem) < 0)
        return fail(program, &problem);
    if (!config->dry_run && mu_run_command_check_script(&config->command, &problem) < 0) {
        mu_run_config_free(config);
        return fail(program, &problem);
    }
    log_start(config);
    if (!config->dry_run) {
        *ret_config = config;
        return MU_EXIT_OK;
    }
    rc = dry_run(config);
    mu_run_config_free(config);
    return rc;
}
