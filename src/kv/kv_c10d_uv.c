/* The back end of the c10d rendezvous, on the store's client: what each request does, step by step.
 *
 * Happy path: a request becomes a `work` of up to three calls at once on one connection (kv_c10d_conns_uv.c). When all
 * of them are answered it takes its next step or is finished. Failures: a call that fails ends its work once the others
 * have answered.
 *
 * Anybody may have written anything to the counters of the bell and the turns, and a server closes the connection of an
 * ADD to a value that is no number. So they are read by COMPARE_SET where that is enough. A counter that has no number
 * is set to one above all that we know of; both are hints, so others may know of higher ones. */
#include "kv/kv_c10d_parts_uv.h"

#include "base/log.h"
#include "base/text.h"
#include "store/session.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNTER_MAX (INT64_C(1) << 62) /* of the bell and the turns */
#define TURNS_OPEN_MAX (1 << 20)       /* taken and not over; more are not believed */

enum {
    RINGS_KEPT = 64,
    TURNS_KEPT = 64,
    WORLDS_KEPT = 8,
    AFTER_WAIT_MS = 2000, /* for the call that follows a wait, whose time may be up */
    SUFFIX_MAX = 40,      /* of a key of ours, "world/9223372036854775807" and its NUL included */
};

static const char no_document[] = MU_KV_C10D_NO_DOCUMENT;
static const char no_host[] = "?"; /* expected and wanted: reads a key that may be missing, without a wait */

/* ---- Requests ---- */

static void free_answers(struct mu_c10d_work *work)
{
    for (unsigned i = 0; i < CALLS_MAX; i++)
        muster_bytes_done(&work->calls[i].call.bytes);
}

static void free_work(struct mu_c10d_work *work)
{
    mu_list_remove(&work->link);
    free_answers(work);
    mu_buf_done(&work->text);
    free(work);
}

/* The work is over; work->error says how. */
static void finish(struct mu_c10d_work *work)
{
    struct mu_kv_request *request = work->request;

    if (work->driver->parked == work)
        work->driver->parked = NULL;
    if (work->error.code != 0) {
        if (request->kind == MU_KV_TURN_TAKE || request->kind == MU_KV_TURN_GIVE)
            work->driver->doubts_turns = true;
        mu_kv_fail(request, work->error.code, &work->error);
        request->gone = work->gone;
    }
    free_work(work);
    request->done(request);
}

static struct mu_c10d_work *new_work(struct mu_c10d *driver, struct mu_kv_request *request)
{
    struct mu_c10d_work *work = calloc(1, sizeof *work + CALLS_MAX * driver->key_room);

    if (work == NULL)
        return NULL;
    mu_list_push(&driver->works, &work->link);
    work->driver = driver;
    work->request = request;
    for (unsigned i = 0; i < CALLS_MAX; i++) {
        work->calls[i].work = work;
        work->calls[i].key_text = work->keys + i * driver->key_room;
    }
    return work;
}

/* ---- Calls ---- */

/* The time that is left for the request. */
static uint64_t time_left(const struct mu_c10d_work *work, uint64_t least_ms)
{
    uint64_t left_ms = mu_kv_left_ms(work->request, uv_now(work->driver->loop));

    return left_ms > least_ms ? left_ms : least_ms;
}

/* The next call's key, of those under our prefix: "bell/12"; a negative number: "bell". */
static struct muster_slice side_key(struct mu_c10d_work *work, const char *name, int64_t number)
{
    struct mu_c10d *driver = work->driver;
    char *text = work->calls[work->count].key_text;
    int len = number < 0 ? snprintf(text, driver->key_room, "%s%s", driver->prefix, name)
                         : snprintf(text, driver->key_room, "%s%s/%" PRId64, driver->prefix, name, number);

    assert(len > 0 && (size_t)len < driver->key_room);
    return (struct muster_slice){ text, (size_t)len };
}

