/* When a handler that said "not yet" is asked again. */
#include "handler/retry.h"

#include "muster.h"

int64_t mu_retry_pause_ms(struct mu_retry *retry, int code, int64_t now_ms)
{
    if (code != MUSTER_ERETRY && code != MUSTER_ERETRY_NOW)
        return -1;
    if (retry->until_ms == 0)
        retry->until_ms = now_ms + MU_RETRY_TIME_MS;
    if (now_ms >= retry->until_ms)
        return -2;
    if (code == MUSTER_ERETRY_NOW && retry->at_once < MU_RETRY_AT_ONCE_MAX) {
        retry->at_once++;
        return 0;
    }
    retry->at_once = 0;
    return MU_RETRY_PAUSE_MS;
}
