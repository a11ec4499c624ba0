/* Numbers as Python reads them, and as digits alone. */
#include "base/number.h"
#include "base/slice.h"
#include "pure.h"

#include <math.h>

static void integers_are_those_of_python(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        { "0", 0 },
        { "-0", 0 },
        { "+7", 7 },
        { " \t42\n", 42 },
        { "1_000", 1000 },
        { "007", 7 },
        { "9223372036854775807", INT64_MAX },
        { "-9223372036854775808", INT64_MIN },
    };
    static const char *const bad[] = {
        "",
        " ",
        "-",
        "+-1",
        "1 2",
        "1__0",
        "_1",
        "1_",
        "x",
        "0x1",
        "1.0",
        "1e3",
        "- 1",
        "9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999999999",
    };
    int64_t value = 77;

    (void)state;
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_true(mu_number_int(good[i].text, &value));
        assert_int_equal(value, good[i].value);
    }
    value = 77;
    for (size_t i = 0; i < COUNT(bad); i++) {
        if (mu_number_int(bad[i], &value))
            fail_msg("'%s' was taken", bad[i]);
    }
    assert_int_equal(value, 77);
}

static void floats_are_those_of_python(void **state)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {
        { "0", 0 },
        { " 1.5\n", 1.5 },
        { ".5", .5 },
        { "5.", 5 },
        { "-2.5e+3", -2500 },
        { "1E-3", 0.001 },
        { "1_0.2_5", 10.25 },
        { "+7", 7 },
        { "1e1_0", 1e10 },
        { "INF", INFINITY },
        { "-inf", -INFINITY },
        { "Infinity", INFINITY },
        { "1e999", INFINITY },
    };
    static const char *const bad[] = {
        "",   " ",    ".",    "e3", "1e",   "1e+",  "0x10",  "1 2", "1__0", "_1",
        "1_", "1_.5", "1._5", "x",  "infi", "nano", "1.2.3", "--1", "1,5",
    };
    char text[MU_NUMBER_FLOAT_MAX + 2];
    double value = 77;

    (void)state;
    for (size_t i = 0; i < COUNT(good); i++) {
        if (!mu_number_float(good[i].text, &value) || value != good[i].value)
            fail_msg("'%s' is %g", good[i].text, value);
    }
    assert_true(mu_number_float("-NaN", &value));
    assert_true(isnan(value));
    for (size_t i = 0; i < COUNT(bad); i++) {
        if (mu_number_float(bad[i], &value))
            fail_msg("'%s' was taken", bad[i]);
    }
    memset(text, '1', sizeof text);
    text[MU_NUMBER_FLOAT_MAX] = '\0';
    assert_true(mu_number_float(text, &value));
    text[MU_NUMBER_FLOAT_MAX] = '1';
    text[MU_NUMBER_FLOAT_MAX + 1] = '\0';
    assert_false(mu_number_float(text, &value));
}

static void digits_alone_are_a_number_up_to_its_maximum(void **state)
{
    static const char *const bad[] = { "", "-1", "+1", " 1", "1 ", "1_0", "x", "66", "99999999999999999999" };
    int64_t value = 7;

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(mu_slice_number(mu_slice_str(bad[i]), 65, &value));
    assert_false(mu_slice_number(mu_slice_str("9"), 5, &value));
    assert_false(mu_slice_number(mu_slice_str("9223372036854775808"), INT64_MAX, &value));
    assert_int_equal(value, 7);
    assert_true(mu_slice_number(mu_slice_str("065"), 65, &value));
    assert_int_equal(value, 65);
    assert_true(mu_slice_number(mu_slice_str("9223372036854775807"), INT64_MAX, &value));
    assert_int_equal(value, INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_those_of_python),
        cmocka_unit_test(floats_are_those_of_python),
        cmocka_unit_test(digits_alone_are_a_number_up_to_its_maximum),
    };

    return cmocka_run_group_tests_name("numbers", tests, NULL, NULL);
}
