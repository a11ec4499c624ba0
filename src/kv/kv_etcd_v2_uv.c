/* The back end of PyTorch's etcd-v2 rendezvous.
 *
 * Happy path: READ is a get, WRITE a put on condition, PARK a long poll; what concerns the plain store is handed on to
 * it, and turns to kv/etcd2_turns_uv.c. Failures: a write that lost is followed by a get, so that its asker learns who
 * won. A document that is gone (its time was up, or somebody deleted it) is told as there being none: its members put
 * it back. A write whose answer was lost is an error: the asker reads. There is no host that could be `gone`.
 *
 * A get goes through etcd's log, so that no member that is cut off from the others answers it. One that follows an
 * event need not: it is enough that its answer is newer than the event.
 *
 * A watched key is sent, as a whole, to everybody who watches it whenever it is written. Small documents are watched
 * all the same, for PyTorch's members ring no bell; members of a large one, and whoever waits for its turn, watch a
 * bell of our own.
 *
 * The store outlives its jobs, so a job would find the addresses of an earlier job of the same name. A node that is
 * about to create a document, and has never seen one, therefore first deletes what the store has of that name: all that
 * was there when a read said that there was no document. If there is something, it waits a moment before: members of a
 * running job whose document somebody deleted put it back. */
#include "kv/kv_etcd_v2_uv.h"

#include "base/base64.h"
#include "base/log.h"
#include "base/text.h"
#include "kv/etcd2_turns_uv.h"
#include "kv/etcd2_uv.h"
#include "kv/etcd_store_uv.h"
#include "kv/later_uv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ROOT "/torch/elastic/rendezvous/"

enum {
    TOKEN_MAX = 24,
    MAKE_STORE_MS = 10000, /* for the store's directory */
    DELETES_MAX = 16,      /* at once */
    BACK_MS = 2000,        /* for the members of a job that runs to put its document back */
    SMALL_MAX = 2048,      /* bytes of a document that is watched itself; some 20 members */
};

struct driver;

struct work { /* a request under way */
    struct driver *driver;
    struct mu_kv_request *request;
    struct mu_etcd2_call call;
    struct mu_buf text; /* WRITE: the document as it goes on the wire */
    uint64_t at_least;  /* READ: an answer at this index is new enough; 0: it has to go through etcd's log */
};

struct watch { /* of the document or the bell */
    struct driver *driver;
    struct mu_etcd2_call call;
    const char *key;
    uint64_t after; /* what was written after this index */
    bool dropped;   /* another one has taken its place */
};

struct clearing { /* what is done before a document is created */
    struct work *work;
    struct mu_etcd2_call list, watch;
    struct mu_etcd2_answer found; /* what is in the store */
    size_t next;                  /* of it */
    uint64_t index;               /* what was written up to this one is from before */
    struct one_delete {
        struct clearing *clearing;
        struct mu_etcd2_call call;
        bool busy;
    } deletes[DELETES_MAX];
    unsigned pending;
    size_t deleted;
};

struct driver {
    struct mu_kv kv;
    uv_loop_t *loop;
    struct mu_http *etcd;
    struct mu_kv *store;
    char *key;
    char *prefixes[2];     /* of this job's keys in the store */
    uint64_t absent_index; /* the last read said that there was no document at this index; 0: it did not */
    bool seen;             /* a document was there before */
    struct mu_later later; /* requests that are answered */
    struct mu_etcd2_turns turns;
    char *bell;
    struct mu_kv_request *parked;
    struct watch *watch;
    uint64_t known; /* the index of the newest document that was told */
    uint64_t event; /* of an event that nobody has read the document after; 0: none */
    size_t size;    /* of the newest document, as it goes on the wire */
    struct mu_etcd2_call make_store;
};

/* ---- Answers ---- */

static void free_work(struct work *work)
{
    mu_buf_done(&work->text);
    free(work);
}

static void finish(struct work *work, int rc, const struct muster_error *error)
{
    struct mu_kv_request *request = work->request;

    if (rc < 0)
        mu_kv_fail(request, rc, error);
    free_work(work);
    request->done(request);
}

static void finish_canceled(struct work *work)
{
    struct muster_error error;

    finish(work, mu_fail(&error, MUSTER_ECANCELED, "the back end was closed"), &error);
}

