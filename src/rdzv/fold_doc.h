/* What the nodes of an etcd-v3 rendezvous write into etcd, as JSON: each value has a version "v", is read within
 * limits, and may hold members that we do not know, which are skipped. Values of another version are refused. Pure.
 *
 *   record  what a node wants, written by that node alone
 *   world   a round, in numbers. Written once, never changed
 *   seat    which rank a node has in a world
 *   page    members of a world by rank, MU_FOLD_PAGE_MEMBERS of them
 *   news    what has become of that round, and who else is there
 *   mark    who: the leader, or a node that is done
 *   closed  who closed the job, and how it ended
 *   master  where the workers of a round meet
 *
 * World, seat and news are at most MU_FOLD_SMALL_MAX bytes, however many nodes there are: every node reads them. */
#ifndef MU_RDZV_FOLD_DOC_H
#define MU_RDZV_FOLD_DOC_H

#include "base/buf.h"
#include "rdzv/doc.h"

#define MU_FOLD_VERSION 2
#define MU_FOLD_NAME_MAX 255   /* bytes of a node's name */
#define MU_FOLD_SHOWN_MAX 48   /* of a name in worlds and news, with a NUL: for people, printable and cut */
#define MU_FOLD_ROLE_MAX 255   /* bytes of a role */
#define MU_FOLD_CAUSE_MAX 256  /* of what is said of an end, with a NUL: printable and cut */
#define MU_FOLD_WHY_MAX 352    /* of why a round ended, with a NUL */
#define MU_FOLD_CHARGES_MAX 32 /* restarts that a window can count */
#define MU_FOLD_WINDOW_MAX_S 1000000000
#define MU_FOLD_NAMED_MAX 8            /* nodes that the news name; the others are counted */
#define MU_FOLD_VALUE_MAX (1u << 20)   /* bytes of any value: etcd's own limit is 1.5 MiB for a whole request */
#define MU_FOLD_SMALL_MAX 1024         /* of a world, a seat, the news */
#define MU_FOLD_MEMBERS_MAX (1u << 14) /* of a world */
#define MU_FOLD_PAGE_MEMBERS 128
#define MU_FOLD_SIZE_MAX (1 << 20)                                            /* workers of one node */
#define MU_FOLD_WORKERS_MAX (MU_FOLD_SIZE_MAX * (int64_t)MU_FOLD_MEMBERS_MAX) /* of a world */
#define MU_FOLD_COUNT_MAX 1000000000 /* restarts, or crashes in a row; more are not counted */
#define MU_FOLD_SPANS_MAX 16         /* of ranks that are gone, in the news */
#define MU_FOLD_HOLD_MAX_MS 3600000  /* above this a world's hold_ms is none of ours */
#define MU_FOLD_ADDR_MAX 256         /* as in struct muster_store_info */
#define MU_FOLD_ID_TEXT_MAX 17       /* 16 hexadecimal digits */

/* Identities of nodes and worlds are random and not 0; on the wire, 16 hexadecimal digits. */
const char *mu_fold_id_text(uint64_t id, char text[static MU_FOLD_ID_TEXT_MAX]);
bool mu_fold_id_parse(struct mu_slice text, uint64_t *ret_id);

/* What has become of a node's workers in a world, as it says itself. */
#define MU_FOLD_ENDS(X)                                                                                                \
    X(NONE, "")         /* nothing so far */                                                                           \
    X(FAILED, "failed") /* one of them has: rank, text */                                                              \
    X(DONE, "done")     /* all have succeeded */                                                                       \
    X(AGAIN, "again")   /* the node ends the round because nodes want to join: text, why */                            \
    X(LEFT, "left")     /* the node leaves the job: text, why */                                                       \
    X(LOST, "lost")     /* the same, without its own doing: text, how */

enum mu_fold_end_kind {
#define X(name, text) MU_FOLD_END_##name,
    MU_FOLD_ENDS(X)
#undef X
};

static inline bool mu_fold_end_is_goodbye(enum mu_fold_end_kind kind) /* the node goes, and does not come back */
{
    return kind == MU_FOLD_END_LEFT || kind == MU_FOLD_END_LOST;
}

struct mu_fold_end {
    enum mu_fold_end_kind kind;
    uint64_t world;
    int64_t rank; /* FAILED: the worker's */
    int64_t at;   /* the revision that said so first; 0: this one */
    char text[MU_FOLD_CAUSE_MAX];
};

