/* etcd's version 3 API by its JSON gateway: what goes on the wire, and what is made of what comes back. */
#include "failmalloc.h"
#include "kv/etcd3.h"
#include "pure.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#define BYTES(text) mu_slice(text, sizeof(text) - 1)
#define HEADER "\"header\":{\"cluster_id\":\"14841639068965178418\",\"member_id\":\"1\",\"revision\":\"7\"}"

/* ---- Requests ---- */

static const char *built(struct mu_etcd3_request request)
{
    static char line[4096];
    struct mu_buf body = { 0 };
    struct muster_error error = { 0 };

    if (mu_etcd3_build(&request, &body, &error) < 0) {
        (void)snprintf(line, sizeof line, "%s: %s", muster_error_name(error.code), error.text);
        return line;
    }
    (void)snprintf(line, sizeof line, "%s %.*s", mu_etcd3_path(request.kind), (int)body.len, body.data);
    mu_buf_done(&body);
    return line;
}

#define BUILT(...) built((struct mu_etcd3_request){ __VA_ARGS__ })

static void reads_have_their_form_on_the_wire(void **state)
{
    (void)state;
    assert_string_equal(BUILT(.kind = MU_ETCD3_RANGE, .range = { .key = BYTES("foo") }),
                        "/v3/kv/range {\"key\":\"Zm9v\"}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_RANGE, .range = { .key = BYTES("foo"), .prefix = true }),
                        "/v3/kv/range {\"key\":\"Zm9v\",\"range_end\":\"Zm9w\"}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_RANGE, .range = { .key = BYTES("a\xff\xff"), .prefix = true }),
                        "/v3/kv/range {\"key\":\"Yf//\",\"range_end\":\"Yg==\"}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_RANGE, .range = { .key = BYTES("\xff"), .prefix = true }),
                        "/v3/kv/range {\"key\":\"/w==\",\"range_end\":\"AA==\"}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_RANGE, .range = { .key = BYTES(""), .prefix = true }),
                        "/v3/kv/range {\"key\":\"AA==\",\"range_end\":\"AA==\"}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_RANGE, .range = { .key = BYTES("k"),
                                                                 .limit = 5,
                                                                 .revision = 9,
                                                                 .count_only = true,
                                                                 .sort = true,
                                                                 .descending = true,
                                                                 .sort_by = MU_ETCD3_BY_CREATE }),
                        "/v3/kv/range {\"key\":\"aw==\",\"limit\":\"5\",\"revision\":\"9\",\"count_only\":true,"
                        "\"sort_order\":\"DESCEND\",\"sort_target\":\"CREATE\"}");
}

