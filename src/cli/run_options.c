/* The command line of `muster run`, by argparse's rules. */
#include "cli/run_options.h"

#include "base/error.h"
#include "base/number.h"
#include "base/texts.h"
#include "base/words.h"
#include "cli/cli.h"
#include "events/record.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

enum {
    NAME_MAX_BYTES = 64, /* of a variable, or of an option in an error */
    UNKNOWN_MAX = 900,   /* bytes of unknown words, in an error */
    USAGE_COLUMNS = 78,
    USAGE_INDENT_MAX = 58, /* columns: behind a longer program name lines begin further left */
};

/* ---- Errors ---- */

MU_DEFINE_TEXTS(mu_run_kind_name, enum mu_run_kind, MU_RUN_KINDS)

static const char *errno_kind(int errnum)
{
    switch (errnum) {
    case ENOENT:
        return mu_run_kind_name(MU_RUN_NOT_FOUND);
    case EACCES:
    case EPERM:
        return mu_run_kind_name(MU_RUN_PERMISSION);
    case ENOTDIR:
        return "NotADirectoryError";
    case EISDIR:
        return "IsADirectoryError";
    case EEXIST:
        return "FileExistsError";
    case EAGAIN:
        return "BlockingIOError";
    default:
        return "OSError";
    }
}

const char *mu_run_error_kind(const struct muster_error *error)
{
    if (error->errnum != 0 && (error->code == MUSTER_ESYSTEM || error->code == MUSTER_EINVAL))
        return errno_kind(error->errnum);
    return mu_event_error_kind(error->code);
}

int mu_run_problem(struct mu_run_problem *ret_problem, enum mu_run_kind kind, const char *format, ...)
{
    va_list args;

    ret_problem->kind = kind;
    ret_problem->error.code = kind == MU_RUN_MEMORY ? MUSTER_ENOMEM : MUSTER_EINVAL;
    va_start(args, format);
    (void)vsnprintf(ret_problem->error.text, sizeof ret_problem->error.text, format, args);
    va_end(args);
    return ret_problem->error.code;
}

int mu_run_no_memory(struct mu_run_problem *ret_problem)
{
    return mu_run_problem(ret_problem, MU_RUN_MEMORY, "%s", muster_error_text(MUSTER_ENOMEM));
}

const char *mu_run_variable(char *const *vars, const char *name)
{
    size_t len = strlen(name);

    for (; *vars != NULL; vars++) {
        if (strncmp(*vars, name, len) == 0 && (*vars)[len] == '=')
            return *vars + len + 1;
    }
    return NULL;
}

/* ---- The options ---- */

enum kind { HELP, FLAG, COUNT, TEXT, CHOICE, INT, FLOAT, DIRS };

/* OURS: stock, or a stock that is in use, does not have it. */
enum { NO_VARIABLE = 1, OURS = 2, LAUNCH_ONLY = 4 };

struct rule {
    const char *name; /* with dashes */
    char letter;
    enum kind kind;
    size_t at;            /* in struct mu_run_options */
    const char *fallback; /* NULL: not set */
    unsigned traits;
    const char *values; /* "{a,b}": of a CHOICE all there are, else those worth offering; "DIR"; NULL: none */
};

#define AT(field) offsetof(struct mu_run_options, field)

