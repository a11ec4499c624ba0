/* The client's side of a connection: what each call writes in each dialect, what it makes of the answers however they
 * are cut up, and that every call ends exactly once whatever comes. */
#include "base/error.h"
#include "failmalloc.h"
#include "pure.h"
#include "store/calls.h"
#include "store/greeting.h"
#include "store/limits.h"
#include "store/session.h"
#include "wire.h"

#include <stdio.h>

enum { CALLS = 8, STEPS = 4, TRACE_BYTES = 4096, LONG_MS = 1000 };

#define SLICE(text)                                                                                                    \
    {                                                                                                                  \
        (text), sizeof(text) - 1                                                                                       \
    }

static const struct muster_slice two_keys[] = { SLICE("a"), SLICE("b") };
static const struct muster_slice two_values[] = { SLICE("1"), SLICE("") };

struct scene {
    struct mu_calls calls;
    enum mu_dialect dialect;
    struct mu_call call[CALLS];
    size_t count;
    uint64_t now_ms;
    char trace[TRACE_BYTES];
};

/* ---- Acting and telling ---- */

static void start(struct scene *s, enum mu_dialect dialect)
{
    *s = (struct scene){ .dialect = dialect };
    mu_calls_init(&s->calls, false);
    mu_calls_opened(&s->calls, dialect);
    s->calls.features_known = s->calls.features_had = MU_FEATURE_PING | MU_FEATURE_QUEUES | MU_FEATURE_LIST_KEYS;
}

static struct mu_call *submit(struct scene *s, struct mu_call call, uint64_t timeout_ms)
{
    assert_true(s->count < CALLS);
    s->call[s->count] = call;
    mu_calls_submit(&s->calls, &s->call[s->count], timeout_ms, s->now_ms);
    return &s->call[s->count++];
}

static void hear(struct scene *s, const char *text)
{
    struct mu_slice bytes = wire(s->dialect, text);
    char *copy = test_malloc(bytes.len == 0 ? 1 : bytes.len); /* exactly as long, for the sanitizer to see */

    memcpy(copy, bytes.data, bytes.len);
    mu_calls_read(&s->calls, mu_slice(copy, bytes.len));
    test_free(copy);
}

static void pass_time(struct scene *s, uint64_t ms)
{
    s->now_ms += ms;
    mu_calls_pass_time(&s->calls, s->now_ms);
}

/* Lets the connection take everything. */
static void write_all(struct scene *s)
{
    size_t len = s->calls.out.len;

    mu_buf_consume(&s->calls.out, len);
    mu_calls_wrote(&s->calls, len);
}

static void assert_says(struct scene *s, const char *text)
{
    assert_string_equal(wire_hex(mu_buf_slice(&s->calls.out)), wire_hex(wire(s->dialect, text)));
    write_all(s);
}

static int tell_values(char *text, size_t size, const struct muster_values *values)
{
    int used = snprintf(text, size, "[");

    for (size_t i = 0; i < values->count; i++)
        used += snprintf(text + used, size - (size_t)used, "%s'%.*s'", i == 0 ? "" : " ", (int)values->items[i].len,
                         values->items[i].data);
    return used + snprintf(text + used, size - (size_t)used, "]");
}

static int tell_result(char *text, size_t size, const struct mu_call *call)
{
    if (call->rc < 0) {
        assert_int_equal(call->error.code, call->rc);
        if (strcmp(call->error.text, "nobody is there") != 0)
            assert_memory_equal(call->error.text, mu_call_name(call->kind), strlen(mu_call_name(call->kind)));
        assert_null(call->bytes.data);
        assert_null(call->found.items);
        return snprintf(text, size, "%s", muster_error_name(call->rc));
    }
    switch (call->kind) {
    case MU_CALL_GET:
    case MU_CALL_COMPARE_SET:
    case MU_CALL_QUEUE_POP:
        assert_int_equal(call->bytes.data[call->bytes.len], '\0');
        return snprintf(text, size, "'%.*s'", (int)call->bytes.len, call->bytes.data);
    case MU_CALL_ADD:
    case MU_CALL_NUM_KEYS:
    case MU_CALL_QUEUE_LEN:
        return snprintf(text, size, "%lld", (long long)call->result);
    case MU_CALL_CHECK:
    case MU_CALL_DELETE_KEY:
        assert_in_range(call->result, 0, 1);
        return snprintf(text, size, "%s", call->result ? "yes" : "no");
    case MU_CALL_MULTI_GET:
    case MU_CALL_LIST_KEYS:
        return tell_values(text, size, &call->found);
    default:
        return snprintf(text, size, "ok");
    }
}

/* The calls that have finished since the last time, in order: "set ok; get 'v'". */
static const char *finished(struct scene *s)
{
    struct mu_call *call;
    size_t used = 0;

    s->trace[0] = '\0';
    while ((call = mu_calls_pop_finished(&s->calls)) != NULL) {
        used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, "%s%s ", used == 0 ? "" : "; ",
                                 mu_call_name(call->kind));
        used += (size_t)tell_result(s->trace + used, sizeof s->trace - used, call);
        muster_bytes_done(&call->bytes);
        muster_values_done(&call->found);
    }
    return s->trace;
}

static void end(struct scene *s)
{
    assert_string_equal(finished(s), "");
    assert_true(mu_list_empty(&s->calls.waiting));
    assert_true(mu_list_empty(&s->calls.sending));
    mu_calls_done(&s->calls);
}

/* ---- The bytes, as they were captured ---- */

struct captured {
    enum mu_dialect dialect;
    struct mu_call call;
    const char *says; /* the first request */
};

