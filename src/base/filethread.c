/* File calls on a thread of their own.
 *
 * Jobs go from `queue` to the thread's hands to `ready`, and back to the owner. A cancelled job goes through the queue
 * once more to be dropped, for releasing what it holds may also be slow. */
#include "base/filethread.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>

enum state {
    NOT_STARTED, /* there was no job so far, or jobs are run at once */
    SERVING,
    ENDING, /* what is queued is dropped, then the thread ends */
    ENDED,  /* the thread uses nothing any more but the object itself */
};

struct mu_filethread {
    struct mu_filethread_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    enum state state;
    bool left_behind; /* the thread frees this */
    struct mu_list queue, ready;
    struct mu_file_job *running;
    _Atomic uint64_t beats;
};

static atomic_bool some_hang;

static void destroy(struct mu_filethread *t)
{
    assert(mu_list_empty(&t->queue) && mu_list_empty(&t->ready) && t->running == NULL);
    (void)pthread_cond_destroy(&t->changed);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

/* Called with the lock, which is released while the job runs. A job that was cancelled before is dropped instead. */
static void carry_out(struct mu_filethread *t, struct mu_file_job *job)
{
    bool cancelled = job->cancelled;

    t->running = job;
    (void)pthread_mutex_unlock(&t->lock);
    if (!cancelled)
        job->run(job);
    else
        job->drop(job);
    (void)pthread_mutex_lock(&t->lock);
    t->running = NULL;
    atomic_fetch_add(&t->beats, 1);
    if (cancelled)
        return;
    if (job->cancelled || t->state == ENDING) { /* nobody waits for it any more */
        job->cancelled = true;
        mu_list_push_front(&t->queue, &job->link);
        return;
    }
    if (mu_list_empty(&t->ready) && t->config.wake != NULL)
        t->config.wake(t->config.ctx);
    mu_list_push(&t->ready, &job->link);
}

static void *serve(void *arg)
{
    struct mu_filethread *t = arg;
    struct mu_file_job *job;
    bool left_behind;

    (void)pthread_mutex_lock(&t->lock);
    for (;;) {
        job = MU_LIST_POP(struct mu_file_job, &t->queue, link);
        if (job != NULL)
            carry_out(t, job);
        else if (t->state == ENDING)
            break;
        if (mu_list_empty(&t->queue)) {
            (void)pthread_cond_broadcast(&t->changed); /* for those who wait for that */
            if (t->state == SERVING)
                (void)pthread_cond_wait(&t->changed, &t->lock);
        }
    }
    t->state = ENDED;
    left_behind = t->left_behind;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
    if (left_behind)
        destroy(t);
    return NULL;
}

struct mu_filethread *mu_filethread_new(const struct mu_filethread_config *config)
{
    struct mu_filethread *t = calloc(1, sizeof *t);

    if (t == NULL)
        return NULL;
    t->config = *config;
    mu_list_init(&t->queue);
    mu_list_init(&t->ready);
    (void)pthread_mutex_init(&t->lock, NULL);
    if (mu_cond_init(&t->changed) != 0) {
        (void)pthread_mutex_destroy(&t->lock);
        free(t);
        return NULL;
    }
    return t;
}

/* Called with the lock: everything that is queued, one after the other. */
static void carry_out_all(struct mu_filethread *t)
{
    struct mu_file_job *job;

    while (t->running == NULL && (job = MU_LIST_POP(struct mu_file_job, &t->queue, link)) != NULL)
        carry_out(t, job);
}

/* Called with the lock. */
static bool start(struct mu_filethread *t)
{
    if (t->state == NOT_STARTED && !t->config.at_once && mu_thread_start(&t->thread, serve, t) == 0)
        t->state = SERVING;
    return t->state == SERVING;
}

bool mu_filethread_start(struct mu_filethread *t)
{
    bool is_there;

    (void)pthread_mutex_lock(&t->lock);
    is_there = start(t);
    (void)pthread_mutex_unlock(&t->lock);
    return is_there;
}

static void hand_over(struct mu_filethread *t)
{
    if (start(t))
        (void)pthread_cond_broadcast(&t->changed);
    else
        carry_out_all(t);
}

void mu_filethread_submit(struct mu_filethread *t, struct mu_file_job *job)
{
    job->thread = t;
    job->cancelled = false;
    (void)pthread_mutex_lock(&t->lock);
    assert(t->state == NOT_STARTED || t->state == SERVING);
    mu_list_push(&t->queue, &job->link);
    hand_over(t);
    (void)pthread_mutex_unlock(&t->lock);
}

void mu_filethread_cancel(struct mu_file_job *job)
{
    struct mu_filethread *t = job->thread;

    (void)pthread_mutex_lock(&t->lock);
    assert(!job->cancelled);
    job->cancelled = true;
    if (t->running != job) { /* to be dropped behind what is queued */
        mu_list_remove(&job->link);
        mu_list_push(&t->queue, &job->link);
        hand_over(t);
    }
    (void)pthread_mutex_unlock(&t->lock);
}

void mu_filethread_turn(struct mu_filethread *t)
{
    struct mu_file_job *job;

    for (;;) {
        (void)pthread_mutex_lock(&t->lock);
        job = MU_LIST_POP(struct mu_file_job, &t->ready, link);
        (void)pthread_mutex_unlock(&t->lock);
        if (job == NULL)
            return;
        job->done(job);
    }
}

void mu_filethread_beat(struct mu_file_job *job)
{
    atomic_fetch_add(&job->thread->beats, 1);
}

uint64_t mu_filethread_beats(const struct mu_filethread *t)
{
    return atomic_load(&t->beats);
}

/* With the lock. */
static bool is_through(const struct mu_filethread *t)
{
    return mu_list_empty(&t->queue) && t->running == NULL;
}

bool mu_filethread_is_idle(struct mu_filethread *t)
{
    bool idle;

    (void)pthread_mutex_lock(&t->lock);
    idle = is_through(t) && mu_list_empty(&t->ready);
    (void)pthread_mutex_unlock(&t->lock);
    return idle;
}

bool mu_filethread_wait(struct mu_filethread *t, int64_t quiet_ms)
{
    uint64_t beats;
    int64_t until_ms;
    bool through;

    (void)pthread_mutex_lock(&t->lock);
    do {
        beats = mu_filethread_beats(t);
        until_ms = mu_clock_in_ms(quiet_ms);
        while (!is_through(t) && mu_cond_wait_until(&t->changed, &t->lock, until_ms)) {
        }
        through = is_through(t);
    } while (!through && mu_filethread_beats(t) != beats); /* it is slow, but moves */
    (void)pthread_mutex_unlock(&t->lock);
    return through;
}

/* With the lock: everything is to be dropped. */
static void cancel_all(struct mu_filethread *t)
{
    struct mu_list *link;

    while ((link = mu_list_pop(&t->ready)) != NULL)
        mu_list_push(&t->queue, link);
    MU_LIST_EACH (struct mu_file_job, job, &t->queue, link)
        job->cancelled = true;
    if (t->running != NULL)
        t->running->cancelled = true;
}

static void tell_to_end(struct mu_filethread *t)
{
    (void)pthread_mutex_lock(&t->lock);
    cancel_all(t);
    t->config.wake = NULL;
    if (t->state == NOT_STARTED)
        carry_out_all(t);
    else
        t->state = ENDING;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
}

/* It was told to end. */
static bool free_by(struct mu_filethread *t, int64_t until_ms)
{
    pthread_t thread;
    bool ended;

    (void)pthread_mutex_lock(&t->lock);
    if (t->state == NOT_STARTED) {
        (void)pthread_mutex_unlock(&t->lock);
        destroy(t);
        return true;
    }
    while (t->state != ENDED && mu_cond_wait_until(&t->changed, &t->lock, until_ms)) {
    }
    ended = t->state == ENDED;
    t->left_behind = !ended;
    thread = t->thread;
    (void)pthread_mutex_unlock(&t->lock); /* from here on a thread that was left behind may free all this */
    if (!ended) {
        atomic_store(&some_hang, true);
        (void)pthread_detach(thread);
        return false;
    }
    (void)pthread_join(thread, NULL);
    destroy(t);
    return true;
}

bool mu_filethread_free_all(struct mu_filethread *const *threads, size_t count)
{
    int64_t until_ms = mu_clock_in_ms(MU_FILETHREAD_FREE_MS);
    bool ended = true;

    for (size_t i = 0; i < count; i++)
        if (threads[i] != NULL)
            tell_to_end(threads[i]);
    for (size_t i = 0; i < count; i++)
        if (threads[i] != NULL && !free_by(threads[i], until_ms))
            ended = false;
    return ended;
}

bool mu_filethread_free(struct mu_filethread *t)
{
    return mu_filethread_free_all(&t, 1);
}

bool mu_filethread_hangs(void)
{
    return atomic_load(&some_hang);
}
