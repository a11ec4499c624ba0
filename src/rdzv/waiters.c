/* Who waits for a round, for people. */
#include "rdzv/waiters.h"

#include "base/words.h"

#include <inttypes.h>
#include <stdio.h>

enum { NAME_SHOWN_MAX = 64, ID_SHOWN_MAX = 64 }; /* bytes of what others chose */

/* ---- When ---- */

/* A second before each line that tells of the wait, and before its end, and once before all of these: what this look
 * leaves behind, others see in the next one. */
uint64_t mu_waiters_next_ms(uint64_t waited_ms, uint64_t join_ms)
{
    static const uint64_t first[] = { MU_WAITERS_FIRST_MS, 4000, 9000, 19000, 39000, 59000 };
    const uint64_t then = 60000, before = 1000;
    uint64_t next_ms = ((waited_ms + before) / then + 1) * then - before;

    for (size_t i = sizeof first / sizeof first[0]; i-- > 0;)
        if (waited_ms < first[i])
            next_ms = first[i];
    if (join_ms / 2 < next_ms && waited_ms < join_ms / 2 && join_ms / 2 < MU_WAITERS_FIRST_MS)
        next_ms = join_ms / 2; /* a wait so short has no other time */
    if (join_ms >= MU_WAITERS_FIRST_MS + before && waited_ms < join_ms - before && join_ms - before < next_ms)
        next_ms = join_ms - before;
    return next_ms;
}

/* ---- What ---- */

struct limits {
    int64_t nodes_min, nodes_max;
};

static struct limits limits_of(const struct mu_fold_record *record)
{
    return (struct limits){ record->nodes_min, record->nodes_max };
}

/* What both allow; it contradicts itself if there is nothing. */
static struct limits both(struct limits a, struct limits b)
{
    return (struct limits){ a.nodes_min > b.nodes_min ? a.nodes_min : b.nodes_min,
                            a.nodes_max < b.nodes_max ? a.nodes_max : b.nodes_max };
}

static bool go_together(struct limits a, struct limits b)
{
    struct limits allowed = both(a, b);

    return allowed.nodes_min <= allowed.nodes_max;
}

static void add_limits(struct mu_words *words, struct limits limits)
{
    mu_words_add(words, "--nnodes %" PRId64, limits.nodes_min);
    if (limits.nodes_max != limits.nodes_min)
        mu_words_add(words, ":%" PRId64, limits.nodes_max);
}

/* One node is named for all that have the same limits. */
static bool is_said(const struct mu_waiters_item *items, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (items[i].id != 0 && items[i].record.nodes_min == items[at].record.nodes_min &&
            items[i].record.nodes_max == items[at].record.nodes_max)
            return true;
    return false;
}

/* Records that a node wrote under an older lease are there for a while. */
static bool is_newest(const struct mu_waiters_item *items, size_t count, size_t at)
{
    for (size_t i = 0; i < count; i++)
        if (items[i].id == items[at].id && items[i].record.seq > items[at].record.seq)
            return false;
    return true;
}

/* As the leader lets them in: who contradicts those that are in, or have come before it, has not come. */
static void see_names(struct mu_waiters *crowd, const struct mu_waiters_item *items, size_t count)
{
    struct limits all = { 0, INT64_MAX };

    for (size_t i = 0; i < count; i++)
        if (items[i].id != 0 && !items[i].record.joining && is_newest(items, count, i))
            all = both(all, limits_of(&items[i].record));
    crowd->count = 0;
    for (size_t i = 0; i < count && crowd->count < MU_WAITERS_NAMES_MAX; i++) {
        const struct mu_fold_record *record = &items[i].record;
        size_t at = crowd->count;

        if (items[i].id == 0 || !record->joining || !is_newest(items, count, i))
            continue;
        if (!crowd->any_limits && !go_together(all, limits_of(record)))
            continue;
        all = both(all, limits_of(record));
        memcpy(crowd->names[at], record->name, sizeof crowd->names[at]);
        crowd->nodes[at] = (struct mu_node){ mu_slice_str(crowd->names[at]), record->pid, record->local_id };
        crowd->count++;
    }
}

