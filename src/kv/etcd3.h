/* etcd's version 3 API by its JSON gateway (POST /v3/...): requests as they go on the wire, and what comes back. Pure.
 *
 * Keys and values are bytes; on the wire they are base64. 64-bit numbers are texts there, and fields that are 0, false
 * or empty are left out. */
#ifndef MU_KV_ETCD3_H
#define MU_KV_ETCD3_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"

#include <stdint.h>

#define MU_ETCD3_KEY_MAX 8192
#define MU_ETCD3_VALUE_MAX (8u << 20)    /* etcd's own limit of a request is 1.5 MiB unless told otherwise */
#define MU_ETCD3_OPS_MAX 128             /* of a transaction, each branch: etcd's own limit */
#define MU_ETCD3_KVS_MAX 1000000         /* of one answer */
#define MU_ETCD3_MESSAGE_MAX (64u << 20) /* bytes of one message of a stream */

/* ---- Transactions ---- */

enum mu_etcd3_target { MU_ETCD3_CREATE, MU_ETCD3_MOD, MU_ETCD3_VALUE };

/* Whether it is equal. A key that does not exist has create_revision and mod_revision 0. */
struct mu_etcd3_compare {
    enum mu_etcd3_target target;
    struct mu_slice key;
    int64_t number;        /* all but VALUE */
    struct mu_slice value; /* VALUE */
};

enum mu_etcd3_op_kind { MU_ETCD3_OP_RANGE, MU_ETCD3_OP_PUT, MU_ETCD3_OP_DELETE };
enum mu_etcd3_sort { MU_ETCD3_BY_CREATE, MU_ETCD3_BY_MOD };

struct mu_etcd3_op { /* zeroed, and then what is needed */
    enum mu_etcd3_op_kind kind;
    struct mu_slice key;
    bool prefix; /* RANGE, DELETE: every key that begins with `key` (an empty one: every key) */
    /* RANGE */
    int64_t limit, revision; /* 0: none; the newest */
    bool count_only;
    bool sort, descending; /* unsorted is by key, ascending */
    enum mu_etcd3_sort sort_by;
    /* PUT */
    struct mu_slice value;
    int64_t lease; /* 0: none */
};

struct mu_etcd3_txn {
    const struct mu_etcd3_compare *compares; /* all must hold; none: success */
    size_t compares_count;
    const struct mu_etcd3_op *success, *failure;
    size_t success_count, failure_count;
};

/* ---- Requests ---- */

#define MU_ETCD3_KINDS(X)                                                                                              \
    X(RANGE, "/v3/kv/range", "read")                                                                                   \
    X(TXN, "/v3/kv/txn", "transact on")                                                                                \
    X(GRANT, "/v3/lease/grant", "grant lease")                                                                         \
    X(KEEP_ALIVE, "/v3/lease/keepalive", "keep lease alive")                                                           \
    X(REVOKE, "/v3/lease/revoke", "revoke lease")                                                                      \
    X(WATCH, "/v3/watch", "watch")                                                                                     \
    X(AUTHENTICATE, "/v3/auth/authenticate", "authenticate")

enum mu_etcd3_kind {
#define X(name, path, text) MU_ETCD3_##name,
    MU_ETCD3_KINDS(X)
#undef X
};

struct mu_etcd3_request { /* zeroed, and then what is needed */
    enum mu_etcd3_kind kind;
    struct mu_etcd3_op range;    /* RANGE; WATCH: key, prefix, revision (the first that counts; 0: from now on) */
    struct mu_etcd3_txn txn;     /* TXN: plain puts and deletes are transactions without compares */
    int64_t lease, ttl_s;        /* GRANT (lease 0: etcd chooses the id), KEEP_ALIVE, REVOKE */
    const char *user, *password; /* AUTHENTICATE */
};

const char *mu_etcd3_path(enum mu_etcd3_kind kind);
/* The JSON body. MUSTER_EINVAL or MUSTER_ELIMIT for what cannot be, MUSTER_ENOMEM; then `body` is as it was. */
int mu_etcd3_build(const struct mu_etcd3_request *request, struct mu_buf *body, struct muster_error *reterr);
/* "transact on '/muster/job/doc'", "keep lease 7f3a alive", for errors; cut off if there is no room. Returns `text`. */
const char *mu_etcd3_text(const struct mu_etcd3_request *request, char *text, size_t room);

/* ---- Answers ---- */

struct mu_etcd3_kv {
    struct mu_slice key, value;
    int64_t create, mod, version, lease; /* revisions; lease 0: none */
};

struct mu_etcd3_result { /* of one op */
    enum mu_etcd3_op_kind kind;
    int64_t count;                 /* RANGE: keys there are, also with a limit or count_only. DELETE: keys deleted */
    bool more;                     /* RANGE: the limit cut some off */
    const struct mu_etcd3_kv *kvs; /* RANGE: found */
    size_t kvs_count;
};

