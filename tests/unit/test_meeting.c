/* Where the workers of an etcd-v3 round meet. */
#include "handler/meeting.h"
#include "pure.h"

enum { ME = 1, OTHER = 2, WORLD = 7, LEASE = 11 };

static struct mu_fold *fold;
static struct mu_meeting meeting;
static struct mu_fold_effects effects;

static uint64_t id_of(enum mu_fold_effect_type type)
{
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type == type)
            return effects.items[i].id;
    fail();
    return 0;
}

static void step(struct mu_fold_event event)
{
    event.now_ms = 1000;
    mu_fold_step(fold, &event, &effects);
}

/* Its record is written, and somebody else leads. */
static void join_round(void)
{
    struct mu_buf leader = { 0 };
    struct mu_buf doc = { 0 }, seat = { 0 };
    struct mu_fold_world world = {
        .id = WORLD, .round = 3, .nodes = 2, .first = "b", .first_pid = 1, .first_local_id = 1, .size = 2
    };
    struct mu_fold_kv kv = { .key = mu_slice_str("job/folder"), .create = 5, .mod = 5, .lease = 22 };
    uint64_t load, take;

    step((struct mu_fold_event){ .type = MU_FOLD_ON_JOIN });
    load = id_of(MU_FOLD_DO_LOAD);
    take = id_of(MU_FOLD_DO_TAKE_LEASE);
    assert_int_equal(mu_fold_mark_write(OTHER, &leader), 0);
    kv.value = mu_buf_slice(&leader);
    step((struct mu_fold_event){ .type = MU_FOLD_ON_LOADED, .id = load, .scope = MU_FOLD_JOB, .kvs = &kv, .count = 1 });
    step((struct mu_fold_event){ .type = MU_FOLD_ON_LEASED, .id = take, .lease = LEASE });
    step(
        (struct mu_fold_event){ .type = MU_FOLD_ON_WROTE, .id = id_of(MU_FOLD_DO_WRITE), .held = true, .revision = 6 });
    assert_int_equal(mu_fold_world_write(&world, &doc), 0);
    kv = (struct mu_fold_kv){
        .key = mu_slice_str("job/doc"), .value = mu_buf_slice(&doc), .create = 9, .mod = 20, .lease = 33
    };
    step((struct mu_fold_event){ .type = MU_FOLD_ON_CHANGED, .scope = MU_FOLD_JOB, .kvs = &kv, .count = 1 });
    assert_int_equal(mu_fold_seat_write(&(struct mu_fold_seat){ .rank = 1, .role_size = 2 }, &seat), 0);
    kv = (struct mu_fold_kv){ .key = mu_slice_str("seat/0000000000000007/0000000000000001"),
                              .value = mu_buf_slice(&seat) };
    step((struct mu_fold_event){ .type = MU_FOLD_ON_RANGED, .id = id_of(MU_FOLD_DO_RANGE), .kvs = &kv, .count = 1 });
    assert_int_equal(mu_fold_phase(fold), MU_FOLD_MEMBER);
    mu_buf_done(&leader);
    mu_buf_done(&doc);
    mu_buf_done(&seat);
}

static int start(void **state)
{
    struct mu_fold_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                     .name = "a",
                                     .pid = 1,
                                     .local_id = 1,
                                     .id = ME,
                                     .lease_ms = 10000,
                                     .job_lease_ms = 60000,
                                     .first_ms = 60000,
                                     .seed = 1,
                                     .ops_max = MU_FOLD_OPS_MIN };

    (void)state;
    meeting = (struct mu_meeting){ .has_master = false };
    config.settings.nodes_min = config.settings.nodes_max = 2;
    return mu_fold_new(&config, &fold, NULL);
}

static int end(void **state)
{
    (void)state;
    mu_fold_free(fold);
    return 0;
}

static void see(enum mu_fold_event_type type, struct mu_fold_kv kv)
{
    kv.key = mu_slice_str("job/master");
    mu_meeting_see(&meeting, &(struct mu_fold_event){ .type = type, .scope = MU_FOLD_JOB, .kvs = &kv, .count = 1 });
}

static void see_master(uint64_t world)
{
    const struct mu_fold_master master = { .world = world, .addr = "10.0.0.1", .port = 4711, .agents_port = 4712 };
    struct mu_buf value = { 0 };

    assert_int_equal(mu_fold_master_write(&master, &value), 0);
    see(MU_FOLD_ON_CHANGED, (struct mu_fold_kv){ .value = mu_buf_slice(&value) });
    mu_buf_done(&value);
}

static struct mu_boot_event answer;
static struct mu_fold_master master;

/* At 1000 ms; what waits, waits for 300 ms. */
static enum mu_meeting_reply ask(enum mu_boot_effect_type type, const char *key, const char *value, uint16_t agents)
{
    const struct mu_boot_effect effect = {
        .type = type, .id = 5, .wait_ms = 300, .key = mu_slice_str(key), .value = mu_slice_str(value)
    };

