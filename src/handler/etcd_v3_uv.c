/* The rendezvous `etcd-v3`: what its owner and the boot are told, its start and its end. The requests of its machine
 * (rdzv/fold.h: members and rounds) go to etcd through an engine client (kv/engine_client.h); the rest is the shell's
 * (shell_uv.h).
 *
 * Happy path: join -> the fold machine takes a lease, writes this node's record, and watches until the document has us
 * and it tells JOINED -> the boot machine opens the round's store and publishes it (job/master), or waits for it ->
 * the owner is told JOINED. A failure of the boot leaves the round and is told as FAILED. When etcd is away, the
 * client and the machine try again; nothing is told but that it is away. Freeing the handler ends its lease, and with
 * it all keys of this node. */
#include "base/clock.h"
#include "base/log.h"
#include "handler/etcd_v3_params.h"
#include "handler/meeting.h"
#include "handler/shell_uv.h"
#include "kv/engine_etcd3.h"
#include "kv/engine_etcd3_uv.h"
#include "kv/kv_job_uv.h"
#include "store/server_uv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#define OWN_ID (UINT64_C(1) << 63) /* in ids of the handler's own requests: the machine counts from 1 */

struct v3 {
    struct mu_shell shell;
    struct muster_rdzv_params *params; /* its texts are the place's */
    struct mu_v3_place place;
    char hostname[MU_HANDLER_NAME_MAX]; /* our name, unless the place has one */
    struct mu_meeting meeting;
    struct mu_engine_client *client;
    struct mu_fold *fold;
    struct mu_kv *kvs[2]; /* of an agent, and of its user; NULL: none */
};

static struct v3 *v3_of(struct mu_shell *shell)
{
    return (struct v3 *)shell;
}

/* ---- Telling ---- */

static void tell_members(struct v3 *v, struct muster_rdzv_event *event, bool only_lost)
{
    const struct mu_fold_world *world = mu_fold_world(v->fold);
    struct mu_node *nodes = calloc(world->count + 1, sizeof *nodes);
    size_t count = 0;

    for (size_t i = 0; nodes != NULL && i < world->count; i++)
        if (!only_lost || mu_fold_is_lost(v->fold, i))
            nodes[count++] = world->members[i].node;
    mu_shell_say_nodes(&v->shell, event, nodes, count);
    free(nodes);
}

/* A member without a record has lost its lease, unless it has ended it, and left a note for the agents. */
static void tell_lost(struct v3 *v, struct muster_rdzv_event *event)
{
    char cause[64];

    (void)snprintf(cause, sizeof cause, "no keep-alive for %" PRIu64 " s", v->place.lease_s);
    event->cause = cause;
    tell_members(v, event, true);
}

static void tell_progress(struct v3 *v, struct muster_rdzv_event *event)
{
    const struct mu_waiters *crowd = mu_fold_crowd(v->fold);
    char note[MU_WAITERS_NOTE_MAX];

    event->note = mu_fold_note(v->fold, note);
    mu_shell_say_nodes(&v->shell, event, crowd->nodes, crowd->count);
}

static void meet_agents(struct v3 *v)
{
    const char *addr = mu_meeting_agents_addr(&v->meeting, v->fold, mu_boot_uv_agents_store(&v->shell.boot) != NULL);

    for (size_t i = 0; i < 2 && addr != NULL; i++)
        if (v->kvs[i] != NULL)
            mu_kv_job_meet(v->kvs[i], addr, v->meeting.master.agents_port);
}

static void on_tell(struct mu_shell *shell, struct muster_rdzv_event *event, const struct mu_part_news *news)
{
    struct v3 *v = v3_of(shell);

    (void)news;
    if (event->type == MUSTER_RDZV_JOINED) {
        meet_agents(v);
        tell_members(v, event, false);
    } else if (event->type == MUSTER_RDZV_PEERS_LOST) {
        tell_lost(v, event);
    } else if (event->type == MUSTER_RDZV_PROGRESS) {
        tell_progress(v, event);
    } else {
        mu_shell_say(shell, event);
    }
}

static void on_own(struct mu_shell *shell, const void *told)
{
    const struct mu_fold_effect *effect = told;

    if (effect->type == MU_FOLD_DO_COMPLETED) {
        mu_shell_record(shell,
                        (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_MARKS_COMPLETE, .round = effect->news.round });
        mu_shell_record(shell, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_SYNCED });
    } else if (effect->type == MU_FOLD_DO_LEADER) {
        mu_log(MUSTER_LOG_DEBUG, "rendezvous '%s': this node writes the job's document now", shell->run_id);
    }
}

/* ---- Where the round meets ---- */

/* A GET of the boot's that waits may be answered now. */
static void answer_get(struct v3 *v)
{
    struct mu_boot_event answer;
    bool answered = mu_meeting_answer(&v->meeting, v->fold, uv_now(v->shell.loop), &answer);

    v->shell.also_ms = mu_meeting_deadline_ms(&v->meeting);
    if (answered)
        mu_boot_uv_answer(&v->shell.boot, answer);
}

