/* The public calls of a blocking handler over tables of any length, and the address at which workers meet. */
#include "handler/handler.h"
#include "pure.h"

#include <stdio.h>
#include <unistd.h>

/* ---- A handler that says what it was asked ---- */

static char asked[64];
static struct muster_rdzv *asked_whom;

static void ask(const struct muster_rdzv *rdzv, const char *what)
{
    asked_whom = (struct muster_rdzv *)rdzv;
    (void)snprintf(asked, sizeof asked, "%s", what);
}

static const char *get_backend(const struct muster_rdzv *rdzv)
{
    ask(rdzv, "get_backend");
    return "echo";
}

static const char *get_run_id(const struct muster_rdzv *rdzv)
{
    ask(rdzv, "get_run_id");
    return "job";
}

static bool use_agent_store(const struct muster_rdzv *rdzv)
{
    ask(rdzv, "use_agent_store");
    return true;
}

static int next_rendezvous(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info, struct muster_error *reterr)
{
    (void)reterr;
    ask(rdzv, "next_rendezvous");
    *ret_info = (struct muster_rdzv_info){ .rank = 1, .world_size = 2, .round = 3 };
    return 0;
}

static int is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    (void)reterr;
    ask(rdzv, "is_closed");
    *ret_closed = true;
    return 0;
}

static int set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr)
{
    ask(rdzv, "set_closed");
    return mu_fail(reterr, MUSTER_ERDZV_TIMEOUT, "slow");
}

static int num_nodes_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr)
{
    (void)reterr;
    ask(rdzv, "num_nodes_waiting");
    *ret_count = 5;
    return 0;
}

static int shut_down(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    (void)reterr;
    ask(rdzv, "shutdown");
    *ret_closed = true;
    return 0;
}

static void let_go(struct muster_rdzv *rdzv)
{
    ask(rdzv, "free");
}

static const struct muster_rdzv_ops whole = {
    .size = sizeof whole,
    .get_backend = get_backend,
    .get_run_id = get_run_id,
    .use_agent_store = use_agent_store,
    .next_rendezvous = next_rendezvous,
    .is_closed = is_closed,
    .set_closed = set_closed,
    .num_nodes_waiting = num_nodes_waiting,
    .shutdown = shut_down,
    .free = let_go,
};

static void every_call_goes_to_the_handlers_own_table(void **state)
{
    struct muster_rdzv rdzv = { &whole };
    struct muster_rdzv_info info;
    struct muster_error error;
    int64_t count = 0;
    bool flag = false;

    (void)state;
    assert_string_equal(muster_rdzv_get_backend(&rdzv), "echo");
    assert_string_equal(asked, "get_backend");
    assert_string_equal(muster_rdzv_get_run_id(&rdzv), "job");
    assert_string_equal(asked, "get_run_id");
    assert_true(muster_rdzv_use_agent_store(&rdzv));
    assert_string_equal(asked, "use_agent_store");
    assert_int_equal(muster_rdzv_next_rendezvous(&rdzv, &info, NULL), 0);
    assert_string_equal(asked, "next_rendezvous");
    assert_int_equal(info.rank * 100 + info.world_size * 10 + info.round, 123);
    assert_int_equal(muster_rdzv_is_closed(&rdzv, &flag, NULL), 0);
    assert_string_equal(asked, "is_closed");
    assert_true(flag);
    assert_int_equal(muster_rdzv_set_closed(&rdzv, &error), MUSTER_ERDZV_TIMEOUT);
    assert_string_equal(asked, "set_closed");
    assert_string_equal(error.text, "slow");
    assert_int_equal(muster_rdzv_num_nodes_waiting(&rdzv, &count, NULL), 0);
    assert_string_equal(asked, "num_nodes_waiting");
    assert_int_equal(count, 5);
    flag = false;
    assert_int_equal(muster_rdzv_shutdown(&rdzv, &flag, NULL), 0);
    assert_string_equal(asked, "shutdown");
    assert_true(flag);
    muster_rdzv_free(&rdzv);
    assert_string_equal(asked, "free");
    assert_ptr_equal(asked_whom, &rdzv);
}

