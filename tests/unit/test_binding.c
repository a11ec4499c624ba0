/* CPUs and memory policy of this very process, and of one that is started. */
#include "proc/binding.h"

#include "proc/spawn.h"
#include "pure.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct mu_cpus before;

static struct mu_cpus affinity(void)
{
    struct mu_cpus cpus = { { 0 } };

    assert_int_equal(sched_getaffinity(0, sizeof cpus.words, (cpu_set_t *)(void *)cpus.words), 0);
    return cpus;
}

static int policy(void)
{
    int mode = -1;

    return syscall(SYS_get_mempolicy, &mode, NULL, 0ul, NULL, 0ul) == 0 ? mode : -1;
}

static int setup(void **state)
{
    (void)state;
    before = affinity();
    return 0;
}

static int teardown(void **state)
{
    const struct mu_binding binding = { .cpus = before };

    (void)state;
    (void)syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0ul);
    return mu_binding_set_cpus(&binding);
}

static void cpus_are_set(void **state)
{
    struct mu_binding binding = { .memory = MU_MEMORY_INHERITED };
    struct mu_cpus now;

    (void)state;
    mu_cpus_add(&binding.cpus, mu_cpus_next(&before, 0));
    assert_int_equal(mu_binding_set_cpus(&binding), 0);
    now = affinity();
    assert_memory_equal(&now, &binding.cpus, sizeof now);
}

static void cpus_that_are_not_there_are_refused(void **state)
{
    struct mu_binding binding = { .memory = MU_MEMORY_INHERITED };

    (void)state;
    mu_cpus_add(&binding.cpus, MU_CPUS_MAX - 1);
    assert_int_equal(mu_binding_set_cpus(&binding), EINVAL);
}

/* Where it is forbidden, as in many containers, that is what is said. */
static void a_policy_is_tried_and_taken_back(void **state)
{
    struct mu_binding binding = { .memory = MU_MEMORY_LOCAL };
    int mode = policy(), errnum;

    (void)state;
    errnum = mu_binding_try_memory(&binding);
    assert_int_equal(policy(), mode);
    if (mode < 0) {
        assert_true(errnum == EPERM || errnum == ENOSYS);
        skip();
    }
    assert_int_equal(errnum, 0);
    mu_binding_prefer_node(&binding, MU_BINDING_NODES_MAX - 1); /* not there */
    assert_int_equal(mu_binding_try_memory(&binding), EINVAL);
    assert_int_equal(policy(), mode);
    assert_int_equal(mu_binding_set_memory(&(struct mu_binding){ .memory = MU_MEMORY_LOCAL }), 0);
    assert_int_equal(policy(), MPOL_LOCAL);
    assert_int_equal(mu_binding_set_memory(&(struct mu_binding){ .memory = MU_MEMORY_INHERITED }), 0);
    assert_int_equal(policy(), MPOL_LOCAL);
}

static int status_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The worker has them; we stay as we are. */
static void a_worker_is_bound_before_it_runs(void **state)
{
    struct mu_binding binding = { .memory = policy() < 0 ? MU_MEMORY_INHERITED : MU_MEMORY_LOCAL };
    char script[256], room[32];
    const char *const argv[] = { "/bin/sh", "-c", script, NULL };
    const struct mu_spawn spec = { .argv = argv, .binding = &binding };
    struct mu_cpus now;
    struct mu_spawned spawned;
    unsigned last = 0;
    int mode = policy();

    (void)state;
    for (unsigned cpu = mu_cpus_next(&before, 0); cpu < MU_CPUS_MAX; cpu = mu_cpus_next(&before, cpu + 1))
        last = cpu;
    mu_cpus_add(&binding.cpus, last);
    (void)snprintf(script, sizeof script,
                   "grep -qx 'Cpus_allowed_list:\t%s' /proc/self/status && grep -q ' %s ' "
                   "/proc/self/numa_maps",
                   mu_cpus_text(&binding.cpus, room, sizeof room),
                   binding.memory == MU_MEMORY_LOCAL ? "local" : "default");
    if (access("/proc/self/numa_maps", R_OK) < 0)
        *strstr(script, " && ") = '\0';
    assert_int_equal(mu_spawn_start(&spec, NULL, &spawned, NULL), 0);
    assert_int_equal(status_of(spawned.pid), 0);
    now = affinity();
    assert_memory_equal(&now, &before, sizeof now);
    assert_int_equal(policy(), mode);
}

static void a_worker_that_cannot_be_bound_does_not_run(void **state)
{
    struct mu_binding binding = { .memory = MU_MEMORY_INHERITED };
    const char *const argv[] = { "/bin/true", NULL };
    const struct mu_spawn spec = { .argv = argv, .binding = &binding };
    struct muster_error error = { 0 };
    struct mu_spawned spawned;

    (void)state;
    mu_cpus_add(&binding.cpus, 8190);
    mu_cpus_add(&binding.cpus, 8191);
    assert_true(mu_spawn_start(&spec, NULL, &spawned, &error) < 0);
    assert_int_equal(error.errnum, EINVAL);
    assert_string_equal(error.text, "start '/bin/true': bind it to CPUs 8190-8191, none of which it may use now: "
                                    "Invalid argument");
    if (policy() < 0)
        return;
    binding.cpus = before;
    mu_binding_prefer_node(&binding, MU_BINDING_NODES_MAX - 1);
    assert_true(mu_spawn_start(&spec, NULL, &spawned, &error) < 0);
    assert_string_equal(error.text, "start '/bin/true': set its memory policy: Invalid argument");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(cpus_are_set),
        TEST(cpus_that_are_not_there_are_refused),
        TEST(a_policy_is_tried_and_taken_back),
        TEST(a_worker_is_bound_before_it_runs),
        TEST(a_worker_that_cannot_be_bound_does_not_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
