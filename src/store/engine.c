/* The engine's jobs, peers and leases. See engine.h.
 *
 * A renewed lease only notes the time. Whoever is due is found by looking at all leases once the earliest of them may
 * be; healthy leases are renewed three times as often, so that happens about once in two thirds of their time.
 *
 * All times here are the engine's own, but for `now_ms` and `began_ms` of the functions that others call. */
#include "store/engine_parts.h"

#include "base/texts.h"

#include <assert.h>
#include <stdlib.h>

#define TOO_MANY_BOUND "the connection holds too many leases"

MU_DEFINE_TEXTS(mu_engine_end_text, enum mu_engine_end, MU_ENGINE_ENDS)

struct mu_engine *mu_engine_new(const struct mu_engine_config *config)
{
    struct mu_engine *e = calloc(1, sizeof *e);

    assert(config->revision >= MU_ENGINE_REVISION_MIN);
    if (e == NULL)
        return NULL;
    e->config = *config;
    e->revision = config->revision;
    e->share.max = config->budget->max / 2;
    e->next_ms = UINT64_MAX;
    mu_list_init(&e->jobs);
    return e;
}

enum mu_engine_code mu_engine_no_room(struct mu_engine *e, const char *what)
{
    e->full = what;
    return MU_ENGINE_EXHAUSTED;
}

const char *mu_engine_full(const struct mu_engine *e)
{
    assert(e->full != NULL);
    return e->full;
}

/* What is charged to the budget for so many bytes. */
static size_t charge_of(const struct mu_engine *e, size_t used)
{
    return used > e->config.reserved ? used - e->config.reserved : 0;
}

void *mu_engine_alloc(struct mu_engine *e, size_t bytes)
{
    size_t charge = charge_of(e, e->share.used + bytes) - charge_of(e, e->share.used);
    void *memory = NULL;

    if (!mu_budget_take(&e->share, bytes))
        return NULL;
    if (mu_budget_take(e->config.budget, charge)) {
        memory = calloc(1, bytes);
        if (memory == NULL)
            mu_budget_give(e->config.budget, charge);
    }
    if (memory == NULL)
        mu_budget_give(&e->share, bytes);
    return memory;
}

void mu_engine_release(struct mu_engine *e, void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    free(memory);
    mu_budget_give(e->config.budget, charge_of(e, e->share.used) - charge_of(e, e->share.used - bytes));
    mu_budget_give(&e->share, bytes);
}

int64_t mu_engine_revision(const struct mu_engine *e)
{
    return e->revision;
}

/* ---- The end of a job ---- */

static void free_job(struct mu_engine *e, struct mu_engine_job *job)
{
    assert(job->peers_count == 0 && job->leases_count == 0 && mu_list_empty(&job->prefixes));
    mu_engine_items_done(e, job);
    mu_list_remove(&job->link);
    e->openings += job->outsiders > 0;
    mu_engine_release(e, job, sizeof *job + job->len);
}

static void drop_if_unused(struct mu_engine *e, struct mu_engine_job *job)
{
    if (job->peers_count == 0 && job->leases_count == 0)
        free_job(e, job);
}

/* ---- Leases ---- */

static unsigned hash_of(const struct mu_engine *e, uint64_t lease)
{
    return mu_hash(e->config.seed, mu_slice(&lease, sizeof lease));
}

/* `job` NULL: of any job. */
struct mu_engine_lease *mu_engine_find_lease(const struct mu_engine *e, const struct mu_engine_job *job, uint64_t id)
{
    unsigned hash = hash_of(e, id);

    for (struct mu_bucket_item *item = mu_buckets_first(&e->leases, hash); item != NULL; item = item->next) {
        struct mu_engine_lease *lease = MU_LIST_ITEM(item, struct mu_engine_lease, item);

        if (lease->id == id)
            return job == NULL || lease->job == job ? lease : NULL;
    }
    return NULL;
}

/* The engine's time, at this time of the caller's. */
static uint64_t own_time(const struct mu_engine *e, uint64_t now_ms)
{
    uint64_t since_ms = now_ms > e->turned_ms ? now_ms - e->turned_ms : 0;

    return e->turn_of_ms + (since_ms < e->tick_ms + MU_ENGINE_LATE_MS ? since_ms : e->tick_ms + MU_ENGINE_LATE_MS);
}

