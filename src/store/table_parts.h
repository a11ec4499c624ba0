/* The key table from inside, for table.c (entries, waits, the budget) and table_queues.c (queues). */
#ifndef MU_STORE_TABLE_PARTS_H
#define MU_STORE_TABLE_PARTS_H

#include "store/table.h"

struct mu_queue_item {
    struct mu_list link; /* in entry->queue */
    struct mu_account *account;
    size_t len;
    char data[];
};

/* What one connection has in the table. It stays for as long as the connection or anything that is charged to it. */
struct mu_account {
    size_t used;
    size_t holders; /* the peer, entries and items */
};

/* Is there room for something, and if not, why? */
enum mu_room { MU_ROOM_ENOUGH, MU_ROOM_OVER_SHARE, MU_ROOM_OVER_TOTAL, MU_ROOM_NO_MEMORY };

struct mu_entry {
    struct mu_bucket_item item; /* in table->buckets */
    struct mu_list link;        /* in table->entries */
    struct mu_buf value;
    struct mu_account *account; /* of the connection that last made the entry larger */
    bool has_value;
    struct mu_list waiters;  /* of struct mu_reg */
    struct mu_list watchers; /* of struct watch, table.c */
    struct mu_list queue;    /* of struct mu_queue_item */
    struct mu_list owing;    /* of struct mu_peer: woken by an item and not yet come for it */
    int64_t queue_len;
    size_t key_len;
    char key[];
};

/* A request that is being carried out: what mu_table_step() was given. */
struct mu_step {
    struct mu_table *table;
    struct mu_peer *peer;
    const struct mu_request *request;
    struct mu_answer *out;
    struct muster_error *reterr;
};

static inline void mu_answer_number(struct mu_answer *out, enum mu_answer_kind kind, int64_t number)
{
    out->kind = kind;
    out->number = number;
}

/* ---- table.c ---- */

/* Memory of that many bytes, the first `cleared` of them zeroed, charged to the table's budget and to the peer's
 * account. NULL: *ret_room says why. */
void *mu_table_alloc(struct mu_table *table, struct mu_peer *peer, size_t bytes, size_t cleared,
                     enum mu_room *ret_room);
void mu_table_give(struct mu_table *table, struct mu_account *account, size_t bytes);
struct mu_account *mu_account_hold(struct mu_account *account);
void mu_account_release(struct mu_account *account);

struct mu_entry *mu_table_find(const struct mu_table *table, struct mu_slice key);
/* *ret_entry is NULL if there is no room for one. */
enum mu_room mu_table_find_or_make(struct mu_table *table, struct mu_peer *peer, struct mu_slice key,
                                   struct mu_entry **ret_entry);
/* Forgets an entry that has neither value nor item, and that nobody waits for or watches. */
void mu_table_drop_if_idle(struct mu_table *table, struct mu_entry *entry);
/* A key that somebody waits for has come. */
void mu_table_satisfy(struct mu_table *table, struct mu_reg *reg);
/* There is no room for the request. If its entry, which may be NULL, was made for it, the entry goes again. */
void mu_step_refuse(const struct mu_step *step, struct mu_entry *entry, enum mu_room why);

/* ---- table_queues.c ---- */

void mu_step_queue_push(const struct mu_step *step);
void mu_step_queue_pop(const struct mu_step *step);
void mu_table_free_item(struct mu_table *table, struct mu_queue_item *item);
/* A peer that an item woke asks for something else: the next peer may have the item. */
void mu_table_settle_debt(struct mu_table *table, struct mu_peer *peer, const struct mu_request *request);
/* A peer that an item woke goes away, or gives up, without having taken it: the next peer may have it. */
void mu_table_pass_on(struct mu_table *table, struct mu_peer *peer);

#endif
