/* What `muster run` does first: from words and environment to a checked configuration; help, dry run, errors. */
#ifndef MU_CLI_RUN_FRONT_H
#define MU_CLI_RUN_FRONT_H

#include "cli/run_config.h"

/* Reads the words behind the program's name and the environment. `program` is what the program was called as:
 * "torchrun", "muster run". After an error, help or a dry run, which it prints, *ret_config is NULL and the exit status
 * is returned. Else MU_EXIT_OK with a configuration that the caller owns; logging is set up and its notes are
 * logged. */
int mu_run_front(const char *program, bool is_launch, char **argv, struct mu_run_config **ret_config);

#endif
