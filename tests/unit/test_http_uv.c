/* HTTP to several servers, on a real loop with servers of the test's own. Where libcurl is not installed only its
 * absence is tested. */
#include "failmalloc.h"
#include "http_scene.h"
#include "kv/http_uv.h"

#include <dlfcn.h>

/* ---- Requests ---- */

static void on_done(struct mu_http_request *request)
{
    *(bool *)request->ctx = true;
    uv_stop(&loop); /* or it would wait for something else to happen */
}

static struct mu_http *start(const char *where)
{
    const struct mu_http_config config = { .endpoints = where, .first_is_first = true, .seed = 7 };
    struct mu_http *http = NULL;

    assert_int_equal(mu_http_start(&loop, &config, &http, NULL), 0);
    return http;
}

static void on_closed(void *ctx)
{
    *(bool *)ctx = true;
    uv_stop(&loop);
}

static void stop(struct mu_http *http)
{
    bool closed = false;

    mu_http_close(http, on_closed, &closed);
    run_until(&closed);
}

#define GET .method = "GET", .target = "/x?y=1", .what = "get x", .repeatable = true, .done = on_done
#define PUT                                                                                                            \
    .method = "PUT", .target = "/x", .what = "put x", .body = { "a=b", 3 }, .content_type = "text/x", .done = on_done

/* Makes it, waits for it, and gives it back; its reply must be freed. */
static struct mu_http_request ask(struct mu_http *http, struct mu_http_request request)
{
    bool done = false;

    request.ctx = &done;
    if (request.timeout_ms == 0)
        request.timeout_ms = 10000;
    mu_http_submit(http, &request);
    assert_false(done);
    run_until(&done);
    return request;
}

#define ASK(http, ...) ask(http, (struct mu_http_request){ __VA_ARGS__ })

static void assert_ok(struct mu_http_request request, unsigned endpoint)
{
    if (request.rc < 0)
        fail_msg("%s", request.error.text);
    assert_int_equal(request.status, 200);
    assert_int_equal(request.endpoint, endpoint);
    assert_int_equal(request.reply.len, 2);
    assert_memory_equal(request.reply.data, "ok", 2);
    mu_buf_done(&request.reply);
}

static void assert_fails(const struct mu_http_request *request, int rc, bool unsure, const char *text)
{
    if (request->rc != rc || strstr(request->error.text, text) == NULL)
        fail_msg("%s: %s", muster_error_name(request->rc), request->error.text);
    assert_int_equal(request->unsure, unsure);
    assert_null(request->reply.data);
}

/* ---- All is well ---- */

static void an_answer_has_status_index_and_body(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;
    char local[64];

    (void)state;
    assert_false(mu_http_local_address(http, local, sizeof local));
    request = ASK(http, GET);
    assert_int_equal(request.etcd_index, 42);
    assert_ok(request, 0);
    assert_int_equal(strncmp(servers[0].last, "GET /x?y=1 HTTP/1.1\r\n", 21), 0);
    assert_null(strcasestr(servers[0].last, "expect"));
    assert_true(mu_http_local_address(http, local, sizeof local));
    assert_string_equal(local, "127.0.0.1");
    assert_true(mu_http_answered_ms(http, 0) > 0);
    assert_int_equal(mu_http_answered_ms(http, 1), 0);
    assert_ok(ASK(http, PUT, .headers = { "X-A: b" }), 0);
    assert_int_equal(strncmp(servers[0].last, "PUT /x HTTP/1.1\r\n", 17), 0);
    assert_non_null(strstr(servers[0].last, "Content-Type: text/x\r\n"));
    assert_non_null(strstr(servers[0].last, "X-A: b\r\n"));
    assert_non_null(strstr(servers[0].last, "\r\n\r\na=b"));
    assert_int_equal(servers[0].connections, 1);
    stop(http);
}

static void statuses_below_500_are_answers(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;

    (void)state;
    servers[0].replies[0] = "HTTP/1.1 412 No\r\nContent-Length: 4\r\n\r\nnono";
    request = ASK(http, PUT);
    assert_int_equal(request.rc, 0);
    assert_int_equal(request.status, 412);
    assert_int_equal(request.reply.len, 4);
    mu_buf_done(&request.reply);
    servers[0].replies[1] = "HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    request = ASK(http, GET);
    assert_int_equal(request.status, 307);
    mu_buf_done(&request.reply);
    stop(http);
}

/* ---- Servers in trouble ---- */

