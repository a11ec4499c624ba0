/* The event-driven handlers of this library, on a libuv loop that the caller runs. struct muster_handler_ops
 * (muster.h) is what their owner asks, struct muster_rdzv_event what it is told; talk.h says when.
 *
 *   c10d_uv.c      finds a store, then runs a document (dynamic_uv.c) or a fold machine (fold_uv.c)
 *   etcd_v2_uv.c   finds etcd, then runs a document
 *   etcd_v3_uv.c   runs a fold machine
 *   etcd_uv.c      runs PyTorch's older etcd rendezvous (rdzv/classic.h)
 *   static_uv.c    has fixed ranks; no machine looks for members
 *   user_handler_uv.c, plugin_uv.c   drive somebody else's handlers */
#ifndef MU_HANDLER_HANDLER_H
#define MU_HANDLER_HANDLER_H

#include "base/error.h"
#include "handler/bind.h"
#include "handler/boot.h"
#include "rdzv/part.h"
#include "rdzv/rules.h"

#include <stdatomic.h>

struct uv_loop_s;
struct mu_kv;
struct mu_will;

#define MU_HANDLER_CAUSE_MAX 64

/* What agents need of a handler beside its public table. */
struct mu_handler_ops {
    bool hides_members; /* it cannot tell of members that are lost, and cannot be closed: a user's blocking handler */
    /* A connection to the group's plain store, on the handler's loop; the caller closes it. Keys are whole, as in a
     * TCPStore. NULL: the handler's `endpoint` says where a TCPStore is, or there is no store. */
    int (*open_kv)(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr);
    bool (*has_kv)(const struct muster_handler *handler); /* open_kv works in this round; NULL: in every round */
    /* The handler's own connection to that store, where agents can share it (`owner` in kv.h): it lasts as long as the
     * handler. NULL, or returns NULL: there is none. */
    struct mu_kv *(*shared_kv)(const struct muster_handler *handler);
    /* A rendezvous with a leader (rdzv/part.h): agents say what has become of their workers, and the leader does the
     * rest. Copied; REPORTED follows. NULL: there is no leader. */
    void (*introduce)(struct muster_handler *handler, const struct mu_part_self *self); /* before the first join() */
    void (*report)(struct muster_handler *handler, const struct mu_part_report *report);
    /* Writes into `will` (proc/will.h) what ends our membership, and keeps it up to date until the handler is freed, or
     * gets another will or NULL; then the old one is withdrawn. Returns false if it cannot do that now: the will is not
     * touched. NULL: it never can. */
    bool (*will)(struct muster_handler *handler, struct mu_will *will);
};

struct mu_handler { /* first member of every handler that a mu_handler_start makes */
    struct muster_handler base;
    const struct mu_handler_ops *ops;
    void (*ask)(struct muster_handler *handler, enum muster_rdzv_request request); /* JOIN, LEAVE, CLOSE or LOOK */
    uint64_t loss_ms;                      /* time until a lost member is noticed; 0: not known */
    char loss_cause[MU_HANDLER_CAUSE_MAX]; /* how it is noticed: told as the cause, unless the member left a note */
};

static inline const struct mu_handler_ops *mu_handler_ops(const struct muster_handler *handler)
{
    return ((const struct mu_handler *)handler)->ops;
}

/* For the public table of a handler with `ask`. */
#define MU_HANDLER_OPS(text)                                                                                           \
    .size = sizeof(struct muster_handler_ops), .name = (text), .join = mu_handler_join, .leave = mu_handler_leave,     \
    .close = mu_handler_close, .look = mu_handler_look
void mu_handler_join(struct muster_handler *handler);
void mu_handler_leave(struct muster_handler *handler);
void mu_handler_close(struct muster_handler *handler);
void mu_handler_look(struct muster_handler *handler);

/* Makes a handler on `loop` by its parameters. Used by blocking_rdzv_uv.c (one thread and loop a handler), by
 * `muster join` and by the agent. Nothing is told before this has returned. */
typedef int mu_handler_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params,
                             muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                             struct muster_error *reterr);

mu_handler_start mu_c10d_start;    /* c10d_uv.c: hosts or joins the store, then meets in a document or its engine */
mu_handler_start mu_static_start;  /* static_uv.c */
mu_handler_start mu_etcd_v2_start; /* etcd_v2_uv.c: a dynamic rendezvous in one key of etcd */
mu_handler_start mu_etcd_start;    /* etcd_uv.c: the classic etcd rendezvous */
mu_handler_start mu_etcd_v3_start; /* etcd_v3_uv.c: rounds in etcd, by leases, watches and transactions */

/* How a blocking handler is driven. */
struct mu_driving {
    uint64_t look_ms; /* between two calls of num_nodes_waiting(), while in a round; above 0 */
    uint64_t end_ms;  /* how long calls have to return when the handler is freed; above 0 */
    /* Out: a blocking handler that the started one uses. The caller frees it after the started one. NULL: none. */
    struct muster_rdzv *made;
};
#define MU_DRIVING_DEFAULT ((struct mu_driving){ .look_ms = 100, .end_ms = 30000 })

