/* The directories that workers' output goes to:
 *
 *   <log dir, or <tmp>/torchelastic_XXXXXXXX>/        0700 if it is ours, else made as needed with its parents
 *     <run id>_XXXXXXXX/                              0700; one per launcher, made at the first attempt
 *       attempt_<count>/                              if that is there already: attempt_<count>.<round>, and if that is
 *                                                     there as well, attempt_<count>.<round>.2 and so on
 *         <local rank>/                               always
 *           stdout.log, stderr.log, error.json        by whoever writes them
 *
 * Existing directories are never used again or emptied. The run id stands in the name as it is, except that '/' and
 * control characters become '_' and that it is cut at MU_LOGTREE_RUN_ID_MAX bytes: it cannot lead out of the directory.
 * A log dir of /dev/null means that nothing is made at all. Paths are absolute, so that a worker may change its
 * directory. Blocking file calls, from the thread of the caller. */
#ifndef MU_LOGS_LOG_DIRS_H
#define MU_LOGS_LOG_DIRS_H

#include "base/error.h"
#include "base/rng.h"

#include <stdint.h>

#define MU_LOGTREE_PATH_MAX 4096    /* with its NUL */
#define MU_LOGTREE_RUN_ID_MAX 128   /* bytes of the run id that stand in a name */
#define MU_LOGTREE_NAMES_MAX 100    /* random names that are tried before we give up */
#define MU_LOGTREE_REPEATS_MAX 1000 /* attempt_<count>.<round>.<n> */

struct mu_logtree {
    char base[MU_LOGTREE_PATH_MAX]; /* empty: /dev/null, nothing is made */
    char run[MU_LOGTREE_PATH_MAX];  /* empty until the first attempt */
    char run_id[MU_LOGTREE_RUN_ID_MAX + 1];
    bool is_temporary; /* base is ours, in /tmp or /var/tmp */
    struct mu_rng rng;
};

struct mu_logtree_config {
    const char *log_dir; /* NULL or empty: a new directory in tmp_dir */
    const char *tmp_dir; /* TMPDIR; where it is NULL, empty or of no use: /tmp, then /var/tmp */
    const char *run_id;
    uint64_t seed; /* for the names; random */
};

/* Makes the base directory. To be called early: a log dir that is a file or cannot be made ends the launcher before it
 * has started anything. All text is copied. */
int mu_logtree_open(struct mu_logtree *tree, const struct mu_logtree_config *config, struct muster_error *reterr);
bool mu_logtree_is_null(const struct mu_logtree *tree); /* /dev/null */

/* Makes a new directory for this attempt, with one for each local rank in it, and puts its path into `path`.
 * MUSTER_ELIMIT when a path gets too long, else what the system said; what was made is left there. Not for
 * /dev/null. */
int mu_logtree_attempt(struct mu_logtree *tree, uint64_t restart_count, uint64_t round, uint32_t workers,
                       char path[static MU_LOGTREE_PATH_MAX], struct muster_error *reterr);

#endif
