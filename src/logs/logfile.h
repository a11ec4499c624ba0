/* A log file that we write on behalf of a worker, by way of the thread that writes files. If it cannot be written, the
 * worker goes on; the first failure is logged, and at the end how much was lost.
 *
 * One write is under way at a time; what comes meanwhile is gathered. When MU_LOGFILE_BYTES_MAX are gathered the file
 * is full: its writer should wait for on_moved. It need not wait for a file system that is silent (logs/disk.h): what
 * does not fit is then lost. What was written can be read again, from a mark on.
 *
 *   stream   ....written....|....under way....|....gathered....
 *            0              settled                            accepted */
#ifndef MU_LOGS_LOGFILE_H
#define MU_LOGS_LOGFILE_H

#include "base/buf.h"
#include "base/error.h"
#include "logs/disk.h"

#include <stdint.h>

#define MU_LOGFILE_BYTES_MAX (1u << 20) /* gathered */
#define MU_LOGFILE_OVER_BYTES_MAX                                                                                      \
    (4u << 20) /* gathered when the writer cannot wait: a dead worker's pipe is read at
                                              * once */
#define MU_LOGFILE_READ_BYTES 65536
#define MU_LOGFILE_SILENT (-1) /* instead of an errno value: it does not answer */

struct mu_logfile_write;
struct mu_logfile_read;

struct mu_logfile {
    int fd; /* -1: none */
    char *path;
    struct mu_disk *disk;
    struct mu_buf gathered;
    struct mu_logfile_write *writing; /* its bytes are under way while `busy` */
    struct mu_logfile_read *reading;  /* NULL: none */
    struct mu_file_job *closing;
    bool busy;
    uint64_t accepted, settled;  /* bytes of the stream */
    uint64_t written, lost;      /* bytes: in the file, and not */
    uint64_t mark;               /* a place in the stream ... */
    uint64_t mark_at;            /* ... and in the file, once it is settled */
    int why;                     /* the first errno value, or MU_LOGFILE_SILENT */
    void (*on_moved)(void *ctx); /* a write has come to its end; may be NULL. From the loop */
    void *ctx;
};

/* A new file, to be written at its end and read, close-on-exec. 0 or an errno value, EEXIST when there is one already.
 * May block. */
int mu_logfile_create(const char *path, int *ret_fd);

/* Moves the descriptor of a file that we keep open above those that workers get, so that starting a worker does not
 * touch it (proc/spawn.c). If that fails it stays where it is. May block. */
int mu_logfile_move_up(int fd);
/* Makes the table of descriptors large enough for that, by way of any descriptor that is open. With one thread this
 * takes no time; with several the kernel waits some milliseconds. */
void mu_logfile_make_room(int fd);

/* Takes the descriptor on success. MUSTER_ENOMEM: the file is as mu_logfile_done() leaves it. */
int mu_logfile_init(struct mu_logfile *file, struct mu_disk *disk, int fd, const char *path);
/* Without a descriptor: nothing. False: not all of it was accepted. */
bool mu_logfile_write(struct mu_logfile *file, struct mu_slice bytes);
void mu_logfile_lose(struct mu_logfile *file, size_t bytes, int errnum); /* they could not even be tried */
bool mu_logfile_is_full(const struct mu_logfile *file);                  /* its writer should wait */
uint64_t mu_logfile_waiting(const struct mu_logfile *file);              /* bytes that are accepted and not settled */

/* Marks the place `back` bytes before the end of what was accepted. */
void mu_logfile_set_mark(struct mu_logfile *file, uint64_t back);
uint64_t mu_logfile_behind(const struct mu_logfile *file); /* bytes from the mark on */

typedef void mu_logfile_on_read(void *ctx, struct mu_slice bytes);

/* Whether there is something to read at the mark by now; else on_moved tells. */
bool mu_logfile_can_read(const struct mu_logfile *file);
/* Reads the file from the mark on, up to MU_LOGFILE_READ_BYTES; empty: it was truncated. One at a time; from the loop.
 * MUSTER_ENOMEM. */
int mu_logfile_start_read(struct mu_logfile *file, mu_logfile_on_read *on_read, void *ctx);
void mu_logfile_stop_read(struct mu_logfile *file); /* the answer is not wanted any more; also without one under way */
/* So much of what was read is done with. */
void mu_logfile_advance(struct mu_logfile *file, size_t bytes);

/* Counts what is still waiting as lost, logs how much was lost, and closes the descriptor. */
void mu_logfile_done(struct mu_logfile *file);

#endif
