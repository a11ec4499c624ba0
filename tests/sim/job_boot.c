/* Between a complete round and an agent that is told of it: the program's own conversation and boot machines
 * (talk.h, boot.h), wired as the handler wires them. Rank 0 listens, connects to itself and publishes; the others
 * read. The store is found after a moment.
 *
 * An address names the node that it belongs to, and no port is given out twice: so a pair says who opened it, and
 * for which round. What must hold:
 *
 *   G1  all who are told of a round are told the same pair; it is rank 0's, opened for this very round, and while
 *       rank 0 is in the round it still listens there; the same of all who start workers, also where data were lost
 *   M   a boot ends within its limit; it fails only where something was in its way, and never if it began in calm */
#include "job_sim.h"

#include "handler/boot.h"
#include "handler/talk.h"

enum { OFFERS_MAX = 16384, PAIRS_MAX = 8192, FIRST_PORT = 1024 };

#define SETTLED_US (10 * SECOND) /* for which nothing was in the way of a boot that has to finish */

struct pair {      /* that was told */
    int64_t round; /* -1: none */
    uint64_t tag;
    unsigned port;
    char addr[MU_BOOT_ADDR_MAX];
};

struct boot {
    bool there; /* the machine; else rounds begin without a boot */
    struct mu_boot machine;
    uint64_t timer_us, timer_generation;
    char hostname[16], local_addr[16], own_addr[24];
    struct mu_talk talk;
    bool takes_turn;
    struct news *joined; /* that the agent does not know yet */
    /* The round that was booted last. */
    int64_t round;
    uint64_t tag;
    unsigned port;      /* on which it listens; 0: it does not */
    bool taken;         /* the free port was found by somebody else as well */
    uint64_t start_us;  /* when it began */
    uint64_t failed_us; /* when a request last failed */
    struct pair told;   /* of the round that the agent knows, until it wants another one */
    int64_t told_round; /* that the agent was told of last */
    bool hindered;      /* listening has failed, or connecting to itself */
};

struct offer {
    int64_t round;
    uint64_t tag;
    unsigned id, port;
    uint64_t done_us; /* when rank 0 was sure of it; 0: it was not yet */
};

static struct boot boots[AGENTS_MAX];
static struct offer offers[OFFERS_MAX];
static struct pair pairs[PAIRS_MAX];
static size_t offers_count, pairs_count;
static unsigned next_port;
static bool use_agent_store;

static void step(struct agent *a, struct mu_boot_event event);
static void talk(struct agent *a, struct mu_talk_event event, const struct news *heard);

static struct boot *boot_of(const struct agent *a)
{
    return &boots[a->node->slot];
}

static struct news *copy_news(const struct news *news)
{
    struct news *copy = calloc(1, sizeof *copy);

    if (copy == NULL)
        abort();
    if (news != NULL)
        *copy = *news;
    return copy;
}

static bool is_on(const struct boot *b)
{
    return mu_boot_deadline_ms(&b->machine) != UINT64_MAX;
}

static uint64_t later_of(uint64_t x, uint64_t y)
{
    return x > y ? x : y;
}

/* ---- What must hold ---- */

static struct offer *offer_of(int64_t round, uint64_t tag, unsigned id, unsigned port)
{
    for (size_t i = offers_count; i-- > 0;) {
        struct offer *offer = &offers[i];

        if (offer->round == round && offer->tag == tag && offer->id == id && (port == 0 || offer->port == port))
            return offer;
    }
    return NULL;
}

/* -1: nobody's. */
static int owner_of(const char *addr)
{
    unsigned high, low, id;

    if (sscanf(addr, "10.0.%u.%u", &high, &low) == 2)
        return (int)(high << 8 | low);
    return sscanf(addr, "n%u", &id) == 1 || sscanf(addr, "m%u", &id) == 1 ? (int)id : -1;
}

static bool is_same_round(const struct pair *x, const struct pair *y)
{
    return x->round == y->round && x->tag == y->tag;
}

