/* The classic etcd rendezvous: joining, from no document to a frozen one, and waiting for a group that is there to
 * end. */
#include "rdzv/classic_parts.h"
#include "rdzv/rules.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void mu_classic_start_join(struct mu_classic *m)
{
    m->hold_ms = m->world.version >= 0 ? mu_rules_hold_ms(m->hold_ms, m->now_ms - m->joined_ms) : 0;
    m->old_version = m->world.version;
    m->old_ours = m->world.all_ours;
    m->old_count = m->world.count;
    m->old_waiting = m->waiting;
    m->old_doc = OLD_DOC_UNSEEN;
    m->old_gone_ms = NEVER;
    m->join_since_ms = m->now_ms;
    m->join_deadline_ms = m->now_ms + m->join_ms;
    mu_classic_begin_notices(m);
    m->last_error.code = 0;
    if (m->keys == KEYS_PUT_BACK)
        m->keys = KEYS_UNKNOWN;
    mu_classic_forget_group(m);
    mu_classic_set_intent(m, INTENT_JOIN);
    if (m->key_written && m->old_ours)
        mu_classic_go(m, MU_CLASSIC_IN_REJOIN_KEY);
    else /* PyTorch members see that somebody waits, for as long as the key does */
        mu_classic_begin_anew(m);
}

static void on_rejoin_key(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_REJOIN_KEY);
        return;
    }
    m->key_written = false;
    mu_classic_begin_anew(m);
}

/* Whatever we were in is no more. */
void mu_classic_look_again(struct mu_classic *m)
{
    if (mu_classic_is_in(m))
        mu_classic_set_place(m, PLACE_NONE);
    mu_classic_set_announcement(m, ANNOUNCED_NOT);
    if (!mu_classic_is_there(m, MU_CLASSIC_CLOSED, m->key_version))
        m->key_written = false; /* of a version that is over */
    mu_classic_stop_rank_lease(m);
    mu_classic_begin_anew(m);
}

void mu_classic_set_announcement(struct mu_classic *m, enum announcement announcement)
{
    assert(announcement == ANNOUNCED_NOT || m->doc.status == MU_CLASSIC_FINAL);
    m->announcement = announcement;
    m->announced = announcement == ANNOUNCED_NOT ? -1 : m->doc.version;
    m->announced_ms = m->now_ms;
}

static void join_final(struct mu_classic *m)
{
    bool announced = m->announced == m->doc.version;

    if (announced && m->announcement == ANNOUNCED_LOST && m->doc.waiting > m->announced_waiting)
        mu_classic_set_announcement(m, ANNOUNCED_PERHAPS);
    if (m->doc.version == m->old_version && m->old_ours) { /* nobody of PyTorch's has to see first that we wait */
        m->old_waiting = m->doc.waiting;                   /* more may wait than we saw as a member */
        m->old_doc = OLD_DOC_READ;
        mu_classic_go(m, MU_CLASSIC_IN_DROP);
    } else {
        mu_classic_go(m, announced && mu_classic_is_announced(m) ? MU_CLASSIC_IN_FREE_LIST : MU_CLASSIC_IN_ANNOUNCE);
    }
}

static void on_looked(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_set_place(m, PLACE_NONE);
        mu_classic_set_doc_value(m, DOC_OURS);
        mu_classic_go(m, MU_CLASSIC_IN_CREATE);
        return;
    }
    if (!mu_classic_got_doc(m, event, MU_CLASSIC_IN_LOOK))
        return;
    (void)mu_classic_tell(m, MU_PART_TELL_PROGRESS);
    if (m->doc.version != m->in_version || m->doc.status == MU_CLASSIC_FINAL)
        mu_classic_set_place(m, PLACE_NONE);
    switch (m->doc.status) {
    case MU_CLASSIC_CLOSED:
        (void)mu_fail(&m->error, MUSTER_ERDZV_CLOSED, "the rendezvous is closed");
        mu_classic_begin_quit(m, QUIT_GIVE_UP, true);
        break;
    case MU_CLASSIC_JOINABLE:
        if (m->place == PLACE_MAYBE)
            mu_classic_go(m, MU_CLASSIC_IN_DROP);
        else
            mu_classic_go(m,
                          (int64_t)m->doc.participants < m->nodes_max ? MU_CLASSIC_IN_JOIN : MU_CLASSIC_IN_LOOK_WATCH);
        break;
    case MU_CLASSIC_FROZEN:
        mu_classic_go(m, m->place == PLACE_MAYBE ? MU_CLASSIC_IN_DROP : MU_CLASSIC_IN_LOOK_WATCH);
        break;
    case MU_CLASSIC_SETUP:
        mu_classic_go(m, mu_classic_is_foreign_for_good(m) ? MU_CLASSIC_IN_DROP : MU_CLASSIC_IN_LOOK_WATCH);
        break;
    case MU_CLASSIC_FINAL:
        join_final(m);
        break;
    }
}

