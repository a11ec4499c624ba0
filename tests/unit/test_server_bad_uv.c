/* Whatever is said at the port, only that connection suffers: nonsense, halves, strangers, and peers that vanish. */
#include "base/rng.h"
#include "serving_uv.h"

#include <inttypes.h>

/* ---- Nonsense ---- */

static void a_code_that_no_request_has_closes_the_connection(void **state)
{
    static const struct {
        const char *bytes, *reply, *why;
        enum mu_dialect dialect;
    } openings[] = {
        { "0C", "", "opens with byte 0c", L0 },
        { "FF", "", "opens with byte ff", L0 },
        { "80", "", "opens with byte 80", L0 },
        { "'hello there'", "", "opens with byte 68 (text, HTTP perhaps?)", L0 },
        { "CHECK #0 0C", "00", "no request has code 0c", L0 },
        { "CHECK #0 FF", "00", "no request has code ff", L0 },
        { "CANCEL_WAIT 0C", "01", "no request has code 0c in dialect 2.1", L1 },
        { "CANCEL_WAIT 0D 01 00 00 00", "01", "no request has code 0d in dialect 2.1", L1 },
        { "WATCH_KEY (/k) 09", "03", "no request has code 09 in dialect 1.13", L0 },
        { "WATCH_KEY (/k) 0B", "03", "no request has code 0b in dialect 1.13", L0 },
        { "00 CE F7 85 3C 13", "", "no request has code 13 in dialect 2.x", V },
        { "00 CE F7 85 3C FF", "", "no request has code ff in dialect 2.x", V },
        { "00 CE F7 85 3C PING %7 'G'", "%7", "no request has code 47 in dialect 2.x", V },
        { "00 CE F7 85 3C PING %7 00 CE F7 85 3C", "%7", "a second VALIDATE", V },
    };
    struct scene *s = *state;
    struct peer *other = meet(s, V);
    struct stats before;
    char from[32];

    works_for(other);
    before = stats(s);
    for (size_t i = 0; i < COUNT(openings); i++) {
        struct peer *p = peer_new(mu_server_address(s->server), openings[i].dialect);
        const char *line;

        peer_connect(p, mu_server_address(s->server));
        (void)snprintf(from, sizeof from, "127.0.0.1:%u: ", peer_port(p));
        say(p, openings[i].bytes);
        hear(p, openings[i].reply);
        hear_end(p);
        line = line_with(openings[i].why);
        if (line == NULL || strstr(line, from) == NULL) {
            lines_show(stderr);
            fail_msg("no line says '%s' of %s", openings[i].why, from);
        }
        assert_int_equal(lines_count(), 1);
        lines_collect();
        works_for(other);
    }
    assert_as_before(s, before);
    assert_int_equal(stats(s).refused, COUNT(openings));
}

static void a_client_known_to_be_1_13_has_no_newer_codes(void **state)
{
    struct scene *s = *state;
    struct peer *p;

    serve(s, (struct muster_store_limits){ 0 }, L0);
    for (unsigned char code = 0x09; code <= 0x0b; code++) {
        p = meet(s, L0);
        ask(p, "ADD (/n) #0", "#0");
        peer_send(p, mu_slice(&code, 1));
        hear_end(p);
    }
    serve(s, (struct muster_store_limits){ 0 }, MU_DIALECT_L);
    p = meet(s, L0);
    ask(p, "DELETE_KEY (/n)", "#0"); /* after the grace it is known */
    say(p, "09");
    hear_end(p);
}

