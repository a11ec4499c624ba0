/* Our etcd clients, driven line by line: tests/interop aims them at real servers.
 *
 *     interop_etcd 2|3 ENDPOINTS [ca=FILE] [cert=FILE] [key=FILE] [user=NAME] [password=TEXT] [seed=N]
 *
 * On stdin "ID WHAT NAME=VALUE ...", without blanks in values; on stdout "ID WHAT ...", a line for each thing that
 * happens. Ends with stdin, after closing everything in good order. */
#include "kv/etcd2_uv.h"
#include "kv/etcd3_uv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 1 << 16, WORDS_MAX = 32, THINGS_MAX = 256 };

struct thing { /* a call, a watch or a lease */
    char id[32];
    bool used;
    char *line; /* what the request points into */
    struct mu_etcd2_call call2;
    struct mu_etcd3_call call3;
    struct mu_etcd3_compare compare;
    struct mu_etcd3_op op, other;
    struct mu_etcd3_watch *watch3;
    struct mu_etcd3_lease *lease3;
};

static uv_loop_t loop;
static struct mu_http *etcd2;
static struct mu_etcd3 *etcd3;
static struct thing things[THINGS_MAX];
static char input[LINE_MAX_BYTES];
static size_t input_len;

/* ---- Words ---- */

struct words {
    char *items[WORDS_MAX];
    size_t count;
};

static struct words split(char *line)
{
    struct words words = { 0 };

    for (char *save, *word = strtok_r(line, " \n", &save); word != NULL; word = strtok_r(NULL, " \n", &save)) {
        assert(words.count < WORDS_MAX);
        words.items[words.count++] = word;
    }
    return words;
}

static const char *find(const struct words *words, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < words->count; i++) {
        if (strncmp(words->items[i], name, len) == 0 && words->items[i][len] == '=')
            return words->items[i] + len + 1;
    }
    return NULL;
}

static int64_t number(const struct words *words, const char *name, int64_t fallback)
{
    const char *text = find(words, name);

    return text == NULL ? fallback : strtoll(text, NULL, 0);
}

static struct mu_slice text(const struct words *words, const char *name)
{
    const char *found = find(words, name);

    return found == NULL ? mu_slice("", 0) : mu_slice_str(found);
}

static struct thing *thing_named(const char *id)
{
    for (size_t i = 0; i < THINGS_MAX; i++) {
        if (things[i].used && strcmp(things[i].id, id) == 0)
            return &things[i];
    }
    return NULL;
}

static struct thing *new_thing(const char *id, char *line)
{
    for (size_t i = 0; i < THINGS_MAX; i++) {
        if (things[i].used)
            continue;
        memset(&things[i], 0, sizeof things[i]);
        things[i].used = true;
        things[i].line = line;
        (void)snprintf(things[i].id, sizeof things[i].id, "%s", id);
        return &things[i];
    }
    abort();
}

static void drop(struct thing *thing)
{
    free(thing->line);
    thing->used = false;
}

/* ---- Version 2 ---- */

static void on_done2(struct mu_etcd2_call *call)
{
    struct thing *thing = call->ctx;

    printf("%s done rc=%s code=%d unsure=%d index=%" PRIu64, thing->id, muster_error_name(call->rc), call->answer.code,
           call->unsure, call->answer.index);
    for (size_t i = 0; i < call->answer.nodes_count; i++) {
        const struct mu_etcd2_node *node = &call->answer.nodes[i];

        printf(" %.*s%s=%.*s@%" PRIu64 "/%" PRId64, (int)node->key.len, node->key.data, node->dir ? "/" : "",
               (int)node->value.len, node->value.data, node->modified, node->ttl_s);
    }
    printf(" error=%s\n", call->error.text);
    mu_etcd2_answer_done(&call->answer);
    drop(thing);
}

