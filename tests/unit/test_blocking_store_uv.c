/* The blocking store over real sockets: every call in every dialect, timeouts, lost servers, many threads, and ends. */
#include "fake_store.h"
#include "muster.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

enum { QUICK_MS = 20000, THREADS = 64 };

#define D MUSTER_TIMEOUT_DEFAULT

static const char *const dialects[] = { "1.13", "2.1", "2.x", "auto", NULL };

/* ---- Helpers ---- */

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct muster_store_server *serve(void)
{
    const struct muster_store_server_config config = { .size = sizeof config };
    struct muster_store_server *server = NULL;

    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    return server;
}

static struct muster_store *open_store(struct muster_store_tcp_config config)
{
    struct muster_store *store = NULL;
    struct muster_error error = { 0 };

    config.size = sizeof config;
    if (config.host == NULL && !config.is_host)
        config.host = "127.0.0.1";
    if (config.connect_timeout_ms == 0)
        config.connect_timeout_ms = QUICK_MS;
    if (config.timeout_ms == 0)
        config.timeout_ms = QUICK_MS;
    if (muster_store_tcp_new(&config, &store, &error) != 0)
        fail_msg("%s", error.text);
    return store;
}

static struct muster_store *open_at(uint16_t port, const char *dialect)
{
    return open_store((struct muster_store_tcp_config){ .port = port, .dialect = dialect });
}

/* The code of an opening that must fail, and its text. */
static int refuse(struct muster_store_tcp_config config, struct muster_error *error)
{
    struct muster_store *store = NULL;
    int rc;

    config.size = sizeof config;
    rc = muster_store_tcp_new(&config, &store, error);
    assert_null(store);
    assert_int_equal(error->code, rc);
    if (memcmp(error->text, "open a store: ", 14) != 0 && memcmp(error->text, "cannot connect to ", 18) != 0)
        fail_msg("%s", error->text);
    return rc;
}

static void set(struct muster_store *store, const char *key, const char *value)
{
    assert_int_equal(muster_store_set(store, muster_str(key), muster_str(value), D, NULL), 0);
}

static void assert_get(struct muster_store *store, const char *key, const char *value)
{
    struct muster_error error = { 0 };
    struct muster_bytes bytes = { 0 };

    if (muster_store_get(store, muster_str(key), D, &bytes, &error) != 0)
        fail_msg("%s", error.text);
    assert_string_equal(bytes.data, value);
    assert_int_equal(bytes.len, strlen(value));
    muster_bytes_done(&bytes);
}

static int64_t add(struct muster_store *store, const char *key, int64_t delta)
{
    struct muster_error error = { 0 };
    int64_t number = -1;

    if (muster_store_add(store, muster_str(key), delta, D, &number, &error) != 0)
        fail_msg("%s", error.text);
    return number;
}

