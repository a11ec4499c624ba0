/* The codec: every request of every dialect however it is cut up, whose dialect a connection speaks, and limits. */
#include "pure.h"
#include "store/codec.h"
#include "wire.h"

#include <inttypes.h>
#include <stdio.h>

static const struct muster_store_limits roomy = {
    .key_bytes = 8192, .value_bytes = 8 << 20, .keys = 131072, .request_bytes = 32 << 20
};

/* ---- Requests in words ---- */

struct words {
    char text[4096];
    size_t len;
};

static void say(struct words *words, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct words *words, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    words->len += (size_t)vsnprintf(words->text + words->len, sizeof words->text - words->len, format, args);
    va_end(args);
    assert_true(words->len < sizeof words->text);
}

static void say_bytes(struct words *words, struct mu_slice bytes)
{
    say(words, "'");
    for (size_t i = 0; i < bytes.len; i++)
        say(words, bytes.data[i] >= ' ' && bytes.data[i] < 127 ? "%c" : "\\%02X", (unsigned char)bytes.data[i]);
    say(words, "'");
}

static void say_list(struct words *words, const struct mu_request *request)
{
    struct mu_slice list = request->list, key, value;
    uint64_t count = 0;

    say(words, " [");
    while (mu_request_next(&list, &key, request->op == MU_OP_MULTI_SET ? &value : NULL)) {
        say(words, count++ > 0 ? " " : "");
        say_bytes(words, key);
        if (request->op == MU_OP_MULTI_SET) {
            say(words, "=");
            say_bytes(words, value);
        }
    }
    say(words, "]");
    assert_true(count == request->count);
}

static void say_request(struct words *words, const struct mu_request *request)
{
    say(words, "%s%s", words->len > 0 ? "; " : "", mu_op_name(request->op));
    if (request->key.data != NULL) {
        say(words, " ");
        say_bytes(words, request->key);
    }
    if (request->value.data != NULL) {
        say(words, " ");
        say_bytes(words, request->value);
    }
    if (request->desired.data != NULL) {
        say(words, " -> ");
        say_bytes(words, request->desired);
    }
    if (request->op == MU_OP_ADD || request->op == MU_OP_BARRIER || request->op == MU_OP_PING)
        say(words, " %" PRId64, request->number);
    if (request->list.data != NULL)
        say_list(words, request);
}

/* ---- Feeding ---- */

/* A connection: what it has sent and the codec has not taken yet. */
struct line {
    struct mu_codec codec;
    struct mu_buf unread;
    struct words words;
    struct muster_error err;
};

static void line_init(struct line *line, const struct muster_store_limits *limits, enum mu_dialect legacy)
{
    *line = (struct line){ 0 };
    mu_codec_init(&line->codec, limits, legacy);
}

/* Shows the codec all that is there, in memory of exactly that size, until it wants more. */
static enum mu_codec_result feed(struct line *line, struct mu_slice bytes, uint64_t now_ms)
{
    enum mu_codec_result result;

    assert_int_equal(mu_buf_append(&line->unread, bytes.data, bytes.len, SIZE_MAX), 0);
    for (;;) {
        struct mu_request request;
        size_t used, len = line->unread.len;
        char *exact = malloc(len > 0 ? len : 1);

        assert_non_null(exact);
        if (len > 0)
            memcpy(exact, line->unread.data, len);
        result = mu_codec_next(&line->codec, mu_slice(exact, len), now_ms, &request, &used, &line->err);
        if (result == MU_CODEC_REQUEST) {
            say_request(&line->words, &request);
            mu_buf_consume(&line->unread, used);
        }
        free(exact);
        if (result != MU_CODEC_REQUEST)
            return result;
    }
}

static enum mu_codec_result feed_wire(struct line *line, const char *text)
{
    return feed(line, wire(line->codec.dialect, text), 0);
}

static void hang_up(struct line *line)
{
    mu_buf_done(&line->unread);
}

/* What a codec set to `legacy` reads from `bytes`, `piece` of them at a time. */
static const char *read_in_pieces(enum mu_dialect legacy, struct mu_slice bytes, size_t piece, bool *ret_all_read)
{
    static struct line line;

    line_init(&line, &roomy, legacy);
    for (size_t at = 0; at < bytes.len; at += piece) {
        enum mu_codec_result result =
            feed(&line, mu_slice(bytes.data + at, bytes.len - at < piece ? bytes.len - at : piece), 0);

        if (result == MU_CODEC_BAD)
            say(&line.words, "!");
        if (result == MU_CODEC_BAD)
            break;
    }
    *ret_all_read = line.unread.len == 0;
    hang_up(&line);
    return line.words.text;
}

