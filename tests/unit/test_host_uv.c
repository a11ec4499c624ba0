/* The server on a thread of its own: where it listens, who may come in, who shares it, and what it says when it
 * cannot. */
#include "failmalloc.h"
#include "fake_store.h"
#include "muster.h"
#include "store/host_uv.h"

#include <errno.h>

#include <stdio.h>

enum { QUICK_MS = 20000 };

static struct muster_store_server *serve(struct muster_store_server_config config)
{
    struct muster_store_server *server = NULL;
    struct muster_error error = { 0 };

    config.size = sizeof config;
    if (muster_store_server_start(&config, &server, &error) != 0)
        fail_msg("%s", error.text);
    return server;
}

/* The code of a start that must fail; its text goes to `error`. */
static int refuse(struct muster_store_server_config config, struct muster_error *error)
{
    struct muster_store_server *server = NULL;
    int rc;

    config.size = sizeof config;
    rc = muster_store_server_start(&config, &server, error);
    assert_null(server);
    assert_int_equal(error->code, rc);
    assert_memory_equal(error->text, "start a store server: ", 22);
    return rc;
}

static struct muster_store *open_at(const char *host, uint16_t port)
{
    const struct muster_store_tcp_config config = {
        .size = sizeof config, .host = host, .port = port, .connect_timeout_ms = QUICK_MS, .timeout_ms = QUICK_MS
    };
    struct muster_store *store = NULL;
    struct muster_error error = { 0 };

    if (muster_store_tcp_new(&config, &store, &error) != 0)
        fail_msg("%s", error.text);
    return store;
}

static int64_t count_at(const char *host, uint16_t port)
{
    struct muster_store *store = open_at(host, port);
    int64_t number = -1;

    assert_int_equal(muster_store_add(store, muster_str("n"), 1, MUSTER_TIMEOUT_DEFAULT, &number, NULL), 0);
    muster_store_free(store);
    return number;
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 addr = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&addr, sizeof addr) == 0;

    if (fd >= 0)
        (void)close(fd);
    return has;
}

