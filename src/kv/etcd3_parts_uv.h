/* A client of etcd's version 3 API from inside, for the files that make one: etcd3_uv.c (log-in and calls),
 * etcd3_watch_uv.c and etcd3_lease_uv.c. */
#ifndef MU_KV_ETCD3_PARTS_UV_H
#define MU_KV_ETCD3_PARTS_UV_H

#include "base/rng.h"
#include "kv/etcd3_uv.h"

struct mu_etcd3 {
    uv_loop_t *loop;
    struct mu_http *http;
    struct mu_rng rng;
    uint64_t renew_ms;
    char *user, *password;
    char *token_line;       /* "Authorization: ..."; NULL: there is none, or it was refused */
    unsigned token_number;  /* counts log-ins */
    bool no_auth;           /* etcd does not want one */
    struct mu_list waiting; /* calls, for a log-in */
    uv_timer_t timer;       /* the time of one of them is up */
    struct mu_http_request log_in;
    struct mu_buf log_in_body;
    uint64_t log_in_ms; /* when it began */
    bool logging_in, closing;
    unsigned parts; /* to be closed: client and timer */
    mu_etcd3_closed *on_closed;
    void *closed_ctx;
};

/* Whether requests have to wait for a token. */
bool mu_etcd3_needs_log_in(const struct mu_etcd3 *etcd);
/* The token of that number was refused. */
void mu_etcd3_drop_token(struct mu_etcd3 *etcd, unsigned token_number);

#endif