static bool is_modern(const char *dialect)
{
    return dialect == NULL || strcmp(dialect, "2.x") == 0 || strcmp(dialect, "auto") == 0;
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

/* ---- Every call ---- */

static void use_keys(struct muster_store *store)
{
    const struct muster_slice present[] = { muster_str("k"), muster_str("n") };
    const struct muster_slice absent[] = { muster_str("k"), muster_str("never") };
    struct muster_bytes bytes;
    int64_t number;
    bool flag;

    set(store, "k", "v");
    assert_get(store, "k", "v");
    set(store, "k", "");
    assert_get(store, "k", "");
    assert_int_equal(add(store, "n", 5), 5);
    assert_int_equal(add(store, "n", -7), -2);
    assert_get(store, "n", "-2");
    assert_int_equal(
        muster_store_compare_set(store, muster_str("c"), muster_str(""), muster_str("new"), D, &bytes, NULL), 0);
    assert_string_equal(bytes.data, "new");
    muster_bytes_done(&bytes);
    assert_int_equal(
        muster_store_compare_set(store, muster_str("c"), muster_str("old"), muster_str("x"), D, &bytes, NULL), 0);
    assert_string_equal(bytes.data, "new");
    muster_bytes_done(&bytes);
    assert_int_equal(muster_store_check(store, present, 2, D, &flag, NULL), 0);
    assert_true(flag);
    assert_int_equal(muster_store_check(store, absent, 2, D, &flag, NULL), 0);
    assert_false(flag);
    assert_int_equal(muster_store_check(store, NULL, 0, D, &flag, NULL), 0);
    assert_true(flag);
    assert_int_equal(muster_store_wait(store, present, 2, D, NULL), 0);
    assert_int_equal(muster_store_wait(store, NULL, 0, D, NULL), 0);
    assert_int_equal(muster_store_num_keys(store, D, &number, NULL), 0);
    assert_int_equal(number, 3);
    assert_int_equal(muster_store_delete_key(store, muster_str("k"), D, &flag, NULL), 0);
    assert_true(flag);
    assert_int_equal(muster_store_delete_key(store, muster_str("k"), D, &flag, NULL), 0);
    assert_false(flag);
}

static void use_many_keys(struct muster_store *store)
{
    const struct muster_slice keys[] = { muster_str("a"), muster_str("b"), muster_str("a") };
    const struct muster_slice values[] = { muster_str("1"), muster_str(""), muster_str("3") };
    struct muster_values found;

    assert_int_equal(muster_store_multi_set(store, keys, values, 3, D, NULL), 0);
    assert_int_equal(muster_store_multi_get(store, keys, 3, D, &found, NULL), 0);
    assert_int_equal(found.count, 3);
    assert_string_equal(found.items[0].data, "3");
    assert_string_equal(found.items[1].data, "");
    muster_values_done(&found);
    assert_int_equal(muster_store_multi_set(store, NULL, NULL, 0, D, NULL), 0);
    assert_int_equal(muster_store_multi_get(store, NULL, 0, D, &found, NULL), 0);
    assert_int_equal(found.count, 0);
    muster_values_done(&found);
}

static void use_queue(struct muster_store *store)
{
    struct muster_bytes bytes;
    int64_t number;

    assert_int_equal(muster_store_queue_pop(store, muster_str("q"), false, D, &bytes, NULL), MUSTER_EEMPTY);
    assert_int_equal(muster_store_queue_push(store, muster_str("q"), muster_str("one"), D, NULL), 0);
    assert_int_equal(muster_store_queue_push(store, muster_str("q"), muster_str("two"), D, NULL), 0);
    assert_int_equal(muster_store_queue_len(store, muster_str("q"), D, &number, NULL), 0);
    assert_int_equal(number, 2);
    assert_int_equal(muster_store_queue_pop(store, muster_str("q"), true, D, &bytes, NULL), 0);
    assert_string_equal(bytes.data, "one");
    muster_bytes_done(&bytes);
    assert_int_equal(muster_store_queue_pop(store, muster_str("q"), false, D, &bytes, NULL), 0);
    assert_string_equal(bytes.data, "two");
    muster_bytes_done(&bytes);
}

static void use_list(struct muster_store *store, size_t keys_count)
{
    struct muster_values keys;

    assert_int_equal(muster_store_list_keys(store, D, &keys, NULL), 0);
    assert_int_equal(keys.count, keys_count);
    muster_values_done(&keys);
}

static void lack_all_that_is_new(struct muster_store *store, const char *dialect)
{
    struct muster_error error = { 0 };
    struct muster_bytes bytes;
    struct muster_values keys;
    int64_t number;

    assert_int_equal(muster_store_queue_push(store, muster_str("q"), muster_str("x"), D, &error), MUSTER_ENOTSUP);
    assert_non_null(strstr(error.text, dialect));
    assert_int_equal(muster_store_queue_pop(store, muster_str("q"), true, D, &bytes, NULL), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_queue_len(store, muster_str("q"), D, &number, NULL), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_list_keys(store, D, &keys, NULL), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_ping(store, D, NULL), MUSTER_ENOTSUP);
}

static void every_call_works_in_every_dialect(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(dialects); i++) {
        struct muster_store_server *server = serve();
        struct muster_store *store = open_at(muster_store_server_port(server), dialects[i]);
        bool is_113 = dialects[i] != NULL && strcmp(dialects[i], "1.13") == 0;

        assert_int_equal(muster_store_tcp_port(store), muster_store_server_port(server));
        if (is_modern(dialects[i]))
            use_list(store, 0); /* an empty store has an answer, too */
        use_keys(store);
        use_many_keys(store);
        assert_int_equal(muster_store_append(store, muster_str("app"), muster_str("x"), D, NULL),
                         is_113 ? MUSTER_ENOTSUP : 0);
        assert_int_equal(muster_store_append(store, muster_str("app"), muster_str("y"), D, NULL),
                         is_113 ? MUSTER_ENOTSUP : 0);
        if (!is_113)
            assert_get(store, "app", "xy");
        assert_int_equal(muster_store_barrier(store, muster_str("gate"), 1, D, NULL), 0);
        if (is_modern(dialects[i])) {
            use_queue(store);
            use_list(store, 7);
            assert_int_equal(muster_store_ping(store, D, NULL), 0);
        } else {
            lack_all_that_is_new(store, dialects[i]);
        }
        muster_store_free(store);
        muster_store_server_stop(server);
    }
}

static void keys_may_be_raw(void **state)
{
    struct muster_store_server *server = serve();
    struct muster_store *plain = open_at(muster_store_server_port(server), NULL);
    struct muster_store *raw =
        open_store((struct muster_store_tcp_config){ .port = muster_store_server_port(server), .raw_keys = true });
    struct muster_values keys;

    (void)state;
    set(plain, "k", "v");
    assert_get(raw, "/k", "v");
    set(raw, "bare", "v");
    assert_int_equal(add(raw, "n", 1), 1); /* answered: the set has arrived */
    assert_int_equal(muster_store_list_keys(plain, D, &keys, NULL), 0);
    assert_int_equal(keys.count, 1); /* without a slash it is no client's key */
    assert_string_equal(keys.items[0].data, "k");
    muster_values_done(&keys);
    muster_store_free(raw);
    muster_store_free(plain);
    muster_store_server_stop(server);
}

/* Larger than any socket's buffer: written and read in many pieces. */
static void large_values_pass_whole(void **state)
{
    struct muster_store_server *server = serve();
    const size_t len = (size_t)24 << 20;
    char *big = malloc(len);

    (void)state;
    for (size_t i = 0; i < len; i++)
        big[i] = (char)(i * 31 >> 3);
    for (size_t i = 0; i < 3; i++) {
        struct muster_store *store = open_at(muster_store_server_port(server), dialects[i]);
        struct muster_bytes bytes;

        assert_int_equal(muster_store_set(store, muster_str("big"), (struct muster_slice){ big, len }, D, NULL), 0);
        assert_int_equal(muster_store_get(store, muster_str("big"), D, &bytes, NULL), 0);
        assert_int_equal(bytes.len, len);
        assert_true(memcmp(bytes.data, big, len) == 0);
        muster_bytes_done(&bytes);
        muster_store_free(store);
    }
    free(big);
    muster_store_server_stop(server);
}

