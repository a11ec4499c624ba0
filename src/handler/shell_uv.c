/* What a handler does around its pure machines. */
#include "handler/shell_uv.h"

#include "base/clock.h"
#include "store/net.h"

#include <assert.h>
#include <stdlib.h>

static void converse(struct mu_shell *s, struct mu_talk_event event);
static void feed(struct mu_shell *s, enum mu_part_event_type type, const void *own,
                 const struct mu_part_report *report);

/* ---- Telling ---- */

void mu_shell_say(struct mu_shell *s, struct muster_rdzv_event *event)
{
    const struct muster_node self = { s->me.name.data, s->me.pid, s->me.local_id };

    if (s->freeing)
        return;
    event->size = sizeof *event;
    /* cppcheck-suppress autoVariables ; it is told before this returns */
    event->self = &self;
    s->listener(s->ctx, event);
}

void mu_shell_say_nodes(struct mu_shell *s, struct muster_rdzv_event *event, const struct mu_node *nodes, size_t count)
{
    struct muster_node *copy = calloc(count + 1, sizeof *copy);

    for (size_t i = 0; copy != NULL && i < count; i++)
        copy[i] = (struct muster_node){ nodes[i].name.data, nodes[i].pid, nodes[i].local_id };
    event->nodes = copy;
    event->nodes_count = copy != NULL ? count : 0;
    mu_shell_say(s, event);
    free(copy);
}

struct mu_teller mu_shell_teller(const struct mu_shell *s)
{
    return (struct mu_teller){ s->run_id, s->me };
}

/* If it is a step of the story. */
static void record_effect(const struct mu_shell *s, const struct mu_talk_effect *effect,
                          const struct muster_error *error)
{
    struct mu_teller who = mu_shell_teller(s);
    struct mu_part_world world = { .rank = -1 };
    bool member = s->part != NULL && s->ops->part->world(s->part, &world);
    struct mu_rdzv_trace story = {
        .round = world.round, .rank = world.rank, .world_size = (int64_t)world.count, .error = error
    };

    if (mu_rdzv_trace_of_talk(effect, mu_talk_has_back_end(&s->talk), member, &story.kind))
        mu_rdzv_trace_tell(&who, story);
}

static void tell_owner(struct mu_shell *s, const struct mu_talk_effect *effect, const struct mu_part_news *news)
{
    struct mu_talk_facts facts = { .part_ops = s->ops->part,
                                   .part = s->part,
                                   .news = news,
                                   .loss_cause = s->handler.loss_cause,
                                   .bootstrap = &s->bootstrap,
                                   .nodes_min = s->nodes_min,
                                   .nodes_max = s->nodes_max,
                                   .now_ms = uv_now(s->loop) };
    struct muster_rdzv_event event = mu_talk_event(&s->talk, effect, &facts);
    enum mu_talk_nodes nodes = mu_talk_nodes(effect->tell);

    if (event.error != NULL)
        mu_handler_wrap(&event, s->run_id, &facts.error);
    record_effect(s, effect, event.error);
    if (nodes == MU_TALK_NODES_NONE)
        mu_shell_say(s, &event);
    else
        s->ops->tell(s, &event, nodes, news);
}

/* ---- The conversation ---- */

static void perform(struct mu_shell *s, const struct mu_talk_effect *effect, const struct mu_part_news *news)
{
    switch (effect->type) {
    case MU_TALK_DO_ASK:
        record_effect(s, effect, NULL);
        feed(s, effect->asked, NULL, effect->report);
        break;
    case MU_TALK_DO_START_BOOT:
        s->ops->start_boot(s);
        break;
    case MU_TALK_DO_STOP_BOOT:
        mu_boot_uv_stop(&s->boot);
        break;
    case MU_TALK_DO_FIND:
        s->ops->find(s);
        break;
    case MU_TALK_DO_TELL:
        tell_owner(s, effect, news);
        break;
    }
}

static void on_turn(void *ctx)
{
    converse(ctx, (struct mu_talk_event){ .type = MU_TALK_ON_TURN });
}

static void converse(struct mu_shell *s, struct mu_talk_event event)
{
    struct mu_talk_effects effects;

    if (s->freeing)
        return;
    event.now_ms = uv_now(s->loop);
    mu_talk_step(&s->talk, &event, &effects);
    if (s->ops->waits != NULL)
        s->ops->waits(s, mu_talk_is_joining(&s->talk));
    for (unsigned i = 0; i < effects.count && !s->freeing; i++)
        perform(s, &effects.items[i], event.news);
    if (!s->freeing && mu_talk_is_due(&s->talk))
        mu_later_turn(&s->later, on_turn, s);
}

