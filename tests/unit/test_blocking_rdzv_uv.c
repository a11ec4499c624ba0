/* Blocking calls of a rendezvous: around a handler that does as it is told, and around the real ones. */
#include "base/clock.h"
#include "failmalloc.h"
#include "handler/handler.h"
#include "pure.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#define D MUSTER_TIMEOUT_DEFAULT

/* ---- A handler that does as it is told ---- */

/* What it tells when it is asked to join, leave, close or look, is in the options of those names: events with a "+"
 * between them, none for "silent". What it was asked goes to `log`. */
struct fake {
    struct muster_handler base;
    struct muster_rdzv_params *params;
    uv_timer_t timer;
    muster_rdzv_listener *listener;
    void *ctx;
    const char *asked;
    int64_t round;
    void (*freed)(void *ctx);
    void *freed_ctx;
};

static char log_text[512];    /* written by the fake's thread; read when that has answered */
static atomic_int asks, most; /* at once */

static void write_log(const char *what)
{
    size_t used = strlen(log_text);

    (void)snprintf(log_text + used, sizeof log_text - used, "%s%s", used > 0 ? " " : "", what);
}

static int64_t number_of(const struct fake *fake, const char *key, int64_t fallback)
{
    int64_t value;

    assert_int_equal(muster_rdzv_params_get_as_int(fake->params, key, fallback, &value, NULL), 0);
    return value;
}

/* What fails when that was asked for. A look does not: then it is the membership. */
static enum muster_rdzv_request request_of(const char *asked)
{
    return strcmp(asked, "join") == 0    ? MUSTER_RDZV_REQUEST_JOIN
           : strcmp(asked, "leave") == 0 ? MUSTER_RDZV_REQUEST_LEAVE
           : strcmp(asked, "close") == 0 ? MUSTER_RDZV_REQUEST_CLOSE
                                         : MUSTER_RDZV_REQUEST_MEMBERSHIP;
}

static void tell(struct fake *fake, const char *asked, const char *name, const struct muster_store_info *bootstrap)
{
    struct muster_error error = { .code = (int)number_of(fake, "code", MUSTER_ERDZV_TIMEOUT), .text = "it says so" };
    struct muster_rdzv_info info = { .rank = 1, .world_size = 2, .round = fake->round, .bootstrap = *bootstrap };
    struct muster_rdzv_event event = { .size = sizeof event,
                                       .round = fake->round,
                                       .count = number_of(fake, "count", 0),
                                       .closed = number_of(fake, "closed", 0) != 0 };
    bool bad = strcmp(name, "bad_look") == 0, unasked = strcmp(name, "unasked") == 0;

    event.request = unasked ? MUSTER_RDZV_REQUEST_MEMBERSHIP : request_of(asked);
    if (unasked)
        name = "failed";
    while (!bad && strcmp(muster_rdzv_event_name(event.type), name) != 0)
        event.type++;
    if (bad)
        event.type = MUSTER_RDZV_LOOKED;
    if (event.type == MUSTER_RDZV_JOINED)
        event.info = &info;
    if (bad || event.type == MUSTER_RDZV_FAILED)
        event.error = &error;
    fake->listener(fake->ctx, &event);
}

static void on_fake_timer(uv_timer_t *timer)
{
    struct fake *fake = timer->data;
    const struct muster_store_info bootstrap = { "127.0.0.9", 99 };
    struct muster_value value;
    char *names, *name, *rest;
    const char *asked = fake->asked;

    fake->asked = NULL;
    (void)atomic_fetch_sub(&asks, 1);
    if (!muster_rdzv_params_get(fake->params, asked, &value) || strcmp(value.text, "silent") == 0)
        return;
    names = strdup(value.text);
    for (name = strtok_r(names, "+", &rest); name != NULL; name = strtok_r(NULL, "+", &rest))
        tell(fake, asked, name, &bootstrap);
    free(names);
}

static void asked_for(struct muster_handler *handler, const char *what)
{
    struct fake *fake = (struct fake *)handler;
    int now = atomic_fetch_add(&asks, 1) + 1;

    if (now > atomic_load(&most))
        atomic_store(&most, now);
    write_log(what);
    fake->asked = what;
    (void)uv_timer_start(&fake->timer, on_fake_timer, 0, 0);
}

static void fake_join(struct muster_handler *handler)
{
    ((struct fake *)handler)->round++;
    asked_for(handler, "join");
}

static void fake_leave(struct muster_handler *handler)
{
    asked_for(handler, "leave");
}

static void fake_close(struct muster_handler *handler)
{
    asked_for(handler, "close");
}

static void fake_look(struct muster_handler *handler)
{
    asked_for(handler, "look");
}

static bool fake_use_agent_store(const struct muster_handler *handler)
{
    return number_of((const struct fake *)handler, "agent_store", 0) != 0;
}

static void on_fake_closed(uv_handle_t *timer)
{
    struct fake *fake = timer->data;

    fake->freed(fake->freed_ctx);
    muster_rdzv_params_free(fake->params);
    free(fake);
}

static void fake_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct fake *fake = (struct fake *)handler;

    write_log("free");
    fake->freed = done;
    fake->freed_ctx = ctx;
    uv_close((uv_handle_t *)&fake->timer, on_fake_closed);
}

static int fake_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                      void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    static const struct muster_handler_ops ops = { .size = sizeof ops,
                                                   .name = "fake",
                                                   .join = fake_join,
                                                   .leave = fake_leave,
                                                   .close = fake_close,
                                                   .look = fake_look,
                                                   .use_agent_store = fake_use_agent_store,
                                                   .free = fake_free };
    struct muster_value value;
    struct fake *fake;

    if (muster_rdzv_params_get(params, "refuse", &value))
        return mu_fail(reterr, MUSTER_EINVAL, "not like this");
    fake = calloc(1, sizeof *fake);
    if (fake == NULL || muster_rdzv_params_copy(params, &fake->params, NULL) != 0) {
        free(fake);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a fake");
    }
    fake->base.ops = &ops;
    fake->listener = listener;
    fake->ctx = ctx;
    fake->round = 6;
    fake->timer.data = fake;
    (void)uv_timer_init(loop, &fake->timer);
    *ret_handler = &fake->base;
    return 0;
}

/* ---- Helpers ---- */

static struct muster_rdzv_params *params_of(const char *backend, const char *endpoint, int64_t min, int64_t max,
                                            const char *options)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new(backend, endpoint, "job", min, max, "127.0.0.1", &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    return params;
}

