/* Parameters of a rendezvous: what they check, and how options are read. */
#include "failmalloc.h"
#include "handler/handler.h"
#include "pure.h"

#include <math.h>
#include <stdio.h>

static struct muster_rdzv_params *fresh(void)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new("c10d", "node0:29400", "job", 1, 4, NULL, &params, NULL), 0);
    return params;
}

static int setup(void **state)
{
    *state = fresh();
    return 0;
}

static int teardown(void **state)
{
    muster_rdzv_params_free(*state);
    return 0;
}

/* ---- The fields ---- */

static void everything_that_is_given_is_kept_as_a_copy(void **state)
{
    char backend[] = "c10d", endpoint[] = "node0:29400", run_id[] = "job", addr[] = "10.0.0.7";
    struct muster_rdzv_params *params = NULL;

    (void)state;
    assert_int_equal(muster_rdzv_params_new(backend, endpoint, run_id, 2, 8, addr, &params, NULL), 0);
    memset(backend, 'x', sizeof backend - 1);
    memset(endpoint, 'x', sizeof endpoint - 1);
    memset(run_id, 'x', sizeof run_id - 1);
    memset(addr, 'x', sizeof addr - 1);
    assert_string_equal(muster_rdzv_params_backend(params), "c10d");
    assert_string_equal(muster_rdzv_params_endpoint(params), "node0:29400");
    assert_string_equal(muster_rdzv_params_run_id(params), "job");
    assert_string_equal(muster_rdzv_params_local_addr(params), "10.0.0.7");
    assert_int_equal(muster_rdzv_params_min_nodes(params), 2);
    assert_int_equal(muster_rdzv_params_max_nodes(params), 8);
    muster_rdzv_params_free(params);
    muster_rdzv_params_free(NULL);
}

static void refused(const char *backend, int64_t min_nodes, int64_t max_nodes, const char *part)
{
    struct muster_rdzv_params *params = NULL;
    struct muster_error error = { 0 };

    assert_int_equal(muster_rdzv_params_new(backend, "e", "r", min_nodes, max_nodes, NULL, &params, &error),
                     MUSTER_EINVAL);
    assert_null(params);
    assert_non_null(strstr(error.text, part));
}

static void an_empty_back_end_is_refused_first(void **state)
{
    (void)state;
    refused("", 0, -1, "back end");
    refused(NULL, 0, -1, "back end");
}

static void a_minimum_below_one_is_refused_by_its_value(void **state)
{
    (void)state;
    refused("c10d", 0, -5, "0");
    refused("c10d", -3, -5, "-3");
    refused("c10d", INT64_MIN, 1, "-9223372036854775808");
}

static void a_maximum_below_the_minimum_is_refused_naming_both(void **state)
{
    (void)state;
    refused("c10d", 31, 22, "31");
    refused("c10d", 31, 22, "22");
}

static void endpoint_and_run_id_may_be_empty(void **state)
{
    struct muster_rdzv_params *params = NULL;

    (void)state;
    assert_int_equal(muster_rdzv_params_new("b", "", "", 1, 1, NULL, &params, NULL), 0);
    assert_string_equal(muster_rdzv_params_endpoint(params), "");
    assert_string_equal(muster_rdzv_params_run_id(params), "");
    muster_rdzv_params_free(params);
    assert_int_equal(muster_rdzv_params_new("b", NULL, NULL, 1, 1, NULL, &params, NULL), 0);
    assert_string_equal(muster_rdzv_params_endpoint(params), "");
    assert_string_equal(muster_rdzv_params_run_id(params), "");
    muster_rdzv_params_free(params);
}

static void without_a_local_address_there_is_none(void **state)
{
    struct muster_rdzv_params *params = NULL;

    assert_null(muster_rdzv_params_local_addr(*state));
    assert_int_equal(muster_rdzv_params_new("b", "e", "r", 1, 1, "", &params, NULL), 0);
    assert_null(muster_rdzv_params_local_addr(params));
    muster_rdzv_params_free(params);
}

