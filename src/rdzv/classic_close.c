/* The classic etcd rendezvous: closing it, and looking whether it is closed. */
#include "rdzv/classic_parts.h"

void mu_classic_end_close(struct mu_classic *m, bool done)
{
    m->close_state = CLOSE_NONE;
    m->close.due_ms = NEVER;
    mu_classic_withdraw(m, &m->close);
    m->closed_told |= done;
    if (done)
        mu_classic_tell(m, MU_PART_TELL_CLOSED)->asked = MU_PART_ON_CLOSE;
    else
        mu_classic_tell_failed(m, MU_PART_ON_CLOSE, &m->close_error);
}

/* What is under way is waited for a little longer: it knows why. */
uint64_t mu_classic_close_end_ms(const struct mu_classic *m)
{
    return m->close_deadline_ms + (m->close.id != 0 ? 2 * DEADLINE_SLACK_MS : 0);
}

void mu_classic_close_read(struct mu_classic *m)
{
    m->close_state = CLOSE_READ;
    (void)mu_classic_ask(m, &m->close, MU_CLASSIC_GET, "/rdzv/active_version");
}

static void close_later(struct mu_classic *m, uint64_t delay_ms)
{
    m->close_state = CLOSE_READ;
    m->close.due_ms = m->now_ms + delay_ms;
}

static void close_error(struct mu_classic *m, const struct mu_classic_event *event)
{
    mu_classic_set_error(m, &m->close_error, event);
    if (mu_classic_is_final(m, event) || m->now_ms >= m->close_deadline_ms)
        mu_classic_end_close(m, false);
    else
        close_later(m, QUIT_RETRY_MS);
}

/* The closed document into close.value. */
static int make_closed(struct mu_classic *m, const struct mu_classic_event *event, bool *ret_closed,
                       struct muster_error *error)
{
    struct mu_classic_doc doc = { .version = -1 };
    int rc = event->code != 0 ? MUSTER_ERDZV_STATE : mu_classic_doc_read(event->value, &doc, error);
    bool has_doc = rc == 0;

    if (rc < 0 && (rc != MUSTER_ERDZV_STATE || mu_classic_doc_is_other_layout(event->value)))
        return rc;
    *ret_closed = has_doc && doc.status == MU_CLASSIC_CLOSED;
    rc = mu_classic_doc_closed(has_doc ? &doc : NULL, &m->close.value);
    mu_classic_doc_done(&doc);
    return rc < 0 ? mu_fail(error, MUSTER_ENOMEM, "no memory for the document") : 0;
}

static void on_close_read(struct mu_classic *m, const struct mu_classic_event *event)
{
    struct mu_classic_request *request;
    struct muster_error error;
    bool is_new = event->code == MU_CLASSIC_CODE_NOT_FOUND, closed;
    int rc;

    if (event->code != 0 && !is_new) {
        close_error(m, event);
        return;
    }
    rc = make_closed(m, event, &closed, &error);
    if (rc < 0) {
        close_error(m, &(struct mu_classic_event){ .code = rc, .error = &error });
        return;
    }
    if (closed) {
        mu_classic_end_close(m, true);
        return;
    }
    m->close_state = CLOSE_WRITE;
    request = mu_classic_ask(m, &m->close, MU_CLASSIC_PUT, "/rdzv/active_version");
    request->has_value = true;
    request->value = mu_buf_slice(&m->close.value);
    request->must_not_exist = is_new;
    request->prev_index = is_new ? 0 : event->modified;
    if (is_new) /* nobody may have made the job's directory, with which it would go */
        request->ttl_s = MU_CLASSIC_ROOT_TTL_S;
}

void mu_classic_on_close_answer(struct mu_classic *m, const struct mu_classic_event *event)
{
    m->close.id = 0;
    if (m->close_state == CLOSE_READ)
        on_close_read(m, event);
    else if (event->code == 0)
        mu_classic_end_close(m, true);
    else if (mu_classic_is_lost_write(event))
        close_later(m, mu_rng_below(&m->rng, MU_CLASSIC_CAS_DELAY_MS));
    else
        close_error(m, event);
}

void mu_classic_on_look_answer(struct mu_classic *m, const struct mu_classic_event *event)
{
    struct mu_classic_doc doc = { .version = -1 };
    struct mu_part_news *news = mu_classic_tell(m, MU_PART_TELL_LOOKED);
    int rc = event->code == 0 ? mu_classic_doc_read(event->value, &doc, &m->look_error) : 0;

    m->look.id = 0;
    if (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND)
        mu_classic_set_error(m, &m->look_error, event);
    if (rc < 0 || (event->code != 0 && event->code != MU_CLASSIC_CODE_NOT_FOUND)) {
        news->error = &m->look_error;
        return;
    }
    news->closed = event->code == 0 && doc.status == MU_CLASSIC_CLOSED;
    news->count = event->code == 0 && doc.status == MU_CLASSIC_FINAL ? doc.waiting : 0;
    if (event->code == 0)
        news->round = doc.version < 0 ? 0 : doc.version; /* one that is being set up has no number yet */
    else
        news->round = -1;
    mu_classic_doc_done(&doc);
}
