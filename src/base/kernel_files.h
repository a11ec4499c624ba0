/* Small files of the kernel and of drivers, in /proc and /sys. `root` stands in front of every path ("" for this
 * machine's own), so that a test can bring a tree of its own. */
#ifndef MU_BASE_KERNEL_FILES_H
#define MU_BASE_KERNEL_FILES_H

#include <stdbool.h>
#include <stdint.h>

#define MU_KERNEL_FILES_TEXT_MAX (32 * 1024) /* bytes of a file that is read here; a list of every second CPU fits */

/* Reads the file as a text. False: it is not there, or longer. */
bool mu_kernel_files_read(const char *root, char text[static MU_KERNEL_FILES_TEXT_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool mu_kernel_files_exists(const char *root, const char *path);

/* Calls `found` with the name of each entry of a directory, dot files excepted, in no order. False: it cannot be
 * read. */
typedef void mu_kernel_files_found(void *ctx, const char *name);
bool mu_kernel_files_each(const char *root, const char *path, mu_kernel_files_found *found, void *ctx);

/* The number of "NAME NUMBER", a line of its own among `lines`. False: there is none. */
bool mu_kernel_files_number(const char *lines, const char *name, uint64_t *ret_number);

/* Calls `found` for each cgroup of this process: "/job7". `controllers`: "cpu,cpuacct"; version 2 names none. */
typedef void mu_kernel_files_cgroup(void *ctx, const char *controllers, const char *group);
void mu_kernel_files_cgroups(const char *root, mu_kernel_files_cgroup *found, void *ctx);
bool mu_kernel_files_has_controller(const char *controllers, const char *name);

#endif
