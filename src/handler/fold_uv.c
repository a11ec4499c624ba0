/* See fold_uv.h.
 *
 * Happy path: join -> the fold machine takes a lease, writes this node's record, and watches until the document has us
 * and it tells JOINED -> the boot machine opens the round's store and publishes it (job/master), or waits for it ->
 * the owner is told JOINED. A failure of the boot leaves the round and is told as FAILED. When the engine is away, the
 * client and the machine try again; nothing is told but that it is away. Freeing the handler ends its lease, and with
 * it all keys of this node. */
#include "handler/fold_uv.h"

#include "proc/will.h"
#include "store/placed_server_uv.h"

#include <stdlib.h>

static struct mu_fold_uv *fold_of(struct mu_shell *shell)
{
    return shell->driver;
}

/* ---- Telling ---- */

static void tell_members(struct mu_fold_uv *f, struct muster_rdzv_event *event, bool only_lost)
{
    const struct mu_fold_members *members = mu_fold_names(f->fold);
    size_t room = members != NULL ? members->count : 0;
    struct mu_node *nodes = calloc(room + 1, sizeof *nodes);

    mu_shell_say_nodes(f->shell, event, nodes, nodes != NULL ? mu_fold_name(f->fold, only_lost, nodes, room) : 0);
    free(nodes);
}

static void tell_progress(struct mu_fold_uv *f, struct muster_rdzv_event *event)
{
    const struct mu_waiters *crowd = mu_fold_crowd(f->fold);
    char note[MU_WAITERS_NOTE_MAX];

    event->note = mu_fold_note(f->fold, note);
    mu_shell_say_nodes(f->shell, event, crowd->nodes, crowd->count);
}

void mu_fold_uv_tell(struct mu_shell *shell, struct muster_rdzv_event *event, enum mu_talk_nodes nodes,
                     const struct mu_part_news *news)
{
    struct mu_fold_uv *f = fold_of(shell);

    (void)news;
    switch (nodes) {
    case MU_TALK_NODES_MEMBERS:
    case MU_TALK_NODES_LOST:
        tell_members(f, event, nodes == MU_TALK_NODES_LOST);
        break;
    case MU_TALK_NODES_SEEN:
        tell_progress(f, event);
        break;
    case MU_TALK_NODES_WAITING:
    case MU_TALK_NODES_NONE:
        mu_shell_say(shell, event);
        break;
    }
}

void mu_fold_uv_own(struct mu_shell *shell, const void *told)
{
    struct mu_teller who = mu_shell_teller(shell);

    mu_rdzv_trace_fold(&who, told);
}

/* ---- Where the round meets ---- */

/* A GET of the boot's that waits may be answered now. */
static void answer_get(struct mu_fold_uv *f)
{
    struct mu_boot_event answer;
    bool answered = mu_meeting_answer(&f->meeting, f->fold, uv_now(f->shell->loop), &answer);

    f->shell->also_ms = mu_meeting_deadline_ms(&f->meeting);
    if (answered)
        mu_boot_uv_answer(&f->shell->boot, answer);
}

void mu_fold_uv_on_time(struct mu_shell *shell)
{
    answer_get(fold_of(shell));
}

static uint16_t agents_port(const struct mu_fold_uv *f)
{
    const struct mu_placed_server *agents = mu_boot_uv_agents_store(&f->shell->boot);

    return mu_meeting_agents_port(f->agents_port, agents != NULL ? mu_addr_port(mu_placed_server_address(agents)) : 0);
}

/* After everything that may have changed our lease, or the server that we use. */
static void renew_will(struct mu_fold_uv *f)
{
    struct mu_fold_op mark;
    struct mu_kv_lone lone;

    if (f->will == NULL || f->client == NULL)
        return;
    if (mu_fold_will(f->fold, &mark) && f->client->ops->will(f->client, &mark, &lone))
        mu_kv_leave(&lone, f->will);
    else
        mu_will_withdraw(f->will);
}

void mu_fold_uv_request(struct mu_shell *shell, const void *effect)
{
    struct mu_fold_uv *f = fold_of(shell);

    f->client->ops->request(f->client, effect, mu_fold_request_until_ms(f->fold, uv_now(shell->loop)));
    renew_will(f);
}

/* Writes job/master; what comes of it answers the boot's `id`. 0 or MUSTER_ENOMEM. */
static int publish(struct mu_fold_uv *f, uint64_t id, const struct mu_fold_master *master)
{
    struct mu_buf value = { 0 };
    int rc = mu_fold_master_write(master, &value);

    if (rc == 0) {
        struct mu_fold_effect effect = mu_meeting_write(&f->meeting, f->fold, id, mu_buf_slice(&value));

        mu_fold_uv_request(f->shell, &effect);
    }
    mu_buf_done(&value);
    return rc;
}

void mu_fold_uv_boot_request(struct mu_shell *shell, const struct mu_boot_effect *effect)
{
    struct mu_fold_uv *f = fold_of(shell);
    struct mu_boot_event answer;
    struct mu_fold_master master;
    enum mu_meeting_reply reply =
        mu_meeting_ask(&f->meeting, f->fold, effect, agents_port(f), uv_now(shell->loop), &answer, &master);

    shell->also_ms = mu_meeting_deadline_ms(&f->meeting);
    mu_shell_arm(shell);
    if (reply == MU_MEETING_ANSWER || (reply == MU_MEETING_PUBLISH && publish(f, effect->id, &master) < 0))
        mu_boot_uv_answer(&shell->boot, answer);
}

void mu_fold_uv_start_boot(struct mu_shell *shell)
{
    char rank0[MU_NODE_TEXT_MAX];

    mu_shell_start_boot(shell, mu_meeting_boot_start(fold_of(shell)->fold, rank0));
}

bool mu_fold_uv_local_address(const struct mu_shell *shell, char *text, size_t room)
{
    const struct mu_fold_uv *f = shell->driver;

    return f->client->ops->local_address(f->client, text, room);
}

/* ---- What comes back from the client ---- */

/* The machine's event, and what of it is not the machine's: where the round meets. */
void mu_fold_uv_heard(void *ctx, const struct mu_fold_event *event)
{
    struct mu_fold_uv *f = ctx;
    struct mu_boot_event answer;

    if (mu_meeting_published(&f->meeting, event, &answer)) {
        mu_boot_uv_answer(&f->shell->boot, answer);
        return;
    }
    mu_meeting_see(&f->meeting, event);
    mu_shell_feed(f->shell, event);
    if (f->shell->freeing)
        return;
    if (mu_fold_has_moved(f->fold)) {
        if (f->on_moved != NULL)
            f->on_moved(f->shell);
        return;
    }
    answer_get(f);
    renew_will(f);
}

/* ---- For handlers ---- */

void mu_fold_uv_keep_will(struct mu_fold_uv *f, struct mu_will *will)
{
    if (will == f->will)
        return;
    mu_will_withdraw(f->will);
    f->will = will;
    renew_will(f);
}

void mu_fold_uv_close(struct mu_fold_uv *f)
{
    mu_fold_uv_keep_will(f, NULL);
    if (f->client == NULL)
        return;
    mu_shell_hold(f->shell);
    f->client->ops->close(f->client, mu_shell_drop, f->shell);
    f->client = NULL;
}

void mu_fold_uv_done(struct mu_fold_uv *f)
{
    mu_fold_free(f->fold);
    f->fold = NULL;
}
