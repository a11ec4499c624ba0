/* The engine of load.h: level-triggered epoll, one send and one recv per request.
 *
 * A connection is watched for EPOLLOUT until connect() ends, greets, and is watched for EPOLLIN from then
 * on. Requests are far smaller than an empty socket buffer, so a send that does not take all of one is an
 * error, not a state. A recv asks for what is missing of the current reply and no more; bytes that nobody
 * asked for are found by the next event. */
#include "load.h"

#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_MAX 256
#define CONNECTS_PER_POLL 64u /* a storm, yet greetings go out while it lasts */
#define NS_PER_MS 1000000

int64_t now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)fprintf(stderr, "muster-bench: ");
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void load_init(struct load *load, const struct load_config *config, uint32_t clients_max, void *mode)
{
    *load = (struct load){ .config = config, .count_max = clients_max, .mode = mode, .doing = "starting" };
    load->deadline_ns = now_ns() + config->deadline_ms * NS_PER_MS;
    load->clients = calloc(clients_max, sizeof(*load->clients));
    load->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (load->clients == NULL || load->epoll_fd < 0)
        die("%u clients: %s", clients_max, strerror(errno));
}

void load_done(struct load *load)
{
    const struct linger reset = { .l_onoff = 1, .l_linger = 0 };

    for (uint32_t i = 0; i < load->count; i++) {
        (void)setsockopt(load->clients[i].fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        (void)close(load->clients[i].fd);
    }
    (void)close(load->epoll_fd);
    free(load->clients);
}

void load_key(const struct load *load, char key[WIRE_KEY_MAX], const char *format, ...)
{
    int len = snprintf(key, WIRE_KEY_MAX, "/%s/", load->config->run);
    va_list args;

    va_start(args, format);
    len += vsnprintf(key + len, WIRE_KEY_MAX - (size_t)len, format, args);
    va_end(args);
    assert(len < (int)WIRE_KEY_MAX);
}

void load_send(struct load *load, struct load_client *client, const struct wire_message *m, uint32_t want)
{
    ssize_t n = send(client->fd, m->bytes, m->len, MSG_NOSIGNAL);

    assert(want <= LOAD_REPLY_MAX);
    if (n < 0)
        die("%s: client %u: send: %s", load->doing, client->index, strerror(errno));
    if ((uint32_t)n != m->len)
        die("%s: client %u: only %zd of %u bytes sent", load->doing, client->index, n, m->len);
    client->want = want;
    client->got = 0;
}

/* Greets once the connection stands. */
static void on_writable(struct load *load, struct load_client *client)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = client };
    struct wire_message hello = { 0 };
    socklen_t len = sizeof(int);
    int error = 0;

    (void)getsockopt(client->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error != 0)
        die("%s: client %u: connect: %s", load->doing, client->index, strerror(error));
    if (epoll_ctl(load->epoll_fd, EPOLL_CTL_MOD, client->fd, &event) < 0)
        die("%s: client %u: epoll_ctl: %s", load->doing, client->index, strerror(errno));
    if (client->silent) {
        client->state = LOAD_READY;
        load_arrive(load);
        return;
    }
    client->state = LOAD_GREETING;
    wire_hello(&hello, load->config->dialect, client->index);
    load_send(load, client, &hello, wire_hello_reply(load->config->dialect));
}

static void on_greeted(struct load *load, struct load_client *client)
{
    uint32_t nonce = client->index;

    if (load->config->dialect == WIRE_L0)
        nonce = 0; /* READY, for no key was missing */
    if (memcmp(client->reply, &nonce, client->want) != 0)
        die("%s: client %u: the greeting came back changed", load->doing, client->index);
    client->state = LOAD_READY;
    load_arrive(load);
}

