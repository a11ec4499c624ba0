/* The classic etcd rendezvous, see classic.h. phases[] has for each state which function makes its request, from what is
 * known, and which takes the answer and says where to go. A pause is a state that is entered later. */
#include "rdzv/classic.h"

#include "rdzv/timeout_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define NEVER UINT64_MAX
#define QUIT_RETRY_MS 200
#define LEASE_RETRY_MS 500
#define LAPSED_RETRY_MS 2000  /* the same when the key is gone by now, +-50 % */
#define DEADLINE_SLACK_MS 500 /* a request may take so much longer than its reason */
#define ROOT_EVERY_MS (MU_CLASSIC_ROOT_TTL_S * UINT64_C(500))
#define RANK_EVERY_MS (MU_CLASSIC_RANK_TTL_S * UINT64_C(500))
#define NOTICE_EVERY_MS (MU_CLASSIC_NOTICE_TTL_S * UINT64_C(500))
#define NOTICE_RETRY_MS 2000
#define ROOT "%.2048s" /* no root is longer: the compiler is told */
#define SELF "/muster/nodes/%016" PRIx64
#define NODES_LIMIT INT64_C(0x7fffffff)

/* A request under way. */
struct track {
    uint64_t id; /* 0: none */
    bool watches, writes;
    uint64_t due_ms; /* when there is none: it is made then */
    char key[MU_CLASSIC_KEY_MAX];
    struct mu_buf value;
};

enum quit_then { THEN_LEFT, THEN_FAILED };
enum close_state { CLOSE_NONE, CLOSE_READ, CLOSE_WRITE };
enum notice_request { NOTICE_WRITE, NOTICE_DELETE, NOTICES_READ };
/* Directories and the counter; a group that is put back goes on from there. */
enum prepare_step {
    MAKE_PREFIX,
    MAKE_JOB,
    MAKE_RDZV,
    MAKE_COUNTER,
    MAKE_SELF,
    PREPARED,
    PUT_KEY = PREPARED,
    PUT_STORE,
    PUT_DOC,
    FIND_DOC,  /* its answer was lost */
    FIND_SELF, /* and nothing else? */
    PUT_MARK,
    RESTORED
};

struct mu_classic {
    char prefix[MU_CLASSIC_KEY_MAX], root[MU_CLASSIC_KEY_MAX]; /* root: J */
    char node[MU_CLASSIC_NODE_MAX];
    uint64_t self; /* the key by which we see that the server has lost nothing since we came */
    int64_t nodes_min, nodes_max;
    uint64_t join_ms, last_call_ms, close_ms;
    struct mu_rng rng;
    uint64_t now_ms, last_id;
    /* The phases. */
    enum mu_classic_state state;
    struct track main;
    bool prepared, restoring;
    enum prepare_step step;
    size_t mark_rank;   /* whose mark is put back */
    uint64_t put_index; /* the document comes behind that */
    struct mu_buf raw;  /* the document as it was read or written last */
    struct mu_classic_doc doc;
    uint64_t index;       /* it is as of then: watch from the next one */
    unsigned idle_events; /* of a watch, that were of no interest */
    uint64_t ended_ms;    /* the pause after the last watch, which ended with its connection; 0: it did not */
    int64_t counter;
    uint64_t counter_index;
    bool joining; /* a join was asked for and is not answered */
    uint64_t join_since_ms, join_deadline_ms;
    struct muster_error last_error; /* of a request that is tried again; code 0: none */
    /* What may have to be taken back. */
    bool in;           /* a participant of in_version as `rank` */
    bool maybe_in;     /* the same; but there was no answer to that join, or to leaving it */
    bool key_written;  /* our keep-alive of key_version, as key_rank; or it is being written */
    uint64_t in_index; /* of that joining */
    bool confirms;     /* our key was put into its document, or may have been */
    bool confirms_unsurely;
    int64_t in_version, rank, key_version, key_rank;
    uint64_t announced_ms;
    int64_t announced;                      /* the version that was told that we wait; -1: none */
    bool announced_surely;                  /* no: somebody has, perhaps it was we */
    int64_t unsure_version, unsure_waiting; /* the answer of such an announcement was lost; -1: no */
    uint64_t last_call_until_ms, touched_ms;
    bool last_caller;
    /* The group. */
    struct mu_classic_world world;
    char **marks;
    bool *lost; /* that were told, by rank */
    size_t *ranks;
    struct mu_buf group_raw;
    bool over, lapsed;
    bool verify;          /* the server was away, or we: is the group that is there still ours? */
    uint64_t unmarked_ms; /* since when our mark is missing beside the document; NEVER: it is not */
    uint64_t mark_index;  /* as of when it is missing */
    uint64_t joined_ms, hold_ms, recheck_ms;
    bool waiting_told;
    int64_t waiting; /* seen and not told; 0: none */
    /* The group that we were in before this join. */
    int64_t old_version; /* -1: none */
    bool old_ours;
    size_t old_count;
    int64_t old_waiting;
    uint64_t old_gone_ms; /* since when none of its keep-alives is there */
    /* Leases. */
    struct track job_lease, rank_lease;
    bool job_leased, rank_leased, put_back;
    uint64_t renewed_ms; /* when our keep-alive was there for sure */
    bool refused;        /* its last renewal was, by etcd */
    /* Leaving, or giving up. */
    bool quitting, join_next, timed_out;
    enum quit_then quit_then;
    uint64_t quit_deadline_ms;
    struct muster_error error;
    /* Closing and looking. */
    struct track close, look;
    enum close_state close_state;
    uint64_t close_deadline_ms;
    struct mu_buf close_raw;
    bool close_fresh; /* there was no document */
    bool closed_told;
    struct muster_error close_error, look_error;
    /* Who waits, for people. */
    struct mu_classic_notice self_notice; /* of this node; a name of "" has none */
    struct mu_node self_node;
    struct track notice;
    enum notice_request notice_request;  /* that is under way */
    char notice_key[MU_CLASSIC_KEY_MAX]; /* where ours is, or may be; "": nowhere */
    uint64_t notice_at_ms;               /* when it is to be written, or renewed */
    uint64_t look_at_ms;                 /* when the notices are to be read */
    bool notices_known;                  /* they were read since this join began */
    bool alike;                          /* another node has said that it was started like us */
    struct mu_waiters crowd;
    int64_t crowd_version; /* whose participants it names */
    /* The server. */
    bool down, answered;
    uint64_t heard_ms; /* when it last answered, or did not */
    uint64_t judge_ms; /* nobody is judged before */
};

/* A state: what it asks for, from what is known, and what the answer leads to. */
struct phase {
    void (*enter)(struct mu_classic *m, struct mu_classic_effects *out);
    void (*on_answer)(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out);
    enum mu_classic_state next; /* of a watch, and of a step of setting up: when nothing is in the way */
};

enum { PHASES_COUNT = MU_CLASSIC_IN_QUIT_DROP + 1 };

static const struct phase phases[PHASES_COUNT]; /* by state; below, where all of them are known */
static void enter(struct mu_classic *m, struct mu_classic_effects *out);

const char *mu_classic_state_text(enum mu_classic_state state)
{
    switch (state) {
#define X(name, text)                                                                                                  \
    case MU_CLASSIC_IN_##name:                                                                                         \
        return text;
        MU_CLASSIC_STATES(X)
#undef X
    }
    return "unknown";
}

const char *mu_classic_tell_text(enum mu_classic_tell tell)
{
    switch (tell) {
#define X(name, text)                                                                                                  \
    case MU_CLASSIC_TELL_##name:                                                                                       \
        return text;
        MU_CLASSIC_TELLS(X)
#undef X
    }
    return "unknown";
}

/* ---- Effects ---- */

static struct mu_classic_effect *add(struct mu_classic_effects *out, enum mu_classic_effect_type type)
{
    assert(out->count < MU_CLASSIC_EFFECTS_MAX);
    out->items[out->count] = (struct mu_classic_effect){ .type = type, .round = -1 };
    return &out->items[out->count++];
}

static struct mu_classic_effect *tell(struct mu_classic *m, enum mu_classic_tell what, struct mu_classic_effects *out)
{
    struct mu_classic_effect *effect = add(out, MU_CLASSIC_DO_TELL);

    effect->tell = what;
    effect->round = m->world.version;
    return effect;
}

static uint64_t until(const struct mu_classic *m, uint64_t when_ms)
{
    return when_ms > m->now_ms ? when_ms - m->now_ms : 1;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* `format` is what comes behind the job's root. */
__attribute__((format(printf, 5, 6))) static struct mu_classic_request *ask(struct mu_classic *m,
                                                                            struct mu_classic_effects *out,
                                                                            struct track *track,
                                                                            enum mu_classic_kind kind,
                                                                            const char *format, ...)
{
    struct mu_classic_request *request = &add(out, MU_CLASSIC_DO_REQUEST)->request;
    size_t used = (size_t)snprintf(track->key, sizeof track->key, "%s", m->root);
    uint64_t timeout_ms = MU_CLASSIC_REQUEST_MS;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(track->key + used, sizeof track->key - used, format, args); /* new() has left room */
    va_end(args);
    if (track == &m->main && m->joining && !m->quitting) /* its owner does not wait for much longer */
        timeout_ms = sooner(timeout_ms, until(m, m->join_deadline_ms) + DEADLINE_SLACK_MS);
    else if (track == &m->close)
        timeout_ms = sooner(timeout_ms, until(m, m->close_deadline_ms) + DEADLINE_SLACK_MS);
    track->id = ++m->last_id;
    track->watches = kind == MU_CLASSIC_WATCH;
    track->writes = kind == MU_CLASSIC_PUT || kind == MU_CLASSIC_DELETE;
    track->due_ms = NEVER;
    *request = (struct mu_classic_request){
        .id = track->id, .kind = kind, .key = mu_slice_str(track->key), .timeout_ms = timeout_ms
    };
    return request;
}

/* Nobody waits for it any more. If it was asked for in this very step, it never was. */
static void withdraw(struct track *track, struct mu_classic_effects *out)
{
    uint64_t id = track->id;

    track->id = 0;
    track->due_ms = NEVER;
    if (id == 0)
        return;
    for (unsigned i = 0; i < out->count; i++) {
        if (out->items[i].type == MU_CLASSIC_DO_REQUEST && out->items[i].request.id == id) {
            memmove(&out->items[i], &out->items[i + 1], (out->count - i - 1) * sizeof out->items[0]);
            out->count--;
            return;
        }
    }
    add(out, MU_CLASSIC_DO_CANCEL)->id = id;
}

static void go(struct mu_classic *m, enum mu_classic_state state, struct mu_classic_effects *out)
{
    m->state = state;
    enter(m, out);
}

static void pause_for(struct mu_classic *m, enum mu_classic_state next, uint64_t delay_ms)
{
    m->state = next;
    m->main.id = 0;
    m->main.due_ms = m->now_ms + delay_ms;
}

static void after_lost_write(struct mu_classic *m, enum mu_classic_state next)
{
    pause_for(m, next, mu_rng_below(&m->rng, MU_CLASSIC_CAS_DELAY_MS));
}

static void after_error(struct mu_classic *m, enum mu_classic_state next)
{
    pause_for(m, next, mu_rng_jitter(&m->rng, MU_CLASSIC_RETRY_MS, 50));
}

/* ---- Leaving, or giving up ---- */

static void forget_group(struct mu_classic *m)
{
    for (size_t i = 0; m->marks != NULL && i < m->world.count; i++)
        free(m->marks[i]);
    free(m->marks);
    free(m->lost);
    free(m->ranks);
    m->marks = NULL;
    m->lost = NULL;
    m->ranks = NULL;
    m->world = (struct mu_classic_world){ .version = -1 };
    m->over = m->lapsed = m->waiting_told = m->verify = m->refused = false;
    m->waiting = 0;
    m->recheck_ms = m->unmarked_ms = NEVER;
}

static void stop_rank_lease(struct mu_classic *m, struct mu_classic_effects *out)
{
    m->rank_leased = m->put_back = false;
    withdraw(&m->rank_lease, out);
}

/* It might come behind our deletion. */
static bool puts_back(const struct mu_classic *m)
{
    return m->rank_lease.id != 0 && m->put_back;
}

static bool is_writing(const struct mu_classic *m)
{
    return m->main.id != 0 && m->main.writes;
}

static void start_join(struct mu_classic *m, struct mu_classic_effects *out);

static void finish_quit(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_effect *effect;

    withdraw(&m->main, out);
    m->in = m->maybe_in = m->key_written = m->joining = m->quitting = m->timed_out = m->last_caller = false;
    m->announced = m->unsure_version = -1;
    m->old_version = -1;
    m->state = MU_CLASSIC_IN_IDLE;
    m->last_error.code = 0;
    if (m->quit_then == THEN_LEFT) {
        (void)tell(m, MU_CLASSIC_TELL_LEFT, out);
        forget_group(m);
    } else {
        effect = tell(m, MU_CLASSIC_TELL_FAILED, out);
        effect->asked = MU_CLASSIC_ON_JOIN;
        effect->error = &m->error;
    }
    if (m->join_next) {
        m->join_next = false;
        start_join(m, out);
    }
}

/* The time to take ourselves back is over: the next to leave or to join makes up for it. */
static void break_quit_off(struct mu_classic *m, struct mu_classic_effects *out)
{
    bool joins = m->main.id != 0 && m->state == MU_CLASSIC_IN_JOIN; /* it may have been done, or may yet be */
    bool maybe_in = m->in || m->maybe_in || joins;

    if (joins)
        m->in_version = m->doc.version;
    stop_rank_lease(m, out);
    finish_quit(m, out);
    m->maybe_in = maybe_in;
}

static void quit_next(struct mu_classic *m, struct mu_classic_effects *out)
{
    if (m->key_written)
        go(m, MU_CLASSIC_IN_QUIT_KEY, out);
    else if (m->in || m->maybe_in || m->announced >= 0)
        go(m, MU_CLASSIC_IN_QUIT_READ, out);
    else
        finish_quit(m, out);
}

static bool is_quit_state(enum mu_classic_state state)
{
    return state == MU_CLASSIC_IN_QUIT_KEY || state == MU_CLASSIC_IN_QUIT_READ || state == MU_CLASSIC_IN_QUIT_WRITE ||
           state == MU_CLASSIC_IN_QUIT_DROP;
}

/* What is under way and may change something is waited for: one has to know what is to be taken back. Who does not leave
 * waits for what is read as well: it may yet get in. */
static void quit_if_possible(struct mu_classic *m, bool answered, struct mu_classic_effects *out)
{
    bool awaited = m->main.writes || (!m->main.watches && m->quit_then == THEN_FAILED);

    if (!m->quitting || is_quit_state(m->state) || (m->main.id != 0 && awaited && !answered) || puts_back(m))
        return;
    withdraw(&m->main, out);
    stop_rank_lease(m, out);
    quit_next(m, out);
}

static void begin_quit(struct mu_classic *m, enum quit_then then, bool answered, struct mu_classic_effects *out)
{
    uint64_t until_ms = m->now_ms + (then == THEN_LEFT ? MU_CLASSIC_QUIT_MS : MU_CLASSIC_GIVE_UP_MS);

    if (!m->quitting || then == THEN_LEFT) { /* who leaves does not hear why it would not have got in */
        m->quit_then = then;
        m->quit_deadline_ms = m->quitting && m->quit_deadline_ms < until_ms ? m->quit_deadline_ms : until_ms;
    }
    m->quitting = true;
    quit_if_possible(m, answered, out);
}

/* The join ends with m->error. */
static void give_up(struct mu_classic *m, struct mu_classic_effects *out)
{
    begin_quit(m, THEN_FAILED, true, out);
}

/* ---- Answers that are none ---- */

static bool is_member_state(enum mu_classic_state state)
{
    return state == MU_CLASSIC_IN_MEMBER_READ || state == MU_CLASSIC_IN_MEMBER_MARK ||
           state == MU_CLASSIC_IN_MARK_WATCH || state == MU_CLASSIC_IN_MEMBER_LIST ||
           state == MU_CLASSIC_IN_MEMBER_WATCH || state == MU_CLASSIC_IN_MEMBER_KEY;
}

/* Trying again does not help. */
static bool is_final(const struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code > 0)
        return event->code < 300;
    return event->code == MUSTER_EINVAL || event->code == MUSTER_ENOTSUP || event->code == MUSTER_ERDZV_STATE ||
           (event->code == MUSTER_EPROTOCOL && !m->answered);
}