static void check_same(const struct agent *a, const struct pair *now, const struct pair *before, const char *whose)
{
    EXPECT("G1", strcmp(before->addr, now->addr) == 0 && before->port == now->port,
           "%s: round %" PRId64 " meets at %s, port %u, for %s at %s, port %u", a->name, now->round, now->addr,
           now->port, whose, before->addr, before->port);
}

/* The second is for nodes that do not reach their own store by its name. */
static bool is_loopback(const char *addr)
{
    return strcmp(addr, "localhost") == 0 || strcmp(addr, "127.0.0.1") == 0;
}

/* It is rank 0's, and of this round. */
static void check_whose(const struct agent *a, const struct pair *now, unsigned rank0)
{
    bool alone = w.settings.nodes_max == 1;

    EXPECT("G1", owner_of(now->addr) == (int)rank0 || (alone && is_loopback(now->addr)),
           "%s: round %" PRId64 " meets at %s, but rank 0 is node %u", a->name, now->round, now->addr, rank0);
    EXPECT("G1", offer_of(now->round, now->tag, rank0, now->port) != NULL,
           "%s: round %" PRId64 " meets at %s, port %u, which is not of this round", a->name, now->round, now->addr,
           now->port);
}

static void check_answers(const struct agent *a, const struct pair *now, unsigned rank0)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct boot *b = &boots[i];

        if (!b->there || !w.nodes[i].alive || w.nodes[i].id != rank0 || b->round != now->round || b->tag != now->tag ||
            b->machine.state != MU_BOOT_DONE || !b->machine.listens)
            continue;
        EXPECT("G1", b->port == now->port, "%s: round %" PRId64 " meets at port %u, but rank 0 listens on %u", a->name,
               now->round, now->port, b->port);
    }
}

/* Also where data were lost: the keys of a pair bear the round's number and its tag, and no node joins the same
 * round twice. Only PyTorch's names have no tag; what counts there is with what workers are started. */
static void check_told(const struct agent *a, const struct pair *now, unsigned rank0)
{
    if (job.wiped_us != 0 && job.on[T_MIXED])
        return;
    check_whose(a, now, rank0);
    check_answers(a, now, rank0);
    for (size_t i = 0; i < pairs_count; i++) {
        if (is_same_round(&pairs[i], now)) {
            check_same(a, now, &pairs[i], "others");
            return;
        }
    }
    EXPECT("rounds", pairs_count < PAIRS_MAX, "too many rounds");
    pairs[pairs_count++] = *now;
}

/* Whatever has happened before. */
void boot_check_starting(const struct agent *a)
{
    const struct pair *now = &boot_of(a)->told;

    if (!boot_of(a)->there)
        return;
    EXPECT("G1", now->round == a->round && now->tag == a->tag, "%s starts workers that have nowhere to meet", a->name);
    check_whose(a, now, a->world[0]);
    check_answers(a, now, a->world[0]);
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct agent *b = &job.agents[i];

        if (b != a && b->job != NULL && !b->ended && b->procs.running > 0 && is_same_round(&boots[i].told, now))
            check_same(a, now, &boots[i].told, b->name);
    }
}

/* With the store there for it, and rank 0's pair in it, there is nothing to wait for. */
static void check_failed(const struct agent *a, const struct boot *b, const struct muster_error *error)
{
    const struct news *news = b->joined;
    const struct offer *offer = offer_of(news->round, news->tag, news->ids[0], 0);
    uint64_t since = later_of(later_of(b->start_us, b->failed_us), a->node->paused_until_us);

    EXPECT("M",
           w.calm == false || b->start_us <= job.calm_us || job.wiped_us != 0 || job.dark_us != 0 || w.host_slot >= 0,
           "%s cannot finish a boot that began in calm: %s", a->name, error->text);
    if (b->hindered || job.wiped_us != 0)
        return;
    if (news->rank == 0)
        EXPECT("M", w.now_us < since + SETTLED_US, "%s: nothing keeps it from publishing: %s", a->name, error->text);
    else
        EXPECT("M", offer == NULL || offer->done_us == 0 || w.now_us < later_of(since, offer->done_us) + SETTLED_US,
               "%s does not find what rank 0 has published: %s", a->name, error->text);
}

