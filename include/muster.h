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

#ifdef __cplusplus
}
#endif

#endif
