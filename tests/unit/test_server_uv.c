/* The server over real sockets: what every dialect's client sees, who is woken, and how the server starts and ends. */
#include "failmalloc.h"
#include "serving_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- What clients see ---- */

static void the_exchanges_recorded_from_1_13_repeat_byte_for_byte(void **state)
{
    struct peer *p = meet(*state, L0);

    ask(p, "03 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00", "01 00 00 00 00 00 00 00");
    say(p, "00 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76");
    ask(p, "02 02 00 00 00 00 00 00 00 2F 6B", "01 00 00 00 00 00 00 00 76");
    ask(p, "03 02 00 00 00 00 00 00 00 2F 63 05 00 00 00 00 00 00 00", "05 00 00 00 00 00 00 00");
    ask(p, "03 02 00 00 00 00 00 00 00 2F 63 F9 FF FF FF FF FF FF FF", "FE FF FF FF FF FF FF FF");
    ask(p, "02 02 00 00 00 00 00 00 00 2F 63", "02 00 00 00 00 00 00 00 2D 32");
    ask(p, "01 02 00 00 00 00 00 00 00 2F 71 00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 6E 65 77",
        "03 00 00 00 00 00 00 00 6E 65 77");
    ask(p, "04 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B 03 00 00 00 00 00 00 00 2F 7A 7A", "01");
    ask(p, "04 00 00 00 00 00 00 00 00", "00");
    ask(p, "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "00");
    ask(p, "05 00 00 00 00 00 00 00 00", "00");
    ask(p, "06", "04 00 00 00 00 00 00 00");
    ask(p, "08 02 00 00 00 00 00 00 00 2F 6B", "01 00 00 00 00 00 00 00");
    ask(p, "08 02 00 00 00 00 00 00 00 2F 6B", "00 00 00 00 00 00 00 00");
    ask(meet(*state, L0), "07 03 00 00 00 00 00 00 00 2F 77 6B", "03");
}

static void the_same_flow_runs_in_the_newest_dialect(void **state)
{
    struct peer *p = peer_new(mu_server_address(((struct scene *)*state)->server), V);

    peer_connect(p, mu_server_address(((struct scene *)*state)->server));
    say(p, "00 CE F7 85 3C");
    ask(p, "0D 34 12 00 00", "34 12 00 00");
    ask(p, "04 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00", "01 00 00 00 00 00 00 00");
    say(p, "01 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76");
    ask(p, "02 02 00 00 00 00 00 00 00 2F 6B 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 4E", "(v)");
    ask(p, "03 02 00 00 00 00 00 00 00 2F 6B", "(v)");
    ask(p, "04 02 00 00 00 00 00 00 00 2F 63 F9 FF FF FF FF FF FF FF", "#-7");
    ask(p, "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "00");
    ask(p, "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "00");
    ask(p, "07", "#3");
    say(p, "09 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 77");
    ask(p, "GET (/k)", "(vw)");
    say(p, "0B 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 61 01 00 00 00 00 00 00 00 31 SET (/b) ()");
    ask(p, "0A 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 61 02 00 00 00 00 00 00 00 2F 62",
        "01 00 00 00 00 00 00 00 31 00 00 00 00 00 00 00 00");
    ask(p, "0C", "01");
    say(p, "0E 02 00 00 00 00 00 00 00 2F 71 01 00 00 00 00 00 00 00 78");
    ask(p, "10 02 00 00 00 00 00 00 00 2F 71", "#1");
    ask(p, "0F 02 00 00 00 00 00 00 00 2F 71", "01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 78");
    ask(p, "0F 02 00 00 00 00 00 00 00 2F 71", "00 00 00 00 00 00 00 00");
    ask(p, "08 02 00 00 00 00 00 00 00 2F 6B", "#1");
    ask(p, "08 02 00 00 00 00 00 00 00 2F 61 DELETE_KEY (/b) DELETE_KEY (/c)", "#1 #1 #1");
    ask(p, "11", "01 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 69 6E 69 74 2F");
    ask(p, "12 02 00 00 00 00 00 00 00 2F 62 01 00 00 00 00 00 00 00", "00");
}

static void requests_may_come_one_byte_at_a_time(void **state)
{
    static const struct {
        enum mu_dialect dialect;
        const char *request, *reply;
    } flows[] = {
        { L0, "SET (/k) (some value) GET (/k) ADD (/n) #3 CHECK #2 (/k) (/n) WAIT #1 (/n) NUM_KEYS",
          "(some value) #3 00 00 #2" },
        { L1, "CANCEL_WAIT APPEND (/k) (!) MULTI_SET #2 (/a) (1) (/b) () MULTI_GET #3 (/k) (/a) (/b) DELETE_KEY (/a)",
          "01 (some value!) (1) () #1" },
        { V, "QUEUE_PUSH (/q) (x) QUEUE_LEN (/q) QUEUE_POP (/q) COMPARE_SET (/b) () (new) PING %7 BARRIER (/c) #1",
          "#1 #1 (x) (new) %7 00" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(flows); i++) {
        struct peer *p = peer_new(mu_server_address(s->server), flows[i].dialect);
        struct mu_slice opening = wire(V, flows[i].dialect == V ? "VALIDATE CE F7 85 3C" : "");
        struct mu_slice bytes = wire(flows[i].dialect, flows[i].request);

        peer_connect(p, mu_server_address(s->server));
        for (size_t at = 0; at < opening.len + bytes.len; at++) {
            const char *byte = at < opening.len ? opening.data + at : bytes.data + at - opening.len;

            peer_send(p, mu_slice(byte, 1));
            scene_turn(s, -1, 0, 0);
        }
        hear(p, flows[i].reply);
    }
}

static void many_requests_may_come_in_one_segment(void **state)
{
    struct peer *p = peer_new(mu_server_address(((struct scene *)*state)->server), V);

    peer_connect(p, mu_server_address(((struct scene *)*state)->server));
    ask(p,
        "VALIDATE CE F7 85 3C PING %1 SET (/a) (1) GET (/a) ADD (/n) #1 ADD (/n) #1 CHECK #1 (/x) CANCEL_WAIT "
        "MULTI_SET #2 (/x) (X) (/y) () MULTI_GET #2 (/y) (/x) QUEUE_PUSH (/q) (first) QUEUE_PUSH (/q) () "
        "QUEUE_POP (/q) QUEUE_POP (/q) NUM_KEYS DELETE_KEY (/n) DELETE_KEY (/n) GET (/n) PING %2",
        "%1 (1) #1 #2 01 01 () (X) #2 (first) #1 () #4 #1 #0 () %2");
}

static void clients_of_all_dialects_share_one_port_and_its_keys(void **state)
{
    struct peer *l0 = meet(*state, L0), *l1 = meet(*state, L1), *v = meet(*state, V);

    ask(l0, "ADD (init/) #1", "#1");
    ask(l1, "ADD (init/) #1", "#2");
    ask(v, "ADD (init/) #1", "#3");
    ask(l0, "SET (/l0) (zero) GET (/l0)", "(zero)");
    ask(l1, "SET (/l1) (one) GET (/l0)", "(zero)");
    ask(v, "SET (/v) (two) MULTI_GET #2 (/l0) (/l1)", "(zero) (one)");
    say(l0, "WAIT #1 (/late)");
    say(l1, "WAIT #2 (/late) (/v)");
    say(v, "WAIT #1 (/late)");
    works_for(meet(*state, V));
    assert_true(peer_hears_nothing(l0) && peer_hears_nothing(l1) && peer_hears_nothing(v));
    say(meet(*state, L0), "SET (/late) ()");
    hear(l0, "00");
    hear(l1, "00");
    hear(v, "00");
    ask(l1, "MULTI_GET #2 (/v) (/late)", "(two) ()");
    ask(l0, "NUM_KEYS", "#5");
    ask(l1, "DELETE_KEY (/v)", "#1");
    ask(l0, "DELETE_KEY (/l1)", "#1");
    ask(v, "NUM_KEYS", "#3");
}

static void a_silent_connection_is_kept_and_nothing_is_timed(void **state)
{
    struct scene *s = *state;
    struct peer *said_nothing = meet(s, L0), *half_open = meet(s, L0), *busy = meet(s, V);

    peer_send(half_open, mu_slice("\0", 1)); /* 1.13 sends a SET's code on its own */
    for (unsigned i = 0; i < 1000; i++)
        works_for(busy);
    assert_int_equal(uv_backend_timeout(&s->loop), -1); /* no timer runs: hours are like milliseconds */
    assert_int_equal(stats(s).connections, 3);
    ask(said_nothing, "ADD (/n) #1", "#1");
    peer_send(half_open, mu_slice("\2\0\0\0\0\0\0\0/k\1\0\0\0\0\0\0\0v", 19));
    ask(half_open, "GET (/k)", "(v)");
}

static void dual_stack_is_what_no_address_means(void **state)
{
    struct scene *s = *state;
    struct muster_store_server_config config = { .size = sizeof config };
    union mu_addr v4, v6;
    struct peer *p;

    stop_serving(s);
    assert_int_equal(mu_server_start_as(&s->loop, &config, &s->server, NULL), 0);
    assert_true(mu_addr_parse("127.0.0.1", mu_addr_port(mu_server_address(s->server)), &v4));
    assert_true(mu_addr_parse("::1", mu_addr_port(mu_server_address(s->server)), &v6));
    p = peer_new(&v4, L0);
    peer_connect(p, &v4);
    ask(p, "ADD (/n) #1", "#1");
    if (mu_server_address(s->server)->any.sa_family != AF_INET6)
        return; /* a machine without IPv6 */
    p = peer_new(&v6, L0);
    peer_connect(p, &v6);
    ask(p, "ADD (/n) #1", "#2");
}

static struct peer *peer_at(const char *host, uint16_t port)
{
    union mu_addr addr;
    struct peer *p;

    assert_true(mu_addr_parse(host, port, &addr));
    p = peer_new(&addr, L0);
    peer_connect(p, &addr);
    return p;
}

static bool answers_at(const char *host, uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    union mu_addr addr;
    bool answers;

    assert_true(fd >= 0 && mu_addr_parse(host, port, &addr));
    answers = connect(fd, &addr.any, mu_addr_len(&addr)) == 0;
    (void)close(fd);
    return answers;
}

static void one_table_is_served_on_several_addresses(void **state)
{
    struct scene *s = *state;
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1,127.0.0.3" };
    union mu_addr more;
    struct peer *first, *second, *third;
    uint16_t port;

    stop_serving(s);
    assert_int_equal(mu_server_start_as(&s->loop, &config, &s->server, NULL), 0);
    port = mu_addr_port(mu_server_address(s->server));
    first = peer_at("127.0.0.1", port);
    ask(first, "ADD (/n) #1", "#1");
    second = peer_at("127.0.0.3", port);
    ask(second, "ADD (/n) #1", "#2");
    assert_false(answers_at("127.0.0.4", port));
    assert_true(mu_addr_parse("127.0.0.4", 0, &more));
    assert_int_equal(mu_server_listen_also(s->server, &more, NULL), 0);
    assert_int_equal(mu_server_listen_also(s->server, &more, NULL), 0); /* it does so already */
    third = peer_at("127.0.0.4", port);
    ask(third, "ADD (/n) #1", "#3");
}

static void an_address_whose_port_is_taken_is_not_added(void **state)
{
    struct scene *s = *state;
    uint16_t port = mu_addr_port(mu_server_address(s->server));
    struct muster_error error = { 0 };
    union mu_addr more;
    int fd = -1;

    assert_int_equal(mu_listen_open("127.0.0.4", port, &fd, NULL), 0);
    assert_int_equal(listen(fd, 5), 0);
    assert_true(mu_addr_parse("127.0.0.4", 0, &more));
    assert_int_equal(mu_server_listen_also(s->server, &more, &error), MUSTER_EADDRINUSE);
    assert_non_null(strstr(error.text, "127.0.0.4"));
    ask(peer_at("127.0.0.1", port), "ADD (/n) #1", "#1"); /* it goes on */
    (void)close(fd);
}

static void what_this_machine_sends_to_itself_may_be_allowed_by_that(void **state)
{
    static const char *const elsewhere[] = { "192.0.2.0/24", NULL };
    struct scene *s = *state;
    struct muster_store_server_config config = {
        .size = sizeof config, .host = "127.0.0.1", .allow = elsewhere, .allow_own = true
    };

    stop_serving(s);
    assert_int_equal(mu_server_start_as(&s->loop, &config, &s->server, NULL), 0);
    ask(peer_at("127.0.0.1", mu_addr_port(mu_server_address(s->server))), "ADD (/n) #1", "#1");
}

/* ---- Waiting ---- */

static void every_cancel_is_answered_once_pending_wait_or_not(void **state)
{
    static const enum mu_dialect dialects[] = { L1, V };

    for (size_t i = 0; i < COUNT(dialects); i++) {
        struct peer *p = meet(*state, dialects[i]), *writer = meet(*state, V);

        ask(p, "CANCEL_WAIT", "01");
        ask(p, "CANCEL_WAIT CANCEL_WAIT", "01 01");
        ask(p, "WAIT #1 (/k) CANCEL_WAIT", "01");
        ask(writer, "SET (/k) (v) DELETE_KEY (/k)", "#1");
        ask(p, "NUM_KEYS", "#0"); /* and no stray byte before it */
        say(p, "WAIT #1 (/k)");
        works_for(writer);
        ask(writer, "SET (/k) (v) DELETE_KEY (/k)", "#1"); /* the race: it is written, then cancelled */
        ask(p, "CANCEL_WAIT", "00 01");
    }
}

static void a_barrier_can_be_cancelled_and_stays_counted(void **state)
{
    struct peer *a = meet(*state, V), *b = meet(*state, V);

    ask(a, "BARRIER (/b) #2 CANCEL_WAIT", "01");
    ask(b, "BARRIER (/b) #2", "00");
    ask(a, "GET (/b)", "(2)");
}

static void an_abandoned_wait_of_an_old_client_leaves_no_stray_byte(void **state)
{
    struct peer *p = meet(*state, L0), *writer = meet(*state, V);

    say(p, "WAIT #1 (/k)");
    works_for(writer);
    ask(p, "NUM_KEYS", "#0"); /* its timeout is over: a new request */
    ask(writer, "SET (/k) (v) GET (/k)", "(v)");
    assert_true(peer_hears_nothing(p));
    ask(p, "NUM_KEYS", "#1");
    ask(p, "GET (/k)", "(v)");
}

static void a_key_that_came_and_went_still_counts_for_a_wait(void **state)
{
    struct peer *p = meet(*state, V), *writer = meet(*state, V);

    say(p, "WAIT #2 (/a) (/b)");
    works_for(p);
    ask(writer, "SET (/a) (1) DELETE_KEY (/a)", "#1");
    assert_true(peer_hears_nothing(p));
    ask(writer, "SET (/b) (1) DELETE_KEY (/b)", "#1");
    hear(p, "00");
    works_for(p); /* one byte, no second */
}

static void a_second_wait_replaces_the_first(void **state)
{
    struct peer *p = meet(*state, V), *writer = meet(*state, V);

    say(p, "WAIT #1 (/first) WAIT #1 (/second)");
    works_for(p);
    ask(writer, "SET (/first) () PING %1", "%1");
    assert_true(peer_hears_nothing(p));
    say(writer, "SET (/second) ()");
    hear(p, "00");
}

static void compare_set_wakes_when_it_writes_and_only_then(void **state)
{
    struct peer *waiter = meet(*state, L0), *at_barrier = meet(*state, V), *p = meet(*state, V);

    say(waiter, "WAIT #1 (/k)");
    works_for(p);
    ask(p, "COMPARE_SET (/k) (old) (new)", "(old)"); /* missing, and stays so */
    assert_true(peer_hears_nothing(waiter));
    ask(p, "COMPARE_SET (/k) () (made)", "(made)");
    hear(waiter, "00");
    say(at_barrier, "BARRIER (/b) #2");
    works_for(at_barrier);
    ask(p, "COMPARE_SET (/b) (7) (8)", "(1)");
    assert_true(peer_hears_nothing(at_barrier));
    ask(p, "COMPARE_SET (/b) (1) (2)", "(2)");
    hear(at_barrier, "00");
}

static void each_writing_request_wakes(void **state)
{
    static const char *const writes[] = {
        "SET (/k) ()",         "ADD (/k) #0",    "APPEND (/k) (x)", "MULTI_SET #1 (/k) (x)", "COMPARE_SET (/k) () (x)",
        "QUEUE_PUSH (/k) (x)", "BARRIER (/k) #1"
    };
    struct peer *writer = meet(*state, V);
    char drain[64];

    for (size_t i = 0; i < COUNT(writes); i++) {
        struct peer *waiter = meet(*state, V);

        say(waiter, "WAIT #1 (/k)");
        works_for(waiter);
        say(writer, writes[i]);
        hear(waiter, "00");
        say(writer, "DELETE_KEY (/k) QUEUE_POP (/k)");
        UNTIL(stats(*state).bytes == 0);
        while (peer_read_some(writer, drain, sizeof drain) > 0)
            continue;
    }
}

static void an_item_wakes_one_consumer_and_passes_on_from_one_that_died(void **state)
{
    struct scene *s = *state;
    struct peer *first = meet(s, V), *second = meet(s, V), *writer = meet(s, V);

    say(first, "WAIT #1 (/q)");
    works_for(first);
    say(second, "WAIT #1 (/q)");
    works_for(second);
    say(writer, "QUEUE_PUSH (/q) (item)");
    hear(first, "00");
    assert_true(peer_hears_nothing(second));
    peer_close(first); /* without having taken it */
    hear(second, "00");
    ask(second, "QUEUE_POP (/q)", "#1 (item)");
}

static void a_barrier_lets_all_go_when_the_last_has_come(void **state)
{
    struct peer *peers[8];

    for (size_t i = 0; i < COUNT(peers); i++) {
        peers[i] = meet(*state, V);
        if (i > 0)
            assert_true(peer_hears_nothing(peers[0]));
        say(peers[i], "BARRIER (/b) #8");
        if (i + 1 < COUNT(peers))
            works_for(peers[i]);
    }
    for (size_t i = 0; i < COUNT(peers); i++)
        hear(peers[i], "00");
    ask(peers[0], "GET (/b) BARRIER (/b) #8", "(8) 00");
}

/* ---- A fresh table ---- */

/* What a watch has told last. */
struct watched {
    char value[32];
    unsigned times;
};

static void on_watched(void *ctx, struct mu_slice value)
{
    struct watched *watched = ctx;

    assert_true(value.len < sizeof watched->value);
    memcpy(watched->value, value.data, value.len);
    watched->value[value.len] = '\0';
    watched->times++;
}

static void after_a_renewal_newcomers_find_an_empty_table(void **state)
{
    struct scene *s = *state;
    struct peer *old = meet(s, V), *waiting = meet(s, L0), *fresh = NULL, *late = NULL;

    ask(old, "SET (/k) (old) ADD (/n) #5", "#5");
    say(waiting, "WAIT #1 (/late)");
    works_for(old);
    assert_int_equal(stats(s).keys, 2);
    assert_int_equal(mu_server_renew(s->server, NULL), 0);
    assert_int_equal(stats(s).keys, 0);
    assert_int_equal(stats(s).bytes, 0);
    assert_int_equal(stats(s).connections, 2);

    fresh = meet(s, V);
    ask(fresh, "CHECK #1 (/k) ADD (/n) #1 SET (/k) (fresh) SET (/late) () GET (/k)", "01 #1 (fresh)");
    assert_true(peer_hears_nothing(waiting)); /* another table's key */
    ask(old, "GET (/k) ADD (/n) #1 NUM_KEYS", "(old) #6 #2");
    say(old, "SET (/late) ()");
    hear(waiting, "00");
    late = meet(s, L0);
    ask(late, "GET (/k) NUM_KEYS", "(fresh) #3");
    assert_int_equal(stats(s).keys, 3);
}

static void a_connection_belongs_to_the_table_it_was_accepted_at(void **state)
{
    struct scene *s = *state;
    struct peer *peers[5];
    char request[32], reply[32];

    for (size_t i = 0; i < COUNT(peers); i++) {
        peers[i] = meet(s, i % 2 == 0 ? V : L0);
        (void)snprintf(request, sizeof request, "ADD (/n) #%zu", i);
        (void)snprintf(reply, sizeof reply, "#%zu", i);
        ask(peers[i], request, reply);
        assert_int_equal(mu_server_renew(s->server, NULL), 0);
    }
    for (size_t i = 0; i < COUNT(peers); i++) {
        (void)snprintf(reply, sizeof reply, "(%zu) #1", i);
        ask(peers[i], "GET (/n) NUM_KEYS", reply);
    }
    assert_int_equal(stats(s).keys, 0);
}

static void a_watch_stays_with_its_table(void **state)
{
    struct scene *s = *state;
    struct watched old = { 0 }, fresh = { 0 };
    struct mu_server_watch *old_watch = NULL, *fresh_watch = NULL;
    struct peer *before = meet(s, V), *after = NULL;

    ask(before, "SET (/k) (1) PING %1", "%1");
    assert_int_equal(mu_server_watch(s->server, mu_slice_str("/k"), on_watched, &old, &old_watch, NULL), 0);
    assert_string_equal(old.value, "1");
    assert_int_equal(mu_server_renew(s->server, NULL), 0);
    assert_int_equal(mu_server_watch(s->server, mu_slice_str("/k"), on_watched, &fresh, &fresh_watch, NULL), 0);
    assert_int_equal(fresh.times, 0);
    after = meet(s, V);
    ask(after, "SET (/k) (3) PING %1", "%1");
    assert_string_equal(old.value, "1");
    assert_string_equal(fresh.value, "3");
    ask(before, "SET (/k) (2) PING %1", "%1");
    assert_string_equal(old.value, "2");
    assert_int_equal(fresh.times, 1);
    peer_close(before);
    UNTIL(stats(s).connections == 1);
    mu_server_unwatch(s->server, old_watch); /* the last that held the old table */
    mu_server_unwatch(s->server, fresh_watch);
    ask(after, "GET (/k)", "(3)");
}

/* ---- From within the process ---- */

struct connections {
    struct mu_server *server;
    uint64_t writer, gone;
    unsigned gone_count;
};

static void on_written_by(void *ctx, struct mu_slice value)
{
    struct connections *c = ctx;

    (void)value;
    c->writer = mu_server_writer(c->server);
}

static void on_gone(void *ctx, uint64_t connection)
{
    struct connections *c = ctx;

    c->gone = connection;
    c->gone_count++;
}

static void a_write_from_within_wakes_whoever_waits(void **state)
{
    struct scene *s = *state;
    struct peer *waiting = meet(s, V);
    struct mu_slice key = mu_slice_str("/k"), none = mu_slice_str(""), one = mu_slice_str("1"), two = mu_slice_str("2");

    say(waiting, "WAIT #1 (/k)");
    UNTIL(stats(s).requests >= 2);
    assert_int_equal(mu_server_compare_set(s->server, key, two, one, NULL), 0); /* it does not hold that */
    assert_true(peer_hears_nothing(waiting));
    assert_int_equal(mu_server_compare_set(s->server, key, none, one, NULL), 0);
    hear(waiting, "00");
    assert_int_equal(mu_server_compare_set(s->server, key, none, two, NULL), 0);
    ask(waiting, "GET (/k)", "(1)");
    assert_int_equal(mu_server_compare_set(s->server, key, one, two, NULL), 0);
    ask(waiting, "GET (/k)", "(2)");
}

static void whose_connection_wrote_and_has_gone_is_told(void **state)
{
    struct scene *s = *state;
    struct connections c = { .server = s->server };
    struct peer *first = meet(s, V), *second = meet(s, L0);
    struct mu_server_watch *watch = NULL;
    uint64_t writer;

    mu_server_on_gone(s->server, on_gone, &c);
    assert_int_equal(mu_server_watch(s->server, mu_slice_str("/k"), on_written_by, &c, &watch, NULL), 0);
    ask(first, "SET (/k) (1) PING %1", "%1");
    writer = c.writer;
    assert_int_not_equal(writer, 0);
    ask(second, "SET (/k) (2) CHECK #1 (/k)", "00");
    assert_int_not_equal(c.writer, writer);
    assert_int_equal(mu_server_writer(s->server), 0);
    peer_close(first);
    UNTIL(c.gone_count == 1);
    assert_int_equal(c.gone, writer);
    mu_server_unwatch(s->server, watch);
    mu_server_on_gone(s->server, NULL, NULL);
    peer_close(second);
    UNTIL(stats(s).connections == 0);
    assert_int_equal(c.gone_count, 1);
}

/* What an old table holds goes with its last connection; a sanitizer tells if not. */
static void an_old_table_goes_with_its_last_user(void **state)
{
    struct scene *s = *state;

    for (unsigned i = 0; i < 20; i++) {
        struct peer *p = meet(s, V), *q = meet(s, L0);

        ask(p, "SET (/k) (some value) QUEUE_PUSH (/q) (item) PING %1", "%1");
        say(q, "WAIT #1 (/never)");
        works_for(p);
        assert_int_equal(mu_server_renew(s->server, NULL), 0);
        ask(p, "GET (/k)", "(some value)");
        peer_close(i % 2 == 0 ? p : q);
        peer_close(i % 2 == 0 ? q : p);
        UNTIL(stats(s).connections == 0);
        assert_int_equal(stats(s).bytes, 0);
    }
    assert_int_equal(mu_server_renew(s->server, NULL), 0); /* one that nobody ever used */
    assert_int_equal(mu_server_renew(s->server, NULL), 0);
    meet(s, V); /* and one that is in use when the server ends */
    assert_int_equal(mu_server_renew(s->server, NULL), 0);
}

static void without_memory_the_table_stays(void **state)
{
    struct scene *s = *state;
    struct peer *p = meet(s, V);
    struct muster_error error = { 0 };

    ask(p, "SET (/k) (v) PING %1", "%1");
    fail_alloc_at(1);
    assert_int_equal(mu_server_renew(s->server, &error), MUSTER_ENOMEM);
    fail_alloc_at(0);
    assert_int_equal(error.code, MUSTER_ENOMEM);
    ask(meet(s, V), "GET (/k)", "(v)");
}

static void nobody_from_elsewhere_has_come(void **state)
{
    struct scene *s = *state;
    union mu_addr untouched = { 0 }, addr = { 0 };

    assert_true(mu_addr_parse("192.0.2.1", 7, &addr) && mu_addr_parse("192.0.2.1", 7, &untouched));
    assert_false(mu_server_accepted_on(s->server, &addr));
    works_for(meet(s, V)); /* from this machine */
    assert_false(mu_server_accepted_on(s->server, &addr));
    assert_memory_equal(&addr, &untouched, sizeof addr);
}

/* ---- Who else is there ---- */

static void note_alone(void *ctx)
{
    ++*(unsigned *)ctx;
}

/* A process that connects and stays. */
static pid_t start_stranger(const union mu_addr *addr)
{
    pid_t pid = fork();
    int fd;

    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = socket(addr->any.sa_family, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, &addr->any, mu_addr_len(addr)) == 0)
        (void)pause();
    _exit(1);
}

static void end_stranger(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void connections_of_this_process_leave_the_server_alone(void **state)
{
    struct scene *s = *state;
    unsigned alone = 0;

    works_for(meet(s, V));
    works_for(meet(s, L0));
    mu_server_when_alone(s->server, note_alone, &alone);
    assert_int_equal(alone, 0); /* never from within */
    UNTIL(alone == 1);
    works_for(meet(s, V));
    assert_int_equal(alone, 1);
}

static void a_server_is_alone_when_the_last_of_the_others_has_gone(void **state)
{
    struct scene *s = *state;
    pid_t strangers[] = { start_stranger(mu_server_address(s->server)), start_stranger(mu_server_address(s->server)) };
    unsigned alone = 0;

    UNTIL(stats(s).connections == 2);
    mu_server_when_alone(s->server, note_alone, &alone);
    works_for(meet(s, V));
    assert_int_equal(alone, 0);
    end_stranger(strangers[0]);
    UNTIL(stats(s).connections == 2); /* the other one, and ours */
    works_for(meet(s, V));
    assert_int_equal(alone, 0);
    end_stranger(strangers[1]);
    UNTIL(alone == 1);
}

/* ---- Tables of the semantics ---- */

static void compare_set_answers_as_its_table_says(void **state)
{
    static const enum mu_dialect dialects[] = { L0, L1, V };

    for (size_t i = 0; i < COUNT(dialects); i++) {
        struct peer *p = meet(*state, dialects[i]);

        ask(p, "COMPARE_SET (/k) (x) (y) CHECK #1 (/k)", "(x) 01");
        ask(p, "COMPARE_SET (/k) () (a) GET (/k)", "(a) (a)");
        ask(p, "COMPARE_SET (/k) (a) (b) GET (/k)", "(b) (b)");
        ask(p, "COMPARE_SET (/k) (a) (c) GET (/k)", "(b) (b)");
        ask(p, "COMPARE_SET (/k) () (c) GET (/k)", "(b) (b)");
        ask(p, "SET (/k) () COMPARE_SET (/k) () (d) GET (/k)", "(d) (d)");
        ask(p, "COMPARE_SET (/k) (d) () GET (/k)", "() ()");
        ask(meet(*state, V), "DELETE_KEY (/k)", "#1");
    }
}

static void add_reads_numbers_as_c_does(void **state)
{
    static const struct {
        const char *request, *reply;
    } sums[] = {
        { "ADD (/k) #0 GET (/k)", "#0 (0)" },
        { "SET (/k) (12abc) ADD (/k) #1 GET (/k)", "#13 (13)" },
        { "SET (/k) ( 7) ADD (/k) #1", "#8" },
        { "SET (/k) (+5) ADD (/k) #1", "#6" },
        { "SET (/k) (0x10) ADD (/k) #1", "#1" },
        { "SET (/k) (7.9) ADD (/k) #1", "#8" },
        { "SET (/k) (-3\\00zz) ADD (/k) #1", "#-2" },
        { "SET (/k) (9223372036854775807) ADD (/k) #1 GET (/k)", "#-9223372036854775808 (-9223372036854775808)" },
        { "SET (/k) (-9223372036854775808) ADD (/k) #-1 GET (/k)", "#9223372036854775807 (9223372036854775807)" },
        { "SET (/k) (-1) ADD (/k) #-9223372036854775808", "#9223372036854775807" },
    };

    for (size_t i = 0; i < COUNT(sums); i++)
        ask(meet(*state, i % 2 == 0 ? V : L0), sums[i].request, sums[i].reply);
}

static void add_on_what_is_no_number_closes_and_keeps_the_value(void **state)
{
    static const char *const values[] = {
        "(abc)", "()", "( )", "(-)", "(99999999999999999999)", "(9223372036854775808)", "(-9223372036854775809)"
    };
    struct scene *s = *state;
    struct peer *other = meet(s, V);
    char request[64];

    for (size_t i = 0; i < COUNT(values); i++) {
        struct peer *p = meet(s, i % 2 == 0 ? V : L0);

        (void)snprintf(request, sizeof request, "SET (/k) %s", values[i]);
        say(p, request);
        say(p, "ADD (/k) #1");
        hear_end(p);
        ask(other, "GET (/k)", values[i]);
    }
    assert_int_equal(stats(s).refused, COUNT(values));
    assert_int_equal(lines_with("ADD on a value that is not a number"), COUNT(values));
}

static void a_missing_key_reads_as_empty_in_every_dialect(void **state)
{
    ask(meet(*state, L0), "GET (/none)", "()");
    ask(meet(*state, L1), "GET (/none) MULTI_GET #2 (/none) (/nil)", "() () ()");
    ask(meet(*state, V), "GET (/none) MULTI_GET #0 NUM_KEYS", "() #0");
}

static void any_byte_is_legal_in_keys_and_values(void **state)
{
    ask(meet(*state, L0), "SET () (empty key) GET () SET (\\00) (\\00\\FF\\29) GET (\\00) NUM_KEYS",
        "(empty key) (\\00\\FF\\29) #2");
    ask(meet(*state, V), "GET () DELETE_KEY () LIST_KEYS", "(empty key) #1 #1 (\\00)");
}

/* ---- Watches ---- */

static void a_watcher_hears_of_every_change_of_its_key(void **state)
{
    struct peer *watcher = meet(*state, L0), *p = meet(*state, V);

    ask(watcher, "WATCH_KEY (/wk)", "03");
    say(p, "SET (/wk) (a)");
    hear(watcher, "01 03 00 00 00 00 00 00 00 2F 77 6B 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 61");
    say(p, "SET (/wk) (5)");
    hear(watcher, "00 (/wk) (a) (5)");
    ask(p, "ADD (/wk) #2", "#7");
    hear(watcher, "00 (/wk) (5) (7)");
    ask(p, "COMPARE_SET (/wk) (no) (8)", "(7)");
    ask(p, "COMPARE_SET (/wk) (7) (8)", "(8)");
    hear(watcher, "00 (/wk) (7) (8)");
    ask(p, "DELETE_KEY (/wk) DELETE_KEY (/wk) SET (/other) () PING %1", "#1 #0 %1");
    hear(watcher, "02 (/wk) (8) ()");
    ask(p, "COMPARE_SET (/wk) () (again)", "(again)");
    hear(watcher, "01 (/wk) () (again)");
    works_for(p);
    assert_true(peer_hears_nothing(watcher));
}

static void a_watcher_that_died_does_not_disturb_writers(void **state)
{
    struct scene *s = *state;
    struct peer *closed = meet(s, L0), *reset = meet(s, L0), *alive = meet(s, L0), *p = meet(s, V);

    ask(closed, "WATCH_KEY (/wk)", "03");
    ask(reset, "WATCH_KEY (/wk)", "03");
    ask(alive, "WATCH_KEY (/wk)", "03");
    /* The writes stand before the news of the deaths in what the server reads next, or behind it: it must not
     * matter. */
    say(p, "SET (/wk) (a) SET (/wk) (b)");
    peer_close(closed);
    peer_reset(reset);
    ask(p, "SET (/wk) (c) GET (/wk)", "(c)");
    hear(alive, "01 (/wk) () (a) 00 (/wk) (a) (b) 00 (/wk) (b) (c)");
    UNTIL(stats(s).connections == 2);
    ask(p, "SET (/wk) (d) GET (/wk)", "(d)");
    hear(alive, "00 (/wk) (c) (d)");
}

static struct {
    unsigned calls;
    char value[32];
} seen;

static void see(void *ctx, struct mu_slice value)
{
    assert_ptr_equal(ctx, &seen);
    assert_true(value.len < sizeof seen.value);
    if (value.len > 0)
        memcpy(seen.value, value.data, value.len);
    seen.value[value.len] = '\0';
    seen.calls++;
}

static void the_process_itself_can_watch_a_key(void **state)
{
    struct scene *s = *state;
    struct peer *p = meet(s, V);
    struct mu_server_watch *early, *late;
    size_t bytes;

    seen.calls = 0;
    works_for(p);
    bytes = stats(s).bytes;
    assert_int_equal(mu_server_watch(s->server, mu_slice_str("/k"), see, &seen, &early, NULL), 0);
    assert_int_equal(seen.calls, 0); /* there is no value yet */
    ask(p, "SET (/k) (one) PING %1", "%1");
    assert_int_equal(seen.calls, 1);
    assert_string_equal(seen.value, "one");
    assert_int_equal(mu_server_watch(s->server, mu_slice_str("/k"), see, &seen, &late, NULL), 0);
    assert_int_equal(seen.calls, 2); /* told at once */
    ask(p, "ADD (/other) #1 APPEND (/k) (!) PING %1", "#1 %1");
    assert_int_equal(seen.calls, 4);
    assert_string_equal(seen.value, "one!");
    mu_server_unwatch(s->server, early);
    ask(p, "DELETE_KEY (/k) DELETE_KEY (/other)", "#1 #1");
    assert_int_equal(seen.calls, 5);
    assert_string_equal(seen.value, "");
    mu_server_unwatch(s->server, late);
    ask(p, "SET (/k) (two) DELETE_KEY (/k)", "#1");
    assert_int_equal(seen.calls, 5);
    assert_int_equal(stats(s).bytes, bytes);
}

static void a_watch_that_there_is_no_room_for_is_refused(void **state)
{
    struct scene *s = *state;
    struct mu_server_watch *watch = NULL;
    struct muster_error error = { 0 };

    serve(s, (struct muster_store_limits){ .total_bytes = 16 }, MU_DIALECT_L);
    assert_int_equal(mu_server_watch(s->server, mu_slice_str("/k"), see, &seen, &watch, &error), MUSTER_ELIMIT);
    assert_null(watch);
    assert_non_null(strstr(error.text, "no room"));
    assert_int_equal(stats(s).bytes, 0);
}

/* ---- Code 08: 1.13's DELETE_KEY or 2.1's APPEND ---- */

static void an_old_delete_is_answered_when_the_grace_is_over(void **state)
{
    struct scene *s = *state;
    struct peer *p = meet(s, L0), *other = meet(s, V);
    uint64_t from;

    ask(p, "ADD (/k) #1", "#1");
    from = uv_now(&s->loop);
    say(p, "DELETE_KEY (/k)");
    works_for(other);
    assert_true(peer_hears_nothing(p));
    hear(p, "#1");
    assert_true(uv_now(&s->loop) - from >= MU_GRACE_MS);
    assert_int_equal(uv_backend_timeout(&s->loop), -1);
    ask(p, "DELETE_KEY (/k) DELETE_KEY (/k)", "#0 #0"); /* from now on it is known, and answered at once */
    assert_int_equal(uv_backend_timeout(&s->loop), -1);
}

static void an_append_in_two_segments_within_the_grace_is_one(void **state)
{
    struct scene *s = *state;
    struct peer *p = meet(s, L1), *other = meet(s, V);

    say(p, "APPEND (/k)");
    works_for(other);
    assert_true(uv_backend_timeout(&s->loop) > 0);
    peer_send(p, mu_slice("\5", 1));
    works_for(other);
    assert_int_equal(uv_backend_timeout(&s->loop), -1); /* one byte is enough to know */
    peer_send(p, mu_slice("\0\0\0\0\0\0\0hello", 12));
    ask(p, "GET (/k)", "(hello)");
    say(p, "APPEND (/k)");
    works_for(other);
    assert_int_equal(uv_backend_timeout(&s->loop), -1); /* and known it stays */
    peer_send(p, wire(L1, "( world)"));
    ask(p, "MULTI_GET #1 (/k)", "(hello world)");
}

/* A loop that is held up sees its timers before its sockets. */
static void an_append_that_came_in_time_is_one_however_late_it_is_read(void **state)
{
    struct scene *s = *state;
    struct peer *p = meet(s, L1), *silent = meet(s, L0), *other = meet(s, V);
    uint64_t until;

    ask(other, "SET (/k) (hello) SET (/l) () PING %1", "%1");
    say(p, "APPEND (/k)");
    say(silent, "08 (/l)");
    works_for(other);
    assert_true(uv_backend_timeout(&s->loop) > 0);
    say(p, "( world)");
    until = uv_hrtime() + (MU_GRACE_MS + 50) * UINT64_C(1000000);
    while (uv_hrtime() < until) /* the loop stands still */
        (void)poll(NULL, 0, MU_GRACE_MS);
    ask(p, "GET (/k)", "(hello world)");
    hear(silent, "#1");
    assert_int_equal(uv_backend_timeout(&s->loop), -1);
}

static void told_what_old_clients_are_the_server_gives_no_grace(void **state)
{
    struct scene *s = *state;
    struct peer *p, *other;

    serve(s, (struct muster_store_limits){ 0 }, L0);
    p = meet(s, L0);
    ask(p, "ADD (/k) #1 DELETE_KEY (/k) DELETE_KEY (/k)", "#1 #1 #0");
    assert_int_equal(uv_backend_timeout(&s->loop), -1);
    serve(s, (struct muster_store_limits){ 0 }, L1);
    p = meet(s, L1);
    other = meet(s, V);
    say(p, "APPEND (/k)");
    works_for(other);
    assert_int_equal(uv_backend_timeout(&s->loop), -1);
    say(p, "'\\01\\00\\00\\00\\00\\00\\00\\00x' DELETE_KEY (/k)");
    hear(p, "#1");
}

static void a_connection_may_end_during_its_grace(void **state)
{
    struct scene *s = *state;
    struct peer *closed = meet(s, L0), *reset = meet(s, L0), *stays = meet(s, L0), *other = meet(s, V);

    say(other, "MULTI_SET #3 (/a) (1) (/b) (2) (/c) (3)");
    say(closed, "DELETE_KEY (/a)");
    say(reset, "DELETE_KEY (/b)");
    works_for(other);
    say(stays, "DELETE_KEY (/c)");
    works_for(other);
    peer_close(closed);
    peer_reset(reset);
    UNTIL(stats(s).connections == 2);
    hear(stays, "#1");
    ask(other, "NUM_KEYS", "#2"); /* what was never decided was never done */
}

static void many_connections_may_be_in_grace_at_once(void **state)
{
    struct scene *s = *state;
    struct peer *peers[500], *other = meet(s, V);
    char text[64];

    for (size_t i = 0; i < COUNT(peers); i++) {
        peers[i] = meet(s, i % 5 == 3 ? L1 : L0);
        (void)snprintf(text, sizeof text, "SET (/%zu) (v) GET (/%zu)", i, i);
        ask(peers[i], text, "(v)");
    }
    for (size_t i = 0; i < COUNT(peers); i++) {
        if (i % 5 == 3)
            continue;
        (void)snprintf(text, sizeof text, "DELETE_KEY (/%zu)", i);
        say(peers[i], text);
        if (i % 50 == 0)
            works_for(other);
    }
    for (size_t i = 3; i < COUNT(peers); i += 5) {
        (void)snprintf(text, sizeof text, "APPEND (/%zu)", i);
        say(peers[i], text);
        scene_turn(s, -1, 0, 0);
        say(peers[i], "(w)");
    }
    for (size_t i = 4; i < COUNT(peers); i += 5)
        peer_reset(peers[i]);
    for (size_t i = 0; i < COUNT(peers); i++) {
        (void)snprintf(text, sizeof text, "GET (/%zu)", i);
        if (i % 5 == 3)
            ask(peers[i], text, "(vw)");
        else if (i % 5 != 4)
            hear(peers[i], "#1");
    }
    works_for(other); /* how many keys of those who left are there depends on when their grace was over */
}

/* ---- Start and close ---- */

static void closing_takes_connections_in_every_state_along(void **state)
{
    struct scene *s = *state;
    struct peer *half = meet(s, V), *waiting = meet(s, L0), *at_barrier = meet(s, V), *in_grace = meet(s, L0);
    struct peer *watching = meet(s, L0), *consumer = meet(s, V), *reader = meet(s, V), *silent = meet(s, L0);
    struct peer *opening = meet(s, L0), *unaccepted;
    struct mu_buf value = { 0 };

    wire_put(&value, V, "SET (/big)");
    wire_put_str(&value, 'x', 8 << 20);
    peer_send(reader, mu_buf_slice(&value));
    mu_buf_done(&value);
    say(reader, "GET (/big) GET (/big)"); /* more than a socket takes */
    say(half, "SET (/k) #100 'only some'");
    say(waiting, "WAIT #3 (/a) (/b) (/a)");
    say(at_barrier, "BARRIER (/b) #2");
    say(consumer, "WAIT #2 (/q) (/never)");
    peer_send(opening, mu_slice("\0\xce", 2));
    ask(watching, "WATCH_KEY (/k)", "03");
    UNTIL(stats(s).bytes > 16 << 20);
    say(in_grace, "DELETE_KEY (/b)");
    UNTIL(uv_backend_timeout(&s->loop) > 0);
    unaccepted = meet(s, L0);
    stop_serving(s);
    assert_int_equal(s->closed, 1);
    hear_end(half);
    hear_end(waiting);
    hear_end(at_barrier);
    hear_end(in_grace);
    hear_end(watching);
    hear_end(consumer);
    hear_end(silent);
    hear_end(opening);
    hear_end(unaccepted);
}

static void closing_passes_items_on_to_nobody(void **state)
{
    struct scene *s = *state;
    struct peer *peers[20];

    for (size_t i = 0; i < COUNT(peers); i++) {
        peers[i] = meet(s, V);
        say(peers[i], "WAIT #1 (/q)");
        works_for(peers[i]);
    }
    say(meet(s, V), "QUEUE_PUSH (/q) (item)");
    hear(peers[0], "00");
    stop_serving(s); /* each that leaves hands the item to the next, which is about to leave too */
    assert_int_equal(s->closed, 1);
}

static void the_loop_runs_on_after_the_server_is_gone(void **state)
{
    struct scene *s = *state;
    uint16_t port = mu_addr_port(mu_server_address(s->server));
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1", .port = port };
    struct peer *p = meet(s, V);

    ask(p, "ADD (/n) #1", "#1");
    stop_serving(s);
    assert_int_equal(mu_server_start_as(&s->loop, &config, &s->server, NULL), 0);
    assert_int_equal(mu_addr_port(mu_server_address(s->server)), port);
    ask(meet(s, V), "ADD (/n) #1", "#1"); /* another server: nothing of the old one is left */
}

static int start_on(struct scene *s, int fd, struct muster_error *reterr)
{
    struct mu_server_config config = { .legacy = MU_DIALECT_L };
    struct mu_server *server = NULL;
    int rc;

    assert_int_equal(mu_limits_settle(&config.limits, NULL), 0);
    rc = mu_server_start(&s->loop, fd, &config, &server, reterr);
    assert_true(rc < 0);
    assert_null(server);
    return rc;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void what_is_not_a_socket_cannot_be_listened_on(void **state)
{
    struct muster_error error = { 0 };
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(start_on(*state, ends[0], &error), MUSTER_ESYSTEM);
    assert_non_null(strstr(error.text, strerror(ENOTSOCK)));
    assert_false(is_open(ends[0])); /* it was the server's */
    (void)close(ends[1]);
    assert_int_equal(start_on(*state, -1, &error), MUSTER_ESYSTEM);
    assert_non_null(strstr(error.text, strerror(EBADF)));
}

static void a_port_in_use_is_said_to_be(void **state)
{
    struct scene *s = *state;
    uint16_t port = mu_addr_port(mu_server_address(s->server));
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1", .port = port };
    struct mu_server *server = NULL;
    struct muster_error error = { 0 };
    int first = bound_socket(), second = -1;
    union mu_addr addr;

    assert_int_equal(mu_server_start_as(&s->loop, &config, &server, &error), MUSTER_EADDRINUSE);
    assert_non_null(strstr(error.text, "127.0.0.1"));
    assert_null(server);
    /* Two may bind to one port as long as none listens. */
    assert_int_equal(mu_listen_address(first, &addr, NULL), 0);
    assert_int_equal(mu_listen_open("127.0.0.1", mu_addr_port(&addr), &second, NULL), 0);
    assert_int_equal(listen(first, 1), 0);
    assert_int_equal(start_on(s, second, &error), MUSTER_EADDRINUSE);
    assert_non_null(strstr(error.text, "listen on 127.0.0.1:"));
    assert_false(is_open(second));
    (void)close(first);
}

static void a_bad_configuration_starts_nothing(void **state)
{
    static const char *const no_network[] = { "127.0.0.1", "not a network", NULL };
    struct muster_store_server_config configs[] = {
        { .dialect = "3.0" },
        { .dialect = "2.x" },
        { .allow = no_network },
        { .limits = { .key_bytes = MU_KEY_BYTES_MAX + 1 } },
        { .use_listen_fd = true, .listen_fd = -1 },
        { .host = "192.0.2.1" },
    };
    static const char *const words[] = { "3.0", "2.x", "not a network", "key", "descriptor -1", "192.0.2.1" };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(configs); i++) {
        struct muster_error error = { 0 };
        struct mu_server *server = NULL;

        configs[i].size = sizeof configs[i];
        if (configs[i].host == NULL)
            configs[i].host = "127.0.0.1";
        assert_int_not_equal(mu_server_start_as(&s->loop, &configs[i], &server, &error), 0);
        assert_null(server);
        if (strstr(error.text, words[i]) == NULL)
            fail_msg("'%s' does not say '%s'", error.text, words[i]);
    }
}

static void a_bound_socket_can_be_handed_over(void **state)
{
    struct scene *s = *state;
    struct muster_store_server_config config = { .size = sizeof config, .use_listen_fd = true };
    struct muster_error error = { 0 };
    union mu_addr addr;

    stop_serving(s);
    config.listen_fd = bound_socket();
    assert_int_equal(mu_listen_address(config.listen_fd, &addr, NULL), 0);
    config.port = (uint16_t)(mu_addr_port(&addr) ^ 1);
    assert_int_equal(mu_server_start_as(&s->loop, &config, &s->server, &error), MUSTER_EINVAL);
    assert_true(is_open(config.listen_fd)); /* still the caller's */
    config.port = mu_addr_port(&addr);
    assert_int_equal(mu_server_start_as(&s->loop, &config, &s->server, &error), 0);
    assert_false(is_open(config.listen_fd));
    assert_int_equal(mu_addr_port(mu_server_address(s->server)), config.port);
    works_for(meet(s, V));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(the_exchanges_recorded_from_1_13_repeat_byte_for_byte),
        SCENE(the_same_flow_runs_in_the_newest_dialect),
        SCENE(requests_may_come_one_byte_at_a_time),
        SCENE(many_requests_may_come_in_one_segment),
        SCENE(clients_of_all_dialects_share_one_port_and_its_keys),
        SCENE(a_silent_connection_is_kept_and_nothing_is_timed),
        SCENE(dual_stack_is_what_no_address_means),
        SCENE(one_table_is_served_on_several_addresses),
        SCENE(an_address_whose_port_is_taken_is_not_added),
        SCENE(what_this_machine_sends_to_itself_may_be_allowed_by_that),
        SCENE(every_cancel_is_answered_once_pending_wait_or_not),
        SCENE(a_barrier_can_be_cancelled_and_stays_counted),
        SCENE(an_abandoned_wait_of_an_old_client_leaves_no_stray_byte),
        SCENE(a_key_that_came_and_went_still_counts_for_a_wait),
        SCENE(a_second_wait_replaces_the_first),
        SCENE(compare_set_wakes_when_it_writes_and_only_then),
        SCENE(each_writing_request_wakes),
        SCENE(an_item_wakes_one_consumer_and_passes_on_from_one_that_died),
        SCENE(a_barrier_lets_all_go_when_the_last_has_come),
        SCENE(after_a_renewal_newcomers_find_an_empty_table),
        SCENE(a_connection_belongs_to_the_table_it_was_accepted_at),
        SCENE(a_watch_stays_with_its_table),
        SCENE(a_write_from_within_wakes_whoever_waits),
        SCENE(whose_connection_wrote_and_has_gone_is_told),
        SCENE(an_old_table_goes_with_its_last_user),
        SCENE(without_memory_the_table_stays),
        SCENE(nobody_from_elsewhere_has_come),
        SCENE(connections_of_this_process_leave_the_server_alone),
        SCENE(a_server_is_alone_when_the_last_of_the_others_has_gone),
        SCENE(compare_set_answers_as_its_table_says),
        SCENE(add_reads_numbers_as_c_does),
        SCENE(add_on_what_is_no_number_closes_and_keeps_the_value),
        SCENE(a_missing_key_reads_as_empty_in_every_dialect),
        SCENE(any_byte_is_legal_in_keys_and_values),
        SCENE(a_watcher_hears_of_every_change_of_its_key),
        SCENE(a_watcher_that_died_does_not_disturb_writers),
        SCENE(the_process_itself_can_watch_a_key),
        SCENE(a_watch_that_there_is_no_room_for_is_refused),
        SCENE(an_old_delete_is_answered_when_the_grace_is_over),
        SCENE(an_append_in_two_segments_within_the_grace_is_one),
        SCENE(an_append_that_came_in_time_is_one_however_late_it_is_read),
        SCENE(told_what_old_clients_are_the_server_gives_no_grace),
        SCENE(a_connection_may_end_during_its_grace),
        SCENE(many_connections_may_be_in_grace_at_once),
        SCENE(closing_takes_connections_in_every_state_along),
        SCENE(closing_passes_items_on_to_nobody),
        SCENE(the_loop_runs_on_after_the_server_is_gone),
        SCENE(what_is_not_a_socket_cannot_be_listened_on),
        SCENE(a_port_in_use_is_said_to_be),
        SCENE(a_bad_configuration_starts_nothing),
        SCENE(a_bound_socket_can_be_handed_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
