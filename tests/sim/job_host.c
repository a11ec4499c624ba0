/* How a node gets its store: the program's own machine (host.h), with names, ports and connections that the seed makes
 * up.
 *
 * The store is where host_slot says, or stands alone. Nodes on the machine of its host find its port taken: by the
 * host, or by something else until the host is there. What goes wrong, beside the faults of the store:
 *   - names cannot be resolved for a while, or lead elsewhere (T_NAME)
 *   - the host's port is taken for a while (T_TAKEN)
 *   - the store takes a connection, and answers nothing (T_MUTE)
 *
 * Checked: a node that gives up had a reason, and did so in time. */
#include "job_sim.h"

#include "handler/host.h"

enum { PATIENCE_MS = 60000, DIAL_MS = 200, PORT = 29400 };

struct search {
    struct mu_host machine;
    uint64_t generation; /* of what is under way: anything else is dropped */
    uint64_t since_us;   /* UINT64_MAX: it does not search */
    uint64_t dial_until_us, taken_until_us;
    bool near;                /* the endpoint is an address of its machine */
    bool elsewhere, hindered; /* hindered: by something of its own, not by the store */
};

static struct search searches[AGENTS_MAX];
static struct mu_rng rng;

static void feed(struct agent *a, struct mu_host_event event);

static struct search *search_of(const struct agent *a)
{
    return &searches[a->node->slot];
}

static bool draws(enum trouble what)
{
    return job.on[what] && !w.calm && mu_rng_below(&rng, 100) < job.percent[what];
}

static bool is_host(const struct agent *a)
{
    return (int)a->node->slot == w.host_slot;
}

static bool is_reached(const struct agent *a, enum mu_host_place place)
{
    const struct search *s = search_of(a);

    return place == MU_HOST_OWN || (store_is_up() && a->node->cut_until_us <= w.now_us && !s->elsewhere);
}

/* ---- Answers, from the loop ---- */

static void answer(struct agent *a, enum mu_host_event_type type, int code)
{
    struct muster_error error = { 0 };

    if (code < 0)
        (void)mu_fail(&error, code, "simulated");
    feed(a, (struct mu_host_event){ .type = type, .error = &error });
}

static void on_resolved(struct agent *a, void *what, uint64_t generation)
{
    struct search *s = search_of(a);

    (void)what;
    if (generation != s->generation)
        return;
    s->near = w.host_slot >= 0 && strcmp(a->node->host, w.nodes[w.host_slot].host) == 0;
    if (draws(T_NAME)) {
        s->hindered = true;
        if (mu_rng_below(&rng, 100) < 80) {
            answer(a, MU_HOST_ON_RESOLVED, MUSTER_ERDZV_CONNECTION);
            return;
        }
        s->elsewhere = true;
        s->near = false;
    }
    feed(a, (struct mu_host_event){ .type = MU_HOST_ON_RESOLVED, .addresses = { 1, s->near, false } });
}

static void on_dial(struct agent *a, void *what, uint64_t generation)
{
    struct search *s = search_of(a);

    (void)what;
    if (generation != s->generation)
        return;
    if (is_reached(a, s->machine.place))
        answer(a, MU_HOST_ON_CONNECTED, 0);
    else if (w.now_us >= s->dial_until_us)
        answer(a, MU_HOST_ON_NOT_CONNECTED, MUSTER_ERDZV_CONNECTION);
    else
        later(w.now_us + DIAL_MS * MS, on_dial, a, NULL, generation);
}

static void on_asked(struct agent *a, void *what, uint64_t generation)
{
    (void)what;
    if (generation != search_of(a)->generation)
        return;
    if (is_reached(a, search_of(a)->machine.place) && !fault(F_LOST))
        answer(a, MU_HOST_ON_ANSWERED, 0);
    else
        answer(a, MU_HOST_ON_NOT_ANSWERED, MUSTER_ELOST);
}

static void on_silence(struct agent *a, void *what, uint64_t generation)
{
    (void)what;
    if (generation == search_of(a)->generation)
        answer(a, MU_HOST_ON_NOT_ANSWERED, MUSTER_ETIMEOUT);
}

static void on_time(struct agent *a, void *what, uint64_t generation)
{
    (void)what;
    if (generation == search_of(a)->generation)
        feed(a, (struct mu_host_event){ .type = MU_HOST_ON_TIME });
}

/* ---- What the machine wants ---- */

static void listen_here(struct agent *a)
{
    static const struct mu_bind_plan plan = { .reason = MU_BIND_OWN, .hosts = "10.0.0.1" };
    struct search *s = search_of(a);

    EXPECT("host", s->near, "%s listens at an address that is not its own", a->name);
    if (is_host(a) && s->taken_until_us == 0 && draws(T_TAKEN)) {
        s->hindered = true;
        s->taken_until_us = w.now_us + mu_rng_below(&rng, 20 * SECOND);
    }
    if (!is_host(a) || s->taken_until_us > w.now_us) {
        answer(a, MU_HOST_ON_NOT_BOUND, MUSTER_EADDRINUSE);
        return;
    }
    EXPECT("host", !store_is_up(), "%s hosts a second store", a->name);
    host_serves(a->node);
    feed(a, (struct mu_host_event){ .type = MU_HOST_ON_BOUND, .port = PORT, .plan = &plan });
}

