/* The document of the classic etcd rendezvous, byte for byte as Python's json module writes it. A document is read, one
 * thing of it is changed, and all of it is written back, fields that we do not know included. Pure. */
#ifndef MU_RDZV_CLASSIC_DOC_H
#define MU_RDZV_CLASSIC_DOC_H

#include "base/buf.h"
#include "base/error.h"
#include "rdzv/doc.h"

#include <stdint.h>

#define MU_CLASSIC_DOC_MAX (4u << 20) /* bytes */
#define MU_CLASSIC_NODES_MAX 16384    /* participants */

#define MU_CLASSIC_STATUSES(X)                                                                                         \
    X(SETUP, "setup")                                                                                                  \
    X(JOINABLE, "joinable")                                                                                            \
    X(FROZEN, "frozen")                                                                                                \
    X(FINAL, "final")                                                                                                  \
    X(CLOSED, "closed")

#define MU_CLASSIC_KEY_MAX 4096 /* with its NUL */

enum mu_classic_status {
#define X(name, text) MU_CLASSIC_##name,
    MU_CLASSIC_STATUSES(X)
#undef X
};

const char *mu_classic_status_text(enum mu_classic_status value);

struct mu_classic_doc { /* zeroed memory is none */
    enum mu_classic_status status;
    int64_t version;     /* -1: none, as in `setup` */
    size_t participants; /* how many; their ranks are 0 to one less */
    size_t keep_alives;  /* how many have confirmed */
    int64_t waiting;     /* nodes that want in */
    void *json;
};

/* MUSTER_ERDZV_STATE for what is no such document, naming the field; MUSTER_ENOMEM. On failure there is nothing to
 * free. */
int mu_classic_doc_read(struct mu_slice text, struct mu_classic_doc *ret_doc, struct muster_error *reterr);
/* Of what could not be read: a document all the same, with a status that we do not know; or there is no memory to tell.
 * It is not ours to overwrite. */
bool mu_classic_doc_is_other_layout(struct mu_slice text);
void mu_classic_doc_done(struct mu_classic_doc *doc);
const char *mu_classic_doc_keep_alive(const struct mu_classic_doc *doc, size_t index); /* a key, as it was written */
/* How often that key, as etcd has it, is there, however it was written. */
size_t mu_classic_doc_count_keep_alive(const struct mu_classic_doc *doc, const char *key);

/* The next document, put into `out` in place of what is there. 0 or MUSTER_ENOMEM. The document itself stays as it
 * is. */
int mu_classic_doc_setup(struct mu_buf *out);
int mu_classic_doc_joinable(int64_t version, struct mu_buf *out);
int mu_classic_doc_joined(const struct mu_classic_doc *doc, bool freeze, struct mu_buf *out); /* one participant more */
int mu_classic_doc_left(const struct mu_classic_doc *doc, struct mu_buf *out);                /* one less: the last */
int mu_classic_doc_frozen(const struct mu_classic_doc *doc, struct mu_buf *out);
int mu_classic_doc_confirmed(const struct mu_classic_doc *doc, const char *key,
                             struct mu_buf *out); /* the last: final */
int mu_classic_doc_waiting(const struct mu_classic_doc *doc, int64_t waiting, struct mu_buf *out);
int mu_classic_doc_closed(const struct mu_classic_doc *doc, struct mu_buf *out); /* NULL: there was none */

/* What a node of ours that waits says about itself, for people: who it is, which rendezvous it waits for with which
 * --nnodes, and its place in the document. JSON, with a version "v"; members that we do not know are skipped. */
#define MU_CLASSIC_NOTICE_MAX 4096     /* bytes */
#define MU_CLASSIC_NOTICE_TEXT_MAX 256 /* of a name or a run id, with its NUL; longer ones are cut */

struct mu_classic_notice {
    uint64_t id; /* of the node; not 0 */
    char name[MU_CLASSIC_NOTICE_TEXT_MAX], run_id[MU_CLASSIC_NOTICE_TEXT_MAX];
    int64_t pid, local_id, nodes_min, nodes_max;
    int64_t version, rank; /* that it has joined; -1: none so far */
};

int mu_classic_notice_write(const struct mu_classic_notice *notice, struct mu_buf *out); /* in place of what is there */
bool mu_classic_notice_read(struct mu_slice text, struct mu_classic_notice *ret_notice); /* false: it is none */

/* A key as etcd has it: a leading "/", no "//", "." and ".." resolved, no "/" at the end. At most `room` bytes with the
 * NUL; false: it does not fit. */
bool mu_classic_key_clean(const char *key, char *text, size_t room);

#endif
