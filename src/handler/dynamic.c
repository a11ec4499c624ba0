/* What a dynamic handler makes of the document and of a round. */
#include "handler/dynamic.h"

#include "kv/kv.h"
#include "rdzv/pickle.h"
#include "rdzv/round_keys.h"

#include <assert.h>

static uint64_t timeout_ms(const struct mu_rdzv_effect *effect, const struct mu_dynamic_config *config)
{
    uint64_t most_ms = 2 * config->settings.heartbeat_ms; /* a silent store is to be noticed before others miss us */

    if (effect->type == MU_RDZV_DO_PARK)
        return MU_DYNAMIC_PARK_MS;
    if (effect->type == MU_RDZV_DO_TURN_WAIT)
        return effect->wait_ms > 0 ? effect->wait_ms : 1;
    return most_ms < config->request_timeout_ms ? most_ms : config->request_timeout_ms;
}

enum mu_rdzv_event_type mu_dynamic_ask(const struct mu_rdzv_effect *effect, const struct mu_dynamic_config *config,
                                       struct mu_kv_request *request)
{
    static const struct {
        enum mu_kv_kind kind;
        enum mu_rdzv_event_type answer;
    } requests[] = {
        [MU_RDZV_DO_READ] = { MU_KV_READ, MU_RDZV_STATE },
        [MU_RDZV_DO_WRITE] = { MU_KV_WRITE, MU_RDZV_WRITTEN },
        [MU_RDZV_DO_RING] = { .kind = MU_KV_RING }, /* no answer is wanted */
        [MU_RDZV_DO_PARK] = { MU_KV_PARK, MU_RDZV_RUNG },
        [MU_RDZV_DO_TURN_TAKE] = { MU_KV_TURN_TAKE, MU_RDZV_TURN },
        [MU_RDZV_DO_TURN_WAIT] = { MU_KV_TURN_WAIT, MU_RDZV_TURN_CAME },
        [MU_RDZV_DO_TURN_GIVE] = { .kind = MU_KV_TURN_GIVE }, /* the same */
        [MU_RDZV_DO_SETTLE] = { MU_KV_SETTLE, MU_RDZV_SETTLED },
    };

    request->kind = requests[effect->type].kind;
    request->has_token = effect->has_token;
    request->number = effect->type == MU_RDZV_DO_PARK     ? effect->bell
                      : effect->type == MU_RDZV_DO_SETTLE ? effect->round
                                                          : effect->turn;
    request->timeout_ms = timeout_ms(effect, config);
    request->held_ms = effect->type == MU_RDZV_DO_READ ? effect->wait_ms : 0;
    return requests[effect->type].answer;
}

struct mu_rdzv_event mu_dynamic_answer(uint64_t id, enum mu_rdzv_event_type type, const struct mu_kv_request *request)
{
    if (request->rc < 0)
        return (struct mu_rdzv_event){
            .type = MU_RDZV_REQUEST_FAILED, .id = id, .error = &request->error, .gone = request->gone
        };
    return (struct mu_rdzv_event){ .type = type,
                                   .id = id,
                                   .found = request->found,
                                   .written = request->written,
                                   .error = request->foreign ? &request->error : NULL,
                                   .bytes = mu_slice(request->bytes.data, request->bytes.len),
                                   .token = mu_slice(request->state_token.data, request->state_token.len),
                                   .bell = request->number,
                                   .turn = request->number,
                                   .turns_done = request->done_count };
}

struct mu_rdzv_event mu_dynamic_no_memory(uint64_t id)
{
    static const struct muster_error error = { .code = MUSTER_ENOMEM, .text = "no memory for a request to the store" };

    return (struct mu_rdzv_event){ .type = MU_RDZV_REQUEST_FAILED, .id = id, .error = &error };
}

