/* A worker's command and its environment. */
#include "cli/run_command.h"

#include "agent/report.h"
#include "base/error.h"
#include "cli/interpreter.h"
#include "cli/run_config.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char path_default[] = "/bin:/usr/bin"; /* without a PATH, as in Python */

/* --run-path: the file runs as __main__ in an interpreter that tells of every exception in the error file. A script
 * that exits by itself is not an exception. There must be no dollar sign in it: it is an argument like the others. */
static const char run_path_code[] =
    "import faulthandler, json, os, runpy, sys, time, traceback\n"
    "def run_script_path():\n"
    "    try:\n"
    "        faulthandler.enable(all_threads=True)\n"
    "    except Exception:\n"
    "        pass\n"
    "    try:\n"
    "        runpy.run_path(sys.argv[0], run_name='__main__')\n"
    "    except Exception as error:\n"
    "        path = os.environ.get('TORCHELASTIC_ERROR_FILE')\n"
    "        if path:\n"
    "            told = {'message': {'message': type(error).__name__ + ': ' + str(error), 'extraInfo': {\n"
    "                'py_callstack': traceback.format_exc(), 'timestamp': str(int(time.time()))}}}\n"
    "            try:\n"
    "                with open(path, 'w') as file:\n"
    "                    json.dump(told, file)\n"
    "            except OSError as reason:\n"
    "                print(reason, file=sys.stderr)\n"
    "        raise\n"
    "sys.argv = sys.argv[1:]\n"
    "run_script_path()\n";

/* ---- The program ---- */

/* 0, or why it cannot be executed. */
static int try_program(const char *path)
{
    struct stat about;

    if (stat(path, &about) < 0)
        return errno;
    if (!S_ISREG(about.st_mode) || access(path, X_OK) < 0)
        return EACCES;
    return 0;
}

/* Looks for DIRECTORY/WORD in PATH. 0, with the path; or the errno of the best candidate. */
static int search(const char *path, const char *const *words, size_t words_count, char found[static PATH_MAX])
{
    int best = ENOENT;

    for (;;) {
        size_t len = strcspn(path, ":");

        for (size_t i = 0; i < words_count; i++) {
            int errnum = ENAMETOOLONG;

            if (snprintf(found, PATH_MAX, "%.*s%s%s", (int)len, path, len > 0 ? "/" : "", words[i]) < PATH_MAX)
                errnum = try_program(found);
            if (errnum == 0)
                return 0;
            if (errnum == EACCES)
                best = EACCES;
        }
        if (path[len] == '\0')
            return best;
        path += len + 1;
    }
}

static int no_program(struct mu_run_problem *ret_problem, int errnum, const char *what)
{
    return mu_run_problem(ret_problem, errnum == EACCES ? MU_RUN_PERMISSION : MU_RUN_NOT_FOUND, "[Errno %d] %s: '%s'",
                          errnum, strerror(errnum), what);
}

static const char *search_path(char *const *vars)
{
    const char *path = mu_run_variable(vars, "PATH");

    return path == NULL ? path_default : path;
}

static int check_program(const char *word, const char *path, struct mu_run_problem *ret_problem)
{
    char found[PATH_MAX];
    int errnum = ENOENT;

    if (strchr(word, '/') != NULL)
        errnum = try_program(word);
    else if (word[0] != '\0')
        errnum = search(path, &word, 1, found);
    return errnum == 0 ? 0 : no_program(ret_problem, errnum, word);
}

/* PYTHON_EXEC, else the first python3 or python in PATH. */
static int find_python(char *const *vars, char python[static PATH_MAX], struct mu_run_problem *ret_problem)
{
    static const char *const names[] = { "python3", "python" };
    const char *given = mu_run_variable(vars, "PYTHON_EXEC"), *path = search_path(vars);
    int errnum;

    if (given != NULL && given[0] != '\0') {
        if (strlen(given) >= PATH_MAX)
            return no_program(ret_problem, ENAMETOOLONG, "PYTHON_EXEC");
        (void)strcpy(python, given);
        return check_program(given, path, ret_problem);
    }
    errnum = search(path, names, sizeof names / sizeof names[0], python);
    if (errnum == 0)
        return 0;
    return mu_run_problem(ret_problem, errnum == EACCES ? MU_RUN_PERMISSION : MU_RUN_NOT_FOUND,
                          "[Errno %d] %s: no python3 or python in PATH; set PYTHON_EXEC, or use --no-python", errnum,
                          strerror(errnum));
}

/* ---- The command ---- */

static char **copy_words(const char *const *head, size_t head_count, char *const *tail)
{
    size_t count = head_count, bytes = 0, i;
    char **words, *text;

    for (i = 0; i < head_count; i++)
        bytes += strlen(head[i]) + 1;
    for (i = 0; tail[i] != NULL; i++, count++)
        bytes += strlen(tail[i]) + 1;
    words = malloc((count + 1) * sizeof *words + bytes);
    if (words == NULL)
        return NULL;
    text = (char *)(words + count + 1);
    for (i = 0; i < count; i++) {
        words[i] = text;
        text = stpcpy(text, i < head_count ? head[i] : tail[i - head_count]) + 1;
    }
    words[count] = NULL;
    return words;
}

