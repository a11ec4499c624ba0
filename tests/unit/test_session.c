/* Sessions: several connections of one store, from bytes to bytes. */
#include "failmalloc.h"
#include "pure.h"
#include "store/engine.h"
#include "store/limits.h"
#include "store/session.h"
#include "wire.h"

#include <stdio.h>

enum { PEERS = 6, HEARD_BYTES = 1 << 16 };

#define VALIDATE "00 CE F7 85 3C"

struct peer {
    struct mu_session session;
    enum mu_dialect speaks; /* what its requests are written in */
    bool here;
    char heard[HEARD_BYTES];
    size_t heard_len, reads_max; /* a slow reader is dropped past reads_max; 0: it reads everything */
};

/* A store and those who are connected to it. */
struct scene {
    struct mu_service service;
    struct peer peers[PEERS];
    struct muster_error err;
    uint64_t now_ms;
};

static void on_send(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    struct peer *peer = MU_LIST_ITEM(session, struct peer, session);

    assert_true(peer->here && !session->dead);
    for (size_t i = 0; i < count; i++) {
        assert_true(peer->heard_len + parts[i].len <= HEARD_BYTES);
        if (parts[i].len > 0)
            memcpy(peer->heard + peer->heard_len, parts[i].data, parts[i].len);
        peer->heard_len += parts[i].len;
    }
    if (peer->reads_max != 0 && peer->heard_len > peer->reads_max)
        session->dead = true;
}

static void scene_init(struct scene *s, struct muster_store_limits limits, enum mu_dialect legacy)
{
    const struct mu_hash_seed seed = { 1, 2 };

    memset(s, 0, sizeof *s);
    assert_int_equal(mu_limits_settle(&limits, NULL), 0);
    mu_service_init(&s->service, &limits, legacy, seed, on_send);
}

static int feeds(struct scene *s, size_t who, struct mu_slice bytes)
{
    int rc = mu_session_feed(&s->peers[who].session, bytes, s->now_ms, &s->err);

    assert_true(s->service.budget.used <= s->service.budget.max);
    return rc;
}

/* Gives a busy session its turns until it is done. Returns how many. */
static unsigned takes_turns(struct scene *s, size_t who)
{
    unsigned turns = 0;

    for (; mu_session_is_busy(&s->peers[who].session); turns++)
        assert_int_equal(mu_session_work(&s->peers[who].session, s->now_ms, &s->err), 0);
    return turns;
}

/* One that announces nothing, as 1.13 to 2.1 do, unless it speaks V. */
static void joins(struct scene *s, size_t who, enum mu_dialect speaks)
{
    struct peer *peer = &s->peers[who];

    assert_false(peer->here);
    mu_session_init(&peer->session, &s->service);
    peer->speaks = speaks;
    peer->here = true;
    peer->heard_len = 0;
    if (speaks == MU_DIALECT_V)
        assert_int_equal(feeds(s, who, wire(MU_DIALECT_V, VALIDATE)), 0);
}

static void leaves(struct scene *s, size_t who)
{
    mu_session_leave(&s->peers[who].session);
    s->peers[who].here = false;
}

/* Everybody leaves; the service itself asserts that nothing is left behind. */
static void scene_done(struct scene *s)
{
    for (size_t i = 0; i < PEERS; i++) {
        if (s->peers[i].here)
            leaves(s, i);
    }
    mu_service_done(&s->service);
}

static int setup(void **state)
{
    struct scene *s = malloc(sizeof *s);

    if (s == NULL)
        return -1;
    scene_init(s, (struct muster_store_limits){ 0 }, MU_DIALECT_L);
    for (size_t i = 0; i < 3; i++)
        joins(s, i, MU_DIALECT_V);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    scene_done(*state);
    free(*state);
    return 0;
}

static int says(struct scene *s, size_t who, const char *text)
{
    return feeds(s, who, wire(s->peers[who].speaks, text));
}

/* Everything since the last time. */
static struct mu_slice takes(struct scene *s, size_t who)
{
    struct peer *peer = &s->peers[who];
    struct mu_slice heard = mu_slice(peer->heard, peer->heard_len);

    peer->heard_len = 0;
    return heard;
}

#define assert_says(s, who, text) assert_int_equal(says(s, who, text), 0)
#define assert_refused(s, who, text) assert_true(says(s, who, text) < 0)
#define assert_hears(s, who, text)                                                                                     \
    assert_string_equal(wire_hex(takes(s, who)), wire_hex(wire((s)->peers[who].speaks, text)))
#define assert_asks(s, who, text, answer)                                                                              \
    do {                                                                                                               \
        assert_says(s, who, text);                                                                                     \
        assert_hears(s, who, answer);                                                                                  \
    } while (0)

struct row {
    const char *request, *reply;
};

static void exchange(struct scene *s, size_t who, const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_asks(s, who, rows[i].request, rows[i].reply);
}

/* The same rows in pieces of one size, requests running into each other. */
static void exchange_in_pieces(enum mu_dialect legacy, const char *opening, const struct row *rows, size_t count,
                               size_t piece)
{
    struct mu_buf requests = { 0 }, replies = { 0 };
    struct scene *s = malloc(sizeof *s);
    struct mu_slice heard;

    assert_non_null(s);
    scene_init(s, (struct muster_store_limits){ 0 }, legacy);
    joins(s, 0, MU_DIALECT_UNKNOWN);
    wire_put(&requests, MU_DIALECT_V, opening);
    for (size_t i = 0; i < count; i++) {
        wire_put(&requests, MU_DIALECT_V, rows[i].request);
        wire_put(&replies, MU_DIALECT_V, rows[i].reply);
    }
    for (size_t at = 0; at < requests.len; at += piece) {
        size_t len = requests.len - at < piece ? requests.len - at : piece;

        assert_int_equal(feeds(s, 0, mu_slice(requests.data + at, len)), 0);
    }
    heard = takes(s, 0);
    assert_string_equal(wire_hex(heard), wire_hex(mu_buf_slice(&replies)));
    assert_int_equal(s->peers[0].session.unread.cap, 0); /* nothing is kept of what has been carried out */
    scene_done(s);
    free(s);
    mu_buf_done(&requests);
    mu_buf_done(&replies);
}

static void exchange_in_all_pieces(enum mu_dialect legacy, const char *opening, const struct row *rows, size_t count)
{
    for (size_t piece = 1; piece < 40; piece++)
        exchange_in_pieces(legacy, opening, rows, count, piece);
    exchange_in_pieces(legacy, opening, rows, count, SIZE_MAX);
}

/* ---- The captured exchanges ---- */

