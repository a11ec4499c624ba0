/* What goes on between a wrapper and somebody else's back end. See plugin_asks.h. */
#include "handler/plugin_asks.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- What was asked ---- */

static void forget(struct mu_plugin_machine *m, enum muster_rdzv_request request)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < m->asks_count; i++) {
        if (m->asks[i].request != request)
            m->asks[kept++] = m->asks[i];
    }
    m->asks_count = kept;
}

static void remember(struct mu_plugin_machine *m, enum muster_rdzv_request request)
{
    assert(request < MUSTER_RDZV_REQUEST_MEMBERSHIP);
    if (request == MUSTER_RDZV_REQUEST_LEAVE) /* nobody waits for the join any more */
        forget(m, MUSTER_RDZV_REQUEST_JOIN);
    forget(m, request);
    assert(m->asks_count < sizeof m->asks / sizeof m->asks[0]);
    m->asks[m->asks_count++] = (struct mu_plugin_ask){ .request = request };
}

/* The oldest ask with an early event; NULL: none. */
static const struct mu_plugin_ask *find_early(const struct mu_plugin_machine *m)
{
    for (unsigned i = 0; i < m->asks_count; i++) {
        if (m->asks[i].is_early)
            return &m->asks[i];
    }
    return NULL;
}

/* The oldest ask that FAILED may be the answer of. Without one it is the membership that has failed. */
static enum muster_rdzv_request oldest(const struct mu_plugin_machine *m)
{
    for (unsigned i = 0; i < m->asks_count; i++) {
        if (m->asks[i].request != MUSTER_RDZV_REQUEST_LOOK) /* LOOKED is its answer, with an error or without */
            return m->asks[i].request;
    }
    return MUSTER_RDZV_REQUEST_MEMBERSHIP;
}

/* UNKNOWN: none. A type may be newer than this library. */
static enum muster_rdzv_request answered_by(const struct muster_rdzv_event *event)
{
    static const enum muster_rdzv_request answers[] = { [MUSTER_RDZV_JOINED] = MUSTER_RDZV_REQUEST_JOIN,
                                                        [MUSTER_RDZV_LEFT] = MUSTER_RDZV_REQUEST_LEAVE,
                                                        [MUSTER_RDZV_CLOSED] = MUSTER_RDZV_REQUEST_CLOSE,
                                                        [MUSTER_RDZV_LOOKED] = MUSTER_RDZV_REQUEST_LOOK };

    if (event->type == MUSTER_RDZV_FAILED)
        return event->request;
    return (size_t)event->type < sizeof answers / sizeof answers[0] ? answers[event->type]
                                                                    : MUSTER_RDZV_REQUEST_UNKNOWN;
}

/* ---- The handler it created ---- */

/* A handler's table up to what every handler has; what came later may be missing. */
#define OPS_BYTES_MIN offsetof(struct muster_handler_ops, endpoint)

static int check_handler(const struct muster_handler *handler, const char *name, struct muster_error *reterr)
{
    const struct muster_handler_ops *ops = handler == NULL ? NULL : handler->ops;

    if (ops == NULL)
        return mu_fail(reterr, MUSTER_EINTERNAL, "it gave no handler");
    if (ops->size < OPS_BYTES_MIN)
        return mu_fail(reterr, MUSTER_EINTERNAL, "its handler's table has %u bytes; expected at least %zu",
                       (unsigned)ops->size, OPS_BYTES_MIN);
    if (ops->join == NULL || ops->leave == NULL || ops->close == NULL || ops->look == NULL || ops->free == NULL)
        return mu_fail(reterr, MUSTER_EINTERNAL, "its handler lacks one of join, leave, close, look and free");
    if (ops->name == NULL || strcmp(ops->name, name) != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "its handler's own name '%s' is not the back end asked for, '%s'",
                       ops->name == NULL ? "" : ops->name, name);
    return 0;
}

int mu_plugin_check_created(const struct mu_plugin_machine *m, int rc, const struct muster_error *given,
                            const char *file, struct muster_handler **handler, struct muster_error *reterr)
{
    const struct mu_plugin_ask *early = find_early(m);

    assert(m->state == MU_PLUGIN_CREATING);
    if (rc < 0) {
        *handler = NULL;
        (void)mu_fail(reterr, rc, "%s", given->text[0] == '\0' ? muster_error_text(rc) : given->text);
    } else if (rc > 0) {
        rc = mu_fail(reterr, MUSTER_EINTERNAL, "its create function returned %d; expected 0 or an error", rc);
    } else if (early != NULL) {
        rc = mu_fail(reterr, MUSTER_EINTERNAL, "it told '%s' before its handler was created",
                     muster_rdzv_event_name(early->told));
    } else {
        rc = check_handler(*handler, m->name, reterr);
    }
    return rc < 0 ? mu_wrap(reterr, rc, "rendezvous back end '%s' of '%s'", m->name, file) : 0;
}