static struct muster_rdzv *make(const char *backend, const char *endpoint, const char *options)
{
    struct muster_rdzv_params *params = params_of(backend, endpoint, 1, 2, options);
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error;

    log_text[0] = '\0';
    atomic_store(&asks, 0);
    atomic_store(&most, 0);
    if (mu_rdzv_blocking_new(fake_start, params, &rdzv, &error) != 0)
        fail_msg("%s", error.text);
    muster_rdzv_params_free(params);
    return rdzv;
}

static struct muster_rdzv *fake_of(const char *options)
{
    return make("fake", "", options);
}

static struct muster_rdzv_info joins(struct muster_rdzv *rdzv)
{
    struct muster_rdzv_info info = { 0 };
    struct muster_error error = { 0 };

    if (muster_rdzv_next_rendezvous(rdzv, &info, &error) != 0)
        fail_msg("%s", error.text);
    return info;
}

static int64_t waiting(struct muster_rdzv *rdzv)
{
    int64_t count = -1;

    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &count, NULL), 0);
    return count;
}

static bool closed(struct muster_rdzv *rdzv)
{
    bool is = false;
    struct muster_error error = { 0 };

    if (muster_rdzv_is_closed(rdzv, &is, &error) != 0)
        fail_msg("%s", error.text);
    return is;
}

static struct muster_store_server *serve(char endpoint[static 32])
{
    const struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct muster_store_server *server = NULL;

    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    (void)snprintf(endpoint, 32, "127.0.0.1:%u", muster_store_server_port(server));
    return server;
}

static struct muster_store *connect_to(const struct muster_store_server *server)
{
    const struct muster_store_tcp_config config = { .size = sizeof config,
                                                    .host = "127.0.0.1",
                                                    .port = muster_store_server_port(server) };
    struct muster_store *store = NULL;

    assert_int_equal(muster_store_tcp_new(&config, &store, NULL), 0);
    return store;
}

static void assert_has(struct muster_store *store, const char *key, const char *value)
{
    struct muster_bytes bytes;
    struct muster_error error = { 0 };

    if (muster_store_get(store, muster_str(key), D, &bytes, &error) != 0)
        fail_msg("%s", error.text);
    assert_string_equal(bytes.data, value);
    muster_bytes_done(&bytes);
}

/* ---- Around a handler that does as it is told ---- */

static void what_the_handler_tells_is_what_the_caller_gets(void **state)
{
    struct muster_rdzv *rdzv = fake_of("join=progress+joined,leave=left,agent_store=1");
    struct muster_rdzv_info info = joins(rdzv);

    (void)state;
    assert_string_equal(muster_rdzv_get_backend(rdzv), "fake");
    assert_string_equal(muster_rdzv_get_run_id(rdzv), "job");
    assert_true(muster_rdzv_use_agent_store(rdzv));
    assert_int_equal(info.rank, 1);
    assert_int_equal(info.world_size, 2);
    assert_int_equal(info.round, 7);
    assert_string_equal(info.bootstrap.master_addr, "127.0.0.9");
    assert_int_equal(info.bootstrap.master_port, 99);
    assert_null(info.store);
    assert_int_equal(joins(rdzv).round, 8);
    muster_rdzv_free(rdzv);
    assert_string_equal(log_text, "join join leave free");
}

static void a_join_that_fails_fails_with_the_handlers_error(void **state)
{
    static const int codes[] = { MUSTER_ERDZV_CLOSED, MUSTER_ERDZV_TIMEOUT,       MUSTER_ERDZV_CONNECTION,
                                 MUSTER_ERDZV_STATE,  MUSTER_ERDZV_GRACEFUL_EXIT, MUSTER_ENOMEM };

    (void)state;
    for (size_t i = 0; i < COUNT(codes); i++) {
        char options[64];
        struct muster_rdzv_info info;
        struct muster_error error = { 0 };
        struct muster_rdzv *rdzv;

        (void)snprintf(options, sizeof options, "join=failed,code=%d", codes[i]);
        rdzv = fake_of(options);
        assert_false(muster_rdzv_use_agent_store(rdzv));
        assert_int_equal(muster_rdzv_next_rendezvous(rdzv, &info, &error), codes[i]);
        assert_int_equal(error.code, codes[i]);
        assert_string_equal(error.text, "it says so");
        assert_int_equal(muster_rdzv_next_rendezvous(rdzv, &info, NULL), codes[i]);
        muster_rdzv_free(rdzv);
        assert_string_equal(log_text, "join join free"); /* there is nothing to leave */
    }
}

static void looking_tells_closed_and_waiting(void **state)
{
    struct muster_rdzv *rdzv = fake_of("look=looked,count=3,closed=0");

    (void)state;
    assert_false(closed(rdzv));
    assert_int_equal(waiting(rdzv), 3);
    muster_rdzv_free(rdzv);
    assert_string_equal(log_text, "look look free");
    rdzv = fake_of("look=looked,closed=1");
    assert_true(closed(rdzv));
    assert_int_equal(waiting(rdzv), 0);
    muster_rdzv_free(rdzv);
}

static void looking_may_fail(void **state)
{
    struct muster_rdzv *rdzv = fake_of("look=bad_look,code=-34");
    struct muster_error error = { 0 };
    bool flag;
    int64_t count;

    (void)state;
    assert_int_equal(muster_rdzv_is_closed(rdzv, &flag, &error), MUSTER_ERDZV_CONNECTION);
    assert_string_equal(error.text, "it says so");
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &count, NULL), MUSTER_ERDZV_CONNECTION);
    muster_rdzv_free(rdzv);
}

static void a_round_that_has_lost_members_calls_for_the_next(void **state)
{
    static const struct {
        const char *options;
        int64_t waits;
    } rows[] = {
        { "join=joined,leave=left,look=looked", 0 },
        { "join=joined,leave=left,look=peers_lost+looked", 1 },
        { "join=joined,leave=left,look=peers_lost+looked,count=4", 4 },
        { "join=joined,leave=left,look=removed+looked", 1 },
        { "join=joined,leave=left,look=failed+looked", 1 },
        { "join=joined,leave=left,look=peers_lost+bad_look", 1 }, /* and nobody need know why */
        { "join=joined+peers_lost,leave=left,look=looked", 1 },
        { "join=peers_lost+joined,leave=left,look=looked", 0 }, /* of the round before */
        { "look=failed+looked", 0 },                            /* no member, nothing lost */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv *rdzv = fake_of(rows[i].options);

        if (strstr(rows[i].options, "join=") != NULL)
            (void)joins(rdzv);
        assert_int_equal(waiting(rdzv), rows[i].waits);
        muster_rdzv_free(rdzv);
    }
}

