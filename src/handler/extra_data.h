/* Extra data of a round of the classic etcd rendezvous: one key with a JSON map, to which nodes add. Pure;
 * blocking_etcd_uv.c makes the requests.
 *
 *   store:  READING --> WRITING --written--> DONE        load:  READING --it is there--> DONE
 *              ^           |                                     ^  |
 *              +-- lost: another write was faster, or            |  v
 *                  nobody knows whether it was done              WATCHING */
#ifndef MU_HANDLER_EXTRA_DATA_H
#define MU_HANDLER_EXTRA_DATA_H

#include "handler/handler.h"
#include "kv/etcd2.h"
#include "rdzv/classic.h"

#define MU_EXTRA_DATA_MAX (1u << 20) /* bytes of the map */
#define MU_EXTRA_WATCH_MS 20000      /* then it is read anew */
#define MU_EXTRA_PAUSE_MS 100        /* after a lost write */

struct mu_extra_data {
    const char *key, *value; /* value NULL: it is loaded */
    enum mu_extra_state { MU_EXTRA_READING, MU_EXTRA_WRITING, MU_EXTRA_WATCHING, MU_EXTRA_DONE } state;
    char path[MU_CLASSIC_KEY_MAX];   /* of the map in etcd */
    struct mu_etcd2_request request; /* unless DONE: to be made next; points into this struct */
    int64_t pause_ms;                /* before that */
    int64_t most_ms;                 /* how long it may last */
    char *text, *prev;               /* that it points to */
    struct muster_bytes found;       /* DONE, of a load: the caller's */
};

/* For a round of the handler that was made of `params`. MUSTER_EINVAL: it is none of back end etcd; params may then be
 * NULL. On failure there is nothing to end. */
int mu_extra_data_init(struct mu_extra_data *extra, const char *backend, const struct muster_rdzv_params *params,
                       int64_t round, const char *key, const char *value, struct muster_error *reterr);
/* How long all of it may take, if the caller says `timeout_ms`. */
int64_t mu_extra_data_limit_ms(int64_t timeout_ms);
/* How long the request may take, with `left_ms` for all of it. MUSTER_ETIMEOUT: nothing is left. */
int mu_extra_data_time(const struct mu_extra_data *extra, int64_t left_ms, uint64_t *ret_ms,
                       struct muster_error *reterr);
/* What came of the request; rc, unsure, status, error: as in struct mu_etcd2_call. Below 0: it is over. */
int mu_extra_data_step(struct mu_extra_data *extra, int rc, bool unsure, unsigned status,
                       const struct mu_etcd2_answer *answer, const struct muster_error *error,
                       struct muster_error *reterr);
/* It is over, with `rc`, which is returned: says in *reterr what was tried. */
int mu_extra_data_end(struct mu_extra_data *extra, int rc, struct muster_error *reterr);

#endif
