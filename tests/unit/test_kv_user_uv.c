/* A user's own back end and store under a dynamic rendezvous: what is called with what, on which terms, and that
 * closing waits for it without holding up the loop. */
#include "asking_uv.h"
#include "failmalloc.h"
#include "kv/kv_user_uv.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

/* A back end in memory whose document is text and whose token is a counter. */
struct memory {
    struct muster_rdzv_backend backend; /* first */
    struct muster_store store;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char document[64];
    unsigned version; /* 0: no document */
    int fails;        /* what every call returns, if not 0 */
    bool says_why;
    unsigned inside, watching, watches, gets; /* calls under way; so far */
    bool held;                                /* get_state waits for this to end */
    char keys[8][32], values[8][32];
};

static struct memory *of_store(struct muster_store *store)
{
    return (struct memory *)(void *)((char *)store - offsetof(struct memory, store));
}

static struct muster_bytes bytes_of(const char *text)
{
    return (struct muster_bytes){ .data = strdup(text), .len = strlen(text) };
}

static int fails(const struct memory *m, struct muster_error *reterr)
{
    if (m->fails != 0 && m->says_why)
        (void)mu_fail(reterr, m->fails, "it is broken");
    return m->fails;
}

static void give(struct memory *m, bool *ret_found, struct muster_bytes *ret_state, struct muster_bytes *ret_token)
{
    char token[16];

    *ret_found = m->version > 0;
    if (m->version == 0)
        return;
    (void)snprintf(token, sizeof token, "%u", m->version);
    *ret_state = bytes_of(m->document);
    *ret_token = bytes_of(token);
}

static int get_state(struct muster_rdzv_backend *backend, bool *ret_found, struct muster_bytes *ret_state,
                     struct muster_bytes *ret_token, struct muster_error *reterr)
{
    struct memory *m = (struct memory *)backend;
    int rc;

    (void)pthread_mutex_lock(&m->lock);
    assert_int_equal(m->inside++, 0); /* one at a time */
    m->gets++;
    while (m->held)
        (void)pthread_cond_wait(&m->changed, &m->lock);
    rc = fails(m, reterr);
    if (rc == 0)
        give(m, ret_found, ret_state, ret_token);
    m->inside--;
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static int set_state(struct muster_rdzv_backend *backend, struct muster_slice state, struct muster_slice token,
                     bool *ret_found, struct muster_bytes *ret_state, struct muster_bytes *ret_token, bool *ret_set,
                     struct muster_error *reterr)
{
    struct memory *m = (struct memory *)backend;
    char now[16];
    int rc;

    (void)pthread_mutex_lock(&m->lock);
    assert_int_equal(m->inside++, 0);
    rc = fails(m, reterr);
    (void)snprintf(now, sizeof now, "%u", m->version);
    *ret_set =
        m->version == 0 ? token.data == NULL : token.len == strlen(now) && memcmp(token.data, now, token.len) == 0;
    if (rc == 0 && *ret_set) {
        (void)snprintf(m->document, sizeof m->document, "%.*s", (int)state.len, (const char *)state.data);
        m->version++;
        (void)pthread_cond_broadcast(&m->changed);
    }
    if (rc == 0)
        give(m, ret_found, ret_state, ret_token);
    m->inside--;
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

/* Has no time limit of its own: a test that leaves one waiting hangs. */
static int watch(struct muster_rdzv_backend *backend, struct muster_slice token, int64_t timeout_ms,
                 struct muster_error *reterr)
{
    struct memory *m = (struct memory *)backend;
    int64_t version = 0;
    int rc;