static void closing_is_asked_for_once(void **state)
{
    struct muster_rdzv *rdzv = fake_of("close=closed,look=looked");

    (void)state;
    assert_int_equal(muster_rdzv_set_closed(rdzv, NULL), 0);
    assert_int_equal(muster_rdzv_set_closed(rdzv, NULL), 0);
    assert_true(closed(rdzv));
    muster_rdzv_free(rdzv);
    assert_string_equal(log_text, "close free");
    rdzv = fake_of("look=closed+looked"); /* somebody else did it */
    assert_int_equal(waiting(rdzv), 0);
    assert_int_equal(muster_rdzv_set_closed(rdzv, NULL), 0);
    assert_true(closed(rdzv));
    muster_rdzv_free(rdzv);
    assert_string_equal(log_text, "look free");
}

static void a_membership_that_fails_answers_no_other_request(void **state)
{
    struct muster_rdzv *rdzv = fake_of("join=unasked+joined,close=unasked+closed,leave=unasked+left");
    struct muster_rdzv_info info;
    struct muster_error error = { 0 };
    bool closed = false;

    (void)state;
    assert_int_equal(muster_rdzv_next_rendezvous(rdzv, &info, &error), 0);
    assert_int_equal(info.world_size, 2);
    assert_int_equal(muster_rdzv_set_closed(rdzv, &error), 0);
    assert_int_equal(muster_rdzv_shutdown(rdzv, &closed, &error), 0);
    assert_true(closed);
    muster_rdzv_free(rdzv);
}

static void closing_may_fail(void **state)
{
    struct muster_rdzv *rdzv = fake_of("close=failed");
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_rdzv_set_closed(rdzv, &error), MUSTER_ERDZV_TIMEOUT);
    assert_string_equal(error.text, "it says so");
    muster_rdzv_free(rdzv);
}

static void shutdown_closes_and_leaves(void **state)
{
    struct muster_rdzv *rdzv = fake_of("join=joined,close=closed,leave=left");
    bool done = false;

    (void)state;
    (void)joins(rdzv);
    assert_int_equal(muster_rdzv_shutdown(rdzv, &done, NULL), 0);
    assert_true(done);
    muster_rdzv_free(rdzv);
    assert_string_equal(log_text, "join close leave free");
}

static void shutdown_tells_of_rendezvous_errors_and_fails_with_others(void **state)
{
    struct muster_rdzv *rdzv = fake_of("close=failed");
    struct muster_error error = { 0 };
    bool done = true;

    (void)state;
    assert_int_equal(muster_rdzv_shutdown(rdzv, &done, &error), 0);
    assert_false(done);
    assert_int_equal(error.code, MUSTER_ERDZV_TIMEOUT);
    muster_rdzv_free(rdzv);
    rdzv = fake_of("close=failed,code=-2");
    assert_int_equal(muster_rdzv_shutdown(rdzv, &done, &error), MUSTER_ENOMEM);
    assert_int_equal(error.code, MUSTER_ENOMEM);
    muster_rdzv_free(rdzv);
}

/* The wait is what is tested. */
static void freeing_does_not_wait_long_for_a_leave(void **state)
{
    struct muster_rdzv *rdzv = fake_of("join=joined,leave=silent");
    int64_t since_ms;

    (void)state;
    (void)joins(rdzv);
    since_ms = mu_clock_ms();
    muster_rdzv_free(rdzv);
    assert_in_range(mu_clock_ms() - since_ms, 1900, 20000);
    assert_string_equal(log_text, "join leave free");
}

static void *look_often(void *arg)
{
    for (int i = 0; i < 100; i++) {
        assert_int_equal(waiting(arg), 3);
        assert_false(closed(arg));
    }
    return NULL;
}

static void calls_of_many_threads_come_one_after_the_other(void **state)
{
    struct muster_rdzv *rdzv = fake_of("look=looked,count=3");
    pthread_t threads[8];

    (void)state;
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, look_often, rdzv), 0);
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&most), 1);
    muster_rdzv_free(rdzv);
}

static void a_handler_that_does_not_start_is_an_error(void **state)
{
    struct muster_rdzv_params *params = params_of("fake", "", 1, 2, "refuse=1");
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_rdzv_blocking_new(fake_start, params, &rdzv, &error), MUSTER_EINVAL);
    assert_string_equal(error.text, "not like this");
    assert_null(rdzv);
    muster_rdzv_params_free(params);
}

static void every_allocation_may_fail(void **state)
{
    struct muster_rdzv_params *params = params_of("fake", "", 1, 2, "look=looked");

    (void)state;
    FOR_EACH_FAILURE (n) {
        struct muster_rdzv *rdzv = NULL;
        int rc = mu_rdzv_blocking_new(fake_start, params, &rdzv, NULL);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        muster_rdzv_free(rdzv);
    }
    muster_rdzv_params_free(params);
}

/* ---- The store of a round ---- */

static void each_round_of_c10d_has_a_view_of_the_store(void **state)
{
    char endpoint[32];
    struct muster_store_server *server = serve(endpoint);
    struct muster_store *store = connect_to(server);
    struct muster_rdzv *rdzv = make("c10d", endpoint, "join=joined,leave=left");

    (void)state;
    assert_int_equal(muster_store_set(joins(rdzv).store, muster_str("k"), muster_str("7"), D, NULL), 0);
    assert_has(store, "torch.rendezvous.job.7/k", "7");
    assert_int_equal(muster_store_set(joins(rdzv).store, muster_str("k"), muster_str("8"), D, NULL), 0);
    assert_has(store, "torch.rendezvous.job.8/k", "8");
    assert_has(store, "torch.rendezvous.job.7/k", "7");
    muster_rdzv_free(rdzv);
    muster_store_free(store);
    muster_store_server_stop(server);
}

