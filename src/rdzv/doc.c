/* The shared document in memory: an array of members in the order they came, and a hash index of positions in it. */
#include "rdzv/doc.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    ROOM_MIN = 8,
    INDEX_ROOM_MIN = 16,   /* a power of two, and twice the members' room or more */
    NUMBERS_TEXT_MAX = 44, /* "_-9223372036854775808_-9223372036854775808" and the NUL */
};

#define EMPTY UINT32_MAX

#define OUR_KIND 0x4D000000u
#define OUR_KIND_MASK 0xFF000000u
#define VERSION_SHIFT 20
#define VERSION_MAX 15u

/* ---- Nodes ---- */

bool mu_node_equal(const struct mu_node *a, const struct mu_node *b)
{
    return a->pid == b->pid && a->local_id == b->local_id && mu_slice_equal(a->name, b->name);
}

int mu_node_compare(const struct mu_node *a, const struct mu_node *b)
{
    size_t common = a->name.len < b->name.len ? a->name.len : b->name.len;
    int order = common == 0 ? 0 : memcmp(a->name.data, b->name.data, common);

    if (order == 0)
        order = (a->name.len > b->name.len) - (a->name.len < b->name.len);
    if (order == 0)
        order = (a->pid > b->pid) - (a->pid < b->pid);
    if (order == 0)
        order = (a->local_id > b->local_id) - (a->local_id < b->local_id);
    return order;
}

/* A name comes from outside: bytes that would break a line or a terminal are shown as '?'. */
const char *mu_node_text(const struct mu_node *node, char text[static MU_NODE_TEXT_MAX])
{
    static const char cut_mark[] = "...";
    const size_t len_max = MU_NODE_TEXT_MAX - NUMBERS_TEXT_MAX;
    bool cut = node->name.len > len_max;
    size_t len = cut ? len_max - (sizeof cut_mark - 1) : node->name.len;

    while (cut && len > 0 && ((unsigned char)node->name.data[len] & 0xC0) == 0x80)
        len--; /* not within a character */
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)node->name.data[i];

        text[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    (void)snprintf(text + len, MU_NODE_TEXT_MAX - len, "%s_%" PRId64 "_%" PRId64, cut ? cut_mark : "", node->pid,
                   node->local_id);
    return text;
}

#define NUMBER_MAX INT64_C(999999999999999999)

/* The number behind the last '_', which is taken off. */
static bool cut_number(struct mu_slice *text, int64_t *ret_number)
{
    size_t at = text->len;

    while (at > 0 && text->data[at - 1] != '_')
        at--;
    if (at < 2 || !mu_slice_number(mu_slice(text->data + at, text->len - at), NUMBER_MAX, ret_number))
        return false;
    text->len = at - 1;
    return true;
}

bool mu_node_read(struct mu_slice text, struct mu_node *ret_node)
{
    struct mu_node node = { .name = text };

    if (!cut_number(&node.name, &node.local_id) || !cut_number(&node.name, &node.pid))
        return false;
    *ret_node = node;
    return true;
}

int64_t mu_node_local_id(unsigned version, uint32_t random)
{
    assert(version <= VERSION_MAX);
    return (int64_t)(OUR_KIND | version << VERSION_SHIFT | (random & ((1u << VERSION_SHIFT) - 1)));
}

bool mu_node_is_ours(const struct mu_node *node)
{
    return node->local_id >= 0 && node->local_id <= UINT32_MAX &&
           ((uint32_t)node->local_id & OUR_KIND_MASK) == OUR_KIND;
}

/* ---- The index ---- */

static size_t home(const struct mu_doc *doc, const struct mu_node *node)
{
    struct mu_hash_seed seed = { doc->seed.k0 ^ (uint64_t)node->pid, doc->seed.k1 ^ (uint64_t)node->local_id };

    return mu_hash64(seed, node->name) & (doc->index_room - 1);
}

/* Where the node is in the index, or where it would be put. There is always an empty slot. */
static size_t slot_of(const struct mu_doc *doc, const struct mu_node *node)
{
    size_t slot = home(doc, node);

    while (doc->index[slot] != EMPTY && !mu_node_equal(&doc->members[doc->index[slot]].node, node))
        slot = (slot + 1) & (doc->index_room - 1);
    return slot;
}

