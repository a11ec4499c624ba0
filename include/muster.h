/* muster: elastic launcher, rendezvous and store for distributed training.
 *
 * The one public header. Conventions:
 *  - A call that can fail returns 0 or a negative MUSTER_E* code and, when `reterr` is not NULL, says there what
 *    happened. On failure what it would have returned is untouched.
 *  - Config structs: zero them, set `size` to sizeof the struct, fill in the rest. Strings are copied. A shorter struct
 *    of an older program is accepted; the fields it lacks are zero.
 *  - Slices are borrowed for the length of the call. Bytes that are given back belong to the caller.
 *  - Stores may be used from any thread; calls on one store are carried out one after the other. */
#ifndef MUSTER_H
#define MUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MUSTER_API __attribute__((visibility("default")))

MUSTER_API const char *muster_version(void);

/* ---- Errors ---------------------------------------------------------------------------------------------------- */

#define MUSTER_ERRORS(X)                                                                                               \
    X(EINVAL, -1, "invalid argument")                                                                                  \
    X(ENOMEM, -2, "out of memory")                                                                                     \
    X(ETIMEOUT, -3, "timed out")                                                                                       \
    X(ECONNECT, -4, "cannot connect")                                                                                  \
    X(ELOST, -5, "connection lost")                                                                                    \
    X(ERESOLVE, -6, "cannot resolve the name")                                                                         \
    X(EPROTOCOL, -7, "the peer does not speak the protocol")                                                           \
    X(ENOTSUP, -8, "not supported")                                                                                    \
    X(ELIMIT, -9, "over a limit")                                                                                      \
    X(EADDRINUSE, -10, "address in use")                                                                               \
    X(EEMPTY, -11, "queue is empty")                                                                                   \
    X(ECANCELED, -12, "canceled")                                                                                      \
    X(ESYSTEM, -13, "system call failed")                                                                              \
    X(EINTERNAL, -14, "internal error")                                                                                \
    X(ESIGNAL, -15, "stopped by a signal")                                                                             \
    X(ERETRY, -16, "not possible yet; to be tried again after a moment")                                               \
    X(ERETRY_NOW, -17, "not possible any more in this form; to be tried again at once")                                \
    X(ERDZV_CLOSED, -32, "the rendezvous is closed")                                                                   \
    X(ERDZV_TIMEOUT, -33, "the rendezvous did not complete in time")                                                   \
    X(ERDZV_CONNECTION, -34, "the connection to the rendezvous back end has failed")                                   \
    X(ERDZV_STATE, -35, "the state of the rendezvous is corrupt")                                                      \
    X(ERDZV_GRACEFUL_EXIT, -36, "the node was not part of the rendezvous and leaves in good order")

enum muster_error_code {
#define X(name, number, text) MUSTER_##name = (number),
    MUSTER_ERRORS(X)
#undef X
};

struct muster_error {
    int code;
    char text[1024]; /* one line, reads outside-in: what was being done, to what, and why it failed */
    int errnum;      /* errno of the system call that failed; 0: it was something else */
};

MUSTER_API const char *muster_error_name(int code); /* "EINVAL" */
MUSTER_API const char *muster_error_text(int code); /* "invalid argument" */
MUSTER_API bool muster_error_is_rdzv(int code);     /* any of the MUSTER_ERDZV_* codes */

/* ---- Log ------------------------------------------------------------------------------------------------------- */

/* More important levels have higher numbers, and the numbers do not change. Levels that Python's logging also has have
 * its numbers; new ones get a number in between. */
#define MUSTER_LOG_LEVELS(X)                                                                                           \
    X(DEBUG, 10, "debug")                                                                                              \
    X(INFO, 20, "info")                                                                                                \
    X(NOTICE, 25, "notice") /* what the commands show unless they are told otherwise, and all that follows */          \
    X(WARNING, 30, "warning")                                                                                          \
    X(ERROR, 40, "error")

enum muster_log_level {
#define X(name, number, text) MUSTER_LOG_##name = number,
    MUSTER_LOG_LEVELS(X)
#undef X
};

/* `line` has no line end and is borrowed. Called from any thread, one call at a time; it must not call back into
 * muster. */
typedef void muster_log_sink(void *ctx, enum muster_log_level level, const char *line);

MUSTER_API const char *muster_log_level_name(enum muster_log_level level);
MUSTER_API void muster_log_set_sink(muster_log_sink *sink, void *ctx); /* NULL, the default: nothing is logged */
/* Lines below this level do not reach the sink; no time is spent on their text. The default: all reach it. */
MUSTER_API void muster_log_set_level(enum muster_log_level least);

/* ---- Bytes ----------------------------------------------------------------------------------------------------- */

struct muster_slice { /* borrowed; any byte may occur */
    const void *data;
    size_t len;
};

struct muster_bytes { /* owned; a NUL that does not count follows the last byte */
    char *data;
    size_t len;
};

struct muster_values { /* owned */
    struct muster_bytes *items;
    size_t count;
};

static inline struct muster_slice muster_str(const char *text)
{
    struct muster_slice slice = { text, strlen(text) };

    return slice;
}

MUSTER_API void muster_bytes_done(struct muster_bytes *bytes);
MUSTER_API void muster_values_done(struct muster_values *values);

/* ---- Stores ---------------------------------------------------------------------------------------------------- */

/* Timeouts are in milliseconds; this one stands for the store's default. */
#define MUSTER_TIMEOUT_DEFAULT ((int64_t)-1)
#define MUSTER_STORE_TIMEOUT_MS ((int64_t)300000)
#define MUSTER_STORE_PORT 29500

struct muster_store;
struct mu_call; /* of the library alone */

/* What a store can do. Stores of this library and stores of a user's own are such tables; an entry that is NULL answers
 * MUSTER_ENOTSUP, except that multi_get, multi_set and barrier are then made from the others. Timeouts that arrive here
 * are never negative.
 *
 * The entries of this library's stores are the public calls of the same name. In a copy of such a table any of them may
 * be replaced; what replaces it must not make the public call of the same name on the same store, which would call it
 * again. To add to what a store does, write a table whose functions call that store. */
struct muster_store_ops {
    uint32_t size;
    const char *name;
    int (*set)(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
               struct muster_error *reterr);
    int (*get)(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, struct muster_bytes *ret_value,
               struct muster_error *reterr);
    int (*add)(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
               int64_t *ret_value, struct muster_error *reterr);
    int (*compare_set)(struct muster_store *store, struct muster_slice key, struct muster_slice expected,
                       struct muster_slice desired, int64_t timeout_ms, struct muster_bytes *ret_value,
                       struct muster_error *reterr);
    int (*check)(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                 bool *ret_all_exist, struct muster_error *reterr);
    int (*wait)(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                struct muster_error *reterr);
    int (*delete_key)(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, bool *ret_deleted,
                      struct muster_error *reterr);
    int (*num_keys)(struct muster_store *store, int64_t timeout_ms, int64_t *ret_count, struct muster_error *reterr);
    int (*append)(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                  struct muster_error *reterr);
    int (*multi_get)(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                     struct muster_values *ret_values, struct muster_error *reterr);
    int (*multi_set)(struct muster_store *store, const struct muster_slice *keys, const struct muster_slice *values,
                     size_t count, int64_t timeout_ms, struct muster_error *reterr);
    int (*queue_push)(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                      int64_t timeout_ms, struct muster_error *reterr);
    int (*queue_pop)(struct muster_store *store, struct muster_slice key, bool block, int64_t timeout_ms,
                     struct muster_bytes *ret_value, struct muster_error *reterr);
    int (*queue_len)(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, int64_t *ret_len,
                     struct muster_error *reterr);
    int (*list_keys)(struct muster_store *store, int64_t timeout_ms, struct muster_values *ret_keys,
                     struct muster_error *reterr);
    int (*barrier)(struct muster_store *store, struct muster_slice key, int64_t world_size, int64_t timeout_ms,
                   struct muster_error *reterr);
    int (*ping)(struct muster_store *store, int64_t timeout_ms, struct muster_error *reterr);
    void (*free)(struct muster_store *store);
    /* How stores of this library make the calls that nobody has replaced. Leave it NULL, or as it was copied. */
    int (*run)(struct muster_store *store, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr);
};

