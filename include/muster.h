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
};

MUSTER_API const char *muster_error_name(int code); /* "EINVAL" */
MUSTER_API const char *muster_error_text(int code); /* "invalid argument" */
MUSTER_API bool muster_error_is_rdzv(int code);     /* any of the MUSTER_ERDZV_* codes */

/* ---- Log ------------------------------------------------------------------------------------------------------- */

#define MUSTER_LOG_LEVELS(X)                                                                                           \
    X(DEBUG, "debug")                                                                                                  \
    X(INFO, "info")                                                                                                    \
    X(WARNING, "warning")                                                                                              \
    X(ERROR, "error")

enum muster_log_level {
#define X(name, text) MUSTER_LOG_##name,
    MUSTER_LOG_LEVELS(X)
#undef X
};

/* `line` has no line end and is borrowed. Called from whichever thread has something to say, one call at a time; it
 * must not call back into muster. */
typedef void muster_log_sink(void *ctx, enum muster_log_level level, const char *line);

MUSTER_API const char *muster_log_level_name(enum muster_log_level level);
MUSTER_API void muster_log_set_sink(muster_log_sink *sink, void *ctx); /* NULL, the default: nothing is logged */

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

/* What a store can do. Stores of this library and stores of a user's own are such tables; an entry that is NULL answers
 * MUSTER_ENOTSUP, except that multi_get, multi_set and barrier are then made from the others. Timeouts that arrive here
 * are never negative. */
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
    uint64_t total_bytes;   /* half for keys and values, half for half-read requests and unsent replies: 1 GiB */
};

struct muster_store_server_config {
    uint32_t size;
    const char *host;         /* name or address to listen on; NULL: every address, IPv6 and IPv4 */
    uint16_t port;            /* 0: any free port */
    bool use_listen_fd;       /* adopt listen_fd, a bound stream socket, instead; on success it is the server's */
    int listen_fd;            /* when a port is given as well it must be the socket's */
    bool shared;              /* if a shared server of this process has this (non-zero) port, be another user of it */
    const char *dialect;      /* of clients that do not announce 2.2 or newer: NULL or "auto", "1.13", "2.1" */
    const char *const *allow; /* networks ("10.0.0.0/8", "fd00::/8"), NULL-terminated; NULL: everybody */
    struct muster_store_limits limits;
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
    uint32_t world_size;        /* > 0: count as one of so many workers */
    int64_t connect_timeout_ms; /* 0: MUSTER_STORE_TIMEOUT_MS */
    int64_t timeout_ms;         /* the default of every call; 0: MUSTER_STORE_TIMEOUT_MS */
    const char *dialect;        /* what the server speaks: NULL or "auto" (find out), "1.13", "2.1", "2.x" */
    bool native_barrier;        /* the server is 2.12 or newer: use its own barrier, as stock clients do there */
    bool raw_keys;              /* do not put the "/" in front of keys that every PyTorch client puts there */
    const struct muster_store_server_config *server; /* with is_host: how; its port is not used */
};

/* Connects, or says at the end of connect_timeout_ms what was tried and what each attempt answered. The store owns one
 * thread, from here to muster_store_free(). When the connection is lost, all calls fail with that cause from then on. */
MUSTER_API int muster_store_tcp_new(const struct muster_store_tcp_config *config, struct muster_store **ret_store,
                                    struct muster_error *reterr);
MUSTER_API uint16_t muster_store_tcp_port(const struct muster_store *store); /* 0 if it is not a TCP store */

/* ---- Rendezvous: parameters ------------------------------------------------------------------------------------ */

struct muster_rdzv_params; /* back end, endpoint, run id, limits, and options by name */

/* Checks, in this order: backend not empty, min_nodes >= 1, max_nodes >= min_nodes. `endpoint` and `run_id` may be empty
 * here; `local_addr` may be NULL. */
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

/* Rank 0 puts an address (`local_addr`, or this machine's name) and a port (`port`, or a free one if that is 0) into the
 * store; every rank takes both from there. */
MUSTER_API int muster_store_info_build(int64_t rank, struct muster_store *store, const char *local_addr, uint16_t port,
                                       struct muster_store_info *ret_info, struct muster_error *reterr);

struct muster_rdzv_info { /* what a node is told when the group is formed */
    /* Of this round; the handler's, until its next round or its end. NULL: other people's back end without one. */
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
    /* *ret_closed: true on success, false after a rendezvous error, of which *reterr then tells. */
    int (*shutdown)(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr);
    void (*free)(struct muster_rdzv *rdzv);
};

