/* What is deleted of rounds that are long over, by whom, and what is not. */
#include "agent/key_gc.h"
#include "failmalloc.h"
#include "pure.h"

#include <inttypes.h>
#include <stdio.h>

static struct scene {
    struct mu_key_gc *clear;
    char trace[8192];
    uint64_t ids[MU_ASKS_MAX];
    unsigned count;
} scene;

static int set_up(void **state)
{
    scene = (struct scene){ .clear = NULL };
    *state = &scene;
    return mu_key_gc_new("job", &scene.clear, NULL);
}

static int tear_down(void **state)
{
    mu_key_gc_free(((struct scene *)*state)->clear);
    return 0;
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

/* Keys without what all of the job begin with. */
static const char *step(struct scene *s, struct mu_key_gc_event event)
{
    struct mu_key_gc_effects effects;
    size_t used = 0;

    mu_key_gc_step(s->clear, &event, &effects);
    s->trace[0] = '\0';
    for (s->count = 0; s->count < effects.count; s->count++) {
        const struct mu_ask *ask = &effects.items[s->count];

        assert_int_equal(ask->kind, MU_ASK_DELETE);
        assert_memory_equal(ask->key.data, "muster.job/", 11);
        used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, "%s%.*s", s->count > 0 ? " " : "",
                                 (int)ask->key.len - 11, ask->key.data + 11);
        s->ids[s->count] = ask->id;
    }
    return s->trace;
}

static const char *join_as(struct scene *s, int64_t round, uint64_t tag, int64_t rank, int64_t world_size)
{
    struct mu_key_gc_round joined = { .round = round, .tag = tag, .rank = rank, .world_size = world_size };

    return step(s, (struct mu_key_gc_event){ .type = MU_KEY_GC_ON_JOINED, .round = &joined });
}

static const char *join(struct scene *s, int64_t round, int64_t rank, int64_t world_size)
{
    return join_as(s, round, 0xab, rank, world_size);
}

/* With other members than before. */
static const char *join_others(struct scene *s, int64_t round, int64_t rank, int64_t world_size)
{
    return join_as(s, round, 0xcd, rank, world_size);
}

static const char *start(struct scene *s)
{
    return step(s, (struct mu_key_gc_event){ .type = MU_KEY_GC_ON_STARTED });
}

static const char *answer(struct scene *s, uint64_t id, const struct muster_error *error)
{
    return step(s, (struct mu_key_gc_event){ .type = MU_KEY_GC_ON_ANSWER, .answer = { .id = id, .error = error } });
}

#define T3 "3.00000000000000ab/"
#define T4 "4.00000000000000ab/"

static void what_is_of_itself_goes_eight_rounds_later(void **state)
{
    struct scene *s = *state;

    assert_string_equal(join(s, 3, 1, 2), "");
    assert_string_equal(start(s), "");
    assert_string_equal(join(s, 10, 1, 2), "");
    assert_string_equal(start(s), "");          /* seven */
    assert_string_equal(join(s, 11, 1, 2), ""); /* not before the workers are up */
    assert_string_equal(start(s), T3 "role_info/1 " T3 "ranks/1 " T3 "done/1 " T3 "left/1 " T3 "heard/1");
    assert_string_equal(start(s), "");
    assert_string_equal(join(s, 12, 1, 2), "");
    assert_string_equal(start(s), "");
}

static void where_all_are_still_there_every_key_is_deleted_once(void **state)
{
    static const char *const keys[] = { "count",       "done_count", "last",   "failed",  "MASTER_ADDR", "MASTER_PORT",
                                        "role_info/0", "ranks/0",    "done/0", "left/0",  "heard/0",     "role_info/1",
                                        "ranks/1",     "done/1",     "left/1", "heard/1", "role_info/2", "ranks/2",
                                        "done/2",      "left/2",     "heard/2" };
    unsigned deleted[COUNT(keys)] = { 0 };
    struct scene *s = *state;
    unsigned count = 0;

    for (int64_t rank = 0; rank < 3; rank++) {
        char name[64];

        (void)tear_down(state);
        (void)set_up(state);
        (void)join(s, 3, rank, 3);
        (void)join(s, 11, rank, 3);
        (void)start(s);
        count += s->count;
        for (size_t i = 0; i < COUNT(keys); i++) {
            (void)snprintf(name, sizeof name, T3 "%s", keys[i]);
            deleted[i] += strstr(s->trace, name) != NULL;
        }
    }
    assert_int_equal(count, COUNT(keys));
    for (size_t i = 0; i < COUNT(keys); i++)
        assert_int_equal(deleted[i], 1);
}

