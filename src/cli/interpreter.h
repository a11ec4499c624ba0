/* What can be seen of a Python interpreter without running it. */
#ifndef MU_CLI_INTERPRETER_H
#define MU_CLI_INTERPRETER_H

#include <stdbool.h>

/* Whether the PyTorch that is installed beside `python` (its path) is known to be older than 2.2. It is known if the
 * path leads to a program named after its version, such as python3.11, and torch/version.py is in one of the folders in
 * which that program looks for packages first. `home`: the user's directory, NULL: not known. */
bool mu_interpreter_has_old_torch(const char *python, const char *home);

#endif