static void index_clear(struct mu_doc *doc)
{
    if (doc->index != NULL)
        memset(doc->index, 0xff, doc->index_room * sizeof *doc->index);
}

static void index_fill(struct mu_doc *doc)
{
    index_clear(doc);
    for (size_t i = 0; i < doc->count; i++)
        doc->index[slot_of(doc, &doc->members[i].node)] = (uint32_t)i;
}

static bool index_grow(struct mu_doc *doc, size_t index_room)
{
    uint32_t *index = malloc(index_room * sizeof *index);

    if (index == NULL)
        return false;
    free(doc->index);
    doc->index = index;
    doc->index_room = index_room;
    index_fill(doc);
    return true;
}

/* Empties a slot and moves up those behind it that were put there only because it was taken. */
static void index_remove(struct mu_doc *doc, size_t slot)
{
    size_t mask = doc->index_room - 1;
    size_t hole = slot;

    for (size_t at = (hole + 1) & mask; doc->index[at] != EMPTY; at = (at + 1) & mask) {
        size_t wanted = home(doc, &doc->members[doc->index[at]].node);

        if (((at - wanted) & mask) >= ((at - hole) & mask)) {
            doc->index[hole] = doc->index[at];
            hole = at;
        }
    }
    doc->index[hole] = EMPTY;
}

/* ---- Names ---- */

/* Shared by a document and its copies. */
struct name {
    size_t users;
    char bytes[];
};

static struct name *name_of(struct mu_slice name)
{
    /* The analyzer loses sight of what a copy of a document copies. */
    return (struct name *)(void *)((char *)name.data - offsetof(struct name, bytes)); /* NOLINT(clang-analyzer-core*) */
}

static bool name_new(struct mu_slice name, struct mu_slice *ret_name)
{
    struct name *copy = malloc(sizeof *copy + name.len + 1);

    if (copy == NULL)
        return false;
    copy->users = 1;
    if (name.len > 0)
        memcpy(copy->bytes, name.data, name.len);
    copy->bytes[name.len] = '\0';
    *ret_name = mu_slice(copy->bytes, name.len);
    return true; /* cppcheck-suppress memleak ; name_of() finds it again */
}

static void name_drop(struct mu_slice name)
{
    struct name *shared = name_of(name);

    shared->users--;
    if (shared->users == 0)
        free(shared);
}

/* ---- The document ---- */

void mu_doc_init(struct mu_doc *doc, struct mu_hash_seed seed, struct mu_doc_dialect dialect)
{
    *doc = (struct mu_doc){ .seed = seed, .dialect = dialect };
}

static void free_names(struct mu_doc *doc)
{
    for (size_t i = 0; i < doc->count; i++)
        name_drop(doc->members[i].node.name);
}

void mu_doc_done(struct mu_doc *doc)
{
    free_names(doc);
    free(doc->members);
    free(doc->index);
    *doc = (struct mu_doc){ .seed = doc->seed };
}

void mu_doc_reset(struct mu_doc *doc, struct mu_doc_dialect dialect)
{
    free_names(doc);
    *doc = (struct mu_doc){
        .dialect = dialect,
        .members = doc->members,
        .room = doc->room,
        .index = doc->index,
        .index_room = doc->index_room,
        .seed = doc->seed,
    };
    index_clear(doc);
}

void mu_doc_swap(struct mu_doc *a, struct mu_doc *b)
{
    struct mu_doc was = *a;

    *a = *b;
    *b = was;
}

int mu_doc_reserve(struct mu_doc *doc, size_t count)
{
    size_t index_room = doc->index_room == 0 ? INDEX_ROOM_MIN : doc->index_room;
    struct mu_doc_member *members;

    assert(count <= MU_DOC_MEMBERS_MAX);
    if (count > doc->room) {
        members = realloc(doc->members, count * sizeof *members);
        if (members == NULL)
            return MUSTER_ENOMEM;
        doc->members = members;
        doc->room = count;
    }
    while (index_room < 2 * doc->room)
        index_room *= 2;
    return index_room == doc->index_room || index_grow(doc, index_room) ? 0 : MUSTER_ENOMEM;
}

static bool same_seed(struct mu_hash_seed a, struct mu_hash_seed b)
{
    return a.k0 == b.k0 && a.k1 == b.k1;
}

