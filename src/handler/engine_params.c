/* See engine_params.h. */
#include "handler/engine_params.h"

#include "store/engine.h"

#include <assert.h>
#include <inttypes.h>

uint64_t mu_engine_job_lease_s(uint64_t lease_s)
{
    return lease_s * 4 > MU_ENGINE_JOB_LEASE_S ? lease_s * 4 : MU_ENGINE_JOB_LEASE_S;
}

/* One or two of them may fail. */
uint64_t mu_engine_renew_ms(uint64_t fence_s)
{
    return fence_s * 1000 / 3;
}

static bool is_given(const struct muster_rdzv_params *params, const char *key)
{
    struct muster_value value;

    return muster_rdzv_params_get(params, key, &value);
}

/* 0: it is not given. */
static int read_optional(const struct muster_rdzv_params *params, const char *key, int64_t max_s, uint64_t *ret_s,
                         struct muster_error *reterr)
{
    *ret_s = 0;
    return is_given(params, key) ? mu_rdzv_seconds_from_params(params, key, 0, 1, max_s, ret_s, reterr) : 0;
}

int mu_engine_fence_from_params(const struct muster_rdzv_params *params, uint64_t *ret_s, struct muster_error *reterr)
{
    return read_optional(params, "fence", MU_ENGINE_FENCE_MAX_S, ret_s, reterr);
}

int mu_engine_window_from_params(const struct muster_rdzv_params *params, uint64_t *ret_s, struct muster_error *reterr)
{
    return read_optional(params, "restart_window", MU_FOLD_WINDOW_MAX_S, ret_s, reterr);
}

int mu_engine_check_nodes(const struct mu_rdzv_settings *settings, struct muster_error *reterr)
{
    if (settings->nodes_min <= MU_FOLD_MEMBERS_MAX)
        return 0;
    return mu_fail(reterr, MUSTER_EINVAL,
                   "a minimum of %" PRId64 " nodes is more than %u, the most that fit into a round of etcd-v3, or of "
                   "c10d; with engine=off there may be more",
                   settings->nodes_min, MU_FOLD_MEMBERS_MAX);
}

int mu_engine_take_token_file(struct muster_rdzv_params *params, const char *path, struct muster_error *reterr)
{
    char word[MU_RDZV_WORD_MAX];
    int rc;

    if (path == NULL || path[0] == '\0' || strcmp(muster_rdzv_params_backend(params), "c10d") != 0 ||
        is_given(params, "token_file"))
        return 0;
    rc = mu_rdzv_word_from_params(params, "engine", MU_ENGINE_DEFAULT, word, reterr);
    if (rc == 0 && strcmp(word, "off") == 0)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "MUSTER_TOKEN_FILE is set, and there is no token with --rdzv-conf engine=off");
    return rc == 0 ? muster_rdzv_params_set_text(params, "token_file", path, reterr) : rc;
}

int mu_engine_token_file(const struct muster_rdzv_params *params, const char **ret_path, struct muster_error *reterr)
{
    struct muster_value value = { .kind = MUSTER_VALUE_TEXT, .text = NULL };

    if (muster_rdzv_params_get(params, "token_file", &value) && value.kind != MUSTER_VALUE_TEXT)
        return mu_fail(reterr, MUSTER_EINVAL, "option 'token_file' is not text");
    *ret_path = value.text;
    return 0;
}

static int need_engine(const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    static const char *const keys[] = { "fence", "restart_window", "token_file" };

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (is_given(params, keys[i]))
            return mu_fail(reterr, MUSTER_EINVAL, "option '%s' does not go with engine=off", keys[i]);
    return 0;
}

static uint64_t lease_ms(const struct muster_rdzv_params *params, const struct mu_rdzv_settings *settings)
{
    uint64_t ms = mu_rdzv_death_age_ms(settings);

    if (!is_given(params, "keep_alive_interval") && !is_given(params, "keep_alive_max_attempt"))
        return MU_ENGINE_LEASE_MS;
    return ms < MU_ENGINE_LEASE_MAX_MS ? ms : MU_ENGINE_LEASE_MAX_MS;
}

int mu_engine_params_read(const struct muster_rdzv_params *params, const struct mu_dynamic_config *dynamic, bool engine,
                          struct mu_engine_params *ret_engine, struct muster_error *reterr)
{
    struct mu_engine_params found = { .service = "the store",
                                      .lease_ms = lease_ms(params, &dynamic->settings),
                                      .first_ms = dynamic->request_timeout_ms,
                                      .ops_max = MU_ENGINE_OPS_MAX,
                                      .tells_how = true };
    int rc = engine ? mu_engine_check_nodes(&dynamic->settings, reterr) : need_engine(params, reterr);

    if (rc == 0)
        rc = mu_engine_fence_from_params(params, &found.fence_s, reterr);
    if (rc == 0)
        rc = mu_engine_window_from_params(params, &found.restart_window_s, reterr);
    if (rc < 0)
        return rc;
    found.job_lease_ms = mu_engine_job_lease_s((found.lease_ms + 999) / 1000) * 1000;
    assert(found.job_lease_ms <= MU_ENGINE_TTL_MAX_MS);
    *ret_engine = found;
    return 0;
}

struct mu_fold_config mu_engine_fold_config(const struct mu_engine_params *engine,
                                            const struct mu_rdzv_settings *settings, const struct mu_node *me,
                                            const uint64_t random[static 2])
{
    return (struct mu_fold_config){
        .settings = *settings,
        .service = engine->service,
        .name = me->name.data,
        .pid = me->pid,
        .local_id = me->local_id,
        .id = random[0] != 0 ? random[0] : 1, /* 0 is nobody */
        .lease_ms = engine->lease_ms,
        .job_lease_ms = engine->job_lease_ms,
        .first_ms = engine->first_ms,
        .ops_max = engine->ops_max,
        .tells_how = engine->tells_how,
        .wants_names = true,
        .restart_window_s = engine->restart_window_s,
        .fence_ms = engine->fence_s * 1000,
        .seed = random[1],
    };
}
