/* One node's part in a static group, decided. See static_group.h. */
#include "handler/static_group.h"

#include "rdzv/timeout_text.h"
#include "store/table.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PROGRESS_MS = 200, /* between two that rank 0 tells the others */
    GOODBYE_MS = 1000, /* for the answer to it */
    LINGER_MS = 2000,  /* of rank 0, for the others to hear of a loss */
    DISPUTE_MS = 2000, /* to connect to what has rank 0's port, and again for its answer */
};
#define FOREVER_MS UINT64_C(1000000000000)

/* What the owner is told, in this order if several are due. */
static const enum muster_rdzv_event_type tells[] = { MUSTER_RDZV_PROGRESS, MUSTER_RDZV_FAILED, MUSTER_RDZV_LOOKED,
                                                     MUSTER_RDZV_CLOSED, MUSTER_RDZV_LEFT };
#define DUE(tell) (1U << MUSTER_RDZV_##tell)

/* ---- States ---- */

#define IN(state) (1U << MU_STATIC_##state)
/* From connecting to OPEN: there is a client, and what goes wrong is told. */
#define TRYING                                                                                                         \
    (IN(CONNECTING) | IN(ASKING) | IN(ANNOUNCING) | IN(CLAIMING) | IN(COUNTING) | IN(GATHERING) | IN(DISPUTED))
#define NOT_FREED (IN(IDLE) | IN(SERVING) | TRYING | IN(OPEN) | IN(BROKEN) | IN(CLOSING))

static bool is_in(const struct mu_static *m, unsigned states)
{
    return ((1U << m->state) & states) != 0;
}

static bool is_rank_0(const struct mu_static *m)
{
    return m->place->rank == 0;
}

static void check(const struct mu_static *m)
{
    bool is_shut = is_in(m, IN(IDLE) | IN(CLOSING) | IN(ENDING) | IN(FREED));

    assert(!is_shut || (m->progress_due_ms == UINT64_MAX && mu_roster_is_empty(&m->roster)));
    assert(!is_shut || (m->due & DUE(PROGRESS)) == 0);
    assert(m->owner != MU_STATIC_MEMBER || m->state == MU_STATIC_OPEN || !is_in(m, NOT_FREED));
    assert((m->due & DUE(PROGRESS)) == 0 || m->owner == MU_STATIC_JOINING);
    assert(((m->due & DUE(FAILED)) != 0) == (m->failed != MUSTER_RDZV_REQUEST_UNKNOWN));
    assert(is_rank_0(m) || !is_in(m, IN(SERVING) | IN(DISPUTED) | IN(BROKEN) | IN(LINGERING)));
    assert(is_rank_0(m) || (m->progress_due_ms == UINT64_MAX && mu_roster_is_empty(&m->roster)));
    assert(m->state != MU_STATIC_LEAVING || (!is_rank_0(m) && m->rank_0 == MU_STATIC_MUSTER));
    assert(m->state != MU_STATIC_DISPUTED || m->taken.code != 0);
    assert(!is_in(m, IN(ANNOUNCING) | IN(CLAIMING) | IN(GATHERING)) || m->rank_0 == MU_STATIC_MUSTER);
    assert(!is_in(m, IN(COUNTING) | IN(OPEN)) || m->rank_0 != MU_STATIC_UNKNOWN);
}

static void enter(struct mu_static *m, enum mu_static_state state)
{
    static const unsigned from[] = {
        [MU_STATIC_IDLE] = IN(CLOSING),
        [MU_STATIC_SERVING] = IN(IDLE),
        [MU_STATIC_DISPUTED] = IN(SERVING),
        [MU_STATIC_CONNECTING] = IN(IDLE) | IN(SERVING),
        [MU_STATIC_ASKING] = IN(CONNECTING),
        [MU_STATIC_ANNOUNCING] = IN(ASKING),
        [MU_STATIC_CLAIMING] = IN(ANNOUNCING),
        [MU_STATIC_COUNTING] = IN(ASKING) | IN(CLAIMING),
        [MU_STATIC_GATHERING] = IN(COUNTING),
        [MU_STATIC_OPEN] = IN(COUNTING) | IN(GATHERING),
        [MU_STATIC_BROKEN] = IN(OPEN),
        [MU_STATIC_CLOSING] = IN(SERVING) | TRYING | IN(OPEN) | IN(BROKEN),
        [MU_STATIC_LEAVING] = IN(OPEN),
        [MU_STATIC_LINGERING] = IN(BROKEN),
        [MU_STATIC_ENDING] = NOT_FREED | IN(LEAVING) | IN(LINGERING),
        [MU_STATIC_FREED] = IN(ENDING),
    };

    assert(is_in(m, from[state]));
    m->state = state;
    if (is_in(m, IN(CLOSING) | IN(ENDING))) {
        m->due &= ~DUE(PROGRESS);
        m->progress_due_ms = UINT64_MAX;
        mu_roster_done(&m->roster);
        mu_roster_init(&m->roster);
    }
    check(m);
}

