/* The frames that a muster store and its engine's clients exchange. Pure: bytes to frames and back.
 *
 * A frame is `u32 length, u8 type, u8 0, u16 0, u32 id`, then its fields. `length` counts what comes behind it. All
 * numbers are little-endian; bytes are a u32 count and then so many. The id is the client's, and comes back with the
 * answer; pushes have the id 0. Fields, in order, with the members of struct mu_frame that hold them:
 *
 *   to the server
 *     HELLO    u32 version_min, u32 version_max, bytes run_id, bytes node, bytes proof, u32 only (engine=only)
 *     ATTACH   u64 lease                            its DONE tells of the lease's last transaction: `last` is its id
 *     GRANT    u64 lease, u32 ttl_ms, u32 bound, bytes secret
 *     KEEP     u64 lease                            0: no lease; it only shows that we are there
 *     REVOKE   u64 lease, bytes secret, u64 + bytes + bytes: lease, key and value of mark (no key: none)
 *     LOAD     u32 watch, bytes key                 KVS, the last with the answer to it; then EVENTS
 *     UNWATCH  u32 watch
 *     RANGE    u32 prefix, u32 limit, bytes key     KVS; a limit that is not 0: the first so many
 *     TXN      u32 + compares, u32 + then, u32 + otherwise
 *       a compare   u32 kind, u64 revision, bytes key
 *       an op       u32 kind, u64 lease, bytes key, bytes value (DOCUMENT and YIELD: engine.h, without a key)
 *   to the client
 *     WELCOME  u32 version, u64 epoch, u64 revision, bytes run_id, bytes node (the host's), bytes your_addr,
 *              bytes my_addr, u32 moved (the job meets in a document of the store)
 *     DONE     u32 code, u32 held, u64 revision, u32 last, bytes text (of an error)
 *     KVS      u32 more, u64 revision, u32 + kvs
 *       a kv        u64 create, u64 mod, u64 lease, bytes key, bytes value
 *     EVENTS   u32 watch, u64 revision, u32 + changes
 *       a change    u32 kind (0: put; else 1 + mu_engine_end), u64 ago_ms (since its lease was heard), then a kv
 *     STALE    u32 watch                            changes were lost: load again
 *     CHALLENGE bytes nonce                         to a HELLO without a proof: say it again, with one (token.h)
 *
 * A frame of an unknown type, with a count or length that does not fit, or with bytes left over is an error: the
 * connection is of no more use. */
#ifndef MU_STORE_FRAMES_H
#define MU_STORE_FRAMES_H

#include "base/arena.h"
#include "base/error.h"
#include "store/engine.h"

#define MU_FRAME_VERSION 1            /* the newest that we speak */
#define MU_FRAME_BYTES_MAX (4u << 20) /* of a whole frame */
#define MU_FRAME_HEAD_BYTES 12
#define MU_FRAME_KVS_MAX (1u << 17) /* of one frame */
#define MU_FRAME_TEXT_MAX 512       /* bytes of an address, a name, a proof or an error */

#define MU_FRAMES(X)                                                                                                   \
    X(HELLO, "HELLO")                                                                                                  \
    X(ATTACH, "ATTACH")                                                                                                \
    X(GRANT, "GRANT")                                                                                                  \
    X(KEEP, "KEEP")                                                                                                    \
    X(REVOKE, "REVOKE")                                                                                                \
    X(LOAD, "LOAD")                                                                                                    \
    X(UNWATCH, "UNWATCH")                                                                                              \
    X(RANGE, "RANGE")                                                                                                  \
    X(TXN, "TXN")                                                                                                      \
    X(WELCOME, "WELCOME")                                                                                              \
    X(DONE, "DONE")                                                                                                    \
    X(KVS, "KVS")                                                                                                      \
    X(EVENTS, "EVENTS")                                                                                                \
    X(STALE, "STALE")                                                                                                  \
    X(CHALLENGE, "CHALLENGE")

enum mu_frame_type { /* on the wire 1 is added */
#define X(name, text) MU_FRAME_##name,
                     MU_FRAMES(X)
#undef X
                         MU_FRAMES_COUNT,
};

struct mu_frame { /* zeroed, and then what is needed; read: borrows from the bytes and the arena */
    enum mu_frame_type type;
    uint32_t id;
    uint32_t version_min, version_max, version;
    uint64_t epoch, lease;
    int64_t revision;
    uint32_t ttl_ms, watch, limit, last;
    uint32_t code; /* enum mu_engine_code */
    bool bound, prefix, held, more, moved, only;
    struct mu_slice run_id, node, proof, nonce, secret, key, text;
    struct mu_slice your_addr, my_addr; /* of the client and of the server, as the server sees them; without a port */
    struct mu_engine_op mark;           /* PUT; REVOKE alone */
    struct mu_engine_txn txn;
    const struct mu_engine_kv *kvs;
    size_t kvs_count;
    const struct mu_engine_change *changes;
    size_t changes_count;
};

/* What is spoken with a peer that speaks versions up to `version_max`: the highest that both know. */
static inline uint32_t mu_frame_version(uint32_t version_max)
{
    return version_max < MU_FRAME_VERSION ? version_max : MU_FRAME_VERSION;
}

/* How long the frame is that these bytes begin with; 0: not known yet. Above MU_FRAME_BYTES_MAX, or below
 * MU_FRAME_HEAD_BYTES: it is none. */
size_t mu_frame_length(struct mu_slice bytes);
/* One whole frame. MUSTER_EPROTOCOL, saying which field is wrong; MUSTER_ENOMEM. Lists lie in the arena. */
int mu_frame_read(struct mu_slice bytes, struct mu_arena *arena, struct mu_frame *ret_frame,
                  struct muster_error *reterr);
/* Behind what is there. MUSTER_ELIMIT: larger than a frame may be, or `len_max`; MUSTER_ENOMEM. Then `out` is as it
 * was. */
int mu_frame_write(const struct mu_frame *frame, struct mu_buf *out, size_t len_max);
/* How many bytes a kv takes in a frame. */
size_t mu_frame_kv_bytes(const struct mu_engine_kv *one);

const char *mu_frame_type_text(enum mu_frame_type value);

#endif