static uint64_t left_ms(const struct work *work)
{
    return mu_kv_left_ms(work->request, uv_now(work->driver->loop));
}

/* ---- Documents ---- */

static int give_token(struct mu_kv_request *request, uint64_t index)
{
    char *token = malloc(TOKEN_MAX);

    if (token == NULL)
        return MUSTER_ENOMEM;
    request->state_token.data = token;
    request->state_token.len = (size_t)snprintf(token, TOKEN_MAX, "%" PRIu64, index);
    return 0;
}

static int give_document(struct work *work, const struct mu_etcd2_node *node, struct muster_error *reterr)
{
    if (node->dir)
        return mu_fail(reterr, MUSTER_ERDZV_STATE, "'%s' is a directory", work->driver->key);
    if (give_token(work->request, node->modified) < 0)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a document");
    return mu_kv_give_document(work->request, work->driver->key, node->value, reterr);
}

static void note_document(struct driver *driver, uint64_t index, size_t size)
{
    driver->known = index;
    driver->size = size;
}

static void get_document(struct work *work);

static void on_read(struct mu_etcd2_call *call)
{
    struct work *work = call->ctx;
    struct driver *driver = work->driver;
    struct muster_error error = call->error;
    bool found = call->rc == 0 && call->answer.code == MU_ETCD2_OK;
    bool absent = call->rc == 0 && call->answer.code == MU_ETCD2_NOT_FOUND;
    int rc = call->rc;

    if (work->at_least > 0 && (rc < 0 || call->answer.index < work->at_least) && !driver->kv.closing) {
        mu_etcd2_answer_done(&call->answer);
        work->at_least = 0;
        get_document(work);
        return;
    }
    if (found) {
        note_document(driver, call->answer.index, call->answer.nodes[0].value.len);
        rc = give_document(work, &call->answer.nodes[0], &error);
    } else if (rc == 0 && !absent) {
        rc = error.code;
    }
    work->request->number = (int64_t)(call->answer.index & INT64_MAX);
    driver->seen |= found;
    driver->absent_index = absent ? call->answer.index : 0;
    mu_etcd2_answer_done(&call->answer);
    finish(work, rc, &error);
}

static void get_document(struct work *work)
{
    struct driver *driver = work->driver;
    const struct mu_etcd2_request request = { .kind = MU_ETCD2_GET,
                                              .key = mu_slice_str(driver->key),
                                              .quorum = work->at_least == 0 };

    mu_etcd2_ask(driver->etcd, &work->call, request, left_ms(work), on_read, work);
}

/* What came last, a turn or a bell, is what the document is read for. */
static void read_document(struct work *work)
{
    struct driver *driver = work->driver;

    work->at_least = driver->turns.index > driver->event ? driver->turns.index : driver->event;
    driver->turns.index = driver->event = 0;
    get_document(work);
}

static void on_written(struct mu_etcd2_call *call)
{
    struct work *work = call->ctx;
    struct mu_kv_request *request = work->request;
    struct muster_error error = call->error;
    int rc = call->rc, code = call->answer.code;

    if (rc == 0 && code == MU_ETCD2_OK) {
        uint64_t index = call->answer.nodes_count > 0 ? call->answer.nodes[0].modified : call->answer.index;

        work->driver->seen = request->written = request->found = true;
        note_document(work->driver, index, work->text.len);
        if (give_token(request, index) < 0)
            rc = mu_fail(&error, MUSTER_ENOMEM, "no memory for a token");
    }
    mu_etcd2_answer_done(&call->answer);
    if (rc == 0 && (code == MU_ETCD2_COMPARE_FAILED || code == MU_ETCD2_EXISTS)) {
        if (work->driver->kv.closing)
            finish_canceled(work);
        else
            get_document(work);
        return;
    }
    if (rc == 0 && code != MU_ETCD2_OK && code != MU_ETCD2_NOT_FOUND)
        rc = error.code;
    finish(work, rc, &error);
}

/* A token is etcd's index, as we gave it; none, or an empty one: 0. */
static bool read_token(const struct mu_kv_request *request, int64_t *ret_index)
{
    struct mu_slice token = mu_slice(request->token.data, request->has_token ? request->token.len : 0);

    *ret_index = 0;
    return token.len == 0 || mu_slice_number(token, INT64_MAX, ret_index);
}

