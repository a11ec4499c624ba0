/* What others put into etcd for an etcd-v3 rendezvous: whatever it is, it is read within limits; and what is read can
 * be written, and reads the same again. The first byte says as what it is read. */
#include "rdzv/fold_doc.h"

#include <stdlib.h>
#include <string.h>

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
    EXPECT(once.joining ||
           (once.world != 0 && once.rank >= 0 && once.rank < once.nodes && once.nodes <= MU_FOLD_MEMBERS_MAX));
    EXPECT(mu_fold_record_write(&once, &out) == 0);
    EXPECT(mu_fold_record_read(mu_buf_slice(&out), &twice, NULL) == 0);
    EXPECT(once.seq == twice.seq && once.world == twice.world && once.joining == twice.joining);
    EXPECT(once.round == twice.round && once.rank == twice.rank && once.nodes == twice.nodes);
    EXPECT(once.count == twice.count && once.size == twice.size && strcmp(once.role, twice.role) == 0);
    EXPECT(once.end.kind == twice.end.kind && once.end.at == twice.end.at &&
           strcmp(once.end.text, twice.end.text) == 0);
    mu_buf_done(&out);
}

static void as_world(struct mu_slice bytes)
{
    struct mu_fold_world once, twice;
    struct mu_buf out = { 0 };

    if (mu_fold_world_read(bytes, &once, NULL) < 0)
        return;
    EXPECT(once.id != 0 && once.nodes > 0 && once.nodes <= MU_FOLD_MEMBERS_MAX);
    EXPECT(mu_fold_world_write(&once, &out) == 0);
    EXPECT(mu_fold_world_read(mu_buf_slice(&out), &twice, NULL) == 0);
    EXPECT(twice.nodes == once.nodes && twice.round == once.round && twice.hold_ms == once.hold_ms);
    EXPECT(twice.one_host == once.one_host && strcmp(twice.first, once.first) == 0);
    EXPECT(twice.size == once.size && twice.count == once.count && twice.max_restarts == once.max_restarts);
    EXPECT(twice.charges_count == once.charges_count && strncmp(twice.why, once.why, strlen(twice.why)) == 0);
    mu_buf_done(&out);
}

static void as_seat(struct mu_slice bytes)
{
    struct mu_fold_seat seat;

    if (mu_fold_seat_read(bytes, &seat, NULL) == 0)
        EXPECT(seat.rank >= 0 && seat.rank < MU_FOLD_MEMBERS_MAX && seat.base_rank >= 0 && seat.role_size >= 1);
}

/* Of a world of less than two pages. */
static void as_page(struct mu_slice bytes, size_t number)
{
    struct mu_fold_members once = { .world = 0 }, twice = { .world = 0 };
    size_t first = number * MU_FOLD_PAGE_MEMBERS, count = number == 0 ? MU_FOLD_PAGE_MEMBERS : 2;
    struct mu_buf out = { 0 };

    EXPECT(mu_fold_members_init(&once, 1, MU_FOLD_PAGE_MEMBERS + 2) == 0);
    EXPECT(mu_fold_members_init(&twice, 1, MU_FOLD_PAGE_MEMBERS + 2) == 0);
    if (mu_fold_members_read_page(&once, number, bytes, NULL) == 0) {
        EXPECT(mu_fold_page_write(once.items + first, count, &out) == 0);
        EXPECT(mu_fold_members_read_page(&twice, number, mu_buf_slice(&out), NULL) == 0);
        for (size_t i = 0; i < once.count; i++)
            EXPECT(once.items[i].id == twice.items[i].id &&
                   mu_slice_equal(once.items[i].node.name, twice.items[i].node.name));
    }
    if (mu_fold_members_sort(&once))
        for (size_t i = 0; i < once.count; i++)
            EXPECT(once.items[i].id == 0 || mu_fold_members_rank(&once, once.items[i].id) == (int64_t)i);
    mu_fold_members_done(&once);
    mu_fold_members_done(&twice);
    mu_buf_done(&out);
}

static void as_news(struct mu_slice bytes)
{
    struct mu_fold_news once, twice;
    struct mu_buf out = { 0 };

    if (mu_fold_news_read(bytes, &once, NULL) < 0)
        return;
    for (size_t i = 0; i < once.spans_count; i++)
        EXPECT(mu_fold_news_gone(&once, once.spans[i].first) && mu_fold_news_gone(&once, once.spans[i].last) &&
               !mu_fold_news_gone(&once, (int64_t)once.spans[i].last + 1));
    EXPECT(once.missing <= once.gone);
    EXPECT(mu_fold_news_write(&once, &out) == 0);
    EXPECT(mu_fold_news_read(mu_buf_slice(&out), &twice, NULL) == 0);
    EXPECT(twice.gone == once.gone && twice.spans_count == once.spans_count && twice.grace == once.grace);
    EXPECT(twice.over == once.over && strncmp(twice.cause, once.cause, strlen(twice.cause)) == 0);
    mu_buf_done(&out);
}

static void as_master(struct mu_slice bytes)
{
    struct mu_fold_master master;

    if (mu_fold_master_read(bytes, &master, NULL) < 0)
        return;
    EXPECT(master.port != 0 && master.agents_port != 0 && master.addr[0] != '\0');
}

static void as_closed(struct mu_slice bytes)
{
    struct mu_fold_closed once, twice;
    struct mu_buf out = { 0 };

    if (mu_fold_closed_read(bytes, &once, NULL) < 0)
        return;
    EXPECT(once.has_verdict || !once.succeeded);
    EXPECT(mu_fold_closed_write(&once, &out) == 0);
    EXPECT(mu_fold_closed_read(mu_buf_slice(&out), &twice, NULL) == 0);
    EXPECT(twice.succeeded == once.succeeded && strcmp(twice.cause, once.cause) == 0);
    mu_buf_done(&out);
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
    case 's':
        as_seat(bytes);
        break;
    case 'p':
    case 'q':
        as_page(bytes, (size_t)(data[0] - 'p'));
        break;
    case 'n':
        as_news(bytes);
        break;
    case 'c':
        as_closed(bytes);
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
