/* See frames.h. Each type has one function, which reads or writes its fields in order: so both directions cannot
 * differ. */
#include "store/frames.h"

#include "base/texts.h"

#include <assert.h>

MU_DEFINE_TEXTS(mu_frame_type_text, enum mu_frame_type, MU_FRAMES)

enum { U32_BYTES = 4, U64_BYTES = 8, KV_BYTES_MIN = 3 * U64_BYTES + 2 * U32_BYTES };

/* Over the fields of a frame, in one direction. The first error stays, and nothing more is read or written. */
struct fields {
    struct mu_slice left;   /* reading: what is left of the frame */
    struct mu_arena *arena; /* reading: for lists */
    struct mu_buf *out;     /* writing; NULL: reading */
    size_t len_max;
    int rc;
    const char *wrong; /* reading: the field */
};

/* ---- Fields ---- */

static void fail_at(struct fields *f, const char *name)
{
    if (f->rc == 0) {
        f->rc = MUSTER_EPROTOCOL;
        f->wrong = name;
    }
}

static void write_bytes(struct fields *f, const void *data, size_t len)
{
    if (f->rc == 0)
        f->rc = mu_buf_append(f->out, data, len, f->len_max);
}

/* The next so many bytes; NULL: they are not there. */
static const char *take(struct fields *f, size_t len, const char *name)
{
    const char *at = f->left.data;

    if (f->rc == 0 && f->left.len < len)
        fail_at(f, name);
    if (f->rc != 0)
        return NULL;
    f->left = mu_slice(at + len, f->left.len - len);
    return at;
}

static void u32(struct fields *f, uint32_t *value, const char *name)
{
    char bytes[U32_BYTES];

    if (f->out != NULL) {
        mu_put_u32(bytes, *value);
        write_bytes(f, bytes, sizeof bytes);
    } else {
        const char *at = take(f, sizeof bytes, name);

        *value = at != NULL ? mu_get_u32(at) : 0;
    }
}

static void u64(struct fields *f, uint64_t *value, const char *name)
{
    char bytes[U64_BYTES];

    if (f->out != NULL) {
        mu_put_u64(bytes, *value);
        write_bytes(f, bytes, sizeof bytes);
    } else {
        const char *at = take(f, sizeof bytes, name);

        *value = at != NULL ? mu_get_u64(at) : 0;
    }
}

static void revision(struct fields *f, int64_t *value, const char *name)
{
    uint64_t number = (uint64_t)*value;

    u64(f, &number, name);
    if (number > INT64_MAX)
        fail_at(f, name);
    else
        *value = (int64_t)number;
}

static void flag(struct fields *f, bool *value, const char *name)
{
    uint32_t number = *value;

    u32(f, &number, name);
    if (number > 1)
        fail_at(f, name);
    *value = number == 1;
}

static void bytes_up_to(struct fields *f, struct mu_slice *value, size_t len_max, const char *name)
{
    uint32_t len = (uint32_t)value->len;

    if (f->out != NULL && value->len > len_max && f->rc == 0)
        f->rc = MUSTER_ELIMIT;
    u32(f, &len, name);
    if (f->out != NULL) {
        write_bytes(f, value->data, value->len);
        return;
    }
    if (len > len_max)
        fail_at(f, name);
    *value = mu_slice(take(f, len, name), len);
    if (f->rc != 0)
        *value = mu_slice("", 0);
}

/* How many items a list has, and reading: memory for them. An item takes so many bytes at least. */
static void *list(struct fields *f, size_t *count, size_t count_max, size_t item_bytes, size_t size, const char *name)
{
    uint32_t number = (uint32_t)*count;
    void *items;

    if (f->out != NULL && *count > count_max && f->rc == 0)
        f->rc = MUSTER_ELIMIT;
    u32(f, &number, name);
    if (f->out != NULL)
        return NULL;
    if (number > count_max || number > f->left.len / item_bytes)
        fail_at(f, name);
    *count = f->rc == 0 ? number : 0;
    if (*count == 0)
        return NULL;
    items = mu_arena_alloc(f->arena, *count * size);
    if (items == NULL) {
        f->rc = MUSTER_ENOMEM;
        *count = 0;
        return NULL;
    }
    memset(items, 0, *count * size);
    return items;
}

