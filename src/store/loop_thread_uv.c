/* A loop on a thread of its own. See loop_thread_uv.h. */
#include "store/loop_thread_uv.h"

#include "base/clock.h"
#include "base/error.h"

#include <assert.h>
#include <errno.h>

static void on_wake(uv_async_t *async)
{
    struct mu_loop_thread *thread = async->data;
    struct mu_posted *posted;

    do {
        (void)pthread_mutex_lock(&thread->lock);
        posted = MU_LIST_POP(struct mu_posted, &thread->posted, link);
        (void)pthread_mutex_unlock(&thread->lock);
        if (posted != NULL) {
            uv_update_time(&thread->loop);
            posted->begin(posted);
        }
    } while (posted != NULL);
}

int mu_loop_thread_open(struct mu_loop_thread *thread, const char *what, struct muster_error *reterr)
{
    int rc = uv_loop_init(&thread->loop);

    if (rc < 0)
        return mu_fail_errno(reterr, -rc, "start a loop for %s", what);
    (void)pthread_mutex_init(&thread->lock, NULL);
    (void)mu_cond_init(&thread->ended_cond); /* its clock is one that every system has */
    mu_list_init(&thread->posted);
    thread->wake.data = thread;
    rc = uv_async_init(&thread->loop, &thread->wake, on_wake);
    if (rc < 0) {
        mu_loop_thread_done(thread);
        return mu_fail_errno(reterr, -rc, "start a loop for %s", what);
    }
    return 0;
}

static void *run_loop(void *arg)
{
    struct mu_loop_thread *thread = arg;
    bool abandoned;

    (void)uv_run(&thread->loop, UV_RUN_DEFAULT);
    (void)pthread_mutex_lock(&thread->lock);
    abandoned = thread->state == MU_LOOP_ABANDONED;
    thread->state = MU_LOOP_ENDED;
    (void)pthread_cond_signal(&thread->ended_cond);
    (void)pthread_mutex_unlock(&thread->lock);
    if (abandoned)
        thread->abandoned(thread);
    return NULL;
}

int mu_loop_thread_start(struct mu_loop_thread *thread, const char *what, struct muster_error *reterr)
{
    int errnum = mu_thread_start(&thread->thread, run_loop, thread);

    return errnum != 0 ? mu_fail_errno(reterr, errnum, "start the thread of %s", what) : 0;
}

void mu_posted_done(struct mu_posted *posted)
{
    (void)sem_post(&posted->done);
}

void mu_loop_thread_post(struct mu_loop_thread *thread, struct mu_posted *posted)
{
    assert(posted->begin != NULL);
    (void)pthread_mutex_lock(&thread->lock);
    mu_list_push(&thread->posted, &posted->link);
    (void)uv_async_send(&thread->wake); /* under the lock: once it is done, its caller may free the thread */
    (void)pthread_mutex_unlock(&thread->lock);
}

void mu_loop_thread_call(struct mu_loop_thread *thread, struct mu_posted *posted)
{
    (void)sem_init(&posted->done, 0, 0);
    mu_loop_thread_post(thread, posted);
    while (sem_wait(&posted->done) < 0 && errno == EINTR)
        continue;
    (void)sem_destroy(&posted->done);
}

void mu_loop_thread_done(struct mu_loop_thread *thread)
{
    (void)uv_loop_close(&thread->loop);
    (void)pthread_mutex_destroy(&thread->lock);
    (void)pthread_cond_destroy(&thread->ended_cond);
}

void mu_loop_thread_discard(struct mu_loop_thread *thread)
{
    uv_close((uv_handle_t *)&thread->wake, NULL);
    (void)uv_run(&thread->loop, UV_RUN_DEFAULT);
    mu_loop_thread_done(thread);
}

struct closing {
    struct mu_posted posted;
    struct mu_loop_thread *thread;
};

static void begin_close(struct mu_posted *posted)
{
    struct mu_loop_thread *thread = ((struct closing *)posted)->thread;

    thread->close(thread);
    uv_close((uv_handle_t *)&thread->wake, NULL);
    mu_posted_done(posted);
}

static void begin_end(struct mu_posted *posted)
{
    struct mu_loop_thread *thread = MU_LIST_ITEM(posted, struct mu_loop_thread, ending);

    thread->close(thread);
    uv_close((uv_handle_t *)&thread->wake, NULL);
}

void mu_loop_thread_end(struct mu_loop_thread *thread, void (*close)(struct mu_loop_thread *thread),
                        void (*ended)(struct mu_loop_thread *thread))
{
    thread->close = close;
    thread->abandoned = ended;
    (void)pthread_mutex_lock(&thread->lock);
    thread->state = MU_LOOP_ABANDONED;
    (void)pthread_mutex_unlock(&thread->lock);
    thread->ending = (struct mu_posted){ .begin = begin_end };
    mu_list_init(&thread->ending.link);
    mu_loop_thread_post(thread, &thread->ending);
}

bool mu_loop_thread_stop(struct mu_loop_thread *thread, void (*close)(struct mu_loop_thread *thread),
                         int64_t patience_ms, void (*abandoned)(struct mu_loop_thread *thread))
{
    int64_t until_ms = mu_clock_in_ms(patience_ms < 0 ? 0 : patience_ms);
    struct closing closing = { .posted = { .begin = begin_close }, .thread = thread };
    pthread_t id = thread->thread;
    bool ended;

    thread->close = close;
    thread->abandoned = abandoned;
    mu_loop_thread_call(thread, &closing.posted);
    (void)pthread_mutex_lock(&thread->lock);
    while (patience_ms >= 0 && thread->state == MU_LOOP_RUNS &&
           mu_cond_wait_until(&thread->ended_cond, &thread->lock, until_ms))
        continue;
    ended = patience_ms < 0 || thread->state == MU_LOOP_ENDED;
    if (!ended)
        thread->state = MU_LOOP_ABANDONED;
    (void)pthread_mutex_unlock(&thread->lock);
    if (ended)
        (void)pthread_join(id, NULL);
    else
        (void)pthread_detach(id);
    return ended;
}
