/* A node of ours: the program's own machine, its requests and its timer, and above it an owner that plays the agent:
 * joins, runs, joins again when told to, sometimes leaves, closes or fails. */
#include "rdzv_sim.h"

#define BROKEN_US (3 * SECOND) /* workers that lost a peer of PyTorch's without being told fail after so long */

static void step(struct node *node, struct mu_rdzv_event event);

uint64_t node_ms(const struct node *node)
{
    return (w.now_us + node->mono_offset_us) / MS;
}

int64_t node_wall_us(const struct node *node)
{
    return INT64_C(1700000000000000) + (int64_t)w.now_us + node->wall_offset_us;
}

/* ---- The owner ---- */

static void plan(struct node *node, enum deed deed, uint64_t after_us)
{
    node->deed = deed;
    node->deed_us = w.now_us + after_us;
    push(node->deed_us, EV_OWNER, node->slot, node->life, NULL);
}

static uint64_t soon(void)
{
    return chance(60) || w.calm ? below(20 * MS) : below(chance(80) ? 500 * MS : 4 * SECOND);
}

static void plan_membership(struct node *node)
{
    uint64_t after = 100 * MS + below(chance(50) ? 5 * SECOND : 30 * SECOND);

    if (w.calm || w.crowd)
        return;
    if (w.on[F_LEAVE] && chance(w.percent[F_LEAVE]))
        plan(node, chance(85) ? DEED_LEAVE : DEED_STOP, after);
    else if (w.on[F_CLOSE] && chance(w.percent[F_CLOSE]))
        plan(node, DEED_CLOSE, after);
    else if (w.on[F_FLAP] && chance(w.percent[F_FLAP]))
        plan(node, DEED_JOIN, after); /* its workers failed */
    else if (chance(10))
        plan(node, DEED_LOOK, after);
}

static void on_trouble(struct node *node)
{
    if (!w.calm && w.on[F_LEAVE] && chance(10))
        plan(node, DEED_LEAVE, soon());
    else
        plan(node, DEED_JOIN, soon());
}

static void on_failed(struct node *node, const struct mu_rdzv_effect *effect)
{
    int code = mu_rdzv_error(node->rdzv)->code;

    if (effect->news.asked == MU_PART_ON_CLOSE) {
        node->closing = false;
        if (node->deed == DEED_NONE && node->asked == ASKED_NOTHING)
            plan(node, DEED_JOIN, soon());
        return;
    }
    node->asked = ASKED_NOTHING;
    if (effect->news.asked == MU_PART_ON_LEAVE) {
        node->ended = true; /* dies with its entry left behind */
        return;
    }
    if (code == MUSTER_ERDZV_CLOSED || code == MUSTER_ERDZV_GRACEFUL_EXIT) {
        node->ended = true;
        return;
    }
    if (!w.calm && chance(25))
        node->ended = true;
    else
        plan(node, DEED_JOIN, soon());
}

static void on_left(struct node *node)
{
    node->asked = ASKED_NOTHING;
    if (w.on[F_FLAP] && !w.calm)
        plan(node, DEED_JOIN, below(chance(70) ? SECOND : 20 * SECOND));
    else
        node->ended = true;
}

