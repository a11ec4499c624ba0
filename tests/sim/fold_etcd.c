/* etcd as a client sees it: one store with revisions, transactions that are carried out in one instant, leases,
 * watches.
 *
 * A request goes on its way, arrives (unless the node is cut off or etcd is down), is carried out, and its answer goes
 * back. What can happen to it on the way is the seed's. The client under the machine (repeating, resuming, keeping a
 * lease alive) is played here as well. */
#include "fold_sim.h"

#include <string.h>

#define TIMEOUT_MS (s->lease_ms / 3) /* as the driver has it */
#define KEEP_ALIVES 3

struct request {
    struct node *node;
    uint64_t node_id;
    enum mu_fold_effect_type type;
    uint64_t id, take, sent_us;
    enum mu_fold_scope scope;
    int64_t lease;
    struct mu_slice key; /* RANGE; in `bytes` */
    bool prefix;
    struct mu_fold_write write; /* its slices are in `bytes`, its operations in `ops` */
    struct mu_fold_op *ops;
    struct mu_buf bytes;
    bool answer_lost, reported;
    unsigned tries;
    /* Answer. */
    bool held, lease_gone, done;
    int64_t revision;
    struct key *keys; /* LOAD, RANGE */
    size_t keys_count;
};

struct delivery { /* of a watch */
    struct node *node;
    uint64_t generation;
    enum mu_fold_scope scope;
    struct change *changes;
    size_t count;
    bool stale;
    int64_t upto;
};

struct keeping { /* a lease of a node's */
    struct node *node;
    int64_t lease;
};

static const char *const prefixes[] = { [MU_FOLD_JOB] = "job/", [MU_FOLD_NODES] = "nodes/" };

/* ---- The store ---- */

void etcd_copy_key(struct key *to, const struct key *from)
{
    *to = *from;
    to->value = (struct mu_buf){ 0 };
    if (mu_buf_append(&to->value, from->value.data, from->value.len, SIZE_MAX) < 0)
        abort();
}

uint32_t etcd_hash(struct mu_slice name)
{
    uint32_t hash = 2166136261u;

    for (size_t i = 0; i < name.len; i++)
        hash = (hash ^ (unsigned char)name.data[i]) * 16777619u;
    return hash;
}

struct key *etcd_find(struct mu_slice name)
{
    uint32_t hash = etcd_hash(name);

    for (size_t i = 0; i < s->keys_count; i++)
        if (s->keys[i].hash == hash && mu_slice_equal(mu_slice_str(s->keys[i].name), name))
            return &s->keys[i];
    return NULL;
}

const struct key *etcd_get(const char *name)
{
    return etcd_find(mu_slice_str(name));
}

void etcd_each(const char *prefix, void (*fn)(const struct key *key, void *ctx), void *ctx)
{
    for (size_t i = 0; i < s->keys_count; i++)
        if (strncmp(s->keys[i].name, prefix, strlen(prefix)) == 0)
            fn(&s->keys[i], ctx);
}

static struct lease *find_lease(int64_t id)
{
    for (size_t i = 0; i < s->leases_count; i++)
        if (s->leases[i].id == id)
            return &s->leases[i];
    return NULL;
}

static void pump_all(void);

static void note_change(const struct key *key, bool deleted)
{
    struct change *change;

    if (s->changes_count == s->changes_room) {
        s->changes_room = s->changes_room == 0 ? 256 : s->changes_room * 2;
        s->changes = realloc(s->changes, s->changes_room * sizeof *s->changes);
        if (s->changes == NULL)
            abort();
    }
    change = &s->changes[s->changes_count++];
    change->revision = s->revision;
    change->deleted = deleted;
    etcd_copy_key(&change->key, key);
    if (deleted) {
        change->key.mod = s->revision;
        change->key.value.len = 0;
    }
}

