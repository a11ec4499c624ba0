/* The few TCPStore requests that the load generator sends, laid out byte by byte.
 *
 * Every wire_* function appends one request to a message, so that two requests may leave in one send.
 * Integers go out in host order, as PyTorch's own clients do; the programs here refuse to build on a big-
 * endian host. */
#ifndef MUSTER_BENCH_WIRE_H
#define MUSTER_BENCH_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define WIRE_MESSAGE_MAX 512u
#define WIRE_KEY_MAX 96u

/* Reply sizes in bytes; a GET's is WIRE_GET_REPLY plus the value. */
#define WIRE_PING_REPLY 4u
#define WIRE_ADD_REPLY 8u
#define WIRE_STATUS_REPLY 1u
#define WIRE_GET_REPLY 8u

enum wire_dialect {
    WIRE_V,  /* 2.5 and later: VALIDATE and PING come first */
    WIRE_L0, /* 1.13 and 2.0: no greeting, codes one lower */
};

struct wire_message {
    uint32_t len;
    unsigned char bytes[WIRE_MESSAGE_MAX];
};

/* What a client says first, chosen so that the server must answer it: VALIDATE and PING, or in L0, which has
 * neither, a CHECK of no keys. */
void wire_hello(struct wire_message *m, enum wire_dialect dialect, uint32_t nonce);
uint32_t wire_hello_reply(enum wire_dialect dialect);

void wire_set(struct wire_message *m, enum wire_dialect dialect, const char *key, const void *value, size_t len);
void wire_get(struct wire_message *m, enum wire_dialect dialect, const char *key);
void wire_add(struct wire_message *m, enum wire_dialect dialect, const char *key, int64_t delta);
void wire_check(struct wire_message *m, enum wire_dialect dialect, const char *key);
void wire_check_nothing(struct wire_message *m, enum wire_dialect dialect);
void wire_wait(struct wire_message *m, enum wire_dialect dialect, const char *key);

/* Reads the 8-byte integer at the front of a reply. */
int64_t wire_i64(const unsigned char *reply);

#endif
