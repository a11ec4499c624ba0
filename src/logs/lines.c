/* The bytes of one stream, cut into lines, and the prefix of a line. */
#include "logs/lines.h"

#include <stdio.h>

static bool give(struct mu_lines *lines, struct mu_slice text, bool ends, struct mu_lines_piece *ret_piece)
{
    *ret_piece = (struct mu_lines_piece){ .text = text, .starts = !lines->inside, .ends = ends };
    lines->inside = !ends;
    return true;
}

/* The same for the held bytes. They stay in place until the next call, for the piece points to them. */
static bool give_held(struct mu_lines *lines, bool ends, struct mu_lines_piece *ret_piece)
{
    lines->given = true;
    return give(lines, mu_buf_slice(&lines->held), ends, ret_piece);
}

static void advance(struct mu_slice *input, size_t len)
{
    input->data += len;
    input->len -= len;
}

/* Where the first \n or \r is; the length if there is none. */
static size_t find_end(struct mu_slice text)
{
    const char *lf = memchr(text.data, '\n', text.len);
    size_t len = lf != NULL ? (size_t)(lf - text.data) : text.len;
    const char *cr = memchr(text.data, '\r', len);

    return cr != NULL ? (size_t)(cr - text.data) : len;
}

static void let_go(struct mu_lines *lines)
{
    if (lines->given)
        mu_buf_consume(&lines->held, lines->held.len);
    lines->given = false;
}

bool mu_lines_next(struct mu_lines *lines, struct mu_slice *input, struct mu_lines_piece *ret_piece)
{
    size_t len, room;
    bool ends;

    let_go(lines);
    if (input->len > 0 && lines->after_cr) {
        lines->after_cr = false;
        if (input->data[0] == '\n')
            advance(input, 1);
    }
    if (input->len == 0)
        return false;
    len = find_end(*input);
    room = MU_LINES_LINE_MAX - lines->held.len;
    ends = len < input->len && len <= room;
    if (len > room)
        len = room;
    if (lines->held.len > 0 || !ends) {
        /* Without memory to hold it, the beginning of the line is passed on as a piece. */
        if (mu_buf_append(&lines->held, input->data, len, MU_LINES_LINE_MAX) < 0) {
            struct mu_slice text = mu_slice(input->data, len);

            if (lines->held.len > 0)
                return give_held(lines, false, ret_piece);
            advance(input, len);
            return give(lines, text, false, ret_piece);
        }
        advance(input, len);
        if (!ends)
            return lines->held.len == MU_LINES_LINE_MAX && input->len > 0 && give_held(lines, false, ret_piece);
        lines->after_cr = input->data[0] == '\r';
        advance(input, 1);
        return give_held(lines, true, ret_piece);
    }
    lines->after_cr = input->data[len] == '\r';
    (void)give(lines, mu_slice(input->data, len), true, ret_piece);
    advance(input, len + 1);
    return true;
}

bool mu_lines_end(struct mu_lines *lines, struct mu_lines_piece *ret_piece)
{
    let_go(lines);
    lines->after_cr = false;
    if (lines->held.len == 0 && !lines->inside)
        return false;
    return give_held(lines, true, ret_piece);
}

void mu_lines_done(struct mu_lines *lines)
{
    mu_buf_done(&lines->held);
    *lines = (struct mu_lines){ 0 };
}

/* ---- Prefix */

enum { MACROS = 4 };

struct macros {
    const char *names[MACROS], *values[MACROS];
};

static void put(char prefix[static MU_PREFIX_MAX], size_t *used, const char *text, size_t len)
{
    size_t room = MU_PREFIX_MAX - 1 - *used;

    if (len > room)
        len = room;
    memcpy(prefix + *used, text, len);
    *used += len;
}

static bool is_name(char c, bool first)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (!first && c >= '0' && c <= '9');
}

/* The value for a '$', and how long it is in the template; 0: unknown, it stays as it is. */
static size_t look_up(const char *at, const struct macros *macros, const char **ret_value)
{
    bool braces = at[1] == '{';
    const char *name = at + (braces ? 2 : 1);
    size_t len = 0;

    if (at[1] == '$') {
        *ret_value = "$";
        return 2;
    }
    while (is_name(name[len], len == 0))
        len++;
    if (braces && name[len] != '}')
        return 0;
    for (size_t i = 0; i < MACROS; i++)
        if (strlen(macros->names[i]) == len && memcmp(macros->names[i], name, len) == 0) {
            *ret_value = macros->values[i];
            return len + (braces ? 3 : 1);
        }
    return 0;
}

void mu_prefix_format(const char *template, const struct mu_prefix_words *words, char prefix[static MU_PREFIX_MAX])
{
    char rank[24], local_rank[24];
    const struct macros macros = { { "role_name", "rank", "local_rank", "hostname" },
                                   { words->role, rank, local_rank, words->host } };
    size_t used = 0, len;
    const char *value;

    (void)snprintf(rank, sizeof rank, "%llu", (unsigned long long)words->rank);
    (void)snprintf(local_rank, sizeof local_rank, "%u", (unsigned)words->local_rank);
    if (template == NULL || template[0] == '\0')
        template = "[${role_name}${local_rank}]:";
    while (*template != '\0') {
        len = *template == '$' ? look_up(template, &macros, &value) : 0;
        if (len > 0)
            put(prefix, &used, value, strlen(value));
        else
            put(prefix, &used, template, 1);
        template += len > 0 ? len : 1;
    }
    prefix[used] = '\0';
}
