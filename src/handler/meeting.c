/* Where the workers of a round with a leader meet. */
#include "handler/meeting.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_ID (UINT64_C(1) << 63) /* in ids of our own requests: the machine counts from 1 */

static bool is_about_port(struct mu_slice key)
{
    static const char name[] = MUSTER_KEY_MASTER_PORT;

    return key.len >= sizeof name - 1 && memcmp(key.data + key.len - (sizeof name - 1), name, sizeof name - 1) == 0;
}

void mu_meeting_see(struct mu_meeting *m, const struct mu_fold_event *event)
{
    bool loaded = event->type == MU_FOLD_ON_LOADED;

    if (event->scope != MU_FOLD_JOB || (!loaded && event->type != MU_FOLD_ON_CHANGED))
        return;
    m->has_master = m->has_master && !loaded; /* all that is there follows */
    for (size_t i = 0; i < event->count; i++) {
        const struct mu_fold_kv *kv = &event->kvs[i];

        if (mu_slice_equal(kv->key, mu_slice_str("job/master")))
            m->has_master = !kv->deleted && mu_fold_master_read(kv->value, &m->master, NULL) == 0;
    }
}

bool mu_meeting_is_known(const struct mu_meeting *m, const struct mu_fold *fold)
{
    const struct mu_fold_world *world = mu_fold_world(fold);

    return m->has_master && world != NULL && m->master.world == world->id;
}

bool mu_meeting_hosts(const struct mu_fold *fold, bool has_store)
{
    return has_store && mu_fold_rank(fold) == 0;
}

struct mu_boot_start mu_meeting_boot_start(const struct mu_fold *fold, char rank0[static MU_NODE_TEXT_MAX])
{
    const struct mu_fold_world *world = mu_fold_world(fold);
    const struct mu_node first = { mu_slice_str(world->first), world->first_pid, world->first_local_id };

    return (struct mu_boot_start){
        .round = world->round,
        .rank = mu_fold_rank(fold),
        .all_ours = true,
        .rank0_ours = true,
        .rank0 = mu_slice_str(mu_node_text(&first, rank0)),
        .elsewhere = !world->one_host,
    };
}

static struct mu_boot_event got(struct mu_meeting *m, uint64_t id, bool port)
{
    (void)snprintf(m->port_text, sizeof m->port_text, "%u", (unsigned)m->master.port);
    return (struct mu_boot_event){ .type = MU_BOOT_ON_GOT,
                                   .id = id,
                                   .value = mu_slice_str(port ? m->port_text : m->master.addr) };
}

bool mu_meeting_answer(struct mu_meeting *m, const struct mu_fold *fold, uint64_t now_ms,
                       struct mu_boot_event *ret_answer)
{
    bool known = mu_meeting_is_known(m, fold);

    if (m->get_id == 0 || (!known && now_ms < m->get_until_ms))
        return false;
    *ret_answer =
        known ? got(m, m->get_id, m->get_port) : (struct mu_boot_event){ .type = MU_BOOT_ON_MISSING, .id = m->get_id };
    m->get_id = 0;
    return true;
}

uint64_t mu_meeting_deadline_ms(const struct mu_meeting *m)
{
    return m->get_id != 0 ? m->get_until_ms : UINT64_MAX;
}

uint16_t mu_meeting_agents_port(uint16_t of_all_rounds, uint16_t of_this_round)
{
    return of_all_rounds != 0 ? of_all_rounds : of_this_round;
}

static enum mu_meeting_reply get(struct mu_meeting *m, const struct mu_fold *fold, const struct mu_boot_effect *effect,
                                 uint64_t now_ms, struct mu_boot_event *ret_answer)
{
    assert(effect->id != 0);
    m->get_id = effect->id;
    m->get_until_ms = now_ms + effect->wait_ms;
    m->get_port = is_about_port(effect->key);
    if (!mu_meeting_is_known(m, fold))
        return MU_MEETING_WAIT;
    m->get_id = 0;
    *ret_answer = got(m, effect->id, m->get_port);
    return MU_MEETING_ANSWER;
}