static void what_a_table_lacks_is_not_supported(void **state)
{
    static const struct muster_rdzv_ops few = { .size = sizeof few, .get_backend = get_backend };
    struct muster_rdzv rdzv = { &few };
    struct muster_rdzv_info info;
    struct muster_error error;
    int64_t count;
    bool flag;

    (void)state;
    assert_string_equal(muster_rdzv_get_run_id(&rdzv), "");
    assert_false(muster_rdzv_use_agent_store(&rdzv));
    assert_int_equal(muster_rdzv_next_rendezvous(&rdzv, &info, &error), MUSTER_ENOTSUP);
    assert_non_null(strstr(error.text, "next_rendezvous"));
    assert_non_null(strstr(error.text, "'echo'"));
    assert_int_equal(muster_rdzv_is_closed(&rdzv, &flag, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_rdzv_set_closed(&rdzv, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_rdzv_num_nodes_waiting(&rdzv, &count, &error), MUSTER_ENOTSUP);
    assert_int_equal(muster_rdzv_shutdown(&rdzv, &flag, &error), MUSTER_ENOTSUP);
    muster_rdzv_free(&rdzv);
    muster_rdzv_free(NULL);
}

static void beyond_the_end_of_a_short_table_nothing_is_called(void **state)
{
    struct muster_rdzv_ops shorter = whole;
    struct muster_rdzv rdzv = { &shorter };
    bool flag;

    (void)state;
    shorter.size = offsetof(struct muster_rdzv_ops, shutdown);
    assert_int_equal(muster_rdzv_shutdown(&rdzv, &flag, NULL), MUSTER_ENOTSUP);
    assert_int_equal(muster_rdzv_is_closed(&rdzv, &flag, NULL), 0);
    muster_rdzv_free(&rdzv);
    assert_string_equal(asked, "is_closed");
    shorter.size = sizeof shorter.size;
    assert_string_equal(muster_rdzv_get_backend(&rdzv), "");
}

static const int *answers; /* of the calls to come */

static int not_yet(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info, struct muster_error *reterr)
{
    int rc = *answers++;

    (void)rdzv;
    if (rc < 0)
        return mu_fail(reterr, rc, "not yet");
    *ret_info = (struct muster_rdzv_info){ .rank = 1, .world_size = 2, .round = 3 };
    return 0;
}

static void a_handler_that_says_not_yet_is_called_again(void **state)
{
    static const int succeeds[] = { MUSTER_ERETRY_NOW, MUSTER_ERETRY_NOW, MUSTER_ERETRY, 0, MUSTER_EINTERNAL };
    static const int closed[] = { MUSTER_ERETRY_NOW, MUSTER_ERDZV_CLOSED, 0 };
    struct muster_rdzv_ops ops = whole;
    struct muster_rdzv rdzv = { &ops };
    struct muster_rdzv_info info;
    struct muster_error error;

    (void)state;
    ops.next_rendezvous = not_yet;
    answers = succeeds;
    assert_int_equal(muster_rdzv_next_rendezvous(&rdzv, &info, NULL), 0);
    assert_int_equal(info.round, 3);
    assert_ptr_equal(answers, succeeds + 4);
    answers = closed;
    assert_int_equal(muster_rdzv_next_rendezvous(&rdzv, &info, &error), MUSTER_ERDZV_CLOSED);
    assert_ptr_equal(answers, closed + 2);
    assert_string_equal(error.text, "not yet");
}

static void every_event_has_a_name(void **state)
{
    static const struct {
        enum muster_rdzv_event_type type;
        const char *name;
    } rows[] = {
#define X(name, text) { MUSTER_RDZV_##name, text },
        MUSTER_RDZV_EVENTS(X)
#undef X
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(muster_rdzv_event_name(rows[i].type), rows[i].name);
    assert_string_equal(muster_rdzv_event_name((enum muster_rdzv_event_type)99), "unknown");
}

/* ---- Where workers meet: on a store that is two texts ---- */

struct two {
    struct muster_store base;
    char addr[600], port[600];
    int rc; /* of every call */
};

static char *place(struct two *two, struct muster_slice key)
{
    assert_int_equal(key.len, strlen(MUSTER_KEY_MASTER_ADDR));
    return memcmp(key.data, MUSTER_KEY_MASTER_ADDR, key.len) == 0 ? two->addr : two->port;
}

static int two_set(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                   struct muster_error *reterr)
{
    struct two *two = (struct two *)store;

    (void)timeout_ms;
    if (two->rc < 0)
        return mu_fail(reterr, two->rc, "the store is gone");
    (void)snprintf(place(two, key), sizeof two->addr, "%.*s", (int)value.len, (const char *)value.data);
    return 0;
}

static int two_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                   struct muster_bytes *ret_value, struct muster_error *reterr)
{
    struct two *two = (struct two *)store;

    (void)timeout_ms;
    if (two->rc < 0)
        return mu_fail(reterr, two->rc, "the store is gone");
    ret_value->data = strdup(place(two, key));
    ret_value->len = strlen(ret_value->data);
    return 0;
}

static const struct muster_store_ops two_ops = {
    .size = sizeof two_ops, .name = "two", .set = two_set, .get = two_get
};

static void rank_0_publishes_what_it_is_given(void **state)
{
    struct two two = { .base = { &two_ops, 1000 } };
    struct muster_store_info info = { 0 };

    (void)state;
    assert_int_equal(muster_store_info_build(0, &two.base, "10.0.0.7", 1234, &info, NULL), 0);
    assert_string_equal(two.addr, "10.0.0.7");
    assert_string_equal(two.port, "1234");
    assert_string_equal(info.master_addr, "10.0.0.7");
    assert_int_equal(info.master_port, 1234);
}

static void rank_0_finds_a_name_and_a_free_port_by_itself(void **state)
{
    struct two two = { .base = { &two_ops, 1000 } };
    struct muster_store_info info = { 0 };
    char name[256] = "";

    (void)state;
    assert_int_equal(gethostname(name, sizeof name - 1), 0);
    assert_int_equal(muster_store_info_build(0, &two.base, NULL, 0, &info, NULL), 0);
    assert_string_equal(info.master_addr, name);
    assert_true(info.master_port > 0);
    assert_int_equal(muster_store_info_build(0, &two.base, "", 7, &info, NULL), 0);
    assert_string_equal(info.master_addr, name);
}

static void other_ranks_take_what_is_there(void **state)
{
    struct two two = { .base = { &two_ops, 1000 }, .addr = "2001:db8::1", .port = "65535" };
    struct muster_store_info info = { 0 };

    (void)state;
    assert_int_equal(muster_store_info_build(3, &two.base, "ignored", 1, &info, NULL), 0);
    assert_string_equal(info.master_addr, "2001:db8::1");
    assert_int_equal(info.master_port, 65535);
}

static void what_is_no_address_is_refused(void **state)
{
    struct two two = { .base = { &two_ops, 1000 }, .port = "1" };
    struct muster_store_info info = { .master_port = 77 };
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_store_info_build(1, &two.base, NULL, 0, &info, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "MASTER_ADDR"));
    memset(two.addr, 'a', 256);
    assert_int_equal(muster_store_info_build(1, &two.base, NULL, 0, &info, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "256 bytes"));
    two.addr[255] = '\0';
    assert_int_equal(muster_store_info_build(1, &two.base, NULL, 0, &info, &error), 0);
    assert_int_equal(strlen(info.master_addr), 255);
}

static void what_is_no_port_is_refused(void **state)
{
    static const char *const rows[] = { "", "0", "65536", "-1", "http", "12x", "1 " };
    struct two two = { .base = { &two_ops, 1000 }, .addr = "host" };
    struct muster_store_info info = { .master_port = 77 };
    struct muster_error error = { 0 };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)snprintf(two.port, sizeof two.port, "%s", rows[i]);
        assert_int_equal(muster_store_info_build(1, &two.base, NULL, 0, &info, &error), MUSTER_EINVAL);
        assert_non_null(strstr(error.text, "MASTER_PORT"));
        assert_int_equal(info.master_port, 77);
    }
}

