/* Reading a pickle is a stack machine without recursion. What it can hold is so narrow that nothing in it can contain
 * itself: a tuple is only ever the arguments of one of the five calls below and is judged when it is packed; a dict is,
 * from its first key on, the attributes of a node, the attributes of the state, or a map from nodes to ranks or to
 * times; a set or list has nodes in it. Nodes, dicts, sets and lists are positions in arrays, so that the memo shares
 * them as Python does. All entries of all maps and sets stand in one array in the order they came, each with the
 * container it belongs to; the fields of the state pick theirs at the end. */
#include "rdzv/pickle_parts.h"

#include "base/utf8.h"
#include "base/words.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool mu_pickle_refuse(struct decoder *d, const char *format, ...)
{
    char detail[DETAIL_MAX];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    d->rc = mu_fail(d->reterr, MUSTER_ERDZV_STATE, "byte %zu: %s", (size_t)(d->opcode - d->start), detail);
    return false;
}

bool mu_pickle_refuse_memory(struct decoder *d)
{
    d->rc = mu_fail(d->reterr, MUSTER_ENOMEM, "no memory to read a document of %zu bytes", (size_t)(d->end - d->start));
    return false;
}

/* Room for one more in a growing array; `items` points to the array's pointer. */
static bool grow(struct decoder *d, void *items, size_t *room, size_t item_size, const char *what)
{
    size_t wanted = *room == 0 ? 64 : 2 * *room;
    void *old, *grown;

    if (*room == THINGS_MAX)
        return mu_pickle_refuse(d, "more than %zu %s", THINGS_MAX, what);
    if (wanted > THINGS_MAX)
        wanted = THINGS_MAX;
    memcpy(&old, items, sizeof old);
    grown = realloc(old, wanted * item_size);
    if (grown == NULL)
        return mu_pickle_refuse_memory(d);
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
    return d->stack_count - d->fence >= count || mu_pickle_refuse(d, "too few values on the stack");
}

static inline struct value *top(struct decoder *d)
{
    return &d->stack[d->stack_count - 1];
}

static bool take_two(struct decoder *d, struct value *ret_below, struct value *ret_top)
{
    if (!has(d, 2))
        return false;
    *ret_top = *top(d);
    *ret_below = d->stack[d->stack_count - 2];
    d->stack_count -= 2;
    return true;
}

static inline bool available(struct decoder *d, size_t len)
{
    return (size_t)(d->end - d->at) >= len || mu_pickle_refuse(d, "cut off");
}

/* ---- Integers, texts, names ---- */

static bool push_long1(struct decoder *d)
{
    uint64_t number = 0;
    size_t len;

    if (!available(d, 1))
        return false;
    len = *d->at++;
    if (len > sizeof number)
        return mu_pickle_refuse(d, "an integer of %zu bytes", len);
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
        return mu_pickle_refuse(d, "a text that is not UTF-8");
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
        return mu_pickle_refuse(d, "'%s' of '%s' has no place in a document",
                                mu_words_plain(name, name_shown, sizeof name_shown),
                                mu_words_plain(module, module_shown, sizeof module_shown));
    return push(d, (struct value){ .kind = KIND_CLASS, .class = (enum class) class });
}

static bool take_line(struct decoder *d, struct mu_slice *ret_line)
{
    size_t left = (size_t)(d->end - d->at);
    const uint8_t *newline = left == 0 ? NULL : memchr(d->at, '\n', left < GLOBAL_LINE_MAX ? left : GLOBAL_LINE_MAX);

    if (newline == NULL)
        return mu_pickle_refuse(d, left < GLOBAL_LINE_MAX ? "cut off" : "a name that is too long");
    *ret_line = mu_slice(d->at, (size_t)(newline - d->at));
    d->at = newline + 1;
    return true;
}

static bool global(struct decoder *d)
{
    struct mu_slice module = { 0 }, name = { 0 };

    return take_line(d, &module) && take_line(d, &name) && push_class(d, module, name);
}

static bool stack_global(struct decoder *d)
{
    struct value module, name;

    if (!take_two(d, &module, &name))
        return false;
    if (module.kind != KIND_TEXT || name.kind != KIND_TEXT)
        return mu_pickle_refuse(d, "a class named by %s and %s", kind_texts[module.kind], kind_texts[name.kind]);
    return push_class(d, mu_slice(module.bytes, module.len), mu_slice(name.bytes, name.len));
}

/* ---- the memo ---- */

