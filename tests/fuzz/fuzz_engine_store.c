/* What a store sends to the client of an engine. Any bytes, to a client that is ready; and then the same bytes as a
 * program: requests, losses, time, answers to what the client has sent, and bytes that are none. Each request is
 * answered at most once, nothing is told after the end, and the client never wants the time at once. Once more by one
 * with a token: nothing but HELLO is sent before the store has asked for a proof.
 *
 * Each step of the program is: a byte that says what happens, a length, and so many bytes. */
#include "kv/engine_store.h"
#include "store/frames.h"
#include "store/session.h"

#include <stdlib.h>

enum { STEPS_MAX = 200, IDS_MAX = 256, PROBE_BYTES = 5 + 1 + 16 + sizeof MU_SESSION_PROBE - 1 };

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

struct scene {
    struct mu_engine_store *store;
    uint64_t now_ms;
    const struct mu_token *token;
    bool linked, probed, proven, ended;
    uint32_t ids[MU_FRAMES_COUNT]; /* of the last frame of that type */
    bool open[IDS_MAX];            /* the request of that id is not answered */
    unsigned next_id, open_count;
    uint64_t loads[2]; /* by scope: the last LOAD */
    uint64_t take;     /* whose lease is there; 0: none */
};

static void close_id(struct scene *s, uint64_t id)
{
    s->open_count -= s->open[id];
    s->open[id] = false;
}

static void hear(struct scene *s, const struct mu_fold_event *event)
{
    EXPECT(!s->ended);
    if (event->type == MU_FOLD_ON_LEASE_LOST) {
        EXPECT(event->id == s->take && event->error != NULL);
        s->take = 0;
    }
    for (size_t i = 0; i < event->count; i++) /* all of it can be read */
        EXPECT(event->kvs[i].key.len <= MU_ENGINE_KEY_MAX &&
               (event->kvs[i].value.len == 0 || event->kvs[i].value.data[0] == event->kvs[i].value.data[0]));
    if (event->id == 0 || event->type == MU_FOLD_ON_LEASED || event->type == MU_FOLD_ON_LEASE_LOST)
        return;
    EXPECT(event->id < IDS_MAX && s->open[event->id]);
    close_id(s, event->id);
}

static void see_sent(struct scene *s, struct mu_slice bytes)
{
    EXPECT(bytes.len == 0 || s->linked);
    if (!s->probed && bytes.len >= PROBE_BYTES) {
        bytes = mu_slice(bytes.data + PROBE_BYTES, bytes.len - PROBE_BYTES);
        s->probed = true;
    }
    while (bytes.len > 0) {
        struct mu_arena arena = { .bytes_max = 16u << 20 };
        size_t len = mu_frame_length(bytes);
        struct mu_frame frame;

        EXPECT(len >= MU_FRAME_HEAD_BYTES && len <= bytes.len);
        EXPECT(mu_frame_read(mu_slice(bytes.data, len), &arena, &frame, NULL) == 0);
        s->ids[frame.type] = frame.id;
        s->proven = s->proven || frame.proof.len > 0;
        EXPECT(s->token == NULL ? frame.proof.len == 0 : s->proven || frame.type == MU_FRAME_HELLO);
        mu_arena_done(&arena);
        bytes = mu_slice(bytes.data + len, bytes.len - len);
    }
}

static void pump(struct scene *s)
{
    struct mu_engine_store_output output;

    do {
        output = mu_engine_store_next(s->store);
        if (output.type == MU_ENGINE_STORE_EVENT)
            hear(s, output.event);
        if (output.type == MU_ENGINE_STORE_DISCONNECT)
            s->linked = false;
        see_sent(s, mu_buf_slice(&output.bytes));
        mu_buf_done(&output.bytes);
    } while (output.type != MU_ENGINE_STORE_NOTHING && output.type != MU_ENGINE_STORE_END);
    EXPECT(mu_engine_store_deadline_ms(s->store) > s->now_ms);
}

static void request(struct scene *s, struct mu_slice bytes)
{
    static const struct mu_fold_op op = { MU_FOLD_PUT, { "k", 1 }, { "v", 1 }, 7 };
    struct mu_fold_write write = { .ops = &op, .ops_count = 1, .repeatable = bytes.len > 2 && bytes.data[2] & 1 };
    unsigned kind = bytes.len > 0 ? (unsigned char)bytes.data[0] : 0;
    struct mu_fold_effect effect = { .type = (enum mu_fold_effect_type)(kind % MU_FOLD_DO_TELL),
                                     .scope = bytes.len > 1 && bytes.data[1] & 1 ? MU_FOLD_NODES : MU_FOLD_JOB,
                                     .key = mu_slice("k", 1),
                                     .lease = 7,
                                     .lease_take = s->take,
                                     .write = &write,
                                     .value = mu_slice("m", bytes.len > 2 && bytes.data[2] & 2 ? 1 : 0) };
    bool takes = effect.type == MU_FOLD_DO_TAKE_LEASE, drops = effect.type == MU_FOLD_DO_DROP_LEASE;

    if (s->ended || s->next_id == IDS_MAX || s->open_count > 16 || (takes && s->take != 0) || (drops && s->take == 0))
        return;
    effect.id = s->next_id++;
    if (takes || drops)
        s->take = takes ? effect.id : 0;
    if (!takes && effect.type != MU_FOLD_DO_UNWATCH && effect.type != MU_FOLD_DO_UNMARK) {
        s->open[effect.id] = true;
        s->open_count++;
    }
    if (effect.type == MU_FOLD_DO_UNWATCH || effect.type == MU_FOLD_DO_LOAD)
        close_id(s, s->loads[effect.scope]);
    if (effect.type == MU_FOLD_DO_LOAD)
        s->loads[effect.scope] = effect.id;
    mu_engine_store_request(s->store, &effect, UINT64_MAX, s->now_ms);
}

