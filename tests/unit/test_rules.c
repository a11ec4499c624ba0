/* The tables of the dynamic rendezvous, row by row: what a node does next, and what that does to the document. */
#include "rdzv/rules.h"

#include "failmalloc.h"
#include "rdzv_scene.h"

enum { LATE = 1001, LAST = 6000, TOO_LATE = 6001, D = 1000 }; /* the deadline is D; LAST is D + 5 s */

/* ---- What to do ---- */

enum rule { JOIN, EXIT, LEAVE, KEEP_ALIVE };

struct row { /* node a decides; zero is: between 2 and 4 nodes, long before the deadline */
    const char *name;
    enum rule rule;
    const char *doc;
    enum mu_rdzv_action action;
    uint64_t now_ms;
    bool due, over;
    int64_t min, max;
};

static const struct row rows[] = {
    /* Join */
    { "J1: a spare that sees the rendezvous closed exits in good order", JOIN, "0 complete closed b=0@1 a+@1",
      .action = MU_RDZV_ERROR_GRACEFUL_EXIT, .max = 2 },
    { "J1: also if there is room, it is late and a keep-alive is due", JOIN, "0 complete closed b=0@1 a+@1",
      .action = MU_RDZV_ERROR_GRACEFUL_EXIT, .now_ms = TOO_LATE, .due = true },
    { "J1: in dialect 1.13 there are no spares, closed is closed", JOIN, "0 complete closed 1.13 b=0@1 a+@1",
      .action = MU_RDZV_ERROR_CLOSED },
    { "J2: closed is closed for a newcomer", JOIN, "0 closed", .action = MU_RDZV_ERROR_CLOSED },
    { "J2: closed is closed for a participant", JOIN, "0 closed a=0@1 b=0@1", .action = MU_RDZV_ERROR_CLOSED },
    { "J2: closed is closed for a member of the complete round", JOIN, "0 complete closed a=0@1 b=1@1",
      .action = MU_RDZV_ERROR_CLOSED },
    { "J2: closed is closed for a waiting node", JOIN, "0 complete closed b=0@1 a~@1", .action = MU_RDZV_ERROR_CLOSED },
    { "J2: closed comes before late", JOIN, "0 closed a=0@1", .action = MU_RDZV_ERROR_CLOSED, .now_ms = TOO_LATE },
    { "J2: closed is closed in dialect 1.13", JOIN, "0 closed 1.13 a=0@1", .action = MU_RDZV_ERROR_CLOSED },
    { "J3: a spare of a full round keeps itself alive", JOIN, "0 complete b=0@1 c=1@1 a+@1",
      .action = MU_RDZV_KEEP_ALIVE, .due = true, .max = 2 },
    { "J3: also long after its deadline", JOIN, "0 complete b=0@1 c=1@1 a+@1", .action = MU_RDZV_KEEP_ALIVE,
      .due = true, .max = 2, .now_ms = TOO_LATE },
    { "J3: without a heartbeat in the document none is due", JOIN, "0 complete b=0@1 c=1@1 a+", .action = MU_RDZV_SYNC,
      .due = true, .max = 2 },
    { "J4: a spare of a full round waits", JOIN, "0 complete b=0@1 c=1@1 a+@1", .action = MU_RDZV_SYNC, .max = 2 },
    { "J4: without end", JOIN, "0 complete b=0@1 c=1@1 a+@1", .action = MU_RDZV_SYNC, .max = 2, .now_ms = TOO_LATE },
    { "J4: of an open round with as many as fit, too", JOIN, "0 b=0@1 c=0@1 a+@1", .action = MU_RDZV_SYNC, .max = 2 },
    { "J5: a spare leaves its list when there is a place", JOIN, "0 complete b=0@1 c=1@1 a+@1",
      .action = MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST, .max = 3 },
    { "J5: also in an open round, late, and with a keep-alive due", JOIN, "1 b=0@1 a+@1",
      .action = MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST, .now_ms = TOO_LATE, .due = true },
    { "J5, ours: with more than the maximum a spare stays a spare", JOIN, "0 complete b=0@1 c=1@1 d=2@1 a+@1",
      .action = MU_RDZV_SYNC, .max = 2 },
    { "J5, ours: and keeps itself alive", JOIN, "0 complete b=0@1 c=1@1 d=2@1 a+@1", .action = MU_RDZV_KEEP_ALIVE,
      .max = 2, .due = true },
    { "J3 to J5: in dialect 1.13 a list of spares means nothing", JOIN, "0 complete 1.13 b=0@1 a+@1",
      .action = MU_RDZV_ADD_TO_WAIT_LIST },
    { "J6: a member of the complete round has finished", JOIN, "0 complete a=0@1 b=1@1", .action = MU_RDZV_FINISH },
    { "J6: even if it is late", JOIN, "0 complete a=0@1 b=1@1", .action = MU_RDZV_FINISH, .now_ms = TOO_LATE },
    { "J6: and even if a keep-alive is due", JOIN, "0 complete a=0@1 b=1@1", .action = MU_RDZV_FINISH, .due = true },
    { "J6: below the minimum and above the maximum alike", JOIN, "0 complete a=0@1 b=1@1 c=2@1",
      .action = MU_RDZV_FINISH, .min = 1, .max = 2 },
    { "J6: in dialect 1.13", JOIN, "0 complete 1.13 a=0@1", .action = MU_RDZV_FINISH },
    { "J7: at the deadline itself nobody is late", JOIN, "0 a=0@1", .action = MU_RDZV_SYNC, .now_ms = D },
    { "J7: a millisecond later a participant rolls back", JOIN, "0 a=0@1", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      .now_ms = LATE },
    { "J7: five seconds later still", JOIN, "0 a=0@1", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS, .now_ms = LAST },
    { "J7: rather than to complete the round", JOIN, "0 last-call=9 a=0@1 b=0@1",
      .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS, .now_ms = LATE, .over = true },
    { "J7: in dialect 1.13", JOIN, "0 1.13 a=0@1", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS, .now_ms = LATE },
    { "J8: at the deadline itself a node waits on", JOIN, "0 complete b=0@1 a~@1", .action = MU_RDZV_SYNC,
      .now_ms = D },
    { "J8: a millisecond later it leaves the wait list", JOIN, "0 complete b=0@1 a~@1",
      .action = MU_RDZV_REMOVE_FROM_WAIT_LIST, .now_ms = LATE },
    { "J8: five seconds later still", JOIN, "0 complete b=0@1 a~@1", .action = MU_RDZV_REMOVE_FROM_WAIT_LIST,
      .now_ms = LAST },
    { "J8: also when it could become a participant", JOIN, "1 b=0@1 a~@1", .action = MU_RDZV_REMOVE_FROM_WAIT_LIST,
      .now_ms = LATE },
    { "J8: in dialect 1.13", JOIN, "0 complete 1.13 b=0@1 a~@1", .action = MU_RDZV_REMOVE_FROM_WAIT_LIST,
      .now_ms = LATE },
    { "J9: more than five seconds late a participant only fails", JOIN, "0 a=0@1", .action = MU_RDZV_ERROR_TIMEOUT,
      .now_ms = TOO_LATE },
    { "J9: and so does a waiting node", JOIN, "0 complete b=0@1 a~@1", .action = MU_RDZV_ERROR_TIMEOUT,
      .now_ms = TOO_LATE },
    { "J9: whoever is in no list fails as soon as it is late", JOIN, "0 b=0@1", .action = MU_RDZV_ERROR_TIMEOUT,
      .now_ms = LATE },
    { "J9: in dialect 1.13", JOIN, "0 complete 1.13 b=0@1", .action = MU_RDZV_ERROR_TIMEOUT, .now_ms = LATE },
    { "J10: with places left in a complete round a newcomer waits in the list", JOIN, "0 complete b=0@1 c=1@1",
      .action = MU_RDZV_ADD_TO_WAIT_LIST, .max = 3 },
    { "J10: at the deadline itself, too", JOIN, "0 complete b=0@1 c=1@1", .action = MU_RDZV_ADD_TO_WAIT_LIST, .max = 3,
      .now_ms = D },
    { "J10: but not twice", JOIN, "0 complete b=0@1 a~@1", .action = MU_RDZV_SYNC },
    { "J10: in dialect 1.13", JOIN, "0 complete 1.13 b=0@1", .action = MU_RDZV_ADD_TO_WAIT_LIST },
    { "J11: in a full round a newcomer becomes a spare", JOIN, "0 complete b=0@1 c=1@1",
      .action = MU_RDZV_ADD_TO_REDUNDANCY_LIST, .max = 2 },
    { "J11: also with more than the maximum in it", JOIN, "0 complete b=0@1 c=1@1 d=2@1",
      .action = MU_RDZV_ADD_TO_REDUNDANCY_LIST, .max = 2 },
    { "J11, ours: a waiting node of a full round becomes a spare, too", JOIN, "0 complete b=0@1 c=1@1 a~@1",
      .action = MU_RDZV_ADD_TO_REDUNDANCY_LIST, .max = 2 },
    { "J11: in dialect 1.13 it waits on", JOIN, "0 complete 1.13 b=0@1 c=1@1 a~@1", .action = MU_RDZV_SYNC, .max = 2 },
    { "J11: in dialect 1.13 a surplus node is in no list and polls", JOIN, "0 complete 1.13 b=0@1 c=1@1",
      .action = MU_RDZV_SYNC, .max = 2, .due = true },
    { "J11: until it is late", JOIN, "0 complete 1.13 b=0@1 c=1@1", .action = MU_RDZV_ERROR_TIMEOUT, .max = 2,
      .now_ms = LATE },
    { "J12: with the minimum in, a participant ends the last call", JOIN, "0 last-call=9 a=0@1 b=0@1",
      .action = MU_RDZV_MARK_COMPLETE, .over = true },
    { "J12: at the deadline of the join itself, too", JOIN, "0 last-call=9 a=0@1 b=0@1",
      .action = MU_RDZV_MARK_COMPLETE, .over = true, .now_ms = D },
    { "J12: with as many as the maximum, that others did not see", JOIN, "0 last-call=9 a=0@1 b=0@1",
      .action = MU_RDZV_MARK_COMPLETE, .over = true, .max = 2 },
    { "J12: not before the last call is over", JOIN, "0 last-call=9 a=0@1 b=0@1", .action = MU_RDZV_SYNC },
    { "J12: not one below the minimum", JOIN, "0 last-call=9 a=0@1 b=0@1", .action = MU_RDZV_SYNC, .over = true,
      .min = 3 },
    { "J12: not above the maximum", JOIN, "0 last-call=9 a=0@1 b=0@1 c=0@1", .action = MU_RDZV_SYNC, .over = true,
      .min = 1, .max = 2 },
    { "J12: a null deadline waits", JOIN, "0 a=0@1 b=0@1", .action = MU_RDZV_SYNC },
    { "J12: rather than to keep alive", JOIN, "0 last-call=9 a=0@1 b=0@1", .action = MU_RDZV_MARK_COMPLETE,
      .over = true, .due = true },
    { "J12: a minimum of one", JOIN, "0 last-call=9 a=0@1", .action = MU_RDZV_MARK_COMPLETE, .over = true, .min = 1 },
    { "J12: in dialect 1.13", JOIN, "0 last-call=9 1.13 a=0@1 b=0@1", .action = MU_RDZV_MARK_COMPLETE, .over = true },
    { "J12: in dialect 1.13 a null deadline waits, too", JOIN, "0 1.13 a=0@1 b=0@1", .action = MU_RDZV_SYNC },
    { "J13: who is not in an open round enters it", JOIN, "0", .action = MU_RDZV_ADD_TO_PARTICIPANTS },
    { "J13: during the last call as well", JOIN, "0 last-call=9 b=0@1 c=0@1", .action = MU_RDZV_ADD_TO_PARTICIPANTS },
    { "J13: and when it is over but nobody ended it", JOIN, "0 last-call=9 b=0@1 c=0@1",
      .action = MU_RDZV_ADD_TO_PARTICIPANTS, .over = true },
    { "J13: a waiting node enters as soon as the round is open", JOIN, "1 b=0@1 a~@1",
      .action = MU_RDZV_ADD_TO_PARTICIPANTS },
    { "J13: at the deadline itself, too", JOIN, "0", .action = MU_RDZV_ADD_TO_PARTICIPANTS, .now_ms = D },
    { "J13: even past the maximum", JOIN, "0 b=0@1 c=0@1", .action = MU_RDZV_ADD_TO_PARTICIPANTS, .min = 1, .max = 2 },
    { "J13: in dialect 1.13", JOIN, "0 1.13", .action = MU_RDZV_ADD_TO_PARTICIPANTS },
    { "J14: a participant of an open round keeps itself alive", JOIN, "0 a=0@1", .action = MU_RDZV_KEEP_ALIVE,
      .due = true },
    { "J14: and so does a waiting node", JOIN, "0 complete b=0@1 a~@1", .action = MU_RDZV_KEEP_ALIVE, .due = true },
    { "J14: without a heartbeat in the document none is due", JOIN, "0 a=0", .action = MU_RDZV_SYNC, .due = true },
    { "J14: in dialect 1.13", JOIN, "0 complete 1.13 b=0@1 a~@1", .action = MU_RDZV_KEEP_ALIVE, .due = true },
    { "J15: otherwise a participant waits", JOIN, "0 a=0@1", .action = MU_RDZV_SYNC },
    { "J15: otherwise a waiting node waits", JOIN, "0 complete b=0@1 a~@1", .action = MU_RDZV_SYNC },
    { "J15: in dialect 1.13", JOIN, "0 1.13 a=0@1", .action = MU_RDZV_SYNC },

    /* Exit */
    { "exit: who is no participant has finished", EXIT, "0 b=0@1", .action = MU_RDZV_FINISH },
    { "exit: waiting and spare nodes are left where they are", EXIT, "0 complete b=0@1 a~+@1",
      .action = MU_RDZV_FINISH },
    { "exit: who is no participant has finished even if late", EXIT, "0 b=0@1", .action = MU_RDZV_FINISH,
      .now_ms = TOO_LATE },
    { "exit: a participant of an open round leaves", EXIT, "0 a=0@1", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS },
    { "exit: a member of a complete round leaves", EXIT, "0 complete a=0@1 b=1@1",
      .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS },
    { "exit: closed does not matter", EXIT, "0 complete closed a=0@1 b=1@1",
      .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS },
    { "exit: at the deadline itself it still leaves", EXIT, "0 a=0@1", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      .now_ms = D },
    { "exit: late, it fails", EXIT, "0 a=0@1", .action = MU_RDZV_ERROR_TIMEOUT, .now_ms = LATE },
    { "exit: in dialect 1.13", EXIT, "0 complete 1.13 a=0@1", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS },

    /* Leave, which is ours */
    { "leave: who is in no list has finished", LEAVE, "0 b=0@1", .action = MU_RDZV_FINISH },
    { "leave: a heartbeat alone is no list", LEAVE, "0 b=0@1 a@1", .action = MU_RDZV_FINISH },
    { "leave: a participant goes", LEAVE, "0 complete a=0@1", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS },
    { "leave: a waiting node goes", LEAVE, "0 complete b=0@1 a~@1", .action = MU_RDZV_REMOVE_FROM_WAIT_LIST },
    { "leave: a spare goes", LEAVE, "0 complete b=0@1 a+@1", .action = MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST },
    { "leave: closed does not matter", LEAVE, "0 closed a=0@1", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS },
    { "leave: at the deadline itself it still goes", LEAVE, "0 a=0@1", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      .now_ms = D },
    { "leave: late, it fails", LEAVE, "0 complete b=0@1 a~@1", .action = MU_RDZV_ERROR_TIMEOUT, .now_ms = LATE },
    { "leave: who is in no list has finished even if late", LEAVE, "0", .action = MU_RDZV_FINISH, .now_ms = LATE },

    /* Close */

    /* Keep-alive */
    { "keep-alive: not due is done", KEEP_ALIVE, "0 complete a=0@1", .action = MU_RDZV_FINISH },
    { "keep-alive: not due is done even if late", KEEP_ALIVE, "0 complete a=0@1", .action = MU_RDZV_FINISH,
      .now_ms = LATE },
    { "keep-alive: without a heartbeat in the document it is never due", KEEP_ALIVE, "0 complete a=0",
      .action = MU_RDZV_FINISH, .due = true },
    { "keep-alive: of a node that is not there it is never due", KEEP_ALIVE, "0 complete b=0@1",
      .action = MU_RDZV_FINISH, .due = true },
    { "keep-alive: due is written", KEEP_ALIVE, "0 complete a=0@1", .action = MU_RDZV_KEEP_ALIVE, .due = true },
    { "keep-alive: at the deadline itself still", KEEP_ALIVE, "0 complete a=0@1", .action = MU_RDZV_KEEP_ALIVE,
      .due = true, .now_ms = D },
    { "keep-alive: due and late fails", KEEP_ALIVE, "0 complete a=0@1", .action = MU_RDZV_ERROR_TIMEOUT, .due = true,
      .now_ms = LATE },
    { "keep-alive: in a closed rendezvous members live on", KEEP_ALIVE, "0 complete closed a=0@1",
      .action = MU_RDZV_KEEP_ALIVE, .due = true },
};

