/* Blocking calls for an event-driven handler: struct muster_rdzv around a struct muster_handler.
 *
 * It owns one thread, which runs the loop with the handler on it from new to free, so that a member stays one whatever
 * its user does. A call has the handler asked there and sleeps until the handler has told the answer; the handler's
 * deadlines see to it that there is one. Calls come one after the other. What the handler tells unasked is remembered
 * (blocking_rdzv.h): a rendezvous that was seen closed stays closed, and a round that has lost members makes
 * num_nodes_waiting() call for the next one.
 *
 * Freeing leaves the rendezvous, for a moment at most, then ends the handler and joins the thread. A name that is still
 * being resolved may hold the thread up. If nothing of the caller's is in use (its back end, its store), the thread is
 * then left behind and frees the rest by itself. */
#include "base/arena.h"
#include "base/clock.h"
#include "handler/blocking_rdzv.h"
#include "kv/kv_user_uv.h"
#include "store/loop_thread_uv.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <uv.h>

static const char thread_text[] = "a rendezvous handler"; /* in error texts */

struct blocking {
    struct muster_rdzv base;
    struct mu_arena texts; /* of these, and of the configuration */
    const char *backend, *run_id;
    bool use_agent_store;
    struct mu_loop_thread thread;
    struct muster_handler *handler;
    /* The stores of a round; the caller's side only. */
    struct mu_blocking_store store;
    struct muster_store *given; /* NULL: none; ours, unless there is a back end of the user's */
    struct muster_store *tcp, *view;
    /* What the handler was made of, for one more of its kind on another loop. */
    mu_handler_start *start;           /* with these: */
    struct muster_rdzv_params *params; /* NULL: on a back end of the user's, with these: */
    struct mu_dynamic_config config;
    struct muster_rdzv_backend *user_backend;
    /* Between the threads. */
    pthread_mutex_t calls; /* held for the length of a call */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under lock. */
    enum muster_rdzv_request awaited; /* UNKNOWN: none, or `answer` is there */
    struct mu_blocking_answer answer;
    struct mu_blocking_seen seen;
    struct muster_node self; /* for the record; its name is ours. NULL: not known */
};

static struct blocking *blocking_of(struct muster_rdzv *rdzv)
{
    return (struct blocking *)rdzv;
}

static struct blocking *blocking_on(struct mu_loop_thread *thread)
{
    return MU_LIST_ITEM(thread, struct blocking, thread);
}

static struct mu_blocking_seen seen_by(struct blocking *b)
{
    struct mu_blocking_seen seen;

    (void)pthread_mutex_lock(&b->lock);
    seen = b->seen;
    (void)pthread_mutex_unlock(&b->lock);
    return seen;
}

/* ---- The thread's side ---- */

static void find_store(struct blocking *b)
{
    if (!b->handler->ops->endpoint(b->handler, b->store.host, sizeof b->store.host, &b->store.port))
        b->store.host[0] = '\0';
}

static void remember_self(struct blocking *b, const struct muster_node *self)
{
    char *name = self != NULL && b->self.name == NULL ? strdup(self->name) : NULL;

    if (name != NULL)
        b->self = (struct muster_node){ name, self->pid, self->local_id };
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct blocking *b = ctx;
    struct mu_blocking_seen before = seen_by(b);
    char warning[MU_BLOCKING_WARNING_MAX];

    if (mu_blocking_trouble(&before, event, warning))
        mu_handler_log(MUSTER_LOG_WARNING, b->run_id, warning);
    (void)pthread_mutex_lock(&b->lock);
    mu_blocking_see(&b->seen, event);
    if (mu_blocking_store_has_moved(&b->store, event))
        find_store(b);
    remember_self(b, event->self);
    if (mu_blocking_answers(b->awaited, event)) {
        b->answer = (struct mu_blocking_answer){ .closed = event->closed, .count = event->count };
        if (event->info != NULL)
            b->answer.info = *event->info;
        if (event->error != NULL)
            b->answer.error = *event->error;
        b->awaited = MUSTER_RDZV_REQUEST_UNKNOWN;
        (void)pthread_cond_broadcast(&b->changed);
    }
    (void)pthread_mutex_unlock(&b->lock);
}

static void on_handler_freed(void *ctx)
{
    (void)ctx;
}

