/* Requests off the wire. A request is a code byte and then the fields its row of MU_OPS names; `pos` walks over them
 * one length, number or run of bytes at a time and never backwards. A length or count is checked against the limits
 * when it is read, before memory is taken for it. */
#include "store/codec.h"

#include "base/buf.h"
#include "base/error.h"
#include "base/texts.h"

#include <assert.h>
#include <inttypes.h>

enum { CODE_L_LAST = 0x0B, MAGIC_BYTES = 4 };

static const char *const op_fields[] = {
#define X(name, l0, l1, v, fields) [MU_OP_##name] = (fields),
    MU_OPS(X)
#undef X
};

const char *mu_op_fields(enum mu_op op)
{
    return op_fields[op];
}

const char *mu_op_name(enum mu_op op)
{
    static const char *const names[] = {
#define X(name, l0, l1, v, fields) [MU_OP_##name] = #name,
        MU_OPS(X)
#undef X
    };

    return names[op];
}

MU_DEFINE_TEXTS(mu_dialect_name, enum mu_dialect, MU_DIALECTS)

bool mu_dialect_parse(const char *text, enum mu_dialect *ret_dialect)
{
    static const enum mu_dialect named[] = { MU_DIALECT_L0, MU_DIALECT_L1, MU_DIALECT_V };

    if (text == NULL || strcmp(text, "auto") == 0) {
        *ret_dialect = MU_DIALECT_UNKNOWN;
        return true;
    }
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (strcmp(text, mu_dialect_name(named[i])) == 0) {
            *ret_dialect = named[i];
            return true;
        }
    }
    return false;
}

int mu_op_code(enum mu_op op, enum mu_dialect dialect)
{
    static const struct {
        int l0, l1, v;
    } codes[] = {
#define X(name, l0_, l1_, v_, fields) [MU_OP_##name] = { .l0 = (l0_), .l1 = (l1_), .v = (v_) },
        MU_OPS(X)
#undef X
    };

    switch (dialect) {
    case MU_DIALECT_V:
        return codes[op].v;
    case MU_DIALECT_L1:
        return codes[op].l1;
    case MU_DIALECT_L0:
        return codes[op].l0;
    case MU_DIALECT_L: /* what both have under one code */
        return codes[op].l0 == codes[op].l1 ? codes[op].l0 : -1;
    case MU_DIALECT_UNKNOWN:
        break;
    }
    return -1;
}

void mu_codec_init(struct mu_codec *codec, const struct muster_store_limits *limits, enum mu_dialect legacy)
{
    assert(legacy == MU_DIALECT_L || legacy == MU_DIALECT_L0 || legacy == MU_DIALECT_L1);
    *codec = (struct mu_codec){ .limits = limits, .legacy = legacy };
}

static enum mu_codec_result bad_opening(unsigned first, struct muster_error *reterr)
{
    const char *guess = first == 0x16 ? " (TLS?)" : first >= 0x20 && first <= 0x7e ? " (text, HTTP perhaps?)" : "";

    (void)mu_fail(reterr, MUSTER_EPROTOCOL, "not a store client: the connection opens with byte %02x%s", first, guess);
    return MU_CODEC_BAD;
}

/* Which dialect the opening bytes belong to; MORE while they fit several. */
static enum mu_codec_result detect(struct mu_codec *codec, struct mu_slice in, struct muster_error *reterr)
{
    unsigned char magic[MAGIC_BYTES];
    unsigned first = (unsigned char)in.data[0];

    if (first > CODE_L_LAST)
        return bad_opening(first, reterr);
    if (first != 0) {
        codec->dialect = codec->legacy;
        return MU_CODEC_REQUEST;
    }
    mu_put_u32(magic, MU_MAGIC);
    for (size_t i = 0; i < MAGIC_BYTES && i + 1 < in.len; i++) {
        if ((unsigned char)in.data[i + 1] != magic[i]) {
            codec->dialect = codec->legacy; /* an L peer's SET */
            return MU_CODEC_REQUEST;
        }
    }
    if (in.len <= MAGIC_BYTES)
        return MU_CODEC_MORE;
    codec->dialect = MU_DIALECT_V;
    return MU_CODEC_REQUEST;
}

