/* Servers that speak as much of etcd's version 3 JSON gateway as a test writes down for them. */
#ifndef TESTS_UNIT_ETCD_SCENE_H
#define TESTS_UNIT_ETCD_SCENE_H

#include "http_scene.h"
#include "kv/etcd3_uv.h"
#include "turns_uv.h"

#include <dlfcn.h>

enum { KINDS = MU_ETCD3_AUTHENTICATE + 1, TEXTS = 128, TEXT_MAX = 2048, LINES = 8 };

#define HEADER(revision) "\"header\":{\"revision\":\"" revision "\"}"
#define EVENT(key, mod)                                                                                                \
    "{\"kv\":{\"key\":\"" key "\",\"create_revision\":\"" mod "\",\"mod_revision\":\"" mod                             \
    "\",\"version\":\"1\",\"value\":\"dg==\"}}"
#define EVENTS(revision, events) "{\"result\":{" HEADER(revision) ",\"events\":[" events "]}}\n"
#define CREATED(revision) "{\"result\":{" HEADER(revision) ",\"created\":true}}\n"
#define FAILURE(code, text) "{\"error\":\"" text "\",\"message\":\"" text "\",\"code\":" code "}"
/* A stream that has just been opened, and the first that is said on it. */
#define STREAM "stream "

/* For each kind of request: what is said to the first one, the second, ...; and to all further ones the last. "{...":
 * 200; "503 {...": that status; STREAM "...": a stream; or what http_scene.h has. */
static struct script {
    const char *lines[LINES];
    unsigned asked;
    char body[REQUEST_MAX]; /* of the newest request */
    struct server *server;  /* that was asked */
} script[KINDS];

static struct peer *stream; /* the newest, if it is open */
static char said_texts[TEXTS][TEXT_MAX];
static unsigned texts_count;

static inline char *next_text(void)
{
    return said_texts[texts_count++ % TEXTS];
}

static inline void on_stream_text(const char *json)
{
    char *text = next_text();
    int len = snprintf(text, TEXT_MAX, "%zx\r\n%s\r\n", strlen(json), json);

    assert_true(stream != NULL && len < TEXT_MAX);
    say(stream, text, (size_t)len);
}

static inline void cut_stream(void)
{
    assert_non_null(stream);
    hang_up(stream);
    stream = NULL;
}

static inline struct script *script_for(const char *request)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        size_t len = strlen(mu_etcd3_path(kind));

        if (strncmp(request + 5, mu_etcd3_path(kind), len) == 0 && request[5 + len] == ' ') /* "POST " */
            return &script[kind];
    }
    fail_msg("nobody asks etcd that: %.100s", request);
    return NULL;
}

static inline const char *line_of(const struct script *of)
{
    unsigned nth = of->asked < LINES ? of->asked : LINES - 1;

    while (nth > 0 && of->lines[nth] == NULL)
        nth--;
    if (of->lines[nth] == NULL)
        fail_msg("nothing is written down for %s", mu_etcd3_path((unsigned)(of - script)));
    return of->lines[nth];
}

static inline const char *as_etcd(struct server *server, struct peer *peer)
{
    struct script *of = script_for(peer->text);
    const char *line = line_of(of), *body = strchr(line, '{');
    char *text = next_text();
    int len;

    of->asked++;
    of->server = server;
    (void)snprintf(of->body, sizeof of->body, "%s", strstr(peer->text, "\r\n\r\n") + 4);
    if (strcmp(line, SILENT) == 0 || strcmp(line, HANG_UP) == 0)
        return line;
    if (strncmp(line, STREAM, strlen(STREAM)) == 0) {
        stream = peer;
        line += strlen(STREAM);
        len = snprintf(text, TEXT_MAX, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        if (line[0] != '\0')
            len += snprintf(text + len, (size_t)(TEXT_MAX - len), "%zx\r\n%s\r\n", strlen(line), line);
    } else {
        len = snprintf(text, TEXT_MAX, "HTTP/1.1 %.3s X\r\nContent-Length: %zu\r\n\r\n%s", body == line ? "200" : line,
                       strlen(body), body);
    }
    assert_true(len < TEXT_MAX);
    return text;
}

/* With what most tests want to be said. */
static inline int start_etcd(void **state)
{
    memset(script, 0, sizeof script);
    stream = NULL;
    (void)start_servers(state);
    for (int i = 0; i < SERVERS; i++)
        servers[i].choose = as_etcd;
    script[MU_ETCD3_RANGE].lines[0] = "{" HEADER("7") "}";
    script[MU_ETCD3_TXN].lines[0] = "{" HEADER("8") ",\"succeeded\":true,\"responses\":[{\"response_put\":{}}]}";
    script[MU_ETCD3_GRANT].lines[0] = "{" HEADER("7") ",\"ID\":\"1\",\"TTL\":\"2\"}";
    script[MU_ETCD3_KEEP_ALIVE].lines[0] = "{\"result\":{" HEADER("7") ",\"ID\":\"1\",\"TTL\":\"2\"}}";
    script[MU_ETCD3_REVOKE].lines[0] = "{" HEADER("7") "}";
    script[MU_ETCD3_WATCH].lines[0] = STREAM CREATED("7");
    script[MU_ETCD3_AUTHENTICATE].lines[0] = "{" HEADER("7") ",\"token\":\"secret.1\"}";
    return 0;
}

#define WITH_ETCD(test) cmocka_unit_test_setup_teardown(test, start_etcd, stop_servers)

/* ---- The client ---- */

static inline struct mu_etcd3 *open_etcd_that_renews(const char *user, uint64_t renew_ms)
{
    const struct mu_etcd3_config config = { .http = { .endpoints = endpoints, .first_is_first = true, .seed = 7 },
                                            .user = user,
                                            .password = user == NULL ? NULL : "secret",
                                            .renew_ms = renew_ms };
    struct mu_etcd3 *etcd = NULL;

    return mu_etcd3_start(&loop, &config, &etcd, NULL) == 0 ? etcd : NULL;
}

static inline struct mu_etcd3 *open_etcd(const char *user)
{
    return open_etcd_that_renews(user, 0);
}

static inline void set_and_stop(void *ctx)
{
    *(bool *)ctx = true;
    uv_stop(&loop);
}

static inline void close_etcd(struct mu_etcd3 *etcd)
{
    bool closed = false;

    mu_etcd3_close(etcd, set_and_stop, &closed);
    run_until(&closed);
}

#define UNTIL(condition) UNTIL_OF(&loop, condition)

static inline void take_turn(void)
{
    take_turn_of(&loop);
}

static inline int run_with_curl(const char *name, const struct CMUnitTest *tests, size_t count)
{
    if (dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL) == NULL)
        return puts("1..0 # skipped: no libcurl, whose absence test_http_uv.c tests") < 0;
    return _cmocka_run_group_tests(name, tests, count, NULL, NULL);
}

#endif
