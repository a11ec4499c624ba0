/* The public calls: defaults, tables with holes, shorter tables, and the calls that are made from others. */
#include "failmalloc.h"
#include "muster.h"
#include "pure.h"
#include "store/store.h"

#include <stdio.h>
#include <time.h>

/* A store of a user's own with the least there is to build on: set, get, add and wait. */
struct small {
    struct muster_store base;
    char trace[512];
    int64_t count;       /* what add has counted up to */
    int64_t takes_ms;    /* how long a get takes */
    const char *missing; /* a get of this key times out */
    int set_rc, get_rc;
};

static struct small *self(struct muster_store *store)
{
    return (struct small *)store;
}

static void note(struct muster_store *store, const char *name, struct muster_slice key)
{
    char *trace = self(store)->trace;

    (void)snprintf(trace + strlen(trace), sizeof self(store)->trace - strlen(trace), "%s%s %.*s",
                   trace[0] == '\0' ? "" : "; ", name, (int)key.len, (const char *)key.data);
}

static int fail_with(struct muster_error *reterr, int code)
{
    if (reterr != NULL) {
        reterr->code = code;
        (void)snprintf(reterr->text, sizeof reterr->text, "small store: %s", muster_error_text(code));
    }
    return code;
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int small_set(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                     struct muster_error *reterr)
{
    (void)value;
    assert_true(timeout_ms >= 0);
    note(store, "set", key);
    return self(store)->set_rc < 0 ? fail_with(reterr, self(store)->set_rc) : 0;
}

static int small_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                     struct muster_bytes *ret_value, struct muster_error *reterr)
{
    int64_t until_ms = now_ms() + self(store)->takes_ms;

    note(store, "get", key);
    assert_true(timeout_ms >= 0);
    if (self(store)->takes_ms > timeout_ms ||
        (self(store)->missing != NULL && memcmp(self(store)->missing, key.data, key.len) == 0))
        return fail_with(reterr, MUSTER_ETIMEOUT);
    while (now_ms() < until_ms)
        continue;
    ret_value->data = strndup(key.data, key.len);
    ret_value->len = key.len;
    return ret_value->data == NULL ? fail_with(reterr, MUSTER_ENOMEM) : self(store)->get_rc;
}

static int small_add(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
                     int64_t *ret_value, struct muster_error *reterr)
{
    (void)timeout_ms;
    (void)reterr;
    note(store, "add", key);
    *ret_value = self(store)->count += delta;
    return 0;
}

static int small_wait(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                      struct muster_error *reterr)
{
    (void)timeout_ms;
    (void)reterr;
    assert_int_equal(count, 1);
    note(store, "wait", keys[0]);
    return 0;
}

static const struct muster_store_ops small_ops = {
    .size = sizeof small_ops,
    .name = "small",
    .set = small_set,
    .get = small_get,
    .add = small_add,
    .wait = small_wait,
};

static const struct muster_slice three[] = { { "a", 1 }, { "b", 1 }, { "c", 1 } };

/* ---- Tables of this library ---- */

static int replaced;

static int replaced_set(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                        int64_t timeout_ms, struct muster_error *reterr)
{
    (void)store;
    (void)key;
    (void)value;
    (void)timeout_ms;
    (void)reterr;
    replaced++;
    return MUSTER_ETIMEOUT;
}

static int answer_compare_set(struct muster_store *store, struct muster_slice key, struct muster_slice expected,
                              struct muster_slice desired, int64_t timeout_ms, struct muster_bytes *ret_value,
                              struct muster_error *reterr)
{
    (void)expected;
    (void)timeout_ms;
    (void)ret_value;
    (void)reterr;
    note(store, "compare_set", key);
    assert_int_equal(desired.len, 1);
    return MUSTER_ETIMEOUT;
}

static void a_store_says_whether_it_has_compare_set(void **state)
{
    static const struct muster_etcd_config etcd = { .size = sizeof etcd, .endpoints = "http://127.0.0.1:1" };
    static const struct muster_store_ops with = { .size = sizeof with, .compare_set = answer_compare_set };
    static const struct muster_store_ops shorter = { .size = offsetof(struct muster_store_ops, compare_set),
                                                     .compare_set = answer_compare_set };
    struct muster_store_tcp_config config = { .size = sizeof config, .host = "127.0.0.1", .is_host = true };
    struct muster_store none = { &small_ops, 300 }, has = { &with, 300 }, lacks = { &shorter, 300 };
    struct muster_store *tcp = NULL, *far = NULL;

    (void)state;
    assert_int_equal(muster_store_tcp_new(&config, &tcp, NULL), 0);
    assert_int_equal(muster_store_etcd_new(&etcd, "dir", 0, &far, NULL), 0);
    {
        const struct {
            struct muster_store *store;
            bool can;
        } table[] = { { tcp, true }, { far, false }, { &none, false }, { &has, true }, { &lacks, false } };

        for (size_t i = 0; i < COUNT(table); i++) {
            struct muster_store *view = NULL, *twice = NULL;

            assert_int_equal(muster_store_prefix_new(muster_str("p"), table[i].store, &view, NULL), 0);
            assert_int_equal(muster_store_prefix_new(muster_str("q"), view, &twice, NULL), 0);
            assert_int_equal(mu_store_can_compare_set(table[i].store), table[i].can);
            assert_int_equal(mu_store_can_compare_set(view), table[i].can);
            assert_int_equal(mu_store_can_compare_set(twice), table[i].can);
            muster_store_free(twice);
            muster_store_free(view);
        }
    }
    muster_store_free(far);
    muster_store_free(tcp);
}