/* Adds a call to this step. */
static void add(struct mu_c10d_work *work, struct mu_call call)
{
    struct mu_c10d_call *one = &work->calls[work->count];

    assert(work->count < CALLS_MAX);
    one->key = call.key;
    one->call = call;
    if (call.kind == MU_CALL_CHECK || call.kind == MU_CALL_WAIT) {
        one->call.keys = &one->key;
        one->call.count = 1;
    }
    work->count++;
}

/* ---- Documents ---- */

/* Somebody else may have left an empty value. */
static bool is_no_document(struct mu_slice text)
{
    return text.len == 0 || mu_slice_equal(text, mu_slice_str(no_document));
}

static bool is_slice(const struct muster_bytes *bytes, struct muster_slice slice)
{
    return mu_slice_equal(mu_slice(bytes->data, bytes->len), mu_slice(slice.data, slice.len));
}

/* What the store has becomes the answer: no document, or one with its text as token. Takes `text`. */
static void give_document(struct mu_c10d_work *work, struct muster_bytes *text)
{
    struct mu_slice slice = mu_slice(text->data, text->len);

    if (is_no_document(slice) ||
        mu_kv_give_document(work->request, work->driver->document_key, slice, &work->error) < 0)
        return;
    work->request->state_token = *text;
    *text = (struct muster_bytes){ 0 };
}

static struct muster_slice expected(const struct mu_c10d_work *work)
{
    const struct mu_kv_request *request = work->request;

    if (request->has_token && request->token.len > 0)
        return request->token;
    return muster_str(no_document);
}

static void add_compare_set(struct mu_c10d_work *work, struct muster_slice key, struct muster_slice value,
                            struct muster_slice desired)
{
    add(work, (struct mu_call){ .kind = MU_CALL_COMPARE_SET, .key = key, .value = value, .desired = desired });
}

static void add_write(struct mu_c10d_work *work, struct muster_slice in_place_of)
{
    add_compare_set(work, muster_str(work->driver->document_key), in_place_of,
                    (struct muster_slice){ work->text.data, work->text.len });
}

/* The answers of compare_set: ours, if it was done; what we expected, if there is no such key; else what is there.
 * True: it has to be done again, for a key that is not there or is empty. */
static bool end_write(struct mu_c10d_work *work)
{
    struct muster_bytes *now = &work->calls[0].call.bytes;
    struct muster_slice ours = { work->text.data, work->text.len }, wanted = expected(work);
    bool created = work->step == 1; /* by that time we expected nothing */

    if (is_slice(now, ours)) {
        work->request->written = work->request->found = true;
        work->request->state_token = *now;
        *now = (struct muster_bytes){ 0 };
        return false;
    }
    /* The store has lost the key, or somebody has emptied it. For a write that wants there to be no document, that is
     * as good as the marker. */
    if (!created && (is_slice(now, wanted) || now->len == 0))
        return mu_slice_equal(mu_slice(wanted.data, wanted.len), mu_slice_str(no_document));
    give_document(work, now);
    return false;
}

/* ---- What each request does, step by step ---- */

static void add_add(struct mu_c10d_work *work, struct muster_slice key, int64_t number)
{
    add(work, (struct mu_call){ .kind = MU_CALL_ADD, .key = key, .number = number });
}

static void add_plain(struct mu_c10d_work *work, enum mu_call_kind kind, struct muster_slice key)
{
    add(work, (struct mu_call){ .kind = kind, .key = key, .value = work->request->value });
}

/* Sets name/NUMBER and takes away the one that nobody waits for any more. */
static void add_mark(struct mu_c10d_work *work, const char *name, int64_t number, int64_t kept)
{
    add(work, (struct mu_call){ .kind = MU_CALL_SET, .key = side_key(work, name, number), .value = muster_str("1") });
    if (number > kept)
        add_plain(work, MU_CALL_DELETE_KEY, side_key(work, name, number - kept));
}

/* A counter, without adding to it: a server would refuse to add to what is none. */
static void add_read(struct mu_c10d_work *work, const char *name)
{
    add_compare_set(work, side_key(work, name, -1), muster_str(""), muster_str("0"));
}

