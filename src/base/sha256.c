/* See sha256.h. */
#include "base/sha256.h"

#include <endian.h>
#include <string.h>

enum { ROUNDS = 64, LEN_BYTES = 8, INNER_PAD = 0x36, OUTER_PAD = 0x5c, END_BIT = 0x80 };

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t word, unsigned bits)
{
    return word >> bits | word << (32 - bits);
}

/* FIPS 180-4, 6.2.2, with its names. */
static void take_block(uint32_t state[static 8], const unsigned char block[static MU_SHA256_BLOCK_BYTES])
{
    uint32_t w[ROUNDS], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5],
                        g = state[6], h = state[7];

    memcpy(w, block, MU_SHA256_BLOCK_BYTES);
    for (unsigned t = 0; t < 16; t++)
        w[t] = be32toh(w[t]);
    for (unsigned t = 16; t < ROUNDS; t++) {
        uint32_t s0 = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;

        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
    for (unsigned t = 0; t < ROUNDS; t++) {
        uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + constants[t] + w[t];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));

        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
    explicit_bzero(w, sizeof w);
}

void mu_sha256_init(struct mu_sha256 *hash)
{
    *hash = (struct mu_sha256){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                           0x1f83d9ab, 0x5be0cd19 } };
}

void mu_sha256_add(struct mu_sha256 *hash, struct mu_slice bytes)
{
    while (bytes.len > 0) {
        size_t used = hash->len % MU_SHA256_BLOCK_BYTES, room = MU_SHA256_BLOCK_BYTES - used;
        size_t len = bytes.len < room ? bytes.len : room;

        memcpy(hash->block + used, bytes.data, len);
        hash->len += len;
        bytes = mu_slice(bytes.data + len, bytes.len - len);
        if (len == room)
            take_block(hash->state, hash->block);
    }
}

void mu_sha256_end(struct mu_sha256 *hash, unsigned char ret_digest[static MU_SHA256_BYTES])
{
    size_t used = hash->len % MU_SHA256_BLOCK_BYTES;
    uint64_t bits = htobe64(hash->len * 8);

    hash->block[used++] = END_BIT;
    if (used > MU_SHA256_BLOCK_BYTES - LEN_BYTES) {
        memset(hash->block + used, 0, MU_SHA256_BLOCK_BYTES - used);
        take_block(hash->state, hash->block);
        used = 0;
    }
    memset(hash->block + used, 0, MU_SHA256_BLOCK_BYTES - LEN_BYTES - used);
    memcpy(hash->block + MU_SHA256_BLOCK_BYTES - LEN_BYTES, &bits, LEN_BYTES);
    take_block(hash->state, hash->block);
    for (unsigned i = 0; i < 8; i++) {
        uint32_t word = htobe32(hash->state[i]);

        memcpy(ret_digest + sizeof word * i, &word, sizeof word);
    }
    explicit_bzero(hash, sizeof *hash);
}

/* ---- HMAC ---- */

void mu_hmac_key_init(struct mu_hmac_key *key, struct mu_slice bytes)
{
    struct mu_sha256 hash;

    memset(key->block, 0, sizeof key->block);
    if (bytes.len > sizeof key->block) {
        mu_sha256_init(&hash);
        mu_sha256_add(&hash, bytes);
        mu_sha256_end(&hash, key->block);
    } else if (bytes.len > 0) {
        memcpy(key->block, bytes.data, bytes.len);
    }
}

void mu_hmac_key_wipe(struct mu_hmac_key *key)
{
    explicit_bzero(key, sizeof *key);
}

static void begin_padded(struct mu_sha256 *hash, const struct mu_hmac_key *key, unsigned char pad)
{
    unsigned char padded[MU_SHA256_BLOCK_BYTES];

    for (size_t i = 0; i < sizeof padded; i++)
        padded[i] = key->block[i] ^ pad;
    mu_sha256_init(hash);
    mu_sha256_add(hash, mu_slice((const char *)padded, sizeof padded));
    explicit_bzero(padded, sizeof padded);
}

void mu_hmac_begin(struct mu_sha256 *hash, const struct mu_hmac_key *key)
{
    begin_padded(hash, key, INNER_PAD);
}

void mu_hmac_end(struct mu_sha256 *hash, const struct mu_hmac_key *key, unsigned char ret_mac[static MU_SHA256_BYTES])
{
    unsigned char inner[MU_SHA256_BYTES];

    mu_sha256_end(hash, inner);
    begin_padded(hash, key, OUTER_PAD);
    mu_sha256_add(hash, mu_slice((const char *)inner, sizeof inner));
    mu_sha256_end(hash, ret_mac);
}

bool mu_same_bytes(const void *a, const void *b, size_t len)
{
    const volatile unsigned char *left = a, *right = b; /* volatile: no compiler may stop at the first difference */
    unsigned char difference = 0;

    for (size_t i = 0; i < len; i++)
        difference |= left[i] ^ right[i];
    return difference == 0;
}
