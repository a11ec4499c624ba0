/* Which connections a store server takes, and which idle one it closes to make room for a newcomer. Pure.
 *
 * A newcomer must come from an allowed network. Its address may have a limited number of connections, and so may the
 * server. Then descriptors decide: other parts of the process have reserved some, and connections share the rest. If
 * these are short, a connection is closed that is of no use:
 *
 *   first   one that has asked for nothing yet, the oldest of these
 *   then    one that is idle, waits for nothing, is owed nothing and does not belong to this process:
 *           those from other machines before those from this one, then the one that was idle the longest
 *   else    none, and the newcomer is refused */
#ifndef MU_STORE_ADMISSION_H
#define MU_STORE_ADMISSION_H

#include "base/buckets.h"
#include "base/hash.h"
#include "store/net.h"

#define MU_OWN_SOCKETS_MAX 32

struct mu_own_sockets { /* this process's connections to its own server; more of them count as others' */
    union mu_addr addrs[MU_OWN_SOCKETS_MAX];
    size_t count;
};
bool mu_own_sockets_has(const struct mu_own_sockets *own, const union mu_addr *addr);

/* How many connections each address has. */
struct mu_origin; /* an address with at least one connection */

struct mu_origins {
    struct mu_buckets all; /* takes no memory while there are no connections */
    struct mu_hash_seed seed;
};

/* One more from this address. MUSTER_ELIMIT, with *reterr set, when it has `max` already; MUSTER_ENOMEM. */
int mu_origins_add(struct mu_origins *origins, const union mu_addr *addr, size_t max, struct mu_origin **ret_origin,
                   struct muster_error *reterr);
void mu_origins_remove(struct mu_origins *origins, struct mu_origin *origin); /* one less */

/* The last addresses of those who were refused because their job meets elsewhere: each is told of once. */
#define MU_STRAYS_MAX 64

struct mu_strays { /* zeroed memory is empty */
    union mu_addr addrs[MU_STRAYS_MAX];
    size_t count; /* so far */
};
bool mu_strays_add(struct mu_strays *strays, const union mu_addr *addr); /* false: it is one of them already */

struct mu_admission { /* what a server takes */
    struct mu_network *allow;
    size_t allow_count; /* 0: from everywhere */
    bool allow_own;     /* connections of this machine to itself, too */
    struct mu_origins origins;
};

struct mu_newcomer {
    const union mu_addr *addr;
    bool from_here;      /* from this machine */
    size_t conns;        /* of the server, with this one */
    size_t process_room; /* connections that the process has descriptors for */
};

/* 0, or *reterr says why not. *ret_origin: what mu_origins_remove() needs in the end; NULL: it is not counted. */
int mu_admission_check(struct mu_admission *admission, const struct muster_store_limits *limits,
                       const struct mu_newcomer *newcomer, struct mu_origin **ret_origin, struct muster_error *reterr);

enum mu_files_room {
    MU_FILES_ENOUGH,
    MU_FILES_SHORT, /* close another connection and ask again; if there is none, refuse the newcomer */
    MU_FILES_NONE,  /* close another connection, and refuse the newcomer all the same */
};
/* `fd`: of the newcomer. `files`: the limit of descriptors. `conns`: of all servers of the process, of `conns_max`. */
enum mu_files_room mu_admission_room(size_t fd, size_t files, size_t conns, size_t conns_max);

struct mu_candidate { /* a connection that has asked for something */
    bool is_busy;     /* closing, or a request is being carried out */
    bool waits;       /* for keys, or watches some */
    bool is_owed;     /* replies that were not sent yet */
    bool from_here;
    uint64_t heard_ms; /* when something last came from it */
    const union mu_addr *addr;
};
/* Whether it can be closed, rather than `best`. `best`: one that this was true of; NULL: none yet. */
bool mu_admission_prefers(const struct mu_candidate *candidate, const struct mu_candidate *best,
                          const struct mu_own_sockets *own, uint64_t now_ms);

#endif
