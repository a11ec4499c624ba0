/* The hash table that grows a little at a time: whatever has been added and not removed is found, at every moment. */
#include "base/buckets.h"
#include "failmalloc.h"
#include "pure.h"

#include <stdint.h>
#include <stdlib.h>

enum { ITEMS = 5000 };

static struct mu_bucket_item items[ITEMS];
static struct mu_buckets buckets;

static unsigned hash_of(size_t index)
{
    return (unsigned)(index * UINT32_C(2654435761)) ^ (unsigned)index >> 7;
}

static bool has(size_t index)
{
    const struct mu_bucket_item *item = mu_buckets_first(&buckets, hash_of(index));

    while (item != NULL && item != &items[index])
        item = item->next;
    return item != NULL;
}

static void everything_is_found_while_the_table_grows(void **state)
{
    bool was_growing = false;

    (void)state;
    assert_false(has(0));
    for (size_t i = 0; i < ITEMS; i++) {
        assert_true(mu_buckets_add(&buckets, &items[i], hash_of(i)));
        was_growing |= buckets.old != NULL;
        for (size_t k = i % 97; k <= i; k += 97)
            assert_true(has(k));
        assert_true(i + 1 == ITEMS || !has(i + 1));
    }
    assert_true(was_growing);
    assert_in_range(buckets.size, ITEMS / 2, ITEMS * 4);
    for (size_t i = 0; i < ITEMS; i++) {
        mu_buckets_remove(&buckets, &items[i]);
        assert_false(has(i));
    }
    assert_int_equal(buckets.count, 0);
    mu_buckets_done(&buckets);
}

/* Items go while others come, in the middle of a move as well. */
static void items_may_come_and_go_at_any_moment(void **state)
{
    static bool in[ITEMS];
    unsigned random = 1;

    (void)state;
    for (unsigned step = 0; step < 100000; step++) {
        size_t index, limit = 1 + step / 20;

        random = random * 1103515245 + 12345;
        index = (random >> 8) % (limit < ITEMS ? limit : ITEMS);
        assert_int_equal(has(index), in[index]);
        if (in[index])
            mu_buckets_remove(&buckets, &items[index]);
        else
            assert_true(mu_buckets_add(&buckets, &items[index], hash_of(index)));
        in[index] = !in[index];
    }
    for (size_t i = 0; i < ITEMS; i++)
        assert_int_equal(has(i), in[i]);
    mu_buckets_done(&buckets);
}

/* The longest insertion moves four chains, however many items there are. */
static void no_insertion_moves_more_than_a_few_chains(void **state)
{
    (void)state;
    for (size_t i = 0; i < ITEMS; i++) {
        size_t moved = buckets.old == NULL ? 0 : buckets.moved;

        assert_true(mu_buckets_add(&buckets, &items[i], hash_of(i)));
        if (buckets.old != NULL)
            assert_true(buckets.moved <= moved + 4);
    }
    mu_buckets_done(&buckets);
}

static void without_memory_to_grow_chains_become_longer(void **state)
{
    (void)state;
    fail_alloc_at(1);
    assert_false(mu_buckets_add(&buckets, &items[0], hash_of(0)));
    fail_alloc_at(0);
    for (size_t i = 0; i < ITEMS; i++) {
        fail_alloc_at(i > 0 ? 1 : 0);
        assert_true(mu_buckets_add(&buckets, &items[i], hash_of(i)));
    }
    fail_alloc_at(0);
    for (size_t i = 0; i < ITEMS; i++)
        assert_true(has(i));
    mu_buckets_done(&buckets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_found_while_the_table_grows),
        cmocka_unit_test(items_may_come_and_go_at_any_moment),
        cmocka_unit_test(no_insertion_moves_more_than_a_few_chains),
        cmocka_unit_test(without_memory_to_grow_chains_become_longer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