static void strangers_are_shown_the_door(void **state)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: store\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n";
    static const unsigned char tls[] = { 0x16, 0x03, 0x01, 0x00, 0xc4, 0x01, 0x00, 0x00, 0xc0, 0x03, 0x03, 0x5a, 0x12 };
    static const char ssh[] = "SSH-2.0-OpenSSH_9.2\r\n";
    static const char redis[] = "*1\r\n$4\r\nPING\r\n";
    const struct {
        struct mu_slice bytes;
        const char *why;
    } strangers[] = {
        { mu_slice(http, sizeof http - 1), "byte 47 (text, HTTP perhaps?)" },
        { mu_slice(tls, sizeof tls), "byte 16 (TLS?)" },
        { mu_slice(ssh, sizeof ssh - 1), "byte 53 (text, HTTP perhaps?)" },
        { mu_slice(redis, sizeof redis - 1), "byte 2a (text, HTTP perhaps?)" },
    };
    struct peer *other = meet(*state, L0);

    for (size_t i = 0; i < COUNT(strangers); i++) {
        struct peer *p = meet(*state, L0);

        peer_send(p, strangers[i].bytes);
        hear_end(p);
        assert_non_null(line_with(strangers[i].why));
        assert_non_null(line_with("not a store client"));
        works_for(other);
    }
}

static void a_lone_magic_of_a_wrong_kind_is_an_old_clients_request(void **state)
{
    struct scene *s = *state;
    struct peer *p = meet(s, L0), *other = meet(s, V);

    peer_send(p, mu_slice("\0\xce\xf7\x85\x3d", 5)); /* a SET with a key of 1 GB and more */
    works_for(other);
    assert_true(peer_hears_nothing(p)); /* its length is not whole yet */
    peer_send(p, mu_slice("\0\0\0\0", 4));
    hear_end(p);
    works_for(other);
}

/* Between well-formed and noise lie bytes that look like requests; a seed makes them the same every time. */
static void random_bytes_do_not_disturb_others(void **state)
{
    static const unsigned char codes[] = "\0\1\2\3\4\5\6\7\x8\x9\xa\xb\xc\xd\xe\xf\x10\x11\x12";
    struct scene *s = *state;
    struct mu_rng rng = mu_rng_seeded(0x5eed);
    struct peer *other;
    struct stats before;

    serve(s, (struct muster_store_limits){ .total_bytes = 1 << 20, .value_bytes = 1 << 16 }, MU_DIALECT_L);
    other = meet(s, V);
    works_for(other);
    before = stats(s);
    for (unsigned n = 0; n < 3000; n++) {
        struct peer *p = meet(s, n % 3 == 0 ? V : L0);
        unsigned char bytes[200];
        size_t len = (size_t)mu_rng_below(&rng, sizeof bytes);

        for (size_t i = 0; i < len; i++) {
            uint64_t kind = mu_rng_below(&rng, 4);

            bytes[i] = kind == 0   ? (unsigned char)mu_rng_next(&rng)
                       : kind == 1 ? codes[mu_rng_below(&rng, sizeof codes - 1)]
                                   : (unsigned char)(mu_rng_below(&rng, 6) == 0);
        }
        (void)peer_try_send(p, mu_slice(bytes, len));
        if (n % 16 == 0)
            works_for(other);
        if (n % 2 == 0)
            peer_close(p);
        else
            peer_reset(p);
        assert_true(stats(s).bytes <= 1 << 20);
    }
    UNTIL(stats(s).connections == before.connections);
    ask(other, "SET (/after) (all that) GET (/after)", "(all that)");
}

/* ---- Halves ---- */

/* Every request of a dialect, with something in every field. */
static const char *const requests_l0[] = {
    "SET (/key) (value)", "COMPARE_SET (/key) (expected) (desired)",
    "GET (/key)",         "ADD (/key) #-3",
    "CHECK #2 (/a) (/b)", "WAIT #2 (/a) (/b)",
    "WATCH_KEY (/key)",   "DELETE_KEY (/key)",
};
static const char *const requests_l1[] = {
    "SET (/key) (value)",
    "COMPARE_SET (/key) (expected) (desired)",
    "GET (/key)",
    "ADD (/key) #-3",
    "CHECK #2 (/a) (/b)",
    "WAIT #2 (/a) (/b)",
    "DELETE_KEY (/key)",
    "APPEND (/key) (value)",
    "MULTI_GET #2 (/a) (/b)",
    "MULTI_SET #2 (/a) (1) (/b) (2)",
};
static const char *const requests_v[] = {
    "SET (/key) (value)",
    "COMPARE_SET (/key) (expected) (desired)",
    "GET (/key)",
    "ADD (/key) #-3",
    "CHECK #2 (/a) (/b)",
    "WAIT #2 (/a) (/b)",
    "DELETE_KEY (/key)",
    "APPEND (/key) (value)",
    "MULTI_GET #2 (/a) (/b)",
    "MULTI_SET #2 (/a) (1) (/b) (2)",
    "PING %4660",
    "QUEUE_PUSH (/key) (value)",
    "QUEUE_POP (/key)",
    "QUEUE_LEN (/key)",
    "BARRIER (/key) #2",
};

