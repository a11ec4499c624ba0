/* One connection of the store, from bytes to bytes. Pure: what is to be sent goes to the driver's `send`.
 *
 * A service is a table and the sessions that share it. Feeding one session may send to others, for it may wake them. */
#ifndef MU_STORE_SESSION_H
#define MU_STORE_SESSION_H

#include "store/codec.h"
#include "store/table.h"

#define MU_SESSION_PROBE "muster/engine/1"
#define MU_SESSION_JOB_PROBE MU_SESSION_PROBE "/" /* and a run id */

struct mu_engine;
struct mu_session;

/* Queues the parts, copying what it cannot send at once. It must not call back into the service; when the peer cannot
 * take them the driver sets session->dead and lets the session leave later, outside of the call. */
typedef void mu_session_send(struct mu_session *session, const struct mu_slice *parts, size_t count);

struct mu_service {
    struct muster_store_limits limits; /* settled */
    struct mu_budget budget;           /* of the table */
    struct mu_budget transit;          /* of half-read requests and unsent replies: these cannot fill the table */
    struct mu_table table;
    enum mu_dialect legacy; /* what peers older than 2.2 are taken for: L (find out), L0, L1 */
    size_t reserved;        /* of the budget, for the engine: no table can be so full that jobs cannot go on */
    bool offers_engine;     /* CHECK of MU_SESSION_PROBE, alone, makes an engine's connection of one of 2.2 or newer */
    /* A job meets in a document, which is a key of the table, or in the engine. In both it would be two jobs: while
     * the engine has the job, a SET or COMPARE_SET of that key waits (engine.h: outsiders), and other writes are
     * refused. All are refused if the job takes no outsiders: CHECK of MU_SESSION_JOB_PROBE asks for that. A node of
     * the job has told the engine so, or the host knows it of its own job before any node has come. */
    struct mu_engine *engine; /* NULL: nobody has asked for it so far */
    const char *documents;    /* what the keys of documents begin with, before the run id; NULL: there are none */
    const char *only;         /* the run id of that job; NULL: the host has none. Borrowed */
    struct mu_list outsiders; /* sessions that wait for their job's document */
    /* With a token every job is the engine's: nobody writes documents, or what nodes note beside them. Each CHECK of
     * MU_SESSION_JOB_PROBE says that the job is in the engine, so a node that wants a document gives up by itself. */
    bool documents_closed;
    const char *notes; /* what the keys beside documents begin with; NULL: there are none */
    mu_session_send *send;
    uint64_t requests; /* carried out so far */
};

/*   READING --a request that may take long is whole--> FOUND --its turn--> WORKING --done--> READING
 *      +-----MU_SESSION_PROBE-----> MOVED
 *      +-----a write of a document that is not there yet--> OUTSIDE --it is there, or its job is over--> READING */
enum mu_session_state {
    MU_SESSION_READING, /* what is fed is carried out at once */
    MU_SESSION_FOUND,   /* `unread` starts with a request that has to be carried out in turns */
    MU_SESSION_WORKING, /* a part of it is done */
    MU_SESSION_MOVED,   /* its peer was told that the engine is there, and speaks frames from here on */
    MU_SESSION_OUTSIDE, /* `unread` starts with a request that waits: see mu_service.outsiders */
};

struct mu_session {
    struct mu_service *service;
    mu_session_send *send;   /* the service's, unless the driver puts another here */
    bool dead;               /* nothing is sent to it or read from it any more */
    bool strayed;            /* it is refused because it has asked for the document of a job that meets in the engine */
    struct mu_list outsider; /* OUTSIDE: in service->outsiders */
    struct mu_buf run_id;    /* OUTSIDE: of that job, and its number */
    uint64_t job;
    struct mu_peer peer;
    struct mu_codec codec;
    struct mu_buf unread; /* the start of a request whose rest has not come yet */
    size_t charged;       /* what of the budget `unread` holds */
    enum mu_session_state state;
    struct mu_request *work; /* WORKING: the request, whose list is what is left of it; else NULL */
};

void mu_service_init(struct mu_service *service, const struct muster_store_limits *limits, enum mu_dialect legacy,
                     struct mu_hash_seed seed, mu_session_send *send);
/* Before there is any key. `documents`: as above. */
void mu_service_offer_engine(struct mu_service *service, const char *documents);
void mu_service_close_documents(struct mu_service *service, const char *notes); /* after that, and for good */
void mu_service_done(struct mu_service *service);                               /* every session must have left */
/* Puts a key that no session asked for, or takes it away (no bytes). False: no room. Not from inside of a step. */
bool mu_service_put(struct mu_service *service, struct mu_slice key, struct mu_slice value);

void mu_session_init(struct mu_session *session, struct mu_service *service);

/* Bytes came. Fails, with *reterr set, when the connection must be closed; the session must then be fed no more, only
 * left. One that is OUTSIDE looks again whether it may go on: it is to be fed, without bytes, whenever
 * mu_engine_openings() has changed. */
int mu_session_feed(struct mu_session *session, struct mu_slice bytes, uint64_t now_ms, struct muster_error *reterr);

/* A request with a long list, or one that ends a wait for a long list, would hold up all other connections. It is
 * carried out in turns: while this is true, do not feed the session, but call mu_session_work() repeatedly and serve
 * others in between. The keys of such a list are then looked at one after the other, not in one moment. */
static inline bool mu_session_is_busy(const struct mu_session *session)
{
    return session->state == MU_SESSION_FOUND || session->state == MU_SESSION_WORKING;
}
int mu_session_work(struct mu_session *session, uint64_t now_ms, struct muster_error *reterr); /* fails like feed */

/* When the session wants mu_session_feed() with no bytes if none have come until then; 0: it does not. */
static inline uint64_t mu_session_deadline_ms(const struct mu_session *session)
{
    return session->codec.grace_until_ms;
}

/* A part of leaving, for one that waits for a long list: to be called in turns until it says that nothing is left but
 * mu_session_leave(). Nothing is sent to the session from here on. */
bool mu_session_leave_some(struct mu_session *session);

/* MOVED: the bytes that came behind the probe, taken out of the session: the receiver's to free. */
struct mu_buf mu_session_take_rest(struct mu_session *session);

/* The connection is gone: drops what it waited for and what it had half said. Call once, before freeing it. */
void mu_session_leave(struct mu_session *session);

#endif
