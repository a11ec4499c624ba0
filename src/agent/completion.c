/* How a round ends, and how the job does. See the diagram in completion.h. */
#include "agent/completion.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define MARK "%sdone/%" PRId64
#define COUNT "%sdone_count"
#define MARK_113 "%storchelastic/agent/terminal_state%" PRId64
#define MEMBERS "%storchelastic/agent/terminal_state/num_members"
#define LAST "%storchelastic/agent/terminal_state/last_member"
#define FAILED_KEY "%sfailed"
#define NOTE "%sleft/%" PRId64
#define UNTOLD "-"                    /* in its place, when nobody is to hear anything */
#define NOTHING "?"                   /* what a look at a verdict or a note gets where there is none */
enum { MARK_MS = MU_ASK_TIMEOUT_MS }; /* a mark is written, however short the wait may be */
enum { TEXT_MAX = 1024, WHO_SHOWN_MAX = 400 };
enum { SPARE_SLOTS = 6, BARRIER_SPARE_SLOTS = 11 }; /* that are left to others by what is asked in a window */

enum what {
    MARK_SET,     /* our own */
    DONE_ADD,     /* how many of us are done; with a PyTorch member: are counted in its barrier */
    MEMBERS_ADD,  /* PyTorch's barrier */
    LAST_GET,     /* the last has come */
    LAST_SET,     /* ... and is us */
    BARRIER_113,  /* a mark of 1.13 */
    FIN_SET,      /* 1.13: we have seen all marks */
    FIN_113,      /* ... and so have they */
    BUDGET_LOOK,  /* which round is the job's? */
    VERDICT_SET,  /* ours, unless there is one */
    VERDICT_LOOK, /* whatever there is */
    CLOSED_COUNT, /* the barrier, when members vanish from a closed job */
    PROBE,        /* is the store's host there? */
    CHECK_MARK,   /* was this one done? */
    NOTE_LOOK,    /* has it left, and why? Index: in f->gone */
    NOTE_SET,     /* our own */
    STOCK_COUNT,  /* how many have come to the barrier ... */
    OUR_COUNT,    /* ... and how many of them are ours */
    FAILED_GET,   /* has a worker of somebody's failed? */
    FAILED_SET,   /* one of ours has */
};

enum seen { UNSEEN, NONE, SUCCEEDED, FAILED }; /* of a verdict */

struct mu_completion {
    char *run_id, *prefix, *job_prefix, *own_prefix; /* R, M, T */
    size_t prefix_room;
    char node[MU_COMPLETION_NODE_MAX], host[MU_COMPLETION_NODE_MAX];
    uint64_t barrier_ms;

    enum mu_completion_state state;
    struct mu_completion_start start;
    struct mu_asks asks;
    uint64_t deadline_ms; /* of the state */
    uint64_t wait_until_ms;

    /* What became of the members. */
    uint8_t *vanished, *foreign, *marked; /* by rank; foreign: vanished, and PyTorch's, of which the counter tells */
    int64_t foreign_count, marked_count, vanished_count;
    bool undone; /* one of them is lost */
    bool removed, closed, told_lost, told_failed;
    bool noted;              /* that we leave the round */
    bool said_failed;        /* that a worker of ours has */
    struct mu_vanished gone; /* the first of those who vanished, for people */
    char who[TEXT_MAX];
    int64_t waiting; /* nodes that want to join, while it is not known yet who else is gone; 0: none */
    char waiting_text[TEXT_MAX];

    /* Going through the marks. */
    bool sweeping, full, second_look; /* full: of all, not only of those who vanished */
    bool missing;                     /* one mark at least is: the sweep need not go on for those who are there */
    int64_t cursor, stock_count, our_count;
    int64_t barrier_cursor; /* through those of 1.13 */
    uint64_t look_again_ms, scan_ms;
    bool uncounted; /* nobody knows whether we are in the counter */

    /* A closed job. */
    bool judging_closed;
    enum seen seen;
    struct mu_verdict verdict;
    int64_t closed_count; /* -1: not known */

    enum mu_completion_end end; /* what comes of VERDICT and CLOSING */
    bool has_verdict;           /* it is written, or somebody else's is there */
    bool fins;                  /* 1.13: all marks are there */
    uint64_t fin_ms;            /* ... and so long everybody has to say that it has seen them */
    bool down;                  /* the rendezvous says that the store is away */
    uint64_t away_ms;           /* since when the store has not answered; UINT64_MAX: it does, as far as we know */
    uint64_t gone_ms;           /* since when its host refuses connections; UINT64_MAX: it does not */
    char verdict_text[MU_VERDICT_TEXT_MAX];
    char text[TEXT_MAX], warning[TEXT_MAX];
};

const char *mu_completion_state_text(enum mu_completion_state state)
{
    switch (state) {
#define X(name, text)                                                                                                  \
    case MU_COMPLETION_##name:                                                                                         \
        return text;
        MU_COMPLETION_STATES(X)
#undef X
    }
    return "?";
}

const char *mu_completion_end_text(enum mu_completion_end end)
{
    switch (end) {
#define X(name, text)                                                                                                  \
    case MU_COMPLETION_END_##name:                                                                                     \
        return text;
        MU_COMPLETION_ENDS(X)
#undef X
    }
    return "?";
}

/* ---- The verdict ---- */

/* Text for JSON: as much of it as fits and is UTF-8. */
static json_t *json_text(const char *text)
{
    json_t *json = json_string(text);

    return json != NULL ? json : json_string("(not UTF-8)");
}

int mu_verdict_write(const struct mu_verdict *verdict, char text[static MU_VERDICT_TEXT_MAX])
{
    json_t *json =
        json_pack("{s:s, s:o, s:I, s:o}", "verdict", verdict->succeeded ? "succeeded" : "failed", "node",
                  json_text(verdict->node), "rank", (json_int_t)verdict->rank, "cause", json_text(verdict->cause));
    size_t len = json == NULL ? 0 : json_dumpb(json, text, MU_VERDICT_TEXT_MAX, JSON_ENSURE_ASCII);

    json_decref(json);
    return len == 0 || len >= MU_VERDICT_TEXT_MAX ? MUSTER_ENOMEM : (int)len;
}

static void cut(char *to, size_t room, const char *from)
{
    (void)snprintf(to, room, "%s", from);
    for (char *c = to; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' '; /* one line, whatever others put there */
    }
}

