/* Texts without their secrets. */
#include "base/secret.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

static const char *const words[] = { "password", "passwd", "token", "secret" };

/* How long a word of those is that stands at the beginning of the text; 0: there is none. */
static size_t word_at(struct mu_slice text)
{
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t len = strlen(words[i]);

        if (text.len >= len && strncasecmp(text.data, words[i], len) == 0)
            return len;
    }
    return 0;
}

bool mu_secret_is_key(struct mu_slice key)
{
    for (; key.len > 0; key = mu_slice(key.data + 1, key.len - 1)) {
        if (word_at(key) > 0)
            return true;
    }
    return false;
}

static size_t find(struct mu_slice text, size_t from, char c)
{
    while (from < text.len && text.data[from] != c)
        from++;
    return from;
}

/* Of what is between a scheme and the last "@": the first byte, and behind the last. Empty: there is none. */
static void find_user(struct mu_slice text, size_t *ret_start, size_t *ret_end)
{
    const char *at = text.len == 0 ? NULL : memrchr(text.data, '@', text.len);
    const char *scheme = at == NULL ? NULL : memmem(text.data, (size_t)(at - text.data), "://", 3);

    *ret_end = at == NULL ? 0 : (size_t)(at - text.data);
    *ret_start = scheme == NULL ? 0 : (size_t)(scheme + 3 - text.data);
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Behind the value that begins there: up to a comma that a further option follows, for a secret may have one in it. */
static size_t value_end(struct mu_slice text, size_t from)
{
    for (;;) {
        size_t comma = find(text, from, ','), next = find(text, comma + 1, ',');

        if (comma >= text.len || find(mu_slice(text.data, next), comma + 1, '=') < next)
            return comma < text.len ? comma : text.len;
        from = next;
    }
}

/* Behind the name that begins there with a secret word, and behind its "=". */
static size_t name_end(struct mu_slice text, size_t from)
{
    while (from < text.len && is_name(text.data[from]))
        from++;
    return from + (from < text.len && text.data[from] == '=');
}

/* Behind what is hidden of a text that has an "@" at `end`: further, where the value of a secret option has it. */
static size_t user_hidden(struct mu_slice text, size_t from, size_t end)
{
    size_t hidden = end;

    for (; from < end; from++) {
        if (word_at(mu_slice(text.data + from, text.len - from)) > 0)
            hidden = value_end(text, name_end(text, from));
        if (hidden > end)
            break;
    }
    return hidden > end ? hidden : end;
}

/* Whether a name with a secret word begins there that may have a value, behind `value`: "=" or a blank comes before it, or
 * whatever else when the name is no more than that word. A host's name that goes on otherwise has none. */
static bool is_secret(struct mu_slice text, size_t from, size_t value)
{
    size_t len = word_at(mu_slice(text.data + from, text.len - from));

    return len > 0 &&
           (from + len == value || value == text.len || text.data[value - 1] == '=' || text.data[value] == ' ');
}

struct writer {
    char *out;
    size_t used, room;
};

/* Leaves room for what says that there was more. */
static bool put(struct writer *w, const char *bytes, size_t len)
{
    if (w->used + len > w->room - sizeof "...") {
        memcpy(w->out + w->used, "...", sizeof "...");
        return false;
    }
    memcpy(w->out + w->used, bytes, len);
    w->used += len;
    w->out[w->used] = '\0';
    return true;
}

const char *mu_secret_hide(struct mu_slice text, char *shown, size_t room)
{
    struct writer w = { .out = shown, .room = room };
    size_t user, user_end;
    bool fits = true;

    assert(room > sizeof "...");
    shown[0] = '\0';
    find_user(text, &user, &user_end);
    for (size_t i = 0; i < text.len && fits;) {
        size_t value = name_end(text, i);

        if (i >= user && i < user_end) {
            fits = put(&w, "***", 3);
            i = user_hidden(text, i, user_end);
        } else if (!is_secret(text, i, value)) {
            fits = put(&w, text.data + i++, 1);
        } else {
            fits = put(&w, text.data + i, value - i);
            i = value_end(text, value);
            if (i > value && fits)
                fits = put(&w, "***", 3);
        }
    }
    return shown;
}
