/* The three machines behind one table: translates their effects and what they know, and decides nothing. */
#include "rdzv/part.h"

#include "rdzv/classic.h"
#include "rdzv/fold.h"
#include "rdzv/rdzv.h"

/* ---- One shared document: rdzv.h ---- */

static void tell_rdzv(const struct mu_rdzv *rdzv, const struct mu_rdzv_effect *effect, const struct mu_part_sink *to)
{
    const struct mu_doc *doc = mu_rdzv_doc(rdzv);
    bool can_fail = effect->tell == MU_RDZV_TELL_FAILED || effect->tell == MU_RDZV_TELL_LOOKED ||
                    effect->tell == MU_RDZV_TELL_BACKEND_DOWN || effect->tell == MU_RDZV_TELL_FOREIGN;
    const struct muster_error *error = can_fail ? mu_rdzv_error(rdzv) : NULL;
    struct mu_part_news news = { .tell = (enum mu_part_tell)effect->tell,
                                 .asked = (enum mu_part_event_type)effect->asked,
                                 .round = effect->round,
                                 .count = effect->count,
                                 .error = error != NULL && error->code != 0 ? error : NULL,
                                 .away_ms = effect->away_ms,
                                 .give_up_in_ms = effect->give_up_in_ms,
                                 .host_lost = effect->host_lost };

    if (effect->tell == MU_RDZV_TELL_LOOKED) {
        news.round = mu_rdzv_doc_exists(rdzv) ? doc->round : -1;
        news.count = (int64_t)doc->waiting;
        news.closed = doc->closed;
    }
    to->tell(to->ctx, &news);
}

static void step_rdzv(void *part, enum mu_part_event_type type, const void *own, struct mu_part_now now,
                      const struct mu_part_sink *to)
{
    struct mu_rdzv_event event = { .type = (enum mu_rdzv_event_type)type };
    struct mu_rdzv_effects effects;

    if (own != NULL)
        event = *(const struct mu_rdzv_event *)own;
    event.now_ms = now.now_ms;
    event.wall_us = now.wall_us;
    mu_rdzv_step(part, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type != MU_RDZV_DO_TELL)
            to->request(to->ctx, &effects.items[i]);
    for (unsigned i = 0; i < effects.count; i++) {
        if (effects.items[i].type != MU_RDZV_DO_TELL)
            continue;
        if ((unsigned)effects.items[i].tell < MU_PART_TELLS_COUNT)
            tell_rdzv(part, &effects.items[i], to);
        else if (to->own != NULL)
            to->own(to->ctx, &effects.items[i]);
    }
}

static uint64_t rdzv_deadline_ms(const void *part)
{
    return mu_rdzv_deadline_ms(part);
}

static bool rdzv_world(const void *part, struct mu_part_world *ret_world)
{
    const struct mu_rdzv_world *world = mu_rdzv_world(part);

    if (world != NULL)
        *ret_world = (struct mu_part_world){ world->round, world->rank, world->count, world->all_ours };
    return world != NULL;
}

static struct mu_part_progress rdzv_progress(const void *part)
{
    struct mu_rdzv_progress seen = mu_rdzv_progress(part);

    return (struct mu_part_progress){
        .round = seen.round,
        .joined = (int64_t)seen.participants,
        .waiting = (int64_t)seen.waiting,
        .spares = (int64_t)seen.spares,
        .spare = seen.me_spare,
        .last_call_until_ms = seen.last_call && !seen.complete ? seen.last_call_until_ms : UINT64_MAX,
        .deadline_ms = seen.deadline_ms,
    };
}

static const char *rdzv_phase(const void *part)
{
    return mu_rdzv_phase_text(mu_rdzv_phase(part));
}

const struct mu_part_ops mu_rdzv_part = {
    "document", step_rdzv, rdzv_deadline_ms, rdzv_world, rdzv_progress, rdzv_phase
};

/* ---- etcd's v2 keys: classic.h ---- */

static void tell_classic(const struct mu_classic_effect *effect, const struct mu_part_sink *to)
{
    to->tell(to->ctx, &(struct mu_part_news){ .tell = (enum mu_part_tell)effect->tell,
                                              .asked = (enum mu_part_event_type)effect->asked,
                                              .round = effect->round,
                                              .count = effect->count,
                                              .closed = effect->closed,
                                              .error = effect->error,
                                              .give_up_in_ms = UINT64_MAX,
                                              .ranks = effect->ranks,
                                              .ranks_count = effect->ranks_count });
}

