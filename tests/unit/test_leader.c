/* What nodes of an etcd-v3 rendezvous say of their workers, and what the leader makes of it: causes, restarts, ranks,
 * and the end of the job. */
#include "fold_scene.h"
#include "rdzv/fold_parts.h"

#define FOURTH UINT64_C(0x44)

static const uint64_t three[] = { OTHER, ME, THIRD };

static const char *reports(struct scene *s, enum mu_part_end end, int64_t rank, const char *text)
{
    const struct mu_part_report report = { end, rank, text };

    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_REPORT, .report = &report });
}

/* A record of a member of round 7 that says how its part in it ended. */
static void add_end(struct scene *s, uint64_t id, int64_t create, bool joining, struct mu_fold_end end)
{
    int64_t rank = rank_of(s, id);

    end.world = 7;
    add_full_record(s, id, create,
                    (struct mu_fold_record){ .nodes_min = MIN,
                                             .nodes_max = MAX,
                                             .seq = 5,
                                             .joining = joining,
                                             .world = 7,
                                             .round = 7,
                                             .rank = rank < 0 ? 0 : rank,
                                             .nodes = rank < 0 ? 1 : (int64_t)s->members_count,
                                             .end = end });
}

static const char *fails(struct scene *s, uint64_t id, int64_t create, int64_t at, bool joining)
{
    add_end(s, id, create, joining,
            (struct mu_fold_end){ .kind = MU_FOLD_END_FAILED, .rank = 3, .at = at, .text = "exitcode 1" });
    return changed(s, MU_FOLD_NODES);
}

static void add_done(struct scene *s, uint64_t id)
{
    char key[MU_FOLD_KEY_MAX];

    (void)snprintf(key, sizeof key, "nodes/%016" PRIx64 "/done", id);
    assert_int_equal(mu_fold_mark_write(id, add(s, key, 40, 40, JOB_LEASE)), 0);
}

/* The leader of round 7 of these, a member of it; all records are there. */
static void lead(struct scene *s, const uint64_t *members, size_t count)
{
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, members, count);
    put_record(s, 11, 21);
    (void)kept(s, true);
    add_both(s);
    if (count > 2)
        add_record(s, THIRD, 8, 1, true, 0);
    assert_string_equal(folds(s), "");
}

/* What was written as news comes back. */
static const char *news_come(struct scene *s, int64_t revision)
{
    struct mu_fold_news news = s->news;

    (void)wrote(s, true, revision);
    add_full_news(s, revision, &news);
    return changed(s, MU_FOLD_JOB);
}

/* We join the next round. */
static const char *we_join(struct scene *s)
{
    (void)asked(s, MU_FOLD_ON_JOIN);
    (void)wrote(s, true, 60);
    add_record(s, ME, 6, 6, true, 7);
    (void)changed(s, MU_FOLD_NODES);
    return strstr(s->trace, "job/news") != NULL ? news_come(s, 61) : s->trace;
}

/* OTHER does. */
static void back(struct scene *s)
{
    add_record(s, OTHER, 7, 6, true, 7);
    (void)changed(s, MU_FOLD_NODES);
}

static struct mu_fold_world world_written(const struct scene *s)
{
    struct mu_fold_world world = { .id = 0 };

    assert_int_equal(mu_fold_world_read(mu_slice_str(s->doc), &world, NULL), 0);
    return world;
}

/* ---- Reports ---- */

static void a_report_is_written_and_acknowledged(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(reports(s, MU_PART_END_FAILED, 3, "exitcode 1"), "write record(stay 7; failed 3 at 0)");
    assert_string_equal(wrote(s, true, 30), "reported");
}

static void a_report_that_fails_is_written_again(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)reports(s, MU_PART_END_FAILED, 3, "exitcode 1");
    assert_string_equal(failed(s, s->write_id), "drop lease, backend_down");
    assert_string_equal(passes(s, MU_FOLD_RETRY_MAX_MS), "load job, take lease");
    add_leader(s, OTHER, 5, 22);
    add_doc(s, 7, 20, us, 2);
    (void)loaded(s, MU_FOLD_JOB);
    assert_string_equal(leased(s, 12), "write record(stay 7; failed 3 at 0)");
    assert_string_equal(wrote(s, true, 31), "reported");
}

static void a_report_survives_that_we_join_anew(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)reports(s, MU_PART_END_FAILED, 3, "exitcode 1");
    assert_string_equal(asked(s, MU_FOLD_ON_JOIN), "progress");
    assert_string_equal(wrote(s, true, 30), "reported, write record(join 7; failed 3 at 30)");
}

static void a_report_of_no_round_is_an_error(void **state)
{
    struct scene *s = *state;

    assert_string_equal(reports(s, MU_PART_END_DONE, 0, NULL), "reported ERDZV_STATE");
    join_beside_a_leader(s);
    assert_string_equal(reports(s, MU_PART_END_DONE, 0, NULL), "reported ERDZV_STATE");
}

static void done_is_a_key_of_its_own_under_the_job_s_lease(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(reports(s, MU_PART_END_DONE, -1, NULL), "write record(stay 7; done -1 at 0) done@900");
    assert_string_equal(wrote(s, true, 30), "reported");
    assert_string_equal(reports(s, MU_PART_END_FAILED, 1, "late"), "write record(stay 7; done -1 at 30) done@900");
    assert_string_equal(wrote(s, true, 31), "reported"); /* that stays so */
}

