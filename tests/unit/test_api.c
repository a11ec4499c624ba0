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

/* ---- Rendezvous: parameters ---- */

static void every_call_of_parameters_is_there(void **state)
{
    struct muster_rdzv_params *params = NULL, *copy = NULL;
    struct muster_error error = { 0 };
    struct muster_value value;
    int64_t number = 0;
    bool truth = false;

    (void)state;
    assert_int_equal(muster_rdzv_params_new("c10d", "node0:29400", "job", 1, 4, "10.0.0.7", &params, &error), 0);
    assert_int_equal(muster_rdzv_params_set_text(params, "text", "yes", &error), 0);
    assert_int_equal(muster_rdzv_params_set_int(params, "int", 7, &error), 0);
    assert_int_equal(muster_rdzv_params_set_bool(params, "bool", true, &error), 0);
    assert_int_equal(muster_rdzv_params_set_float(params, "float", 7.9, &error), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, "join_timeout=60,is_host=0", &error), 0);
    assert_int_equal(muster_rdzv_params_copy(params, &copy, &error), 0);
    muster_rdzv_params_free(params);
    assert_string_equal(muster_rdzv_params_backend(copy), "c10d");
    assert_string_equal(muster_rdzv_params_endpoint(copy), "node0:29400");
    assert_string_equal(muster_rdzv_params_run_id(copy), "job");
    assert_string_equal(muster_rdzv_params_local_addr(copy), "10.0.0.7");
    assert_int_equal(muster_rdzv_params_min_nodes(copy), 1);
    assert_int_equal(muster_rdzv_params_max_nodes(copy), 4);
    assert_true(muster_rdzv_params_get(copy, "int", &value));
    assert_int_equal(value.kind, MUSTER_VALUE_INT);
    assert_int_equal(muster_rdzv_params_get_as_int(copy, "float", 0, &number, &error), 0);
    assert_int_equal(number, 7);
    assert_int_equal(muster_rdzv_params_get_as_int(copy, "join_timeout", 600, &number, &error), 0);
    assert_int_equal(number, 60);
    assert_int_equal(muster_rdzv_params_get_as_bool(copy, "text", false, &truth, &error), 0);
    assert_true(truth);
    assert_int_equal(muster_rdzv_params_get_as_bool(copy, "float", false, &truth, &error), MUSTER_EINVAL);
    muster_rdzv_params_free(copy);
}

/* ---- Rendezvous: a whole handler of a user's own ---- */

struct lone { /* it is always alone */
    struct muster_rdzv base;
    struct muster_store *store;
    char run_id[32];
    int64_t round;
    bool closed;
};

static const char *lone_backend(const struct muster_rdzv *rdzv)
{
    (void)rdzv;
    return "lone";
}

static const char *lone_run_id(const struct muster_rdzv *rdzv)
{
    return ((const struct lone *)rdzv)->run_id;
}

static bool lone_use_agent_store(const struct muster_rdzv *rdzv)
{
    (void)rdzv;
    return true;
}

static int lone_next(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info, struct muster_error *reterr)
{
    struct lone *lone = (struct lone *)rdzv;
    struct muster_rdzv_info info = { .store = lone->store, .world_size = 1, .round = lone->round };
    int rc;

    if (lone->closed) {
        reterr->code = MUSTER_ERDZV_CLOSED;
        (void)snprintf(reterr->text, sizeof reterr->text, "lone: closed");
        return MUSTER_ERDZV_CLOSED;
    }
    rc = muster_store_info_build(info.rank, lone->store, "127.0.0.1", 0, &info.bootstrap, reterr);
    if (rc < 0)
        return rc;
    lone->round++;
    *ret_info = info;
    return 0;
}

static int lone_is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    (void)reterr;
    *ret_closed = ((struct lone *)rdzv)->closed;
    return 0;
}

static int lone_set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr)
{
    (void)reterr;
    ((struct lone *)rdzv)->closed = true;
    return 0;
}

static int lone_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr)
{
    (void)rdzv;
    (void)reterr;
    *ret_count = 0;
    return 0;
}

static int lone_shutdown(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    *ret_closed = true;
    return lone_set_closed(rdzv, reterr);
}

static void lone_free(struct muster_rdzv *rdzv)
{
    free(rdzv);
}

static int lone_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                       struct muster_error *reterr)
{
    static const struct muster_rdzv_ops ops = {
        .size = sizeof ops,
        .get_backend = lone_backend,
        .get_run_id = lone_run_id,
        .use_agent_store = lone_use_agent_store,
        .next_rendezvous = lone_next,
        .is_closed = lone_is_closed,
        .set_closed = lone_set_closed,
        .num_nodes_waiting = lone_waiting,
        .shutdown = lone_shutdown,
        .free = lone_free,
    };
    struct lone *lone;

    if (muster_rdzv_params_min_nodes(params) > 1) {
        reterr->code = MUSTER_EINVAL;
        (void)snprintf(reterr->text, sizeof reterr->text, "lone: there is one node only");
        return MUSTER_EINVAL;
    }
    lone = calloc(1, sizeof *lone);
    assert_non_null(lone);
    lone->base.ops = &ops;
    lone->store = ctx;
    (void)snprintf(lone->run_id, sizeof lone->run_id, "%s", muster_rdzv_params_run_id(params));
    *ret_rdzv = &lone->base;
    return 0;
}

