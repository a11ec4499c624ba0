/* Sockets to listen on. */
#ifndef MU_STORE_LISTEN_H
#define MU_STORE_LISTEN_H

#include "store/net.h"

/* Opens a stream socket bound to `host`, which may be a name; NULL is every address of both families. Not yet
 * listening. Port 0 is any free one. The caller owns *ret_fd. */
int mu_listen_open(const char *host, uint16_t port, int *ret_fd, struct muster_error *reterr);

/* Makes sure that `fd` is a bound stream socket of `port` (0: any) and prepares it; it stays the caller's. */
int mu_listen_adopt(int fd, uint16_t port, struct muster_error *reterr);

int mu_listen_address(int fd, union mu_addr *ret_addr, struct muster_error *reterr);

/* A port that is free on every address, by binding and closing: for somebody else to listen on soon. */
int mu_listen_free_port(uint16_t *ret_port, struct muster_error *reterr);

#endif