struct row {
    const char *bytes; /* as they were captured */
    const char *words;
};

/* Every row on its own, whole and in pieces of every size; then all rows in one segment. */
static void assert_rows_read(enum mu_dialect legacy, const char *opening, const struct row *rows, size_t count)
{
    const char *opened = opening[0] == '\0' ? "" : "VALIDATE; ";
    struct mu_buf all = { 0 };
    struct words expected = { 0 };
    bool all_read;

    wire_put(&all, MU_DIALECT_UNKNOWN, opening);
    if (opening[0] != '\0')
        say(&expected, "VALIDATE");
    for (size_t i = 0; i < count; i++) {
        struct mu_buf one = { 0 };
        struct words alone = { 0 };

        say(&alone, "%s%s", opened, rows[i].words);
        wire_put(&one, MU_DIALECT_UNKNOWN, opening);
        wire_put(&one, MU_DIALECT_UNKNOWN, rows[i].bytes);
        for (size_t piece = 1; piece <= one.len; piece++) {
            assert_string_equal(read_in_pieces(legacy, mu_buf_slice(&one), piece, &all_read), alone.text);
            assert_true(all_read);
        }
        mu_buf_done(&one);
        wire_put(&all, MU_DIALECT_UNKNOWN, rows[i].bytes);
        say(&expected, "%s%s", expected.len > 0 ? "; " : "", rows[i].words);
    }
    for (size_t piece = 1; piece <= all.len; piece += piece < 64 ? 1 : 61) {
        assert_string_equal(read_in_pieces(legacy, mu_buf_slice(&all), piece, &all_read), expected.text);
        assert_true(all_read);
    }
    assert_string_equal(read_in_pieces(legacy, mu_buf_slice(&all), all.len, &all_read), expected.text);
    mu_buf_done(&all);
}

/* ---- Reading ---- */

