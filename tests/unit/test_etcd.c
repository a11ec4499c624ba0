/* What the handler of the classic etcd rendezvous makes of requests, answers and rounds. */
#include "failmalloc.h"
#include "handler/etcd.h"
#include "pure.h"

static const struct muster_error refused = { .code = MUSTER_ECONNECT, .text = "refused" };

static void requests_are_etcds(void **state)
{
    static const enum mu_etcd2_kind kinds[] = { MU_ETCD2_GET, MU_ETCD2_PUT, MU_ETCD2_DELETE, MU_ETCD2_WATCH };
    struct mu_etcd2_request made;

    (void)state;
    for (enum mu_classic_kind kind = MU_CLASSIC_GET; kind <= MU_CLASSIC_WATCH; kind++) {
        made = mu_etcd_request(&(struct mu_classic_request){ .kind = kind });
        assert_int_equal(made.kind, kinds[kind]);
        assert_int_equal(made.quorum, kind == MU_CLASSIC_GET); /* no stale read decides anything */
        assert_int_equal(made.prev_exist, MU_ETCD2_ANY);
        assert_non_null(made.value.data);
    }
    made = mu_etcd_request(&(struct mu_classic_request){ .kind = MU_CLASSIC_PUT,
                                                         .key = mu_slice_str("/k"),
                                                         .dir = true,
                                                         .refresh = true,
                                                         .has_value = true,
                                                         .value = mu_slice_str("v"),
                                                         .has_prev_value = true,
                                                         .prev_value = mu_slice_str("w"),
                                                         .must_not_exist = true,
                                                         .prev_index = 3,
                                                         .wait_index = 4,
                                                         .ttl_s = 5,
                                                         .once = true });
    assert_true(mu_slice_equal(made.key, mu_slice_str("/k")) && mu_slice_equal(made.value, mu_slice_str("v")));
    assert_true(mu_slice_equal(made.prev_value, mu_slice_str("w")) && made.has_prev_value && made.has_value);
    assert_true(made.dir && made.refresh && made.prev_index == 3 && made.wait_index == 4 && made.ttl_s == 5 &&
                made.once);
    assert_int_equal(made.prev_exist, MU_ETCD2_MUST_NOT);
    made = mu_etcd_request(&(struct mu_classic_request){ .kind = MU_CLASSIC_PUT, .must_exist = true });
    assert_int_equal(made.prev_exist, MU_ETCD2_MUST);
}

static void an_answer_is_an_event_or_an_error(void **state)
{
    struct mu_etcd2_node nodes[] = { { .key = mu_slice_str("/d"), .value = mu_slice_str("v"), .modified = 8 },
                                     { .key = mu_slice_str("/d/a"), .value = mu_slice_str("1"), .depth = 1 },
                                     { .key = mu_slice_str("/d/a/b"), .value = mu_slice_str("2"), .depth = 2 },
                                     { .key = mu_slice_str("/d/c"), .value = mu_slice_str("3"), .depth = 1 } };
    struct mu_etcd2_answer answer = { .index = 9, .nodes = nodes, .nodes_count = COUNT(nodes) };
    struct mu_classic_event event = mu_etcd_answer(5, MU_ETCD2_GET, 0, false, &answer, NULL);

    (void)state;
    assert_true(event.type == MU_CLASSIC_ON_ANSWER && event.id == 5 && event.code == 0 && event.index == 9);
    assert_true(mu_slice_equal(event.value, mu_slice_str("v")) && event.modified == 8);
    assert_int_equal(event.nodes_count, 2); /* what is in the directory, and not below that */
    assert_true(mu_slice_equal(event.nodes[1].value, mu_slice_str("3")));
    mu_etcd_event_done(&event);
    answer = (struct mu_etcd2_answer){ .code = MU_ETCD2_EXISTS, .index = 9 };
    event = mu_etcd_answer(5, MU_ETCD2_PUT, 0, true, &answer, &refused);
    assert_true(event.code == MU_ETCD2_EXISTS && !event.unsure && event.error == &refused && event.index == 9);
    answer = (struct mu_etcd2_answer){ .code = 0 };
    event = mu_etcd_answer(5, MU_ETCD2_PUT, MUSTER_ECONNECT, true, &answer, &refused);
    assert_true(event.code == MUSTER_ECONNECT && event.unsure && event.error == &refused);
}

