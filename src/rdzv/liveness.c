#include "rdzv/liveness.h"

#include <stdlib.h>

void mu_liveness_init(struct mu_liveness *sights, struct mu_hash_seed seed, struct mu_doc_dialect dialect)
{
    *sights = (struct mu_liveness){ 0 };
    mu_doc_init(&sights->doc, seed, dialect);
}

void mu_liveness_done(struct mu_liveness *sights)
{
    mu_doc_done(&sights->doc);
    free(sights->items);
    sights->items = NULL;
}

/* A member without a heartbeat counts as one that is always the same. */
static int64_t heartbeat_of(const struct mu_doc_member *member)
{
    return (member->in & MU_DOC_HEARTBEAT) != 0 ? member->heartbeat_us : INT64_MIN;
}

/* Where `node` stood in the last document; most often where it stands in this one. */
static const struct mu_last_seen *last_sight(const struct mu_liveness *sights, const struct mu_node *node, size_t hint)
{
    const struct mu_doc_member *member = NULL;

    if (hint < sights->doc.count && mu_node_equal(&sights->doc.members[hint].node, node))
        return &sights->items[hint];
    member = mu_doc_find(&sights->doc, node);
    return member != NULL ? &sights->items[member - sights->doc.members] : NULL;
}

int mu_liveness_see(struct mu_liveness *sights, struct mu_doc *fresh, uint64_t sent_ms, uint64_t now_ms,
                    uint64_t gap_ms)
{
    bool looked_away = !sights->any || now_ms - sights->seen_ms > gap_ms;
    struct mu_last_seen *items = malloc((fresh->count + 1) * sizeof *items);

    if (items == NULL)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < fresh->count; i++) {
        int64_t heartbeat = heartbeat_of(&fresh->members[i]);
        const struct mu_last_seen *last = last_sight(sights, &fresh->members[i].node, i);
        bool same = last != NULL && last->heartbeat_us == heartbeat;

        items[i] = (struct mu_last_seen){
            .heartbeat_us = heartbeat,
            .since_ms = same && !looked_away ? last->since_ms : now_ms,
            .changed_ms = same ? last->changed_ms : now_ms,
        };
    }
    free(sights->items);
    sights->items = items;
    mu_doc_swap(&sights->doc, fresh);
    sights->any = true;
    sights->seen_ms = now_ms;
    sights->sent_ms = sent_ms;
    return 0;
}

void mu_liveness_interrupt(struct mu_liveness *sights, uint64_t now_ms)
{
    for (size_t i = 0; i < sights->doc.count; i++)
        sights->items[i].since_ms = now_ms;
}

size_t mu_liveness_dead(const struct mu_liveness *sights, const struct mu_node *me, uint64_t age_ms,
                        struct mu_node *ret_dead)
{
    size_t count = 0;

    for (size_t i = 0; i < sights->doc.count; i++) {
        const struct mu_last_seen *sight = &sights->items[i];
        const struct mu_node *node = &sights->doc.members[i].node;

        /* What an answer shows was so at some time after it was asked for. */
        if (sights->sent_ms >= sight->since_ms && sights->sent_ms - sight->since_ms >= age_ms &&
            !mu_node_equal(node, me))
            ret_dead[count++] = *node;
    }
    return count;
}

static int64_t advanced(int64_t time_us, uint64_t since_ms, uint64_t now_ms)
{
    int64_t now_us = time_us + (int64_t)(now_ms - since_ms) * 1000;

    return now_us < MU_DOC_TIME_MAX ? now_us : MU_DOC_TIME_MAX;
}

int64_t mu_liveness_time(const struct mu_liveness *sights, const struct mu_node *me, uint64_t now_ms, int64_t own_us,
                         uint64_t own_ms, int64_t wall_us)
{
    bool any_theirs = false, any_ours = own_us != 0;
    int64_t theirs = 0, ours = any_ours ? advanced(own_us, own_ms, now_ms) : 0;

    for (size_t i = 0; i < sights->doc.count; i++) {
        const struct mu_doc_member *member = &sights->doc.members[i];
        int64_t time_us = 0;

        if ((member->in & MU_DOC_HEARTBEAT) == 0 || mu_node_equal(&member->node, me))
            continue;
        time_us = advanced(member->heartbeat_us, sights->items[i].changed_ms, now_ms);
        if (mu_node_is_ours(&member->node)) {
            ours = !any_ours || time_us > ours ? time_us : ours;
            any_ours = true;
        } else {
            theirs = !any_theirs || time_us > theirs ? time_us : theirs;
            any_theirs = true;
        }
    }
    if (any_theirs)
        return theirs;
    return any_ours ? ours : wall_us;
}
