/* Shared objects as back ends: which are loaded, what each refusal says, and how one that is loaded runs on a loop. The
 * objects are made of tests/plugins/; each test copies those it needs into a directory of its own. */
#include "base/log.h"
#include "failmalloc.h"
#include "handler/plugin.h"
#include "pure.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

enum { HANG_MS = 20000, EVENTS_MAX = 16, PATH_BYTES = 600 };

struct scene {
    struct muster_rdzv_registry *registry;
    char directory[64];
    uv_loop_t loop;
    uv_timer_t alarm; /* ends a test that hangs */
    struct muster_handler *handler;
    bool inside; /* of a call from outside */
    bool free_when_told;
    unsigned freed;
    struct muster_rdzv_event events[EVENTS_MAX]; /* what they point to is not kept */
    struct muster_rdzv_info info;
    struct muster_error error;
    unsigned count;
};

static char last_warning[1024];

static void keep_warning(void *ctx, enum muster_log_level level, const char *line)
{
    (void)ctx;
    if (level >= MUSTER_LOG_WARNING)
        (void)snprintf(last_warning, sizeof last_warning, "%s", line);
}

static void on_alarm(uv_timer_t *timer)
{
    (void)timer;
    fail_msg("the test hangs");
}

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    assert_int_equal(muster_rdzv_registry_new(&s->registry, NULL), 0);
    (void)snprintf(s->directory, sizeof s->directory, "/tmp/muster-plugins-XXXXXX");
    assert_non_null(mkdtemp(s->directory));
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(uv_timer_init(&s->loop, &s->alarm), 0);
    assert_int_equal(uv_timer_start(&s->alarm, on_alarm, HANG_MS, 0), 0);
    uv_unref((uv_handle_t *)&s->alarm);
    last_warning[0] = '\0';
    muster_log_set_sink(keep_warning, NULL);
    *state = s;
    return 0;
}

static int drop(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    struct scene *s = *state;

    muster_log_set_sink(NULL, NULL);
    uv_close((uv_handle_t *)&s->alarm, NULL);
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s->loop), 0); /* nothing of a back end is left on it */
    muster_rdzv_registry_free(s->registry);
    assert_int_equal(nftw(s->directory, drop, 8, FTW_DEPTH | FTW_PHYS), 0);
    free(s);
    return 0;
}

/* ---- Files ---- */

static void path_in(const struct scene *s, const char *name, char path[static PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s/%s", s->directory, name);
}

/* Makes `to` of the object that tests/plugins/ has under the name `object`. */
static void put(const struct scene *s, const char *object, const char *to)
{
    char from[PATH_BYTES], path[PATH_BYTES], block[65536];
    ssize_t n;
    int in, out;

    (void)snprintf(from, sizeof from, "%s/plugin_%s.so", PLUGINS, object);
    path_in(s, to, path);
    in = open(from, O_RDONLY | O_CLOEXEC);
    out = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    if (in < 0 || out < 0)
        fail_msg("copy %s to %s", from, path);
    while ((n = read(in, block, sizeof block)) > 0)
        assert_int_equal(write(out, block, (size_t)n), n);
    assert_int_equal(fchmod(out, 0755), 0);
    assert_int_equal(close(in) + close(out), 0);
}

static void put_text(const struct scene *s, const char *to, const char *text)
{
    char path[PATH_BYTES];
    FILE *file;

    path_in(s, to, path);
    file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fchmod(fileno(file), 0644), 0);
    assert_int_equal(fclose(file), 0);
}

static void does_not_load(struct scene *s, const char *file, const char *reason)
{
    struct muster_error error = { 0 };

    assert_int_equal(muster_rdzv_registry_load(s->registry, s->directory, &error), MUSTER_EINVAL);
    if (strstr(error.text, file) == NULL || strstr(error.text, reason) == NULL)
        fail_msg("refused with: %s", error.text);
}

/* ---- Loading ---- */

static void what_does_not_end_in_so_is_left_alone(void **state)
{
    struct scene *s = *state;

    put_text(s, "README", "nothing");
    put_text(s, "x.so.1", "nothing");
    put_text(s, ".hidden.so", "nothing");
    assert_int_equal(muster_rdzv_registry_load(s->registry, s->directory, NULL), 0);
}