static void on_dropped(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == 0 || event->code == MU_CLASSIC_CODE_NOT_FOUND || event->code == MU_CLASSIC_CODE_COMPARE) {
        if (event->code == 0)
            mu_classic_set_place(m, PLACE_NONE);
        if (event->code == 0 && m->old_doc == OLD_DOC_READ && mu_classic_is_there(m, MU_CLASSIC_FINAL, m->old_version))
            m->old_doc = OLD_DOC_DELETED;
        if (event->code != MU_CLASSIC_CODE_COMPARE)
            mu_classic_set_announcement(m, ANNOUNCED_NOT);
        mu_classic_go(m, MU_CLASSIC_IN_LOOK);
    } else {
        mu_classic_failed(m, event, MU_CLASSIC_IN_LOOK);
    }
}

/* ---- A new document ---- */

static void enter_create(struct mu_classic *m)
{
    struct mu_classic_request *request;

    if (mu_classic_doc_setup(&m->main.value) < 0) {
        mu_classic_no_memory(m, MU_CLASSIC_IN_LOOK);
        return;
    }
    request = mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "/rdzv/active_version");
    request->has_value = request->must_not_exist = true;
    request->value = mu_buf_slice(&m->main.value);
    request->ttl_s = MU_CLASSIC_SETUP_TTL_S;
}

static void on_created(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == MU_CLASSIC_CODE_EXISTS)
        mu_classic_go(m, MU_CLASSIC_IN_LOOK);
    else if (event->code != 0)
        mu_classic_failed(m, event, MU_CLASSIC_IN_LOOK);
    else if (mu_classic_take_written(m, event) < 0)
        mu_classic_no_memory(m, MU_CLASSIC_IN_LOOK);
    else
        mu_classic_go(m, MU_CLASSIC_IN_COUNT_READ);
}

static void get_counter(struct mu_classic *m)
{
    (void)mu_classic_ask(m, &m->main, MU_CLASSIC_GET, "/rdzv/version_counter");
}

static void on_count_read(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) { /* the job's root has expired, or the server has lost all */
        m->keys = KEYS_UNKNOWN;
        m->step = MAKE_PREFIX;
        mu_classic_pause(m, MU_CLASSIC_IN_PREPARE, mu_rng_below(&m->rng, MU_CLASSIC_CAS_DELAY_MS));
        return;
    }
    if (event->code != 0) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_LOOK);
        return;
    }
    m->counter = mu_classic_number(event->value) + 1;
    if (m->counter == 0) {
        mu_classic_count_anew(m, event);
        return;
    }
    m->counter_index = event->modified;
    mu_classic_go(m, MU_CLASSIC_IN_COUNT_WRITE);
}

static void enter_count(struct mu_classic *m)
{
    struct mu_classic_request *request;
    char text[24];

    (void)snprintf(text, sizeof text, "%" PRId64, m->counter);
    if (mu_buf_assign(&m->main.value, mu_slice_str(text)) < 0) {
        mu_classic_no_memory(m, MU_CLASSIC_IN_LOOK);
        return;
    }
    request = mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "/rdzv/version_counter");
    request->has_value = request->must_exist = true;
    request->value = mu_buf_slice(&m->main.value);
    request->prev_index = m->counter_index;
}

