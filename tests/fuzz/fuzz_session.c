/* Several sessions of one store, driven by an input that is a little program.
 *
 * The first byte chooses what peers older than 2.2 are taken for, and one of two games:
 *  - a program: each step feeds bytes to a session, whole requests or parts of them, closes one, lets time pass, or
 *    makes one read slowly. After each step the store must be consistent; at the end nothing may be left of it.
 *  - a stream: the rest of the input goes to one session whole and to another, of a second store, in pieces. Both must
 *    hear the same. */
#include "base/error.h"
#include "store/session.h"

#include <stdlib.h>

enum { SESSIONS = 4, STEPS_MAX = 64, STREAM_BYTES_MAX = 512, REQUEST_BYTES_MAX = 256, READS_ALL = -1 };

static const struct muster_store_limits limits = { .key_bytes = 16,
                                                   .value_bytes = 48,
                                                   .keys = 6,
                                                   .request_bytes = REQUEST_BYTES_MAX,
                                                   .unsent_bytes = 1,
                                                   .connections = 1,
                                                   .total_bytes = 3000 };
static const struct mu_hash_seed seed = { 1, 2 };
static const unsigned char validate[] = { 0x00, 0xCE, 0xF7, 0x85, 0x3C };

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

/* The fuzzer is to be led by what the store does, not by what this file does. */
#ifdef __clang__
#define UNSEEN __attribute__((no_sanitize("coverage", "undefined")))
#else
#define UNSEEN
#endif

struct peer {
    struct mu_session session;
    bool here;
    long reads;     /* bytes until it is dropped, or READS_ALL */
    uint64_t heard; /* bytes */
    uint64_t hash;  /* of all of them */
    unsigned char last;
};

struct scene {
    struct mu_service service;
    struct peer peers[SESSIONS];
    uint64_t now_ms;
};

struct input {
    const uint8_t *data;
    size_t len;
};

UNSEEN static unsigned take(struct input *in)
{
    if (in->len == 0)
        return 0;
    in->len--;
    return *in->data++;
}

UNSEEN static struct mu_slice take_some(struct input *in, size_t len)
{
    struct mu_slice some = mu_slice(in->data, len < in->len ? len : in->len);

    in->data += some.len;
    in->len -= some.len;
    return some;
}

UNSEEN static void on_send(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    struct peer *peer = MU_LIST_ITEM(session, struct peer, session);

    EXPECT(peer->here && !session->dead);
    EXPECT(count > 0);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < parts[i].len; j++) {
            peer->last = (unsigned char)parts[i].data[j];
            peer->hash = (peer->hash ^ peer->last) * 0x100000001b3;
        }
        peer->heard += parts[i].len;
        if (peer->reads != READS_ALL)
            peer->reads = peer->reads > (long)parts[i].len ? peer->reads - (long)parts[i].len : 0;
    }
    if (peer->reads == 0)
        session->dead = true;
}

UNSEEN static void scene_init(struct scene *s, enum mu_dialect legacy, uint64_t total_bytes)
{
    struct muster_store_limits own = limits;

    own.total_bytes = total_bytes;
    memset(s, 0, sizeof *s);
    mu_service_init(&s->service, &own, legacy, seed, on_send);
}

UNSEEN static void joins(struct scene *s, size_t who)
{
    struct peer *peer = &s->peers[who];

    *peer = (struct peer){ .here = true, .reads = READS_ALL };
    mu_session_init(&peer->session, &s->service);
}

UNSEEN static void leaves(struct scene *s, size_t who)
{
    struct peer *peer = &s->peers[who];
    uint64_t heard = peer->heard;

    mu_session_leave(&peer->session);
    EXPECT(peer->heard == heard); /* a farewell is not answered */
    EXPECT(peer->session.charged == 0 && peer->session.unread.data == NULL);
    peer->here = false;
}

/* Whoever failed or does not read is replaced by a newcomer, as a driver does it: when the event is over. */
UNSEEN static void bury(struct scene *s, size_t failed)
{
    for (size_t i = 0; i < SESSIONS; i++) {
        if (i == failed || s->peers[i].session.dead) {
            leaves(s, i);
            joins(s, i);
        }
    }
}

