/* The key table. Every request is a function of its own below; mu_table_step() picks it.
 *
 * Happy path of a wake-up: WAIT finds a key missing, makes an entry without a value for it and hangs a registration in
 * that entry's list. A later SET gives the entry its value and walks the list: each registration counts its peer's
 * missing keys down, and a peer at zero goes to table->woken. Failures: a request without enough memory or budget is
 * refused before it has any effect. When a peer leaves, its registrations are removed. */
#include "store/table_parts.h"

#include "base/error.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum {
    NUMBER_TEXT_MAX = 24,
    SPENT_KEEP_BYTES = 4096, /* more than this is not kept for the next answer */
};

/* Keys that a peer waits for: those missing of one part of a WAIT's list. */
struct mu_regs {
    struct mu_regs *next;
    size_t count;
    struct mu_reg items[];
};

struct watch {
    struct mu_list by_entry, by_peer;
    struct mu_entry *entry;
    struct mu_peer *peer;
};

void mu_table_init(struct mu_table *table, struct mu_budget *budget, uint64_t value_bytes_max, struct mu_hash_seed seed)
{
    *table = (struct mu_table){ .budget = budget, .value_bytes_max = value_bytes_max, .seed = seed };
    mu_list_init(&table->woken);
    mu_list_init(&table->entries);
}

void mu_peer_init(struct mu_peer *peer)
{
    *peer = (struct mu_peer){ 0 };
    mu_list_init(&peer->woken);
    mu_list_init(&peer->watches);
    mu_list_init(&peer->owing);
}

/* ---- Accounts ---- */

void mu_account_release(struct mu_account *account)
{
    if (--account->holders > 0)
        return;
    assert(account->used == 0);
    free(account);
}

struct mu_account *mu_account_hold(struct mu_account *account)
{
    account->holders++;
    return account;
}

/* Whether the peer may have that much more. It has an account afterwards. */
static enum mu_room check_share(const struct mu_table *table, struct mu_peer *peer, size_t more)
{
    if (peer->account == NULL) {
        peer->account = calloc(1, sizeof *peer->account);
        if (peer->account == NULL)
            return MU_ROOM_NO_MEMORY;
        peer->account->holders = 1;
    }
    if (table->share_max != 0 && (more > table->share_max || peer->account->used > table->share_max - more))
        return MU_ROOM_OVER_SHARE;
    return MU_ROOM_ENOUGH;
}

void *mu_table_alloc(struct mu_table *table, struct mu_peer *peer, size_t bytes, size_t cleared, enum mu_room *ret_room)
{
    void *memory = NULL;

    *ret_room = check_share(table, peer, bytes);
    if (*ret_room == MU_ROOM_ENOUGH && !mu_budget_take(table->budget, bytes))
        *ret_room = MU_ROOM_OVER_TOTAL;
    if (*ret_room != MU_ROOM_ENOUGH)
        return NULL;
    memory = malloc(bytes);
    if (memory == NULL) {
        mu_budget_give(table->budget, bytes);
        *ret_room = MU_ROOM_NO_MEMORY;
        return NULL;
    }
    memset(memory, 0, cleared);
    peer->account->used += bytes;
    return memory;
}

void mu_table_give(struct mu_table *table, struct mu_account *account, size_t bytes)
{
    assert(account->used >= bytes);
    account->used -= bytes;
    mu_budget_give(table->budget, bytes);
}

/* ---- Entries ---- */

static size_t entry_cost(size_t key_len)
{
    return sizeof(struct mu_entry) + key_len;
}

static struct mu_entry *find_hashed(const struct mu_table *table, struct mu_slice key, unsigned hash)
{
    for (struct mu_bucket_item *item = mu_buckets_first(&table->buckets, hash); item != NULL; item = item->next) {
        struct mu_entry *entry = MU_LIST_ITEM(item, struct mu_entry, item);

        if (item->hash == hash && entry->key_len == key.len &&
            (key.len == 0 || memcmp(entry->key, key.data, key.len) == 0))
            return entry;
    }
    return NULL;
}

struct mu_entry *mu_table_find(const struct mu_table *table, struct mu_slice key)
{
    return find_hashed(table, key, mu_hash(table->seed, key));
}