    assert_true(timeout_ms > 0);
    if (token.data != NULL)
        assert_true(mu_slice_number(mu_slice(token.data, token.len), UINT32_MAX, &version));
    (void)pthread_mutex_lock(&m->lock);
    m->watching++;
    m->watches++;
    while (m->version == version)
        (void)pthread_cond_wait(&m->changed, &m->lock);
    rc = fails(m, reterr);
    m->watching--;
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static size_t find(struct memory *m, struct muster_slice key)
{
    for (size_t i = 0; i < COUNT(m->keys); i++) {
        if (m->keys[i][0] != '\0' && strlen(m->keys[i]) == key.len && memcmp(m->keys[i], key.data, key.len) == 0)
            return i;
    }
    return COUNT(m->keys);
}

static void put(struct memory *m, struct muster_slice key, struct muster_slice value)
{
    size_t at = find(m, key);

    for (size_t i = 0; at == COUNT(m->keys); i++) {
        if (m->keys[i][0] == '\0')
            at = i;
    }
    (void)snprintf(m->keys[at], sizeof m->keys[at], "%.*s", (int)key.len, (const char *)key.data);
    (void)snprintf(m->values[at], sizeof m->values[at], "%.*s", (int)value.len, (const char *)value.data);
    (void)pthread_cond_broadcast(&m->changed);
}

static int store_set(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                     struct muster_error *reterr)
{
    struct memory *m = of_store(store);

    (void)timeout_ms;
    (void)reterr;
    (void)pthread_mutex_lock(&m->lock);
    put(m, key, value);
    (void)pthread_mutex_unlock(&m->lock);
    return 0;
}

static int store_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                     struct muster_bytes *ret_value, struct muster_error *reterr)
{
    struct memory *m = of_store(store);
    struct timespec until;
    bool found;
    int rc = 0;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    until.tv_sec += timeout_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&m->lock);
    while (find(m, key) == COUNT(m->keys) && rc == 0)
        rc = pthread_cond_timedwait(&m->changed, &m->lock, &until);
    found = find(m, key) < COUNT(m->keys);
    if (found)
        *ret_value = bytes_of(m->values[find(m, key)]);
    (void)pthread_mutex_unlock(&m->lock);
    return found ? 0 : mu_fail(reterr, MUSTER_ETIMEOUT, "too late");
}

static int store_add(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
                     int64_t *ret_value, struct muster_error *reterr)
{
    struct memory *m = of_store(store);
    size_t at;
    char text[32];

    (void)timeout_ms;
    (void)reterr;
    (void)pthread_mutex_lock(&m->lock);
    at = find(m, key);
    *ret_value = (at == COUNT(m->keys) ? 0 : strtoll(m->values[at], NULL, 10)) + delta;
    (void)snprintf(text, sizeof text, "%lld", (long long)*ret_value);
    put(m, key, muster_str(text));
    (void)pthread_mutex_unlock(&m->lock);
    return 0;
}

static int store_compare_set(struct muster_store *store, struct muster_slice key, struct muster_slice expected,
                             struct muster_slice desired, int64_t timeout_ms, struct muster_bytes *ret_value,
                             struct muster_error *reterr)
{
    struct memory *m = of_store(store);
    size_t at;

    (void)timeout_ms;
    (void)reterr;
    (void)pthread_mutex_lock(&m->lock);
    at = find(m, key);
    if (at == COUNT(m->keys)
            ? expected.len == 0
            : strlen(m->values[at]) == expected.len && memcmp(m->values[at], expected.data, expected.len) == 0)
        put(m, key, desired);
    *ret_value = bytes_of(m->values[find(m, key)]);
    (void)pthread_mutex_unlock(&m->lock);
    return 0;
}

static int store_check(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                       bool *ret_all_exist, struct muster_error *reterr)
{
    struct memory *m = of_store(store);

    (void)timeout_ms;
    (void)reterr;
    assert_int_equal(count, 1);
    (void)pthread_mutex_lock(&m->lock);
    *ret_all_exist = find(m, keys[0]) < COUNT(m->keys);
    (void)pthread_mutex_unlock(&m->lock);
    return 0;
}

static int store_delete_key(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, bool *ret_deleted,
                            struct muster_error *reterr)
{
    struct memory *m = of_store(store);
    size_t at;