/* A store of a user's own has this as its first member, with `ops` set and `timeout_ms` above 0. */
struct muster_store {
    const struct muster_store_ops *ops;
    int64_t timeout_ms; /* the default timeout; see muster_store_set_timeout() */
};

MUSTER_API void muster_store_set_timeout(struct muster_store *store, int64_t timeout_ms); /* > 0 */
MUSTER_API int64_t muster_store_timeout(const struct muster_store *store);
MUSTER_API void muster_store_free(struct muster_store *store); /* NULL is fine */

/* Set, append, multi_set and queue_push have no reply in the protocol: 0 means sent. That they were carried out is
 * known once any later call of the same store has been answered. */
MUSTER_API int muster_store_set(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                                int64_t timeout_ms, struct muster_error *reterr);
/* Waits until the key exists. */
MUSTER_API int muster_store_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                                struct muster_bytes *ret_value, struct muster_error *reterr);
/* The value is kept as decimal text; a missing key counts as 0. */
MUSTER_API int muster_store_add(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
                                int64_t *ret_value, struct muster_error *reterr);
/* Replaces `expected` by `desired`; an empty `expected` also creates a missing key. Gives the value the key has now, or
 * `expected` for a key that is missing and stays so. */
MUSTER_API int muster_store_compare_set(struct muster_store *store, struct muster_slice key,
                                        struct muster_slice expected, struct muster_slice desired, int64_t timeout_ms,
                                        struct muster_bytes *ret_value, struct muster_error *reterr);
MUSTER_API int muster_store_check(struct muster_store *store, const struct muster_slice *keys, size_t count,
                                  int64_t timeout_ms, bool *ret_all_exist, struct muster_error *reterr);
/* MUSTER_ETIMEOUT when a key is still missing after `timeout_ms`; the store stays usable. */
MUSTER_API int muster_store_wait(struct muster_store *store, const struct muster_slice *keys, size_t count,
                                 int64_t timeout_ms, struct muster_error *reterr);
MUSTER_API int muster_store_delete_key(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                                       bool *ret_deleted, struct muster_error *reterr);
MUSTER_API int muster_store_num_keys(struct muster_store *store, int64_t timeout_ms, int64_t *ret_count,
                                     struct muster_error *reterr);
MUSTER_API int muster_store_append(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                                   int64_t timeout_ms, struct muster_error *reterr);
/* Waits until all keys exist; values come in the order of the keys. */
MUSTER_API int muster_store_multi_get(struct muster_store *store, const struct muster_slice *keys, size_t count,
                                      int64_t timeout_ms, struct muster_values *ret_values,
                                      struct muster_error *reterr);
MUSTER_API int muster_store_multi_set(struct muster_store *store, const struct muster_slice *keys,
                                      const struct muster_slice *values, size_t count, int64_t timeout_ms,
                                      struct muster_error *reterr);
MUSTER_API int muster_store_queue_push(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                                       int64_t timeout_ms, struct muster_error *reterr);
/* MUSTER_EEMPTY when there is nothing and `block` is false, or another consumer was faster. */
MUSTER_API int muster_store_queue_pop(struct muster_store *store, struct muster_slice key, bool block,
                                      int64_t timeout_ms, struct muster_bytes *ret_value, struct muster_error *reterr);
MUSTER_API int muster_store_queue_len(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                                      int64_t *ret_len, struct muster_error *reterr);
MUSTER_API int muster_store_list_keys(struct muster_store *store, int64_t timeout_ms, struct muster_values *ret_keys,
                                      struct muster_error *reterr);
/* Returns when `world_size` callers have come to this key. A key serves one barrier. */
MUSTER_API int muster_store_barrier(struct muster_store *store, struct muster_slice key, int64_t world_size,
                                    int64_t timeout_ms, struct muster_error *reterr);
MUSTER_API int muster_store_ping(struct muster_store *store, int64_t timeout_ms, struct muster_error *reterr);

/* A view of `inner` in which every key is PREFIX/KEY. Views nest. `inner` must outlive it and is not freed with it. */
MUSTER_API int muster_store_prefix_new(struct muster_slice prefix, struct muster_store *inner,
                                       struct muster_store **ret_store, struct muster_error *reterr);

/* ---- Store server ---------------------------------------------------------------------------------------------- */

/* Zero stands for the default. */
struct muster_store_limits {
    uint64_t key_bytes;     /* of one key: 8 KiB */
    uint64_t value_bytes;   /* of one value: 64 MiB */
    uint64_t keys;          /* in one request: 131,072 */
    uint64_t request_bytes; /* of one request: 128 MiB */
    uint64_t unsent_bytes;  /* of replies that one peer has not read yet: 128 MiB; past it the peer is dropped */
    uint64_t connections;   /* at once: 262,144, or as many as there may be open files */
    uint64_t total_bytes;   /* of keys, values and waits: 1 GiB, of which one connection may have a quarter;
                               half-read requests and unsent replies may take half as much again */
    uint64_t connections_per_address; /* from one address of another machine: half of those that there is room for */
};

struct muster_store_server_config {
    uint32_t size;
    const char *host;         /* names or addresses to listen on, with commas; NULL, "any": every address */
    uint16_t port;            /* 0: any free port, the same on all of these addresses */
    bool use_listen_fd;       /* adopt listen_fd, a bound stream socket, instead; on success it is the server's */
    int listen_fd;            /* when a port is given as well it must be the socket's */
    bool shared;              /* if a shared server of this process has this (non-zero) port, be another user of it */
    const char *dialect;      /* of clients that do not announce 2.2 or newer: NULL or "auto", "1.13", "2.1" */
    const char *const *allow; /* networks ("10.0.0.0/8", "fd00::/8"), NULL-terminated; NULL: every network */
    struct muster_store_limits limits;
    bool allow_own; /* with `allow`: connections from this machine are accepted too */
};

struct muster_store_server;

/* The server runs on a thread of its own until it is stopped. */
MUSTER_API int muster_store_server_start(const struct muster_store_server_config *config,
                                         struct muster_store_server **ret_server, struct muster_error *reterr);
MUSTER_API uint16_t muster_store_server_port(const struct muster_store_server *server);
MUSTER_API const char *muster_store_server_address(const struct muster_store_server *server); /* "[::]:29500" */
MUSTER_API void muster_store_server_stop(struct muster_store_server *server); /* and frees it; NULL is fine */

/* ---- TCP store ------------------------------------------------------------------------------------------------- */

