/* Getting a connection: which address is tried when, how long it rests in between, and what it says in the end. */
#include "pure.h"
#include "store/dial.h"

#include <stdio.h>

enum { START_MS = 1000, TIMEOUT_MS = 60000 };

struct scene {
    struct mu_dial dial;
    char trace[512];
};

static void start(struct scene *s, const char *host, uint64_t timeout_ms, uint64_t seed)
{
    mu_dial_init(&s->dial, host, 29500, START_MS, timeout_ms, seed);
}

/* What an event brings about: "connect 0, greet 1". */
static const char *step(struct scene *s, struct mu_dial_event event)
{
    static const char *const names[] = { "resolve", "connect", "greet", "give up", "succeed", "fail" };
    struct mu_dial_effects effects;
    size_t used = 0;

    mu_dial_step(&s->dial, &event, &effects);
    s->trace[0] = '\0';
    for (unsigned i = 0; i < effects.count; i++) {
        enum mu_dial_effect_type type = effects.items[i].type;
        bool has_index = type == MU_DIAL_CONNECT || type == MU_DIAL_GREET || type == MU_DIAL_SUCCEED;

        used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, "%s%s", i > 0 ? ", " : "", names[type]);
        if (has_index)
            used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, " %zu", effects.items[i].index);
    }
    return s->trace;
}

static const char *begin(struct scene *s)
{
    return step(s, (struct mu_dial_event){ .type = MU_DIAL_START, .now_ms = START_MS });
}

/* "4" and "6" stand for addresses of their family; their place is their number: 192.0.2.1, 2001:db8::2, ... */
static const char *resolved(struct scene *s, uint64_t now_ms, const char *families)
{
    union mu_addr addrs[32];
    char text[64];
    size_t count = 0;

    for (; families[count] != '\0'; count++) {
        (void)snprintf(text, sizeof text, families[count] == '6' ? "2001:db8::%zx" : "192.0.2.%zu", count + 1);
        assert_true(mu_addr_parse(text, 29500, &addrs[count]));
    }
    return step(s,
                (struct mu_dial_event){ .type = MU_DIAL_RESOLVED, .now_ms = now_ms, .addrs = addrs, .count = count });
}

static const char *unresolved(struct scene *s, uint64_t now_ms)
{
    return step(s, (struct mu_dial_event){ .type = MU_DIAL_UNRESOLVED, .now_ms = now_ms, .why = "no such name" });
}

static const char *happens(struct scene *s, enum mu_dial_event_type type, uint64_t now_ms, size_t index)
{
    return step(s,
                (struct mu_dial_event){ .type = type, .now_ms = now_ms, .index = index, .why = "connection refused" });
}

static const char *passes(struct scene *s, uint64_t now_ms)
{
    return step(s, (struct mu_dial_event){ .type = MU_DIAL_TIME, .now_ms = now_ms });
}

static void assert_state(const struct scene *s, const char *name, uint64_t wakes_ms)
{
    assert_string_equal(mu_dial_state_name(s->dial.state), name);
    assert_true(mu_dial_deadline_ms(&s->dial) == wakes_ms);
}

static void assert_says(const struct scene *s, int code, const char *text)
{
    assert_string_equal(mu_dial_state_name(s->dial.state), "failed");
    assert_int_equal(s->dial.error.code, code);
    assert_string_equal(s->dial.error.text, text);
}

/* ---- One round ---- */

static void the_first_that_connects_and_answers_is_it(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    assert_string_equal(begin(&s), "resolve");
    assert_state(&s, "resolving", START_MS + TIMEOUT_MS);
    assert_string_equal(resolved(&s, 1010, "4"), "connect 0");
    assert_state(&s, "trying", 1010 + MU_DIAL_ATTEMPT_MS);
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1020, 0), "greet 0");
    assert_state(&s, "trying", 1020 + MU_DIAL_ATTEMPT_MS);
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_GREETED, 1030, 0), "succeed 0");
    assert_state(&s, "done", UINT64_MAX);
}

