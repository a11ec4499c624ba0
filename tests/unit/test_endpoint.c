/* Endpoints and option strings, by PyTorch's rules: each row of its behaviour. */
#include "handler/handler.h"
#include "pure.h"

#include <stdio.h>

static void parses_as(const char *endpoint, const char *host_expected, int port_expected)
{
    char host[MU_RDZV_HOST_MAX];
    int port = -7;

    if (mu_rdzv_endpoint_parse(endpoint, 29400, host, &port, NULL) < 0)
        fail_msg("'%s' was refused", endpoint);
    assert_string_equal(host, host_expected);
    assert_int_equal(port, port_expected);
}

static void is_refused(const char *endpoint, const char *reason)
{
    char host[MU_RDZV_HOST_MAX] = "untouched";
    struct muster_error error = { 0 };
    int port = -7;

    if (mu_rdzv_endpoint_parse(endpoint, 29400, host, &port, &error) != MUSTER_EINVAL)
        fail_msg("'%s' was taken", endpoint);
    if (strstr(error.text, reason) == NULL || strstr(error.text, endpoint) == NULL)
        fail_msg("'%s' was refused with: %s", endpoint, error.text);
    assert_string_equal(host, "untouched");
    assert_int_equal(port, -7);
}

static void a_missing_endpoint_is_localhost(void **state)
{
    (void)state;
    parses_as(NULL, "localhost", 29400);
    parses_as("", "localhost", 29400);
    parses_as(" ", "localhost", 29400);
    parses_as(" \t\r\n\v\f ", "localhost", 29400);
}

static void a_host_alone_gets_the_default_port(void **state)
{
    char host[MU_RDZV_HOST_MAX];
    int port;

    (void)state;
    parses_as("host", "host", 29400);
    parses_as("10.0.0.1", "10.0.0.1", 29400);
    parses_as("some-node_7.example.org", "some-node_7.example.org", 29400);
    assert_int_equal(mu_rdzv_endpoint_parse("host", -1, host, &port, NULL), 0);
    assert_int_equal(port, -1);
}

static void ports_from_0_to_65535_are_taken(void **state)
{
    (void)state;
    parses_as("host:0", "host", 0);
    parses_as("host:1", "host", 1);
    parses_as("host:65535", "host", 65535);
}

static void a_port_may_have_zeros_in_front(void **state)
{
    (void)state;
    parses_as("xxxxx:08080", "xxxxx", 8080);
    parses_as("h:00000", "h", 0);
}

static void a_bad_port_is_a_port_error(void **state)
{
    static const char *const rows[] = { "host:65536", "host:123456", "host:",        "host: 1", ":",
                                        "::",         "host:000001", "host:-1",      "host:+1", "host:1a",
                                        "host:0x1",   "host:99999",  "host:\xd9\xa1" };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        is_refused(rows[i], "the port must be");
}

static void brackets_around_a_whole_address_are_taken_away(void **state)
{
    (void)state;
    parses_as("[::1]", "::1", 29400);
    parses_as("[2001:db8::7]", "2001:db8::7", 29400);
    parses_as("[host]", "host", 29400);
}

static void brackets_before_a_port_are_taken_away(void **state)
{
    (void)state;
    parses_as("[::1]:29", "::1", 29);
    parses_as("[host]:29", "host", 29);
}

static void a_bare_address_of_version_6_loses_its_last_part(void **state)
{
    (void)state;
    parses_as("::1", ":", 1);
    parses_as("::1:29", "::1", 29);
    parses_as("a:b:3", "a:b", 3);
}

static void a_bad_host_is_a_host_error(void **state)
{
    static const char *const rows[] = { "[::1",  "[]",        "[]:1", ":1",    "a/b:1",  "[a]b:1", "a b",
                                        "a b:1", "tcp://h:1", "h!x",  "[[h]]", "[h]]:1", "h\x01",  "h\x7f",
                                        "h,i:1", "[",         "]",    "[:1",   "h?",     "h%eth0" };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        is_refused(rows[i], "the host must be");
}

static void the_port_is_judged_before_the_host(void **state)
{
    (void)state;
    is_refused("a/b:99999", "the port must be");
    is_refused("[]:x", "the port must be");
}

static void blanks_around_an_endpoint_do_not_count(void **state)
{
    (void)state;
    parses_as("host:1\n", "host", 1);
    parses_as("  host  ", "host", 29400);
    parses_as("\t[::1]:29\r\n", "::1", 29);
}

