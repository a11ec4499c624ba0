/* Sockets to listen on. Every address means one IPv6 socket that takes IPv4 as well, or a plain IPv4 one where there is
 * no IPv6. TCP_NODELAY and SO_KEEPALIVE are set on the listening socket: what it accepts inherits them. The latter lets
 * go, after hours, of connections whose host has vanished; one that is merely silent answers and stays. */
#include "store/listen.h"

#include "base/error.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <unistd.h>

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

static int open_named(const char *host, uint16_t port, int *ret_fd, struct muster_error *reterr)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *list = NULL;
    char service[8];
    int fd = -EADDRNOTAVAIL;
    int rc;

    (void)snprintf(service, sizeof service, "%u", (unsigned)port);
    rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0)
        return mu_fail(reterr, MUSTER_ERESOLVE, "cannot resolve '%s': %s", host, gai_strerror(rc));
    for (const struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next) {
        if (ai->ai_family == AF_INET6 || ai->ai_family == AF_INET)
            fd = open_bound((const union mu_addr *)(const void *)ai->ai_addr, true);
    }
    freeaddrinfo(list);
    if (fd < 0)
        return mu_fail_errno(reterr, -fd, "cannot bind");
    *ret_fd = fd;
    return 0;
}

int mu_listen_open(const char *host, uint16_t port, int *ret_fd, struct muster_error *reterr)
{
    union mu_addr addr;
    int fd = -1, rc = 0;

    if (host == NULL)
        fd = open_wildcard(port);
    else if (mu_addr_parse(host, port, &addr))
        fd = open_bound(&addr, true);
    else
        rc = open_named(host, port, &fd, reterr);
    if (rc == 0 && fd < 0)
        rc = mu_fail_errno(reterr, -fd, "cannot bind");
    if (rc < 0)
        return mu_wrap(reterr, rc, "listen on %s, port %u", host == NULL ? "every address" : host, (unsigned)port);
    *ret_fd = fd;
    return 0;
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

int mu_listen_adopt(int fd, uint16_t port, struct muster_error *reterr)
{
    union mu_addr addr = { 0 };
    socklen_t len = sizeof(int);
    int type = 0, rc;

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0)
        return mu_fail_errno(reterr, errno, "listen on descriptor %d", fd);
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
