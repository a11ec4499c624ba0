/* The library as others get it: the installed header, the shared object, and every public name used once. */
#include <muster.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void the_version_is_told(void **state)
{
    (void)state;
    assert_true(muster_version()[0] != '\0');
}

static void every_error_has_a_name_and_a_text(void **state)
{
    static const struct {
        int code;
        const char *name, *text;
    } rows[] = {
#define X(name, number, text) { MUSTER_##name, #name, text },
        MUSTER_ERRORS(X)
#undef X
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(rows[i].code < 0);
        assert_string_equal(muster_error_name(rows[i].code), rows[i].name);
        assert_string_equal(muster_error_text(rows[i].code), rows[i].text);
        assert_int_equal(muster_error_is_rdzv(rows[i].code), strncmp(rows[i].name, "ERDZV", 5) == 0);
    }
    assert_int_equal(MUSTER_ESIGNAL, -15);
}

static char last_line[1024];
static enum muster_log_level last_level;

static void keep_line(void *ctx, enum muster_log_level level, const char *line)
{
    (void)ctx;
    last_level = level;
    (void)snprintf(last_line, sizeof last_line, "%s", line);
}

/* A refused client is something that the library has to say. */
static void log_lines_go_to_the_sink(void **state)
{
    static const char *const allow[] = { "192.0.2.0/24", NULL };
    struct muster_store_server_config config = { .size = sizeof config, .allow = allow };
    struct muster_store_tcp_config client = { .size = sizeof client, .host = "127.0.0.1", .connect_timeout_ms = 300 };
    struct muster_store_server *server = NULL;
    struct muster_store *store = NULL;

    (void)state;
    muster_log_set_sink(keep_line, NULL);
    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    client.port = muster_store_server_port(server);
    assert_int_equal(muster_store_tcp_new(&client, &store, NULL), MUSTER_ECONNECT);
    muster_store_server_stop(server);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(last_level, MUSTER_LOG_WARNING);
    assert_non_null(strstr(last_line, "127.0.0.1"));
    assert_string_equal(muster_log_level_name(MUSTER_LOG_DEBUG), "debug");
    assert_string_equal(muster_log_level_name(MUSTER_LOG_INFO), "info");
    assert_string_equal(muster_log_level_name(MUSTER_LOG_WARNING), "warning");
    assert_string_equal(muster_log_level_name(MUSTER_LOG_ERROR), "error");
}

static void every_call_of_a_store_is_there(void **state)
{
    struct muster_store_server_config server_config = { .size = sizeof server_config,
                                                        .limits = { .key_bytes = 100, .value_bytes = 1000 } };
    struct muster_store_tcp_config config = { .size = sizeof config, .host = "localhost" };
    const struct muster_slice keys[] = { muster_str("a"), muster_str("b") };
    struct muster_store_server *server = NULL;
    struct muster_store *store = NULL, *view = NULL;
    struct muster_error error = { 0 };
    struct muster_bytes bytes;
    struct muster_values values;
    int64_t number;
    bool flag;

    (void)state;
    assert_int_equal(muster_store_server_start(&server_config, &server, &error), 0);
    assert_non_null(strchr(muster_store_server_address(server), ':'));
    config.port = muster_store_server_port(server);
    assert_int_equal(muster_store_tcp_new(&config, &store, &error), 0);
    assert_int_equal(muster_store_tcp_port(store), config.port);
    assert_int_equal(muster_store_timeout(store), MUSTER_STORE_TIMEOUT_MS);
    muster_store_set_timeout(store, 20000);
    assert_int_equal(muster_store_prefix_new(muster_str("pre"), store, &view, &error), 0);
    assert_int_equal(muster_store_set(view, keys[0], muster_str("1"), MUSTER_TIMEOUT_DEFAULT, &error), 0);
    assert_int_equal(muster_store_get(view, keys[0], MUSTER_TIMEOUT_DEFAULT, &bytes, &error), 0);
    assert_string_equal(bytes.data, "1");
    muster_bytes_done(&bytes);
    assert_int_equal(muster_store_add(view, keys[1], 2, MUSTER_TIMEOUT_DEFAULT, &number, &error), 0);
    assert_int_equal(number, 2);
    assert_int_equal(
        muster_store_compare_set(view, keys[0], muster_str("1"), muster_str("2"), MUSTER_TIMEOUT_DEFAULT, &bytes, NULL),
        0);
    muster_bytes_done(&bytes);
    assert_int_equal(muster_store_check(view, keys, 2, MUSTER_TIMEOUT_DEFAULT, &flag, &error), 0);
    assert_true(flag);
    assert_int_equal(muster_store_wait(view, keys, 2, MUSTER_TIMEOUT_DEFAULT, &error), 0);
    assert_int_equal(muster_store_num_keys(view, MUSTER_TIMEOUT_DEFAULT, &number, &error), 0);
    assert_int_equal(number, 2);
    assert_int_equal(muster_store_append(view, keys[0], muster_str("3"), MUSTER_TIMEOUT_DEFAULT, &error), 0);
    assert_int_equal(muster_store_multi_set(view, keys, keys, 2, MUSTER_TIMEOUT_DEFAULT, &error), 0);
    assert_int_equal(muster_store_multi_get(view, keys, 2, MUSTER_TIMEOUT_DEFAULT, &values, &error), 0);
    assert_int_equal(values.count, 2);
    muster_values_done(&values);
    assert_int_equal(muster_store_queue_push(view, keys[0], muster_str("x"), MUSTER_TIMEOUT_DEFAULT, &error), 0);
    assert_int_equal(muster_store_queue_len(view, keys[0], MUSTER_TIMEOUT_DEFAULT, &number, &error), 0);
    assert_int_equal(number, 1);
    assert_int_equal(muster_store_queue_pop(view, keys[0], true, MUSTER_TIMEOUT_DEFAULT, &bytes, &error), 0);
    muster_bytes_done(&bytes);
    assert_int_equal(muster_store_list_keys(view, MUSTER_TIMEOUT_DEFAULT, &values, &error), 0);
    assert_int_equal(values.count, 2);
    muster_values_done(&values);
    assert_int_equal(muster_store_barrier(view, muster_str("gate"), 1, MUSTER_TIMEOUT_DEFAULT, &error), 0);
    assert_int_equal(muster_store_ping(view, MUSTER_TIMEOUT_DEFAULT, &error), 0);
    assert_int_equal(muster_store_delete_key(view, keys[0], MUSTER_TIMEOUT_DEFAULT, &flag, &error), 0);
    assert_true(flag);
    muster_store_free(view);
    muster_store_free(store);
    muster_store_server_stop(server);
}

