/* The classic etcd rendezvous: requests, answers and rounds. */
#include "handler/etcd.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Requests and answers ---- */

struct mu_etcd2_request mu_etcd_request(const struct mu_classic_request *from)
{
    static const enum mu_etcd2_kind kinds[] = { [MU_CLASSIC_GET] = MU_ETCD2_GET,
                                                [MU_CLASSIC_PUT] = MU_ETCD2_PUT,
                                                [MU_CLASSIC_DELETE] = MU_ETCD2_DELETE,
                                                [MU_CLASSIC_WATCH] = MU_ETCD2_WATCH };

    return (struct mu_etcd2_request){
        .kind = kinds[from->kind],
        .key = from->key,
        .recursive = from->recursive,
        .quorum = from->kind == MU_CLASSIC_GET,
        .dir = from->dir,
        .refresh = from->refresh,
        .has_value = from->has_value,
        .value = from->value.len > 0 ? from->value : mu_slice_str(""),
        .ttl_s = from->ttl_s,
        .prev_exist = from->must_exist       ? MU_ETCD2_MUST
                      : from->must_not_exist ? MU_ETCD2_MUST_NOT
                                             : MU_ETCD2_ANY,
        .prev_index = from->prev_index,
        .has_prev_value = from->has_prev_value,
        .prev_value = from->prev_value,
        .wait_index = from->wait_index,
        .once = from->once,
    };
}

/* What is in the directory that was read. False: no memory. */
static bool take_children(const struct mu_etcd2_answer *answer, struct mu_classic_event *event)
{
    struct mu_classic_node *nodes = calloc(answer->nodes_count + 1, sizeof *nodes);

    event->nodes = nodes;
    for (size_t i = 1; nodes != NULL && i < answer->nodes_count; i++)
        if (answer->nodes[i].depth == 1)
            nodes[event->nodes_count++] = (struct mu_classic_node){ answer->nodes[i].key, answer->nodes[i].value };
    return nodes != NULL;
}

struct mu_classic_event mu_etcd_answer(uint64_t id, enum mu_etcd2_kind asked, int rc, bool unsure,
                                       const struct mu_etcd2_answer *answer, const struct muster_error *error)
{
    static const struct muster_error no_memory = { .code = MUSTER_ENOMEM, .text = "no memory for an answer of etcd" };
    struct mu_classic_event event = { .type = MU_CLASSIC_ON_ANSWER, .id = id, .index = answer->index };

    if (rc < 0 || answer->code != 0) {
        event.code = rc < 0 ? rc : answer->code;
        event.unsure = rc < 0 && unsure;
        event.error = error;
    } else if (answer->nodes_count > 0) {
        event.value = answer->nodes[0].value;
        event.key = answer->nodes[0].key;
        event.modified = answer->nodes[0].modified;
        if (!take_children(answer, &event)) { /* what was written is written */
            event.code = MUSTER_ENOMEM;
            event.unsure = asked == MU_ETCD2_PUT || asked == MU_ETCD2_DELETE;
            event.error = &no_memory;
        }
    }
    return event;
}

struct mu_classic_event mu_etcd_no_memory(uint64_t id)
{
    static const struct muster_error error = { .code = MUSTER_ENOMEM, .text = "no memory for a request to etcd" };

    return (struct mu_classic_event){ .type = MU_CLASSIC_ON_ANSWER, .id = id, .code = error.code, .error = &error };
}

void mu_etcd_event_done(struct mu_classic_event *event)
{
    free((void *)event->nodes);
    *event = (struct mu_classic_event){ .nodes = NULL };
}

/* ---- Rounds ---- */

struct mu_etcd_member mu_etcd_member(const struct mu_classic_world *world, size_t rank)
{
    struct mu_etcd_member member = { .pid = -1, .local_id = -1 };
    struct mu_node node;

    if (world->marks[rank] == NULL || !mu_node_read(mu_slice_str(world->marks[rank]), &node)) {
        (void)snprintf(member.name, sizeof member.name, "PyTorch's rank %zu", rank);
        return member;
    }
    (void)snprintf(member.name, sizeof member.name, "%.*s", (int)node.name.len, node.name.data);
    member.pid = node.pid;
    member.local_id = node.local_id;
    return member;
}

bool mu_etcd_is_old(const struct mu_classic_world *world, bool old_dialect)
{
    return old_dialect && !world->all_ours;
}

struct mu_boot_start mu_etcd_boot_start(const struct mu_classic_world *world, bool old_dialect, const char *own_name,
                                        struct mu_etcd_member *rank0)
{
    bool rank0_ours = world->marks[0] != NULL, old = mu_etcd_is_old(world, old_dialect);
    struct mu_boot_start start = {
        .round = world->version,
        .rank = world->rank,
        .all_ours = world->all_ours,
        /* PyTorch's store of a version is new: it has no earlier pair to keep to. Only 1.13 publishes later. */
        .rank0_ours = rank0_ours || !old,
        .old_dialect = old && !rank0_ours,
    };

    *rank0 = mu_etcd_member(world, 0);
    start.rank0 = mu_slice_str(rank0->name);
    for (size_t i = 0; i < world->count; i++)
        start.elsewhere |= strcmp(mu_etcd_member(world, i).name, own_name) != 0;
    return start;
}
