/* HTTP transfers by libcurl. The few functions of it that are needed are declared here as its stable interface has
 * them, and come through one table: neither its header nor the library itself is needed to build muster.
 *
 * Happy path: a transfer becomes an easy handle in the multi handle. Events of the loop go to
 * curl_multi_socket_action(). Then all messages are collected first, and then their transfers are done. Failures:
 * libcurl's codes become ours, its texts stay. A body that is too long, or that its reader refuses, ends the transfer
 * in the write function.
 *
 * libcurl sends a request again by itself when a kept connection turns out to be dead. A request that must not be sent
 * twice has a body that cannot be rewound, or, without a body, a fresh connection. */
#include "kv/http_curl.h"

#include "base/dlnote.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define LIBRARY "libcurl.so.4"

enum {
    CONNECTIONS_KEPT = 16,
    KEEPALIVE_IDLE_S = 15,
    KEEPALIVE_EVERY_S = 5,
    HINT_MS = 1000, /* in less a server may only be slow with TLS */
};

/* ---- libcurl ---- */

enum {
    CURL_GLOBAL_DEFAULT = 3,
    CURL_SOCKET_TIMEOUT = -1,
    CURL_HTTP_VERSION_1_1 = 2,
    CURLMSG_DONE = 1,
    CURL_POLL_REMOVE = 4,
    CURL_CSELECT_IN = 1,
    CURL_CSELECT_ERR = 4,

    CURLOPT_POST = 47, /* these are long */
    CURLOPT_FRESH_CONNECT = 74,
    CURLOPT_HTTP_VERSION = 84,
    CURLOPT_NOSIGNAL = 99,
    CURLOPT_TIMEOUT_MS = 155,
    CURLOPT_CONNECTTIMEOUT_MS = 156,
    CURLOPT_TCP_KEEPALIVE = 213,
    CURLOPT_TCP_KEEPIDLE = 214,
    CURLOPT_TCP_KEEPINTVL = 215,
    CURLOPT_QUICK_EXIT = 322,
    CURLOPT_WRITEDATA = 10001, /* pointers */
    CURLOPT_URL = 10002,
    CURLOPT_READDATA = 10009,
    CURLOPT_ERRORBUFFER = 10010,
    CURLOPT_POSTFIELDS = 10015,
    CURLOPT_HTTPHEADER = 10023,
    CURLOPT_SSLCERT = 10025,
    CURLOPT_HEADERDATA = 10029,
    CURLOPT_CUSTOMREQUEST = 10036,
    CURLOPT_CAINFO = 10065,
    CURLOPT_SSLKEY = 10087,
    CURLOPT_PRIVATE = 10103,
    CURLOPT_NOPROXY = 10177,
    CURLOPT_WRITEFUNCTION = 20011, /* functions */
    CURLOPT_READFUNCTION = 20012,
    CURLOPT_HEADERFUNCTION = 20079,
    CURLOPT_POSTFIELDSIZE_LARGE = 30120, /* 64 bits */

    CURLMOPT_MAXCONNECTS = 6,
    CURLMOPT_SOCKETDATA = 10002,
    CURLMOPT_TIMERDATA = 10005,
    CURLMOPT_SOCKETFUNCTION = 20001,
    CURLMOPT_TIMERFUNCTION = 20004,

    CURLINFO_PRIMARY_IP = 0x100000 + 32,
    CURLINFO_LOCAL_IP = 0x100000 + 41,
    CURLINFO_PRIVATE = 0x100000 + 21,
    CURLINFO_RESPONSE_CODE = 0x200000 + 2,
    CURLINFO_REQUEST_SIZE = 0x200000 + 12,
    CURLINFO_PRIMARY_PORT = 0x200000 + 40,
    CURLINFO_APPCONNECT_TIME = 0x300000 + 33,

    CURLE_OK = 0,
    CURLE_UNSUPPORTED_PROTOCOL = 1,
    CURLE_COULDNT_RESOLVE_HOST = 6,
    CURLE_COULDNT_CONNECT = 7,
    CURLE_WEIRD_SERVER_REPLY = 8,
    CURLE_OUT_OF_MEMORY = 27,
    CURLE_OPERATION_TIMEDOUT = 28,
    CURLE_SSL_CONNECT_ERROR = 35,
    CURLE_SSL_PEER_CERTIFICATE = 51, /* before 7.62: then it became the same as 60 */
    CURLE_GOT_NOTHING = 52,
    CURLE_SSL_CERTPROBLEM = 58,
    CURLE_SSL_CIPHER = 59,
    CURLE_PEER_FAILED_VERIFICATION = 60,
    CURLE_SEND_FAIL_REWIND = 65,
    CURLE_SSL_CACERT_BADFILE = 77,
    CURLE_SSL_ISSUER_ERROR = 83,
};

