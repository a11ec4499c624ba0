/* The classic etcd rendezvous on a loop: how the requests of its machine (rdzv/classic.h: phases, leases, members) are
 * made of etcd's v2 keys, and who its nodes are. The rest is the shell's (shell_uv.h).
 *
 * Happy path: join -> the machine reads, writes and watches etcd's keys until it tells JOINED -> the boot machine
 * publishes an address and a free port in the round's store, or reads them there -> the owner is told JOINED. A
 * failure of the boot leaves the round and is told as FAILED. Each request is answered: where etcd does not, or there
 * is no memory, with an error; then the machine tries again. */
#include "base/random.h"
#include "handler/etcd.h"
#include "handler/etcd_params.h"
#include "handler/shell_uv.h"
#include "kv/etcd_store_uv.h"
#include "store/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct etcd {
    struct mu_shell shell;
    struct muster_rdzv_params *params; /* its texts are the place's */
    struct mu_etcd_place place;
    char name[MU_ETCD_NAME_MAX];
    uint64_t seed;
    struct mu_classic *classic;
    struct mu_kv *kv;
    struct mu_http *etcd; /* the kv's client */
};

struct order {
    struct mu_order base;
    struct mu_etcd2_call call;
};

/* ---- Telling ---- */

/* With the nodes of those ranks; ranks NULL: all of them. */
static void tell_nodes(struct etcd *e, struct muster_rdzv_event *event, const size_t *ranks, size_t count)
{
    const struct mu_classic_world *world = mu_classic_world(e->classic);
    struct mu_etcd_member *members = calloc(count + 1, sizeof *members);
    struct muster_node *nodes = calloc(count + 1, sizeof *nodes);

    for (size_t i = 0; members != NULL && nodes != NULL && i < count; i++) {
        members[i] = mu_etcd_member(world, ranks != NULL ? ranks[i] : i);
        nodes[i] = (struct muster_node){ members[i].name, members[i].pid, members[i].local_id };
    }
    event->nodes = nodes;
    event->nodes_count = members != NULL && nodes != NULL ? count : 0;
    mu_shell_say(&e->shell, event);
    free(members);
    free(nodes);
}

static void tell_progress(struct etcd *e, struct muster_rdzv_event *event)
{
    struct mu_part_progress seen = mu_classic_progress(e->classic);
    char note[MU_WAITERS_NOTE_MAX];

    event->note = mu_waiters_note(mu_classic_crowd(e->classic), note);
    mu_shell_say_nodes(&e->shell, event, seen.nodes, seen.nodes_count);
}

static void on_tell(struct mu_shell *shell, struct muster_rdzv_event *event, enum mu_talk_nodes nodes,
                    const struct mu_part_news *news)
{
    struct etcd *e = (struct etcd *)shell;

    switch (nodes) {
    case MU_TALK_NODES_MEMBERS:
        event->old_dialect = mu_etcd_is_old(mu_classic_world(e->classic), e->place.old_dialect);
        tell_nodes(e, event, NULL, mu_classic_world(e->classic)->count);
        break;
    case MU_TALK_NODES_LOST:
        tell_nodes(e, event, news->ranks, news->ranks_count);
        break;
    case MU_TALK_NODES_SEEN:
        tell_progress(e, event);
        break;
    case MU_TALK_NODES_WAITING:
    case MU_TALK_NODES_NONE:
        mu_shell_say(shell, event);
        break;
    }
}

/* ---- Requests to etcd ---- */

static void on_called(struct mu_etcd2_call *call)
{
    struct order *order = call->ctx;
    struct mu_classic_event event =
        mu_etcd_answer(order->base.id, call->request.kind, call->rc, call->unsure, &call->answer, &call->error);

    mu_shell_feed(order->base.shell, &event);
    mu_etcd_event_done(&event);
    mu_etcd2_answer_done(&call->answer);
    mu_order_free(&order->base);
}

static void request(struct etcd *e, const struct mu_classic_request *from)
{
    struct order *order = mu_order_new(&e->shell, sizeof *order, from->id);

    if (order == NULL) {
        mu_shell_answer_late(&e->shell, from->id);
        return;
    }
    mu_etcd2_ask(e->etcd, &order->call, mu_etcd_request(from), from->timeout_ms, on_called, order);
}

static void cancel(struct etcd *e, uint64_t id)
{
    struct mu_order *order = mu_order_find(&e->shell, id);

    if (order == NULL)
        return;
    order->id = 0; /* whatever comes is nobody's */
    mu_etcd2_cancel(&((struct order *)order)->call);
}

static void on_request(struct mu_shell *shell, const void *of)
{
    const struct mu_classic_effect *effect = of;

    if (effect->type == MU_CLASSIC_DO_REQUEST)
        request((struct etcd *)shell, &effect->request);
    else
        cancel((struct etcd *)shell, effect->id);
}

