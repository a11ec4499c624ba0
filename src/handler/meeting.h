/* Where the workers of an etcd-v3 round meet: the key job/master, as this node has seen it last, instead of the two
 * keys for address and port that the boot machine (boot.h) asks for and sets. Pure. */
#ifndef MU_HANDLER_MEETING_H
#define MU_HANDLER_MEETING_H

#include "handler/boot.h"
#include "rdzv/fold.h"

struct mu_meeting {               /* zeroed memory knows nothing */
    struct mu_fold_master master; /* the newest that was seen */
    bool has_master;
    char own_addr[MU_FOLD_ADDR_MAX]; /* set, and waiting for the port */
    uint64_t get_id, get_until_ms;   /* a GET that waits; 0: none */
    bool get_port;
    char port_text[8];
};

void mu_meeting_see(struct mu_meeting *meeting, const struct mu_fold_kv *kv); /* job/master, loaded or changed */
/* Of the round that we are in. */
bool mu_meeting_is_known(const struct mu_meeting *meeting, const struct mu_fold *fold);

/* GET of address or port. True: *ret_event is the answer, which borrows; false: it waits for at most
 * effect->wait_ms. */
bool mu_meeting_get(struct mu_meeting *meeting, const struct mu_fold *fold, const struct mu_boot_effect *effect,
                    uint64_t now_ms, struct mu_boot_event *ret_event);
/* The GET that waits, once it can be answered or has waited for long enough. False: there is none, or not yet. */
bool mu_meeting_answer(struct mu_meeting *meeting, const struct mu_fold *fold, uint64_t now_ms,
                       struct mu_boot_event *ret_event);
/* When that is, at the latest; UINT64_MAX: none waits. */
uint64_t mu_meeting_deadline_ms(const struct mu_meeting *meeting);

/* SET of address or port. 1: *ret_master is to be written, and is then what we have seen. 0: it is done, for the
 * address waits for the port. MUSTER_ERDZV_CONNECTION: the round is not in etcd. agents_port 0: there is no store for
 * agents. */
int mu_meeting_set(struct mu_meeting *meeting, const struct mu_fold *fold, const struct mu_boot_effect *effect,
                   uint16_t agents_port, struct mu_fold_master *ret_master, struct muster_error *reterr);
void mu_meeting_was_set(struct mu_meeting *meeting, const struct mu_fold_master *master); /* the write is under way */

#endif