struct curl_message {
    int what;
    void *easy;
    union {
        void *whatever;
        int result;
    } data;
};

#define FUNCTIONS(X)                                                                                                   \
    X(int, global_init, (long flags))                                                                                  \
    X(void *, easy_init, (void))                                                                                       \
    X(int, easy_setopt, (void *easy, int option, ...))                                                                 \
    X(int, easy_getinfo, (void *easy, int info, ...))                                                                  \
    X(void, easy_cleanup, (void *easy))                                                                                \
    X(const char *, easy_strerror, (int code))                                                                         \
    X(void *, slist_append, (void *list, const char *text))                                                            \
    X(void, slist_free_all, (void *list))                                                                              \
    X(void *, multi_init, (void))                                                                                      \
    X(int, multi_cleanup, (void *multi))                                                                               \
    X(int, multi_setopt, (void *multi, int option, ...))                                                               \
    X(int, multi_add_handle, (void *multi, void *easy))                                                                \
    X(int, multi_remove_handle, (void *multi, void *easy))                                                             \
    X(int, multi_socket_action, (void *multi, int fd, int events, int *ret_running))                                   \
    X(int, multi_assign, (void *multi, int fd, void *data))                                                            \
    X(struct curl_message *, multi_info_read, (void *multi, int *ret_left))                                            \
    X(const char *, multi_strerror, (int code))

struct functions {
#define X(type, name, arguments) type(*name) arguments;
    FUNCTIONS(X)
#undef X
};

static struct functions curl_calls; /* filled in once, with the lock held */
static bool curl_loaded;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

#ifdef MU_CURL_LINKED
#define X(type, name, arguments) extern type curl_##name arguments;
FUNCTIONS(X)
#undef X

static int load(const char *name, struct functions *ret_functions, struct muster_error *reterr)
{
    (void)name;
    (void)reterr;
#define X(type, function, arguments) ret_functions->function = curl_##function;
    FUNCTIONS(X)
#undef X
    return 0;
}
#else
MU_DLOPEN_NOTE(note, "etcd", "HTTP to etcd", LIBRARY);

static int find(void *library, const char *name, void *ret_function, struct muster_error *reterr)
{
    void *found = dlsym(library, name);

    if (found == NULL)
        return mu_fail(reterr, MUSTER_ENOTSUP, LIBRARY " has no %s", name);
    memcpy(ret_function, &found, sizeof found); /* C knows no cast from data to functions */
    return 0;
}

static int load(const char *name, struct functions *ret_functions, struct muster_error *reterr)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    int rc = 0;

    if (library == NULL)
        return mu_fail(reterr, MUSTER_ENOTSUP,
                       "%s cannot be loaded: install libcurl4 (Debian, Ubuntu) or libcurl (Fedora, RHEL)", name);
#define X(type, function, arguments)                                                                                   \
    if (rc == 0)                                                                                                       \
        rc = find(library, "curl_" #function, &ret_functions->function, reterr);
    FUNCTIONS(X)
#undef X
    if (rc < 0)
        (void)dlclose(library);
    return rc;
}
#endif

static int load_once(const char *name, struct muster_error *reterr)
{
    int rc = 0;

    (void)pthread_mutex_lock(&load_lock);
    if (!curl_loaded) {
        rc = load(name, &curl_calls, reterr);
        if (rc == 0 && curl_calls.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
            rc = mu_fail(reterr, MUSTER_ESYSTEM, "libcurl does not start");
        curl_loaded = rc == 0;
    }
    (void)pthread_mutex_unlock(&load_lock);
    return rc;
}

/* Threads that libcurl starts take no signals, for those are the program's; SIGPIPE must not end it either. */
static void enter(sigset_t *ret_before)
{
    sigset_t all;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, ret_before);
}

