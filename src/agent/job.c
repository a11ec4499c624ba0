/* An agent's part in its job: from one machine to another. See job.h. */
#include "agent/job.h"

#include "base/buf.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* An event for the policy that owns what it points to. */
struct queued {
    struct mu_policy_event event;
    struct mu_ranks_result ranks;
    struct muster_error error;
    char text[MU_POLICY_TEXT_MAX];
};

struct refused {
    enum mu_job_who who;
    uint64_t id;
    struct muster_error error;
};

struct members {           /* by rank */
    struct mu_node *nodes; /* names are ours */
    size_t count;
};

enum { STAGES_MAX = 3 }; /* machines that one event may go to */

struct mu_job {
    struct mu_policy *policy;
    struct mu_ranks *ranks;
    struct mu_completion *completion;
    struct mu_key_gc *key_gc;
    struct mu_led led;
    void (*on_step)(void *ctx, const struct mu_policy_event *event, enum mu_policy_phase before,
                    const struct mu_policy_effects *effects);
    void *ctx;
    bool busy, ended;

    /* The event that is being heard, and to whom it still goes. */
    struct mu_job_event event;
    enum mu_job_who stages[STAGES_MAX];
    unsigned stages_count, stage;

    /* Effects that are still to be carried out: those of ranks or completion before the rest of the policy's. Led's
     * are among completion's. */
    struct mu_policy_effects policy_effects;
    struct mu_ranks_effects ranks_effects;
    struct mu_completion_effects completion_effects;
    struct mu_key_gc_effects gc_effects;
    unsigned policy_next, ranks_next, completion_next, gc_next;

    /* What waits to be told. */
    struct queued queue[MU_JOB_QUEUE_MAX + 1]; /* the last is the one that is being told */
    size_t queue_count;
    struct refused refused[MU_JOB_REFUSED_MAX + 1];
    size_t refused_count;

    /* The round. */
    int64_t round;
    uint64_t tag;
    struct members members;
    bool is_led;
    struct mu_ranks_result seat; /* is_led: ours */
    struct mu_ranks_result assigned;
    struct members last_members; /* of the last round whose ranks were assigned */
    struct mu_settlement last;   /* ... and what became of them */
};

/* ---- Making one ---- */

int mu_job_new(const struct mu_job_config *config, struct mu_job **ret_job, struct muster_error *reterr)
{
    struct mu_job *j = calloc(1, sizeof *j);
    int rc = j == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent") : 0;

    if (rc == 0)
        rc = mu_policy_new(&config->policy, &j->policy, reterr);
    if (rc == 0)
        rc = mu_ranks_new(&config->ranks, &j->ranks, reterr);
    if (rc == 0)
        rc = mu_completion_new(&config->completion, &j->completion, reterr);
    if (rc == 0)
        rc = mu_key_gc_new(config->policy.run_id, &j->key_gc, reterr);
    if (rc < 0) {
        mu_job_free(j);
        return rc;
    }
    mu_led_init(&j->led, config->completion.barrier_ms);
    j->on_step = config->on_step;
    j->ctx = config->ctx;
    j->round = -1;
    *ret_job = j;
    return 0;
}

static void forget_members(struct members *members)
{
    for (size_t i = 0; i < members->count; i++)
        free((char *)members->nodes[i].name.data);
    free(members->nodes);
    *members = (struct members){ .count = 0 };
}

void mu_job_free(struct mu_job *j)
{
    if (j == NULL)
        return;
    mu_policy_free(j->policy);
    mu_ranks_free(j->ranks);
    mu_completion_free(j->completion);
    mu_key_gc_free(j->key_gc);
    forget_members(&j->members);
    forget_members(&j->last_members);
    mu_vanished_done(&j->last.missing);
    free(j);
}

/* ---- What waits ---- */

void mu_job_tell(struct mu_job *j, const struct mu_policy_event *event)
{
    struct queued *queued = &j->queue[j->queue_count];

    assert(j->busy && event->joined == NULL);
    if (j->ended)
        return;
    assert(j->queue_count < MU_JOB_QUEUE_MAX);
    j->queue_count++;
    queued->event = *event;
    if (event->ranks != NULL)
        queued->ranks = *event->ranks;
    if (event->error != NULL)
        queued->error = *event->error;
    if (event->text != NULL)
        (void)snprintf(queued->text, sizeof queued->text, "%s", event->text);
}

