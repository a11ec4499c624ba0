/* In which words the others hear of members that have vanished. */
#include "agent/vanished.h"
#include "failmalloc.h"
#include "pure.h"

#include <stdio.h>

static struct mu_vanished vanished;

static void begin(const char *cause)
{
    mu_vanished_done(&vanished);
    mu_vanished_set_cause(&vanished, cause);
}

static struct mu_vanished_member *add(int64_t rank, const char *name)
{
    mu_vanished_add(&vanished, rank, name, true, false);
    return &vanished.members[vanished.count - 1];
}

static void found(struct mu_vanished_member *member, const char *note)
{
    mu_vanished_read_note(member, mu_slice_str(note));
}

static const char *said(void)
{
    static char text[512];

    mu_vanished_say(&vanished, text, sizeof text);
    return text;
}

static void without_a_note_a_member_is_lost(void **state)
{
    (void)state;
    begin(NULL);
    assert_string_equal(said(), "lost a node"); /* there was no memory for who */
    found(add(3, "node9"), "?");
    assert_string_equal(said(), "lost node9");
    begin("no heartbeat for 15 s");
    (void)add(3, "node9");
    assert_string_equal(said(), "lost node9: no heartbeat for 15 s");
    (void)add(3, "node9"); /* told again */
    (void)add(4, "node10");
    assert_string_equal(said(), "lost node9, node10: no heartbeat for 15 s");
}

static void a_note_says_who_left_and_why(void **state)
{
    char note[MU_VANISHED_NOTE_MAX];

    (void)state;
    begin("no heartbeat for 15 s");
    mu_vanished_write_note(note, MU_NOTE_LEFT, "SIGTERM");
    found(add(3, "node9"), note);
    assert_string_equal(said(), "node9 left (SIGTERM)");
    (void)add(4, "node8");
    assert_string_equal(said(), "node9 left (SIGTERM); lost node8: no heartbeat for 15 s");
    vanished.members[1].done = true;
    assert_string_equal(said(), "node9 left (SIGTERM)");
}

static void the_note_of_a_killed_agent_says_how_it_was_lost(void **state)
{
    char note[MU_VANISHED_NOTE_MAX];

    (void)state;
    begin("no heartbeat for 15 s");
    mu_vanished_write_note(note, MU_NOTE_LOST, "its agent was killed");
    found(add(3, "node9"), note);
    assert_string_equal(said(), "lost node9: its agent was killed");
    (void)add(4, "node8");
    found(add(5, "node7"), note);
    assert_string_equal(said(), "lost node9, node7: its agent was killed; lost node8: no heartbeat for 15 s");
    mu_vanished_write_note(note, MU_NOTE_LEFT, "SIGTERM");
    found(&vanished.members[2], note);
    assert_string_equal(said(),
                        "node7 left (SIGTERM); lost node9: its agent was killed; lost node8: no heartbeat for 15 s");
    vanished.members[0].done = true; /* when it was killed its workers had succeeded */
    assert_string_equal(said(), "node7 left (SIGTERM); lost node8: no heartbeat for 15 s");
}

static void members_that_come_again_pass_on_what_made_them(void **state)
{
    char note[MU_VANISHED_NOTE_MAX];

    (void)state;
    begin("no heartbeat for 15 s");
    mu_vanished_write_note(note, MU_NOTE_AGAIN, "lost node9: no heartbeat for 15 s");
    found(add(1, "node7"), note);
    assert_string_equal(said(), "lost node9: no heartbeat for 15 s");
    (void)add(3, "node9"); /* now seen by ourselves; node7 is not mentioned */
    assert_string_equal(said(), "lost node9: no heartbeat for 15 s");
    begin("no heartbeat for 15 s");
    mu_vanished_add(&vanished, 1, "node7", true, true); /* its note did not come in time */
    assert_string_equal(said(), "node7 waits for the next round");
}