int mu_run_command_init(struct mu_run_command *command, const struct mu_run_options *options, bool is_launch,
                        char *const *vars, struct mu_run_problem *ret_problem)
{
    bool is_python = options->run_path || !options->no_python;
    char python[PATH_MAX];
    const char *head[8];
    size_t count = 0;
    int rc = is_python ? find_python(vars, python, ret_problem)
                       : check_program(options->script, search_path(vars), ret_problem);

    if (rc < 0)
        return rc;
    if (is_python) {
        head[count++] = python;
        head[count++] = "-u";
    }
    if (options->run_path) {
        head[count++] = "-c";
        head[count++] = run_path_code;
    } else if (is_python && options->module) {
        head[count++] = "-m";
    }
    if (is_python && (options->run_path || !options->module))
        command->script_index = count;
    head[count++] = options->script;
    if (is_launch && !options->use_env)
        head[count++] = "--local-rank=${local_rank}";
    command->argv = copy_words(head, count, options->args);
    if (command->argv == NULL)
        return mu_run_no_memory(ret_problem);
    command->run_path = options->run_path;
    command->old_torch = is_python && mu_interpreter_has_old_torch(python, mu_run_variable(vars, "HOME"));
    command->job = mu_report_job((const char *const *)command->argv, is_python, options->run_path);
    command->entry_point = options->run_path ? command->job : mu_report_entry_point(command->argv[0]);
    return 0;
}

void mu_run_command_done(struct mu_run_command *command)
{
    free(command->argv);
    *command = (struct mu_run_command){ 0 };
}

/* ---- Templates ---- */

static bool is_name_char(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* How long the template at `text` is, which begins with "$"; 0: it is none of ours. */
static size_t template_len(const char *text)
{
    static const char name[] = "local_rank";
    bool braces = text[1] == '{';
    const char *from = text + 1 + braces, *end = from + sizeof name - 1;

    if (strncmp(from, name, sizeof name - 1) != 0)
        return 0;
    if (braces)
        return *end == '}' ? (size_t)(end + 1 - text) : 0;
    return is_name_char(*end) ? 0 : (size_t)(end - text);
}

/* Writes the argument to `out`, unless that is NULL, and returns its length without the NUL. */
static size_t expand(const char *argument, const char *rank, char *out)
{
    size_t len = 0;

    while (*argument != '\0') {
        const char *from = argument;
        size_t take = 1, skip = 1;

        if (argument[0] == '$' && argument[1] == '$') {
            skip = 2;
        } else if (argument[0] == '$' && template_len(argument) > 0) {
            skip = template_len(argument);
            from = rank;
            take = strlen(rank);
        }
        if (out != NULL)
            memcpy(out + len, from, take);
        len += take;
        argument += skip;
    }
    if (out != NULL)
        out[len] = '\0';
    return len;
}

char **mu_run_command_argv(const struct mu_run_command *command, int64_t local_rank)
{
    size_t count = 1, bytes = strlen(command->argv[0]) + 1, i;
    char rank[24], **argv, *text;

    (void)snprintf(rank, sizeof rank, "%" PRId64, local_rank);
    for (; command->argv[count] != NULL; count++)
        bytes += expand(command->argv[count], rank, NULL) + 1;
    argv = malloc((count + 1) * sizeof *argv + bytes);
    if (argv == NULL)
        return NULL;
    text = (char *)(argv + count + 1);
    argv[0] = text;
    text = stpcpy(text, command->argv[0]) + 1;
    for (i = 1; i < count; i++) {
        argv[i] = text;
        text += expand(command->argv[i], rank, text) + 1;
    }
    argv[count] = NULL;
    return argv;
}

/* ---- The script ---- */

/* A relative path is shown with the directory it was looked for in. */
static int no_script(struct mu_run_problem *ret_problem, int errnum, const char *script)
{
    char directory[PATH_MAX];

    if (script[0] == '/' || getcwd(directory, sizeof directory) == NULL)
        return no_program(ret_problem, errnum, script);
    return mu_run_problem(ret_problem, errnum == EACCES ? MU_RUN_PERMISSION : MU_RUN_NOT_FOUND,
                          "[Errno %d] %s: '%s' (in '%s')", errnum, strerror(errnum), script, directory);
}

int mu_run_command_check_script(const struct mu_run_command *command, struct mu_run_problem *ret_problem)
{
    char **first; /* worker's arguments: a script may be named after its local rank */
    const char *script;
    int rc = 0;

    if (command->script_index == 0)
        return 0;
    first = mu_run_command_argv(command, 0);
    if (first == NULL)
        return mu_run_no_memory(ret_problem);
    script = first[command->script_index];
    if (strcmp(script, "-") != 0 && access(script, R_OK) < 0) /* Python reads "-" from standard input */
        rc = no_script(ret_problem, errno, script);
    free(first);
    return rc;
}

/* ---- Environment ---- */

char **mu_run_environment(const struct mu_run_config *config, const struct mu_agent_worker *worker, bool own_only)
{
    struct mu_worker_job job = {
        .role = config->role,
        .run_id = muster_rdzv_params_run_id(config->params),
        .max_restarts = config->max_restarts,
        .signals = config->signals_text,
        .old_torch = config->command.old_torch || mu_worker_is_for_1_13(config->params),
        .one_thread = config->set_omp,
        .virtual_local_rank = config->virtual_local_rank,
        .devices_of_hip = config->visible_devices_of_hip,
    };
    char device[24];

    (void)snprintf(device, sizeof device, "%" PRId64, worker->local_rank);
    if (config->virtual_local_rank)
        job.devices = config->visible_devices != NULL ? config->visible_devices[worker->local_rank] : device;
    return mu_worker_environment(&job, worker, (const char *const *)config->environ, own_only);
}