/* The view is a store of this library, and what it asks is traced. */
static void the_entries_of_our_tables_can_be_called(void **state)
{
    struct small small = { .base = { &small_ops, 300 } };
    struct muster_store *view = NULL;
    struct muster_bytes bytes = { 0 };
    int64_t number = 0;

    (void)state;
    assert_int_equal(muster_store_prefix_new(muster_str("p"), &small.base, &view, NULL), 0);
    assert_int_equal(view->ops->set(view, three[0], three[1], 5, NULL), 0);
    assert_int_equal(view->ops->get(view, three[1], 5, &bytes, NULL), 0);
    assert_int_equal(view->ops->add(view, three[2], 3, 5, &number, NULL), 0);
    assert_int_equal(number, 3);
    assert_string_equal(small.trace, "set p/a; get p/b; add p/c");
    muster_bytes_done(&bytes);
    muster_store_free(view);
}

static void an_entry_replaced_in_a_copy_of_our_table_is_called(void **state)
{
    struct small small = { .base = { &small_ops, 300 } };
    struct muster_store *view = NULL;
    struct muster_store_ops mine;

    (void)state;
    assert_int_equal(muster_store_prefix_new(muster_str("p"), &small.base, &view, NULL), 0);
    mine = *view->ops;
    mine.set = replaced_set;
    view->ops = &mine;
    replaced = 0;
    assert_int_equal(muster_store_set(view, three[0], three[1], 5, NULL), MUSTER_ETIMEOUT);
    assert_int_equal(replaced, 1);
    assert_int_equal(muster_store_wait(view, three, 1, 5, NULL), 0);
    assert_string_equal(small.trace, "wait p/a");
    muster_store_free(view);
}

/* The value that came with it is freed. */
static void an_answer_above_0_is_an_error(void **state)
{
    struct small small = { .base = { &small_ops, 300 }, .get_rc = 7 };
    struct muster_bytes bytes = { NULL, 77 };
    struct muster_values values = { NULL, 77 };
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_store_get(&small.base, three[0], 5, &bytes, &error), MUSTER_EINTERNAL);
    assert_string_equal(error.text, "get: a store of kind 'small' returned 7; expected 0 or an error");
    assert_int_equal(bytes.len, 77);
    assert_int_equal(muster_store_multi_get(&small.base, three, 3, 5, &values, NULL), MUSTER_EINTERNAL);
    assert_int_equal(values.count, 77);
}

/* ---- Holes ---- */