static bool was_paused(const struct mu_engine *e, uint64_t now_ms)
{
    return e->leases.count > 0 && now_ms >= e->turned_ms + e->tick_ms + MU_ENGINE_PAUSE_MS;
}

static void tell_time(struct mu_engine *e, uint64_t now_ms)
{
    uint64_t own_ms = own_time(e, now_ms);

    if (own_ms > e->now_ms)
        e->now_ms = own_ms;
    if (was_paused(e, now_ms))
        e->forgiving_until_ms = e->now_ms + MU_ENGINE_AFTER_PAUSE_MS;
}

/* The next turn is wanted in so long. */
static void set_tick(struct mu_engine *e, uint64_t wait_ms)
{
    uint64_t idle_ms = wait_ms < MU_ENGINE_IDLE_TICK_MS ? wait_ms : MU_ENGINE_IDLE_TICK_MS;

    e->tick_ms = e->is_watching ? MU_ENGINE_TICK_MS : idle_ms;
}

/* Before there was a lease no turns were wanted. */
static void begin_to_turn(struct mu_engine *e, uint64_t now_ms, uint64_t wait_ms)
{
    e->turned_ms = now_ms;
    e->turn_of_ms = e->now_ms;
    set_tick(e, wait_ms);
}

static bool has_no_owner(const struct mu_engine_lease *lease)
{
    return lease->state == MU_ENGINE_LEASE_RESET || lease->state == MU_ENGINE_LEASE_CUT;
}

/* A healthy one is renewed after a third of its time. */
static bool is_overdue(const struct mu_engine_lease *lease, uint64_t now_ms)
{
    return now_ms >= lease->heard_ms + lease->ttl_ms / 2;
}

/* When it is to be looked at. */
static void plan(struct mu_engine *e, const struct mu_engine_lease *lease, uint64_t now_ms)
{
    uint64_t at_ms = lease->due_ms;

    if (has_no_owner(lease) || is_overdue(lease, now_ms))
        e->is_watching = true;
    else if (lease->heard_ms + lease->ttl_ms / 2 < at_ms)
        at_ms = lease->heard_ms + lease->ttl_ms / 2;
    if (at_ms < e->next_ms)
        e->next_ms = at_ms;
}

static void set_due(struct mu_engine *e, struct mu_engine_lease *lease, uint64_t due_ms)
{
    lease->due_ms = due_ms;
    plan(e, lease, e->now_ms);
}

static void renew(struct mu_engine *e, struct mu_engine_lease *lease)
{
    lease->heard_ms = e->now_ms;
    set_due(e, lease, e->now_ms + lease->ttl_ms);
}

static void check_lease(const struct mu_engine *e, const struct mu_engine_lease *lease)
{
    assert((lease->state == MU_ENGINE_LEASE_BOUND) == (lease->peer != NULL));
    assert(lease->peer == NULL || lease->peer->job == lease->job);
    assert(lease->peer != NULL || mu_list_empty(&lease->of_peer));
    assert(!lease->on_probation || has_no_owner(lease));
    assert(lease->heard_ms <= e->now_ms && lease->due_ms >= e->next_ms);
}

void mu_engine_check(const struct mu_engine *e)
{
    size_t counts[MU_ENGINE_LEASE_STATES_COUNT] = { 0 }, all = 0;

    MU_LIST_EACH (const struct mu_engine_job, job, &e->jobs, link) {
        size_t leases = 0;

        MU_LIST_EACH (const struct mu_engine_lease, lease, &job->leases, of_job) {
            assert(lease->job == job);
            check_lease(e, lease);
            counts[lease->state]++;
            leases++;
        }
        assert(leases == job->leases_count && job->peers_count + leases > 0);
        all += leases;
    }
    assert(all == e->leases.count && e->share.used <= e->config.budget->used);
    for (unsigned i = 0; i < MU_ENGINE_LEASE_STATES_COUNT; i++)
        assert(counts[i] == e->leases_count[i]);
    (void)all; /* where assertions are off */
}

