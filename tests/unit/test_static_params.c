/* What a static rendezvous makes of its parameters, and what a blocking one opens and answers. */
#include "handler/static_params.h"
#include "pure.h"

static struct mu_static_place place_of(const char *options)
{
    struct muster_rdzv_params *params = NULL;
    struct mu_static_place place;

    assert_int_equal(muster_rdzv_params_new("static", "host:7", "job", 1, 3, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    assert_int_equal(mu_static_place_from_params(params, &place, NULL), 0);
    muster_rdzv_params_free(params);
    return place;
}

static void rank_0_hosts_the_store_and_waits_for_all(void **state)
{
    static const struct {
        const char *options;
        bool is_host;
        int64_t timeout_ms;
    } rows[] = { { "rank=0", true, 600000 }, { "rank=1", false, 600000 }, { "rank=2,timeout=5", false, 5000 } };
    const struct muster_store_server_config server = { .size = sizeof server };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_static_place place = place_of(rows[i].options);
        const struct muster_store_tcp_config config = mu_static_store_config(&place, &server);

        assert_int_equal(config.size, sizeof config);
        assert_string_equal(config.host, "host");
        assert_int_equal(config.port, 7);
        assert_int_equal(config.is_host, rows[i].is_host);
        assert_true(config.shared && config.wait_for_workers);
        assert_int_equal(config.world_size, 3);
        assert_int_equal(config.connect_timeout_ms, rows[i].timeout_ms);
        assert_int_equal(config.timeout_ms, rows[i].timeout_ms);
        assert_ptr_equal(config.server, &server);
    }
}

static void where_to_listen_is_given_or_not(void **state)
{
    static const struct {
        const char *options, *hosts, *allow;
    } rows[] = {
        { "rank=0", NULL, NULL },
        { "rank=0,bind=any", "any", NULL },
        { "rank=0,bind=127.0.0.1,allow=10.0.0.0/8", "127.0.0.1", "10.0.0.0/8" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_static_place place = place_of(rows[i].options);
        const struct mu_bind bind = mu_static_bind(&place);

        assert_true(rows[i].hosts == NULL ? bind.hosts == NULL : strcmp(bind.hosts, rows[i].hosts) == 0);
        assert_true(rows[i].allow == NULL ? bind.allow == NULL : strcmp(bind.allow, rows[i].allow) == 0);
    }
}

static void there_are_no_rounds_so_nothing_is_closed_and_nobody_waits(void **state)
{
    struct muster_rdzv rdzv = { .ops = NULL };
    struct muster_error error;
    bool closed = true;
    int64_t count = -1;

    (void)state;
    assert_string_equal(mu_static_name(&rdzv), "static");
    assert_true(mu_static_shares_store(&rdzv));
    assert_int_equal(mu_static_set_closed(&rdzv, &error), 0);
    assert_int_equal(mu_static_is_closed(&rdzv, &closed, &error), 0);
    assert_false(closed);
    assert_int_equal(mu_static_nodes_waiting(&rdzv, &count, &error), 0);
    assert_int_equal(count, 0);
    assert_int_equal(mu_static_shut_down(&rdzv, &closed, &error), 0);
    assert_true(closed);
}

static void an_error_of_the_store_says_which_rendezvous_it_is(void **state)
{
    static const struct {
        int code, told_as;
        const char *text;
    } rows[] = {
        { MUSTER_ETIMEOUT, MUSTER_ERDZV_TIMEOUT, "static rendezvous at host, port 7, as rank 1 of 3: why" },
        { MUSTER_ELOST, MUSTER_ERDZV_CONNECTION, "static rendezvous at host, port 7, as rank 1 of 3: why" },
        { MUSTER_ENOMEM, MUSTER_ENOMEM, "static rendezvous at host, port 7, as rank 1 of 3: why" },
        { MUSTER_ECONNECT, MUSTER_ERDZV_CONNECTION, "static rendezvous as rank 1 of 3: why" },
        { MUSTER_EADDRINUSE, MUSTER_ERDZV_CONNECTION, "static rendezvous as rank 1 of 3: why" },
    };
    const struct mu_static_place place = place_of("rank=1");

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_error error = { .code = rows[i].code, .text = "why" };

        assert_int_equal(mu_static_error(&place, rows[i].code, &error), rows[i].told_as);
        assert_int_equal(error.code, rows[i].told_as);
        assert_string_equal(error.text, rows[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_0_hosts_the_store_and_waits_for_all),
        cmocka_unit_test(where_to_listen_is_given_or_not),
        cmocka_unit_test(there_are_no_rounds_so_nothing_is_closed_and_nobody_waits),
        cmocka_unit_test(an_error_of_the_store_says_which_rendezvous_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