static const struct row captured_l0[] = {
    { "03 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00", "01 00 00 00 00 00 00 00" },
    { "00 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76", "" },
    { "02 02 00 00 00 00 00 00 00 2F 6B", "01 00 00 00 00 00 00 00 76" },
    { "03 02 00 00 00 00 00 00 00 2F 63 05 00 00 00 00 00 00 00", "05 00 00 00 00 00 00 00" },
    { "03 02 00 00 00 00 00 00 00 2F 63 F9 FF FF FF FF FF FF FF", "FE FF FF FF FF FF FF FF" },
    { "02 02 00 00 00 00 00 00 00 2F 63", "02 00 00 00 00 00 00 00 2D 32" },
    { "01 02 00 00 00 00 00 00 00 2F 71 00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 6E 65 77",
      "03 00 00 00 00 00 00 00 6E 65 77" },
    { "04 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B 03 00 00 00 00 00 00 00 2F 7A 7A", "01" },
    { "04 00 00 00 00 00 00 00 00", "00" },
    { "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "00" },
    { "05 00 00 00 00 00 00 00 00", "00" },
    { "06", "04 00 00 00 00 00 00 00" },
    { "08 02 00 00 00 00 00 00 00 2F 6B", "01 00 00 00 00 00 00 00" },
    { "08 02 00 00 00 00 00 00 00 2F 6B", "00 00 00 00 00 00 00 00" },
    { "06", "03 00 00 00 00 00 00 00" },
    { "07 03 00 00 00 00 00 00 00 2F 77 6B", "03" },
};

static void what_1_13_was_seen_to_say_is_answered_byte_for_byte(void **state)
{
    (void)state;
    exchange_in_all_pieces(MU_DIALECT_L0, "", captured_l0, COUNT(captured_l0));
}

/* A 1.13 client takes turns: each reply is there before the next request. Its DELETE_KEY waits for the grace. */
static void and_so_it_is_when_the_dialect_must_be_found_out(void **state)
{
    struct scene *s = *state;

    joins(s, 3, MU_DIALECT_UNKNOWN);
    for (size_t i = 0; i + 1 < COUNT(captured_l0); i++) {
        struct mu_slice request = wire(MU_DIALECT_UNKNOWN, captured_l0[i].request);

        assert_int_equal(feeds(s, 3, mu_slice(request.data, 1)), 0); /* the code byte comes alone */
        assert_int_equal(feeds(s, 3, mu_slice(request.data + 1, request.len - 1)), 0);
        if (mu_session_deadline_ms(&s->peers[3].session) != 0) {
            assert_hears(s, 3, "");
            assert_true(mu_session_deadline_ms(&s->peers[3].session) == s->now_ms + MU_GRACE_MS);
            s->now_ms += MU_GRACE_MS;
            assert_int_equal(feeds(s, 3, mu_slice(NULL, 0)), 0);
        }
        assert_hears(s, 3, captured_l0[i].reply);
    }
    joins(s, 4, MU_DIALECT_UNKNOWN); /* the watch comes on a connection of its own */
    assert_asks(s, 4, "07 03 00 00 00 00 00 00 00 2F 77 6B", "03");
    assert_says(s, 0, "SET (/wk) (a)");
    assert_hears(s, 4, "01 03 00 00 00 00 00 00 00 2F 77 6B 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 61");
}

static void the_same_with_the_codes_of_2_2_is_answered_byte_for_byte(void **state)
{
    static const struct row rows[] = {
        { "0D 34 12 00 00", "34 12 00 00" },
        { "04 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00", "01 00 00 00 00 00 00 00" },
        { "01 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76", "" },
        { "03 02 00 00 00 00 00 00 00 2F 6B", "01 00 00 00 00 00 00 00 76" },
        { "02 02 00 00 00 00 00 00 00 2F 6B 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 4E",
          "01 00 00 00 00 00 00 00 76" },
        { "09 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 77", "" },
        { "03 02 00 00 00 00 00 00 00 2F 6B", "02 00 00 00 00 00 00 00 76 77" },
        { "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "00" },
        { "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "00" },
        { "11", "02 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 69 6E 69 74 2F 02 00 00 00 00 00 00 00 2F 6B" },
        { "0B 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 61 01 00 00 00 00 00 00 00 31", "" },
        { "01 02 00 00 00 00 00 00 00 2F 62 00 00 00 00 00 00 00 00", "" },
        { "0A 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 61 02 00 00 00 00 00 00 00 2F 62",
          "01 00 00 00 00 00 00 00 31 00 00 00 00 00 00 00 00" },
        { "0C", "01" },
        { "0E 02 00 00 00 00 00 00 00 2F 71 01 00 00 00 00 00 00 00 78", "" },
        { "0E 02 00 00 00 00 00 00 00 2F 71 01 00 00 00 00 00 00 00 79", "" },
        { "10 02 00 00 00 00 00 00 00 2F 71", "02 00 00 00 00 00 00 00" },
        { "0F 02 00 00 00 00 00 00 00 2F 71", "02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 78" },
        { "0F 02 00 00 00 00 00 00 00 2F 71", "01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 79" },
        { "0F 02 00 00 00 00 00 00 00 2F 71", "00 00 00 00 00 00 00 00" },
        { "12 02 00 00 00 00 00 00 00 2F 78 01 00 00 00 00 00 00 00", "00" },
        { "07", "05 00 00 00 00 00 00 00" },
        { "08 02 00 00 00 00 00 00 00 2F 6B", "01 00 00 00 00 00 00 00" },
        { "08 02 00 00 00 00 00 00 00 2F 6B", "00 00 00 00 00 00 00 00" },
    };

    (void)state;
    exchange_in_all_pieces(MU_DIALECT_L, VALIDATE, rows, COUNT(rows));
}

static void what_2_1_says_is_answered(void **state)
{
    static const struct row rows[] = {
        { "03 (init/) #1", "#1" },
        { "00 (/k) (v)", "" },
        { "0B", "01" },
        { "08 (/k) (w)", "" },
        { "02 (/k)", "(vw)" },
        { "0A #2 (/a) (1) (/b) (2)", "" },
        { "09 #3 (/b) (/z) (/a)", "(2) () (1)" },
        { "07 (/k)", "#1" },
        { "07 (/k)", "#0" },
        { "06", "#3" },
    };

    (void)state;
    exchange_in_all_pieces(MU_DIALECT_L, "", rows, COUNT(rows));
    exchange_in_all_pieces(MU_DIALECT_L1, "", rows, COUNT(rows));
}

static void validate_is_silent(void **state)
{
    struct scene *s = *state;

    joins(s, 3, MU_DIALECT_UNKNOWN);
    assert_asks(s, 3, VALIDATE, "");
    assert_asks(s, 3, "0D %7", "%7");
}

/* ---- Several at once ---- */

static void all_dialects_share_the_keys(void **state)
{
    struct scene *s = *state;

    joins(s, 3, MU_DIALECT_L0);
    joins(s, 4, MU_DIALECT_L1);
    joins(s, 5, MU_DIALECT_L0); /* says nothing, for as long as it likes */
    assert_asks(s, 3, "SET (/k) (from 1.13)", "");
    assert_asks(s, 4, "GET (/k)", "(from 1.13)");
    assert_asks(s, 4, "CANCEL_WAIT", "01");
    assert_asks(s, 4, "APPEND (/k) (, 2.1)", "");
    assert_asks(s, 0, "GET (/k)", "(from 1.13, 2.1)");
    assert_asks(s, 3, "WAIT #1 (/x)", "");
    assert_asks(s, 4, "WAIT #1 (/x)", "");
    assert_asks(s, 0, "WAIT #1 (/x)", "");
    assert_says(s, 1, "QUEUE_PUSH (/q) (item)");
    assert_asks(s, 1, "COMPARE_SET (/x) () (new)", "(new)");
    assert_hears(s, 3, "00");
    assert_hears(s, 4, "00");
    assert_hears(s, 0, "00");
    s->now_ms += UINT64_C(100) * 3600 * 1000;
    assert_hears(s, 5, "");
    assert_asks(s, 5, "GET (/x)", "(new)");
    assert_true(s->service.requests > 10);
}

static void a_wait_for_two_keys_ends_with_one_byte(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #2 (/a) (/b)", "");
    assert_says(s, 1, "SET (/a) (1)");
    assert_asks(s, 1, "DELETE_KEY (/a)", "#1");
    assert_hears(s, 0, "");
    assert_says(s, 1, "SET (/b) (1)");
    assert_hears(s, 0, "00");
    assert_says(s, 1, "SET (/b) (2) SET (/a) (2)");
    assert_hears(s, 0, "");
}

static void only_a_compare_set_that_creates_wakes(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/k)", "");
    assert_asks(s, 1, "COMPARE_SET (/k) (old) (new)", "(old)");
    assert_hears(s, 0, "");
    assert_asks(s, 1, "COMPARE_SET (/k) () (new)", "(new)");
    assert_hears(s, 0, "00");
}

static void a_barrier_of_three_lets_all_go(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "BARRIER (/b) #3", "");
    assert_asks(s, 1, "BARRIER (/b) #3", "");
    assert_asks(s, 2, "BARRIER (/b) #3", "00");
    assert_hears(s, 0, "00");
    assert_hears(s, 1, "00");
    assert_asks(s, 0, "GET (/b)", "(3)");
}

/* WAIT with the name, then POP, as clients do it. */
static void consumers_of_a_queue_get_an_item_each(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "");
    assert_asks(s, 1, "WAIT #1 (/q)", "");
    assert_says(s, 2, "QUEUE_PUSH (/q) (a)");
    assert_hears(s, 0, "00");
    assert_hears(s, 1, "");
    assert_asks(s, 0, "QUEUE_POP (/q)", "#1 (a)");
    assert_says(s, 2, "QUEUE_PUSH (/q) (b)");
    assert_hears(s, 1, "00");
    assert_asks(s, 1, "QUEUE_POP (/q)", "#1 (b)");
    assert_asks(s, 1, "QUEUE_POP (/q)", "#0");
}

static void an_item_is_passed_on_when_its_consumer_is_cut_off(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "");
    assert_asks(s, 1, "WAIT #1 (/q)", "");
    assert_says(s, 2, "QUEUE_PUSH (/q) (a)");
    assert_hears(s, 0, "00");
    leaves(s, 0);
    assert_hears(s, 1, "00");
}

