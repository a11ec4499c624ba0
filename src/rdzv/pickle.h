/* The document as PyTorch stores it: a pickle. Reads exactly the subset of the pickle language that such a document
 * needs, within limits, and builds nothing but a document: no name in it is ever looked up or called. Pure. */
#ifndef MU_RDZV_PICKLE_H
#define MU_RDZV_PICKLE_H

#include "base/buf.h"
#include "rdzv/doc.h"

#define MU_PICKLE_BYTES_MAX ((size_t)16 << 20)
#define MU_PICKLE_MEMO_MAX ((size_t)1 << 20)
#define MU_PICKLE_DEPTH_MAX 32

/* MUSTER_ERDZV_STATE with what is wrong and at which byte, or MUSTER_ENOMEM; `doc` is then as it was. Its dialect is
 * the one that is expected: a document of which nobody is a member does not tell all of it. */
int mu_pickle_decode(struct mu_slice bytes, struct mu_doc *doc, struct muster_error *reterr);
/* Of bytes that were refused: a whole pickle of PyTorch's state all the same, by a version that we do not know. */
bool mu_pickle_is_other_layout(struct mu_slice bytes);
/* Whether a node may be called that: UTF-8, neither empty nor longer than MU_NODE_NAME_MAX. What is not cannot be
 * read. */
bool mu_pickle_takes_name(struct mu_slice name);

/* Protocol 4, memoized as Python does it, in the document's dialect. Appends; on failure `out` is as it was. */
int mu_pickle_encode(const struct mu_doc *doc, struct mu_buf *out);

#endif
