/* Requests to the job's store, as the agent's pure machines make them: a bounded table of what is under way, each with
 * an id of its own, asked again while the store may come back. Keys are complete: no prefix is put in front of them.
 * Pure.
 *
 * A machine adds asks; mu_asks_emit(), at the end of each of its steps, gives out those that are new or due again;
 * mu_asks_answer() finds the one that an answer belongs to, and drops answers to anything else. */
#ifndef MU_AGENT_ASKS_H
#define MU_AGENT_ASKS_H

#include "base/error.h"
#include "base/slice.h"

#include <stdint.h>

#define MU_ASKS_MAX 16          /* under way at once, of one machine */
#define MU_ASK_TIMEOUT_MS 10000 /* for an answer that comes at once */
#define MU_ASK_WAIT_MS 300000   /* for a key that is waited for; then it is asked for again */
#define MU_ASK_RETRY_MS 100     /* after an error that may mend, doubling */
#define MU_ASK_RETRY_MAX_MS 5000
#define MU_ASK_KEY_MAX 96 /* of a key, without prefix and run id */

#define MU_ASK_KINDS(X)                                                                                                \
    X(GET, "get")                     /* key -> value; waits until it is there, at most timeout_ms: MUSTER_ETIMEOUT */ \
    X(SET, "set")                     /* key, value */                                                                 \
    X(ADD, "add")                     /* key, number -> number. After an error it may have been done or not */         \
    X(COMPARE_SET, "compare and set") /* key, expected, value -> value: what is there now */                           \
    X(CHECK, "check")                 /* key -> found; does not wait */                                                \
    X(DELETE, "delete")               /* key */

enum mu_ask_kind {
#define X(name, text) MU_ASK_##name,
    MU_ASK_KINDS(X)
#undef X
};

const char *mu_ask_kind_text(enum mu_ask_kind value);
/* An error of a store that may come back; and a key that was not there in time may still come. */
bool mu_ask_may_mend(int code);

struct mu_ask { /* an effect; borrows from the machine, until its next step */
    enum mu_ask_kind kind;
    uint64_t id; /* above 0 */
    struct mu_slice key, value, expected;
    int64_t number;
    uint64_t timeout_ms; /* above 0 */
};

struct mu_answer { /* an event; borrowed */
    uint64_t id;
    struct mu_slice value;
    int64_t number;
    bool found;
    const struct muster_error *error; /* NULL: it was done */
    bool gone; /* with an error: the store's host refuses connections, its process is not there */
};

/* One under way. `what` and `index` are the machine's own: what it asked for, and of whom. */
struct mu_ask_slot {
    struct mu_ask ask; /* id 0: the slot is free */
    unsigned what;
    int64_t index;
    bool once; /* is not asked again: its first error is its answer */
    bool sent;
    uint64_t due_ms, retry_ms;
    struct muster_error last; /* why it is asked again; code 0: it is not */
    char *key, *value;        /* room for both */
};

struct mu_asks {
    struct mu_ask_slot slots[MU_ASKS_MAX];
    unsigned count; /* in use */
    uint64_t last_id;
    size_t key_room, value_room;
    char *room;
};

/* Room for keys of `prefix_max` and MU_ASK_KEY_MAX bytes and values of `value_max`. MUSTER_ENOMEM. */
int mu_asks_init(struct mu_asks *asks, size_t prefix_max, size_t value_max, struct muster_error *reterr);
void mu_asks_done(struct mu_asks *asks);

/* There must be room: mu_asks_free() says how much. The key is made of the format; number, expected and once are filled
 * in by the caller. */
unsigned mu_asks_free(const struct mu_asks *asks);
#define mu_asks_add(asks, kind, what, index, ...) mu_asks_put(asks, kind, what, index, mu_slice("", 0), __VA_ARGS__)
/* SET, or COMPARE_SET of nothing. Copies the value, which must fit. */
struct mu_ask_slot *mu_asks_put(struct mu_asks *asks, enum mu_ask_kind kind, unsigned what, int64_t index,
                                struct mu_slice value, const char *key_format, ...)
    __attribute__((format(printf, 6, 7)));
/* A COMPARE_SET that changes nothing: a key that is missing answers MU_ASK_NOTHING, or nothing, and stays missing. */
#define MU_ASK_NOTHING "?"
#define mu_asks_look(asks, what, index, ...)                                                                           \
    mu_asks_expect_nothing(                                                                                            \
        mu_asks_put(asks, MU_ASK_COMPARE_SET, what, index, mu_slice_str(MU_ASK_NOTHING), __VA_ARGS__))
struct mu_ask_slot *mu_asks_expect_nothing(struct mu_ask_slot *slot);
bool mu_answer_is_there(const struct mu_answer *answer); /* to a look: there is a value */
/* Whether something of that kind is under way. */
bool mu_asks_has(const struct mu_asks *asks, unsigned what);
void mu_asks_drop(struct mu_asks *asks); /* all; their answers are dropped */
void mu_asks_drop_what(struct mu_asks *asks, unsigned what);

/* What is to be asked now, one after the other; false: nothing more. `deadline_ms` bounds their timeouts. */
bool mu_asks_emit(struct mu_asks *asks, uint64_t now_ms, uint64_t deadline_ms, struct mu_ask *ret_ask);

/* The one under way that an answer with this id belongs to; NULL: none. */
const struct mu_ask_slot *mu_asks_find(const struct mu_asks *asks, uint64_t id);

/* True: *ret_slot is a copy of the one that was answered, which is free again (its key and value stay until something
 * is added); answer->error is final then, if there is one. False: an answer to nothing, or it will be asked again. */
bool mu_asks_answer(struct mu_asks *asks, const struct mu_answer *answer, uint64_t now_ms,
                    struct mu_ask_slot *ret_slot);

static inline uint64_t mu_sooner_ms(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t mu_asks_due_ms(const struct mu_asks *asks); /* when something is to be asked again; UINT64_MAX: never */
/* Of those under way, the one with the smallest index: for words at a deadline. */
const struct mu_ask_slot *mu_asks_first(const struct mu_asks *asks); /* NULL: none */

#endif
