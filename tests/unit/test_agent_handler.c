/* Agents with rendezvous handlers and back ends of a user's own: the installed header, the shared object, nothing
 * else. */
#include <muster.h>

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_S = 60, NODES_MAX = 3 };

static char scratch[] = "/tmp/muster-agent-handler.XXXXXX";

static int make_scratch(void **state)
{
    (void)state;
    return mkdtemp(scratch) == NULL ? -1 : 0;
}

static int remove_scratch(void **state)
{
    char command[64];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command);
}

static struct timespec in_patience(void)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    return until;
}

static int refuse(struct muster_error *reterr, int code, const char *text)
{
    if (reterr != NULL) {
        reterr->code = code;
        (void)snprintf(reterr->text, sizeof reterr->text, "%s", text);
    }
    return code;
}

/* ---- A blocking handler: nodes of one process meet in a hall ---- */

struct hall {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct muster_store_server *server;
    /* Under lock: */
    int wanted;  /* the next round takes so many */
    int waiting; /* in next_rendezvous() */
    int64_t round;
    bool closed, deaf; /* deaf: nobody hears shutdown() */
    bool not_yet;      /* is all that next_rendezvous() says */
    bool is_full;      /* whoever comes is not needed */
    bool is_stuck;     /* calls of the round's store do not return */
    int fails;         /* of so many calls of num_nodes_waiting() */
    int shutdowns, frees, questions, set_closeds, inside, calls;
};

struct stuck { /* a store whose calls do not return while the hall is stuck */
    struct muster_store base;
    struct hall *hall;
};

struct door { /* a node's way into the hall */
    struct muster_rdzv base;
    struct hall *hall;
    struct muster_store *tcp, *view;
    struct stuck stuck;
    bool own_address, shut;
    int64_t rank, round;
};

static int be_stuck(struct muster_store *store)
{
    struct hall *hall = ((struct stuck *)store)->hall;

    (void)pthread_mutex_lock(&hall->lock);
    hall->inside++;
    (void)pthread_cond_broadcast(&hall->changed);
    while (hall->is_stuck)
        (void)pthread_cond_wait(&hall->changed, &hall->lock);
    hall->inside--;
    (void)pthread_cond_broadcast(&hall->changed);
    (void)pthread_mutex_unlock(&hall->lock);
    return MUSTER_ETIMEOUT;
}

static int stuck_set(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                     struct muster_error *reterr)
{
    (void)key;
    (void)value;
    (void)timeout_ms;
    (void)reterr;
    return be_stuck(store);
}

static int stuck_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                     struct muster_bytes *ret_value, struct muster_error *reterr)
{
    (void)key;
    (void)timeout_ms;
    (void)ret_value;
    (void)reterr;
    return be_stuck(store);
}

static int stuck_add(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
                     int64_t *ret_value, struct muster_error *reterr)
{
    (void)key;
    (void)delta;
    (void)timeout_ms;
    (void)ret_value;
    (void)reterr;
    return be_stuck(store);
}

static const struct muster_store_ops stuck_ops = {
    .size = sizeof stuck_ops, .name = "stuck", .set = stuck_set, .get = stuck_get, .add = stuck_add
};

static void open_hall(struct hall *hall, int wanted)
{
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };

    *hall = (struct hall){ .wanted = wanted, .round = -1 };
    (void)pthread_mutex_init(&hall->lock, NULL);
    (void)pthread_cond_init(&hall->changed, NULL);
    assert_int_equal(muster_store_server_start(&config, &hall->server, NULL), 0);
}

static void close_hall(struct hall *hall)
{
    muster_store_server_stop(hall->server);
    (void)pthread_mutex_destroy(&hall->lock);
    (void)pthread_cond_destroy(&hall->changed);
}

static const char *door_backend(const struct muster_rdzv *rdzv)
{
    (void)rdzv;
    return "hall";
}

static const char *door_run_id(const struct muster_rdzv *rdzv)
{
    (void)rdzv;
    return "job";
}

static bool door_shares(const struct muster_rdzv *rdzv)
{
    return ((const struct door *)rdzv)->own_address;
}

static int open_store(struct door *door, struct muster_error *reterr)
{
    struct muster_store_tcp_config config = { .size = sizeof config,
                                              .host = "127.0.0.1",
                                              .port = muster_store_server_port(door->hall->server) };
    char prefix[32];
    int rc = 0;

    if (door->tcp == NULL)
        rc = muster_store_tcp_new(&config, &door->tcp, reterr);
    muster_store_free(door->view);
    door->view = NULL;
    (void)snprintf(prefix, sizeof prefix, "round-%d", (int)door->round);
    return rc == 0 ? muster_store_prefix_new(muster_str(prefix), door->tcp, &door->view, reterr) : rc;
}

static int wait_in_hall(struct door *door, struct muster_error *reterr)
{
    struct hall *hall = door->hall;
    struct timespec until = in_patience();
    int64_t round = hall->round, rank = hall->waiting++;
    int rc = 0;

    (void)pthread_cond_broadcast(&hall->changed);
    if (hall->waiting == hall->wanted) {
        hall->round++;
        hall->waiting = 0;
    }
    hall->inside++;
    while (hall->round == round && !hall->closed && (!door->shut || hall->deaf) && rc == 0)
        rc = hall->deaf ? pthread_cond_wait(&hall->changed, &hall->lock)
                        : pthread_cond_timedwait(&hall->changed, &hall->lock, &until);
    hall->inside--;
    (void)pthread_cond_broadcast(&hall->changed);
    if (hall->round != round) {
        door->rank = rank;
        door->round = hall->round;
        return 0;
    }
    hall->waiting--;
    return refuse(reterr, hall->closed ? MUSTER_ERDZV_CLOSED : MUSTER_ERDZV_TIMEOUT,
                  hall->closed ? "the hall is closed" : "nobody came");
}

static int door_next(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info, struct muster_error *reterr)
{
    struct door *door = (struct door *)rdzv;
    struct hall *hall = door->hall;
    int64_t world_size;
    int rc;

    (void)pthread_mutex_lock(&hall->lock);
    world_size = hall->wanted;
    rc = hall->closed    ? refuse(reterr, MUSTER_ERDZV_CLOSED, "the hall is closed")
         : hall->is_full ? refuse(reterr, MUSTER_ERDZV_GRACEFUL_EXIT, "the hall is full")
         : hall->not_yet ? refuse(reterr, MUSTER_ERETRY, "not yet")
                         : wait_in_hall(door, reterr);
    hall->calls++;
    (void)pthread_cond_broadcast(&hall->changed);
    (void)pthread_mutex_unlock(&hall->lock);
    if (rc == 0)
        rc = open_store(door, reterr);
    if (rc < 0)
        return rc;
    *ret_info = (struct muster_rdzv_info){
        .store = door->view, .rank = door->rank, .world_size = world_size, .round = door->round
    };
    if (hall->is_stuck) { /* with another node, to which there is something to say */
        door->stuck = (struct stuck){ { &stuck_ops, 1000 }, hall };
        ret_info->store = &door->stuck.base;
        ret_info->world_size++;
    }
    if (door->own_address) {
        (void)snprintf(ret_info->bootstrap.master_addr, sizeof ret_info->bootstrap.master_addr, "127.0.0.1");
        ret_info->bootstrap.master_port = muster_store_server_port(hall->server);
    }
    return 0;
}

