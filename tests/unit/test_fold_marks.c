/* Marks that a leader reads, and the one that a killed node leaves. */
#include "pure.h"
#include "rdzv/fold_parts.h"

static void a_mark_is_of_one_node_and_has_one_word(void **state)
{
    static const struct {
        const char *key, *word;
        uint64_t id; /* 0: it is none */
    } rows[] = {
        { "nodes/00000000000000ab/killed", "killed", 0xab }, { "nodes/00000000000000ab/done", "done", 0xab },
        { "nodes/00000000000000ab/killed", "done", 0 },      { "nodes/00000000000000ab/killed2", "killed", 0 },
        { "nodes/00000000000000ab/kille", "killed", 0 },     { "nodes/00000000000000ab/", "killed", 0 },
        { "nodes/00000000000000ab", "killed", 0 },           { "nodes/00000000000000abxkilled", "killed", 0 },
        { "nodes/0000000000000ab/killed", "killed", 0 },     { "nodes/00000000000000xx/killed", "killed", 0 },
        { "node/00000000000000ab/killed", "killed", 0 },     { "", "killed", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t id = 0;
        bool is = mu_leader_parse_mark(mu_slice_str(rows[i].key), rows[i].word, &id);

        assert_true(is == (rows[i].id != 0));
        assert_true(!is || id == rows[i].id);
    }
}

static void step(struct mu_fold *fold, struct mu_fold_event event, struct mu_fold_effects *effects)
{
    event.now_ms = 1000;
    mu_fold_step(fold, &event, effects);
}

static const struct mu_fold_effect *find(const struct mu_fold_effects *effects, enum mu_fold_effect_type type)
{
    for (unsigned i = 0; i < effects->count; i++)
        if (effects->items[i].type == type)
            return &effects->items[i];
    return NULL;
}

/* Under the job's lease, once one is known: who leads next has not seen the mark being put. */
static void a_node_with_a_lease_has_a_will(void **state)
{
    const struct mu_fold_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                           .name = "node1",
                                           .id = 0xab,
                                           .lease_ms = 10000,
                                           .job_lease_ms = 60000,
                                           .first_ms = 1000,
                                           .seed = 1,
                                           .ops_max = MU_FOLD_OPS_MIN };
    struct mu_fold_kv news = { .key = mu_slice_str("job/news"), .create = 3, .mod = 3, .lease = 9 };
    struct mu_fold_effects effects;
    struct mu_fold_op mark;
    struct mu_buf value = { 0 };
    uint64_t load, take, who = 0;
    struct mu_fold *fold;

    (void)state;
    assert_int_equal(mu_fold_new(&config, &fold, NULL), 0);
    assert_false(mu_fold_will(fold, &mark));
    step(fold, (struct mu_fold_event){ .type = MU_FOLD_ON_JOIN }, &effects);
    load = find(&effects, MU_FOLD_DO_LOAD)->id;
    take = find(&effects, MU_FOLD_DO_TAKE_LEASE)->id;
    step(fold, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED, .id = take, .lease = 7 }, &effects);
    assert_true(mu_fold_will(fold, &mark) && mark.kind == MU_FOLD_PUT && mark.lease == 7);
    assert_true(mu_slice_equal(mark.key, mu_slice_str("nodes/00000000000000ab/killed")));
    assert_int_equal(mu_fold_mark_read(mark.value, &who, NULL), 0);
    assert_true(who == 0xab);
    assert_int_equal(mu_fold_news_write(&(struct mu_fold_news){ .last_call_ms = -1 }, &value), 0);
    news.value = mu_buf_slice(&value);
    step(fold, (struct mu_fold_event){ .type = MU_FOLD_ON_LOADED, .id = load, .kvs = &news, .count = 1 }, &effects);
    assert_true(mu_fold_will(fold, &mark) && mark.lease == 9);
    step(fold, (struct mu_fold_event){ .type = MU_FOLD_ON_LEAVE }, &effects);
    assert_false(mu_fold_will(fold, &mark));
    mu_buf_done(&value);
    mu_fold_free(fold);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mark_is_of_one_node_and_has_one_word),
        cmocka_unit_test(a_node_with_a_lease_has_a_will),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