static void prefixed_views_work_over_it(void **state)
{
    struct muster_store_server *server = serve();
    struct muster_store *store = open_at(muster_store_server_port(server), NULL), *pre, *in;
    struct muster_values keys;

    (void)state;
    assert_int_equal(muster_store_prefix_new(muster_str("pre"), store, &pre, NULL), 0);
    assert_int_equal(muster_store_prefix_new(muster_str("in"), pre, &in, NULL), 0);
    set(in, "x", "v");
    assert_get(store, "pre/in/x", "v");
    assert_int_equal(muster_store_list_keys(pre, D, &keys, NULL), 0);
    assert_int_equal(keys.count, 1);
    assert_string_equal(keys.items[0].data, "in/x");
    muster_values_done(&keys);
    assert_int_equal(muster_store_barrier(in, muster_str("gate"), 1, D, NULL), 0);
    muster_store_free(in);
    muster_store_free(pre);
    muster_store_free(store);
    muster_store_server_stop(server);
}

/* ---- Timeouts ---- */

static void time_out_every_way(struct muster_store *store)
{
    const struct muster_slice never[] = { muster_str("never") };
    struct muster_error error = { 0 };
    struct muster_bytes bytes = { 0 };
    struct muster_values found = { 0 };

    assert_int_equal(muster_store_wait(store, never, 1, 20, &error), MUSTER_ETIMEOUT);
    assert_non_null(strstr(error.text, "wait 'never' at 127.0.0.1:"));
    assert_non_null(strstr(error.text, ": timed out after 20 ms"));
    assert_int_equal(add(store, "n", 1), 1);
    assert_int_equal(muster_store_get(store, never[0], 20, &bytes, &error), MUSTER_ETIMEOUT);
    assert_non_null(strstr(error.text, "get 'never' at 127.0.0.1:"));
    assert_null(bytes.data);
    assert_int_equal(add(store, "n", 1), 2);
    assert_int_equal(muster_store_multi_get(store, never, 1, 0, &found, &error), MUSTER_ETIMEOUT);
    assert_null(found.items);
    assert_int_equal(add(store, "n", 1), 3);
    assert_int_equal(muster_store_barrier(store, muster_str("gate"), 2, 50, &error), MUSTER_ETIMEOUT);
    assert_int_equal(add(store, "n", 1), 4);
}

static void a_wait_in_vain_leaves_the_store_usable(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(dialects); i++) {
        struct muster_store_server *server = serve();
        struct muster_store *store = open_at(muster_store_server_port(server), dialects[i]);
        struct muster_store *other = open_at(muster_store_server_port(server), NULL);

        time_out_every_way(store);
        set(other, "never", "now"); /* what was given up wakes nobody */
        assert_int_equal(add(other, "n", 1), 5);
        assert_get(store, "never", "now");
        assert_int_equal(add(store, "n", 1), 6);
        muster_store_free(other);
        muster_store_free(store);
        muster_store_server_stop(server);
    }
}

static void the_default_timeout_is_the_stores(void **state)
{
    struct muster_store_server *server = serve();
    struct muster_store *store =
        open_store((struct muster_store_tcp_config){ .port = muster_store_server_port(server), .timeout_ms = 30 });
    struct muster_bytes bytes;
    struct muster_error error;

    (void)state;
    assert_int_equal(muster_store_timeout(store), 30);
    assert_int_equal(muster_store_get(store, muster_str("never"), D, &bytes, &error), MUSTER_ETIMEOUT);
    assert_non_null(strstr(error.text, ": timed out after 30 ms"));
    muster_store_set_timeout(store, 40);
    assert_int_equal(muster_store_get(store, muster_str("never"), D, &bytes, &error), MUSTER_ETIMEOUT);
    assert_non_null(strstr(error.text, ": timed out after 40 ms"));
    muster_store_free(store);
    store = open_store((struct muster_store_tcp_config){ .port = muster_store_server_port(server) });
    muster_store_free(store);
    muster_store_server_stop(server);
}

static void endless_timeouts_are_endless(void **state)
{
    struct muster_store_server *server = serve();
    struct muster_store *store = open_store((struct muster_store_tcp_config){ .port = muster_store_server_port(server),
                                                                              .world_size = 1,
                                                                              .connect_timeout_ms = INT64_MAX,
                                                                              .timeout_ms = INT64_MAX });
    int64_t keys;

    (void)state;
    set(store, "k", "v");
    assert_get(store, "k", "v");
    assert_int_equal(muster_store_barrier(store, muster_str("gate"), 1, INT64_MAX, NULL), 0);
    assert_int_equal(muster_store_num_keys(store, INT64_MAX, &keys, NULL), 0);
    muster_store_free(store);
    muster_store_server_stop(server);
}

struct getter {
    struct muster_store *store;
    const char *key;
    int rc;
    struct muster_error error;
    struct muster_bytes bytes;
    pthread_t thread;
};

static void *get_it(void *arg)
{
    struct getter *getter = arg;

    getter->rc = muster_store_get(getter->store, muster_str(getter->key), QUICK_MS, &getter->bytes, &getter->error);
    return NULL;
}

static void start_getter(struct getter *getter)
{
    assert_int_equal(pthread_create(&getter->thread, NULL, get_it, getter), 0);
}