static void a_store_that_fails_is_named_with_the_step(void **state)
{
    struct two two = { .base = { &two_ops, 1000 }, .rc = MUSTER_ELOST };
    struct muster_store_info info;
    struct muster_error error = { 0 };

    (void)state;
    for (int64_t rank = 0; rank < 2; rank++) {
        assert_int_equal(muster_store_info_build(rank, &two.base, NULL, 0, &info, &error), MUSTER_ELOST);
        assert_string_equal(error.text, "address of the workers' store: the store is gone");
    }
    assert_int_equal(muster_store_info_build(-1, &two.base, NULL, 0, &info, &error), MUSTER_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_goes_to_the_handlers_own_table),
        cmocka_unit_test(what_a_table_lacks_is_not_supported),
        cmocka_unit_test(beyond_the_end_of_a_short_table_nothing_is_called),
        cmocka_unit_test(a_handler_that_says_not_yet_is_called_again),
        cmocka_unit_test(every_event_has_a_name),
        cmocka_unit_test(rank_0_publishes_what_it_is_given),
        cmocka_unit_test(rank_0_finds_a_name_and_a_free_port_by_itself),
        cmocka_unit_test(other_ranks_take_what_is_there),
        cmocka_unit_test(what_is_no_address_is_refused),
        cmocka_unit_test(what_is_no_port_is_refused),
        cmocka_unit_test(a_store_that_fails_is_named_with_the_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
