/* Defaults of the limits, and what they must not be. */
#include "store/limits.h"

#include "base/error.h"

#include <inttypes.h>

static void settle(uint64_t *limit, uint64_t fallback)
{
    if (*limit == 0)
        *limit = fallback;
}

static uint64_t at_least(uint64_t fallback, uint64_t needed)
{
    return fallback < needed ? needed : fallback;
}

static int at_most(const char *what, uint64_t limit, uint64_t max, struct muster_error *reterr)
{
    if (limit <= max)
        return 0;
    return mu_fail(reterr, MUSTER_EINVAL, "a limit of %" PRIu64 " bytes (%s) is over %" PRIu64, limit, what, max);
}

int mu_limits_settle(struct muster_store_limits *limits, struct muster_error *reterr)
{
    int rc;

    settle(&limits->key_bytes, MU_KEY_BYTES_DEFAULT);
    settle(&limits->value_bytes, MU_VALUE_BYTES_DEFAULT);
    settle(&limits->keys, MU_KEYS_DEFAULT);
    settle(&limits->connections, MU_CONNECTIONS_DEFAULT);
    rc = at_most("key", limits->key_bytes, MU_KEY_BYTES_MAX, reterr);
    if (rc == 0)
        rc = at_most("value", limits->value_bytes, MU_VALUE_BYTES_MAX, reterr);
    if (rc == 0)
        rc = at_most("unsent replies", limits->unsent_bytes, MU_UNSENT_BYTES_MAX, reterr);
    if (rc < 0)
        return rc;
    /* Raising the value limit alone is enough: the limits around it follow. */
    settle(&limits->request_bytes,
           at_least(MU_REQUEST_BYTES_DEFAULT, 2 * limits->value_bytes + limits->key_bytes + 64));
    settle(&limits->unsent_bytes, at_least(MU_UNSENT_BYTES_DEFAULT, 2 * limits->value_bytes));
    settle(&limits->total_bytes, at_least(MU_TOTAL_BYTES_DEFAULT, 8 * limits->value_bytes));
    if (limits->request_bytes < limits->key_bytes)
        return mu_fail(reterr, MUSTER_EINVAL, "a request limit of %" PRIu64 " bytes is below the key limit of %" PRIu64,
                       limits->request_bytes, limits->key_bytes);
    return 0;
}
