/* Turns to write a document.
 *
 * Happy path: TAKE writes the tail, and sees by what that replaced who is before it, and in `done` how many that may
 * be. WAIT looks for the mark of the one before, and watches it; the watch outlives a WAIT whose time is up, for there
 * will be another. GIVE leaves a mark and says who was last. Failures: whoever dies in its turn leaves no mark; the
 * next one's time is up, and the numbers that it is told then say whether others still get on. Indices count other
 * writes as well, so that "how many" is too many rather than too few; the first of a crowd therefore says in `done`
 * from where it is to be counted. Any error is the asker's: it goes on without. */
#include "kv/etcd2_turns_uv.h"

#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define OVER MU_ETCD2_TURNS_DIR "/over."

enum {
    VALUE_MAX = 48,
    KEY_MAX = 64,
    LOOK_MS = 2000,   /* for who was last, when the time to wait is up */
    FAR = 32,         /* writes since the last turn, of which most were none */
    BEGIN_MS = 10000, /* to say that */
};

struct turn_work { /* a request under way, but for WAIT */
    struct mu_etcd2_turns *turns;
    struct mu_kv_request *request; /* NULL: nobody asked */
    struct mu_etcd2_call call, second;
    unsigned pending; /* GIVE */
    uint64_t turn, before;
    char key[KEY_MAX], value[VALUE_MAX];
    struct muster_error error;
    int rc;
};

struct mu_etcd2_turn_watch { /* of the mark of the one before */
    struct mu_etcd2_turns *turns;
    struct mu_etcd2_call call;
    char key[KEY_MAX];
    bool dropped; /* nobody waits for it any more */
};

static void on_taken(struct mu_etcd2_call *call);

/* ---- Answers ---- */

static void finish(struct turn_work *work, int rc, const struct muster_error *error)
{
    struct mu_kv_request *request = work->request;

    if (rc < 0 && request != NULL)
        mu_kv_fail(request, rc, error);
    free(work);
    if (request != NULL)
        request->done(request);
}

/* Below 0 for whatever is no success. */
static int rc_of(const struct mu_etcd2_call *call)
{
    return call->rc == 0 && call->answer.code != MU_ETCD2_OK ? call->error.code : call->rc;
}

static uint64_t time_left(const struct turn_work *work)
{
    return mu_kv_left_ms(work->request, uv_now(work->turns->loop));
}

static void get(struct turn_work *work, const char *key, uint64_t timeout_ms, mu_etcd2_done *done)
{
    const struct mu_etcd2_request request = { .kind = MU_ETCD2_GET, .key = mu_slice_str(key) };

    mu_etcd2_ask(work->turns->etcd, &work->call, request, timeout_ms, done, work);
}

static void put(struct turn_work *work, struct mu_etcd2_call *call, const char *key, const char *value,
                uint64_t timeout_ms, mu_etcd2_done *done)
{
    const struct mu_etcd2_request request = { .kind = MU_ETCD2_PUT,
                                              .key = mu_slice_str(key),
                                              .has_value = true,
                                              .value = mu_slice_str(value),
                                              .no_value = done != on_taken,
                                              .ttl_s = MU_ETCD2_TURNS_TTL_S };

    mu_etcd2_ask(work->turns->etcd, call, request, timeout_ms, done, work);
}

static bool is_closing(struct turn_work *work)
{
    struct muster_error error;

    if (!work->turns->closing)
        return false;
    finish(work, mu_fail(&error, MUSTER_ECANCELED, "the back end was closed"), &error);
    return true;
}

/* ---- Who was last ---- */

static uint64_t number_of(struct mu_slice text)
{
    int64_t number = 0;

    return mu_slice_number(text, INT64_MAX, &number) ? (uint64_t)number : 0;
}

static void on_begun(struct mu_etcd2_call *call)
{
    mu_etcd2_answer_done(&call->answer);
    free(call->ctx);
}