static void users_may_register_whole_handlers_of_their_own(void **state)
{
    struct muster_store_tcp_config config = { .size = sizeof config, .is_host = true };
    struct muster_rdzv_registry *registry = NULL;
    struct muster_rdzv_params *params = NULL;
    struct muster_rdzv_info info;
    struct muster_rdzv *rdzv = NULL;
    struct muster_store *store = NULL;
    struct muster_error error = { 0 };
    struct muster_bytes bytes;
    int64_t count = -1;
    bool flag = false;

    (void)state;
    assert_int_equal(muster_store_tcp_new(&config, &store, &error), 0);
    assert_int_equal(muster_rdzv_registry_new(&registry, &error), 0);
    assert_int_equal(muster_rdzv_registry_register(registry, "lone", lone_create, store, &error), 0);
    assert_int_equal(muster_rdzv_params_new("lone", "", "job", 1, 1, NULL, &params, &error), 0);
    assert_int_equal(muster_rdzv_registry_create(registry, params, &rdzv, &error), 0);
    assert_string_equal(muster_rdzv_get_backend(rdzv), "lone");
    assert_string_equal(muster_rdzv_get_run_id(rdzv), "job");
    assert_true(muster_rdzv_use_agent_store(rdzv));
    assert_int_equal(muster_rdzv_next_rendezvous(rdzv, &info, &error), 0);
    assert_string_equal(info.bootstrap.master_addr, "127.0.0.1");
    assert_true(info.bootstrap.master_port > 0);
    assert_int_equal(
        muster_store_get(info.store, muster_str(MUSTER_KEY_MASTER_ADDR), MUSTER_TIMEOUT_DEFAULT, &bytes, &error), 0);
    assert_string_equal(bytes.data, "127.0.0.1");
    muster_bytes_done(&bytes);
    assert_int_equal(muster_store_check(info.store, &(struct muster_slice){ MUSTER_KEY_MASTER_PORT, 11 }, 1,
                                        MUSTER_TIMEOUT_DEFAULT, &flag, &error),
                     0);
    assert_true(flag);
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &count, &error), 0);
    assert_int_equal(count, 0);
    assert_int_equal(muster_rdzv_is_closed(rdzv, &flag, &error), 0);
    assert_false(flag);
    assert_int_equal(muster_rdzv_set_closed(rdzv, &error), 0);
    assert_int_equal(muster_rdzv_next_rendezvous(rdzv, &info, &error), MUSTER_ERDZV_CLOSED);
    assert_int_equal(muster_rdzv_shutdown(rdzv, &flag, &error), 0);
    assert_true(flag);
    muster_rdzv_free(rdzv);
    muster_rdzv_params_free(params);
    muster_rdzv_registry_free(registry);
    muster_store_free(store);
}

static void the_default_registry_can_be_extended(void **state)
{
    struct muster_rdzv_registry *registry = muster_rdzv_registry_default();
    struct muster_rdzv_params *params = NULL;
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_rdzv_registry_register(registry, "lone", lone_create, NULL, &error), 0);
    assert_int_equal(muster_rdzv_registry_register(registry, "lone", lone_create, NULL, &error), 0);
    assert_int_equal(muster_rdzv_registry_register(registry, "c10d", lone_create, NULL, &error), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_registry_register(registry, "static", muster_rdzv_static_create, NULL, &error), 0);
    assert_int_equal(muster_rdzv_registry_load(registry, "/nonexistent", &error), MUSTER_ESYSTEM);
    assert_int_equal(muster_rdzv_params_new("lone", NULL, "job", 1, 1, NULL, &params, &error), 0);
    assert_int_equal(muster_rdzv_registry_create(registry, params, &rdzv, &error), 0);
    muster_rdzv_free(rdzv);
    muster_rdzv_params_free(params);
}

/* ---- Rendezvous: what refuses bad arguments before it needs anybody ---- */

static int no_state(struct muster_rdzv_backend *backend, bool *ret_found, struct muster_bytes *ret_state,
                    struct muster_bytes *ret_token, struct muster_error *reterr)
{
    (void)backend;
    (void)ret_state;
    (void)ret_token;
    (void)reterr;
    *ret_found = false;
    return 0;
}

