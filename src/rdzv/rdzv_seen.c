/* The document as it was just read or written: what is kept of it, and when each node was last seen in it. */
#include "rdzv/rdzv_parts.h"

#include <stdio.h>
#include <stdlib.h>

/* By the document as it is now; once the time is up, this node takes itself out of it. */
static void note_who_came(struct mu_rdzv *r)
{
    struct mu_node nodes[MU_TIMEOUT_TEXT_NAMES_MAX];
    struct mu_timeout_text came = { .waited_ms = r->settings.join_ms,
                                    .joined = (int64_t)r->doc.participants,
                                    .nodes_min = r->settings.nodes_min,
                                    .nodes_max = r->settings.nodes_max,
                                    .nodes = nodes,
                                    .nodes_count = r->doc.participants };
    char text[MU_TIMEOUT_TEXT_MAX];

    for (size_t i = 0, count = 0; i < r->doc.count && count < MU_TIMEOUT_TEXT_NAMES_MAX; i++)
        if ((r->doc.members[i].in & MU_DOC_PARTICIPANT) != 0)
            nodes[count++] = r->doc.members[i].node;
    (void)mu_timeout_text_write(&came, text);
    if (r->doc.waiting > 0)
        (void)snprintf(r->came, sizeof r->came, "%s; %zu %s for the next round", text, r->doc.waiting,
                       r->doc.waiting == 1 ? "node waits" : "nodes wait");
    else
        (void)snprintf(r->came, sizeof r->came, "%s%s", text,
                       r->doc.has_deadline ? "; the last call was not over" : "");
}

static int reserve_dead(struct mu_rdzv *r, size_t count)
{
    struct mu_node *dead = NULL;

    if (count <= r->dead_room)
        return 0;
    dead = realloc(r->dead, count * sizeof *dead);
    if (dead == NULL)
        return MUSTER_ENOMEM;
    r->dead = dead;
    r->dead_room = count;
    return 0;
}

/* Our own copy: what is in the store, without those who are dead. */
int mu_rdzv_refresh_view(struct mu_rdzv *r)
{
    int rc = reserve_dead(r, r->sights.doc.count);

    if (rc == 0)
        rc = mu_doc_copy(&r->doc, &r->sights.doc);
    if (rc < 0)
        return rc;
    r->dead_count = mu_liveness_dead(&r->sights, &r->me, mu_rdzv_death_age_ms(&r->settings), r->dead);
    mu_rules_remove_dead(&r->doc, &r->settings, r->dead, r->dead_count);
    return 0;
}

static void note_absent(struct mu_rdzv *r)
{
    for (size_t i = 0; i < r->world.count; i++) {
        struct presence *presence = &r->presences[i];

        if (mu_doc_find(&r->doc, &r->world.members[i]) != NULL) {
            presence->state = PRESENT;
        } else if (presence->state == PRESENT) {
            presence->state = mu_doc_find(&r->sights.doc, &r->world.members[i]) != NULL ? EXPIRED : LEFT;
            presence->since_ms = r->now_ms;
        }
    }
}

static bool same_progress(const struct mu_doc *a, const struct mu_doc *b)
{
    return a->round == b->round && a->complete == b->complete && a->closed == b->closed &&
           a->has_deadline == b->has_deadline && a->participants == b->participants && a->waiting == b->waiting &&
           a->spares == b->spares;
}

/* A first call ends for all at the same moment; they do not all write then. */
static void note_deadline(struct mu_rdzv *r, const struct mu_doc *before)
{
    const struct mu_doc *doc = &r->sights.doc;

    if (!doc->has_deadline || (before->has_deadline && before->deadline_us == doc->deadline_us))
        return;
    r->deadline_seen_ms = r->now_ms;
    r->complete_jitter_ms = mu_rng_below(&r->rng, doc->participants < 1000 ? 2 * doc->participants : 2000);
}

/* `fresh` is what is in the store. Leaves there what was before. */
int mu_rdzv_see(struct mu_rdzv *r, struct mu_doc *fresh, enum copy_state from)
{
    bool first = r->copy == COPY_NONE;
    int rc = mu_liveness_see(&r->sights, fresh, r->main_sent_ms, r->now_ms, r->settings.keep_alive_ms);

    if (rc < 0)
        return rc;
    r->copy = from;
    note_deadline(r, fresh);
    if (r->idle_rings >= MU_RDZV_IDLE_RINGS_MAX) {
        r->idle_rings = 0;
        mu_rdzv_set_bell(r, BELL_LATER);
    } else if (r->bell_state != BELL_PARKED) {
        mu_rdzv_set_bell(r, BELL_NONE);
    }
    rc = mu_rdzv_refresh_view(r);
    if (rc < 0)
        return rc;
    note_absent(r);
    mu_rdzv_look_for_host(r);
    r->all_ours = true;
    for (size_t i = 0; i < r->sights.doc.count; i++)
        r->all_ours &= mu_node_is_ours(&r->sights.doc.members[i].node);
    r->spare = mu_doc_has(&r->sights.doc, &r->me, MU_DOC_SPARE);
    if (is_joining(r) && r->now_ms <= r->deadline_ms)
        note_who_came(r);
    if (is_joining(r) && (first || !same_progress(fresh, &r->sights.doc)))
        tell(r, MU_PART_TELL_PROGRESS);
    if (r->removed_count == 0)
        mu_doc_done(fresh); /* nobody needs what was before */
    return 0;
}