static void of_pytorch_members_the_cause_is_not_known(void **state)
{
    (void)state;
    begin("no heartbeat for 15 s");
    mu_vanished_add(&vanished, 1, "stock1", false, false);
    assert_string_equal(said(), "lost stock1");
    (void)add(3, "node9");
    assert_string_equal(said(), "lost node9: no heartbeat for 15 s; lost stock1");
}

static void a_crowd_is_counted(void **state)
{
    char name[16];

    (void)state;
    begin(NULL);
    for (int64_t i = 0; i < MU_VANISHED_NAMED_MAX + 3; i++) {
        (void)snprintf(name, sizeof name, "n%d", (int)i);
        mu_vanished_add(&vanished, i, name, true, false);
    }
    assert_string_equal(said(), "lost n0, n1, n2, n3, n4, n5, n6, n7 (and 3 more)");
}

static void members_that_come_again_do_not_hide_one_that_was_lost(void **state)
{
    struct mu_vanished copy = { .count = 0 };
    char name[16];

    (void)state;
    begin(NULL);
    for (int64_t i = 0; i < 3 * MU_VANISHED_NAMED_MAX; i++) {
        (void)snprintf(name, sizeof name, "n%d", (int)i);
        found(add(i, name), "again: exit code 3");
    }
    assert_false(mu_vanished_any_lost(&vanished));
    (void)add(99, "n99");
    assert_true(mu_vanished_any_lost(&vanished));
    assert_string_equal(said(), "lost n99");
    mu_vanished_copy(&copy, &vanished);
    begin(NULL);
    assert_false(mu_vanished_any_lost(&vanished));
    mu_vanished_copy(&vanished, &copy);
    mu_vanished_done(&copy);
    assert_string_equal(said(), "lost n99");
}

static void without_memory_a_member_is_taken_for_lost(void **state)
{
    struct mu_vanished copy = { .count = 0 };

    (void)state;
    begin(NULL);
    fail_alloc_at(1);
    mu_vanished_add(&vanished, 1, "n1", true, false);
    fail_alloc_at(0);
    assert_true(mu_vanished_any_lost(&vanished));
    assert_string_equal(said(), "lost a node");
    (void)add(2, "n2");
    assert_string_equal(said(), "lost n2 (and 1 more)");
    fail_alloc_at(1);
    mu_vanished_copy(&copy, &vanished);
    fail_alloc_at(0);
    assert_int_equal(copy.unknown, 2);
    begin(NULL);
}

static void what_others_wrote_is_one_line_and_cut(void **state)
{
    char longer[2 * MU_VANISHED_NOTE_MAX], text[16];

    (void)state;
    begin("a\nb");
    (void)add(0, "x\033[1m");
    assert_string_equal(said(), "lost x [1m: a b");
    memset(longer, 'y', sizeof longer);
    memcpy(longer, "left: ", 6);
    mu_vanished_read_note(&vanished.members[0], mu_slice(longer, sizeof longer));
    assert_int_equal(strlen(vanished.members[0].why), MU_VANISHED_NOTE_MAX - 1);
    assert_int_equal(vanished.members[0].note, MU_NOTE_LEFT);
    mu_vanished_say(&vanished, text, sizeof text); /* cut, and ended */
    assert_string_equal(text, "x [1m left (yyy");
    found(&vanished.members[0], "");
    assert_int_equal(vanished.members[0].note, MU_NOTE_NONE);
    begin(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_note_a_member_is_lost),
        cmocka_unit_test(a_note_says_who_left_and_why),
        cmocka_unit_test(the_note_of_a_killed_agent_says_how_it_was_lost),
        cmocka_unit_test(members_that_come_again_pass_on_what_made_them),
        cmocka_unit_test(of_pytorch_members_the_cause_is_not_known),
        cmocka_unit_test(a_crowd_is_counted),
        cmocka_unit_test(members_that_come_again_do_not_hide_one_that_was_lost),
        cmocka_unit_test(without_memory_a_member_is_taken_for_lost),
        cmocka_unit_test(what_others_wrote_is_one_line_and_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
