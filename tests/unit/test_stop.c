/* Stopping workers: who gets which signal when, and when it is over. */
#include "proc/stop.h"
#include "pure.h"

#include <signal.h>
#include <stdio.h>

struct scene {
    struct mu_stop stop;
    char trace[2048];
};

/* "w0" a worker (rank 0), "g0" somebody in its group, "o" an orphan elsewhere, "m" one that manages shared memory; then
 * its state, S if none is given, and "!" if a signal was refused: "w0 w1Z g1T oD!". "b" is below one of them. Pids
 * count from 100. "?": somebody who cannot be seen. */
static struct mu_stop_event with(struct mu_stop_event event, const char *text)
{
    static struct mu_stop_child children[64];

    event.children = children;
    for (; *text != '\0'; text++) {
        struct mu_stop_child *child = &children[event.count];

        if (*text == '?') {
            event.hidden = true;
            continue;
        }
        if (*text == ' ')
            continue;
        *child = (struct mu_stop_child){
            .pid = 100 + (pid_t)event.count, .state = 'S', .rank = -1, .leader = *text == 'w', .comm = "prog"
        };
        if (*text == 'm')
            child->comm = "torch_shm_manag";
        child->below = *text == 'b';
        if (*text != 'o' && *text != 'm' && *text != 'b')
            child->rank = *++text - '0';
        text++;
        if (*text >= 'A' && *text <= 'Z')
            child->state = *text++;
        if (*text == '!')
            child->refused = true;
        else
            text--;
        event.count++;
    }
    return event;
}

static const char *step(struct scene *s, struct mu_stop_event event)
{
    struct mu_stop_effects effects;
    size_t used = 0;

    mu_stop_step(&s->stop, &event, &effects);
    s->trace[0] = '\0';
    for (unsigned i = 0; i < effects.count; i++) {
        static const char *const names[] = { "groups", "leaders", "children", "below", "say", "done" };
        const struct mu_stop_effect *effect = &effects.items[i];

        used +=
            (size_t)snprintf(s->trace + used, sizeof s->trace - used, "%s%s", i > 0 ? ", " : "", names[effect->type]);
        if (effect->signal != 0)
            used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, " %d", effect->signal);
        if (effect->text != NULL)
            used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, " \"%s\"", effect->text);
    }
    return s->trace;
}

static const char *stop(struct scene *s, uint64_t now_ms, uint64_t grace_ms, const char *who)
{
    return step(s, with(
                       (struct mu_stop_event){
                           .type = MU_STOP_ON_STOP, .now_ms = now_ms, .signal = SIGTERM, .grace_ms = grace_ms },
                       who));
}

static const char *kill_now(struct scene *s, uint64_t now_ms, const char *who)
{
    return step(s, with((struct mu_stop_event){ .type = MU_STOP_ON_KILL, .now_ms = now_ms }, who));
}

static const char *now_are(struct scene *s, uint64_t now_ms, const char *who)
{
    return step(s, with((struct mu_stop_event){ .type = MU_STOP_ON_CHILDREN, .now_ms = now_ms }, who));
}

static const char *passes(struct scene *s, uint64_t now_ms, const char *who)
{
    return step(s, with((struct mu_stop_event){ .type = MU_STOP_ON_TIME, .now_ms = now_ms }, who));
}

/* Looks as often as it wants to, before this time. */
static void looks_until(struct scene *s, uint64_t end_ms, const char *who)
{
    while (mu_stop_deadline_ms(&s->stop) < end_ms)
        (void)passes(s, mu_stop_deadline_ms(&s->stop), who);
}

static void assert_state(const struct scene *s, const char *name, uint64_t wakes_ms)
{
    assert_string_equal(mu_stop_state_name(s->stop.state), name);
    assert_true(mu_stop_deadline_ms(&s->stop) == wakes_ms);
}

static void workers_that_end_are_not_killed(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 100, 30000, "w0 w1"), "groups 15");
    assert_state(s, "grace", 30100);
    assert_string_equal(now_are(s, 105, "w0Z w1"), "");
    assert_string_equal(now_are(s, 110, "w0Z w1Z"), "done");
    assert_state(s, "done", UINT64_MAX);
    assert_int_equal(s->stop.left_count, 0);
    assert_string_equal(passes(s, 120, "w0Z w1Z"), "");
}

