/* What a dynamic handler makes of the document and of a round. */
#include "handler/dynamic.h"
#include "kv/kv.h"
#include "pure.h"

static struct mu_doc doc;

static struct mu_node node(const char *name, int64_t pid, bool ours)
{
    return (struct mu_node){ mu_slice_str(name), pid, ours ? mu_node_local_id(MU_NODE_VERSION, (uint32_t)pid) : 0 };
}

static int start(void **state)
{
    (void)state;
    mu_doc_init(&doc, (struct mu_hash_seed){ 1, 2 }, MU_DOC_DIALECT_2_X);
    return 0;
}

static int end(void **state)
{
    (void)state;
    mu_doc_done(&doc);
    return 0;
}

static void enter(struct mu_node who, unsigned in)
{
    assert_non_null(mu_doc_enter(&doc, &who, in));
}

static void a_silent_store_is_noticed_before_others_miss_us(void **state)
{
    static const struct {
        struct mu_rdzv_effect effect;
        uint64_t ms;
    } rows[] = {
        { { .type = MU_RDZV_DO_READ }, 10000 },
        { { .type = MU_RDZV_DO_PARK, .wait_ms = 1 }, MU_DYNAMIC_PARK_MS },
        { { .type = MU_RDZV_DO_TURN_WAIT, .wait_ms = 70 }, 70 },
    };
    struct mu_dynamic_config config = { .request_timeout_ms = 60000, .settings = MU_RDZV_SETTINGS_DEFAULT };
    struct mu_kv_request request = { .number = 0 };

    (void)state;
    config.settings.heartbeat_ms = 5000;
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)mu_dynamic_ask(&rows[i].effect, &config, &request);
        assert_int_equal(request.timeout_ms, rows[i].ms);
    }
    config.request_timeout_ms = 3000;
    (void)mu_dynamic_ask(&rows[0].effect, &config, &request);
    assert_int_equal(request.timeout_ms, 3000);
}

static void a_store_that_answers_may_keep_the_document_back_from_a_node_that_joins(void **state)
{
    static const struct {
        struct mu_rdzv_effect effect;
        uint64_t ms;
    } rows[] = {
        { { .type = MU_RDZV_DO_READ, .wait_ms = 600000 }, 600000 },
        { { .type = MU_RDZV_DO_READ }, 0 },
        { { .type = MU_RDZV_DO_TURN_WAIT, .wait_ms = 70 }, 0 },
    };
    struct mu_dynamic_config config = { .request_timeout_ms = 60000, .settings = MU_RDZV_SETTINGS_DEFAULT };
    struct mu_kv_request request = { .number = 0 };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)mu_dynamic_ask(&rows[i].effect, &config, &request);
        assert_int_equal(request.held_ms, rows[i].ms);
    }
}

static void every_wish_of_the_machine_is_a_request_with_an_answer(void **state)
{
    static const struct {
        enum mu_rdzv_effect_type wish;
        enum mu_kv_kind kind;
        int answer; /* -1: none is wanted */
        int64_t number;
    } rows[] = {
        { MU_RDZV_DO_READ, MU_KV_READ, MU_RDZV_STATE, 3 },
        { MU_RDZV_DO_WRITE, MU_KV_WRITE, MU_RDZV_WRITTEN, 3 },
        { MU_RDZV_DO_RING, MU_KV_RING, -1, 3 },
        { MU_RDZV_DO_PARK, MU_KV_PARK, MU_RDZV_RUNG, 1 },
        { MU_RDZV_DO_TURN_TAKE, MU_KV_TURN_TAKE, MU_RDZV_TURN, 3 },
        { MU_RDZV_DO_TURN_WAIT, MU_KV_TURN_WAIT, MU_RDZV_TURN_CAME, 3 },
        { MU_RDZV_DO_TURN_GIVE, MU_KV_TURN_GIVE, -1, 3 },
        { MU_RDZV_DO_SETTLE, MU_KV_SETTLE, MU_RDZV_SETTLED, 2 },
    };
    const struct mu_dynamic_config config = { .request_timeout_ms = 60000, .settings = MU_RDZV_SETTINGS_DEFAULT };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_rdzv_effect wish = {
            .type = rows[i].wish, .has_token = true, .bell = 1, .round = 2, .turn = 3
        };
        struct mu_kv_request request = { .number = 0 };
        enum mu_rdzv_event_type answer = mu_dynamic_ask(&wish, &config, &request);
        struct mu_rdzv_event event = mu_dynamic_answer(7, answer, &request);

        assert_int_equal(request.kind, rows[i].kind);
        assert_int_equal(request.number, rows[i].number);
        assert_true(request.has_token && request.timeout_ms > 0 && event.id == 7);
        if (rows[i].answer >= 0)
            assert_int_equal(event.type, rows[i].answer);
        request.rc = MUSTER_ELOST;
        request.gone = true;
        event = mu_dynamic_answer(7, answer, &request);
        assert_true(event.type == MU_RDZV_REQUEST_FAILED && event.gone && event.error == &request.error);
    }
}

