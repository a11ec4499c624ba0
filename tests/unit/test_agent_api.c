/* The agent as library users get it: the installed header, the shared object, nothing else. */
#include <muster.h>

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Helpers ---- */

static const char *const succeed[] = { "true", NULL };

/* One node alone, on a store of its own. */
static struct muster_rdzv_params *alone(void)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new("c10d", "127.0.0.1:0", "job", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_bool(params, "is_host", true, NULL), 0);
    return params;
}

static struct muster_worker_spec make_spec(const struct muster_rdzv_params *params, int64_t workers)
{
    struct muster_worker_spec spec;

    muster_worker_spec_init(&spec);
    spec.rdzv = params;
    spec.local_world_size = workers;
    return spec;
}

static struct muster_worker_spec make_command(const struct muster_rdzv_params *params, int64_t workers,
                                              const char *script)
{
    static const char *argv[] = { "sh", "-c", NULL, NULL };
    struct muster_worker_spec spec = make_spec(params, workers);

    argv[2] = script;
    spec.argv = argv;
    return spec;
}

/* Takes the parameters. */
static int run(struct muster_worker_spec spec, struct muster_run_result **ret_result, struct muster_error *reterr)
{
    struct muster_agent *agent = NULL;
    int rc = muster_agent_new(&spec, &agent, reterr);

    assert_int_equal(rc, 0);
    muster_rdzv_params_free((struct muster_rdzv_params *)(uintptr_t)spec.rdzv);
    rc = muster_agent_run(agent, ret_result, reterr);
    muster_agent_free(agent);
    return rc;
}

static struct muster_run_result *run_well(struct muster_worker_spec spec)
{
    struct muster_run_result *result = NULL;
    struct muster_error error = { 0 };

    if (run(spec, &result, &error) < 0)
        fail_msg("%s", error.text);
    return result;
}

static bool value_is(const struct muster_run_result *result, int64_t rank, const char *text)
{
    const struct muster_return_value *value = muster_run_result_value(result, rank);

    return value != NULL && value->value.len == strlen(text) && memcmp(value->value.data, text, value->value.len) == 0;
}

static void assert_succeeded(struct muster_run_result *result, size_t workers)
{
    assert_int_equal(result->state, MUSTER_WORKER_SUCCEEDED);
    assert_false(muster_run_result_is_failed(result));
    assert_int_equal(result->return_values_count, workers);
    assert_int_equal(result->failures_count, 0);
    assert_string_equal(result->reason, "");
    for (size_t i = 0; i < workers; i++) {
        assert_int_equal(result->return_values[i].local_rank, i);
        assert_ptr_equal(muster_run_result_value(result, result->return_values[i].global_rank),
                         &result->return_values[i]);
    }
    assert_null(muster_run_result_value(result, 1000));
    assert_null(muster_run_result_failure(result, 0));
}

/* An agent that runs in a thread of its own. */
struct running {
    struct muster_agent *agent;
    struct muster_run_result *result;
    struct muster_error error;
    int rc;
    pthread_t thread;
};

static void *run_in_thread(void *arg)
{
    struct running *running = arg;

    running->rc = muster_agent_run(running->agent, &running->result, &running->error);
    return NULL;
}

static void start_running(struct running *running, struct muster_worker_spec spec)
{
    *running = (struct running){ 0 };
    assert_int_equal(muster_agent_new(&spec, &running->agent, &running->error), 0);
    muster_rdzv_params_free((struct muster_rdzv_params *)(uintptr_t)spec.rdzv);
    assert_int_equal(pthread_create(&running->thread, NULL, run_in_thread, running), 0);
}

static void end_running(struct running *running)
{
    assert_int_equal(pthread_join(running->thread, NULL), 0);
    muster_agent_free(running->agent);
}

static struct muster_worker_group *look(struct muster_agent *agent)
{
    struct muster_worker_group *group = NULL;
    struct muster_error error = { 0 };

    assert_int_equal(muster_agent_snapshot(agent, &group, &error), 0);
    return group;
}

