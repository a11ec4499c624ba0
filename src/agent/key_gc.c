/* Keys of rounds that are long over. See key_gc.h. */
#include "agent/key_gc.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const of_members[] = { "role_info", "ranks", "done", "left", "heard" };
static const char *const of_rounds[] = { "count",  "done_count",           "last",
                                         "failed", MUSTER_KEY_MASTER_ADDR, MUSTER_KEY_MASTER_PORT };
enum { OF_MEMBERS = sizeof of_members / sizeof of_members[0], OF_ROUNDS = sizeof of_rounds / sizeof of_rounds[0] };

struct mu_key_gc {
    char *run_id, *prefix;
    size_t prefix_room;
    struct mu_asks asks;
    struct mu_key_gc_round past[MU_KEY_GC_PAST_MAX]; /* the oldest first */
    size_t past_count;
    int64_t due;                /* rounds up to this one are to go */
    struct mu_key_gc_round now; /* whose workers are up */
    bool never;                 /* the store cannot */
    int64_t cursor;             /* in the keys of the first of them */
};

int mu_key_gc_new(const char *run_id, struct mu_key_gc **ret_gc, struct muster_error *reterr)
{
    struct mu_key_gc *c = calloc(1, sizeof *c);

    if (c == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent");
    c->prefix_room = strlen(run_id) + MU_ROUND_PREFIX_EXTRA;
    c->run_id = strdup(run_id);
    c->prefix = malloc(c->prefix_room);
    c->due = -1;
    if (c->run_id == NULL || c->prefix == NULL || mu_asks_init(&c->asks, c->prefix_room, 0, NULL) < 0) {
        mu_key_gc_free(c);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent");
    }
    *ret_gc = c;
    return 0;
}

void mu_key_gc_free(struct mu_key_gc *c)
{
    if (c == NULL)
        return;
    mu_asks_done(&c->asks);
    free(c->run_id);
    free(c->prefix);
    free(c);
}

static void forget(struct mu_key_gc *c, size_t index)
{
    c->past_count--;
    memmove(&c->past[index], &c->past[index + 1], (c->past_count - index) * sizeof c->past[0]);
    if (index == 0)
        c->cursor = 0;
}

/* Round numbers only grow. If one does not, the store has lost its data, and there is nothing to delete. */
static void remember(struct mu_key_gc *c, const struct mu_key_gc_round *round)
{
    while (c->past_count > 0 && c->past[c->past_count - 1].round >= round->round)
        forget(c, c->past_count - 1);
    if (c->past_count == MU_KEY_GC_PAST_MAX)
        forget(c, 0);
    c->past[c->past_count++] = *round;
}

static void ask(struct mu_key_gc *c, const struct mu_key_gc_round *round)
{
    struct mu_ask_slot *slot;
    int64_t at = c->cursor++;

    mu_round_own_prefix(c->prefix, c->prefix_room, c->run_id, round->round, round->tag);
    if (at < OF_ROUNDS) {
        slot = mu_asks_add(&c->asks, MU_ASK_DELETE, 0, -1, "%s%s", c->prefix, of_rounds[at]);
    } else {
        at -= OF_ROUNDS;
        slot = mu_asks_add(&c->asks, MU_ASK_DELETE, 0, -1, "%s%s/%" PRId64, c->prefix, of_members[at % OF_MEMBERS],
                           at / OF_MEMBERS);
    }
    slot->once = true;
}

/* Keeps the window full. */
static void go_on(struct mu_key_gc *c)
{
    while (c->past_count > 0 && c->past[0].round <= c->due && !c->never && mu_asks_free(&c->asks) > 0) {
        const struct mu_key_gc_round *round = &c->past[0];
        bool first_of_all = c->now.rank == 0 || round->rank == 0;
        bool all = first_of_all && round->tag != c->now.tag; /* members that are gone delete nothing */
        int64_t first = first_of_all ? 0 : OF_ROUNDS + round->rank * OF_MEMBERS;
        int64_t last = OF_ROUNDS + (all ? round->world_size : round->rank + 1) * OF_MEMBERS;

        if (c->cursor < first)
            c->cursor = first;
        if (c->cursor < last)
            ask(c, round);
        else
            forget(c, 0);
    }
}

void mu_key_gc_step(struct mu_key_gc *c, const struct mu_key_gc_event *event, struct mu_key_gc_effects *out)
{
    struct mu_ask_slot slot;

    out->count = 0;
    switch (event->type) {
    case MU_KEY_GC_ON_JOINED:
        remember(c, event->round);
        c->due = -1;
        break;
    case MU_KEY_GC_ON_STARTED:
        if (c->past_count > 0) {
            c->due = c->past[c->past_count - 1].round - MU_KEY_GC_ROUNDS;
            c->now = c->past[c->past_count - 1];
        }
        break;
    case MU_KEY_GC_ON_ANSWER:
        if (mu_asks_answer(&c->asks, &event->answer, event->now_ms, &slot) && event->answer.error != NULL &&
            event->answer.error->code == MUSTER_ENOTSUP)
            c->never = true;
        break;
    }
    go_on(c);
    while (mu_asks_emit(&c->asks, event->now_ms, UINT64_MAX, &out->items[out->count]))
        out->count++;
    assert(out->count <= MU_ASKS_MAX);
}
