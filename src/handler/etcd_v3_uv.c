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
#include "handler/etcd_v3_params.h"
#include "handler/meeting.h"
#include "handler/shell_uv.h"
#include "kv/engine_etcd3.h"
#include "kv/engine_etcd3_uv.h"
#include "proc/will.h"
#include "store/server_uv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

struct v3 {
    struct mu_shell shell;
    struct muster_rdzv_params *params; /* its texts are the place's */
    struct mu_v3_place place;
    char hostname[MU_HANDLER_NAME_MAX]; /* our name, unless the place has one */
    struct mu_meeting meeting;
    struct mu_engine_client *client;
    struct mu_fold *fold;
    struct mu_will *will; /* to be kept; NULL: none */
};

static struct v3 *v3_of(struct mu_shell *shell)
{
    return (struct v3 *)shell;
}

/* ---- Telling ---- */

static void tell_members(struct v3 *v, struct muster_rdzv_event *event, bool only_lost)
{
    const struct mu_fold_members *members = mu_fold_names(v->fold);
    size_t room = members != NULL ? members->count : 0;
    struct mu_node *nodes = calloc(room + 1, sizeof *nodes);

    mu_shell_say_nodes(&v->shell, event, nodes, nodes != NULL ? mu_fold_name(v->fold, only_lost, nodes, room) : 0);
    free(nodes);
}

static void tell_progress(struct v3 *v, struct muster_rdzv_event *event)
{
    const struct mu_waiters *crowd = mu_fold_crowd(v->fold);
    char note[MU_WAITERS_NOTE_MAX];

    event->note = mu_fold_note(v->fold, note);
    mu_shell_say_nodes(&v->shell, event, crowd->nodes, crowd->count);
}

static void on_tell(struct mu_shell *shell, struct muster_rdzv_event *event, const struct mu_part_news *news)
{
    struct v3 *v = v3_of(shell);

    (void)news;
    if (event->type == MUSTER_RDZV_JOINED) {
        tell_members(v, event, false);
    } else if (event->type == MUSTER_RDZV_PEERS_LOST) {
        tell_members(v, event, true);
    } else if (event->type == MUSTER_RDZV_PROGRESS) {
        tell_progress(v, event);
    } else {
        mu_shell_say(shell, event);
    }
}

static void on_own(struct mu_shell *shell, const void *told)
{
    struct mu_teller who = mu_shell_teller(shell);

    mu_rdzv_trace_fold(&who, told);
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

/* After everything that may have changed our lease, or the server that we use. */
static void renew_will(struct v3 *v)
{
    struct mu_fold_op mark;
    struct mu_kv_lone lone;

    if (v->will == NULL)
        return;
    if (mu_fold_will(v->fold, &mark) && v->client->ops->will(v->client, &mark, &lone))
        mu_kv_leave(&lone, v->will);
    else
        mu_will_withdraw(v->will);
}

static void make_request(struct mu_shell *shell, const void *effect)
{
    struct v3 *v = v3_of(shell);

    v->client->ops->request(v->client, effect, mu_fold_request_until_ms(v->fold, uv_now(shell->loop)));
    renew_will(v);
}

/* Writes job/master; what comes of it answers the boot's `id`. 0 or MUSTER_ENOMEM. */
static int publish(struct v3 *v, uint64_t id, const struct mu_fold_master *master)
{
    struct mu_buf value = { 0 };
    int rc = mu_fold_master_write(master, &value);

    if (rc == 0) {
        struct mu_fold_effect effect = mu_meeting_write(&v->meeting, v->fold, id, mu_buf_slice(&value));

        make_request(&v->shell, &effect);
    }
    mu_buf_done(&value);
    return rc;
}

static void on_boot_request(struct mu_shell *shell, const struct mu_boot_effect *effect)
{
    struct v3 *v = v3_of(shell);
    struct mu_boot_event answer;
    struct mu_fold_master master;
    enum mu_meeting_reply reply =
        mu_meeting_ask(&v->meeting, v->fold, effect, agents_port(v), uv_now(shell->loop), &answer, &master);

    shell->also_ms = mu_meeting_deadline_ms(&v->meeting);
    mu_shell_arm(shell);
    if (reply == MU_MEETING_ANSWER || (reply == MU_MEETING_PUBLISH && publish(v, effect->id, &master) < 0))
        mu_boot_uv_answer(&shell->boot, answer);
}

static void start_boot(struct mu_shell *shell)
{
    struct v3 *v = v3_of(shell);
    char own_addr[MU_ADDR_TEXT_MAX] = "", rank0[MU_NODE_TEXT_MAX];
    struct mu_boot_start start = mu_meeting_boot_start(v->fold, rank0);

    start.own_addr = own_addr;
    if (!v->client->ops->local_address(v->client, own_addr, sizeof own_addr))
        own_addr[0] = '\0';
    mu_boot_uv_start(&shell->boot, &start);
}

/* ---- What comes back from the client ---- */

/* The machine's event, and what of it is not the machine's: where the round meets. */
static void on_heard(void *ctx, const struct mu_fold_event *event)
{
    struct v3 *v = ctx;
    struct mu_boot_event answer;

    if (mu_meeting_published(&v->meeting, event, &answer)) {
        mu_boot_uv_answer(&v->shell.boot, answer);
        return;
    }
    mu_meeting_see(&v->meeting, event);
    mu_shell_feed(&v->shell, event);
    if (v->shell.freeing)
        return;
    answer_get(v);
    renew_will(v);
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

static void v3_will(struct muster_handler *handler, struct mu_will *will)
{
    struct v3 *v = (struct v3 *)handler;

    if (will == v->will)
        return;
    mu_will_withdraw(v->will);
    v->will = will;
    renew_will(v);
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

    v3_will(handler, NULL);
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
        .renew_ms = mu_v3_renew_ms(&v->place),
    };

    config.etcd.http.seed = mu_fresh_seed();
    return mu_engine_etcd3_start(v->shell.loop, &config, on_heard, v, &v->client, reterr);
}

static int make_machines(struct v3 *v, struct muster_error *reterr)
{
    const struct mu_v3_place *place = &v->place;
    const struct mu_boot_config boot = mu_v3_boot_config(place);
    struct mu_fold_config fold;
    uint64_t random[3];
    int rc;

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return mu_fail(reterr, MUSTER_ESYSTEM, "no random numbers");
    fold = mu_v3_fold_config(place, mu_handler_node_name(place->local_addr, v->hostname), getpid(), random);
    rc = mu_boot_uv_init(&v->shell.boot, &boot, reterr);
    if (rc == 0)
        rc = mu_fold_new(&fold, &v->fold, reterr);
    mu_handler_loss_by_lease(&v->shell.handler, place->lease_s, 0);
    v->shell.part = v->fold;
    v->shell.run_id = place->run_id;
    v->shell.me = (struct mu_node){ mu_slice_str(fold.name), fold.pid, fold.local_id };
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
    mu_shell_open(&v->shell, NULL);
    *ret_handler = &v->shell.handler.base;
    return 0;
}