static void ask(struct agent *a, uint64_t wait_ms)
{
    struct search *s = search_of(a);

    if (draws(T_MUTE)) {
        s->hindered = true;
        later(w.now_us + wait_ms * MS, on_silence, a, NULL, s->generation);
    } else {
        later(w.now_us + 50 + mu_rng_below(&rng, 500), on_asked, a, NULL, s->generation);
    }
}

/* A store that was there for all of the time, with nothing in the way, is found. */
static void give_up(struct agent *a, const struct muster_error *error)
{
    struct search *s = search_of(a);
    uint64_t paused_us = a->node->impaired_us > s->since_us ? a->node->impaired_us : s->since_us;

    TELL("%s: finds no store: %s", a->name, error->text);
    EXPECT("host",
           s->hindered || w.on[F_LOST] || w.on[F_CUT] || store_up_for_us() < (uint64_t)PATIENCE_MS * MS / 2 ||
               paused_us > s->since_us,
           "%s finds no store, though it has been there for %.1f s", a->name, (double)store_up_for_us() / 1e6);
    s->since_us = UINT64_MAX;
    a->personal = true;
    boot_found(a, error);
}

static void use(struct agent *a)
{
    struct search *s = search_of(a);

    TELL("%s: has found its store%s", a->name, mu_host_hosts(&s->machine) ? ", and hosts it" : "");
    EXPECT("host", mu_host_hosts(&s->machine) == is_host(a), "%s should %shost", a->name, is_host(a) ? "" : "not ");
    s->since_us = UINT64_MAX;
    node_host(a->node); /* which it was told with the answer */
    if (a->node->alive)
        boot_found(a, NULL);
}

static void perform(struct agent *a, const struct mu_host_effect *effect)
{
    struct search *s = search_of(a);

    switch (effect->type) {
    case MU_HOST_DO_RESOLVE:
        later(w.now_us + mu_rng_below(&rng, 20 * MS), on_resolved, a, NULL, ++s->generation);
        break;
    case MU_HOST_DO_LISTEN:
        listen_here(a);
        break;
    case MU_HOST_DO_CONNECT:
        s->dial_until_us = w.now_us + effect->wait_ms * MS;
        later(w.now_us + 50 + mu_rng_below(&rng, 500), on_dial, a, NULL, ++s->generation);
        break;
    case MU_HOST_DO_ASK:
        s->generation++;
        ask(a, effect->wait_ms);
        break;
    case MU_HOST_DO_DISCONNECT:
        s->generation++;
        break;
    case MU_HOST_DO_USE:
        use(a);
        break;
    case MU_HOST_DO_FAIL:
        give_up(a, effect->error);
        break;
    case MU_HOST_DO_SAY:
        TELL("%s: says: %s", a->name, effect->text);
        break;
    case MU_HOST_DO_RECORD:
    case MU_HOST_DO_WATCH:
        break;
    case MU_HOST_DO_PROBE:    /* engine=off */
    case MU_HOST_DO_UNLISTEN: /* our own store always answers us */
        abort();
    }
}

static void feed(struct agent *a, struct mu_host_event event)
{
    struct search *s = search_of(a);
    struct mu_host_effects effects;
    uint64_t ms;

    event.now_ms = node_ms(a->node);
    mu_host_step(&s->machine, &event, &effects);
    ms = mu_host_deadline_ms(&s->machine);
    if (ms != UINT64_MAX) {
        later(ms * MS - a->node->mono_offset_us, on_time, a, NULL, ++s->generation);
        for (unsigned i = 0; i < effects.count; i++)
            EXPECT("host", effects.items[i].type == MU_HOST_DO_DISCONNECT || effects.items[i].type == MU_HOST_DO_SAY,
                   "%s pauses and goes on", a->name);
        return;
    }
    for (unsigned i = 0; i < effects.count && a->node->alive; i++)
        perform(a, &effects.items[i]);
}

/* ---- From outside ---- */

void host_find(struct agent *a)
{
    struct search *s = search_of(a);

    EXPECT("host", s->since_us == UINT64_MAX, "%s searches twice", a->name);
    s->since_us = w.now_us;
    s->hindered = s->elsewhere = false;
    feed(a, (struct mu_host_event){ .type = MU_HOST_ON_START });
}

void host_birth(struct agent *a)
{
    struct search *s = search_of(a);
    const struct mu_host_config config = { .name = "store", .port = PORT, .patience_ms = PATIENCE_MS };

    *s = (struct search){ .generation = s->generation + 1, .since_us = UINT64_MAX };
    mu_host_init(&s->machine, &config);
}

/* Each second. The search takes its time, one more connection to a taken port, and no longer. */
void host_check(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct agent *a = &job.agents[i];
        const struct search *s = &searches[i];

        if (a->job == NULL || a->ended || !a->node->alive || s->since_us == UINT64_MAX ||
            a->node->impaired_us > s->since_us || a->node->paused_until_us > w.now_us)
            continue;
        EXPECT("host", w.now_us - s->since_us < (uint64_t)(PATIENCE_MS + MU_HOST_LISTEN_AGAIN_MS + 1000) * MS,
               "%s has looked for its store for %.1f s", a->name, (double)(w.now_us - s->since_us) / 1e6);
    }
}

void host_begin(void)
{
    rng = mu_rng_seeded(w.seed ^ UINT64_C(0x40574));
}