static int door_is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    struct hall *hall = ((struct door *)rdzv)->hall;

    (void)reterr;
    (void)pthread_mutex_lock(&hall->lock);
    *ret_closed = hall->closed;
    (void)pthread_mutex_unlock(&hall->lock);
    return 0;
}

static int door_set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr)
{
    struct hall *hall = ((struct door *)rdzv)->hall;

    (void)reterr;
    (void)pthread_mutex_lock(&hall->lock);
    hall->closed = true;
    hall->set_closeds++;
    (void)pthread_cond_broadcast(&hall->changed);
    (void)pthread_mutex_unlock(&hall->lock);
    return 0;
}

static int door_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr)
{
    struct hall *hall = ((struct door *)rdzv)->hall;
    int rc = 0;

    (void)pthread_mutex_lock(&hall->lock);
    hall->questions++;
    *ret_count = hall->waiting;
    if (hall->fails > 0) {
        hall->fails--;
        rc = MUSTER_ERDZV_CONNECTION; /* without a word */
    }
    (void)pthread_cond_broadcast(&hall->changed);
    (void)pthread_mutex_unlock(&hall->lock);
    (void)reterr;
    return rc;
}

static int door_shutdown(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    struct door *door = (struct door *)rdzv;

    (void)reterr;
    (void)pthread_mutex_lock(&door->hall->lock);
    door->shut = true;
    door->hall->shutdowns++;
    (void)pthread_cond_broadcast(&door->hall->changed);
    (void)pthread_mutex_unlock(&door->hall->lock);
    *ret_closed = true;
    return 0;
}

static void close_door(struct door *door)
{
    muster_store_free(door->view);
    muster_store_free(door->tcp);
    door->view = door->tcp = NULL;
}

static void door_free(struct muster_rdzv *rdzv)
{
    struct door *door = (struct door *)rdzv;

    (void)pthread_mutex_lock(&door->hall->lock);
    door->hall->frees++;
    (void)pthread_mutex_unlock(&door->hall->lock);
    close_door(door);
    free(door);
}

static const struct muster_rdzv_ops door_ops = {
    .size = sizeof door_ops,
    .get_backend = door_backend,
    .get_run_id = door_run_id,
    .use_agent_store = door_shares,
    .next_rendezvous = door_next,
    .is_closed = door_is_closed,
    .set_closed = door_set_closed,
    .num_nodes_waiting = door_waiting,
    .shutdown = door_shutdown,
    .free = door_free,
};

static struct door make_door(struct hall *hall)
{
    return (struct door){ .base = { &door_ops }, .hall = hall };
}

static int create_door(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                       struct muster_error *reterr)
{
    struct door *door = calloc(1, sizeof *door);

    (void)params;
    if (door == NULL)
        return refuse(reterr, MUSTER_ENOMEM, "no door");
    *door = make_door(ctx);
    *ret_rdzv = &door->base;
    return 0;
}

/* Until the count is what it is waited for. */
static void await(struct hall *hall, const int *count, int least)
{
    struct timespec until = in_patience();
    int rc = 0;

    (void)pthread_mutex_lock(&hall->lock);
    while (*count < least && rc == 0)
        rc = pthread_cond_timedwait(&hall->changed, &hall->lock, &until);
    (void)pthread_mutex_unlock(&hall->lock);
    assert_int_equal(rc, 0);
}

static void set(struct hall *hall, int *what, int value)
{
    (void)pthread_mutex_lock(&hall->lock);
    *what = value;
    (void)pthread_cond_broadcast(&hall->changed);
    (void)pthread_mutex_unlock(&hall->lock);
}

/* ---- A back end: the document is kept in memory ---- */

struct archive {
    struct muster_rdzv_backend base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under lock: */
    struct muster_bytes document;
    unsigned version; /* 0: there is none */
    int inside;
    bool is_stuck; /* get_state() does not return */
};

static struct muster_bytes copy_bytes(const void *data, size_t len)
{
    char *copy = malloc(len + 1);

    assert_non_null(copy);
    memcpy(copy, data, len);
    copy[len] = '\0';
    return (struct muster_bytes){ copy, len };
}

static void give(const struct archive *archive, bool *ret_found, struct muster_bytes *ret_state,
                 struct muster_bytes *ret_token)
{
    *ret_found = archive->version > 0;
    if (archive->version == 0)
        return;
    *ret_state = copy_bytes(archive->document.data, archive->document.len);
    *ret_token = copy_bytes(&archive->version, sizeof archive->version);
}

static int archive_get(struct muster_rdzv_backend *backend, bool *ret_found, struct muster_bytes *ret_state,
                       struct muster_bytes *ret_token, struct muster_error *reterr)
{
    struct archive *archive = (struct archive *)backend;

    (void)reterr;
    (void)pthread_mutex_lock(&archive->lock);
    archive->inside++;
    (void)pthread_cond_broadcast(&archive->changed);
    while (archive->is_stuck)
        (void)pthread_cond_wait(&archive->changed, &archive->lock);
    archive->inside--;
    (void)pthread_cond_broadcast(&archive->changed);
    give(archive, ret_found, ret_state, ret_token);
    (void)pthread_mutex_unlock(&archive->lock);
    return 0;
}

static int archive_set(struct muster_rdzv_backend *backend, struct muster_slice state, struct muster_slice token,
                       bool *ret_found, struct muster_bytes *ret_state, struct muster_bytes *ret_token, bool *ret_set,
                       struct muster_error *reterr)
{
    struct archive *archive = (struct archive *)backend;

    (void)reterr;
    (void)pthread_mutex_lock(&archive->lock);
    *ret_set = archive->version == 0 ? token.data == NULL
                                     : token.len == sizeof archive->version &&
                                           memcmp(token.data, &archive->version, sizeof archive->version) == 0;
    if (*ret_set) {
        muster_bytes_done(&archive->document);
        archive->document = copy_bytes(state.data, state.len);
        archive->version++;
        (void)pthread_cond_broadcast(&archive->changed);
    }
    give(archive, ret_found, ret_state, ret_token);
    (void)pthread_mutex_unlock(&archive->lock);
    return 0;
}

