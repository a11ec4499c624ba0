/* What all handlers share: their owner's four requests, and what nodes and requests are called. */
#include "handler/handler.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* ---- The owner's requests ---- */

static void ask(struct muster_handler *handler, enum muster_rdzv_request request)
{
    ((struct mu_handler *)handler)->ask(handler, request);
}

void mu_handler_join(struct muster_handler *handler)
{
    ask(handler, MUSTER_RDZV_REQUEST_JOIN);
}

void mu_handler_leave(struct muster_handler *handler)
{
    ask(handler, MUSTER_RDZV_REQUEST_LEAVE);
}

void mu_handler_close(struct muster_handler *handler)
{
    ask(handler, MUSTER_RDZV_REQUEST_CLOSE);
}

void mu_handler_look(struct muster_handler *handler)
{
    ask(handler, MUSTER_RDZV_REQUEST_LOOK);
}

/* ---- Names ---- */

const char *mu_handler_node_name(const char *local_addr, char hostname[static MU_HANDLER_NAME_MAX])
{
    if (local_addr != NULL && local_addr[0] != '\0')
        return local_addr;
    (void)snprintf(hostname, MU_HANDLER_NAME_MAX, "localhost");
    (void)gethostname(hostname, MU_HANDLER_NAME_MAX);
    hostname[MU_HANDLER_NAME_MAX - 1] = '\0'; /* one that is cut need not be ended */
    for (char *at = hostname; *at != '\0'; at++) {
        if ((unsigned char)*at >= 0x80) /* others must be able to read it */
            *at = '?';
    }
    return hostname;
}

/* ---- Losses ---- */

/* Dead nodes are looked for with each heartbeat of ours. */
void mu_handler_loss_by_heartbeats(struct mu_handler *handler, const struct mu_rdzv_settings *settings)
{
    uint64_t silence_ms = mu_rdzv_death_age_ms(settings);

    handler->loss_ms = silence_ms + settings->keep_alive_ms;
    (void)snprintf(handler->loss_cause, sizeof handler->loss_cause, "no heartbeat for %" PRIu64 " s",
                   silence_ms / 1000);
}

void mu_handler_loss_by_lease(struct mu_handler *handler, uint64_t lease_s, uint64_t grace_ms)
{
    handler->loss_ms = lease_s * 1000 + grace_ms;
    (void)snprintf(handler->loss_cause, sizeof handler->loss_cause, "no keep-alive for %" PRIu64 " s", lease_s);
}

/* ---- Errors ---- */

/* As a verb before "rendezvous". */
static const char *request_text(enum muster_rdzv_request request)
{
    switch (request) {
    case MUSTER_RDZV_REQUEST_JOIN:
        return "join";
    case MUSTER_RDZV_REQUEST_LEAVE:
        return "leave";
    case MUSTER_RDZV_REQUEST_CLOSE:
        return "close";
    case MUSTER_RDZV_REQUEST_LOOK:
        return "look at";
    case MUSTER_RDZV_REQUEST_MEMBERSHIP:
        return "stay in";
    case MUSTER_RDZV_REQUEST_UNKNOWN:
        break;
    }
    return "use";
}

void mu_handler_log(enum muster_log_level level, const char *run_id, const char *text)
{
    mu_log(level, "rendezvous '%s': %s", run_id, text);
}

void mu_handler_wrap(const struct muster_rdzv_event *event, const char *run_id, struct muster_error *error)
{
    (void)mu_wrap(error, error->code, "%s rendezvous '%s'",
                  event->type == MUSTER_RDZV_BACKEND_DOWN ? "keep to"
                  : event->type == MUSTER_RDZV_REPORTED   ? "report to"
                                                          : request_text(event->request),
                  run_id);
}
