/* Any bytes: read as frames, and what is read is written again byte for byte. Then the same bytes, and parts of them,
 * go to the sessions of an engine; at the end nothing may be left of it. All that once more where there is a token,
 * which nobody in here can have.
 *
 * Each step of the program is: a byte that picks a session and what happens to it, a length, and so many bytes. */
#include "store/engine_session.h"

#include <stdlib.h>

enum { SESSIONS = 3, STEPS_MAX = 64 };

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static unsigned sends;

/* Every third leaves something unsent. What comes behind pages are several frames. */
static bool on_send(struct mu_engine_session *session, struct mu_slice bytes)
{
    EXPECT(!session->dead && bytes.len > 0);
    while (bytes.len > 0) {
        size_t len = mu_frame_length(bytes);

        EXPECT(len >= MU_FRAME_HEAD_BYTES && len <= bytes.len);
        bytes = mu_slice(bytes.data + len, bytes.len - len);
    }
    return ++sends % 3 != 0;
}

static void on_drop(struct mu_engine_session *session, const char *why)
{
    EXPECT(why[0] != '\0');
    session->dead = true;
}

static void read_and_write(struct mu_slice bytes)
{
    struct mu_arena arena = { .bytes_max = 16u << 20 };
    struct mu_buf out = { 0 };
    struct mu_frame frame;

    if (mu_frame_read(bytes, &arena, &frame, NULL) == 0) {
        EXPECT(mu_frame_write(&frame, &out, MU_FRAME_BYTES_MAX) == 0);
        EXPECT(mu_slice_equal(mu_buf_slice(&out), bytes));
    }
    mu_buf_done(&out);
    mu_arena_done(&arena);
}

static const struct mu_engine_ends ends = { "1.2.3.4:5", "1.2.3.4", "1.2.3.1", NULL };
static const struct mu_engine_ends guarded = { "1.2.3.4:5", "1.2.3.4", "1.2.3.1", "0123456789abcdef0123456789abcdef" };

struct scene {
    struct mu_budget budget, transit;
    struct mu_engine_host host;
    struct mu_engine_session sessions[SESSIONS];
    uint64_t now_ms;
};

static void renew(struct scene *s, struct mu_engine_session *session, bool cut)
{
    mu_engine_session_leave(session, cut, s->now_ms);
    mu_engine_session_init(session, &s->host, s->host.token != NULL ? &guarded : &ends);
}

static void step(struct scene *s, unsigned what, struct mu_slice bytes)
{
    struct mu_engine_session *session = &s->sessions[what % SESSIONS];

    switch (what / SESSIONS % 8) {
    case 0:
        renew(s, session, what & 128);
        break;
    case 1:
        s->now_ms += bytes.len * 100;
        break;
    case 2:
        mu_engine_session_sent(session);
        mu_engine_host_turn(&s->host, s->now_ms, s->now_ms);
        break;
    default:
        if (mu_engine_session_feed(session, bytes, s->now_ms, NULL) < 0 || session->dead)
            renew(s, session, true);
        break;
    }
    mu_engine_check(s->host.engine);
    for (unsigned i = 0; i < SESSIONS && s->host.token != NULL; i++)
        EXPECT(s->sessions[i].peer.job == NULL); /* nobody guesses a proof */
}

static void run_program(const uint8_t *data, size_t size, const struct mu_token *token)
{
    struct scene s = { .budget = { .max = 20000 }, .transit = { .max = 20000 }, .now_ms = 1000 };
    struct mu_engine_host_config config = {
        .budget = &s.budget, .transit = &s.transit, .node = "host", .token = token, .send = on_send, .drop = on_drop
    };

    sends = 0;
    if (mu_engine_host_init(&s.host, &config) < 0)
        return;
    for (unsigned i = 0; i < SESSIONS; i++)
        mu_engine_session_init(&s.sessions[i], &s.host, token != NULL ? &guarded : &ends);
    for (unsigned i = 0; i < STEPS_MAX && size >= 2; i++) {
        size_t len = data[1] < size - 2 ? data[1] : size - 2;

        step(&s, data[0], mu_slice(data + 2, len));
        data += 2 + len;
        size -= 2 + len;
    }
    for (unsigned i = 0; i < SESSIONS; i++)
        mu_engine_session_leave(&s.sessions[i], false, s.now_ms);
    mu_engine_host_done(&s.host);
    EXPECT(s.budget.used == 0 && s.transit.used == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_token token = { 0 };

    mu_token_init(&token, mu_slice_str("correct horse battery staple"));
    read_and_write(mu_slice(data, size));
    run_program(data, size, NULL);
    run_program(data, size, &token);
    return 0;
}