static void become(struct mu_engine *e, struct mu_engine_lease *lease, enum mu_engine_lease_state state,
                   struct mu_engine_peer *peer)
{
    assert((state == MU_ENGINE_LEASE_BOUND) == (peer != NULL));
    assert(lease->state != MU_ENGINE_LEASE_FREE || state == MU_ENGINE_LEASE_FREE); /* it has no owner to lose */
    mu_list_remove(&lease->of_peer);
    e->leases_count[lease->state]--;
    e->leases_count[state]++;
    lease->state = state;
    lease->peer = peer;
    lease->on_probation = false;
    if (peer != NULL)
        mu_list_push(&peer->leases, &lease->of_peer);
}

/* The table takes what it needs, even if that is a little too much. */
static void settle_table(struct mu_engine *e)
{
    size_t slots = e->leases.size + (e->leases.old != NULL ? e->leases.old_size : 0);
    size_t table = slots * sizeof *e->leases.heads, used = e->share.used + table - e->table_charged;

    e->config.budget->used += charge_of(e, used) - charge_of(e, e->share.used);
    e->share.used = used;
    e->table_charged = table;
}

static void end_lease(struct mu_engine *e, struct mu_engine_lease *lease, enum mu_engine_end end)
{
    struct mu_engine_job *job = lease->job;

    mu_engine_end_keys(e, lease, end);
    assert(mu_list_empty(&lease->items));
    mu_list_remove(&lease->of_peer);
    mu_list_remove(&lease->of_job);
    e->leases_count[lease->state]--;
    mu_buckets_remove(&e->leases, &lease->item);
    if (e->leases.count == 0)
        mu_buckets_done(&e->leases);
    settle_table(e);
    job->leases_count--;
    mu_engine_release(e, lease, sizeof *lease);
    e->openings += job->outsiders > 0; /* perhaps nobody is in it any more */
    drop_if_unused(e, job);
}

static bool has_room_for_lease(const struct mu_engine_peer *peer)
{
    size_t count = 0;

    MU_LIST_EACH (struct mu_engine_lease, lease, &peer->leases, of_peer)
        count++;
    return count < MU_ENGINE_BOUND_MAX;
}

static bool is_grant_valid(const struct mu_engine_grant *grant)
{
    return grant->lease != 0 && grant->ttl_ms >= MU_ENGINE_TTL_MIN_MS && grant->ttl_ms <= MU_ENGINE_TTL_MAX_MS &&
           (grant->secret.len == 0 || grant->secret.len == MU_ENGINE_SECRET_BYTES);
}

enum mu_engine_code mu_engine_grant(struct mu_engine *e, struct mu_engine_peer *peer,
                                    const struct mu_engine_grant *grant, uint64_t now_ms)
{
    struct mu_engine_job *job = peer->job;
    struct mu_engine_lease *lease;

    tell_time(e, now_ms);
    if (job == NULL)
        return MU_ENGINE_PRECONDITION;
    if (!is_grant_valid(grant))
        return MU_ENGINE_INVALID;
    if (mu_engine_find_lease(e, NULL, grant->lease) != NULL)
        return MU_ENGINE_PRECONDITION;
    if (job->leases_count >= MU_ENGINE_LEASES_MAX)
        return mu_engine_no_room(e, "the job has too many leases");
    if (grant->bound && !has_room_for_lease(peer))
        return mu_engine_no_room(e, TOO_MANY_BOUND);
    lease = mu_engine_alloc(e, sizeof *lease);
    if (lease == NULL || !mu_buckets_add(&e->leases, &lease->item, hash_of(e, grant->lease))) {
        mu_engine_release(e, lease, sizeof *lease);
        return mu_engine_no_room(e, MU_ENGINE_NO_MEMORY);
    }
    settle_table(e);
    if (e->leases.count == 1)
        begin_to_turn(e, now_ms, grant->ttl_ms / 2);
    lease->id = grant->lease;
    lease->ttl_ms = grant->ttl_ms;
    lease->job = job;
    lease->has_secret = grant->secret.len > 0;
    if (lease->has_secret)
        memcpy(lease->secret, grant->secret.data, sizeof lease->secret);
    mu_list_init(&lease->items);
    mu_list_init(&lease->of_peer);
    mu_list_push(&job->leases, &lease->of_job);
    job->leases_count++;
    lease->state = grant->bound ? MU_ENGINE_LEASE_BOUND : MU_ENGINE_LEASE_FREE;
    lease->peer = grant->bound ? peer : NULL;
    if (grant->bound)
        mu_list_push(&peer->leases, &lease->of_peer);
    e->leases_count[lease->state]++;
    renew(e, lease);
    check_lease(e, lease);
    return MU_ENGINE_OK;
}

