/* Names of what a back end is asked for. */
#include "kv/kv.h"

const char *mu_kv_kind_text(enum mu_kv_kind kind)
{
    switch (kind) {
#define X(name, text)                                                                                                  \
    case MU_KV_##name:                                                                                                 \
        return text;
        MU_KV_KINDS(X)
#undef X
    }
    return "unknown";
}
