/* Where the workers of an etcd-v3 round meet. */
#include "handler/meeting.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_about_port(struct mu_slice key)
{
    static const char name[] = MUSTER_KEY_MASTER_PORT;

    return key.len >= sizeof name - 1 && memcmp(key.data + key.len - (sizeof name - 1), name, sizeof name - 1) == 0;
}

void mu_meeting_see(struct mu_meeting *m, const struct mu_fold_kv *kv)
{
    m->has_master = !kv->deleted && mu_fold_master_read(kv->value, &m->master, NULL) == 0;
}

bool mu_meeting_is_known(const struct mu_meeting *m, const struct mu_fold *fold)
{
    const struct mu_fold_world *world = mu_fold_world(fold);

    return m->has_master && world != NULL && m->master.world == world->id;
}

static struct mu_boot_event got(struct mu_meeting *m, uint64_t id, bool port)
{
    (void)snprintf(m->port_text, sizeof m->port_text, "%u", (unsigned)m->master.port);
    return (struct mu_boot_event){ .type = MU_BOOT_ON_GOT,
                                   .id = id,
                                   .value = mu_slice_str(port ? m->port_text : m->master.addr) };
}

bool mu_meeting_get(struct mu_meeting *m, const struct mu_fold *fold, const struct mu_boot_effect *effect,
                    uint64_t now_ms, struct mu_boot_event *ret_event)
{
    bool known = mu_meeting_is_known(m, fold);

    assert(effect->id != 0);
    m->get_id = known ? 0 : effect->id;
    m->get_until_ms = now_ms + effect->wait_ms;
    m->get_port = is_about_port(effect->key);
    if (known)
        *ret_event = got(m, effect->id, m->get_port);
    return known;
}

bool mu_meeting_answer(struct mu_meeting *m, const struct mu_fold *fold, uint64_t now_ms,
                       struct mu_boot_event *ret_event)
{
    bool known = mu_meeting_is_known(m, fold);

    if (m->get_id == 0 || (!known && now_ms < m->get_until_ms))
        return false;
    *ret_event =
        known ? got(m, m->get_id, m->get_port) : (struct mu_boot_event){ .type = MU_BOOT_ON_MISSING, .id = m->get_id };
    m->get_id = 0;
    return true;
}

uint64_t mu_meeting_deadline_ms(const struct mu_meeting *m)
{
    return m->get_id != 0 ? m->get_until_ms : UINT64_MAX;
}

int mu_meeting_set(struct mu_meeting *m, const struct mu_fold *fold, const struct mu_boot_effect *effect,
                   uint16_t agents_port, struct mu_fold_master *ret_master, struct muster_error *reterr)
{
    const struct mu_fold_world *world = mu_fold_world(fold), *doc = mu_fold_doc(fold);

    if (!is_about_port(effect->key)) {
        (void)snprintf(m->own_addr, sizeof m->own_addr, "%.*s", (int)effect->value.len, effect->value.data);
        return 0;
    }
    if (world == NULL || doc == NULL || doc->id != world->id || mu_fold_lease(fold) == 0 || agents_port == 0)
        return mu_fail(reterr, MUSTER_ERDZV_CONNECTION, "the round is not in etcd at the moment");
    (void)snprintf(m->port_text, sizeof m->port_text, "%.*s", (int)effect->value.len, effect->value.data);
    *ret_master = (struct mu_fold_master){ .world = world->id,
                                           .port = (uint16_t)strtoul(m->port_text, NULL, 10),
                                           .agents_port = agents_port };
    memcpy(ret_master->addr, m->own_addr, sizeof ret_master->addr);
    return 1;
}

void mu_meeting_was_set(struct mu_meeting *m, const struct mu_fold_master *master)
{
    m->master = *master;
    m->has_master = true;
}
