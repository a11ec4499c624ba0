/* The classic etcd rendezvous: from a frozen document to a final one, and who the others are. */
#include "rdzv/classic_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void enter_confirm_key(struct mu_classic *m)
{
    m->key_written = true; /* if there is no answer, nobody knows */
    m->key_version = m->in_version;
    m->key_rank = m->rank;
    (void)mu_classic_put_key(m, &m->main, m->in_version, m->rank);
}

static void on_confirm_key(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code != 0) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_PEERS_READ);
        return;
    }
    m->keep_alive = KEEP_RENEWED;
    m->renewed_ms = m->now_ms;
    m->rank_lease.due_ms = m->now_ms + RANK_EVERY_MS;
    mu_classic_go(m, MU_CLASSIC_IN_CONFIRM_MARK);
}

static void put_mark(struct mu_classic *m)
{
    /* Whose it is, is seen when all are read. */
    mu_classic_ask_mark(m, MU_CLASSIC_PUT, m->in_version, m->rank)->must_not_exist = true;
}

/* CONFIRM_MARK and STORE_DIR: what is to be there may be there already. */
static void on_made(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_EXISTS)
        mu_classic_failed(m, event, m->state);
    else
        mu_classic_go(m, mu_classic_phase(m->state)->next);
}

static void own_key(const struct mu_classic *m, char key[static MU_CLASSIC_KEY_MAX])
{
    (void)snprintf(key, MU_CLASSIC_KEY_MAX, ROOT "/rdzv/v_%" PRId64 "/rank_%" PRId64, m->root, m->in_version, m->rank);
}

static void enter_confirm_write(struct mu_classic *m)
{
    char key[MU_CLASSIC_KEY_MAX];
    bool last = m->doc.keep_alives + 1 == m->doc.participants;

    own_key(m, key);
    mu_classic_put_doc(m, mu_classic_doc_confirmed(&m->doc, key, &m->main.value), last ? 0 : MU_CLASSIC_FROZEN_TTL_S,
                       MU_CLASSIC_IN_CONFIRM_READ);
}

/* How often our key is in the document. */
static size_t count_confirmed(const struct mu_classic *m)
{
    char key[MU_CLASSIC_KEY_MAX];

    own_key(m, key);
    return mu_classic_doc_count_keep_alive(&m->doc, key);
}

/* Where the server has lost everything, PyTorch may have our place in a document that is like ours: then our key is
 * there without our doing, or twice. Where we do not know whether it is our doing, we look whether everything was
 * lost. */
static void judge_confirmations(struct mu_classic *m)
{
    size_t count = m->doc.version == m->in_version ? count_confirmed(m) : 0;
    bool confirmed = count == 1 && m->confirmation != CONFIRMED_NOT;
    bool has_place = (int64_t)m->doc.participants > m->rank && (count == 0 || confirmed);

    if (has_place && confirmed && m->confirmation == CONFIRMED_UNSURELY)
        mu_classic_go(m, MU_CLASSIC_IN_CONFIRM_SELF);
    else if (has_place && confirmed && mu_classic_is_there(m, MU_CLASSIC_FINAL, m->in_version))
        mu_classic_go(m, MU_CLASSIC_IN_STORE_DIR);
    else if (has_place && mu_classic_is_there(m, MU_CLASSIC_FROZEN, m->in_version))
        mu_classic_go(m, confirmed ? MU_CLASSIC_IN_FINAL_WATCH : MU_CLASSIC_IN_CONFIRM_WRITE);
    else
        mu_classic_look_again(m);
}

static void on_confirm_self(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND) {
        m->keys = KEYS_UNKNOWN;
        mu_classic_look_again(m);
    } else if (event->code != 0) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_CONFIRM_READ);
    } else {
        m->confirmation = CONFIRMED;
        judge_confirmations(m);
    }
}

static void on_confirm_read(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == MU_CLASSIC_CODE_NOT_FOUND || mu_classic_is_older(m, event))
        mu_classic_look_again(m);
    else if (mu_classic_got_doc(m, event, MU_CLASSIC_IN_CONFIRM_READ))
        judge_confirmations(m);
}

