/* The options of --rdzv-conf: which back end knows which key. This is the one place to add a key. Pure.
 *
 * A key that a back end does not know is an error, and the nearest key that it knows is suggested. Other people's back
 * ends check their options themselves. */
#include "base/secret.h"
#include "handler/handler.h"

#include <assert.h>
#include <stdio.h>

/* Bits, one for each back end. */
enum {
    C10D = 1 << 0,
    ETCD_V2 = 1 << 1,
    ETCD = 1 << 2,
    ETCD_V3 = 1 << 3,
    STATIC = 1 << 4,
    DYNAMIC = C10D | ETCD_V2,
};

static const struct {
    const char *name;
    unsigned bit;
} backends[] = {
    { "c10d", C10D }, { "etcd-v2", ETCD_V2 }, { "etcd", ETCD }, { "etcd-v3", ETCD_V3 }, { "static", STATIC },
};

static const struct {
    const char *key;
    unsigned known_to; /* back ends that read it */
    unsigned idle_for; /* back ends that accept it without effect */
} table[] = {
    { "join_timeout", DYNAMIC | ETCD_V3, 0 },
    { "last_call_timeout", DYNAMIC | ETCD | ETCD_V3, 0 },
    { "close_timeout", DYNAMIC | ETCD | ETCD_V3, 0 },
    { "read_timeout", DYNAMIC | ETCD_V3, 0 },
    { "lost_node_wait", DYNAMIC | ETCD_V3, 0 },
    { "keep_alive_interval", DYNAMIC, ETCD_V3 },
    { "keep_alive_max_attempt", DYNAMIC, ETCD_V3 },
    { "heartbeat_timeout", DYNAMIC, ETCD_V3 },
    { "cas_backoff_max_seconds", DYNAMIC, ETCD_V3 },
    { "dialect", DYNAMIC | ETCD | STATIC, ETCD_V3 },
    { "store_type", C10D, ETCD_V3 },
    { "is_host", C10D, ETCD_V3 },
    { "engine", C10D, ETCD_V3 },
    { "token_file", C10D, 0 },
    { "store_lost_timeout", C10D, ETCD_V2 | ETCD_V3 },
    { "use_libuv", 0, C10D }, /* PyTorch 2.2 to 2.5 choose the store's server with it; ours has only one */
    { "lease", ETCD_V3, 0 },
    { "job_lease", ETCD_V3, 0 },
    { "fence", C10D | ETCD_V3, 0 },
    { "restart_window", C10D | ETCD_V3, 0 },
    { "etcd_prefix", ETCD, 0 },
    { "protocol", ETCD_V2 | ETCD | ETCD_V3, 0 },
    { "cacert", ETCD | ETCD_V3, 0 },
    { "cert", ETCD | ETCD_V3, 0 },
    { "key", ETCD | ETCD_V3, 0 },
    { "ca_cert", ETCD_V2, 0 },
    { "ssl_cert", ETCD_V2, 0 },
    { "ssl_cert_key", ETCD_V2, 0 },
    { "user", ETCD_V3, 0 },
    { "password", ETCD_V3, 0 },
    { "token", ETCD_V3, 0 },
    { "rank", STATIC, 0 },
    { "master_addr", DYNAMIC | ETCD | ETCD_V3 | STATIC, 0 },
    { "master_port", DYNAMIC | ETCD | ETCD_V3 | STATIC, 0 },
    { "bind", C10D | ETCD_V2 | ETCD_V3 | STATIC, ETCD },
    { "allow", C10D | ETCD_V2 | ETCD_V3 | STATIC, ETCD },
    /* The commands set these two for every back end. */
    { "timeout", ETCD | STATIC, DYNAMIC | ETCD_V3 },
    { "use_agent_store", DYNAMIC | ETCD_V3, ETCD | STATIC },
};
#define TABLE_COUNT (sizeof table / sizeof table[0])

enum {
    COMPARED_MAX = 64, /* characters of a key that are compared */
    DISTANCE_MAX = 3,
    PART_MIN = 4, /* characters that two keys have in common */
    OTHERS_TEXT_MAX = 64,
};

static unsigned bit_of(const char *backend)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (strcmp(backends[i].name, backend) == 0)
            return backends[i].bit;
    }
    return 0;
}

/* The back ends that take this key. */
static unsigned takers_of(const char *key)
{
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        if (strcmp(table[i].key, key) == 0)
            return table[i].known_to | table[i].idle_for;
    }
    return 0;
}