/* The member of a world whose agent hosts the store where the job meets. */
struct mu_fold_host {
    int64_t rank;
    char name[MU_FOLD_SHOWN_MAX]; /* "": no member does */
};

struct mu_fold_record {
    char name[MU_FOLD_NAME_MAX + 1];
    int64_t pid, local_id;
    int64_t nodes_min, nodes_max;
    uint64_t seq;   /* of what one node has written: the highest counts */
    bool joining;   /* into the next round; else it stays in `world` */
    uint64_t world; /* joining: the one that it has left last, and is in no more; 0: none */
    /* Of the world that it stays in: who leads may have to write it again. Joining: of `world`, if that was lost with
     * its store, and then rank -1 says that this node was not in it; else nodes is 0. */
    int64_t round, rank, nodes, count, world_size;
    int64_t crashes, charges[MU_FOLD_CHARGES_MAX]; /* as of a world, by now. Optional on the wire */
    size_t charges_count;
    struct mu_fold_host host; /* joining, or staying though the store was lost: who hosted it. Optional on the wire */
    /* Of its workers. */
    char role[MU_FOLD_ROLE_MAX + 1];
    int64_t size;                   /* how many */
    int64_t max_restarts, window_s; /* joining: as its own options say; else the job's */
    struct mu_fold_end end;         /* of the world that it was in last */
};

struct mu_fold_world {
    uint64_t id; /* 0: there is none */
    int64_t round, nodes;
    uint64_t hold_ms;              /* so long nobody is told of nodes that wait */
    bool one_host;                 /* all members have the same name */
    char first[MU_FOLD_SHOWN_MAX]; /* who has rank 0; "": not known */
    int64_t first_pid, first_local_id;
    struct mu_fold_host host;    /* optional on the wire */
    int64_t size;                /* workers, of all nodes */
    int64_t count, max_restarts; /* restarts so far, and how many there may be: as the first world says */
    char why[MU_FOLD_WHY_MAX];   /* the last round ended; "": this is the first */
    int64_t crashes;             /* rounds before this one, in a row, that failed soon after their start: slowdown.h */
    int64_t window_s;            /* only restarts that are not older count; 0: all do */
    int64_t charges[MU_FOLD_CHARGES_MAX]; /* with a window: how many seconds ago they were */
    size_t charges_count;
    int64_t rest_ms; /* ... and what is less than a second of that. Optional on the wire */
};

struct mu_fold_seat {
    int64_t rank;
    int64_t base_rank, base_role_rank, role_size; /* of its workers */
};

struct mu_fold_closed {
    uint64_t node; /* who closed it */
    bool has_verdict, succeeded;
    char cause[MU_FOLD_CAUSE_MAX]; /* of a failure */
};

struct mu_fold_member {
    uint64_t id;         /* 0: not known */
    struct mu_node node; /* of a page that was read, the name is the page's, and terminated */
};

struct mu_fold_place {
    uint64_t id;
    uint32_t rank;
};

/* Who is in a world, by rank, as far as it is known. Zeroed memory is nobody. */
struct mu_fold_members {
    uint64_t world;
    struct mu_fold_member *items;
    size_t count;                 /* its nodes */
    struct mu_fold_place *places; /* by id */
    size_t places_count;
};

struct mu_fold_span { /* of ranks */
    uint32_t first, last;
};

struct mu_fold_news {
    uint64_t world;  /* that they are of; 0: there was none */
    int64_t gone;    /* how many members are: have left it, or are lost */
    int64_t missing; /* ... of which these are lost: their records went while they were in it */
    /* Their ranks, ascending and apart from each other; `gone` may be more of them than there was room for. */
    struct mu_fold_span spans[MU_FOLD_SPANS_MAX];
    size_t spans_count;
    struct mu_fold_span done[MU_FOLD_SPANS_MAX]; /* ranks that were done and are gone: not lost. Optional on the wire */
    size_t done_count;
    char lost[MU_FOLD_NAMED_MAX][MU_FOLD_SHOWN_MAX]; /* the first of them */
    size_t lost_count;
    bool over;                     /* the world is: everybody stops, and joins anew */
    char cause[MU_FOLD_CAUSE_MAX]; /* ... because of this */
    int64_t waiting, spares, joined;
    int64_t apart;                /* of the spares, have limits that do not go together with the others' */
    int64_t newcomers;            /* of those who wait, were not in the last round */
    char who[MU_FOLD_SHOWN_MAX];  /* the first of them; "": none */
    char held[MU_FOLD_SHOWN_MAX]; /* the first node that is held off, for it comes and goes; "": none */
    int64_t held_ms;              /* for so long yet; this and the next are at most slowdown.h's maxima */
    int64_t pause_ms;             /* so long it is yet until the next round may begin: rounds have failed at once */
    int64_t last_call_ms;         /* left of it when this was written; -1: it has not begun */
    bool grace;                   /* the world was put back: its members have a lease's time to come back, too */
};

