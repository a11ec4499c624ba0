/* One connection of the engine, from frames to frames. Pure: what is to be sent goes to the driver's `send`.
 *
 * Each request is answered once, in order: HELLO by WELCOME, LOAD and RANGE by KVS, all others by DONE. A request that
 * the engine refuses is answered by DONE with a code and a sentence. Changes are pushed when the turn is over
 * (mu_engine_host_turn). What is no frame, or no request, ends the connection. */
#ifndef MU_STORE_ENGINE_SESSION_H
#define MU_STORE_ENGINE_SESSION_H

#include "store/frames.h"

struct mu_engine_session;

/* Queues the bytes, copying what it cannot send at once. It must not call back into the engine; if the peer cannot take
 * them the driver sets session->dead and lets the session leave later, outside of the call. */
typedef void mu_engine_send(struct mu_engine_session *session, struct mu_slice bytes);
/* The connection is to be cut: its lease has another one now, or there is no memory for an answer. The driver sets
 * session->dead, and lets it leave later. */
typedef void mu_engine_drop(struct mu_engine_session *session);

struct mu_engine_host { /* what all sessions of a server share */
    struct mu_engine *engine;
    uint64_t epoch;            /* random: one for each start of a server */
    const char *node;          /* the host's name */
    struct mu_budget *transit; /* of frames that are not whole yet */
    mu_engine_send *send;
    mu_engine_drop *drop;
    uint64_t now_ms;
    struct mu_buf out; /* one frame, being written */
};

struct mu_engine_host_config {
    struct mu_budget *budget, *transit; /* of the store: what keys take, and what half-read frames take */
    struct mu_hash_seed seed;
    uint64_t random[2];
    const char *node; /* borrowed */
    mu_engine_send *send;
    mu_engine_drop *drop;
};

int mu_engine_host_init(struct mu_engine_host *host, const struct mu_engine_host_config *config); /* MUSTER_ENOMEM */
void mu_engine_host_done(struct mu_engine_host *host); /* every session must have left */
/* After each poll: leases that ended, and everything that is to be pushed. `began_ms`: when that poll began. */
void mu_engine_host_turn(struct mu_engine_host *host, uint64_t began_ms, uint64_t now_ms);

struct mu_engine_session {
    struct mu_engine_host *host;
    struct mu_engine_peer peer;
    const char *address; /* the peer's, as text; borrowed */
    struct mu_buf unread;
    size_t charged; /* what of the transit budget `unread` holds */
    bool dead;      /* nothing is sent to it or read from it any more */
};

void mu_engine_session_init(struct mu_engine_session *session, struct mu_engine_host *host, const char *address);
/* Bytes came. Fails, with *reterr set, when the connection must be cut; the session is then fed no more, only left. */
int mu_engine_session_feed(struct mu_engine_session *session, struct mu_slice bytes, uint64_t now_ms,
                           struct muster_error *reterr);
/* The connection is gone. `cut`: because the server wanted so. Call once. */
void mu_engine_session_leave(struct mu_engine_session *session, bool cut, uint64_t now_ms);

#endif
