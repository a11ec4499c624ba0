/* Where the workers of a round with a leader meet: the key job/master, as this node has seen it last, instead of the
 * two keys for address and port that the boot machine (boot.h) asks for and sets. Pure. */
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
    struct muster_error error;
    struct mu_fold_op op; /* of the write */
    struct mu_fold_write write;
};

/* An event of the machine's that may bring job/master. */
void mu_meeting_see(struct mu_meeting *meeting, const struct mu_fold_event *event);
/* Whether it is known where the round meets that we are in. */
bool mu_meeting_is_known(const struct mu_meeting *meeting, const struct mu_fold *fold);
/* Whether the agents' store of the round is here; has_store: there is one, perhaps of an earlier round. */
bool mu_meeting_hosts(const struct mu_fold *fold, bool has_store);

/* Where agents meet: in a store of all rounds, if there is one, else in that of this round. 0: there is none. */
uint16_t mu_meeting_agents_port(uint16_t of_all_rounds, uint16_t of_this_round);

/* What the boot is told of the round; `rank0` is room for a text of it. */
struct mu_boot_start mu_meeting_boot_start(const struct mu_fold *fold, char rank0[static MU_NODE_TEXT_MAX]);

enum mu_meeting_reply {
    MU_MEETING_ANSWER, /* *ret_answer, which borrows */
    MU_MEETING_WAIT,   /* mu_meeting_answer() will have it, at the latest at mu_meeting_deadline_ms() */
    /* *ret_master is to be written, and counts as seen. mu_meeting_published() is the answer; without memory for the
     * write, *ret_answer. */
    MU_MEETING_PUBLISH,
};

/* GET, SET or CHECK of address or port. The address waits for the port. agents_port 0: there is no store for agents. */
enum mu_meeting_reply mu_meeting_ask(struct mu_meeting *meeting, const struct mu_fold *fold,
                                     const struct mu_boot_effect *effect, uint16_t agents_port, uint64_t now_ms,
                                     struct mu_boot_event *ret_answer, struct mu_fold_master *ret_master);
/* The GET that waits, once it can be answered or has waited for long enough. False: there is none, or not yet. */
bool mu_meeting_answer(struct mu_meeting *meeting, const struct mu_fold *fold, uint64_t now_ms,
                       struct mu_boot_event *ret_answer);
uint64_t mu_meeting_deadline_ms(const struct mu_meeting *meeting); /* when that is wanted; UINT64_MAX: none waits */
/* Writes job/master under our lease, if the round still is the job's. `value` (borrowed): *ret_master as it is
 * written; `id`: of the SET that it answers. The effect borrows from `meeting`; its id is none of the machine's. */
struct mu_fold_effect mu_meeting_write(struct mu_meeting *meeting, const struct mu_fold *fold, uint64_t id,
                                       struct mu_slice value);
/* What became of that write, for the boot. False: the event is the machine's. */
bool mu_meeting_published(struct mu_meeting *meeting, const struct mu_fold_event *event,
                          struct mu_boot_event *ret_answer);

#endif
