/* The story of a rendezvous: PyTorch's operations, states and messages, told to whoever listens, and to nobody else. */
#include "base/log.h"
#include "base/words.h"
#include "handler/rdzv_trace.h"
#include "pure.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct muster_node node = { "host7", 4711, 3 };

static const struct muster_error timeout = { .code = MUSTER_ERDZV_TIMEOUT, .text = "join rendezvous 'job': too late" };

static const struct {
    struct mu_rdzv_trace story;
    const char *operation, *state, *text;
} rows[] = {
#define HANDLER "dynamic_rendezvous.py:DynamicRendezvousHandler."
#define EXECUTOR "dynamic_rendezvous.py:_DistributedRendezvousOpExecutor."
#define HOLDER "dynamic_rendezvous.py:_BackendRendezvousStateHolder."
    { { .kind = MU_RDZV_TRACE_HOSTS },
      "c10d_rendezvous_backend.py:_create_tcp_store",
      "INIT",
      "Process 4711 hosts the TCP store for the C10d rendezvous backend." },
    { { .kind = MU_RDZV_TRACE_ATTEMPTS },
      HANDLER "next_rendezvous",
      "RUNNING",
      "The node 'host7_4711_3' attempts to join the next round of the rendezvous 'job'." },
    { { .kind = MU_RDZV_TRACE_JOINED, .round = 5, .rank = 1, .world_size = 4 },
      HANDLER "next_rendezvous",
      "RUNNING",
      "The node 'host7_4711_3' has joined round 5 of the rendezvous 'job' as rank 1 in a world of size 4." },
    { { .kind = MU_RDZV_TRACE_KEEPS_ALIVE, .round = 5 },
      EXECUTOR "_keep_alive",
      "RUNNING",
      "The node 'host7_4711_3' updated its keep-alive heartbeat time for the rendezvous 'job'. Pending sync." },
    { { .kind = MU_RDZV_TRACE_ADDS_TO_PARTICIPANTS, .round = 5 },
      EXECUTOR "_add_to_participants",
      "RUNNING",
      "The node 'host7_4711_3' added itself to the participants of round 5 of the rendezvous 'job'. Pending sync." },
    { { .kind = MU_RDZV_TRACE_ADDS_TO_WAIT_LIST, .round = 5 },
      EXECUTOR "_add_to_wait_list",
      "RUNNING",
      "The node 'host7_4711_3' added itself to the wait list of round 6 of the rendezvous 'job'. Pending sync." },
    { { .kind = MU_RDZV_TRACE_ADDS_TO_REDUNDANCY_LIST, .round = 5 },
      EXECUTOR "_add_to_redundancy_list",
      "RUNNING",
      "The node 'host7_4711_3' added itself to the redundancy list of round 6 of the rendezvous 'job'. Pending sync." },
    { { .kind = MU_RDZV_TRACE_REMOVES_FROM_PARTICIPANTS, .round = 5 },
      EXECUTOR "_remove_from_participants",
      "RUNNING",
      "The node 'host7_4711_3' removed itself from the participants of round 5 of the rendezvous 'job'. "
      "Pending sync." },
    { { .kind = MU_RDZV_TRACE_REMOVES_FROM_WAIT_LIST, .round = 5 },
      EXECUTOR "_remove_from_wait_list",
      "RUNNING",
      "The node 'host7_4711_3' removed itself from the wait list of round 6 of the rendezvous 'job'. Pending sync." },
    { { .kind = MU_RDZV_TRACE_REMOVES_FROM_REDUNDANCY_LIST, .round = 5 },
      EXECUTOR "_remove_from_redundancy_list",
      "RUNNING",
      "The node 'host7_4711_3' removed itself from the redundant list of round 6 of the rendezvous 'job'. "
      "Pending sync." },
    { { .kind = MU_RDZV_TRACE_MARKS_COMPLETE, .round = 5 },
      EXECUTOR "_mark_rendezvous_complete",
      "SUCCEEDED",
      "The node 'host7_4711_3' marked round 5 of the rendezvous 'job' as complete. Pending sync." },
    { { .kind = MU_RDZV_TRACE_MARKS_CLOSED },
      EXECUTOR "_mark_rendezvous_closed",
      "SUCCEEDED",
      "The node 'host7_4711_3' marked the rendezvous 'job' as closed. Pending sync." },
    { { .kind = MU_RDZV_TRACE_SYNCED },
      EXECUTOR "run",
      "RUNNING",
      "The node 'host7_4711_3' has successfully synced its local changes with other nodes in the rendezvous 'job'." },
    { { .kind = MU_RDZV_TRACE_STALE },
      EXECUTOR "run",
      "RUNNING",
      "The node 'host7_4711_3' has a stale state and failed to sync its local changes with other nodes in the "
      "rendezvous 'job'." },
    { { .kind = MU_RDZV_TRACE_BEAT },
      HANDLER "_keep_alive",
      "RUNNING",
      "The node 'host7_4711_3' has sent a keep-alive heartbeat to the rendezvous 'job'." },
    { { .kind = MU_RDZV_TRACE_CLOSED },
      HANDLER "_close",
      "SUCCEEDED",
      "The node 'host7_4711_3' has closed the rendezvous 'job'." },
    { { .kind = MU_RDZV_TRACE_LEFT },
      "muster:leave",
      "RUNNING",
      "The node 'host7_4711_3' has left the rendezvous 'job'." },
    { { .kind = MU_RDZV_TRACE_JOIN_FAILED, .error = &timeout },
      HANDLER "next_rendezvous",
      "FAILED",
      "RendezvousTimeoutError: join rendezvous 'job': too late" },
    { { .kind = MU_RDZV_TRACE_IS_CLOSED_FAILED, .error = &timeout },
      HANDLER "is_closed",
      "FAILED",
      "RendezvousTimeoutError: join rendezvous 'job': too late" },
    { { .kind = MU_RDZV_TRACE_SET_CLOSED_FAILED, .error = &timeout },
      HANDLER "set_closed",
      "FAILED",
      "RendezvousTimeoutError: join rendezvous 'job': too late" },
    { { .kind = MU_RDZV_TRACE_NODES_WAITING_FAILED, .error = &timeout },
      HANDLER "num_nodes_waiting",
      "FAILED",
      "RendezvousTimeoutError: join rendezvous 'job': too late" },
    { { .kind = MU_RDZV_TRACE_SHUTDOWN_FAILED, .error = &timeout },
      HANDLER "shutdown",
      "FAILED",
      "The node 'host7_4711_3' has failed to shutdown the rendezvous 'job' due to an error of type "
      "RendezvousTimeoutError." },
    { { .kind = MU_RDZV_TRACE_BEAT_FAILED, .error = &timeout },
      HANDLER "_keep_alive",
      "FAILED",
      "The node 'host7_4711_3' has failed to send a keep-alive heartbeat to the rendezvous 'job' due to an error of "
      "type RendezvousTimeoutError." },
    { { .kind = MU_RDZV_TRACE_SYNC_FAILED, .error = &timeout },
      HOLDER "sync",
      "FAILED",
      "RendezvousTimeoutError: join rendezvous 'job': too late" },
    { { .kind = MU_RDZV_TRACE_LEAVE_FAILED, .error = &timeout },
      "muster:leave",
      "FAILED",
      "RendezvousTimeoutError: join rendezvous 'job': too late" },
    { { .kind = MU_RDZV_TRACE_CREATE_FAILED, .error = &timeout },
      "dynamic_rendezvous.py:create_handler",
      "FAILED",
      "RendezvousTimeoutError: join rendezvous 'job': too late" },
    { { .kind = MU_RDZV_TRACE_BACKEND_FAILED, .error = &timeout },
      "c10d_rendezvous_backend.py:create_backend",
      "FAILED",
      "RendezvousTimeoutError: join rendezvous 'job': too late" },
};

