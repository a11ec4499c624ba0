/* The registry: who may be bound to which name, and what is created by it. */
#include "events/record.h"
#include "failmalloc.h"
#include "handler/handler.h"
#include "pure.h"

#include <pthread.h>
#include <stdio.h>

/* ---- A handler of a user's own ---- */

struct own {
    struct muster_rdzv base;
    const char *name;
    bool *freed;
};

static const char *own_backend(const struct muster_rdzv *rdzv)
{
    return ((const struct own *)rdzv)->name;
}

static void own_free(struct muster_rdzv *rdzv)
{
    *((struct own *)rdzv)->freed = true;
    free(rdzv);
}

static const struct muster_rdzv_ops own_ops = { .size = sizeof own_ops, .get_backend = own_backend, .free = own_free };

struct plan { /* the context of the creator */
    const char *name;
    int rc;
    bool silent, nothing, freed;
    unsigned calls;
};

static int create_own(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                      struct muster_error *reterr)
{
    struct plan *plan = ctx;
    struct own *own;

    assert_non_null(muster_rdzv_params_backend(params));
    plan->calls++;
    if (plan->rc != 0)
        return plan->silent ? plan->rc : mu_fail(reterr, plan->rc, "no luck today");
    if (plan->nothing)
        return 0;
    own = calloc(1, sizeof *own);
    if (own == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory");
    *own = (struct own){ .base = { &own_ops }, .name = plan->name, .freed = &plan->freed };
    *ret_rdzv = &own->base;
    return 0;
}

static int create_other(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                        struct muster_error *reterr)
{
    return create_own(ctx, params, ret_rdzv, reterr);
}

static struct muster_rdzv_params *params_for(const char *backend)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new(backend, "", "job", 1, 1, NULL, &params, NULL), 0);
    return params;
}

static int create(struct muster_rdzv_registry *registry, const char *backend, struct muster_rdzv **ret_rdzv,
                  struct muster_error *reterr)
{
    struct muster_rdzv_params *params = params_for(backend);
    int rc = muster_rdzv_registry_create(registry, params, ret_rdzv, reterr);

    muster_rdzv_params_free(params);
    return rc;
}

static int setup(void **state)
{
    struct muster_rdzv_registry *registry = NULL;

    assert_int_equal(muster_rdzv_registry_new(&registry, NULL), 0);
    *state = registry;
    return 0;
}

static int teardown(void **state)
{
    muster_events_set_sink(NULL, NULL);
    muster_rdzv_registry_free(*state);
    return 0;
}

/* ---- register ---- */

static void an_empty_name_is_refused(void **state)
{
    struct muster_error error = { 0 };

    assert_int_equal(muster_rdzv_registry_register(*state, "", create_own, NULL, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "empty"));
    assert_int_equal(muster_rdzv_registry_register(*state, NULL, create_own, NULL, &error), MUSTER_EINVAL);
}

static void a_creator_is_needed(void **state)
{
    struct muster_error error = { 0 };

    assert_int_equal(muster_rdzv_registry_register(*state, "mine", NULL, NULL, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'mine'"));
}

static void the_same_creator_may_be_registered_again(void **state)
{
    struct plan plan = { .name = "mine" };
    struct muster_rdzv *rdzv = NULL;

    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &plan, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &plan, NULL), 0);
    assert_int_equal(create(*state, "mine", &rdzv, NULL), 0);
    assert_int_equal(plan.calls, 1);
    muster_rdzv_free(rdzv);
}

static void another_function_for_a_bound_name_is_refused_naming_both(void **state)
{
    struct plan plan = { .name = "mine" };
    struct muster_error error = { 0 };
    char there[32], given[32];

    (void)snprintf(there, sizeof there, "0x%lx", (unsigned long)(uintptr_t)create_own);
    (void)snprintf(given, sizeof given, "0x%lx", (unsigned long)(uintptr_t)create_other);
    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &plan, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_other, &plan, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'mine'"));
    assert_non_null(strstr(error.text, there));
    assert_non_null(strstr(error.text, given));
}