static void close_there(struct mu_loop_thread *thread)
{
    struct muster_handler *handler = blocking_on(thread)->handler;

    handler->ops->free(handler, on_handler_freed, NULL);
}

struct request {
    struct mu_posted posted;
    struct blocking *b;
    void (*ask)(struct muster_handler *handler);
};

static void begin_request(struct mu_posted *posted)
{
    struct request *request = (struct request *)posted;

    request->ask(request->b->handler);
    mu_posted_done(posted);
}

static void free_memory(struct blocking *b)
{
    (void)pthread_mutex_destroy(&b->calls);
    (void)pthread_mutex_destroy(&b->lock);
    (void)pthread_cond_destroy(&b->changed);
    if (b->user_backend == NULL)
        muster_store_free(b->given);
    muster_rdzv_params_free(b->params);
    mu_arena_done(&b->texts);
    free((char *)b->self.name);
    free(b);
}

static void free_ended(struct mu_loop_thread *thread)
{
    mu_loop_thread_done(thread);
    free_memory(blocking_on(thread));
}

/* ---- The caller's side ---- */

/* Waits for the answer until then; it may come later. */
static void ask(struct blocking *b, enum muster_rdzv_request what, void (*how)(struct muster_handler *handler),
                int64_t until_ms, struct mu_blocking_answer *ret_answer)
{
    struct request request = { .posted = { .begin = begin_request }, .b = b, .ask = how };

    (void)pthread_mutex_lock(&b->lock);
    b->awaited = what;
    (void)pthread_mutex_unlock(&b->lock);
    mu_loop_thread_call(&b->thread, &request.posted);
    (void)pthread_mutex_lock(&b->lock);
    while (b->awaited != MUSTER_RDZV_REQUEST_UNKNOWN && mu_cond_wait_until(&b->changed, &b->lock, until_ms))
        continue;
    *ret_answer = b->answer;
    (void)pthread_mutex_unlock(&b->lock);
}

/* ---- The stores of a round ---- */

static void close_stores(struct blocking *b)
{
    muster_store_free(b->view);
    muster_store_free(b->tcp);
    b->view = b->tcp = NULL;
}

static void open_view(struct blocking *b, struct muster_store *inner, struct mu_blocking_answer *answer)
{
    char prefix[MU_BLOCKING_PREFIX_MAX];

    mu_blocking_prefix(b->run_id, answer->info.round, prefix);
    if (muster_store_prefix_new(muster_str(prefix), inner, &b->view, &answer->error) == 0)
        answer->info.store = b->view;
}

static void open_tcp(struct blocking *b, struct mu_blocking_answer *answer)
{
    const struct muster_store_tcp_config config = { .size = sizeof config,
                                                    .host = b->store.host,
                                                    .port = b->store.port,
                                                    .connect_timeout_ms = b->store.timeout_ms,
                                                    .timeout_ms = b->store.timeout_ms };

    if (muster_store_tcp_new(&config, &b->tcp, &answer->error) == 0)
        open_view(b, b->tcp, answer);
}

/* ---- The calls ---- */

static const char *get_backend(const struct muster_rdzv *rdzv)
{
    return ((const struct blocking *)rdzv)->backend;
}

static const char *get_run_id(const struct muster_rdzv *rdzv)
{
    return ((const struct blocking *)rdzv)->run_id;
}

static bool shares_store(const struct muster_rdzv *rdzv)
{
    return ((const struct blocking *)rdzv)->use_agent_store;
}

static void carry_out(struct blocking *b, enum mu_blocking_step step, struct mu_blocking_answer *answer)
{
    const struct muster_handler_ops *ops = b->handler->ops;

    switch (step) {
    case MU_BLOCKING_DO_JOIN:
        close_stores(b);
        ask(b, MUSTER_RDZV_REQUEST_JOIN, ops->join, INT64_MAX, answer);
        break;
    case MU_BLOCKING_DO_CLOSE:
        ask(b, MUSTER_RDZV_REQUEST_CLOSE, ops->close, INT64_MAX, answer);
        break;
    case MU_BLOCKING_DO_LOOK:
        ask(b, MUSTER_RDZV_REQUEST_LOOK, ops->look, INT64_MAX, answer);
        break;
    case MU_BLOCKING_DO_LEAVE:
        close_stores(b);
        ask(b, MUSTER_RDZV_REQUEST_LEAVE, ops->leave, INT64_MAX, answer);
        break;
    case MU_BLOCKING_DO_LEAVE_SOON:
        ask(b, MUSTER_RDZV_REQUEST_LEAVE, ops->leave, mu_clock_in_ms(MU_BLOCKING_LEAVE_MS), answer);
        break;
    case MU_BLOCKING_DO_OPEN_TCP:
        open_tcp(b, answer);
        break;
    case MU_BLOCKING_DO_OPEN_GIVEN:
        open_view(b, b->given, answer);
        break;
    case MU_BLOCKING_DO_RETURN:
        break;
    }
}