static void every_captured_request_of_1_13_is_read(void **state)
{
    static const struct row rows[] = {
        { "03 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00", "ADD 'init/' 1" },
        { "00 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76", "SET '/k' 'v'" },
        { "02 02 00 00 00 00 00 00 00 2F 6B", "GET '/k'" },
        { "03 02 00 00 00 00 00 00 00 2F 63 F9 FF FF FF FF FF FF FF", "ADD '/c' -7" },
        { "01 02 00 00 00 00 00 00 00 2F 71 00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 6E 65 77",
          "COMPARE_SET '/q' '' -> 'new'" },
        { "04 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B 03 00 00 00 00 00 00 00 2F 7A 7A",
          "CHECK ['/k' '/zz']" },
        { "04 00 00 00 00 00 00 00 00", "CHECK []" },
        { "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "WAIT ['/k']" },
        { "05 00 00 00 00 00 00 00 00", "WAIT []" },
        { "06", "NUM_KEYS" },
        { "08 02 00 00 00 00 00 00 00 2F 6B", "DELETE_KEY '/k'" },
        { "07 03 00 00 00 00 00 00 00 2F 77 6B", "WATCH_KEY '/wk'" },
    };

    (void)state;
    assert_rows_read(MU_DIALECT_L0, "", rows, COUNT(rows));
}

static void every_request_of_2_1_is_read(void **state)
{
    static const struct row rows[] = {
        { "00 02 00 00 00 00 00 00 00 2F 6B 00 00 00 00 00 00 00 00", "SET '/k' ''" },
        { "01 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 61 01 00 00 00 00 00 00 00 62",
          "COMPARE_SET '' 'a' -> 'b'" },
        { "02 02 00 00 00 00 00 00 00 00 FF", "GET '\\00\\FF'" },
        { "03 01 00 00 00 00 00 00 00 63 00 00 00 00 00 00 00 80", "ADD 'c' -9223372036854775808" },
        { "04 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", "CHECK ['']" },
        { "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "WAIT ['/k']" },
        { "06", "NUM_KEYS" },
        { "07 02 00 00 00 00 00 00 00 2F 6B", "DELETE_KEY '/k'" },
        { "08 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 77", "APPEND '/k' 'w'" },
        { "09 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 61 02 00 00 00 00 00 00 00 2F 62",
          "MULTI_GET ['/a' '/b']" },
        { "0A 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 61 01 00 00 00 00 00 00 00 31",
          "MULTI_SET ['/a'='1']" },
        { "0B", "CANCEL_WAIT" },
    };

    (void)state;
    assert_rows_read(MU_DIALECT_L1, "", rows, COUNT(rows));
}

static void every_request_of_2_2_and_newer_is_read(void **state)
{
    static const struct row rows[] = {
        { "0D 34 12 00 00", "PING 4660" },
        { "0D FF FF FF FF", "PING 4294967295" },
        { "04 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00", "ADD 'init/' 1" },
        { "01 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76", "SET '/k' 'v'" },
        { "02 02 00 00 00 00 00 00 00 2F 6B 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 4E",
          "COMPARE_SET '/k' '' -> 'N'" },
        { "03 02 00 00 00 00 00 00 00 2F 6B", "GET '/k'" },
        { "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "CHECK ['/k']" },
        { "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "WAIT ['/k']" },
        { "07", "NUM_KEYS" },
        { "08 02 00 00 00 00 00 00 00 2F 6B", "DELETE_KEY '/k'" },
        { "09 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 77", "APPEND '/k' 'w'" },
        { "0A 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 61 02 00 00 00 00 00 00 00 2F 62",
          "MULTI_GET ['/a' '/b']" },
        { "0A 00 00 00 00 00 00 00 00", "MULTI_GET []" },
        { "0B 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 61 01 00 00 00 00 00 00 00 31",
          "MULTI_SET ['/a'='1']" },
        { "0B 02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 61 00 00 00 00 00 00 00 00 "
          "00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 62",
          "MULTI_SET ['a'='' ''='b']" },
        { "0B 00 00 00 00 00 00 00 00", "MULTI_SET []" },
        { "0C", "CANCEL_WAIT" },
        { "0E 02 00 00 00 00 00 00 00 2F 71 01 00 00 00 00 00 00 00 78", "QUEUE_PUSH '/q' 'x'" },
        { "0F 02 00 00 00 00 00 00 00 2F 71", "QUEUE_POP '/q'" },
        { "10 02 00 00 00 00 00 00 00 2F 71", "QUEUE_LEN '/q'" },
        { "11", "LIST_KEYS" },
        { "12 02 00 00 00 00 00 00 00 2F 62 04 00 00 00 00 00 00 00", "BARRIER '/b' 4" },
    };

    (void)state;
    assert_rows_read(MU_DIALECT_L, "00 CE F7 85 3C", rows, COUNT(rows));
}

static void requests_have_the_codes_of_their_dialect(void **state)
{
    static const struct {
        enum mu_op op;
        int l0, l1, v;
    } rows[] = {
        { MU_OP_VALIDATE, -1, -1, 0 },   { MU_OP_SET, 0, 0, 1 },
        { MU_OP_COMPARE_SET, 1, 1, 2 },  { MU_OP_GET, 2, 2, 3 },
        { MU_OP_ADD, 3, 3, 4 },          { MU_OP_CHECK, 4, 4, 5 },
        { MU_OP_WAIT, 5, 5, 6 },         { MU_OP_NUM_KEYS, 6, 6, 7 },
        { MU_OP_WATCH_KEY, 7, -1, -1 },  { MU_OP_DELETE_KEY, 8, 7, 8 },
        { MU_OP_APPEND, -1, 8, 9 },      { MU_OP_MULTI_GET, -1, 9, 10 },
        { MU_OP_MULTI_SET, -1, 10, 11 }, { MU_OP_CANCEL_WAIT, -1, 11, 12 },
        { MU_OP_PING, -1, -1, 13 },      { MU_OP_QUEUE_PUSH, -1, -1, 14 },
        { MU_OP_QUEUE_POP, -1, -1, 15 }, { MU_OP_QUEUE_LEN, -1, -1, 16 },
        { MU_OP_LIST_KEYS, -1, -1, 17 }, { MU_OP_BARRIER, -1, -1, 18 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(mu_op_code(rows[i].op, MU_DIALECT_L0), rows[i].l0);
        assert_int_equal(mu_op_code(rows[i].op, MU_DIALECT_L1), rows[i].l1);
        assert_int_equal(mu_op_code(rows[i].op, MU_DIALECT_V), rows[i].v);
        assert_int_equal(mu_op_code(rows[i].op, MU_DIALECT_L), rows[i].l0 == rows[i].l1 ? rows[i].l0 : -1);
        assert_int_equal(mu_op_code(rows[i].op, MU_DIALECT_UNKNOWN), -1);
    }
}

static void dialects_are_chosen_by_name(void **state)
{
    static const struct {
        const char *text;
        bool known;
        enum mu_dialect dialect;
    } rows[] = {
        { NULL, true, MU_DIALECT_UNKNOWN },
        { "auto", true, MU_DIALECT_UNKNOWN },
        { "1.13", true, MU_DIALECT_L0 },
        { "2.1", true, MU_DIALECT_L1 },
        { "2.x", true, MU_DIALECT_V },
        { "", false, 0 },
        { "1.13-2.1", false, 0 },
        { "unknown", false, 0 },
        { "2", false, 0 },
        { "AUTO", false, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        enum mu_dialect dialect = MU_DIALECT_L;

        assert_int_equal(mu_dialect_parse(rows[i].text, &dialect), rows[i].known);
        assert_int_equal(dialect, rows[i].known ? rows[i].dialect : MU_DIALECT_L);
    }
}

/* ---- Whose dialect ---- */

static void a_first_byte_above_0B_is_not_pytorch(void **state)
{
    (void)state;
    for (unsigned first = 0x0C; first <= 0xFF; first++) {
        const char byte = (char)first;
        struct line line;

        line_init(&line, &roomy, MU_DIALECT_L);
        assert_int_equal(feed(&line, mu_slice(&byte, 1), 0), MU_CODEC_BAD);
        assert_int_equal(line.err.code, MUSTER_EPROTOCOL);
        hang_up(&line);
    }
}

static void http_and_tls_are_called_what_they_are(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed_wire(&line, "'GET / HTTP/1.1'"), MU_CODEC_BAD);
    assert_non_null(strstr(line.err.text, "HTTP"));
    hang_up(&line);
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed_wire(&line, "16 03 01 02 00"), MU_CODEC_BAD);
    assert_non_null(strstr(line.err.text, "TLS"));
    hang_up(&line);
}

static void a_first_byte_from_01_to_0B_is_an_L_peer(void **state)
{
    (void)state;
    for (unsigned first = 0x01; first <= 0x0B; first++) {
        const char byte = (char)first;
        struct line line;

        line_init(&line, &roomy, MU_DIALECT_L);
        assert_int_not_equal(feed(&line, mu_slice(&byte, 1), 0), MU_CODEC_BAD);
        assert_int_equal(line.codec.dialect, first >= 0x09   ? MU_DIALECT_L1
                                             : first == 0x07 ? MU_DIALECT_L0
                                                             : MU_DIALECT_L);
        hang_up(&line);
    }
}

static void the_magic_decides_at_its_last_byte_and_not_before(void **state)
{
    static const char opening[] = "\x00\xCE\xF7\x85\x3C";
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(line.codec.dialect, MU_DIALECT_UNKNOWN);
        assert_int_equal(feed(&line, mu_slice(opening + i, 1), 0), MU_CODEC_MORE);
    }
    assert_int_equal(line.codec.dialect, MU_DIALECT_V);
    assert_string_equal(line.words.text, "VALIDATE");
    hang_up(&line);
}

/* A SET of an L peer whose key length begins like the magic for 0, 1, 2 or 3 bytes. */
static void the_first_byte_that_is_not_the_magics_makes_it_an_L_set(void **state)
{
    static const struct {
        const char *text;
        enum mu_codec_result result; /* lengths of F7CE and more are over the key limit */
    } rows[] = {
        { "00 01", MU_CODEC_MORE },
        { "00 CE 00", MU_CODEC_MORE },
        { "00 CE F6", MU_CODEC_MORE },
        { "00 CE F7 00", MU_CODEC_MORE },
        { "00 CE F7 84", MU_CODEC_MORE },
        { "00 CE F7 85 00", MU_CODEC_MORE },
        { "00 CE F7 85 3B", MU_CODEC_MORE },
        { "00 CE F7 85 3D", MU_CODEC_MORE },
        { "00 CE F7 85 3D 00 00 00 00", MU_CODEC_BAD },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct line line;

        line_init(&line, &roomy, MU_DIALECT_L);
        assert_int_equal(feed_wire(&line, rows[i].text), rows[i].result);
        assert_int_equal(line.codec.dialect, MU_DIALECT_L);
        hang_up(&line);
    }
}

static void a_key_of_206_bytes_is_not_taken_for_the_magic(void **state)
{
    struct mu_buf bytes = { 0 };
    bool all_read;
    const char *words;

    (void)state;
    wire_put(&bytes, MU_DIALECT_L, "SET");
    wire_put_str(&bytes, 'k', 206);
    wire_put(&bytes, MU_DIALECT_L, "(v)");
    assert_memory_equal(bytes.data, "\x00\xCE\x00", 3);
    for (size_t piece = 1; piece <= bytes.len; piece++) {
        words = read_in_pieces(MU_DIALECT_L, mu_buf_slice(&bytes), piece, &all_read);
        assert_memory_equal(words, "SET 'kkk", 8);
        assert_string_equal(words + strlen(words) - 4, " 'v'");
        assert_true(all_read);
    }
    mu_buf_done(&bytes);
}

/* The probe our own and other clients send: four answers from a V server, an absurd SET to an L one. */
static void validate_and_what_follows_may_share_a_segment(void **state)
{
    bool all_read;

    (void)state;
    assert_string_equal(read_in_pieces(MU_DIALECT_L, wire(MU_DIALECT_V, "00 CE F7 85 3C 0C 0C 0C 0C"), 9, &all_read),
                        "VALIDATE; CANCEL_WAIT; CANCEL_WAIT; CANCEL_WAIT; CANCEL_WAIT");
}

static void a_second_validate_is_refused(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed_wire(&line, "00 CE F7 85 3C 0C"), MU_CODEC_MORE);
    assert_int_equal(feed_wire(&line, "00"), MU_CODEC_BAD);
    assert_int_equal(line.err.code, MUSTER_EPROTOCOL);
    hang_up(&line);
}

static void codes_above_the_last_of_a_dialect_are_refused(void **state)
{
    static const struct {
        enum mu_dialect legacy;
        const char *opening;
        unsigned first_bad;
    } rows[] = {
        { MU_DIALECT_L, "00 CE F7 85 3C", 0x13 },
        { MU_DIALECT_L, "06", 0x0C },
        { MU_DIALECT_L1, "06", 0x0C },
        { MU_DIALECT_L0, "06", 0x09 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        for (unsigned code = 0; code <= 0xFF; code++) {
            const char byte = (char)code;
            struct line line;
            bool bad;

            line_init(&line, &roomy, rows[i].legacy);
            assert_int_equal(feed_wire(&line, rows[i].opening), MU_CODEC_MORE);
            bad = feed(&line, mu_slice(&byte, 1), 0) == MU_CODEC_BAD;
            assert_int_equal(bad, code >= rows[i].first_bad || (code == 0 && line.codec.dialect == MU_DIALECT_V));
            hang_up(&line);
        }
    }
}

/* ---- 1.13 or 2.1 ---- */

static void codes_00_to_06_leave_it_open(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed_wire(&line, "06 00 (k) (v) 01 (k) (a) (b) 02 (k) 03 (k) #1 04 #0 05 #0"), MU_CODEC_MORE);
    assert_int_equal(line.codec.dialect, MU_DIALECT_L);
    hang_up(&line);
}

static void code_07_is_a_watch_when_it_comes_first(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed_wire(&line, "07 (/wk)"), MU_CODEC_MORE);
    assert_string_equal(line.words.text, "WATCH_KEY '/wk'");
    assert_int_equal(line.codec.dialect, MU_DIALECT_L0);
    assert_int_equal(feed_wire(&line, "07 (/x) 08 (/y)"), MU_CODEC_MORE); /* sticky: no grace for the 08 */
    assert_string_equal(line.words.text, "WATCH_KEY '/wk'; WATCH_KEY '/x'; DELETE_KEY '/y'");
    hang_up(&line);
}

static void code_07_is_a_delete_after_any_request(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed_wire(&line, "03 (init/) #1 07 (/k)"), MU_CODEC_MORE);
    assert_string_equal(line.words.text, "ADD 'init/' 1; DELETE_KEY '/k'");
    assert_int_equal(line.codec.dialect, MU_DIALECT_L1);
    assert_int_equal(feed_wire(&line, "08 (/k)"), MU_CODEC_MORE); /* sticky: an APPEND that is not whole yet */
    assert_int_equal(feed_wire(&line, "(w)"), MU_CODEC_MORE);
    assert_string_equal(line.words.text, "ADD 'init/' 1; DELETE_KEY '/k'; APPEND '/k' 'w'");
    hang_up(&line);
}