/* All cuts of one request at once: each says so much of it, is silent while another works, and hangs up. */
static void cut_everywhere(struct scene *s, struct peer *other, enum mu_dialect dialect, const char *text)
{
    struct stats before = stats(s);
    struct peer *peers[128];
    char whole[128];
    size_t count;
    struct mu_slice bytes;

    (void)snprintf(whole, sizeof whole, "%s %s", dialect == V ? "VALIDATE CE F7 85 3C" : "", text);
    bytes = wire(dialect, whole);
    count = bytes.len - 1;
    assert_true(count <= COUNT(peers));
    for (size_t i = 0; i < count; i++) {
        peers[i] = peer_new(mu_server_address(s->server), dialect);
        peer_connect(peers[i], mu_server_address(s->server));
        bytes = wire(dialect, whole);
        peer_send(peers[i], mu_slice(bytes.data, i + 1));
    }
    UNTIL(stats(s).connections == before.connections + count);
    ask(other, "SET (/other) (works) GET (/other) DELETE_KEY (/other) PING %1", "(works) #1 %1");
    for (size_t i = 0; i < count; i++) {
        assert_true(peer_hears_nothing(peers[i])); /* neither answered nor turned away */
        if (i % 2 == 0)
            peer_close(peers[i]);
        else
            peer_reset(peers[i]);
    }
    assert_as_before(s, before);
    works_for(other);
}

static void a_request_cut_at_any_byte_stalls_nobody_and_leaves_nothing(void **state)
{
    static const struct {
        enum mu_dialect dialect, legacy;
        const char *const *requests;
        size_t count;
    } dialects[] = {
        { L0, MU_DIALECT_L, requests_l0, COUNT(requests_l0) }, { L0, L0, requests_l0, COUNT(requests_l0) },
        { L1, MU_DIALECT_L, requests_l1, COUNT(requests_l1) }, { L1, L1, requests_l1, COUNT(requests_l1) },
        { V, MU_DIALECT_L, requests_v, COUNT(requests_v) },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(dialects); i++) {
        struct peer *other;

        serve(s, (struct muster_store_limits){ 0 }, dialects[i].legacy);
        other = meet(s, V);
        works_for(other);
        for (size_t n = 0; n < dialects[i].count; n++)
            cut_everywhere(s, other, dialects[i].dialect, dialects[i].requests[n]);
        assert_int_equal(stats(s).refused, 0);
    }
}

static void a_half_request_goes_on_where_it_stopped(void **state)
{
    struct peer *half = meet(*state, V), *other = meet(*state, V);

    say(half, "MULTI_SET #2 (/a) (1) (/b) #5 'ab'");
    for (unsigned i = 0; i < 100; i++)
        works_for(other);
    ask(other, "NUM_KEYS", "#0"); /* a MULTI_SET is done when it is whole */
    say(half, "'cde' MULTI_GET #2 (/b) (/a)");
    hear(half, "(abcde) (1)");
}

static void what_came_before_a_bad_request_is_answered(void **state)
{
    struct peer *p = meet(*state, V);

    say(p, "SET (/k) (v) GET (/k) ADD (/k2) #1 FF");
    hear(p, "(v) #1");
    hear_end(p);
    ask(meet(*state, V), "NUM_KEYS", "#2");
}

/* ---- Peers that vanish ---- */