static void a_request_that_cannot_be_made_has_failed(void **state)
{
    struct mu_rdzv_event event = mu_dynamic_no_memory(7);

    (void)state;
    assert_true(event.type == MU_RDZV_REQUEST_FAILED && event.id == 7 && event.error->code == MUSTER_ENOMEM);
}

static void every_question_of_the_inquiry_is_a_request_with_an_answer(void **state)
{
    static const struct {
        enum mu_inquiry_effect_type type;
        enum mu_kv_kind kind;
        const char *key;
        enum mu_inquiry_event_type answer;
    } rows[] = {
        { MU_INQUIRY_DO_ASK_HOST, MU_KV_HOST, "", MU_INQUIRY_ON_HOST },
        { MU_INQUIRY_DO_WRITE_BOARD, MU_KV_COMPARE_SET, "muster/waiting", MU_INQUIRY_ON_BOARD },
        { MU_INQUIRY_DO_LEAVE_BOARD, MU_KV_COMPARE_SET, "muster/waiting", MU_INQUIRY_ON_LEFT_BOARD },
    };
    const struct mu_dynamic_config config = { .request_timeout_ms = 7000 };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_kv_request request = { .number = 0 };

        assert_int_equal(mu_dynamic_inquire(rows[i].type, &config, &request), rows[i].answer);
        assert_true(request.kind == rows[i].kind && request.timeout_ms == 7000);
        assert_true(mu_slice_equal(mu_slice(request.key.data, request.key.len), mu_slice_str(rows[i].key)));
    }
}

static void the_owner_hears_some_names_of_those_that_wait_or_have_joined(void **state)
{
    struct mu_node nodes[MU_DYNAMIC_NAMED_MAX];

    (void)state;
    enter(node("joined", 1, true), MU_DOC_PARTICIPANT);
    enter(node("waits", 2, true), MU_DOC_WAITING);
    assert_int_equal(mu_dynamic_named(&doc, MUSTER_RDZV_PROGRESS, nodes), 1);
    assert_int_equal(nodes[0].pid, 1);
    assert_int_equal(mu_dynamic_named(&doc, MUSTER_RDZV_WAITING, nodes), 1);
    assert_int_equal(nodes[0].pid, 2);
    for (int64_t pid = 3; pid < 103; pid++) {
        enter(node("joined", pid, true), MU_DOC_PARTICIPANT);
        enter(node("waits", pid, true), MU_DOC_WAITING);
    }
    assert_int_equal(mu_dynamic_named(&doc, MUSTER_RDZV_PROGRESS, nodes), 64);
    assert_int_equal(mu_dynamic_named(&doc, MUSTER_RDZV_WAITING, nodes), 16);
}

static void a_node_has_the_number_it_was_given_or_a_new_one_of_ours(void **state)
{
    const struct mu_dynamic_config given = { .local_id = 9 }, none = { .local_id = 0 };

    (void)state;
    assert_int_equal(mu_dynamic_local_id(&given, 5), 9);
    assert_int_equal(mu_dynamic_local_id(&none, 5), mu_node_local_id(MU_NODE_VERSION, 5));
}

static void a_foreign_document_is_an_answer_with_its_reason(void **state)
{
    struct mu_kv_request request = { .foreign = true, .found = true };

    (void)state;
    assert_ptr_equal(mu_dynamic_answer(1, MU_RDZV_STATE, &request).error, &request.error);
    request.foreign = false;
    assert_null(mu_dynamic_answer(1, MU_RDZV_STATE, &request).error);
}