struct heard {
    unsigned records, lines;
    char text[4096], line[4096];
};

static void on_record(void *ctx, const struct muster_event_record *record)
{
    struct heard *heard = ctx;

    heard->records++;
    (void)snprintf(heard->text, sizeof heard->text, "%s|%s|%s|%s|%s_%d_%d|%d|%s", record->name,
                   muster_node_state_name(record->node_state), record->message, record->run_id, record->hostname,
                   (int)record->pid, (int)record->local_id, (int)record->rank, record->error);
}

static void on_line(void *ctx, enum muster_log_level level, const char *line)
{
    struct heard *heard = ctx;

    assert_int_equal(level, MUSTER_LOG_DEBUG);
    heard->lines++;
    (void)snprintf(heard->line, sizeof heard->line, "%s", line);
}

static int be_quiet(void **state)
{
    (void)state;
    muster_events_set_sink(NULL, NULL);
    muster_log_set_sink(NULL, NULL);
    muster_log_set_level(MUSTER_LOG_DEBUG);
    return 0;
}

static void every_step_has_pytorchs_words(void **state)
{
    const struct mu_teller who = mu_teller_of("job", &node);
    struct heard heard = { 0 };
    char expected[4096];

    (void)state;
    muster_events_set_sink(on_record, &heard);
    muster_log_set_sink(on_line, &heard);
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct muster_error *error = rows[i].story.error;

        mu_rdzv_trace_tell(&who, rows[i].story);
        (void)snprintf(expected, sizeof expected, "%s|%s|%s|job|host7_4711_3|%d|%s", rows[i].operation, rows[i].state,
                       rows[i].text, rows[i].story.kind == MU_RDZV_TRACE_JOINED ? 1 : -1,
                       error != NULL ? error->text : "(null)");
        assert_string_equal(heard.text, expected);
        assert_string_equal(heard.line, rows[i].text);
    }
    assert_int_equal(heard.records, COUNT(rows));
    assert_int_equal(heard.lines, COUNT(rows));
}