/* ---- Effects ---- */

static struct mu_static_effect *add(struct mu_static_effects *out, enum mu_static_effect_type type)
{
    assert(out->count < MU_STATIC_EFFECTS_MAX);
    out->items[out->count] = (struct mu_static_effect){ .type = type };
    return &out->items[out->count++];
}

static void call(struct mu_static_effects *out, enum mu_call_kind kind, enum mu_static_key key, int64_t number,
                 uint64_t timeout_ms)
{
    struct mu_static_effect *effect = add(out, MU_STATIC_DO_CALL);

    effect->kind = kind;
    effect->key = key;
    effect->number = number;
    effect->timeout_ms = timeout_ms;
}

static void write_key(struct mu_static_effects *out, enum mu_static_key key, int64_t number, const char *expected,
                      const char *text)
{
    struct mu_static_effect *effect = add(out, MU_STATIC_DO_WRITE);

    effect->key = key;
    effect->number = number;
    effect->expected = expected;
    effect->text = text;
}

static void connect_within(struct mu_static *m, struct mu_static_effects *out, uint64_t timeout_ms)
{
    struct mu_static_effect *effect = add(out, MU_STATIC_DO_CONNECT);

    effect->timeout_ms = timeout_ms;
    effect->seed = mu_rng_next(&m->rng);
}

uint64_t mu_static_left_ms(const struct mu_static *m, uint64_t now_ms)
{
    return m->deadline_ms > now_ms ? m->deadline_ms - now_ms : 0;
}

/* ---- Failing ---- */

/* With m->error filled in. Nobody is waiting for it when a store is lost that was kept open after a leave. */
static void note_failure(struct mu_static *m)
{
    if (m->owner == MU_STATIC_OUT)
        return;
    (void)mu_static_error(m->place, m->error.code, &m->error);
    m->failed = m->owner == MU_STATIC_JOINING ? MUSTER_RDZV_REQUEST_JOIN : MUSTER_RDZV_REQUEST_MEMBERSHIP;
    m->due = (m->due & ~DUE(PROGRESS)) | DUE(FAILED);
    m->owner = MU_STATIC_OUT;
}

static void close_all(struct mu_static *m, struct mu_static_effects *out)
{
    enter(m, MU_STATIC_CLOSING);
    (void)add(out, MU_STATIC_DO_CLOSE);
}

static void fail(struct mu_static *m, struct mu_static_effects *out)
{
    if (m->state == MU_STATIC_DISPUTED && m->error.code != MUSTER_ERDZV_STATE)
        m->error = m->taken;
    note_failure(m);
    close_all(m, out);
}

static void fail_with(struct mu_static *m, const struct muster_error *error, struct mu_static_effects *out)
{
    if (m->owner != MU_STATIC_OUT) /* else one may be there that is still to be told */
        m->error = *error;
    fail(m, out);
}

static void fail_taken(struct mu_static *m, struct mu_slice holder, struct mu_static_effects *out)
{
    char name[MU_ROSTER_NAME_MAX];
    int64_t pid;

    if (mu_roster_read_record(holder, &pid, name))
        (void)mu_fail(&m->error, MUSTER_ERDZV_STATE,
                      "rank %" PRId64 " is taken by %s (pid %" PRId64 "); every node needs its own --node-rank",
                      m->place->rank, name, pid);
    else
        (void)mu_fail(&m->error, MUSTER_ERDZV_STATE, "rank %" PRId64 " is taken", m->place->rank);
    fail(m, out);
}