/* Every row of the protocol page's captured (1.13) and constructed (2.x) examples that a client says. */
static void requests_are_the_captured_bytes(void **state)
{
    static const struct muster_slice k[] = { SLICE("k") }, k_zz[] = { SLICE("k"), SLICE("zz") };
    static const struct muster_slice one[] = { SLICE("1") }, a[] = { SLICE("a") };
    const struct captured rows[] = {
        { MU_DIALECT_L0,
          { .kind = MU_CALL_ADD, .key = SLICE("init/"), .number = 1, .raw_key = true },
          "03 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00" },
        { MU_DIALECT_L0,
          { .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") },
          "00 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76" },
        { MU_DIALECT_L0,
          { .kind = MU_CALL_ADD, .key = SLICE("c"), .number = -7 },
          "03 02 00 00 00 00 00 00 00 2F 63 F9 FF FF FF FF FF FF FF" },
        { MU_DIALECT_L0,
          { .kind = MU_CALL_COMPARE_SET, .key = SLICE("q"), .desired = SLICE("new") },
          "01 02 00 00 00 00 00 00 00 2F 71 00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 6E 65 77" },
        { MU_DIALECT_L0,
          { .kind = MU_CALL_CHECK, .keys = k_zz, .count = 2 },
          "04 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B 03 00 00 00 00 00 00 00 2F 7A 7A" },
        { MU_DIALECT_L0, { .kind = MU_CALL_CHECK }, "04 00 00 00 00 00 00 00 00" },
        { MU_DIALECT_L0,
          { .kind = MU_CALL_WAIT, .keys = k, .count = 1 },
          "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B" },
        { MU_DIALECT_L0, { .kind = MU_CALL_WAIT }, "05 00 00 00 00 00 00 00 00" },
        { MU_DIALECT_L0, { .kind = MU_CALL_NUM_KEYS }, "06" },
        { MU_DIALECT_L0, { .kind = MU_CALL_DELETE_KEY, .key = SLICE("k") }, "08 02 00 00 00 00 00 00 00 2F 6B" },
        { MU_DIALECT_L1, { .kind = MU_CALL_DELETE_KEY, .key = SLICE("k") }, "07 02 00 00 00 00 00 00 00 2F 6B" },
        { MU_DIALECT_L1,
          { .kind = MU_CALL_APPEND, .key = SLICE("k"), .value = SLICE("w") },
          "08 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 77" },
        { MU_DIALECT_V, { .kind = MU_CALL_PING }, "0D CE F7 85 3C" },
        { MU_DIALECT_V,
          { .kind = MU_CALL_ADD, .key = SLICE("init/"), .number = 1, .raw_key = true },
          "04 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00" },
        { MU_DIALECT_V,
          { .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") },
          "01 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76" },
        { MU_DIALECT_V,
          { .kind = MU_CALL_COMPARE_SET, .key = SLICE("k"), .desired = SLICE("N") },
          "02 02 00 00 00 00 00 00 00 2F 6B 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 4E" },
        { MU_DIALECT_V,
          { .kind = MU_CALL_APPEND, .key = SLICE("k"), .value = SLICE("w") },
          "09 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 77" },
        { MU_DIALECT_V,
          { .kind = MU_CALL_MULTI_SET, .keys = a, .values = one, .count = 1 },
          "0B 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 61 01 00 00 00 00 00 00 00 31" },
        { MU_DIALECT_V,
          { .kind = MU_CALL_QUEUE_PUSH, .key = SLICE("q"), .value = SLICE("x") },
          "0E 02 00 00 00 00 00 00 00 2F 71 01 00 00 00 00 00 00 00 78" },
        { MU_DIALECT_V, { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, "0F 02 00 00 00 00 00 00 00 2F 71" },
        { MU_DIALECT_V, { .kind = MU_CALL_QUEUE_LEN, .key = SLICE("q") }, "10 02 00 00 00 00 00 00 00 2F 71" },
        { MU_DIALECT_V, { .kind = MU_CALL_LIST_KEYS }, "11" },
        { MU_DIALECT_V,
          { .kind = MU_CALL_BARRIER, .key = SLICE("b"), .number = 4 },
          "12 02 00 00 00 00 00 00 00 2F 62 04 00 00 00 00 00 00 00" },
    };
    const struct muster_error over = { .code = MUSTER_ELOST, .text = "over" };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        start(&s, rows[i].dialect);
        (void)submit(&s, rows[i].call, LONG_MS);
        assert_says(&s, rows[i].says);
        mu_calls_lose(&s.calls, &over);
        (void)finished(&s);
        end(&s);
    }
}

/* ---- Every call in every dialect ---- */

enum { IN_L0 = 1, IN_L1 = 2, IN_V = 4, IN_ALL = 7 };

struct exchange {
    unsigned where;
    struct mu_call call;
    const char *steps[STEPS]; /* said, heard, said, heard */
    const char *result;
};

static const struct exchange exchanges[] = {
    { IN_ALL, { .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, { "SET (/k) (v)" }, "set ok" },
    { IN_ALL, { .kind = MU_CALL_SET, .key = SLICE("") }, { "SET (/) ()" }, "set ok" },
    { IN_ALL, { .kind = MU_CALL_GET, .key = SLICE("k") }, { "WAIT #1 (/k)", "00", "GET (/k)", "(v)" }, "get 'v'" },
    { IN_ALL, { .kind = MU_CALL_GET, .key = SLICE("k") }, { "WAIT #1 (/k)", "00", "GET (/k)", "()" }, "get ''" },
    { IN_ALL, { .kind = MU_CALL_ADD, .key = SLICE("k"), .number = 5 }, { "ADD (/k) #5", "#12" }, "add 12" },
    { IN_ALL, { .kind = MU_CALL_ADD, .key = SLICE("k"), .number = -7 }, { "ADD (/k) #-7", "#-2" }, "add -2" },
    { IN_ALL,
      { .kind = MU_CALL_COMPARE_SET, .key = SLICE("k"), .value = SLICE("old"), .desired = SLICE("new") },
      { "COMPARE_SET (/k) (old) (new)", "(new)" },
      "compare_set 'new'" },
    { IN_ALL, { .kind = MU_CALL_CHECK, .keys = two_keys, .count = 2 }, { "CHECK #2 (/a) (/b)", "00" }, "check yes" },
    { IN_ALL, { .kind = MU_CALL_CHECK, .keys = two_keys, .count = 2 }, { "CHECK #2 (/a) (/b)", "01" }, "check no" },
    { IN_ALL, { .kind = MU_CALL_CHECK }, { "CHECK #0", "00" }, "check yes" },
    { IN_ALL, { .kind = MU_CALL_WAIT, .keys = two_keys, .count = 2 }, { "WAIT #2 (/a) (/b)", "00" }, "wait ok" },
    { IN_ALL, { .kind = MU_CALL_WAIT }, { "WAIT #0", "00" }, "wait ok" },
    { IN_ALL, { .kind = MU_CALL_DELETE_KEY, .key = SLICE("k") }, { "DELETE_KEY (/k)", "#1" }, "delete_key yes" },
    { IN_ALL, { .kind = MU_CALL_DELETE_KEY, .key = SLICE("k") }, { "DELETE_KEY (/k)", "#0" }, "delete_key no" },
    { IN_ALL, { .kind = MU_CALL_NUM_KEYS }, { "NUM_KEYS", "#258" }, "num_keys 258" },
    { IN_L1 | IN_V,
      { .kind = MU_CALL_APPEND, .key = SLICE("k"), .value = SLICE("v") },
      { "APPEND (/k) (v)" },
      "append ok" },
    { IN_L0, { .kind = MU_CALL_APPEND, .key = SLICE("k"), .value = SLICE("v") }, { "" }, "append ENOTSUP" },
    { IN_L1 | IN_V,
      { .kind = MU_CALL_MULTI_GET, .keys = two_keys, .count = 2 },
      { "WAIT #2 (/a) (/b)", "00", "MULTI_GET #2 (/a) (/b)", "(1) ()" },
      "multi_get ['1' '']" },
    { IN_L0,
      { .kind = MU_CALL_MULTI_GET, .keys = two_keys, .count = 2 },
      { "WAIT #2 (/a) (/b)", "00", "GET (/a) GET (/b)", "(1) ()" },
      "multi_get ['1' '']" },
    { IN_ALL, { .kind = MU_CALL_MULTI_GET }, { "WAIT #0", "00" }, "multi_get []" },
    { IN_L1 | IN_V,
      { .kind = MU_CALL_MULTI_SET, .keys = two_keys, .values = two_values, .count = 2 },
      { "MULTI_SET #2 (/a) (1) (/b) ()" },
      "multi_set ok" },
    { IN_L0,
      { .kind = MU_CALL_MULTI_SET, .keys = two_keys, .values = two_values, .count = 2 },
      { "SET (/a) (1) SET (/b) ()" },
      "multi_set ok" },
    { IN_L1 | IN_V, { .kind = MU_CALL_MULTI_SET }, { "MULTI_SET #0" }, "multi_set ok" },
    { IN_L0, { .kind = MU_CALL_MULTI_SET }, { "" }, "multi_set ok" },
    { IN_V,
      { .kind = MU_CALL_QUEUE_PUSH, .key = SLICE("q"), .value = SLICE("x") },
      { "QUEUE_PUSH (/q) (x)" },
      "queue_push ok" },
    { IN_L0 | IN_L1,
      { .kind = MU_CALL_QUEUE_PUSH, .key = SLICE("q"), .value = SLICE("x") },
      { "" },
      "queue_push ENOTSUP" },
    { IN_V, { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, { "QUEUE_POP (/q)", "#2 (x)" }, "queue_pop 'x'" },
    { IN_V, { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, { "QUEUE_POP (/q)", "#1 ()" }, "queue_pop ''" },
    { IN_V, { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, { "QUEUE_POP (/q)", "#0" }, "queue_pop EEMPTY" },
    { IN_V,
      { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q"), .block = true },
      { "WAIT #1 (/q)", "00", "QUEUE_POP (/q)", "#1 (x)" },
      "queue_pop 'x'" },
    { IN_V, /* another consumer was faster */
      { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q"), .block = true },
      { "WAIT #1 (/q)", "00", "QUEUE_POP (/q)", "#0" },
      "queue_pop EEMPTY" },
    { IN_L0 | IN_L1, { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, { "" }, "queue_pop ENOTSUP" },
    { IN_V, { .kind = MU_CALL_QUEUE_LEN, .key = SLICE("q") }, { "QUEUE_LEN (/q)", "#3" }, "queue_len 3" },
    { IN_L0 | IN_L1, { .kind = MU_CALL_QUEUE_LEN, .key = SLICE("q") }, { "" }, "queue_len ENOTSUP" },
    { IN_V, /* names without "/" are not of clients */
      { .kind = MU_CALL_LIST_KEYS },
      { "LIST_KEYS", "#4 (init/) (/k) () (//pre/x)" },
      "list_keys ['k' '/pre/x']" },
    { IN_V, { .kind = MU_CALL_LIST_KEYS }, { "LIST_KEYS", "#0" }, "list_keys []" },
    { IN_L0 | IN_L1, { .kind = MU_CALL_LIST_KEYS }, { "" }, "list_keys ENOTSUP" },
    { IN_V, { .kind = MU_CALL_BARRIER, .key = SLICE("b"), .number = 4 }, { "BARRIER (/b) #4", "00" }, "barrier ok" },
    { IN_L0 | IN_L1, { .kind = MU_CALL_BARRIER, .key = SLICE("b"), .number = 4 }, { "" }, "barrier ENOTSUP" },
    { IN_V, { .kind = MU_CALL_PING }, { "PING CE F7 85 3C", "CE F7 85 3C" }, "ping ok" },
    { IN_V, { .kind = MU_CALL_PING }, { "PING CE F7 85 3C", "01 00 00 00" }, "ping EPROTOCOL" },
    { IN_L0 | IN_L1, { .kind = MU_CALL_PING }, { "" }, "ping ENOTSUP" },
};

static void for_each_exchange(void (*act)(enum mu_dialect dialect, const struct exchange *row))
{
    static const enum mu_dialect dialects[] = { MU_DIALECT_L0, MU_DIALECT_L1, MU_DIALECT_V };

    for (size_t i = 0; i < COUNT(exchanges); i++) {
        for (size_t d = 0; d < COUNT(dialects); d++) {
            if (exchanges[i].where & 1U << d)
                act(dialects[d], &exchanges[i]);
        }
    }
}

static void converse_whole(enum mu_dialect dialect, const struct exchange *row)
{
    struct scene s;

    start(&s, dialect);
    (void)submit(&s, row->call, LONG_MS);
    for (size_t i = 0; i < STEPS && row->steps[i] != NULL; i++) {
        if (i % 2 == 0)
            assert_says(&s, row->steps[i]);
        else
            hear(&s, row->steps[i]);
    }
    assert_string_equal(finished(&s), row->result);
    assert_int_equal(s.calls.out.len, 0);
    end(&s);
}

static void every_call_says_and_hears_what_its_dialect_has(void **state)
{
    (void)state;
    for_each_exchange(converse_whole);
}

static void converse_bytewise(enum mu_dialect dialect, const struct exchange *row)
{
    struct scene s;

    start(&s, dialect);
    (void)submit(&s, row->call, LONG_MS);
    for (size_t i = 0; i < STEPS && row->steps[i] != NULL; i++) {
        struct mu_slice bytes = wire(dialect, row->steps[i]);

        if (i % 2 == 0) {
            assert_says(&s, row->steps[i]);
            continue;
        }
        for (size_t at = 0; at < bytes.len; at++) {
            assert_true(mu_list_empty(&s.calls.finished));
            mu_calls_read(&s.calls, mu_slice(bytes.data + at, 1));
        }
    }
    assert_string_equal(finished(&s), row->result);
    end(&s);
}

static void answers_may_come_byte_by_byte(void **state)
{
    (void)state;
    for_each_exchange(converse_bytewise);
}

/* Three of the same at once: without a WAIT they go out together and are answered together. */
static void converse_in_threes(enum mu_dialect dialect, const struct exchange *row)
{
    char said[1024], heard[1024], results[1024];
    struct scene s;

    if (row->steps[1] == NULL || row->steps[2] != NULL || dialect == MU_DIALECT_L0 || row->call.kind == MU_CALL_WAIT ||
        row->call.kind == MU_CALL_BARRIER || row->call.kind == MU_CALL_MULTI_GET)
        return;
    (void)snprintf(said, sizeof said, "%s %s %s", row->steps[0], row->steps[0], row->steps[0]);
    (void)snprintf(heard, sizeof heard, "%s %s %s", row->steps[1], row->steps[1], row->steps[1]);
    (void)snprintf(results, sizeof results, "%s; %s; %s", row->result, row->result, row->result);
    start(&s, dialect);
    for (int i = 0; i < 3; i++)
        (void)submit(&s, row->call, LONG_MS);
    assert_says(&s, said);
    hear(&s, heard);
    assert_string_equal(finished(&s), results);
    end(&s);
}

static void requests_are_pipelined_and_answers_may_come_together(void **state)
{
    (void)state;
    for_each_exchange(converse_in_threes);
}

static void mixed_answers_in_one_read_find_their_calls(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_ADD, .key = SLICE("n"), .number = 1 }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_LIST_KEYS }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
    assert_says(&s, "ADD (/n) #1 SET (/k) (v) LIST_KEYS QUEUE_POP (/q) NUM_KEYS");
    assert_string_equal(finished(&s), "set ok");
    hear(&s, "#1 #2 (/n) (/k) #1 (item) #2");
    assert_string_equal(finished(&s), "add 1; list_keys ['n' 'k']; queue_pop 'item'; num_keys 2");
    end(&s);
}

static void keys_go_as_they_are_when_asked(void **state)
{
    struct scene s;

    (void)state;
    s = (struct scene){ .dialect = MU_DIALECT_V };
    mu_calls_init(&s.calls, true);
    mu_calls_opened(&s.calls, MU_DIALECT_V);
    mu_calls_probed(&s.calls, MU_FEATURE_LIST_KEYS, true);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_LIST_KEYS }, LONG_MS);
    assert_says(&s, "SET (k) (v) LIST_KEYS");
    hear(&s, "#2 (init/) (k)");
    assert_string_equal(finished(&s), "set ok; list_keys ['init/' 'k']");
    end(&s);
}

/* ---- Order ---- */

static void nothing_is_said_behind_a_wait_until_it_is_answered(void **state)
{
    struct scene s;

    (void)state;
    for (enum mu_dialect dialect = MU_DIALECT_L0; dialect <= MU_DIALECT_V; dialect++) {
        start(&s, dialect);
        (void)submit(&s, (struct mu_call){ .kind = MU_CALL_WAIT, .keys = two_keys, .count = 1 }, LONG_MS);
        (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, LONG_MS);
        (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
        assert_says(&s, "WAIT #1 (/a)");
        assert_says(&s, "");
        hear(&s, "00");
        assert_says(&s, "SET (/k) (v) NUM_KEYS");
        hear(&s, "#1");
        assert_string_equal(finished(&s), "wait ok; set ok; num_keys 1");
        end(&s);
    }
}

/* The GET of a get comes before calls that were made after it. */
static void a_call_of_two_requests_keeps_its_place(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("k") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_DELETE_KEY, .key = SLICE("k") }, LONG_MS);
    assert_says(&s, "WAIT #1 (/k)");
    hear(&s, "00");
    assert_says(&s, "GET (/k) DELETE_KEY (/k)");
    hear(&s, "(v) #1");
    assert_string_equal(finished(&s), "get 'v'; delete_key yes");
    end(&s);
}

/* What follows an answer still to come could be a WAIT, and that cannot be taken back without the connection. */
static void a_113_server_is_asked_one_thing_at_a_time(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_L0);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_DELETE_KEY, .key = SLICE("k") }, LONG_MS);
    assert_says(&s, "NUM_KEYS");
    hear(&s, "#0");
    assert_says(&s, "SET (/k) (v) DELETE_KEY (/k)");
    hear(&s, "#1");
    assert_string_equal(finished(&s), "num_keys 0; set ok; delete_key yes");
    end(&s);
}

static void calls_made_before_the_connection_wait_for_it(void **state)
{
    struct scene s = { .dialect = MU_DIALECT_L1 };

    (void)state;
    mu_calls_init(&s.calls, false);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, 5);
    assert_says(&s, "");
    assert_int_equal(mu_calls_deadline_ms(&s.calls), 5);
    pass_time(&s, 5);
    assert_non_null(strstr(s.call[1].error.text, "before there was a connection"));
    assert_string_equal(finished(&s), "num_keys ETIMEOUT");
    mu_calls_opened(&s.calls, MU_DIALECT_L1);
    assert_says(&s, "NUM_KEYS");
    hear(&s, "#7");
    assert_string_equal(finished(&s), "num_keys 7");
    assert_true(mu_calls_deadline_ms(&s.calls) == UINT64_MAX);
    end(&s);
}