static void nothing_is_signalled_when_all_have_ended_before(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 100, 30000, "w0Z w1Z"), "done");
}

static void an_empty_group_is_stopped_at_once(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 100, 30000, ""), "done");
}

/* Its worker is gone by the time it would be killed with it. */
static void a_tracker_in_the_group_is_let_to_clean_up(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 30000, "w0"), "groups 15");
    assert_string_equal(passes(s, 30000, "w0"), "leaders 9");
    assert_state(s, "drain", 31000);
    assert_string_equal(now_are(s, 30002, "w0Z g0"), "");
    assert_string_equal(now_are(s, 30007, "w0Z"), "done");
}

static void the_rest_of_a_group_has_the_same_grace_as_its_leader(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 5000, "w0"), "groups 15");
    assert_string_equal(now_are(s, 10, "w0Z g0"), "");
    assert_state(s, "grace", 5000);
    assert_string_equal(passes(s, 5000, "w0Z g0"), "groups 9");
    assert_string_equal(now_are(s, 5001, "w0Z"), "done");
}

static void orphans_have_a_second_and_are_killed_by_generations(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 5000, "w0 o"), "groups 15");
    assert_string_equal(now_are(s, 10, "w0Z o"), "");
    assert_state(s, "drain", 1010);
    assert_string_equal(passes(s, 1010, "w0Z o"), "say \"killing what the workers left behind: 101 (prog, state S)\", "
                                                  "groups 9, children 9");
    assert_state(s, "killing", 1020);
    assert_string_equal(now_are(s, 1011, "w0Z o"), "children 9"); /* its child */
    assert_string_equal(now_are(s, 1012, "w0Z o"), "children 9"); /* and that one's */
    assert_string_equal(now_are(s, 1013, "w0Z"), "done");
    assert_int_equal(s->stop.killed_count, 1);
    assert_int_equal(s->stop.left_count, 0);
}

static void who_manages_shared_memory_has_time_to_give_it_back(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 5000, "w0 m"), "groups 15");
    assert_string_equal(now_are(s, 10, "w0Z m"), "");
    assert_string_equal(passes(s, 1010, "w0Z m"), "");
    assert_state(s, "drain", 4010);
    assert_string_equal(now_are(s, 2010, "w0Z"), "done");
    assert_int_equal(s->stop.killed_count, 0);
}

/* It ends only when nobody uses it any more. */
static void whoever_keeps_a_manager_busy_is_killed_before_it(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 0, "w0 g0 m"), "groups 15, leaders 9");
    assert_string_equal(passes(s, 1000, "w0Z g0 m"), "groups 9");
    assert_state(s, "drain", 4000);
    assert_string_equal(now_are(s, 1001, "w0Z m"), "");
    assert_string_equal(passes(s, 4000, "w0Z m"), "say \"killing what the workers left behind: 101 (torch_shm_manag, "
                                                  "state S)\", groups 9, children 9");
}

static void a_manager_is_not_waited_for_when_all_is_to_be_killed(void **state)
{
    struct scene *s = *state;

    (void)stop(s, 0, 5000, "w0 m");
    (void)now_are(s, 10, "w0Z m");
    assert_non_null(strstr(kill_now(s, 20, "w0Z m"), "groups 9, children 9"));
}

static void what_successful_workers_left_is_ended_too(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 5000, "w0Z o"), "");
    assert_state(s, "drain", 1000);
    assert_string_equal(now_are(s, 5, "w0Z"), "done");
}

static void what_they_left_in_their_groups_is_asked_once_and_not_waited_for(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 30000, "w0Z w1Z g1"), "groups 15");
    assert_state(s, "drain", 1000);
    assert_string_equal(passes(s, 1000, "w0Z w1Z g1"),
                        "say \"killing what the workers left behind: 102 (prog, state S)\", groups 9, children 9");
    assert_string_equal(now_are(s, 1001, "w0Z w1Z"), "done");
    assert_int_equal(s->stop.killed_count, 1);
}

