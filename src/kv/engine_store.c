/* The client of an engine: its connection, and what is due when. See engine_store.h. An event from outside changes what
 * it concerns; then settle() looks at what is due now: requests whose time is up, a peer that is silent, a connection
 * to be made, and what can be sent. */
#include "kv/engine_store_parts.h"

#include "base/texts.h"
#include "store/codec.h"
#include "store/session.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(MU_RDZV_RUN_ID_MAX <= MU_ENGINE_RUN_ID_MAX, "a job with a long name cannot say HELLO");

MU_DEFINE_TEXTS(mu_engine_store_state_text, enum mu_engine_store_state, MU_ENGINE_STORE_STATES)

bool mu_es_is_ending(const struct mu_engine_store *s)
{
    return s->state == MU_ENGINE_STORE_ENDING || s->state == MU_ENGINE_STORE_ENDED;
}

bool mu_es_speaks_frames(const struct mu_engine_store *s)
{
    return s->state == MU_ENGINE_STORE_KNOCKING || s->state == MU_ENGINE_STORE_GREETING ||
           s->state == MU_ENGINE_STORE_ATTACHING || s->state == MU_ENGINE_STORE_READY ||
           s->state == MU_ENGINE_STORE_ENDING;
}

/* ---- The connection ---- */

void mu_es_become(struct mu_engine_store *s, enum mu_engine_store_state state)
{
    static const unsigned follows[] = {
#define TO(name) (1u << MU_ENGINE_STORE_##name)
        [MU_ENGINE_STORE_DOWN] = TO(CONNECTING) | TO(ENDED),
        [MU_ENGINE_STORE_CONNECTING] = TO(DOWN) | TO(PROBING) | TO(ENDED),
        [MU_ENGINE_STORE_PROBING] = TO(DOWN) | TO(KNOCKING) | TO(GREETING) | TO(ENDED),
        [MU_ENGINE_STORE_KNOCKING] = TO(DOWN) | TO(GREETING) | TO(ENDED),
        [MU_ENGINE_STORE_GREETING] = TO(DOWN) | TO(ATTACHING) | TO(READY) | TO(ENDING) | TO(ENDED),
        [MU_ENGINE_STORE_ATTACHING] = TO(DOWN) | TO(READY) | TO(ENDED),
        [MU_ENGINE_STORE_READY] = TO(DOWN) | TO(ENDING) | TO(ENDED),
        [MU_ENGINE_STORE_ENDING] = TO(ENDED),
        [MU_ENGINE_STORE_ENDED] = 0,
#undef TO
    };

    assert(follows[s->state] & 1u << state);
    s->state = state;
    if (state == MU_ENGINE_STORE_DOWN || state == MU_ENGINE_STORE_ENDED)
        s->in.len = s->out.len = 0;
    assert(state != MU_ENGINE_STORE_KNOCKING || s->token.is_there);
    assert(state != MU_ENGINE_STORE_ATTACHING || (s->attach_id != 0 && mu_es_has_lease(s)));
    assert(state != MU_ENGINE_STORE_READY || (s->attach_id == 0 && s->has_epoch));
}

/* A transaction that the lost connection took can be asked for only under the lease that it was made with. */
static void unsend(struct mu_engine_store *s, struct request *r)
{
    mu_es_begin_anew(r);
    if (r->type == MU_FOLD_DO_WRITE && mu_es_has_lease(s) && r->lease == s->lease.id)
        r->progress = DOUBTFUL;
    else if (r->type == MU_FOLD_DO_WRITE && !r->repeatable)
        mu_es_fail(s, r, MU_ENGINE_OK, false, &s->why);
}

/* There is no connection any more, because of s->why. */
static void go_down(struct mu_engine_store *s)
{
    mu_es_become(s, MU_ENGINE_STORE_DOWN);
    s->retry_at_ms = s->now_ms + mu_rng_jitter(&s->rng, MU_ENGINE_STORE_RETRY_MS, 50);
    s->hello_id = s->attach_id = s->grant_id = s->keep_id = 0;
    if (s->lease.state == LEASE_ASKED)
        s->lease.state = LEASE_WANTED;
    for (int scope = 0; scope < SCOPES; scope++) {
        if (!s->watched[scope])
            continue;
        s->watched[scope] = false;
        mu_es_tell(s, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = (enum mu_fold_scope)scope }, NULL);
    }
    MU_LIST_EACH_LEAVING (struct request, r, &s->requests, link)
        if (r->progress == SENT)
            unsend(s, r);
}