struct muster_store_tcp_config {
    uint32_t size;
    const char *host;           /* name or address of the server; may be NULL when is_host: this machine's loopback */
    uint16_t port;              /* 0 only with is_host */
    bool is_host;               /* run the server in this process, as `server` says; it ends with the store */
    bool shared;                /* with is_host: share one server per port among the stores of this process */
    bool wait_for_workers;      /* with is_host and world_size: wait until that many have come */
    uint32_t world_size;        /* > 0: how many workers there are; this store counts as one of them */
    int64_t connect_timeout_ms; /* 0: MUSTER_STORE_TIMEOUT_MS */
    int64_t timeout_ms;         /* the default of every call; 0: MUSTER_STORE_TIMEOUT_MS */
    const char *dialect;        /* what the server speaks: NULL or "auto" (find out), "1.13", "2.1", "2.x" */
    bool native_barrier;        /* the server is 2.12 or newer: use its own barrier, as stock clients do there */
    bool raw_keys;              /* do not put the "/" in front of keys that every PyTorch client puts there */
    const struct muster_store_server_config *server; /* with is_host: how; its port is not used */
};

/* Connects, or says at the end of connect_timeout_ms what was tried and what each attempt answered. The store owns one
 * thread, from here to muster_store_free(). When the connection is lost, all calls fail with that cause from then
 * on. */
MUSTER_API int muster_store_tcp_new(const struct muster_store_tcp_config *config, struct muster_store **ret_store,
                                    struct muster_error *reterr);
MUSTER_API uint16_t muster_store_tcp_port(const struct muster_store *store); /* 0 if it is not a TCP store */

/* ---- etcd store ------------------------------------------------------------------------------------------------ */

struct muster_etcd_config { /* where an etcd cluster is; it needs libcurl, which is loaded then */
    uint32_t size;
    const char *endpoints;           /* "host:port,https://host:port": the next is tried where one fails */
    const char *protocol;            /* "http" or "https", of endpoints that do not say; NULL: http */
    const char *cacert, *cert, *key; /* PEM files; NULL: none. `key` only with `cert`, which may have it inside */
};

/* PyTorch's EtcdStore: keys and values as base64 in the directory `prefix`, by version 2 of etcd's API. There is no
 * delete_key, num_keys or compare_set. No connection is made before the first call. timeout_ms 0:
 * MUSTER_STORE_TIMEOUT_MS. */
MUSTER_API int muster_store_etcd_new(const struct muster_etcd_config *etcd, const char *prefix, int64_t timeout_ms,
                                     struct muster_store **ret_store, struct muster_error *reterr);

/* ---- Rendezvous: parameters ------------------------------------------------------------------------------------ */

struct muster_rdzv_params; /* back end, endpoint, run id, limits, and options by name */

/* Checks, in this order: backend not empty, min_nodes >= 1, max_nodes >= min_nodes. `endpoint` and `run_id` may be
 * empty here; `local_addr` may be NULL or empty. */
MUSTER_API int muster_rdzv_params_new(const char *backend, const char *endpoint, const char *run_id, int64_t min_nodes,
                                      int64_t max_nodes, const char *local_addr, struct muster_rdzv_params **ret_params,
                                      struct muster_error *reterr);
MUSTER_API int muster_rdzv_params_copy(const struct muster_rdzv_params *params, struct muster_rdzv_params **ret_params,
                                       struct muster_error *reterr);
MUSTER_API void muster_rdzv_params_free(struct muster_rdzv_params *params); /* NULL is fine */
MUSTER_API const char *muster_rdzv_params_backend(const struct muster_rdzv_params *params);
MUSTER_API const char *muster_rdzv_params_endpoint(const struct muster_rdzv_params *params);
MUSTER_API const char *muster_rdzv_params_run_id(const struct muster_rdzv_params *params);
MUSTER_API const char *muster_rdzv_params_local_addr(const struct muster_rdzv_params *params); /* NULL: none */
MUSTER_API int64_t muster_rdzv_params_min_nodes(const struct muster_rdzv_params *params);
MUSTER_API int64_t muster_rdzv_params_max_nodes(const struct muster_rdzv_params *params);

enum muster_value_kind { MUSTER_VALUE_TEXT, MUSTER_VALUE_INT, MUSTER_VALUE_BOOL, MUSTER_VALUE_FLOAT };

struct muster_value {
    enum muster_value_kind kind;
    const char *text; /* borrowed from the parameters */
    int64_t integer;
    bool boolean;
    double number;
};

/* An option that is there already gets the new value. */
MUSTER_API int muster_rdzv_params_set_text(struct muster_rdzv_params *params, const char *key, const char *value,
                                           struct muster_error *reterr);
MUSTER_API int muster_rdzv_params_set_int(struct muster_rdzv_params *params, const char *key, int64_t value,
                                          struct muster_error *reterr);
MUSTER_API int muster_rdzv_params_set_bool(struct muster_rdzv_params *params, const char *key, bool value,
                                           struct muster_error *reterr);
MUSTER_API int muster_rdzv_params_set_float(struct muster_rdzv_params *params, const char *key, double value,
                                            struct muster_error *reterr);
/* "key=value,key=value", all of them text. */
MUSTER_API int muster_rdzv_params_set_options(struct muster_rdzv_params *params, const char *options,
                                              struct muster_error *reterr);
/* False: there is no such option. */
MUSTER_API bool muster_rdzv_params_get(const struct muster_rdzv_params *params, const char *key,
                                       struct muster_value *ret_value);
/* `fallback` when there is no such option; MUSTER_EINVAL naming it when its value does not fit. */
MUSTER_API int muster_rdzv_params_get_as_bool(const struct muster_rdzv_params *params, const char *key, bool fallback,
                                              bool *ret_value, struct muster_error *reterr);
MUSTER_API int muster_rdzv_params_get_as_int(const struct muster_rdzv_params *params, const char *key, int64_t fallback,
                                             int64_t *ret_value, struct muster_error *reterr);

/* ---- Rendezvous: handlers -------------------------------------------------------------------------------------- */

#define MUSTER_KEY_MASTER_ADDR "MASTER_ADDR"
#define MUSTER_KEY_MASTER_PORT "MASTER_PORT"

struct muster_store_info { /* where the workers of a round meet */
    char master_addr[256];
    uint16_t master_port;
};

/* Rank 0 puts an address (`local_addr`, or this machine's name) and a port (`port`, or a free one if that is 0) into
 * the store; every rank takes both from there. */
MUSTER_API int muster_store_info_build(int64_t rank, struct muster_store *store, const char *local_addr, uint16_t port,
                                       struct muster_store_info *ret_info, struct muster_error *reterr);

struct muster_rdzv_info { /* what a node is told when the group is formed */
    /* Of this round; the handler's, until its next round or its end. NULL: the back end has none. */
    struct muster_store *store;
    int64_t rank, world_size;
    int64_t round;                      /* -1: this back end has no rounds */
    struct muster_store_info bootstrap; /* empty and 0: rank 0 is PyTorch 1.13, which publishes it later */
};

struct muster_rdzv;

struct muster_rdzv_ops {
    uint32_t size;
    const char *(*get_backend)(const struct muster_rdzv *rdzv);
    const char *(*get_run_id)(const struct muster_rdzv *rdzv);
    bool (*use_agent_store)(const struct muster_rdzv *rdzv);
    int (*next_rendezvous)(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info, struct muster_error *reterr);
    int (*is_closed)(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr);
    int (*set_closed)(struct muster_rdzv *rdzv, struct muster_error *reterr);
    int (*num_nodes_waiting)(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr);
    /* *ret_closed: true on success, false after a rendezvous error, which is in *reterr. Under an agent: see
     * rdzv_handler in struct muster_worker_spec. */
    int (*shutdown)(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr);
    void (*free)(struct muster_rdzv *rdzv);
};