static void a_host_has_no_place_in_the_group_yet(void **state)
{
    struct heard heard = { 0 };

    (void)state;
    muster_events_set_sink(on_record, &heard);
    mu_rdzv_trace_hosts(mu_teller_of("job", &node));
    assert_non_null(strstr(heard.text, "|Process 4711 hosts the TCP store for the C10d rendezvous backend.|job|"));
    assert_non_null(strstr(heard.text, "|host7_4711_-1|"));
}

/* ---- What machines do ---- */

static struct mu_words diary; /* records and lines, in order: "_keep_alive; info: text; " */
static char diary_text[4096];

static void on_diary_record(void *ctx, const struct muster_event_record *record)
{
    const char *dot = strrchr(record->name, '.');

    (void)ctx;
    mu_words_add(&diary, "%s; ", dot != NULL ? dot + 1 : record->name);
}

static void on_diary_line(void *ctx, enum muster_log_level level, const char *line)
{
    static const char *const levels[] = {
        [MUSTER_LOG_DEBUG] = "debug", [MUSTER_LOG_INFO] = "info", [MUSTER_LOG_WARNING] = "warning"
    };

    (void)ctx;
    if (strncmp(line, "rendezvous '", 12) == 0) /* other lines are the records' */
        mu_words_add(&diary, "%s: %s; ", levels[level], line);
}

static struct mu_teller begin_diary(void)
{
    diary = (struct mu_words){ .text = diary_text, .room = sizeof diary_text };
    diary_text[0] = '\0';
    muster_events_set_sink(on_diary_record, NULL);
    muster_log_set_sink(on_diary_line, NULL);
    return mu_teller_of("job", &node);
}