static void put_key(struct mu_slice name, struct mu_slice value, int64_t lease)
{
    struct key *key = etcd_find(name), before = { .mod = 0 };

    if (key == NULL) {
        if (s->keys_count == KEYS_MAX || name.len >= sizeof key->name)
            abort();
        key = &s->keys[s->keys_count++];
        *key = (struct key){ .hash = etcd_hash(name), .create = s->revision };
        memcpy(key->name, name.data, name.len);
    } else {
        etcd_copy_key(&before, key);
    }
    if (mu_buf_assign(&key->value, value) < 0)
        abort();
    key->mod = s->revision;
    key->lease = lease;
    sim_trace("etcd %" PRId64 ": put %s lease %" PRIx64 " %.*s", s->revision, key->name, (uint64_t)lease,
              (int)(value.len < 120 ? value.len : 120), value.data);
    check_put(before.mod == 0 ? NULL : &before, key);
    mu_buf_done(&before.value);
    note_change(key, false);
}

static void etcd_scribble(const char *name, const char *value)
{
    struct key *key = etcd_find(mu_slice_str(name)), before = { .lease = 0 };

    s->revision++;
    if (key != NULL)
        etcd_copy_key(&before, key);
    s->scribbles = true;
    put_key(mu_slice_str(name), mu_slice_str(value), 0);
    s->scribbles = false;
    if (key != NULL)
        check_key_gone(&before);
    mu_buf_done(&before.value);
    pump_all();
}

static void delete_key(struct key *key)
{
    struct key last = *key;

    sim_trace("etcd %" PRId64 ": delete %s", s->revision, key->name);
    note_change(key, true);
    *key = s->keys[--s->keys_count];
    check_key_gone(&last);
    mu_buf_done(&last.value);
}

static bool begins(const struct key *key, struct mu_slice prefix)
{
    return strncmp(key->name, prefix.data, prefix.len) == 0;
}

static bool has_keys(struct mu_slice prefix)
{
    for (size_t i = 0; i < s->keys_count; i++)
        if (begins(&s->keys[i], prefix))
            return true;
    return false;
}

static void delete_keys(struct mu_slice prefix)
{
    for (size_t i = s->keys_count; i-- > 0;)
        if (begins(&s->keys[i], prefix))
            delete_key(&s->keys[i]);
}

static void end_lease(struct lease *lease)
{
    int64_t id = lease->id;

    *lease = s->leases[--s->leases_count];
    s->revision++;
    for (size_t i = s->keys_count; i-- > 0;)
        if (s->keys[i].lease == id)
            delete_key(&s->keys[i]);
    pump_all();
}

static void etcd_revoke(int64_t id)
{
    struct lease *lease = find_lease(id);

    if (lease != NULL)
        end_lease(lease);
}

static bool etcd_will(const struct node *node)
{
    struct mu_fold_op mark;

    if (!s->wills || !s->up || is_cut(node) || !mu_fold_will(node->fold, &mark))
        return false;
    if (find_lease(mark.lease) != NULL) {
        s->revision++;
        put_key(mark.key, mark.value, mark.lease);
        pump_all();
    }
    etcd_revoke(mu_fold_lease(node->fold));
    return true;
}

static void etcd_tick(void)
{
    for (size_t i = s->leases_count; s->up && i-- > 0;) {
        if (i < s->leases_count && s->leases[i].until_us < s->now_us) {
            s->proposals++;
            end_lease(&s->leases[i]);
        }
    }
}

static void forget_changes(size_t count)
{
    for (size_t i = 0; i < count; i++)
        mu_buf_done(&s->changes[i].key.value);
    s->changes_count -= count;
    if (count > 0 && s->changes_count > 0)
        memmove(s->changes, s->changes + count, s->changes_count * sizeof *s->changes);
}

static void etcd_compact(void)
{
    sim_trace("etcd: compacted at %" PRId64, s->revision);
    s->compacted = s->revision;
    forget_changes(s->changes_count);
}

/* ---- Watches ---- */

static void free_delivery(struct delivery *d)
{
    for (size_t i = 0; i < d->count; i++)
        mu_buf_done(&d->changes[i].key.value);
    free(d->changes);
    free(d);
}

/* What keys and values say: the rest of an etcd's message is of one size. */
static void count_bytes(struct node *node, const struct mu_fold_kv *kv)
{
    node->bytes += kv->key.len + kv->value.len;
}