/* A handler of a user's own has this as its first member. Handlers of this library may be used from any thread; calls
 * on one handler are carried out one after the other. They run a thread of their own, from new to free: a member stays
 * one whatever the caller does.
 *
 * What an agent does with a handler of a user's own, whether it was registered by name or given in the worker spec:
 * - get_backend(), get_run_id() and use_agent_store() are called before anything else, and return at once.
 * - One thread of the agent makes all other calls, one after the other. It calls next_rendezvous() for each round.
 *   While the round lasts it calls num_nodes_waiting() every monitor_interval_ms, for this interface has no other way
 *   to learn of changes. It also makes the calls of the round's store, by which agents exchange ranks and wait for each
 *   other at the end. All of them may block.
 * - A worker that fails, or num_nodes_waiting() above 0, leads to the next call of next_rendezvous(). An error of
 *   num_nodes_waiting() stops no worker: it is logged, and the call is made again.
 * - The round's store must be empty when the round begins, must have set, get and add, and must keep to the timeouts it
 *   is called with. If there is none, a round has one node, or its workers are identical (workers_identical).
 * - If bootstrap is empty, rank 0 puts an address and a free port into the store (muster_store_info_build()); its
 *   worker 0 has to listen there.
 * - The end of the job: shutdown(). If the creator made the handler, free() follows.
 * - An agent that ends before the job does (a signal, an error) does not call shutdown(), which may close the job for
 *   the others. There is one exception: if next_rendezvous() is under way, shutdown() is called from another thread,
 *   and must make next_rendezvous() return, with any error.
 * - A call that has not returned by shutdown_timeout_ms is left behind with its thread, with a warning; the run ends.
 *   The thread is still in the handler: do not free the handler then. It serves no other agent. */
struct muster_rdzv {
    const struct muster_rdzv_ops *ops;
};

MUSTER_API const char *muster_rdzv_get_backend(const struct muster_rdzv *rdzv);
MUSTER_API const char *muster_rdzv_get_run_id(const struct muster_rdzv *rdzv);
MUSTER_API bool muster_rdzv_use_agent_store(const struct muster_rdzv *rdzv);
/* Blocks until this node is in a completed group. MUSTER_ERDZV_CLOSED, _TIMEOUT, _CONNECTION, _STATE, _GRACEFUL_EXIT. A
 * handler of a user's own that saw a state which will pass may return MUSTER_ERETRY or MUSTER_ERETRY_NOW: it is then
 * called again, after a second or at once, and after 600 s that is MUSTER_ERDZV_TIMEOUT. */
MUSTER_API int muster_rdzv_next_rendezvous(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info,
                                           struct muster_error *reterr);
MUSTER_API int muster_rdzv_is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr);
MUSTER_API int muster_rdzv_set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr);
/* Above 0: call next_rendezvous() again. That many nodes want to join. It is also at least 1 once our round has lost
 * members, or the others go on without us, for a caller that only polls has no other way to learn of it. */
MUSTER_API int muster_rdzv_num_nodes_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr);
MUSTER_API int muster_rdzv_shutdown(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr);
MUSTER_API void muster_rdzv_free(struct muster_rdzv *rdzv); /* leaves, if it still is a member; NULL is fine */

/* ---- Rendezvous: registry -------------------------------------------------------------------------------------- */

/* Under an agent it is called by muster_agent_run(), before anything else is done. */
typedef int muster_rdzv_creator(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                                struct muster_error *reterr);

struct muster_rdzv_registry;

MUSTER_API int muster_rdzv_registry_new(struct muster_rdzv_registry **ret_registry, struct muster_error *reterr);
MUSTER_API void muster_rdzv_registry_free(
    struct muster_rdzv_registry *registry); /* not the default one; NULL is fine */
/* The process's own, with the back ends of this library in it. Never freed. NULL: out of memory. */
MUSTER_API struct muster_rdzv_registry *muster_rdzv_registry_default(void);
/* A name is bound once; binding it again to the same function and context changes nothing. */
MUSTER_API int muster_rdzv_registry_register(struct muster_rdzv_registry *registry, const char *backend,
                                             muster_rdzv_creator *creator, void *ctx, struct muster_error *reterr);
MUSTER_API int muster_rdzv_registry_create(struct muster_rdzv_registry *registry,
                                           const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                                           struct muster_error *reterr);

/* ---- Rendezvous: the dynamic one, on any back end -------------------------------------------------------------- */

struct muster_rdzv_backend;

/* Where the shared document is kept. The calls may block; they come from threads of the handler, one at a time (except
 * watch). Tokens are bytes that only the back end understands. */
struct muster_rdzv_backend_ops {
    uint32_t size;
    const char *name;
    /* *ret_found false: there is no document yet. */
    int (*get_state)(struct muster_rdzv_backend *backend, bool *ret_found, struct muster_bytes *ret_state,
                     struct muster_bytes *ret_token, struct muster_error *reterr);
    /* Replaces the document if the token still is its token, or, without one (token.data NULL), if there is none.
     * Returns the document that is there afterwards, and in *ret_set whether it is ours. */
    int (*set_state)(struct muster_rdzv_backend *backend, struct muster_slice state, struct muster_slice token,
                     bool *ret_found, struct muster_bytes *ret_state, struct muster_bytes *ret_token, bool *ret_set,
                     struct muster_error *reterr);
    /* May be NULL. Returns when the document's token is no longer this one, or the time is up. */
    int (*watch)(struct muster_rdzv_backend *backend, struct muster_slice token, int64_t timeout_ms,
                 struct muster_error *reterr);
    void (*free)(struct muster_rdzv_backend *backend); /* may be NULL */
};

struct muster_rdzv_backend {
    const struct muster_rdzv_backend_ops *ops;
};

struct muster_rdzv_timeout { /* 0: the default */
    uint32_t size;
    int64_t join_ms, last_call_ms, close_ms, heartbeat_ms; /* 600 s, 30 s, 30 s, 5 s */
};

struct muster_rdzv_settings {
    uint32_t size;
    const char *run_id;
    int64_t min_nodes, max_nodes;
    struct muster_rdzv_timeout timeout;
    int64_t keep_alive_interval_ms, keep_alive_max_attempt; /* 0: 5 s, 3 */
    /* Where the workers' store listens, "any" or "10.0.0.5,fd00::5"; NULL: MASTER_ADDR and loopback. */
    const char *bind;
    const char *allow;   /* networks that may connect to it, "10.0.0.0/8,fd00::/8"; NULL: every network */
    bool no_agent_store; /* worker 0 is to host the workers' store: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 of PyTorch */
};

/* `store` is what the members of a round share; it and `backend`, which has at least a name, get_state and set_state,
 * must outlive the handler. */
MUSTER_API int muster_rdzv_dynamic_from_backend(const struct muster_rdzv_settings *settings, struct muster_store *store,
                                                struct muster_rdzv_backend *backend, const char *local_addr,
                                                struct muster_rdzv **ret_rdzv, struct muster_error *reterr);
/* The same with everything taken from the parameters: join_timeout, last_call_timeout, close_timeout, ... */
MUSTER_API int muster_rdzv_dynamic_create(struct muster_store *store, struct muster_rdzv_backend *backend,
                                          const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                                          struct muster_error *reterr);