static int archive_watch(struct muster_rdzv_backend *backend, struct muster_slice token, int64_t timeout_ms,
                         struct muster_error *reterr)
{
    struct archive *archive = (struct archive *)backend;
    struct timespec until;
    unsigned version = 0;
    int rc = 0;

    (void)reterr;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    until.tv_sec += timeout_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (token.len == sizeof version)
        memcpy(&version, token.data, sizeof version);
    (void)pthread_mutex_lock(&archive->lock);
    while (archive->version == version && rc == 0)
        rc = pthread_cond_timedwait(&archive->changed, &archive->lock, &until);
    (void)pthread_mutex_unlock(&archive->lock);
    return 0;
}

static const struct muster_rdzv_backend_ops archive_ops = { .size = sizeof archive_ops,
                                                            .name = "archive",
                                                            .get_state = archive_get,
                                                            .set_state = archive_set,
                                                            .watch = archive_watch };

/* ---- Agents ---- */

struct node { /* an agent in a thread of its own */
    struct muster_agent *agent;
    struct muster_run_result *result;
    struct muster_error error;
    int rc;
    pthread_t thread;
    char script[1024], dir[128];
    const char *argv[4];
};

static void *run_node(void *arg)
{
    struct node *node = arg;

    node->rc = muster_agent_run(node->agent, &node->result, &node->error);
    return NULL;
}

static struct muster_worker_spec make_spec(struct node *node, const char *name, const char *script)
{
    struct muster_worker_spec spec;

    *node = (struct node){ 0 };
    (void)snprintf(node->dir, sizeof node->dir, "%s/%s", scratch, name);
    (void)mkdir(node->dir, 0700);
    (void)snprintf(node->script, sizeof node->script, "cd %s && %s", node->dir, script);
    node->argv[0] = "sh";
    node->argv[1] = "-c";
    node->argv[2] = node->script;
    muster_worker_spec_init(&spec);
    spec.local_world_size = 1;
    spec.monitor_interval_ms = 5;
    spec.argv = node->argv;
    return spec;
}

static void start(struct node *node, const struct muster_worker_spec *spec)
{
    if (muster_agent_new(spec, &node->agent, &node->error) < 0)
        fail_msg("%s", node->error.text);
    assert_int_equal(pthread_create(&node->thread, NULL, run_node, node), 0);
}

static void end(struct node *node)
{
    assert_int_equal(pthread_join(node->thread, NULL), 0);
    muster_agent_free(node->agent);
}

static void assert_succeeded(struct node *node)
{
    if (node->rc < 0)
        fail_msg("%s", node->error.text);
    assert_int_equal(node->result->state, MUSTER_WORKER_SUCCEEDED);
    assert_int_equal(node->result->return_values_count, 1);
    muster_run_result_free(node->result);
}

static void end_well(struct node *node)
{
    end(node);
    assert_succeeded(node);
}

/* What a worker has written there. */
static const char *read_file(const struct node *node, const char *name, char text[static 256])
{
    char path[256];
    FILE *file;
    size_t len;

    (void)snprintf(path, sizeof path, "%s/%s", node->dir, name);
    file = fopen(path, "r");
    assert_non_null(file);
    len = fread(text, 1, 255, file);
    text[len] = '\0';
    (void)fclose(file);
    return text;
}

/* Workers that wait for it go on. */
static int open_go(const struct node *node)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/go", node->dir);
    return open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
}

static struct muster_worker_group *look(struct muster_agent *agent)
{
    struct muster_worker_group *group = NULL;

    assert_int_equal(muster_agent_snapshot(agent, &group, NULL), 0);
    return group;
}