bool mu_handler_is_builtin(const char *backend); /* it comes with the library */

/* Starts the handler that params->backend names: one of ours, one of a shared object, or what a registered creator
 * makes. MUSTER_EINVAL: nobody knows the name. */
int mu_handler_start_by_name(struct muster_rdzv_registry *registry, struct uv_loop_s *loop,
                             const struct muster_rdzv_params *params, struct mu_driving *driving,
                             muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                             struct muster_error *reterr);

/* user_handler_list.c: an event-driven handler for a blocking one. For one of our own kinds, another of that kind
 * is started; else its calls are made on a thread. `take`: `rdzv` is ours, also if this fails; it is freed with the
 * handler, or by the caller (driving->made). */
int mu_handler_start_given(struct uv_loop_s *loop, struct muster_rdzv *rdzv, bool take, struct mu_driving *driving,
                           const char *local_addr, muster_rdzv_listener *listener, void *ctx,
                           struct muster_handler **ret_handler, struct muster_error *reterr);
/* rdzv_api.c: muster_rdzv_next_rendezvous(), but it does not try again once *unwanted is true. NULL: it always
 * tries. */
int mu_rdzv_next_unless(struct muster_rdzv *rdzv, const atomic_bool *unwanted, struct muster_rdzv_info *ret_info,
                        struct muster_error *reterr);
/* A user's object serves one agent at a time. MUSTER_EINVAL: it serves another one already. */
int mu_rdzv_claim(const struct muster_rdzv *rdzv, struct muster_error *reterr);
void mu_rdzv_release(const struct muster_rdzv *rdzv);
void mu_rdzv_keep(const struct muster_rdzv *rdzv); /* a thread is stuck in it: it is never released */

/* handler.c: a line of the log about a rendezvous. */
void mu_handler_log(enum muster_log_level level, const char *run_id, const char *text);
/* handler.c: puts what was asked of which rendezvous in front of the error that is told with `event`. */
void mu_handler_wrap(const struct muster_rdzv_event *event, const char *run_id, struct muster_error *error);

/* handler.c: how a member's silence is noticed, and what is said of it: heartbeats in a document, or a lease that ends,
 * and is seen to end within grace_ms. */
void mu_handler_loss_by_heartbeats(struct mu_handler *handler, const struct mu_rdzv_settings *settings);
void mu_handler_loss_by_lease(struct mu_handler *handler, uint64_t lease_s, uint64_t grace_ms);

#define MU_HANDLER_NAME_MAX 256
/* handler.c: this node's name: `local_addr`, or if that is NULL this machine's name, which is put into `hostname`. */
const char *mu_handler_node_name(const char *local_addr, char hostname[static MU_HANDLER_NAME_MAX]);

/* option_table.c: the options of our back ends. MUSTER_EINVAL: `backend` does not have it; *reterr names the
 * nearest one. */
int mu_rdzv_check_option(const char *backend, const char *key, struct muster_error *reterr);
bool mu_rdzv_knows_option(const char *backend, const char *key); /* false also for back ends that are not ours */
/* mu_rdzv_check_option() for every option in `params`. */
int mu_rdzv_check_options(const char *backend, const struct muster_rdzv_params *params, struct muster_error *reterr);

/* params.c: the key of option number `index`; NULL: there are no more. */
const char *mu_rdzv_params_key(const struct muster_rdzv_params *params, size_t index);
/* Sets every option that `from` has. */
int mu_rdzv_params_add_all(struct muster_rdzv_params *params, const struct muster_rdzv_params *from,
                           struct muster_error *reterr);

/* settings.c: timeouts and limits from the options (join_timeout, last_call_timeout, ...), checked. */
int mu_rdzv_settings_from_params(const struct muster_rdzv_params *params, struct mu_rdzv_settings *ret_settings,
                                 struct muster_error *reterr);
int mu_rdzv_check_nodes(int64_t nodes_min, int64_t nodes_max, struct muster_error *reterr);
int mu_rdzv_settings_check(const char *run_id, const struct mu_rdzv_settings *settings, struct muster_error *reterr);
/* The option `key`, whole seconds from `least` to `most`; `fallback` if there is no such option. */
int mu_rdzv_seconds_from_params(const struct muster_rdzv_params *params, const char *key, int64_t fallback,
                                int64_t least, int64_t most, uint64_t *ret_seconds, struct muster_error *reterr);
/* The option `read_timeout`: how long a back end has for its first answer. */
int mu_rdzv_read_timeout_from_params(const struct muster_rdzv_params *params, uint64_t *ret_ms,
                                     struct muster_error *reterr);
#define MU_RDZV_WORD_MAX 40
/* The option `key`, without the blanks around it, in lower case, and cut if it is too long for a word. */
int mu_rdzv_word_from_params(const struct muster_rdzv_params *params, const char *key, const char *fallback,
                             char word[static MU_RDZV_WORD_MAX], struct muster_error *reterr);