static struct mu_fold_kv kv_of(const struct key *key)
{
    return (struct mu_fold_kv){ .key = mu_slice_str(key->name),
                                .value = mu_buf_slice(&key->value),
                                .create = key->create,
                                .mod = key->mod,
                                .lease = key->lease };
}

static void deliver(void *arg)
{
    struct delivery *d = arg;
    struct watch *watch = &d->node->watches[d->scope];
    struct mu_fold_kv *kvs;

    if (!d->node->alive || !watch->on || watch->generation != d->generation) {
        free_delivery(d);
        return;
    }
    if (d->node->paused_until_us > s->now_us) {
        sim_at(d->node->paused_until_us, deliver, d);
        return;
    }
    watch->delivered = d->upto;
    if (d->stale) {
        watch->on = false;
        feed(d->node, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = d->scope });
        free_delivery(d);
        return;
    }
    kvs = calloc(d->count + 1, sizeof *kvs);
    if (kvs == NULL)
        abort();
    for (size_t i = 0; i < d->count; i++) {
        const struct key *key = &d->changes[i].key;

        kvs[i] = kv_of(key);
        kvs[i].deleted = d->changes[i].deleted;
        count_bytes(d->node, &kvs[i]);
    }
    feed(d->node,
         (struct mu_fold_event){ .type = MU_FOLD_ON_CHANGED, .scope = d->scope, .kvs = kvs, .count = d->count });
    free(kvs);
    free_delivery(d);
}

static bool is_below(const struct change *change, enum mu_fold_scope scope)
{
    return strncmp(change->key.name, prefixes[scope], strlen(prefixes[scope])) == 0;
}

static void pump(struct node *node, enum mu_fold_scope scope)
{
    struct watch *watch = &node->watches[scope];
    size_t first = s->changes_count, count = 0;
    struct delivery *d;
    uint64_t when_us;
    bool stale;

    if (!node->alive || !watch->on || !watch->heard || !s->up || is_cut(node) || watch->seen == s->revision)
        return;
    stale = watch->seen < s->compacted || watch->seen > s->revision;
    for (; !stale && first > 0 && s->changes[first - 1].revision > watch->seen; first--)
        count += is_below(&s->changes[first - 1], scope);
    watch->seen = s->revision;
    if (count == 0 && !stale)
        return;
    d = calloc(1, sizeof *d);
    if (d == NULL)
        abort();
    *d = (struct delivery){
        node, watch->generation, scope, calloc(count + 1, sizeof *d->changes), 0, stale, s->revision
    };
    if (d->changes == NULL)
        abort();
    for (size_t i = first; i < s->changes_count; i++) {
        if (!is_below(&s->changes[i], scope))
            continue;
        d->changes[d->count] = s->changes[i];
        etcd_copy_key(&d->changes[d->count++].key, &s->changes[i].key);
    }
    when_us = s->now_us + 100 + below(s->on[F_SLOW] && !s->calm ? 200 * MS : MS);
    watch->last_us = when_us > watch->last_us ? when_us : watch->last_us + 1;
    sim_at(watch->last_us, deliver, d);
}

static void pump_all(void)
{
    for (unsigned i = 0; i < s->nodes_count; i++) {
        pump(&s->nodes[i], MU_FOLD_JOB);
        pump(&s->nodes[i], MU_FOLD_NODES);
    }
}

static void etcd_renew(void)
{
    etcd_compact();
    for (unsigned i = 0; i < s->nodes_count; i++)
        for (int scope = MU_FOLD_JOB; scope <= MU_FOLD_NODES; scope++)
            if (s->nodes[i].watches[scope].on)
                s->nodes[i].watches[scope].seen = s->compacted - 1;
    pump_all();
}

/* ---- Requests ---- */

static void free_request(struct request *r)
{
    for (size_t i = 0; i < r->keys_count; i++)
        mu_buf_done(&r->keys[i].value);
    free(r->keys);
    mu_buf_done(&r->bytes);
    free(r->ops);
    free(r);
}

static bool is_current(const struct request *r)
{
    return r->node->alive && r->node->id == r->node_id;
}

