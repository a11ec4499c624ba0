/* The classic etcd rendezvous: a member watches its group, until that is over; and the leases. */
#include "rdzv/classic_parts.h"

#include <inttypes.h>
#include <stdlib.h>

void mu_classic_forget_group(struct mu_classic *m)
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
    m->over = m->lapsed = m->waiting_told = m->verify = false;
    if (m->server == SERVER_REFUSES)
        m->server = SERVER_AWAY;
    m->waiting = 0;
    m->recheck_ms = m->unmarked_ms = NEVER;
}

static bool is_ours(const struct mu_classic *m)
{
    return m->doc.version == m->world.version && m->doc.participants == m->world.count &&
           (m->doc.status == MU_CLASSIC_FINAL || m->doc.status == MU_CLASSIC_CLOSED);
}

static void see_closed(struct mu_classic *m)
{
    if (!m->closed_told)
        mu_classic_tell(m, MU_PART_TELL_CLOSED)->asked = MU_PART_ON_TIME;
    m->closed_told = true;
}

uint64_t mu_classic_hold_until_ms(const struct mu_classic *m)
{
    return m->joined_ms + m->hold_ms;
}

/* Where there is no room for them, nodes that wait are spares: they must not end a group. */
bool mu_classic_has_waiting(const struct mu_classic *m)
{
    return m->waiting > 0 && !m->waiting_told && !m->over && (int64_t)m->world.count < m->nodes_max;
}

void mu_classic_tell_waiting(struct mu_classic *m)
{
    if (!mu_classic_has_waiting(m) || m->now_ms < mu_classic_hold_until_ms(m))
        return;
    mu_classic_tell(m, MU_PART_TELL_WAITING)->count = m->waiting;
    m->waiting_told = true;
}

static void read_anew(struct mu_classic *m)
{
    m->verify = true;
    mu_classic_go(m, MU_CLASSIC_IN_MEMBER_READ);
}

static void on_member_read(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        m->over = true;
        if (event->index > m->index)
            m->index = event->index;
        if (mu_classic_counts_anew(m, event))
            mu_classic_restore(m);
        else
            mu_classic_go(m, MU_CLASSIC_IN_MEMBER_MARK);
        return;
    }
    if (mu_classic_counts_anew(m, event)) { /* another one has put it back, or another group is there */
        m->verify = true;
        m->judge_ms = m->now_ms + MU_CLASSIC_GRACE_MS;
    }
    if (!mu_classic_got_doc(m, event, MU_CLASSIC_IN_MEMBER_READ))
        return;
    if (mu_classic_is_foreign(m)) {
        m->over = false;
        mu_classic_put_group_back(m);
        return;
    }
    m->over = !is_ours(m);
    if (m->over && m->doc.version == m->world.version && m->doc.status != MU_CLASSIC_CLOSED)
        m->key_written = false; /* another group of our number: it is another's */
    if (m->over && m->doc.status == MU_CLASSIC_CLOSED) {
        see_closed(m);
    } else if (!m->over) {
        if (mu_buf_assign(&m->group_raw, mu_buf_slice(&m->raw)) < 0) {
            mu_classic_no_memory(m, MU_CLASSIC_IN_MEMBER_READ);
            return;
        }
        if (m->doc.status == MU_CLASSIC_CLOSED)
            see_closed(m);
        m->waiting = m->doc.status == MU_CLASSIC_FINAL ? m->doc.waiting : 0;
        mu_classic_tell_waiting(m);
    }
    mu_classic_go(m, m->verify && !m->over ? MU_CLASSIC_IN_MEMBER_MARK : MU_CLASSIC_IN_MEMBER_LIST);
}

static void get_own_mark(struct mu_classic *m)
{
    (void)mu_classic_ask_mark(m, MU_CLASSIC_GET, m->world.version, m->world.rank);
}

/* After an outage whoever writes it has to find the server first. */
static uint64_t marked_until_ms(const struct mu_classic *m)
{
    uint64_t until_ms = m->unmarked_ms + MU_CLASSIC_GRACE_MS;

    return until_ms > m->judge_ms ? until_ms : m->judge_ms;
}

static void watch_own_mark(struct mu_classic *m)
{
    struct mu_classic_request *request = mu_classic_ask_mark(m, MU_CLASSIC_WATCH, m->world.version, m->world.rank);

    request->once = true;
    request->wait_index = m->mark_index + 1;
    request->timeout_ms = mu_classic_until(m, marked_until_ms(m));
}

