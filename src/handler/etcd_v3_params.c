/* Parameters of the rendezvous etcd-v3. */
#include "handler/etcd_v3_params.h"

#include "kv/engine_etcd3.h"

#include <string.h>

static const char *text_option(const struct muster_rdzv_params *params, const char *key)
{
    struct muster_value value;

    return muster_rdzv_params_get(params, key, &value) && value.kind == MUSTER_VALUE_TEXT && value.text[0] != '\0'
               ? value.text
               : NULL;
}

static int read_leases(const struct muster_rdzv_params *params, struct mu_v3_place *place, struct muster_error *reterr)
{
    int64_t job_lease_s;
    int rc = mu_rdzv_seconds_from_params(params, "lease", MU_V3_LEASE_S, MU_V3_LEASE_MIN_S, MU_V3_LEASE_MAX_S,
                                         &place->lease_s, reterr);

    if (rc < 0)
        return rc;
    job_lease_s = (int64_t)mu_engine_job_lease_s(place->lease_s);
    if (job_lease_s > MU_V3_LEASE_MAX_S)
        job_lease_s = MU_V3_LEASE_MAX_S;
    return mu_rdzv_seconds_from_params(params, "job_lease", job_lease_s, (int64_t)place->lease_s, MU_V3_LEASE_MAX_S,
                                       &place->job_lease_s, reterr);
}

int mu_v3_place_read(const struct muster_rdzv_params *params, struct mu_v3_place *ret_place,
                     struct muster_error *reterr)
{
    struct mu_v3_place place = {
        .run_id = muster_rdzv_params_run_id(params),
        .local_addr = muster_rdzv_params_local_addr(params),
        .http = { .endpoints = muster_rdzv_params_endpoint(params),
                  .protocol = text_option(params, "protocol"),
                  .ca_file = text_option(params, "cacert"),
                  .cert_file = text_option(params, "cert"),
                  .key_file = text_option(params, "key") },
        .user = text_option(params, "user"),
        .password = text_option(params, "password"),
        .token = text_option(params, "token"),
    };
    int rc = mu_rdzv_check_options("etcd-v3", params, reterr);

    if (rc == 0)
        rc = mu_rdzv_settings_from_params(params, &place.settings, reterr);
    if (rc == 0)
        rc = mu_rdzv_settings_check(place.run_id, &place.settings, reterr);
    if (rc == 0)
        rc = mu_engine_check_nodes(&place.settings, reterr);
    if (rc == 0)
        rc = mu_dynamic_check_name(place.local_addr, reterr);
    if (rc == 0)
        rc = muster_rdzv_params_get_as_bool(params, "use_agent_store", true, &place.use_agent_store, reterr);
    if (rc == 0)
        rc = read_leases(params, &place, reterr);
    if (rc == 0)
        rc = mu_engine_fence_from_params(params, &place.fence_s, reterr);
    if (rc == 0)
        rc = mu_engine_window_from_params(params, &place.restart_window_s, reterr);
    if (rc == 0)
        rc = mu_rdzv_seconds_from_params(params, "read_timeout", MU_V3_READ_TIMEOUT_S, 1, MU_V3_LEASE_MAX_S,
                                         &place.first_s, reterr);
    if (rc == 0)
        rc = mu_bind_from_params(params, &place.bind, reterr);
    if (rc == 0)
        rc = mu_boot_master_from_params(params, &place.master, reterr);
    if (rc == 0 && (place.user == NULL) != (place.password == NULL))
        rc = mu_fail(reterr, MUSTER_EINVAL, "options 'user' and 'password' must be given together");
    if (rc < 0)
        return rc;
    if (place.http.endpoints == NULL || place.http.endpoints[0] == '\0')
        place.http.endpoints = "localhost:2379";
    *ret_place = place;
    return 0;
}

struct mu_boot_config mu_v3_boot_config(const struct mu_v3_place *place)
{
    return (struct mu_boot_config){
        .run_id = place->run_id,
        .local_addr = place->local_addr,
        .bind = place->bind,
        .master = place->master,
        .use_agent_store = place->use_agent_store,
        .agents_store = true,
        .nodes_max = place->settings.nodes_max,
    };
}

struct mu_fold_config mu_v3_fold_config(const struct mu_v3_place *place, const struct mu_node *me,
                                        const uint64_t random[static 2])
{
    const struct mu_engine_params engine = {
        .service = "etcd",
        .lease_ms = place->lease_s * 1000,
        .job_lease_ms = place->job_lease_s * 1000,
        .fence_s = place->fence_s,
        .restart_window_s = place->restart_window_s,
        .first_ms = place->first_s * 1000,
        .ops_max = MU_ENGINE_ETCD3_OPS_MAX,
    };

    return mu_engine_fold_config(&engine, &place->settings, me, random);
}