/* ---- Items of lists ---- */

static void compare(struct fields *f, struct mu_engine_compare *c)
{
    uint32_t kind = (uint32_t)c->kind;

    u32(f, &kind, "a compare's kind");
    if (kind >= MU_ENGINE_COMPARES_COUNT)
        fail_at(f, "a compare's kind");
    else
        c->kind = (enum mu_engine_compare_kind)kind;
    revision(f, &c->revision, "a compare's revision");
    bytes_up_to(f, &c->key, MU_ENGINE_KEY_MAX, "a compare's key");
}

static void op(struct fields *f, struct mu_engine_op *o)
{
    uint32_t kind = (uint32_t)o->kind;

    u32(f, &kind, "an operation's kind");
    if (kind >= MU_ENGINE_OPS_COUNT)
        fail_at(f, "an operation's kind");
    else
        o->kind = (enum mu_engine_op_kind)kind;
    u64(f, &o->lease, "an operation's lease");
    bytes_up_to(f, &o->key, MU_ENGINE_KEY_MAX, "an operation's key");
    bytes_up_to(f, &o->value, MU_ENGINE_VALUE_MAX, "an operation's value");
}

static void kv(struct fields *f, struct mu_engine_kv *k)
{
    revision(f, &k->create, "a key's create revision");
    revision(f, &k->mod, "a key's revision");
    u64(f, &k->lease, "a key's lease");
    bytes_up_to(f, &k->key, MU_ENGINE_KEY_MAX, "a key");
    bytes_up_to(f, &k->value, MU_ENGINE_VALUE_MAX, "a key's value");
}

static void change(struct fields *f, struct mu_engine_change *c)
{
    uint32_t kind = c->deleted ? 1 + (uint32_t)c->end : 0;

    u32(f, &kind, "a change's kind");
    if (kind > MU_ENGINE_ENDS_COUNT)
        fail_at(f, "a change's kind");
    else if (kind > 0)
        c->end = (enum mu_engine_end)(kind - 1);
    c->deleted = kind > 0;
    u64(f, &c->ago_ms, "a change's time");
    kv(f, &c->kv);
}

/* Lists are read into the arena, and written from where they are. */
#define DEFINE_LIST(function, type, item, count_max, item_bytes_min, name)                                             \
    static void function(struct fields *f, const type **items, size_t *count)                                          \
    {                                                                                                                  \
        type *to = list(f, count, count_max, item_bytes_min, sizeof *to, name);                                        \
                                                                                                                       \
        for (size_t i = 0; i < *count && f->rc == 0; i++) {                                                            \
            type one = { 0 };                                                                                          \
                                                                                                                       \
            if (to == NULL)                                                                                            \
                one = (*items)[i];                                                                                     \
            item(f, &one);                                                                                             \
            if (to != NULL)                                                                                            \
                to[i] = one;                                                                                           \
        }                                                                                                              \
        if (f->out == NULL)                                                                                            \
            *items = to;                                                                                               \
    }

DEFINE_LIST(compares, struct mu_engine_compare, compare, MU_ENGINE_COMPARES_MAX, 2 * U32_BYTES + U64_BYTES, "compares")
DEFINE_LIST(ops, struct mu_engine_op, op, MU_ENGINE_OPS_MAX, 3 * U32_BYTES + U64_BYTES, "operations")
DEFINE_LIST(kvs, struct mu_engine_kv, kv, MU_FRAME_KVS_MAX, KV_BYTES_MIN, "keys")
DEFINE_LIST(changes, struct mu_engine_change, change, MU_FRAME_KVS_MAX, KV_BYTES_MIN + U32_BYTES + U64_BYTES, "changes")

/* ---- Frames ---- */