static void its_machines_are_made_of_the_configuration_and_of_what_the_back_end_can_do(void **state)
{
    static const struct mu_kv_ops all = { .has_bell = true, .has_turns = true, .has_settle = true, .is_common = true };
    static const struct mu_kv_ops none = { .has_bell = false };
    const struct mu_dynamic_place place = { .store_addr = "10.0.0.1" };
    const struct mu_node me = node("me", 7, true);
    const uint64_t random[] = { 1, 2, 3 };
    struct mu_dynamic_config config = { .run_id = "job",
                                        .endpoint = "host:29400",
                                        .store_host = "host",
                                        .settings = MU_RDZV_SETTINGS_DEFAULT,
                                        .use_agent_store = true };
    struct mu_rdzv_config rdzv;
    struct mu_inquiry_config inquiry;

    (void)state;
    config.settings.nodes_min = 2;
    config.settings.nodes_max = 4;
    rdzv = mu_dynamic_rdzv_config(&config, &place, &me, &all, random);
    assert_true(rdzv.has_bell && rdzv.has_turns && rdzv.has_settle && rdzv.shares_store);
    assert_true(rdzv.settings.nodes_min == 2 && rdzv.settings.nodes_max == 4);
    assert_string_equal(rdzv.endpoint, "host:29400");
    assert_true(mu_node_equal(&rdzv.me, &me));
    assert_true(rdzv.hash_seed.k0 == 1 && rdzv.hash_seed.k1 == 2 && rdzv.seed == 3);
    inquiry = mu_dynamic_inquiry_config(&config, &me, &all);
    assert_true(inquiry.nodes_min == 2 && inquiry.nodes_max == 4 && inquiry.has_board);
    assert_string_equal(inquiry.run_id, "job");
    assert_string_equal(inquiry.name, "me");
    assert_string_equal(inquiry.store_host, "host");

    rdzv = mu_dynamic_rdzv_config(&config, &(struct mu_dynamic_place){ .store_addr = NULL }, &me, &none, random);
    assert_false(rdzv.has_bell || rdzv.has_turns || rdzv.has_settle || rdzv.shares_store);
    assert_false(mu_dynamic_inquiry_config(&config, &me, &none).has_board);
}

static void what_the_boot_is_told_by_the_configuration(void **state)
{
    struct mu_dynamic_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT, .use_agent_store = true };
    struct mu_dynamic_place place = { .store_addr = "store" };

    (void)state;
    config.settings.nodes_max = 2;
    assert_false(mu_dynamic_boot_config(&config).at_localhost);
    assert_int_equal(mu_dynamic_boot_config(&config).nodes_max, 2);
    config.store_host = "localhost";
    assert_true(mu_dynamic_boot_config(&config).at_localhost);
    config.store_host = "node1";
    assert_false(mu_dynamic_boot_config(&config).at_localhost);
    assert_true(mu_dynamic_shares_store(&config, &place));
    place.store_addr = NULL;
    assert_false(mu_dynamic_shares_store(&config, &place));
    place.store_addr = "store";
    config.use_agent_store = false;
    assert_false(mu_dynamic_shares_store(&config, &place));
}

static void a_back_end_is_looked_for_no_longer_than_a_join_lasts(void **state)
{
    struct mu_dynamic_config config = { .request_timeout_ms = 60000, .settings = MU_RDZV_SETTINGS_DEFAULT };

    (void)state;
    config.settings.join_ms = 600000;
    assert_int_equal(mu_dynamic_find_ms(&config), 60000);
    config.settings.join_ms = 3000;
    assert_int_equal(mu_dynamic_find_ms(&config), 3000);
}

static void a_back_end_that_does_not_answer_is_no_connection(void **state)
{
    static const struct {
        int rc;
        bool is_there;
    } rows[] = { { 0, true }, { MUSTER_ERDZV_STATE, true }, { MUSTER_ETIMEOUT, false }, { MUSTER_ECONNECT, false } };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_error error = { .code = rows[i].rc };

        assert_int_equal(mu_dynamic_is_there(rows[i].rc, &error), rows[i].is_there);
        assert_int_equal(error.code, rows[i].is_there ? rows[i].rc : MUSTER_ERDZV_CONNECTION);
    }
}

