/* Sockets to listen on: any port, a taken one, names, both families at once, and sockets that come from elsewhere. */
#include "pure.h"
#include "store/listen.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/un.h>
#include <unistd.h>

/* Opens, or fails the test; `host` as mu_listen_open() takes it. */
static int opened(const char *host, uint16_t port, union mu_addr *ret_addr)
{
    struct muster_error err = { 0 };
    int fd = -1;

    if (mu_listen_open(host, port, &fd, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(mu_listen_address(fd, ret_addr, &err), 0);
    return fd;
}

static int flag(int fd, int level, int option)
{
    int value = -1;
    socklen_t len = sizeof value;

    assert_int_equal(getsockopt(fd, level, option, &value, &len), 0);
    return value;
}

static bool has_v6(void)
{
    struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0;

    if (fd >= 0)
        (void)close(fd);
    return bound;
}

/* Connects to `host`; false when nobody answers there. */
static bool reachable(const char *host, uint16_t port)
{
    union mu_addr addr;
    bool reached;
    int fd;

    assert_true(mu_addr_parse(host, port, &addr));
    fd = socket(addr.any.sa_family, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    reached = connect(fd, &addr.any, mu_addr_len(&addr)) == 0;
    (void)close(fd);
    return reached;
}

static void port_0_is_some_free_port(void **state)
{
    union mu_addr a, b;
    int first = opened("127.0.0.1", 0, &a), second = opened("127.0.0.1", 0, &b);

    (void)state;
    assert_int_not_equal(mu_addr_port(&a), 0);
    assert_int_not_equal(mu_addr_port(&b), 0);
    assert_int_not_equal(mu_addr_port(&a), mu_addr_port(&b));
    assert_true(mu_addr_is_loopback(&a));
    (void)close(first);
    (void)close(second);
}

static void a_socket_is_ready_for_the_loop(void **state)
{
    union mu_addr addr;
    int fd = opened("127.0.0.1", 0, &addr);

    (void)state;
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_int_not_equal(flag(fd, SOL_SOCKET, SO_REUSEADDR), 0);
    assert_int_not_equal(flag(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    (void)close(fd);
}

static void every_address_means_both_families(void **state)
{
    union mu_addr addr;
    int fd = opened(NULL, 0, &addr);

    (void)state;
    assert_int_equal(listen(fd, 5), 0);
    assert_true(reachable("127.0.0.1", mu_addr_port(&addr)));
    if (has_v6()) {
        assert_int_equal(addr.any.sa_family, AF_INET6);
        assert_int_equal(flag(fd, IPPROTO_IPV6, IPV6_V6ONLY), 0);
        assert_true(reachable("::1", mu_addr_port(&addr)));
    }
    (void)close(fd);
}

static void an_address_means_that_address_alone(void **state)
{
    union mu_addr addr;
    int fd = opened("127.0.0.1", 0, &addr);

    (void)state;
    assert_int_equal(listen(fd, 5), 0);
    assert_true(reachable("127.0.0.1", mu_addr_port(&addr)));
    assert_false(reachable("127.0.0.2", mu_addr_port(&addr)));
    (void)close(fd);
    if (has_v6()) {
        fd = opened("::", 0, &addr); /* IPv6 was asked for by name */
        assert_int_equal(listen(fd, 5), 0);
        assert_true(reachable("::1", mu_addr_port(&addr)));
        assert_false(reachable("127.0.0.1", mu_addr_port(&addr)));
        (void)close(fd);
    }
}

static void a_name_is_resolved(void **state)
{
    union mu_addr addr;
    int fd = opened("localhost", 0, &addr);

    (void)state;
    assert_true(mu_addr_is_loopback(&addr));
    assert_int_not_equal(mu_addr_port(&addr), 0);
    (void)close(fd);
}

static void a_port_in_use_is_named_with_its_host(void **state)
{
    static const char *const hosts[] = { "127.0.0.1", NULL, "localhost" };

    (void)state;
    for (size_t i = 0; i < COUNT(hosts); i++) {
        struct muster_error err = { 0 };
        union mu_addr addr;
        char port[16];
        int fd = opened(hosts[i], 0, &addr), second = -1;

        assert_int_equal(listen(fd, 5), 0);
        assert_int_equal(mu_listen_open(hosts[i], mu_addr_port(&addr), &second, &err), MUSTER_EADDRINUSE);
        assert_int_equal(err.code, MUSTER_EADDRINUSE);
        assert_int_equal(second, -1);
        (void)snprintf(port, sizeof port, "port %u", (unsigned)mu_addr_port(&addr));
        assert_non_null(strstr(err.text, port));
        assert_non_null(strstr(err.text, hosts[i] == NULL ? "cannot listen on port " : hosts[i]));
        (void)close(fd);
    }
}

/* The code does not depend on whether somebody wants the text. */
static void the_code_is_the_same_when_nobody_listens(void **state)
{
    union mu_addr addr;
    int fd = opened("127.0.0.1", 0, &addr), second = -1;

    (void)state;
    assert_int_equal(listen(fd, 5), 0);
    assert_int_equal(mu_listen_open("127.0.0.1", mu_addr_port(&addr), &second, NULL), MUSTER_EADDRINUSE);
    assert_int_equal(mu_listen_open("no such host.invalid", 0, &second, NULL), MUSTER_ERESOLVE);
    (void)close(fd);
}

static void a_name_that_does_not_resolve_is_named(void **state)
{
    static const char *const names[] = { "no such host.invalid", "", "256.256.256.256" };

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct muster_error err = { 0 };
        int fd = -1;

        assert_int_equal(mu_listen_open(names[i], 0, &fd, &err), MUSTER_ERESOLVE);
        assert_non_null(strstr(err.text, names[i]));
        assert_int_equal(fd, -1);
    }
}

static void an_address_of_another_machine_is_refused(void **state)
{
    struct muster_error err = { 0 };
    int fd = -1;

    (void)state;
    assert_int_equal(mu_listen_open("192.0.2.1", 0, &fd, &err), MUSTER_ESYSTEM);
    assert_non_null(strstr(err.text, "192.0.2.1"));
    assert_int_equal(fd, -1);
}

/* ---- Several addresses ---- */

static struct mu_listen_sockets opened_all(const char *hosts, uint16_t port)
{
    struct mu_listen_sockets sockets;
    struct muster_error err = { 0 };

    if (mu_listen_open_all(hosts, port, &sockets, &err) < 0)
        fail_msg("%s", err.text);
    return sockets;
}

static uint16_t port_of(int fd)
{
    union mu_addr addr;

    assert_int_equal(mu_listen_address(fd, &addr, NULL), 0);
    return mu_addr_port(&addr);
}

static void several_addresses_have_one_port(void **state)
{
    struct mu_listen_sockets sockets = opened_all("127.0.0.1,127.0.0.3,127.0.0.1", 0);
    uint16_t port = port_of(sockets.fds[0]);

    (void)state;
    assert_int_equal(sockets.count, 2); /* an address that is named twice is opened once */
    assert_int_equal(port_of(sockets.fds[1]), port);
    assert_true(reachable("127.0.0.1", port));
    assert_true(reachable("127.0.0.3", port));
    assert_false(reachable("127.0.0.2", port));
    mu_listen_close_all(&sockets);
    assert_int_equal(sockets.count, 0);
    assert_false(reachable("127.0.0.1", port));
}

static void localhost_is_both_loopback_addresses(void **state)
{
    struct mu_listen_sockets sockets = opened_all("localhost", 0);
    uint16_t port = port_of(sockets.fds[0]);

    (void)state;
    assert_true(reachable("127.0.0.1", port));
    if (has_v6())
        assert_true(reachable("::1", port));
    assert_false(reachable("127.0.0.2", port));
    mu_listen_close_all(&sockets);
}

static void any_is_every_address(void **state)
{
    struct mu_listen_sockets sockets = opened_all("any", 0);
    uint16_t port = port_of(sockets.fds[0]);

    (void)state;
    assert_int_equal(sockets.count, 1);
    assert_true(reachable("127.0.0.1", port));
    assert_true(reachable("127.0.0.2", port));
    mu_listen_close_all(&sockets);
}

static void every_address_of_a_family_includes_the_others(void **state)
{
    static const char *const lists[] = { "0.0.0.0,127.0.0.1", "127.0.0.1,127.0.0.3,0.0.0.0", "0.0.0.0,0.0.0.0" };

    (void)state;
    for (size_t i = 0; i < COUNT(lists); i++) {
        struct mu_listen_sockets sockets = opened_all(lists[i], 0);

        assert_int_equal(sockets.count, 1);
        assert_true(reachable("127.0.0.2", port_of(sockets.fds[0])));
        mu_listen_close_all(&sockets);
    }
    if (has_v6()) {
        struct mu_listen_sockets sockets = opened_all("127.0.0.1,::1,::", 0);

        assert_int_equal(sockets.count, 2);
        assert_true(reachable("127.0.0.1", port_of(sockets.fds[0])) && reachable("::1", port_of(sockets.fds[0])));
        mu_listen_close_all(&sockets);
    }
}

/* A port that is free on the first address may be taken on the second: another one is found. The kernel gives out the
 * ports of this range at random, and all but a few of them are taken on 127.0.0.3. */
static void port_0_is_a_port_that_is_free_on_all_addresses(void **state)
{
    enum { TAKEN = 400 };
    int taken[TAKEN];
    size_t count = 0;

    (void)state;
    while (count < TAKEN) {
        union mu_addr addr;

        taken[count] = opened("127.0.0.3", 0, &addr);
        assert_int_equal(listen(taken[count++], 5), 0);
    }
    for (int i = 0; i < 200; i++) {
        struct mu_listen_sockets sockets = opened_all("127.0.0.1,127.0.0.3", 0);

        assert_int_equal(sockets.count, 2);
        assert_int_equal(port_of(sockets.fds[0]), port_of(sockets.fds[1]));
        mu_listen_close_all(&sockets);
    }
    while (count > 0)
        (void)close(taken[--count]);
}

/* Somebody else may hold the same port of the first address: then it is tried with another one. */
static int lacks_one(uint16_t *ret_port, struct muster_error *ret_err)
{
    struct mu_listen_sockets sockets;

    for (int i = 0; i < 100; i++) {
        union mu_addr addr;
        int fd = opened("127.0.0.3", 0, &addr);

        *ret_port = mu_addr_port(&addr);
        *ret_err = (struct muster_error){ 0 };
        assert_int_equal(listen(fd, 5), 0);
        assert_int_equal(mu_listen_open_all("127.0.0.1,127.0.0.3", *ret_port, &sockets, ret_err), MUSTER_EADDRINUSE);
        assert_int_equal(sockets.count, 0);
        if (strstr(ret_err->text, "127.0.0.3") != NULL)
            return fd;
        (void)close(fd);
    }
    fail_msg("no port was free on 127.0.0.1");
    return -1;
}

static void a_port_that_one_address_lacks_opens_none(void **state)
{
    struct mu_listen_sockets sockets;
    struct muster_error err;
    uint16_t port;
    int fd = lacks_one(&port, &err);

    (void)state;
    assert_int_equal(mu_listen_open_all("127.0.0.1,127.0.0.3", port, &sockets, NULL), MUSTER_EADDRINUSE);
    assert_int_equal(sockets.count, 0);
    assert_false(reachable("127.0.0.1", port));
    (void)close(fd);
}

static void an_address_of_nobody_here_opens_none(void **state)
{
    static const char *const lists[] = { "127.0.0.1,192.0.2.1", "127.0.0.1,", "", ",",
                                         "127.0.0.1,no such host.invalid" };

    (void)state;
    for (size_t i = 0; i < COUNT(lists); i++) {
        struct mu_listen_sockets sockets;
        struct muster_error err = { 0 };

        assert_true(mu_listen_open_all(lists[i], 0, &sockets, &err) < 0);
        assert_int_equal(sockets.count, 0);
        assert_non_null(strstr(err.text, "listen on"));
    }
}

static void a_bound_socket_is_adopted(void **state)
{
    union mu_addr addr;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    (void)state;
    assert_true(mu_addr_parse("127.0.0.1", 0, &addr));
    assert_int_equal(bind(fd, &addr.any, mu_addr_len(&addr)), 0);
    assert_int_equal(mu_listen_address(fd, &addr, NULL), 0);
    assert_int_equal(mu_listen_adopt(fd, 0, NULL), 0);
    assert_int_equal(mu_listen_adopt(fd, mu_addr_port(&addr), NULL), 0);
    assert_int_not_equal(flag(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    assert_int_equal(listen(fd, 5), 0);
    assert_int_equal(mu_listen_adopt(fd, 0, NULL), 0); /* already listening is fine */
    (void)close(fd);
}

static void a_socket_of_another_port_is_not_adopted(void **state)
{
    struct muster_error err = { 0 };
    union mu_addr addr;
    char port[16];
    int fd = opened("127.0.0.1", 0, &addr);

    (void)state;
    assert_int_equal(mu_listen_adopt(fd, mu_addr_port(&addr) == 1 ? 2 : 1, &err), MUSTER_EINVAL);
    (void)snprintf(port, sizeof port, "port %u", (unsigned)mu_addr_port(&addr));
    assert_non_null(strstr(err.text, port));
    (void)close(fd);
}

static void what_is_not_a_bound_tcp_socket_is_not_adopted(void **state)
{
    struct sockaddr_un nowhere = { .sun_family = AF_UNIX };
    struct muster_error err = { 0 };
    int unbound = socket(AF_INET, SOCK_STREAM, 0), datagram = socket(AF_INET, SOCK_DGRAM, 0);
    int local = socket(AF_UNIX, SOCK_STREAM, 0), ends[2];
    union mu_addr addr;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(mu_listen_adopt(ends[0], 0, &err), MUSTER_ESYSTEM);
    assert_int_equal(mu_listen_adopt(-1, 0, &err), MUSTER_ESYSTEM);
    assert_int_equal(mu_listen_address(ends[0], &addr, &err), MUSTER_ESYSTEM);
    assert_int_equal(mu_listen_adopt(unbound, 0, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "not bound"));
    assert_true(mu_addr_parse("127.0.0.1", 0, &addr));
    assert_int_equal(bind(datagram, &addr.any, mu_addr_len(&addr)), 0);
    assert_int_equal(mu_listen_adopt(datagram, 0, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "not a TCP socket"));
    assert_int_equal(bind(local, (struct sockaddr *)&nowhere, sizeof(sa_family_t)), 0); /* a name of the kernel's */
    assert_int_equal(mu_listen_adopt(local, 0, &err), MUSTER_EINVAL);
    assert_int_equal(mu_listen_adopt(unbound, 0, NULL), MUSTER_EINVAL);
    (void)close(unbound);
    (void)close(datagram);
    (void)close(local);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void a_port_is_probed_and_left_free(void **state)
{
    union mu_addr addr;
    struct muster_error err;
    uint16_t port = 0, again;
    int fd;

    (void)state;
    assert_int_equal(mu_listen_probe(&port, &err), 0);
    assert_int_not_equal(port, 0);
    again = port;
    assert_int_equal(mu_listen_probe(&again, &err), 0);
    assert_int_equal(again, port);
    fd = opened(NULL, port, &addr);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(mu_listen_probe(&again, &err), MUSTER_EADDRINUSE);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(port_0_is_some_free_port),
        cmocka_unit_test(a_socket_is_ready_for_the_loop),
        cmocka_unit_test(every_address_means_both_families),
        cmocka_unit_test(an_address_means_that_address_alone),
        cmocka_unit_test(a_name_is_resolved),
        cmocka_unit_test(a_port_in_use_is_named_with_its_host),
        cmocka_unit_test(the_code_is_the_same_when_nobody_listens),
        cmocka_unit_test(a_name_that_does_not_resolve_is_named),
        cmocka_unit_test(an_address_of_another_machine_is_refused),
        cmocka_unit_test(several_addresses_have_one_port),
        cmocka_unit_test(localhost_is_both_loopback_addresses),
        cmocka_unit_test(any_is_every_address),
        cmocka_unit_test(every_address_of_a_family_includes_the_others),
        cmocka_unit_test(port_0_is_a_port_that_is_free_on_all_addresses),
        cmocka_unit_test(a_port_that_one_address_lacks_opens_none),
        cmocka_unit_test(an_address_of_nobody_here_opens_none),
        cmocka_unit_test(a_port_is_probed_and_left_free),
        cmocka_unit_test(a_bound_socket_is_adopted),
        cmocka_unit_test(a_socket_of_another_port_is_not_adopted),
        cmocka_unit_test(what_is_not_a_bound_tcp_socket_is_not_adopted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
