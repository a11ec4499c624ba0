/* The key table from inside, for table.c and table_queues.c. */
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

static inline void mu_answer_number(struct mu_answer *out, enum mu_answer_kind kind, int64_t number)
{
    out->kind = kind;
    out->number = number;
}

/* ---- table.c ---- */

/* Takes that many bytes of the table's budget and of the peer's share. The peer has an account afterwards. */
enum mu_room mu_table_take(struct mu_table *table, struct mu_peer *peer, size_t bytes);
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
void mu_table_refuse_room(const struct mu_table *table, const struct mu_peer *peer, const struct mu_request *request,
                          enum mu_room why, struct mu_answer *out, struct muster_error *reterr);

/* ---- table_queues.c ---- */

void mu_table_queue_push(struct mu_table *table, struct mu_peer *peer, const struct mu_request *request,
                         struct mu_answer *out, struct muster_error *reterr);
void mu_table_queue_pop(struct mu_table *table, struct mu_peer *peer, const struct mu_request *request,
                        struct mu_answer *out, struct muster_error *reterr);
void mu_table_free_item(struct mu_table *table, struct mu_queue_item *item);
/* A peer that an item woke asks for something else: somebody else may have the item. */
void mu_table_settle_debt(struct mu_table *table, struct mu_peer *peer, const struct mu_request *request);
/* A peer that an item woke goes away, or gives up, without having taken it: somebody else may have it. */
void mu_table_pass_on(struct mu_table *table, struct mu_peer *peer);

#endif
