/* The server's limits: each holds, costs only the connection that went over it, and is said in the log. */
#include "base/files.h"
#include "failmalloc.h"
#include "serving_uv.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

/* A request's start, then a string or a list of keys too long to write down, then its end. */
static void say_long(struct peer *p, const char *head, size_t len, const char *tail)
{
    struct mu_buf bytes = { 0 };

    wire_put(&bytes, p->dialect, head);
    wire_put_str(&bytes, 'x', len);
    wire_put(&bytes, p->dialect, tail);
    peer_send(p, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
}

static void say_keys(struct peer *p, const char *head, size_t count, const char *item)
{
    struct mu_buf bytes = { 0 };

    wire_put(&bytes, p->dialect, head);
    wire_put_len(&bytes, count);
    for (size_t i = 0; i < count; i++)
        wire_put(&bytes, p->dialect, item);
    peer_send(p, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
}

/* What was logged about this peer. */
static void assert_logged(unsigned port, const char *what)
{
    char from[32];
    const char *line = line_with(what);

    (void)snprintf(from, sizeof from, "127.0.0.1:%u: ", port);
    if (line == NULL || strstr(line, from) == NULL || strstr(line, "warning: store: refused ") != line) {
        lines_show(stderr);
        fail_msg("no line says that '%s' from %s was refused", what, from);
    }
}

/* ---- Sizes of one request ---- */

static void keys_up_to_the_limit_are_taken_and_one_byte_more_is_not(void **state)
{
    static const enum mu_dialect dialects[] = { L0, L1, V };
    struct scene *s = *state;
    struct peer *other = meet(s, V);

    for (size_t i = 0; i < COUNT(dialects); i++) {
        struct peer *p = meet(s, dialects[i]);
        unsigned port = peer_port(p);

        say_long(p, "SET", 8192, "(v)");
        say_long(p, "GET", 8192, "");
        hear(p, "(v)");
        say_long(p, "ADD", 8193, "#1");
        hear_end(p);
        assert_logged(port, "key of 8193 bytes; the limit is 8192");
        lines_collect();
    }
    ask(other, "NUM_KEYS", "#1");
}

static void values_up_to_the_limit_are_taken_and_one_byte_more_is_not(void **state)
{
    static const enum mu_dialect dialects[] = { L0, V };
    struct scene *s = *state;
    struct peer *other;

    serve(s, (struct muster_store_limits){ .value_bytes = MIB }, MU_DIALECT_L);
    other = meet(s, V);
    for (size_t i = 0; i < COUNT(dialects); i++) {
        struct peer *p = meet(s, dialects[i]);
        unsigned port = peer_port(p);

        say_long(p, "COMPARE_SET (/k) ()", MIB, "");
        say_long(p, "COMPARE_SET (/k)", MIB, "(small)");
        peer_try_read(p, (char[8 + MIB]){ 0 }, 8 + MIB);
        hear(p, "(small)");
        say(p, "COMPARE_SET (/k) (small) #1048577 'the rest never comes'");
        hear_end(p);
        assert_logged(port, "COMPARE_SET with a value of 1048577 bytes; the limit is 1048576");
        lines_collect();
        ask(other, "GET (/k) DELETE_KEY (/k)", "(small) #1");
    }
}

static void the_value_limit_is_64_mib_unless_said_otherwise(void **state)
{
    struct scene *s = *state;
    struct peer *p = meet(s, V), *other = meet(s, V);

    say_long(p, "SET (/k)", 64 * MIB, "PING %1");
    hear(p, "%1");
    assert_true(stats(s).bytes >= 64 * MIB && stats(s).bytes < 65 * MIB);
    ask(p, "DELETE_KEY (/k)", "#1");
    say(p, "QUEUE_PUSH (/q) #67108865");
    hear_end(p);
    works_for(other);
    UNTIL(stats(s).bytes == 0);
}

static void appending_past_the_value_limit_is_refused(void **state)
{
    struct scene *s = *state;
    struct peer *p;
    unsigned port;

    serve(s, (struct muster_store_limits){ .value_bytes = 10 }, MU_DIALECT_L);
    p = meet(s, V);
    port = peer_port(p);
    ask(p, "APPEND (/k) (12345) APPEND (/k) (67890) GET (/k)", "(1234567890)");
    say(p, "APPEND (/k) (!)");
    hear_end(p);
    assert_logged(port, "APPEND would make a value of 11 bytes; the limit is 10");
    ask(meet(s, V), "GET (/k)", "(1234567890)");
}

static void lists_up_to_the_limit_are_taken_and_one_key_more_is_not(void **state)
{
    struct scene *s = *state;
    struct peer *p, *other = meet(s, V);
    unsigned port;

    ask(other, "SET (k) (v) CHECK #1 (k)", "00");
    p = meet(s, V);
    port = peer_port(p);
    say_keys(p, "CHECK", 131072, "(k)");
    hear(p, "00");
    say(p, "CHECK #131073 (k)");
    hear_end(p);
    assert_logged(port, "CHECK with 131073 keys; the limit is 131072");
    p = meet(s, L0);
    say_keys(p, "WAIT", 131072, "(k)");
    hear(p, "00");
    say(p, "WAIT #131073");
    hear_end(p);
    p = meet(s, L1);
    say_keys(p, "MULTI_SET", 131072, "(k) (w)");
    ask(p, "GET (k)", "(w)");
    say(p, "MULTI_SET #131073");
    hear_end(p);
    p = meet(s, V);
    say(p, "MULTI_GET #131073");
    hear_end(p);
    ask(other, "GET (k) NUM_KEYS", "(w) #1");
}

static void a_request_as_a_whole_has_a_limit(void **state)
{
    struct scene *s = *state;
    struct peer *p;
    unsigned port;

    serve(s, (struct muster_store_limits){ .value_bytes = 1000, .key_bytes = 100, .request_bytes = 2000 },
          MU_DIALECT_L);
    p = meet(s, V);
    port = peer_port(p);
    say_long(p, "MULTI_SET #2 (/a)", 900, "(/b) (small)");
    ask(p, "GET (/b)", "(small)");
    say_long(p, "MULTI_SET #3 (/a) (1) (/b)", 1000, "(/c) #1000");
    hear_end(p);
    assert_logged(port, "MULTI_SET of more than 2000 bytes");
    ask(meet(s, V), "GET (/b)", "(small)"); /* not a part of it was done */
}

/* ---- Claims ---- */

static const char *const huge[] = { "2147483648",          "3000000000",          "4294967296",
                                    "4611686018427387904", "9223372036854775808", "18446744073709551615" };

static void claims_are_refused_when_they_are_read(struct scene *s, enum mu_dialect dialect, const char *const *starts)
{
    struct peer *other = meet(s, V);
    struct stats before;
    char text[128];

    works_for(other);
    before = stats(s);
    for (; *starts != NULL; starts++) {
        for (size_t i = 0; i < COUNT(huge); i++) {
            struct peer *p = meet(s, dialect);

            (void)snprintf(text, sizeof text, "%s #%s", *starts, huge[i]);
            say(p, text);
            hear_end(p);
            peer_close(p);
            works_for(other);
        }
    }
    assert_as_before(s, before);
    ask(other, "NUM_KEYS", "#0");
}

static void no_length_or_count_is_believed_in_dialect_1_13(void **state)
{
    static const char *const starts[] = {
        "SET",      "SET (/k)", "COMPARE_SET",  "COMPARE_SET (/k)", "COMPARE_SET (/k) (v)", "GET", "ADD", "CHECK",
        "CHECK #1", "WAIT",     "WAIT #2 (/k)", "WATCH_KEY",        "DELETE_KEY",           NULL,
    };

    claims_are_refused_when_they_are_read(*state, L0, starts);
}

static void no_length_or_count_is_believed_in_dialect_2_1(void **state)
{
    static const char *const starts[] = {
        "SET",          "GET",       "APPEND",       "APPEND (/k)",       "MULTI_GET",
        "MULTI_GET #1", "MULTI_SET", "MULTI_SET #1", "MULTI_SET #1 (/k)", "MULTI_SET #2 (/k) (v)",
        "DELETE_KEY",   NULL,
    };

    serve(*state, (struct muster_store_limits){ 0 }, L1);
    claims_are_refused_when_they_are_read(*state, L1, starts);
}

static void no_length_or_count_is_believed_in_the_newest_dialect(void **state)
{
    static const char *const starts[] = {
        "SET",
        "SET (/k)",
        "COMPARE_SET",
        "COMPARE_SET (/k)",
        "COMPARE_SET (/k) (v)",
        "GET",
        "ADD",
        "CHECK",
        "CHECK #1",
        "WAIT",
        "WAIT #2 (/k)",
        "DELETE_KEY",
        "APPEND",
        "APPEND (/k)",
        "MULTI_GET",
        "MULTI_GET #1",
        "MULTI_SET",
        "MULTI_SET #1",
        "MULTI_SET #1 (/k)",
        "QUEUE_PUSH",
        "QUEUE_PUSH (/k)",
        "QUEUE_POP",
        "QUEUE_LEN",
        "BARRIER",
        NULL,
    };

    claims_are_refused_when_they_are_read(*state, V, starts);
}

/* Within the limits, but the bytes never come: what is kept is what has come. */
static void a_claim_alone_costs_nothing(void **state)
{
    struct scene *s = *state;
    struct peer *peers[100], *other = meet(s, V);
    struct stats before;

    serve(s, (struct muster_store_limits){ .value_bytes = MU_VALUE_BYTES_MAX }, MU_DIALECT_L);
    other = meet(s, V);
    works_for(other);
    before = stats(s);
    for (size_t i = 0; i < COUNT(peers); i++) {
        peers[i] = meet(s, i % 2 == 0 ? V : L0);
        say(peers[i], "SET (/k) #1073741824 'and then silence'");
        works_for(other);
    }
    UNTIL(stats(s).connections == 1 + COUNT(peers));
    works_for(other);
    assert_true(stats(s).bytes < COUNT(peers) * 256);
    assert_true(stats(s).bytes > COUNT(peers) * 16);
    for (size_t i = 0; i < COUNT(peers); i++)
        peer_close(peers[i]);
    assert_as_before(s, before);
    assert_int_equal(lines_count(), 0); /* hanging up is nobody's fault */
}

/* ---- Replies that are not read ---- */

static void have_small_windows(struct peer *p)
{
    int bytes = 4096;

    assert_int_equal(setsockopt(p->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
}

static void a_client_that_never_reads_is_dropped_at_the_limit(void **state)
{
    struct scene *s = *state;
    struct peer *greedy, *other;
    struct stats before;
    size_t most = 0;
    unsigned port;

    serve(s, (struct muster_store_limits){ .unsent_bytes = 4 * MIB }, MU_DIALECT_L);
    other = meet(s, V);
    say_long(other, "SET (/k)", 300000, "PING %1");
    hear(other, "%1");
    before = stats(s);
    greedy = meet(s, V);
    have_small_windows(greedy);
    port = peer_port(greedy);
    for (unsigned i = 0; stats(s).refused == 0; i++) {
        assert_true(i < 1000);
        (void)peer_try_send(greedy, wire(V, "GET (/k)"));
        works_for(other); /* nobody else notices */
        most = stats(s).bytes > most ? stats(s).bytes : most;
    }
    assert_true(most > before.bytes + MIB);                   /* it was given its chance */
    assert_true(most <= before.bytes + 2 * (4 * MIB) + 1024); /* buffers double as they grow */
    assert_as_before(s, before);
    assert_logged(port, "it does not read its replies");
    assert_logged(port, "the limit is 4194304");
}

static void one_segment_of_requests_cannot_pile_up_replies_past_the_limit(void **state)
{
    struct scene *s = *state;
    struct peer *greedy, *other;
    struct stats before;
    struct mu_buf bytes = { 0 };

    serve(s, (struct muster_store_limits){ .unsent_bytes = 4 * MIB }, MU_DIALECT_L);
    other = meet(s, V);
    say_long(other, "SET (/k)", MIB, "PING %1");
    hear(other, "%1");
    before = stats(s);
    greedy = meet(s, L0);
    for (unsigned i = 0; i < 5000; i++) /* 5 GB are asked for at once */
        wire_put(&bytes, L0, "GET (/k)");
    (void)peer_try_send(greedy, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
    UNTIL(stats(s).refused == 1);
    assert_true(stats(s).requests < before.requests + 100);
    assert_as_before(s, before);
    works_for(other);
}

static void a_reply_larger_than_the_limit_is_fine_for_whoever_reads(void **state)
{
    struct scene *s = *state;
    struct peer *p;
    static char bytes[8 + 60000];

    serve(s, (struct muster_store_limits){ .unsent_bytes = 1 }, MU_DIALECT_L);
    p = meet(s, V);
    say_long(p, "SET (/k)", 60000, "GET (/k)");
    assert_true(peer_try_read(p, bytes, sizeof bytes)); /* the socket takes it in one go */
    works_for(p);
}

static void a_watcher_that_never_reads_is_dropped_at_the_limit(void **state)
{
    struct scene *s = *state;
    struct peer *watcher, *good, *writer;
    static char notice[1 + 8 + 2 + 8 + 200000 + 8 + 200000];
    unsigned port, writes = 0;

    serve(s, (struct muster_store_limits){ .unsent_bytes = 4 * MIB }, MU_DIALECT_L);
    writer = meet(s, V);
    good = meet(s, L0);
    watcher = peer_new(mu_server_address(s->server), L0);
    have_small_windows(watcher);
    peer_connect(watcher, mu_server_address(s->server));
    port = peer_port(watcher);
    ask(watcher, "WATCH_KEY (/k)", "03");
    ask(good, "WATCH_KEY (/k)", "03");
    while (stats(s).refused == 0) {
        assert_true(++writes < 1000);
        say_long(writer, "SET (/k)", 200000, "PING %1");
        hear(writer, "%1");
        assert_true(peer_try_read(good, notice, sizeof notice - (writes == 1 ? 200000 : 0)));
    }
    UNTIL(stats(s).connections == 2);
    assert_logged(port, "it does not read its replies");
    say_long(writer, "SET (/k)", 200000, "DELETE_KEY (/k)");
    hear(writer, "#1");
    assert_true(peer_try_read(good, notice, sizeof notice));
    assert_int_equal(stats(s).refused, 1);
}

static void unsent_replies_count_towards_the_total(void **state)
{
    struct scene *s = *state;
    struct peer *greedy[8], *other;
    struct stats before;

    serve(s, (struct muster_store_limits){ .unsent_bytes = 64 * MIB, .total_bytes = 10 * MIB, .value_bytes = MIB },
          MU_DIALECT_L);
    other = meet(s, V);
    say_long(other, "SET (/k)", 100000, "PING %1");
    hear(other, "%1");
    before = stats(s);
    for (size_t i = 0; i < COUNT(greedy); i++) {
        greedy[i] = meet(s, V);
        have_small_windows(greedy[i]);
    }
    for (unsigned n = 0; n < 500; n++) {
        for (size_t i = 0; i < COUNT(greedy); i++)
            (void)peer_try_send(greedy[i], wire(V, "GET (/k)"));
        works_for(other);
        assert_true(stats(s).bytes <= 10 * MIB);
    }
    assert_true(stats(s).refused > 0);
    assert_non_null(line_with("unsent bytes: "));
    for (size_t i = 0; i < COUNT(greedy); i++)
        peer_reset(greedy[i]);
    assert_as_before(s, before);
}

/* ---- The total ---- */

/* Writes values of 50,000 bytes until one is refused; returns how many the store took. */
static unsigned fill(struct scene *s, struct peer *writer, unsigned first)
{
    uint64_t refused = stats(s).refused;
    size_t keys = stats(s).keys;
    unsigned taken = 0;
    char text[64];

    for (;;) {
        (void)snprintf(text, sizeof text, "SET (/%u)", first + taken);
        say_long(writer, text, 50000, "");
        UNTIL(stats(s).keys == keys + taken + 1 || stats(s).refused > refused);
        if (stats(s).refused > refused)
            return taken;
        assert_true(++taken < 100);
    }
}

static void one_connection_may_have_a_quarter_and_the_rest_is_for_others(void **state)
{
    struct scene *s = *state;
    struct peer *writer, *other;
    unsigned port;

    serve(s, (struct muster_store_limits){ .total_bytes = 4 * MIB, .value_bytes = MIB }, MU_DIALECT_L);
    other = meet(s, V);
    writer = meet(s, V);
    port = peer_port(writer);
    assert_int_equal(fill(s, writer, 0), MIB / 50500);
    hear_end(writer);
    assert_logged(port, "bytes in the store; the limit for one connection is 1048576, a quarter of all");
    ask(other, "ADD (/n) #1", "#1");
    assert_int_equal(fill(s, other, 1000), MIB / 50500);
}

static void keys_and_values_get_all_of_the_total(void **state)
{
    struct scene *s = *state;
    unsigned taken = 0, next;

    serve(s, (struct muster_store_limits){ .total_bytes = 4 * MIB, .value_bytes = MIB }, MU_DIALECT_L);
    for (next = 0; next < 5; next++)
        taken += fill(s, meet(s, V), next * 1000);
    assert_in_range(taken, 4 * (MIB / 50500), 4 * MIB / 50000);
    assert_in_range(stats(s).bytes, 4 * MIB - 4 * 51000, 4 * MIB);
}

static void when_the_store_is_full_only_the_writer_is_closed_and_deleting_makes_room(void **state)
{
    struct scene *s = *state;
    struct peer *reader, *writer;
    unsigned taken[5], port = 0;
    char text[64];

    serve(s, (struct muster_store_limits){ .total_bytes = 4 * MIB, .value_bytes = MIB }, MU_DIALECT_L);
    reader = meet(s, V);
    for (unsigned i = 0; i < COUNT(taken); i++) {
        writer = meet(s, V);
        port = peer_port(writer);
        taken[i] = fill(s, writer, i * 1000);
        hear_end(writer);
    }
    assert_logged(port, "4194304 bytes are in use");
    works_for(reader);
    writer = meet(s, V);
    for (unsigned i = 0; i < COUNT(taken); i++) {
        for (unsigned k = 0; k < taken[i]; k++) {
            (void)snprintf(text, sizeof text, "DELETE_KEY (/%u)", i * 1000 + k);
            ask(writer, text, "#1");
        }
    }
    assert_int_equal(stats(s).bytes, 0);
    assert_int_equal(fill(s, writer, 0), taken[0]);
}

static void everything_that_can_be_piled_up_meets_the_total(void **state)
{
    static const struct {
        enum mu_dialect dialect;
        const char *request, *reply; /* reply: what each of them answers */
    } piles[] = {
        { V, "SET (/%u) (some value)", "" },
        { V, "ADD (/%u) #1", "#1" },
        { V, "COMPARE_SET (/%u) () (v)", "(v)" },
        { V, "APPEND (/k) (%u and some more text that makes it long)", "" },
        { V, "MULTI_SET #2 (/%u) (v) (/%ub) (v)", "" },
        { V, "QUEUE_PUSH (/q) (%u)", "" },
        { V, "BARRIER (/%u) #1", "00" },
        { L0, "WATCH_KEY (/k)", "03" },
        { L1, "APPEND (/%u) (v)", "" },
        { V, "WAIT #2 (/long key that nobody ever sets, however long one waits) (/%u) SET (/%ux) (v)", "" },
    };
    struct scene *s = *state;
    char text[128];

    for (size_t i = 0; i < COUNT(piles); i++) {
        struct peer *other, *p;

        serve(s, (struct muster_store_limits){ .total_bytes = 100000, .value_bytes = 50000 },
              piles[i].dialect == L0 ? L0 : L1);
        other = meet(s, V);
        p = meet(s, piles[i].dialect);
        for (unsigned n = 0; stats(s).refused == 0; n++) {
            assert_true(n < 100000);
            (void)snprintf(text, sizeof text, piles[i].request, n, n);
            (void)peer_try_send(p, wire(piles[i].dialect, text));
            works_for(other);
            assert_true(stats(s).bytes <= 100000);
        }
        UNTIL(stats(s).connections == 1);
        works_for(other);
    }
}

static void half_sent_requests_meet_the_total(void **state)
{
    struct scene *s = *state;
    struct peer *other, *peers[64];
    static char bytes[4096];

    serve(s, (struct muster_store_limits){ .total_bytes = 100000, .value_bytes = 50000 }, MU_DIALECT_L);
    other = meet(s, V);
    for (size_t i = 0; i < COUNT(peers); i++) {
        peers[i] = meet(s, V);
        say(peers[i], "SET (/k) #50000");
        peer_send(peers[i], mu_slice(bytes, sizeof bytes));
        works_for(other);
        assert_true(stats(s).bytes <= 100000);
    }
    assert_true(stats(s).refused > 0);
    assert_non_null(line_with("no room for a request that is still being sent"));
    for (size_t i = 0; i < COUNT(peers); i++)
        peer_close(peers[i]);
    UNTIL(stats(s).bytes == 0);
    works_for(other);
}

/* ---- Connections ---- */

static void connections_past_the_limit_are_turned_away(void **state)
{
    struct scene *s = *state;
    struct peer *peers[10], *late;
    unsigned port;

    serve(s, (struct muster_store_limits){ .connections = COUNT(peers) }, MU_DIALECT_L);
    for (size_t i = 0; i < COUNT(peers); i++) {
        peers[i] = meet(s, i % 2 == 0 ? V : L0);
        works_for(peers[i]);
    }
    late = meet(s, L0);
    port = peer_port(late);
    hear_end(late);
    assert_logged(port, "10 connections are open, which is the limit");
    for (size_t i = 0; i < COUNT(peers); i++)
        works_for(peers[i]);
    peer_close(peers[3]);
    UNTIL(stats(s).connections == COUNT(peers) - 1);
    late = meet(s, V);
    works_for(late);
    assert_int_equal(stats(s).refused, 1);
    assert_int_equal(stats(s).accepted, COUNT(peers) + 1);
}

static void only_allowed_networks_get_in(void **state)
{
    static const char *const elsewhere[] = { "10.0.0.0/8", "fd00::/8", NULL };
    static const char *const here[] = { "10.0.0.0/8", "127.0.0.0/8", NULL };
    struct scene *s = *state;
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1", .allow = elsewhere };
    struct peer *p;
    unsigned port;

    stop_serving(s);
    assert_int_equal(mu_server_start_as(&s->loop, &config, &s->server, NULL), 0);
    p = meet(s, L0);
    port = peer_port(p);
    hear_end(p);
    assert_logged(port, "its address is in none of the allowed networks");
    UNTIL(stats(s).connections == 0);
    assert_int_equal(stats(s).accepted, 0);
    stop_serving(s);
    config.allow = here;
    assert_int_equal(mu_server_start_as(&s->loop, &config, &s->server, NULL), 0);
    works_for(meet(s, V));
}

static void out_of_descriptors_those_who_are_in_stay_and_later_others_get_in(void **state)
{
    struct scene *s = *state;
    struct peer *in = meet(s, V), *out = peer_new(mu_server_address(s->server), L0);
    struct rlimit before, now;
    int lowest;

    works_for(in);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    lowest = dup(out->fd);
    now = before;
    now.rlim_cur = (rlim_t)lowest + 1; /* and everything below is in use */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
    peer_connect(out, mu_server_address(s->server));
    for (unsigned i = 0; i < 100; i++)
        works_for(in);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    (void)close(lowest);
    hear_end(out); /* libuv hangs up on it, without a word to us */
    works_for(in);
    works_for(meet(s, V));
}

/* Lets the servers of this process have so many connections. Returns what is to be released again. */
static size_t leave_room_for(size_t connections)
{
    size_t reserved = mu_files_connections_max() - connections;

    mu_files_reserve(reserved);
    return reserved;
}

static void a_newcomer_takes_the_place_of_one_that_never_asked_for_anything(void **state)
{
    struct scene *s = *state;
    struct peer *mute[10], *worker, *late[5];
    size_t reserved = leave_room_for(1 + COUNT(mute));

    worker = meet(s, V);
    works_for(worker);
    for (size_t i = 0; i < COUNT(mute); i++) {
        mute[i] = meet(s, L0);
        UNTIL(stats(s).connections == 2 + i);
    }
    say(mute[0], "ADD"); /* half of a request is none */
    for (size_t i = 0; i < COUNT(late); i++) {
        late[i] = meet(s, V);
        works_for(late[i]);
        hear_end(mute[i]); /* those that came first go first */
    }
    UNTIL(stats(s).connections == 1 + COUNT(mute));
    assert_non_null(line_with("the limit of open files leaves room for 11 connections"));
    assert_non_null(strstr(line_with("store: closed the connection of 127.0.0.1:"), ", idle for 0 s"));
    works_for(worker);
    mu_files_release(reserved);
    works_for(meet(s, V)); /* and nobody has to go for it */
    UNTIL(stats(s).connections == 2 + COUNT(mute));
}

/* All of these are this process's own, and have asked for something: they stay, and the newcomer goes. */
static void connections_of_the_server_s_own_process_are_never_closed_for_others(void **state)
{
    struct scene *s = *state;
    struct peer *peers[12], *late;
    size_t reserved = leave_room_for(COUNT(peers));

    for (size_t i = 0; i < COUNT(peers); i++) {
        peers[i] = meet(s, V);
        works_for(peers[i]);
    }
    late = meet(s, L0);
    hear_end(late);
    assert_non_null(line_with("the limit of open files is reached"));
    for (size_t i = 0; i < COUNT(peers); i++)
        works_for(peers[i]);
    mu_files_release(reserved);
}

/* ---- Memory that is not there ---- */

struct attempt {
    const char *request, *reply;
    enum mu_dialect dialect;
};

/* Sends all, then says how many of those peers lost their connection. Whoever did not has been answered. */
static unsigned count_lost(struct scene *s, const struct attempt *attempts, size_t count)
{
    struct peer *peers[32];
    unsigned lost = 0;
    char bytes[256];

    assert_true(count <= COUNT(peers));
    for (size_t i = 0; i < count; i++) {
        struct mu_slice request;

        peers[i] = peer_new(mu_server_address(s->server), attempts[i].dialect);
        peer_connect(peers[i], mu_server_address(s->server));
        request = wire(attempts[i].dialect, attempts[i].request);
        /* In two pieces, so that the first is kept by the server. */
        (void)peer_try_send(peers[i], mu_slice(request.data, request.len - 1));
        scene_turn(s, -1, 0, 0);
        (void)peer_try_send(peers[i], mu_slice(request.data + request.len - 1, 1));
        scene_turn(s, -1, 0, 0);
    }
    for (size_t i = 0; i < count; i++) {
        struct mu_slice reply = wire(attempts[i].dialect, attempts[i].reply);

        if (!peer_try_read(peers[i], bytes, reply.len))
            lost++;
        else
            assert_string_equal(wire_hex(mu_slice(bytes, reply.len)), wire_hex(reply));
    }
    return lost;
}

static void an_allocation_that_fails_costs_at_most_its_own_connection(void **state)
{
    static const struct attempt attempts[] = {
        { "WATCH_KEY (/k)", "03", L0 },
        { "VALIDATE CE F7 85 3C WAIT #3 (/a) (/b) (/c) PING %1", "%1", V },
        { "VALIDATE CE F7 85 3C BARRIER (/barrier) #2 PING %1", "%1", V },
        { "VALIDATE CE F7 85 3C SET (/set) (some value) PING %1", "%1", V },
        { "ADD (/add) #5", "#5", L0 },
        { "COMPARE_SET (/cas) () (new)", "(new)", L0 },
        { "VALIDATE CE F7 85 3C APPEND (/append) (a) APPEND (/append) (b) PING %1", "%1", V },
        { "VALIDATE CE F7 85 3C MULTI_SET #2 (/m) (1) (/n) (2) PING %1", "%1", V },
        { "VALIDATE CE F7 85 3C QUEUE_PUSH (/q) (item) PING %1", "%1", V },
        { "VALIDATE CE F7 85 3C QUEUE_PUSH (/q2) (item) QUEUE_POP (/q2)", "#1 (item)", V },
        { "VALIDATE CE F7 85 3C ADD (/n2) #1 DELETE_KEY (/n2)", "#1 #1", V },
        { "VALIDATE CE F7 85 3C PING %9 MULTI_GET #2 (/none) (/nil)", "%9 () ()", V },
    };
    struct scene *s = *state;
    unsigned long nth;
    bool hit = true;

    for (nth = 1; hit; nth++) {
        struct peer *old;

        serve(s, (struct muster_store_limits){ 0 }, MU_DIALECT_L);
        old = meet(s, V);
        works_for(old);
        fail_alloc_at(nth);
        assert_in_range(count_lost(s, attempts, COUNT(attempts)), 0, 1);
        hit = fail_alloc_hit();
        fail_alloc_at(0);
        works_for(old);
        ask(meet(s, V), "ADD (/afterwards) #1", "#1"); /* and newcomers are let in */
        peers_close();
        UNTIL(stats(s).connections == 0);
    }
    assert_true(nth > 30);
}

static void a_newcomer_there_is_no_memory_for_does_not_bar_the_door(void **state)
{
    struct scene *s = *state;
    struct peer *old = meet(s, V), *unlucky, *next;

    works_for(old);
    unlucky = meet(s, L0);
    next = meet(s, V);
    fail_alloc_at(1);
    UNTIL(fail_alloc_hit());
    fail_alloc_at(0);
    hear_end(unlucky);
    works_for(old);
    works_for(next);
    works_for(meet(s, V));
    assert_int_equal(stats(s).refused, 1);
    assert_non_null(line_with("cannot take a connection: out of memory"));
}

static void fail_the_next_as_well(void *ctx, enum muster_log_level level, const char *line)
{
    unsigned *times = ctx;

    (void)level;
    (void)line;
    fail_alloc_at((*times)++ == 0 ? 1 : 0);
}

static void a_second_newcomer_without_memory_waits_for_the_first_to_be_gone(void **state)
{
    struct scene *s = *state;
    struct peer *first = meet(s, L0), *second = meet(s, V), *third = meet(s, V);
    unsigned times = 0;

    muster_log_set_sink(fail_the_next_as_well, &times);
    fail_alloc_at(1);
    hear_end(first);
    assert_int_equal(times, 2);
    works_for(second);
    works_for(third);
    assert_int_equal(stats(s).connections, 2);
}

static void a_server_may_close_while_it_turns_somebody_away(void **state)
{
    struct scene *s = *state;
    struct peer *first = meet(s, L0), *second = meet(s, V);
    unsigned times = 0;

    muster_log_set_sink(fail_the_next_as_well, &times);
    fail_alloc_at(1);
    while (times == 0)
        (void)uv_run(&s->loop, UV_RUN_NOWAIT);
    stop_serving(s);
    assert_int_equal(s->closed, 1);
    hear_end(first);
    hear_end(second);
}

static void replies_there_is_no_memory_for_end_their_connection_only(void **state)
{
    struct scene *s = *state;
    struct peer *other = meet(s, V);
    struct stats before;
    unsigned long nth;
    bool hit = true;

    say_long(other, "SET (/k)", 8 * MIB, "PING %1");
    hear(other, "%1");
    before = stats(s);
    for (nth = 1; hit; nth++) {
        struct peer *slow = meet(s, V);

        have_small_windows(slow);
        ask(slow, "PING %1", "%1");
        lines_collect();
        fail_alloc_at(nth);
        say(slow, "GET (/k) GET (/k)"); /* one read, so that the second is queued behind the first */
        works_for(other);
        hit = fail_alloc_hit();
        fail_alloc_at(0);
        if (hit) {
            UNTIL(stats(s).connections == before.connections);
            assert_non_null(line_with("no memory"));
        } else {
            assert_true(stats(s).bytes > before.bytes + 8 * MIB);
        }
        peer_reset(slow);
        assert_as_before(s, before);
    }
    assert_true(nth > 3);
}

static void a_server_that_there_is_no_memory_for_does_not_start(void **state)
{
    static const char *const allow[] = { "127.0.0.0/8", NULL };
    struct scene *s = *state;
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1", .allow = allow };

    stop_serving(s);
    FOR_EACH_FAILURE (n) {
        struct muster_error error = { 0 };
        int rc = mu_server_start_as(&s->loop, &config, &s->server, &error);

        if (fail_alloc_hit()) {
            assert_int_equal(rc, MUSTER_ENOMEM);
            assert_null(s->server);
        } else {
            assert_int_equal(rc, 0);
            stop_serving(s);
        }
    }
}

static void a_watch_there_is_no_memory_for_is_refused(void **state)
{
    struct scene *s = *state;

    FOR_EACH_FAILURE (n) {
        struct mu_server_watch *watch = NULL;
        int rc = mu_server_watch(s->server, mu_slice_str("/k"), NULL, NULL, &watch, NULL);

        assert_int_equal(rc == 0, !fail_alloc_hit());
        if (rc == 0)
            mu_server_unwatch(s->server, watch);
        else
            assert_null(watch);
        assert_int_equal(stats(s).bytes, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(keys_up_to_the_limit_are_taken_and_one_byte_more_is_not),
        SCENE(values_up_to_the_limit_are_taken_and_one_byte_more_is_not),
        SCENE(the_value_limit_is_64_mib_unless_said_otherwise),
        SCENE(appending_past_the_value_limit_is_refused),
        SCENE(lists_up_to_the_limit_are_taken_and_one_key_more_is_not),
        SCENE(a_request_as_a_whole_has_a_limit),
        SCENE(no_length_or_count_is_believed_in_dialect_1_13),
        SCENE(no_length_or_count_is_believed_in_dialect_2_1),
        SCENE(no_length_or_count_is_believed_in_the_newest_dialect),
        SCENE(a_claim_alone_costs_nothing),
        SCENE(a_client_that_never_reads_is_dropped_at_the_limit),
        SCENE(one_segment_of_requests_cannot_pile_up_replies_past_the_limit),
        SCENE(a_reply_larger_than_the_limit_is_fine_for_whoever_reads),
        SCENE(a_watcher_that_never_reads_is_dropped_at_the_limit),
        SCENE(unsent_replies_count_towards_the_total),
        SCENE(one_connection_may_have_a_quarter_and_the_rest_is_for_others),
        SCENE(keys_and_values_get_all_of_the_total),
        SCENE(when_the_store_is_full_only_the_writer_is_closed_and_deleting_makes_room),
        SCENE(everything_that_can_be_piled_up_meets_the_total),
        SCENE(half_sent_requests_meet_the_total),
        SCENE(connections_past_the_limit_are_turned_away),
        SCENE(only_allowed_networks_get_in),
        SCENE(out_of_descriptors_those_who_are_in_stay_and_later_others_get_in),
        SCENE(a_newcomer_takes_the_place_of_one_that_never_asked_for_anything),
        SCENE(connections_of_the_server_s_own_process_are_never_closed_for_others),
        SCENE(an_allocation_that_fails_costs_at_most_its_own_connection),
        SCENE(a_newcomer_there_is_no_memory_for_does_not_bar_the_door),
        SCENE(a_second_newcomer_without_memory_waits_for_the_first_to_be_gone),
        SCENE(a_server_may_close_while_it_turns_somebody_away),
        SCENE(replies_there_is_no_memory_for_end_their_connection_only),
        SCENE(a_server_that_there_is_no_memory_for_does_not_start),
        SCENE(a_watch_there_is_no_memory_for_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