static void a_run_id_may_have_any_bytes(void **state)
{
    struct muster_rdzv_params *params = NULL;
    char run_id[256];

    (void)state;
    for (unsigned i = 0; i < 255; i++)
        run_id[i] = (char)(i + 1);
    run_id[255] = '\0';
    assert_int_equal(muster_rdzv_params_new("b", "e", run_id, 1, 1, NULL, &params, NULL), 0);
    assert_memory_equal(muster_rdzv_params_run_id(params), run_id, 256);
    muster_rdzv_params_free(params);
}

static void texts_that_are_too_long_are_refused_by_name(void **state)
{
    static const struct {
        const char *part;
        size_t len_max;
    } rows[] = { { "back end", 255 }, { "endpoint", 4096 }, { "run id", 1024 }, { "local address", 255 } };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        for (size_t over = 0; over < 2; over++) {
            struct muster_rdzv_params *params = NULL;
            struct muster_error error = { 0 };
            char *text = calloc(1, rows[i].len_max + over + 1);
            int rc;

            memset(text, 'x', rows[i].len_max + over);
            rc = muster_rdzv_params_new(i == 0 ? text : "b", i == 1 ? text : "e", i == 2 ? text : "r", 1, 1,
                                        i == 3 ? text : NULL, &params, &error);
            assert_int_equal(rc, over == 0 ? 0 : MUSTER_ELIMIT);
            if (over > 0)
                assert_non_null(strstr(error.text, rows[i].part));
            muster_rdzv_params_free(params);
            free(text);
        }
    }
}