static void fail_timed_out(struct mu_static *m, struct mu_static_effects *out)
{
    struct mu_node nodes[MU_ROSTER_SHOWN_MAX];
    struct mu_timeout_text came = { .waited_ms = (uint64_t)m->place->timeout_ms,
                                    .nodes_min = m->place->world_size,
                                    .nodes_max = m->place->world_size,
                                    .nodes = nodes };
    char text[MU_TIMEOUT_TEXT_MAX];

    if (is_rank_0(m))
        mu_roster_progress(&m->roster, false, &m->progress);
    came.joined = m->progress.joined;
    came.nodes_count = m->progress.nodes_count;
    for (size_t i = 0; i < m->progress.nodes_count; i++)
        nodes[i] = (struct mu_node){ .name = mu_slice_str(m->progress.nodes[i].name) };
    if (came.nodes_count >= MU_TIMEOUT_TEXT_NAMES_MAX && came.joined > (int64_t)came.nodes_count)
        came.nodes_count = (size_t)came.joined; /* the rest is counted, not named */
    (void)mu_fail(&m->error, MUSTER_ETIMEOUT, "%s", mu_timeout_text_write(&came, text));
    fail(m, out);
}

static void set_lost_error(struct mu_static *m, struct mu_slice text)
{
    (void)mu_fail(&m->error, MUSTER_ERDZV_CONNECTION, "lost %.*s; a static group cannot go on without one of its nodes",
                  (int)(text.len < 400 ? text.len : 400), text.data);
}

/* ---- Progress ---- */

static void note_news_of_progress(struct mu_static *m)
{
    if (m->owner == MU_STATIC_JOINING)
        m->due |= DUE(PROGRESS);
}

static bool is_complete(const struct mu_static *m)
{
    return mu_roster_present(&m->roster) >= m->place->world_size;
}

/* Rank 0: somebody came or went. The first and the last are told at once. */
static void note_change(struct mu_static *m, uint64_t now_ms)
{
    if (!is_rank_0(m) || !is_in(m, IN(SERVING) | TRYING))
        return;
    if (m->written == 0 || is_complete(m))
        m->progress_due_ms = 0;
    else if (m->progress_due_ms == UINT64_MAX)
        m->progress_due_ms = now_ms + PROGRESS_MS;
}

/* Tells the others, which wait for the next progress. */
static void write_progress(struct mu_static *m, struct mu_static_effects *out)
{
    m->progress_due_ms = UINT64_MAX;
    mu_roster_progress(&m->roster, m->state == MU_STATIC_GATHERING && is_complete(m), &m->progress);
    add(out, MU_STATIC_DO_PROGRESS)->number = (int64_t)m->written;
}

static void open_group(struct mu_static *m, struct mu_static_effects *out)
{
    enter(m, MU_STATIC_OPEN);
    if (m->rank_0 == MU_STATIC_MUSTER && !is_rank_0(m))
        call(out, MU_CALL_GET, MU_STATIC_KEY_LOST, -1, FOREVER_MS);
}

static void on_written(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    if (!is_rank_0(m) || !is_in(m, IN(SERVING) | TRYING))
        return;
    if (event->error != NULL) { /* no memory for it: the others go on waiting for this one */
        m->progress_due_ms = event->now_ms + PROGRESS_MS;
        return;
    }
    m->written++;
    note_news_of_progress(m);
    if (m->progress.open)
        open_group(m, out);
}

static void on_progress(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    struct mu_roster_progress progress;

    m->heard++;
    if (mu_roster_read_progress(event->bytes, &progress)) {
        m->progress = progress;
        for (size_t i = 0; i < progress.nodes_count; i++)
            m->progress.nodes[i].name = m->progress.names[i];
        note_news_of_progress(m);
    }
    if (m->progress.open)
        open_group(m, out);
    else
        call(out, MU_CALL_GET, MU_STATIC_KEY_PROGRESS, (int64_t)m->heard, mu_static_left_ms(m, event->now_ms));
}

/* ---- Getting in ---- */

static void begin(struct mu_static *m, uint64_t now_ms, struct mu_static_effects *out)
{
    mu_roster_record(mu_rng_next(&m->rng), m->pid, m->name, m->record);
    m->rank_0 = MU_STATIC_UNKNOWN;
    m->heard = m->written = 0;
    m->progress = (struct mu_roster_progress){ .joined = is_rank_0(m) ? 0 : -1 }; /* till rank 0 answers */
    m->deadline_ms = now_ms + (uint64_t)m->place->timeout_ms;
    enter(m, is_rank_0(m) ? MU_STATIC_SERVING : MU_STATIC_CONNECTING);
    note_news_of_progress(m);
    if (is_rank_0(m))
        (void)add(out, MU_STATIC_DO_SERVE);
    else
        connect_within(m, out, (uint64_t)m->place->timeout_ms);
}