static void each_action_that_writes_has_a_step_of_its_own(void **state)
{
    char before[sizeof diary_text] = "";

    (void)state;
    for (int i = MU_RDZV_KEEP_ALIVE; i <= MU_RDZV_FINISH; i++) {
        const struct mu_rdzv_deed deed = { .action = (enum mu_rdzv_action)i };
        struct mu_teller who = begin_diary();

        if (!mu_rdzv_action_writes(deed.action))
            continue;
        mu_rdzv_trace_planned(&who, (struct mu_rdzv_deeds){ &deed, 1 }, 2);
        assert_true(diary_text[0] == '_' && strstr(before, diary_text) == NULL);
        (void)strcat(before, diary_text);
    }
}

static void what_a_write_is_to_do_is_told_in_order(void **state)
{
    static const struct mu_rdzv_deed deeds[] = {
        { .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS, .round = 4, .ends_round = true },
        { .action = MU_RDZV_REMOVE_FROM_PARTICIPANTS, .round = 5, .ends_last_call = true },
        { .action = MU_RDZV_ADD_TO_PARTICIPANTS, .round = 5 },
    };
    struct mu_teller who = begin_diary();

    (void)state;
    mu_rdzv_trace_planned(&who, (struct mu_rdzv_deeds){ deeds, COUNT(deeds) }, 2);
    assert_string_equal(diary_text,
                        "_remove_from_participants; debug: rendezvous 'job': no participants left; the next round "
                        "begins; _remove_from_participants; debug: rendezvous 'job': fewer participants left than the "
                        "minimum of 2; the last call is off; _add_to_participants; ");
}

static void what_became_of_a_write_is_told_in_order(void **state)
{
    static struct mu_node dead[] = { { { "a", 1 }, 1, 2 }, { { "b", 1 }, 3, 4 } };
    static const struct {
        bool written, beat;
        size_t dead;
        const char *told;
    } table[] = {
        { true, false, 0, "run; " },
        { false, false, 0, "run; " },
        { true, true, 0, "run; _keep_alive; " },
        { true, true, 2,
          "info: rendezvous 'job': removed a_1_2, which had no heartbeat; info: rendezvous 'job': removed b_3_4, which "
          "had no heartbeat; sync; run; _keep_alive; " },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(table); i++) {
        struct mu_teller who = begin_diary();
        struct heard heard = { 0 };

        mu_rdzv_trace_synced(&who, &(struct mu_rdzv_effect){ .written = table[i].written, .beat = table[i].beat },
                             (struct mu_rdzv_nodes){ dead, table[i].dead });
        assert_string_equal(diary_text, table[i].told);
        muster_events_set_sink(on_record, &heard);
        mu_rdzv_trace_synced(&who, &(struct mu_rdzv_effect){ .written = table[i].written },
                             (struct mu_rdzv_nodes){ NULL, 0 });
        assert_non_null(strstr(heard.text, table[i].written ? "successfully synced" : "stale state"));
    }
}

static void what_only_a_machine_knows_is_told_as_that_of_others(void **state)
{
    static const struct muster_error foreign = { .text = "somebody else's document" };
    struct mu_teller who = begin_diary();

    (void)state;
    mu_rdzv_trace_fold(&who, &(struct mu_fold_effect){ .type = MU_FOLD_DO_COMPLETED, .news = { .round = 5 } });
    assert_string_equal(diary_text, "_mark_rendezvous_complete; run; ");
    who = begin_diary();
    mu_rdzv_trace_fold(&who, &(struct mu_fold_effect){ .type = MU_FOLD_DO_LEADER });
    assert_string_equal(diary_text, "debug: rendezvous 'job': this node writes the job's document now; ");
    who = begin_diary();
    mu_rdzv_trace_ghost(&who, &(struct mu_node){ { "a", 1 }, 1, 2 }, 15000);
    assert_string_equal(diary_text, "info: rendezvous 'job': a_1_2, an earlier process of this host, is gone but still "
                                    "listed; it is dropped after 15 s without a heartbeat; ");
    for (int i = 0; i < MU_PART_TELLS_COUNT; i++) {
        who = begin_diary();
        mu_rdzv_trace_news(&who, &(struct mu_part_news){ .tell = (enum mu_part_tell)i, .error = &foreign });
        assert_string_equal(diary_text,
                            i == MU_PART_TELL_FOREIGN ? "warning: rendezvous 'job': somebody else's document; " : "");
    }
}

