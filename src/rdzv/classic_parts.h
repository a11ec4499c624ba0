/* What the files of the classic etcd rendezvous share; nobody else includes it. See classic.h.
 *   classic.c           steps: events come in, and which state they are for
 *   classic_requests.c  requests, the document that they bring, errors, watches
 *   classic_prepare.c   PREPARE
 *   classic_join.c      REJOIN_KEY to PAST_LIST, ANNOUNCE to DROP
 *   classic_confirm.c   CONFIRM_KEY to MARKS_READ
 *   classic_group.c     MEMBER_READ to OVER_WATCH; leases
 *   classic_foreign.c   COUNT_LIST, MARK_BACK, MEMBER_BACK: what none of us wrote
 *   classic_quit.c      QUIT_KEY to QUIT_DROP
 *   classic_close.c     closing and looking, beside the states
 *   classic_notices.c   who waits, for people, beside the states */
#ifndef MU_RDZV_CLASSIC_PARTS_H
#define MU_RDZV_CLASSIC_PARTS_H

#include "rdzv/classic.h"

#define NEVER UINT64_MAX
#define QUIT_RETRY_MS 200
#define LEASE_RETRY_MS 500
#define LAPSED_RETRY_MS 2000  /* the same when the key is gone by now, +-50 % */
#define DEADLINE_SLACK_MS 500 /* a request may take so much longer than its reason */
#define ROOT_EVERY_MS (MU_CLASSIC_ROOT_TTL_S * UINT64_C(500))
#define RANK_EVERY_MS (MU_CLASSIC_RANK_TTL_S * UINT64_C(500))
#define ROOT "%.2048s" /* no root is longer: the compiler is told */
#define SELF "/muster/nodes/%016" PRIx64

/* A request under way. */
struct mu_classic_track {
    uint64_t id; /* 0: none */
    enum mu_classic_kind kind;
    uint64_t due_ms; /* when there is none: it is made then */
    char key[MU_CLASSIC_KEY_MAX];
    struct mu_buf value;
};

/* Whether we are a participant of in_version. MAYBE: there was no answer to that join. LEAVING: we wrote ourselves out,
 * and there was no answer. LAST_CALLER: we are, and end the last call. */
enum place { PLACE_NONE, PLACE_MAYBE, PLACE_LEAVING, PLACE_OURS, PLACE_LAST_CALLER };
/* Whether our key was put into its document. */
enum confirmation { CONFIRMED_NOT, CONFIRMED_UNSURELY, CONFIRMED };
/* STAY: out, or in a group. JOIN: a join was asked for and is not answered. QUIT: what can be taken back is taken back,
 * because the owner asked for it, the join has failed, or its time is up. */
enum intent { INTENT_STAY, INTENT_JOIN, QUIT_LEAVE, QUIT_GIVE_UP, QUIT_TIMED_OUT };
/* Whether the document of `announced` was told that we wait. LOST: there was no answer. PERHAPS: somebody has told it,
 * perhaps it was we. */
enum announcement { ANNOUNCED_NOT, ANNOUNCED_LOST, ANNOUNCED_PERHAPS, ANNOUNCED };
/* The directories and the counter. PUT_BACK: the server has lost everything; they and our group are put back. */
enum keys { KEYS_UNKNOWN, KEYS_THERE, KEYS_PUT_BACK };
/* REFUSES: the renewal of our keep-alive; that it answers something else does not help. */
enum server { SERVER_UP, SERVER_AWAY, SERVER_REFUSES };
/* Our keep-alive: it is renewed; or it has expired, and is put back. */
enum keep_alive { KEEP_NONE, KEEP_RENEWED, KEEP_PUT_BACK };
/* The notices of others, since this join began. ALIKE: another node has said that it was started like us. */
enum notices_seen { NOTICES_UNREAD, NOTICES_NONE_ALIKE, NOTICES_ALIKE };
/* The final document of the group that we were in before this join. UNSEEN: it is gone; more nodes may have waited than
 * we know. READ: in this join it was still there. DELETED: by us, so that we know how many waited at the end. */
enum old_doc { OLD_DOC_UNSEEN, OLD_DOC_READ, OLD_DOC_DELETED };
enum doc_value { DOC_OURS, DOC_FOREIGN, DOC_OTHER_LAYOUT };
enum close_state { CLOSE_NONE, CLOSE_READ, CLOSE_WRITE };
enum notice_request { NOTICE_WRITE, NOTICE_DELETE, NOTICES_READ };
/* Directories and the counter; a group that is put back goes on from there. */
enum prepare_step {
    MAKE_PREFIX,
    MAKE_JOB,
    MAKE_RDZV,
    MAKE_COUNTER,
    MAKE_SELF,
    PREPARED,
    PUT_KEY = PREPARED,
    PUT_STORE,
    PUT_DOC,
    FIND_DOC,  /* its answer was lost */
    FIND_SELF, /* and nothing else? */
    PUT_MARK,
    RESTORED
};