enum mu_inquiry_event_type mu_dynamic_inquire(enum mu_inquiry_effect_type type, const struct mu_dynamic_config *config,
                                              struct mu_kv_request *request)
{
    request->timeout_ms = config->request_timeout_ms;
    if (type == MU_INQUIRY_DO_ASK_HOST) {
        request->kind = MU_KV_HOST;
        return MU_INQUIRY_ON_HOST;
    }
    request->kind = MU_KV_COMPARE_SET;
    request->key = muster_str(MU_NOTICE_BOARD_KEY);
    return type == MU_INQUIRY_DO_WRITE_BOARD ? MU_INQUIRY_ON_BOARD : MU_INQUIRY_ON_LEFT_BOARD;
}

uint64_t mu_dynamic_find_ms(const struct mu_dynamic_config *config)
{
    uint64_t join_ms = config->settings.join_ms;

    return config->request_timeout_ms < join_ms ? config->request_timeout_ms : join_ms;
}

bool mu_dynamic_is_there(int rc, struct muster_error *error)
{
    if (rc == 0 || rc == MUSTER_ERDZV_STATE) /* what is no document was read all the same */
        return true;
    error->code = MUSTER_ERDZV_CONNECTION;
    return false;
}

size_t mu_dynamic_named(const struct mu_doc *doc, enum muster_rdzv_event_type type,
                        struct mu_node nodes[static MU_DYNAMIC_NAMED_MAX])
{
    bool waiting = type == MUSTER_RDZV_WAITING;
    unsigned in = waiting ? MU_DOC_WAITING : MU_DOC_PARTICIPANT;
    size_t count = 0, most = waiting ? MU_DYNAMIC_NAMED_MAX / 4 : MU_DYNAMIC_NAMED_MAX;

    for (size_t i = 0; i < doc->count && count < most; i++)
        if ((doc->members[i].in & in) != 0)
            nodes[count++] = doc->members[i].node;
    return count;
}

/* A member that is not in the document any more, and has left no note for the agents, was taken out as dead, by us
 * or by another. One that is in it is lost because the store that it hosts is gone. */
const char *mu_dynamic_sort_lost(const struct mu_doc *doc, struct mu_rdzv_nodes lost, const char *silence,
                                 bool store_refuses, struct mu_node *nodes, size_t *ret_waiting)
{
    size_t gone = 0, waiting = 0;
    bool hosts = false; /* one of them, the store */

    for (size_t i = 0; i < lost.count; i++) {
        hosts |= mu_doc_has(doc, &lost.items[i], MU_DOC_PARTICIPANT);
        if (mu_doc_has(doc, &lost.items[i], MU_DOC_WAITING))
            nodes[lost.count - ++waiting] = lost.items[i];
        else
            nodes[gone++] = lost.items[i];
    }
    assert(gone + waiting == lost.count);
    *ret_waiting = waiting;
    if (!hosts)
        return silence;
    return store_refuses ? "the store that it hosts refuses connections" : "the store that it hosts does not answer";
}

int64_t mu_dynamic_local_id(const struct mu_dynamic_config *config, uint64_t random)
{
    return config->local_id != 0 ? config->local_id : mu_node_local_id(MU_NODE_VERSION, (uint32_t)random);
}

bool mu_dynamic_is_old(const struct mu_rdzv_world *world)
{
    return world->dialect.habits == MU_HABITS_1_13;
}

bool mu_dynamic_shares_store(const struct mu_dynamic_config *config, const struct mu_dynamic_place *place)
{
    return config->use_agent_store && place->store_addr != NULL;
}

struct mu_rdzv_config mu_dynamic_rdzv_config(const struct mu_dynamic_config *config,
                                             const struct mu_dynamic_place *place, const struct mu_node *me,
                                             const struct mu_kv_ops *kv, const uint64_t random[static 3])
{
    return (struct mu_rdzv_config){
        .settings = config->settings,
        .me = *me,
        .endpoint = config->endpoint,
        .dialect = config->dialect,
        .has_bell = kv->has_bell,
        .has_turns = kv->has_turns,
        .has_settle = kv->has_settle,
        .shares_store = mu_dynamic_shares_store(config, place),
        .hash_seed = { random[0], random[1] },
        .seed = random[2],
    };
}