static void set_error(struct mu_classic *m, struct muster_error *to, const struct mu_classic_event *event)
{
    if (event->error != NULL)
        *to = *event->error;
    else
        (void)mu_fail(to, MUSTER_EINTERNAL, "%s: etcd's code %d", mu_classic_state_text(m->state), event->code);
    if (to->code != MUSTER_ERDZV_STATE && to->code != MUSTER_ENOMEM)
        to->code = MUSTER_ERDZV_CONNECTION;
}

static bool has_name(const struct mu_classic *m)
{
    return m->self_notice.name[0] != '\0';
}

/* Of those who have joined, the ones that we know by name: from the notices, unless the document has moved on since. */
static const struct mu_node *known_nodes(const struct mu_classic *m, size_t *ret_count)
{
    bool in = m->in && m->doc.version == m->in_version;

    if (m->crowd_version == m->doc.version && m->crowd.count > 0 && m->crowd.count <= m->doc.participants) {
        *ret_count = m->crowd.count;
        return m->crowd.nodes;
    }
    *ret_count = in && m->doc.participants == 1 && has_name(m); /* it is we */
    return &m->self_node;
}

static void set_timeout_error(struct mu_classic *m)
{
    struct mu_timeout_text came = { .waited_ms = m->join_ms,
                                    .joined = m->in ? (int64_t)m->doc.participants : 0,
                                    .nodes_min = m->nodes_min,
                                    .nodes_max = m->nodes_max };
    char text[MU_TIMEOUT_TEXT_MAX], note[MU_WAITERS_NOTE_MAX];
    const char *then = mu_waiters_note(&m->crowd, note) != NULL ? "; " : "";

    came.nodes = known_nodes(m, &came.nodes_count);
    if (!m->in)
        came.nodes_count = 0;
    if (came.nodes_count == MU_WAITERS_NAMES_MAX)
        came.nodes_count = m->doc.participants; /* so many more are counted */

    if (m->last_error.code != 0)
        (void)mu_fail(&m->error, MUSTER_ERDZV_TIMEOUT, "timed out after %" PRIu64 " s; the last error was: %.700s",
                      m->join_ms / 1000, m->last_error.text);
    else if (m->announced >= 0)
        (void)mu_fail(&m->error, MUSTER_ERDZV_TIMEOUT,
                      "timed out after %" PRIu64 " s of waiting for the group of version %" PRId64 " to end%s%s",
                      m->join_ms / 1000, m->announced, then, note);
    else
        (void)mu_fail(&m->error, MUSTER_ERDZV_TIMEOUT, "%s%s%s; the last step: %s", mu_timeout_text_write(&came, text),
                      then, note, mu_classic_state_text(m->state));
}

/* The request of this state has failed: from `again` on it is tried again, or not. */
static void failed(struct mu_classic *m, const struct mu_classic_event *event, enum mu_classic_state again,
                   struct mu_classic_effects *out)
{
    set_error(m, &m->last_error, event);
    if (m->quitting && m->timed_out)
        set_timeout_error(m); /* that is why */
    if (!is_final(m, event)) {
        after_error(m, again);
        return;
    }
    if (is_member_state(m->state) || m->world.version >= 0) {
        after_error(m, again); /* the group is not given up for what somebody has written there */
        return;
    }
    m->error = m->last_error;
    give_up(m, out);
}

static void failed_with(struct mu_classic *m, int code, const struct muster_error *error, enum mu_classic_state again,
                        struct mu_classic_effects *out)
{
    const struct mu_classic_event event = { .code = code, .error = error };

    failed(m, &event, again, out);
}

static void no_memory(struct mu_classic *m, enum mu_classic_state again, struct mu_classic_effects *out)
{
    struct muster_error error;

    (void)mu_fail(&error, MUSTER_ENOMEM, "no memory to %s", mu_classic_state_text(m->state));
    failed_with(m, MUSTER_ENOMEM, &error, again, out);
}

/* Reads the document of a GET's answer. 0, or below 0: `error` says why. */
static int take_doc(struct mu_classic *m, struct mu_slice text, uint64_t index, struct muster_error *error)
{
    struct mu_classic_doc doc;
    int rc = mu_classic_doc_read(text, &doc, error);

    if (rc < 0)
        return rc;
    rc = mu_buf_assign(&m->raw, text);
    if (rc < 0) {
        mu_classic_doc_done(&doc);
        return mu_fail(error, MUSTER_ENOMEM, "no memory for the document");
    }
    mu_classic_doc_done(&m->doc);
    m->doc = doc;
    m->index = index;
    m->idle_events = 0;
    if (m->joining && !m->quitting)
        m->last_error.code = 0;
    return 0;
}

/* What we wrote is what is there now. */
static int take_written(struct mu_classic *m, const struct mu_classic_event *event)
{
    struct muster_error error;

    return take_doc(m, mu_buf_slice(&m->main.value), event->modified, &error);
}

/* The document of a GET, or what is to be done instead. */
static bool got_doc(struct mu_classic *m, const struct mu_classic_event *event, enum mu_classic_state again,
                    struct mu_classic_effects *out)
{
    struct muster_error error;
    int rc;

    if (event->code != 0) {
        failed(m, event, again, out);
        return false;
    }
    rc = take_doc(m, event->value, event->index, &error);
    if (rc < 0)
        failed_with(m, rc, &error, again, out);
    return rc == 0;
}

static bool is_there(const struct mu_classic *m, enum mu_classic_status status, int64_t version)
{
    return m->doc.status == status && m->doc.version == version;
}

/* Since we last read the document the server has lost everything: it counts from 1 again, and what it is asked goes through
 * a majority, so that it is none that lags behind. */
static bool counts_anew(const struct mu_classic *m, const struct mu_classic_event *event)
{
    return event->index != 0 && event->index < m->index;
}

/* ---- Making requests ---- */

static void put_doc(struct mu_classic *m, struct mu_classic_effects *out, int rc, int64_t ttl_s,
                    enum mu_classic_state again)
{
    struct mu_classic_request *request;

    if (rc < 0) {
        no_memory(m, again, out);
        return;
    }
    request = ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/active_version");
    request->has_value = request->has_prev_value = true;
    request->value = mu_buf_slice(&m->main.value);
    request->prev_value = mu_buf_slice(&m->raw);
    request->ttl_s = ttl_s;
}

static void drop_doc(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_request *request = ask(m, out, &m->main, MU_CLASSIC_DELETE, "/rdzv/active_version");

    request->has_prev_value = true;
    request->prev_value = mu_buf_slice(&m->raw);
}

static void get_doc(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)ask(m, out, &m->main, MU_CLASSIC_GET, "/rdzv/active_version");
}

static void get_self(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)ask(m, out, &m->main, MU_CLASSIC_GET, SELF, m->self);
}

/* A connection that ends may have been that of a server that has lost everything since. Made again, a watch from the index
 * that we know would wait there for what will not come for a long time: what is there is read first. But not by who waits
 * for a group to end: it leaves it to the members to put their group back, and would be faster than they with a new one. */
static void watch(struct mu_classic *m, bool group, uint64_t timeout_ms, struct mu_classic_effects *out)
{
    struct mu_classic_request *request =
        ask(m, out, &m->main, MU_CLASSIC_WATCH, "%s", group ? "/rdzv" : "/rdzv/active_version");

    request->once = m->state != MU_CLASSIC_IN_FREE_WATCH;
    request->recursive = group;
    request->wait_index = m->index + 1;
    request->timeout_ms = timeout_ms;
}

static void put_dir(struct mu_classic_request *request)
{
    request->dir = request->must_not_exist = true;
}

static void put_rank_key(struct mu_classic_request *request)
{
    request->has_value = true;
    request->value = mu_slice_str("");
    request->ttl_s = MU_CLASSIC_RANK_TTL_S;
}

static void prepare(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_request *request;
    char text[24];

    if (m->step == MAKE_PREFIX && strcmp(m->prefix, "/") == 0)
        m->step = MAKE_JOB;
    switch (m->step) {
    case MAKE_PREFIX:
        request = ask(m, out, &m->main, MU_CLASSIC_PUT, "%s", "");
        (void)snprintf(m->main.key, sizeof m->main.key, "%s", m->prefix);
        request->key = mu_slice_str(m->main.key);
        put_dir(request);
        break;
    case MAKE_JOB:
        request = ask(m, out, &m->main, MU_CLASSIC_PUT, "%s", "");
        put_dir(request);
        request->ttl_s = MU_CLASSIC_ROOT_TTL_S;
        break;
    case MAKE_RDZV:
        put_dir(ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv"));
        break;
    case MAKE_COUNTER:
        (void)snprintf(text, sizeof text, "%" PRId64, m->restoring ? m->world.version : 0);
        if (mu_buf_assign(&m->main.value, mu_slice_str(text)) < 0) {
            no_memory(m, MU_CLASSIC_IN_PREPARE, out);
            return;
        }
        request = ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/version_counter");
        request->has_value = request->must_not_exist = true;
        request->value = mu_buf_slice(&m->main.value);
        break;
    case MAKE_SELF:
        request = ask(m, out, &m->main, MU_CLASSIC_PUT, SELF, m->self);
        request->has_value = true;
        request->value = mu_slice_str(m->node);
        break;
    case PUT_KEY:
        put_rank_key(ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64 "/rank_%" PRId64, m->world.version,
                         m->world.rank));
        break;
    case PUT_STORE:
        put_dir(ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64 "/kv", m->world.version));
        break;
    case PUT_DOC:
        request = ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/active_version");
        request->has_value = request->must_not_exist = true;
        request->value = mu_buf_slice(&m->group_raw);
        break;
    case FIND_DOC:
        get_doc(m, out);
        break;
    case FIND_SELF:
        get_self(m, out);
        break;
    case PUT_MARK: /* of all of us: who finds its own knows that it is our group that was put back */
        request =
            ask(m, out, &m->main, MU_CLASSIC_PUT, "/muster/v_%" PRId64 "/rank_%zu", m->world.version, m->mark_rank);
        request->has_value = request->must_not_exist = true;
        request->value = mu_slice_str(m->marks[m->mark_rank]);
        break;
    case RESTORED:
        break;
    }
}

static void enter_count(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_request *request;
    char text[24];

    (void)snprintf(text, sizeof text, "%" PRId64, m->counter);
    if (mu_buf_assign(&m->main.value, mu_slice_str(text)) < 0) {
        no_memory(m, MU_CLASSIC_IN_LOOK, out);
        return;
    }
    request = ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/version_counter");
    request->has_value = request->must_exist = true;
    request->value = mu_buf_slice(&m->main.value);
    request->prev_index = m->counter_index;
}

static void enter_create(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_request *request;

    if (mu_classic_doc_setup(&m->main.value) < 0) {
        no_memory(m, MU_CLASSIC_IN_LOOK, out);
        return;
    }
    request = ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/active_version");
    request->has_value = request->must_not_exist = true;
    request->value = mu_buf_slice(&m->main.value);
    request->ttl_s = MU_CLASSIC_SETUP_TTL_S;
}

