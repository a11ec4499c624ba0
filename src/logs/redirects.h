/* Which streams of which worker go where: the texts of --redirects and --tee. Pure. */
#ifndef MU_LOGS_REDIRECTS_H
#define MU_LOGS_REDIRECTS_H

#include "base/error.h"

#include <stdint.h>

/* Which streams, as a mask. */
enum {
    MU_STD_NONE = 0,
    MU_STD_OUT = 1,
    MU_STD_ERR = 2,
    MU_STD_BOTH = 3,
};

#define MU_REDIRECTS_NAMED_MAX 10 /* the grammar names a rank by one digit */

/* Zeroed memory redirects nothing. Plain data: copied by assignment, nothing to free. */
struct mu_redirects {
    bool by_rank;                          /* false: `all` holds for every rank, also above 9 */
    uint8_t all;                           /* a mask of MU_STD_* */
    uint8_t ranks[MU_REDIRECTS_NAMED_MAX]; /* by_rank; those that the text does not name are 0 */
};

/* One of 0, 1, 2, 3 for all workers, or RANK:MASK,RANK:MASK,... with one digit each; if a rank comes twice, the last
 * counts. Anything else is MUSTER_EINVAL, naming `option` (such as "--tee"), the text and both patterns. *ret is
 * untouched on failure. */
int mu_redirects_parse(const char *option, const char *text, struct mu_redirects *ret, struct muster_error *reterr);

/* The mask of a local rank; 0 for ranks that are not named. */
unsigned mu_redirects_of(const struct mu_redirects *redirects, uint32_t local_rank);

#endif