void boot_check(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct boot *b = &boots[i];
        const struct node *node = &w.nodes[i];

        if (!b->there || !node->alive || !is_on(b))
            continue;
        EXPECT("M", w.now_us < later_of(b->start_us + MU_BOOT_TIMEOUT_MS * MS, node->paused_until_us) + SECOND,
               "%s has not ended its boot (%s)", job.agents[i].name, mu_boot_state_text(b->machine.state));
    }
}

/* ---- Effects ---- */

static void offer(const struct agent *a, const struct boot *b, unsigned port)
{
    EXPECT("rounds", offers_count < OFFERS_MAX, "too many rounds");
    offers[offers_count++] = (struct offer){ .round = b->round, .tag = b->tag, .id = a->node->id, .port = port };
}

static void on_listening(struct agent *a, void *what, uint64_t number)
{
    struct boot *b = boot_of(a);
    unsigned *port = what;
    struct muster_error error = { 0 };

    if (*port == 0) {
        (void)mu_fail(&error, MUSTER_ESYSTEM, "simulated: the port is taken");
        step(a, (struct mu_boot_event){ .type = MU_BOOT_ON_LISTEN_FAILED, .id = number, .error = &error });
    } else {
        if (number == b->machine.id && b->machine.state == MU_BOOT_OPENING)
            offer(a, b, *port);
        step(a, (struct mu_boot_event){ .type = MU_BOOT_ON_LISTENING, .id = number, .port = (uint16_t)*port });
    }
    free(what);
}

static void listen_for(struct agent *a, const struct mu_boot_effect *effect)
{
    struct boot *b = boot_of(a);
    unsigned *port = malloc(sizeof *port);
    bool fails = trouble(T_PORT);

    if (port == NULL)
        abort();
    EXPECT("ports", next_port < 65535, "too many ports");
    if (effect->type == MU_BOOT_DO_FREE_PORT) {
        *port = next_port++;
        b->taken = fails && chance(70);
        fails &= !b->taken;
    } else {
        EXPECT("M", effect->type == MU_BOOT_DO_OPEN_STORE || b->port != 0, "%s renews no store", a->name);
        if (effect->type == MU_BOOT_DO_OPEN_STORE)
            b->port = fails ? 0 : next_port++;
        else
            fails = false;
        *port = b->port;
    }
    if (fails) {
        *port = 0;
        b->hindered = a->personal = true;
    }
    later(w.now_us + below(2 * MS), on_listening, a, port, effect->id);
}

static void on_self(struct agent *a, void *what, uint64_t number)
{
    const bool *works = what;
    struct muster_error error = { 0 };

    if (!*works)
        (void)mu_fail(&error, MUSTER_ETIMEOUT, "simulated: it does not answer");
    step(a, (struct mu_boot_event){ .type = *works ? MU_BOOT_ON_CHECKED : MU_BOOT_ON_REQUEST_FAILED,
                                    .id = number,
                                    .error = *works ? NULL : &error });
    free(what);
}

static void check_self(struct agent *a, const struct mu_boot_effect *effect)
{
    struct boot *b = boot_of(a);
    bool *works = malloc(sizeof *works);

    if (works == NULL)
        abort();
    EXPECT("M", effect->port == b->port, "%s connects to port %u, but it listens on %u", a->name,
           (unsigned)effect->port, b->port);
    *works = !trouble(T_SELF);
    b->hindered |= !*works;
    later(w.now_us + (*works ? below(5 * MS) : below(effect->wait_ms * MS)), on_self, a, works, effect->id);
}

static void request(struct agent *a, const struct mu_boot_effect *effect)
{
    static const enum mu_ask_kind kinds[] = {
        [MU_KV_GET] = MU_ASK_GET, [MU_KV_CHECK] = MU_ASK_CHECK, [MU_KV_SET] = MU_ASK_SET
    };
    struct mu_ask ask = { .kind = kinds[mu_boot_kv_kind(effect->type)],
                          .id = effect->id,
                          .key = effect->key,
                          .value = effect->value,
                          .timeout_ms = effect->wait_ms };

    kv_ask(a, WHO_BOOT, &ask);
}

