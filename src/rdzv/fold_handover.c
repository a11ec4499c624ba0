/* One node of a rendezvous in the engine of a muster store, see fold.h: nodes that cannot use the engine, such as
 * PyTorch's, and the document in which all of them meet then. */
#include "rdzv/fold_parts.h"

#include "base/base64.h"
#include "rdzv/pickle.h"

#include <assert.h>

enum { MOVE_AGAIN_MS = 30000 };

bool mu_fold_has_outsiders(const struct mu_fold *f)
{
    return f->has_documents && mu_fold_has(f, JOB_STOCK);
}

/* ---- The document ---- */

/* PyTorch before 2.2 does not read today's; what the user has chosen counts. */
static struct mu_doc_dialect dialect_of(const struct mu_fold *f)
{
    return mu_fold_has_outsiders(f) && f->outsiders_are_old && f->dialect.zoned ? MU_DOC_DIALECT_1_13 : f->dialect;
}

/* Nobody is in it, and the next round is to be formed. Into f->document. */
static int write_document(struct mu_fold *f, bool closed)
{
    struct mu_buf pickle = { 0 };
    struct mu_doc doc;
    int rc;

    mu_doc_init(&doc, (struct mu_hash_seed){ 0 }, dialect_of(f));
    doc.closed = closed;
    if (mu_fold_has(f, JOB_DOC))
        doc.round = f->doc.round + (f->doc.round < MU_DOC_ROUND_MAX);
    f->document.len = 0;
    rc = mu_pickle_encode(&doc, &pickle);
    if (rc == 0)
        rc = mu_base64_encode(mu_buf_slice(&pickle), &f->document, SIZE_MAX);
    mu_buf_done(&pickle);
    mu_doc_done(&doc);
    return rc;
}

static void add_op(struct mu_fold *f, enum mu_fold_op_kind kind, struct mu_slice value)
{
    assert(f->write.ops_count < OPS_MAX && (f->write.ops_count == 0 || f->write.ops == f->ops));
    f->write.ops = f->ops;
    f->ops[f->write.ops_count++] = (struct mu_fold_op){ .kind = kind, .value = value };
}

int mu_fold_write_closed_document(struct mu_fold *f)
{
    return f->has_documents ? write_document(f, true) : 0;
}

void mu_fold_put_closed_document(struct mu_fold *f)
{
    if (f->has_documents)
        add_op(f, MU_FOLD_DOCUMENT, mu_buf_slice(&f->document));
}

/* ---- The leader ---- */

/* A failure is charged with the next world here, after the pause that there may be; then it moves. */
static bool is_charged_first(const struct folded *folded)
{
    return mu_attribution_cost(&folded->why) > 0 && (int64_t)folded->count >= folded->nodes_min;
}

/* Nobody is in a world any more, and there is a place for one of them. A world that was lost is put back first. */
static bool is_time_to_move(struct mu_fold *f, const struct folded *folded)
{
    if (!mu_fold_has_outsiders(f) || folded->in > 0 || mu_fold_has(f, JOB_CLOSED) ||
        !mu_fold_is_due(f, f->lead.move_at_ms))
        return false;
    if (!mu_fold_has(f, JOB_DOC))
        return folded->holders == 0 && f->now_ms >= f->grace_until_ms;
    return (int64_t)folded->count < folded->nodes_max && !is_charged_first(folded);
}

/* The store has no room for the document: meanwhile the job goes on here. */
void mu_leader_move_failed(struct mu_fold *f)
{
    f->lead.move_at_ms = f->now_ms + MOVE_AGAIN_MS;
}

/* Where there was no world, whoever waits for the document makes it; but others could be faster, and write it as an old
 * PyTorch cannot read it. */
static bool needs_document(const struct mu_fold *f)
{
    return mu_fold_has(f, JOB_DOC) || f->outsiders_are_old;
}

/* True: this fold is over. */
bool mu_leader_move(struct mu_fold *f, const struct folded *folded)
{
    int64_t lease;
    int rc;

    if (!is_time_to_move(f, folded))
        return false;
    lease = mu_fold_need_job_lease(f);
    if (lease == 0)
        return true;
    rc = mu_fold_mark_write(f->id, &f->mark);
    if (rc == 0 && needs_document(f))
        rc = write_document(f, false);
    if (!mu_fold_is_encoded(f, rc))
        return true;
    mu_fold_compare_key(f, JOB_LEADER);
    mu_fold_compare_key(f, JOB_DOC);
    mu_fold_compare_key(f, JOB_CLOSED);
    mu_fold_compare_key(f, JOB_STOCK); /* it may have gone */
    mu_fold_put(f, mu_fold_key_names[JOB_MOVED], &f->mark, lease);
    if (needs_document(f))
        add_op(f, MU_FOLD_DOCUMENT, mu_buf_slice(&f->document));
    add_op(f, MU_FOLD_YIELD, mu_slice("", 0));
    mu_fold_send(f, MOVE);
    return true;
}

/* ---- The job has moved ---- */

/* Nothing more is done here. A member has been gone for the others: they were all out of their world. But if a store of
 * PyTorch's has taken the place of the one that a member hosted, all members have lost that one. */
bool mu_fold_observe_moved(struct mu_fold *f)
{
    f->has_moved |= f->has_documents && f->job.loaded && mu_fold_has(f, JOB_MOVED);
    if (!f->has_moved)
        return false;
    if (f->phase == MU_FOLD_MEMBER && mu_fold_host_is_lost(f))
        mu_fold_observe_host(f);
    else if (f->phase == MU_FOLD_MEMBER)
        mu_fold_tell_removed(f, MU_FOLD_MOVED_CAUSE);
    f->wake_ms = UINT64_MAX; /* also if it was asked when the host will be lost */
    return true;
}

bool mu_fold_has_moved(const struct mu_fold *f)
{
    return f->has_moved;
}

struct mu_fold_asked mu_fold_asked(const struct mu_fold *f)
{
    return (struct mu_fold_asked){ f->closing, f->looking };
}