static void another_context_for_a_bound_name_is_refused(void **state)
{
    struct plan one = { .name = "mine" }, two = { .name = "mine" };
    struct muster_rdzv *rdzv = NULL;

    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &one, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &two, NULL), MUSTER_EINVAL);
    assert_int_equal(create(*state, "mine", &rdzv, NULL), 0);
    assert_int_equal(one.calls, 1);
    muster_rdzv_free(rdzv);
}

static void one_creator_may_have_several_names(void **state)
{
    struct plan plan = { .name = "b" };
    struct muster_rdzv *rdzv = NULL;

    assert_int_equal(muster_rdzv_registry_register(*state, "a", create_own, &plan, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(*state, "b", create_own, &plan, NULL), 0);
    assert_int_equal(create(*state, "b", &rdzv, NULL), 0);
    muster_rdzv_free(rdzv);
}

static void names_and_their_number_are_bounded(void **state)
{
    char name[257];

    memset(name, 'n', 256);
    name[256] = '\0';
    assert_int_equal(muster_rdzv_registry_register(*state, name, create_own, NULL, NULL), MUSTER_ELIMIT);
    for (int i = 0; i < 1024; i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(muster_rdzv_registry_register(*state, name, create_own, NULL, NULL), 0);
    }
    assert_int_equal(muster_rdzv_registry_register(*state, "one more", create_own, NULL, NULL), MUSTER_ELIMIT);
    assert_int_equal(create(*state, "one more", NULL, NULL),
                     MUSTER_EINVAL); /* all names do not fit the error; no harm */
}

/* ---- create ---- */

static void a_handler_of_ones_own_is_created_by_its_name(void **state)
{
    struct plan plan = { .name = "mine" };
    struct muster_rdzv *rdzv = NULL;

    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &plan, NULL), 0);
    assert_int_equal(create(*state, "mine", &rdzv, NULL), 0);
    assert_string_equal(muster_rdzv_get_backend(rdzv), "mine");
    assert_false(plan.freed);
    muster_rdzv_free(rdzv);
    assert_true(plan.freed);
}

static void an_unknown_name_is_refused_with_the_known_ones_and_a_hint(void **state)
{
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error = { 0 };

    assert_int_equal(create(*state, "nope", &rdzv, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'nope'"));
    assert_non_null(strstr(error.text, "known: none"));
    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, NULL, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(*state, "yours", create_own, NULL, NULL), 0);
    assert_int_equal(create(*state, "nope", &rdzv, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "mine, yours"));
    assert_non_null(strstr(error.text, "register"));
    assert_non_null(strstr(error.text, "--backend-dir"));
    assert_null(rdzv);
}

static void a_handler_with_another_name_is_refused_and_freed(void **state)
{
    struct plan plan = { .name = "yours" };
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error = { 0 };

    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &plan, NULL), 0);
    assert_int_equal(create(*state, "mine", &rdzv, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'mine'"));
    assert_non_null(strstr(error.text, "'yours'"));
    assert_null(rdzv);
    assert_true(plan.freed);
}

static void what_the_creator_says_is_what_the_caller_hears(void **state)
{
    struct plan plan = { .rc = MUSTER_ERDZV_CONNECTION };
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error = { 0 };

    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &plan, NULL), 0);
    assert_int_equal(create(*state, "mine", &rdzv, &error), MUSTER_ERDZV_CONNECTION);
    assert_int_equal(error.code, MUSTER_ERDZV_CONNECTION);
    assert_string_equal(error.text, "no luck today");
    assert_int_equal(create(*state, "mine", &rdzv, NULL), MUSTER_ERDZV_CONNECTION);
    plan.silent = true;
    assert_int_equal(create(*state, "mine", &rdzv, &error), MUSTER_ERDZV_CONNECTION);
    assert_string_equal(error.text, muster_error_text(MUSTER_ERDZV_CONNECTION));
}

