/* Texts without their secrets. */
#include "base/secret.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

static const char *const words[] = { "password", "passwd", "token", "secret" };

/* The length of the secret word that the text begins with; 0: it begins with none. */
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

/* The part between a scheme and the last "@": its first byte, and the byte behind its last. Empty: there is none. */
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

/* The end of the value that begins there. Only a comma with another option behind it ends the value, for a secret may
 * contain commas. */
static size_t value_end(struct mu_slice text, size_t from)
{
    for (;;) {
        size_t comma = find(text, from, ','), next = find(text, comma + 1, ',');

        if (comma >= text.len || find(mu_slice(text.data, next), comma + 1, '=') < next)
            return comma < text.len ? comma : text.len;
        from = next;
    }
}

/* The end of the name that begins there with a secret word, its "=" included. */
static size_t name_end(struct mu_slice text, size_t from)
{
    while (from < text.len && is_name(text.data[from]))
        from++;
    return from + (from < text.len && text.data[from] == '=');
}

/* The end of the part that is hidden, in a text with an "@" at `end`. If that "@" is in the value of a secret option,
 * the whole value is hidden. */
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

/* Whether a secret option's name begins there, with its value at `value`. "=" or a blank is between them; if the name
 * is only the secret word, any other character may be. The name of a host that merely begins with a secret word does
 * not count. */
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

/* Leaves room for the "..." that says that there was more. */
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
