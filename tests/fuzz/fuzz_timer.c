/* Requests of file timers, as bytes of a FIFO: in one piece or in many, the same timers come of them. The first byte
 * says how long the pieces are. */
#include "agent/timer.h"

#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void on_bad(void *ctx, struct mu_slice line, const struct muster_error *error)
{
    EXPECT(line.len <= MU_TIMER_LINE_MAX && error->code < 0 && error->text[0] != '\0');
    (*(uint64_t *)ctx)++;
}

/* Everything expires, in one process after the other; each is named once. */
static void check_expiry(struct mu_timers *a, struct mu_timers *b, double now_s)
{
    struct mu_timer_expiry one, other;

    while (mu_timers_expire(a, now_s, &one)) {
        double last_s = -1;

        EXPECT(mu_timers_expire(b, now_s, &other));
        EXPECT(one.pid == other.pid && one.signal == other.signal && one.pid > 0 && one.signal >= 0 && one.signal < 65);
        EXPECT(!mu_list_empty(one.timers) && strcmp(one.last->scope, other.last->scope) == 0);
        for (const struct mu_list *link = one.timers->next; link != one.timers; link = link->next) {
            const struct mu_timer *timer = MU_LIST_ITEM(link, struct mu_timer, link);

            EXPECT(timer->pid == one.pid && timer->at_s >= last_s && timer->at_s <= now_s);
            EXPECT(timer == one.last || timer->signal == 0);
            last_s = timer->at_s;
        }
    }
    EXPECT(!mu_timers_expire(b, now_s, &other) && a->count == b->count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mu_timers whole, pieces;
    uint64_t bad_whole = 0, bad_pieces = 0;
    double next_a, next_b;
    size_t step;

    if (size == 0)
        return 0;
    step = (size_t)data[0] + 1;
    mu_timers_init(&whole);
    mu_timers_init(&pieces);
    mu_timers_feed(&whole, mu_slice(data + 1, size - 1), on_bad, &bad_whole);
    for (size_t at = 1; at < size; at += step)
        mu_timers_feed(&pieces, mu_slice(data + at, size - at < step ? size - at : step), on_bad, &bad_pieces);
    EXPECT(bad_whole == bad_pieces && whole.bad == bad_whole && whole.requests == pieces.requests);
    EXPECT(whole.count == pieces.count && whole.count <= MU_TIMERS_MAX && whole.budget.used <= MU_TIMERS_BYTES_MAX);
    if (mu_timers_next(&whole, &next_a)) {
        EXPECT(mu_timers_next(&pieces, &next_b) && next_a == next_b && next_a >= 0);
        check_expiry(&whole, &pieces, next_a);
    }
    check_expiry(&whole, &pieces, 1e300);
    mu_timers_done(&whole);
    mu_timers_done(&pieces);
    return 0;
}
