/* The signals of an agent as events of its loop.
 *
 * Nothing is installed before mu_watch_start(): until then a signal does what it did when the process was started. It
 * installs the handlers and then unblocks the signals in the calling thread, for they may have been blocked at the
 * start. After mu_watch_close() the handlers are gone again; the mask stays. It does not keep the loop alive. Signals
 * that mu_startup_keeps() are not handled. */
#ifndef MU_PROC_SIGNALS_UV_H
#define MU_PROC_SIGNALS_UV_H

#include "proc/signals.h"

#include <uv.h>

struct mu_watch;

/* From the loop; once for each time the signal came, except that those that come while one is pending are one. */
typedef void mu_watch_signal_cb(void *ctx, int signal);
typedef void mu_watch_closed_cb(void *ctx);

/* `startup` may be NULL: nothing was ignored. On success the caller owns *ret_watch, until it closes it. */
int mu_watch_start(uv_loop_t *loop, const struct mu_signals *signals, const struct mu_startup *startup,
                   mu_watch_signal_cb *on_signal, void *ctx, struct mu_watch **ret_watch, struct muster_error *reterr);
/* `on_closed` (may be NULL) is the last callback; then it is freed. */
void mu_watch_close(struct mu_watch *watch, mu_watch_closed_cb *on_closed, void *ctx);

#endif
