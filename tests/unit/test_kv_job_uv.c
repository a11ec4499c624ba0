/* The store of agents whose rendezvous is in etcd, on a real loop: the job's keys at servers that say what the test
 * wants, the round's at a store of our own. */
#include "etcd_scene.h"
#include "failmalloc.h"
#include "kv/kv_job_uv.h"
#include "store/server_uv.h"

#define VERDICT "muster.job/verdict"
#define FOUND "{" HEADER("7") ",\"count\":\"1\",\"kvs\":[{\"key\":\"aw==\",\"mod_revision\":\"7\",\"value\":\"dg==\"}]}"
#define MISSING "{" HEADER("7") "}"
#define LOST(result) "{" HEADER("7") ",\"responses\":[{\"response_range\":" result "}]}"

struct scene {
    struct mu_etcd3 *etcd;
    struct mu_kv *kv;
    int64_t lease;
    unsigned closings;
    bool closed;
};

static struct scene scene;

static int64_t job_lease(void *ctx)
{
    return ((struct scene *)ctx)->lease;
}

static void on_closing(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    ((struct scene *)ctx)->closings++;
}

static int open_kv(void)
{
    const struct mu_kv_job_config config = { .run_id = "job",
                                             .prefix = "/p/",
                                             .marks = "/d/",
                                             .etcd = scene.etcd,
                                             .lease = job_lease,
                                             .on_closing = on_closing,
                                             .ctx = &scene };

    return mu_kv_job_start(&loop, &config, &scene.kv, NULL);
}

static int start_scene(void **state)
{
    (void)start_etcd(state);
    scene = (struct scene){ .lease = 77 };
    scene.etcd = open_etcd(NULL);
    return open_kv();
}

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    set_and_stop(ctx);
}

static void close_kv(void)
{
    scene.closed = false;
    scene.kv->ops->close(scene.kv, on_kv_closed, &scene.closed);
    assert_false(scene.closed);
    run_until(&scene.closed);
    scene.kv = NULL;
}

static int end_scene(void **state)
{
    if (scene.kv != NULL)
        close_kv();
    if (scene.etcd != NULL)
        close_etcd(scene.etcd);
    return stop_servers(state);
}

static void on_done(struct mu_kv_request *request)
{
    set_and_stop(request->ctx);
}

static struct muster_slice text_slice(const char *text)
{
    return (struct muster_slice){ text, strlen(text) };
}