static void hear(struct node *node, const struct mu_rdzv_effect *effect)
{
    check_tell(node, effect);
    if (w.hear != NULL) {
        w.hear(node, effect);
        return;
    }
    if (effect->type != MU_RDZV_DO_TELL)
        return;
    switch (effect->news.tell) {
    case MU_PART_TELL_JOINED:
        w.joins++;
        node->asked = ASKED_NOTHING;
        node->deed = DEED_NONE;
        plan_membership(node);
        break;
    case MU_PART_TELL_WAITING:
    case MU_PART_TELL_LOST:
    case MU_PART_TELL_REMOVED:
        if (node->asked == ASKED_NOTHING && node->deed != DEED_JOIN && node->deed != DEED_LEAVE)
            on_trouble(node);
        break;
    case MU_PART_TELL_CLOSED:
        node->closing = false;
        break;
    case MU_PART_TELL_LEFT:
        on_left(node);
        break;
    case MU_PART_TELL_FAILED:
        on_failed(node, effect);
        break;
    case MU_PART_TELL_LOOKED:
        node->looking = false;
        break;
    case MU_PART_TELL_BACKEND_DOWN:
    case MU_PART_TELL_BACKEND_UP:
    case MU_PART_TELL_PROGRESS:
    case MU_PART_TELL_REPORTED:
    case MU_PART_TELL_FOREIGN:
    case MU_PART_TELLS_COUNT:
        break;
    }
}

void node_ask(struct node *node, enum mu_rdzv_event_type type)
{
    TELL("%s: asked to %s", node->name, mu_rdzv_event_text(type));
    step(node, (struct mu_rdzv_event){ .type = type });
}

static void do_join(struct node *node)
{
    if (node->asked != ASKED_NOTHING)
        return;
    node->asked = ASKED_JOIN;
    node->asked_us = w.now_us;
    if (node->member)
        node->held_down = w.now_us - node->joined_us < 30 * SECOND - MS;
    node->member = false;
    if (w.on[F_LEAVE] && !w.calm && chance(15))
        plan(node, chance(80) ? DEED_LEAVE : DEED_STOP, below(chance(50) ? SECOND : 10 * SECOND));
    node_ask(node, MU_RDZV_JOIN);
}

void node_owner(struct node *node)
{
    enum deed deed = node->deed;

    if (deed == DEED_NONE || node->deed_us > w.now_us)
        return;
    node->deed = DEED_NONE;
    switch (deed) {
    case DEED_NONE:
        break;
    case DEED_JOIN:
        do_join(node);
        break;
    case DEED_LEAVE:
        if (node->asked == ASKED_LEAVE)
            break;
        node->asked = ASKED_LEAVE;
        node->asked_us = w.now_us;
        node->member = false;
        node_ask(node, MU_RDZV_LEAVE);
        break;
    case DEED_STOP:
        if (node->asked == ASKED_LEAVE)
            break;
        node->asked = ASKED_LEAVE;
        node->asked_us = w.now_us;
        node->member = node->closing = node->looking = false;
        node_ask(node, MU_RDZV_STOP);
        break;
    case DEED_CLOSE:
        node->closing = true;
        node->closing_us = w.now_us;
        node_ask(node, MU_RDZV_CLOSE);
        break;
    case DEED_LOOK:
        node->looking = true;
        node->looking_us = w.now_us;
        node_ask(node, MU_RDZV_LOOK);
        break;
    }
    if (node->alive && !node->ended && node->asked == ASKED_NOTHING && node->deed == DEED_NONE && !node->member)
        plan(node, DEED_JOIN, soon());
}

void node_calm(struct node *node)
{
    node->deed = DEED_NONE;
    if (node->asked == ASKED_NOTHING && (!node->member || node->told_lost || node->told_waiting || node->told_removed))
        plan(node, DEED_JOIN, below(20 * MS));
}

/* Nobody rings for PyTorch's members, and theirs may be another idea of the round: workers notice. */
void node_workers(struct node *node)
{
    const struct mu_rdzv_world *world = mu_rdzv_world(node->rdzv);
    bool broken = false;

    if (world == NULL || world->all_ours || node->asked != ASKED_NOTHING || node->deed == DEED_JOIN)
        return;
    for (size_t i = 0; i < world->count; i++) {
        unsigned id = id_of(&world->members[i]);
        bool there = false;

        for (unsigned j = 0; j < w.nodes_count && !there; j++) {
            const struct node *peer = &w.nodes[j];

            if (peer->alive && peer->id == id)
                there = peer->stock ? stock_in(peer, world->round) : peer->member && peer->joined_round == world->round;
        }
        broken |= !there;
    }
    if (!broken)
        node->broken_us = 0;
    else if (node->broken_us == 0)
        node->broken_us = w.now_us;
    else if (w.now_us - node->broken_us > BROKEN_US)
        plan(node, DEED_JOIN, 0);
}

