/* The classic etcd rendezvous and the etcd store where there is no etcd: what is refused, what fails in time, and that
 * nothing is left behind. With a real etcd they are tested in tests/interop. */
#include "handler/handler.h"
#include "http_scene.h"
#include "kv/blocking_etcd_store_uv.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <unistd.h>

#define D MUSTER_TIMEOUT_DEFAULT

struct scene {
    int fd; /* bound, so that nobody is given the port by chance; nobody listens there */
    char endpoint[32];
};

static int setup(void **state)
{
    static struct scene scene;
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr = { .s_addr = htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof addr;

    scene.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (scene.fd < 0 || bind(scene.fd, (struct sockaddr *)&addr, sizeof addr) < 0 ||
        getsockname(scene.fd, (struct sockaddr *)&addr, &len) < 0)
        return -1;
    (void)snprintf(scene.endpoint, sizeof scene.endpoint, "127.0.0.1:%u", ntohs(addr.sin_port));
    *state = &scene;
    return 0;
}

static int teardown(void **state)
{
    return close(((struct scene *)*state)->fd);
}

static struct muster_rdzv_params *params_of(const char *endpoint, const char *options)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new("etcd", endpoint, "job", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    return params;
}

/* Skips where libcurl is absent. */
static struct muster_store *store_at(const struct scene *scene)
{
    const struct muster_etcd_config etcd = { .size = sizeof etcd, .endpoints = scene->endpoint };
    struct muster_store *store = NULL;
    struct muster_error error;
    int rc = muster_store_etcd_new(&etcd, "dir//", 0, &store, &error);

    if (rc == MUSTER_ENOTSUP)
        skip();
    assert_int_equal(rc, 0);
    return store;
}

/* ---- The store ---- */

static void an_etcd_store_has_no_delete_count_and_compare(void **state)
{
    struct muster_store *store = store_at(*state);
    struct muster_bytes bytes;
    struct muster_error error;
    int64_t count;
    bool deleted;

    assert_int_equal(muster_store_delete_key(store, muster_str("k"), D, &deleted, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_num_keys(store, D, &count, &error), MUSTER_ENOTSUP);
    assert_int_equal(
        muster_store_compare_set(store, muster_str("k"), muster_str(""), muster_str("v"), D, &bytes, &error),
        MUSTER_ENOTSUP);
    assert_int_equal(muster_store_timeout(store), MUSTER_STORE_TIMEOUT_MS);
    muster_store_free(store);
}

static void without_a_server_calls_fail_when_their_time_is_up(void **state)
{
    struct muster_store *store = store_at(*state);
    struct muster_slice keys[] = { muster_str("a"), muster_str("b") };
    struct muster_bytes bytes;
    struct muster_error error;
    int64_t sum;
    bool found;

    assert_true(muster_store_set(store, keys[0], muster_str("v"), 100, &error) < 0);
    assert_non_null(strstr(error.text, "set 'a'"));
    assert_non_null(strstr(error.text, ((struct scene *)*state)->endpoint));
    assert_true(muster_store_get(store, keys[0], 100, &bytes, &error) < 0);
    assert_true(muster_store_add(store, keys[0], 1, 100, &sum, &error) < 0);
    assert_true(muster_store_check(store, keys, 2, 100, &found, &error) < 0);
    assert_true(muster_store_wait(store, keys, 2, 100, &error) < 0);
    muster_store_free(store);
}

static void an_empty_key_is_refused(void **state)
{
    struct muster_store *store = store_at(*state);
    struct muster_error error;

    assert_int_equal(muster_store_set(store, muster_str(""), muster_str("v"), 1000, &error), MUSTER_EINVAL);
    muster_store_free(store);
}

static void a_store_of_a_bad_place_is_an_error(void **state)
{
    struct muster_etcd_config etcd = { .size = sizeof etcd, .endpoints = "host:99999" };
    struct muster_store *store = NULL;
    struct muster_error error;

    muster_store_free(store_at(*state)); /* or skip */
    assert_int_equal(muster_store_etcd_new(&etcd, "dir", 0, &store, &error), MUSTER_EINVAL);
    etcd.endpoints = "host";
    assert_int_equal(muster_store_etcd_new(&etcd, "dir", -5, &store, &error), MUSTER_EINVAL);
    assert_null(store);
}

/* ---- The handler ---- */

static void bad_parameters_make_no_handler(void **state)
{
    static const char *const options[] = { "protocol=gopher", "timeout=never", "last_call_timeout=-2" };

    (void)state;
    for (size_t i = 0; i < COUNT(options); i++) {
        struct muster_rdzv_params *params = params_of("localhost", options[i]);
        struct muster_rdzv *rdzv = NULL;
        struct muster_error error;

        assert_int_equal(muster_rdzv_registry_create(muster_rdzv_registry_default(), params, &rdzv, &error),
                         MUSTER_EINVAL);
        assert_null(rdzv);
        assert_non_null(strstr(error.text, "make an etcd rendezvous"));
        muster_rdzv_params_free(params);
    }
}

static struct muster_rdzv *handler_at(const struct scene *scene, const char *options)
{
    struct muster_rdzv_params *params = params_of(scene->endpoint, options);
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error;
    int rc = muster_rdzv_registry_create(muster_rdzv_registry_default(), params, &rdzv, &error);

    muster_rdzv_params_free(params);
    if (rc == MUSTER_ENOTSUP)
        skip();
    assert_int_equal(rc, 0);
    return rdzv;
}

static void a_handler_without_a_server_can_be_asked_and_freed(void **state)
{
    struct muster_rdzv *rdzv = handler_at(*state, "timeout=1,close_timeout=1");
    struct muster_rdzv_info info;
    struct muster_error error;
    bool closed = true;

    assert_string_equal(muster_rdzv_get_backend(rdzv), "etcd");
    assert_string_equal(muster_rdzv_get_run_id(rdzv), "job");
    assert_false(muster_rdzv_use_agent_store(rdzv));
    assert_int_equal(muster_rdzv_next_rendezvous(rdzv, &info, &error), MUSTER_ERDZV_TIMEOUT);
    assert_non_null(strstr(error.text, "join rendezvous 'job'"));
    assert_non_null(strstr(error.text, ((struct scene *)*state)->endpoint));

    assert_int_equal(muster_rdzv_set_closed(rdzv, &error), MUSTER_ERDZV_CONNECTION);
    assert_int_equal(muster_rdzv_shutdown(rdzv, &closed, &error), 0);
    assert_false(closed);
    muster_rdzv_free(rdzv);
}

static void extra_data_is_for_handlers_of_this_kind(void **state)
{
    struct muster_rdzv *rdzv = handler_at(*state, "timeout=1"), *other = NULL;
    struct muster_bytes value;
    struct muster_error error;

    assert_true(muster_rdzv_etcd_load_extra_data(rdzv, 1, "k", 100, &value, &error) < 0);
    assert_non_null(strstr(error.text, "load extra data 'k'"));
    assert_int_equal(muster_rdzv_static_new("127.0.0.1", 1, 0, 1, "job", 1000, &other, &error), 0);
    assert_int_equal(muster_rdzv_etcd_store_extra_data(other, 1, "k", "v", 100, &error), MUSTER_EINVAL);
    muster_rdzv_free(other);
    muster_rdzv_free(rdzv);
}

static void a_url_is_an_endpoint_too(void **state)
{
    const struct scene *scene = *state;
    struct muster_rdzv_params *params = NULL;
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error;
    char url[128];
    int rc;

    (void)snprintf(url, sizeof url, "etcd://%s/from-url?min_workers=1&max_workers=2", scene->endpoint);
    assert_int_equal(muster_rdzv_params_new("etcd", url, "", 1, 1, NULL, &params, &error), 0);
    rc = muster_rdzv_etcd_create(NULL, params, &rdzv, &error);
    muster_rdzv_params_free(params);
    if (rc == MUSTER_ENOTSUP)
        skip();
    assert_int_equal(rc, 0);
    assert_string_equal(muster_rdzv_get_run_id(rdzv), "from-url");
    muster_rdzv_free(rdzv);
}

/* ---- The handler, on a loop ---- */

struct heard {
    unsigned downs, failed, left, freed;
    int code;
};

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct heard *heard = ctx;

    heard->downs += event->type == MUSTER_RDZV_BACKEND_DOWN;
    heard->failed += event->type == MUSTER_RDZV_FAILED;
    heard->left += event->type == MUSTER_RDZV_LEFT;
    if (event->error != NULL)
        heard->code = event->error->code;
}

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    (void)ctx;
}

