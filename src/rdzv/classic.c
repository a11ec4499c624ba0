/* The classic etcd rendezvous, see classic.h: its steps. classic_parts.h says which file has which states. Each state
 * has one function that makes its request, from what is known, and one that takes the answer and says where to go. A
 * pause is a state that is entered later. */
#include "rdzv/classic_parts.h"

#include "base/texts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define NODES_LIMIT INT64_C(0x7fffffff)

/* ---- Texts ---- */

MU_DEFINE_TEXTS(mu_classic_state_text, enum mu_classic_state, MU_CLASSIC_STATES)

/* ---- The phases ---- */

/* Each state is in one of the tables, but for IDLE and OVER, which ask for nothing. */
const struct mu_classic_phase *mu_classic_phase(enum mu_classic_state state)
{
    static const struct mu_classic_phase nothing;
    static const struct mu_classic_phase *const tables[] = { mu_classic_prepare_phases, mu_classic_join_phases,
                                                             mu_classic_confirm_phases, mu_classic_group_phases,
                                                             mu_classic_foreign_phases, mu_classic_quit_phases };

    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (tables[i][state].enter != NULL)
            return &tables[i][state];
    return &nothing;
}

void mu_classic_enter(struct mu_classic *m)
{
    const struct mu_classic_phase *phase = mu_classic_phase(m->state);

    m->main.due_ms = NEVER;
    if (phase->enter != NULL)
        phase->enter(m);
}

/* ---- The server ---- */

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
static void note_server(struct mu_classic *m, const struct mu_classic_event *event,
                        const struct mu_classic_track *track)
{
    bool no_news =
        track->kind == MU_CLASSIC_WATCH && (event->code == MUSTER_ETIMEOUT || event->code == MUSTER_ECANCELED);
    bool refused = is_refused(m, event);
    bool away = refused || (event->code < 0 && event->code != MUSTER_ENOMEM && !no_news);
    bool was_up = m->server == SERVER_UP;
    bool refuses = track == &m->rank_lease ? refused : m->server == SERVER_REFUSES;
    bool is_back = !was_up && !away && !refuses;

    if (event->code >= 0)
        m->answered = true;
    if (!away && m->now_ms >= m->heard_ms + MU_CLASSIC_RANK_TTL_S * 1000)
        m->verify = true; /* we were asleep: there may have been anything meanwhile */
    m->heard_ms = m->now_ms;
    if (event->code < 0 && !away)
        return;
    if (is_back || (away && (was_up || !refused)))
        m->judge_ms = m->now_ms + MU_CLASSIC_GRACE_MS;
    if (away && was_up) {
        mu_classic_set_error(m, &m->last_error, event);
        mu_classic_tell(m, MU_PART_TELL_BACKEND_DOWN)->error = &m->last_error;
    } else if (is_back) {
        m->verify = true;
        (void)mu_classic_tell(m, MU_PART_TELL_BACKEND_UP);
    }
    m->server = refuses ? SERVER_REFUSES : away ? SERVER_AWAY : SERVER_UP;
}

/* ---- Steps ---- */

/* Once nobody takes himself back, and nothing is put back: see mu_classic_puts_back(). */
static void join_if_wanted(struct mu_classic *m, bool answered)
{
    if (!m->join_next || mu_classic_is_quitting(m) || mu_classic_puts_back(m) ||
        (mu_classic_is_writing(m) && !answered))
        return;
    m->join_next = false;
    mu_classic_withdraw(m, &m->main);
    mu_classic_stop_rank_lease(m);
    mu_classic_start_join(m);
}

static void on_answer(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->id == 0)
        return;
    if (event->id == m->main.id) {
        note_server(m, event, &m->main);
        m->main.id = 0;
        mu_classic_phase(m->state)->on_answer(m, event);
        mu_classic_quit_if_possible(m, true);
        join_if_wanted(m, true);
    } else if (event->id == m->job_lease.id) {
        note_server(m, event, &m->job_lease);
        mu_classic_on_job_lease(m, event);
    } else if (event->id == m->rank_lease.id) {
        note_server(m, event, &m->rank_lease);
        mu_classic_on_rank_lease(m, event);
        mu_classic_quit_if_possible(m, false);
        join_if_wanted(m, false);
    } else if (event->id == m->close.id) {
        note_server(m, event, &m->close);
        mu_classic_on_close_answer(m, event);
    } else if (event->id == m->look.id) {
        mu_classic_on_look_answer(m, event);
    } else if (event->id == m->notice.id) {
        mu_classic_on_notice_answer(m, event);
    }
}

static void on_time(struct mu_classic *m)
{
    uint64_t now = m->now_ms;

    if (m->job_lease.id == 0 && now >= m->job_lease.due_ms)
        mu_classic_renew_job(m);
    if (mu_classic_renews_rank(m) && now >= m->rank_lease.due_ms)
        mu_classic_renew_rank(m);
    mu_classic_tell_waiting(m);
    if (m->close_state != CLOSE_NONE && now >= mu_classic_close_end_ms(m)) {
        if (m->close_error.code == 0)
            (void)mu_fail(&m->close_error, MUSTER_ERDZV_TIMEOUT, "timed out after %" PRIu64 " s", m->close_ms / 1000);
        mu_classic_end_close(m, false);
    } else if (m->close_state != CLOSE_NONE && m->close.id == 0 && now >= m->close.due_ms) {
        mu_classic_close_read(m);
    }
    if (mu_classic_is_quitting(m) && now >= m->quit_deadline_ms) {
        mu_classic_break_quit_off(m);
        return;
    }
    if (m->intent == INTENT_JOIN && now >= m->join_deadline_ms) {
        mu_classic_set_timeout_error(m);
        mu_classic_begin_quit(m, QUIT_TIMED_OUT, false);
    }
    if (m->main.id == 0 && now >= m->main.due_ms) {
        mu_classic_enter(m);
    } else if (m->recheck_ms <= now && m->main.id != 0 &&
               (m->state == MU_CLASSIC_IN_MEMBER_WATCH || m->state == MU_CLASSIC_IN_OVER_WATCH)) {
        mu_classic_withdraw(m, &m->main);
        mu_classic_go(m, mu_classic_phase(m->state)->next);
    }
}