static void enter_join(struct mu_classic *m, struct mu_classic_effects *out)
{
    int64_t count = (int64_t)m->doc.participants + 1;
    bool freeze = count == m->nodes_max;
    int64_t ttl_s = freeze ? MU_CLASSIC_FROZEN_TTL_S : count >= m->nodes_min ? MU_CLASSIC_JOINABLE_TTL_S : 0;

    put_doc(m, out, mu_classic_doc_joined(&m->doc, freeze, &m->main.value), ttl_s, MU_CLASSIC_IN_LOOK);
}

/* The next version after a group that was all ours, with enough nodes: its members may end the last call. */
static bool judges_last_call(const struct mu_classic *m)
{
    return m->old_version >= 0 && m->old_ours && is_there(m, MU_CLASSIC_JOINABLE, m->old_version + 1) &&
           (int64_t)m->doc.participants >= m->nodes_min;
}

static uint64_t until_recheck(const struct mu_classic *m)
{
    return m->recheck_ms == NEVER ? NEVER : until(m, m->recheck_ms);
}

static void enter_last_watch(struct mu_classic *m, struct mu_classic_effects *out)
{
    uint64_t touch_ms = m->touched_ms + MU_CLASSIC_TOUCH_MS;
    uint64_t until_ms = sooner(until(m, touch_ms), until(m, m->last_call_until_ms));

    watch(m, judges_last_call(m), sooner(until_ms, until_recheck(m)), out);
}

static void own_key(const struct mu_classic *m, char key[static MU_CLASSIC_KEY_MAX])
{
    (void)snprintf(key, MU_CLASSIC_KEY_MAX, ROOT "/rdzv/v_%" PRId64 "/rank_%" PRId64, m->root, m->in_version, m->rank);
}

static void enter_confirm_write(struct mu_classic *m, struct mu_classic_effects *out)
{
    char key[MU_CLASSIC_KEY_MAX];
    bool last = m->doc.keep_alives + 1 == m->doc.participants;

    m->confirms = true;
    own_key(m, key);
    put_doc(m, out, mu_classic_doc_confirmed(&m->doc, key, &m->main.value), last ? 0 : MU_CLASSIC_FROZEN_TTL_S,
            MU_CLASSIC_IN_CONFIRM_READ);
}

static void enter_quit_write(struct mu_classic *m, struct mu_classic_effects *out)
{
    int64_t left = (int64_t)m->doc.participants - 1;

    if (m->doc.status == MU_CLASSIC_FINAL)
        put_doc(m, out, mu_classic_doc_waiting(&m->doc, m->doc.waiting - 1, &m->main.value), 0,
                MU_CLASSIC_IN_QUIT_READ);
    else
        put_doc(m, out, mu_classic_doc_left(&m->doc, &m->main.value),
                left >= m->nodes_min ? MU_CLASSIC_JOINABLE_TTL_S : 0, MU_CLASSIC_IN_QUIT_READ);
}

static void put_mark(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_request *request =
        ask(m, out, &m->main, MU_CLASSIC_PUT, "/muster/v_%" PRId64 "/rank_%" PRId64, m->in_version, m->rank);

    request->has_value = request->must_not_exist = true; /* whose it is, is seen when all are read */
    request->value = mu_slice_str(m->node);
}

static void enter_nothing(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)m;
    (void)out;
}

static void delete_key(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)ask(m, out, &m->main, MU_CLASSIC_DELETE, "/rdzv/v_%" PRId64 "/rank_%" PRId64, m->key_version, m->key_rank);
}

static void get_counter(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)ask(m, out, &m->main, MU_CLASSIC_GET, "/rdzv/version_counter");
}

static void make_version_dir(struct mu_classic *m, struct mu_classic_effects *out)
{
    put_dir(ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64, m->counter));
}

static void make_store_dir(struct mu_classic *m, struct mu_classic_effects *out)
{
    put_dir(ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64 "/kv", m->in_version));
}

static void enter_open(struct mu_classic *m, struct mu_classic_effects *out)
{
    put_doc(m, out, mu_classic_doc_joinable(m->counter, &m->main.value), 0, MU_CLASSIC_IN_LOOK);
}

static void enter_touch(struct mu_classic *m, struct mu_classic_effects *out)
{
    put_doc(m, out, mu_buf_assign(&m->main.value, mu_buf_slice(&m->raw)), MU_CLASSIC_JOINABLE_TTL_S,
            MU_CLASSIC_IN_LAST_READ);
}

static enum mu_classic_state read_again(const struct mu_classic *m)
{
    return m->last_caller ? MU_CLASSIC_IN_LAST_READ : MU_CLASSIC_IN_PEERS_READ;
}

static void enter_freeze(struct mu_classic *m, struct mu_classic_effects *out)
{
    put_doc(m, out, mu_classic_doc_frozen(&m->doc, &m->main.value), MU_CLASSIC_FROZEN_TTL_S, read_again(m));
}

static void enter_announce(struct mu_classic *m, struct mu_classic_effects *out)
{
    put_doc(m, out, mu_classic_doc_waiting(&m->doc, m->doc.waiting + 1, &m->main.value), 0, MU_CLASSIC_IN_LOOK);
}

static void enter_confirm_key(struct mu_classic *m, struct mu_classic_effects *out)
{
    m->key_written = true; /* if there is no answer, nobody knows */
    m->key_version = m->in_version;
    m->key_rank = m->rank;
    put_rank_key(ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64 "/rank_%" PRId64, m->in_version, m->rank));
}

static void enter_member_key(struct mu_classic *m, struct mu_classic_effects *out)
{
    put_rank_key(
        ask(m, out, &m->main, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64 "/rank_%" PRId64, m->world.version, m->world.rank));
}

static void get_marks(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)ask(m, out, &m->main, MU_CLASSIC_GET, "/muster/v_%" PRId64, m->in_version);
}

static void get_own_mark(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)ask(m, out, &m->main, MU_CLASSIC_GET, "/muster/v_%" PRId64 "/rank_%" PRId64, m->world.version, m->world.rank);
}

static void list_awaited(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)ask(m, out, &m->main, MU_CLASSIC_GET, "/rdzv/v_%" PRId64, m->doc.version);
}

static void list_last_group(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)ask(m, out, &m->main, MU_CLASSIC_GET, "/rdzv/v_%" PRId64, m->old_version);
}

static void list_members(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)ask(m, out, &m->main, MU_CLASSIC_GET, "/rdzv/v_%" PRId64, m->world.version);
}

static void watch_document(struct mu_classic *m, struct mu_classic_effects *out)
{
    watch(m, false, sooner(MU_CLASSIC_WATCH_MS, until(m, m->join_deadline_ms)), out);
}

static void watch_peers(struct mu_classic *m, struct mu_classic_effects *out)
{
    uint64_t until_ms = sooner(MU_CLASSIC_WATCH_MS, until(m, m->join_deadline_ms));

    watch(m, judges_last_call(m), sooner(until_ms, until_recheck(m)), out);
}

static void watch_awaited(struct mu_classic *m, struct mu_classic_effects *out)
{
    uint64_t until_ms = sooner(MU_CLASSIC_WATCH_MS, until(m, m->join_deadline_ms));

    watch(m, true, sooner(until_ms, until_recheck(m)), out);
}

/* After an outage whoever writes it has to find the server first. */
static uint64_t marked_until_ms(const struct mu_classic *m)
{
    uint64_t until_ms = m->unmarked_ms + MU_CLASSIC_GRACE_MS;

    return until_ms > m->judge_ms ? until_ms : m->judge_ms;
}

static void watch_own_mark(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_request *request =
        ask(m, out, &m->main, MU_CLASSIC_WATCH, "/muster/v_%" PRId64 "/rank_%" PRId64, m->world.version, m->world.rank);

    request->once = true;
    request->wait_index = m->mark_index + 1;
    request->timeout_ms = until(m, marked_until_ms(m));
}

static void watch_members(struct mu_classic *m, struct mu_classic_effects *out)
{
    watch(m, true, sooner(MU_CLASSIC_WATCH_MS, until_recheck(m)), out);
}

/* The number behind "<root>/<where>/v_<version>/rank_", or -1. */
static int64_t rank_of(const struct mu_classic *m, struct mu_slice key, const char *where, int64_t version)
{
    char prefix[MU_CLASSIC_KEY_MAX], number[20];
    size_t len = (size_t)snprintf(prefix, sizeof prefix, ROOT "/%s/v_%" PRId64 "/rank_", m->root, where, version);

    if (key.len <= len || key.len - len > 9 || memcmp(key.data, prefix, len) != 0)
        return -1;
    memcpy(number, key.data + len, key.len - len);
    number[key.len - len] = '\0';
    return strspn(number, "0123456789") == key.len - len ? strtoll(number, NULL, 10) : -1;
}

/* ---- Joining ---- */

/* What says that the server has lost nothing since is written each time: it may have lost it before. */
static void begin_anew(struct mu_classic *m, struct mu_classic_effects *out)
{
    m->step = m->prepared ? MAKE_SELF : MAKE_PREFIX;
    go(m, MU_CLASSIC_IN_PREPARE, out);
}

static void begin_notices(struct mu_classic *m)
{
    m->look_at_ms = m->notice_at_ms = m->now_ms + mu_waiters_next_ms(0, m->join_ms);
    m->notices_known = m->alike = false;
    m->crowd = (struct mu_waiters){ .any_limits = true };
    m->crowd_version = -1;
}

static void start_join(struct mu_classic *m, struct mu_classic_effects *out)
{
    uint64_t lasted_ms = m->now_ms - m->joined_ms;

    if (m->world.version >= 0 && lasted_ms < MU_CLASSIC_HOLD_ROUND_MS)
        m->hold_ms = m->hold_ms == 0 ? MU_CLASSIC_HOLD_MS : sooner(m->hold_ms * 2, MU_CLASSIC_HOLD_MAX_MS);
    else
        m->hold_ms = 0;
    m->old_version = m->world.version;
    m->old_ours = m->world.all_ours;
    m->old_count = m->world.count;
    m->old_waiting = m->waiting;
    m->old_gone_ms = NEVER;
    m->joining = true;
    m->join_since_ms = m->now_ms;
    m->join_deadline_ms = m->now_ms + m->join_ms;
    begin_notices(m);
    m->last_error.code = 0;
    m->restoring = false;
    forget_group(m);
    if (m->key_written && m->old_ours)
        go(m, MU_CLASSIC_IN_REJOIN_KEY, out);
    else /* PyTorch members see that somebody waits, for as long as the key does */
        begin_anew(m, out);
}

static void on_rejoin_key(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        failed(m, event, MU_CLASSIC_IN_REJOIN_KEY, out);
        return;
    }
    m->key_written = false;
    begin_anew(m, out);
}

/* Whatever we were in is no more. */
static void look_again(struct mu_classic *m, struct mu_classic_effects *out)
{
    m->in = m->last_caller = false;
    m->announced = -1;
    if (!is_there(m, MU_CLASSIC_CLOSED, m->key_version))
        m->key_written = false; /* of a version that is over */
    stop_rank_lease(m, out);
    begin_anew(m, out);
}

/* The document is what was to be put back, and came behind our last write before that. */
static bool found_own_doc(const struct mu_classic *m, const struct mu_classic_event *event)
{
    return event->modified > m->put_index && mu_slice_equal(event->value, mu_buf_slice(&m->group_raw));
}

/* The marks come behind the document, and only if that is ours: where another one was there first, they would say of another
 * group of the same number that it is this one. */
static enum prepare_step next_step(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (m->step == PUT_STORE)
        m->put_index = event->modified > event->index ? event->modified : event->index;
    if (m->step < PUT_DOC)
        return m->step + 1;
    if (m->step == FIND_DOC && event->code == MU_CLASSIC_CODE_NOT_FOUND)
        return PUT_DOC;
    if (m->step == PUT_MARK ? counts_anew(m, event) : event->code != 0)
        return RESTORED;
    if (m->step == FIND_DOC && !found_own_doc(m, event))
        return RESTORED;
    if (m->step == PUT_DOC || m->step == FIND_DOC)
        m->index = event->modified;
    if (m->step == FIND_DOC)
        return FIND_SELF;
    m->mark_rank = m->step == PUT_MARK ? m->mark_rank + 1 : 0;
    while (m->mark_rank < m->world.count && m->marks[m->mark_rank] == NULL)
        m->mark_rank++;
    return m->mark_rank < m->world.count ? PUT_MARK : RESTORED;
}

static void on_prepared(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    bool is_missing = (m->step == FIND_DOC || m->step == FIND_SELF) && event->code == MU_CLASSIC_CODE_NOT_FOUND;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_EXISTS && !is_missing) {
        if (m->step == PUT_DOC && event->unsure)
            m->step = FIND_DOC;
        failed(m, event, MU_CLASSIC_IN_PREPARE, out);
        return;
    }
    if (m->step == MAKE_JOB) {
        m->job_leased = true;
        m->job_lease.due_ms = m->job_lease.id == 0 ? m->now_ms : NEVER;
    }
    m->step = next_step(m, event);
    if (m->step < (m->restoring ? RESTORED : PREPARED)) {
        go(m, MU_CLASSIC_IN_PREPARE, out);
        return;
    }
    m->prepared = true;
    if (m->restoring) {
        m->restoring = false;
        m->judge_ms = m->now_ms + MU_CLASSIC_GRACE_MS;
        go(m, MU_CLASSIC_IN_MEMBER_READ, out);
        return;
    }
    go(m, MU_CLASSIC_IN_LOOK, out);
}

static void is_closed(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)mu_fail(&m->error, MUSTER_ERDZV_CLOSED, "the rendezvous is closed");
    give_up(m, out);
}

static void progress(struct mu_classic *m, struct mu_classic_effects *out)
{
    (void)tell(m, MU_CLASSIC_TELL_PROGRESS, out);
}

