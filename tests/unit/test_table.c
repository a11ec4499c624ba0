/* The table: what each request answers, whom it wakes, whom it tells, and that nothing is left behind. */
#include "failmalloc.h"
#include "pure.h"
#include "store/table.h"
#include "wire.h"

#include <inttypes.h>
#include <stdio.h>

enum { PEERS = 8, VALUE_BYTES_MAX = 100, TRACE_BYTES = 2048 };

struct scene {
    struct mu_budget budget;
    struct mu_table table;
    struct mu_peer peers[PEERS];
    char trace[TRACE_BYTES];
    size_t trace_len;
};

/* ---- Telling what happened ---- */

static void say(struct scene *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct scene *s, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    s->trace_len += (size_t)vsnprintf(s->trace + s->trace_len, TRACE_BYTES - s->trace_len, format, args);
    va_end(args);
    assert_true(s->trace_len < TRACE_BYTES);
}

static void say_bytes(struct scene *s, struct mu_slice bytes)
{
    say(s, "'%.*s'", (int)bytes.len, bytes.len == 0 ? "" : bytes.data);
}

static size_t number_of(const struct scene *s, const struct mu_peer *peer)
{
    assert_in_range(peer, &s->peers[0], &s->peers[PEERS - 1]);
    return (size_t)(peer - s->peers);
}

static void say_answer(struct scene *s, const struct mu_answer *answer)
{
    switch (answer->kind) {
    case MU_ANSWER_NONE:
        say(s, "-");
        break;
    case MU_ANSWER_BYTE:
        say(s, "byte %" PRId64, answer->number);
        break;
    case MU_ANSWER_WORD:
        say(s, "word %" PRId64, answer->number);
        break;
    case MU_ANSWER_NUMBER:
        say(s, "%" PRId64, answer->number);
        break;
    case MU_ANSWER_BYTES:
        say_bytes(s, answer->bytes);
        break;
    case MU_ANSWER_VALUES:
        say(s, "values");
        break;
    case MU_ANSWER_KEYS:
        say(s, "%" PRId64 " keys", answer->number);
        break;
    case MU_ANSWER_REFUSED:
        say(s, "refused");
        break;
    case MU_ANSWER_POPPED:
        say(s, "%" PRId64, answer->number);
        if (answer->number > 0) {
            say(s, " ");
            say_bytes(s, answer->bytes);
        }
        break;
    }
}

static void say_change(struct scene *s, const struct mu_change *change)
{
    static const char *const kinds[] = {
        [MU_KEY_UPDATED] = "updated", [MU_KEY_CREATED] = "created", [MU_KEY_DELETED] = "deleted"
    };

    if (change->watchers == NULL)
        return;
    say(s, "; tells");
    for (const struct mu_list *link = change->watchers->next; link != change->watchers; link = link->next)
        say(s, " %zu", number_of(s, mu_watch_peer(link)));
    say(s, " %s ", kinds[change->kind]);
    say_bytes(s, change->key);
    say(s, " ");
    say_bytes(s, change->before);
    say(s, " ");
    say_bytes(s, change->after);
}

static void say_woken(struct scene *s)
{
    struct mu_peer *peer = mu_table_pop_woken(&s->table);

    if (peer != NULL)
        say(s, "; wakes");
    for (; peer != NULL; peer = mu_table_pop_woken(&s->table))
        say(s, " %zu", number_of(s, peer));
}

static struct mu_request request_of(const char *text)
{
    static const struct muster_store_limits limits = { UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 0, 0, 0, 0 };
    struct mu_codec codec;
    struct mu_request request;
    struct mu_slice bytes;
    size_t used = 0;

    mu_codec_init(&codec, &limits, MU_DIALECT_L0);
    codec.dialect = strncmp(text, "WATCH_KEY", 9) == 0 ? MU_DIALECT_L0 : MU_DIALECT_V;
    bytes = wire(codec.dialect, text);
    assert_int_equal(mu_codec_next(&codec, bytes, 0, &request, &used, NULL), MU_CODEC_REQUEST);
    assert_int_equal(used, bytes.len);
    return request;
}

/* One request of one peer: the answer, then who is told of a change, then who is woken. Allocates nothing. */
static const char *ask(struct scene *s, size_t who, const char *text)
{
    struct mu_request request = request_of(text);
    struct muster_error err = { 0 };
    struct mu_answer answer;

    s->trace_len = 0;
    mu_table_step(&s->table, &s->peers[who], &request, &answer, &err);
    assert_int_equal(answer.kind == MU_ANSWER_REFUSED, err.code != 0);
    say_answer(s, &answer);
    say_change(s, &answer.change);
    say_woken(s);
    if (s->budget.max != 0)
        assert_true(s->budget.used <= s->budget.max);
    return s->trace;
}

static const char *leave(struct scene *s, size_t who)
{
    s->trace_len = 0;
    say(s, "gone");
    mu_table_leave(&s->table, &s->peers[who]);
    say_woken(s);
    return s->trace;
}

/* All that can be seen of a table, in one text. */
static const char *contents(struct scene *s)
{
    size_t keys = 0;

    s->trace_len = 0;
    say(s, "%zu bytes:", s->budget.used);
    for (const struct mu_entry *e = mu_table_next(&s->table, NULL); e != NULL; e = mu_table_next(&s->table, e)) {
        struct mu_slice key = mu_entry_key(e);

        say(s, " ");
        say_bytes(s, key);
        say(s, "=");
        say_bytes(s, mu_table_get(&s->table, key));
        keys++;
    }
    assert_int_equal(keys, s->table.keys);
    return s->trace;
}

#define assert_asks(s, who, text, trace) assert_string_equal(ask(s, who, text), trace)

/* ---- Setting up ---- */

static void scene_init(struct scene *s)
{
    const struct mu_hash_seed seed = { 1, 2 };

    *s = (struct scene){ 0 };
    mu_table_init(&s->table, &s->budget, VALUE_BYTES_MAX, seed);
    for (size_t i = 0; i < PEERS; i++)
        mu_peer_init(&s->peers[i]);
}

/* Everybody leaves; what nobody can have left behind must be gone. */
static void scene_done(struct scene *s)
{
    for (size_t i = 0; i < PEERS; i++)
        (void)leave(s, i);
    mu_table_done(&s->table);
    assert_int_equal(s->budget.used, 0);
}

static int setup(void **state)
{
    *state = malloc(sizeof(struct scene));
    if (*state == NULL)
        return -1;
    scene_init(*state);
    return 0;
}

static int teardown(void **state)
{
    scene_done(*state);
    free(*state);
    return 0;
}

struct row {
    size_t who;
    const char *text, *trace;
};

static void play(struct scene *s, const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_asks(s, rows[i].who, rows[i].text, rows[i].trace);
}

/* ---- Values ---- */

