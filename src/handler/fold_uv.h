/* A node's part in a rendezvous with a leader, as handlers drive it: the fold machine (rdzv/fold.h: members and
 * rounds), the engine client that carries its requests (kv/engine_client.h), and where the round's workers meet
 * (meeting.h). A handler has the shell and this: etcd_v3_uv.c from the start, c10d_uv.c if the store that it found has
 * an engine. */
#ifndef MU_HANDLER_FOLD_UV_H
#define MU_HANDLER_FOLD_UV_H

#include "handler/meeting.h"
#include "handler/shell_uv.h"
#include "kv/engine_client.h"

struct mu_will;

struct mu_fold_uv { /* shell->driver; the rest is zero before the client is there */
    struct mu_shell *shell;
    struct mu_fold *fold;
    uint16_t agents_port;            /* of the store for the agents' keys, of all rounds; 0: each round has its own */
    struct mu_engine_client *client; /* NULL: there is none */
    struct mu_meeting meeting;
    struct mu_will *will;                     /* to be kept; NULL: none */
    void (*on_moved)(struct mu_shell *shell); /* the job goes on in a document: it may close this. NULL: never */
};

mu_engine_client_heard mu_fold_uv_heard; /* the client's, whose context is the struct mu_fold_uv */

/* For the shell's table. `destroy` begins with mu_fold_uv_done(). */
#define MU_FOLD_UV_SHELL_OPS                                                                                           \
    .part = &mu_fold_part, .request = mu_fold_uv_request, .own = mu_fold_uv_own, .start_boot = mu_fold_uv_start_boot,  \
    .boot_request = mu_fold_uv_boot_request, .local_address = mu_fold_uv_local_address, .tell = mu_fold_uv_tell,       \
    .on_time = mu_fold_uv_on_time
void mu_fold_uv_request(struct mu_shell *shell, const void *effect);
void mu_fold_uv_own(struct mu_shell *shell, const void *told);
void mu_fold_uv_start_boot(struct mu_shell *shell);
void mu_fold_uv_boot_request(struct mu_shell *shell, const struct mu_boot_effect *effect);
bool mu_fold_uv_local_address(const struct mu_shell *shell, char *text, size_t room);
void mu_fold_uv_tell(struct mu_shell *shell, struct muster_rdzv_event *event, enum mu_talk_nodes nodes,
                     const struct mu_part_news *news);
void mu_fold_uv_on_time(struct mu_shell *shell);

/* As in struct mu_handler_ops. */
void mu_fold_uv_keep_will(struct mu_fold_uv *f, struct mu_will *will);
/* Ends the lease. Holds the shell until the client is closed. */
void mu_fold_uv_close(struct mu_fold_uv *f);
void mu_fold_uv_done(struct mu_fold_uv *f);

#endif