int mu_verdict_read(struct mu_slice text, struct mu_verdict *ret_verdict, struct muster_error *reterr)
{
    json_t *json = text.len > MU_VERDICT_TEXT_MAX ? NULL : json_loadb(text.data, text.len, 0, NULL);
    const char *verdict = json_string_value(json_object_get(json, "verdict"));
    const char *node = json_string_value(json_object_get(json, "node"));
    const char *cause = json_string_value(json_object_get(json, "cause"));
    const json_t *rank = json_object_get(json, "rank");
    bool succeeded = verdict != NULL && strcmp(verdict, "succeeded") == 0;
    bool good = succeeded || (verdict != NULL && strcmp(verdict, "failed") == 0);

    if (good) {
        *ret_verdict = (struct mu_verdict){ .succeeded = succeeded, .rank = -1 };
        if (json_is_integer(rank))
            ret_verdict->rank = json_integer_value(rank);
        cut(ret_verdict->node, sizeof ret_verdict->node, node == NULL ? "" : node);
        cut(ret_verdict->cause, sizeof ret_verdict->cause, cause == NULL ? "" : cause);
    }
    json_decref(json);
    return good ? 0 : mu_fail(reterr, MUSTER_EPROTOCOL, "this is no verdict (%zu bytes)", text.len);
}

/* ---- Making one ---- */

int mu_completion_new(const struct mu_completion_config *config, struct mu_completion **ret_finish,
                      struct muster_error *reterr)
{
    struct mu_completion *f = calloc(1, sizeof *f);

    if (f == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the end of a job");
    f->prefix_room = strlen(config->run_id) + MU_ROUND_PREFIX_EXTRA;
    f->run_id = strdup(config->run_id);
    f->prefix = malloc(f->prefix_room);
    f->job_prefix = malloc(f->prefix_room);
    f->own_prefix = malloc(f->prefix_room);
    f->barrier_ms = config->barrier_ms;
    f->deadline_ms = f->look_again_ms = f->scan_ms = f->away_ms = f->gone_ms = f->fin_ms = UINT64_MAX;
    cut(f->node, sizeof f->node, config->node);
    cut(f->host, sizeof f->host, config->host != NULL ? config->host : config->node);
    if (f->run_id == NULL || f->prefix == NULL || f->job_prefix == NULL || f->own_prefix == NULL ||
        mu_asks_init(&f->asks, f->prefix_room, MU_VERDICT_TEXT_MAX, NULL) < 0) {
        mu_completion_free(f);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the end of a job");
    }
    mu_round_job_prefix(f->job_prefix, f->prefix_room, config->run_id);
    *ret_finish = f;
    return 0;
}

void mu_completion_free(struct mu_completion *f)
{
    if (f == NULL)
        return;
    mu_asks_done(&f->asks);
    free(f->vanished);
    free(f->run_id);
    free(f->prefix);
    free(f->job_prefix);
    free(f->own_prefix);
    free(f);
}

/* ---- Words ---- */

static struct mu_completion_effect *emit(struct mu_completion_effects *out, enum mu_completion_effect_type type)
{
    assert(out->count < MU_COMPLETION_EFFECTS_MAX);
    out->items[out->count] = (struct mu_completion_effect){ .type = type };
    return &out->items[out->count++];
}

static bool bit(const uint8_t *bits, int64_t rank)
{
    return bits != NULL && (bits[rank / 8] >> (rank % 8) & 1) != 0;
}

/* Who is missed, and what is known of it. */
static const char *who(struct mu_completion *f)
{
    for (size_t i = 0; i < f->gone.count; i++)
        f->gone.members[i].done = f->gone.members[i].rank >= 0 && bit(f->marked, f->gone.members[i].rank);
    mu_vanished_say(&f->gone, f->who, sizeof f->who);
    return f->who;
}

static void name_verdict(struct mu_completion *f)
{
    (void)snprintf(f->text, sizeof f->text, "the job has failed: %s", f->verdict.cause);
}

static void warn(struct mu_completion *f, const char *what, const struct muster_error *error,
                 struct mu_completion_effects *out)
{
    (void)snprintf(f->warning, sizeof f->warning, "%s: %.600s; going on without", what, error->text);
    emit(out, MU_COMPLETION_DO_WARN)->text = f->warning;
}

/* ---- Kinds of rounds ---- */

static bool is_tracked(const struct mu_completion *f) /* we hear of its members, and it can be closed */
{
    return f->start.round >= 0;
}

static bool is_private(const struct mu_completion *f) /* nobody of PyTorch looks: all keys are ours */
{
    return is_tracked(f) && f->start.all_ours && f->start.has_store;
}

static bool is_old(const struct mu_completion *f) /* the keys are those of 1.13 */
{
    return f->start.old_dialect && !is_private(f);
}

static bool has_marks(const struct mu_completion *f) /* ours, beside what PyTorch writes */
{
    return is_tracked(f) && f->start.has_store && !is_old(f);
}

static bool is_done(const struct mu_completion *f)
{
    return f->state == MU_COMPLETION_MARKING || f->state == MU_COMPLETION_WAITING;
}

static void set_bit(uint8_t *bits, int64_t rank)
{
    bits[rank / 8] |= (uint8_t)(1U << (rank % 8));
}

/* ---- The ends ---- */

static void be_idle(struct mu_completion *f, enum mu_completion_state state)
{
    f->state = state;
    f->deadline_ms = f->look_again_ms = f->scan_ms = f->gone_ms = f->fin_ms = UINT64_MAX;
    f->sweeping = f->judging_closed = false;
    mu_asks_drop(&f->asks);
}

/* With f->text filled in. */
static void end(struct mu_completion *f, enum mu_completion_end how, struct mu_completion_effects *out)
{
    struct mu_completion_effect *effect = emit(out, MU_COMPLETION_DO_END);

    effect->end = how;
    effect->text = f->text;
    be_idle(f, MU_COMPLETION_ENDED);
}

static void end_all_done(struct mu_completion *f, struct mu_completion_effects *out)
{
    (void)snprintf(f->text, sizeof f->text, "%s%" PRId64 " node%s done", f->start.world_size == 1 ? "" : "all ",
                   f->start.world_size, f->start.world_size == 1 ? " is" : "s are");
    end(f, MU_COMPLETION_END_ALL_DONE, out);
}

static void end_behind(struct mu_completion *f, struct mu_completion_effects *out)
{
    (void)snprintf(f->text, sizeof f->text,
                   "%.*s; this node's workers have succeeded, so it ends and the other nodes regroup", WHO_SHOWN_MAX,
                   who(f));
    end(f, MU_COMPLETION_END_BEHIND, out);
}

static void end_over(struct mu_completion *f, const char *text, struct mu_completion_effects *out)
{
    if (text != f->text)
        (void)snprintf(f->text, sizeof f->text, "%s", text);
    end(f, MU_COMPLETION_END_OVER, out);
}

static void end_written(struct mu_completion *f,
                        struct mu_completion_effects *out) /* the verdict, and all that follows it */
{
    if (f->end == MU_COMPLETION_END_ALL_DONE)
        end_all_done(f, out);
    else
        end(f, f->has_verdict || !f->start.has_store || !is_tracked(f) ? f->end : MU_COMPLETION_END_UNSAID, out);
}

/* ---- The last: verdict, close, let go ---- */

static void let_go(struct mu_completion *f, struct mu_completion_effects *out)
{
    struct mu_ask_slot *slot;

    if (f->end != MU_COMPLETION_END_ALL_DONE || is_old(f) || !f->start.has_store) {
        end_written(f, out);
        return;
    }
    f->state = MU_COMPLETION_FREEING;
    slot = is_private(f) ? mu_asks_add(&f->asks, MU_ASK_SET, LAST_SET, -1, "%slast", f->own_prefix)
                         : mu_asks_add(&f->asks, MU_ASK_SET, LAST_SET, -1, LAST, f->prefix);
    mu_asks_value(&f->asks, slot, mu_slice_str("<val_ignored>"));
}

/* The rendezvous says no more than that its store is away: is somebody there, and when does it answer again? */
static void probe(struct mu_completion *f)
{
    if ((f->state == MU_COMPLETION_CLOSING || f->state == MU_COMPLETION_WAITING) && f->start.has_store &&
        !mu_asks_has(&f->asks, PROBE))
        (void)mu_asks_add(&f->asks, MU_ASK_CHECK, PROBE, -1, "%sverdict", f->job_prefix);
}

static void close_job(struct mu_completion *f, struct mu_completion_effects *out)
{
    f->state = MU_COMPLETION_CLOSING;
    (void)emit(out, MU_COMPLETION_DO_CLOSE);
    if (f->down)
        probe(f);
}

static void write_verdict(struct mu_completion *f)
{
    struct mu_ask_slot *slot = mu_asks_add(&f->asks, MU_ASK_COMPARE_SET, VERDICT_SET, -1, "%sverdict", f->job_prefix);

    mu_asks_value(&f->asks, slot, mu_slice_str(f->verdict_text));
}

/* Our round is done, or has failed: is it still the job's? */
static void look_at_budget(struct mu_completion *f)
{
    struct mu_ask_slot *slot = mu_asks_add(&f->asks, MU_ASK_COMPARE_SET, BUDGET_LOOK, -1, "%sbudget", f->job_prefix);

    slot->ask.expected = mu_slice_str(NOTHING);
    mu_asks_value(&f->asks, slot, mu_slice_str(NOTHING));
}

/* With f->text as the cause, if there is one. */
static void give_verdict(struct mu_completion *f, enum mu_completion_end how, const char *cause, uint64_t now_ms,
                         struct mu_completion_effects *out)
{
    struct mu_verdict verdict = { .succeeded = how == MU_COMPLETION_END_ALL_DONE, .rank = f->start.rank };
    int len;

