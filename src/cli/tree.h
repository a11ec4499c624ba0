/* Small files of the kernel and of drivers, in /proc and /sys. `root` stands in front of every path ("" for this machine's own),
 * so that a test can bring a tree of its own. */
#ifndef MU_CLI_TREE_H
#define MU_CLI_TREE_H

#include <stdbool.h>

#define MU_TREE_TEXT_MAX (32 * 1024) /* bytes of a file that is read here; a list of every second CPU fits */

/* Reads the file as a text. False: it is not there, or longer. */
bool mu_tree_read(const char *root, char text[static MU_TREE_TEXT_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool mu_tree_exists(const char *root, const char *path);

/* Calls `found` with the name of each entry of a directory, dot files excepted, in no order. False: it cannot be read. */
typedef void mu_tree_found(void *ctx, const char *name);
bool mu_tree_each(const char *root, const char *path, mu_tree_found *found, void *ctx);

#endif
