/* The wire in words. See wire.h. */
#include "wire.h"

#include <stdio.h>
#include <stdlib.h>

enum { SLOTS = 8, SLOT_BYTES = 4096 };

static void wrong(const char *text, const char *at)
{
    (void)fprintf(stderr, "not wire text, from byte %td on: %s\n", at - text, text);
    abort();
}

static char *slot(void)
{
    static char slots[SLOTS][SLOT_BYTES];
    static unsigned next;

    return slots[next++ % SLOTS];
}

static bool hex_byte(const char *at, char *ret_byte)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high = at[0] == '\0' ? NULL : strchr(digits, at[0]);
    const char *low = high == NULL || at[1] == '\0' ? NULL : strchr(digits, at[1]);

    if (low == NULL)
        return false;
    *ret_byte = (char)((high - digits) << 4 | (low - digits));
    return true;
}

static bool ends(const char *at)
{
    return *at == ' ' || *at == '\0';
}

static int code_of(enum mu_dialect dialect, const char *at, size_t *ret_len)
{
    static const enum mu_op ops[] = {
#define X(name, l0, l1, v, fields) MU_OP_##name,
        MU_OPS(X)
#undef X
    };

    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        const char *name = mu_op_name(ops[i]);

        *ret_len = strlen(name);
        if (strncmp(at, name, *ret_len) == 0 && ends(at + *ret_len))
            return mu_op_code(ops[i], dialect);
    }
    return -1;
}

/* Copies up to the closing mark; returns the byte behind it. */
static const char *put_text(const char *text, const char *at, char closing, char *out, size_t *len)
{
    while (*at != closing) {
        if (*at == '\0' || *len + 1 >= SLOT_BYTES)
            wrong(text, at);
        if (*at == '\\') {
            if (!hex_byte(at + 1, &out[*len]))
                wrong(text, at);
            at += 3;
        } else {
            out[*len] = *at++;
        }
        ++*len;
    }
    return at + 1;
}

static const char *put_token(enum mu_dialect dialect, const char *text, const char *at, char *out, size_t *len)
{
    size_t start = *len, name_len;
    char *end;
    int code;

    if (*len + 8 > SLOT_BYTES)
        wrong(text, at);
    if (*at == '(') {
        *len += 8;
        at = put_text(text, at + 1, ')', out, len);
        mu_put_u64(out + start, *len - start - 8);
    } else if (*at == '\'') {
        at = put_text(text, at + 1, '\'', out, len);
    } else if (*at == '#' || *at == '%') {
        if (*at == '#')
            mu_put_u64(out + start, at[1] == '-' ? (uint64_t)strtoll(at + 1, &end, 10) : strtoull(at + 1, &end, 10));
        else
            mu_put_u32(out + start, (uint32_t)strtoul(at + 1, &end, 10));
        *len += *at == '#' ? 8 : 4;
        at = end;
    } else if (hex_byte(at, &out[start]) && ends(at + 2)) {
        ++*len;
        at += 2;
    } else {
        code = code_of(dialect, at, &name_len);
        if (code < 0)
            wrong(text, at);
        out[start] = (char)code;
        ++*len;
        at += name_len;
    }
    if (!ends(at))
        wrong(text, at);
    return at;
}

struct mu_slice wire(enum mu_dialect dialect, const char *text)
{
    char *out = slot();
    const char *at = text;
    size_t len = 0;

    for (;;) {
        while (*at == ' ')
            at++;
        if (*at == '\0')
            return mu_slice(out, len);
        at = put_token(dialect, text, at, out, &len);
    }
}

static void put(struct mu_buf *to, const void *data, size_t len)
{
    if (mu_buf_append(to, data, len, SIZE_MAX) < 0)
        abort();
}

void wire_put(struct mu_buf *to, enum mu_dialect dialect, const char *text)
{
    struct mu_slice bytes = wire(dialect, text);

    put(to, bytes.data, bytes.len);
}

void wire_put_len(struct mu_buf *to, uint64_t len)
{
    char bytes[8];

    mu_put_u64(bytes, len);
    put(to, bytes, sizeof bytes);
}

void wire_put_str(struct mu_buf *to, char fill, size_t len)
{
    wire_put_len(to, len);
    if (mu_buf_reserve(to, len, SIZE_MAX) < 0)
        abort();
    memset(to->data + to->len, fill, len);
    to->len += len;
}

const char *wire_hex(struct mu_slice bytes)
{
    char *text = slot();
    size_t shown = bytes.len < SLOT_BYTES / 3 - 16 ? bytes.len : SLOT_BYTES / 3 - 16;
    size_t at = 0;

    text[0] = '\0';
    for (size_t i = 0; i < shown; i++)
        at += (size_t)snprintf(text + at, SLOT_BYTES - at, "%02X ", (unsigned)(unsigned char)bytes.data[i]);
    if (shown < bytes.len)
        (void)snprintf(text + at, SLOT_BYTES - at, "... %zu bytes", bytes.len);
    return text;
}