static bool compare_holds(const struct mu_fold_compare *compare)
{
    const struct key *key = etcd_find(compare->key);

    switch (compare->kind) {
    case MU_FOLD_ABSENT:
        return key == NULL;
    case MU_FOLD_MOD:
        return key != NULL && key->mod == compare->revision;
    }
    return false;
}

static void carry_out_write(struct request *r)
{
    const struct mu_fold_op *ops = r->write.ops;
    size_t count = r->write.ops_count;

    bool changes = false;

    s->proposals++;
    r->held = true;
    for (unsigned i = 0; i < r->write.compares_count; i++)
        r->held &= compare_holds(&r->write.compares[i]);
    if (!r->held) {
        ops = r->write.else_ops;
        count = r->write.else_count;
    }
    SIM_EXPECT(count <= s->ops_max, "a write of %zu operations", count);
    for (size_t i = 0; i < count; i++)
        r->lease_gone |= ops[i].kind == MU_FOLD_PUT && find_lease(ops[i].lease) == NULL;
    if (r->lease_gone)
        return;
    for (size_t i = 0; i < count; i++)
        changes |= ops[i].kind == MU_FOLD_PUT || has_keys(ops[i].key);
    s->revision += changes;
    for (size_t i = 0; i < count; i++) {
        if (ops[i].kind == MU_FOLD_PUT)
            put_key(ops[i].key, ops[i].value, ops[i].lease);
        else
            delete_keys(ops[i].key);
    }
}

static void carry_out_range(struct request *r, struct mu_slice key, bool prefix)
{
    const struct key *only = prefix ? NULL : etcd_find(key);
    size_t most = 1;

    for (size_t i = 0; prefix && i < s->keys_count; i++)
        most += begins(&s->keys[i], key);
    r->keys = calloc(most, sizeof *r->keys);
    if (r->keys == NULL)
        abort();
    if (only != NULL)
        etcd_copy_key(&r->keys[r->keys_count++], only);
    for (size_t i = 0; prefix && i < s->keys_count; i++)
        if (begins(&s->keys[i], key))
            etcd_copy_key(&r->keys[r->keys_count++], &s->keys[i]);
}

static void carry_out_load(struct request *r)
{
    carry_out_range(r, mu_slice_str(prefixes[r->scope]), true);
}

static void carry_out_grant(struct request *r, uint64_t ttl_ms)
{
    if (s->leases_count == KEYS_MAX)
        abort();
    s->proposals++;
    r->lease = (int64_t)(mu_rng_next(&s->rng) >> 1) | 1;
    s->leases[s->leases_count++] = (struct lease){ r->lease, ttl_ms * MS, s->now_us + ttl_ms * MS };
}

static void carry_out(struct request *r)
{
    int64_t before;
    struct lease *lease;

    etcd_tick();
    before = s->revision;
    r->done = true;
    switch (r->type) {
    case MU_FOLD_DO_LOAD:
        carry_out_load(r);
        break;
    case MU_FOLD_DO_RANGE:
        carry_out_range(r, r->key, r->prefix);
        break;
    case MU_FOLD_DO_WRITE:
        carry_out_write(r);
        break;
    case MU_FOLD_DO_GRANT_JOB:
        carry_out_grant(r, s->job_lease_ms);
        break;
    case MU_FOLD_DO_TAKE_LEASE:
        carry_out_grant(r, s->lease_ms);
        break;
    case MU_FOLD_DO_KEEP_JOB:
        lease = find_lease(r->lease);
        r->held = lease != NULL;
        if (lease != NULL)
            lease->until_us = s->now_us + lease->ttl_us;
        break;
    case MU_FOLD_DO_DROP_LEASE:
        s->proposals++;
        etcd_revoke(r->lease);
        break;
    case MU_FOLD_DO_LOOK_AROUND: /* on_look() */
    case MU_FOLD_DO_UNMARK:
    case MU_FOLD_DO_UNWATCH:
    case MU_FOLD_DO_TELL:
    case MU_FOLD_DO_COMPLETED:
    case MU_FOLD_DO_LEADER:
        break;
    }
    r->revision = s->revision;
    if (s->revision != before)
        pump_all();
}

static void keep_alive(void *arg);