static void hello(struct fields *f, struct mu_frame *frame)
{
    u32(f, &frame->version_min, "version_min");
    u32(f, &frame->version_max, "version_max");
    bytes_up_to(f, &frame->run_id, MU_ENGINE_RUN_ID_MAX, "run_id");
    bytes_up_to(f, &frame->node, MU_FRAME_TEXT_MAX, "node");
    bytes_up_to(f, &frame->proof, MU_FRAME_TEXT_MAX, "proof");
    flag(f, &frame->only, "only");
}

static void lease(struct fields *f, struct mu_frame *frame)
{
    u64(f, &frame->lease, "lease");
}

static void grant(struct fields *f, struct mu_frame *frame)
{
    u64(f, &frame->lease, "lease");
    u32(f, &frame->ttl_ms, "ttl_ms");
    flag(f, &frame->bound, "bound");
    bytes_up_to(f, &frame->secret, MU_ENGINE_SECRET_BYTES, "secret");
}

static void revoke(struct fields *f, struct mu_frame *frame)
{
    u64(f, &frame->lease, "lease");
    bytes_up_to(f, &frame->secret, MU_ENGINE_SECRET_BYTES, "secret");
    u64(f, &frame->mark.lease, "mark's lease");
    bytes_up_to(f, &frame->mark.key, MU_ENGINE_KEY_MAX, "mark's key");
    bytes_up_to(f, &frame->mark.value, MU_FRAME_TEXT_MAX, "mark");
}

static void load(struct fields *f, struct mu_frame *frame)
{
    u32(f, &frame->watch, "watch");
    bytes_up_to(f, &frame->key, MU_ENGINE_KEY_MAX, "key");
}

static void watch(struct fields *f, struct mu_frame *frame)
{
    u32(f, &frame->watch, "watch");
}

static void range(struct fields *f, struct mu_frame *frame)
{
    flag(f, &frame->prefix, "prefix");
    u32(f, &frame->limit, "limit");
    bytes_up_to(f, &frame->key, MU_ENGINE_KEY_MAX, "key");
}

static void txn(struct fields *f, struct mu_frame *frame)
{
    frame->txn.id = frame->id;
    compares(f, &frame->txn.compares, &frame->txn.compares_count);
    ops(f, &frame->txn.then, &frame->txn.then_count);
    ops(f, &frame->txn.otherwise, &frame->txn.otherwise_count);
}

static void welcome(struct fields *f, struct mu_frame *frame)
{
    u32(f, &frame->version, "version");
    u64(f, &frame->epoch, "epoch");
    revision(f, &frame->revision, "revision");
    bytes_up_to(f, &frame->run_id, MU_ENGINE_RUN_ID_MAX, "run_id");
    bytes_up_to(f, &frame->node, MU_FRAME_TEXT_MAX, "node");
    bytes_up_to(f, &frame->your_addr, MU_FRAME_TEXT_MAX, "your_addr");
    bytes_up_to(f, &frame->my_addr, MU_FRAME_TEXT_MAX, "my_addr");
    flag(f, &frame->moved, "moved");
}

static void done(struct fields *f, struct mu_frame *frame)
{
    u32(f, &frame->code, "code");
    flag(f, &frame->held, "held");
    revision(f, &frame->revision, "revision");
    u32(f, &frame->last, "last");
    bytes_up_to(f, &frame->text, MU_FRAME_TEXT_MAX, "text");
}

static void found(struct fields *f, struct mu_frame *frame)
{
    flag(f, &frame->more, "more");
    revision(f, &frame->revision, "revision");
    kvs(f, &frame->kvs, &frame->kvs_count);
}

static void events(struct fields *f, struct mu_frame *frame)
{
    u32(f, &frame->watch, "watch");
    revision(f, &frame->revision, "revision");
    changes(f, &frame->changes, &frame->changes_count);
}

static void challenge(struct fields *f, struct mu_frame *frame)
{
    bytes_up_to(f, &frame->nonce, MU_FRAME_TEXT_MAX, "nonce");
}