static void families_alternate_beginning_with_the_resolvers_first(void **state)
{
    static const struct {
        const char *families;
        const char *order; /* the last part of each address */
    } rows[] = {
        { "6644", "1 3 2 4" }, { "4466", "1 3 2 4" },    { "4", "1" },
        { "666", "1 2 3" },    { "64444", "1 2 3 4 5" }, { "44446", "1 5 2 3 4" },
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char order[64] = "";

        start(&s, "store", TIMEOUT_MS, 1);
        (void)begin(&s);
        (void)resolved(&s, START_MS, rows[i].families);
        for (size_t a = 0; a < s.dial.addrs_count; a++) {
            const union mu_addr *addr = &s.dial.addrs[a];
            unsigned last = addr->any.sa_family == AF_INET ? ntohl(addr->v4.sin_addr.s_addr) & 0xff
                                                           : addr->v6.sin6_addr.s6_addr[15];

            (void)snprintf(order + strlen(order), sizeof order - strlen(order), "%s%u", a > 0 ? " " : "", last);
        }
        assert_string_equal(order, rows[i].order);
    }
}

static void more_addresses_than_there_is_room_for_are_left_out(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    (void)resolved(&s, START_MS, "44444444444444444444");
    assert_int_equal(s.dial.addrs_count, MU_DIAL_ADDRS_MAX);
}

static void silence_starts_the_next_address_beside_the_first(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    assert_string_equal(resolved(&s, 1000, "646"), "connect 0");
    assert_state(&s, "trying", 1000 + MU_DIAL_OVERLAP_MS);
    assert_string_equal(passes(&s, 1249), "");
    assert_string_equal(passes(&s, 1250), "connect 1");
    assert_state(&s, "trying", 1500);
    assert_string_equal(passes(&s, 1500), "connect 2");
    assert_state(&s, "trying", 1000 + MU_DIAL_ATTEMPT_MS);
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1600, 1), "greet 1");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1601, 0), ""); /* too late: it was given up */
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_FAILED, 1602, 2), "");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_GREETED, 1603, 0), "");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_GREETED, 1604, 1), "succeed 1");
}

static void a_failure_starts_the_next_address_at_once(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "64");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_FAILED, 1001, 0), "connect 1");
    assert_state(&s, "trying", 1001 + MU_DIAL_ATTEMPT_MS);
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1002, 1), "greet 1");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_GREETED, 1003, 1), "succeed 1");
}

/* Connecting is not enough: one that hangs up on the greeting makes room for the next. */
static void a_failed_greeting_goes_on_with_the_next_address(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "64");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1001, 0), "greet 0");
    assert_string_equal(passes(&s, 1300), ""); /* nobody is tried beside one that is being spoken to */
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_FAILED, 1400, 0), "connect 1");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1500, 1), "greet 1");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_GREETED, 1501, 1), "succeed 1");
}

static void one_that_stays_silent_has_failed_after_a_while(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    assert_string_equal(resolved(&s, 1000, "4"), "connect 0");
    assert_string_equal(passes(&s, 1000 + MU_DIAL_ATTEMPT_MS - 1), "");
    assert_string_equal(passes(&s, 1000 + MU_DIAL_ATTEMPT_MS), "give up");
    assert_string_equal(mu_dial_state_name(s.dial.state), "resting");
    assert_string_equal(s.dial.notes[0].text, "192.0.2.1:29500: no answer");
}

static void one_that_is_silent_when_greeted_has_failed_after_a_while(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    assert_string_equal(resolved(&s, 1000, "46"), "connect 0");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1100, 0), "greet 0");
    assert_string_equal(passes(&s, 1100 + MU_DIAL_ATTEMPT_MS - 1), "");
    assert_string_equal(passes(&s, 1100 + MU_DIAL_ATTEMPT_MS), "connect 1");
    assert_string_equal(s.dial.notes[0].text, "192.0.2.1:29500: the port is open, but no store answers");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_GREETED, 12000, 0), ""); /* it had its chance */
    assert_string_equal(happens(&s, MU_DIAL_HOPELESS, 12001, 0), "");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 12002, 1), "greet 1");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_GREETED, 12003, 1), "succeed 1");
}

/* ---- Rounds ---- */

static void when_all_have_failed_it_rests_and_resolves_anew(void **state)
{
    struct scene s;
    uint64_t wakes_ms;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "64");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_FAILED, 1001, 0), "connect 1");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_FAILED, 1002, 1), "give up");
    assert_string_equal(mu_dial_state_name(s.dial.state), "resting");
    wakes_ms = mu_dial_deadline_ms(&s.dial);
    assert_in_range(wakes_ms, 1002 + MU_DIAL_DELAY_MS / 2, 1002 + MU_DIAL_DELAY_MS * 3 / 2);
    assert_string_equal(passes(&s, wakes_ms - 1), "");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, wakes_ms - 1, 0), ""); /* of the round that is over */
    assert_string_equal(passes(&s, wakes_ms), "resolve");
    assert_string_equal(resolved(&s, wakes_ms, "4"), "connect 0"); /* the name may mean something else by now */
    assert_int_equal(s.dial.addrs_count, 1);
}