static void ten_thousand_connections_come_wait_and_go(void **state)
{
    enum { MANY = 10000 };
    struct scene *s = *state;
    struct peer *guest = &s->peers[3];
    struct mu_session *many = calloc(MANY, sizeof *many);
    size_t before = s->service.budget.used;

    assert_non_null(many);
    guest->here = true;
    for (size_t i = 0; i < MANY; i++) {
        mu_session_init(&many[i], &s->service);
        assert_int_equal(mu_session_feed(&many[i], wire(MU_DIALECT_L, "WAIT #1 (/go) SET #17 'half'"), 0, NULL), 0);
    }
    assert_true(s->service.budget.used > before);
    for (size_t i = 0; i < MANY; i++)
        mu_session_leave(&many[i]);
    guest->here = false;
    assert_int_equal(s->service.budget.used, before);
    assert_says(s, 0, "SET (/go) ()");
    free(many);
}

/* ---- Giving up on a wait ---- */

static void cancel_wait_is_always_answered(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "CANCEL_WAIT", "01");
    assert_asks(s, 0, "CANCEL_WAIT CANCEL_WAIT", "01 01");
    assert_asks(s, 0, "WAIT #1 (/k)", "");
    assert_asks(s, 0, "CANCEL_WAIT", "01");
    assert_says(s, 1, "SET (/k) (v)");
    assert_hears(s, 0, "");
    assert_asks(s, 0, "BARRIER (/b) #2 CANCEL_WAIT", "01");
    joins(s, 3, MU_DIALECT_L1);
    assert_asks(s, 3, "CANCEL_WAIT", "01");
    assert_asks(s, 3, "WAIT #1 (/later) CANCEL_WAIT", "01");
    assert_says(s, 1, "SET (/later) (v)");
    assert_hears(s, 3, "");
}

static void a_cancel_that_crosses_the_wake_up_is_answered_after_it(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/k)", "");
    assert_says(s, 1, "SET (/k) (v)");
    assert_says(s, 0, "CANCEL_WAIT");
    assert_hears(s, 0, "00 01");
}

/* 1.13 says nothing when a wait times out; its next request does. */
static void an_abandoned_wait_of_1_13_sends_no_stray_byte(void **state)
{
    static const struct row requests[] = {
        { "NUM_KEYS", "#0" },       { "GET (/z)", "()" },   { "CHECK #1 (/k)", "01" },
        { "ADD (/n) #1", "#1" },    { "SET (/z) (v)", "" }, { "COMPARE_SET (/z) (x) (y)", "(x)" },
        { "WAIT #1 (/other)", "" }, { "WAIT #0", "00" },
    };
    static const enum mu_dialect legacies[] = { MU_DIALECT_L, MU_DIALECT_L0, MU_DIALECT_L1 };

    (void)state;
    for (size_t l = 0; l < COUNT(legacies); l++) {
        for (size_t i = 0; i < COUNT(requests); i++) {
            struct scene *s = malloc(sizeof *s);

            assert_non_null(s);
            scene_init(s, (struct muster_store_limits){ 0 }, legacies[l]);
            joins(s, 0, legacies[l]);
            joins(s, 1, MU_DIALECT_V);
            assert_asks(s, 0, "WAIT #1 (/k)", "");
            exchange(s, 0, &requests[i], 1);
            assert_says(s, 1, "SET (/k) (v)");
            assert_hears(s, 0, "");
            assert_asks(s, 0, "NUM_KEYS CHECK #1 (/k)", i == 3 || i == 4 ? "#2 00" : "#1 00");
            scene_done(s);
            free(s);
        }
    }
}

static void a_pending_wait_holds_nothing_back_in_2_2(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/k)", "");
    assert_asks(s, 0, "PING %1 SET (/x) (1) GET (/x) NUM_KEYS", "%1 (1) #1");
    assert_says(s, 1, "SET (/k) (v)");
    assert_hears(s, 0, "00");
}

static void a_client_may_write_what_it_waits_for(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/k) ADD (/k) #1 GET (/k)", "#1 00 (1)");
}

static void a_second_wait_is_not_released_by_the_key_of_the_first(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/first) WAIT #1 (/second)", "");
    assert_says(s, 1, "SET (/first) (1)");
    assert_hears(s, 0, "");
    assert_says(s, 1, "SET (/second) (1)");
    assert_hears(s, 0, "00");
}

static void a_killed_waiter_harms_nobody(void **state)
{
    struct scene *s = *state;

    assert_says(s, 0, "WAIT #2 (/k) (/l)");
    assert_says(s, 1, "WAIT #1 (/k)");
    leaves(s, 0);
    assert_says(s, 2, "SET (/k) (v) SET (/l) (v)");
    assert_hears(s, 1, "00");
}

/* ---- MULTI_SET and MULTI_GET ---- */

static void a_multi_set_is_applied_once_it_is_whole(void **state)
{
    struct scene *s = *state;
    struct mu_buf bytes = { 0 };

    wire_put(&bytes, MU_DIALECT_V, "MULTI_SET #3 (/a) (1) (/b) () (/c) (3)");
    joins(s, 3, MU_DIALECT_L0);
    assert_asks(s, 3, "WATCH_KEY (/a)", "03");
    assert_says(s, 1, "WAIT #2 (/a) (/c)");
    for (size_t i = 0; i + 1 < bytes.len; i++) {
        assert_int_equal(feeds(s, 0, mu_slice(bytes.data + i, 1)), 0);
        assert_asks(s, 2, "NUM_KEYS", "#0");
    }
    assert_int_equal(feeds(s, 0, mu_slice(bytes.data + bytes.len - 1, 1)), 0);
    assert_hears(s, 0, "");
    assert_hears(s, 1, "00");
    assert_hears(s, 3, "01 (/a) () (1)");
    assert_asks(s, 2, "NUM_KEYS", "#3");
    mu_buf_done(&bytes);
}

static void a_multi_set_is_its_sets_one_after_the_other(void **state)
{
    struct scene *s = *state;

    joins(s, 3, MU_DIALECT_L0);
    assert_asks(s, 3, "WATCH_KEY (/a)", "03");
    assert_says(s, 1, "MULTI_SET #2 (/a) (1) (/a) (2)");
    assert_hears(s, 3, "01 (/a) () (1) 00 (/a) (1) (2)");
    assert_asks(s, 1, "MULTI_SET #0", "");
    assert_asks(s, 1, "GET (/a)", "(2)");
}

static void multi_get_answers_in_the_order_asked(void **state)
{
    struct scene *s = *state;

    assert_says(s, 0, "MULTI_SET #3 (/a) (1) (/b) (22) (/c) ()");
    assert_asks(s, 1, "MULTI_GET #6 (/c) (/b) (/a) (/missing) (/b) (/a)", "() (22) (1) () (22) (1)");
    assert_asks(s, 1, "MULTI_GET #0", "");
}

static void list_keys_lists_what_num_keys_counts(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "LIST_KEYS", "#0");
    assert_says(s, 0, "SET (/k) (v) QUEUE_PUSH (/q) (x) WAIT #1 (/w)");
    assert_asks(s, 1, "NUM_KEYS LIST_KEYS", "#1 #1 (/k)");
}

static void watchers_are_told_before_the_next_request_is_answered(void **state)
{
    struct scene *s = *state;

    joins(s, 3, MU_DIALECT_L0);
    assert_asks(s, 3, "WATCH_KEY (/k)", "03");
    assert_asks(s, 0, "ADD (/k) #5 ADD (/k) #2 DELETE_KEY (/k) DELETE_KEY (/k)", "#5 #7 #1 #0");
    assert_hears(s, 3, "01 (/k) () (5) 00 (/k) (5) (7) 02 (/k) (7) ()");
    leaves(s, 3);
    assert_asks(s, 0, "ADD (/k) #1", "#1"); /* whoever writes next is not the worse for it */
}

/* ---- Bad input ---- */

static void good_requests_before_a_bad_one_are_answered(void **state)
{
    struct scene *s = *state;

    assert_says(s, 0, "SET (/k) (v)");
    assert_refused(s, 1, "GET (/k) NUM_KEYS FF GET (/k)");
    assert_hears(s, 1, "(v) #1");
    leaves(s, 1);
    assert_asks(s, 0, "GET (/k)", "(v)");
}

/* Byte by byte it is refused as well, at the last byte or before. */
static void assert_refused_in_pieces(struct scene *s, size_t who, const char *text)
{
    struct mu_slice bytes = wire(MU_DIALECT_V, text);
    int rc = 0;

    joins(s, who, MU_DIALECT_V);
    for (size_t i = 0; i < bytes.len && rc == 0; i++)
        rc = feeds(s, who, mu_slice(bytes.data + i, 1));
    assert_true(rc < 0);
    assert_hears(s, who, "");
    leaves(s, who);
}

