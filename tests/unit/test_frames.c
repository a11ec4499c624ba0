/* Frames: each one comes back as it was written, and nothing that is no frame is taken for one. */
#include "failmalloc.h"
#include "pure.h"
#include "store/frames.h"

#include <stdio.h>

#define OUT_MAX (64u << 20)

static const struct mu_engine_compare compares[] = {
    { MU_ENGINE_IF_ABSENT, { "job/closed", 10 }, 0 },
    { MU_ENGINE_IF_MOD, { "job/doc", 7 }, 0x10000000007 },
};
static const struct mu_engine_op then[] = {
    { MU_ENGINE_PUT, { "job/doc", 7 }, { "{\0}", 3 }, 0xfedcba9876543210 },
    { MU_ENGINE_DELETE_PREFIX, { "seat/", 5 }, { "", 0 }, 0 },
};
static const struct mu_engine_op otherwise[] = { { MU_ENGINE_DELETE, { "x", 1 }, { "", 0 }, 0 } };
static const struct mu_engine_kv kvs[] = {
    { { "a", 1 }, { "", 0 }, 5, 6, 7 },
    { { "b", 1 }, { "value", 5 }, INT64_MAX, INT64_MAX, UINT64_MAX },
};
static const struct mu_engine_change changes[] = {
    { .kv = { { "a", 1 }, { "v", 1 }, 5, 6, 7 } },
    { .kv = { .key = { "b", 1 }, .mod = 9 }, .deleted = true, .end = MU_ENGINE_SILENT, .ago_ms = 5000 },
};

static const struct mu_frame frames[] = {
    { .type = MU_FRAME_HELLO,
      .id = 1,
      .version_min = 1,
      .version_max = 3,
      .run_id = { "job", 3 },
      .node = { "n1", 2 } },
    { .type = MU_FRAME_ATTACH, .id = 2, .lease = UINT64_MAX },
    { .type = MU_FRAME_GRANT,
      .id = 3,
      .lease = 9,
      .ttl_ms = 5000,
      .bound = true,
      .secret = { "0123456789abcdef", 16 } },
    { .type = MU_FRAME_KEEP, .id = 4, .lease = 9 },
    { .type = MU_FRAME_REVOKE, .id = 5, .lease = 9, .secret = { "0123456789abcdef", 16 } },
    { .type = MU_FRAME_REVOKE, .id = 6, .lease = 9, .mark = { MU_ENGINE_PUT, { "n/1", 3 }, { "v", 1 }, 8 } },
    { .type = MU_FRAME_LOAD, .id = 6, .watch = 1, .key = { "job/", 4 } },
    { .type = MU_FRAME_UNWATCH, .id = 7, .watch = 1 },
    { .type = MU_FRAME_RANGE, .id = 8, .prefix = true, .limit = 64, .key = { "seat/", 5 } },
    { .type = MU_FRAME_TXN,
      .id = 9,
      .txn = { .id = 9,
               .compares = compares,
               .then = then,
               .otherwise = otherwise,
               .compares_count = COUNT(compares),
               .then_count = COUNT(then),
               .otherwise_count = COUNT(otherwise) } },
    { .type = MU_FRAME_WELCOME,
      .id = 1,
      .version = 1,
      .epoch = 77,
      .revision = 1,
      .run_id = { "job", 3 },
      .node = { "host", 4 },
      .your_addr = { "10.0.0.7", 8 },
      .my_addr = { "10.0.0.1", 8 },
      .moved = true },
    { .type = MU_FRAME_DONE,
      .id = 9,
      .code = 5,
      .held = true,
      .revision = 12,
      .last = 8,
      .text = { "no such lease", 13 } },
    { .type = MU_FRAME_KVS, .id = 8, .more = true, .revision = 12, .kvs = kvs, .kvs_count = COUNT(kvs) },
    { .type = MU_FRAME_EVENTS, .watch = 1, .revision = 12, .changes = changes, .changes_count = COUNT(changes) },
    { .type = MU_FRAME_STALE, .watch = 1 },
    { .type = MU_FRAME_CHALLENGE, .id = 1, .nonce = { "0123456789abcdef0123456789abcdef", 32 } },
};

