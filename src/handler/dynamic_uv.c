/* The dynamic rendezvous: one document in a back end (rdzv.h). The shell drives its machines; here is how the requests
 * of the document machine and of the inquiry are made to the back end, and what the owner is told of the nodes. */
#include "handler/dynamic_uv.h"

#include "base/random.h"
#include "store/net.h"
#include "store/placed_server_uv.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

struct order {
    struct mu_order base;
    struct mu_kv_request request;
    void (*answered)(struct order *order); /* NULL: no answer is wanted */
    enum mu_rdzv_event_type answer;        /* to the document machine */
    enum mu_inquiry_event_type reply;      /* ... or to the inquiry */
    struct mu_buf value, token;
};

static void inquire(struct mu_dynamic *d, struct mu_inquiry_event event);

static struct mu_dynamic *dynamic_of(struct mu_shell *shell)
{
    return (struct mu_dynamic *)shell;
}

/* ---- Telling ---- */

static void tell_named(struct mu_dynamic *d, struct muster_rdzv_event *event)
{
    struct mu_node nodes[MU_DYNAMIC_NAMED_MAX];

    mu_shell_say_nodes(&d->shell, event, nodes, mu_dynamic_named(mu_rdzv_doc(d->rdzv), event->type, nodes));
}

static void tell_lost(struct mu_dynamic *d, struct muster_rdzv_event *event)
{
    struct mu_rdzv_nodes lost = mu_rdzv_lost(d->rdzv);
    struct mu_node *nodes = calloc(lost.count + 1, sizeof *nodes);
    size_t waiting = 0;

    if (nodes != NULL)
        event->cause = mu_dynamic_sort_lost(mu_rdzv_doc(d->rdzv), lost, event->cause, mu_rdzv_store_refuses(d->rdzv),
                                            nodes, &waiting);
    event->count = (int64_t)waiting;
    mu_shell_say_nodes(&d->shell, event, nodes != NULL ? nodes : lost.items, lost.count);
    free(nodes);
}

