/* What the files of the etcd-v3 rendezvous share; nobody else includes it. See fold.h.
 *   fold.c            events, and what becomes of requests
 *   fold_view.c       what is below job/
 *   fold_crowd.c      who else waits, for messages
 *   fold_host.c       the node that hosts the store
 *   fold_handover.c   nodes that cannot meet here, and the document in which all do then
 *   fold_observe.c    what the state means for this node, and what its owner is told
 *   fold_seat.c       whether a world has a seat for us, and who else is in it
 *   fold_write.c      requests, and what a node writes for itself
 *   leader.c          only while this node leads: records in; what is to be made of them
 *   leader_holders.c  only while this node leads: worlds that were lost, as records tell of them
 *   leader_pages.c    only while this node leads: what it reads when it begins to lead
 *   leader_stays.c    only while this node leads: who comes and goes
 *   leader_write.c    only while this node leads: worlds and news out */
#ifndef MU_RDZV_FOLD_PARTS_H
#define MU_RDZV_FOLD_PARTS_H

#include "rdzv/attribution.h"
#include "rdzv/fold.h"
#include "rdzv/slowdown.h"

struct entry { /* of nodes/ */
    uint64_t id;
    uint64_t under; /* the lease in the key: several of one node differ in it */
    int64_t create, mod;
    int64_t overwritten; /* the revision of what somebody else wrote over it; 0: nobody did */
    struct mu_fold_record record;
};

struct view {
    bool loaded;
    uint64_t load_id; /* 0: no load is under way */
};

/* A key of job/, as it was last seen. What is FOREIGN none of us wrote: it counts as missing, and is replaced. What is
 * OTHER another version of muster wrote: it is refused, and stays. */
enum job_key { JOB_DOC, JOB_NEWS, JOB_LEADER, JOB_CLOSED, JOB_STOCK, JOB_MOVED, JOB_KEYS };
enum key_value { KEY_NONE, KEY_OURS, KEY_FOREIGN, KEY_OTHER };

struct key_seen {
    enum key_value value;
    int64_t mod, lease;
};

/* Whether the document's world has a seat for us.
 *
 *   UNASKED <--> ASKED --there is none--> NONE
 *                  |---there is one--> FOUND
 *                  +---there is one, and names are wanted--> RANKED <--> NAMES_ASKED --> FOUND
 */
enum seat_state { SEAT_UNASKED, SEAT_ASKED, SEAT_NONE, SEAT_RANKED, SEAT_NAMES_ASKED, SEAT_FOUND };

struct seat {
    enum seat_state state;
    uint64_t world;    /* whose; 0: there is none */
    int64_t nodes;     /* ... of so many */
    uint64_t id;       /* of the request that is under way */
    uint64_t again_ms; /* names are not asked for before this */
    char key[MU_FOLD_KEY_MAX];
    struct mu_fold_seat found;
    struct mu_fold_members names;
};

/* What our owner reports: it is a part of our record.
 *   NONE --report--> WANTED <--> SENT --acknowledged: told--> NONE
 * If it leaves without a report, one is made for it (report_round OWN_REPORT), of which nothing is told. */
enum { OWN_REPORT = -2 };
enum report_state { REPORT_NONE, REPORT_WANTED, REPORT_SENT };

/* Whether etcd does what it is asked for. */
enum away {
    AWAY_NOT,
    AWAY_SILENT,  /* it cannot be heard */
    AWAY_REFUSES, /* it answers, and refuses what has to be done: it has no space, for example */
};

/* Whose process holds the keys. */
struct host {
    enum { HOST_OUTSIDE, HOST_NODE, HOST_SELF } kind; /* none of the job's, or not known yet; another node's; ours */
    char name[MU_FOLD_NAME_MAX + 1];
    int64_t pid, local_id;
};

/* The newest world that we know of; id 0: none. */
struct known {
    struct mu_fold_world world;
    int64_t rank;      /* that we have, or had, in it; -1: none */
    uint64_t since_ms; /* when we first saw it */
    bool is_lost;      /* the store that it was written to was replaced by another one */
};

#define MU_FOLD_HOST_REPLACED "the store that it hosted is gone"

/* Our record in etcd, as it was last written. */
enum record_state { RECORD_MISSING, RECORD_JOINS, RECORD_STAYS };
enum { OPS_MAX = 3 }; /* of a write that is no world */
enum written { RECORD, CROWN, CLOSED_MARK, RECORD_BACK, NO_DOC, SEATS, WORLD, NEWS, MOVE };

