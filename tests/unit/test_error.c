/* Errors: codes, names, and texts that read outside-in and are never overrun. */
#include "base/error.h"
#include "pure.h"

#include <errno.h>
#include <stdio.h>

enum { TEXT_MAX = sizeof((struct muster_error *)NULL)->text };

static const struct {
    int code;
    const char *name;
} promised[] = {
    { -1, "EINVAL" },         { -2, "ENOMEM" },
    { -3, "ETIMEOUT" },       { -4, "ECONNECT" },
    { -5, "ELOST" },          { -6, "ERESOLVE" },
    { -7, "EPROTOCOL" },      { -8, "ENOTSUP" },
    { -9, "ELIMIT" },         { -10, "EADDRINUSE" },
    { -11, "EEMPTY" },        { -12, "ECANCELED" },
    { -13, "ESYSTEM" },       { -14, "EINTERNAL" },
    { -15, "ESIGNAL" },       { -16, "ERETRY" },
    { -17, "ERETRY_NOW" },    { -32, "ERDZV_CLOSED" },
    { -33, "ERDZV_TIMEOUT" }, { -34, "ERDZV_CONNECTION" },
    { -35, "ERDZV_STATE" },   { -36, "ERDZV_GRACEFUL_EXIT" },
};

static void codes_keep_the_numbers_they_were_published_with(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(promised); i++)
        assert_string_equal(muster_error_name(promised[i].code), promised[i].name);
}

static void every_code_has_a_text_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(promised); i++) {
        assert_string_not_equal(muster_error_text(promised[i].code), "unknown error");
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(muster_error_text(promised[i].code), muster_error_text(promised[j].code));
    }
    assert_string_equal(muster_error_text(MUSTER_EINVAL), "invalid argument");
}

static void numbers_that_are_no_codes_say_so(void **state)
{
    static const int others[] = { 1, -18, -31, -37, INT32_MIN, INT32_MAX };

    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_string_equal(muster_error_name(others[i]), "unknown");
        assert_string_equal(muster_error_text(others[i]), "unknown error");
    }
    assert_string_equal(muster_error_name(0), "OK");
    assert_string_equal(muster_error_text(0), "success");
}

static void rendezvous_codes_are_told_from_the_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(promised); i++)
        assert_int_equal(muster_error_is_rdzv(promised[i].code), strncmp(promised[i].name, "ERDZV_", 6) == 0);
    assert_false(muster_error_is_rdzv(0));
    assert_false(muster_error_is_rdzv(-37));
}

static void failing_sets_code_and_text_and_returns_the_code(void **state)
{
    struct muster_error err = { 0 };

    (void)state;
    assert_int_equal(mu_fail(&err, MUSTER_EINVAL, "bad port '%s'", "99999"), MUSTER_EINVAL);
    assert_int_equal(err.code, MUSTER_EINVAL);
    assert_string_equal(err.text, "bad port '99999'");
}

static void wrapping_puts_the_outer_step_in_front_and_keeps_the_code(void **state)
{
    struct muster_error err;

    (void)state;
    (void)mu_fail(&err, MUSTER_EINVAL, "bad port '%d'", 99999);
    assert_int_equal(mu_wrap(&err, MUSTER_EINVAL, "line %d", 3), MUSTER_EINVAL);
    assert_int_equal(mu_wrap(&err, MUSTER_EINVAL, "load '%s'", "h.txt"), MUSTER_EINVAL);
    assert_int_equal(err.code, MUSTER_EINVAL);
    assert_string_equal(err.text, "load 'h.txt': line 3: bad port '99999'");
}

static void nobody_has_to_listen(void **state)
{
    (void)state;
    assert_int_equal(mu_fail(NULL, MUSTER_ELOST, "said to nobody"), MUSTER_ELOST);
    assert_int_equal(mu_fail_errno(NULL, EADDRINUSE, "said to nobody"), MUSTER_EADDRINUSE);
    assert_int_equal(mu_wrap(NULL, MUSTER_ETIMEOUT, "said to nobody"), MUSTER_ETIMEOUT);
}

static void a_text_that_is_too_long_is_cut_at_its_end(void **state)
{
    char tale[2 * TEXT_MAX];
    struct muster_error err;

    (void)state;
    memset(tale, 'x', sizeof tale - 1);
    tale[sizeof tale - 1] = '\0';
    assert_int_equal(mu_fail(&err, MUSTER_ELOST, "long: %s", tale), MUSTER_ELOST);
    assert_int_equal(strlen(err.text), TEXT_MAX - 1);
    assert_memory_equal(err.text, "long: xxx", 9);

    assert_int_equal(mu_wrap(&err, MUSTER_ELOST, "outer"), MUSTER_ELOST);
    assert_int_equal(strlen(err.text), TEXT_MAX - 1);
    assert_memory_equal(err.text, "outer: long: xxx", 16);

    assert_int_equal(mu_wrap(&err, MUSTER_ELOST, "%s", tale), MUSTER_ELOST); /* nothing of the inner text is left */
    assert_int_equal(strlen(err.text), TEXT_MAX - 1);
    assert_memory_equal(err.text, "xxxx", 4);

    assert_int_equal(mu_fail_errno(&err, EPIPE, "%s", tale), MUSTER_ELOST);
    assert_int_equal(strlen(err.text), TEXT_MAX - 1);
}