static void a_get_ends_when_another_client_sets_the_key(void **state)
{
    struct muster_store_server *server = serve();

    (void)state;
    for (size_t i = 0; i < COUNT(dialects); i++) {
        struct muster_store *reader = open_at(muster_store_server_port(server), dialects[i]);
        struct muster_store *writer = open_at(muster_store_server_port(server), NULL);
        struct getter getter = { .store = reader, .key = "late" };
        bool deleted;

        start_getter(&getter);
        set(writer, "late", "here");
        assert_int_equal(pthread_join(getter.thread, NULL), 0);
        assert_int_equal(getter.rc, 0);
        assert_string_equal(getter.bytes.data, "here");
        muster_bytes_done(&getter.bytes);
        assert_int_equal(muster_store_delete_key(writer, muster_str("late"), D, &deleted, NULL), 0);
        muster_store_free(reader);
        muster_store_free(writer);
    }
    muster_store_server_stop(server);
}

/* ---- Losing the server ---- */

static void a_lost_server_fails_every_call_with_the_cause(void **state)
{
    struct fake_store fake = { .to_v = FAKE_ANSWERS };
    struct getter getters[4];
    struct muster_store *store;
    struct muster_error error;
    char port[16];
    int64_t number;

    (void)state;
    fake_start(&fake);
    store = open_at(fake.port, NULL);
    for (size_t i = 0; i < COUNT(getters); i++) {
        getters[i] = (struct getter){ .store = store, .key = "never" };
        start_getter(&getters[i]);
    }
    fake_await(&fake, 1 + 8 + 8 + 6); /* one WAIT has arrived; the other calls queue behind it */
    fake_stop(&fake);
    (void)snprintf(port, sizeof port, "%u", (unsigned)fake.port);
    for (size_t i = 0; i < COUNT(getters); i++) {
        assert_int_equal(pthread_join(getters[i].thread, NULL), 0);
        assert_int_equal(getters[i].rc, MUSTER_ELOST);
        assert_non_null(strstr(getters[i].error.text, "get 'never' at 127.0.0.1:"));
        assert_non_null(strstr(getters[i].error.text, port));
    }
    assert_int_equal(muster_store_add(store, muster_str("n"), 1, D, &number, &error), MUSTER_ELOST);
    assert_non_null(strstr(error.text, "add 'n' at 127.0.0.1:"));
    assert_int_equal(muster_store_set(store, muster_str("k"), muster_str("v"), D, NULL), MUSTER_ELOST);
    assert_int_equal(muster_store_ping(store, D, NULL), MUSTER_ELOST);
    muster_store_free(store);
}

static volatile sig_atomic_t sigpipes;

static void on_sigpipe(int signum)
{
    (void)signum;
    sigpipes = sigpipes + 1;
}

static void a_lost_server_raises_no_signal(void **state)
{
    struct sigaction action = { .sa_handler = on_sigpipe }, before;

    (void)state;
    (void)sigaction(SIGPIPE, &action, &before);
    for (int i = 0; i < 5; i++) {
        struct muster_store_server *server = serve();
        struct muster_store *store = open_at(muster_store_server_port(server), NULL);
        int rc = 0;

        muster_store_server_stop(server);
        for (int calls = 0; calls < 1000000 && rc == 0; calls++)
            rc = muster_store_set(store, muster_str("k"), muster_str("v"), D, NULL);
        assert_int_equal(rc, MUSTER_ELOST);
        muster_store_free(store);
    }
    assert_int_equal(sigpipes, 0);
    (void)sigaction(SIGPIPE, &before, NULL);
}

/* A server that falls silent holds nobody longer than asked. */
static void a_silent_server_costs_a_call_its_own_time_only(void **state)
{
    struct fake_store fake = { .to_v = FAKE_ANSWERS, .to_probes = FAKE_IS_SILENT };
    struct muster_store *store;
    struct muster_error error;
    struct muster_bytes bytes;
    int64_t number, start = now_ms();

    (void)state;
    fake_start(&fake);
    store = open_at(fake.port, NULL);
    assert_int_equal(muster_store_add(store, muster_str("n"), 1, 30, &number, &error), MUSTER_ETIMEOUT);
    assert_non_null(strstr(error.text, ": got no answer and timed out after 30 ms"));
    assert_int_equal(muster_store_get(store, muster_str("k"), 30, &bytes, &error), MUSTER_ETIMEOUT);
    assert_int_equal(muster_store_num_keys(store, 30, &number, &error), MUSTER_ETIMEOUT);
    assert_non_null(strstr(error.text, ": had to wait for other calls and timed out after 30 ms"));
    assert_int_equal(muster_store_ping(store, 30, &error), MUSTER_ETIMEOUT);
    assert_true(now_ms() - start < QUICK_MS);
    muster_store_free(store);
    fake_stop(&fake);
}

static void a_server_that_lacks_a_request_is_not_asked_for_it(void **state)
{
    struct fake_store fake = { .to_v = FAKE_ANSWERS, .to_probes = FAKE_CLOSES };
    struct muster_store *store;
    struct muster_values keys;
    int64_t number;

    (void)state;
    fake_start(&fake);
    store = open_at(fake.port, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(muster_store_ping(store, D, NULL), MUSTER_ENOTSUP);
        assert_int_equal(muster_store_list_keys(store, D, &keys, NULL), MUSTER_ENOTSUP);
        assert_int_equal(muster_store_queue_len(store, muster_str("q"), D, &number, NULL), MUSTER_ENOTSUP);
    }
    assert_int_equal(fake_count(&fake, &fake.heard), 0);
    muster_store_free(store);
    fake_stop(&fake);
}