static void done_waits_for_the_job_s_lease(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)deleted(s, MU_FOLD_JOB, "job/doc", 30);
    (void)wrote(s, true, 31);
    assert_string_equal(reports(s, MU_PART_END_DONE, -1, NULL), "grant job");
    assert_string_equal(granted(s, 901), "write record(stay 7; done -1 at 0) done@901");
}

static void done_survives_a_lease_of_the_job_that_is_gone(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)reports(s, MU_PART_END_DONE, -1, NULL);
    assert_string_equal(lease_gone(s, s->write_id), "drop lease");
    assert_string_equal(passes(s, MU_FOLD_RETRY_MAX_MS), "load job, take lease");
    add_leader(s, OTHER, 5, 22);
    add_doc(s, 7, 20, us, 2);
    (void)loaded(s, MU_FOLD_JOB);
    assert_string_equal(leased(s, 12), "grant job");
    assert_string_equal(granted(s, 901), "write record(stay 7; done -1 at 0) done@901");
    assert_string_equal(wrote(s, true, 40), "reported");
}

static void who_leaves_says_why_before_its_lease_ends(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(reports(s, MU_PART_END_LEFT, -1, "preempted"),
                        "write [ job/doc mod 20] record(stay 7; left -1 at 0) goodbye@900 else record");
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE), "");
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE), ""); /* once is enough */
    assert_string_equal(wrote(s, true, 40), "reported, drop lease");
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = s->drop_id }), "left");
}

/* The record has gone with its lease, and nobody led who could have heard what it said. */
static void a_leader_that_left_says_so_to_the_next_one(void **state)
{
    struct scene *s = *state;
    char key[MU_FOLD_KEY_MAX];

    be_member(s);
    (void)deleted(s, MU_FOLD_JOB, "job/folder", 30);
    assert_non_null(strstr(passes(s, MU_FOLD_CROWN_MAX_MS), "job/folder"));
    (void)wrote(s, true, 31);
    add_leader(s, ME, 31, 11);
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), "load nodes"));
    add_record(s, ME, 6, 1, true, 0);
    assert_non_null(strstr(loaded(s, MU_FOLD_NODES), "read pages"));
    (void)snprintf(key, sizeof key, "member/%016d/left/%016" PRIx64, 7, OTHER);
    assert_int_equal(
        mu_fold_record_write(
            &(struct mu_fold_record){ .name = "host",
                                      .nodes_min = MIN,
                                      .nodes_max = MAX,
                                      .world = 7,
                                      .round = 7,
                                      .nodes = 2,
                                      .size = 1,
                                      .world_size = 2,
                                      .end = { .kind = MU_FOLD_END_LEFT, .world = 7, .text = "preempted" } },
            add(s, key, 29, 29, JOB_LEASE)),
        0);
    assert_non_null(strstr(paged(s), "job/news"));
    assert_string_equal(s->news.cause, "host left (preempted)");
}

static void who_leaves_does_not_wait_long_for_its_report(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = MU_FOLD_JOB });
    (void)failed(s, s->load_id[MU_FOLD_JOB]);
    assert_string_equal(reports(s, MU_PART_END_LEFT, -1, "preempted"), ""); /* not before it is tried again */
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE), "");
    assert_string_equal(passes(s, MU_FOLD_LEAVE_MS), "reported ERDZV_STATE, drop lease, load job");
}

/* ---- Causes and costs ---- */

static void the_first_report_is_news_at_once(void **state)
{
    struct scene *s = *state;

    lead(s, us, 2);
    assert_non_null(strstr(fails(s, OTHER, 7, 0, false), "job/news(gone; waiting 0)"));
    assert_true(s->news.over);
    assert_string_equal(s->news.cause, "exitcode 1");
    assert_string_equal(news_come(s, 30), "lost: exitcode 1");
    assert_string_equal(passes(s, 0), ""); /* once */
}

static void a_failure_costs_a_restart_when_everybody_is_out(void **state)
{
    struct scene *s = *state;

    s->like.max_restarts = 3;
    lead(s, us, 2);
    (void)fails(s, OTHER, 7, 0, false);
    (void)news_come(s, 30);
    assert_null(strstr(we_join(s), "page 0")); /* OTHER is in it still */
    assert_non_null(strstr(fails(s, OTHER, 7, 40, true), "seat 22=0 seat 11=1 job/doc"));
    assert_int_equal(world_written(s).count, 1);
    assert_int_equal(world_written(s).max_restarts, 3);
    assert_string_equal(world_written(s).why, "exitcode 1; restarting with 2 nodes, restart 1 of 3");
}

static void a_loss_is_free_and_excuses_failures(void **state)
{
    for (int with_failure = 0; with_failure < 2; with_failure++) {
        struct scene *s = *state;

        lead(s, three, 3);
        (void)deleted(s, MU_FOLD_NODES, "nodes/0000000000000033/0000000000000008", 40);
        assert_string_equal(s->news.cause, "lost host: no keep-alive for 10 s");
        (void)news_come(s, 50);
        (void)we_join(s);
        if (with_failure)
            (void)fails(s, OTHER, 7, 0, true);
        else
            back(s);
        assert_non_null(strstr(s->trace, "seat 22=0 seat 11=1 job/doc"));
        assert_int_equal(world_written(s).count, 0);
        assert_string_equal(world_written(s).why,
                            with_failure ? "lost host: no keep-alive for 10 s; rank 3's failure on host is a "
                                           "consequence; restarting with 2 nodes, no restart charged"
                                         : "lost host: no keep-alive for 10 s; restarting with 2 nodes, no restart "
                                           "charged");
        (void)tear_down(state);
        (void)set_up(state);
    }
}