static void join_final(struct mu_classic *m, struct mu_classic_effects *out)
{
    if (m->doc.version == m->old_version && m->old_ours) {
        go(m, MU_CLASSIC_IN_DROP, out); /* nobody of PyTorch's has to see first that we wait */
    } else if (m->announced == m->doc.version ||
               (m->unsure_version == m->doc.version && m->doc.waiting > m->unsure_waiting)) {
        m->announced_ms = m->announced == m->doc.version ? m->announced_ms : m->now_ms;
        m->announced_surely &= m->announced == m->doc.version;
        m->announced = m->doc.version;
        m->unsure_version = -1;
        go(m, MU_CLASSIC_IN_FREE_LIST, out);
    } else {
        go(m, MU_CLASSIC_IN_ANNOUNCE, out);
    }
}

static void on_looked(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        m->maybe_in = false;
        go(m, MU_CLASSIC_IN_CREATE, out);
        return;
    }
    if (!got_doc(m, event, MU_CLASSIC_IN_LOOK, out))
        return;
    progress(m, out);
    if (m->doc.version != m->in_version || m->doc.status == MU_CLASSIC_FINAL)
        m->maybe_in = false;
    switch (m->doc.status) {
    case MU_CLASSIC_CLOSED:
        is_closed(m, out);
        break;
    case MU_CLASSIC_JOINABLE:
        if (m->maybe_in)
            go(m, MU_CLASSIC_IN_DROP, out);
        else
            go(m, (int64_t)m->doc.participants < m->nodes_max ? MU_CLASSIC_IN_JOIN : MU_CLASSIC_IN_LOOK_WATCH, out);
        break;
    case MU_CLASSIC_FROZEN:
        go(m, m->maybe_in ? MU_CLASSIC_IN_DROP : MU_CLASSIC_IN_LOOK_WATCH, out);
        break;
    case MU_CLASSIC_SETUP:
        go(m, MU_CLASSIC_IN_LOOK_WATCH, out);
        break;
    case MU_CLASSIC_FINAL:
        join_final(m, out);
        break;
    }
}

static void on_dropped(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == 0 || event->code == MU_CLASSIC_CODE_NOT_FOUND || event->code == MU_CLASSIC_CODE_COMPARE) {
        if (event->code == 0)
            m->maybe_in = false;
        m->announced = event->code == MU_CLASSIC_CODE_COMPARE ? m->announced : -1;
        go(m, MU_CLASSIC_IN_LOOK, out);
    } else {
        failed(m, event, MU_CLASSIC_IN_LOOK, out);
    }
}

/* ---- Joining: a new document ---- */

static void on_created(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_EXISTS)
        go(m, MU_CLASSIC_IN_LOOK, out);
    else if (event->code != 0)
        failed(m, event, MU_CLASSIC_IN_LOOK, out);
    else if (take_written(m, event) < 0)
        no_memory(m, MU_CLASSIC_IN_LOOK, out);
    else
        go(m, MU_CLASSIC_IN_COUNT_READ, out);
}

static void on_count_read(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    char text[24];
    struct muster_error error;

    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) { /* the job's root has expired, or the server has lost all */
        m->prepared = false;
        m->step = MAKE_PREFIX;
        pause_for(m, MU_CLASSIC_IN_PREPARE, mu_rng_below(&m->rng, MU_CLASSIC_CAS_DELAY_MS));
        return;
    }
    if (event->code != 0) {
        failed(m, event, MU_CLASSIC_IN_LOOK, out);
        return;
    }
    if (event->value.len == 0 || event->value.len > 18) {
        (void)mu_fail(&error, MUSTER_ERDZV_STATE, "the version counter is no number");
        failed_with(m, MUSTER_ERDZV_STATE, &error, MU_CLASSIC_IN_LOOK, out);
        return;
    }
    memcpy(text, event->value.data, event->value.len);
    text[event->value.len] = '\0';
    if (strspn(text, "0123456789") != event->value.len) {
        (void)mu_fail(&error, MUSTER_ERDZV_STATE, "the version counter is no number: '%s'", text);
        failed_with(m, MUSTER_ERDZV_STATE, &error, MU_CLASSIC_IN_LOOK, out);
        return;
    }
    m->counter = strtoll(text, NULL, 10) + 1;
    m->counter_index = event->modified;
    go(m, MU_CLASSIC_IN_COUNT_WRITE, out);
}

/* COUNT_WRITE, MAKE_DIR and a failed OPEN. Where another one was faster, our time to set up was over. */
static void on_set_up(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == 0)
        go(m, phases[m->state].next, out);
    else if (event->code == MU_CLASSIC_CODE_NOT_FOUND || event->code == MU_CLASSIC_CODE_COMPARE ||
             event->code == MU_CLASSIC_CODE_EXISTS)
        after_lost_write(m, MU_CLASSIC_IN_LOOK);
    else
        failed(m, event, MU_CLASSIC_IN_LOOK, out);
}

static void on_opened(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code != 0)
        on_set_up(m, event, out);
    else if (take_written(m, event) < 0)
        no_memory(m, MU_CLASSIC_IN_LOOK, out);
    else
        go(m, MU_CLASSIC_IN_JOIN, out);
}

/* ---- Joining: taking part ---- */

static void wait_for_peers(struct mu_classic *m, struct mu_classic_effects *out)
{
    m->recheck_ms = NEVER;
    if (judges_last_call(m))
        go(m, MU_CLASSIC_IN_PAST_LIST, out);
    else
        go(m, m->last_caller ? MU_CLASSIC_IN_LAST_WATCH : MU_CLASSIC_IN_PEERS_WATCH, out);
}

static void joined(struct mu_classic *m, struct mu_classic_effects *out)
{
    progress(m, out);
    if (m->doc.status == MU_CLASSIC_FROZEN) {
        go(m, MU_CLASSIC_IN_CONFIRM_KEY, out);
        return;
    }
    if (m->rank == m->nodes_min - 1) {
        m->last_caller = true;
        m->last_call_until_ms = m->now_ms + m->last_call_ms;
        m->touched_ms = m->now_ms;
    }
    wait_for_peers(m, out);
}

static void on_join(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_COMPARE || event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        after_lost_write(m, MU_CLASSIC_IN_LOOK);
        return;
    }
    m->in_version = m->doc.version;
    if (event->code != 0) {
        m->maybe_in = event->code < 0 && event->unsure;
        failed(m, event, MU_CLASSIC_IN_LOOK, out);
        return;
    }
    m->rank = (int64_t)m->doc.participants;
    m->in = true;
    m->in_index = event->modified;
    m->confirms = m->confirms_unsurely = false;
    m->key_written = false; /* of an older group: it is left to its TTL */
    m->announced = -1;
    if (take_written(m, event) < 0) {
        m->index = event->modified;
        no_memory(m, MU_CLASSIC_IN_PEERS_READ, out);
        return;
    }
    joined(m, out);
}

/* Than our own joining: the server has lost everything since, and this is another document of the same number. */
static bool is_older(const struct mu_classic *m, const struct mu_classic_event *event)
{
    return event->code == 0 && event->modified < m->in_index;
}

static void on_last_read(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    bool news;

    if (event->code == MU_CLASSIC_CODE_NOT_FOUND || is_older(m, event)) {
        look_again(m, out);
        return;
    }
    news = event->code == 0 && !mu_slice_equal(event->value, mu_buf_slice(&m->raw));
    if (!got_doc(m, event, MU_CLASSIC_IN_LAST_READ, out))
        return;
    if (news) {
        m->touched_ms = m->now_ms; /* who joins renews the TTL */
        progress(m, out);
    }
    if (is_there(m, MU_CLASSIC_FROZEN, m->in_version))
        go(m, MU_CLASSIC_IN_CONFIRM_KEY, out);
    else if (!is_there(m, MU_CLASSIC_JOINABLE, m->in_version) || (int64_t)m->doc.participants <= m->rank)
        look_again(m, out);
    else if (m->now_ms >= m->last_call_until_ms)
        go(m, MU_CLASSIC_IN_LAST_FREEZE, out);
    else if (m->now_ms >= m->touched_ms + MU_CLASSIC_TOUCH_MS)
        go(m, MU_CLASSIC_IN_LAST_TOUCH, out);
    else
        wait_for_peers(m, out);
}

/* LAST_TOUCH and LAST_FREEZE. */
static void on_last_written(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_COMPARE || event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        after_lost_write(m, read_again(m));
    } else if (event->code != 0) {
        failed(m, event, read_again(m), out);
    } else if (take_written(m, event) < 0) {
        no_memory(m, read_again(m), out);
    } else if (m->state == MU_CLASSIC_IN_LAST_FREEZE) {
        go(m, MU_CLASSIC_IN_CONFIRM_KEY, out);
    } else {
        m->touched_ms = m->now_ms;
        go(m, MU_CLASSIC_IN_LAST_WATCH, out);
    }
}

static void on_peers_read(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    bool is_in;

    if (event->code == MU_CLASSIC_CODE_NOT_FOUND || is_older(m, event)) {
        look_again(m, out);
        return;
    }
    if (!got_doc(m, event, MU_CLASSIC_IN_PEERS_READ, out))
        return;
    progress(m, out);
    is_in = (int64_t)m->doc.participants > m->rank;
    if (is_in && is_there(m, MU_CLASSIC_FROZEN, m->in_version))
        go(m, MU_CLASSIC_IN_CONFIRM_KEY, out);
    else if (!is_in || !is_there(m, MU_CLASSIC_JOINABLE, m->in_version))
        look_again(m, out);
    else if (m->last_caller)
        go(m, MU_CLASSIC_IN_LAST_READ, out);
    else
        wait_for_peers(m, out);
}

/* Those who are back have deleted their keep-alive of the last group, and so have those who left. */
static bool is_last_group_gone(const struct mu_classic *m, const struct mu_classic_event *event)
{
    for (size_t i = 0; i < event->nodes_count; i++)
        if (rank_of(m, event->nodes[i].key, "rdzv", m->old_version) >= 0)
            return false;
    return true;
}

/* All who are known to come are in: the one who came last, and the one whose last call it is, need not wait for more. */
static void on_past_list(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    bool all_in = (int64_t)m->doc.participants >= (int64_t)m->old_count + m->old_waiting;
    bool first = m->last_caller || m->rank + 1 == (int64_t)m->doc.participants;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        failed(m, event, read_again(m), out);
        return;
    }
    if (!is_last_group_gone(m, event))
        m->old_gone_ms = NEVER;
    else if (m->old_gone_ms == NEVER)
        m->old_gone_ms = m->now_ms;
    if (m->old_gone_ms != NEVER && (all_in || m->old_waiting == 0)) {
        m->recheck_ms = m->old_gone_ms + MU_CLASSIC_SETTLE_MS;
        if ((all_in && first) || m->now_ms >= m->recheck_ms) {
            go(m, MU_CLASSIC_IN_LAST_FREEZE, out);
            return;
        }
    }
    go(m, m->last_caller ? MU_CLASSIC_IN_LAST_WATCH : MU_CLASSIC_IN_PEERS_WATCH, out);
}

/* ---- Joining: confirming ---- */

static void on_confirm_key(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code != 0) {
        failed(m, event, MU_CLASSIC_IN_PEERS_READ, out);
        return;
    }
    m->rank_leased = true;
    m->renewed_ms = m->now_ms;
    m->rank_lease.due_ms = m->now_ms + RANK_EVERY_MS;
    go(m, MU_CLASSIC_IN_CONFIRM_MARK, out);
}

static void on_confirm_mark(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_EXISTS)
        failed(m, event, MU_CLASSIC_IN_CONFIRM_MARK, out);
    else
        go(m, MU_CLASSIC_IN_CONFIRM_WRITE, out);
}

/* How often our key is in the document. */
static size_t count_confirmed(const struct mu_classic *m)
{
    char key[MU_CLASSIC_KEY_MAX];

    own_key(m, key);
    return mu_classic_doc_count_keep_alive(&m->doc, key);
}

/* Where the server has lost everything, PyTorch may have our place in a document that is like ours: then our key is there
 * without our doing, or twice. Where we do not know whether it is our doing, we look whether everything was lost. */
static void judge_confirmations(struct mu_classic *m, struct mu_classic_effects *out)
{
    size_t count = m->doc.version == m->in_version ? count_confirmed(m) : 0;
    bool confirmed = count == 1 && m->confirms;
    bool has_place = (int64_t)m->doc.participants > m->rank && (count == 0 || confirmed);

    if (has_place && confirmed && m->confirms_unsurely)
        go(m, MU_CLASSIC_IN_CONFIRM_SELF, out);
    else if (has_place && confirmed && is_there(m, MU_CLASSIC_FINAL, m->in_version))
        go(m, MU_CLASSIC_IN_STORE_DIR, out);
    else if (has_place && is_there(m, MU_CLASSIC_FROZEN, m->in_version))
        go(m, confirmed ? MU_CLASSIC_IN_FINAL_WATCH : MU_CLASSIC_IN_CONFIRM_WRITE, out);
    else
        look_again(m, out);
}

static void on_confirm_self(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        m->prepared = false;
        look_again(m, out);
    } else if (event->code != 0) {
        failed(m, event, MU_CLASSIC_IN_CONFIRM_READ, out);
    } else {
        m->confirms_unsurely = false;
        judge_confirmations(m, out);
    }
}

static void on_confirm_read(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND || is_older(m, event))
        look_again(m, out);
    else if (got_doc(m, event, MU_CLASSIC_IN_CONFIRM_READ, out))
        judge_confirmations(m, out);
}

static void on_confirmed(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    /* One before that had no answer may have been carried out just now. */
    m->confirms_unsurely = event->code != 0 && (m->confirms_unsurely || event->unsure);
    if (event->code != 0 && !m->confirms_unsurely)
        m->confirms = false;
    if (event->code == MU_CLASSIC_CODE_COMPARE || event->code == MU_CLASSIC_CODE_NOT_FOUND)
        after_lost_write(m, MU_CLASSIC_IN_CONFIRM_READ);
    else if (event->code != 0)
        failed(m, event, MU_CLASSIC_IN_CONFIRM_READ, out);
    else if (take_written(m, event) < 0)
        no_memory(m, MU_CLASSIC_IN_CONFIRM_READ, out);
    else
        judge_confirmations(m, out);
}

