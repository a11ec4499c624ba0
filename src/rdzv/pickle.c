/* The document as a pickle.
 *
 * Reading is a stack machine without recursion. What it can hold is so narrow that nothing in it can contain itself: a
 * tuple is only ever the arguments of one of the five calls below and is judged when it is packed; a dict is, from its
 * first key on, the attributes of a node, the attributes of the state, or a map from nodes to ranks or to times; a set
 * or list has nodes in it. Nodes, dicts, sets and lists are positions in arrays, so that the memo shares them as Python
 * does. All entries of all maps and sets stand in one array in the order they came, each with the container it belongs
 * to; the fields of the state pick theirs at the end.
 *
 * Writing does what CPython's pickler does, byte by byte, so that our documents are as small as PyTorch's own. */
#include "rdzv/pickle.h"

#include "base/utf8.h"
#include "rdzv/rdzv.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PROTOCOL_MIN = 3,
    PROTOCOL_MAX = 5,
    PROTOCOL_SETS_BY_CALL = 3, /* later ones have opcodes for sets */
    PROTOCOL_WRITTEN = 4,
    TIME_LEN = 10,
    GLOBAL_LINE_MAX = 256,
    SHOWN_MAX = 64,   /* bytes of a foreign name in an error's text */
    DETAIL_MAX = 256, /* of an error's text */
    BATCH = 1000,     /* entries between MARK and SETITEMS or ADDITEMS */
    FRAME_LEN = 65536,
    FRAME_HEADER_LEN = 9,
};

/* Stacked values, nodes, containers and entries are each bounded like the memo. */
#define THINGS_MAX MU_PICKLE_MEMO_MAX

enum opcode {
    OP_PROTO = 0x80,
    OP_FRAME = 0x95,
    OP_STOP = 0x2e,
    OP_MARK = 0x28,
    OP_NONE = 0x4e,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_BININT1 = 0x4b,
    OP_BININT2 = 0x4d,
    OP_BININT = 0x4a,
    OP_LONG1 = 0x8a,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE = 0x58,
    OP_SHORT_BINBYTES = 0x43,
    OP_BINBYTES = 0x42,
    OP_EMPTY_DICT = 0x7d,
    OP_EMPTY_LIST = 0x5d,
    OP_EMPTY_SET = 0x8f,
    OP_EMPTY_TUPLE = 0x29,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_SETITEM = 0x73,
    OP_SETITEMS = 0x75,
    OP_APPEND = 0x61,
    OP_APPENDS = 0x65,
    OP_ADDITEMS = 0x90,
    OP_STACK_GLOBAL = 0x93,
    OP_GLOBAL = 0x63,
    OP_NEWOBJ = 0x81,
    OP_REDUCE = 0x52,
    OP_BUILD = 0x62,
    OP_MEMOIZE = 0x94,
    OP_BINPUT = 0x71,
    OP_LONG_BINPUT = 0x72,
    OP_BINGET = 0x68,
    OP_LONG_BINGET = 0x6a,
};

#define STATE_MODULE "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

#define CLASSES(X)                                                                                                     \
    X(STATE, STATE_MODULE, "_RendezvousState")                                                                         \
    X(NODE, STATE_MODULE, "_NodeDesc")                                                                                 \
    X(DATETIME, "datetime", "datetime")                                                                                \
    X(TIMEZONE, "datetime", "timezone")                                                                                \
    X(TIMEDELTA, "datetime", "timedelta")                                                                              \
    X(SET, "builtins", "set")

enum class {
#define X(name, module, class) CLASS_##name,
    CLASSES(X)
#undef X
};

/* Of a node, then of the state, in the order they are written. */
#define ATTRIBUTES(X)                                                                                                  \
    X(FQDN, "fqdn")                                                                                                    \
    X(ADDR, "addr")                                                                                                    \
    X(PID, "pid")                                                                                                      \
    X(LOCAL_ID, "local_id")                                                                                            \
    X(ROUND, "round")                                                                                                  \
    X(COMPLETE, "complete")                                                                                            \
    X(DEADLINE, "deadline")                                                                                            \
    X(CLOSED, "closed")                                                                                                \
    X(PARTICIPANTS, "participants")                                                                                    \
    X(WAIT_LIST, "wait_list")                                                                                          \
    X(REDUNDANCY_LIST, "redundancy_list")                                                                              \
    X(LAST_HEARTBEATS, "last_heartbeats")

enum attribute {
#define X(name, text) ATTRIBUTE_##name,
    ATTRIBUTES(X)
#undef X
};

enum {
    CLASSES_COUNT = CLASS_SET + 1,
    ATTRIBUTES_COUNT = ATTRIBUTE_LAST_HEARTBEATS + 1,
    ATTRIBUTES_OF_STATE = ATTRIBUTE_ROUND, /* the first of them */
};

static const struct mu_slice class_modules[] = {
#define X(name, module, class) [CLASS_##name] = { (module), sizeof(module) - 1 },
    CLASSES(X)
#undef X
};

static const struct mu_slice class_names[] = {
#define X(name, module, class) [CLASS_##name] = { (class), sizeof(class) - 1 },
    CLASSES(X)
#undef X
};

static const struct mu_slice attribute_names[] = {
#define X(name, text) [ATTRIBUTE_##name] = { (text), sizeof(text) - 1 },
    ATTRIBUTES(X)
#undef X
};

/* ---- Times: microseconds since 1970, and Python's ten bytes ---- */

