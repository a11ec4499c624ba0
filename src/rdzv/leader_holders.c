/* The leader of an etcd-v3 rendezvous, see fold.h: what records say of the world that their nodes are in, or know. It
 * matters where the document was lost, and the world is to be put back. */
#include "rdzv/fold_parts.h"

#include <assert.h>

/* A node that joined wrote it before the world that we know was made. */
static bool is_outdated(const struct mu_fold *f, const struct mu_fold_record *record)
{
    return record->joining && f->known.world.id != 0 && !f->known.is_lost && record->world != f->known.world.id;
}

/* It stays in a world, or knows of one that is lost, and says of it what we know: not another round, nor another count
 * of nodes. */
bool mu_leader_is_holder(const struct mu_fold *f, const struct mu_fold_record *record)
{
    const struct mu_fold_world *known = record->world == f->world.id ? &f->world : &f->doc;

    assert(record->nodes == 0 || record->world != 0);
    if (record->nodes == 0 || is_outdated(f, record) ||
        (record->world == known->id && mu_fold_contradicts(record->round, record->nodes, known)))
        return false;
    return record->world != f->lead.members.world || record->nodes == (int64_t)f->lead.members.count;
}

/* ---- The document's world ---- */

/* Members whose world was put back say themselves which rank they have. */
void mu_leader_hear_holders(struct mu_fold *f)
{
    struct lead *l = &f->lead;
    bool more = false;

    if (!mu_fold_has(f, JOB_DOC))
        return;
    for (size_t at = 0; at < l->entries_count && !mu_fold_members_all_known(&l->members);) {
        const struct entry *entry = mu_leader_newest(f, at, &at);
        const struct mu_fold_record *record = &entry->record;
        const struct mu_fold_member member = { entry->id,
                                               { mu_slice_str(record->name), record->pid, record->local_id } };

        if (!mu_leader_is_holder(f, record) || record->world != f->doc.id || record->rank < 0)
            continue;
        assert(record->rank < (int64_t)l->members.count);
        if (l->members.items[record->rank].id != 0 || mu_fold_members_rank(&l->members, entry->id) >= 0)
            continue;
        more |= mu_fold_members_set(&l->members, (size_t)record->rank, &member) == 0;
    }
    if (more)
        (void)mu_fold_members_sort(&l->members);
}

/* Members that have lost the store say so, and which of them hosted it: that one is gone, unless it is there. */
void mu_leader_hear_of_lost_host(struct mu_fold *f)
{
    struct lead *l = &f->lead;

    for (size_t at = 0; mu_fold_has(f, JOB_DOC) && at < l->entries_count;) {
        const struct mu_fold_record *record = &mu_leader_newest(f, at, &at)->record;
        struct fate *fate;

        if (record->host.name[0] == '\0' || record->world != f->doc.id || !mu_leader_is_holder(f, record))
            continue;
        assert(record->host.rank < (int64_t)l->members.count);
        fate = &l->fates[record->host.rank];
        if (fate->gone == LEFT || fate->gone == GONE || fate->hosted ||
            mu_leader_find_node(f, l->members.items[record->host.rank].id) != NULL)
            continue;
        if (fate->gone == HERE)
            fate->gone_ms = f->now_ms;
        fate->gone = MISSING;
        fate->hosted = true;
        l->hosted = record->host;
    }
}

/* ---- A world that only records know ---- */

static bool is_better(const struct mu_fold_record *record, size_t holders, const struct mu_fold_record *best,
                      size_t best_holders)
{
    if (best == NULL || record->round != best->round)
        return best == NULL || record->round > best->round;
    return holders > best_holders;
}

/* Two that contradict each other hold two worlds, whatever they call them. */
bool mu_leader_hold_the_same(const struct mu_fold_record *a, const struct mu_fold_record *b)
{
    return a->world == b->world && a->round == b->round && a->nodes == b->nodes;
}

/* Who is, or was, in that world; *ret_hosted: its store is gone with the member that hosted it. */
static size_t count_holders(const struct mu_fold *f, const struct mu_fold_record *holder, bool *ret_hosted)
{
    size_t holders = 0;

    *ret_hosted = false;
    for (size_t at = 0; at < f->lead.entries_count;) {
        const struct mu_fold_record *record = &mu_leader_newest(f, at, &at)->record;

        if (!mu_leader_is_holder(f, record) || !mu_leader_hold_the_same(record, holder))
            continue;
        holders += record->rank >= 0;
        *ret_hosted |= record->host.name[0] != '\0';
    }
    return holders;
}

/* So many of its members can say that they are in it. */
static int64_t most_holders(const struct mu_fold_record *holder, bool hosted)
{
    return holder->nodes - hosted;
}

/* Etcd has lost the document, or somebody has overwritten it. It is put back as soon as more than half of its members
 * say that they are in it, or after a lease's time: others may be in a newer one. */
void mu_leader_put_world_back(struct mu_fold *f)
{
    struct lead *l = &f->lead;
    const struct mu_fold_record *best = NULL;
    size_t best_holders = 0;
    bool best_hosted = false;

    for (size_t at = 0; at < l->entries_count;) {
        const struct mu_fold_record *record = &mu_leader_newest(f, at, &at)->record;
        size_t holders;
        bool hosted;

        if (!mu_leader_is_holder(f, record) || (best != NULL && mu_leader_hold_the_same(record, best)))
            continue;
        holders = count_holders(f, record, &hosted);
        if (is_better(record, holders, best, best_holders)) {
            best = record;
            best_holders = holders;
            best_hosted = hosted;
        }
    }
    if (best == NULL)
        return;
    if (l->put_back_at_ms == UINT64_MAX)
        l->put_back_at_ms = f->now_ms + f->lease_ms;
    if ((int64_t)best_holders * 2 > most_holders(best, best_hosted) || mu_fold_is_due(f, l->put_back_at_ms))
        mu_leader_begin_put_back(f, best, best_hosted);
}
