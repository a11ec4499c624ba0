/* The classic etcd rendezvous: requests, the document that they bring, errors, and watches. */
#include "rdzv/classic_parts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

static struct mu_classic_effect *add(struct mu_classic *m, enum mu_classic_effect_type type)
{
    assert(m->out->count < MU_CLASSIC_EFFECTS_MAX);
    m->out->items[m->out->count] = (struct mu_classic_effect){ .type = type };
    return &m->out->items[m->out->count++];
}

struct mu_part_news *mu_classic_tell(struct mu_classic *m, enum mu_part_tell what)
{
    struct mu_part_news *news = &add(m, MU_CLASSIC_DO_TELL)->news;

    *news = (struct mu_part_news){ .tell = what, .round = m->world.version, .give_up_in_ms = NEVER };
    return news;
}

void mu_classic_tell_failed(struct mu_classic *m, enum mu_part_event_type asked, const struct muster_error *error)
{
    struct mu_part_news *news = mu_classic_tell(m, MU_PART_TELL_FAILED);

    news->asked = asked;
    news->error = error;
}

uint64_t mu_classic_until(const struct mu_classic *m, uint64_t when_ms)
{
    return when_ms > m->now_ms ? when_ms - m->now_ms : 1;
}

uint64_t mu_classic_sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

struct mu_classic_request *mu_classic_ask(struct mu_classic *m, struct mu_classic_track *track,
                                          enum mu_classic_kind kind, const char *format, ...)
{
    struct mu_classic_request *request = &add(m, MU_CLASSIC_DO_REQUEST)->request;
    size_t used = (size_t)snprintf(track->key, sizeof track->key, "%s", m->root);
    uint64_t timeout_ms = MU_CLASSIC_REQUEST_MS;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(track->key + used, sizeof track->key - used, format, args); /* new() has left room */
    va_end(args);
    if (track == &m->main && m->intent == INTENT_JOIN) /* its owner does not wait for much longer */
        timeout_ms = mu_classic_sooner(timeout_ms, mu_classic_until(m, m->join_deadline_ms) + DEADLINE_SLACK_MS);
    else if (track == &m->close)
        timeout_ms = mu_classic_sooner(timeout_ms, mu_classic_until(m, m->close_deadline_ms) + DEADLINE_SLACK_MS);
    track->id = ++m->last_id;
    track->kind = kind;
    track->due_ms = NEVER;
    *request = (struct mu_classic_request){
        .id = track->id, .kind = kind, .key = mu_slice_str(track->key), .timeout_ms = timeout_ms
    };
    return request;
}

/* Nobody waits for it any more. If it was asked for in this very step, it never was. */
void mu_classic_withdraw(struct mu_classic *m, struct mu_classic_track *track)
{
    uint64_t id = track->id;

    track->id = 0;
    track->due_ms = NEVER;
    if (id == 0)
        return;
    for (unsigned i = 0; i < m->out->count; i++) {
        if (m->out->items[i].type == MU_CLASSIC_DO_REQUEST && m->out->items[i].request.id == id) {
            memmove(&m->out->items[i], &m->out->items[i + 1], (m->out->count - i - 1) * sizeof m->out->items[0]);
            m->out->count--;
            return;
        }
    }
    add(m, MU_CLASSIC_DO_CANCEL)->id = id;
}

static void set_state(struct mu_classic *m, enum mu_classic_state state)
{
    assert(state < MU_CLASSIC_IN_LAST_READ || state > MU_CLASSIC_IN_MARKS_READ || mu_classic_is_in(m));
    assert(state < MU_CLASSIC_IN_FREE_READ || state > MU_CLASSIC_IN_FREE_WATCH || mu_classic_is_announced(m));
    assert(state < MU_CLASSIC_IN_MEMBER_READ || state > MU_CLASSIC_IN_OVER || m->world.version >= 0);
    assert(state < MU_CLASSIC_IN_QUIT_KEY || mu_classic_is_quitting(m));
    m->state = state;
}

void mu_classic_go(struct mu_classic *m, enum mu_classic_state state)
{
    set_state(m, state);
    mu_classic_enter(m);
}

void mu_classic_pause(struct mu_classic *m, enum mu_classic_state next, uint64_t delay_ms)
{
    set_state(m, next);
    m->main.id = 0;
    m->main.due_ms = m->now_ms + delay_ms;
}

