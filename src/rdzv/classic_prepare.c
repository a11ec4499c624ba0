/* The classic etcd rendezvous: the directories and the counter that a join needs, and a group that is put back after
 * the server has lost everything. */
#include "rdzv/classic_parts.h"

#include <inttypes.h>
#include <stdio.h>

static void prepare(struct mu_classic *m)
{
    struct mu_classic_request *request;
    char text[24];

    if (m->step == MAKE_PREFIX && strcmp(m->prefix, "/") == 0)
        m->step = MAKE_JOB;
    switch (m->step) {
    case MAKE_PREFIX:
        request = mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "%s", "");
        (void)snprintf(m->main.key, sizeof m->main.key, "%s", m->prefix);
        request->key = mu_slice_str(m->main.key);
        mu_classic_put_dir(request);
        break;
    case MAKE_JOB:
        request = mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "%s", "");
        mu_classic_put_dir(request);
        request->ttl_s = MU_CLASSIC_ROOT_TTL_S;
        break;
    case MAKE_RDZV:
        mu_classic_put_dir(mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "/rdzv"));
        break;
    case MAKE_COUNTER:
        (void)snprintf(text, sizeof text, "%" PRId64, m->keys == KEYS_PUT_BACK ? m->world.version : 0);
        if (mu_buf_assign(&m->main.value, mu_slice_str(text)) < 0) {
            mu_classic_no_memory(m, MU_CLASSIC_IN_PREPARE);
            return;
        }
        request = mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "/rdzv/version_counter");
        request->has_value = request->must_not_exist = true;
        request->value = mu_buf_slice(&m->main.value);
        break;
    case MAKE_SELF:
        request = mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, SELF, m->self);
        request->has_value = true;
        request->value = mu_slice_str(m->node);
        break;
    case PUT_KEY:
        (void)mu_classic_put_key(m, &m->main, m->world.version, m->world.rank);
        break;
    case PUT_STORE:
        mu_classic_put_dir(mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64 "/kv", m->world.version));
        break;
    case PUT_DOC:
        request = mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "/rdzv/active_version");
        request->has_value = request->must_not_exist = true;
        request->value = mu_buf_slice(&m->group_raw);
        break;
    case FIND_DOC:
        mu_classic_get_doc(m);
        break;
    case FIND_SELF:
        mu_classic_get_self(m);
        break;
    case PUT_MARK: /* of all of us: who finds its own knows that it is our group that was put back */
        request = mu_classic_ask_mark(m, MU_CLASSIC_PUT, m->world.version, (int64_t)m->mark_rank);
        request->must_not_exist = true;
        request->value = mu_slice_str(m->marks[m->mark_rank]);
        break;
    case RESTORED:
        break;
    }
}

/* What says that the server has lost nothing since is written each time: it may have lost it before. */
void mu_classic_begin_anew(struct mu_classic *m)
{
    m->step = m->keys == KEYS_THERE ? MAKE_SELF : MAKE_PREFIX;
    mu_classic_go(m, MU_CLASSIC_IN_PREPARE);
}

/* The server has lost everything: it gets our group back, by whichever of us is first. */
void mu_classic_restore(struct mu_classic *m)
{
    m->keys = KEYS_PUT_BACK;
    m->verify = true; /* another group of the same number may have been faster */
    m->unmarked_ms = NEVER;
    m->step = MAKE_PREFIX;
    mu_classic_go(m, MU_CLASSIC_IN_PREPARE);
}

/* The document is what was to be put back, and came behind our last write before that. */
static bool found_own_doc(const struct mu_classic *m, const struct mu_classic_event *event)
{
    return event->modified > m->put_index && mu_slice_equal(event->value, mu_buf_slice(&m->group_raw));
}

/* The marks come behind the document, and only if that is ours: where another one was there first, they would say of
 * another group of the same number that it is this one. */
static enum prepare_step next_step(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (m->step == PUT_STORE)
        m->put_index = event->modified > event->index ? event->modified : event->index;
    if (m->step < PUT_DOC)
        return m->step + 1;
    if (m->step == FIND_DOC && event->code == MU_CLASSIC_CODE_NOT_FOUND)
        return PUT_DOC;
    if (m->step == PUT_MARK ? mu_classic_counts_anew(m, event) : event->code != 0)
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

static void on_prepared(struct mu_classic *m, const struct mu_classic_event *event)
{
    bool restores = m->keys == KEYS_PUT_BACK;
    bool is_missing = (m->step == FIND_DOC || m->step == FIND_SELF) && event->code == MU_CLASSIC_CODE_NOT_FOUND;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_EXISTS && !is_missing) {
        if (m->step == PUT_DOC && event->unsure)
            m->step = FIND_DOC;
        mu_classic_failed(m, event, MU_CLASSIC_IN_PREPARE);
        return;
    }
    if (m->step == MAKE_JOB && m->job_lease.id == 0)
        m->job_lease.due_ms = m->now_ms;
    m->step = next_step(m, event);
    if (m->step < (restores ? RESTORED : PREPARED)) {
        mu_classic_go(m, MU_CLASSIC_IN_PREPARE);
        return;
    }
    m->keys = KEYS_THERE;
    if (restores)
        m->judge_ms = m->now_ms + MU_CLASSIC_GRACE_MS;
    mu_classic_go(m, restores ? MU_CLASSIC_IN_MEMBER_READ : MU_CLASSIC_IN_LOOK);
}

const struct mu_classic_phase mu_classic_prepare_phases[MU_CLASSIC_PHASES_COUNT] = {
    [MU_CLASSIC_IN_PREPARE] = { .enter = prepare, .on_answer = on_prepared },
};
