/* The engine's jobs, peers and leases. See engine.h.
 *
 * A renewed lease only notes the time. Whoever is due is found by looking at all leases once the earliest of them may
 * be; healthy leases are renewed three times as often, so that happens about once in two thirds of their time. */
#include "store/engine_parts.h"

#include "base/texts.h"

#include <assert.h>
#include <stdlib.h>

MU_DEFINE_TEXTS(mu_engine_end_text, enum mu_engine_end, MU_ENGINE_ENDS)

struct mu_engine *mu_engine_new(const struct mu_engine_config *config)
{
    struct mu_engine *e = calloc(1, sizeof *e);

    assert(config->revision >= MU_ENGINE_REVISION_MIN);
    if (e == NULL)
        return NULL;
    e->config = *config;
    e->revision = config->revision;
    e->next_ms = UINT64_MAX;
    mu_list_init(&e->jobs);
    return e;
}

int64_t mu_engine_revision(const struct mu_engine *e)
{
    return e->revision;
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

static void set_due(struct mu_engine *e, struct mu_engine_lease *lease, uint64_t due_ms)
{
    lease->due_ms = due_ms;
    if (due_ms < e->next_ms)
        e->next_ms = due_ms;
}

static void renew(struct mu_engine *e, struct mu_engine_lease *lease, uint64_t now_ms)
{
    lease->heard_ms = now_ms;
    set_due(e, lease, now_ms + lease->ttl_ms);
}

static void become(struct mu_engine_lease *lease, enum mu_engine_lease_state state, struct mu_engine_peer *peer)
{
    assert((state == MU_ENGINE_LEASE_BOUND) == (peer != NULL));
    mu_list_remove(&lease->of_peer);
    lease->state = state;
    lease->peer = peer;
    lease->on_probation = false;
    if (peer != NULL)
        mu_list_push(&peer->leases, &lease->of_peer);
}

static void end_lease(struct mu_engine *e, struct mu_engine_lease *lease, enum mu_engine_end end)
{
    struct mu_engine_job *job = lease->job;

    mu_engine_end_keys(e, lease, end);
    assert(mu_list_empty(&lease->items));
    mu_list_remove(&lease->of_peer);
    mu_list_remove(&lease->of_job);
    mu_buckets_remove(&e->leases, &lease->item);
    job->leases_count--;
    free(lease);
    mu_budget_give(e->config.budget, sizeof *lease);
    mu_engine_job_drop(e, job);
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

    if (job == NULL)
        return MU_ENGINE_PRECONDITION;
    if (!is_grant_valid(grant))
        return MU_ENGINE_INVALID;
    if (mu_engine_find_lease(e, NULL, grant->lease) != NULL)
        return MU_ENGINE_PRECONDITION;
    if (job->leases_count >= MU_ENGINE_LEASES_MAX || (grant->bound && !has_room_for_lease(peer)) ||
        !mu_budget_take(e->config.budget, sizeof *lease))
        return MU_ENGINE_EXHAUSTED;
    lease = calloc(1, sizeof *lease);
    if (lease == NULL || !mu_buckets_add(&e->leases, &lease->item, hash_of(e, grant->lease))) {
        free(lease);
        mu_budget_give(e->config.budget, sizeof *lease);
        return MU_ENGINE_EXHAUSTED;
    }
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
    become(lease, grant->bound ? MU_ENGINE_LEASE_BOUND : MU_ENGINE_LEASE_FREE, grant->bound ? peer : NULL);
    renew(e, lease, now_ms);
    return MU_ENGINE_OK;
}

enum mu_engine_code mu_engine_attach(struct mu_engine *e, struct mu_engine_peer *peer, uint64_t id, uint64_t now_ms,
                                     struct mu_engine_last *ret_last, struct mu_engine_peer **ret_old)
{
    struct mu_engine_lease *lease;

    *ret_last = (struct mu_engine_last){ 0 };
    *ret_old = NULL;
    if (peer->job == NULL)
        return MU_ENGINE_PRECONDITION;
    lease = mu_engine_find_lease(e, peer->job, id);
    if (lease == NULL || lease->state == MU_ENGINE_LEASE_FREE)
        return MU_ENGINE_NOT_FOUND;
    if (lease->peer != peer && !has_room_for_lease(peer))
        return MU_ENGINE_EXHAUSTED;
    *ret_last = lease->last;
    *ret_old = lease->peer != peer ? lease->peer : NULL;
    become(lease, MU_ENGINE_LEASE_BOUND, peer);
    renew(e, lease, now_ms);
    return MU_ENGINE_OK;
}

enum mu_engine_code mu_engine_keep(struct mu_engine *e, struct mu_engine_peer *peer, uint64_t id, uint64_t now_ms)
{
    struct mu_engine_lease *lease;

    if (peer->job == NULL)
        return MU_ENGINE_PRECONDITION;
    lease = mu_engine_find_lease(e, peer->job, id);
    /* A bound lease is its own connection's to renew. */
    if (lease == NULL || (lease->state != MU_ENGINE_LEASE_FREE && lease->peer != peer))
        return MU_ENGINE_NOT_FOUND;
    renew(e, lease, now_ms);
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

enum mu_engine_code mu_engine_revoke(struct mu_engine *e, struct mu_engine_peer *peer, uint64_t id,
                                     struct mu_slice secret)
{
    struct mu_engine_lease *lease = mu_engine_find_lease(e, peer->job, id);

    if (lease == NULL)
        return MU_ENGINE_NOT_FOUND;
    if (peer->job == NULL && !is_secret(lease, secret))
        return MU_ENGINE_DENIED;
    end_lease(e, lease, MU_ENGINE_REVOKED);
    return MU_ENGINE_OK;
}

/* ---- Time ---- */

uint64_t mu_engine_deadline_ms(const struct mu_engine *e)
{
    return e->next_ms;
}

/* A healthy lease is renewed after a third of its time. */
static bool is_silent(const struct mu_engine_lease *lease, uint64_t now_ms)
{
    return lease->state == MU_ENGINE_LEASE_BOUND && now_ms >= lease->heard_ms + lease->ttl_ms / 2;
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
        bool waits = lease->state == MU_ENGINE_LEASE_RESET || lease->state == MU_ENGINE_LEASE_CUT;

        if (!waits || lease->on_probation || lease->due_ms > now_ms)
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
        } else if (lease->due_ms < e->next_ms) {
            e->next_ms = lease->due_ms;
        }
    }
    if (job->suspected_until_ms <= now_ms)
        job->suspected_until_ms = 0;
    while ((ends = MU_LIST_FIRST(struct mu_engine_lease, &due, of_job)) != NULL) /* the last may take the job with it */
        end_lease(e, ends, ends->state == MU_ENGINE_LEASE_RESET ? MU_ENGINE_RESET : MU_ENGINE_SILENT);
}