static bool make_group(struct mu_classic *m)
{
    size_t count = m->doc.participants;

    m->marks = calloc(count, sizeof *m->marks);
    m->lost = calloc(count, sizeof *m->lost);
    m->ranks = calloc(count, sizeof *m->ranks);
    if (m->marks != NULL && m->lost != NULL && m->ranks != NULL &&
        mu_buf_assign(&m->group_raw, mu_buf_slice(&m->raw)) == 0) {
        m->world = (struct mu_classic_world){
            .version = m->in_version, .rank = m->rank, .count = count, .marks = m->marks, .all_ours = true
        };
        return true;
    }
    forget_group(m);
    return false;
}

static bool is_own_mark(const struct mu_classic *m, const struct mu_classic_event *event)
{
    for (size_t i = 0; event->code == 0 && i < event->nodes_count; i++) {
        if (rank_of(m, event->nodes[i].key, "muster", m->in_version) == m->rank)
            return mu_slice_equal(event->nodes[i].value, mu_slice_str(m->node));
    }
    return false;
}

static void on_marks(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        failed(m, event, MU_CLASSIC_IN_MARKS_READ, out);
        return;
    }
    if (!is_own_mark(m, event)) {
        look_again(m, out); /* the server has lost everything meanwhile, and another one is that rank of that number */
        return;
    }
    if (!make_group(m)) {
        no_memory(m, MU_CLASSIC_IN_MARKS_READ, out);
        return;
    }
    for (size_t i = 0; event->code == 0 && i < event->nodes_count; i++) {
        int64_t rank = rank_of(m, event->nodes[i].key, "muster", m->in_version);

        if (rank >= 0 && rank < (int64_t)m->world.count && m->marks[rank] == NULL)
            m->marks[rank] = strndup(event->nodes[i].value.data != NULL ? event->nodes[i].value.data : "",
                                     sooner(event->nodes[i].value.len, MU_CLASSIC_NODE_MAX - 1));
    }
    for (size_t i = 0; i < m->world.count; i++)
        m->world.all_ours &= m->marks[i] != NULL;
    m->joining = m->in = m->last_caller = false;
    m->quitting = m->timed_out = false; /* it was about to be too late */
    m->old_version = -1;
    m->joined_ms = m->now_ms;
    m->last_error.code = 0;
    (void)tell(m, MU_CLASSIC_TELL_JOINED, out);
    go(m, MU_CLASSIC_IN_MEMBER_READ, out);
}

static void on_store_dir(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_EXISTS)
        failed(m, event, MU_CLASSIC_IN_STORE_DIR, out);
    else
        go(m, MU_CLASSIC_IN_MARKS_READ, out);
}

/* ---- Joining: a group is there ---- */

static void on_announced(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_COMPARE || event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        after_lost_write(m, MU_CLASSIC_IN_LOOK);
        return;
    }
    if (event->code != 0) {
        if (event->code < 0 && event->unsure) {
            m->unsure_version = m->doc.version;
            m->unsure_waiting = m->doc.waiting;
        }
        failed(m, event, MU_CLASSIC_IN_LOOK, out);
        return;
    }
    m->announced = m->doc.version;
    m->announced_surely = true;
    m->announced_ms = m->now_ms;
    m->unsure_version = -1;
    if (take_written(m, event) < 0)
        no_memory(m, MU_CLASSIC_IN_FREE_READ, out);
    else
        go(m, MU_CLASSIC_IN_FREE_LIST, out);
}

static void on_free_read(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        look_again(m, out);
        return;
    }
    if (!got_doc(m, event, MU_CLASSIC_IN_FREE_READ, out))
        return;
    if (!is_there(m, MU_CLASSIC_FINAL, m->announced)) {
        look_again(m, out);
    } else if (m->doc.waiting == 0) { /* the server has lost what we said */
        m->announced = m->unsure_version = -1;
        join_final(m, out);
    } else {
        go(m, MU_CLASSIC_IN_FREE_LIST, out);
    }
}

/* Of the document's keep-alives those that are not listed: how many; `missing` (if not NULL, for m->world.count) says which. */
static size_t count_missing(const struct mu_classic *m, const struct mu_classic_event *event, int64_t version,
                            bool *missing)
{
    size_t count = 0;

    for (size_t i = 0; i < m->doc.keep_alives; i++) {
        char key[MU_CLASSIC_KEY_MAX];
        bool found = false;
        int64_t rank = -1;

        if (mu_classic_key_clean(mu_classic_doc_keep_alive(&m->doc, i), key, sizeof key))
            rank = rank_of(m, mu_slice_str(key), "rdzv", version);
        for (size_t n = 0; rank >= 0 && !found && n < event->nodes_count; n++)
            found = mu_slice_equal(event->nodes[n].key, mu_slice_str(key));
        count += found ? 0 : 1;
        if (missing != NULL && rank >= 0 && rank < (int64_t)m->world.count)
            missing[rank] = !found;
    }
    return count;
}

static void on_free_list(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    uint64_t judge_ms = m->judge_ms;
    size_t missing;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        failed(m, event, MU_CLASSIC_IN_FREE_READ, out);
        return;
    }
    if (m->announced == m->old_version && judge_ms < m->announced_ms + MU_CLASSIC_STAND_MS)
        judge_ms = m->announced_ms + MU_CLASSIC_STAND_MS; /* the PyTorch members of our last group only poll */
    missing = count_missing(m, event, m->doc.version, NULL);
    m->recheck_ms = NEVER;
    if (missing > 0 && m->now_ms >= judge_ms) {
        go(m, MU_CLASSIC_IN_DROP, out);
        return;
    }
    if (missing > 0)
        m->recheck_ms = judge_ms;
    go(m, MU_CLASSIC_IN_FREE_WATCH, out);
}

/* ---- Watches ---- */

/* What happens in stores, in other versions' directories and to extra data is nobody's business here. */
static bool is_relevant(const struct mu_classic *m, struct mu_slice key, int64_t version)
{
    char prefix[MU_CLASSIC_KEY_MAX];
    size_t len = (size_t)snprintf(prefix, sizeof prefix, ROOT "/rdzv/v_", m->root);

    if (key.len <= len || memcmp(key.data, prefix, len) != 0)
        return true;
    return rank_of(m, key, "rdzv", version) >= 0;
}

static void on_watch(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    enum mu_classic_state next = phases[m->state].next;
    int64_t version = m->state == MU_CLASSIC_IN_FREE_WATCH     ? m->announced
                      : m->state == MU_CLASSIC_IN_MEMBER_WATCH ? m->world.version
                                                               : m->old_version;
    uint64_t ended_ms = m->ended_ms;

    m->ended_ms = 0;
    if (event->code == 0 && event->key.len > 0 && event->modified > m->index && !is_relevant(m, event->key, version)) {
        m->index = event->modified;
        if (++m->idle_events < MU_CLASSIC_IDLE_EVENTS_MAX)
            go(m, m->state, out);
        else
            pause_for(m, next, MU_CLASSIC_IDLE_MS); /* a busy store: what is there then is read instead */
    } else if (event->code == 0 || event->code == MUSTER_ETIMEOUT || event->code == MU_CLASSIC_CODE_CLEARED ||
               event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        go(m, next, out);
    } else if (event->code == MUSTER_ECANCELED) {
        m->verify = true;
        m->ended_ms = ended_ms == 0 ? MU_CLASSIC_ENDED_MS : ended_ms * 2;
        if (m->ended_ms > MU_CLASSIC_ENDED_MAX_MS)
            m->ended_ms = MU_CLASSIC_ENDED_MAX_MS;
        pause_for(m, next, mu_rng_jitter(&m->rng, m->ended_ms, 50));
    } else {
        failed(m, event, next, out);
    }
}

/* ---- The group ---- */

static bool is_ours(const struct mu_classic *m)
{
    return m->doc.version == m->world.version && m->doc.participants == m->world.count &&
           (m->doc.status == MU_CLASSIC_FINAL || m->doc.status == MU_CLASSIC_CLOSED);
}

static void see_closed(struct mu_classic *m, struct mu_classic_effects *out)
{
    if (!m->closed_told)
        tell(m, MU_CLASSIC_TELL_CLOSED, out)->asked = MU_CLASSIC_ON_TIME;
    m->closed_told = true;
}

static uint64_t hold_until_ms(const struct mu_classic *m)
{
    return m->joined_ms + m->hold_ms;
}

/* Where there is no room for them, nodes that wait are spares: they must not end a group. */
static bool has_waiting(const struct mu_classic *m)
{
    return m->waiting > 0 && !m->waiting_told && !m->over && (int64_t)m->world.count < m->nodes_max;
}

static void tell_waiting(struct mu_classic *m, struct mu_classic_effects *out)
{
    if (!has_waiting(m) || m->now_ms < hold_until_ms(m))
        return;
    tell(m, MU_CLASSIC_TELL_WAITING, out)->count = m->waiting;
    m->waiting_told = true;
}

static void read_anew(struct mu_classic *m, struct mu_classic_effects *out)
{
    m->verify = true;
    go(m, MU_CLASSIC_IN_MEMBER_READ, out);
}

/* The server has lost everything: it gets our group back, by whichever of us is first. */
static void restore(struct mu_classic *m, struct mu_classic_effects *out)
{
    m->restoring = true;
    m->verify = true; /* another group of the same number may have been faster */
    m->unmarked_ms = NEVER;
    m->step = MAKE_PREFIX;
    go(m, MU_CLASSIC_IN_PREPARE, out);
}

static void on_member_read(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        m->over = true;
        if (event->index > m->index)
            m->index = event->index;
        if (counts_anew(m, event))
            restore(m, out);
        else
            go(m, MU_CLASSIC_IN_MEMBER_MARK, out);
        return;
    }
    if (counts_anew(m, event)) { /* another one has put it back, or another group is there */
        m->verify = true;
        m->judge_ms = m->now_ms + MU_CLASSIC_GRACE_MS;
    }
    if (!got_doc(m, event, MU_CLASSIC_IN_MEMBER_READ, out))
        return;
    m->over = !is_ours(m);
    if (m->over && m->doc.version == m->world.version && m->doc.status != MU_CLASSIC_CLOSED)
        m->key_written = false; /* another group of our number: it is another's */
    if (m->over && m->doc.status == MU_CLASSIC_CLOSED) {
        see_closed(m, out);
    } else if (!m->over) {
        if (mu_buf_assign(&m->group_raw, mu_buf_slice(&m->raw)) < 0) {
            no_memory(m, MU_CLASSIC_IN_MEMBER_READ, out);
            return;
        }
        if (m->doc.status == MU_CLASSIC_CLOSED)
            see_closed(m, out);
        m->waiting = m->doc.status == MU_CLASSIC_FINAL ? m->doc.waiting : 0;
        tell_waiting(m, out);
    }
    go(m, m->verify && !m->over ? MU_CLASSIC_IN_MEMBER_MARK : MU_CLASSIC_IN_MEMBER_LIST, out);
}

static bool may_be_marked_yet(struct mu_classic *m)
{
    if (m->unmarked_ms == NEVER)
        m->unmarked_ms = m->now_ms;
    return m->now_ms < marked_until_ms(m);
}

/* A server that has lost everything counts from 1 again: a group of the same number and size may be another one, with one
 * in our place who has a mark of its own, or PyTorch, which has none. Or it is ours, and whoever put it back is about to
 * write the marks. */
static void on_member_mark(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        failed(m, event, MU_CLASSIC_IN_MEMBER_READ, out);
    } else if (event->code != 0 && counts_anew(m, event)) {
        read_anew(m, out);
    } else if (event->code != 0 && m->over) {
        restore(m, out); /* nobody deletes these */
    } else if (event->code != 0 && may_be_marked_yet(m)) {
        m->mark_index = event->index;
        go(m, MU_CLASSIC_IN_MARK_WATCH, out);
    } else {
        m->verify = false;
        if (m->unmarked_ms != NEVER)
            m->judge_ms = m->now_ms + MU_CLASSIC_GRACE_MS; /* our group was put back; the others may yet come */
        m->unmarked_ms = NEVER;
        if (event->code != 0 || !mu_slice_equal(event->value, mu_slice_str(m->node))) {
            m->over = m->lapsed = true;
            m->key_written = false; /* it is another's */
        }
        go(m, MU_CLASSIC_IN_MEMBER_LIST, out);
    }
}

/* The members that are not listed; `missing` has room for all. */
static void find_missing(const struct mu_classic *m, const struct mu_classic_event *event, bool *missing)
{
    for (size_t i = 0; i < m->world.count; i++)
        missing[i] = true;
    for (size_t n = 0; event->code == 0 && n < event->nodes_count; n++) {
        int64_t rank = rank_of(m, event->nodes[n].key, "rdzv", m->world.version);

        if (rank >= 0 && rank < (int64_t)m->world.count)
            missing[rank] = false;
    }
}

static void tell_lost(struct mu_classic *m, size_t count, struct mu_classic_effects *out)
{
    struct mu_classic_effect *effect = tell(m, MU_CLASSIC_TELL_PEERS_LOST, out);

    effect->ranks = m->ranks;
    effect->ranks_count = count;
}

static void is_removed(struct mu_classic *m, struct mu_classic_effects *out)
{
    stop_rank_lease(m, out);
    m->state = MU_CLASSIC_IN_OVER;
    (void)tell(m, MU_CLASSIC_TELL_REMOVED, out);
}