static struct mu_rdzv_settings settings_of(int64_t min, int64_t max)
{
    struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;

    settings.nodes_min = min != 0 ? min : 2;
    settings.nodes_max = max != 0 ? max : 4;
    settings.last_call_ms = 30;
    return settings;
}

static bool is_whole(const struct mu_doc *doc)
{
    bool whole = false;

    assert_int_equal(mu_rules_ranks_whole(doc, &whole), 0);
    return whole;
}

static void decides(void **state)
{
    const struct row *row = *state;
    struct mu_rdzv_settings settings = settings_of(row->min, row->max);
    struct mu_rdzv_moment moment = { row->now_ms, D, row->due, row->over };
    struct mu_node me = node_of('a');
    enum mu_rdzv_action action = MU_RDZV_SYNC;
    struct mu_doc doc;

    doc_is(&doc, row->doc);
    switch (row->rule) {
    case JOIN:
        action = mu_rules_join(&doc, &me, &settings, &moment);
        break;
    case EXIT:
        action = mu_rules_exit(&doc, &me, &moment);
        break;
    case LEAVE:
        action = mu_rules_leave(&doc, &me, &moment);
        break;
    case KEEP_ALIVE:
        action = mu_rules_keep_alive(&doc, &me, &moment);
        break;
    }
    assert_string_equal(mu_rdzv_action_text(action), mu_rdzv_action_text(row->action));
    assert_doc(&doc, row->doc);
    mu_doc_done(&doc);
}