static const struct rule rules[] = {
    { "help", 'h', HELP, AT(help), NULL, NO_VARIABLE, NULL },
    { "nnodes", 0, TEXT, AT(nnodes), "1:1", 0, NULL },
    { "nproc-per-node", 0, TEXT, AT(nproc_per_node), "1", 0, "{auto,gpu,cpu}" },
    { "rdzv-backend", 0, TEXT, AT(rdzv_backend), "static", 0, MU_OPTION_BACKENDS },
    { "rdzv-endpoint", 0, TEXT, AT(rdzv_endpoint), "", 0, NULL },
    { "rdzv-id", 0, TEXT, AT(rdzv_id), NULL, 0, NULL },
    { "rdzv-conf", 0, TEXT, AT(rdzv_conf), "", 0, NULL },
    { "standalone", 0, FLAG, AT(standalone), NULL, 0, NULL },
    { "max-restarts", 0, INT, AT(max_restarts), "0", 0, NULL },
    { "monitor-interval", 0, FLOAT, AT(monitor_interval), "0.1", 0, NULL },
    { "start-method", 0, CHOICE, AT(start_method), "spawn", 0, "{spawn,fork,forkserver}" },
    { "event-log-handler", 0, TEXT, AT(event_log_handler), "null", 0, "{null,console,file:}" },
    { "role", 0, TEXT, AT(role), MUSTER_DEFAULT_ROLE, 0, NULL },
    { "module", 'm', FLAG, AT(module), NULL, 0, NULL },
    { "no-python", 0, FLAG, AT(no_python), NULL, 0, NULL },
    { "run-path", 0, FLAG, AT(run_path), NULL, 0, NULL },
    { "log-dir", 0, TEXT, AT(log_dir), NULL, 0, "DIR" },
    { "log-line-prefix-template", 0, TEXT, AT(log_line_prefix_template), "", OURS, NULL },
    { "redirects", 'r', TEXT, AT(redirects), "0", 0, "{0,1,2,3}" },
    { "tee", 't', TEXT, AT(tee), "0", 0, "{0,1,2,3}" },
    { "local-ranks-filter", 0, TEXT, AT(local_ranks_filter), "", 0, NULL },
    { "duplicate-stdout-filters", 0, TEXT, AT(duplicate_stdout_filters), "", 0, NULL },
    { "duplicate-stderr-filters", 0, TEXT, AT(duplicate_stderr_filters), "", 0, NULL },
    { "node-rank", 0, INT, AT(node_rank), "0", 0, NULL },
    { "master-addr", 0, TEXT, AT(master_addr), "127.0.0.1", 0, NULL },
    { "master-port", 0, INT, AT(master_port), NULL, 0, NULL },
    { "local-addr", 0, TEXT, AT(local_addr), NULL, 0, NULL },
    { "logs-specs", 0, TEXT, AT(logs_specs), NULL, NO_VARIABLE, "{default}" },
    { "numa-binding", 0, CHOICE, AT(numa_binding), NULL, NO_VARIABLE, "{node,socket,exclusive,core-complex}" },
    { "signals-to-handle", 0, TEXT, AT(signals_to_handle), "SIGTERM,SIGINT,SIGHUP,SIGQUIT", 0, NULL },
    { "shutdown-timeout", 0, INT, AT(shutdown_timeout), NULL, 0, NULL },
    { "virtual-local-rank", 0, FLAG, AT(virtual_local_rank), NULL, 0, NULL },
    { "use-env", 0, FLAG, AT(use_env), NULL, NO_VARIABLE | LAUNCH_ONLY, NULL },
    { "backend-dir", 0, DIRS, 0, NULL, NO_VARIABLE | OURS, "DIR" },
    { "bind", 0, TEXT, AT(bind), NULL, OURS, "{any,localhost}" },
    { "allow", 0, TEXT, AT(allow), NULL, OURS, NULL },
    { "metrics", 0, TEXT, AT(metrics), "null", OURS, "{null,console,file:}" },
    { "exit-barrier-timeout", 0, FLOAT, AT(exit_barrier_timeout), NULL, NO_VARIABLE | OURS, NULL },
    { "quiet", 'q', FLAG, AT(quiet), NULL, NO_VARIABLE | OURS, NULL },
    { "verbose", 'v', COUNT, AT(verbose), NULL, NO_VARIABLE | OURS, NULL },
    { "dry-run", 0, FLAG, AT(dry_run), NULL, NO_VARIABLE | OURS, NULL },
    { "print-completion", 0, CHOICE, AT(print_completion), NULL, NO_VARIABLE | OURS, MU_SHELL_COMPLETION_SHELLS },
};

enum { RULES = sizeof rules / sizeof rules[0] };

struct parser {
    struct mu_run_options *options;
    struct mu_run_problem *problem;
    bool is_launch;
    char *const *vars;
    bool given[RULES];
    char unknown_text[UNKNOWN_MAX]; /* " --a --b" */
    struct mu_words unknown;
};

static bool takes_value(const struct rule *rule)
{
    return rule->kind != HELP && rule->kind != FLAG && rule->kind != COUNT;
}