static void on_readable(struct load *load, struct load_client *client)
{
    uint32_t missing = client->want - client->got;
    ssize_t n = recv(client->fd, client->reply + client->got, missing > 0 ? missing : 1, 0);

    if (n < 0 && errno == EAGAIN)
        return;
    if (n < 0)
        die("%s: client %u: recv: %s", load->doing, client->index, strerror(errno));
    if (n == 0)
        die("%s: client %u: the server closed the connection", load->doing, client->index);
    if (missing == 0)
        die("%s: client %u: bytes came that answer nothing", load->doing, client->index);
    client->got += (uint32_t)n;
    if (client->got < client->want)
        return;
    if (client->state == LOAD_GREETING)
        on_greeted(load, client);
    else
        load->on_reply(load, client);
}

static void poll_once(struct load *load, bool may_block)
{
    struct epoll_event events[EVENTS_MAX];
    int64_t left_ms = (load->deadline_ns - now_ns()) / NS_PER_MS;
    int count;

    if (left_ms <= 0)
        die("%s: the deadline of %lld ms passed with %u of %u clients there", load->doing,
            (long long)load->config->deadline_ms, load->arrived, load->goal);
    count = epoll_wait(load->epoll_fd, events, EVENTS_MAX, may_block ? (int)left_ms : 0);
    if (count < 0 && errno != EINTR)
        die("%s: epoll_wait: %s", load->doing, strerror(errno));
    for (int i = 0; i < count; i++) {
        struct load_client *client = events[i].data.ptr;

        if (client->state == LOAD_CONNECTING)
            on_writable(load, client);
        else
            on_readable(load, client);
    }
}

void load_begin(struct load *load, const char *doing, uint32_t goal, load_reply_fn *on_reply)
{
    load->doing = doing;
    load->goal = goal;
    load->arrived = 0;
    load->on_reply = on_reply;
}

void load_arrive(struct load *load)
{
    load->arrived++;
}

void load_finish(struct load *load)
{
    while (load->arrived < load->goal)
        poll_once(load, true);
}

static void open_client(struct load *load, bool silent)
{
    struct load_client *client = &load->clients[load->count];
    struct epoll_event event = { .events = EPOLLOUT, .data.ptr = client };
    const struct sockaddr *addr = (const struct sockaddr *)&load->config->addr;
    const int on = 1;

    *client = (struct load_client){ .index = load->count, .state = LOAD_CONNECTING, .silent = silent };
    client->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (client->fd < 0)
        die("%s: client %u: socket: %s", load->doing, client->index, strerror(errno));
    load->count++;
    (void)setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(client->fd, addr, load->config->addr_len) < 0 && errno != EINPROGRESS)
        die("%s: client %u: connect: %s", load->doing, client->index, strerror(errno));
    if (epoll_ctl(load->epoll_fd, EPOLL_CTL_ADD, client->fd, &event) < 0)
        die("%s: client %u: epoll_ctl: %s", load->doing, client->index, strerror(errno));
}

void load_connect(struct load *load, uint32_t count, bool silent)
{
    assert(load->count + count <= load->count_max);
    load_begin(load, "connecting", count, NULL);
    for (uint32_t i = 1; i <= count; i++) {
        open_client(load, silent);
        if (i % CONNECTS_PER_POLL == 0)
            poll_once(load, false);
    }
    load_finish(load);
}

/* CHECK says 0 when the key is there; until then ask again. */
static void on_checked(struct load *load, struct load_client *client)
{
    const struct wire_message *check = load->mode;

    if (client->reply[0] == 0)
        load_arrive(load);
    else
        load_send(load, client, check, WIRE_STATUS_REPLY);
}

void load_put(struct load *load, const char *key, const void *value, size_t len)
{
    struct wire_message set = { 0 }, check = { 0 };
    struct load side;

    /* SET has no reply, and a second request behind it could share its recv, which the floor cannot tell
     * apart: so a second connection asks. */
    load_init(&side, load->config, 2, &check);
    load_connect(&side, 2, false);
    wire_set(&set, load->config->dialect, key, value, len);
    wire_check(&check, load->config->dialect, key);
    load_begin(&side, "storing the first value", 1, on_checked);
    load_send(&side, &side.clients[0], &set, 0);
    load_send(&side, &side.clients[1], &check, WIRE_STATUS_REPLY);
    load_finish(&side);
    load_done(&side);
}