static void a_directory_that_is_not_there_is_an_error_naming_it(void **state)
{
    struct scene *s = *state;
    struct muster_error error = { 0 };

    assert_int_equal(muster_rdzv_registry_load(s->registry, "/nonexistent/backends", &error), MUSTER_ESYSTEM);
    assert_non_null(strstr(error.text, "'/nonexistent/backends'"));
    assert_non_null(strstr(error.text, "No such file"));
}

static void a_file_is_no_directory(void **state)
{
    struct scene *s = *state;
    struct muster_error error = { 0 };
    char path[PATH_BYTES];

    put_text(s, "file", "");
    path_in(s, "file", path);
    assert_int_equal(muster_rdzv_registry_load(s->registry, path, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "not a directory"));
}

static void a_directory_that_others_may_write_is_refused(void **state)
{
    static const mode_t modes[] = { 0770, 0777, 0702, 01777 };
    struct scene *s = *state;

    put(s, "one", "solo.so");
    for (size_t i = 0; i < COUNT(modes); i++) {
        assert_int_equal(chmod(s->directory, modes[i]), 0);
        does_not_load(s, s->directory, "chmod go-w");
    }
    assert_int_equal(chmod(s->directory, 0755), 0);
    assert_int_equal(muster_rdzv_registry_load(s->registry, s->directory, NULL), 0);
}

static void a_file_that_others_may_write_is_refused(void **state)
{
    static const mode_t modes[] = { 0664, 0775, 0777, 0602 };
    struct scene *s = *state;
    char path[PATH_BYTES];

    put(s, "solo", "solo.so");
    path_in(s, "solo.so", path);
    for (size_t i = 0; i < COUNT(modes); i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        does_not_load(s, "/solo.so", "chmod go-w");
    }
}

static void what_belongs_to_somebody_else_is_refused(void **state)
{
    struct scene *s = *state;
    char path[PATH_BYTES];

    if (geteuid() != 0)
        skip(); /* only root can give a file away */
    put(s, "solo", "solo.so");
    path_in(s, "solo.so", path);
    assert_int_equal(chown(path, 12345, 0), 0);
    does_not_load(s, "/solo.so", "belongs to user 12345; expected root");
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chown(s->directory, 12345, 0), 0);
    does_not_load(s, s->directory, "belongs to user 12345");
}

static void a_link_is_judged_by_what_it_leads_to(void **state)
{
    struct scene *s = *state;
    char path[PATH_BYTES], aside[PATH_BYTES];

    path_in(s, "aside", aside);
    assert_int_equal(mkdir(aside, 0777), 0);
    assert_int_equal(chmod(aside, 0777), 0);
    put(s, "two", "aside/object");
    path_in(s, "solo.so", path);
    assert_int_equal(symlink("aside/object", path), 0);
    does_not_load(s, "/solo.so", "chmod go-w"); /* whoever writes there could swap it */
    assert_int_equal(chmod(aside, 0755), 0);
    assert_int_equal(muster_rdzv_registry_load(s->registry, s->directory, NULL), 0);
    path_in(s, "aside/object", aside);
    assert_int_equal(chmod(aside, 0777), 0);
    does_not_load(s, "/solo.so", "chmod go-w");
}

static void a_link_that_leads_nowhere_is_named(void **state)
{
    struct scene *s = *state;
    struct muster_error error = { 0 };
    char path[PATH_BYTES];

    path_in(s, "gone.so", path);
    assert_int_equal(symlink("nowhere", path), 0);
    assert_int_equal(muster_rdzv_registry_load(s->registry, s->directory, &error), MUSTER_ESYSTEM);
    assert_non_null(strstr(error.text, "/gone.so'"));
}

static void what_is_no_regular_file_is_refused(void **state)
{
    struct scene *s = *state;
    char path[PATH_BYTES];

    path_in(s, "fifo.so", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    does_not_load(s, "/fifo.so", "not a regular file");
}

static void what_is_no_object_is_refused_with_the_loaders_reason(void **state)
{
    struct scene *s = *state;

    put_text(s, "text.so",
             "this is not an object of any kind, and long enough to be looked at as one, but still is none");
    does_not_load(s, "/text.so", "does not load: ");
    does_not_load(s, "/text.so", "ELF");
}

static void bad_objects_are_refused_with_what_was_expected(void **state)
{
    static const struct {
        const char *object, *reason;
    } rows[] = {
        { "no_symbol", "muster_backend_1" },
        { "wrong_abi", "its abi is 2; expected 1" },
        { "too_small", "its size is 12 bytes; expected at least 24" },
        { "no_name", "it has no name" },
        { "no_create", "it has no create function" },
    };
    struct scene *s = *state;
    char name[64], path[PATH_BYTES];

    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)snprintf(name, sizeof name, "%s.so", rows[i].object);
        put(s, rows[i].object, name);
        does_not_load(s, name, rows[i].reason);
        path_in(s, name, path);
        assert_int_equal(unlink(path), 0);
    }
}

