/* What nodes of an etcd-v3 rendezvous say of their workers, and what the leader makes of it: causes, restarts, ranks,
 * and the end of the job. */
#include "fold_scene.h"
#include "rdzv/slowdown.h"

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
    assert_string_equal(s->news.cause, "rank 3's failure on host");
    assert_string_equal(news_come(s, 30), "lost: rank 3's failure on host");
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
    assert_string_equal(world_written(s).why, "rank 3's failure on host; restarting with 2 nodes, restart 1 of 3");
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
    assert_string_equal(s->closed.cause, "rank 3's failure on host");
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
        TEST(without_a_restart_left_the_job_is_closed_when_nobody_is_in),
        TEST(after_rounds_that_fail_at_once_there_is_a_pause),
        TEST(restarts_older_than_the_window_do_not_count),
        TEST(when_all_are_done_the_job_has_succeeded),
        TEST(the_verdict_is_known_to_who_comes_too_late),
        TEST(seats_count_workers_by_node_and_by_role),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