struct mu_classic {
    char prefix[MU_CLASSIC_KEY_MAX], root[MU_CLASSIC_KEY_MAX]; /* root: J */
    char node[MU_CLASSIC_NODE_MAX];
    uint64_t self; /* the key by which we see that the server has lost nothing since we came */
    int64_t nodes_min, nodes_max;
    uint64_t join_ms, last_call_ms, close_ms;
    struct mu_rng rng;
    uint64_t now_ms, last_id;
    struct mu_classic_effects *out; /* of this step */
    /* The phases. */
    enum mu_classic_state state;
    struct mu_classic_track main;
    enum keys keys;
    enum prepare_step step;
    size_t mark_rank;   /* whose mark is put back */
    uint64_t put_index; /* the document comes behind that */
    struct mu_buf raw;  /* the document as it was read or written last */
    struct mu_classic_doc doc;
    enum doc_value doc_value;    /* what was there; FOREIGN: `raw` has it, and `doc` is one that is being set up */
    uint64_t foreign_until_ms;   /* FOREIGN: so long a joining node waits for it to be put back */
    uint64_t foreign_index;      /* FOREIGN: when it was written */
    uint64_t put_doc_back_ms;    /* when we last did that */
    struct muster_error foreign; /* what was told of it */
    uint64_t index;              /* it is as of then: watch from the next one */
    unsigned idle_events;        /* of a watch, that were of no interest */
    uint64_t ended_ms;           /* the pause after the last watch, which ended with its connection; 0: it did not */
    int64_t counter;
    uint64_t counter_index;
    enum intent intent; /* mu_classic_set_intent() */
    bool join_next;     /* a join was asked for, and begins when what is under way has ended */
    uint64_t join_since_ms, join_deadline_ms;
    struct muster_error last_error; /* of a request that is tried again; code 0: none */
    /* What may have to be taken back. */
    enum place place;  /* in in_version as `rank`; mu_classic_set_place() */
    bool key_written;  /* our keep-alive of key_version, as key_rank; or it is being written */
    uint64_t in_index; /* of that joining */
    enum confirmation confirmation;
    int64_t in_version, rank, key_version, key_rank;
    enum announcement announcement; /* mu_classic_set_announcement() */
    int64_t announced;              /* the version; -1: none */
    int64_t announced_waiting;      /* LOST: so many waited without us */
    uint64_t announced_ms;
    uint64_t last_call_until_ms, touched_ms;
    /* The group. */
    struct mu_classic_world world;
    char **marks;
    bool *lost; /* that were told, by rank */
    size_t *ranks;
    struct mu_buf group_raw;
    bool over;            /* its document is gone, or is another's */
    bool lapsed;          /* our keep-alive was gone, or our mark is another's: others may go on without us */
    bool verify;          /* the server was away, or we: is the group that is there still ours? */
    uint64_t unmarked_ms; /* since when our mark is missing beside the document; NEVER: it is not */
    uint64_t mark_index;  /* as of when it is missing */
    uint64_t joined_ms, hold_ms, recheck_ms;
    bool waiting_told;
    int64_t waiting; /* seen and not told; 0: none */
    /* The group that we were in before this join. */
    int64_t old_version; /* -1: none */
    bool old_ours;
    size_t old_count;
    int64_t old_waiting;
    enum old_doc old_doc;
    uint64_t old_gone_ms; /* since when none of its keep-alives is there */
    /* Leases. */
    struct mu_classic_track job_lease, rank_lease;
    enum keep_alive keep_alive;
    uint64_t renewed_ms; /* when our keep-alive was there for sure */
    /* Leaving, or giving up. */
    uint64_t quit_deadline_ms;
    struct muster_error error;
    /* Closing and looking. */
    struct mu_classic_track close, look;
    enum close_state close_state;
    uint64_t close_deadline_ms;
    bool closed_told;
    struct muster_error close_error, look_error;
    /* Who waits, for people. */
    struct mu_classic_notice self_notice; /* of this node; a name of "" has none */
    struct mu_node self_node;
    struct mu_classic_track notice;
    enum notice_request notice_request;  /* that is under way */
    char notice_key[MU_CLASSIC_KEY_MAX]; /* where ours is, or may be; "": nowhere */
    uint64_t notice_at_ms;               /* when it is to be written, or renewed */
    uint64_t look_at_ms;                 /* when the notices are to be read */
    enum notices_seen notices_seen;
    struct mu_waiters crowd;
    int64_t crowd_version; /* whose participants it names */
    /* The server. */
    enum server server;
    bool answered;     /* ever */
    uint64_t heard_ms; /* when it last answered, or did not */
    uint64_t judge_ms; /* nobody is judged before */
};