static void take_steps(struct blocking *b, struct mu_blocking_call *call)
{
    struct mu_blocking_answer answer = { .count = 0 };
    struct mu_blocking_seen seen = seen_by(b);
    enum mu_blocking_step step;

    while ((step = mu_blocking_next(call, &seen, &answer)) != MU_BLOCKING_DO_RETURN) {
        carry_out(b, step, &answer);
        seen = seen_by(b);
    }
}

static void record_failure(struct blocking *b, const struct mu_blocking_call *call)
{
    char warning[MU_BLOCKING_WARNING_MAX], hostname[MU_HANDLER_NAME_MAX];
    struct mu_rdzv_trace story = { .error = &call->result.error };
    struct muster_node self;
    struct mu_teller who;

    if (!mu_blocking_failed(call, &story.kind, warning))
        return;
    if (warning[0] != '\0')
        mu_handler_log(MUSTER_LOG_WARNING, b->run_id, warning);
    (void)pthread_mutex_lock(&b->lock);
    self = b->self; /* a name that is there stays there */
    (void)pthread_mutex_unlock(&b->lock);
    who = mu_teller_of_self(b->run_id, &self, hostname);
    mu_rdzv_trace_tell(&who, story);
}

static struct mu_blocking_call run(struct muster_rdzv *rdzv, enum mu_blocking_call_kind kind,
                                   struct muster_error *reterr)
{
    struct blocking *b = blocking_of(rdzv);
    struct mu_blocking_call call = { .kind = kind, .store = b->store.kind };
    struct mu_blocking_seen seen = seen_by(b);
    bool waits = !mu_blocking_is_known(kind, &seen);

    if (waits)
        (void)pthread_mutex_lock(&b->calls);
    take_steps(b, &call);
    if (waits)
        (void)pthread_mutex_unlock(&b->calls);
    record_failure(b, &call);
    if (call.result.error.code < 0 && reterr != NULL)
        *reterr = call.result.error;
    return call;
}

static int next_rendezvous(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info, struct muster_error *reterr)
{
    struct mu_blocking_call call = run(rdzv, MU_BLOCKING_NEXT, reterr);

    if (call.rc == 0)
        *ret_info = call.result.info;
    return call.rc;
}

static int is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    struct mu_blocking_call call = run(rdzv, MU_BLOCKING_IS_CLOSED, reterr);

    if (call.rc == 0)
        *ret_closed = call.result.closed;
    return call.rc;
}

static int num_nodes_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr)
{
    struct mu_blocking_call call = run(rdzv, MU_BLOCKING_NODES_WAITING, reterr);

    if (call.rc == 0)
        *ret_count = call.result.count;
    return call.rc;
}

static int set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr)
{
    return run(rdzv, MU_BLOCKING_SET_CLOSED, reterr).rc;
}

/* Heartbeats end with it; a store that is served here goes on until this is freed, for the others to see. */
static int shut_down(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    struct mu_blocking_call call = run(rdzv, MU_BLOCKING_SHUT_DOWN, reterr);

    if (call.rc == 0)
        *ret_closed = call.result.closed;
    return call.rc;
}

static void free_blocking(struct muster_rdzv *rdzv)
{
    struct blocking *b = blocking_of(rdzv);

    close_stores(b);
    (void)run(rdzv, MU_BLOCKING_FREE, NULL);
    if (mu_loop_thread_stop(&b->thread, close_there, mu_blocking_end_ms(b->user_backend != NULL), free_ended))
        free_ended(&b->thread);
}

