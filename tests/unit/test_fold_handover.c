/* A node of a job in the engine of a muster store to which a PyTorch node comes: when the leader lets all of them meet
 * in a document, and what becomes of the others then. */
#include "fold_scene.h"

static int set_up_documents(void **state)
{
    static const struct mu_doc_dialect dialect = MU_DOC_DIALECT_2_X;
    struct scene *s = calloc(1, sizeof *s);

    if (s == NULL)
        return -1;
    begin_with(s, MIN, MAX, (struct mu_fold_config){ .ops_max = MU_FOLD_OPS_MIN, .documents = &dialect });
    *state = s;
    return 0;
}

/* As the store writes it: under no lease. */
static void add_stock(struct scene *s, const char *text)
{
    assert_int_equal(mu_buf_assign(add(s, "job/stock", 30, 30, 0), mu_slice_str(text)), 0);
}

static const char *stock_comes(struct scene *s)
{
    add_stock(s, "{\"v\":2,\"old\":0}");
    return changed(s, MU_FOLD_JOB);
}

static const char *moves(struct scene *s)
{
    assert_int_equal(mu_fold_mark_write(OTHER, add(s, "job/moved", 40, 40, JOB_LEASE)), 0);
    return changed(s, MU_FOLD_JOB);
}

/* The member who leads a world of two of three, with both in it. */
static void lead_round(struct scene *s)
{
    fold_round(s, us);
    add_record(s, ME, 21, 2, false, 7);
    add_record(s, OTHER, 7, 2, false, 7);
    assert_string_equal(folds(s), "");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

/* The same in a world that is full. */
static void lead_full_round(struct scene *s)
{
    static const uint64_t three[] = { OTHER, ME, THIRD };

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, three, 3);
    put_record(s, 11, 21);
    add_record(s, ME, 21, 2, false, 7);
    add_record(s, OTHER, 7, 2, false, 7);
    add_record(s, THIRD, 8, 2, false, 7);
    assert_string_equal(folds(s), "");
}

/* We leave the world, and what we write is acknowledged. */
static void leave_world(struct scene *s)
{
    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_string_equal(s->trace, "progress, write record(join 7)");
    (void)wrote(s, true, 32);
}

/* The records that were added come; news that are written come back, until this is written, or nothing more is. */
static void hear_records(struct scene *s, const char *until)
{
    (void)changed(s, MU_FOLD_NODES);
    for (unsigned i = 0; i < 3 && strstr(s->trace, until) == NULL; i++)
        (void)news_are_there(s, 7, 34 + i, NULL, 0, 0);
}

static void a_job_without_a_world_moves_at_once(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_record(s, ME, 6, 1, true, 0);
    (void)folds(s);
    (void)granted(s, 900);
    (void)wrote(s, true, 8);
    (void)news_are_there(s, 0, 9, NULL, 0, 0);
    assert_string_equal(
        stock_comes(s),
        "write [ job/folder mod 6, job/doc absent, job/closed absent, job/stock mod 30] job/moved yield");
}

static void others_do_not_write_a_document_that_an_old_pytorch_node_cannot_read(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_record(s, ME, 6, 1, true, 0);
    (void)folds(s);
    (void)granted(s, 900);
    (void)wrote(s, true, 8);
    (void)news_are_there(s, 0, 9, NULL, 0, 0);
    add_stock(s, "{\"v\":2,\"old\":1}");
    assert_string_equal(changed(s, MU_FOLD_JOB),
                        "write [ job/folder mod 6, job/doc absent, job/closed absent, job/stock mod 30] job/moved "
                        "document(0, 1.13) yield");
}

static void a_world_with_a_place_hears_that_a_pytorch_node_waits(void **state)
{
    struct scene *s = *state;

    lead_round(s);
    assert_string_equal(stock_comes(s), "write [ job/folder mod 6, job/doc mod 20] job/news(gone; waiting 1)");
    assert_int_equal(s->news.newcomers, 1);
    assert_string_equal(s->news.who, "a PyTorch node");
}

static void who_leaves_for_a_pytorch_node_is_not_the_cause(void **state)
{
    struct scene *s = *state;

    lead_round(s);
    (void)stock_comes(s);
    (void)news_are_there(s, 7, 31, NULL, 0, 1);
    add_record(s, OTHER, 7, 3, true, 7);
    s->kvs[0].mod = 33;
    (void)changed(s, MU_FOLD_NODES);
    assert_true(s->news.over);
    assert_string_equal(s->news.cause, "a PyTorch node joins");
}