static void rendezvous_of_this_library_check_their_arguments(void **state)
{
    static const struct muster_rdzv_backend_ops ops = { .size = sizeof ops, .name = "own", .get_state = no_state };
    struct muster_rdzv_settings settings = { .size = sizeof settings,
                                             .run_id = "job",
                                             .min_nodes = 2,
                                             .max_nodes = 1,
                                             .timeout = { .size = sizeof settings.timeout, .join_ms = 1000 } };
    struct muster_rdzv_backend backend = { &ops };
    struct muster_rdzv_params *params = NULL;
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_rdzv_dynamic_from_backend(&settings, NULL, &backend, NULL, &rdzv, &error), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_params_new("own", "", "job", 1, 1, NULL, &params, &error), 0);
    assert_int_equal(muster_rdzv_params_set_int(params, "join_timeout", 0, &error), 0);
    assert_int_equal(muster_rdzv_dynamic_create(NULL, &backend, params, &rdzv, &error), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_static_create(NULL, params, &rdzv, &error), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_static_new("127.0.0.1", 1, 5, 2, "job", 1000, &rdzv, &error), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_params_set_int(params, "timeout", 0, &error), 0);
    assert_int_equal(muster_rdzv_etcd_create(NULL, params, &rdzv, &error), MUSTER_EINVAL);
    muster_rdzv_params_free(params);
    assert_null(rdzv);
}

static void etcd_is_reached_by_public_names(void **state)
{
    const struct muster_etcd_config none = { .size = 0 }, nowhere = { .size = sizeof nowhere };
    struct muster_rdzv_params *params = NULL;
    struct muster_rdzv *rdzv = NULL;
    struct muster_store *store = NULL;
    struct muster_bytes value;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_store_etcd_new(&none, "/dir", 0, &store, &error), MUSTER_EINVAL);
    assert_int_equal(muster_store_etcd_new(&nowhere, "/dir", 0, &store, &error), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_etcd_new(&nowhere, NULL, "job", 1, 1, 0, 0, &rdzv, &error), MUSTER_EINVAL);
    assert_null(rdzv);
    assert_int_equal(muster_rdzv_params_from_url("etcd://h:1/job?min_workers=1&max_workers=3", &params, &error), 0);
    assert_int_equal(muster_rdzv_params_max_nodes(params), 3);
    muster_rdzv_params_free(params);
    assert_int_equal(muster_rdzv_static_new("127.0.0.1", 1, 0, 1, "job", 1000, &rdzv, &error), 0);
    assert_int_equal(muster_rdzv_etcd_store_extra_data(rdzv, 1, "k", "v", 100, &error), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_etcd_load_extra_data(rdzv, 1, "k", 100, &value, &error), MUSTER_EINVAL);
    muster_rdzv_free(rdzv);
}

static void every_event_has_a_name(void **state)
{
    static const enum muster_rdzv_event_type types[] = {
#define X(name, text) MUSTER_RDZV_##name,
        MUSTER_RDZV_EVENTS(X)
#undef X
    };

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        assert_string_not_equal(muster_rdzv_event_name(types[i]), "unknown");
}

/* ---- Events for the record ---- */

static void keep_record(void *ctx, const struct muster_event_record *record)
{
    (void)snprintf(ctx, 128, "%s %s %s", record->run_id, muster_node_state_name(record->node_state), record->error);
}

static void events_go_to_the_sink(void **state)
{
    struct muster_rdzv_params *params = NULL;
    struct muster_rdzv *rdzv = NULL;
    char line[128] = "";

    (void)state;
    assert_int_equal(muster_rdzv_registry_register(muster_rdzv_registry_default(), "lone", lone_create, NULL, NULL), 0);
    assert_int_equal(muster_rdzv_params_new("lone", NULL, "job", 2, 2, NULL, &params, NULL), 0);
    muster_events_set_sink(keep_record, line);
    assert_int_equal(muster_rdzv_registry_create(muster_rdzv_registry_default(), params, &rdzv, NULL), MUSTER_EINVAL);
    muster_events_set_sink(NULL, NULL);
    assert_string_equal(line, "job FAILED lone: there is one node only");
    muster_rdzv_params_free(params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_version_is_told),
        cmocka_unit_test(every_error_has_a_name_and_a_text),
        cmocka_unit_test(log_lines_go_to_the_sink),
        cmocka_unit_test(every_call_of_a_store_is_there),
        cmocka_unit_test(users_may_bring_stores_of_their_own),
        cmocka_unit_test(every_call_of_parameters_is_there),
        cmocka_unit_test(users_may_register_whole_handlers_of_their_own),
        cmocka_unit_test(the_default_registry_can_be_extended),
        cmocka_unit_test(rendezvous_of_this_library_check_their_arguments),
        cmocka_unit_test(etcd_is_reached_by_public_names),
        cmocka_unit_test(every_event_has_a_name),
        cmocka_unit_test(events_go_to_the_sink),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
