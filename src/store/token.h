/* The token of a store's jobs: what every node and the store know, and nobody else. It never goes over the wire. A node
 * proves that it has it: by the HMAC of what the store has chosen for this connection, the job, and the node's name. */
#ifndef MU_STORE_TOKEN_H
#define MU_STORE_TOKEN_H

#include "base/error.h"
#include "base/sha256.h"

#define MU_TOKEN_BYTES_MIN 16
#define MU_TOKEN_BYTES_MAX 1024
#define MU_TOKEN_NONCE_BYTES 32
#define MU_TOKEN_PROOF_BYTES MU_SHA256_BYTES

struct mu_token { /* zeroed: there is none */
    bool is_there;
    struct mu_hmac_key key; /* made of the token: enough for proofs */
};

/* From a file that only its owner may read (base/secret_file.h). */
int mu_token_read(const char *path, struct mu_token *ret_token, struct muster_error *reterr);
void mu_token_init(struct mu_token *token, struct mu_slice bytes);
void mu_token_wipe(struct mu_token *token);

/* HMAC-SHA256(token, nonce, run_id, node). Each part has its length in front, so that no two lists of parts make the
 * same bytes. */
void mu_token_prove(const struct mu_token *token, struct mu_slice nonce, struct mu_slice run_id, struct mu_slice node,
                    char ret_proof[static MU_TOKEN_PROOF_BYTES]);
/* Takes the same time wherever a wrong proof differs. */
bool mu_token_accepts(const struct mu_token *token, struct mu_slice nonce, struct mu_slice run_id, struct mu_slice node,
                      struct mu_slice proof);

#endif
