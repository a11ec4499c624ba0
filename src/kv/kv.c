/* What all back ends' drivers share: the names of what they are asked for, and answers that are told from the loop. */
#include "kv/kv.h"

const char *mu_kv_kind_text(enum mu_kv_kind kind)
{
    switch (kind) {
#define X(name, text)                                                                                                  \
    case MU_KV_##name:                                                                                                 \
        return text;
        MU_KV_KINDS(X)
#undef X
    }
    return "unknown";
}

void mu_kv_answer_all(struct mu_list *later)
{
    struct mu_list all, *link;

    mu_list_init(&all);
    while ((link = mu_list_pop(later)) != NULL)
        mu_list_push(&all, link);
    while ((link = mu_list_pop(&all)) != NULL) {
        struct mu_kv_request *request = MU_LIST_ITEM(link, struct mu_kv_request, link);

        request->done(request);
    }
}
