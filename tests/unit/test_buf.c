/* Buffers and budgets: ceilings that hold, failures that change nothing, and integers in wire order. */
#include "base/buf.h"
#include "failmalloc.h"
#include "muster.h"
#include "pure.h"

static void assert_holds(const struct mu_buf *buf, const char *text)
{
    assert_int_equal(buf->len, strlen(text));
    assert_memory_equal(buf->len == 0 ? "" : buf->data, text, buf->len);
    assert_true(buf->cap >= buf->len);
}

static void zeroed_memory_is_an_empty_buffer(void **state)
{
    struct mu_buf buf = { 0 };

    (void)state;
    assert_int_equal(mu_buf_slice(&buf).len, 0);
    assert_int_equal(mu_buf_append(&buf, NULL, 0, 0), 0);
    mu_buf_consume(&buf, 0);
    mu_buf_done(&buf);
}

static void appending_keeps_what_was_there(void **state)
{
    struct mu_buf buf = { 0 };

    (void)state;
    assert_int_equal(mu_buf_append(&buf, "abc", 3, 100), 0);
    assert_int_equal(mu_buf_append(&buf, "", 0, 100), 0);
    assert_int_equal(mu_buf_append(&buf, "defg", 4, 100), 0);
    assert_holds(&buf, "abcdefg");
    mu_buf_done(&buf);
    assert_int_equal(buf.cap, 0);
    assert_int_equal(mu_buf_append(&buf, "again", 5, 100), 0); /* done leaves it usable */
    assert_holds(&buf, "again");
    mu_buf_done(&buf);
}

static void a_buffer_takes_its_limit_and_not_a_byte_more(void **state)
{
    struct mu_buf buf = { 0 };

    (void)state;
    assert_int_equal(mu_buf_append(&buf, "12345", 5, 4), MUSTER_ELIMIT);
    assert_holds(&buf, "");
    assert_int_equal(mu_buf_append(&buf, "1234", 4, 4), 0);
    assert_int_equal(mu_buf_append(&buf, "5", 1, 4), MUSTER_ELIMIT);
    assert_int_equal(mu_buf_append(&buf, "", 0, 4), 0);
    assert_int_equal(mu_buf_append(&buf, "", 0, 3), MUSTER_ELIMIT); /* it is already past this one */
    assert_int_equal(mu_buf_reserve(&buf, SIZE_MAX, SIZE_MAX), MUSTER_ELIMIT);
    assert_int_equal(mu_buf_reserve(&buf, SIZE_MAX, SIZE_MAX - 1), MUSTER_ELIMIT);
    assert_holds(&buf, "1234");
    mu_buf_done(&buf);
}

static void reserved_room_is_used_without_moving(void **state)
{
    struct mu_buf buf = { 0 };
    const char *where;

    (void)state;
    assert_int_equal(mu_buf_reserve(&buf, 1000, 1000), 0);
    assert_true(buf.cap >= 1000);
    assert_int_equal(buf.len, 0);
    where = buf.data;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(mu_buf_append(&buf, "x", 1, 1000), 0);
    assert_ptr_equal(buf.data, where);
    mu_buf_done(&buf);
}

static void growing_byte_by_byte_moves_only_a_few_times(void **state)
{
    struct mu_buf buf = { 0 };
    size_t moves = 0, cap = 0;

    (void)state;
    for (int i = 0; i < 1 << 20; i++) {
        assert_int_equal(mu_buf_append(&buf, "x", 1, SIZE_MAX), 0);
        moves += buf.cap != cap;
        cap = buf.cap;
    }
    assert_true(moves <= 20);
    assert_true(buf.cap <= (size_t)2 << 20);
    mu_buf_done(&buf);
}

static void assigning_replaces_and_fits_exactly(void **state)
{
    struct mu_buf buf = { 0 };

    (void)state;
    assert_int_equal(mu_buf_assign(&buf, mu_slice_str("hello")), 0);
    assert_holds(&buf, "hello");
    assert_int_equal(buf.cap, 5);
    assert_int_equal(mu_buf_assign(&buf, mu_slice_str("bye")), 0);
    assert_holds(&buf, "bye");
    assert_int_equal(mu_buf_assign(&buf, mu_slice("", 0)), 0);
    assert_holds(&buf, "");
    mu_buf_done(&buf);
}

static void a_buffer_that_is_mostly_air_shrinks(void **state)
{
    static char large[64 << 10];
    struct mu_buf buf = { 0 };

    (void)state;
    memset(large, 'x', sizeof large);
    assert_int_equal(mu_buf_assign(&buf, mu_slice(large, sizeof large)), 0);
    assert_int_equal(mu_buf_assign(&buf, mu_slice_str("small")), 0);
    assert_true(buf.cap <= 64);
    assert_holds(&buf, "small");

    assert_int_equal(mu_buf_assign(&buf, mu_slice(large, sizeof large)), 0);
    mu_buf_consume(&buf, sizeof large - 3);
    assert_holds(&buf, "xxx");
    assert_true(buf.cap <= 64);
    mu_buf_done(&buf);
}

static void a_small_buffer_keeps_its_room(void **state)
{
    struct mu_buf buf = { 0 };

    (void)state;
    assert_int_equal(mu_buf_reserve(&buf, 1024, 1024), 0);
    assert_int_equal(mu_buf_assign(&buf, mu_slice_str("x")), 0);
    assert_true(buf.cap >= 1024);
    mu_buf_done(&buf);
}

