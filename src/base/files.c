/* The process's descriptors, counted. */
#include "base/files.h"

#include "base/error.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

static atomic_size_t reserved, connections;

size_t mu_files_limit(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur > INT32_MAX)
        return INT32_MAX;
    return (size_t)files.rlim_cur;
}

void mu_files_raise(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

int mu_files_check(size_t needed, struct muster_error *reterr)
{
    size_t limit = mu_files_limit();

    if (needed < MU_FILES_MIN)
        needed = MU_FILES_MIN;
    if (limit >= needed)
        return 0;
    return mu_fail_errno(reterr, EMFILE, "the limit of open files (ulimit -n) is %zu, and %zu are needed", limit,
                         needed);
}

int mu_files_write(int fd, struct mu_slice bytes, bool patient)
{
    while (bytes.len > 0) {
        ssize_t done = write(fd, bytes.data, bytes.len);

        if (done >= 0)
            bytes = mu_slice(bytes.data + done, bytes.len - (size_t)done);
        else if (errno == EAGAIN && patient)
            (void)poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, -1);
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}

void mu_files_reserve(size_t count)
{
    (void)atomic_fetch_add(&reserved, count);
}

void mu_files_release(size_t count)
{
    size_t before = atomic_fetch_sub(&reserved, count);

    assert(before >= count);
    (void)before;
}

size_t mu_files_connections_max(void)
{
    size_t limit = mu_files_limit(), taken = atomic_load(&reserved) + MU_FILES_OWN;

    return limit > taken + MU_FILES_CONNECTIONS_LEAST ? limit - taken : MU_FILES_CONNECTIONS_LEAST;
}

size_t mu_files_connections(void)
{
    return atomic_load(&connections);
}

void mu_files_connection_opened(void)
{
    (void)atomic_fetch_add(&connections, 1);
}

void mu_files_connection_closed(void)
{
    size_t before = atomic_fetch_sub(&connections, 1);

    assert(before > 0);
    (void)before;
}