/* A state: what it asks for, from what is known, and what the answer leads to. */
struct mu_classic_phase {
    void (*enter)(struct mu_classic *m);
    void (*on_answer)(struct mu_classic *m, const struct mu_classic_event *event);
    enum mu_classic_state next; /* of a watch, and of a step of setting up: when nothing is in the way */
};

enum { MU_CLASSIC_PHASES_COUNT = MU_CLASSIC_IN_QUIT_DROP + 1 };

static inline bool mu_classic_is_in(const struct mu_classic *m)
{
    return m->place >= PLACE_LEAVING;
}

static inline bool mu_classic_is_quitting(const struct mu_classic *m)
{
    return m->intent >= QUIT_LEAVE;
}

static inline bool mu_classic_is_announced(const struct mu_classic *m)
{
    return m->announcement >= ANNOUNCED_PERHAPS;
}

static inline bool mu_classic_is_last_caller(const struct mu_classic *m)
{
    return m->place == PLACE_LAST_CALLER;
}

/* classic.c */
const struct mu_classic_phase *mu_classic_phase(enum mu_classic_state state);
void mu_classic_enter(struct mu_classic *m);

/* classic_requests.c */
struct mu_part_news *mu_classic_tell(struct mu_classic *m, enum mu_part_tell what);
void mu_classic_tell_failed(struct mu_classic *m, enum mu_part_event_type asked, const struct muster_error *error);
uint64_t mu_classic_until(const struct mu_classic *m, uint64_t when_ms);
uint64_t mu_classic_sooner(uint64_t a, uint64_t b);
/* `format` is what comes behind the job's root. */
__attribute__((format(printf, 4, 5))) struct mu_classic_request *mu_classic_ask(struct mu_classic *m,
                                                                                struct mu_classic_track *track,
                                                                                enum mu_classic_kind kind,
                                                                                const char *format, ...);
void mu_classic_withdraw(struct mu_classic *m, struct mu_classic_track *track);
void mu_classic_go(struct mu_classic *m, enum mu_classic_state state);
void mu_classic_pause(struct mu_classic *m, enum mu_classic_state next, uint64_t delay_ms);
void mu_classic_after_lost_write(struct mu_classic *m, enum mu_classic_state next);
bool mu_classic_is_final(const struct mu_classic *m, const struct mu_classic_event *event);
void mu_classic_set_error(struct mu_classic *m, struct muster_error *to, const struct mu_classic_event *event);
void mu_classic_failed(struct mu_classic *m, const struct mu_classic_event *event, enum mu_classic_state again);
void mu_classic_no_memory(struct mu_classic *m, enum mu_classic_state again);
int mu_classic_take_doc(struct mu_classic *m, struct mu_slice text, uint64_t index, struct muster_error *error);
bool mu_classic_is_lost_write(const struct mu_classic_event *event);
bool mu_classic_wrote_doc(struct mu_classic *m, const struct mu_classic_event *event, enum mu_classic_state again);
int mu_classic_take_written(struct mu_classic *m, const struct mu_classic_event *event);
bool mu_classic_got_doc(struct mu_classic *m, const struct mu_classic_event *event, enum mu_classic_state again);
bool mu_classic_is_there(const struct mu_classic *m, enum mu_classic_status status, int64_t version);
bool mu_classic_counts_anew(const struct mu_classic *m, const struct mu_classic_event *event);
bool mu_classic_is_older(const struct mu_classic *m, const struct mu_classic_event *event);
void mu_classic_get_doc(struct mu_classic *m);
void mu_classic_put_doc(struct mu_classic *m, int rc, int64_t ttl_s, enum mu_classic_state again);
void mu_classic_drop_doc(struct mu_classic *m);
void mu_classic_get_self(struct mu_classic *m);
void mu_classic_put_dir(struct mu_classic_request *request);
struct mu_classic_request *mu_classic_put_key(struct mu_classic *m, struct mu_classic_track *track, int64_t version,
                                              int64_t rank);
