#include "store/greeting.h"

#include "base/buf.h"

#include <assert.h>
#include <string.h>

struct mu_slice mu_greeting(enum mu_dialect dialect)
{
    /* VALIDATE and four CANCEL_WAITs. A server older than 2.2 takes it for a SET with an absurd length and closes. */
    static const char v[] = "\x00\xce\xf7\x85\x3c\x0c\x0c\x0c\x0c";
    static const char l1[] = "\x0b";                                 /* CANCEL_WAIT */
    static const char l0[] = "\x04\x00\x00\x00\x00\x00\x00\x00\x00"; /* CHECK of no keys */

    switch (dialect) {
    case MU_DIALECT_V:
        return mu_slice(v, sizeof v - 1);
    case MU_DIALECT_L1:
        return mu_slice(l1, sizeof l1 - 1);
    case MU_DIALECT_L0:
    case MU_DIALECT_L:
    case MU_DIALECT_UNKNOWN:
        break;
    }
    return mu_slice(l0, sizeof l0 - 1);
}

bool mu_greeter_next(struct mu_greeter *greeter, enum mu_dialect asked, bool answered, enum mu_dialect *ret_next)
{
    *ret_next = MU_DIALECT_UNKNOWN;
    if (greeter->wanted != MU_DIALECT_UNKNOWN || (answered && (asked == MU_DIALECT_V || greeter->sure)))
        return answered;
    if (answered) {
        greeter->found = asked;
        *ret_next = MU_DIALECT_V; /* may have been closed for another reason than not being understood */
    } else if (asked == MU_DIALECT_V && greeter->found != MU_DIALECT_UNKNOWN) {
        greeter->sure = true;
        *ret_next = greeter->found;
    } else if (asked == MU_DIALECT_V) {
        *ret_next = MU_DIALECT_L1;
    } else if (asked == MU_DIALECT_L1 && !greeter->sure) {
        *ret_next = MU_DIALECT_L0;
    }
    return false;
}

enum mu_greeting_result mu_greeting_check(enum mu_dialect dialect, struct mu_slice answer_bytes)
{
    static const char v[] = "\x01\x01\x01\x01", l1[] = "\x01", l0[] = "\x00";
    struct mu_slice wanted = dialect == MU_DIALECT_V    ? mu_slice(v, sizeof v - 1)
                             : dialect == MU_DIALECT_L1 ? mu_slice(l1, sizeof l1 - 1)
                                                        : mu_slice(l0, sizeof l0 - 1);

    if (answer_bytes.len > wanted.len || memcmp(answer_bytes.data, wanted.data, answer_bytes.len) != 0)
        return MU_GREETING_WRONG;
    return answer_bytes.len == wanted.len ? MU_GREETING_YES : MU_GREETING_MORE;
}

struct mu_slice mu_feature_probe(unsigned feature, char bytes[static MU_FEATURE_PROBE_MAX], size_t *ret_answer_bytes)
{
    static const char queue[] = "/muster.probe";
    size_t len = 0;

    bytes[len++] = (char)mu_op_code(MU_OP_VALIDATE, MU_DIALECT_V);
    mu_put_u32(bytes + len, MU_MAGIC);
    len += 4;
    bytes[len++] = (char)mu_op_code(MU_OP_CANCEL_WAIT, MU_DIALECT_V); /* answered by every V server */
    *ret_answer_bytes = 1 + 8;
    switch (feature) {
    case MU_FEATURE_PING:
        bytes[len++] = (char)mu_op_code(MU_OP_PING, MU_DIALECT_V);
        mu_put_u32(bytes + len, MU_MAGIC);
        len += 4;
        *ret_answer_bytes = 1 + 4;
        break;
    case MU_FEATURE_QUEUES:
        bytes[len++] = (char)mu_op_code(MU_OP_QUEUE_LEN, MU_DIALECT_V);
        mu_put_u64(bytes + len, sizeof queue - 1);
        len += 8;
        memcpy(bytes + len, queue, sizeof queue - 1);
        len += sizeof queue - 1;
        break;
    default:
        assert(feature == MU_FEATURE_LIST_KEYS);
        bytes[len++] = (char)mu_op_code(MU_OP_LIST_KEYS, MU_DIALECT_V);
        break;
    }
    return mu_slice(bytes, len);
}
