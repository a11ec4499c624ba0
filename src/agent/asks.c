/* Requests to the job's store: what is under way, and what is asked again. See asks.h. */
#include "agent/asks.h"

#include "base/texts.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

MU_DEFINE_TEXTS(mu_ask_kind_text, enum mu_ask_kind, MU_ASK_KINDS)

int mu_asks_init(struct mu_asks *asks, size_t prefix_max, size_t value_max, struct muster_error *reterr)
{
    size_t key_room = prefix_max + MU_ASK_KEY_MAX + 1;

    *asks = (struct mu_asks){ .key_room = key_room, .value_room = value_max };
    asks->room = malloc((key_room + value_max) * MU_ASKS_MAX);
    if (asks->room == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for requests to the store");
    for (size_t i = 0; i < MU_ASKS_MAX; i++) {
        asks->slots[i].key = asks->room + i * (key_room + value_max);
        asks->slots[i].value = asks->slots[i].key + key_room;
    }
    return 0;
}

void mu_asks_done(struct mu_asks *asks)
{
    free(asks->room);
    *asks = (struct mu_asks){ .room = NULL };
}

unsigned mu_asks_free(const struct mu_asks *asks)
{
    return MU_ASKS_MAX - asks->count;
}

static void release(struct mu_asks *asks, struct mu_ask_slot *slot)
{
    assert(asks->count > 0);
    slot->ask = (struct mu_ask){ .id = 0 };
    asks->count--;
}

struct mu_ask_slot *mu_asks_put(struct mu_asks *asks, enum mu_ask_kind kind, unsigned what, int64_t index,
                                struct mu_slice value, const char *key_format, ...)
{
    struct mu_ask_slot *slot = asks->slots;
    va_list args;
    int len;

    assert(asks->count < MU_ASKS_MAX && value.len <= asks->value_room);
    while (slot->ask.id != 0)
        slot++;
    va_start(args, key_format);
    len = vsnprintf(slot->key, asks->key_room, key_format, args);
    va_end(args);
    assert(len > 0 && (size_t)len < asks->key_room);
    slot->ask = (struct mu_ask){ .kind = kind, .id = ++asks->last_id, .key = mu_slice(slot->key, (size_t)len) };
    slot->what = what;
    slot->index = index;
    slot->once = slot->sent = false;
    slot->due_ms = 0;
    slot->retry_ms = MU_ASK_RETRY_MS;
    slot->last.code = 0;
    if (value.len > 0)
        memcpy(slot->value, value.data, value.len);
    slot->ask.value = mu_slice(slot->value, value.len);
    asks->count++;
    return slot;
}

struct mu_ask_slot *mu_asks_expect_nothing(struct mu_ask_slot *slot)
{
    slot->ask.expected = mu_slice_str(MU_ASK_NOTHING);
    return slot;
}

bool mu_answer_is_there(const struct mu_answer *answer)
{
    return answer->error == NULL && answer->value.len > 0 &&
           !mu_slice_equal(answer->value, mu_slice_str(MU_ASK_NOTHING));
}

bool mu_asks_has(const struct mu_asks *asks, unsigned what)
{
    for (size_t i = 0; i < MU_ASKS_MAX; i++) {
        if (asks->slots[i].ask.id != 0 && asks->slots[i].what == what)
            return true;
    }
    return false;
}

void mu_asks_drop(struct mu_asks *asks)
{
    for (size_t i = 0; i < MU_ASKS_MAX; i++) {
        if (asks->slots[i].ask.id != 0)
            release(asks, &asks->slots[i]);
    }
}

void mu_asks_drop_what(struct mu_asks *asks, unsigned what)
{
    for (size_t i = 0; i < MU_ASKS_MAX; i++) {
        if (asks->slots[i].ask.id != 0 && asks->slots[i].what == what)
            release(asks, &asks->slots[i]);
    }
}

bool mu_ask_may_mend(int code)
{
    return code == MUSTER_ETIMEOUT || code == MUSTER_ECONNECT || code == MUSTER_ELOST || code == MUSTER_ERESOLVE ||
           code == MUSTER_ERDZV_CONNECTION;
}

bool mu_asks_emit(struct mu_asks *asks, uint64_t now_ms, uint64_t deadline_ms, struct mu_ask *ret_ask)
{
    uint64_t left_ms = deadline_ms > now_ms ? deadline_ms - now_ms : 1;
    struct mu_ask_slot *next = NULL;

    for (size_t i = 0; i < MU_ASKS_MAX; i++) {
        struct mu_ask_slot *slot = &asks->slots[i];

        if (slot->ask.id != 0 && !slot->sent && slot->due_ms <= now_ms && (next == NULL || slot->ask.id < next->ask.id))
            next = slot;
    }
    if (next == NULL)
        return false;
    if (next->last.code != 0)
        next->ask.id = ++asks->last_id; /* an answer to the earlier one comes too late */
    next->ask.timeout_ms = mu_sooner_ms(next->ask.kind == MU_ASK_GET ? MU_ASK_WAIT_MS : MU_ASK_TIMEOUT_MS, left_ms);
    next->sent = true;
    *ret_ask = next->ask;
    return true;
}

const struct mu_ask_slot *mu_asks_find(const struct mu_asks *asks, uint64_t id)
{
    for (size_t i = 0; id != 0 && i < MU_ASKS_MAX; i++) {
        if (asks->slots[i].ask.id == id && asks->slots[i].sent)
            return &asks->slots[i];
    }
    return NULL;
}

bool mu_asks_answer(struct mu_asks *asks, const struct mu_answer *answer, uint64_t now_ms, struct mu_ask_slot *ret_slot)
{
    for (size_t i = 0; answer->id != 0 && i < MU_ASKS_MAX; i++) {
        struct mu_ask_slot *slot = &asks->slots[i];

        if (slot->ask.id != answer->id || !slot->sent)
            continue;
        if (answer->error != NULL && !slot->once && mu_ask_may_mend(answer->error->code)) {
            slot->last = *answer->error;
            slot->sent = false;
            slot->due_ms = now_ms + slot->retry_ms;
            slot->retry_ms = mu_sooner_ms(2 * slot->retry_ms, MU_ASK_RETRY_MAX_MS);
            return false;
        }
        *ret_slot = *slot;
        release(asks, slot);
        return true;
    }
    return false;
}

uint64_t mu_asks_due_ms(const struct mu_asks *asks)
{
    uint64_t due_ms = UINT64_MAX;

    for (size_t i = 0; i < MU_ASKS_MAX; i++) {
        if (asks->slots[i].ask.id != 0 && !asks->slots[i].sent)
            due_ms = mu_sooner_ms(due_ms, asks->slots[i].due_ms);
    }
    return due_ms;
}

const struct mu_ask_slot *mu_asks_first(const struct mu_asks *asks)
{
    const struct mu_ask_slot *first = NULL;

    for (size_t i = 0; i < MU_ASKS_MAX; i++) {
        const struct mu_ask_slot *slot = &asks->slots[i];

        if (slot->ask.id != 0 && (first == NULL || slot->index < first->index))
            first = slot;
    }
    return first;
}