static bool read_counter(const struct muster_bytes *text, int64_t *ret_number)
{
    return mu_slice_number(mu_slice(text->data, text->len), COUNTER_MAX, ret_number);
}

/* Sets a counter that was none. */
static void add_repair(struct mu_c10d_work *work, const char *name, int64_t number)
{
    char *text = work->counters[work->count];

    mu_log(MUSTER_LOG_WARNING, "somebody has overwritten the counter '%s%s' in the store at %s; setting it to %" PRId64,
           work->driver->prefix, name, work->driver->host, number);
    (void)snprintf(text, COUNTER_TEXT_MAX, "%" PRId64, number);
    add(work, (struct mu_call){ .kind = MU_CALL_SET, .key = side_key(work, name, -1), .value = muster_str(text) });
}

/* A key that is no client's. Older stores have no engine, and are not asked. */
static void add_probe(struct mu_c10d_work *work, const char *key)
{
    if (work->driver->dialect == MU_DIALECT_V)
        add(work, (struct mu_call){ .kind = MU_CALL_CHECK, .key = muster_str(key), .raw_key = true });
}

static void add_take(struct mu_c10d_work *work)
{
    add_add(work, side_key(work, "turn", -1), 1);
    add_read(work, "turns_done");
}

static int add_first_step(struct mu_c10d_work *work)
{
    const struct mu_kv_request *request = work->request;
    int rc = 0;

    switch (request->kind) {
    case MU_KV_READ: /* the bell first: whoever rings after that wakes the PARK that follows */
        add_read(work, "bell");
        add_compare_set(work, muster_str(work->driver->document_key), muster_str(""), muster_str(no_document));
        break;
    case MU_KV_WRITE:
        rc = mu_kv_encode_document(request, &work->text, &work->error);
        add_write(work, expected(work));
        break;
    case MU_KV_RING:
        add_add(work, side_key(work, "bell", -1), 1);
        break;
    case MU_KV_PARK:
        add_plain(work, MU_CALL_WAIT, side_key(work, "bell", request->number + 1));
        break;
    case MU_KV_TURN_TAKE:
        if (!work->driver->doubts_turns) {
            add_take(work);
            break;
        }
        add_read(work, "turn");
        add_read(work, "turns_done");
        break;
    case MU_KV_TURN_WAIT:
        add_plain(work, MU_CALL_WAIT, side_key(work, "turn", request->number));
        break;
    case MU_KV_TURN_GIVE:
        add_mark(work, "turn", request->number, TURNS_KEPT);
        add_add(work, side_key(work, "turns_done", -1), 1);
        break;
    case MU_KV_SETTLE:
        add_compare_set(work, side_key(work, "world", request->number), muster_str(""), request->value);
        if (request->number >= WORLDS_KEPT)
            add_plain(work, MU_CALL_DELETE_KEY, side_key(work, "world", request->number - WORLDS_KEPT));
        break;
    case MU_KV_HOST:
        add_compare_set(work, side_key(work, "host", -1), muster_str(no_host), muster_str(no_host));
        add_probe(work, work->driver->job_probe);
        break;
    case MU_KV_PROBE: /* of a job that has a document the engine itself says so */
        if (work->driver->dialect == MU_DIALECT_V)
            add_probe(work, MU_SESSION_PROBE);
        break;
    case MU_KV_GET:
        add_plain(work, MU_CALL_GET, request->key);
        break;
    case MU_KV_SET:
        add_plain(work, MU_CALL_SET, request->key);
        break;
    case MU_KV_ADD:
        add_add(work, request->key, request->number);
        break;
    case MU_KV_COMPARE_SET:
        add_compare_set(work, request->key, request->token, request->value);
        break;
    case MU_KV_CHECK:
        add_plain(work, MU_CALL_CHECK, request->key);
        break;
    case MU_KV_DELETE:
        add_plain(work, MU_CALL_DELETE_KEY, request->key);
        break;
    }
    return rc;
}

static struct mu_c10d_conn *conn_for(struct mu_c10d_work *work)
{
    struct mu_c10d *driver = work->driver;

