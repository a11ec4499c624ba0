/* The leader of an etcd-v3 rendezvous, see fold.h: it watches the records of all nodes, and decides which worlds and
 * news are to be written (leader_write.c). Nothing here happens on a node that does not lead.
 *
 * What a leader knows of the document's world it has written itself, or read from its pages when it began to lead. If
 * pages are missing, it takes the document away: then every member says in its record which rank it has, and the world
 * is put back from that. */
#include "rdzv/fold_parts.h"

#include "base/words.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- What we know of nodes/ ---- */

static size_t lower_bound(const struct mu_fold *f, uint64_t id, uint64_t under)
{
    size_t from = 0, to = f->lead.entries_count;

    while (from < to) {
        size_t middle = from + (to - from) / 2;
        const struct entry *entry = f->lead.entries[middle];

        if (entry->id < id || (entry->id == id && entry->under < under))
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

void mu_leader_forget(struct mu_fold *f)
{
    for (size_t i = 0; i < f->lead.entries_count; i++)
        free(f->lead.entries[i]);
    f->lead.entries_count = 0;
}

/* "nodes/<id>/<lease>" */
bool mu_leader_parse_key(struct mu_slice key, uint64_t *ret_id, uint64_t *ret_under)
{
    size_t head = sizeof "nodes/" - 1, id = MU_FOLD_ID_TEXT_MAX - 1;

    return key.len == head + id + 1 + id && memcmp(key.data, "nodes/", head) == 0 && key.data[head + id] == '/' &&
           mu_fold_id_parse(mu_slice(key.data + head, id), ret_id) &&
           mu_fold_id_parse(mu_slice(key.data + head + id + 1, id), ret_under);
}

/* ---- Nodes that are done, or were killed ---- */

bool mu_leader_parse_mark(struct mu_slice key, const char *word, uint64_t *ret_id)
{
    size_t id = MU_FOLD_ID_TEXT_MAX - 1;

    return mu_slice_skip(&key, "nodes/") && key.len > id + 1 && key.data[id] == '/' &&
           mu_fold_id_parse(mu_slice(key.data, id), ret_id) &&
           mu_slice_equal(mu_slice(key.data + id + 1, key.len - id - 1), mu_slice_str(word));
}

/* A stranger's would have no lease. */
static bool is_mark(const struct mu_fold_kv *kv, uint64_t id)
{
    uint64_t who = 0;

    return !kv->deleted && kv->lease != 0 && mu_fold_mark_read(kv->value, &who, NULL) == 0 && who == id;
}

static size_t find_id(const struct ids *ids, uint64_t id)
{
    size_t from = 0, to = ids->count;

    while (from < to) {
        size_t middle = from + (to - from) / 2;

        if (ids->items[middle] < id)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static bool has_id(const struct ids *ids, uint64_t id)
{
    size_t at = find_id(ids, id);

    return at < ids->count && ids->items[at] == id;
}

/* Who is done or killed stays so, also if the mark goes. False: no memory. */
static bool note_id(struct ids *ids, uint64_t id, bool is)
{
    size_t at = find_id(ids, id);

    if (!is || has_id(ids, id) || ids->count >= MU_FOLD_NODES_MAX)
        return true;
    if (ids->count == ids->room) {
        size_t room = ids->room == 0 ? 64 : ids->room * 2;
        uint64_t *more = realloc(ids->items, room * sizeof *more);

        if (more == NULL)
            return false;
        ids->items = more;
        ids->room = room;
    }
    memmove(ids->items + at + 1, ids->items + at, (ids->count - at) * sizeof *ids->items);
    ids->items[at] = id;
    ids->count++;
    return true;
}

/* ---- Records ---- */

static bool make_room(struct mu_fold *f)
{
    size_t room = f->lead.entries_room == 0 ? 64 : f->lead.entries_room * 2;
    struct entry **entries;

    if (f->lead.entries_count < f->lead.entries_room)
        return true;
    entries = realloc(f->lead.entries, room * sizeof *entries);
    if (entries == NULL)
        return false;
    f->lead.entries = entries;
    f->lead.entries_room = room;
    return true;
}

/* Who says that it has left the document's world, or why it goes, may be gone before we fold. */
static void hear_last(struct mu_fold *f, const struct entry *entry)
{
    int64_t rank =
        mu_fold_has(f, JOB_DOC) && mu_leader_knows_members(f) ? mu_fold_members_rank(&f->lead.members, entry->id) : -1;

    if (rank < 0)
        return;
    mu_leader_hear_end(f, (size_t)rank, entry);
    if (entry->record.joining && entry->record.world == f->doc.id && f->lead.fates[rank].gone != MISSING)
        f->lead.fates[rank].gone = LEFT;
}

/* The last record of a node has gone. */
static void hear_how(struct mu_fold *f, uint64_t id, const struct mu_fold_kv *kv)
{
    int64_t rank =
        mu_fold_has(f, JOB_DOC) && mu_leader_knows_members(f) ? mu_fold_members_rank(&f->lead.members, id) : -1;

    if (rank < 0 || mu_leader_find_node(f, id) != NULL || f->lead.fates[rank].gone != HERE)
        return;
    f->lead.fates[rank].how = kv->how;
    f->lead.fates[rank].heard_ms = f->now_ms > kv->ago_ms ? f->now_ms - kv->ago_ms : 0;
}

static void remove_entry(struct mu_fold *f, size_t at)
{
    free(f->lead.entries[at]);
    f->lead.entries_count--;
    memmove(f->lead.entries + at, f->lead.entries + at + 1, (f->lead.entries_count - at) * sizeof *f->lead.entries);
}

/* False: no memory. What is no record of a node, or not under the lease in its key, is skipped: nobody would ever see
 * its end. Where it was written over a record, that record counts, and is put back. One that was overwritten while
 * nobody led is not known: its node counts as gone, and joins anew. What a node wrote earlier can come after what it
 * wrote later: it gave up waiting for a server that stood still, asked another one, and the first one goes on. */
bool mu_leader_apply(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    uint64_t id = 0, under = 0;
    struct mu_fold_record record;
    size_t at;
    bool there, stale;
    int rc = 0;

    if (mu_leader_parse_mark(kv->key, "done", &id))
        return note_id(&f->lead.done, id, is_mark(kv, id));
    if (mu_leader_parse_mark(kv->key, "killed", &id))
        return note_id(&f->lead.killed, id, is_mark(kv, id));
    if (!mu_leader_parse_key(kv->key, &id, &under) || id == 0)
        return true;
    at = lower_bound(f, id, under);
    there = at < f->lead.entries_count && f->lead.entries[at]->id == id && f->lead.entries[at]->under == under;
    if (!kv->deleted)
        rc = (uint64_t)kv->lease != under ? MUSTER_ERDZV_STATE : mu_fold_record_read(kv->value, &record, NULL);
    if (rc == MUSTER_ENOMEM)
        return false; /* it is there all the same */
    stale = rc == 0 && !kv->deleted && there && record.seq < f->lead.entries[at]->record.seq;
    if ((rc < 0 || stale) && id == f->id && under == (uint64_t)f->lease)
        f->record_is = RECORD_MISSING; /* our own is written anew */
    else if ((rc < 0 || stale) && there)
        f->lead.entries[at]->overwritten = kv->mod;
    if (rc < 0 && there && f->lead.entries[at]->overwritten == kv->mod)
        mu_fold_see_foreign(f, kv, "putting the node's record back");
    if (kv->deleted && there) {
        hear_last(f, f->lead.entries[at]);
        remove_entry(f, at);
        hear_how(f, id, kv);
    }
    if (kv->deleted || rc < 0 || stale)
        return true;
    if (!there) {
        struct entry *entry;

        if (f->lead.entries_count >= MU_FOLD_NODES_MAX)
            return true;
        entry = make_room(f) ? calloc(1, sizeof *entry) : NULL;
        if (entry == NULL)
            return false;
        memmove(f->lead.entries + at + 1, f->lead.entries + at, (f->lead.entries_count - at) * sizeof *f->lead.entries);
        f->lead.entries[at] = entry;
        f->lead.entries_count++;
    }
    *f->lead.entries[at] =
        (struct entry){ .id = id, .under = under, .create = kv->create, .mod = kv->mod, .record = record };
    return true;
}

/* False: there is nothing to put back. */
bool mu_leader_put_back(struct mu_fold *f)
{
    size_t at = 0;

    while (at < f->lead.entries_count && f->lead.entries[at]->overwritten == 0)
        at++;
    if (at == f->lead.entries_count)
        return false;
    if (!mu_fold_is_encoded(f, mu_fold_record_write(&f->lead.entries[at]->record, &f->value)))
        return true;
    f->back_id = f->lead.entries[at]->id;
    f->back_under = f->lead.entries[at]->under;
    mu_fold_name_record(f, f->back_id, f->back_under);
    mu_fold_compare(f, MU_FOLD_MOD, f->key, f->lead.entries[at]->overwritten);
    mu_fold_put(f, f->key, &f->value, (int64_t)f->back_under);
    mu_fold_send(f, RECORD_BACK);
    return true;
}

/* It is there again, or its node has written another one; or that node is gone. */
void mu_leader_end_put_back(struct mu_fold *f, bool lease_gone)
{
    size_t at = lower_bound(f, f->back_id, f->back_under);

    if (at == f->lead.entries_count || f->lead.entries[at]->id != f->back_id ||
        f->lead.entries[at]->under != f->back_under)
        return;
    f->lead.entries[at]->overwritten = 0;
    if (lease_gone)
        remove_entry(f, at);
}

/* The newest of a node's records: those of older leases are still there for a while. *ret_next: the next node's. */
const struct entry *mu_leader_newest(const struct mu_fold *f, size_t at, size_t *ret_next)
{
    const struct entry *best = f->lead.entries[at];

    while (++at < f->lead.entries_count && f->lead.entries[at]->id == best->id)
        if (f->lead.entries[at]->record.seq > best->record.seq)
            best = f->lead.entries[at];
    *ret_next = at;
    return best;
}

const struct entry *mu_leader_find_node(const struct mu_fold *f, uint64_t id)
{
    size_t at = lower_bound(f, id, 0), next;

    return at < f->lead.entries_count && f->lead.entries[at]->id == id ? mu_leader_newest(f, at, &next) : NULL;
}

/* ---- Who is in the document's world ---- */

/* Of those who say the same the first counts. */
static void hear_said(struct said *said, const struct mu_fold_end *end, size_t rank, uint64_t now_ms)
{
    if (said->end.kind != MU_FOLD_END_NONE && said->end.at <= end->at)
        return;
    if (said->end.kind == MU_FOLD_END_NONE)
        said->ms = now_ms;
    said->end = *end;
    said->rank = rank;
}

/* What a member says of its end in this world. */
void mu_leader_hear_end(struct mu_fold *f, size_t rank, const struct entry *entry)
{
    struct fate *fate = &f->lead.fates[rank];
    struct mu_fold_end end = entry->record.end;

    if (end.kind == MU_FOLD_END_NONE || end.world != f->doc.id)
        return;
    if (mu_fold_end_is_goodbye(end.kind) && fate->end != end.kind)
        fate->gone_ms = f->now_ms;
    fate->end = end.kind;
    if (end.at == 0)
        end.at = entry->mod;
    hear_said(&f->lead.said[end.kind], &end, rank, f->now_ms);
}

/* Gone without having said why. A worker that had failed before is why. */
bool mu_leader_is_lost(const struct fate *fate)
{
    if (fate->done)
        return false;
    return fate->end == MU_FOLD_END_LOST ||
           (fate->gone == MISSING && (fate->end == MU_FOLD_END_NONE || fate->end == MU_FOLD_END_AGAIN));
}

static bool ends_round(const struct fate *fate)
{
    return !fate->done && (fate->gone != HERE || fate->end == MU_FOLD_END_FAILED || fate->end == MU_FOLD_END_AGAIN ||
                           fate->end == MU_FOLD_END_LOST);
}

static void judge_member(struct mu_fold *f, size_t rank, const struct entry *entry, bool grace)
{
    struct fate *fate = &f->lead.fates[rank];
    uint64_t id = f->lead.members.items[rank].id;
    bool is_us = id == f->id && f->world.id == f->doc.id; /* whatever has become of our record */
    bool was_here = fate->gone == HERE;

    fate->done |= id != 0 && has_id(&f->lead.done, id);
    if (fate->gone == LEFT || fate->gone == MISSING)
        return;
    if (entry != NULL) {
        /* Of a world that was put back, members have said that they are in it by now. */
        bool is_late = !grace && f->lead.was_put_back == f->doc.id && entry->record.joining;

        if (is_late || entry->record.joining == (entry->record.world == f->doc.id))
            fate->gone = LEFT;
        return;
    }
    if ((grace && !mu_fold_end_is_goodbye(fate->end)) || is_us)
        return;
    fate->gone = MISSING;
    if (was_here && !mu_fold_end_is_goodbye(fate->end)) /* else that was noticed before */
        fate->gone_ms = f->now_ms;
}

/* Who is in, by the records. In the time of grace a record that is missing does not count. When a round is over, those
 * who are done are not waited for. */
static void judge_members(struct mu_fold *f, struct folded *folded)
{
    struct lead *l = &f->lead;
    size_t awaited = 0;
    bool grace = !mu_fold_is_due(f, f->grace_until_ms);

    folded->all_done = mu_fold_has(f, JOB_DOC);
    for (size_t i = 0; mu_fold_has(f, JOB_DOC) && i < l->members.count; i++) {
        uint64_t id = l->members.items[i].id;
        const struct entry *entry = id != 0 ? mu_leader_find_node(f, id) : NULL;
        const struct fate *fate = &l->fates[i];

        if (entry != NULL)
            mu_leader_hear_end(f, i, entry);
        judge_member(f, i, entry, grace);
        folded->in += fate->gone == HERE;
        folded->unknown += fate->gone == HERE && entry == NULL;
        awaited += fate->gone == HERE && !fate->done;
        folded->all_done &= fate->done;
        folded->over |= ends_round(fate);
    }
    if (folded->over && awaited == 0)
        folded->in = folded->unknown = 0;
}

/* The host; with the pid, where another member is on the same one. */
void mu_leader_name_member(const struct mu_fold_members *members, const struct mu_node *node,
                           char text[static MU_FOLD_SHOWN_MAX])
{
    char pid[32] = "";
    size_t same = 0;

    for (size_t i = 0; i < members->count; i++)
        same +=
            mu_slice_equal(members->items[i].node.name, node->name) && !mu_node_equal(&members->items[i].node, node);
    if (same > 0)
        (void)snprintf(pid, sizeof pid, " (pid %" PRId64 ")", node->pid);
    (void)mu_words_plain(node->name, text, MU_FOLD_SHOWN_MAX - strlen(pid));
    memcpy(text + strlen(text), pid, strlen(pid) + 1);
}

static const char agent_killed[] = "its agent was killed";

/* NULL: not known. A keeper's mark names a node, and nobody can tell which one an unknown member was. */
static const char *how_lost(const struct mu_fold *f, size_t rank)
{
    const struct fate *fate = &f->lead.fates[rank];

    if (fate->hosted)
        return MU_FOLD_HOST_REPLACED;
    if (f->lead.members.items[rank].id == 0)
        return NULL;
    if (fate->end == MU_FOLD_END_LOST)
        return f->lead.said[MU_FOLD_END_LOST].end.text;
    if (has_id(&f->lead.killed, f->lead.members.items[rank].id))
        return agent_killed;
    switch (fate->how) {
    case MU_FOLD_HOW_RESET:
        return "its connection was closed";
    case MU_FOLD_HOW_REVOKED:
        return "its lease was ended";
    case MU_FOLD_HOW_SILENT:
        return f->how_lost;
    case MU_FOLD_HOW_UNKNOWN:
        break;
    }
    /* With the engine, we have not seen it. etcd tells only that the record went; then nearly always its lease has run
     * out. A record whose lease was revoked by hand, without a mark, cannot be told from that. */
    return f->tells_how ? NULL : f->how_lost;
}

/* It can have made another node's worker fail: where somebody tells when it was last heard, by that; else by when it
 * was seen that its lease had ended. */
static bool is_cause(const struct mu_fold *f, const struct fate *fate, const struct said *failed)
{
    if (failed->end.kind == MU_FOLD_END_NONE)
        return true;
    if (fate->how != MU_FOLD_HOW_UNKNOWN)
        return mu_attribution_is_cause(fate->heard_ms, failed->ms, 0);
    return mu_attribution_is_cause(fate->gone_ms, failed->ms, f->lease_ms);
}

static void attribute_loss(const struct mu_fold *f, struct mu_attribution *why)
{
    const struct lead *l = &f->lead;
    const struct said *failed = &l->said[MU_FOLD_END_FAILED];
    bool one_way = true;

    for (size_t i = 0; i < l->members.count; i++) {
        const struct mu_fold_member *member = &l->members.items[i];
        const char *how = how_lost(f, i);

        if (!mu_leader_is_lost(&l->fates[i]) || !is_cause(f, &l->fates[i], failed))
            continue;
        if (why->lost < MU_ATTRIBUTION_NAMED && member->id != 0)
            mu_leader_name_member(&l->members, &member->node, why->lost_names[why->lost]);
        else if (why->lost < MU_ATTRIBUTION_NAMED && l->fates[i].hosted)
            (void)snprintf(why->lost_names[why->lost], sizeof why->lost_names[0], "%s", l->hosted.name);
        one_way &= how != NULL && (why->lost == 0 || (why->how != NULL && strcmp(why->how, how) == 0));
        why->how = how;
        why->lost++;
    }
    if (!one_way)
        why->how = NULL;
    else if (why->lost > 1 && why->how == agent_killed)
        why->how = "their agents were killed";
}

/* The first of what members have reported. */
static enum mu_attribution_first find_first(const struct lead *l)
{
    static const enum mu_attribution_first firsts[] = { [MU_FOLD_END_FAILED] = MU_ATTRIBUTION_FAILED,
                                                        [MU_FOLD_END_AGAIN] = MU_ATTRIBUTION_AGAIN,
                                                        [MU_FOLD_END_LEFT] = MU_ATTRIBUTION_LEFT };
    const struct said *first = NULL;

    for (enum mu_fold_end_kind kind = MU_FOLD_END_FAILED; kind < MU_FOLD_END_LOST; kind++) {
        const struct said *said = &l->said[kind];

        if (said->end.kind != MU_FOLD_END_NONE && kind != MU_FOLD_END_DONE &&
            (first == NULL || said->end.at < first->end.at))
            first = said;
    }
    return first == NULL ? MU_ATTRIBUTION_NOTHING : firsts[first->end.kind];
}

/* Why the document's world is over, as far as it is known. */
static void attribute(const struct mu_fold *f, struct folded *folded)
{
    const struct lead *l = &f->lead;
    const struct said *failed = &l->said[MU_FOLD_END_FAILED], *left = &l->said[MU_FOLD_END_LEFT];
    struct mu_attribution *why = &folded->why;

    if (mu_fold_has(f, JOB_DOC)) {
        attribute_loss(f, why);
        why->first = find_first(l);
    }
    why->failed = mu_fold_has(f, JOB_DOC) && failed->end.kind != MU_FOLD_END_NONE;
    if (why->failed) {
        why->failed_rank = failed->end.rank;
        mu_leader_name_member(&l->members, &l->members.items[failed->rank].node, why->failed_node);
        (void)snprintf(why->failed_text, sizeof why->failed_text, "%s", failed->end.text);
    }
    if (why->first == MU_ATTRIBUTION_LEFT) {
        mu_leader_name_member(&l->members, &l->members.items[left->rank].node, why->left_node);
        (void)snprintf(why->left_text, sizeof why->left_text, "%s", left->end.text);
    }
}

static void name_newcomers(const struct mu_fold *f, struct folded *folded)
{
    struct mu_attribution *why = &folded->why;

    for (size_t i = 0; i < folded->count; i++) {
        const struct mu_fold_record *record = &folded->candidates[i].entry->record;
        const struct mu_node node = { mu_slice_str(record->name), record->pid, record->local_id };

        if (folded->candidates[i].place == INT64_MAX && why->newcomers++ == 0)
            mu_leader_name_member(&f->lead.members, &node, why->newcomer);
    }
    if (mu_fold_has_outsiders(f) && why->newcomers++ == 0)
        (void)snprintf(why->newcomer, sizeof why->newcomer, MU_FOLD_OUTSIDER);
}

/* ---- Who could be in the next one ---- */

static int by_claim(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;

    if (left->place != right->place)
        return left->place < right->place ? -1 : 1;
    if (left->entry->create != right->entry->create)
        return left->entry->create < right->entry->create ? -1 : 1;
    return left->entry->id < right->entry->id ? -1 : left->entry->id > right->entry->id;
}

static void narrow(struct folded *folded, const struct mu_fold_record *record)
{
    if (record->nodes_min > folded->nodes_min)
        folded->nodes_min = record->nodes_min;
    if (record->nodes_max < folded->nodes_max)
        folded->nodes_max = record->nodes_max;
}

static bool goes_together(const struct folded *folded, const struct mu_fold_record *record)
{
    struct folded both = *folded;

    narrow(&both, record);
    return both.nodes_min <= both.nodes_max;
}

/* A newcomer that allows so few nodes that there is no place for itself does not narrow the others' limits. */
static bool has_place(const struct folded *folded, const struct mu_fold_record *record, size_t kept)
{
    return record->nodes_max >= folded->nodes_max || (int64_t)(folded->in + kept) < record->nodes_max;
}

/* In the order of their claims, the newcomers that go together with whoever is in or back, and with each other. How
 * many are candidates then. */
static size_t let_in(struct folded *folded, int64_t nodes_min, int64_t nodes_max)
{
    size_t kept = folded->back;

    folded->nodes_min = nodes_min;
    folded->nodes_max = nodes_max;
    for (size_t i = folded->back; i < folded->count; i++) {
        struct candidate *newcomer = &folded->candidates[i];
        const struct mu_fold_record *record = &newcomer->entry->record;

        newcomer->out = newcomer->wants_more || folded->unknown > 0 || !goes_together(folded, record) ||
                        !has_place(folded, record, kept);
        if (newcomer->out)
            continue;
        narrow(folded, record);
        kept++;
    }
    return kept;
}

/* Marks newcomers that were let in and want more than so many nodes. False: there are none. */
static bool mark_wanting(struct folded *folded, int64_t nodes)
{
    bool any = false;

    for (size_t i = folded->back; i < folded->count; i++) {
        struct candidate *newcomer = &folded->candidates[i];

        if (newcomer->out || newcomer->entry->record.nodes_min <= nodes)
            continue;
        newcomer->wants_more = any = true;
    }
    return any;
}

/* Nobody's limits may end a round that others have, or keep them from the next: whoever is in or back comes first, and
 * a newcomer is left out if its limits contradict theirs, or if it wants more nodes than there are. For the first
 * round, and when nobody else is there, it is waited for more. */
static void leave_out(const struct mu_fold *f, struct folded *folded)
{
    int64_t nodes_min = folded->nodes_min, nodes_max = folded->nodes_max;
    size_t kept = let_in(folded, nodes_min, nodes_max), count = 0;

    while (mu_fold_has(f, JOB_DOC) && mark_wanting(folded, (int64_t)(folded->in + kept)))
        kept = let_in(folded, nodes_min, nodes_max);
    if (folded->in + kept == 0) {
        for (size_t i = 0; i < folded->count; i++)
            folded->candidates[i].wants_more = false;
        (void)let_in(folded, nodes_min, nodes_max);
    }
    for (size_t i = 0; i < folded->count; i++) {
        if (!folded->candidates[i].out)
            folded->candidates[count++] = folded->candidates[i];
        else
            folded->apart += !goes_together(folded, &folded->candidates[i].entry->record);
    }
    folded->out = folded->count - count;
    folded->count = count;
}

static void find_candidates(struct mu_fold *f, struct folded *folded)
{
    for (size_t at = 0; at < f->lead.entries_count;) {
        const struct entry *entry = mu_leader_newest(f, at, &at);
        int64_t rank = mu_fold_has(f, JOB_DOC) ? mu_fold_members_rank(&f->lead.members, entry->id) : -1;
        bool in = rank >= 0 && f->lead.fates[rank].gone == HERE;

        folded->holders += mu_leader_is_holder(f, &entry->record);
        if (!in && has_id(&f->lead.done, entry->id)) /* what is left of it under an older lease */
            continue;
        if (in || (rank >= 0 && entry->record.joining))
            narrow(folded, &entry->record);
        if (in || !entry->record.joining)
            continue;
        folded->back += rank >= 0;
        folded->candidates[folded->count++] =
            (struct candidate){ .entry = entry, .place = rank >= 0 ? rank : INT64_MAX };
    }
    qsort(folded->candidates, folded->count, sizeof *folded->candidates, by_claim);
    leave_out(f, folded);
}

/* After rounds that failed right after their start there is a pause. */
static bool is_paused(struct mu_fold *f, struct folded *folded)
{
    uint64_t failed_ms = f->lead.said[MU_FOLD_END_FAILED].ms, until_ms;

    if (!mu_fold_has(f, JOB_DOC) || mu_attribution_cost(&folded->why) == 0)
        return false;
    until_ms = failed_ms + mu_slowdown_pause_ms(mu_slowdown_crashes(f->doc.crashes, failed_ms - f->doc_since_ms));
    if (mu_fold_is_due(f, until_ms))
        return false;
    folded->paused_until_ms = until_ms;
    return true;
}

/* Whether the next round is to begin now. */
static bool is_complete(struct mu_fold *f, struct folded *folded)
{
    int64_t count = (int64_t)folded->count;

    bool awaits_doc = !mu_fold_has(f, JOB_DOC) && (folded->holders > 0 || !mu_fold_is_due(f, f->grace_until_ms));

    if (mu_fold_has(f, JOB_CLOSED) || folded->in > 0 || awaits_doc || count < folded->nodes_min ||
        folded->nodes_min > folded->nodes_max) {
        f->call_since_ms = UINT64_MAX;
        return false;
    }
    if (f->call_since_ms == UINT64_MAX)
        f->call_since_ms = f->now_ms;
    if (is_paused(f, folded))
        return false;
    if (count >= folded->nodes_max)
        return true;
    /* Nobody is in the last world any more: who is not back is gone. */
    if (mu_fold_has(f, JOB_DOC) && folded->back > 0 &&
        ((int64_t)folded->back == f->doc.nodes || mu_fold_is_due(f, f->call_since_ms + f->settings.lost_node_wait_ms)))
        return true;
    return mu_fold_is_due(f, f->call_since_ms + f->settings.last_call_ms);
}

/* ---- The end of the job ---- */

/* All are done; or there is no restart left for a failure, and nobody is in the round any more: by then its cause is
 * known. */
static bool ends_job(struct mu_fold *f, const struct folded *folded)
{
    int64_t cost = mu_attribution_cost(&folded->why);
    /* Nor does it wait longer than a loss takes to be noticed. */
    bool waits =
        folded->in > 0 &&
        (cost == 0 || !mu_fold_is_due(f, f->lead.said[MU_FOLD_END_FAILED].ms + f->lease_ms + MU_ATTRIBUTION_LATE_MS));
    char cause[MU_FOLD_CAUSE_MAX] = "";

    if (!mu_fold_has(f, JOB_DOC) || mu_fold_has(f, JOB_CLOSED))
        return false;
    if (!folded->all_done && (waits || cost == 0 || mu_leader_used(f) + cost <= f->doc.max_restarts))
        return false;
    if (!folded->all_done)
        mu_attribution_end(&folded->why, f->doc.max_restarts, cause);
    mu_leader_write_end(f, folded->all_done, cause);
    return true;
}

/* ---- Folding ---- */

static void fold_records(struct mu_fold *f, struct folded *folded)
{
    struct lead *l = &f->lead;

    assert(!mu_fold_has(f, JOB_DOC) ||
           (l->members.world == f->doc.id && (int64_t)l->members.count == f->doc.nodes && !l->pages_broken));
    mu_leader_hear_holders(f);
    mu_leader_hear_of_lost_host(f);
    judge_members(f, folded);
    find_candidates(f, folded);
    attribute(f, folded);
    mu_leader_end_stays(f, folded);
    mu_leader_hold_off(f, folded);
    name_newcomers(f, folded);
    if (ends_job(f, folded))
        return;
    if (!mu_fold_has(f, JOB_DOC) && folded->holders > 0)
        mu_leader_put_world_back(f);
    else
        l->put_back_at_ms = UINT64_MAX;
    if (l->next.id == 0 && mu_leader_move(f, folded))
        return;
    if (l->next.id == 0 && is_complete(f, folded))
        mu_leader_begin_world(f, folded);
    if (l->next.id != 0)
        mu_leader_write_batch(f);
    else
        mu_leader_write_news(f, folded);
}

void mu_leader_fold(struct mu_fold *f)
{
    struct folded folded = { .nodes_min = 1, .nodes_max = INT64_MAX };
    struct lead *l = &f->lead;

    if (f->seen[JOB_DOC].value == KEY_OTHER)
        return;
    if (l->next.id != 0) {
        mu_leader_write_batch(f);
        return;
    }
    if (mu_fold_has(f, JOB_DOC) && !mu_leader_knows_members(f))
        l->pages_read = false;
    if (!l->pages_read) {
        mu_leader_ask_pages(f);
        return;
    }
    if (mu_fold_has(f, JOB_DOC) && l->pages_broken) {
        mu_leader_write_no_doc(f);
        return;
    }
    if (!mu_fold_is_due(f, l->fold_at_ms))
        return;
    l->fold_at_ms = f->now_ms + l->entries_count / MU_FOLD_FOLDS_A_MS;
    folded.candidates = calloc(l->entries_count + 1, sizeof *folded.candidates);
    if (folded.candidates == NULL) {
        (void)mu_fold_is_due(f, f->now_ms + MU_FOLD_RETRY_MAX_MS);
        return;
    }
    fold_records(f, &folded);
    free(folded.candidates);
}

static void begin_to_lead(struct mu_fold *f)
{
    if (f->seen[JOB_LEADER].mod != f->call_leader)
        f->call_since_ms = f->lead.put_back_at_ms = UINT64_MAX;
    f->call_leader = f->seen[JOB_LEADER].mod;
    f->keep_at_ms = f->now_ms;
    f->news_at_ms = f->lead.fold_at_ms = 0;
    f->lead.pages_read = false;
    mu_fold_distrust(&f->nodes);
    (void)mu_fold_emit(f, MU_FOLD_DO_LEADER);
}

/* Others lead then, and may see that a member is there which we took for gone: only what the news say stays so. */
static void forget_who_is_gone(struct mu_fold *f)
{
    struct lead *l = &f->lead;

    for (size_t i = 0; i < l->fates_count; i++) {
        bool is_told =
            mu_fold_has_news(f) && f->news.world == l->members.world && mu_fold_news_gone(&f->news, (int64_t)i);

        if (!is_told)
            l->fates[i] = (struct fate){ .gone = HERE, .done = l->fates[i].done, .end = l->fates[i].end };
    }
}

/* All of it is read anew when we lead again. Who was in the world is remembered, and who was done: etcd may have lost
 * that. */
static void end_to_lead(struct mu_fold *f)
{
    forget_who_is_gone(f);
    mu_fold_distrust(&f->nodes);
    mu_leader_forget(f);
    mu_leader_give_up_world(f);
    f->lead.pages_id = 0;
    mu_fold_emit(f, MU_FOLD_DO_UNWATCH)->scope = MU_FOLD_NODES;
}

void mu_leader_drive(struct mu_fold *f)
{
    bool leader = mu_fold_is_leader(f);
    int64_t lease = mu_fold_job_lease(f);

    if (leader && !f->was_leader)
        begin_to_lead(f);
    else if (!leader && f->was_leader)
        end_to_lead(f);
    f->was_leader = leader;
    if (!leader || !mu_fold_is_due(f, f->retry_at_ms))
        return;
    if (!f->nodes.loaded && f->nodes.load_id == 0)
        mu_fold_load(f, &f->nodes, MU_FOLD_NODES);
    if (lease != 0 && f->keep_id == 0 && mu_fold_is_due(f, f->keep_at_ms)) {
        f->keep_lease = lease;
        mu_fold_request(f, MU_FOLD_DO_KEEP_JOB, &f->keep_id)->lease = lease;
    }
}

void mu_leader_done(struct mu_fold *f)
{
    mu_leader_forget(f);
    mu_leader_give_up_world(f);
    mu_leader_forget_members(&f->lead);
    mu_slowdown_done(&f->lead.slowdown);
    free(f->lead.done.items);
    free(f->lead.killed.items);
    free(f->lead.entries);
    mu_buf_done(&f->lead.text);
}