UNSEEN static void check(const struct scene *s)
{
    size_t keys = 0, charged = 0;

    EXPECT(s->service.budget.used <= s->service.budget.max);
    EXPECT(s->service.transit.used <= s->service.transit.max);
    EXPECT(mu_list_empty(&s->service.table.woken));
    for (const struct mu_entry *e = mu_table_next(&s->service.table, NULL); e != NULL;
         e = mu_table_next(&s->service.table, e))
        keys++;
    EXPECT(keys == s->service.table.keys);
    for (size_t i = 0; i < SESSIONS; i++) {
        const struct mu_session *session = &s->peers[i].session;

        EXPECT(session->charged == session->unread.cap);
        EXPECT(session->unread.len <= REQUEST_BYTES_MAX);
        charged += session->charged;
    }
    EXPECT(charged <= s->service.transit.used);
}

UNSEEN static bool feeds(struct scene *s, size_t who, struct mu_slice bytes)
{
    struct muster_error err;
    int rc;

    err.code = 0;
    rc = mu_session_feed(&s->peers[who].session, bytes, s->now_ms, &err);
    EXPECT((rc < 0) == (err.code < 0));
    bury(s, rc < 0 ? who : SESSIONS);
    return rc == 0;
}

/* ---- Whole requests ---- */

UNSEEN static size_t put_key(char *at, unsigned choice)
{
    size_t len = choice % 5 == 4 ? 0 : 1 + choice % 3;

    mu_put_u64(at, len);
    memset(at + 8, "abcd"[choice % 4], len);
    return 8 + len;
}

UNSEEN static size_t put_value(char *at, unsigned choice)
{
    size_t len = choice % (unsigned)(limits.value_bytes + 1);

    mu_put_u64(at, len);
    memset(at + 8, '0' + (int)(choice % 10), len);
    return 8 + len;
}

/* A request that can be read, of the operation and with the fields that the input chooses. */
UNSEEN static size_t put_request(char *at, enum mu_op op, enum mu_dialect dialect, struct input *in)
{
    static const char *const fields[] = {
#define X(name, l0, l1, v, fields_) [MU_OP_##name] = fields_,
        MU_OPS(X)
#undef X
    };
    size_t len = 1;
    int code = mu_op_code(op, dialect);

    at[0] = (char)(code < 0 ? mu_op_code(MU_OP_ADD, dialect) : code);
    for (const char *f = fields[code < 0 ? MU_OP_ADD : op]; *f != '\0'; f++) {
        unsigned count = *f == 'l' || *f == 'p' ? take(in) % 4 : 0;

        switch (*f) {
        case 'k':
            len += put_key(at + len, take(in));
            break;
        case 'v':
            len += put_value(at + len, take(in));
            break;
        case 'u':
            mu_put_u32(at + len, take(in));
            len += 4;
            break;
        case 'n':
            mu_put_u64(at + len, (uint64_t)(int64_t)(int8_t)take(in));
            len += 8;
            break;
        default:
            mu_put_u64(at + len, count);
            len += 8;
            for (; count > 0; count--) {
                len += put_key(at + len, take(in));
                if (*f == 'p')
                    len += put_value(at + len, take(in) % 16);
            }
            break;
        }
    }
    return len;
}

static enum mu_dialect dialect_of(const struct peer *peer)
{
    enum mu_dialect dialect = peer->session.codec.dialect;

    return dialect == MU_DIALECT_UNKNOWN || dialect == MU_DIALECT_L ? MU_DIALECT_L1 : dialect;
}

/* One request to a session that is between two of them; `part` of 256 of it. Replies of known size are checked. */
static void request(struct scene *s, size_t who, struct input *in, unsigned part)
{
    struct peer *peer = &s->peers[who];
    enum mu_op op = (enum mu_op)(take(in) % (MU_OP_BARRIER + 1));
    bool between = peer->session.unread.len == 0 && peer->session.codec.dialect == MU_DIALECT_V &&
                   peer->reads == READS_ALL && op != MU_OP_VALIDATE && op != MU_OP_WATCH_KEY;
    uint64_t heard = peer->heard, requests = s->service.requests;
    char bytes[2 * REQUEST_BYTES_MAX];
    size_t len;

    len = put_request(bytes, op, dialect_of(peer), in);
    EXPECT(len <= REQUEST_BYTES_MAX);
    if (!feeds(s, who, mu_slice(bytes, len * (part + 1) / 256)) || !between || part != 255)
        return;
    EXPECT(s->service.requests == requests + 1);
    heard = peer->heard - heard;
    switch (op) {
    case MU_OP_PING:
        EXPECT(heard == 4);
        break;
    case MU_OP_NUM_KEYS:
    case MU_OP_QUEUE_LEN:
    case MU_OP_DELETE_KEY:
        EXPECT(heard == 8);
        break;
    case MU_OP_CHECK:
        EXPECT(heard == 1 && peer->last <= 1);
        break;
    case MU_OP_CANCEL_WAIT:
        EXPECT(heard == 1 && peer->last == MU_WAIT_CANCELED);
        EXPECT(peer->session.peer.missing == 0);
        break;
    case MU_OP_WAIT:
    case MU_OP_BARRIER:
        EXPECT(heard == (peer->session.peer.missing == 0));
        break;
    case MU_OP_SET:
    case MU_OP_APPEND:
    case MU_OP_MULTI_SET:
    case MU_OP_QUEUE_PUSH:
        EXPECT(heard <= 1); /* its own wake-up */
        break;
    default:
        break;
    }
}

