/* What a dynamic handler asks the store beside the document machine: which node hosts the store, and who else waits
 * there. Pure; dynamic_uv.c does what it says.
 *
 * - The host is asked for when a round boots, and when the store is back, for it may be another store then. Until the
 *   host is known it is asked for with every progress. One question is under way at a time.
 * - The notice board (notice_board.h) is used while the owner waits for a round. It is written after a document was
 *   read, for then the store is there; again at once when it was seen for the first time; and a last time, without our
 *   line, when the wait ends. One compare-and-set is under way at a time, the last one excepted.
 * - What the board has about others is told as progress when it changes. */
#ifndef MU_HANDLER_INQUIRY_H
#define MU_HANDLER_INQUIRY_H

#include "rdzv/notice_board.h"
#include "rdzv/rdzv.h"

enum mu_inquiry_event_type {
    MU_INQUIRY_ON_TALKED,     /* waits: the owner waits for a round; as before, or no longer, or from now on */
    MU_INQUIRY_ON_ANSWERED,   /* the document machine hears `answer` */
    MU_INQUIRY_ON_TOLD,       /* ... and has told `tell` */
    MU_INQUIRY_ON_PROGRESS,   /* is about to be told */
    MU_INQUIRY_ON_BOOT,       /* of a round */
    MU_INQUIRY_ON_HOST,       /* ASK_HOST's answer, or what is known without asking: rc, text (empty: no node), doc */
    MU_INQUIRY_ON_BOARD,      /* WRITE_BOARD's answer: rc; text is on the board now */
    MU_INQUIRY_ON_LEFT_BOARD, /* LEAVE_BOARD's answer */
};

struct mu_inquiry_event { /* borrows what it points to */
    enum mu_inquiry_event_type type;
    uint64_t now_ms;
    bool waits;
    enum mu_rdzv_event_type answer;
    enum mu_part_tell tell;
    int rc; /* below 0: the request has failed */
    struct mu_slice text;
    const struct mu_doc *doc;
};

enum mu_inquiry_effect_type {
    MU_INQUIRY_DO_NOTHING,
    MU_INQUIRY_DO_ASK_HOST,    /* HOST follows */
    MU_INQUIRY_DO_WRITE_BOARD, /* value, if `expected` is there; BOARD follows */
    MU_INQUIRY_DO_LEAVE_BOARD, /* the same; LEFT_BOARD follows */
    MU_INQUIRY_DO_TELL_PROGRESS,
    MU_INQUIRY_DO_TAKE_HOST, /* the document machine is to know: node, if has_node; else none is known */
};

struct mu_inquiry_effect { /* borrows from the machine and from the event, until the next step */
    enum mu_inquiry_effect_type type;
    struct mu_slice expected, value;
    bool has_node;
    struct mu_node node;
};

struct mu_inquiry_config { /* not copied */
    const char *run_id, *name;
    int64_t nodes_min, nodes_max;
    const char *store_host; /* as the user named it; NULL: not known */
    bool has_board;         /* rendezvous with other ids are in the same store */
};

enum mu_inquiry_host { MU_INQUIRY_HOST_UNKNOWN, MU_INQUIRY_HOST_ASKED, MU_INQUIRY_HOST_KNOWN };

struct mu_inquiry { /* by mu_inquiry_init(); there is nothing to be freed */
    struct mu_inquiry_config config;
    enum mu_inquiry_host host;
    bool waits; /* the owner, for a round */
    struct mu_notice_board board;
    bool board_asked;                       /* WRITE_BOARD is under way; it may outlive the wait */
    struct mu_notice_board_text post, last; /* WRITE_BOARD's and LEAVE_BOARD's */
    bool ghost_told;
};

void mu_inquiry_init(struct mu_inquiry *q, const struct mu_inquiry_config *config);
/* The same state and event give the same effect. */
struct mu_inquiry_effect mu_inquiry_step(struct mu_inquiry *q, const struct mu_inquiry_event *event);

/* A node that was killed and started again is a new one, and what is left of its predecessor is listed until its
 * heartbeat is missed. Returns the first such ghost, once; NULL: none. `is_gone`: there is no such process. */
const struct mu_node *mu_inquiry_ghost(struct mu_inquiry *q, const struct mu_doc *doc, const struct mu_node *me,
                                       bool (*is_gone)(int64_t pid));

#endif