static void codes_09_to_0B_are_2_1_for_good(void **state)
{
    static const struct row rows[] = {
        { "09 #1 (a)", "MULTI_GET ['a']; DELETE_KEY 'k'" },
        { "0A #1 (a) (b)", "MULTI_SET ['a'='b']; DELETE_KEY 'k'" },
        { "0B", "CANCEL_WAIT; DELETE_KEY 'k'" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct line line;

        line_init(&line, &roomy, MU_DIALECT_L);
        assert_int_equal(feed_wire(&line, rows[i].bytes), MU_CODEC_MORE);
        assert_int_equal(line.codec.dialect, MU_DIALECT_L1);
        assert_int_equal(feed_wire(&line, "07 (k)"), MU_CODEC_MORE);
        assert_string_equal(line.words.text, rows[i].words);
        hang_up(&line);
    }
}

static void code_08_with_a_byte_behind_its_key_is_an_append(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed_wire(&line, "08 (/k) 01"), MU_CODEC_MORE);
    assert_int_equal(line.codec.dialect, MU_DIALECT_L1);
    assert_int_equal(line.codec.grace_until_ms, 0);
    assert_int_equal(feed_wire(&line, "00 00 00 00 00 00 00 'w'"), MU_CODEC_MORE);
    assert_string_equal(line.words.text, "APPEND '/k' 'w'");
    hang_up(&line);
}

