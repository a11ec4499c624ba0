/* A group of workers from inside, for the two files that make one: proc_uv.c (its life and its stop) and
 * group_children_uv.c (which processes belong to it). */
#ifndef MU_PROC_GROUP_PARTS_UV_H
#define MU_PROC_GROUP_PARTS_UV_H

#include "base/list.h"
#include "proc/children.h"
#include "proc/proc_uv.h"
#include "proc/stuck.h"

enum { MU_GROUP_REFUSED_MAX = 1024 }; /* of whom MU_STOP_LEFT_MAX are told */

/* A descriptor that the loop watches: a pidfd, or a function's result. Allocated on its own, for it may outlive its
 * worker. */
struct mu_watched {
    uv_poll_t poll;
    struct mu_group *group;
    uint32_t rank;
    int fd;
};

struct mu_group_worker {
    pid_t pid;
    bool exited, told, refused;
    bool reaped; /* the pid may belong to another process by now */
    char comm[MU_CHILD_COMM_MAX];
    int code;
    bool dumped;
    int64_t wall_ms;
    struct mu_watched *death, *output;
    struct mu_stuck stuck;
    bool is_function;
    struct mu_result result;
    struct muster_error result_error; /* code 0: none */
};

struct mu_group_pid_rank {
    pid_t pid;
    uint32_t rank;
};

enum mu_group_hold {
    MU_GROUP_EMPTY,
    MU_GROUP_STARTING, /* a worker may be running that is not in the list yet */
    MU_GROUP_FULL,     /* until the stop is over */
};

struct mu_group {
    struct mu_group_config config;
    struct mu_list link; /* in everybody.groups */
    enum mu_group_hold hold;
    struct mu_startup startup;
    bool has_startup, guarded;
    uv_signal_t chld;
    uv_timer_t timer, looker; /* looker: for workers that hang */
    size_t handles;           /* of the loop's */
    struct mu_group_worker *workers;
    size_t count;                    /* of those that were started */
    pid_t *pids;                     /* ascending; also those of reaped workers */
    struct mu_group_pid_rank *ranks; /* in the same order */
    bool by_signal;                  /* deaths are told by SIGCHLD, not by pidfds */
    bool stopping, done;             /* done: on_stopped is to come */
    struct mu_stop stop;
    struct mu_children others;
    struct mu_children below; /* of those that do not end */
    struct mu_stop_child *view;
    size_t view_count, view_cap;
    bool hidden;
    pid_t refused[MU_GROUP_REFUSED_MAX];
    size_t refused_count;
    mu_group_closed_cb *on_closed;
    void *closed_ctx;
};

/* All groups of this process are in one list under one lock. Other threads may look at hold, workers, count and ranks
 * of a group, which therefore change only under the lock. The functions below that list or reap are called under it. */
void mu_groups_lock(void);
void mu_groups_unlock(void);
void mu_groups_add(struct mu_group *group);

/* The next worker, which was just started. Takes the lock itself. */
void mu_group_enlist(struct mu_group *group, pid_t pid);
/* The local rank of the worker with this pid; -1: none. */
int32_t mu_group_rank_of(const struct mu_group *group, pid_t pid);

/* Reaps the orphans that have ended and lists the others. `thorough`: reads all of /proc. */
void mu_group_list_orphans(struct mu_group *group, bool thorough);
/* All that live and belong to the group, its workers aside. */
void mu_group_list_others(struct mu_group *group);
void mu_group_reap_workers(struct mu_group *group);
/* Whether wait knows of a child. Only to be asked when all workers are reaped. */
bool mu_has_child(void);

bool mu_group_was_refused(const struct mu_group *group, pid_t pid);
/* False: no memory. */
bool mu_group_reserve_view(struct mu_group *group, size_t count);
/* All that are there, for mu_stop. */
void mu_group_make_view(struct mu_group *group, bool with_states);
/* Adds the processes below those that do not end. If these cannot be listed, `hidden` says that there may be some. */
void mu_group_view_below(struct mu_group *group);

#endif
