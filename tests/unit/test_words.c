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

static void what_others_chose_is_plain(void **state)
{
    char text[6];

    (void)state;
    assert_string_equal(mu_words_plain(mu_slice("a \n~\x7f", 5), text, sizeof text), "a ?~?");
    assert_string_equal(mu_words_plain(mu_slice("\xc3\xa9"
                                                "12345",
                                                7),
                                       text, sizeof text),
                        "??...");
    assert_string_equal(mu_words_plain(mu_slice(NULL, 0), text, sizeof text), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_follow_each_other),
        cmocka_unit_test(what_does_not_fit_is_cut),
        cmocka_unit_test(what_others_chose_is_plain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
