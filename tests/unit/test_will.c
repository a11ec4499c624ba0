/* An agent's last will: where it goes, when nothing is sent, and what it costs if nobody is there. */
#include "base/clock.h"
#include "expect.h"
#include "proc/will.h"
#include "pure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>

enum { LONG_MS = 20000, SHORT_MS = 50 };

struct scene {
    struct mu_wills *wills;
    struct mu_will *will;
    int listener;
    struct sockaddr_in address; /* of it */
    char got[2 * MU_WILL_BYTES_MAX];
    size_t got_len;
};

static void listen_anew(struct scene *s, int backlog)
{
    socklen_t len = sizeof s->address;

    s->address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(s->listener >= 0);
    assert_int_equal(bind(s->listener, (struct sockaddr *)&s->address, len), 0);
    assert_int_equal(listen(s->listener, backlog), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&s->address, &len), 0);
}

static int set_up(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    s->wills = mu_wills_new();
    assert_non_null(s->wills);
    s->will = mu_will_claim(s->wills);
    assert_non_null(s->will);
    listen_anew(s, 8);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *s = *state;

    (void)close(s->listener);
    mu_wills_free(s->wills);
    free(s);
    return 0;
}

static bool set(struct scene *s, struct mu_will *will, const void *bytes, size_t len)
{
    return mu_will_set(will, &(struct mu_will_text){ .address = (const struct sockaddr *)&s->address,
                                                     .address_len = sizeof s->address,
                                                     .bytes = mu_slice(bytes, len) });
}

/* The agent is dead: another process, which has the memory too, sends. */
static pid_t send_all(struct scene *s, int64_t limit_ms)
{
    pid_t pid = fork();

    if (pid == 0)
        _exit((int)mu_wills_send(s->wills, mu_clock_ms() + limit_ms));
    assert_true(pid > 0);
    return pid;
}