static void a_name_that_is_taken_is_refused_naming_both(void **state)
{
    struct scene *s = *state;
    struct muster_error error = { 0 };

    put(s, "taken_name", "x.so");
    assert_int_equal(muster_rdzv_registry_load(muster_rdzv_registry_default(), s->directory, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "/x.so"));
    assert_non_null(strstr(error.text, "'static'"));
    assert_non_null(strstr(error.text, "the one of this library"));
}

static void loading_a_directory_again_changes_nothing(void **state)
{
    struct scene *s = *state;
    struct muster_rdzv_registry *other = NULL;

    put(s, "three", "a.so");
    assert_int_equal(muster_rdzv_registry_load(s->registry, s->directory, NULL), 0);
    assert_int_equal(muster_rdzv_registry_load(s->registry, s->directory, NULL), 0);
    assert_int_equal(muster_rdzv_registry_new(&other, NULL), 0);
    assert_int_equal(muster_rdzv_registry_load(other, s->directory, NULL), 0);
    muster_rdzv_registry_free(other);
}

static void two_objects_of_one_name_are_refused_naming_both(void **state)
{
    struct scene *s = *state;

    put(s, "four", "a.so");
    put(s, "four", "b.so");
    does_not_load(s, "/b.so", "/a.so'");
}

static void objects_are_loaded_in_the_order_of_their_names(void **state)
{
    struct scene *s = *state;

    put_text(s, "b.so", "no object");
    put_text(s, "a.so", "no object");
    put_text(s, "B.so", "no object");
    does_not_load(s, "/B.so", "does not load");
}

static void too_many_objects_are_refused(void **state)
{
    struct scene *s = *state;
    struct muster_error error = { 0 };
    char name[16];

    for (int i = 0; i < 257; i++) {
        (void)snprintf(name, sizeof name, "%d.so", i);
        put_text(s, name, "");
    }
    assert_int_equal(muster_rdzv_registry_load(s->registry, s->directory, &error), MUSTER_ELIMIT);
    assert_non_null(strstr(error.text, "257"));
}

/* ---- Running ---- */

static void free_handler(struct scene *s);

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct scene *s = ctx;

    assert_false(s->inside);
    assert_int_equal(s->freed, 0);
    assert_int_equal(event->size, sizeof *event);
    assert_true(s->count < EVENTS_MAX);
    s->events[s->count++] = *event;
    if (event->info != NULL)
        s->info = *event->info;
    if (event->error != NULL)
        s->error = *event->error;
    if (s->free_when_told)
        free_handler(s);
    else
        uv_stop(&s->loop);
}

static void on_freed(void *ctx)
{
    struct scene *s = ctx;

    assert_false(s->inside);
    s->freed++;
}

static void free_handler(struct scene *s)
{
    struct muster_handler *handler = s->handler;

    s->handler = NULL;
    s->inside = true;
    handler->ops->free(handler, on_freed, s);
    s->inside = false;
}

static void ask(struct scene *s, void (*what)(struct muster_handler *handler))
{
    s->inside = true;
    what(s->handler);
    s->inside = false;
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
}

static int start_in(struct scene *s, struct muster_rdzv_registry *registry, const char *backend, const char *options,
                    struct muster_error *reterr)
{
    struct muster_rdzv_params *params = NULL;
    int rc;