/* Of the state nobody is told: it is looked at, again and again. */
static struct muster_worker_group *wait_for(struct muster_agent *agent, enum muster_worker_state state, int64_t attempt)
{
    for (;;) {
        struct muster_worker_group *group = look(agent);

        if (group->state == state && group->attempt == attempt)
            return group;
        muster_worker_group_free(group);
        (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
}

static char scratch[] = "/tmp/muster-agent-api.XXXXXX";

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

/* ---- Specs ---- */

static void a_spec_has_defaults(void **state)
{
    struct muster_worker_spec spec;

    (void)state;
    muster_worker_spec_init(&spec);
    assert_int_equal(spec.size, sizeof spec);
    assert_string_equal(spec.role, "default");
    assert_int_equal(spec.max_restarts, 3);
    assert_int_equal(spec.monitor_interval_ms, 100);
}

static int return_a_name(void *ctx, const struct muster_worker *worker, struct muster_bytes *ret_value)
{
    char text[64];

    (void)snprintf(text, sizeof text, "%s: %d of %d, LOCAL_RANK %s", (const char *)ctx, (int)worker->global_rank,
                   (int)worker->world_size, getenv("LOCAL_RANK"));
    ret_value->data = strdup(text);
    ret_value->len = strlen(text);
    return 0;
}

static void what_is_wrong_with_a_spec_is_said_by_field(void **state)
{
    static const char *const nothing[] = { NULL };
    static const struct muster_worker_driver_ops no_start = { .size = sizeof no_start, .name = "x" };
    struct muster_worker_driver no_ops = { NULL }, half = { &no_start };
    struct muster_rdzv_params *params = alone();
    struct muster_worker_spec good = make_spec(params, 2), bad;
    struct muster_error error = { 0 };

    (void)state;
    good.argv = succeed;
    assert_int_equal(muster_worker_spec_check(&good, &error), 0);
#define BAD(rc, words, ...)                                                                                            \
    do {                                                                                                               \
        struct muster_agent *agent = NULL;                                                                             \
        bad = good;                                                                                                    \
        __VA_ARGS__;                                                                                                   \
        assert_int_equal(muster_worker_spec_check(&bad, &error), rc);                                                  \
        assert_non_null(strstr(error.text, words));                                                                    \
        assert_int_equal(muster_agent_new(&bad, &agent, NULL), rc);                                                    \
        assert_null(agent);                                                                                            \
    } while (0)
    BAD(MUSTER_EINVAL, "size", bad.size = 0);
    BAD(MUSTER_EINVAL, "role", bad.role = NULL);
    BAD(MUSTER_EINVAL, "role", bad.role = "");
    BAD(MUSTER_EINVAL, "local_world_size", bad.local_world_size = 0);
    BAD(MUSTER_EINVAL, "local_world_size", bad.local_world_size = -1);
    BAD(MUSTER_ELIMIT, "local_world_size", bad.local_world_size = INT64_MAX);
    BAD(MUSTER_EINVAL, "monitor_interval_ms", bad.monitor_interval_ms = 0);
    BAD(MUSTER_EINVAL, "max_restarts", bad.max_restarts = -1);
    BAD(MUSTER_EINVAL, "rdzv", bad.rdzv = NULL);
    BAD(MUSTER_EINVAL, "entry point", bad.argv = NULL);
    BAD(MUSTER_EINVAL, "argv", bad.argv = nothing);
    BAD(MUSTER_EINVAL, "argv and function", bad.function = return_a_name, bad.function_name = "name");
    BAD(MUSTER_EINVAL, "function_name", bad.argv = NULL, bad.function = return_a_name);
    BAD(MUSTER_EINVAL, "driver", bad.driver = &no_ops);
    BAD(MUSTER_EINVAL, "driver", bad.driver = &half);
    BAD(MUSTER_EINVAL, "redirects", bad.redirects = "3");
    BAD(MUSTER_EINVAL, "tee", bad.tee = "3");
    BAD(MUSTER_EINVAL, "log_dir", bad.log_dir = "");
    BAD(MUSTER_EINVAL, "master_addr", bad.master_addr = "");
    BAD(MUSTER_EINVAL, "master_addr", bad.master_addr = "node 1");
    BAD(MUSTER_EINVAL, "redirects", bad.log_dir = "/tmp", bad.redirects = "4");
    BAD(MUSTER_EINVAL, "tee", bad.log_dir = "/tmp", bad.tee = "0:9");
    BAD(MUSTER_EINVAL, "SIGNONE", bad.signals = "SIGTERM,SIGNONE");
    BAD(MUSTER_EINVAL, "shutdown_timeout_ms", bad.shutdown_timeout_ms = -1);
    BAD(MUSTER_EINVAL, "exit_barrier_timeout_ms", bad.exit_barrier_timeout_ms = -1);
    BAD(MUSTER_EINVAL, "uninterruptible_timeout_ms", bad.uninterruptible_timeout_ms = -1);
#undef BAD
    muster_rdzv_params_free(params);
}

static void a_shorter_spec_of_an_older_program_is_taken(void **state)
{
    struct muster_rdzv_params *params = alone();
    struct muster_worker_spec spec = make_spec(params, 1);
    struct muster_agent *agent = NULL;

    (void)state;
    spec.argv = succeed;
    spec.log_dir = ""; /* is not looked at */
    spec.size = offsetof(struct muster_worker_spec, log_dir);
    assert_int_equal(muster_agent_new(&spec, &agent, NULL), 0);
    muster_agent_free(agent);
    muster_rdzv_params_free(params);
}

static void entry_points_have_names(void **state)
{
    static const char *const path[] = { "/usr/bin/python3", "train.py", NULL };
    static const struct muster_worker_driver_ops ops = { .size = sizeof ops, .name = "crew" };
    struct muster_worker_driver driver = { &ops };
    struct muster_worker_spec spec;

    (void)state;
    muster_worker_spec_init(&spec);
    assert_string_equal(muster_worker_spec_entry_point(&spec), "");
    spec.driver = &driver;
    assert_string_equal(muster_worker_spec_entry_point(&spec), "crew");
    spec.argv = path;
    assert_string_equal(muster_worker_spec_entry_point(&spec), "python3");
    spec.argv = succeed;
    assert_string_equal(muster_worker_spec_entry_point(&spec), "true");
    spec.function = return_a_name;
    spec.function_name = "return_a_name";
    assert_string_equal(muster_worker_spec_entry_point(&spec), "return_a_name");
}

static void states_have_names_and_two_of_them_run(void **state)
{
    static const char *const names[] = {
#define X(name, text) [MUSTER_WORKER_##name] = #name,
        MUSTER_WORKER_STATES(X)
#undef X
    };

    (void)state;
    for (enum muster_worker_state i = MUSTER_WORKER_UNKNOWN; i <= MUSTER_WORKER_FAILED; i++) {
        assert_string_equal(muster_worker_state_name(i), names[i]);
        assert_int_equal(muster_worker_state_is_running(i), i == MUSTER_WORKER_HEALTHY || i == MUSTER_WORKER_UNHEALTHY);
    }
}

/* ---- Commands ---- */

static void commands_run_and_know_who_they_are(void **state)
{
    static const char script[] = "test \"$RANK\" = \"$LOCAL_RANK\" && test \"$ROLE_RANK\" = \"$RANK\" &&"
                                 "test \"$WORLD_SIZE$LOCAL_WORLD_SIZE$ROLE_WORLD_SIZE\" = 222 &&"
                                 "test \"$GROUP_RANK$GROUP_WORLD_SIZE\" = 01 && test \"$ROLE_NAME\" = trainer &&"
                                 "test -n \"$MASTER_ADDR\" && test \"$MASTER_PORT\" -gt 0 &&"
                                 "test \"$TORCHELASTIC_RUN_ID\" = job && test \"$TORCHELASTIC_RESTART_COUNT\" = 0 &&"
                                 "test \"$TORCHELASTIC_MAX_RESTARTS\" = 0 && test \"$TORCHELASTIC_ERROR_FILE\" = '' &&"
                                 "test \"$TORCHELASTIC_USE_AGENT_STORE\" = True && test \"$MINE\" = 1 &&"
                                 "test \"$NCCL_ASYNC_ERROR_HANDLING\" = 0 &&"
                                 "test \"$TORCH_NCCL_ASYNC_ERROR_HANDLING\" = 1";
    static const char *const envp[] = { "PATH=/usr/bin:/bin", "MINE=1", "RANK=7", "NCCL_ASYNC_ERROR_HANDLING=0", NULL };
    struct muster_worker_spec spec = make_command(alone(), 2, script);
    struct muster_run_result *result;

    (void)state;
    spec.role = "trainer";
    spec.max_restarts = 0;
    spec.envp = envp;
    result = run_well(spec);
    assert_succeeded(result, 2);
    assert_true(value_is(result, 0, ""));
    assert_true(value_is(result, 1, ""));
    assert_true(result->total_run_time_ms >= 0);
    muster_run_result_free(result);
}

static void a_failed_worker_is_a_result_and_its_siblings_are_stopped(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 2, "test $RANK = 0 && exit 7; exec sleep 600");
    struct muster_run_result *result;

    (void)state;
    spec.max_restarts = 0;
    result = run_well(spec);
    assert_true(muster_run_result_is_failed(result));
    assert_int_equal(result->failures_count, 2);
    assert_int_equal(result->return_values_count, 0);
    assert_int_equal(result->failures[0].global_rank, 0);
    assert_int_equal(result->failures[0].exit_code, 7);
    assert_true(result->failures[0].id > 0 && result->failures[0].time_s > 0);
    assert_string_equal(result->failures[0].message, "");
    assert_null(result->failures[0].error_file);
    assert_false(result->failures[0].out_of_memory);
    assert_int_equal(muster_run_result_failure(result, 1)->exit_code, -SIGTERM);
    assert_null(muster_run_result_value(result, 1));
    assert_non_null(strstr(result->reason, "rank 0"));
    assert_null(strchr(result->reason, '\n'));
    muster_run_result_free(result);
}

static void failed_workers_are_restarted(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 2, "exit $((TORCHELASTIC_RESTART_COUNT < 2 && RANK == 1))");
    struct muster_agent *agent = NULL;
    struct muster_worker_group *group;
    struct muster_run_result *result = NULL;

    (void)state;
    assert_int_equal(muster_agent_new(&spec, &agent, NULL), 0);
    assert_int_equal(muster_agent_run(agent, &result, NULL), 0);
    assert_succeeded(result, 2);
    group = look(agent);
    assert_int_equal(group->state, MUSTER_WORKER_SUCCEEDED);
    assert_int_equal(group->attempt, 3);
    assert_int_equal(group->restart_count, 2);
    assert_int_equal(group->remaining_restarts, 1);
    muster_worker_group_free(group);
    muster_run_result_free(result);
    muster_agent_free(agent);
    muster_rdzv_params_free((struct muster_rdzv_params *)(uintptr_t)spec.rdzv);
}

static void restarts_come_to_an_end(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 1, "kill -9 $$");
    struct muster_run_result *result;

    (void)state;
    spec.max_restarts = 1;
    result = run_well(spec);
    assert_true(muster_run_result_is_failed(result));
    assert_int_equal(muster_run_result_failure(result, 0)->exit_code, -SIGKILL);
    muster_run_result_free(result);
}

static void a_command_that_cannot_be_started_is_an_error(void **state)
{
    static const char *const missing[] = { "/no/such/program", NULL };
    struct muster_worker_spec spec = make_spec(alone(), 2);
    struct muster_run_result *result = NULL;
    struct muster_error error = { 0 };

    (void)state;
    spec.argv = missing;
    assert_true(run(spec, &result, &error) < 0);
    assert_non_null(strstr(error.text, "/no/such/program"));
    assert_null(result);
}

static void a_rendezvous_that_does_not_exist_is_an_error(void **state)
{
    struct muster_rdzv_params *params = NULL;
    struct muster_worker_spec spec;
    struct muster_run_result *result = NULL;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_rdzv_params_new("smoke", "signals", "job", 1, 1, NULL, &params, NULL), 0);
    spec = make_spec(params, 1);
    spec.argv = succeed;
    assert_int_equal(run(spec, &result, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "smoke"));
    assert_null(result);
}

/* ---- Output ---- */