/* ---- What it does ---- */

struct deed { /* of node a, at 100 ms of the document's time, with a last call of 30 ms */
    const char *name;
    enum mu_rdzv_action action;
    const char *before, *after;
    int64_t min, max;
};

static const struct deed deeds[] = {
    { "keep alive: the heartbeat is now", .action = MU_RDZV_KEEP_ALIVE, "0 complete a=0@1 b=1@2",
      "0 complete a=0@100 b=1@2" },
    { "keep alive: a waiting node's, too", .action = MU_RDZV_KEEP_ALIVE, "0 complete b=0@1 a~@1",
      "0 complete b=0@1 a~@100" },
    { "keep alive: a spare's, too", .action = MU_RDZV_KEEP_ALIVE, "0 complete b=0@1 a+@1", "0 complete b=0@1 a+@100" },
    { "add to participants: with rank 0 and a heartbeat", .action = MU_RDZV_ADD_TO_PARTICIPANTS, "0", "0 a=0@100" },
    { "add to participants: out of the wait list", .action = MU_RDZV_ADD_TO_PARTICIPANTS, "1 a~@1", "1 a=0@100" },
    { "add to participants: the minimum begins the last call", .action = MU_RDZV_ADD_TO_PARTICIPANTS, "0 b=0@1",
      "0 last-call=130 b=0@1 a=0@100" },
    { "add to participants: a later one does not extend it (f)", .action = MU_RDZV_ADD_TO_PARTICIPANTS,
      "0 last-call=9 b=0@1 c=0@1", "0 last-call=9 b=0@1 c=0@1 a=0@100" },
    { "add to participants: reaching the minimum again sets it anew (f)", .action = MU_RDZV_ADD_TO_PARTICIPANTS,
      "0 last-call=9 b=0@1", "0 last-call=130 b=0@1 a=0@100" },
    { "add to participants: the maximum completes the round", .action = MU_RDZV_ADD_TO_PARTICIPANTS,
      "0 last-call=9 c=0@1 b=0@1", "0 complete c=2@1 b=1@1 a=0@100", .max = 3 },
    { "add to participants: a minimum that is the maximum completes at once (b)", .action = MU_RDZV_ADD_TO_PARTICIPANTS,
      "0 b=0@1", "0 complete b=1@1 a=0@100", .max = 2 },
    { "add to participants: a minimum of one begins the last call at once (c)", .action = MU_RDZV_ADD_TO_PARTICIPANTS,
      "0", "0 last-call=130 a=0@100", .min = 1 },
    { "add to participants: one node alone is complete at once", .action = MU_RDZV_ADD_TO_PARTICIPANTS, "0",
      "0 complete a=0@100", .min = 1, .max = 1 },
    { "add to participants: above the minimum no last call begins (g)", .action = MU_RDZV_ADD_TO_PARTICIPANTS,
      "0 b=0@1 c=0@1", "0 b=0@1 c=0@1 a=0@100" },
    { "add to participants: above the maximum nothing completes (g)", .action = MU_RDZV_ADD_TO_PARTICIPANTS,
      "0 last-call=9 b=0@1 c=0@1", "0 last-call=9 b=0@1 c=0@1 a=0@100", .max = 2 },
    { "add to participants: in dialect 1.13", .action = MU_RDZV_ADD_TO_PARTICIPANTS, "0 1.13 b=0@1",
      "0 last-call=130 1.13 b=0@1 a=0@100" },
    { "add to wait list: with a heartbeat", .action = MU_RDZV_ADD_TO_WAIT_LIST, "0 complete b=0@1",
      "0 complete b=0@1 a~@100" },
    { "add to wait list: out of the spares", .action = MU_RDZV_ADD_TO_WAIT_LIST, "0 complete b=0@1 a+@1",
      "0 complete b=0@1 a~@100" },
    { "add to wait list: in dialect 1.13", .action = MU_RDZV_ADD_TO_WAIT_LIST, "0 complete 1.13 b=0@1",
      "0 complete 1.13 b=0@1 a~@100" },
    { "add to redundancy list: with a heartbeat", .action = MU_RDZV_ADD_TO_REDUNDANCY_LIST, "0 complete b=0@1",
      "0 complete b=0@1 a+@100" },
    { "add to redundancy list: out of the wait list", .action = MU_RDZV_ADD_TO_REDUNDANCY_LIST, "0 complete b=0@1 a~@1",
      "0 complete b=0@1 a+@100" },
    { "remove from participants: the heartbeat goes, too", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      "0 a=0@1 b=0@1 c=0@1", "0 b=0@1 c=0@1" },
    { "remove from participants: but not a place in another list", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      "0 complete a=0~@1 b=1@1", "0 complete a~ b=1@1" },
    { "remove from wait list: the heartbeat goes, too", .action = MU_RDZV_REMOVE_FROM_WAIT_LIST,
      "0 complete b=0@1 a~@1", "0 complete b=0@1" },
    { "remove from redundancy list: the heartbeat goes, too", .action = MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST,
      "0 complete b=0@1 a+@1", "0 complete b=0@1" },
    { "mark complete: the last call ends and ranks are by name", .action = MU_RDZV_MARK_COMPLETE,
      "4 last-call=9 c=0@1 a=0@1 B=0@1 b=0@1 w~@1 s+@1", "4 complete c=3@1 a=1@1 B=0@1 b=2@1 w~@1 s+@1" },
    { "mark closed: and nothing else", .action = MU_RDZV_MARK_CLOSED, "2 last-call=9 a=0@1 b=0@1 w~@1",
      "2 closed last-call=9 a=0@1 b=0@1 w~@1" },
    { "mark closed: also a complete round", .action = MU_RDZV_MARK_CLOSED, "2 complete a=0@1",
      "2 complete closed a=0@1" },

    /* The epilogue of a removal */
    { "epilogue: the last member of a complete round opens the next one", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      "7 complete a=0@1 w~@1 s+@1", "8 w~@1 s+@1" },
    { "epilogue: a complete round stays complete with fewer", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      "7 complete a=0@1 b=1@1 c=2@1", "7 complete b=1@1 c=2@1" },
    { "epilogue: also below the minimum", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS, "7 complete a=0@1 b=1@1",
      "7 complete b=1@1" },
    { "epilogue: an open round below the minimum has no last call", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      "7 last-call=9 a=0@1 b=0@1", "7 b=0@1" },
    { "epilogue: an open round at the minimum keeps its last call", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      "7 last-call=9 a=0@1 b=0@1 c=0@1", "7 last-call=9 b=0@1 c=0@1" },
    { "epilogue: an open round that nobody is in stays the same round", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS,
      "7 last-call=9 a=0@1", "7", .min = 1 },
    { "epilogue: it needs a participant, a waiting node is none", .action = MU_RDZV_REMOVE_FROM_WAIT_LIST,
      "7 last-call=9 a~@1", "7 last-call=9" },
    { "epilogue: in dialect 1.13", .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS, "7 complete 1.13 a=0@1 w~@1",
      "8 1.13 w~@1" },
};