static void rank_0_clears_up_behind_those_who_may_have_gone(void **state)
{
    static const char all[] = T3 "count " T3 "done_count " T3 "last " T3 "failed " T3 "MASTER_ADDR " T3
                                 "MASTER_PORT " T3 "role_info/0 " T3 "ranks/0 " T3 "done/0 " T3 "left/0 " T3
                                 "heard/0 " T3 "role_info/1 " T3 "ranks/1 " T3 "done/1 " T3 "left/1 " T3 "heard/1";
    struct scene *s = *state;

    (void)join(s, 3, 1, 2);
    (void)join_others(s, 11, 0, 2); /* it is now */
    assert_string_equal(start(s), all);
    (void)tear_down(state);
    (void)set_up(state);
    (void)join(s, 3, 0, 2);
    (void)join_others(s, 11, 1, 2); /* it was then */
    assert_string_equal(start(s), all);
}

static void there_is_a_limit_to_what_is_asked_at_once(void **state)
{
    struct scene *s = *state;
    unsigned asked = 0;

    (void)join(s, 3, 0, 100);
    (void)join(s, 4, 0, 100);
    (void)join_others(s, 12, 0, 100);
    (void)start(s);
    assert_int_equal(s->count, MU_ASKS_MAX);
    for (uint64_t id = 1; id <= 2 * (6 + 500); id++) {
        asked += s->count;
        assert_true(asked >= id);
        (void)answer(s, id, NULL);
        assert_true(s->count <= 1);
    }
    assert_int_equal(asked, 2 * (6 + 500));
    assert_string_equal(start(s), "");
}

static void an_error_is_not_minded_and_a_store_that_cannot_is_let_alone(void **state)
{
    struct muster_error lost = { .code = MUSTER_ELOST }, cannot = { .code = MUSTER_ENOTSUP };
    struct scene *s = *state;

    (void)join(s, 3, 1, 2);
    (void)join(s, 4, 1, 2);
    (void)join(s, 11, 1, 2);
    (void)start(s);
    assert_string_equal(answer(s, s->ids[0], &lost), "");
    (void)join(s, 12, 1, 2);
    assert_string_equal(start(s), T4 "role_info/1 " T4 "ranks/1 " T4 "done/1 " T4 "left/1 " T4 "heard/1");
    assert_string_equal(answer(s, s->ids[0], &cannot), "");
    (void)join(s, 30, 1, 2);
    assert_string_equal(start(s), "");
}

static void what_a_store_has_lost_is_not_deleted_and_more_than_enough_is_forgotten(void **state)
{
    struct scene *s = *state;

    (void)join(s, 3, 1, 2);
    (void)join(s, 0, 1, 2); /* it begins anew */
    (void)join(s, 8, 1, 2);
    assert_string_equal(start(s), "0.00000000000000ab/role_info/1 0.00000000000000ab/ranks/1 0.00000000000000ab/done/1 "
                                  "0.00000000000000ab/left/1 0.00000000000000ab/heard/1");
    for (int64_t round = 9; round < 200; round++)
        assert_string_equal(join(s, round, 1, 2), "");
    (void)start(s);
    assert_int_equal(s->count, MU_ASKS_MAX - 5); /* five are under way */
    assert_memory_equal(s->trace, "168.0", 5);   /* of 8 to 191 the last that are remembered */
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_key_gc *clear = NULL;
        int rc = mu_key_gc_new("job", &clear, NULL);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_key_gc_free(clear);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(what_is_of_itself_goes_eight_rounds_later),
        SCENE(where_all_are_still_there_every_key_is_deleted_once),
        SCENE(rank_0_clears_up_behind_those_who_may_have_gone),
        SCENE(there_is_a_limit_to_what_is_asked_at_once),
        SCENE(an_error_is_not_minded_and_a_store_that_cannot_is_let_alone),
        SCENE(what_a_store_has_lost_is_not_deleted_and_more_than_enough_is_forgotten),
        cmocka_unit_test(any_allocation_may_fail),
    };

    return cmocka_run_group_tests_name("clear", tests, NULL, NULL);
}