/* What a dynamic handler runs with: one of the two above, or of back end c10d or etcd-v2. Set ret_settings->size
 * before; texts are the handler's, until it is freed. MUSTER_EINVAL: a handler of another kind. */
MUSTER_API int muster_rdzv_dynamic_settings(const struct muster_rdzv *rdzv, struct muster_rdzv_settings *ret_settings,
                                            struct muster_error *reterr);

/* ---- Rendezvous: static ---------------------------------------------------------------------------------------- */

MUSTER_API int muster_rdzv_static_new(const char *master_addr, uint16_t master_port, int64_t rank, int64_t world_size,
                                      const char *run_id, int64_t timeout_ms, struct muster_rdzv **ret_rdzv,
                                      struct muster_error *reterr);
MUSTER_API int muster_rdzv_static_create(void *ctx, const struct muster_rdzv_params *params,
                                         struct muster_rdzv **ret_rdzv, struct muster_error *reterr);

/* ---- Rendezvous: classic etcd ---------------------------------------------------------------------------------- */

/* How long etcd keeps what is written, in seconds, unless it is renewed. */
#define MUSTER_ETCD_SETUP_TTL_S 5               /* the document, while a round is being set up */
#define MUSTER_ETCD_FROZEN_TTL_S 10             /* ... while its members confirm */
#define MUSTER_ETCD_JOINABLE_EPHEMERAL_TTL_S 10 /* ... while the last call runs */
#define MUSTER_ETCD_WORKER_KEEPALIVE_TTL_S 10   /* the key by which a member is known to be alive */
#define MUSTER_ETCD_RUNID_SUBROOT_TTL_S 7200    /* the directory of a job */

/* `prefix` NULL: "/torchelastic/p2p". Timeouts of 0: 600 s, and 30 s for the last call. Freeing the handler ends its
 * leases. */
MUSTER_API int muster_rdzv_etcd_new(const struct muster_etcd_config *etcd, const char *prefix, const char *run_id,
                                    int64_t min_nodes, int64_t max_nodes, int64_t timeout_ms,
                                    int64_t last_call_timeout_ms, struct muster_rdzv **ret_rdzv,
                                    struct muster_error *reterr);
/* Options: timeout, last_call_timeout, close_timeout (seconds), etcd_prefix, protocol, cacert, cert, key. */
MUSTER_API int muster_rdzv_etcd_create(void *ctx, const struct muster_rdzv_params *params,
                                       struct muster_rdzv **ret_rdzv, struct muster_error *reterr);
/* Texts by name, kept with a round of such a handler; MUSTER_EINVAL for a handler of another kind. */
MUSTER_API int muster_rdzv_etcd_store_extra_data(struct muster_rdzv *rdzv, int64_t round, const char *key,
                                                 const char *value, int64_t timeout_ms, struct muster_error *reterr);
/* Waits until it is there: MUSTER_ETIMEOUT. A value that is no text is returned as JSON. */
MUSTER_API int muster_rdzv_etcd_load_extra_data(struct muster_rdzv *rdzv, int64_t round, const char *key,
                                                int64_t timeout_ms, struct muster_bytes *ret_value,
                                                struct muster_error *reterr);
/* "etcd://HOST:PORT/RUN-ID?min_workers=1&max_workers=3&timeout=300": the other keys are options; unknown ones are
 * errors. */
MUSTER_API int muster_rdzv_params_from_url(const char *url, struct muster_rdzv_params **ret_params,
                                           struct muster_error *reterr);

/* ---- Rendezvous: event-driven handlers ------------------------------------------------------------------------- */

struct muster_node {
    const char *name;
    int64_t pid, local_id; /* -1: this back end does not know */
};

#define MUSTER_RDZV_EVENTS(X)                                                                                          \
    X(JOINED, "joined")             /* info (without a store), nodes: the members by rank, if known */                 \
    X(WAITING, "waiting")           /* count: nodes that want to join; nodes: which, if known */                       \
    X(PEERS_LOST, "peers_lost")     /* nodes: those that are gone; the last `count` wait for the next round; cause */  \
    X(REMOVED, "removed")           /* the others go on without us; or cause */                                        \
    X(CLOSED, "closed")             /* nobody joins any more */                                                        \
    X(LEFT, "left")                 /* leave is done */                                                                \
    X(FAILED, "failed")             /* request, error: what was asked for failed, or our membership did */             \
    X(LOOKED, "looked")             /* round, -1: no such rendezvous; closed; count: nodes that want in; or error */   \
    X(BACKEND_DOWN, "backend_down") /* error, away_ms, give_up_in_ms, count; told again if more is known */            \
    X(BACKEND_UP, "backend_up")                                                                                        \
    X(PROGRESS, "progress") /* progress, while joining; nodes: the first of the members */                             \
    X(REPORTED, "reported") /* of muster's own back ends, to muster's agents alone */

enum muster_rdzv_event_type {
#define X(name, text) MUSTER_RDZV_##name,
    MUSTER_RDZV_EVENTS(X)
#undef X
};

MUSTER_API const char *muster_rdzv_event_name(enum muster_rdzv_event_type type);

/* What has failed. */
enum muster_rdzv_request {
    MUSTER_RDZV_REQUEST_UNKNOWN, /* only from back ends that were built before this was there */
    MUSTER_RDZV_REQUEST_JOIN,
    MUSTER_RDZV_REQUEST_LEAVE,
    MUSTER_RDZV_REQUEST_CLOSE,
    MUSTER_RDZV_REQUEST_LOOK,
    MUSTER_RDZV_REQUEST_MEMBERSHIP, /* no request: we were a member, and are not any more */
};

struct muster_rdzv_progress {
    int64_t joined; /* -1: not known, the back end has not answered yet */
    int64_t waiting, spares, min_nodes, max_nodes;
    bool spare;                /* we are one */
    int64_t last_call_left_ms; /* -1: it has not begun */
    int64_t join_left_ms;      /* -1: no limit */
};

struct mu_part_seat; /* of the library alone */
struct mu_part_verdict;

struct muster_rdzv_event { /* borrows what it points to */
    uint32_t size;
    enum muster_rdzv_event_type type;
    int64_t round; /* -1: none */
    const struct muster_rdzv_info *info;
    const struct muster_node *nodes;
    size_t nodes_count;
    int64_t count; /* also of BACKEND_DOWN: members that are lost with it; PEERS_LOST follows and names them */
    bool closed;
    const struct muster_error *error;
    const struct muster_rdzv_progress *progress;
    bool old_dialect;                 /* JOINED: the group exchanges ranks by the keys of PyTorch 1.13 */
    enum muster_rdzv_request request; /* FAILED: what has failed; an error of LOOKED is of LOOK */
    const char *note; /* PROGRESS: a text about nodes that cannot form a group with this one; NULL: none is known */
    const char
        *cause;      /* PEERS_LOST: how the nodes that did not leave by themselves were lost; NULL: not known. REMOVED:
                        * why this node has removed itself from the round; NULL: the others have */
    int64_t away_ms; /* BACKEND_DOWN: how long the store has not answered */
    int64_t give_up_in_ms; /* BACKEND_DOWN: how long it is still waited for; 0: without a limit, or not known */
    const struct muster_node *self;        /* the node that this handler is in the group; NULL: not known */
    const struct mu_part_seat *seat;       /* JOINED; other people's back ends leave these two alone */
    const struct mu_part_verdict *verdict; /* CLOSED, FAILED */
};

