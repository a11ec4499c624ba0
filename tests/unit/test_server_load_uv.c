/* The server with much at once: large values, long lists, deep pipelines and thousands of connections. */
#include "serving_uv.h"

#include <inttypes.h>
#include <sys/resource.h>

enum { MIB = 1 << 20, CROWD_MAX = 10000, DESCRIPTORS_SPARE = 200 };

static char chunk[4 * MIB];

/* Reads what must be `len` times `fill`, in pieces of at most `piece` bytes, giving a turn before each. */
static void read_slowly(struct scene *s, struct peer *p, char fill, size_t len, size_t piece)
{
    uint64_t since_ms = 0;

    while (len > 0) {
        ssize_t count = peer_read_some(p, chunk, len < piece ? len : piece);

        assert_true(count >= 0);
        for (ssize_t i = 0; i < count; i++) {
            if (chunk[i] != fill)
                fail_msg("byte %02x in the value, %zu bytes before its end", (unsigned)(unsigned char)chunk[i], len);
        }
        len -= (size_t)count;
        if (count > 0)
            since_ms = 0;
        scene_turn(s, -1, 0, 0);
        if (count == 0 && !peers_may_wait(&since_ms))
            fail_msg("silence, %zu bytes before the end", len);
    }
}

static void a_large_value_reaches_a_slow_reader_whole(void **state)
{
    struct scene *s = *state;
    struct peer *writer = meet(s, L0), *slow = meet(s, V), *other = meet(s, V);
    struct mu_buf bytes = { 0 };

    wire_put(&bytes, L0, "SET (/large)");
    wire_put_str(&bytes, 'x', 60 * MIB);
    peer_send(writer, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
    works_for(writer);
    say(slow, "GET (/large) PING %1 GET (/large) PING %2");
    works_for(other); /* what is stuck in one socket holds up no other */
    hear(slow, "#62914560");
    read_slowly(s, slow, 'x', 60 * MIB, 300000);
    hear(slow, "%1 #62914560");
    works_for(other);
    read_slowly(s, slow, 'x', 60 * MIB, sizeof chunk);
    hear(slow, "%2");
    UNTIL(stats(s).bytes < 61 * MIB); /* nothing of the replies is kept */
    ask(slow, "DELETE_KEY (/large)", "#1");
    assert_int_equal(stats(s).bytes, 0);
}

static void ten_thousand_requests_in_one_go_are_answered_in_order(void **state)
{
    struct scene *s = *state;
    struct peer *p = meet(s, V);
    struct mu_buf bytes = { 0 };
    char text[64];

    for (unsigned i = 0; i < 10000; i++) {
        (void)snprintf(text, sizeof text, "ADD (/n) #1 GET (/n) PING %%%u", i);
        wire_put(&bytes, V, text);
    }
    peer_send(p, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
    for (unsigned i = 0; i < 10000; i++) {
        (void)snprintf(text, sizeof text, "#%u (%u) %%%u", i + 1, i + 1, i);
        hear(p, text);
    }
    works_for(p);
}

/* MULTI_SET, MULTI_GET, WAIT, CHECK and LIST_KEYS, each of very many keys. */
static void put_list(struct mu_buf *bytes, const char *op, unsigned count, bool with_values)
{
    char text[64];

    wire_put(bytes, V, op);
    wire_put_len(bytes, count);
    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(text, sizeof text, with_values ? "(/%u) (v%u)" : "(/%u)", i, i);
        wire_put(bytes, V, text);
    }
}

static void lists_of_a_hundred_thousand_keys_are_served(void **state)
{
    enum { KEYS = 100000 };
    struct scene *s = *state;
    struct peer *p = meet(s, V), *waiter = meet(s, L0);
    struct mu_buf bytes = { 0 }, wait = { 0 };
    char text[64];

    put_list(&wait, "CHECK", KEYS, false);
    wait.data[0] = (char)mu_op_code(MU_OP_WAIT, L0);
    peer_send(waiter, mu_buf_slice(&wait));
    mu_buf_done(&wait);
    works_for(p);
    put_list(&bytes, "MULTI_SET", KEYS, true);
    put_list(&bytes, "CHECK", KEYS, false);
    put_list(&bytes, "MULTI_GET", KEYS, false);
    peer_send(p, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
    hear(p, "00");
    hear(waiter, "00");
    for (unsigned i = 0; i < KEYS; i++) {
        (void)snprintf(text, sizeof text, "(v%u)", i);
        hear(p, text);
    }
    ask(p, "NUM_KEYS", "#100000");
}

/* The request itself is 4 MiB at most while it is read, and what the wait holds in the end is 20 MiB or more. In
 * between, the loop comes round to the one that asks again and again. */
static void others_are_answered_between_the_turns_of_a_long_wait(void **state)
{
    enum { KEYS = 131072 };
    struct scene *s = *state;
    struct peer *other = meet(s, V), *waiter = meet(s, V);
    struct mu_buf bytes = { 0 };
    unsigned answers = 0;

    put_list(&bytes, "WAIT", KEYS, false);
    peer_send(waiter, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
    while (stats(s).bytes < 18 * MIB) {
        works_for(other);
        answers += stats(s).bytes > 5 * MIB && stats(s).bytes < 18 * MIB;
    }
    assert_true(answers > 10);
    ask(waiter, "PING %1", "%1");
    put_list(&bytes, "MULTI_SET", KEYS, true);
    peer_send(other, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
    hear(waiter, "00");
    works_for(other);
}

static void connections_that_wait_for_long_lists_leave_in_turns(void **state)
{
    enum { WAITERS = 10, KEYS = 20000 };
    struct scene *s = *state;
    struct peer *other = meet(s, V), *waiters[WAITERS];
    struct mu_buf bytes = { 0 };
    struct stats before;
    size_t steps = 0, held;

    works_for(other);
    before = stats(s);
    put_list(&bytes, "WAIT", KEYS, false);
    for (size_t i = 0; i < WAITERS; i++) {
        waiters[i] = meet(s, V);
        peer_send(waiters[i], mu_buf_slice(&bytes));
        ask(waiters[i], "PING %1", "%1");
    }
    mu_buf_done(&bytes);
    for (size_t i = 0; i < WAITERS; i++)
        peer_reset(waiters[i]);
    held = stats(s).bytes;
    while (stats(s).connections > before.connections) {
        works_for(other);
        steps += stats(s).bytes != held;
        held = stats(s).bytes;
    }
    assert_true(steps > WAITERS);
    assert_as_before(s, before);
}

static void fifty_thousand_keys_are_listed(void **state)
{
    enum { KEYS = 50000 };
    static bool listed[KEYS];
    struct peer *p = meet(*state, V);
    struct mu_buf bytes = { 0 };

    memset(listed, 0, sizeof listed);
    put_list(&bytes, "MULTI_SET", KEYS, true);
    peer_send(p, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
    ask(p, "LIST_KEYS", "#50000");
    for (unsigned i = 0; i < KEYS; i++) {
        char name[64] = { 0 };
        unsigned number;

        assert_true(peer_try_read(p, chunk, 8));
        assert_in_range(mu_get_u64(chunk), 2, 6);
        assert_true(peer_try_read(p, name, (size_t)mu_get_u64(chunk)));
        assert_int_equal(sscanf(name, "/%u", &number), 1);
        assert_true(number < KEYS && !listed[number]);
        listed[number] = true;
    }
    works_for(p);
}

/* ---- Crowds ---- */

static struct peer *crowd[CROWD_MAX];

/* Of as many as there are descriptors for (each takes two, both ends being here) the nth part, in tens. */
static unsigned crowd_size(unsigned part)
{
    struct rlimit limit;
    unsigned fit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur >= 2 * CROWD_MAX + DESCRIPTORS_SPARE)
        fit = CROWD_MAX / part;
    else
        fit = (unsigned)(limit.rlim_cur - DESCRIPTORS_SPARE) / 2 / part;
    return fit - fit % 10;
}

/* They come in troops that the backlog has room for. */
static void gather(struct scene *s, unsigned count)
{
    size_t there = stats(s).connections;

    for (unsigned i = 0; i < count; i++) {
        crowd[i] = meet(s, i % 2 == 0 ? V : L0);
        if (i % 100 == 99 || i + 1 == count)
            UNTIL(stats(s).connections == there + i + 1);
    }
}

static void ten_thousand_connections_that_come_and_go_leave_the_server_as_it_was(void **state)
{
    struct scene *s = *state;
    unsigned size = crowd_size(2), gone = 0;
    struct peer *other = meet(s, V);
    struct stats before;

    ask(other, "SET (/k) (v) PING %1", "%1");
    before = stats(s);
    while (gone < CROWD_MAX) {
        gather(s, size);
        for (unsigned i = 0; i < size; i++) {
            if (i % 3 == 0)
                (void)peer_try_send(crowd[i], mu_slice("\1", 1));
            if (i % 5 == 0)
                peer_close(crowd[i]);
            else
                peer_reset(crowd[i]);
        }
        gone += size;
        assert_as_before(s, before);
        works_for(other);
    }
    assert_int_equal(stats(s).accepted, before.accepted + gone);
    assert_int_equal(stats(s).refused, 0);
    assert_int_equal(lines_count(), 0);
}

static void connections_dropped_before_they_are_taken_do_no_harm(void **state)
{
    struct scene *s = *state;
    struct peer *other = meet(s, V);

    works_for(other);
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 200; i++)
            crowd[i] = meet(s, i % 2 == 0 ? V : L0);
        for (unsigned i = 0; i < 200; i++)
            peer_reset(crowd[i]);
        works_for(other);
    }
    UNTIL(stats(s).connections == 1);
    works_for(other);
}

static void one_set_wakes_a_crowd(void **state)
{
    struct scene *s = *state;
    struct peer *writer = meet(s, V);
    unsigned size = crowd_size(1);

    works_for(writer);
    gather(s, size);
    for (unsigned i = 0; i < size; i++) {
        say(crowd[i], i % 10 == 7 ? "WAIT #2 (/k) (/k)" : "WAIT #1 (/k)");
        if (i % 1000 == 999)
            works_for(writer);
    }
    works_for(writer);
    ask(writer, "SET (/k) (v) GET (/k)", "(v)");
    for (unsigned i = 0; i < size; i++)
        hear(crowd[i], "00");
    assert_int_equal(stats(s).connections, size + 1);
}

static void a_crowd_is_woken_although_some_have_died_and_some_do_not_read(void **state)
{
    struct scene *s = *state;
    struct peer *writer = meet(s, V);
    struct mu_buf bytes = { 0 };
    unsigned size = crowd_size(2), deaf = 0;

    wire_put(&bytes, V, "SET (/big)");
    wire_put_str(&bytes, 'x', 6 * MIB);
    peer_send(writer, mu_buf_slice(&bytes));
    mu_buf_done(&bytes);
    gather(s, size);
    for (unsigned i = 0; i < size; i++) {
        bool is_deaf = i % 500 == 4;

        deaf += is_deaf;
        say(crowd[i], is_deaf ? "GET (/big) WAIT #1 (/k)" : "WAIT #1 (/k)"); /* the deaf have a full socket */
        if (i % 1000 == 999)
            works_for(writer);
    }
    works_for(writer);
    UNTIL(stats(s).bytes > 6 * MIB + deaf * MIB);
    say(writer, "SET (/k) (v) DELETE_KEY (/big)");
    for (unsigned i = 0; i < size; i++) {
        if (i % 10 == 1)
            peer_close(crowd[i]);
        else if (i % 10 == 3)
            peer_reset(crowd[i]);
    }
    hear(writer, "#1");
    for (unsigned i = 0; i < size; i++) {
        if (i % 10 != 1 && i % 10 != 3 && i % 500 != 4)
            hear(crowd[i], "00");
    }
    UNTIL(stats(s).connections == 1 + size - 2 * (size / 10));
    for (unsigned i = 4; i < size; i += 500) {
        hear(crowd[i], "#6291456");
        read_slowly(s, crowd[i], 'x', 6 * MIB, sizeof chunk);
        hear(crowd[i], "00");
    }
    works_for(writer);
}

static void a_crowd_passes_one_barrier(void **state)
{
    struct scene *s = *state;
    unsigned size = crowd_size(4);
    char text[64];

    for (unsigned i = 0; i < size; i++) {
        crowd[i] = meet(s, V);
        (void)snprintf(text, sizeof text, "BARRIER (/b) #%u", size);
        say(crowd[i], text);
        if (i % 100 == 0)
            scene_turn(s, -1, 0, 0);
    }
    for (unsigned i = 0; i < size; i++)
        hear(crowd[i], "00");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(a_large_value_reaches_a_slow_reader_whole),
        SCENE(ten_thousand_requests_in_one_go_are_answered_in_order),
        SCENE(lists_of_a_hundred_thousand_keys_are_served),
        SCENE(others_are_answered_between_the_turns_of_a_long_wait),
        SCENE(connections_that_wait_for_long_lists_leave_in_turns),
        SCENE(fifty_thousand_keys_are_listed),
        SCENE(ten_thousand_connections_that_come_and_go_leave_the_server_as_it_was),
        SCENE(connections_dropped_before_they_are_taken_do_no_harm),
        SCENE(one_set_wakes_a_crowd),
        SCENE(a_crowd_is_woken_although_some_have_died_and_some_do_not_read),
        SCENE(a_crowd_passes_one_barrier),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