static void where_it_is_known_how_a_node_was_lost_it_is_said(void **state)
{
    static const struct {
        enum mu_fold_how how;
        const char *cause;
    } rows[] = { { MU_FOLD_HOW_UNKNOWN, "lost host: no keep-alive for 10 s" },
                 { MU_FOLD_HOW_REVOKED, "lost host: its lease was ended" },
                 { MU_FOLD_HOW_RESET, "lost host: its connection was closed" },
                 { MU_FOLD_HOW_SILENT, "lost host: no keep-alive for 10 s" } };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene *s = *state;

        lead(s, three, 3);
        (void)record_goes(s, "nodes/0000000000000033/0000000000000008", 40, rows[i].how, 0);
        assert_string_equal(s->news.cause, rows[i].cause);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* It was there after the failure; that its lease ended soon after that is no reason for it. */
static void a_node_that_was_heard_long_after_a_failure_is_not_its_cause(void **state)
{
    static const struct {
        enum mu_fold_how how;
        uint64_t noticed_ms, ago_ms; /* after the failure */
        int64_t cost;
    } rows[] = { { MU_FOLD_HOW_UNKNOWN, 3000, 0, 0 },
                 { MU_FOLD_HOW_RESET, 3000, 0, 1 },
                 { MU_FOLD_HOW_RESET, 3000, 1000, 0 },
                 { MU_FOLD_HOW_SILENT, LEASE_MS, LEASE_MS, 0 } };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene *s = *state;

        s->like.max_restarts = 3;
        lead(s, three, 3);
        (void)fails(s, OTHER, 7, 0, true);
        (void)news_come(s, 50);
        s->now_ms += rows[i].noticed_ms;
        (void)record_goes(s, "nodes/0000000000000033/0000000000000008", 51, rows[i].how, rows[i].ago_ms);
        (void)news_come(s, 52);
        assert_non_null(strstr(we_join(s), "job/doc"));
        assert_int_equal(world_written(s).count, rows[i].cost);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* Of a round that a member ended by itself, failures are consequences if they were reported after that. */
static void what_was_reported_first_is_the_cause(void **state)
{
    static const struct {
        struct mu_fold_end end; /* of OTHER; THIRD's worker fails at 41 */
        bool goes;              /* and OTHER's record with it */
        int64_t cost;
        const char *why;
    } rows[] = {
        { { .kind = MU_FOLD_END_LEFT, .at = 40, .text = "SIGTERM" },
          true,
          0,
          "host left (SIGTERM); rank 3's failure on host is a consequence; restarting with 2 nodes, no restart "
          "charged" },
        { { .kind = MU_FOLD_END_LEFT, .at = 42, .text = "SIGTERM" },
          true,
          1,
          "exitcode 1; restarting with 2 nodes, restart 1 of 3" },
        { { .kind = MU_FOLD_END_AGAIN, .at = 40, .text = "node9 wants to join" },
          false,
          0,
          "the round was joined anew; rank 3's failure on host is a consequence; restarting with 3 nodes, no restart "
          "charged" },
        { { .kind = MU_FOLD_END_AGAIN, .at = 42, .text = "node9 wants to join" },
          false,
          1,
          "exitcode 1; restarting with 3 nodes, restart 1 of 3" },
        { { .kind = MU_FOLD_END_LOST, .at = 42, .text = "its launcher was killed" },
          true,
          0,
          "lost host: its launcher was killed; rank 3's failure on host is a consequence; restarting with 2 nodes, no "
          "restart charged" },
        { { .kind = MU_FOLD_END_AGAIN, .at = 40, .text = "node9 wants to join" }, /* and then it is lost */
          true,
          0,
          "lost host: no keep-alive for 10 s; rank 3's failure on host is a consequence; restarting with 2 nodes, no "
          "restart charged" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene *s = *state;

        s->like.max_restarts = 3;
        lead(s, three, 3);
        add_end(s, OTHER, 7, false, rows[i].end);
        (void)changed(s, MU_FOLD_NODES);
        if (s->news.over)
            (void)news_come(s, 43);
        (void)fails(s, THIRD, 8, 41, false);
        if (strstr(s->trace, "job/news") != NULL)
            (void)news_come(s, 44);
        assert_true(s->news.over);
        if (rows[i].goes)
            (void)deleted(s, MU_FOLD_NODES, "nodes/0000000000000022/0000000000000007", 45);
        if (strstr(s->trace, "job/news") != NULL)
            (void)news_come(s, 46);
        (void)we_join(s);
        if (!rows[i].goes) {
            add_end(s, OTHER, 7, true, rows[i].end);
            (void)changed(s, MU_FOLD_NODES);
        }
        assert_non_null(strstr(fails(s, THIRD, 8, 41, true), "job/doc"));
        assert_int_equal(world_written(s).count, rows[i].cost);
        assert_string_equal(world_written(s).why, rows[i].why);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* What becomes of it then is no matter of that round: its workers have ended. */
static void who_has_left_the_round_is_not_lost_from_it(void **state)
{
    for (int at_once = 0; at_once < 2; at_once++) { /* it is gone before we fold what it said */
        struct scene *s = *state;

        s->own_hosts = true;
        s->like.max_restarts = 3;
        lead(s, three, 3);
        (void)fails(s, OTHER, 7, 0, false);
        (void)news_come(s, 30);
        (void)we_join(s);
        (void)passes(s, 25000); /* OTHER takes its time to stop its workers */
        (void)kept(s, true);
        (void)news_come(s, 61);
        add_record(s, THIRD, 8, 6, true, 7);
        if (!at_once && strstr(changed(s, MU_FOLD_NODES), "job/news") != NULL)
            (void)news_come(s, 62);
        (void)add(s, "nodes/0000000000000033/0000000000000008", 0, 63, 0);
        s->kvs[s->count - 1].deleted = true;
        if (strstr(changed(s, MU_FOLD_NODES), "job/news") != NULL)
            (void)news_come(s, 64);
        assert_int_equal(s->news.missing, 0);
        assert_non_null(strstr(fails(s, OTHER, 7, 40, true), "job/doc"));
        assert_int_equal(world_written(s).count, 1);
        assert_string_equal(world_written(s).why, "exitcode 1; restarting with 2 nodes, restart 1 of 3");
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* Workers of nodes that go on would fail if they heard of it later. */
static void a_node_that_makes_room_for_another_ends_the_round_for_all(void **state)
{
    struct scene *s = *state;

    lead(s, us, 2);
    add_record(s, THIRD, 8, 1, true, 0);
    (void)changed(s, MU_FOLD_NODES);
    assert_false(s->news.over);
    assert_int_equal(s->news.waiting, 1);
    (void)news_come(s, 30);
    add_end(s, OTHER, 7, false, (struct mu_fold_end){ .kind = MU_FOLD_END_AGAIN, .at = 31, .text = "host joins" });
    assert_non_null(strstr(changed(s, MU_FOLD_NODES), "job/news"));
    assert_true(s->news.over);
    assert_string_equal(s->news.cause, "host joins");
    assert_string_equal(news_come(s, 32), "lost: host joins");
}

/* The leader before us had seen that they were lost. */
static void a_new_leader_knows_of_losses_by_the_news(void **state)
{
    struct scene *s = *state;
    const uint32_t gone[] = { 2 };

    s->like.max_restarts = 3;
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, three, 3);
    add_losses(s, 7, 25, gone, 1);
    put_record(s, 11, 26);
    (void)kept(s, true);
    add_both(s);
    (void)folds(s);
    (void)we_join(s);
    assert_non_null(strstr(fails(s, OTHER, 7, 40, true), "job/doc"));
    assert_int_equal(world_written(s).count, 0);
}

/* They say how many are lost, and not which ones: the records do. */
static void a_new_leader_tells_the_lost_from_those_who_have_left(void **state)
{
    struct mu_fold_news news = { .world = 7, .missing = 1, .over = true, .last_call_ms = -1 };
    struct scene *s = *state;

    s->own_hosts = true;
    s->like.max_restarts = 3;
    mu_fold_news_add_gone(&news, 0, mu_slice_str("node22"));
    mu_fold_news_add_gone(&news, 2, mu_slice_str("node33"));
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, three, 3);
    add_full_news(s, 25, &news);
    put_record(s, 11, 26);
    (void)kept(s, true);
    add_record(s, ME, 6, 1, true, 0);
    add_record(s, OTHER, 7, 6, true, 7);
    assert_non_null(strstr(folds(s), "job/news(gone 0 2, 1 missing; waiting 1)"));
    (void)news_come(s, 40);
    (void)deleted(s, MU_FOLD_NODES, "nodes/0000000000000022/0000000000000007", 45);
    if (strstr(s->trace, "job/news") != NULL)
        (void)news_come(s, 46);
    assert_int_equal(s->news.missing, 1);
    (void)we_join(s);
    add_record(s, OTHER, 50, 7, true, 7); /* that node is back, under another lease */
    assert_non_null(strstr(changed(s, MU_FOLD_NODES), "job/doc"));
    assert_string_equal(world_written(s).why,
                        "lost node33: no keep-alive for 10 s; restarting with 2 nodes, no restart charged");
}

static void without_a_restart_left_the_job_is_closed_when_nobody_is_in(void **state)
{
    struct scene *s = *state;

    lead(s, us, 2);
    (void)fails(s, OTHER, 7, 0, false);
    (void)news_come(s, 30);
    assert_null(strstr(we_join(s), "job/closed"));
    assert_string_equal(fails(s, OTHER, 7, 40, true),
                        "write [ job/folder mod 6, job/doc mod 20, job/closed absent] job/closed");
    assert_true(s->closed.has_verdict && !s->closed.succeeded);
    assert_string_equal(s->closed.cause, "exitcode 1; no restarts left (max restarts: 0)");
}

static void after_rounds_that_fail_at_once_there_is_a_pause(void **state)
{
    struct scene *s = *state;

    s->like.max_restarts = 9;
    s->like.crashes = 2;
    lead(s, us, 2);
    (void)fails(s, OTHER, 7, 0, false);
    (void)news_come(s, 30);
    (void)we_join(s);
    assert_non_null(strstr(fails(s, OTHER, 7, 40, true), "job/news(gone 0 1; waiting 0)"));
    (void)news_come(s, 70);
    assert_null(strstr(passes(s, MU_SLOWDOWN_PAUSE_MS - 1), "seat"));
    assert_non_null(strstr(passes(s, 1), "seat 22=0"));
    assert_int_equal(world_written(s).crashes, 3);
}

/* What a stranger may have put there: the next world can be read like any other. */
static void numbers_that_are_as_high_as_they_can_be_stay_there(void **state)
{
    struct scene *s = *state;

    s->like = (struct mu_fold_world){
        .round = MU_DOC_ROUND_MAX, .count = MU_FOLD_COUNT_MAX, .max_restarts = INT64_MAX, .crashes = MU_FOLD_COUNT_MAX
    };
    lead(s, us, 2);
    (void)fails(s, OTHER, 7, 0, false);
    (void)news_come(s, 30);
    (void)we_join(s);
    (void)fails(s, OTHER, 7, 40, true);
    (void)news_come(s, 70);
    assert_non_null(strstr(passes(s, MU_SLOWDOWN_PAUSE_MAX_MS), "seat 22=0"));
    assert_int_equal(world_written(s).round, MU_DOC_ROUND_MAX);
    assert_int_equal(world_written(s).count, MU_FOLD_COUNT_MAX);
    assert_int_equal(world_written(s).crashes, MU_FOLD_COUNT_MAX);
}

static void a_wait_names_who_was_lost_with_the_last_round(void **state)
{
    struct mu_fold_news news = { .world = 7, .over = true, .missing = 1, .last_call_ms = -1, .cause = "lost node9" };
    struct scene *s = *state;
    char note[MU_WAITERS_NOTE_MAX];

    be_member(s);
    (void)asked(s, MU_FOLD_ON_JOIN);
    mu_fold_news_add_gone(&news, 1, mu_slice_str("node9"));
    add_full_news(s, 41, &news);
    (void)changed(s, MU_FOLD_JOB);
    assert_string_equal(mu_fold_note(s->fold, note), "the last round has ended: lost node9");
    news.missing = 0; /* all of it have said why they left, and come back */
    add_full_news(s, 42, &news);
    (void)changed(s, MU_FOLD_JOB);
    assert_null(mu_fold_note(s->fold, note));
}

static void a_pause_is_told_and_is_no_time_of_a_join(void **state)
{
    const struct mu_fold_news news = { .world = 7, .over = true, .last_call_ms = -1, .pause_ms = 30000 };
    struct scene *s = *state;
    char note[MU_WAITERS_NOTE_MAX];

    be_member(s);
    assert_non_null(strstr(asked(s, MU_FOLD_ON_JOIN), "progress"));
    (void)passes(s, 599000);
    add_full_news(s, 41, &news);
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), "progress"));
    assert_string_equal(mu_fold_note(s->fold, note),
                        "the last rounds failed within 10 s of their start; the next one begins in 30 s");
    assert_null(strstr(passes(s, 600000 + 29999), "failed"));
    assert_non_null(strstr(passes(s, 1), "failed ERDZV_TIMEOUT"));
}

/* ---- Nodes that come and go ---- */

/* That node has had so many short stays. */
static void stays_shortly(struct scene *s, uint64_t id, unsigned times)
{
    char name[MU_FOLD_SHOWN_MAX];

    while (times-- > 0)
        mu_slowdown_ended(
            &s->fold->lead.slowdown,
            &(struct mu_slowdown_stay){ .id = id, .name = name_of(s, id, name), .since = 20, .ended_ms = s->now_ms });
}

static unsigned short_stays(const struct scene *s, uint64_t id)
{
    const struct mu_slowdown_node *nodes = s->fold->lead.slowdown.nodes;

    for (size_t i = 0; nodes != NULL && i < MU_SLOWDOWN_NODES_MAX; i++)
        if (nodes[i].id == id)
            return nodes[i].short_stays;
    return 0;
}

static void a_node_that_comes_and_goes_is_held_off_and_named(void **state)
{
    struct scene *s = *state;

    s->own_hosts = true;
    lead(s, us, 2);
    stays_shortly(s, THIRD, MU_SLOWDOWN_FLAPS);
    add_record(s, THIRD, 8, 1, true, 0);
    assert_string_equal(changed(s, MU_FOLD_NODES),
                        "write [ job/folder mod 6, job/doc mod 20] job/news(gone; waiting 0; 1 spare, 0 apart)");
    assert_string_equal(s->news.held, "node33");
    assert_int_equal(s->news.held_ms, MU_SLOWDOWN_HOLD_MS);
    assert_int_equal(s->news.spares, 1);
    (void)news_come(s, 30);
    (void)passes(s, MU_SLOWDOWN_HOLD_MS - 1);
    assert_int_equal(s->news.waiting, 0);
    assert_non_null(strstr(passes(s, 1), "job/news(gone; waiting 1)"));
}

/* Which agent has come and gone, where there are several on a host? Not one that was there beside it. */
static void the_other_agents_of_its_host_are_not_held_off(void **state)
{
    for (int restarted = 0; restarted < 2; restarted++) {
        struct scene *s = *state;

        lead(s, us, 2);
        stays_shortly(s, THIRD, MU_SLOWDOWN_FLAPS);
        add_record(s, FOURTH, restarted ? 30 : 8, 1, true, 0); /* the round began at 20 */
        assert_non_null(strstr(changed(s, MU_FOLD_NODES), "job/news"));
        assert_string_equal(s->news.held, restarted ? "host" : "");
        assert_true(s->news.waiting == !restarted && s->news.spares == restarted);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* Each has its own stays, and its row is its own when it was started anew. */
static void two_agents_of_a_host_have_a_row_each(void **state)
{
    struct scene *s = *state;

    s->like.max_restarts = 3;
    lead(s, three, 3);
    stays_shortly(s, THIRD, MU_SLOWDOWN_FLAPS - 1);
    (void)deleted(s, MU_FOLD_NODES, "nodes/0000000000000033/0000000000000008", 40);
    (void)news_come(s, 50);
    (void)we_join(s);
    add_record(s, FOURTH, 45, 1, true, 0); /* THIRD, started anew */
    if (strstr(changed(s, MU_FOLD_NODES), "job/news") != NULL)
        (void)news_come(s, 62);
    back(s);
    assert_non_null(strstr(s->trace, "job/doc"));
    assert_string_equal(world_written(s).why,
                        "lost host: no keep-alive for 10 s; restarting with 2 nodes, no restart charged");
    assert_int_equal(short_stays(s, OTHER), 0);
    assert_int_equal(short_stays(s, THIRD), 0);
    assert_int_equal(short_stays(s, FOURTH), MU_SLOWDOWN_FLAPS);
}

static void nobody_is_held_off_where_the_others_are_too_few(void **state)
{
    struct scene *s = *state;
    char members[64];

    s->own_hosts = true;
    s->like.max_restarts = 3;
    lead(s, us, 2);
    stays_shortly(s, OTHER, MU_SLOWDOWN_FLAPS);
    (void)fails(s, OTHER, 7, 0, false);
    (void)news_come(s, 30);
    (void)we_join(s);
    assert_non_null(strstr(fails(s, OTHER, 7, 40, true), "job/doc"));
    assert_string_equal(list_members(s, members), "22 11");
    assert_string_equal(s->news.held, "");
}

static void who_is_held_off_does_not_time_out_meanwhile(void **state)
{
    const struct mu_fold_news news = {
        .world = 7, .last_call_ms = -1, .spares = 1, .held = "host", .held_ms = MU_SLOWDOWN_HOLD_MAX_MS
    };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, them, 2);
    (void)changed(s, MU_FOLD_JOB);
    (void)seated(s);
    (void)passes(s, 1000);
    add_full_news(s, 41, &news);
    (void)changed(s, MU_FOLD_JOB);
    assert_null(strstr(passes(s, MU_SLOWDOWN_HOLD_MAX_MS + 599999), "failed"));
    assert_non_null(strstr(passes(s, 1), "failed ERDZV_TIMEOUT"));
}

/* Only an end of its own doing is. */
static void a_consequence_is_no_short_stay(void **state)
{
    for (int loss = 0; loss < 2; loss++) {
        struct scene *s = *state;

        s->own_hosts = true;
        s->like.max_restarts = 3;
        lead(s, three, 3);
        (void)fails(s, OTHER, 7, 40, false);
        (void)news_come(s, 41);
        if (loss)
            (void)deleted(s, MU_FOLD_NODES, "nodes/0000000000000033/0000000000000008", 42);
        (void)we_join(s);
        if (!loss)
            add_record(s, THIRD, 8, 6, true, 7);
        (void)fails(s, OTHER, 7, 40, true);
        if (strstr(s->trace, "job/doc") == NULL)
            (void)news_come(s, 62);
        assert_int_equal(world_written(s).count, !loss);
        assert_int_equal(short_stays(s, OTHER), !loss);
        assert_int_equal(short_stays(s, THIRD), loss);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* What a member says, and that its record goes then, is one end. */
static void a_stay_counts_once(void **state)
{
    static const struct mu_fold_end ends[] = {
        { .kind = MU_FOLD_END_LOST, .at = 42, .text = "its launcher was killed" },
        { .kind = MU_FOLD_END_LEFT, .at = 42, .text = "SIGTERM" }
    };

    for (size_t i = 0; i < 2 * COUNT(ends); i++) {
        bool fails_before = i % 2 > 0;
        struct scene *s = *state;

        s->own_hosts = true;
        s->like.max_restarts = 3;
        lead(s, three, 3);
        if (fails_before) {
            (void)fails(s, OTHER, 7, 0, false);
            (void)news_come(s, 41);
        }
        add_end(s, OTHER, 7, false, ends[i / 2]);
        if (strstr(changed(s, MU_FOLD_NODES), "job/news") != NULL)
            (void)news_come(s, 42);
        if (strstr(deleted(s, MU_FOLD_NODES, "nodes/0000000000000022/0000000000000007", 45), "job/news") != NULL)
            (void)news_come(s, 46);
        (void)we_join(s);
        add_record(s, THIRD, 8, 6, true, 7);
        assert_non_null(strstr(changed(s, MU_FOLD_NODES), "job/doc"));
        assert_int_equal(short_stays(s, OTHER), 1);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* Three short stays are no row if others ended those between them. */
static void a_stay_that_others_ended_breaks_a_row(void **state)
{
    struct scene *s = *state;

    s->own_hosts = true;
    s->like.max_restarts = 3;
    lead(s, three, 3);
    stays_shortly(s, THIRD, MU_SLOWDOWN_FLAPS - 1);
    stays_shortly(s, OTHER, MU_SLOWDOWN_FLAPS - 2);
    (void)fails(s, OTHER, 7, 0, false);
    (void)news_come(s, 30);
    (void)we_join(s);
    assert_int_equal(short_stays(s, THIRD), MU_SLOWDOWN_FLAPS - 1); /* it is in the round still */
    add_record(s, THIRD, 8, 6, true, 7);
    if (strstr(changed(s, MU_FOLD_NODES), "job/news") != NULL)
        (void)news_come(s, 62);
    assert_non_null(strstr(fails(s, OTHER, 7, 40, true), "job/doc"));
    assert_int_equal(short_stays(s, THIRD), 0);
    assert_int_equal(short_stays(s, OTHER), MU_SLOWDOWN_FLAPS - 1);
}

static void add_spare_and_members(struct scene *s, uint64_t world)
{
    add_record(s, ME, 6, 7, true, 0);
    add_record(s, OTHER, 7, 7, false, world);
    add_record(s, THIRD, 8, 7, false, world);
}

/* Rounds went by that another node led: how the last stays ended is not known. */
static void who_leads_again_after_another_begins_anew(void **state)
{
    for (int same = 0; same < 2; same++) {
        struct scene *s = *state;
        uint64_t world = same ? 7 : 9;

        s->own_hosts = true;
        fold_round(s, them); /* we are not in it */
        add_spare_and_members(s, 7);
        if (strstr(folds(s), "job/news") != NULL)
            (void)news_come(s, 30);
        (void)kept(s, true);
        stays_shortly(s, FOURTH, MU_SLOWDOWN_FLAPS);
        add_leader(s, OTHER, 50, 22);
        add_doc(s, world, same ? 20 : 51, them, 2);
        assert_non_null(strstr(changed(s, MU_FOLD_JOB), "unwatch nodes"));
        (void)seated(s);
        add_leader(s, ME, 52, 11);
        assert_non_null(strstr(changed(s, MU_FOLD_JOB), "load nodes"));
        add_spare_and_members(s, world);
        (void)folds(s);
        assert_int_equal(short_stays(s, FOURTH), same ? MU_SLOWDOWN_FLAPS : 0);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

static void a_node_is_held_off_from_the_round_after_its_third_failure(void **state)
{
    struct scene *s = *state;
    char members[64];

    s->own_hosts = true;
    s->like.max_restarts = 3;
    lead(s, three, 3);
    stays_shortly(s, OTHER, MU_SLOWDOWN_FLAPS - 1);
    (void)fails(s, OTHER, 7, 0, false);
    (void)news_come(s, 30);
    (void)we_join(s);
    add_record(s, THIRD, 8, 6, true, 7);
    if (strstr(changed(s, MU_FOLD_NODES), "job/news") != NULL)
        (void)news_come(s, 62);
    assert_non_null(strstr(fails(s, OTHER, 7, 40, true), "job/doc"));
    assert_string_equal(list_members(s, members), "11 33");
    assert_string_equal(world_written(s).why, "exitcode 1; restarting with 2 nodes, restart 1 of 3");
}

/* ---- The window ---- */

static void with_a_window_seats_say_what_is_left_of_it(void **state)
{
    static const struct {
        int64_t count, window_s, left;
        size_t recent;
    } rows[] = { { 5, 100, 2, 1 }, { 5, 0, 0, 0 }, { 1, 0, 2, 0 }, { 9, 100, 0, 3 } };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene *s = *state;

        s->like = (struct mu_fold_world){ .count = rows[i].count,
                                          .max_restarts = 3,
                                          .window_s = rows[i].window_s,
                                          .charges = { 50 },
                                          .charges_count = rows[i].recent };
        be_member(s);
        assert_int_equal(mu_fold_seat(s->fold)->restarts_left, rows[i].left);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* Who puts a world back may never have seen its document: records of those who stay say what the job's limits are. */
static void who_stays_says_the_limits_of_the_job(void **state)
{
    static const struct mu_part_self self = { .role = "default", .local_world_size = 1, .max_restarts = 9 };
    struct scene *s = *state;

    s->like = (struct mu_fold_world){ .max_restarts = 3, .window_s = 100 };
    mu_fold_introduce(s->fold, &self);
    join_beside_a_leader(s);
    assert_true(s->record.max_restarts == 9 && s->record.window_s == 0);
    add_doc(s, 7, 20, us, 2);
    (void)changed(s, MU_FOLD_JOB);
    (void)seated(s);
    (void)deleted(s, MU_FOLD_JOB, "job/doc", 30);
    assert_true(s->record.max_restarts == 3 && s->record.window_s == 100);
}

static void restarts_older_than_the_window_do_not_count(void **state)
{
    for (int later = 0; later < 2; later++) {
        struct scene *s = *state;

        s->like = (struct mu_fold_world){
            .count = 5, .max_restarts = 1, .window_s = 100, .charges = { 50 }, .charges_count = 1
        };
        lead(s, us, 2);
        if (later)
            (void)passes(s, 60000);
        (void)fails(s, OTHER, 7, 0, false);
        (void)news_come(s, 30);
        (void)we_join(s);
        assert_non_null(strstr(fails(s, OTHER, 7, 40, true), later ? "job/doc" : "] job/closed"));
        if (later) {
            assert_int_equal(world_written(s).count, 6);
            assert_true(world_written(s).charges_count == 1 && world_written(s).charges[0] == 0);
        }
        (void)tear_down(state);
        (void)set_up(state);
    }
}

static void a_round_adds_all_of_its_time_to_the_age_of_restarts(void **state)
{
    struct scene *s = *state;
    struct mu_fold_world world;

    s->like = (struct mu_fold_world){
        .count = 5, .max_restarts = 3, .window_s = 100, .charges = { 50 }, .charges_count = 1, .rest_ms = 2
    };
    lead(s, us, 2);
    (void)passes(s, 999);
    (void)fails(s, OTHER, 7, 0, false);
    (void)news_come(s, 30);
    (void)we_join(s);
    assert_non_null(strstr(fails(s, OTHER, 7, 40, true), "job/doc"));
    world = world_written(s);
    assert_true(world.charges_count == 2 && world.charges[0] == 51 && world.charges[1] == 0);
    assert_int_equal(world.rest_ms, 1);
}

/* ---- Done ---- */

static void when_all_are_done_the_job_has_succeeded(void **state)
{
    struct scene *s = *state;

    lead(s, us, 2);
    add_done(s, OTHER);
    assert_string_equal(changed(s, MU_FOLD_NODES), "");
    assert_string_equal(deleted(s, MU_FOLD_NODES, "nodes/0000000000000022/0000000000000007", 41),
                        "write [ job/folder mod 6, job/doc mod 20] job/news(gone; waiting 0)"); /* done, and not lost */
    (void)wrote(s, true, 42);
    add_full_news(s, 42,
                  &(struct mu_fold_news){ .world = 7, .done = { { 0, 0 } }, .done_count = 1, .last_call_ms = -1 });
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
    add_done(s, ME);
    assert_string_equal(changed(s, MU_FOLD_NODES),
                        "write [ job/folder mod 6, job/doc mod 20, job/closed absent] job/closed");
    assert_true(s->closed.has_verdict && s->closed.succeeded);
}

static void the_verdict_is_known_to_who_comes_too_late(void **state)
{
    const struct mu_fold_closed closed = { .node = OTHER, .has_verdict = true, .cause = "rank 3's failure" };
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_null(mu_fold_verdict(s->fold));
    assert_int_equal(mu_fold_closed_write(&closed, add(s, "job/closed", 3, 3, JOB_LEASE)), 0);
    assert_string_equal(loaded(s, MU_FOLD_JOB), "failed ERDZV_CLOSED, drop lease, closed");
    assert_false(mu_fold_verdict(s->fold)->succeeded);
    assert_string_equal(mu_fold_verdict(s->fold)->cause, "rank 3's failure");
}

/* ---- Ranks ---- */

static void seats_count_workers_by_node_and_by_role(void **state)
{
    static const struct {
        uint64_t id;
        const char *role;
        int64_t size, restarts;
        struct mu_fold_seat seat;
    } rows[] = { { ME, "b", 2, 5, { 0, 0, 0, 6 } },
                 { OTHER, "a", 3, 9, { 1, 2, 0, 3 } },
                 { THIRD, "b", 4, 1, { 2, 5, 2, 6 } } };
    struct scene *s = *state;

    join_as_leader(s);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_fold_record record = { .nodes_min = MIN, .nodes_max = MAX, .joining = true };

        (void)snprintf(record.role, sizeof record.role, "%s", rows[i].role);
        record.size = rows[i].size;
        record.max_restarts = rows[i].restarts;
        add_full_record(s, rows[i].id, 6 + (int64_t)i, record);
    }
    (void)folds(s);
    assert_non_null(strstr(granted(s, 900), "seat 11=0 seat 22=1 seat 33=2"));
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_memory_equal(&s->seats[i], &rows[i].seat, sizeof rows[i].seat);
    assert_int_equal(world_written(s).size, 9);
    assert_int_equal(world_written(s).max_restarts, 5); /* who is first says how many there are */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_report_is_written_and_acknowledged),
        TEST(a_report_that_fails_is_written_again),
        TEST(a_report_survives_that_we_join_anew),
        TEST(a_report_of_no_round_is_an_error),
        TEST(done_is_a_key_of_its_own_under_the_job_s_lease),
        TEST(done_waits_for_the_job_s_lease),
        TEST(done_survives_a_lease_of_the_job_that_is_gone),
        TEST(who_leaves_says_why_before_its_lease_ends),
        TEST(a_leader_that_left_says_so_to_the_next_one),
        TEST(who_leaves_does_not_wait_long_for_its_report),
        TEST(the_first_report_is_news_at_once),
        TEST(a_failure_costs_a_restart_when_everybody_is_out),
        TEST(a_loss_is_free_and_excuses_failures),
        TEST(where_it_is_known_how_a_node_was_lost_it_is_said),
        TEST(a_node_that_was_heard_long_after_a_failure_is_not_its_cause),
        TEST(what_was_reported_first_is_the_cause),
        TEST(who_has_left_the_round_is_not_lost_from_it),
        TEST(a_node_that_makes_room_for_another_ends_the_round_for_all),
        TEST(a_new_leader_knows_of_losses_by_the_news),
        TEST(a_new_leader_tells_the_lost_from_those_who_have_left),
        TEST(without_a_restart_left_the_job_is_closed_when_nobody_is_in),
        TEST(after_rounds_that_fail_at_once_there_is_a_pause),
        TEST(numbers_that_are_as_high_as_they_can_be_stay_there),
        TEST(a_wait_names_who_was_lost_with_the_last_round),
        TEST(a_pause_is_told_and_is_no_time_of_a_join),
        TEST(a_node_that_comes_and_goes_is_held_off_and_named),
        TEST(the_other_agents_of_its_host_are_not_held_off),
        TEST(two_agents_of_a_host_have_a_row_each),
        TEST(nobody_is_held_off_where_the_others_are_too_few),
        TEST(who_is_held_off_does_not_time_out_meanwhile),
        TEST(a_consequence_is_no_short_stay),
        TEST(a_stay_counts_once),
        TEST(a_stay_that_others_ended_breaks_a_row),
        TEST(who_leads_again_after_another_begins_anew),
        TEST(a_node_is_held_off_from_the_round_after_its_third_failure),
        TEST(with_a_window_seats_say_what_is_left_of_it),
        TEST(who_stays_says_the_limits_of_the_job),
        TEST(restarts_older_than_the_window_do_not_count),
        TEST(a_round_adds_all_of_its_time_to_the_age_of_restarts),
        TEST(when_all_are_done_the_job_has_succeeded),
        TEST(the_verdict_is_known_to_who_comes_too_late),
        TEST(seats_count_workers_by_node_and_by_role),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