static void on_served(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    if (m->state != MU_STATIC_SERVING)
        return;
    if (event->error != NULL && event->error->code == MUSTER_EADDRINUSE) {
        m->taken = *event->error;
        enter(m, MU_STATIC_DISPUTED);
        connect_within(m, out, DISPUTE_MS);
    } else if (event->error != NULL) {
        fail_with(m, event->error, out);
    } else {
        enter(m, MU_STATIC_CONNECTING);
        connect_within(m, out, mu_static_left_ms(m, event->now_ms));
    }
}

static void on_connected(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    if (!is_in(m, IN(CONNECTING) | IN(DISPUTED)))
        return;
    if (event->error != NULL) {
        fail_with(m, event->error, out);
    } else if (m->state == MU_STATIC_DISPUTED) {
        call(out, MU_CALL_GET, MU_STATIC_KEY_NODE, 0, DISPUTE_MS);
    } else {
        enter(m, MU_STATIC_ASKING);
        if (m->progress.joined < 0) {
            m->progress.joined = 0;
            note_news_of_progress(m);
        }
        call(out, MU_CALL_CHECK, MU_STATIC_KEY_HOST, -1, mu_static_left_ms(m, event->now_ms));
    }
}

static void on_counted_ourselves(struct mu_static *m, uint64_t now_ms, struct mu_static_effects *out)
{
    if (m->rank_0 == MU_STATIC_PYTORCH) { /* it does not tell when all are in */
        open_group(m, out);
        return;
    }
    enter(m, MU_STATIC_GATHERING);
    if (is_rank_0(m))
        note_change(m, now_ms);
    else
        call(out, MU_CALL_GET, MU_STATIC_KEY_PROGRESS, (int64_t)m->heard, mu_static_left_ms(m, now_ms));
}

static void take_answer(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    uint64_t left_ms = mu_static_left_ms(m, event->now_ms);

    switch (m->state) {
    case MU_STATIC_DISPUTED:
        if (event->bytes.len > 0)
            fail_taken(m, event->bytes, out);
        else
            fail_with(m, &m->taken, out);
        break;
    case MU_STATIC_ASKING:
        m->rank_0 = event->number == 1 ? MU_STATIC_MUSTER : MU_STATIC_PYTORCH;
        enter(m, event->number == 1 ? MU_STATIC_ANNOUNCING : MU_STATIC_COUNTING);
        if (event->number == 1)
            call(out, MU_CALL_SET, MU_STATIC_KEY_ANNOUNCE, -1, left_ms);
        else
            call(out, MU_CALL_ADD, MU_STATIC_KEY_COUNT, -1, left_ms);
        break;
    case MU_STATIC_ANNOUNCING: /* so rank 0 knows this node before the rank is its own */
        enter(m, MU_STATIC_CLAIMING);
        call(out, MU_CALL_COMPARE_SET, MU_STATIC_KEY_NODE, m->place->rank, left_ms);
        break;
    case MU_STATIC_CLAIMING:
        if (!mu_slice_equal(event->bytes, mu_slice_str(m->record))) {
            fail_taken(m, event->bytes, out);
            break;
        }
        enter(m, MU_STATIC_COUNTING);
        call(out, MU_CALL_ADD, MU_STATIC_KEY_COUNT, -1, left_ms);
        break;
    case MU_STATIC_COUNTING:
        on_counted_ourselves(m, event->now_ms, out);
        break;
    case MU_STATIC_GATHERING:
        on_progress(m, event, out);
        break;
    case MU_STATIC_OPEN:
        set_lost_error(m, event->bytes);
        fail(m, out);
        break;
    case MU_STATIC_IDLE: /* the rest makes no calls, or wants no answers any more */
    case MU_STATIC_SERVING:
    case MU_STATIC_CONNECTING:
    case MU_STATIC_BROKEN:
    case MU_STATIC_CLOSING:
    case MU_STATIC_LEAVING:
    case MU_STATIC_LINGERING:
    case MU_STATIC_ENDING:
    case MU_STATIC_FREED:
        break;
    }
}

