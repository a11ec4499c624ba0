/* What is said when a join fails because the store is lost, with the node that hosted it. Pure. */
#ifndef MU_RDZV_STORE_LOST_TEXT_H
#define MU_RDZV_STORE_LOST_TEXT_H

#include "rdzv/doc.h"

struct mu_store_lost {
    const char *where;          /* NULL: not known */
    const struct mu_node *host; /* that hosted it; not looked at of a surplus node */
    bool is_surplus;            /* this node had no place in the round */
    bool is_refused;            /* nobody listens there; else there is no answer */
    uint64_t since_ms;          /* for so long */
};

void mu_store_lost_text(const struct mu_store_lost *lost, struct muster_error *reterr);

#endif
