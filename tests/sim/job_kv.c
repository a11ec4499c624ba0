/* The plain keys of the store, as c10d has them: get waits, compare-and-set answers what is there now and, where
 * nothing is, what was expected. They go and come back with the document's store. Each request is answered once; on an
 * agent's connection none overtakes another one, but for gets, which have their own. */
#include "job_sim.h"

struct key {
    char *name;
    struct mu_buf value;
    uint64_t born_us;
};

struct order {
    enum mu_ask_kind kind;
    enum mu_job_who who;
    unsigned slot;
    uint64_t life, id;
    char key[TEXT_MAX / 4], value[TEXT_MAX], expected[TEXT_MAX / 4];
    size_t value_len, expected_len;
    int64_t number;
    uint64_t until_us;
    /* Answer. */
    int code; /* 0: it was done */
    bool found, gone;
    struct order *next; /* waiting */
};

static struct {
    unsigned wipes;
    bool up;
    struct key *keys;
    size_t count, room;
    struct order *waiting;
} kv;

static struct agent *agent_of(const struct order *order)
{
    return &job.agents[order->slot];
}

/* ---- Keys ---- */

static struct key *find(const char *name)
{
    for (size_t i = 0; i < kv.count; i++) {
        if (strcmp(kv.keys[i].name, name) == 0)
            return &kv.keys[i];
    }
    return NULL;
}

bool kv_find(const char *name, struct mu_slice *ret_value, uint64_t *ret_born_us)
{
    const struct key *key = find(name);

    if (key != NULL && ret_value != NULL)
        *ret_value = mu_buf_slice(&key->value);
    if (key != NULL && ret_born_us != NULL)
        *ret_born_us = key->born_us;
    return key != NULL;
}

static void forget(void)
{
    for (size_t i = 0; i < kv.count; i++) {
        free(kv.keys[i].name);
        mu_buf_done(&kv.keys[i].value);
    }
    kv.count = 0;
}

static void forget_key(const char *name)
{
    struct key *key = find(name);

    if (key == NULL)
        return;
    free(key->name);
    mu_buf_done(&key->value);
    *key = kv.keys[--kv.count];
}

/* ---- Answers ---- */

static uint64_t travel_us(void)
{
    uint64_t us = 50 + below(250);

    if (w.on[F_SLOW] && !w.calm && chance(w.percent[F_SLOW]))
        us += below(w.slow_us);
    return us;
}

static void on_answer(struct agent *agent, void *what, uint64_t number)
{
    struct order *order = what;
    struct muster_error error = { 0 };
    struct mu_answer answer = { .id = order->id,
                                .value = mu_slice(order->value, order->value_len),
                                .number = order->number,
                                .found = order->found };

    (void)number;
    if (order->code < 0) {
        (void)mu_fail(&error, order->code, "simulated");
        answer.error = &error;
        answer.gone = order->gone;
        if (order->who != WHO_BOOT)
            agent->kv_failed_us = w.now_us;
    }
    TELL("%s: %s '%s'%s", agent->name, mu_ask_kind_text(order->kind), order->key,
         order->code < 0               ? ", failed"
         : order->kind != MU_ASK_CHECK ? ""
         : order->found                ? ", there"
                                       : ", not there");
    if (order->who == WHO_BOOT)
        boot_answer(agent, order->kind, &answer);
    else
        agent_answer(agent, order->who, answer);
    free(order);
}

static void reply(struct order *order, int code, uint64_t after_us)
{
    struct agent *agent = agent_of(order);

    order->code = code;
    order->gone = code < 0 && store_is_gone();
    if (agent->life != order->life) {
        free(order);
        return;
    }
    later(w.now_us + after_us + travel_us(), on_answer, agent, order, 0);
}

static void set(const char *name, struct mu_slice value)
{
    struct key *key = find(name);

    if (key == NULL) {
        if (kv.count == kv.room) {
            kv.room = kv.room * 2 + 64;
            kv.keys = realloc(kv.keys, kv.room * sizeof kv.keys[0]);
        }
        if (kv.keys == NULL)
            abort();
        key = &kv.keys[kv.count++];
        *key = (struct key){ .name = strdup(name), .born_us = w.now_us };
    }
    if (key->name == NULL || mu_buf_assign(&key->value, value) < 0)
        abort();
}

static void answer_value(struct order *order, struct mu_slice value)
{
    if (value.len > sizeof order->value)
        abort();
    memcpy(order->value, value.data, value.len);
    order->value_len = value.len;
}

static void wake(const char *name)
{
    struct order **link = &kv.waiting, *order;

    while ((order = *link) != NULL) {
        if (strcmp(order->key, name) != 0) {
            link = &order->next;
            continue;
        }
        *link = order->next;
        answer_value(order, mu_buf_slice(&find(name)->value));
        reply(order, 0, 0);
    }
}

static void on_waited(struct agent *nobody, void *what, uint64_t number)
{
    uint64_t *until_us = what;
    struct order **link = &kv.waiting, *order;

    (void)nobody;
    (void)number;
    while ((order = *link) != NULL) {
        if (order->until_us > *until_us) {
            link = &order->next;
            continue;
        }
        *link = order->next;
        reply(order, MUSTER_ETIMEOUT, 0);
    }
    free(until_us);
}

static void await(struct order *order)
{
    uint64_t *until_us = malloc(sizeof *until_us);

    if (until_us == NULL)
        abort();
    *until_us = order->until_us;
    later_in_store(order->until_us, on_waited, until_us);
    order->next = kv.waiting;
    kv.waiting = order;
}