#define SECOND_US INT64_C(1000000)
#define DAY_US (INT64_C(86400) * SECOND_US)
#define DAYS_TO_1970 719162                         /* from 0001-01-01 */
#define TIME_MIN_US (-DAYS_TO_1970 * DAY_US)        /* 0001-01-01 00:00:00 */
#define TIME_MAX_US (INT64_C(2932897) * DAY_US - 1) /* 9999-12-31 23:59:59.999999 */

static const uint16_t days_before[2][13] = {
    { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365 },
    { 0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335, 366 },
};

static bool is_leap(unsigned year)
{
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

static unsigned days_before_year(unsigned year) /* since 0001-01-01 */
{
    unsigned before = year - 1;

    return before * 365 + before / 4 - before / 100 + before / 400;
}

static bool time_get(const uint8_t bytes[static TIME_LEN], int64_t *ret_us)
{
    unsigned year = (unsigned)bytes[0] << 8 | bytes[1];
    unsigned month = bytes[2] & 0x7f; /* the top bit says which of two equal local times it is; UTC has none */
    unsigned day = bytes[3], hour = bytes[4], minute = bytes[5], second = bytes[6];
    unsigned us = (unsigned)bytes[7] << 16 | (unsigned)bytes[8] << 8 | bytes[9];
    const uint16_t *before = days_before[is_leap(year)];
    int64_t days;

    if (year < 1 || year > 9999 || month < 1 || month > 12 || day < 1)
        return false;
    if (day > (unsigned)(before[month] - before[month - 1]) || hour > 23 || minute > 59 || second > 59 || us > 999999)
        return false;
    days = (int64_t)days_before_year(year) + before[month - 1] + day - 1 - DAYS_TO_1970;
    *ret_us = days * DAY_US + ((hour * 60 + minute) * INT64_C(60) + second) * SECOND_US + us;
    return true;
}

/* Times that Python has no date for are written as the first or last that it has. */
static void time_put(uint8_t bytes[static TIME_LEN], int64_t us)
{
    uint64_t since = (uint64_t)((us < TIME_MIN_US ? TIME_MIN_US : us > TIME_MAX_US ? TIME_MAX_US : us) - TIME_MIN_US);
    unsigned days = (unsigned)(since / DAY_US), year = days / 366 + 1, month = 1;
    unsigned seconds = (unsigned)(since % DAY_US / SECOND_US), rest = (unsigned)(since % SECOND_US);
    const uint16_t *before;

    year += (days - days_before_year(year)) / 366; /* two guesses from below leave at most a year */
    while (days >= days_before_year(year + 1))
        year++;
    days -= days_before_year(year);
    before = days_before[is_leap(year)];
    while (days >= before[month])
        month++;
    bytes[0] = (uint8_t)(year >> 8);
    bytes[1] = (uint8_t)year;
    bytes[2] = (uint8_t)month;
    bytes[3] = (uint8_t)(days - before[month - 1] + 1);
    bytes[4] = (uint8_t)(seconds / 3600);
    bytes[5] = (uint8_t)(seconds / 60 % 60);
    bytes[6] = (uint8_t)(seconds % 60);
    bytes[7] = (uint8_t)(rest >> 16);
    bytes[8] = (uint8_t)(rest >> 8);
    bytes[9] = (uint8_t)rest;
}

/* ---- Reading: what is on the stack ---- */

#define KINDS(X)                                                                                                       \
    X(ABSENT, "nothing")                                                                                               \
    X(NONE, "None")                                                                                                    \
    X(BOOL, "a boolean")                                                                                               \
    X(INT, "an integer")                                                                                               \
    X(TEXT, "a text")                                                                                                  \
    X(BYTES, "bytes")                                                                                                  \
    X(CLASS, "a class")                                                                                                \
    X(EMPTY_TUPLE, "an empty tuple")                                                                                   \
    X(ARGS_NAIVE, "a tuple")  /* (bytes) */                                                                            \
    X(ARGS_ZONED, "a tuple")  /* (bytes, zone) */                                                                      \
    X(ARGS_ZEROS, "a tuple")  /* (0, 0, 0) */                                                                          \
    X(ARGS_OFFSET, "a tuple") /* (timedelta) */                                                                        \
    X(ARGS_LIST, "a tuple")   /* (list) */                                                                             \
    X(TIME, "a time")                                                                                                  \
    X(OFFSET, "a timedelta")                                                                                           \
    X(ZONE, "a timezone")                                                                                              \
    X(DICT, "a dict")                                                                                                  \
    X(SET, "a set")                                                                                                    \
    X(LIST, "a list")                                                                                                  \
    X(NODE, "a node")                                                                                                  \
    X(STATE, "a state")

enum kind {
#define X(name, text) KIND_##name,
    KINDS(X)
#undef X
};

static const char *const kind_texts[] = {
#define X(name, text) text,
    KINDS(X)
#undef X
};

struct value {
    uint32_t kind;
    uint32_t len; /* of TEXT, BYTES and times that are still bytes */
    union {
        int64_t number; /* BOOL, INT; microseconds of TIME */
        const uint8_t *bytes;
        enum class class;
        size_t index; /* of a container or node */
    };
};

struct node {
    const uint8_t *name;
    uint32_t name_len;
    uint32_t member; /* in the document, once it is there */
    int64_t pid, local_id;
    bool built;
};

#define NO_MEMBER UINT32_MAX

enum holds { HOLDS_NOTHING, HOLDS_NODE, HOLDS_STATE, HOLDS_RANKS, HOLDS_TIMES, HOLDS_NODES };
enum { HAS_NAME = 1, HAS_PID = 2, HAS_LOCAL_ID = 4, HAS_ALL = 7 };

struct container {
    enum holds holds;
    bool frozen; /* used up; a change that came now would not be seen */
    uint8_t has; /* HOLDS_NODE: which of the rest */
    uint32_t name_len;
    const uint8_t *name;
    int64_t pid, local_id;
};

struct entry {
    uint32_t container, node;
    int64_t value; /* a rank or a time */
};

struct decoder {
    const uint8_t *start, *at, *end;
    const uint8_t *opcode; /* for errors */
    struct muster_error *reterr;
    int rc;
    unsigned protocol;

    struct value *stack;
    size_t stack_count, stack_room;
    size_t marks[MU_PICKLE_DEPTH_MAX];
    size_t marks_count;
    size_t fence; /* the last mark: nothing below it can be taken */

    struct value *memo;
    size_t memo_room, memo_len, memo_filled; /* len: up to the last slot in use */

    struct node *nodes;
    size_t nodes_count, nodes_room;
    struct container *containers;
    size_t containers_count, containers_room;
    struct entry *entries;
    size_t entries_count, entries_room;

    struct value fields[ATTRIBUTES_COUNT]; /* of the state */
    bool has_fields, has_state, built;
    bool fqdn_seen, addr_seen, naive_seen, zoned_seen;
};

static bool refuse(struct decoder *d, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

static bool refuse(struct decoder *d, const char *format, ...)
{
    char detail[DETAIL_MAX];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    d->rc = mu_fail(d->reterr, MUSTER_ERDZV_STATE, "byte %zu: %s", (size_t)(d->opcode - d->start), detail);
    return false;
}

static bool refuse_memory(struct decoder *d)
{
    d->rc = mu_fail(d->reterr, MUSTER_ENOMEM, "no memory to read a document of %zu bytes", (size_t)(d->end - d->start));
    return false;
}

/* Foreign text for an error's text: printable, and not much of it. */
static const char *shown(struct mu_slice text, char out[static SHOWN_MAX + 1])
{
    size_t len = text.len < SHOWN_MAX ? text.len : SHOWN_MAX;

    for (size_t i = 0; i < len; i++) {
        char c = text.data[i];

        out[i] = '?';
        if (c >= 0x20 && c <= 0x7e)
            out[i] = c;
    }
    out[len] = '\0';
    return out;
}

/* Room for one more in a growing array; `items` points to the array's pointer. */
static bool grow(struct decoder *d, void *items, size_t *room, size_t item_size, const char *what)
{
    size_t wanted = *room == 0 ? 64 : 2 * *room;
    void *old, *grown;

    if (*room == THINGS_MAX)
        return refuse(d, "more than %zu %s", THINGS_MAX, what);
    if (wanted > THINGS_MAX)
        wanted = THINGS_MAX;
    memcpy(&old, items, sizeof old);
    grown = realloc(old, wanted * item_size);
    if (grown == NULL)
        return refuse_memory(d);
    memcpy(items, &grown, sizeof grown);
    *room = wanted;
    return true; /* cppcheck-suppress memleak ; the array's pointer has it */
}

static inline bool push(struct decoder *d, struct value value)
{
    if (d->stack_count == d->stack_room && !grow(d, &d->stack, &d->stack_room, sizeof *d->stack, "values on the stack"))
        return false;
    d->stack[d->stack_count++] = value;
    return true;
}

static inline bool push_number(struct decoder *d, enum kind kind, int64_t number)
{
    return push(d, (struct value){ .kind = kind, .number = number });
}

/* Whether so many values can be taken. */
static inline bool has(struct decoder *d, size_t count)
{
    return d->stack_count - d->fence >= count || refuse(d, "too few values on the stack");
}

static inline struct value *top(struct decoder *d)
{
    return &d->stack[d->stack_count - 1];
}

static inline bool available(struct decoder *d, size_t len)
{
    return (size_t)(d->end - d->at) >= len || refuse(d, "cut off");
}

/* ---- Reading: integers, texts, names ---- */

static bool push_long1(struct decoder *d)
{
    uint64_t number = 0;
    size_t len;

    if (!available(d, 1))
        return false;
    len = *d->at++;
    if (len > sizeof number)
        return refuse(d, "an integer of %zu bytes", len);
    if (!available(d, len))
        return false;
    for (size_t i = 0; i < len; i++)
        number |= (uint64_t)d->at[i] << 8 * i;
    if (len > 0 && len < sizeof number && (d->at[len - 1] & 0x80) != 0)
        number |= UINT64_MAX << 8 * len;
    d->at += len;
    return push_number(d, KIND_INT, (int64_t)number);
}

static bool is_utf8(const uint8_t *at, size_t left)
{
    while (left > 0) {
        size_t len = mu_utf8_len(at, left);

        if (len == 0)
            return false;
        at += len;
        left -= len;
    }
    return true;
}

/* Nearly all texts are ASCII, and most are names of more than eight bytes: two words that overlap see to the rest. */
static inline bool is_text(const uint8_t *at, size_t len)
{
    uint64_t seen = 0;
    size_t i = 0;

    if (len < sizeof seen)
        return is_utf8(at, len);
    for (; i + sizeof seen <= len; i += sizeof seen)
        seen |= mu_get_u64(at + i);
    seen |= mu_get_u64(at + len - sizeof seen);
    return (seen & UINT64_C(0x8080808080808080)) == 0 || is_utf8(at, len);
}

bool mu_pickle_takes_name(struct mu_slice name)
{
    return name.len > 0 && name.len <= MU_NODE_NAME_MAX && is_text((const uint8_t *)name.data, name.len);
}

static inline bool push_bytes(struct decoder *d, enum kind kind, size_t len_size)
{
    struct value value = { .kind = kind };

    if (!available(d, len_size))
        return false;
    value.len = len_size == 1 ? *d->at : mu_get_u32(d->at);
    d->at += len_size;
    if (!available(d, value.len))
        return false;
    value.bytes = d->at;
    d->at += value.len;
    if (kind == KIND_TEXT && !is_text(value.bytes, value.len))
        return refuse(d, "a text that is not UTF-8");
    return push(d, value);
}

static bool push_class(struct decoder *d, struct mu_slice module, struct mu_slice name)
{
    char module_shown[SHOWN_MAX + 1], name_shown[SHOWN_MAX + 1];
    unsigned class = 0;

    while (class < CLASSES_COUNT &&
           !(mu_slice_equal(name, class_names[class]) && mu_slice_equal(module, class_modules[class])))
        class ++;
    if (class == CLASSES_COUNT || (class == CLASS_SET && d->protocol != PROTOCOL_SETS_BY_CALL))
        return refuse(d, "'%s' of '%s' has no place in a document", shown(name, name_shown),
                      shown(module, module_shown));
    return push(d, (struct value){ .kind = KIND_CLASS, .class = (enum class) class });
}

static bool take_line(struct decoder *d, struct mu_slice *ret_line)
{
    size_t left = (size_t)(d->end - d->at);
    const uint8_t *newline = left == 0 ? NULL : memchr(d->at, '\n', left < GLOBAL_LINE_MAX ? left : GLOBAL_LINE_MAX);

    if (newline == NULL)
        return refuse(d, left < GLOBAL_LINE_MAX ? "cut off" : "a name that is too long");
    *ret_line = mu_slice(d->at, (size_t)(newline - d->at));
    d->at = newline + 1;
    return true;
}

static bool global(struct decoder *d)
{
    struct mu_slice module, name;

    return take_line(d, &module) && take_line(d, &name) && push_class(d, module, name);
}

static bool stack_global(struct decoder *d)
{
    struct value *args;

    if (!has(d, 2))
        return false;
    d->stack_count -= 2;
    args = &d->stack[d->stack_count];
    if (args[0].kind != KIND_TEXT || args[1].kind != KIND_TEXT)
        return refuse(d, "a class named by %s and %s", kind_texts[args[0].kind], kind_texts[args[1].kind]);
    return push_class(d, mu_slice(args[0].bytes, args[0].len), mu_slice(args[1].bytes, args[1].len));
}

/* ---- Reading: the memo ---- */

static bool memo_put_at(struct decoder *d, size_t index)
{
    if (index >= MU_PICKLE_MEMO_MAX || index >= (size_t)(d->end - d->start))
        return refuse(d, "memo slot %zu is past the limit", index);
    while (index >= d->memo_room)
        if (!grow(d, &d->memo, &d->memo_room, sizeof *d->memo, "memo slots"))
            return false;
    if (index >= d->memo_len) { /* slots that were left out stay absent */
        memset(&d->memo[d->memo_len], 0, (index + 1 - d->memo_len) * sizeof *d->memo);
        d->memo_len = index + 1;
    }
    d->memo_filled += d->memo[index].kind == KIND_ABSENT;
    d->memo[index] = *top(d);
    return true;
}

static inline bool memo_put(struct decoder *d, size_t index)
{
    if (!has(d, 1))
        return false;
    if (index != d->memo_len || index >= d->memo_room)
        return memo_put_at(d, index);
    d->memo[index] = *top(d); /* one after the other, as always */
    d->memo_len++;
    d->memo_filled++;
    return true;
}

static bool memo_get(struct decoder *d, size_t index)
{
    if (index >= d->memo_len || d->memo[index].kind == KIND_ABSENT)
        return refuse(d, "memo slot %zu was never written", index);
    return push(d, d->memo[index]);
}

/* ---- Reading: tuples, and calls with them ---- */

static bool pack(struct decoder *d, size_t count)
{
    struct value *args, tuple = { .kind = KIND_ABSENT };

    if (!has(d, count))
        return false;
    d->stack_count -= count;
    args = &d->stack[d->stack_count];
    if (count == 3) {
        bool zeros = true;

        for (size_t i = 0; i < count; i++)
            zeros = zeros && args[i].kind == KIND_INT && args[i].number == 0;
        if (zeros)
            tuple.kind = KIND_ARGS_ZEROS;
    } else if (args[0].kind == KIND_BYTES && (count == 1 || args[1].kind == KIND_ZONE)) {
        tuple = args[0];
        tuple.kind = count == 1 ? KIND_ARGS_NAIVE : KIND_ARGS_ZONED;
    } else if (count == 1 && args[0].kind == KIND_OFFSET) {
        tuple.kind = KIND_ARGS_OFFSET;
    } else if (count == 1 && args[0].kind == KIND_LIST) {
        tuple = args[0];
        tuple.kind = KIND_ARGS_LIST;
    }
    return tuple.kind == KIND_ABSENT ? refuse(d, "a tuple that begins with %s", kind_texts[args[0].kind])
                                     : push(d, tuple);
}

static bool call_datetime(struct decoder *d, struct value args)
{
    bool zoned = args.kind == KIND_ARGS_ZONED;
    int64_t us;

    if (args.len != TIME_LEN || !time_get(args.bytes, &us))
        return refuse(d, "not a date and time");
    d->zoned_seen |= zoned;
    d->naive_seen |= !zoned;
    if (d->zoned_seen && d->naive_seen)
        return refuse(d, "times with a zone and times without");
    return push_number(d, KIND_TIME, us);
}

static bool reduce(struct decoder *d)
{
    struct value class, args;

    if (!has(d, 2))
        return false;
    args = *top(d);
    class = d->stack[d->stack_count - 2];
    d->stack_count -= 2;
    if (class.kind != KIND_CLASS)
        return refuse(d, "a call of %s", kind_texts[class.kind]);
    if (class.class == CLASS_DATETIME && (args.kind == KIND_ARGS_NAIVE || args.kind == KIND_ARGS_ZONED))
        return call_datetime(d, args);
    if (class.class == CLASS_TIMEZONE && args.kind == KIND_ARGS_OFFSET)
        return push_number(d, KIND_ZONE, 0);
    if (class.class == CLASS_TIMEDELTA && args.kind == KIND_ARGS_ZEROS)
        return push_number(d, KIND_OFFSET, 0);
    if (class.class == CLASS_SET && args.kind == KIND_ARGS_LIST) {
        d->containers[args.index].frozen = true;
        return push(d, (struct value){ .kind = KIND_SET, .index = args.index });
    }
    return refuse(d, "'%s' called with the wrong arguments", class_names[class.class].data);
}

static bool new_object(struct decoder *d)
{
    struct value class, args;

    if (!has(d, 2))
        return false;
    args = *top(d);
    class = d->stack[d->stack_count - 2];
    d->stack_count -= 2;
    if (class.kind != KIND_CLASS || args.kind != KIND_EMPTY_TUPLE)
        return refuse(d, "an object made of %s and %s", kind_texts[class.kind], kind_texts[args.kind]);
    if (class.class == CLASS_NODE) {
        if (d->nodes_count == d->nodes_room && !grow(d, &d->nodes, &d->nodes_room, sizeof *d->nodes, "nodes"))
            return false;
        d->nodes[d->nodes_count].built = false;
        return push(d, (struct value){ .kind = KIND_NODE, .index = d->nodes_count++ });
    }
    if (class.class != CLASS_STATE)
        return refuse(d, "an object of class '%s'", class_names[class.class].data);
    if (d->has_state)
        return refuse(d, "a second state");
    d->has_state = true;
    return push_number(d, KIND_STATE, 0);
}

/* ---- Reading: containers ---- */

static bool new_container(struct decoder *d, enum kind kind)
{
    if (d->containers_count == d->containers_room &&
        !grow(d, &d->containers, &d->containers_room, sizeof *d->containers, "containers"))
        return false;
    d->containers[d->containers_count] = (struct container){ .holds = HOLDS_NOTHING };
    return push(d, (struct value){ .kind = kind, .index = d->containers_count++ });
}

/* A container holds one kind of thing, for good. */
static bool hold(struct decoder *d, struct container *container, enum holds holds)
{
    if (container->frozen)
        return refuse(d, "a change after the last use");
    if (container->holds != HOLDS_NOTHING && container->holds != holds)
        return refuse(d, "different things in one container");
    container->holds = holds;
    return true;
}

static bool set_name(struct decoder *d, struct container *attributes, enum attribute attribute, struct value value)
{
    if (value.kind != KIND_TEXT)
        return refuse(d, "%s as a node's name", kind_texts[value.kind]);
    if (value.len == 0 || value.len > MU_NODE_NAME_MAX)
        return refuse(d, "a node's name of %u bytes", (unsigned)value.len);
    d->fqdn_seen |= attribute == ATTRIBUTE_FQDN;
    d->addr_seen |= attribute == ATTRIBUTE_ADDR;
    if (d->fqdn_seen && d->addr_seen)
        return refuse(d, "nodes with 'fqdn' and nodes with 'addr'");
    attributes->name = value.bytes;
    attributes->name_len = value.len;
    attributes->has |= HAS_NAME;
    return true;
}

static bool set_of_node(struct decoder *d, struct container *attributes, enum attribute attribute, struct value value)
{
    if (!hold(d, attributes, HOLDS_NODE))
        return false;
    if (attribute == ATTRIBUTE_FQDN || attribute == ATTRIBUTE_ADDR)
        return set_name(d, attributes, attribute, value);
    if (value.kind != KIND_INT || (attribute == ATTRIBUTE_PID && value.number < 0))
        return refuse(d, "a node's '%s' is not a number that it can be", attribute_names[attribute].data);
    if (attribute == ATTRIBUTE_PID) {
        attributes->pid = value.number;
        attributes->has |= HAS_PID;
    } else {
        attributes->local_id = value.number;
        attributes->has |= HAS_LOCAL_ID;
    }
    return true;
}

static bool fits_field(enum attribute attribute, struct value value)
{
    switch (attribute) {
    case ATTRIBUTE_ROUND:
        return value.kind == KIND_INT && value.number >= 0;
    case ATTRIBUTE_COMPLETE:
    case ATTRIBUTE_CLOSED:
        return value.kind == KIND_BOOL;
    case ATTRIBUTE_DEADLINE:
        return value.kind == KIND_NONE || value.kind == KIND_TIME;
    case ATTRIBUTE_PARTICIPANTS:
    case ATTRIBUTE_LAST_HEARTBEATS:
        return value.kind == KIND_DICT;
    case ATTRIBUTE_WAIT_LIST:
    case ATTRIBUTE_REDUNDANCY_LIST:
        return value.kind == KIND_SET;
    case ATTRIBUTE_FQDN:
    case ATTRIBUTE_ADDR:
    case ATTRIBUTE_PID:
    case ATTRIBUTE_LOCAL_ID:
        break;
    }
    return false;
}

/* There is one state, so the attributes of it are kept once. */
static bool set_of_state(struct decoder *d, struct container *attributes, enum attribute attribute, struct value value)
{
    if (attributes->holds == HOLDS_NOTHING && d->has_fields)
        return refuse(d, "a second dict of the state's attributes");
    if (!hold(d, attributes, HOLDS_STATE))
        return false;
    d->has_fields = true;
    if (!fits_field(attribute, value))
        return refuse(d, "the state's '%s' is %s, or out of range", attribute_names[attribute].data,
                      kind_texts[value.kind]);
    d->fields[attribute] = value;
    return true;
}

static inline bool is_attribute(struct mu_slice name, unsigned attribute)
{
    const struct mu_slice *known = &attribute_names[attribute];

    return name.len == known->len && name.data[0] == known->data[0] && memcmp(name.data, known->data, name.len) == 0;
}

static bool set_attribute(struct decoder *d, struct container *attributes, struct value key, struct value value)
{
    struct mu_slice name = mu_slice(key.bytes, key.len);
    char name_shown[SHOWN_MAX + 1];
    unsigned attribute = 0;

    while (attribute < ATTRIBUTES_COUNT && !is_attribute(name, attribute))
        attribute++;
    if (attribute == ATTRIBUTES_COUNT)
        return refuse(d, "unknown attribute '%s'", shown(name, name_shown));
    return attribute < ATTRIBUTES_OF_STATE ? set_of_node(d, attributes, (enum attribute)attribute, value)
                                           : set_of_state(d, attributes, (enum attribute)attribute, value);
}

static bool add_entry(struct decoder *d, size_t container, struct value node, enum holds holds, int64_t value)
{
    if (node.kind != KIND_NODE)
        return refuse(d, "%s where a node should be", kind_texts[node.kind]);
    if (!d->nodes[node.index].built)
        return refuse(d, "a node without attributes");
    if (!hold(d, &d->containers[container], holds))
        return false;
    if (d->entries_count == d->entries_room && !grow(d, &d->entries, &d->entries_room, sizeof *d->entries, "entries"))
        return false;
    d->entries[d->entries_count++] =
        (struct entry){ .container = (uint32_t)container, .node = (uint32_t)node.index, .value = value };
    return true;
}

static bool set_item(struct decoder *d, size_t dict, struct value key, struct value value)
{
    if (key.kind == KIND_TEXT)
        return set_attribute(d, &d->containers[dict], key, value);
    if (value.kind == KIND_TIME)
        return add_entry(d, dict, key, HOLDS_TIMES, value.number);
    if (value.kind != KIND_INT || value.number < 0)
        return refuse(d, "%s is neither a rank nor a time", kind_texts[value.kind]);
    return add_entry(d, dict, key, HOLDS_RANKS, value.number);
}

/* The items from `first` to the top go into what is below them. */
static bool put_items(struct decoder *d, enum kind kind, size_t first)
{
    size_t count = d->stack_count - first;
    struct value container;

    if (first == d->fence)
        return refuse(d, "too few values on the stack");
    container = d->stack[first - 1];
    if (container.kind != kind)
        return refuse(d, "%s where %s should be", kind_texts[container.kind], kind_texts[kind]);
    if (kind == KIND_DICT) {
        if (count % 2 != 0)
            return refuse(d, "a key without a value");
        for (size_t i = first; i < d->stack_count; i += 2)
            if (!set_item(d, container.index, d->stack[i], d->stack[i + 1]))
                return false;
    } else {
        for (size_t i = first; i < d->stack_count; i++)
            if (!add_entry(d, container.index, d->stack[i], HOLDS_NODES, 0))
                return false;
    }
    d->stack_count = first;
    return true;
}

static bool put_count(struct decoder *d, enum kind kind, size_t count)
{
    return has(d, count) && put_items(d, kind, d->stack_count - count);
}

static bool mark(struct decoder *d)
{
    if (d->marks_count == MU_PICKLE_DEPTH_MAX)
        return refuse(d, "deeper than %d levels", MU_PICKLE_DEPTH_MAX);
    d->fence = d->stack_count;
    d->marks[d->marks_count++] = d->fence;
    return true;
}

static bool put_marked(struct decoder *d, enum kind kind)
{
    size_t first = d->fence;

    if (d->marks_count == 0)
        return refuse(d, "there is no mark");
    d->marks_count--;
    d->fence = d->marks_count == 0 ? 0 : d->marks[d->marks_count - 1];
    return put_items(d, kind, first);
}

/* ---- Reading: objects ---- */

static bool build_node(struct decoder *d, struct node *node, const struct container *attributes)
{
    if (node->built)
        return refuse(d, "a node with attributes twice");
    if (attributes->holds != HOLDS_NODE || attributes->has != HAS_ALL)
        return refuse(d, "a node without all of its attributes");
    *node = (struct node){
        .name = attributes->name,
        .name_len = attributes->name_len,
        .member = NO_MEMBER,
        .pid = attributes->pid,
        .local_id = attributes->local_id,
        .built = true,
    };
    return true;
}

static bool build_state(struct decoder *d, struct container *attributes)
{
    if (d->built)
        return refuse(d, "a state with attributes twice");
    if (attributes->holds != HOLDS_STATE)
        return refuse(d, "a state without its attributes");
    for (unsigned i = ATTRIBUTES_OF_STATE; i < ATTRIBUTES_COUNT; i++)
        if (d->fields[i].kind == KIND_ABSENT && i != ATTRIBUTE_REDUNDANCY_LIST)
            return refuse(d, "a state without '%s'", attribute_names[i].data);
    attributes->frozen = true;
    d->built = true;
    return true;
}

static bool build(struct decoder *d)
{
    struct value attributes, object;

    if (!has(d, 2))
        return false;
    attributes = *top(d);
    d->stack_count--;
    object = *top(d);
    if (attributes.kind != KIND_DICT)
        return refuse(d, "%s as attributes", kind_texts[attributes.kind]);
    if (object.kind == KIND_NODE)
        return build_node(d, &d->nodes[object.index], &d->containers[attributes.index]);
    if (object.kind == KIND_STATE)
        return build_state(d, &d->containers[attributes.index]);
    return refuse(d, "attributes for %s", kind_texts[object.kind]);
}

/* ---- Reading: opcodes ---- */

static bool frame(struct decoder *d)
{
    uint64_t len;

    if (!available(d, sizeof len))
        return false;
    len = mu_get_u64(d->at);
    d->at += sizeof len;
    return len <= (uint64_t)(d->end - d->at) || refuse(d, "a frame that is longer than the document");
}

static inline size_t get_u8(struct decoder *d)
{
    return *d->at++;
}

static inline size_t get_u16(struct decoder *d)
{
    d->at += 2;
    return (size_t)d->at[-2] | (size_t)d->at[-1] << 8;
}

static inline size_t get_u32(struct decoder *d)
{
    d->at += 4;
    return mu_get_u32(d->at - 4);
}

static bool step(struct decoder *d, unsigned opcode)
{
    switch (opcode) {
    case OP_FRAME:
        return frame(d);
    case OP_MARK:
        return mark(d);
    case OP_NONE:
        return push_number(d, KIND_NONE, 0);
    case OP_NEWTRUE:
        return push_number(d, KIND_BOOL, 1);
    case OP_NEWFALSE:
        return push_number(d, KIND_BOOL, 0);
    case OP_BININT1:
        return available(d, 1) && push_number(d, KIND_INT, (int64_t)get_u8(d));
    case OP_BININT2:
        return available(d, 2) && push_number(d, KIND_INT, (int64_t)get_u16(d));
    case OP_BININT:
        return available(d, 4) && push_number(d, KIND_INT, (int32_t)get_u32(d));
    case OP_LONG1:
        return push_long1(d);
    case OP_SHORT_BINUNICODE:
        return push_bytes(d, KIND_TEXT, 1);
    case OP_BINUNICODE:
        return push_bytes(d, KIND_TEXT, 4);
    case OP_SHORT_BINBYTES:
        return push_bytes(d, KIND_BYTES, 1);
    case OP_BINBYTES:
        return push_bytes(d, KIND_BYTES, 4);
    case OP_EMPTY_DICT:
        return new_container(d, KIND_DICT);
    case OP_EMPTY_LIST:
        return new_container(d, KIND_LIST);
    case OP_EMPTY_SET:
        return new_container(d, KIND_SET);
    case OP_EMPTY_TUPLE:
        return push_number(d, KIND_EMPTY_TUPLE, 0);
    case OP_TUPLE1:
        return pack(d, 1);
    case OP_TUPLE2:
        return pack(d, 2);
    case OP_TUPLE3:
        return pack(d, 3);
    case OP_SETITEM:
        return put_count(d, KIND_DICT, 2);
    case OP_SETITEMS:
        return put_marked(d, KIND_DICT);
    case OP_APPEND:
        return put_count(d, KIND_LIST, 1);
    case OP_APPENDS:
        return put_marked(d, KIND_LIST);
    case OP_ADDITEMS:
        return put_marked(d, KIND_SET);
    case OP_STACK_GLOBAL:
        return stack_global(d);
    case OP_GLOBAL:
        return global(d);
    case OP_NEWOBJ:
        return new_object(d);
    case OP_REDUCE:
        return reduce(d);
    case OP_BUILD:
        return build(d);
    case OP_MEMOIZE:
        return memo_put(d, d->memo_filled);
    case OP_BINPUT:
        return available(d, 1) && memo_put(d, get_u8(d));
    case OP_LONG_BINPUT:
        return available(d, 4) && memo_put(d, get_u32(d));
    case OP_BINGET:
        return available(d, 1) && memo_get(d, get_u8(d));
    case OP_LONG_BINGET:
        return available(d, 4) && memo_get(d, get_u32(d));
    default:
        return refuse(d, "opcode 0x%02x has no place in a document", opcode);
    }
}

static bool envelope(struct decoder *d)
{
    if (d->at == d->end)
        return refuse(d, "empty");
    if (*d->at != OP_PROTO)
        return refuse(d, "not a pickle of protocol %d to %d", PROTOCOL_MIN, PROTOCOL_MAX);
    d->at++;
    if (!available(d, 1))
        return false;
    d->protocol = *d->at++;
    return (d->protocol >= PROTOCOL_MIN && d->protocol <= PROTOCOL_MAX) || refuse(d, "pickle protocol %u", d->protocol);
}

static bool run(struct decoder *d)
{
    unsigned opcode;

    d->opcode = d->at;
    if (!envelope(d))
        return false;
    for (;;) {
        d->opcode = d->at;
        if (!available(d, 1))
            return false;
        opcode = *d->at++;
        if (opcode == OP_STOP)
            break;
        if (!step(d, opcode))
            return false;
    }
    if (d->stack_count != 1 || d->marks_count != 0 || top(d)->kind != KIND_STATE)
        return refuse(d, "the end of something that is not a state");
    if (!d->built)
        return refuse(d, "a state without its attributes");
    return d->at == d->end || refuse(d, "%zu bytes behind the end", (size_t)(d->end - d->at));
}

/* ---- Reading: from the state to the document ---- */

static bool check_map(struct decoder *d, enum attribute attribute, enum holds holds)
{
    const struct container *map = &d->containers[d->fields[attribute].index];

    return map->holds == HOLDS_NOTHING || map->holds == holds ||
           refuse(d, "the state's '%s' maps to the wrong things", attribute_names[attribute].data);
}

/* A node that stands in several maps is looked up once. */
static bool enter(struct decoder *d, struct mu_doc *doc, const struct entry *entry, unsigned in)
{
    struct node *node = &d->nodes[entry->node];
    struct mu_doc_member *member = node->member == NO_MEMBER ? NULL : &doc->members[node->member];

    if (member == NULL || (in & ~member->in & ~(unsigned)MU_DOC_HEARTBEAT) != 0) {
        member =
            mu_doc_enter(doc, &(struct mu_node){ mu_slice(node->name, node->name_len), node->pid, node->local_id }, in);
        if (member == NULL)
            return doc->count == MU_DOC_MEMBERS_MAX ? refuse(d, "more than %u members", MU_DOC_MEMBERS_MAX)
                                                    : refuse_memory(d);
        node->member = (uint32_t)(member - doc->members);
    }
    member->in |= in; /* heartbeats are not counted */
    if (in == MU_DOC_PARTICIPANT)
        member->rank = entry->value;
    if (in == MU_DOC_HEARTBEAT)
        member->heartbeat_us = entry->value;
    return true;
}

static bool enter_all(struct decoder *d, struct mu_doc *doc, enum attribute attribute, unsigned in)
{
    const struct value *field = &d->fields[attribute];

    if (field->kind == KIND_ABSENT)
        return true;
    for (size_t i = 0; i < d->entries_count; i++)
        if (d->entries[i].container == field->index && !enter(d, doc, &d->entries[i], in))
            return false;
    return true;
}

static bool any_heartbeat(const struct decoder *d)
{
    return d->containers[d->fields[ATTRIBUTE_LAST_HEARTBEATS].index].holds != HOLDS_NOTHING;
}

/* What nothing in the document tells is taken to be as it is expected, if that goes with the rest of it; otherwise as in the
 * newest version that the rest goes with. */
static struct mu_doc_dialect dialect_of(const struct decoder *d, const struct mu_doc *doc,
                                        struct mu_doc_dialect expected)
{
    struct mu_doc_dialect dialect = { .spares = d->fields[ATTRIBUTE_REDUNDANCY_LIST].kind != KIND_ABSENT };
    bool fits = expected.spares == dialect.spares;

    dialect.addr = doc->count > 0 ? d->addr_seen : fits ? expected.addr : dialect.spares;
    if (doc->has_deadline || any_heartbeat(d))
        dialect.zoned = d->zoned_seen;
    else
        dialect.zoned = fits ? expected.zoned : dialect.spares;
    if (!dialect.spares)
        dialect.habits = MU_HABITS_1_13;
    else if (dialect.zoned)
        dialect.habits = MU_HABITS_2_X;
    else
        dialect.habits = fits && !expected.zoned ? expected.habits : MU_HABITS_2_5;
    return dialect;
}

static bool fill(struct decoder *d, struct mu_doc *doc)
{
    size_t count = d->entries_count < d->nodes_count ? d->entries_count : d->nodes_count;

    if (d->fields[ATTRIBUTE_ROUND].number > MU_DOC_ROUND_MAX)
        return refuse(d, "a round that no rendezvous gets to");
    if (!check_map(d, ATTRIBUTE_PARTICIPANTS, HOLDS_RANKS) || !check_map(d, ATTRIBUTE_LAST_HEARTBEATS, HOLDS_TIMES))
        return false;
    if (mu_doc_reserve(doc, count < MU_DOC_MEMBERS_MAX ? count : MU_DOC_MEMBERS_MAX) < 0)
        return refuse_memory(d);
    if (!enter_all(d, doc, ATTRIBUTE_PARTICIPANTS, MU_DOC_PARTICIPANT) ||
        !enter_all(d, doc, ATTRIBUTE_WAIT_LIST, MU_DOC_WAITING) ||
        !enter_all(d, doc, ATTRIBUTE_REDUNDANCY_LIST, MU_DOC_SPARE) ||
        !enter_all(d, doc, ATTRIBUTE_LAST_HEARTBEATS, MU_DOC_HEARTBEAT))
        return false;
    doc->round = d->fields[ATTRIBUTE_ROUND].number;
    doc->complete = d->fields[ATTRIBUTE_COMPLETE].number != 0;
    doc->closed = d->fields[ATTRIBUTE_CLOSED].number != 0;
    doc->has_deadline = d->fields[ATTRIBUTE_DEADLINE].kind == KIND_TIME;
    doc->deadline_us = d->fields[ATTRIBUTE_DEADLINE].number;
    doc->dialect = dialect_of(d, doc, doc->dialect);
    return true;
}

int mu_pickle_decode(struct mu_slice bytes, struct mu_doc *doc, struct muster_error *reterr)
{
    const uint8_t *start = (const uint8_t *)(bytes.len == 0 ? "" : bytes.data);
    struct decoder d = { .start = start, .at = start, .end = start + bytes.len, .reterr = reterr };
    struct mu_doc fresh;

    if (bytes.len > MU_PICKLE_BYTES_MAX)
        return mu_fail(reterr, MUSTER_ERDZV_STATE, "byte %zu: longer than a document can be", MU_PICKLE_BYTES_MAX);
    mu_doc_init(&fresh, doc->seed, doc->dialect);
    if (run(&d) && fill(&d, &fresh))
        mu_doc_swap(doc, &fresh);
    mu_doc_done(&fresh);
    free(d.stack);
    free(d.memo);
    free(d.nodes);
    free(d.containers);
    free(d.entries);
    return d.rc;
}

/* ---- Writing ---- */

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
    time_put(e->at, us);
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

const struct mu_doc_codec mu_doc_codec_pickle = {
    .name = "pickle",
    .decode = mu_pickle_decode,
    .encode = mu_pickle_encode,
};