static void on_ask_join(struct mu_classic *m)
{
    assert(m->intent != INTENT_JOIN);
    m->join_next = true;
    if (!mu_classic_is_quitting(m) && !mu_classic_is_writing(m))
        mu_classic_withdraw(m, &m->main); /* nothing is told of the old group any more */
    join_if_wanted(m, false);
}

static void on_ask_close(struct mu_classic *m)
{
    if (m->close_state != CLOSE_NONE)
        return;
    m->close_error.code = 0;
    m->close_deadline_ms = m->now_ms + m->close_ms;
    mu_classic_close_read(m);
}

static void check(const struct mu_classic *m)
{
    assert(m->world.version < 0 || (m->world.count > 0 && m->world.rank < (int64_t)m->world.count && m->marks != NULL));
    assert(m->world.version < 0 || !mu_classic_is_in(m)); /* a member is a participant no more */
    assert(m->rank_lease.id == 0 || m->keep_alive != KEEP_NONE);
    assert((m->close.id == 0 && m->close.due_ms == NEVER) || m->close_state != CLOSE_NONE);
    assert(m->main.id == 0 || m->main.due_ms == NEVER);
    assert(m->state != MU_CLASSIC_IN_IDLE || m->intent == INTENT_STAY);
    assert(m->state == MU_CLASSIC_IN_IDLE || m->intent != INTENT_STAY || m->world.version >= 0);
    assert(!mu_classic_is_last_caller(m) || m->intent != INTENT_STAY);
    assert((m->announcement == ANNOUNCED_NOT) == (m->announced < 0));
    assert(m->server != SERVER_REFUSES || m->world.version >= 0);
}

void mu_classic_step(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out)
{
    assert(event->now_ms >= m->now_ms);
    check(m);
    out->count = 0;
    m->out = out;
    m->now_ms = event->now_ms;
    switch (event->type) {
    case MU_CLASSIC_ON_JOIN:
        on_ask_join(m);
        break;
    case MU_CLASSIC_ON_LEAVE:
        m->join_next = false;
        mu_classic_begin_quit(m, QUIT_LEAVE, false);
        break;
    case MU_CLASSIC_ON_CLOSE:
        on_ask_close(m);
        break;
    case MU_CLASSIC_ON_LOOK:
        if (m->look.id == 0)
            (void)mu_classic_ask(m, &m->look, MU_CLASSIC_GET, "/rdzv/active_version");
        break;
    case MU_CLASSIC_ON_ANSWER:
        on_answer(m, event);
        break;
    case MU_CLASSIC_ON_TIME:
        on_time(m);
        break;
    }
    mu_classic_drive_notices(m);
    check(m);
}

uint64_t mu_classic_deadline_ms(const struct mu_classic *m)
{
    uint64_t when = m->main.id == 0 ? m->main.due_ms : NEVER;

    if (m->job_lease.id == 0)
        when = mu_classic_sooner(when, m->job_lease.due_ms);
    if (mu_classic_renews_rank(m))
        when = mu_classic_sooner(when, m->rank_lease.due_ms);
    if (m->close_state != CLOSE_NONE)
        when = mu_classic_sooner(when, m->close.id == 0 ? mu_classic_sooner(m->close.due_ms, mu_classic_close_end_ms(m))
                                                        : mu_classic_close_end_ms(m));
    if (mu_classic_is_quitting(m))
        return mu_classic_sooner(when, m->quit_deadline_ms);
    if (m->intent == INTENT_JOIN)
        when = mu_classic_sooner(when, mu_classic_sooner(m->join_deadline_ms, mu_classic_notices_due_ms(m)));
    if (mu_classic_has_waiting(m))
        when = mu_classic_sooner(when, mu_classic_hold_until_ms(m));
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

struct mu_part_progress mu_classic_progress(const struct mu_classic *m)
{
    struct mu_part_progress progress = {
        .round = -1,
        .joined = m->doc.status == MU_CLASSIC_SETUP ? 0 : (int64_t)m->doc.participants,
        .waiting = m->doc.status == MU_CLASSIC_FINAL ? m->doc.waiting : 0,
        .last_call_until_ms = mu_classic_is_last_caller(m) ? m->last_call_until_ms : NEVER,
        .deadline_ms = m->join_deadline_ms,
    };

    progress.nodes = mu_classic_known_nodes(m, &progress.nodes_count);
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
    m->doc.version = m->announced = m->old_version = m->in_version = -1;
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
    mu_classic_forget_group(m);
    mu_classic_doc_done(&m->doc);
    mu_buf_done(&m->raw);
    mu_buf_done(&m->group_raw);
    mu_buf_done(&m->main.value);
    mu_buf_done(&m->close.value);
    mu_buf_done(&m->notice.value);
    free(m);
}
