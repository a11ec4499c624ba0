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

static enum mu_rdzv_trace_kind kind_of_action(enum mu_rdzv_action action)
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

bool mu_rdzv_trace_of_talk(const struct mu_talk_effect *effect, bool has_back_end, bool is_member,
                           enum mu_rdzv_trace_kind *ret_kind)
{
    static const enum mu_rdzv_trace_kind failures[] = { [MU_PART_ON_JOIN] = MU_RDZV_TRACE_JOIN_FAILED,
                                                        [MU_PART_ON_LEAVE] = MU_RDZV_TRACE_LEAVE_FAILED,
                                                        [MU_PART_ON_TIME] = MU_RDZV_TRACE_BEAT_FAILED };
    bool told = effect->type == MU_TALK_DO_TELL && has_back_end;

    if (effect->type == MU_TALK_DO_ASK && effect->asked == MU_PART_ON_JOIN)
        *ret_kind = MU_RDZV_TRACE_ATTEMPTS;
    else if (told && effect->tell == MU_PART_TELL_JOINED)
        *ret_kind = MU_RDZV_TRACE_JOINED;
    else if (told && effect->tell == MU_PART_TELL_LEFT)
        *ret_kind = MU_RDZV_TRACE_LEFT;
    else if (told && effect->tell == MU_PART_TELL_CLOSED && effect->asked == MU_PART_ON_CLOSE)
        *ret_kind = MU_RDZV_TRACE_CLOSED;
    else if (told && effect->tell == MU_PART_TELL_FAILED && effect->asked != MU_PART_ON_CLOSE)
        *ret_kind = failures[effect->asked];
    else if (told && effect->tell == MU_PART_TELL_BACKEND_DOWN)
        *ret_kind = is_member ? MU_RDZV_TRACE_BEAT_FAILED : MU_RDZV_TRACE_SYNC_FAILED;
    else
        return false;
    return true;
}

/* ---- Words ---- */

#define OF " of the rendezvous '%j'."
#define PENDING " Pending sync."

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
    assert(error != NULL); /* texts that name its kind are of errors */
    return mu_event_error_kind(mu_blocking_store_error(error->code));
}

/* What is said of each; of those that are not here, the error alone. The fields are in add_field(). */
static const char *const texts[] = {
#define SAYS(kind, text) [MU_RDZV_TRACE_##kind] = (text)
    SAYS(HOSTS, "Process %p hosts the TCP store for the C10d rendezvous backend."),
    SAYS(ATTEMPTS, "The node '%n' attempts to join the next round of the rendezvous '%j'."),
    SAYS(JOINED, "The node '%n' has joined round %r of the rendezvous '%j' as rank %k in a world of size %w."),
    SAYS(KEEPS_ALIVE, "The node '%n' updated its keep-alive heartbeat time for the rendezvous '%j'." PENDING),
    SAYS(ADDS_TO_PARTICIPANTS, "The node '%n' added itself to the participants of round %r" OF PENDING),
    SAYS(ADDS_TO_WAIT_LIST, "The node '%n' added itself to the wait list of round %R" OF PENDING),
    SAYS(ADDS_TO_REDUNDANCY_LIST, "The node '%n' added itself to the redundancy list of round %R" OF PENDING),
    SAYS(REMOVES_FROM_PARTICIPANTS, "The node '%n' removed itself from the participants of round %r" OF PENDING),
    SAYS(REMOVES_FROM_WAIT_LIST, "The node '%n' removed itself from the wait list of round %R" OF PENDING),
    SAYS(REMOVES_FROM_REDUNDANCY_LIST, "The node '%n' removed itself from the redundant list of round %R" OF PENDING),
    SAYS(MARKS_COMPLETE, "The node '%n' marked round %r of the rendezvous '%j' as complete." PENDING),
    SAYS(MARKS_CLOSED, "The node '%n' marked the rendezvous '%j' as closed." PENDING),
    SAYS(DEAD_REMOVED, "As part of the sync operation the node(s) %d have been removed from the rendezvous '%j' since "
                       "they had no heartbeat."),
    SAYS(SYNCED, "The node '%n' has successfully synced its local changes with other nodes in the rendezvous '%j'."),
    SAYS(STALE, "The node '%n' has a stale state and failed to sync its local changes with other nodes in the "
                "rendezvous '%j'."),
    SAYS(BEAT, "The node '%n' has sent a keep-alive heartbeat to the rendezvous '%j'."),
    SAYS(CLOSED, "The node '%n' has closed the rendezvous '%j'."),
    SAYS(LEFT, "The node '%n' has left the rendezvous '%j'."),
    SAYS(SHUTDOWN_FAILED, "The node '%n' has failed to shutdown the rendezvous '%j' due to an error of type %e."),
    SAYS(BEAT_FAILED, "The node '%n' has failed to send a keep-alive heartbeat to the rendezvous '%j' due to an error "
                      "of type %e."),
    [MU_RDZV_TRACE_BACKEND_FAILED] = NULL, /* the last of all */
#undef SAYS
};

