/* Standard base64, padded. */
#ifndef MU_BASE_BASE64_H
#define MU_BASE_BASE64_H

#include "base/buf.h"

/* Both append and return 0, MUSTER_ENOMEM, or MUSTER_ELIMIT past `len_max`; on failure `out` is as it was. */
int mu_base64_encode(struct mu_slice bytes, struct mu_buf *out, size_t len_max);
/* As lenient as Python's b64decode: characters outside of the alphabet are dropped; only an impossible length or
 * padding is wrong (MUSTER_EINVAL). */
int mu_base64_decode(struct mu_slice text, struct mu_buf *out, size_t len_max);

#endif