enum mu_room mu_table_find_or_make(struct mu_table *table, struct mu_peer *peer, struct mu_slice key,
                                   struct mu_entry **ret_entry)
{
    unsigned hash = mu_hash(table->seed, key);
    struct mu_entry *entry = find_hashed(table, key, hash);
    enum mu_room room;

    *ret_entry = entry;
    if (entry != NULL)
        return MU_ROOM_ENOUGH;
    entry = mu_table_alloc(table, peer, entry_cost(key.len), sizeof *entry, &room);
    if (entry == NULL)
        return room;
    if (!mu_buckets_add(&table->buckets, &entry->item, hash)) {
        free(entry);
        mu_table_give(table, peer->account, entry_cost(key.len));
        return MU_ROOM_NO_MEMORY;
    }
    mu_list_init(&entry->waiters);
    mu_list_init(&entry->watchers);
    mu_list_init(&entry->queue);
    mu_list_init(&entry->owing);
    entry->key_len = key.len;
    if (key.len > 0)
        memcpy(entry->key, key.data, key.len);
    mu_list_push(&table->entries, &entry->link);
    entry->account = mu_account_hold(peer->account);
    *ret_entry = entry;
    return MU_ROOM_ENOUGH;
}

void mu_table_drop_if_idle(struct mu_table *table, struct mu_entry *entry)
{
    if (entry->has_value || !mu_list_empty(&entry->queue) || !mu_list_empty(&entry->waiters) ||
        !mu_list_empty(&entry->watchers))
        return;
    assert(mu_list_empty(&entry->owing)); /* only a queue with an item has debtors */
    mu_buckets_remove(&table->buckets, &entry->item);
    mu_list_remove(&entry->link);
    mu_table_give(table, entry->account, entry_cost(entry->key_len) + entry->value.cap);
    mu_account_release(entry->account);
    mu_buf_done(&entry->value);
    free(entry);
}

static bool exists(const struct mu_entry *entry)
{
    return entry != NULL && (entry->has_value || !mu_list_empty(&entry->queue));
}

struct mu_slice mu_entry_key(const struct mu_entry *entry)
{
    return mu_slice(entry->key, entry->key_len);
}

static struct mu_slice value_of(const struct mu_entry *entry)
{
    return entry != NULL && entry->has_value ? mu_buf_slice(&entry->value) : mu_slice(NULL, 0);
}

struct mu_slice mu_table_get(const struct mu_table *table, struct mu_slice key)
{
    return value_of(mu_table_find(table, key));
}

const struct mu_entry *mu_table_next(const struct mu_table *table, const struct mu_entry *after)
{
    const struct mu_list *link = after == NULL ? table->entries.next : after->link.next;

    for (; link != &table->entries; link = link->next) {
        const struct mu_entry *entry = MU_LIST_ITEM(link, struct mu_entry, link);

        if (entry->has_value)
            return entry;
    }
    return NULL;
}

/* ---- Waking ---- */

void mu_table_satisfy(struct mu_table *table, struct mu_reg *reg)
{
    struct mu_peer *peer = reg->peer;

    mu_list_remove(&reg->link);
    reg->entry = NULL;
    assert(peer->missing > 0);
    peer->missing--;
    if (peer->missing == 0)
        mu_list_push(&table->woken, &peer->woken);
}

static void wake_all(struct mu_table *table, struct mu_entry *entry)
{
    struct mu_list *link;

    while ((link = mu_list_first(&entry->waiters)) != NULL)
        mu_table_satisfy(table, MU_LIST_ITEM(link, struct mu_reg, link));
}

static size_t regs_cost(size_t count)
{
    return sizeof(struct mu_regs) + count * sizeof(struct mu_reg);
}

static void free_first_regs(struct mu_table *table, struct mu_peer *peer)
{
    struct mu_regs *regs = peer->regs;

    peer->regs = regs->next;
    mu_table_give(table, peer->account, regs_cost(regs->count));
    free(regs);
}

/* All keys have come. */
static void free_regs(struct mu_table *table, struct mu_peer *peer)
{
    assert(peer->missing == 0 && peer->reg.entry == NULL);
    while (peer->regs != NULL)
        free_first_regs(table, peer);
}

