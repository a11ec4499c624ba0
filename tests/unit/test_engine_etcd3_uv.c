/* The engine client over etcd on a real loop, with a server that says what the test wants: each request is answered
 * once, from the loop, and nothing is heard after the end. With a real etcd it is tested in tests/interop. */
#include "etcd_scene.h"
#include "failmalloc.h"
#include "kv/engine_etcd3_uv.h"

static struct mu_engine_client *client;
static char heard[TEXT_MAX]; /* "<event> <id>, ..." */
static struct mu_fold_event last;
static bool calling, closes_when_heard, closed;

static void close_client(void)
{
    client->ops->close(client, set_and_stop, &closed);
    client = NULL;
}

static void on_heard(void *ctx, const struct mu_fold_event *event)
{
    size_t used = strlen(heard);

    assert_ptr_equal(ctx, &client);
    assert_false(calling);
    (void)snprintf(heard + used, sizeof heard - used, "%s%s %d", used > 0 ? ", " : "", mu_fold_event_text(event->type),
                   (int)event->id);
    last = *event;
    last.kvs = NULL;
    if (closes_when_heard)
        close_client();
}

static int start_with(void **state, uint64_t renew_ms)
{
    struct mu_engine_etcd3_config config = {
        .etcd = { .http = { .endpoints = endpoints, .first_is_first = true, .seed = 7 } },
        .run_id = "job",
        .lease_s = 1000,
        .job_lease_s = 4000,
        .renew_ms = renew_ms,
    };

    (void)start_etcd(state);
    script[MU_ETCD3_GRANT].lines[0] = "{" HEADER("7") ",\"ID\":\"1\",\"TTL\":\"1000\"}";
    script[MU_ETCD3_RANGE].lines[0] = "{" HEADER("7") ",\"count\":\"1\",\"kvs\":[]}";
    heard[0] = '\0';
    calling = closes_when_heard = closed = false;
    return mu_engine_etcd3_start(&loop, &config, on_heard, &client, &client, NULL);
}

static int start_client(void **state)
{
    return start_with(state, 0);
}

static int start_often(void **state)
{
    return start_with(state, 20);
}

static int end_client(void **state)
{
    if (client != NULL)
        close_client();
    run_until(&closed);
    return stop_servers(state);
}

static void ask(struct mu_fold_effect effect)
{
    calling = true;
    client->ops->request(client, &effect, UINT64_MAX);
    calling = false;
}

#define ASK(...) ask((struct mu_fold_effect){ __VA_ARGS__ })

static const struct mu_fold_op doc_op = { MU_FOLD_PUT, { "job/doc", 7 }, { "v", 1 }, 0 };
static const struct mu_fold_write put_doc = {
    .compares = { { MU_FOLD_ABSENT, { "job/doc", 7 }, 0 } },
    .compares_count = 1,
    .ops = &doc_op,
    .ops_count = 1,
};

static void each_request_is_answered_once_from_the_loop(void **state)
{
    (void)state;
    ASK(.type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_NODES);
    UNTIL(heard[0] != '\0');
    assert_true(last.scope == MU_FOLD_NODES && last.count == 0);
    UNTIL(last.type == MU_FOLD_ON_TROUBLE); /* it can be heard */
    ASK(.type = MU_FOLD_DO_WRITE, .id = UINT64_C(1) << 20, .write = &put_doc);
    UNTIL(last.type == MU_FOLD_ON_WROTE);
    assert_true(last.held && last.revision == 8);
    ASK(.type = MU_FOLD_DO_GRANT_JOB, .id = 3);
    UNTIL(last.type == MU_FOLD_ON_GRANTED);
    assert_non_null(strstr(script[MU_ETCD3_GRANT].body, "\"4000\""));
    ASK(.type = MU_FOLD_DO_KEEP_JOB, .id = 4, .lease = 1);
    UNTIL(last.type == MU_FOLD_ON_KEPT);
    ASK(.type = MU_FOLD_DO_TAKE_LEASE, .id = 5);
    UNTIL(last.type == MU_FOLD_ON_LEASED);
    assert_true(last.lease != 0);
    assert_non_null(strstr(script[MU_ETCD3_GRANT].body, "\"1000\""));
    ASK(.type = MU_FOLD_DO_DROP_LEASE, .id = 6, .lease_take = 5);
    UNTIL(last.type == MU_FOLD_ON_DROPPED);
    assert_int_equal(script[MU_ETCD3_REVOKE].asked, 1);
    ASK(.type = MU_FOLD_DO_UNMARK);
    UNTIL(script[MU_ETCD3_TXN].asked == 2);
    take_turn();
    assert_string_equal(heard, "loaded 1, trouble 0, wrote 1048576, granted 3, kept 4, leased 5, dropped 6");
}

