/* The command line of `muster run`, and of a link to it named torchrun: options, PET_ variables, the script and its
 * words, taken as Python's argparse takes them. run_config.h knows what the values mean. Pure.
 *
 * Options come first. The first word that is none is the script, and all behind it is the script's own. A "--" in front
 * of the script is dropped, and so is the first one if it stands right behind the script. Names may be cut short as
 * long as one option is meant; the two spellings of an option are one, and an option that stock does not have never
 * makes a name ambiguous that is clear to stock. An option given twice has its last value. */
#ifndef MU_CLI_RUN_OPTIONS_H
#define MU_CLI_RUN_OPTIONS_H

#include "cli/shell_completion.h"
#include "muster.h"

/* What kind of error it is: programs around the launcher look for these words, which are those of Python. */
#define MU_RUN_KINDS(X)                                                                                                \
    X(USAGE, "usage") /* the command line itself; exit status 2, all others 1 */                                       \
    X(VALUE, "ValueError")                                                                                             \
    X(RUNTIME, "RuntimeError")                                                                                         \
    X(ASSERTION, "AssertionError")                                                                                     \
    X(KEY, "KeyError")                                                                                                 \
    X(NOT_FOUND, "FileNotFoundError")                                                                                  \
    X(PERMISSION, "PermissionError")                                                                                   \
    X(MEMORY, "MemoryError")

enum mu_run_kind {
#define X(name, text) MU_RUN_##name,
    MU_RUN_KINDS(X)
#undef X
};

const char *mu_run_kind_name(enum mu_run_kind value); /* "ValueError" */
/* The kind of an error that came later: what stands in front of its text on stderr, "RendezvousTimeoutError" for
 * instance. Errors of the system have Python's names: "FileNotFoundError". */
const char *mu_run_error_kind(const struct muster_error *error);

struct mu_run_problem {
    enum mu_run_kind kind;
    struct muster_error error; /* one line, without the kind */
};

/* Fill in and return error.code, so that they can stand in a return statement. `ret_problem` must be there. */
int mu_run_problem(struct mu_run_problem *ret_problem, enum mu_run_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int mu_run_no_memory(struct mu_run_problem *ret_problem);

/* The value of a variable in a NULL-terminated array of "NAME=value"; NULL: not set. */
const char *mu_run_variable(char *const *vars, const char *name);

struct mu_run_int {
    bool is_set;
    int64_t value;
};

struct mu_run_float {
    bool is_set;
    double value;
};

#define MU_RUN_BACKEND_DIRS_MAX 64

/* As they were given, or their defaults. Texts are borrowed from argv, the variables, or are constants. */
struct mu_run_options {
    const char *nnodes, *nproc_per_node;
    const char *rdzv_backend, *rdzv_endpoint, *rdzv_conf;
    const char *rdzv_id; /* NULL: not given */
    bool standalone;
    struct mu_run_int max_restarts;
    struct mu_run_float monitor_interval;
    const char *start_method, *event_log_handler, *role;
    const char *metrics;
    bool module, no_python, run_path;
    const char *log_dir; /* NULL: not given */
    const char *log_line_prefix_template;
    const char *redirects, *tee, *local_ranks_filter;
    const char *duplicate_stdout_filters, *duplicate_stderr_filters;
    struct mu_run_int node_rank;
    const char *master_addr;
    struct mu_run_int master_port;                      /* may be unset */
    const char *local_addr, *logs_specs, *numa_binding; /* NULL: not given */
    const char *signals_to_handle;
    struct mu_run_int shutdown_timeout; /* may be unset */
    bool virtual_local_rank;
    bool use_env; /* only in the form of `python -m torch.distributed.launch` */
    /* Ours. */
    const char *bind, *allow;                              /* NULL: not given */
    struct mu_run_float exit_barrier_timeout;              /* may be unset */
    const char *backend_dirs[MU_RUN_BACKEND_DIRS_MAX + 1]; /* NULL-terminated */
    size_t backend_dirs_count;
    bool quiet, dry_run;
    unsigned verbose; /* how often it was said */

    bool help;                    /* asked for: nothing else is filled in */
    const char *print_completion; /* the same, for this shell; NULL: not given */
    const char *script;           /* never NULL, unless help is wanted */
    char *const *args;            /* the script's own, NULL-terminated; part of argv */
};

/* `argv` begins behind the program's own words and is left alone. `is_launch`: the older command, which also has
 * --use-env. Returns 0, or a negative code with *ret_problem filled in. */
int mu_run_options_parse(char *const *argv, bool is_launch, char *const *vars, struct mu_run_options *ret_options,
                         struct mu_run_problem *ret_problem);

/* The options as completion sees them (a mu_flag_at). `is_launch`: const bool *. */
bool mu_run_options_flag(const void *is_launch, size_t index, struct mu_flag *ret_flag);

/* "usage: torchrun [-h] [--nnodes NNODES] ...", several lines: what stands above a usage error. */
void mu_run_options_usage(struct mu_text *out, const char *program, bool is_launch);
/* What --help prints. */
void mu_run_options_help(struct mu_text *out, const char *program, bool is_launch);

#endif
