/* Those who meet in the job's document in the store, as far as the engine sees them: PyTorch nodes that come, and nodes
 * to which the engine has said that the job has moved. One that asks for the document waits while the engine has the
 * job (store/session.h); else it goes on, and the job has moved. What is in the document is another simulator's. With
 * their server they lose it: nodes that had moved ask for it at the next one, and some of the PyTorch nodes do. */
#include "fold_sim.h"

#include "store/engine.h"

enum { OUTSIDERS_MAX = 4 * NODES_MAX };

static struct outsider {
    bool there, old;
    bool had_moved;        /* it was a node in the engine */
    unsigned node;         /* ... this one */
    struct server *server; /* that it is connected to; NULL: none */
    uint64_t job;          /* it waits for this one's document; 0: it is in the document, or has not asked yet */
    uint64_t openings;     /* when it began to wait: the server lets nobody look again before that goes up */
} outsiders[OUTSIDERS_MAX];
static size_t outsiders_count;

static struct mu_slice job_name(void)
{
    return mu_slice_str("job");
}

static const char *name_of(const struct outsider *o)
{
    return o->had_moved ? "a node that had moved" : "a PyTorch node";
}

static void stop_waiting(struct outsider *o)
{
    if (o->job == 0)
        return;
    mu_engine_wait_over(store_engine(o->server), job_name(), o->job, o->old);
    store_changed(o->server);
    o->job = 0;
}

static void on_knock(void *arg);

static void knock_later(struct outsider *o, uint64_t in_us)
{
    o->server = NULL;
    o->job = 0;
    sim_at(s->now_us + in_us, on_knock, o);
}

/* It asks for the document. */
static void knock(struct outsider *o, struct server *server)
{
    struct mu_engine *engine = store_engine(server);
    enum mu_engine_place place = mu_engine_place_of(engine, job_name());

    o->server = server;
    if (place == MU_ENGINE_PLACE_HERE) {
        o->job = mu_engine_wait(engine, job_name(), o->old);
        if (o->job == 0)
            abort();
        o->openings = mu_engine_openings(engine);
        sim_trace("store: %s waits for the document", name_of(o));
    } else if (place == MU_ENGINE_PLACE_DOCUMENT) {
        sim_trace("store: %s finds the job closed", name_of(o));
        o->there = false;
    } else {
        if (place == MU_ENGINE_PLACE_LEFT)
            mu_engine_give_up(engine, job_name());
        sim_trace("store: %s is in the document", name_of(o));
    }
    store_changed(server);
}

static void on_knock(void *arg)
{
    struct outsider *o = arg;
    struct server *server;

    if (s->over || !o->there || o->server != NULL)
        return;
    server = store_at_endpoint();
    if (server == NULL)
        knock_later(o, 200 * MS + mu_rng_below(&s->stock, SECOND));
    else
        knock(o, server);
}

void outside_reset(void)
{
    outsiders_count = 0;
}

static struct outsider *add(struct outsider like)
{
    if (outsiders_count == OUTSIDERS_MAX)
        abort();
    like.there = true;
    outsiders[outsiders_count] = like;
    return &outsiders[outsiders_count++];
}

void outside_stock_comes(bool old)
{
    struct server *server = store_at_endpoint();
    enum mu_engine_place place =
        server != NULL ? mu_engine_place_of(store_engine(server), job_name()) : MU_ENGINE_PLACE_NONE;

    if (server == NULL || (!s->on_after_move && place != MU_ENGINE_PLACE_HERE))
        return;
    sim_trace("store: a PyTorch node comes");
    knock(add((struct outsider){ .old = old }), server);
}

/* It goes to the store where it was told so, while that one is there. */
void outside_node_comes(const struct node *node, struct server *server)
{
    struct outsider *o = add((struct outsider){ .had_moved = true, .node = node->index });

    if (server != NULL)
        knock(o, server);
    else
        knock_later(o, mu_rng_below(&s->stock, SECOND));
}

static void goes(struct outsider *o)
{
    sim_trace("store: %s goes", name_of(o));
    stop_waiting(o);
    o->there = false;
}

/* Those of an old protocol last. */
void outside_stock_goes(void)
{
    struct outsider *last = NULL;

    for (size_t i = 0; i < outsiders_count; i++)
        if (outsiders[i].there && !outsiders[i].had_moved && outsiders[i].job != 0 &&
            outsiders[i].server == store_at_endpoint() && (last == NULL || last->old))
            last = &outsiders[i];
    if (last != NULL)
        goes(last);
}

bool outside_has_stock(void)
{
    for (size_t i = 0; i < outsiders_count; i++)
        if (outsiders[i].there && !outsiders[i].had_moved && outsiders[i].job != 0 &&
            outsiders[i].server == store_at_endpoint())
            return true;
    return false;
}

/* Any of them. */
void outside_one_dies(void)
{
    struct outsider *o = outsiders_count > 0 ? &outsiders[mu_rng_below(&s->stock, outsiders_count)] : NULL;

    if (o != NULL && o->there && (o->server == NULL || o->job == 0 || store_answers(o->server)))
        goes(o);
}

void outside_node_dies(const struct node *node)
{
    for (size_t i = 0; i < outsiders_count; i++)
        if (outsiders[i].there && outsiders[i].had_moved && outsiders[i].node == node->index)
            goes(&outsiders[i]);
}

/* A turn of the server is over. */
void outside_look(struct server *server)
{
    for (size_t i = 0; i < outsiders_count; i++) {
        struct outsider *o = &outsiders[i];

        if (!o->there || o->server != server || o->job == 0 ||
            mu_engine_still_waits(store_engine(server), job_name(), o->job))
            continue;
        SIM_EXPECT(mu_engine_openings(store_engine(server)) != o->openings, "%s could go on, and is not told so",
                   name_of(o));
        stop_waiting(o);
        knock(o, server);
    }
}

/* Before its engine is gone. */
void outside_server_ends(struct server *server)
{
    for (size_t i = 0; i < outsiders_count; i++) {
        struct outsider *o = &outsiders[i];

        if (!o->there || o->server != server)
            continue;
        stop_waiting(o);
        if (!s->on_after_move || (!o->had_moved && mu_rng_below(&s->stock, 2) == 0))
            goes(o);
        else
            knock_later(o, mu_rng_below(&s->stock, (mu_rng_below(&s->stock, 3) == 0 ? 20 : 1) * SECOND));
    }
}

size_t outside_waiting(void)
{
    size_t count = 0;

    for (size_t i = 0; i < outsiders_count; i++)
        count += outsiders[i].there && (outsiders[i].server == NULL || outsiders[i].job != 0);
    return count;
}