/* In the one attempt that there is below `log_dir`. */
static void read_log(const char *log_dir, const char *name, char *text, size_t room)
{
    char command[512];
    FILE *file;
    size_t len;

    (void)snprintf(command, sizeof command, "cat %s/job_*/attempt_0/%s", log_dir, name);
    file = popen(command, "r");
    assert_non_null(file);
    len = fread(text, 1, room - 1, file);
    text[len] = '\0';
    assert_int_equal(pclose(file), 0);
}

static void output_goes_to_files_and_error_files_are_read(void **state)
{
    struct muster_worker_spec spec = make_command(
        alone(), 2,
        "echo out $RANK; echo err $RANK >&2; test $RANK = 0 || "
        "{ echo '{\"message\": \"it broke\", \"timestamp\": 12}' >\"$TORCHELASTIC_ERROR_FILE\"; exit 1; }");
    struct muster_run_result *result;
    const struct muster_failure *failure;
    char log_dir[128], text[256];

    (void)state;
    (void)snprintf(log_dir, sizeof log_dir, "%s/logs/deep", scratch);
    spec.max_restarts = 0;
    spec.log_dir = log_dir;
    spec.redirects = "3";
    result = run_well(spec);
    assert_true(muster_run_result_is_failed(result));
    failure = muster_run_result_failure(result, 1);
    assert_string_equal(failure->message, "it broke");
    assert_int_equal(failure->time_s, 12);
    assert_non_null(strstr(failure->error_file, "attempt_0/1/error.json"));
    muster_run_result_free(result);
    read_log(log_dir, "1/stdout.log", text, sizeof text);
    assert_string_equal(text, "out 1\n");
    read_log(log_dir, "1/stderr.log", text, sizeof text);
    assert_string_equal(text, "err 1\n");
}

static void the_last_words_of_a_worker_are_its_message(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 1, "echo 'no more disks' >&2; exit 4");
    struct muster_run_result *result;
    char log_dir[128];

    (void)state;
    (void)snprintf(log_dir, sizeof log_dir, "%s/words", scratch);
    spec.max_restarts = 0;
    spec.log_dir = log_dir;
    spec.tee = "0:1";
    spec.redirects = "0:2";
    result = run_well(spec);
    assert_non_null(strstr(muster_run_result_failure(result, 0)->message, "no more disks"));
    assert_non_null(strstr(result->reason, "no more disks"));
    muster_run_result_free(result);
}

static void a_log_directory_that_cannot_be_made_is_an_error(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 1, "true");
    struct muster_run_result *result = NULL;
    struct muster_error error = { 0 };

    (void)state;
    spec.log_dir = "/dev/null/logs";
    assert_true(run(spec, &result, &error) < 0);
    assert_non_null(strstr(error.text, "log_dir '/dev/null/logs'"));
}

/* ---- Functions ---- */

static void functions_give_back_bytes_by_global_rank(void **state)
{
    static char greeting[] = "hello";
    struct muster_worker_spec spec = make_spec(alone(), 3);
    struct muster_run_result *result;

    (void)state;
    spec.function = return_a_name;
    spec.function_name = "return_a_name";
    spec.function_ctx = greeting;
    result = run_well(spec);
    assert_succeeded(result, 3);
    assert_true(value_is(result, 0, "hello: 0 of 3, LOCAL_RANK 0"));
    assert_true(value_is(result, 1, "hello: 1 of 3, LOCAL_RANK 1"));
    assert_true(value_is(result, 2, "hello: 2 of 3, LOCAL_RANK 2"));
    muster_run_result_free(result);
}

#define BIG ((size_t)3 << 20)

static int return_much_or_nothing(void *ctx, const struct muster_worker *worker, struct muster_bytes *ret_value)
{
    (void)ctx;
    if (worker->local_rank == 1)
        return 0;
    ret_value->data = malloc(BIG);
    ret_value->len = BIG;
    for (size_t i = 0; ret_value->data != NULL && i < BIG; i++)
        ret_value->data[i] = (char)i;
    return 0;
}

static void values_may_be_large_binary_or_empty(void **state)
{
    struct muster_worker_spec spec = make_spec(alone(), 2);
    struct muster_run_result *result;
    const struct muster_return_value *value;
    size_t wrong = 0;

    (void)state;
    spec.function = return_much_or_nothing;
    spec.function_name = "return_much_or_nothing";
    result = run_well(spec);
    value = muster_run_result_value(result, 0);
    assert_int_equal(value->value.len, BIG);
    for (size_t i = 0; i < BIG; i++)
        wrong += ((const char *)value->value.data)[i] != (char)i;
    assert_int_equal(wrong, 0);
    assert_true(value_is(result, 1, ""));
    muster_run_result_free(result);
}

static int fail_in_several_ways(void *ctx, const struct muster_worker *worker, struct muster_bytes *ret_value)
{
    (void)ctx;
    if (worker->local_rank == 1)
        _exit(0);
    ret_value->data = strdup("out of luck");
    ret_value->len = strlen(ret_value->data);
    if (worker->local_rank == 2) /* stays, until it is stopped */
        (void)pause();
    return worker->local_rank == 0 ? 9 : 0;
}

struct wanted_line {
    const char *text;
    bool said;
};

static void look_for_line(void *ctx, enum muster_log_level level, const char *line)
{
    struct wanted_line *wanted = ctx;

    (void)level;
    wanted->said |= strstr(line, wanted->text) != NULL;
}

static void functions_fail_with_a_message(void **state)
{
    struct muster_worker_spec spec = make_spec(alone(), 1);
    struct wanted_line wanted = { .text = ") of fn: fail_in_several_ways (start_method: fork)" };
    struct muster_run_result *result;

    (void)state;
    spec.max_restarts = 0;
    spec.function = fail_in_several_ways;
    spec.function_name = "fail_in_several_ways";
    muster_log_set_sink(look_for_line, &wanted);
    result = run_well(spec);
    muster_log_set_sink(NULL, NULL);
    assert_true(wanted.said);
    assert_true(muster_run_result_is_failed(result));
    assert_int_equal(muster_run_result_failure(result, 0)->exit_code, 9);
    assert_string_equal(muster_run_result_failure(result, 0)->message, "out of luck");
    muster_run_result_free(result);
}

/* Each rank is a value or a failure, never both: whoever exits by itself gives nothing back. */
static void a_function_that_gives_nothing_back_has_failed(void **state)
{
    struct muster_worker_spec spec = make_spec(alone(), 3);
    struct muster_run_result *result;
    const struct muster_failure *failure;

    (void)state;
    spec.max_restarts = 0;
    spec.function = fail_in_several_ways;
    spec.function_name = "fail_in_several_ways";
    result = run_well(spec);
    assert_true(muster_run_result_is_failed(result));
    assert_int_equal(result->failures_count + result->return_values_count, 3);
    failure = muster_run_result_failure(result, 1);
    if (failure != NULL && failure->exit_code == 0) /* or it was stopped before it came to that */
        assert_non_null(strstr(failure->message, "without giving"));
    for (int64_t rank = 0; rank < 3; rank++)
        assert_true((muster_run_result_failure(result, rank) != NULL) !=
                    (muster_run_result_value(result, rank) != NULL));
    muster_run_result_free(result);
}

/* ---- While it runs ---- */