/* A server that is out of descriptors, say: that is no reason to believe that it lacks the request. */
static void a_question_that_is_hung_up_on_is_asked_again_next_time(void **state)
{
    struct fake_store fake = { .to_v = FAKE_ANSWERS, .to_probes = FAKE_HANGS_UP };
    struct muster_store *store;
    struct muster_error error;
    size_t asked = 0;

    (void)state;
    fake_start(&fake);
    store = open_at(fake.port, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(muster_store_ping(store, D, &error), MUSTER_ECONNECT);
        assert_non_null(strstr(error.text, "could not find out whether the server has it"));
        assert_true(fake_count(&fake, &fake.greeted) > asked);
        asked = fake_count(&fake, &fake.greeted);
    }
    muster_store_free(store);
    fake_stop(&fake);
}

/* ---- Connecting ---- */

static void nobody_there_is_told_with_how_often_it_was_tried(void **state)
{
    struct muster_error error = { 0 };
    uint16_t port;
    int fd = fake_listener(&port, -1); /* bound and not listening: nobody else can */
    char text[64];

    (void)state;
    assert_int_equal(
        refuse((struct muster_store_tcp_config){ .host = "127.0.0.1", .port = port, .connect_timeout_ms = 300 },
               &error),
        MUSTER_ECONNECT);
    (void)snprintf(text, sizeof text, "cannot connect to 127.0.0.1:%u (", (unsigned)port);
    assert_non_null(strstr(error.text, text));
    assert_non_null(strstr(error.text, " tries in 0.3 s): connection refused"));
    (void)close(fd);
}

struct opener {
    struct muster_store_tcp_config config;
    struct muster_store *store;
    struct muster_error error;
    int rc;
    pthread_t thread;
};

static void *open_it(void *arg)
{
    struct opener *opener = arg;

    opener->rc = muster_store_tcp_new(&opener->config, &opener->store, &opener->error);
    return NULL;
}

static void start_opener(struct opener *opener, struct muster_store_tcp_config config)
{
    *opener = (struct opener){ .config = config };
    opener->config.size = sizeof config;
    assert_int_equal(pthread_create(&opener->thread, NULL, open_it, opener), 0);
}

static struct muster_store *opened(struct opener *opener)
{
    assert_int_equal(pthread_join(opener->thread, NULL), 0);
    if (opener->rc != 0)
        fail_msg("%s", opener->error.text);
    return opener->store;
}

static void a_server_that_comes_late_is_found(void **state)
{
    struct muster_store_server_config config = { .size = sizeof config, .use_listen_fd = true };
    struct muster_store_server *server = NULL;
    struct opener opener;
    uint16_t port;

    (void)state;
    config.listen_fd = fake_listener(&port, -1);
    start_opener(&opener,
                 (struct muster_store_tcp_config){ .host = "127.0.0.1", .port = port, .connect_timeout_ms = QUICK_MS });
    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    muster_store_free(opened(&opener));
    muster_store_server_stop(server);
}

/* 127.0.0.1 and ::1 with one port: what is bound to each. */
static void bind_both(int *ret_v4, int *ret_v6, uint16_t *ret_port)
{
    struct sockaddr_in6 addr = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };

    for (int tries = 0; tries < 100; tries++) {
        *ret_v4 = fake_listener(ret_port, -1);
        *ret_v6 = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        addr.sin6_port = htons(*ret_port);
        if (bind(*ret_v6, (struct sockaddr *)&addr, sizeof addr) == 0)
            return;
        (void)close(*ret_v4);
        (void)close(*ret_v6);
    }
    fail_msg("no port is free in both families");
}

static struct muster_store_server *serve_fd(int fd)
{
    const struct muster_store_server_config config = { .size = sizeof config, .use_listen_fd = true, .listen_fd = fd };
    struct muster_store_server *server = NULL;

    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    return server;
}

static void the_address_that_works_is_found_among_several(void **state)
{
    struct muster_store_server *server;
    struct muster_store *store;
    int v4, v6;
    uint16_t port;

    (void)state;
    if (!has_ipv6())
        skip();
    for (int family = 0; family < 2; family++) {
        bind_both(&v4, &v6, &port);
        server = serve_fd(family == 0 ? v4 : v6); /* the other one refuses */
        store = open_store((struct muster_store_tcp_config){ .host = "localhost", .port = port });
        assert_int_equal(add(store, "n", 1), 1);
        muster_store_free(store);
        muster_store_server_stop(server);
        (void)close(family == 0 ? v6 : v4);
    }
}

/* A listener whose queue is full answers nothing at all; the other address is tried beside it. */
static void an_address_that_hangs_does_not_hold_up_the_other(void **state)
{
    struct muster_store_server *server;
    struct muster_store *store;
    int fillers[8], v4, v6;
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    uint16_t port;
    int64_t start;

    (void)state;
    if (!has_ipv6())
        skip();
    bind_both(&v4, &v6, &port);
    assert_int_equal(listen(v4, 0), 0);
    addr.sin_port = htons(port);
    for (size_t i = 0; i < COUNT(fillers); i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)!connect(fillers[i], (struct sockaddr *)&addr, sizeof addr);
    }
    server = serve_fd(v6);
    start = now_ms();
    store = open_store((struct muster_store_tcp_config){ .host = "localhost", .port = port });
    assert_true(now_ms() - start < 9000); /* far less than the first one's own limit */
    assert_int_equal(add(store, "n", 1), 1);
    muster_store_free(store);
    muster_store_server_stop(server);
    (void)close(v4);
    for (size_t i = 0; i < COUNT(fillers); i++)
        (void)close(fillers[i]);
}