/* A shell that ends at once, and behind it a program that is still saving its work. */
static void the_rest_of_a_group_keeps_its_grace_when_there_is_another_signal(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 5000, "w0 g0"), "groups 15");
    assert_string_equal(stop(s, 100, 5000, "w0Z g0"), "");
    assert_state(s, "grace", 5000);
}

static void no_grace_means_no_grace(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 7, 0, "w0"), "groups 15, leaders 9");
    assert_state(s, "drain", 1007);
}

static void endless_grace_is_fine(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 7, UINT64_MAX, "w0"), "groups 15");
    assert_state(s, "grace", UINT64_MAX);
    assert_string_equal(now_are(s, 1 << 30, "w0Z"), "done");
}

static void whoever_is_stopped_is_continued_to_hear_it(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 5000, "w0T w1"), "groups 15, groups 18");
}

static void a_second_signal_never_makes_the_grace_longer(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 30000, "w0"), "groups 15");
    assert_string_equal(stop(s, 3000, 30000, "w0"), "");
    assert_state(s, "grace", 30000);
    assert_string_equal(stop(s, 4000, UINT64_MAX, "w0"), "");
    assert_state(s, "grace", 30000);
    assert_string_equal(stop(s, 5000, 6000, "w0"), ""); /* but shorter */
    assert_state(s, "grace", 11000);
    assert_string_equal(passes(s, 11000, "w0"), "leaders 9");
    assert_string_equal(stop(s, 11001, 30000, "w0"), ""); /* too late for a grace */
    assert_state(s, "drain", 12000);
}

static void a_second_signal_that_comes_when_the_grace_is_over_ends_it(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 1000, "w0"), "groups 15");
    assert_string_equal(stop(s, 1500, 30000, "w0"), "leaders 9"); /* we were busy when it was over */
    assert_state(s, "drain", 2500);
}

static void kill_takes_one_step_at_a_time(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 30000, "w0 g0 o"), "groups 15");
    assert_string_equal(kill_now(s, 10, "w0 g0 o"), "groups 9");
    assert_state(s, "drain", 1010);
    assert_non_null(strstr(kill_now(s, 20, "w0Z o"), "groups 9, children 9"));
    assert_string_equal(kill_now(s, 21, "w0Z"), "done");
}

static void a_removed_node_kills_without_a_word_before(void **state)
{
    struct scene *s = *state;

    assert_string_equal(kill_now(s, 10, "w0 w1"), "groups 9");
    assert_string_equal(now_are(s, 11, "w0Z w1"), "");
    assert_string_equal(now_are(s, 12, "w0Z w1Z"), "done");
}

static void the_unkillable_are_named_after_a_while(void **state)
{
    struct scene *s = *state;
    uint64_t now_ms = 1000;

    (void)kill_now(s, 0, "w0D w1");
    assert_string_equal(now_are(s, 1, "w0D w1Z"), "");
    assert_string_equal(passes(s, now_ms, "w0D w1Z"), "groups 9, children 9");
    while (s->stop.state == MU_STOP_KILLING) {
        assert_true(mu_stop_deadline_ms(&s->stop) > now_ms && mu_stop_deadline_ms(&s->stop) <= now_ms + 200);
        now_ms = mu_stop_deadline_ms(&s->stop);
        (void)passes(s, now_ms, "w0D w1Z");
    }
    assert_string_equal(
        s->trace, "say \"these processes did not end after SIGKILL; giving up on them: 100 (prog, state D)\", done");
    assert_in_range(now_ms, 1000 + MU_STOP_STUCK_MS, 1000 + MU_STOP_STUCK_MS + 400);
    assert_int_equal(s->stop.left_count, 1);
}

static bool wants_below(const struct scene *s, const char *who)
{
    return mu_stop_wants_below(&s->stop, with((struct mu_stop_event){ .count = 0 }, who).children);
}

