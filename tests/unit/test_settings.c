/* Timeouts and limits from options: defaults, whole seconds, what is refused, and how times are shown. */
#include "handler/handler.h"
#include "pure.h"

#include <stdio.h>

static struct muster_rdzv_params *params_of(const char *run_id, int64_t nodes_min, int64_t nodes_max,
                                            const char *options)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new("c10d", "", run_id, nodes_min, nodes_max, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    return params;
}

static struct mu_rdzv_settings settings_of(const char *options)
{
    struct muster_rdzv_params *params = params_of("job", 2, 4, options);
    struct mu_rdzv_settings settings = { 0 };

    assert_int_equal(mu_rdzv_settings_from_params(params, &settings, NULL), 0);
    muster_rdzv_params_free(params);
    return settings;
}

static void are_refused(const char *options, const char *part, const char *value)
{
    struct muster_rdzv_params *params = params_of("job", 2, 4, options);
    struct mu_rdzv_settings settings = { .nodes_min = 77 };
    struct muster_error error = { 0 };

    assert_int_equal(mu_rdzv_settings_from_params(params, &settings, &error), MUSTER_EINVAL);
    if (strstr(error.text, part) == NULL || strstr(error.text, value) == NULL)
        fail_msg("'%s' was refused with: %s", options, error.text);
    assert_int_equal(settings.nodes_min, 77);
    muster_rdzv_params_free(params);
}

static void without_options_there_are_defaults(void **state)
{
    struct mu_rdzv_settings settings = settings_of("");

    (void)state;
    assert_int_equal(settings.nodes_min, 2);
    assert_int_equal(settings.nodes_max, 4);
    assert_int_equal(settings.join_ms, 600000);
    assert_int_equal(settings.last_call_ms, 30000);
    assert_int_equal(settings.close_ms, 30000);
    assert_int_equal(settings.heartbeat_ms, 5000);
    assert_int_equal(settings.keep_alive_ms, 5000);
    assert_int_equal(settings.keep_alive_attempts, 3);
    assert_int_equal(settings.lost_node_wait_ms, 0);
}

static void join_timeout_is_in_whole_seconds(void **state)
{
    (void)state;
    assert_int_equal(settings_of("join_timeout=7").join_ms, 7000);
    assert_int_equal(settings_of("join_timeout= +1_0").join_ms, 10000);
}

static void last_call_timeout_is_in_whole_seconds(void **state)
{
    (void)state;
    assert_int_equal(settings_of("last_call_timeout=8").last_call_ms, 8000);
}

static void close_timeout_is_in_whole_seconds(void **state)
{
    (void)state;
    assert_int_equal(settings_of("close_timeout=9").close_ms, 9000);
}

static void heartbeat_timeout_is_in_whole_seconds(void **state)
{
    (void)state;
    assert_int_equal(settings_of("heartbeat_timeout=10").heartbeat_ms, 10000);
}

static void keep_alives_can_be_tuned(void **state)
{
    struct mu_rdzv_settings settings = settings_of("keep_alive_interval=1,keep_alive_max_attempt=2");

    (void)state;
    assert_int_equal(settings.keep_alive_ms, 1000);
    assert_int_equal(settings.keep_alive_attempts, 2);
    assert_int_equal(mu_rdzv_death_age_ms(&settings), 2000);
}

static void a_round_can_be_held_open_for_a_lost_node(void **state)
{
    (void)state;
    assert_int_equal(settings_of("lost_node_wait=20").lost_node_wait_ms, 20000);
    assert_int_equal(settings_of("lost_node_wait=0").lost_node_wait_ms, 0);
    are_refused("lost_node_wait=-1", "lost_node_wait", "-1 day, 23:59:59");
}

static void a_lost_store_is_waited_for_half_a_minute_unless_one_says_otherwise(void **state)
{
    (void)state;
    assert_int_equal(settings_of("lost_node_wait=0").store_lost_ms, 30000);
    assert_int_equal(settings_of("store_lost_timeout=2").store_lost_ms, 2000);
    assert_int_equal(settings_of("store_lost_timeout=0").store_lost_ms, 0);
    are_refused("store_lost_timeout=-1", "store_lost_timeout", "-1 day, 23:59:59");
    are_refused("store_lost_timeout=x", "store_lost_timeout", "whole number");
}

