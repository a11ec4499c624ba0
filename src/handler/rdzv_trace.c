/* The story of a rendezvous, in PyTorch's words. */
#include "handler/rdzv_trace.h"

#include "base/words.h"
#include "events/record.h"
#include "handler/blocking_rdzv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static const struct {
    const char *operation;
    enum muster_node_state state;
} steps[] = {
#define X(name, operation, state) [MU_RDZV_TRACE_##name] = { operation, MUSTER_NODE_##state },
    MU_STORIES(X)
#undef X
};

enum mu_rdzv_trace_kind mu_rdzv_trace_of_action(enum mu_rdzv_action action)
{
    static const enum mu_rdzv_trace_kind kinds[] = {
        [MU_RDZV_KEEP_ALIVE] = MU_RDZV_TRACE_KEEPS_ALIVE,
        [MU_RDZV_ADD_TO_PARTICIPANTS] = MU_RDZV_TRACE_ADDS_TO_PARTICIPANTS,
        [MU_RDZV_ADD_TO_WAIT_LIST] = MU_RDZV_TRACE_ADDS_TO_WAIT_LIST,
        [MU_RDZV_ADD_TO_REDUNDANCY_LIST] = MU_RDZV_TRACE_ADDS_TO_REDUNDANCY_LIST,
        [MU_RDZV_REMOVE_FROM_PARTICIPANTS] = MU_RDZV_TRACE_REMOVES_FROM_PARTICIPANTS,
        [MU_RDZV_REMOVE_FROM_WAIT_LIST] = MU_RDZV_TRACE_REMOVES_FROM_WAIT_LIST,
        [MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST] = MU_RDZV_TRACE_REMOVES_FROM_REDUNDANCY_LIST,
        [MU_RDZV_MARK_COMPLETE] = MU_RDZV_TRACE_MARKS_COMPLETE,
        [MU_RDZV_MARK_CLOSED] = MU_RDZV_TRACE_MARKS_CLOSED,
    };

    assert(mu_rdzv_action_writes(action));
    return kinds[action];
}

/* ---- Words ---- */

static void add_nodes(struct mu_words *w, const struct mu_node *nodes, size_t count)
{
    char node[MU_NODE_TEXT_MAX];
    size_t named = count <= MU_RDZV_TRACE_NODES_MAX ? count : MU_RDZV_TRACE_NODES_MAX;

    for (size_t i = 0; i < named; i++)
        mu_words_add(w, "%s'%s'", i > 0 ? ", " : "", mu_node_text(&nodes[i], node));
    if (named < count)
        mu_words_add(w, " and %zu more", count - named);
}

/* To a rendezvous, a store that cannot be reached is one error, however that shows. */
static const char *kind_of(const struct muster_error *error)
{
    return mu_event_error_kind(mu_blocking_store_error(error->code));
}

/* A node goes into one of the document's lists, or out of it. */
static void add_move(struct mu_words *w, const char *me, const char *move, int64_t round, const char *run_id)
{
    mu_words_add(w, "The node '%s' %s of round %" PRId64 " of the rendezvous '%s'. Pending sync.", me, move, round,
                 run_id);
}

