/* Which ranks are shown, and which lines are written down a second time. */
#include "failmalloc.h"
#include "logs/filters.h"
#include "pure.h"

#include <stdio.h>

/* "0 2 all": of the ranks 0..9, 4095 and 4096. */
static const char *shown_by(const char *text)
{
    static char out[128];
    static const uint32_t ranks[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 4095, 4096 };
    struct mu_ranks_shown shown = { 0 };
    struct muster_error err = { 0 };
    size_t used = 0;

    out[0] = '\0';
    if (mu_ranks_shown_parse("--local-ranks-filter", text, &shown, &err) < 0) {
        assert_int_equal(err.code, MUSTER_EINVAL);
        assert_non_null(strstr(err.text, "--local-ranks-filter"));
        assert_non_null(strstr(err.text, text));
        return "bad";
    }
    for (size_t i = 0; i < COUNT(ranks); i++)
        if (mu_ranks_shown_has(&shown, ranks[i]))
            used += (size_t)snprintf(out + used, sizeof out - used, "%s%u", used > 0 ? " " : "", ranks[i]);
    return out;
}

static void only_the_ranks_that_are_listed_are_shown(void **state)
{
    (void)state;
    assert_string_equal(shown_by("1"), "1");
    assert_string_equal(shown_by("0,2,9"), "0 2 9");
    assert_string_equal(shown_by("9,0,9"), "0 9");
    assert_string_equal(shown_by("4095"), "4095");
}

static void an_empty_list_shows_all(void **state)
{
    (void)state;
    assert_string_equal(shown_by(""), "0 1 2 3 4 5 6 7 8 9 4095 4096");
}

static void numbers_are_read_as_python_does(void **state)
{
    (void)state;
    assert_string_equal(shown_by(" 1 ,\t2\n"), "1 2");
    assert_string_equal(shown_by("+3"), "3");
    assert_string_equal(shown_by("0_0_5"), "5");
    assert_string_equal(shown_by("-0"), "0");
}

static void ranks_that_do_not_exist_are_accepted_without_effect(void **state)
{
    (void)state;
    assert_string_equal(shown_by("-1"), "");
    assert_string_equal(shown_by("4096"), "");
    assert_string_equal(shown_by("9223372036854775807,3"), "3");
}

static void what_is_no_integer_is_refused(void **state)
{
    static const char *const bad[] = {
        ",", "1,", ",1", "a", "1;2", "1 2", "0x1", "1.0", "_1", "1_", "1__0", "--1", " "
    };

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_string_equal(shown_by(bad[i]), "bad");
}

/* "<a><b>" */
static const char *items_of(const char *text)
{
    static char out[256];
    struct mu_filters filters;
    size_t used = 0;

    out[0] = '\0';
    assert_int_equal(mu_filters_parse("--duplicate-stdout-filters", text, &filters, NULL), 0);
    for (size_t i = 0; i < filters.count; i++)
        used +=
            (size_t)snprintf(out + used, sizeof out - used, "<%.*s>", (int)filters.items[i].len, filters.items[i].data);
    mu_filters_done(&filters);
    return out;
}

static void two_commas_are_one_that_belongs_to_the_item(void **state)
{
    (void)state;
    assert_string_equal(items_of("apple"), "<apple>");
    assert_string_equal(items_of("apple,orange"), "<apple><orange>");
    assert_string_equal(items_of("a,,b,c"), "<a,b><c>");
    assert_string_equal(items_of(",,"), "<,>");
    assert_string_equal(items_of(",,,"), "<,><>");
    assert_string_equal(items_of(",,,,"), "<,,>");
    assert_string_equal(items_of("a,,,b"), "<a,><b>");
    assert_string_equal(items_of(" a , b "), "< a >< b >");
}

static void empty_items_are_kept_but_an_empty_text_has_none(void **state)
{
    (void)state;
    assert_string_equal(items_of(""), "");
    assert_string_equal(items_of(","), "<><>");
    assert_string_equal(items_of("a,"), "<a><>");
    assert_string_equal(items_of(",a"), "<><a>");
}

static bool matches(const char *text, const char *line)
{
    struct mu_filters filters;
    bool match;

    assert_int_equal(mu_filters_parse("--duplicate-stdout-filters", text, &filters, NULL), 0);
    match = mu_filters_match(&filters, mu_slice_str(line));
    mu_filters_done(&filters);
    return match;
}

static void a_line_matches_if_it_contains_any_item(void **state)
{
    (void)state;
    assert_true(matches("loss,acc", "step 3 loss=0.2"));
    assert_true(matches("loss,acc", "acc"));
    assert_false(matches("loss,acc", "step 3"));
    assert_false(matches("loss,acc", ""));
    assert_true(matches("a,,b", "xa,by"));
    assert_false(matches("a,,b", "ab"));
    assert_true(matches("a,", "whatever")); /* every line contains nothing */
    assert_true(matches("a,", ""));
    assert_false(matches("", "whatever"));
}

static void lists_are_bounded(void **state)
{
    static char text[MU_FILTERS_BYTES_MAX + 2];
    struct mu_filters filters = { 0 };
    struct muster_error err = { 0 };

    (void)state;
    memset(text, 'x', sizeof text - 1);
    assert_int_equal(mu_filters_parse("--f", text, &filters, &err), MUSTER_ELIMIT);
    assert_non_null(strstr(err.text, "--f"));
    for (size_t i = 0; i < (size_t)MU_FILTERS_ITEMS_MAX; i++)
        memcpy(text + 2 * i, "x,", 3);
    assert_int_equal(mu_filters_parse("--f", text, &filters, &err), MUSTER_ELIMIT);
    text[(size_t)2 * MU_FILTERS_ITEMS_MAX - 1] = '\0';
    assert_int_equal(mu_filters_parse("--f", text, &filters, &err), 0);
    assert_int_equal(filters.count, MU_FILTERS_ITEMS_MAX);
    mu_filters_done(&filters);
}

static void without_memory_there_is_an_error_and_nothing_else(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_filters filters = { .count = 7 };
        int rc = mu_filters_parse("--f", "a,b,,c", &filters, NULL);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        if (rc < 0)
            assert_int_equal(filters.count, 7);
        else
            mu_filters_done(&filters);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_ranks_that_are_listed_are_shown),
        cmocka_unit_test(an_empty_list_shows_all),
        cmocka_unit_test(numbers_are_read_as_python_does),
        cmocka_unit_test(ranks_that_do_not_exist_are_accepted_without_effect),
        cmocka_unit_test(what_is_no_integer_is_refused),
        cmocka_unit_test(two_commas_are_one_that_belongs_to_the_item),
        cmocka_unit_test(empty_items_are_kept_but_an_empty_text_has_none),
        cmocka_unit_test(a_line_matches_if_it_contains_any_item),
        cmocka_unit_test(lists_are_bounded),
        cmocka_unit_test(without_memory_there_is_an_error_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
