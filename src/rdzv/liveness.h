/* What a node has seen of the others: the document as it was read last, since when each heartbeat is the same, and
 * what time it is in the document. Liveness is judged by our own monotonic clock, and only while we looked. Pure. */
#ifndef MU_RDZV_LIVENESS_H
#define MU_RDZV_LIVENESS_H

#include "rdzv/doc.h"

struct mu_last_seen {
    int64_t heartbeat_us;
    uint64_t since_ms;   /* we have seen this heartbeat and no other, without a gap */
    uint64_t changed_ms; /* when we first saw it, gaps or not: what the time in the document is counted from */
};

struct mu_liveness {
    struct mu_doc doc;          /* as it was read or written last */
    struct mu_last_seen *items; /* of doc.members */
    bool any;                   /* something was seen at all */
    uint64_t seen_ms, sent_ms;  /* when the last answer came, and when it was asked for */
};

void mu_liveness_init(struct mu_liveness *sights, struct mu_hash_seed seed, struct mu_doc_dialect dialect);
void mu_liveness_done(struct mu_liveness *sights);

/* `fresh` was asked for at sent_ms and came at now_ms. Its content moves into sights->doc, and what was there into it.
 * A gap longer than gap_ms since the last time begins every span of silence anew. 0 or MUSTER_ENOMEM; nothing is then
 * changed. */
int mu_liveness_see(struct mu_liveness *sights, struct mu_doc *fresh, uint64_t sent_ms, uint64_t now_ms,
                    uint64_t gap_ms);

/* The store did not answer a request, so the others may not have reached it either: every span of silence begins
 * anew. */
void mu_liveness_interrupt(struct mu_liveness *sights, uint64_t now_ms);

/* Who has been silent for `age_ms` while we looked; never `me`. Fills `ret_dead`, which has room for doc.count; the
 * names are those of sights->doc. */
size_t mu_liveness_dead(const struct mu_liveness *sights, const struct mu_node *me, uint64_t age_ms,
                        struct mu_node *ret_dead);

/* The time in the document: that of the PyTorch members, who compare it with their clock; else the newest that any
 * member, we included, has put down; in an empty document our wall clock. `own_us` was written by us at own_ms; 0:
 * nothing yet. */
int64_t mu_liveness_time(const struct mu_liveness *sights, const struct mu_node *me, uint64_t now_ms, int64_t own_us,
                         uint64_t own_ms, int64_t wall_us);

#endif