const char *mu_rdzv_trace_text(const struct mu_teller *who, const struct mu_rdzv_trace *story,
                               char ret_text[static MU_RDZV_TRACE_TEXT_MAX])
{
    struct mu_words w = { .text = ret_text, .room = MU_RDZV_TRACE_TEXT_MAX };
    char me[MU_NODE_TEXT_MAX];
    const char *run_id = who->run_id;

    ret_text[0] = '\0';
    (void)mu_node_text(&who->node, me);
    switch (story->kind) {
    case MU_RDZV_TRACE_HOSTS:
        mu_words_add(&w, "Process %" PRId64 " hosts the TCP store for the C10d rendezvous backend.", who->node.pid);
        break;
    case MU_RDZV_TRACE_ATTEMPTS:
        mu_words_add(&w, "The node '%s' attempts to join the next round of the rendezvous '%s'.", me, run_id);
        break;
    case MU_RDZV_TRACE_JOINED:
        mu_words_add(&w,
                     "The node '%s' has joined round %" PRId64 " of the rendezvous '%s' as rank %" PRId64
                     " in a world of size %" PRId64 ".",
                     me, story->round, run_id, story->rank, story->world_size);
        break;
    case MU_RDZV_TRACE_KEEPS_ALIVE:
        mu_words_add(&w, "The node '%s' updated its keep-alive heartbeat time for the rendezvous '%s'. Pending sync.",
                     me, run_id);
        break;
    case MU_RDZV_TRACE_ADDS_TO_PARTICIPANTS:
        add_move(&w, me, "added itself to the participants", story->round, run_id);
        break;
    case MU_RDZV_TRACE_ADDS_TO_WAIT_LIST:
        add_move(&w, me, "added itself to the wait list", story->round + 1, run_id);
        break;
    case MU_RDZV_TRACE_ADDS_TO_REDUNDANCY_LIST:
        add_move(&w, me, "added itself to the redundancy list", story->round + 1, run_id);
        break;
    case MU_RDZV_TRACE_REMOVES_FROM_PARTICIPANTS:
        add_move(&w, me, "removed itself from the participants", story->round, run_id);
        break;
    case MU_RDZV_TRACE_REMOVES_FROM_WAIT_LIST:
        add_move(&w, me, "removed itself from the wait list", story->round + 1, run_id);
        break;
    case MU_RDZV_TRACE_REMOVES_FROM_REDUNDANCY_LIST:
        add_move(&w, me, "removed itself from the redundant list", story->round + 1, run_id);
        break;
    case MU_RDZV_TRACE_MARKS_COMPLETE:
        mu_words_add(&w, "The node '%s' marked round %" PRId64 " of the rendezvous '%s' as complete. Pending sync.", me,
                     story->round, run_id);
        break;
    case MU_RDZV_TRACE_MARKS_CLOSED:
        mu_words_add(&w, "The node '%s' marked the rendezvous '%s' as closed. Pending sync.", me, run_id);
        break;
    case MU_RDZV_TRACE_DEAD_REMOVED:
        mu_words_add(&w, "As part of the sync operation the node(s) ");
        add_nodes(&w, story->nodes, story->nodes_count);
        mu_words_add(&w, " have been removed from the rendezvous '%s' since they had no heartbeat.", run_id);
        break;
    case MU_RDZV_TRACE_SYNCED:
        mu_words_add(&w,
                     "The node '%s' has successfully synced its local changes with other nodes in the rendezvous '%s'.",
                     me, run_id);
        break;
    case MU_RDZV_TRACE_STALE:
        mu_words_add(
            &w,
            "The node '%s' has a stale state and failed to sync its local changes with other nodes in the rendezvous "
            "'%s'.",
            me, run_id);
        break;
    case MU_RDZV_TRACE_BEAT:
        mu_words_add(&w, "The node '%s' has sent a keep-alive heartbeat to the rendezvous '%s'.", me, run_id);
        break;
    case MU_RDZV_TRACE_CLOSED:
        mu_words_add(&w, "The node '%s' has closed the rendezvous '%s'.", me, run_id);
        break;
    case MU_RDZV_TRACE_LEFT:
        mu_words_add(&w, "The node '%s' has left the rendezvous '%s'.", me, run_id);
        break;
    case MU_RDZV_TRACE_SHUTDOWN_FAILED:
        mu_words_add(&w, "The node '%s' has failed to shutdown the rendezvous '%s' due to an error of type %s.", me,
                     run_id, kind_of(story->error));
        break;
    case MU_RDZV_TRACE_BEAT_FAILED:
        mu_words_add(
            &w,
            "The node '%s' has failed to send a keep-alive heartbeat to the rendezvous '%s' due to an error of type "
            "%s.",
            me, run_id, kind_of(story->error));
        break;
    case MU_RDZV_TRACE_JOIN_FAILED:
    case MU_RDZV_TRACE_IS_CLOSED_FAILED:
    case MU_RDZV_TRACE_SET_CLOSED_FAILED:
    case MU_RDZV_TRACE_NODES_WAITING_FAILED:
    case MU_RDZV_TRACE_SYNC_FAILED:
    case MU_RDZV_TRACE_LEAVE_FAILED:
    case MU_RDZV_TRACE_CREATE_FAILED:
    case MU_RDZV_TRACE_BACKEND_FAILED:
        mu_words_add(&w, "%s: %s", kind_of(story->error), story->error->text);
        break;
    }
    return ret_text;
}

struct mu_teller mu_teller_of(const char *run_id, const struct muster_node *node)
{
    return (struct mu_teller){ .run_id = run_id, .node = { mu_slice_str(node->name), node->pid, node->local_id } };
}

struct mu_teller mu_teller_new(const char *run_id, const char *local_addr, int64_t local_id,
                               char hostname[static MU_HANDLER_NAME_MAX])
{
    return mu_teller_of(
        run_id, &(struct muster_node){ mu_handler_node_name(local_addr, hostname), (int64_t)getpid(), local_id });
}

void mu_rdzv_trace_tell(const struct mu_teller *who, struct mu_rdzv_trace story)
{
    char text[MU_RDZV_TRACE_TEXT_MAX];
    bool wanted = mu_event_wanted();

    if (!wanted && !mu_log_shows(MUSTER_LOG_DEBUG))
        return;
    (void)mu_rdzv_trace_text(who, &story, text);
    mu_log(MUSTER_LOG_DEBUG, "%s", text);
    if (!wanted)
        return;
    mu_event_record((struct muster_event_record){ .name = steps[story.kind].operation,
                                                  .run_id = who->run_id,
                                                  .hostname = who->node.name.data,
                                                  .pid = who->node.pid,
                                                  .local_id = who->node.local_id,
                                                  .rank = story.kind == MU_RDZV_TRACE_JOINED ? story.rank : -1,
                                                  .node_state = steps[story.kind].state,
                                                  .error = story.error != NULL ? story.error->text : NULL },
                    "%s", text);
}

int mu_rdzv_trace_create_failed(const char *run_id, const char *local_addr, const struct muster_error *error,
                                struct muster_error *reterr)
{
    char hostname[MU_HANDLER_NAME_MAX];
    const struct mu_teller who = mu_teller_new(run_id, local_addr, -1, hostname);

    mu_rdzv_trace_tell(&who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_CREATE_FAILED, .error = error });
    if (reterr != NULL)
        *reterr = *error;
    return error->code;
}

void mu_rdzv_trace_phase(struct mu_rdzv_trace_phases *phases, const char *run_id, const char *phase, uint64_t now_ms)
{
    uint64_t dropped = 0;
    char more[64] = "";

    if (phase == phases->last || !mu_log_shows(MUSTER_LOG_DEBUG))
        return;
    phases->last = phase;
    phases->limit.burst = MU_RDZV_TRACE_PHASES_BURST;
    phases->limit.per_s = MU_RDZV_TRACE_PHASES_S;
    if (!mu_log_allowed(&phases->limit, now_ms, &dropped))
        return;
    if (dropped > 0)
        (void)snprintf(more, sizeof more, " (after %" PRIu64 " more lines of this kind)", dropped);
    mu_log(MUSTER_LOG_DEBUG, "rendezvous '%s': %s%s", run_id, phase, more);
}
