/* Raw peers of a server under test. See peer.h. */
#include "peer.h"

#include "wire.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { HEAR_MAX = 4096, LINES_MAX = 512, LINE_BYTES = 400 };

static struct peer peers[PEERS_MAX];
static struct peer *first_free;
static size_t peers_used; /* from here on no slot was ever in use */

static struct {
    peer_turn *turn;
    void *ctx;
} other;

static struct {
    char text[LINES_MAX][LINE_BYTES];
    size_t count;
} lines;

static uint64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- Waiting ---- */

void peers_take_turns(peer_turn *turn, void *ctx)
{
    other.turn = turn;
    other.ctx = ctx;
}

static bool wait_for(uint64_t *since_ms, int fd, short events)
{
    uint64_t now = now_ms();

    if (*since_ms == 0)
        *since_ms = now;
    if (now - *since_ms > PEER_WAIT_MS)
        return false;
    other.turn(other.ctx, fd, events, (int)(*since_ms + PEER_WAIT_MS - now));
    return true;
}

bool peers_may_wait(uint64_t *since_ms)
{
    return wait_for(since_ms, -1, 0);
}

/* ---- Coming and going ---- */

struct peer *peer_new(const union mu_addr *addr, enum mu_dialect dialect)
{
    struct peer *peer = first_free;
    int on = 1;

    if (peer == NULL && peers_used == PEERS_MAX)
        fail_msg("more than %d peers at once", PEERS_MAX);
    if (peer == NULL)
        peer = &peers[peers_used++];
    else
        first_free = peer->next_free;
    *peer = (struct peer){ .fd = socket(addr->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), .dialect = dialect };
    if (peer->fd < 0)
        fail_msg("cannot open a peer's socket: %s", strerror(errno));
    (void)setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return peer;
}

void peer_connect(struct peer *peer, const union mu_addr *addr)
{
    if (connect(peer->fd, &addr->any, mu_addr_len(addr)) < 0)
        fail_msg("cannot connect: %s", strerror(errno));
}

void peer_close(struct peer *peer)
{
    (void)close(peer->fd);
    peer->fd = -1;
    peer->next_free = first_free;
    first_free = peer;
}

void peer_reset(struct peer *peer)
{
    struct linger at_once = { .l_onoff = 1 };

    (void)setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    peer_close(peer);
}

void peers_close(void)
{
    for (size_t i = 0; i < peers_used; i++) {
        if (peers[i].fd >= 0)
            peer_reset(&peers[i]); /* leaves nothing in TIME_WAIT */
    }
    first_free = NULL;
    peers_used = 0;
}

unsigned peer_port(const struct peer *peer)
{
    union mu_addr addr;
    socklen_t len = sizeof addr;

    if (getsockname(peer->fd, &addr.any, &len) < 0)
        fail_msg("a peer has no address: %s", strerror(errno));
    return mu_addr_port(&addr);
}

/* ---- Saying and hearing ---- */

ssize_t peer_try_send(struct peer *peer, struct mu_slice bytes)
{
    ssize_t sent = send(peer->fd, bytes.data, bytes.len, MSG_DONTWAIT | MSG_NOSIGNAL);

    return sent < 0 && errno == EAGAIN ? 0 : sent;
}

void peer_send(struct peer *peer, struct mu_slice bytes)
{
    uint64_t since_ms = 0;
    size_t at = 0;

    while (at < bytes.len) {
        ssize_t sent = peer_try_send(peer, mu_slice(bytes.data + at, bytes.len - at));

        if (sent < 0)
            fail_msg("cannot send: %s", strerror(errno));
        at += (size_t)sent;
        if (sent > 0)
            since_ms = 0; /* the deadline is for standing still */
        else if (!wait_for(&since_ms, peer->fd, POLLOUT))
            fail_msg("nobody reads what is sent: %zu bytes of %zu are gone", at, bytes.len);
    }
}

ssize_t peer_read_some(struct peer *peer, void *to, size_t max)
{
    ssize_t count = recv(peer->fd, to, max, MSG_DONTWAIT);

    if (count < 0 && errno == EAGAIN)
        return 0;
    return count == 0 ? -1 : count;
}

bool peer_try_read(struct peer *peer, void *to, size_t len)
{
    uint64_t since_ms = 0;
    size_t at = 0;

    while (at < len) {
        ssize_t count = peer_read_some(peer, (char *)to + at, len - at);

        if (count < 0)
            return false;
        at += (size_t)count;
        if (count > 0)
            since_ms = 0; /* the deadline is for silence */
        else if (!wait_for(&since_ms, peer->fd, POLLIN))
            fail_msg("%zu bytes of %zu have come, then silence", at, len);
    }
    return true;
}

void say(struct peer *peer, const char *text)
{
    peer_send(peer, wire(peer->dialect, text));
}

void peer_hear(struct peer *peer, const char *text, const char *file, int line)
{
    struct mu_slice expected = wire(peer->dialect, text);
    char bytes[HEAR_MAX];
    uint64_t since_ms = 0;
    size_t at = 0;

    while (at < expected.len) {
        ssize_t count = peer_read_some(peer, bytes + at, expected.len - at);

        at += count > 0 ? (size_t)count : 0;
        if (count < 0 || (count == 0 && !wait_for(&since_ms, peer->fd, POLLIN)))
            break;
    }
    if (mu_slice_equal(mu_slice(bytes, at), expected))
        return;
    print_error("%s:%d: expected \"%s\"%s\n", file, line, text, at < expected.len ? ", which did not come whole" : "");
    _assert_string_equal(wire_hex(mu_slice(bytes, at)), wire_hex(expected), file, line);
}

void peer_hear_end(struct peer *peer, const char *file, int line)
{
    uint64_t since_ms = 0;
    char byte;

    for (;;) {
        ssize_t count = peer_read_some(peer, &byte, 1);

        if (count < 0)
            return;
        if (count > 0)
            print_error("%s:%d: expected the end of the connection, came byte %02x\n", file, line, (unsigned char)byte);
        else if (!wait_for(&since_ms, peer->fd, POLLIN))
            print_error("%s:%d: expected the end of the connection, came nothing\n", file, line);
        else
            continue;
        _fail(file, line);
    }
}

bool peer_hears_nothing(struct peer *peer)
{
    char byte;

    return recv(peer->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

/* ---- Log lines ---- */

static void collect(void *ctx, enum muster_log_level level, const char *line)
{
    (void)ctx;
    if (lines.count < LINES_MAX)
        (void)snprintf(lines.text[lines.count], LINE_BYTES, "%s: %s", muster_log_level_name(level), line);
    lines.count++;
}

void lines_collect(void)
{
    lines.count = 0;
    muster_log_set_sink(collect, NULL);
}

size_t lines_count(void)
{
    return lines.count;
}

const char *line_with(const char *text)
{
    for (size_t i = 0; i < lines.count && i < LINES_MAX; i++) {
        if (strstr(lines.text[i], text) != NULL)
            return lines.text[i];
    }
    return NULL;
}

size_t lines_with(const char *text)
{
    size_t count = 0;

    for (size_t i = 0; i < lines.count && i < LINES_MAX; i++)
        count += strstr(lines.text[i], text) != NULL;
    return count;
}

void lines_show(FILE *to)
{
    for (size_t i = 0; i < lines.count && i < LINES_MAX; i++)
        (void)fprintf(to, "# %s\n", lines.text[i]);
}
