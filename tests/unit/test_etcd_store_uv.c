/* EtcdStore on a real loop, with a server that expects certain requests and says what the test wants: names, values,
 * and which request follows which answer. With a real etcd, and PyTorch on the same keys, it is tested in
 * tests/interop. */
#include "http_scene.h"
#include "kv/etcd_store_uv.h"

#include <inttypes.h>

#define LIMIT_MS 20000
#define NODE(value)                                                                                                    \
    "{\"action\":\"get\",\"node\":{\"key\":\"/k\",\"value\":\"" value "\",\"modifiedIndex\":7,\"createdIndex\":7}}"
#define FAILURE(status, code) status " {\"errorCode\":" code ",\"message\":\"no\",\"cause\":\"/k\",\"index\":7}"
#define NOT_FOUND FAILURE("404", "100")
#define COMPARE_FAILED FAILURE("412", "101")
#define EXISTS FAILURE("412", "105")
#define INDEX_CLEARED FAILURE("400", "401")
#define WRITTEN NODE("dg==")

/* One request after the other: what it must be, without "/v2/keys", and what is said. "{...": 200; "404 {...": that. */
struct turn {
    const char *request, *reply;
};

static const struct turn *turns;
static size_t turns_count, turn_next;

/* "PUT /dir/aw== value=dg==&prevExist=false", without escapes. */
static void tell_request(const char *text, char *told, size_t room)
{
    const char *target = strstr(text, " /v2/keys"), *end = strstr(text, " HTTP/1.1"), *body = strstr(text, "\r\n\r\n");
    char *to = told;

    assert_true(target != NULL && end != NULL && body != NULL);
    (void)snprintf(told, room, "%.*s %.*s%s%s", (int)(target - text), text, (int)(end - target) - 9, target + 9,
                   body[4] != '\0' ? " " : "", body + 4);
    for (const char *from = told; *from != '\0'; from++) {
        const char hex[] = { from[1], from[1] != '\0' ? from[2] : '\0', '\0' };
        bool is_escape = *from == '%';

        *to++ = is_escape ? (char)strtol(hex, NULL, 16) : *from;
        from += is_escape ? 2 : 0;
    }
    *to = '\0';
}

static const char *as_etcd(struct server *server, struct peer *peer)
{
    static char texts[16][1024];
    char told[1024], *text = texts[turn_next % COUNT(texts)];
    const char *reply, *body;

    (void)server;
    tell_request(peer->text, told, sizeof told);
    if (turn_next == turns_count)
        fail_msg("nobody expects %s", told);
    assert_string_equal(told, turns[turn_next].request);
    reply = turns[turn_next++].reply;
    if (strcmp(reply, SILENT) == 0 || strcmp(reply, HANG_UP) == 0)
        return reply;
    body = strchr(reply, '{');
    (void)snprintf(text, sizeof texts[0], "HTTP/1.1 %.3s X\r\nX-Etcd-Index: 7\r\nContent-Length: %zu\r\n\r\n%s",
                   body == reply ? "200" : reply, strlen(body), body);
    return text;
}

static struct mu_kv *open_store(const char *root)
{
    char endpoint[32];
    const struct mu_http_config http = { .endpoints = endpoint, .seed = 1 };
    const struct mu_kv_etcd_store_config config = {
        .http = &http,
        .dir = root == NULL ? "/dir" : NULL,
        .root = root,
        .run_id = "job",
        .gives_foreign = root != NULL,
        .seed = 1,
    };
    struct mu_kv *kv = NULL;
    struct muster_error error;
    int rc;

    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", ports[0]);
    rc = mu_kv_etcd_store_start(&loop, &config, &kv, &error);
    if (rc == MUSTER_ENOTSUP)
        skip(); /* libcurl is absent */
    assert_int_equal(rc, 0);
    servers[0].choose = as_etcd;
    return kv;
}

static void on_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    *(bool *)ctx = true;
    uv_stop(&loop);
}

static void close_store(struct mu_kv *kv)
{
    bool closed = false;

    kv->ops->close(kv, on_closed, &closed);
    run_until(&closed);
}

static void on_done(struct mu_kv_request *request)
{
    *(bool *)request->ctx = true;
    uv_stop(&loop);
}

/* Asks the store for it, which has to make exactly these requests. Its bytes are to be freed. */
static struct mu_kv_request asked_of(const char *root, struct mu_kv_request request, const struct turn *list,
                                     size_t count)
{
    struct mu_kv *kv = open_store(root);
    bool done = false;

    turns = list;
    turns_count = count;
    turn_next = 0;
    request.done = on_done;
    request.ctx = &done;
    if (request.timeout_ms == 0)
        request.timeout_ms = LIMIT_MS;
    kv->ops->submit(kv, &request);
    assert_false(done);
    run_until(&done);
    assert_int_equal(turn_next, count);
    close_store(kv);
    return request;
}

