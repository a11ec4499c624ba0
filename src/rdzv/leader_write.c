/* What the leader of an etcd-v3 rendezvous writes, see fold.h and leader.c.
 *
 * A world is written in batches, for etcd limits the operations of a transaction: first its pages and seats, under its
 * random id, while we lead; then, with the last of them, the document, which also takes the replaced world away. Nobody
 * reads seats of a world whose document was never written. */
#include "rdzv/fold_parts.h"

#include "base/words.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH_BYTES_MAX = 1 << 19 }; /* then another one begins: with a last page it is below etcd's 1.5 MiB */

/* ---- A world, and its members ---- */

void mu_leader_give_up_world(struct mu_fold *f)
{
    struct lead *l = &f->lead;

    mu_fold_members_done(&l->next_members);
    free(l->ops);
    free(l->at);
    free(l->seats);
    l->ops = NULL;
    l->at = NULL;
    l->seats = NULL;
    l->next = (struct mu_fold_world){ .id = 0 };
    l->pages_read = false; /* what was written of it is to be found, and taken away */
}

/* Its members are known. False: no memory; another time. */
static bool begin(struct mu_fold *f)
{
    struct lead *l = &f->lead;
    const struct mu_fold_members *members = &l->next_members;
    const struct mu_node *first = &members->items[0].node;

    assert(l->ops == NULL && l->at == NULL);
    assert(l->next.id != 0 && l->next_members.world == l->next.id && (int64_t)l->next_members.count == l->next.nodes);
    l->ops = calloc(f->ops_max, sizeof *l->ops);
    l->at = calloc(2 * f->ops_max + 1, sizeof *l->at);
    if (l->ops == NULL || l->at == NULL || !mu_fold_members_sort(&l->next_members)) {
        mu_leader_give_up_world(f);
        return false;
    }
    l->written = 0;
    if (mu_fold_members_all_known(members)) { /* else as we saw it */
        l->next.one_host = true;
        for (size_t i = 0; i < members->count && l->next.one_host; i++)
            l->next.one_host = mu_slice_equal(members->items[i].node.name, first->name);
    }
    if (members->items[0].id != 0) {
        (void)mu_words_plain(first->name, l->next.first, sizeof l->next.first);
        l->next.first_pid = first->pid;
        l->next.first_local_id = first->local_id;
    }
    return true;
}

static struct mu_fold_member member_of(const struct entry *entry)
{
    return (struct mu_fold_member){ entry->id,
                                    { mu_slice_str(entry->record.name), entry->record.pid, entry->record.local_id } };
}

static void no_memory(struct mu_fold *f)
{
    mu_leader_give_up_world(f);
    f->lead.pages_read = true; /* nothing was written */
    (void)mu_fold_is_due(f, f->now_ms + MU_FOLD_RETRY_MAX_MS);
}

/* ---- Seats ---- */

struct role { /* of a member, by its rank */
    const char *role;
    size_t rank;
};

static int by_role(const void *a, const void *b)
{
    const struct role *left = a, *right = b;
    int order = strcmp(left->role, right->role);

    return order != 0 ? order : left->rank < right->rank ? -1 : left->rank > right->rank;
}

/* Workers are counted over the nodes in the order of their ranks; role ranks over those of the same role. False: no
 * memory. */
static bool assign_seats(struct lead *l, const struct folded *folded, size_t count)
{
    struct role *roles = calloc(count, sizeof *roles);
    int64_t base = 0;

    l->seats = calloc(count, sizeof *l->seats);
    if (roles == NULL || l->seats == NULL) {
        free(roles);
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        roles[i] = (struct role){ folded->candidates[i].entry->record.role, i };
        l->seats[i] = (struct mu_fold_seat){ .rank = (int64_t)i, .base_rank = base };
        base += folded->candidates[i].entry->record.size;
    }
    l->next.size = base;
    qsort(roles, count, sizeof *roles, by_role);
    for (size_t from = 0, to = 0; from < count; from = to) {
        int64_t size = 0;

        for (; to < count && strcmp(roles[to].role, roles[from].role) == 0; to++) {
            l->seats[roles[to].rank].base_role_rank = size;
            size += folded->candidates[roles[to].rank].entry->record.size;
        }
        for (size_t i = from; i < to; i++)
            l->seats[roles[i].rank].role_size = size;
    }
    free(roles);
    return true;
}

