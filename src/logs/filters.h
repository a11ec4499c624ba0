/* Which output of the workers is shown, and which is written a second time. Pure. */
#ifndef MU_LOGS_FILTERS_H
#define MU_LOGS_FILTERS_H

#include "base/error.h"
#include "base/slice.h"

#include <stdint.h>

#define MU_RANKS_SHOWN_MAX 4096 /* local ranks from here on cannot be named, and so are not shown */
#define MU_FILTERS_ITEMS_MAX 1024
#define MU_FILTERS_BYTES_MAX 65536

/* --local-ranks-filter: the local ranks whose output is shown on the console. Zeroed memory shows all. Plain data. */
struct mu_ranks_shown {
    bool some; /* false: all */
    uint64_t bits[MU_RANKS_SHOWN_MAX / 64];
};

/* Integers with commas between, as Python's int() reads them (blanks around, a sign, '_' between digits); an empty text
 * shows all. Numbers of 64 bits that are no local rank are accepted and without effect. Anything else is MUSTER_EINVAL,
 * naming the option and the text; *ret is then untouched. */
int mu_ranks_shown_parse(const char *option, const char *text, struct mu_ranks_shown *ret, struct muster_error *reterr);
bool mu_ranks_shown_has(const struct mu_ranks_shown *shown, uint32_t local_rank);

/* --duplicate-stdout-filters and its sibling: a line that contains any of these is also written to a file of its
 * own. */
struct mu_filters {
    char *text;             /* the items, one behind the other */
    struct mu_slice *items; /* into text */
    size_t count;
};

/* Items separated by commas; `,,` is a literal comma. An empty text is no filter; an empty item matches every line, as
 * in PyTorch. MUSTER_ELIMIT, MUSTER_ENOMEM; *ret is then untouched. On success the caller owns *ret. */
int mu_filters_parse(const char *option, const char *text, struct mu_filters *ret, struct muster_error *reterr);
void mu_filters_done(struct mu_filters *filters); /* zeroed memory is fine */
bool mu_filters_match(const struct mu_filters *filters, struct mu_slice line);

#endif