/* We were away ourselves for that long. */
static void put_off(struct mu_engine *e, uint64_t late_ms)
{
    MU_LIST_EACH (struct mu_engine_job, job, &e->jobs, link)
        MU_LIST_EACH (struct mu_engine_lease, lease, &job->leases, of_job)
            lease->due_ms += late_ms;
    e->next_ms += late_ms;
}

void mu_engine_turn(struct mu_engine *e, uint64_t began_ms)
{
    if (began_ms < e->next_ms)
        return;
    if (began_ms - e->next_ms > MU_ENGINE_LATE_MS) {
        put_off(e, began_ms - e->next_ms);
        return;
    }
    e->next_ms = UINT64_MAX;
    MU_LIST_EACH_LEAVING (struct mu_engine_job, job, &e->jobs, link)
        judge(e, job, began_ms);
    assert(e->next_ms > began_ms);
}

/* ---- Jobs and peers ---- */

static size_t job_cost(size_t len)
{
    return sizeof(struct mu_engine_job) + len;
}

static struct mu_engine_job *make_job(struct mu_engine *e, struct mu_slice run_id)
{
    struct mu_engine_job *job;

    if (!mu_budget_take(e->config.budget, job_cost(run_id.len)))
        return NULL;
    job = calloc(1, job_cost(run_id.len));
    if (job == NULL) {
        mu_budget_give(e->config.budget, job_cost(run_id.len));
        return NULL;
    }
    mu_list_init(&job->peers);
    mu_list_init(&job->leases);
    mu_list_init(&job->prefixes);
    job->len = run_id.len;
    memcpy(job->run_id, run_id.data, run_id.len);
    mu_list_push(&e->jobs, &job->link);
    return job;
}