static void code_08_followed_by_silence_is_a_delete_when_the_grace_is_over(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed(&line, wire(MU_DIALECT_L, "06 08 (/k)"), 5000), MU_CODEC_GRACE);
    assert_true(line.codec.grace_until_ms == 5000 + MU_GRACE_MS);
    assert_int_equal(feed(&line, mu_slice("", 0), 5050), MU_CODEC_GRACE); /* looking again prolongs nothing */
    assert_true(line.codec.grace_until_ms == 5000 + MU_GRACE_MS);
    mu_codec_grace_over(&line.codec);
    assert_int_equal(feed(&line, mu_slice("", 0), 5100), MU_CODEC_MORE);
    assert_string_equal(line.words.text, "NUM_KEYS; DELETE_KEY '/k'");
    assert_int_equal(line.codec.dialect, MU_DIALECT_L0);
    assert_true(line.codec.grace_until_ms == 0);
    assert_int_equal(feed_wire(&line, "08 (/k) 07 (/w)"), MU_CODEC_MORE);
    assert_string_equal(line.words.text, "NUM_KEYS; DELETE_KEY '/k'; DELETE_KEY '/k'; WATCH_KEY '/w'");
    hang_up(&line);
}

static void a_byte_within_the_grace_makes_it_an_append_after_all(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed(&line, wire(MU_DIALECT_L, "08 (/k)"), 1), MU_CODEC_GRACE);
    assert_int_equal(feed(&line, wire(MU_DIALECT_L, "(w) 06"), 100), MU_CODEC_MORE);
    assert_string_equal(line.words.text, "APPEND '/k' 'w'; NUM_KEYS");
    assert_int_equal(line.codec.dialect, MU_DIALECT_L1);
    assert_true(line.codec.grace_until_ms == 0);
    hang_up(&line);
}