static void keep_alive_at(struct node *node, uint64_t when_us)
{
    struct keeping *keeping = calloc(1, sizeof *keeping);

    if (keeping == NULL)
        abort();
    *keeping = (struct keeping){ node, node->lease };
    sim_at(when_us, keep_alive, keeping);
}

static uint64_t keep_us(void)
{
    uint64_t ms = s->fence_ms > 0 && s->fence_ms < s->lease_ms ? s->fence_ms : s->lease_ms;

    return ms * MS / KEEP_ALIVES;
}

static void feed_keys(struct request *r, enum mu_fold_event_type type)
{
    struct mu_fold_kv *kvs = calloc(r->keys_count + 1, sizeof *kvs);

    if (kvs == NULL)
        abort();
    for (size_t i = 0; i < r->keys_count; i++) {
        kvs[i] = kv_of(&r->keys[i]);
        count_bytes(r->node, &kvs[i]);
    }
    feed(r->node,
         (struct mu_fold_event){ .type = type, .id = r->id, .scope = r->scope, .kvs = kvs, .count = r->keys_count });
    free(kvs);
}

static void answer_load(struct request *r)
{
    struct watch *watch = &r->node->watches[r->scope];

    if (watch->load_id != r->id)
        return;
    watch->on = watch->heard = true;
    watch->generation++;
    watch->seen = watch->delivered = r->revision;
    feed_keys(r, MU_FOLD_ON_LOADED);
    pump(r->node, r->scope);
}

static void answer_lease(struct request *r)
{
    struct node *node = r->node;

    if (node->take != r->id) /* dropped meanwhile: the client ends it */
        return;
    node->lease = r->lease;
    node->lease_sure_us = s->now_us + s->lease_ms * MS;
    node->renewed_us = r->sent_us;
    keep_alive_at(node, s->now_us + keep_us());
    feed(node, (struct mu_fold_event){
                   .type = MU_FOLD_ON_LEASED, .id = r->id, .lease = r->lease, .sent_ms = r->sent_us / MS });
}

static const struct muster_error no_lease = { .code = MUSTER_EINVAL, .text = "requested lease not found" };

static void answer(struct request *r)
{
    struct mu_fold_event event = { .id = r->id, .held = r->held, .revision = r->revision, .lease = r->lease };

    switch (r->type) {
    case MU_FOLD_DO_LOAD:
        answer_load(r);
        return;
    case MU_FOLD_DO_RANGE:
        feed_keys(r, MU_FOLD_ON_RANGED);
        return;
    case MU_FOLD_DO_TAKE_LEASE:
        answer_lease(r);
        return;
    case MU_FOLD_DO_WRITE:
        event.type = MU_FOLD_ON_WROTE;
        break;
    case MU_FOLD_DO_GRANT_JOB:
        event.type = MU_FOLD_ON_GRANTED;
        break;
    case MU_FOLD_DO_KEEP_JOB:
        event.type = MU_FOLD_ON_KEPT;
        break;
    case MU_FOLD_DO_DROP_LEASE:
        event.type = MU_FOLD_ON_DROPPED;
        break;
    case MU_FOLD_DO_LOOK_AROUND:
    case MU_FOLD_DO_UNMARK:
    case MU_FOLD_DO_UNWATCH:
    case MU_FOLD_DO_TELL:
    case MU_FOLD_DO_COMPLETED:
    case MU_FOLD_DO_LEADER:
        return;
    }
    if (r->lease_gone)
        event = (struct mu_fold_event){
            .type = MU_FOLD_ON_REQUEST_FAILED, .id = r->id, .lease_gone = true, .error = &no_lease
        };
    feed(r->node, event);
}

static void report_failure(struct request *r)
{
    struct muster_error error = { 0 };
    struct mu_fold_event event = { .type = MU_FOLD_ON_REQUEST_FAILED, .id = r->id, .error = &error };

    (void)mu_fail(&error, MUSTER_ECONNECT, "etcd is away");
    r->reported = true;
    if (r->type == MU_FOLD_DO_DROP_LEASE)
        event.type = MU_FOLD_ON_DROPPED; /* whatever came of it */
    if (r->type == MU_FOLD_DO_TAKE_LEASE) {
        event.type = MU_FOLD_ON_LEASE_LOST;
        if (r->node->take != r->id)
            return;
        r->node->take = 0;
    }
    feed(r->node, event);
}

