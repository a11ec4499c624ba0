/* What a dynamic handler asks the store beside the document machine: a scene is a list of what happens, and what comes
 * of each. */
#include "handler/inquiry.h"
#include "pure.h"

#include <stdio.h>

static struct mu_doc doc;
static struct mu_inquiry inquiry;
static uint64_t now_ms;
static char board[MU_NOTICE_BOARD_BYTES_MAX]; /* what was to be written last */
static size_t board_len;

static struct mu_node node(const char *name, int64_t pid, bool ours)
{
    return (struct mu_node){ mu_slice_str(name), pid, ours ? mu_node_local_id(MU_NODE_VERSION, (uint32_t)pid) : 0 };
}

static void begin(bool has_board)
{
    mu_inquiry_init(&inquiry, &(struct mu_inquiry_config){ .run_id = "job7",
                                                           .name = "node1",
                                                           .nodes_min = 4,
                                                           .nodes_max = 4,
                                                           .store_host = "host",
                                                           .has_board = has_board });
    now_ms = 1000;
}

static int start(void **state)
{
    (void)state;
    mu_doc_init(&doc, (struct mu_hash_seed){ 1, 2 }, MU_DOC_DIALECT_2_X);
    begin(true);
    return 0;
}

static int end(void **state)
{
    (void)state;
    mu_doc_done(&doc);
    return 0;
}

static void enter(struct mu_node who, unsigned in)
{
    assert_non_null(mu_doc_enter(&doc, &who, in));
}

static const char *feed(struct mu_inquiry_event event)
{
    static const char *const names[] = { "", "ask host", "write", "leave", "progress" };
    static char told[64];
    struct mu_inquiry_effect effect;

    event.now_ms = now_ms;
    event.doc = &doc;
    effect = mu_inquiry_step(&inquiry, &event);
    if (effect.type == MU_INQUIRY_DO_WRITE_BOARD || effect.type == MU_INQUIRY_DO_LEAVE_BOARD) {
        board_len = effect.value.len;
        memcpy(board, effect.value.data, board_len);
    }
    if (effect.type != MU_INQUIRY_DO_TAKE_HOST)
        return names[effect.type];
    if (!effect.has_node)
        return "no host";
    (void)snprintf(told, sizeof told, "host %.*s_%lld", (int)effect.node.name.len, effect.node.name.data,
                   (long long)effect.node.pid);
    return told;
}

struct row {
    struct mu_inquiry_event event;
    const char *text, *what;
};

#define ON(name) ON_##name
#define ON_WAIT                                                                                                        \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_TALKED, .waits = true                                                                    \
    }
#define ON_WAITED                                                                                                      \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_TALKED                                                                                   \
    }
#define ON_READ                                                                                                        \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_ANSWERED, .answer = MU_RDZV_STATE                                                        \
    }
#define ON_WROTE                                                                                                       \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_ANSWERED, .answer = MU_RDZV_WRITTEN                                                      \
    }
#define ON_UP                                                                                                          \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_TOLD, .tell = MU_PART_TELL_BACKEND_UP                                                    \
    }
#define ON_DOWN                                                                                                        \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_TOLD, .tell = MU_PART_TELL_BACKEND_DOWN                                                  \
    }
#define ON_PROGRESS                                                                                                    \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_PROGRESS                                                                                 \
    }
#define ON_BOOT                                                                                                        \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_BOOT                                                                                     \
    }
#define ON_HOST                                                                                                        \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_HOST                                                                                     \
    }
#define ON_NO_HOST                                                                                                     \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_HOST, .rc = MUSTER_ELOST                                                                 \
    }
#define ON_BOARD                                                                                                       \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_BOARD                                                                                    \
    }
#define ON_NO_BOARD                                                                                                    \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_BOARD, .rc = MUSTER_ELOST                                                                \
    }
#define ON_LEFT                                                                                                        \
    {                                                                                                                  \
        .type = MU_INQUIRY_ON_LEFT_BOARD                                                                               \
    }
#define PLAY(...) play((const struct row[]){ __VA_ARGS__ }, COUNT(((const struct row[]){ __VA_ARGS__ })))

static void play(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct mu_inquiry_event event = rows[i].event;

        event.text = mu_slice_str(rows[i].text);
        assert_string_equal(feed(event), rows[i].what);
    }
}

static const char *written(void) /* the last compare-and-set was made */
{
    return feed((struct mu_inquiry_event){ .type = MU_INQUIRY_ON_BOARD, .text = mu_slice(board, board_len) });
}

/* ---- Who hosts ---- */

static void the_host_is_asked_for_until_it_is_known(void **state)
{
    (void)state;
    PLAY({ ON(PROGRESS), "", "ask host" }, { ON(PROGRESS), "", "" }, /* one question at a time */
         { ON(NO_HOST), "", "" }, { ON(PROGRESS), "", "ask host" }, { ON(HOST), "no node", "" }, /* not a node's text */
         { ON(PROGRESS), "", "ask host" }, { ON(HOST), "", "no host" }, { ON(PROGRESS), "", "ask host" },
         { ON(HOST), "node7_12_34", "host node7_12" }, { ON(PROGRESS), "", "" });
}

static void a_round_and_a_store_that_is_back_ask_for_the_host_anew(void **state)
{
    (void)state;
    PLAY({ ON(HOST), "node7_12_34", "host node7_12" }, { ON(BOOT), "", "ask host" }, { ON(UP), "", "" },
         { ON(BOOT), "", "" }, { ON(HOST), "node8_1_2", "host node8_1" }, { ON(DOWN), "", "" },
         { ON(UP), "", "ask host" }, { ON(PROGRESS), "", "" });
}