static const enum mu_op *ops_of(enum mu_dialect dialect, size_t *ret_count)
{
    static const enum mu_op l0[] = { MU_OP_SET,  MU_OP_COMPARE_SET, MU_OP_GET,       MU_OP_ADD,       MU_OP_CHECK,
                                     MU_OP_WAIT, MU_OP_NUM_KEYS,    MU_OP_WATCH_KEY, MU_OP_DELETE_KEY };
    static const enum mu_op v[] = { MU_OP_VALIDATE,    MU_OP_SET,       MU_OP_COMPARE_SET, MU_OP_GET,
                                    MU_OP_ADD,         MU_OP_CHECK,     MU_OP_WAIT,        MU_OP_NUM_KEYS,
                                    MU_OP_DELETE_KEY,  MU_OP_APPEND,    MU_OP_MULTI_GET,   MU_OP_MULTI_SET,
                                    MU_OP_CANCEL_WAIT, MU_OP_PING,      MU_OP_QUEUE_PUSH,  MU_OP_QUEUE_POP,
                                    MU_OP_QUEUE_LEN,   MU_OP_LIST_KEYS, MU_OP_BARRIER };

    switch (dialect) {
    case MU_DIALECT_V:
        *ret_count = sizeof v / sizeof v[0];
        return v;
    case MU_DIALECT_L1: /* the same without VALIDATE, and without what came later */
        *ret_count = CODE_L_LAST + 1;
        return v + 1;
    case MU_DIALECT_L0:
    case MU_DIALECT_L:
    case MU_DIALECT_UNKNOWN:
        break;
    }
    *ret_count = sizeof l0 / sizeof l0[0];
    return l0;
}

/* An undecided L peer shows what it is by a code above 06. Code 08 alone may need a look past its key. */
static void settle_legacy(struct mu_codec *codec, unsigned code)
{
    if (code >= 0x09)
        codec->dialect = MU_DIALECT_L1;
    else if (code == 0x07)
        codec->dialect = codec->any_request ? MU_DIALECT_L1 : MU_DIALECT_L0;
}

static enum mu_codec_result begin(struct mu_codec *codec, struct mu_slice in, struct muster_error *reterr)
{
    unsigned code = (unsigned char)in.data[0];
    const enum mu_op *ops;
    size_t count;

    if (codec->dialect == MU_DIALECT_UNKNOWN) {
        enum mu_codec_result result = detect(codec, in, reterr);

        if (result != MU_CODEC_REQUEST)
            return result;
    } else if (codec->dialect == MU_DIALECT_V && code == 0) {
        (void)mu_fail(reterr, MUSTER_EPROTOCOL, "a second VALIDATE");
        return MU_CODEC_BAD;
    }
    if (codec->dialect == MU_DIALECT_L)
        settle_legacy(codec, code);
    ops = ops_of(codec->dialect, &count);
    if (code >= count) {
        (void)mu_fail(reterr, MUSTER_EPROTOCOL, "no request has code %02x in dialect %s", code,
                      mu_dialect_name(codec->dialect));
        return MU_CODEC_BAD;
    }
    codec->op = ops[code];
    codec->field = 0;
    codec->pos = 1;
    codec->in_list = codec->in_pair = false;
    codec->in_request = true;
    return MU_CODEC_REQUEST;
}

/* Is a run of `len` bytes, claimed at `pos`, within its own limit and the request's? */
static bool within(const struct mu_codec *codec, uint64_t len, bool is_key, struct muster_error *reterr)
{
    uint64_t max = is_key ? codec->limits->key_bytes : codec->limits->value_bytes;

    if (len > max) {
        (void)mu_fail(reterr, MUSTER_ELIMIT, "%s with a %s of %" PRIu64 " bytes; the limit is %" PRIu64,
                      mu_op_name(codec->op), is_key ? "key" : "value", len, max);
        return false;
    }
    if (codec->pos + 8 + len > codec->limits->request_bytes) {
        (void)mu_fail(reterr, MUSTER_ELIMIT, "%s of more than %" PRIu64 " bytes, which is the limit of a request",
                      mu_op_name(codec->op), codec->limits->request_bytes);
        return false;
    }
    return true;
}

/* Reads one string at `pos`. Its bytes are understood only together with its length. */
static enum mu_codec_result read_string(struct mu_codec *codec, struct mu_slice in, bool is_key, size_t *ret_at,
                                        size_t *ret_len, struct muster_error *reterr)
{
    uint64_t len;

    if (in.len - codec->pos < 8)
        return MU_CODEC_MORE;
    len = mu_get_u64(in.data + codec->pos);
    if (!within(codec, len, is_key, reterr))
        return MU_CODEC_BAD;
    if (in.len - codec->pos - 8 < len)
        return MU_CODEC_MORE;
    *ret_at = codec->pos + 8;
    *ret_len = (size_t)len;
    codec->pos += 8 + (size_t)len;
    return MU_CODEC_REQUEST;
}

static enum mu_codec_result read_number(struct mu_codec *codec, struct mu_slice in, size_t bytes)
{
    if (in.len - codec->pos < bytes)
        return MU_CODEC_MORE;
    codec->number = bytes == 4 ? (int64_t)mu_get_u32(in.data + codec->pos) : (int64_t)mu_get_u64(in.data + codec->pos);
    codec->pos += bytes;
    return MU_CODEC_REQUEST;
}

