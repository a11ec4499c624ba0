/* The insides of the pickle: for the files pickle*.c alone.
 *
 *   pickle.c        times; from what was read to the document and its dialect
 *   pickle_read.c   the stack machine
 *   pickle_write.c  the other way round */
#ifndef MU_RDZV_PICKLE_PARTS_H
#define MU_RDZV_PICKLE_PARTS_H

#include "rdzv/pickle.h"

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

/* Each opcode, its byte, and what it does to the decoder `d`; the functions are those of pickle_read.c. */
#define OPCODES(X)                                                                                                     \
    X(FRAME, 0x95, frame(d))                                                                                           \
    X(MARK, 0x28, mark(d))                                                                                             \
    X(NONE, 0x4e, push_number(d, KIND_NONE, 0))                                                                        \
    X(NEWTRUE, 0x88, push_number(d, KIND_BOOL, 1))                                                                     \
    X(NEWFALSE, 0x89, push_number(d, KIND_BOOL, 0))                                                                    \
    X(BININT1, 0x4b, available(d, 1) && push_number(d, KIND_INT, (int64_t)get_u8(d)))                                  \
    X(BININT2, 0x4d, available(d, 2) && push_number(d, KIND_INT, (int64_t)get_u16(d)))                                 \
    X(BININT, 0x4a, available(d, 4) && push_number(d, KIND_INT, (int32_t)get_u32(d)))                                  \
    X(LONG1, 0x8a, push_long1(d))                                                                                      \
    X(SHORT_BINUNICODE, 0x8c, push_bytes(d, KIND_TEXT, 1))                                                             \
    X(BINUNICODE, 0x58, push_bytes(d, KIND_TEXT, 4))                                                                   \
    X(SHORT_BINBYTES, 0x43, push_bytes(d, KIND_BYTES, 1))                                                              \
    X(BINBYTES, 0x42, push_bytes(d, KIND_BYTES, 4))                                                                    \
    X(EMPTY_DICT, 0x7d, new_container(d, KIND_DICT))                                                                   \
    X(EMPTY_LIST, 0x5d, new_container(d, KIND_LIST))                                                                   \
    X(EMPTY_SET, 0x8f, new_container(d, KIND_SET))                                                                     \
    X(EMPTY_TUPLE, 0x29, push_number(d, KIND_EMPTY_TUPLE, 0))                                                          \
    X(TUPLE1, 0x85, pack(d, 1))                                                                                        \
    X(TUPLE2, 0x86, pack(d, 2))                                                                                        \
    X(TUPLE3, 0x87, pack(d, 3))                                                                                        \
    X(SETITEM, 0x73, put_count(d, KIND_DICT, 2))                                                                       \
    X(SETITEMS, 0x75, put_marked(d, KIND_DICT))                                                                        \
    X(APPEND, 0x61, put_count(d, KIND_LIST, 1))                                                                        \
    X(APPENDS, 0x65, put_marked(d, KIND_LIST))                                                                         \
    X(ADDITEMS, 0x90, put_marked(d, KIND_SET))                                                                         \
    X(STACK_GLOBAL, 0x93, stack_global(d))                                                                             \
    X(GLOBAL, 0x63, global(d))                                                                                         \
    X(NEWOBJ, 0x81, new_object(d))                                                                                     \
    X(REDUCE, 0x52, reduce(d))                                                                                         \
    X(BUILD, 0x62, build(d))                                                                                           \
    X(MEMOIZE, 0x94, memo_put(d, d->memo_filled))                                                                      \
    X(BINPUT, 0x71, available(d, 1) && memo_put(d, get_u8(d)))                                                         \
    X(LONG_BINPUT, 0x72, available(d, 4) && memo_put(d, get_u32(d)))                                                   \
    X(BINGET, 0x68, available(d, 1) && memo_get(d, get_u8(d)))                                                         \
    X(LONG_BINGET, 0x6a, available(d, 4) && memo_get(d, get_u32(d)))

enum opcode {
    OP_PROTO = 0x80, /* the first */
    OP_STOP = 0x2e,  /* the last */
#define X(name, byte, act) OP_##name = byte,
    OPCODES(X)
#undef X
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
#define X(name, module, class) { (module), sizeof(module) - 1 },
    CLASSES(X)
#undef X
};

static const struct mu_slice class_names[] = {
#define X(name, module, class) { (class), sizeof(class) - 1 },
    CLASSES(X)
#undef X
};

static const struct mu_slice attribute_names[] = {
#define X(name, text) { (text), sizeof(text) - 1 },
    ATTRIBUTES(X)
#undef X
};
/* ---- What is on the stack ---- */

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
    bool has_fields;
    enum { NO_STATE, NEW_STATE, BUILT_STATE } state;
    enum { NO_NAMES, NAMES_FQDN, NAMES_ADDR } names; /* the attribute that all nodes have their name in */
    enum { NO_TIMES, TIMES_NAIVE, TIMES_ZONED } times;
};
/* False; d->rc says why. */
bool mu_pickle_refuse(struct decoder *d, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
bool mu_pickle_refuse_memory(struct decoder *d);

/* Up to the state, whose fields are then checked. */
bool mu_pickle_run(struct decoder *d);

/* Microseconds since 1970, and Python's ten bytes. Times that Python has no date for are written as the first or last
 * that it has. */
bool mu_pickle_time_get(const uint8_t bytes[static TIME_LEN], int64_t *ret_us);
void mu_pickle_time_put(uint8_t bytes[static TIME_LEN], int64_t us);

#endif