static void a_member_of_pytorch_with_the_endpoints_name_hosts_the_store(void **state)
{
    (void)state;
    enter(node("host", 1, true), MU_DOC_PARTICIPANT); /* ours say so themselves */
    enter(node("host", 2, false), MU_DOC_WAITING);
    enter(node("other", 3, false), MU_DOC_PARTICIPANT);
    PLAY({ ON(HOST), "", "no host" });
    enter(node("host", 4, false), MU_DOC_PARTICIPANT);
    PLAY({ ON(HOST), "", "host host_4" }, { ON(PROGRESS), "", "" });
    inquiry.config.store_host = NULL;
    PLAY({ ON(HOST), "", "no host" });
}

/* ---- The board ---- */

static void the_board_is_written_only_while_the_owner_waits(void **state)
{
    (void)state;
    PLAY({ ON(READ), "", "" }, { ON(WAIT), "", "" }, { ON(READ), "", "" }); /* not yet: the round may form at once */
    now_ms += MU_NOTICE_BOARD_BEAT_MS;
    PLAY({ ON(WAIT), "", "" }, { ON(WROTE), "", "" });     /* the wait goes on */
    PLAY({ ON(READ), "", "write" }, { ON(READ), "", "" }); /* one at a time */
    assert_string_equal(written(), "");
    PLAY({ ON(READ), "", "" });
    now_ms += MU_NOTICE_BOARD_BEAT_MS;
    PLAY({ ON(READ), "", "write" }, { ON(NO_BOARD), "", "" }, { ON(READ), "", "" });
    now_ms += MU_NOTICE_BOARD_BEAT_MS;
    PLAY({ ON(READ), "", "write" });
    assert_string_equal(written(), "");
    PLAY({ ON(WAITED), "", "leave" }, { ON(LEFT), "", "" });
    assert_int_equal(board_len, 0);
    now_ms += MU_NOTICE_BOARD_BEAT_MS;
    PLAY({ ON(READ), "", "" }, { ON(WAITED), "", "" });
}

static void a_wait_that_ends_soon_leaves_no_line(void **state)
{
    (void)state;
    PLAY({ ON(WAIT), "", "" }, { ON(READ), "", "" }, { ON(WAITED), "", "" });
}

static void a_store_of_one_rendezvous_has_no_board(void **state)
{
    (void)state;
    begin(false);
    PLAY({ ON(WAIT), "", "" });
    now_ms += MU_NOTICE_BOARD_BEAT_MS;
    PLAY({ ON(READ), "", "" }, { ON(WAITED), "", "" });
}

static void what_is_on_the_board_is_written_back_at_once_and_others_are_told(void **state)
{
    (void)state;
    PLAY({ ON(WAIT), "", "" });
    now_ms += MU_NOTICE_BOARD_BEAT_MS;
    PLAY({ ON(READ), "", "write" },
         { ON(BOARD), "job8 4 4 node7 1\n", "write" }); /* an old line is not believed; ours is put behind it */
    assert_string_equal(written(), "");
    now_ms += MU_NOTICE_BOARD_BEAT_MS;
    PLAY({ ON(READ), "", "write" }, { ON(BOARD), "job8 4 4 node7 2\n", "progress" }, /* it is alive */
         { ON(READ), "", "write" }, { ON(BOARD), "job8 4 4 node7 3\n", "" });
}

static void an_answer_that_outlives_its_wait_is_not_believed(void **state)
{
    (void)state;
    PLAY({ ON(WAIT), "", "" });
    now_ms += MU_NOTICE_BOARD_BEAT_MS;
    PLAY({ ON(READ), "", "write" }, { ON(WAITED), "", "leave" }, { ON(BOARD), "job8 4 4 node7 1\n", "" });
    assert_false(inquiry.board.looked);
}

/* ---- Ghosts ---- */

static bool is_gone(int64_t pid)
{
    return pid != 8;
}

static void an_earlier_process_of_this_host_may_be_a_ghost(void **state)
{
    const struct mu_node me = node("me", 10, true);
    const struct {
        struct mu_node node;
        bool is_ghost;
    } rows[] = {
        { node("me", 10, true), false },
        { node("you", 9, true), false },
        { node("me", 9, false), false },
        { node("me", 0, true), false }, /* it would be our process group */
        { node("me", INT64_C(1) << 32, true), false },
        { node("me", 8, true), false }, /* it lives */
        { node("me", 9, true), true },
    };
    const struct mu_node *ghost;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        enter(rows[i].node, MU_DOC_PARTICIPANT);
        ghost = mu_inquiry_ghost(&inquiry, &doc, &me, is_gone);
        assert_int_equal(ghost != NULL && mu_node_equal(ghost, &rows[i].node), rows[i].is_ghost);
    }
    assert_null(mu_inquiry_ghost(&inquiry, &doc, &me, is_gone)); /* it was told */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)
        TEST(the_host_is_asked_for_until_it_is_known),
        TEST(a_round_and_a_store_that_is_back_ask_for_the_host_anew),
        TEST(a_member_of_pytorch_with_the_endpoints_name_hosts_the_store),
        TEST(the_board_is_written_only_while_the_owner_waits),
        TEST(a_wait_that_ends_soon_leaves_no_line),
        TEST(a_store_of_one_rendezvous_has_no_board),
        TEST(what_is_on_the_board_is_written_back_at_once_and_others_are_told),
        TEST(an_answer_that_outlives_its_wait_is_not_believed),
        TEST(an_earlier_process_of_this_host_may_be_a_ghost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
