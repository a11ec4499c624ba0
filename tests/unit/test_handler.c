/* What all handlers share: in which time a loss is noticed, and what is said of it and of errors. */
#include "handler/handler.h"
#include "pure.h"
#include "rdzv/classic.h"

static void a_silent_node_is_noticed_after_its_last_heartbeat_and_one_of_ours(void **state)
{
    static const struct {
        uint64_t keep_alive_ms;
        unsigned attempts;
        uint64_t loss_ms;
        const char *cause;
    } rows[] = {
        { 5000, 3, 20000, "no heartbeat for 15 s" },
        { 1000, 1, 2000, "no heartbeat for 1 s" },
        { 1500, 3, 6000, "no heartbeat for 4 s" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;
        struct mu_handler handler = { .loss_ms = 0 };

        settings.keep_alive_ms = rows[i].keep_alive_ms;
        settings.keep_alive_attempts = rows[i].attempts;
        mu_handler_loss_by_heartbeats(&handler, &settings);
        assert_int_equal(handler.loss_ms, rows[i].loss_ms);
        assert_string_equal(handler.loss_cause, rows[i].cause);
    }
}

static void a_lease_that_ends_is_noticed_within_its_grace(void **state)
{
    static const struct {
        uint64_t lease_s, grace_ms, loss_ms;
        const char *cause;
    } rows[] = {
        { 10, 0, 10000, "no keep-alive for 10 s" },
        { 3600, 0, 3600000, "no keep-alive for 3600 s" },
        { MU_CLASSIC_RANK_TTL_S, MU_CLASSIC_GRACE_MS, 22000, "no keep-alive for 10 s" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_handler handler = { .loss_ms = 0 };

        mu_handler_loss_by_lease(&handler, rows[i].lease_s, rows[i].grace_ms);
        assert_int_equal(handler.loss_ms, rows[i].loss_ms);
        assert_string_equal(handler.loss_cause, rows[i].cause);
    }
}

static void an_error_says_what_was_asked(void **state)
{
    static const struct {
        enum muster_rdzv_event_type type;
        enum muster_rdzv_request request;
        const char *text;
    } rows[] = {
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_JOIN, "join rendezvous 'job': refused" },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_LEAVE, "leave rendezvous 'job': refused" },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_CLOSE, "close rendezvous 'job': refused" },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_MEMBERSHIP, "stay in rendezvous 'job': refused" },
        { MUSTER_RDZV_LOOKED, MUSTER_RDZV_REQUEST_LOOK, "look at rendezvous 'job': refused" },
        { MUSTER_RDZV_BACKEND_DOWN, MUSTER_RDZV_REQUEST_UNKNOWN, "keep to rendezvous 'job': refused" },
        { MUSTER_RDZV_REPORTED, MUSTER_RDZV_REQUEST_UNKNOWN, "report to rendezvous 'job': refused" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_error error = { .code = MUSTER_ECONNECT, .text = "refused" };

        mu_handler_wrap(&(struct muster_rdzv_event){ .type = rows[i].type, .request = rows[i].request }, "job", &error);
        assert_string_equal(error.text, rows[i].text);
        assert_int_equal(error.code, MUSTER_ECONNECT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_node_is_noticed_after_its_last_heartbeat_and_one_of_ours),
        cmocka_unit_test(a_lease_that_ends_is_noticed_within_its_grace),
        cmocka_unit_test(an_error_says_what_was_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
