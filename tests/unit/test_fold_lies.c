/* What others write of a world of an etcd-v3 rendezvous that is well-formed, and not so. */
#include "fold_scene.h"
#include "rdzv/fold_parts.h"

#define LIAR UINT64_C(0x05) /* whose record is looked at first */

/* A leader of round 7 of two nodes, one of which it may be; its records are there, and this one of somebody else. */
static void lead_beside(struct scene *s, bool member, int64_t round, int64_t rank, int64_t nodes)
{
    fold_round(s, member ? us : them);
    (void)kept(s, true);
    add_record(s, ME, 6, 1, !member, member ? 7 : 0);
    add_record(s, OTHER, 7, 1, false, 7);
    if (!member)
        add_record(s, THIRD, 8, 1, false, 7);
    add_holder(s, LIAR, 9, 7, round, rank, nodes);
    (void)folds(s);
}

/* Once the document is gone, and in as many writes as it takes. */
static void put_world_back(struct scene *s)
{
    (void)deleted(s, MU_FOLD_JOB, "job/doc", 40);
    for (int i = 0; i < 9 && strstr(s->trace, "job/doc job/news") == NULL; i++) {
        if (s->fold->grant_id != 0)
            (void)granted(s, 901);
        else if (s->fold->write_id != 0)
            (void)wrote(s, true, 40);
        else
            (void)passes(s, LEASE_MS);
    }
    assert_non_null(strstr(s->trace, "job/doc job/news"));
}