static bool is_gone(int64_t pid)
{
    return kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

/* What is left of an earlier process has to die first. */
static void note_ghost(struct mu_dynamic *d)
{
    const struct mu_node *ghost = mu_inquiry_ghost(&d->inquiry, mu_rdzv_doc(d->rdzv), &d->shell.me, is_gone);
    struct mu_teller who = mu_shell_teller(&d->shell);

    if (ghost != NULL)
        mu_rdzv_trace_ghost(&who, ghost, mu_rdzv_death_age_ms(&d->config.settings));
}

static void tell_progress(struct mu_dynamic *d, struct muster_rdzv_event *event)
{
    char note[MU_NOTICE_BOARD_NOTE_MAX];

    inquire(d, (struct mu_inquiry_event){ .type = MU_INQUIRY_ON_PROGRESS });
    note_ghost(d);
    event->note = mu_notice_board_note(&d->inquiry.board, note);
    tell_named(d, event);
}

static void tell_joined(struct mu_dynamic *d, struct muster_rdzv_event *event)
{
    const struct mu_rdzv_world *world = mu_rdzv_world(d->rdzv);

    event->old_dialect = mu_dynamic_is_old(world);
    mu_shell_say_nodes(&d->shell, event, world->members, world->count);
}

static void dynamic_tell(struct mu_shell *shell, struct muster_rdzv_event *event, enum mu_talk_nodes nodes,
                         const struct mu_part_news *news)
{
    struct mu_dynamic *d = dynamic_of(shell);

    (void)news;
    switch (nodes) {
    case MU_TALK_NODES_MEMBERS:
        tell_joined(d, event);
        break;
    case MU_TALK_NODES_WAITING:
        tell_named(d, event);
        break;
    case MU_TALK_NODES_LOST:
        tell_lost(d, event);
        break;
    case MU_TALK_NODES_SEEN:
        tell_progress(d, event);
        break;
    case MU_TALK_NODES_NONE:
        mu_shell_say(shell, event);
        break;
    }
}

/* ---- Orders to the back end ---- */

static void free_order(struct order *order)
{
    muster_bytes_done(&order->request.bytes);
    muster_bytes_done(&order->request.state_token);
    mu_buf_done(&order->value);
    mu_buf_done(&order->token);
    mu_order_free(&order->base);
}

static void answer_rdzv(struct order *order)
{
    struct mu_rdzv_event event = mu_dynamic_answer(order->base.id, order->answer, &order->request);

    mu_shell_feed(order->base.shell, &event);
    inquire(dynamic_of(order->base.shell),
            (struct mu_inquiry_event){ .type = MU_INQUIRY_ON_ANSWERED, .answer = event.type });
}

static void answer_inquiry(struct order *order)
{
    struct mu_dynamic *d = dynamic_of(order->base.shell);

    inquire(d, (struct mu_inquiry_event){ .type = order->reply,
                                          .rc = order->request.rc,
                                          .text = mu_slice(order->request.bytes.data, order->request.bytes.len),
                                          .doc = mu_rdzv_doc(d->rdzv) });
}

static void on_done(struct mu_kv_request *request)
{
    struct order *order = request->ctx;

    if (!order->base.shell->freeing && order->answered != NULL)
        order->answered(order);
    free_order(order);
}

/* Copies both. NULL: no memory. */
static struct order *new_order(struct mu_dynamic *d, uint64_t id, struct mu_slice value, struct mu_slice token)
{
    struct order *order = mu_order_new(&d->shell, sizeof *order, id);

    if (order == NULL)
        return NULL;
    if (mu_buf_assign(&order->value, value) == 0 && mu_buf_assign(&order->token, token) == 0)
        return order;
    free_order(order);
    return NULL;
}

static struct muster_slice public_slice(const struct mu_buf *buf)
{
    return (struct muster_slice){ buf->data, buf->len };
}

static void submit(struct mu_dynamic *d, struct order *order)
{
    struct mu_kv_request *request = &order->request;

    request->value = public_slice(&order->value);
    request->token = public_slice(&order->token);
    request->done = on_done;
    request->ctx = order;
    d->kv->ops->submit(d->kv, request);
}

static void dynamic_request(struct mu_shell *shell, const void *wanted)
{
    const struct mu_rdzv_effect *effect = wanted;
    struct mu_dynamic *d = dynamic_of(shell);
    struct order *order = new_order(d, effect->id, effect->bytes, effect->token);

    if (order == NULL) {
        mu_shell_answer_late(shell, effect->id);
        return;
    }
    order->answered = effect->id != 0 ? answer_rdzv : NULL;
    order->answer = mu_dynamic_ask(effect, &d->config, &order->request);
    submit(d, order);
}

static void dynamic_answer(struct mu_shell *shell, uint64_t id)
{
    struct mu_rdzv_event event = mu_dynamic_no_memory(id);

    mu_shell_feed(shell, &event);
}

/* ---- The inquiry ---- */

static void ask_store(struct mu_dynamic *d, const struct mu_inquiry_effect *effect)
{
    struct mu_kv_request request = { .number = 0 };
    enum mu_inquiry_event_type reply = mu_dynamic_inquire(effect->type, &d->config, &request);
    struct order *order = new_order(d, 0, effect->value, effect->expected);

    if (order == NULL) {
        inquire(d, (struct mu_inquiry_event){ .type = reply, .rc = MUSTER_ENOMEM });
        return;
    }
    order->request = request;
    order->answered = answer_inquiry;
    order->reply = reply;
    submit(d, order);
}

static void inquire(struct mu_dynamic *d, struct mu_inquiry_event event)
{
    struct mu_inquiry_effect effect;

    if (d->shell.freeing)
        return;
    event.now_ms = uv_now(d->shell.loop);
    effect = mu_inquiry_step(&d->inquiry, &event);
    switch (effect.type) {
    case MU_INQUIRY_DO_NOTHING:
        break;
    case MU_INQUIRY_DO_ASK_HOST:
    case MU_INQUIRY_DO_WRITE_BOARD:
    case MU_INQUIRY_DO_LEAVE_BOARD:
        ask_store(d, &effect);
        break;
    case MU_INQUIRY_DO_TELL_PROGRESS:
        mu_shell_tell_progress(&d->shell);
        break;
    case MU_INQUIRY_DO_TAKE_HOST:
        mu_shell_feed(&d->shell,
                      &(struct mu_rdzv_event){ .type = MU_RDZV_HOST, .node = effect.has_node ? &effect.node : NULL });
        break;
    }
}

static void dynamic_heard(struct mu_shell *shell, const struct mu_part_news *news)
{
    inquire(dynamic_of(shell), (struct mu_inquiry_event){ .type = MU_INQUIRY_ON_TOLD, .tell = news->tell });
}

static void dynamic_waits(struct mu_shell *shell, bool waits)
{
    inquire(dynamic_of(shell), (struct mu_inquiry_event){ .type = MU_INQUIRY_ON_TALKED, .waits = waits });
}

/* ---- Where the workers meet ---- */

static void dynamic_start_boot(struct mu_shell *shell)
{
    struct mu_dynamic *d = dynamic_of(shell);
    char rank0[MU_NODE_TEXT_MAX];

    inquire(d, (struct mu_inquiry_event){ .type = MU_INQUIRY_ON_BOOT });
    mu_shell_start_boot(shell,
                        mu_dynamic_boot_start(mu_rdzv_world(d->rdzv), shell->me.name, &d->config, &d->place, rank0));
}

/* ---- What only this machine tells: for the record ---- */

static void dynamic_own(struct mu_shell *shell, const void *told)
{
    const struct mu_rdzv_effect *effect = told;
    struct mu_dynamic *d = dynamic_of(shell);
    struct mu_teller who = mu_shell_teller(shell);

    if (effect->type == MU_RDZV_DO_PLANNED)
        mu_rdzv_trace_planned(&who, mu_rdzv_deeds(d->rdzv), shell->nodes_min);
    else
        mu_rdzv_trace_synced(&who, effect, mu_rdzv_removed(d->rdzv));
}

/* ---- The handler ---- */

bool mu_dynamic_use_agent_store(const struct muster_handler *handler)
{
    return ((const struct mu_dynamic *)handler)->config.use_agent_store;
}

void mu_dynamic_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx)
{
    struct mu_placed_server *workers = mu_boot_uv_workers_store(&((struct mu_shell *)handler)->boot);

    if (workers != NULL)
        mu_placed_server_when_alone(workers, alone, ctx);
}