static void does(void **state)
{
    const struct deed *deed = *state;
    struct mu_rdzv_settings settings = settings_of(deed->min, deed->max);
    struct mu_node me = node_of('a');
    struct mu_doc doc;

    doc_is(&doc, deed->before);
    assert_true(mu_rdzv_action_writes(deed->action));
    assert_int_equal(mu_rules_apply(&doc, &me, &settings, deed->action, 100000), 0);
    assert_doc(&doc, deed->after);
    mu_doc_done(&doc);
}

/* ---- The dead ---- */

struct burial {
    const char *name, *dead, *before, *after;
    int64_t min;
};

static const struct burial burials[] = {
    { "sanitize: nobody dead, nothing changed", .dead = "", "7 last-call=9 a=0@1", "7 last-call=9 a=0@1", .min = 2 },
    { "sanitize: the dead vanish from every list", .dead = "bcd", "7 complete a=0@1 b=1@1 c~@1 d+@1",
      "7 complete a=0@1" },
    { "sanitize: who is dead and not there does not matter", .dead = "z", "7 complete a=0@1", "7 complete a=0@1" },
    { "sanitize: a round whose members are all dead is over", .dead = "bc", "7 complete b=0@1 c=1@1 a~@1", "8 a~@1" },
    { "sanitize: the epilogue comes once, at the end", .dead = "bcd", "7 complete b=0@1 c=1@1 d=2@1", "8" },
    { "sanitize: below the minimum the last call ends", .dead = "b", "7 last-call=9 a=0@1 b=0@1", "7 a=0@1", .min = 2 },
    { "sanitize: at the minimum it does not", .dead = "b", "7 last-call=9 a=0@1 b=0@1", "7 last-call=9 a=0@1",
      .min = 1 },
    { "sanitize: without a participant among them there is no epilogue", .dead = "b", "7 last-call=9 a=0@1 b~@1",
      "7 last-call=9 a=0@1", .min = 2 },
    { "sanitize: in dialect 1.13", .dead = "b", "7 complete 1.13 b=0@1 a~@1", "8 1.13 a~@1" },
};

