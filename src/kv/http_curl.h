/* HTTP transfers by libcurl, on whatever loop its user has. libcurl is loaded by mu_curl_new(), and by nothing else;
 * once loaded it stays.
 *
 * libcurl says which descriptors are to be watched and when it is to be woken; its user does that. One transfer is one
 * request to one server; http_uv.c decides whether another one is tried. Names are looked up by libcurl, on a thread of
 * its own. */
#ifndef MU_KV_HTTP_CURL_H
#define MU_KV_HTTP_CURL_H

#include "base/buf.h"
#include "base/error.h"
#include "base/list.h"
#include "kv/endpoints.h"

#define MU_CURL_READ 1u
#define MU_CURL_WRITE 2u

struct mu_curl;
struct mu_curl_transfer;

/* What libcurl needs of the loop. Called inside of the calls below. */
struct mu_curl_loop {
    /* Watch `fd` for these events: READ, WRITE, both; or stop it (0). `watch` is what this returned for the descriptor
     * the last time; NULL the first time. */
    void *(*watch)(void *ctx, void *watch, int fd, unsigned events);
    /* Call mu_curl_wake() in that time; below 0: not any more. */
    void (*wake_in)(void *ctx, int64_t ms);
};

/* Copies the files' names. MUSTER_ENOTSUP: one line that names the package. */
int mu_curl_new(const struct mu_http_config *config, const struct mu_curl_loop *loop, void *ctx,
                struct mu_curl **ret_curl, struct muster_error *reterr);
void mu_curl_free(struct mu_curl *curl); /* without transfers under way; descriptors are no longer watched */

struct mu_curl_transfer { /* Zero it, then fill in what is asked. */
    /* Asked. The memory is the caller's and, like what this points to, must stay until `done` or mu_curl_remove(). */
    const char *url, *method;
    struct mu_slice body;            /* data NULL: none */
    const char *const *headers;      /* lines, ended by NULL */
    bool once;                       /* libcurl must not send it again by itself when an old connection is dead */
    uint64_t connect_ms, timeout_ms; /* 0: no limit */
    size_t head_max, reply_max;      /* bytes; more are MUSTER_ELIMIT */
    /* Bytes of the body as they come, instead of collecting them in `reply`; below 0 ends the transfer with that
     * code. */
    int (*on_chunk)(struct mu_curl_transfer *transfer, struct mu_slice bytes);
    void (*on_head)(struct mu_curl_transfer *transfer); /* the status is known. May be NULL */
    /* From mu_curl_ready() and mu_curl_wake(), exactly once, unless it was removed. Anything may be
     * called but mu_curl_free(). */
    void (*done)(struct mu_curl_transfer *transfer);
    void *ctx;
    /* Answered. */
    int rc; /* 0: there is an answer */
    struct muster_error error;
    bool sent;      /* with rc < 0: something of the request may have reached the server */
    bool permanent; /* with rc < 0: the same again would end the same: certificates */
    unsigned status;
    uint64_t etcd_index; /* X-Etcd-Index; 0: none */
    struct mu_buf reply; /* the caller's to free */
    char local[64];      /* our end's address; "": not known */
    char server[64];     /* the other end's; the same */
    uint16_t server_port;
    /* Under way. */
    struct mu_curl *curl;
    struct mu_list link;
    void *easy, *lines;
    size_t body_sent, head_len;
    int chunk_rc;
    bool limit, has_head;
    char text[256];
};

int mu_curl_add(struct mu_curl *curl, struct mu_curl_transfer *transfer, struct muster_error *reterr);
void mu_curl_remove(struct mu_curl_transfer *transfer); /* under way; `done` does not come */

void mu_curl_ready(struct mu_curl *curl, int fd, unsigned events); /* 0: an error */
void mu_curl_wake(struct mu_curl *curl);

#endif