void mu_job_refuse(struct mu_job *j, enum mu_job_who who, uint64_t id, const struct muster_error *error)
{
    assert(j->busy);
    if (j->ended)
        return;
    assert(j->refused_count < MU_JOB_REFUSED_MAX);
    j->refused[j->refused_count++] = (struct refused){ who, id, *error };
}

/* ---- The machines ---- */

static void step_policy(struct mu_job *j, struct mu_policy_event event, uint64_t now_ms)
{
    enum mu_policy_phase before = mu_policy_phase(j->policy);

    event.now_ms = now_ms;
    mu_policy_step(j->policy, &event, &j->policy_effects);
    j->policy_next = 0;
    if (j->on_step != NULL)
        j->on_step(j->ctx, &event, before, &j->policy_effects);
}

static void step_ranks(struct mu_job *j, struct mu_ranks_event event, uint64_t now_ms)
{
    event.now_ms = now_ms;
    mu_ranks_step(j->ranks, &event, &j->ranks_effects);
    j->ranks_next = 0;
}

static void step_completion(struct mu_job *j, struct mu_completion_event event, uint64_t now_ms)
{
    event.now_ms = now_ms;
    mu_completion_step(j->completion, &event, &j->completion_effects);
    j->completion_next = 0;
}

/* What a round's members have to do with each other: completion's business, or led's. */
static void step_watcher(struct mu_job *j, struct mu_completion_event event, uint64_t now_ms)
{
    if (!j->is_led) {
        step_completion(j, event, now_ms);
        return;
    }
    event.now_ms = now_ms;
    mu_led_step(&j->led, &event, &j->completion_effects);
    j->completion_next = 0;
}

static void step_key_gc(struct mu_job *j, struct mu_key_gc_event event, uint64_t now_ms)
{
    event.now_ms = now_ms;
    mu_key_gc_step(j->key_gc, &event, &j->gc_effects);
    j->gc_next = 0;
}

/* ---- The round ---- */

static int keep_members(struct members *to, const struct mu_node *members, size_t count)
{
    forget_members(to);
    to->nodes = calloc(count + 1, sizeof *to->nodes);
    if (to->nodes == NULL || (members == NULL && count > 0))
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < count; i++) {
        char *name = mu_slice_copy(members[i].name);

        if (name == NULL)
            return MUSTER_ENOMEM;
        to->nodes[i] = members[i];
        to->nodes[i].name.data = name;
        to->count++;
    }
    return 0;
}

static int64_t rank_of(const struct members *members, const struct mu_node *node)
{
    for (size_t i = 0; i < members->count; i++) {
        if (mu_node_equal(&members->nodes[i], node))
            return (int64_t)i;
    }
    return -1;
}

/* The host; with the pid, where a member is on the same one. */
static void name_node(const struct members *members, const struct mu_node *node, char *text, size_t room)
{
    bool confused = false;

    for (size_t i = 0; i < members->count; i++)
        confused |= mu_slice_equal(members->nodes[i].name, node->name) && !mu_node_equal(&members->nodes[i], node);
    if (confused && node->pid >= 0)
        (void)snprintf(text, room, "%.*s (pid %" PRId64 ")", (int)node->name.len, node->name.data, node->pid);
    else
        (void)snprintf(text, room, "%.*s", (int)node->name.len, node->name.data);
}

/* Members of the last round that are not in this one. */
static void find_missing(struct mu_job *j)
{
    char name[MU_VANISHED_NAME_MAX];

    mu_vanished_done(&j->last.missing);
    for (size_t i = 0; i < j->last_members.count; i++) {
        const struct mu_node *node = &j->last_members.nodes[i];

        if (rank_of(&j->members, node) >= 0)
            continue;
        name_node(&j->last_members, node, name, sizeof name);
        mu_vanished_add(&j->last.missing, (int64_t)i, name, mu_node_is_ours(node), false);
    }
}

/* Ranks are assigned: it is this round whose failure would be charged next. Without memory nobody will be missed. */
static void begin_round(struct mu_job *j, const struct mu_ranks_result *assigned)
{
    j->assigned = *assigned;
    mu_settlement_begin(&j->last, j->round, j->tag);
    j->last.known = assigned->shared;
    if (!assigned->shared || keep_members(&j->last_members, j->members.nodes, j->members.count) < 0)
        forget_members(&j->last_members);
}