static void a_creator_that_gives_nothing_is_an_error(void **state)
{
    struct plan plan = { .nothing = true };
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error = { 0 };

    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &plan, NULL), 0);
    assert_int_equal(create(*state, "mine", &rdzv, &error), MUSTER_EINTERNAL);
    assert_non_null(strstr(error.text, "'mine'"));
    plan.rc = 3;
    assert_int_equal(create(*state, "mine", &rdzv, &error), MUSTER_EINTERNAL);
}

struct seen {
    unsigned records;
    enum muster_node_state state;
    char text[1200];
};

static void remember(void *ctx, const struct muster_event_record *record)
{
    struct seen *seen = ctx;

    seen->records++;
    seen->state = record->node_state;
    (void)snprintf(seen->text, sizeof seen->text, "%s: %s: %s: %s", record->name, record->run_id, record->error,
                   record->message);
}

static void a_failed_creation_is_recorded_once(void **state)
{
    struct plan plan = { .rc = MUSTER_ERDZV_CONNECTION }, good = { .name = "good" };
    struct muster_rdzv *rdzv = NULL;
    struct seen seen = { 0 };

    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &plan, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(*state, "good", create_own, &good, NULL), 0);
    muster_events_set_sink(remember, &seen);
    assert_int_equal(create(*state, "mine", &rdzv, NULL), MUSTER_ERDZV_CONNECTION);
    assert_int_equal(seen.records, 1);
    assert_int_equal(seen.state, MUSTER_NODE_FAILED);
    assert_string_equal(seen.text, "dynamic_rendezvous.py:create_handler: job: no luck today: "
                                   "RendezvousConnectionError: no luck today");
    assert_int_equal(create(*state, "good", &rdzv, NULL), 0);
    assert_int_equal(seen.records, 1);
    muster_rdzv_free(rdzv);
}

/* ---- The default registry ---- */

static void the_default_registry_is_one_and_the_same(void **state)
{
    (void)state;
    assert_non_null(muster_rdzv_registry_default());
    assert_ptr_equal(muster_rdzv_registry_default(), muster_rdzv_registry_default());
}

static void the_default_registry_has_the_back_ends_of_the_library(void **state)
{
    struct muster_rdzv_registry *registry = muster_rdzv_registry_default();
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_rdzv_registry_register(registry, "static", muster_rdzv_static_create, NULL, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(registry, "c10d", create_own, NULL, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "the one of this library"));
    assert_int_equal(create(registry, "nope", &rdzv, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "c10d, static"));
}

static void a_new_registry_does_not_have_them(void **state)
{
    struct muster_rdzv *rdzv = NULL;

    assert_int_equal(create(*state, "c10d", &rdzv, NULL), MUSTER_EINVAL);
    assert_int_equal(create(*state, "static", &rdzv, NULL), MUSTER_EINVAL);
}

/* ---- Event-driven handlers by name ---- */

static void nobody_listens(void *ctx, const struct muster_rdzv_event *event)
{
    (void)ctx;
    (void)event;
    fail_msg("something was told");
}

static int start(struct muster_rdzv_registry *registry, const char *backend, struct muster_error *reterr)
{
    struct muster_rdzv_params *params = params_for(backend);
    struct muster_handler *handler = NULL;
    int rc =
        mu_handler_start_by_name(registry, NULL, params, &MU_DRIVING_DEFAULT, nobody_listens, NULL, &handler, reterr);

    assert_null(handler);
    muster_rdzv_params_free(params);
    return rc;
}