    assert_int_equal(muster_rdzv_params_new(backend, "", "job", 1, 2, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    s->inside = true;
    rc = mu_handler_start_by_name(registry, &s->loop, params, &MU_DRIVING_DEFAULT, on_event, s, &s->handler, reterr);
    s->inside = false;
    muster_rdzv_params_free(params);
    return rc;
}

/* The objects that run are loaded once for all tests: their names are the process's. */
static struct muster_rdzv_registry *shared_registry;
static struct scene *shared_scene;

static int load_shared(void **state)
{
    static const char *const objects[] = { "solo", "fails", "gives_nothing", "returns_nonsense", "says_nothing" };
    void *scene = NULL;

    (void)state;
    assert_int_equal(setup(&scene), 0);
    shared_scene = scene;
    for (size_t i = 0; i < COUNT(objects); i++) {
        char name[64];

        (void)snprintf(name, sizeof name, "%s.so", objects[i]);
        put(shared_scene, objects[i], name);
    }
    assert_int_equal(muster_rdzv_registry_load(shared_scene->registry, shared_scene->directory, NULL), 0);
    shared_registry = shared_scene->registry;
    return 0;
}

static int unload_shared(void **state)
{
    void *scene = shared_scene;

    (void)state;
    return teardown(&scene);
}

static void start(struct scene *s, const char *options)
{
    struct muster_error error = { 0 };

    if (start_in(s, shared_registry, "solo", options, &error) < 0)
        fail_msg("%s", error.text);
    assert_string_equal(s->handler->ops->name, "solo");
    assert_int_equal(s->count, 0);
}

static void end(struct scene *s)
{
    free_handler(s);
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(s->freed, 1);
}

static void a_loaded_back_end_joins_looks_leaves_and_closes(void **state)
{
    struct scene *s = *state;

    start(s, "");
    assert_true(s->handler->ops->use_agent_store(s->handler));
    ask(s, s->handler->ops->join);
    assert_int_equal(s->events[0].type, MUSTER_RDZV_JOINED);
    assert_int_equal(s->events[0].round, 0);
    assert_int_equal(s->info.rank, 0);
    assert_int_equal(s->info.world_size, 1);
    ask(s, s->handler->ops->look);
    assert_int_equal(s->events[1].type, MUSTER_RDZV_LOOKED);
    assert_false(s->events[1].closed);
    ask(s, s->handler->ops->leave);
    assert_int_equal(s->events[2].type, MUSTER_RDZV_LEFT);
    ask(s, s->handler->ops->close);
    assert_int_equal(s->events[3].type, MUSTER_RDZV_CLOSED);
    ask(s, s->handler->ops->join);
    assert_int_equal(s->events[4].type, MUSTER_RDZV_FAILED);
    assert_int_equal(s->events[4].request, MUSTER_RDZV_REQUEST_JOIN); /* which it did not say */
    assert_int_equal(s->error.code, MUSTER_ERDZV_CLOSED);
    end(s);
    assert_int_equal(s->count, 5);
    assert_string_equal(last_warning, "");
}

static void its_timers_take_the_time_they_were_given(void **state)
{
    struct scene *s = *state;
    uint64_t before = uv_hrtime();

    start(s, "delay_ms=30");
    ask(s, s->handler->ops->join);
    assert_int_equal(s->count, 1);
    assert_true(uv_hrtime() - before >= 29000000); /* the loop's clock counts whole milliseconds */
    end(s);
}

static void nothing_is_told_after_it_is_freed(void **state)
{
    struct scene *s = *state;

    start(s, "");
    s->inside = true;
    s->handler->ops->join(s->handler);
    s->inside = false;
    end(s);
    assert_int_equal(s->count, 0);
    assert_string_equal(last_warning, "");
}

static void it_may_be_freed_by_who_is_told(void **state)
{
    struct scene *s = *state;

    start(s, "");
    s->free_when_told = true;
    ask(s, s->handler->ops->leave);
    assert_int_equal(s->count, 1);
    assert_int_equal(s->freed, 1);
}

static void what_it_forgets_is_closed_with_a_warning(void **state)
{
    struct scene *s = *state;

    start(s, "misbehave=forget");
    end(s);
    assert_non_null(strstr(last_warning, "'solo' did not give back 1"));
}

static void telling_inside_of_a_call_becomes_a_failure_later(void **state)
{
    struct scene *s = *state;

    start(s, "misbehave=tell in calls");
    ask(s, s->handler->ops->join);
    assert_int_equal(s->events[0].type, MUSTER_RDZV_FAILED);
    assert_int_equal(s->events[0].request, MUSTER_RDZV_REQUEST_JOIN);
    assert_int_equal(s->error.code, MUSTER_EINTERNAL);
    assert_non_null(strstr(s->error.text, "'joined' inside of a call"));
    ask(s, s->handler->ops->look);
    assert_int_equal(s->events[1].type, MUSTER_RDZV_LOOKED);
    s->inside = true;
    s->handler->ops->join(s->handler);
    s->inside = false;
    end(s); /* before that could be told */
    assert_int_equal(s->count, 2);
}

static void each_call_that_told_something_is_answered(void **state)
{
    struct scene *s = *state;

    start(s, "misbehave=tell in calls");
    s->inside = true;
    s->handler->ops->join(s->handler);
    s->inside = false;
    ask(s, s->handler->ops->look);
    (void)uv_run(&s->loop, UV_RUN_DEFAULT); /* each event stops it */
    assert_int_equal(s->count, 2);
    assert_int_equal(s->events[0].type, MUSTER_RDZV_FAILED);
    assert_int_equal(s->events[0].request, MUSTER_RDZV_REQUEST_JOIN);
    assert_int_equal(s->events[1].type, MUSTER_RDZV_LOOKED);
    end(s);
    assert_int_equal(s->count, 2);
}

static void does_not_start(struct scene *s, const char *backend, const char *options, int rc, const char *reason)
{
    struct muster_error error = { 0 };

    assert_int_equal(start_in(s, shared_registry, backend, options, &error), rc);
    assert_null(s->handler);
    if (strstr(error.text, reason) == NULL || strstr(error.text, backend) == NULL || strstr(error.text, ".so'") == NULL)
        fail_msg("refused with: %s", error.text);
}

static void a_back_end_that_fails_says_why_and_leaves_nothing(void **state)
{
    struct scene *s = *state;

    does_not_start(s, "fails", "", MUSTER_ERDZV_CONNECTION, "the moon does not answer");
    assert_non_null(strstr(last_warning, "'fails' did not give back 1"));
}

static void a_back_end_that_fails_in_silence_is_given_words(void **state)
{
    does_not_start(*state, "says_nothing", "", MUSTER_ECONNECT, muster_error_text(MUSTER_ECONNECT));
}

static void a_back_end_that_gives_no_handler_is_an_error(void **state)
{
    does_not_start(*state, "gives_nothing", "", MUSTER_EINTERNAL, "it gave no handler");
}

static void a_back_end_that_returns_nonsense_is_an_error(void **state)
{
    does_not_start(*state, "returns_nonsense", "", MUSTER_EINTERNAL, "returned 17");
}

static void a_handler_with_another_name_is_refused_naming_both(void **state)
{
    does_not_start(*state, "solo", "misbehave=other name", MUSTER_EINVAL,
                   "'duo' is not the back end asked for, 'solo'");
}

static void a_handler_that_lacks_a_call_is_refused(void **state)
{
    does_not_start(*state, "solo", "misbehave=lack join", MUSTER_EINTERNAL, "lacks one of join");
}

static void a_back_end_that_tells_while_it_is_created_is_refused(void **state)
{
    does_not_start(*state, "solo", "misbehave=tell in create", MUSTER_EINTERNAL, "told 'closed' before");
}

static void a_back_end_sees_its_parameters(void **state)
{
    does_not_start(*state, "solo", "delay_ms=soon", MUSTER_EINVAL, "delay_ms");
}

static void a_registry_knows_only_what_was_loaded_into_it(void **state)
{
    struct scene *s = *state;
    struct muster_error error = { 0 };

    assert_int_equal(start_in(s, s->registry, "solo", "", &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "not registered"));
}

static void without_memory_it_is_refused_and_nothing_leaks(void **state)
{
    struct scene *s = *state;

    FOR_EACH_FAILURE (n) {
        struct muster_rdzv_params *params = NULL;
        struct muster_handler *handler = NULL;
        int rc = muster_rdzv_params_new("solo", "", "job", 1, 2, NULL, &params, NULL);

        if (rc == 0)
            rc = mu_handler_start_by_name(shared_registry, &s->loop, params, &MU_DRIVING_DEFAULT, on_event, s, &handler,
                                          NULL);
        assert_int_equal(rc, fail_alloc_hit() && handler == NULL ? MUSTER_ENOMEM : 0);
        muster_rdzv_params_free(params);
        if (handler != NULL)
            handler->ops->free(handler, on_freed, s);
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    }
}

/* ---- The services, asked for directly ---- */

struct helper {
    const struct muster_host *host;
    void *watch;
    unsigned calls, events;
};

static void on_ready(void *arg, unsigned events)
{
    struct helper *helper = arg;

    helper->calls++;
    helper->events = events;
    helper->host->fd_unwatch(helper->host->ctx, helper->watch);
}

/* What the back end that was started last was given; it tells. */
static const struct muster_host *host_given(void)
{
    const struct muster_host *const *given;
    char path[PATH_BYTES];
    void *object;

    path_in(shared_scene, "solo.so", path);
    object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(object);
    given = dlsym(object, "solo_host");
    assert_non_null(given);
    assert_int_equal(dlclose(object), 0);
    return *given;
}

static void a_descriptor_that_cannot_be_waited_for_is_refused(void **state)
{
    struct scene *s = *state;
    const struct muster_host *host;
    struct helper helper = { 0 };
    int fds[2], file = open("/dev/null", O_RDONLY | O_CLOEXEC);

    start(s, "");
    host = host_given();
    helper.host = host;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_null(host->fd_watch(host->ctx, -1, MUSTER_FD_READABLE, on_ready, &helper));
    assert_null(host->fd_watch(host->ctx, fds[0], 0, on_ready, &helper));
    assert_null(host->fd_watch(host->ctx, file, MUSTER_FD_READABLE, on_ready, &helper));
    helper.watch = host->fd_watch(host->ctx, fds[1], MUSTER_FD_WRITABLE, on_ready, &helper);
    assert_non_null(helper.watch);
    assert_null(host->fd_watch(host->ctx, fds[1], MUSTER_FD_WRITABLE, on_ready, &helper));
    while (helper.calls == 0)
        (void)uv_run(&s->loop, UV_RUN_ONCE);
    assert_int_equal(helper.events, MUSTER_FD_WRITABLE);
    end(s);
    assert_int_equal(close(fds[0]) + close(fds[1]) + close(file), 0);
    assert_string_equal(last_warning, "");
}

static void count_call(void *arg)
{
    ((struct helper *)arg)->calls++;
}

static void timers_are_bounded_and_fire_once(void **state)
{
    struct scene *s = *state;
    static void *timers[4096];
    const struct muster_host *host;
    struct helper helper = { 0 };
    unsigned count = 0;

    start(s, "");
    host = host_given();
    assert_true(host->now_ms(host->ctx) > 0);
    while (count < COUNT(timers) && (timers[count] = host->timer_start(host->ctx, -5, count_call, &helper)) != NULL)
        count++;
    assert_int_equal(count, 4095); /* one service is the back end's own watch */
    (void)uv_run(&s->loop, UV_RUN_NOWAIT);
    assert_int_equal(helper.calls, count);
    (void)uv_run(&s->loop, UV_RUN_NOWAIT);
    assert_int_equal(helper.calls, count);
    for (unsigned i = 0; i < count; i++)
        host->timer_stop(host->ctx, timers[i]);
    host->timer_stop(host->ctx, NULL);
    host->fd_unwatch(host->ctx, NULL);
    end(s);
    assert_string_equal(last_warning, "");
}

static void errors_of_a_back_end_are_never_success(void **state)
{
    struct scene *s = *state;
    const struct muster_host *host;
    struct muster_error error;

    start(s, "");
    host = host_given();
    assert_int_equal((host->fail)(host->ctx, &error, 0, "odd 100%"), MUSTER_EINTERNAL);
    assert_string_equal(error.text, "odd 100%");
    host->log(host->ctx, MUSTER_LOG_WARNING, "say %s");
    assert_string_equal(last_warning, "rendezvous back end 'solo': say %s");
    end(s);
}

/* ---- As a blocking handler ---- */

static void a_loaded_back_end_is_a_blocking_handler_too(void **state)
{
    struct muster_rdzv_params *params = NULL;
    struct muster_rdzv *rdzv = NULL;
    struct muster_rdzv_info info;
    struct muster_error error = { 0 };
    int64_t count = -1;
    bool closed = true;

    (void)state;
    assert_int_equal(muster_rdzv_params_new("solo", "", "job", 1, 2, NULL, &params, NULL), 0);
    if (muster_rdzv_registry_create(shared_registry, params, &rdzv, &error) < 0)
        fail_msg("%s", error.text);
    assert_string_equal(muster_rdzv_get_backend(rdzv), "solo");
    assert_string_equal(muster_rdzv_get_run_id(rdzv), "job");
    assert_true(muster_rdzv_use_agent_store(rdzv));
    for (int64_t round = 0; round < 3; round++) {
        assert_int_equal(muster_rdzv_next_rendezvous(rdzv, &info, &error), 0);
        assert_int_equal(info.round, round);
        assert_int_equal(info.world_size, 1);
    }
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &count, &error), 0);
    assert_int_equal(count, 0);
    assert_int_equal(muster_rdzv_is_closed(rdzv, &closed, &error), 0);
    assert_false(closed);
    assert_int_equal(muster_rdzv_set_closed(rdzv, &error), 0);
    assert_int_equal(muster_rdzv_is_closed(rdzv, &closed, &error), 0);
    assert_true(closed);
    assert_int_equal(muster_rdzv_next_rendezvous(rdzv, &info, &error), MUSTER_ERDZV_CLOSED);
    assert_int_equal(muster_rdzv_shutdown(rdzv, &closed, &error), 0);
    assert_true(closed);
    muster_rdzv_free(rdzv);
    muster_rdzv_params_free(params);
    assert_string_equal(last_warning, "");
}