static void step_classic(void *part, enum mu_part_event_type type, const void *own, struct mu_part_now now,
                         const struct mu_part_sink *to)
{
    struct mu_classic_event event = { .type = (enum mu_classic_event_type)type };
    struct mu_classic_effects effects;

    if (own != NULL)
        event = *(const struct mu_classic_event *)own;
    event.now_ms = now.now_ms;
    mu_classic_step(part, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type != MU_CLASSIC_DO_TELL)
            to->request(to->ctx, &effects.items[i]);
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type == MU_CLASSIC_DO_TELL)
            tell_classic(&effects.items[i], to);
}

static uint64_t classic_deadline_ms(const void *part)
{
    return mu_classic_deadline_ms(part);
}

static bool classic_world(const void *part, struct mu_part_world *ret_world)
{
    const struct mu_classic_world *world = mu_classic_world(part);

    if (world->version >= 0)
        *ret_world = (struct mu_part_world){ world->version, world->rank, world->count, world->all_ours };
    return world->version >= 0;
}

static struct mu_part_progress classic_progress(const void *part)
{
    struct mu_classic_progress seen = mu_classic_progress(part);

    return (struct mu_part_progress){
        .round = -1,
        .joined = (int64_t)seen.joined,
        .waiting = seen.waiting,
        .last_call_until_ms = seen.last_call ? seen.last_call_until_ms : UINT64_MAX,
        .deadline_ms = seen.deadline_ms,
    };
}

static const char *classic_phase(const void *part)
{
    return mu_classic_state_text(mu_classic_state(part));
}

const struct mu_part_ops mu_classic_part = { "classic",     step_classic,     classic_deadline_ms,
                                             classic_world, classic_progress, classic_phase };

/* ---- etcd v3: fold.h ---- */

static void tell_fold(const struct mu_fold_effect *effect, const struct mu_part_sink *to)
{
    to->tell(to->ctx, &(struct mu_part_news){ .tell = (enum mu_part_tell)effect->tell,
                                              .asked = (enum mu_part_event_type)effect->asked,
                                              .round = effect->round,
                                              .count = effect->count,
                                              .closed = effect->closed,
                                              .who = effect->who,
                                              .error = effect->error,
                                              .give_up_in_ms = UINT64_MAX });
}

static void step_fold(void *part, enum mu_part_event_type type, const void *own, struct mu_part_now now,
                      const struct mu_part_sink *to)
{
    struct mu_fold_event event = { .type = (enum mu_fold_event_type)type };
    struct mu_fold_effects effects;

    if (own != NULL)
        event = *(const struct mu_fold_event *)own;
    event.now_ms = now.now_ms;
    mu_fold_step(part, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type != MU_FOLD_DO_TELL)
            to->request(to->ctx, &effects.items[i]);
    for (unsigned i = 0; i < effects.count; i++) {
        if (effects.items[i].type != MU_FOLD_DO_TELL)
            continue;
        if ((unsigned)effects.items[i].tell < MU_PART_TELLS_COUNT)
            tell_fold(&effects.items[i], to);
        else if (to->own != NULL)
            to->own(to->ctx, &effects.items[i]);
    }
}

static uint64_t fold_deadline_ms(const void *part)
{
    return mu_fold_deadline_ms(part);
}

static bool fold_world(const void *part, struct mu_part_world *ret_world)
{
    const struct mu_fold_world *world = mu_fold_world(part);

    if (world != NULL)
        *ret_world = (struct mu_part_world){ world->round, mu_fold_rank(part), world->count, true };
    return world != NULL;
}

static struct mu_part_progress fold_progress(const void *part)
{
    struct mu_fold_progress seen = mu_fold_progress(part);

    return (struct mu_part_progress){ seen.round,      seen.joined, seen.waiting,
                                      seen.spares,     seen.spare,  seen.last_call_until_ms,
                                      seen.deadline_ms };
}

static const char *fold_phase(const void *part)
{
    return mu_fold_phase_text(mu_fold_phase(part));
}

const struct mu_part_ops mu_fold_part = { "fold", step_fold, fold_deadline_ms, fold_world, fold_progress, fold_phase };