    be_idle(f, MU_COMPLETION_VERDICT);
    f->end = how;
    f->has_verdict = false;
    f->deadline_ms = now_ms + MU_COMPLETION_CLOSE_MS;
    cut(verdict.node, sizeof verdict.node, f->host);
    cut(verdict.cause, sizeof verdict.cause, cause);
    len = mu_verdict_write(&verdict, f->verdict_text);
    f->verdict_text[len < 0 ? 0 : len] = '\0';
    if (!is_tracked(f))
        let_go(f, out);
    else if (!f->start.has_store || len < 0)
        close_job(f, out);
    else if (is_private(f))
        look_at_budget(f);
    else
        write_verdict(f);
}

static void be_last(struct mu_completion *f, uint64_t now_ms, struct mu_completion_effects *out)
{
    give_verdict(f, MU_COMPLETION_END_ALL_DONE, "all workers have succeeded", now_ms, out);
}

/* ---- A closed job ---- */

static void look_at_verdict(struct mu_completion *f)
{
    struct mu_ask_slot *slot;

    if (!f->start.has_store || mu_asks_has(&f->asks, VERDICT_LOOK))
        return;
    slot = mu_asks_add(&f->asks, MU_ASK_COMPARE_SET, VERDICT_LOOK, -1, "%sverdict", f->job_prefix);
    slot->ask.expected = mu_slice_str(NOTHING); /* a missing key answers that, and stays missing */
    mu_asks_value(&f->asks, slot, mu_slice_str(NOTHING));
}

static void tell_failed(struct mu_completion *f, struct mu_completion_effects *out)
{
    if (f->told_failed)
        return;
    f->told_failed = true;
    emit(out, MU_COMPLETION_DO_JOB_FAILED)->text = f->text;
}

/* Members have vanished, and no round can follow. */
static void judge_closed(struct mu_completion *f, struct mu_completion_effects *out)
{
    if (!f->judging_closed || mu_asks_has(&f->asks, VERDICT_LOOK) || mu_asks_has(&f->asks, CLOSED_COUNT))
        return;
    f->judging_closed = false;
    if (f->seen != NONE || f->closed_count != 0)
        return;
    (void)snprintf(f->text, sizeof f->text, "the job was closed without a verdict; %.*s", WHO_SHOWN_MAX, who(f));
    tell_failed(f, out);
}

static void begin_judging_closed(struct mu_completion *f)
{
    f->judging_closed = true;
    f->seen = UNSEEN;
    f->closed_count = is_old(f) ? 0 : -1; /* 1.13 has no counter, and the mark of this one is missing */
    look_at_verdict(f);
    if (!f->start.has_store || is_old(f) || mu_asks_has(&f->asks, CLOSED_COUNT))
        return;
    if (is_private(f)) /* of 0: reads */
        (void)mu_asks_add(&f->asks, MU_ASK_ADD, CLOSED_COUNT, -1, COUNT, f->own_prefix);
    else
        (void)mu_asks_add(&f->asks, MU_ASK_ADD, CLOSED_COUNT, -1, MEMBERS, f->prefix);
}

static void take_verdict(struct mu_completion *f, const struct mu_answer *answer, struct mu_completion_effects *out)
{
    f->seen = NONE;
    if (answer->error == NULL && !mu_slice_equal(answer->value, mu_slice_str(NOTHING)) &&
        mu_verdict_read(answer->value, &f->verdict, NULL) == 0)
        f->seen = f->verdict.succeeded ? SUCCEEDED : FAILED;
    if (f->seen == FAILED) {
        name_verdict(f);
        if (is_done(f))
            end_over(f, f->text, out);
        else if (f->state == MU_COMPLETION_WATCHING)
            tell_failed(f, out);
    } else if (f->seen == SUCCEEDED && is_done(f)) {
        end_all_done(f, out);
    }
}

static void take_budget(struct mu_completion *f, const struct mu_answer *answer, struct mu_completion_effects *out)
{
    struct mu_restart_budget found;
    bool over = answer->error == NULL && mu_restart_budget_read(answer->value, &found) &&
                (found.round != f->start.round || found.tag != f->start.tag);

    if (over && f->end == MU_COMPLETION_END_ALL_DONE)
        end_over(f, "this node's workers have succeeded; the other nodes go on without it", out);
    else if (over)
        end(f, MU_COMPLETION_END_OUTDATED, out);
    else
        write_verdict(f);
}

/* There is a verdict: ours, or that of somebody who came before. */
static void verdict_written(struct mu_completion *f, const struct mu_answer *answer, struct mu_completion_effects *out)
{
    if (answer->error != NULL)
        warn(f, "write the verdict", answer->error, out);
    if (answer->error == NULL && f->end == MU_COMPLETION_END_ALL_DONE &&
        mu_verdict_read(answer->value, &f->verdict, NULL) == 0 && !f->verdict.succeeded) {
        name_verdict(f);
        end_over(f, f->text, out);
        return;
    }
    f->has_verdict = answer->error == NULL;
    close_job(f, out);
}

static void on_closed(struct mu_completion *f, struct mu_completion_effects *out)
{
    f->closed = true;
    if (f->state == MU_COMPLETION_CLOSING)
        let_go(f, out);
    else if (f->state == MU_COMPLETION_WATCHING || is_done(f))
        look_at_verdict(f);
}

/* ---- Notes of those who leave ---- */

/* Somebody may look for a note of ours. */
static bool is_missed(const struct mu_completion *f)
{
    return f->state == MU_COMPLETION_WATCHING && has_marks(f) && f->start.world_size > 1;
}

static void write_note(struct mu_completion *f, const struct mu_completion_event *event)
{
    struct mu_ask_slot *slot;
    char text[MU_VANISHED_NOTE_MAX];

    if (!is_missed(f))
        return;
    f->noted = true;
    mu_vanished_write_note(text, event->again ? MU_NOTE_AGAIN : MU_NOTE_LEFT, event->text == NULL ? "" : event->text);
    mu_asks_drop_what(&f->asks, NOTE_SET);
    slot = mu_asks_add(&f->asks, MU_ASK_SET, NOTE_SET, -1, NOTE, f->own_prefix, f->start.rank);
    mu_asks_value(&f->asks, slot, mu_slice_str(text));
}

/* ---- Workers that fail ---- */

static void listen(struct mu_completion *f)
{
    if (f->state == MU_COMPLETION_WATCHING && is_private(f) && f->start.world_size > 1 &&
        !mu_asks_has(&f->asks, FAILED_GET))
        (void)mu_asks_add(&f->asks, MU_ASK_GET, FAILED_GET, -1, FAILED_KEY, f->own_prefix);
}

static void write_failed(struct mu_completion *f, struct mu_slice text)
{
    struct mu_ask_slot *slot = mu_asks_add(&f->asks, MU_ASK_SET, FAILED_SET, -1, FAILED_KEY, f->own_prefix);

    mu_asks_value(&f->asks, slot, text);
}

static void tell_others(struct mu_completion *f, const struct mu_completion_event *event)
{
    struct mu_verdict failure = { .rank = event->rank };
    int len;

    if (f->state == MU_COMPLETION_WATCHING && !is_private(f))
        write_note(f, &(struct mu_completion_event){ .again = true, .text = event->text }); /* where nobody listens */
    if (f->state != MU_COMPLETION_WATCHING || f->closed || !is_private(f) || f->start.world_size == 1 || f->said_failed)
        return;
    f->said_failed = true;
    cut(failure.node, sizeof failure.node, f->host);
    cut(failure.cause, sizeof failure.cause, event->text == NULL ? "a worker has failed" : event->text);
    len = mu_verdict_write(&failure, f->verdict_text);
    if (len > 0)
        write_failed(f, mu_slice(f->verdict_text, (size_t)len));
}

/* A wait that nobody ends would stay in the store, and on our connection to it, beside those of the next round. Who is done
 * sees no other round. */
static void end_listening(struct mu_completion *f)
{
    bool waits = f->state == MU_COMPLETION_WATCHING && mu_asks_has(&f->asks, FAILED_GET) && !f->said_failed;

    be_idle(f, MU_COMPLETION_IDLE);
    if (waits)
        write_failed(f, mu_slice_str(UNTOLD));
}

static void take_failed(struct mu_completion *f, const struct mu_answer *answer, struct mu_completion_effects *out)
{
    struct mu_verdict failure;

    if (f->state != MU_COMPLETION_WATCHING || answer->error != NULL ||
        mu_verdict_read(answer->value, &failure, NULL) < 0 || failure.succeeded)
        return;
    (void)snprintf(f->text, sizeof f->text, "%s", failure.cause); /* names rank and host */
    emit(out, MU_COMPLETION_DO_PEER_FAILED)->text = f->text;
}

/* ---- Notes of those who have left ---- */

static bool may_have_note(const struct mu_completion *f, const struct mu_vanished_member *member)
{
    return has_marks(f) && member->ours && member->rank >= 0 && member->note == MU_NOTE_UNREAD;
}

static void read_notes(struct mu_completion *f)
{
    for (size_t i = 0; f->sweeping && i < f->gone.count && mu_asks_free(&f->asks) > SPARE_SLOTS; i++) {
        struct mu_vanished_member *member = &f->gone.members[i];
        struct mu_ask_slot *slot;

        if (!may_have_note(f, member))
            continue;
        member->note = MU_NOTE_ASKED;
        slot = mu_asks_add(&f->asks, MU_ASK_COMPARE_SET, NOTE_LOOK, (int64_t)i, NOTE, f->own_prefix, member->rank);
        slot->ask.expected = mu_slice_str(NOTHING); /* a missing key answers that, and stays missing */
        slot->once = true;
        mu_asks_value(&f->asks, slot, mu_slice_str(NOTHING));
    }
}

/* Those that were not read, and those that were not there: they may be now. */
static void forget_notes(struct mu_completion *f)
{
    mu_asks_drop_what(&f->asks, NOTE_LOOK);
    for (size_t i = 0; i < f->gone.count; i++)
        if (f->gone.members[i].note == MU_NOTE_ASKED || f->gone.members[i].note == MU_NOTE_NONE)
            f->gone.members[i].note = MU_NOTE_UNREAD;
}

static void take_note(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer)
{
    mu_vanished_read_note(&f->gone.members[slot->index], answer->error == NULL ? answer->value : mu_slice("", 0));
}

static bool are_notes_read(const struct mu_completion *f)
{
    for (size_t i = 0; i < f->gone.count; i++)
        if (may_have_note(f, &f->gone.members[i]))
            return false;
    return !mu_asks_has(&f->asks, NOTE_LOOK);
}

/* ---- Nodes that want to join ---- */

/* Whether those who vanished were done is still being looked at. */
static bool is_judging(const struct mu_completion *f)
{
    return f->sweeping || f->look_again_ms != UINT64_MAX;
}

static void on_waiting(struct mu_completion *f, const struct mu_completion_event *event)
{
    if (f->state != MU_COMPLETION_WATCHING)
        return;
    f->waiting = event->rank;
    (void)snprintf(f->waiting_text, sizeof f->waiting_text, "%s", event->text == NULL ? "" : event->text);
}

static void tell_waiting(struct mu_completion *f, struct mu_completion_effects *out)
{
    struct mu_completion_effect *effect;

    if (f->waiting == 0 || is_judging(f))
        return;
    if (f->state == MU_COMPLETION_WATCHING && !f->told_lost) {
        effect = emit(out, MU_COMPLETION_DO_WAITING);
        effect->number = f->waiting;
        effect->text = f->waiting_text;
    }
    f->waiting = 0;
}

/* ---- Was this one done? ---- */

static void note_lost(struct mu_completion *f, struct mu_completion_effects *out)
{
    f->undone = true;
    if (f->state == MU_COMPLETION_WAITING) {
        end_behind(f, out);
    } else if (f->state == MU_COMPLETION_WATCHING && f->closed) {
        begin_judging_closed(f);
    } else if (f->state == MU_COMPLETION_WATCHING && !f->told_lost) {
        f->told_lost = true;
        (void)snprintf(f->text, sizeof f->text, "%s", who(f));
        emit(out, MU_COMPLETION_DO_LOST)->text = f->text;
    }
}

static bool is_wanted(const struct mu_completion *f, int64_t rank)
{
    if (bit(f->marked, rank) || bit(f->foreign, rank))
        return false;
    return (f->full && !f->missing) || bit(f->vanished, rank);
}

static void sweep_on(struct mu_completion *f)
{
    for (; f->sweeping && f->cursor < f->start.world_size && mu_asks_free(&f->asks) > SPARE_SLOTS; f->cursor++) {
        struct mu_ask_slot *slot;

        if (!is_wanted(f, f->cursor))
            continue;
        slot = is_old(f) ? mu_asks_add(&f->asks, MU_ASK_CHECK, CHECK_MARK, f->cursor, MARK_113, f->prefix, f->cursor)
                         : mu_asks_add(&f->asks, MU_ASK_CHECK, CHECK_MARK, f->cursor, MARK, f->own_prefix, f->cursor);
        slot->once = true; /* without an answer they are lost: so it is if the store's host is the one that went */
    }
    read_notes(f);
}

static void set_mark(struct mu_completion *f)
{
    struct mu_ask_slot *slot;

    if (mu_asks_has(&f->asks, MARK_SET))
        return;
    slot = mu_asks_add(&f->asks, MU_ASK_SET, MARK_SET, -1, MARK, f->own_prefix, f->start.rank);
    mu_asks_value(&f->asks, slot, mu_slice_str(f->node));
}

static void set_mark_113(struct mu_completion *f)
{
    struct mu_ask_slot *slot;
    char text[32];
    int len = snprintf(text, sizeof text, "%" PRId64, f->start.rank);

    if (mu_asks_has(&f->asks, MARK_SET))
        return;
    slot = mu_asks_add(&f->asks, MU_ASK_SET, MARK_SET, -1, MARK_113, f->prefix, f->start.rank);
    mu_asks_value(&f->asks, slot, mu_slice(text, (size_t)len));
}

static void set_fin_113(struct mu_completion *f)
{
    struct mu_ask_slot *slot;

    if (mu_asks_has(&f->asks, FIN_SET))
        return;
    slot = mu_asks_add(&f->asks, MU_ASK_SET, FIN_SET, -1, MARK_113 ".FIN", f->prefix, f->start.rank);
    mu_asks_value(&f->asks, slot, mu_slice_str("FIN"));
}

static void sweep(struct mu_completion *f)
{
    struct mu_ask_slot *slot;

    mu_asks_drop_what(&f->asks, CHECK_MARK);
    mu_asks_drop_what(&f->asks, STOCK_COUNT);
    mu_asks_drop_what(&f->asks, OUR_COUNT);
    forget_notes(f);
    f->sweeping = true;
    f->cursor = 0;
    f->look_again_ms = f->scan_ms = UINT64_MAX;
    f->full = f->state == MU_COMPLETION_WAITING && has_marks(f);
    f->missing = false;
    f->stock_count = f->our_count = 0;
    if (f->foreign_count > 0) { /* in this order: we may find too few of them done for a moment, but never too many */
        slot = mu_asks_add(&f->asks, MU_ASK_ADD, STOCK_COUNT, -1, MEMBERS, f->prefix);
        slot->once = true;
        slot = mu_asks_add(&f->asks, MU_ASK_ADD, OUR_COUNT, -1, COUNT, f->own_prefix);
        slot->once = true;
    }
    sweep_on(f);
}

/* We wait, and the store may have forgotten that we are done. */
static void doubt(struct mu_completion *f, uint64_t now_ms)
{
    if (f->state != MU_COMPLETION_WAITING)
        return;
    f->uncounted = true;
    if (has_marks(f))
        set_mark(f);
    else if (is_old(f))
        set_mark_113(f);
    if (is_old(f) && f->fins)
        set_fin_113(f);
    if (has_marks(f) && !f->sweeping && f->scan_ms > now_ms + MU_COMPLETION_SCAN_MS)
        f->scan_ms = now_ms + MU_COMPLETION_SCAN_MS;
}

static bool is_sweep_through(const struct mu_completion *f)
{
    return f->sweeping && f->cursor >= f->start.world_size && !mu_asks_has(&f->asks, CHECK_MARK) &&
           !mu_asks_has(&f->asks, STOCK_COUNT) && !mu_asks_has(&f->asks, OUR_COUNT) && are_notes_read(f);
}

static bool has_unmarked(const struct mu_completion *f)
{
    for (int64_t rank = 0; rank < f->start.world_size; rank++) {
        if (bit(f->vanished, rank) && !bit(f->foreign, rank) && !bit(f->marked, rank))
            return true;
    }
    return false;
}

static void judge(struct mu_completion *f, uint64_t now_ms, struct mu_completion_effects *out)
{
    if (!is_sweep_through(f))
        return;
    f->sweeping = false;
    if (has_unmarked(f)) {
        note_lost(f, out);
    } else if (f->foreign_count > f->stock_count - f->our_count) {
        if (f->second_look)
            note_lost(f, out);
        else
            f->look_again_ms = now_ms + MU_COMPLETION_SECOND_LOOK_MS;
        f->second_look = true;
    } else if (f->full && f->marked_count + f->foreign_count == f->start.world_size) {
        be_last(f, now_ms, out);
    } else if (f->full) {
        f->scan_ms = now_ms + (f->uncounted ? MU_COMPLETION_SCAN_MS : MU_COMPLETION_SCAN_SLOW_MS);
    }
}

static void on_peers_lost(struct mu_completion *f, const struct mu_completion_event *event,
                          struct mu_completion_effects *out)
{
    /* A store that is away cannot say who was done; and mostly it is its host that is lost. */
    bool unknown = f->vanished == NULL || !f->start.has_store || (f->down && f->state == MU_COMPLETION_WATCHING);

