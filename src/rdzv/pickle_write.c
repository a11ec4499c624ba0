/* Writing does what CPython's pickler does, byte by byte, so that our documents are as small as PyTorch's own. */
#include "rdzv/pickle_parts.h"

#include <stdlib.h>

enum {
    STATE_LEN_MAX = 1024, /* everything but members */
    MEMBER_LEN_MAX =
        128, /* without the name: once in full, three times by reference, its share of batches and frames */
};

#define NOT_YET UINT32_MAX

struct encoder { /* writes into room that was measured before */
    uint8_t *at, *frame, *frame_full;
    uint32_t memo_count;
    uint32_t state_module, time_module, zone; /* in the memo, or NOT_YET */
    uint32_t classes[CLASSES_COUNT];
    uint32_t attributes[ATTRIBUTES_COUNT];
    uint32_t *nodes; /* by member */
    const struct mu_doc *doc;
};

static inline void put(struct encoder *e, unsigned byte)
{
    *e->at++ = (uint8_t)byte;
}

static void frame_open(struct encoder *e)
{
    e->frame = e->at;
    e->at += FRAME_HEADER_LEN;
    e->frame_full = e->at + FRAME_LEN;
}

static void frame_close(struct encoder *e)
{
    e->frame[0] = OP_FRAME;
    mu_put_u64(e->frame + 1, (uint64_t)(e->at - e->frame - FRAME_HEADER_LEN));
}

/* Before each value: a full frame ends here. */
static inline void begin(struct encoder *e)
{
    if (e->at < e->frame_full)
        return;
    frame_close(e);
    frame_open(e);
}

static inline uint32_t memoize(struct encoder *e)
{
    put(e, OP_MEMOIZE);
    return e->memo_count++;
}

static inline void put_op(struct encoder *e, enum opcode opcode)
{
    begin(e);
    put(e, opcode);
}

static void put_ref(struct encoder *e, uint32_t index)
{
    begin(e);
    if (index < 256) {
        put(e, OP_BINGET);
        put(e, index);
    } else {
        put(e, OP_LONG_BINGET);
        mu_put_u32(e->at, index);
        e->at += 4;
    }
}

static uint32_t put_text(struct encoder *e, struct mu_slice text)
{
    begin(e);
    if (text.len < 256) {
        put(e, OP_SHORT_BINUNICODE);
        put(e, (unsigned)text.len);
    } else {
        put(e, OP_BINUNICODE);
        mu_put_u32(e->at, (uint32_t)text.len);
        e->at += 4;
    }
    memcpy(e->at, text.data, text.len);
    e->at += text.len;
    return memoize(e);
}

static void put_text_once(struct encoder *e, struct mu_slice text, uint32_t *index)
{
    if (*index == NOT_YET)
        *index = put_text(e, text);
    else
        put_ref(e, *index);
}

static void put_attribute(struct encoder *e, enum attribute attribute)
{
    put_text_once(e, attribute_names[attribute], &e->attributes[attribute]);
}

static void put_long1(struct encoder *e, int64_t number)
{
    int64_t sign = number < 0 ? -1 : 0;
    unsigned len = 8;

    while (len > 1 && number >> (8 * len - 9) == sign) /* the top byte says nothing but the sign */
        len--;
    put(e, OP_LONG1);
    put(e, len);
    for (unsigned i = 0; i < len; i++)
        put(e, (unsigned)((uint64_t)number >> 8 * i & 0xff));
}

static void put_int(struct encoder *e, int64_t number)
{
    begin(e);
    if (number >= 0 && number <= UINT8_MAX) {
        put(e, OP_BININT1);
        put(e, (unsigned)number);
    } else if (number >= 0 && number <= UINT16_MAX) {
        put(e, OP_BININT2);
        put(e, (unsigned)number & 0xff);
        put(e, (unsigned)number >> 8);
    } else if (number >= INT32_MIN && number <= INT32_MAX) {
        put(e, OP_BININT);
        mu_put_u32(e->at, (uint32_t)number);
        e->at += 4;
    } else {
        put_long1(e, number);
    }
}

static void put_class(struct encoder *e, enum class class)
{
    if (e->classes[class] != NOT_YET) {
        put_ref(e, e->classes[class]);
        return;
    }
    begin(e);
    put_text_once(e, class_modules[class],
                  class == CLASS_STATE || class == CLASS_NODE ? &e->state_module : &e->time_module);
    (void)put_text(e, class_names[class]);
    put(e, OP_STACK_GLOBAL);
    e->classes[class] = memoize(e);
}

/* Up to where the attributes are set. */
static uint32_t put_object(struct encoder *e, enum class class)
{
    uint32_t object;

    begin(e);
    put_class(e, class);
    put_op(e, OP_EMPTY_TUPLE);
    put(e, OP_NEWOBJ);
    object = memoize(e);
    put_op(e, OP_EMPTY_DICT);
    (void)memoize(e);
    put(e, OP_MARK);
    return object;
}

static void put_object_end(struct encoder *e)
{
    put(e, OP_SETITEMS);
    put(e, OP_BUILD);
}

static void put_node(struct encoder *e, size_t member)
{
    const struct mu_node *node = &e->doc->members[member].node;

    if (e->nodes[member] != NOT_YET) {
        put_ref(e, e->nodes[member]);
        return;
    }
    e->nodes[member] = put_object(e, CLASS_NODE);
    put_attribute(e, e->doc->dialect.addr ? ATTRIBUTE_ADDR : ATTRIBUTE_FQDN);
    (void)put_text(e, node->name);
    put_attribute(e, ATTRIBUTE_PID);
    put_int(e, node->pid);
    put_attribute(e, ATTRIBUTE_LOCAL_ID);
    put_int(e, node->local_id);
    put_object_end(e);
}

