/* The words of `muster join`: lines for people and for programs, and the status of a wait. Pure. */
#ifndef MU_CLI_JOIN_TEXT_H
#define MU_CLI_JOIN_TEXT_H

#include "base/text.h"
#include "muster.h"

#define MU_JOIN_NAMES_MAX 8 /* nodes that a line for people names; the others are counted */

/* Any bytes as a JSON string, in quotes. What is not UTF-8 becomes U+FFFD. */
void mu_text_add_json(struct mu_text *text, const char *bytes);
/* "28 s", "10 min 5 s", "2 h 3 min"; begun seconds count. */
void mu_text_add_duration(struct mu_text *text, int64_t ms);
void mu_text_add_nodes(struct mu_text *text, const struct muster_node *nodes, size_t count); /* for people */

struct mu_join_about { /* borrowed */
    const char *backend, *endpoint, *run_id;
    const char *node; /* this machine's name, for back ends that do not know their members */
};

void mu_text_add_place(struct mu_text *text, const struct mu_join_about *about); /* "c10d at node1:29400" */
/* An error of the handler. Behind its first words stands the place, unless the error names the endpoint. NULL: not
 * known. */
void mu_text_add_error(struct mu_text *text, const struct mu_join_about *about, const struct muster_error *error);

/* One line each, with its end. An event that has nothing to say to people adds nothing. */
void mu_join_text_people(struct mu_text *out, const struct mu_join_about *about, const struct muster_rdzv_event *event);
void mu_join_text_json(struct mu_text *out, const struct mu_join_about *about, const struct muster_rdzv_event *event);

/* What is known of a wait. */
struct mu_join_wait {
    const struct muster_rdzv_progress *progress; /* NULL: nothing was heard yet */
    int64_t round;                               /* of the progress; -1: the back end has none */
    const char *names;                           /* the members, for people; "" if not known */
    int64_t waited_ms;                           /* since the join was asked for */
    int64_t progress_age_ms;                     /* since `progress` was told */
    int64_t down_ms;                             /* since the back end is away; -1: it is there */
};

/* The state of the wait, without a line end. */
void mu_join_text_status(struct mu_text *out, const struct mu_join_about *about, const struct mu_join_wait *wait);

#endif