/* Restarts that count against the maximum. */
int64_t mu_leader_used(const struct mu_fold *f)
{
    struct mu_fold_world doc = f->doc;

    return doc.window_s == 0 ? doc.count : (int64_t)mu_slowdown_recent(&doc, f->now_ms - f->doc_since_ms);
}

static void charge(struct mu_fold_world *next)
{
    next->count += next->count < MU_FOLD_COUNT_MAX;
    if (next->window_s == 0)
        return;
    if (next->charges_count == MU_FOLD_CHARGES_MAX)
        memmove(next->charges, next->charges + 1, --next->charges_count * sizeof next->charges[0]);
    next->charges[next->charges_count++] = 0;
}

/* What the last round costs, and why it ended; the job's first world fixes how many restarts there are. */
static void settle(struct mu_fold *f, const struct folded *folded)
{
    struct mu_fold_world *next = &f->lead.next, doc = f->doc;
    const struct said *failed = &f->lead.said[MU_FOLD_END_FAILED];

    if (!mu_fold_has(f, JOB_DOC)) {
        next->max_restarts = folded->candidates[0].entry->record.max_restarts;
        next->window_s = folded->candidates[0].entry->record.window_s;
        return;
    }
    (void)mu_slowdown_recent(&doc, f->now_ms - f->doc_since_ms);
    next->max_restarts = doc.max_restarts;
    next->window_s = doc.window_s;
    next->count = doc.count;
    next->charges_count = doc.charges_count;
    memcpy(next->charges, doc.charges, sizeof next->charges);
    next->rest_ms = doc.rest_ms;
    if (mu_attribution_cost(&folded->why) > 0) {
        charge(next);
        next->crashes = mu_slowdown_crashes(doc.crashes, failed->ms - f->doc_since_ms);
    }
    mu_attribution_why(&folded->why, next->nodes, next->window_s == 0 ? next->count : (int64_t)next->charges_count,
                       next->max_restarts, next->why);
}

/* ---- Worlds ---- */

/* Whoever loses the store has lost that member, too. */
static void note_host(struct mu_fold *f, const struct folded *folded)
{
    struct lead *l = &f->lead;

    for (size_t i = 0; i < l->next_members.count; i++) {
        if (!mu_fold_is_host(f, &folded->candidates[i].entry->record))
            continue;
        l->next.host.rank = (int64_t)i;
        mu_leader_name_member(&l->next_members, &l->next_members.items[i].node, l->next.host.name);
    }
}

static int by_node(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;
    struct mu_fold_member one = member_of(left->entry), other = member_of(right->entry);

    return mu_node_compare(&one.node, &other.node);
}

void mu_leader_begin_world(struct mu_fold *f, const struct folded *folded)
{
    struct lead *l = &f->lead;
    bool has_doc = mu_fold_has(f, JOB_DOC);
    size_t count = folded->count < (size_t)folded->nodes_max ? folded->count : (size_t)folded->nodes_max;
    bool whole;

    assert(l->next.id == 0 && l->seats == NULL);
    if (count > MU_FOLD_MEMBERS_MAX)
        count = MU_FOLD_MEMBERS_MAX;
    l->next = (struct mu_fold_world){ .round = has_doc ? f->doc.round + (f->doc.round < MU_DOC_ROUND_MAX) : 0,
                                      .nodes = (int64_t)count,
                                      .hold_ms =
                                          has_doc ? mu_rules_hold_ms(f->doc.hold_ms, f->now_ms - f->doc_since_ms) : 0 };
    while (l->next.id == 0)
        l->next.id = mu_rng_next(&f->rng);
    settle(f, folded);
    if (f->has_documents) /* ranks are those that a document would have */
        qsort(folded->candidates, count, sizeof *folded->candidates, by_node);
    whole = assign_seats(l, folded, count) && mu_fold_members_init(&l->next_members, l->next.id, count) == 0;
    for (size_t i = 0; whole && i < count; i++) {
        const struct mu_fold_member member = member_of(folded->candidates[i].entry);

        whole = mu_fold_members_set(&l->next_members, i, &member) == 0;
    }
    if (whole)
        note_host(f, folded);
    if (!whole || !begin(f))
        no_memory(f);
}