static bool may_be_marked_yet(struct mu_classic *m)
{
    if (m->unmarked_ms == NEVER)
        m->unmarked_ms = m->now_ms;
    return m->now_ms < marked_until_ms(m);
}

/* A server that has lost everything counts from 1 again: a group of the same number and size may be another one, with
 * one in our place who has a mark of its own, or PyTorch, which has none. Or it is ours, and whoever put it back is
 * about to write the marks. */
static void on_member_mark(struct mu_classic *m, const struct mu_classic_event *event)
{
    struct mu_node other;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_MEMBER_READ);
    } else if (event->code != 0 && mu_classic_counts_anew(m, event)) {
        read_anew(m);
    } else if (event->code != 0 && m->over) {
        mu_classic_restore(m); /* nobody deletes these */
    } else if (event->code != 0 && may_be_marked_yet(m)) {
        m->mark_index = event->index;
        mu_classic_go(m, MU_CLASSIC_IN_MARK_WATCH);
    } else if (event->code == 0 && !mu_node_read(event->value, &other)) {
        mu_classic_put_mark_back(m, event->value);
    } else {
        m->verify = false;
        if (m->unmarked_ms != NEVER)
            m->judge_ms = m->now_ms + MU_CLASSIC_GRACE_MS; /* our group was put back; the others may yet come */
        m->unmarked_ms = NEVER;
        if (event->code != 0 || !mu_slice_equal(event->value, mu_slice_str(m->node))) {
            m->over = m->lapsed = true;
            m->key_written = false; /* it is another's */
        }
        mu_classic_go(m, MU_CLASSIC_IN_MEMBER_LIST);
    }
}

/* The members that are not listed; `missing` has room for all. */
static void find_missing(const struct mu_classic *m, const struct mu_classic_event *event, bool *missing)
{
    for (size_t i = 0; i < m->world.count; i++)
        missing[i] = true;
    for (size_t n = 0; event->code == 0 && n < event->nodes_count; n++) {
        int64_t rank = mu_classic_rank_of(m, event->nodes[n].key, "rdzv", m->world.version);

        if (rank >= 0 && rank < (int64_t)m->world.count)
            missing[rank] = false;
    }
}

static void tell_lost(struct mu_classic *m, size_t count)
{
    struct mu_part_news *news = mu_classic_tell(m, MU_PART_TELL_LOST);

    news->ranks = m->ranks;
    news->ranks_count = count;
}

/* All that are missing are told, if there are new ones among them. In the grace they are looked at again at its end. */
static void judge_peers(struct mu_classic *m, const bool *missing)
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
        tell_lost(m, count);
    }
}

/* ---- It is over ---- */

static void is_removed(struct mu_classic *m)
{
    mu_classic_stop_rank_lease(m);
    mu_classic_go(m, MU_CLASSIC_IN_OVER);
    (void)mu_classic_tell(m, MU_PART_TELL_REMOVED);
}

/* Our group's document is gone, or is another's. Our keep-alive stays until we join anew or leave: so long the others
 * wait for us, up to the end of their last call. */
static void group_over(struct mu_classic *m, const bool *missing)
{
    size_t me = (size_t)m->world.rank, count = 0;
    bool goes_on = m->doc.status == MU_CLASSIC_FINAL && !is_ours(m); /* without us */

    m->recheck_ms = NEVER;
    if (missing[me])
        m->key_written = false; /* what will be there may be another's */
    if (missing[me] || m->lapsed || goes_on || m->world.count == 1) {
        is_removed(m);
        return;
    }
    for (size_t i = 0; i < m->world.count; i++) {
        m->lost[i] |= missing[i];
        if (missing[i])
            m->ranks[count++] = i;
    }
    for (size_t i = 0; count == 0 && i < m->world.count; i++) {
        if (i != me)
            m->ranks[count++] = i;
    }
    if (!m->key_written)
        mu_classic_stop_rank_lease(m); /* it is another's */
    tell_lost(m, count);
    mu_classic_go(m, MU_CLASSIC_IN_OVER_WATCH);
}

/* A member has not left yet: it stops its workers, or is lost. If our keep-alive is not there, those that are may be of
 * another group. */
static bool is_any_left(const struct mu_classic *m)
{
    size_t i = 0;

    while (i < m->world.count && (m->lost[i] || i == (size_t)m->world.rank))
        i++;
    return i < m->world.count && m->key_written;
}