    return mu_meeting_ask(&meeting, fold, &effect, agents, 1000, &answer, &master);
}

static void address_and_port_come_from_one_key_once_it_is_there(void **state)
{
    (void)state;
    join_round();
    assert_int_equal(ask(MU_BOOT_DO_GET, "job/3/MASTER_ADDR", "", 0), MU_MEETING_WAIT);
    assert_int_equal(mu_meeting_deadline_ms(&meeting), 1300);
    assert_false(mu_meeting_answer(&meeting, fold, 1299, &answer));
    see_master(WORLD);
    assert_true(mu_meeting_answer(&meeting, fold, 1299, &answer));
    assert_int_equal(answer.type, MU_BOOT_ON_GOT);
    assert_int_equal(answer.id, 5);
    assert_true(mu_slice_equal(answer.value, mu_slice_str("10.0.0.1")));
    assert_false(mu_meeting_answer(&meeting, fold, 1299, &answer)); /* once */
    assert_true(mu_meeting_deadline_ms(&meeting) == UINT64_MAX);
    assert_int_equal(ask(MU_BOOT_DO_GET, "job/3/MASTER_PORT", "", 0), MU_MEETING_ANSWER);
    assert_true(mu_slice_equal(answer.value, mu_slice_str("4711")));
    assert_true(mu_meeting_deadline_ms(&meeting) == UINT64_MAX);
}

static void that_of_another_round_is_not_ours(void **state)
{
    (void)state;
    see_master(WORLD);
    assert_false(mu_meeting_is_known(&meeting, fold)); /* we are in no round */
    join_round();
    assert_true(mu_meeting_is_known(&meeting, fold));
    see_master(WORLD + 1);
    assert_int_equal(ask(MU_BOOT_DO_GET, "job/3/MASTER_ADDR", "", 0), MU_MEETING_WAIT);
    assert_true(mu_meeting_answer(&meeting, fold, 1300, &answer));
    assert_int_equal(answer.type, MU_BOOT_ON_MISSING);
}

static void what_is_deleted_or_not_loaded_again_is_not_known(void **state)
{
    (void)state;
    join_round();
    see_master(WORLD);
    see(MU_FOLD_ON_CHANGED, (struct mu_fold_kv){ .deleted = true });
    assert_false(mu_meeting_is_known(&meeting, fold));
    see_master(WORLD);
    see(MU_FOLD_ON_CHANGED, (struct mu_fold_kv){ .value = mu_slice_str("foreign") });
    assert_false(mu_meeting_is_known(&meeting, fold));
    see_master(WORLD);
    mu_meeting_see(&meeting, &(struct mu_fold_event){ .type = MU_FOLD_ON_LOADED, .scope = MU_FOLD_NODES });
    mu_meeting_see(&meeting, &(struct mu_fold_event){ .type = MU_FOLD_ON_WROTE });
    assert_true(mu_meeting_is_known(&meeting, fold));
    mu_meeting_see(&meeting, &(struct mu_fold_event){ .type = MU_FOLD_ON_LOADED, .scope = MU_FOLD_JOB });
    assert_false(mu_meeting_is_known(&meeting, fold));
}

static void the_address_waits_for_the_port(void **state)
{
    (void)state;
    join_round();
    assert_int_equal(ask(MU_BOOT_DO_SET, "job/3/MASTER_ADDR", "10.0.0.2", 81), MU_MEETING_ANSWER);
    assert_int_equal(answer.type, MU_BOOT_ON_SET);
    assert_false(mu_meeting_is_known(&meeting, fold));
    assert_int_equal(ask(MU_BOOT_DO_SET, "job/3/MASTER_PORT", "80", 81), MU_MEETING_PUBLISH);
    assert_true(answer.type == MU_BOOT_ON_REQUEST_FAILED && answer.error->code == MUSTER_ENOMEM); /* if so */
    assert_string_equal(master.addr, "10.0.0.2");
    assert_int_equal(master.port, 80);
    assert_int_equal(master.agents_port, 81);
    assert_true(master.world == WORLD);
    assert_true(mu_meeting_is_known(&meeting, fold));
}

static void agents_meet_in_the_store_of_all_rounds_if_there_is_one(void **state)
{
    (void)state;
    assert_int_equal(mu_meeting_agents_port(29400, 4711), 29400);
    assert_int_equal(mu_meeting_agents_port(29400, 0), 29400);
    assert_int_equal(mu_meeting_agents_port(0, 4711), 4711);
    assert_int_equal(mu_meeting_agents_port(0, 0), 0);
}

