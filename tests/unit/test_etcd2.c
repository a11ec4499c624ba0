/* etcd's version 2 API: what goes on the wire, and what is made of what comes back. */
#include "failmalloc.h"
#include "kv/etcd2.h"
#include "pure.h"

#include <inttypes.h>
#include <stdio.h>

#define KEY(text) mu_slice(text, sizeof(text) - 1)

/* ---- Requests ---- */

static const char *built(struct mu_etcd2_request request)
{
    static char line[2048];
    struct mu_etcd2_wire wire;
    struct muster_error error = { 0 };

    if (mu_etcd2_build(&request, &wire, &error) < 0) {
        (void)snprintf(line, sizeof line, "%s: %s", muster_error_name(error.code), error.text);
        return line;
    }
    (void)snprintf(line, sizeof line, "%s %s%s%.*s", wire.method, wire.target.data, wire.body.len > 0 ? " " : "",
                   (int)wire.body.len, wire.body.len > 0 ? wire.body.data : "");
    mu_etcd2_wire_done(&wire);
    return line;
}

#define BUILT(...) built((struct mu_etcd2_request){ __VA_ARGS__ })

static void requests_have_their_form_on_the_wire(void **state)
{
    (void)state;
    assert_string_equal(BUILT(.kind = MU_ETCD2_GET, .key = KEY("/a/b")), "GET /v2/keys/a/b");
    assert_string_equal(BUILT(.kind = MU_ETCD2_GET, .key = KEY("/")), "GET /v2/keys/");
    assert_string_equal(
        BUILT(.kind = MU_ETCD2_GET, .key = KEY("/a"), .recursive = true, .sorted = true, .quorum = true),
        "GET /v2/keys/a?recursive=true&sorted=true&quorum=true");
    assert_string_equal(BUILT(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .has_value = true, .value = KEY("x")),
                        "PUT /v2/keys/a value=x");
    assert_string_equal(BUILT(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .has_value = true), "PUT /v2/keys/a value=");
    assert_string_equal(
        BUILT(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .dir = true, .ttl_s = 7200, .prev_exist = MU_ETCD2_MUST_NOT),
        "PUT /v2/keys/a ttl=7200&dir=true&prevExist=false");
    assert_string_equal(
        BUILT(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .refresh = true, .ttl_s = 10, .prev_exist = MU_ETCD2_MUST),
        "PUT /v2/keys/a ttl=10&prevExist=true&refresh=true");
    assert_string_equal(BUILT(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .has_value = true, .value = KEY("y"),
                              .has_prev_value = true, .prev_value = KEY("x"), .prev_index = 7),
                        "PUT /v2/keys/a value=y&prevValue=x&prevIndex=7");
    assert_string_equal(
        BUILT(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .has_value = true, .value = KEY("x"), .no_value = true),
        "PUT /v2/keys/a value=x&noValueOnSuccess=true");
    assert_string_equal(BUILT(.kind = MU_ETCD2_DELETE, .key = KEY("/a")), "DELETE /v2/keys/a");
    assert_string_equal(BUILT(.kind = MU_ETCD2_DELETE, .key = KEY("/a"), .dir = true, .recursive = true,
                              .has_prev_value = true, .prev_value = KEY(""), .prev_index = 9),
                        "DELETE /v2/keys/a?recursive=true&dir=true&prevValue=&prevIndex=9");
    assert_string_equal(BUILT(.kind = MU_ETCD2_WATCH, .key = KEY("/a"), .wait_index = 12, .recursive = true),
                        "GET /v2/keys/a?wait=true&waitIndex=12&recursive=true");
    assert_string_equal(BUILT(.kind = MU_ETCD2_WATCH, .key = KEY("/a")), "GET /v2/keys/a?wait=true");
}

