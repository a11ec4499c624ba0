/* Which round it is, and the names of its keys in the job's store. Pure.
 *
 *   R  torch.rendezvous.<run_id>.<round>/  PyTorch's keys; <run_id>/ where there are no rounds
 *   M  muster.<run_id>/                    the job's, of our own
 *   T  muster.<run_id>/<round>.<tag>/      the round's, of our own
 *
 * Two rounds may have the same number: when a store has lost its data, or its host was started again, the numbers start
 * again. The tag is made of the members and their ranks, and each member is another process, so the keys of two rounds
 * differ. What is found under T was written by a member of this very round, and what is found under a rank there by the
 * member with that rank. */
#ifndef MU_RDZV_ROUND_KEYS_H
#define MU_RDZV_ROUND_KEYS_H

#include "rdzv/doc.h"

#include <inttypes.h>

/* Keys below T, with it and the rank of a member. */
#define MU_ROUND_DONE_KEY "%sdone/%" PRId64 /* its workers have succeeded */
#define MU_ROUND_LEFT_KEY "%sleft/%" PRId64 /* why it leaves: agent/vanished.h */

#define MU_ROUND_PREFIX_EXTRA 64 /* of a prefix, beside the run id; with its NUL */

uint64_t mu_round_tag(const struct mu_node *members, size_t count); /* by rank */
#define MU_ROUND_TAG_LEN 16
bool mu_round_read_tag(const char *text, uint64_t *ret_tag); /* at its start, in hexadecimal digits; NULL has none */

/* Each needs room for the run id and MU_ROUND_PREFIX_EXTRA. */
void mu_round_stock_prefix(char *text, size_t room, const char *run_id,
                           int64_t round);                             /* R; round -1: there are none */
void mu_round_job_prefix(char *text, size_t room, const char *run_id); /* M */
void mu_round_own_prefix(char *text, size_t room, const char *run_id, int64_t round, uint64_t tag); /* T */

#endif
