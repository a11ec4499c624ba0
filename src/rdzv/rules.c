#include "rdzv/rules.h"

#include "base/texts.h"

#include <assert.h>
#include <stdlib.h>

MU_DEFINE_TEXTS(mu_rdzv_action_text, enum mu_rdzv_action, MU_RDZV_ACTIONS)

bool mu_rdzv_action_writes(enum mu_rdzv_action action)
{
    return action <= MU_RDZV_MARK_CLOSED;
}

/* ---- What to do ---- */

static bool is_late(const struct mu_rdzv_moment *moment)
{
    return moment->now_ms > moment->deadline_ms;
}

static bool may_roll_back(const struct mu_rdzv_moment *moment)
{
    return is_late(moment) && moment->now_ms - moment->deadline_ms <= MU_RDZV_ROLL_BACK_MS;
}

static bool is_due(const struct mu_doc *doc, const struct mu_node *me, const struct mu_rdzv_moment *moment)
{
    return moment->keep_alive_due && mu_doc_has(doc, me, MU_DOC_HEARTBEAT);
}

static enum mu_rdzv_action spare_waits(const struct mu_doc *doc, const struct mu_node *me,
                                       const struct mu_rdzv_settings *settings, const struct mu_rdzv_moment *moment)
{
    /* More than the maximum can only come of nodes with other limits. PyTorch would then leave the list and enter it
     * again without end. */
    if ((int64_t)doc->participants < settings->nodes_max)
        return MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST;
    return is_due(doc, me, moment) ? MU_RDZV_KEEP_ALIVE : MU_RDZV_SYNC;
}

enum mu_rdzv_action mu_rules_join(const struct mu_doc *doc, const struct mu_node *me,
                                  const struct mu_rdzv_settings *settings, const struct mu_rdzv_moment *moment)
{
    int64_t count = (int64_t)doc->participants;
    bool participant = mu_doc_has(doc, me, MU_DOC_PARTICIPANT);
    bool waiting = mu_doc_has(doc, me, MU_DOC_WAITING);
    bool spare = doc->dialect.spares && mu_doc_has(doc, me, MU_DOC_SPARE);

    if (doc->closed)
        return spare ? MU_RDZV_ERROR_GRACEFUL_EXIT : MU_RDZV_ERROR_CLOSED;
    if (spare)
        return spare_waits(doc, me, settings, moment);
    if (doc->complete && participant)
        return MU_RDZV_FINISH;
    if (may_roll_back(moment) && participant)
        return MU_RDZV_REMOVE_FROM_PARTICIPANTS;
    if (may_roll_back(moment) && waiting)
        return MU_RDZV_REMOVE_FROM_WAIT_LIST;
    if (is_late(moment))
        return MU_RDZV_ERROR_TIMEOUT;
    if (doc->complete) {
        if (count < settings->nodes_max && !waiting)
            return MU_RDZV_ADD_TO_WAIT_LIST;
        /* Also from the wait list, where PyTorch would stay: there it would make members of a full round start anew,
         * for ever and for nothing. */
        if (count >= settings->nodes_max && doc->dialect.spares)
            return MU_RDZV_ADD_TO_REDUNDANCY_LIST;
    } else if (!participant) {
        return MU_RDZV_ADD_TO_PARTICIPANTS;
    } else if (count >= settings->nodes_min && count <= settings->nodes_max && moment->last_call_over) {
        return MU_RDZV_MARK_COMPLETE;
    }
    return is_due(doc, me, moment) ? MU_RDZV_KEEP_ALIVE : MU_RDZV_SYNC;
}

enum mu_rdzv_action mu_rules_exit(const struct mu_doc *doc, const struct mu_node *me,
                                  const struct mu_rdzv_moment *moment)
{
    if (!mu_doc_has(doc, me, MU_DOC_PARTICIPANT))
        return MU_RDZV_FINISH;
    return is_late(moment) ? MU_RDZV_ERROR_TIMEOUT : MU_RDZV_REMOVE_FROM_PARTICIPANTS;
}

