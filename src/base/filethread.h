/* File calls on a thread of their own, for owners that must not wait for a file system that does not answer.
 *
 *   mu_filethread_submit()   the job's `run` is called on the thread: one job after the other, in the order they came
 *   wake()                   on the thread: there is something for mu_filethread_turn()
 *   mu_filethread_turn()     on the owner's thread: calls `done` of each job that was run, which is its again
 *   mu_filethread_cancel()   nobody waits for the job any more: it is freed by its `drop`, on the thread
 *
 * The thread is started by the first job. While a system call of a job hangs, the thread hangs and all jobs behind it
 * wait. The owner goes on: mu_filethread_beats() shows that nothing moves, and the owner decides how long it waits.
 * mu_filethread_free() waits at most MU_FILETHREAD_FREE_MS: a thread that hangs is left behind with its jobs, and
 * cleans up if it ever comes back. */
#ifndef MU_BASE_FILETHREAD_H
#define MU_BASE_FILETHREAD_H

#include "base/list.h"

#include <stdatomic.h>
#include <stdint.h>

#define MU_FILETHREAD_FREE_MS 200 /* for the thread to end */

struct mu_filethread;

struct mu_file_job {                       /* embedded; the owner fills in the functions */
    void (*run)(struct mu_file_job *job);  /* on the thread. May block; touches nothing but the job */
    void (*done)(struct mu_file_job *job); /* on the owner's thread */
    void (*drop)(struct mu_file_job *job); /* frees it and what it holds; run or not. May block */
    /* For filethread.c alone. */
    struct mu_list link;
    struct mu_filethread *thread;
    bool cancelled;
};

struct mu_filethread_config {
    void (*wake)(void *ctx); /* from any thread, with a lock held: must not call back. NULL: nobody is woken */
    void *ctx;
    bool at_once; /* no thread: a job is run within submit, for file systems that are trusted to answer */
};

struct mu_filethread *mu_filethread_new(const struct mu_filethread_config *config); /* NULL: no memory */
/* Now, and not with the first job. False: no thread can be started. For jobs that may block for ever. */
bool mu_filethread_start(struct mu_filethread *thread);
/* Never fails: where no thread can be started, jobs are run at once. */
void mu_filethread_submit(struct mu_filethread *thread, struct mu_file_job *job);
void mu_filethread_cancel(struct mu_file_job *job); /* submitted, and `done` was not called */
/* Calls `done` for what is ready, in order; `done` may submit and cancel. */
void mu_filethread_turn(struct mu_filethread *thread);

/* Part of a job is done: it is slow, but moves. From within `run`. */
void mu_filethread_beat(struct mu_file_job *job);
uint64_t mu_filethread_beats(const struct mu_filethread *thread); /* grows with every beat and every job that was run */
bool mu_filethread_is_idle(struct mu_filethread *thread);         /* nothing is under way and nothing is to be told */
/* Blocks until nothing is under way (true), or until nothing has moved for `quiet_ms` (false, at most twice that time
 * after the last move). For owners without a loop. */
bool mu_filethread_wait(struct mu_filethread *thread, int64_t quiet_ms);

/* Jobs that were not run, or whose `done` was not called, are dropped. False: the thread hangs and was left behind; the
 * process should then end by _exit(). NULL is fine. */
bool mu_filethread_free(struct mu_filethread *thread);
bool mu_filethread_free_all(struct mu_filethread *const *threads, size_t count); /* waits no longer than for one */
bool mu_filethread_hangs(void); /* some thread of this process was left behind */

#endif