static void a_loaded_scope_tells_its_changes_until_it_is_unwatched(void **state)
{
    (void)state;
    ASK(.type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_JOB);
    UNTIL(stream != NULL && last.type == MU_FOLD_ON_TROUBLE); /* it can be heard */
    on_stream_text(EVENTS("9", EVENT("L211c3Rlci9qb2Ivam9iL2RvYw==", "9")));
    UNTIL(last.type == MU_FOLD_ON_CHANGED);
    assert_true(last.scope == MU_FOLD_JOB && last.count == 1);
    ASK(.type = MU_FOLD_DO_UNWATCH, .scope = MU_FOLD_JOB);
    ASK(.type = MU_FOLD_DO_WRITE, .id = 2, .write = &put_doc);
    UNTIL(last.type == MU_FOLD_ON_WROTE);
    assert_string_equal(heard, "loaded 1, trouble 0, changed 0, wrote 2");
}

static void a_load_that_is_replaced_is_not_answered(void **state)
{
    (void)state;
    ASK(.type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_JOB);
    ASK(.type = MU_FOLD_DO_LOAD, .id = 2, .scope = MU_FOLD_JOB);
    UNTIL(heard[0] != '\0');
    assert_string_equal(heard, "loaded 2");
}

/* One after the other, each without the memory for its call. */
static void without_memory_each_request_fails_from_the_loop(void **state)
{
    static const enum mu_fold_effect_type types[] = { MU_FOLD_DO_LOAD,        MU_FOLD_DO_WRITE,
                                                      MU_FOLD_DO_GRANT_JOB,   MU_FOLD_DO_KEEP_JOB,
                                                      MU_FOLD_DO_LOOK_AROUND, MU_FOLD_DO_TAKE_LEASE,
                                                      MU_FOLD_DO_LOAD };

    (void)state;
    for (size_t i = 0; i < COUNT(types); i++) {
        fail_alloc_at(1);
        ASK(.type = types[i], .id = i + 1, .write = &put_doc);
        fail_alloc_at(0);
    }
    ASK(.type = MU_FOLD_DO_DROP_LEASE, .id = 8, .lease_take = 6); /* there is none */
    ASK(.type = MU_FOLD_DO_DROP_LEASE, .lease_take = 6);          /* no answer is wanted */
    assert_string_equal(heard, "");
    UNTIL(last.type == MU_FOLD_ON_DROPPED);
    assert_string_equal(heard, "request failed 2, request failed 3, request failed 4, crowd 5, lease lost 6, "
                               "request failed 7, dropped 8"); /* the first load was replaced */
}

static void without_memory_a_lease_is_ended_all_the_same(void **state)
{
    (void)state;
    ASK(.type = MU_FOLD_DO_TAKE_LEASE, .id = 1);
    UNTIL(last.type == MU_FOLD_ON_LEASED);
    fail_alloc_at(1);
    ASK(.type = MU_FOLD_DO_DROP_LEASE, .id = 2, .lease_take = 1);
    fail_alloc_at(0);
    UNTIL(last.type == MU_FOLD_ON_DROPPED && script[MU_ETCD3_REVOKE].asked == 1);
}

static void closing_ends_the_lease_and_cancels_what_is_under_way(void **state)
{
    (void)state;
    ASK(.type = MU_FOLD_DO_TAKE_LEASE, .id = 1);
    UNTIL(last.type == MU_FOLD_ON_LEASED);
    script[MU_ETCD3_TXN].lines[0] = script[MU_ETCD3_RANGE].lines[0] = SILENT;
    ASK(.type = MU_FOLD_DO_WRITE, .id = 2, .write = &put_doc);
    ASK(.type = MU_FOLD_DO_LOAD, .id = 3, .scope = MU_FOLD_JOB);
    ASK(.type = MU_FOLD_DO_DROP_LEASE, .id = 4, .lease_take = 9); /* of another take: answered at once, not any more */
    close_client();
    run_until(&closed);
    assert_int_equal(script[MU_ETCD3_REVOKE].asked, 1);
    assert_string_equal(heard, "leased 1");
}

