/* A text of any length. */
#include "base/text.h"

#include "muster.h"

#include <stdarg.h>
#include <stdio.h>

static size_t len_max(const struct mu_text *text)
{
    return text->len_max != 0 ? text->len_max : SIZE_MAX;
}

void mu_text_add_bytes(struct mu_text *text, const void *bytes, size_t len)
{
    if (text->failed == 0)
        text->failed = mu_buf_append(&text->buf, bytes, len, len_max(text));
}

void mu_text_add(struct mu_text *text, const char *format, ...)
{
    va_list args, again;
    int len;

    va_start(args, format);
    va_copy(again, args);
    len = vsnprintf(NULL, 0, format, args);
    if (text->failed == 0)
        text->failed = len < 0 ? MUSTER_ENOMEM : mu_buf_reserve(&text->buf, (size_t)len + 1, len_max(text));
    if (text->failed == 0) {
        (void)vsnprintf(text->buf.data + text->buf.len, (size_t)len + 1, format, again);
        text->buf.len += (size_t)len;
    }
    va_end(again);
    va_end(args);
}

void mu_text_add_plain_slice(struct mu_text *text, struct mu_slice bytes)
{
    for (size_t i = 0; i < bytes.len; i++) {
        unsigned char byte = (unsigned char)bytes.data[i];

        if (byte == '\\')
            mu_text_add_bytes(text, "\\\\", 2);
        else if (byte >= ' ' && byte <= '~')
            mu_text_add_bytes(text, &byte, 1);
        else
            mu_text_add(text, "\\x%02x", byte);
    }
}

void mu_text_add_plain(struct mu_text *text, const char *bytes)
{
    mu_text_add_plain_slice(text, mu_slice_str(bytes));
}

void mu_text_add_around(struct mu_text *text, const char *before, const char *plain, const char *after)
{
    mu_text_add(text, "%s", before);
    mu_text_add_plain(text, plain);
    mu_text_add(text, "%s", after);
}

char *mu_text_format(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    int len;

    va_start(args, format);
    len = vasprintf(&text, format, args);
    va_end(args);
    return len < 0 ? NULL : text;
}

void mu_text_done(struct mu_text *text)
{
    mu_buf_done(&text->buf);
    text->failed = 0;
}
