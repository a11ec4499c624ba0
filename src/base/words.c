/* A text that is put together piece by piece. */
#include "base/words.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

void mu_words_add(struct mu_words *words, const char *format, ...)
{
    size_t room = words->room - words->len;
    va_list args;
    int len;

    assert(words->len < words->room);
    va_start(args, format);
    len = vsnprintf(words->text + words->len, room, format, args);
    va_end(args);
    if (len > 0)
        words->len += (size_t)len < room ? (size_t)len : room - 1;
}

const char *mu_words_plain(struct mu_slice bytes, char *text, size_t room)
{
    size_t len = bytes.len < room ? bytes.len : room - 4;

    assert(room > 4);
    for (size_t i = 0; i < len; i++)
        text[i] = bytes.data[i] >= ' ' && bytes.data[i] <= '~' ? bytes.data[i] : '?';
    text[len] = '\0';
    if (len < bytes.len)
        memcpy(text + len, "...", 4);
    return text;
}