static void a_copy_stands_on_its_own(void **state)
{
    struct muster_rdzv_params *params = *state, *copy = NULL;
    struct muster_value value;

    assert_int_equal(muster_rdzv_params_set_text(params, "t", "text", NULL), 0);
    assert_int_equal(muster_rdzv_params_set_int(params, "i", 7, NULL), 0);
    assert_int_equal(muster_rdzv_params_copy(params, &copy, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_text(params, "t", "other", NULL), 0);
    assert_string_equal(muster_rdzv_params_backend(copy), "c10d");
    assert_true(muster_rdzv_params_get(copy, "t", &value));
    assert_string_equal(value.text, "text");
    assert_true(muster_rdzv_params_get(copy, "i", &value));
    assert_int_equal(value.integer, 7);
    assert_null(muster_rdzv_params_local_addr(copy));
    muster_rdzv_params_free(copy);
}

/* ---- Options: get ---- */

static void get_gives_the_raw_value_of_its_kind(void **state)
{
    struct muster_rdzv_params *params = *state;
    struct muster_value value;

    assert_int_equal(muster_rdzv_params_set_text(params, "t", " 7 ", NULL), 0);
    assert_int_equal(muster_rdzv_params_set_int(params, "i", -7, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_bool(params, "b", true, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_float(params, "f", 7.5, NULL), 0);
    assert_true(muster_rdzv_params_get(params, "t", &value));
    assert_int_equal(value.kind, MUSTER_VALUE_TEXT);
    assert_string_equal(value.text, " 7 ");
    assert_true(muster_rdzv_params_get(params, "i", &value));
    assert_int_equal(value.kind, MUSTER_VALUE_INT);
    assert_int_equal(value.integer, -7);
    assert_true(muster_rdzv_params_get(params, "b", &value));
    assert_int_equal(value.kind, MUSTER_VALUE_BOOL);
    assert_true(value.boolean);
    assert_true(muster_rdzv_params_get(params, "f", &value));
    assert_int_equal(value.kind, MUSTER_VALUE_FLOAT);
    assert_true(value.number == 7.5);
}

static void an_option_that_is_absent_is_told_as_that(void **state)
{
    struct muster_value value = { .integer = 42 };
    int64_t number = 0;
    bool truth = false;

    assert_false(muster_rdzv_params_get(*state, "nothing", &value));
    assert_int_equal(value.integer, 42);
    assert_int_equal(muster_rdzv_params_get_as_int(*state, "nothing", 17, &number, NULL), 0);
    assert_int_equal(number, 17);
    assert_int_equal(muster_rdzv_params_get_as_bool(*state, "nothing", true, &truth, NULL), 0);
    assert_true(truth);
    assert_int_equal(muster_rdzv_params_get_as_bool(*state, "nothing", false, &truth, NULL), 0);
    assert_false(truth);
}

static void a_later_value_takes_the_place_of_an_earlier_one(void **state)
{
    struct muster_value value;

    assert_int_equal(muster_rdzv_params_set_text(*state, "k", "a", NULL), 0);
    assert_int_equal(muster_rdzv_params_set_int(*state, "k", 5, NULL), 0);
    assert_true(muster_rdzv_params_get(*state, "k", &value));
    assert_int_equal(value.kind, MUSTER_VALUE_INT);
    assert_int_equal(value.integer, 5);
    assert_int_equal(muster_rdzv_params_set_text(*state, "k", "b", NULL), 0);
    assert_true(muster_rdzv_params_get(*state, "k", &value));
    assert_string_equal(value.text, "b");
}

static void options_need_names_and_values_within_limits(void **state)
{
    static char key[257], value[65538];
    struct muster_error error;

    memset(key, 'k', sizeof key - 1);
    memset(value, 'v', sizeof value - 1);
    assert_int_equal(muster_rdzv_params_set_int(*state, "", 1, &error), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_params_set_int(*state, NULL, 1, &error), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_params_set_int(*state, key, 1, &error), MUSTER_ELIMIT);
    assert_int_equal(muster_rdzv_params_set_text(*state, "k", value, &error), MUSTER_ELIMIT);
    assert_int_equal(muster_rdzv_params_set_text(*state, "k", NULL, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'k'"));
}

static void more_than_256_options_are_refused(void **state)
{
    struct muster_error error;
    char key[16];

    for (int i = 0; i < 256; i++) {
        (void)snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(muster_rdzv_params_set_int(*state, key, i, NULL), 0);
    }
    assert_int_equal(muster_rdzv_params_set_int(*state, "one more", 1, &error), MUSTER_ELIMIT);
    assert_non_null(strstr(error.text, "one more"));
    assert_int_equal(muster_rdzv_params_set_int(*state, "k7", 1, NULL), 0);
}

/* ---- get_as_bool ---- */

static void as_bool(struct muster_rdzv_params *params, bool expected)
{
    bool truth = !expected;

    assert_int_equal(muster_rdzv_params_get_as_bool(params, "k", !expected, &truth, NULL), 0);
    assert_int_equal(truth, expected);
}

static void not_a_bool(struct muster_rdzv_params *params)
{
    struct muster_error error = { 0 };
    bool truth = true;

    assert_int_equal(muster_rdzv_params_get_as_bool(params, "k", false, &truth, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'k'"));
    assert_true(truth);
}

static void a_bool_is_itself_as_a_bool(void **state)
{
    assert_int_equal(muster_rdzv_params_set_bool(*state, "k", true, NULL), 0);
    as_bool(*state, true);
    assert_int_equal(muster_rdzv_params_set_bool(*state, "k", false, NULL), 0);
    as_bool(*state, false);
}

static void the_integers_1_and_0_are_bools(void **state)
{
    assert_int_equal(muster_rdzv_params_set_int(*state, "k", 1, NULL), 0);
    as_bool(*state, true);
    assert_int_equal(muster_rdzv_params_set_int(*state, "k", 0, NULL), 0);
    as_bool(*state, false);
}

static void yes_and_no_texts_are_bools_in_any_case(void **state)
{
    static const char *const yes[] = { "1", "true", "True", "TRUE", "tRuE", "t", "T", "yes", "Yes", "YES", "y", "Y" };
    static const char *const no[] = { "0", "false", "False", "FALSE", "f", "F", "no", "No", "NO", "n", "N" };

    for (size_t i = 0; i < COUNT(yes); i++) {
        assert_int_equal(muster_rdzv_params_set_text(*state, "k", yes[i], NULL), 0);
        as_bool(*state, true);
    }
    for (size_t i = 0; i < COUNT(no); i++) {
        assert_int_equal(muster_rdzv_params_set_text(*state, "k", no[i], NULL), 0);
        as_bool(*state, false);
    }
}

static void any_other_text_is_no_bool(void **state)
{
    static const char *const rows[] = { "off",   "on",  "2",  "t ",  " t",       "",       "ye",
                                        "truee", "tru", "01", "1.0", "\xc5\xa5", "true\n", "-1" };

    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(muster_rdzv_params_set_text(*state, "k", rows[i], NULL), 0);
        not_a_bool(*state);
    }
}

static void other_integers_and_all_floats_are_no_bools(void **state)
{
    assert_int_equal(muster_rdzv_params_set_int(*state, "k", 2, NULL), 0);
    not_a_bool(*state);
    assert_int_equal(muster_rdzv_params_set_int(*state, "k", -1, NULL), 0);
    not_a_bool(*state);
    assert_int_equal(muster_rdzv_params_set_float(*state, "k", 1.0, NULL), 0);
    not_a_bool(*state);
    assert_int_equal(muster_rdzv_params_set_float(*state, "k", 0.0, NULL), 0);
    not_a_bool(*state);
}

/* ---- get_as_int ---- */

static void as_int(struct muster_rdzv_params *params, int64_t expected)
{
    int64_t number = ~expected;

    assert_int_equal(muster_rdzv_params_get_as_int(params, "k", 4711, &number, NULL), 0);
    assert_int_equal(number, expected);
}

static void not_an_int(struct muster_rdzv_params *params)
{
    struct muster_error error = { 0 };
    int64_t number = 4711;

    assert_int_equal(muster_rdzv_params_get_as_int(params, "k", 1, &number, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'k'"));
    assert_int_equal(number, 4711);
}

static void an_integer_is_itself_as_an_integer(void **state)
{
    assert_int_equal(muster_rdzv_params_set_int(*state, "k", INT64_MIN, NULL), 0);
    as_int(*state, INT64_MIN);
    assert_int_equal(muster_rdzv_params_set_int(*state, "k", INT64_MAX, NULL), 0);
    as_int(*state, INT64_MAX);
}

static void texts_are_integers_as_in_python(void **state)
{
    static const struct {
        const char *text;
        int64_t number;
    } rows[] = {
        { "7", 7 },
        { " 7 ", 7 },
        { "\t\n\v\f\r 7\n", 7 },
        { "+5", 5 },
        { "-5", -5 },
        { "1_000", 1000 },
        { "1_0_0_0", 1000 },
        { "007", 7 },
        { "-0", 0 },
        { " -1_2 ", -12 },
        { "9223372036854775807", INT64_MAX },
        { "-9223372036854775808", INT64_MIN },
        { "0000000000000000000000000000000000000000009", 9 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(muster_rdzv_params_set_text(*state, "k", rows[i].text, NULL), 0);
        as_int(*state, rows[i].number);
    }
}

static void bad_texts_are_no_integers(void **state)
{
    static const char *const rows[] = { "",
                                        " ",
                                        "a",
                                        "7a",
                                        "7 8",
                                        "+",
                                        "-",
                                        "+ 5",
                                        "--5",
                                        "_5",
                                        "5_",
                                        "5__0",
                                        "-_5",
                                        "5_ ",
                                        "7.0",
                                        "7.9",
                                        "1e3",
                                        "0x10",
                                        "0b1",
                                        "true",
                                        "\xd9\xa7",
                                        "9223372036854775808",
                                        "-9223372036854775809",
                                        "99999999999999999999999999999999999999" };

    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(muster_rdzv_params_set_text(*state, "k", rows[i], NULL), 0);
        not_an_int(*state);
    }
}

static void floats_are_cut_to_integers(void **state)
{
    static const struct {
        double from;
        int64_t number;
    } rows[] = {
        { 7.9, 7 }, { -7.9, -7 }, { 0.99, 0 }, { 7.0, 7 }, { -0x1p63, INT64_MIN }, { 0x1p62, INT64_C(1) << 62 }
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(muster_rdzv_params_set_float(*state, "k", rows[i].from, NULL), 0);
        as_int(*state, rows[i].number);
    }
}

static void floats_that_are_no_integer_of_64_bits_are_refused(void **state)
{
    static const double rows[] = { NAN, INFINITY, -INFINITY, 0x1p63, -0x1.1p63, 1e300 };

    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(muster_rdzv_params_set_float(*state, "k", rows[i], NULL), 0);
        not_an_int(*state);
    }
}

static void bools_are_the_integers_1_and_0(void **state)
{
    assert_int_equal(muster_rdzv_params_set_bool(*state, "k", true, NULL), 0);
    as_int(*state, 1);
    assert_int_equal(muster_rdzv_params_set_bool(*state, "k", false, NULL), 0);
    as_int(*state, 0);
}

/* ---- Options from one text ---- */

static void an_option_text_sets_all_of_its_options_as_text(void **state)
{
    struct muster_value value;

    assert_int_equal(muster_rdzv_params_set_int(*state, "a", 1, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(*state, " a = 5 , b=x=y,c=1,c=2 ", NULL), 0);
    assert_true(muster_rdzv_params_get(*state, "a", &value));
    assert_int_equal(value.kind, MUSTER_VALUE_TEXT);
    assert_string_equal(value.text, "5");
    assert_true(muster_rdzv_params_get(*state, "b", &value));
    assert_string_equal(value.text, "x=y");
    assert_true(muster_rdzv_params_get(*state, "c", &value));
    assert_string_equal(value.text, "2");
}

static void a_bad_option_text_sets_nothing(void **state)
{
    struct muster_value value;
    struct muster_error error = { 0 };

    assert_int_equal(muster_rdzv_params_set_options(*state, "a=1,b=2,c", &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'c'"));
    assert_false(muster_rdzv_params_get(*state, "a", &value));
}

static void without_memory_it_is_refused_and_nothing_leaks(void **state)
{
    struct muster_value value;

    (void)state;
    FOR_EACH_FAILURE (n) {
        struct muster_rdzv_params *params = NULL, *copy = NULL;
        int rc = muster_rdzv_params_new("c10d", "e", "r", 1, 1, "here", &params, NULL);

        if (rc == 0)
            rc = muster_rdzv_params_set_options(params, "a=1,b=2", NULL);
        if (rc == 0)
            rc = muster_rdzv_params_set_text(params, "a", "3", NULL);
        if (rc == 0)
            rc = muster_rdzv_params_copy(params, &copy, NULL);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        if (rc == 0)
            assert_true(muster_rdzv_params_get(copy, "b", &value));
        muster_rdzv_params_free(params);
        muster_rdzv_params_free(copy);
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_that_is_given_is_kept_as_a_copy),
        cmocka_unit_test(an_empty_back_end_is_refused_first),
        cmocka_unit_test(a_minimum_below_one_is_refused_by_its_value),
        cmocka_unit_test(a_maximum_below_the_minimum_is_refused_naming_both),
        cmocka_unit_test(endpoint_and_run_id_may_be_empty),
        TEST(without_a_local_address_there_is_none),
        cmocka_unit_test(a_run_id_may_have_any_bytes),
        cmocka_unit_test(texts_that_are_too_long_are_refused_by_name),
        TEST(a_copy_stands_on_its_own),
        TEST(get_gives_the_raw_value_of_its_kind),
        TEST(an_option_that_is_absent_is_told_as_that),
        TEST(a_later_value_takes_the_place_of_an_earlier_one),
        TEST(options_need_names_and_values_within_limits),
        TEST(more_than_256_options_are_refused),
        TEST(a_bool_is_itself_as_a_bool),
        TEST(the_integers_1_and_0_are_bools),
        TEST(yes_and_no_texts_are_bools_in_any_case),
        TEST(any_other_text_is_no_bool),
        TEST(other_integers_and_all_floats_are_no_bools),
        TEST(an_integer_is_itself_as_an_integer),
        TEST(texts_are_integers_as_in_python),
        TEST(bad_texts_are_no_integers),
        TEST(floats_are_cut_to_integers),
        TEST(floats_that_are_no_integer_of_64_bits_are_refused),
        TEST(bools_are_the_integers_1_and_0),
        TEST(an_option_text_sets_all_of_its_options_as_text),
        TEST(a_bad_option_text_sets_nothing),
        cmocka_unit_test(without_memory_it_is_refused_and_nothing_leaks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
