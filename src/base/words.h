/* A text that is put together piece by piece in the caller's memory; what does not fit is cut. */
#ifndef MU_BASE_WORDS_H
#define MU_BASE_WORDS_H

#include "base/slice.h"

struct mu_words {
    char *text;  /* ends with a NUL after the first piece */
    size_t room; /* with the NUL; above 0 */
    size_t len;
};

static inline struct mu_words mu_words_into(char *text, size_t room)
{
    return (struct mu_words){ .text = text, .room = room };
}
void mu_words_add(struct mu_words *words, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What others chose must not disturb a terminal: bytes that are no printable ASCII are shown as '?'. What does not fit
 * ends with "...". Returns `text`; `room` is above 4. */
const char *mu_words_plain(struct mu_slice bytes, char *text, size_t room);

#endif