static void want_none(struct mu_engine_store *s)
{
    s->wish = s->wish == MU_ENGINE_STORE_CONNECT ? MU_ENGINE_STORE_NOTHING : MU_ENGINE_STORE_DISCONNECT;
}

void mu_es_hang_up(struct mu_engine_store *s)
{
    want_none(s);
    if (s->state == MU_ENGINE_STORE_ENDING)
        mu_es_become(s, MU_ENGINE_STORE_ENDED);
    else
        go_down(s);
}

void mu_es_refuse_all(struct mu_engine_store *s)
{
    mu_es_hang_up(s);
    if (s->lease.state != LEASE_NONE)
        mu_es_lose_lease(s, false, true, &s->why);
    MU_LIST_EACH_LEAVING (struct request, r, &s->requests, link)
        mu_es_fail(s, r, MU_ENGINE_OK, true, &s->why);
}

static size_t put_probe(char *to)
{
    static const char key[] = MU_SESSION_PROBE;
    size_t len = 0;

    to[len++] = (char)mu_op_code(MU_OP_VALIDATE, MU_DIALECT_V);
    mu_put_u32(to + len, MU_MAGIC);
    len += 4;
    to[len++] = (char)mu_op_code(MU_OP_CHECK, MU_DIALECT_V);
    mu_put_u64(to + len, 1);
    mu_put_u64(to + len + 8, sizeof key - 1);
    len += 16;
    memcpy(to + len, key, sizeof key - 1);
    return len + sizeof key - 1;
}

static void send_hello(struct mu_engine_store *s, struct mu_slice proof)
{
    s->hello_id = mu_es_send_frame(s, (struct mu_frame){ .type = MU_FRAME_HELLO,
                                                         .version_min = 1,
                                                         .version_max = MU_FRAME_VERSION,
                                                         .run_id = mu_slice_str(s->run_id),
                                                         .node = mu_slice_str(s->node),
                                                         .proof = proof,
                                                         .only = s->only });
}

static void greet(struct mu_engine_store *s, struct mu_slice proof)
{
    mu_es_become(s, MU_ENGINE_STORE_GREETING);
    send_hello(s, proof);
    if (mu_es_has_lease(s))
        s->attach_id = mu_es_send_frame(s, (struct mu_frame){ .type = MU_FRAME_ATTACH, .lease = s->lease.id });
    if (s->hello_id != 0 && (s->attach_id != 0 || !mu_es_has_lease(s)))
        return;
    (void)mu_fail(&s->why, MUSTER_ENOMEM, "the store at %s: no memory for a request", s->peer);
    mu_es_hang_up(s);
}

void mu_es_greet(struct mu_engine_store *s)
{
    if (!s->token.is_there) {
        greet(s, mu_slice("", 0));
        return;
    }
    mu_es_become(s, MU_ENGINE_STORE_KNOCKING);
    send_hello(s, mu_slice("", 0));
    if (s->hello_id != 0)
        return;
    (void)mu_fail(&s->why, MUSTER_ENOMEM, "the store at %s: no memory for a request", s->peer);
    mu_es_hang_up(s);
}

void mu_es_greet_with(struct mu_engine_store *s, struct mu_slice nonce)
{
    char proof[MU_TOKEN_PROOF_BYTES];

    assert(s->state == MU_ENGINE_STORE_KNOCKING);
    mu_token_prove(&s->token, nonce, mu_slice_str(s->run_id), mu_slice_str(s->node), proof);
    greet(s, mu_slice(proof, sizeof proof));
}

void mu_es_be_ready(struct mu_engine_store *s)
{
    mu_es_become(s, MU_ENGINE_STORE_READY);
    s->why.code = 0;
    if (s->in_trouble)
        mu_es_tell(s, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE }, NULL);
    s->in_trouble = s->told_refused = false;
}

/* ---- What is due ---- */

static bool is_wanted(const struct mu_engine_store *s)
{
    return s->lease.state != LEASE_NONE || !mu_list_empty(&s->requests);
}

