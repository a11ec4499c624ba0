/* One node of a rendezvous in the engine of a muster store, see fold.h: the node that hosts that store. */
#include "rdzv/fold_parts.h"

#include "rdzv/rdzv.h"
#include "rdzv/store_lost_text.h"

#include <assert.h>
#include <stdio.h>

static struct mu_node node_of(const struct host *host)
{
    return (struct mu_node){ mu_slice_str(host->name), host->pid, host->local_id };
}

static struct mu_node node_of_record(const struct mu_fold_record *record)
{
    return (struct mu_node){ mu_slice_str(record->name), record->pid, record->local_id };
}

bool mu_fold_is_host(const struct mu_fold *f, const struct mu_fold_record *record)
{
    const struct mu_node host = node_of(&f->host), node = node_of_record(record);

    return f->host.kind != HOST_OUTSIDE && mu_node_equal(&host, &node);
}

/* ---- What is heard of it ---- */

static void set_host(struct mu_fold *f, struct mu_slice text)
{
    struct host *host = &f->host;
    struct mu_node node;

    host->kind = HOST_OUTSIDE;
    if (!mu_node_read(text, &node) || node.name.len > MU_FOLD_NAME_MAX)
        return;
    memcpy(host->name, node.name.data, node.name.len);
    host->name[node.name.len] = '\0';
    host->pid = node.pid;
    host->local_id = node.local_id;
    host->kind = HOST_NODE;
    if (mu_fold_is_host(f, &f->record))
        host->kind = HOST_SELF;
}

/* Another store has nothing of the world that we know. */
void mu_fold_on_met(struct mu_fold *f, const struct mu_fold_event *event)
{
    set_host(f, event->host);
    f->has_moved |= event->moved;
    if (!event->another)
        return;
    f->known.is_lost = f->known.world.id != 0;
    f->record.end.at = 0; /* its revisions mean nothing there, nor does a lease */
    f->granted_job = 0;
}

static bool host_is_silent(const struct mu_fold *f)
{
    return f->away == AWAY_SILENT && f->host.kind == HOST_NODE;
}

/* When a store that is away is lost, with its host. */
static uint64_t host_lost_ms(const struct mu_fold *f)
{
    if (!host_is_silent(f))
        return UINT64_MAX;
    return f->refused_since_ms != UINT64_MAX ? f->refused_since_ms : f->away_since_ms + f->lease_ms;
}

/* We are in a world with the node that hosts the store, or hosted it. */
bool mu_fold_a_peer_hosts(const struct mu_fold *f)
{
    return f->world.id != 0 && f->world.host.name[0] != '\0' && f->world.host.rank != f->rank;
}

bool mu_fold_host_is_lost(struct mu_fold *f)
{
    return mu_fold_a_peer_hosts(f) && (f->known.is_lost || mu_fold_is_due(f, host_lost_ms(f)));
}

/* ---- What it means ---- */

/* If its store is lost later, those who know it tell the next leader of it. */
void mu_fold_note_known(struct mu_fold *f)
{
    f->known = (struct known){ .world = f->doc, .rank = -1, .since_ms = f->doc_since_ms };
}

static const char *cause_of(const struct mu_fold *f)
{
    if (f->known.is_lost)
        return MU_FOLD_HOST_REPLACED;
    return f->refused_since_ms != UINT64_MAX ? "the store that it hosts refuses connections"
                                             : "the store that it hosts does not answer";
}

/* A member whose store is lost has lost the member that hosted it. */
void mu_fold_observe_host(struct mu_fold *f)
{
    struct mu_part_news *news;

    if (f->phase != MU_FOLD_MEMBER || f->told_over || f->leave_by_ms != 0 || !mu_fold_host_is_lost(f))
        return;
    (void)snprintf(f->host_text, sizeof f->host_text, "lost %s: %s", f->world.host.name, cause_of(f));
    f->told_over = true;
    f->told_gone = 1;
    f->told_host_of = f->world.id;
    news = mu_fold_tell(f, MU_PART_TELL_LOST);
    news->round = f->world.round;
    news->cause = f->host_text;
}

/* When a join fails because the store does not come back; UINT64_MAX: it does not for this. */
static uint64_t join_fails_ms(const struct mu_fold *f)
{
    uint64_t patience_ms =
        mu_fold_was_spare(f) && f->refused_since_ms != UINT64_MAX ? MU_RDZV_SURPLUS_MS : f->settings.store_lost_ms;
    uint64_t lost_ms = host_lost_ms(f), least_ms = f->join_since_ms + MU_RDZV_LAST_TRY_MS;

    if (f->phase != MU_FOLD_JOINING || lost_ms == UINT64_MAX)
        return UINT64_MAX;
    return lost_ms + patience_ms < least_ms ? least_ms : lost_ms + patience_ms;
}

bool mu_fold_gives_up_store(struct mu_fold *f)
{
    bool is_refused = f->refused_since_ms != UINT64_MAX;
    uint64_t since_ms = is_refused ? f->refused_since_ms : f->away_since_ms;
    const struct mu_node host = node_of(&f->host);

    if (!mu_fold_is_due(f, join_fails_ms(f)))
        return false;
    mu_store_lost_text(&(struct mu_store_lost){ .where = f->endpoint,
                                                .host = &host,
                                                .is_surplus = mu_fold_was_spare(f),
                                                .is_refused = is_refused,
                                                .since_ms = f->now_ms - since_ms },
                       &f->error);
    return true;
}

/* For the owner, that it is away. */
void mu_fold_tell_away(struct mu_fold *f)
{
    struct mu_part_news *news = mu_fold_tell(f, MU_PART_TELL_BACKEND_DOWN);
    uint64_t lost_ms = host_lost_ms(f), until_ms = lost_ms + f->settings.store_lost_ms;

    news->error = &f->why_away;
    news->away_ms = f->away_since_ms != UINT64_MAX ? f->now_ms - f->away_since_ms : 0;
    if (lost_ms != UINT64_MAX && (f->phase == MU_FOLD_JOINING || mu_fold_a_peer_hosts(f)))
        news->give_up_in_ms = until_ms > f->now_ms ? until_ms - f->now_ms : 0; /* we may have stood still */
    news->host_lost = f->phase == MU_FOLD_MEMBER && mu_fold_host_is_lost(f);
}