static void a_round_without_its_store_is_left_again(void **state)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* bound, but it does not listen */
    char endpoint[32];
    struct muster_rdzv *rdzv;
    struct muster_rdzv_info info;
    struct muster_error error;

    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", ntohs(addr.sin_port));
    rdzv = make("c10d", endpoint, "join=joined,leave=left,read_timeout=1");
    assert_int_equal(muster_rdzv_next_rendezvous(rdzv, &info, &error), MUSTER_ERDZV_CONNECTION);
    assert_int_equal(error.code, MUSTER_ERDZV_CONNECTION);
    assert_int_equal(strncmp(error.text, "open the store of round 7: cannot connect to ", 45), 0);
    muster_rdzv_free(rdzv);
    assert_string_equal(log_text, "join leave free");
    (void)close(fd);
}

static void endpoints_and_timeouts_of_c10d_are_checked(void **state)
{
    static const struct {
        const char *endpoint, *options, *text;
    } rows[] = {
        { "host:0", "", "endpoint 'host:0': with port 0 the other nodes could not find the store" },
        { "host:x", "", "host:x" },
        { "host:1", "read_timeout=0", "option 'read_timeout': 0 s is not in 1.." },
        { "host:1", "read_timeout=x", "read_timeout" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_params *params = params_of("c10d", rows[i].endpoint, 1, 2, rows[i].options);
        struct muster_rdzv *rdzv = NULL;
        struct muster_error error;

        assert_int_equal(mu_rdzv_blocking_new(fake_start, params, &rdzv, &error), MUSTER_EINVAL);
        if (strstr(error.text, rows[i].text) == NULL)
            fail_msg("'%s' does not say '%s'", error.text, rows[i].text);
        muster_rdzv_params_free(params);
    }
}

/* ---- A back end of the user's ---- */

/* A document in memory; its token is a counter. */
struct memory {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *state;
    size_t len;
    int64_t version; /* 0: no document */
    bool broken;
};

struct memory_backend {
    struct muster_rdzv_backend base;
    struct memory *memory;
};

static struct memory *memory_of(struct muster_rdzv_backend *backend)
{
    return ((struct memory_backend *)backend)->memory;
}

static void copy_out(const void *data, size_t len, struct muster_bytes *ret_bytes)
{
    ret_bytes->data = calloc(1, len + 1);
    assert_non_null(ret_bytes->data);
    memcpy(ret_bytes->data, data, len);
    ret_bytes->len = len;
}

/* Under lock. */
static void give_out(const struct memory *m, bool *ret_found, struct muster_bytes *ret_state,
                     struct muster_bytes *ret_token)
{
    *ret_found = m->version > 0;
    if (*ret_found) {
        copy_out(m->state, m->len, ret_state);
        copy_out(&m->version, sizeof m->version, ret_token);
    }
}

static bool is_token(const struct memory *m, struct muster_slice token)
{
    return token.len == sizeof m->version && memcmp(token.data, &m->version, token.len) == 0;
}

static int memory_get(struct muster_rdzv_backend *backend, bool *ret_found, struct muster_bytes *ret_state,
                      struct muster_bytes *ret_token, struct muster_error *reterr)
{
    struct memory *m = memory_of(backend);
    int rc = 0;

    (void)pthread_mutex_lock(&m->lock);
    if (m->broken)
        rc = mu_fail(reterr, MUSTER_ERDZV_CONNECTION, "the memory is broken");
    else
        give_out(m, ret_found, ret_state, ret_token);
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static int memory_set(struct muster_rdzv_backend *backend, struct muster_slice bytes, struct muster_slice token,
                      bool *ret_found, struct muster_bytes *ret_state, struct muster_bytes *ret_token, bool *ret_set,
                      struct muster_error *reterr)
{
    struct memory *m = memory_of(backend);
    int rc = 0;

    (void)pthread_mutex_lock(&m->lock);
    *ret_set = token.data == NULL ? m->version == 0 : is_token(m, token);
    if (m->broken) {
        rc = mu_fail(reterr, MUSTER_ERDZV_CONNECTION, "the memory is broken");
    } else if (*ret_set) {
        free(m->state);
        m->state = malloc(bytes.len);
        assert_non_null(m->state);
        memcpy(m->state, bytes.data, bytes.len);
        m->len = bytes.len;
        m->version++;
        (void)pthread_cond_broadcast(&m->changed);
    }
    if (rc == 0)
        give_out(m, ret_found, ret_state, ret_token);
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static int memory_watch(struct muster_rdzv_backend *backend, struct muster_slice token, int64_t timeout_ms,
                        struct muster_error *reterr)
{
    struct memory *m = memory_of(backend);
    int64_t until_ms = mu_clock_ms() + timeout_ms;

    (void)reterr;
    (void)pthread_mutex_lock(&m->lock);
    while (is_token(m, token) && mu_cond_wait_until(&m->changed, &m->lock, until_ms))
        continue;
    (void)pthread_mutex_unlock(&m->lock);
    return 0;
}

static const struct muster_rdzv_backend_ops plain_ops = {
    .size = sizeof plain_ops, .name = "memory", .get_state = memory_get, .set_state = memory_set
};
static const struct muster_rdzv_backend_ops watched_ops = {
    .size = sizeof watched_ops,
    .name = "memory",
    .get_state = memory_get,
    .set_state = memory_set,
    .watch = memory_watch,
};

struct node {
    struct memory_backend backend;
    struct muster_store *store;
    struct muster_rdzv *rdzv;
    struct muster_rdzv_info info;
    struct muster_error error;
    int rc;
    pthread_t thread;
};

static void *run_node(void *arg)
{
    struct node *node = arg;

    node->rc = muster_rdzv_next_rendezvous(node->rdzv, &node->info, &node->error);
    return NULL;
}

static void join_together(struct node *a, struct node *b)
{
    struct node *nodes[] = { a, b };

    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&nodes[i]->thread, NULL, run_node, nodes[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(nodes[i]->thread, NULL), 0);
        if (nodes[i]->rc != 0)
            fail_msg("%s", nodes[i]->error.text);
        assert_int_equal(nodes[i]->info.world_size, 2);
    }
    assert_int_equal(a->info.rank + b->info.rank, 1);
    assert_int_equal(a->info.round, b->info.round);
    assert_true(a->info.bootstrap.master_port != 0);
    assert_int_equal(a->info.bootstrap.master_port, b->info.bootstrap.master_port);
    assert_string_equal(a->info.bootstrap.master_addr, b->info.bootstrap.master_addr);
    assert_int_equal(muster_store_set(a->info.store, muster_str("k"), muster_str("v"), D, NULL), 0);
    assert_has(b->info.store, "k", "v");
}

/* Somebody is waiting, or the round has broken: within a time that is long enough for both. */
static void wait_for_news(struct muster_rdzv *rdzv)
{
    const struct timespec moment = { .tv_nsec = 20000000 };
    int64_t until_ms = mu_clock_ms() + 20000;

    while (waiting(rdzv) == 0) {
        if (mu_clock_ms() >= until_ms)
            fail_msg("nothing has happened");
        (void)nanosleep(&moment, NULL);
    }
}

static void wait_until_closed(struct muster_rdzv *rdzv)
{
    const struct timespec moment = { .tv_nsec = 20000000 };
    int64_t until_ms = mu_clock_ms() + 20000;

    while (!closed(rdzv)) {
        if (mu_clock_ms() >= until_ms)
            fail_msg("it was never closed");
        (void)nanosleep(&moment, NULL);
    }
}

static const struct muster_rdzv_settings quick = {
    .size = sizeof quick,
    .run_id = "job",
    .min_nodes = 2,
    .max_nodes = 2,
    .timeout = { .size = sizeof quick.timeout, .join_ms = 20000, .close_ms = 20000 },
    .keep_alive_interval_ms = 1000,
    .keep_alive_max_attempt = 2,
};

static void start_on_memory(struct node *node, struct memory *memory, const struct muster_rdzv_backend_ops *ops,
                            const struct muster_store_server *server)
{
    struct muster_error error;

    *node = (struct node){ .backend = { { ops }, memory }, .store = connect_to(server) };
    if (muster_rdzv_dynamic_from_backend(&quick, node->store, &node->backend.base, "127.0.0.1", &node->rdzv, &error) !=
        0)
        fail_msg("%s", error.text);
}

static void end_node(struct node *node)
{
    muster_rdzv_free(node->rdzv);
    muster_store_free(node->store);
}

static void nodes_on_a_users_back_end_meet(const struct muster_rdzv_backend_ops *ops)
{
    struct memory memory = { .lock = PTHREAD_MUTEX_INITIALIZER };
    char endpoint[32];
    struct muster_store_server *server = serve(endpoint);
    struct node a, b, c;
    bool done = false;

    assert_int_equal(mu_cond_init(&memory.changed), 0);
    start_on_memory(&a, &memory, ops, server);
    start_on_memory(&b, &memory, ops, server);
    assert_string_equal(muster_rdzv_get_backend(a.rdzv), "memory");
    assert_string_equal(muster_rdzv_get_run_id(a.rdzv), "job");
    assert_true(muster_rdzv_use_agent_store(a.rdzv));
    join_together(&a, &b);
    assert_int_equal(waiting(a.rdzv), 0);
    end_node(&b);
    wait_for_news(a.rdzv); /* that it has lost somebody */
    start_on_memory(&c, &memory, ops, server);
    join_together(&a, &c);
    assert_int_equal(muster_rdzv_shutdown(c.rdzv, &done, NULL), 0);
    assert_true(done);
    wait_until_closed(a.rdzv);
    (void)run_node(&a);
    assert_int_equal(a.rc, MUSTER_ERDZV_CLOSED);
    end_node(&a);
    end_node(&c);
    muster_store_server_stop(server);
    (void)pthread_cond_destroy(&memory.changed);
    free(memory.state);
}

static void a_users_back_end_needs_no_watch(void **state)
{
    (void)state;
    nodes_on_a_users_back_end_meet(&plain_ops);
}

static void a_users_back_end_may_have_a_watch(void **state)
{
    (void)state;
    nodes_on_a_users_back_end_meet(&watched_ops);
}

static void a_broken_back_end_is_an_error_in_bounded_time(void **state)
{
    struct memory memory = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .broken = true };
    struct memory_backend backend = { { &plain_ops }, &memory };
    struct muster_rdzv_settings settings = quick;
    char endpoint[32];
    struct muster_store_server *server = serve(endpoint);
    struct muster_store *store = connect_to(server);
    struct muster_rdzv *rdzv = NULL;
    struct muster_rdzv_info info;
    struct muster_error error;
    bool flag = true;

    (void)state;
    settings.timeout.join_ms = settings.timeout.close_ms = 300;
    assert_int_equal(muster_rdzv_dynamic_from_backend(&settings, store, &backend.base, NULL, &rdzv, NULL), 0);
    assert_true(muster_error_is_rdzv(muster_rdzv_next_rendezvous(rdzv, &info, &error)));
    assert_non_null(strstr(error.text, "the memory is broken"));
    assert_int_equal(muster_rdzv_shutdown(rdzv, &flag, &error), 0);
    assert_false(flag);
    assert_non_null(strstr(error.text, "the memory is broken"));
    muster_rdzv_free(rdzv);
    muster_store_free(store);
    muster_store_server_stop(server);
}

static void parameters_make_a_dynamic_rendezvous_too(void **state)
{
    struct memory memory = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    struct memory_backend backend = { { &plain_ops }, &memory };
    struct muster_rdzv_params *params = params_of("memory", "", 1, 1, "last_call_timeout=1,use_agent_store=false");
    char endpoint[32];
    struct muster_store_server *server = serve(endpoint);
    struct muster_store *store = connect_to(server);
    struct muster_rdzv *rdzv = NULL;
    struct muster_rdzv_info info;

    (void)state;
    assert_int_equal(muster_rdzv_dynamic_create(store, &backend.base, params, &rdzv, NULL), 0);
    muster_rdzv_params_free(params);
    assert_false(muster_rdzv_use_agent_store(rdzv));
    info = joins(rdzv);
    assert_int_equal(info.world_size, 1);
    assert_string_equal(info.bootstrap.master_addr, "127.0.0.1");
    muster_rdzv_free(rdzv);
    muster_store_free(store);
    muster_store_server_stop(server);
    free(memory.state);
}

static void refuses_parts(struct muster_store *store, struct muster_rdzv_backend *backend, const char *part)
{
    struct muster_rdzv_params *params = params_of("memory", "", 1, 1, "");
    struct muster_error error = { 0 };
    struct muster_rdzv *rdzv = NULL;

    assert_int_equal(muster_rdzv_dynamic_from_backend(&quick, store, backend, NULL, &rdzv, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, part));
    assert_int_equal(muster_rdzv_dynamic_create(store, backend, params, &rdzv, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, part));
    assert_null(rdzv);
    muster_rdzv_params_free(params);
}

static void store_and_back_end_must_be_there_and_whole(void **state)
{
    static const struct muster_store_ops store_ops = { .size = sizeof store_ops, .name = "empty" };
    struct muster_store store = { &store_ops, 1000 };
    struct muster_rdzv_backend_ops ops = plain_ops;
    struct muster_rdzv_backend backend = { &ops };
    struct muster_rdzv *rdzv = NULL;

    (void)state;
    refuses_parts(NULL, &backend, "a store is needed");
    refuses_parts(&store, NULL, "a rendezvous back end with a name is needed");
    ops.name = NULL;
    refuses_parts(&store, &backend, "a rendezvous back end with a name is needed");
    ops = plain_ops;
    ops.get_state = NULL;
    refuses_parts(&store, &backend, "'memory' needs both get_state and set_state");
    ops = plain_ops;
    ops.set_state = NULL;
    refuses_parts(&store, &backend, "'memory' needs both get_state and set_state");
    ops = plain_ops;
    ops.size = offsetof(struct muster_rdzv_backend_ops, set_state);
    refuses_parts(&store, &backend, "'memory' needs both get_state and set_state");
    assert_int_equal(muster_rdzv_dynamic_from_backend(NULL, &store, &backend, NULL, &rdzv, NULL), MUSTER_EINVAL);
}

static struct muster_rdzv_settings settings_of(const struct muster_rdzv *rdzv)
{
    struct muster_rdzv_settings settings = { .size = sizeof settings };

    assert_int_equal(muster_rdzv_dynamic_settings(rdzv, &settings, NULL), 0);
    assert_int_equal(settings.size, sizeof settings);
    return settings;
}

static void a_dynamic_handler_tells_its_settings(void **state)
{
    struct memory memory = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    struct memory_backend backend = { { &plain_ops }, &memory };
    struct muster_rdzv_settings given = { .size = sizeof given,
                                          .run_id = "job",
                                          .min_nodes = 2,
                                          .max_nodes = 3,
                                          .timeout = { .join_ms = 70 },
                                          .bind = "any" };
    struct muster_rdzv_settings found,
        older = { .size = offsetof(struct muster_rdzv_settings, timeout), .allow = "left" };
    char endpoint[32];
    struct muster_store_server *server = serve(endpoint);
    struct muster_store *store = connect_to(server);
    struct muster_rdzv *rdzv = NULL;

    (void)state;
    assert_int_equal(muster_rdzv_dynamic_from_backend(&given, store, &backend.base, "", &rdzv, NULL), 0);
    found = settings_of(rdzv);
    assert_string_equal(found.run_id, "job");
    assert_int_equal(found.min_nodes, 2);
    assert_int_equal(found.max_nodes, 3);
    assert_int_equal(found.timeout.join_ms, 70);
    assert_int_equal(found.timeout.last_call_ms, 30000);
    assert_int_equal(found.timeout.close_ms, 30000);
    assert_int_equal(found.timeout.heartbeat_ms, 5000);
    assert_int_equal(found.keep_alive_interval_ms, 5000);
    assert_int_equal(found.keep_alive_max_attempt, 3);
    assert_string_equal(found.bind, "any");
    assert_null(found.allow);
    assert_false(found.no_agent_store);
    assert_int_equal(muster_rdzv_dynamic_settings(rdzv, &older, NULL), 0); /* of a program that knows less of them */
    assert_int_equal(older.max_nodes, 3);
    assert_string_equal(older.allow, "left");
    older.size = 0;
    assert_int_equal(muster_rdzv_dynamic_settings(rdzv, &older, NULL), MUSTER_EINVAL);
    assert_true(muster_rdzv_use_agent_store(rdzv));
    muster_rdzv_free(rdzv);
    given.no_agent_store = true;
    assert_int_equal(muster_rdzv_dynamic_from_backend(&given, store, &backend.base, NULL, &rdzv, NULL), 0);
    assert_false(muster_rdzv_use_agent_store(rdzv));
    assert_true(settings_of(rdzv).no_agent_store);
    muster_rdzv_free(rdzv);
    muster_store_free(store);
    muster_store_server_stop(server);
}

static void handlers_of_c10d_tell_their_settings_and_others_have_none(void **state)
{
    struct muster_rdzv_params *params = params_of("c10d", "127.0.0.1:1", 1, 4, "is_host=false,keep_alive_interval=7");
    struct muster_rdzv_settings found = { .size = sizeof found };
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_rdzv_blocking_new(mu_c10d_start, params, &rdzv, NULL), 0);
    muster_rdzv_params_free(params);
    assert_int_equal(settings_of(rdzv).keep_alive_interval_ms, 7000);
    assert_int_equal(settings_of(rdzv).max_nodes, 4);
    muster_rdzv_free(rdzv);
    assert_int_equal(muster_rdzv_static_new("127.0.0.1", 1, 0, 1, "job", 1000, &rdzv, NULL), 0);
    assert_int_equal(muster_rdzv_dynamic_settings(rdzv, &found, &error), MUSTER_EINVAL);
    assert_string_equal(error.text, "settings: the handler 'static' is not a dynamic one");
    muster_rdzv_free(rdzv);
    rdzv = fake_of("join=joined");
    assert_int_equal(muster_rdzv_dynamic_settings(rdzv, &found, NULL), MUSTER_EINVAL);
    muster_rdzv_free(rdzv);
}

