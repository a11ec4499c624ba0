/* The leader of an etcd-v3 rendezvous, see fold.h: it watches the records of all nodes and writes worlds and news.
 * Nothing here happens on a node that does not lead. */
#include "rdzv/fold_parts.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- What we know of nodes/ ---- */

static size_t lower_bound(const struct mu_fold *f, uint64_t id, uint64_t under)
{
    size_t from = 0, to = f->entries_count;

    while (from < to) {
        size_t middle = from + (to - from) / 2;
        const struct entry *entry = f->entries[middle];

        if (entry->id < id || (entry->id == id && entry->under < under))
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

void mu_leader_forget(struct mu_fold *f)
{
    for (size_t i = 0; i < f->entries_count; i++)
        free(f->entries[i]);
    f->entries_count = 0;
}

/* "nodes/<id>/<lease>" */
bool mu_leader_parse_key(struct mu_slice key, uint64_t *ret_id, uint64_t *ret_under)
{
    size_t head = sizeof "nodes/" - 1, id = MU_FOLD_ID_TEXT_MAX - 1;

    return key.len == head + id + 1 + id && memcmp(key.data, "nodes/", head) == 0 && key.data[head + id] == '/' &&
           mu_fold_id_parse(mu_slice(key.data + head, id), ret_id) &&
           mu_fold_id_parse(mu_slice(key.data + head + id + 1, id), ret_under);
}

static bool make_room(struct mu_fold *f)
{
    size_t room = f->entries_room == 0 ? 64 : f->entries_room * 2;
    struct entry **entries;

    if (f->entries_count < f->entries_room)
        return true;
    entries = realloc(f->entries, room * sizeof *entries);
    if (entries == NULL)
        return false;
    f->entries = entries;
    f->entries_room = room;
    return true;
}

static void remove_entry(struct mu_fold *f, size_t at)
{
    free(f->entries[at]);
    f->entries_count--;
    memmove(f->entries + at, f->entries + at + 1, (f->entries_count - at) * sizeof *f->entries);
}

/* False: no memory. What is no record of a node, or not under the lease in its key, is skipped: nobody would ever see
 * its end. Where it was written over a record, that record counts, and is put back. One that was overwritten while
 * nobody led is not known: its node counts as gone, and joins anew. */
bool mu_leader_apply(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    uint64_t id = 0, under = 0;
    struct mu_fold_record record;
    size_t at;
    bool there;
    int rc = 0;

    if (!mu_leader_parse_key(kv->key, &id, &under) || id == 0)
        return true;
    at = lower_bound(f, id, under);
    there = at < f->entries_count && f->entries[at]->id == id && f->entries[at]->under == under;
    if (!kv->deleted)
        rc = (uint64_t)kv->lease != under ? MUSTER_ERDZV_STATE : mu_fold_record_read(kv->value, &record, NULL);
    if (rc == MUSTER_ENOMEM)
        return false; /* it is there all the same */
    if (rc < 0 && id == f->id && under == (uint64_t)f->lease)
        f->record_is = RECORD_MISSING; /* our own is written anew */
    else if (rc < 0 && there) {
        f->entries[at]->overwritten = kv->mod;
        mu_fold_see_foreign(f, kv, "putting the node's record back");
    }
    if (kv->deleted && there)
        remove_entry(f, at);
    if (kv->deleted || rc < 0)
        return true;
    if (!there) {
        struct entry *entry;

        if (f->entries_count >= MU_FOLD_NODES_MAX)
            return true;
        entry = make_room(f) ? calloc(1, sizeof *entry) : NULL;
        if (entry == NULL)
            return false;
        memmove(f->entries + at + 1, f->entries + at, (f->entries_count - at) * sizeof *f->entries);
        f->entries[at] = entry;
        f->entries_count++;
    }
    *f->entries[at] = (struct entry){ .id = id, .under = under, .create = kv->create, .record = record };
    return true;
}

/* False: there is nothing to put back. */
bool mu_leader_put_back(struct mu_fold *f)
{
    size_t at = 0;

    while (at < f->entries_count && f->entries[at]->overwritten == 0)
        at++;
    if (at == f->entries_count)
        return false;
    if (!mu_fold_is_encoded(f, mu_fold_record_write(&f->entries[at]->record, &f->value)))
        return true;
    f->back_id = f->entries[at]->id;
    f->back_under = f->entries[at]->under;
    mu_fold_name_record(f, f->back_id, f->back_under);
    mu_fold_compare(f, MU_FOLD_MOD, f->key, f->entries[at]->overwritten);
    mu_fold_put(f, f->key, &f->value, (int64_t)f->back_under);
    mu_fold_send(f, RECORD_BACK);
    return true;
}

/* It is there again, or its node has written another one; or that node is gone. */
void mu_leader_end_put_back(struct mu_fold *f, bool lease_gone)
{
    size_t at = lower_bound(f, f->back_id, f->back_under);

    if (at == f->entries_count || f->entries[at]->id != f->back_id || f->entries[at]->under != f->back_under)
        return;
    f->entries[at]->overwritten = 0;
    if (lease_gone)
        remove_entry(f, at);
}

/* The newest of a node's records: those of older leases are still there for a while. *ret_next: the next node's. */
static const struct entry *newest(const struct mu_fold *f, size_t at, size_t *ret_next)
{
    const struct entry *best = f->entries[at];

    while (++at < f->entries_count && f->entries[at]->id == best->id)
        if (f->entries[at]->record.seq > best->record.seq)
            best = f->entries[at];
    *ret_next = at;
    return best;
}

static const struct entry *find_node(const struct mu_fold *f, uint64_t id)
{
    size_t at = lower_bound(f, id, 0), next;

    return at < f->entries_count && f->entries[at]->id == id ? newest(f, at, &next) : NULL;
}

/* What the leader remembers of the members begins anew with what the news say. False: no memory. */
bool mu_leader_renew_gone(struct mu_fold *f)
{
    bool *gone = calloc(f->doc.count + 1, sizeof *gone);

    if (gone == NULL)
        return false;
    free(f->gone);
    f->gone = gone;
    for (size_t i = 0; mu_fold_has(f, JOB_NEWS) && f->news.world == f->doc.id && i < f->news.gone_count; i++)
        if (f->news.gone[i] < f->doc.count)
            f->gone[f->news.gone[i]] = true;
    return true;
}

/* ---- Folding ---- */

struct candidate {
    const struct entry *entry;
    int64_t place; /* its rank of before; INT64_MAX: none */
    bool out, wants_more;
};

struct folded {
    size_t in;                    /* members who are in the document's world */
    size_t unknown;               /* of them, have no record: nobody knows their limits */
    struct candidate *candidates; /* who wants into the next, in the order of their claims */
    size_t count, out;            /* out: were left out */
    int64_t nodes_min, nodes_max; /* that suit all of them, and those who are in */
    size_t back;                  /* of them, were in the last world */
    size_t apart;                 /* of those left out, have limits that do not go together with the others' */
    size_t holders;               /* records of a world that is not there */
};

static int by_claim(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;

    if (left->place != right->place)
        return left->place < right->place ? -1 : 1;
    if (left->entry->create != right->entry->create)
        return left->entry->create < right->entry->create ? -1 : 1;
    return left->entry->id < right->entry->id ? -1 : left->entry->id > right->entry->id;
}

/* Who is in, by the records. In the time of grace a record that is missing does not count. */
static void judge_members(struct mu_fold *f, struct folded *folded)
{
    bool grace = !mu_fold_is_due(f, f->grace_until_ms);

    for (size_t i = 0; mu_fold_has(f, JOB_DOC) && i < f->doc.count; i++) {
        const struct entry *entry = find_node(f, f->doc.members[i].id);

        if (entry == NULL) /* we know of ourselves, whatever has become of our record */
            f->gone[i] |= !grace && (f->doc.members[i].id != f->id || f->world.id != f->doc.id);
        else
            f->gone[i] |= entry->record.joining == (entry->record.world == f->doc.id);
        folded->in += !f->gone[i];
        folded->unknown += !f->gone[i] && entry == NULL;
    }
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
    for (size_t at = 0; at < f->entries_count;) {
        const struct entry *entry = newest(f, at, &at);
        int64_t rank = mu_fold_has(f, JOB_DOC) ? mu_fold_world_rank(&f->doc, entry->id) : -1;
        bool in = rank >= 0 && !f->gone[rank];

        folded->holders += !entry->record.joining;
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

/* Whether the next round is to begin now. */
static bool is_complete(struct mu_fold *f, const struct folded *folded)
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
    if (count >= folded->nodes_max)
        return true;
    /* Nobody is in the last world any more: who is not back is gone. */
    if (mu_fold_has(f, JOB_DOC) && folded->back > 0 &&
        (folded->back == f->doc.count || mu_fold_is_due(f, f->call_since_ms + f->settings.lost_node_wait_ms)))
        return true;
    return mu_fold_is_due(f, f->call_since_ms + f->settings.last_call_ms);
}

static int encode_world(struct mu_fold *f, const struct folded *folded)
{
    struct mu_fold_world world = { .round = mu_fold_has(f, JOB_DOC) ? f->doc.round + 1 : 0,
                                   .hold_ms = mu_fold_has(f, JOB_DOC)
                                                  ? mu_rules_hold_ms(f->doc.hold_ms, f->now_ms - f->doc_since_ms)
                                                  : 0 };
    size_t count = folded->count < (size_t)folded->nodes_max ? folded->count : (size_t)folded->nodes_max;
    int rc;

    if (count > MU_FOLD_MEMBERS_MAX)
        count = MU_FOLD_MEMBERS_MAX;
    while (world.id == 0)
        world.id = mu_rng_next(&f->rng);
    world.members = calloc(count, sizeof *world.members);
    if (world.members == NULL)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < count; i++) { /* names stay the records' */
        const struct entry *entry = folded->candidates[i].entry;

        world.members[i] =
            (struct mu_fold_member){ entry->id,
                                     { mu_slice_str(entry->record.name), entry->record.pid, entry->record.local_id } };
    }
    world.count = count;
    rc = mu_fold_world_write(&world);
    free(world.members);
    if (rc < 0) {
        mu_buf_done(&world.bytes);
        return rc;
    }
    mu_buf_done(&f->value);
    f->value = world.bytes;
    f->write_round = world.round;
    f->write_count = (int64_t)count;
    return 0;
}

static void write_world(struct mu_fold *f, const struct folded *folded)
{
    int64_t lease = mu_fold_need_job_lease(f);
    int rc;

    if (lease == 0)
        return;
    rc = encode_world(f, folded);
    if (rc == MUSTER_ELIMIT && f->phase == MU_FOLD_JOINING) {
        (void)mu_fail(&f->error, MUSTER_ELIMIT, "the document of %zu nodes is larger than %u bytes", folded->count,
                      MU_FOLD_VALUE_MAX);
        mu_fold_tell_failed(f, MU_PART_ON_JOIN);
        return;
    }
    if (!mu_fold_is_encoded(f, rc))
        return;
    mu_fold_compare_key(f, JOB_LEADER);
    mu_fold_compare_key(f, JOB_DOC);
    mu_fold_compare_key(f, JOB_CLOSED);
    mu_fold_put(f, "job/doc", &f->value, lease);
    mu_fold_send(f, WORLD);
}

/* Without who is gone. */
static struct mu_fold_news make_news(const struct mu_fold *f, const struct folded *folded)
{
    bool full = (int64_t)folded->in >= folded->nodes_max;
    struct mu_fold_news news = { .world = mu_fold_has(f, JOB_DOC) ? f->doc.id : 0,
                                 .spares = (int64_t)folded->out,
                                 .apart = (int64_t)folded->apart,
                                 .last_call_ms = -1 };

    if (folded->in == 0)
        news.joined = (int64_t)folded->count;
    else if (full)
        news.spares += (int64_t)folded->count;
    else
        news.waiting = (int64_t)folded->count;
    for (size_t i = 0; news.waiting > 0 && i < folded->count; i++) {
        if (folded->candidates[i].place == INT64_MAX && news.newcomers++ == 0)
            (void)snprintf(news.who, sizeof news.who, "%s", folded->candidates[i].entry->record.name);
    }
    if (f->call_since_ms != UINT64_MAX) {
        uint64_t until_ms = f->call_since_ms + f->settings.last_call_ms;

        news.last_call_ms = until_ms > f->now_ms ? (int64_t)(until_ms - f->now_ms) : 0;
    }
    return news;
}

enum urgency { NOTHING, NUMBERS, URGENT };

static enum urgency compare_news(const struct mu_fold *f, const struct mu_fold_news *news)
{
    const struct mu_fold_news *old = &f->news;
    bool same = mu_fold_has(f, JOB_NEWS) && old->world == news->world;
    bool nothing = news->gone_count == 0 && news->waiting == 0 && news->spares == 0 && news->joined == 0;

    if (!same)
        return nothing ? NOTHING : news->gone_count > 0 || news->waiting > 0 ? URGENT : NUMBERS;
    if (old->gone_count != news->gone_count || (old->waiting > 0) != (news->waiting > 0))
        return URGENT;
    if (old->waiting != news->waiting || old->spares != news->spares || old->joined != news->joined ||
        old->apart != news->apart || old->grace != news->grace || (old->last_call_ms < 0) != (news->last_call_ms < 0))
        return NUMBERS;
    return NOTHING;
}

static void write_news(struct mu_fold *f, const struct folded *folded)
{
    uint32_t *gone = calloc((mu_fold_has(f, JOB_DOC) ? f->doc.count : 0) + 1, sizeof *gone);
    struct mu_fold_news news;
    enum urgency urgency = NOTHING;
    int64_t lease = 0;
    int rc = MUSTER_ENOMEM;

    if (gone != NULL) {
        news = make_news(f, folded);
        news.gone = gone;
        for (size_t i = 0; mu_fold_has(f, JOB_DOC) && i < f->doc.count; i++)
            if (f->gone[i])
                gone[news.gone_count++] = (uint32_t)i;
        if (mu_fold_has(f, JOB_NEWS) && f->news.grace && f->news.world == news.world)
            news.grace = f->now_ms < f->grace_until_ms;
        urgency = compare_news(f, &news);
        rc = mu_fold_news_write(&news, &f->value);
    }
    free(gone);
    if (rc == 0 && (urgency == NOTHING || (urgency == NUMBERS && !mu_fold_is_due(f, f->news_at_ms))))
        return;
    lease = mu_fold_need_job_lease(f);
    if (lease == 0 || !mu_fold_is_encoded(f, rc))
        return;
    mu_fold_compare_key(f, JOB_LEADER);
    mu_fold_compare_key(f, JOB_DOC);
    mu_fold_put(f, "job/news", &f->value, lease);
    f->news_at_ms = f->now_ms + MU_FOLD_NEWS_MS + MU_FOLD_NEWS_NODE_MS * folded->count;
    mu_fold_send(f, NEWS);
}

void mu_leader_fold(struct mu_fold *f)
{
    struct folded folded = { .nodes_min = 1, .nodes_max = INT64_MAX };

    if (f->seen[JOB_DOC].value == KEY_NEWER)
        return;
    folded.candidates = calloc(f->entries_count + 1, sizeof *folded.candidates);
    if (folded.candidates == NULL) {
        (void)mu_fold_is_due(f, f->now_ms + MU_FOLD_RETRY_MAX_MS);
        return;
    }
    judge_members(f, &folded);
    find_candidates(f, &folded);
    if (is_complete(f, &folded))
        write_world(f, &folded);
    else
        write_news(f, &folded);
    free(folded.candidates);
}

void mu_leader_drive(struct mu_fold *f)
{
    bool leader = mu_fold_is_leader(f);
    int64_t lease = mu_fold_job_lease(f);

    if (leader && !f->was_leader) {
        if (f->doc.id != 0 && !mu_leader_renew_gone(f))
            return;
        if (f->seen[JOB_LEADER].mod != f->call_leader)
            f->call_since_ms = UINT64_MAX;
        f->call_leader = f->seen[JOB_LEADER].mod;
        f->keep_at_ms = f->now_ms;
        f->news_at_ms = 0;
        mu_fold_distrust(&f->nodes);
        (void)mu_fold_emit(f, MU_FOLD_DO_LEADER);
    } else if (!leader && f->was_leader) {
        mu_fold_distrust(&f->nodes);
        mu_leader_forget(f);
        mu_fold_emit(f, MU_FOLD_DO_UNWATCH)->scope = MU_FOLD_NODES;
    }
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
