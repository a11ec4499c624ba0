/* What others put into etcd for an etcd-v3 rendezvous: whatever it is, it is read within limits; and what is read can
 * be written, and reads the same again. The first byte says as what it is read. */
#include "rdzv/fold_doc.h"

#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void as_record(struct mu_slice bytes)
{
    struct mu_fold_record once, twice;
    struct mu_buf out = { 0 };

    if (mu_fold_record_read(bytes, &once, NULL) < 0)
        return;
    EXPECT(once.nodes_min >= 1 && once.nodes_max >= 1 && once.name[0] != '\0');
    EXPECT(mu_fold_record_write(&once, &out) == 0);
    EXPECT(mu_fold_record_read(mu_buf_slice(&out), &twice, NULL) == 0);
    EXPECT(once.seq == twice.seq && once.world == twice.world && once.joining == twice.joining);
    mu_buf_done(&out);
}

static void as_world(struct mu_slice bytes)
{
    struct mu_fold_world once = { .id = 0 }, twice = { .id = 0 };

    if (mu_fold_world_read(bytes, &once, NULL) < 0)
        return;
    EXPECT(once.id != 0 && once.count > 0 && once.count <= MU_FOLD_MEMBERS_MAX);
    for (size_t i = 0; i < once.count; i++)
        EXPECT(mu_fold_world_rank(&once, once.members[i].id) == (int64_t)i);
    once.bytes.len = 0;
    if (mu_fold_world_write(&once) == 0) {
        EXPECT(mu_fold_world_read(mu_buf_slice(&once.bytes), &twice, NULL) == 0);
        EXPECT(twice.count == once.count && twice.round == once.round && twice.hold_ms == once.hold_ms);
    }
    mu_fold_world_done(&once);
    mu_fold_world_done(&twice);
}

static void as_news(struct mu_slice bytes)
{
    struct mu_fold_news once = { .world = 0 }, twice = { .world = 0 };
    struct mu_buf out = { 0 };

    if (mu_fold_news_read(bytes, &once, NULL) < 0)
        return;
    for (size_t i = 0; i < once.gone_count; i++)
        EXPECT(mu_fold_news_gone(&once, once.gone[i]));
    EXPECT(mu_fold_news_write(&once, &out) == 0);
    EXPECT(mu_fold_news_read(mu_buf_slice(&out), &twice, NULL) == 0);
    EXPECT(twice.gone_count == once.gone_count && twice.grace == once.grace);
    mu_fold_news_done(&once);
    mu_fold_news_done(&twice);
    mu_buf_done(&out);
}

static void as_master(struct mu_slice bytes)
{
    struct mu_fold_master master;

    if (mu_fold_master_read(bytes, &master, NULL) < 0)
        return;
    EXPECT(master.port != 0 && master.agents_port != 0 && master.addr[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_slice bytes = mu_slice(data + 1, size > 0 ? size - 1 : 0);
    uint64_t node;

    if (size == 0)
        return 0;
    switch (data[0]) {
    case 'r':
        as_record(bytes);
        break;
    case 'w':
        as_world(bytes);
        break;
    case 'n':
        as_news(bytes);
        break;
    case 'm':
        as_master(bytes);
        break;
    default:
        (void)mu_fold_mark_read(bytes, &node, NULL);
        break;
    }
    return 0;
}
