/* A user's own blocking handler on a loop.
 *
 * Happy path: the agent asks to join, user_handler.c wants next_rendezvous(), the thread calls it, the loop is woken
 * and tells JOINED. While the round lasts, num_nodes_waiting() is called every look_ms. The agents' requests to the
 * store that came with the round (struct mu_kv) are calls on the same thread, in the order they came (kv_lane_uv.h).
 *
 * Failures: what a call returns is told. A round's requests that are still waiting when the next round is asked for are
 * canceled. A call that does not return in the end is left behind with its thread (base/filethread.h), which touches
 * nothing but its own job and the user's handler; that is said in one line. */
#include "handler/user_handler_uv.h"

#include "base/log.h"
#include "handler/user_handler.h"
#include "kv/kv_lane_uv.h"

#include <assert.h>
#include <stdlib.h>
#include <uv.h>

struct blocking {
    struct mu_handler handler;
    struct mu_user_handler machine;
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    struct muster_rdzv *rdzv;
    char *backend, *run_id;
    uv_timer_t timer;
    uv_async_t rang; /* by the threads */
    struct mu_later later;
    struct mu_filethread *thread, *beside;
    struct call *call, *beside_call; /* one under way on each, at most */
    struct mu_list views;            /* that are open */
    struct muster_store *store;      /* of the round; NULL: there is no round, or it has none */
    /* The end. */
    size_t handles;
    void (*on_freed)(void *ctx);
    void *freed_ctx;
};

/* A call of the handler, with all that it needs: it may outlive the rest. */
struct call {
    struct mu_file_job job;
    struct blocking *b; /* this and the next: the loop's side only */
    bool under_way;
    struct muster_rdzv *rdzv;
    enum mu_user_handler_call which;
    char *local_addr;     /* NULL: none */
    atomic_bool begun;    /* set by the thread */
    atomic_bool unwanted; /* set by the loop: a handler that says "not yet" is not asked again */
    struct mu_user_handler_result result;
};

struct view { /* what an agent asks through */
    struct mu_kv kv;
    struct mu_list link;
    struct blocking *b; /* until it is closed */
    struct mu_kv_lane lane;
    struct mu_later later; /* answers without a call */
};

static void feed(struct blocking *b, struct mu_user_handler_event event);

static const struct muster_handler_ops handler_ops;

static struct blocking *of(const struct muster_handler *handler)
{
    assert(handler->ops == &handler_ops);
    return (struct blocking *)(uintptr_t)handler;
}

/* ---- On the thread: the handler ---- */

static int make_one(struct call *call, enum mu_user_handler_call which)
{
    struct mu_user_handler_result *to = &call->result;

    switch (which) {
    case MU_USER_HANDLER_NEXT:
        return mu_rdzv_next_unless(call->rdzv, &call->unwanted, &to->info, &to->error);
    case MU_USER_HANDLER_BUILD:
        return muster_store_info_build(to->info.rank, to->info.store, call->local_addr, 0, &to->info.bootstrap,
                                       &to->error);
    case MU_USER_HANDLER_LOOK:
        return muster_rdzv_is_closed(call->rdzv, &to->closed, &to->error);
    case MU_USER_HANDLER_WAITING:
        return muster_rdzv_num_nodes_waiting(call->rdzv, &to->count, &to->error);
    case MU_USER_HANDLER_CLOSE:
        return muster_rdzv_set_closed(call->rdzv, &to->error);
    case MU_USER_HANDLER_SHUTDOWN:
        return muster_rdzv_shutdown(call->rdzv, &to->closed, &to->error);
    case MU_USER_HANDLER_FREE:
        muster_rdzv_free(call->rdzv);
        break;
    case MU_USER_HANDLER_STORE:
        break;
    case MU_USER_HANDLER_NOTHING:
        assert(false);
        break;
    }
    return 0;
}

static void run_call(struct mu_file_job *job)
{
    struct call *call = MU_LIST_ITEM(job, struct call, job);
    enum mu_user_handler_call which = MU_USER_HANDLER_NOTHING;
    int rc = 0;

    atomic_store(&call->begun, true);
    while ((which = mu_user_handler_then(call->which, which, rc, &call->result)) != MU_USER_HANDLER_NOTHING)
        rc = make_one(call, which);
}

