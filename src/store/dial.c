/* Getting a connection. See the diagram in dial.h; there is one function for each state. */
#include "store/dial.h"

#include "base/error.h"
#include "base/texts.h"
#include "base/words.h"

#include <assert.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

MU_DEFINE_TEXTS(mu_dial_state_name, enum mu_dial_state, MU_DIAL_STATES)

void mu_dial_init(struct mu_dial *dial, const char *host, uint16_t port, uint64_t now_ms, uint64_t timeout_ms,
                  uint64_t seed)
{
    *dial = (struct mu_dial){
        .state = MU_DIAL_RESOLVING,
        .rng = mu_rng_seeded(seed),
        .start_ms = now_ms,
        .deadline_ms = timeout_ms > UINT64_MAX - 1 - now_ms ? UINT64_MAX - 1 : now_ms + timeout_ms,
        .delay_ms = MU_DIAL_DELAY_MS,
        .wake_ms = UINT64_MAX,
    };
    (void)mu_endpoint_format(host, port, dial->target);
}

static void emit(struct mu_dial_effects *out, enum mu_dial_effect_type type, size_t index)
{
    assert(out->count < sizeof out->items / sizeof out->items[0]);
    out->items[out->count++] = (struct mu_dial_effect){ .type = type, .index = index };
}

/* ---- What was tried ---- */

static void note(struct mu_dial *dial, const char *who, const char *why)
{
    struct mu_dial_note fresh = { .times = 1 };

    (void)snprintf(fresh.text, sizeof fresh.text, "%s%s%s", who == NULL ? "" : who, who == NULL ? "" : ": ", why);
    for (size_t i = 0; i < dial->notes_count; i++) {
        if (strcmp(dial->notes[i].text, fresh.text) == 0) {
            dial->notes[i].times++;
            return;
        }
    }
    if (dial->notes_count == MU_DIAL_NOTES_MAX)
        dial->notes_dropped++;
    else
        dial->notes[dial->notes_count++] = fresh;
}

/* An address that the user gave is not named again. */
static void note_address(struct mu_dial *dial, size_t index, const char *why)
{
    char text[MU_ADDR_TEXT_MAX];
    const char *address = mu_addr_format(&dial->addrs[index], text);

    note(dial, strcmp(address, dial->target) == 0 ? NULL : address, why);
}

static void list_notes(const struct mu_dial *dial, char *text, size_t room)
{
    struct mu_words words = mu_words_into(text, room);

    text[0] = '\0';
    for (size_t i = 0; i < dial->notes_count; i++) {
        mu_words_add(&words, "%s%s", i > 0 ? "; " : "", dial->notes[i].text);
        if (dial->notes[i].times > 1 && dial->notes[i].times != dial->rounds)
            mu_words_add(&words, " (%u times)", dial->notes[i].times);
    }
    if (dial->notes_dropped > 0)
        mu_words_add(&words, "; and %u more", dial->notes_dropped);
}

static void end(struct mu_dial *dial, enum mu_dial_state state)
{
    dial->state = state;
    dial->wake_ms = UINT64_MAX;
    dial->under_way = 0;
}

/* The last answer of those still silent is that they are silent. */
static void fail(struct mu_dial *dial, uint64_t now_ms, int code, struct mu_dial_effects *out)
{
    char tried[800];
    uint64_t took = now_ms - dial->start_ms;

    if (dial->state == MU_DIAL_RESOLVING)
        note(dial, "cannot resolve the name", "no answer from the resolver yet");
    if (dial->state == MU_DIAL_TRYING)
        dial->refused = false;
    for (size_t i = 0; dial->state == MU_DIAL_TRYING && i < dial->addrs_count; i++) {
        if (dial->since_ms[i] != 0)
            note_address(dial, i, dial->greeting ? "the port is open, but no store answers" : "no answer");
    }
    list_notes(dial, tried, sizeof tried);
    (void)mu_fail(&dial->error, code, "cannot connect to %s (%u %s in %" PRIu64 ".%" PRIu64 " s): %s", dial->target,
                  dial->rounds, dial->rounds == 1 ? "try" : "tries", took / 1000, took % 1000 / 100, tried);
    end(dial, MU_DIAL_FAILED);
    emit(out, MU_DIAL_GIVE_UP, 0);
    emit(out, MU_DIAL_FAIL, 0);
}

/* ---- Rounds ---- */

static void rest(struct mu_dial *dial, uint64_t now_ms)
{
    dial->state = MU_DIAL_RESTING;
    dial->wake_ms = now_ms + mu_rng_jitter(&dial->rng, dial->delay_ms, 50);
    dial->delay_ms = dial->delay_ms * 3 / 2;
    if (dial->delay_ms > MU_DIAL_DELAY_MAX_MS)
        dial->delay_ms = MU_DIAL_DELAY_MAX_MS;
}