/* Our group's document is gone, or is another's. Our keep-alive stays until we join anew or leave: so long the others wait
 * for us, up to the end of their last call. */
static void group_over(struct mu_classic *m, const bool *missing, struct mu_classic_effects *out)
{
    size_t me = (size_t)m->world.rank, count = 0;
    bool goes_on = m->doc.status == MU_CLASSIC_FINAL && !is_ours(m); /* without us */

    if (missing[me])
        m->key_written = false; /* what will be there may be another's */
    if (missing[me] || m->lapsed || goes_on || m->world.count == 1) {
        is_removed(m, out);
        return;
    }
    for (size_t i = 0; i < m->world.count; i++) {
        if (missing[i])
            m->ranks[count++] = i;
    }
    for (size_t i = 0; count == 0 && i < m->world.count; i++) {
        if (i != me)
            m->ranks[count++] = i;
    }
    if (!m->key_written)
        stop_rank_lease(m, out); /* it is another's */
    tell_lost(m, count, out);
    go(m, MU_CLASSIC_IN_OVER_WATCH, out);
}

static void watch_others(struct mu_classic *m, struct mu_classic_effects *out)
{
    watch(m, false, MU_CLASSIC_WATCH_MS, out);
}

static void on_over_read(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        m->index = event->index != 0 ? event->index : m->index;
        go(m, MU_CLASSIC_IN_OVER_WATCH, out);
        return;
    }
    if (!got_doc(m, event, MU_CLASSIC_IN_OVER_READ, out))
        return;
    if (m->doc.status == MU_CLASSIC_FINAL) {
        is_removed(m, out);
        return;
    }
    if (m->doc.status == MU_CLASSIC_CLOSED)
        see_closed(m, out);
    go(m, MU_CLASSIC_IN_OVER_WATCH, out);
}

static void judge_peers(struct mu_classic *m, const bool *missing, struct mu_classic_effects *out)
{
    size_t me = (size_t)m->world.rank, count = 0;
    bool news = false;

    m->recheck_ms = NEVER;
    for (size_t i = 0; i < m->world.count; i++) {
        if (i == me || !missing[i])
            continue;
        news |= !m->lost[i];
        m->ranks[count++] = i;
    }
    if (news && m->now_ms < m->judge_ms) {
        m->recheck_ms = m->judge_ms;
    } else if (news) {
        for (size_t i = 0; i < count; i++)
            m->lost[m->ranks[i]] = true;
        tell_lost(m, count, out);
    }
    go(m, missing[me] ? MU_CLASSIC_IN_MEMBER_KEY : MU_CLASSIC_IN_MEMBER_WATCH, out);
}

static void on_member_list(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    bool *missing;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        failed(m, event, MU_CLASSIC_IN_MEMBER_READ, out);
        return;
    }
    if (counts_anew(m, event)) {
        read_anew(m, out);
        return;
    }
    missing = calloc(m->world.count, sizeof *missing);
    if (missing == NULL) {
        no_memory(m, MU_CLASSIC_IN_MEMBER_READ, out);
        return;
    }
    find_missing(m, event, missing);
    if (m->over)
        group_over(m, missing, out);
    else
        judge_peers(m, missing, out);
    m->lapsed &= m->over;
    free(missing);
}

static void on_member_key(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code != 0)
        failed(m, event, MU_CLASSIC_IN_MEMBER_READ, out);
    else if (counts_anew(m, event))
        read_anew(m, out);
    else
        go(m, MU_CLASSIC_IN_MEMBER_WATCH, out);
}

/* ---- Leaving ---- */

static void on_quit_key(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND && !is_final(m, event)) {
        pause_for(m, MU_CLASSIC_IN_QUIT_KEY, QUIT_RETRY_MS);
        return;
    }
    m->key_written = false;
    quit_next(m, out);
}

static void quit_judge(struct mu_classic *m, struct mu_classic_effects *out)
{
    bool takes_part = (m->in || m->maybe_in) && m->doc.version == m->in_version;

    if (takes_part && m->doc.status == MU_CLASSIC_JOINABLE) {
        bool last = m->in && !m->maybe_in && m->rank + 1 == (int64_t)m->doc.participants;

        go(m, last ? MU_CLASSIC_IN_QUIT_WRITE : MU_CLASSIC_IN_QUIT_DROP, out);
    } else if (takes_part && m->doc.status == MU_CLASSIC_FROZEN) {
        go(m, MU_CLASSIC_IN_QUIT_DROP, out);
    } else if (m->announced >= 0 && m->announced_surely && is_there(m, MU_CLASSIC_FINAL, m->announced) &&
               m->doc.waiting > 0) { /* rather one too many than one too few */
        go(m, MU_CLASSIC_IN_QUIT_WRITE, out);
    } else {
        finish_quit(m, out);
    }
}

static void on_quit_read(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    struct muster_error error;

    if (event->code < 0 || event->code >= 300)
        pause_for(m, MU_CLASSIC_IN_QUIT_READ, QUIT_RETRY_MS);
    else if (event->code > 0 || take_doc(m, event->value, event->index, &error) < 0)
        finish_quit(m, out);
    else
        quit_judge(m, out);
}

/* QUIT_WRITE and QUIT_DROP. */
static void on_quit_written(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->code == MU_CLASSIC_CODE_COMPARE) {
        after_lost_write(m, MU_CLASSIC_IN_QUIT_READ);
    } else if (event->code < 0 || event->code >= 300) {
        if (m->in)
            m->maybe_in = true; /* the last participant may be another one by now */
        else if (event->unsure)
            m->announced = -1; /* rather one too many than one too few */
        pause_for(m, MU_CLASSIC_IN_QUIT_READ, QUIT_RETRY_MS);
    } else {
        finish_quit(m, out);
    }
}

/* ---- The phases ---- */

static void nobody_asked(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    (void)m;
    (void)event;
    (void)out;
}

static void enter(struct mu_classic *m, struct mu_classic_effects *out)
{
    m->main.due_ms = NEVER;
    phases[m->state].enter(m, out);
}

static void on_main(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    m->main.id = 0;
    phases[m->state].on_answer(m, event, out);
}

static const struct phase phases[PHASES_COUNT] = {
    [MU_CLASSIC_IN_IDLE] = { .enter = enter_nothing, .on_answer = nobody_asked },
    [MU_CLASSIC_IN_REJOIN_KEY] = { .enter = delete_key, .on_answer = on_rejoin_key },
    [MU_CLASSIC_IN_PREPARE] = { .enter = prepare, .on_answer = on_prepared },
    [MU_CLASSIC_IN_LOOK] = { .enter = get_doc, .on_answer = on_looked },
    [MU_CLASSIC_IN_LOOK_WATCH] = { .enter = watch_document, .on_answer = on_watch, .next = MU_CLASSIC_IN_LOOK },
    [MU_CLASSIC_IN_CREATE] = { .enter = enter_create, .on_answer = on_created },
    [MU_CLASSIC_IN_COUNT_READ] = { .enter = get_counter, .on_answer = on_count_read },
    [MU_CLASSIC_IN_COUNT_WRITE] = { .enter = enter_count, .on_answer = on_set_up, .next = MU_CLASSIC_IN_MAKE_DIR },
    [MU_CLASSIC_IN_MAKE_DIR] = { .enter = make_version_dir, .on_answer = on_set_up, .next = MU_CLASSIC_IN_OPEN },
    [MU_CLASSIC_IN_OPEN] = { .enter = enter_open, .on_answer = on_opened },
    [MU_CLASSIC_IN_JOIN] = { .enter = enter_join, .on_answer = on_join },
    [MU_CLASSIC_IN_LAST_READ] = { .enter = get_doc, .on_answer = on_last_read },
    [MU_CLASSIC_IN_LAST_WATCH] = { .enter = enter_last_watch, .on_answer = on_watch, .next = MU_CLASSIC_IN_LAST_READ },
    [MU_CLASSIC_IN_LAST_TOUCH] = { .enter = enter_touch, .on_answer = on_last_written },
    [MU_CLASSIC_IN_LAST_FREEZE] = { .enter = enter_freeze, .on_answer = on_last_written },
    [MU_CLASSIC_IN_PEERS_READ] = { .enter = get_doc, .on_answer = on_peers_read },
    [MU_CLASSIC_IN_PAST_LIST] = { .enter = list_last_group, .on_answer = on_past_list },
    [MU_CLASSIC_IN_PEERS_WATCH] = { .enter = watch_peers, .on_answer = on_watch, .next = MU_CLASSIC_IN_PEERS_READ },
    [MU_CLASSIC_IN_CONFIRM_KEY] = { .enter = enter_confirm_key, .on_answer = on_confirm_key },
    [MU_CLASSIC_IN_CONFIRM_MARK] = { .enter = put_mark, .on_answer = on_confirm_mark },
    [MU_CLASSIC_IN_CONFIRM_WRITE] = { .enter = enter_confirm_write, .on_answer = on_confirmed },
    [MU_CLASSIC_IN_CONFIRM_READ] = { .enter = get_doc, .on_answer = on_confirm_read },
    [MU_CLASSIC_IN_CONFIRM_SELF] = { .enter = get_self, .on_answer = on_confirm_self },
    [MU_CLASSIC_IN_FINAL_WATCH] = { .enter = watch_document,
                                    .on_answer = on_watch,
                                    .next = MU_CLASSIC_IN_CONFIRM_READ },
    [MU_CLASSIC_IN_STORE_DIR] = { .enter = make_store_dir, .on_answer = on_store_dir },
    [MU_CLASSIC_IN_MARKS_READ] = { .enter = get_marks, .on_answer = on_marks },
    [MU_CLASSIC_IN_ANNOUNCE] = { .enter = enter_announce, .on_answer = on_announced },
    [MU_CLASSIC_IN_FREE_READ] = { .enter = get_doc, .on_answer = on_free_read },
    [MU_CLASSIC_IN_FREE_LIST] = { .enter = list_awaited, .on_answer = on_free_list },
    [MU_CLASSIC_IN_FREE_WATCH] = { .enter = watch_awaited, .on_answer = on_watch, .next = MU_CLASSIC_IN_FREE_READ },
    [MU_CLASSIC_IN_DROP] = { .enter = drop_doc, .on_answer = on_dropped },
    [MU_CLASSIC_IN_MEMBER_READ] = { .enter = get_doc, .on_answer = on_member_read },
    [MU_CLASSIC_IN_MEMBER_MARK] = { .enter = get_own_mark, .on_answer = on_member_mark },
    [MU_CLASSIC_IN_MARK_WATCH] = { .enter = watch_own_mark, .on_answer = on_watch, .next = MU_CLASSIC_IN_MEMBER_READ },
    [MU_CLASSIC_IN_MEMBER_LIST] = { .enter = list_members, .on_answer = on_member_list },
    [MU_CLASSIC_IN_MEMBER_WATCH] = { .enter = watch_members, .on_answer = on_watch, .next = MU_CLASSIC_IN_MEMBER_READ },
    [MU_CLASSIC_IN_MEMBER_KEY] = { .enter = enter_member_key, .on_answer = on_member_key },
    [MU_CLASSIC_IN_OVER_READ] = { .enter = get_doc, .on_answer = on_over_read },
    [MU_CLASSIC_IN_OVER_WATCH] = { .enter = watch_others, .on_answer = on_watch, .next = MU_CLASSIC_IN_OVER_READ },
    [MU_CLASSIC_IN_OVER] = { .enter = enter_nothing, .on_answer = nobody_asked },
    [MU_CLASSIC_IN_QUIT_KEY] = { .enter = delete_key, .on_answer = on_quit_key },
    [MU_CLASSIC_IN_QUIT_READ] = { .enter = get_doc, .on_answer = on_quit_read },
    [MU_CLASSIC_IN_QUIT_WRITE] = { .enter = enter_quit_write, .on_answer = on_quit_written },
    [MU_CLASSIC_IN_QUIT_DROP] = { .enter = drop_doc, .on_answer = on_quit_written },
};

/* ---- Leases ---- */

static void renew_job(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_request *request = ask(m, out, &m->job_lease, MU_CLASSIC_PUT, "%s", "");

    request->ttl_s = MU_CLASSIC_ROOT_TTL_S;
    request->refresh = request->must_exist = true;
}

static void on_job_lease(struct mu_classic *m, const struct mu_classic_event *event)
{
    m->job_lease.id = 0;
    /* Not found: the server has lost everything; who joins, or puts a group back, makes it anew. */
    m->job_leased = event->code != MU_CLASSIC_CODE_NOT_FOUND;
    m->job_lease.due_ms = m->job_leased ? m->now_ms + (event->code == 0 ? ROOT_EVERY_MS : MU_CLASSIC_RETRY_MS) : NEVER;
}

static void renew_rank(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_request *request =
        ask(m, out, &m->rank_lease, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64 "/rank_%" PRId64, m->key_version, m->key_rank);

    put_rank_key(request);
    request->timeout_ms = RANK_EVERY_MS / 2; /* another server has to be asked before the key is gone */
    if (!m->put_back) {
        request->has_value = false;
        request->refresh = request->must_exist = true;
    }
}

/* Who is about to leave, or to join anew, does not put back what it would have to delete. */
static bool renews_rank(const struct mu_classic *m)
{
    return m->rank_leased && m->rank_lease.id == 0 && !((m->quitting || m->join_next) && m->put_back);
}

static bool is_over(enum mu_classic_state state)
{
    return state == MU_CLASSIC_IN_OVER_READ || state == MU_CLASSIC_IN_OVER_WATCH;
}