static void drop_call(struct mu_file_job *job)
{
    struct call *call = MU_LIST_ITEM(job, struct call, job);

    free(call->local_addr);
    free(call);
}

/* ---- Requests to the store ---- */

static int begin(struct view *view, struct mu_kv_request *request, struct muster_error *reterr)
{
    const struct blocking *b = view->b;
    struct mu_kv_request asked = *request;
    int rc = mu_user_handler_check_request(b->store, view->lane.count, reterr);

    if (rc < 0)
        return rc;
    view->lane.store = b->store;
    asked.key = mu_user_handler_key(b->run_id, request->key);
    return mu_kv_lane_submit(&view->lane, request, &asked, reterr);
}

static void view_submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct view *view = (struct view *)kv;
    struct muster_error error;

    assert(view->b != NULL);
    mu_kv_begin(request, uv_now(view->b->loop));
    if (begin(view, request, &error) == 0)
        return;
    mu_kv_fail(request, error.code, &error);
    mu_later_push(&view->later, &request->link);
}

static void view_close(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    struct view *view = (struct view *)kv;

    mu_kv_lane_cancel(&view->lane, false, MU_USER_HANDLER_ROUND_OVER);
    mu_list_remove(&view->link);
    view->b = NULL;
    mu_kv_begin_close(kv, closed, ctx);
    mu_later_close(&view->later, mu_kv_part_closed, view);
}

static void view_free(struct mu_kv *kv)
{
    free(kv);
}

static const struct mu_kv_ops view_ops = {
    .name = "blocking", .submit = view_submit, .close = view_close, .free = view_free
};

static bool has_kv(const struct muster_handler *handler)
{
    return of(handler)->store != NULL;
}

static int open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct blocking *b = of(handler);
    struct view *view = calloc(1, sizeof *view);

    if (view == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the store of a round");
    view->kv.ops = &view_ops;
    view->kv.parts = 1; /* `later` */
    view->b = b;
    mu_later_open(&view->later, b->loop, mu_kv_tell);
    mu_kv_lane_init(&view->lane, b->thread, &view->later);
    mu_list_push(&b->views, &view->link);
    *ret_kv = &view->kv;
    return 0;
}

static const struct mu_handler_ops agent_ops = { .hides_members = true, .open_kv = open_kv, .has_kv = has_kv };

/* ---- Telling ---- */

static void tell(const struct blocking *b, struct muster_rdzv_event event)
{
    struct muster_error error;

    if (event.error != NULL) {
        error = *event.error;
        mu_handler_wrap(&event, b->run_id, &error);
        event.error = &error;
    }
    b->listener(b->ctx, &event);
}

/* ---- Calls ---- */

static void on_called(struct mu_file_job *job)
{
    struct call *call = MU_LIST_ITEM(job, struct call, job);
    const struct mu_user_handler_result result = call->result; /* a copy: the next call takes the place of this one */

    call->under_way = false;
    feed(call->b,
         (struct mu_user_handler_event){ .type = MU_USER_HANDLER_ON_RETURNED, .call = call->which, .result = &result });
}

static void end_round(struct blocking *b)
{
    b->store = NULL;
    for (struct mu_list *link = b->views.next; link != &b->views; link = link->next)
        mu_kv_lane_cancel(&MU_LIST_ITEM(link, struct view, link)->lane, true, MU_USER_HANDLER_ROUND_OVER);
}

static void make(struct mu_filethread *thread, struct call *call, enum mu_user_handler_call which)
{
    assert(!call->under_way);
    call->under_way = true;
    call->which = which;
    call->result = MU_USER_HANDLER_NO_RESULT;
    atomic_store(&call->begun, false);
    atomic_store(&call->unwanted, false);
    mu_filethread_submit(thread, &call->job);
}

/* ---- The end ---- */

static void free_call(struct call *call)
{
    if (call != NULL && !call->under_way) /* else it is dropped with its thread */
        drop_call(&call->job);
}