void mu_classic_after_lost_write(struct mu_classic *m, enum mu_classic_state next)
{
    mu_classic_pause(m, next, mu_rng_below(&m->rng, MU_CLASSIC_CAS_DELAY_MS));
}

/* Another one was faster. */
bool mu_classic_is_lost_write(const struct mu_classic_event *event)
{
    return event->code == MU_CLASSIC_CODE_COMPARE || event->code == MU_CLASSIC_CODE_NOT_FOUND ||
           event->code == MU_CLASSIC_CODE_EXISTS;
}

/* ---- Answers that are none ---- */

/* Trying again does not help. */
bool mu_classic_is_final(const struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code > 0)
        return event->code < 300;
    return event->code == MUSTER_EINVAL || event->code == MUSTER_ENOTSUP || event->code == MUSTER_ERDZV_STATE ||
           (event->code == MUSTER_EPROTOCOL && !m->answered);
}

void mu_classic_set_error(struct mu_classic *m, struct muster_error *to, const struct mu_classic_event *event)
{
    if (event->error != NULL)
        *to = *event->error;
    else
        (void)mu_fail(to, MUSTER_EINTERNAL, "%s: etcd's code %d", mu_classic_state_text(m->state), event->code);
    if (to->code != MUSTER_ERDZV_STATE && to->code != MUSTER_ENOMEM)
        to->code = MUSTER_ERDZV_CONNECTION;
}

/* The request of this state has failed: from `again` on it is tried again, or not. */
void mu_classic_failed(struct mu_classic *m, const struct mu_classic_event *event, enum mu_classic_state again)
{
    mu_classic_set_error(m, &m->last_error, event);
    if (m->intent == QUIT_TIMED_OUT)
        mu_classic_set_timeout_error(m); /* that is why */
    if (!mu_classic_is_final(m, event) || m->world.version >= 0) {
        /* A group is not given up for what somebody has written there. */
        mu_classic_pause(m, again, mu_rng_jitter(&m->rng, MU_CLASSIC_RETRY_MS, 50));
        return;
    }
    m->error = m->last_error;
    mu_classic_begin_quit(m, QUIT_GIVE_UP, true);
}

static void failed_with(struct mu_classic *m, int code, const struct muster_error *error, enum mu_classic_state again)
{
    const struct mu_classic_event event = { .code = code, .error = error };

    mu_classic_failed(m, &event, again);
}

void mu_classic_no_memory(struct mu_classic *m, enum mu_classic_state again)
{
    struct muster_error error;

    (void)mu_fail(&error, MUSTER_ENOMEM, "no memory to %s", mu_classic_state_text(m->state));
    failed_with(m, MUSTER_ENOMEM, &error, again);
}

/* ---- The document ---- */

/* Reads the document of a GET's answer. 0, also of a foreign value; or below 0: `error` says why. */
int mu_classic_take_doc(struct mu_classic *m, struct mu_slice text, uint64_t index, struct muster_error *error)
{
    struct mu_classic_doc doc = { .version = -1 };
    int rc = mu_classic_doc_read(text, &doc, error);
    enum doc_value value = rc != MUSTER_ERDZV_STATE               ? DOC_OURS
                           : mu_classic_doc_is_other_layout(text) ? DOC_OTHER_LAYOUT
                                                                  : DOC_FOREIGN;

    if (rc < 0 && value != DOC_FOREIGN) {
        if (value == DOC_OTHER_LAYOUT)
            mu_classic_set_doc_value(m, value);
        return rc;
    }
    rc = mu_buf_assign(&m->raw, text);
    if (rc < 0) {
        mu_classic_doc_done(&doc);
        return mu_fail(error, MUSTER_ENOMEM, "no memory for the document");
    }
    mu_classic_doc_done(&m->doc);
    m->doc = doc;
    mu_classic_set_doc_value(m, value);
    m->index = index;
    m->idle_events = 0;
    if (m->intent == INTENT_JOIN)
        m->last_error.code = 0;
    return 0;
}

/* What we wrote is what is there now. */
int mu_classic_take_written(struct mu_classic *m, const struct mu_classic_event *event)
{
    struct muster_error error;

    return mu_classic_take_doc(m, mu_buf_slice(&m->main.value), event->modified, &error);
}

/* The answer to a write of the document: it is ours now, or what is to be done instead. */
bool mu_classic_wrote_doc(struct mu_classic *m, const struct mu_classic_event *event, enum mu_classic_state again)
{
    if (mu_classic_is_lost_write(event))
        mu_classic_after_lost_write(m, again);
    else if (event->code != 0)
        mu_classic_failed(m, event, again);
    else if (mu_classic_take_written(m, event) < 0)
        mu_classic_no_memory(m, again);
    else
        return true;
    return false;
}

