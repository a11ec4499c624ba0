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
    uint64_t id, take;
    enum mu_fold_scope scope;
    int64_t lease;
    struct mu_fold_write write; /* its slices are in `bytes` */
    struct mu_buf bytes;
    bool answer_lost, reported;
    unsigned tries;
    /* Answer. */
    bool held, lease_gone, done;
    int64_t revision;
    struct key *keys; /* LOAD */
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

static void copy_key(struct key *to, const struct key *from)
{
    *to = *from;
    to->value = (struct mu_buf){ 0 };
    if (mu_buf_append(&to->value, from->value.data, from->value.len, SIZE_MAX) < 0)
        abort();
}

static struct key *find_key(struct mu_slice name)
{
    for (size_t i = 0; i < s->keys_count; i++)
        if (mu_slice_equal(mu_slice_str(s->keys[i].name), name))
            return &s->keys[i];
    return NULL;
}

const struct key *etcd_get(const char *name)
{
    return find_key(mu_slice_str(name));
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
    copy_key(&change->key, key);
    if (deleted) {
        change->key.mod = s->revision;
        change->key.value.len = 0;
    }
}

static void put_key(struct mu_slice name, struct mu_slice value, int64_t lease)
{
    struct key *key = find_key(name), before = { .mod = 0 };

    if (key == NULL) {
        if (s->keys_count == KEYS_MAX || name.len >= sizeof key->name)
            abort();
        key = &s->keys[s->keys_count++];
        *key = (struct key){ .create = s->revision };
        memcpy(key->name, name.data, name.len);
    } else {
        copy_key(&before, key);
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

void etcd_scribble(const char *name, const char *value)
{
    struct key *key = find_key(mu_slice_str(name)), before = { .lease = 0 };

    s->revision++;
    if (key != NULL)
        copy_key(&before, key);
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

void etcd_revoke(int64_t id)
{
    struct lease *lease = find_lease(id);

    if (lease != NULL)
        end_lease(lease);
}

void etcd_tick(void)
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

void etcd_compact(void)
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

        kvs[i] = (struct mu_fold_kv){
            mu_slice_str(key->name), d->changes[i].deleted, mu_buf_slice(&key->value), key->create, key->mod, key->lease
        };
    }
    feed(d->node,
         (struct mu_fold_event){ .type = MU_FOLD_ON_CHANGED, .scope = d->scope, .kvs = kvs, .count = d->count });
    free(kvs);
    free_delivery(d);
}

static void pump(struct node *node, enum mu_fold_scope scope)
{
    struct watch *watch = &node->watches[scope];
    struct delivery *d;
    uint64_t when_us;

    if (!node->alive || !watch->on || !watch->heard || !s->up || is_cut(node) || watch->seen == s->revision)
        return;
    d = calloc(1, sizeof *d);
    if (d == NULL)
        abort();
    d->node = node;
    d->scope = scope;
    d->generation = watch->generation;
    d->stale = watch->seen < s->compacted || watch->seen > s->revision;
    d->changes = calloc(s->changes_count + 1, sizeof *d->changes);
    if (d->changes == NULL)
        abort();
    for (size_t i = 0; !d->stale && i < s->changes_count; i++) {
        const struct change *change = &s->changes[i];

        if (change->revision <= watch->seen || strncmp(change->key.name, prefixes[scope], strlen(prefixes[scope])) != 0)
            continue;
        d->changes[d->count] = *change;
        copy_key(&d->changes[d->count++].key, &change->key);
    }
    watch->seen = d->upto = s->revision;
    if (d->count == 0 && !d->stale) {
        free_delivery(d);
        return;
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

void etcd_renew(void)
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
    free(r);
}

static bool is_current(const struct request *r)
{
    return r->node->alive && r->node->id == r->node_id;
}

static bool compare_holds(const struct mu_fold_compare *compare)
{
    const struct key *key = find_key(compare->key);

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
    const struct mu_fold_put *puts = r->write.puts;
    unsigned count = r->write.puts_count;

    s->proposals++;
    r->held = true;
    for (unsigned i = 0; i < r->write.compares_count; i++)
        r->held &= compare_holds(&r->write.compares[i]);
    if (!r->held) {
        puts = r->write.else_puts;
        count = r->write.else_count;
    }
    for (unsigned i = 0; i < count; i++)
        r->lease_gone |= find_lease(puts[i].lease) == NULL;
    if (r->lease_gone)
        return;
    s->revision += count > 0;
    for (unsigned i = 0; i < count; i++)
        put_key(puts[i].key, puts[i].value, puts[i].lease);
}

static void carry_out_load(struct request *r)
{
    r->keys = calloc(s->keys_count + 1, sizeof *r->keys);
    if (r->keys == NULL)
        abort();
    for (size_t i = 0; i < s->keys_count; i++)
        if (strncmp(s->keys[i].name, prefixes[r->scope], strlen(prefixes[r->scope])) == 0)
            copy_key(&r->keys[r->keys_count++], &s->keys[i]);
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
    struct lease *lease;

    etcd_tick();
    r->done = true;
    switch (r->type) {
    case MU_FOLD_DO_LOAD:
        carry_out_load(r);
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

static void answer_load(struct request *r)
{
    struct watch *watch = &r->node->watches[r->scope];
    struct mu_fold_kv *kvs = calloc(r->keys_count + 1, sizeof *kvs);

    if (kvs == NULL)
        abort();
    if (watch->load_id != r->id) {
        free(kvs);
        return;
    }
    for (size_t i = 0; i < r->keys_count; i++)
        kvs[i] = (struct mu_fold_kv){ mu_slice_str(r->keys[i].name),
                                      false,
                                      mu_buf_slice(&r->keys[i].value),
                                      r->keys[i].create,
                                      r->keys[i].mod,
                                      r->keys[i].lease };
    watch->on = watch->heard = true;
    watch->generation++;
    watch->seen = watch->delivered = r->revision;
    feed(r->node, (struct mu_fold_event){
                      .type = MU_FOLD_ON_LOADED, .id = r->id, .scope = r->scope, .kvs = kvs, .count = r->keys_count });
    free(kvs);
    pump(r->node, r->scope);
}

static void answer_lease(struct request *r)
{
    struct node *node = r->node;

    if (node->take != r->id) /* dropped meanwhile: the client ends it */
        return;
    node->lease = r->lease;
    node->lease_sure_us = s->now_us + s->lease_ms * MS;
    keep_alive_at(node, s->now_us + s->lease_ms * MS / KEEP_ALIVES);
    feed(node, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED, .id = r->id, .lease = r->lease });
}

static void answer(struct request *r)
{
    struct mu_fold_event event = { .id = r->id, .held = r->held, .revision = r->revision, .lease = r->lease };

    switch (r->type) {
    case MU_FOLD_DO_LOAD:
        answer_load(r);
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
        event = (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED, .id = r->id, .lease_gone = true };
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
    size_t need = 1;

    r->write = *write;
    for (unsigned i = 0; i < write->compares_count; i++)
        need += write->compares[i].key.len;
    for (unsigned i = 0; i < write->puts_count; i++)
        need += write->puts[i].key.len + write->puts[i].value.len;
    for (unsigned i = 0; i < write->else_count; i++)
        need += write->else_puts[i].key.len + write->else_puts[i].value.len;
    if (mu_buf_reserve(&r->bytes, need, SIZE_MAX) < 0)
        abort();
    for (unsigned i = 0; i < write->compares_count; i++)
        r->write.compares[i].key = keep(r, write->compares[i].key);
    for (unsigned i = 0; i < write->puts_count; i++) {
        r->write.puts[i].key = keep(r, write->puts[i].key);
        r->write.puts[i].value = keep(r, write->puts[i].value);
    }
    for (unsigned i = 0; i < write->else_count; i++) {
        r->write.else_puts[i].key = keep(r, write->else_puts[i].key);
        r->write.else_puts[i].value = keep(r, write->else_puts[i].value);
    }
}

void etcd_effect(struct node *node, const struct mu_fold_effect *effect)
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
    r->scope = effect->scope;
    r->lease = effect->lease;
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
    keep_alive_at(node, s->now_us + (reaches ? s->lease_ms * MS / KEEP_ALIVES : 100 * MS));
}

/* ---- Away and back ---- */

void etcd_hear(struct node *node, bool heard)
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

void etcd_down(bool wipe)
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

void etcd_up(void)
{
    sim_trace("etcd is up");
    s->up = true;
    for (size_t i = 0; i < s->leases_count; i++) /* as a new leader does */
        s->leases[i].until_us = s->now_us + s->leases[i].ttl_us;
    for (unsigned i = 0; i < s->nodes_count; i++)
        if (s->nodes[i].alive && !is_cut(&s->nodes[i]))
            etcd_hear(&s->nodes[i], true);
}

void etcd_node_gone(struct node *node)
{
    for (int i = 0; i < 2; i++) {
        node->watches[i].on = false;
        node->watches[i].generation++;
    }
    node->take = 0;
    node->lease = 0;
}

void etcd_reset(void)
{
    etcd_free();
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

void etcd_free(void)
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