static void rests_grow_by_half_and_jitter_up_to_a_limit(void **state)
{
    struct scene s;

    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t now = START_MS, base = MU_DIAL_DELAY_MS, least = UINT64_MAX, most = 0;

        start(&s, "store", UINT64_C(1) << 40, seed);
        (void)begin(&s);
        for (int round = 0; round < 40; round++) {
            uint64_t rest;

            assert_string_equal(unresolved(&s, now), "");
            rest = mu_dial_deadline_ms(&s.dial) - now;
            assert_in_range(rest, base / 2, base * 3 / 2 + 1);
            if (round == 39)
                assert_int_equal(base, MU_DIAL_DELAY_MAX_MS);
            least = rest * 1000 / base < least ? rest * 1000 / base : least;
            most = rest * 1000 / base > most ? rest * 1000 / base : most;
            base = base * 3 / 2 < MU_DIAL_DELAY_MAX_MS ? base * 3 / 2 : MU_DIAL_DELAY_MAX_MS;
            now += rest;
            assert_string_equal(passes(&s, now), "resolve");
        }
        assert_true(least < 800 && most > 1200); /* clients that start together do not stay together */
    }
}

static void a_name_without_an_address_is_asked_for_again(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    assert_string_equal(resolved(&s, 1000, ""), "");
    assert_string_equal(mu_dial_state_name(s.dial.state), "resting");
    assert_string_equal(s.dial.notes[0].text, "cannot resolve the name: it has no address");
    assert_string_equal(passes(&s, mu_dial_deadline_ms(&s.dial)), "resolve");
}

/* ---- The end ---- */

static void the_deadline_ends_a_silent_resolver(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", 5000, 1);
    (void)begin(&s);
    assert_string_equal(passes(&s, 5999), "");
    assert_string_equal(passes(&s, 6000), "give up, fail");
    assert_says(
        &s, MUSTER_ECONNECT,
        "cannot connect to store:29500 (1 try in 5.0 s): cannot resolve the name: no answer from the resolver yet");
    assert_true(mu_dial_deadline_ms(&s.dial) == UINT64_MAX);
    assert_string_equal(resolved(&s, 6001, "4"), "");
    assert_string_equal(passes(&s, 7000), "");
    assert_string_equal(begin(&s), "");
}

static void the_deadline_ends_silent_attempts_by_name(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", 5000, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "64");
    (void)passes(&s, 1250);
    assert_state(&s, "trying", 6000);
    assert_string_equal(passes(&s, 6000), "give up, fail");
    assert_says(&s, MUSTER_ECONNECT,
                "cannot connect to store:29500 (1 try in 5.0 s): [2001:db8::1]:29500: no answer; "
                "192.0.2.2:29500: no answer");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 6001, 0), "");
}

static void the_deadline_ends_a_greeting_that_is_not_answered(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "2001:db8::1", 1500, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "6");
    (void)happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1100, 0);
    assert_string_equal(passes(&s, 2500), "give up, fail");
    assert_says(&s, MUSTER_ECONNECT,
                "cannot connect to [2001:db8::1]:29500 (1 try in 1.5 s): the port is open, but no store answers");
}

static void the_deadline_ends_a_rest_and_answers_are_counted(void **state)
{
    struct scene s;
    uint64_t now = START_MS;

    (void)state;
    start(&s, "store", 1000, 7);
    (void)begin(&s);
    for (int round = 0; round < 2; round++) {
        (void)resolved(&s, now, "64");
        (void)happens(&s, MU_DIAL_ATTEMPT_FAILED, now, 0);
        (void)step(&s, (struct mu_dial_event){
                           .type = MU_DIAL_ATTEMPT_FAILED, .now_ms = now, .index = 1, .why = "no route to host" });
        now = mu_dial_deadline_ms(&s.dial);
        assert_string_equal(passes(&s, now), "resolve");
    }
    (void)unresolved(&s, 1999); /* the rest that follows would outlast the deadline */
    assert_state(&s, "resting", 2000);
    assert_string_equal(passes(&s, 2000), "give up, fail");
    assert_says(&s, MUSTER_ECONNECT,
                "cannot connect to store:29500 (3 tries in 1.0 s): [2001:db8::1]:29500: connection refused "
                "(2 times); 192.0.2.2:29500: no route to host (2 times); cannot resolve the name: no such name");
}

