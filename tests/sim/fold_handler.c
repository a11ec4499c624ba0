/* Between the fold machine and an agent: the program's own conversation and boot machines, wired as
 * handler/etcd_v3_uv.c and handler/shell_uv.c wire them. Rank 0 listens, connects to itself and publishes job/master;
 * the others wait for it. No port is given out twice: so a port says who opened it, and for which world. */
#include "fold_job.h"

#include <string.h>

enum { BOOT_CALM_MS = 5 * MU_BOOT_TIMEOUT_MS / 4 };

static unsigned next_port;

static void converse(struct node *node, struct mu_talk_event event);
static void boot_answer(struct node *node, struct mu_boot_event event);

static uint64_t now_ms(void)
{
    return s->now_us / MS;
}

static struct handler *handler_of(struct node *node)
{
    return &node->agent->handler;
}

/* ---- Telling ---- */

enum { NAMED_MAX = 64 };

static size_t name_members(const struct node *node, bool only_lost, struct muster_node named[static NAMED_MAX])
{
    struct mu_node nodes[NAMED_MAX];
    size_t count = mu_fold_name(node->fold, only_lost, nodes, NAMED_MAX);

    for (size_t i = 0; i < count; i++)
        named[i] = (struct muster_node){ nodes[i].name.data, nodes[i].pid, nodes[i].local_id };
    return count;
}

static void tell_owner(struct node *node, const struct mu_talk_effect *effect, const struct mu_part_news *news)
{
    const struct muster_store_info bootstrap = { .master_port = 0 };
    struct mu_talk_facts facts = { .part_ops = &mu_fold_part,
                                   .part = node->fold,
                                   .news = news,
                                   .loss_cause = "lost",
                                   .bootstrap = &bootstrap,
                                   .now_ms = now_ms() };
    struct muster_rdzv_event event = mu_talk_event(&handler_of(node)->talk, effect, &facts);
    enum mu_talk_nodes which = mu_talk_nodes(effect->tell);
    struct muster_node nodes[NAMED_MAX];

    SIM_EXPECT(effect->tell != MU_PART_TELL_JOINED || (event.info->round == effect->round && event.info->rank >= 0),
               "node %u is told of a world that it is not in", node->index);
    if (which == MU_TALK_NODES_MEMBERS || which == MU_TALK_NODES_LOST) {
        event.nodes = nodes;
        event.nodes_count = name_members(node, which == MU_TALK_NODES_LOST, nodes);
    }
    agent_hear(node, &event);
}

/* ---- Where the round meets ---- */

static void on_listening(struct node *node, uint64_t number)
{
    boot_answer(node, (struct mu_boot_event){
                          .type = MU_BOOT_ON_LISTENING, .id = number >> 16, .port = (uint16_t)(number & 0xffff) });
}

static void on_checked(struct node *node, uint64_t id)
{
    boot_answer(node, (struct mu_boot_event){ .type = MU_BOOT_ON_CHECKED, .id = id });
}

static unsigned new_port(void)
{
    SIM_EXPECT(next_port < 65535, "too many ports");
    return next_port++;
}

static void listen_for(struct node *node, const struct mu_boot_effect *effect)
{
    struct handler *h = handler_of(node);
    unsigned port = effect->type == MU_BOOT_DO_RENEW_STORE ? h->store_port : new_port();

    SIM_EXPECT(port != 0, "node %u renews no store", node->index);
    if (effect->type == MU_BOOT_DO_OPEN_STORE)
        h->store_port = h->agents_port = port;
    else if (effect->type == MU_BOOT_DO_OPEN_AGENTS)
        h->agents_port = new_port();
    later(node, below(2 * MS), on_listening, effect->id << 16 | port);
}

static void publish(struct node *node, uint64_t id, const struct mu_fold_master *master)
{
    struct mu_buf value = { 0 };
    struct mu_fold_effect effect;

    if (mu_fold_master_write(master, &value) < 0)
        abort();
    effect = mu_meeting_write(&handler_of(node)->meeting, node->fold, id, mu_buf_slice(&value));
    s->place->effect(node, &effect);
    mu_buf_done(&value);
}