static void on_part_tells(void *ctx, const struct mu_part_news *news)
{
    struct mu_shell *s = ctx;
    struct mu_teller who = mu_shell_teller(s);

    if (s->freeing)
        return;
    mu_rdzv_trace_news(&who, news);
    if (s->ops->heard != NULL)
        s->ops->heard(s, news);
    converse(s, (struct mu_talk_event){ .type = MU_TALK_ON_TOLD, .news = news });
}

void mu_shell_tell_progress(struct mu_shell *s)
{
    on_part_tells(s, &mu_talk_progress_news);
}

static void on_booted(void *ctx, const struct muster_store_info *bootstrap)
{
    struct mu_shell *s = ctx;

    s->bootstrap = *bootstrap;
    converse(s, (struct mu_talk_event){ .type = MU_TALK_ON_BOOTED });
}

static void on_boot_failed(void *ctx, const struct muster_error *error)
{
    converse(ctx, (struct mu_talk_event){ .type = MU_TALK_ON_BOOT_FAILED, .error = error });
}

static void on_boot_request(void *ctx, const struct mu_boot_effect *effect)
{
    struct mu_shell *s = ctx;

    s->ops->boot_request(s, effect);
}

void mu_shell_found(struct mu_shell *s)
{
    assert(s->part != NULL);
    converse(s, (struct mu_talk_event){ .type = MU_TALK_ON_FOUND });
}

void mu_shell_not_found(struct mu_shell *s, const struct muster_error *error)
{
    struct mu_teller who = mu_shell_teller(s);

    mu_rdzv_trace_not_found(&who, error);
    converse(s, (struct mu_talk_event){ .type = MU_TALK_ON_NOT_FOUND, .error = error });
}

void mu_shell_moved(struct mu_shell *s, bool close, bool look)
{
    assert(s->part == NULL && s->ops->find != NULL);
    s->also_ms = UINT64_MAX;
    converse(s, (struct mu_talk_event){ .type = MU_TALK_ON_MOVED, .close = close, .look = look });
}

static void ask(struct muster_handler *handler, enum muster_rdzv_request request)
{
    static const enum mu_part_event_type asked[] = { [MUSTER_RDZV_REQUEST_JOIN] = MU_PART_ON_JOIN,
                                                     [MUSTER_RDZV_REQUEST_LEAVE] = MU_PART_ON_LEAVE,
                                                     [MUSTER_RDZV_REQUEST_CLOSE] = MU_PART_ON_CLOSE,
                                                     [MUSTER_RDZV_REQUEST_LOOK] = MU_PART_ON_LOOK };

    converse((struct mu_shell *)handler, (struct mu_talk_event){ .type = MU_TALK_ON_ASKED, .asked = asked[request] });
}

void mu_shell_introduce(struct muster_handler *handler, const struct mu_part_self *self)
{
    struct mu_shell *s = (struct mu_shell *)handler;

    s->ops->part->led->introduce(s->part, self);
}

void mu_shell_report(struct muster_handler *handler, const struct mu_part_report *report)
{
    converse((struct mu_shell *)handler,
             (struct mu_talk_event){ .type = MU_TALK_ON_ASKED, .asked = MU_PART_ON_REPORT, .report = report });
}

/* ---- Where the workers meet ---- */

static bool local_address(const struct mu_shell *s, char *text, size_t room)
{
    const struct mu_kv *kv = s->boot.config.kv;

    if (s->ops->local_address != NULL)
        return s->ops->local_address(s, text, room);
    return kv != NULL && kv->ops->local_address != NULL && kv->ops->local_address(kv, text, room);
}

void mu_shell_start_boot(struct mu_shell *s, struct mu_boot_start start)
{
    char own_addr[MU_ADDR_TEXT_MAX], accepted_on[MU_ADDR_TEXT_MAX];

    if (local_address(s, own_addr, sizeof own_addr))
        start.own_addr = own_addr;
    if (s->accepted_on != NULL && s->accepted_on(s, accepted_on, sizeof accepted_on))
        start.accepted_on = accepted_on;
    mu_boot_uv_start(&s->boot, &start);
}

/* ---- The part's steps ---- */

static void on_part_request(void *ctx, const void *effect)
{
    struct mu_shell *s = ctx;

    s->ops->request(s, effect);
}

static void on_part_own(void *ctx, const void *effect)
{
    struct mu_shell *s = ctx;

    if (s->ops->own != NULL && !s->freeing)
        s->ops->own(s, effect);
}

static void feed(struct mu_shell *s, enum mu_part_event_type type, const void *own, const struct mu_part_report *report)
{
    const struct mu_part_sink sink = {
        .request = on_part_request, .tell = on_part_tells, .own = on_part_own, .ctx = s
    };
    struct mu_part_now now = { .now_ms = uv_now(s->loop), .wall_us = mu_wall_us() };
    uint64_t id = 0;

    if (s->freeing)
        return;
    mu_late_begin(&s->late);
    if (report != NULL)
        s->ops->part->led->report(s->part, report, now, &sink);
    else
        s->ops->part->step(s->part, type, own, now, &sink);
    mu_rdzv_trace_phase(&s->phases, s->run_id, s->ops->part->phase(s->part), now.now_ms);
    if (!mu_late_end(&s->late))
        return;
    while (mu_late_next(&s->late, &id))
        s->ops->answer(s, id);
    mu_shell_arm(s);
}

