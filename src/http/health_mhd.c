/* The health check. The few functions of libmicrohttpd that are needed are declared here as its stable interface has
 * them, and come through one table: neither its header nor the library itself is needed to build muster or to run it.
 *
 * A request, on the library's thread: wake the loop, wait a moment for it to turn, answer. A loop that does not turn is
 * asked once; later requests see since when it has been silent. */
#include "http/health_mhd.h"

#include "base/clock.h"
#include "base/dlnote.h"
#include "base/error.h"
#include "base/log.h"
#include "store/listen.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIBRARY "libmicrohttpd.so.12"

MU_DLOPEN_NOTE(note, "health", "HTTP health check", LIBRARY);

enum { BODY_MAX = 128, MEMORY_PER_CONNECTION = 16384, DAEMONS_MAX = 8 };

/* ---- libmicrohttpd ---- */

struct MHD_Daemon;
struct MHD_Connection;
struct MHD_Response;

enum {
    MHD_YES = 1,
    MHD_USE_ERROR_LOG = 1,
    MHD_USE_INTERNAL_POLLING_THREAD = 8,
    MHD_USE_AUTO = 65536,
    MHD_OPTION_END = 0,
    MHD_OPTION_CONNECTION_MEMORY_LIMIT = 1, /* size_t */
    MHD_OPTION_CONNECTION_LIMIT = 2,        /* unsigned */
    MHD_OPTION_CONNECTION_TIMEOUT = 3,      /* unsigned, seconds */
    MHD_OPTION_EXTERNAL_LOGGER = 13,        /* function, context */
    MHD_OPTION_LISTEN_SOCKET = 12,          /* int; closed with the daemon */
    MHD_RESPMEM_MUST_COPY = 2,
};

typedef int on_accept(void *ctx, const struct sockaddr *addr, socklen_t len);
typedef int on_request(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                       const char *version, const char *upload, size_t *upload_len, void **request_ctx);

struct functions {
    void *library;
    struct MHD_Daemon *(*start)(unsigned flags, uint16_t port, on_accept *accept, void *accept_ctx, on_request *request,
                                void *request_ctx, ...);
    void (*stop)(struct MHD_Daemon *daemon);
    struct MHD_Response *(*new_response)(size_t len, void *body, int mode);
    int (*add_header)(struct MHD_Response *response, const char *name, const char *value);
    int (*queue_response)(struct MHD_Connection *connection, unsigned status, struct MHD_Response *response);
    void (*free_response)(struct MHD_Response *response);
};

static int load(const char *name, struct functions *ret_functions, struct muster_error *reterr)
{
    static const char *const names[] = {
        "MHD_start_daemon",        "MHD_stop_daemon",    "MHD_create_response_from_buffer",
        "MHD_add_response_header", "MHD_queue_response", "MHD_destroy_response"
    };
    void *found[sizeof names / sizeof names[0]];
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        return mu_fail(reterr, MUSTER_ENOTSUP,
                       "%s cannot be loaded: install libmicrohttpd12 (Debian, Ubuntu) or libmicrohttpd (Fedora, RHEL)",
                       name);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        found[i] = dlsym(library, names[i]);
        if (found[i] == NULL) {
            (void)dlclose(library);
            return mu_fail(reterr, MUSTER_ENOTSUP, "%s has no %s", name, names[i]);
        }
    }
    ret_functions->library = library;
    memcpy(&ret_functions->start, &found[0], sizeof found[0]); /* C knows no cast from data to functions */
    memcpy(&ret_functions->stop, &found[1], sizeof found[1]);
    memcpy(&ret_functions->new_response, &found[2], sizeof found[2]);
    memcpy(&ret_functions->add_header, &found[3], sizeof found[3]);
    memcpy(&ret_functions->queue_response, &found[4], sizeof found[4]);
    memcpy(&ret_functions->free_response, &found[5], sizeof found[5]);
    return 0;
}

/* ---- Judging ---- */