static void letters_of_any_script_make_a_host(void **state)
{
    (void)state;
    parses_as("b\xc3\xbc"
              "cher.example:1",
              "b\xc3\xbc"
              "cher.example",
              1);
    parses_as("\xd0\xbf\xd1\x80\xd0\xb8\xd0\xbc\xd0\xb5\xd1\x80:80", "\xd0\xbf\xd1\x80\xd0\xb8\xd0\xbc\xd0\xb5\xd1\x80",
              80);
    parses_as("\xe4\xbe\x8b\xe5\xad\x90", "\xe4\xbe\x8b\xe5\xad\x90", 29400);
    parses_as("\xf0\xa0\x80\x80", "\xf0\xa0\x80\x80", 29400); /* U+20000 */
}

static void spaces_and_controls_beyond_ascii_make_no_host(void **state)
{
    static const char *const rows[] = { "h\xc2\x80",     "h\xc2\xa0",         "h\xe1\x9a\x80", "h\xe2\x80\x82",
                                        "h\xe2\x80\xa8", "h\xe3\x80\x80",     "h\xef\xbb\xbf", "h\xef\xbf\xbf",
                                        "h\xe2\x80\xae", "h\xf4\x8f\xbf\xbf", "h\xc3\x97" };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        is_refused(rows[i], "the host must be");
}