static void put_document(struct work *work, uint64_t index)
{
    const struct mu_etcd2_request request = { .kind = MU_ETCD2_PUT,
                                              .key = mu_slice_str(work->driver->key),
                                              .has_value = true,
                                              .value = mu_buf_slice(&work->text),
                                              .no_value = true,
                                              .ttl_s = MU_KV_ETCD_V2_TTL_S,
                                              .prev_index = index,
                                              .prev_exist = index == 0 ? MU_ETCD2_MUST_NOT : MU_ETCD2_ANY };

    mu_etcd2_ask(work->driver->etcd, &work->call, request, left_ms(work), on_written, work);
}

/* ---- What is left of another job of that name ---- */

static void go_on(struct clearing *clearing);

static void end_clearing(struct clearing *clearing)
{
    struct work *work = clearing->work;

    if (clearing->deleted > 0)
        mu_log(MUSTER_LOG_INFO, "etcd-v2: deleted %zu keys of an earlier job of the same name from '%s'",
               clearing->deleted, MU_KV_ETCD_V2_STORE);
    mu_etcd2_answer_done(&clearing->found);
    free(clearing);
    if (work->driver->kv.closing)
        finish_canceled(work);
    else
        put_document(work, 0);
}

/* "torch.rendezvous.RUN_ID.7/K", where another job's name may go on behind the dot; or "muster.RUN_ID/K". */
static bool is_key_of(const struct driver *driver, struct mu_slice key)
{
    return mu_kv_take_round(&key, driver->prefixes[0]).len > 0 ||
           (mu_slice_skip(&key, driver->prefixes[1]) && key.len > 0);
}

/* Whether a name in the store is base64 of a key of this job. */
static bool is_jobs(const struct driver *driver, struct mu_slice path)
{
    struct mu_buf key = { 0 };
    bool ours;

    if (!mu_slice_skip(&path, MU_KV_ETCD_V2_STORE "/") || mu_base64_decode(path, &key, MU_ETCD2_KEY_MAX) < 0)
        return false;
    ours = is_key_of(driver, mu_buf_slice(&key));
    mu_buf_done(&key);
    return ours;
}

static bool is_from_before(const struct clearing *clearing, const struct mu_etcd2_node *node)
{
    return !node->dir && node->modified <= clearing->index && is_jobs(clearing->work->driver, node->key);
}

static void on_deleted(struct mu_etcd2_call *call)
{
    struct one_delete *one = call->ctx;
    struct clearing *clearing = one->clearing;

    clearing->deleted += call->rc == 0 && call->answer.code == MU_ETCD2_OK;
    mu_etcd2_answer_done(&call->answer); /* if it was written again meanwhile, it is not from before */
    one->busy = false;
    clearing->pending--;
    go_on(clearing);
}

static void delete_node(struct clearing *clearing, const struct mu_etcd2_node *node)
{
    const struct mu_etcd2_request request = { .kind = MU_ETCD2_DELETE, .key = node->key, .prev_index = node->modified };
    struct one_delete *one = clearing->deletes;

    while (one->busy)
        one++;
    one->clearing = clearing;
    one->busy = true;
    clearing->pending++;
    mu_etcd2_ask(clearing->work->driver->etcd, &one->call, request, left_ms(clearing->work), on_deleted, one);
}

/* As many at once as may be; the end, when there is no more. */
static void go_on(struct clearing *clearing)
{
    struct driver *driver = clearing->work->driver;

    while (!driver->kv.closing && clearing->next < clearing->found.nodes_count && clearing->pending < DELETES_MAX) {
        const struct mu_etcd2_node *node = &clearing->found.nodes[clearing->next++];

        if (is_from_before(clearing, node))
            delete_node(clearing, node);
    }
    if (clearing->pending == 0)
        end_clearing(clearing);
}

/* Nobody has put the document back. */
static void on_watched(struct mu_etcd2_call *call)
{
    struct clearing *clearing = call->ctx;
    bool alone = call->rc == MUSTER_ETIMEOUT;

    mu_etcd2_answer_done(&call->answer);
    if (alone)
        go_on(clearing);
    else
        end_clearing(clearing);
}

