/* What the files of the etcd-v3 rendezvous share; nobody else includes it. See fold.h.
 *   fold.c        events, what they mean for this node, what its owner is told
 *   fold_view.c   what is below job/
 *   fold_write.c  requests, and what a node writes for itself
 *   leader.c      only while this node leads: records in; worlds and news out */
#ifndef MU_RDZV_FOLD_PARTS_H
#define MU_RDZV_FOLD_PARTS_H

#include "rdzv/fold.h"

struct entry { /* of nodes/ */
    uint64_t id;
    uint64_t under; /* the lease in the key: several of one node differ in it */
    int64_t create;
    int64_t overwritten; /* the revision of what somebody else wrote over it; 0: nobody did */
    struct mu_fold_record record;
};

struct view {
    bool loaded;
    uint64_t load_id; /* 0: no load is under way */
};

/* A key of job/, as it was last seen. What is FOREIGN none of us wrote: it counts as missing, and is replaced. What is
 * NEWER a newer version of muster may have written: it is refused, and stays. */
enum job_key { JOB_DOC, JOB_NEWS, JOB_LEADER, JOB_CLOSED, JOB_KEYS };
enum key_value { KEY_NONE, KEY_OURS, KEY_FOREIGN, KEY_NEWER };

struct key_seen {
    enum key_value value;
    int64_t mod, lease;
};

/* Our record in etcd, as it was last written. */
enum record_state { RECORD_MISSING, RECORD_JOINS, RECORD_STAYS };
enum written { RECORD, CROWN, CLOSED_MARK, RESTORED, RECORD_BACK, WORLD, NEWS };

struct mu_fold {
    struct mu_rdzv_settings settings;
    struct mu_fold_record record; /* who we are; what we want is in `written` and wanted() */
    uint64_t id, lease_ms, job_lease_ms, first_ms;
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
    uint64_t leader;
    uint64_t doc_since;                        /* which one */
    uint64_t doc_since_ms;                     /* when we first saw it */
    uint64_t news_since_ms;                    /* when they came */
    struct muster_error newer;                 /* why the document is NEWER */
    struct muster_error foreign, told_foreign; /* what was found; code 0: nothing that is to be told */
    uint64_t back_id, back_under;              /* the record that is put back */
    struct entry **entries;                    /* sorted by id, then by lease; the leader's only */
    size_t entries_count, entries_room;
    bool *gone; /* by rank of the document; the leader's. Who is gone once stays gone */
    /* Our own part. */
    uint64_t lease_take; /* the id of TAKE_LEASE; 0: there is none, and none is being taken */
    int64_t lease;       /* 0: not (yet) */
    bool lease_was_lost;
    bool was_away;               /* etcd, since job/ was read */
    enum record_state record_is; /* under this lease; if there is one, it names this world: */
    uint64_t written_world;
    int64_t record_mod;         /* its revision */
    bool checks_record;         /* it is time to look whether somebody has overwritten it */
    struct mu_fold_world world; /* MEMBER: ours */
    int64_t rank;
    bool *lost;
    uint64_t left[MU_FOLD_LEFT_MAX]; /* worlds that we were in, or could have been; the newest last */
    size_t left_count;
    uint64_t left_world; /* as our record says */
    uint64_t joined_ms, deadline_ms, close_deadline_ms;
    uint64_t drop_id; /* LEAVING */
    bool closing, looking, told_closed, told_waiting, was_leader, down;
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
    uint64_t write_take;              /* under which of our leases */
    int64_t write_round, write_count; /* of a world */
    int64_t job_mod;                  /* the newest change of job/ that we have seen */
    int64_t awaited_mod;              /* what we wrote there and have not seen yet: until then nothing more is folded */
    uint64_t awaited_until_ms;
    uint64_t loads, write_loads;   /* how often job/ was read; and had been when the write was made */
    int64_t granted_job, dead_job; /* leases of the job: one that we took, one that is gone */
    int64_t write_job, keep_lease; /* that the write and the keep-alive under way are about */
    uint64_t retry_at_ms, retry_ms;
    uint64_t keep_at_ms;
    uint64_t crown_at_ms, restore_at_ms; /* UINT64_MAX: not empty, not missing */
    uint64_t grace_until_ms;
    uint64_t call_since_ms; /* the minimum is there; UINT64_MAX: it is not */
    int64_t call_leader; /* ... as we saw it in the leader's place of this revision: reading it again is no new call */
    uint64_t news_at_ms; /* not before this, if they bring only numbers */
    /* What effects point to. */
    struct mu_fold_write write;
    struct mu_buf value, mark, waiting;
    char key[MU_FOLD_KEY_MAX];
    struct muster_error error, away;
};

/* fold.c */
struct mu_fold_effect *mu_fold_emit(struct mu_fold *f, enum mu_fold_effect_type type);
struct mu_part_news *mu_fold_tell(struct mu_fold *f, enum mu_part_tell what);
struct mu_fold_effect *mu_fold_request(struct mu_fold *f, enum mu_fold_effect_type type, uint64_t *ret_id);
bool mu_fold_is_answer(const struct mu_fold_event *event, uint64_t *id);
bool mu_fold_is_due(struct mu_fold *f, uint64_t when_ms);
bool mu_fold_is_present(const struct mu_fold *f);
void mu_fold_tell_failed(struct mu_fold *f, enum mu_part_event_type asked);
void mu_fold_back_off(struct mu_fold *f);
void mu_fold_is_heard(struct mu_fold *f);
void mu_fold_distrust(struct view *view);
bool mu_fold_is_spare(const struct mu_fold *f);

/* fold_view.c */
extern const char *const mu_fold_key_names[JOB_KEYS];
bool mu_fold_has(const struct mu_fold *f, enum job_key key); /* and it is ours */
void mu_fold_see_foreign(struct mu_fold *f, const struct mu_fold_kv *kv, const char *then);
void mu_fold_begin_grace(struct mu_fold *f);
void mu_fold_on_loaded(struct mu_fold *f, const struct mu_fold_event *event);
void mu_fold_on_changed(struct mu_fold *f, const struct mu_fold_event *event);

/* fold_write.c */
void mu_fold_put(struct mu_fold *f, const char *key, const struct mu_buf *value, int64_t lease);
void mu_fold_compare(struct mu_fold *f, enum mu_fold_compare_kind kind, const char *key, int64_t revision);
void mu_fold_compare_key(struct mu_fold *f, enum job_key key);
void mu_fold_name_record(struct mu_fold *f, uint64_t id, uint64_t lease);
void mu_fold_send(struct mu_fold *f, enum written what);
bool mu_fold_is_encoded(struct mu_fold *f, int rc);
int64_t mu_fold_need_job_lease(struct mu_fold *f);
void mu_fold_load(struct mu_fold *f, struct view *view, enum mu_fold_scope scope);
void mu_fold_drive(struct mu_fold *f);

/* leader.c */
void mu_leader_forget(struct mu_fold *f);
bool mu_leader_parse_key(struct mu_slice key, uint64_t *ret_id, uint64_t *ret_under);
bool mu_leader_apply(struct mu_fold *f, const struct mu_fold_kv *kv);
bool mu_leader_put_back(struct mu_fold *f);
void mu_leader_end_put_back(struct mu_fold *f, bool lease_gone);
bool mu_leader_renew_gone(struct mu_fold *f);
void mu_leader_fold(struct mu_fold *f);
void mu_leader_drive(struct mu_fold *f);

#endif
