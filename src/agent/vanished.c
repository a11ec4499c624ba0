/* Who has vanished from a round, and in which words. See vanished.h. */
#include "agent/vanished.h"

#include "base/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEFT "left: "
#define AGAIN "again: "
#define LOST "lost: "

void mu_line_copy(char *to, size_t room, struct mu_slice from)
{
    (void)snprintf(to, room, "%.*s", (int)(from.len < room ? from.len : room), from.data);
    for (char *c = to; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
}

void mu_vanished_done(struct mu_vanished *v)
{
    free(v->members);
    *v = (struct mu_vanished){ .count = 0 };
}

static bool reserve(struct mu_vanished *v, size_t room)
{
    struct mu_vanished_member *members;

    if (room <= v->room)
        return true;
    members = room > MU_VANISHED_MAX ? NULL : realloc(v->members, room * sizeof *members);
    if (members == NULL)
        return false;
    v->members = members;
    v->room = room;
    return true;
}

void mu_vanished_copy(struct mu_vanished *to, const struct mu_vanished *from)
{
    mu_vanished_done(to);
    memcpy(to->cause, from->cause, sizeof to->cause);
    to->unknown = from->unknown;
    if (!reserve(to, from->count)) {
        to->unknown += from->count;
        return;
    }
    for (; to->count < from->count; to->count++)
        to->members[to->count] = from->members[to->count];
}

void mu_vanished_add(struct mu_vanished *v, int64_t rank, const char *name, bool ours, bool waits)
{
    struct mu_vanished_member *member;

    for (size_t i = 0; i < v->count; i++)
        if (v->members[i].rank == rank && strcmp(v->members[i].name, name) == 0)
            return;
    if (v->count == v->room && !reserve(v, v->room == 0 ? MU_VANISHED_NAMED_MAX : 2 * v->room)) {
        v->unknown++;
        return;
    }
    member = &v->members[v->count++];
    *member = (struct mu_vanished_member){ .rank = rank, .ours = ours, .waits = waits };
    mu_line_copy(member->name, sizeof member->name, mu_slice_str(name));
}

void mu_vanished_set_cause(struct mu_vanished *v, const char *cause)
{
    mu_line_copy(v->cause, sizeof v->cause, mu_slice_str(cause == NULL ? "" : cause));
}

/* ---- Notes ---- */

static const struct kind {
    enum mu_vanished_note note;
    const char *start; /* of its text */
} kinds[] = { { MU_NOTE_LEFT, LEFT }, { MU_NOTE_AGAIN, AGAIN }, { MU_NOTE_LOST, LOST } };

void mu_vanished_write_note(char *text, enum mu_vanished_note note, const char *why)
{
    text[0] = '\0';
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].note == note)
            (void)snprintf(text, MU_VANISHED_NOTE_MAX, "%s%s", kinds[i].start, why);
}

static bool starts_with(struct mu_slice text, const char *start)
{
    return text.len >= strlen(start) && memcmp(text.data, start, strlen(start)) == 0;
}

void mu_vanished_read_note(struct mu_vanished_member *member, struct mu_slice text)
{
    size_t skip = 0;

    member->note = MU_NOTE_NONE;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!starts_with(text, kinds[i].start))
            continue;
        member->note = kinds[i].note;
        skip = strlen(kinds[i].start);
    }
    mu_line_copy(member->why, sizeof member->why, mu_slice(text.data + skip, text.len - skip));
}

void mu_vanished_write_mark(char text[static MU_VANISHED_NOTE_MAX], const char *what, int64_t rank, const char *node)
{
    (void)snprintf(text, MU_VANISHED_NOTE_MAX, "%s %" PRId64 " %s", what, rank, node);
}

bool mu_vanished_is_mark(struct mu_slice text, const char *what, int64_t rank)
{
    char start[MU_VANISHED_NOTE_MAX];

    mu_vanished_write_mark(start, what, rank, "");
    return starts_with(text, start);
}

/* ---- Words ---- */

