/* The document's pickle: whatever the bytes are, reading ends with a document or with a state error that names a byte;
 * and a document that was read is read again, the same, from what we write of it. */
#include "rdzv/pickle.h"

#include <stdint.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static const struct mu_hash_seed seed = { 1, 2 };

static void expect_sound(const struct mu_doc *doc)
{
    size_t participants = 0, waiting = 0, spares = 0;

    EXPECT(doc->round >= 0 && doc->count <= MU_DOC_MEMBERS_MAX);
    for (size_t i = 0; i < doc->count; i++) {
        const struct mu_doc_member *member = &doc->members[i];

        EXPECT(member->in != 0 && member->rank >= 0 && member->node.pid >= 0);
        EXPECT(member->node.name.len > 0 && member->node.name.len <= MU_NODE_NAME_MAX);
        EXPECT(mu_doc_find(doc, &member->node) == member);
        participants += (member->in & MU_DOC_PARTICIPANT) != 0;
        waiting += (member->in & MU_DOC_WAITING) != 0;
        spares += (member->in & MU_DOC_SPARE) != 0;
    }
    EXPECT(doc->participants == participants && doc->waiting == waiting && doc->spares == spares);
    EXPECT(spares == 0 || doc->dialect.spares);
}

static void expect_equal(const struct mu_doc *a, const struct mu_doc *b)
{
    EXPECT(a->round == b->round && a->complete == b->complete && a->closed == b->closed);
    EXPECT(a->has_deadline == b->has_deadline && (!a->has_deadline || a->deadline_us == b->deadline_us));
    EXPECT(a->dialect.addr == b->dialect.addr && a->dialect.spares == b->dialect.spares);
    EXPECT(a->dialect.zoned == b->dialect.zoned && a->count == b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct mu_doc_member *x = &a->members[i], *y = &b->members[i];

        EXPECT(mu_node_equal(&x->node, &y->node) && x->in == y->in);
        EXPECT(!(x->in & MU_DOC_PARTICIPANT) || x->rank == y->rank);
        EXPECT(!(x->in & MU_DOC_HEARTBEAT) || x->heartbeat_us == y->heartbeat_us);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct muster_error err = { 0 };
    struct mu_doc doc, again;
    struct mu_buf bytes = { 0 }, bytes_again = { 0 };

    mu_doc_init(&doc, seed, MU_DOC_DIALECT_1_13);
    mu_doc_init(&again, seed, MU_DOC_DIALECT_1_13);
    if (mu_pickle_decode(mu_slice(data, size), &doc, &err) < 0) {
        EXPECT(err.code == MUSTER_ERDZV_STATE && strncmp(err.text, "byte ", 5) == 0 && doc.count == 0);
    } else {
        expect_sound(&doc);
        EXPECT(mu_pickle_encode(&doc, &bytes) == 0);
        EXPECT(mu_pickle_decode(mu_buf_slice(&bytes), &again, &err) == 0);
        expect_equal(&doc, &again);
        EXPECT(mu_pickle_encode(&again, &bytes_again) == 0);
        EXPECT(mu_slice_equal(mu_buf_slice(&bytes), mu_buf_slice(&bytes_again)));
    }
    mu_buf_done(&bytes);
    mu_buf_done(&bytes_again);
    mu_doc_done(&doc);
    mu_doc_done(&again);
    return 0;
}
