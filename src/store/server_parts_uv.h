/* The parts of the store server that its files share:
 *
 *   server_uv.c        reading, carrying out, sending, closing; watches and writes from within the process
 *   server_admit_uv.c  newcomers, and whether other processes are connected
 *   server_engine_uv.c connections that speak the engine's frames
 *   server_start_uv.c  start and close, by the configuration */
#ifndef MU_STORE_SERVER_PARTS_UV_H
#define MU_STORE_SERVER_PARTS_UV_H

#include "base/log.h"
#include "store/admission.h"
#include "store/engine_session.h"
#include "store/server_uv.h"
#include "store/session.h"

enum {
    MU_SERVER_READ_BYTES = 64 * 1024,
    MU_SERVER_GATHER_BYTES = 64 * 1024,
};

/* A table and the connections that were accepted while it was the newest. */
struct mu_era {
    struct mu_service service;
    size_t users; /* connections and watches, and the server while it is the newest */
};

/* One of the addresses of a server; all of them have the same port. */
struct mu_listener {
    uv_tcp_t tcp;
    struct mu_server *server;
    union mu_addr addr;
    bool held_back;      /* a connection waits for the spare handle */
    struct mu_list link; /* in server->listeners */
};

struct mu_conn {
    uv_tcp_t tcp;
    int fd; /* its socket, which it owns */
    struct mu_server *server;
    struct mu_backlog *backlog; /* NULL: the socket took everything so far */
    struct mu_session session;
    struct mu_frames *frames; /* NULL: it speaks TCPStore's protocol */
    bool refused;             /* it is closed because we want so */
    struct mu_era *era;
    union mu_addr addr;
    uint64_t number;          /* in the order in which they were accepted, from 1 */
    uint64_t heard_ms;        /* when something last came from it */
    struct mu_origin *origin; /* NULL: it comes from this machine */
    struct mu_list link;      /* in server->conns */
    struct mu_list doomed;    /* in server->doomed, or in no list */
    struct mu_list waiting;   /* in server->graces, or in no list */
    struct mu_list silent;    /* in server->silent, or in no list */
    struct mu_list busy;      /* in server->busy, or in no list */
};

struct mu_server {
    uv_loop_t *loop;
    struct mu_list listeners;
    uv_timer_t grace_timer;
    uv_tcp_t spare;           /* takes connections there is no memory for, in order to close them */
    uv_timer_t log_timer;     /* runs while there are refusals that were not logged */
    uv_timer_t alone_timer;   /* due when the last other process may have gone */
    void (*alone)(void *ctx); /* may be NULL */
    void *alone_ctx;
    void (*gone)(void *ctx, uint64_t connection); /* may be NULL */
    void *gone_ctx;
    unsigned handles; /* of these, those not closed yet */
    bool spare_busy;
    union mu_addr addr;              /* of the first listener */
    union mu_addr accepted_on;       /* where a connection from another machine first came in; family 0: none did */
    struct mu_era *era;              /* the newest */
    struct mu_server_engine *engine; /* NULL: nobody has asked for it */
    char node[MU_FRAME_TEXT_MAX];    /* that hosts us, where the engine is offered */
    struct mu_token token;           /* that they must have */
    struct mu_strays strays;
    struct mu_hash_seed seed;
    struct mu_admission admission;
    struct mu_list conns, doomed, graces;
    struct mu_list silent; /* connections that have asked for nothing yet, those that came first in front */
    struct mu_list busy;   /* connections with work that is done in turns, or that leave in turns */
    uv_idle_t turns;       /* runs while there are some */
    size_t conns_count;    /* not yet given back by the loop */
    uint64_t accepted, refused;
    struct mu_log_limit log_limit;
    struct mu_conn *sated;   /* has filled the buffer, and reads on when it is its turn again */
    uint64_t ahead_ms;       /* the loop's time at the last read ahead */
    unsigned ahead;          /* buffers read ahead at that time */
    struct mu_conn *current; /* whose bytes are being carried out; its replies are gathered */
    size_t gathered;
    bool closing;
    mu_server_closed *on_closed;
    void *on_closed_ctx;
    char read_bytes[MU_SERVER_READ_BYTES];
    char gather_bytes[MU_SERVER_GATHER_BYTES];
};

/* ---- server_uv.c ---- */

/* Counts a refusal; true when it may be logged, for that must not happen too often. */
bool mu_server_may_log_refusal(struct mu_server *server);
void mu_server_log_dropped(uint64_t dropped);
void mu_conn_doom(struct mu_conn *conn); /* it is closed when the event that is being handled is over */
void mu_conn_feed(struct mu_conn *conn, struct mu_slice bytes);
void mu_conn_drop(struct mu_conn *conn, const char *why); /* says so, and dooms it */
void mu_server_close_doomed(struct mu_server *server);    /* the last thing that every event does */
void mu_conn_close(struct mu_conn *conn);
int mu_conn_read(struct mu_conn *conn); /* from now on; negative: it cannot be read from */
struct mu_era *mu_era_new(const struct muster_store_limits *limits, enum mu_dialect legacy, struct mu_hash_seed seed);
void mu_era_end(struct mu_era *era); /* one user less */
void mu_server_close_if_over(struct mu_server *server);
void mu_server_on_handle_closed(uv_handle_t *handle); /* its data is the server */

/* To the one whose bytes are being carried out gathered, to others at once. */
void mu_conn_send(struct mu_conn *conn, const struct mu_slice *parts, size_t count);

/* ---- server_engine_uv.c ---- */

struct mu_frames { /* of a connection of the engine */
    struct mu_engine_session session;
    struct mu_conn *conn;
    char peer[MU_ADDR_TEXT_MAX], peer_addr[MU_ADDR_TEXT_MAX], own_addr[MU_ADDR_TEXT_MAX];
    char nonce[MU_TOKEN_NONCE_BYTES]; /* where there is a token */
};

/* From now on it speaks frames. Negative, with *reterr set: it cannot. */
int mu_conn_move(struct mu_conn *conn, struct muster_error *reterr);
void mu_frames_free(struct mu_frames *frames); /* its connection is closed; may be NULL */
/* Whether somebody who has lost a connection is about to come back. */
bool mu_server_engine_expects_peers(const struct mu_server *server);
void mu_server_engine_close(struct mu_server *server); /* every connection is closed */
void mu_server_engine_free(struct mu_server *server);  /* its handles are closed. Both: nothing without an engine */

/* ---- server_admit_uv.c ---- */

void mu_server_on_connection(uv_stream_t *stream, int status);
void mu_server_look_if_alone(struct mu_server *server);

#endif
