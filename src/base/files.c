/* The process's descriptors, counted. */
#include "base/files.h"

#include "base/error.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/resource.h>

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
