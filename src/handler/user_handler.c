/* Which call of a user's blocking handler is made next. See user_handler.h. */
#include "handler/user_handler.h"

#include "base/texts.h"
#include "handler/handler.h"
#include "rdzv/round_keys.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

MU_DEFINE_TEXTS(mu_user_handler_call_text, enum mu_user_handler_call, MU_USER_HANDLER_CALLS)

void mu_user_handler_init(struct mu_user_handler *b, uint64_t look_ms, uint64_t end_ms, bool owned, bool shares_store)
{
    assert(look_ms > 0 && end_ms > 0);
    *b = (struct mu_user_handler){ .look_ms = look_ms,
                                   .end_ms = end_ms,
                                   .owned = owned,
                                   .shares_store = shares_store,
                                   .round = -1,
                                   .next_look_ms = UINT64_MAX,
                                   .pause_ms = look_ms,
                                   .slow_at_ms = UINT64_MAX,
                                   .end_at_ms = UINT64_MAX };
}

/* ---- States ---- */

static bool is_in(const struct mu_user_handler *b)
{
    return b->state == MU_USER_HANDLER_IN || b->state == MU_USER_HANDLER_DOWN;
}

static void check(const struct mu_user_handler *b)
{
    bool joining = b->state == MU_USER_HANDLER_JOINING || b->state == MU_USER_HANDLER_UNWANTED;

    assert(joining == (b->calling == MU_USER_HANDLER_NEXT));
    assert(b->next_look_ms == UINT64_MAX || is_in(b));
    assert(b->slow_at_ms == UINT64_MAX || b->calling != MU_USER_HANDLER_NOTHING);
    assert(!b->left || b->state == MU_USER_HANDLER_OUT);
    assert(b->end == MU_USER_HANDLER_SERVING || (!b->wants_join && !b->wants_close && !b->wants_look && !b->left));
}

static void enter(struct mu_user_handler *b, enum mu_user_handler_state state)
{
    static const unsigned from[] = {
        [MU_USER_HANDLER_OUT] = ~0U,
        [MU_USER_HANDLER_JOINING] = 1U << MU_USER_HANDLER_OUT | 1U << MU_USER_HANDLER_IN | 1U << MU_USER_HANDLER_DOWN,
        [MU_USER_HANDLER_UNWANTED] = 1U << MU_USER_HANDLER_JOINING | 1U << MU_USER_HANDLER_UNWANTED,
        [MU_USER_HANDLER_IN] = 1U << MU_USER_HANDLER_JOINING | 1U << MU_USER_HANDLER_IN | 1U << MU_USER_HANDLER_DOWN,
        [MU_USER_HANDLER_DOWN] = 1U << MU_USER_HANDLER_IN | 1U << MU_USER_HANDLER_DOWN,
    };

    assert((from[state] & 1U << b->state) != 0);
    b->state = state;
    if (!is_in(b))
        b->next_look_ms = UINT64_MAX;
}

/* ---- Effects ---- */

static struct mu_user_handler_effect *emit(struct mu_user_handler_effects *out, enum mu_user_handler_effect_type type)
{
    assert(out->count < MU_USER_HANDLER_EFFECTS_MAX);
    out->items[out->count] = (struct mu_user_handler_effect){ .type = type };
    return &out->items[out->count++];
}

static void tell(const struct mu_user_handler *b, struct muster_rdzv_event event, struct mu_user_handler_effects *out)
{
    if (b->end != MU_USER_HANDLER_SERVING)
        return;
    event.size = sizeof event;
    event.round = b->round;
    emit(out, MU_USER_HANDLER_DO_TELL)->tell = event;
}

static void tell_plain(const struct mu_user_handler *b, enum muster_rdzv_event_type type,
                       struct mu_user_handler_effects *out)
{
    tell(b, (struct muster_rdzv_event){ .type = type }, out);
}