typedef void muster_rdzv_listener(void *ctx, const struct muster_rdzv_event *event);

struct muster_handler;

/* Each call returns at once; its result comes later, from the loop, never inside of the call. */
struct muster_handler_ops {
    uint32_t size;
    const char *name;
    void (*join)(struct muster_handler *handler);  /* JOINED or FAILED; the old round is left first */
    void (*leave)(struct muster_handler *handler); /* LEFT or FAILED */
    void (*close)(struct muster_handler *handler); /* CLOSED or FAILED */
    void (*look)(struct muster_handler *handler);  /* LOOKED */
    bool (*use_agent_store)(const struct muster_handler *handler);
    /* No event comes after this. `done` when everything is released; the document is left as it is. */
    void (*free)(struct muster_handler *handler, void (*done)(void *ctx), void *ctx);
    /* Where the group's store is, a TCPStore: for the agent's own exchange of ranks. False: not known, or not yet. May
     * be NULL. */
    bool (*endpoint)(const struct muster_handler *handler, char *ret_host, size_t room, uint16_t *ret_port);
    bool (*hosts)(const struct muster_handler *handler); /* that store runs in this process. May be NULL: it does not */
    /* `alone` once, as soon as no other process is connected to the stores that this one hosts (the group's, the
     * workers'); not at all if it hosts none. May be NULL: not known. */
    void (*when_alone)(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx);
};

struct muster_handler {
    const struct muster_handler_ops *ops;
};

/* ---- Rendezvous: other people's back ends, as shared objects --------------------------------------------------- */

#define MUSTER_BACKEND_ABI 1
#define MUSTER_BACKEND_SYMBOL "muster_backend_1"

enum { MUSTER_FD_READABLE = 1, MUSTER_FD_WRITABLE = 2 };

/* What a back end may use of the program that runs it. All of it from the thread that called it. */
struct muster_host {
    uint32_t size;
    void *ctx;
    int64_t (*now_ms)(void *ctx); /* monotonic */
    /* Calls `fire` once, after delay_ms. NULL: out of memory. */
    void *(*timer_start)(void *ctx, int64_t delay_ms, void (*fire)(void *arg), void *arg);
    void (*timer_stop)(void *ctx, void *timer); /* also after it has fired: gives it back */
    /* Calls `ready` whenever the descriptor is ready for `events`. NULL: not possible (no memory, not a descriptor that
     * can be waited for, or watched already). The descriptor becomes non-blocking. */
    void *(*fd_watch)(void *ctx, int fd, unsigned events, void (*ready)(void *arg, unsigned events), void *arg);
    void (*fd_unwatch)(void *ctx, void *watch);
    void (*log)(void *ctx, enum muster_log_level level, const char *line);
    int (*fail)(void *ctx, struct muster_error *reterr, int code, const char *text); /* fills in, returns the code */
    /* The functions muster_rdzv_params_*, so that a back end need not be linked with this library. */
    const char *(*params_endpoint)(const struct muster_rdzv_params *params);
    const char *(*params_run_id)(const struct muster_rdzv_params *params);
    const char *(*params_local_addr)(const struct muster_rdzv_params *params);
    int64_t (*params_min_nodes)(const struct muster_rdzv_params *params);
    int64_t (*params_max_nodes)(const struct muster_rdzv_params *params);
    bool (*params_get)(const struct muster_rdzv_params *params, const char *key, struct muster_value *ret_value);
    int (*params_get_as_bool)(const struct muster_rdzv_params *params, const char *key, bool fallback, bool *ret_value,
                              struct muster_error *reterr);
    int (*params_get_as_int)(const struct muster_rdzv_params *params, const char *key, int64_t fallback,
                             int64_t *ret_value, struct muster_error *reterr);
};

struct muster_backend_1 {
    uint32_t abi;  /* MUSTER_BACKEND_ABI */
    uint32_t size; /* of this struct */
    const char *name;
    int (*create)(const struct muster_host *host, const struct muster_rdzv_params *params,
                  muster_rdzv_listener *listener, void *listener_ctx, struct muster_handler **ret_handler,
                  struct muster_error *reterr);
};

/* Loads every *.so in `directory` and registers it by its name. Directory and files must belong to root or to us, and
 * must not be writable by others. One that does not load is an error that names the file and the reason. */
MUSTER_API int muster_rdzv_registry_load(struct muster_rdzv_registry *registry, const char *directory,
                                         struct muster_error *reterr);

/* ---- Processes ------------------------------------------------------------------------------------------------- */

/* For programs that run workers: call it first in main(), before a thread is started or a signal handled. It forks: the
 * child goes on with the program, in a session of its own; the parent, whose pid others know, stays as its keeper: it
 * passes signals on, ends as the program ends, and if the program is killed, kills what is left of its workers.
 * Processes that workers detach (double forks, setsid) become children of the program and end with the job. Flush
 * buffered output before. Calling it twice does no harm. MUSTER_EINVAL: there is more than one thread.
 *
 * Without it workers still die with the thread that started them, but processes that they detach do not. The library
 * then never adopts a process, and never waits for a child that it did not start. With it SIGCHLD is the library's
 * while workers run. Children of the program itself are left alone as long as they stay in its session. Several agents
 * may run at once, each in a thread of its own; processes that workers have detached then end when the last agent with
 * workers stops them. */
MUSTER_API int muster_guard(struct muster_error *reterr);

/* ---- Agent: workers -------------------------------------------------------------------------------------------- */

#define MUSTER_WORKER_STATES(X)                                                                                        \
    X(UNKNOWN, "UNKNOWN")     /* a start or stop was applied only in part: run returns an error */                     \
    X(INIT, "INIT")           /* no worker was started yet */                                                          \
    X(HEALTHY, "HEALTHY")     /* all are running, or have succeeded */                                                 \
    X(UNHEALTHY, "UNHEALTHY") /* a worker hangs in the kernel, where no signal reaches it; ends as FAILED */           \
    X(STOPPED, "STOPPED")     /* between two rounds */                                                                 \
    X(SUCCEEDED, "SUCCEEDED")                                                                                          \
    X(FAILED, "FAILED")

/* The workers of one agent share it. */
enum muster_worker_state {
#define X(name, text) MUSTER_WORKER_##name,
    MUSTER_WORKER_STATES(X)
#undef X
};

MUSTER_API const char *muster_worker_state_name(enum muster_worker_state state); /* "HEALTHY" */
MUSTER_API bool muster_worker_state_is_running(enum muster_worker_state state);  /* HEALTHY, UNHEALTHY */

#define MUSTER_WORKER_ID_MAX 128 /* bytes of an id as text, with its NUL */

struct muster_worker {
    int64_t id; /* its pid, or the number that the driver gave it; 0: it was not started yet */
    int64_t local_rank;
    int64_t global_rank, role_rank, world_size, role_world_size; /* -1 until they are assigned */
    /* The id as the driver writes it, "host:port"; else the number. Empty: it was not started yet. */
    char id_text[MUSTER_WORKER_ID_MAX];
};

#define MUSTER_WORKER_TEXT_MAX 192
/* "local_rank=0,global_rank=4,role_rank=4,world_size=8,role_world_size=8", as PyTorch shows it. Returns `text`. */
MUSTER_API const char *muster_worker_text(const struct muster_worker *worker, char text[MUSTER_WORKER_TEXT_MAX]);

struct muster_worker_spec;

