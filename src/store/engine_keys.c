/* A job's keys, transactions on them, and who is told of changes. See engine.h.
 *
 * Keys stand in a skip list, in order: a prefix is a run of it. How many levels a key is in comes from its hash, so a
 * key that is put again takes the place of the one before. A transaction first makes all that it may need, and then
 * cannot fail. */
#include "store/engine_parts.h"

#include <assert.h>
#include <stdlib.h>

/* ---- Items ---- */

static unsigned levels_of(const struct mu_engine *e, struct mu_slice key)
{
    uint64_t hash = mu_hash64(e->config.seed, key);
    unsigned levels = 1;

    for (; levels < MU_ENGINE_LEVELS && (hash & 3) == 0; hash >>= 2)
        levels++;
    return levels;
}

static size_t item_cost(unsigned levels, size_t key_len, size_t value_len)
{
    return sizeof(struct mu_engine_item) + levels * sizeof(struct mu_engine_item *) + key_len + value_len;
}

static char *bytes_of(struct mu_engine_item *item)
{
    return (char *)(item->next + item->levels);
}

static struct mu_slice key_of(const struct mu_engine_item *item)
{
    return mu_slice(item->next + item->levels, item->key_len);
}

static struct mu_engine_kv kv_of(const struct mu_engine_item *item)
{
    struct mu_slice key = key_of(item);

    return (struct mu_engine_kv){ .key = key,
                                  .value = mu_slice(key.data + key.len, item->value_len),
                                  .create = item->create,
                                  .mod = item->mod,
                                  .lease = item->lease };
}

static struct mu_engine_item *make_item(struct mu_engine *e, const struct mu_engine_op *put)
{
    unsigned levels = levels_of(e, put->key);
    struct mu_engine_item *item = mu_engine_alloc(e, item_cost(levels, put->key.len, put->value.len));

    if (item == NULL)
        return NULL;
    item->holders = 1;
    item->levels = levels;
    item->lease = put->lease;
    item->key_len = put->key.len;
    item->value_len = put->value.len;
    mu_list_init(&item->link);
    memcpy(bytes_of(item), put->key.data, put->key.len);
    if (put->value.len > 0)
        memcpy(bytes_of(item) + put->key.len, put->value.data, put->value.len);
    return item;
}

static void drop_item(struct mu_engine *e, struct mu_engine_item *item)
{
    assert(item->holders > 0);
    if (--item->holders == 0)
        mu_engine_release(e, item, item_cost(item->levels, item->key_len, item->value_len));
}

/* ---- Where a key is ---- */

static int compare_keys(struct mu_slice a, struct mu_slice b)
{
    int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);

    return order != 0 ? order : a.len < b.len ? -1 : a.len > b.len;
}

static bool begins_with(struct mu_slice key, struct mu_slice prefix)
{
    return key.len >= prefix.len && (prefix.len == 0 || memcmp(key.data, prefix.data, prefix.len) == 0);
}

static bool matches(const struct mu_engine_item *item, struct mu_slice key, bool prefix)
{
    return prefix ? begins_with(key_of(item), key) : mu_slice_equal(key_of(item), key);
}

/* In each level the link that leads to the first item whose key is not below. */
struct place {
    struct mu_engine_item **links[MU_ENGINE_LEVELS];
};

static struct place find_place(struct mu_engine_job *job, struct mu_slice key)
{
    struct mu_engine_item **next = job->first;
    struct place place;

    for (unsigned level = MU_ENGINE_LEVELS; level-- > 0;) {
        while (next[level] != NULL && compare_keys(key_of(next[level]), key) < 0)
            next = next[level]->next;
        place.links[level] = &next[level];
    }
    return place;
}

static void link_item(struct mu_engine_job *job, const struct place *place, struct mu_engine_item *item)
{
    for (unsigned level = 0; level < item->levels; level++) {
        item->next[level] = *place->links[level];
        *place->links[level] = item;
    }
    job->count++;
}

