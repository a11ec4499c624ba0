/* See kv_job_uv.h.
 *
 * A request of the job's is one call to etcd. A GET of a key that is not there waits in a list; every change of such a
 * key makes it ask again, until its time is up. A request of the round's is handed on to a TCPStore's driver as it
 * is. */
#include "kv/kv_job_uv.h"

#include "base/clock.h"
#include "base/text.h"
#include "kv/kv_c10d_uv.h"
#include "kv/later_uv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUND_TIMEOUT_MS 30000 /* for the first connection to a round's store */
#define KEY_MAX 256            /* of a key of the job's, without what is in front */

struct job {
    struct mu_kv kv;
    uv_loop_t *loop;
    struct mu_kv_job_config config;       /* its texts are those below */
    char *run_id, *prefix, *marks, *ours; /* ours: "muster.<run id>/" */
    struct mu_kv *round;                  /* NULL: there is none yet */
    uint64_t seed;
    struct mu_list asked;    /* calls to etcd, and GETs that wait */
    struct mu_later refused; /* requests that are answered */
    uv_timer_t timer;        /* of GETs that wait */
    bool detached;
};

/* A request of the job's. */
struct asked {
    struct mu_list link;
    struct job *job;
    struct mu_kv_request *request;
    struct mu_etcd3_call call;
    bool under_way, again; /* the call; and what it is about changed meanwhile */
    bool swaps_empty;      /* a COMPARE_SET whose key is empty */
    char key[KEY_MAX];
};

static void arm(struct job *job);

static struct mu_slice slice_of(struct muster_slice slice)
{
    return mu_slice(slice.data, slice.len);
}

static void end(struct asked *asked, int rc)
{
    struct mu_kv_request *request = asked->request;

    mu_list_remove(&asked->link);
    free(asked);
    request->rc = rc;
    request->done(request);
}

static int say_not_there(struct asked *asked)
{
    return mu_fail(&asked->request->error, MUSTER_ETIMEOUT, "'%.100s' is not there", asked->key);
}

static uint64_t left_ms(const struct asked *asked)
{
    return mu_kv_left_ms(asked->request, uv_now(asked->job->loop));
}

static void refuse(struct job *job, struct mu_kv_request *request, int rc)
{
    request->rc = rc;
    mu_later_push(&job->refused, &request->link);
}

/* ---- The job's keys ---- */

/* Keys about a member that others read when the round's store may be gone with it. */
static bool outlives_round(struct mu_slice key)
{
    return (mu_slice_skip(&key, "/done/") || mu_slice_skip(&key, "/left/")) && key.len > 0;
}

/* Without the prefix; data NULL: it is none of the job's keys. */
static struct mu_slice job_key(const struct job *job, struct muster_slice key)
{
    struct mu_slice rest = slice_of(key);
    const char *slash;

    if (!mu_slice_skip(&rest, job->ours) || rest.len == 0)
        return mu_slice(NULL, 0);
    slash = memchr(rest.data, '/', rest.len);
    if (slash != NULL && !outlives_round(mu_slice(slash, (size_t)(rest.data + rest.len - slash))))
        return mu_slice(NULL, 0);
    return rest;
}

static int give(struct mu_kv_request *request, struct mu_slice bytes)
{
    request->bytes = (struct muster_bytes){ mu_slice_copy(bytes), bytes.len };
    if (request->bytes.data != NULL)
        return 0;
    request->bytes.len = 0;
    return mu_fail(&request->error, MUSTER_ENOMEM, "no memory for an answer of etcd");
}

/* The value that the answer has read; data NULL: there is none. */
static struct mu_slice found_value(const struct mu_etcd3_answer *answer)
{
    const struct mu_etcd3_result *result = answer->results_count > 0 ? &answer->results[0] : NULL;

    if (result == NULL || result->kind != MU_ETCD3_OP_RANGE || result->kvs_count == 0)
        return mu_slice(NULL, 0);
    return result->kvs[0].value.data == NULL ? mu_slice("", 0) : result->kvs[0].value;
}

static void ask(struct asked *asked);

/* True: it waits for its key. */
static bool waits(struct asked *asked)
{
    struct job *job = asked->job;

    if (left_ms(asked) == 0)
        return false;
    if (asked->again && !job->detached)
        ask(asked);
    arm(job);
    return true;
}

/* COMPARE_SET from nothing: the key is there, and empty. To a TCPStore that is the same. */
static bool replaces_empty(const struct asked *asked, struct mu_slice there)
{
    const struct mu_kv_request *request = asked->request;

    return there.len == 0 && request->token.len == 0 && request->value.len > 0 && !asked->swaps_empty &&
           !asked->job->detached;
}

