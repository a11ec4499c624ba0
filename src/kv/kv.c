/* What the drivers of all back ends share: names of requests, how a request begins and ends, documents in base64,
 * and a store's calls as requests. */
#include "kv/kv.h"

#include "base/base64.h"
#include "base/clock.h"
#include "base/texts.h"
#include "proc/will.h"
#include "rdzv/pickle.h"
#include "store/store.h"

#include <assert.h>

MU_DEFINE_TEXTS(mu_kv_kind_text, enum mu_kv_kind, MU_KV_KINDS)

void mu_kv_begin(struct mu_kv_request *request, uint64_t now_ms)
{
    assert(request->timeout_ms > 0);
    request->rc = 0;
    request->error = (struct muster_error){ 0 };
    request->gone = request->found = request->foreign = request->written = false;
    request->bytes = request->state_token = (struct muster_bytes){ 0 };
    request->done_count = 0;
    request->started_ms = now_ms;
    mu_list_init(&request->link);
}

void mu_kv_fail(struct mu_kv_request *request, int rc, const struct muster_error *error)
{
    assert(rc < 0);
    muster_bytes_done(&request->bytes);
    muster_bytes_done(&request->state_token);
    request->found = request->foreign = request->written = false;
    request->error = *error;
    request->rc = rc;
    if (rc != MUSTER_ECONNECT) /* without a connection it does not matter what for */
        (void)mu_wrap(&request->error, rc, "%s", mu_kv_kind_text(request->kind));
}

uint64_t mu_kv_left_ms(const struct mu_kv_request *request, uint64_t now_ms)
{
    uint64_t took_ms = now_ms - request->started_ms;

    return request->timeout_ms > took_ms ? request->timeout_ms - took_ms : 0;
}

int mu_kv_encode_document(const struct mu_kv_request *request, struct mu_buf *text, struct muster_error *reterr)
{
    struct muster_slice value = request->value;

    if (value.len > MU_PICKLE_BYTES_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "a document of %zu bytes is too long", value.len);
    if (mu_base64_encode(mu_slice(value.data, value.len), text, SIZE_MAX) < 0)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a document");
    return 0;
}

int mu_kv_give_document(struct mu_kv_request *request, const char *key, struct mu_slice text,
                        struct muster_error *reterr)
{
    struct mu_buf bytes = { 0 };
    int rc = mu_base64_decode(text, &bytes, MU_PICKLE_BYTES_MAX);

    if (rc == 0)
        rc = mu_buf_append(&bytes, "", 1, SIZE_MAX);
    if (rc < 0)
        mu_buf_done(&bytes);
    if (rc == MUSTER_ENOMEM)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a document");
    request->found = true;
    request->foreign = rc < 0;
    if (rc == 0)
        request->bytes = (struct muster_bytes){ .data = bytes.data, .len = bytes.len - 1 };
    else
        (void)mu_fail(&request->error, MUSTER_ERDZV_STATE,
                      rc == MUSTER_ELIMIT ? "what is stored under '%s' is too long for a document (%zu bytes)"
                                          : "what is stored under '%s' is not base64 (%zu bytes)",
                      key, text.len);
    return 0;
}

struct mu_slice mu_kv_take_round(struct mu_slice *key, const char *prefix)
{
    struct mu_slice rest = *key;
    size_t digits = 0;

    if (!mu_slice_skip(&rest, prefix))
        return mu_slice("", 0);
    while (digits < rest.len && rest.data[digits] >= '0' && rest.data[digits] <= '9')
        digits++;
    if (digits == 0 || digits == rest.len || rest.data[digits] != '/')
        return mu_slice("", 0);
    *key = mu_slice(rest.data + digits + 1, rest.len - digits - 1);
    return mu_slice(rest.data, digits);
}

void mu_kv_tell(struct mu_list *link)
{
    struct mu_kv_request *request = MU_LIST_ITEM(link, struct mu_kv_request, link);

    request->done(request);
}

void mu_kv_begin_close(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    assert(!kv->closing);
    kv->closing = true;
    kv->on_closed = closed;
    kv->closed_ctx = ctx;
}

void mu_kv_part_closed(void *kv)
{
    struct mu_kv *whole = kv;

    assert(whole->parts > 0);
    if (--whole->parts > 0)
        return;
    assert(whole->closing);
    if (whole->on_closed != NULL)
        whole->on_closed(whole, whole->closed_ctx);
    whole->ops->free(whole);
}

void mu_kv_inner_closed(struct mu_kv *inner, void *kv)
{
    (void)inner;
    mu_kv_part_closed(kv);
}

/* ---- A store's calls as requests ---- */

/* One key after the other: all are there when the last one is. CHECK ends at the first that is missing. */
static int ask_for_each(struct muster_store *store, mu_kv_ask *ask, struct mu_call *call, int64_t timeout_ms,
                        struct muster_error *reterr)
{
    int64_t until_ms = mu_clock_in_ms(timeout_ms);
    int rc = 0;

    call->result = 1;
    for (size_t i = 0; rc == 0 && call->result && i < call->count; i++) {
        struct mu_kv_request request = { .kind = call->kind == MU_CALL_CHECK ? MU_KV_CHECK : MU_KV_GET,
                                         .key = call->keys[i] };

        rc = ask(store, &request, until_ms - mu_clock_ms(), reterr);
        if (call->kind == MU_CALL_CHECK)
            call->result = request.found;
        muster_bytes_done(&request.bytes);
    }
    return rc;
}

int mu_kv_run(struct muster_store *store, mu_kv_ask *ask, struct mu_call *call, int64_t timeout_ms,
              struct muster_error *reterr)
{
    struct mu_kv_request request = { .key = call->key, .value = call->value, .number = call->number };
    int rc;

    switch (call->kind) {
    case MU_CALL_SET:
        request.kind = MU_KV_SET;
        break;
    case MU_CALL_GET:
        request.kind = MU_KV_GET;
        break;
    case MU_CALL_ADD:
        request.kind = MU_KV_ADD;
        break;
    case MU_CALL_COMPARE_SET:
        request.kind = MU_KV_COMPARE_SET;
        request.token = call->value;
        request.value = call->desired;
        break;
    case MU_CALL_DELETE_KEY:
        request.kind = MU_KV_DELETE;
        break;
    case MU_CALL_CHECK:
    case MU_CALL_WAIT:
        return ask_for_each(store, ask, call, timeout_ms, reterr);
    default:
        return mu_store_run_from_others(store, call, timeout_ms, reterr);
    }
    rc = ask(store, &request, timeout_ms, reterr);
    call->bytes = request.bytes;
    call->result = call->kind == MU_CALL_ADD ? request.number : request.found;
    return rc;
}

void mu_kv_leave(struct mu_kv_lone *lone, struct mu_will *will)
{
    (void)mu_will_set(will, &(struct mu_will_text){ .address = (const struct sockaddr *)&lone->address,
                                                    .address_len = lone->address_len,
                                                    .bytes = mu_buf_slice(&lone->bytes),
                                                    .server_closes = lone->server_closes });
    mu_buf_done(&lone->bytes);
}