static void unlink_item(struct mu_engine_job *job, const struct place *place, struct mu_engine_item *item)
{
    for (unsigned level = 0; level < item->levels; level++) {
        assert(*place->links[level] == item);
        *place->links[level] = item->next[level];
    }
    job->count--;
}

/* The first with that key, or with a key that begins so; NULL: there is none. */
static struct mu_engine_item *find_first(struct mu_engine_job *job, struct mu_slice key, bool prefix)
{
    struct mu_engine_item *item = *find_place(job, key).links[0];

    return item != NULL && matches(item, key, prefix) ? item : NULL;
}

/* How many there are from `item` on, but no more than `max`. */
static size_t count_run(const struct mu_engine_item *item, struct mu_slice key, bool prefix, size_t max)
{
    size_t count = 0;

    for (; count < max && item != NULL && matches(item, key, prefix); item = item->next[0])
        count++;
    return count;
}

/* Of the job's own keys. */
static enum mu_engine_code find_own(struct mu_engine *e, struct mu_engine_job *job, struct mu_slice key, bool prefix,
                                    uint32_t limit, struct mu_engine_found *ret_found)
{
    struct mu_engine_item *item = find_first(job, key, prefix);
    struct mu_engine_found found = { 0 };

    found.count = count_run(item, key, prefix, limit > 0 ? limit : SIZE_MAX);
    if (found.count == 0)
        return MU_ENGINE_OK;
    found.items = mu_engine_alloc(e, found.count * sizeof(struct mu_engine_item *));
    if (found.items == NULL)
        return mu_engine_no_room(e, MU_ENGINE_NO_MEMORY);
    for (size_t i = 0; i < found.count; i++, item = item->next[0]) {
        item->holders++;
        found.items[i] = item;
    }
    *ret_found = found;
    return MU_ENGINE_OK;
}

/* What a job shows to that one; NULL: nothing. */
static struct mu_engine_item *find_shown(struct mu_engine_job *job, const struct mu_engine_job *to)
{
    struct mu_slice key = mu_slice_str(MU_ENGINE_SHOWN);
    struct mu_engine_item *item;

    if (job == to || job->moved || job->has_document || key.len + job->len > MU_ENGINE_KEY_MAX)
        return NULL;
    item = find_first(job, key, false);
    return item != NULL && item->value_len <= MU_ENGINE_SHOWN_MAX ? item : NULL;
}

/* With the job's run id behind its key; NULL: no memory. */
static struct mu_engine_item *copy_shown(struct mu_engine *e, const struct mu_engine_job *job,
                                         const struct mu_engine_item *item)
{
    struct mu_engine_kv kv = kv_of(item);
    char key[MU_ENGINE_KEY_MAX];
    struct mu_engine_op put = { .key = mu_slice(key, kv.key.len + job->len), .value = kv.value };
    struct mu_engine_item *copy;

    memcpy(key, kv.key.data, kv.key.len);
    memcpy(key + kv.key.len, job->run_id, job->len);
    copy = make_item(e, &put);
    if (copy != NULL) {
        copy->create = kv.create;
        copy->mod = kv.mod;
    }
    return copy;
}

static enum mu_engine_code find_others(struct mu_engine *e, const struct mu_engine_job *own, uint32_t limit,
                                       struct mu_engine_found *ret_found)
{
    size_t count = 0, max = limit > 0 ? limit : MU_ENGINE_LIMIT_MAX, made = 0;
    struct mu_engine_item **items;

    if (e->config.shows_none)
        return MU_ENGINE_OK;
    MU_LIST_EACH (struct mu_engine_job, job, &e->jobs, link)
        count += count < max && find_shown(job, own) != NULL;
    if (count == 0)
        return MU_ENGINE_OK;
    items = mu_engine_alloc(e, count * sizeof(struct mu_engine_item *));
    for (struct mu_list *link = e->jobs.prev; items != NULL && made < count; link = link->prev) {
        struct mu_engine_job *job = MU_LIST_ITEM(link, struct mu_engine_job, link);
        const struct mu_engine_item *shown = find_shown(job, own);

        if (shown != NULL && (items[made] = copy_shown(e, job, shown)) == NULL)
            break;
        made += shown != NULL;
    }
    if (made == count) {
        *ret_found = (struct mu_engine_found){ items, count };
        return MU_ENGINE_OK;
    }
    while (made-- > 0)
        drop_item(e, items[made]);
    mu_engine_release(e, items, count * sizeof(struct mu_engine_item *));
    return mu_engine_no_room(e, MU_ENGINE_NO_MEMORY);
}