/* From one byte that fits to one that does not. */
static void the_cut_is_right_at_the_last_byte(void **state)
{
    char outer[TEXT_MAX];
    struct muster_error err;

    (void)state;
    for (size_t len = TEXT_MAX - 8; len < TEXT_MAX; len++) {
        size_t whole = len + strlen(": why");

        memset(outer, 'o', len);
        outer[len] = '\0';
        (void)mu_fail(&err, MUSTER_EINVAL, "why");
        (void)mu_wrap(&err, err.code, "%s", outer);
        assert_int_equal(strlen(err.text), whole < TEXT_MAX - 1 ? whole : TEXT_MAX - 1);
        assert_memory_equal(err.text, outer, len);
    }
}

static void errno_values_get_a_code_and_their_own_words(void **state)
{
    static const struct {
        int errnum, code;
    } rows[] = {
        { ENOMEM, MUSTER_ENOMEM },         { EINVAL, MUSTER_EINVAL },         { ETIMEDOUT, MUSTER_ETIMEOUT },
        { EADDRINUSE, MUSTER_EADDRINUSE }, { ECONNREFUSED, MUSTER_ECONNECT }, { EHOSTUNREACH, MUSTER_ECONNECT },
        { ENETUNREACH, MUSTER_ECONNECT },  { ECONNRESET, MUSTER_ELOST },      { ECONNABORTED, MUSTER_ELOST },
        { EPIPE, MUSTER_ELOST },           { EACCES, MUSTER_ESYSTEM },        { EMFILE, MUSTER_ESYSTEM },
    };
    struct muster_error err;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(mu_fail_errno(&err, rows[i].errnum, "open '%s'", "x"), rows[i].code);
        assert_int_equal(err.code, rows[i].code);
        assert_memory_equal(err.text, "open 'x': ", 10);
        assert_string_equal(err.text + 10, strerror(rows[i].errnum));
    }
}

static void an_errno_value_stays_until_the_next_failure(void **state)
{
    struct muster_error err;

    (void)state;
    (void)mu_fail_errno(&err, EACCES, "open 'x'");
    (void)mu_wrap(&err, err.code, "load");
    assert_int_equal(err.errnum, EACCES);
    (void)mu_fail(&err, MUSTER_ESYSTEM, "something else");
    assert_int_equal(err.errnum, 0);
}

static void what_a_call_returns_decides(void **state)
{
    static const struct {
        int rc;
        const char *said; /* by the call */
        int code;
        const char *text;
    } rows[] = {
        { 0, "", 0, "" },
        { 0, "ignored", 0, "ignored" },
        { MUSTER_ETIMEOUT, "why", MUSTER_ETIMEOUT, "why" },
        { MUSTER_ETIMEOUT, "", MUSTER_ETIMEOUT, NULL },
        { 7, "", MUSTER_EINTERNAL, "f() returned 7; expected 0 or an error" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_error error = { .code = 99 };

        (void)snprintf(error.text, sizeof error.text, "%s", rows[i].said);
        assert_int_equal(mu_settle("f()", rows[i].rc, &error), rows[i].code);
        assert_int_equal(error.code, rows[i].code);
        assert_string_equal(error.text, rows[i].text != NULL ? rows[i].text : muster_error_text(rows[i].rc));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_keep_the_numbers_they_were_published_with),
        cmocka_unit_test(every_code_has_a_text_of_its_own),
        cmocka_unit_test(numbers_that_are_no_codes_say_so),
        cmocka_unit_test(rendezvous_codes_are_told_from_the_others),
        cmocka_unit_test(failing_sets_code_and_text_and_returns_the_code),
        cmocka_unit_test(wrapping_puts_the_outer_step_in_front_and_keeps_the_code),
        cmocka_unit_test(nobody_has_to_listen),
        cmocka_unit_test(a_text_that_is_too_long_is_cut_at_its_end),
        cmocka_unit_test(the_cut_is_right_at_the_last_byte),
        cmocka_unit_test(errno_values_get_a_code_and_their_own_words),
        cmocka_unit_test(an_errno_value_stays_until_the_next_failure),
        cmocka_unit_test(what_a_call_returns_decides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