/* The round's keys are made of its members: who does not know them all has no part in it. */
static void hear_joined(struct mu_job *j, const struct mu_job_event *event, uint64_t now_ms)
{
    bool known = keep_members(&j->members, event->nodes, event->nodes_count) == 0;
    struct mu_round joined = *event->joined;
    struct muster_error error = { 0 };

    joined.tag = known ? mu_round_tag(event->nodes, event->nodes_count) : 0;
    j->round = joined.round;
    j->tag = joined.tag;
    find_missing(j);
    joined.last = j->last;
    j->is_led = joined.led = event->seat != NULL;
    if (j->is_led) {
        joined.max_restarts = event->seat->max_restarts;
        joined.restarts_left = event->seat->restarts_left;
        joined.count = event->seat->count;
        j->seat = mu_led_ranks(event->seat);
    }
    if (!known) {
        (void)mu_fail(&error, MUSTER_ENOMEM, "no memory for the %zu members of round %" PRId64, event->nodes_count,
                      joined.round);
        step_policy(
            j,
            (struct mu_policy_event){
                .type = MU_POLICY_ON_FAILED, .round = -1, .request = MUSTER_RDZV_REQUEST_JOIN, .error = &error },
            now_ms);
        return;
    }
    step_policy(j, (struct mu_policy_event){ .type = MU_POLICY_ON_JOINED, .round = joined.round, .joined = &joined },
                now_ms);
}

static void hear_lost(struct mu_job *j, const struct mu_job_event *event, uint64_t now_ms)
{
    struct mu_completion_peer *lost = calloc(event->nodes_count + 1, sizeof *lost);
    struct mu_completion_peer unknown = { .rank = -1 };
    bool known = lost != NULL && event->nodes_count > 0;

    for (size_t i = 0; lost != NULL && i < event->nodes_count; i++) {
        const struct mu_node *node = &event->nodes[i];

        lost[i] = (struct mu_completion_peer){ .rank = rank_of(&j->members, node),
                                               .ours = mu_node_is_ours(node),
                                               .waits = (int64_t)(event->nodes_count - i) <= event->count };
        name_node(&j->members, node, lost[i].name, sizeof lost[i].name);
    }
    step_watcher(j,
                 (struct mu_completion_event){ .type = MU_COMPLETION_ON_LOST,
                                               .round = event->round,
                                               .lost = known ? lost : &unknown,
                                               .lost_count = known ? event->nodes_count : 1,
                                               .text = event->cause },
                 now_ms);
    free(lost);
}

/* "node8, node9 want to join". Members that wait for the next round are none of them. */
static void name_waiting(const struct mu_job *j, const struct mu_job_event *event, char *text, size_t room)
{
    size_t named = 0, used = 0;
    size_t more = event->count > (int64_t)event->nodes_count ? (size_t)event->count - event->nodes_count : 0;
    char name[MU_VANISHED_NAME_MAX];

    for (size_t i = 0; i < event->nodes_count; i++) {
        if (rank_of(&j->members, &event->nodes[i]) >= 0)
            continue;
        if (named == MU_VANISHED_NAMED_MAX) {
            more++;
            continue;
        }
        name_node(&j->members, &event->nodes[i], name, sizeof name);
        used += (size_t)snprintf(text + used, room - used, "%s%s", named++ > 0 ? ", " : "", name);
    }
    if (named == 0)
        (void)snprintf(text, room, "%" PRId64 " node%s to join", event->count, event->count == 1 ? " wants" : "s want");
    else if (more > 0)
        (void)snprintf(text + used, room - used, " and %zu more want to join", more);
    else
        (void)snprintf(text + used, room - used, " want%s to join", named == 1 ? "s" : "");
}

static void hear_waiting(struct mu_job *j, const struct mu_job_event *event, uint64_t now_ms)
{
    char text[MU_POLICY_TEXT_MAX];

    name_waiting(j, event, text, sizeof text);
    step_watcher(j,
                 (struct mu_completion_event){
                     .type = MU_COMPLETION_ON_WAITING, .round = event->round, .rank = event->count, .text = text },
                 now_ms);
}

/* ---- Hearing ---- */

