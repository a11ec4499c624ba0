#include "rdzv/slowdown.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Crash loops ---- */

int64_t mu_slowdown_crashes(int64_t before, uint64_t lasted_ms)
{
    if (lasted_ms >= MU_SLOWDOWN_CRASH_MS)
        return 0;
    return before < MU_FOLD_COUNT_MAX ? before + 1 : MU_FOLD_COUNT_MAX;
}

/* `first_ms` at the `from`th time, twice as long each time after it. */
static uint64_t doubled_ms(uint64_t first_ms, uint64_t most_ms, int64_t times)
{
    while (times-- > 0 && first_ms < most_ms)
        first_ms *= 2;
    return first_ms < most_ms ? first_ms : most_ms;
}

uint64_t mu_slowdown_pause_ms(int64_t crashes)
{
    if (crashes < MU_SLOWDOWN_CRASHES)
        return 0;
    return doubled_ms(MU_SLOWDOWN_PAUSE_MS, MU_SLOWDOWN_PAUSE_MAX_MS, crashes - MU_SLOWDOWN_CRASHES);
}

/* ---- Flapping ---- */

void mu_slowdown_done(struct mu_slowdown *s)
{
    free(s->nodes);
    s->nodes = NULL;
}

static struct mu_slowdown_node *find(const struct mu_slowdown *s, uint64_t id)
{
    assert(id != 0);
    for (size_t i = 0; s->nodes != NULL && i < MU_SLOWDOWN_NODES_MAX; i++)
        if (s->nodes[i].id == id)
            return &s->nodes[i];
    return NULL;
}

static struct mu_slowdown_node *find_or_make(struct mu_slowdown *s, const struct mu_slowdown_stay *stay)
{
    struct mu_slowdown_node *node = find(s, stay->id), *oldest;

    if (node != NULL)
        return node;
    if (s->nodes == NULL)
        s->nodes = calloc(MU_SLOWDOWN_NODES_MAX, sizeof *s->nodes);
    if (s->nodes == NULL)
        return NULL;
    oldest = &s->nodes[0];
    for (size_t i = 1; i < MU_SLOWDOWN_NODES_MAX; i++)
        if (s->nodes[i].seen_ms < oldest->seen_ms)
            oldest = &s->nodes[i];
    *oldest = (struct mu_slowdown_node){ .id = stay->id };
    (void)snprintf(oldest->name, sizeof oldest->name, "%s", stay->name);
    return oldest;
}

void mu_slowdown_ended_by_others(struct mu_slowdown *s, uint64_t id)
{
    struct mu_slowdown_node *node = find(s, id);

    if (node != NULL)
        *node = (struct mu_slowdown_node){ .id = 0 };
}

void mu_slowdown_ended(struct mu_slowdown *s, const struct mu_slowdown_stay *stay)
{
    struct mu_slowdown_node *node = stay->lasted_ms < MU_SLOWDOWN_FLAP_MS ? find_or_make(s, stay) : NULL;

    if (stay->lasted_ms >= MU_SLOWDOWN_FLAP_MS)
        mu_slowdown_ended_by_others(s, stay->id);
    if (node == NULL)
        return;
    node->since = stay->since;
    node->seen_ms = stay->ended_ms;
    if (++node->short_stays < MU_SLOWDOWN_FLAPS)
        return;
    node->hold_ms = node->hold_ms == 0 ? MU_SLOWDOWN_HOLD_MS : doubled_ms(node->hold_ms, MU_SLOWDOWN_HOLD_MAX_MS, 1);
    node->until_ms = stay->ended_ms + node->hold_ms;
}

void mu_slowdown_came(struct mu_slowdown *s, uint64_t id, const char *name, int64_t create)
{
    if (s->nodes == NULL || find(s, id) != NULL)
        return;
    for (size_t i = 0; i < MU_SLOWDOWN_NODES_MAX; i++) {
        struct mu_slowdown_node *node = &s->nodes[i];

        if (node->id == 0 || node->here || create <= node->since || strcmp(node->name, name) != 0)
            continue;
        node->id = id;
        node->here = true;
        return;
    }
}

uint64_t mu_slowdown_until_ms(const struct mu_slowdown *s, uint64_t id)
{
    const struct mu_slowdown_node *node = find(s, id);

    return node != NULL ? node->until_ms : 0;
}

/* ---- The window ---- */

size_t mu_slowdown_recent(struct mu_fold_world *world, uint64_t passed_ms)
{
    uint64_t ms = (uint64_t)world->rest_ms + passed_ms;
    size_t kept = 0;

    assert(world->rest_ms >= 0 && world->rest_ms < 1000);
    for (size_t i = 0; i < world->charges_count; i++) {
        int64_t age_s = world->charges[i] + (int64_t)(ms / 1000);

        if (world->window_s == 0 || age_s < world->window_s)
            world->charges[kept++] = age_s;
    }
    world->charges_count = kept;
    world->rest_ms = kept > 0 ? (int64_t)(ms % 1000) : 0;
    return kept;
}
