/* The classic etcd rendezvous: the notices of nodes that wait, for people; and the names in its messages. See
 * classic.h. */
#include "rdzv/classic_parts.h"

#include "rdzv/timeout_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define NOTICE_EVERY_MS (MU_CLASSIC_NOTICE_TTL_S * UINT64_C(500))
#define NOTICE_RETRY_MS 2000

static bool has_name(const struct mu_classic *m)
{
    return m->self_notice.name[0] != '\0';
}

static bool waits(const struct mu_classic *m)
{
    return m->intent == INTENT_JOIN && has_name(m);
}

/* Participants that are named have a place of their own. */
static bool has_place(const struct mu_classic *m)
{
    return mu_classic_is_in(m) && m->rank < MU_WAITERS_NAMES_MAX;
}

static bool wants_notice(const struct mu_classic *m)
{
    return waits(m) && (has_place(m) || m->notices_seen == NOTICES_NONE_ALIKE);
}

void mu_classic_begin_notices(struct mu_classic *m)
{
    m->look_at_ms = m->notice_at_ms = m->now_ms + mu_waiters_next_ms(0, m->join_ms);
    m->notices_seen = NOTICES_UNREAD;
    m->crowd = (struct mu_waiters){ .any_limits = true };
    m->crowd_version = -1;
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

    if (m->notice_key[0] != '\0' && !mu_classic_is_in(m) && !mu_classic_is_announced(m)) {
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
                                             const char *key)
{
    struct mu_classic_request *request = mu_classic_ask(m, &m->notice, kind, "%s", "");

    m->notice_request = what;
    (void)snprintf(m->notice.key, sizeof m->notice.key, "%s", key);
    request->key = mu_slice_str(m->notice.key);
    return request;
}

static void write_notice(struct mu_classic *m, const char *key)
{
    struct mu_classic_request *request;

    m->notice_at_ms = m->now_ms + NOTICE_EVERY_MS;
    m->self_notice.version = mu_classic_is_in(m) ? m->in_version : -1;
    m->self_notice.rank = mu_classic_is_in(m) ? m->rank : -1;
    if (mu_classic_notice_write(&m->self_notice, &m->notice.value) < 0)
        return; /* no memory, or a name that JSON cannot have */
    (void)snprintf(m->notice_key, sizeof m->notice_key, "%s", key);
    request = ask_notice(m, NOTICE_WRITE, MU_CLASSIC_PUT, key);
    request->has_value = true;
    request->value = mu_buf_slice(&m->notice.value);
    request->ttl_s = MU_CLASSIC_NOTICE_TTL_S;
}

/* Only if it is still ours. If there is no answer, it expires. */
static void delete_notice(struct mu_classic *m)
{
    struct mu_classic_request *request = ask_notice(m, NOTICE_DELETE, MU_CLASSIC_DELETE, m->notice_key);

    request->has_prev_value = true;
    request->prev_value = mu_buf_slice(&m->notice.value);
    m->notice_key[0] = '\0';
}

static void read_notices(struct mu_classic *m)
{
    char key[MU_CLASSIC_KEY_MAX];

    m->look_at_ms = m->join_since_ms + mu_waiters_next_ms(m->now_ms - m->join_since_ms, m->join_ms);
    notices_dir(m, key);
    (void)ask_notice(m, NOTICES_READ, MU_CLASSIC_GET, key);
}

static bool is_notice_old(const struct mu_classic *m)
{
    return m->notice_key[0] != '\0' && mu_classic_is_in(m) && m->self_notice.version != m->in_version;
}

void mu_classic_drive_notices(struct mu_classic *m)
{
    char key[MU_CLASSIC_KEY_MAX];

    if (m->notice.id != 0)
        return;
    own_notice_key(m, key);
    if (m->notice_key[0] != '\0' && (!waits(m) || strcmp(m->notice_key, key) != 0)) {
        m->notice_at_ms = m->now_ms; /* it is written anew, elsewhere */
        delete_notice(m);
    } else if (wants_notice(m) && (m->now_ms >= m->notice_at_ms || is_notice_old(m))) {
        write_notice(m, key);
    } else if (waits(m) && m->now_ms >= m->look_at_ms) {
        read_notices(m);
    }
}

uint64_t mu_classic_notices_due_ms(const struct mu_classic *m)
{
    if (m->notice.id != 0 || !waits(m))
        return NEVER;
    return mu_classic_sooner(m->look_at_ms, wants_notice(m) ? m->notice_at_ms : NEVER);
}

/* ---- What was read ---- */

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
    m->notices_seen = NOTICES_NONE_ALIKE;
    for (size_t i = 0; i < event->nodes_count; i++) {
        struct mu_slice key = event->nodes[i].key;
        bool ours = key.len > len && memcmp(key.data, prefix, len) == 0;

        if (!mu_classic_notice_read(event->nodes[i].value, &notice) || notice.id == m->self_notice.id)
            continue;
        if (ours && notice.nodes_min == m->nodes_min && notice.nodes_max == m->nodes_max)
            m->notices_seen = NOTICES_ALIKE;
        if (ours)
            sort_in(m, &notice, all);
        else
            sort_in_other(&notice, all);
    }
}