static void on_done(struct agent *a, const struct mu_boot_effect *effect)
{
    struct boot *b = boot_of(a);
    struct offer *made = offer_of(b->round, b->tag, a->node->id, effect->port);

    TELL("%s: meets at %s, port %u", a->name, effect->addr, (unsigned)effect->port);
    b->told = (struct pair){ .round = b->round, .tag = b->tag, .port = effect->port };
    (void)snprintf(b->told.addr, sizeof b->told.addr, "%s", effect->addr);
    check_told(a, &b->told, b->joined->ids[0]);
    if (b->joined->rank == 0)
        made->done_us = w.now_us;
    talk(a, (struct mu_talk_event){ .type = MU_TALK_ON_BOOTED }, NULL);
}

static void on_failed(struct agent *a, const struct muster_error *error)
{
    struct boot *b = boot_of(a);
    struct muster_error told = *error;

    TELL("%s: %s", a->name, error->text);
    told.code = mu_boot_told_code(error->code);
    check_failed(a, b, error);
    check_boot_failed(a);
    talk(a, (struct mu_talk_event){ .type = MU_TALK_ON_BOOT_FAILED, .error = &told }, NULL);
}

static void perform(struct agent *a, const struct mu_boot_effect *effect)
{
    switch (effect->type) {
    case MU_BOOT_DO_OPEN_STORE:
    case MU_BOOT_DO_RENEW_STORE:
    case MU_BOOT_DO_FREE_PORT:
        listen_for(a, effect);
        break;
    case MU_BOOT_DO_CLOSE_STORE:
        boot_of(a)->port = 0;
        break;
    case MU_BOOT_DO_CHECK_SELF:
        check_self(a, effect);
        break;
    case MU_BOOT_DO_REACH: /* nobody names an address and a port here */
    case MU_BOOT_DO_OPEN_AGENTS:
    case MU_BOOT_DO_CLOSE_AGENTS:
        abort();
        break;
    case MU_BOOT_DO_GET:
    case MU_BOOT_DO_CHECK:
    case MU_BOOT_DO_SET:
        request(a, effect);
        break;
    case MU_BOOT_DO_DONE:
        on_done(a, effect);
        break;
    case MU_BOOT_DO_FAIL:
        on_failed(a, effect->error);
        break;
    case MU_BOOT_DO_SAY:
        TELL("%s: says: %s", a->name, effect->text);
        break;
    }
}

static void on_timer(struct agent *a, void *what, uint64_t number)
{
    struct boot *b = boot_of(a);

    (void)what;
    if (number != b->timer_generation)
        return;
    b->timer_us = 0;
    step(a, (struct mu_boot_event){ .type = MU_BOOT_ON_TIME });
}

static void arm(struct agent *a)
{
    struct boot *b = boot_of(a);
    uint64_t ms = mu_boot_deadline_ms(&b->machine), at;

    if (ms == UINT64_MAX) {
        b->timer_us = 0;
        b->timer_generation++;
        return;
    }
    at = ms * MS <= w.now_us + a->node->mono_offset_us ? w.now_us : ms * MS - a->node->mono_offset_us;
    if (at == b->timer_us && at > w.now_us)
        return;
    b->timer_us = at;
    later(at, on_timer, a, NULL, ++b->timer_generation);
}

/* Between any two effects of an answer a node may vanish; rank 0 more often. */
static bool dies(const struct boot *b, const struct mu_boot_event *event)
{
    bool inside = event->type == MU_BOOT_ON_START || event->type == MU_BOOT_ON_STOP; /* of a step of the rendezvous */

    return w.on[F_KILL] && !w.calm && !inside && b->joined != NULL && chance(b->joined->rank == 0 ? 6 : 2);
}

