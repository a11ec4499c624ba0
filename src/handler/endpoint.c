/* Endpoints and option strings, read as PyTorch reads them. Pure. */
#include "handler/handler.h"

#include "base/secret.h"
#include "base/utf8.h"

enum {
    ENDPOINT_BYTES_MAX = MU_RDZV_HOST_MAX - 1, /* without the blanks around it; so any host of it fits */
    OPTIONS_BYTES_MAX = 65536,
    PORT_DIGITS_MAX = 5,
};

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

struct mu_slice mu_rdzv_trim(struct mu_slice text)
{
    while (text.len > 0 && is_blank(text.data[0]))
        text = mu_slice(text.data + 1, text.len - 1);
    while (text.len > 0 && is_blank(text.data[text.len - 1]))
        text.len--;
    return text;
}

/* ---- Endpoints ---- */

/* A letter, digit or underscore of any script. Beyond ASCII this is as near as one gets without tables: everything but
 * the C1 controls, the spaces, and the blocks that hold separators, marks and noncharacters only. A resolver has the
 * last word on a host name anyway. */
static bool is_word(uint32_t point)
{
    if (point < 0x80)
        return (point >= '0' && point <= '9') || (point >= 'A' && point <= 'Z') || (point >= 'a' && point <= 'z') ||
               point == '_';
    return point > 0xa0 &&                                /* C1 controls, no-break space */
           point != 0xd7 && point != 0xf7 &&              /* multiplication and division signs */
           point != 0x1680 &&                             /* ogham space */
           !(point >= 0x2000 && point <= 0x206f) &&       /* general punctuation: spaces, separators, directions */
           !(point >= 0x3000 && point <= 0x3003) &&       /* ideographic space, comma, full stop, ditto */
           point != 0xfeff && (point & 0xfffe) != 0xfffe; /* byte order mark, noncharacters */
}

static bool is_host(struct mu_slice text)
{
    size_t len;

    if (text.len == 0)
        return false;
    for (; text.len > 0; text = mu_slice(text.data + len, text.len - len)) {
        uint32_t point;

        len = mu_utf8_len(text.data, text.len);
        if (len == 0)
            return false;
        point = mu_utf8_point(text.data, len);
        if (!(is_word(point) || point == '.' || point == ':' || point == '-'))
            return false;
    }
    return true;
}

static bool is_enclosed(struct mu_slice text)
{
    return text.len > 1 && text.data[0] == '[' && text.data[text.len - 1] == ']';
}

static bool read_port(struct mu_slice text, int *ret_port)
{
    int64_t port = 0;

    if (text.len > PORT_DIGITS_MAX || !mu_slice_number(text, UINT16_MAX, &port))
        return false;
    *ret_port = (int)port;
    return true;
}

int mu_rdzv_endpoint_parse(const char *endpoint, int port_default, char ret_host[static MU_RDZV_HOST_MAX],
                           int *ret_port, struct muster_error *reterr)
{
    struct mu_slice whole = mu_rdzv_trim(mu_slice_str(endpoint == NULL ? "" : endpoint)), host = whole;
    const char *colon = is_enclosed(whole) || whole.len == 0 ? NULL : memrchr(whole.data, ':', whole.len);
    char shown[MU_SECRET_SHOWN_MAX];
    int port = port_default;

    if (whole.len > ENDPOINT_BYTES_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "endpoint '%s': it is %zu bytes long, more than %d",
                       mu_secret_hide(whole, shown, sizeof shown), whole.len, ENDPOINT_BYTES_MAX);
    if (whole.len == 0)
        host = mu_slice_str("localhost");
    if (colon != NULL) {
        host.len = (size_t)(colon - whole.data);
        if (!read_port(mu_slice(colon + 1, whole.len - host.len - 1), &port))
            return mu_fail(reterr, MUSTER_EINVAL, "endpoint '%s': the port must be a number from 0 to 65535",
                           mu_secret_hide(whole, shown, sizeof shown));
    }
    if (is_enclosed(host))
        host = mu_slice(host.data + 1, host.len - 2);
    if (!is_host(host))
        return mu_fail(reterr, MUSTER_EINVAL,
                       "endpoint '%s': the host must be a name or an address: letters, digits, '_', '.', ':', '-'; "
                       "expected HOST[:PORT] or [IPV6][:PORT]",
                       mu_secret_hide(whole, shown, sizeof shown));
    memcpy(ret_host, host.data, host.len);
    ret_host[host.len] = '\0';
    *ret_port = port;
    return 0;
}

/* ---- Options ---- */

/* `before`: the key of the option before it, empty if there is none. */
static int no_value(struct mu_slice key, struct mu_slice before, struct muster_error *reterr)
{
    char shown[MU_SECRET_SHOWN_MAX];

    if (mu_secret_is_key(before)) /* what comes is perhaps a part of that */
        return mu_fail(reterr, MUSTER_EINVAL,
                       "what follows option '%s' is no option; a value cannot have a comma in it",
                       mu_secret_hide(before, shown, sizeof shown));
    (void)mu_secret_hide(key, shown, sizeof shown);
    return mu_fail(reterr, MUSTER_EINVAL, "option '%s' has no value; expected %s=VALUE", shown, shown);
}

static int read_option(struct mu_slice part, struct mu_slice whole, struct mu_slice *before,
                       mu_rdzv_on_option *on_option, void *ctx, struct muster_error *reterr)
{
    const char *equals = part.len == 0 ? NULL : memchr(part.data, '=', part.len);
    struct mu_slice key = mu_rdzv_trim(mu_slice(part.data, equals == NULL ? part.len : (size_t)(equals - part.data)));
    struct mu_slice value = { .data = "", .len = 0 };
    char shown[MU_SECRET_SHOWN_MAX];

    if (key.len == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "options '%s': an option has no name; expected KEY=VALUE[,KEY=VALUE...]",
                       mu_secret_hide(whole, shown, sizeof shown));
    if (equals != NULL)
        value = mu_rdzv_trim(mu_slice(equals + 1, part.len - (size_t)(equals + 1 - part.data)));
    if (value.len == 0)
        return no_value(key, *before, reterr);
    *before = key;
    return on_option(ctx, key, value, reterr);
}

int mu_rdzv_options_parse(const char *options, mu_rdzv_on_option *on_option, void *ctx, struct muster_error *reterr)
{
    struct mu_slice whole = mu_rdzv_trim(mu_slice_str(options == NULL ? "" : options)), rest = whole,
                    before = mu_slice("", 0);
    char shown[MU_SECRET_SHOWN_MAX];
    int rc = 0;

    if (whole.len > OPTIONS_BYTES_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "options '%s': they are %zu bytes long, more than %d",
                       mu_secret_hide(whole, shown, sizeof shown), whole.len, OPTIONS_BYTES_MAX);
    for (bool more = whole.len > 0; more && rc == 0;) {
        const char *comma = rest.len == 0 ? NULL : memchr(rest.data, ',', rest.len);
        struct mu_slice part = mu_slice(rest.data, comma == NULL ? rest.len : (size_t)(comma - rest.data));

        more = comma != NULL;
        if (more)
            rest = mu_slice(comma + 1, rest.len - part.len - 1);
        rc = read_option(part, whole, &before, on_option, ctx, reterr);
    }
    return rc;
}