struct mu_fold_master {
    uint64_t world;
    char addr[MU_FOLD_ADDR_MAX];
    uint16_t port, agents_port; /* of the workers' store, and of the agents' (mostly the same) */
};

/* Into `out`, which is emptied first. 0, MUSTER_ENOMEM, or MUSTER_ELIMIT: more than MU_FOLD_VALUE_MAX. */
int mu_fold_record_write(const struct mu_fold_record *record, struct mu_buf *out);
int mu_fold_world_write(const struct mu_fold_world *world, struct mu_buf *out);
int mu_fold_seat_write(const struct mu_fold_seat *seat, struct mu_buf *out);
int mu_fold_page_write(const struct mu_fold_member *members, size_t count, struct mu_buf *out);
int mu_fold_news_write(const struct mu_fold_news *news, struct mu_buf *out);
int mu_fold_mark_write(uint64_t node, struct mu_buf *out);
int mu_fold_closed_write(const struct mu_fold_closed *closed, struct mu_buf *out);
int mu_fold_master_write(const struct mu_fold_master *master, struct mu_buf *out);

/* 0; MUSTER_ENOMEM; MUSTER_ERDZV_STATE, naming the member that is wrong. On failure what was there is as it was. */
int mu_fold_record_read(struct mu_slice bytes, struct mu_fold_record *ret_record, struct muster_error *reterr);
int mu_fold_world_read(struct mu_slice bytes, struct mu_fold_world *ret_world, struct muster_error *reterr);
int mu_fold_seat_read(struct mu_slice bytes, struct mu_fold_seat *ret_seat, struct muster_error *reterr);
int mu_fold_news_read(struct mu_slice bytes, struct mu_fold_news *ret_news, struct muster_error *reterr);
int mu_fold_mark_read(struct mu_slice bytes, uint64_t *ret_node, struct muster_error *reterr);
int mu_fold_stock_read(struct mu_slice bytes, bool *ret_old, struct muster_error *reterr); /* by store/engine.c */
int mu_fold_closed_read(struct mu_slice bytes, struct mu_fold_closed *ret_closed, struct muster_error *reterr);
int mu_fold_master_read(struct mu_slice bytes, struct mu_fold_master *ret_master, struct muster_error *reterr);

/* Of what could not be read: another version of muster wrote it; or there is no memory to tell. It is not ours to
 * replace. */
bool mu_fold_is_other_version(struct mu_slice bytes);

bool mu_fold_news_gone(const struct mu_fold_news *news, int64_t rank); /* as far as they say */
bool mu_fold_news_done(const struct mu_fold_news *news, int64_t rank);
/* Adds a rank that is higher than those before, and its name, as far as there is room. */
void mu_fold_news_add_done(struct mu_fold_news *news, uint32_t rank);
void mu_fold_news_add_gone(struct mu_fold_news *news, uint32_t rank, struct mu_slice name);

/* ---- Members ---- */

/* Nobody is known of them yet. 0 or MUSTER_ENOMEM; then they are as they were. */
int mu_fold_members_init(struct mu_fold_members *members, uint64_t world, size_t count);
void mu_fold_members_done(struct mu_fold_members *members); /* leaves them zeroed */
/* The name is copied. 0 or MUSTER_ENOMEM. Whoever had that rank before is forgotten. */
int mu_fold_members_set(struct mu_fold_members *members, size_t rank, const struct mu_fold_member *member);
/* What is at "member/<world>/<number>". As above; members that are wrong leave the rest as it was. */
int mu_fold_members_read_page(struct mu_fold_members *members, size_t number, struct mu_slice bytes,
                              struct muster_error *reterr);
/* So that ranks are found. False: somebody is in it twice. */
bool mu_fold_members_sort(struct mu_fold_members *members);
bool mu_fold_members_all_known(const struct mu_fold_members *members);
/* The rank of a node, once they are sorted; -1: it is not in it. */
int64_t mu_fold_members_rank(const struct mu_fold_members *members, uint64_t id);

#endif