#define ASKED(request, list) asked_of(NULL, request, list, COUNT(list))
#define REQUEST(what, ...) ((struct mu_kv_request){ .kind = MU_KV_##what, .key = muster_str("k1"), __VA_ARGS__ })
#define SET(name, text) ((struct mu_kv_request){ .kind = MU_KV_SET, .key = (name), .value = (text) })

static void is_bytes(struct mu_kv_request request, const char *wanted)
{
    assert_int_equal(request.rc, 0);
    assert_int_equal(request.bytes.len, strlen(wanted));
    assert_memory_equal(request.bytes.data, wanted, strlen(wanted));
    muster_bytes_done(&request.bytes);
}

/* ---- Names and values ---- */

static void names_and_values_are_base64(void **state)
{
    static const struct turn written[] = { { "PUT /dir/azE= value=dgD/", WRITTEN } };
    static const struct turn slashed[] = { { "PUT /dir/YWI value=", NODE("") } };

    (void)state;
    assert_int_equal(ASKED(SET(muster_str("k1"), ((struct muster_slice){ "v\0\xff", 3 })), written).rc, 0);
    assert_int_equal(ASKED(SET(muster_str("ab?"), muster_str("")), slashed).rc, 0); /* as etcd has "YWI/" */
}

static void what_pytorch_cannot_read_back_we_can(void **state)
{
    static const struct turn turn[] = { { "GET /dir/YWI?quorum=true", NODE("dg==") } };
    struct mu_kv_request request = REQUEST(GET);

    (void)state;
    request.key = muster_str("ab?");
    is_bytes(ASKED(request, turn), "v");
}

