/* The client of etcd's version 3 API on a real loop, with servers that say what the test wants. With a real etcd it is
 * tested in tests/interop. */
#include "etcd_scene.h"
#include "failmalloc.h"

static void note(char *trace, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void note(char *trace, size_t room, const char *format, ...)
{
    size_t used = strlen(trace);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(trace + used, room - used, format, args);
    va_end(args);
}

/* ---- Calls ---- */

static void on_called(struct mu_etcd3_call *call)
{
    set_and_stop(call->ctx);
}

#define READ .request = { .kind = MU_ETCD3_RANGE, .range = { .key = { "k", 1 } } }, .done = on_called
#define CALL(...) ((struct mu_etcd3_call){ __VA_ARGS__ })

/* Makes it and waits for it; its answer is to be freed. */
static struct mu_etcd3_call called(struct mu_etcd3 *etcd, struct mu_etcd3_call call)
{
    bool done = false;

    call.ctx = &done;
    if (call.timeout_ms == 0)
        call.timeout_ms = 10000;
    mu_etcd3_call(etcd, &call);
    assert_false(done);
    run_until(&done);
    return call;
}

static void a_call_is_answered(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct mu_etcd3_call call = called(etcd, CALL(READ));

    (void)state;
    assert_int_equal(call.rc, 0);
    assert_int_equal(call.answer.revision, 7);
    assert_string_equal(script[MU_ETCD3_RANGE].body, "{\"key\":\"aw==\"}");
    mu_etcd3_answer_done(&call.answer);
    close_etcd(etcd);
}

static void an_error_names_the_call_the_server_and_etcds_words(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct mu_etcd3_call call;
    char text[128];

    (void)state;
    script[MU_ETCD3_RANGE].lines[0] = "400 " FAILURE("11", "etcdserver: mvcc: required revision has been compacted");
    call = called(etcd, CALL(READ));
    assert_int_equal(call.rc, MUSTER_EINVAL);
    assert_int_equal(call.answer.code, MU_ETCD3_OUT_OF_RANGE);
    (void)snprintf(text, sizeof text, "read 'k': http://127.0.0.1:%u: HTTP 400, 11 etcdserver: mvcc: required",
                   ports[0]);
    assert_non_null(strstr(call.error.text, text));
    mu_etcd3_answer_done(&call.answer);
    close_etcd(etcd);
}

static void a_call_that_nobody_answers_ends_with_its_time(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct mu_etcd3_call call;

    (void)state;
    script[MU_ETCD3_RANGE].lines[0] = SILENT;
    call = called(etcd, CALL(READ, .timeout_ms = 300, .attempt_ms = 100));
    assert_int_equal(call.rc, MUSTER_ETIMEOUT);
    assert_non_null(strstr(call.error.text, "read 'k': http://127.0.0.1:"));
    mu_etcd3_answer_done(&call.answer);
    close_etcd(etcd);
}

static void a_call_can_be_canceled_and_is_when_all_is_closed(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    bool done[2] = { false, false };
    struct mu_etcd3_call calls[2] = { CALL(READ, .timeout_ms = 10000, .ctx = &done[0]),
                                      CALL(READ, .timeout_ms = 10000, .ctx = &done[1]) };

    (void)state;
    script[MU_ETCD3_RANGE].lines[0] = SILENT;
    for (int i = 0; i < 2; i++)
        mu_etcd3_call(etcd, &calls[i]);
    UNTIL(script[MU_ETCD3_RANGE].asked == 2);
    mu_etcd3_cancel(&calls[0]);
    mu_etcd3_cancel(&calls[0]);
    assert_false(done[0]);
    run_until(&done[0]);
    assert_int_equal(calls[0].rc, MUSTER_ECANCELED);
    close_etcd(etcd);
    assert_true(done[1]);
    assert_int_equal(calls[1].rc, MUSTER_ECANCELED);
}

/* ---- Log-in ---- */

static bool has_line(const struct script *of, const char *line)
{
    return of->server != NULL && strstr(of->server->last, line) != NULL;
}

static void a_user_logs_in_once_for_all_calls(void **state)
{
    struct mu_etcd3 *etcd = open_etcd("ann");
    struct mu_etcd3_call call;

    (void)state;
    for (int i = 0; i < 2; i++) {
        call = called(etcd, CALL(READ));
        assert_int_equal(call.rc, 0);
        mu_etcd3_answer_done(&call.answer);
        assert_true(has_line(&script[MU_ETCD3_RANGE], "\r\nAuthorization: secret.1\r\n"));
    }
    assert_int_equal(script[MU_ETCD3_AUTHENTICATE].asked, 1);
    assert_string_equal(script[MU_ETCD3_AUTHENTICATE].body, "{\"name\":\"ann\",\"password\":\"secret\"}");
    close_etcd(etcd);
}

static void a_token_that_is_refused_is_replaced_once(void **state)
{
    struct mu_etcd3 *etcd = open_etcd("ann");
    struct mu_etcd3_call call;

    (void)state;
    script[MU_ETCD3_AUTHENTICATE].lines[1] = "{" HEADER("7") ",\"token\":\"secret.2\"}";
    script[MU_ETCD3_RANGE].lines[0] = "401 " FAILURE("16", "etcdserver: invalid auth token");
    script[MU_ETCD3_RANGE].lines[1] = "{" HEADER("7") "}";
    call = called(etcd, CALL(READ));
    assert_int_equal(call.rc, 0);
    assert_true(has_line(&script[MU_ETCD3_RANGE], "\r\nAuthorization: secret.2\r\n"));
    mu_etcd3_answer_done(&call.answer);
    script[MU_ETCD3_RANGE].lines[1] = script[MU_ETCD3_RANGE].lines[0]; /* from now on, always */
    call = called(etcd, CALL(READ));
    assert_int_equal(call.rc, MUSTER_EINVAL);
    assert_int_equal(call.answer.code, MU_ETCD3_UNAUTHENTICATED);
    assert_null(strstr(call.error.text, "secret"));
    mu_etcd3_answer_done(&call.answer);
    assert_int_equal(script[MU_ETCD3_AUTHENTICATE].asked, 3);
    close_etcd(etcd);
}

static void a_wrong_password_is_told_and_not_shown(void **state)
{
    struct mu_etcd3 *etcd = open_etcd("ann");
    struct mu_etcd3_call call;

    (void)state;
    script[MU_ETCD3_AUTHENTICATE].lines[0] =
        "400 " FAILURE("3", "etcdserver: authentication failed, invalid user ID or password");
    call = called(etcd, CALL(READ));
    assert_int_equal(call.rc, MUSTER_EINVAL);
    assert_non_null(strstr(call.error.text, "read 'k': log in: http://127.0.0.1:"));
    assert_non_null(strstr(call.error.text, "invalid user ID"));
    assert_null(strstr(call.error.text, "secret"));
    mu_etcd3_answer_done(&call.answer);
    close_etcd(etcd);
}

static void who_waits_for_a_log_in_has_its_own_time_and_can_be_canceled(void **state)
{
    struct mu_etcd3 *etcd = open_etcd("ann");
    bool done[3] = { false, false, false };
    struct mu_etcd3_call calls[3] = { CALL(READ, .timeout_ms = 50, .ctx = &done[0]),
                                      CALL(READ, .timeout_ms = 10000, .ctx = &done[1]),
                                      CALL(READ, .timeout_ms = 10000, .ctx = &done[2]) };

    (void)state;
    script[MU_ETCD3_AUTHENTICATE].lines[0] = SILENT;
    for (int i = 0; i < 3; i++)
        mu_etcd3_call(etcd, &calls[i]);
    run_until(&done[0]);
    assert_int_equal(calls[0].rc, MUSTER_ETIMEOUT);
    assert_non_null(strstr(calls[0].error.text, "read 'k': log in: "));
    mu_etcd3_cancel(&calls[1]);
    run_until(&done[1]);
    assert_int_equal(calls[1].rc, MUSTER_ECANCELED);
    assert_false(done[2]);
    close_etcd(etcd);
    assert_int_equal(calls[2].rc, MUSTER_ECANCELED);
    assert_int_equal(script[MU_ETCD3_RANGE].asked, 0);
}

/* ---- Leases ---- */

struct holder {
    char trace[512];
    bool granted, lost, closed;
    unsigned troubles, goods;
    bool close_when_told;
    struct muster_error error;
};

static void on_granted(struct mu_etcd3_lease *lease, int64_t id, void *ctx)
{
    struct holder *h = ctx;

    assert_true(id > 0 && id == mu_etcd3_lease_id(lease));
    h->granted = true;
    if (h->close_when_told)
        mu_etcd3_lease_close(lease, true, 10000, set_and_stop, &h->closed);
    uv_stop(&loop);
}

static void on_lost(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    struct holder *h = ctx;

    h->lost = true;
    h->error = *error;
    if (h->close_when_told)
        mu_etcd3_lease_close(lease, true, 10000, set_and_stop, &h->closed);
    uv_stop(&loop);
}

static void on_lease_trouble(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    struct holder *h = ctx;

    (void)lease;
    *(error != NULL ? &h->troubles : &h->goods) += 1;
    if (error != NULL)
        h->error = *error;
}

static const struct mu_etcd3_lease_ops lease_ops = { on_granted, on_lost, on_lease_trouble };

static struct mu_etcd3_lease *take(struct mu_etcd3 *etcd, struct holder *h, uint64_t grant_ms)
{
    struct mu_etcd3_lease *lease = NULL;

    assert_int_equal(mu_etcd3_lease_start(etcd, 2, grant_ms, &lease_ops, h, &lease, NULL), 0);
    assert_false(h->granted);
    assert_int_equal(mu_etcd3_lease_id(lease), 0);
    return lease;
}

static void end_lease(struct mu_etcd3_lease *lease, struct holder *h, bool revoke)
{
    mu_etcd3_lease_close(lease, revoke, 10000, set_and_stop, &h->closed);
    assert_false(h->closed);
    run_until(&h->closed);
}

static void a_lease_is_granted_kept_alive_and_revoked(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct holder h = { .granted = false };
    struct mu_etcd3_lease *lease = take(etcd, &h, 10000);
    char body[64];

    (void)state;
    run_until(&h.granted);
    (void)snprintf(body, sizeof body, "{\"TTL\":\"2\",\"ID\":\"%lld\"}", (long long)mu_etcd3_lease_id(lease));
    assert_string_equal(script[MU_ETCD3_GRANT].body, body);
    UNTIL(script[MU_ETCD3_KEEP_ALIVE].asked >= 2); /* each third of its time */
    end_lease(lease, &h, true);
    (void)snprintf(body, sizeof body, "{\"ID\":\"%.*s",
                   (int)strcspn(strstr(script[MU_ETCD3_GRANT].body, "ID") + 5, "}"),
                   strstr(script[MU_ETCD3_GRANT].body, "ID") + 5);
    assert_int_equal(strncmp(script[MU_ETCD3_REVOKE].body, body, strlen(body)), 0);
    assert_false(h.lost);
    assert_int_equal(h.troubles + h.goods, 0);
    close_etcd(etcd);
}

static void a_lease_outlives_errors(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct holder h = { .granted = false };
    struct mu_etcd3_lease *lease;

    (void)state;
    script[MU_ETCD3_KEEP_ALIVE].lines[1] = script[MU_ETCD3_KEEP_ALIVE].lines[0];
    script[MU_ETCD3_KEEP_ALIVE].lines[0] = "503 " FAILURE("14", "etcdserver: no leader");
    lease = take(etcd, &h, 10000);
    UNTIL(h.goods == 1);
    assert_int_equal(h.troubles, 1);
    assert_non_null(strstr(h.error.text, ": http://127.0.0.1:"));
    assert_false(h.lost);
    end_lease(lease, &h, false);
    assert_int_equal(script[MU_ETCD3_REVOKE].asked, 0);
    close_etcd(etcd);
}

static void a_lease_that_etcd_does_not_have_is_lost(void **state)
{
    static const char *const lines[] = { "{\"result\":{" HEADER("7") ",\"ID\":\"1\"}}",
                                         "404 " FAILURE("5", "etcdserver: requested lease not found") };

    (void)state;
    for (size_t i = 0; i < COUNT(lines); i++) {
        struct mu_etcd3 *etcd = open_etcd(NULL);
        struct holder h = { .close_when_told = false };
        struct mu_etcd3_lease *lease;

        script[MU_ETCD3_KEEP_ALIVE].lines[0] = lines[i];
        lease = take(etcd, &h, 10000);
        run_until(&h.lost);
        assert_true(h.granted);
        assert_non_null(strstr(h.error.text, "keep lease "));
        assert_int_equal(h.error.code, MUSTER_ELOST); /* a new one can be had */
        end_lease(lease, &h, true);
        assert_int_equal(script[MU_ETCD3_REVOKE].asked, 0); /* there is nothing to be revoked */
        close_etcd(etcd);
    }
}

static void a_lease_is_lost_when_its_time_is_up_by_our_clock(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct holder h = { .close_when_told = true };

    (void)state;
    script[MU_ETCD3_KEEP_ALIVE].lines[0] = SILENT;
    (void)take(etcd, &h, 10000);
    h.close_when_told = false;
    run_until(&h.granted);
    h.close_when_told = true;
    run_until(&h.lost);
    assert_int_equal(h.error.code, MUSTER_ETIMEOUT);
    run_until(&h.closed);
    close_etcd(etcd);
}

static void a_grant_whose_answer_was_lost_is_ours(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct holder h = { .granted = false };
    struct mu_etcd3_lease *lease;

    (void)state;
    script[MU_ETCD3_GRANT].lines[0] = HANG_UP;
    script[MU_ETCD3_GRANT].lines[1] = "412 " FAILURE("9", "etcdserver: lease already exists");
    lease = take(etcd, &h, 10000);
    run_until(&h.granted);
    assert_int_equal(script[MU_ETCD3_GRANT].asked, 2);
    end_lease(lease, &h, true);
    close_etcd(etcd);
}

static void a_grant_without_an_answer_ends_in_time(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct holder h = { .granted = false };
    struct mu_etcd3_lease *lease;

    (void)state;
    script[MU_ETCD3_GRANT].lines[0] = SILENT;
    lease = take(etcd, &h, 100);
    run_until(&h.lost);
    assert_false(h.granted);
    assert_int_equal(h.error.code, MUSTER_ETIMEOUT);
    assert_int_equal(mu_etcd3_lease_id(lease), 0);
    end_lease(lease, &h, true);
    close_etcd(etcd);
}

/* It may have been granted: it is revoked, too. */
static void a_lease_that_is_being_granted_can_be_closed(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct holder h = { .granted = false };
    struct mu_etcd3_lease *lease;

    (void)state;
    script[MU_ETCD3_GRANT].lines[0] = SILENT;
    lease = take(etcd, &h, 10000);
    UNTIL(script[MU_ETCD3_GRANT].asked == 1);
    end_lease(lease, &h, true);
    assert_int_equal(script[MU_ETCD3_REVOKE].asked, 1);
    assert_false(h.granted || h.lost);
    close_etcd(etcd);
}

static void a_lease_can_be_closed_while_it_is_kept_alive_and_when_told(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct holder h = { .granted = false }, other = { .close_when_told = true };
    struct mu_etcd3_lease *lease;

    (void)state;
    script[MU_ETCD3_KEEP_ALIVE].lines[0] = SILENT;
    lease = take(etcd, &h, 10000);
    UNTIL(script[MU_ETCD3_KEEP_ALIVE].asked == 1);
    end_lease(lease, &h, true);
    (void)take(etcd, &other, 10000);
    run_until(&other.closed); /* from inside of on_granted */
    assert_int_equal(script[MU_ETCD3_REVOKE].asked, 2);
    close_etcd(etcd);
}

static void a_revocation_ends_in_time_and_with_the_client(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct holder h = { .granted = false }, other = { .granted = false };
    struct mu_etcd3_lease *lease = take(etcd, &h, 10000), *second = take(etcd, &other, 10000);

    (void)state;
    script[MU_ETCD3_REVOKE].lines[0] = SILENT;
    UNTIL(h.granted && other.granted);
    mu_etcd3_lease_close(lease, true, 50, set_and_stop, &h.closed);
    run_until(&h.closed);
    mu_etcd3_lease_close(second, true, 60000, set_and_stop, &other.closed);
    close_etcd(etcd);
    assert_true(other.closed);
}

/* ---- Watches ---- */

struct watcher {
    char trace[512];
    enum close_on { NEVER, ON_EVENTS, ON_TROUBLE, ON_COMPACTED } close_on;
    bool closed;
    struct muster_error error;
};

#define NOTE(w, ...) note((w)->trace, sizeof(w)->trace, __VA_ARGS__)

static void on_events(struct mu_etcd3_watch *watch, const struct mu_etcd3_event *events, size_t count, int64_t revision,
                      void *ctx)
{
    struct watcher *w = ctx;

    for (size_t i = 0; i < count; i++)
        NOTE(w, "%s%.*s@%d ", events[i].kind == MU_ETCD3_DELETE ? "-" : "", (int)events[i].kv.key.len,
             events[i].kv.key.data, (int)events[i].kv.mod);
    NOTE(w, "to %d. ", (int)revision);
    if (w->close_on == ON_EVENTS) {
        w->closed = true;
        mu_etcd3_watch_close(watch);
    }
}

static void on_compacted(struct mu_etcd3_watch *watch, int64_t compact_revision, void *ctx)
{
    struct watcher *w = ctx;

    NOTE(w, "compacted %d. ", (int)compact_revision);
    if (w->close_on == ON_COMPACTED) {
        w->closed = true;
        mu_etcd3_watch_close(watch);
    }
}

static void on_watch_trouble(struct mu_etcd3_watch *watch, const struct muster_error *error, void *ctx)
{
    struct watcher *w = ctx;

    NOTE(w, error == NULL ? "heard. " : "trouble. ");
    if (error != NULL)
        w->error = *error;
    if (w->close_on == ON_TROUBLE) {
        w->closed = true;
        mu_etcd3_watch_close(watch);
    }
}

static const struct mu_etcd3_watch_ops watch_ops = { on_events, on_compacted, on_watch_trouble };

static struct mu_etcd3_watch *watch_from(struct mu_etcd3 *etcd, struct watcher *w, int64_t revision)
{
    struct mu_etcd3_watch *watch = NULL;

    assert_int_equal(mu_etcd3_watch_start(etcd, mu_slice_str("a/"), true, revision, &watch_ops, w, &watch, NULL), 0);
    assert_string_equal(w->trace, "");
    return watch;
}

#define UNTIL_TRACED(w, text) UNTIL(strstr((w)->trace, text) != NULL)

static bool asked_from(const char *revision)
{
    char text[64];

    (void)snprintf(text, sizeof text, "\"start_revision\":\"%s\"", revision);
    return strstr(script[MU_ETCD3_WATCH].body, text) != NULL;
}

static void a_watch_tells_what_happens_in_order(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct watcher w = { .closed = false };
    struct mu_etcd3_watch *watch = watch_from(etcd, &w, 5);

    (void)state;
    UNTIL_TRACED(&w, "heard. ");
    assert_true(asked_from("5"));
    on_stream_text(EVENTS("8", EVENT("YQ==", "6") "," EVENT("Yg==", "8")));
    UNTIL_TRACED(&w, "to 8. ");
    on_stream_text("{\"result\":{" HEADER("9") ",\"events\":[{\"type\":\"DELETE\",\"kv\":{\"key\":\"YQ==\","
                                               "\"mod_revision\":\"9\"}}]}}\n");
    UNTIL_TRACED(&w, "to 9. ");
    assert_string_equal(w.trace, "heard. a@6 b@8 to 8. -a@9 to 9. ");
    mu_etcd3_watch_close(watch);
    close_etcd(etcd);
}

static void a_watch_from_now_on_knows_where_it_began(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct watcher w = { .closed = false };
    struct mu_etcd3_watch *watch = watch_from(etcd, &w, 0);

    (void)state;
    UNTIL_TRACED(&w, "heard. ");
    assert_null(strstr(script[MU_ETCD3_WATCH].body, "start_revision"));
    cut_stream();
    UNTIL(script[MU_ETCD3_WATCH].asked == 2);
    assert_true(asked_from("8")); /* it was confirmed at 7 */
    mu_etcd3_watch_close(watch);
    close_etcd(etcd);
}

static void a_watch_that_is_cut_goes_on_where_it_was(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct watcher w = { .closed = false };
    struct mu_etcd3_watch *watch = watch_from(etcd, &w, 8);

    (void)state;
    script[MU_ETCD3_WATCH].lines[1] = STREAM CREATED("9");
    UNTIL_TRACED(&w, "heard. ");
    on_stream_text(EVENTS("9", EVENT("YQ==", "9")));
    UNTIL_TRACED(&w, "to 9. ");
    cut_stream();
    UNTIL(script[MU_ETCD3_WATCH].asked == 2);
    assert_true(asked_from("10"));
    UNTIL_TRACED(&w, "trouble. heard. ");
    on_stream_text(EVENTS("11", EVENT("YQ==", "9") "," EVENT("Yg==", "11"))); /* the first was told before */
    UNTIL_TRACED(&w, "to 11. ");
    assert_string_equal(w.trace, "heard. a@9 to 9. trouble. heard. b@11 to 11. ");
    on_stream_text("{\"result\":{" HEADER("20") "}}\n"); /* nothing older will come */
    cut_stream();
    UNTIL(script[MU_ETCD3_WATCH].asked == 3);
    assert_true(asked_from("21"));
    mu_etcd3_watch_close(watch);
    close_etcd(etcd);
}

static void a_watch_whose_past_was_compacted_stands_until_it_is_closed(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct watcher w = { .closed = false };
    struct mu_etcd3_watch *watch;

    (void)state;
    script[MU_ETCD3_WATCH].lines[0] =
        STREAM "{\"result\":{" HEADER("30") ",\"canceled\":true,\"compact_revision\":\"12\"}}\n";
    script[MU_ETCD3_WATCH].lines[1] = STREAM CREATED("30");
    watch = watch_from(etcd, &w, 5);
    UNTIL_TRACED(&w, "compacted 12. ");
    mu_etcd3_watch_close(watch);
    assert_int_equal(script[MU_ETCD3_WATCH].asked, 1);
    assert_string_equal(w.trace, "compacted 12. ");
    w.trace[0] = '\0';
    watch = watch_from(etcd, &w, 31);
    UNTIL_TRACED(&w, "heard. ");
    assert_true(asked_from("31"));
    mu_etcd3_watch_close(watch);
    close_etcd(etcd);
}

static void a_store_that_is_behind_us_is_another_one(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct watcher w = { .closed = false };
    struct mu_etcd3_watch *watch;

    (void)state;
    script[MU_ETCD3_WATCH].lines[0] = STREAM CREATED("3");
    script[MU_ETCD3_RANGE].lines[0] = "{" HEADER("3") "}"; /* and all members say so */
    watch = watch_from(etcd, &w, 50);
    UNTIL_TRACED(&w, "compacted 0. ");
    mu_etcd3_watch_close(watch);
    close_etcd(etcd);
}

static void a_member_that_lags_is_not_another_store(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct watcher w = { .closed = false };
    struct mu_etcd3_watch *watch;

    (void)state;
    script[MU_ETCD3_WATCH].lines[0] = STREAM CREATED("3");
    script[MU_ETCD3_RANGE].lines[0] = "{" HEADER("60") "}";
    watch = watch_from(etcd, &w, 50);
    UNTIL(script[MU_ETCD3_RANGE].asked == 1);
    on_stream_text(EVENTS("51", EVENT("YQ==", "51")));
    UNTIL_TRACED(&w, "to 51. ");
    assert_string_equal(w.trace, "heard. a@51 to 51. ");
    mu_etcd3_watch_close(watch);
    close_etcd(etcd);
}

static void what_ends_a_stream_is_told_once_and_another_one_is_opened(void **state)
{
    static const struct {
        const char *line, *text;
    } rows[] = {
        { STREAM "no watch", "not a message of a watch: 'n" },
        { STREAM "{\"result\":{" HEADER("7") ",\"canceled\":true,\"cancel_reason\":\"etcdserver: no leader\"}}\n",
          "etcdserver: no leader" },
        { STREAM "{\"error\":{\"grpc_code\":14,\"message\":\"etcdserver: no leader\"}}\n", "etcdserver: no leader" },
        { "503 " FAILURE("14", "etcdserver: no leader"), "etcdserver: no leader" },
        { HANG_UP, "watch 'a/'" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_etcd3 *etcd = open_etcd(NULL);
        struct watcher w = { .closed = false };
        struct mu_etcd3_watch *watch;

        memset(&script[MU_ETCD3_WATCH], 0, sizeof script[MU_ETCD3_WATCH]);
        script[MU_ETCD3_WATCH].lines[0] = script[MU_ETCD3_WATCH].lines[1] = rows[i].line;
        script[MU_ETCD3_WATCH].lines[2] = STREAM CREATED("7");
        watch = watch_from(etcd, &w, 5);
        UNTIL_TRACED(&w, "heard. ");
        assert_string_equal(w.trace, "trouble. heard. ");
        if (strstr(w.error.text, rows[i].text) == NULL)
            fail_msg("%s", w.error.text);
        mu_etcd3_watch_close(watch);
        close_etcd(etcd);
    }
}

static void a_watch_logs_in_first_and_again(void **state)
{
    struct mu_etcd3 *etcd = open_etcd("ann");
    struct watcher w = { .closed = false };
    struct mu_etcd3_watch *watch;

    (void)state;
    script[MU_ETCD3_AUTHENTICATE].lines[1] = "{" HEADER("7") ",\"token\":\"secret.2\"}";
    script[MU_ETCD3_WATCH].lines[0] =
        STREAM "{\"error\":{\"grpc_code\":16,\"message\":\"etcdserver: invalid auth token\"}}\n";
    script[MU_ETCD3_WATCH].lines[1] = STREAM CREATED("7");
    watch = watch_from(etcd, &w, 5);
    UNTIL_TRACED(&w, "heard. ");
    assert_int_equal(script[MU_ETCD3_AUTHENTICATE].asked, 2);
    assert_true(has_line(&script[MU_ETCD3_WATCH], "\r\nAuthorization: secret.2\r\n"));
    assert_null(strstr(w.error.text, "secret"));
    mu_etcd3_watch_close(watch);
    close_etcd(etcd);
}

/* Nothing is heard of its server for so long that it is asked, and it does not answer. */
static void a_silent_server_is_left(void **state)
{
    struct mu_etcd3 *etcd = open_etcd(NULL);
    struct watcher w = { .closed = false };
    struct mu_etcd3_watch *watch;

    (void)state;
    script[MU_ETCD3_RANGE].lines[0] = SILENT;
    watch = watch_from(etcd, &w, 5);
    UNTIL(script[MU_ETCD3_WATCH].asked == 2);
    assert_ptr_equal(script[MU_ETCD3_RANGE].server, &servers[0]);
    assert_ptr_equal(script[MU_ETCD3_WATCH].server, &servers[1]);
    UNTIL_TRACED(&w, "trouble. heard. ");
    mu_etcd3_watch_close(watch);
    close_etcd(etcd);
}

/* Its server answers, but something between has lost the stream without a word. */
static void a_silent_stream_is_opened_anew(void **state)
{
    struct mu_etcd3 *etcd = open_etcd_that_renews(NULL, 100);
    struct watcher w = { .closed = false };
    struct mu_etcd3_watch *watch = watch_from(etcd, &w, 5);

    (void)state;
    UNTIL_TRACED(&w, "heard. ");
    on_stream_text(EVENTS("6", EVENT("YQ==", "6")));
    UNTIL(script[MU_ETCD3_WATCH].asked >= 2 && asked_from("7"));
    UNTIL(script[MU_ETCD3_WATCH].asked >= 4);
    assert_ptr_equal(script[MU_ETCD3_WATCH].server, &servers[0]);
    assert_string_equal(w.trace, "heard. a@6 to 6. ");
    mu_etcd3_watch_close(watch);
    close_etcd(etcd);
}

static void a_watch_can_be_closed_in_every_state(void **state)
{
    static const struct {
        const char *line, *range;
        const char *user;
        unsigned watches, ranges, log_ins; /* asked by then */
        const char *traced;
    } rows[] = {
        { STREAM CREATED("7"), NULL, NULL, 0, 0, 0, "" },          /* nothing was asked yet */
        { SILENT, NULL, NULL, 1, 0, 0, "" },                       /* no head of the stream */
        { STREAM, NULL, NULL, 1, 0, 0, "" },                       /* it is not confirmed */
        { STREAM CREATED("7"), NULL, NULL, 1, 0, 0, "heard. " },   /* open */
        { HANG_UP, NULL, NULL, 3, 0, 0, "trouble. " },             /* between tries */
        { STREAM CREATED("1"), SILENT, NULL, 1, 1, 0, "heard. " }, /* asking whether that is the store */
        { STREAM "{\"result\":{" HEADER("7") ",\"canceled\":true,\"compact_revision\":\"6\"}}\n", NULL, NULL, 1, 0, 0,
          "compacted 6. " },                  /* standing still */
        { STREAM, NULL, "ann", 0, 0, 1, "" }, /* logging in */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_etcd3 *etcd = open_etcd(rows[i].user);
        struct watcher w = { .closed = false };
        struct mu_etcd3_watch *watch;

        memset(script, 0, sizeof script);
        script[MU_ETCD3_WATCH].lines[0] = rows[i].line;
        script[MU_ETCD3_RANGE].lines[0] = rows[i].range;
        script[MU_ETCD3_AUTHENTICATE].lines[0] = SILENT;
        watch = watch_from(etcd, &w, 5);
        UNTIL(script[MU_ETCD3_WATCH].asked >= rows[i].watches && script[MU_ETCD3_RANGE].asked >= rows[i].ranges &&
              script[MU_ETCD3_AUTHENTICATE].asked >= rows[i].log_ins && strstr(w.trace, rows[i].traced) != NULL);
        mu_etcd3_watch_close(watch);
        if (i % 2 == 0)
            take_turn(); /* it is gone before its client, or not */
        close_etcd(etcd);
        assert_string_equal(w.trace, rows[i].traced);
    }
}

static void a_watch_can_be_closed_from_inside_of_its_callbacks(void **state)
{
    static const struct {
        const char *line;
        enum close_on close_on;
    } rows[] = {
        { STREAM CREATED("7") EVENTS("8", EVENT("YQ==", "8")) EVENTS("9", EVENT("YQ==", "9")), ON_EVENTS },
        { STREAM CREATED("7") EVENTS("8", EVENT("YQ==", "8")), ON_TROUBLE }, /* told that it is heard */
        { HANG_UP, ON_TROUBLE },
        { STREAM "no watch", ON_TROUBLE },
        { STREAM "{\"result\":{" HEADER("7") ",\"canceled\":true,\"compact_revision\":\"6\"}}\n", ON_COMPACTED },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_etcd3 *etcd = open_etcd(NULL);
        struct watcher w = { .close_on = rows[i].close_on };

        script[MU_ETCD3_WATCH].lines[0] = rows[i].line;
        (void)watch_from(etcd, &w, 5);
        UNTIL(w.closed);
        take_turn();
        close_etcd(etcd);
        assert_null(strstr(w.trace, "@9"));
    }
}

/* ---- No memory ---- */

static void any_allocation_may_fail(void **state)
{
    (void)state;
    script[MU_ETCD3_WATCH].lines[0] = STREAM CREATED("7") EVENTS("8", EVENT("YQ==", "8"));
    FOR_EACH_FAILURE (n) {
        struct mu_etcd3 *etcd = open_etcd("ann");
        struct watcher w = { .closed = false };
        struct holder h = { .granted = false };
        struct mu_etcd3_watch *watch = NULL;
        struct mu_etcd3_lease *lease = NULL;
        struct mu_etcd3_call call;

        if (etcd == NULL)
            continue;
        call = called(etcd, CALL(READ, .timeout_ms = 5000));
        assert_true(call.rc == 0 || call.rc == MUSTER_ENOMEM);
        mu_etcd3_answer_done(&call.answer);
        (void)mu_etcd3_watch_start(etcd, mu_slice_str("a/"), true, 5, &watch_ops, &w, &watch, NULL);
        (void)mu_etcd3_lease_start(etcd, 2, 5000, &lease_ops, &h, &lease, NULL);
        if (watch != NULL)
            UNTIL_TRACED(&w, "a@8 to 8. "); /* it tries until it works */
        if (lease != NULL) {
            UNTIL(h.granted || h.lost);
            assert_true(h.granted || h.error.code == MUSTER_ENOMEM);
            end_lease(lease, &h, true);
        }
        if (watch != NULL)
            mu_etcd3_watch_close(watch);
        close_etcd(etcd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ETCD(a_call_is_answered),
        WITH_ETCD(an_error_names_the_call_the_server_and_etcds_words),
        WITH_ETCD(a_call_that_nobody_answers_ends_with_its_time),
        WITH_ETCD(a_call_can_be_canceled_and_is_when_all_is_closed),
        WITH_ETCD(a_user_logs_in_once_for_all_calls),
        WITH_ETCD(a_token_that_is_refused_is_replaced_once),
        WITH_ETCD(a_wrong_password_is_told_and_not_shown),
        WITH_ETCD(who_waits_for_a_log_in_has_its_own_time_and_can_be_canceled),
        WITH_ETCD(a_lease_is_granted_kept_alive_and_revoked),
        WITH_ETCD(a_lease_outlives_errors),
        WITH_ETCD(a_lease_that_etcd_does_not_have_is_lost),
        WITH_ETCD(a_lease_is_lost_when_its_time_is_up_by_our_clock),
        WITH_ETCD(a_grant_whose_answer_was_lost_is_ours),
        WITH_ETCD(a_grant_without_an_answer_ends_in_time),
        WITH_ETCD(a_lease_that_is_being_granted_can_be_closed),
        WITH_ETCD(a_lease_can_be_closed_while_it_is_kept_alive_and_when_told),
        WITH_ETCD(a_revocation_ends_in_time_and_with_the_client),
        WITH_ETCD(a_watch_tells_what_happens_in_order),
        WITH_ETCD(a_watch_from_now_on_knows_where_it_began),
        WITH_ETCD(a_watch_that_is_cut_goes_on_where_it_was),
        WITH_ETCD(a_watch_whose_past_was_compacted_stands_until_it_is_closed),
        WITH_ETCD(a_store_that_is_behind_us_is_another_one),
        WITH_ETCD(a_member_that_lags_is_not_another_store),
        WITH_ETCD(what_ends_a_stream_is_told_once_and_another_one_is_opened),
        WITH_ETCD(a_watch_logs_in_first_and_again),
        WITH_ETCD(a_silent_server_is_left),
        WITH_ETCD(a_silent_stream_is_opened_anew),
        WITH_ETCD(a_watch_can_be_closed_in_every_state),
        WITH_ETCD(a_watch_can_be_closed_from_inside_of_its_callbacks),
        WITH_ETCD(any_allocation_may_fail),
    };

    return run_with_curl("etcd3_uv", tests, COUNT(tests));
}