enum mu_rdzv_action mu_rules_leave(const struct mu_doc *doc, const struct mu_node *me,
                                   const struct mu_rdzv_moment *moment)
{
    if (!mu_doc_has(doc, me, MU_DOC_PARTICIPANT | MU_DOC_WAITING | MU_DOC_SPARE))
        return MU_RDZV_FINISH;
    if (is_late(moment))
        return MU_RDZV_ERROR_TIMEOUT;
    if (mu_doc_has(doc, me, MU_DOC_PARTICIPANT))
        return MU_RDZV_REMOVE_FROM_PARTICIPANTS;
    return mu_doc_has(doc, me, MU_DOC_WAITING) ? MU_RDZV_REMOVE_FROM_WAIT_LIST : MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST;
}

enum mu_rdzv_action mu_rules_keep_alive(const struct mu_doc *doc, const struct mu_node *me,
                                        const struct mu_rdzv_moment *moment)
{
    if (!is_due(doc, me, moment))
        return MU_RDZV_FINISH;
    return is_late(moment) ? MU_RDZV_ERROR_TIMEOUT : MU_RDZV_KEEP_ALIVE;
}

/* ---- What it does to the document ---- */

static int by_node(const void *a, const void *b)
{
    const struct mu_doc_member *const *left = a, *const *right = b;

    return mu_node_compare(&(*left)->node, &(*right)->node);
}

static int mark_complete(struct mu_doc *doc)
{
    struct mu_doc_member **sorted = malloc((doc->participants + 1) * sizeof *sorted);
    size_t count = 0;

    if (sorted == NULL)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < doc->count; i++)
        if ((doc->members[i].in & MU_DOC_PARTICIPANT) != 0)
            sorted[count++] = &doc->members[i];
    assert(count == doc->participants);
    qsort(sorted, count, sizeof *sorted, by_node);
    for (size_t i = 0; i < count; i++)
        sorted[i]->rank = (int64_t)i;
    free(sorted);
    doc->complete = true;
    doc->has_deadline = false;
    return 0;
}

/* After a participant is gone. A complete round stays complete with fewer members, also below the minimum. */
static void remove_epilogue(struct mu_doc *doc, const struct mu_rdzv_settings *settings)
{
    if (doc->complete) {
        if (doc->participants == 0) {
            doc->complete = false;
            doc->round++;
        }
    } else if ((int64_t)doc->participants < settings->nodes_min) {
        doc->has_deadline = false;
    }
}

static int enter(struct mu_doc *doc, const struct mu_node *me, unsigned in, int64_t doc_now_us)
{
    struct mu_doc_member *member = mu_doc_enter(doc, me, in | MU_DOC_HEARTBEAT);

    if (member == NULL)
        return MUSTER_ENOMEM;
    if ((in & MU_DOC_PARTICIPANT) != 0)
        member->rank = 0;
    member->heartbeat_us = doc_now_us;
    return 0;
}

static int move(struct mu_doc *doc, const struct mu_node *me, unsigned from, unsigned to, int64_t doc_now_us)
{
    int rc = enter(doc, me, to, doc_now_us);

    if (rc == 0)
        mu_doc_drop(doc, me, from);
    return rc;
}

static int add_to_participants(struct mu_doc *doc, const struct mu_node *me, const struct mu_rdzv_settings *settings,
                               int64_t doc_now_us)
{
    int rc = move(doc, me, MU_DOC_WAITING, MU_DOC_PARTICIPANT, doc_now_us);

    if (rc < 0)
        return rc;
    if ((int64_t)doc->participants == settings->nodes_min) {
        doc->has_deadline = true;
        doc->deadline_us = doc_now_us + (int64_t)settings->last_call_ms * 1000;
        if (doc->deadline_us > MU_DOC_TIME_MAX)
            doc->deadline_us = MU_DOC_TIME_MAX;
    }
    return (int64_t)doc->participants == settings->nodes_max ? mark_complete(doc) : 0;
}