/* ---- The machine ---- */

static void send(struct node *node, const struct mu_rdzv_effect *effect, unsigned conn)
{
    struct request *request = request_new(node, effect->type, conn);

    request->id = effect->id;
    request->has_token = effect->has_token;
    request->wait_us = effect->wait_ms * MS;
    if (mu_buf_assign(&request->bytes, effect->bytes) < 0 || mu_buf_assign(&request->token, effect->token) < 0)
        abort();
    switch (effect->type) {
    case MU_RDZV_DO_PARK:
        request->number = effect->bell;
        break;
    case MU_RDZV_DO_SETTLE:
        request->number = effect->round;
        break;
    default:
        request->number = effect->turn;
        break;
    }
    request_send(request);
}

static void perform(struct node *node, const struct mu_rdzv_effect *effect)
{
    if (effect->type < MU_RDZV_DO_TELL)
        TELL("%s: %s %" PRIu64, node->name, mu_rdzv_effect_text(effect->type), effect->id);
    switch (effect->type) {
    case MU_RDZV_DO_WRITE:
        check_sent_write(node, effect);
        /* fall through */
    case MU_RDZV_DO_READ:
    case MU_RDZV_DO_SETTLE:
        node->main_id = effect->id;
        send(node, effect, 0);
        break;
    case MU_RDZV_DO_RING:
        send(node, effect, 0);
        break;
    case MU_RDZV_DO_PARK:
        send(node, effect, 1);
        break;
    case MU_RDZV_DO_TURN_TAKE:
        send(node, effect, 0);
        break;
    case MU_RDZV_DO_TURN_WAIT:
        send(node, effect, 2);
        break;
    case MU_RDZV_DO_TURN_GIVE:
        send(node, effect, 0);
        break;
    case MU_RDZV_DO_TELL:
    case MU_RDZV_DO_PLANNED:
    case MU_RDZV_DO_SYNCED:
        hear(node, effect);
        break;
    }
}

static void arm(struct node *node)
{
    uint64_t ms = mu_rdzv_deadline_ms(node->rdzv), at;

    if (ms == UINT64_MAX) {
        node->timer_us = 0;
        node->timer_generation++;
        return;
    }
    at = ms * MS <= w.now_us + node->mono_offset_us ? w.now_us : ms * MS - node->mono_offset_us;
    if (w.on[F_LAZY] && at > w.now_us)
        at += below(20 * MS);
    if (at == node->timer_us && at > w.now_us)
        return;
    node->timer_us = at;
    node->timer_generation++;
    push(at, EV_TIMER, node->slot, node->timer_generation, NULL);
}

static void step(struct node *node, struct mu_rdzv_event event)
{
    static struct mu_rdzv_effects effects;
    uint64_t life = node->life;
    bool killed = node->steps_left == 0;
    unsigned count;

    if (node->steps_left >= 0)
        node->steps_left--;
    event.now_ms = node_ms(node);
    event.wall_us = node_wall_us(node);
    w.steps++;
    mu_rdzv_step(node->rdzv, &event, &effects);
    count = killed ? (unsigned)below(effects.count + 1) : effects.count;
    for (unsigned i = 0; i < count && node->life == life; i++)
        perform(node, &effects.items[i]);
    if (killed)
        node_die(node);
    else if (node->ended && node->alive)
        node_die(node);
    else
        arm(node);
}

void node_timer(struct node *node)
{
    node->timer_us = 0;
    step(node, (struct mu_rdzv_event){ .type = MU_RDZV_TIME });
}