/* ---- For the record ---- */

/* What is recorded and warned of, "operation STATE" and "level: line" each, in the order in which it came. Written
 * under the locks of the two sinks, of which one waits for the other. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char text[8192];
} told = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void add_told(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void add_told(const char *format, ...)
{
    va_list args;
    size_t len;

    (void)pthread_mutex_lock(&told.lock);
    len = strlen(told.text);
    va_start(args, format);
    (void)vsnprintf(told.text + len, sizeof told.text - len, format, args);
    va_end(args);
    (void)pthread_cond_broadcast(&told.changed);
    (void)pthread_mutex_unlock(&told.lock);
}

static void hear_record(void *ctx, const struct muster_event_record *record)
{
    const char *dot = strrchr(record->name, '.');

    (void)ctx;
    add_told("%s %s\n", dot != NULL ? dot + 1 : record->name, muster_node_state_name(record->node_state));
    if (record->node_state == MUSTER_NODE_FAILED)
        add_told("  %s\n", record->message);
    if (strcmp(record->hostname, "127.0.0.1") != 0 || strcmp(record->run_id, "job") != 0 || record->pid != getpid() ||
        record->local_id < 0)
        add_told("by somebody else\n");
}

static void hear_warning(void *ctx, enum muster_log_level level, const char *line)
{
    (void)ctx;
    if (level == MUSTER_LOG_WARNING)
        add_told("warning: %s\n", line);
}

static void wait_for_told(const char *what)
{
    int64_t until_ms = mu_clock_ms() + 60000;
    bool found;

    (void)pthread_mutex_lock(&told.lock);
    while (!(found = strstr(told.text, what) != NULL) && mu_cond_wait_until(&told.changed, &told.lock, until_ms))
        continue;
    (void)pthread_mutex_unlock(&told.lock);
    if (!found)
        fail_msg("'%s' is not in: %s", what, told.text);
}

static void forget_told(void)
{
    (void)pthread_mutex_lock(&told.lock);
    told.text[0] = '\0';
    (void)pthread_mutex_unlock(&told.lock);
}

static void assert_told_once(const char *what)
{
    const char *found;

    (void)pthread_mutex_lock(&told.lock);
    found = strstr(told.text, what);
    if (found == NULL || strstr(found + 1, what) != NULL)
        fail_msg("'%s' is not once in: %s", what, told.text);
    (void)pthread_mutex_unlock(&told.lock);
}

static void each_call_that_fails_is_recorded_under_its_own_name(void **state)
{
    struct memory memory = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    struct memory_backend backend = { { &plain_ops }, &memory };
    struct muster_rdzv_settings settings = quick;
    char endpoint[32];
    struct muster_store_server *server = serve(endpoint);
    struct muster_store *store = connect_to(server);
    struct muster_rdzv *rdzv = NULL;
    bool flag = true;
    int64_t count;

    (void)state;
    assert_int_equal(mu_cond_init(&told.changed), 0);
    settings.min_nodes = settings.max_nodes = 1;
    settings.timeout.close_ms = 300;
    settings.keep_alive_interval_ms = 200;
    forget_told();
    muster_events_set_sink(hear_record, NULL);
    muster_log_set_sink(hear_warning, NULL);
    assert_int_equal(muster_rdzv_dynamic_from_backend(&settings, store, &backend.base, "127.0.0.1", &rdzv, NULL), 0);
    (void)joins(rdzv);
    wait_for_told("next_rendezvous RUNNING\n_add_to_participants RUNNING\n_keep_alive RUNNING\n"
                  "_mark_rendezvous_complete SUCCEEDED\nrun RUNNING\nnext_rendezvous RUNNING\n");
    wait_for_told("_keep_alive RUNNING\nrun RUNNING\n_keep_alive RUNNING\n"); /* one is due, synced, and sent */
    forget_told();
    (void)pthread_mutex_lock(&memory.lock);
    memory.broken = true;
    (void)pthread_mutex_unlock(&memory.lock);
    wait_for_told("warning: rendezvous 'job': could not send a heartbeat: keep to rendezvous 'job': ");
    wait_for_told("the memory is broken; trying again\n");
    wait_for_told("_keep_alive FAILED\n  The node '127.0.0.1_");
    wait_for_told("due to an error of type RendezvousConnectionError.\n");
    assert_int_equal(muster_rdzv_is_closed(rdzv, &flag, NULL), MUSTER_ERDZV_CONNECTION);
    assert_told_once(
        "is_closed FAILED\n  RendezvousConnectionError: look at rendezvous 'job': read the document: the memory is "
        "broken\n");
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &count, NULL), MUSTER_ERDZV_CONNECTION);
    assert_told_once(
        "num_nodes_waiting FAILED\n  RendezvousConnectionError: look at rendezvous 'job': read the document: the "
        "memory is broken\n");
    assert_int_equal(muster_rdzv_set_closed(rdzv, NULL), MUSTER_ERDZV_CONNECTION);
    assert_told_once("set_closed FAILED\n  RendezvousConnectionError: close rendezvous 'job': ");
    assert_int_equal(muster_rdzv_shutdown(rdzv, &flag, NULL), 0);
    assert_false(flag);
    assert_told_once("warning: rendezvous 'job': could not be shut down: close rendezvous 'job': ");
    assert_told_once("shutdown FAILED\n  The node '127.0.0.1_");
    assert_told_once("set_closed FAILED"); /* not for the shutdown */
    assert_null(strstr(told.text, "by somebody else"));
    muster_rdzv_free(rdzv);
    muster_events_set_sink(NULL, NULL);
    muster_log_set_sink(NULL, NULL);
    muster_store_free(store);
    muster_store_server_stop(server);
    (void)pthread_cond_destroy(&told.changed);
    free(memory.state);
}