/* It was not renewed in time, although nobody stopped: it is put back, and whether anybody has noticed will be seen. */
static void on_rank_lease(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    m->rank_lease.id = 0;
    if (event->code == 0)
        m->renewed_ms = m->now_ms;
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND && is_over(m->state)) {
        stop_rank_lease(m, out);
        m->key_written = false; /* what will be there may be another's */
    } else if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        m->lapsed = m->put_back = true;
        m->rank_lease.due_ms = m->now_ms;
        if (renews_rank(m))
            renew_rank(m, out);
    } else if (event->code == 0) {
        m->put_back = false;
        m->rank_lease.due_ms = m->now_ms + RANK_EVERY_MS;
    } else if (m->now_ms < m->renewed_ms + MU_CLASSIC_RANK_TTL_S * 1000) {
        m->rank_lease.due_ms = m->now_ms + LEASE_RETRY_MS;
    } else {
        m->rank_lease.due_ms = m->now_ms + mu_rng_jitter(&m->rng, LAPSED_RETRY_MS, 50);
    }
    if ((m->state != MU_CLASSIC_IN_MEMBER_WATCH && m->state != MU_CLASSIC_IN_OVER_WATCH) || m->main.id == 0)
        return;
    if (counts_anew(m, event)) { /* the watch's server has gone without a word */
        withdraw(&m->main, out);
        m->verify = true;
        go(m, phases[m->state].next, out);
    } else if (event->code == MUSTER_ETIMEOUT) { /* as may have that of the watch: another one is asked */
        withdraw(&m->main, out);
        go(m, m->state, out);
    }
}

/* ---- Closing and looking ---- */

static void end_close(struct mu_classic *m, bool done, struct mu_classic_effects *out)
{
    struct mu_classic_effect *effect;

    m->close_state = CLOSE_NONE;
    m->close.due_ms = NEVER;
    withdraw(&m->close, out);
    if (done) {
        m->closed_told = true;
        tell(m, MU_CLASSIC_TELL_CLOSED, out)->asked = MU_CLASSIC_ON_CLOSE;
        return;
    }
    effect = tell(m, MU_CLASSIC_TELL_FAILED, out);
    effect->asked = MU_CLASSIC_ON_CLOSE;
    effect->error = &m->close_error;
}

/* What is under way is waited for a little longer: it knows why. */
static uint64_t close_end_ms(const struct mu_classic *m)
{
    return m->close_deadline_ms + (m->close.id != 0 ? 2 * DEADLINE_SLACK_MS : 0);
}

static void close_read(struct mu_classic *m, struct mu_classic_effects *out)
{
    m->close_state = CLOSE_READ;
    (void)ask(m, out, &m->close, MU_CLASSIC_GET, "/rdzv/active_version");
}

static void close_later(struct mu_classic *m, uint64_t delay_ms)
{
    m->close_state = CLOSE_READ;
    m->close.due_ms = m->now_ms + delay_ms;
}

static void close_error(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    set_error(m, &m->close_error, event);
    if (is_final(m, event) || m->now_ms >= m->close_deadline_ms)
        end_close(m, false, out);
    else
        close_later(m, QUIT_RETRY_MS);
}

static int make_closed(struct mu_classic *m, const struct mu_classic_event *event, bool *ret_closed,
                       struct muster_error *error)
{
    struct mu_classic_doc doc = { .version = -1 };
    int rc = 0;

    m->close_fresh = event->code == MU_CLASSIC_CODE_NOT_FOUND;
    *ret_closed = false;
    if (!m->close_fresh) {
        rc = mu_classic_doc_read(event->value, &doc, error);
        if (rc < 0)
            return rc;
        *ret_closed = doc.status == MU_CLASSIC_CLOSED;
        rc = mu_buf_assign(&m->close_raw, event->value);
    }
    if (rc == 0)
        rc = mu_classic_doc_closed(m->close_fresh ? NULL : &doc, &m->close.value);
    mu_classic_doc_done(&doc);
    return rc < 0 ? mu_fail(error, MUSTER_ENOMEM, "no memory for the document") : 0;
}

static void on_close_read(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    struct mu_classic_request *request;
    struct muster_error error;
    bool closed;
    int rc;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        close_error(m, event, out);
        return;
    }
    rc = make_closed(m, event, &closed, &error);
    if (rc < 0) {
        close_error(m, &(struct mu_classic_event){ .code = rc, .error = &error }, out);
        return;
    }
    if (closed) {
        end_close(m, true, out);
        return;
    }
    m->close_state = CLOSE_WRITE;
    request = ask(m, out, &m->close, MU_CLASSIC_PUT, "/rdzv/active_version");
    request->has_value = true;
    request->value = mu_buf_slice(&m->close.value);
    request->must_not_exist = m->close_fresh;
    request->has_prev_value = !m->close_fresh;
    if (!m->close_fresh)
        request->prev_value = mu_buf_slice(&m->close_raw);
    else /* nobody may have made the job's directory, with which it would go */
        request->ttl_s = MU_CLASSIC_ROOT_TTL_S;
}

static void on_close_answer(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    m->close.id = 0;
    if (m->close_state == CLOSE_READ)
        on_close_read(m, event, out);
    else if (event->code == 0)
        end_close(m, true, out);
    else if (event->code == MU_CLASSIC_CODE_COMPARE || event->code == MU_CLASSIC_CODE_NOT_FOUND ||
             event->code == MU_CLASSIC_CODE_EXISTS)
        close_later(m, mu_rng_below(&m->rng, MU_CLASSIC_CAS_DELAY_MS));
    else
        close_error(m, event, out);
}

static void on_look_answer(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    struct mu_classic_doc doc = { .version = -1 };
    struct mu_classic_effect *effect = tell(m, MU_CLASSIC_TELL_LOOKED, out);
    int rc = event->code == 0 ? mu_classic_doc_read(event->value, &doc, &m->look_error) : 0;

    m->look.id = 0;
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND)
        set_error(m, &m->look_error, event);
    if (rc < 0 || (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND)) {
        effect->error = &m->look_error;
        return;
    }
    effect->closed = event->code == 0 && doc.status == MU_CLASSIC_CLOSED;
    effect->count = event->code == 0 && doc.status == MU_CLASSIC_FINAL ? doc.waiting : 0;
    if (event->code == 0)
        effect->round = doc.version < 0 ? 0 : doc.version; /* one that is being set up has no number yet */
    else
        effect->round = -1;
    mu_classic_doc_done(&doc);
}

/* ---- Who waits, for people ---- */

static bool waits(const struct mu_classic *m)
{
    return m->joining && !m->quitting && has_name(m);
}

/* Participants that are named have a place of their own. */
static bool has_place(const struct mu_classic *m)
{
    return m->in && m->rank < MU_WAITERS_NAMES_MAX;
}

static bool wants_notice(const struct mu_classic *m)
{
    return waits(m) && (has_place(m) || (m->notices_known && !m->alike));
}

static void notices_dir(const struct mu_classic *m, char key[static MU_CLASSIC_KEY_MAX])
{
    (void)snprintf(key, MU_CLASSIC_KEY_MAX, ROOT "/muster/waiting", strcmp(m->prefix, "/") == 0 ? "" : m->prefix);
}

/* What the keys of our rendezvous begin with. */
static void notices_prefix(const struct mu_classic *m, char key[static MU_CLASSIC_KEY_MAX])
{
    const struct mu_hash_seed same_for_all = { 0, 0 };
    size_t used;

    notices_dir(m, key);
    used = strlen(key);
    (void)snprintf(key + used, MU_CLASSIC_KEY_MAX - used, "/%016" PRIx64 "_",
                   mu_hash64(same_for_all, mu_slice_str(m->root)));
}

/* On its way from one document to the next a node's notice stays where it is. */
static void own_notice_key(const struct mu_classic *m, char key[static MU_CLASSIC_KEY_MAX])
{
    size_t used;

    if (m->notice_key[0] != '\0' && !m->in && m->announced < 0) {
        (void)snprintf(key, MU_CLASSIC_KEY_MAX, "%s", m->notice_key);
        return;
    }
    notices_prefix(m, key);
    used = strlen(key);
    if (has_place(m))
        (void)snprintf(key + used, MU_CLASSIC_KEY_MAX - used, "rank_%" PRId64, m->rank);
    else
        (void)snprintf(key + used, MU_CLASSIC_KEY_MAX - used, "nodes_%" PRId64 "_%" PRId64, m->nodes_min, m->nodes_max);
}

static struct mu_classic_request *ask_notice(struct mu_classic *m, enum notice_request what, enum mu_classic_kind kind,
                                             const char *key, struct mu_classic_effects *out)
{
    struct mu_classic_request *request = ask(m, out, &m->notice, kind, "%s", "");

    m->notice_request = what;
    (void)snprintf(m->notice.key, sizeof m->notice.key, "%s", key);
    request->key = mu_slice_str(m->notice.key);
    return request;
}

static void write_notice(struct mu_classic *m, const char *key, struct mu_classic_effects *out)
{
    struct mu_classic_request *request;

    m->notice_at_ms = m->now_ms + NOTICE_EVERY_MS;
    m->self_notice.version = m->in ? m->in_version : -1;
    m->self_notice.rank = m->in ? m->rank : -1;
    if (mu_classic_notice_write(&m->self_notice, &m->notice.value) < 0)
        return; /* no memory, or a name that JSON cannot have */
    (void)snprintf(m->notice_key, sizeof m->notice_key, "%s", key);
    request = ask_notice(m, NOTICE_WRITE, MU_CLASSIC_PUT, key, out);
    request->has_value = true;
    request->value = mu_buf_slice(&m->notice.value);
    request->ttl_s = MU_CLASSIC_NOTICE_TTL_S;
}

/* Only if it is still ours. If there is no answer, it expires. */
static void delete_notice(struct mu_classic *m, struct mu_classic_effects *out)
{
    struct mu_classic_request *request = ask_notice(m, NOTICE_DELETE, MU_CLASSIC_DELETE, m->notice_key, out);

    request->has_prev_value = true;
    request->prev_value = mu_buf_slice(&m->notice.value);
    m->notice_key[0] = '\0';
}

static void read_notices(struct mu_classic *m, struct mu_classic_effects *out)
{
    char key[MU_CLASSIC_KEY_MAX];

    m->look_at_ms = m->join_since_ms + mu_waiters_next_ms(m->now_ms - m->join_since_ms, m->join_ms);
    notices_dir(m, key);
    (void)ask_notice(m, NOTICES_READ, MU_CLASSIC_GET, key, out);
}

static bool is_notice_old(const struct mu_classic *m)
{
    return m->notice_key[0] != '\0' && m->in && m->self_notice.version != m->in_version;
}

static void drive_notices(struct mu_classic *m, struct mu_classic_effects *out)
{
    char key[MU_CLASSIC_KEY_MAX];

    if (m->notice.id != 0)
        return;
    own_notice_key(m, key);
    if (m->notice_key[0] != '\0' && (!waits(m) || strcmp(m->notice_key, key) != 0)) {
        m->notice_at_ms = m->now_ms; /* it is written anew, elsewhere */
        delete_notice(m, out);
    } else if (wants_notice(m) && (m->now_ms >= m->notice_at_ms || is_notice_old(m))) {
        write_notice(m, key, out);
    } else if (waits(m) && m->now_ms >= m->look_at_ms) {
        read_notices(m, out);
    }
}

static uint64_t notices_due_ms(const struct mu_classic *m)
{
    if (m->notice.id != 0 || !waits(m))
        return NEVER;
    return sooner(m->look_at_ms, wants_notice(m) ? m->notice_at_ms : NEVER);
}

static struct mu_waiters_item item_of(const struct mu_classic *m, const struct mu_classic_notice *notice, bool ours)
{
    struct mu_waiters_item item = { .id = ours ? notice->id : 0,
                                    .run_id = mu_slice_str(notice->run_id),
                                    .record = { .pid = notice->pid,
                                                .local_id = notice->local_id,
                                                .nodes_min = notice->nodes_min,
                                                .nodes_max = notice->nodes_max,
                                                .joining = notice->rank >= 0 && notice->version == m->doc.version } };

    memcpy(item.record.name, notice->name, sizeof item.record.name);
    return item;
}

/* What was read: those who have joined with us, by their ranks, and then everybody else. */
struct notices {
    struct mu_classic_notice joined[MU_WAITERS_NAMES_MAX], rest[MU_WAITERS_RECORDS_MAX], others[MU_WAITERS_MARKS_MAX];
    size_t rest_count, others_count; /* `joined` that are not there have id 0 */
    struct mu_waiters_item items[MU_WAITERS_NAMES_MAX + MU_WAITERS_RECORDS_MAX + MU_WAITERS_MARKS_MAX];
    size_t count;
};

static void sort_in(const struct mu_classic *m, const struct mu_classic_notice *notice, struct notices *all)
{
    bool joined = notice->rank >= 0 && notice->rank < MU_WAITERS_NAMES_MAX && notice->version == m->doc.version;

    if (joined && all->joined[notice->rank].id == 0)
        all->joined[notice->rank] = *notice;
    else if (all->rest_count < MU_WAITERS_RECORDS_MAX)
        all->rest[all->rest_count++] = *notice;
}

static void sort_in_other(const struct mu_classic_notice *notice, struct notices *all)
{
    for (size_t i = 0; i < all->others_count; i++)
        if (strcmp(all->others[i].run_id, notice->run_id) == 0)
            return; /* one node speaks for all of its rendezvous */
    if (all->others_count < MU_WAITERS_MARKS_MAX)
        all->others[all->others_count++] = *notice;
}

static void sort_notices(struct mu_classic *m, const struct mu_classic_event *event, struct notices *all)
{
    char prefix[MU_CLASSIC_KEY_MAX];
    struct mu_classic_notice notice;
    size_t len;

    notices_prefix(m, prefix);
    len = strlen(prefix);
    if (has_place(m)) { /* whether or not it could be written */
        all->joined[m->rank] = m->self_notice;
        all->joined[m->rank].version = m->in_version;
        all->joined[m->rank].rank = m->rank;
    }
    m->alike = false;
    for (size_t i = 0; i < event->nodes_count; i++) {
        struct mu_slice key = event->nodes[i].key;
        bool ours = key.len > len && memcmp(key.data, prefix, len) == 0;

        if (!mu_classic_notice_read(event->nodes[i].value, &notice) || notice.id == m->self_notice.id)
            continue;
        m->alike |= ours && notice.nodes_min == m->nodes_min && notice.nodes_max == m->nodes_max;
        if (ours)
            sort_in(m, &notice, all);
        else
            sort_in_other(&notice, all);
    }
}