static void keys_of_a_version_are_where_pytorch_has_them(void **state)
{
    static const struct {
        const char *key, *request;
    } rows[] = {
        { "torch.rendezvous.job.12/K", "PUT /p/run_job/rdzv/v_12/kv/Sw== value=dg==" },
        { "torch.rendezvous.job.x/K", "PUT /p/run_job/muster/kv/dG9yY2gucmVuZGV6dm91cy5qb2IueC9L value=dg==" },
        { "muster.job/verdict", "PUT /p/run_job/muster/kv/bXVzdGVyLmpvYi92ZXJkaWN0 value=dg==" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct turn turn = { rows[i].request, WRITTEN };

        assert_int_equal(asked_of("/p/run_job", SET(muster_str(rows[i].key), muster_str("v")), &turn, 1).rc, 0);
    }
}

static void a_key_without_a_name_is_refused(void **state)
{
    (void)state;
    assert_int_equal(asked_of(NULL, SET(muster_str(""), muster_str("v")), NULL, 0).rc, MUSTER_EINVAL);
    assert_int_equal(asked_of("/r", SET(muster_str("torch.rendezvous.job.1/"), muster_str("v")), NULL, 0).rc,
                     MUSTER_EINVAL);
}

/* ---- Reading ---- */

static void a_key_that_is_there_is_read_once(void **state)
{
    static const struct turn turn[] = { { "GET /dir/azE=?quorum=true", NODE("dmFsdWU=") } };

    (void)state;
    is_bytes(ASKED(REQUEST(GET), turn), "value");
}

/* Whether its directory exists does not matter, and an index that is too old is as good as any news. */
static void a_key_that_is_not_there_is_waited_for(void **state)
{
    static const struct turn list[] = {
        { "GET /dir/azE=?quorum=true", NOT_FOUND },    { "GET /dir/azE=?wait=true&waitIndex=8", INDEX_CLEARED },
        { "GET /dir/azE=?quorum=true", NOT_FOUND },    { "GET /dir/azE=?wait=true&waitIndex=8", NODE("dg==") },
        { "GET /dir/azE=?quorum=true", NODE("dg==") },
    };

    (void)state;
    is_bytes(ASKED(REQUEST(GET), list), "v");
}

static void waiting_ends_with_its_time(void **state)
{
    static const struct turn list[] = {
        { "GET /dir/azE=?quorum=true", NOT_FOUND },
        { "GET /dir/azE=?wait=true&waitIndex=8", SILENT },
    };
    struct mu_kv_request request = ASKED(REQUEST(GET, .timeout_ms = 1500), list);

    (void)state;
    assert_int_equal(request.rc, MUSTER_ETIMEOUT);
    assert_string_equal(request.error.text, "get 'k1': timed out; the key is not there");
}

static void a_check_asks_once(void **state)
{
    static const struct turn there[] = { { "GET /dir/azE=?quorum=true", NODE("") } };
    static const struct turn missing[] = { { "GET /dir/azE=?quorum=true", NOT_FOUND } };

    (void)state;
    assert_true(ASKED(REQUEST(CHECK), there).found);
    assert_false(ASKED(REQUEST(CHECK), missing).found);
}

static void what_is_no_value_is_an_error(void **state)
{
    static const char *const bad[] = {
        NODE("A"),
        "{\"action\":\"get\",\"node\":{\"key\":\"/k\",\"dir\":true,\"modifiedIndex\":7,\"createdIndex\":7}}",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        const struct turn turn = { "GET /dir/azE=?quorum=true", bad[i] };
        struct mu_kv_request request = asked_of(NULL, REQUEST(GET), &turn, 1);

        assert_true(request.rc < 0);
        assert_non_null(strstr(request.error.text, "what no etcd store has written"));
    }
}

/* ---- Adding ---- */

static void the_first_sum_is_created(void **state)
{
    static const struct turn turn[] = { { "PUT /dir/azE= value=Mg==&prevExist=false", WRITTEN } };
    struct mu_kv_request request = ASKED(REQUEST(ADD, .number = 2), turn);

    (void)state;
    assert_true(request.rc == 0 && request.number == 2);
}

static void a_sum_that_is_there_is_swapped_until_nobody_was_faster(void **state)
{
    static const struct turn list[] = {
        { "PUT /dir/azE= value=Mg==&prevExist=false", EXISTS },     { "GET /dir/azE=?quorum=true", NODE("Mg==") },
        { "PUT /dir/azE= value=NA==&prevIndex=7", COMPARE_FAILED }, { "GET /dir/azE=?quorum=true", NODE("LTU=") },
        { "PUT /dir/azE= value=LTM=&prevIndex=7", WRITTEN },
    };
    struct mu_kv_request request = ASKED(REQUEST(ADD, .number = 2), list);

    (void)state;
    assert_true(request.rc == 0 && request.number == -3);
}

static void a_sum_that_vanished_is_created_anew(void **state)
{
    static const struct turn list[] = {
        { "PUT /dir/azE= value=Mg==&prevExist=false", EXISTS },
        { "GET /dir/azE=?quorum=true", NOT_FOUND },
        { "PUT /dir/azE= value=Mg==&prevExist=false", WRITTEN },
    };
    struct mu_kv_request request = ASKED(REQUEST(ADD, .number = 2), list);

    (void)state;
    assert_true(request.rc == 0 && request.number == 2);
}

static void what_is_no_number_cannot_be_added_to(void **state)
{
    static const char *const bad[] = { NODE("eA=="), NODE(""), NODE("OTIyMzM3MjAzNjg1NDc3NTgwNw==") /* 2^63 - 1 */ };

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        const struct turn list[] = {
            { "PUT /dir/azE= value=MQ==&prevExist=false", EXISTS },
            { "GET /dir/azE=?quorum=true", bad[i] },
        };

        assert_int_equal(ASKED(REQUEST(ADD, .number = 1), list).rc, MUSTER_EINVAL);
    }
}

/* Nobody knows whether it counted: it is not done twice. */
static void a_sum_whose_answer_was_lost_is_an_error(void **state)
{
    static const struct turn list[] = { { "PUT /dir/azE= value=MQ==&prevExist=false", HANG_UP } };

    (void)state;
    assert_true(ASKED(REQUEST(ADD, .number = 1), list).rc < 0);
}

/* ---- What only our own use ---- */

static void compare_and_set_swaps_what_is_expected(void **state)
{
    static const struct turn fresh[] = { { "PUT /dir/azE= value=Yg==&prevExist=false", WRITTEN } };
    static const struct turn swapped[] = { { "PUT /dir/azE= value=Yg==&prevValue=YQ==", WRITTEN } };
    static const struct turn lost[] = {
        { "PUT /dir/azE= value=Yg==&prevValue=YQ==", COMPARE_FAILED },
        { "GET /dir/azE=?quorum=true", NODE("Yw==") },
    };

    (void)state;
    is_bytes(ASKED(REQUEST(COMPARE_SET, .value = muster_str("b")), fresh), "b");
    is_bytes(ASKED(REQUEST(COMPARE_SET, .value = muster_str("b"), .token = muster_str("a")), swapped), "b");
    is_bytes(ASKED(REQUEST(COMPARE_SET, .value = muster_str("b"), .token = muster_str("a")), lost), "c");
}

