/* Events of an agent and its workers: every field where PyTorch 2.x has it, and what the sink is told. */
#include "events/agent_event.h"
#include "events/record.h"
#include "failmalloc.h"
#include "pure.h"

#include <stdio.h>

static const struct mu_event_agent before = { .run_id = "job",
                                              .role = "default",
                                              .hostname = "localhost",
                                              .rdzv_backend = "c10d",
                                              .entry_point = "fail3.sh",
                                              .group_rank = -1,
                                              .group_world_size = -1 };
static const struct mu_event_agent after = { .run_id = "job",
                                             .role = "default",
                                             .hostname = "localhost",
                                             .rdzv_backend = "c10d",
                                             .entry_point = "fail3.sh",
                                             .group_rank = 0,
                                             .group_world_size = 1,
                                             .total_run_time_s = 7,
                                             .agent_restarts = 2 };
static const struct mu_event_worker started = {
    .rank = 1, .local_rank = 1, .role_rank = 1, .role_world_size = 2, .id = "830", .pid = 830
};
static const struct mu_event_worker failed = { .rank = 1,
                                               .local_rank = 1,
                                               .role_rank = 1,
                                               .role_world_size = 2,
                                               .id = "830",
                                               .pid = 830,
                                               .has_failed = true,
                                               .exit_code = -15 };

#define HEAD(state, source, rank, group, worker)                                                                       \
    "{\"name\": \"torchelastic.worker.status." state "\", \"source\": \"" source                                       \
    "\", \"timestamp\": 1794724302123, \"metadata\": {\"run_id\": \"job\", \"global_rank\": " rank                     \
    ", \"group_rank\": " group ", \"worker_id\": " worker                                                              \
    ", \"role\": \"default\", \"hostname\": \"localhost\", \"state\": \"" state "\", "
#define INNER_WORKER(exit_code, pid)                                                                                   \
    "\"{\\\"group_world_size\\\": 1, \\\"entry_point\\\": \\\"fail3.sh\\\", \\\"local_rank\\\": [1], "                 \
    "\\\"role_rank\\\": [1], \\\"role_world_size\\\": [2], \\\"exit_code\\\": [" exit_code                             \
    "], \\\"worker_pid\\\": [" pid "]}\""

static const struct {
    struct mu_agent_event event;
    const char *line;
} rows[] = {
    { { .timestamp_ms = 1794724302123,
        .state = MU_EVENT_RENDEZVOUS,
        .agent = &before,
        .duration_ms = 112.85739400000239 },
      HEAD("RENDEZVOUS", "AGENT", "null", "null", "null") "\"total_run_time\": 0, \"rdzv_backend\": \"c10d\", "
                                                          "\"raw_error\": null, \"metadata\": "
                                                          "\"{\\\"group_world_size\\\": null, \\\"entry_point\\\": "
                                                          "\\\"fail3.sh\\\"}\", \"agent_restarts\": 0, "
                                                          "\"duration_ms\": 112.85739400000239}}" },
    { { .timestamp_ms = 1794724302123, .state = MU_EVENT_ASSIGN_WORKER_RANKS, .agent = &before, .duration_ms = 0 },
      HEAD("ASSIGN_WORKER_RANKS", "AGENT", "null", "null",
           "null") "\"total_run_time\": 0, \"rdzv_backend\": \"c10d\", \"raw_error\": null, \"metadata\": "
                   "\"{\\\"group_world_size\\\": null, \\\"entry_point\\\": \\\"fail3.sh\\\"}\", \"agent_restarts\": "
                   "0, \"duration_ms\": 0.0}}" },
    { { .timestamp_ms = 1794724302123,
        .state = MU_EVENT_START,
        .agent = &after,
        .worker = &started,
        .duration_ms = -1 },
      HEAD("START", "WORKER", "1", "0", "\"830\"") "\"total_run_time\": 7, \"rdzv_backend\": \"c10d\", \"raw_error\": "
                                                   "null, \"metadata\": " INNER_WORKER("null", "null") ", \"agent_"
                                                                                                       "restarts\": 2, "
                                                                                                       "\"duration_"
                                                                                                       "ms\": null}}" },
    { { .timestamp_ms = 1794724302123,
        .state = MU_EVENT_FAILED,
        .agent = &after,
        .worker = &failed,
        .raw_error = "{\"message\": \"<NONE>\"}",
        .duration_ms = -1 },
      HEAD("FAILED", "WORKER", "1", "0",
           "\"830\"") "\"total_run_time\": 7, \"rdzv_backend\": \"c10d\", \"raw_error\": \"{\\\"message\\\": "
                      "\\\"<NONE>\\\"}\", \"metadata\": " INNER_WORKER("-15", "830") ", \"agent_restarts\": 2, "
                                                                                     "\"duration_ms\": null}}" },
    { { .timestamp_ms = 1794724302123,
        .state = MU_EVENT_TERMINATED,
        .agent = &after,
        .worker = &started,
        .duration_ms = -1 },
      HEAD("TERMINATED", "WORKER", "1", "0",
           "\"830\"") "\"total_run_time\": 7, \"rdzv_backend\": \"c10d\", "
                      "\"raw_error\": null, \"metadata\": " INNER_WORKER(
                          "null", "null") ", \"agent_restarts\": 2, \"duration_ms\": null}}" },
    { { .timestamp_ms = 1794724302123, .state = MU_EVENT_SUCCEEDED, .agent = &after, .duration_ms = -1 },
      HEAD("SUCCEEDED", "AGENT", "null", "0", "null") "\"total_run_time\": 7, \"rdzv_backend\": \"c10d\", "
                                                      "\"raw_error\": null, \"metadata\": "
                                                      "\"{\\\"group_world_size\\\": 1, \\\"entry_point\\\": "
                                                      "\\\"fail3.sh\\\"}\", \"agent_restarts\": 2, \"duration_ms\": "
                                                      "null}}" },
    { { .timestamp_ms = 1794724302123,
        .state = MU_EVENT_FAILED,
        .agent = &after,
        .raw_error = "a\nb",
        .duration_ms = -1 },
      HEAD("FAILED", "AGENT", "null", "0", "null") "\"total_run_time\": 7, \"rdzv_backend\": \"c10d\", \"raw_error\": "
                                                   "\"a\\nb\", \"metadata\": \"{\\\"group_world_size\\\": 1, "
                                                   "\\\"entry_point\\\": \\\"fail3.sh\\\"}\", \"agent_restarts\": 2, "
                                                   "\"duration_ms\": null}}" },
};