/* Its members are those that we know, if we led before, and those that say so. `hosted`: one of them hosted its store,
 * which is gone. */
void mu_leader_begin_put_back(struct mu_fold *f, const struct mu_fold_record *holder, bool hosted)
{
    struct lead *l = &f->lead;
    bool knew = l->members.world == holder->world, whole;

    assert(l->next.id == 0 && l->seats == NULL && mu_leader_is_holder(f, holder));
    l->next = (struct mu_fold_world){ .id = holder->world,
                                      .round = holder->round,
                                      .nodes = holder->nodes,
                                      .size = holder->world_size,
                                      .count = holder->count,
                                      .max_restarts = holder->max_restarts,
                                      .window_s = holder->window_s,
                                      .crashes = holder->crashes,
                                      .charges_count = holder->charges_count };
    memcpy(l->next.charges, holder->charges, sizeof l->next.charges);
    if (f->doc.id == holder->world) /* as we saw it; what a holder says goes together with that */
        l->next = f->doc;
    if (hosted)
        l->next.host.name[0] = '\0'; /* the store is another node's now, or nobody's */
    whole = mu_fold_members_init(&l->next_members, holder->world, (size_t)holder->nodes) == 0;
    for (size_t i = 0; whole && knew && i < l->members.count; i++)
        if (l->members.items[i].id != 0)
            whole = mu_fold_members_set(&l->next_members, i, &l->members.items[i]) == 0;
    for (size_t at = 0; whole && at < l->entries_count;) {
        const struct entry *entry = mu_leader_newest(f, at, &at);
        const struct mu_fold_record *record = &entry->record;
        const struct mu_fold_member member = member_of(entry);

        if (record->rank < 0 || !mu_leader_is_holder(f, record) || !mu_leader_hold_the_same(record, holder))
            continue;
        if (l->next_members.items[record->rank].id == 0 && !(knew && mu_fold_members_rank(&l->members, entry->id) >= 0))
            whole = mu_fold_members_set(&l->next_members, (size_t)record->rank, &member) == 0;
    }
    if (!whole || !begin(f))
        no_memory(f);
}

/* ---- Batches ---- */

/* The key and the value of an operation, as they are put into `text`. */
static bool add_op(struct lead *l, size_t at, const char *key, const struct mu_buf *value)
{
    l->at[2 * at] = l->text.len;
    if (mu_buf_append(&l->text, key, strlen(key), SIZE_MAX) < 0)
        return false;
    l->at[2 * at + 1] = l->text.len;
    return value == NULL || mu_buf_append(&l->text, value->data, value->len, SIZE_MAX) == 0;
}

static bool add_put(struct mu_fold *f, size_t at, const char *key, int rc, int64_t lease)
{
    f->lead.ops[at] = (struct mu_fold_op){ .kind = MU_FOLD_PUT, .lease = lease };
    return rc == 0 && add_op(&f->lead, at, key, &f->value);
}

static bool add_delete(struct mu_fold *f, size_t at, const char *what, uint64_t world)
{
    char key[MU_FOLD_KEY_MAX];

    f->lead.ops[at] = (struct mu_fold_op){ .kind = MU_FOLD_DELETE_PREFIX };
    (void)snprintf(key, sizeof key, "%s/%016" PRIx64 "/", what, world);
    return add_op(&f->lead, at, key, NULL);
}

