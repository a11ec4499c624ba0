/* The leader of an etcd-v3 rendezvous, see fold.h: what it reads when it begins to lead. These are the pages of the
 * document's world, with its members; the goodbyes of those who have left it while nobody led; and what leaders before
 * it were not able to finish. */
#include "rdzv/fold_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void mu_leader_forget_members(struct lead *l)
{
    mu_fold_members_done(&l->members);
    free(l->fates);
    l->fates = NULL;
    l->fates_count = 0;
    memset(l->said, 0, sizeof l->said);
    l->stays_ended = false;
}

bool mu_leader_knows_members(const struct mu_fold *f)
{
    return f->lead.members.world == f->doc.id && (int64_t)f->lead.members.count == f->doc.nodes;
}

/* How members are gone, as far as the news say. */
static enum gone gone_by(const struct mu_fold_news *news)
{
    if (news->missing == 0)
        return LEFT;
    return news->missing == news->gone ? MISSING : GONE;
}

/* What the news say of members that are gone. Who does not lead any more believes them: what it judged itself was
 * perhaps at another server, and the leaders after it know better. */
void mu_leader_see_news(struct mu_fold *f)
{
    struct lead *l = &f->lead;

    for (size_t i = 0; l->fates != NULL && f->news.world == l->members.world && i < l->members.count; i++) {
        l->fates[i].done |= mu_fold_news_done(&f->news, (int64_t)i);
        if (!f->was_leader)
            l->fates[i].gone = HERE;
        if (l->fates[i].gone == HERE && mu_fold_news_gone(&f->news, (int64_t)i))
            l->fates[i] = (struct fate){
                .gone = gone_by(&f->news), .done = l->fates[i].done, .end = l->fates[i].end, .gone_ms = f->now_ms
            };
    }
}

void mu_leader_ask_pages(struct mu_fold *f)
{
    struct mu_fold_effect *effect;

    if (f->lead.pages_id != 0)
        return;
    effect = mu_fold_request(f, MU_FOLD_DO_RANGE, &f->lead.pages_id);
    effect->key = mu_slice_str("member/");
    effect->prefix = true;
}

/* Worlds of which something is left: those of leaders that were not able to finish. */
static void find_stale(struct mu_fold *f, const struct mu_fold_event *event)
{
    struct lead *l = &f->lead;

    l->stale_count = 0;
    for (size_t i = 0; i < event->count && l->stale_count < STALE_MAX; i++) {
        uint64_t world = 0;
        size_t number = 0;
        bool known = false;

        if (!mu_fold_parse_page(event->kvs[i].key, &world, &number) || (mu_fold_has(f, JOB_DOC) && world == f->doc.id))
            continue;
        for (size_t k = 0; k < l->stale_count; k++)
            known |= l->stale[k] == world;
        if (!known)
            l->stale[l->stale_count++] = world;
    }
}

/* Its members. What we know because we led before is more than pages say. False: no memory. */
static bool read_members(struct mu_fold *f, const struct mu_fold_event *event)
{
    struct lead *l = &f->lead;
    size_t pages = 0;
    bool once;

    if (mu_leader_knows_members(f) && !l->pages_broken)
        return true;
    mu_leader_forget_members(l);
    mu_slowdown_done(&l->slowdown); /* how the stays of rounds ended that others led is not known */
    l->fates = calloc((size_t)f->doc.nodes, sizeof *l->fates);
    if (l->fates == NULL || mu_fold_members_init(&l->members, f->doc.id, (size_t)f->doc.nodes) < 0 ||
        mu_fold_read_pages(event, &l->members, &pages) < 0) {
        mu_leader_forget_members(l);
        return false;
    }
    l->fates_count = l->members.count;
    once = mu_fold_members_sort(&l->members);
    if (!once && mu_fold_members_init(&l->members, f->doc.id, (size_t)f->doc.nodes) < 0) { /* nobody is known by them */
        mu_leader_forget_members(l);
        return false;
    }
    l->pages_broken = pages != mu_fold_pages(l->members.count) || !once;
    if (mu_fold_has_news(f))
        mu_leader_see_news(f);
    return true;
}

/* "member/<world>/left/<id>": what a member of this world wrote that left it. */
static bool is_goodbye(const struct mu_fold *f, const struct mu_fold_kv *kv, uint64_t *ret_id)
{
    char head[MU_FOLD_KEY_MAX];
    struct mu_slice rest = kv->key;

    (void)snprintf(head, sizeof head, "member/%016" PRIx64 "/left/", f->doc.id);
    return kv->lease != 0 && mu_slice_skip(&rest, head) && mu_fold_id_parse(rest, ret_id);
}

/* False: no memory. */
static bool hear_goodbyes(struct mu_fold *f, const struct mu_fold_event *event)
{
    for (size_t i = 0; i < event->count; i++) {
        const struct mu_fold_kv *kv = &event->kvs[i];
        struct entry left = { .mod = kv->mod };
        int64_t rank;
        int rc;

        if (!is_goodbye(f, kv, &left.id))
            continue;
        rank = mu_fold_members_rank(&f->lead.members, left.id);
        rc = rank >= 0 ? mu_fold_record_read(kv->value, &left.record, NULL) : MUSTER_ERDZV_STATE;
        if (rc == MUSTER_ENOMEM)
            return false;
        if (rc == 0)
            mu_leader_hear_end(f, (size_t)rank, &left);
    }
    return true;
}

bool mu_leader_ranged(struct mu_fold *f, const struct mu_fold_event *event)
{
    struct lead *l = &f->lead;

    if (!mu_fold_is_answer(event, &l->pages_id))
        return false;
    mu_fold_is_heard(f);
    if (!f->was_leader)
        return true;
    find_stale(f, event);
    if (!mu_fold_has(f, JOB_DOC)) {
        l->pages_broken = false;
    } else if (!read_members(f, event) || !hear_goodbyes(f, event)) {
        mu_fold_back_off(f);
        return true;
    }
    l->pages_read = true;
    return true;
}

bool mu_leader_failed(struct mu_fold *f, const struct mu_fold_event *event)
{
    return mu_fold_is_answer(event, &f->lead.pages_id);
}
