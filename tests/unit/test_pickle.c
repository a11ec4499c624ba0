/* The document's pickle: every stored document of PyTorch reads as what it is, what does not belong is refused wherever
 * it stands, and what we write is what CPython would have written. */
#include "failmalloc.h"
#include "pure.h"
#include "rdzv/pickle.h"
#include "rdzv/rdzv.h"

#include <stdio.h>
#include <time.h>

static const struct mu_hash_seed seed = { 5, 6 };

static void doc_init(struct mu_doc *doc)
{
    mu_doc_init(doc, seed, MU_DOC_DIALECT_1_13);
}

static struct mu_node node(const char *name, int64_t pid, int64_t local_id)
{
    return (struct mu_node){ mu_slice_str(name), pid, local_id };
}

/* ---- Documents compared ---- */

static void assert_sound(const struct mu_doc *doc)
{
    size_t participants = 0, waiting = 0, spares = 0;

    for (size_t i = 0; i < doc->count; i++) {
        assert_ptr_equal(mu_doc_find(doc, &doc->members[i].node), &doc->members[i]);
        assert_true(doc->members[i].in != 0);
        participants += (doc->members[i].in & MU_DOC_PARTICIPANT) != 0;
        waiting += (doc->members[i].in & MU_DOC_WAITING) != 0;
        spares += (doc->members[i].in & MU_DOC_SPARE) != 0;
    }
    assert_int_equal(doc->participants, participants);
    assert_int_equal(doc->waiting, waiting);
    assert_int_equal(doc->spares, spares);
}

static void assert_dialect(struct mu_doc_dialect dialect, bool addr, bool spares, bool zoned)
{
    assert_int_equal(dialect.addr, addr);
    assert_int_equal(dialect.spares, spares);
    assert_int_equal(dialect.zoned, zoned);
}

/* Members who are in `ordered` stand in the same places. */
static void assert_same(const struct mu_doc *a, const struct mu_doc *b, unsigned ordered)
{
    assert_sound(a);
    assert_sound(b);
    assert_int_equal(a->round, b->round);
    assert_int_equal(a->complete, b->complete);
    assert_int_equal(a->closed, b->closed);
    assert_int_equal(a->has_deadline, b->has_deadline);
    if (a->has_deadline)
        assert_int_equal(a->deadline_us, b->deadline_us);
    assert_dialect(a->dialect, b->dialect.addr, b->dialect.spares, b->dialect.zoned);
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct mu_doc_member *x = &a->members[i], *y = mu_doc_find(b, &x->node);

        assert_non_null(y);
        assert_int_equal(x->in, y->in);
        if (x->in & ordered)
            assert_ptr_equal(y, &b->members[i]);
        if (x->in & MU_DOC_PARTICIPANT)
            assert_int_equal(x->rank, y->rank);
        if (x->in & MU_DOC_HEARTBEAT)
            assert_int_equal(x->heartbeat_us, y->heartbeat_us);
    }
}

static void assert_comes_back(const struct mu_doc *doc)
{
    struct muster_error err = { 0 };
    struct mu_buf bytes = { 0 };
    struct mu_doc back;

    doc_init(&back);
    assert_int_equal(mu_pickle_encode(doc, &bytes), 0);
    if (mu_pickle_decode(mu_buf_slice(&bytes), &back, &err) < 0)
        fail_msg("%s", err.text);
    assert_same(doc, &back, ~0u);
    mu_buf_done(&bytes);
    mu_doc_done(&back);
}

/* ---- Fixtures: NAME.bin, and NAME.json with what is in it ---- */

#define FIXTURES "tests/fixtures/rdzv-pickles/"

static const char *const good[] = {
    "v1-01-empty",
    "v1-02-one-participant",
    "v1-03-two-with-deadline",
    "v1-04-complete",
    "v1-05-complete-waitlist",
    "v1-06-closed-waitlist3",
    "v1-07-unshared-node-objects",
    "v1-08-wide-values",
    "v1-09-large-1001",
    "v1-10-protocol3",
    "v1-11-protocol5",
    "v1-12-second-generation",
    "v1-13-live-0",
    "v1-13-live-1",
    "v1-13-live-2",
    "v1-13-live-3",
    "v1-13-live-4",
    "v1-13-live-5",
    "v1-14-minimal-no-memo",
    "v2-01-empty",
    "v2-02-naive-redundancy",
    "v2-03-aware-deadline",
    "v2-04-aware-redundancy-closed",
    "v2-05-aware-second-generation",
    "v3-01-real-2.11-empty",
    "v3-02-real-2.11-one-joining",
    "v3-03-real-2.11-min-reached-deadline",
    "v3-04-real-2.11-complete-with-ranks",
    "v3-05-real-2.11-wait-list",
    "v3-06-real-2.11-redundancy",
    "v3-07-real-2.11-closed",
    "v3-08-real-2.11-big-300",
    "v4-01-real-2.5-empty",
    "v4-02-real-2.5-one-joining",
    "v4-03-real-2.5-min-reached-deadline",
    "v4-04-real-2.5-complete-with-ranks",
    "v4-05-real-2.5-wait-list",
    "v4-06-real-2.5-redundancy",
    "v4-07-real-2.5-spare-steps-up",
    "v4-08-real-2.5-closed",
};

static struct mu_buf load(const char *name, const char *suffix)
{
    struct mu_buf bytes = { 0 };
    char path[256], block[4096];
    FILE *file;
    size_t len;

    (void)snprintf(path, sizeof path, FIXTURES "%s%s", name, suffix);
    file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("cannot open %s", path);
    while ((len = fread(block, 1, sizeof block, file)) > 0)
        assert_int_equal(mu_buf_append(&bytes, block, len, SIZE_MAX), 0);
    (void)fclose(file);
    return bytes;
}

/* Just the JSON of the fixtures: no escapes, no fractions. */
static void skip_blanks(const char **at)
{
    *at += strspn(*at, " \n");
}

static bool take(const char **at, char c)
{
    skip_blanks(at);
    if (**at != c)
        return false;
    ++*at;
    return true;
}

static struct mu_slice json_text(const char **at)
{
    struct mu_slice text;

    assert_true(take(at, '"'));
    text = mu_slice(*at, strcspn(*at, "\"\\"));
    *at += text.len;
    assert_true(take(at, '"'));
    return text;
}

static int64_t json_number(const char **at)
{
    char *end;
    long long number;

    skip_blanks(at);
    number = strtoll(*at, &end, 10);
    assert_ptr_not_equal(end, *at);
    *at = end;
    return number;
}

/* Behind the value's name. */
static const char *json_find(const char *text, const char *name)
{
    char key[64];
    const char *found;

    (void)snprintf(key, sizeof key, "\"%s\":", name);
    found = strstr(text, key);
    return found == NULL ? NULL : found + strlen(key);
}

/* Of the ISO text: the microseconds beside it went through a floating-point number. */
static int64_t json_time(const char **at)
{
    struct tm tm = { 0 };
    const char *us;

    *at = json_find(*at, "iso");
    us = strptime(json_text(at).data, "%Y-%m-%dT%H:%M:%S", &tm);
    assert_true(us != NULL && *us == '.');
    *at = strchr(*at, '}') + 1;
    return timegm(&tm) * INT64_C(1000000) + strtol(us + 1, NULL, 10);
}

static bool json_bool(const char **at)
{
    bool value;

    skip_blanks(at);
    value = strncmp(*at, "true", 4) == 0;
    *at += value ? 4 : 5;
    return value;
}

static bool json_null(const char **at)
{
    skip_blanks(at);
    if (strncmp(*at, "null", 4) != 0)
        return false;
    *at += 4;
    return true;
}

static struct mu_node json_node(const char **at)
{
    struct mu_node it;

    assert_true(take(at, '['));
    it.name = json_text(at);
    assert_true(take(at, ','));
    it.pid = json_number(at);
    assert_true(take(at, ','));
    it.local_id = json_number(at);
    assert_true(take(at, ']'));
    return it;
}

static void json_members(const char *json, const char *name, unsigned in, struct mu_doc *doc)
{
    const char *at = json_find(json, name);
    struct mu_doc_member *member;

    if (at == NULL)
        return;
    assert_true(take(&at, '['));
    while (!take(&at, ']')) {
        bool is_map = in == MU_DOC_PARTICIPANT || in == MU_DOC_HEARTBEAT;
        struct mu_node it;

        if (is_map)
            at = json_find(at, "node");
        it = json_node(&at);
        member = mu_doc_enter(doc, &it, in);
        if (in == MU_DOC_PARTICIPANT) {
            at = json_find(at, "rank");
            member->rank = json_number(&at);
        } else if (in == MU_DOC_HEARTBEAT) {
            member->heartbeat_us = json_time(&at);
        }
        if (is_map)
            assert_true(take(&at, '}'));
        (void)take(&at, ',');
    }
}