static enum mu_engine_code check_range(const struct mu_engine_peer *peer, struct mu_slice key, bool prefix,
                                       uint32_t limit)
{
    if (peer->job == NULL)
        return MU_ENGINE_PRECONDITION;
    if (key.len > MU_ENGINE_KEY_MAX || (key.len == 0 && !prefix) || limit > MU_ENGINE_LIMIT_MAX)
        return MU_ENGINE_INVALID;
    return MU_ENGINE_OK;
}

enum mu_engine_code mu_engine_range(struct mu_engine *e, struct mu_engine_peer *peer, struct mu_slice key, bool prefix,
                                    uint32_t limit, struct mu_engine_found *ret_found)
{
    enum mu_engine_code code = check_range(peer, key, prefix, limit);

    *ret_found = (struct mu_engine_found){ 0 };
    if (code != MU_ENGINE_OK)
        return code;
    if (prefix && mu_slice_equal(key, mu_slice_str(MU_ENGINE_SHOWN)))
        return find_others(e, peer->job, limit, ret_found);
    return find_own(e, peer->job, key, prefix, limit, ret_found);
}

struct mu_engine_kv mu_engine_kv(const struct mu_engine_found *found, size_t index)
{
    assert(index < found->count);
    return kv_of(found->items[index]);
}

void mu_engine_found_done(struct mu_engine *e, struct mu_engine_found *found)
{
    for (size_t i = 0; i < found->count; i++)
        drop_item(e, found->items[i]);
    mu_engine_release(e, found->items, found->count * sizeof(struct mu_engine_item *));
    *found = (struct mu_engine_found){ 0 };
}

/* ---- Watches ---- */

static struct mu_slice prefix_of(const struct mu_engine_prefix *prefix)
{
    return mu_slice(prefix->bytes, prefix->len);
}

/* Doubles what there is for changes. */
static bool make_room(struct mu_engine *e, struct mu_engine_prefix *prefix)
{
    size_t room = prefix->room == 0 ? 16 : prefix->room * 2;
    struct mu_engine_change *changes;

    if (prefix->count < prefix->room)
        return true;
    changes = room <= MU_ENGINE_CHANGES_MAX ? mu_engine_alloc(e, room * sizeof *changes) : NULL;
    if (changes == NULL)
        return false;
    if (prefix->count > 0)
        memcpy(changes, prefix->changes, prefix->count * sizeof *changes);
    mu_engine_release(e, prefix->changes, prefix->room * sizeof *changes);
    prefix->changes = changes;
    prefix->room = room;
    return true;
}

static void note_change(struct mu_engine *e, struct mu_engine_job *job, struct mu_engine_change change)
{
    MU_LIST_EACH (struct mu_engine_prefix, prefix, &job->prefixes, link) {
        if (!begins_with(change.kv.key, prefix_of(prefix)))
            continue;
        e->has_changes = true;
        if (prefix->lost || !make_room(e, prefix)) {
            prefix->lost = true;
            continue;
        }
        change.item->holders++;
        prefix->changes[prefix->count++] = change;
    }
}

static void forget_changes(struct mu_engine *e, struct mu_engine_prefix *prefix)
{
    for (size_t i = 0; i < prefix->count; i++)
        drop_item(e, prefix->changes[i].item);
    mu_engine_release(e, prefix->changes, prefix->room * sizeof *prefix->changes);
    prefix->changes = NULL;
    prefix->count = prefix->room = 0;
    prefix->lost = false;
}

static void drop_prefix(struct mu_engine *e, struct mu_engine_job *job, struct mu_engine_prefix *prefix)
{
    if (!mu_list_empty(&prefix->watches))
        return;
    forget_changes(e, prefix);
    mu_list_remove(&prefix->link);
    job->prefixes_count--;
    mu_engine_release(e, prefix, sizeof *prefix + prefix->len);
}

