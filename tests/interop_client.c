/* Makes every call of the client through muster.h, on a live server of whatever version:
 *
 *     interop_client HOST PORT
 *
 * Prints TAP; ends with 0 when all went well. What a server lacks must be refused as "not supported", always, and must
 * leave the store usable. It wants a store of its own: it leaves its keys behind. */
#include <muster.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CONNECT_MS = 60000, CALL_MS = 30000 }; /* a stock server may look up every peer's name first, and slowly */

#define D MUSTER_TIMEOUT_DEFAULT

static const char *host;
static uint16_t port;
static unsigned cases, failures;
static struct muster_error error;

/* What the server has, found out by asking. */
static bool has_append, has_queues, has_list, has_ping;

/* ---- Telling ---- */

static bool check(bool good, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool check(bool good, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    printf("%s %u - ", good ? "ok" : "not ok", ++cases);
    (void)vprintf(format, args);
    printf("\n");
    va_end(args);
    if (!good) {
        failures++;
        printf("# %s\n", error.code < 0 ? error.text : "(no error; the result differs)");
    }
    (void)fflush(stdout);
    error = (struct muster_error){ 0 };
    return good;
}

static struct muster_slice str(const char *text)
{
    return muster_str(text);
}

static bool is(struct muster_bytes *bytes, const char *text)
{
    bool same = bytes->data != NULL && bytes->len == strlen(text) && memcmp(bytes->data, text, bytes->len) == 0;

    muster_bytes_done(bytes);
    return same;
}

static bool gets(struct muster_store *store, const char *key, const char *value)
{
    struct muster_bytes bytes = { 0 };

    return muster_store_get(store, str(key), D, &bytes, &error) == 0 && is(&bytes, value);
}

static int64_t add(struct muster_store *store, const char *key, int64_t delta)
{
    int64_t number = INT64_MIN;

    (void)muster_store_add(store, str(key), delta, D, &number, &error);
    return number;
}

static struct muster_store *connect_store(const char *dialect)
{
    const struct muster_store_tcp_config config = { .size = sizeof config,
                                                    .host = host,
                                                    .port = port,
                                                    .dialect = dialect,
                                                    .connect_timeout_ms = CONNECT_MS,
                                                    .timeout_ms = CALL_MS };
    struct muster_store *store = NULL;

    (void)muster_store_tcp_new(&config, &store, &error);
    return store;
}

/* ---- The calls that every server has ---- */

static void check_values(struct muster_store *store)
{
    static const char odd[] = "\0\xff\n\0";
    struct muster_bytes bytes = { 0 };

    check(muster_store_set(store, str("k"), str("v"), D, &error) == 0 && gets(store, "k", "v"), "set and get");
    check(muster_store_set(store, str("k"), str("w"), D, &error) == 0 && gets(store, "k", "w"), "set again");
    check(muster_store_set(store, str("none"), str(""), D, &error) == 0 && gets(store, "none", ""), "an empty value");
    check(muster_store_set(store, str("odd"), (struct muster_slice){ odd, 4 }, D, &error) == 0 &&
              muster_store_get(store, str("odd"), D, &bytes, &error) == 0 && bytes.len == 4 &&
              memcmp(bytes.data, odd, 4) == 0,
          "any byte in a value");
    muster_bytes_done(&bytes);
    check(muster_store_set(store, (struct muster_slice){ "\0k\xff", 3 }, str("v"), D, &error) == 0 &&
              muster_store_get(store, (struct muster_slice){ "\0k\xff", 3 }, D, &bytes, &error) == 0 && is(&bytes, "v"),
          "any byte in a key");
}

static void check_large_value(struct muster_store *store)
{
    const size_t len = (size_t)4 << 20;
    struct muster_bytes bytes = { 0 };
    char *big = malloc(len);

    if (big == NULL)
        return;
    for (size_t i = 0; i < len; i++)
        big[i] = (char)(i * 131 >> 7);
    check(muster_store_set(store, str("big"), (struct muster_slice){ big, len }, D, &error) == 0 &&
              muster_store_get(store, str("big"), D, &bytes, &error) == 0 && bytes.len == len &&
              memcmp(bytes.data, big, len) == 0,
          "a value of 4 MiB");
    muster_bytes_done(&bytes);
    free(big);
}

static void check_numbers(struct muster_store *store)
{
    check(add(store, "n", 5) == 5, "add to a missing key");
    check(add(store, "n", -7) == -2, "add a negative number");
    check(gets(store, "n", "-2"), "a number is kept as text");
    check(add(store, "zero", 0) == 0 && gets(store, "zero", "0"), "add 0 creates");
}

static void check_compare_set(struct muster_store *store)
{
    static const struct {
        const char *expected, *desired, *gives, *what;
    } rows[] = {
        { "x", "new", "x", "compare_set of a missing key gives what was expected" },
        { "", "first", "first", "compare_set of a missing key, expecting nothing, creates" },
        { "x", "second", "first", "compare_set expecting something else changes nothing" },
        { "first", "second", "second", "compare_set expecting the value replaces it" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct muster_bytes bytes = { 0 };

        check(muster_store_compare_set(store, str("cas"), str(rows[i].expected), str(rows[i].desired), D, &bytes,
                                       &error) == 0 &&
                  is(&bytes, rows[i].gives),
              "%s", rows[i].what);
    }
}

static void check_presence(struct muster_store *store)
{
    const struct muster_slice present[] = { str("k"), str("n") }, absent[] = { str("k"), str("never") };
    bool flag = false;
    int64_t before = 0, after = 0;

    check(muster_store_check(store, present, 2, D, &flag, &error) == 0 && flag, "check of keys that exist");
    flag = true;
    check(muster_store_check(store, absent, 2, D, &flag, &error) == 0 && !flag, "check of a key that does not");
    check(muster_store_check(store, NULL, 0, D, &flag, &error) == 0 && flag, "check of no keys");
    check(muster_store_wait(store, present, 2, D, &error) == 0, "wait for keys that exist");
    check(muster_store_wait(store, NULL, 0, D, &error) == 0, "wait for no keys");
    check(muster_store_set(store, str("gone"), str("x"), D, &error) == 0 &&
              muster_store_num_keys(store, D, &before, &error) == 0 &&
              muster_store_delete_key(store, str("gone"), D, &flag, &error) == 0 && flag,
          "delete_key of a key");
    check(muster_store_num_keys(store, D, &after, &error) == 0 && after == before - 1, "num_keys is one less then");
    check(muster_store_delete_key(store, str("gone"), D, &flag, &error) == 0 && !flag, "delete_key of no key");
}

static void check_many(struct muster_store *store)
{
    const struct muster_slice keys[] = { str("m/a"), str("m/b"), str("m/a") };
    const struct muster_slice values[] = { str("1"), str(""), str("3") };
    struct muster_values found = { 0 };

    check(muster_store_multi_set(store, keys, values, 3, D, &error) == 0, "multi_set");
    check(muster_store_multi_get(store, keys, 3, D, &found, &error) == 0 && found.count == 3 &&
              strcmp(found.items[0].data, "3") == 0 && found.items[1].len == 0 && strcmp(found.items[2].data, "3") == 0,
          "multi_get in the order of the keys");
    muster_values_done(&found);
    check(muster_store_multi_get(store, NULL, 0, D, &found, &error) == 0 && found.count == 0, "multi_get of nothing");
    muster_values_done(&found);
}

/* ---- Waiting ---- */

struct waiter {
    struct muster_store *store;
    struct muster_bytes bytes;
    struct muster_error error;
    int rc;
};

static void *wait_for_late(void *arg)
{
    struct waiter *waiter = arg;

    waiter->rc = muster_store_get(waiter->store, muster_str("late"), CALL_MS, &waiter->bytes, &waiter->error);
    return NULL;
}

static void check_waking(struct muster_store *store, struct muster_store *other)
{
    struct waiter waiter = { .store = other };
    pthread_t thread;

    if (pthread_create(&thread, NULL, wait_for_late, &waiter) != 0)
        return;
    (void)muster_store_set(store, str("late"), str("here"), D, &error);
    (void)pthread_join(thread, NULL);
    error = waiter.error;
    check(waiter.rc == 0 && is(&waiter.bytes, "here"), "get waits for a key that another client sets");
}

/* The connection must be as good as before, and what was given up must not come back. */
static void check_timeouts(struct muster_store *store, struct muster_store *other)
{
    const struct muster_slice late[] = { str("given up") };
    struct muster_bytes bytes = { 0 };
    bool flag;

    for (int i = 0; i < 3; i++) {
        check(muster_store_wait(store, late, 1, 50, &error) == MUSTER_ETIMEOUT, "wait in vain times out");
        check(add(store, "alive", 1) == 2 * i + 1, "and the store is usable");
        check(muster_store_get(store, late[0], 50, &bytes, &error) == MUSTER_ETIMEOUT, "get in vain times out");
        check(add(store, "alive", 1) == 2 * i + 2, "and the store is usable");
    }
    check(muster_store_set(other, late[0], str("now"), D, &error) == 0 && gets(other, "given up", "now"),
          "another client sets what was waited for");
    check(add(store, "alive", 1) == 7 && gets(store, "given up", "now"), "and no stray answer comes");
    check(muster_store_delete_key(store, late[0], D, &flag, &error) == 0 && flag, "nor later");
}

/* ---- What a server may lack ---- */

/* Carried out, or not supported: anything else is wrong. */
static bool either(int rc, bool *ret_has)
{
    *ret_has = rc == 0;
    return rc == 0 || rc == MUSTER_ENOTSUP;
}

static const char *word(bool has)
{
    return has ? "works" : "is not supported";
}

static void check_append(struct muster_store *store)
{
    bool good = either(muster_store_append(store, str("log"), str("one,"), D, &error), &has_append);

    check(good, "append %s", word(has_append));
    if (has_append)
        check(muster_store_append(store, str("log"), str("two"), D, &error) == 0 && gets(store, "log", "one,two"),
              "append appends");
    else
        check(muster_store_append(store, str("log"), str("two"), D, NULL) == MUSTER_ENOTSUP && add(store, "a", 1) == 1,
              "and leaves the store usable");
}

static void check_queues(struct muster_store *store)
{
    struct muster_bytes bytes = { 0 };
    int64_t number = -1;
    bool good = either(muster_store_queue_len(store, str("q"), D, &number, &error), &has_queues);

    check(good && (!has_queues || number == 0), "queue_len of no queue %s", word(has_queues));
    if (!has_queues) {
        check(muster_store_queue_push(store, str("q"), str("x"), D, NULL) == MUSTER_ENOTSUP &&
                  muster_store_queue_pop(store, str("q"), true, D, &bytes, NULL) == MUSTER_ENOTSUP &&
                  muster_store_queue_pop(store, str("q"), false, D, &bytes, NULL) == MUSTER_ENOTSUP,
              "queue_push and queue_pop neither");
        check(add(store, "b", 1) == 1, "and leave the store usable");
        return;
    }
    check(muster_store_queue_pop(store, str("q"), false, D, &bytes, &error) == MUSTER_EEMPTY, "an empty queue is told");
    check(muster_store_queue_pop(store, str("q"), true, 50, &bytes, &error) == MUSTER_ETIMEOUT,
          "queue_pop in vain times out");
    check(muster_store_queue_push(store, str("q"), str("one"), D, &error) == 0 &&
              muster_store_queue_push(store, str("q"), str(""), D, &error) == 0 &&
              muster_store_queue_push(store, str("q"), str("three"), D, &error) == 0 &&
              muster_store_queue_len(store, str("q"), D, &number, &error) == 0 && number == 3,
          "queue_push");
    check(muster_store_queue_pop(store, str("q"), false, D, &bytes, &error) == 0 && is(&bytes, "one"), "queue_pop");
    check(muster_store_queue_pop(store, str("q"), true, D, &bytes, &error) == 0 && is(&bytes, ""),
          "queue_pop of an empty item");
    check(muster_store_queue_pop(store, str("q"), true, D, &bytes, &error) == 0 && is(&bytes, "three"),
          "queue_pop that may wait");
    check(muster_store_queue_pop(store, str("q"), false, D, &bytes, &error) == MUSTER_EEMPTY, "it is empty again");
}

static bool lists(const struct muster_values *keys, const char *name)
{
    for (size_t i = 0; i < keys->count; i++) {
        if (strcmp(keys->items[i].data, name) == 0)
            return true;
    }
    return false;
}

static void check_list(struct muster_store *store)
{
    struct muster_values keys = { 0 };
    bool good = either(muster_store_list_keys(store, D, &keys, &error), &has_list);

    check(good && (!has_list || (lists(&keys, "k") && lists(&keys, "m/a") && !lists(&keys, "never"))), "list_keys %s",
          word(has_list));
    muster_values_done(&keys);
    if (!has_list)
        check(muster_store_list_keys(store, D, &keys, NULL) == MUSTER_ENOTSUP && add(store, "c", 1) == 1,
              "and leaves the store usable");
}

static void check_ping(struct muster_store *store)
{
    bool good = either(muster_store_ping(store, D, &error), &has_ping);

    check(good, "ping %s", word(has_ping));
    check(muster_store_ping(store, D, NULL) == (has_ping ? 0 : MUSTER_ENOTSUP) && add(store, "d", 1) == 1,
          "again, and the store is usable");
}

/* No release has one of these without those before it; queues only come with the newer of two kinds of server. */
static void check_features(void)
{
    check((!has_list || has_ping) && (!has_queues || has_ping) && (!has_ping || has_append),
          "what the server has belongs together: append %d, ping %d, queues %d, list_keys %d", has_append, has_ping,
          has_queues, has_list);
}

/* ---- Together ---- */

struct member {
    struct muster_store *store;
    struct muster_error error;
    pthread_t thread;
    int rc;
};

static void *meet(void *arg)
{
    struct member *member = arg;

    member->rc = muster_store_barrier(member->store, muster_str("gate"), 3, CALL_MS, &member->error);
    return NULL;
}

static void check_barrier(struct muster_store *one, struct muster_store *two, struct muster_store *three)
{
    struct member members[] = { { .store = one }, { .store = two }, { .store = three } };

    check(muster_store_barrier(one, str("alone"), 1, D, &error) == 0, "a barrier of one");
    check(muster_store_barrier(one, str("nobody"), 2, 50, &error) == MUSTER_ETIMEOUT, "a barrier in vain times out");
    for (size_t i = 0; i < 3; i++) {
        if (pthread_create(&members[i].thread, NULL, meet, &members[i]) != 0)
            exit(1);
    }
    for (size_t i = 0; i < 3; i++) {
        (void)pthread_join(members[i].thread, NULL);
        error = members[i].error;
        check(members[i].rc == 0, "member %zu is through a barrier of three", i);
    }
}

static void check_prefix(struct muster_store *store)
{
    struct muster_store *pre = NULL, *in = NULL;

    if (muster_store_prefix_new(str("pre"), store, &pre, &error) != 0 ||
        muster_store_prefix_new(str(""), pre, &in, &error) != 0)
        exit(1);
    check(muster_store_set(in, str("x"), str("v"), D, &error) == 0 && gets(store, "pre//x", "v"), "nested prefixes");
    check(muster_store_barrier(in, str("gate"), 1, D, &error) == 0, "a barrier behind a prefix");
    muster_store_free(in);
    muster_store_free(pre);
}

int main(int argc, char **argv)
{
    struct muster_store *stores[3], *views[3];

    if (argc < 3) {
        (void)fprintf(stderr, "usage: %s HOST PORT\n", argv[0]);
        return 2;
    }
    host = argv[1];
    port = (uint16_t)strtoul(argv[2], NULL, 10);
    for (int i = 0; i < 3; i++) {
        stores[i] = connect_store(NULL);
        if (!check(stores[i] != NULL, "connect"))
            return 1;
        if (muster_store_prefix_new(str("interop"), stores[i], &views[i], &error) != 0)
            return 1;
    }
    check_values(views[0]);
    check_large_value(views[0]);
    check_numbers(views[0]);
    check_compare_set(views[0]);
    check_presence(views[0]);
    check_many(views[0]);
    check_waking(views[0], views[1]);
    check_timeouts(views[0], views[1]);
    check_append(views[0]);
    check_ping(views[0]);
    check_queues(views[0]);
    check_list(views[0]);
    check_features();
    check_barrier(stores[0], stores[1], stores[2]);
    check_prefix(stores[0]);
    for (int i = 0; i < 3; i++) {
        muster_store_free(views[i]);
        muster_store_free(stores[i]);
    }
    printf("1..%u\n", cases);
    return failures == 0 ? 0 : 1;
}
