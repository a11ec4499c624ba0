/* Who is silent, judged only while we looked; and what time it is in the document. */
#include "rdzv/liveness.h"

#include "failmalloc.h"
#include "rdzv_scene.h"

enum { INTERVAL = 5000, AGE = 15000 };

struct scene {
    struct mu_liveness sights;
    struct mu_doc fresh;
    char dead[64];
};

static int set_up(void **state)
{
    static struct scene scene;

    mu_liveness_init(&scene.sights, hash_seed, MU_DOC_DIALECT_2_X);
    mu_doc_init(&scene.fresh, hash_seed, MU_DOC_DIALECT_2_X);
    *state = &scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *s = *state;

    mu_liveness_done(&s->sights);
    mu_doc_done(&s->fresh);
    return 0;
}

/* Who is dead once that was seen; we are a. */
static const char *see_late(struct scene *s, uint64_t sent_ms, uint64_t now_ms, const char *text)
{
    struct mu_node dead[16], me = node_of('a');
    size_t count = 0;

    assert_int_equal(doc_read(text, &s->fresh), 0);
    assert_int_equal(mu_liveness_see(&s->sights, &s->fresh, sent_ms, now_ms, INTERVAL), 0);
    assert_true(s->sights.doc.count <= COUNT(dead));
    count = mu_liveness_dead(&s->sights, &me, AGE, dead);
    for (size_t i = 0; i < count; i++)
        s->dead[i] = dead[i].name.data[0];
    s->dead[count] = '\0';
    return s->dead;
}

static const char *see(struct scene *s, uint64_t now_ms, const char *text)
{
    return see_late(s, now_ms, now_ms, text);
}

/* ---- Liveness ---- */

static void a_node_is_dead_after_the_whole_death_age_of_looking(void **state)
{
    struct scene *s = *state;

    for (uint64_t now = 1000; now < 1000 + AGE; now += 1000)
        assert_string_equal(see(s, now, "0 complete a=0@1 b=1@2"), "");
    assert_string_equal(see(s, 1000 + AGE - 1, "0 complete a=0@1 b=1@2"), "");
    assert_string_equal(see(s, 1000 + AGE, "0 complete a=0@1 b=1@2"), "b");
    assert_string_equal(see(s, 1000 + AGE + 1, "0 complete a=0@1 b=1@3"), "");
}

static void how_old_a_heartbeat_says_it_is_does_not_matter(void **state)
{
    struct scene *s = *state;

    assert_string_equal(see(s, 1000, "0 b=0@0 c=0@99999999"), "");
    assert_string_equal(see(s, 6000, "0 b=0@1 c=0@1"), "");
    assert_string_equal(see(s, 11000, "0 b=0@2 c=0@0"), "");
    assert_string_equal(see(s, 16000, "0 b=0@3 c=0@99999999"), "");
}

static void a_gap_of_one_interval_is_none(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@1");
    (void)see(s, 1000 + INTERVAL, "0 b=0@1");
    (void)see(s, 1000 + 2 * INTERVAL, "0 b=0@1");
    assert_string_equal(see(s, 1000 + 3 * INTERVAL, "0 b=0@1"), "b");
}

static void a_gap_of_a_millisecond_more_begins_all_anew(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@1 c=0@1");
    (void)see(s, 6000, "0 b=0@1 c=0@1");
    (void)see(s, 11001, "0 b=0@1 c=0@1");
    assert_string_equal(see(s, 16000, "0 b=0@1 c=0@1"), "");
    assert_string_equal(see(s, 21000, "0 b=0@1 c=0@1"), "");
    assert_string_equal(see(s, 26000, "0 b=0@1 c=0@1"), "");
    assert_string_equal(see(s, 26001, "0 b=0@1 c=0@1"), "bc");
}

