/* Error files: what a worker leaves at TORCHELASTIC_ERROR_FILE, and what the launcher leaves at its own. The form is
 * that of PyTorch's `record` decorator:
 *
 *     {"message": {"message": "ValueError: ...", "extraInfo": {"py_callstack": "...", "timestamp": "1794726705"}}}
 *     {"message": "text", "timestamp": 1794726705}
 *
 * A file that is empty, too big, no JSON, or of other types counts as absent, and `problem` says so: unlike PyTorch's,
 * our launcher lives on. Other keys are kept as they are. */
#ifndef MU_AGENT_ERRFILE_H
#define MU_AGENT_ERRFILE_H

#include "base/buf.h"
#include "base/error.h"

#define MU_ERRFILE_BYTES_MAX ((size_t)4 << 20)

struct json_t;

struct mu_errfile {      /* zeroed: absent */
    bool present;        /* it was there and is what it should be; the rest is set only then, `problem` only if not */
    bool structured;     /* `message` was an object, not text */
    char *message;       /* "ValueError: broken"; may be empty */
    char *traceback;     /* what the report shows, line ends as they were; for a text: the text. May be empty */
    int64_t timestamp_s; /* 0: a text without one */
    struct json_t *root; /* all of it */
    char *problem; /* one line: why a file that is there is not used; NULL: there was none, or no memory to say so */
};

/* Fills in *ret_file, of which nothing need be freed on failure. MUSTER_EINVAL with what is wrong with the bytes,
 * MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_errfile_parse(struct mu_slice bytes, struct mu_errfile *ret_file, struct muster_error *reterr);

/* Never fails: a file that cannot be read is absent. NULL and the empty path: absent. Waits for nothing (FIFOs and the
 * like are refused). */
void mu_errfile_read(const char *path, struct mu_errfile *ret_file);
void mu_errfile_done(struct mu_errfile *file); /* zeroes it */

/* The whole file as Python's json.dumps() would write it again: for an event's raw_error. Appends. */
int mu_errfile_write(const struct mu_errfile *file, struct mu_buf *out);

/* What the launcher puts at its own TORCHELASTIC_ERROR_FILE (no line end). Both append. After a worker's failure: the
 * worker's file, with message.errorCode when `exit_code` is not 0 and the message is an object. `file` must be present.
 * Without one nothing is written at all. */
int mu_errfile_write_copy(const struct mu_errfile *file, int exit_code, struct mu_buf *out);
/* After anything else: our own error, `kind` being the name of PyTorch's exception ("SignalException"). */
int mu_errfile_write_own(const char *kind, const char *text, int64_t now_s, struct mu_buf *out);

/* Puts the bytes there, whole or not at all. *ret_replaced: a file was there before (worth a line in the log). */
int mu_errfile_save(const char *path, struct mu_slice bytes, bool *ret_replaced, struct muster_error *reterr);

#endif
