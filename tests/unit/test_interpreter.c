/* Which PyTorch lies beside an interpreter, in trees that the test brings along. */
#include "cli/interpreter.h"
#include "pure.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *where)
{
    (void)about;
    (void)type;
    (void)where;
    return remove(path);
}

static int set_up(void **state)
{
    (void)state;
    (void)strcpy(root, "/tmp/muster-python-XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A file with its directories. */
static void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void link_to(const char *name, const char *target)
{
    char path[PATH_MAX];

    put(name, "");
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(target, path), 0);
}

static bool is_old(const char *python)
{
    char path[PATH_MAX], home[PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/%s", root, python);
    (void)snprintf(home, sizeof home, "%s/home", root);
    return mu_interpreter_has_old_torch(path, home);
}

static void versions_before_2_2_are_old(void **state)
{
    static const struct {
        const char *text;
        bool is_old;
    } rows[] = {
        { "__version__ = '1.13.0a0+gitunknown'\ndebug = False\n", true },
        { "__version__ = '2.0.1'\n", true },
        { "__version__ = '2.1.2+cpu'\n", true },
        { "__version__ = '2.2.0'\n", false },
        { "__version__ = '2.13.0+cpu'\n", false },
        { "from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '1.13.1'\n", true },
        { "from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '2.15.0'\n", false },
        { "__version__ = '3.0.0'\n", false },
        { "__version__ = 'x'\n", false },
        { "", false },
    };

    (void)state;
    put("venv/bin/python3.11", "");
    for (size_t i = 0; i < COUNT(rows); i++) {
        put("venv/lib/python3.11/site-packages/torch/version.py", rows[i].text);
        if (is_old("venv/bin/python3.11") != rows[i].is_old)
            fail_msg("%s", rows[i].text);
    }
}

static void packages_lie_where_the_interpreter_was_called(void **state)
{
    (void)state;
    put("usr/bin/python3.11", "");
    link_to("usr/bin/python3", "python3.11");
    put("usr/lib/python3/dist-packages/torch/version.py", "__version__ = '1.13.0a0'\n");
    assert_true(is_old("usr/bin/python3"));
    link_to("venv/bin/python", "../../usr/bin/python3");
    assert_false(is_old("venv/bin/python")); /* has none of its own: nothing is known */
    put("venv/lib64/python3.11/site-packages/torch/version.py", "__version__ = '2.1.0'\n");
    assert_true(is_old("venv/bin/python"));
    put("venv/lib/python3.11/site-packages/torch/version.py", "__version__ = '2.6.0'\n");
    assert_false(is_old("venv/bin/python")); /* the first one counts */
    put("usr/local/lib/python3.11/dist-packages/torch/version.py", "__version__ = '2.6.0'\n");
    assert_false(is_old("usr/bin/python3"));
}

static void the_users_own_packages_come_first_but_not_in_a_virtual_environment(void **state)
{
    (void)state;
    put("usr/bin/python3.11", "");
    put("usr/lib/python3/dist-packages/torch/version.py", "__version__ = '1.13.0a0'\n");
    put("home/.local/lib/python3.11/site-packages/torch/version.py", "__version__ = '2.6.0'\n");
    assert_false(is_old("usr/bin/python3.11"));
    link_to("venv/bin/python", "../../usr/bin/python3.11");
    put("venv/pyvenv.cfg", "");
    put("venv/lib/python3.11/site-packages/torch/version.py", "__version__ = '2.1.0'\n");
    assert_true(is_old("venv/bin/python"));
    put("home/.local/lib/python3.11/site-packages/torch/version.py", "__version__ = '2.1.0'\n");
    assert_true(is_old("usr/bin/python3.11"));
}

static void where_nothing_can_be_seen_nothing_is_known(void **state)
{
    (void)state;
    put("opt/bin/python3", ""); /* a name without its version, such as a script that chooses one */
    put("opt/lib/python3/dist-packages/torch/version.py", "__version__ = '1.13.0'\n");
    assert_false(is_old("opt/bin/python3"));
    assert_false(is_old("opt/bin/none"));
    assert_false(mu_interpreter_has_old_torch("python3.11", NULL));
    assert_false(mu_interpreter_has_old_torch("", NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(versions_before_2_2_are_old, set_up, tear_down),
        cmocka_unit_test_setup_teardown(packages_lie_where_the_interpreter_was_called, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_users_own_packages_come_first_but_not_in_a_virtual_environment, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(where_nothing_can_be_seen_nothing_is_known, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