/* ---- The end ---- */

void mu_dynamic_destroy(struct mu_shell *shell)
{
    struct mu_dynamic *d = dynamic_of(shell);

    mu_rdzv_free(d->rdzv);
    mu_boot_uv_done(&shell->boot);
    mu_arena_done(&d->texts);
    if (d->finder != NULL && d->finder->forget != NULL)
        d->finder->forget(d);
    free(d);
}

void mu_dynamic_close_kv(struct mu_dynamic *d)
{
    struct mu_kv *kv = d->kv;

    d->kv = NULL;
    if (kv != NULL)
        mu_shell_close_kv(&d->shell, kv);
}

void mu_dynamic_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct mu_dynamic *d = (struct mu_dynamic *)handler;

    mu_shell_close(&d->shell, done, ctx);
    mu_dynamic_close_kv(d);
}

/* ---- The back end has to be found ---- */

void mu_dynamic_find(struct mu_shell *shell)
{
    dynamic_of(shell)->finder->find(dynamic_of(shell));
}

static void dynamic_on_time(struct mu_shell *shell)
{
    struct mu_dynamic *d = dynamic_of(shell);

    if (d->finder->on_time != NULL)
        d->finder->on_time(d);
}

void mu_dynamic_last(struct mu_shell *shell)
{
    struct mu_dynamic *d = dynamic_of(shell);

    if (d->finder->last != NULL)
        d->finder->last(d);
    else
        mu_shell_drop(shell);
}

void mu_dynamic_fail(struct mu_dynamic *d, const struct muster_error *error)
{
    mu_dynamic_close_kv(d);
    mu_shell_not_found(&d->shell, error);
}

/* ---- New ---- */

static int dynamic_open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct mu_dynamic *d = (struct mu_dynamic *)handler;

    return d->config.open_kv(d->config.open_kv_ctx, d->shell.loop, d->config.patience_ms, ret_kv, reterr);
}

static const struct muster_handler_ops dynamic_ops = { MU_DYNAMIC_OPS("dynamic") };

#define PART_OPS                                                                                                       \
    .part = &mu_rdzv_part, .request = dynamic_request, .answer = dynamic_answer, .own = dynamic_own,                   \
    .heard = dynamic_heard, .waits = dynamic_waits, .start_boot = dynamic_start_boot, .tell = dynamic_tell,            \
    .destroy = mu_dynamic_destroy

static const struct mu_shell_ops shell_ops = { PART_OPS };
static const struct mu_shell_ops finding_ops = { PART_OPS, .find = mu_dynamic_find, .on_time = dynamic_on_time,
                                                 .last = mu_dynamic_last };

static const struct mu_handler_ops agent_ops[] = { { .open_kv = NULL }, { .open_kv = dynamic_open_kv } };

static int take_config(struct mu_dynamic *d, const struct mu_dynamic_config *config, struct muster_error *reterr)
{
    char hostname[MU_HANDLER_NAME_MAX];
    const char *name;
    bool full = false;

    d->config = *config;
    d->config.bind = (struct mu_bind){ 0 }; /* the boot machine has its own */
    d->config.run_id = mu_arena_text(&d->texts, config->run_id, &full);
    d->config.local_addr = mu_arena_text(&d->texts, config->local_addr, &full);
    d->config.store_host = mu_arena_text(&d->texts, config->store_host, &full);
    d->config.endpoint = mu_arena_text(&d->texts, config->endpoint, &full);
    name = mu_arena_text(&d->texts, mu_handler_node_name(config->local_addr, hostname), &full);
    if (full)
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    d->config.local_id = mu_dynamic_local_id(config, mu_fresh_seed());
    d->seed = mu_fresh_seed();
    d->shell.run_id = d->config.run_id;
    d->shell.me = (struct mu_node){ mu_slice_str(name), getpid(), d->config.local_id };
    d->shell.nodes_min = config->settings.nodes_min;
    d->shell.nodes_max = config->settings.nodes_max;
    return 0;
}