/* Of the state nobody is told: it is looked at, again and again. */
static void await_state(struct node *node, enum muster_worker_state state, int64_t attempt)
{
    for (int tries = 0; tries < PATIENCE_S * 1000; tries++) {
        struct muster_worker_group *group = look(node->agent);
        bool there = group->state == state && group->attempt == attempt;

        muster_worker_group_free(group);
        if (there)
            return;
        (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    fail_msg("the group does not come to state %s", muster_worker_state_name(state));
}

#define TELLS "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT > told; "

/* ---- The ways to give an agent a handler ---- */

enum kind { DOORS, ARCHIVE };

struct way {
    enum kind kind;
    bool by_name; /* else an object in the spec */
    struct hall hall;
    struct archive archive;
    struct muster_rdzv_registry *registry;
    struct muster_rdzv_params *params;
    struct muster_store *stores[NODES_MAX];
    struct door doors[NODES_MAX];
    struct muster_rdzv *handlers[NODES_MAX];
    int count;
};

static struct muster_store *connect_store(struct way *way)
{
    struct muster_store_tcp_config config = { .size = sizeof config,
                                              .host = "127.0.0.1",
                                              .port = muster_store_server_port(way->hall.server) };

    assert_int_equal(muster_store_tcp_new(&config, &way->stores[way->count], NULL), 0);
    return way->stores[way->count];
}

static int create_on_archive(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                             struct muster_error *reterr)
{
    struct way *way = ctx;

    return muster_rdzv_dynamic_create(way->stores[muster_rdzv_params_local_addr(params)[8] - '1'], &way->archive.base,
                                      params, ret_rdzv, reterr);
}

static void open_way(struct way *way, enum kind kind, bool by_name, int wanted)
{
    *way = (struct way){ .kind = kind, .by_name = by_name, .archive = { .base = { &archive_ops } } };
    open_hall(&way->hall, wanted);
    (void)pthread_mutex_init(&way->archive.lock, NULL);
    (void)pthread_cond_init(&way->archive.changed, NULL);
    assert_int_equal(muster_rdzv_registry_new(&way->registry, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(way->registry, "hall", create_door, &way->hall, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(way->registry, "archive", create_on_archive, way, NULL), 0);
}

static void close_way(struct way *way)
{
    if (way->kind == DOORS)
        assert_int_equal(way->hall.frees, way->by_name ? way->count : 0);
    for (int i = 0; i < way->count; i++) {
        muster_rdzv_free(way->handlers[i]);
        close_door(&way->doors[i]);
        muster_store_free(way->stores[i]);
    }
    muster_rdzv_registry_free(way->registry);
    muster_bytes_done(&way->archive.document);
    close_hall(&way->hall);
}

/* The caller frees them, when the agent has its copy. */
static struct muster_rdzv_params *params_by(struct way *way)
{
    char local_addr[] = { '1', '2', '7', '.', '0', '.', '0', '.', (char)('1' + way->count), '\0' };
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new(way->kind == DOORS ? "hall" : "archive", "", "job", 1, way->hall.wanted,
                                            way->kind == DOORS ? NULL : local_addr, &params, NULL),
                     0);
    assert_int_equal(muster_rdzv_params_set_options(params, way->kind == DOORS ? "" : "last_call_timeout=1", NULL), 0);
    return params;
}

static struct muster_rdzv *handler_by(struct way *way)
{
    struct muster_rdzv_settings settings = { .size = sizeof settings,
                                             .run_id = "job",
                                             .min_nodes = 1,
                                             .max_nodes = way->hall.wanted,
                                             .timeout = { .size = sizeof settings.timeout, .last_call_ms = 100 } };
    char local_addr[] = { '1', '2', '7', '.', '0', '.', '0', '.', (char)('1' + way->count), '\0' };

    if (way->kind == DOORS)
        return &way->doors[way->count].base;
    assert_int_equal(muster_rdzv_dynamic_from_backend(&settings, way->stores[way->count], &way->archive.base,
                                                      local_addr, &way->handlers[way->count], NULL),
                     0);
    return way->handlers[way->count];
}

static void start_by(struct way *way, struct node *node, struct muster_worker_spec spec)
{
    struct muster_rdzv_params *params = NULL;

    way->doors[way->count] = make_door(&way->hall);
    if (way->kind == ARCHIVE)
        (void)connect_store(way);
    if (way->by_name) {
        spec.rdzv = params = params_by(way);
        spec.registry = way->registry;
    } else {
        spec.rdzv_handler = handler_by(way);
    }
    way->count++;
    start(node, &spec);
    muster_rdzv_params_free(params);
}

static const char *name_of(const struct way *way, const char *what)
{
    static char name[64];

    (void)snprintf(name, sizeof name, "%s-%s-%s", what, way->kind == DOORS ? "hall" : "archive",
                   way->by_name ? "by-name" : "by-object");
    return name;
}

static void a_node_runs_fails_and_is_restarted(enum kind kind, bool by_name)
{
    struct muster_worker_group *group;
    struct muster_worker_spec spec;
    struct node node;
    struct way way;

    open_way(&way, kind, by_name, 1);
    spec = make_spec(&node, name_of(&way, "alone"),
                     "test \"$WORLD_SIZE$LOCAL_WORLD_SIZE$GROUP_WORLD_SIZE\" = 111 && test -n \"$MASTER_ADDR\" &&"
                     "test \"$MASTER_PORT\" -gt 0 && test \"$TORCHELASTIC_RUN_ID\" = job &&"
                     "exit $((TORCHELASTIC_RESTART_COUNT < 2))");
    start_by(&way, &node, spec);
    assert_int_equal(pthread_join(node.thread, NULL), 0);
    assert_succeeded(&node);
    group = look(node.agent);
    assert_int_equal(group->attempt, 3);
    assert_int_equal(group->restart_count, 2);
    assert_true(group->round >= 2);
    muster_worker_group_free(group);
    muster_agent_free(node.agent);
    if (kind == DOORS)
        assert_int_equal(way.hall.shutdowns, 1); /* the job is over */
    close_way(&way);
}

static void a_registered_handler_runs_under_an_agent(void **state)
{
    (void)state;
    a_node_runs_fails_and_is_restarted(DOORS, true);
}

static void a_handler_given_in_the_spec_runs_under_an_agent(void **state)
{
    (void)state;
    a_node_runs_fails_and_is_restarted(DOORS, false);
}

static void a_registered_back_end_runs_under_an_agent(void **state)
{
    (void)state;
    a_node_runs_fails_and_is_restarted(ARCHIVE, true);
}

static void a_handler_on_a_back_end_given_in_the_spec_runs_under_an_agent(void **state)
{
    (void)state;
    a_node_runs_fails_and_is_restarted(ARCHIVE, false);
}

/* One node runs; another wants in; both run; a worker fails; both run again, and succeed. */
static void nodes_come_and_fail(enum kind kind, bool by_name)
{
    struct muster_worker_spec spec;
    struct node first, second;
    struct way way;
    char a[256], b[256];

    open_way(&way, kind, by_name, kind == DOORS ? 1 : 2);
    spec =
        make_spec(&first, name_of(&way, "first"),
                  "other=$(echo $PWD | sed s/first/second/); until test -e $other/again; do sleep 0.01; done; " TELLS);
    start_by(&way, &first, spec);
    await_state(&first, MUSTER_WORKER_HEALTHY, 1);
    set(&way.hall, &way.hall.wanted, 2);
    spec = make_spec(&second, name_of(&way, "second"),
                     "test $TORCHELASTIC_RESTART_COUNT -gt 0 || exit 1; touch again; " TELLS);
    start_by(&way, &second, spec);
    end_well(&first);
    end_well(&second);
    if (kind == DOORS)
        assert_int_equal(way.hall.round, 2);
    (void)read_file(&first, "told", a);
    (void)read_file(&second, "told", b);
    assert_int_not_equal(a[0], b[0]); /* different ranks */
    assert_string_equal(a + 1, b + 1);
    assert_memory_equal(a + 1, " of 2 at ", 9);
    close_way(&way);
}

static void registered_handlers_regroup_when_a_node_comes_and_when_a_worker_fails(void **state)
{
    (void)state;
    nodes_come_and_fail(DOORS, true);
}

static void handlers_in_specs_regroup_when_a_node_comes_and_when_a_worker_fails(void **state)
{
    (void)state;
    nodes_come_and_fail(DOORS, false);
}

static void registered_back_ends_regroup_when_a_node_comes_and_when_a_worker_fails(void **state)
{
    (void)state;
    nodes_come_and_fail(ARCHIVE, true);
}

static void back_ends_in_specs_regroup_when_a_node_comes_and_when_a_worker_fails(void **state)
{
    (void)state;
    nodes_come_and_fail(ARCHIVE, false);
}

static void a_handler_may_say_itself_where_workers_meet(void **state)
{
    struct muster_worker_spec spec;
    struct node node;
    struct hall hall;
    struct door door;
    char text[256], wanted[64];

    (void)state;
    open_hall(&hall, 1);
    door = make_door(&hall);
    door.own_address = true;
    spec = make_spec(&node, "address", TELLS "test \"$TORCHELASTIC_USE_AGENT_STORE\" = True");
    spec.rdzv_handler = &door.base;
    (void)snprintf(wanted, sizeof wanted, "0 of 1 at 127.0.0.1:%d\n", (int)muster_store_server_port(hall.server));
    start(&node, &spec);
    end_well(&node);
    assert_string_equal(read_file(&node, "told", text), wanted);
    close_door(&door);
    close_hall(&hall);
}

/* As PyTorch's does; its address is known before. */
static void a_static_handler_given_in_the_spec_runs_under_an_agent(void **state)
{
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct muster_store_server *server = NULL;
    struct muster_rdzv *handler = NULL;
    struct muster_worker_spec spec;
    struct node node;
    uint16_t port;

    (void)state;
    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0); /* which port is free? */
    port = muster_store_server_port(server);
    muster_store_server_stop(server);
    assert_int_equal(muster_rdzv_static_new("127.0.0.1", port, 0, 1, "job", 30000, &handler, NULL), 0);
    spec = make_spec(&node, "static", "exit $((TORCHELASTIC_RESTART_COUNT < 1))");
    spec.rdzv_handler = handler;
    start(&node, &spec);
    end_well(&node);
    muster_rdzv_free(handler);
}

static void a_c10d_handler_given_in_the_spec_runs_under_an_agent(void **state)
{
    struct muster_rdzv *handler = NULL;
    struct muster_rdzv_params *params = NULL;
    struct muster_worker_spec spec;
    struct node node;
    struct hall hall;
    char endpoint[32];

    (void)state;
    open_hall(&hall, 1);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", (int)muster_store_server_port(hall.server));
    assert_int_equal(muster_rdzv_params_new("c10d", endpoint, "job", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_bool(params, "is_host", false, NULL), 0);
    assert_int_equal(muster_rdzv_registry_create(muster_rdzv_registry_default(), params, &handler, NULL), 0);
    spec = make_spec(&node, "c10d", "exit $((TORCHELASTIC_RESTART_COUNT < 1))");
    spec.rdzv_handler = handler;
    start(&node, &spec);
    end_well(&node);
    muster_rdzv_free(handler);
    muster_rdzv_params_free(params);
    close_hall(&hall);
}

/* A node with a handler of a shared object. It has no store, and no address for the workers: one node can do
 * without. */
static void run_solo(const char *name, const char *script, const char *change)
{
    struct muster_rdzv_registry *registry = NULL;
    struct muster_rdzv_params *params = NULL;
    struct muster_error error = { 0 };
    struct muster_worker_spec spec;
    struct node node;
    char command[1024], directory[128], options[400];

    (void)snprintf(directory, sizeof directory, "%s/plugins", scratch);
    (void)snprintf(command, sizeof command,
                   "test -d %s || { mkdir -m 700 %s && cp " PLUGINS "/plugin_solo.so %s && chmod 500 %s/*.so; }",
                   directory, directory, directory, directory);
    assert_int_equal(system(command), 0);
    assert_int_equal(muster_rdzv_registry_new(&registry, NULL), 0);
    if (muster_rdzv_registry_load(registry, directory, &error) < 0)
        fail_msg("%s", error.text);
    assert_int_equal(muster_rdzv_params_new("solo", "", "job", 1, 1, NULL, &params, NULL), 0);
    spec = make_spec(&node, name, script);
    (void)snprintf(options, sizeof options, "change=%s,when=%s/first", change, node.dir);
    if (change[0] != '\0')
        assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    spec.rdzv = params;
    spec.registry = registry;
    start(&node, &spec);
    end_well(&node);
    muster_rdzv_params_free(params);
    muster_rdzv_registry_free(registry);
}

static void an_event_driven_handler_runs_under_an_agent(void **state)
{
    (void)state;
    run_solo("solo",
             "test \"$MASTER_PORT\" -gt 0 && test \"$TORCHELASTIC_USE_AGENT_STORE\" = False &&"
             "exit $((TORCHELASTIC_RESTART_COUNT < 1))",
             "");
}

/* A node wants in, one is lost, this one is removed: the workers are stopped, and run again in the next round. */
static void an_event_driven_handler_regroups_under_an_agent(void **state)
{
    static const char *const changes[] = { "waiting", "peers_lost", "removed" };

    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        run_solo(changes[i], "test -e first && exit 0; touch first; sleep 1000 & wait", changes[i]);
}

/* ---- The group's store and spec ---- */

static void use_the_groups_store(enum kind kind)
{
    const struct muster_slice keys[] = { { "a", 1 }, { "b", 1 } };
    struct muster_worker_group *group;
    struct muster_worker_spec spec;
    struct muster_error error = { 0 };
    struct muster_bytes value;
    struct muster_store *store;
    struct node node;
    struct way way;
    int64_t number = 0;
    bool is_there = true;

    open_way(&way, kind, false, 1);
    spec = make_spec(&node, name_of(&way, "store"), "while ! test -e go; do sleep 0.01; done");
    start_by(&way, &node, spec);
    await_state(&node, MUSTER_WORKER_HEALTHY, 1);
    group = look(node.agent);
    store = group->store;
    assert_string_equal(muster_rdzv_params_run_id(group->spec->rdzv), "job");
    assert_string_equal(group->spec->argv[2], node.script);
    muster_worker_group_free(group);
    assert_int_equal(muster_store_check(store, keys, 2, 10000, &is_there, &error), 0);
    assert_false(is_there);
    assert_int_equal(muster_store_set(store, keys[0], muster_str("1"), 10000, &error), 0);
    assert_int_equal(muster_store_add(store, keys[1], 41, 10000, &number, &error), 0);
    assert_int_equal(muster_store_add(store, keys[1], 1, 10000, &number, &error), 0);
    assert_int_equal(number, 42);
    assert_int_equal(muster_store_wait(store, keys, 2, 10000, &error), 0);
    assert_int_equal(muster_store_get(store, keys[1], 10000, &value, &error), 0);
    assert_string_equal(value.data, "42");
    muster_bytes_done(&value);
    assert_int_equal(muster_store_get(store, muster_str("never"), 20, &value, &error), MUSTER_ETIMEOUT);
    assert_non_null(strstr(error.text, "the group's store"));
    assert_int_equal(muster_store_compare_set(store, keys[0], muster_str("1"), muster_str("2"), 10000, &value, &error),
                     0);
    assert_string_equal(value.data, "2");
    muster_bytes_done(&value);
    assert_int_equal(muster_store_delete_key(store, keys[0], 10000, &is_there, &error), 0);
    assert_true(is_there);
    assert_int_equal(muster_store_num_keys(store, 10000, &number, &error), MUSTER_ENOTSUP);
    if (kind == DOORS) { /* it is the store that the handler gave */
        assert_int_equal(muster_store_get(way.doors[0].view, keys[1], 10000, &value, NULL), 0);
        assert_string_equal(value.data, "42");
        muster_bytes_done(&value);
    }
    assert_int_equal(close(open_go(&node)), 0);
    assert_int_equal(pthread_join(node.thread, NULL), 0);
    assert_succeeded(&node);
    assert_int_equal(muster_store_set(store, keys[0], muster_str("1"), 10000, &error), MUSTER_ECANCELED);
    muster_agent_free(node.agent);
    close_way(&way);
}

static void the_groups_store_is_the_one_of_the_round(void **state)
{
    (void)state;
    use_the_groups_store(DOORS);
}

static void the_groups_store_is_there_on_a_back_end_of_ones_own(void **state)
{
    (void)state;
    use_the_groups_store(ARCHIVE);
}

struct getter {
    struct muster_store *store;
    struct muster_error error;
    int rc;
};

static void *get_what_never_comes(void *arg)
{
    struct getter *getter = arg;
    struct muster_bytes value;

    getter->rc = muster_store_get(getter->store, muster_str("never"), PATIENCE_S * 1000, &value, &getter->error);
    return NULL;
}

/* The round ends with the run: nobody is left waiting. */
static void a_call_of_the_groups_store_ends_with_the_run(void **state)
{
    struct muster_worker_group *group;
    struct muster_worker_spec spec;
    struct getter getter = { 0 };
    struct node node;
    struct way way;
    pthread_t thread;
    bool is_there = false;

    (void)state;
    open_way(&way, DOORS, false, 1);
    spec = make_spec(&node, "getter", "while ! test -e go; do sleep 0.01; done");
    start_by(&way, &node, spec);
    await_state(&node, MUSTER_WORKER_HEALTHY, 1);
    group = look(node.agent);
    getter.store = group->store;
    muster_worker_group_free(group);
    assert_int_equal(pthread_create(&thread, NULL, get_what_never_comes, &getter), 0);
    assert_int_equal(muster_store_check(getter.store, &(struct muster_slice){ "x", 1 }, 1, 10000, &is_there, NULL), 0);
    assert_int_equal(close(open_go(&node)), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(getter.rc, MUSTER_ECANCELED);
    end_well(&node);
    close_way(&way);
}

/* Workers have failed, and the next round has not come together yet. `used`: a call waited in the store of the last
 * one. */
static void end_a_round(bool used)
{
    struct muster_worker_group *group;
    struct muster_worker_spec spec;
    struct getter getter = { 0 };
    struct node node;
    struct way way;
    pthread_t thread;
    bool is_there = false;

    open_way(&way, DOORS, false, 1);
    spec = make_spec(&node, used ? "between-used" : "between",
                     "while ! test -e go; do sleep 0.01; done; exit $((TORCHELASTIC_RESTART_COUNT < 1))");
    start_by(&way, &node, spec);
    await_state(&node, MUSTER_WORKER_HEALTHY, 1);
    group = look(node.agent);
    getter.store = group->store;
    muster_worker_group_free(group);
    if (used) {
        assert_int_equal(pthread_create(&thread, NULL, get_what_never_comes, &getter), 0);
        assert_int_equal(muster_store_check(getter.store, &(struct muster_slice){ "x", 1 }, 1, 10000, &is_there, NULL),
                         0);
    }
    set(&way.hall, &way.hall.wanted, 2);
    assert_int_equal(close(open_go(&node)), 0);
    await(&way.hall, &way.hall.inside, 1);
    if (used)
        assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(getter.rc, used ? MUSTER_ECANCELED : 0);
    assert_int_equal(muster_store_set(getter.store, muster_str("k"), muster_str("v"), 10000, &getter.error),
                     MUSTER_ECANCELED);
    assert_non_null(strstr(getter.error.text, "there is no round"));
    muster_agent_signal(node.agent, SIGTERM);
    end(&node);
    assert_int_equal(node.rc, MUSTER_ESIGNAL);
    close_way(&way);
}

static void between_rounds_the_group_has_no_store(void **state)
{
    (void)state;
    end_a_round(false);
    end_a_round(true);
}

/* ---- Trouble ---- */

struct lines {
    char text[4096];
};

static void keep_line(void *ctx, enum muster_log_level level, const char *line)
{
    struct lines *lines = ctx;
    size_t used = strlen(lines->text);

    if (level >= MUSTER_LOG_WARNING)
        (void)snprintf(lines->text + used, sizeof lines->text - used, "%s\n", line);
}

static void a_handler_that_fails_ends_the_run_with_its_own_words(void **state)
{
    struct muster_worker_spec spec;
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, DOORS, true, 1);
    way.hall.closed = true;
    spec = make_spec(&node, "closed", "true");
    start_by(&way, &node, spec);
    end(&node);
    assert_int_equal(node.rc, MUSTER_ERDZV_CLOSED);
    assert_non_null(strstr(node.error.text, "join rendezvous 'job'"));
    assert_non_null(strstr(node.error.text, "the hall is closed"));
    close_way(&way);
}

static void note_agent(void *ctx, const struct muster_event_record *record)
{
    if (record->source == MUSTER_EVENT_AGENT)
        (void)snprintf(ctx, 64, "%s", record->name);
}

/* No failure, and no result either: there were no workers. */
static void a_node_that_is_not_needed_ends_well_in_the_handlers_words(void **state)
{
    char last_event[64] = "";
    struct muster_worker_spec spec;
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, DOORS, true, 1);
    way.hall.is_full = true;
    spec = make_spec(&node, "full", "true");
    muster_events_set_sink(note_agent, last_event);
    start_by(&way, &node, spec);
    end(&node);
    muster_events_set_sink(NULL, NULL);
    assert_int_equal(node.rc, MUSTER_ERDZV_GRACEFUL_EXIT);
    assert_non_null(strstr(node.error.text, "the hall is full"));
    assert_string_equal(last_event, "torchelastic.worker.status.SUCCEEDED");
    close_way(&way);
}

static void a_job_that_is_closed_meanwhile_is_not_joined_again(void **state)
{
    struct muster_worker_spec spec;
    struct node node;
    struct way way;
    bool closed;

    (void)state;
    open_way(&way, DOORS, false, 1);
    spec = make_spec(&node, "closes", "while ! test -e go; do sleep 0.01; done; exit 3");
    start_by(&way, &node, spec);
    await_state(&node, MUSTER_WORKER_HEALTHY, 1);
    assert_int_equal(muster_rdzv_set_closed(&way.doors[0].base, NULL), 0);
    assert_int_equal(muster_rdzv_is_closed(&way.doors[0].base, &closed, NULL), 0);
    assert_true(closed);
    assert_int_equal(close(open_go(&node)), 0);
    end(&node);
    assert_int_equal(node.rc, 0);
    assert_true(muster_run_result_is_failed(node.result));
    assert_int_equal(node.result->failures[0].exit_code, 3);
    muster_run_result_free(node.result);
    close_way(&way);
}

static void questions_that_fail_stop_no_worker(void **state)
{
    struct lines lines = { .text = "" };
    struct muster_worker_spec spec;
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, DOORS, false, 1);
    spec = make_spec(&node, "fails", "while ! test -e go; do sleep 0.01; done");
    muster_log_set_sink(keep_line, &lines);
    start_by(&way, &node, spec);
    await_state(&node, MUSTER_WORKER_HEALTHY, 1);
    set(&way.hall, &way.hall.questions, 0);
    set(&way.hall, &way.hall.fails, 2);
    await(&way.hall, &way.hall.questions, 5);
    assert_int_equal(close(open_go(&node)), 0);
    end_well(&node);
    muster_log_set_sink(NULL, NULL);
    assert_non_null(strstr(lines.text, "the workers run on; trying again"));
    close_way(&way);
}

static void a_signal_ends_a_join_that_blocks(void **state)
{
    struct muster_worker_spec spec;
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, DOORS, true, 2);
    spec = make_spec(&node, "blocks", "true");
    start_by(&way, &node, spec);
    await(&way.hall, &way.hall.inside, 1);
    muster_agent_signal(node.agent, SIGTERM);
    end(&node);
    assert_int_equal(node.rc, MUSTER_ESIGNAL);
    assert_int_equal(way.hall.shutdowns, 1);
    assert_int_equal(way.hall.inside, 0);
    close_way(&way);
}

