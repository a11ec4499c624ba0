/* What the nodes of an etcd-v3 rendezvous write into etcd, as JSON: each value has a version "v", is read within
 * limits, and may hold members that we do not know, which are skipped. Pure.
 *
 *   record  what a node wants, written by that node alone
 *   world   a round: its members in the order of their ranks. Written once, never changed
 *   news    what has become of that round, and who else is there
 *   mark    who: the leader, or whoever closed the job
 *   master  where the workers of a round meet */
#ifndef MU_RDZV_FOLD_DOC_H
#define MU_RDZV_FOLD_DOC_H

#include "base/buf.h"
#include "rdzv/doc.h"

#define MU_FOLD_VERSION 1
#define MU_FOLD_NAME_MAX 255           /* bytes of a node's name */
#define MU_FOLD_VALUE_MAX (1u << 20)   /* bytes of any value: etcd's own limit is 1.5 MiB for a whole request */
#define MU_FOLD_MEMBERS_MAX (1u << 14) /* of a world */
#define MU_FOLD_HOLD_MAX_MS 3600000    /* above this a world's hold_ms is none of ours */
#define MU_FOLD_ADDR_MAX 256           /* as in struct muster_store_info */
#define MU_FOLD_ID_TEXT_MAX 17         /* 16 hexadecimal digits */

/* Identities of nodes and worlds are random and not 0; on the wire, 16 hexadecimal digits. */
const char *mu_fold_id_text(uint64_t id, char text[static MU_FOLD_ID_TEXT_MAX]);
bool mu_fold_id_parse(struct mu_slice text, uint64_t *ret_id);

struct mu_fold_record {
    char name[MU_FOLD_NAME_MAX + 1];
    int64_t pid, local_id;
    int64_t nodes_min, nodes_max;
    uint64_t seq;   /* of what one node has written: the highest counts */
    bool joining;   /* into the next round; else it stays in `world` */
    uint64_t world; /* joining: the one that it has left last, and is in no more; 0: none */
};

struct mu_fold_member {
    uint64_t id;
    struct mu_node node; /* the name is the world's, and terminated */
};

struct mu_fold_place {
    uint64_t id;
    uint32_t rank;
};

struct mu_fold_world {
    uint64_t id; /* 0: there is none */
    int64_t round;
    uint64_t hold_ms; /* so long nobody is told of nodes that wait */
    struct mu_fold_member *members;
    size_t count;
    struct mu_fold_place *places; /* by id; of a world that was read */
    struct mu_buf bytes;          /* as it was read or written: it is put back like that */
};

struct mu_fold_news {
    uint64_t world; /* that they are of; 0: there was none */
    uint32_t *gone; /* ranks, ascending */
    size_t gone_count;
    int64_t waiting, spares, joined;
    int64_t apart;     /* of the spares, have limits that do not go together with the others'; on the wire optional */
    int64_t newcomers; /* of those who wait, were not in the last round; on the wire optional */
    char who[MU_FOLD_NAME_MAX + 1]; /* the first of them; on the wire optional */
    int64_t last_call_ms;           /* left of it when this was written; -1: it has not begun */
    bool grace;                     /* the world was put back: its members have a lease's time to come back, too */
};

struct mu_fold_master {
    uint64_t world;
    char addr[MU_FOLD_ADDR_MAX];
    uint16_t port, agents_port; /* of the workers' store, and of the agents' (mostly the same) */
};

/* Into `out`, which is emptied first. 0, MUSTER_ENOMEM, or MUSTER_ELIMIT: more than MU_FOLD_VALUE_MAX. */
int mu_fold_record_write(const struct mu_fold_record *record, struct mu_buf *out);
int mu_fold_world_write(struct mu_fold_world *world); /* into its own bytes */
int mu_fold_news_write(const struct mu_fold_news *news, struct mu_buf *out);
int mu_fold_mark_write(uint64_t node, struct mu_buf *out);
int mu_fold_master_write(const struct mu_fold_master *master, struct mu_buf *out);

/* 0; MUSTER_ENOMEM; MUSTER_ERDZV_STATE, naming the member that is wrong. On failure nothing is to be freed, and what
 * was there is as it was. Worlds and news replace what *ret_... holds. */
int mu_fold_record_read(struct mu_slice bytes, struct mu_fold_record *ret_record, struct muster_error *reterr);
int mu_fold_world_read(struct mu_slice bytes, struct mu_fold_world *ret_world, struct muster_error *reterr);
int mu_fold_news_read(struct mu_slice bytes, struct mu_fold_news *ret_news, struct muster_error *reterr);
int mu_fold_mark_read(struct mu_slice bytes, uint64_t *ret_node, struct muster_error *reterr);
int mu_fold_master_read(struct mu_slice bytes, struct mu_fold_master *ret_master, struct muster_error *reterr);

/* Of what could not be read: a value of a newer version of muster; or there is no memory to tell. It is not ours to
 * replace. */
bool mu_fold_is_newer(struct mu_slice bytes);

/* Zeroed memory is empty; done() leaves it so. */
void mu_fold_world_done(struct mu_fold_world *world);
void mu_fold_news_done(struct mu_fold_news *news);
/* The rank of a node in a world that was read; -1: it is not in it. */
int64_t mu_fold_world_rank(const struct mu_fold_world *world, uint64_t id);
bool mu_fold_news_gone(const struct mu_fold_news *news, int64_t rank);

#endif