static bool memo_put_at(struct decoder *d, size_t index)
{
    if (index >= MU_PICKLE_MEMO_MAX || index >= (size_t)(d->end - d->start))
        return mu_pickle_refuse(d, "memo slot %zu is past the limit", index);
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
        return mu_pickle_refuse(d, "memo slot %zu was never written", index);
    return push(d, d->memo[index]);
}

/* ---- tuples, and calls with them ---- */

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
    return tuple.kind == KIND_ABSENT ? mu_pickle_refuse(d, "a tuple that begins with %s", kind_texts[args[0].kind])
                                     : push(d, tuple);
}

static bool call_datetime(struct decoder *d, struct value args)
{
    unsigned times = args.kind == KIND_ARGS_ZONED ? TIMES_ZONED : TIMES_NAIVE;
    int64_t us;

    if (args.len != TIME_LEN || !mu_pickle_time_get(args.bytes, &us))
        return mu_pickle_refuse(d, "not a date and time");
    if (d->times != NO_TIMES && d->times != times)
        return mu_pickle_refuse(d, "times with a zone and times without");
    d->times = times;
    return push_number(d, KIND_TIME, us);
}

static bool reduce(struct decoder *d)
{
    struct value class, args;

    if (!take_two(d, &class, &args))
        return false;
    if (class.kind != KIND_CLASS)
        return mu_pickle_refuse(d, "a call of %s", kind_texts[class.kind]);
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
    return mu_pickle_refuse(d, "'%s' called with the wrong arguments", class_names[class.class].data);
}

static bool new_object(struct decoder *d)
{
    struct value class, args;

    if (!take_two(d, &class, &args))
        return false;
    if (class.kind != KIND_CLASS || args.kind != KIND_EMPTY_TUPLE)
        return mu_pickle_refuse(d, "an object made of %s and %s", kind_texts[class.kind], kind_texts[args.kind]);
    if (class.class == CLASS_NODE) {
        if (d->nodes_count == d->nodes_room && !grow(d, &d->nodes, &d->nodes_room, sizeof *d->nodes, "nodes"))
            return false;
        d->nodes[d->nodes_count].built = false;
        return push(d, (struct value){ .kind = KIND_NODE, .index = d->nodes_count++ });
    }
    if (class.class != CLASS_STATE)
        return mu_pickle_refuse(d, "an object of class '%s'", class_names[class.class].data);
    if (d->state != NO_STATE)
        return mu_pickle_refuse(d, "a second state");
    d->state = NEW_STATE;
    return push_number(d, KIND_STATE, 0);
}

/* ---- containers ---- */

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
        return mu_pickle_refuse(d, "a change after the last use");
    if (container->holds != HOLDS_NOTHING && container->holds != holds)
        return mu_pickle_refuse(d, "different things in one container");
    container->holds = holds;
    return true;
}

