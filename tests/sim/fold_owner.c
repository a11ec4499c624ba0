/* Owners that do what the seed says, at once and without workers: what the fold machine is asked and told, and nothing
 * else. The program's own agents are in fold_agent.c. */
#include "fold_sim.h"

#include <string.h>

const char owner_program[] = "muster-sim-fold";
const uint64_t owner_leave_us = 0;

static void ask_later(struct node *node, enum mu_fold_event_type what, uint64_t in_us);
static void report(struct node *node, enum mu_part_end end);

static void change_owner(struct node *node, int owner)
{
    node->owner = owner;
    node->owner_us = s->now_us;
}

static void on_joined(struct node *node)
{
    const struct mu_fold_world *world = mu_fold_world(node->fold);

    check_joined(node);
    SIM_EXPECT(node->owner == OWNER_JOINING, "node %u joined without having asked", node->index);
    change_owner(node, OWNER_RUNNING);
    node->world = world->id;
    node->world_count = (size_t)world->nodes;
    s->joins++;
}

/* The round is over for this node: its workers are stopped, which takes a while; then it joins anew. Who is done is
 * not needed any more. */
static void regroup(struct node *node)
{
    node->tells++;
    if (node->told_us == 0)
        node->told_us = s->now_us;
    if (node->owner != OWNER_RUNNING)
        return;
    if (node->report.end == MU_PART_END_DONE) {
        ask_later(node, MU_FOLD_ON_LEAVE, 0);
        return;
    }
    change_owner(node, OWNER_STOPPING);
    ask_later(node, MU_FOLD_ON_JOIN, below(s->crowd || chance(80) ? 20 * MS : 2 * SECOND));
}

static void on_failed(struct node *node, enum mu_part_event_type asked, const struct muster_error *error)
{
    int code = error->code;

    node->tells++;
    if (asked == MU_PART_ON_CLOSE)
        return;
    SIM_EXPECT(asked == MU_PART_ON_JOIN, "node %u: its membership failed", node->index);
    if (code == MUSTER_ERDZV_CLOSED || code == MUSTER_ERDZV_GRACEFUL_EXIT) {
        check_closed();
        change_owner(node, OWNER_ENDED);
        return;
    }
    SIM_EXPECT(code == MUSTER_ERDZV_TIMEOUT || code == MUSTER_ERDZV_CONNECTION, "node %u failed: %s", node->index,
               error->text);
    change_owner(node, OWNER_IDLE);
    ask_later(node, MU_FOLD_ON_JOIN, 100 * MS + below(SECOND));
}

void owner_hear(struct node *node, const struct mu_part_news *news)
{
    switch (news->tell) {
    case MU_PART_TELL_JOINED:
        on_joined(node);
        break;
    case MU_PART_TELL_LOST:
        check_lost(node);
        if (strstr(news->cause, "no keep-alive") != NULL)
            node->silent_world = node->world;
        regroup(node);
        break;
    case MU_PART_TELL_WAITING:
        if (node->report.end == MU_PART_END_DONE)
            break;
        if (node->owner == OWNER_RUNNING && mu_rng_below(&s->more, 2) == 0)
            report(node, MU_PART_END_AGAIN);
        regroup(node);
        break;
    case MU_PART_TELL_REMOVED:
        node->tells++;
        if (node->told_us == 0)
            node->told_us = s->now_us;
        node->world = 0; /* killed at once */
        if (node->owner == OWNER_RUNNING && node->report.end == MU_PART_END_DONE) {
            change_owner(node, OWNER_ENDED);
            break;
        }
        if (node->owner == OWNER_RUNNING)
            ask_later(node, MU_FOLD_ON_JOIN, below(50 * MS));
        if (node->owner == OWNER_RUNNING)
            change_owner(node, OWNER_STOPPING);
        break;
    case MU_PART_TELL_CLOSED:
        check_closed();
        break;
    case MU_PART_TELL_LEFT:
        if (node->owner != OWNER_LEAVING)
            break;
        change_owner(node, OWNER_IDLE);
        if (s->calm || chance(50) || node->report.end == MU_PART_END_DONE)
            change_owner(node, OWNER_ENDED);
        else
            ask_later(node, MU_FOLD_ON_JOIN, below(3 * SECOND));
        break;
    case MU_PART_TELL_FAILED:
        on_failed(node, news->asked, news->error);
        break;
    case MU_PART_TELL_REPORTED:
        if (news->error != NULL)
            break;
        node->done |= node->report.end == MU_PART_END_DONE;
        if (node->report.end == MU_PART_END_FAILED)
            node->failed_us = s->now_us;
        break;
    case MU_PART_TELL_LOOKED:
    case MU_PART_TELL_BACKEND_DOWN:
    case MU_PART_TELL_BACKEND_UP:
    case MU_PART_TELL_PROGRESS:
    case MU_PART_TELL_FOREIGN:
    case MU_PART_TELLS_COUNT:
        break;
    }
}