static bool is_refused(uint16_t port)
{
    struct sockaddr_in addr = { .sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = connect(fd, (struct sockaddr *)&addr, sizeof addr);

    (void)close(fd);
    return rc < 0 && errno == ECONNREFUSED;
}

/* ---- Where it listens ---- */

static void by_default_it_listens_everywhere_on_a_free_port(void **state)
{
    struct muster_store_server *server = serve((struct muster_store_server_config){ 0 });
    uint16_t port = muster_store_server_port(server);
    char text[32];

    (void)state;
    assert_true(port != 0);
    (void)snprintf(text, sizeof text, has_ipv6() ? "[::]:%u" : "0.0.0.0:%u", (unsigned)port);
    assert_string_equal(muster_store_server_address(server), text);
    assert_int_equal(count_at("127.0.0.1", port), 1);
    if (has_ipv6())
        assert_int_equal(count_at("::1", port), 2);
    muster_store_server_stop(server);
    assert_true(is_refused(port));
}

static void it_listens_on_the_address_it_is_given(void **state)
{
    struct muster_store_server *server = serve((struct muster_store_server_config){ .host = "127.0.0.1" });
    char text[32];

    (void)state;
    (void)snprintf(text, sizeof text, "127.0.0.1:%u", (unsigned)muster_store_server_port(server));
    assert_string_equal(muster_store_server_address(server), text);
    assert_int_equal(count_at("127.0.0.1", muster_store_server_port(server)), 1);
    muster_store_server_stop(server);
    server = serve((struct muster_store_server_config){ .host = "localhost" });
    assert_int_equal(count_at("localhost", muster_store_server_port(server)), 1);
    muster_store_server_stop(server);
    muster_store_server_stop(NULL);
}

static void a_port_in_use_is_named(void **state)
{
    struct muster_store_server *server = serve((struct muster_store_server_config){ .host = "127.0.0.1" });
    uint16_t port = muster_store_server_port(server);
    struct muster_error error = { 0 };
    char text[16];

    (void)state;
    assert_int_equal(refuse((struct muster_store_server_config){ .host = "127.0.0.1", .port = port }, &error),
                     MUSTER_EADDRINUSE);
    (void)snprintf(text, sizeof text, "%u", (unsigned)port);
    assert_non_null(strstr(error.text, text));
    assert_non_null(strstr(error.text, "127.0.0.1"));
    assert_int_equal(refuse((struct muster_store_server_config){ .port = port }, &error), MUSTER_EADDRINUSE);
    muster_store_server_stop(server);
    server = serve((struct muster_store_server_config){ .host = "127.0.0.1", .port = port }); /* free again */
    assert_int_equal(muster_store_server_port(server), port);
    muster_store_server_stop(server);
}

static void a_bound_socket_is_adopted(void **state)
{
    uint16_t port;
    int fd = fake_listener(&port, -1);
    struct muster_store_server *server =
        serve((struct muster_store_server_config){ .use_listen_fd = true, .listen_fd = fd, .port = port });

    (void)state;
    assert_int_equal(muster_store_server_port(server), port);
    assert_int_equal(count_at("127.0.0.1", port), 1);
    muster_store_server_stop(server);
    assert_true(is_refused(port)); /* it was closed with the server */
}

static void a_listening_socket_is_adopted_as_well(void **state)
{
    uint16_t port;
    int fd = fake_listener(&port, 5);
    struct muster_store_server *server =
        serve((struct muster_store_server_config){ .use_listen_fd = true, .listen_fd = fd });

    (void)state;
    assert_int_equal(muster_store_server_port(server), port);
    assert_int_equal(count_at("127.0.0.1", port), 1);
    muster_store_server_stop(server);
}

static void a_socket_that_will_not_do_is_left_to_its_owner(void **state)
{
    struct muster_error error = { 0 };
    struct muster_store_server_config config = { .use_listen_fd = true };
    uint16_t port;
    int pipes[2];

    (void)state;
    config.listen_fd = fake_listener(&port, -1);
    config.port = (uint16_t)(port == 65535 ? 1 : port + 1);
    assert_int_equal(refuse(config, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "is bound to port"));
    assert_int_equal(close(config.listen_fd), 0); /* still ours to close */
    config.port = 0;
    config.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(refuse(config, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "not bound"));
    assert_int_equal(close(config.listen_fd), 0);
    config.listen_fd = socket(AF_INET, SOCK_DGRAM, 0);
    assert_int_equal(refuse(config, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "not a TCP socket"));
    assert_int_equal(close(config.listen_fd), 0);
    assert_int_equal(pipe(pipes), 0);
    config.listen_fd = pipes[0];
    assert_true(refuse(config, &error) < 0);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    config.listen_fd = -1;
    assert_true(refuse(config, &error) < 0);
}

/* ---- Configuration ---- */

static void what_makes_no_sense_is_refused_by_name(void **state)
{
    static const char *const bad_network[] = { "10.0.0.0/8", "nonsense", NULL };
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(refuse((struct muster_store_server_config){ .dialect = "2.x" }, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'2.x'"));
    assert_int_equal(refuse((struct muster_store_server_config){ .dialect = "klingon" }, &error), MUSTER_EINVAL);
    assert_int_equal(refuse((struct muster_store_server_config){ .allow = bad_network }, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'nonsense'"));
    assert_int_equal(refuse((struct muster_store_server_config){ .limits = { .key_bytes = 1 << 30 } }, &error),
                     MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "key"));
    assert_true(refuse((struct muster_store_server_config){ .host = "192.0.2.1" }, &error) < 0); /* nobody's address */
    assert_non_null(strstr(error.text, "192.0.2.1"));
}

static void a_shorter_config_is_taken_for_what_it_has(void **state)
{
    struct muster_store_server_config config = { .size = offsetof(struct muster_store_server_config, port),
                                                 .host = "127.0.0.1",
                                                 .port = 1, /* behind the end: not looked at */
                                                 .use_listen_fd = true,
                                                 .listen_fd = -1,
                                                 .dialect = "nonsense" };
    struct muster_store_server *server = NULL;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_store_server_start(&config, &server, &error), 0);
    assert_memory_equal(muster_store_server_address(server), "127.0.0.1:", 10);
    muster_store_server_stop(server);
    server = NULL;
    config.size = 0;
    assert_int_equal(muster_store_server_start(&config, &server, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "size"));
    assert_null(server);
}

/* A program that is newer than this library brings a longer struct. */
static void a_longer_config_is_taken_for_what_is_known(void **state)
{
    struct {
        struct muster_store_server_config known;
        char unknown[64];
    } config = { .known = { .size = sizeof config, .host = "127.0.0.1" } };
    struct muster_store_server *server = NULL;

    (void)state;
    memset(config.unknown, 0xff, sizeof config.unknown);
    assert_int_equal(muster_store_server_start(&config.known, &server, NULL), 0);
    muster_store_server_stop(server);
}

static void only_allowed_networks_come_in(void **state)
{
    static const char *const elsewhere[] = { "192.0.2.0/24", NULL };
    static const char *const here[] = { "192.0.2.0/24", "127.0.0.0/8", "::1", NULL };
    struct muster_store_server *server = serve((struct muster_store_server_config){ .allow = elsewhere });
    const struct muster_store_tcp_config config = {
        .size = sizeof config, .host = "127.0.0.1", .port = muster_store_server_port(server), .connect_timeout_ms = 300
    };
    struct muster_store *store = NULL;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_store_tcp_new(&config, &store, &error), MUSTER_ECONNECT);
    assert_non_null(strstr(error.text, "closes the connection"));
    assert_null(store);
    muster_store_server_stop(server);
    server = serve((struct muster_store_server_config){ .allow = here });
    assert_int_equal(count_at("127.0.0.1", muster_store_server_port(server)), 1);
    muster_store_server_stop(server);
}

/* ---- Sharing ---- */

static void servers_of_one_port_are_one_when_shared(void **state)
{
    struct muster_store_server *one = serve((struct muster_store_server_config){ .shared = true }), *two;
    uint16_t port = muster_store_server_port(one);

    (void)state;
    two = serve((struct muster_store_server_config){ .shared = true, .port = port });
    assert_int_equal(muster_store_server_port(two), port);
    assert_int_equal(count_at("127.0.0.1", port), 1);
    muster_store_server_stop(one); /* in any order */
    assert_int_equal(count_at("127.0.0.1", port), 2);
    one = serve((struct muster_store_server_config){ .shared = true, .port = port });
    muster_store_server_stop(two);
    assert_int_equal(count_at("127.0.0.1", port), 3);
    muster_store_server_stop(one);
    assert_true(is_refused(port)); /* the last one has closed it */
}

static void port_0_is_never_shared(void **state)
{
    struct muster_store_server *one = serve((struct muster_store_server_config){ .shared = true });
    struct muster_store_server *two = serve((struct muster_store_server_config){ .shared = true });

    (void)state;
    assert_true(muster_store_server_port(one) != muster_store_server_port(two));
    assert_int_equal(count_at("127.0.0.1", muster_store_server_port(one)), 1);
    assert_int_equal(count_at("127.0.0.1", muster_store_server_port(two)), 1);
    muster_store_server_stop(one);
    muster_store_server_stop(two);
}

static void a_server_that_does_not_share_is_not_shared(void **state)
{
    struct muster_store_server *alone = serve((struct muster_store_server_config){ 0 });
    struct muster_store_server *sharing = serve((struct muster_store_server_config){ .shared = true });
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(
        refuse((struct muster_store_server_config){ .shared = true, .port = muster_store_server_port(alone) }, &error),
        MUSTER_EADDRINUSE);
    assert_int_equal(refuse((struct muster_store_server_config){ .port = muster_store_server_port(sharing) }, &error),
                     MUSTER_EADDRINUSE);
    muster_store_server_stop(alone);
    muster_store_server_stop(sharing);
}

/* ---- Waiting for a count ---- */

static void a_count_is_waited_for_and_told(void **state)
{
    struct muster_store_server *server = serve((struct muster_store_server_config){ 0 });
    struct muster_store *store = open_at("127.0.0.1", muster_store_server_port(server));
    struct muster_error error = { 0 };
    int64_t seen = -1, number;

    (void)state;
    assert_int_equal(mu_host_wait_count(server, "/n", 1, 10, &seen, &error), MUSTER_ETIMEOUT);
    assert_int_equal(seen, 0); /* there is no such key yet */
    assert_int_equal(muster_store_add(store, muster_str("n"), 2, MUSTER_TIMEOUT_DEFAULT, &number, NULL), 0);
    assert_int_equal(mu_host_wait_count(server, "/n", 3, 10, &seen, &error), MUSTER_ETIMEOUT);
    assert_int_equal(seen, 2);
    assert_int_equal(mu_host_wait_count(server, "/n", 2, 0, &seen, &error), 0);
    assert_int_equal(seen, 2);
    muster_store_free(store);
    muster_store_server_stop(server);
}

static void *count_up(void *arg)
{
    struct muster_store *store = arg;
    int64_t number;

    for (int i = 0; i < 100; i++)
        assert_int_equal(muster_store_add(store, muster_str("n"), 1, MUSTER_TIMEOUT_DEFAULT, &number, NULL), 0);
    return NULL;
}

static void a_count_is_seen_as_it_grows(void **state)
{
    struct muster_store_server *server = serve((struct muster_store_server_config){ 0 });
    struct muster_store *store = open_at("127.0.0.1", muster_store_server_port(server));
    int64_t seen = -1;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, count_up, store), 0);
    assert_int_equal(mu_host_wait_count(server, "/n", 100, QUICK_MS, &seen, NULL), 0);
    assert_int_equal(seen, 100);
    assert_int_equal(pthread_join(thread, NULL), 0);
    muster_store_free(store);
    muster_store_server_stop(server);
}

