/* What the commands share: exit codes, option tables, output. */
#ifndef MU_CLI_CLI_H
#define MU_CLI_CLI_H

#include "base/slice.h"
#include "muster.h"

enum { MU_EXIT_OK = 0, MU_EXIT_ERROR = 1, MU_EXIT_USAGE = 2 };

/* ---- Options ---- */

enum mu_option_kind {
    MU_OPTION_FLAG,    /* bool: no value */
    MU_OPTION_TEXT,    /* const char * */
    MU_OPTION_PORT,    /* int, 0 to 65535: put -1 there first to see whether one was given */
    MU_OPTION_INT,     /* int, 0 or above */
    MU_OPTION_COUNT,   /* uint64_t above 0 */
    MU_OPTION_BYTES,   /* uint64_t above 0, with an optional K, M or G behind it */
    MU_OPTION_SECONDS, /* int64_t milliseconds above 0, given as seconds with an optional fraction */
    MU_OPTION_LIST,    /* struct mu_option_list: may be given several times */
};

#define MU_OPTION_LIST_MAX 64

struct mu_option_list {
    const char *items[MU_OPTION_LIST_MAX + 1]; /* NULL-terminated */
    size_t count;
};

struct mu_option {
    const char *name; /* without the dashes; NULL ends the table */
    enum mu_option_kind kind;
    size_t at;          /* in the struct that the command keeps its values in */
    const char *values; /* worth offering when a shell completes the option: "{a,b}", "DIR"; NULL: nothing */
};

#define MU_OPTION_BACKENDS "{c10d,static,etcd-v3,etcd-v2,etcd}"
#define MU_OPTION_LEVELS "{debug,info,notice,warning,error}"

/* Reads options and operands in any order up to "--", behind which all are operands. "-5" is an operand too, and "-h"
 * stands for "--help". In an option's name "_" stands for "-", as in torchrun. Puts the options' values into `values`.
 * Leaves the operands at the front of argv, NULL-terminated, and their number in *ret_count. A usage error is printed
 * on stderr, with `command` in front; returns false. */
bool mu_options_parse(const char *command, const struct mu_option *options, void *values, char **argv, int *ret_count);
/* Are there as many operands as `operands` names? "KEY VALUE", "KEY..." for one or more, "" for none. If not, that is
 * said as by mu_cli_usage(). */
int mu_cli_check_operands(const char *command, const char *operands, char **argv, int count);

/* ---- Output ---- */

/* "COMMAND: TEXT" on stderr; returns MU_EXIT_ERROR. */
int mu_cli_fail(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with a pointer to --help; returns MU_EXIT_USAGE. */
int mu_cli_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Makes sure that what was printed on stdout got out; says so and returns MU_EXIT_ERROR if not. */
int mu_cli_flush(const char *command);
/* These print, free what they print, and return as mu_cli_flush() does. On a terminal a line end follows a value. */
struct mu_text;
int mu_cli_print_value(const char *command, struct muster_bytes *value);
int mu_cli_print(const char *command, struct mu_text *text);
int mu_cli_help(const char *command, const char *help);

/* Log lines of this level and above go to stderr. False: there is no such level, which is said as by mu_cli_usage(). */
bool mu_cli_log(const char *command, const char *level);
/* Why a command that had begun ends: on a terminal as it is, else in the form of a log line, which names the node.
 * (Errors before a command begins go to mu_cli_fail().) final() waits until it is written; say() drops a line that
 * cannot be written at once: a stopped terminal does not stop us. */
void mu_cli_final(const char *text);
void mu_cli_say(const char *text);
/* Logs each line at `level`; if `instead` is given, it gets them. */
void mu_cli_log_lines(struct mu_slice lines, enum muster_log_level level, void (*instead)(const char *line));
/* Shows text in the last line of the terminal at stderr, below everything else, until it is replaced. Empty:
 * nothing. */
void mu_cli_status(const char *text, size_t len);

/* Loads back ends from `dirs` and, unless a built-in one is asked for, those that are installed. */
int mu_cli_load_backends(const char *backend, const char *const *dirs, size_t count, struct muster_error *reterr);

/* ---- Commands: argv begins behind the command's own words ---- */

int mu_cmd_store(char **argv);

struct mu_startup;
/* `program` is what it was called as: "muster run", "torchrun". `is_launch`: with the older command's --use-env. */
int mu_cmd_run(const char *program, bool is_launch, const struct mu_startup *startup, char **argv);

/* The server's half: prints one line when it listens, returns when a signal has ended it. `token_file`: that the nodes
 * of its jobs have to have; NULL: none. */
int mu_cmd_store_serve(const struct muster_store_server_config *config, const char *token_file);
/* The client's half: argv[0] is "get", "set", ... */
int mu_cmd_store_client(char **argv);

int mu_cmd_join(char **argv);

/* ---- Completion: what the commands take, as a shell offers it ---- */

extern const struct mu_option mu_join_options[], mu_rdzv_options[], mu_store_options[];
/* The commands below `muster rdzv` and `muster store`, by number; NULL: there are fewer. */
const char *mu_cmd_rdzv_verb(size_t index);
const char *mu_cmd_store_verb(size_t index, const struct mu_option **ret_options);

/* Prints the script for a shell, `command` saying what is wrong if there is none. `program` is "muster" or
 * "torchrun". */
int mu_cmd_print_completion(const char *command, const char *program, const char *shell);
/* What the scripts ask: argv has the words of a line, from the program's name to the one that the cursor is in. */
int mu_cmd_complete(char **argv);

struct mu_join_config;
/* Joins, stays, leaves. */
int mu_cmd_join_run(const struct muster_rdzv_params *params, const struct mu_join_config *config);

int mu_cmd_rdzv(char **argv);

struct mu_rdzv_visit;
/* Visits; the result is printed and in `visit`. Returns an exit code. */
int mu_cmd_rdzv_visit(const char *command, const struct muster_rdzv_params *params, struct mu_rdzv_visit *visit);
/* Says what came of a visit that is over; returns an exit code. */
int mu_cmd_rdzv_say(const char *command, const struct mu_rdzv_visit *visit);

#endif