static void step(struct agent *a, struct mu_boot_event event)
{
    struct boot *b = boot_of(a);
    struct mu_boot_effects effects;
    unsigned count;
    bool dead = dies(b, &event);

    event.now_ms = node_ms(a->node);
    mu_boot_step(&b->machine, &event, &effects);
    count = dead ? (unsigned)below(effects.count + 1) : effects.count;
    for (unsigned i = 0; i < count; i++)
        perform(a, &effects.items[i]);
    if (dead)
        node_die(a->node);
    else
        arm(a);
}

void boot_answer(struct agent *a, enum mu_ask_kind kind, const struct mu_answer *answer)
{
    struct mu_kv_request request = {
        .kind = kind == MU_ASK_GET     ? MU_KV_GET
                : kind == MU_ASK_CHECK ? MU_KV_CHECK
                                       : MU_KV_SET,
        .bytes = { (char *)answer->value.data, answer->value.len },
        .found = answer->found,
    };
    struct mu_boot_event event;

    if (answer->error != NULL) {
        request.rc = answer->error->code;
        request.error = *answer->error;
    }
    event = mu_boot_answer(answer->id, &request);
    if (event.type == MU_BOOT_ON_REQUEST_FAILED)
        boot_of(a)->failed_us = w.now_us;
    step(a, event);
}

/* ---- The conversation ---- */

static void forget_joined(struct boot *b)
{
    free(b->joined);
    b->joined = NULL;
}

static void start(struct agent *a, const struct news *news)
{
    struct boot *b = boot_of(a);
    char rank0[32];
    struct mu_boot_start start = {
        .round = news->round,
        .rank = news->rank,
        .tag = news->tag,
        .all_ours = !job.on[T_MIXED],
        .rank0_ours = true,
        .old_dialect = news->old_dialect,
        .own_addr = b->own_addr,
        .elsewhere = news->ids_count > 1,
    };

    (void)snprintf(rank0, sizeof rank0, "node %u", news->ids[0]);
    start.rank0 = mu_slice_str(rank0);
    forget_joined(b);
    b->joined = copy_news(news);
    b->round = news->round;
    b->tag = news->tag;
    b->taken = b->hindered = false;
    b->start_us = w.now_us;
    b->failed_us = 0;
    if (b->there)
        step(a, (struct mu_boot_event){ .type = MU_BOOT_ON_START, .start = &start });
    else
        talk(a, (struct mu_talk_event){ .type = MU_TALK_ON_BOOTED }, NULL);
}

static void stop(struct agent *a)
{
    struct boot *b = boot_of(a);

    TELL("%s: the boot is stopped", a->name);
    if (b->there)
        step(a, (struct mu_boot_event){ .type = MU_BOOT_ON_STOP });
    forget_joined(b);
}

static void deliver(struct agent *a, const struct mu_talk_effect *effect, const struct news *heard)
{
    struct boot *b = boot_of(a);
    struct news *news;

    if (effect->tell == MU_PART_TELL_JOINED) {
        news = b->joined;
        b->joined = NULL;
        b->told_round = effect->round;
    } else {
        news = copy_news(heard);
    }
    EXPECT("told",
           (effect->tell != MU_PART_TELL_WAITING && effect->tell != MU_PART_TELL_LOST &&
            effect->tell != MU_PART_TELL_REMOVED) ||
               effect->round == b->told_round,
           "%s is told of round %" PRId64 ", but it knows of round %" PRId64, a->name, effect->round, b->told_round);
    news->tell = effect->tell;
    news->round = effect->round;
    news->count = effect->count;
    if (effect->tell == MU_PART_TELL_FAILED)
        news->request = mu_talk_request(effect->asked);
    if (effect->error != NULL)
        news->error = *effect->error;
    agent_deliver(a, news);
}

static void on_turn(struct agent *a, void *what, uint64_t number)
{
    (void)what;
    (void)number;
    boot_of(a)->takes_turn = false;
    talk(a, (struct mu_talk_event){ .type = MU_TALK_ON_TURN }, NULL);
}

static void on_found(struct agent *a, void *what, uint64_t number)
{
    (void)what;
    (void)number;
    boot_found(a, NULL);
}

