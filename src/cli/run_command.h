/* What a worker is started with: its program and arguments, and its environment. */
#ifndef MU_CLI_RUN_COMMAND_H
#define MU_CLI_RUN_COMMAND_H

#include "agent/worker_env.h"
#include "cli/run_options.h"

/* Owns its memory. Zeroed memory is empty. */
struct mu_run_command {
    char **argv;             /* NULL-terminated; argv[0] is the program. Templates are still in the others. */
    const char *job;         /* its name in reports: the script, the module, the program, or run_script_path */
    const char *entry_point; /* its name in events: the last part of the program's path, or run_script_path */
    size_t script_index;     /* of the script among argv; 0: a module, or a program without Python */
    bool run_path;
    bool old_torch; /* see interpreter.h */
};

/* The variables that it depends on are PYTHON_EXEC and PATH. NOT_FOUND or PERMISSION: there is no such program, or it
 * may not be executed. */
int mu_run_command_init(struct mu_run_command *command, const struct mu_run_options *options, bool is_launch,
                        char *const *vars, struct mu_run_problem *ret_problem);
/* NOT_FOUND or PERMISSION: there is no such script, or it may not be read. A module is looked for by the interpreter
 * alone. */
int mu_run_command_check_script(const struct mu_run_command *command, struct mu_run_problem *ret_problem);
void mu_run_command_done(struct mu_run_command *command);

/* The arguments of one worker: $local_rank and ${local_rank} are put in, $$ becomes $, all else stays. argv[0] is as it
 * is. One block of memory; NULL: there is none. */
char **mu_run_command_argv(const struct mu_run_command *command, int64_t local_rank);

struct mu_run_config;

/* The launcher's environment (config->environ) with a worker's variables on top, for execve(). What comes from the
 * launcher is borrowed from there. `own_only`: what is put on top, without the rest. One block of memory; NULL: there
 * is none. */
char **mu_run_environment(const struct mu_run_config *config, const struct mu_agent_worker *worker, bool own_only);

#endif