void mu_shell_feed(struct mu_shell *s, const void *event)
{
    assert(event != NULL);
    feed(s, MU_PART_ON_TIME, event, NULL);
}

void mu_shell_answer_late(struct mu_shell *s, uint64_t id)
{
    if (id != 0)
        mu_late_add(&s->late, id);
}

static void on_timer(uv_timer_t *timer)
{
    struct mu_shell *s = timer->data;

    if (s->ops->on_time != NULL)
        s->ops->on_time(s);
    if (s->part != NULL)
        feed(s, MU_PART_ON_TIME, NULL, NULL);
}

/* Always derived anew, so never forgotten. */
void mu_shell_arm(struct mu_shell *s)
{
    uint64_t when_ms = s->part != NULL ? s->ops->part->deadline_ms(s->part) : UINT64_MAX;

    if (!s->freeing)
        mu_timer_until(&s->timer, s->also_ms < when_ms ? s->also_ms : when_ms, on_timer);
}

/* ---- Requests under way ---- */

void *mu_order_new(struct mu_shell *s, size_t size, uint64_t id)
{
    struct mu_order *order = calloc(1, size);

    assert(size >= sizeof *order);
    if (order == NULL)
        return NULL;
    order->shell = s;
    order->id = id;
    mu_list_push(&s->orders, &order->link);
    return order;
}

struct mu_order *mu_order_find(const struct mu_shell *s, uint64_t id)
{
    for (struct mu_list *link = s->orders.next; id != 0 && link != &s->orders; link = link->next) {
        struct mu_order *order = MU_LIST_ITEM(link, struct mu_order, link);

        if (order->id == id)
            return order;
    }
    return NULL;
}

void mu_order_free(struct mu_order *order)
{
    mu_list_remove(&order->link);
    free(order);
}

/* ---- Beginning and end ---- */

void mu_shell_init(struct mu_shell *s, uv_loop_t *loop, const struct mu_shell_ops *ops, uint64_t join_ms,
                   muster_rdzv_listener *listener, void *ctx)
{
    s->handler.ask = ask;
    s->loop = loop;
    s->ops = ops;
    s->listener = listener;
    s->ctx = ctx;
    s->also_ms = UINT64_MAX;
    mu_list_init(&s->orders);
    mu_talk_init(&s->talk, join_ms, ops->find != NULL);
}

void mu_shell_open(struct mu_shell *s, struct mu_kv *kv)
{
    static const struct mu_boot_uv_ops boot_ops = { on_booted, on_boot_failed, on_boot_request };

    assert(s->part != NULL || s->ops->find != NULL);
    (void)uv_timer_init(s->loop, &s->timer); /* these only fill in memory */
    s->timer.data = s;
    mu_later_open(&s->later, s->loop, NULL);
    mu_boot_uv_open(&s->boot, s->loop, &(struct mu_boot_uv_config){ .kv = kv, .ops = &boot_ops, .ctx = s });
    if (mu_talk_is_due(&s->talk))
        mu_later_turn(&s->later, on_turn, s);
}

void mu_shell_hold(struct mu_shell *s)
{
    s->handles++;
}

void mu_shell_drop(void *ctx)
{
    struct mu_shell *s = ctx;
    void (*on_freed)(void *ctx) = s->on_freed;
    void *freed_ctx = s->freed_ctx;

    assert(s->handles > 0);
    s->handles--;
    if (!s->freeing || s->handles > 0)
        return;
    if (s->ops->last != NULL && !s->at_last) {
        s->at_last = true;
        s->handles = 1;
        s->ops->last(s);
        return;
    }
    assert(mu_list_empty(&s->orders));
    s->ops->destroy(s);
    on_freed(freed_ctx);
}

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    mu_shell_drop(ctx);
}

void mu_shell_close_kv(struct mu_shell *s, struct mu_kv *kv)
{
    mu_shell_hold(s);
    kv->ops->close(kv, on_kv_closed, s);
}

static void on_timer_closed(uv_handle_t *timer)
{
    mu_shell_drop(timer->data);
}

void mu_shell_close(struct mu_shell *s, void (*done)(void *ctx), void *ctx)
{
    assert(!s->freeing && done != NULL);
    s->freeing = true;
    mu_late_drop(&s->late);
    s->on_freed = done;
    s->freed_ctx = ctx;
    s->handles += 3;
    mu_boot_uv_close(&s->boot, mu_shell_drop);
    uv_close((uv_handle_t *)&s->timer, on_timer_closed);
    mu_later_close(&s->later, mu_shell_drop, s);
}
