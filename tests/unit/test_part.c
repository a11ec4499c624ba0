/* The three rendezvous machines behind one table. */
#include "pure.h"
#include "rdzv/classic.h"
#include "rdzv/fold.h"
#include "rdzv/part.h"
#include "rdzv/rdzv.h"

static struct {
    unsigned requests, tells;
    bool told_before_a_request;
    struct mu_part_news last;
} seen;

static void on_request(void *ctx, const void *effect)
{
    (void)ctx;
    (void)effect;
    seen.told_before_a_request |= seen.tells > 0;
    seen.requests++;
}

static void on_tell(void *ctx, const struct mu_part_news *news)
{
    (void)ctx;
    seen.tells++;
    seen.last = *news;
}

static const struct mu_part_sink sink = { .request = on_request, .tell = on_tell };

static void *new_rdzv(void)
{
    struct mu_rdzv_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                     .me = { mu_slice_str("a"), 7, mu_node_local_id(MU_NODE_VERSION, 1) },
                                     .dialect = MU_DOC_DIALECT_2_X,
                                     .seed = 1 };
    struct mu_rdzv *rdzv = NULL;

    assert_int_equal(mu_rdzv_new(&config, &rdzv, NULL), 0);
    return rdzv;
}

static void *new_classic(void)
{
    struct mu_classic_config config = { .run_id = "r",
                                        .nodes_min = 1,
                                        .nodes_max = 1,
                                        .join_ms = 600000,
                                        .last_call_ms = 30000,
                                        .close_ms = 5000,
                                        .node = "a_7_1",
                                        .seed = 1 };
    struct mu_classic *classic = NULL;

    assert_int_equal(mu_classic_new(&config, &classic, NULL), 0);
    return classic;
}

static void *new_fold(void)
{
    struct mu_fold_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                     .name = "a",
                                     .pid = 7,
                                     .id = 1,
                                     .lease_ms = 10000,
                                     .job_lease_ms = 60000,
                                     .first_ms = 60000,
                                     .seed = 1,
                                     .ops_max = MU_FOLD_OPS_MIN };
    struct mu_fold *fold = NULL;

    assert_int_equal(mu_fold_new(&config, &fold, NULL), 0);
    return fold;
}

static void free_rdzv(void *part)
{
    mu_rdzv_free(part);
}

static void free_classic(void *part)
{
    mu_classic_free(part);
}

static void free_fold(void *part)
{
    mu_fold_free(part);
}

static const struct {
    const struct mu_part_ops *ops;
    void *(*new)(void);
    void (*free)(void *part);
} parts[] = { { &mu_rdzv_part, new_rdzv, free_rdzv },
              { &mu_classic_part, new_classic, free_classic },
              { &mu_fold_part, new_fold, free_fold } };

static void each_is_asked_to_join_and_wants_something_of_its_back_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(parts); i++) {
        const struct mu_part_ops *ops = parts[i].ops;
        void *part = parts[i].new();
        struct mu_part_world world;

        seen.requests = seen.tells = 0;
        assert_false(ops->world(part, &world));
        ops->step(part, MU_PART_ON_JOIN, NULL, (struct mu_part_now){ 1000, 1 }, &sink);
        assert_true(seen.requests > 0);
        assert_true(ops->deadline_ms(part) > 1000);
        assert_true(ops->deadline_ms(part) < UINT64_MAX);
        assert_true(strlen(ops->phase(part)) > 0);
        assert_int_equal(ops->progress(part).joined, 0);
        assert_false(ops->world(part, &world));
        parts[i].free(part);
    }
    assert_false(seen.told_before_a_request);
}

static void each_tells_that_a_join_has_failed_when_its_time_is_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(parts); i++) {
        const struct mu_part_ops *ops = parts[i].ops;
        void *part = parts[i].new();
        uint64_t now_ms = 1000;

        seen.tells = 0;
        ops->step(part, MU_PART_ON_JOIN, NULL, (struct mu_part_now){ now_ms, 1 }, &sink);
        for (unsigned turns = 0; seen.tells == 0 || seen.last.tell != MU_PART_TELL_FAILED; turns++) {
            assert_true(turns < 1000);
            now_ms = ops->deadline_ms(part);
            assert_true(now_ms < UINT64_MAX);
            ops->step(part, MU_PART_ON_TIME, NULL, (struct mu_part_now){ now_ms, 1 }, &sink);
        }
        assert_int_equal(seen.last.asked, MU_PART_ON_JOIN);
        assert_non_null(seen.last.error);
        parts[i].free(part);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_asked_to_join_and_wants_something_of_its_back_end),
        cmocka_unit_test(each_tells_that_a_join_has_failed_when_its_time_is_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
