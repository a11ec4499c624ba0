/* Prefix views over a store of a user's own: which keys arrive there, and what comes back. */
#include "failmalloc.h"
#include "muster.h"
#include "pure.h"
#include "store/store.h"

#include <stdio.h>

struct recorder {
    struct muster_store base;
    char trace[1024];
    char last_key[32]; /* with its NULs */
    size_t last_len;
    const char *const *listed; /* what list_keys gives, NULL-terminated */
};

static struct recorder *self(struct muster_store *store)
{
    return (struct recorder *)store;
}

static int note(struct muster_store *store, const char *name, struct muster_slice key, int64_t timeout_ms)
{
    char *trace = self(store)->trace;

    self(store)->last_len = key.len < sizeof self(store)->last_key ? key.len : sizeof self(store)->last_key;
    if (key.len > 0)
        memcpy(self(store)->last_key, key.data, self(store)->last_len);

    (void)snprintf(trace + strlen(trace), sizeof self(store)->trace - strlen(trace), "%s%s %.*s (%lld)",
                   trace[0] == '\0' ? "" : "; ", name, (int)key.len, key.len == 0 ? "" : (const char *)key.data,
                   (long long)timeout_ms);
    return 0;
}

static int note_all(struct muster_store *store, const char *name, const struct muster_slice *keys, size_t count,
                    int64_t timeout_ms)
{
    if (count == 0)
        return note(store, name, muster_str("none"), timeout_ms);
    for (size_t i = 0; i < count; i++)
        (void)note(store, name, keys[i], timeout_ms);
    return 0;
}

static int give_bytes(const char *text, struct muster_bytes *ret_bytes)
{
    ret_bytes->data = strdup(text);
    ret_bytes->len = strlen(text);
    return ret_bytes->data == NULL ? MUSTER_ENOMEM : 0;
}

static int rec_set(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                   struct muster_error *reterr)
{
    (void)reterr;
    (void)value;
    return note(store, "set", key, timeout_ms);
}

static int rec_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                   struct muster_bytes *ret_value, struct muster_error *reterr)
{
    (void)reterr;
    (void)note(store, "get", key, timeout_ms);
    return give_bytes("got", ret_value);
}

static int rec_add(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
                   int64_t *ret_value, struct muster_error *reterr)
{
    (void)reterr;
    *ret_value = delta;
    return note(store, "add", key, timeout_ms);
}

static int rec_compare_set(struct muster_store *store, struct muster_slice key, struct muster_slice expected,
                           struct muster_slice desired, int64_t timeout_ms, struct muster_bytes *ret_value,
                           struct muster_error *reterr)
{
    (void)reterr;
    (void)expected;
    (void)desired;
    (void)note(store, "compare_set", key, timeout_ms);
    return give_bytes("swapped", ret_value);
}

static int rec_check(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                     bool *ret_all_exist, struct muster_error *reterr)
{
    (void)reterr;
    *ret_all_exist = true;
    return note_all(store, "check", keys, count, timeout_ms);
}

static int rec_wait(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                    struct muster_error *reterr)
{
    (void)reterr;
    return note_all(store, "wait", keys, count, timeout_ms);
}

static int rec_delete_key(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, bool *ret_deleted,
                          struct muster_error *reterr)
{
    (void)reterr;
    *ret_deleted = true;
    return note(store, "delete_key", key, timeout_ms);
}

static int rec_num_keys(struct muster_store *store, int64_t timeout_ms, int64_t *ret_count, struct muster_error *reterr)
{
    (void)reterr;
    *ret_count = 17;
    return note(store, "num_keys", muster_str("-"), timeout_ms);
}

static int rec_append(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                      int64_t timeout_ms, struct muster_error *reterr)
{
    (void)reterr;
    (void)value;
    return note(store, "append", key, timeout_ms);
}

static int rec_multi_get(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                         struct muster_values *ret_values, struct muster_error *reterr)
{
    (void)reterr;
    *ret_values = (struct muster_values){ 0 };
    return note_all(store, "multi_get", keys, count, timeout_ms);
}

static int rec_multi_set(struct muster_store *store, const struct muster_slice *keys, const struct muster_slice *values,
                         size_t count, int64_t timeout_ms, struct muster_error *reterr)
{
    (void)reterr;
    (void)values;
    return note_all(store, "multi_set", keys, count, timeout_ms);
}

static int rec_queue_push(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                          int64_t timeout_ms, struct muster_error *reterr)
{
    (void)reterr;
    (void)value;
    return note(store, "queue_push", key, timeout_ms);
}

static int rec_queue_pop(struct muster_store *store, struct muster_slice key, bool block, int64_t timeout_ms,
                         struct muster_bytes *ret_value, struct muster_error *reterr)
{
    (void)reterr;
    (void)note(store, block ? "queue_pop block" : "queue_pop", key, timeout_ms);
    return give_bytes("popped", ret_value);
}