static void leave(const sigset_t *before)
{
    const struct timespec at_once = { 0 };
    sigset_t pending, only;

    if (sigismember(before, SIGPIPE) == 0 && sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1) {
        (void)sigemptyset(&only);
        (void)sigaddset(&only, SIGPIPE);
        (void)sigtimedwait(&only, NULL, &at_once);
    }
    (void)pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* ---- The loop's side ---- */

struct mu_curl {
    const struct mu_curl_loop *loop;
    void *ctx;
    void *multi;
    char *ca_file, *cert_file, *key_file;
    struct mu_list ended; /* transfers to be told */
    size_t transfers;
};

static int on_socket(void *easy, int fd, int what, void *ctx, void *watch)
{
    struct mu_curl *curl = ctx;
    void *now;

    (void)easy;
    now = curl->loop->watch(curl->ctx, watch, fd, what == CURL_POLL_REMOVE ? 0 : (unsigned)what);
    if (now != watch)
        (void)curl_calls.multi_assign(curl->multi, fd, now);
    return 0;
}

static int on_timer(void *multi, long ms, void *ctx)
{
    struct mu_curl *curl = ctx;

    (void)multi;
    curl->loop->wake_in(curl->ctx, ms);
    return 0;
}

/* ---- Transfers: what comes ---- */

static size_t on_body(char *data, size_t size, size_t count, void *ctx)
{
    struct mu_curl_transfer *transfer = ctx;
    size_t len = size * count;

    if (transfer->on_chunk != NULL) {
        transfer->chunk_rc = transfer->on_chunk(transfer, mu_slice(data, len));
        return transfer->chunk_rc < 0 ? 0 : len;
    }
    transfer->chunk_rc = mu_buf_append(&transfer->reply, data, len, transfer->reply_max);
    transfer->limit = transfer->chunk_rc == MUSTER_ELIMIT;
    return transfer->chunk_rc < 0 ? 0 : len;
}

static void take_index(struct mu_curl_transfer *transfer, struct mu_slice value)
{
    uint64_t number = 0;

    while (value.len > 0 && (*value.data == ' ' || *value.data == '\t'))
        value = mu_slice(value.data + 1, value.len - 1);
    for (size_t i = 0; i < value.len && value.data[i] >= '0' && value.data[i] <= '9'; i++) {
        if (number > (UINT64_MAX - 9) / 10)
            return;
        number = number * 10 + (uint64_t)(value.data[i] - '0');
    }
    transfer->etcd_index = number;
}

/* A line of the head; the last one is empty. */
static size_t on_header(char *data, size_t size, size_t count, void *ctx)
{
    static const char index[] = "X-Etcd-Index:";
    struct mu_curl_transfer *transfer = ctx;
    size_t len = size * count;
    long status = 0;

    transfer->head_len += len;
    if (transfer->head_len > transfer->head_max) {
        transfer->limit = true;
        return 0;
    }
    if (len >= sizeof index && strncasecmp(data, index, sizeof index - 1) == 0)
        take_index(transfer, mu_slice(data + sizeof index - 1, len - sizeof index + 1));
    if (len > 2)
        return len;
    (void)curl_calls.easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200) /* 100 is not the answer yet */
        return len;
    transfer->has_head = true;
    transfer->status = (unsigned)status;
    if (transfer->on_head != NULL)
        transfer->on_head(transfer);
    return len;
}

static size_t on_read(char *to, size_t size, size_t count, void *ctx)
{
    struct mu_curl_transfer *transfer = ctx;
    size_t room = size * count, left = transfer->body.len - transfer->body_sent;

    if (left < room)
        room = left;
    if (room > 0)
        memcpy(to, transfer->body.data + transfer->body_sent, room);
    transfer->body_sent += room;
    return room;
}

/* ---- Transfers: the end ---- */

/* What libcurl's results mean. */
static const struct meaning {
    int result, code;
    bool permanent;
} meanings[] = {
    { CURLE_COULDNT_RESOLVE_HOST, MUSTER_ERESOLVE, false },
    { CURLE_COULDNT_CONNECT, MUSTER_ECONNECT, false },
    { CURLE_SSL_CONNECT_ERROR, MUSTER_ECONNECT, false },
    { CURLE_SSL_CERTPROBLEM, MUSTER_ECONNECT, true },
    { CURLE_SSL_CIPHER, MUSTER_ECONNECT, true },
    { CURLE_SSL_PEER_CERTIFICATE, MUSTER_ECONNECT, true },
    { CURLE_PEER_FAILED_VERIFICATION, MUSTER_ECONNECT, true },
    { CURLE_SSL_CACERT_BADFILE, MUSTER_ECONNECT, true },
    { CURLE_SSL_ISSUER_ERROR, MUSTER_ECONNECT, true },
    { CURLE_OPERATION_TIMEDOUT, MUSTER_ETIMEOUT, false },
    { CURLE_OUT_OF_MEMORY, MUSTER_ENOMEM, false },
    { CURLE_UNSUPPORTED_PROTOCOL, MUSTER_EPROTOCOL, true },
    { CURLE_WEIRD_SERVER_REPLY, MUSTER_EPROTOCOL, false },
};

