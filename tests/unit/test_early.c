/* What a handler was asked before it could do it. */
#include "handler/early.h"
#include "pure.h"

#include <stdio.h>

static char trace[256];
static struct mu_early early;

static int start(void **state)
{
    (void)state;
    trace[0] = '\0';
    early = (struct mu_early){ .count = 0 };
    return 0;
}

static void note(const char *text)
{
    size_t used = strlen(trace);

    (void)snprintf(trace + used, sizeof trace - used, "%.100s. ", text);
}

static void join(struct muster_handler *handler)
{
    (void)handler;
    note("join");
    mu_early_add(&early, MU_EARLY_LOOK); /* of the next time */
}

static void close_it(struct muster_handler *handler)
{
    (void)handler;
    note("close");
}

static void look(struct muster_handler *handler)
{
    (void)handler;
    note("look");
}

static const struct muster_handler_ops ops = { .size = sizeof ops, .join = join, .close = close_it, .look = look };
static struct muster_handler handler = { &ops };

static void tell(void *ctx, enum muster_rdzv_event_type type, enum muster_rdzv_request request,
                 const struct muster_error *error)
{
    assert_ptr_equal(ctx, trace);
    assert_int_equal(request, type == MUSTER_RDZV_LOOKED             ? MUSTER_RDZV_REQUEST_LOOK
                              : strstr(error->text, "close") != NULL ? MUSTER_RDZV_REQUEST_CLOSE
                                                                     : MUSTER_RDZV_REQUEST_JOIN);
    note(type == MUSTER_RDZV_LOOKED ? "looked" : "failed");
    note(error->text);
    mu_early_add(&early, MU_EARLY_JOIN);
}

static void what_was_asked_is_passed_on_in_order_and_once(void **state)
{
    (void)state;
    mu_early_add(&early, MU_EARLY_CLOSE);
    mu_early_add(&early, MU_EARLY_JOIN);
    mu_early_add(&early, MU_EARLY_CLOSE);
    mu_early_pass_on(&early, &handler);
    assert_string_equal(trace, "close. join. ");
    assert_int_equal(early.count, 1);
    mu_early_pass_on(&early, &handler);
    assert_string_equal(trace, "close. join. look. ");
    assert_int_equal(early.count, 0);
}

static void what_is_no_longer_wanted_is_dropped(void **state)
{
    (void)state;
    mu_early_add(&early, MU_EARLY_LOOK);
    mu_early_add(&early, MU_EARLY_JOIN);
    mu_early_add(&early, MU_EARLY_CLOSE);
    mu_early_drop(&early, MU_EARLY_JOIN);
    mu_early_drop(&early, MU_EARLY_JOIN);
    mu_early_pass_on(&early, &handler);
    assert_string_equal(trace, "look. close. ");
}

static void each_of_them_fails_where_there_is_no_back_end(void **state)
{
    const struct mu_early_node node = { "job", NULL, 1 };
    const struct muster_error error = { .code = MUSTER_ERDZV_CONNECTION, .text = "nobody there" };

    (void)state;
    mu_early_add(&early, MU_EARLY_JOIN);
    mu_early_add(&early, MU_EARLY_LOOK);
    mu_early_add(&early, MU_EARLY_CLOSE);
    mu_early_fail(&early, &node, &error, tell, trace);
    assert_string_equal(trace, "failed. join rendezvous 'job': nobody there. "
                               "looked. look at rendezvous 'job': nobody there. "
                               "failed. close rendezvous 'job': nobody there. ");
    assert_int_equal(early.count, 1); /* what was asked from inside is kept */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_was_asked_is_passed_on_in_order_and_once, start),
        cmocka_unit_test_setup(what_is_no_longer_wanted_is_dropped, start),
        cmocka_unit_test_setup(each_of_them_fails_where_there_is_no_back_end, start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