static void tell_failed(const struct mu_user_handler *b, enum muster_rdzv_request request,
                        const struct muster_error *error, struct mu_user_handler_effects *out)
{
    tell(b, (struct muster_rdzv_event){ .type = MUSTER_RDZV_FAILED, .request = request, .error = error }, out);
}

static void call(struct mu_user_handler *b, enum mu_user_handler_call which, struct mu_user_handler_effects *out)
{
    assert(b->calling == MU_USER_HANDLER_NOTHING);
    b->calling = which;
    if (which == MU_USER_HANDLER_NEXT || which == MU_USER_HANDLER_STORE)
        (void)emit(out, MU_USER_HANDLER_DO_END_ROUND);
    emit(out, MU_USER_HANDLER_DO_CALL)->call = which;
}

/* So that next_rendezvous(), which is under way, returns. */
static void interrupt(struct mu_user_handler *b, uint64_t now_ms, struct mu_user_handler_effects *out)
{
    if (b->calling != MU_USER_HANDLER_NEXT || b->shutdown != MU_USER_HANDLER_UP)
        return;
    b->shutdown = MU_USER_HANDLER_SHUTTING;
    b->end_at_ms = now_ms + b->end_ms;
    emit(out, MU_USER_HANDLER_DO_BESIDE)->call = MU_USER_HANDLER_SHUTDOWN;
}

/* ---- What is asked for ---- */

/* It waits for the call that is under way. next_rendezvous() may take its time: it waits for other nodes. */
static void wish(struct mu_user_handler *b, bool *wanted, uint64_t now_ms)
{
    *wanted = true;
    if (b->calling != MU_USER_HANDLER_NOTHING && b->calling != MU_USER_HANDLER_NEXT)
        b->slow_at_ms = now_ms + MU_USER_HANDLER_SLOW_MS;
}

static void on_leave(struct mu_user_handler *b, uint64_t now_ms, struct mu_user_handler_effects *out)
{
    b->wants_join = false;
    if (b->calling == MU_USER_HANDLER_NEXT) {
        enter(b, MU_USER_HANDLER_UNWANTED);
        interrupt(b, now_ms, out);
        return;
    }
    enter(b, MU_USER_HANDLER_OUT);
    b->left = true; /* told at the next turn, never inside of the call that asks for it */
}

static void on_free(struct mu_user_handler *b, uint64_t now_ms, struct mu_user_handler_effects *out)
{
    assert(b->end == MU_USER_HANDLER_SERVING);
    b->end = MU_USER_HANDLER_FREEING;
    b->wants_join = b->wants_close = b->wants_look = b->left = false;
    b->slow_at_ms = UINT64_MAX;
    if (b->state == MU_USER_HANDLER_JOINING)
        enter(b, MU_USER_HANDLER_UNWANTED);
    interrupt(b, now_ms, out);
    if (b->end_at_ms == UINT64_MAX)
        b->end_at_ms = now_ms + b->end_ms;
}

/* ---- What has returned ---- */

/* An address that we have put into the store ourselves is one where worker 0 will listen. */
static void take_round(struct mu_user_handler *b, const struct mu_user_handler_event *event,
                       struct mu_user_handler_effects *out)
{
    enter(b, MU_USER_HANDLER_IN);
    b->round = event->result->info.round;
    b->agent_store = b->shares_store && !event->result->built && event->result->info.bootstrap.master_port != 0;
    b->pause_ms = b->look_ms;
    b->next_look_ms = event->now_ms + b->look_ms;
    emit(out, MU_USER_HANDLER_DO_TAKE_STORE)->store = event->result->info.store;
    tell(b, (struct muster_rdzv_event){ .type = MUSTER_RDZV_JOINED, .info = &event->result->info }, out);
}

