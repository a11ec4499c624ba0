/* Names of signals, and lists of them. */
#include "proc/signals.h"
#include "pure.h"

#include <signal.h>
#include <stdio.h>

static void every_name_leads_to_its_number_and_back(void **state)
{
    char room[MU_SIGNAL_NAME_MAX];

    (void)state;
    assert_int_equal(mu_signal_number("SIGTERM"), SIGTERM);
    assert_int_equal(mu_signal_number("SIGUSR2"), SIGUSR2);
    assert_string_equal(mu_signal_name(SIGHUP, room), "SIGHUP");
    for (int i = 1; i < 32; i++)
        assert_int_equal(mu_signal_number(mu_signal_name(i, room)), i);
    assert_string_equal(mu_signal_name(40, room), "SIG40");
    assert_string_equal(mu_signal_name(-1234567, room), "SIG-1234567");
}

static void realtime_signals_are_counted_from_either_end(void **state)
{
    (void)state;
    assert_int_equal(mu_signal_number("SIGRTMIN"), SIGRTMIN);
    assert_int_equal(mu_signal_number("SIGRTMIN+3"), SIGRTMIN + 3);
    assert_int_equal(mu_signal_number("SIGRTMAX-1"), SIGRTMAX - 1);
    assert_int_equal(mu_signal_number("SIGRTMIN+99"), 0);
    assert_int_equal(mu_signal_number("SIGRTMIN-1"), 0);
    assert_int_equal(mu_signal_number("SIGRTMIN+"), 0);
    assert_int_equal(mu_signal_number("SIGRTMAX-1x"), 0);
    assert_int_equal(mu_signal_number("SIGRTMIN+ 1"), 0);
}

static void what_is_no_name_is_no_signal(void **state)
{
    static const char *const texts[] = { "", "TERM", "sigterm", "15", "SIGTERM ", "SIGNOPE", "SIG" };

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        assert_int_equal(mu_signal_number(texts[i]), 0);
}

static void a_list_keeps_its_order_and_names_what_it_skips(void **state)
{
    struct mu_signals signals;

    (void)state;
    mu_signals_parse(&signals, "SIGTERM,SIGINT, SIGHUP ,SIGQUIT,SIGINT");
    assert_int_equal(signals.count, 4);
    assert_int_equal(signals.numbers[0], SIGTERM);
    assert_int_equal(signals.numbers[2], SIGHUP);
    assert_string_equal(signals.skipped, "");

    mu_signals_parse(&signals, "SIGNOPE,SIGTERM,,SIGKILL,averyveryverylongname,SIGCHLD");
    assert_int_equal(signals.count, 1);
    assert_string_equal(signals.skipped, "SIGNOPE, SIGKILL, averyveryverylongname, SIGCHLD");

    mu_signals_parse(&signals, "");
    assert_int_equal(signals.count, 0);
}

static void an_endless_list_has_an_end(void **state)
{
    char text[8192] = "";
    struct mu_signals signals;

    (void)state;
    for (size_t i = 0; i + 8 < sizeof text; i += 7)
        memcpy(text + i, "SIGBAD,", 8);
    mu_signals_parse(&signals, text);
    assert_int_equal(signals.count, 0);
    assert_int_equal(strlen(signals.skipped), sizeof signals.skipped - 1);

    text[0] = '\0';
    for (int i = SIGRTMIN; i <= SIGRTMAX; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "SIGRTMIN+%d,", i - SIGRTMIN);
    mu_signals_parse(&signals, text);
    assert_int_equal(signals.count, SIGRTMAX - SIGRTMIN + 1);
}

static void what_we_were_started_with_is_kept(void **state)
{
    struct mu_startup startup;
    sigset_t set, before;

    (void)state;
    (void)signal(SIGUSR1, SIG_IGN);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGUSR2);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    mu_startup_take(&startup);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    (void)signal(SIGUSR1, SIG_DFL);

    assert_true(mu_startup_ignored(&startup, SIGUSR1));
    assert_false(mu_startup_ignored(&startup, SIGTERM));
    assert_false(mu_startup_ignored(&startup, 0));
    assert_int_equal(sigismember(&startup.mask, SIGUSR2), 1);
    assert_true(startup.nofile_soft > 0);
}