static void what_a_table_lacks_is_not_supported(void **state)
{
    static const struct muster_store_ops none = { .size = sizeof none, .name = "empty" };
    struct muster_store store = { &none, 300 };
    struct muster_slice key = muster_str("k");
    struct muster_error error = { 0 };
    struct muster_bytes bytes = { (char *)&error, 77 };
    struct muster_values values = { NULL, 77 };
    int64_t number = 77;
    bool flag = true;

    (void)state;
    assert_int_equal(muster_store_set(&store, key, key, 1, &error), MUSTER_ENOTSUP);
    assert_string_equal(error.text, "set: a store of kind 'empty' does not have it");
    assert_int_equal(muster_store_get(&store, key, 1, &bytes, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_add(&store, key, 1, 1, &number, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_compare_set(&store, key, key, key, 1, &bytes, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_check(&store, three, 3, 1, &flag, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_wait(&store, three, 3, 1, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_delete_key(&store, key, 1, &flag, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_num_keys(&store, 1, &number, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_append(&store, key, key, 1, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_multi_get(&store, three, 3, 1, &values, &error), MUSTER_ENOTSUP);
    assert_string_equal(error.text, "multi_get: get: a store of kind 'empty' does not have it");
    assert_int_equal(muster_store_multi_set(&store, three, three, 3, 1, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_queue_push(&store, key, key, 1, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_queue_pop(&store, key, true, 1, &bytes, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_queue_len(&store, key, 1, &number, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_list_keys(&store, 1, &values, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_barrier(&store, key, 1, 1, &error), MUSTER_ENOTSUP);
    assert_string_equal(error.text, "barrier: add: a store of kind 'empty' does not have it");
    assert_int_equal(muster_store_ping(&store, 1, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_ping(&store, 1, NULL), MUSTER_ENOTSUP); /* nobody has to listen */
    assert_int_equal(bytes.len, 77);                                      /* on failure nothing is given back */
    assert_int_equal(values.count, 77);
    assert_int_equal(number, 77);
    assert_true(flag);
    muster_store_free(&store); /* without a function for it there is nothing to free */
    muster_store_free(NULL);
}

/* A program built against an older header has a shorter table; what lies behind its end is not looked at. */
static void a_shorter_table_ends_where_its_size_says(void **state)
{
    struct muster_store_ops older = small_ops;
    struct small store = { .base = { &older, 300 } };
    struct muster_bytes bytes;

    (void)state;
    older.size = offsetof(struct muster_store_ops, get);
    assert_int_equal(muster_store_set(&store.base, muster_str("k"), muster_str("v"), 1, NULL), 0);
    assert_int_equal(muster_store_get(&store.base, muster_str("k"), 1, &bytes, NULL), MUSTER_ENOTSUP);
    assert_int_equal(muster_store_multi_set(&store.base, three, three, 3, 1, NULL), 0);
    assert_string_equal(store.trace, "set k; set a; set b; set c");
    older.size = offsetof(struct muster_store_ops, get) + sizeof older.get - 1; /* half an entry is none */
    assert_int_equal(muster_store_get(&store.base, muster_str("k"), 1, &bytes, NULL), MUSTER_ENOTSUP);
}

/* An entry behind the end that an older library would not know must not be called. */
static void free_is_found_only_within_the_size(void **state)
{
    struct muster_store_ops older = small_ops;
    struct small store = { .base = { &older, 300 } };

    (void)state;
    older.size = offsetof(struct muster_store_ops, free);
    older.free = (void (*)(struct muster_store *))(uintptr_t)1; /* calling it would crash */
    muster_store_free(&store.base);
}

/* ---- Timeouts ---- */

static int64_t heard_ms;

static int deaf_ping(struct muster_store *store, int64_t timeout_ms, struct muster_error *reterr)
{
    (void)store;
    (void)reterr;
    heard_ms = timeout_ms;
    return 0;
}

static void negative_timeouts_stand_for_the_default(void **state)
{
    static const struct muster_store_ops ops = { .size = sizeof ops, .name = "deaf", .ping = deaf_ping };
    static const struct {
        int64_t given_ms, heard_ms;
    } rows[] = { { MUSTER_TIMEOUT_DEFAULT, 300 }, { INT64_MIN, 300 }, { 0, 0 }, { 1, 1 }, { INT64_MAX, INT64_MAX } };
    struct muster_store store = { &ops, 300 };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(muster_store_ping(&store, rows[i].given_ms, NULL), 0);
        assert_true(heard_ms == rows[i].heard_ms);
    }
    muster_store_set_timeout(&store, 40);
    assert_int_equal(muster_store_timeout(&store), 40);
    muster_store_set_timeout(&store, 0); /* not above 0: nothing changes */
    muster_store_set_timeout(&store, -1);
    assert_int_equal(muster_store_timeout(&store), 40);
    assert_int_equal(muster_store_ping(&store, MUSTER_TIMEOUT_DEFAULT, NULL), 0);
    assert_int_equal(heard_ms, 40);
}

/* ---- Made from others ---- */

static void multi_get_is_made_of_gets(void **state)
{
    struct small store = { .base = { &small_ops, 300 } };
    struct muster_values values;

    (void)state;
    assert_int_equal(muster_store_multi_get(&store.base, three, 3, MUSTER_TIMEOUT_DEFAULT, &values, NULL), 0);
    assert_string_equal(store.trace, "get a; get b; get c");
    assert_int_equal(values.count, 3);
    assert_string_equal(values.items[2].data, "c");
    muster_values_done(&values);
    assert_int_equal(values.count, 0);
    assert_int_equal(muster_store_multi_get(&store.base, NULL, 0, 1, &values, NULL), 0);
    assert_int_equal(values.count, 0);
    muster_values_done(&values);
}

static void a_multi_get_that_fails_gives_nothing_back(void **state)
{
    struct small store = { .base = { &small_ops, 300 }, .missing = "b" };
    struct muster_values values = { NULL, 77 };
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_store_multi_get(&store.base, three, 3, 5, &values, &error), MUSTER_ETIMEOUT);
    assert_string_equal(store.trace, "get a; get b");
    assert_string_equal(error.text, "multi_get: small store: timed out");
    assert_int_equal(values.count, 77);
}

static void the_parts_of_a_call_share_its_time(void **state)
{
    struct small store = { .base = { &small_ops, 3000 }, .takes_ms = 200 };
    struct muster_values values;

    (void)state;
    assert_int_equal(muster_store_multi_get(&store.base, three, 3, 500, &values, NULL), MUSTER_ETIMEOUT);
    assert_string_equal(store.trace, "get a; get b; get c");
}

static void multi_set_is_made_of_sets_and_stops_at_the_first_failure(void **state)
{
    struct small store = { .base = { &small_ops, 300 } };
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_store_multi_set(&store.base, three, three, 3, 5, &error), 0);
    assert_string_equal(store.trace, "set a; set b; set c");
    store.trace[0] = '\0';
    store.set_rc = MUSTER_ELOST;
    assert_int_equal(muster_store_multi_set(&store.base, three, three, 3, 5, &error), MUSTER_ELOST);
    assert_string_equal(store.trace, "set a");
    assert_string_equal(error.text, "multi_set: small store: connection lost");
    assert_int_equal(muster_store_multi_set(&store.base, NULL, NULL, 0, 5, &error), 0);
}

/* The keys are those of PyTorch's own emulation, so that both kinds meet. */
static void a_barrier_counts_and_the_last_one_opens_it(void **state)
{
    struct small store = { .base = { &small_ops, 300 } };

    (void)state;
    assert_int_equal(muster_store_barrier(&store.base, muster_str("b"), 2, 5, NULL), 0);
    assert_string_equal(store.trace, "add b/num_members; wait b/last_member");
    store.trace[0] = '\0';
    assert_int_equal(muster_store_barrier(&store.base, muster_str("b"), 2, 5, NULL), 0);
    assert_string_equal(store.trace, "add b/num_members; set b/last_member; wait b/last_member");
    store.trace[0] = '\0';
    assert_int_equal(muster_store_barrier(&store.base, muster_str(""), 9, 5, NULL), 0);
    assert_string_equal(store.trace, "add /num_members; wait /last_member");
}

static void a_barrier_of_nobody_is_refused(void **state)
{
    struct small store = { .base = { &small_ops, 300 } };
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_store_barrier(&store.base, muster_str("b"), 0, 5, &error), MUSTER_EINVAL);
    assert_string_equal(error.text, "barrier: the world size must be 1 or more, not 0");
    assert_int_equal(muster_store_barrier(&store.base, muster_str("b"), -3, 5, NULL), MUSTER_EINVAL);
    assert_string_equal(store.trace, "");
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct small store = { .base = { &small_ops, 300 } };
        struct muster_error error = { 0 };
        struct muster_values values = { 0 };
        int rc = muster_store_multi_get(&store.base, three, 3, 1000, &values, &error);

        if (rc == 0)
            rc = muster_store_barrier(&store.base, muster_str("b"), 1, 1000, &error);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        assert_int_equal(error.code, rc);
        muster_values_done(&values);
    }
}

static void done_twice_is_harmless(void **state)
{
    struct muster_bytes bytes = { strdup("x"), 1 };
    struct muster_values values = { calloc(1, sizeof *values.items), 1 };

    (void)state;
    values.items[0].data = strdup("y");
    for (int i = 0; i < 2; i++) {
        muster_bytes_done(&bytes);
        muster_values_done(&values);
        assert_null(bytes.data);
        assert_null(values.items);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_says_whether_it_has_compare_set),
        cmocka_unit_test(the_entries_of_our_tables_can_be_called),
        cmocka_unit_test(an_entry_replaced_in_a_copy_of_our_table_is_called),
        cmocka_unit_test(an_answer_above_0_is_an_error),
        cmocka_unit_test(what_a_table_lacks_is_not_supported),
        cmocka_unit_test(a_shorter_table_ends_where_its_size_says),
        cmocka_unit_test(free_is_found_only_within_the_size),
        cmocka_unit_test(negative_timeouts_stand_for_the_default),
        cmocka_unit_test(multi_get_is_made_of_gets),
        cmocka_unit_test(a_multi_get_that_fails_gives_nothing_back),
        cmocka_unit_test(the_parts_of_a_call_share_its_time),
        cmocka_unit_test(multi_set_is_made_of_sets_and_stops_at_the_first_failure),
        cmocka_unit_test(a_barrier_counts_and_the_last_one_opens_it),
        cmocka_unit_test(a_barrier_of_nobody_is_refused),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(done_twice_is_harmless),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