static void a_code_08_whose_key_is_not_whole_has_no_grace_yet(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L);
    assert_int_equal(feed_wire(&line, "08 #2 '/'"), MU_CODEC_MORE);
    assert_true(line.codec.grace_until_ms == 0);
    hang_up(&line);
}

static void the_override_settles_it_from_the_start(void **state)
{
    struct line line;

    (void)state;
    line_init(&line, &roomy, MU_DIALECT_L0);
    assert_int_equal(feed_wire(&line, "06 08 (/k) 07 (/w)"), MU_CODEC_MORE);
    assert_string_equal(line.words.text, "NUM_KEYS; DELETE_KEY '/k'; WATCH_KEY '/w'");
    assert_int_equal(feed_wire(&line, "0B"), MU_CODEC_BAD);
    hang_up(&line);

    line_init(&line, &roomy, MU_DIALECT_L1);
    assert_int_equal(feed_wire(&line, "07 (/k) 08 (/k)"), MU_CODEC_MORE);
    assert_int_equal(feed_wire(&line, "(w)"), MU_CODEC_MORE);
    assert_string_equal(line.words.text, "DELETE_KEY '/k'; APPEND '/k' 'w'");
    hang_up(&line);
}

static void the_override_says_nothing_of_peers_that_validate(void **state)
{
    static const enum mu_dialect legacies[] = { MU_DIALECT_L, MU_DIALECT_L0, MU_DIALECT_L1 };

    (void)state;
    for (size_t i = 0; i < COUNT(legacies); i++) {
        bool all_read;

        assert_string_equal(read_in_pieces(legacies[i], wire(MU_DIALECT_V, "00 CE F7 85 3C 0D %7"), 3, &all_read),
                            "VALIDATE; PING 7");
    }
}

/* ---- Limits ---- */

static const uint64_t absurd[] = {
    UINT64_C(1) << 31, (UINT64_C(1) << 31) + 1, UINT64_C(1) << 32, UINT64_C(1) << 62,
    UINT64_C(1) << 63, UINT64_MAX - 8,          UINT64_MAX - 1,    UINT64_MAX,
};

