/* Extra data of a round of the classic etcd rendezvous: one key with a JSON map, to which nodes add. Pure;
 * blocking_etcd_uv.c makes the requests.
 *
 *   store:  READING --> WRITING --written--> DONE        load:  READING --it is there--> DONE
 *              ^           |                                     ^  |
 *              +-- lost: another write was faster, or            |  v
 *                  nobody knows whether it was done              WATCHING */
#ifndef MU_HANDLER_EXTRA_DATA_H
#define MU_HANDLER_EXTRA_DATA_H

#include "kv/etcd2.h"
#include "muster.h"
#include "rdzv/classic.h"

#define MU_EXTRA_DATA_MAX (1u << 20) /* bytes of the map */
#define MU_EXTRA_WATCH_MS 20000      /* then it is read anew */
#define MU_EXTRA_PAUSE_MS 100        /* after a lost write */

struct mu_extra_data {
    const char *key, *value; /* value NULL: it is loaded */
    enum mu_extra_state { MU_EXTRA_READING, MU_EXTRA_WRITING, MU_EXTRA_WATCHING, MU_EXTRA_DONE } state;
    struct mu_etcd2_request request; /* unless DONE: to be made next, with the path as its key */
    int64_t pause_ms;                /* before that */
    int64_t most_ms;                 /* how long it may last */
    char *text, *prev;               /* that it points to */
    struct muster_bytes found;       /* DONE, of a load: the caller's */
};

void mu_extra_data_init(struct mu_extra_data *extra, const char *key, const char *value);
/* Where it is, below `root` (mu_classic_keys()). */
void mu_extra_data_path(const char *root, int64_t round, char path[static MU_CLASSIC_KEY_MAX]);
/* How long the request may take, with `left_ms` for all of it. MUSTER_ETIMEOUT: nothing is left. */
int mu_extra_data_time(const struct mu_extra_data *extra, int64_t left_ms, uint64_t *ret_ms,
                       struct muster_error *reterr);
/* What came of the request; rc, unsure, status, error: as in struct mu_etcd2_call. Below 0: it is over. */
int mu_extra_data_step(struct mu_extra_data *extra, int rc, bool unsure, unsigned status,
                       const struct mu_etcd2_answer *answer, const struct muster_error *error,
                       struct muster_error *reterr);
void mu_extra_data_done(struct mu_extra_data *extra);

#endif