static void call2(struct thing *thing, const struct words *words, enum mu_etcd2_kind kind)
{
    thing->call2 = (struct mu_etcd2_call){
        .request = { .kind = kind,
                     .key = text(words, "key"),
                     .recursive = number(words, "recursive", 0) != 0,
                     .sorted = number(words, "sorted", 0) != 0,
                     .quorum = number(words, "quorum", 0) != 0,
                     .dir = number(words, "dir", 0) != 0,
                     .refresh = number(words, "refresh", 0) != 0,
                     .has_value = find(words, "value") != NULL,
                     .value = text(words, "value"),
                     .ttl_s = number(words, "ttl", 0),
                     .prev_exist = (enum mu_etcd2_exists)number(words, "exist", 0),
                     .prev_index = (uint64_t)number(words, "prev_index", 0),
                     .has_prev_value = find(words, "prev_value") != NULL,
                     .prev_value = text(words, "prev_value"),
                     .wait_index = (uint64_t)number(words, "index", 0) },
        .timeout_ms = (uint64_t)number(words, "timeout", 10000),
        .done = on_done2,
        .ctx = thing,
    };
    mu_etcd2_call(etcd2, &thing->call2);
}

static void do2(struct thing *thing, const struct words *words, const char *what)
{
    if (strcmp(what, "get") == 0)
        call2(thing, words, MU_ETCD2_GET);
    else if (strcmp(what, "put") == 0)
        call2(thing, words, MU_ETCD2_PUT);
    else if (strcmp(what, "delete") == 0)
        call2(thing, words, MU_ETCD2_DELETE);
    else if (strcmp(what, "poll") == 0)
        call2(thing, words, MU_ETCD2_WATCH);
    else
        abort();
}

/* ---- Version 3 ---- */

static void on_done3(struct mu_etcd3_call *call)
{
    struct thing *thing = call->ctx;

    printf("%s done rc=%s code=%d unsure=%d revision=%" PRId64 " succeeded=%d lease=%" PRId64 " ttl=%" PRId64,
           thing->id, muster_error_name(call->rc), call->answer.code, call->unsure, call->answer.revision,
           call->answer.succeeded, call->answer.lease, call->answer.ttl_s);
    for (size_t i = 0; i < call->answer.results_count; i++) {
        const struct mu_etcd3_result *result = &call->answer.results[i];

        printf(" count=%" PRId64, result->count);
        for (size_t k = 0; k < result->kvs_count; k++)
            printf(" %.*s=%.*s@%" PRId64 "/%" PRId64, (int)result->kvs[k].key.len, result->kvs[k].key.data,
                   (int)result->kvs[k].value.len, result->kvs[k].value.data, result->kvs[k].mod, result->kvs[k].lease);
    }
    printf(" error=%s\n", call->error.text);
    mu_etcd3_answer_done(&call->answer);
    drop(thing);
}

static void call3(struct thing *thing, const struct words *words, enum mu_etcd3_kind kind)
{
    thing->call3.request.kind = kind;
    thing->call3.request.lease = number(words, "lease", 0);
    thing->call3.request.ttl_s = number(words, "ttl", 0);
    thing->call3.request.range = (struct mu_etcd3_op){ .key = text(words, "key"),
                                                       .prefix = number(words, "prefix", 0) != 0,
                                                       .revision = number(words, "revision", 0) };
    thing->call3.repeatable = number(words, "repeatable", 0) != 0;
    thing->call3.timeout_ms = (uint64_t)number(words, "timeout", 10000);
    thing->call3.attempt_ms = (uint64_t)number(words, "attempt", 0);
    thing->call3.done = on_done3;
    thing->call3.ctx = thing;
    mu_etcd3_call(etcd3, &thing->call3);
}

/* put key=K value=V [lease=N] [mod=N]: if its mod_revision is that; else what is there. size=N: that many bytes of
 * value. */
static void put3(struct thing *thing, const struct words *words)
{
    size_t size = (size_t)number(words, "size", 0);
    char *large = malloc(size + 1);

    assert(large != NULL);
    memset(large, 'x', size);
    thing->compare = (struct mu_etcd3_compare){ .target = MU_ETCD3_MOD,
                                                .key = text(words, "key"),
                                                .number = number(words, "mod", 0) };
    thing->op = (struct mu_etcd3_op){ .kind = MU_ETCD3_OP_PUT,
                                      .key = text(words, "key"),
                                      .value = size > 0 ? mu_slice(large, size) : text(words, "value"),
                                      .lease = number(words, "lease", 0) };
    thing->other = (struct mu_etcd3_op){ .kind = MU_ETCD3_OP_RANGE, .key = text(words, "key") };
    thing->call3.request.txn = (struct mu_etcd3_txn){ .compares = &thing->compare,
                                                      .compares_count = find(words, "mod") != NULL,
                                                      .success = &thing->op,
                                                      .success_count = 1,
                                                      .failure = &thing->other,
                                                      .failure_count = 1 };
    call3(thing, words, MU_ETCD3_TXN);
    free(large);
}

