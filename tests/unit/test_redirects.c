/* The texts of --redirects and --tee. */
#include "logs/redirects.h"
#include "pure.h"

static struct mu_redirects parse(const char *text)
{
    struct mu_redirects redirects = { 0 };
    struct muster_error err = { 0 };

    if (mu_redirects_parse("--tee", text, &redirects, &err) < 0)
        fail_msg("'%s': %s", text, err.text);
    return redirects;
}

static void one_digit_is_for_every_worker(void **state)
{
    (void)state;
    for (unsigned mask = 0; mask < 4; mask++) {
        char text[] = { (char)('0' + mask), '\0' };
        struct mu_redirects redirects = parse(text);

        assert_int_equal(mu_redirects_of(&redirects, 0), mask);
        assert_int_equal(mu_redirects_of(&redirects, 9), mask);
        assert_int_equal(mu_redirects_of(&redirects, 10), mask);
        assert_int_equal(mu_redirects_of(&redirects, UINT32_MAX), mask);
    }
}

static void a_list_is_by_local_rank_and_the_rest_is_nothing(void **state)
{
    struct mu_redirects redirects = parse("0:1,1:2,9:3");

    (void)state;
    assert_int_equal(mu_redirects_of(&redirects, 0), MU_STD_OUT);
    assert_int_equal(mu_redirects_of(&redirects, 1), MU_STD_ERR);
    assert_int_equal(mu_redirects_of(&redirects, 9), MU_STD_BOTH);
    assert_int_equal(mu_redirects_of(&redirects, 2), MU_STD_NONE);
    assert_int_equal(mu_redirects_of(&redirects, 10), MU_STD_NONE);
    assert_int_equal(mu_redirects_of(&redirects, UINT32_MAX), MU_STD_NONE);
}

static void the_last_word_on_a_rank_counts(void **state)
{
    struct mu_redirects redirects = parse("3:1,3:0,4:0,4:2");

    (void)state;
    assert_int_equal(mu_redirects_of(&redirects, 3), MU_STD_NONE);
    assert_int_equal(mu_redirects_of(&redirects, 4), MU_STD_ERR);
}

static void zeroed_memory_redirects_nothing(void **state)
{
    struct mu_redirects redirects = { 0 };

    (void)state;
    assert_int_equal(mu_redirects_of(&redirects, 0), MU_STD_NONE);
}

static void anything_else_is_refused_by_name_with_both_patterns(void **state)
{
    static const char *const bad[] = { "",      "4",  "-1",   "00",    "3 ",       " 3",         "3\n",     "0:",
                                       "0:4",   ":1", "0:1,", ",0:1",  "0:1,,1:1", "10:1",       "0:10",    "0:1;1:1",
                                       "0-1:1", "a",  "a:1",  "0:1,1", "0:1 ,1:1", "\xd9\xa3:1", "0:1,10:1" };

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct mu_redirects redirects = { .all = 2 };
        struct muster_error err = { 0 };

        assert_int_equal(mu_redirects_parse("--redirects", bad[i], &redirects, &err), MUSTER_EINVAL);
        assert_int_equal(redirects.all, 2); /* untouched */
        assert_non_null(strstr(err.text, "--redirects"));
        if (bad[i][0] != '\0')
            assert_non_null(strstr(err.text, bad[i]));
        assert_non_null(strstr(err.text, "[0123]"));
        assert_non_null(strstr(err.text, "RANK:[0123]"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_digit_is_for_every_worker),
        cmocka_unit_test(a_list_is_by_local_rank_and_the_rest_is_nothing),
        cmocka_unit_test(the_last_word_on_a_rank_counts),
        cmocka_unit_test(zeroed_memory_redirects_nothing),
        cmocka_unit_test(anything_else_is_refused_by_name_with_both_patterns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