/* What the rendezvous tells: to completion first, then to the policy. */
static const struct route {
    bool to_completion, to_policy;
    enum mu_completion_event_type completion;
    enum mu_policy_event_type policy;
} routes[] = {
    [MUSTER_RDZV_JOINED] = { false, true, 0, MU_POLICY_ON_JOINED },
    [MUSTER_RDZV_PEERS_LOST] = { true, false, MU_COMPLETION_ON_LOST, 0 },
    [MUSTER_RDZV_WAITING] = { true, false, MU_COMPLETION_ON_WAITING, 0 },
    [MUSTER_RDZV_REMOVED] = { true, true, MU_COMPLETION_ON_REMOVED, MU_POLICY_ON_REMOVED },
    [MUSTER_RDZV_CLOSED] = { true, true, MU_COMPLETION_ON_CLOSED, MU_POLICY_ON_CLOSED },
    [MUSTER_RDZV_LEFT] = { false, true, 0, MU_POLICY_ON_LEFT },
    [MUSTER_RDZV_FAILED] = { true, true, MU_COMPLETION_ON_CLOSE_FAILED, MU_POLICY_ON_FAILED }, /* one of them: plan() */
    [MUSTER_RDZV_BACKEND_DOWN] = { true, true, MU_COMPLETION_ON_BACKEND_DOWN, MU_POLICY_ON_BACKEND_DOWN },
    [MUSTER_RDZV_BACKEND_UP] = { true, true, MU_COMPLETION_ON_BACKEND_UP, MU_POLICY_ON_BACKEND_UP },
    [MUSTER_RDZV_LOOKED] = { 0 },
    [MUSTER_RDZV_PROGRESS] = { 0 },
    [MUSTER_RDZV_REPORTED] = { true, false, MU_COMPLETION_ON_REPORTED, 0 },
};

static void add_stage(struct mu_job *j, bool goes, enum mu_job_who who)
{
    if (goes)
        j->stages[j->stages_count++] = who;
}

/* To whom it goes, in this order. */
static void plan(struct mu_job *j, const struct mu_job_event *event)
{
    struct route route = { 0 };

    if (event->type == MU_JOB_ON_RDZV && (size_t)event->rdzv < sizeof routes / sizeof routes[0])
        route = routes[event->rdzv];
    if (event->type == MU_JOB_ON_RDZV && event->rdzv == MUSTER_RDZV_FAILED) {
        route.to_completion = event->request == MUSTER_RDZV_REQUEST_CLOSE;
        route.to_policy = !route.to_completion && event->request != MUSTER_RDZV_REQUEST_LOOK; /* an agent never looks */
    }
    j->stages_count = j->stage = 0;
    add_stage(j, event->type == MU_JOB_ON_ANSWER, event->who);
    add_stage(j, event->type == MU_JOB_ON_TIME, MU_JOB_RANKS);
    add_stage(j, event->type == MU_JOB_ON_TIME || route.to_completion, MU_JOB_COMPLETION);
    add_stage(j, event->type == MU_JOB_ON_TIME || event->type == MU_JOB_ON_TOLD || route.to_policy, MU_JOB_POLICY);
}

static void completion_hears_rdzv(struct mu_job *j, const struct mu_job_event *event, uint64_t now_ms)
{
    struct mu_completion_event told = { .type = routes[event->rdzv].completion,
                                        .round = event->rdzv == MUSTER_RDZV_REMOVED ? event->round : -1,
                                        .verdict = event->verdict,
                                        .error = event->error,
                                        .away_ms = event->away_ms };

    if (event->rdzv == MUSTER_RDZV_PEERS_LOST)
        hear_lost(j, event, now_ms);
    else if (event->rdzv == MUSTER_RDZV_WAITING)
        hear_waiting(j, event, now_ms);
    else
        step_watcher(j, told, now_ms);
}

static void policy_hears_rdzv(struct mu_job *j, const struct mu_job_event *event, uint64_t now_ms)
{
    struct mu_policy_event told = { .type = routes[event->rdzv].policy,
                                    .round = event->round,
                                    .request = event->request,
                                    .verdict = event->verdict,
                                    .error = event->error,
                                    .away_ms = event->away_ms,
                                    .give_up_in_ms = event->give_up_in_ms,
                                    .number = event->count,
                                    .text = event->cause };

    if (event->rdzv == MUSTER_RDZV_JOINED)
        hear_joined(j, event, now_ms);
    else
        step_policy(j, told, now_ms);
}