static void what_a_conversation_comes_to_is_a_step_or_none(void **state)
{
    enum { NONE = -1 };
    static const struct {
        struct mu_talk_effect effect;
        bool has_back_end, is_member;
        int expected;
    } table[] = {
#define TELL(what, by) { .type = MU_TALK_DO_TELL, .tell = MU_PART_TELL_##what, .asked = MU_PART_ON_##by }
        { { .type = MU_TALK_DO_ASK, .asked = MU_PART_ON_JOIN }, true, false, MU_RDZV_TRACE_ATTEMPTS },
        { { .type = MU_TALK_DO_ASK, .asked = MU_PART_ON_LEAVE }, true, true, NONE },
        { { .type = MU_TALK_DO_START_BOOT }, true, true, NONE },
        { TELL(JOINED, TIME), true, true, MU_RDZV_TRACE_JOINED },
        { TELL(LEFT, TIME), true, false, MU_RDZV_TRACE_LEFT },
        { TELL(LEFT, TIME), false, false, NONE }, /* it was in no round */
        { TELL(CLOSED, CLOSE), true, true, MU_RDZV_TRACE_CLOSED },
        { TELL(CLOSED, TIME), true, true, NONE }, /* by another node */
        { TELL(FAILED, JOIN), true, false, MU_RDZV_TRACE_JOIN_FAILED },
        { TELL(FAILED, JOIN), false, false, NONE }, /* told as the failure of the back end */
        { TELL(FAILED, LEAVE), true, true, MU_RDZV_TRACE_LEAVE_FAILED },
        { TELL(FAILED, TIME), true, true, MU_RDZV_TRACE_BEAT_FAILED },
        { TELL(FAILED, CLOSE), true, true, NONE },
        { TELL(BACKEND_DOWN, TIME), true, true, MU_RDZV_TRACE_BEAT_FAILED },
        { TELL(BACKEND_DOWN, TIME), true, false, MU_RDZV_TRACE_SYNC_FAILED },
        { TELL(WAITING, TIME), true, true, NONE },
        { TELL(LOOKED, TIME), true, true, NONE },
#undef TELL
    };

    (void)state;
    for (size_t i = 0; i < COUNT(table); i++) {
        enum mu_rdzv_trace_kind kind = MU_RDZV_TRACE_HOSTS;
        bool is_step = mu_rdzv_trace_of_talk(&table[i].effect, table[i].has_back_end, table[i].is_member, &kind);

        assert_int_equal(is_step ? (int)kind : NONE, table[i].expected);
    }
}

static void of_a_thousand_dead_nodes_a_few_are_named(void **state)
{
    static struct mu_node nodes[1000];
    const struct mu_teller who = mu_teller_of("job", &node);
    struct mu_rdzv_trace story = { .kind = MU_RDZV_TRACE_DEAD_REMOVED, .nodes = nodes, .nodes_count = 2 };
    char text[MU_RDZV_TRACE_TEXT_MAX];
    struct heard heard = { 0 };

    (void)state;
    for (size_t i = 0; i < COUNT(nodes); i++)
        nodes[i] = (struct mu_node){ mu_slice_str("dead"), (int64_t)i, 0 };
    assert_string_equal(mu_rdzv_trace_text(&who, &story, text),
                        "As part of the sync operation the node(s) 'dead_0_0', 'dead_1_0' have been removed from the "
                        "rendezvous 'job' since they had no heartbeat.");
    muster_events_set_sink(on_record, &heard);
    mu_rdzv_trace_tell(&who, story);
    assert_non_null(strstr(heard.text, HOLDER "sync|"));
    story.nodes_count = COUNT(nodes);
    (void)mu_rdzv_trace_text(&who, &story, text);
    assert_non_null(strstr(text, "'dead_15_0' and 984 more have been removed"));
}

