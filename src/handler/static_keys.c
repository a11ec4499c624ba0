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

/* As clients name it: the store puts the first "/" in front. */
static struct muster_slice client_key(const struct mu_static *m, enum mu_static_key what, int64_t number,
                                      struct mu_static_call_texts *texts)
{
    struct mu_slice key = mu_static_key(m->place, what, number, texts->key);

    return (struct muster_slice){ key.data + 1, key.len - 1 };
}

struct mu_call mu_static_call(const struct mu_static *m, const struct mu_static_effect *effect,
                              struct mu_static_call_texts *texts)
{
    struct mu_call call = { .kind = MU_CALL_GET };

    switch (effect->call) {
    case MU_STATIC_CALL_CHECK_HOST:
        texts->keys[0] = client_key(m, MU_STATIC_KEY_HOST, -1, texts);
        return (struct mu_call){ .kind = MU_CALL_CHECK, .keys = texts->keys, .count = 1 };
    case MU_STATIC_CALL_ANNOUNCE:
        (void)snprintf(texts->value, sizeof texts->value, "%" PRId64 " %s", m->place->rank, m->record);
        return (struct mu_call){ .kind = MU_CALL_SET,
                                 .key = client_key(m, MU_STATIC_KEY_ANNOUNCE, -1, texts),
                                 .value = muster_str(texts->value) };
    case MU_STATIC_CALL_GOODBYE:
        return (struct mu_call){ .kind = MU_CALL_SET,
                                 .key = client_key(m, MU_STATIC_KEY_ANNOUNCE, -1, texts),
                                 .value = muster_str("left") };
    case MU_STATIC_CALL_CLAIM:
        return (struct mu_call){ .kind = MU_CALL_COMPARE_SET,
                                 .key = client_key(m, MU_STATIC_KEY_NODE, m->place->rank, texts),
                                 .value = muster_str(""),
                                 .desired = muster_str(m->record) };
    case MU_STATIC_CALL_COUNT:
        (void)mu_static_key(m->place, MU_STATIC_KEY_COUNT, -1, texts->key);
        return (struct mu_call){ .kind = MU_CALL_ADD, .key = muster_str(texts->key), .number = 1, .raw_key = true };
    case MU_STATIC_CALL_GET_RANK_0:
        call.key = client_key(m, MU_STATIC_KEY_NODE, 0, texts);
        break;
    case MU_STATIC_CALL_GET_PROGRESS:
        call.key = client_key(m, MU_STATIC_KEY_PROGRESS, effect->number, texts);
        break;
    case MU_STATIC_CALL_GET_LOST:
        call.key = client_key(m, MU_STATIC_KEY_LOST, -1, texts);
        break;
    }
    return call;
}

/* ---- What the owner is told ---- */

void mu_static_tell(const struct mu_static *m, const struct mu_static_effect *effect, uint64_t now_ms,
                    muster_rdzv_listener *listener, void *ctx)
{
    const struct muster_rdzv_progress progress = { .joined = m->progress.joined,
                                                   .min_nodes = m->place->world_size,
                                                   .max_nodes = m->place->world_size,
                                                   .last_call_left_ms = -1,
                                                   .join_left_ms = (int64_t)mu_static_left_ms(m, now_ms) };
    const struct muster_rdzv_info info = mu_static_info(m->place, NULL);
    struct muster_rdzv_event event = { .size = sizeof event, .type = effect->tell, .round = -1 };

    if (effect->tell == MUSTER_RDZV_PROGRESS) {
        event.progress = &progress;
        event.nodes = m->progress.nodes;
        event.nodes_count = m->progress.nodes_count;
    } else if (effect->tell == MUSTER_RDZV_JOINED) {
        event.info = &info;
        event.old_dialect = m->place->old_dialect;
    } else if (effect->tell == MUSTER_RDZV_FAILED) {
        event.request = effect->request;
        event.error = &m->error;
    }
    listener(ctx, &event);
}