static void a_signal_to_a_running_node_leaves_the_job_open(void **state)
{
    struct muster_worker_spec spec;
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, DOORS, false, 1);
    spec = make_spec(&node, "signalled", "exec sleep 600");
    start_by(&way, &node, spec);
    await_state(&node, MUSTER_WORKER_HEALTHY, 1);
    muster_agent_signal(node.agent, SIGTERM);
    end(&node);
    assert_int_equal(node.rc, MUSTER_ESIGNAL);
    assert_int_equal(way.hall.shutdowns, 0);
    assert_false(way.hall.closed);
    close_way(&way);
}

/* Its thread is left behind; here it comes back in the end, so that nothing is left in use. */
static void a_handler_that_blocks_for_ever_does_not_hold_up_the_end(void **state)
{
    struct muster_worker_spec spec;
    struct lines lines = { .text = "" };
    struct muster_run_result *result = NULL;
    struct node node;
    static struct way way; /* its thread may still be about to give the lock back */

    (void)state;
    open_way(&way, DOORS, false, 2);
    way.hall.deaf = true;
    spec = make_spec(&node, "deaf", "true");
    spec.shutdown_timeout_ms = 300;
    muster_log_set_sink(keep_line, &lines);
    start_by(&way, &node, spec);
    await(&way.hall, &way.hall.inside, 1);
    muster_agent_signal(node.agent, SIGTERM);
    end(&node);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(node.rc, MUSTER_ESIGNAL);
    assert_non_null(strstr(lines.text, "rendezvous handler 'hall': next_rendezvous() has not returned for 0.3 s after "
                                       "shutdown() was called"));
    spec.rdzv_handler = &way.doors[0].base;
    assert_int_equal(muster_agent_new(&spec, &node.agent, &node.error), 0);
    assert_int_equal(muster_agent_run(node.agent, &result, &node.error), MUSTER_EINVAL);
    assert_non_null(strstr(node.error.text, "is still in a call of an earlier agent"));
    muster_agent_free(node.agent);
    (void)pthread_mutex_lock(&way.hall.lock);
    way.hall.closed = true;
    (void)pthread_cond_broadcast(&way.hall.changed);
    while (way.hall.inside > 0)
        (void)pthread_cond_wait(&way.hall.changed, &way.hall.lock);
    (void)pthread_mutex_unlock(&way.hall.lock);
    muster_rdzv_registry_free(way.registry);
    muster_store_server_stop(way.hall.server);
}

