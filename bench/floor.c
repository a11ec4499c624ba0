/* muster-floor: what a request costs when nothing is done for it.
 *
 * A server that answers each recv with one send of the right size and keeps no state: the floor under the
 * mix of muster-bench. It trusts that every recv is one whole request of the V dialect, as it is with one
 * small request in flight, and looks at the first byte alone. The greeting, VALIDATE and PING in one, is
 * recognised by its leading 0 and answered with the nonce at its end. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4 */
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_MAX 256
#define REQUEST_MAX 4096u
#define GREETING_BYTES 10u
#define NONCE_AT 6u
#define VALUE_BYTES 100u

/* Reply sizes by request code; what is not listed gets none. */
static const uint8_t reply_bytes[256] = {
    [3] = 8 + VALUE_BYTES, /* GET */
    [4] = 8,               /* ADD */
    [5] = 1,               /* CHECK */
    [6] = 1,               /* WAIT */
};

/* The length of a GET's value leads; every other reply is fine with any bytes but CHECK's, which is 0. */
static const unsigned char value_reply[8 + VALUE_BYTES] = { VALUE_BYTES };
static const unsigned char zero_reply[8];

_Noreturn static void die(const char *what)
{
    (void)fprintf(stderr, "muster-floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int listen_on_loopback(void)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, len) < 0 || listen(fd, SOMAXCONN) < 0)
        die("listen");
    if (getsockname(fd, (struct sockaddr *)&addr, &len) < 0)
        die("getsockname");
    (void)printf("listening on 127.0.0.1:%u\n", ntohs(addr.sin_port));
    (void)fflush(stdout);
    return fd;
}

static void watch(int epoll_fd, int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll_ctl");
}

static void accept_all(int epoll_fd, int listen_fd)
{
    const int on = 1;
    int fd;

    while ((fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        watch(epoll_fd, fd);
    }
}

static void answer(int fd)
{
    unsigned char request[REQUEST_MAX];
    const unsigned char *reply = zero_reply;
    ssize_t n = recv(fd, request, sizeof(request), 0);
    size_t len;

    if (n <= 0) {
        (void)close(fd);
        return;
    }
    len = reply_bytes[request[0]];
    if (len > sizeof(zero_reply))
        reply = value_reply;
    if (request[0] == 0 && n == (ssize_t)GREETING_BYTES) {
        reply = request + NONCE_AT;
        len = GREETING_BYTES - NONCE_AT;
    }
    if (len > 0)
        (void)!send(fd, reply, len, MSG_NOSIGNAL);
}

int main(void)
{
    struct epoll_event events[EVENTS_MAX];
    int listen_fd = listen_on_loopback();
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);

    if (epoll_fd < 0)
        die("epoll_create1");
    watch(epoll_fd, listen_fd);
    for (;;) {
        int count = epoll_wait(epoll_fd, events, EVENTS_MAX, -1);

        if (count < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == listen_fd)
                accept_all(epoll_fd, listen_fd);
            else
                answer(events[i].data.fd);
        }
    }
}
