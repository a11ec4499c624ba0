/* The directories that workers' output goes to. */
#include "log_scene.h"
#include "logs/log_dirs.h"

#include <dirent.h>

struct scene {
    struct own_dir dir;
    struct mu_logtree tree;
    struct muster_error err;
};

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    own_dir_make(&s->dir);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    own_dir_remove(&s->dir);
    free(s);
    return 0;
}

static int open_tree(struct scene *s, const char *log_dir, const char *tmp_dir, const char *run_id)
{
    struct mu_logtree_config config = { .log_dir = log_dir, .tmp_dir = tmp_dir, .run_id = run_id, .seed = 7 };

    return mu_logtree_open(&s->tree, &config, &s->err);
}

static const char *attempt(struct scene *s, uint64_t restart_count, uint64_t round, uint32_t workers)
{
    static char path[MU_LOGTREE_PATH_MAX];

    if (mu_logtree_attempt(&s->tree, restart_count, round, workers, path, &s->err) < 0)
        fail_msg("%s", s->err.text);
    return path;
}

static const char *below(struct scene *s, const char *name)
{
    static char path[4200];

    (void)snprintf(path, sizeof path, "%s/%s", s->dir.path, name);
    return path;
}

static bool ends_randomly(const char *path, const char *start)
{
    size_t len = strlen(start);

    return strncmp(path, start, len) == 0 && strlen(path) == len + 8 &&
           strspn(path + len, "abcdefghijklmnopqrstuvwxyz0123456789_") == 8;
}

static unsigned entries(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    unsigned count = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            count++;
    (void)closedir(dir);
    return count;
}

static void without_a_log_dir_one_is_made_in_tmp(void **state)
{
    struct scene *s = *state;
    const char *path;

    assert_int_equal(open_tree(s, NULL, s->dir.path, "job"), 0);
    assert_true(ends_randomly(s->tree.base, below(s, "torchelastic_")));
    assert_int_equal(mode_of(s->tree.base), 0700);
    assert_int_equal(entries(s->tree.base), 0);
    path = attempt(s, 0, 0, 2);
    assert_int_equal(mode_of(s->tree.run), 0700);
    assert_true(strncmp(path, s->tree.run, strlen(s->tree.run)) == 0);
    assert_string_equal(path + strlen(s->tree.run), "/attempt_0");
    assert_int_equal(entries(path), 2);
}

static void a_tmp_of_no_use_is_passed_over(void **state)
{
    struct scene *s = *state;

    assert_int_equal(open_tree(s, "", "/nonexistent/tmp", "job"), 0);
    assert_true(ends_randomly(s->tree.base, "/tmp/torchelastic_"));
    assert_int_equal(rmdir(s->tree.base), 0);
    assert_int_equal(open_tree(s, NULL, NULL, "job"), 0);
    assert_true(ends_randomly(s->tree.base, "/tmp/torchelastic_"));
    assert_int_equal(rmdir(s->tree.base), 0);
}

static void a_log_dir_is_made_with_its_parents(void **state)
{
    struct scene *s = *state;
    char run[4300];

    assert_int_equal(open_tree(s, below(s, "a//b/c/"), NULL, "job7"), 0);
    assert_true(is_there(below(s, "a/b/c")));
    (void)attempt(s, 3, 0, 1);
    (void)snprintf(run, sizeof run, "%s/job7_", below(s, "a//b/c/"));
    assert_true(ends_randomly(s->tree.run, run));
    assert_int_equal(open_tree(s, below(s, "a/b"), NULL, "job7"), 0); /* is there: as it is */
}

static void a_relative_log_dir_becomes_absolute(void **state)
{
    struct scene *s = *state;
    char before[4096];

    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(s->dir.path), 0);
    assert_int_equal(open_tree(s, "logs", NULL, "job"), 0);
    assert_int_equal(chdir(before), 0);
    assert_string_equal(s->tree.base, below(s, "logs"));
    assert_true(is_there(attempt(s, 0, 0, 1)));
}

static void a_file_in_the_way_is_named(void **state)
{
    struct scene *s = *state;

    write_file(below(s, "file"), "");
    assert_int_equal(open_tree(s, below(s, "file"), NULL, "job"), MUSTER_ESYSTEM);
    assert_non_null(strstr(s->err.text, "log directory: "));
    assert_non_null(strstr(s->err.text, below(s, "file' is a file")));
    assert_int_equal(open_tree(s, below(s, "file/sub"), NULL, "job"), MUSTER_ESYSTEM);
    assert_non_null(strstr(s->err.text, "/file' is a file"));
    assert_int_equal(open_tree(s, "/proc/nothing/here", NULL, "job"), MUSTER_ESYSTEM);
    assert_non_null(strstr(s->err.text, "'/proc/nothing'"));
}

static void dev_null_makes_nothing(void **state)
{
    struct scene *s = *state;

    assert_int_equal(open_tree(s, "/dev/null", s->dir.path, "job"), 0);
    assert_true(mu_logtree_is_null(&s->tree));
    assert_int_equal(entries(s->dir.path), 0);
}

