/* The leader of an etcd-v3 rendezvous, see fold.h and leader.c: how members' stays in a round ended, and who is held
 * off because it comes and goes (slowdown.h). */
#include "rdzv/fold_parts.h"

/* A stay that ended by the member's own doing. */
static void note_stay(struct mu_fold *f, size_t rank, uint64_t until_ms)
{
    const struct mu_fold_member *member = &f->lead.members.items[rank];
    const struct mu_slowdown_stay stay = { .id = member->id,
                                           .name = member->node.name.data,
                                           .since = f->seen[JOB_DOC].mod,
                                           .lasted_ms = until_ms > f->doc_since_ms ? until_ms - f->doc_since_ms : 0,
                                           .ended_ms = until_ms };

    mu_slowdown_ended(&f->lead.slowdown, &stay);
}

/* Once nobody is in the round, its stays have ended, and why it is over is known. What a member did counts as one end:
 * that its worker failed does if that was the cause, and that it was lost or left does also if the round was over. All
 * other stays were ended by others. */
void mu_leader_end_stays(struct mu_fold *f, const struct folded *folded)
{
    struct lead *l = &f->lead;
    const struct said *failed = &l->said[MU_FOLD_END_FAILED];
    bool charged = mu_attribution_cost(&folded->why) > 0;

    if (!mu_fold_has(f, JOB_DOC) || folded->in > 0 || l->stays_ended)
        return;
    l->stays_ended = true;
    for (size_t i = 0; i < l->members.count; i++) {
        if (l->members.items[i].id == 0)
            continue;
        if (charged && i == failed->rank)
            note_stay(f, i, failed->ms);
        else if (mu_leader_is_lost(&l->fates[i]) || mu_fold_end_is_goodbye(l->fates[i].end))
            note_stay(f, i, l->fates[i].gone_ms);
        else
            mu_slowdown_ended_by_others(&l->slowdown, l->members.items[i].id);
    }
}

/* Agents that were started anew take up what is remembered of them. */
static void recognize(struct mu_fold *f, const struct folded *folded)
{
    struct mu_slowdown *slowdown = &f->lead.slowdown;

    for (size_t i = 0; i < MU_SLOWDOWN_NODES_MAX; i++) {
        struct mu_slowdown_node *node = &slowdown->nodes[i];
        bool counts_yet =
            mu_fold_has(f, JOB_DOC) && !f->lead.stays_ended && mu_fold_members_rank(&f->lead.members, node->id) >= 0;

        node->here = counts_yet || mu_leader_find_node(f, node->id) != NULL;
    }
    for (size_t i = 0; i < folded->count; i++) {
        const struct entry *entry = folded->candidates[i].entry;

        if (folded->candidates[i].place == INT64_MAX)
            mu_slowdown_came(slowdown, entry->id, entry->record.name, entry->create);
    }
}

/* Nodes that come and go are held off for a while, as long as the others are enough. */
void mu_leader_hold_off(struct mu_fold *f, struct folded *folded)
{
    const struct mu_slowdown *slowdown = &f->lead.slowdown;
    size_t held = 0, count = 0;

    if (slowdown->nodes == NULL)
        return;
    recognize(f, folded);
    for (size_t i = 0; i < folded->count; i++) {
        struct candidate *candidate = &folded->candidates[i];
        uint64_t until_ms = mu_slowdown_until_ms(slowdown, candidate->entry->id);

        candidate->out = until_ms > f->now_ms && !mu_fold_is_due(f, until_ms);
        if (candidate->out && held++ == 0) {
            folded->held = candidate->entry->record.name;
            folded->held_until_ms = until_ms;
        }
    }
    if (held == 0 || (int64_t)(folded->in + folded->count - held) < folded->nodes_min) {
        folded->held = NULL;
        return;
    }
    for (size_t i = 0; i < folded->count; i++) {
        folded->back -= folded->candidates[i].out && folded->candidates[i].place != INT64_MAX;
        if (!folded->candidates[i].out)
            folded->candidates[count++] = folded->candidates[i];
    }
    folded->count = count;
    folded->out += held;
}