static int written(const struct mu_frame *frame, struct mu_buf *out)
{
    return mu_frame_write(frame, out, OUT_MAX);
}

static int read_back(struct mu_slice bytes, struct mu_arena *arena, struct mu_frame *ret_frame,
                     struct muster_error *reterr)
{
    /* A block of its own, so that ASan sees what is read behind the end. */
    char *copy = malloc(bytes.len + 1);
    int rc;

    memcpy(copy, bytes.data, bytes.len);
    copy = realloc(copy, bytes.len > 0 ? bytes.len : 1);
    rc = mu_frame_read(mu_slice(copy, bytes.len), arena, ret_frame, reterr);
    if (rc == 0) { /* and what was read says the same */
        struct mu_buf again = { 0 };

        assert_int_equal(written(ret_frame, &again), 0);
        assert_true(mu_slice_equal(mu_buf_slice(&again), bytes));
        mu_buf_done(&again);
    }
    free(copy);
    return rc;
}

static void every_frame_comes_back(void **state)
{
    bool seen[MU_FRAMES_COUNT] = { false };

    (void)state;
    for (size_t i = 0; i < COUNT(frames); i++) {
        struct mu_arena arena = { 0 };
        struct mu_buf out = { 0 };
        struct mu_frame frame;

        assert_int_equal(written(&frames[i], &out), 0);
        assert_int_equal(mu_frame_length(mu_buf_slice(&out)), out.len);
        assert_int_equal(read_back(mu_buf_slice(&out), &arena, &frame, NULL), 0);
        assert_int_equal(frame.type, frames[i].type);
        assert_int_equal(frame.id, frames[i].id);
        seen[frame.type] = true;
        mu_buf_done(&out);
        mu_arena_done(&arena);
    }
    for (size_t i = 0; i < MU_FRAMES_COUNT; i++)
        assert_true(seen[i]);
}

static void the_highest_version_that_both_know_is_spoken(void **state)
{
    (void)state;
    assert_int_equal(mu_frame_version(MU_FRAME_VERSION - 1), MU_FRAME_VERSION - 1);
    assert_int_equal(mu_frame_version(MU_FRAME_VERSION), MU_FRAME_VERSION);
    assert_int_equal(mu_frame_version(MU_FRAME_VERSION + 1), MU_FRAME_VERSION);
}

static void the_bytes_are_these(void **state)
{
    static const char grant[] = "\x2c\0\0\0\x03\0\0\0\x03\0\0\0"
                                "\x09\0\0\0\0\0\0\0\x88\x13\0\0\x01\0\0\0\x10\0\0\0"
                                "0123456789abcdef";
    struct mu_buf out = { 0 };

    (void)state;
    assert_int_equal(written(&frames[2], &out), 0);
    assert_int_equal(out.len, sizeof grant - 1);
    assert_memory_equal(out.data, grant, out.len);
    mu_buf_done(&out);
}

static void a_frame_cut_at_any_byte_is_none(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(frames); i++) {
        struct mu_buf out = { 0 };

        assert_int_equal(written(&frames[i], &out), 0);
        for (size_t len = 0; len < out.len; len++) {
            struct mu_arena arena = { 0 };
            struct mu_frame frame;
            struct muster_error error;

            if (len >= 4) /* as if that were its length */
                mu_put_u32(out.data, (uint32_t)len - 4);
            assert_int_equal(read_back(mu_slice(out.data, len), &arena, &frame, &error), MUSTER_EPROTOCOL);
            assert_int_not_equal(error.text[0], '\0');
            mu_arena_done(&arena);
        }
        mu_buf_done(&out);
    }
}

/* Every u32 of every frame, whatever it means, made large: no crash, no large allocation, and what is accepted is
 * written again byte for byte. */