static void a_set_is_done_when_its_last_byte_is_written(void **state)
{
    struct scene s;
    size_t first, second;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, LONG_MS);
    first = s.calls.out.len;
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_APPEND, .key = SLICE("k"), .value = SLICE("w") }, LONG_MS);
    second = s.calls.out.len - first;
    mu_calls_wrote(&s.calls, first - 1);
    assert_string_equal(finished(&s), "");
    mu_calls_wrote(&s.calls, 1);
    assert_string_equal(finished(&s), "set ok");
    mu_calls_wrote(&s.calls, second - 1);
    assert_string_equal(finished(&s), "");
    mu_calls_wrote(&s.calls, 1);
    assert_string_equal(finished(&s), "append ok");
    end(&s);
}

/* ---- Running out of time ---- */

static void a_call_kept_waiting_by_others_times_out_and_is_never_said(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_WAIT, .keys = two_keys, .count = 1 }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, 5);
    assert_says(&s, "WAIT #1 (/a)");
    assert_int_equal(mu_calls_deadline_ms(&s.calls), 5);
    pass_time(&s, 4);
    assert_string_equal(finished(&s), "");
    pass_time(&s, 1);
    assert_string_equal(s.call[1].error.text, "set 'k': had to wait for other calls and timed out after 5 ms");
    assert_string_equal(finished(&s), "set ETIMEOUT");
    assert_int_equal(mu_calls_deadline_ms(&s.calls), LONG_MS);
    hear(&s, "00");
    assert_string_equal(finished(&s), "wait ok");
    assert_says(&s, "");
    end(&s);
}