static void an_event_after_the_deadline_ends_it_as_well(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", 1000, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "4");
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_FAILED, 2000, 0), "give up, give up, fail");
    assert_says(&s, MUSTER_ECONNECT,
                "cannot connect to store:29500 (1 try in 1.0 s): 192.0.2.1:29500: connection refused");
}

static void an_answer_at_the_last_moment_still_counts(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", 1000, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "4");
    (void)happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1500, 0);
    assert_string_equal(happens(&s, MU_DIAL_ATTEMPT_GREETED, 2000, 0), "succeed 0");
}

static void something_else_that_answers_ends_it_at_once(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "4");
    (void)happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 1100, 0);
    assert_string_equal(step(&s, (struct mu_dial_event){ .type = MU_DIAL_HOPELESS,
                                                         .now_ms = 1250,
                                                         .index = 0,
                                                         .why = "what listens there is not a store" }),
                        "give up, fail");
    assert_says(&s, MUSTER_EPROTOCOL,
                "cannot connect to store:29500 (1 try in 0.2 s): 192.0.2.1:29500: what listens there is not a "
                "store");
}

static void what_no_longer_fits_is_counted(void **state)
{
    struct scene s;
    char why[32];

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "444444444444");
    for (size_t i = 0; i < 12; i++) {
        (void)snprintf(why, sizeof why, "reason %zu", i);
        (void)step(&s,
                   (struct mu_dial_event){ .type = MU_DIAL_ATTEMPT_FAILED, .now_ms = 1000, .index = i, .why = why });
    }
    (void)passes(&s, START_MS + TIMEOUT_MS);
    assert_non_null(strstr(s.dial.error.text, "192.0.2.8:29500: reason 7; and 4 more"));
}

static const char *says_no(struct scene *s, uint64_t now_ms, size_t index)
{
    return step(s, (struct mu_dial_event){ .type = MU_DIAL_ATTEMPT_FAILED,
                                           .now_ms = now_ms,
                                           .index = index,
                                           .why = "connection refused",
                                           .refused = true });
}

static void it_is_refused_when_somebody_said_no_and_nobody_was_silent(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    (void)begin(&s);
    (void)resolved(&s, 1000, "64");
    (void)says_no(&s, 1000, 0);
    assert_false(s.dial.refused);                       /* the round is not over */
    (void)happens(&s, MU_DIAL_ATTEMPT_FAILED, 1001, 1); /* no route, say */
    assert_true(s.dial.refused);
    (void)passes(&s, mu_dial_deadline_ms(&s.dial));
    (void)resolved(&s, 2000, "64");
    (void)says_no(&s, 2000, 0);
    (void)passes(&s, 2000 + MU_DIAL_ATTEMPT_MS);
    assert_string_equal(mu_dial_state_name(s.dial.state), "resting");
    assert_false(s.dial.refused); /* the other one was silent */
    (void)passes(&s, mu_dial_deadline_ms(&s.dial));
    (void)resolved(&s, 20000, "4");
    (void)says_no(&s, 20000, 0);
    assert_true(s.dial.refused);
    (void)passes(&s, mu_dial_deadline_ms(&s.dial));
    (void)unresolved(&s, 21000);
    assert_false(s.dial.refused); /* nobody was asked */
}

static void a_refusal_is_forgotten_when_one_connects_or_the_time_is_up(void **state)
{
    struct scene s;

    (void)state;
    for (int connects = 0; connects < 2; connects++) {
        start(&s, "store", TIMEOUT_MS, 1);
        (void)begin(&s);
        (void)resolved(&s, 1000, "4");
        (void)says_no(&s, 1000, 0);
        (void)passes(&s, mu_dial_deadline_ms(&s.dial));
        (void)resolved(&s, 2000, "4");
        assert_true(s.dial.refused);
        if (connects) {
            (void)happens(&s, MU_DIAL_ATTEMPT_CONNECTED, 2001, 0);
            (void)happens(&s, MU_DIAL_ATTEMPT_GREETED, 2002, 0);
        } else {
            (void)passes(&s, START_MS + TIMEOUT_MS); /* by then it is silent */
        }
        assert_false(s.dial.refused);
    }
}