static void end_watch(struct mu_engine *e, struct mu_engine_watch *watch)
{
    struct mu_engine_prefix *prefix = watch->prefix;

    mu_list_remove(&watch->link);
    watch->prefix = NULL;
    drop_prefix(e, watch->peer->job, prefix);
}

static void push_lost(struct mu_engine *e, struct mu_engine_prefix *prefix)
{
    MU_LIST_EACH_LEAVING (struct mu_engine_watch, watch, &prefix->watches, link) {
        e->config.push(e->config.ctx, watch->peer, watch->number, e->revision, NULL, 0);
        mu_list_remove(&watch->link);
        watch->prefix = NULL;
    }
}

static void push_changes(struct mu_engine *e, struct mu_engine_prefix *prefix)
{
    MU_LIST_EACH (struct mu_engine_watch, watch, &prefix->watches, link) {
        if (watch->from < prefix->count)
            e->config.push(e->config.ctx, watch->peer, watch->number, e->revision, prefix->changes + watch->from,
                           prefix->count - watch->from);
        watch->from = 0;
    }
}

bool mu_engine_has_changes(const struct mu_engine *e)
{
    return e->has_changes;
}

void mu_engine_flush(struct mu_engine *e)
{
    if (!e->has_changes)
        return;
    e->has_changes = false;
    MU_LIST_EACH (struct mu_engine_job, job, &e->jobs, link) {
        MU_LIST_EACH_LEAVING (struct mu_engine_prefix, prefix, &job->prefixes, link) {
            if (prefix->count == 0 && !prefix->lost)
                continue;
            if (prefix->lost)
                push_lost(e, prefix);
            else
                push_changes(e, prefix);
            forget_changes(e, prefix);
            drop_prefix(e, job, prefix);
        }
    }
}

static struct mu_engine_prefix *make_prefix(struct mu_engine *e, struct mu_engine_job *job, struct mu_slice bytes)
{
    bool room = job->prefixes_count < MU_ENGINE_PREFIXES_MAX;
    struct mu_engine_prefix *prefix = room ? mu_engine_alloc(e, sizeof *prefix + bytes.len) : NULL;

    if (prefix == NULL) {
        (void)mu_engine_no_room(e, room ? MU_ENGINE_NO_MEMORY : "the job has too many watched prefixes");
        return NULL;
    }
    mu_list_init(&prefix->watches);
    prefix->len = bytes.len;
    if (bytes.len > 0)
        memcpy(prefix->bytes, bytes.data, bytes.len);
    mu_list_push(&job->prefixes, &prefix->link);
    job->prefixes_count++;
    return prefix;
}

static struct mu_engine_prefix *find_prefix(struct mu_engine *e, struct mu_engine_job *job, struct mu_slice bytes)
{
    MU_LIST_EACH (struct mu_engine_prefix, prefix, &job->prefixes, link)
        if (mu_slice_equal(prefix_of(prefix), bytes))
            return prefix;
    return make_prefix(e, job, bytes);
}

/* The peer's watch of that number, or one that is not in use; NULL: it has too many. */
static struct mu_engine_watch *pick_watch(struct mu_engine_peer *peer, uint32_t number)
{
    struct mu_engine_watch *unused = NULL;

    for (size_t i = 0; i < MU_ENGINE_WATCHES_MAX; i++) {
        if (peer->watches[i].prefix == NULL)
            unused = &peer->watches[i];
        else if (peer->watches[i].number == number)
            return &peer->watches[i];
    }
    return unused;
}

enum mu_engine_code mu_engine_load(struct mu_engine *e, struct mu_engine_peer *peer, uint32_t number,
                                   struct mu_slice bytes, struct mu_engine_found *ret_found)
{
    enum mu_engine_code code = check_range(peer, bytes, true, 0);
    struct mu_engine_watch *watch;
    struct mu_engine_prefix *prefix;

