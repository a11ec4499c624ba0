/* The event-driven handlers of this library, on a libuv loop that the caller runs. See struct muster_handler_ops for what
 * they are asked and struct muster_rdzv_event for what they tell. */
#ifndef MU_HANDLER_HANDLER_H
#define MU_HANDLER_HANDLER_H

#include "base/error.h"
#include "handler/bind.h"
#include "handler/boot.h"
#include "rdzv/rules.h"

#include <stdatomic.h>

struct uv_loop_s;
struct mu_kv;

/* What agents need of a handler beside its public table. */
struct mu_handler_ops {
    bool hides_members; /* it cannot tell of members that are lost, and cannot be closed: a user's blocking handler */
    /* A connection to the group's plain store, on the handler's loop; the caller closes it. Keys are whole, as in a TCPStore.
     * NULL: the handler's `endpoint` says where a TCPStore is, or there is no store. */
    int (*open_kv)(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr);
    bool (*has_kv)(const struct muster_handler *handler); /* open_kv works in this round; NULL: in every round */
    /* The handler's own connection to that store, where agents can share it (`owner` in kv.h): it lasts as long as the
     * handler. NULL, or returns NULL: there is none. */
    struct mu_kv *(*shared_kv)(const struct muster_handler *handler);
};

struct mu_handler { /* first member of every handler that a mu_handler_start makes */
    struct muster_handler base;
    const struct mu_handler_ops *ops;
};

static inline const struct mu_handler_ops *mu_handler_ops(const struct muster_handler *handler)
{
    return ((const struct mu_handler *)handler)->ops;
}

/* Makes a handler on `loop` by its parameters. Used by blocking_rdzv_uv.c (one thread and loop a handler), by `muster join`
 * and by the agent. Nothing is told before this has returned. */
typedef int mu_handler_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params,
                             muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                             struct muster_error *reterr);

mu_handler_start mu_c10d_start;    /* c10d_uv.c: hosts or joins the store, then a dynamic rendezvous on it */
mu_handler_start mu_static_start;  /* static_uv.c */
mu_handler_start mu_etcd_v2_start; /* etcd_v2_uv.c: a dynamic rendezvous in one key of etcd */
mu_handler_start mu_etcd_start;    /* etcd_uv.c: the classic etcd rendezvous */
mu_handler_start mu_etcd_v3_start; /* etcd_v3_uv.c: rounds in etcd, by leases, watches and transactions */

/* How a blocking handler is driven. */
struct mu_driving {
    uint64_t look_ms; /* between two calls of num_nodes_waiting(), while in a round; above 0 */
    uint64_t end_ms;  /* so long calls have to return in the end; above 0 */
    /* Out: a blocking handler that is taken, and that the caller has to free after the one that was started. NULL: none. */
    struct muster_rdzv *made;
};
#define MU_DRIVING_DEFAULT ((struct mu_driving){ .look_ms = 100, .end_ms = 30000 })

/* The one that params->backend names: built in, of a shared object that was loaded into the registry, or what the creator that
 * was registered makes. MUSTER_EINVAL for an unknown name. */
int mu_handler_start_by_name(struct muster_rdzv_registry *registry, struct uv_loop_s *loop,
                             const struct muster_rdzv_params *params, struct mu_driving *driving,
                             muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                             struct muster_error *reterr);

/* user_handler_list.c: an event-driven handler made of a blocking one: of our own, one more of its kind; else one that makes its calls. `take`:
 * it is ours, also if this fails, and is freed with it, or by the caller (driving->made). */
int mu_handler_start_given(struct uv_loop_s *loop, struct muster_rdzv *rdzv, bool take, struct mu_driving *driving,
                           const char *local_addr, muster_rdzv_listener *listener, void *ctx,
                           struct muster_handler **ret_handler, struct muster_error *reterr);
/* rdzv.c: muster_rdzv_next_rendezvous(), which is not tried again once it is `unwanted`; NULL: it always is. */
int mu_rdzv_next_unless(struct muster_rdzv *rdzv, const atomic_bool *unwanted, struct muster_rdzv_info *ret_info,
                        struct muster_error *reterr);
/* An object that a user has given to an agent serves one agent at a time. MUSTER_EINVAL: it serves another one. */
int mu_rdzv_claim(const struct muster_rdzv *rdzv, struct muster_error *reterr);
void mu_rdzv_release(const struct muster_rdzv *rdzv);
void mu_rdzv_keep(const struct muster_rdzv *rdzv); /* a thread is still in it: if it is claimed, it stays so for ever */

/* name.c: what has failed, as a verb before "rendezvous". */
const char *mu_handler_request_text(enum muster_rdzv_request request);

#define MU_HANDLER_NAME_MAX 256
/* name.c: what this node is called: `local_addr`, or (NULL) this machine's name, which is put into `hostname`. */
const char *mu_handler_node_name(const char *local_addr, char hostname[static MU_HANDLER_NAME_MAX]);

#define MU_RDZV_RUN_ID_MAX 1024 /* bytes: keys made of it stay far below a store's limit */

