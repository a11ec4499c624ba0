/* A job's keys, transactions on them, and who is told of changes. See engine.h.
 *
 * Keys stand in one sorted array of pointers: a prefix is a run of it, and moving pointers is cheap at the sizes that
 * jobs have. A transaction first makes all that it may need, and then cannot fail. */
#include "store/engine_parts.h"

#include <assert.h>
#include <stdlib.h>

/* ---- Items ---- */

static size_t item_cost(size_t key_len, size_t value_len)
{
    return sizeof(struct mu_engine_item) + key_len + value_len;
}

static struct mu_engine_item *make_item(struct mu_engine *e, const struct mu_engine_op *put)
{
    size_t cost = item_cost(put->key.len, put->value.len);
    struct mu_engine_item *item;

    if (!mu_budget_take(e->config.budget, cost))
        return NULL;
    item = malloc(cost);
    if (item == NULL) {
        mu_budget_give(e->config.budget, cost);
        return NULL;
    }
    *item = (struct mu_engine_item){
        .holders = 1, .lease = put->lease, .key_len = put->key.len, .value_len = put->value.len
    };
    mu_list_init(&item->link);
    memcpy(item->bytes, put->key.data, put->key.len);
    if (put->value.len > 0)
        memcpy(item->bytes + put->key.len, put->value.data, put->value.len);
    return item;
}

static void drop_item(struct mu_engine *e, struct mu_engine_item *item)
{
    if (--item->holders > 0)
        return;
    mu_budget_give(e->config.budget, item_cost(item->key_len, item->value_len));
    free(item);
}

static struct mu_slice key_of(const struct mu_engine_item *item)
{
    return mu_slice(item->bytes, item->key_len);
}