/* Also one that is not accepted is given back, where it can be. */
static bool can_be_freed(const struct muster_handler *handler)
{
    return handler != NULL && handler->ops != NULL && handler->ops->size >= OPS_BYTES_MIN && handler->ops->free != NULL;
}

/* ---- States and effects ---- */

static void check(const struct mu_plugin_machine *m)
{
    bool is_asked = m->asks_count > 0;

    assert((m->state == MU_PLUGIN_CREATING) == (is_asked && m->asks[0].request == MUSTER_RDZV_REQUEST_UNKNOWN));
    assert(m->state != MU_PLUGIN_CREATING || m->asks_count == 1);
    assert(m->state != MU_PLUGIN_CALLING || is_asked);
    assert((m->state != MU_PLUGIN_FREEING && m->state != MU_PLUGIN_OVER) || !is_asked);
    assert(m->services <= MU_PLUGIN_SERVICES_MAX);
}

static void enter(struct mu_plugin_machine *m, enum mu_plugin_state state)
{
    static const unsigned from[] = {
        [MU_PLUGIN_CREATING] = 0,
        [MU_PLUGIN_SERVING] = 1U << MU_PLUGIN_CREATING | 1U << MU_PLUGIN_CALLING,
        [MU_PLUGIN_CALLING] = 1U << MU_PLUGIN_SERVING,
        [MU_PLUGIN_FREEING] = 1U << MU_PLUGIN_CREATING | 1U << MU_PLUGIN_SERVING,
        [MU_PLUGIN_OVER] = 1U << MU_PLUGIN_CREATING | 1U << MU_PLUGIN_FREEING,
    };

    assert((from[state] & 1U << m->state) != 0);
    if (m->state == MU_PLUGIN_CREATING || state == MU_PLUGIN_FREEING)
        m->asks_count = 0;
    m->state = state;
    check(m);
}

static void add(struct mu_plugin_effects *out, enum mu_plugin_effect effect)
{
    assert(out->count < sizeof out->items / sizeof out->items[0]);
    out->items[out->count++] = effect;
}

/* Room for the text. */
static char *say(struct mu_plugin_effects *out, enum muster_log_level level)
{
    add(out, MU_PLUGIN_DO_SAY);
    out->level = level;
    return out->text;
}

static void end(struct mu_plugin_machine *m, struct mu_plugin_effects *out)
{
    enter(m, MU_PLUGIN_OVER);
    if (m->services > 0)
        (void)snprintf(say(out, MUSTER_LOG_WARNING), sizeof out->text,
                       "rendezvous back end '%s' did not give back %u timers and watches; they are closed", m->name,
                       m->services);
    add(out, MU_PLUGIN_DO_END);
}

/* ---- Events ---- */

static void on_created(struct mu_plugin_machine *m, const struct mu_plugin_event *event, struct mu_plugin_effects *out)
{
    if (event->rc == 0) {
        enter(m, MU_PLUGIN_SERVING);
    } else if (can_be_freed(event->handler)) {
        enter(m, MU_PLUGIN_FREEING);
        add(out, MU_PLUGIN_DO_FREE);
    } else {
        end(m, out);
    }
}

/* The event as this library knows it; what it answers is not asked any more. */
static void tell(struct mu_plugin_machine *m, const struct muster_rdzv_event *told, struct mu_plugin_effects *out)
{
    struct muster_rdzv_event *whole = &out->tell;

    if (told->size < offsetof(struct muster_rdzv_event, info)) {
        (void)snprintf(say(out, MUSTER_LOG_ERROR), sizeof out->text,
                       "rendezvous back end '%s' told an event of %u bytes; dropped", m->name, (unsigned)told->size);
        return;
    }
    *whole = (struct muster_rdzv_event){ .size = 0 };
    memcpy(whole, told, told->size < sizeof *whole ? told->size : sizeof *whole);
    /* Older events end before `note`, with padding in the place of `request`. An unknown value is no better. */
    if (told->size <= offsetof(struct muster_rdzv_event, note) ||
        (unsigned)whole->request > MUSTER_RDZV_REQUEST_MEMBERSHIP)
        whole->request = MUSTER_RDZV_REQUEST_UNKNOWN;
    whole->size = sizeof *whole;
    whole->seat = NULL; /* of our own back ends alone */
    whole->verdict = NULL;
    if (whole->type == MUSTER_RDZV_FAILED && whole->request == MUSTER_RDZV_REQUEST_UNKNOWN)
        whole->request = oldest(m);
    forget(m, answered_by(whole));
    add(out, MU_PLUGIN_DO_TELL);
}

