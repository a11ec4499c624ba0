/* What a static group has in rank 0's store: its keys and values, and the calls that ask for them. Pure. See
 * static_group.h. */
#include "handler/static_group.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

struct mu_slice mu_static_key(const struct mu_static_place *place, enum mu_static_key what, int64_t number,
                              char key[static MU_STATIC_KEY_MAX])
{
    static const struct {
        const char *before, *after; /* the run id */
        bool has_number;
    } rows[] = {
        [MU_STATIC_KEY_MASTER_ADDR] = { "/", "/" MUSTER_KEY_MASTER_ADDR, false },
        [MU_STATIC_KEY_MASTER_PORT] = { "/", "/" MUSTER_KEY_MASTER_PORT, false },
        [MU_STATIC_KEY_HOST] = { "/muster.", "/static/host", false },
        [MU_STATIC_KEY_ANNOUNCE] = { "/muster.", "/static/announce", false },
        [MU_STATIC_KEY_LOST] = { "/muster.", "/static/lost", false },
        [MU_STATIC_KEY_NODE] = { "/muster.", "/static/node", true },
        [MU_STATIC_KEY_PROGRESS] = { "/muster.", "/static/progress", true },
    };
    int len;

    if (what == MU_STATIC_KEY_COUNT)
        len = snprintf(key, MU_STATIC_KEY_MAX, "init/");
    else
        len = snprintf(key, MU_STATIC_KEY_MAX, "%s%s%s", rows[what].before, place->run_id, rows[what].after);
    if (what != MU_STATIC_KEY_COUNT && rows[what].has_number)
        len += snprintf(key + len, MU_STATIC_KEY_MAX - (size_t)len, "/%" PRId64, number);
    assert(len < MU_STATIC_KEY_MAX);
    return mu_slice(key, (size_t)len);
}

/* ---- What rank 0 writes ---- */

size_t mu_static_first_values(const struct mu_static_place *place, struct mu_static_value rows[static MU_STATIC_FIRST])
{
    size_t count = 0;

    rows[count++] = (struct mu_static_value){ .key = MU_STATIC_KEY_HOST, .text = "1" };
    if (!place->old_dialect)
        return count;
    rows[count].key = MU_STATIC_KEY_MASTER_ADDR;
    (void)snprintf(rows[count++].text, sizeof rows->text, "%s", place->host);
    rows[count].key = MU_STATIC_KEY_MASTER_PORT;
    (void)snprintf(rows[count++].text, sizeof rows->text, "%u", (unsigned)place->port);
    assert(count <= MU_STATIC_FIRST);
    return count;
}

/* ---- Calls ---- */

struct mu_call mu_static_call(const struct mu_static *m, const struct mu_static_effect *effect,
                              struct mu_static_call_texts *texts)
{
    struct mu_slice key = mu_static_key(m->place, effect->key, effect->number, texts->key);
    struct mu_call call = { .kind = effect->kind, .raw_key = effect->key == MU_STATIC_KEY_COUNT };
    size_t first = call.raw_key ? 0 : 1; /* the client puts the "/" in front itself */

    texts->keys[0] = (struct muster_slice){ key.data + first, key.len - first };
    call.key = texts->keys[0];
    if (effect->kind == MU_CALL_CHECK) {
        call.keys = texts->keys;
        call.count = 1;
    } else if (effect->kind == MU_CALL_ADD) {
        call.number = 1;
    } else if (effect->kind == MU_CALL_COMPARE_SET) {
        call.value = muster_str("");
        call.desired = muster_str(m->record);
    } else if (effect->type == MU_STATIC_DO_GOODBYE) {
        call.value = muster_str("left");
    } else if (effect->kind == MU_CALL_SET) {
        (void)snprintf(texts->value, sizeof texts->value, "%" PRId64 " %s", m->place->rank, m->record);
        call.value = muster_str(texts->value);
    }
    return call;
}

/* ---- What the owner is told ---- */

struct muster_rdzv_event mu_static_event(const struct mu_static *m, const struct mu_static_effect *effect,
                                         uint64_t now_ms, struct mu_static_told *told)
{
    struct muster_rdzv_event event = { .size = sizeof event, .type = effect->tell, .round = -1 };

    if (effect->tell == MUSTER_RDZV_PROGRESS) {
        told->progress = (struct muster_rdzv_progress){ .joined = m->progress.joined,
                                                        .min_nodes = m->place->world_size,
                                                        .max_nodes = m->place->world_size,
                                                        .last_call_left_ms = -1,
                                                        .join_left_ms = (int64_t)mu_static_left_ms(m, now_ms) };
        event.progress = &told->progress;
        event.nodes = m->progress.nodes;
        event.nodes_count = m->progress.nodes_count;
    } else if (effect->tell == MUSTER_RDZV_JOINED) {
        told->info = mu_static_info(m->place, NULL);
        event.info = &told->info;
        event.old_dialect = m->place->old_dialect;
    } else if (effect->tell == MUSTER_RDZV_FAILED) {
        event.request = effect->request;
        event.error = &m->error;
    }
    return event;
}