static void an_agent_can_be_looked_at_at_any_time(void **state)
{
    struct muster_worker_spec spec;
    struct muster_worker_group *group;
    struct running running;
    char gate[128], script[256];

    (void)state;
    for (int i = 0; i < 2; i++) {
        (void)snprintf(gate, sizeof gate, "%s/gate%d", scratch, i);
        assert_int_equal(mkfifo(gate, 0600), 0);
    }
    (void)snprintf(script, sizeof script, "read word <%s/gate$LOCAL_RANK", scratch);
    spec = make_command(alone(), 2, script);
    assert_int_equal(muster_agent_new(&spec, &running.agent, NULL), 0);
    group = look(running.agent);
    assert_int_equal(group->state, MUSTER_WORKER_INIT);
    assert_int_equal(group->group_rank, -1);
    assert_int_equal(group->attempt, 0);
    assert_int_equal(group->remaining_restarts, 3);
    assert_string_equal(group->role, "default");
    assert_int_equal(group->workers_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(group->workers[i].id, 0);
        assert_int_equal(group->workers[i].local_rank, i);
        assert_int_equal(group->workers[i].global_rank, -1);
        assert_int_equal(group->workers[i].world_size, -1);
    }
    muster_worker_group_free(group);
    muster_agent_free(running.agent);

    start_running(&running, spec);
    group = wait_for(running.agent, MUSTER_WORKER_HEALTHY, 1);
    assert_int_equal(group->group_rank, 0);
    assert_int_equal(group->group_world_size, 1);
    assert_true(group->round >= 0);
    assert_true(group->master.master_port > 0 && group->master.master_addr[0] != '\0');
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kill((pid_t)group->workers[i].id, 0), 0);
        assert_int_equal(group->workers[i].global_rank, i);
        assert_int_equal(group->workers[i].role_rank, i);
        assert_int_equal(group->workers[i].world_size, 2);
        assert_int_equal(group->workers[i].role_world_size, 2);
    }
    muster_worker_group_free(group);
    for (int i = 0; i < 2; i++) {
        FILE *file;

        (void)snprintf(gate, sizeof gate, "%s/gate%d", scratch, i);
        file = fopen(gate, "w"); /* waits for the reader */
        assert_non_null(file);
        (void)fputs("go\n", file);
        (void)fclose(file);
    }
    assert_int_equal(pthread_join(running.thread, NULL), 0);
    assert_int_equal(running.rc, 0);
    assert_succeeded(running.result, 2);
    group = look(running.agent);
    assert_int_equal(group->state, MUSTER_WORKER_SUCCEEDED);
    muster_worker_group_free(group);
    muster_run_result_free(running.result);
    muster_agent_free(running.agent);
}

/* What metrics tell. */
struct metrics {
    char ends[512];      /* those of the end, "name=value " */
    char decisions[512]; /* "restarts left, state; " */
    unsigned restarts, runs;
};

/* "healthy" of "workers.default.healthy"; NULL: another metric */
static const char *state_in(const char *name)
{
    static const char *const states[] = { "unknown", "init", "healthy", "unhealthy", "stopped", "succeeded", "failed" };

    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strcmp(name + strlen("workers.default."), states[i]) == 0)
            return states[i];
    return NULL;
}

static void note_decision(struct metrics *metrics, const struct muster_metric *metric)
{
    size_t used = strlen(metrics->decisions), room = sizeof metrics->decisions - used;

    if (strncmp(metric->name, "workers.default.", strlen("workers.default.")) != 0)
        return;
    if (strcmp(metric->name, "workers.default.remaining_restarts") == 0)
        (void)snprintf(metrics->decisions + used, room, "%lld ", (long long)metric->value);
    if (state_in(metric->name) != NULL) {
        assert_int_equal(metric->value, 1);
        (void)snprintf(metrics->decisions + used, room, "%s; ", state_in(metric->name));
    }
}

static void count_metric(void *ctx, const struct muster_metric *metric)
{
    struct metrics *metrics = ctx;
    size_t used = strlen(metrics->ends);

    assert_string_equal(metric->group, "torchelastic");
    note_decision(metrics, metric);
    metrics->restarts += strcmp(metric->name, "SimpleElasticAgent._restart_workers.success") == 0;
    metrics->runs += strcmp(metric->name, "SimpleElasticAgent.run.success") == 0;
    if (strncmp(metric->name, "workers.default.run_", 20) == 0 ||
        strcmp(metric->name, "workers.default.flakiness") == 0)
        (void)snprintf(metrics->ends + used, sizeof metrics->ends - used, "%s=%lld ",
                       metric->name + strlen("workers.default."), (long long)metric->value);
}

/* In state D until the file is there: a parent whose vfork's child has not gone on. No signal but SIGKILL ends it. */
static int hang(void *ctx, const struct muster_worker *worker, struct muster_bytes *ret_value)
{
    (void)worker;
    (void)ret_value;
    (void)signal(SIGTERM, SIG_IGN);
    if (vfork() == 0) {
        while (access(ctx, F_OK) < 0)
            (void)usleep(1000);
        _exit(0);
    }
    return 0;
}

static void a_worker_that_hangs_is_seen_and_has_failed_however_it_ends(void **state)
{
    struct muster_worker_spec spec = make_spec(alone(), 1);
    const struct muster_failure *failure;
    struct metrics metrics = { .restarts = 0 };
    struct running running;
    char gate[128];
    FILE *file;

    (void)state;
    (void)snprintf(gate, sizeof gate, "%s/thaw", scratch);
    spec.function = hang;
    spec.function_name = "hang";
    spec.function_ctx = gate;
    spec.uninterruptible_timeout_ms = 50;
    muster_metrics_set_sink(count_metric, &metrics);
    start_running(&running, spec);
    muster_worker_group_free(wait_for(running.agent, MUSTER_WORKER_UNHEALTHY, 1));
    file = fopen(gate, "w");
    assert_non_null(file);
    (void)fclose(file);
    assert_int_equal(pthread_join(running.thread, NULL), 0);
    muster_metrics_set_sink(NULL, NULL);
    assert_string_equal(metrics.decisions, "3 healthy; 3 unhealthy; ");
    assert_int_equal(running.rc, 0);
    assert_true(muster_run_result_is_failed(running.result));
    failure = muster_run_result_failure(running.result, 0);
    assert_non_null(failure);
    assert_int_equal(failure->exit_code, 0);
    assert_non_null(strstr(failure->message, "has hung in the kernel (state D)"));
    assert_null(muster_run_result_value(running.result, 0));
    muster_run_result_free(running.result);
    muster_agent_free(running.agent);
}

static void a_signal_from_another_thread_ends_it(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 2, "exec sleep 600");
    struct running running;
    struct muster_worker_group *group;

    (void)state;
    start_running(&running, spec);
    group = wait_for(running.agent, MUSTER_WORKER_HEALTHY, 1);
    muster_agent_signal(running.agent, SIGINT);
    assert_int_equal(pthread_join(running.thread, NULL), 0);
    assert_int_equal(running.rc, MUSTER_ESIGNAL);
    assert_int_equal(running.error.code, MUSTER_ESIGNAL);
    assert_null(running.result);
    for (int i = 0; i < 2; i++)
        assert_true(kill((pid_t)group->workers[i].id, 0) < 0 && errno == ESRCH);
    muster_worker_group_free(group);
    muster_agent_signal(running.agent, SIGINT); /* nobody there any more */
    muster_agent_free(running.agent);
}

static void sigquit_after_another_signal_kills(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 1, "trap '' INT TERM; while :; do sleep 600; done");
    struct running running;

    (void)state;
    start_running(&running, spec);
    muster_worker_group_free(wait_for(running.agent, MUSTER_WORKER_HEALTHY, 1));
    muster_agent_signal(running.agent, SIGTERM);
    muster_agent_signal(running.agent, SIGQUIT);
    end_running(&running);
    assert_int_equal(running.rc, MUSTER_ESIGNAL);
}

static void a_signal_before_the_run_ends_it_at_once(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 1, "exec sleep 600");
    struct muster_agent *agent = NULL;
    struct muster_run_result *result = NULL;

    (void)state;
    assert_int_equal(muster_agent_new(&spec, &agent, NULL), 0);
    for (int i = 0; i < 100; i++)
        muster_agent_signal(agent, SIGTERM);
    assert_int_equal(muster_agent_run(agent, &result, NULL), MUSTER_ESIGNAL);
    assert_null(result);
    muster_agent_free(agent);
    muster_rdzv_params_free((struct muster_rdzv_params *)(uintptr_t)spec.rdzv);
}

static void listed_signals_are_handled_while_it_runs(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 1,
                                                  "test \"$TORCHELASTIC_SIGNALS_TO_HANDLE\" = SIGUSR1 &&"
                                                  "kill -USR1 $PPID; exec sleep 600");
    struct muster_run_result *result = NULL;

    (void)state;
    spec.signals = "SIGUSR1";
    assert_int_equal(run(spec, &result, NULL), MUSTER_ESIGNAL);
    assert_null(result);
}