static struct mu_engine_job *find_job(struct mu_engine *e, struct mu_slice run_id)
{
    MU_LIST_EACH (struct mu_engine_job, job, &e->jobs, link)
        if (mu_slice_equal(mu_slice(job->run_id, job->len), run_id))
            return job;
    return make_job(e, run_id);
}

static void free_job(struct mu_engine *e, struct mu_engine_job *job)
{
    assert(job->peers_count == 0 && job->leases_count == 0 && mu_list_empty(&job->prefixes));
    mu_engine_items_done(e, job);
    mu_list_remove(&job->link);
    mu_budget_give(e->config.budget, job_cost(job->len));
    free(job);
}

void mu_engine_job_drop(struct mu_engine *e, struct mu_engine_job *job)
{
    if (job->peers_count == 0 && job->leases_count == 0 && job->count == 0)
        free_job(e, job);
}

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

enum mu_engine_code mu_engine_hello(struct mu_engine *e, struct mu_engine_peer *peer, struct mu_slice run_id)
{
    struct mu_engine_job *job;

    if (peer->job != NULL)
        return MU_ENGINE_PRECONDITION;
    if (run_id.len == 0 || run_id.len > MU_ENGINE_RUN_ID_MAX)
        return MU_ENGINE_INVALID;
    job = find_job(e, run_id);
    if (job == NULL || job->peers_count >= MU_ENGINE_PEERS_MAX)
        return MU_ENGINE_EXHAUSTED;
    peer->job = job;
    mu_list_push(&job->peers, &peer->link);
    job->peers_count++;
    return MU_ENGINE_OK;
}

void mu_engine_heard(struct mu_engine *e, struct mu_engine_peer *peer, uint64_t now_ms)
{
    MU_LIST_EACH (struct mu_engine_lease, lease, &peer->leases, of_peer)
        renew(e, lease, now_ms);
}

void mu_engine_leave(struct mu_engine *e, struct mu_engine_peer *peer, bool cut, uint64_t now_ms)
{
    struct mu_engine_job *job = peer->job;

    if (job == NULL)
        return;
    MU_LIST_EACH_LEAVING (struct mu_engine_lease, lease, &peer->leases, of_peer) {
        become(lease, cut ? MU_ENGINE_LEASE_CUT : MU_ENGINE_LEASE_RESET, NULL);
        set_due(e, lease, now_ms + (cut ? lease->ttl_ms : MU_ENGINE_RECONNECT_MS));
    }
    mu_engine_watches_done(e, peer);
    mu_list_remove(&peer->link);
    job->peers_count--;
    peer->job = NULL;
    mu_engine_job_drop(e, job);
}

void mu_engine_free(struct mu_engine *e)
{
    struct mu_engine_job *job;

    if (e == NULL)
        return;
    while ((job = MU_LIST_FIRST(struct mu_engine_job, &e->jobs, link)) != NULL) {
        assert(job->peers_count == 0);
        job->peers_count = 1; /* so that it does not go with its last lease */
        MU_LIST_EACH_LEAVING (struct mu_engine_lease, lease, &job->leases, of_job)
            end_lease(e, lease, MU_ENGINE_REVOKED);
        job->peers_count = 0;
        free_job(e, job);
    }
    mu_buckets_done(&e->leases);
    free(e);
}
