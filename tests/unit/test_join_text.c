/* The words of `muster join`: what people read, what programs read, and what a wait looks like. */
#include "cli/join_text.h"
#include "failmalloc.h"
#include "pure.h"

static const struct mu_join_about about = {
    .backend = "c10d", .endpoint = "node1:29400", .run_id = "job", .node = "node9"
};
static const struct muster_node nodes[] = {
    { .name = "node1", .pid = 11, .local_id = 0 },
    { .name = "node2", .pid = 22, .local_id = 1292894301 },
};
static const struct muster_rdzv_info info = {
    .rank = 1, .world_size = 2, .round = 3, .bootstrap = { .master_addr = "10.0.0.1", .master_port = 4711 }
};
static struct mu_text text;

static int empty_text(void **state)
{
    (void)state;
    mu_text_done(&text);
    return 0;
}

static const char *written(void)
{
    mu_text_add(&text, "%c", '\0');
    assert_false(text.failed);
    text.buf.len = 0;
    return text.buf.data;
}

static const char *plain(const char *bytes)
{
    mu_text_add_plain(&text, bytes);
    return written();
}

static const char *json(const char *bytes)
{
    mu_text_add_json(&text, bytes);
    return written();
}

static const char *duration(int64_t ms)
{
    mu_text_add_duration(&text, ms);
    return written();
}

static const char *people(const struct muster_rdzv_event *event)
{
    mu_join_text_people(&text, &about, event);
    return written();
}

static const char *program(const struct muster_rdzv_event *event)
{
    mu_join_text_json(&text, &about, event);
    return written();
}

static const char *status(const struct mu_join_wait *wait)
{
    mu_join_text_status(&text, &about, wait);
    return written();
}

/* ---- Text ---- */

static void plain_text_cannot_disturb_a_terminal(void **state)
{
    (void)state;
    assert_string_equal(plain("a~ \\"), "a~ \\\\");
    assert_string_equal(plain("\r\n\x1b[2J\x7f"), "\\x0d\\x0a\\x1b[2J\\x7f");
    assert_string_equal(plain("\xc3\xa4"), "\\xc3\\xa4");
}

static void a_json_string_has_its_quotes_and_controls_escaped(void **state)
{
    (void)state;
    assert_string_equal(json(""), "\"\"");
    assert_string_equal(json("a\"b\\c/"), "\"a\\\"b\\\\c/\"");
    assert_string_equal(json("\n\x01\x1f\x7f"), "\"\\u000a\\u0001\\u001f\\u007f\"");
}

static void a_json_string_keeps_whole_characters(void **state)
{
    (void)state;
    assert_string_equal(json("\xc3\xa4"), "\"\xc3\xa4\"");
    assert_string_equal(json("\xe2\x82\xac"), "\"\xe2\x82\xac\"");
    assert_string_equal(json("\xf0\x9f\x98\x80x"), "\"\xf0\x9f\x98\x80x\"");
    assert_string_equal(json("\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"),
                        "\"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf\"");
}

