/* An agent's last will: bytes that its keeper sends to a server if the agent is killed, for other nodes to read there.
 *
 * Keeper and agent share the memory. The agent writes each new will beside the valid one, and then makes it valid by a
 * single store: whenever it is killed, there is a whole will, or none. The keeper reads it only when the agent is dead.
 * libc only, and no memory of its own: the keeper has no loop. */
#ifndef MU_PROC_WILL_H
#define MU_PROC_WILL_H

#include "base/slice.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define MU_WILL_BYTES_MAX 1024
#define MU_WILLS_MAX 4        /* agents of one process that can have one */
#define MU_WILLS_SEND_MS 1000 /* for all of them together */

struct mu_wills; /* opaque: the shared memory */
struct mu_will;  /* opaque: an agent's place in it */

/* To be made before the fork. NULL: there is no memory; everything below does nothing then. */
struct mu_wills *mu_wills_new(void);
void mu_wills_free(struct mu_wills *wills); /* in this process */

/* A place that is free; NULL: there is none. From any thread. */
struct mu_will *mu_will_claim(struct mu_wills *wills);
struct mu_will_text {
    const struct sockaddr *address; /* numeric, with its port */
    socklen_t address_len;
    struct mu_slice bytes;
    /* The server closes by itself when it has done what they ask for, and does nothing of it if we close our direction
     * before: an HTTP server, for example. False: it closes when we have closed our direction. */
    bool server_closes;
};

/* Replaces the will. False: it is too long, and there is no will now. */
bool mu_will_set(struct mu_will *will, const struct mu_will_text *text);
void mu_will_withdraw(struct mu_will *will); /* nothing is sent */
void mu_will_release(struct mu_will *will);  /* withdraws it, and others may have the place */

/* In the keeper, once the agent is dead: connects, sends, and waits until the other end has read it and closes. All of
 * it ends by `until_ms` of mu_clock_ms(); an address that refuses ends at once. A failure is not reported: the others
 * find out as they would without a will. Returns how many were sent whole. */
size_t mu_wills_send(const struct mu_wills *wills, int64_t until_ms);

#endif