static void end_threads(struct blocking *b)
{
    struct mu_filethread *threads[] = { b->thread, b->beside };

    free_call(b->call);
    free_call(b->beside_call);
    (void)mu_filethread_free_all(threads, 2); /* one that hangs is left behind, with its call */
}

/* Before the loop has anything of it, or when it has nothing any more. */
static void destroy(struct blocking *b)
{
    free(b->backend);
    free(b->run_id);
    free(b);
}

static void part_closed(void *ctx)
{
    struct blocking *b = ctx;
    void (*on_freed)(void *ctx) = b->on_freed;
    void *freed_ctx = b->freed_ctx;

    assert(b->handles > 0);
    if (--b->handles > 0)
        return;
    destroy(b);
    on_freed(freed_ctx);
}

static void on_handle_closed(uv_handle_t *handle)
{
    part_closed(handle->data);
}

/* From the loop, and not while the threads tell what they have: they end here. */
static void end(struct blocking *b)
{
    assert(mu_list_empty(&b->views));
    end_threads(b);
    b->handles = 3;
    uv_close((uv_handle_t *)&b->timer, on_handle_closed);
    uv_close((uv_handle_t *)&b->rang, on_handle_closed);
    mu_later_close(&b->later, part_closed, b);
}

static void on_turn(void *ctx)
{
    feed(ctx, (struct mu_user_handler_event){ .type = MU_USER_HANDLER_ON_TURN });
}

static void warn(const struct blocking *b, const struct mu_user_handler_effect *effect)
{
    char text[MU_USER_HANDLER_WARNING_MAX];

    mu_log(MUSTER_LOG_WARNING, "%s", mu_user_handler_warning(&b->machine, b->backend, effect, text));
}

/* ---- The machine ---- */

static void perform(struct blocking *b, const struct mu_user_handler_effect *effect)
{
    switch (effect->type) {
    case MU_USER_HANDLER_DO_TAKE_STORE:
        b->store = effect->store;
        break;
    case MU_USER_HANDLER_DO_END_ROUND:
        end_round(b);
        break;
    case MU_USER_HANDLER_DO_CALL:
        make(b->thread, b->call, effect->call);
        break;
    case MU_USER_HANDLER_DO_BESIDE:
        atomic_store(&b->call->unwanted, true);
        make(b->beside, b->beside_call, effect->call);
        break;
    case MU_USER_HANDLER_DO_TELL:
        tell(b, effect->tell);
        break;
    case MU_USER_HANDLER_DO_ABANDON:
        mu_rdzv_keep(b->rdzv);
        warn(b, effect);
        break;
    case MU_USER_HANDLER_DO_END:
        end(b);
        break;
    case MU_USER_HANDLER_DO_SAY_SLOW:
    case MU_USER_HANDLER_DO_SAY_FAILED:
        warn(b, effect);
        break;
    }
}

static void on_timer(uv_timer_t *timer)
{
    feed(timer->data, (struct mu_user_handler_event){ .type = MU_USER_HANDLER_ON_TIME });
}

static void arm(struct blocking *b)
{
    mu_timer_until(&b->timer, mu_user_handler_deadline_ms(&b->machine), on_timer);
    if (mu_user_handler_wants_turn(&b->machine))
        mu_later_turn(&b->later, on_turn, b);
}

static void feed(struct blocking *b, struct mu_user_handler_event event)
{
    struct mu_user_handler_effects effects;

    event.now_ms = uv_now(b->loop);
    event.begun = atomic_load(&b->call->begun);
    mu_user_handler_step(&b->machine, &event, &effects);
    arm(b);
    for (unsigned i = 0; i < effects.count; i++)
        perform(b, &effects.items[i]);
}

static void on_rang(uv_async_t *async)
{
    struct blocking *b = async->data;

    mu_filethread_turn(b->thread);
    mu_filethread_turn(b->beside);
}

static void wake(void *ctx)
{
    (void)uv_async_send(&((struct blocking *)ctx)->rang);
}

/* ---- The handler ---- */