static void joined_or_not(struct mu_user_handler *b, const struct mu_user_handler_event *event,
                          struct mu_user_handler_effects *out)
{
    if (b->state == MU_USER_HANDLER_UNWANTED) {
        enter(b, MU_USER_HANDLER_OUT);
        tell_plain(b, MUSTER_RDZV_LEFT, out);
    } else if (event->result->error.code < 0) {
        enter(b, MU_USER_HANDLER_OUT);
        tell_failed(b, MUSTER_RDZV_REQUEST_JOIN, &event->result->error, out);
    } else {
        take_round(b, event, out);
    }
}

/* Whether nodes wait is not known: the workers run on, and it is asked again. */
static void be_down(struct mu_user_handler *b, const struct mu_user_handler_event *event,
                    struct mu_user_handler_effects *out)
{
    if (b->state == MU_USER_HANDLER_IN)
        tell(b, (struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_DOWN, .error = &event->result->error }, out);
    enter(b, MU_USER_HANDLER_DOWN);
    b->next_look_ms = event->now_ms + b->pause_ms;
    b->pause_ms *= 2;
    if (b->pause_ms > MU_USER_HANDLER_LOOK_MAX_MS)
        b->pause_ms = b->look_ms > MU_USER_HANDLER_LOOK_MAX_MS ? b->look_ms : MU_USER_HANDLER_LOOK_MAX_MS;
}

enum waiting { COUNTED, NEVER, CLOSED, NOT_KNOWN };

/* What num_nodes_waiting() says. NEVER: the handler does not have it, and takes nobody in later. */
static enum waiting read_waiting(const struct muster_error *error)
{
    if (error->code == MUSTER_ENOTSUP)
        return NEVER;
    if (error->code == MUSTER_ERDZV_CLOSED)
        return CLOSED;
    return error->code < 0 ? NOT_KNOWN : COUNTED;
}

static void looked_for_waiting(struct mu_user_handler *b, const struct mu_user_handler_event *event,
                               struct mu_user_handler_effects *out)
{
    if (!is_in(b) || b->wants_join)
        return; /* the round is over for us */
    b->next_look_ms = UINT64_MAX;
    switch (read_waiting(&event->result->error)) {
    case NEVER:
        return;
    case CLOSED:
        tell_plain(b, MUSTER_RDZV_CLOSED, out);
        return;
    case NOT_KNOWN:
        be_down(b, event, out);
        return;
    case COUNTED:
        break;
    }
    if (b->state == MU_USER_HANDLER_DOWN)
        tell_plain(b, MUSTER_RDZV_BACKEND_UP, out);
    enter(b, MU_USER_HANDLER_IN);
    b->pause_ms = b->look_ms;
    if (event->result->count > 0)
        tell(b, (struct muster_rdzv_event){ .type = MUSTER_RDZV_WAITING, .count = event->result->count }, out);
    else
        b->next_look_ms = event->now_ms + b->look_ms;
}

static void looked(const struct mu_user_handler *b, const struct mu_user_handler_event *event,
                   struct mu_user_handler_effects *out)
{
    struct muster_rdzv_event told = { .type = MUSTER_RDZV_LOOKED, .request = MUSTER_RDZV_REQUEST_LOOK };
    enum waiting waiting = read_waiting(&event->result->error);

    if (waiting == NOT_KNOWN || (waiting == NEVER && !event->result->has_closed))
        told.error = &event->result->error;
    told.closed = waiting == CLOSED || event->result->closed;
    told.count = waiting == COUNTED ? event->result->count : 0;
    tell(b, told, out);
}

static bool is_busy(const struct mu_user_handler *b)
{
    return b->calling != MU_USER_HANDLER_NOTHING || b->shutdown == MU_USER_HANDLER_SHUTTING;
}

static void on_returned(struct mu_user_handler *b, const struct mu_user_handler_event *event,
                        struct mu_user_handler_effects *out)
{
    struct mu_user_handler_effect *effect;

