/* The directories that workers' output goes to. */
#include "logs/log_dirs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX_LEN 8 /* random characters at the end of a name */

/* Puts text together at `path`, or says that it is too long. */
static int format_path(char path[static MU_LOGTREE_PATH_MAX], struct muster_error *reterr, const char *a, const char *b,
                       const char *c)
{
    int len = snprintf(path, MU_LOGTREE_PATH_MAX, "%s%s%s", a, b, c);

    if (len < 0 || len >= MU_LOGTREE_PATH_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "path '%.100s...' is longer than %d bytes", a, MU_LOGTREE_PATH_MAX - 1);
    return 0;
}

/* A new directory of mode 0700 whose name is `prefix` and random characters. */
static int make_random(struct mu_logtree *tree, const char *dir, const char *prefix,
                       char path[static MU_LOGTREE_PATH_MAX], struct muster_error *reterr)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    char suffix[SUFFIX_LEN + 1] = { 0 }, made[MU_LOGTREE_PATH_MAX];
    int rc;

    for (int i = 0; i < MU_LOGTREE_NAMES_MAX; i++) {
        for (int j = 0; j < SUFFIX_LEN; j++)
            suffix[j] = letters[mu_rng_below(&tree->rng, sizeof letters - 1)];
        rc = format_path(made, reterr, dir, prefix, suffix);
        if (rc < 0)
            return rc;
        if (mkdir(made, 0700) == 0) {
            memcpy(path, made, sizeof made);
            return 0;
        }
        if (errno != EEXIST)
            break;
    }
    return mu_fail_errno(reterr, errno, "make directory '%s'", made);
}

/* The directory and its parents, as far as they do not exist. */
static int make_parents(char *path, struct muster_error *reterr)
{
    struct stat st;

    for (char *slash = path + 1;; slash++) {
        slash = strchrnul(slash, '/');
        if (slash[-1] == '/' && *slash != '\0')
            continue;

        char kept = *slash;
        int errnum = 0;

        *slash = '\0';
        if (mkdir(path, 0777) < 0)
            errnum = errno;
        if (errnum != 0 && stat(path, &st) == 0)
            errnum = S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
        if (errnum == ENOTDIR)
            return mu_fail_errno(reterr, errnum, "'%s' is a file", path);
        if (errnum != 0)
            return mu_fail_errno(reterr, errnum, "make directory '%s'", path);
        *slash = kept;
        if (kept == '\0')
            return 0;
    }
}

static int absolute(const char *dir, char path[static MU_LOGTREE_PATH_MAX], struct muster_error *reterr)
{
    char here[PATH_MAX];

    /* The current directory may have been removed; then the name stays relative. */
    if (dir[0] == '/' || getcwd(here, sizeof here) == NULL || here[0] != '/')
        return format_path(path, reterr, dir, "", "");
    return format_path(path, reterr, here, strcmp(here, "/") == 0 ? "" : "/", dir);
}

static int open_temporary(struct mu_logtree *tree, const char *tmp_dir, struct muster_error *reterr)
{
    const char *const dirs[] = { tmp_dir, "/tmp", "/var/tmp" };
    char dir[MU_LOGTREE_PATH_MAX];
    int rc = -1;

    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0] && rc < 0; i++) {
        if (dirs[i] == NULL || dirs[i][0] == '\0' || absolute(dirs[i], dir, reterr) < 0)
            continue;
        rc = make_random(tree, dir, "/torchelastic_", tree->base, reterr);
        tree->is_temporary = rc == 0 && (strcmp(dir, "/tmp") == 0 || strcmp(dir, "/var/tmp") == 0);
    }
    return rc;
}

/* A name of a directory that stays where it is put. */
static void keep_inside(const char *run_id, char name[static MU_LOGTREE_RUN_ID_MAX + 1])
{
    size_t len = strnlen(run_id, MU_LOGTREE_RUN_ID_MAX + 1);

    if (len > MU_LOGTREE_RUN_ID_MAX) { /* cut in front of a character of UTF-8, not within it */
        len = MU_LOGTREE_RUN_ID_MAX;
        while (len > 0 && ((unsigned char)run_id[len] & 0xC0) == 0x80)
            len--;
    }
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)run_id[i];

        name[i] = c == '/' || c < ' ' || c == 0x7F ? '_' : run_id[i];
    }
    name[len] = '\0';
}

int mu_logtree_open(struct mu_logtree *tree, const struct mu_logtree_config *config, struct muster_error *reterr)
{
    int rc = 0;

    memset(tree, 0, sizeof *tree);
    tree->rng = mu_rng_seeded(config->seed);
    keep_inside(config->run_id, tree->run_id);
    if (config->log_dir == NULL || config->log_dir[0] == '\0') {
        rc = open_temporary(tree, config->tmp_dir, reterr);
    } else if (strcmp(config->log_dir, "/dev/null") != 0) {
        rc = absolute(config->log_dir, tree->base, reterr);
        if (rc == 0)
            rc = make_parents(tree->base, reterr);
    }
    return rc < 0 ? mu_wrap(reterr, rc, "log directory") : 0;
}

bool mu_logtree_is_null(const struct mu_logtree *tree)
{
    return tree->base[0] == '\0';
}

/* attempt_<count>, or the first name of its kind that is not taken. */
static int make_attempt(const struct mu_logtree *tree, uint64_t restart_count, uint64_t round,
                        char path[static MU_LOGTREE_PATH_MAX], struct muster_error *reterr)
{
    unsigned long long count = restart_count, number = round;
    char name[96];
    int rc;

    for (int i = 0; i < MU_LOGTREE_REPEATS_MAX; i++) {
        if (i == 0)
            (void)snprintf(name, sizeof name, "/attempt_%llu", count);
        else if (i == 1)
            (void)snprintf(name, sizeof name, "/attempt_%llu.%llu", count, number);
        else
            (void)snprintf(name, sizeof name, "/attempt_%llu.%llu.%d", count, number, i);
        rc = format_path(path, reterr, tree->run, name, "");
        if (rc < 0)
            return rc;
        if (mkdir(path, 0777) == 0)
            return 0;
        if (errno != EEXIST)
            break;
    }
    return mu_fail_errno(reterr, errno, "make directory '%s'", path);
}

static int make_ranks(const char *attempt, uint32_t workers, struct muster_error *reterr)
{
    char path[MU_LOGTREE_PATH_MAX], name[16];
    int rc;

    for (uint32_t i = 0; i < workers; i++) {
        (void)snprintf(name, sizeof name, "/%u", (unsigned)i);
        rc = format_path(path, reterr, attempt, name, "");
        if (rc < 0)
            return rc;
        if (mkdir(path, 0777) < 0)
            return mu_fail_errno(reterr, errno, "make directory '%s'", path);
    }
    return 0;
}

int mu_logtree_attempt(struct mu_logtree *tree, uint64_t restart_count, uint64_t round, uint32_t workers,
                       char path[static MU_LOGTREE_PATH_MAX], struct muster_error *reterr)
{
    char prefix[MU_LOGTREE_RUN_ID_MAX + 3];
    int rc = 0;

    (void)snprintf(prefix, sizeof prefix, "/%s_", tree->run_id);
    if (tree->run[0] == '\0')
        rc = make_random(tree, tree->base, prefix, tree->run, reterr);
    if (rc == 0)
        rc = make_attempt(tree, restart_count, round, path, reterr);
    if (rc == 0)
        rc = make_ranks(path, workers, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "log directory") : 0;
}