static void see_notices(struct mu_classic *m, const struct mu_classic_event *event)
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
    if (mu_waiters_see(&m->crowd, &own, all->items, all->count) || m->crowd_version != m->doc.version)
        (void)mu_classic_tell(m, MU_PART_TELL_PROGRESS);
    m->crowd_version = m->doc.version;
    free(all);
}

/* etcd that is away is the business of the phases: here nothing is missed but a line for people. */
void mu_classic_on_notice_answer(struct mu_classic *m, const struct mu_classic_event *event)
{
    m->notice.id = 0;
    switch (m->notice_request) {
    case NOTICE_WRITE:
        if (event->code < 0)
            m->notice_at_ms = m->now_ms + NOTICE_RETRY_MS;
        break;
    case NOTICES_READ:
        if (waits(m) && (event->code == 0 || event->code == MU_CLASSIC_CODE_NOT_FOUND))
            see_notices(m, event);
        break;
    case NOTICE_DELETE:
        break;
    }
}

/* ---- Names ---- */

/* Of those who have joined, the ones that we know by name: from the notices, unless the document has moved on since. */
const struct mu_node *mu_classic_known_nodes(const struct mu_classic *m, size_t *ret_count)
{
    bool in = mu_classic_is_in(m) && m->doc.version == m->in_version;

    if (m->crowd_version == m->doc.version && m->crowd.count > 0 && m->crowd.count <= m->doc.participants) {
        *ret_count = m->crowd.count;
        return m->crowd.nodes;
    }
    *ret_count = in && m->doc.participants == 1 && has_name(m); /* it is we */
    return &m->self_node;
}

void mu_classic_set_timeout_error(struct mu_classic *m)
{
    struct mu_timeout_text came = { .waited_ms = m->join_ms,
                                    .joined = mu_classic_is_in(m) ? (int64_t)m->doc.participants : 0,
                                    .nodes_min = m->nodes_min,
                                    .nodes_max = m->nodes_max };
    char text[MU_TIMEOUT_TEXT_MAX], note[MU_WAITERS_NOTE_MAX];
    const char *then = mu_waiters_note(&m->crowd, note) != NULL ? "; " : "";

    came.nodes = mu_classic_known_nodes(m, &came.nodes_count);
    if (!mu_classic_is_in(m))
        came.nodes_count = 0;
    if (came.nodes_count == MU_WAITERS_NAMES_MAX)
        came.nodes_count = m->doc.participants; /* so many more are counted */

    if (m->last_error.code != 0)
        (void)mu_fail(&m->error, MUSTER_ERDZV_TIMEOUT, "timed out after %" PRIu64 " s; the last error was: %.700s",
                      m->join_ms / 1000, m->last_error.text);
    else if (mu_classic_is_announced(m))
        (void)mu_fail(&m->error, MUSTER_ERDZV_TIMEOUT,
                      "timed out after %" PRIu64 " s of waiting for the group of version %" PRId64 " to end%s%s",
                      m->join_ms / 1000, m->announced, then, note);
    else
        (void)mu_fail(&m->error, MUSTER_ERDZV_TIMEOUT, "%s%s%s; the last step: %s", mu_timeout_text_write(&came, text),
                      then, note, mu_classic_state_text(m->state));
}
