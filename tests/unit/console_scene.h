/* Consoles for tests: a descriptor that stands for our standard output, and somebody at its other end who reads it at
 * will. */
#ifndef TESTS_UNIT_CONSOLE_SCENE_H
#define TESTS_UNIT_CONSOLE_SCENE_H

#include "log_scene.h"
#include "logs/console_uv.h"

#include "base/buf.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <termios.h>

enum { PATIENCE_MS = 90000 };

enum kind { PIPE, PTY, SOCKET, THREAD };

static const enum mu_console_way kind_ways[] UNUSED = { MU_CONSOLE_PRIVATE, MU_CONSOLE_PRIVATE, MU_CONSOLE_SOCKET,
                                                        MU_CONSOLE_THREAD };

struct far_end {
    int fd;            /* what the console is given */
    int reader;        /* ours; -1: closed */
    struct mu_buf got; /* what was read there */
};

static UNUSED void far_end_open(struct far_end *far, enum kind kind)
{
    int fds[2];

    memset(far, 0, sizeof *far);
    if (kind == PTY) {
        struct termios raw;

        fds[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        assert_true(fds[0] >= 0);
        assert_int_equal(grantpt(fds[0]), 0);
        assert_int_equal(unlockpt(fds[0]), 0);
        fds[1] = open(ptsname(fds[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
        assert_true(fds[1] >= 0);
        assert_int_equal(tcgetattr(fds[1], &raw), 0);
        cfmakeraw(&raw);
        assert_int_equal(tcsetattr(fds[1], TCSANOW, &raw), 0);
    } else if (kind == SOCKET) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    } else {
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    }
    far->reader = fds[0];
    far->fd = fds[1];
    assert_int_equal(fcntl(far->reader, F_SETFL, O_NONBLOCK), 0);
}

static UNUSED void far_end_read(struct far_end *far, size_t bytes_max)
{
    char chunk[16384];
    ssize_t got;

    for (size_t total = 0; total < bytes_max; total += (size_t)got) {
        got = read(far->reader, chunk, bytes_max - total < sizeof chunk ? bytes_max - total : sizeof chunk);
        if (got <= 0)
            return;
        assert_int_equal(mu_buf_append(&far->got, chunk, (size_t)got, SIZE_MAX), 0);
    }
}

static UNUSED const char *far_end_text(struct far_end *far)
{
    far_end_read(far, SIZE_MAX);
    assert_int_equal(mu_buf_append(&far->got, "", 1, SIZE_MAX), 0);
    far->got.len--;
    return far->got.data;
}

static UNUSED void far_end_hang_up(struct far_end *far)
{
    (void)close(far->reader);
    far->reader = -1;
}

static UNUSED void far_end_close(struct far_end *far)
{
    if (far->reader >= 0)
        (void)close(far->reader);
    (void)close(far->fd);
    mu_buf_done(&far->got);
}

/* ---- A loop that is turned until something is so */

static UNUSED int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for the loop or for what is to be read, whichever is first. */
static UNUSED void turn(uv_loop_t *loop, int fd)
{
    struct pollfd fds[] = { { .fd = uv_backend_fd(loop), .events = POLLIN }, { .fd = fd, .events = POLLIN } };

    (void)uv_run(loop, UV_RUN_NOWAIT);
    (void)poll(fds, 2, 2);
    (void)uv_run(loop, UV_RUN_NOWAIT);
}

#define TURN_UNTIL(loop, fd, condition)                                                                                \
    do {                                                                                                               \
        int64_t until_ms_ = now_ms() + PATIENCE_MS;                                                                    \
        while (!(condition)) {                                                                                         \
            turn(loop, fd);                                                                                            \
            if (now_ms() > until_ms_)                                                                                  \
                fail_msg("this never came true: %s", #condition);                                                      \
        }                                                                                                              \
    } while (0)

#endif