static void on_time(struct mu_shell *shell)
{
    answer_get(v3_of(shell));
}

static uint16_t agents_port(const struct v3 *v)
{
    const struct mu_server *agents = mu_boot_uv_agents_store(&v->shell.boot);

    return agents != NULL ? mu_addr_port(mu_server_address(agents)) : 0;
}

static void make_request(struct mu_shell *shell, const void *effect)
{
    struct v3 *v = v3_of(shell);

    v->client->ops->request(v->client, effect, mu_fold_request_until_ms(v->fold, uv_now(shell->loop)));
}

/* Writes job/master; what comes of it answers the boot's `id`. 0 or MUSTER_ENOMEM. */
static int publish(struct v3 *v, uint64_t id, const struct mu_fold_master *master)
{
    struct mu_buf value = { 0 };
    int rc = mu_fold_master_write(master, &value);

    if (rc == 0) {
        struct mu_fold_write write = mu_meeting_write(v->fold, mu_buf_slice(&value));

        make_request(&v->shell,
                     &(struct mu_fold_effect){ .type = MU_FOLD_DO_WRITE, .id = id | OWN_ID, .write = &write });
    }
    mu_buf_done(&value);
    return rc;
}

static void on_boot_request(struct mu_shell *shell, const struct mu_boot_effect *effect)
{
    static const struct muster_error no_memory = { .code = MUSTER_ENOMEM, .text = "no memory for a request to etcd" };
    struct v3 *v = v3_of(shell);
    struct mu_boot_event answer;
    struct mu_fold_master master;
    enum mu_meeting_reply reply =
        mu_meeting_ask(&v->meeting, v->fold, effect, agents_port(v), uv_now(shell->loop), &answer, &master);

    shell->also_ms = mu_meeting_deadline_ms(&v->meeting);
    mu_shell_arm(shell);
    if (reply == MU_MEETING_PUBLISH && publish(v, effect->id, &master) < 0) {
        answer = (struct mu_boot_event){ .type = MU_BOOT_ON_REQUEST_FAILED, .id = effect->id, .error = &no_memory };
        reply = MU_MEETING_ANSWER;
    }
    if (reply == MU_MEETING_ANSWER)
        mu_boot_uv_answer(&shell->boot, answer);
}

static void start_boot(struct mu_shell *shell)
{
    struct v3 *v = v3_of(shell);
    char own_addr[MU_ADDR_TEXT_MAX] = "", rank0[MU_NODE_TEXT_MAX];
    struct mu_boot_start start = mu_meeting_boot_start(v->fold, shell->me.name, rank0);

    start.own_addr = own_addr;
    if (!v->client->ops->local_address(v->client, own_addr, sizeof own_addr))
        own_addr[0] = '\0';
    mu_boot_uv_start(&shell->boot, &start);
}

/* ---- What comes back from the client ---- */

static void tell_kvs(struct v3 *v, const struct mu_slice *changed)
{
    for (size_t i = 0; i < 2; i++)
        if (v->kvs[i] != NULL)
            mu_kv_job_changed(v->kvs[i], changed);
}

/* The machine's event, and what of it is not the machine's: where the round meets, and the agents' keys. */
static void on_heard(void *ctx, const struct mu_fold_event *event)
{
    struct v3 *v = ctx;
    struct mu_slice key;

    if ((event->id & OWN_ID) != 0) {
        mu_boot_uv_answer(&v->shell.boot, mu_meeting_published(&v->meeting, event->id & ~OWN_ID, event));
        return;
    }
    mu_meeting_see(&v->meeting, event);
    if (event->type == MU_FOLD_ON_LOADED && event->scope == MU_FOLD_JOB)
        tell_kvs(v, NULL);
    for (size_t i = 0; i < event->count; i++)
        if (mu_engine_etcd3_agents_key(event->kvs[i].key, &key))
            tell_kvs(v, &key);
    mu_shell_feed(&v->shell, event);
    if (!v->shell.freeing)
        answer_get(v);
}

/* ---- The handler ---- */

static bool v3_use_agent_store(const struct muster_handler *handler)
{
    return ((const struct v3 *)handler)->place.use_agent_store;
}

static bool v3_endpoint(const struct muster_handler *handler, char *ret_host, size_t room, uint16_t *ret_port)
{
    const struct v3 *v = (const struct v3 *)handler;

    if (!mu_meeting_is_known(&v->meeting, v->fold))
        return false;
    (void)snprintf(ret_host, room, "%s", v->meeting.master.addr);
    *ret_port = v->meeting.master.agents_port;
    return true;
}

static bool v3_hosts(const struct muster_handler *handler)
{
    const struct v3 *v = (const struct v3 *)handler;

    return mu_meeting_hosts(v->fold, mu_boot_uv_agents_store(&v->shell.boot) != NULL);
}