enum mu_engine_code mu_engine_attach(struct mu_engine *e, struct mu_engine_peer *peer, uint64_t id, uint64_t now_ms,
                                     struct mu_engine_last *ret_last, struct mu_engine_peer **ret_old)
{
    struct mu_engine_lease *lease;

    tell_time(e, now_ms);
    *ret_last = (struct mu_engine_last){ 0 };
    *ret_old = NULL;
    if (peer->job == NULL)
        return MU_ENGINE_PRECONDITION;
    lease = mu_engine_find_lease(e, peer->job, id);
    if (lease == NULL || lease->state == MU_ENGINE_LEASE_FREE)
        return MU_ENGINE_NOT_FOUND;
    if (lease->peer != peer && !has_room_for_lease(peer))
        return mu_engine_no_room(e, TOO_MANY_BOUND);
    *ret_last = lease->last;
    *ret_old = lease->peer != peer ? lease->peer : NULL;
    become(e, lease, MU_ENGINE_LEASE_BOUND, peer);
    renew(e, lease);
    check_lease(e, lease);
    return MU_ENGINE_OK;
}

enum mu_engine_code mu_engine_keep(struct mu_engine *e, struct mu_engine_peer *peer, uint64_t id, uint64_t now_ms)
{
    struct mu_engine_lease *lease;

    tell_time(e, now_ms);
    if (peer->job == NULL)
        return MU_ENGINE_PRECONDITION;
    lease = mu_engine_find_lease(e, peer->job, id);
    /* A bound lease is its own connection's to renew. */
    if (lease == NULL || (lease->state != MU_ENGINE_LEASE_FREE && lease->peer != peer))
        return MU_ENGINE_NOT_FOUND;
    renew(e, lease);
    return MU_ENGINE_OK;
}

/* Takes the same time wherever they differ. */
static bool is_secret(const struct mu_engine_lease *lease, struct mu_slice secret)
{
    unsigned differ = 0;

    if (!lease->has_secret || secret.len != sizeof lease->secret)
        return false;
    for (size_t i = 0; i < sizeof lease->secret; i++)
        differ |= lease->secret[i] ^ (unsigned char)secret.data[i];
    return differ == 0;
}

/* For the others to read; a lease ends also without it. */
static void put_mark(struct mu_engine *e, struct mu_engine_job *job, const struct mu_engine_op *mark)
{
    const struct mu_engine_txn txn = { .id = 1, .then = mark, .then_count = 1 };
    struct mu_engine_peer nobody;
    bool held;

    assert(mark->kind == MU_ENGINE_PUT);
    mu_engine_peer_init(&nobody);
    nobody.job = job;
    (void)mu_engine_txn(e, &nobody, &txn, &held);
}

enum mu_engine_code mu_engine_revoke(struct mu_engine *e, struct mu_engine_peer *peer, uint64_t id,
                                     struct mu_slice secret, const struct mu_engine_op *mark)
{
    struct mu_engine_lease *lease = mu_engine_find_lease(e, peer->job, id);

    if (lease == NULL)
        return MU_ENGINE_NOT_FOUND;
    if (peer->job == NULL && !is_secret(lease, secret))
        return MU_ENGINE_DENIED;
    if (mark != NULL && mark->key.len > 0)
        put_mark(e, lease->job, mark);
    end_lease(e, lease, MU_ENGINE_REVOKED);
    return MU_ENGINE_OK;
}

/* ---- Time ---- */