/* When this connection, or the try to make one, is given up if nothing comes. */
static uint64_t patience_ends_ms(const struct mu_engine_store *s)
{
    switch (s->state) {
    case MU_ENGINE_STORE_CONNECTING:
    case MU_ENGINE_STORE_PROBING:
    case MU_ENGINE_STORE_KNOCKING:
    case MU_ENGINE_STORE_GREETING:
    case MU_ENGINE_STORE_ATTACHING:
    case MU_ENGINE_STORE_ENDING:
        return s->until_ms;
    case MU_ENGINE_STORE_READY:
        return mu_es_is_awaiting(s) ? s->quiet_since_ms + s->lease_ms : UINT64_MAX;
    case MU_ENGINE_STORE_DOWN:
    case MU_ENGINE_STORE_ENDED:
        break;
    }
    return UINT64_MAX;
}

static void judge_peer(struct mu_engine_store *s)
{
    if (s->now_ms < patience_ends_ms(s))
        return;
    (void)mu_fail(&s->why, MUSTER_ETIMEOUT, "the store at %s does not answer (%s)", s->peer,
                  mu_engine_store_state_text(s->state));
    mu_es_hang_up(s);
}

static void connect_if_due(struct mu_engine_store *s)
{
    if (s->state != MU_ENGINE_STORE_DOWN || !is_wanted(s) || s->now_ms < s->retry_at_ms)
        return;
    assert(s->wish == MU_ENGINE_STORE_NOTHING);
    mu_es_become(s, MU_ENGINE_STORE_CONNECTING);
    (void)snprintf(s->peer, sizeof s->peer, "%s", s->endpoint);
    s->until_ms = s->now_ms + MU_ENGINE_STORE_ATTEMPT_MS;
    s->wish = MU_ENGINE_STORE_CONNECT;
}

static void judge_trouble(struct mu_engine_store *s)
{
    bool is_told = s->in_trouble && (s->told_refused || !s->is_refused);
    bool is_fine = s->state == MU_ENGINE_STORE_READY || !is_wanted(s) || is_told;
    struct muster_error error;

    if (is_fine)
        s->trouble_at_ms = UINT64_MAX;
    else if (s->trouble_at_ms == UINT64_MAX)
        s->trouble_at_ms = s->now_ms + (s->in_trouble ? 0 : MU_ENGINE_STORE_TROUBLE_MS);
    if (s->now_ms < s->trouble_at_ms)
        return;
    error = mu_es_timed_out(s);
    s->in_trouble = true;
    s->told_refused = s->is_refused;
    s->trouble_at_ms = UINT64_MAX;
    mu_es_tell(s,
               (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE,
                                       .gone = s->is_refused,
                                       .ago_ms = s->heard_ms > 0 ? s->now_ms - s->heard_ms : 0 },
               &error);
}

static void settle(struct mu_engine_store *s)
{
    if (!mu_es_is_ending(s))
        mu_es_expire(s);
    judge_peer(s);
    if (mu_es_is_ending(s))
        return;
    if (s->state == MU_ENGINE_STORE_ATTACHING && s->attach_id == 0)
        mu_es_be_ready(s); /* the lease was given up meanwhile */
    connect_if_due(s);
    if (mu_es_may_send(s) && !mu_es_send_due(s)) {
        (void)mu_fail(&s->why, MUSTER_ENOMEM, "the store at %s: no memory for a request", s->peer);
        mu_es_hang_up(s);
    }
    judge_trouble(s);
}

static uint64_t earlier(uint64_t a_ms, uint64_t b_ms)
{
    return a_ms < b_ms ? a_ms : b_ms;
}

uint64_t mu_engine_store_deadline_ms(const struct mu_engine_store *s)
{
    uint64_t at_ms = patience_ends_ms(s);

    if (mu_es_is_ending(s))
        return at_ms;
    MU_LIST_EACH (struct request, r, &s->requests, link)
        at_ms = earlier(at_ms, r->deadline_ms);
    if (s->lease.state == LEASE_WANTED || s->lease.state == LEASE_ASKED)
        at_ms = earlier(at_ms, s->lease.until_ms);
    if (s->state == MU_ENGINE_STORE_DOWN && is_wanted(s))
        at_ms = earlier(at_ms, s->retry_at_ms);
    return earlier(at_ms, earlier(mu_es_keep_at_ms(s), s->trouble_at_ms));
}