static void when_all_have_left_the_document_says_which_round_is_next(void **state)
{
    struct scene *s = *state;

    lead_round(s);
    (void)stock_comes(s);
    (void)news_are_there(s, 7, 31, NULL, 0, 1);
    leave_world(s);
    add_record(s, ME, 21, 3, true, 7);
    s->kvs[0].mod = 32;
    assert_null(strstr(changed(s, MU_FOLD_NODES), "yield")); /* OTHER is in it still */
    add_record(s, OTHER, 7, 3, true, 7);
    s->kvs[0].mod = 33;
    hear_records(s, "yield");
    assert_string_equal(
        s->trace, "progress, write [ job/folder mod 6, job/doc mod 20, job/closed absent, job/stock mod 30] job/moved "
                  "document(8, 2.x) yield");
}

static void a_full_world_keeps_it_as_a_spare(void **state)
{
    struct scene *s = *state;

    lead_full_round(s);
    assert_string_equal(stock_comes(s),
                        "write [ job/folder mod 6, job/doc mod 20] job/news(gone; waiting 0; 1 spare, 0 apart)");
}

/* All of them leave their world, and are back: there is no place, and the next world is made here. */
static void who_is_back_comes_before_a_pytorch_node(void **state)
{
    struct scene *s = *state;

    lead_full_round(s);
    (void)stock_comes(s);
    (void)news_are_there(s, 7, 31, NULL, 0, 0);
    leave_world(s);
    add_record(s, ME, 21, 3, true, 7);
    add_record(s, OTHER, 7, 3, true, 7);
    add_record(s, THIRD, 8, 3, true, 7);
    hear_records(s, "page");
    assert_null(strstr(s->trace, "yield"));
    assert_non_null(strstr(s->trace, "page 0"));
}

static void what_a_stranger_writes_there_is_nobody(void **state)
{
    struct scene *s = *state;

    lead_round(s);
    add_stock(s, "a stock node");
    assert_string_equal(changed(s, MU_FOLD_JOB), "foreign");
}

static void a_store_without_documents_has_no_such_nodes(void **state)
{
    struct scene *s;

    assert_int_equal(tear_down(state), 0);
    assert_int_equal(set_up(state), 0);
    s = *state;
    lead_round(s);
    assert_string_equal(stock_comes(s), "");
}

static void an_old_pytorch_node_gets_a_document_that_it_can_read(void **state)
{
    struct scene *s = *state;

    lead_round(s);
    add_stock(s, "{\"v\":2,\"old\":1}");
    (void)changed(s, MU_FOLD_JOB);
    (void)news_are_there(s, 7, 31, NULL, 0, 1);
    leave_world(s);
    add_record(s, ME, 21, 3, true, 7);
    add_record(s, OTHER, 7, 3, true, 7);
    hear_records(s, "yield");
    assert_non_null(strstr(s->trace, "document(8, 1.13) yield"));
}

/* A worker fails while it waits: the next world is made here, with the charge, and then the job moves. */
static void a_failure_is_charged_before_the_job_moves(void **state)
{
    struct scene *s = *state;
    struct mu_fold_record record = {
        .nodes_min = MIN, .nodes_max = MAX, .seq = 3, .joining = true, .world = 7, .max_restarts = 3
    };

    s->like.max_restarts = 3;
    lead_round(s);
    (void)stock_comes(s);
    (void)news_are_there(s, 7, 31, NULL, 0, 1);
    leave_world(s);
    add_full_record(s, ME, 21, record);
    record.end = (struct mu_fold_end){ .kind = MU_FOLD_END_FAILED, .world = 7, .at = 32, .text = "exit code 1" };
    add_full_record(s, OTHER, 7, record);
    hear_records(s, "page");
    assert_null(strstr(s->trace, "yield"));
    assert_non_null(strstr(s->trace, "page"));
}

/* The store has no room for the document: the job goes on where it is, and tries again later. */
static void a_move_that_is_refused_is_no_end(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_record(s, ME, 6, 1, true, 0);
    (void)folds(s);
    (void)granted(s, 900);
    (void)wrote(s, true, 8);
    (void)news_are_there(s, 0, 9, NULL, 0, 0);
    assert_non_null(strstr(stock_comes(s), "yield"));
    (void)refused(s, s->write_id);
    (void)passes(s, 2000);
    add_leader(s, ME, 6, 11);
    add_stock(s, "{\"v\":2,\"old\":0}");
    (void)loaded(s, MU_FOLD_JOB);
    add_record(s, ME, 6, 1, true, 0);
    add_record(s, OTHER, 50, 1, true, 0);
    add_record(s, THIRD, 51, 1, true, 0);
    (void)folds(s);
    assert_null(strstr(s->trace, "yield"));
    assert_non_null(strstr(s->trace, "page 0"));
}