static void a_pause_of_any_length_kills_nobody(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@1");
    (void)see(s, 2000, "0 b=0@1");
    assert_string_equal(see(s, 3600000, "0 b=0@1"), "");
    assert_string_equal(see(s, 3601000, "0 b=0@1"), "");
}

static void an_interruption_begins_all_anew_though_no_look_was_missed(void **state)
{
    struct scene *s = *state;

    mu_liveness_interrupt(&s->sights, 500); /* nothing was seen yet */
    for (uint64_t now = 1000; now < 1000 + AGE; now += 1000)
        assert_string_equal(see(s, now, "0 b=0@1 c=0@1"), "");
    mu_liveness_interrupt(&s->sights, AGE + 500);
    assert_string_equal(see(s, AGE + 1000, "0 b=0@1 c=0@1"), "");
    for (uint64_t now = AGE + 2000; now < 2 * AGE; now += 1000)
        assert_string_equal(see(s, now, "0 b=0@1 c=0@1"), "");
    assert_string_equal(see(s, 2 * AGE + 500, "0 b=0@1 c=0@1"), "bc");
}

static void an_answer_counts_by_when_it_was_asked_for(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@1");
    (void)see(s, 6000, "0 b=0@1");
    (void)see(s, 11000, "0 b=0@1");
    assert_string_equal(see_late(s, 15999, 16000, "0 b=0@1"), ""); /* what it shows may have been so at 15,999 */
    assert_string_equal(see_late(s, 16000, 20000, "0 b=0@1"), "b");
}

static void a_first_answer_counts_by_when_it_came(void **state)
{
    struct scene *s = *state;

    (void)see_late(s, 1000, 5000, "0 b=0@1");
    (void)see(s, 10000, "0 b=0@1");
    (void)see(s, 15000, "0 b=0@1");
    assert_string_equal(see(s, 19999, "0 b=0@1"), "");
    assert_string_equal(see(s, 20000, "0 b=0@1"), "b");
}

static void an_answer_that_was_asked_for_before_the_last_one_came_kills_nobody(void **state)
{
    struct scene *s = *state;

    assert_string_equal(see_late(s, 9000, 10000, "0 b=0@1"), "");
    assert_string_equal(see_late(s, 9500, 10500, "0 b=0@1"), "");
}

static void a_new_heartbeat_is_the_life_of_that_node_only(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@1 c=0@1 d=0@1");
    (void)see(s, 6000, "0 b=0@1 c=0@2 d=0@1");
    (void)see(s, 11000, "0 b=0@1 c=0@2 d=0@0"); /* also an older one: it has changed */
    assert_string_equal(see(s, 16000, "0 b=0@1 c=0@2 d=0@0"), "b");
    assert_string_equal(see(s, 21000, "0 b=0@1 c=0@2 d=0@0"), "bc");
    assert_string_equal(see(s, 26000, "0 b=0@1 c=0@2 d=0@0"), "bcd");
}

static void a_node_is_silent_wherever_it_stands_in_the_document(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 a=0@1 b=0@1 c=0@1");
    (void)see(s, 6000, "0 c=0@2 x=0@1 b=0@1");
    (void)see(s, 11000, "0 complete x=1@2 c=0@3 a=2@1 b~@1");
    assert_string_equal(see(s, 16000, "1 b+@1 c=0@4"), "b");
}

static void a_node_that_was_away_begins_anew(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@1");
    (void)see(s, 6000, "0");
    (void)see(s, 11000, "0 b=0@1");
    assert_string_equal(see(s, 16000, "0 b=0@1"), "");
    (void)see(s, 21000, "0 b=0@1");
    assert_string_equal(see(s, 26000, "0 b=0@1"), "b");
}

static void a_member_without_a_heartbeat_is_silent(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0 c~ d=0@1");
    (void)see(s, 6000, "0 b=0 c~ d=0");
    (void)see(s, 11000, "0 b=0 c~@0 d=0");
    assert_string_equal(see(s, 16000, "0 b=0 c~@0 d=0"), "b");
    assert_string_equal(see(s, 21000, "0 b=0 c~@0 d=0"), "bd");
}

