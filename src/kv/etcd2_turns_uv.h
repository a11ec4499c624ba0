/* Turns to write a document, in etcd's version 2 API: a queue in which each node knows only the one before it. For a
 * struct mu_kv that has turns (kv/kv.h): TURN_TAKE, TURN_WAIT, TURN_GIVE. A turn is a hint; what decides is the compare
 * and swap.
 *
 *   turn.NAME   a node that wants a turn writes here. The index of that write is its turn; it replaced the turn before
 *   done.NAME   the turn that was over last
 *   over.TURN   this turn is over: what the next one waits for
 *
 * A turn costs three small writes, however many wait. All of it is gone after a minute. */
#ifndef MU_KV_ETCD2_TURNS_UV_H
#define MU_KV_ETCD2_TURNS_UV_H

#include "kv/etcd2_uv.h"
#include "kv/kv.h"

#define MU_ETCD2_TURNS_DIR "/torch/elastic/muster"
#define MU_ETCD2_TURNS_TTL_S 60

struct mu_etcd2_turn_watch;

struct mu_etcd2_turns {
    uv_loop_t *loop;
    struct mu_http *etcd;
    char *tail, *done; /* keys */
    uint64_t seed, count;
    uint64_t turn, before;         /* that was taken last; the one before it, 0: it is over, or there was none */
    uint64_t index;                /* at which it came: what was written in the turn before is older. 0: it did not */
    struct mu_kv_request *waiting; /* TURN_WAIT; `timer` is its time */
    uv_timer_t timer;
    struct mu_etcd2_turn_watch *watch;
    bool closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

int mu_etcd2_turns_init(struct mu_etcd2_turns *turns, uv_loop_t *loop, const char *name, uint64_t seed,
                        struct muster_error *reterr);
void mu_etcd2_turns_done(struct mu_etcd2_turns *turns); /* zeroed memory is fine */

void mu_etcd2_turns_start(struct mu_etcd2_turns *turns, struct mu_http *etcd); /* begins what must be closed */
/* Before, or with, the client: requests are done with MUSTER_ECANCELED when that is closed. `closed` comes from the
 * loop. */
void mu_etcd2_turns_close(struct mu_etcd2_turns *turns, void (*closed)(void *ctx), void *ctx);

/* True: there is nothing to wait for, and the request, as it is, is the caller's to answer. Else it is answered from
 * the loop. */
bool mu_etcd2_turns_submit(struct mu_etcd2_turns *turns, struct mu_kv_request *request);

#endif
