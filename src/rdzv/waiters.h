/* Which nodes wait for a round, as far as another waiting node knows. For messages; nothing is decided by it. Pure.
 * The two back ends whose documents carry no names use it, etcd-v3 and etcd; how etcd fills it is told in classic.h.
 *
 * On etcd-v3, only the leader watches the records of nodes/. Everybody else reads some of them now and then, once its
 * wait has lasted for a while, and always before the wait is told. The leader leaves a mark beside all jobs meanwhile,
 * by which nodes that wait at the same etcd for another rendezvous learn of it; a round that forms at once has
 * neither. */
#ifndef MU_RDZV_WAITERS_H
#define MU_RDZV_WAITERS_H

#include "rdzv/fold_doc.h"

#define MU_WAITERS_FIRST_MS 2000    /* so long a wait is nobody's business */
#define MU_WAITERS_NAMES_MAX 8      /* nodes that are named; the others are counted */
#define MU_WAITERS_RECORDS_MAX 64   /* records that are read; etcd: the oldest; a store: those of the lowest keys */
#define MU_WAITERS_MARKS_MAX 16     /* marks that are read, the newest first */
#define MU_WAITERS_CLAUSES_MAX 3    /* contradictions and other rendezvous that are named, each */
#define MU_WAITERS_CLAUSES_SIZE 512 /* bytes of their text, the NUL included */
#define MU_WAITERS_NOTE_MAX (2 * MU_WAITERS_CLAUSES_SIZE + 2)

/* Something to be read: a record of nodes/, or (id 0) the mark of another rendezvous. */
struct mu_waiters_item {
    uint64_t id;            /* of the node */
    struct mu_slice run_id; /* of a mark, as in its key */
    struct mu_fold_record record;
};

struct mu_waiters {                             /* zeroed memory is empty */
    struct mu_node nodes[MU_WAITERS_NAMES_MAX]; /* that have come and go together, in the order of their coming */
    char names[MU_WAITERS_NAMES_MAX][MU_FOLD_NAME_MAX + 1];
    size_t count;
    bool any_limits; /* the back end lets nodes in whatever their --nnodes is */
    /* "": nobody. `apart`: whose --nnodes contradicts ours, or, with `any_limits`, is another. */
    char apart[MU_WAITERS_CLAUSES_SIZE], others[MU_WAITERS_CLAUSES_SIZE]; /* others: who waits for another rendezvous */
};

/* When a wait that has lasted for `waited_ms`, and ends after `join_ms`, looks around next. */
uint64_t mu_waiters_next_ms(uint64_t waited_ms, uint64_t join_ms);
/* What was read, records in the order of their creation; `own` is this node's. True: something is new. */
bool mu_waiters_see(struct mu_waiters *crowd, const struct mu_fold_record *own, const struct mu_waiters_item *items,
                    size_t count);
/* What is to be told besides the names; NULL: nothing. */
const char *mu_waiters_note(const struct mu_waiters *crowd, char note[static MU_WAITERS_NOTE_MAX]);

#endif