static void bytes_that_mean_something_are_escaped(void **state)
{
    (void)state;
    assert_string_equal(BUILT(.kind = MU_ETCD2_GET, .key = KEY("/a b%c?d#e&f=g+\xc3\xa4\n~.-_")),
                        "GET /v2/keys/a%20b%25c%3Fd%23e%26f%3Dg%2B%C3%A4%0A~.-_");
    assert_string_equal(
        BUILT(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .has_value = true, .value = KEY("{\"status\": \"x\"}+/=\n")),
        "PUT /v2/keys/a value=%7B%22status%22%3A+%22x%22%7D%2B%2F%3D%0A");
}

static void keys_are_brought_into_etcds_own_form(void **state)
{
    (void)state;
    assert_string_equal(BUILT(.kind = MU_ETCD2_GET, .key = KEY("//a///b/")), "GET /v2/keys/a/b");
    assert_string_equal(BUILT(.kind = MU_ETCD2_GET, .key = KEY("///")), "GET /v2/keys/");
    assert_string_equal(BUILT(.kind = MU_ETCD2_GET, .key = KEY("/a/.../.b")), "GET /v2/keys/a/.../.b");
}

static void keys_that_cannot_be_are_refused(void **state)
{
    static char text[MU_ETCD2_KEY_MAX + 1];

    (void)state;
    memset(text, '/', sizeof text);
    assert_string_equal(BUILT(.key = KEY("")), "EINVAL: a key begins with '/' and has no NUL in it");
    assert_string_equal(BUILT(.key = KEY("a")), "EINVAL: a key begins with '/' and has no NUL in it");
    assert_string_equal(BUILT(.key = KEY("/a\0b")), "EINVAL: a key begins with '/' and has no NUL in it");
    assert_string_equal(BUILT(.key = KEY("/a/../b")), "EINVAL: '.' and '..' cannot be parts of a key");
    assert_string_equal(BUILT(.key = KEY("/.")), "EINVAL: '.' and '..' cannot be parts of a key");
    assert_string_equal(BUILT(.key = mu_slice(text, sizeof text)), "ELIMIT: a key of 8193 bytes is too long");
    assert_string_equal(
        BUILT(.kind = MU_ETCD2_PUT, .key = KEY("/"), .has_value = true, .value = { text, MU_ETCD2_VALUE_MAX + 1 }),
        "ELIMIT: a value of more than 50331648 bytes is too long");
}