static void an_agent_runs_once(void **state)
{
    struct muster_worker_spec spec = make_command(alone(), 1, "true");
    struct muster_agent *agent = NULL;
    struct muster_run_result *result = NULL, *none = NULL;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_agent_new(&spec, &agent, NULL), 0);
    assert_int_equal(muster_agent_run(agent, &result, NULL), 0);
    assert_int_equal(muster_agent_run(agent, &none, &error), MUSTER_EINVAL);
    assert_null(none);
    assert_int_equal(muster_agent_worker_ended(agent, 1, 0, 0, muster_str(""), &error), MUSTER_EINVAL);
    muster_agent_free(agent);
    assert_succeeded(result, 1); /* it is its own master */
    muster_run_result_free(result);
    muster_rdzv_params_free((struct muster_rdzv_params *)(uintptr_t)spec.rdzv);
    muster_agent_free(NULL);
    muster_run_result_free(NULL);
    muster_worker_group_free(NULL);
}

static void what_is_not_ours_is_left_alone(void **state)
{
    sigset_t before, after;
    struct sigaction chld;
    int reaper = -1, status = 0;
    pid_t child;

    (void)state;
    child = fork();
    if (child == 0)
        _exit(42);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &before), 0);
    muster_run_result_free(run_well(make_command(alone(), 1, "true")));
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &after), 0);
    assert_int_equal(sigismember(&after, SIGPIPE), sigismember(&before, SIGPIPE));
    assert_int_equal(sigaction(SIGCHLD, NULL, &chld), 0);
    assert_ptr_equal(chld.sa_handler, SIG_DFL);
    assert_int_equal(prctl(PR_GET_CHILD_SUBREAPER, &reaper), 0);
    assert_int_equal(reaper, 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 42);
}

/* ---- With a guard ---- */

/* Has a process of its own, for there is no way back. The worker leaves a process behind that is out of its reach. */
static _Noreturn void run_guarded(const char *pid_file, bool blocked)
{
    sigset_t all, after;
    struct muster_worker_spec spec;
    struct muster_agent *agent = NULL;
    struct muster_run_result *result = NULL;
    struct muster_error error = { 0 };
    char script[256], line[32] = "";
    FILE *file;
    int reaper = 0;

    (void)alarm(50);
    (void)sigfillset(&all);
    (void)sigdelset(&all, SIGALRM);
    if (blocked)
        (void)sigprocmask(SIG_SETMASK, &all, NULL);
    if (muster_guard(&error) < 0 || prctl(PR_GET_CHILD_SUBREAPER, &reaper) < 0 || reaper != 1)
        _exit(101);
    (void)snprintf(
        script, sizeof script,
        "setsid sh -c 'echo $$ >%s; trap \"\" TERM; exec sleep 600' & while ! test -s %s; do sleep 0.01; done",
        pid_file, pid_file);
    spec = make_command(alone(), 1, script);
    if (muster_agent_new(&spec, &agent, &error) < 0 || muster_agent_run(agent, &result, &error) < 0 ||
        muster_run_result_is_failed(result))
        _exit(102);
    if (sigprocmask(SIG_SETMASK, NULL, &after) < 0 || sigismember(&after, SIGCHLD) != (blocked ? 1 : 0))
        _exit(105);
    muster_run_result_free(result);
    muster_agent_free(agent);
    muster_rdzv_params_free((struct muster_rdzv_params *)(uintptr_t)spec.rdzv);
    file = fopen(pid_file, "r");
    if (file == NULL || fgets(line, sizeof line, file) == NULL)
        _exit(103);
    (void)fclose(file);
    _exit(kill((pid_t)atoi(line), 0) < 0 && errno == ESRCH ? 0 : 104);
}