/* Its bytes cannot be taken back any more, so the stream goes on as if nothing had been. */
static void a_call_whose_bytes_are_stuck_times_out_and_is_said_all_the_same(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, 5);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_APPEND, .key = SLICE("k"), .value = SLICE("w") }, LONG_MS);
    mu_calls_wrote(&s.calls, 3);
    mu_buf_consume(&s.calls.out, 3);
    pass_time(&s, 5);
    assert_non_null(strstr(s.call[0].error.text, "was not sent and timed out after 5 ms"));
    assert_string_equal(finished(&s), "set ETIMEOUT");
    write_all(&s);
    assert_string_equal(finished(&s), "append ok");
    end(&s);
}

static void a_late_answer_is_swallowed_and_the_next_call_gets_its_own(void **state)
{
    static const struct {
        struct mu_call call;
        const char *says, *late;
    } rows[] = {
        { { .kind = MU_CALL_ADD, .key = SLICE("k"), .number = 1 }, "ADD (/k) #1", "#77" },
        { { .kind = MU_CALL_COMPARE_SET, .key = SLICE("k"), .desired = SLICE("v") }, "COMPARE_SET (/k) () (v)", "(v)" },
        { { .kind = MU_CALL_CHECK, .keys = two_keys, .count = 1 }, "CHECK #1 (/a)", "01" },
        { { .kind = MU_CALL_DELETE_KEY, .key = SLICE("k") }, "DELETE_KEY (/k)", "#1" },
        { { .kind = MU_CALL_NUM_KEYS }, "NUM_KEYS", "#77" },
        { { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, "QUEUE_POP (/q)", "#1 (lost)" },
        { { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, "QUEUE_POP (/q)", "#0" },
        { { .kind = MU_CALL_QUEUE_LEN, .key = SLICE("q") }, "QUEUE_LEN (/q)", "#77" },
        { { .kind = MU_CALL_LIST_KEYS }, "LIST_KEYS", "#2 (/a) (/b)" },
        { { .kind = MU_CALL_PING }, "PING CE F7 85 3C", "CE F7 85 3C" },
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        for (size_t early = 0; early <= wire(MU_DIALECT_V, rows[i].late).len - 1; early++) {
            struct mu_slice late;

            start(&s, MU_DIALECT_V);
            (void)submit(&s, rows[i].call, 5);
            assert_says(&s, rows[i].says);
            late = wire(MU_DIALECT_V, rows[i].late);
            mu_calls_read(&s.calls, mu_slice(late.data, early)); /* a part of it may have come in time */
            pass_time(&s, 5);
            assert_non_null(strstr(s.call[0].error.text, "got no answer and timed out after 5 ms"));
            assert_non_null(strstr(finished(&s), " ETIMEOUT"));
            (void)submit(&s, (struct mu_call){ .kind = MU_CALL_ADD, .key = SLICE("n"), .number = 1 }, LONG_MS);
            assert_says(&s, "ADD (/n) #1");
            mu_calls_read(&s.calls, mu_slice(late.data + early, late.len - early));
            hear(&s, "#5");
            assert_string_equal(finished(&s), "add 5");
            end(&s);
        }
    }
}

static void a_late_multi_get_is_swallowed_to_its_last_value(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_MULTI_GET, .keys = two_keys, .count = 2 }, 5);
    assert_says(&s, "WAIT #2 (/a) (/b)");
    hear(&s, "00");
    assert_says(&s, "MULTI_GET #2 (/a) (/b)");
    hear(&s, "(one)");
    pass_time(&s, 5);
    assert_string_equal(finished(&s), "multi_get ETIMEOUT");
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
    hear(&s, "(two) #3");
    assert_string_equal(finished(&s), "num_keys 3");
    end(&s);
}