static void json_document(const char *json, struct mu_doc *doc)
{
    const char *at = json_find(json, "node_name_attribute");
    bool empty;

    doc->dialect.addr = mu_slice_equal(json_text(&at), mu_slice_str("addr"));
    at = json_find(json, "has_redundancy_list");
    doc->dialect.spares = json_bool(&at);
    at = json_find(json, "round");
    doc->round = json_number(&at);
    at = json_find(json, "complete");
    doc->complete = json_bool(&at);
    at = json_find(json, "closed");
    doc->closed = json_bool(&at);
    at = json_find(json, "deadline");
    if (!json_null(&at)) {
        doc->has_deadline = true;
        doc->deadline_us = json_time(&at);
    }
    json_members(json, "participants", MU_DOC_PARTICIPANT, doc);
    json_members(json, "wait_list", MU_DOC_WAITING, doc);
    json_members(json, "redundancy_list", MU_DOC_SPARE, doc);
    json_members(json, "last_heartbeats", MU_DOC_HEARTBEAT, doc);
    at = json_find(json, "datetimes_aware");
    empty = doc->count == 0 && !doc->has_deadline;
    doc->dialect.zoned = empty ? doc->dialect.spares : json_bool(&at);
}

static void every_stored_document_reads_as_what_it_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(good); i++) {
        struct mu_buf bytes = load(good[i], ".bin"), json = load(good[i], ".json");
        struct muster_error err = { 0 };
        struct mu_doc doc, expected;

        doc_init(&doc);
        doc_init(&expected);
        assert_int_equal(mu_buf_append(&json, "", 1, SIZE_MAX), 0);
        json_document(json.data, &expected);
        if (mu_pickle_decode(mu_buf_slice(&bytes), &doc, &err) < 0)
            fail_msg("%s: %s", good[i], err.text);
        assert_same(&doc, &expected, MU_DOC_PARTICIPANT); /* a set has no order */
        assert_comes_back(&doc);
        mu_doc_done(&doc);
        mu_doc_done(&expected);
        mu_buf_done(&bytes);
        mu_buf_done(&json);
    }
}

/* Where nodes are shared, and the heartbeats come in the order of the participants. */
static void what_we_write_is_what_cpython_wrote(void **state)
{
    static const char *const names[] = {
        "v1-01-empty",
        "v1-02-one-participant",
        "v1-03-two-with-deadline",
        "v1-05-complete-waitlist",
        "v1-08-wide-values",
        "v1-09-large-1001",
        "v1-12-second-generation",
        "v1-13-live-0",
        "v1-13-live-1",
        "v1-13-live-2",
        "v1-13-live-3",
        "v1-13-live-4",
        "v1-13-live-5",
        "v2-01-empty",
        "v2-02-naive-redundancy",
        "v2-03-aware-deadline",
        "v2-04-aware-redundancy-closed",
        "v2-05-aware-second-generation",
        "v3-01-real-2.11-empty",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct mu_buf bytes = load(names[i], ".bin"), written = { 0 };
        struct mu_doc doc;

        doc_init(&doc);
        assert_int_equal(mu_pickle_decode(mu_buf_slice(&bytes), &doc, NULL), 0);
        assert_int_equal(mu_pickle_encode(&doc, &written), 0);
        assert_int_equal(written.len, bytes.len);
        assert_memory_equal(written.data, bytes.data, bytes.len);
        mu_doc_done(&doc);
        mu_buf_done(&bytes);
        mu_buf_done(&written);
    }
}

/* Decodes into a document with somebody in it, who must still be there if that fails. */
static int decode(struct mu_slice bytes, struct mu_doc *doc, struct muster_error *reterr)
{
    struct mu_node before = node("before", 1, 2);
    int rc;

    (void)mu_doc_enter(doc, &before, MU_DOC_WAITING);
    rc = mu_pickle_decode(bytes, doc, reterr);
    if (rc < 0) {
        assert_int_equal(doc->count, 1);
        assert_int_equal(doc->waiting, 1);
        assert_true(mu_doc_has(doc, &before, MU_DOC_WAITING));
    }
    return rc;
}

static void assert_refused(struct mu_slice bytes, const char *complaint)
{
    struct muster_error err = { 0 };
    struct mu_doc doc;

    doc_init(&doc);
    if (decode(bytes, &doc, &err) != MUSTER_ERDZV_STATE)
        fail_msg("not refused, expected: %s", complaint);
    assert_int_equal(err.code, MUSTER_ERDZV_STATE);
    if (strncmp(err.text, "byte ", 5) != 0 || strstr(err.text, complaint) == NULL || strchr(err.text, '\n') != NULL)
        fail_msg("'%s' does not say '%s'", err.text, complaint);
    mu_doc_done(&doc);
}

static void every_bad_document_is_refused_for_what_it_is(void **state)
{
    static const char *const bad[][2] = {
        { "bad-01-foreign-global", "byte 146: 'getpid' of 'posix' has no place" },
        { "bad-02-truncated", "byte 2: a frame that is longer" },
        { "bad-03-empty", "byte 0: empty" },
        { "bad-04-unknown-opcode", "byte 11: opcode 0xff" },
        { "bad-05-not-a-state", "byte 24: the end of something that is not a state" },
        { "bad-06-missing-field", "byte 182: a state without 'closed'" },
        { "bad-07-bad-memo-ref", "byte 313: memo slot 240 was never written" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct mu_buf bytes = load(bad[i][0], ".bin");

        assert_refused(mu_buf_slice(&bytes), bad[i][1]);
        mu_buf_done(&bytes);
    }
}

/* What PyTorch may write one day is told from what nobody's PyTorch has written. */
static void a_whole_state_that_is_refused_is_another_layout(void **state)
{
    static const char *const others[] = { "bad-01-foreign-global", "bad-04-unknown-opcode", "bad-06-missing-field",
                                          "bad-07-bad-memo-ref" };
    static const char *const none[] = { "bad-02-truncated", "bad-03-empty", "bad-05-not-a-state" };

    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) {
        struct mu_buf bytes = load(others[i], ".bin");

        assert_true(mu_pickle_is_other_layout(mu_buf_slice(&bytes)));
        for (size_t len = 0; len < bytes.len; len++) /* cut off it is none, unless a byte looks like the end */
            assert_true(!mu_pickle_is_other_layout(mu_slice(bytes.data, len)) || bytes.data[len - 1] == '.');
        mu_buf_done(&bytes);
    }
    for (size_t i = 0; i < COUNT(none); i++) {
        struct mu_buf bytes = load(none[i], ".bin");

        assert_false(mu_pickle_is_other_layout(mu_buf_slice(&bytes)));
        mu_buf_done(&bytes);
    }
}

/* An exact copy, so that a byte too far is seen. */
static int decode_exactly(const char *data, size_t len, struct mu_doc *doc)
{
    char *exact = malloc(len == 0 ? 1 : len);
    int rc;

    if (len > 0)
        memcpy(exact, data, len);
    rc = mu_pickle_decode(mu_slice(exact, len), doc, NULL);
    free(exact);
    return rc;
}

static void a_document_cut_off_anywhere_is_refused(void **state)
{
    static const char *const names[] = { "v1-10-protocol3", "v1-14-minimal-no-memo", "v2-04-aware-redundancy-closed" };

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct mu_buf bytes = load(names[i], ".bin");
        struct mu_doc doc;

        doc_init(&doc);
        for (size_t len = 0; len < bytes.len; len++) {
            assert_int_equal(decode_exactly(bytes.data, len, &doc), MUSTER_ERDZV_STATE);
            if (bytes.data[2] == '\x95' && len >= 11) { /* the frame promises what is there */
                mu_put_u64(bytes.data + 3, len - 11);
                assert_int_equal(decode_exactly(bytes.data, len, &doc), MUSTER_ERDZV_STATE);
                mu_put_u64(bytes.data + 3, bytes.len - 11);
            }
        }
        assert_int_equal(decode_exactly(bytes.data, bytes.len, &doc), 0);
        assert_int_equal(mu_buf_append(&bytes, ".", 1, SIZE_MAX), 0);
        assert_int_equal(decode_exactly(bytes.data, bytes.len, &doc), MUSTER_ERDZV_STATE);
        mu_doc_done(&doc);
        mu_buf_done(&bytes);
    }
}

static void any_one_byte_may_be_another(void **state)
{
    static const char *const names[] = { "v1-10-protocol3", "v2-03-aware-deadline" };

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct mu_buf bytes = load(names[i], ".bin");

        for (size_t at = 0; at < bytes.len; at++) {
            char was = bytes.data[at];

            for (unsigned value = 0; value < 256; value++) {
                struct mu_doc doc;

                doc_init(&doc);
                bytes.data[at] = (char)value;
                if (mu_pickle_decode(mu_buf_slice(&bytes), &doc, NULL) == 0)
                    assert_comes_back(&doc);
                mu_doc_done(&doc);
            }
            bytes.data[at] = was;
        }
        mu_buf_done(&bytes);
    }
}

/* ---- Documents by hand: words are opcodes, 'text' and numbers are pushed, #00ff are bytes as they are ---- */

