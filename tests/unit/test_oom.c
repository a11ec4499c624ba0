/* Whether memory ran out: the counters of every kind of machine, from trees that the tests bring along. */
#include "agent/oom.h"
#include "pure.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static int make_root(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/muster-oom-XXXXXX");
    assert_non_null(mkdtemp(root));
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *place)
{
    (void)st;
    (void)kind;
    (void)place;
    return remove(path);
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

static void put_file(const char *name, const char *text)
{
    char path[512];
    int fd;

    (void)snprintf(path, sizeof path, "%s%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    (void)close(fd);
}

static void assert_counted(uint64_t kills, bool of_machine)
{
    struct mu_oom oom;

    mu_oom_read(root, &oom);
    assert_true(oom.known);
    assert_int_equal(oom.kills, kills);
    assert_int_equal(oom.of_machine, of_machine);
}

static void a_group_of_v2_counts(void **state)
{
    (void)state;
    put_file("/proc/vmstat", "nr_free_pages 1\noom_kill 99\n");
    put_file("/proc/self/cgroup", "0::/user.slice/job\n");
    put_file("/sys/fs/cgroup/user.slice/job/memory.events",
             "low 0\nhigh 4\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n");
    assert_counted(3, false);
}

static void seen_from_inside_a_container_the_group_is_the_root(void **state)
{
    (void)state;
    put_file("/proc/self/cgroup", "0::/\n");
    put_file("/sys/fs/cgroup/memory.events", "oom_kill 1\n");
    assert_counted(1, false);
    put_file("/proc/self/cgroup", "0::/../../other\n");
    put_file("/other/memory.events", "oom_kill 17\n");
    assert_counted(1, false);
    put_file("/proc/self/cgroup", "0::/kubepods/pod/x\n"); /* of the host's tree, which is not mounted here */
    assert_counted(1, false);
}

static void a_group_of_v1_counts(void **state)
{
    (void)state;
    put_file("/proc/self/cgroup", "12:pids:/a\n5:cpu,memory:/docker/x\n3:memoryish:/b\n0::/unused\n");
    put_file("/sys/fs/cgroup/memory/docker/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
    assert_counted(5, false);
}

static void else_the_machine_counts(void **state)
{
    (void)state;
    put_file("/proc/vmstat", "nr_free_pages 1\noom_kill 8\nother 2\n");
    assert_counted(8, true);
    put_file("/proc/self/cgroup", "0::/\n"); /* the true root group has no such file */
    assert_counted(8, true);
}

static void without_a_counter_nothing_is_known(void **state)
{
    static const char *const texts[] = { "",
                                         "oom_kill\n",
                                         "oom_kill x\n",
                                         "oom_kill -1\n",
                                         "oom_kill \n",
                                         "oom_kill 1 2\n",
                                         "oom_killed 3\n",
                                         " oom_kill 3\n",
                                         "oom_kill 99999999999999999999999\n" };
    struct mu_oom oom;

    (void)state;
    mu_oom_read(root, &oom);
    assert_false(oom.known);
    put_file("/proc/self/cgroup", "rubbish\n0:\n0::\n::::\n0::relative\n1:memory\n");
    for (size_t i = 0; i < COUNT(texts); i++) {
        put_file("/proc/vmstat", texts[i]);
        put_file("/sys/fs/cgroup/memory.events", texts[i]);
        mu_oom_read(root, &oom);
        assert_false(oom.known);
    }
}

static void a_root_that_is_too_long_is_none(void **state)
{
    char name[PATH_MAX + 1];
    struct mu_oom oom;

    (void)state;
    memset(name, '/', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    mu_oom_read(name, &oom);
    assert_false(oom.known);
}

static void this_machine_can_be_read(void **state)
{
    struct mu_oom oom;

    (void)state;
    mu_oom_read("", &oom);
    assert_true(oom.known || oom.kills == 0);
}

static void only_a_kill_with_a_count_is_out_of_memory(void **state)
{
    static const struct {
        struct mu_oom before, after;
        int exit_code;
        bool killed;
    } rows[] = {
        { { true, false, 1 }, { true, false, 2 }, -9, true },   { { true, false, 1 }, { true, false, 2 }, 137, true },
        { { true, true, 1 }, { true, true, 3 }, -9, true },     { { true, false, 1 }, { true, false, 2 }, -15, false },
        { { true, false, 1 }, { true, false, 2 }, 9, false },   { { true, false, 1 }, { true, false, 2 }, 1, false },
        { { true, false, 2 }, { true, false, 2 }, -9, false },  { { true, false, 2 }, { true, false, 1 }, -9, false },
        { { false, false, 0 }, { true, false, 1 }, -9, false }, { { true, false, 0 }, { false, false, 1 }, -9, false },
        { { true, false, 0 }, { true, true, 1 }, -9, false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(mu_oom_killed(&rows[i].before, &rows[i].after, rows[i].exit_code), rows[i].killed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ROOT(a_group_of_v2_counts),
        WITH_ROOT(seen_from_inside_a_container_the_group_is_the_root),
        WITH_ROOT(a_group_of_v1_counts),
        WITH_ROOT(else_the_machine_counts),
        WITH_ROOT(without_a_counter_nothing_is_known),
        cmocka_unit_test(a_root_that_is_too_long_is_none),
        cmocka_unit_test(this_machine_can_be_read),
        cmocka_unit_test(only_a_kill_with_a_count_is_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