static int sent_by(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void await_readable(int fd)
{
    struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

    assert_int_equal(poll(&poll_fd, 1, LONG_MS), 1);
}

/* All that one connection brings, until its other end is closed; it is answered first, and closed last. */
static void receive(struct scene *s)
{
    ssize_t count;
    int fd;

    await_readable(s->listener);
    fd = accept(s->listener, NULL, NULL);
    assert_true(fd >= 0);
    assert_int_equal(send(fd, "hello", 5, MSG_NOSIGNAL), 5);
    s->got_len = 0;
    do {
        await_readable(fd);
        count = recv(fd, s->got + s->got_len, sizeof s->got - s->got_len, 0);
        assert_true(count >= 0);
        s->got_len += (size_t)count;
    } while (count > 0);
    (void)close(fd);
}

static void assert_nobody_came(struct scene *s)
{
    assert_int_equal(accept(s->listener, NULL, NULL), -1);
    assert_int_equal(errno, EAGAIN);
}

static void the_last_one_is_sent_whole(void **state)
{
    struct scene *s = *state;
    char bytes[MU_WILL_BYTES_MAX];
    pid_t pid;

    memset(bytes, 'x', sizeof bytes);
    assert_true(set(s, s->will, "an earlier one", 14));
    assert_true(set(s, s->will, bytes, sizeof bytes));
    for (unsigned i = 0; i < 3; i++) {
        pid = send_all(s, LONG_MS);
        receive(s);
        assert_int_equal(sent_by(pid), 1);
        assert_int_equal(s->got_len, sizeof bytes);
        assert_memory_equal(s->got, bytes, sizeof bytes);
        assert_true(set(s, s->will, "zz", 2));
        assert_true(set(s, s->will, bytes, sizeof bytes));
    }
}

/* It takes an end of our direction for a client that does not want its answer any more. */
static void a_server_that_closes_by_itself_is_waited_for(void **state)
{
    struct scene *s = *state;
    const struct mu_will_text text = { (const struct sockaddr *)&s->address, sizeof s->address, mu_slice("will", 4),
                                       true };
    pid_t pid;
    int fd;

    assert_true(mu_will_set(s->will, &text));
    pid = send_all(s, LONG_MS);
    await_readable(s->listener);
    fd = accept(s->listener, NULL, NULL);
    assert_true(fd >= 0);
    await_readable(fd);
    assert_int_equal(recv(fd, s->got, sizeof s->got, 0), 4);
    assert_int_equal(recv(fd, s->got, sizeof s->got, MSG_DONTWAIT), -1); /* no end */
    assert_int_equal(errno, EAGAIN);
    (void)close(fd);
    assert_int_equal(sent_by(pid), 1);
}

static void nothing_is_sent_when_it_is_withdrawn_released_or_too_long(void **state)
{
    struct scene *s = *state;
    char longer[MU_WILL_BYTES_MAX + 1] = { 0 };

    assert_int_equal(sent_by(send_all(s, LONG_MS)), 0); /* there was none yet */
    assert_true(set(s, s->will, "will", 4));
    mu_will_withdraw(s->will);
    assert_int_equal(sent_by(send_all(s, LONG_MS)), 0);
    assert_true(set(s, s->will, "will", 4));
    assert_false(set(s, s->will, longer, sizeof longer));
    assert_int_equal(sent_by(send_all(s, LONG_MS)), 0);
    assert_true(set(s, s->will, "will", 4));
    mu_will_release(s->will);
    assert_int_equal(sent_by(send_all(s, LONG_MS)), 0);
    assert_nobody_came(s);
}

static void several_agents_of_a_process_have_one_each(void **state)
{
    struct scene *s = *state;
    struct mu_will *second = mu_will_claim(s->wills);
    pid_t pid;

    assert_true(second != NULL && second != s->will);
    for (unsigned i = 2; i < MU_WILLS_MAX; i++)
        assert_non_null(mu_will_claim(s->wills));
    assert_null(mu_will_claim(s->wills)); /* that agent has none, which is no harm */
    assert_true(set(s, s->will, "1", 1));
    assert_true(set(s, second, "2", 1));
    pid = send_all(s, LONG_MS);
    receive(s);
    assert_memory_equal(s->got, "1", 1);
    receive(s);
    assert_memory_equal(s->got, "2", 1);
    assert_int_equal(sent_by(pid), 2);
    mu_will_release(second);
    assert_ptr_equal(mu_will_claim(s->wills), second);
}

/* It would take until the test is killed otherwise. */
static void an_address_that_refuses_costs_no_time(void **state)
{
    struct scene *s = *state;

    (void)close(s->listener);
    assert_true(set(s, s->will, "will", 4));
    assert_int_equal(sent_by(send_all(s, INT32_MAX)), 0);
    listen_anew(s, 8);
}

static void a_server_that_does_nothing_costs_no_more_than_the_limit(void **state)
{
    struct scene *s = *state;
    int waiting[4];

    assert_true(set(s, s->will, "will", 4)); /* nobody accepts or reads, but the kernel takes it */
    assert_int_equal(sent_by(send_all(s, SHORT_MS)), 1);
    (void)close(s->listener);
    listen_anew(s, 0);
    for (size_t i = 0; i < COUNT(waiting); i++) { /* no more are let in */
        waiting[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(waiting[i], (struct sockaddr *)&s->address, sizeof s->address);
    }
    assert_true(set(s, s->will, "will", 4));
    assert_int_equal(sent_by(send_all(s, SHORT_MS)), 0);
    for (size_t i = 0; i < COUNT(waiting); i++)
        (void)close(waiting[i]);
}

static void without_memory_there_is_none(void **state)
{
    struct scene *s = *state;

    assert_null(mu_will_claim(NULL));
    assert_false(set(s, NULL, "will", 4));
    mu_will_withdraw(NULL);
    mu_will_release(NULL);
    mu_wills_free(NULL);
    assert_int_equal(mu_wills_send(NULL, mu_clock_ms() + LONG_MS), 0);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(the_last_one_is_sent_whole),
        SCENE(a_server_that_closes_by_itself_is_waited_for),
        SCENE(nothing_is_sent_when_it_is_withdrawn_released_or_too_long),
        SCENE(several_agents_of_a_process_have_one_each),
        SCENE(an_address_that_refuses_costs_no_time),
        SCENE(a_server_that_does_nothing_costs_no_more_than_the_limit),
        SCENE(without_memory_there_is_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
