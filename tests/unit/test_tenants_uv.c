/* Stores and servers of one process that come, go and get in each other's way. */
#include "base/clock.h"
#include "muster.h"
#include "pure.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

enum { TENANTS = 4, STARTS = 50 };

struct tenant {
    pthread_t thread;
    uint16_t port;
    unsigned failures;
    struct muster_error first;
};

static void *come_and_go(void *arg)
{
    struct tenant *tenant = arg;
    struct muster_store_server_config config = {
        .size = sizeof config, .host = "127.0.0.1", .port = tenant->port, .shared = true
    };

    for (int i = 0; i < STARTS; i++) {
        struct muster_store_server *server = NULL;
        struct muster_error error;

        if (muster_store_server_start(&config, &server, &error) < 0 && tenant->failures++ == 0)
            tenant->first = error;
        muster_store_server_stop(server);
    }
    return NULL;
}

/* The last one out closes the listener before anybody else can find the port free. */
static void tenants_of_a_shared_port_never_find_it_taken(void **state)
{
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct muster_store_server *server;
    struct tenant tenants[TENANTS] = { 0 };
    uint16_t port;

    (void)state;
    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    port = muster_store_server_port(server); /* free a moment later */
    muster_store_server_stop(server);
    for (size_t i = 0; i < TENANTS; i++) {
        tenants[i].port = port;
        assert_int_equal(pthread_create(&tenants[i].thread, NULL, come_and_go, &tenants[i]), 0);
    }
    for (size_t i = 0; i < TENANTS; i++)
        (void)pthread_join(tenants[i].thread, NULL);
    for (size_t i = 0; i < TENANTS; i++) {
        if (tenants[i].failures > 0)
            fail_msg("%u of %d starts failed: %s", tenants[i].failures, STARTS, tenants[i].first.text);
    }
}

/* The server has room for one connection, so the one that asks for the feature is turned away. That says nothing about
 * the feature, and does no harm to the connection that is there. */
static void a_probe_that_is_turned_away_proves_nothing(void **state)
{
    struct muster_store_server_config config = { .size = sizeof config,
                                                 .host = "127.0.0.1",
                                                 .limits = { .connections = 1 } };
    struct muster_store_tcp_config client = { .size = sizeof client, .host = "127.0.0.1", .connect_timeout_ms = 20000 };
    struct muster_store_server *server;
    struct muster_store *store;
    struct muster_values keys;
    struct muster_error error;
    int64_t count;

    (void)state;
    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    client.port = muster_store_server_port(server);
    assert_int_equal(muster_store_tcp_new(&client, &store, NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(muster_store_list_keys(store, 20000, &keys, &error), MUSTER_ECONNECT);
        assert_non_null(strstr(error.text, "could not find out whether the server has it"));
        assert_int_equal(muster_store_num_keys(store, 20000, &count, NULL), 0);
    }
    muster_store_free(store);
    muster_store_server_stop(server);
}

static void a_host_connects_to_where_its_server_was_told_to_listen(void **state)
{
    struct muster_store_server_config server = { .size = sizeof server, .host = "127.0.0.2" };
    struct muster_store_tcp_config config = {
        .size = sizeof config, .is_host = true, .server = &server, .connect_timeout_ms = 20000
    };
    struct muster_store *store;
    struct muster_error error;
    int64_t count;

    (void)state;
    if (muster_store_tcp_new(&config, &store, &error) < 0)
        fail_msg("%s", error.text);
    assert_int_equal(muster_store_num_keys(store, 20000, &count, NULL), 0);
    muster_store_free(store);
}

/* A worker that is started meanwhile must not inherit a store's sockets. */
static void nothing_a_store_opens_survives_an_exec(void **state)
{
    struct muster_store_tcp_config config = { .size = sizeof config, .is_host = true, .connect_timeout_ms = 20000 };
    struct muster_store *store;
    unsigned checked = 0;

    (void)state;
    assert_int_equal(muster_store_tcp_new(&config, &store, NULL), 0);
    for (int fd = 3; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        struct stat about;

        if (flags < 0 || fstat(fd, &about) < 0 || !S_ISSOCK(about.st_mode))
            continue;
        assert_true(flags & FD_CLOEXEC);
        checked++;
    }
    assert_true(checked >= 3); /* the listener and both ends of the connection */
    muster_store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenants_of_a_shared_port_never_find_it_taken),
        cmocka_unit_test(a_probe_that_is_turned_away_proves_nothing),
        cmocka_unit_test(a_host_connects_to_where_its_server_was_told_to_listen),
        cmocka_unit_test(nothing_a_store_opens_survives_an_exec),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