static void set_creates_and_overwrites(void **state)
{
    static const struct row rows[] = {
        { 0, "GET (/k)", "''" },          { 0, "SET (/k) (v)", "-" },     { 1, "GET (/k)", "'v'" },
        { 1, "SET (/k) (longer)", "-" },  { 0, "GET (/k)", "'longer'" },  { 0, "SET (/k) ()", "-" },
        { 0, "GET (/k)", "''" },          { 0, "NUM_KEYS", "1" },         { 0, "CHECK #1 (/k)", "byte 0" },
        { 0, "SET () (empty key)", "-" }, { 0, "GET ()", "'empty key'" }, { 0, "NUM_KEYS", "2" },
    };

    play(*state, rows, COUNT(rows));
}

static void keys_and_values_are_any_bytes(void **state)
{
    struct scene *s = *state;
    struct mu_slice value;

    assert_asks(s, 0, "SET (a\\00b) (\\00\\FF\\00)", "-");
    assert_asks(s, 0, "SET (a) (other)", "-");
    assert_asks(s, 0, "SET (a\\00) (third)", "-");
    value = mu_table_get(&s->table, mu_slice("a\0b", 3));
    assert_int_equal(value.len, 3);
    assert_memory_equal(value.data, "\0\xFF\0", 3);
    assert_asks(s, 0, "NUM_KEYS", "3");
}

static void a_value_that_is_empty_is_not_a_value_that_is_missing(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "SET (/k) ()", "-");
    assert_non_null(mu_table_get(&s->table, mu_slice_str("/k")).data);
    assert_null(mu_table_get(&s->table, mu_slice_str("/z")).data);
    assert_asks(s, 0, "WAIT #1 (/z)", "-");
    assert_null(mu_table_get(&s->table, mu_slice_str("/z")).data); /* nor is one that is only waited for */
}

static void appending_concatenates_and_creates(void **state)
{
    static const struct row rows[] = {
        { 0, "APPEND (/k) (ab)", "-" }, { 0, "APPEND (/k) ()", "-" },  { 0, "APPEND (/k) (cd)", "-" },
        { 0, "GET (/k)", "'abcd'" },    { 0, "APPEND (/e) ()", "-" },  { 0, "CHECK #1 (/e)", "byte 0" },
        { 0, "SET (/k) (x)", "-" },     { 0, "APPEND (/k) (y)", "-" }, { 0, "GET (/k)", "'xy'" },
    };

    play(*state, rows, COUNT(rows));
}

static void an_append_past_the_value_limit_is_refused_and_changes_nothing(void **state)
{
    struct scene *s = *state;
    char before[TRACE_BYTES];

    for (int i = 0; i < VALUE_BYTES_MAX / 10; i++)
        assert_asks(s, 0, "APPEND (/k) (0123456789)", "-");
    assert_asks(s, 0, "APPEND (/k) ()", "-");
    memcpy(before, contents(s), TRACE_BYTES);
    assert_asks(s, 0, "APPEND (/k) (x)", "refused");
    assert_string_equal(contents(s), before);
}

static void deleting_tells_whether_there_was_something(void **state)
{
    static const struct row rows[] = {
        { 0, "SET (/k) (v)", "-" },     { 0, "DELETE_KEY (/k)", "1" }, { 0, "DELETE_KEY (/k)", "0" },
        { 0, "GET (/k)", "''" },        { 0, "NUM_KEYS", "0" },        { 0, "CHECK #1 (/k)", "byte 1" },
        { 0, "SET (/k) (again)", "-" }, { 0, "GET (/k)", "'again'" },
    };

    play(*state, rows, COUNT(rows));
}