static bool set_name(struct decoder *d, struct container *attributes, enum attribute attribute, struct value value)
{
    unsigned names = attribute == ATTRIBUTE_FQDN ? NAMES_FQDN : NAMES_ADDR;

    if (value.kind != KIND_TEXT)
        return mu_pickle_refuse(d, "%s as a node's name", kind_texts[value.kind]);
    if (value.len == 0 || value.len > MU_NODE_NAME_MAX)
        return mu_pickle_refuse(d, "a node's name of %u bytes", (unsigned)value.len);
    if (d->names != NO_NAMES && d->names != names)
        return mu_pickle_refuse(d, "nodes with 'fqdn' and nodes with 'addr'");
    d->names = names;
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
        return mu_pickle_refuse(d, "a node's '%s' is not a number that it can be", attribute_names[attribute].data);
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
        return mu_pickle_refuse(d, "a second dict of the state's attributes");
    if (!hold(d, attributes, HOLDS_STATE))
        return false;
    d->has_fields = true;
    if (!fits_field(attribute, value))
        return mu_pickle_refuse(d, "the state's '%s' is %s, or out of range", attribute_names[attribute].data,
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
        return mu_pickle_refuse(d, "unknown attribute '%s'", mu_words_plain(name, name_shown, sizeof name_shown));
    return attribute < ATTRIBUTES_OF_STATE ? set_of_node(d, attributes, (enum attribute)attribute, value)
                                           : set_of_state(d, attributes, (enum attribute)attribute, value);
}

static bool add_entry(struct decoder *d, size_t container, struct value node, enum holds holds, int64_t value)
{
    if (node.kind != KIND_NODE)
        return mu_pickle_refuse(d, "%s where a node should be", kind_texts[node.kind]);
    if (!d->nodes[node.index].built)
        return mu_pickle_refuse(d, "a node without attributes");
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
        return mu_pickle_refuse(d, "%s is neither a rank nor a time", kind_texts[value.kind]);
    return add_entry(d, dict, key, HOLDS_RANKS, value.number);
}

/* The items from `first` to the top go into what is below them. */
static bool put_items(struct decoder *d, enum kind kind, size_t first)
{
    size_t count = d->stack_count - first;
    struct value container;

    if (first == d->fence)
        return mu_pickle_refuse(d, "too few values on the stack");
    container = d->stack[first - 1];
    if (container.kind != kind)
        return mu_pickle_refuse(d, "%s where %s should be", kind_texts[container.kind], kind_texts[kind]);
    if (kind == KIND_DICT) {
        if (count % 2 != 0)
            return mu_pickle_refuse(d, "a key without a value");
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
        return mu_pickle_refuse(d, "deeper than %d levels", MU_PICKLE_DEPTH_MAX);
    d->fence = d->stack_count;
    d->marks[d->marks_count++] = d->fence;
    return true;
}

static bool put_marked(struct decoder *d, enum kind kind)
{
    size_t first = d->fence;

    if (d->marks_count == 0)
        return mu_pickle_refuse(d, "there is no mark");
    d->marks_count--;
    d->fence = d->marks_count == 0 ? 0 : d->marks[d->marks_count - 1];
    return put_items(d, kind, first);
}

/* ---- objects ---- */

static bool build_node(struct decoder *d, struct node *node, const struct container *attributes)
{
    if (node->built)
        return mu_pickle_refuse(d, "a node with attributes twice");
    if (attributes->holds != HOLDS_NODE || attributes->has != HAS_ALL)
        return mu_pickle_refuse(d, "a node without all of its attributes");
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
    if (d->state == BUILT_STATE)
        return mu_pickle_refuse(d, "a state with attributes twice");
    if (attributes->holds != HOLDS_STATE)
        return mu_pickle_refuse(d, "a state without its attributes");
    for (unsigned i = ATTRIBUTES_OF_STATE; i < ATTRIBUTES_COUNT; i++)
        if (d->fields[i].kind == KIND_ABSENT && i != ATTRIBUTE_REDUNDANCY_LIST)
            return mu_pickle_refuse(d, "a state without '%s'", attribute_names[i].data);
    attributes->frozen = true;
    d->state = BUILT_STATE;
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
        return mu_pickle_refuse(d, "%s as attributes", kind_texts[attributes.kind]);
    if (object.kind == KIND_NODE)
        return build_node(d, &d->nodes[object.index], &d->containers[attributes.index]);
    if (object.kind == KIND_STATE)
        return build_state(d, &d->containers[attributes.index]);
    return mu_pickle_refuse(d, "attributes for %s", kind_texts[object.kind]);
}

/* ---- opcodes ---- */

static bool frame(struct decoder *d)
{
    uint64_t len;

    if (!available(d, sizeof len))
        return false;
    len = mu_get_u64(d->at);
    d->at += sizeof len;
    return len <= (uint64_t)(d->end - d->at) || mu_pickle_refuse(d, "a frame that is longer than the document");
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
#define X(name, byte, act)                                                                                             \
    case byte:                                                                                                         \
        return act;
        OPCODES(X)
#undef X
    default:
        return mu_pickle_refuse(d, "opcode 0x%02x has no place in a document", opcode);
    }
}

static bool envelope(struct decoder *d)
{
    if (d->at == d->end)
        return mu_pickle_refuse(d, "empty");
    if (*d->at != OP_PROTO)
        return mu_pickle_refuse(d, "not a pickle of protocol %d to %d", PROTOCOL_MIN, PROTOCOL_MAX);
    d->at++;
    if (!available(d, 1))
        return false;
    d->protocol = *d->at++;
    return (d->protocol >= PROTOCOL_MIN && d->protocol <= PROTOCOL_MAX) ||
           mu_pickle_refuse(d, "pickle protocol %u", d->protocol);
}

bool mu_pickle_run(struct decoder *d)
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
        return mu_pickle_refuse(d, "the end of something that is not a state");
    if (d->state != BUILT_STATE)
        return mu_pickle_refuse(d, "a state without its attributes");
    return d->at == d->end || mu_pickle_refuse(d, "%zu bytes behind the end", (size_t)(d->end - d->at));
}