/* Whether a member of the document's world is in it still. Who has left it is not lost from it later.
 *
 *   HERE ---> LEFT       its record says so
 *    |   +--> MISSING    it has no record any more
 *    v   |
 *   GONE +               the news say only that it is one of these
 */
enum gone { HERE, GONE, LEFT, MISSING };

/* What members said first of their ends, of one kind. */
struct said {
    struct mu_fold_end end; /* kind NONE: nobody did */
    size_t rank;            /* of the node */
    uint64_t ms;            /* when the first was heard */
};

/* What has become of a member of the document's world. */
struct fate {
    enum gone gone;
    bool done;
    bool hosted;               /* it hosted the store, and went with it */
    enum mu_fold_end_kind end; /* as it says */
    uint64_t gone_ms;          /* GONE, MISSING, or it has said goodbye: when that was noticed */
    enum mu_fold_how how;      /* its record went */
    uint64_t heard_ms;         /* how is known: when it was last heard */
};

/* Of nodes, ascending. */
struct ids {
    uint64_t *items;
    size_t count, room;
};

enum { STALE_MAX = 3 }; /* worlds that are taken away at a time */

/* What only the leader knows. */
struct lead {
    struct entry **entries; /* of nodes/, sorted by id, then by lease */
    size_t entries_count, entries_room;
    /* Whose members, who said goodbye, and what of older worlds is there: read once, when we begin to lead. */
    uint64_t pages_id; /* the read is under way */
    bool pages_read;
    bool pages_broken;                      /* of the document's world some are missing */
    struct mu_fold_members members;         /* of the document's world; or of one that is to be put back */
    struct fate *fates;                     /* ... by rank */
    size_t fates_count;                     /* as many as members */
    struct said said[MU_FOLD_END_LOST + 1]; /* by kind */
    bool stays_ended;                       /* of these members: that is in `slowdown` */
    struct mu_slowdown slowdown;
    struct ids done;           /* nodes that are */
    struct ids killed;         /* nodes whose keeper says that their agent was */
    uint64_t stale[STALE_MAX]; /* worlds whose seats and pages are to be taken away */
    size_t stale_count;
    struct mu_fold_host hosted; /* of the member that went with its store: `fates` */
    uint64_t put_back_at_ms;    /* a world that only records know is put back then at the latest; UINT64_MAX: none */
    uint64_t fold_at_ms;        /* not before this */
    uint64_t move_at_ms;        /* the same, for a move to a document */
    /* The world that is being written, one batch after the other. */
    struct mu_fold_world next;           /* id 0: none is */
    struct mu_fold_members next_members; /* id 0 in a member: its seat is not written */
    struct mu_fold_seat *seats;          /* of its members; NULL: it is put back, and its members have theirs */
    uint64_t was_put_back;               /* the last world that was */
    size_t written;                      /* pages and seats so far */
    size_t writing;                      /* ... and with the batch under way */
    struct mu_fold_op *ops;
    size_t *at; /* where the key and the value of each are in `text` */
    struct mu_buf text;
};

