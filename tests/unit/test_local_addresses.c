/* Which addresses are this machine's. Nothing leaves the machine: they are only bound. */
#include "handler/local_addresses.h"
#include "pure.h"

#include <ifaddrs.h>
#include <unistd.h>

static bool owns(const char *text)
{
    union mu_addr addr;

    assert_true(mu_addr_parse(text, 29400, &addr));
    return mu_owns_address(&addr);
}

static bool has_ipv6(void)
{
    union mu_addr addr;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound;

    assert_true(mu_addr_parse("::1", 0, &addr));
    bound = fd >= 0 && bind(fd, &addr.any, sizeof addr.v6) == 0;
    if (fd >= 0)
        (void)close(fd);
    return bound;
}

static void loopback_and_any_are_ours(void **state)
{
    (void)state;
    assert_true(owns("127.0.0.1"));
    assert_true(owns("127.1.2.3"));
    assert_true(owns("::ffff:127.0.0.1"));
    assert_true(owns("0.0.0.0"));
    assert_int_equal(owns("::1"), has_ipv6());
    assert_int_equal(owns("::"), has_ipv6());
}

static void every_interfaces_address_is_ours(void **state)
{
    struct ifaddrs *list;
    union mu_addr addr;

    (void)state;
    assert_int_equal(getifaddrs(&list), 0);
    for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
        if (at->ifa_addr == NULL || (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6))
            continue;
        addr = (union mu_addr){ 0 };
        memcpy(&addr, at->ifa_addr, at->ifa_addr->sa_family == AF_INET ? sizeof addr.v4 : sizeof addr.v6);
        if (addr.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&addr.v6.sin6_addr))
            continue; /* may still be tentative */
        assert_true(mu_owns_address(&addr));
    }
    freeifaddrs(list);
}

static void others_addresses_are_not(void **state)
{
    static const char *const rows[] = { "192.0.2.1",       "198.51.100.7", "2001:db8::1",     "224.0.0.1",
                                        "255.255.255.255", "ff02::1",      "::ffff:192.0.2.1" };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_false(owns(rows[i]));
}

static void a_port_that_is_taken_does_not_matter(void **state)
{
    union mu_addr addr;
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)state;
    assert_true(mu_addr_parse("127.0.0.1", 0, &addr));
    assert_int_equal(bind(fd, &addr.any, sizeof addr.v4), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, &addr.any, &len), 0);
    assert_true(mu_owns_address(&addr));
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_and_any_are_ours),
        cmocka_unit_test(every_interfaces_address_is_ours),
        cmocka_unit_test(others_addresses_are_not),
        cmocka_unit_test(a_port_that_is_taken_does_not_matter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
