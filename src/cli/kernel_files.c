/* Small files of the kernel and of drivers. */
#include "cli/kernel_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
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
    fd = open(path, O_RDONLY | O_CLOEXEC);
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