    (void)timeout_ms;
    (void)reterr;
    (void)pthread_mutex_lock(&m->lock);
    at = find(m, key);
    *ret_deleted = at < COUNT(m->keys);
    if (*ret_deleted)
        m->keys[at][0] = '\0';
    (void)pthread_mutex_unlock(&m->lock);
    return 0;
}

static const struct muster_rdzv_backend_ops watching = {
    .size = sizeof watching, .name = "memory", .get_state = get_state, .set_state = set_state, .watch = watch
};
static const struct muster_rdzv_backend_ops blind = {
    .size = offsetof(struct muster_rdzv_backend_ops, watch), /* of an older program */
    .name = "blind",
    .get_state = get_state,
    .set_state = set_state,
    .watch = watch,
};
static const struct muster_store_ops whole = { .size = sizeof whole,
                                               .name = "memory",
                                               .set = store_set,
                                               .get = store_get,
                                               .add = store_add,
                                               .compare_set = store_compare_set,
                                               .check = store_check,
                                               .delete_key = store_delete_key };
static const struct muster_store_ops poor = { .size = sizeof poor, .name = "poor", .set = store_set, .get = store_get };

struct scene {
    struct asking a; /* first */
    struct memory m;
};

static void begin_within(struct scene *s, const struct muster_rdzv_backend_ops *ops,
                         const struct muster_store_ops *store_ops, uint64_t patience_ms)
{
    memset(s, 0, sizeof *s);
    asking_begin(&s->a);
    s->m.backend.ops = ops;
    s->m.store.ops = store_ops;
    s->m.store.timeout_ms = QUICK_MS;
    (void)pthread_mutex_init(&s->m.lock, NULL);
    (void)pthread_cond_init(&s->m.changed, NULL);
    assert_int_equal(mu_kv_user_start(&s->a.loop, &s->m.backend, &s->m.store, "job", patience_ms, &s->a.kv, NULL), 0);
}

static void begin_with(struct scene *s, const struct muster_rdzv_backend_ops *ops,
                       const struct muster_store_ops *store_ops)
{
    begin_within(s, ops, store_ops, 0);
}

static void begin(struct scene *s)
{
    begin_with(s, &watching, &whole);
}

/* Lets go of every watch and every read. */
static void stir(struct scene *s)
{
    (void)pthread_mutex_lock(&s->m.lock);
    s->m.version++;
    s->m.held = false;
    (void)pthread_cond_broadcast(&s->m.changed);
    (void)pthread_mutex_unlock(&s->m.lock);
}

static unsigned count_of(struct scene *s, const unsigned *counter)
{
    unsigned count;

    (void)pthread_mutex_lock(&s->m.lock);
    count = *counter;
    (void)pthread_mutex_unlock(&s->m.lock);
    return count;
}

static void await(struct scene *s, const unsigned *counter, unsigned count)
{
    while (count_of(s, counter) != count) {
        (void)uv_run(&s->a.loop, UV_RUN_NOWAIT);
        (void)poll(NULL, 0, 1);
    }
}

static void end(struct scene *s)
{
    asking_end(&s->a);
    (void)pthread_mutex_destroy(&s->m.lock);
    (void)pthread_cond_destroy(&s->m.changed);
}

/* ---- The document ---- */

static void documents_are_read_and_written_with_their_tokens(void **state)
{
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    assert_string_equal(s.a.kv->ops->name, "memory");
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ, .number = 9 });
    assert_ok(answer);
    assert_false(answer->found);
    assert_int_equal(answer->number, 0);
    answer = ask(&s.a, asking_write("one", NULL));
    assert_true(answer->written && answer->found);
    assert_bytes(&answer->bytes, "one");
    assert_bytes(&answer->state_token, "1");
    (void)ask_at(&s.a, 1, asking_write("two", &answer->state_token));
    assert_true(answer_at(&s.a, 1)->written);
    answer = ask(&s.a, asking_write("three", NULL)); /* there is one already */
    assert_ok(answer);
    assert_false(answer->written);
    assert_true(answer->found);
    assert_bytes(&answer->bytes, "two");
    assert_bytes(&answer->state_token, "2");
    end(&s);
}

static void requests_are_carried_out_one_after_the_other(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    s.m.held = true;
    for (size_t i = 0; i < 4; i++)
        (void)ask_at(&s.a, i, (struct mu_kv_request){ .kind = MU_KV_READ });
    (void)ask_at(&s.a, 4, asking_write("x", NULL));
    (void)ask_at(&s.a, 5,
                 (struct mu_kv_request){ .kind = MU_KV_SET, .key = muster_str("k"), .value = muster_str("v") });
    assert_ok(answer_at(&s.a, 5)); /* the store does not wait for the document */
    assert_int_equal(s.a.done[0] + s.a.done[4], 0);
    (void)pthread_mutex_lock(&s.m.lock);
    s.m.held = false;
    (void)pthread_cond_broadcast(&s.m.changed);
    (void)pthread_mutex_unlock(&s.m.lock);
    for (size_t i = 0; i < 4; i++)
        assert_false(answer_at(&s.a, i)->found);
    assert_true(answer_at(&s.a, 4)->written);
    end(&s);
}

