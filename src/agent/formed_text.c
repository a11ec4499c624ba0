/* The lines about a group that has formed. */
#include "agent/formed_text.h"

#include "base/words.h"
#include "store/net.h"

#include <assert.h>
#include <inttypes.h>

enum {
    NAME_SHOWN_MAX = 40,  /* bytes of a node's name in a list */
    ROLE_SHOWN_MAX = 200, /* bytes of a role */
};

void mu_formed_say(const struct mu_formed *formed, char line[static MU_FORMED_LINE_MAX])
{
    const struct mu_agent_worker *first = &formed->first;
    int64_t last = first->rank + first->local_world_size - 1;
    struct mu_words w = mu_words_into(line, MU_FORMED_LINE_MAX);

    assert(first->local_world_size > 0); /* ranks may be what a PyTorch agent has assigned: they are not judged here */
    mu_words_add(&w, "group formed: %" PRId64 " node%s, %" PRId64 " worker%s", first->group_world_size,
                 first->group_world_size == 1 ? "" : "s", first->world_size, first->world_size == 1 ? "" : "s");
    if (formed->round >= 0)
        mu_words_add(&w, ", round %" PRId64, formed->round);
    mu_words_add(&w, "; this node: rank %" PRId64, first->group_rank);
    if (first->local_world_size == 1)
        mu_words_add(&w, " (worker %" PRId64 ")", last);
    else
        mu_words_add(&w, " (workers %" PRId64 "-%" PRId64 ")", first->rank, last);
    if (first->master_addr[0] != '\0') {
        char endpoint[MU_ENDPOINT_MAX];

        mu_words_add(&w, "; master %s", mu_endpoint_format(first->master_addr, first->master_port, endpoint));
    }
    if (formed->regroup_ms >= 0)
        mu_words_add(&w, "; regrouped in %" PRId64 ".%03" PRId64 " s, restarts used: %" PRId64 " of %" PRId64,
                     formed->regroup_ms / 1000, formed->regroup_ms % 1000, formed->restarts_used, formed->max_restarts);
}

/* "  global_ranks=[16, 17, 18]": as many values as this node has workers, each `step` above the one before. */
static void add_list(struct mu_words *w, const char *name, int64_t first, int64_t step, int64_t count)
{
    int64_t shown = count <= MU_FORMED_RANKS_SHOWN ? count : 3;

    mu_words_add(w, "  %s=[", name);
    for (int64_t i = 0; i < shown; i++)
        mu_words_add(w, "%s%" PRId64, i > 0 ? ", " : "", first + i * step);
    if (shown < count)
        mu_words_add(w, ", ..., %" PRId64, first + (count - 1) * step);
    mu_words_add(w, "]");
}

bool mu_formed_say_result(const struct mu_formed *formed, unsigned index, char line[static MU_FORMED_LINE_MAX])
{
    const struct mu_agent_worker *first = &formed->first;
    const struct {
        const char *name;
        enum { NUMBER, TEXT, LIST } kind;
        const char *text;
        int64_t first, step;
    } rows[] = {
        { "restart_count", NUMBER, NULL, first->restart_count, 0 },
        { "master_addr", TEXT, first->master_addr, 0, 0 },
        { "master_port", NUMBER, NULL, first->master_port, 0 },
        { "group_rank", NUMBER, NULL, first->group_rank, 0 },
        { "group_world_size", NUMBER, NULL, first->group_world_size, 0 },
        { "local_ranks", LIST, NULL, 0, 1 },
        { "role_ranks", LIST, NULL, first->role_rank, 1 },
        { "global_ranks", LIST, NULL, first->rank, 1 },
        { "role_world_sizes", LIST, NULL, first->role_world_size, 0 },
        { "global_world_sizes", LIST, NULL, first->world_size, 0 },
        { "event_log_handler", TEXT, formed->event_log_handler, 0, 0 },
    };
    size_t row = index - 1, count = sizeof rows / sizeof rows[0] - (formed->event_log_handler == NULL);
    struct mu_words w = mu_words_into(line, MU_FORMED_LINE_MAX);

    if (index == 0)
        mu_words_add(&w, "[%.*s] Rendezvous complete for workers. Result:", ROLE_SHOWN_MAX, formed->role);
    else if (row >= count)
        return false;
    else if (rows[row].kind == TEXT)
        mu_words_add(&w, "  %s=%s", rows[row].name, rows[row].text);
    else if (rows[row].kind == NUMBER)
        mu_words_add(&w, "  %s=%" PRId64, rows[row].name, rows[row].first);
    else
        add_list(&w, rows[row].name, rows[row].first, rows[row].step, first->local_world_size);
    return true;
}

size_t mu_formed_say_members(int64_t round, const struct muster_node *nodes, size_t count, size_t first,
                             char line[static MU_FORMED_LINE_MAX])
{
    size_t end = first + MU_FORMED_MEMBERS_A_LINE < count ? first + MU_FORMED_MEMBERS_A_LINE : count;
    struct mu_words w = mu_words_into(line, MU_FORMED_LINE_MAX);

    assert(first < count);
    if (round >= 0)
        mu_words_add(&w, "round %" PRId64 ", ", round);
    if (end - first == 1)
        mu_words_add(&w, "rank %zu: ", first);
    else
        mu_words_add(&w, "ranks %zu-%zu: ", first, end - 1);
    for (size_t i = first; i < end; i++) {
        mu_words_add(&w, "%s%.*s", i > first ? ", " : "", NAME_SHOWN_MAX, nodes[i].name);
        if (nodes[i].pid >= 0)
            mu_words_add(&w, " (pid %" PRId64 ")", nodes[i].pid);
    }
    return end;
}
