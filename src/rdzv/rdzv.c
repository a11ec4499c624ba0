/* One node's part in a dynamic rendezvous.
 *
 * Happy path: JOIN takes a turn; when it has come the document is read; the rules say "add me"; the changed copy is
 * written, the turn given on. Then the bell is parked and the document read now and then, until somebody has marked the
 * round complete; the digest of that document is settled, and the owner told. A member writes heartbeats, and tells of
 * nodes that are missing, waiting or closing.
 *
 * A lost write brings the winner's document, on which the rules are asked again; the next write waits a random moment.
 * A failed request is tried again after a growing delay: whether a failed write took place shows in the next read, and
 * the rules do not mind. A document that is gone is written again by a member that holds it. */
#include "rdzv/rdzv_parts.h"

#include "base/texts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Names ---- */

MU_DEFINE_TEXTS(mu_rdzv_event_text, enum mu_rdzv_event_type, MU_RDZV_EVENTS)

MU_DEFINE_TEXTS(mu_rdzv_effect_text, enum mu_rdzv_effect_type, MU_RDZV_EFFECTS)

MU_DEFINE_TEXTS(mu_rdzv_phase_text, enum mu_rdzv_phase, MU_RDZV_PHASES)

/* ---- Life ---- */

int mu_rdzv_new(const struct mu_rdzv_config *config, struct mu_rdzv **ret_rdzv, struct muster_error *reterr)
{
    struct mu_rdzv *r = calloc(1, sizeof *r);

    if (r == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    r->name = mu_slice_copy(config->me.name);
    r->endpoint = config->endpoint != NULL ? strdup(config->endpoint) : NULL;
    if (r->name == NULL || (config->endpoint != NULL && r->endpoint == NULL)) {
        mu_rdzv_free(r);
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    }
    r->me = config->me;
    r->me.name = mu_slice(r->name, config->me.name.len);
    r->settings = config->settings;
    r->codec = config->codec != NULL ? config->codec : &mu_doc_codec_pickle;
    r->has_bell = config->has_bell;
    r->has_turns = config->has_turns;
    r->has_settle = config->has_settle;
    r->shares_store = config->shares_store;
    r->rng = mu_rng_seeded(config->seed);
    mu_liveness_init(&r->sights, config->hash_seed, config->dialect);
    mu_doc_init(&r->doc, config->hash_seed, config->dialect);
    mu_doc_init(&r->incoming, config->hash_seed, config->dialect);
    r->phase = MU_RDZV_PHASE_IDLE;
    r->exit_round = r->entered_round = -1;
    r->retry_ms = MU_RDZV_RETRY_MS;
    *ret_rdzv = r;
    return 0;
}

void mu_rdzv_free(struct mu_rdzv *r)
{
    if (r == NULL)
        return;
    mu_rdzv_forget_world(r);
    mu_liveness_done(&r->sights);
    mu_doc_done(&r->doc);
    mu_doc_done(&r->incoming);
    mu_buf_done(&r->token);
    mu_buf_done(&r->bytes);
    free(r->dead);
    free(r->removed);
    free(r->host_name);
    free(r->name);
    free(r->endpoint);
    free(r);
}

/* ---- What is asked ---- */

#define FROM(phase) (1U << MU_RDZV_PHASE_##phase)

/* From which phases each of them is entered. */
static const unsigned entered_from[] = {
    [MU_RDZV_PHASE_IDLE] = FROM(IDLE) | FROM(EXITING) | FROM(JOINING) | FROM(SETTLING) | FROM(MEMBER) | FROM(LEAVING),
    [MU_RDZV_PHASE_EXITING] = FROM(IDLE) | FROM(MEMBER) | FROM(EXITING) | FROM(JOINING) | FROM(SETTLING),
    [MU_RDZV_PHASE_JOINING] = FROM(EXITING) | FROM(JOINING) | FROM(SETTLING),
    [MU_RDZV_PHASE_SETTLING] = FROM(EXITING) | FROM(JOINING),
    [MU_RDZV_PHASE_MEMBER] = FROM(EXITING) | FROM(JOINING) | FROM(SETTLING),
    [MU_RDZV_PHASE_LEAVING] =
        FROM(IDLE) | FROM(EXITING) | FROM(JOINING) | FROM(SETTLING) | FROM(MEMBER) | FROM(LEAVING),
};

void mu_rdzv_become(struct mu_rdzv *r, enum mu_rdzv_phase phase)
{
    assert((entered_from[phase] & 1U << r->phase) != 0);
    r->phase = phase;
    switch (phase) {
    case MU_RDZV_PHASE_IDLE:
        mu_rdzv_set_bell(r, BELL_NONE);
        mu_rdzv_hold_back(r, false);
        break;
    case MU_RDZV_PHASE_SETTLING:
        assert(r->main_id != 0 && r->main_type == MU_RDZV_DO_SETTLE);
        break;
    case MU_RDZV_PHASE_MEMBER:
        assert(has_world(r) && r->world.round == r->sights.doc.round && r->copy == COPY_STORED);
        break;
    case MU_RDZV_PHASE_LEAVING:
        assert(r->maybe_in || is_writing(r));
        break;
    case MU_RDZV_PHASE_EXITING:
    case MU_RDZV_PHASE_JOINING:
        break;
    }
}

void mu_rdzv_set_close(struct mu_rdzv *r, enum close_state state)
{
    assert(state != CLOSE_TOLD || r->doc.closed || r->sights.doc.closed);
    r->close = state;
}

/* It is not asked for any more. */
static void end_close(struct mu_rdzv *r)
{
    mu_rdzv_set_close(r, r->sights.doc.closed ? CLOSE_TOLD : CLOSE_NONE);
}

/* Answers to what is under way are dropped; a write may still take place. */
void mu_rdzv_abandon(struct mu_rdzv *r)
{
    r->maybe_in |= is_writing(r);
    r->main_id = 0;
    r->lost_writes = 0;
    r->write_after_ms = 0;
    mu_rdzv_hold_back(r, false);
    mu_rdzv_give_turn(r);
}

static void on_join(struct mu_rdzv *r)
{
    assert(!is_joining(r) && r->phase != MU_RDZV_PHASE_LEAVING);
    if (r->phase == MU_RDZV_PHASE_MEMBER) {
        r->hold_ms = mu_rules_hold_ms(r->hold_ms, r->now_ms - r->joined_ms);
        r->exit_since_ms = r->now_ms;
    }
    mu_rdzv_become(r, MU_RDZV_PHASE_EXITING);
    r->op_start_ms = r->now_ms;
    r->deadline_ms = r->now_ms + r->settings.join_ms;
    (void)snprintf(r->came, sizeof r->came, "timed out after %llu s: the store has shown no document",
                   (unsigned long long)(r->settings.join_ms / 1000));
    r->spare = r->turn_in_vain = false;
    if (!r->has_turns || is_away(r) || r->turn_state == TURN_HELD)
        mu_rdzv_look_now(r);
    else if (r->turn_state == TURN_NONE)
        mu_rdzv_take_turn(r);                /* we will want to write; the document is read when it is our turn */
    if (is_away(r) && r->look == LOOK_RETRY) /* before it is given up, however long the pause has become */
        r->retry_at_ms = sooner(r->retry_at_ms, r->now_ms + MU_RDZV_LAST_TRY_MS / 2);
}

static void on_leave(struct mu_rdzv *r)
{
    if (!r->maybe_in && !is_writing(r)) {
        mu_rdzv_abandon(r);
        mu_rdzv_become(r, MU_RDZV_PHASE_IDLE);
        tell(r, MU_PART_TELL_LEFT);
        return;
    }
    if (r->main_type == MU_RDZV_DO_SETTLE)
        r->main_id = 0;
    mu_rdzv_become(r, MU_RDZV_PHASE_LEAVING);
    r->op_start_ms = r->now_ms;
    r->deadline_ms = r->now_ms + r->settings.close_ms;
    r->spare = false;
    mu_rdzv_set_look(r, LOOK_NOW);
}

static void on_close(struct mu_rdzv *r)
{
    mu_rdzv_set_close(r, CLOSE_ASKED);
    r->close_deadline_ms = r->now_ms + r->settings.close_ms;
    mu_rdzv_look_now(r);
}

void mu_rdzv_answer_look(struct mu_rdzv *r)
{
    struct mu_part_news *news;

    if (!r->looking)
        return;
    r->looking = false;
    news = tell(r, MU_PART_TELL_LOOKED);
    news->round = -1;
    if (r->error.code != 0) {
        news->error = &r->error;
        return;
    }
    if (mu_rdzv_doc_exists(r))
        news->round = r->sights.doc.round;
    news->count = (int64_t)r->doc.waiting;
    news->closed = r->sights.doc.closed;
}

static void on_look(struct mu_rdzv *r)
{
    bool is_known = r->copy != COPY_NONE && !is_away(r) && r->now_ms - r->sights.seen_ms < MU_RDZV_POLL_MS;

    r->looking = true;
    /* While it writes, our copy is what is to be in the store; a write that was given up has left it so. */
    if (is_known && !is_writing(r) && mu_rdzv_refresh_view(r) == 0) {
        r->error = (struct muster_error){ 0 };
        mu_rdzv_answer_look(r);
    } else {
        mu_rdzv_look_now(r);
    }
}

static void on_stop(struct mu_rdzv *r)
{
    mu_rdzv_abandon(r);
    mu_rdzv_become(r, MU_RDZV_PHASE_IDLE);
    end_close(r);
    r->looking = false;
    if (r->look == LOOK_NOW)
        mu_rdzv_set_look(r, LOOK_SLOWLY);
    tell(r, MU_PART_TELL_LEFT);
}

/* ---- What did not work ---- */

void mu_rdzv_fail_join(struct mu_rdzv *r)
{
    mu_rdzv_abandon(r);
    mu_rdzv_become(r, MU_RDZV_PHASE_IDLE);
    mu_rdzv_forget_world(r);
    tell_failed(r, MU_PART_ON_JOIN);
}

void mu_rdzv_say_timeout(struct mu_rdzv *r)
{
    struct muster_error cause = r->error;

    if (is_away(r))
        (void)mu_fail(&r->error, MUSTER_ERDZV_CONNECTION,
                      "timed out after %llu s: the store has not answered for %llu s: %s",
                      (unsigned long long)(r->settings.join_ms / 1000),
                      (unsigned long long)((r->now_ms - r->away_since_ms) / 1000), cause.text);
    else
        (void)mu_fail(&r->error, MUSTER_ERDZV_TIMEOUT, "%s", r->came);
}

static void say_not_done(struct mu_rdzv *r, const char *what)
{
    struct muster_error cause = r->error;

    (void)mu_fail(&r->error, is_away(r) ? MUSTER_ERDZV_CONNECTION : MUSTER_ERDZV_TIMEOUT, "not %s within %llu s%s%s",
                  what, (unsigned long long)(r->settings.close_ms / 1000), is_away(r) ? ": " : "",
                  is_away(r) ? cause.text : "");
}

void mu_rdzv_refuse_close(struct mu_rdzv *r)
{
    assert(r->close == CLOSE_ASKED);
    end_close(r);
    tell_failed(r, MU_PART_ON_CLOSE);
}

void mu_rdzv_fail_close(struct mu_rdzv *r)
{
    say_not_done(r, "closed");
    mu_rdzv_refuse_close(r);
}

void mu_rdzv_fail_leave(struct mu_rdzv *r)
{
    say_not_done(r, "out of the document");
    mu_rdzv_abandon(r);
    mu_rdzv_become(r, MU_RDZV_PHASE_IDLE);
    tell_failed(r, MU_PART_ON_LEAVE);
}

/* ---- Steps ---- */

/* True when the answer is one that we wait for; it is then no longer waited for. */
static bool takes_answer(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    uint64_t *const ids[] = { &r->main_id, &r->park_id, &r->turn_id };

    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (event->id != 0 && event->id == *ids[i]) {
            *ids[i] = 0;
            return true;
        }
    return false;
}

/* A store that answers on another connection is not silent, though we cannot get at the document. */
static void note_life(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    bool answered = event->type == MU_RDZV_RUNG || event->type == MU_RDZV_TURN ||
                    (event->type == MU_RDZV_TURN_CAME && event->found);

    if (answered && r->store == STORE_SILENT)
        r->away_since_ms = r->now_ms;
}

static void on_answer(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    bool main = event->id == r->main_id, turn = event->id == r->turn_id;

    if (main && r->main_type == MU_RDZV_DO_WRITE)
        mu_buf_done(&r->bytes);
    if (!takes_answer(r, event)) {
        if (event->type == MU_RDZV_TURN) /* we do not want it any more, but somebody waits for its end */
            push(r, MU_RDZV_DO_TURN_GIVE)->turn = event->turn;
        return;
    }
    note_life(r, event);
    switch (event->type) {
    case MU_RDZV_STATE:
        mu_rdzv_on_state(r, event);
        break;
    case MU_RDZV_WRITTEN:
        mu_rdzv_on_written(r, event);
        break;
    case MU_RDZV_SETTLED:
        mu_rdzv_on_settled(r, event);
        break;
    case MU_RDZV_RUNG:
        mu_rdzv_on_rung(r);
        break;
    case MU_RDZV_TURN:
        mu_rdzv_on_turn(r, event);
        break;
    case MU_RDZV_TURN_CAME:
        mu_rdzv_on_turn_came(r, event);
        break;
    default:
        assert(event->type == MU_RDZV_REQUEST_FAILED);
        if (main ||
            event->error->code != MUSTER_ETIMEOUT) /* a long wait may run out of time though the store is well */
            mu_liveness_interrupt(&r->sights, r->now_ms);
        if (main)
            mu_rdzv_on_request_failed(r, event);
        else if (turn)
            mu_rdzv_hold_turn(r); /* it is only a hint: go on without */
        else
            mu_rdzv_set_bell(r, BELL_LATER);
        break;
    }
}

/* What holds between two steps. */
static void check(const struct mu_rdzv *r)
{
    assert(r->phase != MU_RDZV_PHASE_MEMBER || has_world(r));
    assert(r->phase != MU_RDZV_PHASE_SETTLING || (r->main_id != 0 && r->main_type == MU_RDZV_DO_SETTLE));
    assert((r->bell_state == BELL_PARKED) == (r->park_id != 0));
    assert((r->turn_id != 0) == (r->turn_state == TURN_TAKING || r->turn_state == TURN_WAITING));
    assert(r->turn_state != TURN_NONE || r->turn == 0);
    assert(r->told_store <= r->store);
    assert(r->look != LOOK_RETRY || r->main_id == 0);
    assert(!is_away(r) || !is_active(r) || r->look == LOOK_RETRY || r->main_id != 0); /* it is asked again */
    assert(r->copy != COPY_NONE || !has_world(r));
    assert(r->lost_count <= r->world.count && r->told_lost <= r->world.count);
    assert(r->doc.participants <= r->doc.count && r->doc.waiting <= r->doc.count && r->doc.spares <= r->doc.count);
}

void mu_rdzv_step(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out)
{
    assert(event->type != MU_RDZV_REQUEST_FAILED || event->error != NULL);
    assert(!event->written || event->found);
    check(r);
    out->count = 0;
    r->out = out;
    r->now_ms = event->now_ms;
    r->wall_us = event->wall_us;
    r->removed_count = 0;
    mu_rdzv_note_pause(r, event);
    switch (event->type) {
    case MU_RDZV_JOIN:
        on_join(r);
        break;
    case MU_RDZV_LEAVE:
        on_leave(r);
        break;
    case MU_RDZV_CLOSE:
        on_close(r);
        break;
    case MU_RDZV_LOOK:
        on_look(r);
        break;
    case MU_RDZV_STOP:
        on_stop(r);
        break;
    case MU_RDZV_HOST:
        mu_rdzv_on_host(r, event->node);
        break;
    case MU_RDZV_TIME:
        break;
    case MU_RDZV_STATE:
    case MU_RDZV_WRITTEN:
    case MU_RDZV_SETTLED:
    case MU_RDZV_RUNG:
    case MU_RDZV_TURN:
    case MU_RDZV_TURN_CAME:
    case MU_RDZV_REQUEST_FAILED:
        on_answer(r, event);
        break;
    }
    mu_rdzv_pump(r);
    check(r);
}

/* ---- Questions ---- */

enum mu_rdzv_phase mu_rdzv_phase(const struct mu_rdzv *r)
{
    return r->phase;
}

bool mu_rdzv_doc_exists(const struct mu_rdzv *r)
{
    return r->value == VALUE_FINE || r->value == VALUE_REFUSED;
}

const struct mu_doc *mu_rdzv_doc(const struct mu_rdzv *r)
{
    return &r->doc;
}

const struct mu_rdzv_world *mu_rdzv_world(const struct mu_rdzv *r)
{
    return r->phase == MU_RDZV_PHASE_MEMBER ? &r->world : NULL;
}

bool mu_rdzv_store_refuses(const struct mu_rdzv *r)
{
    return r->store == STORE_REFUSED;
}

struct mu_rdzv_nodes mu_rdzv_lost(const struct mu_rdzv *r)
{
    return (struct mu_rdzv_nodes){ r->lost, r->lost_count };
}

struct mu_rdzv_deeds mu_rdzv_deeds(const struct mu_rdzv *r)
{
    return (struct mu_rdzv_deeds){ r->plan.deeds, r->plan.deeds_count };
}

struct mu_rdzv_nodes mu_rdzv_removed(const struct mu_rdzv *r)
{
    return (struct mu_rdzv_nodes){ r->removed, r->removed_count };
}

const struct muster_error *mu_rdzv_error(const struct mu_rdzv *r)
{
    return &r->error;
}

struct mu_part_progress mu_rdzv_progress(const struct mu_rdzv *r)
{
    const struct mu_doc *doc = &r->doc;

    return (struct mu_part_progress){
        .round = doc->round,
        .joined = (int64_t)doc->participants,
        .waiting = (int64_t)doc->waiting,
        .spares = (int64_t)doc->spares,
        .spare = mu_doc_has(doc, &r->me, MU_DOC_SPARE),
        .last_call_until_ms = doc->has_deadline && !doc->complete ? mu_rdzv_last_call_end_ms(r) : NEVER,
        .deadline_ms = mu_rdzv_effective_deadline_ms(r),
    };
}
