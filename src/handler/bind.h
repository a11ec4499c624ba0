/* On which addresses a node's servers listen: those that other nodes were told to use, loopback, and no others. Pure.
 *
 * A host is the HOST of an endpoint, or a MASTER_ADDR. What this machine resolves it to decides:
 *
 *   the user says where (option `bind`)          there, and loopback
 *   some of the addresses are this machine's     those, and loopback
 *   it is a name, and only loopback here         every interface: Debian maps a machine's own name to 127.0.1.1, and
 *                                                the other nodes resolve that name to an address of some interface
 *   0.0.0.0 or ::                                every address: that is what they mean
 *   none of the addresses is this machine's      every address: something in front of it (NAT, a Service) sends what
 *                                                comes there on to an address that is not known here */
#ifndef MU_HANDLER_BIND_H
#define MU_HANDLER_BIND_H

#include "store/net.h"

#define MU_BIND_INTERFACES_MAX 32 /* addresses of interfaces */
#define MU_BIND_TEXT_MAX 4096
#define MU_BIND_NETWORKS_MAX 64

struct mu_bind {       /* borrowed */
    const char *hosts; /* option `bind`: addresses with commas, or "any"; NULL: not given */
    const char *allow; /* option `allow`: networks with commas; NULL: from everywhere */
};

/* MUSTER_EINVAL: it is no list of addresses; no list of networks. */
int mu_bind_check_hosts(const char *hosts, struct muster_error *reterr);
int mu_bind_check_allow(const char *allow, struct muster_error *reterr);
/* The options `bind` and `allow`, checked. The texts are the parameters'. */
int mu_bind_from_params(const struct muster_rdzv_params *params, struct mu_bind *ret_bind, struct muster_error *reterr);

#define MU_BIND_REASONS(X)                                                                                             \
    X(ASKED)      /* by the user, also with 0.0.0.0 or :: */                                                           \
    X(OWN)        /* addresses of this machine, and loopback */                                                        \
    X(INTERFACES) /* the host is a name that is loopback here */                                                       \
    X(NOT_OWN)    /* no address of the host is this machine's */

enum mu_bind_reason {
#define X(name) MU_BIND_##name,
    MU_BIND_REASONS(X)
#undef X
};

struct mu_bind_question {       /* borrowed */
    const char *given;          /* option `bind`; NULL: not given */
    const char *host;           /* as it was named */
    const union mu_addr *addrs; /* what it is here; none: it cannot be resolved */
    const bool *owned;          /* for each of them: it is this machine's */
    size_t addrs_count;
    const union mu_addr *also; /* one more address that other nodes were told; NULL: none */
    bool also_owned;           /* ... and it is this machine's */
    const union mu_addr *interfaces;
    size_t interfaces_count;
};

struct mu_bind_plan {
    enum mu_bind_reason reason;
    char hosts[MU_BIND_TEXT_MAX]; /* as mu_listen_open_all() takes them */
};

struct mu_bind_networks { /* `allow` as the configuration of a server takes it */
    const char *items[MU_BIND_NETWORKS_MAX + 1];
    char text[MU_BIND_TEXT_MAX];
};

/* Of a server that listens by this plan, for the networks of `allow` (it was checked) and always for this machine.
 * Borrows all three. */
struct muster_store_server_config mu_bind_server_config(const struct mu_bind *bind, const struct mu_bind_plan *plan,
                                                        uint16_t port, struct mu_bind_networks *room);

/* Whether the plan depends on what a resolver makes of `host`; `known`: how many of its addresses are known. */
bool mu_bind_needs_lookup(const struct mu_bind *bind, const char *host, size_t known);

void mu_bind_plan(const struct mu_bind_question *question, struct mu_bind_plan *ret_plan);

typedef int mu_bind_listen(void *ctx, const union mu_addr *addr, struct muster_error *reterr);
/* Calls `listen` for every address of the plan, for a server that is there already. "Every address" means those of all
 * interfaces, `own`: it cannot be had where a single one is taken. Returns the error of an address that other nodes
 * were told; without the others the server is of use. */
int mu_bind_each(const struct mu_bind_plan *plan, const union mu_addr *own, size_t own_count, mu_bind_listen *listen,
                 void *ctx, struct muster_error *reterr);

#define MU_BIND_WARNING_MAX 512
/* What a user should know of a plan that listens on more than `host`; false: nothing. `store`: what listens, as a noun.
 * `others`: nodes of other machines are expected. */
bool mu_bind_warning(const struct mu_bind_plan *plan, const char *host, const char *store, bool others,
                     char text[static MU_BIND_WARNING_MAX]);

/* It means the same on every machine: an address, or localhost. Other names may be resolved differently elsewhere. */
bool mu_bind_is_universal(const char *host);

/* Whether `bind` names this address, or does not say where. */
bool mu_bind_covers(const struct mu_bind *bind, const union mu_addr *addr);
/* The first of its addresses that other machines can reach, else its first; false: it does not name one. */
bool mu_bind_first(const struct mu_bind *bind, char *text, size_t room);

#endif