/* The document of a GET, or what is to be done instead. */
bool mu_classic_got_doc(struct mu_classic *m, const struct mu_classic_event *event, enum mu_classic_state again)
{
    enum doc_value before = m->doc_value;
    struct muster_error error;
    int rc;

    if (event->code != 0) {
        mu_classic_failed(m, event, again);
        return false;
    }
    rc = mu_classic_take_doc(m, event->value, event->index, &error);
    m->foreign_index = event->modified;
    if (m->doc_value != DOC_OURS && m->doc_value != before)
        mu_classic_tell_foreign_doc(m);
    if (rc < 0)
        failed_with(m, rc, &error, again);
    return rc == 0;
}

bool mu_classic_is_there(const struct mu_classic *m, enum mu_classic_status status, int64_t version)
{
    return m->doc.status == status && m->doc.version == version;
}

/* Since we last read the document the server has lost everything: it counts from 1 again, and what it is asked goes
 * through a majority, so that it is none that lags behind. */
bool mu_classic_counts_anew(const struct mu_classic *m, const struct mu_classic_event *event)
{
    return event->index != 0 && event->index < m->index;
}

/* Than our own joining: the server has lost everything since, and this is another document of the same number. */
bool mu_classic_is_older(const struct mu_classic *m, const struct mu_classic_event *event)
{
    return event->code == 0 && event->modified < m->in_index;
}

void mu_classic_get_doc(struct mu_classic *m)
{
    (void)mu_classic_ask(m, &m->main, MU_CLASSIC_GET, "/rdzv/active_version");
}

/* Only if the document is still what we know. etcd compares with no empty value: so what is foreign is told by its
 * index. */
static void if_unchanged(const struct mu_classic *m, struct mu_classic_request *request)
{
    request->has_prev_value = !mu_classic_is_foreign(m);
    if (request->has_prev_value)
        request->prev_value = mu_buf_slice(&m->raw);
    else
        request->prev_index = m->foreign_index;
}

void mu_classic_put_doc(struct mu_classic *m, int rc, int64_t ttl_s, enum mu_classic_state again)
{
    struct mu_classic_request *request;

    if (rc < 0) {
        mu_classic_no_memory(m, again);
        return;
    }
    request = mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "/rdzv/active_version");
    request->has_value = true;
    request->value = mu_buf_slice(&m->main.value);
    if_unchanged(m, request);
    request->ttl_s = ttl_s;
}

void mu_classic_drop_doc(struct mu_classic *m)
{
    if_unchanged(m, mu_classic_ask(m, &m->main, MU_CLASSIC_DELETE, "/rdzv/active_version"));
}

void mu_classic_get_self(struct mu_classic *m)
{
    (void)mu_classic_ask(m, &m->main, MU_CLASSIC_GET, SELF, m->self);
}

/* ---- Keys ---- */

void mu_classic_put_dir(struct mu_classic_request *request)
{
    request->dir = request->must_not_exist = true;
}

/* Of a member: its keep-alive. */
struct mu_classic_request *mu_classic_put_key(struct mu_classic *m, struct mu_classic_track *track, int64_t version,
                                              int64_t rank)
{
    struct mu_classic_request *request =
        mu_classic_ask(m, track, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64 "/rank_%" PRId64, version, rank);

    request->has_value = true;
    request->value = mu_slice_str("");
    request->ttl_s = MU_CLASSIC_RANK_TTL_S;
    return request;
}

/* Of a member: who it is. */
struct mu_classic_request *mu_classic_ask_mark(struct mu_classic *m, enum mu_classic_kind kind, int64_t version,
                                               int64_t rank)
{
    struct mu_classic_request *request =
        mu_classic_ask(m, &m->main, kind, "/muster/v_%" PRId64 "/rank_%" PRId64, version, rank);

    request->has_value = kind == MU_CLASSIC_PUT;
    request->value = mu_slice_str(m->node);
    return request;
}

/* Whose keep-alives we look at: those of our group, of the one that we wait for, or of the one that we were in. */
static int64_t watched_version(const struct mu_classic *m)
{
    if (m->world.version >= 0)
        return m->world.version;
    return mu_classic_is_announced(m) ? m->announced : m->old_version;
}