#define REQUEST(what, key_text, ...)                                                                                   \
    ((struct mu_kv_request){                                                                                           \
        .kind = MU_KV_##what, .key = text_slice(key_text), .timeout_ms = 10000, .done = on_done, __VA_ARGS__ })

static void submit(struct mu_kv_request *request, bool *done)
{
    *done = false;
    request->ctx = done;
    scene.kv->ops->submit(scene.kv, request);
    assert_false(*done);
}

/* Asks and waits; what it was answered is in `said`. */
static char said[64];

static struct mu_kv_request asked(struct mu_kv_request request)
{
    bool done;

    submit(&request, &done);
    run_until(&done);
    (void)snprintf(said, sizeof said, "%.*s", (int)request.bytes.len,
                   request.bytes.data == NULL ? "" : (const char *)request.bytes.data);
    muster_bytes_done(&request.bytes);
    return request;
}

static void assert_refused(struct mu_kv_request request, int rc, const char *text)
{
    request = asked(request);
    if (request.rc != rc || request.error.code != rc || strstr(request.error.text, text) == NULL)
        fail_msg("%s: %s", muster_error_name(request.rc), request.error.text);
}

/* ---- The job's keys ---- */

static void what_is_the_jobs_is_kept_in_etcd(void **state)
{
    (void)state;
    script[MU_ETCD3_RANGE].lines[0] = FOUND;
    assert_int_equal(asked(REQUEST(GET, VERDICT)).rc, 0);
    assert_string_equal(said, "v");
    assert_string_equal(script[MU_ETCD3_RANGE].body, "{\"key\":\"L3AvdmVyZGljdA==\"}"); /* /p/verdict */
    assert_true(asked(REQUEST(CHECK, VERDICT)).found);
    assert_int_equal(asked(REQUEST(SET, VERDICT, .value = { "x", 1 })).rc, 0);
    assert_string_equal(script[MU_ETCD3_TXN].body, "{\"success\":[{\"request_put\":{\"key\":\"L3AvdmVyZGljdA==\","
                                                   "\"value\":\"eA==\",\"lease\":\"77\"}}]}");
    script[MU_ETCD3_RANGE].lines[1] = MISSING;
    script[MU_ETCD3_RANGE].asked = 1;
    assert_false(asked(REQUEST(CHECK, VERDICT)).found);
}

/* Whoever serves the round's store may be the first that ends. */
static void done_marks_outlive_the_store_of_the_round(void **state)
{
    static const char mark[] = "muster.job/3.00000000000000cd/done/2";

    (void)state;
    assert_int_equal(asked(REQUEST(SET, mark, .value = { "x", 1 })).rc, 0);
    assert_string_equal(script[MU_ETCD3_TXN].body, /* /d/3.00000000000000cd/done/2 */
                        "{\"success\":[{\"request_put\":{\"key\":\"L2QvMy4wMDAwMDAwMDAwMDAwMGNkL2RvbmUvMg==\","
                        "\"value\":\"eA==\",\"lease\":\"77\"}}]}");
    script[MU_ETCD3_RANGE].lines[0] = FOUND;
    assert_true(asked(REQUEST(CHECK, mark)).found);
    assert_refused(REQUEST(GET, "muster.job/3.00000000000000cd/done"), MUSTER_ERDZV_CONNECTION, "no store of a round");
}

static void a_compare_and_set_answers_as_a_tcpstore_does(void **state)
{
    (void)state;
    assert_int_equal(asked(REQUEST(COMPARE_SET, VERDICT, .value = { "new", 3 })).rc, 0); /* nothing expected there */
    assert_string_equal(said, "new");
    assert_non_null(strstr(script[MU_ETCD3_TXN].body, "\"target\":\"CREATE\""));
    script[MU_ETCD3_TXN].lines[1] =
        LOST("{\"count\":\"1\",\"kvs\":[{\"key\":\"aw==\",\"mod_revision\":\"7\",\"value\":\"dg==\"}]}");
    (void)asked(REQUEST(COMPARE_SET, VERDICT, .token = { "old", 3 }, .value = { "new", 3 }));
    assert_string_equal(said, "v"); /* what is there */
    assert_non_null(strstr(script[MU_ETCD3_TXN].body, "\"target\":\"VALUE\",\"result\":\"EQUAL\",\"value\":\"b2xk\""));
    script[MU_ETCD3_TXN].lines[2] = LOST("{}");
    (void)asked(REQUEST(COMPARE_SET, VERDICT, .token = { "old", 3 }, .value = { "new", 3 }));
    assert_string_equal(said, "old"); /* nothing is there: what was expected */
}

/* As a stranger may have left it; on a TCPStore nothing and an empty value compare alike. */
static void a_compare_and_set_from_nothing_replaces_an_empty_value(void **state)
{
    (void)state;
    script[MU_ETCD3_TXN].lines[1] = script[MU_ETCD3_TXN].lines[0];
    script[MU_ETCD3_TXN].lines[0] = LOST("{\"count\":\"1\",\"kvs\":[{\"key\":\"aw==\",\"mod_revision\":\"7\"}]}");
    assert_int_equal(asked(REQUEST(COMPARE_SET, VERDICT, .value = { "new", 3 })).rc, 0);
    assert_string_equal(said, "new");
    assert_int_equal(script[MU_ETCD3_TXN].asked, 2);
    assert_non_null(strstr(script[MU_ETCD3_TXN].body, "\"target\":\"VALUE\",\"result\":\"EQUAL\",\"value\":\"\""));
}

static void a_get_waits_for_its_key(void **state)
{
    struct mu_kv_request get = REQUEST(GET, VERDICT);
    struct mu_slice key = mu_slice_str("verdict"), other = mu_slice_str("other");
    bool done;

    (void)state;
    submit(&get, &done);
    UNTIL(script[MU_ETCD3_RANGE].asked == 1);
    take_turn(); /* the answer is in: it waits, and nobody is asked */
    mu_kv_job_changed(scene.kv, &other);
    take_turn();
    assert_int_equal(script[MU_ETCD3_RANGE].asked, 1);
    mu_kv_job_changed(scene.kv, &key);
    UNTIL(script[MU_ETCD3_RANGE].asked == 2); /* not what it waits for */
    script[MU_ETCD3_RANGE].lines[2] = FOUND;
    script[MU_ETCD3_RANGE].lines[1] = MISSING;
    take_turn();
    mu_kv_job_changed(scene.kv, NULL); /* any may have changed */
    run_until(&done);
    assert_int_equal(get.rc, 0);
    muster_bytes_done(&get.bytes);
}

static void a_key_that_comes_while_it_is_asked_for_is_asked_for_again(void **state)
{
    struct mu_kv_request get = REQUEST(GET, VERDICT);
    struct mu_slice key = mu_slice_str("verdict");
    bool done;

    (void)state;
    script[MU_ETCD3_RANGE].lines[0] = MISSING;
    script[MU_ETCD3_RANGE].lines[1] = FOUND;
    submit(&get, &done);
    mu_kv_job_changed(scene.kv, &key);
    run_until(&done);
    assert_int_equal(get.rc, 0);
    assert_int_equal(script[MU_ETCD3_RANGE].asked, 2);
    muster_bytes_done(&get.bytes);
}

static void a_get_ends_with_its_time(void **state)
{
    struct mu_kv_request get = REQUEST(GET, VERDICT);

    (void)state;
    get.timeout_ms = 100;
    assert_refused(get, MUSTER_ETIMEOUT, "'verdict' is not there");
    script[MU_ETCD3_RANGE].lines[0] = SILENT;
    assert_refused(get, MUSTER_ETIMEOUT, "the job's 'verdict' in etcd: read '/p/verdict': http://");
}

static void an_error_of_etcds_is_told_with_the_key(void **state)
{
    (void)state;
    script[MU_ETCD3_TXN].lines[0] = "429 " FAILURE("8", "etcdserver: mvcc: database space exceeded");
    assert_refused(REQUEST(SET, VERDICT), MUSTER_ELIMIT, "the job's 'verdict' in etcd: transact on '/p/verdict': ");
}

static void what_cannot_be_is_refused(void **state)
{
    char key[512];

    (void)state;
    assert_refused(REQUEST(ADD, VERDICT, .number = 1), MUSTER_ENOTSUP, "add the job's 'verdict' in etcd");
    assert_refused(REQUEST(DELETE, VERDICT), MUSTER_ENOTSUP, "there is no such request");
    (void)snprintf(key, sizeof key, "muster.job/%0300d", 1);
    assert_refused(REQUEST(GET, key), MUSTER_ELIMIT, "a key of 300 bytes is too long");
    assert_refused(REQUEST(GET, "muster.job/7.x/ranks"), MUSTER_ERDZV_CONNECTION, "there is no store of a round");
    assert_refused(REQUEST(GET, "verdict"), MUSTER_ERDZV_CONNECTION, "there is no store of a round");
    scene.lease = 0;
    assert_refused(REQUEST(SET, VERDICT), MUSTER_ERDZV_CONNECTION, "the lease of the job is not known");
    assert_refused(REQUEST(COMPARE_SET, VERDICT), MUSTER_ERDZV_CONNECTION, "the lease of the job is not known");
    assert_int_equal(script[MU_ETCD3_RANGE].asked + script[MU_ETCD3_TXN].asked, 0);
}

static bool enough;

static void on_enough(uv_timer_t *timer)
{
    (void)timer;
    enough = true;
    uv_stop(&loop);
}

static void ask_again(struct mu_kv_request *request)
{
    if (enough)
        set_and_stop(request->ctx);
    else
        scene.kv->ops->submit(scene.kv, request);
}

static void who_asks_again_at_once_does_not_keep_the_loop(void **state)
{
    struct mu_kv_request request = REQUEST(GET, "of a round");
    uv_timer_t timer;
    bool done;

    (void)state;
    enough = false;
    request.done = ask_again;
    (void)uv_timer_init(&loop, &timer);
    (void)uv_timer_start(&timer, on_enough, 20, 0);
    submit(&request, &done);
    run_until(&done);
    uv_close((uv_handle_t *)&timer, NULL);
    take_turn();
}

/* ---- The round's keys ---- */

static void on_server_closed(struct mu_server *server, void *ctx)
{
    (void)server;
    set_and_stop(ctx);
}

static struct mu_server *serve(void)
{
    const struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct mu_server *server = NULL;

    assert_int_equal(mu_server_start_as(&loop, &config, &server, NULL), 0);
    return server;
}

static void stop_serving(struct mu_server *server)
{
    bool closed = false;

    mu_server_close(server, on_server_closed, &closed);
    run_until(&closed);
}

static void what_is_the_rounds_is_in_its_store(void **state)
{
    struct mu_server *servers_of[2] = { serve(), serve() };
    struct mu_kv_request wait = REQUEST(GET, "never"), late = REQUEST(GET, "late");
    bool done, late_done;

    (void)state;
    mu_kv_job_meet(scene.kv, "127.0.0.1", mu_addr_port(mu_server_address(servers_of[0])));
    assert_int_equal(asked(REQUEST(SET, "muster.job/7.x/a", .value = { "1", 1 })).rc, 0);
    assert_int_equal(asked(REQUEST(ADD, "counter", .number = 5)).number, 5);
    (void)asked(REQUEST(GET, "muster.job/7.x/a"));
    assert_string_equal(said, "1");
    submit(&wait, &done);
    take_turn();
    mu_kv_job_meet(scene.kv, "127.0.0.1", mu_addr_port(mu_server_address(servers_of[1])));
    run_until(&done); /* of the round before */
    assert_int_equal(wait.rc, MUSTER_ECANCELED);
    assert_false(asked(REQUEST(CHECK, "counter")).found);
    submit(&late, &late_done);
    close_kv();
    assert_true(late_done);
    assert_int_equal(late.rc, MUSTER_ECANCELED);
    assert_int_equal(script[MU_ETCD3_RANGE].asked + script[MU_ETCD3_TXN].asked, 0);
    for (int i = 0; i < 2; i++)
        stop_serving(servers_of[i]);
}

/* ---- Ends ---- */

/* A GET that waits, calls under way, and one that is refused but does not know it yet. */
static void ask_for_all(struct mu_kv_request requests[static 4], bool done[static 4])
{
    requests[0] = REQUEST(GET, VERDICT);
    requests[1] = REQUEST(GET, "muster.job/budget");
    requests[2] = REQUEST(COMPARE_SET, VERDICT, .value = { "x", 1 });
    requests[3] = REQUEST(ADD, VERDICT);
    script[MU_ETCD3_RANGE].lines[1] = script[MU_ETCD3_TXN].lines[0] = SILENT;
    submit(&requests[0], &done[0]);
    UNTIL(script[MU_ETCD3_RANGE].asked == 1);
    take_turn();
    submit(&requests[1], &done[1]);
    submit(&requests[2], &done[2]);
    UNTIL(script[MU_ETCD3_RANGE].asked == 2 && script[MU_ETCD3_TXN].asked == 1);
    submit(&requests[3], &done[3]);
}

static void assert_all_told(const struct mu_kv_request requests[static 4], const bool done[static 4])
{
    for (int i = 0; i < 4; i++) {
        assert_true(done[i]);
        assert_int_equal(requests[i].rc, i == 3 ? MUSTER_ENOTSUP : MUSTER_ECANCELED);
        assert_int_equal(requests[i].error.code, requests[i].rc);
    }
}

static void closing_ends_everything(void **state)
{
    struct mu_kv_request requests[4];
    bool done[4];

    (void)state;
    ask_for_all(requests, done);
    close_kv();
    assert_all_told(requests, done);
    assert_int_equal(scene.closings, 1);
}

static void it_outlives_its_handler_and_the_client(void **state)
{
    struct mu_kv_request requests[4];
    bool done[4], closed = false;

    (void)state;
    ask_for_all(requests, done);
    mu_kv_job_detach(scene.kv);
    mu_etcd3_close(scene.etcd, set_and_stop, &closed);
    scene.etcd = NULL;
    run_until(&closed);
    mu_kv_job_changed(scene.kv, NULL); /* nobody is asked */
    assert_refused(REQUEST(GET, VERDICT), MUSTER_ERDZV_CONNECTION, "the lease of the job is not known");
    assert_true(done[1] && done[2] && done[3]);
    close_kv();
    assert_all_told(requests, done);
    assert_int_equal(scene.closings, 0);
}

static void it_is_closed_after_it_was_detached_and_before_the_client_is(void **state)
{
    struct mu_kv_request requests[4];
    bool done[4], closed = false;

    (void)state;
    ask_for_all(requests, done);
    mu_kv_job_detach(scene.kv);
    scene.closed = false;
    scene.kv->ops->close(scene.kv, on_kv_closed, &scene.closed);
    take_turn();
    assert_false(scene.closed); /* two calls are the client's to end */
    mu_etcd3_close(scene.etcd, set_and_stop, &closed);
    scene.etcd = NULL;
    UNTIL(closed && scene.closed);
    scene.kv = NULL;
    assert_all_told(requests, done);
    assert_int_equal(scene.closings, 0);
}

static void close_from_inside(struct mu_kv_request *request)
{
    (void)request;
    scene.kv->ops->close(scene.kv, on_kv_closed, &scene.closed);
    scene.kv = NULL;
}

static void it_can_be_closed_from_inside_of_an_answer(void **state)
{
    static const struct {
        enum mu_kv_kind kind;
        uint64_t timeout_ms;
    } rows[] = { { MU_KV_CHECK, 10000 }, { MU_KV_GET, 20 }, { MU_KV_ADD, 10000 } }; /* answered, timed out, refused */

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_kv_request first = REQUEST(GET, VERDICT), wait = REQUEST(GET, "muster.job/budget");
        bool done, never;

        scene.closed = false;
        first.kind = rows[i].kind;
        first.timeout_ms = rows[i].timeout_ms;
        first.done = close_from_inside;
        submit(&wait, &done);
        submit(&first, &never);
        run_until(&scene.closed);
        assert_true(done);
        assert_int_equal(wait.rc, MUSTER_ECANCELED);
        assert_int_equal(open_kv(), 0);
    }
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    close_kv();
    close_etcd(scene.etcd);
    scene.etcd = NULL;
    FOR_EACH_FAILURE (n) {
        struct mu_kv_request request;

        script[MU_ETCD3_RANGE].lines[0] = FOUND;
        scene.etcd = open_etcd(NULL);
        if (scene.etcd == NULL)
            continue;
        if (open_kv() == 0) {
            request = asked(REQUEST(GET, VERDICT));
            assert_true(request.rc == 0 || (request.rc == MUSTER_ENOMEM && fail_alloc_hit()));
            request = asked(REQUEST(COMPARE_SET, VERDICT, .value = { "x", 1 }));
            assert_true(request.rc == 0 || (request.rc == MUSTER_ENOMEM && fail_alloc_hit()));
            mu_kv_job_meet(scene.kv, "127.0.0.1", 1);
            close_kv();
        }
        close_etcd(scene.etcd);
        scene.etcd = NULL;
    }
}

int main(void)
{
#define SCENE(test) cmocka_unit_test_setup_teardown(test, start_scene, end_scene)
    const struct CMUnitTest tests[] = {
        SCENE(what_is_the_jobs_is_kept_in_etcd),
        SCENE(done_marks_outlive_the_store_of_the_round),
        SCENE(a_compare_and_set_answers_as_a_tcpstore_does),
        SCENE(a_compare_and_set_from_nothing_replaces_an_empty_value),
        SCENE(a_get_waits_for_its_key),
        SCENE(a_key_that_comes_while_it_is_asked_for_is_asked_for_again),
        SCENE(a_get_ends_with_its_time),
        SCENE(an_error_of_etcds_is_told_with_the_key),
        SCENE(what_cannot_be_is_refused),
        SCENE(who_asks_again_at_once_does_not_keep_the_loop),
        SCENE(what_is_the_rounds_is_in_its_store),
        SCENE(closing_ends_everything),
        SCENE(it_outlives_its_handler_and_the_client),
        SCENE(it_is_closed_after_it_was_detached_and_before_the_client_is),
        SCENE(it_can_be_closed_from_inside_of_an_answer),
        SCENE(any_allocation_may_fail),
    };

    return run_with_curl("kv_job_uv", tests, COUNT(tests));
}