/* Its thread is in a store that the user frees with the handler. */
static void a_store_that_blocks_for_ever_does_not_hold_up_the_end(void **state)
{
    static struct way way; /* its thread may still be about to give the lock back */
    struct muster_worker_spec spec;
    struct lines lines = { .text = "" };
    struct muster_run_result *result = NULL;
    struct node node;

    (void)state;
    open_way(&way, DOORS, false, 1);
    way.hall.is_stuck = true;
    spec = make_spec(&node, "stuck-store", "true");
    spec.shutdown_timeout_ms = 300;
    muster_log_set_sink(keep_line, &lines);
    way.doors[0] = make_door(&way.hall);
    way.doors[0].own_address = true; /* else it is a part of next_rendezvous() that is stuck */
    spec.rdzv_handler = &way.doors[0].base;
    start(&node, &spec);
    await(&way.hall, &way.hall.calls, 1);
    await(&way.hall, &way.hall.inside, 1);
    muster_agent_signal(node.agent, SIGTERM);
    end(&node);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(node.rc, MUSTER_ESIGNAL);
    assert_non_null(
        strstr(lines.text, "rendezvous handler 'hall': a call of the round's store has not returned for 0.3 s"));
    assert_int_equal(muster_agent_new(&spec, &node.agent, &node.error), 0);
    assert_int_equal(muster_agent_run(node.agent, &result, &node.error), MUSTER_EINVAL);
    assert_non_null(strstr(node.error.text, "is still in a call of an earlier agent"));
    muster_agent_free(node.agent);
    (void)pthread_mutex_lock(&way.hall.lock);
    way.hall.is_stuck = false;
    (void)pthread_cond_broadcast(&way.hall.changed);
    while (way.hall.inside > 0)
        (void)pthread_cond_wait(&way.hall.changed, &way.hall.lock);
    (void)pthread_mutex_unlock(&way.hall.lock);
    close_door(&way.doors[0]);
    muster_rdzv_registry_free(way.registry);
    muster_store_server_stop(way.hall.server);
}