/* ---- Steps of a program ---- */

static void pass_time(struct scene *s, unsigned ms)
{
    s->now_ms += ms;
    for (size_t i = 0; i < SESSIONS; i++) {
        uint64_t deadline_ms = mu_session_deadline_ms(&s->peers[i].session);

        if (deadline_ms != 0 && s->now_ms >= deadline_ms) {
            (void)feeds(s, i, mu_slice(NULL, 0));
            EXPECT(mu_session_deadline_ms(&s->peers[i].session) == 0);
        }
    }
}

static void step(struct scene *s, struct input *in)
{
    unsigned what = take(in);
    size_t who = what % SESSIONS;
    struct mu_slice bytes;

    switch (what / SESSIONS % 8) {
    case 0:
        (void)feeds(s, who, take_some(in, take(in)));
        break;
    case 1:
        bytes = take_some(in, take(in));
        for (size_t i = 0; i < bytes.len && feeds(s, who, mu_slice(bytes.data + i, 1)); i++)
            continue;
        break;
    case 2:
    case 3:
        request(s, who, in, 255);
        break;
    case 4:
        request(s, who, in, take(in));
        break;
    case 5:
        leaves(s, who);
        joins(s, who);
        if (what & 0x80)
            (void)feeds(s, who, mu_slice(validate, sizeof validate));
        break;
    case 6:
        pass_time(s, take(in));
        break;
    default:
        s->peers[who].reads = (long)take(in) + 1;
        break;
    }
}

static void run_program(enum mu_dialect legacy, struct input *in)
{
    static struct scene s;

    scene_init(&s, legacy, limits.total_bytes);
    for (size_t i = 0; i < SESSIONS; i++) {
        joins(&s, i);
        if (i < SESSIONS / 2)
            (void)feeds(&s, i, mu_slice(validate, sizeof validate));
    }
    for (size_t steps = 0; in->len > 0 && steps < STEPS_MAX; steps++) {
        step(&s, in);
        check(&s);
    }
    for (size_t i = 0; i < SESSIONS; i++)
        leaves(&s, i);
    mu_service_done(&s.service); /* asserts that all has been given back */
}

/* ---- Streams ---- */

static int run_stream(struct scene *s, enum mu_dialect legacy, struct mu_slice bytes, size_t piece)
{
    struct muster_error err = { 0 };
    int rc = 0;

    scene_init(s, legacy, 0);
    joins(s, 0);
    for (size_t at = 0; at < bytes.len && rc == 0; at += piece) {
        size_t len = bytes.len - at < piece ? bytes.len - at : piece;

        rc = mu_session_feed(&s->peers[0].session, mu_slice(bytes.data + at, len), 0, &err);
    }
    leaves(s, 0);
    mu_service_done(&s->service);
    return err.code;
}

static void compare_streams(enum mu_dialect legacy, size_t piece, struct mu_slice bytes)
{
    static struct scene whole, cut;
    int whole_code = run_stream(&whole, legacy, bytes, bytes.len + 1);
    int cut_code = run_stream(&cut, legacy, bytes, piece);

    EXPECT(whole_code == cut_code);
    EXPECT(whole.peers[0].heard == cut.peers[0].heard);
    EXPECT(whole.peers[0].hash == cut.peers[0].hash);
    EXPECT(whole.service.requests == cut.service.requests);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum mu_dialect legacies[] = { MU_DIALECT_L, MU_DIALECT_L0, MU_DIALECT_L1, MU_DIALECT_L };
    struct input in = { data, size };
    unsigned first = take(&in);
    enum mu_dialect legacy = legacies[first % 4];

    if (first & 4)
        compare_streams(legacy, 1 + (first >> 3) % 8, take_some(&in, STREAM_BYTES_MAX));
    else
        run_program(legacy, &in);
    return 0;
}