static void see_notices(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    const struct mu_fold_record own = { .nodes_min = m->nodes_min, .nodes_max = m->nodes_max };
    struct notices *all = calloc(1, sizeof *all);

    if (all == NULL)
        return; /* another time */
    sort_notices(m, event, all);
    for (size_t i = 0; i < MU_WAITERS_NAMES_MAX; i++)
        if (all->joined[i].id != 0)
            all->items[all->count++] = item_of(m, &all->joined[i], true);
    for (size_t i = 0; i < all->rest_count; i++)
        all->items[all->count++] = item_of(m, &all->rest[i], true);
    for (size_t i = 0; i < all->others_count; i++)
        all->items[all->count++] = item_of(m, &all->others[i], false);
    m->notices_known = true;
    if (mu_waiters_see(&m->crowd, &own, all->items, all->count) || m->crowd_version != m->doc.version)
        progress(m, out);
    m->crowd_version = m->doc.version;
    free(all);
}

/* etcd that is away is the business of the phases: here nothing is missed but a line for people. */
static void on_notice_answer(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    m->notice.id = 0;
    switch (m->notice_request) {
    case NOTICE_WRITE:
        if (event->code < 0)
            m->notice_at_ms = m->now_ms + NOTICE_RETRY_MS;
        break;
    case NOTICES_READ:
        if (waits(m) && (event->code == 0 || event->code == MU_CLASSIC_CODE_NOT_FOUND))
            see_notices(m, event, out);
        break;
    case NOTICE_DELETE:
        break;
    }
}

/* ---- Steps ---- */

/* What a group is served with: anything else is etcd's own refusal. */
static bool is_answer(int code)
{
    return code == 0 || code == MU_CLASSIC_CODE_NOT_FOUND || code == MU_CLASSIC_CODE_COMPARE ||
           code == MU_CLASSIC_CODE_EXISTS || code == MU_CLASSIC_CODE_CLEARED;
}

static bool is_refused(const struct mu_classic *m, const struct mu_classic_event *event)
{
    return event->code > 0 && m->world.version >= 0 && !is_answer(event->code);
}

/* Watches that come back without news are the server's answer as well; if it is away, what follows them will say so. */
static void note_server(struct mu_classic *m, const struct mu_classic_event *event, bool watches,
                        struct mu_classic_effects *out)
{
    bool no_news = watches && (event->code == MUSTER_ETIMEOUT || event->code == MUSTER_ECANCELED);
    bool refused = is_refused(m, event);
    bool away = refused || (event->code < 0 && event->code != MUSTER_ENOMEM && !no_news);

    if (event->code >= 0)
        m->answered = true;
    if (!away && m->now_ms >= m->heard_ms + MU_CLASSIC_RANK_TTL_S * 1000)
        m->verify = true; /* we were asleep: there may have been anything meanwhile */
    m->heard_ms = m->now_ms;
    if (event->code < 0 && !away)
        return;
    if ((away && !(refused && m->down)) || (!away && m->down && !m->refused))
        m->judge_ms = m->now_ms + MU_CLASSIC_GRACE_MS;
    if (away && !m->down) {
        set_error(m, &m->last_error, event);
        tell(m, MU_CLASSIC_TELL_BACKEND_DOWN, out)->error = &m->last_error;
    } else if (!away && m->down && !m->refused) {
        m->verify = true;
        (void)tell(m, MU_CLASSIC_TELL_BACKEND_UP, out);
    }
    m->down = away || m->refused; /* what else is answered does not help a keep-alive that is not */
}

/* Once nobody takes himself back, and nothing is put back: see puts_back(). */
static void join_if_wanted(struct mu_classic *m, bool answered, struct mu_classic_effects *out)
{
    if (!m->join_next || m->quitting || puts_back(m) || (is_writing(m) && !answered))
        return;
    m->join_next = false;
    withdraw(&m->main, out);
    stop_rank_lease(m, out);
    start_join(m, out);
}

static void on_answer(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    if (event->id == 0)
        return;
    if (event->id == m->main.id) {
        note_server(m, event, m->main.watches, out);
        on_main(m, event, out);
        quit_if_possible(m, true, out);
        join_if_wanted(m, true, out);
    } else if (event->id == m->job_lease.id) {
        note_server(m, event, false, out);
        on_job_lease(m, event);
    } else if (event->id == m->rank_lease.id) {
        m->refused = is_refused(m, event);
        note_server(m, event, false, out);
        on_rank_lease(m, event, out);
        quit_if_possible(m, false, out);
        join_if_wanted(m, false, out);
    } else if (event->id == m->close.id) {
        note_server(m, event, false, out);
        on_close_answer(m, event, out);
    } else if (event->id == m->look.id) {
        on_look_answer(m, event, out);
    } else if (event->id == m->notice.id) {
        on_notice_answer(m, event, out);
    }
}

static void on_time(struct mu_classic *m, struct mu_classic_effects *out)
{
    uint64_t now = m->now_ms;

    if (m->job_leased && m->job_lease.id == 0 && now >= m->job_lease.due_ms)
        renew_job(m, out);
    if (renews_rank(m) && now >= m->rank_lease.due_ms)
        renew_rank(m, out);
    tell_waiting(m, out);
    if (m->close_state != CLOSE_NONE && now >= close_end_ms(m)) {
        if (m->close_error.code == 0)
            (void)mu_fail(&m->close_error, MUSTER_ERDZV_TIMEOUT, "timed out after %" PRIu64 " s", m->close_ms / 1000);
        end_close(m, false, out);
    } else if (m->close_state != CLOSE_NONE && m->close.id == 0 && now >= m->close.due_ms) {
        close_read(m, out);
    }
    if (m->quitting && now >= m->quit_deadline_ms) {
        break_quit_off(m, out);
        return;
    }
    if (m->joining && !m->quitting && now >= m->join_deadline_ms) {
        m->timed_out = true;
        set_timeout_error(m);
        begin_quit(m, THEN_FAILED, false, out);
    }
    if (m->main.id == 0 && now >= m->main.due_ms)
        enter(m, out);
    else if (m->recheck_ms <= now && m->main.watches && m->main.id != 0 && m->state == MU_CLASSIC_IN_MEMBER_WATCH) {
        withdraw(&m->main, out);
        go(m, MU_CLASSIC_IN_MEMBER_READ, out);
    }
}

static void on_ask_join(struct mu_classic *m, struct mu_classic_effects *out)
{
    assert(m->quitting || !m->joining);
    m->join_next = true;
    if (!m->quitting && !is_writing(m))
        withdraw(&m->main, out); /* nothing is told of the old group any more */
    join_if_wanted(m, false, out);
}

static void on_ask_close(struct mu_classic *m, struct mu_classic_effects *out)
{
    if (m->close_state != CLOSE_NONE)
        return;
    m->close_error.code = 0;
    m->close_deadline_ms = m->now_ms + m->close_ms;
    close_read(m, out);
}

void mu_classic_step(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    out->count = 0;
    m->now_ms = event->now_ms;
    switch (event->type) {
    case MU_CLASSIC_ON_JOIN:
        on_ask_join(m, out);
        break;
    case MU_CLASSIC_ON_LEAVE:
        m->join_next = false;
        begin_quit(m, THEN_LEFT, false, out);
        break;
    case MU_CLASSIC_ON_CLOSE:
        on_ask_close(m, out);
        break;
    case MU_CLASSIC_ON_LOOK:
        if (m->look.id == 0)
            (void)ask(m, out, &m->look, MU_CLASSIC_GET, "/rdzv/active_version");
        break;
    case MU_CLASSIC_ON_ANSWER:
        on_answer(m, event, out);
        break;
    case MU_CLASSIC_ON_TIME:
        on_time(m, out);
        break;
    }
    drive_notices(m, out);
}

uint64_t mu_classic_deadline_ms(const struct mu_classic *m)
{
    uint64_t when = m->main.id == 0 ? m->main.due_ms : NEVER;

    if (m->job_leased && m->job_lease.id == 0)
        when = sooner(when, m->job_lease.due_ms);
    if (renews_rank(m))
        when = sooner(when, m->rank_lease.due_ms);
    if (m->close_state != CLOSE_NONE)
        when = sooner(when, m->close.id == 0 ? sooner(m->close.due_ms, close_end_ms(m)) : close_end_ms(m));
    if (m->quitting)
        return sooner(when, m->quit_deadline_ms);
    if (m->joining)
        when = sooner(when, sooner(m->join_deadline_ms, notices_due_ms(m)));
    if (has_waiting(m))
        when = sooner(when, hold_until_ms(m));
    return when;
}

enum mu_classic_state mu_classic_state(const struct mu_classic *m)
{
    return m->state;
}

const struct mu_classic_world *mu_classic_world(const struct mu_classic *m)
{
    return &m->world;
}

const char *mu_classic_root(const struct mu_classic *m)
{
    return m->root;
}

struct mu_classic_progress mu_classic_progress(const struct mu_classic *m)
{
    struct mu_classic_progress progress = {
        .joined = m->doc.status == MU_CLASSIC_SETUP ? 0 : m->doc.participants,
        .waiting = m->doc.status == MU_CLASSIC_FINAL ? m->doc.waiting : 0,
        .last_call = m->last_caller,
        .last_call_until_ms = m->last_call_until_ms,
        .deadline_ms = m->join_deadline_ms,
    };

    progress.nodes = known_nodes(m, &progress.nodes_count);
    return progress;
}

const struct mu_waiters *mu_classic_crowd(const struct mu_classic *m)
{
    return &m->crowd;
}

/* ---- New ---- */

int mu_classic_keys(const char *prefix, const char *run_id, char ret_prefix[static MU_CLASSIC_KEY_MAX],
                    char ret_root[static MU_CLASSIC_KEY_MAX], struct muster_error *reterr)
{
    char text[MU_CLASSIC_KEY_MAX];
    int len;

    if (!mu_classic_key_clean(prefix != NULL ? prefix : MU_CLASSIC_PREFIX_DEFAULT, ret_prefix, MU_CLASSIC_KEY_MAX / 4))
        return mu_fail(reterr, MUSTER_EINVAL, "the prefix '%.40s...' is longer than %d bytes", prefix,
                       MU_CLASSIC_KEY_MAX / 4);
    len = snprintf(text, sizeof text, "%s/run_%s", ret_prefix, run_id);
    if (len < 0 || (size_t)len >= sizeof text || !mu_classic_key_clean(text, ret_root, MU_CLASSIC_KEY_MAX / 2))
        return mu_fail(reterr, MUSTER_EINVAL, "the run id '%.40s...' is too long for a key", run_id);
    return 0;
}

int mu_classic_new(const struct mu_classic_config *config, struct mu_classic **ret_classic, struct muster_error *reterr)
{
    struct mu_classic *m;
    struct mu_rng names;
    int rc;

    if (config->nodes_min < 1 || config->nodes_max < config->nodes_min || config->nodes_max > NODES_LIMIT)
        return mu_fail(reterr, MUSTER_EINVAL, "limits of %" PRId64 " to %" PRId64 " nodes are none", config->nodes_min,
                       config->nodes_max);
    m = calloc(1, sizeof *m);
    if (m == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    rc = mu_classic_keys(config->prefix, config->run_id, m->prefix, m->root, reterr);
    if (rc < 0) {
        free(m);
        return rc;
    }
    (void)snprintf(m->node, sizeof m->node, "%s", config->node);
    m->nodes_min = config->nodes_min;
    m->nodes_max = config->nodes_max;
    m->join_ms = config->join_ms;
    m->last_call_ms = config->last_call_ms;
    m->close_ms = config->close_ms;
    m->rng = mu_rng_seeded(config->seed);
    names = mu_rng_seeded(~config->seed);
    m->self = mu_rng_next(&names);
    m->self_notice = (struct mu_classic_notice){ .id = m->self != 0 ? m->self : 1,
                                                 .pid = config->pid,
                                                 .local_id = config->local_id,
                                                 .nodes_min = config->nodes_min,
                                                 .nodes_max = config->nodes_max,
                                                 .version = -1,
                                                 .rank = -1 };
    (void)snprintf(m->self_notice.name, sizeof m->self_notice.name, "%s", config->name != NULL ? config->name : "");
    (void)snprintf(m->self_notice.run_id, sizeof m->self_notice.run_id, "%s", config->run_id);
    m->self_node = (struct mu_node){ mu_slice_str(m->self_notice.name), config->pid, config->local_id };
    m->crowd.any_limits = true;
    m->crowd_version = -1;
    m->doc.version = m->announced = m->unsure_version = m->old_version = m->in_version = -1;
    m->world.version = -1;
    m->main.due_ms = m->job_lease.due_ms = m->rank_lease.due_ms = m->close.due_ms = m->look.due_ms = NEVER;
    m->notice.due_ms = m->look_at_ms = m->notice_at_ms = NEVER;
    m->recheck_ms = m->unmarked_ms = NEVER;
    *ret_classic = m;
    return 0;
}

void mu_classic_free(struct mu_classic *m)
{
    if (m == NULL)
        return;
    forget_group(m);
    mu_classic_doc_done(&m->doc);
    mu_buf_done(&m->raw);
    mu_buf_done(&m->group_raw);
    mu_buf_done(&m->close_raw);
    mu_buf_done(&m->main.value);
    mu_buf_done(&m->close.value);
    mu_buf_done(&m->notice.value);
    free(m);
}