/* Page or seat `number` of the world. */
static bool add_part(struct mu_fold *f, size_t at, size_t number, int64_t lease)
{
    const struct mu_fold_members *members = &f->lead.next_members;
    size_t pages = mu_fold_pages(members->count);
    char key[MU_FOLD_KEY_MAX];

    if (number < pages) {
        size_t first = number * MU_FOLD_PAGE_MEMBERS;
        size_t count = members->count - first < MU_FOLD_PAGE_MEMBERS ? members->count - first : MU_FOLD_PAGE_MEMBERS;

        (void)snprintf(key, sizeof key, "member/%016" PRIx64 "/%04zu", members->world, number);
        return add_put(f, at, key, mu_fold_page_write(members->items + first, count, &f->value), lease);
    }
    (void)snprintf(key, sizeof key, "seat/%016" PRIx64 "/%016" PRIx64, members->world,
                   members->items[number - pages].id);
    return add_put(f, at, key, mu_fold_seat_write(&f->lead.seats[number - pages], &f->value), lease);
}

/* Worlds that the document's replaces. */
static size_t old_worlds(const struct mu_fold *f, uint64_t worlds[static STALE_MAX + 1])
{
    const struct lead *l = &f->lead;
    size_t count = 0;

    if (mu_fold_has(f, JOB_DOC) && f->doc.id != l->next.id)
        worlds[count++] = f->doc.id;
    for (size_t i = 0; i < l->stale_count; i++)
        if (l->stale[i] != l->next.id && (count == 0 || worlds[0] != l->stale[i]))
            worlds[count++] = l->stale[i];
    return count;
}

static int encode_put_back_news(struct mu_fold *f)
{
    const struct lead *l = &f->lead;
    struct mu_fold_news news = { .world = l->next.id, .last_call_ms = -1, .grace = true };

    for (size_t i = 0; f->news.world == l->next.id && l->members.world != l->next.id && i < l->next_members.count; i++)
        if (mu_fold_news_done(&f->news, (int64_t)i)) /* as we heard */
            mu_fold_news_add_done(&news, (uint32_t)i);
    for (size_t i = 0; l->members.world == l->next.id && i < l->members.count; i++) {
        if (l->fates[i].done && l->fates[i].gone != HERE)
            mu_fold_news_add_done(&news, (uint32_t)i);
        if (l->fates[i].gone == HERE || l->fates[i].done)
            continue;
        mu_fold_news_add_gone(&news, (uint32_t)i, l->members.items[i].node.name);
        news.missing += l->fates[i].gone == MISSING;
    }
    news.over = news.gone > 0;
    return mu_fold_news_write(&news, &f->value);
}

/* The document, and what goes with it. How many operations; 0: no memory. */
static size_t add_document(struct mu_fold *f, size_t at, const uint64_t *old, size_t old_count, int64_t lease)
{
    size_t first = at;

    if (!add_put(f, at++, "job/doc", mu_fold_world_write(&f->lead.next, &f->value), lease))
        return 0;
    if (f->lead.seats == NULL && !add_put(f, at++, "job/news", encode_put_back_news(f), lease))
        return 0;
    for (size_t i = 0; i < old_count; i++)
        if (!add_delete(f, at++, "seat", old[i]) || !add_delete(f, at++, "member", old[i]))
            return 0;
    return at - first;
}

void mu_leader_write_batch(struct mu_fold *f)
{
    struct lead *l = &f->lead;
    bool puts_back = l->seats == NULL;
    size_t parts = mu_fold_pages(l->next_members.count) + (puts_back ? 0 : l->next_members.count);
    uint64_t old[STALE_MAX + 1];
    size_t left = parts - l->written, old_count = old_worlds(f, old), tail = 1 + puts_back + 2 * old_count, count = 0;
    bool last, whole = true;
    int64_t lease = mu_fold_need_job_lease(f);

    assert(tail < MU_FOLD_OPS_MIN);
    if (lease == 0)
        return;
    l->text.len = 0;
    for (; whole && count < left && count < f->ops_max && l->text.len < BATCH_BYTES_MAX; count++)
        whole = add_part(f, count, l->written + count, lease);
    last = count == left && left + tail <= f->ops_max;
    l->writing = l->written + count;
    if (last && whole) {
        tail = add_document(f, count, old, old_count, lease);
        whole = tail > 0;
        count += tail;
    }
    if (!mu_fold_is_encoded(f, whole ? 0 : MUSTER_ENOMEM))
        return;
    l->at[2 * count] = l->text.len;
    for (size_t i = 0; i < count; i++) {
        l->ops[i].key = mu_slice(l->text.data + l->at[2 * i], l->at[2 * i + 1] - l->at[2 * i]);
        l->ops[i].value = mu_slice(l->text.data + l->at[2 * i + 1], l->at[2 * i + 2] - l->at[2 * i + 1]);
    }
    f->write.ops = l->ops;
    f->write.ops_count = count;
    mu_fold_compare_key(f, JOB_LEADER);
    if (last) {
        mu_fold_compare_key(f, JOB_DOC);
        mu_fold_compare_key(f, JOB_CLOSED);
    }
    mu_fold_send(f, last ? WORLD : SEATS);
}

