/* What is said of a value that is none of ours. */
#include "pure.h"
#include "rdzv/foreign.h"

static void a_foreign_value_is_shown_as_one_short_line(void **state)
{
    char text[MU_FOREIGN_TEXT_MAX];

    (void)state;
    mu_foreign_say(text, "the restart budget", "muster.job/budget", mu_slice_str("garbage"), "putting it back");
    assert_string_equal(
        text,
        "somebody has overwritten the restart budget in 'muster.job/budget' (7 bytes: 'garbage'); putting it back");
    mu_foreign_say(text, "x", "k", mu_slice("\x80", 1), "going on");
    assert_string_equal(text, "somebody has overwritten x in 'k' (1 byte: '?'); going on");
    mu_foreign_say(text, "x", "k", mu_slice_str("\033[1m\n45678901234567890123456789012345"), "going on");
    assert_string_equal(
        text, "somebody has overwritten x in 'k' (37 bytes: '?[1m?456789012345678901234567890...'); going on");
    mu_foreign_say(text, "x", "k", mu_slice(NULL, 0), "going on");
    assert_string_equal(text, "somebody has overwritten x in 'k' (0 bytes: ''); going on");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_foreign_value_is_shown_as_one_short_line) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