struct parked {
    struct mu_call call;
    const char *says;
};

static const struct parked parked_calls[] = {
    { { .kind = MU_CALL_WAIT, .keys = two_keys, .count = 2 }, "WAIT #2 (/a) (/b)" },
    { { .kind = MU_CALL_GET, .key = SLICE("k") }, "WAIT #1 (/k)" },
    { { .kind = MU_CALL_MULTI_GET, .keys = two_keys, .count = 1 }, "WAIT #1 (/a)" },
    { { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q"), .block = true }, "WAIT #1 (/q)" },
    { { .kind = MU_CALL_BARRIER, .key = SLICE("b"), .number = 2 }, "BARRIER (/b) #2" },
};

static bool dialect_has(enum mu_dialect dialect, enum mu_call_kind kind)
{
    return dialect == MU_DIALECT_V || (kind != MU_CALL_QUEUE_POP && kind != MU_CALL_BARRIER);
}

/* The answer to CANCEL_WAIT is 01; if the wake-up was faster, 00 comes first. Both, and nothing else. */
static void a_wait_out_of_time_is_cancelled_and_the_connection_goes_on(void **state)
{
    static const char *const answers[] = { "01", "00 01" };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(parked_calls) * COUNT(answers); i++) {
        enum mu_dialect dialect = i % 2 ? MU_DIALECT_L1 : MU_DIALECT_V;
        const struct parked *row = &parked_calls[i / 2 % COUNT(parked_calls)];
        const char *answer = answers[i / 2 / COUNT(parked_calls)];

        if (!dialect_has(dialect, row->call.kind))
            continue;
        start(&s, dialect);
        (void)submit(&s, row->call, 5);
        (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
        assert_says(&s, row->says);
        pass_time(&s, 5);
        assert_non_null(strstr(s.call[0].error.text, ": timed out after 5 ms"));
        assert_non_null(strstr(finished(&s), " ETIMEOUT"));
        assert_says(&s, "CANCEL_WAIT"); /* and NUM_KEYS not before it is known how that ends */
        hear(&s, answer);
        assert_says(&s, "NUM_KEYS");
        hear(&s, "#3");
        assert_string_equal(finished(&s), "num_keys 3");
        assert_false(s.calls.renew);
        end(&s);
    }
}

static void the_two_bytes_of_a_raced_cancel_may_come_apart(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("k") }, 5);
    assert_says(&s, "WAIT #1 (/k)");
    pass_time(&s, 5);
    assert_string_equal(finished(&s), "get ETIMEOUT");
    assert_says(&s, "CANCEL_WAIT");
    hear(&s, "00");
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
    assert_says(&s, "");
    hear(&s, "01");
    assert_says(&s, "NUM_KEYS");
    hear(&s, "#1");
    assert_string_equal(finished(&s), "num_keys 1");
    end(&s);
}

static void a_call_may_be_given_more_time_but_not_less(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, 100);
    mu_call_extend(&s.call[0], 300);
    mu_call_extend(&s.call[0], 200);
    assert_int_equal(mu_calls_deadline_ms(&s.calls), s.call[0].start_ms + 300);
    mu_call_extend(&s.call[0], UINT64_MAX);
    mu_calls_pass_time(&s.calls, s.call[0].start_ms + 300);
    assert_string_equal(finished(&s), "");
    mu_calls_pass_time(&s.calls, UINT64_MAX - 1);
    assert_string_equal(finished(&s), "num_keys ETIMEOUT");
    end(&s);
}

static void a_call_may_be_ended_before_its_time(void **state)
{
    static const enum mu_dialect dialects[] = { MU_DIALECT_V, MU_DIALECT_L1, MU_DIALECT_L0 };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(dialects); i++) {
        start(&s, dialects[i]);
        (void)submit(&s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("k") }, LONG_MS);
        (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
        assert_says(&s, "WAIT #1 (/k)");
        mu_calls_expire(&s.calls, &s.call[0], 1);
        mu_calls_expire(&s.calls, &s.call[0], 1); /* it is over already */
        assert_string_equal(finished(&s), "get ETIMEOUT");
        assert_int_equal(s.calls.renew, dialects[i] == MU_DIALECT_L0);
        if (dialects[i] == MU_DIALECT_L0) {
            mu_calls_opened(&s.calls, MU_DIALECT_L0);
        } else {
            assert_says(&s, "CANCEL_WAIT");
            hear(&s, "01");
        }
        assert_says(&s, "NUM_KEYS");
        hear(&s, "#1");
        assert_string_equal(finished(&s), "num_keys 1");
        end(&s);
    }
}

static void a_113_wait_out_of_time_costs_the_connection(void **state)
{
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(parked_calls); i++) {
        if (!dialect_has(MU_DIALECT_L0, parked_calls[i].call.kind))
            continue;
        start(&s, MU_DIALECT_L0);
        (void)submit(&s, parked_calls[i].call, 5);
        (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, LONG_MS);
        (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, 10);
        assert_says(&s, parked_calls[i].says);
        pass_time(&s, 5);
        assert_non_null(strstr(finished(&s), " ETIMEOUT"));
        assert_true(s.calls.renew);
        assert_false(s.calls.open);
        assert_says(&s, "");
        pass_time(&s, 5);
        assert_string_equal(finished(&s), "num_keys ETIMEOUT");
        mu_calls_opened(&s.calls, MU_DIALECT_L0);
        assert_false(s.calls.renew);
        assert_says(&s, "SET (/k) (v)");
        assert_string_equal(finished(&s), "set ok");
        end(&s);
    }
}

/* On 1.13 a set that was on its way when the connection had to go is not known to have arrived. */
static void a_set_half_written_on_a_replaced_connection_fails(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_L0);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("k") }, 5);
    mu_calls_wrote(&s.calls, 3);
    pass_time(&s, 5);
    assert_non_null(strstr(s.call[0].error.text, "replaced"));
    assert_string_equal(finished(&s), "get ETIMEOUT; set ELOST");
    mu_calls_opened(&s.calls, MU_DIALECT_L0);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
    assert_says(&s, "NUM_KEYS"); /* nothing of the old connection is said on the new one */
    hear(&s, "#0");
    assert_string_equal(finished(&s), "num_keys 0");
    end(&s);
}