/* etcd compares no value with an empty one. */
static void compare_and_set_replaces_an_empty_value(void **state)
{
    static const struct turn list[] = {
        { "PUT /dir/azE= value=Yg==&prevExist=false", EXISTS },
        { "GET /dir/azE=?quorum=true", NODE("") },
        { "PUT /dir/azE= value=Yg==&prevIndex=7", WRITTEN },
    };
    static const struct turn late[] = {
        { "PUT /dir/azE= value=Yg==&prevExist=false", EXISTS },
        { "GET /dir/azE=?quorum=true", NODE("") },
        { "PUT /dir/azE= value=Yg==&prevIndex=7", COMPARE_FAILED },
        { "GET /dir/azE=?quorum=true", NODE("Yw==") },
    };

    (void)state;
    is_bytes(ASKED(REQUEST(COMPARE_SET, .value = muster_str("b")), list), "b");
    is_bytes(ASKED(REQUEST(COMPARE_SET, .value = muster_str("b")), late), "c");
}

/* What a stranger has written with another program, as it is. */
static void agents_read_and_replace_what_is_not_base64(void **state)
{
    static const struct turn read[] = { { "GET /r/muster/kv/azE=?quorum=true", NODE("garbage") } };
    static const struct turn replaced[] = {
        { "PUT /r/muster/kv/azE= value=Yg==&prevValue=Z2FyYmFnZQ==", COMPARE_FAILED },
        { "GET /r/muster/kv/azE=?quorum=true", NODE("garbage") },
        { "PUT /r/muster/kv/azE= value=Yg==&prevIndex=7", WRITTEN },
    };
    struct mu_kv_request swap = REQUEST(COMPARE_SET, .value = muster_str("b"), .token = muster_str("garbage"));

    (void)state;
    is_bytes(asked_of("/r", REQUEST(GET), read, COUNT(read)), "garbage");
    is_bytes(asked_of("/r", swap, replaced, COUNT(replaced)), "b");
}

static void a_delete_tells_whether_there_was_something(void **state)
{
    static const struct turn there[] = { { "DELETE /dir/azE=", WRITTEN } };
    static const struct turn missing[] = { { "DELETE /dir/azE=", NOT_FOUND } };

    (void)state;
    assert_true(ASKED(REQUEST(DELETE), there).found);
    assert_false(ASKED(REQUEST(DELETE), missing).found);
}

static void what_no_etcd_store_has_is_refused(void **state)
{
    static const enum mu_kv_kind kinds[] = { MU_KV_READ, MU_KV_WRITE, MU_KV_RING, MU_KV_PARK, MU_KV_TURN_TAKE };

    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++) {
        struct mu_kv_request request = { .kind = kinds[i], .key = muster_str("k") };

        assert_int_equal(asked_of(NULL, request, NULL, 0).rc, MUSTER_ENOTSUP);
    }
}

static void closing_ends_what_is_under_way(void **state)
{
    static const struct turn list[] = { { "GET /dir/azE=?quorum=true", SILENT } };
    struct mu_kv *kv = open_store(NULL);
    struct mu_kv_request request = REQUEST(GET, .timeout_ms = LIMIT_MS, .done = on_done);
    bool done = false;

    (void)state;
    turns = list;
    turns_count = 1;
    turn_next = 0;
    request.ctx = &done;
    kv->ops->submit(kv, &request);
    close_store(kv);
    assert_true(done);
    assert_int_equal(request.rc, MUSTER_ECANCELED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_servers, stop_servers)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(names_and_values_are_base64),
        TEST(what_pytorch_cannot_read_back_we_can),
        TEST(keys_of_a_version_are_where_pytorch_has_them),
        TEST(a_key_without_a_name_is_refused),
        TEST(a_key_that_is_there_is_read_once),
        TEST(a_key_that_is_not_there_is_waited_for),
        TEST(waiting_ends_with_its_time),
        TEST(a_check_asks_once),
        TEST(what_is_no_value_is_an_error),
        TEST(the_first_sum_is_created),
        TEST(a_sum_that_is_there_is_swapped_until_nobody_was_faster),
        TEST(a_sum_that_vanished_is_created_anew),
        TEST(what_is_no_number_cannot_be_added_to),
        TEST(a_sum_whose_answer_was_lost_is_an_error),
        TEST(compare_and_set_swaps_what_is_expected),
        TEST(compare_and_set_replaces_an_empty_value),
        TEST(agents_read_and_replace_what_is_not_base64),
        TEST(a_delete_tells_whether_there_was_something),
        TEST(what_no_etcd_store_has_is_refused),
        TEST(closing_ends_what_is_under_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