static void we_are_never_dead(void **state)
{
    struct scene *s = *state;

    for (uint64_t now = 1000; now <= 41000; now += 5000)
        assert_string_equal(see(s, now, "0 a=0@1"), "");
}

/* ---- Time ---- */

enum { WALL = 777 };

/* The time in the document at now_ms, in milliseconds; we wrote own_ms of it when our clock said own_at_ms. */
static int64_t time_at(const struct scene *s, uint64_t now_ms, int64_t own_ms, uint64_t own_at_ms)
{
    struct mu_node me = node_of('a');
    int64_t time_us = mu_liveness_time(&s->sights, &me, now_ms, own_ms * 1000, own_at_ms, WALL * 1000);

    assert_int_equal(time_us % 1000, 0);
    return time_us / 1000;
}

static void an_empty_document_has_our_wall_clock(void **state)
{
    struct scene *s = *state;

    assert_int_equal(time_at(s, 1000, 0, 0), WALL);
    (void)see(s, 1000, "0");
    assert_int_equal(time_at(s, 5000, 0, 0), WALL);
    (void)see(s, 1000, "0 b=0 c~"); /* nobody has said what time it is */
    assert_int_equal(time_at(s, 5000, 0, 0), WALL);
}

static void what_we_wrote_goes_on_with_our_clock(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 a=0@50000");
    assert_int_equal(time_at(s, 3000, 50000, 1000), 52000);
    assert_int_equal(time_at(s, 3000, 0, 0), WALL); /* what stands there under our name is not ours to believe */
}

static void the_newest_time_of_our_own_kind_is_the_documents(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@50000 c=0@70000 d~@60000");
    assert_int_equal(time_at(s, 1000, 0, 0), 70000);
    assert_int_equal(time_at(s, 1250, 0, 0), 70250);
    assert_int_equal(time_at(s, 1250, 70240, 1240), 70250);
    assert_int_equal(time_at(s, 1250, 71000, 1000), 71250); /* ours is newer */
}

static void a_heartbeat_goes_on_from_when_it_changed(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@50000");
    (void)see(s, 3000, "0 b=0@50000");
    assert_int_equal(time_at(s, 4000, 0, 0), 53000);
    (void)see(s, 5000, "0 b=0@60000");
    assert_int_equal(time_at(s, 6000, 0, 0), 61000);
    (void)see(s, 25000, "0 b=0@60000"); /* we did not look for a long time, but it went on */
    assert_int_equal(time_at(s, 26000, 0, 0), 81000);
}

static void the_newest_of_a_few_is_so_after_going_on(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@50000 c=0@49000");
    (void)see(s, 3000, "0 b=0@50000 c=0@51500");
    assert_int_equal(time_at(s, 3000, 0, 0), 52000); /* b's has gone on for two seconds */
}

static void members_of_pytorch_decide_whatever_we_think(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "0 b=0@50000 C=0@20000 D~@10000");
    assert_int_equal(time_at(s, 1500, 90000, 1000), 20500);
    (void)see(s, 2000, "0 b=0@50000 C=0 D~@10000"); /* C has no heartbeat any more */
    assert_int_equal(time_at(s, 2500, 90000, 1000), 11500);
    (void)see(s, 3000, "0 b=0@50000");
    assert_int_equal(time_at(s, 3000, 90000, 1000), 92000);
}