struct mu_peer *mu_table_pop_woken(struct mu_table *table)
{
    struct mu_list *link = mu_list_pop(&table->woken);
    struct mu_peer *peer;

    if (link == NULL)
        return NULL;
    peer = MU_LIST_ITEM(link, struct mu_peer, woken);
    free_regs(table, peer);
    return peer;
}

static void unhang(struct mu_table *table, struct mu_reg *reg)
{
    struct mu_entry *entry = reg->entry;

    if (entry == NULL)
        return;
    mu_list_remove(&reg->link);
    reg->entry = NULL;
    mu_table_drop_if_idle(table, entry);
}

bool mu_table_cancel_some(struct mu_table *table, struct mu_peer *peer)
{
    if (peer->regs == NULL)
        return false;
    mu_list_remove(&peer->woken);
    peer->missing = SIZE_MAX; /* no key that comes before all parts are cancelled can wake it */
    for (size_t i = 0; i < peer->regs->count; i++)
        unhang(table, &peer->regs->items[i]);
    free_first_regs(table, peer);
    return peer->regs != NULL;
}

bool mu_peer_waits_long(const struct mu_peer *peer)
{
    return peer->regs != NULL && peer->regs->next != NULL;
}

void mu_table_cancel_wait(struct mu_table *table, struct mu_peer *peer)
{
    mu_list_remove(&peer->woken);
    unhang(table, &peer->reg);
    while (mu_table_cancel_some(table, peer))
        continue;
    peer->missing = 0;
}

static void hang(struct mu_peer *peer, struct mu_reg *reg, struct mu_entry *entry)
{
    *reg = (struct mu_reg){ .entry = entry, .peer = peer };
    mu_list_push(&entry->waiters, &reg->link);
    peer->missing++;
}

/* ---- Answers ---- */

static void answer_bytes(struct mu_answer *out, struct mu_slice bytes)
{
    out->kind = MU_ANSWER_BYTES;
    out->bytes = bytes;
}

void mu_step_refuse(const struct mu_step *step, struct mu_entry *entry, enum mu_room why)
{
    const struct mu_table *table = step->table;
    const char *op = mu_op_name(step->request->op);

    step->out->kind = MU_ANSWER_REFUSED;
    switch (why) {
    case MU_ROOM_ENOUGH:
        abort();
    case MU_ROOM_OVER_SHARE:
        (void)mu_fail(step->reterr, MUSTER_ELIMIT,
                      "no room for this %s: the connection has %zu bytes in the store; the limit for one connection is "
                      "%zu, a quarter of all",
                      op, step->peer->account->used, table->share_max);
        break;
    case MU_ROOM_OVER_TOTAL:
        (void)mu_fail(step->reterr, MUSTER_ELIMIT, "no room for this %s: %zu of %zu bytes are in use", op,
                      table->budget->used, table->budget->max);
        break;
    case MU_ROOM_NO_MEMORY:
        (void)mu_fail(step->reterr, MUSTER_ELIMIT, "no memory for this %s", op);
        break;
    }
    if (entry != NULL)
        mu_table_drop_if_idle(step->table, entry);
}

/* ---- Changing a value ---- */

/* Remembers what watchers will be told. The old bytes move to `spent`, for the value is about to be overwritten. */
static int note_before(struct mu_table *table, struct mu_entry *entry, struct mu_answer *out)
{
    int rc;

    if (mu_list_empty(&entry->watchers))
        return 0;
    rc = mu_buf_assign(&table->spent, entry->has_value ? mu_buf_slice(&entry->value) : mu_slice("", 0));
    if (rc < 0)
        return rc;
    out->change = (struct mu_change){ .kind = entry->has_value ? MU_KEY_UPDATED : MU_KEY_CREATED,
                                      .key = mu_entry_key(entry),
                                      .before = mu_buf_slice(&table->spent),
                                      .watchers = &entry->watchers };
    return 0;
}

/* Whether the peer may make the entry's value `cap` bytes large. The entry is then charged to the peer. */
static enum mu_room check_growth(const struct mu_table *table, struct mu_peer *peer, const struct mu_entry *entry,
                                 size_t cap)
{
    size_t more = cap;

    if (cap <= entry->value.cap)
        return MU_ROOM_ENOUGH;
    if (entry->account == peer->account)
        more -= entry->value.cap;
    else
        more += entry_cost(entry->key_len);
    return check_share(table, peer, more);
}

