/* A small file that holds a secret, which only its owner may read. */
#ifndef MU_BASE_SECRET_FILE_H
#define MU_BASE_SECRET_FILE_H

#include "base/error.h"

#include <stddef.h>
#include <sys/stat.h>

/* Whether a file like that can hold a secret of user `us`: it is a regular one, belongs to that user or to root, and
 * the group and others can neither read nor write it. Pure. */
int mu_secret_file_check(const struct stat *file, uid_t us, struct muster_error *reterr);

/* The content without a final newline, which has to be `len_min` to `len_max` bytes. `bytes` has room for two more; the
 * caller wipes it. MUSTER_EINVAL: it cannot be used, MUSTER_ESYSTEM: it cannot be read. The text names the file. */
int mu_secret_file_read(const char *path, size_t len_min, size_t len_max, char *bytes, size_t *ret_len,
                        struct muster_error *reterr);

#endif
