/* Tokens, and what proves that somebody has one. */
#include "pure.h"
#include "store/token.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char nonce[MU_TOKEN_NONCE_BYTES + 1] = "0123456789abcdef0123456789abcdef";

static struct mu_token token_of(const char *text)
{
    struct mu_token token = { 0 };

    mu_token_init(&token, mu_slice_str(text));
    return token;
}

static void prove(const struct mu_token *token, const char *run_id, const char *node, char *ret_proof)
{
    mu_token_prove(token, mu_slice_str(nonce), mu_slice_str(run_id), mu_slice_str(node), ret_proof);
}

static bool accepts(const struct mu_token *token, const char *with, const char *run_id, const char *node,
                    struct mu_slice proof)
{
    return mu_token_accepts(token, mu_slice(with, MU_TOKEN_NONCE_BYTES), mu_slice_str(run_id), mu_slice_str(node),
                            proof);
}

/* Made with Python's hmac, by the description in PROTOCOL.md. */
static void a_proof_is_the_hmac_of_three_parts(void **state)
{
    static const unsigned char expected[MU_TOKEN_PROOF_BYTES] = { 0x4e, 0xa5, 0x9c, 0xf3, 0x67, 0xbd, 0x09, 0xfd,
                                                                  0x5d, 0x6e, 0x48, 0xe5, 0x52, 0x24, 0x4e, 0x2c,
                                                                  0x9a, 0x82, 0xd4, 0xe9, 0xf1, 0xe1, 0x03, 0xc8,
                                                                  0x73, 0x35, 0x78, 0x50, 0x73, 0x19, 0x39, 0xf8 };
    struct mu_token token = token_of("correct horse battery staple");
    char proof[MU_TOKEN_PROOF_BYTES];

    (void)state;
    prove(&token, "job", "node1", proof);
    assert_memory_equal(proof, expected, sizeof proof);
}

static void a_proof_holds_for_its_own_parts_alone(void **state)
{
    static const char another[MU_TOKEN_NONCE_BYTES + 1] = "1123456789abcdef0123456789abcdef";
    struct mu_token token = token_of("correct horse battery staple"), wrong = token_of("correct horse battery stapla");
    char bytes[MU_TOKEN_PROOF_BYTES + 1] = { 0 };
    struct mu_slice proof = mu_slice(bytes, MU_TOKEN_PROOF_BYTES);

    (void)state;
    prove(&token, "job", "node1", bytes);
    assert_true(accepts(&token, nonce, "job", "node1", proof));
    assert_false(accepts(&wrong, nonce, "job", "node1", proof));
    assert_false(accepts(&token, another, "job", "node1", proof));
    assert_false(accepts(&token, nonce, "job2", "node1", proof));
    assert_false(accepts(&token, nonce, "job", "node2", proof));
    assert_false(accepts(&token, nonce, "jobn", "ode1", proof)); /* the same bytes, if there were no lengths */
    assert_false(accepts(&token, nonce, "", "jobnode1", proof));
    for (size_t len = 0; len < sizeof bytes; len++)
        assert_true(accepts(&token, nonce, "job", "node1", mu_slice(bytes, len)) == (len == MU_TOKEN_PROOF_BYTES));
    assert_false(accepts(&token, nonce, "job", "node1", mu_slice(bytes, sizeof bytes)));
    for (size_t i = 0; i < MU_TOKEN_PROOF_BYTES; i++) {
        bytes[i] ^= 1;
        assert_false(accepts(&token, nonce, "job", "node1", proof));
        bytes[i] ^= 1;
    }
}

static void a_token_that_was_wiped_is_gone(void **state)
{
    static const struct mu_token none = { 0 };
    struct mu_token token = token_of("correct horse battery staple");

    (void)state;
    mu_token_wipe(&token);
    assert_memory_equal(&token, &none, sizeof token);
}

static void a_file_holds_16_to_1024_bytes(void **state)
{
    static const struct {
        size_t len;
        const char *wrong; /* NULL: nothing */
    } files[] = { { 15, "it holds 15 bytes, and at least 16 are needed" },
                  { 16, NULL },
                  { 1024, NULL },
                  { 1025, "it holds more than 1024 bytes" },
                  { 5000, "it holds more than 1024 bytes" } };
    char path[] = "/tmp/muster_token_XXXXXX", text[5000], expected[256];
    struct mu_token token, same = { 0 };
    struct muster_error error;
    int fd = mkstemp(path); /* with the mode 0600 */

    (void)state;
    assert_true(fd >= 0);
    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        token = (struct mu_token){ 0 };
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, text, files[i].len, 0), files[i].len);
        assert_int_equal(mu_token_read(path, &token, &error), files[i].wrong == NULL ? 0 : MUSTER_EINVAL);
        assert_true(token.is_there == (files[i].wrong == NULL));
        if (files[i].wrong != NULL) {
            (void)snprintf(expected, sizeof expected, "read the token: file '%s': %s", path, files[i].wrong);
            assert_string_equal(error.text, expected);
        } else {
            mu_token_init(&same, mu_slice(text, files[i].len));
            assert_memory_equal(&token.key, &same.key, sizeof same.key);
        }
    }
    (void)close(fd);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proof_is_the_hmac_of_three_parts),
        cmocka_unit_test(a_proof_holds_for_its_own_parts_alone),
        cmocka_unit_test(a_token_that_was_wiped_is_gone),
        cmocka_unit_test(a_file_holds_16_to_1024_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