static const struct muster_rdzv_ops blocking_ops = {
    .size = sizeof blocking_ops,
    .get_backend = get_backend,
    .get_run_id = get_run_id,
    .use_agent_store = shares_store,
    .next_rendezvous = next_rendezvous,
    .is_closed = is_closed,
    .set_closed = set_closed,
    .num_nodes_waiting = num_nodes_waiting,
    .shutdown = shut_down,
    .free = free_blocking,
};

/* ---- New ---- */

/* With its loop, but neither handler nor thread yet. */
static int new_blocking(const char *backend, const char *run_id, struct blocking **ret_blocking,
                        struct muster_error *reterr)
{
    struct blocking *b = calloc(1, sizeof *b);
    bool full = false;
    int rc;

    if (b == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous handler");
    assert(backend != NULL && run_id != NULL);
    b->base.ops = &blocking_ops;
    (void)pthread_mutex_init(&b->calls, NULL);
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)mu_cond_init(&b->changed); /* its clock is one that every system has */
    b->backend = mu_arena_text(&b->texts, backend, &full);
    b->run_id = mu_arena_text(&b->texts, run_id, &full);
    rc = full ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous handler")
              : mu_loop_thread_open(&b->thread, thread_text, reterr);
    if (rc < 0)
        free_memory(b);
    else
        *ret_blocking = b;
    return rc;
}

/* Its handler has not started. */
static void discard(struct blocking *b)
{
    mu_loop_thread_discard(&b->thread);
    free_memory(b);
}

/* With a handler on its loop. Takes `b`, also on failure. */
static int start_thread(struct blocking *b, struct muster_rdzv **ret_rdzv, struct muster_error *reterr)
{
    int rc;

    b->use_agent_store = b->handler->ops->use_agent_store(b->handler);
    rc = mu_loop_thread_start(&b->thread, thread_text, reterr);
    if (rc < 0) {
        close_there(&b->thread);
        discard(b);
        return rc;
    }
    *ret_rdzv = &b->base;
    return 0;
}

int mu_rdzv_blocking_new_with(const char *backend, mu_handler_start *start, const struct muster_rdzv_params *params,
                              struct muster_store *store, struct muster_rdzv **ret_rdzv, struct muster_error *reterr)
{
    struct blocking *b = NULL;
    int rc = new_blocking(backend, muster_rdzv_params_run_id(params), &b, reterr);

    if (rc < 0) {
        muster_store_free(store);
        return rc;
    }
    assert(b != NULL);
    b->given = store;
    rc = mu_blocking_find_store(backend, params, store != NULL, &b->store, reterr);
    if (rc == 0)
        rc = muster_rdzv_params_copy(params, &b->params, reterr);
    if (rc == 0)
        rc = start(&b->thread.loop, params, on_event, b, &b->handler, reterr);
    if (rc < 0) {
        discard(b);
        return rc;
    }
    b->start = start;
    return start_thread(b, ret_rdzv, reterr);
}

int mu_rdzv_blocking_new(mu_handler_start *start, const struct muster_rdzv_params *params,
                         struct muster_rdzv **ret_rdzv, struct muster_error *reterr)
{
    return mu_rdzv_blocking_new_with(muster_rdzv_params_backend(params), start, params, NULL, ret_rdzv, reterr);
}

/* ---- New, on a back end of the user's ---- */

static int keep_config(struct blocking *b, const struct mu_dynamic_config *config, struct muster_error *reterr)
{
    bool full = false;

    b->config = *config;
    b->config.backend = b->backend;
    b->config.run_id = b->run_id;
    b->config.local_addr = mu_arena_text(&b->texts, config->local_addr, &full);
    b->config.bind.hosts = mu_arena_text(&b->texts, config->bind.hosts, &full);
    b->config.bind.allow = mu_arena_text(&b->texts, config->bind.allow, &full);
    return full ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous handler") : 0;
}

static int open_user_kv(void *ctx, struct uv_loop_s *loop, uint64_t patience_ms, struct mu_kv **ret_kv,
                        struct muster_error *reterr)
{
    struct blocking *b = ctx;

    return mu_kv_user_start(loop, b->user_backend, b->given, b->run_id, patience_ms, ret_kv, reterr);
}

static int start_on_backend(struct blocking *b, uv_loop_t *loop, muster_rdzv_listener *listener, void *ctx,
                            struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct mu_kv *kv = NULL;
    int rc = open_user_kv(b, loop, b->config.patience_ms, &kv, reterr);

    return rc < 0 ? rc : mu_dynamic_start(loop, &b->config, kv, listener, ctx, ret_handler, reterr);
}