/* The names are at an address that cannot be read: whoever looked at them would die. */
static void without_listeners_no_text_is_put_together(void **state)
{
    char *unreadable = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const struct mu_teller who = { unreadable, { { unreadable, 9 }, 1, 1 } };
    const struct mu_teller good = mu_teller_of("job", &node);
    struct heard heard = { 0 };

    (void)state;
    assert_ptr_not_equal(unreadable, MAP_FAILED);
    mu_rdzv_trace_tell(&who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_SYNCED });
    muster_log_set_sink(on_line, &heard);
    muster_log_set_level(MUSTER_LOG_INFO);
    mu_rdzv_trace_tell(&who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_SYNCED });
    assert_int_equal(heard.lines, 0);
    muster_events_set_sink(on_record, &heard); /* events have no level */
    mu_rdzv_trace_tell(&good, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_SYNCED });
    assert_int_equal(heard.records, 1);
    assert_int_equal(heard.lines, 0);
    assert_int_equal(munmap(unreadable, 4096), 0);
}

static void errors_have_the_kinds_of_a_rendezvous(void **state)
{
    static const struct {
        int code;
        const char *kind;
    } kinds[] = {
        { MUSTER_ELOST, "RendezvousConnectionError" },
        { MUSTER_ECONNECT, "RendezvousConnectionError" },
        { MUSTER_ETIMEOUT, "RendezvousConnectionError" },
        { MUSTER_ERDZV_CONNECTION, "RendezvousConnectionError" },
        { MUSTER_ERDZV_CLOSED, "RendezvousClosedError" },
        { MUSTER_ERDZV_STATE, "RendezvousStateError" },
        { MUSTER_ERDZV_TIMEOUT, "RendezvousTimeoutError" },
        { MUSTER_ERDZV_GRACEFUL_EXIT, "RendezvousGracefulExitError" },
        { MUSTER_EINVAL, "ValueError" },
        { MUSTER_ENOMEM, "MemoryError" },
        { MUSTER_EINTERNAL, "RuntimeError" },
    };
    const struct mu_teller who = mu_teller_of("job", &node);
    char text[MU_RDZV_TRACE_TEXT_MAX], expected[100];

    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++) {
        const struct muster_error error = { .code = kinds[i].code, .text = "so it is" };

        (void)snprintf(expected, sizeof expected, "%s: so it is", kinds[i].kind);
        assert_string_equal(
            mu_rdzv_trace_text(&who, &(struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_JOIN_FAILED, .error = &error },
                               text),
            expected);
        (void)snprintf(expected, sizeof expected, "due to an error of type %s.", kinds[i].kind);
        assert_non_null(
            strstr(mu_rdzv_trace_text(
                       &who, &(struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_BEAT_FAILED, .error = &error }, text),
                   expected));
    }
}

static void phases_are_told_when_they_change_and_not_without_end(void **state)
{
    static const char *const texts[] = { "wait for peers", "read the document" };
    struct mu_rdzv_trace_phases phases = { .last = NULL };
    struct heard heard = { 0 };

    (void)state;
    mu_rdzv_trace_phase(&phases, "job", texts[0], 0); /* nobody hears it */
    muster_log_set_sink(on_line, &heard);
    for (int i = 0; i < 3; i++)
        mu_rdzv_trace_phase(&phases, "job", texts[0], 0);
    assert_int_equal(heard.lines, 1);
    assert_string_equal(heard.line, "rendezvous 'job': wait for peers");
    for (int i = 0; i < 1000; i++)
        mu_rdzv_trace_phase(&phases, "job", texts[(i + 1) % 2], 0);
    assert_int_equal(heard.lines, MU_RDZV_TRACE_PHASES_BURST);
    mu_rdzv_trace_phase(&phases, "job", texts[1], 1000);
    assert_string_equal(heard.line, "rendezvous 'job': read the document (after 951 more lines of this kind)");
}