/* Somebody has put it into etcd. */
static void where_there_are_no_documents_no_job_moves(void **state)
{
    struct scene *s;

    assert_int_equal(tear_down(state), 0);
    assert_int_equal(set_up(state), 0);
    s = *state;
    be_member(s);
    assert_string_equal(moves(s), "");
    assert_false(mu_fold_has_moved(s->fold));
}

/* So nobody who comes later begins it anew. */
static void a_job_that_ends_leaves_a_closed_document(void **state)
{
    struct scene *s = *state;

    lead_round(s);
    assert_string_equal(asked(s, MU_FOLD_ON_CLOSE), "write [ job/closed absent] job/closed document(8, 2.x, closed)");
}

/* The store had no room for the closed document, so the PyTorch node still waits when all have left. */
static void a_job_that_has_ended_does_not_move(void **state)
{
    struct scene *s = *state;

    lead_round(s);
    (void)stock_comes(s);
    (void)news_are_there(s, 7, 31, NULL, 0, 1);
    (void)asked(s, MU_FOLD_ON_CLOSE);
    (void)wrote(s, true, 32);
    add_closed(s);
    assert_string_equal(changed(s, MU_FOLD_JOB), "closed");
    add_record(s, ME, 21, 3, true, 7);
    add_record(s, OTHER, 7, 3, true, 7);
    hear_records(s, "yield");
    assert_null(strstr(s->trace, "yield"));
}

static void who_joins_is_asked_nothing_more_when_the_job_has_moved(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    assert_false(mu_fold_has_moved(s->fold));
    assert_string_equal(moves(s), "");
    assert_true(mu_fold_has_moved(s->fold));
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
    assert_string_equal(passes(s, 1000000), "");
    assert_true(mu_fold_deadline_ms(s->fold) == UINT64_MAX);
}

/* One that the others did not wait for. */
static void a_member_is_removed_when_the_job_has_moved(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(moves(s), "removed, drop lease");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_IDLE);
    assert_true(mu_fold_has_moved(s->fold));
}

static void the_store_may_say_at_once_that_the_job_has_moved(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    (void)asked(s, MU_FOLD_ON_CLOSE);
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_MET, .moved = true }), "");
    assert_true(mu_fold_has_moved(s->fold));
    assert_true(mu_fold_asked(s->fold).close && !mu_fold_asked(s->fold).look);
}

#define DOCUMENTS_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_documents, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DOCUMENTS_TEST(a_job_without_a_world_moves_at_once),
        DOCUMENTS_TEST(others_do_not_write_a_document_that_an_old_pytorch_node_cannot_read),
        DOCUMENTS_TEST(a_world_with_a_place_hears_that_a_pytorch_node_waits),
        DOCUMENTS_TEST(who_leaves_for_a_pytorch_node_is_not_the_cause),
        DOCUMENTS_TEST(when_all_have_left_the_document_says_which_round_is_next),
        DOCUMENTS_TEST(a_full_world_keeps_it_as_a_spare),
        DOCUMENTS_TEST(who_is_back_comes_before_a_pytorch_node),
        DOCUMENTS_TEST(what_a_stranger_writes_there_is_nobody),
        DOCUMENTS_TEST(a_store_without_documents_has_no_such_nodes),
        DOCUMENTS_TEST(an_old_pytorch_node_gets_a_document_that_it_can_read),
        DOCUMENTS_TEST(a_failure_is_charged_before_the_job_moves),
        DOCUMENTS_TEST(a_move_that_is_refused_is_no_end),
        DOCUMENTS_TEST(where_there_are_no_documents_no_job_moves),
        DOCUMENTS_TEST(a_job_that_ends_leaves_a_closed_document),
        DOCUMENTS_TEST(a_job_that_has_ended_does_not_move),
        DOCUMENTS_TEST(who_joins_is_asked_nothing_more_when_the_job_has_moved),
        DOCUMENTS_TEST(a_member_is_removed_when_the_job_has_moved),
        DOCUMENTS_TEST(the_store_may_say_at_once_that_the_job_has_moved),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
