/* The TCPStore wire format, server side: bytes in, requests out. Pure and incremental.
 *
 * One codec reads one connection. It finds out which dialect the peer speaks from the first bytes:
 *   V   PyTorch 2.2 and newer: the connection opens with VALIDATE
 *   L   1.13 to 2.1; L0 is 1.13 and 2.0, L1 is 2.1. They differ in codes 07 and above only, so a connection may stay
 *       undecided between the two for as long as it sends nothing that tells.
 * The caller keeps the bytes of an unfinished request and shows them again, longer, when more have come; the codec
 * remembers how far it got, so that a request costs time in proportion to its length however it is cut up. */
#ifndef MU_STORE_CODEC_H
#define MU_STORE_CODEC_H

#include "base/slice.h"
#include "muster.h"

#include <stdint.h>

/* name, code in L0, L1 and V (-1: does not exist), fields: k key, v value, n i64, u u32, l list of keys,
 * p list of key-value pairs */
#define MU_OPS(X)                                                                                                      \
    X(VALIDATE, -1, -1, 0, "u")                                                                                        \
    X(SET, 0, 0, 1, "kv")                                                                                              \
    X(COMPARE_SET, 1, 1, 2, "kvv")                                                                                     \
    X(GET, 2, 2, 3, "k")                                                                                               \
    X(ADD, 3, 3, 4, "kn")                                                                                              \
    X(CHECK, 4, 4, 5, "l")                                                                                             \
    X(WAIT, 5, 5, 6, "l")                                                                                              \
    X(NUM_KEYS, 6, 6, 7, "")                                                                                           \
    X(WATCH_KEY, 7, -1, -1, "k")                                                                                       \
    X(DELETE_KEY, 8, 7, 8, "k")                                                                                        \
    X(APPEND, -1, 8, 9, "kv")                                                                                          \
    X(MULTI_GET, -1, 9, 10, "l")                                                                                       \
    X(MULTI_SET, -1, 10, 11, "p")                                                                                      \
    X(CANCEL_WAIT, -1, 11, 12, "")                                                                                     \
    X(PING, -1, -1, 13, "u")                                                                                           \
    X(QUEUE_PUSH, -1, -1, 14, "kv")                                                                                    \
    X(QUEUE_POP, -1, -1, 15, "k")                                                                                      \
    X(QUEUE_LEN, -1, -1, 16, "k")                                                                                      \
    X(LIST_KEYS, -1, -1, 17, "")                                                                                       \
    X(BARRIER, -1, -1, 18, "kn")

enum mu_op {
#define X(name, l0, l1, v, fields) MU_OP_##name,
    MU_OPS(X)
#undef X
};

#define MU_DIALECTS(X)                                                                                                 \
    X(UNKNOWN, "unknown")                                                                                              \
    X(L, "1.13-2.1")                                                                                                   \
    X(L0, "1.13")                                                                                                      \
    X(L1, "2.1")                                                                                                       \
    X(V, "2.x")

enum mu_dialect {
#define X(name, text) MU_DIALECT_##name,
    MU_DIALECTS(X)
#undef X
};

#define MU_MAGIC UINT32_C(0x3C85F7CE)
#define MU_GRACE_MS 100 /* how long an L peer's code 08 waits for the byte that makes it an APPEND */
#define MU_FIELDS_MAX 3

/* Status bytes of replies. */
enum { MU_CHECK_READY = 0, MU_CHECK_NOT_READY = 1 };
enum { MU_STOP_WAITING = 0, MU_WAIT_CANCELED = 1 };
enum { MU_KEY_UPDATED = 0, MU_KEY_CREATED = 1, MU_KEY_DELETED = 2, MU_KEY_WATCHED = 3 };

/* A request borrows the bytes it was read from. */
struct mu_request {
    enum mu_op op;
    struct mu_slice key;
    struct mu_slice value;   /* COMPARE_SET: the expected one */
    struct mu_slice desired; /* COMPARE_SET */
    int64_t number;          /* ADD: delta; BARRIER: world size; VALIDATE, PING: the 32 bits */
    struct mu_slice list;    /* `count` items as they stand on the wire: walk them with mu_request_next() */
    uint64_t count;
    bool has_earlier, has_more; /* the list is a part of a longer one; others of it came before, or follow */
};

enum mu_codec_result {
    MU_CODEC_REQUEST, /* *ret_request is whole; *ret_used bytes were it */
    MU_CODEC_MORE,    /* keep the bytes; more are needed */
    MU_CODEC_GRACE,   /* as MORE; but call mu_codec_grace_over() if nothing has come by codec->grace_until_ms */
    MU_CODEC_BAD,     /* not a request, or over a limit; *reterr says what. Close the connection. */
};

struct mu_codec {
    const struct muster_store_limits *limits;
    enum mu_dialect dialect;
    enum mu_dialect legacy; /* what an L peer is taken for: L (find out), L0 or L1 */
    bool any_request;       /* the peer has sent a request on this connection */
    bool in_request;        /* the fields below are in use */
    bool in_pair;           /* between a pair's key and its value */
    enum mu_op op;
    unsigned field;      /* index into the op's fields */
    uint64_t items_left; /* of the list or the pairs being read; valid while in_list */
    bool in_list;
    size_t pos;              /* bytes of the request that have been understood */
    uint64_t grace_until_ms; /* 0: no grace running */
    struct {
        size_t at, len;
    } found[MU_FIELDS_MAX]; /* where each field's bytes stand */
    uint64_t count;
    int64_t number;
};

/* `limits` must outlive the codec. `legacy` is L, L0 or L1. */
void mu_codec_init(struct mu_codec *codec, const struct muster_store_limits *limits, enum mu_dialect legacy);

/* Reads the request at the start of `in`, which holds all bytes since the last request's end. */
enum mu_codec_result mu_codec_next(struct mu_codec *codec, struct mu_slice in, uint64_t now_ms,
                                   struct mu_request *ret_request, size_t *ret_used, struct muster_error *reterr);
void mu_codec_grace_over(struct mu_codec *codec);

/* Takes the next key (and, for MULTI_SET, its value) off `list`. False at the end. */
bool mu_request_next(struct mu_slice *list, struct mu_slice *ret_key, struct mu_slice *ret_value_or_null);

const char *mu_op_name(enum mu_op op);
const char *mu_op_fields(enum mu_op op); /* as MU_OPS has them */
const char *mu_dialect_name(enum mu_dialect value);
bool mu_dialect_parse(const char *text, enum mu_dialect *ret_dialect); /* "auto", NULL: UNKNOWN; a name from above */
int mu_op_code(enum mu_op op, enum mu_dialect dialect);                /* -1: that dialect does not have it */

#endif
