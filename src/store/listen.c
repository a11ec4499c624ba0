/* Sockets to listen on. Every address means one IPv6 socket that takes IPv4 as well, or a plain IPv4 one where there is
 * no IPv6. Several addresses mean a socket for each, all on one port. TCP_NODELAY and SO_KEEPALIVE are set on the
 * listening socket: what it accepts inherits them. After hours, SO_KEEPALIVE closes connections whose host has
 * vanished; a host that is merely silent answers, and its connection stays. */
#include "store/listen.h"

#include "base/error.h"
#include "store/dial.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <unistd.h>

enum { PORT_TRIES_MAX = 64 }; /* for a port that is free on every address */

static int set_flag(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

/* Returns the socket, or -errno. */
static int open_bound(const union mu_addr *addr, bool v6_only)
{
    int fd = socket(addr->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int errnum;

    if (fd < 0)
        return -errno;
    if (set_flag(fd, SOL_SOCKET, SO_REUSEADDR, 1) == 0 && set_flag(fd, SOL_SOCKET, SO_KEEPALIVE, 1) == 0 &&
        set_flag(fd, IPPROTO_TCP, TCP_NODELAY, 1) == 0 &&
        (addr->any.sa_family != AF_INET6 || set_flag(fd, IPPROTO_IPV6, IPV6_V6ONLY, v6_only) == 0) &&
        bind(fd, &addr->any, mu_addr_len(addr)) == 0)
        return fd;
    errnum = errno;
    (void)close(fd);
    return -errnum;
}

static int open_wildcard(uint16_t port)
{
    union mu_addr addr = { .v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) } };
    int fd = open_bound(&addr, false);

    if (fd >= 0 || fd == -EADDRINUSE || fd == -EACCES)
        return fd;
    addr = (union mu_addr){ .v4 = { .sin_family = AF_INET, .sin_port = htons(port) } };
    return open_bound(&addr, false);
}

/* Addresses to listen on. */
struct places {
    union mu_addr addrs[MU_LISTEN_MAX];
    bool may_lack[MU_LISTEN_MAX]; /* left out where this machine does not have it */
    size_t count;
};

/* 0.0.0.0 has all addresses of IPv4, :: those of IPv6: beside it none of them can be bound. */
static bool has_place(const union mu_addr *place, const union mu_addr *addr)
{
    return mu_addr_same_host(place, addr) || (mu_addr_is_any(place) && place->any.sa_family == addr->any.sa_family);
}

static int add_place(struct places *places, const union mu_addr *addr, bool of_name, struct muster_error *reterr)
{
    size_t kept = 0;

    for (size_t i = 0; i < places->count; i++) {
        if (has_place(&places->addrs[i], addr))
            return 0;
    }
    for (size_t i = 0; i < places->count; i++) {
        if (has_place(addr, &places->addrs[i]))
            continue;
        places->addrs[kept] = places->addrs[i];
        places->may_lack[kept++] = places->may_lack[i];
    }
    places->count = kept;
    if (places->count == MU_LISTEN_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "more than %d addresses to listen on", MU_LISTEN_MAX);
    places->may_lack[places->count] = of_name || mu_addr_is_loopback(addr);
    places->addrs[places->count++] = *addr;
    return 0;
}

static int add_name(struct places *places, const char *host, struct muster_error *reterr)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);

    if (rc != 0)
        return mu_fail(reterr, MUSTER_ERESOLVE, "cannot resolve '%s': %s", host, gai_strerror(rc));
    for (const struct addrinfo *ai = list; ai != NULL && rc == 0; ai = ai->ai_next) {
        if (ai->ai_family == AF_INET6 || ai->ai_family == AF_INET)
            rc = add_place(places, (const union mu_addr *)(const void *)ai->ai_addr, true, reterr);
    }
    freeaddrinfo(list);
    return rc;
}