static void a_blocking_handler_whose_back_end_fails_is_an_error(void **state)
{
    struct muster_rdzv_params *params = NULL;
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(muster_rdzv_params_new("fails", "", "job", 1, 2, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_registry_create(shared_registry, params, &rdzv, &error), MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(error.text, "the moon does not answer"));
    assert_null(rdzv);
    muster_rdzv_params_free(params);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_does_not_end_in_so_is_left_alone),
        TEST(a_directory_that_is_not_there_is_an_error_naming_it),
        TEST(a_file_is_no_directory),
        TEST(a_directory_that_others_may_write_is_refused),
        TEST(a_file_that_others_may_write_is_refused),
        TEST(what_belongs_to_somebody_else_is_refused),
        TEST(a_link_is_judged_by_what_it_leads_to),
        TEST(a_link_that_leads_nowhere_is_named),
        TEST(what_is_no_regular_file_is_refused),
        TEST(what_is_no_object_is_refused_with_the_loaders_reason),
        TEST(bad_objects_are_refused_with_what_was_expected),
        TEST(a_name_that_is_taken_is_refused_naming_both),
        TEST(loading_a_directory_again_changes_nothing),
        TEST(two_objects_of_one_name_are_refused_naming_both),
        TEST(objects_are_loaded_in_the_order_of_their_names),
        TEST(too_many_objects_are_refused),
        TEST(a_loaded_back_end_joins_looks_leaves_and_closes),
        TEST(its_timers_take_the_time_they_were_given),
        TEST(nothing_is_told_after_it_is_freed),
        TEST(it_may_be_freed_by_who_is_told),
        TEST(what_it_forgets_is_closed_with_a_warning),
        TEST(telling_inside_of_a_call_becomes_a_failure_later),
        TEST(each_call_that_told_something_is_answered),
        TEST(a_back_end_that_fails_says_why_and_leaves_nothing),
        TEST(a_back_end_that_fails_in_silence_is_given_words),
        TEST(a_back_end_that_gives_no_handler_is_an_error),
        TEST(a_back_end_that_returns_nonsense_is_an_error),
        TEST(a_handler_with_another_name_is_refused_naming_both),
        TEST(a_handler_that_lacks_a_call_is_refused),
        TEST(a_back_end_that_tells_while_it_is_created_is_refused),
        TEST(a_back_end_sees_its_parameters),
        TEST(a_registry_knows_only_what_was_loaded_into_it),
        TEST(without_memory_it_is_refused_and_nothing_leaks),
        TEST(a_descriptor_that_cannot_be_waited_for_is_refused),
        TEST(timers_are_bounded_and_fire_once),
        TEST(errors_of_a_back_end_are_never_success),
        TEST(a_loaded_back_end_is_a_blocking_handler_too),
        TEST(a_blocking_handler_whose_back_end_fails_is_an_error),
    };

    return cmocka_run_group_tests(tests, load_shared, unload_shared);
}
