/* Parameters of the classic etcd rendezvous. Pure. */
#include "handler/etcd_params.h"

#include "base/number.h"
#include "base/secret.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SCHEME "etcd://"
#define URL_MAX 8192

enum { URL_OPTIONS_MAX = 32 }; /* more than there are */

/* ---- URLs ---- */

struct url { /* its texts are in `text` */
    char text[URL_MAX];
    char *host, *run_id, *query;
    int64_t nodes_min, nodes_max; /* 0: not said */
    const char *keys[URL_OPTIONS_MAX], *values[URL_OPTIONS_MAX];
    size_t count;
};

/* Which URL the error is about, without what is secret in it. */
static int in_url(const char *url, int rc, struct muster_error *reterr)
{
    char shown[MU_SECRET_SHOWN_MAX];

    return mu_wrap(reterr, rc, "URL '%s'", mu_secret_hide(mu_slice_str(url), shown, sizeof shown));
}

static int bad_url(const char *url, const char *why, struct muster_error *reterr)
{
    return in_url(url, mu_fail(reterr, MUSTER_EINVAL, "%s", why), reterr);
}

static int bad_key(const char *url, const char *key, const char *why, struct muster_error *reterr)
{
    return in_url(url, mu_fail(reterr, MUSTER_EINVAL, "'%.40s' %s", key, why), reterr);
}