static void it_may_be_closed_by_what_is_heard(void **state)
{
    (void)state;
    closes_when_heard = true;
    ASK(.type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_JOB);
    ASK(.type = MU_FOLD_DO_WRITE, .id = 2, .write = &put_doc);
    ASK(.type = MU_FOLD_DO_TAKE_LEASE, .id = 3);
    run_until(&closed);
    assert_null(strchr(heard, ','));
}

static void a_request_lasts_until_its_time_at_most(void **state)
{
    (void)state;
    script[MU_ETCD3_TXN].lines[0] = SILENT;
    calling = true;
    client->ops->request(client, &(struct mu_fold_effect){ .type = MU_FOLD_DO_UNMARK }, UINT64_MAX);
    client->ops->request(client, &(struct mu_fold_effect){ .type = MU_FOLD_DO_WRITE, .id = 1, .write = &put_doc },
                         uv_now(&loop) + 50);
    calling = false;
    UNTIL(heard[0] != '\0');
    assert_true(last.type == MU_FOLD_ON_REQUEST_FAILED && last.id == 1 && !last.final);
}

/* A lease of 1000 s is not kept alive otherwise while this test runs. */
static void renewals_are_told_with_the_time_that_they_were_sent(void **state)
{
    uint64_t sent_ms, asked_ms = uv_now(&loop);

    (void)state;
    ASK(.type = MU_FOLD_DO_TAKE_LEASE, .id = 5);
    UNTIL(last.type == MU_FOLD_ON_LEASED);
    sent_ms = last.sent_ms;
    assert_true(sent_ms >= asked_ms && sent_ms <= uv_now(&loop));
    for (unsigned i = 0; i < 3; i++) {
        last.type = MU_FOLD_ON_LEASED;
        UNTIL(last.type == MU_FOLD_ON_RENEWED);
        assert_true(last.id == 5 && last.sent_ms > sent_ms && last.sent_ms <= uv_now(&loop));
        sent_ms = last.sent_ms;
    }
}

static void with_a_lease_there_is_a_will(void **state)
{
    const struct mu_fold_op mark = { MU_FOLD_PUT, { "nodes/1/killed", 14 }, { "{}", 2 }, 4 };
    struct mu_kv_lone will;

    (void)state;
    assert_false(client->ops->will(client, &mark, &will));
    ASK(.type = MU_FOLD_DO_TAKE_LEASE, .id = 5);
    assert_false(client->ops->will(client, &mark, &will)); /* not yet */
    UNTIL(last.type == MU_FOLD_ON_LEASED);
    assert_true(client->ops->will(client, &mark, &will));
    assert_true(will.address.ss_family == AF_INET && will.server_closes && will.bytes.len > 0);
    mu_buf_done(&will.bytes);
    ASK(.type = MU_FOLD_DO_DROP_LEASE, .id = 6, .lease_take = 5);
    assert_false(client->ops->will(client, &mark, &will));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start_client, end_client)
        TEST(each_request_is_answered_once_from_the_loop),
        TEST(a_loaded_scope_tells_its_changes_until_it_is_unwatched),
        TEST(a_load_that_is_replaced_is_not_answered),
        TEST(without_memory_each_request_fails_from_the_loop),
        TEST(without_memory_a_lease_is_ended_all_the_same),
        TEST(closing_ends_the_lease_and_cancels_what_is_under_way),
        TEST(it_may_be_closed_by_what_is_heard),
        TEST(a_request_lasts_until_its_time_at_most),
        cmocka_unit_test_setup_teardown(renewals_are_told_with_the_time_that_they_were_sent, start_often, end_client),
        TEST(with_a_lease_there_is_a_will),
    };

    return run_with_curl("engine_etcd3_uv", tests, COUNT(tests));
}
