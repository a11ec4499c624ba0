/* Descriptors: how many this process may have, and what they are for; and writing to one.
 *
 * Connections of store servers may use what all other uses leave. The counts are those of the process, as its limit
 * is: servers and agents on all threads share them. */
#ifndef MU_BASE_FILES_H
#define MU_BASE_FILES_H

#include "base/slice.h"
#include "muster.h"

#include <stddef.h>

#define MU_FILES_OWN 24              /* of any process with a server: standard streams, the loop's, listening sockets */
#define MU_FILES_MIN 32              /* below that nothing is started */
#define MU_FILES_CONNECTIONS_LEAST 8 /* there is room for these, however much is reserved */

size_t mu_files_limit(void); /* RLIMIT_NOFILE */
void mu_files_raise(void);   /* as far as the hard limit allows */
/* MUSTER_ESYSTEM, and a text that says how many more are needed, when the limit is below `needed`. */
int mu_files_check(size_t needed, struct muster_error *reterr);

/* Writes all of it: 0, or an errno value. `patient`: waits where another process has made the descriptor
 * non-blocking. */
int mu_files_write(int fd, struct mu_slice bytes, bool patient);

/* This many are needed for something else than connections. */
void mu_files_reserve(size_t count);
void mu_files_release(size_t count);

/* How many connections there may be in all servers together, and how many there are. */
size_t mu_files_connections_max(void);
size_t mu_files_connections(void);
void mu_files_connection_opened(void);
void mu_files_connection_closed(void);

#endif