struct asked {
    struct node *node;
    uint64_t id;
    enum mu_fold_event_type what;
};

static void on_asked(void *arg)
{
    struct asked *asked = arg;
    struct node *node = asked->node;

    if (!node->alive || node->id != asked->id) {
        free(asked);
        return;
    }
    if (node->paused_until_us > s->now_us) {
        sim_at(node->paused_until_us, on_asked, asked);
        return;
    }
    if (asked->what == MU_FOLD_ON_JOIN && (node->owner == OWNER_IDLE || node->owner == OWNER_STOPPING)) {
        node->world = 0;
        change_owner(node, OWNER_JOINING);
        feed(node, (struct mu_fold_event){ .type = MU_FOLD_ON_JOIN });
    } else if (asked->what == MU_FOLD_ON_LEAVE && node->owner != OWNER_ENDED && node->owner != OWNER_LEAVING) {
        if (node->owner == OWNER_RUNNING && node->report.end != MU_PART_END_DONE && mu_rng_below(&s->more, 2) == 0)
            report(node, mu_rng_below(&s->more, 4) == 0 ? MU_PART_END_LOST : MU_PART_END_LEFT);
        node->world = 0;
        change_owner(node, OWNER_LEAVING);
        feed(node, (struct mu_fold_event){ .type = MU_FOLD_ON_LEAVE });
    } else if (asked->what == MU_FOLD_ON_CLOSE || asked->what == MU_FOLD_ON_LOOK) {
        s->close_asked |= asked->what == MU_FOLD_ON_CLOSE;
        feed(node, (struct mu_fold_event){ .type = asked->what });
    }
    free(asked);
}

static void ask_later(struct node *node, enum mu_fold_event_type what, uint64_t in_us)
{
    struct asked *asked = calloc(1, sizeof *asked);

    if (asked == NULL)
        abort();
    *asked = (struct asked){ node, node->id, what };
    sim_at(s->now_us + in_us, on_asked, asked);
}

static void report(struct node *node, enum mu_part_end end)
{
    node_report(node, &(struct mu_part_report){ .end = end, .rank = 1, .text = "exitcode 1" });
}

void owner_begin(void)
{
}

void owner_new(struct node *node, uint64_t in_us)
{
    ask_later(node, MU_FOLD_ON_JOIN, in_us);
}

void owner_gone(struct node *node)
{
    (void)node;
}

bool owner_takes(struct node *node, const struct mu_fold_event *event)
{
    (void)node;
    (void)event;
    return false;
}

void owner_heard(struct node *node)
{
    (void)node;
}

void owner_fails(struct node *node, bool says_so)
{
    if (says_so)
        report(node, MU_PART_END_FAILED);
    regroup(node);
}

void owner_is_done(struct node *node)
{
    report(node, MU_PART_END_DONE);
}

void owner_leaves(struct node *node, uint64_t in_us)
{
    ask_later(node, MU_FOLD_ON_LEAVE, in_us);
}

void owner_asks(struct node *node, enum mu_fold_event_type what)
{
    ask_later(node, what, 0);
}

void owner_finish(void)
{
}
