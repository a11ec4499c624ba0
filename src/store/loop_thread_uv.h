/* A loop on a thread of its own, and calls from other threads that are carried out there. Whatever is on the loop is
 * touched by that thread alone. */
#ifndef MU_STORE_LOOP_THREAD_UV_H
#define MU_STORE_LOOP_THREAD_UV_H

#include "base/list.h"
#include "muster.h"

#include <pthread.h>
#include <semaphore.h>
#include <uv.h>

struct mu_posted { /* a call */
    struct mu_list link;
    void (*begin)(struct mu_posted *posted); /* on the loop; see call and post */
    sem_t done;
};

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
    struct mu_posted ending;
};

/* The loop, ready to put handles on. Negative: *reterr says "`what`: ..." and there is nothing to end. */
int mu_loop_thread_open(struct mu_loop_thread *thread, const char *what, struct muster_error *reterr);
int mu_loop_thread_start(struct mu_loop_thread *thread, const char *what, struct muster_error *reterr);
/* From any other thread: has `posted`, on the caller's stack, begun, and returns when it is done. In the end `begin`,
 * or what it began, calls mu_posted_done(). */
void mu_loop_thread_call(struct mu_loop_thread *thread, struct mu_posted *posted);
void mu_posted_done(struct mu_posted *posted); /* on the loop; it is gone from here on */
/* The same, but does not wait: `posted` is the loop's, until `begin` gives it back in a way of its own. */
void mu_loop_thread_post(struct mu_loop_thread *thread, struct mu_posted *posted);

/* Of one that did not start: closes what is left on the loop, which the caller has begun to close, and ends it. */
void mu_loop_thread_discard(struct mu_loop_thread *thread);
/* `close` closes, on the loop, what the caller put there. Waits until the thread has ended. If it does not within
 * `patience_ms` (-1: wait for ever), because a name is still being resolved, it is left behind and calls `abandoned` in
 * the end: then this returns false, and the memory is not the caller's any more. */
bool mu_loop_thread_stop(struct mu_loop_thread *thread, void (*close)(struct mu_loop_thread *thread),
                         int64_t patience_ms, void (*abandoned)(struct mu_loop_thread *thread));
/* The same, but does not wait: `ended` is the last that is called there. Then the thread is to be joined. */
void mu_loop_thread_end(struct mu_loop_thread *thread, void (*close)(struct mu_loop_thread *thread),
                        void (*ended)(struct mu_loop_thread *thread));
void mu_loop_thread_done(struct mu_loop_thread *thread); /* frees what is in it, after it has ended */

#endif
