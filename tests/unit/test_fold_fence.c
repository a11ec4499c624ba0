/* A member with a fence: without renewals it removes itself, whatever else it hears, and joins nothing by itself. */
#include "pure.h"
#include "rdzv/fold.h"

#include <stdio.h>

enum { LEASE = 7, JOB = 9, START_MS = 1000, FENCE_MS = 5000 };

static struct mu_fold *fold;
static struct mu_fold_effects effects;
static uint64_t now_ms, take, load, seat;
static struct mu_buf doc, place;

static const struct mu_fold_effect *find(enum mu_fold_effect_type type)
{
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type == type)
            return &effects.items[i];
    return NULL;
}

static const struct mu_part_news *told(enum mu_part_tell tell)
{
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type == MU_FOLD_DO_TELL && effects.items[i].news.tell == tell)
            return &effects.items[i].news;
    return NULL;
}

static void step(struct mu_fold_event event)
{
    event.now_ms = now_ms;
    mu_fold_step(fold, &event, &effects);
    if (find(MU_FOLD_DO_LOAD) != NULL)
        load = find(MU_FOLD_DO_LOAD)->id;
    if (find(MU_FOLD_DO_TAKE_LEASE) != NULL)
        take = find(MU_FOLD_DO_TAKE_LEASE)->id;
    if (find(MU_FOLD_DO_RANGE) != NULL)
        seat = find(MU_FOLD_DO_RANGE)->id;
}

#define STEP(...) step((struct mu_fold_event){ __VA_ARGS__ })

static void begin(uint64_t fence_ms, uint64_t sent_ms)
{
    struct mu_fold_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                     .name = "node1",
                                     .id = 0xab,
                                     .lease_ms = 10000,
                                     .job_lease_ms = 60000,
                                     .first_ms = 1000,
                                     .seed = 1,
                                     .ops_max = MU_FOLD_OPS_MIN,
                                     .fence_ms = fence_ms };
    const struct mu_fold_world world = { .id = 0xcd, .nodes = 2, .size = 2, .max_restarts = 3 };
    struct mu_fold_kv kv = { .key = mu_slice_str("job/doc"), .create = 3, .mod = 3, .lease = JOB };
    struct mu_fold_kv found = { .create = 3, .mod = 3, .lease = JOB };

    config.settings.nodes_min = config.settings.nodes_max = 2;
    now_ms = START_MS;
    assert_int_equal(mu_fold_new(&config, &fold, NULL), 0);
    assert_int_equal(mu_fold_world_write(&world, &doc), 0);
    assert_int_equal(mu_fold_seat_write(&(struct mu_fold_seat){ .rank = 0, .role_size = 2 }, &place), 0);
    kv.value = mu_buf_slice(&doc);
    found.value = mu_buf_slice(&place);
    STEP(.type = MU_FOLD_ON_JOIN);
    STEP(.type = MU_FOLD_ON_LEASED, .id = take, .lease = LEASE, .sent_ms = sent_ms);
    STEP(.type = MU_FOLD_ON_LOADED, .id = load, .kvs = &kv, .count = 1);
    found.key = find(MU_FOLD_DO_RANGE)->key;
    STEP(.type = MU_FOLD_ON_RANGED, .id = seat, .kvs = &found, .count = 1);
}

static void start(uint64_t fence_ms)
{
    begin(fence_ms, START_MS);
    assert_non_null(told(MU_PART_TELL_JOINED));
}

static int stop(void **state)
{
    (void)state;
    mu_fold_free(fold);
    mu_buf_done(&doc);
    mu_buf_done(&place);
    return 0;
}

static void at(uint64_t ms)
{
    now_ms = ms;
    STEP(.type = MU_FOLD_ON_TIME);
}

static void renewed(uint64_t sent_ms)
{
    STEP(.type = MU_FOLD_ON_RENEWED, .id = take, .sent_ms = sent_ms);
}

