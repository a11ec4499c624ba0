/* The classic etcd rendezvous: values in its keys that none of us wrote. They are told, and the job goes on:
 *   the document     A member puts the document of its group back. A node that joins waits for that; then it deletes
 *                    what is there, and begins anew. A document with a status that we do not know is left alone: a
 *                    node that joins is refused.
 *   the counter      It goes on from the highest version of which there is a directory.
 *   a mark           Its node puts it back when it sees it; to others that rank is one without a name.
 *   a keep-alive     Its value means nothing.
 *   a notice         It is skipped (classic_notices.c). */
#include "rdzv/classic_parts.h"

#include "base/words.h"

#include <assert.h>
#include <inttypes.h>

enum { SHOWN_ROOM = 36 }; /* for the start of a value, and a NUL */

bool mu_classic_is_foreign(const struct mu_classic *m)
{
    return m->doc_value == DOC_FOREIGN;
}

/* Nobody has put the document back. */
bool mu_classic_is_foreign_for_good(const struct mu_classic *m)
{
    return mu_classic_is_foreign(m) && m->now_ms >= m->foreign_until_ms;
}

/* After an outage members have to find the server first. */
void mu_classic_set_doc_value(struct mu_classic *m, enum doc_value value)
{
    uint64_t until_ms = m->now_ms + MU_CLASSIC_FOREIGN_MS;

    if (value == DOC_FOREIGN && m->doc_value != DOC_FOREIGN)
        m->foreign_until_ms = until_ms > m->judge_ms ? until_ms : m->judge_ms;
    m->doc_value = value;
    assert(value != DOC_FOREIGN || (m->doc.version == -1 && m->doc.participants == 0));
}

/* `what`: instead of what; `then`: what is done about it. */
static void tell_foreign(struct mu_classic *m, const char *key, struct mu_slice found, const char *what,
                         const char *then)
{
    char shown[SHOWN_ROOM];

    (void)mu_fail(&m->foreign, MUSTER_ERDZV_STATE, "somebody wrote %zu bytes ('%s') to %.300s, which is not %s; %s",
                  found.len, mu_words_plain(found, shown, sizeof shown), key, what, then);
    mu_classic_tell(m, MU_PART_TELL_FOREIGN)->error = &m->foreign;
}

void mu_classic_tell_foreign_doc(struct mu_classic *m)
{
    if (m->doc_value == DOC_OTHER_LAYOUT) {
        (void)mu_fail(
            &m->foreign, MUSTER_ERDZV_STATE,
            "%.300s holds a document with a status that this version of muster does not know; leaving it alone",
            m->main.key);
        mu_classic_tell(m, MU_PART_TELL_FOREIGN)->error = &m->foreign;
        return;
    }
    tell_foreign(m, m->main.key, mu_buf_slice(&m->raw), "a document of a rendezvous",
                 m->state == MU_CLASSIC_IN_MEMBER_READ ? "putting the group's document back"
                                                       : "waiting for members to put their document back");
}

/* ---- The document of our group ---- */

/* Whoever writes there again and again is answered once a second. */
void mu_classic_put_group_back(struct mu_classic *m)
{
    assert(mu_classic_is_foreign(m) && m->world.version >= 0);
    if (m->put_doc_back_ms != 0 && m->now_ms < m->put_doc_back_ms + MU_CLASSIC_RETRY_MS)
        mu_classic_pause(m, MU_CLASSIC_IN_MEMBER_READ, MU_CLASSIC_RETRY_MS);
    else
        mu_classic_go(m, MU_CLASSIC_IN_MEMBER_BACK);
}

static void enter_member_back(struct mu_classic *m)
{
    m->put_doc_back_ms = m->now_ms;
    mu_classic_put_doc(m, mu_buf_assign(&m->main.value, mu_buf_slice(&m->group_raw)), 0, MU_CLASSIC_IN_MEMBER_READ);
}

static void on_member_back(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == 0 || mu_classic_is_lost_write(event))
        mu_classic_go(m, MU_CLASSIC_IN_MEMBER_READ); /* we, or another one of us */
    else
        mu_classic_failed(m, event, MU_CLASSIC_IN_MEMBER_READ);
}

/* ---- The counter ---- */

void mu_classic_count_anew(struct mu_classic *m, const struct mu_classic_event *event)
{
    m->counter_index = event->modified;
    tell_foreign(m, m->main.key, event->value, "a version number", "counting on from the last version");
    mu_classic_go(m, MU_CLASSIC_IN_COUNT_LIST);
}

static void list_versions(struct mu_classic *m)
{
    (void)mu_classic_ask(m, &m->main, MU_CLASSIC_GET, "/rdzv");
}

static void on_count_list(struct mu_classic *m, const struct mu_classic_event *event)
{
    size_t prefix = strlen(m->root) + sizeof "/rdzv/v_" - 1;
    int64_t last = m->old_version > m->in_version ? m->old_version : m->in_version;

    if (event->code != 0) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_LOOK);
        return;
    }
    for (size_t i = 0; i < event->nodes_count; i++) {
        struct mu_slice key = event->nodes[i].key;
        bool is_version = key.len > prefix && memcmp(key.data + prefix - 2, "v_", 2) == 0;
        int64_t version = is_version ? mu_classic_number(mu_slice(key.data + prefix, key.len - prefix)) : -1;

        last = version > last ? version : last;
    }
    m->counter = last < 0 ? 1 : last + 1;
    mu_classic_go(m, MU_CLASSIC_IN_COUNT_WRITE);
}

/* ---- Our mark ---- */

void mu_classic_put_mark_back(struct mu_classic *m, struct mu_slice found)
{
    if (mu_buf_assign(&m->main.value, found) < 0) {
        mu_classic_no_memory(m, m->state);
        return;
    }
    tell_foreign(m, m->main.key, found, "what a node calls itself", "putting our name back");
    mu_classic_go(m, MU_CLASSIC_IN_MARK_BACK);
}

static void enter_mark_back(struct mu_classic *m)
{
    bool member = m->world.version >= 0;
    struct mu_classic_request *request = mu_classic_ask_mark(
        m, MU_CLASSIC_PUT, member ? m->world.version : m->in_version, member ? m->world.rank : m->rank);

    request->must_exist = true;
    request->has_prev_value = m->main.value.len > 0; /* etcd compares with no empty value */
    request->prev_value = mu_buf_slice(&m->main.value);
}

static void on_mark_back(struct mu_classic *m, const struct mu_classic_event *event)
{
    enum mu_classic_state next = m->world.version >= 0 ? MU_CLASSIC_IN_MEMBER_READ : MU_CLASSIC_IN_MARKS_READ;

    if (event->code == 0)
        mu_classic_go(m, next);
    else if (mu_classic_is_lost_write(event))
        mu_classic_after_lost_write(m, next);
    else
        mu_classic_failed(m, event, next);
}

const struct mu_classic_phase mu_classic_foreign_phases[MU_CLASSIC_PHASES_COUNT] = {
    [MU_CLASSIC_IN_MEMBER_BACK] = { .enter = enter_member_back, .on_answer = on_member_back },
    [MU_CLASSIC_IN_COUNT_LIST] = { .enter = list_versions, .on_answer = on_count_list },
    [MU_CLASSIC_IN_MARK_BACK] = { .enter = enter_mark_back, .on_answer = on_mark_back },
};