static void buries(void **state)
{
    const struct burial *burial = *state;
    struct mu_rdzv_settings settings = settings_of(burial->min, 0);
    struct mu_node dead[8];
    size_t count = strlen(burial->dead);
    struct mu_doc doc;

    for (size_t i = 0; i < count; i++)
        dead[i] = node_of(burial->dead[i]);
    doc_is(&doc, burial->before);
    mu_rules_remove_dead(&doc, &settings, dead, count);
    assert_doc(&doc, burial->after);
    mu_doc_done(&doc);
}

/* ---- Ranks ---- */

static void ranks_are_by_name_then_pid_then_local_id(void **state)
{
    static const struct {
        const char *name;
        int64_t pid, local_id, rank;
    } nodes[] = {
        { "b", 1, 0, 5 },  { "a", 10, 0, 4 }, { "a", 9, 1, 3 },        { "a", 9, 0, 2 },
        { "a", -1, 7, 1 }, { "Z", 99, 9, 0 }, { "\xc3\xa4", 0, 0, 7 }, { "bb", 0, 0, 6 },
    };
    struct mu_rdzv_settings settings = settings_of(1, 100);
    struct mu_doc doc;

    (void)state;
    mu_doc_init(&doc, hash_seed, MU_DOC_DIALECT_2_X);
    for (size_t i = 0; i < COUNT(nodes); i++) {
        struct mu_node node = { mu_slice_str(nodes[i].name), nodes[i].pid, nodes[i].local_id };

        assert_int_equal(mu_rules_apply(&doc, &node, &settings, MU_RDZV_ADD_TO_PARTICIPANTS, 1), 0);
    }
    assert_false(is_whole(&doc));
    assert_int_equal(mu_rules_apply(&doc, &doc.members[0].node, &settings, MU_RDZV_MARK_COMPLETE, 1), 0);
    for (size_t i = 0; i < COUNT(nodes); i++)
        assert_int_equal(doc.members[i].rank, nodes[i].rank);
    assert_true(is_whole(&doc));
    mu_doc_done(&doc);
}

