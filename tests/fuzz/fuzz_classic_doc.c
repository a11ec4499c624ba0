/* What others put into etcd for a classic rendezvous: whatever it is, it is read within limits; and a notice that is
 * read can be written, and reads the same again. The first byte says as what it is read. */
#include "rdzv/classic_doc.h"

#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void as_notice(struct mu_slice bytes)
{
    struct mu_classic_notice once, twice;
    struct mu_buf out = { 0 };

    if (!mu_classic_notice_read(bytes, &once))
        return;
    EXPECT(once.id != 0 && once.name[0] != '\0' && once.run_id[0] != '\0' && once.nodes_min >= 1 && once.rank >= -1);
    EXPECT(mu_classic_notice_write(&once, &out) == 0);
    EXPECT(mu_classic_notice_read(mu_buf_slice(&out), &twice));
    EXPECT(once.id == twice.id && once.version == twice.version && strcmp(once.name, twice.name) == 0);
    mu_buf_done(&out);
}

static void as_document(struct mu_slice bytes)
{
    struct mu_classic_doc doc;
    struct mu_buf out = { 0 };

    if (mu_classic_doc_read(bytes, &doc, NULL) < 0)
        return;
    EXPECT(doc.participants <= MU_CLASSIC_NODES_MAX && doc.keep_alives <= doc.participants);
    EXPECT(mu_classic_doc_closed(&doc, &out) == 0);
    mu_classic_doc_done(&doc);
    EXPECT(mu_classic_doc_read(mu_buf_slice(&out), &doc, NULL) == 0 && doc.status == MU_CLASSIC_CLOSED);
    mu_classic_doc_done(&doc);
    mu_buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_slice bytes = mu_slice(data + 1, size > 0 ? size - 1 : 0);

    if (size == 0)
        return 0;
    if (data[0] == 'n')
        as_notice(bytes);
    else
        as_document(bytes);
    return 0;
}