static void delete3(struct thing *thing, const struct words *words)
{
    thing->op = (struct mu_etcd3_op){ .kind = MU_ETCD3_OP_DELETE,
                                      .key = text(words, "key"),
                                      .prefix = number(words, "prefix", 0) != 0 };
    thing->call3.request.txn = (struct mu_etcd3_txn){ .success = &thing->op, .success_count = 1 };
    call3(thing, words, MU_ETCD3_TXN);
}

static void on_events3(struct mu_etcd3_watch *watch, const struct mu_etcd3_event *events, size_t count,
                       int64_t revision, void *ctx)
{
    (void)watch;
    (void)revision;
    for (size_t i = 0; i < count; i++)
        printf("%s event %s %.*s=%.*s@%" PRId64 "\n", ((struct thing *)ctx)->id,
               events[i].kind == MU_ETCD3_PUT ? "put" : "delete", (int)events[i].kv.key.len, events[i].kv.key.data,
               (int)events[i].kv.value.len, events[i].kv.value.data, events[i].kv.mod);
}

static void on_compacted3(struct mu_etcd3_watch *watch, int64_t compact_revision, void *ctx)
{
    (void)watch;
    printf("%s compacted %" PRId64 "\n", ((struct thing *)ctx)->id, compact_revision);
}

static void on_trouble3(struct mu_etcd3_watch *watch, const struct muster_error *error, void *ctx)
{
    (void)watch;
    printf("%s %s %s\n", ((struct thing *)ctx)->id, error == NULL ? "heard" : "trouble",
           error == NULL ? "" : error->text);
}

static void on_granted3(struct mu_etcd3_lease *lease, int64_t id, void *ctx)
{
    (void)lease;
    printf("%s granted %" PRId64 "\n", ((struct thing *)ctx)->id, id);
}

static void on_lost3(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    (void)lease;
    printf("%s lost %s\n", ((struct thing *)ctx)->id, error->text);
}

static void on_lease_trouble3(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    (void)lease;
    printf("%s %s %s\n", ((struct thing *)ctx)->id, error == NULL ? "well" : "trouble",
           error == NULL ? "" : error->text);
}

static void start3(struct thing *thing, const struct words *words, const char *what)
{
    static const struct mu_etcd3_watch_ops watch_ops = { on_events3, on_compacted3, on_trouble3 };
    static const struct mu_etcd3_lease_ops lease_ops = { on_granted3, on_lost3, on_lease_trouble3 };
    struct muster_error error;

    if (strcmp(what, "watch") == 0)
        assert(mu_etcd3_watch_start(etcd3, text(words, "key"), number(words, "prefix", 0) != 0,
                                    number(words, "revision", 0), &watch_ops, thing, &thing->watch3, &error) == 0);
    else if (strcmp(what, "lease") == 0)
        assert(mu_etcd3_lease_start(etcd3, number(words, "ttl", 5), (uint64_t)number(words, "timeout", 10000),
                                    &lease_ops, thing, &thing->lease3, &error) == 0);
    else
        abort();
}

static void do3(struct thing *thing, const struct words *words, const char *what)
{
    static const struct {
        const char *what;
        enum mu_etcd3_kind kind;
    } kinds[] = { { "get", MU_ETCD3_RANGE },
                  { "grant", MU_ETCD3_GRANT },
                  { "keep", MU_ETCD3_KEEP_ALIVE },
                  { "revoke", MU_ETCD3_REVOKE } };

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(what, kinds[i].what) == 0) {
            call3(thing, words, kinds[i].kind);
            return;
        }
    }
    if (strcmp(what, "put") == 0)
        put3(thing, words);
    else if (strcmp(what, "delete") == 0)
        delete3(thing, words);
    else
        start3(thing, words, what);
}

