/* What a shell offers when TAB is pressed behind `muster` or `torchrun`: it asks us with the words of the line. And the
 * scripts that teach it to. Pure. */
#ifndef MU_CLI_SHELL_COMPLETION_H
#define MU_CLI_SHELL_COMPLETION_H

#include "cli/join_text.h"

#define MU_SHELL_COMPLETION_SHELLS "{bash,zsh,tcsh,fish}"

/* One option, as far as completing it goes. */
struct mu_flag {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    bool takes_value;
    const char *values; /* "{a,b}": one of these; "DIR": a directory; NULL: nothing is known of it */
};

/* The option at this place of a table; false: it has fewer. */
typedef bool mu_flag_at(const void *table, size_t index, struct mu_flag *ret_flag);

/* What may follow the program's name and the words of a command. */
struct mu_shell_completion_part {
    const char *command, *verb; /* "store" and "get"; "": the level above */
    mu_flag_at *flag_at;
    const void *table;
    bool runs_script; /* its first operand is a file, and so may be all that follows: they are that file's own */
};

/* Whether the program, perhaps with its path, is called by the name of PyTorch's: then it is `muster run`. */
bool mu_is_torchrun(const char *program);

/* `words`: of a line, from the program's name up to the word that the cursor is in, which may be empty;
 * NULL-terminated. Adds what that word can become, a line each; ":files" and ":dirs" stand for names that the shell
 * finds by itself. */
void mu_shell_completion_offer(struct mu_text *out, const struct mu_shell_completion_part *parts, size_t count,
                               const char *const *words);

/* The script for a shell and a program, "muster" or "torchrun". False: there is no such shell. */
bool mu_shell_completion_script(struct mu_text *out, const char *shell, const char *program,
                                const struct mu_shell_completion_part *parts, size_t count);

#endif