static struct meaning meaning_of(int result)
{
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        if (meanings[i].result == result)
            return meanings[i];
    }
    return (struct meaning){ result, MUSTER_ELOST, false };
}

static bool is_plain(const struct mu_curl_transfer *transfer)
{
    return strncmp(transfer->url, "http:", 5) == 0;
}

static const char *error_text(const struct mu_curl_transfer *transfer, int result)
{
    if (result == CURLE_SEND_FAIL_REWIND) /* it would have sent it again, which on_read() prevents */
        return "the connection was closed before there was an answer";
    return transfer->text[0] != '\0' ? transfer->text : curl_calls.easy_strerror(result);
}

/* There is a server, but it does not speak TLS, or waits for more. */
static bool is_tls_unanswered(const struct mu_curl_transfer *transfer, int result)
{
    double agreed_s = 0;

    if (is_plain(transfer) || (result != CURLE_OPERATION_TIMEDOUT && result != CURLE_SSL_CONNECT_ERROR))
        return false;
    if (result == CURLE_OPERATION_TIMEDOUT && transfer->connect_ms < HINT_MS)
        return false;
    (void)curl_calls.easy_getinfo(transfer->easy, CURLINFO_APPCONNECT_TIME, &agreed_s);
    return transfer->local[0] != '\0' && agreed_s <= 0 && strstr(transfer->text, "alert") == NULL;
}

static const char *hint(const struct mu_curl_transfer *transfer, int result)
{
    if (result == CURLE_GOT_NOTHING && is_plain(transfer))
        return " (is it https there?)";
    return is_tls_unanswered(transfer, result) ? " (is it http there?)" : "";
}

static void take_error(struct mu_curl_transfer *transfer, int result)
{
    struct meaning meaning = meaning_of(result);
    long size = 0;

    (void)curl_calls.easy_getinfo(transfer->easy, CURLINFO_REQUEST_SIZE, &size);
    transfer->sent = size > 0;
    transfer->permanent = meaning.permanent;
    if (transfer->limit)
        transfer->rc = mu_fail(&transfer->error, MUSTER_ELIMIT, "the %s longer than %zu bytes",
                               transfer->chunk_rc == 0 ? "answer's head is" : "answer is",
                               transfer->chunk_rc == 0 ? transfer->head_max : transfer->reply_max);
    else if (transfer->chunk_rc == MUSTER_ENOMEM && transfer->on_chunk == NULL)
        transfer->rc = mu_fail(&transfer->error, MUSTER_ENOMEM, "no memory for the answer");
    else if (transfer->chunk_rc < 0)
        transfer->rc = transfer->chunk_rc; /* the reader that refused it has set the error */
    else
        transfer->rc =
            mu_fail(&transfer->error, meaning.code, "%s%s", error_text(transfer, result), hint(transfer, result));
}

static void take_answer(struct mu_curl_transfer *transfer, int result)
{
    char *local = NULL, *server = NULL;
    long status = 0, port = 0;

    (void)curl_calls.easy_getinfo(transfer->easy, CURLINFO_LOCAL_IP, &local);
    if (local != NULL)
        (void)snprintf(transfer->local, sizeof transfer->local, "%s", local);
    (void)curl_calls.easy_getinfo(transfer->easy, CURLINFO_PRIMARY_IP, &server);
    (void)curl_calls.easy_getinfo(transfer->easy, CURLINFO_PRIMARY_PORT, &port);
    if (server != NULL)
        (void)snprintf(transfer->server, sizeof transfer->server, "%s", server);
    transfer->server_port = (uint16_t)port;
    (void)curl_calls.easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);
    transfer->status = (unsigned)status;
    if (result != CURLE_OK) {
        take_error(transfer, result);
    } else if (!transfer->has_head) { /* libcurl takes the part that has come for the whole */
        transfer->sent = true;
        transfer->rc = mu_fail(&transfer->error, MUSTER_ELOST, "the connection was closed within the answer's head");
    }
}

static void release(struct mu_curl_transfer *transfer)
{
    (void)curl_calls.multi_remove_handle(transfer->curl->multi, transfer->easy);
    curl_calls.easy_cleanup(transfer->easy);
    curl_calls.slist_free_all(transfer->lines);
    transfer->easy = transfer->lines = NULL;
    transfer->curl->transfers--;
}