static bool is_apart(const struct mu_waiters *crowd, struct limits ours, struct limits theirs)
{
    bool same = ours.nodes_min == theirs.nodes_min && ours.nodes_max == theirs.nodes_max;

    return crowd->any_limits ? !same : !go_together(ours, theirs);
}

/* Also those that are in a round which runs: they are why this node gets no place. */
static void see_apart(struct mu_waiters *crowd, const struct mu_fold_record *own, const struct mu_waiters_item *items,
                      size_t count)
{
    struct mu_words words = { crowd->apart, sizeof crowd->apart, 0 };
    char name[NAME_SHOWN_MAX + 1];
    size_t clauses = 0;

    crowd->apart[0] = '\0';
    for (size_t i = 0; i < count && clauses < MU_WAITERS_CLAUSES_MAX; i++) {
        struct limits theirs = limits_of(&items[i].record);

        if (items[i].id == 0 || !is_apart(crowd, limits_of(own), theirs) || is_said(items, i))
            continue;
        mu_words_add(&words, "%s%s was started with ", clauses++ > 0 ? "; " : "",
                     mu_words_plain(mu_slice_str(items[i].record.name), name, sizeof name));
        add_limits(&words, theirs);
        mu_words_add(&words, ", this node with ");
        add_limits(&words, limits_of(own));
    }
}

static bool is_same_rdzv(const struct mu_waiters_item *a, const struct mu_waiters_item *b)
{
    return a->id == 0 && b->id == 0 && mu_slice_equal(a->run_id, b->run_id);
}

/* One node is named for all of a rendezvous. */
static bool is_rdzv_said(const struct mu_waiters_item *items, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (is_same_rdzv(&items[i], &items[at]))
            return true;
    return false;
}

static void see_others(struct mu_waiters *crowd, const struct mu_waiters_item *items, size_t count)
{
    struct mu_words words = { crowd->others, sizeof crowd->others, 0 };
    char name[NAME_SHOWN_MAX + 1], id[ID_SHOWN_MAX + 1];
    size_t clauses = 0;

    crowd->others[0] = '\0';
    for (size_t i = 0; i < count && clauses < MU_WAITERS_CLAUSES_MAX; i++) {
        if (items[i].id != 0 || is_rdzv_said(items, i))
            continue;
        mu_words_add(&words, "%s%s waits at the same endpoint for rendezvous '%s'", clauses++ > 0 ? "; " : "",
                     mu_words_plain(mu_slice_str(items[i].record.name), name, sizeof name),
                     mu_words_plain(items[i].run_id, id, sizeof id));
    }
}

static bool is_same(const struct mu_waiters *a, const struct mu_waiters *b)
{
    bool same = a->count == b->count && strcmp(a->apart, b->apart) == 0 && strcmp(a->others, b->others) == 0;

    for (size_t i = 0; same && i < a->count; i++)
        same = strcmp(a->names[i], b->names[i]) == 0 && a->nodes[i].pid == b->nodes[i].pid;
    return same;
}

bool mu_waiters_see(struct mu_waiters *crowd, const struct mu_fold_record *own, const struct mu_waiters_item *items,
                    size_t count)
{
    struct mu_waiters before = *crowd;

    see_names(crowd, items, count);
    see_apart(crowd, own, items, count);
    see_others(crowd, items, count);
    return !is_same(&before, crowd);
}

const char *mu_waiters_note(const struct mu_waiters *crowd, char note[static MU_WAITERS_NOTE_MAX])
{
    bool two = crowd->apart[0] != '\0' && crowd->others[0] != '\0';

    (void)snprintf(note, MU_WAITERS_NOTE_MAX, "%s%s%s", crowd->apart, two ? "; " : "", crowd->others);
    return note[0] != '\0' ? note : NULL;
}
