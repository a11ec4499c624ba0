/* Arbitrary bytes as the answer of an etcd of version 2. The first byte chooses the status. Whatever comes, it is an
 * answer that makes sense, or an error of one line. */
#include "kv/etcd2.h"

#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void check_line(const struct muster_error *error)
{
    EXPECT(error->code < 0 && error->text[0] != '\0');
    for (const char *at = error->text; *at != '\0'; at++)
        EXPECT((unsigned char)*at >= 0x20 && (unsigned char)*at < 0x7f);
}

static void check_answer(const struct mu_etcd2_answer *answer, unsigned status)
{
    struct muster_error error = { 0 };

    if (answer->code != 0) {
        EXPECT(status >= 300 && answer->nodes_count == 0);
        EXPECT(mu_etcd2_fail(answer, status, &error) == error.code);
        check_line(&error);
        return;
    }
    EXPECT(status < 300 && answer->index > 0);
    for (size_t i = 1; i < answer->nodes_count; i++) {
        EXPECT(answer->nodes[i].depth >= 1 && answer->nodes[i].depth <= answer->nodes[i - 1].depth + 1);
        EXPECT(answer->nodes[i].depth <= MU_ETCD2_DEPTH_MAX);
        EXPECT(answer->nodes[i].dir || answer->nodes[i].modified > 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned statuses[] = { 200, 201, 400, 404, 412, 500, 503, 302 };
    struct mu_etcd2_answer answer = { 0 };
    struct muster_error error = { 0 };
    unsigned status;

    if (size == 0)
        return 0;
    status = statuses[data[0] % (sizeof statuses / sizeof statuses[0])];
    if (mu_etcd2_read(status, data[0], mu_slice(data + 1, size - 1), &answer, &error) == 0)
        check_answer(&answer, status);
    else
        check_line(&error);
    mu_etcd2_answer_done(&answer);
    return 0;
}