static bool waits_for_pause(struct request *r, sim_fn *fn)
{
    if (!is_current(r) || r->node->paused_until_us <= s->now_us)
        return false;
    sim_at(r->node->paused_until_us, fn, r);
    return true;
}

static void on_timeout(void *arg)
{
    struct request *r = arg;

    if (waits_for_pause(r, on_timeout))
        return;
    if (is_current(r))
        report_failure(r);
    free_request(r);
}

static void on_answer(void *arg)
{
    struct request *r = arg;

    if (waits_for_pause(r, on_answer))
        return;
    if (is_current(r) && is_cut(r->node)) {
        sim_at(s->now_us + TIMEOUT_MS * MS, on_timeout, r);
        return;
    }
    if (is_current(r))
        answer(r);
    free_request(r);
}

static void on_late(void *arg) /* carried out long after it was reported as failed */
{
    struct request *r = arg;

    if (s->up)
        carry_out(r);
    free_request(r);
}

static uint64_t latency_us(void)
{
    if (s->calm || !s->on[F_SLOW])
        return 100 + below(900);
    return 100 + below(chance(10) ? 400 * MS : 20 * MS);
}

static bool strikes(enum fault fault, unsigned percent)
{
    return s->on[fault] && !s->calm && chance(percent);
}

static void on_arrival(void *arg)
{
    struct request *r = arg;

    if (!is_current(r) && chance(50)) { /* what a dying process sent may arrive or not */
        free_request(r);
        return;
    }
    if (!s->up || is_cut(r->node) || strikes(F_REFUSED, 5)) {
        bool at_once = !is_cut(r->node) && chance(70);

        sim_at(s->now_us + (at_once ? latency_us() : TIMEOUT_MS * MS), on_timeout, r);
        return;
    }
    if (strikes(F_LATER, 4)) {
        if (is_current(r))
            report_failure(r);
        sim_at(s->now_us + below(4 * s->lease_ms * MS), on_late, r);
        return;
    }
    carry_out(r);
    sim_at(s->now_us + (strikes(F_LOST, 4) ? TIMEOUT_MS * MS : latency_us()),
           strikes(F_LOST, 5) ? on_timeout : on_answer, r);
}

/* For people only: it has its own random numbers, so that what is tested goes on as it would without. */
static uint64_t look_us(const struct request *r)
{
    struct mu_rng rng = mu_rng_seeded(s->now_us ^ r->node_id);

    return MS + mu_rng_below(&rng, mu_rng_below(&rng, 4) == 0 ? 2 * TIMEOUT_MS * MS : 20 * MS);
}

static void on_look(void *arg)
{
    static const struct muster_error away = { .code = MUSTER_ECONNECT, .text = "etcd is away" };
    struct request *r = arg;
    struct mu_fold_kv kvs[MU_WAITERS_RECORDS_MAX];
    struct mu_fold_event event = { .type = MU_FOLD_ON_CROWD, .id = r->id };

    if (waits_for_pause(r, on_look))
        return;
    if (is_current(r)) {
        SIM_EXPECT(r->node->look_id == r->id, "node %u looks around twice at a time", r->node->index);
        r->node->look_id = 0;
        if (!s->up || is_cut(r->node)) {
            event.error = &away;
        } else {
            carry_out_load(r);
            event.kvs = kvs;
            event.held = r->lease != 0;
            event.lease = r->lease;
        }
        for (; event.count < r->keys_count && event.count < MU_WAITERS_RECORDS_MAX; event.count++)
            kvs[event.count] = (struct mu_fold_kv){ .key = mu_slice_str(r->keys[event.count].name),
                                                    .value = mu_buf_slice(&r->keys[event.count].value) };
        feed(r->node, event);
    }
    free_request(r);
}

static struct mu_slice keep(struct request *r, struct mu_slice bytes)
{
    struct mu_slice kept = mu_slice(r->bytes.data + r->bytes.len, bytes.len);

    if (mu_buf_append(&r->bytes, bytes.data, bytes.len, SIZE_MAX) < 0)
        abort();
    return kept;
}