/* The capacity of the value has changed. The entry is charged to the peer that made it larger. */
static void charge_value(struct mu_entry *entry, struct mu_account *account, size_t cap_before)
{
    size_t key = entry_cost(entry->key_len);

    if (entry->value.cap > cap_before && entry->account != account) {
        assert(entry->account->used >= key + cap_before);
        entry->account->used -= key + cap_before;
        mu_account_release(entry->account);
        entry->account = mu_account_hold(account);
        account->used += key + entry->value.cap;
    } else {
        entry->account->used = entry->account->used - cap_before + entry->value.cap;
    }
}

/* Gives the entry a value, or appends to the one it has. The budget is asked for the worst case first, and gets back
 * what was not needed. */
static enum mu_room put(const struct mu_step *step, struct mu_entry *entry, struct mu_slice value, bool appends)
{
    struct mu_budget *budget = step->table->budget;
    size_t cap_before = entry->value.cap, len = value.len + (appends ? entry->value.len : 0);
    size_t worst = appends ? 2 * len + 64 : len + 1; /* a buffer that grows may become twice as large as needed */
    enum mu_room room = MU_ROOM_ENOUGH;
    int rc;

    if (len > cap_before || entry->value.data == NULL)
        room = check_growth(step->table, step->peer, entry, appends ? worst : len + (len == 0));
    if (room != MU_ROOM_ENOUGH)
        return room;
    if (!mu_budget_take(budget, worst))
        return MU_ROOM_OVER_TOTAL;
    rc = note_before(step->table, entry, step->out);
    if (rc == 0)
        rc = appends ? mu_buf_append(&entry->value, value.data, value.len, SIZE_MAX)
                     : mu_buf_assign(&entry->value, value);
    mu_budget_give(budget, cap_before + worst - entry->value.cap);
    if (rc < 0) {
        step->out->change.watchers = NULL;
        return MU_ROOM_NO_MEMORY;
    }
    charge_value(entry, step->peer->account, cap_before);
    if (!entry->has_value)
        step->table->keys++;
    entry->has_value = true;
    if (step->out->change.watchers != NULL)
        step->out->change.after = mu_buf_slice(&entry->value);
    return MU_ROOM_ENOUGH;
}

/* Finds or makes the entry and gives it the value; NULL when that was refused. */
static struct mu_entry *write_value(const struct mu_step *step, struct mu_slice value)
{
    struct mu_entry *entry;
    enum mu_room room = mu_table_find_or_make(step->table, step->peer, step->request->key, &entry);

    if (room == MU_ROOM_ENOUGH)
        room = put(step, entry, value, false);
    if (room == MU_ROOM_ENOUGH)
        return entry;
    mu_step_refuse(step, entry, room);
    return NULL;
}

static void set(const struct mu_step *step)
{
    struct mu_entry *entry = write_value(step, step->request->value);

    if (entry != NULL)
        wake_all(step->table, entry);
}

static void append(const struct mu_step *step)
{
    struct mu_entry *entry;
    enum mu_room room = mu_table_find_or_make(step->table, step->peer, step->request->key, &entry);
    size_t len = entry == NULL ? 0 : entry->value.len + step->request->value.len;

    if (len > step->table->value_bytes_max) {
        step->out->kind = MU_ANSWER_REFUSED;
        (void)mu_fail(step->reterr, MUSTER_ELIMIT, "APPEND would make a value of %zu bytes; the limit is %" PRIu64, len,
                      step->table->value_bytes_max);
        mu_table_drop_if_idle(step->table, entry);
        return;
    }
    if (room == MU_ROOM_ENOUGH)
        room = put(step, entry, step->request->value, true);
    if (room == MU_ROOM_ENOUGH)
        wake_all(step->table, entry);
    else
        mu_step_refuse(step, entry, room);
}

