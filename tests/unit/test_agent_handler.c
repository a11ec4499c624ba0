/* Agents with rendezvous handlers and back ends of a user's own: the installed header, the shared object, nothing else. */
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
    int fails;         /* of so many calls of num_nodes_waiting() */
    int shutdowns, frees, questions, set_closeds, inside;
};

struct door { /* a node's way into the hall */
    struct muster_rdzv base;
    struct hall *hall;
    struct muster_store *tcp, *view;
    bool own_address, shut;
    int64_t rank, round;
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
    rc = hall->closed ? refuse(reterr, MUSTER_ERDZV_CLOSED, "the hall is closed") : wait_in_hall(door, reterr);
    (void)pthread_mutex_unlock(&hall->lock);
    if (rc == 0)
        rc = open_store(door, reterr);
    if (rc < 0)
        return rc;
    *ret_info = (struct muster_rdzv_info){
        .store = door->view, .rank = door->rank, .world_size = world_size, .round = door->round
    };
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

/* First attempt: sleeps; from the second on: succeeds. */
#define SLEEPS_ONCE "if mkdir first 2>/dev/null; then exec sleep 600; fi; "
#define TELLS "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT > told; "

/* ---- One way of giving an agent a handler after the other ---- */

struct way {
    struct hall hall;
    struct muster_rdzv_registry *registry;
    struct muster_rdzv_params *params;
    struct door doors[NODES_MAX];
    bool by_name;
    int count;
};

static void open_way(struct way *way, bool by_name, int wanted)
{
    *way = (struct way){ .by_name = by_name };
    open_hall(&way->hall, wanted);
    assert_int_equal(muster_rdzv_registry_new(&way->registry, NULL), 0);
    assert_int_equal(muster_rdzv_registry_register(way->registry, "hall", create_door, &way->hall, NULL), 0);
    assert_int_equal(muster_rdzv_params_new("hall", "", "job", 1, NODES_MAX, NULL, &way->params, NULL), 0);
}

static void close_way(struct way *way)
{
    if (way->by_name)
        assert_int_equal(way->hall.frees, way->count);
    else
        assert_int_equal(way->hall.frees, 0);
    for (int i = 0; i < way->count && !way->by_name; i++)
        close_door(&way->doors[i]);
    muster_rdzv_params_free(way->params);
    muster_rdzv_registry_free(way->registry);
    close_hall(&way->hall);
}

static struct muster_worker_spec spec_by(struct way *way, struct node *node, const char *name, const char *script)
{
    struct muster_worker_spec spec = make_spec(node, name, script);
    struct door *door = &way->doors[way->count++];