static void assert_line(struct mu_buf *line, int rc, const char *expected)
{
    assert_int_equal(rc, 0);
    assert_int_equal(mu_buf_append(line, "", 1, SIZE_MAX), 0);
    assert_string_equal(line->data, expected);
    mu_buf_done(line);
}

static void events_have_the_fields_of_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_buf line = { 0 };

        assert_line(&line, mu_agent_event_write(&rows[i].event, &line), rows[i].line);
    }
}

static const struct mu_timer_event expired = { .name = "timer expired",
                                               .agent = &after,
                                               .has_timer = true,
                                               .pid = 1256,
                                               .scope = "rec",
                                               .expiration_s = 1794726754.089734,
                                               .timestamp_ms = 1794724302123,
                                               .signal = 9 };

static void timer_events_have_no_duration(void **state)
{
    struct mu_timer_event began = { .name = "watchdog started", .timestamp_ms = 1794724302123, .agent = &before };
    struct mu_buf line = { 0 };

    (void)state;
    assert_line(&line, mu_timer_event_write(&began, &line),
                "{\"name\": \"watchdog started\", \"source\": \"AGENT\", \"timestamp\": 1794724302123, \"metadata\": "
                "{\"run_id\": "
                "\"job\", \"global_rank\": null, \"group_rank\": null, \"worker_id\": null, \"role\": \"default\", "
                "\"hostname\": \"localhost\", \"state\": \"RUNNING\", \"total_run_time\": 0, \"rdzv_backend\": "
                "\"c10d\", \"raw_error\": null, \"metadata\": \"{\\\"watchdog_event\\\": \\\"watchdog started\\\"}\", "
                "\"agent_restarts\": 0}}");
    assert_line(
        &line, mu_timer_event_write(&expired, &line),
        "{\"name\": \"timer expired\", \"source\": \"AGENT\", \"timestamp\": 1794724302123, \"metadata\": {\"run_id\": "
        "\"job\", \"global_rank\": null, \"group_rank\": 0, \"worker_id\": null, \"role\": \"default\", "
        "\"hostname\": \"localhost\", \"state\": \"RUNNING\", \"total_run_time\": 7, \"rdzv_backend\": "
        "\"c10d\", \"raw_error\": null, \"metadata\": \"{\\\"watchdog_event\\\": \\\"timer expired\\\", "
        "\\\"worker_pid\\\": \\\"1256\\\", \\\"scope_id\\\": \\\"rec\\\", \\\"expiration_time\\\": "
        "\\\"1794726754.089734\\\", \\\"signal\\\": \\\"9\\\"}\", \"agent_restarts\": 2}}");
}