static void a_name_that_does_not_resolve_is_told_in_time(void **state)
{
    struct muster_error error = { 0 };
    int64_t start = now_ms();

    (void)state;
    assert_int_equal(refuse((struct muster_store_tcp_config){ .host = "no-such-host.invalid",
                                                              .port = 29500,
                                                              .connect_timeout_ms = 500 },
                            &error),
                     MUSTER_ECONNECT);
    assert_true(now_ms() - start < QUICK_MS);
    assert_non_null(strstr(error.text, "cannot connect to no-such-host.invalid:29500 ("));
    assert_non_null(strstr(error.text, "s): cannot resolve the name: "));
}

static void what_is_no_store_is_told_apart(void **state)
{
    static const struct {
        struct fake_store fake;
        const char *dialect;
        int rc;
        const char *says;
    } rows[] = {
        { { .instead = "HTTP/1.1 400 Bad Request\r\n" }, NULL, MUSTER_EPROTOCOL, "is not a store" },
        { { .instead = "\x16\x03\x01" }, NULL, MUSTER_EPROTOCOL, "is not a store" },
        { { .to_v = FAKE_CLOSES, .to_l1 = FAKE_CLOSES, .to_l0 = FAKE_CLOSES },
          NULL,
          MUSTER_ECONNECT,
          "closes the connection in every dialect that was tried" },
        { { .to_v = FAKE_CLOSES }, "2.x", MUSTER_ECONNECT, "closed the connection when greeted" },
        { { .to_v = FAKE_IS_SILENT }, NULL, MUSTER_ECONNECT, "the port is open, but no store answers" },
        { { .to_v = FAKE_CLOSES, .to_l1 = FAKE_IS_SILENT },
          NULL,
          MUSTER_ECONNECT,
          "the port is open, but no store answers" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct fake_store fake = rows[i].fake;
        struct muster_error error = { 0 };
        int64_t start = now_ms();
        int rc;

        fake_start(&fake);
        rc = refuse(
            (struct muster_store_tcp_config){
                .host = "127.0.0.1", .port = fake.port, .dialect = rows[i].dialect, .connect_timeout_ms = 300 },
            &error);
        if (rc != rows[i].rc || strstr(error.text, rows[i].says) == NULL)
            fail_msg("row %zu: %d: %s", i, rc, error.text);
        assert_true(now_ms() - start < QUICK_MS);
        fake_stop(&fake);
    }
}

static void a_config_that_makes_no_sense_is_refused_by_name(void **state)
{
    struct muster_error error = { 0 };
    char host[400];

    (void)state;
    assert_int_equal(refuse((struct muster_store_tcp_config){ .port = 1 }, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "host"));
    assert_int_equal(refuse((struct muster_store_tcp_config){ .host = "", .port = 1 }, &error), MUSTER_EINVAL);
    assert_int_equal(refuse((struct muster_store_tcp_config){ .host = "localhost" }, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "port"));
    assert_int_equal(
        refuse((struct muster_store_tcp_config){ .host = "localhost", .port = 1, .timeout_ms = -1 }, &error),
        MUSTER_EINVAL);
    assert_int_equal(
        refuse((struct muster_store_tcp_config){ .host = "localhost", .port = 1, .connect_timeout_ms = -5 }, &error),
        MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "negative"));
    assert_int_equal(
        refuse((struct muster_store_tcp_config){ .host = "localhost", .port = 1, .dialect = "3.0" }, &error),
        MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'3.0'"));
    memset(host, 'x', sizeof host - 1);
    host[sizeof host - 1] = '\0';
    assert_int_equal(refuse((struct muster_store_tcp_config){ .host = host, .port = 1 }, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "too long"));
}

static void a_config_says_how_long_it_is(void **state)
{
    struct muster_store_server *server = serve();
    struct muster_store_tcp_config config = { .size = offsetof(struct muster_store_tcp_config, is_host),
                                              .host = "127.0.0.1",
                                              .port = muster_store_server_port(server),
                                              .is_host = true, /* from here on it is not looked at */
                                              .connect_timeout_ms = -1,
                                              .dialect = "nonsense" };
    struct muster_store *store = NULL;
    struct muster_error error;

    (void)state;
    assert_int_equal(muster_store_tcp_new(&config, &store, &error), 0);
    assert_int_equal(muster_store_timeout(store), MUSTER_STORE_TIMEOUT_MS);
    assert_int_equal(add(store, "n", 1), 1);
    muster_store_free(store);
    store = NULL;
    config.size = 0;
    assert_int_equal(muster_store_tcp_new(&config, &store, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "size"));
    assert_null(store);
    muster_store_server_stop(server);
}

/* ---- Hosting, and counting who has come ---- */

static void a_hosting_store_brings_its_server(void **state)
{
    struct muster_store *host = open_store((struct muster_store_tcp_config){ .is_host = true });
    struct muster_store *guest = open_at(muster_store_tcp_port(host), NULL);
    uint16_t port = muster_store_tcp_port(host);
    struct muster_error error;
    int rc = 0;

    (void)state;
    set(host, "k", "v");
    assert_get(guest, "k", "v");
    assert_int_equal(refuse((struct muster_store_tcp_config){ .is_host = true, .port = port }, &error),
                     MUSTER_EADDRINUSE);
    muster_store_free(host); /* and its server with it */
    for (int i = 0; i < 1000000 && rc == 0; i++)
        rc = muster_store_set(guest, muster_str("k"), muster_str("v"), D, NULL);
    assert_int_equal(rc, MUSTER_ELOST);
    muster_store_free(guest);
}

static void a_hosting_store_passes_its_server_config_on(void **state)
{
    static const char *const allow[] = { "192.0.2.0/24", NULL };
    struct muster_store_server_config server = { .size = sizeof server, .allow = allow };
    struct muster_error error;
    struct muster_store *store;
    uint16_t port;

    (void)state;
    assert_int_equal(
        refuse((struct muster_store_tcp_config){ .is_host = true, .server = &server, .connect_timeout_ms = 200 },
               &error),
        MUSTER_ECONNECT);
    server.size = 0;
    assert_int_equal(refuse((struct muster_store_tcp_config){ .is_host = true, .server = &server }, &error),
                     MUSTER_EINVAL);
    server = (struct muster_store_server_config){ .size = sizeof server, .use_listen_fd = true };
    server.listen_fd = fake_listener(&port, -1);
    store = open_store((struct muster_store_tcp_config){ .is_host = true, .server = &server });
    assert_int_equal(muster_store_tcp_port(store), port);
    muster_store_free(store);
}

static void hosts_of_one_port_share_their_data(void **state)
{
    struct muster_store *one = open_store((struct muster_store_tcp_config){ .is_host = true, .shared = true });
    struct muster_store *two = open_store(
        (struct muster_store_tcp_config){ .is_host = true, .shared = true, .port = muster_store_tcp_port(one) });

    (void)state;
    set(one, "k", "v");
    assert_get(two, "k", "v");
    muster_store_free(one);
    assert_get(two, "k", "v"); /* the server stays until its last user has gone */
    muster_store_free(two);
}

static void a_host_waits_for_its_world(void **state)
{
    struct muster_store_server_config server = { .size = sizeof server, .use_listen_fd = true };
    struct opener openers[3];
    struct muster_store *stores[3];
    struct muster_store *raw;
    uint16_t port;

    (void)state;
    server.listen_fd = fake_listener(&port, -1);
    start_opener(&openers[0], (struct muster_store_tcp_config){ .is_host = true,
                                                                .server = &server,
                                                                .world_size = 3,
                                                                .wait_for_workers = true,
                                                                .connect_timeout_ms = QUICK_MS });
    for (int i = 1; i < 3; i++)
        start_opener(&openers[i], (struct muster_store_tcp_config){ .host = "127.0.0.1",
                                                                    .port = port,
                                                                    .world_size = 3,
                                                                    .dialect = i == 1 ? "1.13" : NULL,
                                                                    .connect_timeout_ms = QUICK_MS });
    for (int i = 0; i < 3; i++)
        stores[i] = opened(&openers[i]);
    raw = open_store((struct muster_store_tcp_config){ .port = port, .raw_keys = true });
    assert_get(raw, "init/", "3"); /* where PyTorch counts, without a slash in front */
    muster_store_free(raw);
    for (int i = 2; i >= 0; i--)
        muster_store_free(stores[i]);
}

static void a_host_whose_world_does_not_come_says_who_did(void **state)
{
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(refuse(
                         (struct muster_store_tcp_config){
                             .is_host = true, .world_size = 3, .wait_for_workers = true, .connect_timeout_ms = 300 },
                         &error),
                     MUSTER_ETIMEOUT);
    assert_string_equal(error.text, "open a store: timed out after 300 ms: 1 of 3 workers have come");
}

static void who_does_not_wait_does_not_wait(void **state)
{
    struct muster_store *host =
        open_store((struct muster_store_tcp_config){ .is_host = true, .world_size = 3, .wait_for_workers = false });
    struct muster_store *guest = open_store((struct muster_store_tcp_config){
        .port = muster_store_tcp_port(host), .world_size = 3, .wait_for_workers = true });

    (void)state;
    muster_store_free(guest);
    muster_store_free(host);
}

/* ---- Threads ---- */

struct worker {
    struct muster_store *store;
    pthread_t thread;
    unsigned number;
    bool *taken; /* numbers that ADD has given out */
};

static void *work(void *arg)
{
    struct worker *worker = arg;
    char key[32], value[32];
    struct muster_bytes bytes;
    int64_t number;

    (void)snprintf(key, sizeof key, "own/%u", worker->number);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(muster_store_add(worker->store, muster_str("n"), 1, D, &number, NULL), 0);
        assert_false(__atomic_exchange_n(&worker->taken[number], true, __ATOMIC_RELAXED));
        (void)snprintf(value, sizeof value, "%u", i);
        assert_int_equal(muster_store_set(worker->store, muster_str(key), muster_str(value), D, NULL), 0);
        assert_int_equal(muster_store_get(worker->store, muster_str(key), D, &bytes, NULL), 0);
        assert_string_equal(bytes.data, value);
        muster_bytes_done(&bytes);
    }
    return NULL;
}

