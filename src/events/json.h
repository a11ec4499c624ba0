/* JSON as Python's json.dumps() writes it, byte for byte: ASCII only, lower-case escapes, shortest numbers. For the
 * texts that scripts compare; reading is jansson's. Each appends and returns 0, MUSTER_ENOMEM, or MUSTER_ELIMIT past
 * MU_JSON_BYTES_MAX. */
#ifndef MU_EVENTS_JSON_H
#define MU_EVENTS_JSON_H

#include "base/buf.h"

#define MU_JSON_BYTES_MAX                                                                                              \
    ((size_t)64 << 20)      /* an error file of the largest size, written as text inside of text, fits */
#define MU_JSON_REAL_MAX 64 /* room for any number, with its NUL */

int mu_json_raw(struct mu_buf *out, const char *text);          /* as it is: punctuation */
int mu_json_text(struct mu_buf *out, struct mu_slice text);     /* in quotes; what is not UTF-8 becomes U+FFFD */
int mu_json_text_or_null(struct mu_buf *out, const char *text); /* NULL: null */
int mu_json_int(struct mu_buf *out, int64_t value);
int mu_json_int_or_null(struct mu_buf *out, int64_t value); /* negative: null */
void mu_json_real_repr(double value,
                       char ret_text[MU_JSON_REAL_MAX]); /* as repr(float): "0.1", "1e+16", "2.0", "nan" */
int mu_json_real(struct mu_buf *out, double value);      /* finite, else NaN or Infinity, as Python does */

#endif
