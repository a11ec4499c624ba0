/* The board of those who wait. */
#include "rdzv/notice_board.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINE_BYTES_MAX = 512, WORDS = 5 };
enum { ID, MIN, MAX, NAME, BEAT };

/* ---- Lines ---- */

/* Printable, and without what separates words. False: there is no room. */
static bool encode(const char *text, char *out, size_t room)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t len = 0;

    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        bool plain = byte > ' ' && byte <= '~' && byte != '%';

        if (len + (plain ? 1 : 3) >= room)
            return false;
        out[len++] = plain ? (char)byte : '%';
        if (!plain) {
            out[len++] = digits[byte >> 4];
            out[len++] = digits[byte & 15];
        }
    }
    out[len] = '\0';
    return len > 0;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* As it was before encode(), except that control characters stay encoded: people see it. A text that has no room is
 * cut. */
static void decode(struct mu_slice word, char *out, size_t room)
{
    size_t len = 0;

    for (size_t i = 0; i < word.len && len + 1 < room; i++) {
        bool coded = word.data[i] == '%' && i + 2 < word.len && digit_of(word.data[i + 1]) >= 0 &&
                     digit_of(word.data[i + 2]) >= 0;
        int byte = coded ? digit_of(word.data[i + 1]) * 16 + digit_of(word.data[i + 2]) : 0;

        coded = byte >= ' ' && byte != 0x7f;
        out[len++] = coded ? (char)byte : word.data[i];
        i += coded ? 2 : 0;
    }
    out[len] = '\0';
}

/* The next line, without its end; false: there is none. */
static bool next_line(struct mu_slice *rest, struct mu_slice *ret_line)
{
    const char *end = rest->len > 0 ? memchr(rest->data, '\n', rest->len) : NULL;

    if (end == NULL)
        return false;
    *ret_line = mu_slice(rest->data, (size_t)(end - rest->data));
    *rest = mu_slice(end + 1, rest->len - ret_line->len - 1);
    return true;
}

static bool is_number(struct mu_slice word)
{
    int64_t number;

    return mu_slice_number(word, INT64_MAX, &number);
}

/* What others have written: five words of printable bytes, three of them numbers. */
static bool parse(struct mu_slice line, struct mu_slice words[static WORDS])
{
    size_t count = 0;

    if (line.len > LINE_BYTES_MAX)
        return false;
    for (size_t i = 0, begin = 0; i <= line.len; i++) {
        if (i < line.len && (line.data[i] < ' ' || line.data[i] > '~'))
            return false;
        if (i < line.len && line.data[i] != ' ')
            continue;
        if (count == WORDS || i == begin)
            return false;
        words[count++] = mu_slice(line.data + begin, i - begin);
        begin = i + 1;
    }
    return count == WORDS && is_number(words[MIN]) && is_number(words[MAX]) && is_number(words[BEAT]);
}

static bool is_ours(const struct mu_notice_board *board, struct mu_slice line)
{
    size_t len = strlen(board->head);

    return line.len > len && memcmp(line.data, board->head, len) == 0;
}

static bool has_line(const struct mu_notice_board_text *text, struct mu_slice line)
{
    struct mu_slice rest = mu_slice(text->bytes, text->len), other;

    while (next_line(&rest, &other))
        if (mu_slice_equal(line, other))
            return true;
    return false;
}

/* ---- The board ---- */

/* The newest lines of others, so many that one more has room. */
static void copy_others(const struct mu_notice_board *board, struct mu_notice_board_text *ret_text)
{
    struct mu_slice rest = mu_slice(board->now.bytes, board->now.len), line, words[WORDS];
    size_t others = 0;

    ret_text->len = 0;
    while (next_line(&rest, &line))
        others += !is_ours(board, line) && parse(line, words);
    rest = mu_slice(board->now.bytes, board->now.len);
    while (next_line(&rest, &line)) {
        if (is_ours(board, line) || !parse(line, words))
            continue;
        if (others-- >= MU_NOTICE_BOARD_LINES_MAX ||
            ret_text->len + line.len + 1 > MU_NOTICE_BOARD_BYTES_MAX - LINE_BYTES_MAX)
            continue;
        memcpy(ret_text->bytes + ret_text->len, line.data, line.len);
        ret_text->bytes[ret_text->len + line.len] = '\n';
        ret_text->len += line.len + 1;
    }
}

void mu_notice_board_begin(struct mu_notice_board *board, const char *run_id, const char *name, int64_t nodes_min,
                           int64_t nodes_max, uint64_t now_ms)
{
    char id[256];

    *board = (struct mu_notice_board){ .beat_ms = now_ms + MU_NOTICE_BOARD_BEAT_MS / 2 };
    if (!encode(run_id, id, sizeof id))
        return;
    (void)snprintf(board->head, sizeof board->head, "%s %" PRId64 " %" PRId64 " ", id, nodes_min, nodes_max);
    if (!encode(name, board->name, sizeof board->name))
        (void)snprintf(board->name, sizeof board->name, "a-node");
    board->state = MU_NOTICE_BOARD_WAITING;
}