/* The world that was written is the document's now. */
static void adopt(struct mu_fold *f)
{
    struct lead *l = &f->lead;
    bool same = l->members.world == l->next.id && l->members.count == l->next_members.count;
    struct fate *fates = same ? l->fates : calloc(l->next_members.count, sizeof *fates);

    if (fates == NULL) {
        mu_leader_give_up_world(f); /* it is read again */
        return;
    }
    if (!same) {
        free(l->fates);
        memset(l->said, 0, sizeof l->said);
        if (!l->stays_ended) /* and nobody knows how */
            mu_slowdown_done(&l->slowdown);
        l->stays_ended = false;
    }
    l->fates = fates;
    l->fates_count = l->next_members.count;
    mu_fold_members_done(&l->members);
    l->members = l->next_members;
    l->next_members = (struct mu_fold_members){ .world = 0 };
    mu_leader_give_up_world(f);
    mu_leader_see_news(f);
    l->pages_read = true;
    l->pages_broken = false;
    l->stale_count = 0;
}

void mu_leader_batch_written(struct mu_fold *f, bool held)
{
    struct lead *l = &f->lead;

    if (l->next.id == 0)
        return; /* given up meanwhile */
    if (!held) {
        mu_leader_give_up_world(f);
        return;
    }
    l->written = l->writing;
    if (f->writing != WORLD)
        return;
    if (l->seats == NULL) {
        l->was_put_back = l->next.id;
    } else {
        struct mu_fold_effect *effect = mu_fold_emit(f, MU_FOLD_DO_COMPLETED);

        effect->news.round = l->next.round;
        effect->news.count = l->next.nodes;
    }
    adopt(f);
}

/* Nobody can tell any more who is in it: all who are say so, once it is gone. */
void mu_leader_write_no_doc(struct mu_fold *f)
{
    if (!mu_fold_is_encoded(f, 0))
        return;
    f->ops[0] = (struct mu_fold_op){ .kind = MU_FOLD_DELETE_PREFIX, .key = mu_slice_str("job/doc") };
    f->write.ops = f->ops;
    f->write.ops_count = 1;
    mu_fold_compare_key(f, JOB_LEADER);
    mu_fold_compare_key(f, JOB_DOC);
    mu_fold_send(f, NO_DOC);
}

/* The job is over. */
void mu_leader_write_end(struct mu_fold *f, bool succeeded, const char *cause)
{
    struct mu_fold_closed closed = { .node = f->id, .has_verdict = true, .succeeded = succeeded };
    int64_t lease = mu_fold_need_job_lease(f);
    int rc;

    (void)snprintf(closed.cause, sizeof closed.cause, "%s", cause);
    if (lease == 0)
        return;
    rc = mu_fold_closed_write(&closed, &f->value);
    if (!mu_fold_is_encoded(f, rc == 0 ? mu_fold_write_closed_document(f) : rc))
        return;
    mu_fold_compare_key(f, JOB_LEADER);
    mu_fold_compare_key(f, JOB_DOC);
    mu_fold_compare_key(f, JOB_CLOSED);
    mu_fold_put(f, "job/closed", &f->value, lease);
    mu_fold_put_closed_document(f);
    mu_fold_send(f, CLOSED_MARK);
}