static int make_rdzv(struct mu_dynamic *d, struct muster_error *reterr)
{
    const uint64_t random[] = { mu_fresh_seed(), mu_fresh_seed(), mu_fresh_seed() };
    const struct mu_rdzv_config config =
        mu_dynamic_rdzv_config(&d->config, &d->place, &d->shell.me, d->kv->ops, random);
    const struct mu_inquiry_config inquiry = mu_dynamic_inquiry_config(&d->config, &d->shell.me, d->kv->ops);

    mu_inquiry_init(&d->inquiry, &inquiry);
    return mu_rdzv_new(&config, &d->rdzv, reterr);
}

bool mu_dynamic_run(struct mu_dynamic *d, const struct mu_dynamic_place *place)
{
    struct muster_error error;

    assert(d->kv != NULL && d->rdzv == NULL);
    d->place = *place;
    if (make_rdzv(d, &error) < 0) {
        mu_dynamic_fail(d, &error);
        return false;
    }
    d->shell.part = d->rdzv;
    d->shell.boot.config.kv = d->kv;
    mu_shell_found(&d->shell);
    if (place->hosted_by != NULL)
        inquire(d, (struct mu_inquiry_event){ .type = MU_INQUIRY_ON_HOST,
                                              .text = mu_slice_str(place->hosted_by),
                                              .doc = mu_rdzv_doc(d->rdzv) });
    return true;
}

/* Takes zeroed memory from malloc(), which begins with `d`; it is freed also if this fails. */
static int open_dynamic(struct mu_dynamic *d, struct uv_loop_s *loop, const struct mu_dynamic_config *config,
                        muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                        struct muster_error *reterr)
{
    const struct mu_finder_ops *finder = d->finder;
    const struct mu_boot_config boot = mu_dynamic_boot_config(config);
    int rc = mu_dynamic_check_name(config->local_addr, reterr);

    if (rc == 0)
        rc = take_config(d, config, reterr);
    if (rc == 0)
        rc = mu_boot_uv_init(&d->shell.boot, &boot, reterr);
    if (rc == 0 && finder == NULL)
        rc = make_rdzv(d, reterr);
    if (rc < 0) {
        mu_dynamic_destroy(&d->shell);
        return rc;
    }
    d->shell.handler =
        finder != NULL ? (struct mu_handler){ .base = { finder->handler }, .ops = finder->agent }
                       : (struct mu_handler){ .base = { &dynamic_ops }, .ops = &agent_ops[config->open_kv != NULL] };
    mu_handler_loss_by_heartbeats(&d->shell.handler, &config->settings);
    d->shell.part = d->rdzv;
    mu_shell_init(&d->shell, loop, finder != NULL ? &finding_ops : &shell_ops, config->settings.join_ms, listener, ctx);
    mu_shell_open(&d->shell, d->kv);
    *ret_handler = &d->shell.handler.base;
    return 0;
}

int mu_dynamic_start_finder(const struct mu_finder_ops *finder, struct uv_loop_s *loop,
                            const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                            struct muster_handler **ret_handler, struct muster_error *reterr)
{
    const char *backend = finder->handler->name;
    struct mu_dynamic *d = calloc(1, finder->size);
    struct mu_dynamic_config config;
    int rc;

    if (d == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    d->finder = finder;
    rc = mu_dynamic_read_config(backend, params, &config, reterr);
    if (rc == 0)
        rc = finder->read(d, params, &config, reterr);
    if (rc < 0)
        mu_dynamic_destroy(&d->shell);
    else
        rc = open_dynamic(d, loop, &config, listener, ctx, ret_handler, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "rendezvous %s", backend) : 0;
}

int mu_dynamic_start(struct uv_loop_s *loop, const struct mu_dynamic_config *config, struct mu_kv *kv,
                     muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                     struct muster_error *reterr)
{
    struct mu_dynamic *d = calloc(1, sizeof *d);
    int rc = MUSTER_ENOMEM;

    if (d == NULL) {
        (void)mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    } else {
        d->kv = kv;
        rc = open_dynamic(d, loop, config, listener, ctx, ret_handler, reterr);
    }
    if (rc < 0)
        kv->ops->close(kv, NULL, NULL);
    return rc;
}
