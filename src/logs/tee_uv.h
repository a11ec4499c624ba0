/* One stream of one worker that passes through us: from a pipe to a file as the bytes arrive, and to the console in
 * whole lines. When the console does not keep up, worker and file go on, and its lines are read from the file later.
 * Only without a file are lines dropped, see console_uv.h. When the file does not keep up, the pipe is not read until
 * it does, so the worker waits, unless the file system is silent. */
#ifndef MU_LOGS_TEE_UV_H
#define MU_LOGS_TEE_UV_H

#include "logs/console_uv.h"
#include "logs/filters.h"
#include "logs/logfile.h"

#include "base/buf.h"

#define MU_TEE_CHUNK_BYTES 65536
#define MU_TEE_TURN_BYTES (4 * MU_TEE_CHUNK_BYTES) /* read from one pipe before others have their turn */
#define MU_TEE_DRAIN_BYTES (2u << 20)              /* read at once from the pipe of a dead worker: all it can hold */

struct mu_tee;

typedef void mu_tee_ended(void *ctx);

struct mu_tee_config {                /* borrowed for the call unless said otherwise */
    int fd;                           /* the pipe's reading end; taken on success */
    struct mu_logfile *file;          /* NULL: none; outlives the tee; read by nobody else */
    struct mu_console *console;       /* lives longer than the tee */
    const char *label, *where;        /* see mu_console_source_new() */
    const char *prefix;               /* copied */
    const struct mu_filters *filters; /* with `filtered`: lines that match are written there too */
    struct mu_logfile *filtered;      /* NULL: none; both live longer than the tee */
    bool keep_tail;                   /* for mu_tee_tail() */
    mu_tee_ended *on_ended; /* the pipe is at its end and all of it was handed to the console; once, from the loop or
                             * from within mu_tee_drain() or mu_tee_end() */
    void *ctx;
};

int mu_tee_start(uv_loop_t *loop, const struct mu_tee_config *config, struct mu_tee **ret_tee,
                 struct muster_error *reterr);
void mu_tee_drain(struct mu_tee *tee); /* reads what is there now, bounded */
void mu_tee_end(struct mu_tee *tee);   /* as if the pipe were at its end: it is not read any more */
/* One of its files has moved, or the file system is silent: goes on with what waited for that. To be called by the
 * owner of the files, from the loop. */
void mu_tee_go_on(struct mu_tee *tee);
bool mu_tee_has_ended(const struct mu_tee *tee); /* the pipe; the console may lag behind */
uint64_t mu_tee_lag(const struct mu_tee *tee);   /* bytes in the file that are still to be shown */
uint64_t mu_tee_bytes(const struct mu_tee *tee);
int mu_tee_tail(const struct mu_tee *tee, struct mu_buf *ret); /* see mu_tail_text(); empty without keep_tail */

typedef void mu_tee_closed(void *ctx);

/* The beginning of an unfinished line goes to the console. Lines that are only in the file are not shown, and a warning
 * says so. From here on the tee belongs to the loop, which frees it and calls on_closed with the config's ctx. Does not
 * call on_ended. */
void mu_tee_close(struct mu_tee *tee, mu_tee_closed *on_closed);

#endif