struct mu_inquiry_config mu_dynamic_inquiry_config(const struct mu_dynamic_config *config, const struct mu_node *me,
                                                   const struct mu_kv_ops *kv)
{
    return (struct mu_inquiry_config){ .run_id = config->run_id,
                                       .name = me->name.data,
                                       .nodes_min = config->settings.nodes_min,
                                       .nodes_max = config->settings.nodes_max,
                                       .store_host = config->store_host,
                                       .has_board = kv->is_common };
}

struct mu_boot_config mu_dynamic_boot_config(const struct mu_dynamic_config *config)
{
    return (struct mu_boot_config){
        .run_id = config->run_id,
        .local_addr = config->local_addr,
        .bind = config->bind,
        .master = config->master,
        .use_agent_store = config->use_agent_store,
        .nodes_max = config->settings.nodes_max,
        .at_localhost = config->store_host != NULL && strcmp(config->store_host, "localhost") == 0,
    };
}

struct mu_boot_start mu_dynamic_boot_start(const struct mu_rdzv_world *world, struct mu_slice own_name,
                                           const struct mu_dynamic_config *config, const struct mu_dynamic_place *place,
                                           char rank0[static MU_NODE_TEXT_MAX])
{
    struct mu_boot_start start = {
        .round = world->round,
        .rank = world->rank,
        .tag = mu_round_tag(world->members, world->count),
        .all_ours = world->all_ours,
        .rank0_ours = mu_node_is_ours(&world->members[0]),
        .old_dialect = mu_dynamic_is_old(world),
        .rank0 = mu_slice_str(mu_node_text(&world->members[0], rank0)),
    };

    for (size_t i = 0; i < world->count; i++)
        start.elsewhere |= !mu_slice_equal(world->members[i].name, own_name);
    if (!world->all_ours && world->dialect.habits == MU_HABITS_2_5 && mu_dynamic_shares_store(config, place)) {
        start.met_at = place->store_addr; /* PyTorch 2.5 lets its workers meet there, and so must ours */
        start.met_port = place->store_port;
    }
    return start;
}

/* ---- Parameters ---- */

int mu_dynamic_check_name(const char *local_addr, struct muster_error *reterr)
{
    if (local_addr == NULL || mu_pickle_takes_name(mu_slice_str(local_addr)))
        return 0;
    return mu_fail(reterr, MUSTER_EINVAL, "the local address of %zu bytes is empty, too long or not UTF-8",
                   strlen(local_addr));
}

int mu_dynamic_read_params(const struct muster_rdzv_params *params, struct mu_dynamic_config *config,
                           struct muster_error *reterr)
{
    int rc = mu_rdzv_dialect_from_params(params, &config->dialect, &config->use_agent_store, reterr);

    config->run_id = muster_rdzv_params_run_id(params);
    config->local_addr = muster_rdzv_params_local_addr(params);
    if (rc == 0)
        rc = mu_rdzv_settings_from_params(params, &config->settings, reterr);
    if (rc == 0)
        rc = mu_bind_from_params(params, &config->bind, reterr);
    return rc == 0 ? mu_boot_master_from_params(params, &config->master, reterr) : rc;
}

int mu_dynamic_read_config(const char *backend, const struct muster_rdzv_params *params,
                           struct mu_dynamic_config *ret_config, struct muster_error *reterr)
{
    int rc = mu_rdzv_check_options(backend, params, reterr);

    *ret_config = (struct mu_dynamic_config){ .backend = backend };
    if (rc == 0)
        rc = mu_rdzv_read_timeout_from_params(params, &ret_config->request_timeout_ms, reterr);
    return rc == 0 ? mu_dynamic_read_params(params, ret_config, reterr) : rc;
}