static void the_next_server_is_asked_when_one_is_down(void **state)
{
    struct mu_http *http = start(endpoints);

    (void)state;
    take_down(0);
    assert_ok(ASK(http, PUT), 1); /* nothing was sent to the first */
    assert_ok(ASK(http, GET), 1);
    take_down(2);
    mu_http_give_up(http, 1);
    assert_ok(ASK(http, GET), 1);
    stop(http);
}

static char retried[512];

static void on_retry(struct mu_http_request *request, const struct muster_error *error)
{
    size_t used = strlen(retried);

    (void)request;
    (void)snprintf(retried + used, sizeof retried - used, "%.200s\n", error->text);
}

static void each_attempt_that_failed_is_told_with_its_server(void **state)
{
    struct mu_http *http = start(endpoints);
    char text[512];

    (void)state;
    retried[0] = '\0';
    servers[0].replies[0] = servers[1].replies[0] = "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n";
    assert_ok(ASK(http, GET, .on_retry = on_retry), 2);
    (void)snprintf(text, sizeof text, "get x: http://127.0.0.1:%u: HTTP 503\nget x: http://127.0.0.1:%u: HTTP 503\n",
                   ports[0], ports[1]);
    assert_string_equal(retried, text);
    stop(http);
}

static void a_server_in_trouble_is_left_for_the_next(void **state)
{
    struct mu_http *http = start(endpoints);

    (void)state;
    servers[0].replies[0] = "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n";
    servers[1].replies[0] = HANG_UP;
    assert_ok(ASK(http, GET), 2);
    assert_int_equal(servers[0].requests, 1);
    assert_int_equal(servers[1].requests, 1);
    stop(http);
}

static void the_next_server_is_sent_the_same_header_lines(void **state)
{
    struct mu_http *http = start(endpoints);
    bool done = false;
    char *lines[2] = { strdup("X-A: first"), strdup("X-B: second") };
    struct mu_http_request request = { PUT, .repeatable = true, .timeout_ms = 10000, .ctx = &done };

    (void)state;
    servers[0].replies[0] = HANG_UP;
    for (int i = 0; i < 2; i++)
        request.headers[i] = lines[i];
    mu_http_submit(http, &request);
    for (int i = 0; i < 2; i++) { /* whose they were has new ones */
        memset(lines[i], '?', strlen(lines[i]));
        free(lines[i]);
    }
    run_until(&done);
    assert_ok(request, 1);
    assert_non_null(strstr(servers[1].last, "\r\nX-A: first\r\nX-B: second\r\n"));
    stop(http);
}