/* Refused as soon as the length is there, and with memory kept for none of it. */
static void absurd_lengths_and_counts_are_refused_at_once(void **state)
{
    static const char *const openings[] = {
        "SET",
        "SET (k)",
        "COMPARE_SET",
        "COMPARE_SET (k)",
        "COMPARE_SET (k) (a)",
        "GET",
        "ADD",
        "CHECK",
        "CHECK #1",
        "CHECK #2 (a)",
        "WAIT",
        "WAIT #1",
        "DELETE_KEY",
        "APPEND",
        "APPEND (k)",
        "MULTI_GET",
        "MULTI_GET #1",
        "MULTI_SET",
        "MULTI_SET #1",
        "MULTI_SET #1 (k)",
        "MULTI_SET #2 (k) (v)",
        "QUEUE_PUSH",
        "QUEUE_PUSH (k)",
        "QUEUE_POP",
        "QUEUE_LEN",
        "BARRIER",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(openings); i++) {
        for (size_t j = 0; j < COUNT(absurd); j++) {
            char wire_len[8];
            struct line line;

            line_init(&line, &roomy, MU_DIALECT_L);
            assert_int_equal(feed_wire(&line, "00 CE F7 85 3C"), MU_CODEC_MORE);
            assert_int_equal(feed_wire(&line, openings[i]), MU_CODEC_MORE);
            mu_put_u64(wire_len, absurd[j]);
            assert_int_equal(feed(&line, mu_slice(wire_len, 7), 0), MU_CODEC_MORE);
            assert_int_equal(feed(&line, mu_slice(wire_len + 7, 1), 0), MU_CODEC_BAD);
            assert_int_equal(line.err.code, MUSTER_ELIMIT);
            hang_up(&line);
        }
    }
}

static const struct muster_store_limits tight = { .key_bytes = 10, .value_bytes = 20, .keys = 3, .request_bytes = 100 };

static enum mu_codec_result result_of(const struct muster_store_limits *limits, const struct mu_buf *bytes,
                                      struct muster_error *reterr)
{
    struct line line;
    enum mu_codec_result result;

    line_init(&line, limits, MU_DIALECT_L);
    assert_int_equal(feed_wire(&line, "00 CE F7 85 3C"), MU_CODEC_MORE);
    result = feed(&line, mu_buf_slice(bytes), 0);
    if (result == MU_CODEC_MORE && line.unread.len > 0)
        fail_msg("%zu bytes were left over", line.unread.len);
    hang_up(&line);
    *reterr = line.err;
    return result;
}