static void many_threads_may_use_one_store(void **state)
{
    (void)state;
    for (size_t d = 0; d < 3; d++) {
        struct muster_store_server *server = serve();
        struct muster_store *store = open_at(muster_store_server_port(server), dialects[d]);
        static bool taken[THREADS * 50 + 1];
        static struct worker workers[THREADS];

        memset(taken, 0, sizeof taken);
        for (unsigned i = 0; i < THREADS; i++) {
            workers[i] = (struct worker){ .store = store, .number = i, .taken = taken };
            assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++)
            assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(add(store, "n", 0), THREADS * 50);
        muster_store_free(store);
        muster_store_server_stop(server);
    }
}

struct member {
    struct muster_store *store;
    pthread_t thread;
    int rc;
};

static void *meet(void *arg)
{
    struct member *member = arg;

    member->rc = muster_store_barrier(member->store, muster_str("gate"), 4, D, NULL);
    return NULL;
}

/* Both kinds: made of other calls, and the server's own. */
static void barriers_let_nobody_through_before_the_last(void **state)
{
    (void)state;
    for (int native = 0; native < 2; native++) {
        struct muster_store_server *server = serve();
        struct member members[4];
        struct muster_error error;

        for (size_t i = 0; i < COUNT(members); i++)
            members[i].store = open_store(
                (struct muster_store_tcp_config){ .port = muster_store_server_port(server), .native_barrier = native });
        for (size_t i = 1; i < COUNT(members); i++)
            assert_int_equal(pthread_create(&members[i].thread, NULL, meet, &members[i]), 0);
        assert_int_equal(muster_store_barrier(members[0].store, muster_str("gate"), 4, D, &error), 0);
        for (size_t i = 1; i < COUNT(members); i++) {
            assert_int_equal(pthread_join(members[i].thread, NULL), 0);
            assert_int_equal(members[i].rc, 0);
        }
        for (size_t i = 0; i < COUNT(members); i++)
            muster_store_free(members[i].store);
        muster_store_server_stop(server);
    }
}