static int new_on_backend(const struct mu_dynamic_config *config, struct muster_store *store,
                          struct muster_rdzv_backend *backend, struct muster_rdzv **ret_rdzv,
                          struct muster_error *reterr)
{
    struct blocking *b = NULL;
    int rc = new_blocking(config->backend, config->run_id, &b, reterr);

    if (rc < 0)
        return rc;
    assert(b != NULL);
    b->given = store;
    b->store.kind = MU_BLOCKING_STORE_GIVEN;
    b->user_backend = backend;
    rc = keep_config(b, config, reterr);
    if (rc == 0)
        rc = start_on_backend(b, &b->thread.loop, on_event, b, &b->handler, reterr);
    if (rc < 0) {
        discard(b);
        return rc;
    }
    return start_thread(b, ret_rdzv, reterr);
}

int muster_rdzv_dynamic_from_backend(const struct muster_rdzv_settings *settings, struct muster_store *store,
                                     struct muster_rdzv_backend *backend, const char *local_addr,
                                     struct muster_rdzv **ret_rdzv, struct muster_error *reterr)
{
    struct mu_dynamic_config config;
    struct muster_error error = { .code = 0 };
    int rc = mu_blocking_settle(settings, store, backend, local_addr, &config, &error);

    if (rc == 0)
        rc = new_on_backend(&config, store, backend, ret_rdzv, &error);
    return rc < 0 ? mu_blocking_create_failed(&config, rc, &error, reterr) : 0;
}

int muster_rdzv_dynamic_create(struct muster_store *store, struct muster_rdzv_backend *backend,
                               const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                               struct muster_error *reterr)
{
    struct mu_dynamic_config config;
    struct muster_error error = { .code = 0 };
    int rc = mu_blocking_read_params(params, store, backend, &config, &error);

    if (rc == 0)
        rc = new_on_backend(&config, store, backend, ret_rdzv, &error);
    return rc < 0 ? mu_blocking_create_failed(&config, rc, &error, reterr) : 0;
}

/* ---- One more of its kind, on another loop ---- */

bool mu_rdzv_is_blocking(const struct muster_rdzv *rdzv)
{
    return rdzv->ops == &blocking_ops;
}

const struct muster_rdzv_params *mu_rdzv_blocking_params(const struct muster_rdzv *rdzv,
                                                         struct muster_store **ret_store)
{
    const struct blocking *b = (const struct blocking *)rdzv;

    if (!mu_rdzv_is_blocking(rdzv))
        return NULL;
    *ret_store = b->given;
    return b->params;
}

int mu_rdzv_blocking_start_twin(struct uv_loop_s *loop, struct muster_rdzv *rdzv, const struct mu_driving *driving,
                                muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                                struct muster_error *reterr)
{
    struct blocking *b = blocking_of(rdzv);
    struct mu_blocking_seen seen = seen_by(b);
    int rc = mu_blocking_twin(b->backend, &seen, b->params, reterr);

    assert(mu_rdzv_is_blocking(rdzv));
    if (rc < 0)
        return rc;
    if (b->start != NULL)
        return b->start(loop, b->params, listener, ctx, ret_handler, reterr);
    b->config.open_kv = open_user_kv;
    b->config.open_kv_ctx = b;
    b->config.patience_ms = driving->end_ms;
    return start_on_backend(b, loop, listener, ctx, ret_handler, reterr);
}

/* ---- Settings ---- */

int muster_rdzv_dynamic_settings(const struct muster_rdzv *rdzv, struct muster_rdzv_settings *ret_settings,
                                 struct muster_error *reterr)
{
    const struct blocking *b = (const struct blocking *)rdzv;
    struct mu_dynamic_config config;
    int rc = 0;

    if (!mu_rdzv_is_blocking(rdzv))
        return mu_blocking_not_dynamic(muster_rdzv_get_backend(rdzv), reterr);
    config = b->config;
    if (b->params != NULL)
        rc = mu_blocking_read_settings(b->backend, b->params, &config, reterr);
    config.use_agent_store = b->use_agent_store;
    return rc < 0 ? rc : mu_blocking_tell_settings(&config, ret_settings, reterr);
}