    if (event->call == MU_USER_HANDLER_SHUTDOWN)
        b->shutdown = MU_USER_HANDLER_SHUT;
    if (event->call == b->calling) {
        b->calling = MU_USER_HANDLER_NOTHING;
        b->slow_at_ms = UINT64_MAX;
    } else {
        assert(event->call == MU_USER_HANDLER_SHUTDOWN); /* beside it */
    }
    if (!is_busy(b) && b->end == MU_USER_HANDLER_SERVING)
        b->end_at_ms = UINT64_MAX;
    switch (event->call) {
    case MU_USER_HANDLER_NEXT:
        joined_or_not(b, event, out);
        break;
    case MU_USER_HANDLER_WAITING:
        looked_for_waiting(b, event, out);
        break;
    case MU_USER_HANDLER_LOOK:
        looked(b, event, out);
        break;
    case MU_USER_HANDLER_CLOSE:
        if (event->result->error.code < 0)
            tell_failed(b, MUSTER_RDZV_REQUEST_CLOSE, &event->result->error, out);
        else
            tell_plain(b, MUSTER_RDZV_CLOSED, out);
        break;
    case MU_USER_HANDLER_SHUTDOWN:
        if (event->result->error.code < 0) {
            effect = emit(out, MU_USER_HANDLER_DO_SAY_FAILED);
            effect->call = event->call;
            effect->error = &event->result->error;
        }
        break;
    case MU_USER_HANDLER_BUILD:
    case MU_USER_HANDLER_STORE:
    case MU_USER_HANDLER_FREE:
    case MU_USER_HANDLER_NOTHING:
        break;
    }
}

/* ---- What comes next ---- */

/* The call that has not returned. One that has not begun waits behind a call of the store. */
static enum mu_user_handler_call late(const struct mu_user_handler *b, bool begun)
{
    if (b->calling == MU_USER_HANDLER_NOTHING)
        return MU_USER_HANDLER_SHUTDOWN; /* beside it */
    return begun ? b->calling : MU_USER_HANDLER_STORE;
}

/* Nothing is under way: the next call of the end. */
static void end_on(struct mu_user_handler *b, struct mu_user_handler_effects *out)
{
    while (b->calling == MU_USER_HANDLER_NOTHING && b->end != MU_USER_HANDLER_OVER) {
        b->end++;
        switch (b->end) {
        case MU_USER_HANDLER_ENDING_STORE:
            call(b, MU_USER_HANDLER_STORE, out);
            break;
        case MU_USER_HANDLER_ENDING_JOB:
            if (is_in(b) && b->shutdown == MU_USER_HANDLER_UP) {
                b->shutdown = MU_USER_HANDLER_SHUTTING;
                call(b, MU_USER_HANDLER_SHUTDOWN, out);
            }
            break;
        case MU_USER_HANDLER_ENDING_HANDLER:
            if (b->owned)
                call(b, MU_USER_HANDLER_FREE, out);
            break;
        case MU_USER_HANDLER_OVER:
            break;
        case MU_USER_HANDLER_SERVING:
        case MU_USER_HANDLER_FREEING:
        case MU_USER_HANDLER_ENDED:
            assert(false);
            break;
        }
    }
}

static void go_on(struct mu_user_handler *b, const struct mu_user_handler_event *event,
                  struct mu_user_handler_effects *out)
{
    if (b->end != MU_USER_HANDLER_SERVING) {
        if (!is_busy(b)) {
            end_on(b, out);
        } else if (event->now_ms >= b->end_at_ms) {
            b->end = MU_USER_HANDLER_OVER;
            emit(out, MU_USER_HANDLER_DO_ABANDON)->call = late(b, event->begun);
        }
    } else if (b->calling != MU_USER_HANDLER_NOTHING) {
        if (event->now_ms >= b->slow_at_ms) {
            b->slow_at_ms = UINT64_MAX;
            emit(out, MU_USER_HANDLER_DO_SAY_SLOW)->call = late(b, event->begun);
        }
    } else if (b->wants_close) {
        b->wants_close = false;
        call(b, MU_USER_HANDLER_CLOSE, out);
    } else if (b->wants_join && !b->left) {
        b->wants_join = false;
        enter(b, MU_USER_HANDLER_JOINING);
        call(b, MU_USER_HANDLER_NEXT, out);
    } else if (b->wants_look) {
        b->wants_look = false;
        call(b, MU_USER_HANDLER_LOOK, out);
    } else if (is_in(b) && event->now_ms >= b->next_look_ms) {
        b->next_look_ms = UINT64_MAX;
        call(b, MU_USER_HANDLER_WAITING, out);
    }
}