uint64_t mu_engine_deadline_ms(const struct mu_engine *e)
{
    uint64_t wait_ms = e->next_ms > e->turn_of_ms ? e->next_ms - e->turn_of_ms : 0;
    uint64_t tick_ms = e->is_watching ? MU_ENGINE_TICK_MS : MU_ENGINE_IDLE_TICK_MS;

    if (e->next_ms == UINT64_MAX)
        return UINT64_MAX;
    return e->turned_ms + (wait_ms < tick_ms ? wait_ms : tick_ms);
}

bool mu_engine_expects_peers(const struct mu_engine *e)
{
    return e->leases_count[MU_ENGINE_LEASE_RESET] + e->leases_count[MU_ENGINE_LEASE_CUT] > 0;
}

/* A healthy lease is renewed after a third of its time, so one that was not heard for half of it has missed a renewal.
 * When the first is due, these are all that fell silent within half of its time. To see all that did within its whole
 * time, the engine would have to wait with each loss for half of that time again. */
static bool is_silent(const struct mu_engine_lease *lease, uint64_t now_ms)
{
    return lease->state == MU_ENGINE_LEASE_BOUND && is_overdue(lease, now_ms);
}

static bool is_network_suspect(const struct mu_engine_job *job, uint64_t now_ms)
{
    size_t silent = 0, bound = 0;

    MU_LIST_EACH (struct mu_engine_lease, lease, &job->leases, of_job) {
        bound += lease->state == MU_ENGINE_LEASE_BOUND;
        silent += is_silent(lease, now_ms);
    }
    return silent >= 2 && silent * 2 >= bound;
}

static bool has_due(const struct mu_engine_job *job, uint64_t now_ms)
{
    MU_LIST_EACH (struct mu_engine_lease, lease, &job->leases, of_job)
        if (lease->due_ms <= now_ms)
            return true;
    return false;
}

/* Before leases of the job are ended for their silence. A suspicion is held once, and then those who are still silent
 * end. */
static void suspect_network(struct mu_engine_job *job, uint64_t now_ms)
{
    if (job->suspected_until_ms == 0 && has_due(job, now_ms) && is_network_suspect(job, now_ms))
        job->suspected_until_ms = now_ms + MU_ENGINE_SUSPECT_MS;
    if (job->suspected_until_ms <= now_ms)
        return;
    MU_LIST_EACH (struct mu_engine_lease, lease, &job->leases, of_job)
        if ((lease->due_ms <= now_ms || is_silent(lease, now_ms)) && lease->due_ms < job->suspected_until_ms)
            lease->due_ms = job->suspected_until_ms;
}

/* A lease without a connection: its owner may have connected, and not been accepted yet. */
static void put_on_probation(struct mu_engine_job *job, uint64_t now_ms)
{
    MU_LIST_EACH (struct mu_engine_lease, lease, &job->leases, of_job) {
        if (!has_no_owner(lease) || lease->on_probation || lease->due_ms > now_ms)
            continue;
        lease->on_probation = true;
        lease->due_ms = now_ms + MU_ENGINE_PROBATION_MS;
    }
}

static void judge(struct mu_engine *e, struct mu_engine_job *job, uint64_t now_ms)
{
    struct mu_engine_lease *ends;
    struct mu_list due;

    suspect_network(job, now_ms);
    put_on_probation(job, now_ms);
    mu_list_init(&due);
    MU_LIST_EACH_LEAVING (struct mu_engine_lease, lease, &job->leases, of_job) {
        if (lease->due_ms <= now_ms) {
            mu_list_remove(&lease->of_job);
            mu_list_push(&due, &lease->of_job);
        } else {
            plan(e, lease, now_ms);
        }
    }
    if (job->suspected_until_ms <= now_ms)
        job->suspected_until_ms = 0;
    while ((ends = MU_LIST_FIRST(struct mu_engine_lease, &due, of_job)) != NULL) /* the last may take the job with it */
        end_lease(e, ends, ends->state == MU_ENGINE_LEASE_RESET ? MU_ENGINE_RESET : MU_ENGINE_SILENT);
}