static void answer(struct mu_job *j, enum mu_job_who who, struct mu_answer given, uint64_t now_ms)
{
    switch (who) {
    case MU_JOB_POLICY:
        step_policy(j, (struct mu_policy_event){ .type = MU_POLICY_ON_ANSWER, .round = -1, .answer = given }, now_ms);
        break;
    case MU_JOB_RANKS:
        step_ranks(j, (struct mu_ranks_event){ .type = MU_RANKS_ON_ANSWER, .answer = given }, now_ms);
        break;
    case MU_JOB_COMPLETION:
        step_completion(
            j, (struct mu_completion_event){ .type = MU_COMPLETION_ON_ANSWER, .round = -1, .answer = given }, now_ms);
        break;
    case MU_JOB_KEY_GC:
        step_key_gc(j, (struct mu_key_gc_event){ .type = MU_KEY_GC_ON_ANSWER, .answer = given }, now_ms);
        break;
    }
}

static uint64_t watcher_deadline_ms(const struct mu_job *j)
{
    return j->is_led ? mu_led_deadline_ms(&j->led) : mu_completion_deadline_ms(j->completion);
}

static void pass_time(struct mu_job *j, enum mu_job_who who, uint64_t now_ms)
{
    if (who == MU_JOB_RANKS && now_ms >= mu_ranks_deadline_ms(j->ranks))
        step_ranks(j, (struct mu_ranks_event){ .type = MU_RANKS_ON_TIME }, now_ms);
    else if (who == MU_JOB_COMPLETION && now_ms >= watcher_deadline_ms(j))
        step_watcher(j, (struct mu_completion_event){ .type = MU_COMPLETION_ON_TIME, .round = -1 }, now_ms);
    else if (who == MU_JOB_POLICY && now_ms >= mu_policy_deadline_ms(j->policy))
        step_policy(j, (struct mu_policy_event){ .type = MU_POLICY_ON_TIME, .round = -1 }, now_ms);
}

static void hear_stage(struct mu_job *j, enum mu_job_who who, uint64_t now_ms)
{
    switch (j->event.type) {
    case MU_JOB_ON_RDZV:
        if (who == MU_JOB_COMPLETION)
            completion_hears_rdzv(j, &j->event, now_ms);
        else
            policy_hears_rdzv(j, &j->event, now_ms);
        break;
    case MU_JOB_ON_ANSWER:
        answer(j, who, j->event.answer, now_ms);
        break;
    case MU_JOB_ON_TOLD:
        step_policy(j, j->event.told, now_ms);
        break;
    case MU_JOB_ON_TIME:
        pass_time(j, who, now_ms);
        break;
    }
}

static void hear_queued(struct mu_job *j, uint64_t now_ms)
{
    struct queued *first = &j->queue[MU_JOB_QUEUE_MAX];

    *first = j->queue[0];
    j->queue_count--;
    memmove(j->queue, j->queue + 1, j->queue_count * sizeof j->queue[0]);
    if (first->event.ranks != NULL)
        first->event.ranks = &first->ranks;
    if (first->event.error != NULL)
        first->event.error = &first->error;
    if (first->event.text != NULL)
        first->event.text = first->text;
    step_policy(j, first->event, now_ms);
}

/* The next thing to be heard. False: there is none. */
static bool hear(struct mu_job *j, uint64_t now_ms)
{
    if (j->ended)
        return false;
    if (j->stage < j->stages_count) {
        hear_stage(j, j->stages[j->stage++], now_ms);
    } else if (j->refused_count > 0) {
        struct refused *last = &j->refused[MU_JOB_REFUSED_MAX];

        *last = j->refused[--j->refused_count];
        answer(j, last->who, (struct mu_answer){ .id = last->id, .error = &last->error }, now_ms);
    } else if (j->queue_count > 0) {
        hear_queued(j, now_ms);
    } else {
        return false;
    }
    return true;
}

void mu_job_step(struct mu_job *j, const struct mu_job_event *event)
{
    assert(!j->busy);
    if (j->ended)
        return;
    j->busy = true;
    j->event = *event;
    plan(j, event);
}

/* ---- Effects ---- */

/* What becomes of another machine's effect: the policy hears of it in turn, or it is to be carried out. */
struct passed {
    bool to_policy;
    enum mu_policy_event_type event;
    enum mu_job_effect_type effect;
};