static void copy_write(struct request *r, const struct mu_fold_write *write)
{
    size_t need = 1, count = write->ops_count + write->else_count;

    r->write = *write;
    r->ops = calloc(count + 1, sizeof *r->ops);
    if (r->ops == NULL)
        abort();
    for (size_t i = 0; i < count; i++)
        r->ops[i] = i < write->ops_count ? write->ops[i] : write->else_ops[i - write->ops_count];
    r->write.ops = r->ops;
    r->write.else_ops = r->ops + write->ops_count;
    for (unsigned i = 0; i < write->compares_count; i++)
        need += write->compares[i].key.len;
    for (size_t i = 0; i < count; i++)
        need += r->ops[i].key.len + r->ops[i].value.len;
    if (mu_buf_reserve(&r->bytes, need, SIZE_MAX) < 0)
        abort();
    for (unsigned i = 0; i < write->compares_count; i++)
        r->write.compares[i].key = keep(r, write->compares[i].key);
    for (size_t i = 0; i < count; i++) {
        r->ops[i].key = keep(r, r->ops[i].key);
        r->ops[i].value = keep(r, r->ops[i].value);
    }
}

static void etcd_effect(struct node *node, const struct mu_fold_effect *effect)
{
    struct request *r;

    if (effect->type == MU_FOLD_DO_UNWATCH || effect->type == MU_FOLD_DO_LOAD) {
        node->watches[effect->scope].on = false;
        node->watches[effect->scope].generation++;
        node->watches[effect->scope].load_id = effect->id;
        if (effect->type == MU_FOLD_DO_UNWATCH)
            return;
    }
    if (effect->type == MU_FOLD_DO_UNMARK)
        return;
    r = calloc(1, sizeof *r);
    if (r == NULL)
        abort();
    r->node = node;
    r->node_id = node->id;
    r->type = effect->type;
    r->id = effect->id;
    r->sent_us = s->now_us;
    r->scope = effect->scope;
    r->lease = effect->lease;
    r->prefix = effect->prefix;
    if (effect->type == MU_FOLD_DO_RANGE) {
        if (mu_buf_reserve(&r->bytes, effect->key.len + 1, SIZE_MAX) < 0)
            abort();
        r->key = keep(r, effect->key);
    }
    if (effect->type == MU_FOLD_DO_LOOK_AROUND) {
        r->scope = MU_FOLD_NODES;
        node->look_id = effect->id;
        sim_at(s->now_us + look_us(r), on_look, r);
        return;
    }
    if (effect->type == MU_FOLD_DO_WRITE)
        copy_write(r, effect->write);
    if (effect->type == MU_FOLD_DO_TAKE_LEASE)
        node->take = effect->id;
    if (effect->type == MU_FOLD_DO_DROP_LEASE) {
        r->lease = effect->lease_take == node->take ? node->lease : 0;
        node->take = 0;
        node->lease = 0;
    }
    sim_at(s->now_us + latency_us(), on_arrival, r);
}

/* ---- The client's lease ---- */

static void lose_lease(struct node *node)
{
    uint64_t take = node->take;
    struct muster_error error = { 0 };

    (void)mu_fail(&error, MUSTER_ELOST, "the lease is over");
    node->take = 0;
    node->lease = 0;
    feed(node, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASE_LOST, .id = take, .error = &error });
}

static void keep_alive(void *arg)
{
    struct node *node = ((struct keeping *)arg)->node;
    int64_t id = ((struct keeping *)arg)->lease;
    bool reaches = s->up && !is_cut(node);
    struct lease *lease;

    free(arg);
    if (!node->alive || node->lease != id)
        return;
    if (node->paused_until_us > s->now_us) {
        keep_alive_at(node, node->paused_until_us);
        return;
    }
    etcd_tick();
    lease = find_lease(id);
    if (reaches && lease != NULL) {
        lease->until_us = s->now_us + lease->ttl_us;
        node->lease_sure_us = s->now_us + s->lease_ms * MS;
    } else if (reaches || s->now_us > node->lease_sure_us) {
        lose_lease(node);
        return;
    }
    keep_alive_at(node, s->now_us + (reaches ? keep_us() : 100 * MS));
    if (!reaches || s->fence_ms == 0)
        return;
    node->renewed_us = s->now_us;
    feed(node,
         (struct mu_fold_event){ .type = MU_FOLD_ON_RENEWED, .id = node->take, .sent_ms = node->renewed_us / MS });
}