    *ret_found = (struct mu_engine_found){ 0 };
    if (code == MU_ENGINE_OK)
        code = find_own(e, peer->job, bytes, true, 0, ret_found);
    if (code != MU_ENGINE_OK)
        return code;
    watch = pick_watch(peer, number);
    prefix = watch != NULL ? find_prefix(e, peer->job, bytes) : NULL;
    if (prefix == NULL) {
        mu_engine_found_done(e, ret_found);
        return mu_engine_no_room(e, watch == NULL ? "the connection has too many watches" : e->full);
    }
    if (watch->prefix != prefix) {
        if (watch->prefix != NULL)
            end_watch(e, watch);
        mu_list_push(&prefix->watches, &watch->link);
    }
    watch->prefix = prefix;
    watch->number = number;
    watch->from = prefix->count;
    return MU_ENGINE_OK;
}

void mu_engine_unwatch(struct mu_engine *e, struct mu_engine_peer *peer, uint32_t number)
{
    struct mu_engine_watch *watch = pick_watch(peer, number);

    if (watch != NULL && watch->prefix != NULL && watch->number == number)
        end_watch(e, watch);
}

void mu_engine_watches_done(struct mu_engine *e, struct mu_engine_peer *peer)
{
    for (size_t i = 0; i < MU_ENGINE_WATCHES_MAX; i++)
        if (peer->watches[i].prefix != NULL)
            end_watch(e, &peer->watches[i]);
}

/* ---- Changing keys ---- */

static void put_item(struct mu_engine *e, struct mu_engine_job *job, struct mu_engine_item *item)
{
    struct place place = find_place(job, key_of(item));
    struct mu_engine_item *before = *place.links[0];

    item->mod = item->create = e->revision;
    if (before != NULL && mu_slice_equal(key_of(before), key_of(item))) {
        item->create = before->create;
        mu_list_remove(&before->link);
        unlink_item(job, &place, before);
        drop_item(e, before);
    }
    link_item(job, &place, item);
    if (item->lease != 0)
        mu_list_push(&mu_engine_find_lease(e, job, item->lease)->items, &item->link);
    note_change(e, job, (struct mu_engine_change){ .kv = kv_of(item), .item = item });
}

static void delete_item(struct mu_engine *e, struct mu_engine_job *job, const struct place *place,
                        enum mu_engine_end end)
{
    struct mu_engine_item *item = *place->links[0];
    const struct mu_engine_lease *lease = item->lease != 0 ? mu_engine_find_lease(e, job, item->lease) : NULL;

    mu_list_remove(&item->link);
    unlink_item(job, place, item);
    note_change(e, job,
                (struct mu_engine_change){ .kv = { .key = key_of(item), .mod = e->revision },
                                           .item = item,
                                           .deleted = true,
                                           .end = end,
                                           .ago_ms = lease != NULL ? e->now_ms - lease->heard_ms : 0 });
    drop_item(e, item);
}

static void delete_keys(struct mu_engine *e, struct mu_engine_job *job, struct mu_slice key, bool prefix)
{
    struct place place = find_place(job, key);

    while (*place.links[0] != NULL && matches(*place.links[0], key, prefix))
        delete_item(e, job, &place, MU_ENGINE_DELETED);
}

bool mu_engine_put_own(struct mu_engine *e, struct mu_engine_job *job, struct mu_slice key, struct mu_slice value)
{
    const struct mu_engine_op put = { .kind = MU_ENGINE_PUT, .key = key, .value = value };
    struct mu_engine_item *item = value.data != NULL ? make_item(e, &put) : NULL;

    if (value.data != NULL && item == NULL)
        return false;
    e->revision++;
    if (item != NULL)
        put_item(e, job, item);
    else
        delete_keys(e, job, key, false);
    return true;
}

static int by_item_key(const void *a, const void *b)
{
    const struct mu_engine_item *const *left = a, *const *right = b;

    return compare_keys(key_of(*left), key_of(*right));
}

/* Moves those of the list behind each other in the order of their names. Without memory they stay as they are: only
 * etcd's order is lost. */