static void collect(struct mu_curl *curl)
{
    struct curl_message *message;
    int left;

    while ((message = curl_calls.multi_info_read(curl->multi, &left)) != NULL) {
        struct mu_curl_transfer *transfer = NULL;
        int result = message->data.result;

        if (message->what != CURLMSG_DONE)
            continue;
        (void)curl_calls.easy_getinfo(message->easy, CURLINFO_PRIVATE, &transfer);
        take_answer(transfer, result);
        release(transfer); /* the message is gone with it */
        mu_list_push(&curl->ended, &transfer->link);
    }
}

static void act(struct mu_curl *curl, int fd, int events)
{
    struct mu_curl_transfer *transfer;
    sigset_t before;
    int running;

    enter(&before);
    (void)curl_calls.multi_socket_action(curl->multi, fd, events, &running);
    collect(curl);
    leave(&before);
    while ((transfer = MU_LIST_POP(struct mu_curl_transfer, &curl->ended, link)) != NULL)
        transfer->done(transfer);
}

void mu_curl_ready(struct mu_curl *curl, int fd, unsigned events)
{
    /* With an error alone libcurl would not read what came before it: an answer, or the reason. */
    act(curl, fd, events == 0 ? CURL_CSELECT_IN | CURL_CSELECT_ERR : (int)events);
}

void mu_curl_wake(struct mu_curl *curl)
{
    act(curl, CURL_SOCKET_TIMEOUT, 0);
}

/* ---- Transfers: the start ---- */

static int add_line(struct mu_curl_transfer *transfer, const char *line)
{
    void *list = curl_calls.slist_append(transfer->lines, line);

    if (list == NULL)
        return MUSTER_ENOMEM;
    transfer->lines = list;
    return 0;
}

static int add_lines(struct mu_curl_transfer *transfer)
{
    int rc = add_line(transfer, "Expect:"); /* without waiting for a "100 Continue" */

    for (size_t i = 0; rc == 0 && transfer->headers != NULL && transfer->headers[i] != NULL; i++)
        rc = add_line(transfer, transfer->headers[i]);
    return rc;
}

#define SET(option, value)                                                                                             \
    do {                                                                                                               \
        if (rc == CURLE_OK)                                                                                            \
            rc = set(transfer->easy, option, value);                                                                   \
    } while (0)

static int set_body(struct mu_curl_transfer *transfer)
{
    int (*set)(void *easy, int option, ...) = curl_calls.easy_setopt;
    int rc = CURLE_OK;

    if (transfer->body.data == NULL) {
        SET(CURLOPT_FRESH_CONNECT, transfer->once ? 1L : 0L);
        return rc;
    }
    SET(CURLOPT_POST, 1L);
    SET(CURLOPT_POSTFIELDSIZE_LARGE, (int64_t)transfer->body.len);
    if (transfer->once) {
        SET(CURLOPT_READFUNCTION, on_read);
        SET(CURLOPT_READDATA, (void *)transfer);
    } else {
        SET(CURLOPT_POSTFIELDS, transfer->body.data);
    }
    return rc;
}

static int set_tls(const struct mu_curl *curl, struct mu_curl_transfer *transfer)
{
    int (*set)(void *easy, int option, ...) = curl_calls.easy_setopt;
    int rc = CURLE_OK;

    if (curl->ca_file != NULL)
        SET(CURLOPT_CAINFO, curl->ca_file);
    if (curl->cert_file != NULL) {
        SET(CURLOPT_SSLCERT, curl->cert_file);
        SET(CURLOPT_SSLKEY, curl->key_file != NULL ? curl->key_file : curl->cert_file);
    }
    return rc;
}

static int set_all(const struct mu_curl *curl, struct mu_curl_transfer *transfer)
{
    int (*set)(void *easy, int option, ...) = curl_calls.easy_setopt;
    int rc = CURLE_OK;

    SET(CURLOPT_URL, transfer->url);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_NOPROXY, "*");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_ERRORBUFFER, transfer->text);
    SET(CURLOPT_PRIVATE, (void *)transfer);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, (void *)transfer);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, (void *)transfer);
    SET(CURLOPT_HTTPHEADER, transfer->lines);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)transfer->connect_ms);
    SET(CURLOPT_TIMEOUT_MS, (long)transfer->timeout_ms);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_TCP_KEEPIDLE, (long)KEEPALIVE_IDLE_S);
    SET(CURLOPT_TCP_KEEPINTVL, (long)KEEPALIVE_EVERY_S);
    if (rc == CURLE_OK)
        rc = set_body(transfer);
    SET(CURLOPT_CUSTOMREQUEST, transfer->method); /* after the body, which makes it a POST */
    /* Not to wait for a look-up that is not wanted any more. Older libraries do not know it. */
    (void)set(transfer->easy, CURLOPT_QUICK_EXIT, 1L);
    return rc == CURLE_OK ? set_tls(curl, transfer) : rc;
}