/* ---- Away and back ---- */

static void etcd_hear(struct node *node, bool heard)
{
    struct muster_error error = { 0 };
    bool told = false;

    (void)mu_fail(&error, MUSTER_ECONNECT, "the watch is broken");
    for (int i = 0; i < 2; i++) {
        struct watch *watch = &node->watches[i];

        if (watch->heard == heard)
            continue;
        watch->heard = heard;
        watch->generation += !heard; /* what is on its way is lost, and will be told again */
        if (!heard)
            watch->seen = watch->delivered;
        if (!watch->on || told)
            continue;
        told = true;
        feed(node, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = heard ? NULL : &error });
    }
    if (heard) {
        pump(node, MU_FOLD_JOB);
        pump(node, MU_FOLD_NODES);
    }
}

static void etcd_down(bool wipe)
{
    sim_trace("etcd is down%s", wipe ? ", and loses its data" : "");
    s->up = false;
    if (wipe) {
        s->incarnation++;
        for (size_t i = 0; i < s->keys_count; i++)
            mu_buf_done(&s->keys[i].value);
        s->keys_count = s->leases_count = 0;
        forget_changes(s->changes_count);
        s->revision = s->counts_on ? s->revision + 1 : 1;
        s->compacted = 0;
        check_reset();
    }
    for (unsigned i = 0; i < s->nodes_count; i++)
        if (s->nodes[i].alive)
            etcd_hear(&s->nodes[i], false);
}

static void etcd_up(void)
{
    sim_trace("etcd is up");
    s->up = true;
    for (size_t i = 0; i < s->leases_count; i++) /* as a new leader does */
        s->leases[i].until_us = s->now_us + s->leases[i].ttl_us;
    for (unsigned i = 0; i < s->nodes_count; i++)
        if (s->nodes[i].alive && !is_cut(&s->nodes[i]))
            etcd_hear(&s->nodes[i], true);
}

static void etcd_node_leaves(struct node *node)
{
    if (s->up && !is_cut(node))
        etcd_revoke(mu_fold_lease(node->fold));
}

static void etcd_node_gone(struct node *node)
{
    for (int i = 0; i < 2; i++) {
        node->watches[i].on = false;
        node->watches[i].generation++;
    }
    node->take = 0;
    node->lease = 0;
}

static void etcd_reset(void)
{
    s->keys = calloc(KEYS_MAX, sizeof *s->keys);
    if (s->keys == NULL)
        abort();
    s->revision = 1;
    s->compacted = 0;
    s->up = true;
    s->leases_count = 0;
    s->incarnation = 0;
    s->proposals = 0;
}

static void etcd_free(void)
{
    for (size_t i = 0; i < s->keys_count; i++)
        mu_buf_done(&s->keys[i].value);
    s->keys_count = 0;
    free(s->keys);
    s->keys = NULL;
    forget_changes(s->changes_count);
    free(s->changes);
    s->changes = NULL;
    s->changes_room = 0;
}

static void etcd_node_new(struct node *node, const char *name)
{
    (void)node;
    (void)name;
}

static void etcd_expire(void)
{
    if (s->leases_count > 0 && s->up)
        etcd_revoke(s->leases[below(s->leases_count)].id);
}

const struct place place_etcd = {
    .name = "etcd",
    .reset = etcd_reset,
    .free = etcd_free,
    .node_new = etcd_node_new,
    .node_leaves = etcd_node_leaves,
    .node_gone = etcd_node_gone,
    .will = etcd_will,
    .effect = etcd_effect,
    .down = etcd_down,
    .up = etcd_up,
    .hear = etcd_hear,
    .tick = etcd_tick,
    .compact = etcd_compact,
    .renew = etcd_renew,
    .expire = etcd_expire,
    .scribble = etcd_scribble,
};