static void make_version_dir(struct mu_classic *m)
{
    mu_classic_put_dir(mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64, m->counter));
}

/* COUNT_WRITE and MAKE_DIR. Where another one was faster, our time to set up was over. */
static void on_set_up(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == 0)
        mu_classic_go(m, mu_classic_phase(m->state)->next);
    else if (mu_classic_is_lost_write(event))
        mu_classic_after_lost_write(m, MU_CLASSIC_IN_LOOK);
    else
        mu_classic_failed(m, event, MU_CLASSIC_IN_LOOK);
}

static void enter_open(struct mu_classic *m)
{
    mu_classic_put_doc(m, mu_classic_doc_joinable(m->counter, &m->main.value), 0, MU_CLASSIC_IN_LOOK);
}

static void on_opened(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (mu_classic_wrote_doc(m, event, MU_CLASSIC_IN_LOOK))
        mu_classic_go(m, MU_CLASSIC_IN_JOIN);
}

/* ---- Taking part ---- */

static void enter_join(struct mu_classic *m)
{
    int64_t count = (int64_t)m->doc.participants + 1;
    bool freeze = count == m->nodes_max;
    int64_t ttl_s = freeze ? MU_CLASSIC_FROZEN_TTL_S : count >= m->nodes_min ? MU_CLASSIC_JOINABLE_TTL_S : 0;

    mu_classic_put_doc(m, mu_classic_doc_joined(&m->doc, freeze, &m->main.value), ttl_s, MU_CLASSIC_IN_LOOK);
}

/* The next version after a group that was all ours, with enough nodes: its members may end the last call. */
static bool judges_last_call(const struct mu_classic *m)
{
    return m->old_version >= 0 && m->old_ours && mu_classic_is_there(m, MU_CLASSIC_JOINABLE, m->old_version + 1) &&
           (int64_t)m->doc.participants >= m->nodes_min;
}

static void wait_for_peers(struct mu_classic *m)
{
    m->recheck_ms = NEVER;
    if (judges_last_call(m))
        mu_classic_go(m, MU_CLASSIC_IN_PAST_LIST);
    else
        mu_classic_go(m, mu_classic_is_last_caller(m) ? MU_CLASSIC_IN_LAST_WATCH : MU_CLASSIC_IN_PEERS_WATCH);
}

static void joined(struct mu_classic *m)
{
    (void)mu_classic_tell(m, MU_PART_TELL_PROGRESS);
    if (m->doc.status == MU_CLASSIC_FROZEN) {
        mu_classic_go(m, MU_CLASSIC_IN_CONFIRM_KEY);
        return;
    }
    if (m->rank == m->nodes_min - 1) {
        mu_classic_set_place(m, PLACE_LAST_CALLER);
        m->last_call_until_ms = m->now_ms + m->last_call_ms;
        m->touched_ms = m->now_ms;
    }
    wait_for_peers(m);
}

static void on_join(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (mu_classic_is_lost_write(event)) {
        mu_classic_after_lost_write(m, MU_CLASSIC_IN_LOOK);
        return;
    }
    m->in_version = m->doc.version;
    if (event->code != 0) {
        mu_classic_set_place(m, event->code < 0 && event->unsure ? PLACE_MAYBE : PLACE_NONE);
        mu_classic_failed(m, event, MU_CLASSIC_IN_LOOK);
        return;
    }
    m->rank = (int64_t)m->doc.participants;
    mu_classic_set_place(m, PLACE_OURS);
    m->in_index = event->modified;
    m->confirmation = CONFIRMED_NOT;
    m->key_written = false; /* of an older group: it is left to its TTL */
    mu_classic_set_announcement(m, ANNOUNCED_NOT);
    if (mu_classic_take_written(m, event) < 0) {
        m->index = event->modified;
        mu_classic_no_memory(m, MU_CLASSIC_IN_PEERS_READ);
        return;
    }
    joined(m);
}

/* ---- Peers, and the last call ---- */