static void (*const all_fields[MU_FRAMES_COUNT])(struct fields *f, struct mu_frame *frame) = {
    [MU_FRAME_HELLO] = hello,     [MU_FRAME_ATTACH] = lease,  [MU_FRAME_GRANT] = grant,
    [MU_FRAME_KEEP] = lease,      [MU_FRAME_REVOKE] = revoke, [MU_FRAME_LOAD] = load,
    [MU_FRAME_UNWATCH] = watch,   [MU_FRAME_RANGE] = range,   [MU_FRAME_TXN] = txn,
    [MU_FRAME_WELCOME] = welcome, [MU_FRAME_DONE] = done,     [MU_FRAME_KVS] = found,
    [MU_FRAME_EVENTS] = events,   [MU_FRAME_STALE] = watch,   [MU_FRAME_CHALLENGE] = challenge,
};

size_t mu_frame_length(struct mu_slice bytes)
{
    return bytes.len < U32_BYTES ? 0 : (size_t)mu_get_u32(bytes.data) + U32_BYTES;
}

/* The head: length, type, two fields that are 0, id. */
static int read_head(struct mu_slice bytes, struct mu_frame *frame, struct muster_error *reterr)
{
    unsigned type;

    if (bytes.len < MU_FRAME_HEAD_BYTES || bytes.len > MU_FRAME_BYTES_MAX || mu_frame_length(bytes) != bytes.len)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "a frame of %zu bytes", bytes.len);
    type = (unsigned char)bytes.data[4];
    if (type == 0 || type > MU_FRAMES_COUNT)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "a frame of the unknown type %u", type);
    frame->type = (enum mu_frame_type)(type - 1);
    frame->id = mu_get_u32(bytes.data + 8);
    if (bytes.data[5] != 0 || bytes.data[6] != 0 || bytes.data[7] != 0)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "the frame %s: its reserved bytes are not 0",
                       mu_frame_type_text(frame->type));
    return 0;
}

int mu_frame_read(struct mu_slice bytes, struct mu_arena *arena, struct mu_frame *ret_frame,
                  struct muster_error *reterr)
{
    struct mu_frame frame = { 0 };
    struct fields f = { .arena = arena };
    int rc = read_head(bytes, &frame, reterr);

    if (rc < 0)
        return rc;
    f.left = mu_slice(bytes.data + MU_FRAME_HEAD_BYTES, bytes.len - MU_FRAME_HEAD_BYTES);
    all_fields[frame.type](&f, &frame);
    if (f.rc == 0 && f.left.len > 0)
        fail_at(&f, "bytes behind its end");
    if (f.rc == MUSTER_ENOMEM)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the frame %s", mu_frame_type_text(frame.type));
    if (f.rc < 0)
        return mu_fail(reterr, f.rc, "the frame %s: %s", mu_frame_type_text(frame.type), f.wrong);
    *ret_frame = frame;
    return 0;
}

int mu_frame_write(const struct mu_frame *frame, struct mu_buf *out, size_t len_max)
{
    size_t start = out->len;
    char head[MU_FRAME_HEAD_BYTES] = { 0 };
    struct mu_frame copy = *frame; /* lists are not changed */
    struct fields f = { .out = out,
                        .len_max = len_max < start + MU_FRAME_BYTES_MAX ? len_max : start + MU_FRAME_BYTES_MAX };

    assert(frame->type < MU_FRAMES_COUNT);
    head[4] = (char)(frame->type + 1);
    mu_put_u32(head + 8, frame->id);
    write_bytes(&f, head, sizeof head);
    all_fields[frame->type](&f, &copy);
    if (f.rc < 0) {
        out->len = start;
        return f.rc;
    }
    mu_put_u32(out->data + start, (uint32_t)(out->len - start - U32_BYTES));
    return 0;
}

size_t mu_frame_kv_bytes(const struct mu_engine_kv *one)
{
    return KV_BYTES_MIN + one->key.len + one->value.len;
}
