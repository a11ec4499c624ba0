#include "rdzv/store_lost_text.h"

#include "rdzv/rdzv.h"

#include <inttypes.h>

void mu_store_lost_text(const struct mu_store_lost *lost, struct muster_error *reterr)
{
    const char *where = lost->where != NULL ? lost->where : "its address";
    const char *how = lost->is_refused ? "refused connections" : "not answered";
    uint64_t since_s = lost->since_ms / 1000;

    if (lost->is_surplus) {
        (void)mu_fail(reterr, MUSTER_ERDZV_CONNECTION,
                      "the store at %s has %s for %" PRIu64 " s: the job has ended, or the host of its store has; "
                      "whether the job succeeded is not known, and this node had no place in it",
                      where, how, since_s);
    } else {
        const struct mu_slice name = lost->host->name;

        (void)mu_fail(reterr, MUSTER_ERDZV_CONNECTION,
                      "the store at %s is lost: its host %.*s (pid %" PRId64 ") has %s for %" PRIu64
                      " s; jobs with --rdzv-backend etcd-v3 survive this",
                      where, (int)(name.len < MU_RDZV_HOST_SHOWN_MAX ? name.len : MU_RDZV_HOST_SHOWN_MAX), name.data,
                      lost->host->pid, how, since_s);
    }
}
