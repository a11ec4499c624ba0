/* How a client finds out what a server speaks, and what it lets a server make it hold. */
#include "pure.h"
#include "store/calls.h"

#include <stdlib.h>

/* Plays a server that answers the dialects in `knows`, except that its first `refusals` connections are closed whatever
 * is said. Returns the dialect settled on, UNKNOWN for none, and how many connections it took. */
static enum mu_dialect settle(enum mu_dialect wanted, unsigned knows, unsigned refusals, unsigned *ret_connections)
{
    struct mu_greeter greeter = { .wanted = wanted };
    enum mu_dialect asked = wanted == MU_DIALECT_UNKNOWN ? MU_DIALECT_V : wanted;

    for (*ret_connections = 1; *ret_connections <= 8; ++*ret_connections) {
        bool answers = *ret_connections > refusals && (knows & 1U << asked) != 0;
        enum mu_dialect next;

        if (mu_greeter_next(&greeter, asked, answers, &next))
            return asked;
        if (next == MU_DIALECT_UNKNOWN)
            return MU_DIALECT_UNKNOWN;
        asked = next;
    }
    fail_msg("it never settles");
    return MU_DIALECT_UNKNOWN;
}

#define KNOWS(dialect) (1U << MU_DIALECT_##dialect)

static void greetings_settle_on_what_the_server_speaks(void **state)
{
    static const struct {
        const char *what;
        enum mu_dialect wanted;
        unsigned knows, refusals;
        enum mu_dialect settled;
        unsigned connections;
    } rows[] = {
        { "a new server", MU_DIALECT_UNKNOWN, KNOWS(V), 0, MU_DIALECT_V, 1 },
        { "ours", MU_DIALECT_UNKNOWN, KNOWS(V) | KNOWS(L1) | KNOWS(L0), 0, MU_DIALECT_V, 1 },
        { "ours, one connection refused", MU_DIALECT_UNKNOWN, KNOWS(V) | KNOWS(L1) | KNOWS(L0), 1, MU_DIALECT_V, 3 },
        { "ours, two refused", MU_DIALECT_UNKNOWN, KNOWS(V) | KNOWS(L1) | KNOWS(L0), 2, MU_DIALECT_V, 4 },
        { "2.1", MU_DIALECT_UNKNOWN, KNOWS(L1) | KNOWS(L0), 0, MU_DIALECT_L1, 4 },
        { "1.13", MU_DIALECT_UNKNOWN, KNOWS(L0), 0, MU_DIALECT_L0, 5 },
        { "nobody's", MU_DIALECT_UNKNOWN, 0, 0, MU_DIALECT_UNKNOWN, 3 },
        { "1.13 as told", MU_DIALECT_L0, KNOWS(L0), 0, MU_DIALECT_L0, 1 },
        { "2.1 as told, but it is 1.13", MU_DIALECT_L1, KNOWS(L0), 0, MU_DIALECT_UNKNOWN, 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned connections;
        enum mu_dialect settled = settle(rows[i].wanted, rows[i].knows, rows[i].refusals, &connections);

        if (settled != rows[i].settled || connections != rows[i].connections)
            fail_msg("%s: settled on %s after %u connections", rows[i].what, mu_dialect_name(settled), connections);
    }
}

static void count_done(struct mu_call *call)
{
    ++*(unsigned *)call->ctx;
}

/* A server answers one multi_get with more and more values. The call has been given up, so none of them is kept, but
 * they are counted all the same: past a gibibyte the connection is dropped. */
static void a_server_cannot_send_values_without_end(void **state)
{
    enum { CHUNK = 64 << 20 };
    char *value = calloc(1, 8 + CHUNK);
    struct muster_slice keys[64];
    unsigned done = 0, chunks = 0;
    struct mu_call call = { .kind = MU_CALL_MULTI_GET, .keys = keys, .count = 64, .done = count_done, .ctx = &done };
    struct mu_calls calls;

    (void)state;
    assert_non_null(value);
    for (size_t i = 0; i < 64; i++)
        keys[i] = muster_str("k");
    mu_calls_init(&calls, false);
    mu_calls_opened(&calls, MU_DIALECT_V);
    mu_calls_submit(&calls, &call, 10, 0);
    mu_calls_read(&calls, mu_slice("", 1)); /* the WAIT is over */
    mu_calls_pass_time(&calls, 10);
    assert_ptr_equal(mu_calls_pop_finished(&calls), &call);
    assert_int_equal(call.rc, MUSTER_ETIMEOUT);
    mu_put_u64(value, CHUNK);
    while (calls.lost.code == 0 && chunks < 64) {
        mu_calls_read(&calls, mu_slice(value, 8 + CHUNK));
        chunks++;
    }
    assert_int_equal(calls.lost.code, MUSTER_EPROTOCOL);
    assert_non_null(strstr(calls.lost.text, "more than 1 GiB together"));
    assert_int_equal(chunks, 16);
    mu_calls_done(&calls);
    free(value);
}

static void an_error_names_the_call_its_keys_and_the_peer(void **state)
{
    static const struct muster_slice keys[] = { { "a\nb", 3 }, { "c", 1 }, { "d", 1 } };
    struct mu_call wait = { .kind = MU_CALL_WAIT, .keys = keys, .count = 3, .done = count_done };
    struct mu_call count = { .kind = MU_CALL_NUM_KEYS, .done = count_done };
    struct mu_calls calls;

    (void)state;
    mu_calls_init(&calls, false);
    mu_calls_submit(&calls, &count, 5, 0);
    mu_calls_pass_time(&calls, 5);
    assert_string_equal(count.error.text, "num_keys: timed out before there was a connection after 5 ms");
    mu_calls_name_peer(&calls, "192.0.2.1:29500");
    mu_calls_opened(&calls, MU_DIALECT_V);
    mu_calls_submit(&calls, &wait, 7, 10);
    mu_calls_pass_time(&calls, 17);
    assert_string_equal(wait.error.text, "wait 'a.b' and 2 more at 192.0.2.1:29500: timed out after 7 ms");
    while (mu_calls_pop_finished(&calls) != NULL)
        continue;
    mu_calls_done(&calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greetings_settle_on_what_the_server_speaks),
        cmocka_unit_test(a_server_cannot_send_values_without_end),
        cmocka_unit_test(an_error_names_the_call_its_keys_and_the_peer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
