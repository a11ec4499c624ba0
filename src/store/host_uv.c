/* A store server on a thread of its own, and the register of those that are shared within the process. */
#include "store/host_uv.h"

#include "base/clock.h"
#include "base/error.h"
#include "store/loop_thread_uv.h"
#include "store/server_uv.h"
#include "store/table.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

struct muster_store_server {
    struct mu_loop_thread thread;
    struct mu_server *server;
    char address[MU_ADDR_TEXT_MAX];
    uint16_t port;
    bool shared;
    unsigned users; /* under the register's lock */
    struct mu_list in_register;
};

static const char what[] = "a store server";

static struct {
    pthread_mutex_t lock;
    struct mu_list hosts;
} shared_hosts = { .lock = PTHREAD_MUTEX_INITIALIZER, .hosts = { &shared_hosts.hosts, &shared_hosts.hosts } };

/* ---- Start and stop ---- */

static void close_there(struct mu_loop_thread *thread)
{
    mu_server_close(((struct muster_store_server *)thread)->server, NULL, NULL);
}

static int start(const struct muster_store_server_config *config, struct muster_store_server **ret_host,
                 struct muster_error *reterr)
{
    struct muster_store_server *host = calloc(1, sizeof *host);
    int rc;

    if (host == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a store server");
    rc = mu_loop_thread_open(&host->thread, what, reterr);
    if (rc < 0) {
        free(host);
        return rc;
    }
    mu_list_init(&host->in_register);
    rc = mu_server_start_as(&host->thread.loop, config, &host->server, reterr);
    if (rc == 0) {
        host->port = mu_addr_port(mu_server_address(host->server));
        (void)mu_addr_format(mu_server_address(host->server), host->address);
        rc = mu_loop_thread_start(&host->thread, what, reterr);
        if (rc < 0)
            close_there(&host->thread);
    }
    if (rc < 0) {
        mu_loop_thread_discard(&host->thread);
        free(host);
        return rc;
    }
    *ret_host = host;
    return 0;
}

static struct muster_store_server *find_shared(uint16_t port)
{
    MU_LIST_EACH (struct muster_store_server, host, &shared_hosts.hosts, in_register) {
        if (host->port == port)
            return host;
    }
    return NULL;
}

static int start_shared(const struct muster_store_server_config *config, struct muster_store_server **ret_host,
                        struct muster_error *reterr)
{
    struct muster_store_server *host = NULL;
    int rc = 0;

    (void)pthread_mutex_lock(&shared_hosts.lock);
    if (config->port != 0)
        host = find_shared(config->port);
    if (host == NULL) {
        rc = start(config, &host, reterr);
        if (rc == 0) {
            assert(host != NULL);
            host->shared = true;
            mu_list_push(&shared_hosts.hosts, &host->in_register);
        }
    } else if (config->use_listen_fd) {
        (void)close(config->listen_fd); /* taken, as always; but there is one already */
    }
    if (rc == 0) {
        host->users++;
        *ret_host = host;
    }
    (void)pthread_mutex_unlock(&shared_hosts.lock);
    return rc;
}

int muster_store_server_start(const struct muster_store_server_config *config, struct muster_store_server **ret_server,
                              struct muster_error *reterr)
{
    struct muster_store_server_config whole = { 0 };
    int rc;

    if (config->size == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "start a store server: the config's size is not set");
    memcpy(&whole, config, config->size < sizeof whole ? config->size : sizeof whole);
    rc = whole.shared ? start_shared(&whole, ret_server, reterr) : start(&whole, ret_server, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "start a store server") : 0;
}

uint16_t muster_store_server_port(const struct muster_store_server *server)
{
    return server->port;
}

const char *muster_store_server_address(const struct muster_store_server *server)
{
    return server->address;
}

static void stop(struct muster_store_server *host)
{
    (void)mu_loop_thread_stop(&host->thread, close_there, -1, NULL);
    mu_loop_thread_done(&host->thread);
    free(host);
}

/* The last user stops a shared one, under the register's lock, so that the port is free for the next. */
static void release_shared(struct muster_store_server *host)
{
    (void)pthread_mutex_lock(&shared_hosts.lock);
    if (--host->users == 0) {
        mu_list_remove(&host->in_register);
        stop(host);
    }
    (void)pthread_mutex_unlock(&shared_hosts.lock);
}

void muster_store_server_stop(struct muster_store_server *server)
{
    if (server == NULL)
        return;
    if (server->shared)
        release_shared(server);
    else
        stop(server);
}

/* ---- Waiting for a count ---- */

struct count {
    struct mu_posted posted;
    struct muster_store_server *host;
    struct mu_server_watch *watch;
    const char *key;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t seen; /* under lock */
    int rc;
    struct muster_error *reterr;
};

static void on_value(void *ctx, struct mu_slice value)
{
    struct count *count = ctx;

    (void)pthread_mutex_lock(&count->lock);
    (void)mu_table_number(value, &count->seen);
    (void)pthread_cond_signal(&count->changed);
    (void)pthread_mutex_unlock(&count->lock);
}

static void watch_there(struct mu_posted *posted)
{
    struct count *count = (struct count *)posted;

    count->rc =
        mu_server_watch(count->host->server, mu_slice_str(count->key), on_value, count, &count->watch, count->reterr);
    mu_posted_done(posted);
}

static void unwatch_there(struct mu_posted *posted)
{
    struct count *count = (struct count *)posted;

    mu_server_unwatch(count->host->server, count->watch);
    mu_posted_done(posted);
}

int mu_host_wait_count(struct muster_store_server *server, const char *key, int64_t least, int64_t timeout_ms,
                       int64_t *ret_seen, struct muster_error *reterr)
{
    struct count count = { .posted = { .begin = watch_there },
                           .host = server,
                           .key = key,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .reterr = reterr };
    int64_t until_ms = mu_clock_ms() + timeout_ms;
    int errnum = mu_cond_init(&count.changed);

    if (errnum != 0)
        return mu_fail_errno(reterr, errnum, "wait for a count");
    mu_loop_thread_call(&server->thread, &count.posted);
    if (count.rc == 0) {
        (void)pthread_mutex_lock(&count.lock);
        while (count.seen < least && mu_cond_wait_until(&count.changed, &count.lock, until_ms))
            continue;
        *ret_seen = count.seen;
        (void)pthread_mutex_unlock(&count.lock);
        count.posted.begin = unwatch_there;
        mu_loop_thread_call(&server->thread, &count.posted);
        if (*ret_seen < least)
            count.rc = mu_fail(reterr, MUSTER_ETIMEOUT, "timed out after %" PRId64 " ms", timeout_ms);
    }
    (void)pthread_cond_destroy(&count.changed);
    return count.rc;
}