static void put_tells_last(struct mu_user_handler_effects *out)
{
    struct mu_user_handler_effects all = *out;

    out->count = 0;
    for (int tells = 0; tells < 2; tells++) {
        for (unsigned i = 0; i < all.count; i++) {
            if ((all.items[i].type == MU_USER_HANDLER_DO_TELL) == (tells == 1))
                out->items[out->count++] = all.items[i];
        }
    }
}

static void over(struct mu_user_handler *b, const struct mu_user_handler_event *event,
                 struct mu_user_handler_effects *out)
{
    assert(event->type == MU_USER_HANDLER_ON_TURN || event->type == MU_USER_HANDLER_ON_RETURNED);
    if (event->type == MU_USER_HANDLER_ON_RETURNED)
        return; /* it was abandoned */
    b->end = MU_USER_HANDLER_ENDED;
    (void)emit(out, MU_USER_HANDLER_DO_END);
}

void mu_user_handler_step(struct mu_user_handler *b, const struct mu_user_handler_event *event,
                          struct mu_user_handler_effects *out)
{
    out->count = 0;
    assert(b->end < MU_USER_HANDLER_ENDED);
    if (b->end == MU_USER_HANDLER_OVER) {
        over(b, event, out);
        return;
    }
    check(b);
    switch (event->type) {
    case MU_USER_HANDLER_ON_JOIN:
        wish(b, &b->wants_join, event->now_ms);
        break;
    case MU_USER_HANDLER_ON_LEAVE:
        on_leave(b, event->now_ms, out);
        break;
    case MU_USER_HANDLER_ON_CLOSE:
        wish(b, &b->wants_close, event->now_ms);
        break;
    case MU_USER_HANDLER_ON_LOOK:
        wish(b, &b->wants_look, event->now_ms);
        break;
    case MU_USER_HANDLER_ON_FREE:
        on_free(b, event->now_ms, out);
        break;
    case MU_USER_HANDLER_ON_RETURNED:
        on_returned(b, event, out);
        break;
    case MU_USER_HANDLER_ON_TURN:
        if (b->left)
            tell_plain(b, MUSTER_RDZV_LEFT, out);
        b->left = false;
        break;
    case MU_USER_HANDLER_ON_TIME:
        break;
    }
    go_on(b, event, out);
    put_tells_last(out);
    check(b);
}

uint64_t mu_user_handler_deadline_ms(const struct mu_user_handler *b)
{
    if (b->end >= MU_USER_HANDLER_OVER)
        return UINT64_MAX;
    if (b->end != MU_USER_HANDLER_SERVING)
        return b->end_at_ms;
    return b->calling == MU_USER_HANDLER_NOTHING ? b->next_look_ms : b->slow_at_ms;
}

bool mu_user_handler_wants_turn(const struct mu_user_handler *b)
{
    return b->left || b->end == MU_USER_HANDLER_OVER;
}