    *door = make_door(&way->hall);
    if (way->by_name) {
        spec.rdzv = way->params;
        spec.registry = way->registry;
    } else {
        spec.rdzv_handler = &door->base;
    }
    return spec;
}

static void a_node_runs_fails_and_is_restarted(bool by_name)
{
    struct muster_worker_group *group;
    struct muster_worker_spec spec;
    struct node node;
    struct way way;

    open_way(&way, by_name, 1);
    spec = spec_by(&way, &node, by_name ? "one-by-name" : "one-by-object",
                   "test \"$WORLD_SIZE$LOCAL_WORLD_SIZE$GROUP_WORLD_SIZE\" = 111 && test -n \"$MASTER_ADDR\" &&"
                   "test \"$MASTER_PORT\" -gt 0 && test \"$TORCHELASTIC_RUN_ID\" = job &&"
                   "test \"$TORCHELASTIC_USE_AGENT_STORE\" = False && exit $((TORCHELASTIC_RESTART_COUNT < 2))");
    start(&node, &spec);
    assert_int_equal(pthread_join(node.thread, NULL), 0);
    assert_succeeded(&node);
    group = look(node.agent);
    assert_int_equal(group->attempt, 3);
    assert_int_equal(group->restart_count, 2);
    assert_int_equal(group->round, 2);
    muster_worker_group_free(group);
    muster_agent_free(node.agent);
    assert_int_equal(way.hall.shutdowns, 1); /* the job is over */
    close_way(&way);
}

static void a_registered_handler_runs_under_an_agent(void **state)
{
    (void)state;
    a_node_runs_fails_and_is_restarted(true);
}

static void a_handler_given_in_the_spec_runs_under_an_agent(void **state)
{
    (void)state;
    a_node_runs_fails_and_is_restarted(false);
}

/* One node runs; another wants in; both run; a worker fails; both run again, and succeed. */
static void nodes_come_and_fail(bool by_name)
{
    struct muster_worker_spec first_spec, second_spec;
    struct node first, second;
    struct way way;
    char a[256], b[256];

    open_way(&way, by_name, 1);
    first_spec = spec_by(&way, &first, by_name ? "first-by-name" : "first-by-object",
                         "if test $WORLD_SIZE = 1; then exec sleep 600; fi; " SLEEPS_ONCE TELLS);
    second_spec = spec_by(&way, &second, by_name ? "second-by-name" : "second-by-object",
                          TELLS "exit $((TORCHELASTIC_RESTART_COUNT == 0))");
    start(&first, &first_spec);
    await_state(&first, MUSTER_WORKER_HEALTHY, 1);
    set(&way.hall, &way.hall.wanted, 2);
    start(&second, &second_spec);
    end_well(&first);
    end_well(&second);
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
    nodes_come_and_fail(true);
}

static void handlers_in_specs_regroup_when_a_node_comes_and_when_a_worker_fails(void **state)
{
    (void)state;
    nodes_come_and_fail(false);
}

static void a_handler_may_say_itself_where_workers_meet(void **state)
{
    struct muster_worker_spec spec;
    struct node node;
    struct way way;
    char text[256], wanted[64];

    (void)state;
    open_way(&way, false, 1);
    spec = spec_by(&way, &node, "address", TELLS "test \"$TORCHELASTIC_USE_AGENT_STORE\" = True");
    way.doors[0].own_address = true;
    (void)snprintf(wanted, sizeof wanted, "0 of 1 at 127.0.0.1:%d\n", (int)muster_store_server_port(way.hall.server));
    start(&node, &spec);
    end_well(&node);
    assert_string_equal(read_file(&node, "told", text), wanted);
    close_way(&way);
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
    open_way(&way, true, 1);
    way.hall.closed = true;
    spec = spec_by(&way, &node, "closed", "true");
    start(&node, &spec);
    end(&node);
    assert_int_equal(node.rc, MUSTER_ERDZV_CLOSED);
    assert_non_null(strstr(node.error.text, "join rendezvous 'job'"));
    assert_non_null(strstr(node.error.text, "the hall is closed"));
    close_way(&way);
}

static void a_job_that_is_closed_meanwhile_is_not_joined_again(void **state)
{
    struct muster_worker_spec spec;
    struct node node;
    struct way way;
    bool closed;

    (void)state;
    open_way(&way, false, 1);
    spec = spec_by(&way, &node, "closes", "while ! test -e go; do sleep 0.01; done; exit 3");
    start(&node, &spec);
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
    open_way(&way, false, 1);
    way.hall.fails = 2;
    spec = spec_by(&way, &node, "fails", "while ! test -e go; do sleep 0.01; done");
    muster_log_set_sink(keep_line, &lines);
    start(&node, &spec);
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
    open_way(&way, true, 2);
    spec = spec_by(&way, &node, "blocks", "true");
    start(&node, &spec);
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
    open_way(&way, false, 1);
    spec = spec_by(&way, &node, "signalled", "exec sleep 600");
    start(&node, &spec);
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
    struct way way;

    (void)state;
    open_way(&way, false, 2);
    way.hall.deaf = true;
    spec = spec_by(&way, &node, "deaf", "true");
    spec.shutdown_timeout_ms = 300;
    muster_log_set_sink(keep_line, &lines);
    start(&node, &spec);
    await(&way.hall, &way.hall.inside, 1);
    muster_agent_signal(node.agent, SIGTERM);
    end(&node);
    muster_log_set_sink(NULL, NULL);
    assert_int_equal(node.rc, MUSTER_ESIGNAL);
    assert_non_null(strstr(lines.text, "rendezvous handler 'hall': next_rendezvous() has not returned for 0.3 s after "
                                       "shutdown() was called"));
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
    /* The thread may still be about to give the lock back: the hall stays as it is. */
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
    open_way(&way, false, 1);
    spec = spec_by(&way, &node, "twice", "while ! test -e go; do sleep 0.01; done");
    start(&node, &spec);
    await_state(&node, MUSTER_WORKER_HEALTHY, 1);
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
    struct muster_worker_spec spec;
    struct muster_error error = { 0 };
    struct node node;
    struct way way;

    (void)state;
    open_way(&way, false, 1);
    spec = spec_by(&way, &node, "spec", "true");
    assert_int_equal(muster_worker_spec_check(&spec, &error), 0);
    spec.rdzv = way.params;
    assert_int_equal(muster_worker_spec_check(&spec, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "rdzv and rdzv_handler"));
    spec.rdzv = NULL;
    spec.rdzv_handler = &nameless;
    assert_int_equal(muster_worker_spec_check(&spec, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "get_backend"));
    close_way(&way);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_registered_handler_runs_under_an_agent),
        cmocka_unit_test(a_handler_given_in_the_spec_runs_under_an_agent),
        cmocka_unit_test(registered_handlers_regroup_when_a_node_comes_and_when_a_worker_fails),
        cmocka_unit_test(handlers_in_specs_regroup_when_a_node_comes_and_when_a_worker_fails),
        cmocka_unit_test(a_handler_may_say_itself_where_workers_meet),
        cmocka_unit_test(a_handler_that_fails_ends_the_run_with_its_own_words),
        cmocka_unit_test(a_job_that_is_closed_meanwhile_is_not_joined_again),
        cmocka_unit_test(questions_that_fail_stop_no_worker),
        cmocka_unit_test(a_signal_ends_a_join_that_blocks),
        cmocka_unit_test(a_signal_to_a_running_node_leaves_the_job_open),
        cmocka_unit_test(a_handler_that_blocks_for_ever_does_not_hold_up_the_end),
        cmocka_unit_test(a_handler_serves_one_agent_at_a_time),
        cmocka_unit_test(a_spec_has_parameters_or_a_handler),
    };

    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
