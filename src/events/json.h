/* JSON as Python's json.dumps() writes it, byte for byte: ASCII only, lower-case escapes, shortest numbers. For the
 * texts that scripts compare; reading is jansson's. Give the text MU_JSON_BYTES_MAX as its limit. */
#ifndef MU_EVENTS_JSON_H
#define MU_EVENTS_JSON_H

#include "base/text.h"

#define MU_JSON_BYTES_MAX                                                                                              \
    ((size_t)64 << 20)      /* an error file of the largest size, written as text inside of text, fits */
#define MU_JSON_REAL_MAX 64 /* room for any number, with its NUL */

void mu_json_text(struct mu_text *out, struct mu_slice text); /* in quotes; what is not UTF-8 becomes U+FFFD */
/* As repr(float): "0.1", "1e+16", "2.0", "nan". */
void mu_json_real_repr(double value, char ret_text[MU_JSON_REAL_MAX]);
void mu_json_real(struct mu_text *out, double value); /* finite, else NaN or Infinity, as Python does */

#endif