static const struct passed of_ranks[] = {
    [MU_RANKS_DO_ASK] = { false, 0, MU_JOB_DO_ASK },
    [MU_RANKS_DO_DONE] = { true, MU_POLICY_ON_ASSIGNED, 0 },
    [MU_RANKS_DO_USED_UP] = { true, MU_POLICY_ON_ASSIGN_USED_UP, 0 },
    [MU_RANKS_DO_AGAIN] = { true, MU_POLICY_ON_ASSIGN_AGAIN, 0 },
    [MU_RANKS_DO_FAIL] = { true, MU_POLICY_ON_ASSIGN_FAILED, 0 },
    [MU_RANKS_DO_WARN] = { false, 0, MU_JOB_DO_WARN },
};

static const struct passed of_completion[] = {
    [MU_COMPLETION_DO_ASK] = { false, 0, MU_JOB_DO_ASK },
    [MU_COMPLETION_DO_CLOSE] = { false, 0, MU_JOB_DO_CLOSE },
    [MU_COMPLETION_DO_LOST] = { true, MU_POLICY_ON_LOST, 0 },
    [MU_COMPLETION_DO_WAITING] = { true, MU_POLICY_ON_WAITING, 0 },
    [MU_COMPLETION_DO_JOB_FAILED] = { true, MU_POLICY_ON_JOB_FAILED, 0 },
    [MU_COMPLETION_DO_PEER_FAILED] = { true, MU_POLICY_ON_PEER_FAILED, 0 },
    [MU_COMPLETION_DO_REPORT] = { false, 0, MU_JOB_DO_REPORT },
    [MU_COMPLETION_DO_WARN] = { false, 0, MU_JOB_DO_WARN },
    [MU_COMPLETION_DO_END] = { true, MU_POLICY_ON_FINISHED, 0 },
};

/* True: *out is to be carried out. */
static bool pass_on(struct mu_job *j, struct passed how, struct mu_policy_event told, struct mu_job_effect *out)
{
    told.type = how.event;
    told.round = j->round;
    if (how.to_policy)
        mu_job_tell(j, &told);
    out->type = how.effect;
    return !how.to_policy;
}

static bool take_ranks(struct mu_job *j, const struct mu_ranks_effect *effect, struct mu_job_effect *out)
{
    struct mu_policy_event told = { .ranks = effect->result, .text = effect->text, .error = effect->error };

    *out = (struct mu_job_effect){ .who = MU_JOB_RANKS, .ask = effect->ask, .text = effect->text };
    if (effect->type == MU_RANKS_DO_DONE)
        begin_round(j, effect->result);
    return pass_on(j, of_ranks[effect->type], told, out);
}

static bool take_completion(struct mu_job *j, const struct mu_completion_effect *effect, struct mu_job_effect *out)
{
    struct mu_policy_event told = { .number = effect->number, .text = effect->text, .end = effect->end };

    *out = (struct mu_job_effect){
        .who = MU_JOB_COMPLETION, .ask = effect->ask, .text = effect->text, .report = effect->report
    };
    return pass_on(j, of_completion[effect->type], told, out);
}

static bool take_key_gc(const struct mu_ask *ask, struct mu_job_effect *out)
{
    *out = (struct mu_job_effect){ .type = MU_JOB_DO_ASK, .who = MU_JOB_KEY_GC, .ask = *ask };
    return true;
}

static void begin_assigning(struct mu_job *j, const struct mu_round *assign, uint64_t now_ms)
{
    struct mu_key_gc_round round = {
        .round = assign->round, .tag = assign->tag, .rank = assign->rank, .world_size = assign->world_size
    };

    if (assign->led) { /* the leader has assigned them */
        begin_round(j, &j->seat);
        mu_job_tell(
            j, &(struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGNED, .round = assign->round, .ranks = &j->seat });
        return;
    }
    if (assign->all_ours && assign->has_store && assign->round >= 0)
        step_key_gc(j, (struct mu_key_gc_event){ .type = MU_KEY_GC_ON_JOINED, .round = &round }, now_ms);
    step_ranks(j, (struct mu_ranks_event){ .type = MU_RANKS_ON_START, .start = assign }, now_ms);
}

static bool take_policy(struct mu_job *j, const struct mu_policy_effect *effect, uint64_t now_ms,
                        struct mu_job_effect *out)
{
    struct mu_completion_event told = {
        .round = -1,
        .start = effect->joined,
        .rank = effect->number,
        .note = effect->note,
        .settled = effect->ok,
        .text = effect->text,
    };

