/* Who has vanished from a round, and in which words. See vanished.h. */
#include "agent/vanished.h"

#include "base/words.h"

#include <inttypes.h>
#include <stdio.h>
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

void mu_vanished_add(struct mu_vanished *v, int64_t rank, const char *name, bool ours, bool waits)
{
    struct mu_vanished_member *member;

    for (size_t i = 0; i < v->count; i++)
        if (v->members[i].rank == rank && strcmp(v->members[i].name, name) == 0)
            return;
    if (v->count == MU_VANISHED_NAMED_MAX) {
        v->unnamed++;
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

void mu_vanished_write_mark(char text[static MU_VANISHED_NOTE_MAX], int64_t rank, const char *node)
{
    (void)snprintf(text, MU_VANISHED_NOTE_MAX, "done %" PRId64 " %s", rank, node);
}

bool mu_vanished_is_mark(struct mu_slice text, int64_t rank)
{
    char start[MU_VANISHED_NOTE_MAX];

    mu_vanished_write_mark(start, rank, "");
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
    return false;
}

/* Its own; or the one that the rendezvous knows, which says nothing of PyTorch's: they may as well have left. Empty:
 * not known. */
static const char *cause_of(const struct mu_vanished *v, const struct mu_vanished_member *member)
{
    if (member->note == MU_NOTE_LOST)
        return member->why;
    return member->ours ? v->cause : "";
}

/* "lost node8, node9: no heartbeat for 15 s": all with the same cause as the one at `first`. */
static void put_lost(const struct mu_vanished *v, size_t first, struct mu_words *w)
{
    const char *cause = cause_of(v, &v->members[first]);

    for (size_t i = first; i < v->count; i++) {
        if (!is_lost(&v->members[i]) || strcmp(cause_of(v, &v->members[i]), cause) != 0)
            continue;
        mu_words_add(w, "%s%s", i > first ? ", " : w->len > 0 ? "; lost " : "lost ", v->members[i].name);
    }
    if (cause[0] != '\0')
        mu_words_add(w, ": %s", cause);
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
static void put_all_lost(const struct mu_vanished *v, bool with_cause, struct mu_words *w)
{
    for (size_t i = 0; i < v->count; i++)
        if (is_lost(&v->members[i]) && (cause_of(v, &v->members[i])[0] != '\0') == with_cause && !is_named(v, i))
            put_lost(v, i, w);
}

static void put_left(const struct mu_vanished *v, struct mu_words *w)
{
    for (size_t i = 0; i < v->count; i++) {
        const struct mu_vanished_member *member = &v->members[i];

        if (!member->done && member->note == MU_NOTE_LEFT)
            mu_words_add(w, "%s%s left (%s)", w->len > 0 ? ", " : "", member->name, member->why);
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
    struct mu_words w = mu_words_into(text, room);

    text[0] = '\0';
    put_left(v, &w);
    put_all_lost(v, true, &w);
    put_all_lost(v, false, &w);
    if (v->unnamed > 0 && w.len > 0)
        mu_words_add(&w, " (and %zu more)", v->unnamed);
    if (w.len == 0)
        put_again(v, &w);
    if (w.len == 0)
        mu_words_add(&w, "lost a node");
}