static bool has_two_spellings(const struct rule *rule)
{
    return strchr(rule->name, '-') != NULL;
}

/* Also "-" to "_". */
static char to_upper(char c)
{
    if (c == '-')
        return '_';
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

/* "-r/--redirects", "--no-python/--no_python": as stock names it. */
static const char *rule_text(const struct rule *rule, char text[static 2 * NAME_MAX_BYTES])
{
    struct mu_words w = mu_words_into(text, 2 * NAME_MAX_BYTES);

    if (rule->letter != 0)
        mu_words_add(&w, "-%c/", rule->letter);
    mu_words_add(&w, "--%s", rule->name);
    if (has_two_spellings(rule)) {
        size_t from = w.len + 3;

        mu_words_add(&w, "/--%s", rule->name);
        for (char *c = text + from; *c != '\0'; c++)
            *c = *c == '-' ? '_' : *c;
    }
    return text;
}

static int usage_error(struct parser *p, const struct rule *rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int usage_error(struct parser *p, const struct rule *rule, const char *format, ...)
{
    char name[2 * NAME_MAX_BYTES], text[sizeof p->problem->error.text];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return mu_run_problem(p->problem, MU_RUN_USAGE, "argument %s: %s", rule_text(rule, name), text);
}

/* ---- Names ---- */

/* Whether `given` begins the name in one of its spellings, or is it. */
static bool begins(const struct rule *rule, const char *given, size_t len, bool *ret_exact)
{
    bool dashes = true, underscores = true;

    if (len > strlen(rule->name))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (rule->name[i] == '-') {
            dashes = dashes && given[i] == '-';
            underscores = underscores && given[i] == '_';
        } else if (rule->name[i] != given[i]) {
            return false;
        }
    }
    *ret_exact = rule->name[len] == '\0';
    return dashes || underscores;
}

struct match {
    enum { PLAIN, OPTION, AMBIGUOUS, UNKNOWN } type;
    const struct rule *rule;
    const char *value; /* in the same word; NULL: none */
    bool is_short;
};

static bool is_known(const struct parser *p, const struct rule *rule)
{
    return p->is_launch || !(rule->traits & LAUNCH_ONLY);
}

/* How many options of stock, or of ours, begin like this; an exact name is alone. */
static size_t count_prefix(const struct parser *p, const char *name, size_t len, bool ours,
                           const struct rule **ret_rule)
{
    size_t count = 0;
    bool exact = false;

    for (size_t i = 0; i < RULES; i++) {
        if (!is_known(p, &rules[i]) || ((rules[i].traits & OURS) != 0) != ours || !begins(&rules[i], name, len, &exact))
            continue;
        *ret_rule = &rules[i];
        if (exact)
            return 1;
        count++;
    }
    return count;
}

static struct match match_long(const struct parser *p, const char *word)
{
    const char *name = word + 2, *equals = strchr(name, '=');
    size_t len = equals == NULL ? strlen(name) : (size_t)(equals - name), count;
    struct match match = { .type = UNKNOWN, .value = equals == NULL ? NULL : equals + 1 };

    count = count_prefix(p, name, len, false, &match.rule);
    if (count == 0)
        count = count_prefix(p, name, len, true, &match.rule);
    if (count > 0)
        match.type = count == 1 ? OPTION : AMBIGUOUS;
    return match;
}

static const struct rule *rule_by_letter(char letter)
{
    for (size_t i = 0; i < RULES; i++) {
        if (rules[i].letter == letter && letter != 0)
            return &rules[i];
    }
    return NULL;
}

static struct match match_short(const char *word)
{
    struct match match = { .type = UNKNOWN, .rule = rule_by_letter(word[1]), .is_short = true };

    if (match.rule == NULL)
        return match;
    match.type = OPTION;
    if (word[2] != '\0')
        match.value = word[2] == '=' ? word + 3 : word + 2;
    return match;
}

/* -5, -.5, -1.5 */
static bool is_negative_number(const char *word)
{
    size_t whole = strspn(word + 1, "0123456789");
    const char *rest = word + 1 + whole;

    if (*rest == '\0')
        return whole > 0;
    return *rest == '.' && rest[1] != '\0' && rest[1 + strspn(rest + 1, "0123456789")] == '\0';
}

static struct match match_word(const struct parser *p, const char *word)
{
    struct match match = { .type = PLAIN };

    if (word[0] != '-' || word[1] == '\0')
        return match;
    match = word[1] == '-' ? match_long(p, word) : match_short(word);
    if (match.type == UNKNOWN && (is_negative_number(word) || strchr(word, ' ') != NULL))
        match.type = PLAIN;
    return match;
}

/* ---- Values ---- */

static bool is_choice(const char *choices, const char *text)
{
    size_t len = strlen(text);

    while (*choices == '{' || *choices == ',') {
        choices++;
        if (strncmp(choices, text, len) == 0 && (choices[len] == ',' || choices[len] == '}'))
            return true;
        choices += strcspn(choices, ",}");
    }
    return false;
}

static int take_dir(struct parser *p, const struct rule *rule, const char *text)
{
    struct mu_run_options *options = p->options;

    if (options->backend_dirs_count == MU_RUN_BACKEND_DIRS_MAX)
        return usage_error(p, rule, "given more than %d times", MU_RUN_BACKEND_DIRS_MAX);
    options->backend_dirs[options->backend_dirs_count++] = text;
    return 0;
}

/* Choices are not checked in variables: stock does not. */
static int take_value(struct parser *p, const struct rule *rule, const char *text, bool check_choices)
{
    void *at = (char *)p->options + rule->at;
    struct mu_run_int integer = { .is_set = true };
    struct mu_run_float number = { .is_set = true };

    switch (rule->kind) {
    case CHOICE:
        if (check_choices && !is_choice(rule->values, text))
            return usage_error(p, rule, "invalid choice: '%s' (choose from %s)", text, rule->values);
        *(const char **)at = text;
        break;
    case TEXT:
        *(const char **)at = text;
        break;
    case INT:
        if (!mu_number_int(text, &integer.value))
            return usage_error(p, rule, "invalid int value: '%s'", text);
        *(struct mu_run_int *)at = integer;
        break;
    case FLOAT:
        if (!mu_number_float(text, &number.value))
            return usage_error(p, rule, "invalid float value: '%s'", text);
        *(struct mu_run_float *)at = number;
        break;
    case DIRS:
        return take_dir(p, rule, text);
    case HELP:
    case FLAG:
    case COUNT:
        assert(false);
    }
    return 0;
}

static void take_flag(struct parser *p, const struct rule *rule)
{
    void *at = (char *)p->options + rule->at;

    if (rule->kind == COUNT)
        ++*(unsigned *)at;
    else
        *(bool *)at = true;
}

/* ---- Words ---- */

/* A flag, and in a word like -mr3 the rest behind its letter. Returns how many more words were taken, or an error. */
static int take_option(struct parser *p, struct match match, const char *next)
{
    const struct rule *rule = match.rule;
    int rc;

    while (!takes_value(rule)) {
        const struct rule *behind = NULL;

        if (match.value != NULL && match.is_short)
            behind = rule_by_letter(match.value[0]);
        if (match.value != NULL && behind == NULL)
            return usage_error(p, rule, "ignored explicit argument '%s'", match.value);
        take_flag(p, rule);
        if (behind == NULL || p->options->help)
            return 0;
        rule = behind;
        match.value = match.value[1] == '\0' ? NULL : match.value + 1;
    }
    p->given[rule - rules] = true;
    if (match.value != NULL)
        return take_value(p, rule, match.value, true);
    if (next == NULL || strcmp(next, "--") == 0 || match_word(p, next).type != PLAIN)
        return usage_error(p, rule, "expected one argument");
    rc = take_value(p, rule, next, true);
    return rc < 0 ? rc : 1;
}

static int ambiguous(struct parser *p, const char *word)
{
    char names[UNKNOWN_MAX] = "";
    struct mu_words w = mu_words_into(names, sizeof names);
    size_t len = strcspn(word + 2, "=");
    const struct rule *rule = NULL;
    bool ours = count_prefix(p, word + 2, len, false, &rule) == 0, exact;

    for (size_t i = 0; i < RULES; i++) {
        if (is_known(p, &rules[i]) && ((rules[i].traits & OURS) != 0) == ours &&
            begins(&rules[i], word + 2, len, &exact))
            mu_words_add(&w, "%s--%s", w.len == 0 ? "" : ", ", rules[i].name);
    }
    return mu_run_problem(p->problem, MU_RUN_USAGE, "ambiguous option: %.*s could match %s", (int)len + 2, word, names);
}

static void take_script(struct parser *p, char *const *argv)
{
    p->options->script = argv[0];
    p->options->args = argv[0] == NULL ? argv : argv + 1;
}

/* Help: everything else on the line does not matter. */
static bool is_question(const struct mu_run_options *options)
{
    return options->help || options->print_completion != NULL;
}

static int take_words(struct parser *p, char *const *argv)
{
    for (; *argv != NULL; argv++) {
        struct match match;
        int rc = 0;

        if (strcmp(*argv, "--") == 0) {
            take_script(p, argv + 1);
            return 0;
        }
        match = match_word(p, *argv);
        switch (match.type) {
        case PLAIN:
            take_script(p, argv);
            if (argv[1] != NULL && strcmp(argv[1], "--") == 0)
                p->options->args++;
            return 0;
        case UNKNOWN:
            mu_words_add(&p->unknown, " %s", *argv);
            break;
        case AMBIGUOUS:
            return ambiguous(p, *argv);
        case OPTION:
            rc = take_option(p, match, argv[1]);
            break;
        }
        if (rc < 0)
            return rc;
        if (is_question(p->options))
            return 0;
        argv += rc;
    }
    return 0;
}

/* ---- Variables and defaults ---- */

static const char *variable_name(const struct rule *rule, char name[static NAME_MAX_BYTES])
{
    (void)snprintf(name, NAME_MAX_BYTES, "PET_%s", rule->name);
    for (char *c = name; *c != '\0'; c++)
        *c = to_upper(*c);
    return name;
}

static const char *variable(const struct parser *p, const struct rule *rule)
{
    char name[NAME_MAX_BYTES];

    return rule->traits & NO_VARIABLE ? NULL : mu_run_variable(p->vars, variable_name(rule, name));
}

/* Stock reads these before anything else, so that a bad one is no usage error and even --help fails. */
static int take_flag_variables(struct parser *p)
{
    for (size_t i = 0; i < RULES; i++) {
        const char *text = rules[i].kind == FLAG ? variable(p, &rules[i]) : NULL;
        char name[NAME_MAX_BYTES];
        int64_t value;

        if (text == NULL)
            continue;
        if (!mu_number_int(text, &value))
            return mu_run_problem(p->problem, MU_RUN_VALUE, "variable %s: '%s' is not an integer; expected 0 or 1",
                                  variable_name(&rules[i], name), text);
        if (value != 0)
            take_flag(p, &rules[i]);
    }
    return 0;
}

static int take_defaults(struct parser *p)
{
    for (size_t i = 0; i < RULES; i++) {
        const char *text = NULL;
        int rc;

        if (p->given[i] || !takes_value(&rules[i]))
            continue;
        text = variable(p, &rules[i]);
        if (text == NULL)
            text = rules[i].fallback;
        rc = text == NULL ? 0 : take_value(p, &rules[i], text, false);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int mu_run_options_parse(char *const *argv, bool is_launch, char *const *vars, struct mu_run_options *ret_options,
                         struct mu_run_problem *ret_problem)
{
    struct parser p = { .options = ret_options, .problem = ret_problem, .is_launch = is_launch, .vars = vars };
    int rc;

    *ret_options = (struct mu_run_options){ 0 };
    p.unknown = mu_words_into(p.unknown_text, sizeof p.unknown_text);
    rc = take_flag_variables(&p);
    if (rc == 0)
        rc = take_words(&p, argv);
    if (rc < 0 || is_question(ret_options))
        return rc;
    rc = take_defaults(&p);
    if (rc < 0)
        return rc;
    if (ret_options->script == NULL)
        return mu_run_problem(ret_problem, MU_RUN_USAGE,
                              "the following arguments are required: training_script, training_script_args");
    if (p.unknown.len > 0)
        return mu_run_problem(ret_problem, MU_RUN_USAGE, "unrecognized arguments:%s", p.unknown_text);
    return 0;
}

/* ---- For completion ---- */

bool mu_run_options_flag(const void *is_launch, size_t index, struct mu_flag *ret_flag)
{
    for (size_t i = 0; i < RULES; i++) {
        if ((rules[i].traits & LAUNCH_ONLY) && !*(const bool *)is_launch)
            continue;
        if (index-- > 0)
            continue;
        *ret_flag = (struct mu_flag){ .name = rules[i].name,
                                      .letter = rules[i].letter,
                                      .takes_value = takes_value(&rules[i]),
                                      .values = rules[i].values };
        return true;
    }
    return false;
}

/* ---- Texts ---- */

static void add_item(char *item, size_t room, const struct rule *rule)
{
    char name[NAME_MAX_BYTES], value[NAME_MAX_BYTES] = "";

    if (rule->letter != 0)
        (void)snprintf(name, sizeof name, "-%c", rule->letter);
    else
        (void)snprintf(name, sizeof name, "--%s", rule->name);
    if (takes_value(rule)) {
        (void)snprintf(value, sizeof value, " %s", rule->kind == CHOICE ? rule->values : rule->name);
        for (char *c = value; rule->kind != CHOICE && *c != '\0'; c++)
            *c = to_upper(*c);
    }
    (void)snprintf(item, room, "[%s%s]", name, value);
}

void mu_run_options_usage(struct mu_text *out, const char *program, bool is_launch)
{
    size_t indent = strlen("usage: ") + strlen(program), column = indent;
    char item[2 * NAME_MAX_BYTES + 8];

    if (indent > USAGE_INDENT_MAX)
        indent = strlen("usage:");
    mu_text_add(out, "usage: %s", program);
    for (size_t i = 0; i < RULES; i++) {
        if ((rules[i].traits & LAUNCH_ONLY) && !is_launch)
            continue;
        add_item(item, sizeof item, &rules[i]);
        if (column + 1 + strlen(item) > USAGE_COLUMNS && column > indent) {
            mu_text_add(out, "\n%*s", (int)indent, "");
            column = indent;
        }
        mu_text_add(out, " %s", item);
        column += 1 + strlen(item);
    }
    mu_text_add(out, "\n%*s training_script ...\n", (int)indent, "");
}

static const char help_options[] =
    "Script:\n"
    "  -m, --module              SCRIPT is the name of a Python module\n"
    "  --no-python               SCRIPT is any program; it is looked up in PATH\n"
    "  --run-path                run SCRIPT within Python, as runpy.run_path does\n"
    "  --role NAME               role name of the workers (default: default)\n"
    "\n"
    "Size:\n"
    "  --nproc-per-node N        workers on this node: a number, gpu, cpu, or auto: GPUs\n"
    "                            if there are any, else CPUs (default: 1)\n"
    "  --nnodes N | MIN:MAX      number of nodes (default: 1:1)\n"
    "  --max-restarts N          how often a failed group is restarted (default: 0)\n"
    "\n"
    "Rendezvous:\n"
    "  --standalone              one node, on a free local port; the default for one node\n"
    "                            without --rdzv-backend, --rdzv-endpoint, --master-port\n"
    "  --rdzv-backend NAME       c10d, static, etcd-v3, etcd-v2, etcd, or one from a\n"
    "                            --backend-dir (default: static)\n"
    "  --rdzv-endpoint HOST:PORT address of the store; the node that owns HOST runs it.\n"
    "                            For etcd: a comma-separated list\n"
    "  --rdzv-id ID              name of the job, the same on every node\n"
    "  --rdzv-conf K=V,...       more options, such as join_timeout=60,last_call_timeout=5\n"
    "  --local-addr ADDR         name and address that other nodes use for this node\n"
    "  --bind ADDR,...           listen on these addresses and loopback; any: on all\n"
    "                            (default: the address that other nodes use, and loopback)\n"
    "  --allow NET,...           accept connections only from these networks, such as\n"
    "                            10.0.0.0/8, and from this machine (default: from all)\n"
    "  --backend-dir DIR         load more back ends from this directory; may be repeated\n"
    "  --node-rank N, --master-addr ADDR, --master-port PORT\n"
    "                            for back end static (defaults: 0, 127.0.0.1, 29500)\n"
    "\n"
    "Output of the workers:\n"
    "  -r, --redirects SPEC      write to files: 1 stdout, 2 stderr, 3 both; or 0:1,1:3 by\n"
    "                            local rank (default: 0)\n"
    "  -t, --tee SPEC            write to files and to the console (default: 0)\n"
    "  --log-dir DIR             folder for these files (default: a new one in TMPDIR)\n"
    "  --log-line-prefix-template TEXT\n"
    "                            what to put before tee'd lines, with ${role_name},\n"
    "                            ${rank}, ${local_rank} and ${hostname} replaced (default:\n"
    "                            [${role_name}${local_rank}]:)\n"
    "  --local-ranks-filter N,.. show only these local ranks on the console\n"
    "  --duplicate-stdout-filters WORD,..., --duplicate-stderr-filters WORD,...\n"
    "                            copy tee'd lines that contain a WORD to one more file\n"
    "\n"
    "Shutdown:\n"
    "  --signals-to-handle LIST  signals that end this node and its workers\n"
    "                            (default: SIGTERM,SIGINT,SIGHUP,SIGQUIT)\n"
    "  --shutdown-timeout S      seconds that workers have to end before they are killed\n"
    "                            (default: 30)\n"
    "  --exit-barrier-timeout S  how long to wait for the other nodes when this node's\n"
    "                            workers have succeeded (default: no limit)\n"
    "\n"
    "Logging:\n"
    "  -q, --quiet               errors only\n"
    "  -v, --verbose             what happens, step by step\n"
    "  -vv                       also each change of the rendezvous, each step of this\n"
    "                            agent, and the wait for the other nodes at the end\n"
    "  --dry-run                 show the configuration, command and environment of the\n"
    "                            workers, and start nothing\n"
    "  --event-log-handler NAME  write events as JSON lines: null, console or file:PATH\n"
    "                            (default: null)\n"
    "  --metrics NAME            write metrics, a line each: null, console or file:PATH\n"
    "                            (default: null)\n"
    "  --print-completion SHELL  print a script that completes these options in bash, zsh,\n"
    "                            tcsh or fish\n"
    "  -h, --help                this text\n"
    "\n"
    "Others:\n"
    "  --numa-binding MODE       bind each worker to CPUs next to its GPU: node, socket,\n"
    "                            exclusive or core-complex\n"
    "  --virtual-local-rank      every worker sees its own GPU as the only one\n"
    "  --monitor-interval, --start-method, --logs-specs default\n"
    "                            accepted for compatibility, without effect\n";

void mu_run_options_help(struct mu_text *out, const char *program, bool is_launch)
{
    mu_text_add(out,
                "%s: runs a script in several processes and on several nodes, and restarts it\n"
                "\n"
                "usage: %s [OPTIONS] SCRIPT [ARGS]\n"
                "\n"
                "Examples:\n"
                "  %s --nproc-per-node 2 train.py --epochs 3\n"
                "  %s --nproc-per-node auto --nnodes 2:4 --max-restarts 3 --rdzv-backend c10d \\\n"
                "      --rdzv-endpoint node1:29400 --rdzv-id job7 train.py\n"
                "  %s --nproc-per-node 8 --no-python%s ./worker.sh '$local_rank'\n"
                "\n",
                program, program, program, program, program, is_launch ? " --use-env" : "");
    mu_text_add(out, "%s", help_options);
    if (is_launch)
        mu_text_add(out, "  --use-env                 do not give scripts a --local-rank argument\n");
    mu_text_add(out, "\n"
                     "Options come before the script; everything after it belongs to the script. Names can\n"
                     "be shortened, and '_' can be written for '-'. PET_NNODES=2 in the environment means\n"
                     "--nnodes 2. In the script's arguments $local_rank becomes the worker's local rank.\n"
                     "\n"
                     "Exit status: 0 all workers of this node succeeded; 1 they failed, or another error;\n"
                     "2 an option is unknown, lacks its value or has one of the wrong kind. A value that is\n"
                     "read and then refused, such as --nnodes=0, is an error like others, as in torchrun.\n");
}