static int rec_queue_len(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, int64_t *ret_len,
                         struct muster_error *reterr)
{
    (void)reterr;
    *ret_len = 3;
    return note(store, "queue_len", key, timeout_ms);
}

static int rec_list_keys(struct muster_store *store, int64_t timeout_ms, struct muster_values *ret_keys,
                         struct muster_error *reterr)
{
    const char *const *listed = self(store)->listed;
    struct muster_values keys = { 0 };

    (void)reterr;
    while (listed[keys.count] != NULL)
        keys.count++;
    keys.items = calloc(keys.count + 1, sizeof *keys.items);
    for (size_t i = 0; i < keys.count; i++)
        (void)give_bytes(listed[i], &keys.items[i]);
    *ret_keys = keys;
    return note(store, "list_keys", muster_str("-"), timeout_ms);
}

static int rec_barrier(struct muster_store *store, struct muster_slice key, int64_t world_size, int64_t timeout_ms,
                       struct muster_error *reterr)
{
    (void)reterr;
    (void)world_size;
    return note(store, "barrier", key, timeout_ms);
}

static int rec_ping(struct muster_store *store, int64_t timeout_ms, struct muster_error *reterr)
{
    (void)reterr;
    return note(store, "ping", muster_str("-"), timeout_ms);
}

static void rec_free(struct muster_store *store)
{
    (void)note(store, "free", muster_str("-"), 0);
}

static const struct muster_store_ops recorder_ops = {
    .size = sizeof recorder_ops,
    .name = "recorder",
    .set = rec_set,
    .get = rec_get,
    .add = rec_add,
    .compare_set = rec_compare_set,
    .check = rec_check,
    .wait = rec_wait,
    .delete_key = rec_delete_key,
    .num_keys = rec_num_keys,
    .append = rec_append,
    .multi_get = rec_multi_get,
    .multi_set = rec_multi_set,
    .queue_push = rec_queue_push,
    .queue_pop = rec_queue_pop,
    .queue_len = rec_queue_len,
    .list_keys = rec_list_keys,
    .barrier = rec_barrier,
    .ping = rec_ping,
    .free = rec_free,
};

static struct muster_store *view_of(struct muster_store *inner, const char *prefix)
{
    struct muster_store *view = NULL;

    assert_int_equal(muster_store_prefix_new(muster_str(prefix), inner, &view, NULL), 0);
    return view;
}

/* Takes what was recorded. */
static const char *recorded(struct recorder *rec)
{
    static char text[sizeof rec->trace];

    memcpy(text, rec->trace, sizeof text);
    rec->trace[0] = '\0';
    return text;
}

static void every_key_of_every_call_gets_the_prefix(void **state)
{
    const struct muster_slice keys[] = { muster_str("a"), muster_str("b") };
    struct recorder rec = { .base = { &recorder_ops, 300 } };
    struct muster_store *view = view_of(&rec.base, "pre");
    struct muster_bytes bytes;
    struct muster_values values;
    int64_t number = 0;
    bool flag = false;

    (void)state;
    assert_int_equal(muster_store_set(view, muster_str("x"), muster_str("v"), 5, NULL), 0);
    assert_string_equal(recorded(&rec), "set pre/x (5)");
    assert_int_equal(muster_store_get(view, muster_str("x"), 5, &bytes, NULL), 0);
    assert_string_equal(bytes.data, "got");
    muster_bytes_done(&bytes);
    assert_string_equal(recorded(&rec), "get pre/x (5)");
    assert_int_equal(muster_store_add(view, muster_str("x"), 7, 5, &number, NULL), 0);
    assert_int_equal(number, 7);
    assert_string_equal(recorded(&rec), "add pre/x (5)");
    assert_int_equal(muster_store_compare_set(view, muster_str("x"), muster_str(""), muster_str("n"), 5, &bytes, NULL),
                     0);
    assert_string_equal(bytes.data, "swapped");
    muster_bytes_done(&bytes);
    assert_string_equal(recorded(&rec), "compare_set pre/x (5)");
    assert_int_equal(muster_store_check(view, keys, 2, 5, &flag, NULL), 0);
    assert_true(flag);
    assert_string_equal(recorded(&rec), "check pre/a (5); check pre/b (5)");
    assert_int_equal(muster_store_wait(view, keys, 2, 5, NULL), 0);
    assert_string_equal(recorded(&rec), "wait pre/a (5); wait pre/b (5)");
    assert_int_equal(muster_store_wait(view, NULL, 0, 5, NULL), 0);
    assert_string_equal(recorded(&rec), "wait none (5)");
    flag = false;
    assert_int_equal(muster_store_delete_key(view, muster_str("x"), 5, &flag, NULL), 0);
    assert_true(flag);
    assert_string_equal(recorded(&rec), "delete_key pre/x (5)");
    assert_int_equal(muster_store_num_keys(view, 5, &number, NULL), 0);
    assert_int_equal(number, 17); /* of the whole store, as PyTorch's prefix stores say */
    assert_string_equal(recorded(&rec), "num_keys - (5)");
    assert_int_equal(muster_store_append(view, muster_str("x"), muster_str("v"), 5, NULL), 0);
    assert_string_equal(recorded(&rec), "append pre/x (5)");
    assert_int_equal(muster_store_multi_get(view, keys, 2, 5, &values, NULL), 0);
    assert_string_equal(recorded(&rec), "multi_get pre/a (5); multi_get pre/b (5)");
    assert_int_equal(muster_store_multi_set(view, keys, keys, 2, 5, NULL), 0);
    assert_string_equal(recorded(&rec), "multi_set pre/a (5); multi_set pre/b (5)");
    assert_int_equal(muster_store_queue_push(view, muster_str("q"), muster_str("v"), 5, NULL), 0);
    assert_string_equal(recorded(&rec), "queue_push pre/q (5)");
    assert_int_equal(muster_store_queue_pop(view, muster_str("q"), true, 5, &bytes, NULL), 0);
    muster_bytes_done(&bytes);
    assert_string_equal(recorded(&rec), "queue_pop block pre/q (5)");
    assert_int_equal(muster_store_queue_len(view, muster_str("q"), 5, &number, NULL), 0);
    assert_int_equal(number, 3);
    assert_string_equal(recorded(&rec), "queue_len pre/q (5)");
    assert_int_equal(muster_store_ping(view, 5, NULL), 0);
    assert_string_equal(recorded(&rec), "ping - (5)");
    muster_store_free(view);
    assert_string_equal(recorded(&rec), ""); /* the inner store is not freed with its view */
}