static const struct {
    const char *name;
    unsigned char byte;
} words[] = {
    { "FRAME", 0x95 },   { "STOP", 0x2e },        { "MARK", 0x28 },         { "NONE", 0x4e },
    { "TRUE", 0x88 },    { "FALSE", 0x89 },       { "BININT1", 0x4b },      { "BININT2", 0x4d },
    { "BININT", 0x4a },  { "LONG1", 0x8a },       { "TEXT1", 0x8c },        { "TEXT4", 0x58 },
    { "BYTES1", 0x43 },  { "BYTES4", 0x42 },      { "DICT", 0x7d },         { "LIST", 0x5d },
    { "SET", 0x8f },     { "EMPTY_TUPLE", 0x29 }, { "TUPLE1", 0x85 },       { "TUPLE2", 0x86 },
    { "TUPLE3", 0x87 },  { "SETITEM", 0x73 },     { "SETITEMS", 0x75 },     { "APPEND", 0x61 },
    { "APPENDS", 0x65 }, { "ADDITEMS", 0x90 },    { "STACK_GLOBAL", 0x93 }, { "GLOBAL", 0x63 },
    { "NEWOBJ", 0x81 },  { "REDUCE", 0x52 },      { "BUILD", 0x62 },        { "MEMOIZE", 0x94 },
    { "BINPUT", 0x71 },  { "LONG_BINPUT", 0x72 }, { "BINGET", 0x68 },       { "LONG_BINGET", 0x6a },
    { "PROTO", 0x80 },
};

static void put(struct mu_buf *out, const void *data, size_t len)
{
    assert_int_equal(mu_buf_append(out, data, len, SIZE_MAX), 0);
}

static void put_byte(struct mu_buf *out, unsigned byte)
{
    put(out, &(unsigned char){ (unsigned char)byte }, 1);
}

static void put_word(struct mu_buf *out, const char *word, size_t len)
{
    for (size_t i = 0; i < COUNT(words); i++)
        if (strlen(words[i].name) == len && memcmp(words[i].name, word, len) == 0) {
            put_byte(out, words[i].byte);
            return;
        }
    fail_msg("no such opcode: %.*s", (int)len, word);
}

static void put_number(struct mu_buf *out, long long number)
{
    uint32_t half = htole32((uint32_t)number);

    put_byte(out, 0x4a);
    put(out, &half, sizeof half);
}

static void put_hex(struct mu_buf *out, const char *hex, size_t len)
{
    for (size_t i = 0; i + 1 < len; i += 2)
        put_byte(out, (unsigned)strtoul((char[]){ hex[i], hex[i + 1], '\0' }, NULL, 16));
}

static void assemble_more(struct mu_buf *out, const char *text)
{
    while (*(text += strspn(text, " ")) != '\0') {
        size_t len = strcspn(text, " ");

        if (*text == '\'') {
            len = strcspn(text + 1, "'");
            put_byte(out, 0x8c);
            put_byte(out, (unsigned)len);
            put(out, text + 1, len);
            len += 2;
        } else if (*text == '#') {
            put_hex(out, text + 1, len - 1);
        } else if (*text == '-' || (*text >= '0' && *text <= '9')) {
            put_number(out, strtoll(text, NULL, 10));
        } else {
            put_word(out, text, len);
        }
        text += len;
    }
}

static struct mu_buf assemble(const char *text)
{
    struct mu_buf out = { 0 };

    put(&out, "\x80\x04", 2);
    assemble_more(&out, text);
    return out;
}

#define MODULE "'torch.distributed.elastic.rendezvous.dynamic_rendezvous' "
#define NEW_STATE MODULE "'_RendezvousState' STACK_GLOBAL EMPTY_TUPLE NEWOBJ "
#define NEW_NODE MODULE "'_NodeDesc' STACK_GLOBAL EMPTY_TUPLE NEWOBJ "
#define NODE(name, pid, local_id)                                                                                      \
    NEW_NODE "DICT MARK 'addr' '" name "' 'pid' " pid " 'local_id' " local_id " SETITEMS BUILD "
#define A NODE("a", "1", "0")
#define B NODE("b", "2", "0")
#define BYTES10 "BYTES1 #0a07e803050c22380c0a14 " /* 2024-03-05 12:34:56.789012 */
#define BYTES10_US INT64_C(1709642096789012)
#define DATETIME "'datetime' 'datetime' STACK_GLOBAL "
#define NAIVE DATETIME BYTES10 "TUPLE1 REDUCE "
#define OFFSET "'datetime' 'timedelta' STACK_GLOBAL 0 0 0 TUPLE3 REDUCE "
#define ZONE "'datetime' 'timezone' STACK_GLOBAL " OFFSET "TUPLE1 REDUCE "
#define ZONED DATETIME BYTES10 ZONE "TUPLE2 REDUCE "
#define FIELDS(deadline, participants, waiting, spares, heartbeats)                                                    \
    "'round' 7 'complete' FALSE 'deadline' " deadline " 'closed' FALSE 'participants' " participants                   \
    " 'wait_list' " waiting " " spares " 'last_heartbeats' " heartbeats " "
#define STATE(...) NEW_STATE "DICT MARK " FIELDS(__VA_ARGS__) "SETITEMS BUILD "
#define DOC(...) STATE(__VA_ARGS__) "STOP"
#define NO_SPARES ""
#define SPARES "'redundancy_list' SET "

static void assert_text_refused(const char *text, const char *complaint)
{
    struct mu_buf bytes = assemble(text);

    assert_refused(mu_buf_slice(&bytes), complaint);
    mu_buf_done(&bytes);
}

static struct mu_doc accept_protocol(const char *text, unsigned protocol)
{
    struct mu_buf bytes = assemble(text);
    struct muster_error err = { 0 };
    struct mu_doc doc;

    bytes.data[1] = (char)protocol;
    doc_init(&doc);
    if (decode(mu_buf_slice(&bytes), &doc, &err) < 0)
        fail_msg("%s", err.text);
    mu_buf_done(&bytes);
    assert_comes_back(&doc);
    return doc;
}

static struct mu_doc accept_as(const char *text, struct mu_doc_dialect expected)
{
    struct mu_buf bytes = assemble(text);
    struct muster_error err = { 0 };
    struct mu_doc doc;

    mu_doc_init(&doc, seed, expected);
    if (decode(mu_buf_slice(&bytes), &doc, &err) < 0)
        fail_msg("%s", err.text);
    mu_buf_done(&bytes);
    return doc;
}

static struct mu_doc accept(const char *text)
{
    return accept_protocol(text, 4);
}

static void protocols_three_to_five_are_read(void **state)
{
    struct mu_buf bytes = assemble(DOC("NONE", "DICT", "SET", NO_SPARES, "DICT"));

    (void)state;
    for (unsigned protocol = 0; protocol < 256; protocol++) {
        struct mu_doc doc;
        char complaint[32];

        bytes.data[1] = (char)protocol;
        (void)snprintf(complaint, sizeof complaint, "byte 0: pickle protocol %u", protocol);
        if (protocol < 3 || protocol > 5) {
            assert_refused(mu_buf_slice(&bytes), complaint);
            continue;
        }
        doc_init(&doc);
        assert_int_equal(decode(mu_buf_slice(&bytes), &doc, NULL), 0);
        assert_int_equal(doc.round, 7);
        mu_doc_done(&doc);
    }
    assert_refused(mu_slice(bytes.data + 2, bytes.len - 2), "byte 0: not a pickle");
    assert_refused(mu_slice(bytes.data, 1), "byte 0: cut off");
    mu_buf_done(&bytes);
}

/* At the start, and where a value is wanted. */
static void every_opcode_outside_of_the_subset_is_refused(void **state)
{
    (void)state;
    for (unsigned opcode = 0; opcode < 256; opcode++) {
        struct mu_buf bytes = assemble("'x' 'y' DICT MARK 'a' ");
        size_t at = bytes.len;
        char complaint[64];
        bool known = false;

        for (size_t i = 0; i < COUNT(words); i++)
            known = known || (words[i].byte == opcode && strcmp(words[i].name, "PROTO") != 0);
        put_byte(&bytes, opcode);
        put(&bytes, "\0\0\0\0\0\0\0\0\0\0\0\0.", 13);
        (void)snprintf(complaint, sizeof complaint, "byte %zu: opcode 0x%02x has no place", at, opcode);
        assert_refused(mu_buf_slice(&bytes), known ? "byte " : complaint);
        mu_buf_done(&bytes);
    }
}

