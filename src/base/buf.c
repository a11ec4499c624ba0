/* Growing bytes with a ceiling. Capacity doubles, so that appending stays linear in what arrives. */
#include "base/buf.h"

#include "muster.h"

#include <assert.h>
#include <stdlib.h>

enum { CAP_MIN = 64, SHRINK_FROM = 1024 };

bool mu_budget_take(struct mu_budget *budget, size_t bytes)
{
    if (budget->max != 0 && (bytes > budget->max || budget->used > budget->max - bytes))
        return false;
    budget->used += bytes;
    return true;
}

void mu_budget_give(struct mu_budget *budget, size_t bytes)
{
    assert(budget->used >= bytes);
    budget->used -= bytes;
}

static int resize(struct mu_buf *buf, size_t cap)
{
    char *data = realloc(buf->data, cap);

    if (data == NULL)
        return MUSTER_ENOMEM;
    buf->data = data;
    buf->cap = cap;
    return 0;
}

int mu_buf_reserve(struct mu_buf *buf, size_t more, size_t len_max)
{
    size_t cap = buf->cap < CAP_MIN ? CAP_MIN : buf->cap;

    if (more > len_max || buf->len > len_max - more)
        return MUSTER_ELIMIT;
    if (buf->len + more <= buf->cap)
        return 0;
    while (cap < buf->len + more)
        cap = cap > SIZE_MAX / 2 ? buf->len + more : cap * 2;
    return resize(buf, cap);
}

int mu_buf_append(struct mu_buf *buf, const void *data, size_t len, size_t len_max)
{
    int rc = mu_buf_reserve(buf, len, len_max);

    if (rc < 0)
        return rc;
    if (len > 0)
        memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    return 0;
}

static bool mostly_air(const struct mu_buf *buf, size_t len)
{
    return buf->cap > SHRINK_FROM && len < buf->cap / 4;
}

int mu_buf_assign(struct mu_buf *buf, struct mu_slice bytes)
{
    if (buf->data == NULL || bytes.len > buf->cap || mostly_air(buf, bytes.len)) {
        char *data = malloc(bytes.len == 0 ? 1 : bytes.len); /* exact: most values are written once */

        if (data == NULL)
            return MUSTER_ENOMEM;
        free(buf->data);
        buf->data = data;
        buf->cap = bytes.len == 0 ? 1 : bytes.len;
    }
    if (bytes.len > 0)
        memcpy(buf->data, bytes.data, bytes.len);
    buf->len = bytes.len;
    return 0;
}

void mu_buf_consume(struct mu_buf *buf, size_t len)
{
    assert(len <= buf->len);
    buf->len -= len;
    if (len > 0 && buf->len > 0)
        memmove(buf->data, buf->data + len, buf->len);
    if (len > 0 && mostly_air(buf, buf->len))
        (void)resize(buf, buf->len < CAP_MIN ? CAP_MIN : buf->len); /* no memory: it stays large */
}

void mu_buf_done(struct mu_buf *buf)
{
    free(buf->data);
    *buf = (struct mu_buf){ 0 };
}

char *mu_slice_copy(struct mu_slice bytes)
{
    char *copy = malloc(bytes.len + 1);

    if (copy == NULL)
        return NULL;
    if (bytes.len > 0)
        memcpy(copy, bytes.data, bytes.len);
    copy[bytes.len] = '\0';
    return copy;
}