static void boot_request(struct node *node, const struct mu_boot_effect *effect)
{
    struct handler *h = handler_of(node);
    struct mu_boot_event answer;
    struct mu_fold_master master;
    enum mu_meeting_reply reply =
        mu_meeting_ask(&h->meeting, node->fold, effect, (uint16_t)h->agents_port, now_ms(), &answer, &master);

    if (reply == MU_MEETING_ANSWER)
        boot_answer(node, answer);
    else if (reply == MU_MEETING_PUBLISH)
        publish(node, effect->id, &master);
}

static void on_boot_failed(struct node *node, const struct muster_error *failed)
{
    struct muster_error error = *failed;

    sim_trace("node %u: the boot fails: %s", node->index, error.text);
    SIM_EXPECT(s->calm_us == 0 || handler_of(node)->boot_began_us < s->calm_us + BOOT_CALM_MS * MS,
               "node %u cannot finish a boot that began in calm: %s", node->index, error.text);
    error.code = mu_boot_told_code(error.code);
    converse(node, (struct mu_talk_event){ .type = MU_TALK_ON_BOOT_FAILED, .error = &error });
}

static void perform_boot(struct node *node, const struct mu_boot_effect *effect)
{
    struct handler *h = handler_of(node);

    switch (effect->type) {
    case MU_BOOT_DO_OPEN_STORE:
    case MU_BOOT_DO_RENEW_STORE:
    case MU_BOOT_DO_OPEN_AGENTS:
    case MU_BOOT_DO_FREE_PORT:
        listen_for(node, effect);
        break;
    case MU_BOOT_DO_CLOSE_STORE:
        h->store_port = h->agents_port = 0;
        break;
    case MU_BOOT_DO_CLOSE_AGENTS:
        h->agents_port = 0;
        break;
    case MU_BOOT_DO_CHECK_SELF:
        later(node, below(5 * MS), on_checked, effect->id);
        break;
    case MU_BOOT_DO_REACH: /* nobody names an address and a port here */
        abort();
    case MU_BOOT_DO_GET:
    case MU_BOOT_DO_CHECK:
    case MU_BOOT_DO_SET:
        boot_request(node, effect);
        break;
    case MU_BOOT_DO_DONE:
        check_meeting(node, effect->port);
        converse(node, (struct mu_talk_event){ .type = MU_TALK_ON_BOOTED });
        break;
    case MU_BOOT_DO_FAIL:
        on_boot_failed(node, effect->error);
        break;
    case MU_BOOT_DO_SAY:
        break;
    }
}

static void on_time(struct node *node, uint64_t when_us);

static void arm(struct node *node)
{
    struct handler *h = handler_of(node);
    uint64_t when_ms = mu_boot_deadline_ms(&h->boot), get_ms = mu_meeting_deadline_ms(&h->meeting);
    uint64_t when_us;

    when_ms = get_ms < when_ms ? get_ms : when_ms;
    when_us = when_ms == UINT64_MAX ? UINT64_MAX : when_ms * MS;
    if (when_us != UINT64_MAX && when_us < s->now_us)
        when_us = s->now_us;
    if (when_us == h->timer_us)
        return;
    h->timer_us = when_us;
    if (when_us != UINT64_MAX)
        later(node, when_us - s->now_us, on_time, when_us);
}

static void boot_answer(struct node *node, struct mu_boot_event event)
{
    struct handler *h = handler_of(node);
    struct mu_boot_effects effects;

    if (!mu_boot_inbox_hear(&h->inbox, &event))
        return;
    do {
        event.now_ms = now_ms();
        mu_boot_step(&h->boot, &event, &effects);
        for (unsigned i = 0; i < effects.count; i++)
            perform_boot(node, &effects.items[i]);
    } while (mu_boot_inbox_next(&h->inbox, &event));
    arm(node);
}

static void answer_get(struct node *node)
{
    struct handler *h = handler_of(node);
    struct mu_boot_event answer;

    if (mu_meeting_answer(&h->meeting, node->fold, now_ms(), &answer))
        boot_answer(node, answer);
    arm(node);
}

static void on_time(struct node *node, uint64_t when_us)
{
    struct handler *h = handler_of(node);

    if (when_us != h->timer_us)
        return;
    h->timer_us = UINT64_MAX;
    answer_get(node);
    if (mu_boot_deadline_ms(&h->boot) <= now_ms())
        boot_answer(node, (struct mu_boot_event){ .type = MU_BOOT_ON_TIME });
    arm(node);
}

