/* The health check, asked over real HTTP. Where libmicrohttpd is not installed only its absence is tested. */
#include "http/health_mhd.h"
#include "pure.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_uint pokes;

static void loop_is_stuck(void *ctx)
{
    (void)ctx;
    atomic_fetch_add(&pokes, 1);
}

/* What the agent's loop does, from another thread than the one that asked. */
static void *turn(void *health)
{
    mu_health_turned(*(struct mu_health **)health);
    return NULL;
}

static pthread_t loop_thread;

static void loop_turns(void *ctx)
{
    atomic_fetch_add(&pokes, 1);
    assert_int_equal(pthread_create(&loop_thread, NULL, turn, ctx), 0);
}

static bool have_library(void)
{
    void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);

    if (library != NULL)
        (void)dlclose(library);
    return library != NULL;
}

static void ask(uint16_t port, const char *request, char *answer, size_t room)
{
    struct sockaddr_in addr = { .sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t used = 0;
    ssize_t len;

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    while ((len = recv(fd, answer + used, room - 1 - used, 0)) > 0)
        used += (size_t)len;
    answer[used] = '\0';
    (void)close(fd);
}

/* Behind "HTTP/1.x ". */
static const char *status_of(const char *answer)
{
    assert_memory_equal(answer, "HTTP/1.", 7);
    return answer + 9;
}

static void assert_answer(struct mu_health *health, const char *request, const char *status, const char *body)
{
    char answer[1024];

    ask(mu_health_port(health), request, answer, sizeof answer);
    assert_memory_equal(status_of(answer), status, strlen(status));
    assert_non_null(strstr(answer, "\r\n\r\n"));
    assert_string_equal(strstr(answer, "\r\n\r\n") + 4, body);
}

#define GET "GET / HTTP/1.0\r\n\r\n"

static void states_are_answered(void **state)
{
    static const struct {
        const char *state, *status, *body;
    } rows[] = {
        { "INIT", "200", "INIT\n" },           { "HEALTHY", "200", "HEALTHY\n" }, { "STOPPED", "200", "STOPPED\n" },
        { "SUCCEEDED", "200", "SUCCEEDED\n" }, { "FAILED", "503", "FAILED\n" },   { "UNHEALTHY", "503", "UNHEALTHY\n" },
        { "UNKNOWN", "503", "UNKNOWN\n" },
    };
    struct mu_health *health = NULL;
    struct mu_health_config config = { .poke = loop_turns, .ctx = &health };

    (void)state;
    if (!have_library())
        skip();
    atomic_store(&pokes, 0);
    assert_int_equal(mu_health_start(&config, &health, NULL), 0);
    assert_true(mu_health_port(health) != 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (i > 0) /* INIT is there before anybody says so */
            mu_health_set_state(health, rows[i].state);
        assert_answer(health, GET, rows[i].status, rows[i].body);
        (void)pthread_join(loop_thread, NULL);
    }
    assert_int_equal(atomic_load(&pokes), COUNT(rows)); /* each asks the loop */
    assert_answer(health, "HEAD /health HTTP/1.0\r\n\r\n", "503", "");
    (void)pthread_join(loop_thread, NULL);
    mu_health_stop(health);
}

static void only_reading_is_allowed(void **state)
{
    struct mu_health *health = NULL;
    struct mu_health_config config = { .poke = loop_turns, .ctx = &health };

    (void)state;
    if (!have_library())
        skip();
    atomic_store(&pokes, 0);
    assert_int_equal(mu_health_start(&config, &health, NULL), 0);
    assert_answer(health, "POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "405", "GET or HEAD\n");
    assert_answer(health, "DELETE / HTTP/1.0\r\n\r\n", "405", "GET or HEAD\n");
    assert_int_equal(atomic_load(&pokes), 0);
    mu_health_stop(health);
}

/* A loop that does not turn is asked once; it is ill when it has been silent for long enough, and well when it
 * turns. */
static void a_loop_that_is_stuck_is_found_out(void **state)
{
    struct mu_health *health = NULL;
    struct mu_health_config config = { .poke = loop_is_stuck, .stuck_ms = 40, .answer_ms = 20 };
    char answer[1024];

    (void)state;
    if (!have_library())
        skip();
    atomic_store(&pokes, 0);
    assert_int_equal(mu_health_start(&config, &health, NULL), 0);
    mu_health_set_state(health, "HEALTHY");
    do
        ask(mu_health_port(health), GET, answer, sizeof answer);
    while (strncmp(status_of(answer), "200", 3) == 0);
    assert_memory_equal(status_of(answer), "503", 3);
    assert_non_null(strstr(answer, "HEALTHY, no answer from the agent for "));
    assert_int_equal(atomic_load(&pokes), 1);
    mu_health_turned(health);
    mu_health_stop(health);
}

/* While somebody waits for the loop, the loop ends it. */
static void *ask_in_vain(void *port)
{
    char answer[1024];

    ask(*(uint16_t *)port, GET, answer, sizeof answer);
    return NULL;
}

static void it_can_be_stopped_while_somebody_asks(void **state)
{
    struct mu_health *health = NULL;
    struct mu_health_config config = { .poke = loop_is_stuck, .answer_ms = 600000 };
    pthread_t asker;
    uint16_t port;

    (void)state;
    if (!have_library())
        skip();
    atomic_store(&pokes, 0);
    assert_int_equal(mu_health_start(&config, &health, NULL), 0);
    port = mu_health_port(health);
    assert_int_equal(pthread_create(&asker, NULL, ask_in_vain, &port), 0);
    while (atomic_load(&pokes) == 0)
        (void)usleep(100);
    mu_health_stop(health);
    assert_int_equal(pthread_join(asker, NULL), 0);
}

static void a_port_in_use_is_an_error(void **state)
{
    struct mu_health *first = NULL, *second = NULL;
    struct mu_health_config config = { .poke = loop_is_stuck };
    struct muster_error error = { 0 };
    char expected[64];

    (void)state;
    if (!have_library())
        skip();
    assert_int_equal(mu_health_start(&config, &first, NULL), 0);
    config.port = mu_health_port(first);
    assert_true(mu_health_start(&config, &second, &error) < 0);
    (void)snprintf(expected, sizeof expected, "health check on port %u: ", (unsigned)config.port);
    assert_memory_equal(error.text, expected, strlen(expected));
    assert_null(second);
    mu_health_stop(first);
    mu_health_stop(NULL);
    mu_health_turned(NULL);
    mu_health_set_state(NULL, "INIT");
}

static void without_the_library_its_package_is_named(void **state)
{
    struct mu_health *health = NULL;
    struct mu_health_config config = { .port = 8080, .poke = loop_is_stuck, .library = "libnothere.so.12" };
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(mu_health_start(&config, &health, &error), MUSTER_ENOTSUP);
    assert_string_equal(error.text, "health check on port 8080: libnothere.so.12 cannot be loaded: install "
                                    "libmicrohttpd12 (Debian, Ubuntu) or libmicrohttpd (Fedora, RHEL)");
    config.library = "libpthread.so.0";
    assert_int_equal(mu_health_start(&config, &health, &error), MUSTER_ENOTSUP);
    assert_string_equal(error.text, "health check on port 8080: libpthread.so.0 has no MHD_start_daemon");
    assert_null(health);
}

static void silence_is_judged_by_its_length(void **state)
{
    static const struct {
        const char *state;
        int64_t silent_ms;
        unsigned status;
    } rows[] = {
        { "HEALTHY", 0, 200 },   { "HEALTHY", 59999, 200 }, { "HEALTHY", 60000, 503 }, { "INIT", 0, 200 },
        { "SUCCEEDED", 0, 200 }, { "STOPPED", 0, 200 },     { "UNKNOWN", 0, 503 },     { "UNHEALTHY", 0, 503 },
        { "FAILED", 0, 503 },    { "FAILED", 60000, 503 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(mu_health_judge(rows[i].state, rows[i].silent_ms, MU_HEALTH_STUCK_MS), rows[i].status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_answered),
        cmocka_unit_test(only_reading_is_allowed),
        cmocka_unit_test(a_loop_that_is_stuck_is_found_out),
        cmocka_unit_test(it_can_be_stopped_while_somebody_asks),
        cmocka_unit_test(a_port_in_use_is_an_error),
        cmocka_unit_test(without_the_library_its_package_is_named),
        cmocka_unit_test(silence_is_judged_by_its_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