/* Nobody is before us: those who come behind us count from here. */
static void begin_count(struct mu_etcd2_turns *turns, uint64_t turn)
{
    struct turn_work *work = calloc(1, sizeof *work);

    if (work == NULL)
        return; /* they will wait longer for who does not come */
    work->turns = turns;
    (void)snprintf(work->value, sizeof work->value, "%" PRIu64, turn - 1);
    put(work, &work->call, turns->done, work->value, BEGIN_MS, on_begun);
}

static void on_counted(struct mu_etcd2_call *call)
{
    struct turn_work *work = call->ctx;
    struct mu_etcd2_turns *turns = work->turns;
    struct mu_kv_request *request = work->request;
    bool there = call->rc == 0 && call->answer.code == MU_ETCD2_OK;
    uint64_t last = there && !call->answer.nodes[0].dir ? number_of(call->answer.nodes[0].value) : 0;
    uint64_t index = there ? call->answer.nodes[0].modified : 0;
    bool over = last >= work->before;
    struct muster_error error = call->error;
    int rc = call->rc == 0 && call->answer.code == MU_ETCD2_NOT_FOUND ? 0 : rc_of(call);

    mu_etcd2_answer_done(&call->answer);
    if (rc < 0) {
        finish(work, rc, &error);
        return;
    }
    request->done_count = (int64_t)(over ? work->turn - 1 : work->turn - 1 - (work->before - last));
    request->found = over;
    if (over && turns->turn == work->turn) {
        turns->before = 0;
        turns->index = index > work->turn ? index : work->turn;
        if (request->kind == MU_KV_TURN_TAKE && work->turn - last > FAR && !turns->closing)
            begin_count(turns, work->turn);
    }
    finish(work, 0, NULL);
}

/* ---- Waiting ---- */

static void look(struct mu_etcd2_turns *turns);

static void answer_waiting(struct mu_etcd2_turns *turns, int rc, const struct muster_error *error)
{
    struct mu_kv_request *request = turns->waiting;

    turns->waiting = NULL;
    (void)uv_timer_stop(&turns->timer);
    if (rc < 0) {
        mu_kv_fail(request, rc, error);
    } else {
        request->found = true;
        request->done_count = request->number;
    }
    request->done(request);
}

static void refuse_waiting(struct mu_etcd2_turns *turns, int rc, const char *why)
{
    struct muster_error error;

    if (turns->waiting != NULL)
        answer_waiting(turns, mu_fail(&error, rc, "%s", why), &error);
}

static void drop_watch(struct mu_etcd2_turns *turns)
{
    struct mu_etcd2_turn_watch *watch = turns->watch;

    turns->watch = NULL;
    if (watch == NULL)
        return;
    watch->dropped = true;
    mu_etcd2_cancel(&watch->call);
}

/* The mark is there. Who waits is told; who asks next, then. */
static void turn_came(struct mu_etcd2_turns *turns, uint64_t index)
{
    turns->before = 0;
    turns->index = index;
    if (turns->waiting != NULL)
        answer_waiting(turns, 0, NULL);
}

static void on_watched(struct mu_etcd2_call *call)
{
    struct mu_etcd2_turn_watch *watch = call->ctx;
    struct mu_etcd2_turns *turns = watch->turns;
    struct muster_error error = call->error;
    bool came = call->rc == 0 && call->answer.code == MU_ETCD2_OK;
    bool again = call->rc == MUSTER_ETIMEOUT || (call->rc == 0 && call->answer.code == MU_ETCD2_INDEX_CLEARED);
    uint64_t index = came ? call->answer.nodes[0].modified : 0;
    bool dropped = watch->dropped;
    int rc = rc_of(call);

    mu_etcd2_answer_done(&call->answer);
    free(watch);
    if (dropped)
        return;
    turns->watch = NULL;
    if (came)
        turn_came(turns, index);
    else if (turns->waiting != NULL && again && !turns->closing)
        look(turns);
    else if (turns->waiting != NULL)
        answer_waiting(turns, rc, &error);
}