/* The same members in the same places; the names are shared. */
int mu_doc_copy(struct mu_doc *to, const struct mu_doc *from)
{
    struct mu_doc copy = *from;

    copy.seed = to->seed;
    copy.members = malloc((from->room + 1) * sizeof *copy.members);
    copy.index = malloc((from->index_room + 1) * sizeof *copy.index);
    if (copy.members == NULL || copy.index == NULL) {
        free(copy.members);
        free(copy.index);
        return MUSTER_ENOMEM;
    }
    if (from->count > 0)
        memcpy(copy.members, from->members, from->count * sizeof *copy.members);
    for (size_t i = 0; i < copy.count; i++)
        name_of(copy.members[i].node.name)->users++;
    if (from->index_room > 0 && same_seed(to->seed, from->seed))
        memcpy(copy.index, from->index, from->index_room * sizeof *copy.index);
    else
        index_fill(&copy);
    mu_doc_swap(to, &copy);
    mu_doc_done(&copy);
    return 0;
}

/* ---- Members ---- */

struct mu_doc_member *mu_doc_find(const struct mu_doc *doc, const struct mu_node *node)
{
    size_t slot;

    if (doc->count == 0)
        return NULL;
    slot = slot_of(doc, node);
    return doc->index[slot] == EMPTY ? NULL : &doc->members[doc->index[slot]];
}

/* Copies the node before anything moves: it may stand in our own memory. */
static struct mu_doc_member *add(struct mu_doc *doc, struct mu_node node, size_t slot)
{
    struct mu_doc_member *member;

    assert(node.name.len <= MU_NODE_NAME_MAX);
    if (doc->count == MU_DOC_MEMBERS_MAX)
        return NULL;
    if (!name_new(node.name, &node.name))
        return NULL;
    if (doc->count == doc->room || doc->index == NULL) {
        size_t room = doc->room < ROOM_MIN ? ROOM_MIN : 2 * doc->room;

        if (mu_doc_reserve(doc, room > MU_DOC_MEMBERS_MAX ? MU_DOC_MEMBERS_MAX : room) < 0) {
            name_drop(node.name);
            return NULL;
        }
        slot = slot_of(doc, &node);
    }
    assert(doc->index != NULL);
    doc->index[slot] = (uint32_t)doc->count;
    member = &doc->members[doc->count++];
    *member = (struct mu_doc_member){ .node = node };
    return member;
}

struct mu_doc_member *mu_doc_enter(struct mu_doc *doc, const struct mu_node *node, unsigned in)
{
    size_t slot = doc->index_room == 0 ? 0 : slot_of(doc, node);
    bool known = doc->index_room != 0 && doc->index[slot] != EMPTY;
    struct mu_doc_member *member = known ? &doc->members[doc->index[slot]] : add(doc, *node, slot);
    unsigned fresh;

    assert(in != 0);
    if (member == NULL)
        return NULL;
    fresh = in & ~member->in;
    doc->participants += (fresh & MU_DOC_PARTICIPANT) != 0;
    doc->waiting += (fresh & MU_DOC_WAITING) != 0;
    doc->spares += (fresh & MU_DOC_SPARE) != 0;
    if (fresh & MU_DOC_PARTICIPANT)
        member->rank = 0;
    if (fresh & MU_DOC_HEARTBEAT)
        member->heartbeat_us = 0;
    member->in |= in;
    return member;
}

static void remove_at(struct mu_doc *doc, uint32_t position)
{
    index_remove(doc, slot_of(doc, &doc->members[position].node));
    name_drop(doc->members[position].node.name);
    doc->count--;
    memmove(&doc->members[position], &doc->members[position + 1], (doc->count - position) * sizeof *doc->members);
    for (size_t i = 0; i < doc->index_room; i++)
        if (doc->index[i] != EMPTY && doc->index[i] > position)
            doc->index[i]--;
}

void mu_doc_drop(struct mu_doc *doc, const struct mu_node *node, unsigned in)
{
    struct mu_doc_member *member = mu_doc_find(doc, node);
    unsigned gone;

    if (member == NULL)
        return;
    gone = in & member->in;
    doc->participants -= (gone & MU_DOC_PARTICIPANT) != 0;
    doc->waiting -= (gone & MU_DOC_WAITING) != 0;
    doc->spares -= (gone & MU_DOC_SPARE) != 0;
    member->in &= ~gone;
    if (member->in == 0)
        remove_at(doc, (uint32_t)(member - doc->members));
}