/* A handler of a user's own has this as its first member. Handlers of this library may be used from any thread; calls on
 * one handler are carried out one after the other. They run a thread of their own, from new to free: a member stays one
 * whatever the caller does. */
struct muster_rdzv {
    const struct muster_rdzv_ops *ops;
};

MUSTER_API const char *muster_rdzv_get_backend(const struct muster_rdzv *rdzv);
MUSTER_API const char *muster_rdzv_get_run_id(const struct muster_rdzv *rdzv);
MUSTER_API bool muster_rdzv_use_agent_store(const struct muster_rdzv *rdzv);
/* Blocks until this node is in a completed group. MUSTER_ERDZV_CLOSED, _TIMEOUT, _CONNECTION, _STATE, _GRACEFUL_EXIT. */
MUSTER_API int muster_rdzv_next_rendezvous(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info,
                                           struct muster_error *reterr);
MUSTER_API int muster_rdzv_is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr);
MUSTER_API int muster_rdzv_set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr);
/* Above 0: call next_rendezvous() again. That many nodes want in; and it is at least 1 once our round has lost members, or
 * the others go on without us, for whoever only polls learns of that nowhere else. */
MUSTER_API int muster_rdzv_num_nodes_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr);
MUSTER_API int muster_rdzv_shutdown(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr);
MUSTER_API void muster_rdzv_free(struct muster_rdzv *rdzv); /* leaves, if it still is a member; NULL is fine */

/* ---- Rendezvous: registry -------------------------------------------------------------------------------------- */

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

/* Where the shared document is kept. The calls may block; they come from threads of the handler's, one at a time (watch
 * aside). Tokens are bytes that only the back end understands. */
struct muster_rdzv_backend_ops {
    uint32_t size;
    const char *name;
    /* *ret_found false: there is no document yet. */
    int (*get_state)(struct muster_rdzv_backend *backend, bool *ret_found, struct muster_bytes *ret_state,
                     struct muster_bytes *ret_token, struct muster_error *reterr);
    /* Replaces the document if the token still is its token, or, without one (token.data NULL), if there is none. Gives
     * what is there afterwards, and in *ret_set whether that is ours. */
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
};

/* `store` is what the members of a round share; it and `backend` must outlive the handler. */
MUSTER_API int muster_rdzv_dynamic_from_backend(const struct muster_rdzv_settings *settings, struct muster_store *store,
                                                struct muster_rdzv_backend *backend, const char *local_addr,
                                                struct muster_rdzv **ret_rdzv, struct muster_error *reterr);
/* The same with everything taken from the parameters: join_timeout, last_call_timeout, close_timeout, ... */
MUSTER_API int muster_rdzv_dynamic_create(struct muster_store *store, struct muster_rdzv_backend *backend,
                                          const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                                          struct muster_error *reterr);

/* ---- Rendezvous: static ---------------------------------------------------------------------------------------- */

MUSTER_API int muster_rdzv_static_new(const char *master_addr, uint16_t master_port, int64_t rank, int64_t world_size,
                                      const char *run_id, int64_t timeout_ms, struct muster_rdzv **ret_rdzv,
                                      struct muster_error *reterr);
MUSTER_API int muster_rdzv_static_create(void *ctx, const struct muster_rdzv_params *params,
                                         struct muster_rdzv **ret_rdzv, struct muster_error *reterr);

/* ---- Rendezvous: event-driven handlers ------------------------------------------------------------------------- */

struct muster_node {
    const char *name;
    int64_t pid, local_id; /* -1: this back end does not know */
};

#define MUSTER_RDZV_EVENTS(X)                                                                                          \
    X(JOINED, "joined")             /* info (without a store), nodes: the members by rank, if known */                 \
    X(WAITING, "waiting")           /* count: nodes that want in */                                                    \
    X(PEERS_LOST, "peers_lost")     /* nodes: who is gone from our round */                                            \
    X(REMOVED, "removed")           /* the others go on without us */                                                  \
    X(CLOSED, "closed")             /* nobody joins any more */                                                        \
    X(LEFT, "left")                 /* leave is done */                                                                \
    X(FAILED, "failed")             /* error: what was asked for failed, or our membership did */                      \
    X(LOOKED, "looked")             /* closed, count: nodes that want in; or error */                                  \
    X(BACKEND_DOWN, "backend_down") /* error; it is being tried again */                                               \
    X(BACKEND_UP, "backend_up")                                                                                        \
    X(PROGRESS, "progress") /* progress, while joining; nodes: who is in, the first of them */

