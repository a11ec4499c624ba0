/* Sets of CPUs and the kernel's lists. */
#include "base/cpus.h"
#include "pure.h"

static const struct {
    const char *list, *text; /* NULL: not a list */
} rows[] = {
    { "", "" },
    { "\n", "" },
    { "0", "0" },
    { "0-3,8\n", "0-3,8" },
    { " 3,2,1,0 \n", "0-3" },
    { "5,5,5-5", "5" },
    { "0-8191", "0-8191" },
    { "63,64,65", "63-65" },
    { "8191", "8191" },
    { "8192", NULL },
    { "0-8192", NULL },
    { "99999999999999999999", NULL },
    { "3-1", NULL },
    { "-1", NULL },
    { "1-", NULL },
    { "1,", NULL },
    { ",1", NULL },
    { "1,,2", NULL },
    { "1 2", NULL },
    { "0x1", NULL },
    { "a", NULL },
};

static void lists_are_read_and_written(void **state)
{
    char room[64];

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_cpus set = { { 7 } };

        if (rows[i].text == NULL) {
            if (mu_cpus_parse(rows[i].list, &set))
                fail_msg("'%s' is a list", rows[i].list);
            assert_int_equal(set.words[0], 7); /* untouched */
            continue;
        }
        assert_true(mu_cpus_parse(rows[i].list, &set));
        assert_string_equal(mu_cpus_text(&set, room, sizeof room), rows[i].text);
    }
}

static void a_set_can_be_walked(void **state)
{
    struct mu_cpus set;

    (void)state;
    assert_true(mu_cpus_parse("2,63-65,8191", &set));
    assert_int_equal(mu_cpus_count(&set), 5);
    assert_int_equal(mu_cpus_next(&set, 0), 2);
    assert_int_equal(mu_cpus_next(&set, 2), 2);
    assert_int_equal(mu_cpus_next(&set, 3), 63);
    assert_int_equal(mu_cpus_next(&set, 64), 64);
    assert_int_equal(mu_cpus_next(&set, 66), 8191);
    assert_int_equal(mu_cpus_next(&set, 8192), MU_CPUS_MAX);
    assert_true(mu_cpus_has(&set, 8191));
    assert_false(mu_cpus_has(&set, 8192));
    assert_false(mu_cpus_has(&set, 0));
    assert_int_equal(mu_cpus_next(&(struct mu_cpus){ { 0 } }, 0), MU_CPUS_MAX);
}

static void a_text_that_does_not_fit_says_so(void **state)
{
    struct mu_cpus set;
    char room[16];

    (void)state;
    assert_true(mu_cpus_parse("0,2,4,6,8,10,12", &set));
    assert_string_equal(mu_cpus_text(&set, room, 15), "0,2,4,6,8...");
    assert_string_equal(mu_cpus_text(&set, room, 4), "...");
    assert_true(mu_cpus_parse("0,2,4,6,8,10", &set));
    assert_string_equal(mu_cpus_text(&set, room, 13), "0,2,4,6,8,10");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_and_written),
        cmocka_unit_test(a_set_can_be_walked),
        cmocka_unit_test(a_text_that_does_not_fit_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
