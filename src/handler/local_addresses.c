/* Does this machine own an address? Names are never compared: they lie. Binding alone is not enough, because a kernel
 * may allow it for addresses that the machine does not have yet (ip_nonlocal_bind, as high availability set-ups use
 * it). */
#include "handler/local_addresses.h"

#include <ifaddrs.h>
#include <string.h>
#include <unistd.h>

/* An IPv4 address in IPv6 clothes becomes what it is; the port goes. */
static union mu_addr plain(const union mu_addr *addr)
{
    union mu_addr bare = *addr;

    if (addr->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&addr->v6.sin6_addr)) {
        bare = (union mu_addr){ .v4 = { .sin_family = AF_INET } };
        memcpy(&bare.v4.sin_addr, addr->v6.sin6_addr.s6_addr + 12, 4);
    }
    mu_addr_set_port(&bare, 0);
    return bare;
}

/* Without its port. False: it is of another family. */
static bool read_addr(const struct sockaddr *from, union mu_addr *ret_addr)
{
    if (from == NULL || (from->sa_family != AF_INET && from->sa_family != AF_INET6))
        return false;
    *ret_addr = (union mu_addr){ 0 };
    memcpy(ret_addr, from, from->sa_family == AF_INET ? sizeof ret_addr->v4 : sizeof ret_addr->v6);
    mu_addr_set_port(ret_addr, 0);
    return true;
}

static bool is_of_an_interface(const union mu_addr *addr)
{
    union mu_addr other;
    struct ifaddrs *list;
    bool found = false;

    if (getifaddrs(&list) < 0)
        return true; /* then binding alone has to do */
    for (const struct ifaddrs *at = list; at != NULL && !found; at = at->ifa_next)
        found = read_addr(at->ifa_addr, &other) && mu_addr_same_host(addr, &other);
    freeifaddrs(list);
    return found;
}

static bool can_bind(const union mu_addr *addr)
{
    int fd = socket(addr->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && bind(fd, &addr->any, mu_addr_len(addr)) == 0;

    if (fd >= 0)
        (void)close(fd);
    return bound;
}

bool mu_owns_address(const union mu_addr *addr)
{
    union mu_addr bare = plain(addr);

    return can_bind(&bare) && (mu_addr_is_loopback(&bare) || mu_addr_is_any(&bare) || is_of_an_interface(&bare));
}

size_t mu_own_addresses(union mu_addr *ret_addrs, size_t room)
{
    struct ifaddrs *list;
    size_t count = 0;

    if (getifaddrs(&list) < 0)
        return 0;
    for (const struct ifaddrs *at = list; at != NULL && count < room; at = at->ifa_next) {
        union mu_addr addr;

        if (read_addr(at->ifa_addr, &addr) && !mu_addr_is_loopback(&addr) && !mu_addr_is_link_local(&addr) &&
            can_bind(&addr))
            ret_addrs[count++] = addr;
    }
    freeifaddrs(list);
    return count;
}
