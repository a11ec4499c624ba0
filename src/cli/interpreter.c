/* The version of PyTorch, read from the file that its package keeps it in. */
#include "cli/interpreter.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINES_MAX = 64 }; /* of torch/version.py; it has about ten */

/* A folder of packages below the interpreter's prefix; %s: "python3.11". */
static const char *const folders[] = {
    "lib/%s/site-packages", "lib64/%s/site-packages", "local/lib/%s/dist-packages",
    "lib/python3/dist-packages", /* Debian's, for all of them */
};

/* `path` without its last `parts` parts; false: it does not have so many. */
static bool cut(char *path, unsigned parts)
{
    for (; parts > 0; parts--) {
        char *slash = strrchr(path, '/');

        if (slash == NULL)
            return false;
        *slash = '\0';
    }
    return true;
}

/* What begins with __version__ = '2.13.0+cpu' */
static bool read_version(FILE *file, int *ret_major, int *ret_minor)
{
    char line[256];

    for (unsigned i = 0; i < LINES_MAX && fgets(line, sizeof line, file) != NULL; i++) {
        if (sscanf(line, "__version__ = '%d.%d", ret_major, ret_minor) == 2)
            return true;
    }
    return false;
}

enum found { NO_TORCH, OLD, NOT_OLD };

static enum found look_in(const char *folder)
{
    char path[2 * PATH_MAX];
    int major = 0, minor = 0;
    bool known;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/torch/version.py", folder);
    file = fopen(path, "re");
    if (file == NULL)
        return NO_TORCH;
    known = read_version(file, &major, &minor);
    (void)fclose(file);
    return known && (major < 2 || (major == 2 && minor < 2)) ? OLD : NOT_OLD;
}

/* The user's own packages, which come first; a virtual environment does not have them. */
static enum found look_at_home(const char *home, const char *prefix, const char *name)
{
    char path[2 * PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/pyvenv.cfg", prefix);
    if (home == NULL || access(path, F_OK) == 0)
        return NO_TORCH;
    (void)snprintf(path, sizeof path, "%s/.local/lib/%s/site-packages", home, name);
    return look_in(path);
}

bool mu_interpreter_has_old_torch(const char *python, const char *home)
{
    char real[PATH_MAX], prefix[PATH_MAX], folder[2 * PATH_MAX];
    enum found found;
    const char *name;

    if (realpath(python, real) == NULL || snprintf(prefix, sizeof prefix, "%s", python) >= PATH_MAX || !cut(prefix, 2))
        return false;
    name = strrchr(real, '/') + 1;
    if (strncmp(name, "python3.", 8) != 0)
        return false;
    found = look_at_home(home, prefix, name);
    for (size_t i = 0; found == NO_TORCH && i < sizeof folders / sizeof folders[0]; i++) {
        int len = snprintf(folder, sizeof folder, "%s/", prefix);

        (void)snprintf(folder + len, sizeof folder - (size_t)len, folders[i], name);
        found = look_in(folder);
    }
    return found == OLD;
}
