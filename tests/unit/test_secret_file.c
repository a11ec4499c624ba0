/* Files with secrets: which are taken, and what is said of the others. */
#include "base/secret_file.h"
#include "pure.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LEN_MIN = 4, LEN_MAX = 8 };

static char dir[64], path[96];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "%s", "/tmp/muster_secret_XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    (void)snprintf(path, sizeof path, "%s/secret", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(dir);
}

static void put(const char *text, mode_t mode)
{
    int fd;

    (void)unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    (void)close(fd);
}

/* Its content; or what is wrong, with "FILE" for its name. */
static const char *read_it(void)
{
    static char text[1024];
    char bytes[LEN_MAX + 2] = { 0 };
    struct muster_error error = { 0 };
    size_t len = 0;

    if (mu_secret_file_read(path, LEN_MIN, LEN_MAX, bytes, &len, &error) == 0) {
        (void)snprintf(text, sizeof text, "%.*s", (int)len, bytes);
        return text;
    }
    assert_non_null(strstr(error.text, path));
    (void)snprintf(text, sizeof text, "%s", strstr(error.text, path) + strlen(path) + strlen("': "));
    return text;
}

static void a_final_newline_is_no_part_of_it(void **state)
{
    static const struct {
        const char *content, *expected;
    } files[] = {
        { "abcd", "abcd" },
        { "abcd\n", "abcd" },
        { "abcd\n\n", "abcd\n" },
        { "ab\ncd ", "ab\ncd " },
        { "abcdefgh\n", "abcdefgh" },
        { "abcdefghi", "it holds more than 8 bytes" },
        { "abcdefghijklmnop", "it holds more than 8 bytes" },
        { "abc\n", "it holds 3 bytes, and at least 4 are needed" },
        { "", "it holds 0 bytes, and at least 4 are needed" },
        { "\n", "it holds 0 bytes, and at least 4 are needed" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        put(files[i].content, 0600);
        assert_string_equal(read_it(), files[i].expected);
    }
}

static void a_file_that_others_have_access_to_is_refused(void **state)
{
    static const mode_t modes[] = { 0640, 0620, 0610, 0604, 0602, 0601, 0644, 0666, 0440 };
    char expected[128];

    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        put("abcd", modes[i]);
        (void)snprintf(expected, sizeof expected,
                       "its mode is %04o, so users other than its owner have access; 'chmod 600' takes that away",
                       (unsigned)modes[i]);
        if (geteuid() == 0 || (modes[i] & S_IRUSR) != 0)
            assert_string_equal(read_it(), expected);
    }
    put("abcd", 0400);
    assert_string_equal(read_it(), "abcd");
}

static void a_file_of_another_user_is_refused(void **state)
{
    struct stat file = { .st_mode = S_IFREG | 0600, .st_uid = 1001 };
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_secret_file_check(&file, 1001, &error), 0);
    assert_int_equal(mu_secret_file_check(&file, 1002, &error), MUSTER_EINVAL);
    assert_string_equal(error.text, "it belongs to user 1001, and must belong to user 1002 or to root");
    assert_int_equal(mu_secret_file_check(&file, 0, &error), MUSTER_EINVAL);
    file.st_uid = 0;
    assert_int_equal(mu_secret_file_check(&file, 1002, &error), 0);
}

static void what_is_no_regular_file_is_refused_at_once(void **state)
{
    (void)state;
    (void)unlink(path);
    assert_string_equal(read_it(), "No such file or directory");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_string_equal(read_it(), "it is a pipe, not a regular file");
    (void)unlink(path);
    assert_int_equal(symlink(dir, path), 0);
    assert_string_equal(read_it(), "it is a directory, not a regular file");
    (void)unlink(path);
    assert_int_equal(symlink("/dev/null", path), 0);
    assert_string_equal(read_it(), "it is a device or socket, not a regular file");
}

static void a_link_to_a_file_is_followed(void **state)
{
    char other[128];

    (void)state;
    put("abcd", 0600);
    (void)snprintf(other, sizeof other, "%s/other", dir);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink("other", path), 0);
    assert_string_equal(read_it(), "abcd");
    (void)unlink(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_final_newline_is_no_part_of_it),
        cmocka_unit_test(a_file_that_others_have_access_to_is_refused),
        cmocka_unit_test(a_file_of_another_user_is_refused),
        cmocka_unit_test(what_is_no_regular_file_is_refused_at_once),
        cmocka_unit_test(a_link_to_a_file_is_followed),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