static void a_bad_request_closes_its_own_connection_only(void **state)
{
    static const char *const bad[] = {
        "00", /* VALIDATE again */
        "13", /* a code past the last */
        "FF",
        "'GET / HTTP/1.1'",  /* a V GET with an absurd length, as it happens */
        "16 03 01 02 00 01", /* TLS: neither */
        "GET #2147483648",
        "GET #4611686018427387904",
        "SET (k) #9223372036854775808",
        "SET (k) #18446744073709551615",
        "CHECK #4611686018427387904",
        "WAIT #18446744073709551615",
        "MULTI_SET #9223372036854775808",
        "ADD (/text) #1",
        "BARRIER (/text) #1",
    };
    struct scene *s = *state;

    assert_says(s, 0, "SET (/text) (not a number)");
    assert_says(s, 1, "WAIT #1 (/k)");
    for (size_t i = 0; i < COUNT(bad); i++) {
        size_t before = s->service.budget.used;

        joins(s, 3, MU_DIALECT_V);
        s->err = (struct muster_error){ 0 };
        assert_refused(s, 3, bad[i]);
        assert_true(s->err.code < 0);
        assert_true(strlen(s->err.text) > 0);
        assert_hears(s, 3, "");
        leaves(s, 3);
        assert_refused_in_pieces(s, 3, bad[i]);
        assert_int_equal(s->service.budget.used, before);
        assert_asks(s, 0, "GET (/text)", "(not a number)");
        assert_hears(s, 1, "");
    }
    assert_says(s, 0, "SET (/k) ()");
    assert_hears(s, 1, "00");
}

static void strangers_are_refused_at_their_first_byte(void **state)
{
    static const char *const strangers[] = { "'GET / HTTP/1.1'", "16 03 01 02 00", "'SSH-2.0'", "FF", "0C" };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(strangers); i++) {
        joins(s, 3, MU_DIALECT_UNKNOWN);
        assert_int_equal(feeds(s, 3, mu_slice(wire(MU_DIALECT_V, strangers[i]).data, 1)), MUSTER_EPROTOCOL);
        assert_hears(s, 3, "");
        leaves(s, 3);
    }
}

/* Cut at every byte, then silence, then the end. */
static void a_half_sent_request_keeps_nobody_waiting(void **state)
{
    static const char *const requests[] = {
        "SET (/half) (value)",
        "COMPARE_SET (/half) () (new)",
        "GET (/half)",
        "ADD (/half) #1",
        "CHECK #2 (/a) (/b)",
        "WAIT #2 (/half) (/b)",
        "DELETE_KEY (/half)",
        "APPEND (/half) (more)",
        "MULTI_GET #2 (/a) (/b)",
        "MULTI_SET #2 (/a) (1) (/half) (2)",
        "PING %1",
        "QUEUE_PUSH (/half) (x)",
        "QUEUE_POP (/half)",
        "QUEUE_LEN (/half)",
        "BARRIER (/half) #2",
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(requests); i++) {
        struct mu_buf bytes = { 0 };

        wire_put(&bytes, MU_DIALECT_V, requests[i]);
        for (size_t len = 1; len < bytes.len; len++) {
            size_t before = s->service.budget.used;

            joins(s, 3, MU_DIALECT_V);
            assert_int_equal(feeds(s, 3, mu_slice(bytes.data, len)), 0);
            assert_asks(s, 0, "PING %7 NUM_KEYS QUEUE_LEN (/half)", "%7 #0 #0");
            assert_hears(s, 3, "");
            leaves(s, 3);
            assert_int_equal(s->service.budget.used, before);
        }
        mu_buf_done(&bytes);
    }
}

static void a_validate_cut_short_is_waited_for(void **state)
{
    struct scene *s = *state;

    for (size_t len = 0; len < 5; len++) {
        joins(s, 3, MU_DIALECT_UNKNOWN);
        assert_int_equal(feeds(s, 3, mu_slice(wire(MU_DIALECT_V, VALIDATE).data, len)), 0);
        assert_true(mu_session_deadline_ms(&s->peers[3].session) == 0);
        assert_asks(s, 0, "PING %7", "%7");
        leaves(s, 3);
    }
}

static void a_peer_that_does_not_read_is_dropped_alone(void **state)
{
    struct scene *s = *state;

    assert_says(s, 0, "SET (/k) (0123456789)");
    s->peers[1].reads_max = 40;
    assert_says(s, 1, "GET (/k) GET (/k) GET (/k) GET (/k) SET (/never) (x)");
    assert_true(s->peers[1].session.dead);
    assert_hears(s, 1, "(0123456789) (0123456789) (0123456789)");
    assert_asks(s, 0, "CHECK #1 (/never)", "01");
    leaves(s, 1);

    joins(s, 3, MU_DIALECT_V); /* nor is one that is dropped in the middle of a long answer sent the rest */
    s->peers[3].reads_max = 20;
    assert_says(s, 3, "MULTI_GET #4 (/k) (/k) (/k) (/k)");
    assert_hears(s, 3, "(0123456789) (0123456789)");
}

static void a_waiter_that_is_dead_is_not_woken_but_the_others_are(void **state)
{
    struct scene *s = *state;

    assert_says(s, 0, "WAIT #1 (/k)");
    assert_says(s, 1, "WAIT #1 (/k)");
    s->peers[0].session.dead = true;
    assert_says(s, 2, "SET (/k) (v)");
    assert_hears(s, 0, "");
    assert_hears(s, 1, "00");
}

/* ---- The grace of code 08 ---- */

static void an_append_in_two_segments_is_told_from_a_delete(void **state)
{
    struct scene *s = *state;

    joins(s, 3, MU_DIALECT_UNKNOWN);
    s->now_ms = 1000;
    assert_asks(s, 3, "08 (/k)", "");
    assert_true(mu_session_deadline_ms(&s->peers[3].session) == 1100);
    s->now_ms = 1099;
    assert_asks(s, 3, "", ""); /* a timer that is early changes nothing */
    assert_true(mu_session_deadline_ms(&s->peers[3].session) == 1100);
    assert_asks(s, 3, "(w)", "");
    assert_true(mu_session_deadline_ms(&s->peers[3].session) == 0);
    assert_asks(s, 0, "GET (/k)", "(w)");
    assert_asks(s, 3, "07 (/k)", "#1"); /* 2.1 for good */
}

static void a_delete_is_carried_out_when_the_grace_is_over(void **state)
{
    struct scene *s = *state;

    assert_says(s, 0, "SET (/k) (v) SET (/l) (v)");
    joins(s, 3, MU_DIALECT_UNKNOWN);
    s->now_ms = 1000;
    assert_asks(s, 3, "08 (/k)", "");
    assert_asks(s, 0, "CHECK #1 (/k)", "00");
    s->now_ms = 1100;
    assert_asks(s, 3, "", "#1");
    assert_true(mu_session_deadline_ms(&s->peers[3].session) == 0);
    assert_asks(s, 0, "CHECK #1 (/k)", "01");
    assert_asks(s, 3, "08 (/l)", "#1"); /* 1.13 for good: at once */
}

static void a_peer_may_leave_in_its_grace(void **state)
{
    struct scene *s = *state;

    assert_says(s, 0, "SET (/k) (v)");
    joins(s, 3, MU_DIALECT_UNKNOWN);
    assert_asks(s, 3, "08 (/k)", "");
    leaves(s, 3);
    assert_asks(s, 0, "CHECK #1 (/k)", "00");
}

/* ---- Room and memory ---- */

static const struct muster_store_limits small = {
    .key_bytes = 64, .value_bytes = 4096, .keys = 16, .request_bytes = 8192, .total_bytes = 10000
};

