/* What the drivers of all back ends share: names of requests, and how a request begins and ends. */
#include "kv/kv.h"

#include "base/texts.h"

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

void mu_kv_tell(struct mu_list *link)
{
    struct mu_kv_request *request = MU_LIST_ITEM(link, struct mu_kv_request, link);

    request->done(request);
}
