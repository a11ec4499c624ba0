/* The arena: pieces that never overlap, a ceiling, and one end for all of them. */
#include "base/arena.h"
#include "failmalloc.h"
#include "pure.h"

#include <stdalign.h>

static void pieces_are_aligned_and_apart(void **state)
{
    struct mu_arena arena = { 0 };
    unsigned char *pieces[64];

    (void)state;
    for (size_t i = 0; i < COUNT(pieces); i++) {
        pieces[i] = mu_arena_alloc(&arena, i * 7);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % alignof(max_align_t), 0);
        memset(pieces[i], (int)i, i * 7);
    }
    for (size_t i = 0; i < COUNT(pieces); i++) {
        for (size_t j = 0; j < i * 7; j++)
            assert_int_equal(pieces[i][j], i);
    }
    mu_arena_done(&arena);
}

static void a_piece_larger_than_a_block_gets_its_own(void **state)
{
    struct mu_arena arena = { 0 };
    char *small = mu_arena_alloc(&arena, 16), *large = mu_arena_alloc(&arena, 1 << 20);

    (void)state;
    assert_non_null(small);
    assert_non_null(large);
    memset(large, 'x', 1 << 20);
    assert_true(arena.bytes >= (1 << 20) + 16);
    mu_arena_done(&arena);
}

static void the_ceiling_holds_to_the_byte(void **state)
{
    struct mu_arena arena = { .bytes_max = 256 };

    (void)state;
    assert_null(mu_arena_alloc(&arena, 257));
    assert_non_null(mu_arena_alloc(&arena, 128));
    assert_null(mu_arena_alloc(&arena, 129));
    assert_non_null(mu_arena_alloc(&arena, 128));
    assert_null(mu_arena_alloc(&arena, 1));
    assert_int_equal(arena.bytes, 256);
    mu_arena_done(&arena);
    assert_int_equal(arena.bytes, 0);
    assert_non_null(mu_arena_alloc(&arena, 256)); /* usable again, under the same ceiling */
    assert_null(mu_arena_alloc(&arena, 1));
    mu_arena_done(&arena);
}

static void absurd_sizes_are_refused(void **state)
{
    struct mu_arena arena = { 0 };

    (void)state;
    for (size_t less = 0; less < 32; less++)
        assert_null(mu_arena_alloc(&arena, SIZE_MAX - less));
    assert_null(mu_arena_join(&arena, mu_slice("", SIZE_MAX), mu_slice("", 1)).data);
    assert_int_equal(arena.bytes, 0);
    mu_arena_done(&arena);
}

static void joining_makes_one_text_of_two(void **state)
{
    struct mu_arena arena = { 0 };
    struct mu_slice both = mu_arena_join(&arena, mu_slice_str("pre/"), mu_slice_str("key"));

    (void)state;
    assert_int_equal(both.len, 7);
    assert_string_equal(both.data, "pre/key"); /* a NUL that does not count follows */
    both = mu_arena_join(&arena, mu_slice(NULL, 0), mu_slice(NULL, 0));
    assert_non_null(both.data);
    assert_int_equal(both.len, 0);
    both = mu_arena_join(&arena, mu_slice("a\0", 2), mu_slice("\0b", 2));
    assert_int_equal(both.len, 4);
    assert_memory_equal(both.data, "a\0\0b", 4);
    mu_arena_done(&arena);
}

static void a_join_past_the_ceiling_has_no_data(void **state)
{
    struct mu_arena arena = { .bytes_max = 8 };

    (void)state;
    assert_null(mu_arena_join(&arena, mu_slice_str("0123456789"), mu_slice_str("abcdef")).data);
    mu_arena_done(&arena);
}

static void without_memory_nothing_is_given_out(void **state)
{
    struct mu_arena arena = { 0 };

    (void)state;
    FOR_EACH_FAILURE (n) {
        void *first = mu_arena_alloc(&arena, 100), *second = mu_arena_alloc(&arena, 10000);

        assert_int_equal(first != NULL && second != NULL, !fail_alloc_hit());
        mu_arena_done(&arena);
        assert_null(arena.blocks);
    }
}

static void a_text_is_copied_and_no_text_stays_none(void **state)
{
    struct mu_arena arena = { .bytes_max = 16 };
    bool full = false;

    (void)state;
    assert_null(mu_arena_text(&arena, NULL, &full));
    assert_string_equal(mu_arena_text(&arena, "text", &full), "text");
    assert_false(full);
    assert_null(mu_arena_text(&arena, "one that is too long for it", &full));
    assert_null(mu_arena_text(&arena, NULL, &full)); /* which does not make room */
    assert_true(full);
    mu_arena_done(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_and_apart),
        cmocka_unit_test(a_piece_larger_than_a_block_gets_its_own),
        cmocka_unit_test(the_ceiling_holds_to_the_byte),
        cmocka_unit_test(absurd_sizes_are_refused),
        cmocka_unit_test(joining_makes_one_text_of_two),
        cmocka_unit_test(a_join_past_the_ceiling_has_no_data),
        cmocka_unit_test(without_memory_nothing_is_given_out),
        cmocka_unit_test(a_text_is_copied_and_no_text_stays_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