struct records {
    unsigned count;
    char error[256];
};

static void on_record(void *ctx, const struct muster_event_record *record)
{
    struct records *records = ctx;

    assert_string_equal(record->name, "dynamic_rendezvous.py:create_handler");
    assert_int_equal(record->node_state, MUSTER_NODE_FAILED);
    records->count++;
    (void)snprintf(records->error, sizeof records->error, "%s", record->error);
}

static void settings_are_checked_and_failures_are_recorded(void **state)
{
    struct memory memory = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    struct memory_backend backend = { { &plain_ops }, &memory };
    struct muster_rdzv_params *params = params_of("memory", "", 1, 1, "join_timeout=0");
    struct muster_rdzv_settings rows[11];
    struct records records = { 0 };
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        rows[i] = quick;
    rows[0].size = 0;
    rows[1].run_id = "";
    rows[2].run_id = NULL;
    rows[3].min_nodes = 0;
    rows[4].max_nodes = 1;
    rows[5].timeout.join_ms = -1;
    rows[6].timeout.close_ms = -1;
    rows[7].keep_alive_interval_ms = -1;
    rows[8].keep_alive_max_attempt = -1;
    rows[9].timeout.last_call_ms = -1;
    rows[10].timeout.heartbeat_ms = -1;
    muster_events_set_sink(on_record, &records);
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(muster_rdzv_dynamic_from_backend(&rows[i], NULL, &backend.base, NULL, &rdzv, &error),
                         MUSTER_EINVAL);
        assert_int_equal(strncmp(error.text, "make a dynamic rendezvous: ", 27), 0);
        assert_string_equal(error.text, records.error);
        assert_int_equal(records.count, i + 1);
    }
    assert_int_equal(muster_rdzv_dynamic_create(NULL, &backend.base, params, &rdzv, NULL), MUSTER_EINVAL);
    assert_non_null(strstr(records.error, "join_timeout"));
    muster_events_set_sink(NULL, NULL);
    muster_rdzv_params_free(params);
    assert_null(rdzv);
}