    if ((f->state != MU_COMPLETION_WATCHING && !is_done(f)) || !is_tracked(f))
        return;
    mu_vanished_set_cause(&f->gone, event->text);
    for (size_t i = 0; i < event->lost_count; i++) {
        int64_t rank = event->lost[i].rank;

        if (event->lost[i].name[0] != '\0')
            mu_vanished_add(&f->gone, rank, event->lost[i].name, event->lost[i].ours, event->lost[i].waits);
        if (rank < 0 || rank >= f->start.world_size || f->vanished == NULL) {
            unknown = true;
        } else if (!bit(f->vanished, rank)) {
            set_bit(f->vanished, rank);
            f->vanished_count++;
            if (!event->lost[i].ours && !is_old(f)) {
                set_bit(f->foreign, rank);
                f->foreign_count++;
            }
        }
    }
    f->second_look = false;
    if (unknown)
        note_lost(f, out);
    else
        sweep(f);
}

/* ---- Done ---- */

static void begin_waiting(struct mu_completion *f, bool look_now, uint64_t now_ms, struct mu_completion_effects *out)
{
    f->state = MU_COMPLETION_WAITING;
    f->deadline_ms = f->wait_until_ms;
    if (f->undone) {
        end_behind(f, out);
        return;
    }
    if (is_private(f))
        (void)mu_asks_add(&f->asks, MU_ASK_GET, LAST_GET, -1, "%slast", f->own_prefix);
    else if (!is_old(f))
        (void)mu_asks_add(&f->asks, MU_ASK_GET, LAST_GET, -1, LAST, f->prefix);
    if (has_marks(f))
        f->scan_ms = now_ms + (f->uncounted ? MU_COMPLETION_SCAN_MS : MU_COMPLETION_SCAN_SLOW_MS);
    else if (!is_tracked(f))
        f->scan_ms = now_ms + MU_COMPLETION_PROBE_MS;
    if (f->away_ms != UINT64_MAX)
        probe(f);
    if (look_now || (f->vanished_count > 0 && has_marks(f)))
        sweep(f);
}

/* The mark is sent before the counts, and on its heels: whoever is counted is marked. */
static void count_ourselves(struct mu_completion *f)
{
    struct mu_ask_slot *slot;

    if (has_marks(f)) {
        set_mark(f);
        slot = mu_asks_add(&f->asks, MU_ASK_ADD, DONE_ADD, -1, COUNT, f->own_prefix);
        slot->ask.number = 1;
        slot->once = true; /* twice would end the wait of the others too soon */
    }
    if (is_private(f))
        return;
    slot = mu_asks_add(&f->asks, MU_ASK_ADD, MEMBERS_ADD, -1, MEMBERS, f->prefix);
    slot->ask.number = 1;
    slot->once = true;
}

static void on_done(struct mu_completion *f, uint64_t now_ms, struct mu_completion_effects *out)
{
    uint64_t limit_ms = f->barrier_ms;

    if (f->state != MU_COMPLETION_WATCHING)
        return;
    if (f->removed) {
        end_over(f, "this node's workers have succeeded; the other nodes go on without it", out);
        return;
    }
    if (limit_ms == UINT64_MAX && !is_tracked(f))
        limit_ms = MU_COMPLETION_BARRIER_MS;
    f->wait_until_ms = limit_ms == UINT64_MAX ? UINT64_MAX : now_ms + limit_ms;
    f->deadline_ms = limit_ms == UINT64_MAX ? UINT64_MAX : now_ms + (limit_ms < MARK_MS ? MARK_MS : limit_ms);
    f->gone_ms = UINT64_MAX; /* what a wait has met while the workers ran says nothing about now */
    if (f->away_ms != UINT64_MAX)
        f->away_ms = now_ms; /* it has as long as any other */
    f->state = MU_COMPLETION_MARKING;
    if (f->vanished != NULL) {
        set_bit(f->marked, f->start.rank);
        f->marked_count++;
    }
    if (!f->start.has_store && f->start.world_size == 1)
        be_last(f, now_ms, out);
    else if (!f->start.has_store)
        end_over(f, "this node's workers have succeeded; the back end has no store to wait for the other nodes", out);
    else if (is_old(f))
        set_mark_113(f);
    else
        count_ourselves(f);
}

/* 1.13: all marks, then all have seen them. */
static void barrier_113_on(struct mu_completion *f, uint64_t now_ms, struct mu_completion_effects *out)
{
    if (f->state != MU_COMPLETION_WAITING || !is_old(f))
        return;
    for (; f->barrier_cursor < f->start.world_size && mu_asks_free(&f->asks) > BARRIER_SPARE_SLOTS;
         f->barrier_cursor++) {
        if (f->barrier_cursor != f->start.rank && !f->fins)
            (void)mu_asks_add(&f->asks, MU_ASK_GET, BARRIER_113, f->barrier_cursor, MARK_113, f->prefix,
                              f->barrier_cursor);
        else if (f->barrier_cursor != f->start.rank && f->start.rank == 0)
            (void)mu_asks_add(&f->asks, MU_ASK_GET, FIN_113, f->barrier_cursor, MARK_113 ".FIN", f->prefix,
                              f->barrier_cursor);
    }
    if (f->barrier_cursor < f->start.world_size || mu_asks_has(&f->asks, BARRIER_113) ||
        mu_asks_has(&f->asks, FIN_113) || mu_asks_has(&f->asks, FIN_SET))
        return;
    if (f->fins) {
        be_last(f, now_ms, out); /* everybody closes there; one of them does it first */
        return;
    }
    f->fins = true;
    f->fin_ms = now_ms + MU_COMPLETION_FIN_MS;
    f->barrier_cursor = 0;
    set_fin_113(f);
    barrier_113_on(f, now_ms, out);
}

/* ---- Events ---- */

static int reserve(struct mu_completion *f, int64_t world_size)
{
    size_t bytes = (size_t)(world_size + 7) / 8;
    uint8_t *bits = realloc(f->vanished, 3 * bytes);

    if (bits == NULL) {
        free(f->vanished);
        f->vanished = f->foreign = f->marked = NULL;
        return MUSTER_ENOMEM;
    }
    memset(bits, 0, 3 * bytes);
    f->vanished = bits;
    f->foreign = bits + bytes;
    f->marked = bits + 2 * bytes;
    return 0;
}

static void start_round(struct mu_completion *f, const struct mu_completion_start *start)
{
    assert(start->world_size >= 1 && start->rank >= 0 && start->rank < start->world_size);
    be_idle(f, MU_COMPLETION_WATCHING);
    f->start = *start;
    mu_round_stock_prefix(f->prefix, f->prefix_room, f->run_id, start->round);
    mu_round_own_prefix(f->own_prefix, f->prefix_room, f->run_id, start->round, start->tag);
    (void)reserve(f, start->world_size); /* without, whoever vanishes is lost */
    f->foreign_count = f->marked_count = f->vanished_count = 0;
    f->undone = f->removed = f->closed = f->told_lost = f->told_failed = f->said_failed = f->noted = false;
    f->second_look = f->full = f->missing = f->uncounted = f->fins = f->down = false;
    f->cursor = f->barrier_cursor = 0;
    f->text[0] = '\0';
    f->gone = (struct mu_vanished){ .count = 0 };
    f->waiting = 0;
    f->seen = UNSEEN;
    f->away_ms = UINT64_MAX; /* the round was joined there */
}

static void on_fail(struct mu_completion *f, const struct mu_completion_event *event, struct mu_completion_effects *out)
{
    const char *cause = event->text == NULL ? "the workers have failed" : event->text;

    if (f->state != MU_COMPLETION_WATCHING)
        return;
    (void)snprintf(f->text, sizeof f->text, "%s", cause);
    if (f->closed)
        end(f, MU_COMPLETION_END_FAILED, out);
    else
        give_verdict(f, MU_COMPLETION_END_FAILED, cause, event->now_ms, out);
}

/* ---- A host that has gone ---- */

static bool is_closing(const struct mu_completion *f)
{
    return f->state == MU_COMPLETION_VERDICT || f->state == MU_COMPLETION_CLOSING || f->state == MU_COMPLETION_FREEING;
}

/* Answers say that the store is there, or that nobody listens. Silence about a key that is waited for says nothing, and
 * neither does a SET, which a store does not answer. */
static void note_host(struct mu_completion *f, const struct mu_ask *ask, const struct mu_answer *answer,
                      uint64_t now_ms)
{
    bool timed_out = answer->error != NULL && answer->error->code == MUSTER_ETIMEOUT;

    if (answer->error == NULL)
        f->gone_ms = UINT64_MAX;
    else if (answer->gone && f->gone_ms == UINT64_MAX)
        f->gone_ms = now_ms;
    if (answer->error == NULL && ask->kind != MU_ASK_SET)
        f->away_ms = UINT64_MAX;
    if (answer->error == NULL || !mu_ask_may_mend(answer->error->code) || (timed_out && ask->kind == MU_ASK_GET) ||
        f->away_ms != UINT64_MAX)
        return;
    f->away_ms = timed_out && now_ms > ask->timeout_ms ? now_ms - ask->timeout_ms : now_ms;
}

/* When there is nothing more to be expected of a store that is away. A PyTorch host goes as soon as it may; else it is a
 * store that stands alone and may be started again, or one of us: if that is a member, we hear of its end. */
static uint64_t away_until_ms(const struct mu_completion *f)
{
    bool closing = is_closing(f) && f->end == MU_COMPLETION_END_ALL_DONE;
    uint64_t refused_ms = UINT64_MAX, silent_ms = UINT64_MAX;

    if (closing && f->gone_ms != UINT64_MAX)
        return f->gone_ms + (f->start.all_ours ? MU_COMPLETION_GONE_MS : 0);
    if (!is_done(f))
        return UINT64_MAX;
    if (f->gone_ms != UINT64_MAX)
        refused_ms = f->gone_ms + (f->closed || (is_tracked(f) && !f->start.all_ours) ? MU_COMPLETION_GONE_MS
                                                                                      : MU_COMPLETION_REFUSED_MS);
    if (f->away_ms != UINT64_MAX)
        silent_ms = f->away_ms + MU_COMPLETION_SILENT_MS;
    return refused_ms < silent_ms ? refused_ms : silent_ms;
}

static void end_away(struct mu_completion *f, uint64_t now_ms, struct mu_completion_effects *out)
{
    bool refused = f->gone_ms != UINT64_MAX;

    if (is_closing(f)) {
        end_written(f, out);
        return;
    }
    (void)snprintf(f->text, sizeof f->text,
                   "the workers of this node have succeeded, and the store has %s for %" PRIu64
                   " s: ending without waiting for the other nodes",
                   refused ? "refused connections" : "not answered",
                   (now_ms - (refused ? f->gone_ms : f->away_ms)) / 1000);
    end(f, MU_COMPLETION_END_AWAY, out);
}

static void look_again(struct mu_completion *f, uint64_t now_ms)
{
    if (!is_tracked(f)) { /* there are no marks: is the store there? */
        f->scan_ms = now_ms + MU_COMPLETION_PROBE_MS;
        probe(f);
        return;
    }
    if (f->down)
        probe(f);
    if (f->state == MU_COMPLETION_WAITING && has_marks(f))
        set_mark(f);
    sweep(f);
}

static void pass_time(struct mu_completion *f, uint64_t now_ms, struct mu_completion_effects *out)
{
    if (now_ms >= away_until_ms(f)) {
        end_away(f, now_ms, out);
    } else if (now_ms >= f->fin_ms) {
        be_last(f, now_ms, out);
    } else if (now_ms >= f->deadline_ms && is_done(f)) {
        (void)snprintf(f->text, sizeof f->text,
                       "this node's workers have succeeded; the other nodes were not done in time");
        end(f, MU_COMPLETION_END_TIMEOUT, out);
    } else if (now_ms >= f->deadline_ms) {
        (void)snprintf(f->warning, sizeof f->warning, "the job's end: %s was not done within %d s",
                       mu_completion_state_text(f->state), MU_COMPLETION_CLOSE_MS / 1000);
        emit(out, MU_COMPLETION_DO_WARN)->text = f->warning;
        end_written(f, out);
    } else if (now_ms >= f->look_again_ms || now_ms >= f->scan_ms) {
        look_again(f, now_ms);
    }
}

static void marked(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer)
{
    bool found = answer->error == NULL && answer->found;

    f->missing |= !found;
    if (found && !bit(f->marked, slot->index)) {
        set_bit(f->marked, slot->index);
        f->marked_count++;
    }
}

static void counted(struct mu_completion *f, const struct mu_answer *answer, uint64_t now_ms,
                    struct mu_completion_effects *out)
{
    bool last = answer->error == NULL && answer->number >= f->start.world_size;