static void a_member_removes_itself_when_its_time_is_up(void **state)
{
    (void)state;
    start(FENCE_MS);
    assert_true(mu_fold_deadline_ms(fold) <= START_MS + FENCE_MS);
    at(START_MS + FENCE_MS - 1);
    assert_null(told(MU_PART_TELL_REMOVED));
    at(START_MS + FENCE_MS);
    assert_non_null(told(MU_PART_TELL_REMOVED));
    assert_string_equal(told(MU_PART_TELL_REMOVED)->cause, "etcd has acknowledged no keep-alive for 5 s");
    assert_non_null(find(MU_FOLD_DO_DROP_LEASE));
    assert_true(mu_fold_phase(fold) == MU_FOLD_IDLE);
    at(START_MS + 10 * FENCE_MS); /* nothing follows by itself */
    assert_null(told(MU_PART_TELL_REMOVED));
    assert_null(find(MU_FOLD_DO_TAKE_LEASE));
    assert_true(mu_fold_phase(fold) == MU_FOLD_IDLE);
}

/* The lease lasts at least from when its renewal was sent, however late the answer comes. */
static void a_renewal_counts_from_when_it_was_sent(void **state)
{
    (void)state;
    start(FENCE_MS);
    now_ms = START_MS + 4900;
    renewed(START_MS + 3000);
    assert_null(told(MU_PART_TELL_REMOVED));
    at(START_MS + 3000 + FENCE_MS - 1);
    assert_null(told(MU_PART_TELL_REMOVED));
    at(START_MS + 3000 + FENCE_MS);
    assert_non_null(told(MU_PART_TELL_REMOVED));
}

static void a_renewal_of_an_older_lease_does_not_count(void **state)
{
    (void)state;
    start(FENCE_MS);
    now_ms = START_MS + 4000;
    STEP(.type = MU_FOLD_ON_RENEWED, .id = take + 100, .sent_ms = now_ms);
    at(START_MS + FENCE_MS);
    assert_non_null(told(MU_PART_TELL_REMOVED));
}

static void a_new_lease_counts_and_a_lost_one_does_not_stop_the_clock(void **state)
{
    struct muster_error error = { .code = MUSTER_ELOST };

    (void)state;
    start(FENCE_MS);
    now_ms = START_MS + 2000;
    STEP(.type = MU_FOLD_ON_LEASE_LOST, .id = take, .error = &error);
    now_ms = START_MS + 4000;
    STEP(.type = MU_FOLD_ON_LEASED, .id = take, .lease = LEASE + 1, .sent_ms = START_MS + 3500);
    at(START_MS + FENCE_MS);
    assert_null(told(MU_PART_TELL_REMOVED));
    STEP(.type = MU_FOLD_ON_LEASE_LOST, .id = take, .error = &error);
    at(START_MS + 3500 + FENCE_MS);
    assert_non_null(told(MU_PART_TELL_REMOVED));
}

static void nobody_enters_a_round_behind_its_fence(void **state)
{
    (void)state;
    begin(START_MS - 500, 1);
    assert_null(told(MU_PART_TELL_JOINED));
    renewed(START_MS);
    assert_non_null(told(MU_PART_TELL_JOINED));
}

static void whatever_else_is_heard_is_no_renewal(void **state)
{
    (void)state;
    start(FENCE_MS);
    now_ms = START_MS + FENCE_MS;
    STEP(.type = MU_FOLD_ON_TROUBLE);
    assert_non_null(told(MU_PART_TELL_REMOVED));
}

static void who_is_done_has_no_workers_to_stop(void **state)
{
    const struct mu_part_report report = { .end = MU_PART_END_DONE };

    (void)state;
    start(FENCE_MS);
    STEP(.type = MU_FOLD_ON_REPORT, .report = &report);
    at(START_MS + FENCE_MS);
    assert_null(told(MU_PART_TELL_REMOVED));
}

static void without_a_fence_it_goes_on(void **state)
{
    (void)state;
    start(0);
    at(START_MS + 1000 * FENCE_MS);
    assert_null(told(MU_PART_TELL_REMOVED));
    assert_true(mu_fold_phase(fold) == MU_FOLD_MEMBER);
}

int main(void)
{
#define SCENE(scene) cmocka_unit_test_teardown(scene, stop)
    const struct CMUnitTest tests[] = {
        SCENE(a_member_removes_itself_when_its_time_is_up),
        SCENE(a_renewal_counts_from_when_it_was_sent),
        SCENE(a_renewal_of_an_older_lease_does_not_count),
        SCENE(a_new_lease_counts_and_a_lost_one_does_not_stop_the_clock),
        SCENE(nobody_enters_a_round_behind_its_fence),
        SCENE(whatever_else_is_heard_is_no_renewal),
        SCENE(who_is_done_has_no_workers_to_stop),
        SCENE(without_a_fence_it_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