static void compare_set(const struct mu_step *step)
{
    struct mu_slice expected = step->request->value, desired = step->request->desired;
    struct mu_entry *entry = mu_table_find(step->table, step->request->key);
    bool present = entry != NULL && entry->has_value;

    if (!present && expected.len > 0) {
        answer_bytes(step->out, expected); /* stays missing; the expected value goes back, as stock servers do */
        return;
    }
    if (present && !mu_slice_equal(mu_buf_slice(&entry->value), expected)) {
        answer_bytes(step->out, mu_buf_slice(&entry->value));
        return;
    }
    entry = write_value(step, desired);
    if (entry == NULL)
        return;
    answer_bytes(step->out, mu_buf_slice(&entry->value));
    if (!present || !mu_slice_equal(expected, desired))
        wake_all(step->table, entry);
}

bool mu_table_number(struct mu_slice text, int64_t *ret_number)
{
    size_t i = 0;
    bool negative;
    uint64_t magnitude = 0, max;

    while (i < text.len && (text.data[i] == ' ' || (text.data[i] >= '\t' && text.data[i] <= '\r')))
        i++;
    negative = i < text.len && text.data[i] == '-';
    if (i < text.len && (text.data[i] == '-' || text.data[i] == '+'))
        i++;
    if (i == text.len || text.data[i] < '0' || text.data[i] > '9')
        return false;
    max = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    for (; i < text.len && text.data[i] >= '0' && text.data[i] <= '9'; i++) {
        uint64_t digit = (uint64_t)(text.data[i] - '0');

        if (magnitude > (max - digit) / 10)
            return false;
        magnitude = magnitude * 10 + digit;
    }
    *ret_number = (int64_t)(negative ? 0 - magnitude : magnitude);
    return true;
}

static struct mu_slice format_number(int64_t number, char text[static NUMBER_TEXT_MAX])
{
    uint64_t magnitude = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t at = NUMBER_TEXT_MAX;

    do {
        text[--at] = (char)('0' + magnitude % 10);
        magnitude /= 10;
    } while (magnitude > 0);
    if (number < 0)
        text[--at] = '-';
    return mu_slice(text + at, NUMBER_TEXT_MAX - at);
}

/* Adds to a key's number, wrapping around at the 64-bit edges. NULL when it was refused. */
static struct mu_entry *count(const struct mu_step *step, int64_t delta)
{
    struct mu_entry *entry;
    enum mu_room room = mu_table_find_or_make(step->table, step->peer, step->request->key, &entry);
    char text[NUMBER_TEXT_MAX];
    int64_t number = 0;

    if (room == MU_ROOM_ENOUGH && entry->has_value && !mu_table_number(mu_buf_slice(&entry->value), &number)) {
        step->out->kind = MU_ANSWER_REFUSED;
        (void)mu_fail(step->reterr, MUSTER_EINVAL, "%s on a value that is not a number of 64 bits",
                      mu_op_name(step->request->op));
        return NULL;
    }
    number = (int64_t)((uint64_t)number + (uint64_t)delta);
    if (room == MU_ROOM_ENOUGH)
        room = put(step, entry, format_number(number, text), false);
    if (room != MU_ROOM_ENOUGH) {
        mu_step_refuse(step, entry, room);
        return NULL;
    }
    mu_answer_number(step->out, MU_ANSWER_NUMBER, number);
    return entry;
}

static void add(const struct mu_step *step)
{
    struct mu_entry *entry = count(step, step->request->number);

    if (entry != NULL)
        wake_all(step->table, entry);
}

/* Counts arrivals at a key. Only the last arrival wakes the others. */
static void barrier(const struct mu_step *step)
{
    struct mu_entry *entry;

    mu_table_cancel_wait(step->table, step->peer);
    entry = count(step, 1);
    if (entry == NULL)
        return;
    if (step->out->number >= step->request->number) {
        mu_answer_number(step->out, MU_ANSWER_BYTE, MU_STOP_WAITING);
        wake_all(step->table, entry);
    } else {
        step->out->kind = MU_ANSWER_NONE;
        hang(step->peer, &step->peer->reg, entry);
    }
}