int mu_rules_apply(struct mu_doc *doc, const struct mu_node *me, const struct mu_rdzv_settings *settings,
                   enum mu_rdzv_action action, int64_t doc_now_us)
{
    assert(mu_rdzv_action_writes(action) && settings->nodes_min <= settings->nodes_max);
    switch (action) {
    case MU_RDZV_KEEP_ALIVE:
        return enter(doc, me, 0, doc_now_us);
    case MU_RDZV_ADD_TO_PARTICIPANTS:
        return add_to_participants(doc, me, settings, doc_now_us);
    case MU_RDZV_ADD_TO_WAIT_LIST:
        return move(doc, me, MU_DOC_SPARE, MU_DOC_WAITING, doc_now_us);
    case MU_RDZV_ADD_TO_REDUNDANCY_LIST:
        return move(doc, me, MU_DOC_WAITING, MU_DOC_SPARE, doc_now_us);
    case MU_RDZV_REMOVE_FROM_PARTICIPANTS:
        mu_doc_drop(doc, me, MU_DOC_PARTICIPANT | MU_DOC_HEARTBEAT);
        remove_epilogue(doc, settings);
        return 0;
    case MU_RDZV_REMOVE_FROM_WAIT_LIST:
        mu_doc_drop(doc, me, MU_DOC_WAITING | MU_DOC_HEARTBEAT);
        return 0;
    case MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST:
        mu_doc_drop(doc, me, MU_DOC_SPARE | MU_DOC_HEARTBEAT);
        return 0;
    case MU_RDZV_MARK_COMPLETE:
        return mark_complete(doc);
    case MU_RDZV_MARK_CLOSED:
        doc->closed = true;
        return 0;
    case MU_RDZV_SYNC:
    case MU_RDZV_ERROR_CLOSED:
    case MU_RDZV_ERROR_TIMEOUT:
    case MU_RDZV_ERROR_GRACEFUL_EXIT:
    case MU_RDZV_FINISH:
        break;
    }
    return 0;
}

void mu_rules_remove_dead(struct mu_doc *doc, const struct mu_rdzv_settings *settings, const struct mu_node *dead,
                          size_t count)
{
    size_t before = doc->participants;

    for (size_t i = 0; i < count; i++)
        mu_doc_drop(doc, &dead[i], MU_DOC_PARTICIPANT | MU_DOC_WAITING | MU_DOC_SPARE | MU_DOC_HEARTBEAT);
    if (doc->participants < before)
        remove_epilogue(doc, settings);
    assert(doc->participants <= before);
}

uint64_t mu_rules_hold_ms(uint64_t before_ms, uint64_t lasted_ms)
{
    uint64_t longer_ms = before_ms == 0 ? MU_HOLD_MS : before_ms * 2;

    if (lasted_ms >= MU_HOLD_ROUND_MS)
        return 0;
    return longer_ms < MU_HOLD_MAX_MS ? longer_ms : MU_HOLD_MAX_MS;
}

int mu_rules_ranks_whole(const struct mu_doc *doc, bool *ret_whole)
{
    const struct mu_doc_member **by_rank = calloc(doc->participants + 1, sizeof *by_rank);
    bool whole = true;

    if (by_rank == NULL)
        return MUSTER_ENOMEM;
    for (size_t i = 0; whole && i < doc->count; i++) {
        const struct mu_doc_member *member = &doc->members[i];

        if ((member->in & MU_DOC_PARTICIPANT) == 0)
            continue;
        whole = member->rank >= 0 && (uint64_t)member->rank < doc->participants && by_rank[member->rank] == NULL;
        if (whole)
            by_rank[member->rank] = member;
    }
    for (size_t i = 1; whole && i < doc->participants; i++)
        whole = mu_node_compare(&by_rank[i - 1]->node, &by_rank[i]->node) < 0;
    free(by_rank);
    *ret_whole = whole;
    return 0;
}
