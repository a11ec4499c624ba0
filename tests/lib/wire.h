/* The wire in words. Tests write requests and replies as tokens with blanks between them:
 *
 *     0D       a byte: two hex digits
 *     SET      a request's code in the dialect at hand
 *     (/k)     a string: its length as eight bytes, then what stands between the brackets
 *     #-7      a number of eight bytes
 *     %4660    a number of four bytes
 *     'text'   bytes as they are
 *
 * Inside brackets and quotes a backslash and two hex digits are one byte. A text that is none of this ends the
 * program: it is the test that is wrong. */
#ifndef TESTS_LIB_WIRE_H
#define TESTS_LIB_WIRE_H

#include "base/buf.h"
#include "store/codec.h"

/* Valid until eight more have been made; allocates nothing. For up to 4 KiB. */
struct mu_slice wire(enum mu_dialect dialect, const char *text);

/* The same at the end of a buffer, and strings too long to write down: `fill`, `len` times. */
void wire_put(struct mu_buf *to, enum mu_dialect dialect, const char *text);
void wire_put_str(struct mu_buf *to, char fill, size_t len);
void wire_put_len(struct mu_buf *to, uint64_t len); /* eight bytes */

/* Bytes as hex, to be compared where a failure shows both. Valid until eight more have been made. */
const char *wire_hex(struct mu_slice bytes);

#endif
