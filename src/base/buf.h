/* Growing bytes with a ceiling, and the budget that several of them may share. */
#ifndef MU_BASE_BUF_H
#define MU_BASE_BUF_H

#include "base/slice.h"

#include <endian.h>
#include <stdint.h>

/* How much memory a group of owners may hold together. A zero `max` means no ceiling. */
struct mu_budget {
    size_t used, max;
};

bool mu_budget_take(struct mu_budget *budget, size_t bytes); /* false, and nothing taken, when it is too much */
void mu_budget_give(struct mu_budget *budget, size_t bytes);

struct mu_buf {
    char *data;
    size_t len, cap;
};

/* Zeroed memory is an empty buffer. Both return 0, MUSTER_ENOMEM, or MUSTER_ELIMIT past `len_max`; on failure the
 * buffer is as it was. The bytes must not lie in the buffer itself. */
int mu_buf_reserve(struct mu_buf *buf, size_t more, size_t len_max);
int mu_buf_append(struct mu_buf *buf, const void *data, size_t len, size_t len_max);
int mu_buf_assign(struct mu_buf *buf, struct mu_slice bytes); /* replaces; shrinks a buffer that is mostly air */
void mu_buf_consume(struct mu_buf *buf, size_t len);          /* drops the first bytes; shrinks like assign */
void mu_buf_done(struct mu_buf *buf);                         /* frees; the buffer is empty and usable again */

static inline struct mu_slice mu_buf_slice(const struct mu_buf *buf)
{
    return mu_slice(buf->data, buf->len);
}

/* A copy for free(), with a NUL behind; NULL: no memory. */
char *mu_slice_copy(struct mu_slice bytes);

/* Little-endian integers, wherever they stand. */
static inline uint32_t mu_get_u32(const void *from)
{
    uint32_t value;

    memcpy(&value, from, sizeof value);
    return le32toh(value);
}

static inline uint64_t mu_get_u64(const void *from)
{
    uint64_t value;

    memcpy(&value, from, sizeof value);
    return le64toh(value);
}

static inline void mu_put_u32(void *to, uint32_t value)
{
    value = htole32(value);
    memcpy(to, &value, sizeof value);
}

static inline void mu_put_u64(void *to, uint64_t value)
{
    value = htole64(value);
    memcpy(to, &value, sizeof value);
}

#endif