static void the_wait_after_a_lost_write_can_be_limited(void **state)
{
    static const char *const bad[] = { "inf", "nan", "-0.1", "x", "0.3s" };
    struct muster_rdzv_params *params = params_of("job", 1, 1, "");
    struct mu_rdzv_settings settings;
    char options[64];

    (void)state;
    assert_int_equal(settings_of("lost_node_wait=0").back_off_ms, 0);
    assert_int_equal(settings_of("cas_backoff_max_seconds=0").back_off_ms, 0);
    assert_int_equal(settings_of("cas_backoff_max_seconds=0.3").back_off_ms, 300);
    assert_int_equal(settings_of("cas_backoff_max_seconds=1e-4").back_off_ms, 1);
    assert_int_equal(settings_of("cas_backoff_max_seconds=2").back_off_ms, 2000);
    assert_true(settings_of("cas_backoff_max_seconds=1e300").back_off_ms > 0);
    for (size_t i = 0; i < COUNT(bad); i++) {
        (void)snprintf(options, sizeof options, "cas_backoff_max_seconds=%s", bad[i]);
        are_refused(options, "cas_backoff_max_seconds", "finite");
    }
    assert_int_equal(muster_rdzv_params_set_float(params, "cas_backoff_max_seconds", 0.25, NULL), 0);
    assert_int_equal(mu_rdzv_settings_from_params(params, &settings, NULL), 0);
    assert_int_equal(settings.back_off_ms, 250);
    muster_rdzv_params_free(params);
}