/* The option `dialect`: which version of PyTorch is expected, and in whose form a first document is written; "2.x"
 * without it. The option `use_agent_store`; without it, what that version does. */
int mu_rdzv_dialect_from_params(const struct muster_rdzv_params *params, struct mu_doc_dialect *ret_dialect,
                                bool *ret_use_agent_store, struct muster_error *reterr);

#define MU_RDZV_DURATION_MAX 64
/* As Python shows it: "0:00:30", "1 day, 0:00:00", "-1 day, 23:59:59". Returns `text`. */
const char *mu_rdzv_duration_text(int64_t ms, char text[static MU_RDZV_DURATION_MAX]);

/* endpoint.c: without the blanks around it, by Python's rules. */
struct mu_slice mu_rdzv_trim(struct mu_slice text);

#define MU_RDZV_HOST_MAX 4096
/* HOST[:PORT] by PyTorch's rules (missing: localhost and `port_default`); port_default may be -1: none. */
int mu_rdzv_endpoint_parse(const char *endpoint, int port_default, char ret_host[static MU_RDZV_HOST_MAX],
                           int *ret_port, struct muster_error *reterr);

/* "key=value,key=value": calls `on_option` for each, without blanks around key and value, until it returns
 * something else than 0, which is returned. */
typedef int mu_rdzv_on_option(void *ctx, struct mu_slice key, struct mu_slice value, struct muster_error *reterr);
int mu_rdzv_options_parse(const char *options, mu_rdzv_on_option *on_option, void *ctx, struct muster_error *reterr);

/* ---- dynamic_uv.c: the dynamic rendezvous on a back end ---- */

struct mu_dynamic_config {
    const char *backend, *run_id; /* copied */
    const char *local_addr;       /* NULL: none */
    struct mu_bind bind;          /* where the workers' store listens */
    struct mu_boot_master master; /* what workers are told of it */
    struct mu_rdzv_settings settings;
    struct mu_doc_dialect dialect;
    int64_t local_id; /* 0: a new one */
    bool use_agent_store;
    uint64_t request_timeout_ms;
    const char *endpoint;   /* of the store, for people; NULL: not known */
    const char *store_host; /* as the user named it; NULL: not known. A PyTorch member of that name hosts the store */
    /* For agents: another way to the group's store, where that is no TCPStore. NULL: there is none. */
    int (*open_kv)(void *ctx, struct uv_loop_s *loop, uint64_t patience_ms, struct mu_kv **ret_kv,
                   struct muster_error *reterr);
    void *open_kv_ctx;
    uint64_t patience_ms; /* of that one, when it is closed */
};

/* MUSTER_EINVAL: a node cannot have that name. NULL, no name of its own, is fine. */
int mu_dynamic_check_name(const char *local_addr, struct muster_error *reterr);

/* On a back end that is there: a user's. The settings have passed mu_rdzv_settings_check(). Takes `kv`; if this fails,
 * `kv` is closed on the caller's loop. */
int mu_dynamic_start(struct uv_loop_s *loop, const struct mu_dynamic_config *config, struct mu_kv *kv,
                     muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                     struct muster_error *reterr);

/* ---- blocking_rdzv_uv.c: a blocking struct muster_rdzv around an event-driven handler ---- */

muster_rdzv_creator mu_rdzv_etcd_v2_create; /* etcd_v2_uv.c; no context */

int mu_rdzv_blocking_new(mu_handler_start *start, const struct muster_rdzv_params *params,
                         struct muster_rdzv **ret_rdzv, struct muster_error *reterr);
/* Starts one more handler of the same kind on another loop. `rdzv` stays idle meanwhile, and must outlive that handler.
 * MUSTER_EINVAL: it is in a round. */
bool mu_rdzv_is_blocking(const struct muster_rdzv *rdzv);
int mu_rdzv_blocking_start_twin(struct uv_loop_s *loop, struct muster_rdzv *rdzv, const struct mu_driving *driving,
                                muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                                struct muster_error *reterr);
/* What it was made of, and the store it was given, which is lent. NULL: it was not made of parameters. */
const struct muster_rdzv_params *mu_rdzv_blocking_params(const struct muster_rdzv *rdzv,
                                                         struct muster_store **ret_store);
/* blocking_static_uv.c: the same as mu_rdzv_blocking_start_twin(). */
bool mu_rdzv_is_static(const struct muster_rdzv *rdzv);
int mu_rdzv_static_start_twin(struct uv_loop_s *loop, struct muster_rdzv *rdzv, muster_rdzv_listener *listener,
                              void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr);
/* With a name, and a store of which each round gets a view. Takes `store`, also on failure; NULL: none. */
int mu_rdzv_blocking_new_with(const char *backend, mu_handler_start *start, const struct muster_rdzv_params *params,
                              struct muster_store *store, struct muster_rdzv **ret_rdzv, struct muster_error *reterr);

#endif