static void consuming_drops_the_first_bytes(void **state)
{
    struct mu_buf buf = { 0 };

    (void)state;
    assert_int_equal(mu_buf_append(&buf, "abcdef", 6, 10), 0);
    mu_buf_consume(&buf, 0);
    assert_holds(&buf, "abcdef");
    mu_buf_consume(&buf, 2);
    assert_holds(&buf, "cdef");
    mu_buf_consume(&buf, 4);
    assert_holds(&buf, "");
    mu_buf_done(&buf);
}

static void without_memory_a_buffer_stays_as_it_was(void **state)
{
    static char large[4096];
    struct mu_buf buf = { 0 };

    (void)state;
    assert_int_equal(mu_buf_append(&buf, "before", 6, 100), 0);
    fail_alloc_at(1);
    assert_int_equal(mu_buf_append(&buf, large, sizeof large, SIZE_MAX), MUSTER_ENOMEM);
    assert_holds(&buf, "before");
    fail_alloc_at(1);
    assert_int_equal(mu_buf_assign(&buf, mu_slice(large, sizeof large)), MUSTER_ENOMEM);
    assert_holds(&buf, "before");
    fail_alloc_at(0);
    assert_int_equal(mu_buf_assign(&buf, mu_slice(large, sizeof large)), 0);
    fail_alloc_at(1);
    mu_buf_consume(&buf, sizeof large - 1); /* cannot shrink, and does not mind */
    fail_alloc_at(0);
    assert_int_equal(buf.len, 1);
    assert_int_equal(buf.cap, sizeof large);
    mu_buf_done(&buf);
}

static void a_budget_gives_up_to_its_ceiling(void **state)
{
    struct mu_budget budget = { .max = 100 };

    (void)state;
    assert_true(mu_budget_take(&budget, 60));
    assert_false(mu_budget_take(&budget, 41));
    assert_int_equal(budget.used, 60);
    assert_true(mu_budget_take(&budget, 40));
    assert_false(mu_budget_take(&budget, 1));
    assert_true(mu_budget_take(&budget, 0));
    assert_false(mu_budget_take(&budget, SIZE_MAX));
    mu_budget_give(&budget, 100);
    assert_int_equal(budget.used, 0);
    assert_false(mu_budget_take(&budget, 101));
}

static void a_budget_without_a_ceiling_only_counts(void **state)
{
    struct mu_budget budget = { 0 };

    (void)state;
    assert_true(mu_budget_take(&budget, SIZE_MAX / 2));
    assert_true(mu_budget_take(&budget, 1));
    assert_int_equal(budget.used, SIZE_MAX / 2 + 1);
}

static void integers_stand_in_little_endian_order_at_any_address(void **state)
{
    unsigned char bytes[16];

    (void)state;
    for (size_t at = 0; at < 8; at++) {
        mu_put_u64(bytes + at, 0x0102030405060708u);
        assert_memory_equal(bytes + at, "\x08\x07\x06\x05\x04\x03\x02\x01", 8);
        assert_true(mu_get_u64(bytes + at) == 0x0102030405060708u);
        mu_put_u32(bytes + at, 0xfefdfcfbu);
        assert_memory_equal(bytes + at, "\xfb\xfc\xfd\xfe", 4);
        assert_true(mu_get_u32(bytes + at) == 0xfefdfcfbu);
    }
    mu_put_u64(bytes, UINT64_MAX);
    assert_true(mu_get_u64(bytes) == UINT64_MAX);
}

static void slices_are_equal_by_their_bytes(void **state)
{
    (void)state;
    assert_true(mu_slice_equal(mu_slice_str("abc"), mu_slice("abcd", 3)));
    assert_false(mu_slice_equal(mu_slice_str("abc"), mu_slice_str("abd")));
    assert_false(mu_slice_equal(mu_slice_str("abc"), mu_slice_str("ab")));
    assert_true(mu_slice_equal(mu_slice(NULL, 0), mu_slice_str("")));
    assert_false(mu_slice_equal(mu_slice("a\0b", 3), mu_slice("a\0c", 3)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zeroed_memory_is_an_empty_buffer),
        cmocka_unit_test(appending_keeps_what_was_there),
        cmocka_unit_test(a_buffer_takes_its_limit_and_not_a_byte_more),
        cmocka_unit_test(reserved_room_is_used_without_moving),
        cmocka_unit_test(growing_byte_by_byte_moves_only_a_few_times),
        cmocka_unit_test(assigning_replaces_and_fits_exactly),
        cmocka_unit_test(a_buffer_that_is_mostly_air_shrinks),
        cmocka_unit_test(a_small_buffer_keeps_its_room),
        cmocka_unit_test(consuming_drops_the_first_bytes),
        cmocka_unit_test(without_memory_a_buffer_stays_as_it_was),
        cmocka_unit_test(a_budget_gives_up_to_its_ceiling),
        cmocka_unit_test(a_budget_without_a_ceiling_only_counts),
        cmocka_unit_test(integers_stand_in_little_endian_order_at_any_address),
        cmocka_unit_test(slices_are_equal_by_their_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
