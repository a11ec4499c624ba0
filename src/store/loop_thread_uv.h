/* A loop on a thread of its own, and calls from other threads that are carried out there. Whatever is on the loop is
 * touched by that thread alone. */
#ifndef MU_STORE_LOOP_THREAD_UV_H
#define MU_STORE_LOOP_THREAD_UV_H

#include "base/list.h"
#include "muster.h"

#include <pthread.h>
#include <semaphore.h>
#include <uv.h>

struct mu_loop_thread { /* a member of what runs there */
    uv_loop_t loop;
    pthread_t thread;
    uv_async_t wake;
    pthread_mutex_t lock;
    pthread_cond_t ended_cond;
    struct mu_list posted; /* under lock: calls that the loop has not taken yet */
    enum { MU_LOOP_RUNS, MU_LOOP_ENDED, MU_LOOP_ABANDONED } state; /* under lock */
    void (*close)(struct mu_loop_thread *thread);                  /* while it is stopped */
    void (*abandoned)(struct mu_loop_thread *thread);              /* the same */
};

struct mu_posted { /* a call; on its caller's stack */
    struct mu_list link;
    void (*begin)(struct mu_posted *posted); /* on the loop; in the end it, or what it began, calls mu_posted_done() */
    sem_t done;
};

/* The loop, ready to put handles on. Negative: *reterr says "`what`: ..." and there is nothing to end. */
int mu_loop_thread_open(struct mu_loop_thread *thread, const char *what, struct muster_error *reterr);
int mu_loop_thread_start(struct mu_loop_thread *thread, const char *what, struct muster_error *reterr);
/* From any other thread: has `posted` begun, and returns when it is done. */
void mu_loop_thread_call(struct mu_loop_thread *thread, struct mu_posted *posted);
void mu_posted_done(struct mu_posted *posted); /* on the loop; it is gone from here on */

/* Of one that did not start: closes what is left on the loop, which the caller has begun to close, and ends it. */
void mu_loop_thread_discard(struct mu_loop_thread *thread);
/* `close` closes, on the loop, what the caller put there. Waits until the thread has ended. If it does not within
 * `patience_ms` (-1: wait for ever), because a name is still being resolved, it is left behind and calls `abandoned` in
 * the end: then this returns false, and the memory is not the caller's any more. */
bool mu_loop_thread_stop(struct mu_loop_thread *thread, void (*close)(struct mu_loop_thread *thread),
                         int64_t patience_ms, void (*abandoned)(struct mu_loop_thread *thread));
void mu_loop_thread_done(struct mu_loop_thread *thread); /* frees what is in it, after it has ended */

#endif