static void check_wants_every_key(void **state)
{
    static const struct row rows[] = {
        { 0, "CHECK #0", "byte 0" },
        { 0, "CHECK #1 (/a)", "byte 1" },
        { 0, "SET (/a) (1)", "-" },
        { 0, "CHECK #1 (/a)", "byte 0" },
        { 0, "CHECK #2 (/a) (/b)", "byte 1" },
        { 0, "QUEUE_PUSH (/b) (x)", "-" },
        { 0, "CHECK #2 (/a) (/b)", "byte 0" },
        { 0, "QUEUE_POP (/b)", "1 'x'" },
        { 0, "CHECK #2 (/a) (/b)", "byte 1" },
        { 0, "CHECK #3 (/a) (/a) (/a)", "byte 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void the_other_answers_are_plain(void **state)
{
    static const struct row rows[] = {
        { 0, "PING %4294967295", "word 4294967295" },
        { 0, "MULTI_GET #1 (/k)", "values" },
        { 0, "CANCEL_WAIT", "byte 1" },
        { 0, "QUEUE_LEN (/q)", "0" },
        { 0, "LIST_KEYS", "0 keys" },
    };

    play(*state, rows, COUNT(rows));
}

/* ---- Arithmetic ---- */

static void add_reads_what_is_there_as_strtoll_would(void **state)
{
    static const struct {
        const char *value; /* as wire text; NULL: the key is missing */
        const char *delta, *answer, *after;
    } rows[] = {
        { NULL, "#1", "1", "'1'" },
        { NULL, "#0", "0", "'0'" },
        { NULL, "#-9223372036854775808", "-9223372036854775808", "'-9223372036854775808'" },
        { NULL, "#9223372036854775807", "9223372036854775807", "'9223372036854775807'" },
        { "(5)", "#-7", "-2", "'-2'" },
        { "(12abc)", "#1", "13", "'13'" },
        { "( 7)", "#1", "8", "'8'" },
        { "(\\09\\0A\\0B\\0C\\0D 7)", "#1", "8", "'8'" },
        { "(+5)", "#1", "6", "'6'" },
        { "(0x10)", "#1", "1", "'1'" },
        { "(7.9)", "#1", "8", "'8'" },
        { "(-3\\00zz)", "#1", "-2", "'-2'" },
        { "(007)", "#1", "8", "'8'" },
        { "(-0)", "#0", "0", "'0'" },
        { "(9223372036854775807)", "#1", "-9223372036854775808", "'-9223372036854775808'" },
        { "(9223372036854775807)", "#0", "9223372036854775807", "'9223372036854775807'" },
        { "(-9223372036854775808)", "#-1", "9223372036854775807", "'9223372036854775807'" },
        { "(-9223372036854775808)", "#0", "-9223372036854775808", "'-9223372036854775808'" },
        { "(-9223372036854775808)", "#-9223372036854775808", "0", "'0'" },
        { "(0000000000000000000000000000009)", "#1", "10", "'10'" },
        { "(abc)", "#1", "refused", "'abc'" },
        { "()", "#1", "refused", "''" },
        { "( )", "#1", "refused", "' '" },
        { "(-)", "#1", "refused", "'-'" },
        { "(+-5)", "#1", "refused", "'+-5'" },
        { "(- 5)", "#1", "refused", "'- 5'" },
        { "(\\007)", "#1", "refused", "''" }, /* a NUL, then 7: not even a blank */
        { "(9223372036854775808)", "#0", "refused", "'9223372036854775808'" },
        { "(-9223372036854775809)", "#0", "refused", "'-9223372036854775809'" },
        { "(99999999999999999999)", "#1", "refused", "'99999999999999999999'" },
        { "(18446744073709551617)", "#1", "refused", "'18446744073709551617'" },
        { "(99999999999999999999999999999999999999999)", "#1", "refused",
          "'99999999999999999999999999999999999999999'" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[128];

        assert_int_equal(ask(s, 0, "DELETE_KEY (/c)")[0], i == 0 ? '0' : '1');
        if (rows[i].value != NULL) {
            (void)snprintf(text, sizeof text, "SET (/c) %s", rows[i].value);
            assert_asks(s, 0, text, "-");
        }
        (void)snprintf(text, sizeof text, "ADD (/c) %s", rows[i].delta);
        assert_asks(s, 0, text, rows[i].answer);
        assert_asks(s, 0, "GET (/c)", rows[i].after);
    }
}

static void a_refused_add_creates_nothing_and_wakes_nobody(void **state)
{
    static const struct row rows[] = {
        { 0, "BARRIER (/t) #2", "-" },       { 0, "PING %1", "word 1" },    { 1, "DELETE_KEY (/t)", "1" },
        { 1, "QUEUE_PUSH (/q) (x)", "-" },   { 1, "SET (/x) (text)", "-" }, { 1, "ADD (/x) #1", "refused" },
        { 1, "BARRIER (/x) #1", "refused" }, { 1, "GET (/x)", "'text'" },   { 1, "ADD (/t) #5", "5; wakes 0" },
    };

    play(*state, rows, COUNT(rows));
}

/* ---- Compare and set ---- */

static void compare_set_follows_its_table(void **state)
{
    static const struct {
        const char *value, *request, *answer, *after;
    } rows[] = {
        { NULL, "COMPARE_SET (/k) () (new)", "'new'", "'new'" },
        { NULL, "COMPARE_SET (/k) (old) (new)", "'old'", NULL },
        { "(cur)", "COMPARE_SET (/k) (cur) (new)", "'new'", "'new'" },
        { "(cur)", "COMPARE_SET (/k) (other) (new)", "'cur'", "'cur'" },
        { "(cur)", "COMPARE_SET (/k) () (new)", "'cur'", "'cur'" },
        { "()", "COMPARE_SET (/k) () (new)", "'new'", "'new'" },
        { "()", "COMPARE_SET (/k) (old) (new)", "''", "''" },
        { NULL, "COMPARE_SET (/k) () ()", "''", "''" },
        { "(cur)", "COMPARE_SET (/k) (cur) ()", "''", "''" },
        { "(cur)", "COMPARE_SET (/k) (cur) (cur)", "'cur'", "'cur'" },
        { "(cur)", "COMPARE_SET (/k) (cu) (new)", "'cur'", "'cur'" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)ask(s, 0, "DELETE_KEY (/k)");
        if (rows[i].value != NULL) {
            char text[64];

            (void)snprintf(text, sizeof text, "SET (/k) %s", rows[i].value);
            assert_asks(s, 0, text, "-");
        }
        assert_asks(s, 0, rows[i].request, rows[i].answer);
        assert_asks(s, 0, "CHECK #1 (/k)", rows[i].after != NULL ? "byte 0" : "byte 1");
        assert_asks(s, 0, "GET (/k)", rows[i].after != NULL ? rows[i].after : "''");
    }
}

/* ---- Waking ---- */

/* Peer 0 waits for /k, then each operation is tried. */
static void operations_wake_as_their_table_says(void **state)
{
    static const struct row rows[] = {
        { 1, "SET (/k) (v)", "-; wakes 0" },
        { 1, "ADD (/k) #1", "1; wakes 0" },
        { 1, "ADD (/k) #0", "0; wakes 0" },
        { 1, "APPEND (/k) (v)", "-; wakes 0" },
        { 1, "APPEND (/k) ()", "-; wakes 0" },
        { 1, "COMPARE_SET (/k) () (v)", "'v'; wakes 0" },
        { 1, "COMPARE_SET (/k) (old) (v)", "'old'" },
        { 1, "QUEUE_PUSH (/k) (v)", "-; wakes 0" },
        { 1, "BARRIER (/k) #1", "byte 0; wakes 0" },
        { 1, "BARRIER (/k) #2", "-" },
        { 1, "DELETE_KEY (/k)", "0" },
        { 1, "GET (/k)", "''" },
        { 1, "CHECK #1 (/k)", "byte 1" },
        { 1, "SET (/other) (v)", "-" },
        { 1, "WAIT #1 (/k)", "-" },
        { 1, "LIST_KEYS", "0 keys" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene s;

        scene_init(&s);
        assert_asks(&s, 0, "WAIT #1 (/k)", "-");
        play(&s, &rows[i], 1);
        scene_done(&s);
    }
}

/* Only barrier waiters can wait on a key that exists. */
static void compare_set_on_an_existing_key_wakes_only_if_it_changes_it(void **state)
{
    static const struct row rows[] = {
        { 0, "BARRIER (/b) #9", "-" },
        { 1, "COMPARE_SET (/b) (7) (8)", "'1'" },
        { 1, "COMPARE_SET (/b) (1) (1)", "'1'" },
        { 1, "COMPARE_SET (/b) (1) (8)", "'8'; wakes 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void waiters_are_woken_once_in_the_order_they_came(void **state)
{
    static const struct row rows[] = {
        { 3, "WAIT #1 (/k)", "-" }, { 1, "WAIT #1 (/k)", "-" },
        { 2, "WAIT #1 (/k)", "-" }, { 0, "SET (/k) (v)", "-; wakes 3 1 2" },
        { 0, "SET (/k) (w)", "-" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_writer_may_wake_itself(void **state)
{
    static const struct row rows[] = { { 0, "WAIT #1 (/k)", "-" }, { 0, "SET (/k) (v)", "-; wakes 0" } };

    play(*state, rows, COUNT(rows));
}

/* ---- Waiting ---- */

static void a_wait_for_what_is_there_ends_at_once(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #0", "byte 0" },        { 0, "SET (/a) (1)", "-" },           { 0, "WAIT #1 (/a)", "byte 0" },
        { 0, "QUEUE_PUSH (/q) (x)", "-" }, { 0, "WAIT #2 (/a) (/q)", "byte 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_wait_for_several_keys_ends_with_the_last(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #3 (/a) (/b) (/c)", "-" }, { 1, "SET (/b) (1)", "-" },
        { 1, "SET (/b) (2)", "-" },           { 1, "ADD (/a) #1", "1" },
        { 1, "SET (/c) (1)", "-; wakes 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_key_written_and_deleted_again_has_come(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #2 (/a) (/b)", "-" },
        { 1, "SET (/a) (1)", "-" },
        { 1, "DELETE_KEY (/a)", "1" },
        { 1, "SET (/b) (1)", "-; wakes 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void keys_that_were_there_are_not_looked_at_again(void **state)
{
    static const struct row rows[] = {
        { 0, "SET (/a) (1)", "-" },
        { 0, "WAIT #2 (/a) (/b)", "-" },
        { 1, "DELETE_KEY (/a)", "1" },
        { 1, "SET (/b) (1)", "-; wakes 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_key_named_twice_needs_to_come_once(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #3 (/a) (/b) (/a)", "-" },       { 1, "SET (/a) (1)", "-" },
        { 1, "SET (/b) (1)", "-; wakes 0" },        { 0, "WAIT #2 (/x) (/x)", "-" },
        { 1, "SET (/x) (1)", "-; wakes 0" },        { 0, "WAIT #2 (/q) (/q)", "-" },
        { 1, "QUEUE_PUSH (/q) (1)", "-; wakes 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_queue_with_an_item_counts_as_present(void **state)
{
    static const struct row rows[] = {
        { 1, "QUEUE_PUSH (/q) (x)", "-" },
        { 0, "WAIT #2 (/q) (/k)", "-" },
        { 1, "SET (/k) (v)", "-; wakes 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_second_wait_replaces_the_first_whole(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #1 (/first)", "-" },  { 0, "WAIT #2 (/a) (/b)", "-" },     { 1, "SET (/first) (1)", "-" },
        { 1, "SET (/a) (1)", "-" },      { 1, "SET (/b) (1)", "-; wakes 0" }, { 0, "WAIT #2 (/x) (/y)", "-" },
        { 0, "WAIT #1 (/a)", "byte 0" }, { 1, "SET (/x) (1)", "-" },          { 1, "SET (/y) (1)", "-" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_canceled_wait_is_forgotten(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #2 (/a) (/b)", "-" }, { 1, "SET (/a) (1)", "-" },     { 0, "CANCEL_WAIT", "byte 1" },
        { 1, "SET (/b) (1)", "-" },      { 0, "CANCEL_WAIT", "byte 1" },
    };

    play(*state, rows, COUNT(rows));
}

/* One part of a WAIT's list. */
static void wait_for_part(struct scene *s, size_t who, const char *text, bool has_earlier, bool has_more)
{
    struct mu_request request = request_of(text);
    struct mu_answer answer;

    request.has_earlier = has_earlier;
    request.has_more = has_more;
    mu_table_step(&s->table, &s->peers[who], &request, &answer, NULL);
    assert_int_equal(answer.kind, MU_ANSWER_NONE);
}

static void nobody_is_woken_while_a_wait_is_cancelled_in_parts(void **state)
{
    struct scene *s = *state;

    wait_for_part(s, 0, "WAIT #1 (/a)", false, true);
    wait_for_part(s, 0, "WAIT #1 (/b)", true, false);
    assert_asks(s, 1, "SET (/b) ()", "-"); /* the part that is cancelled first has come */
    assert_true(mu_table_cancel_some(&s->table, &s->peers[0]));
    assert_asks(s, 1, "SET (/a) ()", "-");
    mu_table_cancel_wait(&s->table, &s->peers[0]);
    assert_asks(s, 0, "WAIT #1 (/a)", "byte 0");
}

static void an_abandoned_wait_leaves_no_trace(void **state)
{
    struct scene *s = *state;
    size_t before = s->budget.used;

    assert_asks(s, 0, "WAIT #3 (/a) (/b) (/c)", "-");
    assert_true(s->budget.used > before);
    mu_table_cancel_wait(&s->table, &s->peers[0]);
    assert_int_equal(s->budget.used, before);
    assert_asks(s, 1, "SET (/a) (1)", "-");
    mu_table_cancel_wait(&s->table, &s->peers[0]); /* nothing pending: nothing happens */
}

static void a_peer_that_leaves_is_not_woken(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/k)", "-");
    assert_asks(s, 1, "WAIT #2 (/k) (/l)", "-");
    assert_asks(s, 2, "WAIT #1 (/k)", "-");
    assert_string_equal(leave(s, 0), "gone");
    assert_string_equal(leave(s, 1), "gone");
    assert_asks(s, 3, "SET (/k) (v)", "-; wakes 2");
    assert_asks(s, 3, "SET (/l) (v)", "-");
}

static void ten_thousand_waiters_are_woken_in_order_by_one_set(void **state)
{
    enum { MANY = 10000 };
    struct scene *s = *state;
    struct mu_peer *many = calloc(MANY, sizeof *many);
    struct mu_request request;
    struct mu_answer answer;
    size_t used;

    assert_non_null(many);
    used = s->budget.used;
    for (size_t i = 0; i < MANY; i++) {
        mu_peer_init(&many[i]);
        request = request_of("WAIT #1 (/go)");
        mu_table_step(&s->table, &many[i], &request, &answer, NULL);
        assert_int_equal(answer.kind, MU_ANSWER_NONE);
    }
    for (size_t i = 1; i < MANY; i += 2) /* half of them go home */
        mu_table_leave(&s->table, &many[i]);
    request = request_of("SET (/go) ()");
    mu_table_step(&s->table, &s->peers[0], &request, &answer, NULL);
    for (size_t i = 0; i < MANY; i += 2)
        assert_ptr_equal(mu_table_pop_woken(&s->table), &many[i]);
    assert_null(mu_table_pop_woken(&s->table));
    assert_asks(s, 0, "DELETE_KEY (/go)", "1");
    assert_int_equal(s->budget.used, used);
    for (size_t i = 0; i < MANY; i += 2)
        mu_table_leave(&s->table, &many[i]);
    free(many);
}

/* ---- Barriers ---- */

static void a_barrier_opens_with_the_last_to_come(void **state)
{
    static const struct row rows[] = {
        { 0, "BARRIER (/b) #3", "-" },
        { 1, "BARRIER (/b) #3", "-" },
        { 2, "BARRIER (/b) #3", "byte 0; wakes 0 1" },
        { 2, "GET (/b)", "'3'" },
        { 3, "BARRIER (/b) #3", "byte 0" }, /* a key serves one barrier: it stays open */
        { 2, "GET (/b)", "'4'" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_barrier_of_one_or_none_is_open(void **state)
{
    static const struct row rows[] = {
        { 0, "BARRIER (/a) #1", "byte 0" },
        { 0, "BARRIER (/b) #0", "byte 0" },
        { 0, "BARRIER (/c) #-5", "byte 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void arriving_at_a_barrier_wakes_nobody_before_the_last(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #1 (/b)", "-" }, /* before the first arrival: woken at completion */
        { 1, "BARRIER (/b) #2", "-" },
        { 2, "WAIT #1 (/b)", "byte 0" }, /* after it: the key is there */
        { 3, "BARRIER (/b) #2", "byte 0; wakes 0 1" },
    };

    play(*state, rows, COUNT(rows));
}

static void writing_the_key_also_opens_a_barrier(void **state)
{
    static const struct row rows[] = {
        { 0, "BARRIER (/b) #5", "-" },      { 1, "SET (/b) (0)", "-; wakes 0" }, { 0, "BARRIER (/b) #5", "-" },
        { 1, "ADD (/b) #0", "1; wakes 0" }, { 0, "BARRIER (/b) #5", "-" },       { 1, "APPEND (/b) (0)", "-; wakes 0" },
        { 1, "GET (/b)", "'20'" },
    };

    play(*state, rows, COUNT(rows));
}

static void who_gives_up_at_a_barrier_has_still_come(void **state)
{
    static const struct row rows[] = {
        { 0, "BARRIER (/b) #3", "-" },
        { 0, "CANCEL_WAIT", "byte 1" },
        { 1, "BARRIER (/b) #3", "-" },
        { 2, "BARRIER (/b) #3", "byte 0; wakes 1" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_barrier_replaces_a_pending_wait_and_the_other_way_round(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #2 (/a) (/b)", "-" },
        { 0, "BARRIER (/x) #2", "-" },
        { 1, "MULTI_GET #2 (/a) (/b)", "values" },
        { 1, "SET (/a) (1)", "-" },
        { 1, "SET (/b) (1)", "-" },
        { 0, "WAIT #1 (/c)", "-" },
        { 1, "BARRIER (/x) #2", "byte 0" },
        { 1, "SET (/c) (1)", "-; wakes 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void deleting_the_key_of_a_barrier_disturbs_nobody_there(void **state)
{
    static const struct row rows[] = {
        { 0, "BARRIER (/b) #2", "-" },
        { 1, "DELETE_KEY (/b)", "1" },
        { 1, "BARRIER (/b) #2", "-" }, /* the count begins again */
        { 2, "BARRIER (/b) #2", "byte 0; wakes 0 1" },
    };

    play(*state, rows, COUNT(rows));
}

/* ---- Queues ---- */

static void a_queue_gives_what_came_first(void **state)
{
    static const struct row rows[] = {
        { 0, "QUEUE_POP (/q)", "0" },      { 0, "QUEUE_PUSH (/q) (a)", "-" }, { 0, "QUEUE_PUSH (/q) ()", "-" },
        { 1, "QUEUE_PUSH (/q) (c)", "-" }, { 1, "QUEUE_LEN (/q)", "3" },      { 1, "QUEUE_POP (/q)", "3 'a'" },
        { 0, "QUEUE_POP (/q)", "2 ''" },   { 0, "QUEUE_POP (/q)", "1 'c'" },  { 0, "QUEUE_POP (/q)", "0" },
        { 0, "QUEUE_LEN (/q)", "0" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_queue_and_a_key_of_one_name_are_two_things(void **state)
{
    static const struct row rows[] = {
        { 0, "SET (/n) (value)", "-" }, { 0, "QUEUE_PUSH (/n) (item)", "-" }, { 0, "GET (/n)", "'value'" },
        { 0, "DELETE_KEY (/n)", "1" },  { 0, "QUEUE_LEN (/n)", "1" },         { 0, "DELETE_KEY (/n)", "0" },
        { 0, "GET (/n)", "''" },        { 0, "QUEUE_POP (/n)", "1 'item'" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_push_wakes_one_consumer(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #1 (/q)", "-" },
        { 1, "WAIT #1 (/q)", "-" },
        { 2, "QUEUE_PUSH (/q) (a)", "-; wakes 0" },
        { 2, "QUEUE_PUSH (/q) (b)", "-; wakes 1" },
        { 2, "QUEUE_PUSH (/q) (c)", "-" },
        { 0, "QUEUE_POP (/q)", "3 'a'" },
        { 1, "QUEUE_POP (/q)", "2 'b'" },
    };

    play(*state, rows, COUNT(rows));
}

/* The first whose count of missing keys drops to zero; those before it have seen the key come. */
static void a_push_passes_by_those_who_wait_for_more(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #2 (/q) (/k)", "-" },
        { 1, "WAIT #1 (/q)", "-" },
        { 3, "QUEUE_PUSH (/q) (a)", "-; wakes 1" },
        { 3, "SET (/k) (v)", "-; wakes 0" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_set_wakes_every_consumer_of_the_name(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #1 (/q)", "-" },
        { 1, "WAIT #1 (/q)", "-" },
        { 2, "SET (/q) (v)", "-; wakes 0 1" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_woken_consumer_that_leaves_passes_its_item_on(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "-");
    assert_asks(s, 1, "WAIT #1 (/q)", "-");
    assert_asks(s, 2, "WAIT #1 (/q)", "-");
    assert_asks(s, 3, "QUEUE_PUSH (/q) (x)", "-; wakes 0");
    assert_string_equal(leave(s, 0), "gone; wakes 1");
    assert_string_equal(leave(s, 1), "gone; wakes 2");
    assert_asks(s, 2, "QUEUE_POP (/q)", "1 'x'");
    assert_string_equal(leave(s, 2), "gone");
}

static void a_woken_consumer_that_cancels_passes_its_item_on(void **state)
{
    static const struct row rows[] = {
        { 0, "WAIT #1 (/q)", "-" },
        { 1, "WAIT #1 (/q)", "-" },
        { 2, "QUEUE_PUSH (/q) (x)", "-; wakes 0" },
        { 0, "CANCEL_WAIT", "byte 1; wakes 1" },
        { 0, "CANCEL_WAIT", "byte 1" },
        { 1, "QUEUE_POP (/q)", "1 'x'" },
    };

    play(*state, rows, COUNT(rows));
}

/* Somebody who only waited for the queue to have something keeps nobody from it, once he turns to other things. */
static void a_woken_peer_that_turns_to_other_things_passes_the_item_on(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "-");
    assert_asks(s, 1, "WAIT #1 (/q)", "-");
    assert_asks(s, 2, "QUEUE_PUSH (/q) (x)", "-; wakes 0");
    assert_asks(s, 0, "QUEUE_LEN (/q)", "1"); /* still about the queue */
    assert_asks(s, 0, "CHECK #1 (/q)", "byte 0");
    assert_asks(s, 0, "WAIT #1 (/q)", "byte 0");
    assert_asks(s, 0, "DELETE_KEY (/other)", "0; wakes 1");
    assert_asks(s, 1, "QUEUE_POP (/q)", "1 'x'");
}

/* When the last item is gone nobody owes anything: a later item wakes one peer, and the debtor's next request none. */
static void a_debt_ends_with_the_last_item(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "-");
    assert_asks(s, 1, "WAIT #1 (/q)", "-");
    assert_asks(s, 2, "QUEUE_PUSH (/q) (x)", "-; wakes 0");
    assert_asks(s, 2, "QUEUE_POP (/q)", "1 'x'"); /* was faster */
    assert_asks(s, 0, "WAIT #1 (/q)", "-");
    assert_asks(s, 2, "QUEUE_PUSH (/q) (y)", "-; wakes 1");
    assert_asks(s, 0, "NUM_KEYS", "0");
}

/* Going to a barrier of the same name is not coming for the item. */
static void a_debtor_that_goes_to_a_barrier_does_not_wake_itself_later(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "-");
    assert_asks(s, 2, "QUEUE_PUSH (/q) (x)", "-; wakes 0");
    assert_asks(s, 0, "BARRIER (/q) #2", "-");
    assert_asks(s, 0, "NUM_KEYS", "1");
}

static void a_consumer_that_took_its_item_passes_nothing_on(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "-");
    assert_asks(s, 1, "WAIT #1 (/q)", "-");
    assert_asks(s, 2, "QUEUE_PUSH (/q) (x)", "-; wakes 0");
    assert_asks(s, 0, "QUEUE_POP (/q)", "1 'x'");
    assert_string_equal(leave(s, 0), "gone");
    assert_asks(s, 2, "QUEUE_PUSH (/q) (y)", "-; wakes 1");
}

static void an_item_that_somebody_else_took_wakes_nobody_later(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "-");
    assert_asks(s, 1, "WAIT #1 (/q)", "-");
    assert_asks(s, 2, "QUEUE_PUSH (/q) (x)", "-; wakes 0");
    assert_asks(s, 3, "QUEUE_POP (/q)", "1 'x'");
    assert_string_equal(leave(s, 0), "gone");
    assert_asks(s, 2, "QUEUE_PUSH (/q) (y)", "-; wakes 1");
    assert_asks(s, 3, "QUEUE_POP (/q)", "1 'y'"); /* the queue is gone; peer 1 still thinks there is something */
    assert_asks(s, 1, "QUEUE_POP (/q)", "0");
}

static void a_consumer_whose_pop_there_is_no_memory_for_passes_its_item_on(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "-");
    assert_asks(s, 1, "WAIT #1 (/q)", "-");
    assert_asks(s, 2, "QUEUE_PUSH (/q) (item)", "-; wakes 0");
    fail_alloc_at(1);
    assert_asks(s, 0, "QUEUE_POP (/q)", "refused");
    fail_alloc_at(0);
    assert_string_equal(leave(s, 0), "gone; wakes 1");
    assert_asks(s, 1, "QUEUE_POP (/q)", "1 'item'");
}

static void the_last_consumer_leaves_its_item_in_the_queue(void **state)
{
    struct scene *s = *state;

    assert_asks(s, 0, "WAIT #1 (/q)", "-");
    assert_asks(s, 1, "QUEUE_PUSH (/q) (x)", "-; wakes 0");
    assert_string_equal(leave(s, 0), "gone");
    assert_asks(s, 1, "QUEUE_LEN (/q)", "1");
    assert_asks(s, 1, "WAIT #1 (/q)", "byte 0");
}

/* ---- Counting and listing ---- */

static void only_keys_with_a_value_are_counted_and_listed(void **state)
{
    static const struct row rows[] = {
        { 0, "SET (init/) (1)", "-" },   { 0, "SET (/a) ()", "-" },         { 0, "QUEUE_PUSH (/q) (x)", "-" },
        { 1, "WAIT #1 (/waited)", "-" }, { 2, "WATCH_KEY (/w)", "byte 3" }, { 3, "BARRIER (/b) #2", "-" },
        { 0, "NUM_KEYS", "3" },          { 0, "LIST_KEYS", "3 keys" },
    };
    struct scene *s = *state;

    play(s, rows, COUNT(rows));
    assert_string_equal(strchr(contents(s), ':'), ": 'init/'='1' '/a'='' '/b'='1'");
    assert_asks(s, 0, "DELETE_KEY (/a)", "1");
    assert_asks(s, 0, "LIST_KEYS", "2 keys");
    assert_string_equal(strchr(contents(s), ':'), ": 'init/'='1' '/b'='1'");
}

static void a_thousand_keys_are_all_found_and_all_go(void **state)
{
    struct scene *s = *state;
    size_t before = s->budget.used;
    char text[64];

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 1000; i++) {
            (void)snprintf(text, sizeof text, "SET (/key/%d) (%d)", i, i);
            assert_asks(s, 0, text, "-");
        }
        assert_asks(s, 0, "NUM_KEYS", "1000");
        for (int i = 999; i >= 0; i--) {
            char value[16];

            (void)snprintf(text, sizeof text, "GET (/key/%d)", i);
            (void)snprintf(value, sizeof value, "'%d'", i);
            assert_asks(s, 0, text, value);
            (void)snprintf(text, sizeof text, "DELETE_KEY (/key/%d)", i);
            assert_asks(s, 0, text, "1");
        }
        assert_int_equal(s->budget.used, before);
    }
}

/* ---- Watching ---- */

static void watchers_hear_of_every_change(void **state)
{
    static const struct row rows[] = {
        { 0, "WATCH_KEY (/k)", "byte 3" },
        { 1, "SET (/k) (a)", "-; tells 0 created '/k' '' 'a'" },
        { 1, "SET (/k) (b)", "-; tells 0 updated '/k' 'a' 'b'" },
        { 1, "SET (/k) (b)", "-; tells 0 updated '/k' 'b' 'b'" },
        { 1, "APPEND (/k) (c)", "-; tells 0 updated '/k' 'b' 'bc'" },
        { 1, "DELETE_KEY (/k)", "1; tells 0 deleted '/k' 'bc' ''" },
        { 1, "DELETE_KEY (/k)", "0" },
        { 1, "ADD (/k) #5", "5; tells 0 created '/k' '' '5'" },
        { 1, "ADD (/k) #-7", "-2; tells 0 updated '/k' '5' '-2'" },
        { 1, "BARRIER (/k) #9", "-; tells 0 updated '/k' '-2' '-1'" },
        { 1, "GET (/k)", "'-1'" },
        { 1, "SET (/other) (x)", "-" },
        { 1, "QUEUE_PUSH (/k) (x)", "-; wakes 1" }, /* that is not the key's value */
    };

    play(*state, rows, COUNT(rows));
}

static void only_an_effective_compare_set_is_a_change(void **state)
{
    static const struct row rows[] = {
        { 0, "WATCH_KEY (/k)", "byte 3" },
        { 1, "COMPARE_SET (/k) (x) (a)", "'x'" },
        { 1, "COMPARE_SET (/k) () (a)", "'a'; tells 0 created '/k' '' 'a'" },
        { 1, "COMPARE_SET (/k) (x) (b)", "'a'" },
        { 1, "COMPARE_SET (/k) (a) (b)", "'b'; tells 0 updated '/k' 'a' 'b'" },
    };

    play(*state, rows, COUNT(rows));
}

static void several_watchers_are_told_and_waiters_woken(void **state)
{
    static const struct row rows[] = {
        { 0, "WATCH_KEY (/k)", "byte 3" },
        { 1, "WATCH_KEY (/k)", "byte 3" },
        { 0, "WATCH_KEY (/l)", "byte 3" },
        { 2, "WAIT #1 (/k)", "-" },
        { 3, "SET (/k) (v)", "-; tells 0 1 created '/k' '' 'v'; wakes 2" },
        { 3, "SET (/l) (v)", "-; tells 0 created '/l' '' 'v'" },
    };

    play(*state, rows, COUNT(rows));
}

static void a_watcher_that_is_gone_is_not_told(void **state)
{
    struct scene *s = *state;
    size_t before = s->budget.used;

    assert_asks(s, 0, "WATCH_KEY (/k)", "byte 3");
    assert_asks(s, 0, "WATCH_KEY (/l)", "byte 3");
    assert_asks(s, 1, "WATCH_KEY (/k)", "byte 3");
    assert_string_equal(leave(s, 0), "gone");
    assert_asks(s, 2, "SET (/k) (v)", "-; tells 1 created '/k' '' 'v'");
    assert_asks(s, 2, "SET (/l) (v)", "-");
    assert_string_equal(leave(s, 1), "gone");
    assert_asks(s, 2, "DELETE_KEY (/k)", "1");
    assert_asks(s, 2, "DELETE_KEY (/l)", "1");
    assert_int_equal(s->budget.used, before);
}

/* ---- Room and memory ---- */

/* A table with something of everything in it. */
static void furnish(struct scene *s)
{
    static const struct row rows[] = {
        { 0, "SET (/k) (value)", "-" },     { 0, "SET (/n) (41)", "-" },       { 0, "QUEUE_PUSH (/q) (item)", "-" },
        { 1, "WATCH_KEY (/k)", "byte 3" },  { 2, "WAIT #2 (/w1) (/w2)", "-" }, { 3, "BARRIER (/b) #5", "-" },
        { 1, "WATCH_KEY (/w1)", "byte 3" },
    };

    play(s, rows, COUNT(rows));
}

/* That those who waited still do, and are woken by what they waited for. */
static void assert_still_waiting(struct scene *s)
{
    assert_asks(s, 0, "BARRIER (/b) #2", "byte 0; wakes 3");
    assert_asks(s, 0, "SET (/w2) (1)", "-");
    assert_asks(s, 0, "SET (/w1) (1)", "-; tells 1 created '/w1' '' '1'; wakes 2");
}

/* Requests that need memory, as peer 4 would send them. */
static const char *const hungry[] = {
    "SET (/k) (another value, a longer one)",
    "SET (/new) (value)",
    "SET (/w1) (come)",
    "SET (/new) ()",
    "APPEND (/k) (more)",
    "APPEND (/new) (more)",
    "ADD (/n) #1000000",
    "ADD (/new) #1",
    "ADD (/w1) #1",
    "COMPARE_SET (/k) (value) (another)",
    "COMPARE_SET (/new) () (value)",
    "COMPARE_SET (/w1) () (value)",
    "WAIT #1 (/new)",
    "WAIT #3 (/w1) (/new) (/new2)",
    "WAIT #2 (/k) (/new)",
    "WATCH_KEY (/k)",
    "WATCH_KEY (/new)",
    "QUEUE_PUSH (/q) (item)",
    "QUEUE_PUSH (/new) (item)",
    "QUEUE_PUSH (/k) (item)",
    "BARRIER (/new) #9",
    "BARRIER (/b) #9",
    "QUEUE_POP (/q)",
};

/* With every amount of room that is too little, from none on: in the whole table, or in the peer's share of it. */
static void a_request_without_room_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * COUNT(hungry); i++) {
        bool refused = true, by_share = i % 2 == 1;

        if (by_share && strncmp(hungry[i / 2], "QUEUE_POP", 9) == 0)
            continue; /* needs no room of its own */
        for (size_t room = 0; refused; room++) {
            char before[TRACE_BYTES];
            struct scene s;

            scene_init(&s);
            furnish(&s);
            if (by_share)
                s.table.share_max = room + 1;
            else
                s.budget.max = s.budget.used + room;
            memcpy(before, contents(&s), TRACE_BYTES);
            refused = strcmp(ask(&s, 4, hungry[i / 2]), "refused") == 0;
            s.budget.max = s.table.share_max = 0;
            if (refused) {
                assert_string_equal(contents(&s), before);
                assert_still_waiting(&s);
            }
            scene_done(&s);
            assert_true(room < 2000);
        }
    }
}

static void a_request_without_memory_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(hungry); i++) {
        bool hit = true;

        for (unsigned long nth = 1; hit; nth++) {
            char before[TRACE_BYTES];
            struct scene s;
            bool refused;

            scene_init(&s);
            furnish(&s);
            memcpy(before, contents(&s), TRACE_BYTES);
            fail_alloc_at(nth);
            refused = strcmp(ask(&s, 4, hungry[i]), "refused") == 0;
            hit = fail_alloc_hit();
            fail_alloc_at(0);
            assert_int_equal(refused, hit);
            if (refused) {
                assert_string_equal(contents(&s), before);
                assert_still_waiting(&s);
            }
            scene_done(&s);
        }
    }
}

static void a_story_survives_any_allocation_that_fails(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct scene s;

        scene_init(&s);
        for (size_t round = 0; round < 3; round++) {
            for (size_t i = 0; i < COUNT(hungry); i++)
                (void)ask(&s, i % PEERS, hungry[i]);
            (void)leave(&s, round);
            (void)ask(&s, 5, "DELETE_KEY (/k)");
            (void)ask(&s, 6, "QUEUE_POP (/q)");
            (void)ask(&s, 7, "CANCEL_WAIT");
        }
        (void)contents(&s);
        scene_done(&s);
    }
}

/* The hash table grows several times on the way, and each time it may fail to. */
static void keys_survive_a_table_that_cannot_grow(void **state)
{
    enum { KEYS = 700 };
    unsigned long allocations;

    (void)state;
    for (unsigned long nth = 1;; nth++) {
        struct scene s;
        char text[64];
        int refused = -1;

        scene_init(&s);
        fail_alloc_at(nth);
        for (int i = 0; i < KEYS; i++) {
            (void)snprintf(text, sizeof text, "SET (/key/%d) (%d)", i, i);
            if (strcmp(ask(&s, 0, text), "-") != 0) {
                assert_int_equal(refused, -1);
                refused = i;
            }
        }
        allocations = fail_alloc_count();
        fail_alloc_at(0);
        assert_int_equal(s.table.keys, refused < 0 ? KEYS : KEYS - 1);
        for (int i = 0; i < KEYS; i++) {
            (void)snprintf(text, sizeof text, "CHECK #1 (/key/%d)", i);
            assert_asks(&s, 0, text, i == refused ? "byte 1" : "byte 0");
        }
        scene_done(&s);
        if (nth > allocations)
            break;
    }
}

static void everything_gives_its_room_back(void **state)
{
    struct scene *s = *state;

    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT(hungry); i++)
            (void)ask(s, i % PEERS, hungry[i]);
    }
    for (size_t i = 0; i < PEERS; i++)
        (void)leave(s, i);
    for (const struct mu_entry *e; (e = mu_table_next(&s->table, NULL)) != NULL;) {
        struct mu_request request = { .op = MU_OP_DELETE_KEY, .key = mu_entry_key(e) };
        struct mu_answer answer;

        mu_table_step(&s->table, &s->peers[0], &request, &answer, NULL);
        assert_true(answer.number == 1);
    }
    while (strcmp(ask(s, 0, "QUEUE_POP (/q)"), "0") != 0)
        continue;
    while (strcmp(ask(s, 0, "QUEUE_POP (/k)"), "0") != 0)
        continue;
    while (strcmp(ask(s, 0, "QUEUE_POP (/new)"), "0") != 0)
        continue;
    assert_int_equal(s->budget.used, 0);
}

/* ---- Shares ---- */

/* How many keys of this kind the peer may write before it is refused. */
static unsigned fills_share(struct scene *s, size_t who, const char *prefix)
{
    char text[64];
    unsigned count = 0;

    for (;; count++) {
        (void)snprintf(text, sizeof text, "SET (/%s%u) (some value)", prefix, count);
        if (strcmp(ask(s, who, text), "-") != 0)
            return count;
        assert_true(count < 1000);
    }
}

static void a_peer_that_has_its_share_is_refused_and_others_are_not(void **state)
{
    struct scene *s = *state;
    struct mu_request request = request_of("ADD (/n) #1");
    struct muster_error error;
    struct mu_answer answer;

    s->table.share_max = 3000;
    assert_in_range(fills_share(s, 0, "a"), 5, 30);
    mu_table_step(&s->table, &s->peers[0], &request, &answer, &error);
    assert_int_equal(answer.kind, MU_ANSWER_REFUSED);
    assert_non_null(strstr(error.text, "no room for this ADD: the connection has "));
    assert_non_null(strstr(error.text, " bytes in the store; the limit for one connection is 3000, a quarter of all"));
    assert_asks(s, 1, "ADD (/n) #1", "1");
    assert_asks(s, 0, "ADD (/n) #1", "2"); /* takes no more room than it did */
    assert_asks(s, 0, "GET (/n)", "'2'");
}

static void what_others_delete_is_given_back_to_the_writer(void **state)
{
    struct scene *s = *state;
    unsigned count;
    char text[64];

    s->table.share_max = 3000;
    count = fills_share(s, 0, "a");
    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(text, sizeof text, "DELETE_KEY (/a%u)", i);
        assert_asks(s, 1, text, "1");
    }
    assert_int_equal(fills_share(s, 0, "b"), count);
    assert_asks(s, 1, "ADD (/n) #1", "1"); /* deleting costs nothing */
}

static void a_key_counts_as_the_last_one_s_who_made_it_larger(void **state)
{
    static const char long_value[] =
        "SET (/k) (0123456789012345678901234567890123456789012345678901234567890123456789)";
    struct scene *s = *state;
    unsigned alone, beside;

    s->table.share_max = 1000;
    alone = fills_share(s, 0, "a");
    assert_asks(s, 1, "SET (/k) (v)", "-");
    assert_asks(s, 2, long_value, "-");
    assert_asks(s, 1, "SET (/k) (w)", "-"); /* smaller: it stays with the one who made it large */
    beside = fills_share(s, 2, "b");
    assert_true(beside < alone);
    assert_int_equal(fills_share(s, 1, "c"), alone);
    assert_asks(s, 0, "SET (/k) (0123456789)", "-");    /* fits into what is there */
    assert_asks(s, 1, "APPEND (/k) (0123456789)", "-"); /* so does this */
}

static void the_keys_of_a_peer_that_left_count_as_nobody_s(void **state)
{
    struct scene *s = *state;
    unsigned count;

    s->table.share_max = 1000;
    count = fills_share(s, 0, "a");
    assert_string_equal(leave(s, 0), "gone");
    mu_peer_init(&s->peers[0]);
    assert_int_equal(fills_share(s, 0, "b"), count);
    assert_asks(s, 1, "DELETE_KEY (/a0)", "1");
}

#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(set_creates_and_overwrites),
        test(keys_and_values_are_any_bytes),
        test(a_value_that_is_empty_is_not_a_value_that_is_missing),
        test(appending_concatenates_and_creates),
        test(an_append_past_the_value_limit_is_refused_and_changes_nothing),
        test(deleting_tells_whether_there_was_something),
        test(check_wants_every_key),
        test(the_other_answers_are_plain),
        test(add_reads_what_is_there_as_strtoll_would),
        test(a_refused_add_creates_nothing_and_wakes_nobody),
        test(compare_set_follows_its_table),
        cmocka_unit_test(operations_wake_as_their_table_says),
        test(compare_set_on_an_existing_key_wakes_only_if_it_changes_it),
        test(waiters_are_woken_once_in_the_order_they_came),
        test(a_writer_may_wake_itself),
        test(a_wait_for_what_is_there_ends_at_once),
        test(a_wait_for_several_keys_ends_with_the_last),
        test(a_key_written_and_deleted_again_has_come),
        test(keys_that_were_there_are_not_looked_at_again),
        test(a_key_named_twice_needs_to_come_once),
        test(a_queue_with_an_item_counts_as_present),
        test(a_second_wait_replaces_the_first_whole),
        test(a_canceled_wait_is_forgotten),
        test(nobody_is_woken_while_a_wait_is_cancelled_in_parts),
        test(an_abandoned_wait_leaves_no_trace),
        test(a_peer_that_leaves_is_not_woken),
        test(ten_thousand_waiters_are_woken_in_order_by_one_set),
        test(a_barrier_opens_with_the_last_to_come),
        test(a_barrier_of_one_or_none_is_open),
        test(arriving_at_a_barrier_wakes_nobody_before_the_last),
        test(writing_the_key_also_opens_a_barrier),
        test(who_gives_up_at_a_barrier_has_still_come),
        test(a_barrier_replaces_a_pending_wait_and_the_other_way_round),
        test(deleting_the_key_of_a_barrier_disturbs_nobody_there),
        test(a_queue_gives_what_came_first),
        test(a_queue_and_a_key_of_one_name_are_two_things),
        test(a_push_wakes_one_consumer),
        test(a_push_passes_by_those_who_wait_for_more),
        test(a_set_wakes_every_consumer_of_the_name),
        test(a_woken_consumer_that_leaves_passes_its_item_on),
        test(a_woken_consumer_that_cancels_passes_its_item_on),
        test(a_woken_peer_that_turns_to_other_things_passes_the_item_on),
        test(a_debt_ends_with_the_last_item),
        test(a_debtor_that_goes_to_a_barrier_does_not_wake_itself_later),
        test(a_consumer_that_took_its_item_passes_nothing_on),
        test(an_item_that_somebody_else_took_wakes_nobody_later),
        test(a_consumer_whose_pop_there_is_no_memory_for_passes_its_item_on),
        test(the_last_consumer_leaves_its_item_in_the_queue),
        test(only_keys_with_a_value_are_counted_and_listed),
        test(a_thousand_keys_are_all_found_and_all_go),
        test(watchers_hear_of_every_change),
        test(only_an_effective_compare_set_is_a_change),
        test(several_watchers_are_told_and_waiters_woken),
        test(a_watcher_that_is_gone_is_not_told),
        cmocka_unit_test(a_request_without_room_is_refused_and_changes_nothing),
        cmocka_unit_test(a_request_without_memory_is_refused_and_changes_nothing),
        cmocka_unit_test(a_story_survives_any_allocation_that_fails),
        cmocka_unit_test(keys_survive_a_table_that_cannot_grow),
        test(everything_gives_its_room_back),
        test(a_peer_that_has_its_share_is_refused_and_others_are_not),
        test(what_others_delete_is_given_back_to_the_writer),
        test(a_key_counts_as_the_last_one_s_who_made_it_larger),
        test(the_keys_of_a_peer_that_left_count_as_nobody_s),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