    switch (work->request->kind) {
    case MU_KV_PARK:
        return &driver->bell;
    case MU_KV_TURN_WAIT:
    case MU_KV_GET:
        return mu_c10d_conn_for_wait(driver, work->request->owner);
    default:
        return &driver->main;
    }
}

static void begin(struct mu_c10d_work *work)
{
    struct mu_kv_request *request = work->request;
    int rc = add_first_step(work);

    if (rc == 0 && work->count == 0) {
        mu_later_push(&work->driver->later, &request->link);
        free_work(work);
        return;
    }
    if (rc == 0)
        rc = mu_c10d_make_calls(work, conn_for(work), request->timeout_ms);
    if (rc < 0) { /* inside of the asker's call: the answer has to wait */
        mu_later_fail(&work->driver->later, request, &work->error);
        free_work(work);
    } else if (request->kind == MU_KV_PARK) {
        work->driver->parked = work;
    }
}

static void move_bytes(struct mu_kv_request *request, struct mu_c10d_call *one)
{
    request->bytes = one->call.bytes;
    one->call.bytes = (struct muster_bytes){ 0 };
}

static void take_read(struct mu_c10d_work *work)
{
    struct mu_c10d *driver = work->driver;
    bool counts = read_counter(&work->calls[0].call.bytes, &driver->rings);

    if (!counts)
        driver->rings += 2 * RINGS_KEPT;
    work->request->number = driver->rings;
    give_document(work, &work->calls[1].call.bytes);
    free_answers(work);
    if (!counts && work->error.code == 0)
        add_repair(work, "bell", driver->rings);
}

static bool are_turns(int64_t turn, int64_t done)
{
    return turn >= 0 && turn <= COUNTER_MAX && done >= 0 && done <= turn && turn - done <= TURNS_OPEN_MAX;
}

/* The first step of a TURN_TAKE that doubts the counters. */
static void check_turns(struct mu_c10d_work *work)
{
    struct mu_c10d *driver = work->driver;
    int64_t turn = 0, done = 0;
    bool counts = read_counter(&work->calls[0].call.bytes, &turn) && read_counter(&work->calls[1].call.bytes, &done) &&
                  are_turns(turn, done);

    free_answers(work);
    if (counts) {
        add_take(work);
        return;
    }
    driver->turn += 2 * TURNS_KEPT;
    add_repair(work, "turn", driver->turn);
    add_repair(work, "turns_done", driver->turn);
    add_add(work, side_key(work, "turn", -1), 1);
}

/* Without usable counters it is our turn at once. */
static void take_turn(struct mu_c10d_work *work)
{
    struct mu_c10d *driver = work->driver;
    bool repaired = work->calls[0].call.kind == MU_CALL_SET;
    int64_t turn = work->calls[repaired ? 2 : 0].call.result, done = turn > 0 ? turn - 1 : 0;
    bool counts = (repaired || read_counter(&work->calls[1].call.bytes, &done)) && turn > 0 && are_turns(turn, done);

    driver->doubts_turns = !counts;
    driver->turn = counts ? turn : driver->turn;
    work->request->number = counts ? turn : 0;
    work->request->done_count = counts ? done : 0;
}