static void enter_last_watch(struct mu_classic *m)
{
    uint64_t until_ms = mu_classic_sooner(m->touched_ms + MU_CLASSIC_TOUCH_MS, m->last_call_until_ms);

    mu_classic_watch(m, judges_last_call(m), mu_classic_sooner(until_ms, m->recheck_ms));
}

static void watch_peers(struct mu_classic *m)
{
    mu_classic_watch(m, judges_last_call(m), m->recheck_ms);
}

static enum mu_classic_state read_again(const struct mu_classic *m)
{
    return mu_classic_is_last_caller(m) ? MU_CLASSIC_IN_LAST_READ : MU_CLASSIC_IN_PEERS_READ;
}

static void on_last_read(struct mu_classic *m, const struct mu_classic_event *event)
{
    bool news;

    if (event->code == MU_CLASSIC_CODE_NOT_FOUND || mu_classic_is_older(m, event)) {
        mu_classic_look_again(m);
        return;
    }
    news = event->code == 0 && !mu_slice_equal(event->value, mu_buf_slice(&m->raw));
    if (!mu_classic_got_doc(m, event, MU_CLASSIC_IN_LAST_READ))
        return;
    if (news) {
        m->touched_ms = m->now_ms; /* who joins renews the TTL */
        (void)mu_classic_tell(m, MU_PART_TELL_PROGRESS);
    }
    if (mu_classic_is_there(m, MU_CLASSIC_FROZEN, m->in_version))
        mu_classic_go(m, MU_CLASSIC_IN_CONFIRM_KEY);
    else if (!mu_classic_is_there(m, MU_CLASSIC_JOINABLE, m->in_version) || (int64_t)m->doc.participants <= m->rank)
        mu_classic_look_again(m);
    else if (m->now_ms >= m->last_call_until_ms)
        mu_classic_go(m, MU_CLASSIC_IN_LAST_FREEZE);
    else if (m->now_ms >= m->touched_ms + MU_CLASSIC_TOUCH_MS)
        mu_classic_go(m, MU_CLASSIC_IN_LAST_TOUCH);
    else
        wait_for_peers(m);
}

static void enter_touch(struct mu_classic *m)
{
    mu_classic_put_doc(m, mu_buf_assign(&m->main.value, mu_buf_slice(&m->raw)), MU_CLASSIC_JOINABLE_TTL_S,
                       MU_CLASSIC_IN_LAST_READ);
}

static void enter_freeze(struct mu_classic *m)
{
    mu_classic_put_doc(m, mu_classic_doc_frozen(&m->doc, &m->main.value), MU_CLASSIC_FROZEN_TTL_S, read_again(m));
}

/* LAST_TOUCH and LAST_FREEZE. */
static void on_last_written(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (!mu_classic_wrote_doc(m, event, read_again(m)))
        return;
    if (m->state == MU_CLASSIC_IN_LAST_FREEZE) {
        mu_classic_go(m, MU_CLASSIC_IN_CONFIRM_KEY);
    } else {
        m->touched_ms = m->now_ms;
        mu_classic_go(m, MU_CLASSIC_IN_LAST_WATCH);
    }
}

static void on_peers_read(struct mu_classic *m, const struct mu_classic_event *event)
{
    bool is_in;

    if (event->code == MU_CLASSIC_CODE_NOT_FOUND || mu_classic_is_older(m, event)) {
        mu_classic_look_again(m);
        return;
    }
    if (!mu_classic_got_doc(m, event, MU_CLASSIC_IN_PEERS_READ))
        return;
    (void)mu_classic_tell(m, MU_PART_TELL_PROGRESS);
    is_in = (int64_t)m->doc.participants > m->rank;
    if (is_in && mu_classic_is_there(m, MU_CLASSIC_FROZEN, m->in_version))
        mu_classic_go(m, MU_CLASSIC_IN_CONFIRM_KEY);
    else if (!is_in || !mu_classic_is_there(m, MU_CLASSIC_JOINABLE, m->in_version))
        mu_classic_look_again(m);
    else if (mu_classic_is_last_caller(m))
        mu_classic_go(m, MU_CLASSIC_IN_LAST_READ);
    else
        wait_for_peers(m);
}

