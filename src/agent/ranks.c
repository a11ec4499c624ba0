/* Who is which rank. See the diagram in ranks.h. */
#include "agent/ranks_parts.h"

#include "base/texts.h"

MU_DEFINE_TEXTS(mu_ranks_state_text, enum mu_ranks_state, MU_RANKS_STATES)

/* ---- Making one ---- */

/* The role as JSON text, in quotes. */
static char *json_of(const char *role, struct muster_error *reterr)
{
    json_t *text = json_string(role);
    char *dumped = text == NULL ? NULL : json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    char *copy = NULL;

    if (text == NULL)
        (void)mu_fail(reterr, MUSTER_EINVAL, "the role's name is not UTF-8");
    else if (dumped == NULL || (copy = strdup(dumped)) == NULL)
        (void)mu_fail(reterr, MUSTER_ENOMEM, "no memory for the role's name");
    free(dumped);
    json_decref(text);
    return copy;
}

static int fill(struct mu_ranks *r, const struct mu_ranks_config *config, struct muster_error *reterr)
{
    bool is_full = false;

    r->role_json = json_of(config->role, reterr);
    if (r->role_json == NULL)
        return reterr == NULL ? MUSTER_EINVAL : reterr->code;
    r->prefix_room = strlen(config->run_id) + MU_ROUND_PREFIX_EXTRA;
    r->run_id = mu_arena_text(&r->names, config->run_id, &is_full);
    r->role = mu_arena_text(&r->names, config->role, &is_full);
    r->prefix = mu_arena_alloc(&r->names, r->prefix_room);
    r->job_prefix = mu_arena_alloc(&r->names, r->prefix_room);
    r->own_prefix = mu_arena_alloc(&r->names, r->prefix_room);
    r->last_prefix = mu_arena_alloc(&r->names, r->prefix_room);
    if (is_full || r->prefix == NULL || r->job_prefix == NULL || r->own_prefix == NULL || r->last_prefix == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the assignment of ranks");
    mu_round_job_prefix(r->job_prefix, r->prefix_room, config->run_id);
    return mu_asks_init(&r->asks, r->prefix_room, strlen(r->role_json) + VALUE_EXTRA + MU_SETTLEMENT_JSON_MAX, reterr);
}

int mu_ranks_new(const struct mu_ranks_config *config, struct mu_ranks **ret_ranks, struct muster_error *reterr)
{
    struct mu_ranks *r;
    int rc;

    if (config->local_world_size < 1 || config->local_world_size > MU_RANKS_SIZE_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "%" PRId64 " workers on one node are not possible: 1 to %d are",
                       config->local_world_size, MU_RANKS_SIZE_MAX);
    if (strlen(config->role) > MU_RANKS_ROLE_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "a role's name of %zu bytes is too long", strlen(config->role));
    r = calloc(1, sizeof *r);
    if (r == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the assignment of ranks");
    r->size = config->local_world_size;
    r->identical = config->identical;
    r->timeout_ms = config->timeout_ms == 0 ? MU_RANKS_TIMEOUT_MS : config->timeout_ms;
    r->deadline_ms = r->again_ms = UINT64_MAX;
    rc = fill(r, config, reterr);
    if (rc < 0) {
        mu_ranks_free(r);
        return rc;
    }
    *ret_ranks = r;
    return 0;
}

static void forget_infos(struct mu_ranks *r)
{
    for (size_t i = 0; i < r->roles_count; i++)
        free(r->roles[i].name);
    free(r->roles);
    free(r->infos);
    r->roles = NULL;
    r->infos = NULL;
    r->roles_count = 0;
}

void mu_ranks_free(struct mu_ranks *r)
{
    if (r == NULL)
        return;
    forget_infos(r);
    mu_asks_done(&r->asks);
    free(r->role_json);
    mu_arena_done(&r->names);
    mu_buf_done(&r->budget);
    mu_vanished_done(&r->last.missing);
    free(r);
}

/* Nobody of PyTorch looks: the keys are ours, and so is the count. */
static bool is_private(const struct mu_ranks *r)
{
    return r->start.round >= 0 && r->start.all_ours && r->start.has_store;
}

/* ---- States ---- */

void mu_ranks_enter(struct mu_ranks *r, enum mu_ranks_state state)
{
    bool rank_0 = r->start.rank == 0, own = is_private(r);

    r->state = state;
    switch (state) {
    case MU_RANKS_IDLE:
    case MU_RANKS_DONE:
    case MU_RANKS_FAILED:
        break;
    case MU_RANKS_GATHERING:
        assert(rank_0 || (!own && r->start.old_dialect));
        break;
    case MU_RANKS_COUNTING:
    case MU_RANKS_FIXING:
        assert(rank_0 && own);
        break;
    case MU_RANKS_SETTLING:
        assert(rank_0 && own && r->found.charged);
        break;
    case MU_RANKS_ASSIGNING:
        assert(rank_0 && (own || !r->start.old_dialect));
        break;
    case MU_RANKS_AWAITING:
        assert(!rank_0 && (own || !r->start.old_dialect));
        break;
    case MU_RANKS_AGREEING:
        assert(!own && r->start.old_dialect);
        break;
    case MU_RANKS_MEETING:
        assert(r->start.needs_master);
        break;
    }
}

/* ---- The ends ---- */

struct mu_ranks_effect *mu_ranks_emit(struct mu_ranks *r, enum mu_ranks_effect_type type)
{
    assert(r->out->count < MU_RANKS_EFFECTS_MAX);
    r->out->items[r->out->count] = (struct mu_ranks_effect){ .type = type };
    return &r->out->items[r->out->count++];
}

void mu_ranks_end(struct mu_ranks *r, enum mu_ranks_state state)
{
    mu_ranks_enter(r, state);
    r->deadline_ms = r->again_ms = UINT64_MAX;
    mu_asks_drop(&r->asks);
    forget_infos(r);
}

static void succeed(struct mu_ranks *r)
{
    mu_ranks_emit(r, MU_RANKS_DO_DONE)->result = &r->result;
    mu_ranks_end(r, MU_RANKS_DONE);
}

/* With r->error filled in. */
void mu_ranks_fail(struct mu_ranks *r)
{
    if (r->start.round >= 0)
        (void)mu_wrap(&r->error, r->error.code, "assign ranks in round %" PRId64, r->start.round);
    else
        (void)mu_wrap(&r->error, r->error.code, "assign ranks");
    mu_ranks_emit(r, MU_RANKS_DO_FAIL)->error = &r->error;
    mu_ranks_end(r, MU_RANKS_FAILED);
}

/* With r->text filled in. */
void mu_ranks_again(struct mu_ranks *r)
{
    mu_ranks_emit(r, MU_RANKS_DO_AGAIN)->text = r->text;
    mu_ranks_end(r, MU_RANKS_FAILED);
}

/* Nodes of a static rendezvous do not see each other's versions: they may have waited for keys that the others do not
 * have. */
static const char *advice(const struct mu_ranks *r)
{
    if (r->start.round >= 0)
        return "";
    return r->start.old_dialect
               ? "; all muster nodes need the same option 'dialect'"
               : "; if a node runs PyTorch 2.3 or older, all muster nodes need the option 'dialect' with its version";
}

static void time_is_up(struct mu_ranks *r)
{
    const struct mu_ask_slot *slot = mu_asks_first(&r->asks);
    uint64_t took_ms = r->now_ms - r->start_ms;
    const char *key = slot == NULL ? "" : slot->key;

    if (slot != NULL && slot->last.code != 0 && slot->last.code != MUSTER_ETIMEOUT)
        (void)mu_fail(&r->error, MUSTER_ERDZV_CONNECTION,
                      "%s: gave up '%.300s' after %" PRIu64 ".%" PRIu64 " s: %.500s", mu_ranks_state_text(r->state),
                      key, took_ms / 1000, took_ms % 1000 / 100, slot->last.text);
    else
        (void)mu_fail(&r->error, MUSTER_ETIMEOUT,
                      "%s: '%.300s' of rank %" PRId64 " was not there within %" PRIu64 ".%" PRIu64 " s%s",
                      mu_ranks_state_text(r->state), key, slot == NULL ? r->start.rank : slot->index, took_ms / 1000,
                      took_ms % 1000 / 100, advice(r));
    mu_ranks_fail(r);
}

static void wrong(struct mu_ranks *r, const struct mu_ask_slot *slot, const char *what)
{
    (void)mu_fail(&r->error, MUSTER_EPROTOCOL, "'%.400s' is %s", slot->key, what);
    mu_ranks_fail(r);
}

/* ---- Reading others' values ---- */

static json_t *load(struct mu_slice value)
{
    return value.len > VALUE_MAX ? NULL : json_loadb(value.data, value.len, JSON_REJECT_DUPLICATES, NULL);
}

/* NULL: fine; the name points into `json`. */
static const char *read_info(const json_t *json, int64_t rank, const char **ret_role, int64_t *ret_size,
                             int64_t *ret_count)
{
    const json_t *count = json_object_get(json, "count");
    const json_t *role = json_object_get(json, "role");
    const json_t *told = json_object_get(json, "rank");
    const json_t *size = json_object_get(json, "local_world_size");

    if (!json_is_string(role) || !json_is_integer(told) || !json_is_integer(size))
        return "no role info: it needs role, rank and local_world_size";
    if (json_string_length(role) > MU_RANKS_ROLE_MAX || json_string_length(role) != strlen(json_string_value(role)))
        return "no role info: its role is no name";
    if (json_integer_value(told) != rank)
        return "the role info of another rank";
    if (json_integer_value(size) < 1 || json_integer_value(size) > MU_RANKS_SIZE_MAX)
        return "role info with an impossible local_world_size";
    if (count != NULL &&
        (!json_is_integer(count) || json_integer_value(count) < 0 || json_integer_value(count) > MU_ROUND_COUNT_MAX))
        return "role info with an impossible restart count";
    *ret_count = json_integer_value(count); /* 0, if there is none */
    *ret_role = json_string_value(role);
    *ret_size = json_integer_value(size);
    return NULL;
}

/* Of our own they have the restart count behind them, and then what was settled, if anything was. */
static const char *read_assigned(const json_t *json, bool own, int64_t size, struct mu_ranks_result *result)
{
    const char *shape = own ? "no assigned ranks: they are an array of five numbers"
                            : "no assigned ranks: they are an array of four numbers";
    size_t count = own ? 5 : 4;
    const char *settled = own ? json_string_value(json_array_get(json, count)) : NULL;
    int64_t numbers[5];

    if (!json_is_array(json) || json_array_size(json) != count + (settled != NULL ? 1 : 0))
        return shape;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(json, i);

        if (!json_is_integer(item))
            return shape;
        numbers[i] = json_integer_value(item);
    }
    if (own && (numbers[4] < 0 || numbers[4] > MU_ROUND_COUNT_MAX))
        return "assigned ranks with an impossible restart count";
    if (numbers[1] < 1 || numbers[3] < 1 || numbers[3] > numbers[1])
        return "assigned ranks with impossible world sizes";
    if (numbers[0] < 0 || numbers[2] < 0 || numbers[0] > numbers[1] - size || numbers[2] > numbers[3] - size)
        return "assigned ranks outside of their world";
    result->base_rank = numbers[0];
    result->world_size = numbers[1];
    result->base_role_rank = numbers[2];
    result->role_world_size = numbers[3];
    result->count = own ? numbers[4] : result->count;
    mu_line_copy(result->settled, sizeof result->settled, mu_slice_str(settled == NULL ? "" : settled));
    return NULL;
}

/* ---- Adding up ---- */

static int find_role(struct mu_ranks *r, const char *name, int32_t *ret_index)
{
    struct role *roles;

    for (size_t i = 0; i < r->roles_count; i++) {
        if (strcmp(r->roles[i].name, name) == 0) {
            *ret_index = (int32_t)i;
            return 0;
        }
    }
    if (r->roles_count == MU_RANKS_ROLES_MAX)
        return mu_fail(&r->error, MUSTER_ELIMIT, "more than %d different roles", MU_RANKS_ROLES_MAX);
    roles = realloc(r->roles, (r->roles_count + 1) * sizeof *roles);
    if (roles == NULL)
        return mu_fail(&r->error, MUSTER_ENOMEM, "no memory for a role");
    r->roles = roles;
    roles[r->roles_count] = (struct role){ .name = strdup(name) };
    if (roles[r->roles_count].name == NULL)
        return mu_fail(&r->error, MUSTER_ENOMEM, "no memory for a role");
    *ret_index = (int32_t)r->roles_count++;
    return 0;
}

/* Rank 0 keeps them all, for it tells everybody; who only needs its own ranks adds up. */
static int take_info(struct mu_ranks *r, int64_t rank, const char *role, int64_t size)
{
    int32_t index = 0;
    int rc;

    r->result.world_size += size;
    if (r->infos == NULL) {
        bool same = strcmp(role, r->role) == 0;

        r->result.base_rank += rank < r->start.rank ? size : 0;
        r->result.base_role_rank += same && rank < r->start.rank ? size : 0;
        r->result.role_world_size += same ? size : 0;
        return 0;
    }
    rc = find_role(r, role, &index);
    if (rc < 0)
        return rc;
    r->roles[index].workers += size;
    r->infos[rank] = (struct info){ .size = (int32_t)size, .role = index };
    return 0;
}

/* ---- Asking, a window at a time ---- */

/* Keys are made of these and a rank: KEY_OF_RANK. */
static const char *prefix_of(const struct mu_ranks *r)
{
    return is_private(r) ? r->own_prefix : r->prefix;
}

static const char *info_name(const struct mu_ranks *r)
{
    if (is_private(r))
        return "role_info/";
    return r->start.old_dialect ? INFO_113 : "torchelastic/role_info/";
}

static const char *assigned_name(const struct mu_ranks *r)
{
    return is_private(r) ? "ranks/" : "torchelastic/assigned_ranks/";
}

static void tell_assigned(struct mu_ranks *r, int64_t rank)
{
    const struct info *info = &r->infos[rank]; /* NOLINTNEXTLINE(clang-analyzer-core*): there once all are read */
    struct role *role = &r->roles[info->role];
    char text[VALUE_EXTRA + SETTLED_JSON_MAX];
    int len = snprintf(text, sizeof text, "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64, r->next_base,
                       r->result.world_size, role->next, role->workers);

    if (is_private(r))
        len += snprintf(text + len, sizeof text - (size_t)len, ", %" PRId64 "%s", r->result.count, r->settled_json);
    len += snprintf(text + len, sizeof text - (size_t)len, "]");
    assert(len > 0 && (size_t)len < sizeof text);
    (void)mu_asks_put(&r->asks, MU_ASK_SET, ASSIGNED_SET, rank, mu_slice(text, (size_t)len), KEY_OF_RANK, prefix_of(r),
                      assigned_name(r), rank);
    if (rank == r->start.rank) {
        r->result.base_rank = r->next_base;
        r->result.base_role_rank = role->next;
        r->result.role_world_size = role->workers;
    }
    r->next_base += info->size;
    role->next += info->size;
}

/* Keeps the window full. */
static void ask_on(struct mu_ranks *r)
{
    if (r->state == MU_RANKS_SETTLING)
        mu_ranks_ask_about_missing(r);
    if (r->state != MU_RANKS_GATHERING && r->state != MU_RANKS_ASSIGNING && r->state != MU_RANKS_AGREEING)
        return;
    for (; r->cursor < r->start.world_size && mu_asks_free(&r->asks) > 0; r->cursor++) {
        bool own = r->cursor == r->start.rank;

        if (r->state == MU_RANKS_GATHERING && !own)
            (void)mu_asks_add(&r->asks, MU_ASK_GET, INFO_GET, r->cursor, KEY_OF_RANK, prefix_of(r), info_name(r),
                              r->cursor);
        else if (r->state == MU_RANKS_ASSIGNING)
            tell_assigned(r, r->cursor);
        else if (r->state == MU_RANKS_AGREEING && !own)
            (void)mu_asks_add(&r->asks, MU_ASK_GET, FIN_GET, r->cursor, KEY_OF_RANK ".FIN", r->prefix, INFO_113,
                              r->cursor);
    }
}

/* The whole of the state's ranks has been asked about, and all have answered. */
static bool is_through(const struct mu_ranks *r)
{
    return r->cursor >= r->start.world_size && r->asks.count == 0;
}

/* ---- From state to state ---- */

void mu_ranks_meet(struct mu_ranks *r)
{
    if (!r->start.needs_master) {
        succeed(r);
        return;
    }
    mu_ranks_enter(r, MU_RANKS_MEETING);
    (void)mu_asks_add(&r->asks, MU_ASK_GET, ADDR_GET, 0, "%s" MUSTER_KEY_MASTER_ADDR, r->prefix);
    (void)mu_asks_add(&r->asks, MU_ASK_GET, PORT_GET, 0, "%s" MUSTER_KEY_MASTER_PORT, r->prefix);
}

static void agree(struct mu_ranks *r)
{
    (void)mu_asks_put(&r->asks, MU_ASK_SET, FIN_SET, r->start.rank, mu_slice_str("FIN"), KEY_OF_RANK ".FIN", r->prefix,
                      INFO_113, r->start.rank);
    mu_ranks_enter(r, MU_RANKS_AGREEING);
    r->cursor = r->start.rank == 0 ? 0 : r->start.world_size; /* rank 0 alone waits for all */
}

static void go_on(struct mu_ranks *r)
{
    ask_on(r);
    if (r->state == MU_RANKS_GATHERING && is_through(r)) {
        if (is_private(r)) {
            mu_ranks_look_at_budget(r);
        } else if (r->start.old_dialect) {
            agree(r);
        } else {
            mu_ranks_enter(r, MU_RANKS_ASSIGNING);
            r->cursor = r->next_base = 0;
        }
        ask_on(r);
    } else if ((r->state == MU_RANKS_ASSIGNING || r->state == MU_RANKS_AGREEING) && is_through(r)) {
        mu_ranks_meet(r);
    } else if (r->state == MU_RANKS_SETTLING && r->asks.count == 0) { /* all have been asked about */
        r->settled = true;
        mu_ranks_fix_count(r);
    } else if (r->state == MU_RANKS_MEETING && r->asks.count == 0) {
        succeed(r);
    }
}

static void tell_info(struct mu_ranks *r)
{
    char text[6 * MU_RANKS_ROLE_MAX + VALUE_EXTRA + MU_SETTLEMENT_JSON_MAX]; /* JSON makes at most six bytes of one */
    char last[MU_SETTLEMENT_JSON_MAX];
    size_t last_len = is_private(r) ? mu_settlement_write(&r->last, last) : 0;
    int len = snprintf(text, sizeof text, "{\"role\": %s, \"rank\": %" PRId64 ", \"local_world_size\": %" PRId64,
                       r->role_json, r->start.rank, r->size);

    if (is_private(r))
        len += snprintf(text + len, sizeof text - (size_t)len, ", \"count\": %" PRId64, r->known);
    if (last_len > 0)
        len += snprintf(text + len, sizeof text - (size_t)len, ", \"last\": %.*s", (int)last_len, last);
    len += snprintf(text + len, sizeof text - (size_t)len, "}");
    assert(len > 0 && (size_t)len < sizeof text);
    (void)mu_asks_put(&r->asks, MU_ASK_SET, INFO_SET, r->start.rank, mu_slice(text, (size_t)len), KEY_OF_RANK,
                      prefix_of(r), info_name(r), r->start.rank);
}

static void await_ranks(struct mu_ranks *r)
{
    mu_ranks_enter(r, MU_RANKS_AWAITING);
    (void)mu_asks_add(&r->asks, MU_ASK_GET, ASSIGNED_GET, r->start.rank, KEY_OF_RANK, prefix_of(r), assigned_name(r),
                      r->start.rank);
}

static void be_identical(struct mu_ranks *r)
{
    r->result.base_rank = r->result.base_role_rank = r->start.rank * r->size;
    r->result.world_size = r->result.role_world_size = r->start.world_size * r->size;
}

static void gather(struct mu_ranks *r)
{
    int64_t world = r->start.world_size;

    mu_ranks_enter(r, MU_RANKS_GATHERING);
    if (is_private(r) || !r->start.old_dialect) {
        r->infos = calloc((size_t)world, sizeof *r->infos);
        if (r->infos == NULL) {
            (void)mu_fail(&r->error, MUSTER_ENOMEM, "no memory for the roles of %" PRId64 " agents", world);
            mu_ranks_fail(r);
            return;
        }
    }
    if (take_info(r, r->start.rank, r->role, r->size) < 0)
        mu_ranks_fail(r);
}

/* As PyTorch's agents do it. */
static void exchange(struct mu_ranks *r)
{
    if (r->identical || (r->start.world_size == 1 && !r->start.has_store)) {
        be_identical(r);
        mu_ranks_meet(r);
        return;
    }
    tell_info(r);
    if (!r->start.old_dialect && r->start.rank != 0)
        await_ranks(r);
    else
        gather(r);
}

static void exchange_privately(struct mu_ranks *r)
{
    int64_t rank = r->start.rank;

    if (r->identical || r->start.world_size == 1)
        be_identical(r);
    if (rank == 0 && (r->identical || r->start.world_size == 1)) {
        mu_ranks_look_at_budget(r);
    } else if (rank == 0) {
        gather(r);
    } else if (r->identical) {
        mu_ranks_enter(r, MU_RANKS_AWAITING);
        (void)mu_asks_add(&r->asks, MU_ASK_GET, COUNT_GET, rank, "%scount", r->own_prefix);
    } else {
        tell_info(r);
        await_ranks(r);
    }
}

static void start_round(struct mu_ranks *r, const struct mu_ranks_event *event)
{
    const struct mu_round *start = event->start;

    assert(start->world_size >= 1 && start->rank >= 0 && start->rank < start->world_size);
    mu_ranks_end(r, MU_RANKS_IDLE);
    r->start = *start;
    r->start_ms = r->now_ms;
    r->deadline_ms = r->now_ms + r->timeout_ms;
    r->error.code = 0;
    r->cursor = 0;
    r->known = start->count_min;
    mu_settlement_copy(&r->last, &start->last);
    r->settled = r->used_up = r->has_found = false;
    r->settled_json[0] = r->wanted[0] = '\0';
    r->budget.len = 0;
    r->result = (struct mu_ranks_result){ .count = start->own_count, .shared = is_private(r) };
    mu_round_stock_prefix(r->prefix, r->prefix_room, r->run_id, start->round);
    mu_round_own_prefix(r->own_prefix, r->prefix_room, r->run_id, start->round, start->tag);
    if (start->world_size > MU_RANKS_WORLD_MAX) {
        (void)mu_fail(&r->error, MUSTER_ELIMIT, "a world of %" PRId64 " agents is too large", start->world_size);
        mu_ranks_fail(r);
    } else if (start->world_size > 1 && !start->has_store && !r->identical) {
        (void)mu_fail(&r->error, MUSTER_ENOTSUP, "the back end has no store in which %" PRId64 " agents could do that",
                      start->world_size);
        mu_ranks_fail(r);
    } else if (is_private(r)) {
        exchange_privately(r);
    } else {
        exchange(r);
    }
}

/* ---- Answers ---- */

static void take_count(struct mu_ranks *r, const struct mu_ask_slot *slot, struct mu_slice value)
{
    if (mu_slice_number(value, MU_ROUND_COUNT_MAX, &r->result.count))
        mu_ranks_meet(r);
    else
        wrong(r, slot, "no restart count: that is a decimal number");
}

static void take_infos(struct mu_ranks *r, const struct mu_ask_slot *slot, struct mu_slice value)
{
    json_t *json = load(value);
    const char *role = "";
    int64_t size = 0, count = 0;
    const char *complaint = read_info(json, slot->index, &role, &size, &count);

    r->known = complaint == NULL && is_private(r) && count > r->known ? count : r->known;
    if (complaint == NULL && is_private(r))
        mu_settlement_add(&r->last, json_object_get(json, "last"));
    if (complaint != NULL)
        wrong(r, slot, complaint);
    else if (take_info(r, slot->index, role, size) < 0)
        mu_ranks_fail(r);
    json_decref(json);
}

static void take_assigned(struct mu_ranks *r, const struct mu_ask_slot *slot, struct mu_slice value)
{
    json_t *json = load(value);
    const char *complaint = read_assigned(json, is_private(r), r->size, &r->result);

    json_decref(json);
    if (complaint != NULL)
        wrong(r, slot, complaint);
    else
        mu_ranks_meet(r);
}

static void take_addr(struct mu_ranks *r, const struct mu_ask_slot *slot, struct mu_slice value)
{
    bool fits = value.len > 0 && value.len < sizeof r->result.master_addr;

    for (size_t i = 0; fits && i < value.len; i++)
        fits = (unsigned char)value.data[i] > ' ' && value.data[i] != 0x7f;
    if (!fits) {
        wrong(r, slot, "not an address");
        return;
    }
    memcpy(r->result.master_addr, value.data, value.len);
    r->result.master_addr[value.len] = '\0';
}

static void take_port(struct mu_ranks *r, const struct mu_ask_slot *slot, struct mu_slice value)
{
    int64_t port = 0;

    if (!mu_slice_number(value, UINT16_MAX, &port) || port == 0)
        wrong(r, slot, "not a decimal number from 1 to 65535");
    else
        r->result.master_port = (uint16_t)port;
}

/* Whoever waits for rank 0: it may have told us before, in a store that has forgotten it since; and so may we. */
static void doubt(struct mu_ranks *r, const struct mu_answer *answer)
{
    const struct mu_ask_slot *slot = mu_asks_find(&r->asks, answer->id);

    if (slot == NULL || r->state != MU_RANKS_AWAITING || !is_private(r) || answer->error->code == MUSTER_ETIMEOUT ||
        (slot->what != ASSIGNED_GET && slot->what != COUNT_GET))
        return;
    r->again_ms = r->now_ms + MU_RANKS_AGAIN_MS;
    if (!r->identical && !mu_asks_has(&r->asks, INFO_SET))
        tell_info(r);
}

static void answered(struct mu_ranks *r, const struct mu_answer *answer)
{
    struct mu_ask_slot slot;

    if (answer->error != NULL)
        doubt(r, answer);
    if (!mu_asks_answer(&r->asks, answer, r->now_ms, &slot))
        return;
    if (slot.what == MISSING_DONE) {
        r->last.missing.members[slot.index].done =
            answer->error == NULL &&
            mu_vanished_is_mark(answer->value, MU_MARK_DONE, r->last.missing.members[slot.index].rank);
    } else if (slot.what == MISSING_NOTE) {
        mu_vanished_read_note(&r->last.missing.members[slot.index],
                              answer->error == NULL ? answer->value : mu_slice("", 0));
    } else if (answer->error != NULL) {
        r->error = *answer->error;
        (void)mu_wrap(&r->error, r->error.code, "%s: %s '%.300s'", mu_ranks_state_text(r->state),
                      mu_ask_kind_text(slot.ask.kind), slot.key);
        mu_ranks_fail(r);
        return;
    }
    switch ((enum what)slot.what) {
    case BUDGET_LOOK:
    case BUDGET_SET:
        mu_ranks_take_budget(r, &slot, answer->value);
        break;
    case COUNT_GET:
        take_count(r, &slot, answer->value);
        break;
    case INFO_GET:
        take_infos(r, &slot, answer->value);
        break;
    case ASSIGNED_GET:
        take_assigned(r, &slot, answer->value);
        break;
    case ADDR_GET:
        take_addr(r, &slot, answer->value);
        break;
    case PORT_GET:
        take_port(r, &slot, answer->value);
        break;
    case COUNT_SET:
    case INFO_SET:
    case ASSIGNED_SET:
    case MISSING_DONE:
    case MISSING_NOTE:
    case FIN_SET:
    case FIN_GET:
        break;
    }
    go_on(r);
}

/* ---- Driving ---- */

static bool is_active(const struct mu_ranks *r)
{
    return r->state != MU_RANKS_IDLE && r->state != MU_RANKS_DONE && r->state != MU_RANKS_FAILED;
}

void mu_ranks_step(struct mu_ranks *r, const struct mu_ranks_event *event, struct mu_ranks_effects *out)
{
    struct mu_ask ask;

    assert(is_active(r) || r->asks.count == 0);
    out->count = 0;
    r->out = out;
    r->now_ms = event->now_ms;
    switch (event->type) {
    case MU_RANKS_ON_START:
        start_round(r, event);
        go_on(r);
        break;
    case MU_RANKS_ON_STOP:
        mu_ranks_end(r, MU_RANKS_IDLE);
        break;
    case MU_RANKS_ON_ANSWER:
        answered(r, &event->answer);
        break;
    case MU_RANKS_ON_TIME:
        break;
    }
    if (r->now_ms >= r->deadline_ms) {
        time_is_up(r);
    } else if (r->now_ms >= r->again_ms) {
        (void)snprintf(r->text, sizeof r->text, "the store may have forgotten the ranks of round %" PRId64,
                       r->start.round);
        mu_ranks_again(r);
    }
    while (mu_asks_emit(&r->asks, r->now_ms, r->deadline_ms, &ask))
        mu_ranks_emit(r, MU_RANKS_DO_ASK)->ask = ask;
    assert(is_active(r) == (r->deadline_ms != UINT64_MAX) && (is_active(r) || r->asks.count == 0));
}

uint64_t mu_ranks_deadline_ms(const struct mu_ranks *r)
{
    return mu_sooner_ms(mu_asks_due_ms(&r->asks), mu_sooner_ms(r->again_ms, r->deadline_ms));
}

enum mu_ranks_state mu_ranks_state(const struct mu_ranks *r)
{
    return r->state;
}