static void ranks_are_whole_when_each_is_there_once_and_in_order(void **state)
{
    static const struct {
        const char *doc;
        bool whole;
    } docs[] = {
        { "0 complete", true },
        { "0 complete a=0", true },
        { "0 complete b=1 a=0", true },
        { "0 complete b=1 a=0 c~ d+", true },
        { "0 complete a=1 b=0", false }, /* not in order */
        { "0 complete a=0 b=0", false }, /* twice */
        { "0 complete a=0 b=2", false }, /* b was 1 is missing */
        { "0 complete a=1", false },
        { "0 complete a=-1 b=0", false },
        { "0 complete a=0 b=9223372036854775807", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(docs); i++) {
        struct mu_doc doc;

        doc_is(&doc, docs[i].doc);
        assert_int_equal(is_whole(&doc), docs[i].whole);
        mu_doc_done(&doc);
    }
}

/* ---- Consequences, over several steps ---- */

/* What `letter` does until there is nothing to write: "add to wait list, wait". The document's time is 100 ms. */
static const char *acts(struct mu_doc *doc, char letter, const struct mu_rdzv_settings *settings)
{
    static struct words words;
    struct mu_node me = node_of(letter);
    struct mu_rdzv_moment moment = { 0, D, false, false };
    enum mu_rdzv_action action = MU_RDZV_SYNC;

    words.len = 0;
    for (unsigned i = 0; i < 10; i++) {
        action = mu_rules_join(doc, &me, settings, &moment);
        say_word(&words, "%s%s", i > 0 ? ", " : "", mu_rdzv_action_text(action));
        if (!mu_rdzv_action_writes(action))
            break;
        assert_int_equal(mu_rules_apply(doc, &me, settings, action, 100000), 0);
    }
    return words.text;
}

static void every_waiting_node_enters_once_the_last_member_is_gone(void **state) /* (a) */
{
    struct mu_rdzv_settings settings = settings_of(2, 2);
    struct mu_node last = node_of('m');
    struct mu_doc doc;

    (void)state;
    doc_is(&doc, "3 complete m=0@1 a~@1 b~@1");
    assert_string_equal(acts(&doc, 'a', &settings), "wait");
    assert_string_equal(acts(&doc, 'b', &settings), "wait");
    assert_int_equal(mu_rules_apply(&doc, &last, &settings, MU_RDZV_REMOVE_FROM_PARTICIPANTS, 100000), 0);
    assert_doc(&doc, "4 a~@1 b~@1");
    assert_string_equal(acts(&doc, 'b', &settings), "add to participants, wait");
    assert_string_equal(acts(&doc, 'a', &settings), "add to participants, finished");
    assert_doc(&doc, "4 complete a=0@100 b=1@100");
    mu_doc_done(&doc);
}

static void a_surplus_node_of_1_13_is_in_no_list(void **state) /* (d) */
{
    struct mu_rdzv_settings settings = settings_of(2, 2);
    struct mu_doc doc;

    (void)state;
    doc_is(&doc, "3 complete 1.13 m=0@1 n=1@1");
    assert_string_equal(acts(&doc, 'a', &settings), "wait");
    assert_doc(&doc, "3 complete 1.13 m=0@1 n=1@1");
    mu_doc_done(&doc);
}

static void a_spare_becomes_active_in_two_steps(void **state) /* (e) */
{
    struct mu_rdzv_settings settings = settings_of(1, 2);
    struct mu_doc doc;

    (void)state;
    doc_is(&doc, "3 complete m=0@1 a+@1");
    assert_string_equal(acts(&doc, 'a', &settings), "remove from redundancy list, add to wait list, wait");
    assert_doc(&doc, "3 complete m=0@1 a~@100");
    mu_doc_done(&doc);
    doc_is(&doc, "4 m=0@1 a+@1");
    assert_string_equal(acts(&doc, 'a', &settings), "remove from redundancy list, add to participants, finished");
    assert_doc(&doc, "4 complete m=1@1 a=0@100");
    mu_doc_done(&doc);
}

static void a_last_call_is_set_anew_after_the_minimum_was_lost(void **state) /* (f) */
{
    struct mu_rdzv_settings settings = settings_of(2, 4);
    struct mu_node b = node_of('b');
    struct mu_doc doc;

    (void)state;
    doc_is(&doc, "0 b=0@1");
    assert_string_equal(acts(&doc, 'a', &settings), "add to participants, wait");
    assert_string_equal(acts(&doc, 'c', &settings), "add to participants, wait");
    assert_doc(&doc, "0 last-call=130 b=0@1 a=0@100 c=0@100");
    assert_int_equal(mu_rules_apply(&doc, &b, &settings, MU_RDZV_REMOVE_FROM_PARTICIPANTS, 200000), 0);
    assert_doc(&doc, "0 last-call=130 a=0@100 c=0@100");
    b = node_of('a');
    assert_int_equal(mu_rules_apply(&doc, &b, &settings, MU_RDZV_REMOVE_FROM_PARTICIPANTS, 200000), 0);
    assert_doc(&doc, "0 c=0@100");
    assert_int_equal(mu_rules_apply(&doc, &b, &settings, MU_RDZV_ADD_TO_PARTICIPANTS, 300000), 0);
    assert_doc(&doc, "0 last-call=330 c=0@100 a=0@300");
    mu_doc_done(&doc);
}

static void nodes_with_other_limits_skip_minimum_and_maximum(void **state) /* (g) */
{
    struct mu_rdzv_settings narrow = settings_of(2, 2), wide = settings_of(1, 9);
    struct mu_doc doc;

    (void)state;
    doc_is(&doc, "0 x=0@1");
    assert_string_equal(acts(&doc, 'b', &wide), "add to participants, wait");
    assert_doc(&doc, "0 x=0@1 b=0@100");
    assert_string_equal(acts(&doc, 'a', &narrow), "add to participants, wait");
    assert_doc(&doc, "0 x=0@1 b=0@100 a=0@100"); /* neither a last call nor complete, and nobody crashes */
    mu_doc_done(&doc);
}

/* ---- Limits ---- */

static void a_last_call_does_not_pass_the_year_9999(void **state)
{
    struct mu_rdzv_settings settings = settings_of(1, 2);
    struct mu_node me = node_of('a');
    struct mu_doc doc;

    (void)state;
    doc_is(&doc, "0");
    assert_int_equal(mu_rules_apply(&doc, &me, &settings, MU_RDZV_ADD_TO_PARTICIPANTS, MU_DOC_TIME_MAX), 0);
    assert_true(doc.has_deadline && doc.deadline_us == MU_DOC_TIME_MAX);
    assert_true(mu_doc_find(&doc, &me)->heartbeat_us == MU_DOC_TIME_MAX);
    mu_doc_done(&doc);
}

static void without_memory_a_deed_says_so(void **state)
{
    static const enum mu_rdzv_action actions[] = { MU_RDZV_ADD_TO_PARTICIPANTS, MU_RDZV_ADD_TO_WAIT_LIST,
                                                   MU_RDZV_ADD_TO_REDUNDANCY_LIST, MU_RDZV_MARK_COMPLETE };
    struct mu_rdzv_settings settings = settings_of(1, 1);
    struct mu_node me = node_of('a');

    (void)state;
    for (size_t i = 0; i < COUNT(actions); i++)
        FOR_EACH_FAILURE (n) {
            struct mu_doc doc;
            int rc = 0;

            mu_doc_init(&doc, hash_seed, MU_DOC_DIALECT_2_X);
            rc = mu_rules_apply(&doc, &me, &settings, actions[i], 1);
            assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
            mu_doc_done(&doc);
        }
}

static void the_hold_down_doubles_after_each_short_round_up_to_a_minute(void **state)
{
    static const uint64_t holds_s[] = { 1, 2, 4, 8, 16, 32, 60, 60 };
    uint64_t hold_ms = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(holds_s); i++) {
        hold_ms = mu_rules_hold_ms(hold_ms, MU_HOLD_ROUND_MS - 1);
        assert_int_equal(hold_ms, holds_s[i] * 1000);
    }
    assert_int_equal(mu_rules_hold_ms(hold_ms, MU_HOLD_ROUND_MS), 0);
}