static void what_is_no_number_counts_as_none(void **state)
{
    struct muster_store_server *server = serve((struct muster_store_server_config){ 0 });
    struct muster_store *store = open_at("127.0.0.1", muster_store_server_port(server));
    char text[200];
    int64_t seen = -1, keys;

    (void)state;
    memset(text, 'x', sizeof text);
    assert_int_equal(muster_store_set(store, muster_str("n"), (struct muster_slice){ text, sizeof text },
                                      MUSTER_TIMEOUT_DEFAULT, NULL),
                     0);
    assert_int_equal(muster_store_num_keys(store, MUSTER_TIMEOUT_DEFAULT, &keys, NULL), 0);
    assert_int_equal(mu_host_wait_count(server, "/n", 1, 10, &seen, NULL), MUSTER_ETIMEOUT);
    assert_int_equal(seen, 0);
    muster_store_free(store);
    muster_store_server_stop(server);
}

/* ---- Ends ---- */

static void servers_come_and_go_and_leave_nothing_behind(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++) {
        struct muster_store_server *server = serve((struct muster_store_server_config){ .host = "127.0.0.1" });
        struct muster_store *store = open_at("127.0.0.1", muster_store_server_port(server));

        if (i % 2)
            muster_store_free(store);
        muster_store_server_stop(server);
        if (i % 2 == 0)
            muster_store_free(store);
    }
}

