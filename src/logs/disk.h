/* The files of a log directory, on a loop: file calls are made by a thread (base/filethread.h), and the loop is told.
 *
 *          submit                    nothing moves for silent_ms
 *   IDLE ---------> BUSY -----------------------------------------> SILENT
 *     ^---------------|                   something moves              |
 *     ^--------------------------------------------------------------- |
 *
 * Watchers are told of SILENT: the file system does not answer, and they go on without it. The time is counted in
 * checks that we made, not by the clock: time in which this process was stopped does not count. */
#ifndef MU_LOGS_DISK_H
#define MU_LOGS_DISK_H

#include "base/error.h"
#include "base/filethread.h"

#define MU_DISK_SILENT_MS 10000 /* without anything that moves: the file system does not answer */
#define MU_DISK_LOOKS 4         /* that many looks in this time */

struct uv_loop_s;
struct mu_disk;

struct mu_disk_config {
    bool at_once;       /* see mu_filethread_config */
    uint32_t silent_ms; /* 0: MU_DISK_SILENT_MS */
};

/* Told from the loop. */
struct mu_disk_watcher { /* the caller fills in the function */
    void (*on_silent)(struct mu_disk_watcher *watcher);
    struct mu_list link; /* for disk_uv.c alone */
};

int mu_disk_start(struct uv_loop_s *loop, const struct mu_disk_config *config, struct mu_disk **ret_files,
                  struct muster_error *reterr);
/* `done` is called from the loop, never within this call. See mu_filethread_submit(). */
void mu_disk_submit(struct mu_disk *disk, struct mu_file_job *job);
bool mu_disk_is_silent(const struct mu_disk *disk);
uint64_t mu_disk_beats(const struct mu_disk *disk); /* see mu_filethread_beats() */
void mu_disk_watch(struct mu_disk *disk, struct mu_disk_watcher *watcher);
void mu_disk_unwatch(struct mu_disk_watcher *watcher);

/* Closing a descriptor may take as long as writing to it did. To be submitted, or free()d; NULL: no memory. */
struct mu_file_job *mu_file_closing_new(int fd);

/* Waits for jobs under way while anything moves; drops them when the file system is silent, or when nothing has moved
 * for `quiet_ms`. From here on `disk` belongs to the loop, which frees it. on_closed: `hangs` says that a thread was
 * left behind; the process should then end by _exit(). No watcher may be left. */
void mu_disk_close(struct mu_disk *disk, uint32_t quiet_ms, void (*on_closed)(void *ctx, bool hangs), void *ctx);

#endif