struct muster_worker_group { /* as it was at one moment */
    uint32_t size;
    const char *role;
    enum muster_worker_state state;
    int64_t group_rank, group_world_size; /* -1 until there is a group */
    int64_t round;                        /* -1: there is none */
    int64_t attempt;                      /* how often workers were started; 0: never */
    int64_t restart_count;                /* of the job: what workers are told as TORCHELASTIC_RESTART_COUNT */
    int64_t remaining_restarts;
    struct muster_store_info master;     /* where the workers meet; empty until there is a group */
    const struct muster_worker *workers; /* by local rank */
    size_t workers_count;
    /* The agent's own copy, from muster_agent_new() to muster_agent_free(). Its rdzv is set also where a handler was
     * given. */
    const struct muster_worker_spec *spec;
    /* The group's store. It too belongs to the agent, from new to free; do not free it. A call reaches the store of the
     * round that is the group's at that moment, in which its members share keys; MUSTER_ECANCELED: there is no round,
     * or it ended while the call waited. From any thread but that of muster_agent_run(): a driver's call would wait for
     * itself (MUSTER_EINVAL). It has set, get, add, compare_set, check, wait, delete_key and what is made of them.
     * MUSTER_ENOTSUP: the back end has no store. */
    struct muster_store *store;
};

MUSTER_API void muster_worker_group_free(struct muster_worker_group *group); /* of a snapshot; NULL is fine */

/* A worker that is a function. It runs in a forked child: it sees the program's memory as it was, no descriptors but 0,
 * 1 and 2, none of the program's other threads, and the environment that a command would get. It returns the exit code,
 * 0 to 255; 0 is success. What it leaves in *ret_value (malloc'ed, at most 64 MiB; nothing: empty) comes back as the
 * return value of its global rank or, with another exit code, as the message of its failure. It should neither exec nor
 * exit: then nothing comes back, and that is a failure. */
typedef int muster_worker_function(void *ctx, const struct muster_worker *worker, struct muster_bytes *ret_value);

struct muster_agent;
struct muster_worker_driver;

struct muster_worker_id { /* what a driver calls a worker */
    int64_t number;
    char text[MUSTER_WORKER_ID_MAX]; /* "host:port"; empty: the number is the name */
};

struct muster_worker_stop { /* how workers are stopped */
    uint32_t size;
    int signal;       /* they are asked to end as by this one ... */
    int64_t grace_ms; /* ... and ended by force after this time; at once if it is 0 */
    bool is_restart;  /* they are to be started again, as far as is known */
};

/* For another kind of worker than processes of this machine. All calls come from the thread that is in
 * muster_agent_run(), and must not block. Call muster_agent_worker_ended() when a worker has ended, and
 * muster_agent_worker_unhealthy() when one is stuck. */
struct muster_worker_driver_ops {
    uint32_t size;
    const char *name;
    /* Starts all workers of `group`; their names go to ret_ids (group->workers_count of them, all zero before). On
     * failure none of them runs. Pointers are borrowed for the call. */
    int (*start)(struct muster_worker_driver *driver, struct muster_agent *agent,
                 const struct muster_worker_group *group, struct muster_worker_id *ret_ids,
                 struct muster_error *reterr);
    /* May come again while workers are being stopped, with another signal or less time. Returns at once; the stop is
     * over when the end of every worker has been told. Not called when all have ended. `how` is borrowed. */
    void (*stop)(struct muster_worker_driver *driver, const struct muster_worker_stop *how);
    /* The last call, when no worker is left, whatever the outcome; once for each muster_agent_run(). `signal`: the
     * signal that ended the agent, or SIGTERM. May be NULL. */
    void (*shutdown)(struct muster_worker_driver *driver, int signal);
};

/* A driver of a user's own has this as its first member. */
struct muster_worker_driver {
    const struct muster_worker_driver_ops *ops;
};

#define MUSTER_DEFAULT_ROLE "default"

/* What workers are and how they are run: fill it in with muster_worker_spec_init(), then set what differs. Everything
 * is copied, except the registry, the function's context, the driver and rdzv_handler, which must live as long as the
 * agent. */
struct muster_worker_spec {
    uint32_t size;
    const char *role;         /* not empty; MUSTER_DEFAULT_ROLE */
    int64_t local_world_size; /* how many run here; above 0 */
    int64_t max_restarts;     /* of the job; 3; 0 is none */
    /* Above 0; 100. Deaths and news of the rendezvous come as events: nothing is polled, however small it is. The one
     * exception is a blocking handler of a user's own: see struct muster_rdzv. */
    int64_t monitor_interval_ms;
    /* The rendezvous, by parameters: a back end of this library, of a shared object that was loaded, or one that was
     * registered. NULL if there is an rdzv_handler. */
    const struct muster_rdzv_params *rdzv;
    struct muster_rdzv_registry *registry; /* NULL: the default one */
    /* The entry point: a command, or a function with its name. With a driver neither is needed. */
    const char *const *argv; /* NULL-terminated; argv[0] is looked for in PATH if it has no slash */
    muster_worker_function *function;
    const char *function_name;
    void *function_ctx;
    struct muster_worker_driver *driver; /* NULL: processes */
    const char *const *envp; /* what workers inherit, beneath RANK and so on; NULL: our environment, at each start */
    /* Output. Without log_dir nothing is written anywhere: workers have our descriptors 0, 1 and 2, and no error
     * file. */
    const char *log_dir;   /* made if need be; logs and error files of each attempt are below it */
    const char *redirects; /* to files: "0".."3" (1: stdout, 2: stderr, 3: both), or "RANK:N,RANK:N" by local rank */
    const char *tee;       /* to files and to our own output; the same grammar */
    const char *signals;   /* "SIGTERM,SIGINT": handled while it runs, as muster_agent_signal() says; NULL: none */
    int64_t shutdown_timeout_ms;     /* how long workers have to end when they are stopped, before SIGKILL; 0: 30 s */
    int64_t exit_barrier_timeout_ms; /* how long to wait, when done, for the other nodes; 0: without limit */
    bool workers_identical;          /* every node has as many workers of the same role: ranks need no exchange */
    /* A process that hangs in the kernel (state D) for this long makes the group UNHEALTHY: it is stopped, the node
     * leaves, and the result is FAILED; 0: not checked. */
    int64_t uninterruptible_timeout_ms;
    /* MASTER_ADDR and MASTER_PORT of the workers. Each takes precedence over what the rendezvous has found; NULL and 0:
     * as found. On rank 0 the workers' store listens there, in every round, and the other nodes are told. On another
     * node they hold for the workers of that node, and a store must answer there before they start. A static rendezvous
     * takes only its endpoint. A user's own handler does not see them. */
    const char *master_addr;
    uint16_t master_port;
    /* The rendezvous, by a handler instead of parameters. The caller frees it after muster_agent_run() has returned. It
     * serves one agent at a time: the run of a second one fails with MUSTER_EINVAL. See struct muster_rdzv for what is
     * called. */
    struct muster_rdzv *rdzv_handler;
};

static inline void muster_worker_spec_init(struct muster_worker_spec *spec)
{
    memset(spec, 0, sizeof *spec);
    spec->size = (uint32_t)sizeof *spec;
    spec->role = MUSTER_DEFAULT_ROLE;
    spec->max_restarts = 3;
    spec->monitor_interval_ms = 100;
}

/* MUSTER_EINVAL, naming the field. */
MUSTER_API int muster_worker_spec_check(const struct muster_worker_spec *spec, struct muster_error *reterr);
/* What the entry point is called in events: the function's name, the base name of the program, or the driver's name. */
MUSTER_API const char *muster_worker_spec_entry_point(const struct muster_worker_spec *spec);

