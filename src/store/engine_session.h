/* One connection of the engine, from frames to frames. Pure: what is to be sent goes to the driver's `send`.
 *
 * Each request is answered once, in order: HELLO by WELCOME, LOAD and RANGE by KVS, all others by DONE. A request that
 * the engine refuses is answered by DONE with a code and a sentence. Where the host has a token, HELLO without a proof
 * is answered by CHALLENGE, and with a wrong one the connection is cut. Changes are pushed when the turn is over
 * (mu_engine_host_turn). What is no frame, or no request, ends the connection.
 *
 * Keys that take more than one frame are sent page by page: the next one goes out when the peer has taken the one
 * before (mu_engine_session_sent). What comes behind the last one waits for the same, up to UNSENT_MAX; then the
 * connection is cut. */
#ifndef MU_STORE_ENGINE_SESSION_H
#define MU_STORE_ENGINE_SESSION_H

#include "store/frames.h"
#include "store/session.h"
#include "store/token.h"

struct mu_engine_session;

#define MU_ENGINE_UNSENT_MAX (1u << 20) /* to one peer; one frame more always fits */
#define MU_ENGINE_EARLY_MAX 4096        /* bytes of a frame before HELLO */

/* Queues the bytes, copying what it cannot send at once. False: some are unsent, and mu_engine_session_sent() is called
 * when they are gone. It must not call back into the engine; if the peer cannot take them the driver sets session->dead
 * and lets the session leave later, outside of the call. */
typedef bool mu_engine_send(struct mu_engine_session *session, struct mu_slice bytes);
/* The connection is to be cut. The driver says why, sets session->dead, and lets it leave later. */
typedef void mu_engine_drop(struct mu_engine_session *session, const char *why);

struct mu_engine_host { /* what all sessions of a server share */
    struct mu_engine *engine;
    uint64_t epoch;               /* random: one for each start of a server */
    const char *node;             /* the host's name */
    struct mu_service *service;   /* the store. A job that has a document there does not meet here */
    const struct mu_token *token; /* NULL: none is wanted */
    struct mu_budget *transit;    /* of frames that are not whole yet */
    mu_engine_send *send;
    mu_engine_drop *drop;
    uint64_t now_ms;
    struct mu_buf out; /* one frame, being written */
};

struct mu_engine_host_config {
    struct mu_budget *budget, *transit; /* of the store: what keys take, and what half-read frames take */
    size_t reserved;                    /* as in mu_engine_config */
    struct mu_hash_seed seed;
    uint64_t random[2];
    const char *node;             /* borrowed, as the next two are */
    struct mu_service *service;   /* NULL: without one */
    const struct mu_token *token; /* of those who may say HELLO; NULL: everybody may */
    mu_engine_send *send;
    mu_engine_drop *drop;
};

int mu_engine_host_init(struct mu_engine_host *host, const struct mu_engine_host_config *config); /* MUSTER_ENOMEM */
void mu_engine_host_done(struct mu_engine_host *host); /* every session must have left */
/* After each poll: leases that ended, and everything that is to be pushed. `began_ms`: when that poll began. True: no
 * lease waits for its owner any more, and one did before. */
bool mu_engine_host_turn(struct mu_engine_host *host, uint64_t began_ms, uint64_t now_ms);

struct mu_engine_ends {    /* of a connection, addresses as text; borrowed */
    const char *peer;      /* its address and port, for messages */
    const char *peer_addr; /* its address */
    const char *own_addr;  /* ours, to which it has connected */
    const char *nonce;     /* MU_TOKEN_NONCE_BYTES at random, for it alone; NULL where the host has no token */
};

struct mu_engine_session {
    struct mu_engine_host *host;
    struct mu_engine_peer peer;
    struct mu_engine_ends ends;
    struct mu_buf unread;
    size_t charged;         /* what of the transit budget `unread` holds */
    struct mu_list answers; /* of keys that are being sent page by page, and what comes behind them */
    size_t answers_count;
    size_t held_back; /* bytes behind pages; part of the transit budget, too */
    bool elsewhere;   /* it has heard that its job meets in a document: what came with its HELLO is not carried out */
    bool dead;        /* nothing is sent to it or read from it any more */
};

void mu_engine_session_init(struct mu_engine_session *session, struct mu_engine_host *host,
                            const struct mu_engine_ends *ends);
/* Bytes came. Fails, with *reterr set, when the connection must be cut; the session is then fed no more, only left. */
int mu_engine_session_feed(struct mu_engine_session *session, struct mu_slice bytes, uint64_t now_ms,
                           struct muster_error *reterr);
/* The peer has taken all that was sent. */
void mu_engine_session_sent(struct mu_engine_session *session);
/* The connection is gone. `cut`: because the server wanted so. Call once. */
void mu_engine_session_leave(struct mu_engine_session *session, bool cut, uint64_t now_ms);

#endif
