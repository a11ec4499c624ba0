/* Random bytes of the kernel's. */
#include "base/random.h"

#include "base/clock.h"

#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

int mu_random(void *bytes, size_t len, struct muster_error *reterr)
{
    if (getrandom(bytes, len, 0) != (ssize_t)len)
        return mu_fail_errno(reterr, errno, "get random bytes");
    return 0;
}

uint64_t mu_fresh_seed(void)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)mu_wall_us() ^ (uint64_t)getpid() << 40;
    return seed;
}