static void delete_key(const struct mu_step *step)
{
    struct mu_table *table = step->table;
    struct mu_entry *entry = mu_table_find(table, step->request->key);

    mu_answer_number(step->out, MU_ANSWER_NUMBER, entry != NULL && entry->has_value);
    if (step->out->number == 0)
        return;
    mu_buf_done(&table->spent);
    table->spent = entry->value;
    mu_table_give(table, entry->account, entry->value.cap);
    entry->value = (struct mu_buf){ 0 };
    entry->has_value = false;
    table->keys--;
    if (!mu_list_empty(&entry->watchers))
        step->out->change = (struct mu_change){ .kind = MU_KEY_DELETED,
                                                .key = mu_entry_key(entry),
                                                .before = mu_buf_slice(&table->spent),
                                                .after = mu_slice("", 0),
                                                .watchers = &entry->watchers };
    else
        mu_table_drop_if_idle(table, entry);
}

/* ---- Asking ---- */

static size_t count_missing(const struct mu_table *table, const struct mu_request *request)
{
    struct mu_slice list = request->list, key;
    size_t missing = 0;

    while (mu_request_next(&list, &key, NULL))
        missing += !exists(mu_table_find(table, key));
    return missing;
}

/* Registers for the keys of this list that are missing. */
static enum mu_room hang_missing(const struct mu_step *step, size_t missing)
{
    const struct mu_request *request = step->request;
    struct mu_slice list = request->list, key;
    struct mu_peer *peer = step->peer;
    struct mu_reg *reg = &peer->reg;
    enum mu_room room = MU_ROOM_ENOUGH;
    struct mu_regs *regs;

    if (missing > 1 || request->has_earlier || request->has_more) {
        regs = mu_table_alloc(step->table, peer, regs_cost(missing), regs_cost(missing), &room);
        if (regs == NULL)
            return room;
        regs->count = missing;
        regs->next = peer->regs;
        peer->regs = regs;
        reg = regs->items;
    }
    while (room == MU_ROOM_ENOUGH && mu_request_next(&list, &key, NULL)) {
        struct mu_entry *entry;

        room = mu_table_find_or_make(step->table, peer, key, &entry);
        if (room == MU_ROOM_ENOUGH && !exists(entry))
            hang(peer, reg++, entry);
    }
    return room;
}

static void wait_for(const struct mu_step *step)
{
    const struct mu_request *request = step->request;
    struct mu_peer *peer = step->peer;
    enum mu_room room = MU_ROOM_ENOUGH;
    size_t missing;

    if (!request->has_earlier) {
        mu_table_cancel_wait(step->table, peer); /* a new WAIT replaces the old one whole */
        peer->missing = 1;                       /* the request itself, until all of its keys have been looked at */
    }
    missing = count_missing(step->table, request);
    if (missing > 0)
        room = hang_missing(step, missing);
    if (room != MU_ROOM_ENOUGH) {
        mu_step_refuse(step, NULL, room);
        if (!request->has_earlier)
            mu_table_cancel_wait(step->table, peer);
        return;
    }
    if (request->has_more)
        return;
    assert(peer->missing > 0);
    peer->missing--;
    if (peer->missing > 0)
        return;
    free_regs(step->table, peer);
    mu_answer_number(step->out, MU_ANSWER_BYTE, MU_STOP_WAITING);
}

/* ---- Watches ---- */

static void watch_key(const struct mu_step *step)
{
    struct mu_entry *entry;
    struct watch *watch = NULL;
    enum mu_room room = mu_table_find_or_make(step->table, step->peer, step->request->key, &entry);

    if (room == MU_ROOM_ENOUGH)
        watch = mu_table_alloc(step->table, step->peer, sizeof *watch, sizeof *watch, &room);
    if (watch == NULL) {
        mu_step_refuse(step, entry, room);
        return;
    }
    watch->entry = entry;
    watch->peer = step->peer;
    mu_list_push(&entry->watchers, &watch->by_entry);
    mu_list_push(&step->peer->watches, &watch->by_peer);
    mu_answer_number(step->out, MU_ANSWER_BYTE, MU_KEY_WATCHED);
}

struct mu_peer *mu_watch_peer(const struct mu_list *watch)
{
    return MU_LIST_ITEM(watch, struct watch, by_entry)->peer;
}

