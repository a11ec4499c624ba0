/* Addresses and networks as text and as bytes. Pure: nothing here asks a resolver. */
#ifndef MU_STORE_NET_H
#define MU_STORE_NET_H

#include "muster.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define MU_ADDR_TEXT_MAX 80
#define MU_ADDR_BYTES 16
#define MU_HOST_MAX 256

/* An IPv6 or IPv4 address with its port. */
union mu_addr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

socklen_t mu_addr_len(const union mu_addr *addr);
uint16_t mu_addr_port(const union mu_addr *addr);
void mu_addr_set_port(union mu_addr *addr, uint16_t port);
bool mu_addr_is_any(const union mu_addr *addr); /* 0.0.0.0 or :: */
bool mu_addr_is_link_local(const union mu_addr *addr);
void mu_addr_bytes(const union mu_addr *addr,
                   unsigned char bytes[static MU_ADDR_BYTES]); /* without the port; IPv4 mapped into IPv6 */
bool mu_addr_is_loopback(const union mu_addr *addr);
bool mu_addr_same_host(const union mu_addr *a,
                       const union mu_addr *b); /* whatever their ports; ::ffff:1.2.3.4 is 1.2.3.4. Two link-local
                                                 * addresses are of different hosts where both name their link, and it
                                                 * is not the same one */

/* "192.0.2.1:80", "[2001:db8::1]:80"; an IPv4 address in IPv6 form is shown as IPv4. Returns `text`. */
const char *mu_addr_format(const union mu_addr *addr, char text[static MU_ADDR_TEXT_MAX]);

#define MU_ENDPOINT_MAX (MU_HOST_MAX + 8) /* "[host]:port" */

/* A name or an address with its port: "node7:80", "[2001:db8::1]:80". Returns `text`. */
const char *mu_endpoint_format(const char *host, uint16_t port, char text[static MU_ENDPOINT_MAX]);

/* An address without port and brackets, as mu_addr_parse() takes it: "fe80::1%eth0" where it belongs to one link.
 * False: there is no room for it. */
bool mu_addr_host(const union mu_addr *addr, char *text, size_t room);

/* Numeric addresses only, a scope ("%eth0") included. */
bool mu_addr_parse(const char *host, uint16_t port, union mu_addr *ret_addr);

/* A network such as 10.0.0.0/8, fd00::/8 or a single address. IPv4 is kept in its IPv6 form. */
struct mu_network {
    unsigned char bytes[16];
    unsigned bits;
};

int mu_network_parse(const char *text, struct mu_network *ret_network, struct muster_error *reterr);
bool mu_network_has(const struct mu_network *network, const union mu_addr *addr);

/* "HOST:PORT", "[V6]:PORT", or either without the port, or a bare IPv6 address. The port is then `port_default`;
 * MUSTER_EINVAL if that is 0. */
int mu_endpoint_parse(const char *text, uint16_t port_default, char ret_host[static MU_HOST_MAX], uint16_t *ret_port,
                      struct muster_error *reterr);
bool mu_port_parse(const char *text, uint16_t *ret_port); /* decimal digits only, 0..65535 */

#endif