/* ---- A stranger ---- */

/* Writes something to one of the keys that say how a round or the job ends. */
void kv_meddle(void)
{
    static const char *const parts[] = { "/budget", "/verdict", "/done/", "/left/", "/heard/", "/last", "/failed" };
    static const char *const values[] = {
        "garbage",
        "?",
        "-",
        "7",
        "{\"verdict\": \"failed\", \"cause\": \"forged\"}",
        "0 " MADE_UP ".0000000000000000",
        "{\"verdict\": \"failed\", \"round\": " MADE_UP
        ", \"tag\": \"0000000000000000\", \"node\": \"n\", \"rank\": 0, "
        "\"cause\": \"forged\"}",
    };
    size_t first = kv.count == 0 ? 0 : (size_t)below(kv.count);

    for (size_t i = 0; kv.up && i < kv.count; i++) {
        const char *name = kv.keys[(first + i) % kv.count].name;

        for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++) {
            if (strstr(name, parts[j]) == NULL || strncmp(name, "muster.", 7) != 0)
                continue;
            TELL("a stranger writes to '%s'", name);
            set(name, mu_slice_str(values[below(sizeof values / sizeof values[0])]));
            wake(name);
            return;
        }
    }
}

/* ---- Requests ---- */

static void add(struct order *order)
{
    const struct key *key = find(order->key);
    char text[32];
    int len;

    if (key != NULL) {
        (void)snprintf(text, sizeof text, "%.*s", (int)key->value.len, key->value.data);
        order->number += strtoll(text, NULL, 10);
    }
    len = snprintf(text, sizeof text, "%" PRId64, order->number);
    set(order->key, mu_slice(text, (size_t)len));
}

static void compare_set(struct order *order)
{
    const struct key *key = find(order->key);
    struct mu_slice expected = mu_slice(order->expected, order->expected_len);

    if (key == NULL ? expected.len == 0 : mu_slice_equal(mu_buf_slice(&key->value), expected)) {
        set(order->key, mu_slice(order->value, order->value_len));
        wake(order->key);
    } else {
        answer_value(order, key == NULL ? expected : mu_buf_slice(&key->value));
    }
}

static void carry_out(struct order *order)
{
    const struct key *key = find(order->key);

    switch (order->kind) {
    case MU_ASK_GET:
        if (key == NULL) {
            await(order);
            return;
        }
        answer_value(order, mu_buf_slice(&key->value));
        break;
    case MU_ASK_SET:
        set(order->key, mu_slice(order->value, order->value_len));
        wake(order->key);
        break;
    case MU_ASK_ADD:
        add(order);
        wake(order->key);
        break;
    case MU_ASK_COMPARE_SET:
        compare_set(order);
        break;
    case MU_ASK_CHECK:
        order->found = key != NULL;
        break;
    case MU_ASK_DELETE:
        forget_key(order->key);
        break;
    }
    if (fault(F_LOST))
        reply(order, MUSTER_ERDZV_CONNECTION, below(SECOND));
    else
        reply(order, 0, 0);
}

static void on_arrive(struct agent *nobody, void *what, uint64_t number)
{
    struct order *order = what;

    (void)nobody;
    (void)number;
    kv_sync();
    if (!kv.up)
        reply(order, MUSTER_ERDZV_CONNECTION, below(w.settings.keep_alive_ms * MS / 2));
    else if (w.nodes[order->slot].cut_until_us > w.now_us || fault(F_REFUSED))
        reply(order, MUSTER_ERDZV_CONNECTION, below(SECOND));
    else
        carry_out(order);
}

static void take(char *text, size_t room, struct mu_slice from)
{
    if (from.len >= room)
        abort();
    if (from.len > 0)
        memcpy(text, from.data, from.len);
}

void kv_ask(struct agent *agent, enum mu_job_who who, const struct mu_ask *ask)
{
    struct order *order = calloc(1, sizeof *order);
    uint64_t at = w.now_us + travel_us();

    if (order == NULL)
        abort();
    order->kind = ask->kind;
    order->who = who;
    order->slot = agent->node->slot;
    order->life = agent->life;
    order->id = ask->id;
    order->number = ask->number;
    order->until_us = w.now_us + ask->timeout_ms * MS;
    take(order->key, sizeof order->key, ask->key);
    take(order->value, sizeof order->value, ask->value);
    take(order->expected, sizeof order->expected, ask->expected);
    order->value_len = ask->value.len;
    order->expected_len = ask->expected.len;
    if (ask->kind != MU_ASK_GET) {
        at = at <= agent->order_us ? agent->order_us + 1 : at;
        agent->order_us = at;
    }
    later_in_store(at, on_arrive, order);
}

/* ---- Coming and going ---- */

void kv_sync(void)
{
    struct order *order;

    if (kv.wipes != store_wipes()) {
        kv.wipes = store_wipes();
        forget();
        job.wiped_us = w.now_us + 1;
    }
    kv.up = store_is_up();
    while (!kv.up && (order = kv.waiting) != NULL) {
        kv.waiting = order->next;
        reply(order, MUSTER_ERDZV_CONNECTION, below(w.settings.keep_alive_ms * MS / 2));
    }
}

void kv_begin(void)
{
    kv.wipes = store_wipes();
    kv.up = store_is_up();
    boot_begin();
    host_begin();
}

void kv_end(void)
{
    struct order *order;

    while ((order = kv.waiting) != NULL) {
        kv.waiting = order->next;
        free(order);
    }
    forget();
    free(kv.keys);
    kv.keys = NULL;
    kv.room = 0;
}
