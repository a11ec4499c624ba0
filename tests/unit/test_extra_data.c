/* Extra data of a classic etcd round: reading, writing and waiting, without an etcd. */
#include "failmalloc.h"
#include "handler/extra_data.h"
#include "pure.h"

static struct mu_extra_data extra;
static struct muster_error error;

static int begin_on(const char *backend, const char *options, const char *key, const char *value)
{
    struct muster_rdzv_params *params = NULL;
    int rc;

    assert_int_equal(muster_rdzv_params_new("etcd", "host", "job", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    rc = mu_extra_data_init(&extra, backend, params, 3, key, value, &error);
    muster_rdzv_params_free(params);
    return rc;
}

static void begin(const char *key, const char *value)
{
    assert_int_equal(begin_on("etcd", "", key, value), 0);
}

static void end(void)
{
    assert_int_equal(mu_extra_data_end(&extra, 0, NULL), 0);
}

/* etcd answers, with a code and a value (NULL: none). */
static int answer(int code, const char *value)
{
    struct mu_etcd2_node node = { .value = mu_slice_str(value != NULL ? value : "") };
    const struct mu_etcd2_answer got = { .code = code, .index = 9, .nodes = &node, .nodes_count = value != NULL };

    return mu_extra_data_step(&extra, 0, false, 200, &got, NULL, &error);
}

/* etcd does not. */
static int no_answer(int rc, bool unsure)
{
    const struct mu_etcd2_answer none = { .code = 0 };
    const struct muster_error why = { .code = rc, .text = "why" };

    return mu_extra_data_step(&extra, rc, unsure, 0, &none, &why, &error);
}

static void expect_read(void)
{
    assert_int_equal(extra.state, MU_EXTRA_READING);
    assert_true(extra.request.kind == MU_ETCD2_GET && extra.request.quorum);
}

static void the_first_one_creates_the_map(void **state)
{
    (void)state;
    begin("k", "v");
    expect_read();
    assert_int_equal(answer(MU_ETCD2_NOT_FOUND, NULL), 0);
    assert_true(extra.request.kind == MU_ETCD2_PUT && extra.request.prev_exist == MU_ETCD2_MUST_NOT);
    assert_true(mu_slice_equal(extra.request.value, mu_slice_str("{\"k\": \"v\"}")) && !extra.request.has_prev_value);
    assert_int_equal(answer(0, "{}"), 0);
    assert_int_equal(extra.state, MU_EXTRA_DONE);
    end();
}

static void what_is_there_is_kept(void **state)
{
    (void)state;
    begin("k", "v");
    assert_int_equal(answer(0, "{\"a\": 1}"), 0);
    assert_true(mu_slice_equal(extra.request.value, mu_slice_str("{\"a\": 1, \"k\": \"v\"}")));
    assert_true(extra.request.has_prev_value && mu_slice_equal(extra.request.prev_value, mu_slice_str("{\"a\": 1}")));
    assert_int_equal(extra.request.prev_exist, MU_ETCD2_ANY);
    end();
}

static void a_lost_write_is_read_again_after_a_pause(void **state)
{
    static const int lost[] = { MU_ETCD2_EXISTS, MU_ETCD2_COMPARE_FAILED, MU_ETCD2_NOT_FOUND };

    (void)state;
    begin("k", "v");
    for (size_t i = 0; i < COUNT(lost); i++) {
        assert_int_equal(answer(0, "{}"), 0);
        assert_int_equal(answer(lost[i], NULL), 0);
        expect_read();
        assert_int_equal(extra.pause_ms, MU_EXTRA_PAUSE_MS);
    }
    assert_int_equal(answer(0, "{}"), 0);
    assert_int_equal(extra.pause_ms, 0);
    assert_int_equal(no_answer(MUSTER_ETIMEOUT, true), 0); /* it may have been done: it will be seen */
    expect_read();
    end();
}

static void a_write_that_etcd_refuses_or_never_got_is_an_error(void **state)
{
    (void)state;
    begin("k", "v");
    assert_int_equal(answer(0, "{}"), 0);
    assert_int_equal(answer(MU_ETCD2_NOT_FILE, NULL), MUSTER_EINVAL);
    end();
    begin("k", "v");
    assert_int_equal(answer(0, "{}"), 0);
    assert_int_equal(no_answer(MUSTER_ECONNECT, false), MUSTER_ECONNECT);
    assert_string_equal(error.text, "why");
    end();
    begin("k", "\xff");
    assert_int_equal(answer(0, "{}"), MUSTER_ENOMEM);
    assert_string_equal(error.text, "no memory, or the text is not UTF-8");
    end();
}

static void a_load_waits_until_it_is_there(void **state)
{
    (void)state;
    begin("k", NULL);
    assert_int_equal(answer(0, "{\"a\": 1}"), 0);
    assert_int_equal(extra.state, MU_EXTRA_WATCHING);
    assert_true(extra.request.kind == MU_ETCD2_WATCH && extra.request.wait_index == 10);
    assert_int_equal(extra.most_ms, MU_EXTRA_WATCH_MS);
    assert_int_equal(answer(0, "{}"), 0); /* something has happened */
    expect_read();
    assert_int_equal(answer(MU_ETCD2_NOT_FOUND, NULL), 0);
    assert_int_equal(no_answer(MUSTER_ETIMEOUT, false), 0); /* nothing has: it is asked anew */
    expect_read();
    assert_int_equal(answer(0, "{\"k\": \"v\"}"), 0);
    assert_int_equal(extra.state, MU_EXTRA_DONE);
    assert_true(extra.found.len == 1 && memcmp(extra.found.data, "v", 2) == 0);
    free(extra.found.data);
}

static void a_value_that_is_no_text_comes_as_json(void **state)
{
    (void)state;
    begin("k", NULL);
    assert_int_equal(answer(0, "{\"k\": [1, \"\\u00e4\"]}"), 0);
    assert_string_equal(extra.found.data, "[1, \"\\u00E4\"]");
    free(extra.found.data);
}

static void what_cannot_be_read_is_an_error(void **state)
{
    (void)state;
    begin("k", NULL);
    assert_int_equal(no_answer(MUSTER_ETIMEOUT, false), MUSTER_ETIMEOUT); /* of a read */
    assert_int_equal(answer(0, "no JSON"), MUSTER_EPROTOCOL);
    assert_int_equal(answer(0, "[]"), MUSTER_EPROTOCOL);
    assert_string_equal(error.text, "the key does not hold a JSON map");
    assert_int_equal(answer(MU_ETCD2_NOT_FILE, NULL), MUSTER_EINVAL);
    assert_int_equal(answer(0, "{}"), 0);
    assert_int_equal(no_answer(MUSTER_EPROTOCOL, false), MUSTER_EPROTOCOL); /* of a watch */
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        int rc;

        fail_alloc_at(0); /* not yet */
        begin("k", "v");
        fail_alloc_at(n);
        rc = answer(0, "{}");
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        end();
    }
}

static void a_request_ends_with_the_time_that_is_left(void **state)
{
    const struct mu_extra_data read = { .most_ms = INT64_MAX }, watch = { .most_ms = MU_EXTRA_WATCH_MS };
    const struct {
        const struct mu_extra_data *extra;
        int64_t left_ms;
        int rc;
        uint64_t ms;
    } rows[] = {
        { &read, 500, 0, 500 },
        { &watch, 500, 0, 500 },
        { &watch, MU_EXTRA_WATCH_MS + 1, 0, MU_EXTRA_WATCH_MS },
        { &read, 0, MUSTER_ETIMEOUT, 0 },
        { &watch, -5, MUSTER_ETIMEOUT, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint64_t ms = 0;

        assert_int_equal(mu_extra_data_time(rows[i].extra, rows[i].left_ms, &ms, &error), rows[i].rc);
        assert_int_equal(ms, rows[i].ms);
    }
    assert_string_equal(error.text, "timed out");
}

static void without_a_timeout_there_is_the_one_of_a_store(void **state)
{
    (void)state;
    assert_int_equal(mu_extra_data_limit_ms(-1), MUSTER_STORE_TIMEOUT_MS);
    assert_int_equal(mu_extra_data_limit_ms(0), 0);
    assert_int_equal(mu_extra_data_limit_ms(7), 7);
}

static void it_is_below_the_round_of_an_etcd_handler(void **state)
{
    (void)state;
    assert_int_equal(begin_on("etcd", "etcd_prefix=/p", "k", "v"), 0);
    assert_true(mu_slice_equal(extra.request.key, mu_slice_str("/p/run_job/rdzv/v_3/extra_data")));
    assert_int_equal(answer(0, "{}"), 0); /* the same for the write */
    assert_true(mu_slice_equal(extra.request.key, mu_slice_str("/p/run_job/rdzv/v_3/extra_data")));
    end();
    begin("k", NULL);
    assert_int_equal(answer(0, "{}"), 0); /* and for the watch */
    assert_true(mu_slice_equal(extra.request.key, mu_slice_str("/torchelastic/p2p/run_job/rdzv/v_3/extra_data")));
    assert_int_equal(begin_on("c10d", "", "k", "v"), MUSTER_EINVAL);
    assert_string_equal(error.text, "extra data: the handler is not one of the etcd back end");
    assert_int_equal(mu_extra_data_init(&extra, "etcd", NULL, 3, "k", "v", &error), MUSTER_EINVAL);
    assert_int_equal(begin_on("etcd", "timeout=0", "k", "v"), MUSTER_EINVAL);
}

static void an_error_says_what_was_tried(void **state)
{
    (void)state;
    begin("k", "v");
    assert_int_equal(mu_extra_data_end(&extra, no_answer(MUSTER_ECONNECT, false), &error), MUSTER_ECONNECT);
    assert_string_equal(error.text, "store extra data 'k': why");
    begin("k", NULL);
    assert_int_equal(mu_extra_data_end(&extra, no_answer(MUSTER_ETIMEOUT, false), &error), MUSTER_ETIMEOUT);
    assert_string_equal(error.text, "load extra data 'k': why");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_one_creates_the_map),
        cmocka_unit_test(what_is_there_is_kept),
        cmocka_unit_test(a_lost_write_is_read_again_after_a_pause),
        cmocka_unit_test(a_write_that_etcd_refuses_or_never_got_is_an_error),
        cmocka_unit_test(a_load_waits_until_it_is_there),
        cmocka_unit_test(a_value_that_is_no_text_comes_as_json),
        cmocka_unit_test(what_cannot_be_read_is_an_error),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(a_request_ends_with_the_time_that_is_left),
        cmocka_unit_test(without_a_timeout_there_is_the_one_of_a_store),
        cmocka_unit_test(it_is_below_the_round_of_an_etcd_handler),
        cmocka_unit_test(an_error_says_what_was_tried),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