static void records_of_the_rendezvous_have_their_own_form(void **state)
{
    struct muster_event_record record = { .name = "join",
                                          .run_id = "job",
                                          .message = "node joined",
                                          .hostname = "node0",
                                          .pid = 17,
                                          .local_id = 3,
                                          .rank = -1,
                                          .node_state = MUSTER_NODE_FAILED,
                                          .error = "no \"store\"" };
    struct mu_buf line = { 0 };

    (void)state;
    assert_line(&line, mu_rdzv_event_write(&record, &line),
                "{\"name\": \"join\", \"run_id\": \"job\", \"message\": \"node joined\", \"hostname\": \"node0\", "
                "\"pid\": 17, \"node_state\": \"FAILED\", \"master_endpoint\": \"\", \"rank\": null, \"local_id\": 3, "
                "\"error_trace\": \"no \\\"store\\\"\"}");
}

struct seen {
    unsigned count;
    struct muster_event_record last;
    char name[128], message[128], json[2048];
};

static void remember(void *ctx, const struct muster_event_record *record)
{
    struct seen *seen = ctx;

    seen->count++;
    seen->last = *record;
    (void)snprintf(seen->name, sizeof seen->name, "%s", record->name);
    (void)snprintf(seen->message, sizeof seen->message, "%s", record->message);
    (void)snprintf(seen->json, sizeof seen->json, "%s", record->json != NULL ? record->json : "none");
}

static void the_sink_gets_them_with_their_json(void **state)
{
    struct seen seen = { 0 };

    (void)state;
    mu_agent_event_record(&rows[0].event); /* nobody hears it */
    muster_events_set_sink(remember, &seen);
    mu_agent_event_record(&rows[3].event);
    assert_int_equal(seen.last.source, MUSTER_EVENT_WORKER);
    assert_int_equal(seen.last.node_state, MUSTER_NODE_FAILED);
    assert_int_equal(seen.last.rank, 1);
    assert_int_equal(seen.last.pid, 830);
    assert_string_equal(seen.name, "torchelastic.worker.status.FAILED");
    assert_string_equal(seen.json, rows[3].line);
    mu_agent_event_record(&rows[5].event);
    assert_int_equal(seen.last.source, MUSTER_EVENT_AGENT);
    assert_int_equal(seen.last.node_state, MUSTER_NODE_SUCCEEDED);
    assert_int_equal(seen.last.rank, -1);
    mu_timer_event_record(&expired);
    assert_string_equal(seen.name, "timer expired");
    assert_int_equal(seen.last.pid, 1256);
    assert_int_equal(seen.last.timestamp_ms, 1794724302123);
    mu_agent_event_record(&(struct mu_agent_event){ .state = MU_EVENT_START, .agent = &before, .duration_ms = -1 });
    assert_true(seen.last.timestamp_ms > 0); /* the present */
    assert_null(strstr(seen.json, "\"timestamp\": 0"));
    mu_event_record((struct muster_event_record){ .name = "join", .run_id = "job", .hostname = "h", .rank = 0 }, "in");
    assert_int_equal(seen.last.source, MUSTER_EVENT_RENDEZVOUS);
    assert_string_equal(seen.json, "{\"name\": \"join\", \"run_id\": \"job\", \"message\": \"in\", \"hostname\": "
                                   "\"h\", \"pid\": 0, \"node_state\": \"INIT\", \"master_endpoint\": \"\", \"rank\": "
                                   "0, \"local_id\": 0, \"error_trace\": \"\"}");
    muster_events_set_sink(NULL, NULL);
    assert_int_equal(seen.count, 5);
}

static void without_memory_the_record_comes_without_json(void **state)
{
    struct seen seen = { 0 };

    (void)state;
    muster_events_set_sink(remember, &seen);
    FOR_EACH_FAILURE (n) {
        mu_agent_event_record(&rows[3].event);
        assert_string_equal(seen.json, fail_alloc_hit() ? "none" : rows[3].line);
        assert_string_equal(seen.message, "FAILED");
    }
    FOR_EACH_FAILURE (n) {
        mu_timer_event_record(&expired);
        assert_int_equal(strcmp(seen.json, "none") == 0, fail_alloc_hit());
    }
    muster_events_set_sink(NULL, NULL);
}

static void states_have_the_names_of_pytorch(void **state)
{
    (void)state;
    assert_string_equal(mu_agent_event_state_name(MU_EVENT_ASSIGN_WORKER_RANKS), "ASSIGN_WORKER_RANKS");
    assert_string_equal(mu_agent_event_state_name((enum mu_agent_event_state)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_have_the_fields_of_pytorch),
        cmocka_unit_test(timer_events_have_no_duration),
        cmocka_unit_test(records_of_the_rendezvous_have_their_own_form),
        cmocka_unit_test(the_sink_gets_them_with_their_json),
        cmocka_unit_test(without_memory_the_record_comes_without_json),
        cmocka_unit_test(states_have_the_names_of_pytorch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