static void a_signal_ends_a_join_that_is_tried_again_and_again(void **state)
{
    struct muster_worker_spec spec;
    struct lines lines = { .text = "" };
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, DOORS, true, 1);
    way.hall.not_yet = true;
    spec = make_spec(&node, "not-yet", "true");
    muster_log_set_sink(keep_line, &lines);
    start_by(&way, &node, spec);
    await(&way.hall, &way.hall.calls, 1);
    muster_agent_signal(node.agent, SIGTERM);
    end(&node);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(node.rc, MUSTER_ESIGNAL);
    assert_null(strstr(lines.text, "has not returned"));
    close_way(&way);
}

/* The same with a back end. */
static void a_back_end_that_blocks_for_ever_does_not_hold_up_the_end(void **state)
{
    static struct way way; /* the thread may still be about to give the lock back */
    struct muster_worker_spec spec;
    struct lines lines = { .text = "" };
    struct node node;

    (void)state;
    open_way(&way, ARCHIVE, false, 1);
    way.archive.is_stuck = true;
    spec = make_spec(&node, "stuck", "true");
    spec.shutdown_timeout_ms = 300;
    muster_log_set_sink(keep_line, &lines);
    start_by(&way, &node, spec);
    (void)pthread_mutex_lock(&way.archive.lock);
    while (way.archive.inside == 0)
        (void)pthread_cond_wait(&way.archive.changed, &way.archive.lock);
    (void)pthread_mutex_unlock(&way.archive.lock);
    muster_agent_signal(node.agent, SIGTERM);
    end(&node);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(node.rc, MUSTER_ESIGNAL);
    assert_non_null(strstr(lines.text, "rendezvous back end 'archive': a call has not returned for 0.3 s"));
    (void)pthread_mutex_lock(&way.archive.lock);
    way.archive.is_stuck = false;
    (void)pthread_cond_broadcast(&way.archive.changed);
    while (way.archive.inside > 0)
        (void)pthread_cond_wait(&way.archive.changed, &way.archive.lock);
    (void)pthread_mutex_unlock(&way.archive.lock);
    close_way(&way);
}