/* A turn's time is that of its poll's beginning: what was heard in that poll may be later. */
void mu_engine_turn(struct mu_engine *e, uint64_t began_ms)
{
    tell_time(e, began_ms);
    e->turn_of_ms = own_time(e, began_ms);
    if (began_ms > e->turned_ms)
        e->turned_ms = began_ms;
    if (e->turn_of_ms >= e->next_ms) {
        e->next_ms = UINT64_MAX;
        e->is_watching = false;
        MU_LIST_EACH_LEAVING (struct mu_engine_job, job, &e->jobs, link)
            judge(e, job, e->turn_of_ms);
        assert(e->next_ms > e->turn_of_ms);
        mu_engine_check(e);
    }
    set_tick(e, e->next_ms - e->turn_of_ms);
}

/* ---- Jobs and peers ---- */

static struct mu_engine_job *make_job(struct mu_engine *e, struct mu_slice run_id)
{
    struct mu_engine_job *job = mu_engine_alloc(e, sizeof *job + run_id.len);

    if (job == NULL)
        return NULL;
    mu_list_init(&job->peers);
    mu_list_init(&job->leases);
    mu_list_init(&job->prefixes);
    job->number = ++e->jobs_made;
    job->len = run_id.len;
    memcpy(job->run_id, run_id.data, run_id.len);
    mu_list_push(&e->jobs, &job->link);
    return job;
}

/* NULL: there is none. */
static struct mu_engine_job *find_job(const struct mu_engine *e, struct mu_slice run_id)
{
    MU_LIST_EACH (struct mu_engine_job, job, &e->jobs, link)
        if (mu_slice_equal(mu_slice(job->run_id, job->len), run_id))
            return job;
    return NULL;
}

/* ---- Outsiders ---- */

/* Free leases are nobody's, and a connection alone is no node that takes part. */
static bool is_left(const struct mu_engine_job *job)
{
    MU_LIST_EACH (const struct mu_engine_lease, lease, &job->leases, of_job)
        if (lease->state != MU_ENGINE_LEASE_FREE)
            return false;
    return true;
}

enum mu_engine_place mu_engine_place_of(const struct mu_engine *e, struct mu_slice run_id)
{
    const struct mu_engine_job *job = find_job(e, run_id);

    if (job == NULL)
        return MU_ENGINE_PLACE_NONE;
    if (job->moved)
        return MU_ENGINE_PLACE_MOVED;
    if (job->only)
        return MU_ENGINE_PLACE_ONLY;
    if (job->has_document)
        return MU_ENGINE_PLACE_DOCUMENT;
    return is_left(job) ? MU_ENGINE_PLACE_LEFT : MU_ENGINE_PLACE_HERE;
}

uint64_t mu_engine_openings(const struct mu_engine *e)
{
    return e->openings;
}

void mu_engine_give_up(struct mu_engine *e, struct mu_slice run_id)
{
    struct mu_engine_job *job = find_job(e, run_id);

    assert(job != NULL && is_left(job));
    job->moved = true;
    e->openings += job->outsiders > 0;
}

/* Of as many as wait now. False: no memory. */
static bool tell_of_outsiders(struct mu_engine *e, struct mu_engine_job *job)
{
    struct mu_slice value = mu_slice_str(job->old > 0 ? "{\"v\":2,\"old\":1}" : "{\"v\":2,\"old\":0}");

    if (job->outsiders == 0)
        value = mu_slice(NULL, 0);
    return mu_engine_put_own(e, job, mu_slice_str(MU_ENGINE_OUTSIDERS), value);
}

uint64_t mu_engine_wait(struct mu_engine *e, struct mu_slice run_id, bool old)
{
    struct mu_engine_job *job = find_job(e, run_id);
    bool is_news;

    assert(job != NULL);
    is_news = job->outsiders == 0 || (old && job->old == 0);
    job->outsiders++;
    job->old += old;
    if (!is_news || tell_of_outsiders(e, job))
        return job->number;
    job->outsiders--;
    job->old -= old;
    return 0;
}

bool mu_engine_still_waits(const struct mu_engine *e, struct mu_slice run_id, uint64_t number)
{
    const struct mu_engine_job *job = find_job(e, run_id);

    return job != NULL && job->number == number && mu_engine_place_of(e, run_id) == MU_ENGINE_PLACE_HERE;
}