struct mu_health {
    struct functions http;
    struct MHD_Daemon *daemons[DAEMONS_MAX]; /* one for each address */
    size_t daemons_count;
    struct mu_health_config config;
    uint16_t port;
    pthread_mutex_t lock;
    pthread_cond_t turned;
    /* Under the lock. */
    const char *state;
    bool asked; /* and the loop has not answered */
    int64_t asked_ms;
    bool stopping;
};

unsigned mu_health_judge(const char *state, int64_t silent_ms, int64_t stuck_ms)
{
    static const char *const ill[] = { "UNKNOWN", "UNHEALTHY", "FAILED" };

    for (size_t i = 0; i < sizeof ill / sizeof ill[0]; i++)
        if (strcmp(state, ill[i]) == 0)
            return 503;
    return silent_ms >= stuck_ms ? 503 : 200;
}

/* How long the loop has been silent, having been asked: 0 if it turns. With the lock held. */
static int64_t ask_loop(struct mu_health *h)
{
    if (!h->asked) {
        h->asked = true;
        h->asked_ms = mu_clock_ms();
        h->config.poke(h->config.ctx);
    }
    while (h->asked && !h->stopping)
        if (!mu_cond_wait_until(&h->turned, &h->lock, h->asked_ms + h->config.answer_ms))
            break;
    return h->asked ? mu_clock_ms() - h->asked_ms : 0;
}

static unsigned examine(struct mu_health *h, char body[BODY_MAX])
{
    int64_t silent_ms;
    unsigned status;

    (void)pthread_mutex_lock(&h->lock);
    silent_ms = h->stopping ? 0 : ask_loop(h);
    status = mu_health_judge(h->state, silent_ms, h->config.stuck_ms);
    if (silent_ms > 0)
        (void)snprintf(body, BODY_MAX, "%s, no answer from the agent for %lld ms\n", h->state, (long long)silent_ms);
    else
        (void)snprintf(body, BODY_MAX, "%s\n", h->state);
    (void)pthread_mutex_unlock(&h->lock);
    return status;
}

/* ---- Answering ---- */

static int answer(struct mu_health *h, struct MHD_Connection *connection, unsigned status, char *body)
{
    struct MHD_Response *response = h->http.new_response(strlen(body), body, MHD_RESPMEM_MUST_COPY);
    int rc;

    if (response == NULL)
        return 0; /* the connection is dropped */
    (void)h->http.add_header(response, "Content-Type", "text/plain");
    (void)h->http.add_header(response, "Cache-Control", "no-store");
    if (status == 405)
        (void)h->http.add_header(response, "Allow", "GET, HEAD");
    rc = h->http.queue_response(connection, status, response);
    h->http.free_response(response);
    return rc;
}

static int handle(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                  const char *version, const char *upload, size_t *upload_len, void **request_ctx)
{
    struct mu_health *h = ctx;
    char body[BODY_MAX];
    unsigned status;

    (void)url;
    (void)version;
    (void)upload;
    if (*request_ctx == NULL) { /* the head of the request only; the call comes again when there is no more of it */
        *request_ctx = h;
        return MHD_YES;
    }
    if (*upload_len > 0) {
        *upload_len = 0;
        return MHD_YES;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        (void)snprintf(body, sizeof body, "GET or HEAD\n");
        return answer(h, connection, 405, body);
    }
    status = examine(h, body);
    return answer(h, connection, status, body);
}

static void on_library_log(void *ctx, const char *format, va_list args)
{
    char line[256];

    (void)ctx;
    (void)vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = '\0';
    mu_log(MUSTER_LOG_DEBUG, "health check: %s", line);
}

/* ---- Start and end ---- */

/* Its thread takes no signals: those are the program's. */
static struct MHD_Daemon *start_daemon(struct mu_health *h, int fd)
{
    struct MHD_Daemon *daemon;
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    daemon = h->http.start(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG, 0, NULL, NULL, handle, h,
                           MHD_OPTION_EXTERNAL_LOGGER, on_library_log, (void *)NULL, MHD_OPTION_LISTEN_SOCKET, fd,
                           MHD_OPTION_CONNECTION_LIMIT, (unsigned)MU_HEALTH_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
                           (unsigned)MU_HEALTH_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                           (size_t)MEMORY_PER_CONNECTION, MHD_OPTION_END);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return daemon;
}

