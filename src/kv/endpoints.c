/* The servers of a cluster. */
#include "kv/endpoints.h"

#include "base/secret.h"
#include "base/slice.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <strings.h>

static struct mu_slice trim(struct mu_slice text)
{
    while (text.len > 0 && isspace((unsigned char)text.data[0])) {
        text.data++;
        text.len--;
    }
    while (text.len > 0 && isspace((unsigned char)text.data[text.len - 1]))
        text.len--;
    return text;
}

static bool takes_away(struct mu_slice *text, const char *start)
{
    size_t len = strlen(start);

    if (text->len < len || strncasecmp(text->data, start, len) != 0)
        return false;
    text->data += len;
    text->len -= len;
    return true;
}

static bool read_port(struct mu_slice text, unsigned *ret_port)
{
    int64_t port = 0;

    if (text.len > 5 || !mu_slice_number(text, UINT16_MAX, &port) || port == 0)
        return false;
    *ret_port = (unsigned)port;
    return true;
}

/* Characters that a host's name or address may have: none that means something else in a URL. */
static bool is_host(struct mu_slice host, bool six)
{
    for (size_t i = 0; i < host.len; i++) {
        unsigned char c = (unsigned char)host.data[i];

        if (six ? !isxdigit(c) && c != ':' && c != '.' : !isalnum(c) && c != '-' && c != '.' && c != '_')
            return false;
    }
    return host.len > 0;
}

static bool split(struct mu_slice text, struct mu_slice *ret_host, unsigned *ret_port)
{
    bool six = text.data[0] == '[';
    const char *end = six ? memchr(text.data, ']', text.len) : memchr(text.data, ':', text.len);
    struct mu_slice rest = { NULL, 0 };

    if (six && end == NULL)
        return false;
    if (end != NULL) {
        rest = mu_slice(end + six, text.len - (size_t)(end + six - text.data));
        text.len = (size_t)(end - text.data);
    }
    if (six)
        text = mu_slice(text.data + 1, text.len - 1);
    *ret_host = text;
    if (!is_host(text, six))
        return false;
    return rest.len == 0 || (rest.data[0] == ':' && read_port(mu_slice(rest.data + 1, rest.len - 1), ret_port));
}

/* `whole`: of which it is a part. */
static int parse_one(struct mu_slice text, struct mu_slice whole, const char *protocol, unsigned port,
                     char url[static MU_ENDPOINT_TEXT_MAX], struct muster_error *reterr)
{
    struct mu_slice left = trim(text), host;
    char shown[MU_SECRET_SHOWN_MAX];
    int len;

    if (takes_away(&left, "http://"))
        protocol = "http";
    else if (takes_away(&left, "https://"))
        protocol = "https";
    if (left.len > 0 && left.data[left.len - 1] == '/')
        left.len--;
    if (left.len == 0 || !split(left, &host, &port))
        return mu_fail(reterr, MUSTER_EINVAL, "endpoint '%s' is not [http[s]://]HOST[:PORT] (IPv6 in brackets)",
                       mu_secret_hide(memchr(whole.data, '@', whole.len) != NULL ? whole : text, shown, sizeof shown));
    len = snprintf(url, MU_ENDPOINT_TEXT_MAX, left.data[0] == '[' ? "%s://[%.*s]:%u" : "%s://%.*s:%u", protocol,
                   (int)(host.len < MU_ENDPOINT_TEXT_MAX ? host.len : MU_ENDPOINT_TEXT_MAX), host.data, port);
    if (len >= MU_ENDPOINT_TEXT_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "endpoint '%.40s...' is too long", host.data);
    return 0;
}

int mu_endpoints_parse(const char *text, const char *protocol, uint16_t port_default,
                       struct mu_endpoints *ret_endpoints, struct muster_error *reterr)
{
    struct mu_slice whole = mu_slice_str(text);

    assert(strcmp(protocol, "http") == 0 || strcmp(protocol, "https") == 0);
    ret_endpoints->count = 0;
    for (;;) {
        size_t len = strcspn(text, ",");
        int rc;

        if (ret_endpoints->count == MU_ENDPOINTS_MAX)
            return mu_fail(reterr, MUSTER_ELIMIT, "there are more than %d endpoints", MU_ENDPOINTS_MAX);
        rc = parse_one(mu_slice(text, len), whole, protocol, port_default, ret_endpoints->urls[ret_endpoints->count],
                       reterr);
        if (rc < 0)
            return rc;
        ret_endpoints->count++;
        if (text[len] == '\0')
            return 0;
        text += len + 1;
    }
}

bool mu_tries_next(struct mu_tries *tries, unsigned count, unsigned current, unsigned *ret_endpoint)
{
    assert(count > 0 && count <= MU_ENDPOINTS_MAX && current < count);
    for (unsigned i = 0; i < count; i++) {
        unsigned endpoint = (current + i) % count;

        if ((tries->tried & UINT32_C(1) << endpoint) != 0)
            continue;
        tries->tried |= UINT32_C(1) << endpoint;
        *ret_endpoint = endpoint;
        return true;
    }
    tries->tried = 0;
    tries->rounds++;
    return false;
}

uint64_t mu_tries_pause_ms(const struct mu_tries *tries, uint64_t first_ms, uint64_t max_ms, struct mu_rng *rng)
{
    uint64_t pause_ms = first_ms;

    for (unsigned i = 1; i < tries->rounds && pause_ms < max_ms; i++)
        pause_ms *= 2;
    return mu_rng_jitter(rng, pause_ms < max_ms ? pause_ms : max_ms, 50);
}
