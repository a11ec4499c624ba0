/* The three machines behind one table: hands on their effects and what they know, and decides nothing. */
#include "rdzv/part.h"

#include "rdzv/classic.h"
#include "rdzv/fold.h"
#include "rdzv/rdzv.h"

/* What is the same for each machine but for its names; `wall` puts the wall clock into its event. */
#define PART(name, NAME, text, wall, led)                                                                              \
    static void name##_step(void *part, enum mu_part_event_type type, const void *own, struct mu_part_now now,         \
                            const struct mu_part_sink *to)                                                             \
    {                                                                                                                  \
        struct mu_##name##_event event = { .type = (enum mu_##name##_event_type)type };                                \
        struct mu_##name##_effects effects;                                                                            \
                                                                                                                       \
        if (own != NULL)                                                                                               \
            event = *(const struct mu_##name##_event *)own;                                                            \
        event.now_ms = now.now_ms;                                                                                     \
        wall;                                                                                                          \
        mu_##name##_step(part, &event, &effects);                                                                      \
        for (unsigned i = 0; i < effects.count; i++)                                                                   \
            if (effects.items[i].type < NAME##_DO_TELL)                                                                \
                to->request(to->ctx, &effects.items[i]);                                                               \
        for (unsigned i = 0; i < effects.count; i++)                                                                   \
            if (effects.items[i].type == NAME##_DO_TELL)                                                               \
                to->tell(to->ctx, &effects.items[i].news);                                                             \
            else if (effects.items[i].type > NAME##_DO_TELL && to->own != NULL)                                        \
                to->own(to->ctx, &effects.items[i]);                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    static uint64_t name##_deadline_ms(const void *part)                                                               \
    {                                                                                                                  \
        return mu_##name##_deadline_ms(part);                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    static struct mu_part_progress name##_progress(const void *part)                                                   \
    {                                                                                                                  \
        return mu_##name##_progress(part);                                                                             \
    }                                                                                                                  \
                                                                                                                       \
    static const char *name##_phase(const void *part)                                                                  \
    {                                                                                                                  \
        return text(part);                                                                                             \
    }                                                                                                                  \
                                                                                                                       \
    const struct mu_part_ops mu_##name##_part = { #name,        name##_step,     name##_deadline_ms,                   \
                                                  name##_world, name##_progress, name##_phase,                         \
                                                  led }

/* ---- One shared document: rdzv.h ---- */

static bool rdzv_world(const void *part, struct mu_part_world *ret_world)
{
    const struct mu_rdzv_world *world = mu_rdzv_world(part);

    if (world != NULL)
        *ret_world = (struct mu_part_world){ world->round, world->rank, world->count, world->all_ours, NULL };
    return world != NULL;
}

#define RDZV_PHASE(part) mu_rdzv_phase_text(mu_rdzv_phase(part))
PART(rdzv, MU_RDZV, RDZV_PHASE, event.wall_us = now.wall_us, NULL);

/* ---- etcd's v2 keys: classic.h ---- */

static bool classic_world(const void *part, struct mu_part_world *ret_world)
{
    const struct mu_classic_world *world = mu_classic_world(part);

    if (world->version >= 0)
        *ret_world = (struct mu_part_world){ world->version, world->rank, world->count, world->all_ours, NULL };
    return world->version >= 0;
}

#define CLASSIC_PHASE(part) mu_classic_state_text(mu_classic_state(part))
PART(classic, MU_CLASSIC, CLASSIC_PHASE, (void)now.wall_us, NULL);

/* ---- etcd v3: fold.h ---- */

static bool fold_world(const void *part, struct mu_part_world *ret_world)
{
    const struct mu_fold_world *world = mu_fold_world(part);

    if (world != NULL)
        *ret_world =
            (struct mu_part_world){ world->round, mu_fold_rank(part), (size_t)world->nodes, true, mu_fold_seat(part) };
    return world != NULL;
}

static void fold_introduce(void *part, const struct mu_part_self *self)
{
    mu_fold_introduce(part, self);
}

static const struct mu_part_verdict *fold_verdict(const void *part)
{
    return mu_fold_verdict(part);
}

static void fold_report(void *part, const struct mu_part_report *report, struct mu_part_now now,
                        const struct mu_part_sink *to)
{
    const struct mu_fold_event event = { .type = MU_FOLD_ON_REPORT, .report = report };

    mu_fold_part.step(part, MU_PART_ON_TIME, &event, now, to);
}

static const struct mu_part_led_ops fold_led = { fold_introduce, fold_report, fold_verdict };

#define FOLD_PHASE(part) mu_fold_phase_text(mu_fold_phase(part))
PART(fold, MU_FOLD, FOLD_PHASE, (void)now.wall_us, &fold_led);