static void watch_others(struct mu_classic *m)
{
    mu_classic_watch(m, is_any_left(m), m->recheck_ms);
}

static void wait_for_others(struct mu_classic *m)
{
    m->recheck_ms = NEVER;
    mu_classic_go(m, is_any_left(m) ? MU_CLASSIC_IN_OVER_LIST : MU_CLASSIC_IN_OVER_WATCH);
}

/* Our keep-alive has gone: what will be there may be another's. */
static void disown_key(struct mu_classic *m)
{
    mu_classic_stop_rank_lease(m);
    m->key_written = false;
}

static void on_over_read(struct mu_classic *m, const struct mu_classic_event *event)
{
    if ((event->code == 0 || event->code == MU_CLASSIC_CODE_NOT_FOUND) && mu_classic_counts_anew(m, event))
        disown_key(m);
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        m->index = event->index != 0 ? event->index : m->index;
        wait_for_others(m);
        return;
    }
    if (!mu_classic_got_doc(m, event, MU_CLASSIC_IN_OVER_READ))
        return;
    if (m->doc.status == MU_CLASSIC_FINAL) {
        is_removed(m);
        return;
    }
    if (m->doc.status == MU_CLASSIC_CLOSED)
        see_closed(m);
    wait_for_others(m);
}

/* Those whose keep-alive has gone since. A worker of ours may have failed because one of them was lost. But if ours has
 * gone as well, the server was away for too long, or has lost everything: that says nothing of the others. */
static void on_over_list(struct mu_classic *m, const struct mu_classic_event *event)
{
    bool *missing;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_OVER_READ);
        return;
    }
    if (mu_classic_counts_anew(m, event)) {
        disown_key(m);
        mu_classic_go(m, MU_CLASSIC_IN_OVER_READ); /* as of when to watch */
        return;
    }
    missing = calloc(m->world.count, sizeof *missing);
    if (missing == NULL) {
        mu_classic_no_memory(m, MU_CLASSIC_IN_OVER_READ);
        return;
    }
    find_missing(m, event, missing);
    if (missing[m->world.rank] || !m->key_written)
        disown_key(m);
    else
        judge_peers(m, missing);
    free(missing);
    mu_classic_go(m, MU_CLASSIC_IN_OVER_WATCH);
}

/* ---- Its members ---- */

static void on_member_list(struct mu_classic *m, const struct mu_classic_event *event)
{
    bool *missing;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_MEMBER_READ);
        return;
    }
    if (mu_classic_counts_anew(m, event)) {
        read_anew(m);
        return;
    }
    missing = calloc(m->world.count, sizeof *missing);
    if (missing == NULL) {
        mu_classic_no_memory(m, MU_CLASSIC_IN_MEMBER_READ);
        return;
    }
    find_missing(m, event, missing);
    if (m->over) {
        group_over(m, missing);
    } else {
        judge_peers(m, missing);
        mu_classic_go(m, missing[m->world.rank] ? MU_CLASSIC_IN_MEMBER_KEY : MU_CLASSIC_IN_MEMBER_WATCH);
    }
    m->lapsed &= m->over;
    free(missing);
}

static void enter_member_key(struct mu_classic *m)
{
    (void)mu_classic_put_key(m, &m->main, m->world.version, m->world.rank);
}

static void on_member_key(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code != 0)
        mu_classic_failed(m, event, MU_CLASSIC_IN_MEMBER_READ);
    else if (mu_classic_counts_anew(m, event))
        read_anew(m);
    else
        mu_classic_go(m, MU_CLASSIC_IN_MEMBER_WATCH);
}

const struct mu_classic_phase mu_classic_group_phases[MU_CLASSIC_PHASES_COUNT] = {
    [MU_CLASSIC_IN_MEMBER_READ] = { .enter = mu_classic_get_doc, .on_answer = on_member_read },
    [MU_CLASSIC_IN_MEMBER_MARK] = { .enter = get_own_mark, .on_answer = on_member_mark },
    [MU_CLASSIC_IN_MARK_WATCH] = { watch_own_mark, mu_classic_on_watch, MU_CLASSIC_IN_MEMBER_READ },
    [MU_CLASSIC_IN_MEMBER_LIST] = { .enter = mu_classic_list_keys, .on_answer = on_member_list },
    [MU_CLASSIC_IN_MEMBER_WATCH] = { mu_classic_watch_group, mu_classic_on_watch, MU_CLASSIC_IN_MEMBER_READ },
    [MU_CLASSIC_IN_MEMBER_KEY] = { .enter = enter_member_key, .on_answer = on_member_key },
    [MU_CLASSIC_IN_OVER_READ] = { .enter = mu_classic_get_doc, .on_answer = on_over_read },
    [MU_CLASSIC_IN_OVER_LIST] = { .enter = mu_classic_list_keys, .on_answer = on_over_list },
    [MU_CLASSIC_IN_OVER_WATCH] = { watch_others, mu_classic_on_watch, MU_CLASSIC_IN_OVER_READ },
};