static void what_the_back_end_says_is_passed_on(void **state)
{
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    s.m.fails = MUSTER_ERDZV_STATE;
    s.m.says_why = true;
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
    assert_int_equal(answer->rc, MUSTER_ERDZV_STATE);
    assert_string_equal(answer->error.text, "read the document: it is broken");
    assert_false(answer->gone);
    s.m.fails = MUSTER_ECONNECT; /* without a connection it does not matter what for */
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
    assert_string_equal(answer->error.text, "it is broken");
    s.m.says_why = false;
    s.m.fails = MUSTER_ELOST;
    answer = ask(&s.a, asking_write("x", NULL));
    assert_int_equal(answer->rc, MUSTER_ELOST);
    assert_string_equal(answer->error.text, "write the document: connection lost");
    s.m.fails = 7;
    answer = ask(&s.a, asking_write("x", NULL));
    assert_int_equal(answer->rc, MUSTER_EINTERNAL);
    assert_string_equal(answer->error.text, "write the document: the call returned 7; expected 0 or an error");
    end(&s);
}

/* ---- Watching ---- */

static void a_watch_is_for_the_last_token_seen(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_true(s.a.kv->ops->has_bell);
    assert_false(s.a.kv->ops->has_turns);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK, .number = 5 }); /* for there being a document */
    await(&s, &s.m.watching, 1);
    assert_true(ask(&s.a, asking_write("x", NULL))->written);
    assert_ok(answer_at(&s.a, 1));
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK });
    await(&s, &s.m.watches, 2);
    assert_ok(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_RING })); /* nothing to it */
    assert_int_equal(s.a.done[1], 0);
    stir(&s);
    assert_ok(answer_at(&s.a, 1));
    s.m.fails = MUSTER_ELOST;
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK }); /* returns at once: the token is an old one */
    assert_int_equal(answer_at(&s.a, 1)->rc, MUSTER_ELOST);
    end(&s);
}

static void a_new_watch_ends_the_old_one_at_once(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK });
    await(&s, &s.m.watching, 1);
    (void)ask_at(&s.a, 2, (struct mu_kv_request){ .kind = MU_KV_PARK });
    assert_int_equal(answer_at(&s.a, 1)->rc, MUSTER_ECANCELED);
    (void)ask_at(&s.a, 3, (struct mu_kv_request){ .kind = MU_KV_PARK });
    assert_int_equal(answer_at(&s.a, 2)->rc, MUSTER_ECANCELED);
    assert_int_equal(count_of(&s, &s.m.watches), 1); /* one watch has served them all */
    stir(&s);
    assert_ok(answer_at(&s.a, 3));
    end(&s);
}

static void a_watch_for_another_token_follows_the_old_one(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK });
    await(&s, &s.m.watching, 1);
    (void)pthread_mutex_lock(&s.m.lock);
    s.m.version = 3; /* changed, but the watch has not been told yet */
    (void)pthread_mutex_unlock(&s.m.lock);
    assert_true(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ })->found);
    (void)ask_at(&s.a, 2, (struct mu_kv_request){ .kind = MU_KV_PARK });
    assert_int_equal(answer_at(&s.a, 1)->rc, MUSTER_ECANCELED);
    (void)pthread_mutex_lock(&s.m.lock);
    s.m.version = 4;
    (void)pthread_mutex_unlock(&s.m.lock);
    assert_true(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ })->found);
    (void)ask_at(&s.a, 3, (struct mu_kv_request){ .kind = MU_KV_PARK }); /* the one before it had not begun */
    assert_int_equal(answer_at(&s.a, 2)->rc, MUSTER_ECANCELED);
    assert_int_equal(count_of(&s, &s.m.watches), 1);
    (void)pthread_mutex_lock(&s.m.lock);
    (void)pthread_cond_broadcast(&s.m.changed);
    (void)pthread_mutex_unlock(&s.m.lock);
    await(&s, &s.m.watches, 2);
    assert_int_equal(s.a.done[3], 0);
    stir(&s);
    assert_ok(answer_at(&s.a, 3));
    end(&s);
}