static void stop_daemons(struct mu_health *h)
{
    while (h->daemons_count > 0)
        h->http.stop(h->daemons[--h->daemons_count]); /* and closes its socket */
}

static int start_daemons(struct mu_health *h, struct mu_listen_sockets *sockets, struct muster_error *reterr)
{
    while (sockets->count > 0) {
        struct MHD_Daemon *daemon = start_daemon(h, sockets->fds[sockets->count - 1]);

        if (daemon == NULL) {
            mu_listen_close_all(sockets);
            stop_daemons(h);
            return mu_fail(reterr, MUSTER_ESYSTEM, "libmicrohttpd does not start");
        }
        h->daemons[h->daemons_count++] = daemon;
        sockets->count--;
    }
    return 0;
}

static int start(struct mu_health *h, struct muster_error *reterr)
{
    struct mu_listen_sockets sockets = { .count = 0 };
    union mu_addr addr;
    int rc = load(h->config.library != NULL ? h->config.library : LIBRARY, &h->http, reterr);

    if (rc == 0)
        rc = mu_listen_open_all(h->config.hosts != NULL ? h->config.hosts : "localhost", h->config.port, &sockets,
                                reterr);
    if (rc < 0)
        return rc;
    rc = mu_listen_address(sockets.fds[0], &addr, reterr);
    if (rc == 0 && sockets.count > DAEMONS_MAX)
        rc = mu_fail(reterr, MUSTER_ELIMIT, "%zu addresses are more than %d", sockets.count, DAEMONS_MAX);
    if (rc < 0) {
        mu_listen_close_all(&sockets);
        return rc;
    }
    h->port = mu_addr_port(&addr);
    return start_daemons(h, &sockets, reterr);
}

static void release(struct mu_health *h)
{
    if (h->http.library != NULL)
        (void)dlclose(h->http.library);
    (void)pthread_cond_destroy(&h->turned);
    (void)pthread_mutex_destroy(&h->lock);
    free(h);
}

int mu_health_start(const struct mu_health_config *config, struct mu_health **ret_health, struct muster_error *reterr)
{
    struct mu_health *h = malloc(sizeof *h);
    int rc;

    if (h == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "health check: no memory");
    *h = (struct mu_health){ .config = *config, .state = "INIT" };
    if (h->config.stuck_ms == 0)
        h->config.stuck_ms = MU_HEALTH_STUCK_MS;
    if (h->config.answer_ms == 0)
        h->config.answer_ms = MU_HEALTH_ANSWER_MS;
    if (pthread_mutex_init(&h->lock, NULL) != 0 || mu_cond_init(&h->turned) != 0) {
        free(h);
        return mu_fail(reterr, MUSTER_ESYSTEM, "health check: no lock");
    }
    rc = start(h, reterr);
    if (rc < 0) {
        release(h);
        return mu_wrap(reterr, rc, "health check on port %u", (unsigned)config->port);
    }
    *ret_health = h;
    return 0;
}

uint16_t mu_health_port(const struct mu_health *health)
{
    return health->port;
}

void mu_health_set_state(struct mu_health *health, const char *state)
{
    if (health == NULL)
        return;
    (void)pthread_mutex_lock(&health->lock);
    health->state = state;
    (void)pthread_mutex_unlock(&health->lock);
}

void mu_health_turned(struct mu_health *health)
{
    if (health == NULL)
        return;
    (void)pthread_mutex_lock(&health->lock);
    health->asked = false;
    (void)pthread_cond_broadcast(&health->turned);
    (void)pthread_mutex_unlock(&health->lock);
}

void mu_health_stop(struct mu_health *health)
{
    if (health == NULL)
        return;
    (void)pthread_mutex_lock(&health->lock);
    health->stopping = true; /* no request may wait for the loop, which is here */
    (void)pthread_cond_broadcast(&health->turned);
    (void)pthread_mutex_unlock(&health->lock);
    stop_daemons(health);
    release(health);
}