/* ---- News ---- */

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
    if (mu_fold_has_outsiders(f) && full)
        news.spares++;
    else if (mu_fold_has_outsiders(f) && folded->in > 0)
        news.waiting++;
    for (size_t i = 0; news.waiting > 0 && i < folded->count; i++) {
        const struct mu_fold_record *record = &folded->candidates[i].entry->record;
        struct mu_node node = { mu_slice_str(record->name), record->pid, record->local_id };

        if (folded->candidates[i].place == INT64_MAX && news.newcomers++ == 0)
            mu_leader_name_member(&f->lead.members, &node, news.who);
    }
    if (news.waiting > (int64_t)folded->count && news.newcomers++ == 0)
        (void)snprintf(news.who, sizeof news.who, MU_FOLD_OUTSIDER);
    if (f->call_since_ms != UINT64_MAX) {
        uint64_t until_ms = f->call_since_ms + f->settings.last_call_ms;

        news.last_call_ms = until_ms > f->now_ms ? (int64_t)(until_ms - f->now_ms) : 0;
    }
    for (size_t i = 0; mu_fold_has(f, JOB_DOC) && i < f->lead.members.count; i++) {
        if (f->lead.fates[i].done && f->lead.fates[i].gone != HERE)
            mu_fold_news_add_done(&news, (uint32_t)i);
        if (f->lead.fates[i].gone == HERE || f->lead.fates[i].done)
            continue;
        mu_fold_news_add_gone(&news, (uint32_t)i, f->lead.members.items[i].node.name);
        news.missing += f->lead.fates[i].gone == MISSING;
    }
    if (folded->held != NULL) {
        (void)mu_words_plain(mu_slice_str(folded->held), news.held, sizeof news.held);
        news.held_ms = (int64_t)(folded->held_until_ms - f->now_ms);
    }
    if (folded->paused_until_ms != 0)
        news.pause_ms = (int64_t)(folded->paused_until_ms - f->now_ms);
    assert(news.held_ms <= MU_SLOWDOWN_HOLD_MAX_MS && news.pause_ms <= MU_SLOWDOWN_PAUSE_MAX_MS);
    news.over = folded->over;
    if (news.over)
        mu_attribution_cause(&folded->why, news.cause);
    if (mu_fold_has_news(f) && f->news.grace)
        news.grace = f->now_ms < f->grace_until_ms;
    return news;
}

enum urgency { NOTHING, NUMBERS, URGENT };

/* That a world is over is urgent, and whom it has lost; not who has left it since. */
static enum urgency compare_news(const struct mu_fold *f, const struct mu_fold_news *news)
{
    const struct mu_fold_news none = { .last_call_ms = -1 }, *old = mu_fold_has_news(f) ? &f->news : &none;

    if (old->over != news->over || news->missing > old->missing || (old->waiting > 0) != (news->waiting > 0))
        return URGENT;
    if (old->gone != news->gone || old->done_count != news->done_count || old->waiting != news->waiting ||
        old->spares != news->spares || old->joined != news->joined || strcmp(old->held, news->held) != 0 ||
        (old->pause_ms > 0) != (news->pause_ms > 0) || old->apart != news->apart || old->grace != news->grace ||
        (old->last_call_ms < 0) != (news->last_call_ms < 0))
        return NUMBERS;
    return NOTHING;
}

static uint64_t news_pace_ms(size_t nodes)
{
    uint64_t ms = MU_FOLD_NEWS_MS + MU_FOLD_NEWS_NODE_MS * nodes;

    return ms < MU_FOLD_NEWS_MAX_MS ? ms : MU_FOLD_NEWS_MAX_MS;
}

void mu_leader_write_news(struct mu_fold *f, const struct folded *folded)
{
    struct mu_fold_news news = make_news(f, folded);
    enum urgency urgency = compare_news(f, &news);
    int64_t lease;

    if (urgency == NOTHING || (urgency == NUMBERS && !mu_fold_is_due(f, f->news_at_ms)))
        return;
    lease = mu_fold_need_job_lease(f);
    if (lease == 0 || !mu_fold_is_encoded(f, mu_fold_news_write(&news, &f->value)))
        return;
    mu_fold_compare_key(f, JOB_LEADER);
    mu_fold_compare_key(f, JOB_DOC);
    mu_fold_put(f, "job/news", &f->value, lease);
    f->news_at_ms = f->now_ms + news_pace_ms(folded->count);
    mu_fold_send(f, NEWS);
}