/* The token may be the value itself, or only stand for it. */
int mu_rdzv_keep_token(struct mu_rdzv *r, enum value_state value, struct mu_slice token, size_t size)
{
    int rc = mu_buf_assign(&r->token, token);

    r->size = size;
    mu_rdzv_set_value(r, rc == 0 ? value : VALUE_NONE);
    return rc;
}

static void on_document(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    struct muster_error error = { 0 };
    int rc = MUSTER_ERDZV_STATE;

    if (!event->found) {
        mu_rdzv_is_up(r);
        mu_rdzv_on_missing(r);
        return;
    }
    r->incoming.dialect = r->sights.doc.dialect;
    if (event->error == NULL)
        rc = r->codec->decode(event->bytes, &r->incoming, &error);
    if (rc == MUSTER_ERDZV_STATE && event->error == NULL && r->codec->is_other_layout(event->bytes)) {
        mu_rdzv_refuse(r, &error);
        return;
    }
    mu_rdzv_is_up(r);
    mu_rdzv_note_ring(r, event->token);
    if (rc == MUSTER_ERDZV_STATE) {
        mu_rdzv_on_foreign(r, event, event->error != NULL ? event->error : &error);
        return;
    }
    if (rc < 0 || mu_rdzv_keep_token(r, VALUE_FINE, event->token, event->bytes.len) < 0 ||
        mu_rdzv_see(r, &r->incoming, COPY_STORED) < 0)
        mu_rdzv_try_later(r);
    else
        mu_rdzv_evaluate(r);
}

void mu_rdzv_on_state(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    r->bell = event->bell;
    on_document(r, event);
}

/* A little early, and not in step with the others. Each is a write of the whole document, so those of very many members
 * come later, but well before anybody is taken for dead. */
static uint64_t next_beat_ms(struct mu_rdzv *r, uint64_t last_ms)
{
    uint64_t wanted = r->settings.keep_alive_ms, most = mu_rdzv_death_age_ms(&r->settings) / 5 * 3;
    uint64_t slow = (uint64_t)r->sights.doc.count * r->size / (MU_RDZV_POLL_BYTES_S / 1000);

    if (r->has_turns && slow > wanted)
        wanted = slow < most || most < wanted ? slow : most;
    return last_ms + wanted - mu_rng_below(&r->rng, wanted / 5 + 1);
}

/* The nodes' names stay where they are: in the document that was, until the next step. */
static void note_removed(struct mu_rdzv *r)
{
    struct mu_node *nodes = r->removed;
    size_t room = r->removed_room;

    r->removed = r->dead;
    r->removed_room = r->dead_room;
    r->removed_count = r->dead_count;
    r->dead = nodes;
    r->dead_room = room;
    r->dead_count = 0;
}

void mu_rdzv_on_written(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    struct plan plan = r->plan;
    struct mu_rdzv_effect *synced = push(r, MU_RDZV_DO_SYNCED);

    synced->written = event->written;
    synced->beat = event->written && r->phase == MU_RDZV_PHASE_MEMBER && plan.beats;
    if (!event->written) {
        mu_rdzv_back_off(r);
        on_document(r, event);
        return;
    }
    mu_rdzv_is_up(r);
    r->maybe_in = true;
    r->idle_rings = 0; /* our own ring will bring nothing new to us */
    r->lost_writes = 0;
    r->write_after_ms = 0;
    if (plan.beats) {
        r->beat_us = r->planned_us;
        r->beat_sent_ms = r->main_sent_ms;
        r->beat_due_ms = next_beat_ms(r, r->main_sent_ms);
    }
    if (r->phase == MU_RDZV_PHASE_EXITING && plan.phase == MU_RDZV_PHASE_JOINING) {
        mu_rdzv_become(r, MU_RDZV_PHASE_JOINING);
        r->exit_round = -1;
    }
    note_removed(r);
    if (plan.rings && r->has_bell)
        push(r, MU_RDZV_DO_RING);
    if (r->turn_state == TURN_HELD && plan.used_turn)
        mu_rdzv_give_turn(r);
    if (mu_rdzv_keep_token(r, VALUE_FINE, event->token, plan.size) < 0 || mu_doc_copy(&r->incoming, &r->doc) < 0 ||
        mu_rdzv_see(r, &r->incoming, COPY_STORED) < 0)
        mu_rdzv_try_later(r);
    else
        mu_rdzv_evaluate(r);
}