static void half_sent_requests_are_charged(void **state)
{
    struct scene *s = malloc(sizeof *s);
    char part[1000];

    (void)state;
    assert_non_null(s);
    memset(part, 'x', sizeof part);
    scene_init(s, small, MU_DIALECT_L);
    joins(s, 0, MU_DIALECT_V);
    for (size_t who = 1; who < PEERS; who++) {
        joins(s, who, MU_DIALECT_V);
        assert_says(s, who, "SET (/k) #4096");
    }
    assert_int_equal(feeds(s, 1, mu_slice(part, sizeof part)), 0);
    assert_true(s->service.transit.used >= sizeof part);
    assert_int_equal(feeds(s, 1, mu_slice(part, sizeof part)), 0);
    assert_int_equal(feeds(s, 2, mu_slice(part, sizeof part)), 0);
    while (feeds(s, 3, mu_slice(part, 100)) == 0) /* somewhere here the room is used up */
        assert_true(s->peers[3].session.unread.len < 4096);
    assert_int_equal(s->err.code, MUSTER_ELIMIT);
    assert_asks(s, 0, "PING %1 SET (/a) (1) GET (/a)", "%1 (1)"); /* small things still fit */
    for (size_t who = 1; who < PEERS; who++)
        leaves(s, who);
    joins(s, 1, MU_DIALECT_V);
    assert_says(s, 1, "SET (/k) #2048");
    for (size_t sent = 0; sent < 2048; sent += 512)
        assert_int_equal(feeds(s, 1, mu_slice(part, 512)), 0);
    assert_asks(s, 1, "NUM_KEYS", "#2");
    scene_done(s);
    free(s);
}

static void a_store_that_is_full_refuses_and_goes_on(void **state)
{
    struct scene *s = malloc(sizeof *s);
    int stored = 0;

    (void)state;
    assert_non_null(s);
    scene_init(s, small, MU_DIALECT_L);
    joins(s, 0, MU_DIALECT_V);
    joins(s, 1, MU_DIALECT_V);
    while (says(s, 1, "QUEUE_PUSH (/q) (0123456789012345678901234567890123456789)") == 0)
        stored++;
    assert_in_range(stored, 10, 10000 / 40);
    assert_int_equal(s->err.code, MUSTER_ELIMIT);
    assert_non_null(strstr(s->err.text, "QUEUE_PUSH"));
    leaves(s, 1);
    assert_says(s, 0, "QUEUE_POP (/q)");
    (void)takes(s, 0);
    assert_says(s, 0, "QUEUE_PUSH (/q) (0123456789012345678901234567890123456789)");
    scene_done(s);
    free(s);
}

static void a_multi_set_that_does_not_fit_keeps_the_pairs_that_did(void **state)
{
    struct mu_buf bytes = { 0 };
    struct scene *s = malloc(sizeof *s);

    (void)state;
    assert_non_null(s);
    scene_init(s, small, MU_DIALECT_L);
    joins(s, 0, MU_DIALECT_V);
    joins(s, 1, MU_DIALECT_V);
    wire_put(&bytes, MU_DIALECT_V, "MULTI_SET #3 (/a) (1) (/b)");
    wire_put_str(&bytes, 'x', 4000);
    wire_put(&bytes, MU_DIALECT_V, "(/c)");
    wire_put_str(&bytes, 'x', 4000);
    s->service.budget.max = s->service.table.share_max = 7000;
    assert_int_equal(feeds(s, 1, mu_buf_slice(&bytes)), MUSTER_ELIMIT);
    leaves(s, 1);
    assert_asks(s, 0, "CHECK #2 (/a) (/b) CHECK #1 (/c)", "00 01");
    scene_done(s);
    free(s);
    mu_buf_done(&bytes);
}

/* Either such a limit is not settled, or it works. */
static void a_request_limit_of_every_bit_is_a_limit_too(void **state)
{
    struct muster_store_limits limits = { .request_bytes = UINT64_MAX };
    struct scene *s;

    (void)state;
    if (mu_limits_settle(&limits, NULL) < 0)
        return;
    s = malloc(sizeof *s);
    assert_non_null(s);
    scene_init(s, limits, MU_DIALECT_L);
    joins(s, 0, MU_DIALECT_V);
    assert_asks(s, 0, "SET (/k) #1", "");
    assert_asks(s, 0, "'v' GET (/k)", "(v)");
    scene_done(s);
    free(s);
}

static void a_wait_of_131072_keys_may_come_byte_by_byte(void **state)
{
    struct scene *s = *state;
    struct mu_buf bytes = { 0 };

    wire_put(&bytes, MU_DIALECT_V, "WAIT #131072");
    for (int i = 0; i < 131071; i++)
        wire_put(&bytes, MU_DIALECT_V, "(/here)");
    wire_put(&bytes, MU_DIALECT_V, "(/k)");
    assert_says(s, 1, "SET (/here) ()");
    for (size_t i = 0; i < bytes.len; i++)
        assert_int_equal(feeds(s, 0, mu_slice(bytes.data + i, 1)), 0);
    assert_in_range(takes_turns(s, 0), 10, 131072 / 100);
    assert_hears(s, 0, "");
    assert_says(s, 1, "SET (/k) ()");
    assert_hears(s, 0, "00");
    mu_buf_done(&bytes);
}

/* ---- What would take long ---- */

enum { LONG_LIST = 30000 };

/* A request about very many keys, /0 and so on. */
static void says_long(struct scene *s, size_t who, const char *op, const char *item, const char *behind)
{
    enum mu_dialect speaks = s->peers[who].speaks;
    struct mu_buf bytes = { 0 };
    char text[64];

    wire_put(&bytes, speaks, op);
    wire_put_len(&bytes, LONG_LIST);
    for (int i = 0; i < LONG_LIST; i++) {
        (void)snprintf(text, sizeof text, item, i, i);
        wire_put(&bytes, speaks, text);
    }
    wire_put(&bytes, speaks, behind);
    assert_int_equal(feeds(s, who, mu_buf_slice(&bytes)), 0);
    assert_true(mu_session_is_busy(&s->peers[who].session));
    mu_buf_done(&bytes);
}

static void works_once(struct scene *s, size_t who)
{
    assert_true(mu_session_is_busy(&s->peers[who].session));
    assert_int_equal(mu_session_work(&s->peers[who].session, s->now_ms, &s->err), 0);
}

static void a_long_wait_goes_in_turns_and_others_are_served_in_between(void **state)
{
    struct scene *s = *state;
    size_t before = s->service.budget.used, used = 0;
    char text[64];

    says_long(s, 0, "WAIT", "(/%d)", "PING %7");
    assert_int_equal(s->service.budget.used, before); /* nothing is done before its turn */
    for (unsigned turn = 0; mu_session_is_busy(&s->peers[0].session); turn++) {
        works_once(s, 0);
        assert_true(s->service.budget.used > used);
        used = s->service.budget.used;
        (void)snprintf(text, sizeof text, "ADD (/n) #1 SET (/%u) () GET (/n)", turn); /* a key of the first part, too */
        assert_says(s, 1, text);
        (void)takes(s, 1);
    }
    assert_hears(s, 0, "%7"); /* what came behind it */
    assert_says(s, 1, "DELETE_KEY (/0)");
    (void)takes(s, 1);
    says_long(s, 1, "MULTI_SET", "(/%d) (%d)", "");
    while (mu_session_is_busy(&s->peers[1].session)) {
        assert_hears(s, 0, "");
        works_once(s, 1);
    }
    assert_hears(s, 0, "00");
}

static void a_long_wait_whose_keys_come_meanwhile_is_answered_at_its_end(void **state)
{
    struct scene *s = *state;

    says_long(s, 0, "WAIT", "(/%d)", "");
    works_once(s, 0);
    says_long(s, 1, "MULTI_SET", "(/%d) (%d)", "");
    (void)takes_turns(s, 1);
    while (mu_session_is_busy(&s->peers[0].session)) {
        assert_hears(s, 0, ""); /* all keys are there, but not all were looked at */
        works_once(s, 0);
    }
    assert_hears(s, 0, "00");
    assert_asks(s, 0, "PING %1", "%1");
}

static void long_lists_are_checked_read_and_written_in_turns(void **state)
{
    struct scene *s = *state;

    says_long(s, 0, "MULTI_SET", "(/%d) (v)", "GET (/29999)");
    assert_in_range(takes_turns(s, 0), 5, 1000);
    assert_hears(s, 0, "(v)");
    says_long(s, 0, "CHECK", "(/%d)", "PING %1");
    assert_in_range(takes_turns(s, 0), 5, 1000);
    assert_hears(s, 0, "00 %1");
    assert_asks(s, 1, "DELETE_KEY (/5)", "#1");
    says_long(s, 0, "CHECK", "(/%d)", "PING %2");
    assert_int_equal(takes_turns(s, 0), 1); /* the first part says no */
    assert_hears(s, 0, "01 %2");
    says_long(s, 1, "WAIT", "(/%d)", "");
    (void)takes_turns(s, 1);
    assert_hears(s, 1, "");
    assert_asks(s, 0, "SET (/5) () PING %3", "%3");
    assert_hears(s, 1, "00");
}

