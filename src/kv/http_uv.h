/* HTTP requests to a cluster of servers that all give the same answers (an etcd cluster), on a libuv loop. libcurl does
 * the transfers; it is loaded by mu_http_start(), and by nothing else.
 *
 * A request goes to the server that worked last. If that fails, it goes to the next of the list, and after a whole
 * round of failures the next round begins after a random, growing pause, until the request's time is up. A request that
 * may have been carried out, although its answer was lost, is sent again only if it is `repeatable`; otherwise it fails
 * with `unsure` set, and its owner has to read the current state.
 *
 * No proxy is used, whatever http_proxy says. Redirections are not followed. */
#ifndef MU_KV_HTTP_UV_H
#define MU_KV_HTTP_UV_H

#include "base/buf.h"
#include "base/error.h"
#include "base/list.h"
#include "kv/endpoints.h"

#include <uv.h>

#define MU_HTTP_CONNECT_MS 2000      /* for a connection, TLS included, before the next server is tried */
#define MU_HTTP_ATTEMPT_MS 5000      /* for one server's answer to a repeatable request, before the next is tried */
#define MU_HTTP_PAUSE_FIRST_MS 50    /* between rounds of all servers: doubled each time, */
#define MU_HTTP_PAUSE_MAX_MS 2000    /* up to this, +- 50 percent */
#define MU_HTTP_BODY_MAX (64u << 20) /* bytes of an answer; a longer one is an error */
#define MU_HTTP_HEAD_MAX (64u << 10) /* bytes of an answer's header lines; more are an error */
#define MU_HTTP_REQUESTS_MAX 4096    /* under way at once, of one client; more fail at once with MUSTER_ELIMIT */

struct mu_http;

/* What an answer means for the request. Called for each complete one. */
enum mu_http_verdict {
    MU_HTTP_TAKE,         /* that is the answer */
    MU_HTTP_AGAIN,        /* this server did not, and will not, carry it out: try the next */
    MU_HTTP_AGAIN_UNSURE, /* this server may have carried it out, or may still do so: the next, if it is repeatable */
};

struct mu_http_request;
typedef void mu_http_done(struct mu_http_request *request);
/* Bytes of a body that is read as it comes. Below 0: the transfer ends with that code, and with what was put into
 * request->error. Must not cancel, nor start, anything. */
typedef int mu_http_chunk(struct mu_http_request *request, struct mu_slice bytes);
typedef void mu_http_retry(struct mu_http_request *request, const struct muster_error *error);
/* `reterr`: for AGAIN*, say why here ("503: etcdserver: no leader"); the endpoint is put in front. */
typedef enum mu_http_verdict mu_http_judge(const struct mu_http_request *request, struct muster_error *reterr);

/* The memory is the caller's and, like what the first part points to, must stay until `done`. */
struct mu_http_request {
    /* Asked. */
    const char *method;       /* "GET", "PUT", "POST", "DELETE" */
    const char *target;       /* path and query, as they go on the wire: "/v2/keys/a?wait=true" */
    struct mu_slice body;     /* data NULL: none */
    const char *content_type; /* of the body */
    const char *headers[2];   /* further lines, "Authorization: x", which are copied; NULL: none */
    const char *what;         /* for errors: "get '/a'" */
    uint64_t timeout_ms;      /* for all of it; above 0. A request with on_chunk: until its headers are there */
    /* 0: the client's. UINT64_MAX: no limit but timeout_ms (a long poll), once the answer's head is there. */
    uint64_t attempt_ms;
    bool repeatable;
    unsigned only;           /* 0: any server. Else: endpoint only - 1 and no other, and only once */
    mu_http_chunk *on_chunk; /* NULL: the body is collected */
    mu_http_judge *judge;    /* NULL: everything below 500 is taken, else AGAIN_UNSURE. Not with on_chunk: see there */
    /* An attempt failed, and there will be another one; `error` names request and server. May be NULL; may call
     * anything. */
    mu_http_retry *on_retry;
    mu_http_done *done; /* exactly once, from the loop, never inside of a call of this header */
    void *ctx;
    /* Answered. */
    int rc; /* 0: there is an answer of whatever status. Below 0: `error` says what was tried */
    struct muster_error error;
    bool unsure;         /* with rc < 0: it may have been carried out, or may yet be */
    unsigned status;     /* with rc 0 (and in on_chunk and judge): 200, 404, ... */
    uint64_t etcd_index; /* of the header line X-Etcd-Index; 0: there was none */
    struct mu_buf reply; /* the body; the receiver's to free */
    unsigned endpoint;   /* by whom it was answered: index into the list */
    /* Under way: the driver's. */
    struct mu_list link;
    void *work;
};

/* Several requests may be under way; each has its own connection while it is, and connections are kept for the next
 * one. On failure nothing is left behind. MUSTER_ENOTSUP: libcurl is not there; one line names its package.
 * MUSTER_EINVAL: an endpoint, or a file that cannot be read. */
int mu_http_start(uv_loop_t *loop, const struct mu_http_config *config, struct mu_http **ret_http,
                  struct muster_error *reterr);

void mu_http_submit(struct mu_http *http, struct mu_http_request *request);
/* The request is done, from the loop, with the rc and the error that are in it: for a failure before anything was
 * sent. */
void mu_http_refuse(struct mu_http *http, struct mu_http_request *request);
/* `done` comes from the loop, with MUSTER_ECANCELED; unless it is about to come with something else. Only for a request
 * that was submitted and is not done; twice does no harm. */
void mu_http_cancel(struct mu_http_request *request);

/* What a submitted request would fail with if its time were up now: for those that wait for it with a shorter
 * timeout. */
int mu_http_so_far(const struct mu_http_request *request, struct muster_error *reterr);

/* "http://10.0.0.1:2379", or "" if there is no such endpoint. */
const char *mu_http_endpoint(const struct mu_http *http, unsigned endpoint);
unsigned mu_http_endpoints_count(const struct mu_http *http);
/* When this endpoint last answered anything, by uv_now(); 0: never. */
uint64_t mu_http_answered_ms(const struct mu_http *http, unsigned endpoint);
/* The caller has found this endpoint bad: if it is the current one, the next becomes current. */
void mu_http_give_up(struct mu_http *http, unsigned endpoint);
/* Our end of the connection that was used last, numeric; false: not known. */
bool mu_http_local_address(const struct mu_http *http, char *text, size_t room);

/* The one that answered last; false: none has. */
bool mu_http_server(const struct mu_http *http, struct mu_http_server *ret_server);

/* Requests under way are done with MUSTER_ECANCELED first, from the loop; then `closed`, after which the memory is
 * gone. */
typedef void mu_http_closed(void *ctx);
void mu_http_close(struct mu_http *http, mu_http_closed *closed, void *ctx);

#endif
