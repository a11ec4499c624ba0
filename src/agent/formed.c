/* The lines that say who is in a group that has formed. */
#include "agent/formed.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME_SHOWN_MAX = 40 }; /* bytes of a node's name in a list */

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