static void ask_for_mark(struct mu_etcd2_turn_watch *watch, enum mu_etcd2_kind kind, uint64_t wait_index,
                         mu_etcd2_done *done)
{
    const struct mu_etcd2_request request = { .kind = kind, .key = mu_slice_str(watch->key), .wait_index = wait_index };

    mu_etcd2_ask(watch->turns->etcd, &watch->call, request, (uint64_t)MU_ETCD2_TURNS_TTL_S * 1000, done, watch);
}

static void on_looked(struct mu_etcd2_call *call)
{
    struct mu_etcd2_turn_watch *watch = call->ctx;
    bool none = call->rc == 0 && call->answer.code == MU_ETCD2_NOT_FOUND;
    uint64_t index = call->answer.index;

    if (!none || watch->dropped || watch->turns->closing) {
        on_watched(call);
        return;
    }
    mu_etcd2_answer_done(&call->answer);
    ask_for_mark(watch, MU_ETCD2_WATCH, index + 1, on_watched);
}

static void look(struct mu_etcd2_turns *turns)
{
    struct mu_etcd2_turn_watch *watch = calloc(1, sizeof *watch);

    turns->watch = watch;
    if (watch == NULL)
        return; /* its time will be up */
    watch->turns = turns;
    (void)snprintf(watch->key, sizeof watch->key, OVER "%" PRIu64, turns->before);
    ask_for_mark(watch, MU_ETCD2_GET, 0, on_looked);
}

/* Who was last says whether those before us get on. */
static void on_time_up(uv_timer_t *timer)
{
    struct mu_etcd2_turns *turns = timer->data;
    struct turn_work *work = calloc(1, sizeof *work);

    if (work == NULL) {
        refuse_waiting(turns, MUSTER_ENOMEM, "no memory for a request");
        return;
    }
    work->turns = turns;
    work->request = turns->waiting;
    work->turn = turns->turn;
    work->before = turns->before;
    turns->waiting = NULL;
    get(work, turns->done, LOOK_MS, on_counted);
}

static void wait_for(struct mu_etcd2_turns *turns, struct mu_kv_request *request)
{
    turns->waiting = request;
    (void)uv_timer_start(&turns->timer, on_time_up, request->timeout_ms, 0);
    if (turns->watch == NULL)
        look(turns);
}

/* ---- Taking ---- */

static void on_taken(struct mu_etcd2_call *call)
{
    struct turn_work *work = call->ctx;
    struct mu_etcd2_turns *turns = work->turns;
    struct muster_error error = call->error;
    bool before = call->answer.has_prev && !mu_slice_equal(call->answer.prev.value, mu_slice_str(work->value));
    bool first = !call->answer.has_prev;
    int rc = rc_of(call);

    if (rc == 0) {
        turns->turn = work->turn = call->answer.nodes[0].modified;
        turns->before = work->before = before ? call->answer.prev.modified : 0; /* unless it was we, asked twice */
        turns->index = work->before == 0 ? work->turn : 0;
        work->request->number = (int64_t)(work->turn & INT64_MAX);
        work->request->done_count = work->request->number - 1;
        drop_watch(turns);
        refuse_waiting(turns, MUSTER_ECANCELED, "another turn was taken");
    }
    mu_etcd2_answer_done(&call->answer);
    if (rc == 0 && first && !turns->closing)
        begin_count(turns, work->turn);
    if (rc < 0)
        finish(work, rc, &error);
    else if (work->before == 0)
        finish(work, 0, NULL);
    else if (!is_closing(work))
        get(work, turns->done, time_left(work), on_counted);
}

static void take(struct turn_work *work)
{
    struct mu_etcd2_turns *turns = work->turns;

    (void)snprintf(work->value, sizeof work->value, "%" PRIx64 ".%" PRIu64, turns->seed, ++turns->count);
    put(work, &work->call, turns->tail, work->value, work->request->timeout_ms, on_taken);
}

