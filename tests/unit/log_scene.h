/* What tests of workers' output share: a directory of their own, files read whole, and what was said to the log. */
#ifndef TESTS_UNIT_LOG_SCENE_H
#define TESTS_UNIT_LOG_SCENE_H

#include "pure.h"

#include "muster.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* ---- A directory, as the first thing in the test's own state */

struct own_dir {
    char path[64];
};

static UNUSED void own_dir_make(struct own_dir *dir)
{
    (void)snprintf(dir->path, sizeof dir->path, "/tmp/muster-test-logs-XXXXXX");
    assert_non_null(mkdtemp(dir->path));
}

static UNUSED int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static UNUSED void own_dir_remove(struct own_dir *dir)
{
    assert_int_equal(nftw(dir->path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- Files */

static UNUSED bool is_there(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static UNUSED mode_t mode_of(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 07777;
}

/* Belongs to the caller; NUL-terminated behind its end. */
static UNUSED char *read_whole(const char *path, size_t *ret_len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    char *text;
    size_t len = 0;
    ssize_t got;

    if (fd < 0)
        fail_msg("'%s': %s", path, strerror(errno));
    assert_int_equal(fstat(fd, &st), 0);
    text = malloc((size_t)st.st_size + 1);
    assert_non_null(text);
    while (len < (size_t)st.st_size && (got = read(fd, text + len, (size_t)st.st_size - len)) > 0)
        len += (size_t)got;
    text[len] = '\0';
    (void)close(fd);
    if (ret_len != NULL)
        *ret_len = len;
    return text;
}

static UNUSED void assert_file(const char *dir, const char *name, const char *expected)
{
    char path[4200], *text;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    text = read_whole(path, NULL);
    assert_string_equal(text, expected);
    free(text);
}

static UNUSED void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    (void)close(fd);
}

/* ---- The log */

static struct {
    unsigned count;
    char text[16384]; /* one line each */
} said;

static UNUSED void take_line(void *ctx, enum muster_log_level level, const char *line)
{
    size_t used = strlen(said.text);

    (void)ctx;
    (void)level;
    said.count++;
    (void)snprintf(said.text + used, sizeof said.text - used, "%s\n", line);
}

static UNUSED void listen_to_log(void)
{
    memset(&said, 0, sizeof said);
    muster_log_set_sink(take_line, NULL);
}

static UNUSED void assert_said(const char *part)
{
    if (strstr(said.text, part) == NULL)
        fail_msg("'%s' was not said, but:\n%s", part, said.text);
}

static UNUSED void assert_said_lines(unsigned count)
{
    if (said.count != count)
        fail_msg("not %u lines were said, but:\n%s", count, said.text);
}

static UNUSED unsigned times_said(const char *part)
{
    unsigned times = 0;

    for (const char *at = said.text; (at = strstr(at, part)) != NULL; at++)
        times++;
    return times;
}

#endif
