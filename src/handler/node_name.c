/* What this node is called in documents, records and logs, and what requests are called in errors. */
#include "handler/handler.h"

#include <stdio.h>
#include <unistd.h>

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

const char *mu_handler_request_text(enum muster_rdzv_request request)
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