static void a_key_and_a_value_may_be_as_long_as_their_limits(void **state)
{
    static const struct {
        const char *before, *after;
        size_t limit;
        const char *word;
    } rows[] = {
        { "SET", "(v)", 10, "key" },
        { "SET (k)", "", 20, "value" },
        { "COMPARE_SET", "() ()", 10, "key" },
        { "COMPARE_SET (k)", "(d)", 20, "value" },
        { "COMPARE_SET (k) (e)", "", 20, "value" },
        { "GET", "", 10, "key" },
        { "ADD", "#1", 10, "key" },
        { "CHECK #1", "", 10, "key" },
        { "WAIT #2 (a)", "", 10, "key" },
        { "DELETE_KEY", "", 10, "key" },
        { "APPEND", "(v)", 10, "key" },
        { "APPEND (k)", "", 20, "value" },
        { "MULTI_GET #1", "", 10, "key" },
        { "MULTI_SET #1", "(v)", 10, "key" },
        { "MULTI_SET #1 (k)", "", 20, "value" },
        { "QUEUE_PUSH (k)", "", 20, "value" },
        { "QUEUE_POP", "", 10, "key" },
        { "BARRIER", "#2", 10, "key" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        for (size_t over = 0; over < 2; over++) {
            struct mu_buf bytes = { 0 };
            struct muster_error err;

            wire_put(&bytes, MU_DIALECT_V, rows[i].before);
            wire_put_str(&bytes, 'x', rows[i].limit + over);
            wire_put(&bytes, MU_DIALECT_V, rows[i].after);
            assert_int_equal(result_of(&tight, &bytes, &err), over ? MU_CODEC_BAD : MU_CODEC_MORE);
            if (over) {
                assert_int_equal(err.code, MUSTER_ELIMIT);
                assert_non_null(strstr(err.text, rows[i].word));
            }
            mu_buf_done(&bytes);
        }
    }
}

static void a_request_may_have_as_many_keys_as_the_limit(void **state)
{
    static const struct {
        const char *text;
        enum mu_codec_result result;
    } rows[] = {
        { "CHECK #3 (a) (b) (c)", MU_CODEC_MORE },
        { "CHECK #4", MU_CODEC_BAD },
        { "WAIT #3 (a) (b) (c)", MU_CODEC_MORE },
        { "WAIT #4", MU_CODEC_BAD },
        { "MULTI_GET #3 (a) (b) (c)", MU_CODEC_MORE },
        { "MULTI_GET #4", MU_CODEC_BAD },
        { "MULTI_SET #3 (a) () (b) () (c) ()", MU_CODEC_MORE },
        { "MULTI_SET #4", MU_CODEC_BAD },
        { "MULTI_SET #-1", MU_CODEC_BAD },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_buf bytes = { 0 };
        struct muster_error err;

        wire_put(&bytes, MU_DIALECT_V, rows[i].text);
        assert_int_equal(result_of(&tight, &bytes, &err), rows[i].result);
        mu_buf_done(&bytes);
    }
}

/* 1 + 8 + 3 * (8 + 8 + ..) bytes: the values are within their limit, their sum is not. */
static void a_request_may_be_as_long_as_its_limit(void **state)
{
    (void)state;
    for (size_t over = 0; over < 2; over++) {
        struct mu_buf bytes = { 0 };
        struct muster_error err;

        wire_put(&bytes, MU_DIALECT_V, "MULTI_SET #3 (a)");
        wire_put_str(&bytes, 'x', 20);
        wire_put(&bytes, MU_DIALECT_V, "(b)");
        wire_put_str(&bytes, 'x', 17);
        wire_put(&bytes, MU_DIALECT_V, "()");
        wire_put_str(&bytes, 'x', 4 + over);
        assert_int_equal(bytes.len, 100 + over);
        assert_int_equal(result_of(&tight, &bytes, &err), over ? MU_CODEC_BAD : MU_CODEC_MORE);
        mu_buf_done(&bytes);
    }
}

/* Reading again from the start at each byte would take hours. */
static void a_wait_of_131072_keys_may_come_byte_by_byte(void **state)
{
    struct mu_codec codec;
    struct mu_buf bytes = { 0 };
    struct mu_request request;
    struct muster_error err;
    struct mu_slice key;
    uint64_t count = 0;
    size_t used = 0;

    (void)state;
    wire_put(&bytes, MU_DIALECT_L, "WAIT #131072");
    for (int i = 0; i < 131072; i++)
        wire_put_str(&bytes, (char)('a' + i % 26), (size_t)i % 9);
    mu_codec_init(&codec, &roomy, MU_DIALECT_L);
    for (size_t len = 1; len < bytes.len; len++)
        assert_int_equal(mu_codec_next(&codec, mu_slice(bytes.data, len), 0, &request, &used, &err), MU_CODEC_MORE);
    assert_int_equal(mu_codec_next(&codec, mu_buf_slice(&bytes), 0, &request, &used, &err), MU_CODEC_REQUEST);
    assert_int_equal(used, bytes.len);
    while (mu_request_next(&request.list, &key, NULL))
        assert_int_equal(key.len, count++ % 9);
    assert_true(count == 131072);
    mu_buf_done(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_captured_request_of_1_13_is_read),
        cmocka_unit_test(every_request_of_2_1_is_read),
        cmocka_unit_test(every_request_of_2_2_and_newer_is_read),
        cmocka_unit_test(requests_have_the_codes_of_their_dialect),
        cmocka_unit_test(dialects_are_chosen_by_name),
        cmocka_unit_test(a_first_byte_above_0B_is_not_pytorch),
        cmocka_unit_test(http_and_tls_are_called_what_they_are),
        cmocka_unit_test(a_first_byte_from_01_to_0B_is_an_L_peer),
        cmocka_unit_test(the_magic_decides_at_its_last_byte_and_not_before),
        cmocka_unit_test(the_first_byte_that_is_not_the_magics_makes_it_an_L_set),
        cmocka_unit_test(a_key_of_206_bytes_is_not_taken_for_the_magic),
        cmocka_unit_test(validate_and_what_follows_may_share_a_segment),
        cmocka_unit_test(a_second_validate_is_refused),
        cmocka_unit_test(codes_above_the_last_of_a_dialect_are_refused),
        cmocka_unit_test(codes_00_to_06_leave_it_open),
        cmocka_unit_test(code_07_is_a_watch_when_it_comes_first),
        cmocka_unit_test(code_07_is_a_delete_after_any_request),
        cmocka_unit_test(codes_09_to_0B_are_2_1_for_good),
        cmocka_unit_test(code_08_with_a_byte_behind_its_key_is_an_append),
        cmocka_unit_test(code_08_followed_by_silence_is_a_delete_when_the_grace_is_over),
        cmocka_unit_test(a_byte_within_the_grace_makes_it_an_append_after_all),
        cmocka_unit_test(a_code_08_whose_key_is_not_whole_has_no_grace_yet),
        cmocka_unit_test(the_override_settles_it_from_the_start),
        cmocka_unit_test(the_override_says_nothing_of_peers_that_validate),
        cmocka_unit_test(absurd_lengths_and_counts_are_refused_at_once),
        cmocka_unit_test(a_key_and_a_value_may_be_as_long_as_their_limits),
        cmocka_unit_test(a_request_may_have_as_many_keys_as_the_limit),
        cmocka_unit_test(a_request_may_be_as_long_as_its_limit),
        cmocka_unit_test(a_wait_of_131072_keys_may_come_byte_by_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