void boot_found(struct agent *a, const struct muster_error *error)
{
    talk(a, (struct mu_talk_event){ .type = error == NULL ? MU_TALK_ON_FOUND : MU_TALK_ON_NOT_FOUND, .error = error },
         NULL);
}

static void talk(struct agent *a, struct mu_talk_event event, const struct news *heard)
{
    struct boot *b = boot_of(a);
    struct mu_talk_effects effects;

    event.now_ms = node_ms(a->node);
    mu_talk_step(&b->talk, &event, &effects);
    if (mu_talk_is_due(&b->talk) && !b->takes_turn) {
        b->takes_turn = true;
        later(w.now_us, on_turn, a, NULL, 0);
    }
    for (unsigned i = 0; i < effects.count && a->node->alive; i++) {
        const struct mu_talk_effect *effect = &effects.items[i];

        switch (effect->type) {
        case MU_TALK_DO_ASK:
            node_ask(a->node, (enum mu_rdzv_event_type)effect->asked);
            break;
        case MU_TALK_DO_START_BOOT:
            start(a, heard);
            break;
        case MU_TALK_DO_STOP_BOOT:
            stop(a);
            break;
        case MU_TALK_DO_FIND:
            if (job.on[T_FIND])
                host_find(a);
            else
                later(w.now_us + below(20 * MS), on_found, a, NULL, 0);
            break;
        case MU_TALK_DO_TELL:
            deliver(a, effect, heard);
            break;
        }
    }
}

void boot_ask(struct agent *a, enum mu_rdzv_event_type ask)
{
    if (ask == MU_RDZV_JOIN || ask == MU_RDZV_LEAVE)
        boot_of(a)->told.round = -1;
    talk(a, (struct mu_talk_event){ .type = MU_TALK_ON_ASKED, .asked = (enum mu_part_event_type)ask }, NULL);
}

void boot_hear(struct agent *a, const struct mu_rdzv_effect *effect, const struct news *heard)
{
    const struct mu_part_news news = { .tell = effect->news.tell,
                                       .asked = effect->news.asked,
                                       .round = heard->round,
                                       .count = heard->count,
                                       .error = &heard->error };

    talk(a, (struct mu_talk_event){ .type = MU_TALK_ON_TOLD, .news = &news }, heard);
}

/* Worker 0 finds its port taken. */
bool boot_port_is_taken(const struct agent *a)
{
    return boot_of(a)->there && boot_of(a)->taken && a->rank == 0;
}

/* ---- Birth and death ---- */

void boot_birth(struct agent *a)
{
    struct boot *b = boot_of(a);
    uint64_t generation = b->timer_generation;
    unsigned id = a->node->id;
    struct mu_boot_config config = {
        .run_id = RUN_ID,
        .use_agent_store = use_agent_store,
        .nodes_max = w.settings.nodes_max,
    };

    *b = (struct boot){ .timer_generation = generation + 1, .round = -1, .told.round = -1, .told_round = -1 };
    mu_talk_init(&b->talk, w.settings.join_ms, true);
    if (!job.on[T_BOOT])
        return;
    b->there = true;
    (void)snprintf(b->hostname, sizeof b->hostname, "n%u", id);
    if (chance(20))
        (void)snprintf(b->local_addr, sizeof b->local_addr, "m%u", id);
    if (chance(80))
        (void)snprintf(b->own_addr, sizeof b->own_addr, "10.0.%u.%u", id >> 8, id & 0xff);
    config.hostname = b->hostname;
    config.local_addr = b->local_addr;
    if (mu_boot_init(&b->machine, &config, NULL) < 0)
        abort();
}

void boot_bury(struct agent *a)
{
    struct boot *b = boot_of(a);

    forget_joined(b);
    if (b->there)
        mu_boot_done(&b->machine);
    b->there = false;
}

void boot_begin(void)
{
    struct mu_rng rng = mu_rng_seeded(w.seed ^ UINT64_C(0xb007));

    offers_count = pairs_count = 0;
    next_port = FIRST_PORT;
    use_agent_store = mu_rng_below(&rng, 100) < 75;
}