static void on_no_memory(struct mu_shell *shell, uint64_t id)
{
    struct mu_classic_event event = mu_etcd_no_memory(id);

    mu_shell_feed(shell, &event);
}

/* ---- Where the workers meet ---- */

static void start_boot(struct mu_shell *shell)
{
    struct etcd *e = (struct etcd *)shell;
    struct mu_etcd_member rank0;

    mu_shell_start_boot(shell, mu_etcd_boot_start(mu_classic_world(e->classic), e->place.old_dialect, e->name, &rank0));
}

/* ---- The handler ---- */

static bool shares_store(const struct muster_handler *handler)
{
    (void)handler;
    return false;
}

/* ---- The end ---- */

static void destroy(struct mu_shell *shell)
{
    struct etcd *e = (struct etcd *)shell;

    mu_classic_free(e->classic);
    mu_boot_uv_done(&shell->boot);
    muster_rdzv_params_free(e->params);
    free(e);
}

static void free_handler(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct etcd *e = (struct etcd *)handler;

    mu_shell_close(&e->shell, done, ctx);
    mu_shell_close_kv(&e->shell, e->kv);
}

static const struct muster_handler_ops etcd_ops = {
    MU_HANDLER_OPS("etcd"),
    .use_agent_store = shares_store,
    .free = free_handler,
};

/* ---- New ---- */

static int open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct etcd *e = (struct etcd *)handler;
    struct mu_kv_etcd_store_config config = { .http = &e->place.http,
                                              .root = mu_classic_root(e->classic),
                                              .run_id = e->place.run_id,
                                              .gives_foreign = true,
                                              .seed = e->seed };

    return mu_kv_etcd_store_start(e->shell.loop, &config, ret_kv, reterr);
}

static const struct mu_handler_ops agent_ops = { .open_kv = open_kv };

static int make_machines(struct etcd *e, struct muster_error *reterr)
{
    const struct mu_boot_config boot = mu_etcd_boot_config(&e->place, e->name);
    char hostname[MU_HANDLER_NAME_MAX], node[MU_NODE_TEXT_MAX];
    struct mu_classic_config classic;
    int rc;

    (void)snprintf(e->name, sizeof e->name, "%s", mu_handler_node_name(e->place.local_addr, hostname));
    classic = mu_etcd_classic_config(&e->place, e->name, getpid(), e->seed, node);
    rc = mu_classic_new(&classic, &e->classic, reterr);
    e->shell.part = e->classic;
    e->shell.run_id = e->place.run_id;
    e->shell.me = (struct mu_node){ mu_slice_str(e->name), classic.pid, classic.local_id };
    e->shell.nodes_min = e->place.nodes_min;
    e->shell.nodes_max = e->place.nodes_max;
    return rc == 0 ? mu_boot_uv_init(&e->shell.boot, &boot, reterr) : rc;
}

static const struct mu_shell_ops shell_ops = {
    .part = &mu_classic_part,
    .request = on_request,
    .answer = on_no_memory,
    .start_boot = start_boot,
    .tell = on_tell,
    .destroy = destroy,
};

/* Takes `params`, also on failure. */
static int start(uv_loop_t *loop, struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                 struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct etcd *e = calloc(1, sizeof *e);
    int rc;

    if (e == NULL) {
        muster_rdzv_params_free(params);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    e->shell.handler = (struct mu_handler){ .base = { &etcd_ops }, .ops = &agent_ops };
    mu_handler_loss_by_lease(&e->shell.handler, MU_CLASSIC_RANK_TTL_S, MU_CLASSIC_GRACE_MS);
    e->params = params;
    e->seed = mu_fresh_seed();
    rc = mu_etcd_params_read(params, &e->place, reterr);
    if (rc == 0)
        rc = make_machines(e, reterr);
    e->place.http.seed = e->seed;
    mu_shell_init(&e->shell, loop, &shell_ops, e->place.join_ms, listener, ctx);
    if (rc == 0)
        rc = open_kv(&e->shell.handler.base, &e->kv, reterr);
    if (rc < 0) {
        destroy(&e->shell);
        return rc;
    }
    e->etcd = mu_kv_etcd_store_http(e->kv);
    mu_shell_open(&e->shell, e->kv);
    *ret_handler = &e->shell.handler.base;
    return 0;
}

int mu_etcd_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                  struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct muster_rdzv_params *own = NULL;
    int rc = mu_etcd_params_resolve(params, &own, reterr);

    if (rc == 0 && own == NULL)
        rc = muster_rdzv_params_copy(params, &own, reterr);
    if (rc == 0)
        rc = start(loop, own, listener, ctx, ret_handler, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "make an etcd rendezvous") : 0;
}
