/* The words for a wait that was in vain. */
#include "pure.h"
#include "rdzv/timeout_text.h"

#define NODE(text)                                                                                                     \
    {                                                                                                                  \
        .name = {.data = text, .len = sizeof text - 1 }                                                                \
    }

static const struct mu_node nodes[] = { NODE("a"), NODE("b"), NODE("c"), NODE("d"), NODE("e"),
                                        NODE("f"), NODE("g"), NODE("h"), NODE("i"), NODE("j") };

static void a_timeout_says_how_many_joined_and_who(void **state)
{
    static const struct {
        struct mu_timeout_text came;
        const char *text;
    } cases[] = {
        { { 600000, 3, 4, 4, nodes, 3 }, "timed out after 600 s: 3 of 4 nodes joined (a, b, c)" },
        { { 3999, 1, 2, 2, nodes, 1 }, "timed out after 3 s: 1 of 2 nodes joined (a)" },
        { { 1000, 1, 2, 4, nodes, 1 }, "timed out after 1 s: 1 of 2 to 4 nodes joined (a)" },
        { { 1000, 0, 1, 1, nodes, 0 }, "timed out after 1 s: 0 of 1 node joined" },
        { { 1000, 5, 8, 8, NULL, 0 }, "timed out after 1 s: 5 of 8 nodes joined" },
        { { 1000, 10, 12, 12, nodes, 10 },
          "timed out after 1 s: 10 of 12 nodes joined (a, b, c, d, e, f, g, h and 2 more)" },
        { { 1000, 2, 2, 2, nodes, 2 },
          "timed out after 1 s: 2 of 2 nodes joined (a, b), but the round did not begin: was each node started with "
          "the same --nnodes?" },
        { { 1000, 2, 2, 4, nodes, 2 }, "timed out after 1 s: 2 of 2 to 4 nodes joined (a, b)" }, /* in its last call */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[MU_TIMEOUT_TEXT_MAX];

        assert_string_equal(mu_timeout_text_write(&cases[i].came, text), cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_timeout_says_how_many_joined_and_who) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
