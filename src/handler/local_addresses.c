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
    union mu_addr bare = { 0 };

    if (addr->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&addr->v6.sin6_addr)) {
        bare.v4.sin_family = AF_INET;
        memcpy(&bare.v4.sin_addr, addr->v6.sin6_addr.s6_addr + 12, 4);
    } else if (addr->any.sa_family == AF_INET6) {
        bare.v6.sin6_family = AF_INET6;
        bare.v6.sin6_addr = addr->v6.sin6_addr;
        bare.v6.sin6_scope_id = addr->v6.sin6_scope_id;
    } else {
        bare.v4.sin_family = AF_INET;
        bare.v4.sin_addr = addr->v4.sin_addr;
    }
    return bare;
}

static bool is_same(const union mu_addr *a, const struct sockaddr *b)
{
    union mu_addr other;

    if (b == NULL || a->any.sa_family != b->sa_family)
        return false;
    if (b->sa_family == AF_INET) {
        memcpy(&other.v4, b, sizeof other.v4);
        return a->v4.sin_addr.s_addr == other.v4.sin_addr.s_addr;
    }
    memcpy(&other.v6, b, sizeof other.v6);
    return IN6_ARE_ADDR_EQUAL(&a->v6.sin6_addr, &other.v6.sin6_addr) && a->v6.sin6_scope_id == other.v6.sin6_scope_id;
}

static bool is_of_an_interface(const union mu_addr *addr)
{
    struct ifaddrs *list;
    bool found = false;

    if (getifaddrs(&list) < 0)
        return true; /* then binding alone has to do */
    for (const struct ifaddrs *at = list; at != NULL && !found; at = at->ifa_next)
        found = is_same(addr, at->ifa_addr);
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
        union mu_addr addr = { 0 };

        if (at->ifa_addr == NULL || (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6))
            continue;
        memcpy(&addr, at->ifa_addr, at->ifa_addr->sa_family == AF_INET ? sizeof addr.v4 : sizeof addr.v6);
        mu_addr_set_port(&addr, 0);
        if (!mu_addr_is_loopback(&addr) && !mu_addr_is_link_local(&addr) && can_bind(&addr))
            ret_addrs[count++] = addr;
    }
    freeifaddrs(list);
    return count;
}