static void what_the_back_end_lacks_is_said(void **state)
{
    struct scene s;

    (void)state;
    begin_with(&s, &blind, &poor);
    assert_false(s.a.kv->ops->has_bell || s.a.kv->ops->has_settle || s.a.kv->ops->has_turns);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_PARK })->rc, MUSTER_ENOTSUP);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_SETTLE })->rc, MUSTER_ENOTSUP);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_TURN_TAKE })->rc, MUSTER_ENOTSUP);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_TURN_WAIT })->rc, MUSTER_ENOTSUP);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_TURN_GIVE })->rc, MUSTER_ENOTSUP);
    assert_ok(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_RING }));
    assert_ok(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_HOST }));
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_PROBE })->rc, MUSTER_ENOTSUP);
    assert_false(s.a.requests[0].found);
    end(&s);
}

/* ---- The store ---- */

static void the_store_is_the_users(void **state)
{
    const struct muster_slice key = muster_str("k");
    struct scene s;

    (void)state;
    begin(&s);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_GET, .key = key });
    assert_false(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_CHECK, .key = key })->found);
    assert_ok(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_SET, .key = key, .value = muster_str("4") }));
    assert_bytes(&answer_at(&s.a, 1)->bytes, "4");
    assert_true(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_CHECK, .key = key })->found);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_ADD, .key = key, .number = 3 })->number, 7);
    assert_bytes(&ask(&s.a,
                      (struct mu_kv_request){
                          .kind = MU_KV_COMPARE_SET, .key = key, .token = muster_str("7"), .value = muster_str("8") })
                      ->bytes,
                 "8");
    assert_true(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_DELETE, .key = key })->found);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_GET, .key = key, .timeout_ms = 1 })->rc,
                     MUSTER_ETIMEOUT);
    end(&s);
}

static void the_first_digest_of_a_round_stays(void **state)
{
    struct mu_kv_request what = { .kind = MU_KV_SETTLE, .number = 12, .value = muster_str("ours") };
    struct scene s;

    (void)state;
    begin(&s);
    assert_true(s.a.kv->ops->has_settle);
    assert_bytes(&ask(&s.a, what)->bytes, "ours");
    what.value = muster_str("theirs");
    assert_bytes(&ask(&s.a, what)->bytes, "ours");
    assert_bytes(
        &ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("muster.job/world/12") })->bytes,
        "ours");
    end(&s);
}

static void a_store_of_this_library_settles_too(void **state)
{
    struct muster_store *prefix = NULL;
    struct mu_kv_request what = { .kind = MU_KV_SETTLE, .number = 12, .value = muster_str("ours") };
    struct scene s;

    (void)state;
    memset(&s, 0, sizeof s);
    asking_begin(&s.a);
    s.m.backend.ops = &watching;
    s.m.store.ops = &whole;
    s.m.store.timeout_ms = QUICK_MS;
    (void)pthread_mutex_init(&s.m.lock, NULL);
    (void)pthread_cond_init(&s.m.changed, NULL);
    assert_int_equal(muster_store_prefix_new(muster_str("p"), &s.m.store, &prefix, NULL), 0);
    assert_int_equal(mu_kv_user_start(&s.a.loop, &s.m.backend, prefix, "job", 0, &s.a.kv, NULL), 0);
    assert_bytes(&ask(&s.a, what)->bytes, "ours"); /* it can */
    assert_true(s.a.kv->ops->has_settle);          /* ... and says so */
    end(&s);
    muster_store_free(prefix);
}

/* ---- Ending ---- */

static void closing_cancels_what_has_not_begun_and_waits_for_the_rest(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    s.m.held = true;
    for (size_t i = 0; i < 3; i++)
        (void)ask_at(&s.a, i, (struct mu_kv_request){ .kind = MU_KV_READ });
    (void)ask_at(&s.a, 3, (struct mu_kv_request){ .kind = MU_KV_PARK });
    (void)ask_at(&s.a, 4, (struct mu_kv_request){ .kind = MU_KV_RING });
    await(&s, &s.m.gets, 1);
    await(&s, &s.m.watching, 1);
    s.a.done[4] = 0;
    s.a.inside = true;
    s.a.kv->ops->close(s.a.kv, on_kv_closed, &s.a);
    s.a.inside = false;
    for (int i = 0; i < 5; i++)
        (void)uv_run(&s.a.loop, UV_RUN_NOWAIT); /* the loop goes on */
    assert_int_equal(s.a.kv_closed, 0);
    stir(&s);
    RUN_UNTIL(&s.a, s.a.kv_closed > 0);
    assert_int_equal(s.a.done[0], 1);
    assert_int_equal(s.a.requests[0].rc, 0);
    for (size_t i = 1; i < 3; i++) {
        assert_int_equal(s.a.done[i], 1);
        assert_int_equal(s.a.requests[i].rc, MUSTER_ECANCELED);
    }
    assert_int_equal(s.a.done[3], 1);
    end(&s);
}