static void expect_not_in_etcd(uint16_t agents)
{
    assert_int_equal(ask(MU_BOOT_DO_SET, "job/3/MASTER_PORT", "80", agents), MU_MEETING_ANSWER);
    assert_int_equal(answer.type, MU_BOOT_ON_REQUEST_FAILED);
    assert_int_equal(answer.error->code, MUSTER_ERDZV_CONNECTION);
    assert_string_equal(answer.error->text, "at the moment this node has no lease, or the store shows another round");
}

static void a_round_that_is_not_in_etcd_cannot_be_published(void **state)
{
    (void)state;
    expect_not_in_etcd(81);
    join_round();
    expect_not_in_etcd(0);
    step((struct mu_fold_event){ .type = MU_FOLD_ON_CHANGED,
                                 .scope = MU_FOLD_JOB,
                                 .kvs =
                                     &(struct mu_fold_kv){ .key = mu_slice_str("job/doc"), .deleted = true, .mod = 30 },
                                 .count = 1 });
    expect_not_in_etcd(81);
}

static void what_was_published_is_set_only_if_the_round_was_still_the_jobs(void **state)
{
    static const struct muster_error error = { .code = MUSTER_ELOST, .text = "no leader" };
    static const struct {
        struct mu_fold_event event;
        enum mu_boot_event_type type;
        const char *why;
    } rows[] = {
        { { .type = MU_FOLD_ON_WROTE, .held = true }, MU_BOOT_ON_SET, NULL },
        { { .type = MU_FOLD_ON_REQUEST_FAILED, .error = &error }, MU_BOOT_ON_REQUEST_FAILED, "no leader" },
        { { .type = MU_FOLD_ON_WROTE }, MU_BOOT_ON_REQUEST_FAILED, "the job has gone on to another round" },
    };

    (void)state;
    join_round();
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_fold_event event = rows[i].event;

        event.id = 7;
        assert_false(mu_meeting_published(&meeting, &event, &answer)); /* an answer to the machine */
        event.id = mu_meeting_write(&meeting, fold, 7, mu_slice_str("v")).id;
        assert_true(mu_meeting_published(&meeting, &event, &answer));
        assert_true(answer.type == rows[i].type && answer.id == 7);
        if (rows[i].why != NULL)
            assert_string_equal(answer.error->text, rows[i].why);
    }
}

static void it_is_published_only_for_the_document_that_we_know(void **state)
{
    struct mu_fold_write write;
    struct mu_fold_effect effect;

    (void)state;
    join_round();
    effect = mu_meeting_write(&meeting, fold, 7, mu_slice_str("v"));
    assert_int_equal(effect.type, MU_FOLD_DO_WRITE);
    write = *effect.write;
    assert_true(write.repeatable && write.compares_count == 1 && write.ops_count == 1 && write.else_count == 0);
    assert_true(write.compares[0].kind == MU_FOLD_MOD && write.compares[0].revision == 20);
    assert_true(mu_slice_equal(write.compares[0].key, mu_slice_str("job/doc")));
    assert_true(mu_slice_equal(write.ops[0].key, mu_slice_str("job/master")));
    assert_true(mu_slice_equal(write.ops[0].value, mu_slice_str("v")) && write.ops[0].lease == LEASE);
}

static void rank_0_alone_hosts_the_agents_store_of_the_round(void **state)
{
    char rank0[MU_NODE_TEXT_MAX];
    struct mu_boot_start start;

    (void)state;
    join_round(); /* as rank 1 */
    see_master(WORLD);
    assert_false(mu_meeting_hosts(fold, true) || /* a store of an earlier round */
                 mu_meeting_hosts(fold, false));
    start = mu_meeting_boot_start(fold, rank0);
    assert_true(start.round == 3 && start.rank == 1 && start.all_ours && start.rank0_ours && start.elsewhere);
    assert_true(mu_slice_equal(start.rank0, mu_slice_str("b_1_1")));
    assert_int_equal(ask(MU_BOOT_DO_CHECK, "job/3/MASTER_ADDR", "", 0), MU_MEETING_ANSWER);
    assert_true(answer.type == MU_BOOT_ON_FOUND && !answer.found);
}

int main(void)
{
#define SCENE(scene) cmocka_unit_test_setup_teardown(scene, start, end)
    const struct CMUnitTest tests[] = {
        SCENE(address_and_port_come_from_one_key_once_it_is_there),
        SCENE(that_of_another_round_is_not_ours),
        SCENE(agents_meet_in_the_store_of_all_rounds_if_there_is_one),
        SCENE(what_is_deleted_or_not_loaded_again_is_not_known),
        SCENE(the_address_waits_for_the_port),
        SCENE(a_round_that_is_not_in_etcd_cannot_be_published),
        SCENE(what_was_published_is_set_only_if_the_round_was_still_the_jobs),
        SCENE(it_is_published_only_for_the_document_that_we_know),
        SCENE(rank_0_alone_hosts_the_agents_store_of_the_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