static void what_is_not_utf_8_makes_no_host(void **state)
{
    static const char *const rows[] = {
        "\x80",
        "h\xff",
        "h\xc3",
        "h\xc3(",
        "h\xc0\xaf",
        "h\xe0\x80\xaf",
        "h\xf0\x80\x80\xaf",
        "h\xed\xa0\x80",
        "h\xe4\xbe",
        "h\xf0\x9f\x98",
        "h\xf4\x90\x80\x80",
        "h\xf8\x88\x80\x80\x80",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        is_refused(rows[i], "the host must be");
}

static void an_endpoint_of_any_length_is_bounded(void **state)
{
    static char text[2 * MU_RDZV_HOST_MAX];
    char host[MU_RDZV_HOST_MAX];
    struct muster_error error;
    int port;

    (void)state;
    memset(text, 'h', MU_RDZV_HOST_MAX - 1);
    parses_as(text, text, 29400);
    memset(text, 'h', MU_RDZV_HOST_MAX);
    assert_int_equal(mu_rdzv_endpoint_parse(text, 1, host, &port, &error), MUSTER_ELIMIT);
    assert_non_null(strstr(error.text, "4096"));
    memset(text, ' ', sizeof text - 1);
    parses_as(text, "localhost", 29400);
}

/* ---- Options ---- */

struct seen {
    char text[256];
    unsigned calls;
    int answer;
};

static int note(void *ctx, struct mu_slice key, struct mu_slice value, struct muster_error *reterr)
{
    struct seen *seen = ctx;
    size_t used = strlen(seen->text);

    (void)reterr;
    seen->calls++;
    if (value.len < 100)
        (void)snprintf(seen->text + used, sizeof seen->text - used, "[%.*s|%.*s]", (int)key.len, key.data,
                       (int)value.len, value.data);
    return seen->answer;
}

static void options_are(const char *options, const char *expected)
{
    struct seen seen = { 0 };

    assert_int_equal(mu_rdzv_options_parse(options, note, &seen, NULL), 0);
    assert_string_equal(seen.text, expected);
}

static void options_are_refused(const char *options, const char *reason)
{
    struct muster_error error = { 0 };
    struct seen seen = { 0 };

    assert_int_equal(mu_rdzv_options_parse(options, note, &seen, &error), MUSTER_EINVAL);
    if (strstr(error.text, reason) == NULL)
        fail_msg("'%s' was refused with: %s", options, error.text);
}

static void no_text_is_no_options(void **state)
{
    (void)state;
    options_are(NULL, "");
    options_are("", "");
    options_are(" \t\n", "");
}

static void options_are_split_at_commas_and_trimmed(void **state)
{
    (void)state;
    options_are("k=v", "[k|v]");
    options_are("a=1,b=2,c=3", "[a|1][b|2][c|3]");
    options_are("  a = 1 ,\tb\t=\t2\n", "[a|1][b|2]");
    options_are("a=x y", "[a|x y]");
}

static void an_option_is_split_at_its_first_equals_sign(void **state)
{
    (void)state;
    options_are("b=x=y", "[b|x=y]");
    options_are("b==", "[b|=]");
}

static void a_repeated_option_comes_again_in_its_order(void **state)
{
    (void)state;
    options_are("a=1,a=2", "[a|1][a|2]");
}

static void an_option_without_a_name_is_a_format_error(void **state)
{
    static const char *const rows[] = { "a=1,", ",,", ",", ",a=1", "=1", " =1", "a=1, ,b=2", "a=1,=", "=" };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        options_are_refused(rows[i], "KEY=VALUE");
}

static void an_option_without_a_value_is_an_error_naming_it(void **state)
{
    (void)state;
    options_are_refused("key", "'key'");
    options_are_refused("key=", "'key'");
    options_are_refused("key= ", "'key'");
    options_are_refused("a=1,key=,b=2", "'key'");
}

static void what_the_callee_returns_ends_the_parsing(void **state)
{
    struct seen seen = { .answer = MUSTER_ELIMIT };

    (void)state;
    assert_int_equal(mu_rdzv_options_parse("a=1,b=2", note, &seen, NULL), MUSTER_ELIMIT);
    assert_int_equal(seen.calls, 1);
}

static void an_option_text_of_any_length_is_bounded(void **state)
{
    static char text[65538 + 2];
    struct seen seen = { 0 };

    (void)state;
    memset(text, 'v', 65536);
    text[1] = '=';
    assert_int_equal(mu_rdzv_options_parse(text, note, &seen, NULL), 0);
    text[65536] = 'v';
    assert_int_equal(mu_rdzv_options_parse(text, note, &seen, NULL), MUSTER_ELIMIT);
}

static void assert_hidden(int rc, const struct muster_error *error, const char *expected)
{
    assert_int_equal(rc, MUSTER_EINVAL);
    assert_null(strstr(error->text, "pw"));
    if (strstr(error->text, expected) == NULL)
        fail_msg("%s", error->text);
}

static void a_secret_is_not_shown(void **state)
{
    static const struct {
        const char *options, *expected;
    } rows[] = {
        { "a=1,password=pw,=2", "options 'a=1,password=***,=2': " },
        { "a=1,password=pw,x", "what follows option 'password' is no option" },
        { "token=pw,pw", "what follows option 'token' is no option" },
        { "password:pw", "option 'password***' has no value" },
        { "token pw", "option 'token***' has no value" },
    };
    char host[MU_RDZV_HOST_MAX];
    struct muster_error error;
    struct seen seen = { 0 };
    int port;

    (void)state;
    assert_hidden(mu_rdzv_endpoint_parse("ann:pw@h:1", 1, host, &port, &error), &error, "endpoint '***@h:1': the host");
    assert_hidden(mu_rdzv_endpoint_parse("http://ann:pw@h", 1, host, &port, &error), &error, "'http://***@h'");
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_hidden(mu_rdzv_options_parse(rows[i].options, note, &seen, &error), &error, rows[i].expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_endpoint_is_localhost),
        cmocka_unit_test(a_host_alone_gets_the_default_port),
        cmocka_unit_test(ports_from_0_to_65535_are_taken),
        cmocka_unit_test(a_port_may_have_zeros_in_front),
        cmocka_unit_test(a_bad_port_is_a_port_error),
        cmocka_unit_test(brackets_around_a_whole_address_are_taken_away),
        cmocka_unit_test(brackets_before_a_port_are_taken_away),
        cmocka_unit_test(a_bare_address_of_version_6_loses_its_last_part),
        cmocka_unit_test(a_bad_host_is_a_host_error),
        cmocka_unit_test(the_port_is_judged_before_the_host),
        cmocka_unit_test(blanks_around_an_endpoint_do_not_count),
        cmocka_unit_test(letters_of_any_script_make_a_host),
        cmocka_unit_test(spaces_and_controls_beyond_ascii_make_no_host),
        cmocka_unit_test(what_is_not_utf_8_makes_no_host),
        cmocka_unit_test(an_endpoint_of_any_length_is_bounded),
        cmocka_unit_test(no_text_is_no_options),
        cmocka_unit_test(options_are_split_at_commas_and_trimmed),
        cmocka_unit_test(an_option_is_split_at_its_first_equals_sign),
        cmocka_unit_test(a_repeated_option_comes_again_in_its_order),
        cmocka_unit_test(an_option_without_a_name_is_a_format_error),
        cmocka_unit_test(an_option_without_a_value_is_an_error_naming_it),
        cmocka_unit_test(what_the_callee_returns_ends_the_parsing),
        cmocka_unit_test(an_option_text_of_any_length_is_bounded),
        cmocka_unit_test(a_secret_is_not_shown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