const char *mu_user_handler_warning(const struct mu_user_handler *b, const char *backend,
                                    const struct mu_user_handler_effect *effect,
                                    char text[static MU_USER_HANDLER_WARNING_MAX])
{
    const char *call_text = mu_user_handler_call_text(effect->call);

    if (effect->type == MU_USER_HANDLER_DO_SAY_SLOW)
        (void)snprintf(text, MU_USER_HANDLER_WARNING_MAX,
                       "rendezvous handler '%s': %s has not returned for %d s; waiting for it", backend, call_text,
                       MU_USER_HANDLER_SLOW_MS / 1000);
    else if (effect->type == MU_USER_HANDLER_DO_SAY_FAILED)
        (void)snprintf(text, MU_USER_HANDLER_WARNING_MAX,
                       "rendezvous handler '%s': %s failed: %s; the result stays as it is", backend, call_text,
                       effect->error->text);
    else
        (void)snprintf(text, MU_USER_HANDLER_WARNING_MAX,
                       "rendezvous handler '%s': %s has not returned for %" PRIu64 ".%" PRIu64
                       " s%s; going on without it. Its thread is left behind, and the handler is never freed",
                       backend, call_text, b->end_ms / 1000, b->end_ms % 1000 / 100,
                       effect->call == MU_USER_HANDLER_NEXT ? " after shutdown() was called" : "");
    return text;
}

/* ---- Requests to the store of the round ---- */

int mu_user_handler_check_request(const struct muster_store *store, size_t under_way, struct muster_error *reterr)
{
    if (store == NULL)
        return mu_fail(reterr, MUSTER_ECANCELED, "there is no round, or it has no store");
    if (under_way >= MU_USER_HANDLER_REQUESTS_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "%d requests are under way", MU_USER_HANDLER_REQUESTS_MAX);
    return 0;
}

struct muster_slice mu_user_handler_key(const char *run_id, struct muster_slice key)
{
    char prefix[MU_RDZV_RUN_ID_MAX + MU_ROUND_PREFIX_EXTRA];
    size_t len;

    mu_round_stock_prefix(prefix, sizeof prefix, run_id, -1);
    len = strlen(prefix);
    if (key.len > len && memcmp(key.data, prefix, len) == 0)
        return (struct muster_slice){ (const char *)key.data + len, key.len - len };
    return key;
}

/* ---- What comes back from the user's code ---- */

static int check_info(const struct muster_rdzv_info *info, struct muster_error *reterr)
{
    if (info->world_size >= 1 && info->rank >= 0 && info->rank < info->world_size)
        return 0;
    return mu_fail(reterr, MUSTER_EINTERNAL,
                   "next_rendezvous() gave rank %" PRId64 " of %" PRId64 "; expected one of 0..%" PRId64, info->rank,
                   info->world_size, info->world_size < 1 ? 0 : info->world_size - 1);
}

enum mu_user_handler_call mu_user_handler_then(enum mu_user_handler_call call, enum mu_user_handler_call last, int rc,
                                               struct mu_user_handler_result *result)
{
    assert(call != MU_USER_HANDLER_NOTHING && call != MU_USER_HANDLER_BUILD);
    if (last == MU_USER_HANDLER_NOTHING)
        return call;
    if (last == MU_USER_HANDLER_NEXT && rc == 0) {
        rc = check_info(&result->info, &result->error);
        result->built = rc == 0 && result->info.bootstrap.master_port == 0 && result->info.store != NULL;
        if (result->built)
            return MU_USER_HANDLER_BUILD;
    }
    if (last == MU_USER_HANDLER_LOOK && rc == 0) {
        result->has_closed = true;
        return MU_USER_HANDLER_WAITING;
    }
    (void)mu_settle(mu_user_handler_call_text(call), rc, &result->error);
    return MU_USER_HANDLER_NOTHING;
}

int mu_user_handler_check_run_id(const char *backend, const char *run_id, struct muster_error *reterr)
{
    size_t len = strlen(run_id);

    if (len <= MU_RDZV_RUN_ID_MAX)
        return 0;
    return mu_fail(reterr, MUSTER_ELIMIT,
                   "the run id of the rendezvous handler '%s' has %zu bytes; at most %d are possible", backend, len,
                   MU_RDZV_RUN_ID_MAX);
}