/* gRPC's codes that etcd uses */
enum mu_etcd3_code {
    MU_ETCD3_OK = 0,
    MU_ETCD3_CANCELED = 1,
    MU_ETCD3_UNKNOWN = 2,
    MU_ETCD3_INVALID = 3,
    MU_ETCD3_DEADLINE = 4,
    MU_ETCD3_NOT_FOUND = 5, /* no such lease */
    MU_ETCD3_EXISTS = 6,
    MU_ETCD3_DENIED = 7,        /* permission denied */
    MU_ETCD3_EXHAUSTED = 8,     /* database space exceeded; too many requests */
    MU_ETCD3_PRECONDITION = 9,  /* lease exists already; auth is not enabled, ... */
    MU_ETCD3_OUT_OF_RANGE = 11, /* compacted, future revision */
    MU_ETCD3_INTERNAL = 13,
    MU_ETCD3_UNAVAILABLE = 14, /* no leader, leader changed, timed out */
    MU_ETCD3_UNAUTHENTICATED = 16,
};

struct mu_etcd3_answer {
    int code;                              /* 0, or gRPC's error code */
    struct mu_slice message;               /* of an error: "etcdserver: no leader" */
    int64_t revision;                      /* of the store */
    bool succeeded;                        /* TXN: the compares held */
    const struct mu_etcd3_result *results; /* TXN: of the ops of that branch. RANGE: one */
    size_t results_count;
    int64_t lease, ttl_s;  /* GRANT, KEEP_ALIVE (ttl 0: the lease is gone) */
    struct mu_slice token; /* AUTHENTICATE */
    struct mu_arena arena; /* what all of it lies in */
};

/* The answer to a request of that kind (all but WATCH), with the HTTP status. An error of etcd is an answer. Anything
 * else is MUSTER_EPROTOCOL, naming the status and the field. On failure there is nothing to free. */
int mu_etcd3_read(const struct mu_etcd3_request *request, unsigned status, struct mu_slice body,
                  struct mu_etcd3_answer *ret_answer, struct muster_error *reterr);
void mu_etcd3_answer_done(struct mu_etcd3_answer *answer); /* zeroed memory is fine */

/* What to do about an error of etcd's. */
enum mu_etcd3_advice {
    MU_ETCD3_TELL,      /* it is the asker's */
    MU_ETCD3_ELSEWHERE, /* not carried out; another member, or later, may do */
    MU_ETCD3_UNCERTAIN, /* it may have been carried out, or may yet be; else the same */
    MU_ETCD3_LOG_IN,    /* the token is not good (any more) */
};
enum mu_etcd3_advice mu_etcd3_advise(int code, struct mu_slice message);

/* The error as muster's, "HTTP 503, 14 etcdserver: no leader". Returns its code: MUSTER_ELIMIT (no space, too large,
 * too many), MUSTER_ELOST (in trouble), MUSTER_EINVAL (everything else). */
int mu_etcd3_fail(int code, struct mu_slice message, unsigned status, struct muster_error *reterr);

/* ---- Watch streams ---- */

enum mu_etcd3_event_kind { MU_ETCD3_PUT, MU_ETCD3_DELETE };

struct mu_etcd3_event {
    enum mu_etcd3_event_kind kind;
    struct mu_etcd3_kv kv; /* DELETE: the key, and its mod: the revision of the deletion */
};

struct mu_etcd3_message {    /* one of a stream */
    int code;                /* an error ended the stream: gRPC's code */
    struct mu_slice message; /* of it; or why it was canceled */
    bool created, canceled;
    int64_t compact_revision; /* canceled because of this: what is older is gone */
    int64_t revision; /* of the store when it was sent; no events of older ones follow a message without events */
    const struct mu_etcd3_event *events;
    size_t events_count;
    struct mu_arena arena;
};

/* Bytes in, messages out. Zeroed memory is an empty one. */
struct mu_etcd3_stream {
    struct mu_buf pending;
    size_t scanned;    /* of pending: looked at before */
    int depth;         /* of braces there */
    bool text, escape; /* inside of a text; behind a backslash */
};

int mu_etcd3_stream_feed(struct mu_etcd3_stream *stream, struct mu_slice bytes, struct muster_error *reterr);
/* 1: a message, to be freed; 0: bytes are missing; below 0: this is no watch (MUSTER_EPROTOCOL), and the stream is of
 * no more use. */
int mu_etcd3_stream_next(struct mu_etcd3_stream *stream, struct mu_etcd3_message *ret_message,
                         struct muster_error *reterr);
void mu_etcd3_stream_done(struct mu_etcd3_stream *stream);
void mu_etcd3_message_done(struct mu_etcd3_message *message); /* zeroed memory is fine */

#endif