/* In a thread that was left behind: static, for it may still be about to give the lock back. */
static void a_call_that_does_not_return_is_left_behind(void **state)
{
    static struct scene s;
    char token[] = "1";

    (void)state;
    begin_within(&s, &watching, &whole, 1);
    s.m.version = 1;
    s.m.held = true;
    (void)ask_at(&s.a, 0, (struct mu_kv_request){ .kind = MU_KV_READ });
    (void)ask_at(
        &s.a, 1,
        (struct mu_kv_request){
            .kind = MU_KV_WRITE, .value = muster_str("later"), .token = muster_str(token), .has_token = true });
    await(&s, &s.m.gets, 1);
    s.a.kv->ops->close(s.a.kv, on_kv_closed, &s.a);
    RUN_UNTIL(&s.a, s.a.kv_closed > 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(s.a.done[i], 1);
        assert_int_equal(s.a.requests[i].rc, MUSTER_ECANCELED);
    }
    asking_end(&s.a);
    stir(&s); /* it comes back, and frees what is left */
    while (count_of(&s, &s.m.inside) > 0)
        (void)poll(NULL, 0, 1);
    assert_int_equal(count_of(&s, &s.m.version), 2); /* the write was not made */
}

/* The test's store carries out one call after the other, and a get waits in it. */
static void a_get_that_waits_lets_others_through(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    (void)ask_at(&s.a, 0, (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("a") });
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("b") });
    (void)ask_at(&s.a, 2,
                 (struct mu_kv_request){ .kind = MU_KV_SET, .key = muster_str("b"), .value = muster_str("2") });
    assert_ok(answer_at(&s.a, 2));
    assert_string_equal(answer_at(&s.a, 1)->bytes.data, "2");
    assert_int_equal(s.a.done[0], 0);
    (void)ask_at(&s.a, 2,
                 (struct mu_kv_request){ .kind = MU_KV_SET, .key = muster_str("a"), .value = muster_str("1") });
    assert_ok(answer_at(&s.a, 2));
    assert_string_equal(answer_at(&s.a, 0)->bytes.data, "1");
    end(&s);
}

static void one_that_was_never_asked_is_closed(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    end(&s);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct scene s;
        struct mu_kv_request *answer;

        fail_alloc_at(0);
        begin(&s);
        s.m.version = 1;
        fail_alloc_at(n);
        answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_SETTLE, .value = muster_str("d") });
        assert_true(answer->rc == 0 || answer->rc == MUSTER_ENOMEM);
        (void)ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
        stir(&s);
        (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK });
        (void)ask_at(&s.a, 2, (struct mu_kv_request){ .kind = MU_KV_PARK });
        (void)answer_at(&s.a, 1);
        (void)answer_at(&s.a, 2);
        end(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_read_and_written_with_their_tokens),
        cmocka_unit_test(requests_are_carried_out_one_after_the_other),
        cmocka_unit_test(what_the_back_end_says_is_passed_on),
        cmocka_unit_test(a_watch_is_for_the_last_token_seen),
        cmocka_unit_test(a_new_watch_ends_the_old_one_at_once),
        cmocka_unit_test(a_watch_for_another_token_follows_the_old_one),
        cmocka_unit_test(what_the_back_end_lacks_is_said),
        cmocka_unit_test(the_store_is_the_users),
        cmocka_unit_test(the_first_digest_of_a_round_stays),
        cmocka_unit_test(a_store_of_this_library_settles_too),
        cmocka_unit_test(closing_cancels_what_has_not_begun_and_waits_for_the_rest),
        cmocka_unit_test(a_call_that_does_not_return_is_left_behind),
        cmocka_unit_test(a_get_that_waits_lets_others_through),
        cmocka_unit_test(one_that_was_never_asked_is_closed),
        cmocka_unit_test(any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