static void a_request_that_cannot_be_made_has_failed(void **state)
{
    struct mu_classic_event event = mu_etcd_no_memory(7);

    (void)state;
    assert_true(event.type == MU_CLASSIC_ON_ANSWER && event.id == 7 && event.code == MUSTER_ENOMEM && !event.unsure);
    assert_int_equal(event.error->code, MUSTER_ENOMEM);
}

static void without_memory_for_its_answer_a_write_is_in_doubt(void **state)
{
    static const enum mu_etcd2_kind kinds[] = { MU_ETCD2_GET, MU_ETCD2_PUT, MU_ETCD2_DELETE, MU_ETCD2_WATCH };
    struct mu_etcd2_node node = { .key = mu_slice_str("/d") };
    const struct mu_etcd2_answer answer = { .nodes = &node, .nodes_count = 1 };

    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++) {
        struct mu_classic_event event;

        fail_alloc_at(1);
        event = mu_etcd_answer(5, kinds[i], 0, false, &answer, NULL);
        fail_alloc_at(0);
        assert_true(event.code == MUSTER_ENOMEM && event.error->code == MUSTER_ENOMEM);
        assert_int_equal(event.unsure, kinds[i] == MU_ETCD2_PUT || kinds[i] == MU_ETCD2_DELETE);
    }
}

/* ---- Rounds ---- */

static char a[] = "a_7_1", b[] = "b_8_2";

static void members_are_named_by_their_marks_or_as_pytorchs(void **state)
{
    char odd[] = "odd";
    char *const marks[] = { a, NULL, odd };
    const struct mu_classic_world world = { .count = 3, .marks = marks };
    struct mu_etcd_member member = mu_etcd_member(&world, 0);

    (void)state;
    assert_string_equal(member.name, "a");
    assert_true(member.pid == 7 && member.local_id == 1);
    member = mu_etcd_member(&world, 1);
    assert_string_equal(member.name, "PyTorch's rank 1");
    assert_true(member.pid == -1 && member.local_id == -1);
    assert_string_equal(mu_etcd_member(&world, 2).name, "PyTorch's rank 2");
}

/* Whether PyTorch is a member, and of which dialect, decides who publishes and when. */
static void the_boot_is_told_the_dialect_of_the_round(void **state)
{
    char *const ours[] = { a, b }, *const first[] = { a, NULL }, *const second[] = { NULL, b };
    const struct {
        char *const *marks;
        bool all_ours, old_dialect;
        bool is_old, rank0_ours, boot_is_old;
    } table[] = {
        { ours, true, false, false, true, false },    { ours, true, true, false, true, false },
        { first, false, false, false, true, false },  { first, false, true, true, true, false },
        { second, false, false, false, true, false }, /* a new store: no earlier pair */
        { second, false, true, true, false, true },   /* rank 0 publishes later */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(table); i++) {
        const struct mu_classic_world world = {
            .version = 3, .rank = 1, .count = 2, .marks = table[i].marks, .all_ours = table[i].all_ours
        };
        struct mu_etcd_member rank0;
        struct mu_boot_start start = mu_etcd_boot_start(&world, table[i].old_dialect, "a", &rank0);

        assert_int_equal(mu_etcd_is_old(&world, table[i].old_dialect), table[i].is_old);
        assert_true(start.round == 3 && start.rank == 1 && start.elsewhere);
        assert_int_equal(start.all_ours, table[i].all_ours);
        assert_int_equal(start.rank0_ours, table[i].rank0_ours);
        assert_int_equal(start.old_dialect, table[i].boot_is_old);
        assert_true(mu_slice_equal(start.rank0, mu_slice_str(rank0.name)));
    }
}

static void a_round_of_one_host_is_nowhere_else(void **state)
{
    char *const marks[] = { a, a };
    const struct mu_classic_world world = { .count = 2, .marks = marks, .all_ours = true };
    struct mu_etcd_member rank0;

    (void)state;
    assert_false(mu_etcd_boot_start(&world, false, "a", &rank0).elsewhere);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_etcds),
        cmocka_unit_test(an_answer_is_an_event_or_an_error),
        cmocka_unit_test(a_request_that_cannot_be_made_has_failed),
        cmocka_unit_test(without_memory_for_its_answer_a_write_is_in_doubt),
        cmocka_unit_test(members_are_named_by_their_marks_or_as_pytorchs),
        cmocka_unit_test(the_boot_is_told_the_dialect_of_the_round),
        cmocka_unit_test(a_round_of_one_host_is_nowhere_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
