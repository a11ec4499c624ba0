/* One node of a rendezvous, through muster.h alone, driven by lines on standard input:
 *
 *     interop_rdzv BACKEND ENDPOINT RUN_ID MIN MAX LOCAL_ADDR OPTIONS
 *
 * An empty LOCAL_ADDR or OPTIONS is none. Once the handler is there, or failed to be, it says so in a line of JSON;
 * then each line "ID COMMAND" is carried out in turn and answered by a line of JSON with that id. Ends when its input
 * does; with `free` first it leaves the rendezvous, without it it just goes. */
#include <muster.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096 };

static struct muster_rdzv *rdzv;
static struct muster_store *round_store;
static int64_t last_round = -1;
static struct muster_error error;

/* ---- Telling ---- */

static void tell_text(const char *text)
{
    (void)putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < 0x20)
            printf("\\u%04x", *c);
        else
            (void)putchar(*c);
    }
    (void)putchar('"');
}

static void finish_line(void)
{
    printf("}\n");
    (void)fflush(stdout);
}

/* By the names that PyTorch's errors have, so that a test can ask both alike. */
static const char *error_name(int code)
{
    switch (code) {
    case MUSTER_ERDZV_CLOSED:
        return "RendezvousClosedError";
    case MUSTER_ERDZV_TIMEOUT:
        return "RendezvousTimeoutError";
    case MUSTER_ERDZV_CONNECTION:
        return "RendezvousConnectionError";
    case MUSTER_ERDZV_STATE:
        return "RendezvousStateError";
    case MUSTER_ERDZV_GRACEFUL_EXIT:
        return "RendezvousGracefulExitError";
    case MUSTER_EINVAL:
        return "ValueError";
    default:
        return "Error";
    }
}

static void tell_error(const char *id, int code)
{
    printf("{\"id\": %s, \"ok\": false, \"error\": \"%s\", \"code\": %d, \"text\": ", id, error_name(code), code);
    tell_text(error.text);
    finish_line();
}

/* ---- Commands ---- */

static void next(const char *id)
{
    struct muster_rdzv_info info = { 0 };
    int rc = muster_rdzv_next_rendezvous(rdzv, &info, &error);

    if (rc == 0 &&
        info.bootstrap.master_port == 0) /* a rank 0 of 1.13 publishes after this, in a step of its agent's */
        rc = muster_store_info_build(info.rank, info.store, NULL, 0, &info.bootstrap, &error);
    round_store = rc < 0 ? NULL : info.store;
    last_round = info.round;
    if (rc < 0) {
        tell_error(id, rc);
        return;
    }
    printf("{\"id\": %s, \"ok\": true, \"rank\": %" PRId64 ", \"world_size\": %" PRId64 ", \"round\": %" PRId64
           ", \"port\": %u, \"use_agent_store\": %s, \"addr\": ",
           id, info.rank, info.world_size, info.round, (unsigned)info.bootstrap.master_port,
           muster_rdzv_use_agent_store(rdzv) ? "true" : "false");
    tell_text(info.bootstrap.master_addr);
    finish_line();
}

static void tell_done(const char *id, int rc)
{
    if (rc < 0) {
        tell_error(id, rc);
        return;
    }
    printf("{\"id\": %s, \"ok\": true", id);
    finish_line();
}

static void tell_closed(const char *id, int rc, bool closed)
{
    if (rc < 0) {
        tell_error(id, rc);
        return;
    }
    printf("{\"id\": %s, \"ok\": true, \"closed\": %s", id, closed ? "true" : "false");
    finish_line();
}

static void waiting(const char *id)
{
    int64_t count = -1;
    int rc = muster_rdzv_num_nodes_waiting(rdzv, &count, &error);

    if (rc < 0) {
        tell_error(id, rc);
        return;
    }
    printf("{\"id\": %s, \"ok\": true, \"count\": %" PRId64, id, count);
    finish_line();
}

/* Of the round's store. */
static void get(const char *id, const char *key)
{
    struct muster_bytes bytes = { 0 };
    int rc = muster_store_get(round_store, muster_str(key), MUSTER_TIMEOUT_DEFAULT, &bytes, &error);

    if (rc < 0) {
        tell_error(id, rc);
        return;
    }
    printf("{\"id\": %s, \"ok\": true, \"value\": \"%.*s\"", id, (int)bytes.len, bytes.data);
    finish_line();
    muster_bytes_done(&bytes);
}

static void wait_for(const char *id, const char *first, const char *second)
{
    const struct muster_slice keys[] = { muster_str(first), muster_str(second) };

    tell_done(id, muster_store_wait(round_store, keys, 2, MUSTER_TIMEOUT_DEFAULT, &error));
}

static void check(const char *id, const char *first, const char *second)
{
    const struct muster_slice keys[] = { muster_str(first), muster_str(second) };
    bool found = false;
    int rc = muster_store_check(round_store, keys, 2, MUSTER_TIMEOUT_DEFAULT, &found, &error);

    if (rc < 0) {
        tell_error(id, rc);
        return;
    }
    printf("{\"id\": %s, \"ok\": true, \"found\": %s", id, found ? "true" : "false");
    finish_line();
}

static void add(const char *id, const char *key, const char *value)
{
    int64_t sum = 0;
    int rc =
        muster_store_add(round_store, muster_str(key), strtoll(value, NULL, 10), MUSTER_TIMEOUT_DEFAULT, &sum, &error);

    if (rc < 0) {
        tell_error(id, rc);
        return;
    }
    printf("{\"id\": %s, \"ok\": true, \"count\": %" PRId64, id, sum);
    finish_line();
}

