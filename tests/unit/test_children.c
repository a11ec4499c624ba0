/* The children of a process, from a /proc of the test's own, and from the real one. */
#include "failmalloc.h"
#include "proc/children.h"
#include "pure.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { US = 4000 }; /* not our own pid, so that nobody looks for "self" */

struct scene {
    char root[64];
    struct mu_children list;
    struct muster_error error;
    char text[512];
};

static void make_dir(const struct scene *s, const char *format, ...)
{
    char path[256];
    va_list args;
    size_t used = (size_t)snprintf(path, sizeof path, "%s/", s->root);

    va_start(args, format);
    (void)vsnprintf(path + used, sizeof path - used, format, args);
    va_end(args);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void write_file(const struct scene *s, const char *name, const char *text)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", s->root, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void process(const struct scene *s, int pid, const char *rest)
{
    char name[64], text[256];

    make_dir(s, "%d", pid);
    (void)snprintf(name, sizeof name, "%d/stat", pid);
    (void)snprintf(text, sizeof text, "%d %s 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 %d 0\n", pid, rest, pid * 10);
    write_file(s, name, text);
}

static void thread_of(const struct scene *s, int pid, int tid, const char *children)
{
    char name[64];

    make_dir(s, "%d/task/%d", pid, tid);
    (void)snprintf(name, sizeof name, "%d/task/%d/children", pid, tid);
    write_file(s, name, children);
}

static void thread(const struct scene *s, int tid, const char *children)
{
    thread_of(s, US, tid, children);
}

static const char *listed(struct scene *s)
{
    size_t used = 0;

    s->text[0] = '\0';
    for (size_t i = 0; i < s->list.count && used < sizeof s->text; i++) {
        const struct mu_child *c = &s->list.items[i];

        used += (size_t)snprintf(s->text + used, sizeof s->text - used, "%s%d %c %d %d %s", i > 0 ? ", " : "", c->pid,
                                 c->state, c->pgid, c->sid, c->comm);
    }
    return s->text;
}

static const char *list(struct scene *s, bool thorough)
{
    assert_int_equal(mu_children_list(&s->list, s->root, US, thorough, NULL, &s->error), 0);
    return listed(s);
}

static void a_family(struct scene *s)
{
    process(s, US, "(us) S 1 4000 4000");
    process(s, 4300, "(late) Z 4000 4300 4300");
    process(s, 4100, "(a) S b) (c) D 4000 4100 4100");
    process(s, 4200, "(other) S 1 4100 4100");
    process(s, 4201, "(bell\a) T 4000 4100 4100");
    write_file(s, "version", "not a process");
}

static void the_kernels_lists_are_used_where_there_are_any(void **state)
{
    struct scene *s = *state;

    a_family(s);
    make_dir(s, "%d/task", US);
    thread(s, US, "4300 4100 ");
    thread(s, US + 1, "4201 4999"); /* that one has ended */
    thread(s, US + 2, "");
    assert_string_equal(list(s, false), "4100 D 4100 4100 a) S b) (c, 4201 T 4100 4100 bell?, 4300 Z 4300 4300 late");
    assert_true(mu_child_is_dead(&s->list.items[2]));
}

static void without_them_everybody_is_asked(void **state)
{
    struct scene *s = *state;

    a_family(s);
    assert_string_equal(list(s, false), "4100 D 4100 4100 a) S b) (c, 4201 T 4100 4100 bell?, 4300 Z 4300 4300 late");
}

static void a_thorough_look_does_not_trust_them(void **state)
{
    struct scene *s = *state;

    a_family(s);
    make_dir(s, "%d/task", US);
    thread(s, US, "4300 ");
    assert_string_equal(list(s, false), "4300 Z 4300 4300 late");
    assert_non_null(strstr(list(s, true), "4100 D"));
}

static void known_ones_are_left_out(void **state)
{
    struct scene *s = *state;
    const pid_t known[] = { 4100, 4201 };
    const struct mu_pids skip = { known, COUNT(known) };

    a_family(s);
    assert_int_equal(mu_children_list(&s->list, s->root, US, true, &skip, NULL), 0);
    assert_string_equal(listed(s), "4300 Z 4300 4300 late");
}

#define REST " 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0"

static void broken_files_are_nobody(void **state)
{
    static const char *const texts[] = { "",
                                         "4100",
                                         "4100 (",
                                         "4100 )x(" REST,
                                         "4100 (x) S",
                                         "x (y) S 4000 1 1" REST,
                                         "4101 (x) S 4000 1 1" REST,
                                         "4100 (x) S 4000 1 1" };
    struct scene *s = *state;

    process(s, 4100, "(x) S 4000 1 1");
    assert_string_equal(list(s, true), "4100 S 1 1 x");
    assert_int_equal(s->list.items[0].start, 41000);
    for (size_t i = 0; i < COUNT(texts); i++) {
        write_file(s, "4100/stat", texts[i]);
        assert_string_equal(list(s, true), "");
    }
}

/* The kernel shows the first thread's state as that of the process. */
static void a_process_has_not_ended_before_its_last_thread(void **state)
{
    static const struct {
        const char *second, *third;
        char expected;
    } cases[] = { { "S", "Z", 'S' }, { "Z", "R", 'R' }, { "S", "D", 'D' }, { "D", "S", 'D' }, { "Z", "X", 'Z' } };
    struct scene *s = *state;
    struct mu_child child;
    char text[128];

    make_dir(s, "4100");
    make_dir(s, "4100/task");
    for (int tid = 4100; tid < 4103; tid++)
        make_dir(s, "4100/task/%d", tid);
    write_file(s, "4100/task/4100/stat", "4100 (x) Z 4000 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 77 0");
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_file(s, "4100/stat", "4100 (x) Z 4000 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 77 0");
        (void)snprintf(text, sizeof text, "4101 (x) %s 4000 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 78 0", cases[i].second);
        write_file(s, "4100/task/4101/stat", text);
        (void)snprintf(text, sizeof text, "4102 (x) %s 4000 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 78 0", cases[i].third);
        write_file(s, "4100/task/4102/stat", text);
        assert_true(mu_child_read(s->root, 4100, &child));
        assert_int_equal(child.state, cases[i].expected);
        assert_int_equal(child.start, 77);
        write_file(s, "4100/stat", "4100 (x) Z 4000 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0");
        assert_true(mu_child_read(s->root, 4100, &child));
        assert_true(mu_child_is_dead(&child));
    }
}