static void resolve(struct mu_dial *dial, struct mu_dial_effects *out)
{
    dial->state = MU_DIAL_RESOLVING;
    dial->wake_ms = UINT64_MAX;
    dial->rounds++;
    emit(out, MU_DIAL_RESOLVE, 0);
}

/* Nothing of this round is left to try. */
static void round_over(struct mu_dial *dial, uint64_t now_ms, struct mu_dial_effects *out)
{
    rest(dial, now_ms);
    if (dial->rounds_max > 0 && dial->rounds >= dial->rounds_max)
        fail(dial, now_ms, MUSTER_ECONNECT, out);
}

/* IPv6 and IPv4 in turn, each in the resolver's order, beginning with the family the resolver put first. */
static void order(struct mu_dial *dial, const union mu_addr *addrs, size_t count)
{
    size_t next[2] = { 0, 0 };
    sa_family_t family[2] = { addrs[0].any.sa_family, addrs[0].any.sa_family == AF_INET ? AF_INET6 : AF_INET };

    dial->addrs_count = 0;
    for (size_t turn = 0; dial->addrs_count < count && dial->addrs_count < MU_DIAL_ADDRS_MAX; turn ^= 1) {
        while (next[turn] < count && addrs[next[turn]].any.sa_family != family[turn])
            next[turn]++;
        if (next[turn] < count)
            dial->addrs[dial->addrs_count++] = addrs[next[turn]++];
    }
}

static void try_next(struct mu_dial *dial, uint64_t now_ms, struct mu_dial_effects *out)
{
    if (dial->greeting || dial->started == dial->addrs_count)
        return;
    dial->since_ms[dial->started] = now_ms == 0 ? 1 : now_ms;
    dial->under_way++;
    emit(out, MU_DIAL_CONNECT, dial->started);
    dial->started++;
}

static void plan_wake(struct mu_dial *dial)
{
    dial->wake_ms = UINT64_MAX;
    for (size_t i = 0; i < dial->addrs_count; i++) {
        if (dial->since_ms[i] != 0 && dial->since_ms[i] + MU_DIAL_ATTEMPT_MS < dial->wake_ms)
            dial->wake_ms = dial->since_ms[i] + MU_DIAL_ATTEMPT_MS;
    }
    if (!dial->greeting && dial->started > 0 && dial->started < dial->addrs_count) {
        uint64_t overlap_ms = dial->since_ms[dial->started - 1] + MU_DIAL_OVERLAP_MS;

        if (dial->since_ms[dial->started - 1] != 0 && overlap_ms < dial->wake_ms)
            dial->wake_ms = overlap_ms;
    }
}

/* ---- States ---- */

static void resolving(struct mu_dial *dial, const struct mu_dial_event *ev, struct mu_dial_effects *out)
{
    if (ev->type == MU_DIAL_START) {
        resolve(dial, out);
    } else if (ev->type == MU_DIAL_UNRESOLVED || (ev->type == MU_DIAL_RESOLVED && ev->count == 0)) {
        note(dial, "cannot resolve the name", ev->type == MU_DIAL_UNRESOLVED ? ev->why : "it has no address");
        dial->refused = false;
        round_over(dial, ev->now_ms, out);
    } else if (ev->type == MU_DIAL_RESOLVED) {
        dial->state = MU_DIAL_TRYING;
        dial->started = dial->under_way = 0;
        dial->greeting = dial->said_no = dial->was_silent = false;
        memset(dial->since_ms, 0, sizeof dial->since_ms);
        order(dial, ev->addrs, ev->count);
        try_next(dial, ev->now_ms, out);
        plan_wake(dial);
    }
}

static void attempt_failed(struct mu_dial *dial, size_t index, const char *why, uint64_t now_ms,
                           struct mu_dial_effects *out)
{
    if (dial->since_ms[index] == 0)
        return; /* given up before */
    note_address(dial, index, why);
    dial->since_ms[index] = 0;
    dial->under_way--;
    dial->greeting = false; /* if it was being greeted, the others are gone as well */
    try_next(dial, now_ms, out);
}

static void attempt_connected(struct mu_dial *dial, size_t index, uint64_t now_ms, struct mu_dial_effects *out)
{
    if (dial->since_ms[index] == 0 || dial->greeting)
        return;
    for (size_t i = 0; i < dial->addrs_count; i++)
        dial->since_ms[i] = i == index ? now_ms + (now_ms == 0) : 0;
    dial->under_way = 1;
    dial->greeting = true;
    emit(out, MU_DIAL_GREET, index);
}