static void who_leaves_in_the_middle_of_a_long_wait_leaves_nothing(void **state)
{
    struct scene *s = *state;
    size_t before = s->service.budget.used;
    unsigned turns = 0;

    for (unsigned after = 0; after < 12; after += 3) {
        says_long(s, 0, "WAIT", "(/%d)", "");
        for (unsigned i = 0; i < after; i++)
            works_once(s, 0);
        while (mu_session_leave_some(&s->peers[0].session))
            assert_asks(s, 1, after % 2 == 0 ? "SET (/3) () DELETE_KEY (/3)" : "PING %1 CHECK #0",
                        after % 2 == 0 ? "#1" : "%1 00");
        leaves(s, 0);
        assert_int_equal(s->service.budget.used, before);
        joins(s, 0, MU_DIALECT_V);
        turns++;
    }
    assert_int_equal(turns, 4);
}

static void a_long_wait_is_canceled_in_turns(void **state)
{
    struct scene *s = *state;
    size_t before = s->service.budget.used;

    says_long(s, 0, "WAIT", "(/%d)", "");
    (void)takes_turns(s, 0);
    assert_says(s, 0, "CANCEL_WAIT PING %1");
    assert_true(mu_session_is_busy(&s->peers[0].session));
    assert_in_range(takes_turns(s, 0), 5, 1000);
    assert_hears(s, 0, "01 %1");
    assert_int_equal(s->service.budget.used, before);
    says_long(s, 0, "WAIT", "(/%d)", "");
    (void)takes_turns(s, 0);
    assert_says(s, 0, "WAIT #1 (/k)"); /* replaces it */
    (void)takes_turns(s, 0);
    says_long(s, 1, "MULTI_SET", "(/%d) (v)", "");
    (void)takes_turns(s, 1);
    assert_hears(s, 0, "");
    assert_says(s, 1, "SET (/k) (v)");
    assert_hears(s, 0, "00");
}

static void a_long_wait_there_is_no_room_for_is_refused_and_given_back(void **state)
{
    struct scene *s = *state;
    size_t before = s->service.budget.used;
    int rc = 0;

    says_long(s, 0, "WAIT", "(/%d)", "");
    s->service.table.share_max = 2000000;
    while (rc == 0 && mu_session_is_busy(&s->peers[0].session))
        rc = mu_session_work(&s->peers[0].session, s->now_ms, &s->err);
    assert_int_equal(rc, MUSTER_ELIMIT);
    leaves(s, 0);
    assert_int_equal(s->service.budget.used, before);
}

/* Whatever allocation fails: at most the connection that needed it is lost, and everything is given back. */
static void a_conversation_survives_any_allocation_that_fails(void **state)
{
    static const struct {
        size_t who;
        const char *text;
    } lines[] = {
        { 0, "WAIT #2 (/a) (/b)" },
        { 1, "SET #2 '/'" },
        { 2, "WATCH_KEY (/a)" },
        { 1, "'a' #2000 'begun'" },
        { 3, "BARRIER (/c) #2" },
        { 0, "PING %1 SET (/x) (1) GET" },
        { 3, "QUEUE_PUSH (/q) (x)" },
        { 4, "MULTI_SET #2 (/a) (1) (/b) (2)" },
        { 4, "APPEND (/a) (longer than before)" },
        { 0, "(/x) CANCEL_WAIT" },
        { 4, "MULTI_GET #2 (/a) (/q)" },
        { 3, "QUEUE_POP (/q) LIST_KEYS" },
        { 4, "BARRIER (/c) #2" },
        { 4, "COMPARE_SET (/a) () (z) DELETE_KEY (/a)" },
    };
    static const enum mu_dialect dialects[] = { MU_DIALECT_V, MU_DIALECT_V, MU_DIALECT_L0, MU_DIALECT_V, MU_DIALECT_V };
    static struct scene s;

    (void)state;
    FOR_EACH_FAILURE (n) {
        size_t lost = 0;

        scene_init(&s, (struct muster_store_limits){ 0 }, MU_DIALECT_L);
        for (size_t i = 0; i < COUNT(dialects); i++) {
            joins(&s, i, dialects[i]);
        }
        for (size_t i = 0; i < COUNT(lines); i++) {
            if (s.peers[lines[i].who].here && says(&s, lines[i].who, lines[i].text) < 0) {
                leaves(&s, lines[i].who);
                lost++;
            }
        }
        assert_true(lost <= (fail_alloc_hit() ? 1 : 0));
        scene_done(&s);
    }
}

#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* ---- A job that meets in the engine ---- */

static void push_nothing(void *ctx, struct mu_engine_peer *peer, uint32_t watch, int64_t revision,
                         const struct mu_engine_change *changes, size_t count)
{
    (void)ctx;
    (void)peer;
    (void)watch;
    (void)revision;
    (void)changes;
    (void)count;
}

static bool put_document(void *ctx, struct mu_slice run_id, struct mu_slice document, bool ended)
{
    struct scene *s = ctx;

    (void)ended;
    assert_true(mu_slice_equal(run_id, mu_slice_str("job")));
    return mu_service_put(&s->service, mu_slice_str("/doc.job"), document);
}

/* It ends its lease, and is gone. */
static void node_goes(struct mu_engine *engine, struct mu_engine_peer *node)
{
    assert_int_equal(mu_engine_revoke(engine, node, 5, mu_slice("", 0), NULL), MU_ENGINE_OK);
    mu_engine_leave(engine, node, false, 0);
}

static bool has_outsider(struct mu_engine *engine, struct mu_engine_peer *node)
{
    struct mu_engine_found found;
    bool has;

    assert_int_equal(mu_engine_range(engine, node, mu_slice_str(MU_ENGINE_OUTSIDERS), false, 0, &found), MU_ENGINE_OK);
    has = found.count > 0;
    mu_engine_found_done(engine, &found);
    return has;
}

/* A node of job "job" is connected to the engine. */
static struct mu_engine *engine_with_job(struct scene *s, struct mu_engine_peer *node)
{
    struct mu_engine_config config = { .budget = &s->service.budget,
                                       .revision = MU_ENGINE_REVISION_MIN,
                                       .push = push_nothing,
                                       .document = put_document,
                                       .ctx = s };
    const struct mu_engine_grant grant = { .lease = 5, .ttl_ms = 5000, .bound = true };
    struct mu_engine *engine = mu_engine_new(&config);

    assert_non_null(engine);
    mu_engine_peer_init(node);
    assert_int_equal(mu_engine_hello(engine, node, mu_slice_str("job"), false), MU_ENGINE_OK);
    assert_int_equal(mu_engine_grant(engine, node, &grant, 0), MU_ENGINE_OK);
    s->service.engine = engine;
    s->service.documents = "/doc.";
    return engine;
}

/* A peer writes the document: what it does then. */
enum write_ends { WRITE_GOES_ON, WRITE_WAITS, WRITE_IS_REFUSED };

static void the_document_of_a_job_in_the_engine_is_waited_for(void **state)
{
    static const struct {
        const char *request;
        enum write_ends ends;
    } rows[] = {
        { "SET (/doc.job) (x)", WRITE_WAITS },
        { "COMPARE_SET (/doc.job) () (x)", WRITE_WAITS },
        { "ADD (/doc.job) #1", WRITE_IS_REFUSED },
        { "APPEND (/doc.job) (x)", WRITE_IS_REFUSED },
        { "MULTI_SET #2 (/a) (x) (/doc.job) (x)", WRITE_IS_REFUSED },
        { "QUEUE_PUSH (/doc.job) (x)", WRITE_IS_REFUSED },
        { "SET (/doc.job2) (x)", WRITE_GOES_ON },
        { "SET (/doc.jo) (x)", WRITE_GOES_ON },
        { "SET (/doc.) (x)", WRITE_GOES_ON },
        { "SET (doc.job) (x)", WRITE_GOES_ON },
        { "CHECK #1 (/doc.job)", WRITE_GOES_ON },
        { "DELETE_KEY (/doc.job)", WRITE_GOES_ON },
    };
    struct mu_engine_peer node;
    struct scene *s = *state;
    struct mu_engine *engine = engine_with_job(s, &node);

    for (size_t i = 0; i < COUNT(rows); i++) {
        joins(s, 4, MU_DIALECT_V);
        assert_int_equal(says(s, 4, rows[i].request) < 0, rows[i].ends == WRITE_IS_REFUSED);
        assert_int_equal(s->peers[4].session.strayed, rows[i].ends == WRITE_IS_REFUSED);
        assert_int_equal(s->peers[4].session.state == MU_SESSION_OUTSIDE, rows[i].ends == WRITE_WAITS);
        assert_int_equal(has_outsider(engine, &node), rows[i].ends == WRITE_WAITS);
        assert_true(!s->peers[4].session.strayed || strstr(s->err.text, "the document of job 'job'") != NULL);
        leaves(s, 4);
        assert_false(has_outsider(engine, &node));
    }
    assert_asks(s, 0, "CHECK #1 (/doc.job)", "01");
    node_goes(engine, &node);
    assert_asks(s, 0, "COMPARE_SET (/doc.job) () (x)", "(x)"); /* the job has gone */
    mu_engine_free(engine);
}