static void on_answered(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    if (!is_in(m, TRYING | IN(OPEN)))
        return;
    if (event->error == NULL)
        take_answer(m, event, out);
    else if (event->error->code == MUSTER_ETIMEOUT && m->state == MU_STATIC_GATHERING)
        fail_timed_out(m, out);
    else
        fail_with(m, event->error, out);
}

/* ---- Rank 0: what connections do ---- */

/* What is no number was not written by a node. */
static void on_counted(struct mu_static *m, const struct mu_static_event *event)
{
    int64_t count;

    if (!mu_table_number(event->bytes, &count))
        return;
    mu_roster_counted(&m->roster, event->connection, count);
    note_change(m, event->now_ms);
}

static void end(struct mu_static *m, struct mu_static_effects *out)
{
    enter(m, MU_STATIC_ENDING);
    (void)add(out, MU_STATIC_DO_END);
}

static void break_group(struct mu_static *m, struct mu_static_effects *out)
{
    (void)snprintf(m->lost_text, sizeof m->lost_text, "%s (pid %" PRId64 "), rank %" PRId64, m->gone.name, m->gone.pid,
                   m->gone.rank);
    write_key(out, MU_STATIC_KEY_LOST, -1, "", m->lost_text);
    set_lost_error(m, mu_slice_str(m->lost_text));
    note_failure(m);
    enter(m, MU_STATIC_BROKEN);
}

static void on_gone(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    struct mu_roster_node *node = mu_roster_take(&m->roster, event->connection);

    if (node == NULL)
        return;
    m->gone = *node;
    mu_list_init(&m->gone.link);
    free(node);
    write_key(out, MU_STATIC_KEY_NODE, m->gone.rank, m->gone.record, "");
    if (m->state == MU_STATIC_OPEN && m->gone.counted && !m->gone.left && m->gone.rank != 0)
        break_group(m, out);
    else if (m->state == MU_STATIC_LINGERING && mu_roster_is_empty(&m->roster))
        end(m, out);
    else
        note_change(m, event->now_ms);
}

/* ---- The owner ---- */

/* An open store is kept for a later join; the others of a broken group still have to hear of it. */
static void leave(struct mu_static *m, struct mu_static_effects *out)
{
    m->owner = MU_STATIC_OUT;
    m->due = (m->due & ~DUE(PROGRESS)) | DUE(LEFT);
    if (is_in(m, IN(SERVING) | TRYING))
        close_all(m, out);
}

static void free_group(struct mu_static *m, uint64_t now_ms, struct mu_static_effects *out)
{
    m->due = 0;
    m->failed = MUSTER_RDZV_REQUEST_UNKNOWN;
    if (m->state == MU_STATIC_OPEN && m->rank_0 == MU_STATIC_MUSTER && !is_rank_0(m)) {
        enter(m, MU_STATIC_LEAVING); /* else rank 0 would take this node for killed */
        call(out, MU_CALL_SET, MU_STATIC_KEY_ANNOUNCE, -1, GOODBYE_MS);
        out->items[0].type = MU_STATIC_DO_GOODBYE;
    } else if (m->state == MU_STATIC_BROKEN) { /* the others were woken and ask now what is lost */
        enter(m, MU_STATIC_LINGERING);
        m->deadline_ms = now_ms + LINGER_MS;
        (void)add(out, MU_STATIC_DO_CLOSE_CLIENT);
    } else {
        end(m, out);
    }
}

static void tell(struct mu_static_effects *out, enum muster_rdzv_event_type type)
{
    add(out, MU_STATIC_DO_TELL)->tell = type;
}

static void tell_due(struct mu_static *m, struct mu_static_effects *out)
{
    size_t i = 0;

    while ((m->due & 1U << tells[i]) == 0)
        i++;
    m->due &= ~(1U << tells[i]);
    tell(out, tells[i]);
    if (tells[i] == MUSTER_RDZV_FAILED) {
        out->items[0].request = m->failed;
        m->failed = MUSTER_RDZV_REQUEST_UNKNOWN;
    }
}

bool mu_static_has_store(const struct mu_static *m)
{
    return m->state == MU_STATIC_OPEN && m->owner != MU_STATIC_OUT;
}

bool mu_static_wants_turn(const struct mu_static *m)
{
    return m->due != 0 || m->progress_due_ms == 0 ||
           (m->owner == MU_STATIC_JOINING && is_in(m, IN(IDLE) | IN(OPEN) | IN(BROKEN)));
}

