/* Rounds and the names of their keys. See round_keys.h. */
#include "rdzv/round_keys.h"

#include "rdzv/fold_doc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint64_t mu_round_tag(const struct mu_node *members, size_t count)
{
    uint64_t tag = count;

    for (size_t i = 0; i < count; i++) {
        struct mu_hash_seed seed = { tag ^ (uint64_t)members[i].pid, (uint64_t)members[i].local_id };

        tag = mu_hash64(seed, members[i].name);
    }
    return tag;
}

bool mu_round_read_tag(const char *text, uint64_t *ret_tag)
{
    return text != NULL && strspn(text, "0123456789abcdef") == MU_ROUND_TAG_LEN &&
           mu_fold_id_parse(mu_slice(text, MU_ROUND_TAG_LEN), ret_tag);
}

void mu_round_stock_prefix(char *text, size_t room, const char *run_id, int64_t round)
{
    if (round >= 0)
        (void)snprintf(text, room, "torch.rendezvous.%s.%" PRId64 "/", run_id, round);
    else
        (void)snprintf(text, room, "%s/", run_id);
}

void mu_round_job_prefix(char *text, size_t room, const char *run_id)
{
    (void)snprintf(text, room, "muster.%s/", run_id);
}

void mu_round_own_prefix(char *text, size_t room, const char *run_id, int64_t round, uint64_t tag)
{
    (void)snprintf(text, room, "muster.%s/%" PRId64 ".%016" PRIx64 "/", run_id, round, tag);
}
