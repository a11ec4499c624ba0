/* How a client finds out which dialect a server speaks, and which features it has. */
#include "pure.h"
#include "store/greeting.h"
#include "wire.h"

static void greetings_are_told_apart_by_their_answers(void **state)
{
    static const struct {
        enum mu_dialect dialect;
        const char *says, *answer;
        enum mu_greeting_result result;
    } rows[] = {
        { MU_DIALECT_V, "00 CE F7 85 3C 0C 0C 0C 0C", "01 01 01 01", MU_GREETING_YES },
        { MU_DIALECT_V, "00 CE F7 85 3C 0C 0C 0C 0C", "01 01 01", MU_GREETING_MORE },
        { MU_DIALECT_V, "00 CE F7 85 3C 0C 0C 0C 0C", "01 01 01 01 01", MU_GREETING_WRONG },
        { MU_DIALECT_V, "00 CE F7 85 3C 0C 0C 0C 0C", "01 00", MU_GREETING_WRONG },
        { MU_DIALECT_V, "00 CE F7 85 3C 0C 0C 0C 0C", "'HTTP/1.1 400'", MU_GREETING_WRONG },
        { MU_DIALECT_L1, "0B", "01", MU_GREETING_YES },
        { MU_DIALECT_L1, "0B", "00", MU_GREETING_WRONG },
        { MU_DIALECT_L0, "04 00 00 00 00 00 00 00 00", "00", MU_GREETING_YES },
        { MU_DIALECT_L0, "04 00 00 00 00 00 00 00 00", "01", MU_GREETING_WRONG },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_string_equal(wire_hex(mu_greeting(rows[i].dialect)), wire_hex(wire(MU_DIALECT_V, rows[i].says)));
        assert_int_equal(mu_greeting_check(rows[i].dialect, wire(MU_DIALECT_V, rows[i].answer)), rows[i].result);
    }
}

/* A server as it answers each greeting, in order; which greetings it gets, and what comes of it. */
static void an_older_dialect_is_believed_when_the_newest_is_turned_down_twice(void **state)
{
    static const struct {
        enum mu_dialect wanted;
        const char *answers;   /* y: answered, n: closed */
        const char *asked;     /* V, 1, 0 */
        enum mu_dialect found; /* UNKNOWN: given up */
    } rows[] = {
        { MU_DIALECT_UNKNOWN, "y", "V", MU_DIALECT_V },
        { MU_DIALECT_UNKNOWN, "nyny", "V1V1", MU_DIALECT_L1 },
        { MU_DIALECT_UNKNOWN, "nnyny", "V10V0", MU_DIALECT_L0 },
        { MU_DIALECT_UNKNOWN, "nyy", "V1V", MU_DIALECT_V }, /* the first was closed for another reason */
        { MU_DIALECT_UNKNOWN, "nnyy", "V10V", MU_DIALECT_V },
        { MU_DIALECT_UNKNOWN, "nnn", "V10", MU_DIALECT_UNKNOWN },
        { MU_DIALECT_UNKNOWN, "nynn", "V1V1", MU_DIALECT_UNKNOWN },
        { MU_DIALECT_UNKNOWN, "nnynn", "V10V0", MU_DIALECT_UNKNOWN },
        { MU_DIALECT_V, "y", "V", MU_DIALECT_V },
        { MU_DIALECT_V, "n", "V", MU_DIALECT_UNKNOWN },
        { MU_DIALECT_L1, "y", "1", MU_DIALECT_L1 },
        { MU_DIALECT_L0, "y", "0", MU_DIALECT_L0 },
        { MU_DIALECT_L0, "n", "0", MU_DIALECT_UNKNOWN },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_greeter greeter = { .wanted = rows[i].wanted };
        enum mu_dialect ask = rows[i].wanted == MU_DIALECT_UNKNOWN ? MU_DIALECT_V : rows[i].wanted, next = ask;
        char asked[16] = "";
        bool there = false;

        for (size_t at = 0; !there && next != MU_DIALECT_UNKNOWN; at++) {
            assert_true(at < strlen(rows[i].answers));
            ask = next;
            asked[at] = ask == MU_DIALECT_V ? 'V' : ask == MU_DIALECT_L1 ? '1' : '0';
            there = mu_greeter_next(&greeter, ask, rows[i].answers[at] == 'y', &next);
        }
        assert_string_equal(asked, rows[i].asked);
        assert_int_equal(there ? ask : MU_DIALECT_UNKNOWN, rows[i].found);
    }
}

static void probes_ask_for_one_feature_each(void **state)
{
    static const struct {
        unsigned feature;
        const char *says;
        size_t answer_bytes;
    } rows[] = {
        { MU_FEATURE_PING, "00 CE F7 85 3C CANCEL_WAIT PING CE F7 85 3C", 1 + 4 },
        { MU_FEATURE_QUEUES, "00 CE F7 85 3C CANCEL_WAIT QUEUE_LEN (/muster.probe)", 1 + 8 },
        { MU_FEATURE_LIST_KEYS, "00 CE F7 85 3C CANCEL_WAIT LIST_KEYS", 1 + 8 },
    };
    char bytes[MU_FEATURE_PROBE_MAX];
    size_t answer_bytes;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_slice probe = mu_feature_probe(rows[i].feature, bytes, &answer_bytes);

        assert_string_equal(wire_hex(probe), wire_hex(wire(MU_DIALECT_V, rows[i].says)));
        assert_int_equal(answer_bytes, rows[i].answer_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greetings_are_told_apart_by_their_answers),
        cmocka_unit_test(an_older_dialect_is_believed_when_the_newest_is_turned_down_twice),
        cmocka_unit_test(probes_ask_for_one_feature_each),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
