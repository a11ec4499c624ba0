/* The etcd-v2 back end on a real loop, with a server of the test's own: what a token and a protocol may look like. With
 * a real etcd it is tested in tests/interop. */
#include "kv/kv_etcd_v2_uv.h"

#include "handler/handler.h"
#include "http_scene.h"

#define LIMIT_MS 20000
#define REPLY(status, length, body)                                                                                    \
    "HTTP/1.1 " status " X\r\nX-Etcd-Index: 9\r\nContent-Length: " length "\r\n\r\n" body
#define WRITTEN                                                                                                        \
    REPLY("201", "71", "{\"action\":\"set\",\"node\":{\"key\":\"/k\",\"modifiedIndex\":8,\"createdIndex\":8}}")
#define DOCUMENT                                                                                                       \
    REPLY("200", "86",                                                                                                 \
          "{\"action\":\"get\",\"node\":{\"key\":\"/k\",\"value\":\"ZG9j\",\"modifiedIndex\":7,\"createdIndex\":7}}")

static unsigned reads, writes_of_document;

static bool asks(const struct peer *peer, const char *what)
{
    return strncmp(peer->text, what, strlen(what)) == 0;
}

static const char *as_etcd(struct server *server, struct peer *peer)
{
    (void)server;
    if (asks(peer, "PUT /v2/keys/torch/elastic/store"))
        return WRITTEN;
    if (asks(peer, "GET /v2/keys/torch/elastic/rendezvous/job")) {
        reads++;
        return DOCUMENT;
    }
    if (asks(peer, "PUT /v2/keys/torch/elastic/rendezvous/job")) {
        writes_of_document++;
        return WRITTEN;
    }
    fail_msg("nobody expects %s", peer->text);
    return NULL;
}

static int setup(void **state)
{
    (void)start_servers(state);
    servers[0].choose = as_etcd;
    reads = writes_of_document = 0;
    return 0;
}

static void on_done(struct mu_kv_request *request)
{
    *(bool *)request->ctx = true;
    uv_stop(&loop);
}

static void on_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    *(bool *)ctx = true;
    uv_stop(&loop);
}

/* A write with this token; its bytes are to be freed. */
static struct mu_kv_request written_with(const char *token)
{
    char endpoint[32];
    const struct mu_http_config http = { .endpoints = endpoint, .seed = 1 };
    bool done = false, closed = false;
    struct mu_kv_request request = { .kind = MU_KV_WRITE,
                                     .value = muster_str("new"),
                                     .token = muster_str(token),
                                     .has_token = true,
                                     .timeout_ms = LIMIT_MS,
                                     .done = on_done,
                                     .ctx = &done };
    struct mu_kv *kv = NULL;
    struct muster_error error;
    int rc;

    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", ports[0]);
    rc = mu_kv_etcd_v2_start(&loop, &http, "job", &kv, &error);
    if (rc == MUSTER_ENOTSUP)
        skip(); /* libcurl is absent */
    assert_int_equal(rc, 0);
    kv->ops->submit(kv, &request);
    run_until(&done);
    kv->ops->close(kv, on_closed, &closed);
    run_until(&closed);
    return request;
}

static void a_token_that_is_no_number_writes_nothing_and_tells_what_is_there(void **state)
{
    static const char *const tokens[] = { "x", "7x", "-7", " 7", "7.0", "99999999999999999999999" };

    (void)state;
    for (size_t i = 0; i < COUNT(tokens); i++) {
        struct mu_kv_request request = written_with(tokens[i]);

        assert_int_equal(request.rc, 0);
        assert_false(request.written);
        assert_true(request.found);
        assert_int_equal(request.bytes.len, 3);
        assert_memory_equal(request.bytes.data, "doc", 3);
        assert_int_equal(request.state_token.len, 1);
        assert_memory_equal(request.state_token.data, "7", 1);
        assert_int_equal(reads, i + 1);
        muster_bytes_done(&request.bytes);
        muster_bytes_done(&request.state_token);
    }
    assert_int_equal(writes_of_document, 0);
}

static void a_token_that_is_a_number_writes(void **state)
{
    struct mu_kv_request request = written_with("7");

    (void)state;
    assert_true(request.rc == 0 && request.written);
    assert_int_equal(writes_of_document, 1);
    muster_bytes_done(&request.bytes);
    muster_bytes_done(&request.state_token);
}

/* ---- Protocols ---- */

static void ignore(void *ctx, const struct muster_rdzv_event *event)
{
    (void)ctx;
    (void)event;
}

static void on_freed(void *ctx)
{
    *(bool *)ctx = true;
    uv_stop(&loop);
}

static int start_handler(const char *protocol, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct muster_rdzv_params *params = NULL;
    char endpoint[32];
    int rc;

    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", ports[0]);
    assert_int_equal(muster_rdzv_params_new("etcd-v2", endpoint, "job", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_text(params, "protocol", protocol, NULL), 0);
    rc = mu_handler_start_by_name(muster_rdzv_registry_default(), &loop, params, &MU_DRIVING_DEFAULT, ignore, NULL,
                                  ret_handler, reterr);
    muster_rdzv_params_free(params);
    if (rc == MUSTER_ENOTSUP)
        skip();
    return rc;
}

/* Of what the first one says that comes. */
static char first_byte(void)
{
    for (int i = 0; i < PEERS_MAX; i++)
        if (peers[i].used && peers[i].text[0] != '\0')
            return peers[i].text[0];
    return '\0';
}

static void a_protocol_may_have_blanks_around_it_and_capitals(void **state)
{
    static const struct {
        const char *protocol;
        bool tls;
    } rows[] = { { "http", false },   { " HTTP ", false },    { "\tHttp\r\n", false },  { "https", true },
                 { " HTTPS ", true }, { "\n hTTps\t", true }, { " \t\r\n HTTPS", true } };
    const char hello = 0x16; /* a TLS record of a handshake */

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_handler *handler = NULL;
        struct muster_error error;
        bool freed = false;

        assert_int_equal(start_handler(rows[i].protocol, &handler, &error), 0);
        servers[0].replies[0] = SILENT;
        servers[0].choose = NULL;
        handler->ops->join(handler);
        while (first_byte() == '\0')
            (void)uv_run(&loop, UV_RUN_ONCE);
        assert_true((first_byte() == hello) == rows[i].tls);
        handler->ops->free(handler, on_freed, &freed);
        run_until(&freed);
        while (first_byte() != '\0') /* it is seen to have hung up */
            (void)uv_run(&loop, UV_RUN_ONCE);
    }
}

static void other_protocols_are_refused(void **state)
{
    static const char *const rows[] = { "ftp", "http s", "httpss", "https,http", "a-protocol-with-a-very-long-name" };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_handler *handler = NULL;
        struct muster_error error;

        assert_int_equal(start_handler(rows[i], &handler, &error), MUSTER_EINVAL);
        assert_non_null(strstr(error.text, "'protocol'"));
        assert_null(handler);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, stop_servers)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_token_that_is_no_number_writes_nothing_and_tells_what_is_there),
        TEST(a_token_that_is_a_number_writes),
        TEST(a_protocol_may_have_blanks_around_it_and_capitals),
        TEST(other_protocols_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
