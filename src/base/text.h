/* A text of any length, put together piece by piece. (words.h is for texts in the caller's memory.) */
#ifndef MU_BASE_TEXT_H
#define MU_BASE_TEXT_H

#include "base/buf.h"

/* Zeroed memory is empty. After the first failure nothing is added any more. */
struct mu_text {
    struct mu_buf buf;
    size_t len_max; /* 0: none */
    int failed;     /* 0, MUSTER_ENOMEM, or MUSTER_ELIMIT past len_max */
};

void mu_text_add(struct mu_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mu_text_add_bytes(struct mu_text *text, const void *bytes, size_t len);
/* Any bytes, as printable ASCII with \xNN for the rest, so that texts from outside cannot disturb a terminal or break a
 * line in two. */
void mu_text_add_plain(struct mu_text *text, const char *bytes);
void mu_text_add_plain_slice(struct mu_text *text, struct mu_slice bytes);
void mu_text_add_around(struct mu_text *text, const char *before, const char *plain, const char *after);
/* A text for free(); NULL: no memory. */
char *mu_text_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mu_text_done(struct mu_text *text);

#endif
