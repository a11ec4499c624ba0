/* Small files of the kernel and of drivers. */
#include "base/kernel_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool mu_kernel_files_read(const char *root, char text[static MU_KERNEL_FILES_TEXT_MAX], const char *format, ...)
{
    char path[PATH_MAX];
    size_t len = 0;
    ssize_t got;
    va_list args;
    int fd, at = snprintf(path, sizeof path, "%s", root), more = -1;

    va_start(args, format);
    if (at >= 0 && at < (int)sizeof path)
        more = vsnprintf(path + at, sizeof path - (size_t)at, format, args);
    va_end(args);
    text[0] = '\0';
    if (more < 0 || more >= (int)sizeof path - at)
        return false;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return false;
    do {
        got = read(fd, text + len, MU_KERNEL_FILES_TEXT_MAX - len);
        len += got > 0 ? (size_t)got : 0;
    } while (got > 0 && len < MU_KERNEL_FILES_TEXT_MAX);
    (void)close(fd);
    text[len < MU_KERNEL_FILES_TEXT_MAX ? len : 0] = '\0';
    return got == 0;
}

bool mu_kernel_files_exists(const char *root, const char *path)
{
    char whole[PATH_MAX];

    return snprintf(whole, sizeof whole, "%s%s", root, path) < (int)sizeof whole && access(whole, F_OK) == 0;
}

bool mu_kernel_files_each(const char *root, const char *path, mu_kernel_files_found *found, void *ctx)
{
    char whole[PATH_MAX];
    const struct dirent *entry;
    DIR *directory;

    if (snprintf(whole, sizeof whole, "%s%s", root, path) >= (int)sizeof whole)
        return false;
    directory = opendir(whole);
    if (directory == NULL)
        return false;
    while ((entry = readdir(directory)) != NULL) {
        if (entry->d_name[0] != '.')
            found(ctx, entry->d_name);
    }
    (void)closedir(directory);
    return true;
}

bool mu_kernel_files_number(const char *lines, const char *name, uint64_t *ret_number)
{
    size_t len = strlen(name);

    for (; *lines != '\0'; lines += strcspn(lines, "\n"), lines += *lines == '\n') {
        const char *digits = lines + len + 1;
        char *end;

        if (strncmp(lines, name, len) != 0 || lines[len] != ' ' || *digits < '0' || *digits > '9')
            continue;
        errno = 0;
        *ret_number = strtoull(digits, &end, 10);
        return errno == 0 && (*end == '\n' || *end == '\0');
    }
    return false;
}

void mu_kernel_files_cgroups(const char *root, mu_kernel_files_cgroup *found, void *ctx)
{
    char text[MU_KERNEL_FILES_TEXT_MAX], *rest = text, *line;

    if (!mu_kernel_files_read(root, text, "/proc/self/cgroup"))
        return;
    while ((line = strsep(&rest, "\n")) != NULL) { /* NUMBER:CONTROLLERS:GROUP */
        char *group = line, *controllers;

        (void)strsep(&group, ":");
        controllers = group == NULL ? NULL : strsep(&group, ":");
        if (group != NULL && controllers != NULL)
            found(ctx, controllers, group);
    }
}

bool mu_kernel_files_has_controller(const char *controllers, const char *name)
{
    while (*controllers != '\0') {
        size_t len = strcspn(controllers, ",");

        if (len == strlen(name) && strncmp(controllers, name, len) == 0)
            return true;
        controllers += len + (controllers[len] == ',');
    }
    return false;
}