static void on_told(struct mu_plugin_machine *m, const struct muster_rdzv_event *told, struct mu_plugin_effects *out)
{
    if (m->state == MU_PLUGIN_SERVING) {
        tell(m, told, out);
    } else if (m->asks_count > 0) { /* inside of the call for the newest */
        m->asks[m->asks_count - 1].is_early = true;
        m->asks[m->asks_count - 1].told = told->type;
    }
}

bool mu_plugin_wants_turn(const struct mu_plugin_machine *m)
{
    return m->state == MU_PLUGIN_SERVING && find_early(m) != NULL;
}

/* One a turn: the ask has failed. */
static void answer_early(struct mu_plugin_machine *m, struct mu_plugin_effects *out)
{
    const struct mu_plugin_ask early = *find_early(m);
    bool is_look = early.request == MUSTER_RDZV_REQUEST_LOOK;

    (void)mu_fail(
        &out->error, MUSTER_EINTERNAL,
        "the rendezvous back end '%s' told '%s' inside of a call; expected that it tells later, from the loop", m->name,
        muster_rdzv_event_name(early.told));
    out->tell = (struct muster_rdzv_event){ .size = sizeof out->tell,
                                            .type = is_look ? MUSTER_RDZV_LOOKED : MUSTER_RDZV_FAILED,
                                            .round = -1,
                                            .request = early.request,
                                            .error = &out->error };
    forget(m, early.request);
    add(out, MU_PLUGIN_DO_TELL);
}

static void on_freed(struct mu_plugin_machine *m, struct mu_plugin_effects *out)
{
    assert(m->state == MU_PLUGIN_FREEING || m->state == MU_PLUGIN_OVER);
    if (m->state == MU_PLUGIN_OVER)
        (void)snprintf(say(out, MUSTER_LOG_ERROR), sizeof out->text,
                       "rendezvous back end '%s' said twice that its handler is freed", m->name);
    else
        end(m, out);
}

void mu_plugin_init(struct mu_plugin_machine *m, const char *name)
{
    *m = (struct mu_plugin_machine){ .name = name, .state = MU_PLUGIN_CREATING };
    remember(m, MUSTER_RDZV_REQUEST_UNKNOWN);
    check(m);
}

void mu_plugin_step(struct mu_plugin_machine *m, const struct mu_plugin_event *event, struct mu_plugin_effects *out)
{
    check(m);
    out->count = 0;
    switch (event->type) {
    case MU_PLUGIN_ON_CREATED:
        assert(m->state == MU_PLUGIN_CREATING);
        on_created(m, event, out);
        break;
    case MU_PLUGIN_ON_ASKED:
        remember(m, event->request);
        enter(m, MU_PLUGIN_CALLING);
        out->request = event->request;
        add(out, MU_PLUGIN_DO_CALL);
        break;
    case MU_PLUGIN_ON_RETURNED:
        assert(m->state == MU_PLUGIN_CALLING);
        enter(m, MU_PLUGIN_SERVING);
        break;
    case MU_PLUGIN_ON_TOLD:
        on_told(m, event->told, out);
        break;
    case MU_PLUGIN_ON_TURN:
        if (mu_plugin_wants_turn(m))
            answer_early(m, out);
        break;
    case MU_PLUGIN_ON_FREE:
        assert(m->state == MU_PLUGIN_SERVING);
        enter(m, MU_PLUGIN_FREEING);
        add(out, MU_PLUGIN_DO_FREE);
        break;
    case MU_PLUGIN_ON_FREED:
        on_freed(m, out);
        break;
    }
    check(m);
}

/* ---- What a back end may use ---- */

bool mu_plugin_hold_service(struct mu_plugin_machine *m)
{
    if (m->state == MU_PLUGIN_OVER || m->services == MU_PLUGIN_SERVICES_MAX)
        return false;
    m->services++;
    return true;
}

void mu_plugin_drop_service(struct mu_plugin_machine *m)
{
    assert(m->services > 0);
    m->services--;
}

uint64_t mu_plugin_delay_ms(int64_t delay_ms)
{
    return delay_ms < 0 ? 0 : (uint64_t)delay_ms;
}

unsigned mu_plugin_watched(int fd, unsigned events)
{
    return fd < 0 ? 0 : events & (MUSTER_FD_READABLE | MUSTER_FD_WRITABLE);
}

/* The back end finds the error when it uses the descriptor. */
unsigned mu_plugin_ready(bool has_failed, unsigned found, unsigned events)
{
    return (has_failed ? MUSTER_FD_READABLE | MUSTER_FD_WRITABLE : found) & events;
}

int mu_plugin_fail(void *ctx, struct muster_error *reterr, int code, const char *text)
{
    (void)ctx;
    return mu_fail(reterr, code < 0 ? code : MUSTER_EINTERNAL, "%s", text);
}
