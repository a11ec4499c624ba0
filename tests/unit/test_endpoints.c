/* Which servers there are, and the order in which they are tried. */
#include "kv/endpoints.h"
#include "pure.h"

#include <stdio.h>

/* All of them in one line. */
static const char *parsed(const char *text, const char *protocol)
{
    static char line[MU_ENDPOINTS_MAX * MU_ENDPOINT_TEXT_MAX];
    struct mu_endpoints endpoints;
    struct muster_error error = { 0 };

    if (mu_endpoints_parse(text, protocol, 2379, &endpoints, &error) < 0) {
        (void)snprintf(line, sizeof line, "%s: %s", muster_error_name(error.code), error.text);
        return line;
    }
    line[0] = '\0';
    for (unsigned i = 0; i < endpoints.count; i++) {
        size_t used = strlen(line);

        (void)snprintf(line + used, sizeof line - used, "%s%s", i == 0 ? "" : " ", endpoints.urls[i]);
    }
    return line;
}

static void what_is_not_said_is_filled_in(void **state)
{
    (void)state;
    assert_string_equal(parsed("host", "http"), "http://host:2379");
    assert_string_equal(parsed("10.0.0.1:1", "https"), "https://10.0.0.1:1");
    assert_string_equal(parsed("http://a.b-c_d", "https"), "http://a.b-c_d:2379");
    assert_string_equal(parsed("HTTPS://a:65535/", "http"), "https://a:65535");
    assert_string_equal(parsed("[::1]", "http"), "http://[::1]:2379");
    assert_string_equal(parsed("https://[fe80::1:2]:80", "http"), "https://[fe80::1:2]:80");
}

static void a_list_keeps_its_order(void **state)
{
    (void)state;
    assert_string_equal(parsed("b, a:1 ,https://c", "http"), "http://b:2379 http://a:1 https://c:2379");
}

static void what_is_no_endpoint_is_named(void **state)
{
    static const char *const wrong[] = { "",       " ",       "a,",        ",a",    "a,,b",  "::1",       "a:",
                                         "a:0",    "a:65536", "a:1x",      "a/b",   "a b",   "u@a",       "a?b",
                                         "[::1",   "[]:1",    "[::1]x",    "a:-1",  "a#",    "ftp://a",   "a:000001",
                                         "[a.b]g", "http://", "http:///a", "a:1:2", "[x]:1", "https://,", "\n" };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const char *line = parsed(wrong[i], "http");

        if (strstr(line, "EINVAL: endpoint '") != line)
            fail_msg("'%s' is %s", wrong[i], line);
    }
    assert_string_equal(parsed("a,b c", "http"),
                        "EINVAL: endpoint 'b c' is not [http[s]://]HOST[:PORT] (IPv6 in brackets)");
    assert_string_equal(parsed("http://ann:p,w@h", "http"), /* whose password has a comma in it */
                        "EINVAL: endpoint 'http://***@h' is not [http[s]://]HOST[:PORT] (IPv6 in brackets)");
}

static void there_is_a_limit(void **state)
{
    char text[4 * MU_ENDPOINT_TEXT_MAX] = "";

    (void)state;
    for (int i = 0; i < MU_ENDPOINTS_MAX; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%sa", i == 0 ? "" : ",");
    assert_int_equal(strncmp(parsed(text, "http"), "http://a:2379", 13), 0);
    (void)strcat(text, ",a");
    assert_string_equal(parsed(text, "http"), "ELIMIT: there are more than 32 endpoints");
    memset(text, 'a', MU_ENDPOINT_TEXT_MAX);
    text[MU_ENDPOINT_TEXT_MAX] = '\0';
    assert_int_equal(strncmp(parsed(text, "http"), "ELIMIT", 6), 0);
}

static void each_server_is_tried_once_a_round_beginning_with_the_current(void **state)
{
    struct mu_tries tries = { 0 };
    unsigned endpoint;

    (void)state;
    assert_true(mu_tries_next(&tries, 3, 1, &endpoint));
    assert_int_equal(endpoint, 1);
    assert_true(mu_tries_next(&tries, 3, 2, &endpoint)); /* it was turned away from */
    assert_int_equal(endpoint, 2);
    assert_true(mu_tries_next(&tries, 3, 1, &endpoint)); /* others have come round to it again */
    assert_int_equal(endpoint, 0);
    assert_false(mu_tries_next(&tries, 3, 0, &endpoint));
    assert_int_equal(tries.rounds, 1);
    assert_true(mu_tries_next(&tries, 3, 0, &endpoint));
    assert_int_equal(endpoint, 0);
}

static void pauses_grow_up_to_their_limit(void **state)
{
    struct mu_rng rng = mu_rng_seeded(1);
    struct mu_tries tries = { .rounds = 1 };

    (void)state;
    for (uint64_t expected = 50; tries.rounds < 20; tries.rounds++) {
        uint64_t pause_ms = mu_tries_pause_ms(&tries, 50, 2000, &rng);

        assert_in_range(pause_ms, expected / 2, expected + expected / 2);
        expected = expected * 2 > 2000 ? 2000 : expected * 2;
    }
    tries.rounds = UINT32_MAX;
    assert_in_range(mu_tries_pause_ms(&tries, 50, 2000, &rng), 1000, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_said_is_filled_in),
        cmocka_unit_test(a_list_keeps_its_order),
        cmocka_unit_test(what_is_no_endpoint_is_named),
        cmocka_unit_test(there_is_a_limit),
        cmocka_unit_test(each_server_is_tried_once_a_round_beginning_with_the_current),
        cmocka_unit_test(pauses_grow_up_to_their_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
