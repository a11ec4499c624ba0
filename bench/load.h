/* Many clients of one server in one thread: connect, send a request, be told when its reply is whole.
 *
 * A mode of the bench fills in a `struct load`, connects its clients and then runs one or more phases. A
 * phase names what it is doing and how many clients must get there; its callback sends the next request or
 * counts the client as arrived with load_arrive(). Whatever goes wrong ends the program with a message
 * naming the phase. */
#ifndef MUSTER_BENCH_LOAD_H
#define MUSTER_BENCH_LOAD_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire.h"

#define LOAD_CLIENTS_MAX 20000u
#define LOAD_REPLY_MAX 256u

struct load_config {
    struct sockaddr_storage addr;
    socklen_t addr_len;
    enum wire_dialect dialect;
    pid_t server_pid; /* 0: unknown, its CPU time and memory are not read */
    int64_t deadline_ms;
    char run[17]; /* part of every key, so that no run meets another's keys */
};

enum load_state { LOAD_CONNECTING, LOAD_GREETING, LOAD_READY };

struct load_client {
    int fd;
    enum load_state state;
    bool silent;
    uint32_t index;
    uint32_t step;   /* the mode's own */
    uint32_t target; /* the mode's own */
    uint32_t want, got;
    unsigned char reply[LOAD_REPLY_MAX];
};

struct load;
typedef void load_reply_fn(struct load *load, struct load_client *client);

struct load {
    const struct load_config *config;
    int epoll_fd;
    struct load_client *clients;
    uint32_t count, count_max;
    int64_t deadline_ns;
    load_reply_fn *on_reply;
    const char *doing;
    uint32_t arrived, goal;
    void *mode; /* the mode's own */
};

/* The clients' memory is allocated here; the deadline of the whole run starts here. */
void load_init(struct load *load, const struct load_config *config, uint32_t clients_max, void *mode);

/* Resets every connection, so that no port is left in TIME_WAIT for the next run. */
void load_done(struct load *load);

/* Opens `count` more connections all at once and returns when each has been greeted. Silent ones never send a
 * byte and count as soon as the kernel has connected them. */
void load_connect(struct load *load, uint32_t count, bool silent);

/* One send; on_reply is called once `want` bytes have come. A request without a reply has want 0. */
void load_send(struct load *load, struct load_client *client, const struct wire_message *m, uint32_t want);

/* A phase: begin, send what starts it, finish when `goal` clients have arrived. */
void load_begin(struct load *load, const char *doing, uint32_t goal, load_reply_fn *on_reply);
void load_arrive(struct load *load);
void load_finish(struct load *load);

/* `/<run>/<name>`, with a leading slash as PyTorch's clients put it. */
void load_key(const struct load *load, char key[WIRE_KEY_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* SETs a key and returns when another connection sees it. */
void load_put(struct load *load, const char *key, const void *value, size_t len);

int64_t now_ns(void);
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

#endif
