/* The lines about a group that has formed. */
#include "agent/formed_text.h"
#include "pure.h"

#include <stdio.h>

#define UNSAID "default", 0, 0, NULL /* what only the result has */
#define FORMED(...) FORMED_OF(__VA_ARGS__)
#define FORMED_OF(round_, nodes, workers, node, first_worker, local, addr, port, ms, restarts, max, role_, role_first, \
                  role_workers, handler)                                                                               \
    {                                                                                                                  \
        .round = round_,                                                                                               \
        .first = { .group_world_size = nodes,                                                                          \
                   .world_size = workers,                                                                              \
                   .group_rank = node,                                                                                 \
                   .rank = first_worker,                                                                               \
                   .local_world_size = local,                                                                          \
                   .master_addr = addr,                                                                                \
                   .master_port = port,                                                                                \
                   .restart_count = restarts,                                                                          \
                   .role_rank = role_first,                                                                            \
                   .role_world_size = role_workers },                                                                  \
        .regroup_ms = ms, .restarts_used = restarts, .max_restarts = max, .role = role_, .event_log_handler = handler, \
    }

static void a_group_that_has_formed_is_one_line(void **state)
{
    static const struct {
        struct mu_formed formed;
        const char *line;
    } cases[] = {
        { FORMED(0, 4, 32, 2, 16, 8, "10.0.0.5", 41233, -1, 0, 0, UNSAID),
          "group formed: 4 nodes, 32 workers, round 0; this node: rank 2 (workers 16-23); master 10.0.0.5:41233" },
        { FORMED(0, 1, 1, 0, 0, 1, "127.0.0.1", 1, -1, 0, 3, UNSAID),
          "group formed: 1 node, 1 worker, round 0; this node: rank 0 (worker 0); master 127.0.0.1:1" },
        { FORMED(7, 2, 5, 1, 3, 2, "fd00::5", 65535, -1, 0, 0, UNSAID), /* three workers there, two here */
          "group formed: 2 nodes, 5 workers, round 7; this node: rank 1 (workers 3-4); master [fd00::5]:65535" },
        { FORMED(-1, 2, 2, 0, 0, 1, "node1.example", 29500, -1, 0, 0, UNSAID), /* static */
          "group formed: 2 nodes, 2 workers; this node: rank 0 (worker 0); master node1.example:29500" },
        { FORMED(3, 2, 4, 1, 2, 2, "", 0, -1, 0, 0, UNSAID),
          "group formed: 2 nodes, 4 workers, round 3; this node: rank 1 (workers 2-3)" },
        { FORMED(1, 2, 2, 0, 0, 1, "10.0.0.5", 41234, 1500, 1, 3, UNSAID), /* the second group */
          "group formed: 2 nodes, 2 workers, round 1; this node: rank 0 (worker 0); master 10.0.0.5:41234; "
          "regrouped in 1.500 s, restarts used: 1 of 3" },
        { { .first = { .group_world_size = 1,
                       .world_size = 1,
                       .local_world_size = 1,
                       .master_addr = "",
                       .restart_count = 9 },
            .round = 9,
            .regroup_ms = 10,
            .restarts_used = 2, /* of the nine, in the window */
            .max_restarts = 3 },
          "group formed: 1 node, 1 worker, round 9; this node: rank 0 (worker 0); regrouped in 0.010 s, restarts used: "
          "2 of 3" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[MU_FORMED_LINE_MAX];

        mu_formed_say(&cases[i].formed, line);
        assert_string_equal(line, cases[i].line);
    }
}

/* All its lines, each with a line end. */
static const char *result_of(const struct mu_formed *formed)
{
    static char text[16 * MU_FORMED_LINE_MAX];
    char line[MU_FORMED_LINE_MAX];
    size_t used = 0;

    for (unsigned i = 0; mu_formed_say_result(formed, i, line); i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\n", line);
    return text;
}

static void the_result_has_every_value_in_pytorchs_words(void **state)
{
    struct mu_formed formed = FORMED(4, 2, 5, 1, 3, 2, "10.0.0.5", 41233, 1500, 1, 3, "trainer", 1, 3, "null");

    (void)state;
    assert_string_equal(result_of(&formed), "[trainer] Rendezvous complete for workers. Result:\n"
                                            "  restart_count=1\n"
                                            "  master_addr=10.0.0.5\n"
                                            "  master_port=41233\n"
                                            "  group_rank=1\n"
                                            "  group_world_size=2\n"
                                            "  local_ranks=[0, 1]\n"
                                            "  role_ranks=[1, 2]\n"
                                            "  global_ranks=[3, 4]\n"
                                            "  role_world_sizes=[3, 3]\n"
                                            "  global_world_sizes=[5, 5]\n"
                                            "  event_log_handler=null\n");
    formed.event_log_handler = NULL; /* a library's user has a function, not a name */
    assert_null(strstr(result_of(&formed), "event_log_handler"));
}

static void a_result_of_many_workers_stays_short(void **state)
{
    struct mu_formed formed = FORMED(0, 1000, 4096000, 999, 4091904, MU_FORMED_RANKS_SHOWN, "", 0, 0, 0, 0, "default",
                                     4091904, 4096000, NULL);

    (void)state;
    assert_non_null(strstr(result_of(&formed), "  local_ranks=[0, 1, 2, 3, "));
    assert_non_null(strstr(result_of(&formed), ", 62, 63]\n"));
    assert_non_null(strstr(result_of(&formed), ", 4091966, 4091967]\n"));
    formed.first.local_world_size = 4096;
    assert_non_null(strstr(result_of(&formed), "  local_ranks=[0, 1, 2, ..., 4095]\n"));
    assert_non_null(strstr(result_of(&formed), "  global_ranks=[4091904, 4091905, 4091906, ..., 4095999]\n"));
    assert_non_null(strstr(result_of(&formed), "  global_world_sizes=[4096000, 4096000, 4096000, ..., 4096000]\n"));
}

static void members_are_named_by_rank_a_few_on_a_line(void **state)
{
    static const struct muster_node nodes[] = {
        { "a", 1, 0 }, { "b", 2, 0 }, { "c", -1, -1 }, { "d", 4, 0 }, { "e", 5, 0 },
        { "f", 6, 0 }, { "g", 7, 0 }, { "h", 8, 0 },   { "i", 9, 0 },
    };
    char line[MU_FORMED_LINE_MAX];

    (void)state;
    assert_int_equal(mu_formed_say_members(3, nodes, 9, 0, line), 8);
    assert_string_equal(line,
                        "round 3, ranks 0-7: a (pid 1), b (pid 2), c, d (pid 4), e (pid 5), f (pid 6), g (pid 7), "
                        "h (pid 8)");
    assert_int_equal(mu_formed_say_members(3, nodes, 9, 8, line), 9);
    assert_string_equal(line, "round 3, rank 8: i (pid 9)");
    assert_int_equal(mu_formed_say_members(-1, nodes, 2, 0, line), 2);
    assert_string_equal(line, "ranks 0-1: a (pid 1), b (pid 2)");
}

static void long_names_are_cut_so_that_a_line_has_room_for_all(void **state)
{
    struct muster_node nodes[MU_FORMED_MEMBERS_A_LINE];
    char name[1024], line[MU_FORMED_LINE_MAX];

    (void)state;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (size_t i = 0; i < MU_FORMED_MEMBERS_A_LINE; i++)
        nodes[i] = (struct muster_node){ .name = name, .pid = 4194304 };
    nodes[MU_FORMED_MEMBERS_A_LINE - 1].name = "last";
    (void)mu_formed_say_members(1000000, nodes, MU_FORMED_MEMBERS_A_LINE, 0, line);
    assert_non_null(strstr(line, ", last (pid 4194304)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_that_has_formed_is_one_line),
        cmocka_unit_test(the_result_has_every_value_in_pytorchs_words),
        cmocka_unit_test(a_result_of_many_workers_stays_short),
        cmocka_unit_test(members_are_named_by_rank_a_few_on_a_line),
        cmocka_unit_test(long_names_are_cut_so_that_a_line_has_room_for_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