/* ---- Leases ---- */

void mu_classic_renew_job(struct mu_classic *m)
{
    struct mu_classic_request *request = mu_classic_ask(m, &m->job_lease, MU_CLASSIC_PUT, "%s", "");

    request->ttl_s = MU_CLASSIC_ROOT_TTL_S;
    request->refresh = request->must_exist = true;
}

void mu_classic_on_job_lease(struct mu_classic *m, const struct mu_classic_event *event)
{
    m->job_lease.id = 0;
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) /* the server has lost everything: see MAKE_JOB */
        m->job_lease.due_ms = NEVER;
    else
        m->job_lease.due_ms = m->now_ms + (event->code == 0 ? ROOT_EVERY_MS : MU_CLASSIC_RETRY_MS);
}

void mu_classic_stop_rank_lease(struct mu_classic *m)
{
    m->keep_alive = KEEP_NONE;
    mu_classic_withdraw(m, &m->rank_lease);
}

/* It might come behind our deletion. */
bool mu_classic_puts_back(const struct mu_classic *m)
{
    return m->rank_lease.id != 0 && m->keep_alive == KEEP_PUT_BACK;
}

void mu_classic_renew_rank(struct mu_classic *m)
{
    struct mu_classic_request *request = mu_classic_put_key(m, &m->rank_lease, m->key_version, m->key_rank);

    request->timeout_ms = RANK_EVERY_MS / 2; /* another server has to be asked before the key is gone */
    if (m->keep_alive != KEEP_PUT_BACK) {
        request->has_value = false;
        request->refresh = request->must_exist = true;
    }
}

/* Who is about to leave, or to join anew, does not put back what it would have to delete. */
bool mu_classic_renews_rank(const struct mu_classic *m)
{
    bool ends = mu_classic_is_quitting(m) || m->join_next;

    return m->keep_alive != KEEP_NONE && m->rank_lease.id == 0 && !(ends && m->keep_alive == KEEP_PUT_BACK);
}

static bool is_over(enum mu_classic_state state)
{
    return state >= MU_CLASSIC_IN_OVER_READ && state <= MU_CLASSIC_IN_OVER_WATCH;
}

/* It was not renewed in time, although nobody stopped: it is put back, and whether anybody has noticed will be seen. */
void mu_classic_on_rank_lease(struct mu_classic *m, const struct mu_classic_event *event)
{
    m->rank_lease.id = 0;
    if (event->code == 0)
        m->renewed_ms = m->now_ms;
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND && is_over(m->state)) {
        disown_key(m);
    } else if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        m->lapsed = true;
        m->keep_alive = KEEP_PUT_BACK;
        m->rank_lease.due_ms = m->now_ms;
        if (mu_classic_renews_rank(m))
            mu_classic_renew_rank(m);
    } else if (event->code == 0) {
        m->keep_alive = KEEP_RENEWED;
        m->rank_lease.due_ms = m->now_ms + RANK_EVERY_MS;
    } else if (m->now_ms < m->renewed_ms + MU_CLASSIC_RANK_TTL_S * 1000) {
        m->rank_lease.due_ms = m->now_ms + LEASE_RETRY_MS;
    } else {
        m->rank_lease.due_ms = m->now_ms + mu_rng_jitter(&m->rng, LAPSED_RETRY_MS, 50);
    }
    if ((m->state != MU_CLASSIC_IN_MEMBER_WATCH && m->state != MU_CLASSIC_IN_OVER_WATCH) || m->main.id == 0)
        return;
    if (mu_classic_counts_anew(m, event)) { /* the watch's server has gone without a word */
        mu_classic_withdraw(m, &m->main);
        m->verify = true;
        mu_classic_go(m, mu_classic_phase(m->state)->next);
    } else if (event->code == MUSTER_ETIMEOUT) { /* as may have that of the watch: another one is asked */
        mu_classic_withdraw(m, &m->main);
        mu_classic_go(m, m->state);
    }
}