static void a_late_answer_of_a_113_server_is_waited_for(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_L0);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_ADD, .key = SLICE("n"), .number = 1 }, 5);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
    assert_says(&s, "ADD (/n) #1");
    pass_time(&s, 5);
    assert_string_equal(finished(&s), "add ETIMEOUT");
    assert_false(s.calls.renew);
    assert_says(&s, "");
    hear(&s, "#1");
    assert_says(&s, "NUM_KEYS");
    hear(&s, "#9");
    assert_string_equal(finished(&s), "num_keys 9");
    end(&s);
}

/* Then it does not matter what for. */
static void without_a_connection_only_that_is_said(void **state)
{
    static const struct {
        int code;
        const char *text;
    } rows[] = { { MUSTER_ECONNECT, "nobody is there" }, { MUSTER_ELOST, "get 'k': it is gone" } };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene s;
        struct muster_error why;
        struct mu_call *call;

        start(&s, MU_DIALECT_V);
        call = submit(&s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("k") }, 5000);
        (void)mu_fail(&why, rows[i].code, "%s", rows[i].code == MUSTER_ECONNECT ? "nobody is there" : "it is gone");
        mu_calls_lose(&s.calls, &why);
        assert_string_equal(call->error.text, rows[i].text);
        (void)finished(&s);
        end(&s);
    }
}

static void many_timeouts_at_once_finish_every_call_once(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_ADD, .key = SLICE("n"), .number = 1 }, 5);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, 5);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("k") }, 5);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, 5);
    pass_time(&s, 100);
    assert_string_equal(finished(&s), "num_keys ETIMEOUT; set ETIMEOUT; add ETIMEOUT; get ETIMEOUT");
    assert_says(&s, "ADD (/n) #1 SET (/k) (v) WAIT #1 (/k) CANCEL_WAIT");
    hear(&s, "#1 01");
    assert_int_equal(s.calls.lost.code, 0);
    end(&s);
}

static void endless_timeouts_do_not_wrap_around(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    s.now_ms = 1000;
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, UINT64_MAX);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, INT64_MAX);
    pass_time(&s, UINT64_C(1) << 40);
    assert_string_equal(finished(&s), "");
    hear(&s, "#1 #2");
    assert_string_equal(finished(&s), "num_keys 1; num_keys 2");
    end(&s);
}

/* ---- Features ---- */

static void what_a_server_may_lack_is_asked_for_once(void **state)
{
    static const struct {
        struct mu_call call;
        unsigned feature;
        const char *says, *hears, *yes, *no;
    } rows[] = {
        { { .kind = MU_CALL_PING }, MU_FEATURE_PING, "PING CE F7 85 3C", "CE F7 85 3C", "ping ok", "ping ENOTSUP" },
        { { .kind = MU_CALL_QUEUE_LEN, .key = SLICE("q") },
          MU_FEATURE_QUEUES,
          "QUEUE_LEN (/q)",
          "#0",
          "queue_len 0",
          "queue_len ENOTSUP" },
        { { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") },
          MU_FEATURE_QUEUES,
          "QUEUE_POP (/q)",
          "#1 (x)",
          "queue_pop 'x'",
          "queue_pop ENOTSUP" },
        { { .kind = MU_CALL_QUEUE_PUSH, .key = SLICE("q"), .value = SLICE("x") },
          MU_FEATURE_QUEUES,
          "QUEUE_PUSH (/q) (x)",
          "",
          "queue_push ok",
          "queue_push ENOTSUP" },
        { { .kind = MU_CALL_LIST_KEYS }, MU_FEATURE_LIST_KEYS, "LIST_KEYS", "#0", "list_keys []", "list_keys ENOTSUP" },
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(rows); i++) {
        bool had = i % 2 == 0;

        start(&s, MU_DIALECT_V);
        s.calls.features_known = s.calls.features_had = 0;
        (void)submit(&s, rows[i / 2].call, LONG_MS);
        (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
        assert_int_equal(s.calls.probe, rows[i / 2].feature);
        assert_says(&s, "");
        mu_calls_probed(&s.calls, rows[i / 2].feature, had);
        assert_int_equal(s.calls.probe, 0);
        if (had) {
            assert_memory_equal(wire_hex(mu_buf_slice(&s.calls.out)), wire_hex(wire(MU_DIALECT_V, rows[i / 2].says)),
                                strlen(wire_hex(wire(MU_DIALECT_V, rows[i / 2].says))));
            write_all(&s);
            hear(&s, rows[i / 2].hears);
        } else {
            assert_non_null(strstr(s.call[0].error.text, "dialect 2.x"));
            assert_says(&s, "NUM_KEYS");
        }
        assert_string_equal(finished(&s), had ? rows[i / 2].yes : rows[i / 2].no);
        hear(&s, "#0");
        assert_string_equal(finished(&s), "num_keys 0");
        (void)submit(&s, rows[i / 2].call, LONG_MS); /* the answer is remembered */
        assert_int_equal(s.calls.probe, 0);
        if (had) {
            assert_says(&s, rows[i / 2].says);
            hear(&s, rows[i / 2].hears);
        }
        assert_string_equal(finished(&s), had ? rows[i / 2].yes : rows[i / 2].no);
        end(&s);
    }
}

static void a_question_that_outlasts_its_call_holds_up_nobody_else(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    s.calls.features_known = s.calls.features_had = 0;
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_LIST_KEYS }, 5);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
    assert_int_equal(s.calls.probe, MU_FEATURE_LIST_KEYS);
    pass_time(&s, 5);
    assert_string_equal(finished(&s), "list_keys ETIMEOUT");
    assert_int_equal(s.calls.probe, 0);
    assert_says(&s, "NUM_KEYS");
    mu_calls_probed(&s.calls, MU_FEATURE_LIST_KEYS, true); /* comes late, is kept */
    hear(&s, "#0");
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_LIST_KEYS }, LONG_MS);
    assert_says(&s, "LIST_KEYS");
    hear(&s, "#0");
    assert_string_equal(finished(&s), "num_keys 0; list_keys []");
    end(&s);
}

/* Whether the server has it is not known then; the next call finds out anew. */
static void a_question_that_cannot_be_asked_fails_those_who_need_the_answer(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    s.calls.features_known = s.calls.features_had = 0;
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_QUEUE_LEN, .key = SLICE("q") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_PING }, LONG_MS);
    assert_int_equal(s.calls.probe, MU_FEATURE_QUEUES);
    mu_calls_probe_failed(&s.calls, MU_FEATURE_QUEUES, "too many open files");
    assert_non_null(strstr(s.call[0].error.text, ": too many open files"));
    assert_string_equal(finished(&s), "queue_len ECONNECT; queue_pop ECONNECT");
    assert_says(&s, "NUM_KEYS");
    hear(&s, "#0");
    assert_string_equal(finished(&s), "num_keys 0");
    assert_int_equal(s.calls.probe, MU_FEATURE_PING); /* the next one's turn */
    mu_calls_probed(&s.calls, MU_FEATURE_PING, false);
    assert_string_equal(finished(&s), "ping ENOTSUP");
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_QUEUE_LEN, .key = SLICE("q") }, LONG_MS);
    assert_int_equal(s.calls.probe, MU_FEATURE_QUEUES);
    mu_calls_probed(&s.calls, MU_FEATURE_QUEUES, true);
    assert_says(&s, "QUEUE_LEN (/q)");
    hear(&s, "#0");
    assert_string_equal(finished(&s), "queue_len 0");
    end(&s);
}