void mu_classic_list_keys(struct mu_classic *m)
{
    (void)mu_classic_ask(m, &m->main, MU_CLASSIC_GET, "/rdzv/v_%" PRId64, watched_version(m));
}

void mu_classic_delete_key(struct mu_classic *m)
{
    (void)mu_classic_ask(m, &m->main, MU_CLASSIC_DELETE, "/rdzv/v_%" PRId64 "/rank_%" PRId64, m->key_version,
                         m->key_rank);
}

/* -1: it is none, or has more digits than any of ours. */
int64_t mu_classic_number(struct mu_slice text)
{
    int64_t number = -1;

    (void)mu_slice_number(text, INT64_C(99999999999999999), &number);
    return number;
}

/* The number behind "<root>/<where>/v_<version>/rank_", or -1. */
int64_t mu_classic_rank_of(const struct mu_classic *m, struct mu_slice key, const char *where, int64_t version)
{
    char prefix[MU_CLASSIC_KEY_MAX];
    size_t len = (size_t)snprintf(prefix, sizeof prefix, ROOT "/%s/v_%" PRId64 "/rank_", m->root, where, version);

    if (key.len <= len || memcmp(key.data, prefix, len) != 0)
        return -1;
    return mu_classic_number(mu_slice(key.data + len, key.len - len));
}

/* ---- Watches ---- */

/* A connection that ends may have been that of a server that has lost everything since. Made again, a watch from the
 * index that we know would wait there for what will not come for a long time: what is there is read first. But not by
 * who waits for a group to end: it leaves it to the members to put their group back, and would be faster than they with
 * a new one. */
void mu_classic_watch(struct mu_classic *m, bool group, uint64_t until_ms)
{
    struct mu_classic_request *request =
        mu_classic_ask(m, &m->main, MU_CLASSIC_WATCH, "%s", group ? "/rdzv" : "/rdzv/active_version");

    request->once = m->state != MU_CLASSIC_IN_FREE_WATCH;
    request->recursive = group;
    request->wait_index = m->index + 1;
    if (m->intent == INTENT_JOIN)
        until_ms = mu_classic_sooner(until_ms, m->join_deadline_ms);
    request->timeout_ms = mu_classic_until(m, mu_classic_sooner(until_ms, m->now_ms + MU_CLASSIC_WATCH_MS));
}

void mu_classic_watch_document(struct mu_classic *m)
{
    mu_classic_watch(m, false, mu_classic_is_foreign(m) ? m->foreign_until_ms : NEVER);
}

void mu_classic_watch_group(struct mu_classic *m)
{
    mu_classic_watch(m, true, m->recheck_ms);
}

/* What happens in stores, in other versions' directories and to extra data is nobody's business here. */
static bool is_relevant(const struct mu_classic *m, struct mu_slice key)
{
    char prefix[MU_CLASSIC_KEY_MAX];
    size_t len = (size_t)snprintf(prefix, sizeof prefix, ROOT "/rdzv/v_", m->root);

    if (key.len <= len || memcmp(key.data, prefix, len) != 0)
        return true;
    return mu_classic_rank_of(m, key, "rdzv", watched_version(m)) >= 0;
}

void mu_classic_on_watch(struct mu_classic *m, const struct mu_classic_event *event)
{
    enum mu_classic_state next = mu_classic_phase(m->state)->next;
    uint64_t ended_ms = m->ended_ms;

    m->ended_ms = 0;
    if (event->code == 0 && event->key.len > 0 && event->modified > m->index && !is_relevant(m, event->key)) {
        m->index = event->modified;
        if (++m->idle_events < MU_CLASSIC_IDLE_EVENTS_MAX)
            mu_classic_go(m, m->state);
        else
            mu_classic_pause(m, next, MU_CLASSIC_IDLE_MS); /* a busy store: what is there then is read instead */
    } else if (event->code == 0 || event->code == MUSTER_ETIMEOUT || event->code == MU_CLASSIC_CODE_CLEARED ||
               event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_go(m, next);
    } else if (event->code == MUSTER_ECANCELED) {
        m->verify = true;
        m->ended_ms = ended_ms == 0 ? MU_CLASSIC_ENDED_MS : ended_ms * 2;
        if (m->ended_ms > MU_CLASSIC_ENDED_MAX_MS)
            m->ended_ms = MU_CLASSIC_ENDED_MAX_MS;
        mu_classic_pause(m, next, mu_rng_jitter(&m->rng, m->ended_ms, 50));
    } else {
        mu_classic_failed(m, event, next);
    }
}