static struct mu_engine_kv kv_of(const struct mu_engine_item *item)
{
    return (struct mu_engine_kv){ .key = key_of(item),
                                  .value = mu_slice(item->bytes + item->key_len, item->value_len),
                                  .create = item->create,
                                  .mod = item->mod,
                                  .lease = item->lease };
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

/* The first place whose key is not below. */
static size_t lower_bound(const struct mu_engine_job *job, struct mu_slice key)
{
    size_t low = 0, high = job->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (compare_keys(key_of(job->items[middle]), key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first place from there on whose key does not begin so. */
static size_t prefix_end(const struct mu_engine_job *job, size_t first, struct mu_slice prefix)
{
    size_t low = first, high = job->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (begins_with(key_of(job->items[middle]), prefix))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct mu_engine_found find(const struct mu_engine_job *job, struct mu_slice key, bool prefix)
{
    struct mu_engine_found found = { .job = job, .first = lower_bound(job, key) };

    if (prefix)
        found.count = prefix_end(job, found.first, key) - found.first;
    else
        found.count = found.first < job->count && mu_slice_equal(key_of(job->items[found.first]), key);
    return found;
}

static const struct mu_engine_item *find_item(const struct mu_engine_job *job, struct mu_slice key)
{
    struct mu_engine_found found = find(job, key, false);

    return found.count > 0 ? job->items[found.first] : NULL;
}

enum mu_engine_code mu_engine_range(const struct mu_engine_peer *peer, struct mu_slice key, bool prefix,
                                    struct mu_engine_found *ret_found)
{
    *ret_found = (struct mu_engine_found){ 0 };
    if (peer->job == NULL)
        return MU_ENGINE_PRECONDITION;
    if (key.len > MU_ENGINE_KEY_MAX || (key.len == 0 && !prefix))
        return MU_ENGINE_INVALID;
    *ret_found = find(peer->job, key, prefix);
    return MU_ENGINE_OK;
}

struct mu_engine_kv mu_engine_kv(const struct mu_engine_found *found, size_t index)
{
    assert(index < found->count);
    return kv_of(found->job->items[found->first + index]);
}

/* ---- Watches ---- */

static struct mu_slice prefix_of(const struct mu_engine_prefix *prefix)
{
    return mu_slice(prefix->bytes, prefix->len);
}

static bool make_room(struct mu_engine_prefix *prefix)
{
    size_t room = prefix->room == 0 ? 16 : prefix->room * 2;
    struct mu_engine_change *changes;
    struct mu_engine_item **items;

    if (prefix->count < prefix->room)
        return true;
    if (room > MU_ENGINE_CHANGES_MAX)
        return false;
    changes = realloc(prefix->changes, room * sizeof *changes);
    if (changes == NULL)
        return false;
    prefix->changes = changes;
    items = realloc(prefix->items, room * sizeof *items);
    if (items == NULL)
        return false;
    prefix->items = items;
    prefix->room = room;
    return true;
}

static void note_change(struct mu_engine *e, struct mu_engine_job *job, struct mu_engine_item *item,
                        const struct mu_engine_change *change)
{
    MU_LIST_EACH (struct mu_engine_prefix, prefix, &job->prefixes, link) {
        if (!begins_with(change->kv.key, prefix_of(prefix)))
            continue;
        e->has_changes = true;
        if (prefix->lost || !make_room(prefix)) {
            prefix->lost = true;
            continue;
        }
        item->holders++;
        prefix->items[prefix->count] = item;
        prefix->changes[prefix->count++] = *change;
    }
}

static void forget_changes(struct mu_engine *e, struct mu_engine_prefix *prefix)
{
    for (size_t i = 0; i < prefix->count; i++)
        drop_item(e, prefix->items[i]);
    prefix->count = 0;
    prefix->lost = false;
}

static size_t prefix_cost(size_t len)
{
    return sizeof(struct mu_engine_prefix) + len;
}

static void drop_prefix(struct mu_engine *e, struct mu_engine_job *job, struct mu_engine_prefix *prefix)
{
    if (!mu_list_empty(&prefix->watches))
        return;
    forget_changes(e, prefix);
    mu_list_remove(&prefix->link);
    job->prefixes_count--;
    mu_budget_give(e->config.budget, prefix_cost(prefix->len));
    free(prefix->changes);
    free(prefix->items);
    free(prefix);
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
    struct mu_engine_prefix *prefix;

    if (job->prefixes_count >= MU_ENGINE_PREFIXES_MAX || !mu_budget_take(e->config.budget, prefix_cost(bytes.len)))
        return NULL;
    prefix = calloc(1, prefix_cost(bytes.len));
    if (prefix == NULL) {
        mu_budget_give(e->config.budget, prefix_cost(bytes.len));
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
    enum mu_engine_code code = mu_engine_range(peer, bytes, true, ret_found);
    struct mu_engine_watch *watch;
    struct mu_engine_prefix *prefix;

    if (code != MU_ENGINE_OK)
        return code;
    watch = pick_watch(peer, number);
    prefix = watch != NULL ? find_prefix(e, peer->job, bytes) : NULL;
    if (prefix == NULL)
        return MU_ENGINE_EXHAUSTED;
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

static void link_to_lease(struct mu_engine *e, struct mu_engine_job *job, struct mu_engine_item *item)
{
    if (item->lease != 0)
        mu_list_push(&mu_engine_find_lease(e, job, item->lease)->items, &item->link);
}

/* There is room for it. */
static void put_item(struct mu_engine *e, struct mu_engine_job *job, struct mu_engine_item *item)
{
    struct mu_engine_found found = find(job, key_of(item), false);
    struct mu_engine_item **place = &job->items[found.first];

    item->mod = e->revision;
    item->create = found.count > 0 ? (*place)->create : e->revision;
    if (found.count > 0) {
        mu_list_remove(&(*place)->link);
        drop_item(e, *place);
    } else {
        assert(job->count < job->room);
        memmove(place + 1, place, (job->count++ - found.first) * sizeof(struct mu_engine_item *));
    }
    *place = item;
    link_to_lease(e, job, item);
    note_change(e, job, item, &(struct mu_engine_change){ .kv = kv_of(item) });
}

static void note_deleted(struct mu_engine *e, struct mu_engine_job *job, struct mu_engine_item *item,
                         enum mu_engine_end end)
{
    const struct mu_engine_lease *lease = item->lease != 0 ? mu_engine_find_lease(e, job, item->lease) : NULL;
    struct mu_engine_change change = { .kv = { .key = key_of(item), .mod = e->revision },
                                       .deleted = true,
                                       .end = end,
                                       .heard_ms = lease != NULL ? lease->heard_ms : 0 };

    mu_list_remove(&item->link);
    note_change(e, job, item, &change);
}

static void delete_found(struct mu_engine *e, struct mu_engine_job *job, struct mu_engine_found found,
                         enum mu_engine_end end)
{
    struct mu_engine_item **place;

    if (found.count == 0)
        return;
    place = &job->items[found.first];
    for (size_t i = 0; i < found.count; i++) {
        note_deleted(e, job, place[i], end);
        drop_item(e, place[i]);
    }
    memmove(place, place + found.count, (job->count - found.first - found.count) * sizeof(struct mu_engine_item *));
    job->count -= found.count;
}

/* Several keys of a lease go in the order of their names, as in etcd. */
static void end_many(struct mu_engine *e, struct mu_engine_lease *lease, enum mu_engine_end end)
{
    struct mu_engine_job *job = lease->job;
    size_t kept = 0;

    for (size_t i = 0; i < job->count; i++) {
        struct mu_engine_item *item = job->items[i];

        if (item->lease != lease->id) {
            job->items[kept++] = item;
            continue;
        }
        note_deleted(e, job, item, end);
        drop_item(e, item);
    }
    job->count = kept;
}

void mu_engine_end_keys(struct mu_engine *e, struct mu_engine_lease *lease, enum mu_engine_end end)
{
    const struct mu_list *first = mu_list_first(&lease->items);

    if (first == NULL)
        return;
    e->revision++;
    if (first->next != &lease->items)
        end_many(e, lease, end);
    else
        delete_found(e, lease->job, find(lease->job, key_of(MU_LIST_ITEM(first, struct mu_engine_item, link)), false),
                     end);
}

void mu_engine_items_done(struct mu_engine *e, struct mu_engine_job *job)
{
    for (size_t i = 0; i < job->count; i++)
        drop_item(e, job->items[i]);
    free(job->items);
    job->items = NULL;
    job->count = job->room = 0;
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
    return op->kind < MU_ENGINE_OPS_COUNT && op->key.len <= MU_ENGINE_KEY_MAX &&
           (op->key.len > 0 || op->kind == MU_ENGINE_DELETE_PREFIX) && op->value.len <= MU_ENGINE_VALUE_MAX;
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
static enum mu_engine_code check_branch(struct branch branch)
{
    const struct mu_engine_op **puts = malloc((branch.count + 1) * sizeof *puts);
    enum mu_engine_code code = puts != NULL ? MU_ENGINE_OK : MU_ENGINE_EXHAUSTED;
    size_t count = 0;

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
            if (branch.ops[i].kind != MU_ENGINE_PUT && is_put_deleted(puts, count, &branch.ops[i]))
                code = MU_ENGINE_INVALID;
    }
    free(puts);
    return code;
}

static enum mu_engine_code check_txn(const struct mu_engine_txn *txn)
{
    enum mu_engine_code code;

    if (txn->id == 0 || txn->compares_count > MU_ENGINE_COMPARES_MAX || txn->then_count > MU_ENGINE_OPS_MAX ||
        txn->otherwise_count > MU_ENGINE_OPS_MAX)
        return MU_ENGINE_INVALID;
    for (size_t i = 0; i < txn->compares_count; i++)
        if (txn->compares[i].kind >= MU_ENGINE_COMPARES_COUNT || txn->compares[i].key.len == 0 ||
            txn->compares[i].key.len > MU_ENGINE_KEY_MAX)
            return MU_ENGINE_INVALID;
    code = check_branch((struct branch){ txn->then, txn->then_count });
    return code != MU_ENGINE_OK ? code : check_branch((struct branch){ txn->otherwise, txn->otherwise_count });
}

static bool holds(const struct mu_engine_job *job, const struct mu_engine_compare *compare)
{
    const struct mu_engine_item *item = find_item(job, compare->key);

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

static bool reserve(struct mu_engine_job *job, size_t more)
{
    size_t room = job->room == 0 ? 16 : job->room;
    struct mu_engine_item **items;

    if (job->room - job->count >= more)
        return true;
    while (room - job->count < more)
        room *= 2;
    items = realloc(job->items, room * sizeof(struct mu_engine_item *));
    if (items == NULL)
        return false;
    job->items = items;
    job->room = room;
    return true;
}

static bool has_leases(const struct mu_engine *e, const struct mu_engine_job *job, struct branch branch)
{
    for (size_t i = 0; i < branch.count; i++)
        if (branch.ops[i].kind == MU_ENGINE_PUT && branch.ops[i].lease != 0 &&
            mu_engine_find_lease(e, job, branch.ops[i].lease) == NULL)
            return false;
    return true;
}

static size_t count_changes(const struct mu_engine_job *job, struct branch branch)
{
    size_t changes = 0;

    for (size_t i = 0; i < branch.count; i++)
        changes += branch.ops[i].kind == MU_ENGINE_PUT ||
                   find(job, branch.ops[i].key, branch.ops[i].kind == MU_ENGINE_DELETE_PREFIX).count > 0;
    return changes;
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
    if (count_changes(job, branch) == 0)
        return MU_ENGINE_OK;
    items = malloc(branch.count * sizeof(struct mu_engine_item *));
    if (items == NULL || !reserve(job, branch.count) || !make_items(e, branch, items)) {
        free(items);
        return MU_ENGINE_EXHAUSTED;
    }
    e->revision++;
    for (size_t i = 0; i < branch.count; i++) {
        if (items[i] != NULL)
            put_item(e, job, items[i]);
        else
            delete_found(e, job, find(job, branch.ops[i].key, branch.ops[i].kind == MU_ENGINE_DELETE_PREFIX),
                         MU_ENGINE_DELETED);
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
    code = check_txn(txn);
    if (code != MU_ENGINE_OK)
        return code;
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