static void on_confirmed(struct mu_classic *m, const struct mu_classic_event *event)
{
    /* One before that had no answer may have been carried out just now. */
    m->confirmation = event->code == 0                                         ? CONFIRMED
                      : m->confirmation == CONFIRMED_UNSURELY || event->unsure ? CONFIRMED_UNSURELY
                                                                               : CONFIRMED_NOT;
    if (mu_classic_wrote_doc(m, event, MU_CLASSIC_IN_CONFIRM_READ))
        judge_confirmations(m);
}

/* ---- The group is complete ---- */

static void make_store_dir(struct mu_classic *m)
{
    mu_classic_put_dir(mu_classic_ask(m, &m->main, MU_CLASSIC_PUT, "/rdzv/v_%" PRId64 "/kv", m->in_version));
}

static void get_marks(struct mu_classic *m)
{
    (void)mu_classic_ask(m, &m->main, MU_CLASSIC_GET, "/muster/v_%" PRId64, m->in_version);
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
    mu_classic_forget_group(m);
    return false;
}

/* NULL: there is none. */
static const struct mu_classic_node *own_mark(const struct mu_classic *m, const struct mu_classic_event *event)
{
    for (size_t i = 0; event->code == 0 && i < event->nodes_count; i++)
        if (mu_classic_rank_of(m, event->nodes[i].key, "muster", m->in_version) == m->rank)
            return &event->nodes[i];
    return NULL;
}

static void on_marks(struct mu_classic *m, const struct mu_classic_event *event)
{
    const struct mu_classic_node *own = own_mark(m, event);
    struct mu_node other;

    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND) {
        mu_classic_failed(m, event, MU_CLASSIC_IN_MARKS_READ);
        return;
    }
    if (own != NULL && !mu_node_read(own->value, &other)) {
        mu_classic_put_mark_back(m, own->value);
        return;
    }
    if (own == NULL || !mu_slice_equal(own->value, mu_slice_str(m->node))) {
        /* The server has lost everything meanwhile, and another one is that rank of that number. */
        mu_classic_look_again(m);
        return;
    }
    if (!make_group(m)) {
        mu_classic_no_memory(m, MU_CLASSIC_IN_MARKS_READ);
        return;
    }
    for (size_t i = 0; event->code == 0 && i < event->nodes_count; i++) {
        int64_t rank = mu_classic_rank_of(m, event->nodes[i].key, "muster", m->in_version);

        if (rank >= 0 && rank < (int64_t)m->world.count && m->marks[rank] == NULL &&
            event->nodes[i].value.len < MU_CLASSIC_NODE_MAX && mu_node_read(event->nodes[i].value, &other))
            m->marks[rank] = strndup(event->nodes[i].value.data, event->nodes[i].value.len);
    }
    for (size_t i = 0; i < m->world.count; i++)
        m->world.all_ours &= m->marks[i] != NULL;
    mu_classic_set_place(m, PLACE_NONE);
    mu_classic_set_intent(m, INTENT_STAY); /* a join that was about to be given up, too */
    m->old_version = -1;
    m->joined_ms = m->now_ms;
    m->last_error.code = 0;
    (void)mu_classic_tell(m, MU_PART_TELL_JOINED);
    mu_classic_go(m, MU_CLASSIC_IN_MEMBER_READ);
}

const struct mu_classic_phase mu_classic_confirm_phases[MU_CLASSIC_PHASES_COUNT] = {
    [MU_CLASSIC_IN_CONFIRM_KEY] = { .enter = enter_confirm_key, .on_answer = on_confirm_key },
    [MU_CLASSIC_IN_CONFIRM_MARK] = { put_mark, on_made, MU_CLASSIC_IN_CONFIRM_WRITE },
    [MU_CLASSIC_IN_CONFIRM_WRITE] = { .enter = enter_confirm_write, .on_answer = on_confirmed },
    [MU_CLASSIC_IN_CONFIRM_READ] = { .enter = mu_classic_get_doc, .on_answer = on_confirm_read },
    [MU_CLASSIC_IN_CONFIRM_SELF] = { .enter = mu_classic_get_self, .on_answer = on_confirm_self },
    [MU_CLASSIC_IN_FINAL_WATCH] = { mu_classic_watch_document, mu_classic_on_watch, MU_CLASSIC_IN_CONFIRM_READ },
    [MU_CLASSIC_IN_STORE_DIR] = { make_store_dir, on_made, MU_CLASSIC_IN_MARKS_READ },
    [MU_CLASSIC_IN_MARKS_READ] = { .enter = get_marks, .on_answer = on_marks },
};