static void what_is_under_way_says_what_was_tried(void **state)
{
    struct mu_http *http = start(endpoints);
    bool done = false;
    struct mu_http_request request = { GET, .timeout_ms = 10000, .ctx = &done };
    struct muster_error error;

    (void)state;
    servers[0].replies[0] = HANG_UP;
    servers[1].replies[0] = SILENT;
    mu_http_submit(http, &request);
    assert_int_equal(mu_http_so_far(&request, &error), MUSTER_ETIMEOUT);
    assert_non_null(strstr(error.text, "get x: http://127.0.0.1:"));
    assert_non_null(strstr(error.text, ": no answer"));
    while (servers[1].requests == 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(mu_http_so_far(&request, &error), MUSTER_ELOST);
    mu_http_cancel(&request);
    assert_int_equal(mu_http_so_far(&request, &error), MUSTER_ETIMEOUT);
    assert_string_equal(error.text, "get x: time is up");
    run_until(&done);
    stop(http);
}

static void what_must_not_be_done_twice_is_not_sent_twice(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;

    (void)state;
    servers[0].replies[0] = HANG_UP;
    request = ASK(http, PUT);
    assert_fails(&request, MUSTER_ELOST, true, "put x: http://127.0.0.1:");
    assert_int_equal(servers[0].requests, 1);
    assert_int_equal(servers[1].requests, 0);
    servers[1].replies[0] = "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n";
    request = ASK(http, .method = "DELETE", .target = "/x", .what = "delete x", .timeout_ms = 10000, .done = on_done);
    assert_fails(&request, MUSTER_ELOST, true, "HTTP 500");
    assert_int_equal(servers[2].requests, 0);
    stop(http);
}

/* libcurl would send it again by itself on a new connection, were it not told otherwise. */
static void a_kept_connection_that_dies_does_not_double_a_request(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;

    (void)state;
    servers[0].replies[1] = HANG_UP;
    servers[0].replies[2] = servers[0].replies[0];
    servers[0].replies[3] = HANG_UP;
    assert_ok(ASK(http, GET), 0);
    request = ASK(http, PUT);
    assert_fails(&request, MUSTER_ELOST, true, "put x");
    assert_int_equal(servers[0].requests, 2);
    mu_http_give_up(http, 1);
    mu_http_give_up(http, 2);
    assert_ok(ASK(http, GET), 0);
    request = ASK(http, .method = "DELETE", .target = "/x", .what = "delete x", .timeout_ms = 10000, .done = on_done);
    assert_fails(&request, MUSTER_ELOST, true, "delete x");
    assert_int_equal(servers[0].requests, 4);
    stop(http);
}

static void a_silent_server_is_left_for_the_next(void **state)
{
    struct mu_http *http = start(endpoints);

    (void)state;
    servers[0].replies[0] = SILENT;
    assert_ok(ASK(http, GET, .attempt_ms = 1000), 1);
    stop(http);
}

static void a_long_poll_takes_its_time_once_it_was_answered(void **state)
{
    const struct mu_http_config config = {
        .endpoints = endpoints, .first_is_first = true, .seed = 7, .attempt_ms = 1000
    };
    struct mu_http_request request;
    struct mu_http *http;

    (void)state;
    assert_int_equal(mu_http_start(&loop, &config, &http, NULL), 0);
    servers[0].replies[0] = SILENT;
    servers[1].replies[1] = servers[1].replies[0];
    servers[1].replies[0] = "HTTP/1.1 200 OK\r\nX-Etcd-Index: 9\r\n\r\n"; /* a head, and no more */
    request = ASK(http, .method = "GET", .target = "/", .what = "poll", .timeout_ms = 2500, .attempt_ms = UINT64_MAX,
                  .repeatable = true, .done = on_done);
    assert_fails(&request, MUSTER_ETIMEOUT, true, "poll");
    assert_int_equal(request.status, 200);
    assert_int_equal(request.etcd_index, 9);
    assert_ok(ASK(http, GET), 1); /* it did nothing wrong */
    stop(http);
}

static void a_long_poll_leaves_a_server_that_is_silent_to_others(void **state)
{
    struct mu_http *http = start(endpoints);
    bool done = false;
    struct mu_http_request poll = { GET, .timeout_ms = GUARD_MS, .attempt_ms = UINT64_MAX, .ctx = &done };

    (void)state;
    servers[0].replies[0] = "HTTP/1.1 200 OK\r\nX-Etcd-Index: 9\r\n\r\n"; /* a head, and no more */
    servers[0].replies[1] = SILENT;
    mu_http_submit(http, &poll);
    while (poll.etcd_index == 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_ok(ASK(http, GET, .attempt_ms = 1000), 1);
    run_until(&done);
    assert_ok(poll, 1);
    stop(http);
}

static void an_error_names_all_that_was_tried(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;

    (void)state;
    take_down(0);
    take_down(1);
    servers[2].replies[0] = "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n";
    request = ASK(http, GET, .timeout_ms = 1500);
    assert_true(request.rc == MUSTER_ECONNECT || request.rc == MUSTER_ELOST);
    for (unsigned i = 0; i < SERVERS; i++)
        if (strstr(request.error.text, mu_http_endpoint(http, i)) == NULL)
            fail_msg("%s", request.error.text);
    assert_non_null(strstr(request.error.text, "HTTP 503"));
    assert_non_null(strstr(request.error.text, " tries in 1."));
    assert_int_equal(strncmp(request.error.text, "get x: http://", 14), 0);
    stop(http);
}

static void a_last_try_without_an_answer_does_not_hide_what_came_before(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;

    (void)state;
    take_down(1);
    take_down(2);
    servers[0].replies[0] = "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n";
    servers[0].replies[1] = SILENT;
    request = ASK(http, GET, .timeout_ms = 3000, .attempt_ms = UINT64_MAX);
    assert_int_equal(request.rc, MUSTER_ETIMEOUT);
    if (strstr(request.error.text, "; before that: ") == NULL || strstr(request.error.text, "HTTP 503") == NULL)
        fail_msg("%s", request.error.text);
    stop(http);
}

static void a_request_for_one_server_is_tried_there_alone(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;

    (void)state;
    assert_ok(ASK(http, GET, .only = 2), 1);
    servers[2].replies[0] = HANG_UP;
    request = ASK(http, GET, .only = 3);
    assert_int_equal(request.rc, MUSTER_ELOST);
    assert_int_equal(servers[2].requests, 1);
    assert_int_equal(servers[0].requests, 0);
    stop(http);
}

static void what_is_no_http_is_an_error(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;

    (void)state;
    servers[0].replies[0] = "SSH-2.0-OpenSSH_9.2\r\n";
    request = ASK(http, GET, .only = 1, .timeout_ms = 500);
    assert_true(request.rc < 0);
    stop(http);
}

static void an_answer_that_is_too_long_is_an_error(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;

    (void)state;
    servers[0].replies[0] = LARGE;
    request = ASK(http, GET);
    assert_fails(&request, MUSTER_ELIMIT, true, "the answer is longer than 67108864 bytes");
    assert_int_equal(servers[1].requests, 0);
    stop(http);
}

static void an_answer_whose_head_is_too_long_is_an_error(void **state)
{
    static const char line[] = "X-Line: 0123456789012345678901234567890123456789012345678901234567890123456789\r\n";
    static char reply[MU_HTTP_HEAD_MAX + 1024];
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;
    size_t used = (size_t)snprintf(reply, sizeof reply, "HTTP/1.1 200 OK\r\n");

    (void)state;
    while (used <= MU_HTTP_HEAD_MAX)
        used += (size_t)snprintf(reply + used, sizeof reply - used, "%s", line);
    (void)snprintf(reply + used, sizeof reply - used, "Content-Length: 2\r\n\r\nok");
    servers[0].replies[0] = reply;
    request = ASK(http, GET);
    assert_fails(&request, MUSTER_ELIMIT, true, "the answer's head is longer than 65536 bytes");
    assert_int_equal(servers[1].requests, 0);
    stop(http);
}

/* ---- Streams ---- */

static char streamed[64];

static int on_chunk(struct mu_http_request *request, struct mu_slice bytes)
{
    size_t used = strlen(streamed);

    assert_int_equal(request->status, 200);
    (void)snprintf(streamed + used, sizeof streamed - used, "%.*s", (int)bytes.len, bytes.data);
    return strchr(streamed, '!') != NULL ? mu_fail(&request->error, MUSTER_EPROTOCOL, "an exclamation mark") : 0;
}

static void a_stream_is_given_as_it_comes(void **state)
{
    struct mu_http *http = start(endpoints);
    struct mu_http_request request;

    (void)state;
    servers[0].replies[0] = SILENT;
    servers[1].replies[0] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    streamed[0] = '\0';
    request = ASK(http, GET, .on_chunk = on_chunk, .attempt_ms = 1000);
    assert_int_equal(request.rc, 0);
    assert_int_equal(request.endpoint, 1);
    assert_string_equal(streamed, "abc");
    servers[2].replies[0] = "HTTP/1.1 200 OK\r\n\r\nd!e";
    streamed[0] = '\0';
    request = ASK(http, GET, .on_chunk = on_chunk, .only = 3);
    assert_fails(&request, MUSTER_EPROTOCOL, true, ": an exclamation mark");
    stop(http);
}

/* ---- Ends ---- */

static void what_is_canceled_is_told_later(void **state)
{
    struct mu_http *http = start(endpoints);
    bool done = false;
    struct mu_http_request request = { GET, .timeout_ms = 10000, .ctx = &done };

    (void)state;
    servers[0].replies[0] = SILENT;
    mu_http_submit(http, &request);
    mu_http_cancel(&request);
    mu_http_cancel(&request);
    assert_false(done);
    run_until(&done);
    assert_int_equal(request.rc, MUSTER_ECANCELED);
    for (int i = 0; i < SERVERS; i++)
        take_down(i);
    done = false;
    mu_http_submit(http, &request); /* all refuse, and it pauses */
    while (request.work != NULL && uv_backend_timeout(&loop) == 0)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    mu_http_cancel(&request);
    run_until(&done);
    assert_int_equal(request.rc, MUSTER_ECANCELED);
    stop(http);
}

static void closing_cancels_everything(void **state)
{
    struct mu_http *http = start(endpoints);
    bool done[3] = { false, false, false }, closed = false;
    struct mu_http_request requests[3] = { { GET, .ctx = &done[0] },
                                           { PUT, .ctx = &done[1] },
                                           { GET, .ctx = &done[2] } };

    (void)state;
    for (int i = 0; i < SERVERS; i++)
        servers[i].replies[0] = SILENT;
    for (int i = 0; i < 3; i++) {
        requests[i].timeout_ms = 10000;
        mu_http_submit(http, &requests[i]);
    }
    mu_http_close(http, on_closed, &closed);
    run_until(&closed);
    for (int i = 0; i < 3; i++) {
        assert_true(done[i]);
        assert_int_equal(requests[i].rc, MUSTER_ECANCELED);
    }
}

static void any_allocation_may_fail(void **state)
{
    const struct mu_http_config config = { .endpoints = endpoints, .first_is_first = true, .seed = 7 };

    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_http *http = NULL;
        struct mu_http_request request;
        int rc = mu_http_start(&loop, &config, &http, NULL);

        if (rc == 0) {
            request = ASK(http, GET, .headers = { "X-A: b", "X-B: c" }, .attempt_ms = 200, .timeout_ms = 5000);
            assert_true(request.rc == 0 || fail_alloc_hit());
            mu_buf_done(&request.reply);
            stop(http);
        } else {
            assert_int_equal(rc, MUSTER_ENOMEM);
        }
    }
}

/* ---- What cannot be ---- */

static void a_missing_library_is_named(void **state)
{
    const struct mu_http_config config = { .endpoints = "a", .library = "libcurl-nowhere.so.4" };
    struct mu_http *http = NULL;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_http_start(&loop, &config, &http, &error), MUSTER_ENOTSUP);
    assert_string_equal(error.text, "etcd: libcurl-nowhere.so.4 cannot be loaded: install libcurl4 (Debian, Ubuntu) or "
                                    "libcurl (Fedora, RHEL)");
}

