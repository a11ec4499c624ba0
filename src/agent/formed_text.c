/* The lines about a group that has formed. */
#include "agent/formed_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    NAME_SHOWN_MAX = 40,  /* bytes of a node's name in a list */
    ROLE_SHOWN_MAX = 200, /* bytes of a role */
};

static void add(char line[static MU_FORMED_LINE_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(char line[static MU_FORMED_LINE_MAX], const char *format, ...)
{
    size_t used = strlen(line);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line + used, MU_FORMED_LINE_MAX - used, format, args);
    va_end(args);
}

void mu_formed_say(const struct mu_formed *formed, char line[static MU_FORMED_LINE_MAX])
{
    int64_t last = formed->first_worker + formed->local_workers - 1;

    assert(formed->local_workers > 0); /* ranks may be what a PyTorch agent has assigned: they are not judged here */
    line[0] = '\0';
    add(line, "group formed: %" PRId64 " node%s, %" PRId64 " worker%s", formed->nodes, formed->nodes == 1 ? "" : "s",
        formed->workers, formed->workers == 1 ? "" : "s");
    if (formed->round >= 0)
        add(line, ", round %" PRId64, formed->round);
    add(line, "; this node: rank %" PRId64, formed->rank);
    if (formed->local_workers == 1)
        add(line, " (worker %" PRId64 ")", last);
    else
        add(line, " (workers %" PRId64 "-%" PRId64 ")", formed->first_worker, last);
    if (formed->master_addr[0] != '\0') {
        bool is_v6 = strchr(formed->master_addr, ':') != NULL;

        add(line, "; master %s%s%s:%u", is_v6 ? "[" : "", formed->master_addr, is_v6 ? "]" : "", formed->master_port);
    }
    if (formed->regroup_ms >= 0)
        add(line, "; regrouped in %" PRId64 ".%03" PRId64 " s, restarts used: %" PRId64 " of %" PRId64,
            formed->regroup_ms / 1000, formed->regroup_ms % 1000, formed->restarts, formed->max_restarts);
}

/* "  global_ranks=[16, 17, 18]": as many values as this node has workers, each `step` above the one before. */
static void add_list(char line[static MU_FORMED_LINE_MAX], const char *name, int64_t first, int64_t step, int64_t count)
{
    int64_t shown = count <= MU_FORMED_RANKS_SHOWN ? count : 3;

    add(line, "  %s=[", name);
    for (int64_t i = 0; i < shown; i++)
        add(line, "%s%" PRId64, i > 0 ? ", " : "", first + i * step);
    if (shown < count)
        add(line, ", ..., %" PRId64, first + (count - 1) * step);
    add(line, "]");
}

bool mu_formed_say_result(const struct mu_formed *formed, unsigned index, char line[static MU_FORMED_LINE_MAX])
{
    int64_t count = formed->local_workers;

    line[0] = '\0';
    switch (index) {
    case 0:
        add(line, "[%.*s] Rendezvous complete for workers. Result:", ROLE_SHOWN_MAX, formed->role);
        return true;
    case 1:
        add(line, "  restart_count=%" PRId64, formed->restarts);
        return true;
    case 2:
        add(line, "  master_addr=%s", formed->master_addr);
        return true;
    case 3:
        add(line, "  master_port=%u", formed->master_port);
        return true;
    case 4:
        add(line, "  group_rank=%" PRId64, formed->rank);
        return true;
    case 5:
        add(line, "  group_world_size=%" PRId64, formed->nodes);
        return true;
    case 6:
        add_list(line, "local_ranks", 0, 1, count);
        return true;
    case 7:
        add_list(line, "role_ranks", formed->first_role_rank, 1, count);
        return true;
    case 8:
        add_list(line, "global_ranks", formed->first_worker, 1, count);
        return true;
    case 9:
        add_list(line, "role_world_sizes", formed->role_workers, 0, count);
        return true;
    case 10:
        add_list(line, "global_world_sizes", formed->workers, 0, count);
        return true;
    case 11:
        if (formed->event_log_handler == NULL)
            return false;
        add(line, "  event_log_handler=%s", formed->event_log_handler);
        return true;
    default:
        return false;
    }
}

size_t mu_formed_say_members(int64_t round, const struct muster_node *nodes, size_t count, size_t first,
                             char line[static MU_FORMED_LINE_MAX])
{
    size_t end = first + MU_FORMED_MEMBERS_A_LINE < count ? first + MU_FORMED_MEMBERS_A_LINE : count;

    assert(first < count);
    line[0] = '\0';
    if (round >= 0)
        add(line, "round %" PRId64 ", ", round);
    if (end - first == 1)
        add(line, "rank %zu: ", first);
    else
        add(line, "ranks %zu-%zu: ", first, end - 1);
    for (size_t i = first; i < end; i++) {
        add(line, "%s%.*s", i > first ? ", " : "", NAME_SHOWN_MAX, nodes[i].name);
        if (nodes[i].pid >= 0)
            add(line, " (pid %" PRId64 ")", nodes[i].pid);
    }
    return end;
}
