/* Addresses, networks and endpoints as text and as bytes. */
#include "pure.h"
#include "store/net.h"

static union mu_addr addr(const char *host, uint16_t port)
{
    union mu_addr parsed;

    assert_true(mu_addr_parse(host, port, &parsed));
    return parsed;
}

static const char *format(const char *host, uint16_t port)
{
    static char text[MU_ADDR_TEXT_MAX];
    union mu_addr parsed = addr(host, port);

    return mu_addr_format(&parsed, text);
}

static void addresses_are_written_with_their_port(void **state)
{
    (void)state;
    assert_string_equal(format("192.0.2.1", 80), "192.0.2.1:80");
    assert_string_equal(format("2001:db8::1", 80), "[2001:db8::1]:80");
    assert_string_equal(format("::", 29500), "[::]:29500");
    assert_string_equal(format("0.0.0.0", 0), "0.0.0.0:0");
    assert_string_equal(format("255.255.255.255", 65535), "255.255.255.255:65535");
    assert_string_equal(format("::ffff:10.1.2.3", 7), "10.1.2.3:7"); /* IPv4 in IPv6 clothes */
    assert_string_equal(format("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65535),
                        "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535");
}

static void a_host_is_written_without_its_port(void **state)
{
    static const char *const rows[][2] = { { "192.0.2.1", "192.0.2.1" },
                                           { "2001:db8::1", "2001:db8::1" },
                                           { "::", "::" },
                                           { "fe80::1%lo", "fe80::1%lo" },
                                           { "::ffff:10.1.2.3", "10.1.2.3" } };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        union mu_addr parsed = addr(rows[i][0], 29500);
        char text[MU_ADDR_TEXT_MAX];

        assert_false(mu_addr_host(&parsed, text, strlen(rows[i][1])));
        assert_true(mu_addr_host(&parsed, text, strlen(rows[i][1]) + 1));
        assert_string_equal(text, rows[i][1]);
    }
}

static void an_address_knows_its_length_and_port(void **state)
{
    union mu_addr v4 = addr("127.0.0.1", 29500), v6 = addr("::1", 1);

    (void)state;
    assert_int_equal(mu_addr_len(&v4), sizeof(struct sockaddr_in));
    assert_int_equal(mu_addr_len(&v6), sizeof(struct sockaddr_in6));
    assert_int_equal(mu_addr_port(&v4), 29500);
    assert_int_equal(mu_addr_port(&v6), 1);
}

