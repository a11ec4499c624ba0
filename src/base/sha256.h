/* SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104). Pure. They are here for one thing, the proof that a node has a
 * token, and so that this needs no library which may be missing on some node. */
#ifndef MU_BASE_SHA256_H
#define MU_BASE_SHA256_H

#include "base/slice.h"

#include <stdbool.h>
#include <stdint.h>

#define MU_SHA256_BYTES 32
#define MU_SHA256_BLOCK_BYTES 64

struct mu_sha256 {
    uint32_t state[8];
    uint64_t len; /* bytes so far */
    unsigned char block[MU_SHA256_BLOCK_BYTES];
};

void mu_sha256_init(struct mu_sha256 *hash);
void mu_sha256_add(struct mu_sha256 *hash, struct mu_slice bytes);
void mu_sha256_end(struct mu_sha256 *hash, unsigned char ret_digest[static MU_SHA256_BYTES]); /* wipes the hash */

/* A key of any length, as HMAC uses it: what it came from need not be kept. */
struct mu_hmac_key {
    unsigned char block[MU_SHA256_BLOCK_BYTES];
};
void mu_hmac_key_init(struct mu_hmac_key *key, struct mu_slice bytes);
void mu_hmac_key_wipe(struct mu_hmac_key *key);

void mu_hmac_begin(struct mu_sha256 *hash, const struct mu_hmac_key *key);
void mu_hmac_end(struct mu_sha256 *hash, const struct mu_hmac_key *key, unsigned char ret_mac[static MU_SHA256_BYTES]);

/* In a time that depends on `len` only. */
bool mu_same_bytes(const void *a, const void *b, size_t len);

#endif
