/* What a handler does around its pure machines, on a libuv loop: the part in the rendezvous (rdzv/part.h), the boot
 * (boot.h) and the conversation with the owner (talk.h). The shell keeps the time, hands requests to the back end and
 * its answers to the machine, tells the owner what talk wants told, and takes itself apart in the end. It decides
 * nothing.
 *
 *   owner --join, leave, close, look--> talk --ask--> part --request--> the handler's back end
 *   owner <------ tell ---------------- talk <--tell- part <--answer-------------+
 *                                        | ^
 *                                        v |
 *                                        boot
 *
 * The owner's calls do nothing but step talk. The part is asked from the loop. Within one step of the part, requests
 * are made before anything is told; what is asked of it because of that is asked in a later turn of the loop.
 *
 * A handler has the shell as its first member. It says how a request is made, and what the owner is told beside what
 * all handlers tell: who the nodes are. */
#ifndef MU_HANDLER_SHELL_UV_H
#define MU_HANDLER_SHELL_UV_H

#include "handler/boot_uv.h"
#include "handler/handler.h"
#include "handler/late_answers.h"
#include "handler/rdzv_trace.h"
#include "handler/talk.h"
#include "kv/later_uv.h"
#include "rdzv/part.h"

struct mu_shell;

struct mu_shell_ops { /* a constant */
    const struct mu_part_ops *part;
    void (*request)(struct mu_shell *shell,
                    const void *effect);                 /* of the part: to be made, and answered by mu_shell_feed() */
    void (*answer)(struct mu_shell *shell, uint64_t id); /* see mu_shell_answer_late(). NULL: not used */
    void (*own)(struct mu_shell *shell, const void *effect); /* a tell of this machine's alone. NULL: none */
    void (*start_boot)(struct mu_shell *shell);              /* ends with mu_shell_start_boot() */
    void (*boot_request)(struct mu_shell *shell, const struct mu_boot_effect *effect); /* NULL if the boot has a kv */
    /* Our address as the back end sees us, numeric; false: not known. NULL if the boot has a kv, which is asked then */
    bool (*local_address)(const struct mu_shell *shell, char *text, size_t room);
    /* Something that goes with nodes: adds them and what else it knows, and ends with mu_shell_say(). `news`: what the
     * part told; NULL: that was before. */
    void (*tell)(struct mu_shell *shell, struct muster_rdzv_event *event, enum mu_talk_nodes nodes,
                 const struct mu_part_news *news);
    void (*heard)(struct mu_shell *shell, const struct mu_part_news *news); /* before talk hears of it. May be NULL */
    void (*waits)(struct mu_shell *shell, bool waits); /* after each step of talk: does the owner wait? May be NULL */
    void (*on_time)(struct mu_shell *shell);           /* before the part hears that time has passed. May be NULL */
    void (*find)(struct mu_shell *shell);    /* the back end: mu_shell_found() or _not_found(). NULL: it is there */
    void (*last)(struct mu_shell *shell);    /* all else is closed; ends with mu_shell_drop(). NULL: nothing is left */
    void (*destroy)(struct mu_shell *shell); /* frees the handler */
};

struct mu_shell {
    struct mu_handler handler;
    const struct mu_shell_ops *ops;
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    /* Where a server of the handler's accepted a node from elsewhere, numeric; false: nowhere. NULL: it has none. */
    bool (*accepted_on)(const struct mu_shell *shell, char *text, size_t room);
    const char *run_id; /* the handler's; so is the name of `me`, which ends with a NUL */
    struct mu_node me;
    int64_t nodes_min, nodes_max;
    void *part;   /* NULL while the back end is being looked for */
    void *driver; /* what the functions of `ops` work on, if that is not the handler itself */
    struct mu_boot_uv boot;
    struct mu_talk talk;
    uv_timer_t timer;
    struct mu_later later;
    struct mu_list orders; /* requests under way */
    struct mu_late_answers late;
    uint64_t also_ms; /* when `on_time` is wanted beside the part's deadline; UINT64_MAX: it is not */
    struct mu_rdzv_trace_phases phases;
    struct muster_store_info bootstrap; /* of the round that was joined */
    /* The end. */
    size_t handles; /* that the loop still has */
    bool freeing, at_last;
    void (*on_freed)(void *ctx);
    void *freed_ctx;
};

/* Fills in zeroed memory; what the handler owns it has filled in before: handler, run_id, me, nodes_min, nodes_max,
 * part, boot, accepted_on. */
void mu_shell_init(struct mu_shell *shell, uv_loop_t *loop, const struct mu_shell_ops *ops, uint64_t join_ms,
                   muster_rdzv_listener *listener, void *ctx);
/* From here on it is the loop's, and has to be closed. `kv`: where the boot's keys are; NULL: see boot_request. */
void mu_shell_open(struct mu_shell *shell, struct mu_kv *kv);

/* The back end is there, and shell->part too; or it is not. */
void mu_shell_found(struct mu_shell *shell);
void mu_shell_not_found(struct mu_shell *shell, const struct muster_error *error);
/* The job meets elsewhere: `find` is called again, and shell->part is gone. `close`, `look`: it was asked to. */
void mu_shell_moved(struct mu_shell *shell, bool close, bool look);

/* Lets the part hear an event of its own: an answer, mostly. Its time is filled in. */
void mu_shell_feed(struct mu_shell *shell, const void *event);
/* From inside of `request`: its answer is there at once, or it found no memory. `answer` is called with its id when
 * the step is over. Without an id no answer is wanted. */
void mu_shell_answer_late(struct mu_shell *shell, uint64_t id);
void mu_shell_arm(struct mu_shell *shell); /* after also_ms was changed outside of a step */

/* For start_boot: fills in this node's addresses, as far as they are known. Borrows until it returns. */
void mu_shell_start_boot(struct mu_shell *shell, struct mu_boot_start start);

/* Tells the owner; after this the shell may be being freed. */
void mu_shell_say(struct mu_shell *shell, struct muster_rdzv_event *event);
/* ... with these nodes, whose names end with a NUL; without them if there is no memory. */
void mu_shell_say_nodes(struct mu_shell *shell, struct muster_rdzv_event *event, const struct mu_node *nodes,
                        size_t count);
void mu_shell_tell_progress(struct mu_shell *shell);            /* as if the part had told it */
struct mu_teller mu_shell_teller(const struct mu_shell *shell); /* for rdzv_trace.h */

/* For the mu_handler_ops of a handler whose part has a leader, and is there from the start. */
void mu_shell_introduce(struct muster_handler *handler, const struct mu_part_self *self);
void mu_shell_report(struct muster_handler *handler, const struct mu_part_report *report);

/* A request to the back end, first member of the handler's own; lives until it is answered, wanted or not. */
struct mu_order {
    struct mu_list link;
    struct mu_shell *shell;
    uint64_t id; /* of the part's effect; 0: no answer is wanted */
};

void *mu_order_new(struct mu_shell *shell, size_t size, uint64_t id);      /* zeroed beyond that; NULL: no memory */
struct mu_order *mu_order_find(const struct mu_shell *shell, uint64_t id); /* NULL: it is answered */
void mu_order_free(struct mu_order *order);

/* The end: nothing is told from here on. What is the loop's beside the shell's own is held, and dropped when it is
 * closed; then the handler is destroyed, and `done` is called. */
void mu_shell_close(struct mu_shell *shell, void (*done)(void *ctx), void *ctx);
void mu_shell_hold(struct mu_shell *shell);
void mu_shell_drop(void *ctx);
void mu_shell_close_kv(struct mu_shell *shell, struct mu_kv *kv); /* holds the shell until it is closed */

#endif
