/* Does this machine own an address? */
#ifndef MU_HANDLER_LOCAL_ADDRESSES_H
#define MU_HANDLER_LOCAL_ADDRESSES_H

#include "store/net.h"

/* True for loopback, for "any" (0.0.0.0, ::) and for the addresses of this machine's interfaces, if a socket can be
 * bound there. The port does not count. Nothing is sent. */
bool mu_owns_address(const union mu_addr *addr);

/* Addresses of this machine's interfaces that can be bound, loopback and link-local ones excepted; at most `room`.
 * Returns how many. */
size_t mu_own_addresses(union mu_addr *ret_addrs, size_t room);

#endif