static enum mu_meeting_reply set(struct mu_meeting *m, const struct mu_fold *fold, const struct mu_boot_effect *effect,
                                 uint16_t agents_port, struct mu_boot_event *ret_answer,
                                 struct mu_fold_master *ret_master)
{
    static const struct muster_error no_memory = { .code = MUSTER_ENOMEM, .text = "no memory for a request" };
    const struct mu_fold_world *world = mu_fold_world(fold), *doc = mu_fold_doc(fold);
    int len = (int)effect->value.len;

    *ret_answer = (struct mu_boot_event){ .type = MU_BOOT_ON_SET, .id = effect->id };
    if (!is_about_port(effect->key)) {
        (void)snprintf(m->own_addr, sizeof m->own_addr, "%.*s", len, effect->value.data);
        return MU_MEETING_ANSWER;
    }
    if (world == NULL || doc == NULL || doc->id != world->id || mu_fold_lease(fold) == 0 || agents_port == 0) {
        (void)mu_fail(&m->error, MUSTER_ERDZV_CONNECTION,
                      "at the moment this node has no lease, or the store shows another round");
        *ret_answer = (struct mu_boot_event){ .type = MU_BOOT_ON_REQUEST_FAILED, .id = effect->id, .error = &m->error };
        return MU_MEETING_ANSWER;
    }
    (void)snprintf(m->port_text, sizeof m->port_text, "%.*s", len, effect->value.data);
    m->master = (struct mu_fold_master){ .world = world->id,
                                         .port = (uint16_t)strtoul(m->port_text, NULL, 10),
                                         .agents_port = agents_port };
    memcpy(m->master.addr, m->own_addr, sizeof m->master.addr);
    m->has_master = true;
    *ret_master = m->master;
    *ret_answer = (struct mu_boot_event){ .type = MU_BOOT_ON_REQUEST_FAILED, .id = effect->id, .error = &no_memory };
    return MU_MEETING_PUBLISH;
}

enum mu_meeting_reply mu_meeting_ask(struct mu_meeting *m, const struct mu_fold *fold,
                                     const struct mu_boot_effect *effect, uint16_t agents_port, uint64_t now_ms,
                                     struct mu_boot_event *ret_answer, struct mu_fold_master *ret_master)
{
    if (effect->type == MU_BOOT_DO_GET)
        return get(m, fold, effect, now_ms, ret_answer);
    if (effect->type == MU_BOOT_DO_SET)
        return set(m, fold, effect, agents_port, ret_answer, ret_master);
    assert(effect->type == MU_BOOT_DO_CHECK); /* only where PyTorch is a member */
    *ret_answer = (struct mu_boot_event){ .type = MU_BOOT_ON_FOUND, .id = effect->id };
    return MU_MEETING_ANSWER;
}

struct mu_fold_effect mu_meeting_write(struct mu_meeting *m, const struct mu_fold *fold, uint64_t id,
                                       struct mu_slice value)
{
    m->op = (struct mu_fold_op){ MU_FOLD_PUT, mu_slice_str("job/master"), value, mu_fold_lease(fold) };
    m->write = (struct mu_fold_write){
        .compares = { { MU_FOLD_MOD, mu_slice_str("job/doc"), mu_fold_doc_mod(fold) } },
        .compares_count = 1,
        .ops = &m->op,
        .ops_count = 1,
        .repeatable = true,
    };
    return (struct mu_fold_effect){ .type = MU_FOLD_DO_WRITE, .id = id | OWN_ID, .write = &m->write };
}

bool mu_meeting_published(struct mu_meeting *m, const struct mu_fold_event *event, struct mu_boot_event *ret_answer)
{
    bool wrote = event->type == MU_FOLD_ON_WROTE;

    if ((event->id & OWN_ID) == 0)
        return false;
    assert(wrote || event->type == MU_FOLD_ON_REQUEST_FAILED);
    *ret_answer = (struct mu_boot_event){ .type = MU_BOOT_ON_SET, .id = event->id & ~OWN_ID };
    if (wrote && event->held)
        return true;
    if (wrote)
        (void)mu_fail(&m->error, MUSTER_ERDZV_CONNECTION, "the job has gone on to another round");
    ret_answer->type = MU_BOOT_ON_REQUEST_FAILED;
    ret_answer->error = wrote ? &m->error : event->error;
    return true;
}