static void loopback_is_known_in_every_form(void **state)
{
    static const struct {
        const char *host;
        bool loopback;
    } rows[] = {
        { "127.0.0.1", true },       { "127.255.0.9", true },  { "::1", true }, { "::ffff:127.0.0.1", true },
        { "128.0.0.1", false },      { "::2", false },         { "::", false }, { "0.0.0.0", false },
        { "::ffff:1.2.3.4", false }, { "::127.0.0.1", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        union mu_addr a = addr(rows[i].host, 1);

        assert_int_equal(mu_addr_is_loopback(&a), rows[i].loopback);
    }
}

static void only_numeric_addresses_are_read(void **state)
{
    static const char *const bad[] = {
        "",          "localhost",
        "1.2.3",     "1.2.3.4.5",
        "256.0.0.1", "1.2.3.4:80",
        "[::1]",     ":::",
        "::g",       " 1.2.3.4",
        "1.2.3.4 ",  "1.2.3.4%lo",
        "fe80::1%",  "::1%no-such-interface",
        "%lo",       "0x7f.1",
        "1.2.3.4/8", "0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        union mu_addr parsed;

        memset(&parsed, 0x55, sizeof parsed);
        assert_false(mu_addr_parse(bad[i], 80, &parsed));
        assert_int_equal(parsed.any.sa_family, 0x5555); /* untouched */
    }
}

static void a_scope_is_part_of_an_address(void **state)
{
    union mu_addr parsed = addr("fe80::1%lo", 80);

    (void)state;
    assert_int_equal(parsed.any.sa_family, AF_INET6);
    assert_int_not_equal(parsed.v6.sin6_scope_id, 0);
}

static void the_same_host_is_on_the_same_link(void **state)
{
    static const struct {
        const char *a, *b;
        unsigned a_link, b_link;
        bool same;
    } rows[] = {
        { "10.0.0.1", "10.0.0.1", 0, 0, true },
        { "10.0.0.1", "10.0.0.2", 0, 0, false },
        { "10.0.0.1", "::ffff:10.0.0.1", 0, 3, true },
        { "169.254.0.1", "::ffff:169.254.0.1", 0, 3, true },
        { "::ffff:169.254.0.1", "169.254.0.1", 3, 0, true },
        { "2001:db8::1", "2001:db8::1", 2, 3, true }, /* valid on every link */
        { "fe80::1", "fe80::1", 2, 2, true },
        { "fe80::1", "fe80::2", 2, 2, false },
        { "fe80::1", "fe80::1", 2, 3, false },
        { "fe80::1", "fe80::1", 0, 3, true }, /* nobody said which link */
        { "fe80::1", "fe80::1", 2, 0, true },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        union mu_addr a = addr(rows[i].a, 1), b = addr(rows[i].b, 2);

        if (a.any.sa_family == AF_INET6)
            a.v6.sin6_scope_id = rows[i].a_link;
        if (b.any.sa_family == AF_INET6)
            b.v6.sin6_scope_id = rows[i].b_link;
        assert_int_equal(mu_addr_same_host(&a, &b), rows[i].same);
        assert_int_equal(mu_addr_same_host(&b, &a), rows[i].same);
    }
}

static void a_port_is_decimal_digits(void **state)
{
    static const struct {
        const char *text;
        int port; /* -1: none */
    } rows[] = {
        { "0", 0 },       { "1", 1 },       { "29500", 29500 }, { "65535", 65535 }, { "00080", 80 }, { "", -1 },
        { "65536", -1 },  { "-1", -1 },     { "+1", -1 },       { " 1", -1 },       { "1 ", -1 },    { "0x10", -1 },
        { "100000", -1 }, { "000080", -1 }, { "80a", -1 },      { "99999", -1 },    { "http", -1 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint16_t port = 77;

        assert_int_equal(mu_port_parse(rows[i].text, &port), rows[i].port >= 0);
        assert_int_equal(port, rows[i].port >= 0 ? rows[i].port : 77);
    }
}

static void networks_hold_what_they_say(void **state)
{
    static const struct {
        const char *network, *in, *out;
    } rows[] = {
        { "10.0.0.0/8", "10.255.1.2", "11.0.0.0" },
        { "10.0.0.0/8", "::ffff:10.255.1.2", "::ffff:11.0.0.0" },
        { "192.168.4.0/22", "192.168.7.255", "192.168.8.0" },
        { "192.168.4.4/31", "192.168.4.5", "192.168.4.6" },
        { "192.0.2.1", "192.0.2.1", "192.0.2.2" },
        { "192.0.2.1/32", "::ffff:192.0.2.1", "192.0.2.0" },
        { "0.0.0.0/0", "203.0.113.9", "2001:db8::1" },
        { "0.0.0.0/0", "::ffff:1.2.3.4", "::1" },
        { "128.0.0.0/1", "255.0.0.1", "127.255.255.255" },
        { "fd00::/8", "fdff::1", "fe00::1" },
        { "2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1" },
        { "2001:db8::1", "2001:db8::1", "2001:db8::2" },
        { "::1/128", "::1", "::3" },
        { "::/0", "1.2.3.4", NULL },
        { "::/0", "ffff::1", NULL },
        { "::ffff:10.0.0.0/104", "10.9.8.7", "11.0.0.0" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_network network;
        union mu_addr a = addr(rows[i].in, 1);

        assert_int_equal(mu_network_parse(rows[i].network, &network, NULL), 0);
        assert_true(mu_network_has(&network, &a));
        if (rows[i].out != NULL) {
            a = addr(rows[i].out, 1);
            assert_false(mu_network_has(&network, &a));
        }
    }
}

static void what_is_not_a_network_is_refused_by_name(void **state)
{
    static const char *const bad[] = {
        "",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.0/8/8",
        "10.0.0.0/a",
        "10.0.0/8",
        "10.0.0.1/8",
        "fd00::1/8",
        "fd00::/129",
        "::1/127",
        "localhost",
        "10.0.0.0 /8",
        "10.0.0.0/ 8",
        "10.0.0.0/0008",
        "10.0.0.0/99999999999999999999",
        "fe80::1%lo",
        "fe80::%lo/10",
        "[::1]",
        "00000000000000000000000000000000000000000000000000000000000000/8",
        "1.2.3.4/0",
        "*",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct mu_network network = { .bits = 77 };
        struct muster_error err = { 0 };

        assert_int_equal(mu_network_parse(bad[i], &network, &err), MUSTER_EINVAL);
        assert_int_equal(err.code, MUSTER_EINVAL);
        assert_non_null(strstr(err.text, bad[i]));
        assert_int_equal(network.bits, 77); /* untouched */
    }
}

static void endpoints_are_split_into_host_and_port(void **state)
{
    static const struct {
        const char *text;
        uint16_t port_default;
        const char *host;
        uint16_t port;
    } rows[] = {
        { "node1:29500", 0, "node1", 29500 },
        { "node1:1", 29500, "node1", 1 },
        { "node1", 29500, "node1", 29500 },
        { "10.0.0.1:65535", 0, "10.0.0.1", 65535 },
        { "10.0.0.1", 7, "10.0.0.1", 7 },
        { "[::1]:80", 0, "::1", 80 },
        { "[::1]", 29500, "::1", 29500 },
        { "::1", 29500, "::1", 29500 },
        { "2001:db8::1", 29500, "2001:db8::1", 29500 },
        { "[fe80::1%eth0]:80", 0, "fe80::1%eth0", 80 },
        { "a.b.example:00080", 0, "a.b.example", 80 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char host[MU_HOST_MAX];
        uint16_t port;

        assert_int_equal(mu_endpoint_parse(rows[i].text, rows[i].port_default, host, &port, NULL), 0);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, rows[i].port);
    }
}

static void what_is_not_an_endpoint_is_refused_by_name(void **state)
{
    static const struct {
        const char *text;
        uint16_t port_default;
    } rows[] = {
        { "", 29500 },        { ":80", 0 },        { ":", 29500 },       { "[]:80", 0 },      { "[]", 29500 },
        { "node1", 0 },       { "::1", 0 },        { "[::1]", 0 },       { "node1:", 29500 }, { "node1:0", 29500 },
        { "node1:65536", 0 }, { "node1:http", 0 }, { "node1:-1", 0 },    { "node1: 80", 0 },  { "[::1]:", 29500 },
        { "[::1]80", 29500 }, { "[::1", 29500 },   { "[::1:80", 29500 }, { "[::1]x:80", 0 },  { "[[::1]]:80", 0 },
        { "[::1]:80:90", 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char host[MU_HOST_MAX] = "as it was";
        uint16_t port = 77;
        struct muster_error err = { 0 };

        assert_int_equal(mu_endpoint_parse(rows[i].text, rows[i].port_default, host, &port, &err), MUSTER_EINVAL);
        assert_non_null(strstr(err.text, rows[i].text));
        assert_string_equal(host, "as it was");
        assert_int_equal(port, 77);
    }
}

static void a_host_is_as_long_as_its_room_and_no_longer(void **state)
{
    char text[MU_HOST_MAX + 8], host[MU_HOST_MAX];
    uint16_t port;

    (void)state;
    memset(text, 'h', sizeof text);
    memcpy(text + MU_HOST_MAX - 1, ":80", 4);
    assert_int_equal(mu_endpoint_parse(text, 0, host, &port, NULL), 0);
    assert_int_equal(strlen(host), MU_HOST_MAX - 1);
    memcpy(text + MU_HOST_MAX - 1, "h:80", 5);
    assert_int_equal(mu_endpoint_parse(text, 0, host, &port, NULL), MUSTER_EINVAL);
}

/* More than one colon without brackets can only be an IPv6 address. */
static void several_colons_must_be_an_address(void **state)
{
    static const char *const bad[] = { "node1:80:90", "::1]", "::1]:80", "a:b:c", "http://node1:80" };

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        char host[MU_HOST_MAX];
        uint16_t port;

        assert_int_equal(mu_endpoint_parse(bad[i], 29500, host, &port, NULL), MUSTER_EINVAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_written_with_their_port),
        cmocka_unit_test(a_host_is_written_without_its_port),
        cmocka_unit_test(an_address_knows_its_length_and_port),
        cmocka_unit_test(loopback_is_known_in_every_form),
        cmocka_unit_test(only_numeric_addresses_are_read),
        cmocka_unit_test(a_scope_is_part_of_an_address),
        cmocka_unit_test(the_same_host_is_on_the_same_link),
        cmocka_unit_test(a_port_is_decimal_digits),
        cmocka_unit_test(networks_hold_what_they_say),
        cmocka_unit_test(what_is_not_a_network_is_refused_by_name),
        cmocka_unit_test(endpoints_are_split_into_host_and_port),
        cmocka_unit_test(what_is_not_an_endpoint_is_refused_by_name),
        cmocka_unit_test(a_host_is_as_long_as_its_room_and_no_longer),
        cmocka_unit_test(several_colons_must_be_an_address),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