static void only_what_the_first_time_does_not_spoil_is_repeatable(void **state)
{
    const struct mu_etcd2_request yes[] = {
        { .kind = MU_ETCD2_GET },
        { .kind = MU_ETCD2_WATCH },
        { .kind = MU_ETCD2_PUT, .has_value = true },
        { .kind = MU_ETCD2_PUT, .refresh = true, .prev_exist = MU_ETCD2_MUST, .ttl_s = 1 },
    };
    const struct mu_etcd2_request no[] = {
        { .kind = MU_ETCD2_PUT, .prev_exist = MU_ETCD2_MUST_NOT },
        { .kind = MU_ETCD2_PUT, .prev_index = 1 },
        { .kind = MU_ETCD2_PUT, .has_prev_value = true },
        { .kind = MU_ETCD2_DELETE },
    };

    (void)state;
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++)
        assert_true(mu_etcd2_is_repeatable(&yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
        assert_false(mu_etcd2_is_repeatable(&no[i]));
}

static void each_request_has_a_name_for_errors(void **state)
{
    char text[40];

    (void)state;
#define NAMED(...) mu_etcd2_text(&(const struct mu_etcd2_request){ __VA_ARGS__ }, text, sizeof text)
    assert_string_equal(NAMED(.kind = MU_ETCD2_GET, .key = KEY("/a\n")), "get '/a?'");
    assert_string_equal(NAMED(.kind = MU_ETCD2_WATCH, .key = KEY("/a")), "watch '/a'");
    assert_string_equal(NAMED(.kind = MU_ETCD2_PUT, .key = KEY("/a")), "set '/a'");
    assert_string_equal(NAMED(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .dir = true), "make directory '/a'");
    assert_string_equal(NAMED(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .prev_exist = MU_ETCD2_MUST_NOT), "create '/a'");
    assert_string_equal(NAMED(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .refresh = true), "refresh '/a'");
    assert_string_equal(NAMED(.kind = MU_ETCD2_PUT, .key = KEY("/a"), .prev_index = 1), "compare and set '/a'");
    assert_string_equal(NAMED(.kind = MU_ETCD2_DELETE, .key = KEY("/a"), .prev_index = 1), "compare and delete '/a'");
    assert_string_equal(NAMED(.kind = MU_ETCD2_DELETE, .key = KEY("/0123456789012345678901234567890123456789")),
                        "delete '/012345678901234567890123456789");
}

/* ---- Answers ---- */

/* The answer, in one line. */
static const char *answered(unsigned status, uint64_t index, const char *body)
{
    static char line[2048];
    struct mu_etcd2_answer answer;
    struct muster_error error = { 0 };
    size_t used;

    if (mu_etcd2_read(status, index, mu_slice_str(body), &answer, &error) < 0) {
        (void)snprintf(line, sizeof line, "%s: %s", muster_error_name(error.code), error.text);
        return line;
    }
    used = (size_t)snprintf(line, sizeof line, "%d %.*s @%" PRIu64, answer.code, (int)answer.action.len,
                            answer.action.data == NULL ? "" : answer.action.data, answer.index);
    for (size_t i = 0; i < answer.nodes_count; i++) {
        const struct mu_etcd2_node *node = &answer.nodes[i];

        used += (size_t)snprintf(line + used, sizeof line - used, " %u:%.*s%s=%.*s(%" PRIu64 "/%" PRId64 ")",
                                 node->depth, (int)node->key.len, node->key.data, node->dir ? "/" : "",
                                 (int)node->value.len, node->value.data, node->modified, node->ttl_s);
    }
    if (answer.has_prev)
        (void)snprintf(line + used, sizeof line - used, " before:%.*s", (int)answer.prev.value.len,
                       answer.prev.value.data);
    if (answer.code != 0) {
        int code = mu_etcd2_fail(&answer, status, &error);

        (void)snprintf(line + used, sizeof line - used, " %s: %s", muster_error_name(code), error.text);
    }
    mu_etcd2_answer_done(&answer);
    return line;
}

static void answers_are_read(void **state)
{
    (void)state;
    assert_string_equal(answered(200, 9,
                                 "{\"action\":\"get\",\"node\":{\"key\":\"/a\",\"value\":\"x y\","
                                 "\"modifiedIndex\":7,\"createdIndex\":5}}\n"),
                        "0 get @9 0:/a=x y(7/0)");
    assert_string_equal(answered(201, 7,
                                 "{\"action\":\"set\",\"node\":{\"key\":\"/a\",\"value\":\"\",\"ttl\":10,"
                                 "\"expiration\":\"2026\",\"modifiedIndex\":7,\"createdIndex\":7},"
                                 "\"prevNode\":{\"key\":\"/a\",\"value\":\"old\",\"modifiedIndex\":6,"
                                 "\"createdIndex\":6}}"),
                        "0 set @7 0:/a=(7/10) before:old");
    assert_string_equal(
        answered(200, 7, "{\"action\":\"expire\",\"node\":{\"key\":\"/a\",\"modifiedIndex\":8,\"createdIndex\":5}}"),
        "0 expire @7 0:/a=(8/0)");
}

static void a_write_may_be_answered_without_a_node(void **state)
{
    static const char *const writes[] = { "set", "create", "update", "compareAndSwap" };
    char body[60], wanted[60];

    (void)state;
    for (size_t i = 0; i < sizeof writes / sizeof writes[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"action\":\"%s\"}", writes[i]);
        (void)snprintf(wanted, sizeof wanted, "0 %s @7", writes[i]);
        assert_string_equal(answered(200, 7, body), wanted);
    }
    assert_string_equal(answered(200, 0, "{\"action\":\"set\"}"),
                        "EPROTOCOL: HTTP 200: the header X-Etcd-Index is missing; is there a proxy that drops it?");
    assert_string_equal(answered(200, 7, "{\"action\":\"get\"}"), "EPROTOCOL: HTTP 200: 'node' is missing");
    assert_string_equal(answered(200, 7, "{\"action\":\"delete\"}"), "EPROTOCOL: HTTP 200: 'node' is missing");
}

static void directories_come_before_their_children(void **state)
{
    (void)state;
    assert_string_equal(answered(200, 9,
                                 "{\"action\":\"get\",\"node\":{\"dir\":true,\"nodes\":["
                                 "{\"key\":\"/d\",\"dir\":true,\"modifiedIndex\":2,\"createdIndex\":2,\"nodes\":["
                                 "{\"key\":\"/d/k\",\"value\":\"1\",\"modifiedIndex\":3,\"createdIndex\":3}]},"
                                 "{\"key\":\"/e\",\"value\":\"2\",\"modifiedIndex\":4,\"createdIndex\":4}]}}"),
                        "0 get @9 0:/=(0/0) 1:/d/=(2/0) 2:/d/k=1(3/0) 1:/e=2(4/0)");
}

static void errors_of_etcds_are_answers(void **state)
{
    (void)state;
    assert_string_equal(
        answered(404, 0, "{\"errorCode\":100,\"message\":\"Key not found\",\"cause\":\"/a\",\"index\":3}"),
        "100  @3 EINVAL: HTTP 404, 100 Key not found (/a)");
    assert_string_equal(
        answered(412, 8, "{\"errorCode\":101,\"message\":\"Compare failed\",\"cause\":\"[x != y]\",\"index\":3}"),
        "101  @8 EINVAL: HTTP 412, 101 Compare failed ([x != y])");
    assert_string_equal(
        answered(400, 0, "{\"errorCode\":401,\"message\":\"cleared\\n\",\"cause\":\"\",\"index\":2000}"),
        "401  @2000 EINVAL: HTTP 400, 401 cleared? ()");
    assert_string_equal(answered(500, 0,
                                 "{\"errorCode\":300,\"message\":\"Raft Internal Error\",\"cause\":"
                                 "\"etcdserver: request timed out\",\"index\":0}"),
                        "300  @0 ELOST: HTTP 500, 300 Raft Internal Error (etcdserver: request timed out)");
}

static void what_is_no_answer_is_named(void **state)
{
    static const struct {
        unsigned status;
        const char *body, *error;
    } rows[] = {
        { 200, "", "EPROTOCOL: HTTP 200, an empty answer" },
        { 200, "[]", "EPROTOCOL: HTTP 200, not a JSON object: '[]'" },
        { 400, "Client sent an HTTP request to an HTTPS server.\n",
          "EPROTOCOL: HTTP 400, not a JSON object: 'Client sent an HTTP request to an HTTPS server.'" },
        { 404, "404 page not found\n",
          "EPROTOCOL: no version 2 API here (etcd needs --enable-v2): HTTP 404, not a JSON "
          "object: '404 page not found'" },
        { 200, "{}", "EPROTOCOL: HTTP 200: 'node' is missing" },
        { 200, "{\"action\":1}", "EPROTOCOL: HTTP 200: 'action' is not text" },
        { 200, "{\"node\":[]}", "EPROTOCOL: HTTP 200: 'node' is not an object" },
        { 200, "{\"node\":{}}", "EPROTOCOL: HTTP 200: 'node.key' is missing" },
        { 200, "{\"node\":{\"key\":\"/a\"}}", "EPROTOCOL: HTTP 200: 'node.modifiedIndex' is missing" },
        { 200, "{\"node\":{\"key\":\"/a\",\"modifiedIndex\":-1}}",
          "EPROTOCOL: HTTP 200: 'node.modifiedIndex' is not a number of 64 bits, not negative" },
        { 200, "{\"node\":{\"key\":\"/a\",\"modifiedIndex\":1,\"value\":1}}",
          "EPROTOCOL: HTTP 200: 'node.value' is not text" },
        { 200, "{\"node\":{\"key\":\"/a\",\"modifiedIndex\":1,\"dir\":0}}",
          "EPROTOCOL: HTTP 200: 'node.dir' is not true or false" },
        { 200, "{\"node\":{\"key\":\"/a\",\"modifiedIndex\":1,\"ttl\":\"x\"}}",
          "EPROTOCOL: HTTP 200: 'node.ttl' is not a number of 64 bits" },
        { 200, "{\"node\":{\"key\":\"/a\",\"modifiedIndex\":1,\"nodes\":{}}}",
          "EPROTOCOL: HTTP 200: 'node.nodes' is not an array" },
        { 200, "{\"node\":{\"key\":\"/a\",\"modifiedIndex\":1,\"nodes\":[1]}}",
          "EPROTOCOL: HTTP 200: 'node.nodes' has an element that is not an object" },
        { 200, "{\"node\":{\"key\":\"/a\",\"modifiedIndex\":1},\"prevNode\":7}",
          "EPROTOCOL: HTTP 200: 'prevNode' is not an object" },
        { 503, "{\"message\":\"Service Unavailable\"}",
          "EPROTOCOL: HTTP 503: 'errorCode' is missing, 'Service Unavailable'" },
        { 500, "{\"errorCode\":\"x\"}", "EPROTOCOL: HTTP 500: 'errorCode' is not a number of 64 bits" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(answered(rows[i].status, 7, rows[i].body), rows[i].error);
}

static void directories_have_a_depth_limit(void **state)
{
    static char body[8192] = "{\"node\":";
    struct mu_etcd2_answer answer;

    (void)state;
    for (int i = 0; i <= MU_ETCD2_DEPTH_MAX + 1; i++)
        (void)strcat(body, "{\"key\":\"/\",\"modifiedIndex\":1,\"nodes\":[");
    for (int i = 0; i <= MU_ETCD2_DEPTH_MAX + 1; i++)
        (void)strcat(body, "]}");
    (void)strcat(body, "}");
    assert_int_equal(mu_etcd2_read(200, 1, mu_slice_str(body), &answer, NULL), MUSTER_ELIMIT);
}

static void any_allocation_may_fail(void **state)
{
    const struct mu_etcd2_request request = {
        .kind = MU_ETCD2_PUT, .key = KEY("/a/b c"), .has_value = true, .value = KEY("x"), .ttl_s = 3
    };
    const char *body = "{\"node\":{\"dir\":true,\"nodes\":[{\"key\":\"/d\",\"modifiedIndex\":2}]}}";

    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_etcd2_wire wire = { 0 };
        struct mu_etcd2_answer answer = { 0 };
        int rc = mu_etcd2_build(&request, &wire, NULL);

        if (rc == 0)
            rc = mu_etcd2_read(200, 1, mu_slice_str(body), &answer, NULL);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_etcd2_wire_done(&wire);
        mu_etcd2_answer_done(&answer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_have_their_form_on_the_wire),
        cmocka_unit_test(bytes_that_mean_something_are_escaped),
        cmocka_unit_test(keys_are_brought_into_etcds_own_form),
        cmocka_unit_test(keys_that_cannot_be_are_refused),
        cmocka_unit_test(only_what_the_first_time_does_not_spoil_is_repeatable),
        cmocka_unit_test(each_request_has_a_name_for_errors),
        cmocka_unit_test(answers_are_read),
        cmocka_unit_test(a_write_may_be_answered_without_a_node),
        cmocka_unit_test(directories_come_before_their_children),
        cmocka_unit_test(errors_of_etcds_are_answers),
        cmocka_unit_test(what_is_no_answer_is_named),
        cmocka_unit_test(directories_have_a_depth_limit),
        cmocka_unit_test(any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