/* Every call of a step is answered. Adds those of the next step, or fills in the answer. */
static void take_answers(struct mu_c10d_work *work)
{
    struct mu_kv_request *request = work->request;
    struct mu_c10d_call *calls = work->calls;
    int64_t number = calls[0].call.result;

    work->count = 0;
    switch (request->kind) {
    case MU_KV_READ:
        if (work->step == 0)
            take_read(work);
        break;
    case MU_KV_WRITE:
        if (!end_write(work))
            break;
        muster_bytes_done(&calls[0].call.bytes);
        add_write(work, muster_str(""));
        break;
    case MU_KV_RING:
        if (work->step == 0 && number > 0 && number <= COUNTER_MAX)
            add_mark(work, "bell", number, RINGS_KEPT);
        break;
    case MU_KV_TURN_TAKE:
        if (calls[0].call.kind == MU_CALL_COMPARE_SET)
            check_turns(work);
        else
            take_turn(work);
        break;
    case MU_KV_TURN_WAIT:
        if (work->step == 1) {
            (void)read_counter(&calls[0].call.bytes, &request->done_count);
            break;
        }
        request->found = calls[0].call.rc == 0;
        if (request->found)
            request->done_count = request->number; /* everybody behind us waits: no further question */
        else
            add_read(work, "turns_done");
        break;
    case MU_KV_HOST:
        request->found = !is_slice(&calls[0].call.bytes, muster_str(no_host));
        if (request->found)
            move_bytes(request, &calls[0]);
        request->foreign = calls[1].call.kind == MU_CALL_CHECK && calls[1].call.result != 0;
        break;
    case MU_KV_PROBE:
        request->found = number != 0;
        break;
    case MU_KV_SETTLE:
    case MU_KV_GET:
    case MU_KV_COMPARE_SET:
        move_bytes(request, &calls[0]);
        break;
    case MU_KV_ADD:
        request->number = number;
        break;
    case MU_KV_CHECK:
    case MU_KV_DELETE:
        request->found = number != 0;
        break;
    case MU_KV_PARK:
    case MU_KV_TURN_GIVE:
    case MU_KV_SET:
        break;
    }
}

void mu_c10d_proceed(struct mu_c10d_work *work)
{
    bool waited = work->request->kind == MU_KV_TURN_WAIT && work->step == 0;

    if (waited && work->error.code == MUSTER_ETIMEOUT)
        work->error.code = 0; /* that is an answer, too */
    if (work->error.code != 0) {
        finish(work);
        return;
    }
    take_answers(work);
    work->step++;
    if (work->error.code == 0 && work->count > 0)
        (void)mu_c10d_make_calls(work, &work->driver->main, time_left(work, waited ? AFTER_WAIT_MS : 1));
    if (work->pending == 0)
        finish(work);
}

/* ---- From outside ---- */

static void call_off(struct mu_c10d_work *work, const char *why)
{
    (void)mu_fail(&work->error, MUSTER_ECANCELED, "%s", why);
    mu_client_expire(work->calls[0].client, &work->calls[0].call);
}

static void end_waits(struct mu_kv *kv, const void *owner)
{
    struct mu_c10d *driver = (struct mu_c10d *)kv;

    MU_LIST_EACH (struct mu_c10d_work, work, &driver->works, link) {
        if (work->request->owner == owner && mu_c10d_is_wait(work->calls[0].call.kind))
            call_off(work, "its owner does not want it any more");
    }
}

static void submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct mu_c10d *driver = (struct mu_c10d *)kv;
    struct muster_error error;
    struct mu_c10d_work *work;

    assert(!kv->closing);
    mu_kv_begin(request, uv_now(driver->loop));
    if (request->kind == MU_KV_PARK && driver->parked != NULL)
        call_off(driver->parked, "another one took its place");
    work = new_work(driver, request);
    if (work != NULL) {
        begin(work);
        return;
    }
    (void)mu_fail(&error, MUSTER_ENOMEM, "no memory for a request");
    mu_later_fail(&driver->later, request, &error);
}

static void free_kv(struct mu_kv *kv)
{
    struct mu_c10d *driver = (struct mu_c10d *)kv;

    free(driver->host);
    free(driver->document_key);
    free(driver->prefix);
    free(driver->host_node);
    free(driver->publish_key);
    free(driver->job_probe);
    free(driver);
}

static void close_kv(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    struct mu_c10d *driver = (struct mu_c10d *)kv;

    mu_kv_begin_close(kv, closed, ctx);
    mu_c10d_close_conns(driver);
    mu_later_close(&driver->later, mu_kv_part_closed, kv);
}

static bool local_address(const struct mu_kv *kv, char *text, size_t room)
{
    const struct mu_c10d *driver = (const struct mu_c10d *)kv;
    union mu_addr addr;

    return driver->main.client != NULL && mu_client_local_address(driver->main.client, &addr) &&
           mu_addr_host(&addr, text, room);
}

