/* A random (version 4) UUID, for a job that was given no name. */
#ifndef MU_CLI_UUID_H
#define MU_CLI_UUID_H

#include "base/rng.h"

#define MU_UUID_BYTES 40 /* 2^128 in decimal and a NUL; the other form is shorter */

void mu_uuid_text(struct mu_rng *rng, char text[static MU_UUID_BYTES]);    /* 8-4-4-4-12 hexadecimal digits */
void mu_uuid_decimal(struct mu_rng *rng, char text[static MU_UUID_BYTES]); /* as one integer */

#endif