static void on_freed(void *ctx)
{
    ((struct heard *)ctx)->freed++;
}

static void leaving_while_joining_is_answered_and_freeing_ends_everything(void **state)
{
    const struct scene *scene = *state;
    struct muster_rdzv_params *params = params_of(scene->endpoint, "timeout=60");
    struct muster_handler *handler = NULL;
    struct muster_error error;
    struct heard heard = { 0 };
    struct mu_kv *kv = NULL;
    int rc;

    assert_int_equal(uv_loop_init(&loop), 0);
    rc = mu_handler_start_by_name(muster_rdzv_registry_default(), &loop, params, &MU_DRIVING_DEFAULT, on_event, &heard,
                                  &handler, &error);
    muster_rdzv_params_free(params);
    if (rc == MUSTER_ENOTSUP)
        skip();
    assert_int_equal(rc, 0);
    assert_int_equal(mu_handler_ops(handler)->open_kv(handler, &kv, &error), 0);
    kv->ops->close(kv, on_kv_closed, NULL);
    handler->ops->join(handler);
    while (heard.downs == 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    handler->ops->leave(handler);
    while (heard.left == 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(heard.failed, 0);
    handler->ops->join(handler);
    handler->ops->look(handler);
    handler->ops->free(handler, on_freed, &heard);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(heard.freed, 1);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* ---- The job's root ---- */

static unsigned renewals;

/* Directories can be made; renewing one fails, so that it is tried again soon; nothing else is answered. */
static const char *as_etcd_that_renews_nothing(struct server *server, struct peer *peer)
{
    (void)server;
    if (strstr(peer->text, "refresh=true") != NULL) {
        assert_non_null(strstr(peer->text, "PUT /v2/keys/torchelastic/p2p/run_job"));
        renewals++;
        return "HTTP/1.1 500 X\r\nContent-Length: 32\r\n\r\n{\"errorCode\":300,\"message\":\"no\"}";
    }
    if (strstr(peer->text, "dir=true") != NULL && strstr(peer->text, "run_job/") == NULL)
        return "HTTP/1.1 201 X\r\nX-Etcd-Index: 8\r\nContent-Length: 82\r\n\r\n"
               "{\"action\":\"set\",\"node\":{\"key\":\"/k\",\"dir\":true,\"modifiedIndex\":8,\"createdIndex\":8}}";
    return SILENT;
}

static void freeing_ends_the_renewal_of_the_jobs_root(void **state)
{
    struct muster_rdzv_params *params;
    struct muster_handler *handler = NULL;
    struct heard heard = { 0 };
    struct muster_error error;
    char endpoint[32];
    unsigned before;
    int rc;

    (void)state;
    renewals = 0;
    servers[0].choose = as_etcd_that_renews_nothing;
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", ports[0]);
    params = params_of(endpoint, "timeout=60");
    rc = mu_handler_start_by_name(muster_rdzv_registry_default(), &loop, params, &MU_DRIVING_DEFAULT, on_event, &heard,
                                  &handler, &error);
    muster_rdzv_params_free(params);
    if (rc == MUSTER_ENOTSUP)
        skip();
    assert_int_equal(rc, 0);
    handler->ops->join(handler);
    while (renewals < 2)
        (void)uv_run(&loop, UV_RUN_ONCE);
    before = renewals;
    handler->ops->free(handler, on_freed, &heard);
    while (heard.freed == 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(renewals, before);
    /* stop_servers() finds nothing else on the loop: no timer, no connection of ours. */
}

/* ---- Times without end ---- */

static const char *as_etcd_that_has_it_all(struct server *server, struct peer *peer)
{
    static const char body[] = "{\"action\":\"get\",\"node\":{\"key\":\"/k\",\"value\":\"{\\\"aw==\\\":\\\"dg==\\\"}\","
                               "\"modifiedIndex\":8,\"createdIndex\":8}}";
    static char text[512];

    (void)server;
    (void)peer;
    (void)snprintf(text, sizeof text, "HTTP/1.1 200 X\r\nX-Etcd-Index: 8\r\nContent-Length: %zu\r\n\r\n%s",
                   strlen(body), body);
    return text;
}

/* Calls that wait, on a thread of their own: the servers are on the test's. */
struct asked {
    struct muster_rdzv *rdzv;
    struct muster_store *store;
    int rc;
    struct muster_bytes value;
    bool found;
    struct muster_error error;
    uv_async_t over;
    bool done;
};

static void *load_for_ever(void *arg)
{
    const struct muster_slice key = muster_str("k");
    struct asked *asked = arg;

    asked->rc = muster_rdzv_etcd_load_extra_data(asked->rdzv, 1, "aw==", INT64_MAX, &asked->value, &asked->error);
    if (asked->rc == 0)
        asked->rc = muster_store_wait(asked->store, &key, 1, INT64_MAX, &asked->error);
    if (asked->rc == 0)
        asked->rc = muster_store_check(asked->store, &key, 1, INT64_MAX, &asked->found, &asked->error);
    (void)uv_async_send(&asked->over);
    return NULL;
}

static void on_over(uv_async_t *over)
{
    ((struct asked *)over->data)->done = true;
    uv_close((uv_handle_t *)over, NULL);
}

static void a_time_may_be_as_long_as_a_number_can_say(void **state)
{
    struct scene scene = { .fd = -1 };
    struct asked asked = { .done = false };
    pthread_t thread;

    (void)state;
    servers[0].choose = as_etcd_that_has_it_all;
    (void)snprintf(scene.endpoint, sizeof scene.endpoint, "127.0.0.1:%u", ports[0]);
    asked.rdzv = handler_at(&scene, "timeout=60");
    asked.store = store_at(&scene);
    assert_int_equal(uv_async_init(&loop, &asked.over, on_over), 0);
    asked.over.data = &asked;
    assert_int_equal(pthread_create(&thread, NULL, load_for_ever, &asked), 0);
    run_until(&asked.done);
    assert_int_equal(pthread_join(thread, NULL), 0);
    muster_store_free(asked.store);
    muster_rdzv_free(asked.rdzv);
    if (asked.rc != 0)
        fail_msg("%s", asked.error.text);
    assert_true(asked.found);
    assert_int_equal(asked.value.len, 4);
    assert_memory_equal(asked.value.data, "dg==", 4);
    muster_bytes_done(&asked.value);
}

static void a_time_that_no_rendezvous_can_take_is_named(void **state)
{
    const struct muster_etcd_config etcd = { .size = sizeof etcd, .endpoints = "localhost" };
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error;

    (void)state;
    assert_int_equal(muster_rdzv_etcd_new(&etcd, NULL, "job", 1, 1, INT64_MAX, 0, &rdzv, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'timeout': 9223372036854776 s is not in"));
    assert_null(rdzv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_etcd_store_has_no_delete_count_and_compare),
        cmocka_unit_test(without_a_server_calls_fail_when_their_time_is_up),
        cmocka_unit_test(an_empty_key_is_refused),
        cmocka_unit_test(a_store_of_a_bad_place_is_an_error),
        cmocka_unit_test(bad_parameters_make_no_handler),
        cmocka_unit_test(a_handler_without_a_server_can_be_asked_and_freed),
        cmocka_unit_test(extra_data_is_for_handlers_of_this_kind),
        cmocka_unit_test(a_url_is_an_endpoint_too),
        cmocka_unit_test(leaving_while_joining_is_answered_and_freeing_ends_everything),
        cmocka_unit_test_setup_teardown(freeing_ends_the_renewal_of_the_jobs_root, start_servers, stop_servers),
        cmocka_unit_test_setup_teardown(a_time_may_be_as_long_as_a_number_can_say, start_servers, stop_servers),
        cmocka_unit_test(a_time_that_no_rendezvous_can_take_is_named),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
