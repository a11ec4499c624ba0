/* The classic etcd rendezvous: leaving, or giving up a join, takes back what can be taken back. */
#include "rdzv/classic_parts.h"

#include <assert.h>

void mu_classic_set_place(struct mu_classic *m, enum place place)
{
    assert(place == PLACE_NONE || m->in_version >= 0);
    assert(place != PLACE_LEAVING || mu_classic_is_in(m));
    m->place = place;
}

void mu_classic_set_intent(struct mu_classic *m, enum intent intent)
{
    assert(intent != INTENT_JOIN || (m->intent == INTENT_STAY && m->world.version < 0));
    assert((intent != QUIT_GIVE_UP && intent != QUIT_TIMED_OUT) || m->intent == INTENT_JOIN);
    assert(intent != INTENT_STAY || m->place == PLACE_NONE);
    m->intent = intent;
}

bool mu_classic_is_writing(const struct mu_classic *m)
{
    return m->main.id != 0 && (m->main.kind == MU_CLASSIC_PUT || m->main.kind == MU_CLASSIC_DELETE);
}

static void finish_quit(struct mu_classic *m)
{
    enum intent how = m->intent;

    assert(mu_classic_is_quitting(m));
    mu_classic_withdraw(m, &m->main);
    mu_classic_set_place(m, PLACE_NONE);
    mu_classic_set_intent(m, INTENT_STAY);
    mu_classic_set_announcement(m, ANNOUNCED_NOT);
    m->key_written = false;
    m->old_version = -1;
    mu_classic_go(m, MU_CLASSIC_IN_IDLE);
    m->last_error.code = 0;
    if (how == QUIT_LEAVE) {
        (void)mu_classic_tell(m, MU_PART_TELL_LEFT);
        mu_classic_forget_group(m);
    } else {
        mu_classic_tell_failed(m, MU_PART_ON_JOIN, &m->error);
    }
    if (m->join_next) {
        m->join_next = false;
        mu_classic_start_join(m);
    }
}

/* The time to take ourselves back is over: the next to leave or to join makes up for it. */
void mu_classic_break_quit_off(struct mu_classic *m)
{
    bool joins = m->main.id != 0 && m->state == MU_CLASSIC_IN_JOIN; /* it may have been done, or may yet be */
    bool maybe_in = m->place != PLACE_NONE || joins;

    if (joins)
        m->in_version = m->doc.version;
    mu_classic_stop_rank_lease(m);
    finish_quit(m);
    if (maybe_in && m->place == PLACE_NONE)
        mu_classic_set_place(m, PLACE_MAYBE);
}

static void quit_next(struct mu_classic *m)
{
    if (m->key_written)
        mu_classic_go(m, MU_CLASSIC_IN_QUIT_KEY);
    else if (m->place != PLACE_NONE || mu_classic_is_announced(m))
        mu_classic_go(m, MU_CLASSIC_IN_QUIT_READ);
    else
        finish_quit(m);
}

/* What is under way and may change something is waited for: one has to know what is to be taken back. Who does not
 * leave waits for what is read as well: it may yet get in. */
void mu_classic_quit_if_possible(struct mu_classic *m, bool answered)
{
    bool reads = m->main.id != 0 && m->main.kind == MU_CLASSIC_GET;
    bool awaited = mu_classic_is_writing(m) || (reads && m->intent != QUIT_LEAVE);

    if (!mu_classic_is_quitting(m) || m->state >= MU_CLASSIC_IN_QUIT_KEY || (awaited && !answered) ||
        mu_classic_puts_back(m))
        return;
    mu_classic_withdraw(m, &m->main);
    mu_classic_stop_rank_lease(m);
    quit_next(m);
}

/* QUIT_GIVE_UP, QUIT_TIMED_OUT: the join ends with m->error. */
void mu_classic_begin_quit(struct mu_classic *m, enum intent how, bool answered)
{
    uint64_t until_ms = m->now_ms + (how == QUIT_LEAVE ? MU_CLASSIC_QUIT_MS : MU_CLASSIC_GIVE_UP_MS);

    if (!mu_classic_is_quitting(m) || how == QUIT_LEAVE) { /* who leaves does not hear why it would not have got in */
        if (!mu_classic_is_quitting(m) || until_ms < m->quit_deadline_ms)
            m->quit_deadline_ms = until_ms;
        mu_classic_set_intent(m, how);
    }
    mu_classic_quit_if_possible(m, answered);
}