static void a_wrong_configuration_is_named(void **state)
{
    static const struct {
        struct mu_http_config config;
        const char *text;
    } rows[] = {
        { { .endpoints = "" }, "endpoint ''" },
        { { .endpoints = "a", .protocol = "ftp" }, "protocol 'ftp' is neither http nor https" },
        { { .endpoints = "a", .ca_file = "/nowhere/ca" }, "CA file '/nowhere/ca'" },
        { { .endpoints = "a", .cert_file = "/nowhere/c" }, "certificate '/nowhere/c'" },
        { { .endpoints = "a", .key_file = "/dev/null" }, "a key ('/dev/null') needs a certificate" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_http *http = NULL;
        struct muster_error error = { 0 };

        assert_true(mu_http_start(&loop, &rows[i].config, &http, &error) < 0);
        if (strstr(error.text, rows[i].text) == NULL)
            fail_msg("%s", error.text);
    }
}

int main(void)
{
#define WITH_SERVERS(test) cmocka_unit_test_setup_teardown(test, start_servers, stop_servers)
    const struct CMUnitTest tests[] = {
        WITH_SERVERS(a_missing_library_is_named), /* before it is loaded */
        WITH_SERVERS(a_wrong_configuration_is_named),
        WITH_SERVERS(an_answer_has_status_index_and_body),
        WITH_SERVERS(statuses_below_500_are_answers),
        WITH_SERVERS(the_next_server_is_asked_when_one_is_down),
        WITH_SERVERS(each_attempt_that_failed_is_told_with_its_server),
        WITH_SERVERS(a_server_in_trouble_is_left_for_the_next),
        WITH_SERVERS(the_next_server_is_sent_the_same_header_lines),
        WITH_SERVERS(what_is_under_way_says_what_was_tried),
        WITH_SERVERS(what_must_not_be_done_twice_is_not_sent_twice),
        WITH_SERVERS(a_kept_connection_that_dies_does_not_double_a_request),
        WITH_SERVERS(a_silent_server_is_left_for_the_next),
        WITH_SERVERS(a_long_poll_takes_its_time_once_it_was_answered),
        WITH_SERVERS(a_long_poll_leaves_a_server_that_is_silent_to_others),
        WITH_SERVERS(an_error_names_all_that_was_tried),
        WITH_SERVERS(a_last_try_without_an_answer_does_not_hide_what_came_before),
        WITH_SERVERS(a_request_for_one_server_is_tried_there_alone),
        WITH_SERVERS(what_is_no_http_is_an_error),
        WITH_SERVERS(an_answer_that_is_too_long_is_an_error),
        WITH_SERVERS(an_answer_whose_head_is_too_long_is_an_error),
        WITH_SERVERS(a_stream_is_given_as_it_comes),
        WITH_SERVERS(what_is_canceled_is_told_later),
        WITH_SERVERS(closing_cancels_everything),
        WITH_SERVERS(any_allocation_may_fail),
    };
    const struct CMUnitTest without[] = { WITH_SERVERS(a_missing_library_is_named) };
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);

    return library != NULL ? cmocka_run_group_tests(tests, NULL, NULL) : cmocka_run_group_tests(without, NULL, NULL);
}
