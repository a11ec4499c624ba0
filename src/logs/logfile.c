/* A log file that we write on behalf of a worker. */
#include "logs/logfile.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

int mu_logfile_create(const char *path, int *ret_fd)
{
    /* At its end: whoever reopens and cuts it (a shell's `> /dev/stderr` does) leaves no hole in it. */
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);

    if (fd < 0)
        return errno;
    *ret_fd = fd;
    return 0;
}

int mu_logfile_init(struct mu_logfile *file, int fd, const char *path)
{
    *file = (struct mu_logfile){ .fd = fd, .path = strdup(path) };
    if (file->path != NULL)
        return 0;
    (void)close(fd);
    file->fd = -1;
    return MUSTER_ENOMEM;
}

void mu_logfile_lose(struct mu_logfile *file, size_t bytes, int errnum)
{
    file->lost += bytes;
    if (file->why != 0)
        return;
    file->why = errnum;
    mu_log(MUSTER_LOG_WARNING, "write '%s': %s; the worker goes on, but what it says is lost there", file->path,
           strerror(errnum));
}

void mu_logfile_write(struct mu_logfile *file, struct mu_slice bytes)
{
    while (file->fd >= 0 && bytes.len > 0) {
        ssize_t done = write(file->fd, bytes.data, bytes.len);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            mu_logfile_lose(file, bytes.len, errno);
            return;
        }
        file->written += (uint64_t)done;
        bytes = mu_slice(bytes.data + done, bytes.len - (size_t)done);
    }
}

void mu_logfile_done(struct mu_logfile *file)
{
    if (file->lost > 0)
        mu_log(MUSTER_LOG_WARNING, "'%s' lacks %" PRIu64 " bytes: %s", file->path, file->lost, strerror(file->why));
    if (file->fd >= 0)
        (void)close(file->fd);
    free(file->path);
    *file = (struct mu_logfile){ .fd = -1 };
}