static void of_the_lost_those_who_wait_come_last(void **state)
{
    struct mu_node lost[] = { node("a", 1, true), node("b", 2, true), node("c", 3, true) }, sorted[3];
    size_t waiting = 9;

    (void)state;
    enter(lost[0], MU_DOC_WAITING);
    assert_string_equal(
        mu_dynamic_sort_lost(&doc, (struct mu_rdzv_nodes){ lost, 3 }, "silence", true, sorted, &waiting), "silence");
    assert_int_equal(waiting, 1);
    assert_true(mu_node_equal(&sorted[0], &lost[1]) && mu_node_equal(&sorted[1], &lost[2]));
    assert_true(mu_node_equal(&sorted[2], &lost[0]));
}

static void a_lost_node_that_is_still_listed_hosts_the_store(void **state)
{
    struct mu_node lost[] = { node("a", 1, true) }, sorted[1];
    struct mu_rdzv_nodes all = { lost, 1 };
    size_t waiting;

    (void)state;
    enter(lost[0], MU_DOC_PARTICIPANT);
    assert_string_equal(mu_dynamic_sort_lost(&doc, all, "silence", true, sorted, &waiting),
                        "the store that it hosts refuses connections");
    assert_string_equal(mu_dynamic_sort_lost(&doc, all, "silence", false, sorted, &waiting),
                        "the store that it hosts does not answer");
}

static void workers_meet_in_the_rendezvous_store_only_with_pytorch_2_5(void **state)
{
    struct mu_node members[] = { node("me", 1, true), node("you", 2, false) };
    struct mu_rdzv_world world = {
        .round = 3, .rank = 0, .members = members, .count = 2, .dialect = MU_DOC_DIALECT_2_X
    };
    const struct mu_dynamic_config config = { .use_agent_store = true };
    const struct mu_dynamic_place place = { .store_addr = "store", .store_port = 7 };
    char rank0[MU_NODE_TEXT_MAX];
    struct mu_boot_start start = mu_dynamic_boot_start(&world, mu_slice_str("me"), &config, &place, rank0);

    (void)state;
    assert_null(start.met_at);
    assert_true(start.elsewhere && start.rank0_ours && !start.old_dialect);
    assert_memory_equal(start.rank0.data, "me_1_", 5);
    world.dialect.habits = MU_HABITS_2_5;
    start = mu_dynamic_boot_start(&world, mu_slice_str("me"), &config, &place, rank0);
    assert_string_equal(start.met_at, "store");
    assert_int_equal(start.met_port, 7);
    world.all_ours = true;
    assert_null(mu_dynamic_boot_start(&world, mu_slice_str("me"), &config, &place, rank0).met_at);
    world.count = 1;
    assert_false(mu_dynamic_boot_start(&world, mu_slice_str("me"), &config, &place, rank0).elsewhere);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)
        TEST(a_silent_store_is_noticed_before_others_miss_us),
        TEST(a_store_that_answers_may_keep_the_document_back_from_a_node_that_joins),
        TEST(a_back_end_is_looked_for_no_longer_than_a_join_lasts),
        TEST(a_back_end_that_does_not_answer_is_no_connection),
        TEST(of_the_lost_those_who_wait_come_last),
        TEST(a_lost_node_that_is_still_listed_hosts_the_store),
        TEST(workers_meet_in_the_rendezvous_store_only_with_pytorch_2_5),
        TEST(its_machines_are_made_of_the_configuration_and_of_what_the_back_end_can_do),
        TEST(what_the_boot_is_told_by_the_configuration),
        TEST(a_foreign_document_is_an_answer_with_its_reason),
        TEST(every_wish_of_the_machine_is_a_request_with_an_answer),
        TEST(a_request_that_cannot_be_made_has_failed),
        TEST(every_question_of_the_inquiry_is_a_request_with_an_answer),
        TEST(the_owner_hears_some_names_of_those_that_wait_or_have_joined),
        TEST(a_node_has_the_number_it_was_given_or_a_new_one_of_ours),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
