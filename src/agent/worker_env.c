/* A worker's environment. Its own variables are counted first, then written into one block: pointers, behind them the
 * texts. */
#include "agent/worker_env.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct block {
    const char **vars; /* NULL while counting */
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

static bool has(const char *const *list, const char *name)
{
    size_t len = strlen(name);

    for (; *list != NULL; list++) {
        if (strncmp(*list, name, len) == 0 && (*list)[len] == '=')
            return true;
    }
    return false;
}

bool mu_worker_is_for_1_13(const struct muster_rdzv_params *params)
{
    struct muster_value dialect;

    return params != NULL && muster_rdzv_params_get(params, "dialect", &dialect) && dialect.kind == MUSTER_VALUE_TEXT &&
           strcmp(dialect.text, "1.13") == 0;
}

static void put_own(struct block *block, const struct mu_worker_job *job, const struct mu_agent_worker *worker,
                    const char *const *inherited)
{
    put(block, "LOCAL_RANK=%" PRId64, job->virtual_local_rank ? 0 : worker->local_rank);
    put(block, "RANK=%" PRId64, worker->rank);
    put(block, "GROUP_RANK=%" PRId64, worker->group_rank);
    put(block, "ROLE_RANK=%" PRId64, worker->role_rank);
    put(block, "ROLE_NAME=%s", job->role);
    put(block, "LOCAL_WORLD_SIZE=%" PRId64, worker->local_world_size);
    put(block, "WORLD_SIZE=%" PRId64, worker->world_size);
    put(block, "GROUP_WORLD_SIZE=%" PRId64, worker->group_world_size);
    put(block, "ROLE_WORLD_SIZE=%" PRId64, worker->role_world_size);
    put(block, "MASTER_ADDR=%s", worker->master_addr);
    put(block, "MASTER_PORT=%u", (unsigned)worker->master_port);
    put(block, "TORCHELASTIC_RESTART_COUNT=%" PRId64, worker->restart_count);
    put(block, "TORCHELASTIC_MAX_RESTARTS=%" PRId64, job->max_restarts);
    put(block, "TORCHELASTIC_RUN_ID=%s", job->run_id);
    put(block, "TORCHELASTIC_USE_AGENT_STORE=%s", worker->use_agent_store ? "True" : "False");
    if (job->signals != NULL)
        put(block, "TORCHELASTIC_SIGNALS_TO_HANDLE=%s", job->signals);
    put(block, "TORCHELASTIC_ERROR_FILE=%s", worker->error_file);
    if (worker->timer_file != NULL)
        put(block, "TORCHELASTIC_TIMER_FILE=%s", worker->timer_file);
    if (!has(inherited, "TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        put(block, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
    if (job->old_torch && !has(inherited, "NCCL_ASYNC_ERROR_HANDLING")) /* its name then; 2.2 and later warn of it */
        put(block, "NCCL_ASYNC_ERROR_HANDLING=1");
    if (job->one_thread)
        put(block, "OMP_NUM_THREADS=1");
    if (job->devices != NULL)
        put(block, "CUDA_VISIBLE_DEVICES=%s", job->devices);
    if (job->devices != NULL && job->devices_of_hip)
        put(block, "HIP_VISIBLE_DEVICES=%s", job->devices);
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

/* Workers have no use for the token of their job, nor for where it is. */
static bool is_launchers(const char *variable)
{
    static const char token_file[] = "MUSTER_TOKEN_FILE=";

    return strncmp(variable, token_file, sizeof token_file - 1) == 0;
}

char **mu_worker_environment(const struct mu_worker_job *job, const struct mu_agent_worker *worker,
                             const char *const *inherited, bool own_only)
{
    struct block block = { 0 };
    size_t count = 0, used;

    while (!own_only && inherited[count] != NULL)
        count++;
    put_own(&block, job, worker, inherited);
    count += block.count;
    block.vars = malloc((count + 1) * sizeof *block.vars + block.bytes);
    if (block.vars == NULL)
        return NULL;
    block.text = (char *)(block.vars + count + 1);
    block.count = 0;
    put_own(&block, job, worker, inherited);
    for (used = block.count; !own_only && *inherited != NULL; inherited++) {
        if (!is_own(&block, *inherited) && !is_launchers(*inherited))
            block.vars[used++] = *inherited;
    }
    block.vars[used] = NULL;
    return (char **)block.vars;
}