/* ---- Agent ----------------------------------------------------------------------------------------------------- */

struct muster_failure { /* of one worker */
    int64_t global_rank, local_rank;
    int64_t id;             /* its pid, or the number that the driver gave it */
    int exit_code;          /* or minus the number of the signal that it died of */
    int64_t time_s;         /* since the epoch */
    const char *message;    /* of its error file or its function, or the last line that it logged; may be empty */
    const char *error_file; /* NULL: it has left none */
    bool out_of_memory;     /* the kernel killed it for want of memory */
    const char *id_text;    /* the id as text */
};

struct muster_return_value {
    int64_t global_rank, local_rank;
    struct muster_slice value; /* the result's; of a command: empty */
};

struct muster_run_result {
    uint32_t size;
    enum muster_worker_state state; /* SUCCEEDED or FAILED */
    /* Of this node's workers of the last attempt; a global rank is in at most one of the lists. */
    const struct muster_return_value *return_values; /* by rank */
    size_t return_values_count;
    const struct muster_failure *failures; /* the first to happen in front; none: it was another node that failed */
    size_t failures_count;
    const char *reason; /* one line, why it failed; empty: it did not */
    int64_t total_run_time_ms;
};

MUSTER_API bool muster_run_result_is_failed(const struct muster_run_result *result);
/* NULL: that rank has none. */
MUSTER_API const struct muster_return_value *muster_run_result_value(const struct muster_run_result *result,
                                                                     int64_t global_rank);
MUSTER_API const struct muster_failure *muster_run_result_failure(const struct muster_run_result *result,
                                                                  int64_t global_rank);
MUSTER_API void muster_run_result_free(struct muster_run_result *result); /* NULL is fine */

/* One node's part of a job: joins, runs its workers, restarts them, and stays until the others are done.
 *
 * Call muster_guard() first in main(), so that everything that workers leave behind is ended even if the program is
 * killed. Without it the library never becomes a sub-reaper, never waits for a child that it did not start (no
 * waitpid(-1)), and never handles SIGCHLD where the kernel has pidfds; workers and their process groups still end with
 * the agent. */

/* Checks the spec. Nothing is opened, started or joined before muster_agent_run(). */
MUSTER_API int muster_agent_new(const struct muster_worker_spec *spec, struct muster_agent **ret_agent,
                                struct muster_error *reterr);

/* Runs the job to its end, in the calling thread: workers are its children and die with it. Once for each agent. 0:
 * *ret_result says whether workers have succeeded or failed; the caller owns it. Else there is no result, no worker is
 * left, and the node has left the job, which goes on for the others. MUSTER_ESIGNAL: a handled signal or
 * muster_agent_signal(). MUSTER_ERDZV_GRACEFUL_EXIT: the job has ended and did not need this node, which is no failure.
 * Others: the rendezvous could not be joined, a worker could not be started, ... */
MUSTER_API int muster_agent_run(struct muster_agent *agent, struct muster_run_result **ret_result,
                                struct muster_error *reterr);

/* From any thread, at any time between new and free. The caller owns *ret_group. */
MUSTER_API int muster_agent_snapshot(struct muster_agent *agent, struct muster_worker_group **ret_group,
                                     struct muster_error *reterr);

/* From any thread: as if the program had got this signal, and handled it. Workers get it, have shutdown_timeout_ms to
 * end, and are killed; the node leaves; run returns MUSTER_ESIGNAL. Further signals change nothing, with two
 * exceptions: SIGQUIT, and SIGINT more than a second after the first SIGINT, kill the workers at once. Before run: then
 * run ends at once. Not from a signal handler. */
MUSTER_API void muster_agent_signal(struct muster_agent *agent, int signal);

/* For drivers, from any thread, also from inside of start and stop: that worker of that attempt has ended. `value` is
 * copied: the return value if exit_code is 0, else the failure's message. MUSTER_EINVAL: no such worker runs, or its
 * end is known. MUSTER_ENOMEM: call it again, if need be without a value. */
MUSTER_API int muster_agent_worker_ended(struct muster_agent *agent, int64_t attempt, int64_t local_rank, int exit_code,
                                         struct muster_slice value, struct muster_error *reterr);

/* For drivers, likewise: that worker still runs, but is stuck. The group is UNHEALTHY: its workers are stopped, and
 * restarted if restarts are left. `text`, one line, says what is wrong, and is the worker's failure. MUSTER_EINVAL: no
 * such worker runs. */
MUSTER_API int muster_agent_worker_unhealthy(struct muster_agent *agent, int64_t attempt, int64_t local_rank,
                                             const char *text, struct muster_error *reterr);

MUSTER_API void muster_agent_free(struct muster_agent *agent); /* not while it runs; NULL is fine */

/* ---- Events for the record ------------------------------------------------------------------------------------- */

enum muster_node_state { MUSTER_NODE_INIT, MUSTER_NODE_RUNNING, MUSTER_NODE_SUCCEEDED, MUSTER_NODE_FAILED };

enum muster_event_source { MUSTER_EVENT_RENDEZVOUS, MUSTER_EVENT_AGENT, MUSTER_EVENT_WORKER };

struct muster_event_record { /* borrowed */
    uint32_t size;
    /* Of a rendezvous: PyTorch's operation, "dynamic_rendezvous.py:DynamicRendezvousHandler._close", ...; else
     * "torchelastic.worker.status.START", ... */
    const char *name;
    const char *run_id, *message, *hostname;
    int64_t pid, local_id, rank; /* -1: none. Of a worker: its process (under a driver -1) and its global rank */
    enum muster_node_state node_state;
    const char *error; /* NULL: none */
    enum muster_event_source source;
    const char *json;     /* all of it, one line in PyTorch's form, without line end; NULL: no memory for it */
    int64_t timestamp_ms; /* when it was recorded, since 1970 */
};

typedef void muster_events_sink(void *ctx, const struct muster_event_record *record);
MUSTER_API const char *muster_node_state_name(enum muster_node_state state); /* "RUNNING" */
MUSTER_API void muster_events_set_sink(muster_events_sink *sink, void *ctx); /* NULL, the default: nothing */
/* Sinks: a line of JSON each, on stderr. The first shows what torchrun's console handler shows, events of agents and
 * workers; the second those of the rendezvous too. `ctx` is not used. */
MUSTER_API void muster_events_console(void *ctx, const struct muster_event_record *record);
MUSTER_API void muster_events_console_all(void *ctx, const struct muster_event_record *record);

/* ---- Metrics --------------------------------------------------------------------------------------------------- */

struct muster_metric { /* borrowed */
    uint32_t size;
    double time_s;     /* since the epoch */
    const char *group; /* "torchelastic" */
    const char *name;  /* "workers.default.run_total", ... */
    int64_t value;
};

/* As with log lines: from any thread, one call at a time; it must not call back into muster. */
typedef void muster_metrics_sink(void *ctx, const struct muster_metric *metric);
MUSTER_API void muster_metrics_set_sink(muster_metrics_sink *sink, void *ctx); /* NULL, the default: nothing */
/* A sink: "[<seconds>][<group>]: <name>=<value>" on stdout, as PyTorch's. `ctx` is not used. */
MUSTER_API void muster_metrics_console(void *ctx, const struct muster_metric *metric);

#ifdef __cplusplus
}
#endif

#endif