static void every_action_has_a_text(void **state)
{
    (void)state;
    for (int action = MU_RDZV_KEEP_ALIVE; action <= MU_RDZV_FINISH; action++) {
        assert_true(strlen(mu_rdzv_action_text((enum mu_rdzv_action)action)) > 1);
        assert_int_equal(mu_rdzv_action_writes((enum mu_rdzv_action)action), action < MU_RDZV_SYNC);
    }
}

int main(void)
{
    static const struct CMUnitTest scenes[] = {
        cmocka_unit_test(ranks_are_by_name_then_pid_then_local_id),
        cmocka_unit_test(ranks_are_whole_when_each_is_there_once_and_in_order),
        cmocka_unit_test(every_waiting_node_enters_once_the_last_member_is_gone),
        cmocka_unit_test(a_surplus_node_of_1_13_is_in_no_list),
        cmocka_unit_test(a_spare_becomes_active_in_two_steps),
        cmocka_unit_test(a_last_call_is_set_anew_after_the_minimum_was_lost),
        cmocka_unit_test(nodes_with_other_limits_skip_minimum_and_maximum),
        cmocka_unit_test(a_last_call_does_not_pass_the_year_9999),
        cmocka_unit_test(without_memory_a_deed_says_so),
        cmocka_unit_test(the_hold_down_doubles_after_each_short_round_up_to_a_minute),
        cmocka_unit_test(every_action_has_a_text),
    };
    static struct CMUnitTest tests[COUNT(rows) + COUNT(deeds) + COUNT(burials) + COUNT(scenes)];
    size_t count = 0;

    for (size_t i = 0; i < COUNT(rows); i++)
        tests[count++] = (struct CMUnitTest){ rows[i].name, decides, NULL, NULL, (void *)&rows[i] };
    for (size_t i = 0; i < COUNT(deeds); i++)
        tests[count++] = (struct CMUnitTest){ deeds[i].name, does, NULL, NULL, (void *)&deeds[i] };
    for (size_t i = 0; i < COUNT(burials); i++)
        tests[count++] = (struct CMUnitTest){ burials[i].name, buries, NULL, NULL, (void *)&burials[i] };
    for (size_t i = 0; i < COUNT(scenes); i++)
        tests[count++] = scenes[i];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
