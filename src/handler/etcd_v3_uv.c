/* The rendezvous `etcd-v3`: a fold machine (fold_uv.h) whose engine client talks to etcd. Here are its parameters, its
 * start and its end. */
#include "base/random.h"
#include "handler/etcd_v3_params.h"
#include "handler/fold_uv.h"
#include "kv/engine_etcd3.h"
#include "kv/engine_etcd3_uv.h"
#include "store/placed_server_uv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct v3 {
    struct mu_shell shell;
    struct muster_rdzv_params *params; /* its texts are the place's */
    struct mu_v3_place place;
    char hostname[MU_HANDLER_NAME_MAX]; /* our name, unless the place has one */
    struct mu_fold_uv fold;
};

/* ---- The handler ---- */

static bool v3_use_agent_store(const struct muster_handler *handler)
{
    return ((const struct v3 *)handler)->place.use_agent_store;
}

static bool v3_endpoint(const struct muster_handler *handler, char *ret_host, size_t room, uint16_t *ret_port)
{
    const struct v3 *v = (const struct v3 *)handler;

    if (!mu_meeting_is_known(&v->fold.meeting, v->fold.fold))
        return false;
    (void)snprintf(ret_host, room, "%s", v->fold.meeting.master.addr);
    *ret_port = v->fold.meeting.master.agents_port;
    return true;
}

static bool v3_hosts(const struct muster_handler *handler)
{
    const struct v3 *v = (const struct v3 *)handler;

    return mu_meeting_hosts(v->fold.fold, mu_boot_uv_agents_store(&v->shell.boot) != NULL);
}

static void v3_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx)
{
    struct v3 *v = (struct v3 *)handler;

    if (mu_boot_uv_agents_store(&v->shell.boot) != NULL)
        mu_placed_server_when_alone(mu_boot_uv_agents_store(&v->shell.boot), alone, ctx);
}

static bool v3_will(struct muster_handler *handler, struct mu_will *will)
{
    mu_fold_uv_keep_will(&((struct v3 *)handler)->fold, will);
    return true;
}

static void destroy(struct mu_shell *shell)
{
    struct v3 *v = (struct v3 *)shell;

    mu_fold_uv_done(&v->fold);
    mu_boot_uv_done(&shell->boot);
    muster_rdzv_params_free(v->params);
    free(v);
}

static void v3_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct v3 *v = (struct v3 *)handler;

    mu_fold_uv_close(&v->fold);
    mu_shell_close(&v->shell, done, ctx);
}

static const struct muster_handler_ops v3_ops = {
    MU_HANDLER_OPS("etcd-v3"), .use_agent_store = v3_use_agent_store, .free = v3_free, .endpoint = v3_endpoint,
    .hosts = v3_hosts,         .when_alone = v3_when_alone,
};

static const struct mu_shell_ops shell_ops = { MU_FOLD_UV_SHELL_OPS, .destroy = destroy };

/* ---- What agents tell ---- */

static const struct mu_handler_ops agent_ops = {
    .introduce = mu_shell_introduce,
    .report = mu_shell_report,
    .will = v3_will,
};

/* ---- Start ---- */

static int start_client(struct v3 *v, struct muster_error *reterr)
{
    struct mu_engine_etcd3_config config = {
        .etcd = { .http = v->place.http,
                  .user = v->place.user,
                  .password = v->place.password,
                  .token = v->place.token },
        .run_id = v->place.run_id,
        .lease_s = v->place.lease_s,
        .job_lease_s = v->place.job_lease_s,
        .renew_ms = mu_engine_renew_ms(v->place.fence_s),
    };

    config.etcd.http.seed = mu_fresh_seed();
    return mu_engine_etcd3_start(v->shell.loop, &config, mu_fold_uv_heard, &v->fold, &v->fold.client, reterr);
}

static int make_machines(struct v3 *v, struct muster_error *reterr)
{
    const struct mu_v3_place *place = &v->place;
    const struct mu_boot_config boot = mu_v3_boot_config(place);
    struct mu_fold_config fold;
    uint64_t random[3];
    int rc = mu_random(random, sizeof random, reterr);

    if (rc < 0)
        return rc;
    v->shell.me = (struct mu_node){ mu_slice_str(mu_handler_node_name(place->local_addr, v->hostname)), getpid(),
                                    mu_node_local_id(MU_NODE_VERSION, (uint32_t)random[0]) };
    fold = mu_v3_fold_config(place, &v->shell.me, random + 1);
    rc = mu_boot_uv_init(&v->shell.boot, &boot, reterr);
    if (rc == 0)
        rc = mu_fold_new(&fold, &v->fold.fold, reterr);
    mu_handler_loss_by_lease(&v->shell.handler, place->lease_s, 0);
    v->shell.part = v->fold.fold;
    v->shell.driver = &v->fold;
    v->shell.run_id = place->run_id;
    v->shell.nodes_min = place->settings.nodes_min;
    v->shell.nodes_max = place->settings.nodes_max;
    return rc;
}

int mu_etcd_v3_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                     void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct v3 *v = calloc(1, sizeof *v);
    int rc;

    if (v == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    v->shell.handler = (struct mu_handler){ .base = { &v3_ops }, .ops = &agent_ops };
    v->shell.loop = loop;
    v->fold.shell = &v->shell;
    rc = muster_rdzv_params_copy(params, &v->params, reterr);
    if (rc == 0)
        rc = mu_v3_place_read(v->params, &v->place, reterr);
    if (rc == 0)
        rc = make_machines(v, reterr);
    if (rc == 0)
        rc = start_client(v, reterr);
    if (rc < 0) {
        destroy(&v->shell);
        return mu_wrap(reterr, rc, "rendezvous etcd-v3");
    }
    mu_shell_init(&v->shell, loop, &shell_ops, v->place.settings.join_ms, listener, ctx);
    mu_shell_open(&v->shell, NULL);
    *ret_handler = &v->shell.handler.base;
    return 0;
}