struct mu_fold {
    struct mu_rdzv_settings settings;
    struct mu_fold_record record; /* who we are; what we want is in `written` and wanted() */
    const char *service;          /* for people */
    uint64_t id, lease_ms, job_lease_ms, first_ms;
    int64_t max_restarts, window_s; /* as our own options say */
    char how_lost[48];              /* for people: how silence is noticed here */
    bool tells_how;
    size_t ops_max;
    bool wants_names;
    bool has_documents; /* the store has; written in this dialect: */
    struct mu_doc_dialect dialect;
    struct mu_rng rng;
    enum mu_fold_phase phase;
    uint64_t now_ms, last_id, wake_ms;
    struct mu_fold_effects *out; /* of this step */
    /* What is in etcd, as far as we know. */
    bool ever_heard;
    uint64_t first_until_ms;
    bool active; /* something was asked of us: job/ is looked at */
    struct view job, nodes;
    struct key_seen seen[JOB_KEYS];
    struct mu_fold_world doc;
    struct mu_fold_news news;
    struct mu_fold_closed closed;
    struct mu_part_verdict verdict;
    bool outsiders_are_old; /* JOB_STOCK: the first of them is of PyTorch before 2.2 */
    bool has_moved;
    uint64_t leader;
    uint64_t doc_since;                        /* which one */
    uint64_t doc_since_ms;                     /* when we first saw it */
    uint64_t news_since_ms;                    /* when they came */
    struct muster_error other;                 /* why something is OTHER */
    struct muster_error foreign, told_foreign; /* what was found; code 0: nothing that is to be told */
    uint64_t back_id, back_under;              /* the record that is put back */
    struct lead lead;
    /* Our own part. */
    uint64_t lease_take; /* the id of TAKE_LEASE; 0: there is none, and none is being taken */
    int64_t lease;       /* 0: not (yet) */
    bool lease_was_lost;
    uint64_t fence_ms, renewed_ms; /* when what renewed our lease last was sent */
    char fence_text[64];
    enum away away;            /* etcd */
    uint64_t away_since_ms;    /* SILENT; UINT64_MAX: it is not */
    uint64_t refused_since_ms; /* ... and nobody listens there */
    struct host host;
    const char *endpoint; /* where it listens, for people; NULL: not known */
    struct known known;
    char host_text[MU_FOLD_SHOWN_MAX + 64]; /* how it was lost */
    uint64_t told_host_of;                  /* of which world its loss was told; 0: of none */
    bool was_away;                          /* ... SILENT, since job/ was read */
    enum record_state record_is;            /* under this lease; if there is one, it names this world: */
    uint64_t written_world;
    int64_t record_mod; /* its revision */
    bool checks_record; /* it is time to look whether somebody has overwritten it */
    struct seat seat;
    struct mu_fold_world world;   /* MEMBER: ours */
    struct mu_fold_members names; /* ... if they are wanted */
    int64_t rank;
    struct mu_part_seat seat_told;
    bool told_over; /* that it is over, with so many of its members gone: */
    int64_t told_gone;
    enum report_state report;
    int64_t done_lease; /* of the job: under which our done mark was put last */
    int64_t report_round;
    uint64_t left[MU_FOLD_LEFT_MAX]; /* worlds that we were in, or could have been; the newest last */
    size_t left_count;
    uint64_t left_world; /* as our record says */
    uint64_t last_world; /* that we were in */
    uint64_t joined_ms, deadline_ms, close_deadline_ms;
    uint64_t drop_id;     /* LEAVING */
    uint64_t leave_by_ms; /* a MEMBER that is to leave, once its report is written; 0: it is not */
    bool closing, looking, told_closed, told_waiting, was_leader;
    uint64_t told_closed_in; /* which world; 0: we were in none */
    struct mu_part_progress told;
    bool has_told;
    /* Who else waits, while we join. */
    struct mu_waiters crowd;
    uint64_t join_since_ms, look_at_ms; /* when the join was asked for; when we look around next */
    int64_t marked_lease;               /* under which our mark was put; 0: it was not */
    bool may_be_marked;
    /* Requests. */
    uint64_t write_id, grant_id, keep_id, look_id; /* 0: none is under way */
    enum written writing;
    uint64_t write_take; /* under which of our leases */
    int64_t job_mod;     /* the newest change of job/ that we have seen */
    int64_t awaited_mod; /* what we wrote there and have not seen yet: until then nothing more is folded */
    uint64_t awaited_until_ms;
    uint64_t loads, write_loads;   /* how often job/ was read; and had been when the write was made */
    int64_t granted_job, dead_job; /* leases of the job: one that we took, one that is gone */
    int64_t write_job, keep_lease; /* that the write and the keep-alive under way are about */
    uint64_t retry_at_ms, retry_ms;
    uint64_t keep_at_ms;
    uint64_t crown_at_ms; /* UINT64_MAX: the leader's place is not empty */
    uint64_t grace_until_ms;
    uint64_t call_since_ms; /* the minimum is there; UINT64_MAX: it is not */
    int64_t call_leader; /* ... as we saw it in the leader's place of this revision: reading it again is no new call */
    uint64_t news_at_ms; /* not before this, if they bring only numbers */
    /* What effects point to. */
    struct mu_fold_write write;
    struct mu_fold_op ops[OPS_MAX], else_op;
    struct mu_buf value, mark, waiting, killed_mark, document;
    char killed_key[MU_FOLD_KEY_MAX];
    char key[MU_FOLD_KEY_MAX], done_key[MU_FOLD_KEY_MAX], look_key[MU_FOLD_KEY_MAX], goodbye_key[MU_FOLD_KEY_MAX];
    struct muster_error error, why_away;
};