    *out = (struct mu_job_effect){ .type = MU_JOB_DO_POLICY, .policy = effect };
    switch (effect->type) {
    case MU_POLICY_DO_ASSIGN:
        begin_assigning(j, effect->joined, now_ms);
        return false;
    case MU_POLICY_DO_ASSIGN_STOP:
        step_ranks(j, (struct mu_ranks_event){ .type = MU_RANKS_ON_STOP }, now_ms);
        return false;
    case MU_POLICY_DO_WATCH:
        told.type = MU_COMPLETION_ON_START;
        break;
    case MU_POLICY_DO_WATCH_STOP:
        told.type = MU_COMPLETION_ON_STOP;
        break;
    case MU_POLICY_DO_LISTEN:
        if (!j->is_led)
            step_key_gc(j, (struct mu_key_gc_event){ .type = MU_KEY_GC_ON_STARTED }, now_ms);
        told.type = MU_COMPLETION_ON_LISTEN;
        break;
    case MU_POLICY_DO_TELL_FAILED:
        told.type = MU_COMPLETION_ON_WORKER_FAILED;
        break;
    case MU_POLICY_DO_NOTE:
        told.type = MU_COMPLETION_ON_NOTE;
        break;
    case MU_POLICY_DO_FINISH:
        told.type = MU_COMPLETION_ON_DONE;
        break;
    case MU_POLICY_DO_FAIL_JOB:
        told.type = MU_COMPLETION_ON_FAIL;
        break;
    case MU_POLICY_DO_ASK:
        *out = (struct mu_job_effect){ .type = MU_JOB_DO_ASK, .who = MU_JOB_POLICY, .ask = effect->ask };
        return true;
    case MU_POLICY_DO_END:
        j->ended = true;
        j->queue_count = j->refused_count = 0;
        return true;
    case MU_POLICY_DO_JOIN:
    case MU_POLICY_DO_LEAVE:
    case MU_POLICY_DO_START_WORKERS:
    case MU_POLICY_DO_STOP_WORKERS:
    case MU_POLICY_DO_KILL_WORKERS:
    case MU_POLICY_DO_LINGER:
    case MU_POLICY_DO_STATE:
    case MU_POLICY_DO_RECORD:
    case MU_POLICY_DO_STEP:
    case MU_POLICY_DO_DECISION:
    case MU_POLICY_DO_FINAL:
    case MU_POLICY_DO_SAY:
        return true;
    }
    step_watcher(j, told, now_ms);
    return false;
}

bool mu_job_next(struct mu_job *j, uint64_t now_ms, struct mu_job_effect *ret_effect)
{
    bool found = false;

    while (j->busy && !found) {
        if (j->ranks_next < j->ranks_effects.count)
            found = take_ranks(j, &j->ranks_effects.items[j->ranks_next++], ret_effect);
        else if (j->completion_next < j->completion_effects.count)
            found = take_completion(j, &j->completion_effects.items[j->completion_next++], ret_effect);
        else if (j->gc_next < j->gc_effects.count)
            found = take_key_gc(&j->gc_effects.items[j->gc_next++], ret_effect);
        else if (j->policy_next < j->policy_effects.count)
            found = take_policy(j, &j->policy_effects.items[j->policy_next++], now_ms, ret_effect);
        else if (!hear(j, now_ms))
            j->busy = false;
    }
    return found;
}

/* ---- Looking ---- */

uint64_t mu_job_deadline_ms(const struct mu_job *j)
{
    return mu_sooner_ms(mu_policy_deadline_ms(j->policy),
                        mu_sooner_ms(mu_ranks_deadline_ms(j->ranks), watcher_deadline_ms(j)));
}

bool mu_job_will(const struct mu_job *j, char *key, size_t key_room, char text[static MU_VANISHED_NOTE_MAX])
{
    return !j->is_led && mu_completion_will(j->completion, key, key_room, text);
}

bool mu_job_is_busy(const struct mu_job *j)
{
    return j->busy;
}

const struct mu_policy *mu_job_policy(const struct mu_job *j)
{
    return j->policy;
}

const struct mu_ranks_result *mu_job_assigned(const struct mu_job *j)
{
    return &j->assigned;
}