static void v3_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx)
{
    struct v3 *v = (struct v3 *)handler;

    if (mu_boot_uv_agents_store(&v->shell.boot) != NULL)
        mu_server_when_alone(mu_boot_uv_agents_store(&v->shell.boot), alone, ctx);
}

static void destroy(struct mu_shell *shell)
{
    struct v3 *v = v3_of(shell);

    mu_fold_free(v->fold);
    mu_boot_uv_done(&shell->boot);
    muster_rdzv_params_free(v->params);
    free(v);
}

static void v3_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct v3 *v = (struct v3 *)handler;

    for (size_t i = 0; i < 2; i++) {
        if (v->kvs[i] != NULL)
            mu_kv_job_detach(v->kvs[i]); /* and it is not heard of again */
        v->kvs[i] = NULL;
    }
    mu_shell_hold(&v->shell);
    v->client->ops->close(v->client, mu_shell_drop, v);
    mu_shell_close(&v->shell, done, ctx);
}

static const struct muster_handler_ops v3_ops = {
    MU_HANDLER_OPS("etcd-v3"), .use_agent_store = v3_use_agent_store, .free = v3_free, .endpoint = v3_endpoint,
    .hosts = v3_hosts,         .when_alone = v3_when_alone,
};

static const struct mu_shell_ops shell_ops = {
    .part = &mu_fold_part,
    .request = make_request,
    .own = on_own,
    .start_boot = start_boot,
    .boot_request = on_boot_request,
    .tell = on_tell,
    .on_time = on_time,
    .destroy = destroy,
};

/* ---- The store of agents ---- */

static int64_t job_lease(void *ctx)
{
    return mu_fold_job_lease(((struct v3 *)ctx)->fold);
}

static void on_kv_closing(struct mu_kv *kv, void *ctx)
{
    struct v3 *v = ctx;

    v->kvs[kv == v->kvs[1]] = NULL;
}

static int open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct v3 *v = (struct v3 *)handler;
    char prefix[MU_ENGINE_ETCD3_PREFIX_MAX + 8], marks[MU_ENGINE_ETCD3_PREFIX_MAX + 8];
    struct mu_engine_etcd3_names names = { .prefix = "" };
    struct mu_kv_job_config config = { .run_id = v->place.run_id,
                                       .prefix = prefix,
                                       .marks = marks,
                                       .etcd = mu_engine_etcd3_client(v->client),
                                       .lease = job_lease,
                                       .on_closing = on_kv_closing,
                                       .ctx = v };
    struct mu_kv **kv = &v->kvs[v->kvs[0] != NULL];
    int rc;

    assert(*kv == NULL);
    mu_engine_etcd3_names_init(&names, v->place.run_id);
    (void)snprintf(prefix, sizeof prefix, "%sjob/kv/", names.prefix);
    (void)snprintf(marks, sizeof marks, "%sdone/", names.prefix);
    rc = mu_kv_job_start(v->shell.loop, &config, kv, reterr);
    if (rc < 0)
        return rc;
    meet_agents(v);
    *ret_kv = *kv;
    return 0;
}

static const struct mu_handler_ops agent_ops = { .open_kv = open_kv };

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
    };

    config.etcd.http.seed = mu_fresh_seed();
    return mu_engine_etcd3_start(v->shell.loop, &config, on_heard, v, &v->client, reterr);
}

static int make_machines(struct v3 *v, struct muster_error *reterr)
{
    const struct mu_v3_place *place = &v->place;
    const char *name = mu_handler_node_name(place->local_addr, v->hostname);
    const struct mu_boot_config boot = {
        .run_id = place->run_id,
        .local_addr = place->local_addr,
        .bind = place->bind,
        .master = place->master,
        .use_agent_store = place->use_agent_store,
        .standalone = place->settings.nodes_max == 1,
    };
    struct mu_fold_config fold = {
        .settings = place->settings,
        .name = name,
        .pid = getpid(),
        .lease_ms = place->lease_s * 1000,
        .job_lease_ms = place->job_lease_s * 1000,
        .first_ms = place->first_s * 1000,
    };
    uint64_t random[3];
    int rc;

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return mu_fail(reterr, MUSTER_ESYSTEM, "no random numbers");
    fold.local_id = mu_node_local_id(MU_NODE_VERSION, (uint32_t)random[0]);
    fold.id = random[1] != 0 ? random[1] : 1;
    fold.seed = random[2];
    rc = mu_boot_uv_init(&v->shell.boot, &boot, reterr);
    if (rc == 0)
        rc = mu_fold_new(&fold, &v->fold, reterr);
    v->shell.handler.loss_ms = fold.lease_ms;
    v->shell.part = v->fold;
    v->shell.run_id = place->run_id;
    v->shell.me = (struct mu_node){ mu_slice_str(name), fold.pid, fold.local_id };
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
    mu_shell_open(&v->shell, NULL, true);
    *ret_handler = &v->shell.handler.base;
    return 0;
}