/* One item of the list. */
static int add_host(struct places *places, const char *host, struct muster_error *reterr)
{
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    size_t count = mu_dial_known(host, 0, addrs);
    int rc = count > 0 ? 0 : add_name(places, host, reterr);

    for (size_t i = 0; i < count && rc == 0; i++)
        rc = add_place(places, &addrs[i], false, reterr);
    return rc;
}

/* The first address of `host` that this machine has: its socket, or -errno; a negative code in *ret_rc if there is no
 * address. */
static int open_first(const char *host, uint16_t port, int *ret_rc, struct muster_error *reterr)
{
    struct places places = { .count = 0 };
    int fd = -EADDRNOTAVAIL;

    *ret_rc = add_host(&places, host, reterr);
    for (size_t i = 0; *ret_rc == 0 && i < places.count && fd < 0 && fd != -EADDRINUSE; i++) {
        mu_addr_set_port(&places.addrs[i], port);
        fd = open_bound(&places.addrs[i], true);
    }
    return fd;
}

int mu_listen_open(const char *host, uint16_t port, int *ret_fd, struct muster_error *reterr)
{
    int rc = 0, fd = host == NULL ? open_wildcard(port) : open_first(host, port, &rc, reterr);

    if (rc < 0)
        return mu_wrap(reterr, rc, "cannot listen on %s, port %u", host, (unsigned)port);
    if (fd < 0)
        return mu_fail_errno(reterr, -fd, "cannot listen on %s%sport %u", host == NULL ? "" : host,
                             host == NULL ? "" : ", ", (unsigned)port);
    *ret_fd = fd;
    return 0;
}

/* ---- Several addresses on one port ---- */