    if (answer->error != NULL) {
        f->uncounted = true;
        warn(f, "the exit barrier", answer->error, out);
    }
    if (last && !is_private(f)) {
        be_last(f, now_ms, out);
        return;
    }
    f->uncounted |= last; /* if a mark is missing all the same */
    begin_waiting(f, last, now_ms, out);
}

/* The answer is final: an error here is one that asking again does not mend. */
static void answered(struct mu_completion *f, const struct mu_completion_event *event,
                     struct mu_completion_effects *out)
{
    const struct mu_answer *answer = &event->answer;
    const struct mu_ask_slot *asked = mu_asks_find(&f->asks, answer->id);
    struct mu_ask_slot slot;

    if (asked == NULL)
        return;
    note_host(f, &asked->ask, answer, event->now_ms);
    if (answer->error != NULL && answer->error->code != MUSTER_ETIMEOUT && asked->ask.kind == MU_ASK_GET)
        doubt(f, event->now_ms);
    if (f->away_ms != UINT64_MAX)
        probe(f);
    if (!mu_asks_answer(&f->asks, answer, event->now_ms, &slot))
        return;
    switch ((enum what)slot.what) {
    case MARK_SET:
        if (f->state == MU_COMPLETION_MARKING && is_old(f))
            begin_waiting(f, false, event->now_ms, out);
        break;
    case DONE_ADD:
        if (is_private(f))
            counted(f, answer, event->now_ms, out);
        break;
    case MEMBERS_ADD:
        counted(f, answer, event->now_ms, out);
        break;
    case LAST_GET:
        if (answer->error == NULL)
            end_all_done(f, out);
        else
            end_over(f, "this node's workers have succeeded; the exit barrier is broken", out);
        break;
    case BUDGET_LOOK:
        take_budget(f, answer, out);
        break;
    case VERDICT_SET:
        verdict_written(f, answer, out);
        break;
    case LAST_SET:
        end_written(f, out);
        break;
    case VERDICT_LOOK:
        take_verdict(f, answer, out);
        break;
    case CLOSED_COUNT:
        f->closed_count = answer->error == NULL ? answer->number : -1;
        break;
    case CHECK_MARK:
        marked(f, &slot, answer);
        break;
    case STOCK_COUNT:
        f->stock_count = answer->error == NULL ? answer->number : 0;
        break;
    case OUR_COUNT:
        f->our_count = answer->error == NULL ? answer->number : 0;
        break;
    case FAILED_GET:
        take_failed(f, answer, out);
        break;
    case NOTE_LOOK:
        take_note(f, &slot, answer);
        break;
    case PROBE:
        if (f->down && f->state == MU_COMPLETION_WAITING && f->scan_ms > event->now_ms + MU_COMPLETION_PROBE_MS)
            f->scan_ms = event->now_ms + MU_COMPLETION_PROBE_MS; /* it answers us, and not the rendezvous: look again */
        break;
    case NOTE_SET:
    case FAILED_SET:
    case BARRIER_113:
    case FIN_SET:
    case FIN_113:
        break;
    }
}

static void take(struct mu_completion *f, const struct mu_completion_event *event, struct mu_completion_effects *out)
{
    bool of_this = event->round < 0 || event->round == f->start.round;

    switch (event->type) {
    case MU_COMPLETION_ON_START:
        start_round(f, event->start);
        break;
    case MU_COMPLETION_ON_STOP:
        end_listening(f);
        break;
    case MU_COMPLETION_ON_LISTEN:
        listen(f);
        break;
    case MU_COMPLETION_ON_WORKER_FAILED:
        tell_others(f, event);
        break;
    case MU_COMPLETION_ON_NOTE:
        write_note(f, event);
        break;
    case MU_COMPLETION_ON_WAITING:
        if (of_this)
            on_waiting(f, event);
        break;
    case MU_COMPLETION_ON_PEERS_LOST:
        if (of_this)
            on_peers_lost(f, event, out);
        break;
    case MU_COMPLETION_ON_REMOVED:
        f->removed = f->removed || of_this;
        if (of_this && is_done(f))
            end_over(f, "this node's workers have succeeded; the other nodes go on without it", out);
        break;
    case MU_COMPLETION_ON_CLOSED:
        on_closed(f, out);
        break;
    case MU_COMPLETION_ON_CLOSE_FAILED:
        if (f->state == MU_COMPLETION_CLOSING) {
            warn(f, "close the job", event->error, out);
            let_go(f, out);
        }
        break;
    case MU_COMPLETION_ON_BACKEND_DOWN:
        f->down = true;
        if (f->away_ms == UINT64_MAX)
            f->away_ms = event->now_ms > event->away_ms ? event->now_ms - event->away_ms : 0;
        probe(f);
        break;
    case MU_COMPLETION_ON_BACKEND_UP:
        f->down = false;
        f->away_ms = UINT64_MAX;
        doubt(f, event->now_ms);
        break;
    case MU_COMPLETION_ON_DONE:
        on_done(f, event->now_ms, out);
        break;
    case MU_COMPLETION_ON_FAIL:
        on_fail(f, event, out);
        break;
    case MU_COMPLETION_ON_ANSWER:
        answered(f, event, out);
        break;
    case MU_COMPLETION_ON_TIME:
        break;
    }
}

void mu_completion_step(struct mu_completion *f, const struct mu_completion_event *event,
                        struct mu_completion_effects *out)
{
    struct mu_ask ask;