/* ---- From outside ---- */

void mu_engine_store_request(struct mu_engine_store *s, const struct mu_fold_effect *effect, uint64_t until_ms,
                             uint64_t now_ms)
{
    assert(!mu_es_is_ending(s));
    s->now_ms = now_ms;
    mu_es_ask(s, effect, until_ms);
    settle(s);
}

void mu_engine_store_connected(struct mu_engine_store *s, const union mu_addr *peer, uint64_t now_ms)
{
    char probe[MU_ENGINE_STORE_WILL_MAX], text[MU_ADDR_TEXT_MAX];

    assert(s->state == MU_ENGINE_STORE_CONNECTING && s->wish == MU_ENGINE_STORE_NOTHING);
    s->now_ms = now_ms;
    s->is_refused = false;
    s->address = *peer;
    if (strcmp(mu_addr_format(peer, text), s->endpoint) != 0)
        (void)snprintf(s->peer, sizeof s->peer, "%s (%s)", s->endpoint, text);
    mu_es_become(s, MU_ENGINE_STORE_PROBING);
    if (mu_buf_append(&s->out, probe, put_probe(probe), OUT_MAX) < 0) {
        (void)mu_fail(&s->why, MUSTER_ENOMEM, "the store at %s: no memory for a request", s->peer);
        mu_es_hang_up(s);
    }
    settle(s);
}

void mu_engine_store_received(struct mu_engine_store *s, struct mu_slice bytes, uint64_t now_ms)
{
    struct muster_error error;

    assert(s->state == MU_ENGINE_STORE_PROBING || mu_es_speaks_frames(s));
    s->now_ms = s->quiet_since_ms = s->heard_ms = now_ms;
    if (mu_es_take_bytes(s, bytes, &error) < 0) {
        s->why = error;
        mu_es_hang_up(s);
    }
    settle(s);
}

void mu_engine_store_disconnected(struct mu_engine_store *s, const struct muster_error *error, uint64_t now_ms)
{
    assert(s->state != MU_ENGINE_STORE_DOWN && s->state != MU_ENGINE_STORE_ENDED);
    s->now_ms = now_ms;
    if (error == NULL)
        (void)mu_fail(&s->why, MUSTER_ELOST, "the store at %s closed the connection", s->peer);
    else
        s->why = *error;
    if (error != NULL && s->state != MU_ENGINE_STORE_CONNECTING) /* that error says who was tried */
        (void)mu_wrap(&s->why, error->code, "the store at %s", s->peer);
    if (s->state == MU_ENGINE_STORE_ENDING)
        mu_es_become(s, MU_ENGINE_STORE_ENDED);
    else
        go_down(s);
    settle(s);
}

void mu_engine_store_refused(struct mu_engine_store *s, const struct muster_error *error, uint64_t now_ms)
{
    assert(s->state == MU_ENGINE_STORE_CONNECTING && error != NULL);
    s->is_refused = true;
    mu_engine_store_disconnected(s, error, now_ms);
}

void mu_engine_store_time(struct mu_engine_store *s, uint64_t now_ms)
{
    s->now_ms = now_ms;
    settle(s);
}

void mu_engine_store_end(struct mu_engine_store *s, uint64_t now_ms)
{
    assert(!mu_es_is_ending(s));
    s->now_ms = now_ms;
    mu_es_forget_all(s);
    if (mu_es_may_send(s) && s->lease.state != LEASE_NONE && s->lease.state != LEASE_WANTED)
        s->end_id = mu_es_send_frame(s, (struct mu_frame){ .type = MU_FRAME_REVOKE, .lease = s->lease.id });
    if (s->end_id != 0) {
        mu_es_become(s, MU_ENGINE_STORE_ENDING);
        s->until_ms = now_ms + MU_ENGINE_STORE_REVOKE_MS;
        return;
    }
    if (s->state != MU_ENGINE_STORE_DOWN)
        want_none(s);
    mu_es_become(s, MU_ENGINE_STORE_ENDED);
}

/* ---- Out ---- */