static int read_hosts(const char *hosts, struct places *places, struct muster_error *reterr)
{
    char host[MU_HOST_MAX];
    int rc = 0;

    for (const char *at = hosts; at != NULL && rc == 0;) {
        size_t len = strcspn(at, ",");

        if (len >= sizeof host)
            return mu_fail(reterr, MUSTER_EINVAL, "a name of %zu bytes is too long", len);
        memcpy(host, at, len);
        host[len] = '\0';
        rc = add_host(places, host, reterr);
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return rc;
}

/* Returns the socket, or -errno. */
static int open_listening(union mu_addr addr, uint16_t port)
{
    int fd, errnum;

    mu_addr_set_port(&addr, port);
    fd = open_bound(&addr, true);
    if (fd < 0 || listen(fd, MU_LISTEN_BACKLOG) == 0)
        return fd;
    errnum = errno;
    (void)close(fd);
    return -errnum;
}

void mu_listen_close_all(struct mu_listen_sockets *sockets)
{
    while (sockets->count > 0)
        (void)close(sockets->fds[--sockets->count]);
}

/* Returns 0 or -errno; then *ret_failed is the address that it failed at. */
static int open_places(const struct places *places, uint16_t port, struct mu_listen_sockets *sockets,
                       const union mu_addr **ret_failed)
{
    union mu_addr bound;
    int fd = -EADDRNOTAVAIL;

    sockets->count = 0;
    for (size_t i = 0; i < places->count; i++) {
        fd = open_listening(places->addrs[i], port);
        *ret_failed = &places->addrs[i];
        if (places->may_lack[i] && (fd == -EADDRNOTAVAIL || fd == -EAFNOSUPPORT))
            continue;
        if (fd < 0) {
            mu_listen_close_all(sockets);
            return fd;
        }
        sockets->fds[sockets->count++] = fd;
        if (port == 0 && mu_listen_address(fd, &bound, NULL) < 0) {
            mu_listen_close_all(sockets);
            return -EIO;
        }
        if (port == 0)
            port = mu_addr_port(&bound); /* the others get the same */
    }
    return sockets->count > 0 ? 0 : fd;
}

static int open_every_address(uint16_t port, struct mu_listen_sockets *sockets, struct muster_error *reterr)
{
    int rc = mu_listen_open(NULL, port, &sockets->fds[0], reterr);

    if (rc < 0)
        return rc;
    sockets->count = 1;
    if (listen(sockets->fds[0], MU_LISTEN_BACKLOG) == 0)
        return 0;
    rc = mu_fail_errno(reterr, errno, "cannot listen on port %u", (unsigned)port);
    mu_listen_close_all(sockets);
    return rc;
}

int mu_listen_open_all(const char *hosts, uint16_t port, struct mu_listen_sockets *ret_sockets,
                       struct muster_error *reterr)
{
    struct places places = { .count = 0 };
    const union mu_addr *failed = NULL;
    char text[MU_ADDR_TEXT_MAX] = "";
    int rc;

    ret_sockets->count = 0;
    if (hosts == NULL || strcmp(hosts, MU_LISTEN_ANY) == 0)
        return open_every_address(port, ret_sockets, reterr);
    rc = read_hosts(hosts, &places, reterr);
    if (rc < 0)
        return mu_wrap(reterr, rc, "cannot listen on %.200s, port %u", hosts, (unsigned)port);
    rc = -EADDRINUSE;
    for (int i = 0; rc == -EADDRINUSE && i < (port == 0 ? PORT_TRIES_MAX : 1); i++)
        rc = open_places(&places, port, ret_sockets, &failed);
    if (rc == 0)
        return 0;
    (void)mu_addr_host(failed, text, sizeof text);
    return mu_fail_errno(reterr, -rc, "cannot listen on %s, port %u", text, (unsigned)port);
}

int mu_listen_address(int fd, union mu_addr *ret_addr, struct muster_error *reterr)
{
    socklen_t len = sizeof *ret_addr;

    if (getsockname(fd, &ret_addr->any, &len) < 0)
        return mu_fail_errno(reterr, errno, "ask descriptor %d for its address", fd);
    return 0;
}

int mu_listen_free_port(uint16_t *ret_port, struct muster_error *reterr)
{
    union mu_addr addr;
    int fd = -1;
    int rc = mu_listen_open(NULL, 0, &fd, reterr);

    if (rc == 0) {
        rc = mu_listen_address(fd, &addr, reterr);
        (void)close(fd);
    }
    if (rc < 0)
        return mu_wrap(reterr, rc, "find a free port");
    *ret_port = mu_addr_port(&addr);
    return 0;
}

int mu_listen_probe(uint16_t *port, struct muster_error *reterr)
{
    int fd = -1, rc;

    if (*port == 0)
        return mu_listen_free_port(port, reterr);
    rc = mu_listen_open(NULL, *port, &fd, reterr);
    if (rc == 0)
        (void)close(fd);
    return rc;
}

int mu_listen_adopt(int fd, uint16_t port, struct muster_error *reterr)
{
    union mu_addr addr = { 0 };
    socklen_t len = sizeof(int);
    int type = 0, rc;

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0)
        return mu_fail_errno(reterr, errno, "cannot listen on descriptor %d", fd);
    rc = mu_listen_address(fd, &addr, reterr);
    if (rc < 0)
        return rc;
    if (type != SOCK_STREAM || (addr.any.sa_family != AF_INET && addr.any.sa_family != AF_INET6))
        return mu_fail(reterr, MUSTER_EINVAL, "descriptor %d is not a TCP socket", fd);
    if (mu_addr_port(&addr) == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "the socket on descriptor %d is not bound to a port", fd);
    if (port != 0 && mu_addr_port(&addr) != port)
        return mu_fail(reterr, MUSTER_EINVAL, "the socket on descriptor %d is bound to port %u, not to %u", fd,
                       (unsigned)mu_addr_port(&addr), (unsigned)port);
    (void)set_flag(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* costs latency only if it fails */
    (void)set_flag(fd, SOL_SOCKET, SO_KEEPALIVE, 1); /* costs memory for hosts that vanished, if it fails */
    return 0;
}