bool mu_rdzv_knows_option(const char *backend, const char *key)
{
    return (takers_of(key) & bit_of(backend)) != 0;
}

/* ---- The nearest key ---- */

static char simplify(char c)
{
    return c == '-' ? '_' : (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* How many characters have to be added, left out, replaced or swapped with their neighbour to make one of the other.
 * Case does not count, and "-" is "_". */
static unsigned distance(const char *a, const char *b)
{
    unsigned rows[3][COMPARED_MAX + 1];
    size_t a_len = strnlen(a, COMPARED_MAX), b_len = strnlen(b, COMPARED_MAX);

    for (size_t j = 0; j <= b_len; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= a_len; i++) {
        unsigned *now = rows[i % 3];
        const unsigned *before = rows[(i - 1) % 3], *before_that = rows[(i + 1) % 3];

        now[0] = (unsigned)i;
        for (size_t j = 1; j <= b_len; j++) {
            char from = simplify(a[i - 1]), to = simplify(b[j - 1]);

            now[j] = smaller(before[j - 1] + (from != to), smaller(before[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && from == simplify(b[j - 2]) && simplify(a[i - 2]) == to)
                now[j] = smaller(now[j], before_that[j - 2] + 1);
        }
    }
    return rows[a_len % 3][b_len];
}

/* Whether one is the other with something more before or behind it: "join_timeout" and "timeout". */
static bool is_part(const char *a, const char *b)
{
    return (strlen(a) >= PART_MIN && strstr(b, a) != NULL) || (strlen(b) >= PART_MIN && strstr(a, b) != NULL);
}

/* Of the keys that the back end reads; NULL: none is near. */
static const char *nearest(unsigned bit, const char *key)
{
    const char *best = NULL;
    unsigned best_distance = smaller((unsigned)strnlen(key, COMPARED_MAX) / 2, DISTANCE_MAX);

    for (size_t i = 0; i < TABLE_COUNT; i++) {
        unsigned d = (table[i].known_to & bit) != 0 ? distance(key, table[i].key) : UINT32_MAX;

        if (d < best_distance || (d == best_distance && best == NULL)) {
            best = table[i].key;
            best_distance = d;
        }
    }
    for (size_t i = 0; i < TABLE_COUNT && best == NULL; i++) {
        if ((table[i].known_to & bit) != 0 && is_part(key, table[i].key))
            best = table[i].key;
    }
    return best;
}

/* ---- Checking ---- */

/* The names of these back ends, with commas between them. */
static const char *names_of(unsigned bits, char text[static OTHERS_TEXT_MAX])
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if ((bits & backends[i].bit) != 0 && used < OTHERS_TEXT_MAX)
            used +=
                (size_t)snprintf(text + used, OTHERS_TEXT_MAX - used, "%s%s", used > 0 ? ", " : "", backends[i].name);
    }
    return text;
}

int mu_rdzv_check_option(const char *backend, const char *key, struct muster_error *reterr)
{
    const char *near = nearest(bit_of(backend), key);
    char others[OTHERS_TEXT_MAX], belongs[OTHERS_TEXT_MAX + 32] = "", hint[96] = "";

    if (mu_rdzv_knows_option(backend, key))
        return 0;
    if (takers_of(key) != 0)
        (void)snprintf(belongs, sizeof belongs, " (it belongs to %s)", names_of(takers_of(key), others));
    if (near != NULL)
        (void)snprintf(hint, sizeof hint, "; did you mean '%s'?", near);
    return mu_fail(reterr, MUSTER_EINVAL, "option '%.40s' is unknown to the %s back end%s%s", key, backend, belongs,
                   hint);
}

int mu_rdzv_check_options(const char *backend, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    const char *secret = NULL, *key;

    assert(bit_of(backend) != 0);
    for (size_t i = 0; (key = mu_rdzv_params_key(params, i)) != NULL; i++) {
        if (mu_rdzv_knows_option(backend, key)) {
            if (mu_secret_is_key(mu_slice_str(key)))
                secret = key;
        } else if (secret != NULL) { /* a password with a comma in it looks like one more option */
            return mu_fail(
                reterr, MUSTER_EINVAL,
                "what follows option '%.40s' is unknown to the %s back end; it is not shown because it may be "
                "part of a secret",
                secret, backend);
        } else {
            return mu_rdzv_check_option(backend, key, reterr);
        }
    }
    return 0;
}
