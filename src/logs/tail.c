/* The last lines of a stream, for the report on a worker that failed. */
#include "logs/tail.h"

#include "base/error.h"

#include <fcntl.h>
#include <unistd.h>

void mu_tail_add(struct mu_tail *tail, struct mu_slice bytes)
{
    size_t first;

    if (bytes.len == 0)
        return;
    if (bytes.len + tail->len > MU_TAIL_BYTES_MAX)
        tail->cut = true;
    if (bytes.len > MU_TAIL_BYTES_MAX)
        bytes = mu_slice(bytes.data + bytes.len - MU_TAIL_BYTES_MAX, MU_TAIL_BYTES_MAX);
    first = MU_TAIL_BYTES_MAX - tail->at;
    if (first > bytes.len)
        first = bytes.len;
    memcpy(tail->bytes + tail->at, bytes.data, first);
    memcpy(tail->bytes, bytes.data + first, bytes.len - first);
    tail->at = (tail->at + bytes.len) % MU_TAIL_BYTES_MAX;
    tail->len = tail->len + bytes.len > MU_TAIL_BYTES_MAX ? MU_TAIL_BYTES_MAX : tail->len + bytes.len;
}

/* The last lines of `text`, of which earlier bytes are missing if it is `cut`. */
static struct mu_slice last_lines(struct mu_slice text, bool cut)
{
    const char *lf;
    size_t start, lines = 1;

    while (text.len > 0 && (text.data[text.len - 1] == '\n' || text.data[text.len - 1] == '\r'))
        text.len--;
    for (start = text.len; start > 0; start--)
        if (text.data[start - 1] == '\n' && lines++ == MU_TAIL_LINES_MAX)
            break;
    if (start == 0 && cut && (lf = text.len > 0 ? memchr(text.data, '\n', text.len) : NULL) != NULL)
        start = (size_t)(lf - text.data) + 1;
    return mu_slice(text.data + start, text.len - start);
}

int mu_tail_text(const struct mu_tail *tail, struct mu_buf *ret)
{
    char text[MU_TAIL_BYTES_MAX];
    size_t from = (tail->at + MU_TAIL_BYTES_MAX - tail->len) % MU_TAIL_BYTES_MAX;

    for (size_t i = 0; i < tail->len; i++)
        text[i] = tail->bytes[(from + i) % MU_TAIL_BYTES_MAX];
    return mu_buf_assign(ret, last_lines(mu_slice(text, tail->len), tail->cut));
}

int mu_tail_file(const char *path, struct mu_buf *ret)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char text[MU_TAIL_BYTES_MAX];
    ssize_t got = 0;
    off_t end;

    if (fd < 0)
        return mu_buf_assign(ret, mu_slice(NULL, 0));
    end = lseek(fd, 0, SEEK_END);
    if (end > 0)
        got = pread(fd, text, sizeof text, end > MU_TAIL_BYTES_MAX ? end - MU_TAIL_BYTES_MAX : 0);
    (void)close(fd);
    return mu_buf_assign(ret, last_lines(mu_slice(text, got > 0 ? (size_t)got : 0), end > MU_TAIL_BYTES_MAX));
}