static void wrong_lengths_and_counts_are_refused(void **state)
{
    static const uint32_t numbers[] = { 0, 1, 2, 9, 4097, 1u << 17, (1u << 20) + 1, 1u << 24, INT32_MAX, UINT32_MAX };

    (void)state;
    for (size_t i = 0; i < COUNT(frames); i++) {
        struct mu_buf out = { 0 };

        assert_int_equal(written(&frames[i], &out), 0);
        for (size_t at = 0; at + 4 <= out.len; at++) {
            uint32_t before = mu_get_u32(out.data + at);

            for (size_t n = 0; n < COUNT(numbers); n++) {
                struct mu_arena arena = { .bytes_max = 64 * out.len + 4096 };
                struct mu_frame frame;

                mu_put_u32(out.data + at, numbers[n]);
                (void)read_back(mu_buf_slice(&out), &arena, &frame, NULL);
                mu_arena_done(&arena);
            }
            mu_put_u32(out.data + at, before);
        }
        mu_buf_done(&out);
    }
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        size_t at;
        unsigned char byte;
        const char *text;
    } rows[] = {
        /* of a GRANT */
        { 4, 0, "a frame of the unknown type 0" },
        { 4, 200, "a frame of the unknown type 200" },
        { 6, 1, "the frame GRANT: its reserved bytes are not 0" },
        { 24, 2, "the frame GRANT: bound" },
        { 28, 17, "the frame GRANT: secret" },
        { 28, 15, "the frame GRANT: bytes behind its end" },
        { 0, 0x29, "a frame of 48 bytes" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_buf out = { 0 };
        struct mu_arena arena = { 0 };
        struct muster_error error;
        struct mu_frame frame;

        assert_int_equal(written(&frames[2], &out), 0);
        out.data[rows[i].at] = (char)rows[i].byte;
        assert_int_equal(mu_frame_read(mu_buf_slice(&out), &arena, &frame, &error), MUSTER_EPROTOCOL);
        assert_string_equal(error.text, rows[i].text);
        mu_buf_done(&out);
    }
}

static void a_frame_that_is_too_large_is_not_written(void **state)
{
    static char value[MU_ENGINE_VALUE_MAX];
    struct mu_engine_op puts[5];
    struct mu_frame frame = { .type = MU_FRAME_TXN, .id = 1, .txn = { .then = puts, .then_count = COUNT(puts) } };
    struct mu_buf out = { 0 };

    (void)state;
    for (size_t i = 0; i < COUNT(puts); i++)
        puts[i] = (struct mu_engine_op){ MU_ENGINE_PUT, { "key", 3 }, { value, sizeof value }, 0 };
    assert_int_equal(mu_buf_append(&out, "before", 6, OUT_MAX), 0);
    assert_int_equal(written(&frame, &out), MUSTER_ELIMIT);
    assert_int_equal(out.len, 6);
    frame.txn.then_count = 3;
    assert_int_equal(written(&frame, &out), 0);
    assert_int_equal(mu_frame_write(&frames[0], &out, out.len + 5), MUSTER_ELIMIT);
    frame = (struct mu_frame){ .type = MU_FRAME_LOAD, .key = { value, MU_ENGINE_KEY_MAX + 1 } };
    assert_int_equal(written(&frame, &out), MUSTER_ELIMIT);
    frame = (struct mu_frame){ .type = MU_FRAME_TXN, .txn = { .then = puts, .then_count = MU_ENGINE_OPS_MAX + 1 } };
    assert_int_equal(written(&frame, &out), MUSTER_ELIMIT);
    mu_buf_done(&out);
}

static void failing_memory_is_told(void **state)
{
    struct mu_buf out = { 0 };

    (void)state;
    assert_int_equal(written(&frames[8], &out), 0);
    FOR_EACH_FAILURE (n) {
        struct mu_arena arena = { 0 };
        struct mu_buf copy = { 0 };
        struct mu_frame frame;
        int rc = mu_frame_read(mu_buf_slice(&out), &arena, &frame, NULL);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        if (rc == 0) {
            rc = written(&frames[8], &copy);
            assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        }
        mu_buf_done(&copy);
        mu_arena_done(&arena);
    }
    mu_buf_done(&out);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_frame_comes_back),
        cmocka_unit_test(the_highest_version_that_both_know_is_spoken),
        cmocka_unit_test(the_bytes_are_these),
        cmocka_unit_test(a_frame_cut_at_any_byte_is_none),
        cmocka_unit_test(wrong_lengths_and_counts_are_refused),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_frame_that_is_too_large_is_not_written),
        cmocka_unit_test(failing_memory_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
