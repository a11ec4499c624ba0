/* The store's contents, and which peers wait for which keys. Pure: (table, peer, request) -> answer, no I/O, no clock.
 *
 * A key has an entry while it has a value, a queue, or a peer that waits for it or watches it. Peers that wait hang in
 * the lists of the entries they miss; a write walks the list of its own key and nothing else, so a request costs its
 * own length plus one step for every peer it wakes. The peers that a step woke are in `table->woken` until the caller
 * has taken them out. */
#ifndef MU_STORE_TABLE_H
#define MU_STORE_TABLE_H

#include "base/buckets.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/list.h"
#include "store/codec.h"

struct mu_account;
struct mu_entry;
struct mu_peer;
struct mu_regs;

/* One key that a peer waits for. */
struct mu_reg {
    struct mu_list link;    /* in entry->waiters */
    struct mu_entry *entry; /* NULL once the key has come */
    struct mu_peer *peer;
};

/* A connection, as the table sees it. Embedded in whatever the caller knows of a connection. */
struct mu_peer {
    struct mu_list woken; /* in table->woken, or in no list */
    size_t missing;       /* keys its pending WAIT or BARRIER still misses, and one more while parts of its list are to
                             follow; 0: nothing pending */
    struct mu_reg reg;    /* most waits are for one key: no allocation for those */
    struct mu_regs *regs; /* those of other waits, one array for each part of the list */
    struct mu_list watches;     /* of struct watch, by peer */
    struct mu_list owing;       /* in owes->owing: a queue's item woke this peer and it has not come for it yet */
    struct mu_entry *owes;      /* NULL: none */
    struct mu_account *account; /* what it has in the table; NULL: nothing so far */
};

struct mu_table {
    struct mu_buckets buckets; /* of entries */
    struct mu_list entries;    /* in the order they were made */
    size_t keys;               /* entries with a value */
    uint64_t value_bytes_max;  /* what an APPEND may grow a value to */
    struct mu_budget *budget;  /* what everything here is charged to */
    size_t share_max; /* what one peer may have of that; 0: all. A key counts for the peer that last made it larger */
    struct mu_hash_seed seed;
    struct mu_list woken; /* peers to be told STOP_WAITING, in the order they registered */
    struct mu_buf spent;  /* bytes of an answer that are no longer in any entry: valid until the next step */
};

enum mu_answer_kind {
    MU_ANSWER_NONE,    /* nothing is sent */
    MU_ANSWER_BYTE,    /* number, as u8 */
    MU_ANSWER_WORD,    /* number, as u32 */
    MU_ANSWER_NUMBER,  /* number, as i64 */
    MU_ANSWER_BYTES,   /* bytes */
    MU_ANSWER_POPPED,  /* number, as i64, and bytes if it is above 0 */
    MU_ANSWER_VALUES,  /* the values of the request's keys, in order: mu_table_get() for each */
    MU_ANSWER_KEYS,    /* number, as i64, then that many keys: walk them with mu_table_next() */
    MU_ANSWER_REFUSED, /* close the connection; `error` says why. The table is as it was, except for what the peer waits
                          for if the request came in parts. */
};

/* What watchers of a key are told. `watchers` is NULL when there are none. */
struct mu_change {
    int kind; /* MU_KEY_CREATED, _UPDATED or _DELETED */
    struct mu_slice key, before, after;
    const struct mu_list *watchers; /* walk with mu_watch_peer() */
};

/* Slices are borrowed from the table and the request until the next step. */
struct mu_answer {
    enum mu_answer_kind kind;
    int64_t number;
    struct mu_slice bytes;
    struct mu_change change;
};

void mu_table_init(struct mu_table *table, struct mu_budget *budget, uint64_t value_bytes_max,
                   struct mu_hash_seed seed);
void mu_table_done(struct mu_table *table); /* every peer must have left */

void mu_peer_init(struct mu_peer *peer);

/* Carries out one request. MULTI_SET is not one: it is its SETs, one after the other. A WAIT may come in parts, and
 * there must be no other request of the peer in between. `reterr` is set for REFUSED. */
void mu_table_step(struct mu_table *table, struct mu_peer *peer, const struct mu_request *request,
                   struct mu_answer *out, struct muster_error *reterr);
void mu_table_leave(struct mu_table *table, struct mu_peer *peer);       /* the connection is gone; may wake others */
void mu_table_cancel_wait(struct mu_table *table, struct mu_peer *peer); /* its WAIT was abandoned */

/* A part of mu_table_cancel_wait(), which is to follow once this says that nothing is left for it. */
bool mu_table_cancel_some(struct mu_table *table, struct mu_peer *peer);
bool mu_peer_waits_long(const struct mu_peer *peer); /* for a list that came in parts */

/* The value of a key; .data is NULL when there is none. Valid until the table changes. */
struct mu_slice mu_table_get(const struct mu_table *table, struct mu_slice key);
/* A value that ADD counts in, read as C's strtoll() in base 10 would: leading space, a sign, digits; what follows is
 * ignored. False: it is no number, and *ret_number stays. */
bool mu_table_number(struct mu_slice text, int64_t *ret_number);
/* Keys one by one: NULL to begin with, NULL at the end. */
const struct mu_entry *mu_table_next(const struct mu_table *table, const struct mu_entry *after);
struct mu_slice mu_entry_key(const struct mu_entry *entry);
struct mu_peer *mu_watch_peer(const struct mu_list *watch);

/* The next peer to be told STOP_WAITING, taken off the list; NULL when all have been. */
struct mu_peer *mu_table_pop_woken(struct mu_table *table);

#endif