static void every_attempt_has_a_directory_that_was_not_there(void **state)
{
    struct scene *s = *state;
    static const struct {
        uint64_t count, round;
        const char *name;
    } attempts[] = {
        { 0, 0, "/attempt_0" },     { 0, 1, "/attempt_0.1" },   { 0, 2, "/attempt_0.2" }, { 1, 3, "/attempt_1" },
        { 0, 1, "/attempt_0.1.2" }, { 0, 1, "/attempt_0.1.3" }, { 1, 4, "/attempt_1.4" },
    };

    assert_int_equal(open_tree(s, s->dir.path, NULL, "job"), 0);
    for (size_t i = 0; i < COUNT(attempts); i++) {
        const char *path = attempt(s, attempts[i].count, attempts[i].round, 1);

        assert_string_equal(path + strlen(s->tree.run), attempts[i].name);
        assert_int_equal(entries(path), 1);
    }
    assert_int_equal(entries(s->tree.run), COUNT(attempts));
    assert_int_equal(entries(s->dir.path), 1); /* one for the launcher's life */
}

static void a_name_that_is_taken_is_not_used(void **state)
{
    struct scene *s = *state;
    char first[MU_LOGTREE_PATH_MAX];

    assert_int_equal(open_tree(s, s->dir.path, NULL, "job"), 0);
    (void)attempt(s, 0, 0, 1);
    (void)strcpy(first, s->tree.run);
    assert_int_equal(open_tree(s, s->dir.path, NULL, "job"), 0); /* the same seed */
    (void)attempt(s, 0, 0, 1);
    assert_string_not_equal(s->tree.run, first);
    assert_true(ends_randomly(s->tree.run, below(s, "job_")));
}

static void a_run_id_cannot_lead_out_of_the_directory(void **state)
{
    struct scene *s = *state;
    static const struct {
        const char *id, *name;
    } ids[] = {
        { "../../etc/x", ".._.._etc_x_" },
        { "/abs", "_abs_" },
        { "..", ".._" },
        { "", "_" },
        { "a\nb\x1b[2Jc\x7f", "a_b_[2Jc__" },
        { "gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f_" },
        { "bad\xff", "bad\xff_" },
        { "-rf", "-rf_" },
    };

    for (size_t i = 0; i < COUNT(ids); i++) {
        assert_int_equal(open_tree(s, s->dir.path, NULL, ids[i].id), 0);
        (void)attempt(s, 0, 0, 1);
        assert_true(ends_randomly(s->tree.run, below(s, ids[i].name)));
    }
    assert_int_equal(entries(s->dir.path), COUNT(ids));
}

static void a_long_run_id_is_cut_between_characters(void **state)
{
    struct scene *s = *state;
    char id[1000];

    memset(id, 'x', sizeof id);
    memcpy(id + MU_LOGTREE_RUN_ID_MAX - 1, "\xe2\x82\xac", 3);
    id[sizeof id - 1] = '\0';
    assert_int_equal(open_tree(s, s->dir.path, NULL, id), 0);
    assert_int_equal(strlen(s->tree.run_id), MU_LOGTREE_RUN_ID_MAX - 1);
    assert_true(is_there(attempt(s, 0, 0, 1)));
}

static void paths_are_bounded(void **state)
{
    struct scene *s = *state;
    static char dir[2 * MU_LOGTREE_PATH_MAX];
    char path[MU_LOGTREE_PATH_MAX];

    memset(dir, 'd', sizeof dir - 1);
    dir[0] = '/';
    assert_int_equal(open_tree(s, dir, NULL, "job"), MUSTER_ELIMIT);
    assert_int_equal(open_tree(s, s->dir.path, NULL, "job"), 0);
    for (size_t len = strlen(s->dir.path); len < MU_LOGTREE_PATH_MAX - 8; len += 2)
        (void)strcpy(s->tree.base + len, "/."); /* as deep as it goes */
    assert_int_equal(mu_logtree_attempt(&s->tree, 0, 0, 1, path, &s->err), MUSTER_ELIMIT);
    assert_int_equal(s->err.errnum, 0);
}

static void what_the_system_says_is_told(void **state)
{
    struct scene *s = *state;
    char path[MU_LOGTREE_PATH_MAX];

    assert_int_equal(open_tree(s, below(s, "logs"), NULL, "job"), 0);
    assert_int_equal(rmdir(below(s, "logs")), 0);
    write_file(below(s, "logs"), "");
    assert_int_equal(mu_logtree_attempt(&s->tree, 0, 0, 1, path, &s->err), MUSTER_ESYSTEM);
    assert_int_equal(s->err.errnum, ENOTDIR);
    assert_non_null(strstr(s->err.text, "log directory: make directory '"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_a_log_dir_one_is_made_in_tmp, setup, teardown),
        cmocka_unit_test_setup_teardown(a_tmp_of_no_use_is_passed_over, setup, teardown),
        cmocka_unit_test_setup_teardown(a_log_dir_is_made_with_its_parents, setup, teardown),
        cmocka_unit_test_setup_teardown(a_relative_log_dir_becomes_absolute, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_in_the_way_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(dev_null_makes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(every_attempt_has_a_directory_that_was_not_there, setup, teardown),
        cmocka_unit_test_setup_teardown(a_name_that_is_taken_is_not_used, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_id_cannot_lead_out_of_the_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_run_id_is_cut_between_characters, setup, teardown),
        cmocka_unit_test_setup_teardown(paths_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(what_the_system_says_is_told, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
