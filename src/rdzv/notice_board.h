/* A notice board for waiting nodes: one value in the store, beside the rendezvous documents. From it nodes that wait at
 * one endpoint learn of others that will never join them, because they have another rendezvous id or --nnodes. For
 * messages only; nothing is decided by it, and PyTorch's nodes know nothing of it. Pure.
 *
 * A line stands for all nodes with one id and one --nnodes: "ID MIN MAX NAME BEAT", words percent-encoded. A node that
 * has waited for a while puts its line last, by compare-and-set, and again at every beat; when its wait ends it takes
 * it away. A line that has not changed since this node first looked may be of a node that was killed, and is not
 * believed. The board has MU_NOTICE_BOARD_LINES_MAX lines; the one that is last to change stays longest. */
#ifndef MU_RDZV_NOTICE_BOARD_H
#define MU_RDZV_NOTICE_BOARD_H

#include "base/slice.h"

#include <stdint.h>

#define MU_NOTICE_BOARD_KEY "muster/waiting"
#define MU_NOTICE_BOARD_BYTES_MAX 8192
#define MU_NOTICE_BOARD_LINES_MAX 16
#define MU_NOTICE_BOARD_BEAT_MS 2000
#define MU_NOTICE_BOARD_NOTE_MAX 1024
#define MU_NOTICE_BOARD_NAMED_MAX 3 /* lines of others that a note tells of */

struct mu_notice_board_text {
    char bytes[MU_NOTICE_BOARD_BYTES_MAX];
    size_t len;
};

/* OFF --begin--> WAITING --post--> POSTED: our line may be there; end leads back to OFF. */
enum mu_notice_board_state { MU_NOTICE_BOARD_OFF, MU_NOTICE_BOARD_WAITING, MU_NOTICE_BOARD_POSTED };

struct mu_notice_board { /* zeroed memory is OFF */
    enum mu_notice_board_state state;
    bool looked; /* `first` is known */
    uint64_t beat_ms, beat;
    char head[320], name[80]; /* "ID MIN MAX ", and this node's name */
    struct mu_notice_board_text first, now;
};

/* A wait begins. An id that is too long for a line leaves it off. */
void mu_notice_board_begin(struct mu_notice_board *board, const char *run_id, const char *name, int64_t nodes_min,
                           int64_t nodes_max, uint64_t now_ms);
bool mu_notice_board_is_due(const struct mu_notice_board *board, uint64_t now_ms);
/* What is to be written if the board still holds `board->now`. */
void mu_notice_board_post(struct mu_notice_board *board, uint64_t now_ms, struct mu_notice_board_text *ret_text);
/* The board's new contents as a compare-and-set told them, and what it was to write. True: mu_notice_board_note() may
 * differ. */
bool mu_notice_board_see(struct mu_notice_board *board, struct mu_slice text,
                         const struct mu_notice_board_text *wanted);
/* The wait is over. True: the board without our line is to be written, if it still holds `board->now`. */
bool mu_notice_board_end(struct mu_notice_board *board, struct mu_notice_board_text *ret_text);
/* "node7 waits at the same endpoint for rendezvous 'job8'"; NULL: nothing is known. */
const char *mu_notice_board_note(const struct mu_notice_board *board, char note[static MU_NOTICE_BOARD_NOTE_MAX]);

#endif