/* option_table.c: which options each back end of this library has. */
/* MUSTER_EINVAL if `backend` does not know it; *reterr names it and the nearest one. */
int mu_rdzv_check_option(const char *backend, const char *key, struct muster_error *reterr);
bool mu_rdzv_knows_option(const char *backend, const char *key); /* false also for back ends that are not ours */
/* The same as mu_rdzv_check_option() for all options that are there. */
int mu_rdzv_check_options(const char *backend, const struct muster_rdzv_params *params, struct muster_error *reterr);

/* params.c: the keys of all options, one after the other; NULL: there are no more. */
const char *mu_rdzv_params_key(const struct muster_rdzv_params *params, size_t index);
/* Sets every option that `from` has. */
int mu_rdzv_params_add_all(struct muster_rdzv_params *params, const struct muster_rdzv_params *from,
                           struct muster_error *reterr);

/* Timeouts and limits by the parameters' options, checked: specs of join_timeout and so on. */
int mu_rdzv_settings_from_params(const struct muster_rdzv_params *params, struct mu_rdzv_settings *ret_settings,
                                 struct muster_error *reterr);
int mu_rdzv_settings_check(const char *run_id, const struct mu_rdzv_settings *settings, struct muster_error *reterr);
/* The option `key`, whole seconds from `least` to `most`; `fallback` if there is no such option. */
int mu_rdzv_seconds_from_params(const struct muster_rdzv_params *params, const char *key, int64_t fallback,
                                int64_t least, int64_t most, uint64_t *ret_seconds, struct muster_error *reterr);
/* The option `read_timeout`: for the first answer of a back end. */
int mu_rdzv_read_timeout_from_params(const struct muster_rdzv_params *params, uint64_t *ret_ms,
                                     struct muster_error *reterr);
/* The option `dialect`: the version of PyTorch in whose form the first writer of a document writes, and whose agents are
 * expected; "2.x" if there is no such option. The option `use_agent_store`; if there is none, what that version does. */
int mu_rdzv_dialect_from_params(const struct muster_rdzv_params *params, struct mu_doc_dialect *ret_dialect,
                                bool *ret_use_agent_store, struct muster_error *reterr);

#define MU_RDZV_DURATION_MAX 64
/* As Python shows it: "0:00:30", "1 day, 0:00:00", "-1 day, 23:59:59". Returns `text`. */
const char *mu_rdzv_duration_text(int64_t ms, char text[static MU_RDZV_DURATION_MAX]);

#define MU_RDZV_HOST_MAX 4096
/* HOST[:PORT] by PyTorch's rules (missing: localhost and `port_default`); port_default may be -1: none. */
int mu_rdzv_endpoint_parse(const char *endpoint, int port_default, char ret_host[static MU_RDZV_HOST_MAX],
                           int *ret_port, struct muster_error *reterr);

/* "key=value,key=value": calls `on_option` for each, blanks around both taken away. What it returns, if not 0, ends the
 * parsing and is returned. */
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

/* Whether a node may be called that (NULL: it has no name of its own); MUSTER_EINVAL says why not. */
int mu_dynamic_check_name(const char *local_addr, struct muster_error *reterr);

/* The handler owns `kv` from here on, also if this fails (it is then closed by the caller's loop). */
int mu_dynamic_start(struct uv_loop_s *loop, const struct mu_dynamic_config *config, struct mu_kv *kv,
                     muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                     struct muster_error *reterr);

/* ---- blocking_rdzv_uv.c: a blocking struct muster_rdzv around an event-driven handler ---- */

muster_rdzv_creator mu_rdzv_c10d_create;    /* no context */
muster_rdzv_creator mu_rdzv_etcd_v2_create; /* etcd_v2_uv.c; no context */
muster_rdzv_creator mu_rdzv_etcd_v3_create; /* no context */

int mu_rdzv_blocking_new(mu_handler_start *start, const struct muster_rdzv_params *params,
                         struct muster_rdzv **ret_rdzv, struct muster_error *reterr);
/* One more handler of its kind, on another loop, while it stays idle itself; it must outlive that one. MUSTER_EINVAL: it is in a
 * round. */
bool mu_rdzv_is_blocking(const struct muster_rdzv *rdzv);
int mu_rdzv_blocking_start_twin(struct uv_loop_s *loop, struct muster_rdzv *rdzv, const struct mu_driving *driving,
                                muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                                struct muster_error *reterr);
/* blocking_etcd_uv.c: the blocking handler within a classic etcd one; NULL: there is none. */
struct muster_rdzv *mu_rdzv_etcd_inner(struct muster_rdzv *rdzv);
/* static_uv.c: the same as mu_rdzv_blocking_start_twin(). */
bool mu_rdzv_is_static(const struct muster_rdzv *rdzv);
int mu_rdzv_static_start_twin(struct uv_loop_s *loop, struct muster_rdzv *rdzv, muster_rdzv_listener *listener,
                              void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr);
/* With a store of which each round is given a view. It is taken, also on failure; NULL: none. */
int mu_rdzv_blocking_new_with(mu_handler_start *start, const struct muster_rdzv_params *params,
                              struct muster_store *store, struct muster_rdzv **ret_rdzv, struct muster_error *reterr);

#endif