/* ---- c10d ---- */

#define QUICK_OPTIONS                                                                                                  \
    "join_timeout=20,close_timeout=20,keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=1"

static void start_with(struct node *node, const char *endpoint, int64_t min, int64_t max, const char *options)
{
    struct muster_rdzv_params *params = params_of("c10d", endpoint, min, max, options);
    struct muster_error error;

    *node = (struct node){ .rc = 1 };
    if (mu_rdzv_blocking_new(mu_c10d_start, params, &node->rdzv, &error) != 0)
        fail_msg("%s", error.text);
    muster_rdzv_params_free(params);
}

static void start_c10d(struct node *node, const char *endpoint, int64_t min, int64_t max)
{
    start_with(node, endpoint, min, max, QUICK_OPTIONS);
}

/* One of them hosts the store, as the address is this machine's; it is the one that was there first. */
static void meet_at_a_store_of_their_own(const char *options)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1; /* keeps the port from being given to others */
    char endpoint[32];
    struct node a, b;

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", ntohs(addr.sin_port));
    start_with(&a, endpoint, 2, 2, options);
    start_with(&b, endpoint, 2, 2, options);
    join_together(&a, &b);
    join_together(&a, &b); /* the next round */
    end_node(&b);
    end_node(&a);
    (void)close(fd);
}