/* Those who are back have deleted their keep-alive of the last group, and so have those who left. */
static bool is_last_group_gone(const struct mu_classic *m, const struct mu_classic_event *event)
{
    for (size_t i = 0; i < event->nodes_count; i++)
        if (mu_classic_rank_of(m, event->nodes[i].key, "rdzv", m->old_version) >= 0)
            return false;
    return true;
}

/* When all are in, these nodes end the last call at once, and the others a second later: the node that deleted the last
 * group's document; and, if they know of the nodes that waited, the node that came last and the one whose last call it
 * is. */
static bool ends_last_call_at_once(const struct mu_classic *m)
{
    bool knows_waiting = m->old_doc != OLD_DOC_UNSEEN || m->old_waiting > 0;
    bool came_last = m->rank + 1 == (int64_t)m->doc.participants;

    return m->old_doc == OLD_DOC_DELETED || (knows_waiting && (came_last || mu_classic_is_last_caller(m)));
}

static void on_past_list(struct mu_classic *m, const struct mu_classic_event *event)
{
    bool all_in = (int64_t)m->doc.participants >= (int64_t)m->old_count + m->old_waiting;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_failed(m, event, read_again(m));
        return;
    }
    if (!is_last_group_gone(m, event))
        m->old_gone_ms = NEVER;
    else if (m->old_gone_ms == NEVER)
        m->old_gone_ms = m->now_ms;
    if (m->old_gone_ms != NEVER && (all_in || m->old_waiting == 0)) {
        m->recheck_ms = m->old_gone_ms + MU_CLASSIC_SETTLE_MS;
        if ((all_in && ends_last_call_at_once(m)) || m->now_ms >= m->recheck_ms) {
            mu_classic_go(m, MU_CLASSIC_IN_LAST_FREEZE);
            return;
        }
    }
    mu_classic_go(m, mu_classic_is_last_caller(m) ? MU_CLASSIC_IN_LAST_WATCH : MU_CLASSIC_IN_PEERS_WATCH);
}

/* ---- A group is there ---- */

static void enter_announce(struct mu_classic *m)
{
    mu_classic_put_doc(m, mu_classic_doc_waiting(&m->doc, m->doc.waiting + 1, &m->main.value), 0, MU_CLASSIC_IN_LOOK);
}

static void on_announced(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code < 0 && event->unsure) {
        mu_classic_set_announcement(m, ANNOUNCED_LOST);
        m->announced_waiting = m->doc.waiting;
    } else if (event->code == 0) {
        mu_classic_set_announcement(m, ANNOUNCED);
    }
    if (mu_classic_wrote_doc(m, event, MU_CLASSIC_IN_LOOK))
        mu_classic_go(m, MU_CLASSIC_IN_FREE_LIST);
}

static void on_free_read(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_look_again(m);
        return;
    }
    if (!mu_classic_got_doc(m, event, MU_CLASSIC_IN_FREE_READ))
        return;
    if (mu_classic_is_foreign(m)) {
        m->recheck_ms = m->foreign_until_ms;
        mu_classic_go(m, mu_classic_is_foreign_for_good(m) ? MU_CLASSIC_IN_DROP : MU_CLASSIC_IN_FREE_WATCH);
    } else if (!mu_classic_is_there(m, MU_CLASSIC_FINAL, m->announced)) {
        mu_classic_look_again(m);
    } else if (m->doc.waiting == 0) { /* the server has lost what we said */
        mu_classic_set_announcement(m, ANNOUNCED_NOT);
        join_final(m);
    } else {
        mu_classic_go(m, MU_CLASSIC_IN_FREE_LIST);
    }
}

/* Whether one of the document's keep-alives is not listed. */
static bool is_one_missing(const struct mu_classic *m, const struct mu_classic_event *event)
{
    for (size_t i = 0; i < m->doc.keep_alives; i++) {
        char key[MU_CLASSIC_KEY_MAX];
        bool found = false;

        if (mu_classic_key_clean(mu_classic_doc_keep_alive(&m->doc, i), key, sizeof key) &&
            mu_classic_rank_of(m, mu_slice_str(key), "rdzv", m->doc.version) >= 0)
            for (size_t n = 0; !found && n < event->nodes_count; n++)
                found = mu_slice_equal(event->nodes[n].key, mu_slice_str(key));
        if (!found)
            return true;
    }
    return false;
}