static void what_does_not_belong_is_refused(void **state)
{
    static const char *const cases[][2] = {
        /* Not a state. */
        { "STOP", "not a state" },
        { "NONE STOP", "not a state" },
        { A "STOP", "not a state" },
        { NAIVE "STOP", "not a state" },
        { NEW_STATE "STOP", "a state without its attributes" },
        { "NONE " DOC("NONE", "DICT", "SET", "", "DICT"), "not a state" },
        { "MARK " DOC("NONE", "DICT", "SET", "", "DICT"), "not a state" },
        { DOC("NONE", "DICT", "SET", "", "DICT") " NONE", "1 bytes behind the end" },
        { DOC("NONE", "DICT", "SET", "", "DICT") " STOP", "1 bytes behind the end" },
        { STATE("NONE", "DICT", "SET", "", "DICT"), "cut off" },
        { STATE("NONE", "DICT", "SET", "", "DICT") "MEMOIZE DICT BUILD STOP", "a state with attributes twice" },
        { NEW_STATE NEW_STATE "STOP", "a second state" },
        { NEW_STATE "DICT BUILD STOP", "a state without its attributes" },
        { NEW_STATE "DICT MARK 'round' 1 SETITEMS BUILD STOP", "a state without 'complete'" },
        { NEW_STATE "DICT MARK 'pid' 1 SETITEMS BUILD STOP", "a state without its attributes" },
        { NEW_STATE "NONE BUILD STOP", "None as attributes" },
        { "NONE DICT BUILD STOP", "attributes for None" },
        { "DICT 'round' 1 SETITEM DICT 'round' 2 SETITEM STOP", "a second dict of the state's attributes" },
        /* Fields. */
        { DOC("NONE", "DICT", "SET", "'more' 1", "DICT"), "unknown attribute 'more'" },
        { DOC("NONE", "DICT", "SET", "'' 1", "DICT"), "unknown attribute ''" },
        { DOC("NONE", "DICT", "SET", "'pid' 1", "DICT"), "different things in one container" },
        { DOC("NONE", "DICT", "SET", "'round' -1", "DICT"), "'round' is an integer, or out of range" },
        { DOC("NONE", "DICT", "SET", "'round' TRUE", "DICT"), "'round' is a boolean" },
        { DOC("NONE", "DICT", "SET", "'round' 'x'", "DICT"), "'round' is a text" },
        { DOC("NONE", "DICT", "SET", "'complete' 1", "DICT"), "'complete' is an integer" },
        { DOC("NONE", "DICT", "SET", "'closed' NONE", "DICT"), "'closed' is None" },
        { DOC("1", "DICT", "SET", "", "DICT"), "'deadline' is an integer" },
        { DOC("NONE", "SET", "SET", "", "DICT"), "'participants' is a set" },
        { DOC("NONE", "DICT", "DICT", "", "DICT"), "'wait_list' is a dict" },
        { DOC("NONE", "DICT", "LIST", "", "DICT"), "'wait_list' is a list" },
        { DOC("NONE", "DICT", "SET", "'redundancy_list' NONE", "DICT"), "'redundancy_list' is None" },
        { DOC("NONE", "DICT", "SET", "", "SET"), "'last_heartbeats' is a set" },
        { DOC("NONE", "DICT " A NAIVE "SETITEM", "SET", "", "DICT"), "'participants' maps to the wrong" },
        { DOC("NONE", "DICT", "SET", "", "DICT " A "0 SETITEM"), "'last_heartbeats' maps to the wrong" },
        { DOC("NONE", "DICT 'pid' 1 SETITEM", "SET", "", "DICT"), "'participants' maps to the wrong" },
        { DOC("NONE", "DICT " A "0 SETITEM " B NAIVE "SETITEM", "SET", "", "DICT"), "different things" },
        /* Members. */
        { DOC("NONE", "DICT " A "-1 SETITEM", "SET", "", "DICT"), "neither a rank nor a time" },
        { DOC("NONE", "DICT " A "TRUE SETITEM", "SET", "", "DICT"), "a boolean is neither a rank nor a time" },
        { DOC("NONE", "DICT " A "NONE SETITEM", "SET", "", "DICT"), "None is neither" },
        { DOC("NONE", "DICT 1 1 SETITEM", "SET", "", "DICT"), "an integer where a node should be" },
        { DOC("NONE", "DICT NONE " NAIVE "SETITEM", "SET", "", "DICT"), "None where a node should be" },
        { DOC("NONE", "DICT", "SET MARK 'x' ADDITEMS", "", "DICT"), "a text where a node should be" },
        { DOC("NONE", "DICT", "SET MARK SET ADDITEMS", "", "DICT"), "a set where a node should be" },
        { DOC("NONE", "DICT " NEW_NODE "0 SETITEM", "SET", "", "DICT"), "a node without attributes" },
        { DOC("NONE", "DICT", "SET MARK " NEW_NODE "ADDITEMS", "", "DICT"), "a node without attributes" },
        { NEW_NODE "DICT BUILD", "a node without all of its attributes" },
        { NEW_NODE "DICT MARK 'addr' 'a' 'pid' 1 SETITEMS BUILD", "a node without all" },
        { NEW_NODE "DICT MARK 'addr' 'a' 'local_id' 1 SETITEMS BUILD", "a node without all" },
        { NEW_NODE "DICT MARK 'pid' 1 'local_id' 1 SETITEMS BUILD", "a node without all" },
        { NEW_NODE "DICT 'round' 1 SETITEM BUILD", "a node without all" },
        { A "DICT MARK 'addr' 'a' 'pid' 1 'local_id' 0 SETITEMS BUILD", "a node with attributes twice" },
        { "DICT 'addr' '' SETITEM", "a node's name of 0 bytes" },
        { "DICT 'addr' 1 SETITEM", "an integer as a node's name" },
        { "DICT 'pid' -1 SETITEM", "a node's 'pid' is not a number" },
        { "DICT 'pid' TRUE SETITEM", "a node's 'pid' is not a number" },
        { "DICT 'local_id' 'x' SETITEM", "a node's 'local_id' is not a number" },
        { "DICT MARK 'fqdn' 'a' 'addr' 'a' SETITEMS", "nodes with 'fqdn' and nodes with 'addr'" },
        { A "DICT 'fqdn' 'a' SETITEM", "nodes with 'fqdn' and nodes with 'addr'" },
        /* Times. */
        { DOC(ZONED, "DICT", "SET", "", "DICT " A NAIVE "SETITEM"), "times with a zone and times without" },
        { DATETIME "BYTES1 #0907e803050c22380c0a TUPLE1 REDUCE", "not a date and time" },
        { DATETIME "BYTES1 #00 TUPLE1 REDUCE", "not a date and time" },
        { DATETIME "BYTES1 #0a000003050c22380c0a14 TUPLE1 REDUCE", "not a date and time" }, /* year 0 */
        { DATETIME "BYTES1 #0a271003050c22380c0a14 TUPLE1 REDUCE", "not a date and time" }, /* year 10000 */
        { DATETIME "BYTES1 #0a07e800050c22380c0a14 TUPLE1 REDUCE", "not a date and time" },
        { DATETIME "BYTES1 #0a07e80d050c22380c0a14 TUPLE1 REDUCE", "not a date and time" }, /* month 13 */
        { DATETIME "BYTES1 #0a07e803000c22380c0a14 TUPLE1 REDUCE", "not a date and time" },
        { DATETIME "BYTES1 #0a07e803200c22380c0a14 TUPLE1 REDUCE", "not a date and time" }, /* March 32 */
        { DATETIME "BYTES1 #0a07e8021e0c22380c0a14 TUPLE1 REDUCE", "not a date and time" }, /* 2024-02-30 */
        { DATETIME "BYTES1 #0a07e7021d0c22380c0a14 TUPLE1 REDUCE", "not a date and time" }, /* 2023-02-29 */
        { DATETIME "BYTES1 #0a076c021d0c22380c0a14 TUPLE1 REDUCE", "not a date and time" }, /* 1900-02-29 */
        { DATETIME "BYTES1 #0a07e803051822380c0a14 TUPLE1 REDUCE", "not a date and time" }, /* hour 24 */
        { DATETIME "BYTES1 #0a07e803050c3c380c0a14 TUPLE1 REDUCE", "not a date and time" }, /* minute 60 */
        { DATETIME "BYTES1 #0a07e803050c223c0c0a14 TUPLE1 REDUCE", "not a date and time" }, /* second 60 */
        { DATETIME "BYTES1 #0a07e803050c22380f4240 TUPLE1 REDUCE", "not a date and time" }, /* 1000000 us */
        /* Calls. */
        { "'os' 'system' STACK_GLOBAL 'true' TUPLE1 REDUCE", "'system' of 'os' has no place" },
        { "'builtins' 'set' STACK_GLOBAL", "'set' of 'builtins' has no place" }, /* protocol 4 has opcodes */
        { "'builtins' 'eval' STACK_GLOBAL", "'eval' of 'builtins' has no place" },
        { "'datetime' 'date' STACK_GLOBAL", "'date' of 'datetime' has no place" },
        { "'datetime' '_NodeDesc' STACK_GLOBAL", "has no place" },
        { "'a' 1 STACK_GLOBAL", "a class named by a text and an integer" },
        { "GLOBAL #6f730a73797374656d0a", "'system' of 'os' has no place" },
        { "'\n\x1b' '\xc3\xa9' STACK_GLOBAL", "'?\?' of '?\?' has no place" },
        { "NONE EMPTY_TUPLE NEWOBJ", "an object made of None" },
        { MODULE "'_NodeDesc' STACK_GLOBAL NONE NEWOBJ", "an object made of a class and None" },
        { DATETIME "EMPTY_TUPLE NEWOBJ", "an object of class 'datetime'" },
        { DATETIME "EMPTY_TUPLE REDUCE", "'datetime' called with the wrong arguments" },
        { MODULE "'_NodeDesc' STACK_GLOBAL EMPTY_TUPLE REDUCE", "'_NodeDesc' called with the wrong" },
        { MODULE "'_RendezvousState' STACK_GLOBAL " BYTES10 "TUPLE1 REDUCE", "called with the wrong arguments" },
        { "'datetime' 'timezone' STACK_GLOBAL " BYTES10 "TUPLE1 REDUCE", "'timezone' called with the wrong" },
        { "'datetime' 'timedelta' STACK_GLOBAL 0 0 1 TUPLE3", "a tuple that begins with an integer" },
        { "'datetime' 'timedelta' STACK_GLOBAL 3600 0 0 TUPLE3", "a tuple that begins with an integer" },
        { "0 0 FALSE TUPLE3", "a tuple that begins with an integer" },
        { DATETIME OFFSET "TUPLE1 REDUCE", "'datetime' called with the wrong arguments" },
        { DATETIME BYTES10 OFFSET "TUPLE2", "a tuple that begins with bytes" },
        { "0 TUPLE1", "a tuple that begins with an integer" },
        { BYTES10 "TUPLE1 TUPLE1", "a tuple that begins with a tuple" },
        { "EMPTY_TUPLE TUPLE1", "a tuple that begins with an empty tuple" },
        { "NONE NONE REDUCE", "a call of None" },
        /* The stack. */
        { "NONE SETITEM", "too few values" },
        { "MARK NONE NONE SETITEM", "too few values" },
        { "DICT MARK NONE NONE SETITEM", "too few values" }, /* not across a mark */
        { "SETITEM", "too few values" },
        { "SETITEMS", "there is no mark" },
        { "MARK SETITEMS", "too few values" },
        { "DICT MARK MARK SETITEMS", "too few values" },
        { "DICT MARK 'pid' SETITEMS", "a key without a value" },
        { "LIST MARK SETITEMS", "a list where a dict should be" },
        { "DICT MARK ADDITEMS", "a dict where a set should be" },
        { "SET MARK APPENDS", "a set where a list should be" },
        { "SET NONE APPEND", "a set where a list should be" },
        { "APPEND", "too few values" },
        { "TUPLE1", "too few values" },
        { "NONE MARK TUPLE1", "too few values" },
        { "NONE TUPLE2", "too few values" },
        { "NONE NONE TUPLE3", "too few values" },
        { "NONE REDUCE", "too few values" },
        { "NONE NEWOBJ", "too few values" },
        { "NONE BUILD", "too few values" },
        { "'x' STACK_GLOBAL", "too few values" },
        { "MEMOIZE", "too few values" },
        { "NONE MARK MEMOIZE", "too few values" },
        { "BINPUT #00", "too few values" },
        /* The memo. */
        { "BINGET #00", "memo slot 0 was never written" },
        { "NONE MEMOIZE BINGET #01", "memo slot 1 was never written" },
        { "NONE BINPUT #02 BINGET #01", "memo slot 1 was never written" },
        { "NONE LONG_BINGET #ffffffff", "memo slot 4294967295 was never written" },
        { "NONE LONG_BINPUT #ffffffff", "memo slot 4294967295 is past the limit" },
        { "NONE BINPUT #ff", "memo slot 255 is past the limit" }, /* more than the document has bytes */
        /* Things that contain themselves, or change too late. */
        { "DICT MEMOIZE 'participants' BINGET #00 SETITEM BINGET #00 BUILD", "attributes for a dict" },
        { "LIST MEMOIZE BINGET #00 APPEND", "a list where a node should be" },
        { "SET MEMOIZE MARK BINGET #00 ADDITEMS", "a set where a node should be" },
        { "DICT MEMOIZE BINGET #00 1 SETITEM", "a dict where a node should be" },
        { "LIST MEMOIZE TUPLE1 TUPLE1", "a tuple that begins with a tuple" },
        { NEW_STATE "DICT MEMOIZE MARK " FIELDS("NONE", "BINGET #00", "SET", "", "DICT") "SETITEMS BUILD STOP",
          "'participants' maps to the wrong things" },
        { NEW_STATE
          "DICT MEMOIZE MARK " FIELDS("NONE", "DICT", "SET", "", "DICT") "SETITEMS BUILD BINGET #00 'round' 1 "
                                                                         "SETITEM STOP",
          "a change after the last use" },
        { NEW_STATE "MEMOIZE DICT MARK 'participants' BINGET #00 SETITEMS", "'participants' is a state" },
        /* Arguments. */
        { "TEXT1", "cut off" },
        { "TEXT1 #0561", "cut off" },
        { "TEXT4 #0500", "cut off" },
        { "TEXT4 #ffffffff61", "cut off" },
        { "BYTES4 #0100008061", "cut off" },
        { "TEXT1 #01ff", "not UTF-8" },
        { "TEXT1 #02c080", "not UTF-8" },
        { "TEXT1 #03e09f80", "not UTF-8" },
        { "TEXT1 #03eda080", "not UTF-8" }, /* a surrogate */
        { "TEXT1 #04f08f8080", "not UTF-8" },
        { "TEXT1 #04f4908080", "not UTF-8" },
        { "TEXT1 #02c328", "not UTF-8" },
        { "TEXT1 #01c3a9", "not UTF-8" }, /* half a character */
        { "TEXT1 #09616161616161616180", "not UTF-8" },
        { "TEXT1 #0a8061616161616161616161", "not UTF-8" },
        { "LONG1", "cut off" },
        { "LONG1 #0300", "cut off" },
        { "LONG1 #09000000000000000000", "an integer of 9 bytes" },
        { "BININT1", "cut off" },
        { "BININT2 #00", "cut off" },
        { "BININT #000000", "cut off" },
        { "NONE BINPUT", "cut off" },
        { "NONE LONG_BINPUT #000000", "cut off" },
        { "BINGET", "cut off" },
        { "LONG_BINGET #000000", "cut off" },
        { "FRAME #01000000000000", "cut off" },
        { "FRAME #0100000000000000", "a frame that is longer" },
        { "FRAME #ffffffffffffffff", "a frame that is longer" },
        { "GLOBAL #6f73", "cut off" },
        { "GLOBAL #6f730a", "cut off" },
        { "", "cut off" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_text_refused(cases[i][0], cases[i][1]);
}

static void a_set_by_call_is_of_protocol_three(void **state)
{
    static const char text[] =
        DOC("NONE", "DICT", "GLOBAL #6275696c74696e730a7365740a LIST MARK " A B "APPENDS TUPLE1 REDUCE", "", "DICT");
    struct mu_doc doc = accept_protocol(text, 3);
    struct mu_buf bytes = assemble(text);

    (void)state;
    assert_int_equal(doc.waiting, 2);
    mu_doc_done(&doc);
    assert_refused(mu_buf_slice(&bytes), "'set' of 'builtins' has no place");
    mu_buf_done(&bytes);

    bytes = assemble("GLOBAL #6275696c74696e730a7365740a LIST MEMOIZE TUPLE1 REDUCE BINGET #00 " A "APPEND");
    bytes.data[1] = 3;
    assert_refused(mu_buf_slice(&bytes), "a change after the last use");
    mu_buf_done(&bytes);
}

static void a_name_may_have_4096_bytes_and_no_more(void **state)
{
    (void)state;
    for (uint32_t len = MU_NODE_NAME_MAX; len <= MU_NODE_NAME_MAX + 1; len++) {
        struct mu_buf bytes = assemble("");
        char name[MU_NODE_NAME_MAX + 1];
        struct mu_doc doc;
        uint32_t len_le = htole32(len);

        doc_init(&doc);
        memset(name, 'n', sizeof name);
        assemble_more(&bytes, NEW_STATE "DICT MARK 'round' 0 'complete' FALSE 'deadline' NONE 'closed' FALSE "
                                        "'participants' DICT 'last_heartbeats' DICT 'wait_list' SET MARK " NEW_NODE
                                        "DICT MARK 'pid' 1 'local_id' 0 'fqdn' TEXT4");
        put(&bytes, &len_le, sizeof len_le);
        put(&bytes, name, len);
        assemble_more(&bytes, "SETITEMS BUILD ADDITEMS SETITEMS BUILD STOP");
        if (len > MU_NODE_NAME_MAX) {
            assert_refused(mu_buf_slice(&bytes), "a node's name of 4097 bytes");
        } else {
            assert_int_equal(decode(mu_buf_slice(&bytes), &doc, NULL), 0);
            assert_int_equal(doc.members[0].node.name.len, MU_NODE_NAME_MAX);
            assert_comes_back(&doc);
        }
        mu_doc_done(&doc);
        mu_buf_done(&bytes);
    }
}

/* ---- What is odd and still a document ---- */

static void of_two_equal_keys_the_last_value_and_the_first_place_count(void **state)
{
    struct mu_doc doc =
        accept(DOC("NONE", "DICT MARK " A "1 " B "2 " A "3 SETITEMS", "SET MARK " B B "ADDITEMS", "",
                   "DICT " B DATETIME "BYTES1 #0a07b2010100000a000001 TUPLE1 REDUCE SETITEM " B NAIVE "SETITEM"));
    struct mu_node a = node("a", 1, 0), b = node("b", 2, 0);

    (void)state;
    assert_int_equal(doc.count, 2);
    assert_int_equal(doc.participants, 2);
    assert_int_equal(doc.waiting, 1);
    assert_true(mu_node_equal(&doc.members[0].node, &a) && mu_node_equal(&doc.members[1].node, &b));
    assert_int_equal(doc.members[0].rank, 3);
    assert_int_equal(doc.members[1].rank, 2);
    assert_int_equal(doc.members[1].heartbeat_us, BYTES10_US);
    mu_doc_done(&doc);
}

static void of_two_equal_fields_the_last_counts(void **state)
{
    struct mu_doc doc =
        accept(DOC(NAIVE, "DICT " A "0 SETITEM", "SET", "'round' 9 'participants' DICT 'deadline' NONE", "DICT"));

    (void)state;
    assert_int_equal(doc.round, 9);
    assert_int_equal(doc.count, 0);
    assert_false(doc.has_deadline);
    assert_dialect(doc.dialect, false, false, false); /* nothing of it is left */
    mu_doc_done(&doc);
}

static void a_node_may_be_in_everything_at_once(void **state)
{
    struct mu_doc doc = accept(DOC("NONE", "DICT " A "MEMOIZE 4 SETITEM", "SET MARK BINGET #00 ADDITEMS",
                                   "'redundancy_list' SET MARK " A "ADDITEMS", "DICT BINGET #00 " ZONED "SETITEM"));

    (void)state;
    assert_int_equal(doc.count, 1);
    assert_int_equal(doc.members[0].in, MU_DOC_PARTICIPANT | MU_DOC_WAITING | MU_DOC_SPARE | MU_DOC_HEARTBEAT);
    assert_int_equal(doc.members[0].rank, 4);
    assert_int_equal(doc.members[0].heartbeat_us, BYTES10_US);
    assert_dialect(doc.dialect, true, true, true);
    mu_doc_done(&doc);
}

static void a_participant_needs_no_heartbeat_and_a_heartbeat_no_participant(void **state)
{
    struct mu_doc doc = accept(DOC("NONE", "DICT " A "0 SETITEM", "SET", "", "DICT " B NAIVE "SETITEM"));

    (void)state;
    assert_int_equal(doc.count, 2);
    assert_int_equal(doc.members[0].in, MU_DOC_PARTICIPANT);
    assert_int_equal(doc.members[1].in, MU_DOC_HEARTBEAT);
    mu_doc_done(&doc);
}

/* References may come before what they refer to is filled, and one thing may be used in several places. */
static void shared_things_are_shared(void **state)
{
    struct mu_doc doc =
        accept(DOC("NONE", "DICT MEMOIZE", "SET MEMOIZE", "'redundancy_list' BINGET #01", "BINGET #00"));

    (void)state;
    assert_int_equal(doc.count, 0);
    mu_doc_done(&doc);

    /* One set for both, filled after it was put into the first. */
    doc = accept(NEW_STATE "DICT MARK 'round' 1 'complete' TRUE 'deadline' NONE 'closed' TRUE 'participants' DICT "
                           "'wait_list' SET MEMOIZE 'last_heartbeats' DICT 'redundancy_list' BINGET #00 MARK " A B
                           "ADDITEMS SETITEMS BUILD STOP");
    assert_true(doc.complete && doc.closed);
    assert_int_equal(doc.waiting, 2);
    assert_int_equal(doc.spares, 2);
    mu_doc_done(&doc);

    /* One dict of attributes for two nodes; a change in between reaches only the second. */
    doc = accept(DOC("NONE", "DICT",
                     "SET MARK " NEW_NODE "DICT MEMOIZE MARK 'addr' 'a' 'pid' 1 'local_id' 0 SETITEMS "
                     "BUILD " NEW_NODE "BINGET #00 'pid' 2 SETITEM BUILD ADDITEMS",
                     SPARES, "DICT"));
    assert_int_equal(doc.waiting, 2);
    assert_int_equal(doc.members[0].node.pid, 1);
    assert_int_equal(doc.members[1].node.pid, 2);
    mu_doc_done(&doc);
}

static void fields_come_in_any_order_and_in_any_batches(void **state)
{
    struct mu_doc doc =
        accept("FRAME #0500000000000000 " NEW_STATE
               "DICT 'closed' TRUE SETITEM MARK SETITEMS MARK 'last_heartbeats' DICT 'wait_list' SET MARK "
               "ADDITEMS MARK " A "ADDITEMS MARK " B "ADDITEMS SETITEMS FRAME #0000000000000000 MARK "
               "'deadline' NONE 'participants' DICT 'complete' TRUE 'round' LONG1 #00 SETITEMS BUILD STOP");

    (void)state;
    assert_true(doc.closed && doc.complete);
    assert_int_equal(doc.round, 0);
    assert_int_equal(doc.waiting, 2);
    mu_doc_done(&doc);
}

static void integers_of_all_widths_are_read(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {
        { "BININT1 #ff", 255 },
        { "BININT2 #ffff", 65535 },
        { "BININT #ffffff7f", INT32_MAX },
        { "BININT #ffffffff", -1 },
        { "LONG1 #00", 0 },
        { "LONG1 #0180", -128 },
        { "LONG1 #02ff00", 255 },
        { "LONG1 #050000008000", INT64_C(0x80000000) },
        { "LONG1 #08ffffffffffffff7f", INT64_MAX },
        { "LONG1 #080000000000000080", INT64_MIN },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[1024];
        struct mu_doc doc;

        (void)snprintf(text, sizeof text, DOC("NONE", "DICT", "SET MARK " NODE("a", "1", "%s") "ADDITEMS", "", "DICT"),
                       cases[i].text);
        doc = accept(text);
        assert_int_equal(doc.members[0].node.local_id, cases[i].value);
        mu_doc_done(&doc);
    }
}

static void the_fold_bit_is_not_looked_at(void **state)
{
    struct mu_doc doc =
        accept(DOC(DATETIME "BYTES4 #0a00000007e883050c22380c0a14 TUPLE1 REDUCE", "DICT", "SET", "", "DICT"));

    (void)state;
    assert_true(doc.has_deadline);
    assert_int_equal(doc.deadline_us, BYTES10_US);
    mu_doc_done(&doc);
}

static void what_an_empty_document_does_not_tell_follows_from_its_spares(void **state)
{
    struct mu_doc doc = accept(DOC("NONE", "DICT", "SET", NO_SPARES, "DICT"));

    (void)state;
    assert_dialect(doc.dialect, false, false, false);
    mu_doc_done(&doc);
    doc = accept(DOC("NONE", "DICT", "SET", SPARES, "DICT"));
    assert_dialect(doc.dialect, true, true, true);
    mu_doc_done(&doc);
    doc = accept(DOC(NAIVE, "DICT", "SET", SPARES, "DICT")); /* 2.3 to 2.5 */
    assert_dialect(doc.dialect, true, true, false);
    mu_doc_done(&doc);
    doc = accept(DOC(ZONED, "DICT", "SET", NO_SPARES, "DICT"));
    assert_dialect(doc.dialect, false, false, true);
    mu_doc_done(&doc);
    doc = accept(DOC("NONE", "DICT " A "0 SETITEM", "SET", NO_SPARES, "DICT"));
    assert_dialect(doc.dialect, true, false, false);
    mu_doc_done(&doc);
}

/* Of a document that nobody is in, and of the version among those whose documents are alike. */
static void what_a_document_does_not_tell_is_as_expected(void **state)
{
    static const struct {
        struct mu_doc_dialect expected, found;
        const char *text;
    } rows[] = {
        { MU_DOC_DIALECT_2_5, MU_DOC_DIALECT_2_5, DOC("NONE", "DICT", "SET", SPARES, "DICT") },
        { MU_DOC_DIALECT_2_3, MU_DOC_DIALECT_2_3, DOC("NONE", "DICT", "SET", SPARES, "DICT") },
        { MU_DOC_DIALECT_2_X, MU_DOC_DIALECT_2_X, DOC("NONE", "DICT", "SET", SPARES, "DICT") },
        { MU_DOC_DIALECT_1_13, MU_DOC_DIALECT_2_X, DOC("NONE", "DICT", "SET", SPARES, "DICT") },
        { MU_DOC_DIALECT_2_2, MU_DOC_DIALECT_2_2, DOC("NONE", "DICT", "SET", NO_SPARES, "DICT") },
        { MU_DOC_DIALECT_2_X, MU_DOC_DIALECT_1_13, DOC("NONE", "DICT", "SET", NO_SPARES, "DICT") },
        { MU_DOC_DIALECT_2_5, MU_DOC_DIALECT_1_13, DOC("NONE", "DICT", "SET", NO_SPARES, "DICT") },
        { MU_DOC_DIALECT_2_3, MU_DOC_DIALECT_2_3, DOC(NAIVE, "DICT", "SET", SPARES, "DICT") },
        { MU_DOC_DIALECT_1_13, MU_DOC_DIALECT_2_5, DOC(NAIVE, "DICT", "SET", SPARES, "DICT") },
        { MU_DOC_DIALECT_2_X, MU_DOC_DIALECT_2_5, DOC(NAIVE, "DICT", "SET", SPARES, "DICT") },
        { MU_DOC_DIALECT_2_3, MU_DOC_DIALECT_2_X, DOC(ZONED, "DICT", "SET", SPARES, "DICT") },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_doc doc = accept_as(rows[i].text, rows[i].expected);

        assert_dialect(doc.dialect, rows[i].found.addr, rows[i].found.spares, rows[i].found.zoned);
        assert_int_equal(doc.dialect.habits, rows[i].found.habits);
        mu_doc_done(&doc);
    }
}

/* ---- Limits ---- */

static void put_many(struct mu_buf *out, const char *text, size_t times)
{
    struct mu_buf once = { 0 };

    assemble_more(&once, text);
    for (size_t i = 0; i < times; i++)
        put(out, once.data, once.len);
    mu_buf_done(&once);
}

static void assert_many_refused(const char *before, const char *text, size_t times, const char *complaint)
{
    struct mu_buf bytes = assemble(before);

    put_many(&bytes, text, times);
    assert_refused(mu_buf_slice(&bytes), complaint);
    mu_buf_done(&bytes);
}

static void there_is_a_limit_to_everything(void **state)
{
    struct mu_buf bytes = assemble("");

    (void)state;
    assert_many_refused("", "MARK", MU_PICKLE_DEPTH_MAX, "cut off");
    assert_many_refused("", "MARK", MU_PICKLE_DEPTH_MAX + 1, "deeper than 32 levels");
    assert_many_refused("NONE", "MEMOIZE", MU_PICKLE_MEMO_MAX, "cut off");
    assert_many_refused("NONE", "MEMOIZE", MU_PICKLE_MEMO_MAX + 1, "memo slot 1048576 is past the limit");
    assert_many_refused("", "NONE", (size_t)1 << 20, "cut off");
    assert_many_refused("", "NONE", ((size_t)1 << 20) + 1, "values on the stack");
    assert_many_refused(
        "DICT MARK 'addr' 'a' 'pid' 1 'local_id' 0 SETITEMS MEMOIZE " MODULE "'_NodeDesc' STACK_GLOBAL MEMOIZE SET",
        "MARK BINGET #01 EMPTY_TUPLE NEWOBJ BINGET #00 BUILD ADDITEMS", ((size_t)1 << 20) + 1, "more than 1048576 ");
    assert_many_refused("DICT " A "MEMOIZE 0 SETITEM", "MARK BINGET #00 BININT1 #00 SETITEMS", (size_t)1 << 20,
                        "more than 1048576 entries");
    assert_many_refused("GLOBAL", "#61", 300, "a name that is too long");
    put_many(&bytes, "NONE", MU_PICKLE_BYTES_MAX);
    assert_refused(mu_buf_slice(&bytes), "longer than a document can be");
    assert_refused(mu_slice(bytes.data, MU_PICKLE_BYTES_MAX), "values on the stack");
    mu_buf_done(&bytes);
}

/* In one batch, to see that too. */
static void there_is_a_limit_to_the_members(void **state)
{
    (void)state;
    for (uint32_t extra = 0; extra < 2; extra++) {
        struct mu_buf bytes =
            assemble(NEW_STATE "DICT MARK 'round' 0 'complete' FALSE 'deadline' NONE 'closed' FALSE "
                               "'participants' DICT 'last_heartbeats' DICT 'wait_list' SET MARK " MODULE
                               "'_NodeDesc' STACK_GLOBAL BINPUT #00 EMPTY_TUPLE NEWOBJ DICT BINPUT #01 "
                               "MARK 'addr' 'a' 'pid' BINPUT #02 1 'local_id' 0 SETITEMS BUILD");
        struct mu_doc doc;

        for (uint32_t i = 1; i < MU_DOC_MEMBERS_MAX + extra; i++) {
            uint32_t pid = htole32(i + 1);

            put(&bytes, "h\0)\x81h\1h\2J", 9);
            put(&bytes, &pid, sizeof pid);
            put(&bytes, "sb", 2);
        }
        assemble_more(&bytes, "ADDITEMS SETITEMS BUILD STOP");
        if (extra > 0) {
            assert_refused(mu_buf_slice(&bytes), "more than 262144 members");
        } else {
            doc_init(&doc);
            assert_int_equal(mu_pickle_decode(mu_buf_slice(&bytes), &doc, NULL), 0);
            assert_int_equal(doc.waiting, MU_DOC_MEMBERS_MAX);
            mu_doc_done(&doc);
        }
        mu_buf_done(&bytes);
    }
}

/* ---- Writing ---- */

static void populate(struct mu_doc *doc, size_t count, unsigned in)
{
    for (size_t i = 0; i < count; i++) {
        char name[32];
        struct mu_node it;
        struct mu_doc_member *member;

        (void)snprintf(name, sizeof name, "node-%06u.examples", (unsigned)i % 1000000); /* 20 characters */
        it = node(name, 1000 + (int64_t)i, (int64_t)i % 8);
        member = mu_doc_enter(doc, &it, in);
        member->rank = (int64_t)i;
        member->heartbeat_us = BYTES10_US + (int64_t)i * 1234567;
    }
}

static void documents_of_all_sizes_and_dialects_come_back(void **state)
{
    static const size_t counts[] = { 0, 1, 2, 999, 1000, 1001, 2000, 2001 };

    (void)state;
    for (unsigned dialect = 0; dialect < 8; dialect++)
        for (size_t i = 0; i < COUNT(counts); i++) {
            struct mu_doc doc;
            bool spares = dialect & 2;

            mu_doc_init(&doc, seed, (struct mu_doc_dialect){ dialect & 1, spares, (dialect & 4) != 0, MU_HABITS_1_13 });
            populate(&doc, counts[i], MU_DOC_PARTICIPANT | MU_DOC_HEARTBEAT);
            if (counts[i] == 0)
                doc.dialect.addr = spares; /* not told by an empty one */
            doc.has_deadline = true;
            doc.deadline_us = BYTES10_US;
            doc.closed = i % 2 == 1;
            doc.complete = i % 3 == 1;
            doc.round = (int64_t)(i * i * i * i * 1000);
            assert_comes_back(&doc);
            mu_doc_done(&doc);

            mu_doc_init(&doc, seed, (struct mu_doc_dialect){ dialect & 1, spares, spares, MU_HABITS_1_13 });
            populate(&doc, counts[i], spares ? MU_DOC_WAITING | MU_DOC_SPARE : MU_DOC_WAITING);
            if (counts[i] == 0)
                doc.dialect.addr = spares;
            assert_comes_back(&doc);
            mu_doc_done(&doc);
        }
}

/* Measured on CPython's pickler with names of 20 characters and all ranks given out. */
static void documents_are_as_small_as_pytorchs_own(void **state)
{
    static const struct {
        size_t nodes, len;
    } cases[] = { { 1, 317 }, { 10, 922 }, { 100, 7309 }, { 1000, 73766 }, { 4000, 295805 } };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mu_buf bytes = { 0 };
        struct mu_doc doc;

        doc_init(&doc);
        populate(&doc, cases[i].nodes, MU_DOC_PARTICIPANT | MU_DOC_HEARTBEAT);
        assert_int_equal(mu_pickle_encode(&doc, &bytes), 0);
        assert_int_equal(bytes.len, cases[i].len);
        mu_buf_done(&bytes);
        mu_doc_done(&doc);
    }
}

static void numbers_of_all_sizes_come_back(void **state)
{
    struct mu_doc doc;

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    for (unsigned bits = 0; bits < 64; bits++)
        for (int64_t off = -1; off <= 1; off++) {
            int64_t value = (int64_t)((UINT64_C(1) << bits) + (uint64_t)off);
            struct mu_node plus = node("p", value < 0 ? 0 : value, value);
            struct mu_node minus = node("m", 1, (int64_t)(0 - (uint64_t)value));

            mu_doc_enter(&doc, &plus, MU_DOC_PARTICIPANT)->rank = value < 0 ? 0 : value;
            (void)mu_doc_enter(&doc, &minus, MU_DOC_PARTICIPANT);
        }
    doc.round = MU_DOC_ROUND_MAX;
    assert_comes_back(&doc);
    mu_doc_done(&doc);
}

static void times_come_back_and_impossible_ones_as_the_nearest(void **state)
{
    const int64_t day_us = INT64_C(86400000000);
    const int64_t first = -INT64_C(62135596800000000), last = INT64_C(253402300799999999);
    struct mu_buf bytes = { 0 };
    struct mu_doc doc, back;

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    doc_init(&back);
    for (int64_t us = first; us <= last; us += 171 * day_us + 12345678901) {
        struct mu_node it = node("t", us - first, 0);

        mu_doc_enter(&doc, &it, MU_DOC_HEARTBEAT)->heartbeat_us = us;
    }
    doc.has_deadline = true;
    doc.deadline_us = last;
    assert_comes_back(&doc);
    mu_doc_reset(&doc, MU_DOC_DIALECT_2_X);
    for (int year = 1; year <= 9999; year++) /* around each New Year, by the average length of a year */
        for (int day = -2; day <= 2; day++) {
            struct mu_node it = node("y", year, day);
            int64_t us = first + (int64_t)((year - 1) * 365.2425) * day_us + day * day_us;

            if (us >= first && us <= last)
                mu_doc_enter(&doc, &it, MU_DOC_HEARTBEAT)->heartbeat_us = us;
        }
    assert_comes_back(&doc);
    for (int i = 0; i < 2; i++) {
        mu_doc_reset(&doc, MU_DOC_DIALECT_2_X);
        bytes.len = 0;
        doc.has_deadline = true;
        doc.deadline_us = i == 0 ? INT64_MIN : INT64_MAX;
        assert_int_equal(mu_pickle_encode(&doc, &bytes), 0);
        assert_int_equal(mu_pickle_decode(mu_buf_slice(&bytes), &back, NULL), 0);
        assert_int_equal(back.deadline_us, i == 0 ? first : last);
    }
    mu_buf_done(&bytes);
    mu_doc_done(&doc);
    mu_doc_done(&back);
}

static void writing_appends(void **state)
{
    struct mu_buf bytes = { 0 };
    struct mu_doc doc;
    size_t len;

    (void)state;
    doc_init(&doc);
    put(&bytes, "abc", 3);
    assert_int_equal(mu_doc_codec_pickle.encode(&doc, &bytes), 0);
    assert_memory_equal(bytes.data, "abc\x80\x04\x95", 6);
    len = bytes.len;
    assert_int_equal(mu_doc_codec_pickle.decode(mu_slice(bytes.data + 3, len - 3), &doc, NULL), 0);
    assert_string_equal(mu_doc_codec_pickle.name, "pickle");
    mu_buf_done(&bytes);
    mu_doc_done(&doc);
}

static void a_document_that_could_not_be_read_is_not_written(void **state)
{
    struct mu_buf bytes = { 0 };
    struct mu_doc doc;
    char name[MU_NODE_NAME_MAX];
    struct mu_node it = { mu_slice(name, sizeof name), 0, 0 };

    (void)state;
    doc_init(&doc);
    memset(name, 'n', sizeof name);
    put(&bytes, "abc", 3);
    for (it.pid = 0; it.pid < 4060; it.pid++) /* below 16 MiB of names, and above it with the rest */
        (void)mu_doc_enter(&doc, &it, MU_DOC_PARTICIPANT);
    assert_int_equal(mu_pickle_encode(&doc, &bytes), 0);
    assert_comes_back(&doc);
    for (; it.pid < 4090; it.pid++)
        (void)mu_doc_enter(&doc, &it, MU_DOC_PARTICIPANT);
    bytes.len = 3;
    assert_int_equal(mu_pickle_encode(&doc, &bytes), MUSTER_ELIMIT);
    for (; it.pid < 4100; it.pid++)
        (void)mu_doc_enter(&doc, &it, MU_DOC_PARTICIPANT);
    assert_int_equal(mu_pickle_encode(&doc, &bytes), MUSTER_ELIMIT);
    mu_doc_reset(&doc, MU_DOC_DIALECT_2_X);
    it.name.len = 1;
    for (it.pid = 0; it.pid < 200000; it.pid++) /* six slots of the memo each */
        (void)mu_doc_enter(&doc, &it, MU_DOC_PARTICIPANT | MU_DOC_HEARTBEAT);
    assert_int_equal(mu_pickle_encode(&doc, &bytes), MUSTER_ELIMIT);
    assert_int_equal(bytes.len, 3);
    assert_memory_equal(bytes.data, "abc", 3);
    mu_buf_done(&bytes);
    mu_doc_done(&doc);
}

/* ---- Memory ---- */

static void reading_without_memory_changes_nothing(void **state)
{
    static const char *const names[] = { "v2-04-aware-redundancy-closed", "v3-08-real-2.11-big-300" };

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct mu_buf bytes = load(names[i], ".bin");

        FOR_EACH_FAILURE (n) {
            struct muster_error err = { 0 };
            struct mu_doc doc;
            int rc;

            doc_init(&doc);
            rc = mu_pickle_decode(mu_buf_slice(&bytes), &doc, &err);
            assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
            assert_int_equal(err.code, rc);
            assert_int_equal(doc.count != 0, rc == 0);
            mu_doc_done(&doc);
        }
        mu_buf_done(&bytes);
    }
}