static void pass_time(struct mu_dial *dial, uint64_t now_ms, struct mu_dial_effects *out)
{
    for (size_t i = 0; i < dial->addrs_count; i++) {
        if (dial->since_ms[i] == 0 || now_ms < dial->since_ms[i] + MU_DIAL_ATTEMPT_MS)
            continue;
        dial->was_silent = true;
        attempt_failed(dial, i, dial->greeting ? "the port is open, but no store answers" : "no answer", now_ms, out);
    }
    if (dial->started > 0 && dial->started < dial->addrs_count &&
        now_ms >= dial->since_ms[dial->started - 1] + MU_DIAL_OVERLAP_MS)
        try_next(dial, now_ms, out);
}

static void trying(struct mu_dial *dial, const struct mu_dial_event *ev, struct mu_dial_effects *out)
{
    if (ev->type == MU_DIAL_ATTEMPT_CONNECTED) {
        attempt_connected(dial, ev->index, ev->now_ms, out);
    } else if (ev->type == MU_DIAL_ATTEMPT_FAILED) {
        dial->said_no |= ev->refused && dial->since_ms[ev->index] != 0;
        attempt_failed(dial, ev->index, ev->why, ev->now_ms, out);
    } else if (ev->type == MU_DIAL_TIME) {
        pass_time(dial, ev->now_ms, out);
    } else if (ev->type == MU_DIAL_HOPELESS && dial->since_ms[ev->index] != 0) {
        note_address(dial, ev->index, ev->why);
        dial->since_ms[ev->index] = 0;
        fail(dial, ev->now_ms, MUSTER_EPROTOCOL, out);
        return;
    } else if (ev->type == MU_DIAL_ATTEMPT_GREETED && dial->since_ms[ev->index] != 0) {
        dial->refused = false;
        end(dial, MU_DIAL_DONE);
        emit(out, MU_DIAL_SUCCEED, ev->index);
        return;
    }
    if (dial->under_way == 0 && dial->started == dial->addrs_count) {
        emit(out, MU_DIAL_GIVE_UP, 0);
        dial->refused = dial->said_no && !dial->was_silent;
        round_over(dial, ev->now_ms, out);
    } else {
        plan_wake(dial);
    }
}

static void resting(struct mu_dial *dial, const struct mu_dial_event *ev, struct mu_dial_effects *out)
{
    if (ev->type == MU_DIAL_TIME && ev->now_ms >= dial->wake_ms)
        resolve(dial, out);
}

void mu_dial_step(struct mu_dial *dial, const struct mu_dial_event *event, struct mu_dial_effects *out)
{
    bool over = dial->state == MU_DIAL_DONE || dial->state == MU_DIAL_FAILED;

    out->count = 0;
    if (!over && event->type == MU_DIAL_TIME && event->now_ms >= dial->deadline_ms)
        fail(dial, event->now_ms, MUSTER_ECONNECT, out);
    switch (dial->state) {
    case MU_DIAL_RESOLVING:
        resolving(dial, event, out);
        break;
    case MU_DIAL_TRYING:
        trying(dial, event, out);
        break;
    case MU_DIAL_RESTING:
        resting(dial, event, out);
        break;
    case MU_DIAL_DONE:
    case MU_DIAL_FAILED:
        return;
    }
    if (dial->state != MU_DIAL_DONE && dial->state != MU_DIAL_FAILED && event->now_ms >= dial->deadline_ms)
        fail(dial, event->now_ms, MUSTER_ECONNECT, out);
    /* A rest that would outlast the deadline is not worth resting. */
    if (dial->state == MU_DIAL_RESTING && dial->wake_ms >= dial->deadline_ms)
        dial->wake_ms = dial->deadline_ms;
    assert(dial->under_way <= dial->started && dial->started <= dial->addrs_count);
    assert(dial->under_way == 0 || dial->state == MU_DIAL_TRYING);
}

uint64_t mu_dial_deadline_ms(const struct mu_dial *dial)
{
    if (dial->state == MU_DIAL_DONE || dial->state == MU_DIAL_FAILED)
        return UINT64_MAX;
    return dial->wake_ms < dial->deadline_ms ? dial->wake_ms : dial->deadline_ms;
}

size_t mu_dial_known(const char *host, uint16_t port, union mu_addr addrs[static MU_DIAL_ADDRS_MAX])
{
    if (mu_addr_parse(host, port, &addrs[0]))
        return 1;
    if (strcmp(host, "localhost") != 0)
        return 0;
    (void)mu_addr_parse("127.0.0.1", port, &addrs[0]);
    (void)mu_addr_parse("::1", port, &addrs[1]);
    return 2;
}

size_t mu_dial_resolved(const struct addrinfo *list, union mu_addr addrs[static MU_DIAL_ADDRS_MAX])
{
    size_t count = 0;

    for (; list != NULL && count < MU_DIAL_ADDRS_MAX; list = list->ai_next) {
        if (list->ai_family == AF_INET || list->ai_family == AF_INET6)
            memcpy(&addrs[count++], list->ai_addr, list->ai_addrlen);
    }
    return count;
}