static void sort_items(struct mu_list *items)
{
    size_t count = 0, i = 0;
    struct mu_engine_item **sorted;

    MU_LIST_EACH (struct mu_engine_item, item, items, link)
        count++;
    sorted = count > 1 ? malloc(count * sizeof(struct mu_engine_item *)) : NULL;
    if (sorted == NULL)
        return;
    while ((sorted[i] = MU_LIST_POP(struct mu_engine_item, items, link)) != NULL && ++i < count)
        ;
    qsort(sorted, count, sizeof(struct mu_engine_item *), by_item_key);
    for (i = 0; i < count; i++)
        mu_list_push(items, &sorted[i]->link);
    free(sorted);
}

void mu_engine_end_keys(struct mu_engine *e, struct mu_engine_lease *lease, enum mu_engine_end end)
{
    if (mu_list_empty(&lease->items))
        return;
    e->revision++;
    sort_items(&lease->items);
    MU_LIST_EACH_LEAVING (struct mu_engine_item, item, &lease->items, link) {
        struct place place = find_place(lease->job, key_of(item));

        assert(*place.links[0] == item);
        delete_item(e, lease->job, &place, end);
    }
}

void mu_engine_items_done(struct mu_engine *e, struct mu_engine_job *job)
{
    struct mu_engine_item *item;

    while ((item = job->first[0]) != NULL) {
        job->first[0] = item->next[0];
        mu_list_remove(&item->link);
        drop_item(e, item);
    }
}

/* ---- Transactions ---- */

struct branch {
    const struct mu_engine_op *ops;
    size_t count;
};

static int by_key(const void *a, const void *b)
{
    const struct mu_engine_op *const *left = a, *const *right = b;

    return compare_keys((*left)->key, (*right)->key);
}

static bool is_op_valid(const struct mu_engine_op *op)
{
    if (op->key.len > MU_ENGINE_KEY_MAX || op->value.len > MU_ENGINE_VALUE_MAX)
        return false;
    switch (op->kind) {
    case MU_ENGINE_PUT:
    case MU_ENGINE_DELETE:
        return op->key.len > 0;
    case MU_ENGINE_DELETE_PREFIX:
        return true;
    case MU_ENGINE_DOCUMENT:
        return op->key.len == 0 && op->value.len > 0;
    case MU_ENGINE_YIELD:
        return op->key.len == 0 && op->value.len == 0;
    case MU_ENGINE_OPS_COUNT:
        break;
    }
    return false;
}

static bool is_delete(const struct mu_engine_op *op)
{
    return op->kind == MU_ENGINE_DELETE || op->kind == MU_ENGINE_DELETE_PREFIX;
}

static const struct mu_engine_op *find_op(const struct mu_engine_op *ops, size_t count, enum mu_engine_op_kind kind)
{
    for (size_t i = 0; i < count; i++)
        if (ops[i].kind == kind)
            return &ops[i];
    return NULL;
}

static bool gives_away(struct branch branch)
{
    return find_op(branch.ops, branch.count, MU_ENGINE_DOCUMENT) != NULL ||
           find_op(branch.ops, branch.count, MU_ENGINE_YIELD) != NULL;
}

