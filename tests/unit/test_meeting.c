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
    struct mu_fold_member members[] = { { OTHER, { mu_slice_str("b"), 1, 1 } }, { ME, { mu_slice_str("a"), 1, 1 } } };
    struct mu_fold_world world = { .id = WORLD, .round = 3, .members = members, .count = 2 };
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
    assert_int_equal(mu_fold_world_write(&world), 0);
    kv = (struct mu_fold_kv){
        .key = mu_slice_str("job/doc"), .value = mu_buf_slice(&world.bytes), .create = 9, .mod = 20, .lease = 33
    };
    step((struct mu_fold_event){ .type = MU_FOLD_ON_CHANGED, .scope = MU_FOLD_JOB, .kvs = &kv, .count = 1 });
    assert_int_equal(mu_fold_phase(fold), MU_FOLD_MEMBER);
    mu_buf_done(&leader);
    mu_buf_done(&world.bytes);
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
                                     .seed = 1 };

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

static void see(uint64_t world)
{
    const struct mu_fold_master master = { .world = world, .addr = "10.0.0.1", .port = 4711, .agents_port = 4712 };
    struct mu_buf value = { 0 };

    assert_int_equal(mu_fold_master_write(&master, &value), 0);
    mu_meeting_see(&meeting, &(struct mu_fold_kv){ .value = mu_buf_slice(&value) });
    mu_buf_done(&value);
}

static struct mu_boot_effect about(const char *key, const char *value)
{
    return (struct mu_boot_effect){ .id = 5, .wait_ms = 300, .key = mu_slice_str(key), .value = mu_slice_str(value) };
}

static void address_and_port_come_from_one_key_once_it_is_there(void **state)
{
    struct mu_boot_effect effect = about("job/3/MASTER_ADDR", "");
    struct mu_boot_event answer;

    (void)state;
    join_round();
    assert_false(mu_meeting_get(&meeting, fold, &effect, 1000, &answer));
    assert_int_equal(mu_meeting_deadline_ms(&meeting), 1300);
    assert_false(mu_meeting_answer(&meeting, fold, 1299, &answer));
    see(WORLD);
    assert_true(mu_meeting_answer(&meeting, fold, 1299, &answer));
    assert_int_equal(answer.type, MU_BOOT_ON_GOT);
    assert_int_equal(answer.id, 5);
    assert_true(mu_slice_equal(answer.value, mu_slice_str("10.0.0.1")));
    assert_false(mu_meeting_answer(&meeting, fold, 1299, &answer)); /* once */
    assert_true(mu_meeting_deadline_ms(&meeting) == UINT64_MAX);
    effect = about("job/3/MASTER_PORT", "");
    assert_true(mu_meeting_get(&meeting, fold, &effect, 1400, &answer));
    assert_true(mu_slice_equal(answer.value, mu_slice_str("4711")));
}

static void that_of_another_round_is_not_ours(void **state)
{
    struct mu_boot_effect effect = about("job/3/MASTER_ADDR", "");
    struct mu_boot_event answer;

    (void)state;
    see(WORLD);
    assert_false(mu_meeting_is_known(&meeting, fold)); /* we are in no round */
    join_round();
    assert_true(mu_meeting_is_known(&meeting, fold));
    see(WORLD + 1);
    assert_false(mu_meeting_get(&meeting, fold, &effect, 1000, &answer));
    assert_true(mu_meeting_answer(&meeting, fold, 1300, &answer));
    assert_int_equal(answer.type, MU_BOOT_ON_MISSING);
    see(WORLD);
    mu_meeting_see(&meeting, &(struct mu_fold_kv){ .deleted = true });
    assert_false(mu_meeting_is_known(&meeting, fold));
}

static void the_address_waits_for_the_port(void **state)
{
    struct mu_boot_effect addr = about("job/3/MASTER_ADDR", "10.0.0.2"), port = about("job/3/MASTER_PORT", "80");
    struct mu_fold_master master;

    (void)state;
    join_round();
    assert_int_equal(mu_meeting_set(&meeting, fold, &addr, 81, &master, NULL), 0);
    assert_int_equal(mu_meeting_set(&meeting, fold, &port, 81, &master, NULL), 1);
    assert_string_equal(master.addr, "10.0.0.2");
    assert_int_equal(master.port, 80);
    assert_int_equal(master.agents_port, 81);
    assert_true(master.world == WORLD);
    assert_false(mu_meeting_is_known(&meeting, fold));
    mu_meeting_was_set(&meeting, &master);
    assert_true(mu_meeting_is_known(&meeting, fold));
}

static void a_round_that_is_not_in_etcd_cannot_be_published(void **state)
{
    struct mu_boot_effect port = about("job/3/MASTER_PORT", "80");
    struct mu_fold_master master;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_meeting_set(&meeting, fold, &port, 81, &master, &error), MUSTER_ERDZV_CONNECTION);
    join_round();
    assert_int_equal(mu_meeting_set(&meeting, fold, &port, 0, &master, &error), MUSTER_ERDZV_CONNECTION);
    step((struct mu_fold_event){ .type = MU_FOLD_ON_CHANGED,
                                 .scope = MU_FOLD_JOB,
                                 .kvs =
                                     &(struct mu_fold_kv){ .key = mu_slice_str("job/doc"), .deleted = true, .mod = 30 },
                                 .count = 1 });
    assert_int_equal(mu_meeting_set(&meeting, fold, &port, 81, &master, &error), MUSTER_ERDZV_CONNECTION);
    assert_string_equal(error.text, "the round is not in etcd at the moment");
}

int main(void)
{
#define SCENE(scene) cmocka_unit_test_setup_teardown(scene, start, end)
    const struct CMUnitTest tests[] = {
        SCENE(address_and_port_come_from_one_key_once_it_is_there),
        SCENE(that_of_another_round_is_not_ours),
        SCENE(the_address_waits_for_the_port),
        SCENE(a_round_that_is_not_in_etcd_cannot_be_published),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