static void ask(struct muster_handler *handler, enum muster_rdzv_request request)
{
    static const enum mu_user_handler_event_type asked[] = { [MUSTER_RDZV_REQUEST_JOIN] = MU_USER_HANDLER_ON_JOIN,
                                                             [MUSTER_RDZV_REQUEST_LEAVE] = MU_USER_HANDLER_ON_LEAVE,
                                                             [MUSTER_RDZV_REQUEST_CLOSE] = MU_USER_HANDLER_ON_CLOSE,
                                                             [MUSTER_RDZV_REQUEST_LOOK] = MU_USER_HANDLER_ON_LOOK };

    feed(of(handler), (struct mu_user_handler_event){ .type = asked[request] });
}

static bool blocking_use_agent_store(const struct muster_handler *handler)
{
    return of(handler)->machine.agent_store;
}

static void blocking_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct blocking *b = of(handler);

    b->on_freed = done;
    b->freed_ctx = ctx;
    feed(b, (struct mu_user_handler_event){ .type = MU_USER_HANDLER_ON_FREE });
}

static const struct muster_handler_ops handler_ops = {
    MU_HANDLER_OPS("blocking"),
    .use_agent_store = blocking_use_agent_store,
    .free = blocking_free,
};

static struct call *new_call(struct blocking *b, const char *local_addr)
{
    struct call *call = calloc(1, sizeof *call);

    if (call == NULL)
        return NULL;
    call->job = (struct mu_file_job){ .run = run_call, .done = on_called, .drop = drop_call };
    call->b = b;
    call->rdzv = b->rdzv;
    call->local_addr = local_addr != NULL ? strdup(local_addr) : NULL;
    if (local_addr == NULL || call->local_addr != NULL)
        return call;
    free(call);
    return NULL;
}

static int make_parts(struct blocking *b, const char *local_addr, struct muster_error *reterr)
{
    struct mu_filethread_config thread = { .wake = wake, .ctx = b };

    b->backend = strdup(muster_rdzv_get_backend(b->rdzv));
    b->run_id = strdup(muster_rdzv_get_run_id(b->rdzv));
    b->call = new_call(b, local_addr);
    b->beside_call = new_call(b, local_addr);
    b->thread = mu_filethread_new(&thread);
    b->beside = mu_filethread_new(&thread);
    if (b->backend == NULL || b->run_id == NULL || b->call == NULL || b->beside_call == NULL || b->thread == NULL ||
        b->beside == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous handler");
    if (!mu_filethread_start(b->thread) || !mu_filethread_start(b->beside)) /* the user's calls may block for ever */
        return mu_fail(reterr, MUSTER_ESYSTEM, "cannot start the threads of the rendezvous handler '%s'", b->backend);
    return mu_user_handler_check_run_id(b->backend, b->run_id, reterr);
}

static int start(struct blocking *b, const char *local_addr, struct muster_error *reterr)
{
    int rc = make_parts(b, local_addr, reterr);

    if (rc == 0) {
        rc = uv_async_init(b->loop, &b->rang, on_rang);
        if (rc < 0)
            rc = mu_fail_errno(reterr, -rc, "make the handle that wakes the loop");
    }
    if (rc == 0)
        return 0;
    end_threads(b);
    destroy(b);
    return rc;
}

int mu_user_handler_start(struct uv_loop_s *loop, struct muster_rdzv *rdzv, bool take, const struct mu_driving *driving,
                          const char *local_addr, muster_rdzv_listener *listener, void *ctx,
                          struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct blocking *b = calloc(1, sizeof *b);
    int rc = 0;

    if (b == NULL) {
        rc = mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous handler");
    } else {
        b->handler = (struct mu_handler){ .base = { &handler_ops }, .ops = &agent_ops, .ask = ask };
        b->loop = loop;
        b->listener = listener;
        b->ctx = ctx;
        b->rdzv = rdzv;
        mu_list_init(&b->views);
        rc = start(b, local_addr, reterr);
    }
    if (rc < 0) {
        if (take)
            muster_rdzv_free(rdzv);
        return rc;
    }
    mu_user_handler_init(&b->machine, driving->look_ms, driving->end_ms, take, muster_rdzv_use_agent_store(rdzv));
    (void)uv_timer_init(loop, &b->timer); /* these only fill in memory */
    mu_later_open(&b->later, loop, NULL);
    b->timer.data = b->rang.data = b;
    *ret_handler = &b->handler.base;
    return 0;
}
