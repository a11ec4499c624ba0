/* A text that is put together piece by piece. */
#include "base/words.h"
#include "pure.h"

static void pieces_follow_each_other(void **state)
{
    char text[16];
    struct mu_words words = { .text = text, .room = sizeof text };

    (void)state;
    mu_words_add(&words, "%s", "");
    assert_string_equal(text, "");
    mu_words_add(&words, "rank %d", 7);
    mu_words_add(&words, "; %s", "done");
    assert_string_equal(text, "rank 7; done");
    assert_int_equal(words.len, 12);
}

static void what_does_not_fit_is_cut(void **state)
{
    char text[8];
    struct mu_words words = { .text = text, .room = sizeof text };

    (void)state;
    mu_words_add(&words, "%s", "12345");
    mu_words_add(&words, "%s", "678");
    mu_words_add(&words, "%s", "more");
    assert_string_equal(text, "1234567");
    assert_int_equal(words.len, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_follow_each_other),
        cmocka_unit_test(what_does_not_fit_is_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