static void an_event_driven_handler_of_an_unknown_name_is_refused(void **state)
{
    struct muster_error error = { 0 };

    assert_int_equal(start(*state, "nope", &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'nope'"));
}

static void a_creator_is_asked_for_an_event_driven_handler_too(void **state)
{
    struct plan fails = { .name = "mine", .rc = MUSTER_ELOST }, other = { .name = "other" };
    struct muster_error error = { 0 };
    struct seen seen = { 0 };

    assert_int_equal(muster_rdzv_registry_register(*state, "mine", create_own, &fails, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(*state, "its", create_own, &other, NULL), 0);
    muster_events_set_sink(remember, &seen);
    assert_int_equal(start(*state, "mine", &error), MUSTER_ELOST);
    assert_non_null(strstr(error.text, "no luck today"));
    assert_int_equal(fails.calls, 1);
    assert_int_equal(seen.records, 1);
    assert_int_equal(start(*state, "its", &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'other'"));
    assert_true(other.freed);
    assert_int_equal(seen.records, 2);
}

/* Who was asked shows by what it complains about. */
static void names_of_the_library_lead_to_its_handlers(void **state)
{
    static const struct {
        const char *backend, *options, *reason;
    } rows[] = { { "static", "timeout=1", "'rank'" }, { "c10d", "join_timeout=0", "join_timeout" } };
    struct muster_rdzv_registry *registry = muster_rdzv_registry_default();

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_params *params = params_for(rows[i].backend);
        struct muster_handler *handler = NULL;
        struct muster_rdzv *rdzv = NULL;
        struct muster_error error = { 0 };

        assert_int_equal(muster_rdzv_params_set_options(params, rows[i].options, NULL), 0);
        assert_int_equal(mu_handler_start_by_name(registry, NULL, params, &MU_DRIVING_DEFAULT, nobody_listens, NULL,
                                                  &handler, &error),
                         MUSTER_EINVAL);
        assert_non_null(strstr(error.text, rows[i].reason));
        assert_int_equal(muster_rdzv_registry_create(registry, params, &rdzv, &error), MUSTER_EINVAL);
        assert_non_null(strstr(error.text, rows[i].reason));
        muster_rdzv_params_free(params);
    }
}

/* ---- Trouble ---- */

static void *register_many(void *arg)
{
    struct muster_rdzv_registry *registry = arg;
    char name[16];

    for (int i = 0; i < 200; i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(muster_rdzv_registry_register(registry, name, create_own, NULL, NULL), 0);
    }
    return NULL;
}

static void threads_may_register_at_once(void **state)
{
    pthread_t threads[4];

    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, register_many, *state), 0);
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void without_memory_it_is_refused_and_nothing_leaks(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct muster_rdzv_registry *registry = NULL;
        int rc = muster_rdzv_registry_new(&registry, NULL);

        if (rc == 0)
            rc = muster_rdzv_registry_register(registry, "a", create_own, NULL, NULL);
        if (rc == 0)
            rc = muster_rdzv_registry_register(registry, "b", create_own, NULL, NULL);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        muster_rdzv_registry_free(registry);
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_empty_name_is_refused),
        TEST(a_creator_is_needed),
        TEST(the_same_creator_may_be_registered_again),
        TEST(another_function_for_a_bound_name_is_refused_naming_both),
        TEST(another_context_for_a_bound_name_is_refused),
        TEST(one_creator_may_have_several_names),
        TEST(names_and_their_number_are_bounded),
        TEST(a_handler_of_ones_own_is_created_by_its_name),
        TEST(an_unknown_name_is_refused_with_the_known_ones_and_a_hint),
        TEST(a_handler_with_another_name_is_refused_and_freed),
        TEST(what_the_creator_says_is_what_the_caller_hears),
        TEST(a_creator_that_gives_nothing_is_an_error),
        TEST(a_failed_creation_is_recorded_once),
        cmocka_unit_test(the_default_registry_is_one_and_the_same),
        cmocka_unit_test(the_default_registry_has_the_back_ends_of_the_library),
        TEST(a_new_registry_does_not_have_them),
        TEST(an_event_driven_handler_of_an_unknown_name_is_refused),
        TEST(a_creator_is_asked_for_an_event_driven_handler_too),
        cmocka_unit_test(names_of_the_library_lead_to_its_handlers),
        TEST(threads_may_register_at_once),
        cmocka_unit_test(without_memory_it_is_refused_and_nothing_leaks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
