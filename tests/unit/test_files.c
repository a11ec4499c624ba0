/* The process's descriptors: what is left for connections, and what is too little. */
#include "base/files.h"
#include "pure.h"

#include <sys/resource.h>

static struct rlimit before;

static void limit_to(rlim_t count)
{
    struct rlimit files = before;

    files.rlim_cur = count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
}

static int remember(void **state)
{
    (void)state;
    return getrlimit(RLIMIT_NOFILE, &before);
}

static int restore(void **state)
{
    (void)state;
    return setrlimit(RLIMIT_NOFILE, &before);
}

static void connections_get_what_is_not_reserved(void **state)
{
    (void)state;
    limit_to(200);
    assert_int_equal(mu_files_limit(), 200);
    assert_int_equal(mu_files_connections_max(), 200 - MU_FILES_OWN);
    mu_files_reserve(50);
    mu_files_reserve(70); /* another agent of this process */
    assert_int_equal(mu_files_connections_max(), 200 - MU_FILES_OWN - 120);
    limit_to(300); /* it may be raised at any time */
    assert_int_equal(mu_files_connections_max(), 300 - MU_FILES_OWN - 120);
    mu_files_release(70);
    mu_files_release(50);
    assert_int_equal(mu_files_connections_max(), 300 - MU_FILES_OWN);
}

static void however_much_is_reserved_there_is_room_for_a_few(void **state)
{
    (void)state;
    limit_to(100);
    mu_files_reserve(1000);
    assert_int_equal(mu_files_connections_max(), MU_FILES_CONNECTIONS_LEAST);
    mu_files_release(1000);
}

static void a_limit_that_is_too_low_is_told_with_both_numbers(void **state)
{
    struct muster_error error = { 0 };

    (void)state;
    limit_to(40);
    assert_int_equal(mu_files_check(40, &error), 0);
    assert_int_equal(mu_files_check(0, &error), 0);
    assert_int_equal(mu_files_check(41, &error), MUSTER_ESYSTEM);
    assert_string_equal(error.text,
                        "the limit of open files (ulimit -n) is 40, and 41 are needed: Too many open files");
    limit_to(MU_FILES_MIN - 1);
    assert_int_equal(mu_files_check(0, &error), MUSTER_ESYSTEM);
    assert_non_null(strstr(error.text, "is 31, and 32 are needed"));
}

static void the_limit_is_raised_as_far_as_it_may_be(void **state)
{
    (void)state;
    limit_to(50);
    mu_files_raise();
    assert_int_equal(mu_files_limit(), before.rlim_max > INT32_MAX ? INT32_MAX : before.rlim_max);
}

static void connections_are_counted(void **state)
{
    (void)state;
    mu_files_connection_opened();
    mu_files_connection_opened();
    assert_int_equal(mu_files_connections(), 2);
    mu_files_connection_closed();
    mu_files_connection_closed();
    assert_int_equal(mu_files_connections(), 0);
}

#define test(name) cmocka_unit_test_setup_teardown(name, remember, restore)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(connections_get_what_is_not_reserved),
        test(however_much_is_reserved_there_is_room_for_a_few),
        test(a_limit_that_is_too_low_is_told_with_both_numbers),
        test(the_limit_is_raised_as_far_as_it_may_be),
        test(connections_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