static void a_json_string_replaces_what_is_not_utf8(void **state)
{
    (void)state;
    assert_string_equal(json("\x80"), "\"\\ufffd\"");                       /* a stray continuation */
    assert_string_equal(json("\xc3"), "\"\\ufffd\"");                       /* cut off */
    assert_string_equal(json("\xe2\x82"), "\"\\ufffd\\ufffd\"");            /* cut off later */
    assert_string_equal(json("\xc3\x28"), "\"\\ufffd(\"");                  /* followed by something else */
    assert_string_equal(json("\xc0\xaf"), "\"\\ufffd\\ufffd\"");            /* longer than needed */
    assert_string_equal(json("\xe0\x9f\xbf"), "\"\\ufffd\\ufffd\\ufffd\""); /* longer than needed */
    assert_string_equal(json("\xf0\x8f\xbf\xbf"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
    assert_string_equal(json("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");            /* a surrogate */
    assert_string_equal(json("\xf4\x90\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\""); /* beyond U+10FFFF */
    assert_string_equal(json("\xff"
                             "a"),
                        "\"\\ufffda\"");
}

static void durations_count_begun_seconds(void **state)
{
    (void)state;
    assert_string_equal(duration(-5), "0 s");
    assert_string_equal(duration(0), "0 s");
    assert_string_equal(duration(1), "1 s");
    assert_string_equal(duration(1000), "1 s");
    assert_string_equal(duration(1001), "2 s");
    assert_string_equal(duration(59000), "59 s");
    assert_string_equal(duration(60000), "1 min 0 s");
    assert_string_equal(duration(3599000), "59 min 59 s");
    assert_string_equal(duration(7380000), "2 h 3 min");
    assert_string_equal(duration(INT64_MAX), "2562047788015 h 12 min");
}

/* ---- Lines for people ---- */

static void people_are_told_the_whole_result_in_one_line(void **state)
{
    struct muster_rdzv_event event = {
        .type = MUSTER_RDZV_JOINED, .round = 3, .info = &info, .nodes = nodes, .nodes_count = 2
    };

    (void)state;
    assert_string_equal(people(&event), "joined 'job' as rank 1 of 2 (c10d, round 3): node2 (pid 22); "
                                        "members: node1 (pid 11), node2 (pid 22); master: 10.0.0.1:4711\n");
}

static void people_are_told_what_a_back_end_knows(void **state)
{
    struct muster_rdzv_info bare = { .rank = 0, .world_size = 2, .round = -1 };
    struct muster_rdzv_event event = { .type = MUSTER_RDZV_JOINED, .round = -1, .info = &bare };

    (void)state;
    assert_string_equal(people(&event), "joined 'job' as rank 0 of 2 (c10d): node9\n");
    bare.bootstrap = (struct muster_store_info){ .master_addr = "fd00::1", .master_port = 1 };
    assert_string_equal(people(&event), "joined 'job' as rank 0 of 2 (c10d): node9; master: [fd00::1]:1\n");
}

static void people_are_told_what_happens_to_a_member(void **state)
{
    struct muster_rdzv_event event = { .type = MUSTER_RDZV_WAITING, .round = 3, .count = 1, .nodes = nodes };

    (void)state;
    assert_string_equal(people(&event), "1 node wants to join; round 3 has to end first\n");
    event.count = 2;
    assert_string_equal(people(&event), "2 nodes want to join; round 3 has to end first\n");
    event.type = MUSTER_RDZV_PEERS_LOST;
    event.nodes_count = 1;
    assert_string_equal(people(&event), "lost node1 (pid 11): it has left round 3, or is dead\n");
    event.nodes_count = 2;
    event.round = -1;
    assert_string_equal(people(&event), "lost node1 (pid 11), node2 (pid 22): they have left the group, or are dead\n");
    event.type = MUSTER_RDZV_CLOSED;
    assert_string_equal(people(&event), "closed: nobody can join 'job' any more; its members may go on\n");
    event.type = MUSTER_RDZV_LEFT;
    assert_string_equal(people(&event), "left 'job'\n");
    event.type = MUSTER_RDZV_BACKEND_UP;
    assert_string_equal(people(&event), "");
}

static void of_many_nodes_people_are_told_some(void **state)
{
    struct muster_node many[MU_JOIN_NAMES_MAX + 2];

    (void)state;
    for (size_t i = 0; i < MU_JOIN_NAMES_MAX + 2; i++)
        many[i] = (struct muster_node){ .name = "n", .pid = -1, .local_id = -1 };
    mu_text_add_nodes(&text, many, MU_JOIN_NAMES_MAX);
    assert_string_equal(written(), "n, n, n, n, n, n, n, n");
    mu_text_add_nodes(&text, many, MU_JOIN_NAMES_MAX + 2);
    assert_string_equal(written(), "n, n, n, n, n, n, n, n and 2 more");
}

/* ---- Lines for programs ---- */

static void programs_get_the_result_as_an_object(void **state)
{
    struct muster_rdzv_event event = {
        .type = MUSTER_RDZV_JOINED, .round = 3, .info = &info, .nodes = nodes, .nodes_count = 2
    };

    (void)state;
    assert_string_equal(
        program(&event),
        "{\"event\": \"joined\", \"run_id\": \"job\", \"backend\": \"c10d\", \"round\": 3, \"rank\": 1, "
        "\"world_size\": 2, \"node\": \"node2_22_1292894301\", \"members\": [\"node1_11_0\", "
        "\"node2_22_1292894301\"], \"master_addr\": \"10.0.0.1\", \"master_port\": 4711}\n");
}

static void programs_get_null_for_what_is_not_known(void **state)
{
    struct muster_rdzv_info bare = { .rank = 0, .world_size = 1, .round = -1 };
    struct muster_rdzv_event event = { .type = MUSTER_RDZV_JOINED, .round = -1, .info = &bare };

    (void)state;
    assert_string_equal(program(&event),
                        "{\"event\": \"joined\", \"run_id\": \"job\", \"backend\": \"c10d\", \"round\": null, "
                        "\"rank\": 0, \"world_size\": 1, \"node\": \"node9\", \"members\": null, "
                        "\"master_addr\": null, \"master_port\": null}\n");
}

static void programs_get_every_event_with_what_belongs_to_it(void **state)
{
    struct muster_error error = { .code = MUSTER_ERDZV_STATE, .text = "say \"what\"" };
    struct muster_rdzv_event event = {
        .type = MUSTER_RDZV_WAITING, .round = 3, .count = 2, .nodes = nodes, .nodes_count = 1, .error = &error
    };

    (void)state;
    assert_string_equal(program(&event), "{\"event\": \"waiting\", \"round\": 3, \"count\": 2}\n");
    event.type = MUSTER_RDZV_PEERS_LOST;
    assert_string_equal(program(&event), "{\"event\": \"peers_lost\", \"round\": 3, \"nodes\": [\"node1_11_0\"]}\n");
    event.type = MUSTER_RDZV_REMOVED;
    assert_string_equal(program(&event), "{\"event\": \"removed\", \"round\": 3}\n");
    event.type = MUSTER_RDZV_CLOSED;
    assert_string_equal(program(&event), "{\"event\": \"closed\", \"round\": 3}\n");
    event.round = -1;
    event.type = MUSTER_RDZV_LEFT;
    assert_string_equal(program(&event), "{\"event\": \"left\", \"round\": null}\n");
    event.type = MUSTER_RDZV_BACKEND_UP;
    assert_string_equal(program(&event), "{\"event\": \"backend_up\", \"round\": null}\n");
    event.type = MUSTER_RDZV_FAILED;
    assert_string_equal(program(&event), "{\"event\": \"failed\", \"round\": null, \"code\": \"ERDZV_STATE\", "
                                         "\"error\": \"say \\\"what\\\"\"}\n");
}

/* ---- Status ---- */

static void before_anything_is_heard_the_status_counts_the_time(void **state)
{
    struct mu_join_wait wait = { .names = "", .waited_ms = 4200, .down_ms = -1 };

    (void)state;
    assert_string_equal(status(&wait), "waiting for rendezvous 'job' at node1:29400: no answer yet, after 5 s");
    wait.down_ms = 3000;
    assert_string_equal(status(&wait),
                        "waiting for rendezvous 'job' at node1:29400: no connection for 3 s; trying again");
}

static void the_status_tells_who_is_in_and_how_many_are_missing(void **state)
{
    struct muster_rdzv_progress progress = {
        .joined = 1, .min_nodes = 3, .max_nodes = 4, .last_call_left_ms = -1, .join_left_ms = 600000
    };
    struct mu_join_wait wait = { .progress = &progress, .names = "", .progress_age_ms = 5000, .down_ms = -1 };

    (void)state;
    assert_string_equal(
        status(&wait), "waiting for rendezvous 'job': 1 of 3 to 4 nodes joined, 2 more needed; gives up in 9 min 55 s");
    wait.names = "node1 (pid 11)";
    progress.join_left_ms = -1;
    assert_string_equal(status(&wait),
                        "waiting for rendezvous 'job': 1 of 3 to 4 nodes joined (node1 (pid 11)), 2 more needed");
}

static void the_status_tells_that_the_store_has_not_answered(void **state)
{
    struct muster_rdzv_progress progress = {
        .joined = -1, .min_nodes = 2, .max_nodes = 2, .last_call_left_ms = -1, .join_left_ms = 900000
    };
    struct mu_join_wait wait = { .progress = &progress, .names = "", .progress_age_ms = 5000, .down_ms = -1 };

    (void)state;
    assert_string_equal(
        status(&wait),
        "waiting for rendezvous 'job': the store at node1:29400 has not answered yet; gives up in 14 min 55 s");
}

static void the_status_tells_how_long_the_last_call_runs(void **state)
{
    struct muster_rdzv_progress progress = {
        .joined = 2, .min_nodes = 2, .max_nodes = 4, .last_call_left_ms = 30000, .join_left_ms = 600000
    };
    struct mu_join_wait wait = { .progress = &progress, .names = "a, b", .progress_age_ms = 2000, .down_ms = -1 };

    (void)state;
    assert_string_equal(
        status(&wait),
        "waiting for rendezvous 'job': 2 of 2 to 4 nodes joined (a, b), room for 2 more; last call ends in "
        "28 s; gives up in 9 min 58 s");
    wait.progress_age_ms = 40000;
    progress.join_left_ms = -1;
    assert_string_equal(
        status(&wait),
        "waiting for rendezvous 'job': 2 of 2 to 4 nodes joined (a, b), room for 2 more; last call ends in "
        "0 s");
}

static void the_status_tells_a_spare_and_a_latecomer_what_they_are(void **state)
{
    struct muster_rdzv_progress progress = { .joined = 2,
                                             .spares = 1,
                                             .min_nodes = 2,
                                             .max_nodes = 2,
                                             .spare = true,
                                             .last_call_left_ms = -1,
                                             .join_left_ms = -1 };
    struct mu_join_wait wait = { .progress = &progress, .round = 3, .names = "", .down_ms = -1 };

    (void)state;
    assert_string_equal(status(&wait), "waiting for a place in rendezvous 'job': round 3 is full (2 nodes)");
    progress.joined = 0;
    progress.spares = 3;
    wait.round = -1;
    assert_string_equal(status(&wait),
                        "waiting for a place in rendezvous 'job': the group is full; 3 nodes wait for a place");
    progress = (struct muster_rdzv_progress){
        .joined = 2, .waiting = 1, .min_nodes = 2, .max_nodes = 4, .last_call_left_ms = -1, .join_left_ms = 1000
    };
    wait.round = 4;
    assert_string_equal(
        status(&wait),
        "waiting for the next round of rendezvous 'job': round 4 is running (2 nodes); 1 node waits for the "
        "next; gives up in 1 s");
}

/* ---- Memory ---- */

static void missing_memory_is_noticed(void **state)
{
    struct muster_rdzv_event event = {
        .type = MUSTER_RDZV_JOINED, .round = 3, .info = &info, .nodes = nodes, .nodes_count = 2
    };

    (void)state;
    FOR_EACH_FAILURE (n) {
        mu_text_done(&text);
        mu_join_text_json(&text, &about, &event);
        mu_join_text_people(&text, &about, &event);
        assert_int_equal(text.failed != 0, fail_alloc_hit());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text_cannot_disturb_a_terminal),
        cmocka_unit_test(a_json_string_has_its_quotes_and_controls_escaped),
        cmocka_unit_test(a_json_string_keeps_whole_characters),
        cmocka_unit_test(a_json_string_replaces_what_is_not_utf8),
        cmocka_unit_test(durations_count_begun_seconds),
        cmocka_unit_test(people_are_told_the_whole_result_in_one_line),
        cmocka_unit_test(people_are_told_what_a_back_end_knows),
        cmocka_unit_test(people_are_told_what_happens_to_a_member),
        cmocka_unit_test(of_many_nodes_people_are_told_some),
        cmocka_unit_test(programs_get_the_result_as_an_object),
        cmocka_unit_test(programs_get_null_for_what_is_not_known),
        cmocka_unit_test(programs_get_every_event_with_what_belongs_to_it),
        cmocka_unit_test(before_anything_is_heard_the_status_counts_the_time),
        cmocka_unit_test(the_status_tells_who_is_in_and_how_many_are_missing),
        cmocka_unit_test(the_status_tells_that_the_store_has_not_answered),
        cmocka_unit_test(the_status_tells_how_long_the_last_call_runs),
        cmocka_unit_test(the_status_tells_a_spare_and_a_latecomer_what_they_are),
        cmocka_unit_test(missing_memory_is_noticed),
    };

    return cmocka_run_group_tests_name("the words of muster join", tests, NULL, empty_text);
}