/* In each of these ways. */
static void who_waits_for_a_document_goes_on_when(const char *how, struct scene *s)
{
    static const struct mu_engine_op ops[] = { { .kind = MU_ENGINE_YIELD },
                                               { .kind = MU_ENGINE_DOCUMENT, .value = { "the engine's", 12 } } };
    struct mu_engine_peer node;
    struct mu_engine *engine = engine_with_job(s, &node);
    const struct mu_engine_grant rest = { .lease = 7, .ttl_ms = 60000 };
    bool yields = strcmp(how, "the job moves") == 0, stays = strcmp(how, "nobody is in it") == 0;
    bool ends = stays || strcmp(how, "the job is over") == 0;
    struct mu_engine_txn txn = { .id = 1, .then = yields ? ops : ops + 1, .then_count = yields ? 2 : 1 };
    uint64_t openings;
    bool held;

    joins(s, 3, MU_DIALECT_V);
    joins(s, 4, MU_DIALECT_L1);
    assert_asks(s, 3, "COMPARE_SET (/doc.job) () (third)", "");
    assert_asks(s, 4, "COMPARE_SET (/doc.job) () (fourth)", "");
    assert_asks(s, 3, "CHECK #1 (/doc.job)", ""); /* it stands behind that */
    openings = mu_engine_openings(engine);
    if (stays)
        assert_int_equal(mu_engine_grant(engine, &node, &rest, 0), MU_ENGINE_OK);
    if (ends)
        node_goes(engine, &node);
    else
        assert_int_equal(mu_engine_txn(engine, &node, &txn, &held), MU_ENGINE_OK);
    assert_true(mu_engine_openings(engine) > openings);
    assert_int_equal(mu_session_feed(&s->peers[3].session, mu_slice("", 0), 0, &s->err), 0);
    assert_int_equal(mu_session_feed(&s->peers[4].session, mu_slice("", 0), 0, &s->err), 0);
    assert_hears(s, 3, ends ? "(third) 00" : "(the engine's) 00");
    assert_hears(s, 4, ends ? "(third)" : "(the engine's)");
    assert_false(!ends && has_outsider(engine, &node));
    leaves(s, 3);
    leaves(s, 4);
    if (!ends)
        mu_engine_leave(engine, &node, false, 0);
    mu_engine_free(engine);
    s->service.engine = NULL;
    assert_true(mu_service_put(&s->service, mu_slice_str("/doc.job"), mu_slice_str("")));
}

static void who_waits_for_a_document_goes_on_when_it_is_there_or_the_job_is_over(void **state)
{
    struct scene *s = *state;

    who_waits_for_a_document_goes_on_when("the job moves", s);
    who_waits_for_a_document_goes_on_when("it has ended in a document", s);
    who_waits_for_a_document_goes_on_when("the job is over", s);
    who_waits_for_a_document_goes_on_when("nobody is in it", s);
}

/* Also if somebody is connected who takes no part. */
static void who_comes_when_nobody_is_in_the_job_goes_on_and_the_job_has_moved(void **state)
{
    static const struct mu_engine_op put = { .kind = MU_ENGINE_PUT, .key = { "k", 1 }, .value = { "v", 1 } };
    const struct mu_engine_txn txn = { .id = 1, .then = &put, .then_count = 1 };
    struct mu_engine_peer node;
    struct scene *s = *state;
    struct mu_engine *engine = engine_with_job(s, &node);
    bool held;

    assert_int_equal(mu_engine_revoke(engine, &node, 5, mu_slice("", 0), NULL), MU_ENGINE_OK); /* it leaves */
    assert_asks(s, 0, "COMPARE_SET (/doc.job) () (x)", "(x)");
    assert_int_equal(mu_engine_txn(engine, &node, &txn, &held), MU_ENGINE_MOVED);
    mu_engine_leave(engine, &node, false, 0);
    mu_engine_free(engine);
}

/* One job is over, and another one of its name has begun, before it looks again. */
static void who_waits_for_one_job_does_not_wait_for_the_next_of_that_name(void **state)
{
    struct mu_engine_peer node, other;
    struct scene *s = *state;
    struct mu_engine *engine = engine_with_job(s, &node);
    const struct mu_engine_grant grant = { .lease = 6, .ttl_ms = 5000, .bound = true };

    joins(s, 4, MU_DIALECT_V);
    assert_asks(s, 4, "COMPARE_SET (/doc.job) () (x)", "");
    assert_int_equal(mu_engine_revoke(engine, &node, 5, mu_slice("", 0), NULL), MU_ENGINE_OK);
    mu_engine_leave(engine, &node, false, 0);
    mu_engine_peer_init(&other);
    assert_int_equal(mu_engine_hello(engine, &other, mu_slice_str("job"), false), MU_ENGINE_OK);
    assert_int_equal(mu_engine_grant(engine, &other, &grant, 0), MU_ENGINE_OK);
    assert_int_equal(mu_session_feed(&s->peers[4].session, mu_slice("", 0), 0, &s->err), 0);
    assert_true(has_outsider(engine, &other)); /* it is an outsider of that one now */
    leaves(s, 4);
    assert_false(has_outsider(engine, &other));
    mu_engine_leave(engine, &other, false, 0);
    mu_engine_free(engine);
}

static bool has_old_outsider(struct mu_engine *engine, struct mu_engine_peer *node)
{
    struct mu_engine_found found;
    bool is;

    assert_int_equal(mu_engine_range(engine, node, mu_slice_str(MU_ENGINE_OUTSIDERS), false, 0, &found), MU_ENGINE_OK);
    assert_int_equal(found.count, 1);
    is = mu_slice_equal(mu_engine_kv(&found, 0).value, mu_slice_str("{\"v\":2,\"old\":1}"));
    mu_engine_found_done(engine, &found);
    return is;
}

static void while_one_of_them_speaks_an_old_protocol_the_job_knows(void **state)
{
    struct mu_engine_peer node;
    struct scene *s = *state;
    struct mu_engine *engine = engine_with_job(s, &node);

    joins(s, 3, MU_DIALECT_V);
    joins(s, 4, MU_DIALECT_L1);
    assert_asks(s, 3, "COMPARE_SET (/doc.job) () (x)", "");
    assert_false(has_old_outsider(engine, &node));
    assert_asks(s, 4, "COMPARE_SET (/doc.job) () (x)", "");
    assert_true(has_old_outsider(engine, &node));
    leaves(s, 4);
    assert_false(has_old_outsider(engine, &node));
    leaves(s, 3);
    mu_engine_leave(engine, &node, false, 0);
    mu_engine_free(engine);
}

static void a_job_that_wants_the_engine_only_refuses_those_who_wait(void **state)
{
    struct mu_engine_peer node, other;
    struct scene *s = *state;
    struct mu_engine *engine = engine_with_job(s, &node);

    joins(s, 4, MU_DIALECT_V);
    assert_asks(s, 4, "COMPARE_SET (/doc.job) () (x)", "");
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/job)", "01");
    mu_engine_peer_init(&other);
    assert_int_equal(mu_engine_hello(engine, &other, mu_slice_str("job"), true), MU_ENGINE_OK);
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/job)", "00");
    assert_int_equal(mu_session_feed(&s->peers[4].session, mu_slice("", 0), 0, &s->err), MUSTER_EINVAL);
    assert_string_equal(s->err.text,
                        "it asks for the document of job 'job', which meets in the engine alone (engine=only)");
    leaves(s, 4);
    mu_engine_leave(engine, &node, false, 0);
    mu_engine_leave(engine, &other, false, 0);
    mu_engine_free(engine);
}