static void two_nodes_meet_at_a_store_of_their_own(void **state)
{
    (void)state;
    meet_at_a_store_of_their_own(QUICK_OPTIONS);
}

static void two_nodes_meet_in_the_engine_of_their_store(void **state)
{
    (void)state;
    meet_at_a_store_of_their_own(QUICK_OPTIONS ",engine=on");
}

/* The sleep is what is tested: more than twice as long as it takes to be thought dead. */
static void a_member_stays_one_while_its_user_sleeps(void **state)
{
    const struct timespec nap = { .tv_sec = 5 };
    char endpoint[32];
    struct muster_store_server *server = serve(endpoint);
    struct node a, b;

    (void)state;
    start_c10d(&a, endpoint, 2, 2);
    start_c10d(&b, endpoint, 2, 2);
    join_together(&a, &b);
    (void)nanosleep(&nap, NULL);
    assert_int_equal(waiting(a.rdzv), 0);
    assert_int_equal(waiting(b.rdzv), 0);
    assert_false(closed(a.rdzv));
    assert_int_equal(muster_store_set(b.info.store, muster_str("k2"), muster_str("v2"), D, NULL), 0);
    assert_has(a.info.store, "k2", "v2");
    end_node(&a);
    wait_for_news(b.rdzv);
    end_node(&b);
    muster_store_server_stop(server);
}

static void a_late_node_is_let_in_by_the_next_round(void **state)
{
    char endpoint[32];
    struct muster_store_server *server = serve(endpoint);
    struct node a, b;
    bool done = false;

    (void)state;
    start_c10d(&a, endpoint, 1, 2);
    (void)run_node(&a);
    assert_int_equal(a.rc, 0);
    assert_int_equal(a.info.world_size, 1);
    start_c10d(&b, endpoint, 1, 2);
    assert_int_equal(pthread_create(&b.thread, NULL, run_node, &b), 0);
    wait_for_news(a.rdzv);
    (void)run_node(&a);
    assert_int_equal(pthread_join(b.thread, NULL), 0);
    assert_int_equal(a.rc, 0);
    assert_int_equal(b.rc, 0);
    assert_int_equal(a.info.world_size, 2);
    assert_int_equal(b.info.world_size, 2);
    assert_int_equal(a.info.round, 1);
    assert_int_equal(muster_rdzv_shutdown(a.rdzv, &done, NULL), 0);
    assert_true(done);
    wait_until_closed(b.rdzv);
    end_node(&a);
    end_node(&b);
    muster_store_server_stop(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_handler_tells_is_what_the_caller_gets),
        cmocka_unit_test(a_join_that_fails_fails_with_the_handlers_error),
        cmocka_unit_test(looking_tells_closed_and_waiting),
        cmocka_unit_test(looking_may_fail),
        cmocka_unit_test(a_round_that_has_lost_members_calls_for_the_next),
        cmocka_unit_test(closing_is_asked_for_once),
        cmocka_unit_test(closing_may_fail),
        cmocka_unit_test(shutdown_closes_and_leaves),
        cmocka_unit_test(shutdown_tells_of_rendezvous_errors_and_fails_with_others),
        cmocka_unit_test(freeing_does_not_wait_long_for_a_leave),
        cmocka_unit_test(calls_of_many_threads_come_one_after_the_other),
        cmocka_unit_test(a_handler_that_does_not_start_is_an_error),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(each_round_of_c10d_has_a_view_of_the_store),
        cmocka_unit_test(a_round_without_its_store_is_left_again),
        cmocka_unit_test(endpoints_and_timeouts_of_c10d_are_checked),
        cmocka_unit_test(a_users_back_end_needs_no_watch),
        cmocka_unit_test(a_users_back_end_may_have_a_watch),
        cmocka_unit_test(a_broken_back_end_is_an_error_in_bounded_time),
        cmocka_unit_test(parameters_make_a_dynamic_rendezvous_too),
        cmocka_unit_test(store_and_back_end_must_be_there_and_whole),
        cmocka_unit_test(a_dynamic_handler_tells_its_settings),
        cmocka_unit_test(handlers_of_c10d_tell_their_settings_and_others_have_none),
        cmocka_unit_test(each_call_that_fails_is_recorded_under_its_own_name),
        cmocka_unit_test(settings_are_checked_and_failures_are_recorded),
        cmocka_unit_test(two_nodes_meet_at_a_store_of_their_own),
        cmocka_unit_test(two_nodes_meet_in_the_engine_of_their_store),
        cmocka_unit_test(a_member_stays_one_while_its_user_sleeps),
        cmocka_unit_test(a_late_node_is_let_in_by_the_next_round),
        cmocka_unit_test(a_membership_that_fails_answers_no_other_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