static bool lone_set(const struct mu_kv *kv, struct mu_slice key, struct mu_slice value, struct mu_kv_lone *ret_lone)
{
    const struct mu_c10d *driver = (const struct mu_c10d *)kv;
    union mu_addr addr;

    *ret_lone = (struct mu_kv_lone){ .address_len = 0 };
    if (driver->main.client == NULL || !mu_client_lone_set(driver->main.client, key, value, &addr, &ret_lone->bytes))
        return false;
    ret_lone->address_len = mu_addr_len(&addr);
    memcpy(&ret_lone->address, &addr, ret_lone->address_len);
    return true;
}

static const struct mu_kv_ops c10d_ops = {
    .name = "c10d",
    .has_bell = true,
    .has_turns = true,
    .has_settle = true,
    .is_common = true,
    .submit = submit,
    .close = close_kv,
    .free = free_kv,
    .end_waits = end_waits,
    .local_address = local_address,
    .lone_set = lone_set,
};

static void on_published(struct mu_call *call)
{
    (void)call; /* if the connection was lost before, the next request finds out */
}

static void publish_host(struct mu_c10d *driver)
{
    driver->publish = (struct mu_call){ .kind = MU_CALL_SET,
                                        .key = muster_str(driver->publish_key),
                                        .value = muster_str(driver->host_node),
                                        .done = on_published };
    mu_client_call(driver->main.client, &driver->publish, driver->config.read_timeout_ms);
}

static int set_up(struct mu_c10d *driver, const struct mu_kv_c10d_config *config)
{
    driver->host = strdup(config->host);
    driver->host_node = config->host_node == NULL ? NULL : strdup(config->host_node);
    driver->document_key = mu_text_format(MU_KV_C10D_DOCUMENT_KEY, config->run_id);
    driver->prefix = mu_text_format(MU_KV_C10D_NOTES "%s/", config->run_id);
    driver->publish_key = mu_text_format(MU_KV_C10D_NOTES "%s/host", config->run_id);
    driver->job_probe = mu_text_format(MU_SESSION_JOB_PROBE "%s", config->run_id);
    if (driver->host == NULL || driver->document_key == NULL || driver->prefix == NULL || driver->publish_key == NULL ||
        driver->job_probe == NULL || (config->host_node != NULL && driver->host_node == NULL))
        return MUSTER_ENOMEM;
    driver->key_room = strlen(driver->prefix) + SUFFIX_MAX;
    return 0;
}

int mu_kv_c10d_start(uv_loop_t *loop, const struct mu_kv_c10d_config *config, struct mu_kv **ret_kv,
                     struct muster_error *reterr)
{
    struct mu_c10d *driver;
    int rc;

    assert(config->read_timeout_ms > 0);
    if (strlen(config->run_id) > MU_KV_RUN_ID_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "a run id of %zu bytes is too long", strlen(config->run_id));
    driver = calloc(1, sizeof *driver);
    if (driver == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous back end");
    driver->kv.ops = &c10d_ops;
    driver->loop = loop;
    driver->config = *config;
    driver->rng = mu_rng_seeded(config->seed);
    driver->main.driver = driver->bell.driver = driver;
    mu_list_init(&driver->works);
    for (size_t i = 0; i < OWNERS_MAX * WAITS_MAX; i++)
        driver->waits[i].driver = driver;
    rc = set_up(driver, config);
    if (rc < 0)
        (void)mu_fail(reterr, rc, "no memory for a rendezvous back end");
    else
        rc = mu_c10d_dial(&driver->main, config->read_timeout_ms, reterr);
    if (rc < 0) {
        free_kv(&driver->kv);
        return rc;
    }
    mu_later_open(&driver->later, loop, mu_kv_tell);
    driver->kv.parts++;
    if (driver->host_node != NULL)
        publish_host(driver);
    *ret_kv = &driver->kv;
    return 0;
}
