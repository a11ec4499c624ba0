/* Sockets to listen on. */
#ifndef MU_STORE_LISTEN_H
#define MU_STORE_LISTEN_H

#include "store/net.h"

#define MU_LISTEN_MAX 64        /* addresses of one server */
#define MU_LISTEN_BACKLOG 65535 /* cut to the kernel's maximum */
#define MU_LISTEN_ANY "any"     /* every address of both families */

struct mu_listen_sockets {
    int fds[MU_LISTEN_MAX];
    size_t count;
};

/* Opens listening sockets on one port for every address in `hosts`, which is a list with commas: addresses, names
 * (every address of a name), "localhost" (both loopback addresses). NULL or "any" is every address; 0.0.0.0 is every
 * one of IPv4 and :: of IPv6, and includes the others that are named. With port 0 a port is found that is free on all
 * of them. An address that this machine does not have is left out if it comes from a name or is a loopback address, as
 * long as there is another one. The caller owns the sockets, and none of them on failure. */
int mu_listen_open_all(const char *hosts, uint16_t port, struct mu_listen_sockets *ret_sockets,
                       struct muster_error *reterr);
void mu_listen_close_all(struct mu_listen_sockets *sockets);

/* Opens a stream socket bound to `host`, which may be a name; NULL is every address of both families. Not yet
 * listening. Port 0 is any free one. The caller owns *ret_fd. */
int mu_listen_open(const char *host, uint16_t port, int *ret_fd, struct muster_error *reterr);

/* Makes sure that `fd` is a bound stream socket of `port` (0: any) and prepares it; it stays the caller's. */
int mu_listen_adopt(int fd, uint16_t port, struct muster_error *reterr);

int mu_listen_address(int fd, union mu_addr *ret_addr, struct muster_error *reterr);

/* A port that is free on every address, found by binding and closing: for another process to listen on soon. */
int mu_listen_free_port(uint16_t *ret_port, struct muster_error *reterr);
/* The same for *port, if that is not 0: it must be free. */
int mu_listen_probe(uint16_t *port, struct muster_error *reterr);

#endif
