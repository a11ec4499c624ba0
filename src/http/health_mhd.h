/* The health check: HTTP on TORCHELASTIC_HEALTH_CHECK_PORT, 200 while the agent and its workers are well, else 503. Any
 * path; GET and HEAD. libmicrohttpd is loaded by mu_health_start(), and by nothing else; it answers on a thread of its
 * own, also when the agent's loop is stuck.
 *
 * Whether the loop is stuck is found out by asking it: a request wakes the loop and waits a moment for its answer.
 * Without requests the loop is not woken. */
#ifndef MU_HTTP_HEALTH_MHD_H
#define MU_HTTP_HEALTH_MHD_H

#include "muster.h"

#define MU_HEALTH_STUCK_MS 60000 /* a loop that has not answered for this long is stuck */
#define MU_HEALTH_ANSWER_MS 1000 /* how long a request waits for the loop's answer, once for each time it is stuck */
#define MU_HEALTH_CONNECTIONS 64
#define MU_HEALTH_IDLE_S 10 /* then a connection is closed */

struct mu_health_config {
    const char *hosts;       /* addresses to listen on, as mu_listen_open_all() takes them; NULL: loopback */
    uint16_t port;           /* 0: any free one */
    void (*poke)(void *ctx); /* from the other thread: make the loop call mu_health_turned() (uv_async_send()) */
    void *ctx;
    int64_t stuck_ms, answer_ms; /* 0: as above */
    const char *library;         /* NULL: libmicrohttpd.so.12 */
};

struct mu_health;

/* MUSTER_ENOTSUP when the library is not there: one line that names its package. Then, and after any other failure, the
 * job goes on without: the caller logs it. */
int mu_health_start(const struct mu_health_config *config, struct mu_health **ret_health, struct muster_error *reterr);
uint16_t mu_health_port(const struct mu_health *health);
/* The group's state, by name: "HEALTHY", ...; a constant text. Before the first call it is "INIT". NULL health is
 * fine. */
void mu_health_set_state(struct mu_health *health, const char *state);
void mu_health_turned(struct mu_health *health); /* from the loop: it turns. NULL is fine */
void mu_health_stop(struct mu_health *health);   /* and frees; poke is not called any more. NULL is fine */

/* 200 or 503: pure. `silent_ms`: how long the loop has been asked without answering. */
unsigned mu_health_judge(const char *state, int64_t silent_ms, int64_t stuck_ms);

#endif
