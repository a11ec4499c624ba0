/* Which options the back ends of this library know, and what is said about others. */
#include "handler/handler.h"
#include "pure.h"

#include <stdio.h>

static const char *const backends[] = { "c10d", "etcd-v2", "etcd", "etcd-v3", "static" };

static struct muster_rdzv_params *params_with(const char *backend, const char *options)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new(backend, "e", "id", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    return params;
}

/* "" if all options are known. */
static void assert_said(const char *backend, const char *options, const char *said)
{
    struct muster_rdzv_params *params = params_with(backend, options);
    struct muster_error error = { 0 };

    assert_int_equal(mu_rdzv_check_options(backend, params, &error), said[0] == '\0' ? 0 : MUSTER_EINVAL);
    assert_string_equal(error.text, said);
    muster_rdzv_params_free(params);
}

static void options_that_pytorch_knows_are_accepted(void **state)
{
    static const struct {
        const char *backend, *options;
    } rows[] = {
        { "c10d", "join_timeout=1,last_call_timeout=1,close_timeout=1,heartbeat_timeout=1,keep_alive_interval=1,"
                  "keep_alive_max_attempt=1,read_timeout=1,is_host=1,store_type=tcp,use_libuv=1,timeout=1,"
                  "store_lost_timeout=1" },
        { "c10d", "engine=on,fence=1,restart_window=1,token_file=f" },
        { "etcd-v2",
          "join_timeout=1,last_call_timeout=1,close_timeout=1,heartbeat_timeout=1,keep_alive_interval=1,"
          "keep_alive_max_attempt=1,read_timeout=1,protocol=http,ssl_cert=c,ssl_cert_key=k,ca_cert=a,timeout=1" },
        { "etcd", "timeout=1,last_call_timeout=1,etcd_prefix=/p,protocol=http,cert=c,key=k,cacert=a" },
        { "static", "rank=0,timeout=1" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_said(rows[i].backend, rows[i].options, "");
}

static void what_the_commands_set_is_known_to_every_back_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        assert_said(backends[i], "timeout=1,use_agent_store=no", "");
}

static void an_unknown_option_is_an_error_on_every_back_end(void **state)
{
    char said[128];

    (void)state;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        (void)snprintf(said, sizeof said, "option 'colour' is unknown to the %s back end", backends[i]);
        assert_said(backends[i], "timeout=1,colour=red,more=1", said);
    }
}

static void the_nearest_option_is_suggested(void **state)
{
    static const struct {
        const char *backend, *given, *near;
    } rows[] = {
        { "c10d", "jion_timeout", "join_timeout" },
        { "c10d", "join-timeout", "join_timeout" },
        { "c10d", "JOIN_TIMEOUT", "join_timeout" },
        { "c10d", "jointimeout", "join_timeout" },
        { "c10d", "last_call", "last_call_timeout" },
        { "c10d", "keepalive_interval", "keep_alive_interval" },
        { "c10d", "keep_alive_max_attempts", "keep_alive_max_attempt" },
        { "c10d", "ishost", "is_host" },
        { "etcd-v3", "lesae", "lease" },
        { "etcd-v2", "sslcert", "ssl_cert" },
        { "etcd", "time_out", "timeout" },
        { "static", "rnak", "rank" },
        { "static", "timout", "timeout" },
        { "static", "x", NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char options[64], said[160];

        (void)snprintf(options, sizeof options, "%s=1", rows[i].given);
        (void)snprintf(said, sizeof said, "option '%s' is unknown to the %s back end%s%s%s", rows[i].given,
                       rows[i].backend, rows[i].near == NULL ? "" : "; did you mean '",
                       rows[i].near == NULL ? "" : rows[i].near, rows[i].near == NULL ? "" : "'?");
        assert_said(rows[i].backend, options, said);
    }
}

static void an_option_of_another_back_end_is_said_to_be_that(void **state)
{
    (void)state;
    assert_said(
        "etcd-v2", "cacert=x",
        "option 'cacert' is unknown to the etcd-v2 back end (it belongs to etcd, etcd-v3); did you mean 'ca_cert'?");
    assert_said("c10d", "rank=0", "option 'rank' is unknown to the c10d back end (it belongs to static)");
    assert_said("static", "join_timeout=5",
                "option 'join_timeout' is unknown to the static back end (it belongs to c10d, etcd-v2, etcd-v3); "
                "did you mean 'timeout'?");
}

static void what_may_be_part_of_a_password_is_not_shown(void **state)
{
    (void)state;
    assert_said(
        "etcd-v3", "user=ann,password=hun,ter2=x",
        "what follows option 'password' is unknown to the etcd-v3 back end; it is not shown because it may be part "
        "of a secret");
    assert_said("etcd-v3", "lesae=1,password=x",
                "option 'lesae' is unknown to the etcd-v3 back end; did you mean 'lease'?");
}

static void a_long_key_is_cut(void **state)
{
    char options[300];

    (void)state;
    memset(options, 'k', 250);
    memcpy(options + 250, "=1", 3);
    assert_said("c10d", options, "option 'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk' is unknown to the c10d back end");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_pytorch_knows_are_accepted),
        cmocka_unit_test(what_the_commands_set_is_known_to_every_back_end),
        cmocka_unit_test(an_unknown_option_is_an_error_on_every_back_end),
        cmocka_unit_test(the_nearest_option_is_suggested),
        cmocka_unit_test(an_option_of_another_back_end_is_said_to_be_that),
        cmocka_unit_test(what_may_be_part_of_a_password_is_not_shown),
        cmocka_unit_test(a_long_key_is_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
