/* An agent's last will. See will.h. */
#include "proc/will.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct version {
    struct sockaddr_storage address;
    socklen_t address_len;
    bool server_closes;
    size_t len;
    char bytes[MU_WILL_BYTES_MAX];
};

enum { NONE, FIRST, SECOND }; /* which version counts */

struct mu_will {
    atomic_bool taken;
    atomic_uint counts;
    struct version versions[2];
};

struct mu_wills {
    struct mu_will items[MU_WILLS_MAX];
};

/* An agent that has crashed may have written anywhere before. */
static const struct version *whole(const struct mu_will *will)
{
    unsigned counts = atomic_load(&will->counts);
    const struct version *version = counts == FIRST || counts == SECOND ? &will->versions[counts - FIRST] : NULL;

    return version != NULL && version->len <= sizeof version->bytes && version->address_len <= sizeof version->address
               ? version
               : NULL;
}

/* ---- The agent's side ---- */

struct mu_wills *mu_wills_new(void)
{
    void *memory =
        mmap(NULL, sizeof(struct mu_wills), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); /* zeroed */

    return memory == MAP_FAILED ? NULL : memory;
}

void mu_wills_free(struct mu_wills *wills)
{
    if (wills != NULL)
        (void)munmap(wills, sizeof *wills);
}

struct mu_will *mu_will_claim(struct mu_wills *wills)
{
    for (size_t i = 0; wills != NULL && i < MU_WILLS_MAX; i++)
        if (!atomic_exchange(&wills->items[i].taken, true))
            return &wills->items[i];
    return NULL;
}

static bool is_same(const struct version *version, const struct mu_will_text *text)
{
    return version != NULL && version->server_closes == text->server_closes &&
           mu_slice_equal(mu_slice(version->bytes, version->len), text->bytes) &&
           version->address_len == text->address_len &&
           memcmp(&version->address, text->address, text->address_len) == 0;
}

bool mu_will_set(struct mu_will *will, const struct mu_will_text *text)
{
    unsigned next;
    struct version *version;

    if (will == NULL)
        return false;
    if (text->bytes.len > MU_WILL_BYTES_MAX || text->address_len > sizeof version->address) {
        mu_will_withdraw(will);
        return false;
    }
    if (is_same(whole(will), text))
        return true;
    next = atomic_load(&will->counts) == FIRST ? SECOND : FIRST;
    version = &will->versions[next - FIRST];
    memcpy(&version->address, text->address, text->address_len);
    version->address_len = text->address_len;
    memcpy(version->bytes, text->bytes.data, text->bytes.len);
    version->len = text->bytes.len;
    version->server_closes = text->server_closes;
    atomic_store(&will->counts, next); /* everything above is there by then */
    return true;
}

void mu_will_withdraw(struct mu_will *will)
{
    if (will != NULL)
        atomic_store(&will->counts, NONE);
}

void mu_will_release(struct mu_will *will)
{
    if (will == NULL)
        return;
    mu_will_withdraw(will);
    atomic_store(&will->taken, false);
}

/* ---- The keeper's side ---- */

/* False: it is `until_ms`. */
static bool await(int fd, short events, int64_t until_ms)
{
    struct pollfd poll_fd = { .fd = fd, .events = events };

    for (;;) {
        int64_t left_ms = until_ms - mu_clock_ms();
        int count = poll(&poll_fd, 1, left_ms > 0 ? (int)left_ms : 0);

        if (count > 0)
            return true;
        if (left_ms <= 0 || (count < 0 && errno != EINTR))
            return false;
    }
}

static bool is_connected(int fd, int64_t until_ms)
{
    int errnum = 0;
    socklen_t len = sizeof errnum;

    return await(fd, POLLOUT, until_ms) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &errnum, &len) == 0 && errnum == 0;
}

static bool write_all(int fd, struct mu_slice bytes, int64_t until_ms)
{
    while (bytes.len > 0) {
        ssize_t count = send(fd, bytes.data, bytes.len, MSG_NOSIGNAL);

        if (count > 0)
            bytes = mu_slice(bytes.data + count, bytes.len - (size_t)count);
        else if ((errno != EAGAIN && errno != EINTR) || !await(fd, POLLOUT, until_ms))
            return false;
    }
    return true;
}

/* Reads and drops the answer until the other end closes. To close earlier might reset the connection before the other
 * end has read everything. */
static void await_close(int fd, bool server_closes, int64_t until_ms)
{
    char answer[256];
    ssize_t count;

    if (!server_closes)
        (void)shutdown(fd, SHUT_WR);
    do {
        count = await(fd, POLLIN, until_ms) ? recv(fd, answer, sizeof answer, 0) : 0;
    } while (count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN)));
}

static bool send_one(const struct version *version, int64_t until_ms)
{
    int fd = socket(version->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool sent;

    if (fd < 0)
        return false;
    sent = connect(fd, (const struct sockaddr *)&version->address, version->address_len) == 0 ||
           (errno == EINPROGRESS && is_connected(fd, until_ms));
    sent = sent && write_all(fd, mu_slice(version->bytes, version->len), until_ms);
    if (sent)
        await_close(fd, version->server_closes, until_ms);
    (void)close(fd);
    return sent;
}

size_t mu_wills_send(const struct mu_wills *wills, int64_t until_ms)
{
    size_t sent = 0;

    for (size_t i = 0; wills != NULL && i < MU_WILLS_MAX; i++) {
        const struct version *version = whole(&wills->items[i]);

        if (version != NULL)
            sent += send_one(version, until_ms);
    }
    return sent;
}