/* ---- Lines ---- */

static void on_lease_closed(void *ctx)
{
    struct thing *thing = ctx;

    printf("%s closed\n", thing->id);
    drop(thing);
}

static void close_thing(struct thing *thing, bool revoke)
{
    if (thing->lease3 != NULL) {
        mu_etcd3_lease_close(thing->lease3, revoke, 5000, on_lease_closed, thing);
        thing->lease3 = NULL;
        return;
    }
    if (thing->watch3 == NULL)
        return; /* a call, whose end is about to come */
    mu_etcd3_watch_close(thing->watch3);
    printf("%s closed\n", thing->id);
    drop(thing);
}

static void cancel(struct thing *thing)
{
    if (etcd2 != NULL)
        mu_etcd2_cancel(&thing->call2);
    else
        mu_etcd3_cancel(&thing->call3);
}

static void obey(char *line)
{
    char *own = strdup(line);
    struct words words = split(own);
    struct thing *thing;

    assert(words.count >= 2);
    thing = thing_named(words.items[0]);
    if (strcmp(words.items[1], "close") == 0) {
        close_thing(thing, number(&words, "revoke", 0) != 0);
    } else if (strcmp(words.items[1], "cancel") == 0) {
        cancel(thing);
    } else {
        thing = new_thing(words.items[0], own);
        if (etcd2 != NULL)
            do2(thing, &words, words.items[1]);
        else
            do3(thing, &words, words.items[1]);
        return;
    }
    free(own);
}

static void on_etcd_closed(void *ctx)
{
    (void)ctx;
    printf("- over\n");
}

static void on_stdin_closed(uv_handle_t *handle)
{
    (void)handle;
    for (size_t i = 0; i < THINGS_MAX; i++) {
        if (things[i].used)
            close_thing(&things[i], false);
    }
    if (etcd2 != NULL)
        mu_http_close(etcd2, on_etcd_closed, NULL);
    else
        mu_etcd3_close(etcd3, on_etcd_closed, NULL);
}

static void give_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)handle;
    (void)suggested;
    *buf = uv_buf_init(input + input_len, (unsigned)(sizeof input - 1 - input_len));
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buf)
{
    char *end;

    (void)buf;
    if (count < 0) {
        uv_close((uv_handle_t *)stream, on_stdin_closed);
        return;
    }
    input_len += (size_t)count;
    input[input_len] = '\0';
    while ((end = strchr(input, '\n')) != NULL) {
        *end = '\0';
        obey(input);
        input_len -= (size_t)(end + 1 - input);
        memmove(input, end + 1, input_len + 1);
    }
}

int main(int argc, char **argv)
{
    struct words words = { 0 };
    struct mu_etcd3_config config = { 0 };
    struct muster_error error;
    uv_pipe_t pipe;
    int rc;

    assert(argc >= 3 && argc < WORDS_MAX);
    for (int i = 3; i < argc; i++)
        words.items[words.count++] = argv[i];
    config.http.endpoints = argv[2];
    config.http.ca_file = find(&words, "ca");
    config.http.cert_file = find(&words, "cert");
    config.http.key_file = find(&words, "key");
    config.http.seed = (uint64_t)number(&words, "seed", getpid());
    config.http.first_is_first = true;
    config.user = find(&words, "user");
    config.password = find(&words, "password");
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    assert(uv_loop_init(&loop) == 0);
    if (strcmp(argv[1], "2") == 0)
        rc = mu_http_start(&loop, &config.http, &etcd2, &error);
    else
        rc = mu_etcd3_start(&loop, &config, &etcd3, &error);
    if (rc < 0) {
        printf("- failed %s\n", error.text);
        return 1;
    }
    assert(uv_pipe_init(&loop, &pipe, 0) == 0 && uv_pipe_open(&pipe, 0) == 0);
    assert(uv_read_start((uv_stream_t *)&pipe, give_room, on_read) == 0);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert(uv_loop_close(&loop) == 0);
    return 0;
}