static void on_quit_key(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND && !mu_classic_is_final(m, event)) {
        mu_classic_pause(m, MU_CLASSIC_IN_QUIT_KEY, QUIT_RETRY_MS);
        return;
    }
    m->key_written = false;
    quit_next(m);
}

static void enter_quit_write(struct mu_classic *m)
{
    int64_t left = (int64_t)m->doc.participants - 1;

    if (m->doc.status == MU_CLASSIC_FINAL)
        mu_classic_put_doc(m, mu_classic_doc_waiting(&m->doc, m->doc.waiting - 1, &m->main.value), 0,
                           MU_CLASSIC_IN_QUIT_READ);
    else
        mu_classic_put_doc(m, mu_classic_doc_left(&m->doc, &m->main.value),
                           left >= m->nodes_min ? MU_CLASSIC_JOINABLE_TTL_S : 0, MU_CLASSIC_IN_QUIT_READ);
}

static void quit_judge(struct mu_classic *m)
{
    bool takes_part = m->place != PLACE_NONE && m->doc.version == m->in_version;

    if (takes_part && m->doc.status == MU_CLASSIC_JOINABLE) {
        bool last = m->place >= PLACE_OURS && m->rank + 1 == (int64_t)m->doc.participants;

        mu_classic_go(m, last ? MU_CLASSIC_IN_QUIT_WRITE : MU_CLASSIC_IN_QUIT_DROP);
    } else if (takes_part && m->doc.status == MU_CLASSIC_FROZEN) {
        mu_classic_go(m, MU_CLASSIC_IN_QUIT_DROP);
    } else if (m->announcement == ANNOUNCED && mu_classic_is_there(m, MU_CLASSIC_FINAL, m->announced) &&
               m->doc.waiting > 0) { /* rather one too many than one too few */
        mu_classic_go(m, MU_CLASSIC_IN_QUIT_WRITE);
    } else {
        finish_quit(m);
    }
}

static void on_quit_read(struct mu_classic *m, const struct mu_classic_event *event)
{
    struct muster_error error;

    if (event->code < 0 || event->code >= 300)
        mu_classic_pause(m, MU_CLASSIC_IN_QUIT_READ, QUIT_RETRY_MS);
    else if (event->code > 0 || mu_classic_take_doc(m, event->value, event->index, &error) < 0)
        finish_quit(m);
    else
        quit_judge(m);
}

/* QUIT_WRITE and QUIT_DROP. */
static void on_quit_written(struct mu_classic *m, const struct mu_classic_event *event)
{
    if (event->code == MU_CLASSIC_CODE_COMPARE) {
        mu_classic_after_lost_write(m, MU_CLASSIC_IN_QUIT_READ);
    } else if (event->code < 0 || event->code >= 300) {
        if (mu_classic_is_in(m))
            mu_classic_set_place(m, PLACE_LEAVING); /* the last participant may be another one by now */
        else if (event->unsure)
            mu_classic_set_announcement(m, ANNOUNCED_NOT); /* rather one too many than one too few */
        mu_classic_pause(m, MU_CLASSIC_IN_QUIT_READ, QUIT_RETRY_MS);
    } else {
        finish_quit(m);
    }
}

const struct mu_classic_phase mu_classic_quit_phases[MU_CLASSIC_PHASES_COUNT] = {
    [MU_CLASSIC_IN_QUIT_KEY] = { .enter = mu_classic_delete_key, .on_answer = on_quit_key },
    [MU_CLASSIC_IN_QUIT_READ] = { .enter = mu_classic_get_doc, .on_answer = on_quit_read },
    [MU_CLASSIC_IN_QUIT_WRITE] = { .enter = enter_quit_write, .on_answer = on_quit_written },
    [MU_CLASSIC_IN_QUIT_DROP] = { .enter = mu_classic_drop_doc, .on_answer = on_quit_written },
};