static void answered(struct asked *asked)
{
    struct mu_kv_request *request = asked->request;
    const struct mu_etcd3_answer *answer = &asked->call.answer;
    struct mu_slice value = found_value(answer);

    switch (request->kind) {
    case MU_KV_GET:
        if (value.data == NULL && waits(asked))
            return;
        end(asked, value.data != NULL ? give(request, value) : say_not_there(asked));
        return;
    case MU_KV_CHECK:
        request->found = value.data != NULL;
        end(asked, 0);
        return;
    case MU_KV_COMPARE_SET: /* as a TCPStore answers: what is there now, or what was expected of a key that is not */
        if (answer->succeeded)
            value = slice_of(request->value);
        else if (value.data == NULL)
            value = slice_of(request->token);
        else if (replaces_empty(asked, value)) {
            asked->swaps_empty = true;
            ask(asked);
            return;
        }
        end(asked, give(request, value));
        return;
    default:
        end(asked, 0);
        return;
    }
}

static void on_done(struct mu_etcd3_call *call)
{
    struct asked *asked = call->ctx;
    struct mu_kv_request *request = asked->request;
    struct mu_etcd3_answer answer = call->answer;

    asked->under_way = false;
    if (call->rc == 0) {
        answered(asked);
    } else {
        request->error = call->error;
        end(asked, mu_wrap(&request->error, call->rc, "the job's '%.100s' in etcd", asked->key));
    }
    mu_etcd3_answer_done(&answer);
}

/* One read, or one transaction. */
static void ask(struct asked *asked)
{
    struct job *job = asked->job;
    const struct mu_kv_request *request = asked->request;
    struct mu_slice expected = slice_of(request->token);
    char key[MU_ETCD3_KEY_MAX];
    struct mu_etcd3_compare compare = { .target = MU_ETCD3_CREATE, .number = 0 };
    struct mu_etcd3_op put = { .kind = MU_ETCD3_OP_PUT, .value = slice_of(request->value) };
    struct mu_etcd3_op range = { .kind = MU_ETCD3_OP_RANGE };

    (void)snprintf(key, sizeof key, "%s%s", strchr(asked->key, '/') == NULL ? job->prefix : job->marks, asked->key);
    put.key = range.key = compare.key = mu_slice_str(key);
    put.lease = job->config.lease(job->config.ctx);
    if (expected.len > 0 || asked->swaps_empty) {
        compare.target = MU_ETCD3_VALUE;
        compare.value = expected;
    }
    asked->again = false;
    asked->under_way = true;
    asked->call = (struct mu_etcd3_call){ .done = on_done, .ctx = asked, .timeout_ms = left_ms(asked) };
    if (asked->call.timeout_ms == 0)
        asked->call.timeout_ms = 1;
    if (request->kind == MU_KV_GET || request->kind == MU_KV_CHECK) {
        asked->call.request = (struct mu_etcd3_request){ .kind = MU_ETCD3_RANGE, .range = range };
    } else {
        asked->call.repeatable = request->kind == MU_KV_SET;
        asked->call.request = (struct mu_etcd3_request){
            .kind = MU_ETCD3_TXN,
            .txn = { .success = &put, .success_count = 1 },
        };
        if (request->kind == MU_KV_COMPARE_SET) {
            asked->call.request.txn.compares = &compare;
            asked->call.request.txn.compares_count = 1;
            asked->call.request.txn.failure = &range;
            asked->call.request.txn.failure_count = 1;
        }
    }
    mu_etcd3_call(job->config.etcd, &asked->call);
}

static void submit_job(struct job *job, struct mu_kv_request *request, struct mu_slice key)
{
    bool writes = request->kind == MU_KV_SET || request->kind == MU_KV_COMPARE_SET;
    struct muster_error *error = &request->error;
    struct asked *asked = NULL;
    int rc = 0;

    if (!writes && request->kind != MU_KV_GET && request->kind != MU_KV_CHECK)
        rc = mu_fail(error, MUSTER_ENOTSUP, "%s the job's '%.*s' in etcd: there is no such request",
                     mu_kv_kind_text(request->kind), (int)(key.len < 100 ? key.len : 100), key.data);
    else if (job->detached || (writes && job->config.lease(job->config.ctx) == 0))
        rc = mu_fail(error, MUSTER_ERDZV_CONNECTION, "the lease of the job is not known at the moment");
    else if (key.len >= KEY_MAX)
        rc = mu_fail(error, MUSTER_ELIMIT, "a key of %zu bytes is too long", key.len);
    else if ((asked = calloc(1, sizeof *asked)) == NULL)
        rc = mu_fail(error, MUSTER_ENOMEM, "no memory for a request to etcd");
    if (rc < 0) {
        refuse(job, request, rc);
        return;
    }
    asked->job = job;
    asked->request = request;
    memcpy(asked->key, key.data, key.len);
    mu_list_push(&job->asked, &asked->link);
    ask(asked);
}

void mu_kv_job_changed(struct mu_kv *kv, const struct mu_slice *key)
{
    struct job *job = (struct job *)kv;

    MU_LIST_EACH_LEAVING (struct asked, asked, &job->asked, link) {
        if (asked->request->kind != MU_KV_GET || (key != NULL && !mu_slice_equal(*key, mu_slice_str(asked->key))))
            continue;
        if (asked->under_way)
            asked->again = true;
        else if (!job->detached)
            ask(asked);
    }
}

/* ---- The round's keys ---- */

static void job_free(struct mu_kv *kv)
{
    struct job *job = (struct job *)kv;

    if (job == NULL)
        return;
    free(job->run_id);
    free(job->prefix);
    free(job->marks);
    free(job->ours);
    free(job);
}