static void transactions_have_their_form_on_the_wire(void **state)
{
    static const struct mu_etcd3_compare compares[] = {
        { .target = MU_ETCD3_CREATE, .key = { "a", 1 }, .number = 1 },
        { .target = MU_ETCD3_MOD, .key = { "a", 1 }, .number = INT64_MAX },
        { .target = MU_ETCD3_VALUE, .key = { "a", 1 }, .value = { "b", 1 } },
    };
    static const struct mu_etcd3_op success[] = {
        { .kind = MU_ETCD3_OP_PUT, .key = { "a", 1 }, .value = { "", 0 }, .lease = 7 },
        { .kind = MU_ETCD3_OP_DELETE, .key = { "b", 1 }, .prefix = true },
    };
    static const struct mu_etcd3_op failure[] = { { .kind = MU_ETCD3_OP_RANGE, .key = { "a", 1 } } };

    (void)state;
    assert_string_equal(
        BUILT(.kind = MU_ETCD3_TXN, .txn = { compares, COUNT(compares), success, failure, COUNT(success), 1 }),
        "/v3/kv/txn {\"compare\":["
        "{\"key\":\"YQ==\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"1\"},"
        "{\"key\":\"YQ==\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"9223372036854775807\"},"
        "{\"key\":\"YQ==\",\"target\":\"VALUE\",\"result\":\"EQUAL\",\"value\":\"Yg==\"}],"
        "\"success\":[{\"request_put\":{\"key\":\"YQ==\",\"value\":\"\",\"lease\":\"7\"}},"
        "{\"request_delete_range\":{\"key\":\"Yg==\",\"range_end\":\"Yw==\"}}],"
        "\"failure\":[{\"request_range\":{\"key\":\"YQ==\"}}]}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_TXN), "/v3/kv/txn {}");
}

static void the_rest_has_its_form_on_the_wire(void **state)
{
    (void)state;
    assert_string_equal(BUILT(.kind = MU_ETCD3_GRANT, .ttl_s = 5), "/v3/lease/grant {\"TTL\":\"5\"}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_GRANT, .ttl_s = 5, .lease = 9),
                        "/v3/lease/grant {\"TTL\":\"5\",\"ID\":\"9\"}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_KEEP_ALIVE, .lease = 9), "/v3/lease/keepalive {\"ID\":\"9\"}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_REVOKE, .lease = 9), "/v3/lease/revoke {\"ID\":\"9\"}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_WATCH, .range = { .key = BYTES("k"), .revision = 3 }),
                        "/v3/watch {\"create_request\":{\"key\":\"aw==\",\"start_revision\":\"3\","
                        "\"progress_notify\":true}}");
    assert_string_equal(BUILT(.kind = MU_ETCD3_AUTHENTICATE, .user = "a\"\\\n", .password = "\xc3\xa4"),
                        "/v3/auth/authenticate {\"name\":\"a\\u0022\\u005c\\u000a\",\"password\":\"\xc3\xa4\"}");
}

static void what_cannot_be_is_refused(void **state)
{
    static char text[MU_ETCD3_KEY_MAX + 1];
    static struct mu_etcd3_op ops[MU_ETCD3_OPS_MAX + 1];
    static struct mu_etcd3_compare compares[MU_ETCD3_OPS_MAX + 1];
    const struct mu_etcd3_op large = { .kind = MU_ETCD3_OP_PUT,
                                       .key = BYTES("a"),
                                       .value = { text, MU_ETCD3_VALUE_MAX + 1 } };
    const struct mu_etcd3_op everything = { .kind = MU_ETCD3_OP_PUT, .prefix = true };

    (void)state;
    assert_string_equal(BUILT(.kind = MU_ETCD3_RANGE), "EINVAL: a key is empty");
    assert_string_equal(BUILT(.kind = MU_ETCD3_TXN, .txn = { .success = &everything, .success_count = 1 }),
                        "EINVAL: a key is empty");
    assert_string_equal(BUILT(.kind = MU_ETCD3_WATCH, .range = { .key = { text, sizeof text } }),
                        "ELIMIT: a key of 8193 bytes is too long");
    assert_string_equal(BUILT(.kind = MU_ETCD3_TXN, .txn = { .failure = &large, .failure_count = 1 }),
                        "ELIMIT: a value of 8388609 bytes is too long");
    assert_string_equal(BUILT(.kind = MU_ETCD3_TXN, .txn = { .success = ops, .success_count = COUNT(ops) }),
                        "ELIMIT: 129 operations are too many for a transaction");
    assert_string_equal(BUILT(.kind = MU_ETCD3_TXN, .txn = { .compares = compares, .compares_count = COUNT(compares) }),
                        "ELIMIT: 129 compares are too many for a transaction");
    assert_string_equal(BUILT(.kind = MU_ETCD3_TXN, .txn = { .compares = compares, .compares_count = 1 }),
                        "EINVAL: a key is empty");
}

static void each_request_has_a_name_for_errors(void **state)
{
    static const struct mu_etcd3_op op = { .key = { "/a\n", 3 } };
    char text[60];

    (void)state;
#define NAMED(...) mu_etcd3_text(&(const struct mu_etcd3_request){ __VA_ARGS__ }, text, sizeof text)
    assert_string_equal(NAMED(.kind = MU_ETCD3_RANGE, .range = { .key = BYTES("a") }), "read 'a'");
    assert_string_equal(NAMED(.kind = MU_ETCD3_TXN, .txn = { .success = &op, .success_count = 1 }),
                        "transact on '/a?'");
    assert_string_equal(NAMED(.kind = MU_ETCD3_TXN), "transact on ''");
    assert_string_equal(NAMED(.kind = MU_ETCD3_KEEP_ALIVE, .lease = 0x7f3a), "keep lease alive 7f3a");
    assert_string_equal(NAMED(.kind = MU_ETCD3_AUTHENTICATE, .user = "me", .password = "no"), "authenticate as 'me'");
}

/* ---- Answers ---- */

static size_t show_kvs(char *line, size_t room, const struct mu_etcd3_kv *kvs, size_t count)
{
    size_t used = 0;

    for (size_t i = 0; i < count; i++)
        used +=
            (size_t)snprintf(line + used, room - used, " %.*s=%.*s(%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ")",
                             (int)kvs[i].key.len, kvs[i].key.data, (int)kvs[i].value.len, kvs[i].value.data,
                             kvs[i].create, kvs[i].mod, kvs[i].version, kvs[i].lease);
    return used;
}

static const char *answered(struct mu_etcd3_request request, unsigned status, const char *body)
{
    static const char *const kinds[] = { "range", "put", "delete" };
    static char line[4096];
    struct mu_etcd3_answer answer;
    struct muster_error error = { 0 };
    size_t used;

    if (mu_etcd3_read(&request, status, mu_slice_str(body), &answer, &error) < 0) {
        (void)snprintf(line, sizeof line, "%s: %s", muster_error_name(error.code), error.text);
        return line;
    }
    used = (size_t)snprintf(line, sizeof line, "@%" PRId64 "%s", answer.revision, answer.succeeded ? " yes" : "");
    for (size_t i = 0; i < answer.results_count; i++) {
        const struct mu_etcd3_result *result = &answer.results[i];

        used += (size_t)snprintf(line + used, sizeof line - used, " %s %" PRId64 "%s", kinds[result->kind],
                                 result->count, result->more ? "+" : "");
        used += show_kvs(line + used, sizeof line - used, result->kvs, result->kvs_count);
    }
    if (answer.lease != 0)
        used += (size_t)snprintf(line + used, sizeof line - used, " lease %" PRId64 " ttl %" PRId64, answer.lease,
                                 answer.ttl_s);
    if (answer.token.len > 0)
        used +=
            (size_t)snprintf(line + used, sizeof line - used, " token %.*s", (int)answer.token.len, answer.token.data);
    if (answer.code != 0) {
        int code = mu_etcd3_fail(answer.code, answer.message, status, &error);

        (void)snprintf(line + used, sizeof line - used, " %s: %s", muster_error_name(code), error.text);
    }
    mu_etcd3_answer_done(&answer);
    return line;
}

#define ANSWERED(status, body, ...) answered((struct mu_etcd3_request){ __VA_ARGS__ }, status, body)
#define KV(key)                                                                                                        \
    "{\"key\":\"" key "\",\"create_revision\":\"2\",\"mod_revision\":\"5\",\"version\":\"3\",\"value\":\"dg==\"}"

static void answers_are_read(void **state)
{
    (void)state;
    assert_string_equal(ANSWERED(200, "{" HEADER "}", .kind = MU_ETCD3_RANGE), "@7 range 0");
    assert_string_equal(ANSWERED(200,
                                 "{" HEADER ",\"kvs\":[" KV("YQ==") "," KV("Yg==") "],\"count\":\"9\",\"more\":true}",
                                 .kind = MU_ETCD3_RANGE),
                        "@7 range 9+ a=v(2,5,3,0) b=v(2,5,3,0)");
    assert_string_equal(
        ANSWERED(200,
                 "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{\"header\":{},\"prev_kv\":" KV(
                     "YQ==") "}},"
                             "{\"response_put\":{}},{\"response_delete_range\":{\"deleted\":\"2\",\"prev_kvs\":[" KV(
                                 "YQ==") "]}},"
                                         "{\"response_range\":{\"count\":\"0\"}}]}",
                 .kind = MU_ETCD3_TXN, .txn = { .success_count = 4 }),
        "@7 yes put 0 put 0 delete 2 range 0");
    assert_string_equal(ANSWERED(200, "{" HEADER "}", .kind = MU_ETCD3_TXN), "@7");
    assert_string_equal(ANSWERED(200, "{" HEADER ",\"ID\":\"9\",\"TTL\":\"5\"}", .kind = MU_ETCD3_GRANT),
                        "@7 lease 9 ttl 5");
    assert_string_equal(
        ANSWERED(200, "{\"result\":{" HEADER ",\"ID\":\"9\",\"TTL\":\"5\"}}\n", .kind = MU_ETCD3_KEEP_ALIVE),
        "@7 lease 9 ttl 5");
    assert_string_equal(ANSWERED(200, "{\"result\":{" HEADER ",\"ID\":\"9\"}}", .kind = MU_ETCD3_KEEP_ALIVE),
                        "@7 lease 9 ttl 0");
    assert_string_equal(ANSWERED(200, "{" HEADER ",\"token\":\"abc.1\"}", .kind = MU_ETCD3_AUTHENTICATE),
                        "@7 token abc.1");
    assert_string_equal(ANSWERED(200, "{" HEADER "}", .kind = MU_ETCD3_REVOKE), "@7");
}

static void errors_of_etcds_are_answers(void **state)
{
    (void)state;
    assert_string_equal(
        ANSWERED(503, "{\"error\":\"etcdserver: no leader\",\"message\":\"etcdserver: no leader\",\"code\":14}",
                 .kind = MU_ETCD3_RANGE),
        "@0 ELOST: HTTP 503, 14 etcdserver: no leader");
    assert_string_equal(
        ANSWERED(429, "{\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}", .kind = MU_ETCD3_TXN),
        "@0 ELIMIT: HTTP 429, 8 etcdserver: mvcc: database space exceeded");
    assert_string_equal(ANSWERED(404,
                                 "{\"error\":\"x\",\"code\":5,\"message\":\"etcdserver: requested lease not found\"}",
                                 .kind = MU_ETCD3_REVOKE),
                        "@0 EINVAL: HTTP 404, 5 etcdserver: requested lease not found");
    assert_string_equal(
        ANSWERED(200, "{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":\"etcdserver: no leader\"}}",
                 .kind = MU_ETCD3_KEEP_ALIVE),
        "@0 ELOST: HTTP 200, 14 etcdserver: no leader");
    assert_string_equal(
        ANSWERED(400, "{\"code\":3,\"message\":\"etcdserver: request is too large\"}", .kind = MU_ETCD3_TXN),
        "@0 ELIMIT: HTTP 400, 3 etcdserver: request is too large");
}

static void what_is_no_answer_is_named(void **state)
{
    static const struct {
        struct mu_etcd3_request request;
        unsigned status;
        const char *body, *error;
    } rows[] = {
        { { .kind = MU_ETCD3_RANGE }, 200, "", "EPROTOCOL: HTTP 200, an empty answer" },
        { { .kind = MU_ETCD3_RANGE }, 502, "<html>", "EPROTOCOL: HTTP 502, not a JSON object: '<html>'" },
        { { .kind = MU_ETCD3_RANGE },
          404,
          "404 page not found\n",
          "EPROTOCOL: no version 3 API here (etcd 3.4 or newer has it): HTTP 404, not a JSON object: '404 page not "
          "found'" },
        { { .kind = MU_ETCD3_RANGE }, 200, "{}", "EPROTOCOL: HTTP 200: 'header' is missing" },
        { { .kind = MU_ETCD3_RANGE },
          200,
          "{\"header\":{\"revision\":\"x\"}}",
          "EPROTOCOL: HTTP 200: 'header.revision' is not a number of 64 bits" },
        { { .kind = MU_ETCD3_RANGE },
          200,
          "{\"header\":{\"cluster_id\":\"-1\"}}",
          "EPROTOCOL: HTTP 200: 'header.cluster_id' is not a number of 64 bits, not negative" },
        { { .kind = MU_ETCD3_RANGE }, 200, "{" HEADER ",\"kvs\":{}}", "EPROTOCOL: HTTP 200: 'kvs' is not an array" },
        { { .kind = MU_ETCD3_RANGE }, 200, "{" HEADER ",\"kvs\":[7]}", "EPROTOCOL: HTTP 200: 'kvs' is not an object" },
        { { .kind = MU_ETCD3_RANGE }, 200, "{" HEADER ",\"kvs\":[{}]}", "EPROTOCOL: HTTP 200: 'kvs.key' is missing" },
        { { .kind = MU_ETCD3_RANGE },
          200,
          "{" HEADER ",\"kvs\":[{\"key\":\"YQ=\"}]}",
          "EPROTOCOL: HTTP 200: 'kvs.key' is not base64" },
        { { .kind = MU_ETCD3_RANGE },
          200,
          "{" HEADER ",\"kvs\":[{\"key\":\"YQ==\"}]}",
          "EPROTOCOL: HTTP 200: 'kvs.mod_revision' is missing" },
        { { .kind = MU_ETCD3_RANGE },
          200,
          "{" HEADER ",\"count\":true}",
          "EPROTOCOL: HTTP 200: 'count' is not a number of 64 bits" },
        { { .kind = MU_ETCD3_TXN, .txn = { .success_count = 1 } },
          200,
          "{" HEADER ",\"succeeded\":true}",
          "EPROTOCOL: HTTP 200: 'responses' has 0 elements instead of 1" },
        { { .kind = MU_ETCD3_TXN, .txn = { .failure_count = 1 } },
          200,
          "{" HEADER ",\"responses\":[{}]}",
          "EPROTOCOL: HTTP 200: 'responses' has an element that is not a response" },
        { { .kind = MU_ETCD3_TXN },
          200,
          "{" HEADER ",\"succeeded\":1}",
          "EPROTOCOL: HTTP 200: 'succeeded' is not true or false" },
        { { .kind = MU_ETCD3_GRANT }, 200, "{" HEADER ",\"TTL\":\"5\"}", "EPROTOCOL: HTTP 200: 'ID' is missing" },
        { { .kind = MU_ETCD3_GRANT },
          200,
          "{" HEADER ",\"ID\":\"99999999999999999999\"}",
          "EPROTOCOL: HTTP 200: 'ID' is not a number of 64 bits" },
        { { .kind = MU_ETCD3_AUTHENTICATE }, 200, "{" HEADER "}", "EPROTOCOL: HTTP 200: 'token' is missing" },
        { { .kind = MU_ETCD3_RANGE }, 500, "{\"message\":\"x\"}", "EPROTOCOL: HTTP 500: 'code' is missing" },
        { { .kind = MU_ETCD3_KEEP_ALIVE }, 200, "{\"result\":7}", "EPROTOCOL: HTTP 200: 'header' is missing" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(answered(rows[i].request, rows[i].status, rows[i].body), rows[i].error);
}

static void each_error_has_its_advice(void **state)
{
    static const struct {
        int code;
        const char *message;
        enum mu_etcd3_advice advice;
    } rows[] = {
        { MU_ETCD3_UNAVAILABLE, "etcdserver: no leader", MU_ETCD3_ELSEWHERE },
        { MU_ETCD3_UNAVAILABLE, "etcdserver: leader changed", MU_ETCD3_UNCERTAIN },
        { MU_ETCD3_UNAVAILABLE, "etcdserver: request timed out", MU_ETCD3_UNCERTAIN },
        { MU_ETCD3_UNAVAILABLE, "", MU_ETCD3_UNCERTAIN },
        { MU_ETCD3_DEADLINE, "context deadline exceeded", MU_ETCD3_UNCERTAIN },
        { MU_ETCD3_UNKNOWN, "?", MU_ETCD3_UNCERTAIN },
        { MU_ETCD3_EXHAUSTED, "etcdserver: too many requests", MU_ETCD3_ELSEWHERE },
        { MU_ETCD3_EXHAUSTED, "etcdserver: mvcc: database space exceeded", MU_ETCD3_TELL },
        { MU_ETCD3_UNAUTHENTICATED, "etcdserver: invalid auth token", MU_ETCD3_LOG_IN },
        { MU_ETCD3_INVALID, "etcdserver: user name is empty", MU_ETCD3_LOG_IN },
        { MU_ETCD3_INVALID, "etcdserver: revision of auth store is old", MU_ETCD3_LOG_IN },
        { MU_ETCD3_INVALID, "etcdserver: key is not provided", MU_ETCD3_TELL },
        { MU_ETCD3_DENIED, "etcdserver: permission denied", MU_ETCD3_TELL },
        { MU_ETCD3_NOT_FOUND, "etcdserver: requested lease not found", MU_ETCD3_TELL },
        { MU_ETCD3_OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", MU_ETCD3_TELL },
        { 99, "", MU_ETCD3_TELL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(mu_etcd3_advise(rows[i].code, mu_slice_str(rows[i].message)), rows[i].advice);
}

/* ---- Streams ---- */

static size_t show_message(char *line, size_t room, const struct mu_etcd3_message *message)
{
    size_t used =
        (size_t)snprintf(line, room, "[%s%s", message->created ? "created " : "", message->canceled ? "canceled " : "");

    if (message->code != 0)
        used += (size_t)snprintf(line + used, room - used, "%d ", message->code);
    if (message->compact_revision != 0)
        used += (size_t)snprintf(line + used, room - used, "compacted %" PRId64 " ", message->compact_revision);
    used += (size_t)snprintf(line + used, room - used, "@%" PRId64 "%.*s", message->revision, (int)message->message.len,
                             message->message.data);
    for (size_t i = 0; i < message->events_count; i++) {
        used += (size_t)snprintf(line + used, room - used, " %s",
                                 message->events[i].kind == MU_ETCD3_PUT ? "put" : "delete");
        used += show_kvs(line + used, room - used, &message->events[i].kv, 1);
    }
    return used + (size_t)snprintf(line + used, room - used, "]");
}

/* Everything that a stream of these bytes says, fed piece by piece. */
static const char *streamed(const char *text, size_t piece)
{
    static char line[4096];
    struct mu_etcd3_stream stream = { 0 };
    struct muster_error error = { 0 };
    size_t used = 0, len = strlen(text);
    int rc = 0;

    line[0] = '\0';
    for (size_t at = 0; at < len && rc >= 0; at += piece) {
        struct mu_etcd3_message message = { 0 };

        assert_int_equal(mu_etcd3_stream_feed(&stream, mu_slice(text + at, len - at < piece ? len - at : piece), NULL),
                         0);
        while ((rc = mu_etcd3_stream_next(&stream, &message, &error)) > 0) {
            used += show_message(line + used, sizeof line - used, &message);
            mu_etcd3_message_done(&message);
        }
    }
    if (rc < 0)
        (void)snprintf(line + used, sizeof line - used, "%s: %s", muster_error_name(error.code), error.text);
    mu_etcd3_stream_done(&stream);
    return line;
}

static void a_stream_says_the_same_in_any_pieces(void **state)
{
    static const char text[] =
        "{\"result\":{" HEADER ",\"created\":true}}\n"
        "{\"result\":{" HEADER ",\"events\":[{\"kv\":" KV(
            "YQ==") "},{\"type\":\"DELETE\",\"kv\":{\"key\":\"Yg==\","
                    "\"mod_revision\":\"6\"},\"prev_kv\":" KV(
                        "Yg==") "}]}}\n\r\n"
                                "{\"result\":{" HEADER ",\"watch_id\":\"0\"}}"
                                "{\"result\":{" HEADER
                                ",\"canceled\":true,\"compact_revision\":\"12\",\"cancel_reason\":\" {\\\"x\\\\}}\"}}\n"
                                "{\"error\":{\"grpc_code\":14,\"message\":\" lost\"}}\n";

    (void)state;
    for (size_t piece = 1; piece <= sizeof text; piece++)
        assert_string_equal(streamed(text, piece), "[created @7][@7 put a=v(2,5,3,0) delete b=(0,6,0,0)][@7]"
                                                   "[canceled compacted 12 @7 {\"x\\}}][14 @0 lost]");
}

static void what_is_no_stream_is_named(void **state)
{
    (void)state;
    assert_string_equal(streamed("404 page not found\n", 100),
                        "EPROTOCOL: not a message of a watch: '404 page not found?'");
    assert_string_equal(streamed("{\"result\":{" HEADER "}}x", 100), "[@7]EPROTOCOL: not a message of a watch: 'x'");
    assert_string_equal(streamed("{]}", 1), "EPROTOCOL: HTTP 200, not a JSON object: '{]}'");
    assert_string_equal(streamed("{}", 1), "EPROTOCOL: 'code' is missing");
    assert_string_equal(streamed("{\"result\":7}", 1), "EPROTOCOL: 'result' is not an object");
    assert_string_equal(streamed("{\"result\":{}}", 1), "EPROTOCOL: 'header' is missing");
    assert_string_equal(streamed("{\"result\":{" HEADER ",\"events\":[{}]}}", 1),
                        "EPROTOCOL: 'events.kv' is not an object");
    assert_string_equal(streamed("{\"result\":{" HEADER ",\"events\":[{\"type\":\"X\",\"kv\":" KV("YQ==") "}]}}", 1),
                        "EPROTOCOL: 'events.type' is neither PUT nor DELETE");
}

static void any_allocation_may_fail(void **state)
{
    const struct mu_etcd3_op op = { .kind = MU_ETCD3_OP_PUT, .key = BYTES("a"), .value = BYTES("b") };
    const struct mu_etcd3_request request = { .kind = MU_ETCD3_TXN, .txn = { .success = &op, .success_count = 1 } };
    const struct mu_slice body =
        BYTES("{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{\"prev_kv\":" KV("YQ==") "}}]}");
    const struct mu_slice bytes = BYTES("{\"result\":{" HEADER ",\"events\":[{\"kv\":" KV("YQ==") "}]}}");

    (void)state;
    json_set_alloc_funcs(malloc, free); /* the wrapped ones: jansson's may fail, too */
    FOR_EACH_FAILURE (n) {
        struct mu_buf wire = { 0 };
        struct mu_etcd3_answer answer = { 0 };
        struct mu_etcd3_stream stream = { 0 };
        struct mu_etcd3_message message = { 0 };
        int rc = mu_etcd3_build(&request, &wire, NULL);

        if (rc == 0)
            rc = mu_etcd3_read(&request, 200, body, &answer, NULL);
        if (rc == 0)
            rc = mu_etcd3_stream_feed(&stream, bytes, NULL);
        if (rc == 0)
            rc = mu_etcd3_stream_next(&stream, &message, NULL);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 1);
        mu_buf_done(&wire);
        mu_etcd3_answer_done(&answer);
        mu_etcd3_stream_done(&stream);
        mu_etcd3_message_done(&message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_have_their_form_on_the_wire),
        cmocka_unit_test(transactions_have_their_form_on_the_wire),
        cmocka_unit_test(the_rest_has_its_form_on_the_wire),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(each_request_has_a_name_for_errors),
        cmocka_unit_test(answers_are_read),
        cmocka_unit_test(errors_of_etcds_are_answers),
        cmocka_unit_test(what_is_no_answer_is_named),
        cmocka_unit_test(each_error_has_its_advice),
        cmocka_unit_test(a_stream_says_the_same_in_any_pieces),
        cmocka_unit_test(what_is_no_stream_is_named),
        cmocka_unit_test(any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
