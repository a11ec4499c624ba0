/* Raw peers of a server under test: sockets that say bytes and check what comes back, every wait within a deadline.
 *
 * The server may run in the test's own thread: whenever a peer has to wait it gives the other side a turn. A peer that
 * waits in vain fails the test. Nothing here allocates. */
#ifndef TESTS_LIB_PEER_H
#define TESTS_LIB_PEER_H

#include "store/codec.h"
#include "store/net.h"

#include <stdio.h>
#include <sys/types.h>

enum { PEERS_MAX = 10240, PEER_WAIT_MS = 15000 };

struct peer {
    int fd; /* -1: closed */
    enum mu_dialect dialect;
    struct peer *next_free;
};

/* Lets the other side work until `fd` (-1: none) is ready for `events`, or for about timeout_ms; sooner is fine. */
typedef void peer_turn(void *ctx, int fd, short events, int timeout_ms);
void peers_take_turns(peer_turn *turn, void *ctx);

/* True until PEER_WAIT_MS after *since_ms, which the first call sets (start with 0); each call gives a turn. */
bool peers_may_wait(uint64_t *since_ms);

/* A socket first and its connection later, for tests that do something in between. Both fail the test, not the call. */
struct peer *peer_new(const union mu_addr *addr, enum mu_dialect dialect);
void peer_connect(struct peer *peer, const union mu_addr *addr);
void peer_close(struct peer *peer); /* FIN */
void peer_reset(struct peer *peer); /* RST */
void peers_close(void);             /* whoever is left */
unsigned peer_port(const struct peer *peer);

/* All of the bytes; or what the socket takes now, -1 when it takes none any more. */
void peer_send(struct peer *peer, struct mu_slice bytes);
ssize_t peer_try_send(struct peer *peer, struct mu_slice bytes);

/* Exactly `len` bytes, false if the other side closes before; or what is there now, -1 if it has closed. */
bool peer_try_read(struct peer *peer, void *to, size_t len);
ssize_t peer_read_some(struct peer *peer, void *to, size_t max);

/* The same in the words of wire.h, in the peer's dialect. */
void say(struct peer *peer, const char *text);
#define hear(peer, text) peer_hear(peer, text, __FILE__, __LINE__)
void peer_hear(struct peer *peer, const char *text, const char *file, int line);
#define hear_end(peer) peer_hear_end(peer, __FILE__, __LINE__) /* the other side closes and has said nothing more */
void peer_hear_end(struct peer *peer, const char *file, int line);
bool peer_hears_nothing(struct peer *peer); /* now: no bytes, no end */

/* Log lines, collected from lines_collect() on. */
void lines_collect(void);
size_t lines_count(void); /* of all, also those that no longer fit */
size_t lines_with(const char *text);
const char *line_with(const char *text); /* the first one; NULL: none */
void lines_show(FILE *to);

#endif