static void with_a_guard_what_workers_leave_behind_ends(void **state)
{
    char pid_file[128];
    int status = 0;
    pid_t child;

    (void)state;
    for (int blocked = 0; blocked < 2; blocked++) { /* signals, when the program was started */
        (void)snprintf(pid_file, sizeof pid_file, "%s/left%d", scratch, blocked);
        (void)fflush(NULL);
        child = fork();
        if (child == 0)
            run_guarded(pid_file, blocked != 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

enum { RESTARTS = 200 };

static void count_lost(void *ctx, enum muster_log_level level, const char *line)
{
    (void)level;
    if (strstr(line, "its exit code is lost") != NULL)
        (*(unsigned *)ctx)++;
}

/* Each fails again and again, with a code of its own. */
static _Noreturn void run_two_guarded(void)
{
    static unsigned lost;
    struct running running[2];
    struct muster_error error = { 0 };

    (void)alarm(300);
    if (muster_guard(&error) < 0)
        _exit(101);
    muster_log_set_sink(count_lost, &lost);
    for (int i = 0; i < 2; i++) {
        struct muster_rdzv_params *params = alone();
        struct muster_worker_spec spec;

        if (muster_rdzv_params_set_text(params, "engine", "off", &error) <
            0) /* a leader would slow a crash loop down */
            _exit(106);
        spec = make_command(params, 2, i == 0 ? "exit 41" : "exit 42");
        spec.max_restarts = RESTARTS;
        start_running(&running[i], spec);
    }
    for (int i = 0; i < 2; i++) {
        struct muster_worker_group *group;

        if (pthread_join(running[i].thread, NULL) != 0 || running[i].rc != 0)
            _exit(102);
        group = look(running[i].agent);
        if (group->restart_count != RESTARTS || !muster_run_result_is_failed(running[i].result))
            _exit(103);
        for (size_t k = 0; k < running[i].result->failures_count; k++) {
            int code = running[i].result->failures[k].exit_code;

            if (code != 41 + i && code != -SIGTERM) /* the second of them may have been stopped */
                _exit(104);
        }
        muster_worker_group_free(group);
        muster_run_result_free(running[i].result);
        muster_agent_free(running[i].agent);
    }
    _exit(lost == 0 ? 0 : 105);
}

static void two_agents_of_a_guarded_process_know_their_own_workers(void **state)
{
    int status = 0;
    pid_t child;

    (void)state;
    (void)fflush(NULL);
    child = fork();
    if (child == 0)
        run_two_guarded();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- Two nodes ---- */

static int say_rank(void *ctx, const struct muster_worker *worker, struct muster_bytes *ret_value)
{
    (void)ctx;
    ret_value->data = malloc(32);
    ret_value->len = (size_t)snprintf(ret_value->data, 32, "%d/%d", (int)worker->global_rank, (int)worker->world_size);
    return 0;
}

/* A process of its own; its exit code is how many of its ranks have said what they should. */
static _Noreturn void be_a_node(int port_fd, int64_t workers)
{
    struct muster_rdzv_params *params = NULL;
    struct muster_worker_spec spec;
    struct muster_agent *agent = NULL;
    struct muster_run_result *result = NULL;
    struct muster_error error = { 0 };
    char endpoint[64], expected[32];
    uint16_t port = 0;
    int good = 0;

    (void)alarm(50);
    if (read(port_fd, &port, sizeof port) != (ssize_t)sizeof port)
        _exit(101);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", port);
    if (muster_rdzv_params_new("c10d", endpoint, "two", 2, 2, NULL, &params, &error) < 0 ||
        muster_rdzv_params_set_bool(params, "is_host", false, &error) < 0)
        _exit(102);
    spec = make_spec(params, workers);
    spec.function = say_rank;
    spec.function_name = "say_rank";
    if (muster_agent_new(&spec, &agent, &error) < 0 || muster_agent_run(agent, &result, &error) < 0) {
        (void)fprintf(stderr, "%s\n", error.text);
        _exit(103);
    }
    for (size_t i = 0; i < result->return_values_count; i++) {
        (void)snprintf(expected, sizeof expected, "%d/3", (int)result->return_values[i].global_rank);
        good += value_is(result, result->return_values[i].global_rank, expected);
    }
    muster_run_result_free(result);
    muster_agent_free(agent);
    muster_rdzv_params_free(params);
    _exit(good);
}

static void two_nodes_form_one_job(void **state)
{
    struct muster_store_server_config config = { .size = sizeof config };
    struct muster_store_server *server = NULL;
    int pipes[2], status[2];
    pid_t nodes[2];
    uint16_t port;

    (void)state;
    assert_int_equal(pipe(pipes), 0);
    (void)fflush(NULL);
    for (int i = 0; i < 2; i++) {
        nodes[i] = fork();
        if (nodes[i] == 0)
            be_a_node(pipes[0], i + 1);
    }
    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    port = muster_store_server_port(server);
    for (int i = 0; i < 2; i++)
        assert_int_equal(write(pipes[1], &port, sizeof port), sizeof port);
    for (int i = 0; i < 2; i++)
        assert_int_equal(waitpid(nodes[i], &status[i], 0), nodes[i]);
    muster_store_server_stop(server);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    for (int i = 0; i < 2; i++) {
        assert_true(WIFEXITED(status[i]));
        assert_int_equal(WEXITSTATUS(status[i]), i + 1);
    }
}

/* ---- Where workers meet, if the spec says so ---- */

/* A port that was free a moment ago. */
static uint16_t free_port(void)
{
    struct muster_store_server_config config = { .size = sizeof config, .host = "localhost" };
    struct muster_store_server *server = NULL;
    uint16_t port;

    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    port = muster_store_server_port(server);
    muster_store_server_stop(server);
    return port;
}

/* A store answers at MASTER_ADDR and MASTER_PORT. Fails in the first round. */
static int meet_the_others(void *ctx, const struct muster_worker *worker, struct muster_bytes *ret_value)
{
    struct muster_store_tcp_config config = { .size = sizeof config, .host = getenv("MASTER_ADDR") };
    struct muster_store *store = NULL;
    int64_t count = 0;

    (void)ctx;
    (void)worker;
    (void)ret_value;
    config.port = (uint16_t)atoi(getenv("MASTER_PORT"));
    config.timeout_ms = 30000;
    if (muster_store_tcp_new(&config, &store, NULL) < 0 ||
        muster_store_add(store, muster_str("came"), 1, MUSTER_TIMEOUT_DEFAULT, &count, NULL) < 0)
        return 2;
    muster_store_free(store);
    return strcmp(getenv("TORCHELASTIC_RESTART_COUNT"), "0") == 0 ? 3 : 0;
}

static void a_spec_may_say_where_workers_meet(void **state)
{
    struct muster_worker_spec spec = make_spec(alone(), 2);
    struct muster_worker_group *group;
    struct running running;
    uint16_t port = free_port();

    (void)state;
    spec.function = meet_the_others;
    spec.function_name = "meet_the_others";
    spec.max_restarts = 1; /* the next round has the same port */
    spec.master_addr = "localhost";
    spec.master_port = port;
    start_running(&running, spec);
    assert_int_equal(pthread_join(running.thread, NULL), 0);
    assert_int_equal(running.rc, 0);
    assert_false(muster_run_result_is_failed(running.result));
    group = look(running.agent);
    assert_int_equal(group->restart_count, 1);
    assert_string_equal(group->master.master_addr, "localhost");
    assert_int_equal(group->master.master_port, port);
    muster_worker_group_free(group);
    muster_run_result_free(running.result);
    muster_agent_free(running.agent);
}

static void a_master_port_that_is_taken_is_an_error_that_names_it(void **state)
{
    struct muster_store_server_config config = { .size = sizeof config, .host = "localhost" };
    struct muster_worker_spec spec = make_command(alone(), 1, "true");
    struct muster_store_server *server = NULL;
    struct muster_run_result *result = NULL;
    struct muster_error error = { 0 };
    char expected[64];

    (void)state;
    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    spec.master_port = muster_store_server_port(server);
    (void)snprintf(expected, sizeof expected, "master_port: cannot listen on 127.0.0.1, port %u: ", spec.master_port);
    assert_true(run(spec, &result, &error) < 0);
    assert_non_null(strstr(error.text, expected));
    muster_store_server_stop(server);
}

static void workers_of_a_static_rendezvous_meet_at_its_endpoint(void **state)
{
    static const struct {
        const char *addr;
        int port_offset; /* from the endpoint's; -1: none is given */
        const char *error;
    } rows[] = {
        { "127.0.0.1", 0, NULL },
        { NULL, -1, NULL },
        { "127.0.0.2", -1, "master_addr is '127.0.0.2' but the endpoint is at '127.0.0.1'" },
        { NULL, 1, "but the endpoint has port" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct muster_rdzv_params *params = NULL;
        struct muster_run_result *result = NULL;
        struct muster_error error = { 0 };
        struct muster_worker_spec spec;
        uint16_t port = free_port();
        char endpoint[32];

        (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", port);
        assert_int_equal(muster_rdzv_params_new("static", endpoint, "job", 1, 1, NULL, &params, NULL), 0);
        assert_int_equal(muster_rdzv_params_set_int(params, "rank", 0, NULL), 0);
        spec = make_command(params, 1, "test $MASTER_ADDR = 127.0.0.1");
        spec.max_restarts = 0;
        spec.master_addr = rows[i].addr;
        spec.master_port = rows[i].port_offset < 0 ? 0 : (uint16_t)(port + rows[i].port_offset);
        if (rows[i].error == NULL) {
            result = run_well(spec);
            assert_succeeded(result, 1);
            muster_run_result_free(result);
        } else {
            assert_true(run(spec, &result, &error) < 0);
            assert_non_null(strstr(error.text, rows[i].error));
        }
    }
}

/* ---- A driver of a user's own: workers are threads ---- */

#define CREW_MAX 4

struct crew {
    struct muster_worker_driver base;
    struct muster_agent *agent;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop_signal; /* 0: go on */
    int64_t attempt;
    struct hand {
        struct crew *crew;
        struct muster_worker worker;
        pthread_t thread;
        int64_t attempt;
        bool started;
    } hands[CREW_MAX];
    /* What they do. */
    int fail_attempts;  /* so many times rank 0 fails */
    bool others_linger; /* and the others wait to be stopped */
    bool all_linger;
    bool cannot_start, ends_inside;
    bool has_addresses; /* workers are called by them, too */
    bool uses_store;
    struct muster_store *store; /* NULL: it is not used */
    int starts, stops, restart_stops, last_signal, shutdowns, shutdown_signal;
    int64_t last_grace_ms;
};

static void *work(void *arg)
{
    struct hand *hand = arg;
    struct crew *crew = hand->crew;
    bool fails = hand->worker.global_rank == 0 && hand->attempt <= crew->fail_attempts;
    char text[64];
    int64_t count = 0;
    int code = fails ? 5 : 0;

    (void)pthread_mutex_lock(&crew->lock);
    while ((crew->all_linger || (crew->others_linger && !fails && hand->attempt <= crew->fail_attempts)) &&
           crew->stop_signal == 0)
        (void)pthread_cond_wait(&crew->changed, &crew->lock);
    if (crew->stop_signal != 0 && !fails)
        code = -crew->stop_signal;
    (void)pthread_mutex_unlock(&crew->lock);
    (void)snprintf(text, sizeof text, code == 0 ? "thread %d" : "thread %d is tired", (int)hand->worker.global_rank);
    if (crew->store != NULL) { /* workers meet in the group's store */
        assert_int_equal(muster_store_add(crew->store, muster_str("hands"), 1, 10000, &count, NULL), 0);
        assert_true(count >= 1 && count <= CREW_MAX);
    }
    assert_int_equal(
        muster_agent_worker_ended(crew->agent, hand->attempt, hand->worker.local_rank, code, muster_str(text), NULL),
        0);
    return NULL;
}

static void collect(struct crew *crew)
{
    for (int i = 0; i < CREW_MAX; i++) {
        if (crew->hands[i].started)
            assert_int_equal(pthread_join(crew->hands[i].thread, NULL), 0);
        crew->hands[i].started = false;
    }
}

static int crew_start(struct muster_worker_driver *driver, struct muster_agent *agent,
                      const struct muster_worker_group *group, struct muster_worker_id *ret_ids,
                      struct muster_error *reterr)
{
    struct crew *crew = (struct crew *)driver;

    collect(crew);
    crew->starts++;
    crew->agent = agent;
    crew->store = crew->uses_store ? group->store : NULL;
    crew->stop_signal = 0;
    crew->attempt = group->attempt;
    assert_string_equal(group->role, "default");
    assert_true(group->master.master_port > 0);
    assert_false(muster_worker_state_is_running(group->state));
    assert_ptr_equal(group->spec->driver, driver);
    assert_int_equal(muster_store_set(group->store, muster_str("k"), muster_str("v"), 1000, NULL), MUSTER_EINVAL);
    if (crew->ends_inside)
        assert_int_equal(muster_agent_worker_ended(agent, group->attempt, 0, 0, muster_str("early"), NULL), 0);
    if (crew->cannot_start) {
        reterr->code = MUSTER_ELIMIT;
        (void)snprintf(reterr->text, sizeof reterr->text, "nobody wants to work");
        return MUSTER_ELIMIT;
    }
    for (size_t i = 0; i < group->workers_count; i++) {
        assert_int_equal(ret_ids[i].number, 0);
        assert_string_equal(ret_ids[i].text, "");
        ret_ids[i].number = 7000000000 + (int64_t)i;
        if (crew->has_addresses)
            (void)snprintf(ret_ids[i].text, sizeof ret_ids[i].text, "node9:%d", 8000 + (int)i);
        if (crew->ends_inside && i == 0)
            continue;
        crew->hands[i] =
            (struct hand){ .crew = crew, .worker = group->workers[i], .attempt = group->attempt, .started = true };
        assert_int_equal(pthread_create(&crew->hands[i].thread, NULL, work, &crew->hands[i]), 0);
    }
    return 0;
}

static void crew_stop(struct muster_worker_driver *driver, const struct muster_worker_stop *how)
{
    struct crew *crew = (struct crew *)driver;

    crew->stops++;
    crew->restart_stops += how->is_restart;
    crew->last_signal = how->signal;
    crew->last_grace_ms = how->grace_ms;
    (void)pthread_mutex_lock(&crew->lock);
    crew->stop_signal = how->signal;
    (void)pthread_cond_broadcast(&crew->changed);
    (void)pthread_mutex_unlock(&crew->lock);
}

static void crew_shutdown(struct muster_worker_driver *driver, int signal)
{
    struct crew *crew = (struct crew *)driver;

    collect(crew);
    crew->shutdowns++;
    crew->shutdown_signal = signal;
}

static const struct muster_worker_driver_ops crew_ops = {
    .size = sizeof crew_ops, .name = "crew", .start = crew_start, .stop = crew_stop, .shutdown = crew_shutdown
};

static struct crew make_crew(void)
{
    return (
        struct crew){ .base = { &crew_ops }, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
}

static void workers_may_be_threads(void **state)
{
    struct crew crew = make_crew();
    struct muster_worker_spec spec = make_spec(alone(), CREW_MAX);
    struct muster_run_result *result;

    (void)state;
    spec.driver = &crew.base;
    crew.uses_store = true;
    result = run_well(spec);
    assert_succeeded(result, CREW_MAX);
    assert_true(value_is(result, 0, "thread 0"));
    assert_true(value_is(result, CREW_MAX - 1, "thread 3"));
    assert_int_equal(crew.starts, 1);
    assert_int_equal(crew.stops, 0);
    assert_int_equal(crew.shutdowns, 1);
    muster_run_result_free(result);
}

static void a_drivers_workers_are_stopped_and_restarted(void **state)
{
    struct crew crew = make_crew();
    struct muster_worker_spec spec = make_spec(alone(), 3);
    struct muster_run_result *result;

    (void)state;
    spec.driver = &crew.base;
    crew.fail_attempts = 2;
    crew.others_linger = true;
    result = run_well(spec);
    assert_succeeded(result, 3);
    assert_int_equal(crew.starts, 3);
    assert_int_equal(crew.stops, 2);
    assert_int_equal(crew.restart_stops, 2);
    assert_int_equal(crew.last_signal, SIGTERM);
    assert_true(crew.last_grace_ms > 0);
    assert_int_equal(crew.shutdowns, 1);
    assert_int_equal(crew.shutdown_signal, SIGTERM);
    muster_run_result_free(result);
}

static void a_drivers_workers_fail_with_their_own_words(void **state)
{
    struct crew crew = make_crew();
    struct muster_worker_spec spec = make_spec(alone(), 2);
    struct muster_run_result *result;
    const struct muster_failure *failure;

    (void)state;
    spec.driver = &crew.base;
    spec.max_restarts = 0;
    crew.fail_attempts = 1;
    crew.others_linger = crew.has_addresses = true;
    result = run_well(spec);
    assert_true(muster_run_result_is_failed(result));
    assert_int_equal(crew.stops, 1);
    assert_int_equal(crew.restart_stops, 0); /* no restart is left */
    failure = &result->failures[0];
    assert_string_equal(failure->id_text, "node9:8000");
    assert_non_null(strstr(result->reason, "(local rank 0, id node9:8000) failed: "));
    assert_int_equal(failure->global_rank, 0);
    assert_int_equal(failure->id, 7000000000);
    assert_int_equal(failure->exit_code, 5);
    assert_string_equal(failure->message, "thread 0 is tired");
    assert_int_equal(muster_run_result_failure(result, 1)->exit_code, -SIGTERM);
    assert_int_equal(muster_run_result_failure(result, 1)->id, 7000000001);
    muster_run_result_free(result);
}

/* "START node9:8000; FAILED node9:8000; ": what events say of workers. The sink is called from the agent's thread
 * alone. */
static void note_worker(void *ctx, const struct muster_event_record *record)
{
    char *noted = ctx;
    size_t len = strlen(noted);
    const char *state = strrchr(record->name, '.'), *id;

    if (record->source != MUSTER_EVENT_WORKER)
        return;
    assert_int_equal(record->pid, -1); /* a driver's has no process that we know of */
    id = strstr(record->json, "\"worker_id\": \"");
    assert_non_null(id);
    id += strlen("\"worker_id\": \"");
    (void)snprintf(noted + len, 512 - len, "%s %.*s; ", state + 1, (int)strcspn(id, "\""), id);
    assert_non_null(strstr(record->json, "\\\"worker_pid\\\": [null]"));
}

static void events_call_a_drivers_workers_as_it_does(void **state)
{
    struct crew crew = make_crew();
    struct muster_worker_spec spec = make_spec(alone(), 2);
    char noted[512] = "";

    (void)state;
    spec.driver = &crew.base;
    spec.max_restarts = 0;
    crew.fail_attempts = 1;
    crew.others_linger = crew.has_addresses = true;
    muster_events_set_sink(note_worker, noted);
    muster_run_result_free(run_well(spec));
    muster_events_set_sink(NULL, NULL);
    assert_string_equal(noted, "START node9:8000; START node9:8001; FAILED node9:8000; FAILED node9:8001; ");
}

static void a_driver_that_cannot_start_ends_the_run(void **state)
{
    struct crew crew = make_crew();
    struct muster_worker_spec spec = make_spec(alone(), 2);
    struct muster_run_result *result = NULL;
    struct muster_error error = { 0 };

    (void)state;
    spec.driver = &crew.base;
    crew.cannot_start = true;
    crew.ends_inside = true;
    assert_int_equal(run(spec, &result, &error), MUSTER_ELIMIT);
    assert_non_null(strstr(error.text, "worker driver 'crew'"));
    assert_non_null(strstr(error.text, "nobody wants to work"));
    assert_null(result);
    assert_int_equal(crew.stops, 0);
    assert_int_equal(crew.shutdowns, 1);
}

static void a_worker_may_end_inside_of_start(void **state)
{
    struct crew crew = make_crew();
    struct muster_worker_spec spec = make_spec(alone(), 2);
    struct muster_run_result *result;

    (void)state;
    spec.driver = &crew.base;
    crew.ends_inside = true;
    result = run_well(spec);
    assert_succeeded(result, 2);
    assert_true(value_is(result, 0, "early"));
    muster_run_result_free(result);
}

static void a_signal_stops_a_drivers_workers(void **state)
{
    struct crew crew = make_crew();
    struct muster_worker_spec spec = make_spec(alone(), 2);
    struct running running;
    struct muster_worker_group *group;
    struct muster_error error = { 0 };
    char text[MUSTER_WORKER_TEXT_MAX];

    (void)state;
    spec.driver = &crew.base;
    spec.shutdown_timeout_ms = 1234;
    spec.workers_identical = true;
    crew.all_linger = true;
    start_running(&running, spec);
    group = wait_for(running.agent, MUSTER_WORKER_HEALTHY, 1);
    assert_int_equal(group->workers[1].id, 7000000001);
    assert_string_equal(group->workers[1].id_text, "7000000001");
    assert_string_equal(muster_worker_text(&group->workers[1], text),
                        "local_rank=1,global_rank=1,role_rank=1,world_size=2,role_world_size=2");
    muster_worker_group_free(group);
    assert_int_equal(muster_agent_worker_ended(running.agent, 2, 0, 0, muster_str(""), &error), MUSTER_EINVAL);
    assert_int_equal(muster_agent_worker_ended(running.agent, 1, 2, 0, muster_str(""), &error), MUSTER_EINVAL);
    assert_int_equal(muster_agent_worker_ended(running.agent, 1, -1, 0, muster_str(""), &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "no such worker"));
    muster_agent_signal(running.agent, SIGINT);
    end_running(&running);
    assert_int_equal(running.rc, MUSTER_ESIGNAL);
    assert_int_equal(crew.stops, 1);
    assert_int_equal(crew.last_signal, SIGINT);
    assert_int_equal(crew.last_grace_ms, 1234);
    assert_int_equal(crew.restart_stops, 0);
    assert_int_equal(crew.shutdowns, 1);
    assert_int_equal(crew.shutdown_signal, SIGINT);
}

/* Who is stuck is stopped with the others, and all are started again while restarts are left. */
static void a_driver_says_that_a_worker_is_unhealthy(void **state)
{
    struct crew crew = make_crew();
    struct muster_worker_spec spec = make_spec(alone(), 2);
    struct muster_error error = { 0 };
    struct muster_worker_group *group;
    struct running running;

    (void)state;
    spec.driver = &crew.base;
    spec.max_restarts = 1;
    crew.all_linger = true;
    start_running(&running, spec);
    for (int64_t attempt = 1; attempt <= 2; attempt++) {
        group = wait_for(running.agent, MUSTER_WORKER_HEALTHY, attempt);
        muster_worker_group_free(group);
        assert_int_equal(muster_agent_worker_unhealthy(running.agent, attempt, 2, "x", &error), MUSTER_EINVAL);
        assert_non_null(strstr(error.text, "no such worker"));
        assert_int_equal(muster_agent_worker_unhealthy(running.agent, attempt, 1, "no step for 5 minutes", NULL), 0);
    }
    end_running(&running);
    assert_int_equal(running.rc, 0);
    assert_true(muster_run_result_is_failed(running.result));
    assert_int_equal(running.result->failures[0].local_rank, 1);
    assert_non_null(strstr(running.result->failures[0].message, "is unhealthy: no step for 5 minutes"));
    assert_int_equal(crew.starts, 2);
    assert_int_equal(crew.stops, 2);
    assert_int_equal(crew.restart_stops, 1);
    muster_run_result_free(running.result);
}

/* ---- Metrics ---- */

static void metrics_tell_how_a_run_ended(void **state)
{
    static const struct {
        const char *script;
        int64_t max_restarts;
        unsigned restarts;
        const char *decisions, *ends;
    } rows[] = {
        { "true", 0, 0, "0 healthy; 0 succeeded; ",
          "flakiness=0 run_total=1 run_success_with_retries=0 run_success_no_retries=1 run_failed_with_retries=0 "
          "run_failed_no_retries=0 " },
        { "true", 3, 0, "3 healthy; 3 succeeded; ",
          "flakiness=0 run_total=1 run_success_with_retries=0 run_success_no_retries=1 run_failed_with_retries=0 "
          "run_failed_no_retries=0 " },
        { "test $TORCHELASTIC_RESTART_COUNT = 1", 3, 1, "3 healthy; 3 failed; 2 healthy; 2 succeeded; ",
          "flakiness=25 run_total=1 run_success_with_retries=1 run_success_no_retries=0 run_failed_with_retries=0 "
          "run_failed_no_retries=0 " },
        { "false", 0, 0, "0 healthy; 0 failed; ",
          "flakiness=100 run_total=1 run_success_with_retries=0 run_success_no_retries=0 run_failed_with_retries=0 "
          "run_failed_no_retries=1 " },
        { "false", 3, 3, "3 healthy; 3 failed; 2 healthy; 2 failed; 1 healthy; 1 failed; 0 healthy; 0 failed; ",
          "flakiness=100 run_total=1 run_success_with_retries=0 run_success_no_retries=0 run_failed_with_retries=1 "
          "run_failed_no_retries=0 " },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct muster_worker_spec spec = make_command(alone(), 2, rows[i].script);
        struct metrics metrics = { .restarts = 0 };

        spec.max_restarts = rows[i].max_restarts;
        muster_metrics_set_sink(count_metric, &metrics);
        muster_run_result_free(run_well(spec));
        muster_metrics_set_sink(NULL, NULL);
        assert_string_equal(metrics.decisions, rows[i].decisions);
        assert_string_equal(metrics.ends, rows[i].ends);
        assert_int_equal(metrics.restarts, rows[i].restarts);
        assert_int_equal(metrics.runs, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spec_has_defaults),
        cmocka_unit_test(what_is_wrong_with_a_spec_is_said_by_field),
        cmocka_unit_test(a_shorter_spec_of_an_older_program_is_taken),
        cmocka_unit_test(entry_points_have_names),
        cmocka_unit_test(states_have_names_and_two_of_them_run),
        cmocka_unit_test(commands_run_and_know_who_they_are),
        cmocka_unit_test(a_failed_worker_is_a_result_and_its_siblings_are_stopped),
        cmocka_unit_test(failed_workers_are_restarted),
        cmocka_unit_test(restarts_come_to_an_end),
        cmocka_unit_test(a_command_that_cannot_be_started_is_an_error),
        cmocka_unit_test(a_rendezvous_that_does_not_exist_is_an_error),
        cmocka_unit_test(output_goes_to_files_and_error_files_are_read),
        cmocka_unit_test(the_last_words_of_a_worker_are_its_message),
        cmocka_unit_test(a_log_directory_that_cannot_be_made_is_an_error),
        cmocka_unit_test(functions_give_back_bytes_by_global_rank),
        cmocka_unit_test(values_may_be_large_binary_or_empty),
        cmocka_unit_test(functions_fail_with_a_message),
        cmocka_unit_test(a_function_that_gives_nothing_back_has_failed),
        cmocka_unit_test(an_agent_can_be_looked_at_at_any_time),
        cmocka_unit_test(a_worker_that_hangs_is_seen_and_has_failed_however_it_ends),
        cmocka_unit_test(a_signal_from_another_thread_ends_it),
        cmocka_unit_test(sigquit_after_another_signal_kills),
        cmocka_unit_test(a_signal_before_the_run_ends_it_at_once),
        cmocka_unit_test(listed_signals_are_handled_while_it_runs),
        cmocka_unit_test(an_agent_runs_once),
        cmocka_unit_test(what_is_not_ours_is_left_alone),
        cmocka_unit_test(with_a_guard_what_workers_leave_behind_ends),
        cmocka_unit_test(two_agents_of_a_guarded_process_know_their_own_workers),
        cmocka_unit_test(two_nodes_form_one_job),
        cmocka_unit_test(a_spec_may_say_where_workers_meet),
        cmocka_unit_test(a_master_port_that_is_taken_is_an_error_that_names_it),
        cmocka_unit_test(workers_of_a_static_rendezvous_meet_at_its_endpoint),
        cmocka_unit_test(workers_may_be_threads),
        cmocka_unit_test(a_drivers_workers_are_stopped_and_restarted),
        cmocka_unit_test(a_drivers_workers_fail_with_their_own_words),
        cmocka_unit_test(events_call_a_drivers_workers_as_it_does),
        cmocka_unit_test(a_driver_that_cannot_start_ends_the_run),
        cmocka_unit_test(a_worker_may_end_inside_of_start),
        cmocka_unit_test(a_signal_stops_a_drivers_workers),
        cmocka_unit_test(a_driver_says_that_a_worker_is_unhealthy),
        cmocka_unit_test(metrics_tell_how_a_run_ended),
    };

    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