static void who_goes_on_sending_while_it_waits_is_refused(void **state)
{
    struct mu_engine_peer node;
    struct scene *s = *state;
    struct mu_engine *engine = engine_with_job(s, &node);
    int rc = 0;

    s->service.limits.request_bytes = 2000;
    joins(s, 4, MU_DIALECT_V);
    assert_asks(s, 4, "COMPARE_SET (/doc.job) () (x)", "");
    for (unsigned i = 0; i < 1000 && rc == 0; i++)
        rc = says(s, 4, "NUM_KEYS");
    assert_int_equal(rc, 0); /* a byte each */
    for (unsigned i = 0; i < 1000 && rc == 0; i++)
        rc = says(s, 4, "NUM_KEYS");
    assert_int_equal(rc, MUSTER_ELIMIT);
    leaves(s, 4);
    mu_engine_leave(engine, &node, false, 0);
    mu_engine_free(engine);
}

/* Of any job, before there is an engine. Others' keys are free. */
static void where_jobs_have_a_token_nobody_writes_documents(void **state)
{
    static const struct {
        const char *request;
        bool refused;
    } rows[] = {
        { "SET (/doc.job) (x)", true },
        { "COMPARE_SET (/doc.job) () (x)", true },
        { "ADD (/doc.) #1", true },
        { "APPEND (/doc.job) (x)", true },
        { "MULTI_SET #2 (/a) (x) (/doc.job) (x)", true },
        { "QUEUE_PUSH (/doc.job) (x)", true },
        { "SET (/note.job/host) (x)", true },
        { "COMPARE_SET (/note.job/host) () (x)", true },
        { "COMPARE_SET (/note.job/host) () ()", true },
        { "COMPARE_SET (/note.job/host) (x) (y)", true },
        { "COMPARE_SET (/note.job/host) (x) (x)", false }, /* a question */
        { "COMPARE_SET (/doc.job) (x) (x)", true },
        { "SET (/do) (x)", false },
        { "SET (/noted) (x)", false },
        { "CHECK #1 (/doc.job)", false },
    };
    struct scene *s = *state;

    s->service.offers_engine = true;
    s->service.documents = "/doc.";
    mu_service_close_documents(&s->service, "/note.");
    for (size_t i = 0; i < COUNT(rows); i++) {
        joins(s, 4, MU_DIALECT_V);
        assert_int_equal(says(s, 4, rows[i].request) < 0, rows[i].refused);
        assert_int_equal(s->peers[4].session.strayed, rows[i].refused);
        assert_true(!rows[i].refused ||
                    strstr(s->err.text, "but this store has a token: its jobs meet in the engine alone") != NULL);
        leaves(s, 4);
    }
    assert_asks(s, 0, "CHECK #1 (/doc.job)", "01");
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/job)", "00"); /* so that a node without the engine gives up */
}

static void it_can_be_asked_whether_a_job_meets_in_the_engine_alone(void **state)
{
    struct mu_engine_peer node, other;
    struct scene *s = *state;
    struct mu_engine *engine;

    mu_engine_peer_init(&other);
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/job)", "01");
    engine = engine_with_job(s, &node);
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/job)", "01"); /* which takes outsiders */
    assert_int_equal(mu_engine_hello(engine, &other, mu_slice_str("job"), true), MU_ENGINE_OK);
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/job)", "00");
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/other)", "01");
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/)", "01");
    assert_asks(s, 0, "CHECK #2 (muster/engine/1/job) (x)", "01");
    assert_int_equal(s->peers[0].session.state, MU_SESSION_READING);
    node_goes(engine, &node);
    mu_engine_leave(engine, &other, false, 0);
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/job)", "01");
    mu_engine_free(engine);
}

/* As its host wants it: others come before the first node has said HELLO. */
static void a_job_of_which_the_store_knows_that_it_wants_the_engine_only_never_has_a_document(void **state)
{
    struct mu_engine_peer node;
    struct scene *s = *state;
    struct mu_engine *engine;

    s->service.documents = "/doc.";
    s->service.only = "job";
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/job)", "00");
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/other)", "01");
    assert_asks(s, 0, "COMPARE_SET (/doc.other) () (x)", "(x)");
    for (unsigned i = 0; i < 2; i++) {
        joins(s, 4, MU_DIALECT_V);
        assert_true(says(s, 4, i == 0 ? "COMPARE_SET (/doc.job) () (x)" : "SET (/doc.job) (x)") < 0);
        assert_true(s->peers[4].session.strayed);
        assert_string_equal(s->err.text,
                            "it asks for the document of job 'job', which meets in the engine alone (engine=only)");
        leaves(s, 4);
    }
    engine = engine_with_job(s, &node); /* which has not said so */
    assert_asks(s, 0, "CHECK #1 (muster/engine/1/job)", "00");
    node_goes(engine, &node);
    mu_engine_free(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_1_13_was_seen_to_say_is_answered_byte_for_byte),
        test(and_so_it_is_when_the_dialect_must_be_found_out),
        cmocka_unit_test(the_same_with_the_codes_of_2_2_is_answered_byte_for_byte),
        cmocka_unit_test(what_2_1_says_is_answered),
        test(validate_is_silent),
        test(all_dialects_share_the_keys),
        test(a_wait_for_two_keys_ends_with_one_byte),
        test(only_a_compare_set_that_creates_wakes),
        test(a_barrier_of_three_lets_all_go),
        test(consumers_of_a_queue_get_an_item_each),
        test(an_item_is_passed_on_when_its_consumer_is_cut_off),
        test(ten_thousand_connections_come_wait_and_go),
        test(cancel_wait_is_always_answered),
        test(a_cancel_that_crosses_the_wake_up_is_answered_after_it),
        cmocka_unit_test(an_abandoned_wait_of_1_13_sends_no_stray_byte),
        test(a_pending_wait_holds_nothing_back_in_2_2),
        test(a_client_may_write_what_it_waits_for),
        test(a_second_wait_is_not_released_by_the_key_of_the_first),
        test(a_killed_waiter_harms_nobody),
        test(a_multi_set_is_applied_once_it_is_whole),
        test(a_multi_set_is_its_sets_one_after_the_other),
        test(multi_get_answers_in_the_order_asked),
        test(list_keys_lists_what_num_keys_counts),
        test(watchers_are_told_before_the_next_request_is_answered),
        test(good_requests_before_a_bad_one_are_answered),
        test(a_bad_request_closes_its_own_connection_only),
        test(strangers_are_refused_at_their_first_byte),
        test(a_half_sent_request_keeps_nobody_waiting),
        test(a_validate_cut_short_is_waited_for),
        test(a_peer_that_does_not_read_is_dropped_alone),
        test(a_waiter_that_is_dead_is_not_woken_but_the_others_are),
        test(an_append_in_two_segments_is_told_from_a_delete),
        test(a_delete_is_carried_out_when_the_grace_is_over),
        test(a_peer_may_leave_in_its_grace),
        cmocka_unit_test(half_sent_requests_are_charged),
        cmocka_unit_test(a_store_that_is_full_refuses_and_goes_on),
        cmocka_unit_test(a_multi_set_that_does_not_fit_keeps_the_pairs_that_did),
        cmocka_unit_test(a_request_limit_of_every_bit_is_a_limit_too),
        test(a_wait_of_131072_keys_may_come_byte_by_byte),
        test(a_long_wait_goes_in_turns_and_others_are_served_in_between),
        test(a_long_wait_whose_keys_come_meanwhile_is_answered_at_its_end),
        test(long_lists_are_checked_read_and_written_in_turns),
        test(who_leaves_in_the_middle_of_a_long_wait_leaves_nothing),
        test(a_long_wait_is_canceled_in_turns),
        test(a_long_wait_there_is_no_room_for_is_refused_and_given_back),
        test(the_document_of_a_job_in_the_engine_is_waited_for),
        test(who_waits_for_a_document_goes_on_when_it_is_there_or_the_job_is_over),
        test(who_comes_when_nobody_is_in_the_job_goes_on_and_the_job_has_moved),
        test(who_waits_for_one_job_does_not_wait_for_the_next_of_that_name),
        test(while_one_of_them_speaks_an_old_protocol_the_job_knows),
        test(a_job_that_wants_the_engine_only_refuses_those_who_wait),
        test(who_goes_on_sending_while_it_waits_is_refused),
        test(it_can_be_asked_whether_a_job_meets_in_the_engine_alone),
        test(a_job_of_which_the_store_knows_that_it_wants_the_engine_only_never_has_a_document),
        test(where_jobs_have_a_token_nobody_writes_documents),
        cmocka_unit_test(a_conversation_survives_any_allocation_that_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
