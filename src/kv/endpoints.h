/* The servers of a cluster, and in which order they are tried. Pure. */
#ifndef MU_KV_ENDPOINTS_H
#define MU_KV_ENDPOINTS_H

#include "base/error.h"
#include "base/rng.h"

#include <stdint.h>

/* How a client (http_uv.h) reaches them. Zero it, then fill it in; the client copies every text. */
struct mu_http_config {
    const char *endpoints; /* "host:port,https://host:port,[::1]:2379" */
    const char *protocol;  /* "http" or "https", of endpoints that do not say. NULL: http */
    const char *ca_file;   /* PEM. NULL: what this system trusts */
    const char *cert_file; /* PEM: the client's certificate, and its key, unless key_file has it. NULL: none */
    const char *key_file;  /* PEM. Only with cert_file */
    uint64_t connect_ms, attempt_ms; /* 0: as http_uv.h says */
    uint64_t seed;                   /* random: for the pauses, and which server is the first */
    bool first_is_first;             /* do not begin with a random server of the list */
    const char *library;             /* NULL: libcurl.so.4 */
};

/* A server that answers: the endpoint, and where it was found. */
struct mu_http_server {
    const char *url; /* the client's */
    char address[64];
    uint16_t port;
};

#define MU_HTTP_ETCD_PORT 2379 /* of endpoints that name none */
#define MU_ENDPOINTS_MAX 32
#define MU_ENDPOINT_TEXT_MAX 300 /* of one; a host's name has at most 253 bytes */

struct mu_endpoints {
    unsigned count;                                    /* at least 1 */
    char urls[MU_ENDPOINTS_MAX][MU_ENDPOINT_TEXT_MAX]; /* "http://host:port", IPv6 in brackets */
};

/* "a,b:2380,https://c,[::1]:2379/": names or addresses, with or without a port and a protocol; blanks around each are
 * taken away. `protocol` ("http", "https") and `port_default` are for those that do not say. MUSTER_EINVAL, naming the
 * one that is wrong; MUSTER_ELIMIT. */
int mu_endpoints_parse(const char *text, const char *protocol, uint16_t port_default,
                       struct mu_endpoints *ret_endpoints, struct muster_error *reterr);

/* The tries of one request: every server once, beginning with the one that worked last; then all of them again. Zeroed
 * memory is a request that has not been tried. */
struct mu_tries {
    uint32_t tried;  /* a bit for each, of this round */
    uint32_t lost;   /* those that will not do in any later round, either */
    unsigned rounds; /* that are over */
};

/* False: the round is over, pause before the next call, which begins a new one. */
bool mu_tries_next(struct mu_tries *tries, unsigned count, unsigned current, unsigned *ret_endpoint);
/* How long to pause after a round: first_ms, doubled for each, up to max_ms, +- 50 percent. */
uint64_t mu_tries_pause_ms(const struct mu_tries *tries, uint64_t first_ms, uint64_t max_ms, struct mu_rng *rng);

#endif