/* fold.c */
struct mu_fold_effect *mu_fold_emit(struct mu_fold *f, enum mu_fold_effect_type type);
struct mu_part_news *mu_fold_tell(struct mu_fold *f, enum mu_part_tell what);
struct mu_fold_effect *mu_fold_request(struct mu_fold *f, enum mu_fold_effect_type type, uint64_t *ret_id);
bool mu_fold_is_answer(const struct mu_fold_event *event, uint64_t *id);
bool mu_fold_is_due(struct mu_fold *f, uint64_t when_ms);
bool mu_fold_is_present(const struct mu_fold *f);
bool mu_fold_was_left(const struct mu_fold *f, uint64_t world);
void mu_fold_note_left(struct mu_fold *f, uint64_t world);
void mu_fold_tell_failed(struct mu_fold *f, enum mu_part_event_type asked);
void mu_fold_back_off(struct mu_fold *f);
void mu_fold_is_heard(struct mu_fold *f);
void mu_fold_is_obeyed(struct mu_fold *f);
void mu_fold_distrust(struct view *view);
void mu_fold_become_idle(struct mu_fold *f);

/* fold_host.c */
bool mu_fold_is_host(const struct mu_fold *f, const struct mu_fold_record *record); /* that node hosts the store */
void mu_fold_on_met(struct mu_fold *f, const struct mu_fold_event *event);
bool mu_fold_a_peer_hosts(const struct mu_fold *f); /* a member of our world hosts the store, or did */
bool mu_fold_host_is_lost(struct mu_fold *f);       /* a member of our world hosted the store, and is gone with it */
void mu_fold_observe_host(struct mu_fold *f);
void mu_fold_note_known(struct mu_fold *f);     /* the document's world */
bool mu_fold_gives_up_store(struct mu_fold *f); /* our join fails because it is lost: f->error */
void mu_fold_tell_away(struct mu_fold *f);

/* fold_handover.c */
struct folded;
#define MU_FOLD_OUTSIDER "a PyTorch node" /* who waits for the document, for people */
bool mu_fold_has_outsiders(const struct mu_fold *f);
int mu_fold_write_closed_document(struct mu_fold *f); /* before mu_fold_is_encoded(), whose rc this is */
void mu_fold_put_closed_document(struct mu_fold *f);  /* with the job's end */
bool mu_leader_move(struct mu_fold *f, const struct folded *folded);
void mu_leader_move_failed(struct mu_fold *f);
bool mu_fold_observe_moved(struct mu_fold *f);

/* fold_view.c */
extern const char *const mu_fold_key_names[JOB_KEYS];
bool mu_fold_has(const struct mu_fold *f, enum job_key key); /* and it is ours */
bool mu_fold_has_news(const struct mu_fold *f);              /* of the document's world */
void mu_fold_see_foreign(struct mu_fold *f, const struct mu_fold_kv *kv, const char *then);
bool mu_fold_contradicts(int64_t round, int64_t nodes, const struct mu_fold_world *world);
void mu_fold_begin_grace(struct mu_fold *f);
void mu_fold_on_loaded(struct mu_fold *f, const struct mu_fold_event *event);
void mu_fold_on_changed(struct mu_fold *f, const struct mu_fold_event *event);

/* fold_crowd.c */
void mu_fold_say_timeout(struct mu_fold *f);
void mu_fold_on_crowd(struct mu_fold *f, const struct mu_fold_event *event);
const char *mu_fold_apart_text(const struct mu_fold *f, int64_t apart, char text[static MU_WAITERS_NOTE_MAX]);

/* fold_observe.c */
void mu_fold_tell_removed(struct mu_fold *f, const char *cause); /* of our world; `cause` as in struct mu_part_news */
bool mu_fold_is_spare(const struct mu_fold *f);
bool mu_fold_was_spare(const struct mu_fold *f); /* also while the store is away */
void mu_fold_observe(struct mu_fold *f);

/* fold_seat.c */
void mu_fold_seat_observe(struct mu_fold *f);
void mu_fold_seat_ask(struct mu_fold *f);
bool mu_fold_seat_ranged(struct mu_fold *f, const struct mu_fold_event *event);
bool mu_fold_seat_failed(struct mu_fold *f, const struct mu_fold_event *event);
size_t mu_fold_pages(size_t nodes);
/* False: it is no page. */
bool mu_fold_parse_page(struct mu_slice key, uint64_t *ret_world, size_t *ret_number);
/* Reads every page that is among the keys. 0 or MUSTER_ENOMEM; *ret_pages: how many were whole. */
int mu_fold_read_pages(const struct mu_fold_event *event, struct mu_fold_members *members, size_t *ret_pages);