static void on_free_list(struct mu_classic *m, const struct mu_classic_event *event)
{
    uint64_t judge_ms = m->judge_ms;
    bool missing;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_FREE_READ);
        return;
    }
    if (m->announced == m->old_version && judge_ms < m->announced_ms + MU_CLASSIC_STAND_MS)
        judge_ms = m->announced_ms + MU_CLASSIC_STAND_MS; /* the PyTorch members of our last group only poll */
    missing = is_one_missing(m, event);
    m->recheck_ms = NEVER;
    if (missing && m->now_ms >= judge_ms) {
        mu_classic_go(m, MU_CLASSIC_IN_DROP);
        return;
    }
    if (missing)
        m->recheck_ms = judge_ms;
    mu_classic_go(m, MU_CLASSIC_IN_FREE_WATCH);
}

const struct mu_classic_phase mu_classic_join_phases[MU_CLASSIC_PHASES_COUNT] = {
    [MU_CLASSIC_IN_REJOIN_KEY] = { .enter = mu_classic_delete_key, .on_answer = on_rejoin_key },
    [MU_CLASSIC_IN_LOOK] = { .enter = mu_classic_get_doc, .on_answer = on_looked },
    [MU_CLASSIC_IN_LOOK_WATCH] = { mu_classic_watch_document, mu_classic_on_watch, MU_CLASSIC_IN_LOOK },
    [MU_CLASSIC_IN_CREATE] = { .enter = enter_create, .on_answer = on_created },
    [MU_CLASSIC_IN_COUNT_READ] = { .enter = get_counter, .on_answer = on_count_read },
    [MU_CLASSIC_IN_COUNT_WRITE] = { enter_count, on_set_up, MU_CLASSIC_IN_MAKE_DIR },
    [MU_CLASSIC_IN_MAKE_DIR] = { make_version_dir, on_set_up, MU_CLASSIC_IN_OPEN },
    [MU_CLASSIC_IN_OPEN] = { .enter = enter_open, .on_answer = on_opened },
    [MU_CLASSIC_IN_JOIN] = { .enter = enter_join, .on_answer = on_join },
    [MU_CLASSIC_IN_LAST_READ] = { .enter = mu_classic_get_doc, .on_answer = on_last_read },
    [MU_CLASSIC_IN_LAST_WATCH] = { enter_last_watch, mu_classic_on_watch, MU_CLASSIC_IN_LAST_READ },
    [MU_CLASSIC_IN_LAST_TOUCH] = { .enter = enter_touch, .on_answer = on_last_written },
    [MU_CLASSIC_IN_LAST_FREEZE] = { .enter = enter_freeze, .on_answer = on_last_written },
    [MU_CLASSIC_IN_PEERS_READ] = { .enter = mu_classic_get_doc, .on_answer = on_peers_read },
    [MU_CLASSIC_IN_PAST_LIST] = { .enter = mu_classic_list_keys, .on_answer = on_past_list },
    [MU_CLASSIC_IN_PEERS_WATCH] = { watch_peers, mu_classic_on_watch, MU_CLASSIC_IN_PEERS_READ },
    [MU_CLASSIC_IN_ANNOUNCE] = { .enter = enter_announce, .on_answer = on_announced },
    [MU_CLASSIC_IN_FREE_READ] = { .enter = mu_classic_get_doc, .on_answer = on_free_read },
    [MU_CLASSIC_IN_FREE_LIST] = { .enter = mu_classic_list_keys, .on_answer = on_free_list },
    [MU_CLASSIC_IN_FREE_WATCH] = { mu_classic_watch_group, mu_classic_on_watch, MU_CLASSIC_IN_FREE_READ },
    [MU_CLASSIC_IN_DROP] = { .enter = mu_classic_drop_doc, .on_answer = on_dropped },
};
