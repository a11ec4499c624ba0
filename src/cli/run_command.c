/* A worker's command and its environment. */
#include "cli/run_command.h"

#include "agent/report.h"
#include "base/error.h"
#include "cli/run_config.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char path_default[] = "/bin:/usr/bin"; /* without a PATH, as in Python */

/* --run-path: the file runs as __main__ in an interpreter that tells of every exception in the error file. Whoever exits by
 * himself, with 0 or not, is taken at his word. There must be no dollar sign in it: it is an argument like the others. */
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

/* Looks for DIRECTORY/WORD in PATH. 0, with the path found; or the errno of the best that was found. */
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

static const char *search_path(mu_run_lookup *lookup, void *lookup_ctx)
{
    const char *path = lookup(lookup_ctx, "PATH");

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
static int find_python(mu_run_lookup *lookup, void *lookup_ctx, char python[static PATH_MAX],
                       struct mu_run_problem *ret_problem)
{
    static const char *const names[] = { "python3", "python" };
    const char *given = lookup(lookup_ctx, "PYTHON_EXEC"), *path = search_path(lookup, lookup_ctx);
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
                        mu_run_lookup *lookup, void *lookup_ctx, struct mu_run_problem *ret_problem)
{
    bool is_python = options->run_path || !options->no_python;
    char python[PATH_MAX];
    const char *head[8];
    size_t count = 0;
    int rc = is_python ? find_python(lookup, lookup_ctx, python, ret_problem)
                       : check_program(options->script, search_path(lookup, lookup_ctx), ret_problem);

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
    head[count++] = options->script;
    if (is_launch && !options->use_env)
        head[count++] = "--local-rank=${local_rank}";
    command->argv = copy_words(head, count, options->args);
    if (command->argv == NULL)
        return mu_run_no_memory(ret_problem);
    command->run_path = options->run_path;
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

/* ---- Environment ---- */

/* Variables are counted first, then written into one block: pointers, behind them the texts. */
struct block {
    char **vars; /* NULL while counting */
    char *text;
    size_t count, bytes;
};

static void put(struct block *block, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct block *block, const char *format, ...)
{
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(block->vars == NULL ? NULL : block->text, block->vars == NULL ? 0 : INT_MAX, format, args);
    va_end(args);
    assert(len > 0);
    if (block->vars != NULL) {
        block->vars[block->count] = block->text;
        block->text += len + 1;
    }
    block->count++;
    block->bytes += (size_t)len + 1;
}

static bool inherits(const struct mu_run_config *config, const char *name)
{
    return mu_run_lookup_environ((void *)(uintptr_t)config->environ, name) != NULL;
}

static void put_devices(struct block *block, const struct mu_run_config *config, int64_t local_rank)
{
    if (config->visible_devices != NULL)
        put(block, "CUDA_VISIBLE_DEVICES=%s", config->visible_devices[local_rank]);
    else
        put(block, "CUDA_VISIBLE_DEVICES=%" PRId64, local_rank);
}

static void put_own(struct block *block, const struct mu_run_config *config, const struct mu_run_worker *worker)
{
    put(block, "LOCAL_RANK=%" PRId64, config->virtual_local_rank ? 0 : worker->local_rank);
    put(block, "RANK=%" PRId64, worker->rank);
    put(block, "GROUP_RANK=%" PRId64, worker->group_rank);
    put(block, "ROLE_RANK=%" PRId64, worker->role_rank);
    put(block, "ROLE_NAME=%s", config->role);
    put(block, "LOCAL_WORLD_SIZE=%" PRId64, worker->local_world_size);
    put(block, "WORLD_SIZE=%" PRId64, worker->world_size);
    put(block, "GROUP_WORLD_SIZE=%" PRId64, worker->group_world_size);
    put(block, "ROLE_WORLD_SIZE=%" PRId64, worker->role_world_size);
    put(block, "MASTER_ADDR=%s", worker->master_addr);
    put(block, "MASTER_PORT=%u", (unsigned)worker->master_port);
    put(block, "TORCHELASTIC_RESTART_COUNT=%" PRId64, worker->restart_count);
    put(block, "TORCHELASTIC_MAX_RESTARTS=%" PRId64, config->max_restarts);
    put(block, "TORCHELASTIC_RUN_ID=%s", muster_rdzv_params_run_id(config->params));
    put(block, "TORCHELASTIC_USE_AGENT_STORE=%s", worker->use_agent_store ? "True" : "False");
    put(block, "TORCHELASTIC_SIGNALS_TO_HANDLE=%s", config->signals_text);
    put(block, "TORCHELASTIC_ERROR_FILE=%s", worker->error_file);
    if (worker->timer_file != NULL)
        put(block, "TORCHELASTIC_TIMER_FILE=%s", worker->timer_file);
    if (!inherits(config, "TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        put(block, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
    if (!inherits(config, "NCCL_ASYNC_ERROR_HANDLING")) /* the same to 1.13 */
        put(block, "NCCL_ASYNC_ERROR_HANDLING=1");
    if (config->set_omp)
        put(block, "OMP_NUM_THREADS=1");
    if (config->virtual_local_rank)
        put_devices(block, config, worker->local_rank);
}

static bool is_own(const struct block *block, const char *var)
{
    const char *equals = strchr(var, '=');
    size_t len = equals == NULL ? 0 : (size_t)(equals + 1 - var);

    for (size_t i = 0; len > 0 && i < block->count; i++) {
        if (strncmp(block->vars[i], var, len) == 0)
            return true;
    }
    return false;
}

static char **environment(const struct mu_run_config *config, const struct mu_run_worker *worker,
                          char *const *inherited)
{
    struct block block = { 0 };
    size_t count = 0, own;

    while (inherited[count] != NULL)
        count++;
    put_own(&block, config, worker);
    count += block.count;
    block.vars = malloc((count + 1) * sizeof *block.vars + block.bytes);
    if (block.vars == NULL)
        return NULL;
    block.text = (char *)(block.vars + count + 1);
    block.count = 0;
    put_own(&block, config, worker);
    for (own = block.count; *inherited != NULL; inherited++) {
        if (!is_own(&block, *inherited))
            block.vars[own++] = *inherited;
    }
    block.vars[own] = NULL;
    return block.vars;
}

char **mu_run_environment(const struct mu_run_config *config, const struct mu_run_worker *worker)
{
    return environment(config, worker, config->environ);
}

char **mu_run_environment_own(const struct mu_run_config *config, const struct mu_run_worker *worker)
{
    static char *const none[] = { NULL };

    return environment(config, worker, none);
}
