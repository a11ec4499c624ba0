/* The intrusive list. */
#include "base/list.h"
#include "pure.h"

struct thing {
    int before;
    struct mu_list link;
    int number;
};

static int number_of(struct mu_list *link)
{
    return link == NULL ? -1 : MU_LIST_ITEM(link, struct thing, link)->number;
}

static void items_come_out_in_the_order_they_went_in(void **state)
{
    struct mu_list head;
    struct thing things[3] = { { .number = 0 }, { .number = 1 }, { .number = 2 } };

    (void)state;
    mu_list_init(&head);
    assert_true(mu_list_empty(&head));
    for (size_t i = 0; i < COUNT(things); i++)
        mu_list_push(&head, &things[i].link);
    assert_false(mu_list_empty(&head));
    assert_int_equal(number_of(mu_list_first(&head)), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(number_of(mu_list_pop(&head)), i);
    assert_true(mu_list_empty(&head));
}

static void an_empty_list_has_no_first(void **state)
{
    struct mu_list head;

    (void)state;
    mu_list_init(&head);
    assert_null(mu_list_first(&head));
    assert_null(mu_list_pop(&head));
}

static void an_item_leaves_from_anywhere_and_twice_without_harm(void **state)
{
    struct mu_list head;
    struct thing things[3] = { { .number = 0 }, { .number = 1 }, { .number = 2 } };

    (void)state;
    mu_list_init(&head);
    for (size_t i = 0; i < COUNT(things); i++)
        mu_list_push(&head, &things[i].link);
    mu_list_remove(&things[1].link);
    mu_list_remove(&things[1].link);
    assert_true(mu_list_empty(&things[1].link));
    assert_int_equal(number_of(mu_list_pop(&head)), 0);
    assert_int_equal(number_of(mu_list_pop(&head)), 2);
    mu_list_push(&head, &things[1].link); /* and comes back */
    assert_int_equal(number_of(mu_list_pop(&head)), 1);
    assert_true(mu_list_empty(&head));
}

static void all_items_move_to_another_list(void **state)
{
    struct mu_list from, to;
    struct thing things[3] = { { .number = 0 }, { .number = 1 }, { .number = 2 } };

    (void)state;
    mu_list_init(&from);
    mu_list_take(&to, &from);
    assert_true(mu_list_empty(&to));
    assert_true(mu_list_empty(&from));
    mu_list_push(&from, &things[0].link);
    mu_list_push(&from, &things[1].link);
    mu_list_take(&to, &from);
    mu_list_push(&from, &things[2].link);
    assert_int_equal(number_of(mu_list_pop(&to)), 0);
    assert_int_equal(number_of(mu_list_pop(&to)), 1);
    assert_null(mu_list_pop(&to));
    assert_int_equal(number_of(mu_list_pop(&from)), 2);
    assert_null(mu_list_pop(&from));
}

static void a_walk_survives_that_its_items_leave(void **state)
{
    struct mu_list head;
    struct thing things[3] = { { .number = 0 }, { .number = 1 }, { .number = 2 } }, *thing;
    int seen = 0;

    (void)state;
    mu_list_init(&head);
    MU_LIST_EACH_LEAVING (struct thing, none, &head, link)
        fail_msg("%d is in an empty list", none->number);
    for (size_t i = 0; i < COUNT(things); i++)
        mu_list_push(&head, &things[i].link);
    MU_LIST_EACH_LEAVING (struct thing, one, &head, link) {
        assert_int_equal(one->number, seen++);
        if (one->number != 1)
            mu_list_remove(&one->link);
    }
    assert_int_equal(seen, 3);
    assert_ptr_equal(MU_LIST_FIRST(struct thing, &head, link), &things[1]);
    thing = MU_LIST_POP(struct thing, &head, link);
    assert_ptr_equal(thing, &things[1]);
    assert_null(MU_LIST_FIRST(struct thing, &head, link));
    assert_null(MU_LIST_POP(struct thing, &head, link));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_come_out_in_the_order_they_went_in),
        cmocka_unit_test(an_empty_list_has_no_first),
        cmocka_unit_test(an_item_leaves_from_anywhere_and_twice_without_harm),
        cmocka_unit_test(all_items_move_to_another_list),
        cmocka_unit_test(a_walk_survives_that_its_items_leave),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