static void receive(struct scene *s, struct mu_slice bytes)
{
    enum mu_engine_store_state state = mu_engine_store_state(s->store);

    if (s->linked && state != MU_ENGINE_STORE_CONNECTING)
        mu_engine_store_received(s->store, bytes, s->now_ms);
}

/* To the last frame of some type. */
static void answer(struct scene *s, struct mu_slice bytes)
{
    unsigned to = bytes.len > 0 ? (unsigned char)bytes.data[0] % MU_FRAME_WELCOME : 0;
    unsigned with = bytes.len > 1 ? (unsigned char)bytes.data[1] : 0;
    struct mu_engine_kv kv = { .key = mu_slice("key", 3), .value = bytes, .create = with };
    struct mu_engine_change change = { .kv = kv, .deleted = with & 1 };
    bool challenges = mu_engine_store_state(s->store) == MU_ENGINE_STORE_KNOCKING && with % 8 != 7;
    struct mu_frame frame = { .type = to == MU_FRAME_HELLO && challenges                            ? MU_FRAME_CHALLENGE
                                      : to == MU_FRAME_HELLO && with < 200                          ? MU_FRAME_WELCOME
                                      : (to == MU_FRAME_LOAD || to == MU_FRAME_RANGE) && with < 200 ? MU_FRAME_KVS
                                      : to == MU_FRAME_UNWATCH                                      ? MU_FRAME_EVENTS
                                                                                                    : MU_FRAME_DONE,
                              .id = to == MU_FRAME_UNWATCH ? 0 : s->ids[to],
                              .version = 1,
                              .epoch = with / 16,
                              .code = with < 200 ? 0 : with % 11,
                              .nonce = mu_slice_str("0123456789abcdef0123456789abcdef"),
                              .more = with & 1,
                              .held = with & 2,
                              .watch = with & 1,
                              .last = s->ids[MU_FRAME_TXN] - (with & 3),
                              .kvs = &kv,
                              .kvs_count = with & 4 ? 1 : 0,
                              .changes = &change,
                              .changes_count = 1 };
    struct mu_buf out = { 0 };

    if (mu_frame_write(&frame, &out, MU_FRAME_BYTES_MAX) == 0)
        receive(s, mu_buf_slice(&out));
    mu_buf_done(&out);
}

static void link_up(struct scene *s)
{
    union mu_addr peer;

    if (mu_engine_store_state(s->store) != MU_ENGINE_STORE_CONNECTING || !mu_addr_parse("10.0.0.1", 1, &peer))
        return;
    s->linked = true;
    s->probed = s->proven = false;
    mu_engine_store_connected(s->store, &peer, s->now_ms);
}

static void lose(struct scene *s)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "lost" };

    if (!s->linked)
        return;
    s->linked = false;
    mu_engine_store_disconnected(s->store, &error, s->now_ms);
}

static void step(struct scene *s, unsigned what, struct mu_slice bytes)
{
    switch (what % 16) {
    case 0:
        s->now_ms += bytes.len * 100;
        mu_engine_store_time(s->store, s->now_ms);
        break;
    case 1:
        link_up(s);
        break;
    case 2:
        lose(s);
        break;
    case 3:
        receive(s, mu_slice("\0", 1));
        break;
    case 4:
        if (what < 32 && !s->ended) {
            s->ended = true;
            mu_engine_store_end(s->store, s->now_ms);
        }
        break;
    case 5:
    case 6:
    case 7:
        receive(s, bytes);
        break;
    case 8:
    case 9:
    case 10:
    case 11:
        request(s, bytes);
        break;
    default:
        answer(s, bytes);
        break;
    }
    pump(s);
}

static bool begin(struct scene *s, const struct mu_token *token)
{
    struct mu_engine_store_config config = { .endpoint = "h:1",
                                             .run_id = "job",
                                             .node = "n",
                                             .lease_ms = 3000,
                                             .job_lease_ms = 9000,
                                             .seed = 1,
                                             .token = token };

    *s = (struct scene){ .token = token, .store = mu_engine_store_new(&config), .now_ms = 1000, .next_id = 1 };
    return s->store != NULL;
}

static void to_one_that_is_ready(struct mu_slice bytes)
{
    static const char load[] = { MU_FOLD_DO_LOAD, 0 }, take[] = { MU_FOLD_DO_TAKE_LEASE, 0 }, hello[] = { 0, 16 };
    struct scene s;

    if (!begin(&s, NULL))
        return;
    step(&s, 8, mu_slice(take, sizeof take));
    step(&s, 8, mu_slice(load, sizeof load));
    step(&s, 1, mu_slice("", 0));
    step(&s, 3, mu_slice("", 0));
    step(&s, 12, mu_slice(hello, sizeof hello));
    EXPECT(mu_engine_store_state(s.store) == MU_ENGINE_STORE_READY);
    step(&s, 5, bytes);
    mu_engine_store_free(s.store);
}

static void run_program(const uint8_t *data, size_t size, const struct mu_token *token)
{
    struct scene s;

    if (!begin(&s, token))
        return;
    for (unsigned i = 0; i < STEPS_MAX && size >= 2; i++) {
        size_t len = data[1] < size - 2 ? data[1] : size - 2;

        step(&s, data[0], mu_slice(data + 2, len));
        data += 2 + len;
        size -= 2 + len;
    }
    mu_engine_store_free(s.store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_token token = { 0 };

    mu_token_init(&token, mu_slice_str("correct horse battery staple"));
    to_one_that_is_ready(mu_slice(data, size));
    run_program(data, size, NULL);
    run_program(data, size, &token);
    return 0;
}
