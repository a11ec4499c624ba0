#include "cli/uuid.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct uuid {
    uint64_t high, low;
};

static struct uuid new_uuid(struct mu_rng *rng)
{
    struct uuid uuid = { .high = mu_rng_next(rng), .low = mu_rng_next(rng) };

    uuid.high = (uuid.high & ~UINT64_C(0xF000)) | UINT64_C(0x4000);       /* version 4 */
    uuid.low = (uuid.low & ~(UINT64_C(0xC) << 60)) | UINT64_C(0x8) << 60; /* variant */
    return uuid;
}

void mu_uuid_text(struct mu_rng *rng, char text[static MU_UUID_BYTES])
{
    struct uuid uuid = new_uuid(rng);

    (void)snprintf(text, MU_UUID_BYTES, "%08x-%04x-%04x-%04x-%012" PRIx64, (unsigned)(uuid.high >> 32),
                   (unsigned)(uuid.high >> 16 & 0xFFFF), (unsigned)(uuid.high & 0xFFFF), (unsigned)(uuid.low >> 48),
                   uuid.low & UINT64_C(0xFFFFFFFFFFFF));
}

void mu_uuid_decimal(struct mu_rng *rng, char text[static MU_UUID_BYTES])
{
    struct uuid uuid = new_uuid(rng);
    unsigned __int128 rest = (unsigned __int128)uuid.high << 64 | uuid.low;
    char room[MU_UUID_BYTES], *digit = room + MU_UUID_BYTES - 1;

    *digit = '\0';
    do {
        *--digit = (char)('0' + (int)(rest % 10));
        rest /= 10;
    } while (rest > 0);
    memcpy(text, digit, (size_t)(room + MU_UUID_BYTES - digit));
}
