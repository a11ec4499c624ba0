/* See token.h. */
#include "store/token.h"

#include "base/buf.h"
#include "base/secret_file.h"

#include <assert.h>

int mu_token_read(const char *path, struct mu_token *ret_token, struct muster_error *reterr)
{
    char bytes[MU_TOKEN_BYTES_MAX + 2];
    size_t len = 0;
    int rc = mu_secret_file_read(path, MU_TOKEN_BYTES_MIN, MU_TOKEN_BYTES_MAX, bytes, &len, reterr);

    if (rc == 0)
        mu_token_init(ret_token, mu_slice(bytes, len));
    explicit_bzero(bytes, sizeof bytes);
    return rc < 0 ? mu_wrap(reterr, rc, "read the token") : 0;
}

void mu_token_init(struct mu_token *token, struct mu_slice bytes)
{
    assert(bytes.len >= MU_TOKEN_BYTES_MIN && bytes.len <= MU_TOKEN_BYTES_MAX);
    token->is_there = true;
    mu_hmac_key_init(&token->key, bytes);
}

void mu_token_wipe(struct mu_token *token)
{
    explicit_bzero(token, sizeof *token);
}

static void add_part(struct mu_sha256 *hash, struct mu_slice part)
{
    char len[4];

    mu_put_u32(len, (uint32_t)part.len);
    mu_sha256_add(hash, mu_slice(len, sizeof len));
    mu_sha256_add(hash, part);
}

void mu_token_prove(const struct mu_token *token, struct mu_slice nonce, struct mu_slice run_id, struct mu_slice node,
                    char ret_proof[static MU_TOKEN_PROOF_BYTES])
{
    struct mu_sha256 hash;

    assert(token->is_there && nonce.len == MU_TOKEN_NONCE_BYTES);
    mu_hmac_begin(&hash, &token->key);
    add_part(&hash, nonce);
    add_part(&hash, run_id);
    add_part(&hash, node);
    mu_hmac_end(&hash, &token->key, (unsigned char *)ret_proof);
}

bool mu_token_accepts(const struct mu_token *token, struct mu_slice nonce, struct mu_slice run_id, struct mu_slice node,
                      struct mu_slice proof)
{
    char right[MU_TOKEN_PROOF_BYTES];
    bool is_right;

    if (proof.len != sizeof right)
        return false;
    mu_token_prove(token, nonce, run_id, node, right);
    is_right = mu_same_bytes(right, proof.data, sizeof right);
    explicit_bzero(right, sizeof right);
    return is_right;
}