static void workers_get_the_default_action_of_what_we_handle(void **state)
{
    struct mu_startup startup = { .ignored = 0 };
    struct mu_signals handled;

    (void)state;
    for (int signal = 1; signal <= 64; signal++)
        startup.ignored |= UINT64_C(1) << (signal - 1);
    mu_signals_parse(&handled, "SIGINT,SIGHUP,SIGRTMAX");
    mu_startup_for_workers(&startup, &handled);
    assert_false(mu_startup_ignored(&startup, SIGINT));
    assert_false(mu_startup_ignored(&startup, SIGHUP));
    assert_false(mu_startup_ignored(&startup, SIGRTMAX));
    assert_true(mu_startup_ignored(&startup, SIGTERM));
    assert_true(mu_startup_ignored(&startup, SIGUSR1));
}

static bool is_ignored(int number)
{
    struct sigaction action;

    assert_int_equal(sigaction(number, NULL, &action), 0);
    return action.sa_handler == SIG_IGN;
}

static void what_we_handle_is_reset_but_not_what_nohup_ignores(void **state)
{
    static const int numbers[] = { SIGINT, SIGHUP, SIGCHLD, SIGUSR1 };
    struct mu_startup startup = { .ignored = 0 };
    struct mu_signals handled;

    (void)state;
    mu_signals_parse(&handled, "SIGINT,SIGHUP");
    for (size_t i = 0; i < COUNT(numbers); i++)
        (void)signal(numbers[i], SIG_IGN);
    mu_startup_take(&startup);
    assert_true(mu_startup_keeps(&startup, SIGHUP));
    assert_false(mu_startup_keeps(&startup, SIGINT));
    assert_false(mu_startup_keeps(NULL, SIGHUP));
    mu_signals_reset(&handled, &startup);
    assert_false(is_ignored(SIGINT));
    assert_false(is_ignored(SIGCHLD));
    assert_true(is_ignored(SIGHUP));
    assert_true(is_ignored(SIGUSR1));
    mu_signals_reset(&handled, NULL);
    assert_false(is_ignored(SIGHUP));
    (void)signal(SIGUSR1, SIG_DFL);
}

static void what_was_blocked_can_be_unblocked(void **state)
{
    struct mu_signals handled;
    sigset_t all, now, before;

    (void)state;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
    mu_signals_parse(&handled, "SIGINT,SIGUSR2");
    mu_signals_unblock(&handled);
    (void)sigprocmask(SIG_SETMASK, NULL, &now);
    assert_int_equal(sigismember(&now, SIGINT), 0);
    assert_int_equal(sigismember(&now, SIGUSR2), 0);
    assert_int_equal(sigismember(&now, SIGTERM), 1);
    mu_signals_unblock_all();
    (void)sigprocmask(SIG_SETMASK, NULL, &now);
    for (int signal = 1; signal <= SIGRTMAX; signal++)
        assert_int_not_equal(sigismember(&now, signal), 1);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
}

static void only_a_late_ctrl_c_and_sigquit_say_that_there_is_a_hurry(void **state)
{
    static const struct {
        int signal;
        uint64_t at_ms;
        enum mu_signal_meaning meaning;
    } rows[] = {
        { SIGTERM, 100, MU_SIGNAL_BEGIN },   { SIGTERM, 5000, MU_SIGNAL_REPEAT }, { SIGHUP, 6000, MU_SIGNAL_REPEAT },
        { SIGINT, 6000, MU_SIGNAL_REPEAT },  { SIGINT, 7000, MU_SIGNAL_REPEAT },  { SIGINT, 7001, MU_SIGNAL_HURRY },
        { SIGTERM, 8000, MU_SIGNAL_REPEAT }, { SIGQUIT, 8001, MU_SIGNAL_HURRY },
    };
    struct mu_signals_seen seen = { .any = false }, other = { .any = false };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(mu_signals_see(&seen, rows[i].signal, rows[i].at_ms), rows[i].meaning);
    assert_int_equal(mu_signals_see(&other, SIGQUIT, 0), MU_SIGNAL_BEGIN);
    assert_int_equal(mu_signals_see(&other, SIGQUIT, 0), MU_SIGNAL_HURRY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_leads_to_its_number_and_back),
        cmocka_unit_test(realtime_signals_are_counted_from_either_end),
        cmocka_unit_test(what_is_no_name_is_no_signal),
        cmocka_unit_test(a_list_keeps_its_order_and_names_what_it_skips),
        cmocka_unit_test(an_endless_list_has_an_end),
        cmocka_unit_test(only_a_late_ctrl_c_and_sigquit_say_that_there_is_a_hurry),
        cmocka_unit_test(what_we_were_started_with_is_kept),
        cmocka_unit_test(workers_get_the_default_action_of_what_we_handle),
        cmocka_unit_test(what_we_handle_is_reset_but_not_what_nohup_ignores),
        cmocka_unit_test(what_was_blocked_can_be_unblocked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