enum muster_rdzv_event_type {
#define X(name, text) MUSTER_RDZV_##name,
    MUSTER_RDZV_EVENTS(X)
#undef X
};

MUSTER_API const char *muster_rdzv_event_name(enum muster_rdzv_event_type type);

struct muster_rdzv_progress {
    int64_t joined, waiting, spares, min_nodes, max_nodes;
    bool spare;                /* we are one */
    int64_t last_call_left_ms; /* -1: it has not begun */
    int64_t join_left_ms;      /* -1: no limit */
};

struct muster_rdzv_event { /* borrows what it points to */
    uint32_t size;
    enum muster_rdzv_event_type type;
    int64_t round; /* -1: none */
    const struct muster_rdzv_info *info;
    const struct muster_node *nodes;
    size_t nodes_count;
    int64_t count;
    bool closed;
    const struct muster_error *error;
    const struct muster_rdzv_progress *progress;
};

typedef void muster_rdzv_listener(void *ctx, const struct muster_rdzv_event *event);

struct muster_handler;

/* Each call returns at once; what comes of it is told later, from the loop, never inside of the call. */
struct muster_handler_ops {
    uint32_t size;
    const char *name;
    void (*join)(struct muster_handler *handler);  /* JOINED or FAILED; the old round is left first */
    void (*leave)(struct muster_handler *handler); /* LEFT or FAILED */
    void (*close)(struct muster_handler *handler); /* CLOSED or FAILED */
    void (*look)(struct muster_handler *handler);  /* LOOKED */
    bool (*use_agent_store)(const struct muster_handler *handler);
    /* Nothing is told after this. `done` when everything is released; the document is left as it is. */
    void (*free)(struct muster_handler *handler, void (*done)(void *ctx), void *ctx);
    /* Where the group's store is, a TCPStore: for the agent's own exchange of ranks. False: not known, or not yet. May be
     * NULL. */
    bool (*endpoint)(const struct muster_handler *handler, char *ret_host, size_t room, uint16_t *ret_port);
};

struct muster_handler {
    const struct muster_handler_ops *ops;
};

/* ---- Rendezvous: other people's back ends, as shared objects --------------------------------------------------- */

#define MUSTER_BACKEND_ABI 1
#define MUSTER_BACKEND_SYMBOL "muster_backend_1"

enum { MUSTER_FD_READABLE = 1, MUSTER_FD_WRITABLE = 2 };

/* What a back end may ask of the program that runs it. All of it from the thread that called it. */
struct muster_host {
    uint32_t size;
    void *ctx;
    int64_t (*now_ms)(void *ctx); /* monotonic */
    /* Calls `fire` once, after delay_ms. NULL: out of memory. */
    void *(*timer_start)(void *ctx, int64_t delay_ms, void (*fire)(void *arg), void *arg);
    void (*timer_stop)(void *ctx, void *timer); /* also after it has fired: gives it back */
    /* Calls `ready` whenever the descriptor is what `events` says. NULL: not possible (no memory, not a descriptor that can
     * be waited for, or watched already). The descriptor becomes a non-blocking one. */
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

/* Loads every *.so in `directory` and registers it by its name. Directory and files must belong to root or to us and be
 * writable by nobody else. One that does not load is an error that names the file and the reason. */
MUSTER_API int muster_rdzv_registry_load(struct muster_rdzv_registry *registry, const char *directory,
                                         struct muster_error *reterr);

/* ---- Events for the record ------------------------------------------------------------------------------------- */

enum muster_node_state { MUSTER_NODE_INIT, MUSTER_NODE_RUNNING, MUSTER_NODE_SUCCEEDED, MUSTER_NODE_FAILED };

struct muster_event_record { /* of a rendezvous; borrowed */
    uint32_t size;
    const char *name; /* what was done, "join", "mark complete", ... */
    const char *run_id, *message, *hostname;
    int64_t pid, local_id, rank; /* -1: none */
    enum muster_node_state node_state;
    const char *error; /* NULL: none */
};

typedef void muster_events_sink(void *ctx, const struct muster_event_record *record);
MUSTER_API const char *muster_node_state_name(enum muster_node_state state); /* "RUNNING" */
MUSTER_API void muster_events_set_sink(muster_events_sink *sink, void *ctx); /* NULL, the default: nothing */

#ifdef __cplusplus
}
#endif

#endif