static void a_handler_that_has_joined_is_not_for_an_agent(void **state)
{
    struct muster_run_result *result = NULL;
    struct muster_worker_spec spec;
    struct muster_rdzv_info info;
    struct muster_error error = { 0 };
    struct muster_agent *agent = NULL;
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, ARCHIVE, false, 1);
    (void)connect_store(&way);
    spec = make_spec(&node, "joined", "true");
    spec.rdzv_handler = handler_by(&way);
    way.count++;
    assert_int_equal(muster_rdzv_next_rendezvous(spec.rdzv_handler, &info, NULL), 0);
    assert_int_equal(muster_agent_new(&spec, &agent, NULL), 0);
    assert_int_equal(muster_agent_run(agent, &result, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'archive' is in a round already"));
    muster_agent_free(agent);
    close_way(&way);
}

static void a_handler_serves_one_agent_at_a_time(void **state)
{
    struct muster_worker_spec spec;
    struct muster_run_result *result = NULL;
    struct muster_agent *second = NULL;
    struct muster_error error = { 0 };
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, DOORS, false, 1);
    spec = make_spec(&node, "twice", "while ! test -e go; do sleep 0.01; done");
    start_by(&way, &node, spec);
    await_state(&node, MUSTER_WORKER_HEALTHY, 1);
    spec.rdzv_handler = &way.doors[0].base;
    assert_int_equal(muster_agent_new(&spec, &second, NULL), 0);
    assert_int_equal(muster_agent_run(second, &result, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "'hall' serves another agent"));
    assert_int_equal(close(open_go(&node)), 0);
    end_well(&node);
    assert_int_equal(muster_agent_run(second, &result, &error), 0); /* one after the other */
    assert_int_equal(result->state, MUSTER_WORKER_SUCCEEDED);
    muster_run_result_free(result);
    muster_agent_free(second);
    close_way(&way);
}

static void a_spec_has_parameters_or_a_handler(void **state)
{
    static const struct muster_rdzv_ops no_name = { .size = sizeof no_name };
    struct muster_rdzv nameless = { &no_name };
    struct muster_rdzv_params *params;
    struct door door = make_door(NULL);
    struct muster_worker_spec spec;
    struct muster_error error = { 0 };
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, DOORS, false, 1);
    params = params_by(&way);
    spec = make_spec(&node, "spec", "true");
    assert_int_equal(muster_worker_spec_check(&spec, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "neither rdzv nor rdzv_handler"));
    spec.rdzv_handler = &door.base;
    assert_int_equal(muster_worker_spec_check(&spec, &error), 0);
    spec.rdzv = params;
    assert_int_equal(muster_worker_spec_check(&spec, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "rdzv and rdzv_handler"));
    spec.rdzv = NULL;
    spec.rdzv_handler = &nameless;
    assert_int_equal(muster_worker_spec_check(&spec, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "get_backend"));
    muster_rdzv_params_free(params);
    close_way(&way);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_registered_handler_runs_under_an_agent),
        cmocka_unit_test(a_handler_given_in_the_spec_runs_under_an_agent),
        cmocka_unit_test(a_registered_back_end_runs_under_an_agent),
        cmocka_unit_test(a_handler_on_a_back_end_given_in_the_spec_runs_under_an_agent),
        cmocka_unit_test(registered_handlers_regroup_when_a_node_comes_and_when_a_worker_fails),
        cmocka_unit_test(handlers_in_specs_regroup_when_a_node_comes_and_when_a_worker_fails),
        cmocka_unit_test(registered_back_ends_regroup_when_a_node_comes_and_when_a_worker_fails),
        cmocka_unit_test(back_ends_in_specs_regroup_when_a_node_comes_and_when_a_worker_fails),
        cmocka_unit_test(a_static_handler_given_in_the_spec_runs_under_an_agent),
        cmocka_unit_test(a_c10d_handler_given_in_the_spec_runs_under_an_agent),
        cmocka_unit_test(an_event_driven_handler_runs_under_an_agent),
        cmocka_unit_test(an_event_driven_handler_regroups_under_an_agent),
        cmocka_unit_test(a_handler_may_say_itself_where_workers_meet),
        cmocka_unit_test(the_groups_store_is_the_one_of_the_round),
        cmocka_unit_test(the_groups_store_is_there_on_a_back_end_of_ones_own),
        cmocka_unit_test(a_call_of_the_groups_store_ends_with_the_run),
        cmocka_unit_test(between_rounds_the_group_has_no_store),
        cmocka_unit_test(a_handler_that_fails_ends_the_run_with_its_own_words),
        cmocka_unit_test(a_node_that_is_not_needed_ends_well_in_the_handlers_words),
        cmocka_unit_test(a_job_that_is_closed_meanwhile_is_not_joined_again),
        cmocka_unit_test(questions_that_fail_stop_no_worker),
        cmocka_unit_test(a_signal_ends_a_join_that_blocks),
        cmocka_unit_test(a_signal_to_a_running_node_leaves_the_job_open),
        cmocka_unit_test(a_handler_that_blocks_for_ever_does_not_hold_up_the_end),
        cmocka_unit_test(a_store_that_blocks_for_ever_does_not_hold_up_the_end),
        cmocka_unit_test(a_signal_ends_a_join_that_is_tried_again_and_again),
        cmocka_unit_test(a_back_end_that_blocks_for_ever_does_not_hold_up_the_end),
        cmocka_unit_test(a_handler_that_has_joined_is_not_for_an_agent),
        cmocka_unit_test(a_handler_serves_one_agent_at_a_time),
        cmocka_unit_test(a_spec_has_parameters_or_a_handler),
    };

    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