static void texts_of_any_length_are_cut(void **state)
{
    char run_id[4096] = "", text[MU_RDZV_TRACE_TEXT_MAX];
    const struct mu_teller who = mu_teller_of(run_id, &node);

    (void)state;
    memset(run_id, 'x', sizeof run_id - 1);
    run_id[sizeof run_id - 1] = '\0';
    (void)mu_rdzv_trace_text(&who, &(struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_STALE }, text);
    assert_int_equal(strlen(text), MU_RDZV_TRACE_TEXT_MAX - 1);
}

static void who_has_no_place_yet_is_known_by_its_host(void **state)
{
    char hostname[MU_HANDLER_NAME_MAX], own[MU_HANDLER_NAME_MAX];
    struct mu_teller who = mu_teller_new("job", "10.0.0.7", -1, hostname);

    (void)state;
    assert_string_equal(who.node.name.data, "10.0.0.7");
    assert_true(who.node.pid > 0);
    assert_int_equal(who.node.local_id, -1);
    assert_int_equal(gethostname(own, sizeof own), 0);
    who = mu_teller_new("job", NULL, 5, hostname);
    assert_ptr_equal(who.node.name.data, hostname);
    assert_string_equal(hostname, own);
    assert_int_equal(who.node.local_id, 5);
    who = mu_teller_new("job", "", 5, hostname); /* as good as none */
    assert_string_equal(who.node.name.data, own);
}

static void who_does_not_know_itself_yet_is_known_by_its_host(void **state)
{
    const struct muster_node self = { "node7", 7, 3 }, nameless = { .name = NULL };
    char hostname[MU_HANDLER_NAME_MAX], own[MU_HANDLER_NAME_MAX];
    struct mu_teller who = mu_teller_of_self("job", &self, hostname);

    (void)state;
    assert_string_equal(who.node.name.data, "node7");
    assert_int_equal(who.node.local_id, 3);
    assert_int_equal(gethostname(own, sizeof own), 0);
    who = mu_teller_of_self("job", &nameless, hostname);
    assert_string_equal(who.node.name.data, own);
    assert_int_equal(who.node.local_id, -1);
    who = mu_teller_of_self("job", NULL, hostname);
    assert_string_equal(who.node.name.data, own);
}

#define QUIETLY(test) cmocka_unit_test_setup_teardown(test, be_quiet, be_quiet)

int main(void)
{
    const struct CMUnitTest tests[] = {
        QUIETLY(every_step_has_pytorchs_words),
        QUIETLY(a_host_has_no_place_in_the_group_yet),
        QUIETLY(each_action_that_writes_has_a_step_of_its_own),
        QUIETLY(what_a_write_is_to_do_is_told_in_order),
        QUIETLY(what_became_of_a_write_is_told_in_order),
        QUIETLY(what_only_a_machine_knows_is_told_as_that_of_others),
        QUIETLY(what_a_conversation_comes_to_is_a_step_or_none),
        QUIETLY(of_a_thousand_dead_nodes_a_few_are_named),
        QUIETLY(without_listeners_no_text_is_put_together),
        QUIETLY(errors_have_the_kinds_of_a_rendezvous),
        QUIETLY(phases_are_told_when_they_change_and_not_without_end),
        QUIETLY(texts_of_any_length_are_cut),
        QUIETLY(who_has_no_place_yet_is_known_by_its_host),
        QUIETLY(who_does_not_know_itself_yet_is_known_by_its_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
