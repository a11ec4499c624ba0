/* Builds the requests of wire.h. A message that would not fit is our own mistake and asserts. */
#include "wire.h"

#include <assert.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire carries little-endian integers");

/* The codes of V; those of L0 are one lower, since it has no VALIDATE at 0. */
enum {
    CODE_VALIDATE = 0,
    CODE_SET = 1,
    CODE_GET = 3,
    CODE_ADD = 4,
    CODE_CHECK = 5,
    CODE_WAIT = 6,
    CODE_PING = 13,
};

static const uint32_t validate_magic = 0x3C85F7CEu;

static void put(struct wire_message *m, const void *data, size_t len)
{
    assert(len <= sizeof(m->bytes) - m->len);
    memcpy(m->bytes + m->len, data, len);
    m->len += (uint32_t)len;
}

static void put_u64(struct wire_message *m, uint64_t value)
{
    put(m, &value, sizeof(value));
}

static void put_bytes(struct wire_message *m, const void *data, size_t len)
{
    put_u64(m, len);
    put(m, data, len);
}

static void put_code(struct wire_message *m, enum wire_dialect dialect, int code)
{
    unsigned char byte = (unsigned char)(dialect == WIRE_L0 ? code - 1 : code);

    put(m, &byte, 1);
}

void wire_hello(struct wire_message *m, enum wire_dialect dialect, uint32_t nonce)
{
    if (dialect == WIRE_L0) {
        wire_check_nothing(m, dialect);
        return;
    }
    put_code(m, dialect, CODE_VALIDATE);
    put(m, &validate_magic, sizeof(validate_magic));
    put_code(m, dialect, CODE_PING);
    put(m, &nonce, sizeof(nonce));
}

uint32_t wire_hello_reply(enum wire_dialect dialect)
{
    return dialect == WIRE_L0 ? WIRE_STATUS_REPLY : WIRE_PING_REPLY;
}

void wire_set(struct wire_message *m, enum wire_dialect dialect, const char *key, const void *value, size_t len)
{
    put_code(m, dialect, CODE_SET);
    put_bytes(m, key, strlen(key));
    put_bytes(m, value, len);
}

void wire_get(struct wire_message *m, enum wire_dialect dialect, const char *key)
{
    put_code(m, dialect, CODE_GET);
    put_bytes(m, key, strlen(key));
}

void wire_add(struct wire_message *m, enum wire_dialect dialect, const char *key, int64_t delta)
{
    put_code(m, dialect, CODE_ADD);
    put_bytes(m, key, strlen(key));
    put(m, &delta, sizeof(delta));
}

void wire_check(struct wire_message *m, enum wire_dialect dialect, const char *key)
{
    put_code(m, dialect, CODE_CHECK);
    put_u64(m, 1);
    put_bytes(m, key, strlen(key));
}

void wire_check_nothing(struct wire_message *m, enum wire_dialect dialect)
{
    put_code(m, dialect, CODE_CHECK);
    put_u64(m, 0);
}

void wire_wait(struct wire_message *m, enum wire_dialect dialect, const char *key)
{
    put_code(m, dialect, CODE_WAIT);
    put_u64(m, 1);
    put_bytes(m, key, strlen(key));
}

int64_t wire_i64(const unsigned char *reply)
{
    int64_t value;

    memcpy(&value, reply, sizeof(value));
    return value;
}