static void views_nest_outside_in_and_no_slash_is_lost(void **state)
{
    static const struct {
        const char *prefixes[3]; /* from the inner store outwards */
        const char *key, *arrives;
    } rows[] = {
        { { "pre" }, "x", "set pre/x (300)" },
        { { "pre", "in" }, "x", "set pre/in/x (300)" },
        { { "a", "b", "c" }, "x", "set a/b/c/x (300)" },
        { { "" }, "x", "set /x (300)" },
        { { "", "" }, "x", "set //x (300)" },
        { { "/worker/attempt_0" }, "x", "set /worker/attempt_0/x (300)" },
        { { "default_pg/0/", "/cpu/" }, "x", "set default_pg/0///cpu//x (300)" },
        { { "pre" }, "", "set pre/ (300)" },
        { { "pre" }, "/x", "set pre//x (300)" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct recorder rec = { .base = { &recorder_ops, 300 } };
        struct muster_store *views[4] = { &rec.base };
        size_t depth = 0;

        for (; depth < 3 && rows[i].prefixes[depth] != NULL; depth++)
            views[depth + 1] = view_of(views[depth], rows[i].prefixes[depth]);
        assert_int_equal(
            muster_store_set(views[depth], muster_str(rows[i].key), muster_str("v"), MUSTER_TIMEOUT_DEFAULT, NULL), 0);
        assert_string_equal(recorded(&rec), rows[i].arrives);
        for (; depth > 0; depth--)
            muster_store_free(views[depth]);
    }
}

static void keys_and_prefixes_may_hold_any_byte(void **state)
{
    struct recorder rec = { .base = { &recorder_ops, 300 } };
    struct muster_store *view = NULL;
    const struct muster_slice prefix = { "p\0q", 3 };

    (void)state;
    assert_int_equal(muster_store_prefix_new(prefix, &rec.base, &view, NULL), 0);
    assert_int_equal(muster_store_set(view, (struct muster_slice){ "\0", 1 }, muster_str(""), 1, NULL), 0);
    assert_int_equal(rec.last_len, 5);
    assert_memory_equal(rec.last_key, "p\0q/\0", 5);
    muster_store_free(view);
}

static void a_view_lists_its_own_keys_without_the_prefix(void **state)
{
    static const char *const all[] = { "pre/x", "pre/in/y", "other/x", "prefix/x", "pre", "pre/", "/pre/x", "x", NULL };
    static const char *const none[] = { NULL };
    struct recorder rec = { .base = { &recorder_ops, 300 }, .listed = all };
    struct muster_store *pre = view_of(&rec.base, "pre"), *in = view_of(pre, "in");
    struct muster_values keys;

    (void)state;
    assert_int_equal(muster_store_list_keys(pre, 5, &keys, NULL), 0);
    assert_int_equal(keys.count, 3);
    assert_string_equal(keys.items[0].data, "x");
    assert_int_equal(keys.items[0].len, 1);
    assert_string_equal(keys.items[1].data, "in/y");
    assert_string_equal(keys.items[2].data, "");
    muster_values_done(&keys);
    assert_int_equal(muster_store_list_keys(in, 5, &keys, NULL), 0);
    assert_int_equal(keys.count, 1);
    assert_string_equal(keys.items[0].data, "y");
    muster_values_done(&keys);
    rec.listed = none;
    assert_int_equal(muster_store_list_keys(in, 5, &keys, NULL), 0);
    assert_int_equal(keys.count, 0);
    muster_values_done(&keys);
    muster_store_free(in);
    muster_store_free(pre);
}

/* A view never uses its store's own barrier: stock's prefix stores do not, and all must meet at the same keys. */
static void a_barrier_is_made_of_prefixed_keys(void **state)
{
    struct recorder rec = { .base = { &recorder_ops, 300 } };
    struct muster_store *view = view_of(&rec.base, "pre");
    char *trace;

    (void)state;
    assert_int_equal(muster_store_barrier(view, muster_str("b"), 1, 0, NULL), 0);
    trace = rec.trace;
    assert_string_equal(trace, "add pre/b/num_members (0); set pre/b/last_member (0); wait pre/b/last_member (0)");
    muster_store_free(view);
}

static void a_view_has_a_default_timeout_of_its_own(void **state)
{
    struct recorder rec = { .base = { &recorder_ops, 300 } };
    struct muster_store *view = view_of(&rec.base, "pre");

    (void)state;
    assert_int_equal(muster_store_timeout(view), 300); /* to begin with, that of the store it shows */
    muster_store_set_timeout(view, 40);
    assert_int_equal(muster_store_ping(view, MUSTER_TIMEOUT_DEFAULT, NULL), 0);
    assert_int_equal(muster_store_ping(&rec.base, MUSTER_TIMEOUT_DEFAULT, NULL), 0);
    assert_string_equal(recorded(&rec), "ping - (40); ping - (300)");
    assert_int_equal(muster_store_tcp_port(view), 0);
    muster_store_free(view);
}

static void what_the_inner_store_lacks_the_view_lacks(void **state)
{
    static const struct muster_store_ops bare = { .size = sizeof bare, .name = "bare" };
    struct muster_store inner = { &bare, 300 };
    struct muster_store *view = view_of(&inner, "pre");
    struct muster_error error = { 0 };
    struct muster_values keys;

    (void)state;
    assert_int_equal(muster_store_set(view, muster_str("x"), muster_str("v"), 5, &error), MUSTER_ENOTSUP);
    assert_non_null(strstr(error.text, "'bare'"));
    assert_int_equal(muster_store_list_keys(view, 5, &keys, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_ping(view, 5, NULL), MUSTER_ENOTSUP);
    assert_false(mu_store_can_compare_set(view));
    assert_null(view->ops->compare_set);
    muster_store_free(view);
}

static void too_many_keys_are_refused_before_any_is_looked_at(void **state)
{
    struct recorder rec = { .base = { &recorder_ops, 300 } };
    struct muster_store *view = view_of(&rec.base, "pre");
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_store_wait(view, NULL, SIZE_MAX, 5, &error), MUSTER_EINVAL);
    assert_string_equal(recorded(&rec), "");
    muster_store_free(view);
}

static void any_allocation_may_fail(void **state)
{
    static const char *const all[] = { "pre/x", NULL };
    const struct muster_slice keys[] = { muster_str("a"), muster_str("b") };
    struct recorder rec = { .base = { &recorder_ops, 300 }, .listed = all };

    (void)state;
    FOR_EACH_FAILURE (n) {
        struct muster_store *view = NULL;
        struct muster_error error = { 0 };
        int rc = muster_store_prefix_new(muster_str("pre"), &rec.base, &view, &error);

        if (rc == 0)
            rc = muster_store_set(view, muster_str("x"), muster_str("v"), 5, &error);
        if (rc == 0)
            rc = muster_store_multi_set(view, keys, keys, 2, 5, &error);
        if (rc == 0)
            rc = muster_store_barrier(view, muster_str("b"), 1, 5, &error);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        assert_int_equal(error.code, rc);
        muster_store_free(view);
        (void)recorded(&rec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_every_call_gets_the_prefix),
        cmocka_unit_test(views_nest_outside_in_and_no_slash_is_lost),
        cmocka_unit_test(keys_and_prefixes_may_hold_any_byte),
        cmocka_unit_test(a_view_lists_its_own_keys_without_the_prefix),
        cmocka_unit_test(a_barrier_is_made_of_prefixed_keys),
        cmocka_unit_test(a_view_has_a_default_timeout_of_its_own),
        cmocka_unit_test(what_the_inner_store_lacks_the_view_lacks),
        cmocka_unit_test(too_many_keys_are_refused_before_any_is_looked_at),
        cmocka_unit_test(any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