bool mu_notice_board_is_due(const struct mu_notice_board *board, uint64_t now_ms)
{
    return board->state != MU_NOTICE_BOARD_OFF && now_ms >= board->beat_ms;
}

void mu_notice_board_post(struct mu_notice_board *board, uint64_t now_ms, struct mu_notice_board_text *ret_text)
{
    int len;

    assert(board->state != MU_NOTICE_BOARD_OFF);
    board->beat_ms = now_ms + MU_NOTICE_BOARD_BEAT_MS;
    board->state = MU_NOTICE_BOARD_POSTED; /* whatever is answered */
    copy_others(board, ret_text);
    len = snprintf(ret_text->bytes + ret_text->len, LINE_BYTES_MAX, "%s%s %" PRIu64 "\n", board->head, board->name,
                   ++board->beat);
    assert(len > 0 && len < LINE_BYTES_MAX && ret_text->len + (size_t)len <= MU_NOTICE_BOARD_BYTES_MAX);
    ret_text->len += (size_t)len;
}

bool mu_notice_board_see(struct mu_notice_board *board, struct mu_slice text, const struct mu_notice_board_text *wanted)
{
    bool written = mu_slice_equal(text, mu_slice(wanted->bytes, wanted->len));

    if (board->state == MU_NOTICE_BOARD_OFF || text.len > MU_NOTICE_BOARD_BYTES_MAX)
        return false;
    /* A store that has no such key tells what was expected. */
    if (!written && mu_slice_equal(text, mu_slice(board->now.bytes, board->now.len)))
        text.len = 0;
    if (!written)
        board->beat_ms = 0; /* now that it is known what is there, at once */
    if (text.len > 0)
        memmove(board->now.bytes, text.data, text.len);
    board->now.len = text.len;
    if (!board->looked)
        board->first = board->now;
    board->looked = true;
    return written;
}

bool mu_notice_board_end(struct mu_notice_board *board, struct mu_notice_board_text *ret_text)
{
    bool posted = board->state == MU_NOTICE_BOARD_POSTED;

    if (posted)
        copy_others(board, ret_text);
    board->state = MU_NOTICE_BOARD_OFF;
    return posted;
}

/* ---- What it tells ---- */

static void add_clause(struct mu_slice mine[static WORDS], struct mu_slice theirs[static WORDS], char *note)
{
    size_t used = strlen(note);
    char nodes[2][64], name[LINE_BYTES_MAX], id[LINE_BYTES_MAX];
    struct mu_slice *both[] = { theirs, mine };

    decode(theirs[NAME], name, sizeof name);
    decode(theirs[ID], id, sizeof id);

    if (!mu_slice_equal(mine[ID], theirs[ID])) {
        (void)snprintf(note + used, MU_NOTICE_BOARD_NOTE_MAX - used,
                       "%s%s waits at the same endpoint for rendezvous '%s'", used > 0 ? "; " : "", name, id);
        return;
    }
    for (size_t i = 0; i < 2; i++) {
        bool fixed = mu_slice_equal(both[i][MIN], both[i][MAX]);

        (void)snprintf(nodes[i], sizeof nodes[i], "%.*s%s%.*s", (int)both[i][MIN].len, both[i][MIN].data,
                       fixed ? "" : ":", fixed ? 0 : (int)both[i][MAX].len, both[i][MAX].data);
    }
    (void)snprintf(note + used, MU_NOTICE_BOARD_NOTE_MAX - used,
                   "%s%s was started with --nnodes %s, this node with --nnodes %s", used > 0 ? "; " : "", name,
                   nodes[0], nodes[1]);
}

/* Another rendezvous is told of once, whatever --nnodes its nodes have. */
static bool is_told(const struct mu_slice told[], size_t count, struct mu_slice id, struct mu_slice own_id)
{
    for (size_t i = 0; i < count; i++)
        if (mu_slice_equal(told[i], id) && !mu_slice_equal(id, own_id))
            return true;
    return false;
}

const char *mu_notice_board_note(const struct mu_notice_board *board, char note[static MU_NOTICE_BOARD_NOTE_MAX])
{
    struct mu_slice rest = mu_slice(board->now.bytes, board->now.len), line, words[WORDS], mine[WORDS];
    struct mu_slice told[MU_NOTICE_BOARD_NAMED_MAX];
    char own[LINE_BYTES_MAX];
    size_t named = 0;

    note[0] = '\0';
    if (board->state == MU_NOTICE_BOARD_OFF)
        return NULL;
    (void)snprintf(own, sizeof own, "%s%s 0", board->head, board->name);
    if (!parse(mu_slice_str(own), mine))
        return NULL;
    while (named < MU_NOTICE_BOARD_NAMED_MAX && next_line(&rest, &line)) {
        if (is_ours(board, line) || has_line(&board->first, line) || !parse(line, words) ||
            is_told(told, named, words[ID], mine[ID]))
            continue;
        add_clause(mine, words, note);
        told[named++] = words[ID];
    }
    return named > 0 ? note : NULL;
}