/* A tuple's end, and the call with it. */
static uint32_t put_call(struct encoder *e, enum opcode tuple)
{
    put(e, tuple);
    (void)memoize(e);
    put(e, OP_REDUCE);
    return memoize(e);
}

static void put_zone(struct encoder *e)
{
    if (e->zone != NOT_YET) {
        put_ref(e, e->zone);
        return;
    }
    put_class(e, CLASS_TIMEZONE);
    put_class(e, CLASS_TIMEDELTA);
    for (int i = 0; i < 3; i++)
        put_int(e, 0);
    (void)put_call(e, OP_TUPLE3);
    e->zone = put_call(e, OP_TUPLE1);
}

static void put_time(struct encoder *e, int64_t us)
{
    put_class(e, CLASS_DATETIME);
    put_op(e, OP_SHORT_BINBYTES);
    put(e, TIME_LEN);
    mu_pickle_time_put(e->at, us);
    e->at += TIME_LEN;
    (void)memoize(e);
    if (e->doc->dialect.zoned)
        put_zone(e);
    (void)put_call(e, e->doc->dialect.zoned ? OP_TUPLE2 : OP_TUPLE1);
}

static void put_entry(struct encoder *e, size_t member, unsigned in)
{
    put_node(e, member);
    if (in == MU_DOC_PARTICIPANT)
        put_int(e, e->doc->members[member].rank);
    if (in == MU_DOC_HEARTBEAT)
        put_time(e, e->doc->members[member].heartbeat_us);
}

/* All that are in it, by the thousand. As in CPython a full batch is followed by another, even if it is empty. */
static void put_batches(struct encoder *e, unsigned in, enum opcode end)
{
    size_t member = 0, batch;

    do {
        put(e, OP_MARK);
        for (batch = 0; batch < BATCH && member < e->doc->count; member++)
            if (e->doc->members[member].in & in) {
                put_entry(e, member, in);
                batch++;
            }
        put(e, end);
    } while (batch == BATCH);
}

static void put_field(struct encoder *e, enum attribute attribute, unsigned in)
{
    bool is_map = in == MU_DOC_PARTICIPANT || in == MU_DOC_HEARTBEAT;
    size_t count = 0, last = 0;

    for (size_t i = 0; i < e->doc->count; i++)
        if (e->doc->members[i].in & in) {
            count++;
            last = i;
        }
    put_attribute(e, attribute);
    put_op(e, is_map ? OP_EMPTY_DICT : OP_EMPTY_SET);
    (void)memoize(e);
    if (count == 1 && is_map) {
        put_entry(e, last, in);
        put(e, OP_SETITEM);
    } else if (count > 0) {
        put_batches(e, in, is_map ? OP_SETITEMS : OP_ADDITEMS);
    }
}

static void put_bool(struct encoder *e, enum attribute attribute, bool value)
{
    put_attribute(e, attribute);
    put_op(e, value ? OP_NEWTRUE : OP_NEWFALSE);
}

static void put_document(struct encoder *e)
{
    put(e, OP_PROTO);
    put(e, PROTOCOL_WRITTEN);
    frame_open(e);
    (void)put_object(e, CLASS_STATE);
    put_attribute(e, ATTRIBUTE_ROUND);
    put_int(e, e->doc->round);
    put_bool(e, ATTRIBUTE_COMPLETE, e->doc->complete);
    put_attribute(e, ATTRIBUTE_DEADLINE);
    if (e->doc->has_deadline)
        put_time(e, e->doc->deadline_us);
    else
        put_op(e, OP_NONE);
    put_bool(e, ATTRIBUTE_CLOSED, e->doc->closed);
    put_field(e, ATTRIBUTE_PARTICIPANTS, MU_DOC_PARTICIPANT);
    put_field(e, ATTRIBUTE_WAIT_LIST, MU_DOC_WAITING);
    if (e->doc->dialect.spares)
        put_field(e, ATTRIBUTE_REDUNDANCY_LIST, MU_DOC_SPARE);
    put_field(e, ATTRIBUTE_LAST_HEARTBEATS, MU_DOC_HEARTBEAT);
    put_object_end(e);
    put(e, OP_STOP);
    frame_close(e);
}

int mu_pickle_encode(const struct mu_doc *doc, struct mu_buf *out)
{
    struct encoder e = { .doc = doc, .state_module = NOT_YET, .time_module = NOT_YET, .zone = NOT_YET };
    size_t names_len = 0, len;
    int rc;

    for (size_t i = 0; i < doc->count; i++)
        names_len += doc->members[i].node.name.len;
    if (names_len > MU_PICKLE_BYTES_MAX)
        return MUSTER_ELIMIT;
    e.nodes = malloc((doc->count + 1) * sizeof *e.nodes);
    if (e.nodes == NULL)
        return MUSTER_ENOMEM;
    memset(e.nodes, 0xff, doc->count * sizeof *e.nodes);
    memset(e.classes, 0xff, sizeof e.classes);
    memset(e.attributes, 0xff, sizeof e.attributes);
    rc = mu_buf_reserve(out, STATE_LEN_MAX + doc->count * MEMBER_LEN_MAX + names_len, SIZE_MAX);
    if (rc == 0) {
        e.at = (uint8_t *)out->data + out->len;
        put_document(&e);
        len = (size_t)(e.at - (uint8_t *)out->data) - out->len;
        if (len > MU_PICKLE_BYTES_MAX || e.memo_count > MU_PICKLE_MEMO_MAX)
            rc = MUSTER_ELIMIT; /* nobody of ours could read it */
        else
            out->len += len;
    }
    free(e.nodes);
    return rc;
}