static void who_does_not_end_is_looked_below(void **state)
{
    static const char *const at_once[] = { "w0D", "oD", "g0D", "w1S!", "oS!" };
    static const char *const not_yet[] = { "w0S", "oS", "oR", "mS", "oT" };
    struct scene *s = *state;

    (void)stop(s, 0, 100, "w0D");
    assert_false(wants_below(s, "w0D"));
    (void)passes(s, 100, "w0D");
    assert_false(wants_below(s, "w0D")); /* it is given its time, and so are those below it */
    (void)passes(s, 1100, "w0D");
    assert_state(s, "killing", 1110);
    for (size_t i = 0; i < COUNT(at_once); i++) {
        assert_true(wants_below(s, at_once[i]));
        assert_false(wants_below(s, not_yet[i]));
    }
    assert_false(wants_below(s, "w0Z"));
    looks_until(s, 1100 + 500, "w0D"); /* some looks later it is anybody */
    for (size_t i = 0; i < COUNT(at_once); i++) {
        assert_true(wants_below(s, at_once[i]));
        assert_true(wants_below(s, not_yet[i]));
    }
    assert_false(wants_below(s, "w0Z"));
}

static void whoever_is_below_the_unkillable_is_killed_and_waited_for(void **state)
{
    struct scene *s = *state;

    (void)kill_now(s, 0, "w0D");
    assert_string_equal(passes(s, 1000, "w0D"), "groups 9, children 9");
    assert_string_equal(passes(s, 1010, "w0D b b"), "children 9, below 9");
    assert_string_equal(passes(s, 1030, "w0D bD bZ"), "below 9"); /* it sleeps for a while */
    looks_until(s, 5900, "w0D bD bZ");
    assert_string_equal(passes(s, 5900, "w0D b bZ"), "children 9, below 9");
    assert_string_equal(now_are(s, 6100, "w0D bZ bZ"), ""); /* only now there is nobody else */
    looks_until(s, 11100, "w0D bZ bZ");
    assert_string_equal(
        passes(s, 11100, "w0D bZ bZ"),
        "say \"these processes did not end after SIGKILL; giving up on them: 100 (prog, state D)\", done");
}

static void whoever_is_below_what_is_not_ours_to_kill_is_killed_before_that_is_given_up(void **state)
{
    struct scene *s = *state;
    char text[256];

    (void)kill_now(s, 0, "oS!");
    (void)passes(s, 1000, "oS!");
    assert_string_equal(passes(s, 1010, "oS! b b"), "children 9, below 9");
    assert_non_null(strstr(passes(s, 1030, "oS! bZ bS!"), "done"));
    mu_stop_left_text(&s->stop, text, sizeof text);
    assert_string_equal(text, "100 (prog, state S, not permitted), 102 (prog, state S, not permitted)");
}

static void one_that_wakes_up_after_all_is_not_given_up(void **state)
{
    struct scene *s = *state;

    (void)kill_now(s, 0, "w0D");
    (void)passes(s, 1000, "w0D");
    (void)passes(s, 5900, "w0D");
    assert_string_equal(passes(s, 6000, "w0S"), "children 9");
    assert_string_equal(now_are(s, 6001, "w0Z"), "done");
}

static void what_is_not_ours_to_kill_is_not_tried_for_ever(void **state)
{
    struct scene *s = *state;
    char text[256];

    (void)kill_now(s, 0, "w0S!");
    (void)passes(s, 1000, "w0S!");
    assert_non_null(strstr(passes(s, 1010, "w0S!"), "done"));
    mu_stop_left_text(&s->stop, text, sizeof text);
    assert_string_equal(text, "100 (prog, state S, not permitted)");
}

static void those_who_multiply_are_not_fought_for_ever(void **state)
{
    struct scene *s = *state;

    (void)kill_now(s, 0, "oR oR");
    looks_until(s, 30999, "oR oR");
    assert_string_equal(passes(s, 30999, "oR oR"), "children 9");
    assert_non_null(strstr(passes(s, 31000, "oR oR"), "done"));
    assert_int_equal(s->stop.left_count, 2);
}

