/* SipHash with one compression round and three finalisation rounds: strong enough that a peer that chooses keys without
 * knowing the seed cannot make them collide, and cheap for short keys. */
#include "base/hash.h"

#include "base/buf.h"

struct sip {
    uint64_t a, b, c, d;
};

static inline uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static inline struct sip sip_round(struct sip s) /* by value: it stays in registers */
{
    s.a += s.b;
    s.c += s.d;
    s.b = rotate(s.b, 13) ^ s.a;
    s.d = rotate(s.d, 16) ^ s.c;
    s.a = rotate(s.a, 32);
    s.c += s.b;
    s.a += s.d;
    s.b = rotate(s.b, 17) ^ s.c;
    s.d = rotate(s.d, 21) ^ s.a;
    s.c = rotate(s.c, 32);
    return s;
}

static inline struct sip absorb(struct sip s, uint64_t word)
{
    s.d ^= word;
    s = sip_round(s);
    s.a ^= word;
    return s;
}

/* What is left after the whole words, and the length in the top byte. */
static inline uint64_t last_word(struct mu_slice bytes)
{
    size_t left = bytes.len % 8;
    uint64_t word = 0;

    if (left > 0 && bytes.len >= 8)
        word = mu_get_u64(bytes.data + bytes.len - 8) >> (64 - 8 * left); /* reads some bytes twice, none beyond */
    else
        for (size_t i = 0; i < left; i++)
            word |= (uint64_t)(unsigned char)bytes.data[i] << 8 * i;
    return word | (uint64_t)bytes.len << 56;
}

uint64_t mu_hash64(struct mu_hash_seed seed, struct mu_slice bytes)
{
    struct sip s = {
        .a = seed.k0 ^ 0x736f6d6570736575u,
        .b = seed.k1 ^ 0x646f72616e646f6du,
        .c = seed.k0 ^ 0x6c7967656e657261u,
        .d = seed.k1 ^ 0x7465646279746573u,
    };
    size_t whole = bytes.len / 8 * 8;

    for (size_t i = 0; i < whole; i += 8)
        s = absorb(s, mu_get_u64(bytes.data + i));
    s = absorb(s, last_word(bytes));
    s.c ^= 0xff;
    s = sip_round(sip_round(sip_round(s)));
    return s.a ^ s.b ^ s.c ^ s.d;
}