struct mu_classic_request *mu_classic_ask_mark(struct mu_classic *m, enum mu_classic_kind kind, int64_t version,
                                               int64_t rank);
void mu_classic_list_keys(struct mu_classic *m);
void mu_classic_delete_key(struct mu_classic *m);
int64_t mu_classic_number(struct mu_slice text);
int64_t mu_classic_rank_of(const struct mu_classic *m, struct mu_slice key, const char *where, int64_t version);
void mu_classic_watch(struct mu_classic *m, bool group, uint64_t until_ms);
void mu_classic_watch_group(struct mu_classic *m);
void mu_classic_watch_document(struct mu_classic *m);
void mu_classic_on_watch(struct mu_classic *m, const struct mu_classic_event *event);

/* classic_prepare.c */
extern const struct mu_classic_phase mu_classic_prepare_phases[MU_CLASSIC_PHASES_COUNT];
void mu_classic_begin_anew(struct mu_classic *m);
void mu_classic_restore(struct mu_classic *m);

/* classic_join.c */
void mu_classic_set_announcement(struct mu_classic *m, enum announcement announcement);
extern const struct mu_classic_phase mu_classic_join_phases[MU_CLASSIC_PHASES_COUNT];
void mu_classic_start_join(struct mu_classic *m);
void mu_classic_look_again(struct mu_classic *m);

/* classic_confirm.c */
extern const struct mu_classic_phase mu_classic_confirm_phases[MU_CLASSIC_PHASES_COUNT];

/* classic_group.c */
extern const struct mu_classic_phase mu_classic_group_phases[MU_CLASSIC_PHASES_COUNT];
void mu_classic_forget_group(struct mu_classic *m);
uint64_t mu_classic_hold_until_ms(const struct mu_classic *m);
bool mu_classic_has_waiting(const struct mu_classic *m);
void mu_classic_tell_waiting(struct mu_classic *m);
void mu_classic_renew_job(struct mu_classic *m);
void mu_classic_on_job_lease(struct mu_classic *m, const struct mu_classic_event *event);
void mu_classic_stop_rank_lease(struct mu_classic *m);
bool mu_classic_puts_back(const struct mu_classic *m);
void mu_classic_renew_rank(struct mu_classic *m);
bool mu_classic_renews_rank(const struct mu_classic *m);
void mu_classic_on_rank_lease(struct mu_classic *m, const struct mu_classic_event *event);

/* classic_foreign.c */
extern const struct mu_classic_phase mu_classic_foreign_phases[MU_CLASSIC_PHASES_COUNT];
bool mu_classic_is_foreign(const struct mu_classic *m);
bool mu_classic_is_foreign_for_good(const struct mu_classic *m);
void mu_classic_set_doc_value(struct mu_classic *m, enum doc_value value);
void mu_classic_tell_foreign_doc(struct mu_classic *m);
void mu_classic_put_group_back(struct mu_classic *m);
void mu_classic_count_anew(struct mu_classic *m, const struct mu_classic_event *event);
void mu_classic_put_mark_back(struct mu_classic *m, struct mu_slice found);

/* classic_quit.c */
extern const struct mu_classic_phase mu_classic_quit_phases[MU_CLASSIC_PHASES_COUNT];
void mu_classic_set_place(struct mu_classic *m, enum place place);
void mu_classic_set_intent(struct mu_classic *m, enum intent intent);
bool mu_classic_is_writing(const struct mu_classic *m);
void mu_classic_break_quit_off(struct mu_classic *m);
void mu_classic_quit_if_possible(struct mu_classic *m, bool answered);
void mu_classic_begin_quit(struct mu_classic *m, enum intent how, bool answered);

/* classic_close.c */
void mu_classic_end_close(struct mu_classic *m, bool done);
uint64_t mu_classic_close_end_ms(const struct mu_classic *m);
void mu_classic_close_read(struct mu_classic *m);
void mu_classic_on_close_answer(struct mu_classic *m, const struct mu_classic_event *event);
void mu_classic_on_look_answer(struct mu_classic *m, const struct mu_classic_event *event);

/* classic_notices.c */
void mu_classic_begin_notices(struct mu_classic *m);
void mu_classic_drive_notices(struct mu_classic *m);
uint64_t mu_classic_notices_due_ms(const struct mu_classic *m);
void mu_classic_on_notice_answer(struct mu_classic *m, const struct mu_classic_event *event);
const struct mu_node *mu_classic_known_nodes(const struct mu_classic *m, size_t *ret_count);
void mu_classic_set_timeout_error(struct mu_classic *m);

#endif