static void any_allocation_of_a_start_may_fail(void **state)
{
    static const char *const allow[] = { "127.0.0.0/8", NULL };
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1", .allow = allow };

    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        config.shared = shared;
        FOR_EACH_FAILURE (n) {
            struct muster_store_server *server = NULL;
            struct muster_error error = { 0 };
            int rc = muster_store_server_start(&config, &server, &error);

            assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
            assert_true((server != NULL) == (rc == 0));
            muster_store_server_stop(server);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_default_it_listens_everywhere_on_a_free_port),
        cmocka_unit_test(it_listens_on_the_address_it_is_given),
        cmocka_unit_test(a_port_in_use_is_named),
        cmocka_unit_test(a_bound_socket_is_adopted),
        cmocka_unit_test(a_listening_socket_is_adopted_as_well),
        cmocka_unit_test(a_socket_that_will_not_do_is_left_to_its_owner),
        cmocka_unit_test(what_makes_no_sense_is_refused_by_name),
        cmocka_unit_test(a_shorter_config_is_taken_for_what_it_has),
        cmocka_unit_test(a_longer_config_is_taken_for_what_is_known),
        cmocka_unit_test(only_allowed_networks_come_in),
        cmocka_unit_test(servers_of_one_port_are_one_when_shared),
        cmocka_unit_test(port_0_is_never_shared),
        cmocka_unit_test(a_server_that_does_not_share_is_not_shared),
        cmocka_unit_test(a_count_is_waited_for_and_told),
        cmocka_unit_test(a_count_is_seen_as_it_grows),
        cmocka_unit_test(what_is_no_number_counts_as_none),
        cmocka_unit_test(servers_come_and_go_and_leave_nothing_behind),
        cmocka_unit_test(any_allocation_of_a_start_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