static void whoever_was_not_looking_gives_nobody_up(void **state)
{
    struct scene *s = *state;

    (void)kill_now(s, 0, "oD");
    looks_until(s, 3000, "oD");
    assert_string_equal(passes(s, 60000, "oS"), "children 9");
    assert_string_equal(now_are(s, 60001, ""), "done");
    assert_int_equal(s->stop.left_count, 0);
}

static void only_so_many_leftovers_are_named(void **state)
{
    struct scene *s = *state;
    char text[2048];

    (void)kill_now(s, 0, "oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD");
    (void)passes(s, 1000, "oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD");
    looks_until(s, 6000, "oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD");
    assert_non_null(strstr(passes(s, 6200, "oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD oD"), "done"));
    mu_stop_left_text(&s->stop, text, sizeof text);
    assert_non_null(strstr(text, " and 3 more"));
    for (size_t room = 1; room < 64; room++) {
        mu_stop_left_text(&s->stop, text, room);
        assert_true(strlen(text) < room);
    }
}

static void those_who_cannot_be_seen_are_said(void **state)
{
    struct scene *s = *state;

    assert_string_equal(stop(s, 0, 100, "w0 ?"), "groups 15");
    assert_string_equal(now_are(s, 10, "w0Z ?"), "");
    (void)passes(s, 1010, "w0Z ?");
    looks_until(s, 6020, "w0Z ?");
    assert_string_equal(passes(s, 6020, "w0Z ?"),
                        "say \"these processes did not end after SIGKILL; giving up on them: some that "
                        "cannot be seen without a /proc of this pid namespace\", done");
}

static void without_news_of_deaths_it_looks_by_itself(void **state)
{
    struct scene *s = *state;

    mu_stop_init(&s->stop, 20);
    assert_string_equal(stop(s, 0, 100, "w0"), "groups 15");
    assert_state(s, "grace", 20);
    assert_string_equal(passes(s, 20, "w0Z g0"), "");
    assert_state(s, "grace", 40);
    assert_string_equal(passes(s, 40, "w0Z"), "done");
}

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    mu_stop_init(&s->stop, 0);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(workers_that_end_are_not_killed),
        TEST(nothing_is_signalled_when_all_have_ended_before),
        TEST(an_empty_group_is_stopped_at_once),
        TEST(a_tracker_in_the_group_is_let_to_clean_up),
        TEST(the_rest_of_a_group_has_the_same_grace_as_its_leader),
        TEST(orphans_have_a_second_and_are_killed_by_generations),
        TEST(who_manages_shared_memory_has_time_to_give_it_back),
        TEST(whoever_keeps_a_manager_busy_is_killed_before_it),
        TEST(a_manager_is_not_waited_for_when_all_is_to_be_killed),
        TEST(what_successful_workers_left_is_ended_too),
        TEST(what_they_left_in_their_groups_is_asked_once_and_not_waited_for),
        TEST(the_rest_of_a_group_keeps_its_grace_when_there_is_another_signal),
        TEST(no_grace_means_no_grace),
        TEST(endless_grace_is_fine),
        TEST(whoever_is_stopped_is_continued_to_hear_it),
        TEST(a_second_signal_never_makes_the_grace_longer),
        TEST(a_second_signal_that_comes_when_the_grace_is_over_ends_it),
        TEST(kill_takes_one_step_at_a_time),
        TEST(a_removed_node_kills_without_a_word_before),
        TEST(the_unkillable_are_named_after_a_while),
        TEST(who_does_not_end_is_looked_below),
        TEST(whoever_is_below_the_unkillable_is_killed_and_waited_for),
        TEST(whoever_is_below_what_is_not_ours_to_kill_is_killed_before_that_is_given_up),
        TEST(one_that_wakes_up_after_all_is_not_given_up),
        TEST(what_is_not_ours_to_kill_is_not_tried_for_ever),
        TEST(those_who_multiply_are_not_fought_for_ever),
        TEST(whoever_was_not_looking_gives_nobody_up),
        TEST(only_so_many_leftovers_are_named),
        TEST(those_who_cannot_be_seen_are_said),
        TEST(without_news_of_deaths_it_looks_by_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