static void wait_for_members(struct clearing *clearing)
{
    struct driver *driver = clearing->work->driver;
    const struct mu_etcd2_request request = { .kind = MU_ETCD2_WATCH,
                                              .key = mu_slice_str(driver->key),
                                              .wait_index = clearing->index + 1 };
    uint64_t half_ms = left_ms(clearing->work) / 2;

    mu_etcd2_ask(driver->etcd, &clearing->watch, request, half_ms < BACK_MS ? half_ms : BACK_MS, on_watched, clearing);
}

static void on_listed(struct mu_etcd2_call *call)
{
    struct clearing *clearing = call->ctx;
    bool any = false;

    clearing->found = call->answer;
    if (call->rc < 0)
        mu_log(MUSTER_LOG_WARNING, "etcd-v2: could not look for keys of an earlier job of the same name: %s",
               call->error.text);
    for (size_t i = 0; i < clearing->found.nodes_count && !any; i++)
        any = is_from_before(clearing, &clearing->found.nodes[i]);
    if (any && !clearing->work->driver->kv.closing)
        wait_for_members(clearing);
    else
        end_clearing(clearing);
}

static int clear_first(struct work *work, struct muster_error *reterr)
{
    struct driver *driver = work->driver;
    const struct mu_etcd2_request request = {
        .kind = MU_ETCD2_GET, .key = mu_slice_str(MU_KV_ETCD_V2_STORE), .recursive = true, .quorum = true
    };
    struct clearing *clearing = calloc(1, sizeof *clearing);

    if (clearing == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a document");
    clearing->work = work;
    clearing->index = driver->absent_index;
    driver->absent_index = 0;
    mu_etcd2_ask(driver->etcd, &clearing->list, request, left_ms(work), on_listed, clearing);
    return 0;
}

static int write_document(struct work *work, struct muster_error *reterr)
{
    struct driver *driver = work->driver;
    struct mu_kv_request *request = work->request;
    int64_t index = 0;
    int rc = mu_kv_encode_document(request, &work->text, reterr);

    if (rc < 0)
        return rc;
    if (!read_token(request, &index)) /* no index: what it is for is not there any more */
        get_document(work);
    else if (index == 0 && driver->absent_index > 0 && !driver->seen)
        return clear_first(work, reterr);
    else
        put_document(work, (uint64_t)index);
    return 0;
}

/* ---- The bell ---- */

/* A node that waits for its turn need not hear of the others' writes. */
static const char *watched_key(const struct driver *driver)
{
    return driver->size > SMALL_MAX || driver->turns.before > 0 ? driver->bell : driver->key;
}

static void watch_for(struct driver *driver, uint64_t after, uint64_t timeout_ms);

static void answer_parked(struct driver *driver, int rc, const struct muster_error *error)
{
    struct mu_kv_request *request = driver->parked;

    driver->parked = NULL;
    if (rc < 0)
        mu_kv_fail(request, rc, error);
    request->done(request);
}

/* After an event that was missed, the next read goes through etcd's log. */
static void on_rung(struct mu_etcd2_call *call)
{
    struct watch *watch = call->ctx;
    struct driver *driver = watch->driver;
    struct muster_error error = call->error;
    bool rang = call->rc == 0 && call->answer.code == MU_ETCD2_OK;
    bool missed = call->rc == 0 && call->answer.code == MU_ETCD2_INDEX_CLEARED;
    uint64_t index = rang ? call->answer.nodes[0].modified : 0;
    int rc = rang || missed ? 0 : call->rc < 0 ? call->rc : error.code;
    bool dropped = watch->dropped;
    uint64_t parked_left_ms = 0;

    mu_etcd2_answer_done(&call->answer);
    if (!dropped)
        driver->watch = NULL;
    free(watch);
    if (dropped || driver->parked == NULL)
        return;
    parked_left_ms = mu_kv_left_ms(driver->parked, uv_now(driver->loop));
    if (!driver->kv.closing && ((rang && index <= driver->known) || (rc == MUSTER_ETIMEOUT && parked_left_ms > 0))) {
        watch_for(driver, driver->known, parked_left_ms); /* that was known already; or an older one's time */
        return;
    }
    driver->event = index;
    answer_parked(driver, rc, &error);
}

static void watch_for(struct driver *driver, uint64_t after, uint64_t timeout_ms)
{
    const char *key = watched_key(driver);
    const struct mu_etcd2_request request = { .kind = MU_ETCD2_WATCH,
                                              .key = mu_slice_str(key),
                                              .wait_index = after + 1 };
    struct watch *watch = calloc(1, sizeof *watch);
    struct muster_error error;

    if (watch == NULL) {
        (void)mu_fail(&error, MUSTER_ENOMEM, "no memory for a request");
        mu_later_fail(&driver->later, driver->parked, &error);
        driver->parked = NULL;
        return;
    }
    watch->driver = driver;
    watch->key = key;
    watch->after = after;
    driver->watch = watch;
    mu_etcd2_ask(driver->etcd, &watch->call, request, timeout_ms, on_rung, watch);
}

/* A new PARK takes the place of an old one. A watch that is under way will do for it, for it began earlier. */
static void park(struct driver *driver, struct mu_kv_request *request)
{
    uint64_t after = (uint64_t)request->number > driver->known ? (uint64_t)request->number : driver->known;
    struct mu_kv_request *old = driver->parked;
    struct watch *watch = driver->watch;
    struct muster_error error;

    driver->known = after;
    driver->parked = request;
    if (old != NULL) {
        (void)mu_fail(&error, MUSTER_ECANCELED, "another one took its place");
        mu_later_fail(&driver->later, old, &error);
    }
    if (watch != NULL && watch->after <= after && watch->key == watched_key(driver))
        return;
    if (watch != NULL) {
        watch->dropped = true;
        mu_etcd2_cancel(&watch->call);
    }
    watch_for(driver, after, request->timeout_ms);
}

static void on_bell_written(struct mu_etcd2_call *call)
{
    struct work *work = call->ctx;
    struct muster_error error = call->error;
    int rc = call->rc == 0 && call->answer.code != MU_ETCD2_OK ? error.code : call->rc;

    mu_etcd2_answer_done(&call->answer);
    finish(work, rc, &error);
}

/* For those who do not watch the document itself. */
static void ring(struct work *work)
{
    const struct mu_etcd2_request request = { .kind = MU_ETCD2_PUT,
                                              .key = mu_slice_str(work->driver->bell),
                                              .has_value = true,
                                              .no_value = true,
                                              .ttl_s = MU_KV_ETCD_V2_TTL_S };

    mu_etcd2_ask(work->driver->etcd, &work->call, request, left_ms(work), on_bell_written, work);
}

/* ---- From outside ---- */

static int begin(struct driver *driver, struct mu_kv_request *request, struct muster_error *reterr)
{
    struct work *work = calloc(1, sizeof *work);
    int rc = 0;

    if (work == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a request");
    work->driver = driver;
    work->request = request;
    if (request->kind == MU_KV_READ)
        read_document(work);
    else if (request->kind == MU_KV_WRITE)
        rc = write_document(work, reterr);
    else
        ring(work);
    if (rc < 0)
        free_work(work);
    return rc;
}

static void submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct driver *driver = (struct driver *)kv;
    struct muster_error error;
    int rc = 0;

    assert(!kv->closing);
    mu_kv_begin(request, uv_now(driver->loop));
    switch (request->kind) {
    case MU_KV_PARK:
        park(driver, request);
        break;
    case MU_KV_READ:
    case MU_KV_WRITE:
    case MU_KV_RING:
        rc = begin(driver, request, &error);
        break;
    case MU_KV_HOST: /* nobody */
        mu_later_push(&driver->later, &request->link);
        break;
    case MU_KV_TURN_TAKE:
    case MU_KV_TURN_WAIT:
    case MU_KV_TURN_GIVE:
        if (mu_etcd2_turns_submit(&driver->turns, request))
            mu_later_push(&driver->later, &request->link);
        break;
    case MU_KV_PROBE:
    case MU_KV_SETTLE:
        rc = mu_fail(&error, MUSTER_ENOTSUP, "etcd-v2 has none");
        break;
    case MU_KV_GET:
    case MU_KV_SET:
    case MU_KV_ADD:
    case MU_KV_COMPARE_SET:
    case MU_KV_CHECK:
    case MU_KV_DELETE:
        driver->store->ops->submit(driver->store, request);
        break;
    }
    if (rc < 0)
        mu_later_fail(&driver->later, request, &error);
}

static void free_kv(struct mu_kv *kv)
{
    struct driver *driver = (struct driver *)kv;

    mu_etcd2_turns_done(&driver->turns);
    free(driver->bell);
    free(driver->key);
    free(driver->prefixes[0]);
    free(driver->prefixes[1]);
    free(driver);
}

static void close_kv(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    struct driver *driver = (struct driver *)kv;

    mu_kv_begin_close(kv, closed, ctx);
    mu_etcd2_turns_close(&driver->turns, mu_kv_part_closed, kv);
    mu_http_close(driver->etcd, mu_kv_part_closed, kv);
    driver->store->ops->close(driver->store, mu_kv_inner_closed, kv);
    mu_later_close(&driver->later, mu_kv_part_closed, kv);
}

static bool local_address(const struct mu_kv *kv, char *text, size_t room)
{
    return mu_http_local_address(((const struct driver *)kv)->etcd, text, room);
}

static const struct mu_kv_ops etcd_v2_ops = {
    .name = "etcd-v2",
    .has_bell = true,
    .has_turns = true,
    .is_common = true,
    .submit = submit,
    .close = close_kv,
    .free = free_kv,
    .local_address = local_address,
};

static void on_store_made(struct mu_etcd2_call *call)
{
    mu_etcd2_answer_done(&call->answer); /* if it was not, the first write makes it */
}

/* PyTorch's members fail when they read from a store whose directory is not there yet. */
static void make_store(struct driver *driver)
{
    const struct mu_etcd2_request request = {
        .kind = MU_ETCD2_PUT, .key = mu_slice_str(MU_KV_ETCD_V2_STORE), .dir = true, .prev_exist = MU_ETCD2_MUST_NOT
    };

    mu_etcd2_ask(driver->etcd, &driver->make_store, request, MAKE_STORE_MS, on_store_made, NULL);
}

static int set_up(struct driver *driver, const struct mu_http_config *http, const char *run_id,
                  struct muster_error *reterr)
{
    const struct mu_kv_etcd_store_config store = { .http = http, .dir = MU_KV_ETCD_V2_STORE, .seed = http->seed + 1 };
    int rc = mu_etcd2_turns_init(&driver->turns, driver->loop, run_id, http->seed, reterr);

    if (rc < 0)
        return rc;
    driver->key = mu_text_format(ROOT "%s", run_id);
    driver->bell = mu_text_format(MU_ETCD2_TURNS_DIR "/bell.%s", run_id);
    driver->prefixes[0] = mu_text_format("torch.rendezvous.%s.", run_id);
    driver->prefixes[1] = mu_text_format("muster.%s/", run_id);
    if (driver->key == NULL || driver->bell == NULL || driver->prefixes[0] == NULL || driver->prefixes[1] == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous back end");
    rc = mu_kv_etcd_store_start(driver->loop, &store, &driver->store, reterr);
    return rc == 0 ? mu_http_start(driver->loop, http, &driver->etcd, reterr) : rc;
}

int mu_kv_etcd_v2_start(uv_loop_t *loop, const struct mu_http_config *http, const char *run_id, struct mu_kv **ret_kv,
                        struct muster_error *reterr)
{
    struct driver *driver = calloc(1, sizeof *driver);
    int rc;

    if (driver == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous back end");
    driver->kv.ops = &etcd_v2_ops;
    driver->loop = loop;
    driver->kv.parts = 4; /* client, turns, store, `later` */
    rc = set_up(driver, http, run_id, reterr);
    if (rc < 0) {
        if (driver->store != NULL)
            driver->store->ops->close(driver->store, NULL, NULL);
        free_kv(&driver->kv);
        return rc;
    }
    mu_later_open(&driver->later, loop, mu_kv_tell);
    mu_etcd2_turns_start(&driver->turns, driver->etcd);
    make_store(driver);
    *ret_kv = &driver->kv;
    return 0;
}