static bool is_lost(const struct mu_vanished_member *member)
{
    return !member->done && !member->waits && member->note != MU_NOTE_LEFT && member->note != MU_NOTE_AGAIN;
}

bool mu_vanished_any_lost(const struct mu_vanished *v)
{
    for (size_t i = 0; i < v->count; i++)
        if (is_lost(&v->members[i]))
            return true;
    return v->unknown > 0;
}

/* Its own; or the one that the rendezvous knows, which says nothing of PyTorch's: they may as well have left. Empty:
 * not known. */
static const char *cause_of(const struct mu_vanished *v, const struct mu_vanished_member *member)
{
    if (member->note == MU_NOTE_LOST)
        return member->why;
    return member->ours ? v->cause : "";
}

/* What is said, and who is named in it. */
struct sentence {
    const struct mu_vanished *vanished;
    struct mu_words words;
    size_t named, more; /* more: those who are only counted */
};

static bool may_name(struct sentence *s)
{
    bool may = s->named < MU_VANISHED_NAMED_MAX;

    s->named += may;
    s->more += !may;
    return may;
}

/* "lost node8, node9: no heartbeat for 15 s": all with the same cause as the one at `first`. */
static void put_lost(struct sentence *s, size_t first)
{
    const struct mu_vanished *v = s->vanished;
    const char *cause = cause_of(v, &v->members[first]);
    const char *before = s->words.len > 0 ? "; lost " : "lost ";
    bool any = false;

    for (size_t i = first; i < v->count; i++) {
        if (!is_lost(&v->members[i]) || strcmp(cause_of(v, &v->members[i]), cause) != 0 || !may_name(s))
            continue;
        mu_words_add(&s->words, "%s%s", any ? ", " : before, v->members[i].name);
        any = true;
    }
    if (any && cause[0] != '\0')
        mu_words_add(&s->words, ": %s", cause);
}

/* Whether one before it is lost by the same cause: then it was named with that one. */
static bool is_named(const struct mu_vanished *v, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (is_lost(&v->members[i]) && strcmp(cause_of(v, &v->members[i]), cause_of(v, &v->members[index])) == 0)
            return true;
    return false;
}

/* Those of whom nothing is known come last. */
static void put_all_lost(struct sentence *s, bool with_cause)
{
    const struct mu_vanished *v = s->vanished;

    for (size_t i = 0; i < v->count; i++)
        if (is_lost(&v->members[i]) && (cause_of(v, &v->members[i])[0] != '\0') == with_cause && !is_named(v, i))
            put_lost(s, i);
}

static void put_left(struct sentence *s)
{
    for (size_t i = 0; i < s->vanished->count; i++) {
        const struct mu_vanished_member *member = &s->vanished->members[i];

        if (!member->done && member->note == MU_NOTE_LEFT && may_name(s))
            mu_words_add(&s->words, "%s%s left (%s)", s->words.len > 0 ? ", " : "", member->name, member->why);
    }
}

/* Nobody has gone for good: what ended the round for the first of them. */
static void put_again(const struct mu_vanished *v, struct mu_words *w)
{
    for (size_t i = 0; i < v->count; i++) {
        if (v->members[i].note == MU_NOTE_AGAIN && v->members[i].why[0] != '\0') {
            mu_words_add(w, "%s", v->members[i].why);
            return;
        }
    }
    for (size_t i = 0; i < v->count; i++) {
        if (!v->members[i].done) {
            mu_words_add(w, "%s waits for the next round", v->members[i].name);
            return;
        }
    }
}

void mu_vanished_say(const struct mu_vanished *v, char *text, size_t room)
{
    struct sentence s = { .vanished = v, .words = mu_words_into(text, room), .more = v->unknown };

    text[0] = '\0';
    put_left(&s);
    put_all_lost(&s, true);
    put_all_lost(&s, false);
    if (s.words.len > 0 && s.more > 0)
        mu_words_add(&s.words, " (and %zu more)", s.more);
    if (s.words.len == 0 && v->unknown == 0)
        put_again(v, &s.words);
    if (s.words.len == 0)
        mu_words_add(&s.words, "lost a node");
}