static void start_boot(struct node *node)
{
    char rank0[MU_NODE_TEXT_MAX];
    struct mu_boot_start start = mu_meeting_boot_start(node->fold, rank0);

    start.own_addr = handler_of(node)->own_addr;
    handler_of(node)->boot_began_us = s->now_us;
    boot_answer(node, (struct mu_boot_event){ .type = MU_BOOT_ON_START, .start = &start });
}

/* ---- The conversation ---- */

/* The machine leaves its world with either. */
static void ask_machine(struct node *node, const struct mu_talk_effect *effect)
{
    if (effect->asked == MU_PART_ON_JOIN || effect->asked == MU_PART_ON_LEAVE)
        node->world = 0;
    if (effect->report != NULL)
        node_report(node, effect->report);
    else
        feed(node, (struct mu_fold_event){ .type = (enum mu_fold_event_type)effect->asked });
}

static void perform(struct node *node, const struct mu_talk_effect *effect, const struct mu_part_news *news)
{
    switch (effect->type) {
    case MU_TALK_DO_ASK:
        ask_machine(node, effect);
        break;
    case MU_TALK_DO_START_BOOT:
        start_boot(node);
        break;
    case MU_TALK_DO_STOP_BOOT:
        boot_answer(node, (struct mu_boot_event){ .type = MU_BOOT_ON_STOP });
        break;
    case MU_TALK_DO_FIND: /* the machine waits for its back end itself */
        abort();
    case MU_TALK_DO_TELL:
        tell_owner(node, effect, news);
        break;
    }
}

static void on_turn(struct node *node, uint64_t number)
{
    (void)number;
    handler_of(node)->takes_turn = false;
    converse(node, (struct mu_talk_event){ .type = MU_TALK_ON_TURN });
}

static void converse(struct node *node, struct mu_talk_event event)
{
    struct handler *h = handler_of(node);
    struct mu_talk_effects effects;

    if (node->agent->ended)
        return;
    event.now_ms = now_ms();
    mu_talk_step(&h->talk, &event, &effects);
    for (unsigned i = 0; i < effects.count && !node->agent->ended; i++)
        perform(node, &effects.items[i], event.news);
    if (mu_talk_is_due(&h->talk) && !h->takes_turn) {
        h->takes_turn = true;
        later(node, 0, on_turn, 0);
    }
}

void handler_ask(struct node *node, enum mu_part_event_type asked, const struct mu_part_report *report)
{
    converse(node, (struct mu_talk_event){ .type = MU_TALK_ON_ASKED, .asked = asked, .report = report });
}

void handler_told(struct node *node, const struct mu_part_news *news)
{
    converse(node, (struct mu_talk_event){ .type = MU_TALK_ON_TOLD, .news = news });
}

bool handler_takes(struct node *node, const struct mu_fold_event *event)
{
    struct mu_boot_event answer;

    if (mu_meeting_published(&handler_of(node)->meeting, event, &answer)) {
        boot_answer(node, answer);
        return true;
    }
    mu_meeting_see(&handler_of(node)->meeting, event);
    return false;
}

void handler_heard(struct node *node)
{
    if (!node->agent->ended)
        answer_get(node);
}

void handler_new(struct node *node)
{
    struct handler *h = handler_of(node);
    struct mu_boot_config config = { .run_id = "job",
                                     .hostname = h->own_addr,
                                     .use_agent_store = node->id >> 24 & 1,
                                     .agents_store = true,
                                     .nodes_max = node->settings.nodes_max };

    if (s->nodes_count <= 1)
        next_port = 1024;
    (void)snprintf(h->own_addr, sizeof h->own_addr, "10.0.%u.%u", node->index >> 8, node->index & 0xff);
    mu_talk_init(&h->talk, node->settings.join_ms, false);
    h->timer_us = UINT64_MAX;
    if (mu_boot_init(&h->boot, &config, NULL) < 0)
        abort();
}

void handler_free(struct node *node)
{
    mu_boot_done(&handler_of(node)->boot);
}
