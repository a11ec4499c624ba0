/* Events for the record: they reach the sink that is set, one at a time, from any thread. */
#include "events/record.h"
#include "pure.h"

#include <pthread.h>
#include <time.h>

struct seen {
    unsigned records;
    bool inside;
    struct muster_event_record last; /* its texts are compared while they last */
};

static void remember(void *ctx, const struct muster_event_record *record)
{
    struct seen *seen = ctx;

    assert_false(seen->inside);
    seen->inside = true;
    seen->records++;
    seen->last = *record;
    assert_string_equal(record->message, "round 3, marked complete");
    assert_string_equal(record->name, "mark complete");
    assert_string_equal(record->run_id, "job");
    seen->inside = false;
}

static struct muster_event_record example(void)
{
    return (struct muster_event_record){ .name = "mark complete",
                                         .run_id = "job",
                                         .hostname = "node0",
                                         .pid = 17,
                                         .local_id = 1,
                                         .rank = -1,
                                         .node_state = MUSTER_NODE_SUCCEEDED };
}

static void without_a_sink_nothing_happens(void **state)
{
    (void)state;
    muster_events_set_sink(NULL, NULL);
    mu_event_record(example(), "nobody hears %s", "this");
}

static void a_record_reaches_the_sink_whole(void **state)
{
    struct seen seen = { 0 };

    (void)state;
    muster_events_set_sink(remember, &seen);
    mu_event_record(example(), "round %d, marked complete", 3);
    muster_events_set_sink(NULL, NULL);
    mu_event_record(example(), "too late");
    assert_int_equal(seen.records, 1);
    assert_int_equal(seen.last.size, sizeof seen.last);
    assert_int_equal(seen.last.pid, 17);
    assert_int_equal(seen.last.local_id, 1);
    assert_int_equal(seen.last.rank, -1);
    assert_int_equal(seen.last.node_state, MUSTER_NODE_SUCCEEDED);
    assert_null(seen.last.error);
    assert_true(seen.last.timestamp_ms / 1000 <= time(NULL) && seen.last.timestamp_ms > 0);
}

static void measure(void *ctx, const struct muster_event_record *record)
{
    *(size_t *)ctx = strlen(record->message);
}

static void a_message_that_is_too_long_is_cut(void **state)
{
    char tale[8192];
    size_t len = 0;

    (void)state;
    memset(tale, 'x', sizeof tale - 1);
    tale[sizeof tale - 1] = '\0';
    muster_events_set_sink(measure, &len);
    mu_event_record(example(), "begins %s", tale);
    muster_events_set_sink(NULL, NULL);
    assert_int_equal(len, 2047);
}

static void *record_many(void *arg)
{
    (void)arg;
    for (int i = 0; i < 1000; i++)
        mu_event_record(example(), "round %d, marked complete", 3);
    return NULL;
}

static void threads_record_one_after_the_other(void **state)
{
    struct seen seen = { 0 };
    pthread_t threads[4];

    (void)state;
    muster_events_set_sink(remember, &seen);
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record_many, NULL), 0);
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    muster_events_set_sink(NULL, NULL);
    assert_int_equal(seen.records, 4000);
}

static void states_have_names(void **state)
{
    (void)state;
    assert_string_equal(muster_node_state_name(MUSTER_NODE_INIT), "INIT");
    assert_string_equal(muster_node_state_name(MUSTER_NODE_RUNNING), "RUNNING");
    assert_string_equal(muster_node_state_name(MUSTER_NODE_SUCCEEDED), "SUCCEEDED");
    assert_string_equal(muster_node_state_name(MUSTER_NODE_FAILED), "FAILED");
    assert_string_equal(muster_node_state_name((enum muster_node_state)17), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_sink_nothing_happens),
        cmocka_unit_test(a_record_reaches_the_sink_whole),
        cmocka_unit_test(a_message_that_is_too_long_is_cut),
        cmocka_unit_test(threads_record_one_after_the_other),
        cmocka_unit_test(states_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