    out->count = 0;
    take(f, event, out);
    sweep_on(f);
    judge(f, event->now_ms, out);
    judge_closed(f, out);
    barrier_113_on(f, event->now_ms, out);
    pass_time(f, event->now_ms, out);
    judge(f, event->now_ms, out); /* a sweep that has nothing to ask is over at once */
    tell_waiting(f, out);
    while (mu_asks_emit(&f->asks, event->now_ms, f->deadline_ms, &ask))
        emit(out, MU_COMPLETION_DO_ASK)->ask = ask;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t mu_completion_deadline_ms(const struct mu_completion *f)
{
    return sooner(sooner(sooner(f->deadline_ms, away_until_ms(f)), mu_asks_due_ms(&f->asks)),
                  sooner(f->fin_ms, sooner(f->look_again_ms, f->scan_ms)));
}

enum mu_completion_state mu_completion_state(const struct mu_completion *f)
{
    return f->state;
}

bool mu_completion_will(const struct mu_completion *f, char *key, size_t key_room,
                        char text[static MU_VANISHED_NOTE_MAX])
{
    int len;

    if (!is_missed(f) || f->noted)
        return false;
    len = snprintf(key, key_room, NOTE, f->own_prefix, f->start.rank);
    mu_vanished_write_note(text, MU_NOTE_LOST, MU_COMPLETION_KILLED);
    return len > 0 && (size_t)len < key_room;
}