static enum mu_codec_result read_items(struct mu_codec *codec, struct mu_slice in, bool pairs,
                                       struct muster_error *reterr)
{
    if (!codec->in_list) {
        if (in.len - codec->pos < 8)
            return MU_CODEC_MORE;
        codec->count = codec->items_left = mu_get_u64(in.data + codec->pos);
        if (codec->count > codec->limits->keys) {
            (void)mu_fail(reterr, MUSTER_ELIMIT, "%s with %" PRIu64 " keys; the limit is %" PRIu64,
                          mu_op_name(codec->op), codec->count, codec->limits->keys);
            return MU_CODEC_BAD;
        }
        codec->pos += 8;
        codec->found[codec->field].at = codec->pos;
        codec->in_list = true;
    }
    while (codec->items_left > 0) {
        size_t at, len;
        enum mu_codec_result result = read_string(codec, in, !codec->in_pair, &at, &len, reterr);

        if (result != MU_CODEC_REQUEST)
            return result;
        codec->in_pair = pairs && !codec->in_pair;
        if (!codec->in_pair)
            codec->items_left--;
    }
    codec->found[codec->field].len = codec->pos - codec->found[codec->field].at;
    codec->in_list = false;
    return MU_CODEC_REQUEST;
}

static enum mu_codec_result read_field(struct mu_codec *codec, struct mu_slice in, char kind,
                                       struct muster_error *reterr)
{
    switch (kind) {
    case 'k':
    case 'v':
        return read_string(codec, in, kind == 'k', &codec->found[codec->field].at, &codec->found[codec->field].len,
                           reterr);
    case 'n':
        return read_number(codec, in, 8);
    case 'u':
        return read_number(codec, in, 4);
    default:
        assert(kind == 'l' || kind == 'p');
        return read_items(codec, in, kind == 'p', reterr);
    }
}

/* An undecided peer's code 08 has its key. A byte behind it makes it L1's APPEND, silence L0's DELETE_KEY. */
static enum mu_codec_result look_past_key(struct mu_codec *codec, struct mu_slice in, uint64_t now_ms)
{
    if (in.len > codec->pos) {
        codec->dialect = MU_DIALECT_L1;
        codec->op = MU_OP_APPEND;
        codec->grace_until_ms = 0;
        return MU_CODEC_REQUEST;
    }
    if (codec->grace_until_ms == 0)
        codec->grace_until_ms = now_ms + MU_GRACE_MS;
    return MU_CODEC_GRACE;
}

void mu_codec_grace_over(struct mu_codec *codec)
{
    assert(codec->dialect == MU_DIALECT_L && codec->grace_until_ms != 0);
    codec->dialect = MU_DIALECT_L0;
    codec->grace_until_ms = 0;
}

static struct mu_slice found(const struct mu_codec *codec, struct mu_slice in, unsigned field)
{
    return mu_slice(in.data + codec->found[field].at, codec->found[field].len);
}

static void finish(struct mu_codec *codec, struct mu_slice in, struct mu_request *ret_request)
{
    const char *fields = op_fields[codec->op];

    *ret_request = (struct mu_request){ .op = codec->op, .number = codec->number };
    for (unsigned i = 0; fields[i] != '\0'; i++) {
        if (fields[i] == 'k') {
            ret_request->key = found(codec, in, i);
        } else if (fields[i] == 'v' && i == 2) {
            ret_request->desired = found(codec, in, i);
        } else if (fields[i] == 'v') {
            ret_request->value = found(codec, in, i);
        } else if (fields[i] == 'l' || fields[i] == 'p') {
            ret_request->list = found(codec, in, i);
            ret_request->count = codec->count;
        }
    }
    codec->in_request = false;
    codec->any_request = true;
}

enum mu_codec_result mu_codec_next(struct mu_codec *codec, struct mu_slice in, uint64_t now_ms,
                                   struct mu_request *ret_request, size_t *ret_used, struct muster_error *reterr)
{
    enum mu_codec_result result;

    if (in.len == 0)
        return MU_CODEC_MORE;
    if (!codec->in_request) {
        result = begin(codec, in, reterr);
        if (result != MU_CODEC_REQUEST)
            return result;
    }
    while (op_fields[codec->op][codec->field] != '\0') {
        result = read_field(codec, in, op_fields[codec->op][codec->field], reterr);
        if (result != MU_CODEC_REQUEST)
            return result;
        codec->field++;
        if (codec->dialect == MU_DIALECT_L && codec->op == MU_OP_DELETE_KEY) {
            result = look_past_key(codec, in, now_ms);
            if (result != MU_CODEC_REQUEST) {
                codec->field--; /* the key is read again once it is clear whose it is */
                codec->pos = 1;
                return result;
            }
        }
    }
    finish(codec, in, ret_request);
    *ret_used = codec->pos;
    return MU_CODEC_REQUEST;
}

bool mu_request_next(struct mu_slice *list, struct mu_slice *ret_key, struct mu_slice *ret_value_or_null)
{
    struct mu_slice *out[] = { ret_key, ret_value_or_null };

    if (list->len == 0)
        return false;
    for (size_t i = 0; i < 2 && out[i] != NULL; i++) {
        size_t len = (size_t)mu_get_u64(list->data);

        *out[i] = mu_slice(list->data + 8, len);
        *list = mu_slice(list->data + 8 + len, list->len - 8 - len);
    }
    return true;
}