/* ---- Giving ---- */

static void on_given(struct mu_etcd2_call *call)
{
    struct turn_work *work = call->ctx;

    if (rc_of(call) < 0) {
        work->rc = rc_of(call);
        work->error = call->error;
    }
    mu_etcd2_answer_done(&call->answer);
    if (--work->pending == 0)
        finish(work, work->rc, &work->error);
}

/* The mark first: somebody waits for it. */
static void give(struct turn_work *work)
{
    uint64_t timeout_ms = work->request->timeout_ms;

    (void)snprintf(work->key, sizeof work->key, OVER "%" PRId64, work->request->number);
    (void)snprintf(work->value, sizeof work->value, "%" PRId64, work->request->number);
    work->pending = 2;
    put(work, &work->call, work->key, "", timeout_ms, on_given);
    put(work, &work->second, work->turns->done, work->value, timeout_ms, on_given);
}

/* ---- From outside ---- */

bool mu_etcd2_turns_submit(struct mu_etcd2_turns *turns, struct mu_kv_request *request)
{
    bool mine = request->number == (int64_t)(turns->turn & INT64_MAX) - (request->kind == MU_KV_TURN_WAIT);
    struct turn_work *work;

    assert(!turns->closing);
    if (request->kind == MU_KV_TURN_WAIT && (!mine || turns->before == 0 || turns->waiting != NULL)) {
        request->found = true; /* it has come; or another one was taken since */
        request->done_count = request->number;
        return true;
    }
    if (request->kind == MU_KV_TURN_WAIT) {
        wait_for(turns, request);
        return false;
    }
    work = calloc(1, sizeof *work);
    if (work == NULL) {
        request->rc = mu_fail(&request->error, MUSTER_ENOMEM, "%s: no memory", mu_kv_kind_text(request->kind));
        return true;
    }
    work->turns = turns;
    work->request = request;
    if (request->kind == MU_KV_TURN_TAKE) {
        take(work);
        return false;
    }
    if (mine) {
        drop_watch(turns);
        turns->before = 0; /* nobody is waited for any more */
    }
    give(work);
    return false;
}

int mu_etcd2_turns_init(struct mu_etcd2_turns *turns, uv_loop_t *loop, const char *name, uint64_t seed,
                        struct muster_error *reterr)
{
    *turns = (struct mu_etcd2_turns){ .loop = loop, .seed = seed };
    turns->tail = mu_text_format(MU_ETCD2_TURNS_DIR "/turn.%s", name);
    turns->done = mu_text_format(MU_ETCD2_TURNS_DIR "/done.%s", name);
    if (turns->tail != NULL && turns->done != NULL)
        return 0;
    mu_etcd2_turns_done(turns);
    return mu_fail(reterr, MUSTER_ENOMEM, "no memory for turns");
}

void mu_etcd2_turns_start(struct mu_etcd2_turns *turns, struct mu_http *etcd)
{
    turns->etcd = etcd;
    (void)uv_timer_init(turns->loop, &turns->timer); /* fills in memory only */
    turns->timer.data = turns;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct mu_etcd2_turns *turns = handle->data;

    if (turns->watch == NULL)
        refuse_waiting(turns, MUSTER_ECANCELED, "the back end was closed");
    turns->on_closed(turns->closed_ctx);
}

void mu_etcd2_turns_close(struct mu_etcd2_turns *turns, void (*closed)(void *ctx), void *ctx)
{
    turns->closing = true;
    turns->on_closed = closed;
    turns->closed_ctx = ctx;
    uv_close((uv_handle_t *)&turns->timer, on_timer_closed);
}

void mu_etcd2_turns_done(struct mu_etcd2_turns *turns)
{
    free(turns->tail);
    free(turns->done);
    turns->tail = turns->done = NULL;
}
