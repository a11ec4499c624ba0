/* What one peer, and all of them together, may use. */
#ifndef MU_STORE_LIMITS_H
#define MU_STORE_LIMITS_H

#include "muster.h"

#define MU_KEY_BYTES_DEFAULT (UINT64_C(8) << 10)
#define MU_KEY_BYTES_MAX (UINT64_C(1) << 20) /* far below the length that would look like a VALIDATE */
#define MU_VALUE_BYTES_DEFAULT (UINT64_C(64) << 20)
#define MU_VALUE_BYTES_MAX (UINT64_C(1) << 30)
#define MU_KEYS_DEFAULT UINT64_C(131072)
#define MU_REQUEST_BYTES_DEFAULT (UINT64_C(128) << 20)
#define MU_UNSENT_BYTES_DEFAULT (UINT64_C(128) << 20)
#define MU_UNSENT_BYTES_MAX UINT64_C(0xffffffff) /* one write of the loop's */
#define MU_CONNECTIONS_DEFAULT UINT64_C(262144)
#define MU_TOTAL_BYTES_DEFAULT (UINT64_C(1) << 30)

/* Puts the defaults in place of zeroes; MUSTER_EINVAL when the result contradicts itself. */
int mu_limits_settle(struct muster_store_limits *limits, struct muster_error *reterr);

#endif