static void long_lists_are_read_whole(void **state)
{
    struct scene *s = *state;
    char text[16384] = "", name[64];
    size_t used = 0;

    process(s, US, "(us) S 1 4000 4000");
    make_dir(s, "%d/task", US);
    for (int i = 0; i < 2000; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%d ", 10000 + i);
    thread(s, US, text);
    for (int i = 0; i < 2000; i += 7) {
        (void)snprintf(name, sizeof name, "(n) S %d 1 1", US);
        process(s, 10000 + i, name);
    }
    assert_int_equal(mu_children_list(&s->list, s->root, US, false, NULL, NULL), 0);
    assert_int_equal(s->list.count, 286);
    assert_int_equal(s->list.items[285].pid, 11995);
}

static void no_memory_is_an_error_and_nothing_leaks(void **state)
{
    struct scene *s = *state;

    a_family(s);
    FOR_EACH_FAILURE (n) {
        int rc = mu_children_list(&s->list, s->root, US, true, NULL, &s->error);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_children_done(&s->list);
    }
}

static void a_proc_that_is_not_there_is_said(void **state)
{
    struct scene *s = *state;

    assert_int_equal(mu_children_list(&s->list, "/nowhere", US, false, NULL, &s->error), MUSTER_ENOTSUP);
    assert_non_null(strstr(s->error.text, "'/nowhere'"));
}

static void a_proc_of_another_namespace_is_not_believed(void **state)
{
    struct scene *s = *state;
    char path[128];

    (void)snprintf(path, sizeof path, "%s/self", s->root);
    assert_int_equal(symlink("1", path), 0);
    assert_int_equal(mu_children_list(&s->list, s->root, getpid(), false, NULL, &s->error), MUSTER_ENOTSUP);
    assert_non_null(strstr(s->error.text, "pid namespace"));
}

static void switches_are_those_of_both_kinds(void **state)
{
    struct scene *s = *state;
    uint64_t switches = 0;

    process(s, US, "(us) S 1 4000 4000");
    assert_false(mu_child_read_switches(s->root, US, &switches));
    write_file(s, "4000/status", "Name:\tus\nvoluntary_ctxt_switches:\t12\n");
    assert_false(mu_child_read_switches(s->root, US, &switches));
    write_file(s, "4000/status",
               "Name:\tus\nState:\tD (disk sleep)\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t30\n");
    assert_true(mu_child_read_switches(s->root, US, &switches));
    assert_int_equal(switches, 42);
    assert_true(mu_child_read_switches(MU_PROC_ROOT, getpid(), &switches));
}

/* US and 4100 have children, 4100's child 4101 has two, 4300 is nobody's we know. */
static void a_tree(struct scene *s, bool with_lists)
{
    char path[128], own[32];

    process(s, US, "(us) D 1 4000 4000");
    process(s, 4100, "(a) S 4000 4100 4100");
    process(s, 4101, "(b) S 4100 4101 4101");
    process(s, 4103, "(c) S 4101 4103 4103");
    process(s, 4102, "(d) Z 4101 4101 4101");
    process(s, 4300, "(other) S 1 4300 4300");
    process(s, 4301, "(others) S 4300 4300 4300");
    for (int pid = 4000; with_lists && pid < 4400; pid++) {
        (void)snprintf(path, sizeof path, "%s/%d", s->root, pid);
        if (access(path, F_OK) < 0)
            continue;
        make_dir(s, "%d/task", pid);
        thread_of(s, pid, pid, pid == 4000 ? "4100 " : pid == 4101 ? "4103 " : pid == 4300 ? "4301 " : "");
        if (pid == 4100 || pid == 4101)
            thread_of(s, pid, pid + 200, pid == 4100 ? "4101 4999 " : "4102 4103 ");
    }
    (void)snprintf(path, sizeof path, "%s/self", s->root);
    (void)snprintf(own, sizeof own, "%d", (int)getpid());
    assert_int_equal(symlink(own, path), 0);
}

static const char *below(struct scene *s, pid_t one, pid_t other)
{
    s->list.count = 0;
    assert_int_equal(mu_children_add(&s->list, &(struct mu_child){ .pid = one }), 0);
    assert_int_equal(mu_children_add(&s->list, &(struct mu_child){ .pid = other }), 0);
    assert_int_equal(mu_children_below(&s->list, s->root, &s->error), 0);
    return listed(s);
}

static void assert_below(struct scene *s)
{
    assert_string_equal(below(s, US, 4999), "4100 S 4100 4100 a, 4101 S 4101 4101 b, 4102 Z 4101 4101 d, "
                                            "4103 S 4103 4103 c");
    assert_string_equal(below(s, 4301, 4100), "4101 S 4101 4101 b, 4102 Z 4101 4101 d, 4103 S 4103 4103 c");
    assert_string_equal(below(s, 4300, 4101), "4102 Z 4101 4101 d, 4103 S 4103 4103 c, 4301 S 4300 4300 others");
    assert_string_equal(below(s, 4102, 4103), "");
    s->list.count = 0;
    assert_int_equal(mu_children_below(&s->list, s->root, &s->error), 0);
    assert_int_equal(s->list.count, 0);
}

static void everybody_below_is_found_by_the_kernels_lists(void **state)
{
    a_tree(*state, true);
    assert_below(*state);
}

static void everybody_below_is_found_without_them(void **state)
{
    a_tree(*state, false);
    assert_below(*state);
}

/* What is read at different moments need not be a tree. */
static void circles_are_left_again(void **state)
{
    struct scene *s = *state;

    a_tree(s, false);
    process(s, 4400, "(e) S 4401 1 1");
    process(s, 4401, "(f) S 4400 1 1");
    assert_string_equal(below(s, 4102, 4103), "");
}

static void no_memory_for_who_is_below_is_an_error_and_the_list_is_empty(void **state)
{
    struct scene *s = *state;

    a_tree(s, false);
    FOR_EACH_FAILURE (n) {
        int rc = mu_children_add(&s->list, &(struct mu_child){ .pid = US });

        if (rc == 0)
            rc = mu_children_below(&s->list, s->root, &s->error);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        assert_int_equal(s->list.count, fail_alloc_hit() ? 0 : 4);
        mu_children_done(&s->list);
    }
}

static void nobody_is_below_in_another_namespace(void **state)
{
    struct scene *s = *state;

    assert_int_equal(mu_children_add(&s->list, &(struct mu_child){ .pid = US }), 0);
    assert_int_equal(mu_children_below(&s->list, s->root, &s->error), MUSTER_ENOTSUP);
    assert_int_equal(s->list.count, 0);
    assert_non_null(strstr(s->error.text, "pid namespace"));
}

/* Each the child of the one before, each in a session of its own; the last one writes a byte. */
static void be_a_chain(int count, int fd)
{
    while (count-- > 0 && fork() == 0)
        (void)setsid();
    if (count < 0 && write(fd, "x", 1) != 1)
        _exit(1);
    for (;;)
        (void)pause();
}

static void real_ones_are_found_below_and_signalled(void **state)
{
    struct scene *s = *state;
    struct mu_child impostor;
    int ends[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    if (pid == 0)
        be_a_chain(3, ends[1]);
    (void)close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(mu_children_add(&s->list, &(struct mu_child){ .pid = pid }), 0);
    assert_int_equal(mu_children_below(&s->list, MU_PROC_ROOT, &s->error), 0);
    assert_int_equal(s->list.count, 3);
    impostor = s->list.items[0];
    impostor.start++;
    assert_int_equal(mu_child_signal(&impostor, SIGKILL), -ESRCH);
    assert_int_equal(mu_child_signal(&s->list.items[0], 0), 0); /* it is still there */
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(mu_child_signal(&s->list.items[i], SIGKILL), 0);
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(read(ends[0], &byte, 1), 0); /* nobody has the other end any more */
    (void)close(ends[0]);
}

static void our_own_children_are_found(void **state)
{
    struct scene *s = *state;
    struct mu_pids groups;
    pid_t pid = fork();

    if (pid == 0) {
        (void)setpgid(0, 0);
        for (;;)
            (void)pause();
    }
    (void)setpgid(pid, pid);
    for (int thorough = 0; thorough < 2; thorough++) {
        assert_int_equal(mu_children_list(&s->list, MU_PROC_ROOT, getpid(), thorough != 0, NULL, &s->error), 0);
        assert_int_equal(s->list.count, 1);
        assert_int_equal(s->list.items[0].pid, pid);
        assert_int_equal(s->list.items[0].ppid, getpid());
    }
    groups = (struct mu_pids){ &pid, 1 };
    assert_int_equal(mu_children_in_groups(&s->list, MU_PROC_ROOT, &groups, &s->error), 0);
    assert_int_equal(s->list.count, 1);
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(mu_children_list(&s->list, MU_PROC_ROOT, getpid(), true, NULL, &s->error), 0);
    assert_int_equal(s->list.count, 0);
}

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    (void)snprintf(s->root, sizeof s->root, "/tmp/muster-test-XXXXXX");
    assert_non_null(mkdtemp(s->root));
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    char command[128];

    (void)snprintf(command, sizeof command, "rm -rf '%s'", s->root);
    assert_int_equal(system(command), 0);
    mu_children_done(&s->list);
    free(s);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_kernels_lists_are_used_where_there_are_any),
        TEST(without_them_everybody_is_asked),
        TEST(a_thorough_look_does_not_trust_them),
        TEST(known_ones_are_left_out),
        TEST(broken_files_are_nobody),
        TEST(a_process_has_not_ended_before_its_last_thread),
        TEST(long_lists_are_read_whole),
        TEST(no_memory_is_an_error_and_nothing_leaks),
        TEST(a_proc_that_is_not_there_is_said),
        TEST(a_proc_of_another_namespace_is_not_believed),
        TEST(switches_are_those_of_both_kinds),
        TEST(everybody_below_is_found_by_the_kernels_lists),
        TEST(everybody_below_is_found_without_them),
        TEST(circles_are_left_again),
        TEST(no_memory_for_who_is_below_is_an_error_and_the_list_is_empty),
        TEST(nobody_is_below_in_another_namespace),
        TEST(real_ones_are_found_below_and_signalled),
        TEST(our_own_children_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