static void writing_without_memory_changes_nothing(void **state)
{
    struct mu_doc doc;

    (void)state;
    doc_init(&doc);
    populate(&doc, 10, MU_DOC_PARTICIPANT | MU_DOC_HEARTBEAT);
    FOR_EACH_FAILURE (n) {
        struct mu_buf bytes = { 0 };
        int rc = mu_pickle_encode(&doc, &bytes);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        assert_int_equal(bytes.len != 0, rc == 0);
        mu_buf_done(&bytes);
    }
    mu_doc_done(&doc);
}

static void a_round_that_no_rendezvous_gets_to_is_refused(void **state)
{
    struct mu_doc doc;
    struct mu_buf bytes = { 0 };
    struct muster_error error = { 0 };

    (void)state;
    mu_doc_init(&doc, (struct mu_hash_seed){ 1, 2 }, MU_DOC_DIALECT_2_X);
    doc.round = MU_DOC_ROUND_MAX;
    assert_int_equal(mu_pickle_encode(&doc, &bytes), 0);
    assert_int_equal(mu_pickle_decode(mu_buf_slice(&bytes), &doc, &error), 0);
    doc.round = MU_DOC_ROUND_MAX + 1;
    bytes.len = 0;
    assert_int_equal(mu_pickle_encode(&doc, &bytes), 0);
    assert_int_equal(mu_pickle_decode(mu_buf_slice(&bytes), &doc, &error), MUSTER_ERDZV_STATE);
    mu_buf_done(&bytes);
    mu_doc_done(&doc);
}