static void time_ends_with_the_year_9999(void **state)
{
    struct scene *s = *state;
    struct mu_node me = node_of('a'), b = node_of('b');
    struct mu_doc_member *member = NULL;

    mu_doc_reset(&s->fresh, MU_DOC_DIALECT_2_X);
    member = mu_doc_enter(&s->fresh, &b, MU_DOC_HEARTBEAT);
    member->heartbeat_us = MU_DOC_TIME_MAX - 1000;
    assert_int_equal(mu_liveness_see(&s->sights, &s->fresh, 1000, 1000, INTERVAL), 0);
    assert_true(mu_liveness_time(&s->sights, &me, 1000, 0, 0, 5) == MU_DOC_TIME_MAX - 1000);
    assert_true(mu_liveness_time(&s->sights, &me, 1001, 0, 0, 5) == MU_DOC_TIME_MAX);
    assert_true(mu_liveness_time(&s->sights, &me, 1002, 0, 0, 5) == MU_DOC_TIME_MAX);
    assert_true(mu_liveness_time(&s->sights, &me, 900000000, 0, 0, 5) == MU_DOC_TIME_MAX);
    assert_true(mu_liveness_time(&s->sights, &me, 5000, MU_DOC_TIME_MAX, 1, 5) == MU_DOC_TIME_MAX);
}

/* ---- Memory ---- */

static void what_was_seen_is_given_in_exchange_for_what_was_before(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "4 complete a=0@1");
    assert_int_equal(doc_read("5 b=0@2", &s->fresh), 0);
    assert_int_equal(mu_liveness_see(&s->sights, &s->fresh, 1500, 2000, INTERVAL), 0);
    assert_doc(&s->sights.doc, "5 b=0@2");
    assert_doc(&s->fresh, "4 complete a=0@1");
    assert_true(s->sights.any && s->sights.sent_ms == 1500 && s->sights.seen_ms == 2000);
}

static void without_memory_nothing_was_seen(void **state)
{
    struct scene *s = *state;

    (void)see(s, 1000, "4 complete b=0@1");
    (void)see(s, 6000, "4 complete b=0@1");
    (void)see(s, 11000, "4 complete b=0@1");
    assert_int_equal(doc_read("5 b=0@2", &s->fresh), 0);
    fail_alloc_at(1);
    assert_int_equal(mu_liveness_see(&s->sights, &s->fresh, 16000, 16000, INTERVAL), MUSTER_ENOMEM);
    fail_alloc_at(0);
    assert_doc(&s->sights.doc, "4 complete b=0@1");
    assert_doc(&s->fresh, "5 b=0@2");
    assert_string_equal(see(s, 16000, "4 complete b=0@1"), "b");
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(a_node_is_dead_after_the_whole_death_age_of_looking),
        SCENE(how_old_a_heartbeat_says_it_is_does_not_matter),
        SCENE(a_gap_of_one_interval_is_none),
        SCENE(a_gap_of_a_millisecond_more_begins_all_anew),
        SCENE(a_pause_of_any_length_kills_nobody),
        SCENE(an_interruption_begins_all_anew_though_no_look_was_missed),
        SCENE(an_answer_counts_by_when_it_was_asked_for),
        SCENE(a_first_answer_counts_by_when_it_came),
        SCENE(an_answer_that_was_asked_for_before_the_last_one_came_kills_nobody),
        SCENE(a_new_heartbeat_is_the_life_of_that_node_only),
        SCENE(a_node_is_silent_wherever_it_stands_in_the_document),
        SCENE(a_node_that_was_away_begins_anew),
        SCENE(a_member_without_a_heartbeat_is_silent),
        SCENE(we_are_never_dead),
        SCENE(an_empty_document_has_our_wall_clock),
        SCENE(what_we_wrote_goes_on_with_our_clock),
        SCENE(the_newest_time_of_our_own_kind_is_the_documents),
        SCENE(a_heartbeat_goes_on_from_when_it_changed),
        SCENE(the_newest_of_a_few_is_so_after_going_on),
        SCENE(members_of_pytorch_decide_whatever_we_think),
        SCENE(time_ends_with_the_year_9999),
        SCENE(what_was_seen_is_given_in_exchange_for_what_was_before),
        SCENE(without_memory_nothing_was_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