static enum mu_rdzv_event_type answer_type(enum mu_rdzv_effect_type type)
{
    switch (type) {
    case MU_RDZV_DO_READ:
        return MU_RDZV_STATE;
    case MU_RDZV_DO_WRITE:
        return MU_RDZV_WRITTEN;
    case MU_RDZV_DO_PARK:
        return MU_RDZV_RUNG;
    case MU_RDZV_DO_TURN_TAKE:
        return MU_RDZV_TURN;
    case MU_RDZV_DO_TURN_WAIT:
        return MU_RDZV_TURN_CAME;
    case MU_RDZV_DO_SETTLE:
        return MU_RDZV_SETTLED;
    case MU_RDZV_DO_RING:
    case MU_RDZV_DO_TURN_GIVE:
    case MU_RDZV_DO_TELL:
    case MU_RDZV_DO_PLANNED:
    case MU_RDZV_DO_SYNCED:
        break;
    }
    abort();
}

void node_answer(struct node *node, struct request *request)
{
    struct muster_error error = { 0 };
    struct mu_rdzv_event event = { .type = answer_type(request->type), .id = request->id };

    if (request->failed) {
        (void)mu_fail(&error, MUSTER_ERDZV_CONNECTION, "simulated");
        event.type = MU_RDZV_REQUEST_FAILED;
        event.error = &error;
        event.gone = node->refused = request->gone;
        node->impaired_us = w.now_us;
    } else {
        event.found = request->found;
        event.written = request->written;
        event.bell = request->bell;
        event.turn = request->turn;
        event.turns_done = request->turns_done;
        if (request->version != NULL)
            event.bytes = event.token = mu_buf_slice(&request->version->bytes);
        if (request->type == MU_RDZV_DO_SETTLE)
            event.bytes = mu_buf_slice(&request->bytes);
    }
    TELL("%s: %s %" PRIu64 "%s", node->name, mu_rdzv_event_text(event.type), event.id,
         request->failed                     ? request->gone ? ", gone" : ""
         : request->type == MU_RDZV_DO_WRITE ? event.written ? ", done"
                                               : event.found ? ", lost"
                                                             : ", no document"
         : request->type == MU_RDZV_DO_READ  ? event.found ? "" : ", no document"
                                             : "");
    check_seen(node, request);
    step(node, event);
    request_free(request);
}

/* The member in whose process the store is. */
void node_host(struct node *node)
{
    const struct node *host = w.host_slot >= 0 && w.nodes[w.host_slot].life != 0 ? &w.nodes[w.host_slot] : NULL;

    step(node, (struct mu_rdzv_event){ .type = MU_RDZV_HOST, .node = host != NULL ? &host->me : NULL });
}

/* ---- Birth and death ---- */

void node_birth(struct node *node)
{
    struct muster_error error;
    struct mu_rdzv_config config = {
        .settings = node->settings,
        .me = node->me,
        .dialect = w.dialect,
        .shares_store = w.on[F_MIDDLE] && w.seed % 2 == 0,
        .has_bell = !w.on[F_PLAIN],
        .has_turns = !w.on[F_PLAIN],
        .has_settle = true,
        .hash_seed = { w.seed, node->life },
        .seed = w.seed ^ node->life << 32,
    };

    if (mu_rdzv_new(&config, &node->rdzv, &error) < 0)
        abort();
    node_host(node);
    if (w.hear == NULL)
        plan(node, DEED_JOIN, below(20 * MS));
}

void node_die(struct node *node)
{
    if (!node->alive)
        return;
    TELL("%s: is no more", node->name);
    node->alive = node->member = false;
    node->life = ++w.lives;
    version_drop(node->seen);
    node->seen = NULL;
    if (node->stock) {
        stock_die(node);
    } else {
        mu_rdzv_free(node->rdzv);
        node->rdzv = NULL;
    }
    if ((int)node->slot == w.host_slot)
        store_down(true, true);
}
