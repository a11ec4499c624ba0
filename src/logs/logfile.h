/* A log file that we write on behalf of a worker: when it cannot be written the worker goes on, the first failure is
 * said, and what is lost is counted and said in the end. */
#ifndef MU_LOGS_LOGFILE_H
#define MU_LOGS_LOGFILE_H

#include "base/error.h"
#include "base/slice.h"

#include <stdint.h>

struct mu_logfile {
    int fd; /* -1: none */
    char *path;
    uint64_t written, lost; /* bytes */
    int why;                /* the first errno value */
};

/* A new file, to be written at its end and read, close-on-exec. 0 or an errno value, EEXIST when there is one already. */
int mu_logfile_create(const char *path, int *ret_fd);

/* Takes the descriptor, also on failure: MUSTER_ENOMEM. */
int mu_logfile_init(struct mu_logfile *file, int fd, const char *path);
void mu_logfile_write(struct mu_logfile *file, struct mu_slice bytes);   /* without a descriptor: nothing */
void mu_logfile_lose(struct mu_logfile *file, size_t bytes, int errnum); /* they could not even be tried */
void mu_logfile_done(struct mu_logfile *file);

#endif