/* ---- Losing the connection ---- */

static void a_failure_says_what_was_called_on_what_and_where(void **state)
{
    static const struct muster_slice three[] = { SLICE("a"), SLICE("b"), SLICE("c") };
    static const char ninety[] = "123456789.123456789.123456789.123456789.123456789.123456789.123456789.123456789.";
    const struct {
        struct mu_call call;
        const char *peer, *text;
    } rows[] = {
        { { .kind = MU_CALL_NUM_KEYS }, "", "num_keys: gone" },
        { { .kind = MU_CALL_NUM_KEYS }, "192.0.2.1:80", "num_keys at 192.0.2.1:80: gone" },
        { { .kind = MU_CALL_GET, .key = SLICE("k") }, "", "get 'k': gone" },
        { { .kind = MU_CALL_GET, .key = SLICE("k") }, "[::1]:80", "get 'k' at [::1]:80: gone" },
        { { .kind = MU_CALL_GET, .key = SLICE("\0 \n\xc3\xbc'") }, "", "get '? ?\?\?'': gone" },
        { { .kind = MU_CALL_WAIT, .keys = three, .count = 1 }, "", "wait 'a': gone" },
        { { .kind = MU_CALL_WAIT, .keys = three, .count = 3 }, "x", "wait 'a' and 2 more at x: gone" },
        { { .kind = MU_CALL_GET, .key = SLICE(ninety) },
          "",
          "get '123456789.123456789.123456789.123456789.123456789.123456789.1234...': gone" },
    };
    const struct muster_error gone = { .code = MUSTER_ELOST, .text = "gone" };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        start(&s, MU_DIALECT_V);
        mu_calls_name_peer(&s.calls, rows[i].peer);
        (void)submit(&s, rows[i].call, LONG_MS);
        mu_calls_lose(&s.calls, &gone);
        assert_string_equal(s.call[0].error.text, rows[i].text);
        (void)finished(&s);
        end(&s);
    }
}

static void submit_one_in_every_state(struct scene *s)
{
    (void)submit(s, (struct mu_call){ .kind = MU_CALL_ADD, .key = SLICE("n"), .number = 1 }, LONG_MS);
    (void)submit(s, (struct mu_call){ .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") }, LONG_MS);
    (void)submit(s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("k") }, LONG_MS);
    (void)submit(s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }, LONG_MS);
}

static void losing_the_connection_fails_every_call_once_with_the_cause(void **state)
{
    const struct muster_error why = { .code = MUSTER_ELOST, .text = "the cable was cut" };
    const struct muster_error later = { .code = MUSTER_ECANCELED, .text = "closed" };
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    submit_one_in_every_state(&s);
    mu_calls_lose(&s.calls, &why);
    for (size_t i = 0; i < s.count; i++)
        assert_non_null(strstr(s.call[i].error.text, ": the cable was cut"));
    assert_string_equal(finished(&s), "set ELOST; add ELOST; get ELOST; num_keys ELOST");
    mu_calls_lose(&s.calls, &later); /* the first cause stays */
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_PING }, LONG_MS);
    assert_string_equal(s.call[4].error.text, "ping: the cable was cut");
    assert_string_equal(finished(&s), "ping ELOST");
    hear(&s, "#1"); /* late bytes and times change nothing */
    pass_time(&s, 2 * LONG_MS);
    assert_true(mu_calls_deadline_ms(&s.calls) == UINT64_MAX);
    assert_says(&s, "");
    end(&s);
}

static void nonsense_fails_every_call_with_what_came(void **state)
{
    static const struct {
        struct mu_call call;
        const char *first, *nonsense, *why;
    } rows[] = {
        { { .kind = MU_CALL_WAIT, .keys = two_keys, .count = 1 }, NULL, "02", "neither 0 nor 1" },
        { { .kind = MU_CALL_WAIT, .keys = two_keys, .count = 1 }, NULL, "01", "neither 0 nor 1" },
        { { .kind = MU_CALL_GET, .key = SLICE("k") }, "00", "#1073741825", "a value of more than 1 GiB" },
        { { .kind = MU_CALL_GET, .key = SLICE("k") }, "00", "#-1", "a value of more than 1 GiB" },
        { { .kind = MU_CALL_COMPARE_SET, .key = SLICE("k") }, NULL, "#18446744073709551615", "more than 1 GiB" },
        { { .kind = MU_CALL_MULTI_GET, .keys = two_keys, .count = 2 }, "00", "(a) #-1", "more than 1 GiB" },
        { { .kind = MU_CALL_LIST_KEYS }, NULL, "#-1", "an impossible count" },
        { { .kind = MU_CALL_LIST_KEYS }, NULL, "#67108865", "an impossible count" },
        { { .kind = MU_CALL_LIST_KEYS }, NULL, "#2 (/a) #-1", "more than 1 GiB" },
        { { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, NULL, "#-1", "an impossible count" },
        { { .kind = MU_CALL_QUEUE_POP, .key = SLICE("q") }, NULL, "#1 #-1", "more than 1 GiB" },
        { { .kind = MU_CALL_CHECK }, NULL, "00 00", "bytes that answer no request" },
        { { .kind = MU_CALL_SET, .key = SLICE("k") }, NULL, "00", "bytes that answer no request" },
    };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        start(&s, MU_DIALECT_V);
        (void)submit(&s, rows[i].call, LONG_MS);
        write_all(&s);
        if (rows[i].first != NULL)
            hear(&s, rows[i].first);
        write_all(&s);
        hear(&s, rows[i].nonsense);
        assert_int_equal(s.calls.lost.code, MUSTER_EPROTOCOL);
        assert_non_null(strstr(s.calls.lost.text, "makes no sense"));
        assert_non_null(strstr(s.calls.lost.text, rows[i].why));
        (void)finished(&s);
        end(&s);
    }
}

static void nonsense_takes_the_calls_behind_along(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_LIST_KEYS }, LONG_MS);
    submit_one_in_every_state(&s);
    hear(&s, "#1 (/half"
             ")"); /* keeps a found key that must be freed */
    assert_string_equal(finished(&s), "list_keys ['half']");
    hear(&s, "#1 07");
    assert_string_equal(finished(&s), "add 1; set EPROTOCOL; get EPROTOCOL; num_keys EPROTOCOL");
    end(&s);
}

static void an_answer_other_than_canceled_to_a_cancel_is_nonsense(void **state)
{
    struct scene s;

    (void)state;
    start(&s, MU_DIALECT_V);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("k") }, 5);
    pass_time(&s, 5);
    hear(&s, "05");
    assert_int_equal(s.calls.lost.code, MUSTER_EPROTOCOL);
    assert_string_equal(finished(&s), "get ETIMEOUT");
    end(&s);
}

