/* What the handler of the classic etcd rendezvous makes of its machine's requests (rdzv/classic.h), of etcd's answers,
 * and of a round. Pure; etcd_uv.c asks. */
#ifndef MU_HANDLER_ETCD_H
#define MU_HANDLER_ETCD_H

#include "handler/boot.h"
#include "kv/etcd2.h"
#include "rdzv/classic.h"

#define MU_ETCD_NAME_MAX 256

struct mu_etcd2_request mu_etcd_request(const struct mu_classic_request *from);

/* rc, unsure, error: as in struct mu_etcd2_call. The event borrows, and is freed by mu_etcd_event_done(). */
struct mu_classic_event mu_etcd_answer(uint64_t id, enum mu_etcd2_kind asked, int rc, bool unsure,
                                       const struct mu_etcd2_answer *answer, const struct muster_error *error);
struct mu_classic_event mu_etcd_no_memory(uint64_t id); /* the answer to a request that could not be made */
void mu_etcd_event_done(struct mu_classic_event *event);

/* A member, by its mark. Nodes of PyTorch have none, and are named by their rank. */
struct mu_etcd_member {
    char name[MU_ETCD_NAME_MAX];
    int64_t pid, local_id; /* -1: not known */
};

struct mu_etcd_member mu_etcd_member(const struct mu_classic_world *world, size_t rank);

/* PyTorch is a member, and of 1.13 to 2.3. */
bool mu_etcd_is_old(const struct mu_classic_world *world, bool old_dialect);
/* What the boot is told of the round. `rank0` is room for its name. */
struct mu_boot_start mu_etcd_boot_start(const struct mu_classic_world *world, bool old_dialect, const char *own_name,
                                        struct mu_etcd_member *rank0);

#endif
