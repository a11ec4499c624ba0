/* Nodes and documents of a rendezvous in a few characters.
 *
 *     "3 complete closed last-call=130 1.13 a=0@100 b=1 c~@100 d+ E@7"
 *
 * is round 3 with the participants a and b, of ranks 0 and 1; c waits and d is a spare. Behind the @ is the heartbeat
 * in milliseconds, a bare "E@7" has nothing else. A small letter is a node of our own kind, a capital one of PyTorch;
 * '#' is one of ours with a NUL in its name. An @ alone stands for now, which is doc_now_ms. The dialect is 2.x unless
 * "1.13" or "2.5" stands there. */
#ifndef TESTS_UNIT_RDZV_SCENE_H
#define TESTS_UNIT_RDZV_SCENE_H

#include "base/buf.h"
#include "pure.h"
#include "rdzv/doc.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>

#define DOC_TEXT_MAX 8192

static int64_t doc_now_ms;
static const struct mu_hash_seed hash_seed = { 11, 22 };

static inline struct mu_node node_of(char letter)
{
    static char names[128][3];
    struct mu_node node = { .pid = 1, .local_id = isupper(letter) ? 0 : mu_node_local_id(1, (uint32_t)letter) };
    char *name = names[letter & 127];

    name[0] = letter;
    name[2] = 'x';
    node.name = mu_slice(name, letter == '#' ? 3 : 1);
    return node;
}

static inline const char *letter_text(const struct mu_node *node, char text[static 2])
{
    text[0] = node->name.data[0];
    text[1] = '\0';
    return text;
}

/* ---- Reading ---- */

static inline bool takes_word(const char **text, const char *word)
{
    size_t len = strlen(word);

    if (strncmp(*text, word, len) != 0 || ((*text)[len] != ' ' && (*text)[len] != '\0'))
        return false;
    *text += len;
    return true;
}

static inline int read_member(const char **text, struct mu_doc *doc)
{
    struct mu_node node = node_of(**text);
    struct mu_doc_member *member = NULL;
    unsigned in = 0;
    int64_t rank = 0, heartbeat_ms = 0;
    char *end = NULL;

    (*text)++;
    for (;; (*text)++) {
        if (**text == '=') {
            in |= MU_DOC_PARTICIPANT;
            rank = strtoll(*text + 1, &end, 10);
            *text = end - 1;
        } else if (**text == '~') {
            in |= MU_DOC_WAITING;
        } else if (**text == '+') {
            in |= MU_DOC_SPARE;
        } else if (**text == '@') {
            in |= MU_DOC_HEARTBEAT;
            heartbeat_ms = isdigit((*text)[1]) ? strtoll(*text + 1, &end, 10) : doc_now_ms;
            *text = isdigit((*text)[1]) ? end - 1 : *text;
        } else {
            break;
        }
    }
    if (in == 0)
        return MUSTER_ERDZV_STATE;
    member = mu_doc_enter(doc, &node, in);
    if (member == NULL)
        return MUSTER_ENOMEM;
    member->rank = rank;
    member->heartbeat_us = heartbeat_ms * 1000;
    return 0;
}

static inline int doc_read(const char *text, struct mu_doc *doc)
{
    char *end = NULL;
    int rc = 0;

    mu_doc_reset(doc, MU_DOC_DIALECT_2_X);
    if (!isdigit(*text))
        return MUSTER_ERDZV_STATE;
    doc->round = strtoll(text, &end, 10);
    for (text = end; rc == 0 && *text != '\0';) {
        if (*text == ' ') {
            text++;
        } else if (takes_word(&text, "complete")) {
            doc->complete = true;
        } else if (takes_word(&text, "closed")) {
            doc->closed = true;
        } else if (takes_word(&text, "1.13")) {
            doc->dialect = MU_DOC_DIALECT_1_13;
        } else if (takes_word(&text, "2.5")) {
            doc->dialect = MU_DOC_DIALECT_2_5;
        } else if (strncmp(text, "last-call=", 10) == 0) {
            doc->has_deadline = true;
            doc->deadline_us = strtoll(text + 10, &end, 10) * 1000;
            text = end;
        } else {
            rc = read_member(&text, doc);
        }
    }
    return rc;
}

static inline void doc_is(struct mu_doc *doc, const char *text)
{
    mu_doc_init(doc, hash_seed, MU_DOC_DIALECT_2_X);
    assert_int_equal(doc_read(text, doc), 0);
}

/* ---- Writing ---- */

struct words {
    char text[DOC_TEXT_MAX];
    size_t len;
};

__attribute__((format(printf, 2, 3))) static inline void say_word(struct words *words, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    words->len += (size_t)vsnprintf(words->text + words->len, sizeof words->text - words->len, format, args);
    va_end(args);
    assert_true(words->len < sizeof words->text);
}

static inline void write_doc(struct words *out, const struct mu_doc *doc, bool times)
{
    bool old = !doc->dialect.addr && !doc->dialect.spares && !doc->dialect.zoned;

    say_word(out, "%" PRId64 "%s%s", doc->round, doc->complete ? " complete" : "", doc->closed ? " closed" : "");
    if (doc->has_deadline && times)
        say_word(out, " last-call=%" PRId64, doc->deadline_us / 1000);
    else if (doc->has_deadline)
        say_word(out, " last-call");
    say_word(out, "%s", old ? " 1.13" : doc->dialect.zoned ? "" : " 2.5");
    for (size_t i = 0; i < doc->count; i++) {
        const struct mu_doc_member *member = &doc->members[i];

        say_word(out, " %c", member->node.name.data[0]);
        if ((member->in & MU_DOC_PARTICIPANT) != 0)
            say_word(out, "=%" PRId64, member->rank);
        say_word(out, "%s%s", (member->in & MU_DOC_WAITING) != 0 ? "~" : "",
                 (member->in & MU_DOC_SPARE) != 0 ? "+" : "");
        if ((member->in & MU_DOC_HEARTBEAT) != 0 && times)
            say_word(out, "@%" PRId64, member->heartbeat_us / 1000);
        else if (member->in == MU_DOC_HEARTBEAT)
            say_word(out, "@");
    }
}

static inline void assert_doc(const struct mu_doc *doc, const char *text)
{
    struct words words = { .len = 0 };

    write_doc(&words, doc, true);
    assert_string_equal(words.text, text);
}

#endif
