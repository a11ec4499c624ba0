#include "rdzv/attribution.h"

#include "base/words.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

bool mu_attribution_is_cause(uint64_t lost_ms, uint64_t failed_ms, uint64_t notice_ms)
{
    return lost_ms <= failed_ms + notice_ms + MU_ATTRIBUTION_LATE_MS;
}

int64_t mu_attribution_cost(const struct mu_attribution *a)
{
    assert(a->first != MU_ATTRIBUTION_FAILED || a->failed);
    return a->lost == 0 && a->first == MU_ATTRIBUTION_FAILED;
}

/* "node9", "node9, node8 and 3 more", "a node", "3 nodes" */
static void say_lost(const struct mu_attribution *a, struct mu_words *w)
{
    int64_t named = 0;

    while (named < MU_ATTRIBUTION_NAMED && named < a->lost && a->lost_names[named][0] != '\0') {
        mu_words_add(w, "%s%s", named > 0 ? ", " : "lost ", a->lost_names[named]);
        named++;
    }
    if (named == 0 && a->lost == 1)
        mu_words_add(w, "lost a node");
    else if (named == 0)
        mu_words_add(w, "lost %" PRId64 " nodes", a->lost);
    else if (a->lost > named)
        mu_words_add(w, " and %" PRId64 " more", a->lost - named);
    if (a->how != NULL)
        mu_words_add(w, ": %s", a->how);
}

static void say_failure(const struct mu_attribution *a, struct mu_words *w)
{
    mu_words_add(w, "rank %" PRId64 "'s failure on %s", a->failed_rank, a->failed_node);
}

/* "node8 joins", "node8 and others join" */
static void say_newcomers(const struct mu_attribution *a, struct mu_words *w)
{
    mu_words_add(w, "%s%s", a->newcomer[0] != '\0' ? a->newcomer : "a node",
                 a->newcomers > 1 ? " and others join" : " joins");
}

static void say_cause(const struct mu_attribution *a, struct mu_words *w)
{
    if (a->lost > 0) {
        say_lost(a, w);
    } else if (a->first == MU_ATTRIBUTION_FAILED && a->failed_text[0] != '\0') {
        mu_words_add(w, "%s", a->failed_text);
    } else if (a->first == MU_ATTRIBUTION_FAILED) {
        say_failure(a, w);
    } else if (a->first == MU_ATTRIBUTION_LEFT) {
        mu_words_add(w, "%s left", a->left_node[0] != '\0' ? a->left_node : "a node");
        if (a->left_text[0] != '\0')
            mu_words_add(w, " (%s)", a->left_text);
    } else if (a->newcomers > 0) {
        say_newcomers(a, w);
    } else {
        mu_words_add(w, "the round was joined anew");
    }
}

void mu_attribution_cause(const struct mu_attribution *a, char text[static MU_FOLD_CAUSE_MAX])
{
    struct mu_words w = mu_words_into(text, MU_FOLD_CAUSE_MAX);

    say_cause(a, &w);
}

void mu_attribution_end(const struct mu_attribution *a, int64_t max, char text[static MU_FOLD_CAUSE_MAX])
{
    char cause[MU_FOLD_CAUSE_MAX];
    int room = MU_FOLD_CAUSE_MAX - 64; /* for the rest */

    mu_attribution_cause(a, cause);
    (void)snprintf(text, MU_FOLD_CAUSE_MAX, "%.*s; no restarts left (max restarts: %" PRId64 ")", room, cause, max);
}

void mu_attribution_why(const struct mu_attribution *a, int64_t nodes, int64_t count, int64_t max,
                        char text[static MU_FOLD_WHY_MAX])
{
    struct mu_words w = mu_words_into(text, MU_FOLD_WHY_MAX);

    say_cause(a, &w);
    if (a->failed && mu_attribution_cost(a) == 0) {
        mu_words_add(&w, "; ");
        say_failure(a, &w);
        mu_words_add(&w, " is a consequence");
    }
    mu_words_add(&w, "; restarting with %" PRId64 " node%s", nodes, nodes == 1 ? "" : "s");
    if (mu_attribution_cost(a) > 0)
        mu_words_add(&w, ", restart %" PRId64 " of %" PRId64, count, max);
    else
        mu_words_add(&w, ", no restart charged");
}