static void add_field(struct mu_words *w, char field, const struct mu_teller *who, const struct mu_rdzv_trace *story)
{
    char node[MU_NODE_TEXT_MAX];

    if (field == 'n') /* this node */
        mu_words_add(w, "%s", mu_node_text(&who->node, node));
    else if (field == 'p') /* its process */
        mu_words_add(w, "%" PRId64, who->node.pid);
    else if (field == 'j')
        mu_words_add(w, "%s", who->run_id);
    else if (field == 'r' || field == 'R') /* the round, or the next one */
        mu_words_add(w, "%" PRId64, story->round + (field == 'R'));
    else if (field == 'k')
        mu_words_add(w, "%" PRId64, story->rank);
    else if (field == 'w')
        mu_words_add(w, "%" PRId64, story->world_size);
    else if (field == 'd') /* dead ones */
        add_nodes(w, story->nodes, story->nodes_count);
    else if (field == 'e')
        mu_words_add(w, "%s", kind_of(story->error));
    else
        assert(false);
}

const char *mu_rdzv_trace_text(const struct mu_teller *who, const struct mu_rdzv_trace *story,
                               char ret_text[static MU_RDZV_TRACE_TEXT_MAX])
{
    struct mu_words w = { .text = ret_text, .room = MU_RDZV_TRACE_TEXT_MAX };
    const char *text = texts[story->kind], *field;

    ret_text[0] = '\0';
    if (text == NULL)
        mu_words_add(&w, "%s: %s", kind_of(story->error), story->error->text);
    for (; text != NULL && *text != '\0'; text = *field == '\0' ? field : field + 2) {
        field = strchrnul(text, '%');
        mu_words_add(&w, "%.*s", (int)(field - text), text);
        if (*field != '\0')
            add_field(&w, field[1], who, story);
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

struct mu_teller mu_teller_of_self(const char *run_id, const struct muster_node *self,
                                   char hostname[static MU_HANDLER_NAME_MAX])
{
    bool known = self != NULL && self->name != NULL;

    return known ? mu_teller_of(run_id, self) : mu_teller_new(run_id, NULL, -1, hostname);
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

void mu_rdzv_trace_hosts(struct mu_teller who)
{
    who.node.local_id = -1; /* PyTorch's has no place in the group yet when it hosts */
    mu_rdzv_trace_tell(&who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_HOSTS });
}

void mu_rdzv_trace_not_found(const struct mu_teller *who, const struct muster_error *error)
{
    mu_rdzv_trace_tell(who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_BACKEND_FAILED, .error = error });
}

void mu_rdzv_trace_planned(const struct mu_teller *who, struct mu_rdzv_deeds deeds, int64_t nodes_min)
{
    for (size_t i = 0; i < deeds.count; i++) {
        const struct mu_rdzv_deed *deed = &deeds.items[i];

        mu_rdzv_trace_tell(who, (struct mu_rdzv_trace){ .kind = kind_of_action(deed->action), .round = deed->round });
        if (deed->ends_round) /* these two are no events of PyTorch's, only lines */
            mu_log(MUSTER_LOG_DEBUG, "rendezvous '%s': no participants left; the next round begins", who->run_id);
        if (deed->ends_last_call)
            mu_log(MUSTER_LOG_DEBUG,
                   "rendezvous '%s': fewer participants left than the minimum of %" PRId64 "; the last call is off",
                   who->run_id, nodes_min);
    }
}

void mu_rdzv_trace_synced(const struct mu_teller *who, const struct mu_rdzv_effect *effect,
                          struct mu_rdzv_nodes removed)
{
    const struct mu_rdzv_trace dead = { .kind = MU_RDZV_TRACE_DEAD_REMOVED,
                                        .nodes = removed.items,
                                        .nodes_count = removed.count };
    char node[MU_NODE_TEXT_MAX];

    for (size_t i = 0; i < removed.count; i++)
        mu_log(MUSTER_LOG_INFO, "rendezvous '%s': removed %s, which had no heartbeat", who->run_id,
               mu_node_text(&removed.items[i], node));
    if (removed.count > 0)
        mu_rdzv_trace_tell(who, dead);
    mu_rdzv_trace_tell(who,
                       (struct mu_rdzv_trace){ .kind = effect->written ? MU_RDZV_TRACE_SYNCED : MU_RDZV_TRACE_STALE });
    if (effect->beat)
        mu_rdzv_trace_tell(who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_BEAT });
}

void mu_rdzv_trace_fold(const struct mu_teller *who, const struct mu_fold_effect *effect)
{
    const struct mu_rdzv_deed completes = { .action = MU_RDZV_MARK_COMPLETE, .round = effect->news.round };

    if (effect->type == MU_FOLD_DO_COMPLETED) { /* is told when it is written */
        mu_rdzv_trace_planned(who, (struct mu_rdzv_deeds){ &completes, 1 }, 0);
        mu_rdzv_trace_synced(who, &(struct mu_rdzv_effect){ .written = true }, (struct mu_rdzv_nodes){ NULL, 0 });
    } else if (effect->type == MU_FOLD_DO_LEADER) {
        mu_log(MUSTER_LOG_DEBUG, "rendezvous '%s': this node writes the job's document now", who->run_id);
    }
}

void mu_rdzv_trace_ghost(const struct mu_teller *who, const struct mu_node *ghost, uint64_t death_age_ms)
{
    char text[MU_NODE_TEXT_MAX];

    mu_log(MUSTER_LOG_INFO,
           "rendezvous '%s': %s, an earlier process of this host, is gone but still listed; it is dropped after "
           "%" PRIu64 " s without a heartbeat",
           who->run_id, mu_node_text(ghost, text), death_age_ms / 1000);
}

void mu_rdzv_trace_news(const struct mu_teller *who, const struct mu_part_news *news)
{
    if (news->tell == MU_PART_TELL_FOREIGN)
        mu_log(MUSTER_LOG_WARNING, "rendezvous '%s': %s", who->run_id, news->error->text);
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
