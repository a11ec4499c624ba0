/* Addresses and networks as text and as bytes. */
#include "store/net.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_DIGITS_MAX = 5, V4_OFFSET_BITS = 96 };

socklen_t mu_addr_len(const union mu_addr *addr)
{
    return addr->any.sa_family == AF_INET ? sizeof addr->v4 : sizeof addr->v6;
}

uint16_t mu_addr_port(const union mu_addr *addr)
{
    return ntohs(addr->any.sa_family == AF_INET ? addr->v4.sin_port : addr->v6.sin6_port);
}

void mu_addr_set_port(union mu_addr *addr, uint16_t port)
{
    if (addr->any.sa_family == AF_INET)
        addr->v4.sin_port = htons(port);
    else
        addr->v6.sin6_port = htons(port);
}

bool mu_addr_is_any(const union mu_addr *addr)
{
    return addr->any.sa_family == AF_INET ? addr->v4.sin_addr.s_addr == htonl(INADDR_ANY)
                                          : IN6_IS_ADDR_UNSPECIFIED(&addr->v6.sin6_addr);
}

bool mu_addr_is_link_local(const union mu_addr *addr)
{
    if (addr->any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LINKLOCAL(&addr->v6.sin6_addr);
    return ntohl(addr->v4.sin_addr.s_addr) >> 16 == 0xa9fe; /* 169.254.0.0/16 */
}

void mu_addr_bytes(const union mu_addr *addr, unsigned char bytes[static MU_ADDR_BYTES])
{
    if (addr->any.sa_family == AF_INET6) {
        memcpy(bytes, &addr->v6.sin6_addr, 16);
        return;
    }
    memset(bytes, 0, 10);
    bytes[10] = bytes[11] = 0xff;
    memcpy(bytes + 12, &addr->v4.sin_addr, 4);
}

static bool is_mapped(const unsigned char bytes[static 16])
{
    static const unsigned char prefix[12] = { [10] = 0xff, [11] = 0xff };

    return memcmp(bytes, prefix, sizeof prefix) == 0;
}

bool mu_addr_is_loopback(const union mu_addr *addr)
{
    static const unsigned char one[16] = { [15] = 1 };
    unsigned char bytes[16];

    mu_addr_bytes(addr, bytes);
    return is_mapped(bytes) ? bytes[12] == 127 : memcmp(bytes, one, sizeof one) == 0;
}

bool mu_addr_same_host(const union mu_addr *a, const union mu_addr *b)
{
    unsigned char left[16], right[16];

    mu_addr_bytes(a, left);
    mu_addr_bytes(b, right);
    if (memcmp(left, right, sizeof left) != 0)
        return false;
    return a->any.sa_family != AF_INET6 || !mu_addr_is_link_local(a) || a->v6.sin6_scope_id == 0 ||
           b->v6.sin6_scope_id == 0 || a->v6.sin6_scope_id == b->v6.sin6_scope_id;
}

const char *mu_addr_format(const union mu_addr *addr, char text[static MU_ADDR_TEXT_MAX])
{
    unsigned char bytes[16];
    char host[INET6_ADDRSTRLEN];

    mu_addr_bytes(addr, bytes);
    if (is_mapped(bytes)) {
        (void)inet_ntop(AF_INET, bytes + 12, host, sizeof host);
        (void)snprintf(text, MU_ADDR_TEXT_MAX, "%s:%u", host, (unsigned)mu_addr_port(addr));
    } else {
        (void)inet_ntop(AF_INET6, bytes, host, sizeof host);
        (void)snprintf(text, MU_ADDR_TEXT_MAX, "[%s]:%u", host, (unsigned)mu_addr_port(addr));
    }
    return text;
}

const char *mu_endpoint_format(const char *host, uint16_t port, char text[static MU_ENDPOINT_MAX])
{
    bool is_v6 = strchr(host, ':') != NULL;

    (void)snprintf(text, MU_ENDPOINT_MAX, is_v6 ? "[%s]:%u" : "%s:%u", host, (unsigned)port);
    return text;
}

/* "%eth0" for an address that is one only on that link, else "". */
static void format_scope(const union mu_addr *addr, char text[static IF_NAMESIZE + 1])
{
    text[0] = '\0';
    if (addr->any.sa_family != AF_INET6 || addr->v6.sin6_scope_id == 0)
        return;
    if (if_indextoname(addr->v6.sin6_scope_id, text + 1) != NULL)
        text[0] = '%';
}

bool mu_addr_host(const union mu_addr *addr, char *text, size_t room)
{
    char whole[MU_ADDR_TEXT_MAX], scope[IF_NAMESIZE + 1];
    const char *start = mu_addr_format(addr, whole), *end = strrchr(whole, ':');

    if (*start == '[') {
        start++;
        end--;
    }
    format_scope(addr, scope);
    return (size_t)snprintf(text, room, "%.*s%s", (int)(end - start), start, scope) < room;
}

bool mu_addr_parse(const char *host, uint16_t port, union mu_addr *ret_addr)
{
    union mu_addr addr = { 0 };
    char bare[INET6_ADDRSTRLEN];
    const char *scope = strchr(host, '%');
    size_t len = scope == NULL ? strlen(host) : (size_t)(scope - host);

    if (len >= sizeof bare)
        return false;
    memcpy(bare, host, len);
    bare[len] = '\0';
    if (scope == NULL && inet_pton(AF_INET, bare, &addr.v4.sin_addr) == 1) {
        addr.v4.sin_family = AF_INET;
        addr.v4.sin_port = htons(port);
    } else if (inet_pton(AF_INET6, bare, &addr.v6.sin6_addr) == 1) {
        addr.v6.sin6_family = AF_INET6;
        addr.v6.sin6_port = htons(port);
        if (scope != NULL) {
            addr.v6.sin6_scope_id = if_nametoindex(scope + 1);
            if (addr.v6.sin6_scope_id == 0)
                return false;
        }
    } else {
        return false;
    }
    *ret_addr = addr;
    return true;
}

static bool parse_digits(const char *text, size_t digits_max, unsigned long max, unsigned long *ret_number)
{
    size_t len = strlen(text);

    if (len == 0 || len > digits_max || strspn(text, "0123456789") != len)
        return false;
    *ret_number = strtoul(text, NULL, 10);
    return *ret_number <= max;
}

bool mu_port_parse(const char *text, uint16_t *ret_port)
{
    unsigned long port;

    if (!parse_digits(text, PORT_DIGITS_MAX, UINT16_MAX, &port))
        return false;
    *ret_port = (uint16_t)port;
    return true;
}

static bool bits_beyond_are_zero(const struct mu_network *network)
{
    for (unsigned bit = network->bits; bit < 128; bit++) {
        if (network->bytes[bit / 8] & (0x80U >> bit % 8))
            return false;
    }
    return true;
}

int mu_network_parse(const char *text, struct mu_network *ret_network, struct muster_error *reterr)
{
    const char *slash = strchr(text, '/');
    size_t len = slash == NULL ? strlen(text) : (size_t)(slash - text);
    struct mu_network network = { .bits = 128 };
    char host[INET6_ADDRSTRLEN] = "";
    union mu_addr addr;
    unsigned long bits, bits_max;

    if (len < sizeof host) {
        memcpy(host, text, len);
        host[len] = '\0';
    }
    if (len >= sizeof host || strchr(host, '%') != NULL || !mu_addr_parse(host, 0, &addr))
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' is not a network like 10.0.0.0/8 or fd00::/8", text);
    mu_addr_bytes(&addr, network.bytes);
    if (slash != NULL) {
        bits_max = addr.any.sa_family == AF_INET ? 32 : 128;
        if (!parse_digits(slash + 1, 3, bits_max, &bits))
            return mu_fail(reterr, MUSTER_EINVAL, "'%s': the prefix length must be 0 to %lu", text, bits_max);
        network.bits = (unsigned)bits + (addr.any.sa_family == AF_INET ? V4_OFFSET_BITS : 0);
    }
    if (!bits_beyond_are_zero(&network))
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' has address bits set beyond its prefix length", text);
    *ret_network = network;
    return 0;
}

bool mu_network_has(const struct mu_network *network, const union mu_addr *addr)
{
    unsigned char bytes[16];
    unsigned whole = network->bits / 8, rest = network->bits % 8;

    mu_addr_bytes(addr, bytes);
    if (memcmp(bytes, network->bytes, whole) != 0)
        return false;
    return rest == 0 || (bytes[whole] ^ network->bytes[whole]) >> (8 - rest) == 0;
}

/* Where the host ends and the port, if there is one, begins. */
static bool split_endpoint(const char *text, const char **ret_host, size_t *ret_host_len, const char **ret_port)
{
    const char *colon = strrchr(text, ':'), *bracket;

    *ret_host = text;
    *ret_host_len = strlen(text);
    *ret_port = NULL;
    if (text[0] == '[') {
        bracket = strchr(text, ']');
        if (bracket == NULL || (bracket[1] != '\0' && bracket[1] != ':'))
            return false;
        *ret_host = text + 1;
        *ret_host_len = (size_t)(bracket - text - 1);
        *ret_port = bracket[1] == ':' ? bracket + 2 : NULL;
    } else if (colon != NULL && strchr(text, ':') == colon) { /* two colons without brackets: a bare IPv6 address */
        *ret_host_len = (size_t)(colon - text);
        *ret_port = colon + 1;
    } else if (colon != NULL) {
        return mu_addr_parse(text, 0, &(union mu_addr){ 0 });
    }
    return true;
}

int mu_endpoint_parse(const char *text, uint16_t port_default, char ret_host[static MU_HOST_MAX], uint16_t *ret_port,
                      struct muster_error *reterr)
{
    const char *host, *port_text;
    uint16_t port = port_default;
    size_t host_len;

    if (!split_endpoint(text, &host, &host_len, &port_text))
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' is not of the form HOST:PORT or [ADDRESS]:PORT", text);
    if (host_len == 0 || host_len >= MU_HOST_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "'%s': the host must be 1 to %d bytes long", text, MU_HOST_MAX - 1);
    if (port_text != NULL && !mu_port_parse(port_text, &port))
        return mu_fail(reterr, MUSTER_EINVAL, "'%s': the port must be a number from 0 to 65535", text);
    if (port == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "'%s': a port is needed (HOST:PORT)", text);
    memcpy(ret_host, host, host_len);
    ret_host[host_len] = '\0';
    *ret_port = port;
    return 0;
}