static void load_extra(const char *id, const char *key, const char *milliseconds)
{
    struct muster_bytes bytes;
    int rc = muster_rdzv_etcd_load_extra_data(rdzv, last_round, key, strtoll(milliseconds, NULL, 10), &bytes, &error);

    if (rc < 0) {
        tell_error(id, rc);
        return;
    }
    printf("{\"id\": %s, \"ok\": true, \"value\": ", id);
    tell_text(bytes.data);
    finish_line();
    muster_bytes_done(&bytes);
}

/* An agent with this handler as an object in its spec, until it has ended. Workers are `sh SCRIPT`. */
static void run_agent(const char *id, const char *script, const char *max_restarts)
{
    const char *const argv[] = { "sh", script, NULL };
    struct muster_run_result *result = NULL;
    struct muster_worker_group *group = NULL;
    struct muster_agent *agent = NULL;
    struct muster_worker_spec spec;
    int rc;

    muster_worker_spec_init(&spec);
    spec.local_world_size = 1;
    spec.max_restarts = strtoll(max_restarts, NULL, 10);
    spec.rdzv_handler = rdzv;
    spec.argv = argv;
    rc = muster_agent_new(&spec, &agent, &error);
    if (rc == 0)
        rc = muster_agent_run(agent, &result, &error);
    if (rc == 0)
        rc = muster_agent_snapshot(agent, &group, &error);
    if (rc < 0) {
        tell_error(id, rc);
    } else {
        printf("{\"id\": %s, \"ok\": true, \"state\": \"%s\", \"restarts\": %" PRId64 ", \"attempts\": %" PRId64
               ", \"world_size\": %" PRId64,
               id, muster_worker_state_name(result->state), group->restart_count, group->attempt,
               group->group_world_size);
        finish_line();
    }
    muster_worker_group_free(group);
    muster_run_result_free(result);
    muster_agent_free(agent);
}

static void carry_out(const char *id, const char *command, const char *key, const char *value)
{
    bool closed = false;
    int rc;

    error = (struct muster_error){ 0 };
    if (strcmp(command, "free") == 0) {
        muster_rdzv_free(rdzv);
        rdzv = NULL;
        tell_done(id, 0);
    } else if (rdzv == NULL) {
        (void)snprintf(error.text, sizeof error.text, "there is no handler any more");
        tell_error(id, MUSTER_EINVAL);
    } else if (strcmp(command, "next") == 0) {
        next(id);
    } else if (strcmp(command, "is_closed") == 0) {
        rc = muster_rdzv_is_closed(rdzv, &closed, &error);
        tell_closed(id, rc, closed);
    } else if (strcmp(command, "set_closed") == 0) {
        tell_done(id, muster_rdzv_set_closed(rdzv, &error));
    } else if (strcmp(command, "waiting") == 0) {
        waiting(id);
    } else if (strcmp(command, "shutdown") == 0) {
        rc = muster_rdzv_shutdown(rdzv, &closed, &error);
        tell_closed(id, rc, closed);
    } else if (strcmp(command, "set") == 0) {
        tell_done(id,
                  muster_store_set(round_store, muster_str(key), muster_str(value), MUSTER_TIMEOUT_DEFAULT, &error));
    } else if (strcmp(command, "get") == 0) {
        get(id, key);
    } else if (strcmp(command, "wait") == 0) {
        wait_for(id, key, value);
    } else if (strcmp(command, "check") == 0) {
        check(id, key, value);
    } else if (strcmp(command, "add") == 0) {
        add(id, key, value);
    } else if (strcmp(command, "store_extra") == 0) {
        tell_done(id, muster_rdzv_etcd_store_extra_data(rdzv, last_round, key, value, MUSTER_TIMEOUT_DEFAULT, &error));
    } else if (strcmp(command, "load_extra") == 0) {
        load_extra(id, key, value);
    } else if (strcmp(command, "run") == 0) {
        run_agent(id, key, value);
    } else {
        (void)snprintf(error.text, sizeof error.text, "unknown command");
        tell_error(id, MUSTER_EINVAL);
    }
}

/* ---- The handler ---- */

static int create(char **argv)
{
    struct muster_rdzv_params *params = NULL;
    const char *local_addr = argv[6][0] != '\0' ? argv[6] : NULL;
    int rc = muster_rdzv_params_new(argv[1], argv[2], argv[3], strtoll(argv[4], NULL, 10), strtoll(argv[5], NULL, 10),
                                    local_addr, &params, &error);

    if (rc == 0 && argv[7][0] != '\0')
        rc = muster_rdzv_params_set_options(params, argv[7], &error);
    if (rc == 0)
        rc = muster_rdzv_registry_create(muster_rdzv_registry_default(), params, &rdzv, &error);
    muster_rdzv_params_free(params);
    return rc;
}

int main(int argc, char **argv)
{
    static char line[LINE_MAX_BYTES];
    int rc;

    if (argc != 8) {
        (void)fprintf(stderr, "usage: interop_rdzv BACKEND ENDPOINT RUN_ID MIN MAX LOCAL_ADDR OPTIONS\n");
        return 2;
    }
    rc = create(argv);
    if (rc < 0) {
        tell_error("0", rc);
        return 1;
    }
    printf("{\"id\": 0, \"ok\": true, \"pid\": %ld", (long)getpid());
    finish_line();
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *rest = NULL;
        const char *id = strtok_r(line, " \n", &rest);
        const char *command = strtok_r(NULL, " \n", &rest);
        const char *key = strtok_r(NULL, " \n", &rest);
        const char *value = strtok_r(NULL, " \n", &rest);

        if (id != NULL && command != NULL)
            carry_out(id, command, key != NULL ? key : "", value != NULL ? value : "");
    }
    return 0;
}