static void close_round(struct job *job)
{
    if (job->round == NULL)
        return;
    job->kv.parts++;
    job->round->ops->close(job->round, mu_kv_inner_closed, job);
    job->round = NULL;
}

void mu_kv_job_meet(struct mu_kv *kv, const char *host, uint16_t port)
{
    struct job *job = (struct job *)kv;
    struct mu_kv_c10d_config config = {
        .host = host, .port = port, .run_id = job->run_id, .read_timeout_ms = ROUND_TIMEOUT_MS, .seed = job->seed++
    };

    close_round(job);
    (void)mu_kv_c10d_start(job->loop, &config, &job->round, NULL); /* no memory: requests say that there is none */
}

/* ---- The driver ---- */

static void job_submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct job *job = (struct job *)kv;
    struct mu_slice key = job_key(job, request->key);

    assert(!kv->closing);
    mu_kv_begin(request, uv_now(job->loop));
    if (key.data != NULL)
        submit_job(job, request, key);
    else if (job->round != NULL)
        job->round->ops->submit(job->round, request);
    else
        refuse(job, request, mu_fail(&request->error, MUSTER_ERDZV_CONNECTION, "there is no store of a round"));
}

/* Ends the waiting GETs whose time is up, or (closing) all of them. Their `done` may make new requests. */
static void end_waits(struct job *job)
{
    for (struct mu_list *at = job->asked.next; at != &job->asked;) {
        struct asked *asked = MU_LIST_ITEM(at, struct asked, link);
        struct mu_kv_request *request = asked->request;

        at = at->next;
        if (asked->under_way || (!job->kv.closing && left_ms(asked) > 0))
            continue;
        end(asked, job->kv.closing ? mu_fail(&request->error, MUSTER_ECANCELED, "the store was closed")
                                   : say_not_there(asked));
        at = job->asked.next;
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct job *job = timer->data;

    end_waits(job);
    arm(job);
}

static void arm(struct job *job)
{
    uint64_t now_ms = uv_now(job->loop), until_ms = UINT64_MAX;

    if (job->kv.closing)
        return;
    MU_LIST_EACH (const struct asked, asked, &job->asked, link) {
        if (!asked->under_way && now_ms + left_ms(asked) < until_ms)
            until_ms = now_ms + left_ms(asked);
    }
    mu_timer_until(&job->timer, until_ms, on_timer);
}

void mu_kv_job_detach(struct mu_kv *kv)
{
    struct job *job = (struct job *)kv;

    job->detached = true;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct job *job = handle->data;

    end_waits(job);
    mu_kv_part_closed(job);
}

static void on_canceled(struct mu_etcd3_call *call)
{
    struct asked *asked = call->ctx;
    struct job *job = asked->job;
    struct mu_etcd3_answer answer = call->answer;

    /* Also if it has been done: the caller must not go on with it. */
    end(asked, mu_fail(&asked->request->error, MUSTER_ECANCELED, "the store was closed"));
    mu_etcd3_answer_done(&answer);
    mu_kv_part_closed(job);
}

static void job_close(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    struct job *job = (struct job *)kv;

    mu_kv_begin_close(kv, closed, ctx);
    if (!job->detached) /* else the one that it is for may be gone */
        job->config.on_closing(kv, job->config.ctx);
    close_round(job);
    MU_LIST_EACH (struct asked, asked, &job->asked, link) {
        if (!asked->under_way)
            continue;
        job->kv.parts++;
        asked->call.done = on_canceled;
        if (!job->detached) /* else the client does it */
            mu_etcd3_cancel(&asked->call);
    }
    mu_later_close(&job->refused, mu_kv_part_closed, job);
    uv_close((uv_handle_t *)&job->timer, on_timer_closed);
}

static const struct mu_kv_ops job_ops = {
    .name = "etcd-v3", .submit = job_submit, .close = job_close, .free = job_free
};

int mu_kv_job_start(uv_loop_t *loop, const struct mu_kv_job_config *config, struct mu_kv **ret_kv,
                    struct muster_error *reterr)
{
    struct job *job = calloc(1, sizeof *job);

    if (job != NULL) {
        job->run_id = strdup(config->run_id);
        job->prefix = strdup(config->prefix);
        job->marks = strdup(config->marks);
        job->ours = mu_text_format("muster.%s/", config->run_id);
    }
    if (job == NULL || job->run_id == NULL || job->prefix == NULL || job->marks == NULL || job->ours == NULL) {
        job_free((struct mu_kv *)job); /* which may be NULL */
        return mu_fail(reterr, MUSTER_ENOMEM, "the store of a job");
    }
    job->kv.ops = &job_ops;
    job->kv.parts = 2;
    job->loop = loop;
    job->config = *config;
    job->seed = mu_fresh_seed();
    mu_list_init(&job->asked);
    mu_later_open(&job->refused, loop, mu_kv_tell);
    (void)uv_timer_init(loop, &job->timer); /* only fills in memory */
    job->timer.data = job;
    *ret_kv = &job->kv;
    return 0;
}