static void options_of_other_kinds_than_text_count_too(void **state)
{
    struct muster_rdzv_params *params = params_of("job", 1, 1, "");
    struct mu_rdzv_settings settings;

    (void)state;
    assert_int_equal(muster_rdzv_params_set_float(params, "join_timeout", 2.9, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_int(params, "close_timeout", 3, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_bool(params, "last_call_timeout", true, NULL), 0);
    assert_int_equal(mu_rdzv_settings_from_params(params, &settings, NULL), 0);
    assert_int_equal(settings.join_ms, 2000);
    assert_int_equal(settings.close_ms, 3000);
    assert_int_equal(settings.last_call_ms, 1000);
    muster_rdzv_params_free(params);
}

static void times_that_are_not_above_0_are_refused_as_python_shows_them(void **state)
{
    static const char *const parts[] = { "join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout",
                                         "keep_alive_interval" };
    char options[64];

    (void)state;
    for (size_t i = 0; i < COUNT(parts); i++) {
        (void)strcpy(options, parts[i]);
        are_refused(strcat(options, "=0"), parts[i], " 0:00:00 ");
        (void)strcpy(options, parts[i]);
        are_refused(strcat(options, "=-1"), parts[i], "-1 day, 23:59:59");
    }
}

static void attempts_that_are_not_above_0_are_refused(void **state)
{
    (void)state;
    are_refused("keep_alive_max_attempt=0", "keep_alive_max_attempt", "0");
    are_refused("keep_alive_max_attempt=-3", "keep_alive_max_attempt", "-3");
    are_refused("keep_alive_max_attempt=1000001", "keep_alive_max_attempt", "1000001");
    are_refused("keep_alive_max_attempt=4294967297", "keep_alive_max_attempt", "4294967297");
}

static void what_is_no_integer_is_refused_by_name(void **state)
{
    (void)state;
    are_refused("join_timeout=soon", "join_timeout", "whole number");
    are_refused("keep_alive_max_attempt=3.0", "keep_alive_max_attempt", "whole number");
    are_refused("lost_node_wait=x", "lost_node_wait", "whole number");
}

static void times_beyond_all_reason_are_refused(void **state)
{
    (void)state;
    assert_int_equal(settings_of("join_timeout=1000000000").join_ms, UINT64_C(1000000000000));
    are_refused("join_timeout=1000000001", "join_timeout", "1000000000 s");
    are_refused("join_timeout=9223372036854775807", "join_timeout", "9223372036854775807");
    are_refused("close_timeout=-9223372036854775808", "close_timeout", "-9223372036854775808");
    are_refused("lost_node_wait=9223372036854775", "lost_node_wait", "1000000000 s");
}

static void an_empty_run_id_is_refused(void **state)
{
    struct muster_rdzv_params *params = params_of("", 1, 1, "");
    struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(mu_rdzv_settings_from_params(params, &settings, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "run id"));
    muster_rdzv_params_free(params);
    assert_int_equal(mu_rdzv_settings_check("", &settings, &error), MUSTER_EINVAL);
    assert_int_equal(mu_rdzv_settings_check(NULL, &settings, &error), MUSTER_EINVAL);
    assert_int_equal(mu_rdzv_settings_check("job", &settings, &error), 0);
}

static void a_run_id_that_is_too_long_is_refused(void **state)
{
    struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;
    char run_id[MU_RDZV_RUN_ID_MAX + 2] = "";
    struct muster_error error;

    (void)state;
    memset(run_id, 'x', MU_RDZV_RUN_ID_MAX);
    assert_int_equal(mu_rdzv_settings_check(run_id, &settings, NULL), 0);
    run_id[MU_RDZV_RUN_ID_MAX] = 'x';
    assert_int_equal(mu_rdzv_settings_check(run_id, &settings, &error), MUSTER_ELIMIT);
    assert_non_null(strstr(error.text, "run id"));
}

static void limits_of_nodes_are_checked_again(void **state)
{
    struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;
    struct muster_error error = { 0 };

    (void)state;
    settings.nodes_min = 0;
    assert_int_equal(mu_rdzv_settings_check("job", &settings, &error), MUSTER_EINVAL);
    assert_string_equal(error.text, "the minimum number of nodes must be at least 1, not 0");
    settings.nodes_min = 31;
    settings.nodes_max = 22;
    assert_int_equal(mu_rdzv_settings_check("job", &settings, &error), MUSTER_EINVAL);
    assert_string_equal(error.text, "the maximum number of nodes, 22, is below the minimum, 31");
}

/* Whoever fills the settings in by hand may have started from a negative number. */
static void settings_made_by_hand_are_checked_too(void **state)
{
    struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;
    struct muster_error error = { 0 };

    (void)state;
    settings.close_ms = (uint64_t)INT64_C(-500);
    assert_int_equal(mu_rdzv_settings_check("job", &settings, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "close_timeout"));
    assert_non_null(strstr(error.text, "-1 day, 23:59:59.500000"));
    settings = MU_RDZV_SETTINGS_DEFAULT;
    settings.keep_alive_attempts = 0;
    assert_int_equal(mu_rdzv_settings_check("job", &settings, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "keep_alive_max_attempt"));
}

static void durations_read_as_in_python(void **state)
{
    static const struct {
        int64_t ms;
        const char *text;
    } rows[] = {
        { 0, "0:00:00" },
        { 1000, "0:00:01" },
        { -1000, "-1 day, 23:59:59" },
        { 30000, "0:00:30" },
        { 3661000, "1:01:01" },
        { 86399000, "23:59:59" },
        { 86400000, "1 day, 0:00:00" },
        { 2 * 86400000, "2 days, 0:00:00" },
        { -86400000, "-1 day, 0:00:00" },
        { -86401000, "-2 days, 23:59:59" },
        { 1, "0:00:00.001000" },
        { -1, "-1 day, 23:59:59.999000" },
        { INT64_MIN, "-106751991168 days, 16:47:04.192000" },
        { INT64_MAX, "106751991167 days, 7:12:55.807000" },
    };
    char text[MU_RDZV_DURATION_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(mu_rdzv_duration_text(rows[i].ms, text), rows[i].text);
}

static void the_first_writers_dialect_can_be_chosen(void **state)
{
    static const struct {
        const char *options;
        int rc;
        struct mu_doc_dialect dialect;
        bool shares;
    } rows[] = {
        { "", 0, MU_DOC_DIALECT_2_X, true },
        { "dialect=2.x", 0, MU_DOC_DIALECT_2_X, true },
        { "dialect=2.5", 0, MU_DOC_DIALECT_2_5, true },
        { "dialect=2.5,use_agent_store=false", 0, MU_DOC_DIALECT_2_5, false },
        { "dialect=2.4", 0, MU_DOC_DIALECT_2_5, false },
        { "dialect=2.4,use_agent_store=true", 0, MU_DOC_DIALECT_2_5, true },
        { "dialect=2.3", 0, MU_DOC_DIALECT_2_3, true },
        { "dialect=2.2", 0, MU_DOC_DIALECT_2_2, true },
        { "dialect=1.13", 0, MU_DOC_DIALECT_1_13, true },
        { "dialect=3.x", MUSTER_EINVAL, MU_DOC_DIALECT_1_13, false },
        { "use_agent_store=3.x", MUSTER_EINVAL, MU_DOC_DIALECT_2_X, false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_params *params = params_of("job", 1, 1, rows[i].options);
        struct mu_doc_dialect dialect = { 0 };
        struct muster_error error = { 0 };
        bool shares = false;

        assert_int_equal(mu_rdzv_dialect_from_params(params, &dialect, &shares, &error), rows[i].rc);
        assert_int_equal(dialect.addr, rows[i].dialect.addr);
        assert_int_equal(dialect.spares, rows[i].dialect.spares);
        assert_int_equal(dialect.zoned, rows[i].dialect.zoned);
        assert_int_equal(dialect.habits, rows[i].dialect.habits);
        assert_int_equal(shares, rows[i].shares);
        if (rows[i].rc < 0)
            assert_non_null(strstr(error.text, i == COUNT(rows) - 1 ? "use_agent_store" : "3.x"));
        muster_rdzv_params_free(params);
    }
}

static void a_word_is_trimmed_lower_case_and_cut(void **state)
{
    static const struct {
        const char *text, *word;
    } rows[] = {
        { NULL, "tcp" },
        { "File", "file" },
        { " \tTCP\r\n ", "tcp" },
        { "two Words", "two words" },
        { "   ", "" },
        { "a-word-of-more-than-forty-bytes-is-cut-there", "a-word-of-more-than-forty-bytes-is-cut-" },
    };
    char word[MU_RDZV_WORD_MAX];
    struct muster_rdzv_params *params = params_of("job", 2, 4, "");

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (rows[i].text != NULL)
            assert_int_equal(muster_rdzv_params_set_text(params, "store_type", rows[i].text, NULL), 0);
        assert_int_equal(mu_rdzv_word_from_params(params, "store_type", "tcp", word, NULL), 0);
        assert_string_equal(word, rows[i].word);
    }
    assert_int_equal(muster_rdzv_params_set_int(params, "store_type", 1, NULL), 0);
    assert_int_equal(mu_rdzv_word_from_params(params, "store_type", "tcp", word, NULL), MUSTER_EINVAL);
    muster_rdzv_params_free(params);
}

static void a_dialect_that_is_no_text_is_refused(void **state)
{
    struct muster_rdzv_params *params = params_of("job", 1, 1, "");
    struct mu_doc_dialect dialect;
    bool shares;

    (void)state;
    assert_int_equal(muster_rdzv_params_set_float(params, "dialect", 1.13, NULL), 0);
    assert_int_equal(mu_rdzv_dialect_from_params(params, &dialect, &shares, NULL), MUSTER_EINVAL);
    muster_rdzv_params_free(params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_there_are_defaults),
        cmocka_unit_test(join_timeout_is_in_whole_seconds),
        cmocka_unit_test(last_call_timeout_is_in_whole_seconds),
        cmocka_unit_test(close_timeout_is_in_whole_seconds),
        cmocka_unit_test(heartbeat_timeout_is_in_whole_seconds),
        cmocka_unit_test(keep_alives_can_be_tuned),
        cmocka_unit_test(a_round_can_be_held_open_for_a_lost_node),
        cmocka_unit_test(a_lost_store_is_waited_for_half_a_minute_unless_one_says_otherwise),
        cmocka_unit_test(the_wait_after_a_lost_write_can_be_limited),
        cmocka_unit_test(options_of_other_kinds_than_text_count_too),
        cmocka_unit_test(times_that_are_not_above_0_are_refused_as_python_shows_them),
        cmocka_unit_test(attempts_that_are_not_above_0_are_refused),
        cmocka_unit_test(what_is_no_integer_is_refused_by_name),
        cmocka_unit_test(times_beyond_all_reason_are_refused),
        cmocka_unit_test(an_empty_run_id_is_refused),
        cmocka_unit_test(a_run_id_that_is_too_long_is_refused),
        cmocka_unit_test(limits_of_nodes_are_checked_again),
        cmocka_unit_test(settings_made_by_hand_are_checked_too),
        cmocka_unit_test(durations_read_as_in_python),
        cmocka_unit_test(the_first_writers_dialect_can_be_chosen),
        cmocka_unit_test(a_dialect_that_is_no_text_is_refused),
        cmocka_unit_test(a_word_is_trimmed_lower_case_and_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