/* Of puts by key: whether one of them is deleted, too. */
static bool is_put_deleted(const struct mu_engine_op *const *puts, size_t count, const struct mu_engine_op *op)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (compare_keys(puts[middle]->key, op->key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && (op->kind == MU_ENGINE_DELETE ? mu_slice_equal(puts[low]->key, op->key)
                                                        : begins_with(puts[low]->key, op->key));
}

/* No key is put twice, or put and deleted. */
static enum mu_engine_code check_branch(struct mu_engine *e, struct branch branch)
{
    const struct mu_engine_op **puts = malloc((branch.count + 1) * sizeof *puts);
    enum mu_engine_code code = MU_ENGINE_OK;
    size_t count = 0;

    if (puts == NULL)
        return mu_engine_no_room(e, MU_ENGINE_NO_MEMORY);
    for (size_t i = 0; code == MU_ENGINE_OK && i < branch.count; i++) {
        if (!is_op_valid(&branch.ops[i]))
            code = MU_ENGINE_INVALID;
        else if (branch.ops[i].kind == MU_ENGINE_PUT)
            puts[count++] = &branch.ops[i];
    }
    if (code == MU_ENGINE_OK) {
        qsort(puts, count, sizeof *puts, by_key);
        for (size_t i = 1; i < count; i++)
            if (mu_slice_equal(puts[i - 1]->key, puts[i]->key))
                code = MU_ENGINE_INVALID;
        for (size_t i = 0; i < branch.count; i++)
            if (is_delete(&branch.ops[i]) && is_put_deleted(puts, count, &branch.ops[i]))
                code = MU_ENGINE_INVALID;
    }
    free(puts);
    return code;
}

static enum mu_engine_code check_txn(struct mu_engine *e, const struct mu_engine_txn *txn)
{
    enum mu_engine_code code;

    if (txn->id == 0 || txn->compares_count > MU_ENGINE_COMPARES_MAX || txn->then_count > MU_ENGINE_OPS_MAX ||
        txn->otherwise_count > MU_ENGINE_OPS_MAX)
        return MU_ENGINE_INVALID;
    for (size_t i = 0; i < txn->compares_count; i++)
        if (txn->compares[i].kind >= MU_ENGINE_COMPARES_COUNT || txn->compares[i].key.len == 0 ||
            txn->compares[i].key.len > MU_ENGINE_KEY_MAX)
            return MU_ENGINE_INVALID;
    if (gives_away((struct branch){ txn->otherwise, txn->otherwise_count }) ||
        (e->config.document == NULL && gives_away((struct branch){ txn->then, txn->then_count })))
        return MU_ENGINE_INVALID;
    code = check_branch(e, (struct branch){ txn->then, txn->then_count });
    return code != MU_ENGINE_OK ? code : check_branch(e, (struct branch){ txn->otherwise, txn->otherwise_count });
}

/* What is the engine's own would be changed by somebody else. */
static bool takes_own(struct mu_engine_job *job, struct branch branch)
{
    const struct mu_slice own = mu_slice_str(MU_ENGINE_OUTSIDERS);

    for (size_t i = 0; i < branch.count; i++) {
        const struct mu_engine_op *op = &branch.ops[i];

        if (mu_slice_equal(op->key, own) ||
            (op->kind == MU_ENGINE_DELETE_PREFIX && begins_with(own, op->key) && find_first(job, own, false) != NULL))
            return true;
    }
    return false;
}

static bool holds(struct mu_engine_job *job, const struct mu_engine_compare *compare)
{
    const struct mu_engine_item *item = find_first(job, compare->key, false);

    switch (compare->kind) {
    case MU_ENGINE_IF_ABSENT:
        return item == NULL;
    case MU_ENGINE_IF_CREATE:
        return (item != NULL ? item->create : 0) == compare->revision;
    case MU_ENGINE_IF_MOD:
        return (item != NULL ? item->mod : 0) == compare->revision;
    case MU_ENGINE_COMPARES_COUNT:
        break;
    }
    return false;
}

static bool has_leases(const struct mu_engine *e, const struct mu_engine_job *job, struct branch branch)
{
    for (size_t i = 0; i < branch.count; i++)
        if (branch.ops[i].kind == MU_ENGINE_PUT && branch.ops[i].lease != 0 &&
            mu_engine_find_lease(e, job, branch.ops[i].lease) == NULL)
            return false;
    return true;
}

static bool changes_anything(struct mu_engine_job *job, struct branch branch)
{
    for (size_t i = 0; i < branch.count; i++)
        if (!is_delete(&branch.ops[i]) ||
            find_first(job, branch.ops[i].key, branch.ops[i].kind == MU_ENGINE_DELETE_PREFIX) != NULL)
            return true;
    return false;
}

/* The document first: there may be no room for it. A job that ends does without. */
static bool give_away(struct mu_engine *e, struct mu_engine_job *job, struct branch branch)
{
    const struct mu_engine_op *document = find_op(branch.ops, branch.count, MU_ENGINE_DOCUMENT);
    bool moves = find_op(branch.ops, branch.count, MU_ENGINE_YIELD) != NULL;
    bool is_put =
        document != NULL && e->config.document(e->config.ctx, mu_slice(job->run_id, job->len), document->value, !moves);

    if (document != NULL && moves && !is_put)
        return false;
    job->has_document |= is_put;
    job->moved |= moves;
    e->openings += gives_away(branch);
    return true;
}

static bool has_room(struct mu_engine_job *job, struct branch branch)
{
    size_t count = job->count;

    if (count + branch.count <= MU_ENGINE_KEYS_MAX)
        return true;
    for (size_t i = 0; i < branch.count; i++)
        count += branch.ops[i].kind == MU_ENGINE_PUT && find_first(job, branch.ops[i].key, false) == NULL;
    return count <= MU_ENGINE_KEYS_MAX;
}

/* All items that the puts need, or none. */
static bool make_items(struct mu_engine *e, struct branch branch, struct mu_engine_item **items)
{
    for (size_t i = 0; i < branch.count; i++) {
        items[i] = branch.ops[i].kind == MU_ENGINE_PUT ? make_item(e, &branch.ops[i]) : NULL;
        if (items[i] != NULL || branch.ops[i].kind != MU_ENGINE_PUT)
            continue;
        while (i-- > 0)
            if (items[i] != NULL)
                drop_item(e, items[i]);
        return false;
    }
    return true;
}

static enum mu_engine_code apply(struct mu_engine *e, struct mu_engine_job *job, struct branch branch)
{
    struct mu_engine_item **items;

    if (!has_leases(e, job, branch))
        return MU_ENGINE_NOT_FOUND;
    if (!changes_anything(job, branch))
        return MU_ENGINE_OK;
    if (!has_room(job, branch))
        return mu_engine_no_room(e, "the job has too many keys");
    items = malloc(branch.count * sizeof(struct mu_engine_item *));
    if (items == NULL || !make_items(e, branch, items)) {
        free(items);
        return mu_engine_no_room(e, MU_ENGINE_NO_MEMORY);
    }
    if (!give_away(e, job, branch)) {
        for (size_t i = 0; i < branch.count; i++)
            if (items[i] != NULL)
                drop_item(e, items[i]);
        free(items);
        return mu_engine_no_room(e, "the store has no room for the job's document");
    }
    e->revision++;
    for (size_t i = 0; i < branch.count; i++) {
        if (items[i] != NULL)
            put_item(e, job, items[i]);
        else if (is_delete(&branch.ops[i]))
            delete_keys(e, job, branch.ops[i].key, branch.ops[i].kind == MU_ENGINE_DELETE_PREFIX);
    }
    free(items);
    return MU_ENGINE_OK;
}

enum mu_engine_code mu_engine_txn(struct mu_engine *e, struct mu_engine_peer *peer, const struct mu_engine_txn *txn,
                                  bool *ret_held)
{
    bool held = true;
    enum mu_engine_code code;

    *ret_held = false;
    if (peer->job == NULL)
        return MU_ENGINE_PRECONDITION;
    if (peer->job->moved)
        return MU_ENGINE_MOVED;
    code = check_txn(e, txn);
    if (code != MU_ENGINE_OK)
        return code;
    if (takes_own(peer->job, (struct branch){ txn->then, txn->then_count }) ||
        takes_own(peer->job, (struct branch){ txn->otherwise, txn->otherwise_count }))
        return MU_ENGINE_INVALID;
    for (size_t i = 0; i < txn->compares_count; i++)
        held = held && holds(peer->job, &txn->compares[i]);
    code = apply(e, peer->job,
                 held ? (struct branch){ txn->then, txn->then_count }
                      : (struct branch){ txn->otherwise, txn->otherwise_count });
    if (code != MU_ENGINE_OK)
        return code;
    MU_LIST_EACH (struct mu_engine_lease, lease, &peer->leases, of_peer)
        lease->last = (struct mu_engine_last){ txn->id, held, e->revision };
    *ret_held = held;
    return MU_ENGINE_OK;
}
