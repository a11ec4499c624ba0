/* etcd's keys API, version 2: requests as they go on the wire, and what comes back. Pure.
 *
 * Keys are texts that begin with "/"; values are texts (UTF-8). A PUT without a TTL takes an existing one away. */
#ifndef MU_KV_ETCD2_H
#define MU_KV_ETCD2_H

#include "base/buf.h"
#include "base/error.h"

#include <stdint.h>

#define MU_ETCD2_KEY_MAX 8192
#define MU_ETCD2_VALUE_MAX (48u << 20)
#define MU_ETCD2_NODES_MAX 200000 /* of one answer */
#define MU_ETCD2_DEPTH_MAX 64     /* of directories in one answer */

enum mu_etcd2_code { /* etcd's own; others may come, too: they are numbers */
                     MU_ETCD2_OK = 0,
                     MU_ETCD2_NOT_FOUND = 100,
                     MU_ETCD2_COMPARE_FAILED = 101,
                     MU_ETCD2_NOT_FILE = 102,
                     MU_ETCD2_EXISTS = 105,
                     MU_ETCD2_RAFT = 300,          /* "raft internal error" */
                     MU_ETCD2_ELECTION = 301,      /* "during leader election" */
                     MU_ETCD2_INDEX_CLEARED = 401, /* events of that index are no longer kept */
};

enum mu_etcd2_kind { MU_ETCD2_GET, MU_ETCD2_PUT, MU_ETCD2_DELETE, MU_ETCD2_WATCH };
enum mu_etcd2_exists { MU_ETCD2_ANY, MU_ETCD2_MUST, MU_ETCD2_MUST_NOT };

struct mu_etcd2_request { /* zeroed, and then what is needed */
    enum mu_etcd2_kind kind;
    struct mu_slice key; /* "/a/b"; "/": the root. Any bytes but NUL; they are escaped */
    bool recursive;      /* GET, DELETE, WATCH */
    bool sorted, quorum; /* GET */
    bool dir;            /* PUT: make a directory. DELETE: an empty one, too */
    bool refresh;        /* PUT: the TTL alone; no value, and watchers are not woken */
    bool has_value;      /* PUT */
    bool no_value;       /* PUT: what is written need not come back. The answer may then have no node; see `index` */
    struct mu_slice value;
    int64_t ttl_s;                   /* PUT: 0 is none */
    enum mu_etcd2_exists prev_exist; /* PUT */
    uint64_t prev_index;             /* PUT, DELETE: 0 is none */
    bool has_prev_value;             /* PUT, DELETE */
    struct mu_slice prev_value;
    uint64_t wait_index; /* WATCH: the first index that counts; 0: from now on */
    bool once;           /* WATCH: MUSTER_ECANCELED when its connection has ended; it is not made again elsewhere */
};

struct mu_etcd2_wire {
    const char *method;
    struct mu_buf target; /* path and query, with a NUL */
    struct mu_buf body;   /* a form; empty: none */
};

/* MUSTER_EINVAL or MUSTER_ELIMIT for a key or a value that cannot be, MUSTER_ENOMEM. */
int mu_etcd2_build(const struct mu_etcd2_request *request, struct mu_etcd2_wire *ret_wire, struct muster_error *reterr);
void mu_etcd2_wire_done(struct mu_etcd2_wire *wire);
/* Carried out twice it is as good as once: no condition that the first time would have changed. */
bool mu_etcd2_is_repeatable(const struct mu_etcd2_request *request);
/* "compare and set '/a/b'", for errors; cut off if there is no room. Returns `text`. */
const char *mu_etcd2_text(const struct mu_etcd2_request *request, char *text, size_t room);

struct mu_etcd2_node {
    struct mu_slice key; /* as etcd has it, unescaped */
    struct mu_slice value;
    bool dir;
    int64_t ttl_s; /* left; 0: none */
    uint64_t modified;
    unsigned depth; /* nodes[0] has 0, its children 1 */
};

struct mu_etcd2_answer {
    int code;                       /* 0, or etcd's error code: enum mu_etcd2_code */
    struct mu_slice message, cause; /* of an error: etcd's texts */
    struct mu_slice action;         /* "get", "set", "create", "update", "compareAndSwap", "delete", "expire", ... */
    /* The node and what is below it, a directory before its children; none for an error, and for a PUT with
     * no_value. */
    struct mu_etcd2_node *nodes;
    size_t nodes_count;
    bool has_prev;
    struct mu_etcd2_node prev; /* as it was before (its children are not given) */
    /* Of the store, X-Etcd-Index (or an error's "index"): watch from index + 1. For a write: its own. 0: not told,
     * which only an error may do. */
    uint64_t index;
    void *json; /* what the slices point into */
};

/* `status`, `index` and `body` of an HTTP answer (index 0: no such header line). An error of etcd's is an answer. What
 * is none is MUSTER_EPROTOCOL, naming the status and the field. On failure there is nothing to free. A write's answer
 * without a node is taken if it has an index: whoever did not ask for that (no_value) has to look. */
int mu_etcd2_read(unsigned status, uint64_t index, struct mu_slice body, struct mu_etcd2_answer *ret_answer,
                  struct muster_error *reterr);
void mu_etcd2_answer_done(struct mu_etcd2_answer *answer); /* zeroed memory is fine */

/* An error of etcd's as muster's, "HTTP 412, 105 Key already exists (/a)". Returns a code: MUSTER_EINVAL for what the
 * request did not meet (100..299 and others), MUSTER_ELOST for an etcd in trouble (300, 301). */
int mu_etcd2_fail(const struct mu_etcd2_answer *answer, unsigned status, struct muster_error *reterr);

/* Nobody was there, or not in time: what only looks may look again. */
bool mu_etcd2_is_away(int rc);

#endif