/* Without memory a document for an old one is written, though that one has gone. */
void mu_engine_wait_over(struct mu_engine *e, struct mu_slice run_id, uint64_t number, bool old)
{
    struct mu_engine_job *job = find_job(e, run_id);

    if (job == NULL || job->number != number)
        return;
    assert(job->outsiders > 0 && job->old >= old);
    job->outsiders--;
    job->old -= old;
    if (job->outsiders == 0 || (old && job->old == 0))
        (void)tell_of_outsiders(e, job);
}

/* ---- Peers ---- */

void mu_engine_peer_init(struct mu_engine_peer *peer)
{
    *peer = (struct mu_engine_peer){ 0 };
    mu_list_init(&peer->link);
    mu_list_init(&peer->leases);
    for (size_t i = 0; i < MU_ENGINE_WATCHES_MAX; i++) {
        mu_list_init(&peer->watches[i].link);
        peer->watches[i].peer = peer;
    }
}

enum mu_engine_code mu_engine_hello(struct mu_engine *e, struct mu_engine_peer *peer, struct mu_slice run_id, bool only)
{
    struct mu_engine_job *job;

    if (peer->job != NULL)
        return MU_ENGINE_PRECONDITION;
    if (run_id.len == 0 || run_id.len > MU_ENGINE_RUN_ID_MAX)
        return MU_ENGINE_INVALID;
    job = find_job(e, run_id);
    if (job == NULL)
        job = make_job(e, run_id);
    if (job == NULL)
        return mu_engine_no_room(e, MU_ENGINE_NO_MEMORY);
    if (job->peers_count >= MU_ENGINE_PEERS_MAX)
        return mu_engine_no_room(e, "the job has too many connections");
    peer->job = job;
    mu_list_push(&job->peers, &peer->link);
    job->peers_count++;
    if (only && !job->only)
        e->openings++; /* they are refused */
    job->only |= only;
    return MU_ENGINE_OK;
}

void mu_engine_heard(struct mu_engine *e, struct mu_engine_peer *peer, uint64_t now_ms)
{
    tell_time(e, now_ms);
    MU_LIST_EACH (struct mu_engine_lease, lease, &peer->leases, of_peer)
        renew(e, lease);
}

/* Behind a full queue of newcomers its owner may have to try to connect more than once. */
static bool may_be_given_up_for_our_pause(const struct mu_engine *e)
{
    return e->now_ms < e->forgiving_until_ms;
}

void mu_engine_leave(struct mu_engine *e, struct mu_engine_peer *peer, bool cut, uint64_t now_ms)
{
    struct mu_engine_job *job = peer->job;

    tell_time(e, now_ms);
    cut = cut || may_be_given_up_for_our_pause(e);
    if (job == NULL)
        return;
    MU_LIST_EACH_LEAVING (struct mu_engine_lease, lease, &peer->leases, of_peer) {
        uint64_t wait_ms = MU_ENGINE_RECONNECT_MS;

        if (cut && lease->ttl_ms > wait_ms)
            wait_ms = lease->ttl_ms;
        become(e, lease, cut ? MU_ENGINE_LEASE_CUT : MU_ENGINE_LEASE_RESET, NULL);
        set_due(e, lease, e->now_ms + wait_ms);
        check_lease(e, lease);
    }
    mu_engine_watches_done(e, peer);
    mu_list_remove(&peer->link);
    job->peers_count--;
    peer->job = NULL;
    e->openings += job->outsiders > 0;
    drop_if_unused(e, job);
}

void mu_engine_free(struct mu_engine *e)
{
    struct mu_engine_job *job;

    if (e == NULL)
        return;
    while ((job = MU_LIST_FIRST(struct mu_engine_job, &e->jobs, link)) != NULL) { /* its last lease takes it along */
        assert(job->peers_count == 0);
        assert(job->leases_count > 0);
        end_lease(e, MU_LIST_FIRST(struct mu_engine_lease, &job->leases, of_job), MU_ENGINE_REVOKED);
    }
    mu_buckets_done(&e->leases);
    free(e);
}