static void who_contradicts_the_world_that_we_know_does_not_hold_it(void **state)
{
    static const struct {
        bool member;
        int64_t round, nodes;
    } rows[] = { { true, 99, 3000 },  { true, 99, 1 },  { true, 99, 2 },  { true, 7, 3000 },  { true, 7, 1 },
                 { false, 99, 3000 }, { false, 99, 1 }, { false, 99, 2 }, { false, 7, 3000 }, { false, 7, 1 } };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene *s = *state;
        char text[64];

        lead_beside(s, rows[i].member, rows[i].round, 0, rows[i].nodes);
        put_world_back(s);
        assert_non_null(strstr(s->doc, "\"round\":7,\"nodes\":2"));
        assert_string_equal(list_members(s, text), rows[i].member ? "22 11" : "22 33");
        (void)wrote(s, true, 42);
        add_doc(s, 7, 42, rows[i].member ? us : them, 2);
        (void)changed(s, MU_FOLD_JOB);
        assert_null(strstr(passes(s, 2 * LEASE_MS), "missing"));
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* What we know of its members is right, whatever their records say. */
static void nobody_takes_the_rank_of_a_known_member(void **state)
{
    static const struct {
        uint64_t id;
        int64_t create, rank;
    } rows[] = { { LIAR, 9, 0 }, { LIAR, 9, 1 }, { OTHER, 9, 1 } };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene *s = *state;
        char text[64];

        lead_beside(s, true, 7, 0, 2);
        add_holder(s, rows[i].id, rows[i].create, 7, 7, rows[i].rank, 2);
        (void)changed(s, MU_FOLD_NODES);
        put_world_back(s);
        assert_string_equal(list_members(s, text), "22 11");
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* Its newest record says which. */
static void nobody_has_two_ranks(void **state)
{
    struct scene *s = *state;
    char text[64];

    join_as_leader(s);
    add_holder(s, OTHER, 7, 9, 5, 1, 3);
    add_holder(s, OTHER, 8, 9, 5, 0, 3);
    add_holder(s, THIRD, 9, 9, 5, 2, 3);
    assert_non_null(strstr(find_holders(s), "page 0 job/doc job/news"));
    assert_string_equal(list_members(s, text), "0 22 33");
}

/* Nobody who leads has seen that world: what most of its records say is so. */
static void of_two_worlds_with_one_name_the_one_that_most_hold_is_put_back(void **state)
{
    struct scene *s = *state;
    char text[64];

    join_as_leader(s);
    add_holder(s, LIAR, 7, 9, 5, 2, 3000);
    add_holder(s, THIRD, 8, 9, 5, 0, 2);
    add_holder(s, 0x44, 9, 9, 5, 1, 2);
    assert_string_equal(find_holders(s), "write [ job/folder mod 6, job/doc absent, job/closed absent]"
                                         " page 0 job/doc job/news(gone; waiting 0; grace)");
    assert_string_equal(list_members(s, text), "33 44");
}

/* A world is written once: what has its name and other numbers none of us wrote. */
static void a_document_that_contradicts_the_world_that_we_know_is_foreign(void **state)
{
    static const int64_t nodes[] = { 1, 3, 3000 };

    for (size_t i = 0; i < COUNT(nodes) * 2; i++) {
        struct mu_fold_world world = { .id = 7, .round = 7, .nodes = nodes[i / 2], .size = 1 };
        struct scene *s = *state;

        lead_beside(s, i % 2 == 0, 7, world.nodes - 1, world.nodes);
        assert_int_equal(mu_fold_world_write(&world, add(s, "job/doc", 1, 40, JOB_LEASE)), 0);
        assert_non_null(strstr(changed(s, MU_FOLD_JOB), "foreign"));
        assert_null(mu_fold_doc(s->fold));
        (void)passes(s, LEASE_MS);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* We have a seat in a world of three, and hear of one of the same name with fewer. */
static void a_seat_is_of_the_document_that_was_seen(void **state)
{
    static const uint64_t three[] = { OTHER, THIRD, ME };
    struct scene *s = *state;

    mu_fold_free(s->fold);
    begin_with(s, MIN, MAX, (struct mu_fold_config){ .ops_max = MU_FOLD_OPS_MIN, .wants_names = true });
    join_beside_a_leader(s);
    add_doc(s, 7, 20, three, 3);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    assert_string_equal(seated(s), "read names");
    add_doc(s, 7, 30, three, 1);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    add_page(s, 7, three, 1);
    (void)ranged(s, &s->seat_id);
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
}

/* Of a world that was put back, and whose members are not all known. */
static void a_rank_of_another_count_of_members_is_nobodys(void **state)
{
    static const uint64_t known[] = { THIRD, 0, OTHER };
    static const int64_t nodes[] = { 2, 4, 3000 };

    for (size_t i = 0; i < COUNT(nodes); i++) {
        struct scene *s = *state;

        join_as_leader(s);
        add_holder(s, OTHER, 7, 9, 9, 2, 3);
        add_holder(s, THIRD, 8, 9, 9, 0, 3);
        (void)find_holders(s);
        (void)wrote(s, true, 30);
        add_doc(s, 9, 30, known, 3);
        (void)changed(s, MU_FOLD_JOB);
        (void)seated(s);
        add_holder(s, 0x44, 9, 9, 9, 1, nodes[i]);
        (void)changed(s, MU_FOLD_NODES);
        add_holder(s, 0x55, 10, 9, 9, nodes[i] - 1, nodes[i]);
        (void)changed(s, MU_FOLD_NODES);
        (void)passes(s, MU_FOLD_NEWS_MS);
        assert_int_equal(s->fold->lead.members.count, 3);
        assert_true(s->fold->lead.members.items[1].id == 0);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* It is no record: the first world is made all the same. */
static void nobody_stays_in_no_world(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_holder(s, LIAR, 9, 0, 5, 0, 1);
    add_both(s);
    add_record(s, THIRD, 8, 1, true, 0);
    assert_string_equal(folds(s), "grant job");
    assert_non_null(strstr(granted(s, 900), "seat 11=0 seat 22=1 seat 33=2 job/doc"));
    assert_int_equal(s->fold->lead.entries_count, 3);
}

/* ---- How long others wait ---- */

static uint64_t join_deadline_ms(const struct scene *s)
{
    return mu_fold_progress(s->fold).deadline_ms;
}

/* No leader holds a node off, or pauses, for longer than it may. */
static void news_of_an_endless_wait_are_foreign(void **state)
{
    static const struct {
        int64_t held_ms, pause_ms;
    } rows[] = { { INT64_MAX / 2, 0 },
                 { MU_SLOWDOWN_HOLD_MAX_MS + 1, 0 },
                 { 0, INT64_MAX / 2 },
                 { 0, MU_SLOWDOWN_PAUSE_MAX_MS + 1 } };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_fold_news news = {
            .last_call_ms = -1, .held = "host", .held_ms = rows[i].held_ms, .pause_ms = rows[i].pause_ms
        };
        struct scene *s = *state;
        uint64_t deadline_ms;

        join_beside_a_leader(s);
        deadline_ms = join_deadline_ms(s);
        add_full_news(s, 30, &news);
        assert_string_equal(changed(s, MU_FOLD_JOB), "foreign");
        assert_true(join_deadline_ms(s) == deadline_ms);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* A wait that is over sooner than the news had said, or never was, is no time of the join's either. */
static void what_corrected_news_take_back_a_join_does_not_wait_for(void **state)
{
    struct mu_fold_news news = { .last_call_ms = -1, .spares = 1, .held = "host", .held_ms = MU_SLOWDOWN_HOLD_MAX_MS };
    struct scene *s = *state;
    uint64_t since_ms = s->now_ms, join_ms;

    join_beside_a_leader(s);
    join_ms = join_deadline_ms(s) - since_ms;
    (void)passes(s, 1000);
    add_full_news(s, 30, &news);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress");
    assert_true(join_deadline_ms(s) == s->now_ms + join_ms + MU_SLOWDOWN_HOLD_MAX_MS);
    (void)passes(s, 1000);
    news.held_ms = 5000;
    add_full_news(s, 31, &news);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress");
    assert_true(join_deadline_ms(s) == s->now_ms + join_ms + 5000);
    (void)passes(s, 1000);
    add_full_news(s, 32, &(struct mu_fold_news){ .last_call_ms = -1, .spares = 1 });
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress");
    assert_true(join_deadline_ms(s) == s->now_ms + join_ms);
    (void)passes(s, 1000);
    assert_true(join_deadline_ms(s) == s->now_ms - 1000 + join_ms); /* which goes on */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(who_contradicts_the_world_that_we_know_does_not_hold_it),
        TEST(nobody_takes_the_rank_of_a_known_member),
        TEST(nobody_has_two_ranks),
        TEST(of_two_worlds_with_one_name_the_one_that_most_hold_is_put_back),
        TEST(a_document_that_contradicts_the_world_that_we_know_is_foreign),
        TEST(a_seat_is_of_the_document_that_was_seen),
        TEST(a_rank_of_another_count_of_members_is_nobodys),
        TEST(nobody_stays_in_no_world),
        TEST(news_of_an_endless_wait_are_foreign),
        TEST(what_corrected_news_take_back_a_join_does_not_wait_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