static void on_turn(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    if (!mu_static_wants_turn(m))
        return;
    if (m->progress_due_ms == 0) {
        write_progress(m, out);
    } else if (m->due != 0) {
        tell_due(m, out);
    } else if (m->state == MU_STATIC_OPEN) {
        m->owner = MU_STATIC_MEMBER;
        tell(out, MUSTER_RDZV_JOINED);
    } else if (m->state == MU_STATIC_BROKEN) {
        close_all(m, out); /* and begins anew */
    } else {
        begin(m, event->now_ms, out);
    }
}

/* ---- The step ---- */

uint64_t mu_static_deadline_ms(const struct mu_static *m)
{
    uint64_t until_ms = is_in(m, IN(GATHERING) | IN(LINGERING)) ? m->deadline_ms : UINT64_MAX;

    return m->progress_due_ms > 0 && m->progress_due_ms < until_ms ? m->progress_due_ms : until_ms;
}

static void on_time(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    if (m->state == MU_STATIC_GATHERING && event->now_ms >= m->deadline_ms)
        fail_timed_out(m, out);
    else if (m->state == MU_STATIC_LINGERING && event->now_ms >= m->deadline_ms)
        end(m, out);
    else if (event->now_ms >= m->progress_due_ms)
        write_progress(m, out);
}

static void on_closed(struct mu_static *m, struct mu_static_effects *out)
{
    if (m->state == MU_STATIC_CLOSING) {
        enter(m, MU_STATIC_IDLE);
    } else if (m->state == MU_STATIC_ENDING) {
        enter(m, MU_STATIC_FREED);
        (void)add(out, MU_STATIC_DO_FREED);
    }
}

void mu_static_init(struct mu_static *m, const struct mu_static_place *place, const char *name, int64_t pid,
                    uint64_t seed)
{
    *m = (struct mu_static){ .place = place, .name = name, .pid = pid, .rng = mu_rng_seeded(seed) };
    m->progress_due_ms = UINT64_MAX;
    mu_roster_init(&m->roster);
    check(m);
}

void mu_static_step(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out)
{
    check(m);
    assert(event->type > MU_STATIC_ON_FREE || is_in(m, NOT_FREED));
    out->count = 0;
    switch (event->type) {
    case MU_STATIC_ON_JOIN:
        m->owner = MU_STATIC_JOINING;
        break;
    case MU_STATIC_ON_LEAVE:
        leave(m, out);
        break;
    case MU_STATIC_ON_CLOSE:
        m->due |= DUE(CLOSED);
        break;
    case MU_STATIC_ON_LOOK:
        m->due |= DUE(LOOKED);
        break;
    case MU_STATIC_ON_FREE:
        free_group(m, event->now_ms, out);
        break;
    case MU_STATIC_ON_TURN:
        on_turn(m, event, out);
        break;
    case MU_STATIC_ON_TIME:
        on_time(m, event, out);
        break;
    case MU_STATIC_ON_SERVED:
        on_served(m, event, out);
        break;
    case MU_STATIC_ON_WRITTEN:
        on_written(m, event, out);
        break;
    case MU_STATIC_ON_ANNOUNCED: /* without memory for it, it is like a node of PyTorch: counted, and without a name */
        if (is_rank_0(m) && !is_in(m, IN(IDLE) | IN(CLOSING) | IN(ENDING) | IN(FREED)))
            (void)mu_roster_announced(&m->roster, event->connection, event->bytes);
        break;
    case MU_STATIC_ON_COUNTED:
        on_counted(m, event);
        break;
    case MU_STATIC_ON_GONE:
        on_gone(m, event, out);
        break;
    case MU_STATIC_ON_CONNECTED:
        on_connected(m, event, out);
        break;
    case MU_STATIC_ON_LOST:
        if (is_in(m, TRYING | IN(OPEN)))
            fail_with(m, event->error, out);
        else if (m->state == MU_STATIC_BROKEN) /* that group has failed already; a join begins anew */
            close_all(m, out);
        break;
    case MU_STATIC_ON_ANSWERED:
        on_answered(m, event, out);
        break;
    case MU_STATIC_ON_SAID:
        if (m->state == MU_STATIC_LEAVING)
            end(m, out);
        break;
    case MU_STATIC_ON_CLOSED:
        on_closed(m, out);
        break;
    }
    check(m);
}