struct mu_engine_store_output mu_engine_store_next(struct mu_engine_store *s)
{
    struct mu_engine_store_output output = { .event = mu_es_next_event(s) };

    assert(output.event == NULL || !mu_es_is_ending(s));
    assert(s->wish == MU_ENGINE_STORE_NOTHING || s->out.len == 0); /* bytes are of the connection that is there */
    if (output.event != NULL) {
        output.type = MU_ENGINE_STORE_EVENT;
    } else if (s->wish != MU_ENGINE_STORE_NOTHING) {
        output.type = s->wish;
        s->wish = MU_ENGINE_STORE_NOTHING;
    } else if (s->out.len > 0) {
        output.type = MU_ENGINE_STORE_BYTES;
        output.bytes = s->out;
        s->out = (struct mu_buf){ 0 };
    } else if (s->state == MU_ENGINE_STORE_ENDED) {
        output.type = MU_ENGINE_STORE_END;
    }
    return output;
}

enum mu_engine_store_state mu_engine_store_state(const struct mu_engine_store *s)
{
    return s->state;
}

const char *mu_engine_store_local_address(const struct mu_engine_store *s)
{
    return s->local;
}

bool mu_engine_store_will(const struct mu_engine_store *s, const struct mu_fold_op *mark, union mu_addr *ret_addr,
                          char ret_bytes[static MU_ENGINE_STORE_WILL_MAX], size_t *ret_len)
{
    struct mu_frame revoke = {
        .type = MU_FRAME_REVOKE,
        .id = 1,
        .lease = s->lease.id,
        .secret = mu_slice(s->secret, sizeof s->secret),
        .mark = { .kind = MU_ENGINE_PUT, .key = mark->key, .value = mark->value, .lease = (uint64_t)mark->lease },
    };
    struct mu_buf frame = { 0 };
    size_t len = put_probe(ret_bytes);
    bool fits;

    if (!mu_es_has_lease(s) || s->address.any.sa_family == 0)
        return false;
    fits = mu_frame_write(&revoke, &frame, MU_ENGINE_STORE_WILL_MAX - len) == 0;
    if (fits) {
        memcpy(ret_bytes + len, frame.data, frame.len);
        *ret_len = len + frame.len;
        *ret_addr = s->address;
    }
    mu_buf_done(&frame);
    return fits;
}

/* ---- Beginning and end ---- */

struct mu_engine_store *mu_engine_store_new(const struct mu_engine_store_config *config)
{
    struct mu_engine_store *s = calloc(1, sizeof *s);

    assert(strlen(config->run_id) <= MU_RDZV_RUN_ID_MAX && config->lease_ms > 0 && config->job_lease_ms > 0);
    if (s == NULL)
        return NULL;
    s->notes_room = 2 * NOTES_RESERVE;
    s->notes = calloc(s->notes_room, sizeof s->notes[0]);
    if (s->notes == NULL) {
        free(s);
        return NULL;
    }
    s->lease_ms = config->lease_ms;
    s->job_lease_ms = config->job_lease_ms;
    s->renew_ms = config->renew_ms;
    s->only = config->only;
    s->rng = mu_rng_seeded(config->seed);
    memcpy(s->secret, config->will_secret, sizeof s->secret);
    if (config->token != NULL)
        s->token = *config->token;
    (void)snprintf(s->run_id, sizeof s->run_id, "%s", config->run_id);
    (void)snprintf(s->node, sizeof s->node, "%s", config->node);
    (void)snprintf(s->endpoint, sizeof s->endpoint, "%s", config->endpoint);
    (void)snprintf(s->peer, sizeof s->peer, "%s", config->endpoint);
    s->trouble_at_ms = UINT64_MAX;
    mu_list_init(&s->requests);
    mu_list_init(&s->unused);
    for (size_t i = 0; i < MU_ENGINE_STORE_REQUESTS_MAX; i++)
        mu_list_push(&s->unused, &s->slots[i].link);
    return s;
}

void mu_engine_store_free(struct mu_engine_store *s)
{
    if (s == NULL)
        return;
    mu_es_forget_all(s);
    (void)mu_es_next_event(s); /* the last one goes */
    free(s->notes);
    mu_buf_done(&s->in);
    mu_buf_done(&s->out);
    mu_token_wipe(&s->token);
    free(s);
}