static void unwatch(struct mu_table *table, struct watch *watch)
{
    struct mu_entry *entry = watch->entry;

    mu_list_remove(&watch->by_entry);
    mu_list_remove(&watch->by_peer);
    mu_table_give(table, watch->peer->account, sizeof *watch);
    free(watch);
    mu_table_drop_if_idle(table, entry);
}

/* ---- Steps ---- */

void mu_table_step(struct mu_table *table, struct mu_peer *peer, const struct mu_request *request,
                   struct mu_answer *out, struct muster_error *reterr)
{
    const struct mu_step step = { table, peer, request, out, reterr };
    const struct mu_entry *entry;

    assert(mu_list_empty(&table->woken)); /* those of the last step have been told */
    if (table->spent.cap > SPENT_KEEP_BYTES)
        mu_buf_done(&table->spent);
    *out = (struct mu_answer){ .kind = MU_ANSWER_NONE };
    if (peer->owes != NULL)
        mu_table_settle_debt(table, peer, request);
    switch (request->op) {
    case MU_OP_VALIDATE:
        break;
    case MU_OP_SET:
        set(&step);
        break;
    case MU_OP_COMPARE_SET:
        compare_set(&step);
        break;
    case MU_OP_GET: /* a missing key reads as empty; clients WAIT first */
        answer_bytes(out, mu_table_get(table, request->key));
        break;
    case MU_OP_ADD:
        add(&step);
        break;
    case MU_OP_CHECK:
        mu_answer_number(out, MU_ANSWER_BYTE, count_missing(table, request) == 0 ? MU_CHECK_READY : MU_CHECK_NOT_READY);
        break;
    case MU_OP_WAIT:
        wait_for(&step);
        break;
    case MU_OP_NUM_KEYS:
        mu_answer_number(out, MU_ANSWER_NUMBER, (int64_t)table->keys);
        break;
    case MU_OP_WATCH_KEY:
        watch_key(&step);
        break;
    case MU_OP_DELETE_KEY:
        delete_key(&step);
        break;
    case MU_OP_APPEND:
        append(&step);
        break;
    case MU_OP_MULTI_GET:
        out->kind = MU_ANSWER_VALUES;
        break;
    case MU_OP_MULTI_SET: /* comes as its SETs */
        abort();
    case MU_OP_CANCEL_WAIT:
        mu_table_cancel_wait(table, peer);
        mu_answer_number(out, MU_ANSWER_BYTE, MU_WAIT_CANCELED);
        break;
    case MU_OP_PING:
        mu_answer_number(out, MU_ANSWER_WORD, request->number);
        break;
    case MU_OP_QUEUE_PUSH:
        mu_step_queue_push(&step);
        break;
    case MU_OP_QUEUE_POP:
        mu_step_queue_pop(&step);
        break;
    case MU_OP_QUEUE_LEN:
        entry = mu_table_find(table, request->key);
        mu_answer_number(out, MU_ANSWER_NUMBER, entry == NULL ? 0 : entry->queue_len);
        break;
    case MU_OP_LIST_KEYS:
        mu_answer_number(out, MU_ANSWER_KEYS, (int64_t)table->keys);
        break;
    case MU_OP_BARRIER:
        barrier(&step);
        break;
    }
}

void mu_table_leave(struct mu_table *table, struct mu_peer *peer)
{
    struct watch *watch;

    mu_table_cancel_wait(table, peer);
    mu_table_pass_on(table, peer);
    while ((watch = MU_LIST_FIRST(struct watch, &peer->watches, by_peer)) != NULL)
        unwatch(table, watch);
    if (peer->account != NULL)
        mu_account_release(peer->account);
    peer->account = NULL;
}

void mu_table_done(struct mu_table *table)
{
    struct mu_queue_item *item;
    struct mu_entry *entry;

    while ((entry = MU_LIST_FIRST(struct mu_entry, &table->entries, link)) != NULL) {
        assert(mu_list_empty(&entry->waiters) && mu_list_empty(&entry->watchers));
        while ((item = MU_LIST_POP(struct mu_queue_item, &entry->queue, link)) != NULL)
            mu_table_free_item(table, item);
        entry->has_value = false;
        mu_table_drop_if_idle(table, entry);
    }
    mu_buckets_done(&table->buckets);
    mu_buf_done(&table->spent);
    table->keys = 0;
}