static int fill_in(const struct mu_curl *curl, struct mu_curl_transfer *transfer, struct muster_error *reterr)
{
    int rc;

    transfer->easy = curl_calls.easy_init();
    if (transfer->easy == NULL || add_lines(transfer) < 0)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a request");
    rc = set_all(curl, transfer);
    if (rc != CURLE_OK)
        return mu_fail(reterr, rc == CURLE_OUT_OF_MEMORY ? MUSTER_ENOMEM : MUSTER_ENOTSUP, "libcurl: %s",
                       curl_calls.easy_strerror(rc));
    return 0;
}

int mu_curl_add(struct mu_curl *curl, struct mu_curl_transfer *transfer, struct muster_error *reterr)
{
    int rc, added;
    sigset_t before;

    transfer->curl = curl;
    mu_list_init(&transfer->link);
    rc = fill_in(curl, transfer, reterr);
    if (rc == 0) {
        enter(&before);
        added = curl_calls.multi_add_handle(curl->multi, transfer->easy);
        leave(&before);
        if (added != 0)
            rc = mu_fail(reterr, MUSTER_EINTERNAL, "libcurl: %s", curl_calls.multi_strerror(added));
    }
    if (rc == 0) {
        curl->transfers++;
        return 0;
    }
    if (transfer->easy != NULL)
        curl_calls.easy_cleanup(transfer->easy);
    curl_calls.slist_free_all(transfer->lines);
    transfer->easy = transfer->lines = NULL;
    return rc;
}

void mu_curl_remove(struct mu_curl_transfer *transfer)
{
    sigset_t before;

    mu_list_remove(&transfer->link);
    if (transfer->easy == NULL)
        return; /* it has ended and was about to be told */
    enter(&before);
    release(transfer);
    leave(&before);
}

/* ---- Start and end ---- */

static char *copy(const char *text, bool *failed)
{
    char *own = text == NULL ? NULL : strdup(text);

    *failed = *failed || (text != NULL && own == NULL);
    return own;
}

static void free_curl(struct mu_curl *curl)
{
    free(curl->ca_file);
    free(curl->cert_file);
    free(curl->key_file);
    free(curl);
}

int mu_curl_new(const struct mu_http_config *config, const struct mu_curl_loop *loop, void *ctx,
                struct mu_curl **ret_curl, struct muster_error *reterr)
{
    struct mu_curl *curl;
    bool failed = false;
    int rc = load_once(config->library != NULL ? config->library : LIBRARY, reterr);

    if (rc < 0)
        return rc;
    curl = calloc(1, sizeof *curl);
    if (curl == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for HTTP");
    curl->loop = loop;
    curl->ctx = ctx;
    mu_list_init(&curl->ended);
    curl->ca_file = copy(config->ca_file, &failed);
    curl->cert_file = copy(config->cert_file, &failed);
    curl->key_file = copy(config->key_file, &failed);
    curl->multi = failed ? NULL : curl_calls.multi_init();
    if (curl->multi == NULL) {
        free_curl(curl);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for HTTP");
    }
    (void)curl_calls.multi_setopt(curl->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    (void)curl_calls.multi_setopt(curl->multi, CURLMOPT_SOCKETDATA, (void *)curl);
    (void)curl_calls.multi_setopt(curl->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    (void)curl_calls.multi_setopt(curl->multi, CURLMOPT_TIMERDATA, (void *)curl);
    (void)curl_calls.multi_setopt(curl->multi, CURLMOPT_MAXCONNECTS, (long)CONNECTIONS_KEPT);
    *ret_curl = curl;
    return 0;
}

void mu_curl_free(struct mu_curl *curl)
{
    sigset_t before;

    assert(curl->transfers == 0 && mu_list_empty(&curl->ended));
    enter(&before);
    (void)curl_calls.multi_cleanup(curl->multi);
    leave(&before);
    free_curl(curl);
}
