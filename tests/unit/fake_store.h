/* Something that listens where a store is expected: it answers greetings as told and then only listens, on a thread of
 * its own, so that a test knows what has arrived and decides when it ends. */
#ifndef TESTS_UNIT_FAKE_STORE_H
#define TESTS_UNIT_FAKE_STORE_H

#include "pure.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FAKE_CONNS_MAX = 64, FAKE_PATIENCE_S = 30 };

enum fake_manner {
    FAKE_ANSWERS,  /* as a server of that dialect does */
    FAKE_CLOSES,   /* as one that does not know it */
    FAKE_HANGS_UP, /* at once, without looking */
    FAKE_IS_SILENT,
};

struct fake_store {
    enum fake_manner to_v, to_l1, to_l0, to_probes;
    const char *instead; /* said to whoever connects, whatever comes */
    int listener, wake[2];
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under lock: */
    size_t greeted, heard; /* connections that were answered; bytes that came after that */
    bool hang_up;
    /* The thread's: */
    struct {
        int fd;
        bool greeted;
        char first[64];
        size_t first_len;
    } conns[FAKE_CONNS_MAX];
    size_t conns_count;
};

/* A listening socket on a free port of 127.0.0.1. */
static inline int fake_listener(uint16_t *ret_port, int backlog)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    if (backlog >= 0)
        assert_int_equal(listen(fd, backlog), 0);
    *ret_port = ntohs(addr.sin_port);
    return fd;
}

static inline void fake_drop(struct fake_store *fake, size_t i)
{
    (void)close(fake->conns[i].fd);
    fake->conns[i] = fake->conns[--fake->conns_count];
}

/* True when the connection is done with. */
static inline bool fake_behaves(int fd, enum fake_manner manner, const char *answer, size_t len)
{
    if (manner == FAKE_ANSWERS)
        (void)!send(fd, answer, len, MSG_NOSIGNAL);
    return manner == FAKE_CLOSES || manner == FAKE_HANGS_UP;
}

static inline void fake_hears(struct fake_store *fake, size_t i)
{
    char bytes[4096];
    ssize_t len = recv(fake->conns[i].fd, bytes, sizeof bytes, 0);
    size_t room = sizeof fake->conns[i].first - fake->conns[i].first_len;
    const char *first = fake->conns[i].first;
    bool over = false, known = false;

    if (len <= 0) {
        fake_drop(fake, i);
        return;
    }
    (void)pthread_mutex_lock(&fake->lock);
    if (fake->conns[i].greeted) {
        fake->heard += (size_t)len;
    } else {
        memcpy(fake->conns[i].first + fake->conns[i].first_len, bytes, (size_t)len < room ? (size_t)len : room);
        fake->conns[i].first_len += (size_t)len < room ? (size_t)len : room;
        if (first[0] == 0x00 && fake->conns[i].first_len >= 7 && first[6] != 0x0c) { /* a probe of a feature */
            known = true;
            if (fake->to_probes == FAKE_CLOSES)
                (void)!send(fake->conns[i].fd, "\1", 1, MSG_NOSIGNAL); /* to the CANCEL_WAIT before the question */
            over = fake_behaves(fake->conns[i].fd, fake->to_probes, "\1\xce\xf7\x85\x3c\0\0\0\0",
                                first[6] == 0x0d ? 5 : 9);
        } else if (first[0] == 0x00 && fake->conns[i].first_len >= 9) {
            known = true;
            over = fake_behaves(fake->conns[i].fd, fake->to_v, "\1\1\1\1", 4);
        } else if (first[0] == 0x0b) {
            known = true;
            over = fake_behaves(fake->conns[i].fd, fake->to_l1, "\1", 1);
        } else if (first[0] == 0x04 && fake->conns[i].first_len >= 9) {
            known = true;
            over = fake_behaves(fake->conns[i].fd, fake->to_l0, "\0", 1);
        }
        if (known) {
            fake->conns[i].greeted = true;
            fake->greeted++;
        }
    }
    (void)pthread_cond_broadcast(&fake->changed);
    (void)pthread_mutex_unlock(&fake->lock);
    if (over)
        fake_drop(fake, i);
}

static inline void *fake_runs(void *arg)
{
    struct fake_store *fake = arg;
    struct pollfd fds[FAKE_CONNS_MAX + 2];
    bool hang_up = false;

    while (!hang_up) {
        size_t count = fake->conns_count;

        fds[0] = (struct pollfd){ .fd = fake->wake[0], .events = POLLIN };
        fds[1] = (struct pollfd){ .fd = count < FAKE_CONNS_MAX ? fake->listener : -1, .events = POLLIN };
        for (size_t i = 0; i < count; i++)
            fds[i + 2] = (struct pollfd){ .fd = fake->conns[i].fd, .events = POLLIN };
        if (poll(fds, count + 2, -1) < 0)
            continue;
        for (size_t i = count; i-- > 0;) {
            if (fds[i + 2].revents != 0)
                fake_hears(fake, i);
        }
        if (fds[1].revents != 0) {
            int fd = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);

            if (fd >= 0 && fake->instead != NULL)
                (void)!send(fd, fake->instead, strlen(fake->instead), MSG_NOSIGNAL);
            if (fd >= 0) {
                memset(&fake->conns[fake->conns_count], 0, sizeof fake->conns[0]);
                fake->conns[fake->conns_count++].fd = fd;
            }
        }
        (void)pthread_mutex_lock(&fake->lock);
        hang_up = fake->hang_up;
        (void)pthread_mutex_unlock(&fake->lock);
    }
    (void)close(fake->listener); /* first, so that nobody gets in any more */
    while (fake->conns_count > 0)
        fake_drop(fake, 0);
    return NULL;
}

static inline void fake_start(struct fake_store *fake)
{
    fake->listener = fake_listener(&fake->port, 64);
    assert_int_equal(pipe(fake->wake), 0);
    (void)pthread_mutex_init(&fake->lock, NULL);
    (void)pthread_cond_init(&fake->changed, NULL);
    assert_int_equal(pthread_create(&fake->thread, NULL, fake_runs, fake), 0);
}

/* Closes every connection and the listener. */
static inline void fake_stop(struct fake_store *fake)
{
    (void)pthread_mutex_lock(&fake->lock);
    fake->hang_up = true;
    (void)pthread_mutex_unlock(&fake->lock);
    (void)!write(fake->wake[1], "", 1);
    assert_int_equal(pthread_join(fake->thread, NULL), 0);
    (void)close(fake->wake[0]);
    (void)close(fake->wake[1]);
    (void)pthread_mutex_destroy(&fake->lock);
    (void)pthread_cond_destroy(&fake->changed);
}

static inline size_t fake_count(struct fake_store *fake, const size_t *counter)
{
    size_t count;

    (void)pthread_mutex_lock(&fake->lock);
    count = *counter;
    (void)pthread_mutex_unlock(&fake->lock);
    return count;
}

/* Waits until so many bytes have come after greetings. */
static inline void fake_await(struct fake_store *fake, size_t heard)
{
    struct timespec until;
    int rc = 0;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FAKE_PATIENCE_S;
    (void)pthread_mutex_lock(&fake->lock);
    while (fake->heard < heard && rc == 0)
        rc = pthread_cond_timedwait(&fake->changed, &fake->lock, &until);
    (void)pthread_mutex_unlock(&fake->lock);
    assert_int_equal(rc, 0);
}

#endif