/* ---- Out of memory ---- */

struct pipe {
    struct mu_session session;
    char bytes[4096];
    size_t len;
};

static void send_to_pipe(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    struct pipe *pipe = MU_LIST_ITEM(session, struct pipe, session);

    for (size_t i = 0; i < count; i++) {
        assert_true(pipe->len + parts[i].len <= sizeof pipe->bytes);
        if (parts[i].len > 0)
            memcpy(pipe->bytes + pipe->len, parts[i].data, parts[i].len);
        pipe->len += parts[i].len;
    }
}

/* Lets both sides talk until neither has anything to say. */
static void converse(struct scene *s, struct pipe *pipe)
{
    struct muster_error error = { 0 };
    size_t len;

    while (s->calls.lost.code == 0 && (s->calls.out.len > 0 || pipe->len > 0)) {
        int rc = mu_session_feed(&pipe->session, mu_buf_slice(&s->calls.out), s->now_ms, &error);

        write_all(s);
        len = pipe->len;
        pipe->len = 0;
        if (len > 0)
            mu_calls_read(&s->calls, mu_slice(pipe->bytes, len));
        if (rc < 0)
            mu_calls_lose(&s->calls, &error);
    }
}

static void run_short_of_memory(enum mu_dialect dialect, unsigned long *ret_done)
{
    struct muster_store_limits limits = { 0 };
    struct muster_error over = { .code = MUSTER_ELOST, .text = "over" };
    struct mu_service service;
    static struct pipe pipe;
    static struct scene s;
    struct mu_call *call;
    struct mu_slice hello = dialect == MU_DIALECT_V ? mu_slice("\x00\xce\xf7\x85\x3c", 5) : mu_greeting(dialect);
    size_t done = 0;

    (void)mu_limits_settle(&limits, NULL);
    mu_service_init(&service, &limits, dialect == MU_DIALECT_V ? MU_DIALECT_L : dialect, (struct mu_hash_seed){ 1, 2 },
                    send_to_pipe);
    pipe = (struct pipe){ .len = 0 };
    mu_session_init(&pipe.session, &service);
    (void)mu_session_feed(&pipe.session, hello, 0, &over);
    pipe.len = 0;
    start(&s, dialect);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_MULTI_SET, .keys = two_keys, .values = two_values, .count = 2 },
                 LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_MULTI_GET, .keys = two_keys, .count = 2 }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("a") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_QUEUE_PUSH, .key = SLICE("q"), .value = SLICE("x") }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_QUEUE_POP, .key = SLICE("q"), .block = true }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_LIST_KEYS }, LONG_MS);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_GET, .key = SLICE("never") }, 5);
    converse(&s, &pipe);
    pass_time(&s, 5);
    converse(&s, &pipe);
    (void)submit(&s, (struct mu_call){ .kind = MU_CALL_ADD, .key = SLICE("n"), .number = 1 }, LONG_MS);
    converse(&s, &pipe);
    pass_time(&s, LONG_MS); /* what waited for a value that could not be set */
    while ((call = mu_calls_pop_finished(&s.calls)) != NULL) {
        assert_true(call->rc == 0 || call->error.code == call->rc);
        muster_bytes_done(&call->bytes);
        muster_values_done(&call->found);
        done++;
    }
    assert_int_equal(done, s.count);
    *ret_done += done;
    end(&s);
    mu_session_leave(&pipe.session);
    mu_service_done(&service);
}

static void any_allocation_may_fail_and_every_call_still_ends_once(void **state)
{
    unsigned long done = 0;

    (void)state;
    for (enum mu_dialect dialect = MU_DIALECT_L0; dialect <= MU_DIALECT_V; dialect++) {
        unsigned long runs = 0;

        FOR_EACH_FAILURE (n) {
            run_short_of_memory(dialect, &done);
            runs++;
        }
        assert_true(runs > 10);
    }
    assert_true(done > 100);
}

/* ---- Bounds and words ---- */

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
    assert_string_equal(wait.error.text, "wait 'a?b' and 2 more at 192.0.2.1:29500: timed out after 7 ms");
    while (mu_calls_pop_finished(&calls) != NULL)
        continue;
    mu_calls_done(&calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_the_captured_bytes),
        cmocka_unit_test(every_call_says_and_hears_what_its_dialect_has),
        cmocka_unit_test(answers_may_come_byte_by_byte),
        cmocka_unit_test(requests_are_pipelined_and_answers_may_come_together),
        cmocka_unit_test(mixed_answers_in_one_read_find_their_calls),
        cmocka_unit_test(keys_go_as_they_are_when_asked),
        cmocka_unit_test(nothing_is_said_behind_a_wait_until_it_is_answered),
        cmocka_unit_test(a_call_of_two_requests_keeps_its_place),
        cmocka_unit_test(a_113_server_is_asked_one_thing_at_a_time),
        cmocka_unit_test(calls_made_before_the_connection_wait_for_it),
        cmocka_unit_test(a_set_is_done_when_its_last_byte_is_written),
        cmocka_unit_test(a_call_kept_waiting_by_others_times_out_and_is_never_said),
        cmocka_unit_test(a_call_whose_bytes_are_stuck_times_out_and_is_said_all_the_same),
        cmocka_unit_test(a_late_answer_is_swallowed_and_the_next_call_gets_its_own),
        cmocka_unit_test(a_late_multi_get_is_swallowed_to_its_last_value),
        cmocka_unit_test(a_wait_out_of_time_is_cancelled_and_the_connection_goes_on),
        cmocka_unit_test(the_two_bytes_of_a_raced_cancel_may_come_apart),
        cmocka_unit_test(a_call_may_be_given_more_time_but_not_less),
        cmocka_unit_test(a_call_may_be_ended_before_its_time),
        cmocka_unit_test(a_113_wait_out_of_time_costs_the_connection),
        cmocka_unit_test(a_set_half_written_on_a_replaced_connection_fails),
        cmocka_unit_test(a_late_answer_of_a_113_server_is_waited_for),
        cmocka_unit_test(without_a_connection_only_that_is_said),
        cmocka_unit_test(many_timeouts_at_once_finish_every_call_once),
        cmocka_unit_test(endless_timeouts_do_not_wrap_around),
        cmocka_unit_test(what_a_server_may_lack_is_asked_for_once),
        cmocka_unit_test(a_question_that_outlasts_its_call_holds_up_nobody_else),
        cmocka_unit_test(a_question_that_cannot_be_asked_fails_those_who_need_the_answer),
        cmocka_unit_test(a_failure_says_what_was_called_on_what_and_where),
        cmocka_unit_test(losing_the_connection_fails_every_call_once_with_the_cause),
        cmocka_unit_test(nonsense_fails_every_call_with_what_came),
        cmocka_unit_test(nonsense_takes_the_calls_behind_along),
        cmocka_unit_test(an_answer_other_than_canceled_to_a_cancel_is_nonsense),
        cmocka_unit_test(any_allocation_may_fail_and_every_call_still_ends_once),
        cmocka_unit_test(a_server_cannot_send_values_without_end),
        cmocka_unit_test(an_error_names_the_call_its_keys_and_the_peer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
