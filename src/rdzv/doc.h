/* The document that the nodes of a dynamic rendezvous share: round, members, heartbeats. In memory; pickle.h has the
 * bytes that PyTorch stores. A document owns its names. */
#ifndef MU_RDZV_DOC_H
#define MU_RDZV_DOC_H

#include "base/error.h"
#include "base/hash.h"
#include "base/slice.h"

#include <stdint.h>

#define MU_NODE_NAME_MAX 4096
#define MU_NODE_TEXT_MAX 320 /* longer names are cut in texts for people */
#define MU_DOC_ROUND_MAX (INT64_C(1) << 53)
#define MU_DOC_MEMBERS_MAX (1u << 18)
#define MU_DOC_TIME_MAX INT64_C(253402300799999999) /* the last microsecond of the year 9999 */

/* Who a node is. Order and equality are by value: name byte by byte, then pid, then local_id. */
struct mu_node {
    struct mu_slice name;
    int64_t pid, local_id;
};

bool mu_node_equal(const struct mu_node *a, const struct mu_node *b);
int mu_node_compare(const struct mu_node *a, const struct mu_node *b);
const char *mu_node_text(const struct mu_node *node, char text[static MU_NODE_TEXT_MAX]); /* "name_pid_local_id" */
/* The same read. False: it is no node's, and *ret_node is as it was. The name is in `text`. */
bool mu_node_read(struct mu_slice text, struct mu_node *ret_node);

/* Our own kind: 0x4D000000 | version << 20 | 20 random bits. To PyTorch it is an integer. */
#define MU_NODE_VERSION 1u
int64_t mu_node_local_id(unsigned version, uint32_t random);
bool mu_node_is_ours(const struct mu_node *node);

/* What of a member is in the document. */
enum { MU_DOC_PARTICIPANT = 1, MU_DOC_WAITING = 2, MU_DOC_SPARE = 4, MU_DOC_HEARTBEAT = 8 };

struct mu_doc_member {
    struct mu_node node;  /* the name is the document's; a NUL that does not count follows it */
    unsigned in;          /* never 0 */
    int64_t rank;         /* of a participant */
    int64_t heartbeat_us; /* since 1970, UTC; with MU_DOC_HEARTBEAT */
};

/* What PyTorch's agents of a version do beside the document. */
enum mu_doc_habits {
    MU_HABITS_1_13, /* to 2.3: they exchange ranks by other keys, and rank 0 publishes MASTER_ADDR after that */
    MU_HABITS_2_5,  /* workers meet in the rendezvous store itself, if it is a TCPStore and agents share theirs */
    MU_HABITS_2_X,  /* rank 0 opens a store of its own for them */
};

/* How different versions of PyTorch write it. A document is written in the dialect it was read in. */
struct mu_doc_dialect {
    bool addr;                 /* the node's name is its attribute "addr", not "fqdn" */
    bool spares;               /* there is a redundancy_list */
    bool zoned;                /* times carry the UTC zone */
    enum mu_doc_habits habits; /* documents of 2.3, 2.4 and 2.5 are alike: who reads one has to know */
};
#define MU_DOC_DIALECT_1_13 ((struct mu_doc_dialect){ false, false, false, MU_HABITS_1_13 })
#define MU_DOC_DIALECT_2_2 ((struct mu_doc_dialect){ true, false, false, MU_HABITS_1_13 }) /* 2.0 to 2.2 */
#define MU_DOC_DIALECT_2_3 ((struct mu_doc_dialect){ true, true, false, MU_HABITS_1_13 })
#define MU_DOC_DIALECT_2_5 ((struct mu_doc_dialect){ true, true, false, MU_HABITS_2_5 }) /* and 2.4 */
#define MU_DOC_DIALECT_2_X ((struct mu_doc_dialect){ true, true, true, MU_HABITS_2_X })  /* 2.6 and newer */

struct mu_doc {
    int64_t round; /* >= 0 */
    bool complete, closed, has_deadline;
    int64_t deadline_us;
    struct mu_doc_dialect dialect;
    struct mu_doc_member *members; /* in the order they came */
    size_t count;
    size_t participants, waiting, spares; /* how many of them are that */
    /* Private. */
    size_t room;
    uint32_t *index; /* open addressing, members by hash; UINT32_MAX: empty */
    size_t index_room;
    struct mu_hash_seed seed;
};

/* Zeroed memory with a seed is a fresh document of dialect 1.13: round 0, nobody in it. */
void mu_doc_init(struct mu_doc *doc, struct mu_hash_seed seed, struct mu_doc_dialect dialect);
void mu_doc_done(struct mu_doc *doc);
/* Back to the initial state, in this dialect; memory is kept where possible. */
void mu_doc_reset(struct mu_doc *doc, struct mu_doc_dialect dialect);
int mu_doc_copy(struct mu_doc *to, const struct mu_doc *from); /* 0 or MUSTER_ENOMEM, `to` then as it was; seeds stay */
void mu_doc_swap(struct mu_doc *a, struct mu_doc *b);
int mu_doc_reserve(struct mu_doc *doc, size_t count); /* room for so many members, or MUSTER_ENOMEM */

/* NULL: not a member. Valid until somebody is added or dropped. */
struct mu_doc_member *mu_doc_find(const struct mu_doc *doc, const struct mu_node *node);
static inline bool mu_doc_has(const struct mu_doc *doc, const struct mu_node *node, unsigned in)
{
    const struct mu_doc_member *member = mu_doc_find(doc, node);

    return member != NULL && (member->in & in) != 0;
}
/* Puts a node into what `in` says, beside what it was in already; a new participant has rank 0. Copies the name.
 * NULL: no memory, or MU_DOC_MEMBERS_MAX reached; nothing changed. */
struct mu_doc_member *mu_doc_enter(struct mu_doc *doc, const struct mu_node *node, unsigned in);
void mu_doc_drop(struct mu_doc *doc, const struct mu_node *node, unsigned in); /* `doc` may own the node's name */

#endif
