/* The keyed hash, against SipHash-1-3 of another implementation. */
#include "base/hash.h"
#include "pure.h"

static const struct mu_hash_seed counting = { 0x0706050403020100u, 0x0f0e0d0c0b0a0908u };

/* Key 00 01 .. 0f, input 00 01 02 .. */
static void hashes_are_those_of_siphash_1_3(void **state)
{
    static const struct {
        size_t len;
        uint64_t hash;
    } rows[] = {
        { 0, 0xabac0158050fc4dc },   { 1, 0xc9f49bf37d57ca93 },   { 2, 0x82cb9b024dc7d44d },
        { 7, 0xd3927d989bb11140 },   { 8, 0x369095118d299a8e },   { 9, 0x25a48eb36c063de4 },
        { 15, 0xd320d86d2a519956 },  { 16, 0xcc4fdd1a7d908b66 },  { 17, 0x9cf2689063dbd80c },
        { 63, 0x9d199062b7bbb3a8 },  { 64, 0xf17997ec4b4a6065 },  { 255, 0xf76214e3153c4a15 },
        { 256, 0x75b3e64e167de370 }, { 300, 0x4016a23bda5a2224 },
    };
    unsigned char bytes[300];

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)i;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_true(mu_hash64(counting, mu_slice(bytes, rows[i].len)) == rows[i].hash);
}

static void every_seed_hashes_differently(void **state)
{
    const struct mu_hash_seed zeroes = { 0, 0 }, ones = { UINT64_MAX, UINT64_MAX };

    (void)state;
    assert_true(mu_hash64(zeroes, mu_slice("", 0)) == 0xd1fba762150c532c);
    assert_true(mu_hash64(ones, mu_slice_str("/default_pg/0//cpu//0/17")) == 0x84d14fba342463b2);
    assert_true(mu_hash64(zeroes, mu_slice_str("k")) != mu_hash64(ones, mu_slice_str("k")));
}

static void bytes_hash_alike_wherever_they_lie(void **state)
{
    char room[64];
    uint64_t hash = mu_hash64(counting, mu_slice_str("a key of some length"));

    (void)state;
    for (size_t at = 0; at < 16; at++) {
        memcpy(room + at, "a key of some length", 20);
        assert_true(mu_hash64(counting, mu_slice(room + at, 20)) == hash);
    }
}

static void the_short_form_folds_the_long_one(void **state)
{
    uint64_t hash = mu_hash64(counting, mu_slice_str("k"));

    (void)state;
    assert_true(mu_hash(counting, mu_slice_str("k")) == (uint32_t)(hash ^ hash >> 32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_are_those_of_siphash_1_3),
        cmocka_unit_test(every_seed_hashes_differently),
        cmocka_unit_test(bytes_hash_alike_wherever_they_lie),
        cmocka_unit_test(the_short_form_folds_the_long_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
