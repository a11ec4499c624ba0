/* How a client finds out the server's dialect, and which requests it knows. Pure. */
#ifndef MU_STORE_GREETING_H
#define MU_STORE_GREETING_H

#include "store/codec.h"

/* What servers of dialect V may or may not have. */
enum mu_feature { MU_FEATURE_PING = 1, MU_FEATURE_QUEUES = 2, MU_FEATURE_LIST_KEYS = 4 };

/* Which dialect to ask for next. A server that closes a connection may not know the dialect, or may have refused that
 * connection; so an answer to an older dialect is believed only if the newest is turned down a second time. */
struct mu_greeter {
    enum mu_dialect wanted; /* ask for this one only; UNKNOWN: find out */
    enum mu_dialect found;  /* an older one was answered; UNKNOWN: none yet */
    bool sure;              /* and the newest was turned down again */
};

/* `asked` was answered, or its connection closed. True: the connection is there, in that dialect. False: ask for
 * *ret_next on a new connection, or give up if that is UNKNOWN. */
bool mu_greeter_next(struct mu_greeter *greeter, enum mu_dialect asked, bool answered, enum mu_dialect *ret_next);

/* Each probe goes on a connection of its own, in one piece. */
struct mu_slice mu_greeting(enum mu_dialect dialect); /* L0, L1 or V */
enum mu_greeting_result { MU_GREETING_MORE, MU_GREETING_YES, MU_GREETING_WRONG };
/* What the bytes answered so far mean. A closed connection means: not this dialect. */
enum mu_greeting_result mu_greeting_check(enum mu_dialect dialect, struct mu_slice answer);

#define MU_FEATURE_PROBE_MAX 64
/* The bytes that ask a V server for a feature. *ret_answer_bytes of answer mean yes; one byte and a closed connection
 * mean no; a connection closed without a byte was refused for another reason. */
struct mu_slice mu_feature_probe(unsigned feature, char bytes[static MU_FEATURE_PROBE_MAX], size_t *ret_answer_bytes);

#endif