static void a_waiter_that_vanishes_is_forgotten(void **state)
{
    static const char *const waits[] = { "WAIT #1 (/k)", "WAIT #3 (/k) (/l) (/k)", "BARRIER (/b) #99",
                                         "WAIT #2 (/q) (/k) QUEUE_PUSH (/q) (x)" };
    struct scene *s = *state;
    struct peer *other = meet(s, V);

    for (size_t i = 0; i < COUNT(waits); i++) {
        for (unsigned by_reset = 0; by_reset < 2; by_reset++) {
            struct peer *p = meet(s, V);

            say(p, waits[i]);
            works_for(p);
            if (by_reset)
                peer_reset(p);
            else
                peer_close(p);
            UNTIL(stats(s).connections == 1);
            ask(other, "SET (/k) (v) SET (/l) (v) DELETE_KEY (/k) DELETE_KEY (/l)", "#1 #1");
        }
    }
    ask(other, "DELETE_KEY (/b) QUEUE_POP (/q) QUEUE_POP (/q)", "#1 #2 (x) #1 (x)");
    assert_int_equal(stats(s).bytes, 0);
}

static void a_waiter_may_be_dead_when_its_key_comes(void **state)
{
    struct scene *s = *state;
    struct peer *other = meet(s, V);

    for (unsigned n = 0; n < 50; n++) {
        struct peer *closed = meet(s, V), *reset = meet(s, L0), *alive = meet(s, V);

        say(closed, "WAIT #1 (/k)");
        say(reset, "WAIT #1 (/k)");
        say(alive, "WAIT #1 (/k)");
        works_for(closed);
        works_for(alive);
        say(other, "SET (/k) (v) DELETE_KEY (/k) SET (/k) (w) DELETE_KEY (/k)");
        peer_close(closed);
        peer_reset(reset);
        hear(other, "#1 #1");
        hear(alive, "00");
        peer_close(alive);
        UNTIL(stats(s).connections == 1 && stats(s).bytes == 0);
    }
    assert_int_equal(stats(s).refused, 0);
}

static void a_client_that_stops_sending_but_still_reads_gets_its_last_answers(void **state)
{
    struct peer *p = meet(*state, V);

    say(p, "ADD (/n) #1 ADD (/n) #1");
    (void)shutdown(p->fd, SHUT_WR);
    hear(p, "#1 #2");
    hear_end(p);
}

/* ---- The log ---- */

static void refusals_are_logged_but_not_without_end(void **state)
{
    struct scene *s = *state;
    unsigned held_back = 0, announced = 0;
    const char *line;

    for (unsigned i = 0; i < 100; i++) {
        struct peer *p = meet(s, L0);

        say(p, "FF");
        hear_end(p);
        peer_reset(p);
    }
    assert_in_range(lines_with("refused"), 20, 40);
    UNTIL(stats(s).connections == 0);
    held_back = 100 - (unsigned)lines_with("refused 127.0.0.1:");
    /* Time gives lines back; the next one says how many it was silent about. */
    while ((line = line_with("more refusals were not logged")) == NULL) {
        struct peer *p = meet(s, L0);
        size_t lines = lines_count();

        say(p, "FF");
        hear_end(p);
        peer_reset(p);
        held_back += lines_count() == lines;
        assert_true(stats(s).refused < 100000);
    }
    assert_int_equal(sscanf(line, "warning: store: %u more", &announced), 1);
    assert_int_equal(announced, held_back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(a_code_that_no_request_has_closes_the_connection),
        SCENE(a_client_known_to_be_1_13_has_no_newer_codes),
        SCENE(strangers_are_shown_the_door),
        SCENE(a_lone_magic_of_a_wrong_kind_is_an_old_clients_request),
        SCENE(random_bytes_do_not_disturb_others),
        SCENE(a_request_cut_at_any_byte_stalls_nobody_and_leaves_nothing),
        SCENE(a_half_request_goes_on_where_it_stopped),
        SCENE(what_came_before_a_bad_request_is_answered),
        SCENE(a_waiter_that_vanishes_is_forgotten),
        SCENE(a_waiter_may_be_dead_when_its_key_comes),
        SCENE(a_client_that_stops_sending_but_still_reads_gets_its_last_answers),
        SCENE(refusals_are_logged_but_not_without_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
