/* SHA-256 and HMAC: the examples of NIST (FIPS 180-4, SHAVS) and of RFC 4231. */
#include "base/sha256.h"
#include "pure.h"

#include <stdio.h>
#include <stdlib.h>

static const char *hex(const unsigned char digest[static MU_SHA256_BYTES])
{
    static char text[2 * MU_SHA256_BYTES + 1];

    for (size_t i = 0; i < MU_SHA256_BYTES; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return text;
}

/* In parts of so many bytes. */
static const char *hash_of(struct mu_slice bytes, size_t part)
{
    unsigned char digest[MU_SHA256_BYTES];
    struct mu_sha256 hash;

    mu_sha256_init(&hash);
    while (bytes.len > 0) {
        size_t len = bytes.len < part ? bytes.len : part;

        mu_sha256_add(&hash, mu_slice(bytes.data, len));
        bytes = mu_slice(bytes.data + len, bytes.len - len);
    }
    mu_sha256_end(&hash, digest);
    return hex(digest);
}

static const char *mac_of(struct mu_slice key_bytes, struct mu_slice bytes)
{
    unsigned char mac[MU_SHA256_BYTES];
    struct mu_hmac_key key;
    struct mu_sha256 hash;

    mu_hmac_key_init(&key, key_bytes);
    mu_hmac_begin(&hash, &key);
    mu_sha256_add(&hash, bytes);
    mu_hmac_end(&hash, &key, mac);
    mu_hmac_key_wipe(&key);
    for (size_t i = 0; i < sizeof key.block; i++)
        assert_int_equal(key.block[i], 0);
    return hex(mac);
}

static void the_examples_of_nist_are_hashed_in_parts_of_any_size(void **state)
{
    static const struct {
        const char *text, *digest;
    } examples[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrst"
          "nopqrstu",
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++)
        for (size_t part = 1; part < 130; part++)
            assert_string_equal(hash_of(mu_slice_str(examples[i].text), part), examples[i].digest);
}

/* Padding takes one block or two. */
static void lengths_around_a_block_are_padded_right(void **state)
{
    static const struct {
        size_t len;
        const char *digest; /* of so many "a" */
    } lengths[] = {
        { 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318" },
        { 56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a" },
        { 63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34" },
        { 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb" },
        { 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char *text = malloc(lengths[i].len);

        assert_non_null(text);
        memset(text, 'a', lengths[i].len);
        assert_string_equal(hash_of(mu_slice(text, lengths[i].len), 977), lengths[i].digest);
        free(text);
    }
}

static void the_examples_of_rfc_4231_have_their_codes(void **state)
{
    static const char counting[] =
        "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19";
    static const char long_text[] = "This is a test using a larger than block-size key and a larger than block-size "
                                    "data. The key needs to be hashed before being used by the HMAC algorithm.";
    char ones[20], large[131], dd[50], cd[50];

    (void)state;
    memset(ones, 0x0b, sizeof ones);
    memset(large, 0xaa, sizeof large);
    memset(dd, 0xdd, sizeof dd);
    memset(cd, 0xcd, sizeof cd);
    assert_string_equal(mac_of(mu_slice(ones, 20), mu_slice_str("Hi There")),
                        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    assert_string_equal(mac_of(mu_slice_str("Jefe"), mu_slice_str("what do ya want for nothing?")),
                        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    assert_string_equal(mac_of(mu_slice(large, 20), mu_slice(dd, 50)),
                        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    assert_string_equal(mac_of(mu_slice(counting, 25), mu_slice(cd, 50)),
                        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    assert_string_equal(
        mac_of(mu_slice(large, 131), mu_slice_str("Test Using Larger Than Block-Size Key - Hash Key First")),
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    assert_string_equal(mac_of(mu_slice(large, 131), mu_slice_str(long_text)),
                        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

static void bytes_are_the_same_only_if_all_are(void **state)
{
    char a[32] = { 0 }, b[32] = { 0 };

    (void)state;
    assert_true(mu_same_bytes(a, b, sizeof a) && mu_same_bytes(a, b, 0));
    for (size_t i = 0; i < 8 * sizeof a; i++) {
        b[i / 8] = (char)(1 << i % 8);
        assert_false(mu_same_bytes(a, b, sizeof a));
        b[i / 8] = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_examples_of_nist_are_hashed_in_parts_of_any_size),
        cmocka_unit_test(lengths_around_a_block_are_padded_right),
        cmocka_unit_test(the_examples_of_rfc_4231_have_their_codes),
        cmocka_unit_test(bytes_are_the_same_only_if_all_are),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