static bool is_url(const char *endpoint)
{
    return strncmp(endpoint, SCHEME, strlen(SCHEME)) == 0;
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* %XX in place. False: not two digits, or a NUL. */
static bool unescape(char *text)
{
    char *to = text;

    for (; *text != '\0'; text++) {
        if (*text == '%') {
            int high = digit(text[1]), low = high < 0 ? -1 : digit(text[2]);

            if (low < 0 || (high == 0 && low == 0))
                return false;
            *to++ = (char)(high * 16 + low);
            text += 2;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
    return true;
}

static int split_url(const char *given, struct url *url, struct muster_error *reterr)
{
    char *slash, *question;

    if (!is_url(given))
        return bad_url(given, "it does not begin with " SCHEME, reterr);
    if (strlen(given) >= sizeof url->text)
        return bad_url(given, "it is too long", reterr);
    (void)snprintf(url->text, sizeof url->text, "%s", given + strlen(SCHEME));
    url->host = url->text;
    question = strchr(url->text, '?');
    url->query = question != NULL ? question + 1 : NULL;
    if (question != NULL)
        *question = '\0';
    slash = strchr(url->text, '/');
    if (slash != NULL)
        *slash = '\0';
    url->run_id = slash != NULL ? slash + 1 : NULL;
    if (url->host[0] == '\0')
        return bad_url(given, "it names no host", reterr);
    if (url->run_id == NULL || url->run_id[0] == '\0')
        return bad_url(given, "it names no run id: " SCHEME "HOST:PORT/RUN-ID?min_workers=1&max_workers=3", reterr);
    if (!unescape(url->run_id))
        return bad_url(given, "its run id has a '%' without two hexadecimal digits", reterr);
    return 0;
}

static int take_pair(const char *given, const char *key, const char *value, struct url *url,
                     struct muster_error *reterr)
{
    int64_t *count = strcmp(key, "min_workers") == 0   ? &url->nodes_min
                     : strcmp(key, "max_workers") == 0 ? &url->nodes_max
                                                       : NULL;
    int rc;

    if (count != NULL)
        return mu_number_int(value, count) && *count >= 1 ? 0 : bad_key(given, key, "must be a number above 0", reterr);
    for (size_t i = 0; i < url->count; i++)
        if (strcmp(url->keys[i], key) == 0)
            return bad_key(given, key, "is given twice", reterr);
    rc = mu_rdzv_check_option("etcd", key, reterr);
    if (rc < 0)
        return in_url(given, rc, reterr);
    assert(url->count < URL_OPTIONS_MAX); /* each known one at most once */
    url->keys[url->count] = key;
    url->values[url->count++] = value;
    return 0;
}

static int read_url(const char *given, struct url *url, struct muster_error *reterr)
{
    char *rest = NULL;
    int rc = split_url(given, url, reterr);

    for (char *pair = rc < 0 || url->query == NULL ? NULL : strtok_r(url->query, "&", &rest); rc == 0 && pair != NULL;
         pair = strtok_r(NULL, "&", &rest)) {
        char *equals = strchr(pair, '=');

        if (equals == NULL || equals == pair || equals[1] == '\0')
            return bad_url(given, "what follows '?' is not KEY=VALUE&KEY=VALUE", reterr);
        *equals = '\0';
        if (!unescape(pair) || !unescape(equals + 1))
            return bad_url(given, "it has a '%' without two hexadecimal digits", reterr);
        rc = take_pair(given, pair, equals + 1, url, reterr);
    }
    return rc;
}

/* `fallback`: what it has besides, if there is one. */
static int make_params(const struct url *url, const struct muster_rdzv_params *fallback,
                       struct muster_rdzv_params **ret_params, struct muster_error *reterr)
{
    const char *local_addr = fallback == NULL ? NULL : muster_rdzv_params_local_addr(fallback);
    struct muster_rdzv_params *made = NULL;
    int rc = muster_rdzv_params_new("etcd", url->host, url->run_id, url->nodes_min, url->nodes_max, local_addr, &made,
                                    reterr);

    if (rc == 0 && fallback != NULL)
        rc = mu_rdzv_params_add_all(made, fallback, reterr);
    for (size_t i = 0; rc == 0 && i < url->count; i++)
        rc = muster_rdzv_params_set_text(made, url->keys[i], url->values[i], reterr);
    if (rc < 0) {
        muster_rdzv_params_free(made);
        return rc;
    }
    *ret_params = made;
    return 0;
}

int muster_rdzv_params_from_url(const char *given, struct muster_rdzv_params **ret_params, struct muster_error *reterr)
{
    struct url url = { .count = 0 };
    int rc = read_url(given, &url, reterr);

    if (rc < 0)
        return rc;
    if (url.nodes_min == 0 || url.nodes_max == 0)
        return bad_url(given, "min_workers and max_workers are needed", reterr);
    return make_params(&url, NULL, ret_params, reterr);
}

int mu_etcd_params_resolve(const struct muster_rdzv_params *params, struct muster_rdzv_params **ret_own,
                           struct muster_error *reterr)
{
    const char *given = muster_rdzv_params_endpoint(params), *run_id = muster_rdzv_params_run_id(params);
    struct url url = { .count = 0 };
    int rc;

    *ret_own = NULL;
    if (!is_url(given))
        return 0;
    rc = read_url(given, &url, reterr);
    if (rc < 0)
        return rc;
    if (run_id[0] != '\0' && strcmp(run_id, url.run_id) != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "the run id is '%.100s', but the URL says '%.100s'", run_id, url.run_id);
    if (url.nodes_min == 0)
        url.nodes_min = muster_rdzv_params_min_nodes(params);
    if (url.nodes_max == 0)
        url.nodes_max = muster_rdzv_params_max_nodes(params);
    return make_params(&url, params, ret_own, reterr);
}

int mu_etcd_params_run_id(const char *endpoint, char **ret_run_id, struct muster_error *reterr)
{
    struct url url;
    int rc;

    *ret_run_id = NULL;
    if (!is_url(endpoint))
        return 0;
    rc = split_url(endpoint, &url, reterr);
    if (rc < 0)
        return rc;
    *ret_run_id = strdup(url.run_id);
    return *ret_run_id == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for a run id") : 0;
}

/* ---- Arguments of a call ---- */

/* 0: the default. Fractions of a second count as a whole one. */
static int set_time(struct muster_rdzv_params *params, const char *option, int64_t ms, struct muster_error *reterr)
{
    if (ms == 0)
        return 0;
    if (ms < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "%s: %" PRId64 " ms is below 0", option, ms);
    return muster_rdzv_params_set_int(params, option, ms / 1000 + (ms % 1000 > 0), reterr);
}

int mu_etcd_params_add(struct muster_rdzv_params *params, const struct muster_etcd_config *etcd, const char *prefix,
                       int64_t timeout_ms, int64_t last_call_timeout_ms, struct muster_error *reterr)
{
    const char *const pairs[][2] = { { "etcd_prefix", prefix },
                                     { "protocol", etcd->protocol },
                                     { "cacert", etcd->cacert },
                                     { "cert", etcd->cert },
                                     { "key", etcd->key } };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof pairs / sizeof pairs[0]; i++)
        if (pairs[i][1] != NULL)
            rc = muster_rdzv_params_set_text(params, pairs[i][0], pairs[i][1], reterr);
    if (rc == 0)
        rc = set_time(params, "timeout", timeout_ms, reterr);
    return rc == 0 ? set_time(params, "last_call_timeout", last_call_timeout_ms, reterr) : rc;
}

/* ---- Options ---- */

static const char *text_of(const struct muster_rdzv_params *params, const char *key)
{
    struct muster_value value;

    return muster_rdzv_params_get(params, key, &value) && value.kind == MUSTER_VALUE_TEXT ? value.text : NULL;
}

static int read_seconds(const struct muster_rdzv_params *params, const char *key, int64_t fallback, int64_t least,
                        uint64_t *ret_ms, struct muster_error *reterr)
{
    int rc = mu_rdzv_seconds_from_params(params, key, fallback, least, MU_ETCD_SECONDS_MAX, ret_ms, reterr);

    if (rc == 0)
        *ret_ms *= 1000;
    return rc;
}

static int check_protocol(const char *protocol, struct muster_error *reterr)
{
    if (strcmp(protocol, "http") == 0 || strcmp(protocol, "https") == 0)
        return 0;
    return mu_fail(reterr, MUSTER_EINVAL, "option 'protocol': '%.40s' is neither http nor https", protocol);
}

static const char *endpoints_of(const struct muster_rdzv_params *params)
{
    const char *endpoints = muster_rdzv_params_endpoint(params);

    return endpoints[strspn(endpoints, " \t\r\n")] == '\0' ? "localhost" : endpoints;
}

static int read_access(const struct muster_rdzv_params *params, struct mu_http_config *http,
                       struct muster_error *reterr)
{
    *http = (struct mu_http_config){ .endpoints = endpoints_of(params),
                                     .protocol = text_of(params, "protocol"),
                                     .ca_file = text_of(params, "cacert"),
                                     .cert_file = text_of(params, "cert"),
                                     .key_file = text_of(params, "key") };
    if (http->cert_file == NULL)
        http->key_file = NULL; /* as PyTorch does: a key counts only with its certificate */
    return http->protocol != NULL ? check_protocol(http->protocol, reterr) : 0;
}

int mu_etcd_params_read(const struct muster_rdzv_params *params, struct mu_etcd_place *ret_place,
                        struct muster_error *reterr)
{
    struct mu_etcd_place place = {
        .run_id = muster_rdzv_params_run_id(params),
        .local_addr = muster_rdzv_params_local_addr(params),
        .prefix = text_of(params, "etcd_prefix"),
        .nodes_min = muster_rdzv_params_min_nodes(params),
        .nodes_max = muster_rdzv_params_max_nodes(params),
    };
    struct mu_doc_dialect dialect = MU_DOC_DIALECT_2_X;
    bool shares; /* never, here */
    int rc = mu_rdzv_check_options("etcd", params, reterr);

    if (rc == 0)
        rc = read_access(params, &place.http, reterr);
    if (rc == 0 && place.run_id[0] == '\0')
        rc = mu_fail(reterr, MUSTER_EINVAL, "the run id is empty; every node of a job needs the same one");
    if (rc == 0 && strlen(place.run_id) > MU_RDZV_RUN_ID_MAX)
        rc = mu_fail(reterr, MUSTER_ELIMIT, "the run id '%.40s...' is longer than %d bytes", place.run_id,
                     MU_RDZV_RUN_ID_MAX);
    if (rc == 0)
        rc = read_seconds(params, "timeout", MU_ETCD_TIMEOUT_S, 1, &place.join_ms, reterr);
    if (rc == 0)
        rc = read_seconds(params, "last_call_timeout", MU_ETCD_LAST_CALL_S, 0, &place.last_call_ms, reterr);
    if (rc == 0)
        rc = read_seconds(params, "close_timeout", MU_ETCD_CLOSE_S, 1, &place.close_ms, reterr);
    if (rc == 0)
        rc = mu_rdzv_dialect_from_params(params, &dialect, &shares, reterr);
    if (rc == 0)
        rc = mu_boot_master_from_params(params, &place.master, reterr);
    if (rc < 0)
        return rc;
    place.old_dialect = dialect.habits == MU_HABITS_1_13;
    *ret_place = place;
    return 0;
}

int mu_etcd_params_read_root(const struct muster_rdzv_params *params, struct mu_etcd_place *ret_place,
                             char ret_root[static MU_CLASSIC_KEY_MAX], struct muster_error *reterr)
{
    char prefix[MU_CLASSIC_KEY_MAX];
    int rc = mu_etcd_params_read(params, ret_place, reterr);

    return rc < 0 ? rc : mu_classic_keys(ret_place->prefix, ret_place->run_id, prefix, ret_root, reterr);
}

/* ---- Machines ---- */

/* Worker 0 hosts the workers' store. */
struct mu_boot_config mu_etcd_boot_config(const struct mu_etcd_place *place, const char *name)
{
    return (struct mu_boot_config){
        .run_id = place->run_id,
        .local_addr = place->local_addr,
        .hostname = name,
        .master = place->master,
    };
}

struct mu_classic_config mu_etcd_classic_config(const struct mu_etcd_place *place, const char *name, int64_t pid,
                                                uint64_t seed, char node[static MU_NODE_TEXT_MAX])
{
    const struct mu_node me = { mu_slice_str(name), pid, mu_node_local_id(MU_NODE_VERSION, (uint32_t)seed) };

    return (struct mu_classic_config){
        .prefix = place->prefix,
        .run_id = place->run_id,
        .nodes_min = place->nodes_min,
        .nodes_max = place->nodes_max,
        .join_ms = place->join_ms,
        .last_call_ms = place->last_call_ms,
        .close_ms = place->close_ms,
        .node = mu_node_text(&me, node),
        .name = name,
        .pid = me.pid,
        .local_id = me.local_id,
        .seed = seed,
    };
}

/* ---- etcd-v2 ---- */

int mu_etcd_v2_params_read(const struct muster_rdzv_params *params, struct mu_http_config *ret_http,
                           char protocol[static MU_RDZV_WORD_MAX], struct muster_error *reterr)
{
    struct mu_http_config http = { .endpoints = endpoints_of(params), .protocol = protocol };
    const struct {
        const char *name, **text;
    } files[] = { { "ca_cert", &http.ca_file }, { "ssl_cert", &http.cert_file }, { "ssl_cert_key", &http.key_file } };
    struct mu_endpoints endpoints;
    struct muster_value value;
    int rc = mu_rdzv_word_from_params(params, "protocol", "http", protocol, reterr);

    if (rc == 0)
        rc = check_protocol(protocol, reterr);
    if (rc == 0) /* to say it now, and not when it is used */
        rc = mu_endpoints_parse(http.endpoints, protocol, MU_HTTP_ETCD_PORT, &endpoints, reterr);
    for (size_t i = 0; rc == 0 && i < sizeof files / sizeof files[0]; i++) {
        if (!muster_rdzv_params_get(params, files[i].name, &value))
            continue;
        if (value.kind != MUSTER_VALUE_TEXT)
            rc = mu_fail(reterr, MUSTER_EINVAL, "option '%s' is not text", files[i].name);
        else if (value.text[0] != '\0')
            *files[i].text = value.text;
    }
    if (rc == 0 && http.key_file != NULL && http.cert_file == NULL)
        rc = mu_fail(reterr, MUSTER_EINVAL, "option 'ssl_cert_key' needs 'ssl_cert'");
    if (rc == 0)
        *ret_http = http;
    return rc;
}