/* fold_write.c */
void mu_fold_put(struct mu_fold *f, const char *key, const struct mu_buf *value, int64_t lease);
void mu_fold_compare(struct mu_fold *f, enum mu_fold_compare_kind kind, const char *key, int64_t revision);
void mu_fold_compare_key(struct mu_fold *f, enum job_key key);
void mu_fold_name_record(struct mu_fold *f, uint64_t id, uint64_t lease);
void mu_fold_send(struct mu_fold *f, enum written what);
void mu_fold_write_record(struct mu_fold *f);
bool mu_fold_is_encoded(struct mu_fold *f, int rc);
int64_t mu_fold_need_job_lease(struct mu_fold *f);
void mu_fold_renewed(struct mu_fold *f, const struct mu_fold_event *event);
bool mu_fold_is_fenced(struct mu_fold *f);
void mu_fold_load(struct mu_fold *f, struct view *view, enum mu_fold_scope scope);
void mu_fold_drive(struct mu_fold *f);

/* leader.c */
void mu_leader_forget(struct mu_fold *f);
bool mu_leader_parse_key(struct mu_slice key, uint64_t *ret_id, uint64_t *ret_under);
/* "nodes/<id>/<word>" */
bool mu_leader_parse_mark(struct mu_slice key, const char *word, uint64_t *ret_id);
bool mu_leader_apply(struct mu_fold *f, const struct mu_fold_kv *kv);
bool mu_leader_put_back(struct mu_fold *f);
const struct entry *mu_leader_newest(const struct mu_fold *f, size_t at, size_t *ret_next);
void mu_leader_end_put_back(struct mu_fold *f, bool lease_gone);
void mu_leader_name_member(const struct mu_fold_members *members, const struct mu_node *node,
                           char text[static MU_FOLD_SHOWN_MAX]);
void mu_leader_hear_end(struct mu_fold *f, size_t rank, const struct entry *entry);
const struct entry *mu_leader_find_node(const struct mu_fold *f, uint64_t id);
bool mu_leader_is_lost(const struct fate *fate);
void mu_leader_fold(struct mu_fold *f);
void mu_leader_drive(struct mu_fold *f);
void mu_leader_done(struct mu_fold *f);

/* leader_holders.c */
bool mu_leader_is_holder(const struct mu_fold *f, const struct mu_fold_record *record);
bool mu_leader_hold_the_same(const struct mu_fold_record *a, const struct mu_fold_record *b);
void mu_leader_hear_holders(struct mu_fold *f);
void mu_leader_hear_of_lost_host(struct mu_fold *f);
void mu_leader_put_world_back(struct mu_fold *f);

/* leader_pages.c */
void mu_leader_forget_members(struct lead *l);
bool mu_leader_knows_members(const struct mu_fold *f); /* of the document's world */
void mu_leader_see_news(struct mu_fold *f);
void mu_leader_ask_pages(struct mu_fold *f);
bool mu_leader_ranged(struct mu_fold *f, const struct mu_fold_event *event);
bool mu_leader_failed(struct mu_fold *f, const struct mu_fold_event *event);

struct candidate {
    const struct entry *entry;
    int64_t place; /* its rank of before; INT64_MAX: none */
    bool out, wants_more;
};

struct folded {
    size_t in;                    /* members who are in the document's world */
    size_t unknown;               /* of them, have no record: nobody knows their limits */
    struct candidate *candidates; /* who wants into the next, in the order of their claims */
    size_t count, out;            /* out: were left out */
    int64_t nodes_min, nodes_max; /* that suit all of them, and those who are in */
    size_t back;                  /* of them, were in the last world */
    size_t apart;                 /* of those left out, have limits that do not go together with the others' */
    size_t holders;               /* records of a world that is not there */
    bool over;                    /* the document's world is, */
    bool all_done;                /* or all its members are */
    struct mu_attribution why;
    const char *held; /* the first that is held off; NULL: nobody is */
    uint64_t held_until_ms;
    uint64_t paused_until_ms; /* the next round does not begin before this; 0: it may */
};

/* leader_stays.c */
void mu_leader_end_stays(struct mu_fold *f, const struct folded *folded);
void mu_leader_hold_off(struct mu_fold *f, struct folded *folded);

/* leader_write.c */
int64_t mu_leader_used(const struct mu_fold *f);
void mu_leader_begin_world(struct mu_fold *f, const struct folded *folded);
void mu_leader_begin_put_back(struct mu_fold *f, const struct mu_fold_record *holder, bool hosted);
void mu_leader_write_batch(struct mu_fold *f);
void mu_leader_batch_written(struct mu_fold *f, bool held);
void mu_leader_give_up_world(struct mu_fold *f);
void mu_leader_write_no_doc(struct mu_fold *f);
void mu_leader_write_news(struct mu_fold *f, const struct folded *folded);
void mu_leader_write_end(struct mu_fold *f, bool succeeded, const char *cause);

#endif
