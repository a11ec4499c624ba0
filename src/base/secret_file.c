/* See secret_file.h. What is checked is the file that is open, not whatever has the name a moment later. Symbolic links
 * are followed: Kubernetes puts them in front of every secret. */
#include "base/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static int check_kind(const struct stat *file, struct muster_error *reterr)
{
    if (S_ISREG(file->st_mode))
        return 0;
    return mu_fail(reterr, MUSTER_EINVAL, "it is %s, not a regular file",
                   S_ISDIR(file->st_mode)    ? "a directory"
                   : S_ISFIFO(file->st_mode) ? "a pipe"
                                             : "a device or socket");
}

int mu_secret_file_check(const struct stat *file, uid_t us, struct muster_error *reterr)
{
    int rc = check_kind(file, reterr);

    if (rc < 0)
        return rc;
    if (file->st_uid != us && file->st_uid != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "it belongs to user %u, and must belong to user %u or to root",
                       (unsigned)file->st_uid, (unsigned)us);
    if ((file->st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "its mode is %04o, so users other than its owner have access; 'chmod 600' takes that away",
                       (unsigned)(file->st_mode & 07777));
    return 0;
}

/* As much as there is, at most `room` bytes; -1: errno says why not. */
static ssize_t read_up_to(int fd, char *bytes, size_t room)
{
    size_t len = 0;

    while (len < room) {
        ssize_t count = read(fd, bytes + len, room - len);

        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -1;
        if (count == 0)
            break;
        len += (size_t)count;
    }
    return (ssize_t)len;
}

static int read_checked(int fd, size_t len_min, size_t len_max, char *bytes, size_t *ret_len,
                        struct muster_error *reterr)
{
    struct stat file;
    ssize_t count;
    size_t len;
    int rc;

    if (fstat(fd, &file) < 0)
        return mu_fail(reterr, MUSTER_ESYSTEM, "%s", strerror(errno));
    rc = mu_secret_file_check(&file, geteuid(), reterr);
    if (rc < 0)
        return rc;
    count = read_up_to(fd, bytes, len_max + 2);
    if (count < 0)
        return mu_fail(reterr, MUSTER_ESYSTEM, "%s", strerror(errno));
    len = (size_t)count;
    if (len > 0 && bytes[len - 1] == '\n')
        len--;
    if (len > len_max)
        return mu_fail(reterr, MUSTER_EINVAL, "it holds more than %zu bytes", len_max);
    if (len < len_min)
        return mu_fail(reterr, MUSTER_EINVAL, "it holds %zu bytes, and at least %zu are needed", len, len_min);
    *ret_len = len;
    return 0;
}

int mu_secret_file_read(const char *path, size_t len_min, size_t len_max, char *bytes, size_t *ret_len,
                        struct muster_error *reterr)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), rc; /* a pipe without a writer is opened, too */

    if (fd < 0) {
        rc = mu_fail(reterr, MUSTER_ESYSTEM, "%s", strerror(errno));
    } else {
        rc = read_checked(fd, len_min, len_max, bytes, ret_len, reterr);
        (void)close(fd);
    }
    return rc < 0 ? mu_wrap(reterr, rc, "file '%s'", path) : 0;
}