/* ---- A store of a user's own ---- */

struct one_value {
    struct muster_store base;
    char value[32];
    bool freed;
};

static int one_set(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                   struct muster_error *reterr)
{
    struct one_value *one = (struct one_value *)store;

    (void)key;
    (void)timeout_ms;
    (void)reterr;
    (void)snprintf(one->value, sizeof one->value, "%.*s", (int)value.len, (const char *)value.data);
    return 0;
}

static int one_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                   struct muster_bytes *ret_value, struct muster_error *reterr)
{
    struct one_value *one = (struct one_value *)store;

    (void)key;
    (void)timeout_ms;
    (void)reterr;
    ret_value->data = strdup(one->value);
    ret_value->len = strlen(one->value);
    return 0;
}

static void one_free(struct muster_store *store)
{
    ((struct one_value *)store)->freed = true;
}

static void users_may_bring_stores_of_their_own(void **state)
{
    static const struct muster_store_ops ops = {
        .size = sizeof ops, .name = "one", .set = one_set, .get = one_get, .free = one_free
    };
    struct one_value one = { .base = { &ops, 1000 } };
    struct muster_store *view = NULL;
    struct muster_error error = { 0 };
    struct muster_bytes bytes;
    struct muster_values values;
    const struct muster_slice keys[] = { muster_str("a"), muster_str("b") };
    int64_t number;

    (void)state;
    assert_int_equal(muster_store_prefix_new(muster_str("pre"), &one.base, &view, NULL), 0);
    assert_int_equal(muster_store_set(view, muster_str("k"), muster_str("v"), MUSTER_TIMEOUT_DEFAULT, NULL), 0);
    assert_int_equal(muster_store_get(view, muster_str("k"), MUSTER_TIMEOUT_DEFAULT, &bytes, NULL), 0);
    assert_string_equal(bytes.data, "v");
    muster_bytes_done(&bytes);
    assert_int_equal(muster_store_multi_get(view, keys, 2, MUSTER_TIMEOUT_DEFAULT, &values, NULL), 0);
    muster_values_done(&values);
    assert_int_equal(muster_store_add(view, muster_str("k"), 1, MUSTER_TIMEOUT_DEFAULT, &number, &error),
                     MUSTER_ENOTSUP);
    assert_int_equal(error.code, MUSTER_ENOTSUP);
    assert_int_equal(muster_store_tcp_port(&one.base), 0);
    muster_store_free(view);
    assert_false(one.freed);
    muster_store_free(&one.base);
    assert_true(one.freed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_version_is_told),
        cmocka_unit_test(every_error_has_a_name_and_a_text),
        cmocka_unit_test(log_lines_go_to_the_sink),
        cmocka_unit_test(every_call_of_a_store_is_there),
        cmocka_unit_test(users_may_bring_stores_of_their_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