static void rounds_may_be_limited(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", TIMEOUT_MS, 1);
    s.dial.rounds_max = 1;
    (void)begin(&s);
    (void)resolved(&s, 1000, "64");
    assert_string_equal(says_no(&s, 1000, 0), "connect 1");
    assert_string_equal(says_no(&s, 1000, 1), "give up, give up, fail");
    assert_true(s.dial.refused);
    assert_says(&s, MUSTER_ECONNECT,
                "cannot connect to store:29500 (1 try in 0.0 s): [2001:db8::1]:29500: connection refused; "
                "192.0.2.2:29500: connection refused");
    start(&s, "store", TIMEOUT_MS, 1);
    s.dial.rounds_max = 1;
    (void)begin(&s);
    assert_string_equal(unresolved(&s, 1000), "give up, fail");
    assert_says(&s, MUSTER_ECONNECT,
                "cannot connect to store:29500 (1 try in 0.0 s): cannot resolve the name: no such name");
}

static void an_endless_timeout_does_not_wrap_around(void **state)
{
    struct scene s;

    (void)state;
    start(&s, "store", UINT64_MAX, 1);
    (void)begin(&s);
    assert_string_equal(passes(&s, UINT64_C(1) << 40), "");
    assert_state(&s, "resolving", UINT64_MAX - 1);
}

static void numbers_and_localhost_need_no_resolver(void **state)
{
    static const struct {
        const char *host, *addrs;
    } rows[] = {
        { "192.0.2.7", "192.0.2.7:80" },
        { "2001:db8::1", "[2001:db8::1]:80" },
        { "localhost", "127.0.0.1:80 [::1]:80" },
        { "store.example", "" },
        { "", "" },
        { "192.0.2.256", "" },
    };
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char all[256] = "", text[MU_ADDR_TEXT_MAX];
        size_t count = mu_dial_known(rows[i].host, 80, addrs);

        for (size_t a = 0; a < count; a++)
            (void)snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", a > 0 ? " " : "",
                           mu_addr_format(&addrs[a], text));
        assert_string_equal(all, rows[i].addrs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_that_connects_and_answers_is_it),
        cmocka_unit_test(families_alternate_beginning_with_the_resolvers_first),
        cmocka_unit_test(more_addresses_than_there_is_room_for_are_left_out),
        cmocka_unit_test(silence_starts_the_next_address_beside_the_first),
        cmocka_unit_test(a_failure_starts_the_next_address_at_once),
        cmocka_unit_test(a_failed_greeting_goes_on_with_the_next_address),
        cmocka_unit_test(one_that_stays_silent_has_failed_after_a_while),
        cmocka_unit_test(one_that_is_silent_when_greeted_has_failed_after_a_while),
        cmocka_unit_test(when_all_have_failed_it_rests_and_resolves_anew),
        cmocka_unit_test(rests_grow_by_half_and_jitter_up_to_a_limit),
        cmocka_unit_test(a_name_without_an_address_is_asked_for_again),
        cmocka_unit_test(the_deadline_ends_a_silent_resolver),
        cmocka_unit_test(the_deadline_ends_silent_attempts_by_name),
        cmocka_unit_test(the_deadline_ends_a_greeting_that_is_not_answered),
        cmocka_unit_test(the_deadline_ends_a_rest_and_answers_are_counted),
        cmocka_unit_test(an_event_after_the_deadline_ends_it_as_well),
        cmocka_unit_test(an_answer_at_the_last_moment_still_counts),
        cmocka_unit_test(something_else_that_answers_ends_it_at_once),
        cmocka_unit_test(what_no_longer_fits_is_counted),
        cmocka_unit_test(it_is_refused_when_somebody_said_no_and_nobody_was_silent),
        cmocka_unit_test(a_refusal_is_forgotten_when_one_connects_or_the_time_is_up),
        cmocka_unit_test(rounds_may_be_limited),
        cmocka_unit_test(an_endless_timeout_does_not_wrap_around),
        cmocka_unit_test(numbers_and_localhost_need_no_resolver),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