/* ---- Ends ---- */

static void *add_one(void *arg)
{
    struct getter *getter = arg;
    int64_t number;

    getter->rc = muster_store_add(getter->store, muster_str("n"), 1, QUICK_MS, &number, &getter->error);
    return NULL;
}

static void freeing_a_store_cancels_what_other_threads_have_pending(void **state)
{
    struct fake_store fake = { .to_v = FAKE_ANSWERS };
    struct getter adders[8];
    struct muster_store *store;

    (void)state;
    fake_start(&fake);
    store = open_at(fake.port, NULL);
    for (size_t i = 0; i < COUNT(adders); i++) {
        adders[i] = (struct getter){ .store = store };
        assert_int_equal(pthread_create(&adders[i].thread, NULL, add_one, &adders[i]), 0);
    }
    fake_await(&fake, COUNT(adders) * (1 + 8 + 2 + 8)); /* every ADD has arrived and will never be answered */
    muster_store_free(store);
    for (size_t i = 0; i < COUNT(adders); i++) {
        assert_int_equal(pthread_join(adders[i].thread, NULL), 0);
        assert_int_equal(adders[i].rc, MUSTER_ECANCELED);
        assert_non_null(strstr(adders[i].error.text, ": the store was closed"));
    }
    fake_stop(&fake);
}

static void freeing_a_store_does_not_wait_for_its_waits(void **state)
{
    struct fake_store fake = { .to_v = FAKE_ANSWERS };
    struct getter getter = { .key = "never" };
    int64_t start = now_ms();

    (void)state;
    fake_start(&fake);
    getter.store = open_at(fake.port, NULL);
    start_getter(&getter);
    fake_await(&fake, 1 + 8 + 8 + 6);
    muster_store_free(getter.store);
    assert_int_equal(pthread_join(getter.thread, NULL), 0);
    assert_int_equal(getter.rc, MUSTER_ECANCELED);
    assert_true(now_ms() - start < QUICK_MS);
    fake_stop(&fake);
}

static void stores_come_and_go_and_leave_nothing_behind(void **state)
{
    struct muster_store_server *server = serve();

    (void)state;
    for (int i = 0; i < 40; i++) {
        struct muster_store *store = open_at(muster_store_server_port(server), dialects[i % 4]);

        if (i % 3 == 0)
            set(store, "k", "v");
        muster_store_free(store);
    }
    muster_store_server_stop(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_works_in_every_dialect),
        cmocka_unit_test(keys_may_be_raw),
        cmocka_unit_test(large_values_pass_whole),
        cmocka_unit_test(prefixed_views_work_over_it),
        cmocka_unit_test(a_wait_in_vain_leaves_the_store_usable),
        cmocka_unit_test(the_default_timeout_is_the_stores),
        cmocka_unit_test(endless_timeouts_are_endless),
        cmocka_unit_test(a_get_ends_when_another_client_sets_the_key),
        cmocka_unit_test(a_lost_server_fails_every_call_with_the_cause),
        cmocka_unit_test(a_lost_server_raises_no_signal),
        cmocka_unit_test(a_silent_server_costs_a_call_its_own_time_only),
        cmocka_unit_test(a_server_that_lacks_a_request_is_not_asked_for_it),
        cmocka_unit_test(a_question_that_is_hung_up_on_is_asked_again_next_time),
        cmocka_unit_test(nobody_there_is_told_with_how_often_it_was_tried),
        cmocka_unit_test(a_server_that_comes_late_is_found),
        cmocka_unit_test(the_address_that_works_is_found_among_several),
        cmocka_unit_test(an_address_that_hangs_does_not_hold_up_the_other),
        cmocka_unit_test(a_name_that_does_not_resolve_is_told_in_time),
        cmocka_unit_test(what_is_no_store_is_told_apart),
        cmocka_unit_test(a_config_that_makes_no_sense_is_refused_by_name),
        cmocka_unit_test(a_config_says_how_long_it_is),
        cmocka_unit_test(a_hosting_store_brings_its_server),
        cmocka_unit_test(a_hosting_store_passes_its_server_config_on),
        cmocka_unit_test(hosts_of_one_port_share_their_data),
        cmocka_unit_test(a_host_waits_for_its_world),
        cmocka_unit_test(a_host_whose_world_does_not_come_says_who_did),
        cmocka_unit_test(who_does_not_wait_does_not_wait),
        cmocka_unit_test(many_threads_may_use_one_store),
        cmocka_unit_test(barriers_let_nobody_through_before_the_last),
        cmocka_unit_test(freeing_a_store_cancels_what_other_threads_have_pending),
        cmocka_unit_test(freeing_a_store_does_not_wait_for_its_waits),
        cmocka_unit_test(stores_come_and_go_and_leave_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
