/* Answers that wait for the end of a step: a scene is a list of calls, and what comes of them. */
#include "handler/late_answers.h"
#include "pure.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void put(char *to, size_t room, const char *what)
{
    size_t used = strlen(to);

    (void)snprintf(to + used, room - used, "%s%s", used > 0 ? " " : "", what);
}

/* One call a letter: ( begins a step, ) ends it, n asks for the next, x drops, a digit is an id that is added. Returns
 * what they said. */
static const char *play(const char *calls)
{
    static char said[256];
    struct mu_late_answers late = { .state = MU_LATE_IDLE };
    uint64_t id = 0;
    char text[24];

    said[0] = '\0';
    for (; *calls != '\0'; calls++) {
        switch (*calls) {
        case '(':
            mu_late_begin(&late);
            break;
        case ')':
            put(said, sizeof said, mu_late_end(&late) ? "outer" : "inner");
            break;
        case 'n':
            (void)snprintf(text, sizeof text, "%s", "none");
            if (mu_late_next(&late, &id))
                (void)snprintf(text, sizeof text, "%d", (int)id);
            put(said, sizeof said, text);
            break;
        case 'x':
            mu_late_drop(&late);
            break;
        default:
            mu_late_add(&late, (uint64_t)(*calls - '0'));
        }
    }
    if (late.state != MU_LATE_IDLE)
        put(said, sizeof said, "not idle");
    return said;
}

static void answers_come_when_the_step_is_over_in_the_order_of_their_requests(void **state)
{
    static const struct {
        const char *calls, *said;
    } cases[] = {
        { "", "" },
        { "()n", "outer none" },
        { "(12)nnn", "outer 1 2 none" },
        { "(12)n()nn", "outer 1 inner 2 none" },         /* a step on the first answer */
        { "(12)n(34)nnnn", "outer 1 inner 2 3 4 none" }, /* ... that wants answers, too */
        { "(1)n(2)n(3)nn", "outer 1 inner 2 inner 3 none" },
        { "(1)nn(2)nn", "outer 1 none outer 2 none" }, /* two steps, one after the other */
        { "(12x)n", "outer none" },                    /* freed within the step */
        { "(12)n(3x)n", "outer 1 inner none" },        /* ... or within an answer */
        { "(12)nxn", "outer 1 none" },
        { "x(1)nn", "outer 1 none" },
        { "(1)", "outer not idle" },
        { "(1)n(2)", "outer 1 inner not idle" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(play(cases[i].calls), cases[i].said);
}

static void as_many_wait_as_a_machine_may_want(void **state)
{
    struct mu_late_answers late = { .state = MU_LATE_IDLE };
    uint64_t id = 0;

    (void)state;
    mu_late_begin(&late);
    for (uint64_t i = 1; i <= MU_LATE_ANSWERS_MAX; i++)
        mu_late_add(&late, i);
    assert_true(mu_late_end(&late));
    for (uint64_t i = 1; i <= MU_LATE_ANSWERS_MAX; i++) {
        assert_true(mu_late_next(&late, &id));
        assert_true(id == i);
    }
    assert_false(mu_late_next(&late, &id));
}

/* Our own mistakes end the process. */
static void what_a_driver_must_not_do_never_happens(void **state)
{
    static const char *const mistakes[] = {
        "((",     /* a step within a step */
        "(1)n((", /* ... on an answer */
        ")",
        "n",
        "(n",
        "())",
        "()nn", /* in a state that has no such call */
        "1",
        "()1",
        "(0",                                 /* an answer outside of a step, or to nobody */
        "(111111111111111111111111111111111", /* the 33rd */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(mistakes); i++) {
        pid_t pid = fork();
        int status = 0;

        assert_true(pid >= 0);
        if (pid == 0) {
            (void)close(STDERR_FILENO);
            (void)play(mistakes[i]);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            fail_msg("'%s' is taken", mistakes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_come_when_the_step_is_over_in_the_order_of_their_requests),
        cmocka_unit_test(as_many_wait_as_a_machine_may_want),
        cmocka_unit_test(what_a_driver_must_not_do_never_happens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