static void a_name_is_taken_if_it_can_be_read_again(void **state)
{
    char longest[MU_NODE_NAME_MAX + 1];

    (void)state;
    memset(longest, 'x', sizeof longest);
    assert_true(mu_pickle_takes_name(mu_slice_str("node-1.example.org")));
    assert_true(mu_pickle_takes_name(mu_slice_str("kn\xc3\xb6ten")));
    assert_true(mu_pickle_takes_name(mu_slice(longest, MU_NODE_NAME_MAX)));
    assert_false(mu_pickle_takes_name(mu_slice(longest, sizeof longest)));
    assert_false(mu_pickle_takes_name(mu_slice_str("")));
    assert_false(mu_pickle_takes_name(mu_slice_str("node\xff")));
    assert_false(mu_pickle_takes_name(mu_slice_str("a-much-longer-node-name\xc3")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stored_document_reads_as_what_it_is),
        cmocka_unit_test(what_we_write_is_what_cpython_wrote),
        cmocka_unit_test(every_bad_document_is_refused_for_what_it_is),
        cmocka_unit_test(a_whole_state_that_is_refused_is_another_layout),
        cmocka_unit_test(a_document_cut_off_anywhere_is_refused),
        cmocka_unit_test(any_one_byte_may_be_another),
        cmocka_unit_test(protocols_three_to_five_are_read),
        cmocka_unit_test(every_opcode_outside_of_the_subset_is_refused),
        cmocka_unit_test(what_does_not_belong_is_refused),
        cmocka_unit_test(a_set_by_call_is_of_protocol_three),
        cmocka_unit_test(a_name_may_have_4096_bytes_and_no_more),
        cmocka_unit_test(of_two_equal_keys_the_last_value_and_the_first_place_count),
        cmocka_unit_test(of_two_equal_fields_the_last_counts),
        cmocka_unit_test(a_node_may_be_in_everything_at_once),
        cmocka_unit_test(a_participant_needs_no_heartbeat_and_a_heartbeat_no_participant),
        cmocka_unit_test(shared_things_are_shared),
        cmocka_unit_test(fields_come_in_any_order_and_in_any_batches),
        cmocka_unit_test(integers_of_all_widths_are_read),
        cmocka_unit_test(the_fold_bit_is_not_looked_at),
        cmocka_unit_test(what_an_empty_document_does_not_tell_follows_from_its_spares),
        cmocka_unit_test(what_a_document_does_not_tell_is_as_expected),
        cmocka_unit_test(there_is_a_limit_to_everything),
        cmocka_unit_test(there_is_a_limit_to_the_members),
        cmocka_unit_test(documents_of_all_sizes_and_dialects_come_back),
        cmocka_unit_test(documents_are_as_small_as_pytorchs_own),
        cmocka_unit_test(numbers_of_all_sizes_come_back),
        cmocka_unit_test(times_come_back_and_impossible_ones_as_the_nearest),
        cmocka_unit_test(writing_appends),
        cmocka_unit_test(a_document_that_could_not_be_read_is_not_written),
        cmocka_unit_test(reading_without_memory_changes_nothing),
        cmocka_unit_test(writing_without_memory_changes_nothing),
        cmocka_unit_test(a_round_that_no_rendezvous_gets_to_is_refused),
        cmocka_unit_test(a_name_is_taken_if_it_can_be_read_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
